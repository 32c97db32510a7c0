/* measure.c: measures one launch of a rank (opaque.h): the rank stops until it is quiet, all of its
 * buffers are checked (crosscheck/check.c), the launch runs, and they are checked again.
 */
#include <string.h>

#include "invariant.h"
#include "opaque/opaque.h"

#define PATIENCE_NS 10000000000ull /* for the rank to become quiet, and for the launch to run */

static const struct pairs NO_PAIRS; /* every part is checked */

void measure_first(struct measure *m, const void *item, const char *name,
		   const struct measured *what, uint64_t now_ns)
{
	if (m->state)
		return;
	m->state = MEASURE_WAITS;
	m->item = item;
	m->since_ns = now_ns;
	strncpy(m->name, name, sizeof m->name - 1);
	m->it = *what;
	m->it.before = m->it.after = (struct parts){0};
}

void measure_submitted(struct measure *m, const void *item, uint64_t occurrence, uint64_t now_ns)
{
	if (m->state != MEASURE_READY || m->item != item)
		return;
	m->state = MEASURE_RUNS;
	m->it.occurrence = occurrence;
	m->since_ns = now_ns;
}

void measure_ran(struct measure *m, const void *item)
{
	if (m->state == MEASURE_RUNS && m->item == item)
		m->state = MEASURE_RAN;
}

void measure_end(struct measure *m)
{
	parts_free(&m->it.before);
	parts_free(&m->it.after);
	check_close(&m->check);
	*m = (struct measure){0};
}

uint64_t measure_deadline_ns(const struct measure *m)
{
	bool waits = m->state == MEASURE_WAITS || m->state == MEASURE_RUNS;
	return waits ? m->since_ns + PATIENCE_NS : 0;
}

static void add_part(void *arg, const struct pair *pair)
{
	struct measure *m = arg;
	const struct part part = {.addr = pair->who.addr,
				  .bytes = pair->who.bytes,
				  .buffer = pair->who.buffer,
				  .sum = {pair->sum[0], pair->sum[1]},
				  .digest = pair->digest};
	m->missed |= !parts_add(m->state == MEASURE_BEFORE ? &m->it.before : &m->it.after, &part);
}

/* Changed content is identified by its checksum. Unchanged content keeps its identity: it stays
 * equal to what it was equal to, and to nothing else. */
static void note_identity(struct rank_memory *memory, const struct part *p,
			  const struct part *before)
{
	struct digest d;
	digest_begin(&d);
	digest_word(&d, OF_SUM);
	if (before) {
		digest_word(&d, before->digest.a);
		digest_word(&d, before->digest.b);
	} else {
		digest_word(&d, p->bytes);
		digest_word(&d, p->sum[0]);
		digest_word(&d, p->sum[1]);
	}
	content_is(memory, p->addr, p->bytes, (struct content){digest_end(&d), 0, 0});
}

static void note_all(struct rank_memory *memory, const struct measured *it)
{
	for (uint32_t i = 0, at = 0; i < it->after.count; i++) {
		const struct part *p = &it->after.all[i];
		const struct part *before = parts_unchanged(&it->before, &at, p);
		note_identity(memory, p, it->first ? NULL : before);
	}
}

/* Starts the check of all buffers. */
static enum measure_is begin_content_check(struct measure *m, struct rank_memory *memory,
					   struct checks *checks, bool still)
{
	if (!still || memory->inflight || memory_moving(memory) || !memory_resident(memory))
		return MEASURE_CONTINUES;
	check_all(&m->check, memory, checks, &NO_PAIRS);
	m->state = m->state == MEASURE_WAITS ? MEASURE_BEFORE : MEASURE_AFTER;
	return MEASURE_CHANGED;
}

static enum measure_is look_at_check(struct measure *m, struct rank_memory *memory,
				     struct checks *checks, bool gives_up, uint64_t now_ns)
{
	bool changed = check_turn(&m->check, memory, checks, &NO_PAIRS, gives_up, now_ns, add_part,
				  m);
	if (check_holds(&m->check))
		return changed ? MEASURE_CHANGED : MEASURE_CONTINUES;
	if (gives_up || m->missed || check_missed(&m->check))
		return MEASURE_FAILED;
	if (m->state == MEASURE_BEFORE) {
		m->state = MEASURE_READY;
		return MEASURE_CHANGED;
	}
	note_all(memory, &m->it);
	return MEASURE_DONE;
}

enum measure_is measure_turn(struct measure *m, struct rank_memory *memory, struct checks *checks,
			     bool still, bool gives_up, uint64_t now_ns)
{
	bool late = now_ns - m->since_ns >= PATIENCE_NS;
	switch (m->state) {
	case MEASURE_WAITS:
		if (gives_up || (late && memory->inflight))
			return MEASURE_FAILED;
		return begin_content_check(m, memory, checks, still);
	case MEASURE_BEFORE:
	case MEASURE_AFTER: return look_at_check(m, memory, checks, gives_up, now_ns);
	case MEASURE_READY: return gives_up ? MEASURE_FAILED : MEASURE_CONTINUES;
	case MEASURE_RUNS: return gives_up || late ? MEASURE_FAILED : MEASURE_CONTINUES;
	case MEASURE_RAN:
		return gives_up ? MEASURE_FAILED : begin_content_check(m, memory, checks, still);
	default: return MEASURE_CONTINUES;
	}
}

const char *measure_invalid(const struct measure *m)
{
	bool looks = m->state == MEASURE_BEFORE || m->state == MEASURE_AFTER;
	WRONG(!m->state != !m->item, "a measurement is of an item");
	WRONG(check_holds(&m->check) && !looks, "checksums are computed for a measurement");
	WRONG(m->it.before.count > m->it.before.capacity ||
		      m->it.after.count > m->it.after.capacity,
	      "measured parts have space");
	return check_invalid(&m->check);
}
