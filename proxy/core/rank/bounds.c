/* bounds.c: runs the steps that compute which addresses a launch reaches (proxy/ptx/bounds.py
 * generates them; spans.h defines their results). Programs repeat launches of the same shapes: so
 * the results of a kernel's last launches are kept; they do not depend on the addresses of buffers.
 */
#include "rank/bounds.h"

#include <stdlib.h>
#include <string.h>

#include "channel.h"
#include "codes.h"
#include "proxy.h"
#include "rank/spans.h"

#define KEPT_SHIFT 61
#define KEPT_MAX (1u << (64 - KEPT_SHIFT)) /* launches of a kernel whose bounds are kept */
#define KEY_WORDS_MAX 64

struct reaches {
	uint32_t step_count, reached_count, word_count;
	struct proxy_step *steps;
	struct proxy_reached *reached;
	uint32_t *words; /* indices of words; each access refers to a part of this array */
	struct proxy_access *at;
	uint32_t number_count, *numbers; /* the steps that read the parameters */
	uint64_t *kept[KEPT_MAX];
};

static bool is_address(uint64_t number) { return number - RF_DEV_BASE < RF_HEAP_BYTES; }

/* ---- running ---- */

static struct span parameter(const struct proxy_step *s, const uint8_t *params)
{
	uint64_t bits = 0;
	memcpy(&bits, params + s->number, s->bits / 8);
	if (s->bits == 64 && is_address(bits))
		return (struct span){.base = (uint32_t)s->number + 1, .zeros = SPAN_ZEROS_MAX};
	int64_t value = (int64_t)bits;
	if (s->bits < 64 && s->sign == PROXY_SIGNED)
		value = (int64_t)(bits << (64 - s->bits)) >> (64 - s->bits);
	return (struct span){.low = value, .high = value};
}

static struct span special(uint64_t which, const struct bound_shape *shape)
{
	const uint32_t *size = which < 6 ? shape->block : shape->grid;
	int64_t n = size[which % 3];
	bool whole = which / 3 % 2;
	return (struct span){.low = whole ? n : 0, .high = whole ? n : n - 1};
}

static struct span run(const struct proxy_step *s, const struct span *before,
		       const struct bound_shape *shape, const uint8_t *params)
{
	switch (s->op) {
	case PROXY_STEP_ANY: return span_anything(s->bits);
	case PROXY_STEP_NUMBER: return (struct span){.low = s->number, .high = s->number};
	case PROXY_STEP_UP_TO: return (struct span){.high = s->number};
	case PROXY_STEP_PARAMETER: return parameter(s, params);
	case PROXY_STEP_SPECIAL: return special((uint64_t)s->number, shape);
	default: return span_of(s, before[s->a], before[s->b], before[s->c]);
	}
}

/* ---- checking a function's steps ---- */

static bool sensible(const struct proxy_step *s, uint32_t n, uint32_t param_bytes)
{
	bool bits = s->bits == 8 || s->bits == 16 || s->bits == 32 || s->bits == 64;
	if (s->op > PROXY_STEP_LAST || s->sign > PROXY_UNSIGNED || (!bits && s->bits != 1))
		return false;
	switch (s->op) {
	case PROXY_STEP_ANY:
	case PROXY_STEP_NUMBER: return true;
	case PROXY_STEP_UP_TO: return s->number >= 0;
	case PROXY_STEP_SPECIAL: return s->number >= 0 && s->number < 12;
	case PROXY_STEP_PARAMETER:
		return bits && s->number >= 0 && param_bytes >= s->bits / 8 &&
		       (uint64_t)s->number <= param_bytes - s->bits / 8;
	default: return bits && s->a < n && s->b < n && s->c < n;
	}
}

static bool all_sensible(const struct proxy_function *f)
{
	if (f->step_count > BOUND_STEPS_MAX)
		return false;
	for (uint32_t n = 0; n < f->step_count; n++)
		if (!sensible(&f->steps[n], n, f->param_bytes))
			return false;
	for (uint32_t n = 0; n < f->reached_count; n++) {
		const struct proxy_reached *r = &f->reached[n];
		if (r->step >= f->step_count || r->first > f->reached_word_count ||
		    r->count > f->reached_word_count - r->first || r->offset <= -SPAN_OFFSET_MAX ||
		    r->offset >= SPAN_OFFSET_MAX || r->bytes >= SPAN_OFFSET_MAX)
			return false;
	}
	for (uint32_t n = 0; n < f->reached_word_count; n++)
		if (f->reached_words[n] >= f->word_count)
			return false;
	return true;
}

/* An empty array takes one byte. */
static void *copy(const void *from, uint64_t bytes)
{
	void *to = malloc(bytes + 1);
	if (to && bytes)
		memcpy(to, from, bytes);
	return to;
}

