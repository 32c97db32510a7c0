/* communicator.c: how communicators come to be, go, and travel with a rank. See engine.h.
 *
 * A rank that joins (CommInitRank) or splits tells device 0, which gathers. When all members
 * have spoken, it tells every device of a member who they are, in order of communicator rank.
 */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

#define IMAGE_MAGIC 0x6c6c6f6372ull /* "rcoll" */
#define IMAGE_VERSION 1u

/* ---- finding ---------------------------------------------------------------------------- */

struct coll_comm *comm_by_key(const struct coll *c, uint64_t key)
{
	struct coll_comm *m = c->comms;

	while (m && m->key != key)
		m = m->next;
	return m;
}

struct seat *comm_seat(const struct coll *c, uint32_t rank, uint64_t handle,
		       struct coll_comm **comm)
{
	for (struct coll_comm *m = c->comms; m; m = m->next)
		for (uint32_t i = 0; i < m->seat_count; i++) {
			struct seat *s = &m->seats[i];

			if (s->taken && !s->closing && s->rank == rank && s->handle == handle) {
				if (comm)
					*comm = m;
				return s;
			}
		}
	return NULL;
}

uint32_t coll_members(const struct coll *c, uint32_t rank, uint64_t comm, uint32_t *members,
		      uint32_t max, uint64_t *key)
{
	struct coll_comm *m;

	if (!comm_seat(c, rank, comm, &m) || max < m->nranks)
		return 0;
	memcpy(members, m->member, m->nranks * sizeof *members);
	*key = m->key;
	return m->nranks;
}

/* ---- making ----------------------------------------------------------------------------- */

static void add_device(struct coll_comm *m, uint32_t device)
{
	uint32_t i = m->device_count;

	for (uint32_t k = 0; k < m->device_count; k++)
		if (m->devices[k] == device)
			return;
	for (; i > 0 && m->devices[i - 1] > device; i--)
		m->devices[i] = m->devices[i - 1];
	m->devices[i] = device;
	m->device_count++;
}

/* The local object of a communicator; the one that exists, or a new one without taken seats. */
static struct coll_comm *comm_make(struct coll *c, uint64_t key, uint32_t nranks,
				   const uint32_t *member)
{
	struct coll_comm *m = comm_by_key(c, key);

	if (m) {
		if (m->nranks == nranks && !memcmp(m->member, member, nranks * sizeof *member))
			return m;
		engine_fail(c, "two communicators have the same key");
		return NULL;
	}
	m = engine_new(c, sizeof *m);
	if (!m)
		return NULL;
	m->key = key;
	m->nranks = nranks;
	for (uint32_t i = 0; i < nranks; i++) {
		m->member[i] = member[i];
		m->device[i] = c->rank_device[member[i]];
		m->seat_count += m->device[i] == c->device;
		add_device(m, m->device[i]);
	}
	m->seats = engine_new(c, (m->seat_count + 1) * sizeof *m->seats);
	if (!m->seats) {
		free(m);
		return NULL;
	}
	for (uint32_t i = 0, s = 0; i < nranks; i++)
		if (m->device[i] == c->device) {
			m->seats[s].rank = member[i];
			m->seats[s++].index = i;
		}
	m->next = c->comms;
	c->comms = m;
	return m;
}

static struct seat *seat_take(struct coll *c, struct coll_comm *m, uint32_t rank, uint64_t handle)
{
	for (uint32_t i = 0; i < m->seat_count; i++) {
		struct seat *s = &m->seats[i];

		if (s->rank != rank)
			continue;
		if (s->taken) {
			engine_fail(c, "rank %u joins a communicator twice", rank);
			return NULL;
		}
		if (!s->sent)
			s->sent = engine_new(c, m->nranks * sizeof *s->sent);
		if (!s->received)
			s->received = engine_new(c, m->nranks * sizeof *s->received);
		if (!s->unreceived)
			s->unreceived = engine_new(c, m->nranks * sizeof *s->unreceived);
		if (!s->sent || !s->received || !s->unreceived)
			return NULL;
		s->taken = true;
		s->handle = handle;
		return s;
	}
	return NULL;
}

