/* steps.c: the steps of pieces, one asynchronous io call each, and their memory. See engine.h.
 *
 * Rules: a piece's steps run one after the other, but consecutive fetches run concurrently and
 * complete in any order. Fetched data is released once, when its piece releases it or is freed.
 * The piece's own function (advance) decides what follows the last step.
 */
#include "engine.h"
#include "plural.h"

#include <stdlib.h>

/* ---- memory ---- */

/* malloc caches smaller blocks; for larger ones it would map and clear pages for each piece. */
#define SPARE_LEAST (64ull << 10)

/* Takes the smallest spare block that is large enough, or new memory. */
static void spare_alloc(struct coll *c, struct coll_block *b)
{
	struct coll_spare *best = NULL;

	for (struct coll_spare *s = c->spare; s < c->spare + SPARE_BLOCKS; s++)
		if (s->at && s->capacity >= b->bytes && (!best || s->capacity < best->capacity))
			best = s;
	if (best && best->capacity / 4 <= b->bytes) {
		b->at.addr = (uintptr_t)best->at;
		b->capacity = best->capacity;
		best->at = NULL;
	} else {
		b->at.addr = (uintptr_t)malloc(b->bytes);
		b->capacity = b->bytes;
	}
	b->offset = b->at.addr;
}

static void spare_free(struct coll *c, const struct coll_block *b)
{
	void *at = (void *)(uintptr_t)b->at.addr;

	for (struct coll_spare *s = c->spare; s < c->spare + SPARE_BLOCKS; s++)
		if (!s->at && b->capacity >= SPARE_LEAST) {
			*s = (struct coll_spare){at, b->capacity};
			return;
		}
	free(at);
}

void blocks_release(struct coll *c)
{
	for (struct coll_spare *s = c->spare; s < c->spare + SPARE_BLOCKS; s++) {
		free(s->at);
		s->at = NULL;
	}
}

/* Takes scratch memory, if available. */
static bool scratch_try_alloc(const struct coll *c, struct coll_block *b)
{
	if (!c->io.scratch_alloc)
		return false;
	b->at.addr = b->offset = c->io.scratch_alloc(c->io.arg, b->bytes);
	return b->at.addr;
}

static bool scratch_try_free(const struct coll *c, const struct coll_block *b)
{
	return c->io.scratch_free && c->io.scratch_free(c->io.arg, b->at.addr, b->bytes);
}

struct coll_block block_new(struct coll *c, uint64_t bytes, uint64_t readers)
{
	struct coll_block b = {.bytes = bytes, .outbox = readers};

	if (!bytes)
		return b;
	if (readers) {
		b.at = c->io.outbox_alloc(c->io.arg, bytes, readers, &b.offset);
	} else if (!scratch_try_alloc(c, &b)) {
		spare_alloc(c, &b);
	}
	if (!b.at.addr)
		engine_fail(c, "out of host memory: no space for %llu byte%s of a collective",
			    (unsigned long long)bytes, plural(bytes));
	return b;
}

void block_free(struct coll *c, struct coll_block *b)
{
	if (!b->at.addr || b->lent)
		return;
	if (b->outbox)
		c->io.outbox_free(c->io.arg, b->offset, b->bytes);
	else if (!scratch_try_free(c, b))
		spare_free(c, b);
	b->at.addr = 0;
}

/* ---- pieces ---------------------------------------------------------------------------- */

struct coll_piece *piece_new(struct coll *c, struct coll_comm *m, const struct shape *shape,
			     enum phase phase, void (*advance)(struct coll *, struct coll_piece *))
{
	struct coll_piece *p = engine_new(c, sizeof *p);

	if (!p)
		return NULL;
	p->comm = m;
	p->shape = *shape;
	p->phase = phase;
	p->advance = advance;
	p->next = c->pieces;
	c->pieces = p;
	return p;
}

void piece_free(struct coll *c, struct coll_piece *p)
{
	for (struct coll_piece **at = &c->pieces; *at; at = &(*at)->next)
		if (*at == p) {
			*at = p->next;
			break;
		}
	piece_release(c, p);
	block_free(c, &p->partials);
	block_free(c, &p->scratch);
	block_free(c, &p->result);
	free(p->fetched);
	free(p->steps);
	free(p);
}

void piece_release(struct coll *c, struct coll_piece *p)
{
	for (uint32_t i = 0; i < p->fetched_count; i++) {
		const struct fetched *f = &p->fetched[i];

		if (f->here)
			c->io.release(c->io.arg, f->device, f->at, f->bytes);
	}
	p->fetched_count = 0;
}

/* ---- steps ----------------------------------------------------------------------------- */

struct seat *seat_of(const struct coll_comm *m, uint32_t index)
{
	for (uint32_t i = 0; i < m->seat_count; i++)
		if (m->seats[i].index == index)
			return &m->seats[i];
	return NULL;
}

/* Grows an array of `count` elements, in powers of two, to hold one more; false: the engine has
 * failed. */
static bool capacity_for_one(struct coll *c, void **array, uint32_t count, size_t size)
{
	void *more;

	if (count & (count - 1) || (*array && !count))
		return true;
	more = realloc(*array, (count ? 2 * count : 1) * size);
	if (!more) {
		engine_fail(c, "the proxy is out of memory");
		return false;
	}
	*array = more;
	return true;
}

