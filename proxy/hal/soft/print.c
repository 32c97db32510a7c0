/* print.c: output of kernels: printf, and failed assertions.
 *
 * A thread's output is formatted here at once and put into a ring in the rank's pinned memory; the
 * client writes it to the rank's stdout at its next synchronisation. Format, arguments and strings
 * are device memory: they are read once, in a fault scope (fault.c), and are not trusted. Only
 * known conversions reach the C library, one at a time, and none that writes to memory.
 *
 * Locks: hal_space.printing, held for one copy into the ring. A worker that waits for it gives up
 * when the space has failed, because a fault in that copy leaves it locked.
 */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "kernel.h"
#include "soft.h"

#define FORMAT_BYTES 4096u
#define TEXT_BYTES 16384u /* of one printf; longer output is truncated */
#define ARGUMENTS_MAX 32  /* as CUDA */
#define WIDTH_MAX 9999    /* of a field, and of its precision */

struct print {
	const struct soft_block *block;
	const uint8_t *local;
	uint32_t local_stride;
	uint64_t arguments; /* device address of the next one */
	int taken;
	uint32_t used;
	char text[TEXT_BYTES];
};

/* The host address of a generic address, and the number of bytes that may be read there. */
static const uint8_t *resolve_address(const struct print *p, uint64_t address, uint64_t *available)
{
	uint64_t place = address & ((1ull << 40) - 1), offset = address - RF_DEV_BASE;

	*available = UINT64_MAX; /* an unmapped page ends it */
	if (address >> 40 == SOFT_TAG_SHARED)
		return p->block->shared + (place & (SOFT_SHARED_WINDOW - 1));
	if (address >> 40 == SOFT_TAG_LOCAL) {
		place = p->local_stride ? place & (p->local_stride - 1) : 0;
		*available = p->local_stride - place;
		return p->local + place;
	}
	return p->block->base + (offset < RF_WINDOW_BYTES ? offset : SOFT_NOWHERE);
}

/* Copies a string from device memory, truncated to `bytes` including its end. */
static void copy_string(const struct print *p, uint64_t address, char *to, uint64_t bytes)
{
	uint64_t available;
	const uint8_t *from = resolve_address(p, address, &available);

	bytes = available < bytes - 1 ? available + 1 : bytes;
	for (uint64_t i = 0; i < bytes - 1; i++)
		if (!(to[i] = (char)from[i]))
			return;
	to[bytes - 1] = 0;
}

/* Takes the next argument; each is at a multiple of its size. */
static uint64_t take_argument(struct print *p, uint32_t bytes)
{
	uint64_t available, value = 0, at = (p->arguments + bytes - 1) & ~(uint64_t)(bytes - 1);
	const uint8_t *from = resolve_address(p, at, &available);

	memcpy(&value, from, bytes < available ? bytes : available);
	p->arguments = at + bytes;
	p->taken++;
	return value;
}

static void put_text(struct print *p, const char *text, uint32_t bytes)
{
	uint32_t available = TEXT_BYTES - p->used;

	bytes = bytes < available ? bytes : available;
	memcpy(p->text + p->used, text, bytes);
	p->used += bytes;
}

/* Formats one conversion with the C library. `bits`: the argument. */
static void put_number(struct print *p, const char *spec, char kind, bool wide, uint64_t bits)
{
	char *to = p->text + p->used, string[TEXT_BYTES];
	uint32_t available = TEXT_BYTES - p->used;
	double real;
	int length;

	if (kind == 's')
		copy_string(p, bits, string, sizeof string);
	memcpy(&real, &bits, sizeof real);
	soft_defer_cancel();
	if (kind == 's')
		length = snprintf(to, available, spec, string);
	else if (kind == 'p')
		length = snprintf(to, available, spec, (void *)bits);
	else if (strchr("eEfFgGaA", kind))
		length = snprintf(to, available, spec, real);
	else if (wide)
		length = snprintf(to, available, spec, (unsigned long long)bits);
	else
		length = snprintf(to, available, spec, (unsigned)bits);
	soft_allow_cancel();
	if (length > 0)
		p->used += (uint32_t)length < available ? (uint32_t)length
			   : available                  ? available - 1
							: 0;
}

struct spec {
	char text[48];
	uint32_t used;
	uint32_t longs, shorts;
};

static void add_to_spec(struct spec *s, char c)
{
	if (s->used < sizeof s->text - 8)
		s->text[s->used++] = c;
}

/* Adds a width or precision: digits, or an argument. Returns the text after it. */
static const char *parse_number(struct print *p, struct spec *s, const char *at)
{
	char digits[24]; /* enough for any long */
	long value = 0;

	if (*at == '*') {
		value = (int32_t)take_argument(p, 4);
		at++;
		if (value < 0 && s->text[s->used - 1] == '.') { /* treated as absent */
			s->used--;
			return at;
		}
		if (value < 0) { /* left-aligned */
			add_to_spec(s, '-');
			value = -value;
		}
	} else if (*at < '0' || *at > '9') {
		return at;
	}
	for (; *at >= '0' && *at <= '9'; at++)
		value = value > WIDTH_MAX ? value : value * 10 + (*at - '0');
	snprintf(digits, sizeof digits, "%ld", value < WIDTH_MAX ? value : WIDTH_MAX);
	for (const char *d = digits; *d; d++)
		add_to_spec(s, *d);
	return at;
}

