/* fft.c: plans of cuFFT, kept by their description. They are the device's: ranks with equal plans
 * share one. Nothing of a plan is a rank's: stream and work area are set for each transform.
 *
 * Runs in the device thread.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"

#define PLANS_MAX 256u /* the one that was not used for longest is dropped */
#define FFT_INVALID_VALUE 4
#define FFT_NOT_SUPPORTED 16

struct nvidia_fft_plan {
	struct rf_fft fft;
	int handle;
	size_t area_bytes;
	struct nvidia_fft_plan *next; /* the last one used is the first */
};

static struct {
	int (*cufftCreate)(int *);
	int (*cufftDestroy)(int);
	int (*cufftSetAutoAllocation)(int, int);
	int (*cufftXtMakePlanMany)(int, int, long long *, long long *, long long, long long, int,
				   long long *, long long, long long, int, long long, size_t *,
				   int);
	int (*cufftSetStream)(int, CUstream);
	int (*cufftSetWorkArea)(int, void *);
	int (*cufftXtExec)(int, void *, void *, int);
} cufft;

static bool find_functions(void)
{
	char text[CUDA_TEXT_BYTES];
	void *library = nvidia_library("cufft", text, sizeof text);
	bool found = library;

#define FIND(name) found = found && (*(void **)&cufft.name = dlsym(library, #name))
	FIND(cufftCreate);
	FIND(cufftDestroy);
	FIND(cufftSetAutoAllocation);
	FIND(cufftXtMakePlanMany);
	FIND(cufftSetStream);
	FIND(cufftSetWorkArea);
	FIND(cufftXtExec);
#undef FIND
	return found;
}

static void widen_sizes(long long *to, const int64_t *from)
{
	for (int i = 0; i < RF_FFT_RANK_MAX; i++)
		to[i] = from[i];
}

static int make_plan(struct nvidia_fft_plan *plan)
{
	const struct rf_fft *f = &plan->fft;
	long long n[RF_FFT_RANK_MAX], in[RF_FFT_RANK_MAX], out[RF_FFT_RANK_MAX];
	int status;

	if (f->rank < 1 || f->rank > RF_FFT_RANK_MAX)
		return FFT_INVALID_VALUE;
	if (!find_functions())
		return FFT_NOT_SUPPORTED;
	status = cufft.cufftCreate(&plan->handle);
	if (status)
		return status;
	widen_sizes(n, f->n);
	widen_sizes(in, f->in_embed);
	widen_sizes(out, f->out_embed);
	status = cufft.cufftSetAutoAllocation(plan->handle, 0);
	if (!status)
		status = cufft.cufftXtMakePlanMany(
			plan->handle, (int)f->rank, n, f->embedded ? in : NULL, f->in_stride,
			f->in_distance, (int)f->in_type, f->embedded ? out : NULL, f->out_stride,
			f->out_distance, (int)f->out_type, f->batch, &plan->area_bytes,
			(int)f->execution);
	if (status)
		cufft.cufftDestroy(plan->handle);
	return status;
}

static void drop_beyond(struct hal_device *device, uint32_t most)
{
	struct nvidia_fft_plan **at = &device->fft_plans, *dropped;

	for (; *at && most; most--)
		at = &(*at)->next;
	while ((dropped = *at)) {
		*at = dropped->next;
		cufft.cufftDestroy(dropped->handle);
		free(dropped);
	}
}

/* The plan becomes the first one. */
static int find_plan(struct hal_device *device, const struct rf_fft *fft,
		     struct nvidia_fft_plan **out)
{
	struct nvidia_fft_plan **at = &device->fft_plans, *plan;
	int status;

	while (*at && memcmp(&(*at)->fft, fft, sizeof *fft) != 0)
		at = &(*at)->next;
	plan = *at;
	if (plan) {
		*at = plan->next;
	} else {
		plan = calloc(1, sizeof *plan);
		if (!plan)
			return FFT_INVALID_VALUE;
		plan->fft = *fft;
		status = make_plan(plan);
		if (status) {
			free(plan);
			return status;
		}
	}
	plan->next = device->fft_plans;
	device->fft_plans = *out = plan;
	drop_beyond(device, PLANS_MAX);
	return 0;
}

int nvidia_fft_make(struct hal_stream *s, const struct hal_space *space, const uint64_t *slots,
		    uint32_t count, struct nvidia_answer *answer)
{
	struct nvidia_fft_plan *plan;
	struct rf_fft fft;
	int status;

	(void)space, (void)count;
	memcpy(&fft, slots + 1, sizeof fft);
	status = find_plan(s->device, &fft, &plan);
	answer->of[0] = status ? 0 : plan->area_bytes;
	return status;
}

static void *as_pointer(uint64_t addr) { return (void *)(uintptr_t)addr; }

/* The work area that the program has given was large enough where the plan was made. Another GPU
 * may need more: then it is the device's, for this call. */
int nvidia_fft_execute(struct hal_stream *s, const struct hal_space *space, const uint64_t *slots,
		       uint32_t count, struct nvidia_answer *answer)
{
	const struct nvidia_driver *d = s->device->driver;
	struct nvidia_fft_plan *plan;
	struct rf_fft fft;
	struct rf_fft_exec call;
	CUdeviceptr spare = 0;
	int status;

	(void)answer, (void)count;
	memcpy(&fft, slots + 1, sizeof fft);
	memcpy(&call, (const char *)(slots + 1) + sizeof fft, sizeof call);
	if (!nvidia_space_has(space, call.in) || !nvidia_space_has(space, call.out) ||
	    (call.area_bytes && !nvidia_space_has(space, call.area)))
		return FFT_INVALID_VALUE;
	status = find_plan(s->device, &fft, &plan);
	if (!status && plan->area_bytes > call.area_bytes) {
		if (d->cuMemAllocAsync(&spare, plan->area_bytes, s->stream))
			return FFT_INVALID_VALUE;
		call.area = spare;
	}
	if (!status)
		status = cufft.cufftSetStream(plan->handle, s->stream);
	if (!status && plan->area_bytes)
		status = cufft.cufftSetWorkArea(plan->handle, as_pointer(call.area));
	if (!status)
		status = cufft.cufftXtExec(plan->handle, as_pointer(call.in), as_pointer(call.out),
					   (int)call.direction);
	if (spare && d->cuMemFreeAsync(spare, s->stream) && !status)
		status = FFT_INVALID_VALUE;
	return status;
}

void nvidia_fft_close(struct hal_device *device) { drop_beyond(device, 0); }
