/* solver.c: handles and descriptors of cuSOLVER. Its functions are NVIDIA's own, called in the
 * proxy (remote.c); errors are cusolverStatus_t.
 */
#include <stdlib.h>

#include "bodies.h"

enum { SUCCESS = 0, NO_HANDLE = 1, ALLOC_FAILED = 2, INVALID = 3, INTERNAL = 7, REFUSED = 9 };

struct remote_library remote_cusolver = {
	.image = RF_LIBRARY_TEXT "cusolver",
	.without = "not supported by rankfold on this device; factorise and solve on the CPU (in "
		   "PyTorch, with x.cpu())",
	.handles = HANDLE_SOLVER,
	.status = {NO_HANDLE, INVALID, REFUSED, INTERNAL},
};

int solver_create(void **out)
{
	struct handle *h;
	int status;

	if (!out)
		return INVALID;
	status = remote_ready(&remote_cusolver, "cusolverDnCreate");
	if (status)
		return status;
	h = handle_new(HANDLE_SOLVER, context_owner());
	if (!h)
		return ALLOC_FAILED;
	*out = (void *)h->number;
	return SUCCESS;
}

int solver_destroy(const void *handle)
{
	struct handle *h = handle_get(HANDLE_SOLVER, handle);

	if (!h)
		return NO_HANDLE;
	handle_drop(h);
	return SUCCESS;
}

int solver_set_stream(const void *handle, void *stream)
{
	struct handle *h = handle_get(HANDLE_SOLVER, handle);
	uint64_t number;

	if (!h)
		return NO_HANDLE;
	if (stream_number(stream, &number))
		return INVALID;
	h->stream = stream;
	return SUCCESS;
}

int solver_get_stream(const void *handle, void **stream)
{
	const struct handle *h = handle_get(HANDLE_SOLVER, handle);

	if (!h)
		return NO_HANDLE;
	if (!stream)
		return INVALID;
	*stream = h->stream;
	return SUCCESS;
}

/* ---- descriptors: memory of the client, to which the program has the address ---- */

static int create(void **out, size_t bytes)
{
	if (!out)
		return INVALID;
	*out = calloc(1, bytes);
	return *out ? SUCCESS : ALLOC_FAILED;
}

/* Nothing is set: cusolverDnSetAdvOptions is refused. */
int solver_params_create(void **out) { return create(out, 1); }

int solver_params_destroy(void *params)
{
	free(params);
	return SUCCESS;
}

int jacobi_create(void **out) { return create(out, sizeof(struct jacobi)); }

int jacobi_destroy(void *info)
{
	free(info);
	return SUCCESS;
}

static int note(struct jacobi *j, uint64_t bit)
{
	if (!j)
		return NO_HANDLE;
	j->set |= bit;
	return SUCCESS;
}

int jacobi_set_tolerance(void *info, double tolerance)
{
	struct jacobi *j = info;
	int status = note(j, RF_JACOBI_TOLERANCE);

	if (!status)
		j->tolerance = tolerance;
	return status;
}

int jacobi_set_sweeps(void *info, int sweeps)
{
	struct jacobi *j = info;
	int status = note(j, RF_JACOBI_SWEEPS);

	if (!status)
		j->sweeps = sweeps;
	return status;
}

int jacobi_set_sort(void *info, int sort)
{
	struct jacobi *j = info;
	int status = note(j, RF_JACOBI_SORT);

	if (!status)
		j->sort = sort;
	return status;
}
