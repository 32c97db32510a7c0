/* order.c: the accesses to each range that later ones may still race with (order.h).
 *
 * The extents are one sorted array. A gap between them has no access with which a later one could
 * race. Neighbours with equal accesses are merged.
 */
#include "order/order.h"

#include <stdlib.h>
#include <string.h>

#include "order/clock.h"

#define ENTRIES_MAX 64 /* per extent; with more, the oldest is dropped */

struct operation {
	uint32_t refs; /* one of `now`, and one per entry */
	uint32_t place;
	uint64_t tick; /* its number in its stream's clock */
	uint64_t number, stream;
	char name[];
};

struct trace { /* an access that reaches an extent */
	struct operation *op;
	uint64_t addr, bytes; /* the whole access */
	enum order_use use;
	bool whole;
};

struct stretch {
	uint64_t begin, end;
	struct trace *entries;
	uint32_t count;
};

struct order {
	struct clocks clocks;
	struct lane *lane;     /* of the current operation, whose accesses follow */
	struct operation *now; /* NULL: there is none */
	struct stretch *extents;
	uint32_t count, capacity;
	order_report *report;
	void *to;
	struct known { /* races reported already: digests of the pairs */
		uint64_t pairs[ORDER_RACES_MAX];
		uint32_t count;
	} possible, certain;
	const char *ended;
};

/* ---- operations and entries ---- */

static void op_release(struct operation *op)
{
	if (op && --op->refs == 0)
		free(op);
}

static void entries_drop(struct stretch *e)
{
	for (uint32_t n = 0; n < e->count; n++)
		op_release(e->entries[n].op);
	free(e->entries);
	e->entries = NULL;
	e->count = 0;
}

static void forget_all(struct order *o)
{
	for (uint32_t n = 0; n < o->count; n++)
		entries_drop(&o->extents[n]);
	o->count = 0;
}

static void end_check(struct order *o, const char *why)
{
	if (!o->ended)
		o->ended = why;
	forget_all(o);
}

static const char NO_MEMORY[] = "out of host memory";

static bool add_entry(struct stretch *e, const struct trace *x)
{
	struct trace *more = realloc(e->entries, (e->count + 1) * sizeof *more);
	if (!more)
		return false;
	e->entries = more;
	e->entries[e->count++] = *x;
	x->op->refs++;
	return true;
}

/* Copies the entries of an extent to another range. */
static bool copy_entries(struct stretch *to, const struct stretch *from, uint64_t begin,
			 uint64_t end)
{
	*to = (struct stretch){begin, end, NULL, 0};
	for (uint32_t n = 0; n < from->count; n++)
		if (!add_entry(to, &from->entries[n])) {
			entries_drop(to);
			return false;
		}
	return true;
}

static bool same_stretch(const struct stretch *x, const struct stretch *y)
{
	if (x->end != y->begin || x->count != y->count)
		return false;
	for (uint32_t n = 0; n < x->count; n++) {
		const struct trace *a = &x->entries[n], *b = &y->entries[n];
		if (a->op != b->op || a->addr != b->addr || a->bytes != b->bytes ||
		    a->use != b->use || a->whole != b->whole)
			return false;
	}
	return true;
}

/* ---- races ---- */

static bool ordered_before(const struct operation *op, const struct clock *clock)
{
	return op->tick <= clock->done[op->place];
}

/* True if every access that would race with x also races with y, given that x comes before y. */
static bool is_covered_by(const struct trace *x, const struct trace *y)
{
	return (y->use == ORDER_WRITE || y->use == x->use) && (y->whole || !x->whole);
}

static bool accesses_conflict(const struct trace *x, const struct trace *y)
{
	return x->use != y->use || x->use == ORDER_WRITE;
}

static bool is_within(const struct trace *inner, const struct trace *outer)
{
	return inner->addr >= outer->addr &&
	       inner->addr + inner->bytes <= outer->addr + outer->bytes;
}

/* For overlapping accesses: true if both certainly reach a common byte. */
static bool certainly_overlap(const struct trace *x, const struct trace *y)
{
	return (x->whole && y->whole) || (x->whole && is_within(y, x)) ||
	       (y->whole && is_within(x, y));
}

static uint64_t digest_of(const struct operation *op)
{
	uint64_t d = 0xcbf29ce484222325ull ^ op->stream << 8; /* FNV-1a */
	for (const char *c = op->name; *c; c++)
		d = (d ^ (uint8_t)*c) * 0x100000001b3ull;
	return d ^ d >> 29;
}

