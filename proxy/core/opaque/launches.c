/* launches.c: what launches of a job's ranks on this device were seen to do, and what they are
 * trusted to do (opaque.h): a table of launches. Each has what its ranks have seen, and the last
 * occurrences that they vote on.
 */
#include <stdlib.h>

#include "invariant.h"
#include "opaque/opaque.h"

#define LAUNCHES_MAX 65536u /* with more, further ones are not trusted */
#define BALLOTS 4u
#define RECENT 8u   /* occurrences that are distinguished: a rank further behind is alone */
#define HOLDS 2u    /* occurrences in which all must agree */
#define TRIES 3u    /* occurrences after which it is UNLIKE if not all ranks reach it, */
#define SETTLES 32u /* or if other launches continue to become UNLIKE */

struct seen { /* by a rank */
	uint32_t rank;
	bool blind; /* it cannot be measured */
	struct ranges writes;
	uint32_t measured;
};

struct ballot { /* on one occurrence */
	uint64_t occurrence;
	uint32_t count, voters, first; /* number of votes, expected votes; the first rank to vote */
	uint64_t unlike;               /* launches.unlike at the first vote */
	struct version effect;
	struct parts before, changed; /* equal in all votes; changed in the first one */
};

enum verdict_is { LAUNCH_OPEN, LAUNCH_ALIKE, LAUNCH_UNLIKE };

struct watched {
	struct version id;
	enum verdict_is is;
	uint64_t count;           /* of occurrences */
	uint64_t numbers[RECENT]; /* the collectives before the last occurrences */
	uint64_t base;            /* OPEN: voting began there; ALIKE: it holds from there */
	struct ranges writes, reads;
	struct ranges strays; /* written but unchanged while measured */
	uint64_t equal_key, equal_number;
	bool used; /* since then it was trusted */
	struct ballot ballots[BALLOTS];
	struct seen *seen;
	uint32_t seen_count, seen_capacity;
};

/* ---- the table ---- */

static bool same_version(struct version x, struct version y) { return x.a == y.a && x.b == y.b; }

/* Returns the index of the launch, or where it would be inserted. */
static uint32_t table_place(const struct launches *l, struct version id)
{
	uint32_t at = (uint32_t)id.a & (l->capacity - 1);
	while (l->table[at] && !same_version(l->table[at]->id, id))
		at = (at + 1) & (l->capacity - 1);
	return at;
}

static struct watched *find_launch(const struct launches *l, struct version id)
{
	return l->capacity ? l->table[table_place(l, id)] : NULL;
}

static bool enlarge_table(struct launches *l)
{
	struct launches new = {.capacity = l->capacity ? 2 * l->capacity : 256};
	if (2 * l->count < l->capacity)
		return true;
	new.table = calloc(new.capacity, sizeof(struct watched *));
	if (!new.table)
		return false;
	for (uint32_t i = 0; i < l->capacity; i++)
		if (l->table[i])
			new.table[table_place(&new, l->table[i]->id)] = l->table[i];
	free(l->table);
	l->table = new.table;
	l->capacity = new.capacity;
	return true;
}

static struct watched *find_or_add(struct launches *l, struct version id)
{
	struct watched *it = find_launch(l, id);
	if (it || l->count == LAUNCHES_MAX || !enlarge_table(l) || !(it = calloc(1, sizeof *it)))
		return it;
	INVARIANT(2 * l->count <= l->capacity, "a table of launches is at most half full");
	it->id = id;
	l->table[table_place(l, id)] = it;
	l->count++;
	return it;
}

static struct seen *seen_by(const struct watched *it, uint32_t rank)
{
	for (uint32_t i = 0; it && i < it->seen_count; i++)
		if (it->seen[i].rank == rank)
			return &it->seen[i];
	return NULL;
}

static struct seen *seen_or_add(struct launches *l, struct version id, uint32_t rank)
{
	struct watched *it = find_or_add(l, id);
	struct seen *s = seen_by(it, rank);
	if (s || !it ||
	    !grow_array((void **)&it->seen, it->seen_count, 1, &it->seen_capacity,
			sizeof *it->seen))
		return s;
	it->seen[it->seen_count] = (struct seen){.rank = rank};
	return &it->seen[it->seen_count++];
}

