/* order.h: which accesses of one rank its program has ordered, and which it has not. Used for ranks
 * whose job requests it (`checkOrder`); other ranks have none of it. Its files, from the lowest
 * layer to the highest:
 *
 *   clock.c   streams, events and the host: the order between them
 *   order.c   the accesses to each range that later ones may still race with
 *
 * All calls are made in program order, when the program issues an operation, so the result does not
 * depend on what happens to run first. It is about the program's own order, as CUDA defines it:
 *  - Operations of one stream run one after another.
 *  - Operations of the legacy stream run after all older ones in blocking streams, and later ones
 *    in blocking streams run after them.
 *  - After an event's record come the streams that wait for the event, and what the host issues
 *    after it has seen the event.
 *  - What the host has waited for comes before everything that it issues later.
 *
 * The method is vector clocks. A stream counts its operations. Its clock contains, for each other
 * stream, how many of that stream's operations come before its next one; an event's mark is the
 * clock of its stream at that time. An earlier operation comes before a later one if the later
 * one's clock has reached its number. For each range, an access is kept until a later ordered
 * access reaches at least as much: a race with a dropped access is also a race with the one that
 * replaced it. (Lamport 1978; FastTrack, Flanagan and Freund 2009.)
 *
 * A race is `certain` if both accesses reach a common byte; otherwise one of them may have gaps (a
 * kernel's bounds are a hull), and the race is only possible.
 *
 * This module uses only addresses and numbers. It is independent of ranks, channels and memory. */
#ifndef RANKFOLD_ORDER_H
#define RANKFOLD_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#define ORDER_STREAMS_MAX 256    /* not known to be done; with more, the check ends */
#define ORDER_EXTENTS_MAX 65536u /* of memory; with more, all recorded accesses are dropped */
#define ORDER_RACES_MAX 32       /* reported for one rank, of each kind */

enum order_stream { ORDER_LEGACY, ORDER_BLOCKING, ORDER_FREE };
enum order_use { ORDER_READ, ORDER_ATOMIC, ORDER_WRITE };

struct order;
struct order_mark;

struct order_side {            /* one of the two accesses */
	const char *operation; /* a description for people */
	uint64_t number;       /* of the operation, in program order */
	uint64_t stream;
	enum order_use use;
	uint64_t addr, bytes; /* the whole access */
	bool whole;           /* it reaches every byte of that range */
};
struct order_race {
	struct order_side first, second; /* in program order */
	bool certain;
	uint64_t addr, bytes; /* the range that both reach, or a part of it */
};
typedef void order_report(void *to, const struct order_race *);

/* Each pair of operations and streams is reported once. NULL: host memory is short. */
struct order *order_open(order_report *, void *to);
void order_close(struct order *);
/* The reason why the check has ended, or NULL. */
const char *order_ended(const struct order *);

void order_stream(struct order *, uint64_t stream, enum order_stream);
void order_stream_destroyed(struct order *, uint64_t stream);

/* Begins the next operation in a stream; its accesses follow. */
void order_operation(struct order *, uint64_t stream, const char *operation, uint64_t number);
void order_access(struct order *, uint64_t addr, uint64_t bytes, enum order_use, bool whole);
/* Drops the accesses to a range that was freed: later accesses reach other memory. */
void order_forget(struct order *, uint64_t addr, uint64_t bytes);

/* The content of a stream so far: an event's record. NULL: no memory, and the check has ended. */
struct order_mark *order_mark(struct order *, uint64_t stream);
void order_mark_free(struct order_mark *);
void order_wait(struct order *, uint64_t stream, const struct order_mark *);
/* Operations with one key run one after another, also in different streams: the next operation with
 * this key is in this stream. */
void order_in_turn(struct order *, uint64_t stream, uint64_t key);

/* The host has seen that a mark, a stream, or everything is done. */
void order_host_saw(struct order *, const struct order_mark *);
void order_host_saw_stream(struct order *, uint64_t stream);
void order_host_saw_all(struct order *);

#endif
