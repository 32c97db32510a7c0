/* bounds.c: runs the steps that compute which addresses a launch reaches (proxy/ptx/bounds.py
 * generates them; spans.h defines their results).
 *
 * Which of its parameters' words are addresses may depend on the block: kernels have lists of
 * buffers among their parameters, and each block takes one of them. Steps that depend on such a
 * coordinate run once for each of its values.
 *
 * Programs repeat launches of the same shapes: so the results of a kernel's last launches are kept,
 * with the parameters that decided them. They do not depend on the addresses of buffers.
 */
#include "rank/bounds.h"

#include <stdlib.h>
#include <string.h>

#include "channel.h"
#include "codes.h"
#include "proxy.h"
#include "rank/spans.h"

#define KEPT_MAX 16                /* launches of a kernel whose bounds are kept */
#define EVALUATIONS_MAX (1u << 20) /* steps of one launch: some milliseconds */
#define ALIGNMENT 4                /* of words among the parameters */
#define FIRST_CTAID 6              /* PROXY_STEP_SPECIAL */

enum { SEEN_BYTE = 1, SEEN_WORD = 2 }; /* it decides; a word decides unless it is an address */

struct earlier {
	struct bound_shape shape;
	uint8_t *params; /* NULL: empty */
	uint32_t byte_count, word_count;
	struct bound_part *bytes; /* which of them decided */
	uint32_t *words;          /* offsets */
	struct bound_launch launch;
	struct bound_word *found;
	struct bound_part *read;
};

struct reaches {
	uint32_t step_count, reached_count, word_count, slot_count, load_count, part_count;
	uint32_t param_bytes;
	struct proxy_step *steps;
	struct proxy_reached *reached;
	uint32_t *words; /* indices of words and slots; each access refers to a part of this */
	struct proxy_access *at;
	struct proxy_slot *slots;
	struct proxy_load *loads, *parts;
	uint8_t *axes;     /* of each step: a mask of the block's coordinates it depends on */
	uint8_t walked;    /* the coordinates that are taken one by one */
	struct span *run;  /* results of the steps */
	bool *done;        /* of each step: its result is known */
	uint16_t *stack;   /* steps that wait for others' results */
	uint16_t *indices; /* by offset / ALIGNMENT: index + 1 in `found` */
	struct bound_word *found;
	bool *fetched; /* of each of these: through a slot */
	uint8_t *seen, *read;
	struct earlier kept[KEPT_MAX];
	uint32_t next; /* the one that is replaced next */
};

static bool is_address(uint64_t number) { return number - RF_DEV_BASE < RF_HEAP_BYTES; }

/* ---- running ---- */

struct evaluation {
	struct reaches *r;
	const struct bound_shape *shape;
	const uint8_t *params;
	uint8_t walked;    /* mask of coordinates that are `block` */
	uint32_t block[3]; /* where not: any of the grid */
	uint32_t count;    /* of words */
	uint32_t lost;     /* uses whose bounds are unknown for all words of slots */
	bool failed;
};

static struct span parameter_content(struct evaluation *e, uint64_t at, const struct proxy_step *s)
{
	uint64_t bits = 0;
	const uint32_t bytes = s->bits / 8;
	memcpy(&bits, e->params + at, bytes);
	if (s->bits == 64)
		e->r->seen[at] |= SEEN_WORD;
	else
		for (uint32_t n = 0; n < bytes; n++)
			e->r->seen[at + n] |= SEEN_BYTE;
	if (s->bits == 64 && is_address(bits))
		return at % ALIGNMENT
			       ? span_anything(64)
			       : (struct span){.base = (uint32_t)at + 1, .zeros = SPAN_ZEROS_MAX};
	int64_t value = (int64_t)bits;
	if (s->bits < 64 && s->sign == PROXY_SIGNED)
		value = (int64_t)(bits << (64 - s->bits)) >> (64 - s->bits);
	return (struct span){.low = value, .high = value};
}

/* True if it is one address among the parameters, and what is there. */
static bool is_place(const struct reaches *r, struct span at, uint64_t bytes)
{
	return at.base == SPAN_PARAMETERS && at.low == at.high && at.low >= 0 &&
	       bytes <= r->param_bytes && (uint64_t)at.low <= r->param_bytes - bytes;
}