static void forget_ballots(struct watched *it)
{
	for (uint32_t i = 0; i < BALLOTS; i++) {
		parts_free(&it->ballots[i].before);
		parts_free(&it->ballots[i].changed);
		it->ballots[i] = (struct ballot){0};
	}
}

void launches_forget(struct launches *l)
{
	for (uint32_t i = 0; i < l->capacity; i++) {
		struct watched *it = l->table[i];
		if (!it)
			continue;
		forget_ballots(it);
		ranges_free(&it->writes);
		ranges_free(&it->reads);
		ranges_free(&it->strays);
		for (uint32_t n = 0; n < it->seen_count; n++)
			ranges_free(&it->seen[n].writes);
		free(it->seen);
		free(it);
	}
	free(l->table);
	*l = (struct launches){.measured = l->measured};
}

/* ---- what is trusted ---- */

static bool is_few(const struct ranges *r) { return r->count <= RANGES_MAX; }

/* Returns the occurrence after this collective, possibly a new one; NO_OCCURRENCE if that
 * collective is too old to be known. */
static uint64_t occurrence_after(const struct watched *it, uint64_t number)
{
	uint64_t first = it->count > RECENT ? it->count - RECENT : 0;
	if (!it->count || number > it->numbers[(it->count - 1) % RECENT])
		return it->count;
	for (uint64_t n = it->count; n-- > first;)
		if (it->numbers[n % RECENT] == number)
			return n;
	return NO_OCCURRENCE;
}

enum trust launches_trust(const struct launches *l, struct version id, uint64_t number,
			  uint32_t rank, uint64_t every, struct trusted *trusted)
{
	const struct watched *it = find_launch(l, id);
	const struct seen *s = seen_by(it, rank);
	uint64_t now = it ? occurrence_after(it, number) : 0;
	if (now == NO_OCCURRENCE || (s && s->blind))
		return TRUST_NOTHING;
	if (!s)
		return l->count < LAUNCHES_MAX || it ? TRUST_MEASURE : TRUST_NOTHING;
	if (it->is == LAUNCH_OPEN || s->measured < HOLDS || now % every == 0)
		return TRUST_MEASURE;
	if (it->is == LAUNCH_ALIKE) {
		*trusted = (struct trusted){&it->writes, &it->reads, now};
		return now < it->base ? TRUST_MEASURE : TRUST_ALIKE;
	}
	*trusted = (struct trusted){.writes = &s->writes};
	return is_few(&s->writes) ? TRUST_UNLIKE : TRUST_NOTHING;
}

bool launches_first(const struct launches *l, uint32_t rank) { return !l->has_measured[rank]; }

uint64_t launches_done(struct launches *l, struct version id, uint64_t number, uint32_t rank,
		       bool measured)
{
	if (!seen_or_add(l, id, rank))
		return NO_OCCURRENCE;
	struct watched *it = find_launch(l, id);
	uint64_t now = occurrence_after(it, number);
	it->used |= !measured;
	if (now == it->count)
		it->numbers[it->count++ % RECENT] = number;
	return now;
}

static void set_verdict(struct launches *l, struct watched *it, enum verdict_is is)
{
	INVARIANT(l->alike >= (it->is == LAUNCH_ALIKE), "launches that are alike are counted");
	l->alike += is == LAUNCH_ALIKE;
	l->alike -= it->is == LAUNCH_ALIKE;
	l->unlike += is == LAUNCH_UNLIKE && it->is != is;
	it->is = is;
}

/* Lets all ranks vote again. */
static void vote_again(struct launches *l, struct watched *it)
{
	forget_ballots(it);
	set_verdict(l, it, LAUNCH_OPEN);
	it->base = it->count;
}

void launches_blind(struct launches *l, struct version id, uint32_t rank)
{
	struct seen *s = seen_or_add(l, id, rank);
	if (!s)
		return;
	s->blind = true;
	forget_ballots(find_launch(l, id));
	set_verdict(l, find_launch(l, id), LAUNCH_UNLIKE);
}