struct reaches *bounds_copy(const struct proxy_function *f, int *error)
{
	if (!all_sensible(f)) {
		*error = CU_INVALID_IMAGE;
		return NULL;
	}
	struct reaches *r = calloc(1, sizeof *r);
	if (r) {
		r->step_count = f->step_count;
		r->reached_count = f->reached_count;
		r->word_count = f->word_count;
		r->steps = copy(f->steps, f->step_count * sizeof *f->steps);
		r->reached = copy(f->reached, f->reached_count * sizeof *f->reached);
		r->words = copy(f->reached_words, f->reached_word_count * sizeof(uint32_t));
		r->at = copy(f->words, f->word_count * sizeof *f->words);
		r->numbers = malloc(f->step_count * sizeof *r->numbers + 1);
	}
	if (!r || !r->steps || !r->reached || !r->words || !r->at || !r->numbers) {
		bounds_free(r);
		*error = CU_OUT_OF_MEMORY;
		return NULL;
	}
	for (uint32_t n = 0; n < r->step_count; n++)
		if (r->steps[n].op == PROXY_STEP_PARAMETER)
			r->numbers[r->number_count++] = n;
	return r;
}

void bounds_free(struct reaches *r)
{
	if (!r)
		return;
	free(r->steps);
	free(r->reached);
	free(r->words);
	free(r->at);
	free(r->numbers);
	for (uint32_t n = 0; n < KEPT_MAX; n++)
		free(r->kept[n]);
	free(r);
}

/* ---- of a launch ---- */

static void extend(struct bound *b, int64_t low, int64_t high)
{
	if (b->low >= b->high)
		*b = (struct bound){low, high};
	b->low = b->low < low ? b->low : low;
	b->high = b->high > high ? b->high : high;
}

static uint32_t sides(uint32_t use)
{
	return (use & PROXY_READ) | (use & (PROXY_WRITTEN | PROXY_ATOMIC) ? PROXY_WRITTEN : 0);
}

/* Adds an access to the bounds of the word that its address is based on; if there is none, the
 * bounds of all its words become unknown. */
static void note(const struct reaches *r, const struct proxy_reached *reached, struct span at,
		 struct bounds *words)
{
	bool near = at.low > -SPAN_OFFSET_MAX && at.high < SPAN_OFFSET_MAX;
	if (span_empty(at))
		return;
	for (uint32_t n = 0; n < reached->count && near; n++) {
		uint32_t word = r->words[reached->first + n];
		if (at.base != r->at[word].at + 1)
			continue;
		int64_t low = at.low + reached->offset;
		int64_t high = at.high + reached->offset + (int64_t)reached->bytes;
		if (sides(reached->use) & PROXY_READ)
			extend(&words[word].read, low, high);
		if (sides(reached->use) & PROXY_WRITTEN)
			extend(&words[word].written, low, high);
		return;
	}
	for (uint32_t n = 0; n < reached->count; n++)
		words[r->words[reached->first + n]].known &= ~sides(reached->use);
}

static void work_out(const struct reaches *r, const struct bound_shape *shape,
		     const uint8_t *params, struct bounds *words)
{
	struct span ranges[BOUND_STEPS_MAX];
	for (uint32_t n = 0; n < r->word_count; n++)
		words[n] = (struct bounds){.known = r->at[n].bounded};
	for (uint32_t n = 0; n < r->step_count; n++)
		ranges[n] = run(&r->steps[n], ranges, shape, params);
	for (uint32_t n = 0; n < r->reached_count; n++)
		note(r, &r->reached[n], ranges[r->reached[n].step], words);
}

static void take_key(const struct reaches *r, const struct bound_shape *shape,
		     const uint8_t *params, uint64_t *key)
{
	for (uint32_t n = 0; n < 3; n++)
		key[n] = (uint64_t)shape->grid[n] << 32 | shape->block[n];
	for (uint32_t n = 0; n < r->number_count; n++) {
		const struct proxy_step *s = &r->steps[r->numbers[n]];
		uint64_t bits = 0;
		memcpy(&bits, params + s->number, s->bits / 8);
		key[3 + n] = s->bits == 64 && is_address(bits) ? RF_DEV_BASE : bits;
	}
}

void bounds_of(struct reaches *r, const struct bound_shape *shape, const uint8_t *params,
	       struct bounds *words)
{
	uint64_t key[KEY_WORDS_MAX], mixed = 0;
	const uint64_t bytes = r->word_count * sizeof *words;
	const uint32_t length = 3 + r->number_count;
	if (length > KEY_WORDS_MAX) {
		work_out(r, shape, params, words);
		return;
	}
	take_key(r, shape, params, key);
	for (uint32_t n = 0; n < length; n++)
		mixed = (mixed ^ key[n]) * 0x9e3779b97f4a7c15ull;
	uint64_t **kept = &r->kept[mixed >> KEPT_SHIFT]; /* a key, followed by the bounds */
	if (*kept && memcmp(*kept, key, length * sizeof *key) == 0) {
		memcpy(words, *kept + length, bytes);
		return;
	}
	work_out(r, shape, params, words);
	if (!*kept)
		*kept = malloc(length * sizeof *key + bytes);
	if (*kept) {
		memcpy(*kept, key, length * sizeof *key);
		memcpy(*kept + length, words, bytes);
	}
}
