/* kernels.c: of the fake driver (fake.h): the kernels that it knows, and modules with their names,
 * which are PTX or machine code.
 *
 * A kernel gets its parameters as the driver packs them; it computes what the CUDA C++ of this name
 * in programs.cu does, one thread after the other.
 */
#include <elf.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake.h"

#define SHARED_WITHOUT_ASKING (48u << 10)

struct CUmod_st {
	char *text;         /* of PTX; NULL: machine code */
	uint8_t *elf;       /* of machine code, up to the end of its list of sections */
	uint8_t *global[3]; /* the content of its sections of variables */
};
struct CUfunc_st {
	const uint8_t *variable; /* its address is one more parameter; NULL: none */
	void (*run)(const uint8_t *);
	CUresult error;
	uint32_t params, own,
		shared; /* own: of the kernel itself; shared: a launch may add so much */
	bool large;     /* clusters of more than eight blocks are allowed */
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

/* put_cluster(uint32_t *at, uint32_t): *at = the blocks of a cluster, put there by the launch */
static void put_cluster(const uint8_t *p) { put(p); }

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

/* look_up(uint32_t *out): *out = table[0] + table[1], a constant */
static void look_up(const uint8_t *p)
{
	const uint32_t *table = (const uint32_t *)(uintptr_t)u64(p, 8);

	*(uint32_t *)(uintptr_t)u64(p, 0) = table[0] + table[1];
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

#define ANY UINT32_MAX /* bytes of parameters: they are not looked at */

#define SHARING_BYTES 8192u /* that the kernel of this name has in shared memory */

static const struct {
	const char *name;
	void (*run)(const uint8_t *);
	CUresult error;
	uint32_t own;
	const char *variable; /* its address is the last parameter; machine code contains it */
} known[] = {
	{"put", put, 0, 0, NULL},
	{"forward", forward, 0, 0, NULL},
	{"increment", increment, 0, 0, NULL},
	{"count", count, 0, 0, "counter"},
	{"look_up", look_up, 0, 0, "table"},
	{"inverse", inverse, 0, 0, NULL},
	{"until_set", until_set, 0, 0, NULL},
	{"empty", nothing, 0, 0, NULL},
	{"put_by_map", fake_put_by_map, 0, 0, NULL},
	{"put_cluster", put_cluster, 0, 0, NULL},
	{"sharing", put, 0, SHARING_BYTES, NULL},
	{"fault", nothing, CUDA_ERROR_ILLEGAL_ADDRESS, 0, NULL},
};

/* ---- machine code: read as elf.h says, without tools ---- */

#define CAPABILITY 90 /* as memory.c answers */
static const char *const variables_in[] = {".nv.global", ".nv.global.init", ".nv.constant3"};

static const Elf64_Shdr *section_at(const uint8_t *elf, uint32_t number)
{
	const Elf64_Ehdr *header = (const void *)elf;

	return (const Elf64_Shdr *)(const void *)(elf + header->e_shoff) + number;
}

static const char *section_name(const uint8_t *elf, const Elf64_Shdr *section)
{
	const Elf64_Ehdr *header = (const void *)elf;

	return (const char *)elf + section_at(elf, header->e_shstrndx)->sh_offset +
	       section->sh_name;
}

static const Elf64_Shdr *section_named(const uint8_t *elf, const char *name)
{
	const Elf64_Ehdr *header = (const void *)elf;

	for (uint32_t i = 1; i < header->e_shnum; i++)
		if (!strcmp(section_name(elf, section_at(elf, i)), name))
			return section_at(elf, i);
	return NULL;
}

static uint64_t elf_bytes(const uint8_t *elf)
{
	const Elf64_Ehdr *header = (const void *)elf;
	uint64_t end = header->e_shoff + header->e_shnum * sizeof(Elf64_Shdr);
	uint64_t programs = header->e_phoff + header->e_phnum * sizeof(Elf64_Phdr);

	return end > programs ? end : programs;
}

/* The content of a variable in this module's memory, or NULL; bytes: its size. */
static uint8_t *variable_of(CUmodule module, const char *name, size_t *bytes)
{
	const Elf64_Shdr *table = section_named(module->elf, ".symtab");
	const Elf64_Sym *symbols = (const void *)(module->elf + table->sh_offset);
	const char *names = (const char *)module->elf +
			    section_at(module->elf, table->sh_link)->sh_offset;

	for (uint64_t i = 0; i < table->sh_size / sizeof *symbols; i++) {
		if (strcmp(names + symbols[i].st_name, name) || !symbols[i].st_size)
			continue;
		for (size_t k = 0; k < sizeof variables_in / sizeof *variables_in; k++) {
			const Elf64_Shdr *section = section_named(module->elf, variables_in[k]);

			if (!section || section != section_at(module->elf, symbols[i].st_shndx))
				continue;
			*bytes = symbols[i].st_size;
			return module->global[k] + symbols[i].st_value;
		}
	}
	return NULL;
}

static CUresult load_elf(CUmodule *out, const uint8_t *elf)
{
	const Elf64_Ehdr *header = (const void *)elf;
	unsigned arch = header->e_flags >> (elf[EI_ABIVERSION] >= 8 ? 8 : 0) & 0xff;
	CUmodule made;

	if (header->e_machine != 190 || arch / 10 != CAPABILITY / 10 || arch > CAPABILITY)
		return 209;
	made = calloc(1, sizeof *made);
	made->elf = malloc(elf_bytes(elf));
	memcpy(made->elf, elf, elf_bytes(elf));
	for (size_t k = 0; k < sizeof variables_in / sizeof *variables_in; k++) {
		const Elf64_Shdr *section = section_named(elf, variables_in[k]);

		if (!section)
			continue;
		made->global[k] = fake_variables(section->sh_size);
		if (section->sh_type != SHT_NOBITS)
			memcpy(made->global[k], elf + section->sh_offset, section->sh_size);
	}
	*out = made;
	return CUDA_SUCCESS;
}

#define CBANK_PARAM_SIZE 0x1903 /* an attribute of .nv.info.KERNEL, whose content follows */

/* The bytes of a kernel's parameters; -1: there is no such kernel. */
static int elf_param_bytes(CUmodule module, const char *name)
{
	const Elf64_Shdr *section;
	char wanted[8192];

	snprintf(wanted, sizeof wanted, ".text.%s", name);
	if (!section_named(module->elf, wanted))
		return -1;
	snprintf(wanted, sizeof wanted, ".nv.info.%s", name);
	section = section_named(module->elf, wanted);
	for (uint64_t at = 0; section && at + 4 <= section->sh_size;) {
		uint16_t words[2];

		memcpy(words, module->elf + section->sh_offset + at, sizeof words);
		if (words[0] == CBANK_PARAM_SIZE)
			return words[1];
		at += (words[0] & 0xff) == 4 ? 4 + words[1] : 4;
	}
	return 0;
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *at, size_t *bytes, CUmodule module,
				     const char *name)
{
	uint8_t *found;

	ENTER(cuModuleGetGlobal_v2);
	found = module->elf ? variable_of(module, name, bytes) : NULL;
	*at = (CUdeviceptr)(uintptr_t)found;
	return fake_leave(found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
}

/* ---- PTX ---- */

/* Where the parameters of an entry begin in the text, or NULL. */
static const char *entry(const char *text, const char *name)
{
	char wanted[8192];
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

		if (!strncmp(at, ".param .align 128 .b8", 21)) /* a tensor map */
			bytes = (bytes + 127) / 128 * 128 + sizeof(CUtensorMap);
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
	if (!memcmp(image, ELFMAG, SELFMAG))
		return fake_leave(load_elf(out, image));
	if (!strstr(text, ".version")) { /* comments may come first */
		for (unsigned i = 0; i < count_; i++)
			if (options[i] == CU_JIT_ERROR_LOG_BUFFER)
				strcpy(values[i], "ptxas: not PTX");
		return fake_leave(218);
	}
	*out = calloc(1, sizeof **out);
	(*out)->text = strdup(text);
	return fake_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
	const char *at = module->elf ? NULL : entry(module->text, name);
	int bytes = at ? (int)param_bytes(at) : module->elf ? elf_param_bytes(module, name) : -1;
	const char *kernels = getenv("RANKFOLD_FAKE_KERNELS");
	const uint8_t *variable = NULL;
	size_t size;

	ENTER(cuModuleGetFunction);
	if (at && fake_sum_named(name)) {
		*out = malloc(sizeof **out);
		**out = (struct CUfunc_st){NULL, fake_sum_named(name), 0, (uint32_t)bytes, 0, 0,
					   false};
		return fake_leave(CUDA_SUCCESS);
	}
	for (size_t i = 0; bytes >= 0 && i < sizeof known / sizeof *known; i++) {
		if (strcmp(known[i].name, name))
			continue;
		if (module->elf && known[i].variable)
			variable = variable_of(module, known[i].variable, &size);
		*out = malloc(sizeof **out);
		**out = (struct CUfunc_st){variable,       known[i].run,
					   known[i].error, (uint32_t)bytes,
					   known[i].own,   SHARED_WITHOUT_ASKING - known[i].own,
					   false};
		return fake_leave(CUDA_SUCCESS);
	}
	if (kernels && !strcmp(kernels, "1") && bytes >= 0) {
		*out = malloc(sizeof **out);
		**out = (struct CUfunc_st){NULL, nothing, 0, ANY, 0, 227 << 10, false};
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
	if (attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED && value == 1) {
		function->large = true;
		return fake_leave(CUDA_SUCCESS);
	}
	if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
	    value > (227 << 10) - (int)function->own)
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	function->shared = (uint32_t)value;
	return fake_leave(CUDA_SUCCESS);
}

#define SMS 132

/* The blocks of a cluster; 0: the attributes are not those of this launch. */
static uint32_t cluster_of(const CUlaunchConfig *c, CUfunction f)
{
	uint32_t blocks = 1;

	for (unsigned i = 0; i < c->numAttrs; i++) {
		const CUlaunchAttributeValue *v = &c->attrs[i].value;

		if (c->attrs[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
			continue;
		blocks = v->clusterDim.x * v->clusterDim.y * v->clusterDim.z;
		if (!blocks || blocks > (f->large ? 16 : 8) || c->gridDimX % v->clusterDim.x ||
		    c->gridDimY % v->clusterDim.y || c->gridDimZ % v->clusterDim.z)
			return 0;
	}
	return blocks;
}

EXPORT CUresult cuOccupancyMaxActiveClusters(int *out, CUfunction function,
					     const CUlaunchConfig *config)
{
	uint32_t blocks;

	ENTER(cuOccupancyMaxActiveClusters);
	blocks = cluster_of(config, function);
	*out = blocks ? (int)(SMS / blocks) : 0;
	return fake_leave(blocks ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

EXPORT CUresult cuOccupancyMaxPotentialClusterSize(int *out, CUfunction function,
						   const CUlaunchConfig *config)
{
	ENTER(cuOccupancyMaxPotentialClusterSize);
	*out = function->large ? 16 : 8;
	return fake_leave(config->blockDimX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult fake_launch_check(const CUlaunchConfig *c, CUfunction f, void **extra,
			   struct fake_launch *launch)
{
	size_t bytes = extra ? *(size_t *)extra[3] : 0;
	uint64_t threads = (uint64_t)c->blockDimX * c->blockDimY * c->blockDimZ;

	if (extra && (extra[0] != CU_LAUNCH_PARAM_BUFFER_POINTER ||
		      extra[2] != CU_LAUNCH_PARAM_BUFFER_SIZE || extra[4] != CU_LAUNCH_PARAM_END))
		fake_fault("cuLaunchKernelEx: the parameters are not packed as they should be");
	if (f->params == ANY)
		bytes = 0;
	else if (bytes != f->params || bytes > sizeof launch->params) {
		fake_fault("cuLaunchKernelEx: %zu bytes of parameters for a kernel with %u", bytes,
			   f->params);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!c->gridDimX || !threads || threads > 1024 || (c->numAttrs && !c->attrs) ||
	    c->sharedMemBytes > f->shared || !cluster_of(c, f))
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes)
		memcpy(launch->params, extra[1], bytes);
	if (f->run == put_cluster) {
		uint32_t blocks = cluster_of(c, f);

		memcpy(launch->params + 8, &blocks, sizeof blocks);
	}
	if (f->variable) {
		uint64_t at = (uint64_t)(uintptr_t)f->variable;

		memcpy(launch->params + (bytes + 7) / 8 * 8, &at, sizeof at);
	}
	launch->run = f->run;
	launch->error = f->error;
	if (!fake_sum_check(f->run, launch)) {
		fake_fault("cuLaunchKernelEx: a sum of what is not there, or in the window");
		return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}
