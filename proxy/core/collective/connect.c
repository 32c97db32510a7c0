/* connect.c: how communicators are created. See engine.h.
 *
 * A rank that joins (CommInitRank) or splits sends a message to device 0. When device 0 has all
 * members, it sends their list, in order of communicator rank, to every device of a member.
 */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

static struct join *join_new(struct coll *c, uint32_t rank, uint64_t handle, uint64_t key,
			     uint64_t seq)
{
	struct join *j = engine_new(c, sizeof *j);

	if (!j)
		return NULL;
	*j = (struct join){
		.next = c->joins, .rank = rank, .handle = handle, .key = key, .seq = seq};
	c->joins = j;
	return j;
}

uint64_t coll_key(const uint8_t *unique_id)
{
	uint64_t key = 0, word;

	for (uint32_t i = 0; i < RF_UNIQUE_ID_BYTES; i += sizeof word) {
		memcpy(&word, unique_id + i, sizeof word);
		key = engine_hash(key, word, i);
	}
	return key;
}

void comm_init(struct coll *c, uint32_t rank, uint64_t comm, const uint8_t *unique_id,
	       uint32_t nranks, uint32_t comm_rank)
{
	uint64_t key = coll_key(unique_id);

	if (c->failed)
		return;
	if (rank >= c->world_size || !nranks || nranks > c->world_size || comm_rank >= nranks) {
		c->io.joined(c->io.arg, rank, comm, key, NCCL_INVALID_ARGUMENT, 0, 0);
		return;
	}
	if (join_new(c, rank, comm, key, 0))
		engine_send(c, 0,
			    &(struct coll_message){.kind = MSG_JOIN,
						   .from_rank = rank,
						   .key = key,
						   .a = nranks,
						   .b = comm_rank});
}

void comm_split(struct coll *c, uint32_t rank, uint64_t parent, uint64_t comm, int32_t color,
		int32_t key)
{
	struct coll_comm *m;
	struct seat *s = comm_seat(c, rank, parent, &m);

	if (c->failed)
		return;
	if (!s) {
		c->io.joined(c->io.arg, rank, comm, 0, NCCL_INVALID_ARGUMENT, 0, 0);
		return;
	}
	s->splits++;
	struct join *j = join_new(c, rank, comm, m->key, s->splits);

	if (!j)
		return;
	j->color = color;
	engine_send(c, 0,
		    &(struct coll_message){.kind = MSG_JOIN,
					   .from_rank = rank,
					   .key = m->key,
					   .seq = s->splits,
					   .a = m->nranks,
					   .b = s->index,
					   .c = (uint32_t)color,
					   .value = (uint32_t)key});
	abort_notify_members(c, m);
}

void comm_unjoin(struct coll *c, uint32_t rank, uint64_t handle)
{
	struct join *j = c->joins;

	while (j && (j->rank != rank || j->handle != handle || j->aborted))
		j = j->next;
	if (!j)
		return;
	j->aborted = true;
	engine_send(c, 0,
		    &(struct coll_message){
			    .kind = MSG_UNJOIN, .from_rank = rank, .key = j->key, .seq = j->seq});
}

/* ---- on device 0 ------------------------------------------------------------------------- */

static void send_made(struct coll *c, const struct gathering *g, uint64_t key,
		      const uint32_t *member, uint32_t nranks)
{
	bool notified[DEVICES_MAX] = {false};

	for (uint32_t i = 0; i < nranks; i++) {
		uint32_t to = c->rank_device[member[i]];

		for (uint32_t at = 0; at < nranks && !notified[to]; at += MEMBERS_PER_MESSAGE) {
			struct coll_message m = {.kind = MSG_MADE,
						 .key = g->key,
						 .seq = g->seq,
						 .value = key,
						 .a = nranks,
						 .b = at};

			for (uint32_t k = at; k < nranks && m.c < MEMBERS_PER_MESSAGE; k++)
				m.members[m.c++] = (uint16_t)member[k];
			engine_send(c, to, &m);
		}
		notified[to] = true;
	}
}

/* Sends the members of one color, ordered by (key, rank in the parent). */
static void split_color(struct coll *c, const struct gathering *g, int32_t color)
{
	uint32_t index[RANKS_MAX], member[RANKS_MAX], n = 0;

	for (uint32_t i = 0; i < g->nranks; i++) {
		uint32_t at = n;

		if (g->color[i] != color)
			continue;
		for (; at > 0 && g->order[index[at - 1]] > g->order[i]; at--)
			index[at] = index[at - 1];
		index[at] = i;
		n++;
	}
	for (uint32_t i = 0; i < n; i++)
		member[i] = g->rank[index[i]];
	send_made(c, g, engine_hash(g->key, g->seq, (uint32_t)color), member, n);
}

static void gathering_done(struct coll *c, const struct gathering *g)
{
	if (!g->seq) {
		send_made(c, g, g->key, g->rank, g->nranks);
		return;
	}
	for (uint32_t i = 0; i < g->nranks; i++) {
		bool first = true;

		for (uint32_t k = 0; k < i; k++)
			first &= g->color[k] != g->color[i];
		if (g->color[i] < 0) /* in no new communicator */
			engine_send(c, c->rank_device[g->rank[i]],
				    &(struct coll_message){.kind = MSG_MADE,
							   .from_rank = g->rank[i],
							   .key = g->key,
							   .seq = g->seq});
		else if (first)
			split_color(c, g, g->color[i]);
	}
}

