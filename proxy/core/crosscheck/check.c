/* check.c: checks a rank's buffers, part by part (crosscheck.h): the rank stops, its memory becomes
 * quiet, the device computes checksums, and the rank continues.
 *
 * Each check covers one page of PARTS, other pages each time. The buffers of a rank from another
 * placement are checked completely before its next PARTS groups of collectives, however rare checks
 * are. Not all of them at the first one: that would cost most of what the move costs.
 */
#include "crosscheck/crosscheck.h"

#include <stdlib.h>

#include "invariant.h"

#define PARTS 8u
#define EVERY_PART ((1u << PARTS) - 1)
#define QUIET_NS 1000000000ull /* for the rank's memory to become quiet */
#define FRUITLESS_MAX 2u
#define CHECK_PARTS_MAX 65536u

void check_open(struct check *c, uint64_t every, uint32_t device, bool arrives)
{
	c->every = every;
	c->device = device;
	c->due = arrives ? EVERY_PART : 0;
}

void check_close(struct check *c)
{
	free(c->parts);
	*c = (struct check){0};
}

bool check_gave_up(const struct check *c) { return c->every && c->fruitless >= FRUITLESS_MAX; }

static uint32_t part_of(uint64_t number) { return 1u << (PARTS - 1 - number % PARTS); }

/* Returns the next due part from the number's part on; 0: none is due. */
static uint32_t due_of(uint32_t due, uint64_t number)
{
	uint32_t part = part_of(number);
	while (due && !(due & part))
		part = part_of(++number);
	return due & part;
}

bool check_first(struct check *c, uint64_t key, uint64_t number, uint64_t count, uint64_t now_ns)
{
	if (c->state)
		return true;
	if (!c->every || check_gave_up(c) || (c->key == key && c->number == number))
		return false;
	uint64_t round = (number + count) / c->every;
	c->looks = due_of(c->due, number + count);
	if (round != number / c->every)
		c->looks |= part_of(round);
	if (!c->looks)
		return false;
	c->state = CHECK_WAITS;
	c->due &= ~c->looks;
	c->key = key;
	c->number = number;
	c->since_ns = now_ns;
	return true;
}

/* ---- contents to check ---- */

static struct version digest_of(const struct rank_memory *m, const struct witness *who)
{
	struct digest d;
	digest_begin(&d);
	content_absorb(m, who->addr, who->bytes, &d);
	return digest_end(&d);
}

static bool add_content(struct check *c, const struct rank_memory *m, const struct pairs *pairs,
			const struct witness *who)
{
	struct version digest = digest_of(m, who);
	if (pairs_seen(pairs, digest, who))
		return true;
	if (!grow_array((void **)&c->parts, c->count, 1, &c->capacity, sizeof *c->parts))
		return false;
	c->parts[c->count++] = (struct check_part){.pair = {.digest = digest, .who = *who}};
	return c->count < CHECK_PARTS_MAX;
}

/* True if the page is checked now: it has valid content other than the zeros that it begins with,
 * and it is the page's turn. */
static bool looked_at(const struct check *c, const struct rank_memory *m, uint64_t page)
{
	const struct page *p = &m->pages[page];
	return (p->chunk || p->in_image || p->common) && !page_blank(m, (uint32_t)page) &&
	       c->looks >> page % PARTS & 1;
}

/* Adds the memory between two addresses on one page: of a buffer, or of none. */
static bool add_part(struct check *c, struct rank_memory *m, const struct pairs *pairs,
		     const struct buffer *b, uint64_t from, uint64_t to)
{
	uint64_t page = page_at(from);
	const struct chunk *chunk = m->pages[page].chunk;
	struct witness who = {.rank = m->rank,
			      .device = c->device,
			      .chunk = chunk ? chunk_number(m->device, chunk) : NO_CHUNK,
			      .addr = from,
			      .bytes = to - from,
			      .buffer = b ? b->addr : 0,
			      .buffer_bytes = b ? b->bytes : 0,
			      .call_site = b ? b->call_site : 0,
			      .key = c->key,
			      .number = c->number};
	return !looked_at(c, m, page) || add_content(c, m, pairs, &who);
}

static bool add_buffer(struct check *c, struct rank_memory *m, const struct pairs *pairs,
		       const struct buffer *b)
{
	uint64_t end = b->addr + b->bytes;
	for (uint64_t at = b->addr, next; at < end; at = next) {
		next = page_addr((uint32_t)page_at(at) + 1);
		next = next < end ? next : end;
		if (!add_part(c, m, pairs, b, at, next))
			return false;
	}
	return true;
}

/* Adds the memory between two buffers, on their pages. */
static bool add_gap(struct check *c, struct rank_memory *m, const struct pairs *pairs,
		    uint64_t from, uint64_t to)
{
	uint64_t first = (from + RF_CHUNK_BYTES - 1) & ~(RF_CHUNK_BYTES - 1);
	uint64_t last = to & ~(RF_CHUNK_BYTES - 1);
	uint64_t end = first < to ? first : to, begin = last > end ? last : end;
	return (from == end || add_part(c, m, pairs, NULL, from, end)) &&
	       (begin >= to || add_part(c, m, pairs, NULL, begin, to));
}

