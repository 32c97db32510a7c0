/* calls.c: calls of NVIDIA's libraries for ranks.
 *
 * A rank's call arrives as the launch of a function whose module is the library, with numbers as
 * its parameters (library_call.h). The library puts kernels into the rank's stream; they run in the
 * window of the rank, like the program's own, so its addresses are right as they are. A handle of
 * the library is this device's: all state of the program's is in the call.
 *
 * What a rank sends decides no address that this process reads or writes: numbers are passed on,
 * addresses of memory must be mapped, and everything else is made here. That an address is the
 * beginning of enough memory is the program's responsibility, as with its kernels.
 *
 * The functions of remote.def take whole numbers and addresses, each in a register or in 8 bytes of
 * the stack, and at most two doubles, which have registers of their own. More than a function takes
 * do no harm. So one type of function calls them all.
 *
 * Called in the device thread, except what module.c needs.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "issue.h"

#define CALL_ARGUMENTS_MAX 32u
#define CALL_DOUBLES_MAX 2u
#define NUMBERS_MAX 6u              /* cublasRotmgEx has five */
#define HOST_BYTES_MAX (1ull << 30) /* of working memory on the host, for one call */

#pragma GCC visibility push(default)
int rankfold_nvidia_library(const char *name, char *text, uint32_t text_bytes);
int rankfold_nvidia_call(const char *library, const char *name, uint64_t *address,
			 uint32_t *param_bytes);
#pragma GCC visibility pop

static const char *const library_names[NVIDIA_LIBRARIES] = {[NVIDIA_CUSOLVER] = "cusolver",
							    [NVIDIA_CUFFT] = "cufft",
							    [NVIDIA_CUBLAS] = "cublas",
							    [NVIDIA_CUDNN] = "cudnn"};
#define LIBRARY_cusolver NVIDIA_CUSOLVER
#define LIBRARY_cudnn NVIDIA_CUDNN
#define LIBRARY_cublas NVIDIA_CUBLAS

