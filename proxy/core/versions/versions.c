/* versions.c: the map of versions (versions.h). It is one sorted array: programs have some hundred
 * buffers, a buffer that is written repeatedly keeps its place in the array, and a rank's map moves
 * unchanged.
 */
#include "versions/versions.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "invariant.h"

enum { FIRST_CAPACITY = 64 };

static uint64_t end_of(const struct versions *v, uint32_t i)
{
	return i + 1 < v->count ? v->extents[i + 1].addr : v->end;
}

static uint32_t extent_at(const struct versions *v,
			  uint64_t addr) /* the extent that contains addr */
{
	uint32_t low = 0, high = v->count;
	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;
		if (v->extents[middle].addr <= addr)
			low = middle;
		else
			high = middle;
	}
	return low;
}

static struct content content_from(struct content c,
				   uint64_t bytes) /* the content from `bytes` on */
{
	c.offset += bytes;
	if (c.period)
		c.offset %= c.period;
	return c;
}

static bool same_content(const struct content *x, const struct content *y)
{
	return x->version.a == y->version.a && x->version.b == y->version.b &&
	       x->offset == y->offset && x->period == y->period;
}

static bool continues_extent(const struct extent *e, const struct extent *next)
{
	struct content c = content_from(e->content, next->addr - e->addr);
	return same_content(&c, &next->content);
}

struct content versions_fill(uint32_t value, uint32_t width)
{
	struct digest d;
	if (width == 4 && value >> 16 == (value & 0xffff))
		width = 2;
	if (width == 2 && (value >> 8 & 0xff) == (value & 0xff))
		width = 1;
	digest_begin(&d);
	digest_word(&d, OF_FILL);
	digest_word(&d, width);
	digest_word(&d, width == 4 ? value : value & ((1u << 8 * width) - 1));
	return (struct content){digest_end(&d), 0, width};
}

struct version versions_new(struct versions *v)
{
	struct digest d;
	digest_begin(&d);
	digest_word(&d, OF_PRIVATE);
	digest_word(&d, v->life[0]);
	digest_word(&d, v->life[1]);
	digest_word(&d, v->privates++);
	return digest_end(&d);
}

static struct content private_content(struct versions *v)
{
	return (struct content){versions_new(v), 0, 0};
}

int versions_open(struct versions *v, uint64_t begin, uint64_t end)
{
	*v = (struct versions){.begin = begin, .end = end, .count = 1, .capacity = FIRST_CAPACITY};
	if (getrandom(v->life, sizeof v->life, 0) != sizeof v->life)
		return errno ? errno : EIO;
	if (!(v->extents = calloc(v->capacity, sizeof *v->extents)))
		return ENOMEM;
	v->extents[0] = (struct extent){begin, versions_fill(0, 1)};
	return 0;
}

void versions_close(struct versions *v)
{
	free(v->extents);
	*v = (struct versions){0};
}

/* Halves the number of extents: each pair becomes private together. */
static void halve_extents(struct versions *v)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < v->count; i += 2) {
		struct extent e = v->extents[i];
		if (i + 1 < v->count)
			e.content = private_content(v);
		v->extents[kept++] = e;
	}
	v->count = kept;
}

static bool has_capacity(struct versions *v, uint64_t count)
{
	uint64_t capacity = v->capacity;
	if (count <= capacity)
		return true;
	if (count > EXTENTS_MAX)
		return false;
	while (capacity < count)
		capacity *= 2;
	if (capacity > EXTENTS_MAX) /* a loaded map has exactly as many as it needs */
		capacity = EXTENTS_MAX;
	struct extent *more = realloc(v->extents, capacity * sizeof *more);
	if (!more)
		return false;
	v->extents = more;
	v->capacity = (uint32_t)capacity;
	return true;
}

/* Merges neighbours where the second continues the first: `count` extents from `from` on. */
static void join_extents(struct versions *v, uint32_t from, uint32_t count)
{
	uint32_t end = from + count < v->count ? from + count : v->count, kept = from;
	for (uint32_t i = from + 1; i < end; i++)
		if (!continues_extent(&v->extents[kept], &v->extents[i]))
			v->extents[++kept] = v->extents[i];
	memmove(&v->extents[kept + 1], &v->extents[end], (v->count - end) * sizeof *v->extents);
	v->count -= end - kept - 1;
}

/* Sets a range to these extents, at least one. False: no capacity. */
static bool replace_extents(struct versions *v, uint64_t addr, uint64_t bytes,
			    const struct extent *new, uint32_t count)
{
	uint32_t first = extent_at(v, addr), last = extent_at(v, addr + bytes - 1);
	uint64_t end = addr + bytes;
	INVARIANT(addr >= v->begin && end > addr && end <= v->end && v->extents[first].addr <= addr,
		  "a range with a new version is part of the map");
	struct extent tail = {end,
			      content_from(v->extents[last].content, end - v->extents[last].addr)};
	bool head = v->extents[first].addr < addr;
	bool rest = end_of(v, last) > end;
	uint64_t more = (uint64_t)head + count + rest, less = last - first + 1;
	if (!has_capacity(v, v->count - less + more))
		return false;
	memmove(&v->extents[first + more], &v->extents[last + 1],
		(v->count - last - 1) * sizeof *v->extents);
	v->count = (uint32_t)(v->count - less + more);
	memcpy(&v->extents[first + head], new, count * sizeof *new);
	if (rest)
		v->extents[first + more - 1] = tail;
	join_extents(v, first ? first - 1 : 0, (uint32_t)more + 2);
	return true;
}