void step_add(struct coll *c, struct coll_piece *p, struct step step)
{
	if (capacity_for_one(c, (void **)&p->steps, p->step_count, sizeof *p->steps))
		p->steps[p->step_count++] = step;
}

void steps_clear(struct coll_piece *p) { p->step = p->step_count = 0; }

static const char *fetched_for(enum phase phase)
{
	return phase == GATHERING ? "partial sums" : phase == FETCHING ? "the result" : "a part";
}

static void fetch_fail(struct coll *c, const struct coll_piece *p, const struct fetched *f,
		       int error)
{
	char text[96];

	engine_fail(c, "cannot fetch %llu byte%s from device %u (error %d): %s of %s",
		    (unsigned long long)f->bytes, plural(f->bytes), f->device, error,
		    fetched_for(p->phase), shape_text(&p->shape, text, sizeof text));
}

static void fetch_start(struct coll *c, struct coll_piece *p, const struct step *s)
{
	struct fetched *f;
	int error;

	if (!capacity_for_one(c, (void **)&p->fetched, p->fetched_count, sizeof *p->fetched))
		return;
	f = &p->fetched[p->fetched_count++];
	*f = (struct fetched){.device = s->device, .token = ++c->tokens, .bytes = s->count};
	error = c->io.fetch(c->io.arg, s->device, s->addr, s->count, f->token, &f->at);
	if (error == COLL_LATER)
		p->awaited++;
	else if (error)
		fetch_fail(c, p, f, error);
	else
		f->here = true;
}

static void step_start(struct coll *c, struct coll_piece *p, const struct step *s)
{
	const struct shape *shape = &p->shape;
	uint32_t op = shape->op == AVG || shape->op == PREMUL ? SUM : shape->op;
	uint32_t rank = p->comm->seats[s->seat].rank;

	p->token = ++c->tokens;
	switch (s->kind) {
	case STEP_READ: c->io.read(c->io.arg, rank, s->addr, s->dst, s->count, p->token); break;
	case STEP_WRITE: c->io.write(c->io.arg, rank, s->addr, s->a, s->count, p->token); break;
	case STEP_HAND:
		c->io.hand(c->io.arg, p->comm->seats[s->from].rank, rank, s->addr, s->count,
			   p->token);
		break;
	case STEP_REDUCE:
		c->io.reduce(c->io.arg, s->dst, &s->left, &s->right, s->count, shape->dtype, op,
			     p->token);
		break;
	case STEP_SCALE:
		c->io.scale(c->io.arg, s->dst, s->a, s->count, shape->dtype,
			    p->op->calls[s->seat].scalar, 0, p->token);
		break;
	case STEP_EXCHANGE: link_exchange(c, p); break;
	case STEP_DIVIDE:
		c->io.scale(c->io.arg, s->dst, s->a, s->count, shape->dtype, NULL, p->comm->nranks,
			    p->token);
		break;
	case STEP_FETCH: break; /* see fetch_start */
	}
}

void piece_next(struct coll *c, struct coll_piece *p)
{
	if (p->op && p->comm->stopped)
		return; /* see abort.c */
	while (p->step < p->step_count && p->steps[p->step].kind == STEP_FETCH && !c->failed)
		fetch_start(c, p, &p->steps[p->step++]);
	if (c->failed || p->awaited)
		return;
	if (p->step < p->step_count)
		step_start(c, p, &p->steps[p->step]);
	else
		p->advance(c, p);
}

static void step_fail(struct coll *c, const struct coll_piece *p, int error)
{
	const struct step *s = &p->steps[p->step];
	char text[96];

	shape_text(&p->shape, text, sizeof text);
	if (s->kind == STEP_READ || s->kind == STEP_WRITE || s->kind == STEP_HAND)
		engine_fail(c, "error %d of rank %u at address %#llx in %s", error,
			    p->comm->seats[s->seat].rank, (unsigned long long)s->addr, text);
	else
		engine_fail(c, "error %d in computing %llu elements of %s", error,
			    (unsigned long long)s->count, text);
}

void step_done(struct coll *c, uint64_t token, int error)
{
	struct coll_piece *p = c->pieces;

	while (p && (!token || p->token != token))
		p = p->next;
	if (!p || c->failed)
		return;
	p->token = 0;
	if (error) {
		step_fail(c, p, error);
		return;
	}
	p->step++;
	piece_next(c, p);
}

static struct fetched *fetch_find(const struct coll_piece *p, uint64_t token)
{
	for (uint32_t i = 0; i < p->fetched_count; i++)
		if (!p->fetched[i].here && p->fetched[i].token == token)
			return &p->fetched[i];
	return NULL;
}

void step_fetched(struct coll *c, uint64_t token, struct hal_ref place, int error)
{
	struct coll_piece *p = c->pieces;
	struct fetched *f = NULL;

	while (p && !(f = fetch_find(p, token)))
		p = p->next;
	if (!f)
		return;
	if (error) {
		fetch_fail(c, p, f, error);
		return;
	}
	f->at = place; /* also in a failed job: it is released with the piece */
	f->here = true;
	p->awaited--;
	if (c->failed)
		return;
	piece_next(c, p);
}
