/* parts.c: contents of a rank's buffers by checksums, with their addresses (opaque.h). */
#include <stdlib.h>
#include <string.h>

#include "opaque/opaque.h"

bool parts_add(struct parts *p, const struct part *part)
{
	if (!grow_array((void **)&p->all, p->count, 1, &p->capacity, sizeof *p->all))
		return false;
	p->all[p->count++] = *part;
	return true;
}

bool parts_copy(struct parts *p, const struct parts *from)
{
	parts_free(p);
	if (!from->count)
		return true;
	if (!grow_array((void **)&p->all, 0, from->count, &p->capacity, sizeof *p->all))
		return false;
	memcpy(p->all, from->all, from->count * sizeof *from->all);
	p->count = from->count;
	return true;
}

void parts_free(struct parts *p)
{
	free(p->all);
	*p = (struct parts){0};
}

static bool same_part(const struct part *x, const struct part *y)
{
	return x->addr == y->addr && x->bytes == y->bytes && x->buffer == y->buffer &&
	       x->sum[0] == y->sum[0] && x->sum[1] == y->sum[1];
}

static bool same_versions(const struct part *x, const struct part *y)
{
	return same_part(x, y) && x->digest.a == y->digest.a && x->digest.b == y->digest.b;
}

/* Returns the first part from *at on that is not before this one, or NULL. */
static const struct part *first_from(const struct parts *p, uint32_t *at, const struct part *part)
{
	while (*at < p->count && p->all[*at].addr < part->addr)
		(*at)++;
	return *at < p->count ? &p->all[*at] : NULL;
}

void parts_intersect(struct parts *x, const struct parts *y)
{
	uint32_t at = 0, left = 0;
	for (uint32_t i = 0; i < x->count; i++) {
		const struct part *its = first_from(y, &at, &x->all[i]);
		if (its && same_versions(its, &x->all[i]))
			x->all[left++] = x->all[i];
	}
	x->count = left;
}

const struct part *parts_unchanged(const struct parts *p, uint32_t *at, const struct part *part)
{
	const struct part *its = first_from(p, at, part);
	return its && same_part(its, part) ? its : NULL;
}

bool parts_changed(const struct parts *before, const struct parts *after, struct parts *changed)
{
	uint32_t at = 0;
	for (uint32_t i = 0; i < after->count; i++) {
		const struct part *its = first_from(before, &at, &after->all[i]);
		if (!(its && same_part(its, &after->all[i])) && !parts_add(changed, &after->all[i]))
			return false;
	}
	return true;
}

struct version parts_digest(const struct parts *p)
{
	struct digest d;
	digest_begin(&d);
	for (uint32_t i = 0; i < p->count; i++) {
		const struct part *part = &p->all[i];
		digest_word(&d, part->addr);
		digest_word(&d, part->bytes);
		digest_word(&d, part->sum[0]);
		digest_word(&d, part->sum[1]);
	}
	return digest_end(&d);
}

/* ---- ranges ---- */

static bool range_touches(const struct memory_range *r, uint64_t addr, uint64_t bytes)
{
	return addr <= r->addr + r->bytes && r->addr <= addr + bytes;
}

bool ranges_add_one(struct ranges *r, uint64_t addr, uint64_t bytes)
{
	uint64_t end = addr + bytes;
	uint32_t first = 0, last;
	while (first < r->count && r->all[first].addr + r->all[first].bytes < addr)
		first++;
	for (last = first; last < r->count && range_touches(&r->all[last], addr, end - addr);
	     last++) {
		uint64_t its = r->all[last].addr + r->all[last].bytes;
		addr = r->all[last].addr < addr ? r->all[last].addr : addr;
		end = its > end ? its : end;
	}
	if (first == last &&
	    !grow_array((void **)&r->all, r->count, 1, &r->capacity, sizeof *r->all))
		return false;
	memmove(&r->all[first + 1], &r->all[last], (r->count - last) * sizeof *r->all);
	r->count = r->count + 1 - (last - first);
	r->all[first] = (struct memory_range){addr, end - addr};
	return true;
}

bool ranges_add(struct ranges *r, const struct parts *p)
{
	for (uint32_t i = 0; i < p->count; i++)
		if (!ranges_add_one(r, p->all[i].addr, p->all[i].bytes))
			return false;
	return true;
}

bool ranges_touch(const struct ranges *r, uint64_t addr, uint64_t bytes)
{
	for (uint32_t i = 0; i < r->count; i++)
		if (addr < r->all[i].addr + r->all[i].bytes && r->all[i].addr < addr + bytes)
			return true;
	return false;
}

void ranges_free(struct ranges *r)
{
	free(r->all);
	*r = (struct ranges){0};
}