static struct span loaded_value(struct evaluation *e, struct span at, const struct proxy_step *s)
{
	if (span_empty(at))
		return at;
	if (is_place(e->r, at, s->bits / 8))
		return parameter_content(e, (uint64_t)at.low, s);
	if (s->bits < 64 && s->sign != PROXY_SIGNED)
		return (struct span){.high = (1ll << s->bits) - 1};
	return span_anything(s->bits);
}

static struct span special_register(const struct evaluation *e, uint64_t which)
{
	const uint32_t *size = which < FIRST_CTAID ? e->shape->block : e->shape->grid;
	const uint32_t axis = which % 3;
	int64_t n = size[axis], at = e->block[axis];
	bool whole = which / 3 % 2;
	if (which >= FIRST_CTAID && !whole && e->walked >> axis & 1)
		return (struct span){.low = at, .high = at};
	return (struct span){.low = whole ? n : 0, .high = whole ? n : n - 1};
}

static struct span run_step(struct evaluation *e, const struct proxy_step *s,
			    const struct span *before)
{
	switch (s->op) {
	case PROXY_STEP_ANY: return span_anything(s->bits);
	case PROXY_STEP_NUMBER: return (struct span){.low = s->number, .high = s->number};
	case PROXY_STEP_UP_TO: return (struct span){.high = s->number};
	case PROXY_STEP_PARAMETER: return parameter_content(e, (uint64_t)s->number, s);
	case PROXY_STEP_SPECIAL: return special_register(e, (uint64_t)s->number);
	case PROXY_STEP_PLACE:
		return (struct span){.low = s->number, .high = s->number, .base = SPAN_PARAMETERS};
	case PROXY_STEP_FETCH: return loaded_value(e, before[s->a], s);
	default: return span_of(s, before[s->a], before[s->b], before[s->c]);
	}
}

static uint32_t operand_count(const struct proxy_step *s)
{
	switch (s->op) {
	case PROXY_STEP_ANY:
	case PROXY_STEP_NUMBER:
	case PROXY_STEP_UP_TO:
	case PROXY_STEP_PARAMETER:
	case PROXY_STEP_SPECIAL:
	case PROXY_STEP_PLACE: return 0;
	case PROXY_STEP_AS:
	case PROXY_STEP_FETCH: return 1;
	case PROXY_STEP_RISING:
	case PROXY_STEP_FALLING:
	case PROXY_STEP_LOOP:
	case PROXY_STEP_TURNS:
	case PROXY_STEP_STRIDE:
	case PROXY_STEP_DIVISOR:
	case PROXY_STEP_PART: return 3;
	default: return 2;
	}
}

/* True if the result is empty when the operand that is run first is. */
static bool first_decides(const struct proxy_step *s)
{
	switch (s->op) {
	case PROXY_STEP_JOIN:
	case PROXY_STEP_LOOP:
	case PROXY_STEP_TURNS:
	case PROXY_STEP_STRIDE: return false;
	default: return true;
	}
}

/* Finds an operand that has to be run before the step. */
static bool operand_missing(const struct reaches *r, const struct proxy_step *s, uint16_t *step)
{
	const bool condition_first = s->op == PROXY_STEP_IF;
	const uint16_t operands[3] = {condition_first ? s->b : s->a, condition_first ? s->a : s->b,
				      s->c};
	for (uint32_t n = 0; n < operand_count(s); n++) {
		*step = operands[n];
		if (!r->done[*step])
			return true;
		if (!n && first_decides(s) && span_empty(r->run[*step]))
			return false;
	}
	return false;
}

/* Runs a step after those it needs. Where an access is not executed, what would be its address is
 * not needed: so parameters that decide nothing are not taken to decide. PyTorch leaves the unused
 * dimensions of its tensors as they were on the stack, different at each launch. */
static struct span result_of(struct evaluation *e, uint32_t step)
{
	struct reaches *r = e->r;
	uint32_t count = 0;
	r->stack[count++] = (uint16_t)step;
	while (count) {
		const uint16_t n = r->stack[count - 1];
		if (r->done[n]) {
			count--;
			continue;
		}
		if (operand_missing(r, &r->steps[n], &r->stack[count])) {
			count++;
			continue;
		}
		r->run[n] = run_step(e, &r->steps[n], r->run);
		r->done[n] = true;
	}
	return r->run[step];
}

