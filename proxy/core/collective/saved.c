/* saved.c: saves a rank's communicators and reductions as bytes, at a cut, and restores them. See
 * engine.h. */
#include "engine.h"

#include <string.h>

#define IMAGE_MAGIC 0x6c6c6f6372ull /* "rcoll" */
#define IMAGE_VERSION 1u
#define MEMBER_ABORTED (1u << 31) /* flag of a member that has aborted the communicator */

struct image {
	uint64_t magic;
	uint32_t version, world_size, comms, redops;
};
struct image_comm { /* followed by nranks members, as u32, some with MEMBER_ABORTED */
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

			if (s->rank != rank || !s->in_use || s->closing)
				continue;
			put(&k,
			    &(struct image_comm){s->handle, m->key, s->next_seq, s->splits,
						 m->nranks, s->index},
			    sizeof(struct image_comm));
			for (uint32_t n = 0; n < m->nranks; n++) {
				uint32_t member = m->member[n] |
						  (m->aborted[n] ? MEMBER_ABORTED : 0);

				put(&k, &member, sizeof member);
			}
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

/* Members of a broken communicator may have completed different numbers of collectives, and will
 * complete no more. */
static void restore_broken(struct coll_comm *m, struct seat *s, const struct image_comm *saved,
			   const bool *aborted)
{
	s->next_seq = saved->next_seq;
	m->limit = m->broken && m->limit < s->next_seq ? m->limit : s->next_seq;
	m->broken = true;
	for (uint32_t i = 0; i < m->nranks; i++)
		m->aborted[i] |= aborted[i];
}

static bool restore_comm(struct coll *c, uint32_t rank, struct cursor *k)
{
	struct image_comm saved;
	uint32_t member[RANKS_MAX];
	struct coll_comm *m;
	struct seat *s;
	bool known, broken = false, aborted[RANKS_MAX];

	if (!get(k, &saved, sizeof saved) || !saved.key || !saved.nranks ||
	    saved.nranks > c->world_size || saved.index >= saved.nranks ||
	    !get(k, member, saved.nranks * sizeof *member) || member[saved.index] != rank)
		return false; /* includes a rank that has aborted it */
	for (uint32_t i = 0; i < saved.nranks; i++) {
		aborted[i] = member[i] & MEMBER_ABORTED;
		broken |= aborted[i];
		member[i] &= ~MEMBER_ABORTED;
		if (member[i] >= c->world_size)
			return false;
		for (uint32_t j = 0; j < i; j++)
			if (member[i] == member[j])
				return false;
	}
	known = comm_by_key(c, saved.key) != NULL;
	m = comm_make(c, saved.key, saved.nranks, member);
	if (m && known && !broken && !m->broken && m->base_seq != saved.next_seq)
		return false; /* not from the same cut */
	for (uint32_t i = 0; m && !known && i < m->seat_count; i++)
		m->base_seq = m->seats[i].next_seq = saved.next_seq;
	s = m ? seat_acquire(c, m, rank, saved.handle) : NULL;
	if (!s)
		return false;
	s->splits = saved.splits;
	if (broken)
		restore_broken(m, s, &saved, aborted);
	return true;
}

int comm_restore(struct coll *c, uint32_t rank, const uint8_t *in, uint64_t bytes)
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
	engine_deliver_early(c);
	return 0;
}
