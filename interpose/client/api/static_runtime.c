/* static_runtime.c: serves programs and libraries that contain a CUDA runtime (libcudart_static.a),
 * as nvcc links it by default.
 *
 * Calls reach such a runtime without the dynamic linker. So when an object with one is loaded, each
 * of the runtime's functions becomes a jump to our function of that name; a function that we do not
 * have becomes a jump to a stub that reports its name and fails. No function of NVIDIA's runs that
 * would look for the driver. The functions are found in the object's symbol table. An object
 * without one (stripped) is refused at its first call (cuGetExportTable).
 *
 * The first code of an object that runs is _init, from the C library's crti.o. It calls
 * __gmon_start__ if a loaded object defines that, for the sake of profiling (gprof). This library
 * defines it, and so sees each object before the object's own constructors, which register its
 * kernels: the program, its libraries, and what dlopen loads, through whichever dlopen. Under the
 * linker's lock; errno is preserved.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bodies.h"
#include "object_file.h"

#define RUNTIME_FUNCTIONS 200 /* an object with fewer of the names contains something else */
#define UNKNOWN_FUNCTIONS 256 /* names of all runtimes in a process that we have never heard of */

/* ---- functions that we do not have ---- */

static struct {
	const char *name; /* never freed: the stub belongs to the name */
	_Atomic bool reported;
} unknown[UNKNOWN_FUNCTIONS];

cudaError_t static_runtime_refuse(unsigned which);

cudaError_t static_runtime_refuse(unsigned which)
{
	return runtime_result(
		refuse_call(&unknown[which].reported, unknown[which].name, NULL, NOT_SUPPORTED));
}

#ifdef __x86_64__
/* Stub i, of 16 bytes, calls static_runtime_refuse(i). */
#define TEXT(value) TEXT_OF(value)
#define TEXT_OF(value) #value
#define FOR_ALL_UNKNOWN ".rept " TEXT(UNKNOWN_FUNCTIONS) "\n"
__asm__(".pushsection .text\n"
	".p2align 4\n"
	"static_runtime_stubs:\n"
	".set stub, 0\n" FOR_ALL_UNKNOWN "endbr64\n"
	"movl $stub, %edi\n"
	"jmp static_runtime_refuse\n"
	".p2align 4\n"
	".set stub, stub + 1\n"
	".endr\n"
	".popsection\n");
extern const uint8_t static_runtime_stubs[][16] __attribute__((visibility("hidden")));
#else
static const uint8_t static_runtime_stubs[UNKNOWN_FUNCTIONS][16];
#endif

/* NULL: there are no stubs left, or no memory. */
static const void *stub_for(const char *name)
{
	for (size_t i = 0; i < UNKNOWN_FUNCTIONS; i++) {
		if (!unknown[i].name)
			unknown[i].name = strdup(name);
		if (!unknown[i].name)
			return NULL;
		if (!strcmp(unknown[i].name, name))
			return static_runtime_stubs[i];
	}
	return NULL;
}

/* ---- which function is redirected where ---- */

static bool is_runtime_name(const char *name)
{
	return !strncmp(name, "cuda", 4) || !strncmp(name, "__cuda", 6);
}

/* The functions of a major version of CUDA: their names may have other parameters in others. */
static const struct runtime {
	const char *mark; /* a function that only this version has; NULL: the newest one */
	const struct api_entry *functions;
	const size_t *count;
} runtimes[] = {
	{"cudaBindTexture", api_cudart_11, &api_cudart_11_count},
	{"cudaGetDeviceProperties_v2", api_cudart_12, &api_cudart_12_count},
	{NULL, api_cudart_13, &api_cudart_13_count},
};

static bool defines_function(const struct object_file *f, const char *wanted)
{
	for (size_t i = 0; i < f->symbol_count; i++) {
		const char *name = object_function(f, &f->symbols[i]);
		if (name && !strcmp(name, wanted))
			return true;
	}
	return false;
}

static const struct runtime *runtime_of(const struct object_file *f)
{
	const struct runtime *r = runtimes;
	while (r->mark && !defines_function(f, r->mark))
		r++;
	return r;
}

static int jump_order(const void *a, const void *b)
{
	const struct jump *x = a, *y = b;
	return x->at < y->at ? -1 : x->at > y->at;
}

/* Adds the jumps of functions that we have (`ours`), or of those that we do not have and that are
 * between two that we have: the runtime is one piece of code. Elsewhere a name may be the program's
 * own (__cudaRegisterLinkedBinary_…). Returns the number of jumps; `jumps` NULL: only counts. */