static struct order_side side_of(const struct trace *x)
{
	return (struct order_side){x->op->name, x->op->number, x->op->stream, x->use,
				   x->addr,     x->bytes,      x->whole};
}

static void report_race(struct order *o, const struct trace *x, const struct trace *y,
			uint64_t begin, uint64_t end)
{
	struct order_race race = {side_of(x), side_of(y), certainly_overlap(x, y), begin,
				  end - begin};
	struct known *known = race.certain ? &o->certain : &o->possible;
	uint64_t pair = digest_of(x->op) + digest_of(y->op); /* the same in either order */
	if (known->count == ORDER_RACES_MAX)
		return;
	for (uint32_t n = 0; n < known->count; n++)
		if (known->pairs[n] == pair)
			return;
	known->pairs[known->count++] = pair;
	o->report(o->to, &race);
}

/* Adds an access to an extent, and reports races. False: no memory. */
static bool reach_extent(struct order *o, struct stretch *e, const struct trace *x)
{
	const struct clock *now = &o->lane->clock;
	uint32_t kept = 0;
	for (uint32_t n = 0; n < e->count; n++) {
		struct trace *old = &e->entries[n];
		bool ordered = ordered_before(old->op, now);
		if (!ordered && accesses_conflict(old, x))
			report_race(o, old, x, e->begin, e->end);
		if ((ordered && is_covered_by(old, x)) ||
		    ordered_before(old->op, &o->clocks.host) || (!n && e->count == ENTRIES_MAX))
			op_release(old->op);
		else
			e->entries[kept++] = *old;
	}
	e->count = kept;
	return add_entry(e, x);
}

/* ---- the array ---- */

