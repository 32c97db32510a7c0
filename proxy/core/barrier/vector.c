/* vector.c: a device's half of the cut vector, and its knowledge of communicators. See barrier.c
 * for the protocol.
 *
 * Rules: while the device is frozen, each change of what a rank has issued is reported; a rank's
 * `behind_count` is the number of communicators on which it is below the target.
 */
#include "barrier_parts.h"

#include <stddef.h>

uint64_t vector_target(const struct barrier *b, uint64_t comm)
{
	const struct entry *t = rounds_get(&b->targets, 0, comm);

	return t ? t->issued : 0;
}

bool vector_behind(const struct barrier *b, const struct barrier_rank *r)
{
	return r->behind_count > 0 || b->level == LET_GO;
}

/* Broken: the rank delays the cut as long as it waits for a round that may never complete. */
static bool behind_at(const struct entry *m, bool broken, uint64_t target)
{
	if (m->ended || m->joining)
		return false;
	return m->broken || broken ? m->complete < m->issued : m->issued < target;
}

bool vector_behind_on(const struct barrier *b, const struct entry *m)
{
	const struct entry *t = b->frozen ? rounds_get(&b->targets, 0, m->comm) : NULL;

	return b->frozen && behind_at(m, t && t->broken, t ? t->issued : 0);
}

void vector_report(struct barrier *b, const struct entry *m)
{
	barrier_send(b, (struct barrier_message){
				.kind = COUNT,
				.rank = m->rank,
				.comm = m->comm,
				.a = m->issued,
				.b = m->nranks,
				.c = (m->joining ? 1 : 0) | (m->ended ? 2 : 0) |
				     (m->broken ? 4 : 0) | (m->complete < m->issued ? 8 : 0) |
				     (uint64_t)m->src << 16 | (uint64_t)m->dst << 32,
				.d = b->generation});
}

/* A rank that owes a round, but waits at a round past its target, requests a higher one. */
void vector_request_raise(struct barrier *b, uint32_t rank)
{
	struct barrier_rank *r = &b->ranks[rank];
	struct entry *m;

	if (!b->frozen || !r->refused || !r->refused_comm || !vector_behind(b, r))
		return;
	m = rounds_get(&b->members, rank, r->refused_comm);
	if (!m || m->issued < vector_target(b, m->comm) || m->raised > m->issued)
		return;
	m->raised = m->issued + 1;
	barrier_send(b, (struct barrier_message){.kind = RAISE,
						 .rank = rank,
						 .comm = m->comm,
						 .a = m->raised,
						 .d = b->generation});
}

void vector_stand(struct barrier *b)
{
	if (!b->frozen || b->cut || b->level != DRAIN || b->stood == b->version)
		return;
	for (uint32_t i = 0; i < b->world_size; i++) {
		const struct barrier_rank *r = &b->ranks[i];

		if (barrier_local(b, i) && !r->exited &&
		    (!r->idle || r->joining || r->behind_count))
			return;
	}
	b->stood = b->version;
	barrier_send(b,
		     (struct barrier_message){.kind = STAND, .a = b->version, .d = b->generation});
}

void vector_freeze(struct barrier *b)
{
	b->stopping = b->frozen = true;
	b->level = CATCH_UP;
	b->version = b->stood = 0;
	rounds_clear(&b->targets);
	for (uint32_t i = 0; i < b->world_size; i++)
		b->ranks[i].behind_count = 0;
	for (uint32_t i = 0; i < b->members.count; i++) {
		struct entry *m = &b->members.entry[i];

		m->raised = 0;
		b->ranks[m->rank].behind_count += vector_behind_on(b, m);
		/* Sends of a rank are to be received, even if it has exited since. */
		if (!m->ended &&
		    (!b->ranks[m->rank].exited || (m->src != m->dst && m->src == m->rank)))
			vector_report(b, m);
	}
	barrier_send(b, (struct barrier_message){.kind = REPORTED, .d = b->generation});
}

struct entry *vector_replace(struct barrier *b, struct barrier_rank *r, uint32_t rank,
			     uint64_t comm)
{
	const struct entry *old = rounds_get(&b->members, rank, comm);
	uint32_t joining = old ? old->joining : 0, was_behind = old && vector_behind_on(b, old);
	struct entry *m = rounds_put(b, &b->members, rank, comm);

	if (m) {
		r->joining -= joining;
		r->behind_count -= was_behind;
	}
	return m;
}

void vector_member(struct barrier *b, struct entry new)
{
	struct barrier_rank *r = barrier_checked(b, new.rank,
						 "communicator of a rank that is not here");
	struct entry *m = r ? vector_replace(b, r, new.rank, new.comm) : NULL;

	if (!m)
		return;
	*m = new;
	if (b->frozen) {
		r->behind_count += vector_behind_on(b, m);
		vector_report(b, m);
	}
}

void barrier_pair(struct barrier *b, uint32_t rank, uint64_t key, uint32_t src, uint32_t dst)
{
	if (!key || (rank != src && rank != dst) || src == dst)
		barrier_fail(b, "a pair without its own member", rank, key);
	else if (!rounds_get(&b->members, rank, key))
		vector_member(
			b, (struct entry){
				   .comm = key, .rank = rank, .nranks = 2, .src = src, .dst = dst});
}

void vector_on_target(struct barrier *b, uint64_t comm, uint64_t to, uint32_t src, uint32_t dst)
{
	struct entry *t = rounds_put(b, &b->targets, 0, comm);
	uint64_t before;

	if (!t)
		return;
	if (src != dst) { /* one side may not have used the channel yet */
		if (barrier_local(b, src))
			barrier_pair(b, src, comm, src, dst);
		if (barrier_local(b, dst))
			barrier_pair(b, dst, comm, src, dst);
	}
	before = t->issued;
	t->issued = to;
	for (uint32_t i = 0; i < b->world_size; i++) {
		const struct entry *m = barrier_local(b, i) ? rounds_get(&b->members, i, comm)
							    : NULL;

		if (m)
			b->ranks[i].behind_count += behind_at(m, t->broken, to) -
						    behind_at(m, t->broken, before);
		if (barrier_local(b, i))
			vector_request_raise(b, i);
	}
}

void barrier_broken(struct barrier *b, uint32_t rank, uint64_t comm)
{
	struct entry *m = barrier_local(b, rank) ? rounds_get(&b->members, rank, comm) : NULL;
	bool was_behind;

	if (!m || m->ended || m->broken)
		return;
	was_behind = vector_behind_on(b, m);
	m->broken = true;
	if (m->spans)
		tandem_give_up(b);
	if (!b->frozen)
		return;
	b->ranks[rank].behind_count += vector_behind_on(b, m) - was_behind;
	vector_report(b, m);
}

void vector_on_broken(struct barrier *b, uint64_t comm)
{
	struct entry *t = rounds_put(b, &b->targets, 0, comm);

	for (uint32_t i = 0; t && i < b->world_size; i++)
		if (barrier_local(b, i))
			barrier_broken(b, i, comm);
	if (t)
		t->broken = true;
}

void vector_on_level(struct barrier *b, uint32_t level, uint64_t version)
{
	b->level = level;
	b->version = version;
	for (uint32_t i = 0; i < b->world_size; i++)
		if (barrier_local(b, i))
			vector_request_raise(b, i);
}
