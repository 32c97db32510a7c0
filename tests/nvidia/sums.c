/* sums.c: of the fake driver (fake.h): the HAL's own kernels (proxy/hal/nvidia/kernels/sums.cu),
 * here the host's arithmetic.
 */
#include <string.h>

#include "fake.h"
#include "checksum.c"
#include "reduce.c"

static uint64_t word(const uint8_t *params, int offset)
{
	uint64_t value;

	memcpy(&value, params + offset, sizeof value);
	return value;
}

static void *at(const uint8_t *params, int offset)
{
	return (void *)(uintptr_t)word(params, offset);
}

#define KERNELS(name, dtype)                                                                       \
	static void sum_##name(const uint8_t *p)                                                   \
	{                                                                                          \
		hal_reduce(at(p, 0), at(p, 8), at(p, 16), word(p, 24), dtype,                      \
			   (uint32_t)word(p, 32));                                                 \
	}                                                                                          \
	static void scale_by_##name(const uint8_t *p)                                              \
	{                                                                                          \
		hal_scale(at(p, 0), at(p, 8), word(p, 16), dtype,                                  \
			  (uint32_t)word(p, 24) ? NULL : p + 40, word(p, 32));                     \
	}
KERNELS(int8, INT8)
KERNELS(uint8, UINT8)
KERNELS(int32, INT32)
KERNELS(uint32, UINT32)
KERNELS(int64, INT64)
KERNELS(uint64, UINT64)
KERNELS(half, HALF)
KERNELS(float, FLOAT)
KERNELS(double, DOUBLE)
KERNELS(bfloat16, BFLOAT16)

static void checksum(const uint8_t *p) /* as its first block's */
{
	memset(at(p, 24), 0, 2 * sizeof(uint64_t));
	hal_checksum(at(p, 24), at(p, 0), word(p, 8), word(p, 16));
}

#define ROWS(name, bytes)                                                                          \
	{"sum_" #name, sum_##name, bytes, true},                                                   \
	{                                                                                          \
		"scale_by_" #name, scale_by_##name, bytes, false                                   \
	}

static const struct {
	const char *name;
	void (*run)(const uint8_t *);
	uint32_t bytes; /* of an element */
	bool adds;
} own[] = {
	ROWS(int8, 1),   ROWS(uint8, 1), ROWS(int32, 4), ROWS(uint32, 4), ROWS(int64, 8),
	ROWS(uint64, 8), ROWS(half, 2),  ROWS(float, 4), ROWS(double, 8), ROWS(bfloat16, 2),
};

void (*fake_sum_named(const char *name))(const uint8_t *)
{
	if (!strcmp(name, "checksum"))
		return checksum;
	for (size_t i = 0; i < sizeof own / sizeof *own; i++)
		if (!strcmp(own[i].name, name))
			return own[i].run;
	return NULL;
}

bool fake_sum_check(void (*run)(const uint8_t *), struct fake_launch *launch)
{
	if (run == checksum) {
		launch->to = word(launch->params, 0);
		launch->bytes = word(launch->params, 8);
		return !fake_is_window(launch->to) && fake_reachable(launch->to, launch->bytes) &&
		       fake_reachable(word(launch->params, 24), 2 * sizeof(uint64_t));
	}
	for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
		uint32_t operands = own[i].adds ? 3 : 2;

		if (own[i].run != run)
			continue;
		launch->to = word(launch->params, 0);
		launch->bytes = word(launch->params, 8 * (int)operands) * own[i].bytes;
		for (uint32_t k = 0; k < operands; k++) {
			CUdeviceptr place = word(launch->params, 8 * (int)k);

			if (fake_is_window(place) || place % own[i].bytes ||
			    !fake_reachable(place, launch->bytes))
				return false;
			if (k)
				launch->from[k - 1] = place;
		}
		return true;
	}
	return true;
}