void launches_surprised(struct launches *l, struct version id, uint32_t rank, const uint32_t *pages,
			uint32_t count)
{
	struct watched *it = find_launch(l, id);
	struct seen *s = seen_by(it, rank);
	bool noted = s != NULL;
	for (uint32_t i = 0; i < count && noted; i++)
		noted = ranges_add_one(&s->writes, page_addr(pages[i]), RF_CHUNK_BYTES) &&
			ranges_add_one(&it->strays, page_addr(pages[i]), RF_CHUNK_BYTES);
	if (s && !noted)
		launches_blind(l, id, rank);
	else if (s && it->is == LAUNCH_ALIKE)
		vote_again(l, it);
}

/* ---- votes ---- */

static struct ballot *ballot_on(struct watched *it, uint64_t occurrence)
{
	struct ballot *found = &it->ballots[0];
	for (uint32_t i = 0; i < BALLOTS; i++) {
		struct ballot *b = &it->ballots[i];
		if (b->count && b->occurrence == occurrence)
			return b;
		if (!b->count || (found->count && b->occurrence < found->occurrence))
			found = b;
	}
	parts_free(&found->before);
	parts_free(&found->changed);
	*found = (struct ballot){.occurrence = occurrence};
	return found;
}

static bool all_voted(const struct ballot *b) { return b->count && b->count == b->voters; }

static bool changes_buffer(const struct parts *changed, uint64_t buffer)
{
	if (!buffer)
		return false;
	for (uint32_t i = 0; i < changed->count; i++)
		if (changed->all[i].buffer == buffer)
			return true;
	return false;
}

/* Adds parts that all ranks hold alike, in buffers in which the launch has changed anything, or
 * where it has written: it may change them another time. */
static bool add_concurrent(struct watched *it, const struct parts *same, const struct parts *x,
			   const struct parts *y)
{
	for (uint32_t i = 0; i < same->count; i++) {
		const struct part *p = &same->all[i];
		if ((changes_buffer(x, p->buffer) || changes_buffer(y, p->buffer) ||
		     ranges_touch(&it->strays, p->addr, p->bytes)) &&
		    !ranges_add_one(&it->writes, p->addr, p->bytes))
			return false;
	}
	return true;
}

/* All ranks have agreed on both ballots: sets what the launch reads and writes, as far as can be
 * seen. It may have read everything that they held alike before the later one. */
static bool agree_on_effect(struct watched *it, const struct ballot *x, const struct ballot *y)
{
	const struct parts *same = x->occurrence > y->occurrence ? &x->before : &y->before;
	ranges_free(&it->reads);
	ranges_free(&it->writes);
	return ranges_add(&it->reads, same) && ranges_add(&it->writes, &x->changed) &&
	       ranges_add(&it->writes, &y->changed) &&
	       add_concurrent(it, same, &x->changed, &y->changed) && is_few(&it->writes);
}

/* Decides the launch if the votes suffice: two complete ballots between which no launch became
 * UNLIKE. A launch that becomes UNLIKE writes private versions in each rank from then on, which it
 * may not have done before. */
static void close_votes(struct launches *l, struct watched *it, const struct ballot *last,
			const struct measured *m)
{
	const struct ballot *other = last;
	uint64_t since = m->occurrence - it->base;
	uint32_t held = 0;
	bool any = false;
	for (uint32_t i = 0; i < BALLOTS; i++) {
		const struct ballot *b = &it->ballots[i];
		bool holds = all_voted(b) && b->unlike == l->unlike;
		any |= all_voted(b);
		held += holds;
		if (holds && b != last)
			other = b;
	}
	if (last->voters < 2 || since >= (any ? SETTLES : TRIES)) {
		set_verdict(l, it, LAUNCH_UNLIKE);
	} else if (all_voted(last) && last->unlike == l->unlike && held >= HOLDS) {
		set_verdict(l, it, agree_on_effect(it, last, other) ? LAUNCH_ALIKE : LAUNCH_UNLIKE);
		it->base = it->count;
	}
	if (it->is != LAUNCH_OPEN)
		forget_ballots(it);
}