/* the first extent that ends after addr */
static uint32_t first_behind(const struct order *o, uint64_t addr)
{
	uint32_t low = 0, high = o->count;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (o->extents[middle].end <= addr)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Makes space for one more extent at an index. False: there is none, and the check has ended or all
 * extents were dropped. */
static bool insert_extent(struct order *o, uint32_t at)
{
	if (o->count == ORDER_EXTENTS_MAX) {
		forget_all(o);
		return false;
	}
	if (o->count == o->capacity) {
		uint32_t capacity = o->capacity ? o->capacity * 2 : 64;
		struct stretch *more = realloc(o->extents, capacity * sizeof *more);
		if (!more) {
			end_check(o, NO_MEMORY);
			return false;
		}
		o->extents = more;
		o->capacity = capacity;
	}
	memmove(&o->extents[at + 1], &o->extents[at], (o->count - at) * sizeof *o->extents);
	o->extents[at] = (struct stretch){0};
	o->count++;
	return true;
}

/* Splits extent n at an address if the address is inside it. */
static bool split_extent(struct order *o, uint32_t n, uint64_t at)
{
	if (n >= o->count || o->extents[n].begin >= at || o->extents[n].end <= at)
		return true;
	if (!insert_extent(o, n))
		return false;
	struct stretch *head = &o->extents[n], *tail = &o->extents[n + 1];
	if (!copy_entries(head, tail, tail->begin, at)) {
		end_check(o, NO_MEMORY);
		return false;
	}
	tail->begin = at;
	return true;
}

/* Merges equal neighbours, from extent `from` up to the neighbour of the one that ends after
 * `until`.
 */
static void merge_equal(struct order *o, uint32_t from, uint64_t until)
{
	uint32_t kept = from, n = from + 1;
	for (; n < o->count && o->extents[n].begin <= until; n++) {
		if (same_stretch(&o->extents[kept], &o->extents[n])) {
			o->extents[kept].end = o->extents[n].end;
			entries_drop(&o->extents[n]);
		} else {
			o->extents[++kept] = o->extents[n];
		}
	}
	if (n <= kept + 1 || from >= o->count)
		return;
	memmove(&o->extents[kept + 1], &o->extents[n], (o->count - n) * sizeof *o->extents);
	o->count -= n - kept - 1;
}

/* Makes extents cover a range: splits them at its ends, and fills gaps. */
static bool cover_range(struct order *o, uint64_t begin, uint64_t until)
{
	uint32_t n = first_behind(o, begin);
	uint64_t at = begin;
	if (!split_extent(o, n, begin))
		return false;
	for (n = first_behind(o, begin); at < until; n++) {
		uint64_t next = n < o->count ? o->extents[n].begin : until;
		if (next > at) {
			if (!insert_extent(o, n))
				return false;
			o->extents[n] = (struct stretch){at, next < until ? next : until, NULL, 0};
		} else if (!split_extent(o, n, until)) {
			return false;
		}
		at = o->extents[n].end;
	}
	return true;
}

/* ---- the calls in program order ---- */

struct order *order_open(order_report *report, void *to)
{
	struct order *o = calloc(1, sizeof *o);
	if (o) {
		o->report = report;
		o->to = to;
	}
	return o;
}

void order_close(struct order *o)
{
	if (!o)
		return;
	forget_all(o);
	op_release(o->now);
	clocks_close(&o->clocks);
	free(o->extents);
	free(o);
}

const char *order_ended(const struct order *o) { return o->ended; }

void order_stream(struct order *o, uint64_t stream, enum order_stream kind)
{
	if (!o->ended && !clocks_lane(&o->clocks, stream, kind))
		end_check(o, o->clocks.count == ORDER_STREAMS_MAX
				     ? "it has too many streams at the same "
				       "time"
				     : NO_MEMORY);
}

void order_stream_destroyed(struct order *o, uint64_t stream)
{
	clocks_stream_destroyed(&o->clocks, stream);
}

void order_operation(struct order *o, uint64_t stream, const char *operation, uint64_t number)
{
	op_release(o->now);
	o->now = NULL;
	o->lane = o->ended ? NULL : clocks_find(&o->clocks, stream);
	if (!o->lane)
		return;
	uint64_t tick = clocks_next(&o->clocks, o->lane);
	size_t bytes = strlen(operation) + 1;
	struct operation *op = malloc(sizeof *op + bytes);
	if (!op) {
		end_check(o, NO_MEMORY);
		return;
	}
	*op = (struct operation){1, clocks_place(&o->clocks, o->lane), tick, number, stream};
	memcpy(op->name, operation, bytes);
	o->now = op;
}

void order_access(struct order *o, uint64_t addr, uint64_t bytes, enum order_use use, bool whole)
{
	uint64_t until = addr + bytes;
	struct trace x = {o->now, addr, bytes, use, whole};
	if (o->ended || !o->now || until <= addr || !cover_range(o, addr, until))
		return;
	uint32_t first = first_behind(o, addr);
	for (uint32_t n = first; n < o->count && o->extents[n].begin < until; n++)
		if (!reach_extent(o, &o->extents[n], &x)) {
			end_check(o, NO_MEMORY);
			return;
		}
	merge_equal(o, first ? first - 1 : 0, until);
}

void order_forget(struct order *o, uint64_t addr, uint64_t bytes)
{
	uint64_t until = addr + bytes;
	if (o->ended || until <= addr || !split_extent(o, first_behind(o, addr), addr) ||
	    !split_extent(o, first_behind(o, until), until))
		return;
	uint32_t first = first_behind(o, addr), last = first;
	while (last < o->count && o->extents[last].begin < until)
		entries_drop(&o->extents[last++]);
	if (first == last)
		return;
	memmove(&o->extents[first], &o->extents[last], (o->count - last) * sizeof *o->extents);
	o->count -= last - first;
}

struct order_mark *order_mark(struct order *o, uint64_t stream)
{
	struct lane *l = o->ended ? NULL : clocks_find(&o->clocks, stream);
	struct order_mark *m = l ? clocks_mark(&o->clocks, l) : NULL;
	if (l && !m)
		end_check(o, NO_MEMORY);
	return m;
}

void order_mark_free(struct order_mark *m) { free(m); }

void order_wait(struct order *o, uint64_t stream, const struct order_mark *m)
{
	struct lane *l = o->ended ? NULL : clocks_find(&o->clocks, stream);
	if (l && m)
		clocks_wait(&o->clocks, l, m);
}

void order_in_turn(struct order *o, uint64_t stream, uint64_t key)
{
	struct lane *l = o->ended ? NULL : clocks_find(&o->clocks, stream);
	if (l && !clocks_turn(&o->clocks, l, key))
		end_check(o, NO_MEMORY);
}

void order_host_saw(struct order *o, const struct order_mark *m)
{
	if (m)
		clocks_host_saw(&o->clocks, m);
}

void order_host_saw_stream(struct order *o, uint64_t stream)
{
	struct lane *l = clocks_find(&o->clocks, stream);
	if (l)
		clocks_host_saw_lane(&o->clocks, l);
}

/* No later access can race with an earlier one any more. */
void order_host_saw_all(struct order *o)
{
	clocks_host_saw_all(&o->clocks);
	forget_all(o);
}
