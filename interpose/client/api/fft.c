/* fft.c: plans of cuFFT. A plan is a description in the client; it travels with each transform, and
 * the proxy keeps plans of NVIDIA's library by their description (remote.c). Errors are
 * cufftResult.
 */
#include <stdlib.h>
#include <string.h>

#include "bodies.h"

enum {
	SUCCESS = 0,
	INVALID_PLAN = 1,
	ALLOC_FAILED = 2,
	INVALID_TYPE = 3,
	INVALID_VALUE_GIVEN = 4,
	EXEC_FAILED = 6,
	INVALID_SIZE = 8,
	REFUSED = 16
};

struct remote_library remote_cufft = {
	.image = RF_LIBRARY_TEXT "cufft",
	.without = "not supported by rankfold on this device; compute transforms on the CPU (in "
		   "PyTorch, of x.cpu())",
	.handles = HANDLE_FFT,
	.status = {INVALID_PLAN, INVALID_VALUE_GIVEN, REFUSED, EXEC_FAILED},
};

struct plan {
	struct rf_fft fft; /* rank 0: not made yet */
	bool manual;       /* the program provides the work area */
	uint64_t area, area_bytes;
	bool own; /* the area is this plan's own memory */
};

static struct plan *plan_of(int number)
{
	const struct handle *h = handle_get(HANDLE_FFT, (const void *)(uint64_t)number);

	return h ? h->plan : NULL;
}

int fft_create(int *out, const char *name)
{
	struct plan *plan;
	struct handle *h;
	int status;

	if (!out)
		return INVALID_VALUE_GIVEN;
	status = remote_ready(&remote_cufft, name);
	if (status)
		return status;
	plan = calloc(1, sizeof *plan);
	h = plan ? handle_new(HANDLE_FFT, context_owner()) : NULL;
	if (!h) {
		free(plan);
		return ALLOC_FAILED;
	}
	h->plan = plan;
	*out = (int)h->number;
	return SUCCESS;
}

static void drop_area(struct plan *plan)
{
	if (plan->own)
		free_now((const void *)plan->area);
	plan->own = false;
	plan->area = 0;
}

int fft_destroy(int number)
{
	struct plan *plan = plan_of(number);

	if (!plan)
		return INVALID_PLAN;
	drop_area(plan);
	handle_drop(handle_get(HANDLE_FFT, (const void *)(uint64_t)number));
	free(plan);
	return SUCCESS;
}

int fft_set_stream(int number, void *stream)
{
	struct handle *h = handle_get(HANDLE_FFT, (const void *)(uint64_t)number);
	uint64_t checked;

	if (!h)
		return INVALID_PLAN;
	if (stream_number(stream, &checked))
		return INVALID_VALUE_GIVEN;
	h->stream = stream;
	return SUCCESS;
}

int fft_set_automatic(int number, int automatic)
{
	struct plan *plan = plan_of(number);

	if (!plan || plan->fft.rank)
		return INVALID_PLAN;
	plan->manual = !automatic;
	return SUCCESS;
}

int fft_set_area(int number, void *area)
{
	struct plan *plan = plan_of(number);

	if (!plan)
		return INVALID_PLAN;
	drop_area(plan);
	plan->area = (uint64_t)area;
	return SUCCESS;
}

int fft_size(int number, size_t *bytes)
{
	const struct plan *plan = plan_of(number);

	if (!plan || !plan->fft.rank)
		return INVALID_PLAN;
	if (!bytes)
		return INVALID_VALUE_GIVEN;
	*bytes = plan->area_bytes;
	return SUCCESS;
}

static int make(int number, const struct rf_fft *fft, size_t *bytes)
{
	static struct remote_function f = {.name = "cufftMakePlan"};
	struct handle *h = handle_get(HANDLE_FFT, (const void *)(uint64_t)number);
	uint64_t outs[RF_CALL_OUTS];
	struct plan *plan;
	int status;

	if (!h || ((struct plan *)h->plan)->fft.rank)
		return INVALID_PLAN;
	status = remote_send(&remote_cufft, &f, h->stream, (const uint64_t *)fft,
			     sizeof *fft / sizeof(uint64_t), outs);
	if (status)
		return status;
	plan = h->plan;
	plan->fft = *fft;
	plan->area_bytes = outs[0];
	if (bytes)
		*bytes = plan->area_bytes;
	if (plan->manual || !plan->area_bytes)
		return SUCCESS;
	if (memory_alloc_for(context_owner(), plan->area_bytes, &plan->area))
		return ALLOC_FAILED;
	plan->own = true;
	return SUCCESS;
}