/* Adds every buffer; `gaps`: and the memory between them. */
static bool add_all(struct check *c, struct rank_memory *m, const struct pairs *pairs, bool gaps)
{
	uint64_t end = RF_DEV_BASE;
	for (uint32_t i = 0; i < m->buffer_count; i++) {
		const struct buffer *b = &m->buffers[i];
		if (b->freed)
			continue;
		if ((gaps && !add_gap(c, m, pairs, end, b->addr)) || !add_buffer(c, m, pairs, b))
			return false;
		end = b->addr + b->bytes;
	}
	return !gaps ||
	       add_gap(c, m, pairs, end, (end + RF_CHUNK_BYTES - 1) & ~(RF_CHUNK_BYTES - 1));
}

/* ---- a turn ---- */

static void end_check(struct check *c)
{
	c->state = CHECK_NONE;
	c->count = c->submitted = c->done = 0;
}

static bool begin_content_check(struct check *c, struct rank_memory *m, struct checks *checks,
				const struct pairs *pairs, bool gaps)
{
	c->missed |= !add_all(c, m, pairs, gaps);
	c->fruitless = 0;
	if (!checks->stream && checks->hal->stream_create(checks->device, &checks->stream)) {
		c->missed |= c->count != 0;
		c->count = 0;
	}
	if (!c->count) {
		end_check(c);
		return true;
	}
	c->state = CHECK_RUNS;
	memory_use(m);
	return true;
}

void check_all(struct check *c, struct rank_memory *m, struct checks *checks,
	       const struct pairs *pairs)
{
	c->looks = EVERY_PART;
	begin_content_check(c, m, checks, pairs, true);
}

static bool wait_for_work(struct check *c, struct rank_memory *m, struct checks *checks,
			  const struct pairs *pairs, uint64_t now_ns)
{
	if (!m->inflight && !memory_moving(m))
		return begin_content_check(c, m, checks, pairs, false);
	if (now_ns - c->since_ns < QUIET_NS)
		return false;
	c->fruitless++;
	c->due = 0; /* it would not be quieter at the next ones */
	end_check(c);
	return true;
}

static bool submit_sums(struct check *c, struct rank_memory *m, const struct checks *checks)
{
	struct check_part *part = &c->parts[c->submitted];
	struct hal_work work = {.kind = HAL_CHECKSUM};
	if (!checks->hal->available(checks->stream))
		return false;
	memory_resolve(m, part->pair.who.addr, part->pair.who.bytes, false, &work.checksum.src);
	work.checksum.bytes = part->pair.who.bytes;
	work.checksum.sum = part->pair.sum;
	part->hal_seq = checks->hal->submit(checks->stream, &work);
	c->submitted++;
	return true;
}

/* True if the part did not change. A write changes the versions when it is submitted: so when the
 * checksum was computed, no write had happened or was submitted. */
static bool holds_still(const struct rank_memory *m, const struct pair *pair)
{
	struct version now = digest_of(m, &pair->who);
	return now.a == pair->digest.a && now.b == pair->digest.b;
}

uint64_t check_deadline_ns(const struct check *c)
{
	return c->state == CHECK_WAITS ? c->since_ns + QUIET_NS : 0;
}

bool check_turn(struct check *c, struct rank_memory *m, struct checks *checks,
		const struct pairs *pairs, bool gives_up, uint64_t now_ns,
		void (*report)(void *arg, const struct pair *), void *arg)
{
	if (c->state == CHECK_WAITS && !gives_up)
		return wait_for_work(c, m, checks, pairs, now_ns);
	if (c->state == CHECK_WAITS)
		end_check(c);
	if (c->state == CHECK_NONE)
		return false;
	const struct hal *hal = checks->hal;
	uint32_t before = c->submitted + c->done;
	gives_up |= hal->space_error(m->space, NULL, 0) != 0;
	if (gives_up) {
		c->missed |= c->count != c->submitted;
		c->count = c->submitted;
	}
	while (c->submitted < c->count && submit_sums(c, m, checks))
		;
	uint64_t completed = hal->completed(checks->stream);
	for (; c->done < c->submitted && c->parts[c->done].hal_seq <= completed; c->done++) {
		const struct check_part *part = &c->parts[c->done];
		if (gives_up || !part->hal_seq || !holds_still(m, &part->pair)) {
			c->missed = true;
			continue;
		}
		checks->parts++;
		report(arg, &part->pair);
	}
	bool changed = c->submitted + c->done != before;
	if (c->done == c->count) {
		memory_used(m);
		end_check(c);
		changed = true;
	}
	return changed;
}

const char *check_invalid(const struct check *c)
{
	WRONG(c->done > c->submitted || c->submitted > c->count || c->count > c->capacity,
	      "the places in a list of parts to check");
	WRONG(c->state == CHECK_RUNS ? c->done == c->count : c->count,
	      "parts are checked while a check runs");
	return NULL;
}

void checks_close(struct checks *c)
{
	if (c->stream)
		c->hal->stream_destroy(c->stream);
	c->stream = NULL;
}
