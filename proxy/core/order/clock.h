/* clock.h: streams and the order between them (clock.c); for order.c. */
#ifndef RANKFOLD_ORDER_CLOCK_H
#define RANKFOLD_ORDER_CLOCK_H

#include "order/order.h"

/* A vector clock: a number of operations for each stream, by its place. */
struct clock {
	uint64_t done[ORDER_STREAMS_MAX];
};

struct lane { /* a stream */
	uint64_t id;
	enum order_stream kind;
	bool gone; /* destroyed: its place is reused once the host has seen all its operations */
	struct clock clock;
};

struct turns { /* the order of operations that have one key */
	uint64_t key;
	struct clock clock;
};

struct clocks {
	struct lane *lanes[ORDER_STREAMS_MAX];
	uint32_t count;    /* places that were ever used */
	struct clock host; /* the operations that the host knows are done */
	struct turns *turns;
	uint32_t turn_count;
};

struct order_mark {
	uint32_t count;
	uint64_t done[];
};

void clocks_close(struct clocks *);
/* NULL: there are too many streams, or no memory. */
struct lane *clocks_lane(struct clocks *, uint64_t id, enum order_stream);
void clocks_stream_destroyed(struct clocks *, uint64_t id);
struct lane *clocks_find(const struct clocks *, uint64_t id); /* NULL: not found */
/* Updates the lane's clock for what is about to enter it: it is after everything that CUDA orders
 * before it. */
void clocks_begin(struct clocks *, struct lane *);
/* The same for an operation; returns its number in the lane. */
uint64_t clocks_next(struct clocks *, struct lane *);
uint32_t clocks_place(const struct clocks *, const struct lane *);
struct order_mark *clocks_mark(struct clocks *, struct lane *);
void clocks_wait(struct clocks *, struct lane *, const struct order_mark *);
bool clocks_turn(struct clocks *, struct lane *, uint64_t key); /* false: no memory */
void clocks_host_saw(struct clocks *, const struct order_mark *);
void clocks_host_saw_lane(struct clocks *, struct lane *);
void clocks_host_saw_all(struct clocks *);

#endif