/* Counts a vote. For a launch that is decided already, only the effect is kept. */
static bool count_vote(struct ballot *b, const struct measured *m, const struct parts *changed,
		       struct version effect, uint64_t unlike, bool decided)
{
	b->voters = m->voters;
	if (b->count++) {
		parts_intersect(&b->before, &m->before);
		return true;
	}
	b->first = m->rank;
	b->unlike = unlike;
	b->effect = effect;
	return decided || (parts_copy(&b->before, &m->before) && parts_copy(&b->changed, changed));
}

static bool cast_vote(struct launches *l, struct watched *it, const struct measured *m,
		      const struct parts *changed, struct dissent *dissent)
{
	struct version effect = parts_digest(changed);
	if (it->is == LAUNCH_UNLIKE || m->occurrence == NO_OCCURRENCE ||
	    m->occurrence < (it->is == LAUNCH_OPEN ? it->base : 0))
		return false;
	struct ballot *b = ballot_on(it, m->occurrence);
	if (b->count && !same_version(b->effect, effect)) {
		*dissent = (struct dissent){m->rank,   b->first,      m->key,
					    m->number, it->equal_key, it->equal_number};
		bool was = it->is == LAUNCH_ALIKE && it->used;
		set_verdict(l, it, LAUNCH_UNLIKE);
		forget_ballots(it);
		return was;
	}
	if (!count_vote(b, m, changed, effect, l->unlike, it->is != LAUNCH_OPEN))
		set_verdict(l, it, LAUNCH_UNLIKE);
	if (all_voted(b)) {
		it->equal_key = m->key;
		it->equal_number = m->number;
		it->used = false;
	}
	if (it->is == LAUNCH_OPEN)
		close_votes(l, it, b, m);
	return false;
}

bool launches_vote(struct launches *l, const struct measured *m, struct dissent *dissent)
{
	struct seen *s = seen_or_add(l, m->id, m->rank);
	struct parts changed = {0};
	bool differs = false;
	if (!s)
		return false;
	l->measured++;
	l->has_measured[m->rank] = true;
	s->measured++;
	if (parts_changed(&m->before, &m->after, &changed) && ranges_add(&s->writes, &changed))
		differs = cast_vote(l, find_launch(l, m->id), m, &changed, dissent);
	else
		launches_blind(l, m->id, m->rank);
	parts_free(&changed);
	return differs;
}

static const char *ranges_invalid(const struct ranges *r)
{
	WRONG(r->count > r->capacity, "ranges have space");
	for (uint32_t i = 1; i < r->count; i++)
		WRONG(r->all[i - 1].addr + r->all[i - 1].bytes >= r->all[i].addr,
		      "ranges are in order and do not touch");
	return NULL;
}

static const char *watched_invalid(const struct watched *it)
{
	const char *wrong = ranges_invalid(&it->writes);
	if (!wrong)
		wrong = ranges_invalid(&it->reads);
	if (!wrong)
		wrong = ranges_invalid(&it->strays);
	WRONG(it->base > it->count, "a launch is trusted from an occurrence on that was seen");
	for (uint32_t i = 0; i < it->seen_count && !wrong; i++) {
		WRONG(it->seen[i].rank >= RANKS_MAX ||
			      seen_by(it, it->seen[i].rank) != &it->seen[i],
		      "a rank has one entry for what it saw of a launch");
		wrong = ranges_invalid(&it->seen[i].writes);
	}
	return wrong;
}

const char *launches_invalid(const struct launches *l)
{
	const char *wrong = NULL;
	uint32_t count = 0;
	uint64_t alike = 0;
	for (uint32_t i = 0; i < l->capacity && !wrong; i++) {
		const struct watched *it = l->table[i];
		if (!it)
			continue;
		count++;
		alike += it->is == LAUNCH_ALIKE;
		WRONG(find_launch(l, it->id) != it, "a launch is found by its identity");
		wrong = watched_invalid(it);
	}
	WRONG(!wrong && count != l->count, "watched launches");
	WRONG(!wrong && alike != l->alike, "launches that are alike");
	return wrong;
}
