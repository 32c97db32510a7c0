/* kernels.c: of the fake driver (fake.h): modules, PTX with known kernels' names, and the kernels.
 *
 * A kernel gets its parameters as the driver packs them; it computes what the CUDA C++ of this name
 * in programs.cu does, one thread after the other.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake.h"

#define SHARED_WITHOUT_ASKING (48u << 10)

struct CUmod_st {
	char *text;
};
struct CUfunc_st {
	void (*run)(const uint8_t *);
	CUresult error;
	uint32_t params, own,
		shared; /* own: of the kernel itself; shared: a launch may add so much */
};

static uint64_t u64(const uint8_t *params, int offset)
{
	uint64_t value;

	memcpy(&value, params + offset, sizeof value);
	return value;
}

static uint32_t u32(const uint8_t *params, int offset) { return (uint32_t)u64(params, offset); }

/* put(uint32_t *at, uint32_t value): *at = value */
static void put(const uint8_t *p) { *(uint32_t *)(uintptr_t)u64(p, 0) = u32(p, 8); }

/* forward(const uint32_t *from, uint32_t *to): *to = *from */
static void forward(const uint8_t *p)
{
	*(uint32_t *)(uintptr_t)u64(p, 8) = *(const uint32_t *)(uintptr_t)u64(p, 0);
}

/* increment(uint32_t *data, uint32_t count): data[i]++ */
static void increment(const uint8_t *p)
{
	for (uint32_t i = 0; i < u32(p, 8); i++)
		((uint32_t *)(uintptr_t)u64(p, 0))[i]++;
}

/* count(uint32_t *out): *out = ++counter, where counter is the module's first variable */
static void count(const uint8_t *p)
{
	*(uint32_t *)(uintptr_t)u64(p, 0) = ++*(uint32_t *)(uintptr_t)u64(p, 8);
}

/* inverse(float *out, uint32_t count): out[i] = 1 / (i + 3), whose last bit is this device's own */
static void inverse(const uint8_t *p)
{
	for (uint32_t i = 0; i < u32(p, 8); i++) {
		float exact = 1.0f / (float)(i + 3);
		uint32_t bits;

		memcpy(&bits, &exact, sizeof bits);
		((uint32_t *)(uintptr_t)u64(p, 0))[i] = bits ^ 1;
	}
}

/* until_set(uint32_t *word): returns when it is not zero */
static void until_set(const uint8_t *p)
{
	_Atomic uint32_t *word = (_Atomic uint32_t *)(uintptr_t)u64(p, 0);

	while (!atomic_load(word))
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static void nothing(const uint8_t *p) { (void)p; }

#define SHARING_BYTES 8192u /* that the kernel of this name has in shared memory */

static const struct {
	const char *name;
	void (*run)(const uint8_t *);
	CUresult error;
	uint32_t own;
} known[] = {
	{"put", put, 0, 0},
	{"forward", forward, 0, 0},
	{"increment", increment, 0, 0},
	{"count", count, 0, 0},
	{"inverse", inverse, 0, 0},
	{"until_set", until_set, 0, 0},
	{"empty", nothing, 0, 0},
	{"sharing", put, 0, SHARING_BYTES},
	{"fault", nothing, CUDA_ERROR_ILLEGAL_ADDRESS, 0},
};

/* Where the parameters of an entry begin in the text, or NULL. */
static const char *entry(const char *text, const char *name)
{
	char wanted[128];
	const char *at;

	snprintf(wanted, sizeof wanted, ".entry %s", name);
	at = strstr(text, wanted);
	if (!at)
		return NULL;
	at += strlen(wanted);
	return *at == '(' || *at == ' ' || *at == '\n' ? at : NULL;
}

/* The bytes of its parameters, which are words of 32 and 64 bits here. */
static uint32_t param_bytes(const char *at)
{
	uint32_t bytes = 0;

	for (at = strchr(at, '('); at && *at != ')'; at++) {
		uint32_t size = !strncmp(at, ".param .u64", 11)   ? 8
				: !strncmp(at, ".param .u32", 11) ? 4
								  : 0;

		if (size)
			bytes = (bytes + size - 1) / size * size + size;
	}
	return bytes;
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count_,
				   CUjit_option *options, void **values)
{
	const char *text = image;

	ENTER(cuModuleLoadDataEx);
	if (!strstr(text, ".version")) { /* comments may come first */
		for (unsigned i = 0; i < count_; i++)
			if (options[i] == CU_JIT_ERROR_LOG_BUFFER)
				strcpy(values[i], "ptxas: not PTX");
		return fake_leave(218);
	}
	*out = malloc(sizeof **out);
	(*out)->text = strdup(text);
	return fake_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
	const char *at = entry(module->text, name);

	ENTER(cuModuleGetFunction);
	if (at && fake_sum_named(name)) {
		*out = malloc(sizeof **out);
		**out = (struct CUfunc_st){fake_sum_named(name), 0, param_bytes(at), 0, 0};
		return fake_leave(CUDA_SUCCESS);
	}
	for (size_t i = 0; at && i < sizeof known / sizeof *known; i++) {
		if (strcmp(known[i].name, name))
			continue;
		*out = malloc(sizeof **out);
		**out = (struct CUfunc_st){known[i].run, known[i].error, param_bytes(at),
					   known[i].own, SHARED_WITHOUT_ASKING - known[i].own};
		return fake_leave(CUDA_SUCCESS);
	}
	return fake_leave(CUDA_ERROR_NOT_FOUND);
}

EXPORT CUresult cuFuncGetAttribute(int *out, CUfunction_attribute attribute, CUfunction function)
{
	ENTER(cuFuncGetAttribute);
	*out = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
	       : attribute == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES   ? (int)function->own
	       : attribute == CU_FUNC_ATTRIBUTE_PTX_VERSION         ? 75
								    : 0;
	return fake_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
	ENTER(cuFuncSetAttribute);
	if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
	    value > (227 << 10) - (int)function->own)
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	function->shared = (uint32_t)value;
	return fake_leave(CUDA_SUCCESS);
}

CUresult fake_launch_check(const CUlaunchConfig *c, CUfunction f, void **extra,
			   struct fake_launch *launch)
{
	size_t bytes = extra ? *(size_t *)extra[3] : 0;
	uint64_t threads = (uint64_t)c->blockDimX * c->blockDimY * c->blockDimZ;

	if (extra && (extra[0] != CU_LAUNCH_PARAM_BUFFER_POINTER ||
		      extra[2] != CU_LAUNCH_PARAM_BUFFER_SIZE || extra[4] != CU_LAUNCH_PARAM_END))
		fake_fault("cuLaunchKernelEx: the parameters are not packed as they should be");
	if (bytes != f->params || bytes > sizeof launch->params) {
		fake_fault("cuLaunchKernelEx: %zu bytes of parameters for a kernel with %u", bytes,
			   f->params);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!c->gridDimX || !threads || threads > 1024 || (c->numAttrs && !c->attrs) ||
	    c->sharedMemBytes > f->shared)
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes)
		memcpy(launch->params, extra[1], bytes);
	launch->run = f->run;
	launch->error = f->error;
	if (!fake_sum_check(f->run, launch)) {
		fake_fault("cuLaunchKernelEx: a sum of what is not there, or in the window");
		return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}