static struct join *join_new(struct coll *c, uint32_t rank, uint64_t handle, uint64_t key,
			     uint64_t seq)
{
	struct join *j = engine_new(c, sizeof *j);

	if (!j)
		return NULL;
	*j = (struct join){c->joins, rank, handle, key, seq};
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

void coll_init(struct coll *c, uint32_t rank, uint64_t comm, const uint8_t *unique_id,
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
	engine_pump(c);
}

void coll_split(struct coll *c, uint32_t rank, uint64_t parent, uint64_t comm, int32_t color,
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
	if (join_new(c, rank, comm, m->key, s->splits))
		engine_send(c, 0,
			    &(struct coll_message){.kind = MSG_JOIN,
						   .from_rank = rank,
						   .key = m->key,
						   .seq = s->splits,
						   .a = m->nranks,
						   .b = s->index,
						   .c = (uint32_t)color,
						   .value = (uint32_t)key});
	engine_pump(c);
}

/* ---- device 0 gathers ------------------------------------------------------------------- */

static void send_made(struct coll *c, const struct gathering *g, uint64_t key,
		      const uint32_t *member, uint32_t nranks)
{
	bool told[DEVICES_MAX] = {false};

	for (uint32_t i = 0; i < nranks; i++) {
		uint32_t to = c->rank_device[member[i]];

		for (uint32_t at = 0; at < nranks && !told[to]; at += MEMBERS_PER_MESSAGE) {
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
		told[to] = true;
	}
}

/* Members of one color, by (key, rank in the parent). */
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
		engine_fail(c, "device %u sent a joining that cannot be", from);
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
	if (++g->count < g->nranks)
		return;
	gathering_done(c, g);
	for (struct gathering **at = &c->gatherings; *at; at = &(*at)->next)
		if (*at == g) {
			*at = g->next;
			break;
		}
	free(g);
}

/* ---- every device learns ---------------------------------------------------------------- */

/* Takes the joining of this rank out of the list; frees it after copying. */
static bool join_take(struct coll *c, uint32_t rank, uint64_t key, uint64_t seq, struct join *out)
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

/* Peers may have learnt of a communicator before us and have gone on already. */
static void deliver_early(struct coll *c)
{
	struct inbound *early = c->early;

	c->early = NULL;
	c->early_count = 0;
	while (early) {
		struct inbound *next = early->next;

		early->next = NULL;
		*c->inbox_end = early;
		c->inbox_end = &early->next;
		early = next;
	}
}

static void joined(struct coll *c, struct coll_comm *m, const struct coll_message *origin)
{
	for (uint32_t i = 0; i < m->nranks; i++) {
		struct join j;

		if (m->device[i] != c->device)
			continue;
		if (!join_take(c, m->member[i], origin->key, origin->seq, &j)) {
			engine_fail(c, "rank %u is in a communicator it did not join",
				    m->member[i]);
			return;
		}
		if (!seat_take(c, m, j.rank, j.handle))
			return;
		c->io.joined(c->io.arg, j.rank, j.handle, m->key, 0, m->nranks, i);
	}
	deliver_early(c);
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
		if (join_take(c, m->from_rank, m->key, m->seq, &j))
			c->io.joined(c->io.arg, j.rank, j.handle, 0, 0, 0, 0);
		return;
	}
	if (m->a > c->world_size || m->c > MEMBERS_PER_MESSAGE || m->b > m->a ||
	    m->c > m->a - m->b || !m->value) {
		engine_fail(c, "device 0 made a communicator that cannot be");
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
			joined(c, made, m);
	}
}

/* ---- going ------------------------------------------------------------------------------ */

void coll_destroy(struct coll *c, uint32_t rank, uint64_t comm)
{
	struct seat *s = comm_seat(c, rank, comm, NULL);

	if (s)
		s->closing = true;
	engine_pump(c);
}

static bool comm_quiet(const struct coll *c, const struct coll_comm *m)
{
	if (m->ops || m->posted || m->arrived)
		return false;
	for (const struct coll_piece *p = c->pieces; p; p = p->next)
		if (p->comm == m)
			return false;
	for (uint32_t i = 0; i < m->seat_count; i++)
		if (m->seats[i].taken)
			return false;
	return true;
}

static void comm_free(struct coll_comm *m)
{
	for (uint32_t i = 0; i < m->seat_count; i++) {
		free(m->seats[i].sent);
		free(m->seats[i].received);
		free(m->seats[i].unreceived);
	}
	free(m->seats);
	free(m);
}

/* Frees seats that were destroyed and have nothing left to do, and communicators without any. */
void comm_sweep(struct coll *c)
{
	for (struct coll_comm **at = &c->comms; *at;) {
		struct coll_comm *m = *at;
		bool closed = false;

		for (uint32_t i = 0; i < m->seat_count; i++)
			if (m->seats[i].closing && !m->seats[i].groups) {
				m->seats[i].taken = m->seats[i].closing = false;
				closed = true;
			}
		closed |= m->closed;
		m->closed = closed;
		if (closed && comm_quiet(c, m)) {
			*at = m->next;
			comm_free(m);
		} else {
			at = &m->next;
		}
	}
}

void comm_free_all(struct coll *c)
{
	while (c->comms) {
		struct coll_comm *m = c->comms;

		c->comms = m->next;
		comm_free(m);
	}
	while (c->joins) {
		struct join *j = c->joins;

		c->joins = j->next;
		free(j);
	}
	while (c->gatherings) {
		struct gathering *g = c->gatherings;

		c->gatherings = g->next;
		free(g);
	}
	while (c->redops) {
		struct redop *r = c->redops;

		c->redops = r->next;
		free(r);
	}
}

/* ---- reductions of one's own ------------------------------------------------------------ */

void coll_redop(struct coll *c, uint32_t rank, uint64_t comm, uint64_t redop, uint32_t dtype,
		const uint8_t *scalar)
{
	struct redop *r = engine_new(c, sizeof *r);

	if (!r)
		return;
	*r = (struct redop){
		.next = c->redops, .rank = rank, .dtype = dtype, .comm = comm, .handle = redop};
	memcpy(r->scalar, scalar, sizeof r->scalar);
	c->redops = r;
}