/* ---- checking a function's steps ---- */

static bool step_is_valid(const struct proxy_step *s, uint32_t n, uint32_t param_bytes)
{
	bool bits = s->bits == 8 || s->bits == 16 || s->bits == 32 || s->bits == 64;
	if (s->op > PROXY_STEP_LAST || s->sign > PROXY_UNSIGNED || (!bits && s->bits != 1))
		return false;
	switch (s->op) {
	case PROXY_STEP_ANY:
	case PROXY_STEP_NUMBER: return true;
	case PROXY_STEP_PLACE: return s->number > -SPAN_OFFSET_MAX && s->number < SPAN_OFFSET_MAX;
	case PROXY_STEP_UP_TO: return s->number >= 0;
	case PROXY_STEP_SPECIAL: return s->number >= 0 && s->number < 12;
	case PROXY_STEP_PARAMETER:
		return bits && s->number >= 0 && param_bytes >= s->bits / 8 &&
		       (uint64_t)s->number <= param_bytes - s->bits / 8;
	default: return bits && s->a < n && s->b < n && s->c < n;
	}
}

static bool slots_sensible(const struct proxy_function *f)
{
	for (uint32_t n = 0; n < f->slot_count; n++) {
		const struct proxy_slot *s = &f->slots[n];
		if (s->step >= f->step_count || s->first % ALIGNMENT || f->param_bytes < 8 ||
		    s->first > s->last || s->last > f->param_bytes - 8)
			return false;
	}
	for (uint32_t n = 0; n < f->load_count; n++)
		if (f->loads[n].at >= f->step_count)
			return false;
	for (uint32_t n = 0; n < f->part_count; n++)
		if (f->parts[n].bytes > f->param_bytes ||
		    f->parts[n].at > f->param_bytes - f->parts[n].bytes)
			return false;
	return true;
}

static bool all_sensible(const struct proxy_function *f)
{
	if (f->step_count > BOUND_STEPS_MAX || f->word_count > BOUND_WORDS_MAX)
		return false;
	for (uint32_t n = 0; n < f->step_count; n++)
		if (!step_is_valid(&f->steps[n], n, f->param_bytes))
			return false;
	for (uint32_t n = 0; n < f->reached_count; n++) {
		const struct proxy_reached *r = &f->reached[n];
		if (r->step >= f->step_count || r->first > f->reached_word_count ||
		    r->count > f->reached_word_count - r->first || r->offset <= -SPAN_OFFSET_MAX ||
		    r->offset >= SPAN_OFFSET_MAX || r->bytes >= SPAN_OFFSET_MAX)
			return false;
	}
	for (uint32_t n = 0; n < f->reached_word_count; n++)
		if (f->reached_words[n] >= f->word_count + f->slot_count)
			return false;
	for (uint32_t n = 0; n < f->word_count; n++)
		if (f->words[n].at % ALIGNMENT || f->param_bytes < 8 ||
		    f->words[n].at > f->param_bytes - 8 ||
		    (n && f->words[n].at <= f->words[n - 1].at))
			return false;
	return slots_sensible(f);
}

/* ---- creation ---- */

/* An empty array takes one byte. */
static void *copy_array(const void *from, uint64_t bytes)
{
	void *to = malloc(bytes + 1);
	if (to && bytes)
		memcpy(to, from, bytes);
	return to;
}

/* Those of an address among the parameters, not those of whether it is used. */
static uint8_t axes_of(const struct reaches *r, uint32_t step)
{
	while (r->steps[step].op == PROXY_STEP_IF)
		step = r->steps[step].a;
	return r->axes[step];
}

static void find_axes(struct reaches *r)
{
	for (uint32_t n = 0; n < r->step_count; n++) {
		const struct proxy_step *s = &r->steps[n];
		const uint16_t before[3] = {s->a, s->b, s->c};
		int64_t axis = s->number - FIRST_CTAID;
		if (s->op == PROXY_STEP_SPECIAL && axis >= 0 && axis < 3)
			r->axes[n] = (uint8_t)(1u << axis);
		for (uint32_t k = 0; k < operand_count(s); k++)
			r->axes[n] |= r->axes[before[k]];
		if (s->op == PROXY_STEP_FETCH)
			r->walked |= axes_of(r, s->a);
	}
	for (uint32_t n = 0; n < r->slot_count; n++)
		r->walked |= axes_of(r, r->slots[n].step);
	for (uint32_t n = 0; n < r->load_count; n++)
		r->walked |= axes_of(r, r->loads[n].at);
}

