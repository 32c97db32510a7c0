/* valid.c: checks that the barrier's counts and tables agree: before each save, as core_invalid
 * does, and after each event of the tests. See barrier.c for the protocol. */
#include "barrier_parts.h"
#include "invariant.h"

#include <stddef.h>

static const char *table_invalid(const struct rounds *t)
{
	WRONG(2 * t->count > t->capacity + 1, "a table of rounds has space");
	for (uint32_t i = 0; i < t->count; i++)
		WRONG(rounds_get(t, t->entry[i].rank, t->entry[i].comm) != &t->entry[i],
		      "an entry of a table of rounds is found by its key");
	return NULL;
}

static const char *members_invalid(const struct barrier *b)
{
	for (uint32_t i = 0; i < b->members.count; i++) {
		const struct entry *m = &b->members.entry[i];

		WRONG(!barrier_local(b, m->rank), "the rank of a member entry is here");
		WRONG(m->complete > m->issued, "a round is complete once it is issued");
		WRONG(m->ended && (m->joining || m->complete != m->issued),
		      "a member that has gone waits for nothing");
	}
	return NULL;
}

const char *barrier_invalid(const struct barrier *b)
{
	const char *wrong = table_invalid(&b->members);

	if (!wrong)
		wrong = table_invalid(&b->targets);
	if (!wrong)
		wrong = members_invalid(b);
	for (uint32_t rank = 0; rank < b->world_size && !wrong; rank++) {
		uint64_t behind_count = 0, joining = 0;

		if (!barrier_local(b, rank))
			continue;
		for (uint32_t i = 0; i < b->members.count; i++) {
			const struct entry *m = &b->members.entry[i];

			behind_count += m->rank == rank && vector_behind_on(b, m);
			joining += m->rank == rank ? m->joining : 0;
		}
		WRONG(joining != b->ranks[rank].joining, "joinings of a rank");
		WRONG(b->frozen && behind_count != b->ranks[rank].behind_count,
		      "communicators on which a rank is below the target");
	}
	return wrong;
}

bool barrier_counts(const struct barrier *b, uint32_t rank, uint64_t comm)
{
	const struct entry *m = rounds_get(&b->members, rank, comm);

	return m && !m->ended;
}