/* Handles the text after a '%'. Returns the text after the conversion, or NULL if it is unknown. */
static const char *parse_conversion(struct print *p, const char *at)
{
	struct spec s = {.text = "%", .used = 1};
	bool wide, narrow_kind;

	for (; *at && strchr("-+ #0", *at); at++)
		if (!memchr(s.text, *at, s.used))
			add_to_spec(&s, *at);
	at = parse_number(p, &s, at);
	if (*at == '.') {
		add_to_spec(&s, '.');
		at = parse_number(p, &s, at + 1);
	}
	for (; *at && strchr("hlLqjzt", *at); at++) {
		s.shorts += *at == 'h';
		s.longs += *at != 'h';
	}
	if (!*at || !strchr("diouxXceEfFgGaAsp", *at) || p->taken >= ARGUMENTS_MAX)
		return NULL;
	narrow_kind = strchr("diouxXc", *at) != NULL;
	wide = s.longs && *at != 'c';
	for (uint32_t i = 0; narrow_kind && *at != 'c' && i < (wide ? 2 : s.shorts) && i < 2; i++)
		add_to_spec(&s, wide ? 'l' : 'h');
	s.text[s.used++] = *at;
	put_number(p, s.text, *at, wide, take_argument(p, narrow_kind && !wide ? 4 : 8));
	return at + 1;
}

static void format_text(struct print *p, const char *at)
{
	while (*at) {
		const char *percent = strchr(at, '%'), *end;

		put_text(p, at, (uint32_t)(percent ? (size_t)(percent - at) : strlen(at)));
		if (!percent)
			return;
		end = percent[1] == '%' ? percent + 2 : parse_conversion(p, percent + 1);
		if (!end || percent[1] == '%')
			put_text(p, "%", 1);
		at = end ? end : percent + 1;
	}
}

static void publish_text(struct print *p, struct rf_print *ring)
{
	struct hal_space *space = soft_current_space();
	uint64_t head;

	while (atomic_flag_test_and_set(&space->printing)) {
		if (atomic_load(&space->error))
			soft_abort(SOFT_LAUNCH_FAILED);
		sched_yield();
	}
	head = atomic_load_explicit(&ring->head, memory_order_relaxed);
	for (uint32_t done = 0, bytes; done < p->used; done += bytes) {
		uint32_t place = (uint32_t)(head + done) % RF_PRINT_BYTES;

		bytes = p->used - done;
		if (bytes > RF_PRINT_BYTES - place)
			bytes = RF_PRINT_BYTES - place;
		memcpy(ring->text + place, p->text + done, bytes);
	}
	atomic_store_explicit(&ring->head, head + p->used, memory_order_release);
	atomic_flag_clear(&space->printing);
}

__attribute__((visibility("default"))) int32_t
rankfold_soft_print(const struct soft_block *block, const uint8_t *local, uint32_t local_stride,
		    uint64_t print, uint64_t format_at, uint64_t arguments)
{
	struct print p = {.block = block,
			  .local = local,
			  .local_stride = local_stride,
			  .arguments = arguments};
	char text[FORMAT_BYTES];
	uint64_t available, ring;

	if (!format_at)
		return -1;
	memcpy(&ring, resolve_address(&p, print, &available), sizeof ring);
	if (!ring)
		return -2; /* the launching program wants no output */
	copy_string(&p, format_at, text, sizeof text);
	format_text(&p, text);
	if (p.used) {
		const uint8_t *at = resolve_address(&p, ring & ~(uint64_t)63, &available);

		if (available != UINT64_MAX)
			return -2;
		publish_text(&p, (struct rf_print *)(uintptr_t)at);
	}
	return p.taken;
}

__attribute__((visibility("default"))) void rankfold_soft_assert(
	const struct soft_block *block, const uint8_t *local, uint32_t local_stride, uint32_t x,
	uint32_t y, uint32_t z, uint64_t message_at, uint64_t file_at, uint32_t line,
	uint64_t function_at)
{
	struct print p = {.block = block, .local = local, .local_stride = local_stride};
	char message[512], file[512], function[896], text[SOFT_TEXT_BYTES];
	uint32_t width = block->ntid[0]; /* blocks that run as one: x is the place in all of them */

	copy_string(&p, message_at, message, sizeof message);
	copy_string(&p, file_at, file, sizeof file);
	copy_string(&p, function_at, function, sizeof function);
	soft_defer_cancel();
	snprintf(text, sizeof text,
		 "%s:%u: %s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.", file,
		 line, function, block->ctaid[0] + x / width, block->ctaid[1], block->ctaid[2],
		 x % width, y, z, message);
	soft_abort_with_text(SOFT_ASSERT, text);
}