static void refuse_split(struct coll *c, const struct gathering *g, uint32_t rank)
{
	engine_send(c, c->rank_device[rank],
		    &(struct coll_message){.kind = MSG_MADE,
					   .from_rank = rank,
					   .key = g->key,
					   .seq = g->seq,
					   .b = NCCL_REMOTE_ERROR});
}

static struct gathering *gathering_get(struct coll *c, const struct coll_message *m)
{
	struct gathering *g = c->gatherings;

	while (g && (g->key != m->key || g->seq != m->seq))
		g = g->next;
	if (g)
		return g;
	g = engine_new(c, sizeof *g);
	if (!g)
		return NULL;
	g->key = m->key;
	g->seq = m->seq;
	g->nranks = m->a;
	for (uint32_t i = 0; i < g->nranks; i++)
		g->rank[i] = NONE;
	g->next = c->gatherings;
	c->gatherings = g;
	return g;
}

void comm_on_join(struct coll *c, uint32_t from, const struct coll_message *m)
{
	struct gathering *g;

	if (c->device != 0 || m->from_rank >= c->world_size ||
	    c->rank_device[m->from_rank] != from || !m->a || m->a > c->world_size || m->b >= m->a) {
		engine_fail(c, "device %u sent an invalid join", from);
		return;
	}
	g = gathering_get(c, m);
	if (!g)
		return;
	if (g->nranks != m->a || g->rank[m->b] != NONE) {
		engine_fail(c, "rank %u joins a communicator as number %u of %u, but %s",
			    m->from_rank, m->b, m->a,
			    g->nranks != m->a ? "others join one of another size"
					      : "that place is taken");
		return;
	}
	g->rank[m->b] = m->from_rank;
	g->color[m->b] = (int32_t)m->c;
	g->order[m->b] = (int32_t)m->value;
	if (g->refused)
		refuse_split(c, g, m->from_rank);
	if (++g->count < g->nranks)
		return;
	if (!g->refused)
		gathering_done(c, g);
	for (struct gathering **at = &c->gatherings; *at; at = &(*at)->next)
		if (*at == g) {
			*at = g->next;
			break;
		}
	free(g);
}

/* A rank has cancelled joining: no rank joins. If there is no such gathering, all had called
 * before. */
void comm_on_unjoin(struct coll *c, uint32_t from, const struct coll_message *m)
{
	struct gathering *g = c->gatherings;

	if (c->device != 0 || m->from_rank >= c->world_size ||
	    c->rank_device[m->from_rank] != from) {
		engine_fail(c, "device %u aborted a join that does not exist", from);
		return;
	}
	while (g && (g->key != m->key || g->seq != m->seq))
		g = g->next;
	if (!g || g->refused)
		return;
	g->refused = true;
	for (uint32_t i = 0; i < g->nranks; i++)
		if (g->rank[i] != NONE)
			refuse_split(c, g, g->rank[i]);
}

/* ---- on every device --------------------------------------------------------------------- */

/* Removes this rank's join from the list and copies it to `out`. */
static bool join_remove(struct coll *c, uint32_t rank, uint64_t key, uint64_t seq, struct join *out)
{
	for (struct join **at = &c->joins; *at; at = &(*at)->next) {
		struct join *j = *at;

		if (j->rank == rank && j->key == key && j->seq == seq) {
			*out = *j;
			*at = j->next;
			free(j);
			return true;
		}
	}
	return false;
}

static void members_joined(struct coll *c, struct coll_comm *m, const struct coll_message *origin)
{
	for (uint32_t i = 0; i < m->nranks; i++) {
		struct join j;

		if (m->device[i] != c->device)
			continue;
		if (!join_remove(c, m->member[i], origin->key, origin->seq, &j)) {
			engine_fail(c, "rank %u is in a communicator it did not join",
				    m->member[i]);
			return;
		}
		struct seat *s = seat_acquire(c, m, j.rank, j.handle);

		if (!s)
			return;
		if (j.aborted)
			abort_seat(c, m, s);
		else
			c->io.joined(c->io.arg, j.rank, j.handle, m->key, 0, m->nranks, i);
	}
	engine_deliver_early(c);
}

void comm_on_made(struct coll *c, uint32_t from, const struct coll_message *m)
{
	uint32_t *member = c->made;
	struct join j;

	if (from != 0) {
		engine_fail(c, "device %u made a communicator, which only device 0 does", from);
		return;
	}
	if (!m->a) {
		if (join_remove(c, m->from_rank, m->key, m->seq, &j) && !j.aborted)
			c->io.joined(c->io.arg, j.rank, j.handle, m->seq ? 0 : m->key, (int)m->b, 0,
				     0);
		return;
	}
	if (m->a > c->world_size || m->c > MEMBERS_PER_MESSAGE || m->b > m->a ||
	    m->c > m->a - m->b || !m->value) {
		engine_fail(c, "device 0 made an invalid communicator");
		return;
	}
	for (uint32_t i = 0; i < m->c; i++) {
		if (m->members[i] >= c->world_size) {
			engine_fail(c, "device 0 made a communicator of unknown ranks");
			return;
		}
		member[m->b + i] = m->members[i];
	}
	if (m->b + m->c == m->a) {
		struct coll_comm *made = comm_make(c, m->value, m->a, member);

		if (made)
			members_joined(c, made, m);
	}
}
