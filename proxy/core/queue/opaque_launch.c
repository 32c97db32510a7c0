/* opaque_launch.c: kernels whose reads and writes nothing describes: the observations of them
 * (opaque/opaque.h) determine their footprint, and whether they are measured first.
 *
 * Rules: only where ranks of a job share a device; elsewhere, trusting observations would be an
 * unnecessary risk. A launch that gets an address of pinned memory may write what the host reads:
 * it is never trusted.
 */
#include "queue/opaque_launch.h"

#include <string.h>

#include "queue/queue_parts.h"

enum { OF_OPAQUE = OF_QUEUE + 8, OF_PLACE, OF_LAUNCH }; /* after those of effects.c */

void opaque_collective(struct rank *r, struct item *i)
{
	struct digest d;
	digest_begin(&d);
	digest_word(&d, OF_PLACE);
	digest_word(&d, i->coll.comm->key);
	for (uint32_t n = 0; n < i->coll.count; n++) {
		const struct rf_collective *o = &item_ops(i)[n];
		digest_word(&d, o->kind);
		digest_word(&d, o->dtype);
		digest_word(&d, o->count);
		digest_word(&d, o->send);
		digest_word(&d, o->recv);
	}
	r->queue->place = (struct opaque_place){digest_end(&d), i->coll.comm->o.id, i->coll.turn,
						0};
}

void opaque_launch(struct rank *r, struct item *i)
{
	i->kernel.place = r->queue->place;
	r->queue->place.index++;
}

static bool is_opaque(const struct item *i)
{
	return i->kind == ITEM_KERNEL && i->kernel.function->opaque;
}

bool opaque_folded(const struct rank *r)
{
	return r->device->memory.shares && r->device->validate && !r->memory.distrusted &&
	       r->world->attached > 1;
}

/* Returns whether the launch has a recurring place, and its identity. */
static bool launch_identity(struct rank *r, const struct item *i, struct version *id)
{
	const struct function *f = i->kernel.function;
	const struct rf_launch *l = &i->kernel.launch;
	const struct opaque_place *place = &i->kernel.place;
	struct digest d;
	if (!is_opaque(i) || !place->comm)
		return false;
	digest_begin(&d);
	digest_word(&d, OF_OPAQUE);
	digest_word(&d, place->context.a);
	digest_word(&d, place->context.b);
	digest_word(&d, place->index);
	digest_word(&d, f->identity.a);
	digest_word(&d, f->identity.b);
	for (uint32_t n = 0; n < 3; n++)
		digest_word(&d, (uint64_t)l->grid[n] << 32 | l->block[n]);
	digest_word(&d, (uint64_t)l->shared_bytes << 32 | (uint64_t)l->cluster << 8 | l->flags);
	for (uint32_t at = 0; at + 8 <= l->param_bytes; at += 8) {
		uint64_t word;
		memcpy(&word, i->data + at, sizeof word);
		if (memory_pinned(&r->memory, word))
			return false;
		digest_word(&d, memory_find(&r->memory, word) ? word : 0);
	}
	*id = digest_end(&d);
	return true;
}

static enum trust find_trust(struct rank *r, const struct item *i, struct version *id,
			     struct trusted *trusted)
{
	if (!opaque_folded(r) || !launch_identity(r, i, id))
		return TRUST_NOTHING;
	if (r->measure.state && r->measure.item == i) /* whatever others find out meanwhile */
		return TRUST_MEASURE;
	return launches_trust(&r->world->launches, *id, i->kernel.place.number, r->rank,
			      r->device->validate, trusted);
}

/* The key excludes inputs that differ between ranks. So it is valid for this occurrence only, and
 * content from another occurrence is not its result. */
static void footprint_key(struct rank *r, const struct item *i, struct version id,
			  const struct trusted *trusted, struct footprint *f)
{
	const struct ranges *reads = trusted->reads;
	struct digest d;
	digest_begin(&d);
	digest_word(&d, OF_LAUNCH);
	digest_word(&d, r->device->arithmetic.a);
	digest_word(&d, r->device->arithmetic.b);
	digest_word(&d, id.a);
	digest_word(&d, id.b);
	digest_word(&d, trusted->occurrence);
	digest_bytes(&d, i->data, i->kernel.launch.param_bytes);
	for (uint32_t n = 0; n < reads->count; n++)
		content_absorb(&r->memory, reads->all[n].addr, reads->all[n].bytes, &d);
	f->key = digest_end(&d);
	f->keyed = true;
}

void opaque_footprint(struct rank *r, const struct item *i, struct footprint *f)
{
	struct version id;
	struct trusted trusted;
	enum trust is = find_trust(r, i, &id, &trusted);
	footprint_none(f);
	f->known = is == TRUST_UNLIKE || is == TRUST_ALIKE;
	if (!f->known)
		return;
	f->writes_outside = f->trusted = true;
	for (uint32_t n = 0; n < trusted.writes->count; n++)
		footprint_add(f, trusted.writes->all[n].addr, trusted.writes->all[n].bytes,
			      REACH_READ | REACH_WRITTEN);
	if (is == TRUST_ALIKE)
		footprint_key(r, i, id, &trusted, f);
}

bool opaque_still(const struct rank *r)
{
	for (uint32_t n = 0; n < r->queue->stream_count; n++) {
		const struct stream *s = r->queue->streams[n];
		for (const struct item *i = s->head; i && i != s->next; i = i->next)
			if (i->execution->place == EXECUTION_ENGINE && !i->execution->reported)
				return false;
	}
	return true;
}

bool opaque_waits(const struct rank *r, const struct item *i)
{
	return r->measure.item == i && r->measure.state == MEASURE_WAITS && !opaque_still(r);
}

bool opaque_measured(struct rank *r, const struct item *i)
{
	struct version id;
	struct trusted trusted;
	return find_trust(r, i, &id, &trusted) == TRUST_MEASURE;
}

bool opaque_first(struct rank *r, const struct item *i)
{
	struct measured what = {.rank = r->rank};
	struct trusted trusted;
	struct coll_place at;
	if (find_trust(r, i, &what.id, &trusted) != TRUST_MEASURE)
		return false;
	if (r->measure.state == MEASURE_READY && r->measure.item == i)
		return false;
	if (r->measure.state || !coll_place(r->world->coll, r->rank, i->kernel.place.comm, &at))
		return r->measure.state != MEASURES_NOTHING;
	what.key = at.key;
	what.number = at.number;
	what.first = launches_first(&r->world->launches, r->rank);
	what.voters = coll_locals(r->world->coll, at.key);
	measure_first(&r->measure, i, i->kernel.function->name, &what, now_ns());
	turn_progress(&r->device->turn);
	return true;
}

void opaque_done(struct rank *r, const struct item *i)
{
	struct version id;
	if (!opaque_folded(r) || !launch_identity(r, i, &id))
		return;
	bool measured = r->measure.state == MEASURE_READY && r->measure.item == i;
	uint64_t occurrence = launches_done(&r->world->launches, id, i->kernel.place.number,
					    r->rank, measured);
	measure_submitted(&r->measure, i, occurrence, now_ns());
}

void opaque_complete(struct rank *r, const struct item *i)
{
	struct version id;
	uint32_t pages[STRAYS_MAX], count;
	if (!is_opaque(i))
		return;
	measure_ran(&r->measure, i);
	count = memory_strays(&r->memory, pages);
	if (count && launch_identity(r, i, &id))
		launches_surprised(&r->world->launches, id, r->rank, pages, count);
}