static struct nvidia_call calls[] = {
	{NVIDIA_CUFFT, "cufftMakePlan", NULL, nvidia_fft_make,
	 1 + sizeof(struct rf_fft) / sizeof(uint64_t), NULL},
	{NVIDIA_CUFFT, "cufftExec", NULL, nvidia_fft_execute,
	 1 + (sizeof(struct rf_fft) + sizeof(struct rf_fft_exec)) / sizeof(uint64_t), NULL},
	{NVIDIA_CUBLAS, "cublasLtMatmul", NULL, nvidia_lt_multiply,
	 1 + sizeof(struct rf_lt) / sizeof(uint64_t), NULL},
	{NVIDIA_CUBLAS, "cublasLtMatrixTransform", NULL, nvidia_lt_transform,
	 1 + sizeof(struct rf_lt) / sizeof(uint64_t), NULL},
#define DNN_QUERY(slots) {NVIDIA_CUDNN, "cudnnQuery " #slots, NULL, nvidia_dnn_query, slots, NULL},
#define DNN_EXECUTE(slots)                                                                         \
	{NVIDIA_CUDNN, "cudnnExecute " #slots, NULL, nvidia_dnn_execute, slots, NULL},
#define DNN_CTC(slots) {NVIDIA_CUDNN, "cudnnCTCLoss " #slots, NULL, nvidia_dnn_ctc, slots, NULL},
#define DNN_CTC_SIZE(slots)                                                                        \
	{NVIDIA_CUDNN, "cudnnGetCTCLossWorkspaceSize " #slots, NULL, nvidia_dnn_ctc_size, slots,   \
	 NULL},
	RF_DNN_SIZES(DNN_QUERY) RF_DNN_SIZES(DNN_EXECUTE) RF_DNN_SIZES(DNN_CTC)
		RF_DNN_SIZES(DNN_CTC_SIZE){NVIDIA_CUDNN, "cudnnSetDropoutDescriptor", NULL,
					   nvidia_dnn_dropout, 1 + RF_DROPOUT_SLOTS, NULL},
	{NVIDIA_CUDNN, "cudnnGetRNNWeightParams", NULL, nvidia_dnn_weights,
	 1 + RF_RNN_SLOTS + sizeof(struct rf_dnn_weights) / sizeof(uint64_t), NULL},
#define RF_REMOTE(library, name, kinds) {LIBRARY_##library, #name, kinds, NULL, 0, NULL},
#include "remote.def"
};
#define CALLS (sizeof calls / sizeof *calls)

/* NAME of a library that is loaded, or NULL. */
static void *symbol(enum nvidia_library library, const char *name)
{
	char text[CUDA_TEXT_BYTES];
	void *handle = nvidia_library(library_names[library], text, sizeof text);

	return handle ? dlsym(handle, name) : NULL;
}

/* ---- a function of remote.def ---- */

struct call_arguments {
	/* Numbers in memory of the host, which a library may read 16 bytes at a time. */
	_Alignas(16) uint64_t numbers[NUMBERS_MAX][(RF_FIVE_NUMBERS_SLOTS + 1) & ~1u];
	uint64_t of[CALL_ARGUMENTS_MAX], outs[RF_CALL_OUTS_MAX];
	uint64_t results[RF_RESULTS_SLOTS];
	double doubles[CALL_DOUBLES_MAX];
	uint32_t count, double_count, out_count, number_count;
	int ignored;    /* that the host has already */
	bool on_device; /* the mode of cuBLAS's pointers */
	void *handle;
	void *iteration, *host; /* made for this call */
	char iterates;          /* the kind of `iteration` */
	struct nvidia_descriptors descriptors;
};

static int make_iteration(struct call_arguments *a, char kind, const uint64_t *slots)
{
	int status = nvidia_iteration_make(kind, slots, &a->iteration);

	a->iterates = kind;
	a->of[a->count++] = (uint64_t)(uintptr_t)a->iteration;
	return status;
}

/* Working memory of the host; its size is the next parameter. */
static int make_host(struct call_arguments *a, uint64_t bytes)
{
	if (bytes > HOST_BYTES_MAX)
		return -1;
	a->host = bytes ? malloc(bytes) : NULL;
	a->of[a->count++] = (uint64_t)(uintptr_t)a->host;
	return bytes && !a->host ? -1 : 0;
}

static int make_dnn(struct call_arguments *a, const struct hal_space *space, char kind,
		    const uint64_t *slots)
{
	void *made;
	int status = nvidia_dnn_make(&a->descriptors, space, a->handle, kind, slots, &made);

	a->of[a->count++] = (uint64_t)(uintptr_t)made;
	return status;
}

static void make_number(struct call_arguments *a, char kind, const uint64_t *slots)
{
	uint64_t *number = a->numbers[a->number_count];

	if (!a->on_device) {
		memcpy(number, slots, rf_slots_of(kind) * sizeof *slots);
		a->number_count++;
	}
	a->of[a->count++] = a->on_device ? *slots : (uint64_t)(uintptr_t)number;
}

/* One parameter of the function, from the slots that it has. */
static int make_argument(struct hal_stream *s, const struct hal_space *space, char kind,
			 const uint64_t *slots, struct call_arguments *a)
{
	if (nvidia_dnn_is_row(kind))
		return make_dnn(a, space, kind, slots);
	switch (kind) {
	case 'b': a->on_device = *slots & RF_BLAS_ON_DEVICE; /* fallthrough */
	case 'h': a->of[a->count++] = (uint64_t)(uintptr_t)a->handle; return 0;
	case 'c':
	case 'C':
	case 'u':
	case 'U': make_number(a, kind, slots); return 0;
	case 'x': a->of[a->count++] = (uint64_t)(uintptr_t)&a->ignored; return 0;
	case 'd': a->of[a->count++] = (uint64_t)(uintptr_t)s->device->solver_params; return 0;
	case 'i':
	case 'l':
	case 'm': a->of[a->count++] = (uint64_t)(uintptr_t)&a->outs[a->out_count++]; return 0;
	case 'j':
	case 'e': return make_iteration(a, kind, slots);
	case 't':
	case 'a':
	case 'r':
	case 'q':
	case 'o':
	case 'g': return make_dnn(a, space, kind, slots);
	case 'N': a->of[a->count++] = *slots < RF_RESULTS ? *slots : RF_RESULTS; return 0;
	case 'R': a->of[a->count++] = (uint64_t)(uintptr_t)a->results; return 0;
	case 'f': memcpy(&a->doubles[a->double_count++], slots, sizeof *slots); return 0;
	case 's':
	case 'E': a->of[a->count++] = (uint64_t)(uintptr_t)slots; return 0;
	case 'w': return make_host(a, *slots);
	case 'n': a->of[a->count++] = 0; return 0;
	default: a->of[a->count++] = *slots; return 0;
	}
}

static int call_with(void *function, const uint64_t *a, const double *d)
{
#define N uint64_t
	int (*f)(N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N,
		 N, N, N, N, double, double);
#undef N

	*(void **)&f = function;
	return f(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12],
		 a[13], a[14], a[15], a[16], a[17], a[18], a[19], a[20], a[21], a[22], a[23], a[24],
		 a[25], a[26], a[27], a[28], a[29], a[30], a[31], d[0], d[1]);
}

