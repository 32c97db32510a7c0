/* order.h: which accesses of one rank its program has ordered, and which it has not. For a rank
 * whose job asks for it (`checkOrder`); nothing of this exists for others. Its files, from the
 * lowest to the highest:
 *
 *   clock.c   streams, events and the host: what is ordered behind what
 *   order.c   the accesses to each range that others may still race with
 *
 * Everything is told in program order, when the program issues it: what is found does not depend
 * on what happens to run first. It is about the program's own order, as CUDA defines it:
 *  - operations of one stream run one after another;
 *  - the legacy stream's run behind all that is older in blocking streams, and these behind it;
 *  - behind an event's record is who waits for it, and what the host issues when it has seen it;
 *  - what the host has waited for is before all that it issues from then on.
 *
 * How: vector clocks. A stream counts its operations; its clock says how many of each other's
 * are before its next one, and an event's mark is the clock of its stream then. An earlier
 * operation is before a later one if the later one's clock has got to its number. Of a range the
 * accesses are kept behind which nothing that reaches at least as much has come: a race with one
 * that is forgotten is one with what took its place. (Lamport 1978; FastTrack, Flanagan and Freund
 * 2009.)
 *
 * A race is `certain` where both do reach a byte of the other's; else one of them may have gaps (a
 * kernel's bounds are a hull), and it is only possible.
 *
 * It knows addresses and numbers, and nothing of ranks, channels or memory. */
#ifndef RANKFOLD_ORDER_H
#define RANKFOLD_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#define ORDER_STREAMS_MAX 256    /* not yet known to be done; with more the check ends */
#define ORDER_EXTENTS_MAX 65536u /* of memory; beyond it all that is known of it is forgotten */
#define ORDER_RACES_MAX 32       /* told of one rank */

enum order_stream { ORDER_LEGACY, ORDER_BLOCKING, ORDER_FREE };
enum order_use { ORDER_READ, ORDER_ATOMIC, ORDER_WRITE };

struct order;
struct order_mark;

struct order_side {            /* one of the two accesses */
	const char *operation; /* what it is, for people */
	uint64_t number;       /* of it, in program order */
	uint64_t stream;
	enum order_use use;
	uint64_t addr, bytes; /* all of the access */
	bool whole;           /* it reaches every byte of that */
};
struct order_race {
	struct order_side first, second; /* in program order */
	bool certain;
	uint64_t addr, bytes; /* what both reach, or a part of that */
};
typedef void order_told(void *to, const struct order_race *);

/* Each pair of operations and streams is told once. NULL: host memory is short. */
struct order *order_open(order_told *, void *to);
void order_close(struct order *);
/* Why nothing is checked any more, or NULL. */
const char *order_ended(const struct order *);

void order_stream(struct order *, uint64_t stream, enum order_stream);
void order_stream_gone(struct order *, uint64_t stream);

/* The next operation in a stream; its accesses follow. */
void order_operation(struct order *, uint64_t stream, const char *operation, uint64_t number);
void order_access(struct order *, uint64_t addr, uint64_t bytes, enum order_use, bool whole);
/* What lay there is gone: whoever reaches it next reaches something else. */
void order_forget(struct order *, uint64_t addr, uint64_t bytes);

/* What is in a stream so far: an event's record. NULL: no memory, and the check has ended. */
struct order_mark *order_mark(struct order *, uint64_t stream);
void order_mark_free(struct order_mark *);
void order_wait(struct order *, uint64_t stream, const struct order_mark *);
/* Operations that have one key run one after another, also in different streams: the next one of
 * the key is this stream's. */
void order_in_turn(struct order *, uint64_t stream, uint64_t key);

/* The host has seen that it is done. */
void order_seen(struct order *, const struct order_mark *);
void order_seen_stream(struct order *, uint64_t stream);
void order_seen_all(struct order *);

#endif