static size_t collect_jumps(const struct object_file *f, const struct runtime *r,
			    struct jump *jumps, size_t count, bool ours)
{
	const uint8_t *first = ours ? NULL : jumps[0].at, *last = ours ? NULL : jumps[count - 1].at;
	for (size_t i = 0; i < f->symbol_count; i++) {
		const char *name = object_function(f, &f->symbols[i]);
		if (!name || !is_runtime_name(name))
			continue;
		const struct api_entry *e = api_find_in(r->functions, *r->count, name);
		uint8_t *at = (uint8_t *)(f->base + f->symbols[i].st_value);
		if (ours != (e != NULL) || (!ours && (at < first || at > last)))
			continue;
		if (jumps)
			jumps[count] = (struct jump){at, e ? e->function : stub_for(name)};
		count++;
	}
	return count;
}

/* Checks that each jump fits: no other function begins within it. */
static const char *check_space(const struct object_file *f, const struct jump *jumps, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (!jumps[i].to)
			return "it has too many functions that rankfold does not know";
		if (i && jumps[i].at < jumps[i - 1].at + JUMP_BYTES)
			return "two of its functions are too close to each other";
	}
	for (size_t i = 0; i < f->symbol_count; i++) {
		if (!object_function(f, &f->symbols[i]))
			continue;
		const uint8_t *at = (const uint8_t *)(f->base + f->symbols[i].st_value);
		size_t low = 0, high = count; /* the first jump that ends behind `at` */
		while (low < high) {
			size_t middle = low + (high - low) / 2;
			if (jumps[middle].at + JUMP_BYTES > at)
				high = middle;
			else
				low = middle + 1;
		}
		if (low < count && jumps[low].at < at)
			return "one of its functions is too short";
	}
	return NULL;
}

static const char *redirect_all(const struct object_file *f, const struct runtime *r, size_t count)
{
	if (!defines_function(f, "cudaCtxResetPersistingL2Cache")) /* new in CUDA 11.0 */
		return "it is older than CUDA 11";
	struct jump *jumps = calloc(f->symbol_count, sizeof *jumps);
	if (!jumps)
		return "there is no memory";
	collect_jumps(f, r, jumps, 0, true);
	qsort(jumps, count, sizeof *jumps, jump_order);
	count = collect_jumps(f, r, jumps, count, false);
	qsort(jumps, count, sizeof *jumps, jump_order);
	const char *why = check_space(f, jumps, count);
	if (!why)
		why = object_write_jumps(f, jumps, count);
	free(jumps);
	return why;
}

static void redirect_runtime(const struct link_map *object, const void *start)
{
	struct object_file file;
	if (!object_file_open(&file, object, start))
		return;
	const struct runtime *r = runtime_of(&file);
	size_t count = collect_jumps(&file, r, NULL, 0, true);
	if (count >= RUNTIME_FUNCTIONS) {
		const char *why = redirect_all(&file, r, count);
		if (why) {
			atomic_store(&static_runtime_refused, true);
			log_message("%s contains the CUDA runtime, which cannot be redirected to "
				    "rankfold: %s; build it with `nvcc -cudart shared`",
				    file.path, why);
		}
	}
	object_file_close(&file);
}

/* ---- when ---- */

/* `code`: an address in the object's code. */
static void redirect_if_runtime(void *code)
{
	struct dl_find_object object;
	if (_dl_find_object(code, &object) || !object_refers_to(object.dlfo_link_map, "dlsym"))
		return; /* every CUDA runtime looks the driver's functions up */
	int saved_errno = errno;
	redirect_runtime(object.dlfo_link_map, object.dlfo_map_start);
	errno = saved_errno;
}

RF_API void __gmon_start__(void);
void __gmon_start__(void) { redirect_if_runtime(__builtin_return_address(0)); }
extern __attribute__((alias("__gmon_start__"), visibility("hidden"))) void own_gmon_start(void);

/* A program that was built for gprof has a __gmon_start__ of its own, which all objects call. So
 * those that are loaded with it are considered here. */
__attribute__((constructor)) static void consider_all(void)
{
	void *program = dlopen(NULL, RTLD_LAZY); /* RTLD_DEFAULT finds our own function */
	if (!program || dlsym(program, "__gmon_start__") == (void *)own_gmon_start)
		return;
	for (const struct link_map *object = _r_debug.r_map; object; object = object->l_next)
		for (const ElfW(Dyn) *d = object->l_ld; d->d_tag != DT_NULL; d++)
			if (d->d_tag == DT_INIT)
				redirect_if_runtime((void *)(object->l_addr + d->d_un.d_ptr));
}