static int open_library(struct hal_stream *s, enum nvidia_library library, const uint64_t *slots,
			void **handle)
{
	switch (library) {
	case NVIDIA_CUBLAS: return nvidia_cublas_open(s, slots, handle);
	case NVIDIA_CUDNN: return nvidia_dnn_open(s, handle);
	default: return nvidia_solver_open(s, handle);
	}
}

/* Takes the call's results, in the order of its parameters. */
static void take_outs(const struct call_arguments *a, const char *kinds,
		      struct nvidia_answer *answer)
{
	const uint64_t *out = a->outs;
	uint32_t number = 0;

	answer->count = 0;
	for (const char *kind = kinds; *kind; kind++) {
		uint64_t *to = answer->of + answer->count;

		if (strchr("ilm", *kind))
			*to = *out++;
		else if (strchr("uU", *kind))
			memcpy(to, a->numbers[number], rf_outs_of(*kind) * sizeof *to);
		else if (*kind == 'R')
			memcpy(to, a->results, sizeof a->results);
		number += strchr("cCuU", *kind) != NULL;
		answer->count += rf_outs_of(*kind);
	}
	if (answer->count < RF_CALL_OUTS)
		answer->count = RF_CALL_OUTS;
}

static int make_call(struct hal_stream *s, const struct hal_space *space,
		     const struct nvidia_call *call, const uint64_t *slots,
		     struct nvidia_answer *answer)
{
	static struct call_arguments a; /* of the one device thread */
	int status;

	memset(&a, 0, sizeof a);
	slots++; /* the answer's address */
	status = open_library(s, call->library, slots, &a.handle);
	for (const char *kind = call->kinds; *kind && !status; kind++) {
		status = make_argument(s, space, *kind, slots, &a);
		slots += rf_slots_of(*kind);
	}
	if (!status)
		status = call_with(call->function, a.of, a.doubles);
	nvidia_iteration_forget(a.iterates, a.iteration);
	nvidia_dnn_forget(&a.descriptors);
	if (a.host && issue_host_function(s, free, a.host))
		return -1; /* the memory is left: the library may still use it */
	take_outs(&a, call->kinds, answer);
	return status;
}

/* ---- addresses, answers ---- */

/* The address of memory that a parameter is, or has: 0: it has none. */
static uint64_t address_in(char kind, const uint64_t *slots, bool on_device)
{
	switch (kind) {
	case 'p':
	case 'y': return *slots;
	case 'b': return slots[2];
	case 'c':
	case 'C':
	case 'u':
	case 'U': return on_device ? *slots : 0;
	default: return 0;
	}
}

/* The number of the first parameter whose memory is not mapped; 0: there is none. */
static uint32_t stray_parameter(const struct hal_space *space, const struct nvidia_call *call,
				const uint64_t *slots)
{
	bool on_device = slots[1] & RF_BLAS_ON_DEVICE; /* of cuBLAS, whose handle is first */
	uint32_t at = 1, number = 1;
	uint64_t address;

	for (const char *kind = call->kinds; *kind; kind++, number++) {
		address = address_in(*kind, slots + at, on_device);
		if (address && !nvidia_space_has(space, address))
			return number;
		at += rf_slots_of(*kind);
	}
	return 0;
}

/* A few words: without a buffer that may be used up. */
static CUresult write_words(struct hal_stream *s, CUdeviceptr to, const uint64_t *answer,
			    uint32_t slots)
{
	CUresult error = CUDA_SUCCESS;
	uint32_t word;

	for (uint32_t i = 0; !error && i < slots * 2; i++) {
		memcpy(&word, (const char *)answer + i * sizeof word, sizeof word);
		error = s->device->driver->cuMemsetD2D32Async(to + i * sizeof word, sizeof word,
							      word, 1, 1, s->stream);
	}
	return error;
}

static CUresult write_staged(struct hal_stream *s, struct nvidia_stage *stage, CUdeviceptr to,
			     const uint64_t *answer, uint32_t slots)
{
	CUresult error;

	memcpy(stage->memory, answer, slots * sizeof *answer);
	error = s->device->driver->cuMemcpyAsync(to, (CUdeviceptr)(uintptr_t)stage->memory,
						 slots * sizeof *answer, s->stream);
	if (issue_host_function(s, issue_stage_free, stage))
		issue_stage_free(stage);
	return error;
}