static bool allocate_arrays(struct reaches *r, const struct proxy_function *f)
{
	r->steps = copy_array(f->steps, f->step_count * sizeof *f->steps);
	r->reached = copy_array(f->reached, f->reached_count * sizeof *f->reached);
	r->words = copy_array(f->reached_words, f->reached_word_count * sizeof(uint32_t));
	r->at = copy_array(f->words, f->word_count * sizeof *f->words);
	r->slots = copy_array(f->slots, f->slot_count * sizeof *f->slots);
	r->loads = copy_array(f->loads, f->load_count * sizeof *f->loads);
	r->parts = copy_array(f->parts, f->part_count * sizeof *f->parts);
	r->axes = calloc(f->step_count + 1, 1);
	r->run = calloc(f->step_count + 1, sizeof *r->run);
	r->done = calloc(f->step_count + 1, sizeof *r->done);
	r->stack = calloc(f->step_count + 1, sizeof *r->stack);
	r->indices = calloc(f->param_bytes / ALIGNMENT + 1, sizeof *r->indices);
	r->found = calloc(BOUND_WORDS_MAX, sizeof *r->found);
	r->fetched = calloc(BOUND_WORDS_MAX, sizeof *r->fetched);
	r->seen = malloc(f->param_bytes + 1);
	r->read = malloc(f->param_bytes + 1);
	return r->steps && r->reached && r->words && r->at && r->slots && r->loads && r->parts &&
	       r->axes && r->run && r->done && r->stack && r->indices && r->found && r->fetched &&
	       r->seen && r->read;
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
		r->slot_count = f->slot_count;
		r->load_count = f->load_count;
		r->part_count = f->part_count;
		r->param_bytes = f->param_bytes;
	}
	if (!r || !allocate_arrays(r, f)) {
		bounds_free(r);
		*error = CU_OUT_OF_MEMORY;
		return NULL;
	}
	find_axes(r);
	return r;
}

static void kept_clear(struct earlier *k)
{
	free(k->params);
	free(k->bytes);
	free(k->words);
	free(k->found);
	free(k->read);
	*k = (struct earlier){0};
}

void bounds_free(struct reaches *r)
{
	if (!r)
		return;
	for (uint32_t n = 0; n < KEPT_MAX; n++)
		kept_clear(&r->kept[n]);
	free(r->steps);
	free(r->reached);
	free(r->words);
	free(r->at);
	free(r->slots);
	free(r->loads);
	free(r->parts);
	free(r->axes);
	free(r->run);
	free(r->done);
	free(r->stack);
	free(r->indices);
	free(r->found);
	free(r->fetched);
	free(r->seen);
	free(r->read);
	free(r);
}

/* ---- of a launch ---- */

static void extend_bound(struct bound *b, int64_t low, int64_t high)
{
	if (b->low >= b->high)
		*b = (struct bound){low, high};
	b->low = b->low < low ? b->low : low;
	b->high = b->high > high ? b->high : high;
}

static uint32_t sides_of(uint32_t use)
{
	return (use & PROXY_READ) | (use & (PROXY_WRITTEN | PROXY_ATOMIC) ? PROXY_WRITTEN : 0);
}

/* The word at this offset, a new one with these known bounds if there was none. NULL: there are too
 * many. */
static struct bound_word *word_at(struct evaluation *e, uint32_t at, uint32_t known)
{
	struct reaches *r = e->r;
	uint16_t *index = &r->indices[at / ALIGNMENT];
	if (!*index && e->count < BOUND_WORDS_MAX) {
		r->fetched[e->count] = false;
		r->found[e->count++] = (struct bound_word){.at = at, .bounds = {.known = known}};
		*index = (uint16_t)e->count;
	}
	e->failed |= !*index;
	return *index ? &r->found[*index - 1] : NULL;
}

