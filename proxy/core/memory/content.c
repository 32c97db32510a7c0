/* content.c: what a rank's memory holds, by versions (versions/versions.h): noted here by whoever
 * has submitted a work that writes, in the order of submission. Pinned memory is the host's, too:
 * nothing is known of it.
 */
#include "memory.h"

#define BUFFERS_MAX 64 /* that one work reaches; of more nothing is said */

struct reached {
	uint64_t addr, bytes;
	bool written;
};

static bool in_heap(uint64_t addr, uint64_t bytes)
{
	uint64_t offset = addr - RF_DEV_BASE;
	return addr >= RF_DEV_BASE && offset < RF_HEAP_BYTES && bytes <= RF_HEAP_BYTES - offset;
}

struct content content_of_bytes(const void *from, uint64_t bytes)
{
	struct digest d;
	digest_begin(&d);
	digest_word(&d, OF_BYTES);
	digest_bytes(&d, from, bytes);
	return (struct content){digest_end(&d), 0, 0};
}

void content_is(struct rank_memory *m, uint64_t addr, uint64_t bytes, struct content content)
{
	if (in_heap(addr, bytes))
		versions_set(&m->versions, addr, bytes, content);
}

void content_unknown(struct rank_memory *m, uint64_t addr, uint64_t bytes)
{
	if (in_heap(addr, bytes))
		versions_private(&m->versions, addr, bytes);
}

void content_all_unknown(struct rank_memory *m)
{
	versions_private(&m->versions, RF_DEV_BASE, RF_HEAP_BYTES);
}

void content_copied(struct rank_memory *m, uint64_t to, uint64_t from, uint64_t bytes)
{
	if (in_heap(to, bytes) && in_heap(from, bytes))
		versions_copy(&m->versions, to, &m->versions, from, bytes);
	else
		content_unknown(m, to, bytes);
}

/* The buffer's place among those that were reached; they are described when they are first.
 * BUFFERS_MAX: there are too many. */
static uint32_t place_of(struct rank_memory *m, struct digest *d, const struct buffer *b,
			 struct reached *all, uint32_t *count)
{
	for (uint32_t i = 0; i < *count; i++)
		if (all[i].addr == b->addr)
			return i;
	if (*count < BUFFERS_MAX) {
		all[*count] = (struct reached){b->addr, b->bytes, false};
		versions_absorb(&m->versions, b->addr, b->bytes, d);
		return (*count)++;
	}
	return BUFFERS_MAX;
}

/* Up to where no other buffer can lie: programs do write behind a buffer's end, where CUDA's
 * rounding lets them. No result depends on what lies there; what does is known apart. */
static void behind(struct rank_memory *m, const struct reached *b, struct version version)
{
	uint64_t end = b->addr + b->bytes, bytes = -b->bytes % RF_ALLOC_ALIGN;
	struct digest d;
	if (!bytes)
		return;
	digest_begin(&d);
	digest_word(&d, OF_REST);
	digest_word(&d, version.a);
	digest_word(&d, version.b);
	versions_absorb(&m->versions, end, bytes, &d);
	content_is(m, end, bytes, (struct content){digest_end(&d), 0, 0});
}

/* The n-th buffer that a work has written. */
static void written(struct rank_memory *m, const struct reached *b, uint32_t n,
		    struct version version)
{
	behind(m, b, version);
	content_is(m, b->addr, b->bytes, (struct content){version, n * RF_HEAP_BYTES, 0});
}

void content_run(struct rank_memory *m, struct digest *d, const struct reach *reaches,
		 uint32_t count)
{
	struct reached all[BUFFERS_MAX];
	uint32_t buffers = 0, uses = 0;
	for (uint32_t i = 0; i < count; i++) {
		const struct reach *reach = &reaches[i];
		if (!in_heap(reach->addr, 0) && !memory_pinned(m, reach->addr)) {
			digest_word(d, reach->addr); /* a number, or NULL */
			continue;
		}
		const struct buffer *b = memory_find(m, reach->addr);
		uint32_t place = b ? place_of(m, d, b, all, &buffers) : BUFFERS_MAX;
		if (place == BUFFERS_MAX) {
			content_all_unknown(m);
			return;
		}
		/* Two addresses in one buffer are not two in two of equal content. */
		digest_word(d, place);
		digest_word(d, reach->addr - b->addr);
		digest_word(d, reach->use);
		all[place].written |= reach->use & REACH_WRITTEN;
		uses |= reach->use;
	}
	struct version version = digest_end(d);
	if (uses & REACH_UNORDERED)
		version = versions_new(&m->versions);
	for (uint32_t i = 0; i < buffers; i++)
		if (all[i].written)
			written(m, &all[i], i, version);
}