static CUresult write_answer(struct hal_stream *s, struct hal_space *space, uint64_t to, int status,
			     const struct nvidia_answer *given)
{
	static uint64_t answer[1 + sizeof given->of / sizeof *given->of];
	uint32_t slots = 1 + given->count;
	struct nvidia_stage *stage;
	CUdeviceptr at;

	answer[0] = (uint64_t)(int64_t)status;
	memcpy(answer + 1, given->of, given->count * sizeof *answer);
	if (to % sizeof(uint32_t) ||
	    nvidia_space_resolve(space, to, true, &at) < slots * sizeof *answer)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	stage = given->count > RF_CALL_OUTS ? issue_take_stage(s, false) : NULL;
	return stage ? write_staged(s, stage, at, answer, slots)
		     : write_words(s, at, answer, slots);
}

CUresult nvidia_call(struct hal_stream *s, struct hal_space *space, const struct nvidia_item *item,
		     char *what, uint32_t what_bytes)
{
	static uint64_t slots[RF_PARAM_MAX / sizeof(uint64_t)]; /* of the one device thread */
	static struct nvidia_answer answer;
	const struct nvidia_call *call = item->work.kernel.function->call;
	uint32_t bytes = call->slots * (uint32_t)sizeof *slots;
	uint32_t sent = item->params_bytes < bytes ? item->params_bytes : bytes;
	uint32_t stray;
	int status;

	memset(slots, 0, bytes);
	memcpy(slots, item->params, sent);
	stray = call->kinds ? stray_parameter(space, call, slots) : 0;
	if (stray) {
		snprintf(what, what_bytes, "%s: the memory of parameter %u is not mapped",
			 call->name, stray);
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	}
	answer.count = RF_CALL_OUTS;
	memset(answer.of, 0, RF_CALL_OUTS_MAX * sizeof *answer.of);
	status = call->make ? call->make(s, space, slots, call->slots, &answer)
			    : make_call(s, space, call, slots, &answer);
	snprintf(what, what_bytes, "%s", call->name);
	if (slots[0])
		return write_answer(s, space, slots[0], status, &answer);
	if (status)
		snprintf(what, what_bytes, "%s gave status %d of its library", call->name, status);
	return status ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}

/* ---- for modules.py ---- */

/* 0, or a CUresult; `text` has the reason. */
int rankfold_nvidia_library(const char *name, char *text, uint32_t text_bytes)
{
	for (uint32_t i = 0; i < NVIDIA_LIBRARIES; i++)
		if (!strcmp(library_names[i], name))
			return nvidia_library(library_names[i], text, text_bytes)
				       ? CUDA_SUCCESS
				       : CUDA_ERROR_NOT_SUPPORTED;
	snprintf(text, text_bytes, "rankfold calls no functions of a library %.64s", name);
	return CUDA_ERROR_NOT_SUPPORTED;
}

static uint32_t slots_of(const char *kinds)
{
	uint32_t count = 1;

	for (; *kinds; kinds++)
		count += rf_slots_of(*kinds);
	return count;
}

static bool fits(const char *kinds)
{
	uint32_t doubles = 0;

	for (const char *kind = kinds; *kind; kind++)
		doubles += *kind == 'f';
	return slots_of(kinds) <= 1 + RF_CALL_SLOTS && doubles <= CALL_DOUBLES_MAX &&
	       strlen(kinds) - doubles <= CALL_ARGUMENTS_MAX;
}

int rankfold_nvidia_call(const char *library, const char *name, uint64_t *address,
			 uint32_t *param_bytes)
{
	struct hal_function *made;
	struct nvidia_call *call = calls;

	while (call < calls + CALLS && (strcmp(library_names[call->library], library) != 0 ||
					strcmp(call->name, name) != 0))
		call++;
	if (call == calls + CALLS)
		return CUDA_ERROR_NOT_FOUND;
	if (call->kinds) {
		call->slots = slots_of(call->kinds);
		if (!fits(call->kinds))
			return CUDA_ERROR_NOT_SUPPORTED;
		call->function = symbol(call->library, name);
		if (!call->function)
			return CUDA_ERROR_NOT_FOUND; /* in this version of the library */
	}
	made = calloc(1, sizeof *made + strlen(name) + 1);
	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	made->call = call;
	made->param_bytes = call->slots * (uint32_t)sizeof(uint64_t);
	made->globals_at = CUDA_NO_GLOBALS;
	strcpy(made->name, name);
	*address = (uint64_t)(uintptr_t)made;
	*param_bytes = made->param_bytes;
	return CUDA_SUCCESS;
}

void nvidia_calls_close(struct hal_device *device)
{
	nvidia_fft_close(device);
	nvidia_dnn_close(device);
	nvidia_solver_close(device);
}
