/* item.h: what lies in a stream: one item per request that takes its turn there. */
#ifndef RANKFOLD_QUEUE_ITEM_H
#define RANKFOLD_QUEUE_ITEM_H

#include <stdbool.h>
#include <stdint.h>

#include "channel.h"
#include "collective/collective.h"

struct comm;
struct fence;
struct function;
struct mark;
struct rank;

enum item_kind {
	ITEM_KERNEL,
	ITEM_COPY,
	ITEM_FILL,
	ITEM_RECORD,
	ITEM_WAIT,
	ITEM_COLLECTIVE,
	ITEM_HOST,
	ITEM_FENCE,
	ITEM_REPLY,
	ITEM_GEMM,
};

struct item {
	struct item *next;
	enum item_kind kind;
	bool submitted;   /* all of it given to the device, the engine or the client */
	uint16_t slot;    /* reply when complete, or 0 */
	uint32_t weight;  /* 1, and 1 for each 8 KiB that it carries */
	uint64_t seq;     /* program order */
	uint64_t hal_seq; /* number of its last work, 0: none */
	union {
		struct {
			struct function *function;
			struct rf_launch launch;
		} kernel;
		struct {
			struct rf_copy copy;
			uint64_t row, column;
		} copy;
		struct {
			struct rf_fill fill;
			uint64_t row, column;
		} fill;
		struct mark *mark;
		struct {
			struct comm *comm;
			uint64_t turn;
			uint32_t count, rounds;
			bool done;
			int error;
		} coll;
		struct {
			uint64_t token;
			uint32_t place;
		} host;
		struct fence *fence;
	};
	_Alignas(16) uint8_t data[]; /* parameters, inline bytes, collectives and their rounds, */
				     /* or the record of a matrix product */
};
static inline struct rf_collective *item_ops(struct item *i) { return (void *)i->data; }
static inline struct coll_round *item_rounds(struct item *i)
{
	return (void *)(item_ops(i) + i->coll.count);
}

/* NULL: host memory is short, and the rank has failed for it. */
struct item *item_new(struct rank *, enum item_kind, uint64_t seq, uint64_t data_bytes);

#endif
