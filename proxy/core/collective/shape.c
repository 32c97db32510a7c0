/* shape.c: what ranks call, how much data it moves, and in which pieces. See engine.h.
 *
 * Rules: everything follows from the shape, which is the same for all members, and from the
 * communicator, so every device splits an operation into the same pieces with the same owners.
 * Owners rotate over the devices, so each reads and writes its share of the data.
 */
#include "engine.h"

#include <stdio.h>

#define COLL_PIECE_BYTES_MIN 16384ull /* smaller data are not divided among devices */

uint32_t dtype_bytes(uint32_t dtype)
{
	static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

	return dtype < sizeof bytes ? bytes[dtype] : 0;
}

const char *shape_text(const struct shape *s, char *out, size_t bytes)
{
	static const char *const kinds[] = {"AllReduce",     "Reduce", "Broadcast", "AllGather",
					    "ReduceScatter", "Send",   "Recv",      "AlltoAll",
					    "Gather",        "Scatter"};
	static const char *const types[] = {"int8",    "uint8",    "int32",      "uint32",
					    "int64",   "uint64",   "float16",    "float32",
					    "float64", "bfloat16", "float8e4m3", "float8e5m2"};
	static const char *const ops[] = {"sum", "prod", "max", "min", "avg", "premulsum"};

	snprintf(out, bytes, "%s of %llu %s (op %s, root %u)", s->kind < 10 ? kinds[s->kind] : "?",
		 (unsigned long long)s->count, s->dtype < 12 ? types[s->dtype] : "?",
		 s->op < 6 ? ops[s->op] : "?", s->root);
	return out;
}

void shape_fail(struct coll *c, uint32_t rank_a, const struct shape *a, uint32_t rank_b,
		const struct shape *b)
{
	char text_a[96], text_b[96];

	engine_fail(c, "ranks differ in a collective: rank %u calls %s, rank %u calls %s", rank_a,
		    shape_text(a, text_a, sizeof text_a), rank_b,
		    shape_text(b, text_b, sizeof text_b));
}

bool shape_reduces(uint32_t kind)
{
	return kind == RF_COLL_ALLREDUCE || kind == RF_COLL_REDUCE || kind == RF_COLL_REDUCESCATTER;
}

bool shape_has_root(uint32_t kind)
{
	return kind == RF_COLL_REDUCE || kind == RF_COLL_BROADCAST || kind == RF_COLL_GATHER ||
	       kind == RF_COLL_SCATTER;
}

uint64_t shape_common(const struct shape *s, uint64_t nranks)
{
	uint64_t bytes = s->count * dtype_bytes(s->dtype);

	switch (s->kind) {
	case RF_COLL_ALLREDUCE:
	case RF_COLL_BROADCAST: return bytes;
	case RF_COLL_ALLGATHER: return bytes * nranks;
	default: return 0;
	}
}

/* The number of blocks of `count` elements that travel separately. */
static uint64_t shape_blocks(const struct shape *s, uint64_t nranks)
{
	switch (s->kind) {
	case RF_COLL_ALLREDUCE:
	case RF_COLL_REDUCE:
	case RF_COLL_BROADCAST: return 1;
	case RF_COLL_ALLTOALL: return nranks * nranks;
	default: return nranks;
	}
}

/* The number of elements of one piece: an even share for each device, within bounds. */
static uint64_t shape_range(const struct shape *s, const struct coll_comm *m)
{
	uint64_t size = dtype_bytes(s->dtype), range = s->count,
		 least = COLL_PIECE_BYTES_MIN / size;

	if (shape_blocks(s, m->nranks) == 1 &&
	    !(s->kind == RF_COLL_ALLREDUCE && m->link.phase == LINK_USED)) /* it has no owner */
		range = (range + m->device_count - 1) / m->device_count;
	range = (range + 63) / 64 * 64;
	if (range < least)
		range = least;
	return range < COLL_PIECE_BYTES / size ? range : COLL_PIECE_BYTES / size;
}

uint64_t shape_pieces(const struct shape *s, const struct coll_comm *m)
{
	uint64_t range = shape_range(s, m);

	return shape_blocks(s, m->nranks) * ((s->count + range - 1) / range);
}

static struct tree_node only_rank(uint64_t rank)
{
	return (struct tree_node){(uint32_t)rank, (uint32_t)rank + 1};
}

struct plan plan_make(const struct op *op, uint64_t number)
{
	const struct coll_comm *m = op->comm;
	const struct shape *s = &op->shape;
	uint64_t range = shape_range(s, m), per_block = (s->count + range - 1) / range;
	uint64_t block = number / per_block, at = number % per_block * range, n = m->nranks;
	struct tree_node all = {0, m->nranks};
	struct plan p = {.sources = all,
			 .dests = all,
			 .src_at = at,
			 .dst_at = at,
			 .count = s->count - at < range ? s->count - at : range};

	switch (s->kind) {
	case RF_COLL_REDUCE: p.dests = only_rank(s->root); break;
	case RF_COLL_BROADCAST: p.sources = only_rank(s->root); break;
	case RF_COLL_REDUCESCATTER:
		p.dests = only_rank(block);
		p.src_at += block * s->count;
		break;
	case RF_COLL_ALLGATHER:
		p.sources = only_rank(block);
		p.dst_at += block * s->count;
		break;
	case RF_COLL_GATHER:
		p.sources = only_rank(block);
		p.dests = only_rank(s->root);
		p.dst_at += block * s->count;
		break;
	case RF_COLL_SCATTER:
		p.sources = only_rank(s->root);
		p.dests = only_rank(block);
		p.src_at += block * s->count;
		break;
	case RF_COLL_ALLTOALL: /* block / n sends to block % n */
		p.sources = only_rank(block / n);
		p.dests = only_rank(block % n);
		p.src_at += block % n * s->count;
		p.dst_at += block / n * s->count;
		break;
	}
	if (s->kind == RF_COLL_ALLREDUCE)
		p.owner = m->devices[(op->seq + number) % m->device_count];
	else
		p.owner = m->device[shape_reduces(s->kind) ? p.dests.lo : p.sources.lo];
	return p;
}

static bool device_has_any(const struct coll_comm *m, struct tree_node ranks, uint32_t device)
{
	for (uint32_t i = ranks.lo; i < ranks.hi; i++)
		if (m->device[i] == device)
			return true;
	return false;
}

bool plan_takes_part(const struct coll_comm *m, const struct plan *p, uint32_t device)
{
	return p->owner == device || device_has_any(m, p->sources, device) ||
	       device_has_any(m, p->dests, device);
}

uint64_t plan_participants(const struct coll_comm *m, const struct plan *p)
{
	uint64_t found = 0;

	for (uint32_t i = 0; i < m->device_count; i++)
		if (plan_takes_part(m, p, m->devices[i]))
			found |= 1ull << m->devices[i];
	return found;
}
