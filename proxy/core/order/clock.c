/* clock.c: streams, events and the host, and the order between them (order.h). */
#include "order/clock.h"

#include <stdlib.h>
#include <string.h>

static void join_clocks(struct clock *to, const uint64_t *from, uint32_t count)
{
	for (uint32_t n = 0; n < count; n++)
		to->done[n] = to->done[n] < from[n] ? from[n] : to->done[n];
}

static void join_clock(const struct clocks *c, struct clock *to, const struct clock *from)
{
	join_clocks(to, from->done, c->count);
}

void clocks_close(struct clocks *c)
{
	for (uint32_t n = 0; n < c->count; n++)
		free(c->lanes[n]);
	free(c->turns);
	*c = (struct clocks){0};
}

struct lane *clocks_find(const struct clocks *c, uint64_t id)
{
	for (uint32_t n = 0; n < c->count; n++)
		if (c->lanes[n]->id == id && !c->lanes[n]->gone)
			return c->lanes[n];
	return NULL;
}

uint32_t clocks_place(const struct clocks *c, const struct lane *l)
{
	uint32_t n = 0;
	while (c->lanes[n] != l)
		n++;
	return n;
}

static bool host_knows(const struct clocks *c, const struct clock *clock)
{
	uint32_t n = 0;
	while (n < c->count && clock->done[n] <= c->host.done[n])
		n++;
	return n == c->count;
}

/* Finds a place whose stream is gone and whose operations all come before any later one.
 * Numbering continues there: the host's clock, which contains the last number, is joined before
 * the next one. */
static struct lane *unused_lane(const struct clocks *c)
{
	for (uint32_t n = 0; n < c->count; n++)
		if (c->lanes[n]->gone && host_knows(c, &c->lanes[n]->clock))
			return c->lanes[n];
	return NULL;
}

struct lane *clocks_lane(struct clocks *c, uint64_t id, enum order_stream kind)
{
	struct lane *l = unused_lane(c);
	if (!l) {
		if (c->count == ORDER_STREAMS_MAX || !(l = calloc(1, sizeof *l)))
			return NULL;
		c->lanes[c->count++] = l;
	}
	*l = (struct lane){.id = id, .kind = kind};
	return l;
}

void clocks_stream_destroyed(struct clocks *c, uint64_t id)
{
	struct lane *l = clocks_find(c, id);
	if (l)
		l->gone = true;
}

static void behind_blocking(struct clocks *c, struct lane *legacy)
{
	for (uint32_t n = 0; n < c->count; n++)
		if (c->lanes[n]->kind == ORDER_BLOCKING)
			join_clock(c, &legacy->clock, &c->lanes[n]->clock);
}

void clocks_begin(struct clocks *c, struct lane *l)
{
	join_clock(c, &l->clock, &c->host);
	if (l->kind == ORDER_LEGACY)
		behind_blocking(c, l);
	for (uint32_t n = 0; l->kind == ORDER_BLOCKING && n < c->count; n++)
		if (c->lanes[n]->kind == ORDER_LEGACY)
			join_clock(c, &l->clock, &c->lanes[n]->clock);
}

uint64_t clocks_next(struct clocks *c, struct lane *l)
{
	clocks_begin(c, l);
	return ++l->clock.done[clocks_place(c, l)];
}

struct order_mark *clocks_mark(struct clocks *c, struct lane *l)
{
	struct order_mark *m = malloc(sizeof *m + c->count * sizeof *m->done);
	if (!m)
		return NULL;
	clocks_begin(c, l);
	m->count = c->count;
	memcpy(m->done, l->clock.done, c->count * sizeof *m->done);
	return m;
}

void clocks_wait(struct clocks *c, struct lane *l, const struct order_mark *m)
{
	clocks_begin(c, l);
	join_clocks(&l->clock, m->done, m->count);
}

bool clocks_turn(struct clocks *c, struct lane *l, uint64_t key)
{
	uint32_t n = 0;
	while (n < c->turn_count && c->turns[n].key != key)
		n++;
	if (n == c->turn_count) {
		struct turns *more = realloc(c->turns, (n + 1) * sizeof *more);
		if (!more)
			return false;
		c->turns = more;
		c->turns[c->turn_count++] = (struct turns){.key = key};
	}
	join_clock(c, &l->clock, &c->turns[n].clock);
	join_clock(c, &c->turns[n].clock, &l->clock);
	return true;
}

void clocks_host_saw(struct clocks *c, const struct order_mark *m)
{
	join_clocks(&c->host, m->done, m->count);
}

/* Waiting for the legacy stream also waits for the blocking streams that it would wait for. */
void clocks_host_saw_lane(struct clocks *c, struct lane *l)
{
	if (l->kind == ORDER_LEGACY)
		behind_blocking(c, l);
	join_clock(c, &c->host, &l->clock);
}

void clocks_host_saw_all(struct clocks *c)
{
	for (uint32_t n = 0; n < c->count; n++)
		join_clock(c, &c->host, &c->lanes[n]->clock);
}