void versions_set(struct versions *v, uint64_t addr, uint64_t bytes, struct content content)
{
	if (!bytes)
		return;
	while (!replace_extents(v, addr, bytes, &(struct extent){addr, content}, 1))
		halve_extents(v);
}

void versions_private(struct versions *v, uint64_t addr, uint64_t bytes)
{
	versions_set(v, addr, bytes, private_content(v));
}

void versions_copy(struct versions *to, uint64_t to_addr, const struct versions *from,
		   uint64_t from_addr, uint64_t bytes)
{
	if (!bytes)
		return;
	uint32_t first = extent_at(from, from_addr),
		 count = extent_at(from, from_addr + bytes - 1) - first + 1;
	struct extent *copied = malloc(count * sizeof *copied);
	if (!copied) {
		versions_private(to, to_addr, bytes);
		return;
	}
	for (uint32_t i = 0; i < count; i++) {
		struct extent e = from->extents[first + i];
		uint64_t skipped = e.addr < from_addr ? from_addr - e.addr : 0;
		uint64_t at_byte = e.addr + skipped - from_addr;
		copied[i] = (struct extent){to_addr + at_byte, content_from(e.content, skipped)};
	}
	if (!replace_extents(to, to_addr, bytes, copied, count))
		versions_private(to, to_addr, bytes);
	free(copied);
}

bool versions_equal(const struct versions *v, uint64_t addr, uint64_t bytes, struct content content)
{
	uint64_t end = addr + bytes;
	for (uint32_t i = bytes ? extent_at(v, addr) : v->count; i < v->count; i++) {
		const struct extent *e = &v->extents[i];
		if (e->addr >= end)
			break;
		uint64_t from = e->addr < addr ? addr : e->addr;
		struct content has = content_from(e->content, from - e->addr);
		struct content should = content_from(content, from - addr);
		if (!same_content(&has, &should))
			return false;
	}
	return true;
}

bool versions_zeros(const struct versions *v, uint64_t addr, uint64_t bytes)
{
	uint32_t i = extent_at(v, addr);
	struct content zeros = versions_fill(0, 1);
	return same_content(&v->extents[i].content, &zeros) && end_of(v, i) >= addr + bytes;
}

void versions_absorb(const struct versions *v, uint64_t addr, uint64_t bytes, struct digest *d)
{
	uint64_t end = addr + bytes;
	digest_word(d, bytes);
	for (uint32_t i = bytes ? extent_at(v, addr) : v->count; i < v->count; i++) {
		const struct extent *e = &v->extents[i];
		if (e->addr >= end)
			break;
		uint64_t begin = e->addr < addr ? addr : e->addr;
		uint64_t until = end_of(v, i) < end ? end_of(v, i) : end;
		struct content c = content_from(e->content, begin - e->addr);
		digest_word(d, until - begin);
		digest_word(d, c.version.a);
		digest_word(d, c.version.b);
		digest_word(d, c.offset);
		digest_word(d, c.period);
	}
}

uint64_t versions_size(const struct versions *v) { return v->count * sizeof *v->extents; }

void versions_save(const struct versions *v, void *to)
{
	INVARIANT(!versions_invalid(v), "a map of versions that is saved is whole");
	memcpy(to, v->extents, versions_size(v));
}

int versions_load(struct versions *v, const void *from, uint64_t bytes)
{
	uint64_t count = bytes / sizeof(struct extent);
	if (bytes % sizeof(struct extent) || !count || count > EXTENTS_MAX)
		return EINVAL;
	struct versions loaded = *v;
	loaded.count = (uint32_t)count;
	loaded.capacity = count < FIRST_CAPACITY ? FIRST_CAPACITY : (uint32_t)count;
	struct extent *extents = loaded.extents = malloc(loaded.capacity * sizeof *extents);
	if (!extents)
		return ENOMEM;
	memcpy(extents, from, bytes);
	if (versions_invalid(&loaded)) {
		free(extents);
		return EINVAL;
	}
	free(v->extents);
	*v = loaded;
	return 0;
}

int versions_keep(const struct versions *v, struct versions *before)
{
	*before = *v;
	before->extents = malloc(v->capacity * sizeof *v->extents);
	if (!before->extents)
		return ENOMEM;
	memcpy(before->extents, v->extents, v->count * sizeof *v->extents);
	return 0;
}

void versions_back(struct versions *v, struct versions *before)
{
	before->privates = v->privates;
	free(v->extents);
	*v = *before;
}

const char *versions_invalid(const struct versions *v)
{
	WRONG(!v->count || v->count > v->capacity || v->capacity > EXTENTS_MAX,
	      "the extents' count");
	WRONG(v->extents[0].addr != v->begin, "the map does not begin where it should");
	for (uint32_t i = 0; i < v->count; i++) {
		const struct extent *e = &v->extents[i];
		WRONG(e->addr >= end_of(v, i), "extents are not in order, or leave the heap");
		WRONG(e->content.period && e->content.offset >= e->content.period,
		      "an offset beyond what repeats");
		WRONG(i && continues_extent(e - 1, e), "two extents that are one");
	}
	return NULL;
}