static void add_fetched(struct evaluation *e, uint32_t at, const struct proxy_slot *s)
{
	struct bound_word *w = word_at(e, at, PROXY_READ | PROXY_WRITTEN);
	if (!w)
		return;
	w->use |= s->use;
	w->bounds.known &= s->bounded;
	e->r->fetched[w - e->r->found] = true;
}

static void add_slot(struct evaluation *e, const struct proxy_slot *s)
{
	struct span at = result_of(e, s->step);
	if (span_empty(at))
		return;
	if (is_place(e->r, at, 8) && at.low % ALIGNMENT == 0) {
		add_fetched(e, (uint32_t)at.low, s);
		return;
	}
	for (uint32_t word = s->first; word <= s->last && !e->failed; word += 8)
		add_fetched(e, word, s); /* what is accessed there has no base: note() */
}

/* Adds an access to the bounds of the word that its address is based on; if there is none, the
 * bounds of all its words become unknown. */
static void note_access(struct evaluation *e, const struct proxy_reached *reached)
{
	const struct reaches *r = e->r;
	const uint32_t *words = &r->words[reached->first];
	struct span at = result_of(e, reached->step);
	bool near = at.low > -SPAN_OFFSET_MAX && at.high < SPAN_OFFSET_MAX;
	bool based = near && at.base && at.base != SPAN_PARAMETERS;
	uint32_t index = based ? r->indices[(at.base - 1) / ALIGNMENT] : 0;
	if (span_empty(at))
		return;
	for (uint32_t n = 0; n < reached->count && index; n++) {
		bool slot = words[n] >= r->word_count;
		if (slot ? !r->fetched[index - 1] : words[n] != index - 1)
			continue;
		struct bounds *b = &r->found[index - 1].bounds;
		int64_t low = at.low + reached->offset;
		int64_t high = at.high + reached->offset + (int64_t)reached->bytes;
		if (sides_of(reached->use) & PROXY_READ)
			extend_bound(&b->read, low, high);
		if (sides_of(reached->use) & PROXY_WRITTEN)
			extend_bound(&b->written, low, high);
		return;
	}
	for (uint32_t n = 0; n < reached->count; n++)
		if (words[n] < r->word_count)
			r->found[words[n]].bounds.known &= ~sides_of(reached->use);
		else
			e->lost |= sides_of(reached->use);
}

static void note_load(struct evaluation *e, const struct proxy_load *l)
{
	struct span at = result_of(e, l->at);
	if (span_empty(at))
		return;
	if (is_place(e->r, at, l->bytes))
		memset(e->r->read + at.low, 1, l->bytes);
	else
		memset(e->r->read, 1, e->r->param_bytes);
}

static bool runs_now(const struct evaluation *e, uint32_t step, bool again)
{
	return !again || e->r->axes[step] & e->walked;
}

/* `again`: only what depends on the coordinates that are taken one by one. */
static void one_round(struct evaluation *e, bool again)
{
	struct reaches *r = e->r;
	for (uint32_t n = 0; n < r->step_count; n++)
		r->done[n] &= !runs_now(e, n, again);
	for (uint32_t n = 0; n < r->slot_count; n++)
		if (runs_now(e, r->slots[n].step, again))
			add_slot(e, &r->slots[n]);
	for (uint32_t n = 0; n < r->load_count; n++)
		if (runs_now(e, r->loads[n].at, again))
			note_load(e, &r->loads[n]);
	for (uint32_t n = 0; n < r->reached_count; n++)
		if (runs_now(e, r->reached[n].step, again))
			note_access(e, &r->reached[n]);
}

/* The coordinates to take one by one: none if that takes too long. */
static uint8_t walked_coordinates(const struct reaches *r, const struct bound_shape *shape)
{
	uint64_t evaluations = r->step_count + 1;
	for (uint32_t axis = 0; axis < 3; axis++)
		if (r->walked >> axis & 1 && evaluations <= EVALUATIONS_MAX)
			evaluations *= shape->grid[axis];
	return evaluations <= EVALUATIONS_MAX ? r->walked : 0;
}

static bool next_block(struct evaluation *e)
{
	for (uint32_t axis = 0; axis < 3; axis++) {
		if (!(e->walked >> axis & 1))
			continue;
		if (++e->block[axis] < e->shape->grid[axis])
			return true;
		e->block[axis] = 0;
	}
	return false;
}

