/* stage.c: what all works need to be submitted: pinned buffers, host functions, errors of calls. */
#include "issue.h"

bool issue_is_failed(const struct hal_space *space)
{
	return space && atomic_load(&((struct hal_space *)space)->error);
}

/* Attributes the error of a call for `space` (or NULL) to that space, unless the context is
 * lost. */
enum issued issue_check(struct hal_stream *s, struct hal_space *space, const char *what,
			CUresult error)
{
	struct hal_device *device = s->device;
	CUresult alive;

	if (!error)
		return ALL;
	alive = device->driver->cuStreamQuery(device->clear_stream);
	if ((alive && alive != CUDA_ERROR_NOT_READY) || !space)
		nvidia_lose(device, (int)(alive && alive != CUDA_ERROR_NOT_READY ? alive : error),
			    "%s: %s", what, nvidia_error_name(device, error));
	else
		nvidia_space_fail(space, (int)error, "%s: %s", what,
				  nvidia_error_name(device, error));
	return FAILED;
}

/* After a device is lost, its kernels may still end and host functions after them may run; the
 * memory that they were for may have another owner by then. */
bool issue_given_up(void)
{
	const struct hal_device *device = atomic_load(&nvidia_open_device);

	return !device || atomic_load(&device->lost);
}

void issue_stage_free(void *arg) { atomic_store(&((struct nvidia_stage *)arg)->busy, false); }

CUresult issue_host_function(const struct hal_stream *s, CUhostFn function, void *arg)
{
	return s->device->driver->cuLaunchHostFunc(s->stream, function, arg);
}

/* After a kernel only half of the stages are available, because the kernel may wait for a copy in
 * another stream. */
struct nvidia_stage *issue_take_stage(const struct hal_stream *s, bool waits)
{
	struct hal_device *device = s->device;
	bool behind = waits || nvidia_completed(s) < s->last_kernel;
	uint32_t count = behind ? CUDA_STAGES / 2 : CUDA_STAGES;

	for (uint32_t i = 0; i < count; i++)
		if (!atomic_load(&device->stages[i].busy)) {
			atomic_store(&device->stages[i].busy, true);
			return &device->stages[i];
		}
	return NULL;
}