void coll_redop_gone(struct coll *c, uint32_t rank, uint64_t redop)
{
	for (struct redop **at = &c->redops; *at; at = &(*at)->next)
		if ((*at)->rank == rank && (*at)->handle == redop) {
			struct redop *r = *at;

			*at = r->next;
			free(r);
			return;
		}
}

/* ---- travelling ------------------------------------------------------------------------- */

struct image {
	uint64_t magic;
	uint32_t version, world_size, comms, redops;
};
struct image_comm { /* followed by nranks members, as u32 */
	uint64_t handle, key, next_seq, splits;
	uint32_t nranks, index;
};
struct image_redop {
	uint64_t comm, handle;
	uint32_t dtype, reserved;
	uint8_t scalar[8];
};

struct cursor { /* over an image, never past its end */
	uint8_t *out;
	const uint8_t *in;
	uint64_t at, bytes;
	bool short_of;
};

static void put(struct cursor *k, const void *from, uint64_t bytes)
{
	k->short_of |= bytes > k->bytes - k->at;
	if (k->short_of)
		return;
	memcpy(k->out + k->at, from, bytes);
	k->at += bytes;
}

static bool get(struct cursor *k, void *to, uint64_t bytes)
{
	k->short_of |= bytes > k->bytes - k->at;
	if (k->short_of)
		return false;
	memcpy(to, k->in + k->at, bytes);
	k->at += bytes;
	return true;
}

uint64_t coll_save(const struct coll *c, uint32_t rank, uint8_t *out, uint64_t max)
{
	struct image image = {IMAGE_MAGIC, IMAGE_VERSION, c->world_size, 0, 0};
	struct cursor k = {.out = out, .bytes = max};

	if (coll_busy(c))
		return 0;
	put(&k, &image, sizeof image);
	for (const struct coll_comm *m = c->comms; m; m = m->next)
		for (uint32_t i = 0; i < m->seat_count; i++) {
			const struct seat *s = &m->seats[i];

			if (s->rank != rank || !s->taken || s->closing)
				continue;
			put(&k,
			    &(struct image_comm){s->handle, m->key, s->next_seq, s->splits,
						 m->nranks, s->index},
			    sizeof(struct image_comm));
			put(&k, m->member, m->nranks * sizeof *m->member);
			image.comms++;
		}
	for (const struct redop *r = c->redops; r; r = r->next) {
		struct image_redop saved = {r->comm, r->handle, r->dtype, 0, {0}};

		if (r->rank != rank)
			continue;
		memcpy(saved.scalar, r->scalar, sizeof saved.scalar);
		put(&k, &saved, sizeof saved);
		image.redops++;
	}
	if (k.short_of)
		return 0;
	memcpy(out, &image, sizeof image);
	return k.at;
}

static bool restore_comm(struct coll *c, uint32_t rank, struct cursor *k)
{
	struct image_comm saved;
	uint32_t member[RANKS_MAX];
	struct coll_comm *m;
	struct seat *s;
	bool known;

	if (!get(k, &saved, sizeof saved) || !saved.key || !saved.nranks ||
	    saved.nranks > c->world_size || saved.index >= saved.nranks ||
	    !get(k, member, saved.nranks * sizeof *member) || member[saved.index] != rank)
		return false;
	for (uint32_t i = 0; i < saved.nranks; i++) {
		if (member[i] >= c->world_size)
			return false;
		for (uint32_t j = 0; j < i; j++)
			if (member[i] == member[j])
				return false;
	}
	known = comm_by_key(c, saved.key) != NULL;
	m = comm_make(c, saved.key, saved.nranks, member);
	if (m && known && m->base_seq != saved.next_seq)
		return false; /* not of the same cut */
	for (uint32_t i = 0; m && !known && i < m->seat_count; i++)
		m->base_seq = m->seats[i].next_seq = saved.next_seq;
	s = m ? seat_take(c, m, rank, saved.handle) : NULL;
	if (!s)
		return false;
	s->splits = saved.splits;
	return true;
}

int coll_restore(struct coll *c, uint32_t rank, const uint8_t *in, uint64_t bytes)
{
	struct cursor k = {.in = in, .bytes = bytes};
	struct image image;

	if (rank >= c->world_size || c->rank_device[rank] != c->device ||
	    !get(&k, &image, sizeof image) || image.magic != IMAGE_MAGIC ||
	    image.version != IMAGE_VERSION || image.world_size != c->world_size)
		return NCCL_INVALID_ARGUMENT;
	for (uint32_t i = 0; i < image.comms; i++)
		if (!restore_comm(c, rank, &k))
			return NCCL_INVALID_ARGUMENT;
	for (uint32_t i = 0; i < image.redops; i++) {
		struct image_redop saved;

		if (!get(&k, &saved, sizeof saved))
			return NCCL_INVALID_ARGUMENT;
		coll_redop(c, rank, saved.comm, saved.handle, saved.dtype, saved.scalar);
	}
	if (k.at != bytes)
		return NCCL_INVALID_ARGUMENT;
	deliver_early(c);
	engine_pump(c);
	return 0;
}