static void work_out(struct evaluation *e)
{
	struct reaches *r = e->r;
	e->walked = walked_coordinates(r, e->shape);
	memset(r->indices, 0, (r->param_bytes / ALIGNMENT + 1) * sizeof *r->indices);
	memset(r->seen, 0, r->param_bytes);
	memset(r->read, !r->part_count && !r->load_count, r->param_bytes);
	for (uint32_t n = 0; n < r->part_count; n++)
		memset(r->read + r->parts[n].at, 1, r->parts[n].bytes);
	for (uint32_t n = 0; n < r->word_count; n++) {
		struct bound_word *w = word_at(e, (uint32_t)r->at[n].at, r->at[n].bounded);
		if (w)
			w->use |= r->at[n].use;
	}
	one_round(e, false);
	while (!e->failed && next_block(e))
		one_round(e, true);
	for (uint32_t n = 0; n < e->count; n++)
		if (r->fetched[n])
			r->found[n].bounds.known &= ~e->lost;
}

/* ---- results that are kept ---- */

static bool is_for(const struct earlier *k, const struct bound_shape *shape, const uint8_t *params)
{
	if (!k->params || memcmp(&k->shape, shape, sizeof *shape) != 0)
		return false;
	for (uint32_t n = 0; n < k->byte_count; n++)
		if (memcmp(k->params + k->bytes[n].at, params + k->bytes[n].at, k->bytes[n].bytes))
			return false;
	for (uint32_t n = 0; n < k->word_count; n++) {
		uint64_t x, y;
		memcpy(&x, k->params + k->words[n], sizeof x);
		memcpy(&y, params + k->words[n], sizeof y);
		if (x != y && !(is_address(x) && is_address(y)))
			return false;
	}
	return true;
}

/* The runs of bytes whose mark has this bit. */
static struct bound_part *marked_runs(const uint8_t *marks, uint32_t bytes, uint8_t bit,
				      uint32_t *count)
{
	struct bound_part *parts = malloc((bytes / 2 + 1) * sizeof *parts);
	*count = 0;
	for (uint32_t n = 0; n < bytes && parts; n++) {
		if (!(marks[n] & bit))
			continue;
		struct bound_part *last = *count ? &parts[*count - 1] : NULL;
		if (last && last->at + last->bytes == n)
			last->bytes++;
		else
			parts[(*count)++] = (struct bound_part){n, 1};
	}
	return parts;
}

static uint32_t *word_offsets(const struct reaches *r, uint32_t *count)
{
	uint32_t *words = malloc((r->param_bytes + 1) * sizeof *words);
	*count = 0;
	for (uint32_t n = 0; n < r->param_bytes && words; n++)
		if (r->seen[n] & SEEN_WORD)
			words[(*count)++] = n;
	return words;
}

static bool keep_result(struct earlier *k, const struct evaluation *e)
{
	const struct reaches *r = e->r;
	uint32_t read_count;
	kept_clear(k);
	k->shape = *e->shape;
	k->params = copy_array(e->params, r->param_bytes);
	k->bytes = marked_runs(r->seen, r->param_bytes, SEEN_BYTE, &k->byte_count);
	k->words = word_offsets(r, &k->word_count);
	k->found = copy_array(r->found, e->count * sizeof *r->found);
	k->read = marked_runs(r->read, r->param_bytes, 1, &read_count);
	if (!k->params || !k->bytes || !k->words || !k->found || !k->read) {
		kept_clear(k);
		return false;
	}
	k->launch = (struct bound_launch){e->count, read_count, k->found, k->read};
	return true;
}

bool bounds_of(struct reaches *r, const struct bound_shape *shape, const uint8_t *params,
	       struct bound_launch *launch)
{
	for (uint32_t n = 0; n < KEPT_MAX; n++)
		if (is_for(&r->kept[n], shape, params)) {
			*launch = r->kept[n].launch;
			return true;
		}
	struct evaluation e = {.r = r, .shape = shape, .params = params};
	work_out(&e);
	struct earlier *k = &r->kept[r->next++ % KEPT_MAX];
	if (e.failed || !keep_result(k, &e))
		return false;
	*launch = k->launch;
	return true;
}
