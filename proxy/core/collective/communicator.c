/* communicator.c: finds, makes and destroys communicators, and reductions that ranks define. */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

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

			if (s->in_use && !s->closing && s->rank == rank && s->handle == handle) {
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

bool coll_place(const struct coll *c, uint32_t rank, uint64_t comm, struct coll_place *place)
{
	struct coll_comm *m;
	const struct seat *s = comm_seat(c, rank, comm, &m);

	if (!s)
		return false;
	*place = (struct coll_place){m->key, s->next_seq, m->nranks, s->index};
	return true;
}

uint32_t coll_keys(const struct coll *c, uint32_t rank, uint64_t comm, bool broken, uint64_t *keys)
{
	struct coll_comm *m;
	const struct seat *s = comm_seat(c, rank, comm, &m);
	uint32_t n = 0;

	if (s && (!broken || m->broken))
		keys[n++] = m->key;
	for (uint32_t i = 0; s && i < m->nranks; i++)
		if (i != s->index && (!broken || m->aborted[i])) {
			keys[n++] = engine_hash(m->key, s->index + 1, i + 1);
			keys[n++] = engine_hash(m->key, i + 1, s->index + 1);
		}
	return n;
}

uint32_t coll_locals(const struct coll *c, uint64_t key)
{
	const struct coll_comm *m = comm_by_key(c, key);
	uint32_t count = 0;

	for (uint32_t i = 0; m && i < m->seat_count; i++)
		count += m->seats[i].in_use && !m->seats[i].closing;
	return count;
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

/* The local object of a communicator: the existing one, or a new one without taken seats. */
struct coll_comm *comm_make(struct coll *c, uint64_t key, uint32_t nranks, const uint32_t *member)
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

struct seat *seat_acquire(struct coll *c, struct coll_comm *m, uint32_t rank, uint64_t handle)
{
	for (uint32_t i = 0; i < m->seat_count; i++) {
		struct seat *s = &m->seats[i];

		if (s->rank != rank)
			continue;
		if (s->in_use || s->aborted) {
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
		s->in_use = true;
		s->handle = handle;
		return s;
	}
	return NULL;
}

bool comm_joining(const struct coll *c, uint64_t key)
{
	for (const struct join *j = c->joins; j; j = j->next)
		if (key == (j->seq ? engine_hash(j->key, j->seq, (uint32_t)j->color) : j->key))
			return true;
	return false;
}

/* ---- destroying ------------------------------------------------------------------------- */

void comm_close(struct coll *c, uint32_t rank, uint64_t comm)
{
	struct seat *s = comm_seat(c, rank, comm, NULL);

	if (s)
		s->closing = true;
}

static bool comm_quiet(const struct coll *c, const struct coll_comm *m)
{
	if (m->ops || m->posted || m->arrived || link_open_questions(c, m))
		return false;
	for (const struct coll_piece *p = c->pieces; p; p = p->next)
		if (p->comm == m)
			return false;
	for (uint32_t i = 0; i < m->seat_count; i++)
		if (m->seats[i].in_use)
			return false;
	return true;
}

static void comm_free(struct coll *c, struct coll_comm *m)
{
	link_end(c, m, m->broken || c->failed || c->links_ended || m->link.done < m->link.begun);
	while (m->ops) {
		struct op *op = m->ops;

		m->ops = op->next;
		op_free(op);
	}
	receives_free(m->posted);
	receives_free(m->arrived);
	for (uint32_t i = 0; i < m->seat_count; i++) {
		free(m->seats[i].sent);
		free(m->seats[i].received);
		free(m->seats[i].unreceived);
	}
	free(m->seats);
	free(m);
}

static bool seat_close(struct coll *c, struct seat *s)
{
	if (!s->closing || s->groups)
		return false;
	s->in_use = s->closing = false;
	if (s->aborted)
		c->io.abort_complete(c->io.arg, s->rank, s->handle);
	return true;
}

void comm_remove(struct coll *c, struct coll_comm *m)
{
	for (struct coll_comm **at = &c->comms; *at; at = &(*at)->next)
		if (*at == m) {
			*at = m->next;
			break;
		}
	comm_free(c, m);
}

/* Frees destroyed seats without work, and communicators without seats in use. */
void comm_sweep(struct coll *c)
{
	for (struct coll_comm **at = &c->comms; *at;) {
		struct coll_comm *m = *at;
		bool closed = false;

		for (uint32_t i = 0; i < m->seat_count; i++)
			closed |= seat_close(c, &m->seats[i]);
		closed |= m->closed;
		m->closed = closed;
		if (closed && !m->broken && comm_quiet(c, m)) {
			*at = m->next;
			comm_free(c, m);
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
		comm_free(c, m);
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

/* ---- reductions that ranks define ------------------------------------------------------- */

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

void coll_redop_destroy(struct coll *c, uint32_t rank, uint64_t redop)
{
	for (struct redop **at = &c->redops; *at; at = &(*at)->next)
		if ((*at)->rank == rank && (*at)->handle == redop) {
			struct redop *r = *at;

			*at = r->next;
			free(r);
			return;
		}
}