/* An element is one number of `wide` bytes each. */
static void copy_sizes(int64_t *to, const void *from, int64_t rank, bool wide)
{
	for (int64_t i = 0; from && i < rank; i++)
		to[i] = wide ? ((const int64_t *)from)[i] : ((const int *)from)[i];
}

static int describe_plan(struct rf_fft *out, int rank, const void *n, bool wide, struct fft_side in,
			 struct fft_side to, int64_t batch)
{
	*out = (struct rf_fft){.rank = rank, .batch = batch};
	if (rank < 1 || rank > RF_FFT_RANK_MAX || batch < 1)
		return INVALID_SIZE;
	if (!n)
		return INVALID_VALUE_GIVEN;
	copy_sizes(out->n, n, rank, wide);
	out->in_type = in.type;
	out->out_type = to.type;
	if (!in.embed || !to.embed) /* then the library ignores strides and distances, too */
		return SUCCESS;
	out->embedded = 1;
	copy_sizes(out->in_embed, in.embed, rank, wide);
	copy_sizes(out->out_embed, to.embed, rank, wide);
	out->in_stride = in.stride;
	out->in_distance = in.distance;
	out->out_stride = to.stride;
	out->out_distance = to.distance;
	return SUCCESS;
}

/* cufftType as the types of both sides. */
static int types_of(int type, int *in, int *out, int *execution)
{
	static const struct {
		int type, in, out, execution;
	} all[] = {
		{0x29, CUDA_C_32F, CUDA_C_32F, CUDA_C_32F},
		{0x2a, CUDA_R_32F, CUDA_C_32F, CUDA_C_32F},
		{0x2c, CUDA_C_32F, CUDA_R_32F, CUDA_C_32F},
		{0x69, CUDA_C_64F, CUDA_C_64F, CUDA_C_64F},
		{0x6a, CUDA_R_64F, CUDA_C_64F, CUDA_C_64F},
		{0x6c, CUDA_C_64F, CUDA_R_64F, CUDA_C_64F},
	};

	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (all[i].type == type) {
			*in = all[i].in;
			*out = all[i].out;
			*execution = all[i].execution;
			return SUCCESS;
		}
	return INVALID_TYPE;
}

int fft_make_typed(int number, int rank, const void *n, bool wide, struct fft_side in,
		   struct fft_side out, int type, int64_t batch, size_t *bytes)
{
	struct rf_fft fft;
	int execution, status = types_of(type, &in.type, &out.type, &execution);

	if (!status)
		status = describe_plan(&fft, rank, n, wide, in, out, batch);
	if (status)
		return status;
	fft.execution = execution;
	return make(number, &fft, bytes);
}

int fft_make_wide(int number, int rank, const long long *n, struct fft_side in, struct fft_side out,
		  int execution, int64_t batch, size_t *bytes)
{
	struct rf_fft fft;
	int status = describe_plan(&fft, rank, n, true, in, out, batch);

	if (status)
		return status;
	fft.execution = execution;
	return make(number, &fft, bytes);
}

/* A new plan, made at once. */
int fft_plan(int *out, const char *name, int rank, const int *n, struct fft_side in,
	     struct fft_side to, int type, int batch)
{
	int number, status = out ? fft_create(&number, name) : INVALID_VALUE_GIVEN;

	if (status)
		return status;
	status = fft_make_typed(number, rank, n, false, in, to, type, batch, NULL);
	if (status)
		fft_destroy(number);
	else
		*out = number;
	return status;
}

int fft_execute(int number, const void *in, const void *out, int direction)
{
	static struct remote_function f = {.name = "cufftExec"};
	const struct handle *h = handle_get(HANDLE_FFT, (const void *)(uint64_t)number);
	const struct plan *plan = h ? h->plan : NULL;
	struct {
		struct rf_fft fft;
		struct rf_fft_exec call;
	} sent;

	if (!plan || !plan->fft.rank)
		return INVALID_PLAN;
	if (plan->area_bytes && !plan->area)
		return INVALID_VALUE_GIVEN; /* the program has not set it */
	sent.fft = plan->fft;
	sent.call = (struct rf_fft_exec){(uint64_t)in, (uint64_t)out, plan->area, plan->area_bytes,
					 direction};
	return remote_send(&remote_cufft, &f, h->stream, (const uint64_t *)&sent,
			   sizeof sent / sizeof(uint64_t), NULL);
}
