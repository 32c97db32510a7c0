/* cusolver.c: the device's handle of cuSOLVER, and descriptors of its functions that iterate, which
 * are made for one call.
 *
 * Runs in the device thread.
 */
#include <dlfcn.h>
#include <string.h>

#include "calls.h"

static void *symbol(const char *name)
{
	char text[CUDA_TEXT_BYTES];
	void *handle = nvidia_library("cusolver", text, sizeof text);

	return handle ? dlsym(handle, name) : NULL;
}

/* Calls NAME of cuSOLVER with up to two whole numbers or addresses. */
static int solver(const char *name, uint64_t a, uint64_t b)
{
	int (*function)(uint64_t, uint64_t);

	*(void **)&function = symbol(name);
	return function ? function(a, b) : -1;
}

int nvidia_solver_open(struct hal_stream *s, void **handle)
{
	struct hal_device *device = s->device;
	int status = 0;

	if (!device->solver)
		status = solver("cusolverDnCreate", (uint64_t)(uintptr_t)&device->solver, 0);
	if (!status && !device->solver_params)
		status = solver("cusolverDnCreateParams",
				(uint64_t)(uintptr_t)&device->solver_params, 0);
	if (!status)
		status = solver("cusolverDnSetStream", (uint64_t)(uintptr_t)device->solver,
				(uint64_t)(uintptr_t)s->stream);
	*handle = device->solver;
	return status;
}

struct iteration { /* of one kind of descriptor */
	const char *create, *destroy, *tolerance, *sweeps, *sort;
};
static const struct iteration gesvdj = {"cusolverDnCreateGesvdjInfo", "cusolverDnDestroyGesvdjInfo",
					"cusolverDnXgesvdjSetTolerance",
					"cusolverDnXgesvdjSetMaxSweeps",
					"cusolverDnXgesvdjSetSortEig"};
static const struct iteration syevj = {
	"cusolverDnCreateSyevjInfo", "cusolverDnDestroySyevjInfo", "cusolverDnXsyevjSetTolerance",
	"cusolverDnXsyevjSetMaxSweeps", "cusolverDnXsyevjSetSortEig"};

static const struct iteration *iteration_of(char kind) { return kind == 'j' ? &gesvdj : &syevj; }

int nvidia_iteration_make(char kind, const uint64_t *slots, void **made)
{
	const struct iteration *of = iteration_of(kind);
	int (*set_tolerance)(void *, double);
	uint64_t info;
	double tolerance;
	int status;

	*made = NULL;
	if (!(slots[0] & RF_JACOBI_THERE))
		return 0;
	status = solver(of->create, (uint64_t)(uintptr_t)made, 0);
	info = (uint64_t)(uintptr_t)*made;
	memcpy(&tolerance, &slots[1], sizeof tolerance);
	*(void **)&set_tolerance = symbol(of->tolerance);
	if (!status && slots[0] & RF_JACOBI_TOLERANCE)
		status = set_tolerance ? set_tolerance(*made, tolerance) : -1;
	if (!status && slots[0] & RF_JACOBI_SWEEPS)
		status = solver(of->sweeps, info, slots[2]);
	if (!status && slots[0] & RF_JACOBI_SORT)
		status = solver(of->sort, info, slots[3]);
	return status;
}

void nvidia_iteration_forget(char kind, void *made)
{
	if (made)
		solver(iteration_of(kind)->destroy, (uint64_t)(uintptr_t)made, 0);
}

void nvidia_solver_close(struct hal_device *device)
{
	if (device->solver_params)
		solver("cusolverDnDestroyParams", (uint64_t)(uintptr_t)device->solver_params, 0);
	if (device->solver)
		solver("cusolverDnDestroy", (uint64_t)(uintptr_t)device->solver, 0);
	device->solver = device->solver_params = NULL;
}
