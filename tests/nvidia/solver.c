/* solver.c: of the fake driver (fake.h): some of cuSOLVER, as a part of the same library.
 *
 * Factorisations are kernels of the fake's streams, as textbooks have them, in float or double. It
 * is stricter than NVIDIA's: handles and descriptors that it did not make, and memory outside of
 * the window are faults of the caller; the lower triangle and op N only.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

enum { SUCCESS = 0, NO_HANDLE = 1, INVALID = 3 };
enum { R_32F = 0, R_64F = 1 };
#define SWEEPS 15 /* of Jacobi's method, unless a descriptor says how many */

static struct solver {
	CUstream stream;
	bool streamed;
} *solver; /* there is one at a time */
static void *params;
static struct jacobi {
	double tolerance;
	int sweeps, sort;
} *jacobi;

static bool valid(const char *call, const struct solver *handle)
{
	if (handle && handle == solver && handle->streamed)
		return true;
	fake_fault("%s: a handle of another, or without a stream", call);
	return false;
}

static bool shown(const char *call, const void *at, uint64_t bytes)
{
	uint64_t first = (uint64_t)at;

	if (fake_is_window(first) && fake_is_window(first + bytes - 1) &&
	    fake_reachable(first, bytes))
		return true;
	fake_fault("%s: memory at %p", call, at);
	return false;
}

/* ---- what runs: matrices by columns ---- */

struct job { /* of one kernel */
	uint64_t a, b, w, pivots, info;
	int m, n, ld, ldb, columns, sweeps;
	bool wide; /* double */
};

static double get(const struct job *j, uint64_t at, long i)
{
	return j->wide ? ((const double *)at)[i] : (double)((const float *)at)[i];
}

static void put(const struct job *j, uint64_t at, long i, double value)
{
	if (j->wide)
		((double *)at)[i] = value;
	else
		((float *)at)[i] = (float)value;
}

static void factor_cholesky(const uint8_t *bytes)
{
	const struct job *j = (const void *)bytes;

	*(int *)j->info = 0;
	for (long c = 0; c < j->n; c++)
		for (long r = c; r < j->n; r++) {
			double s = get(j, j->a, r + c * j->ld);

			for (long k = 0; k < c; k++)
				s -= get(j, j->a, r + k * j->ld) * get(j, j->a, c + k * j->ld);
			if (r == c && s <= 0) {
				*(int *)j->info = (int)c + 1;
				return;
			}
			put(j, j->a, r + c * j->ld,
			    r == c ? sqrt(s) : s / get(j, j->a, c + c * j->ld));
		}
}

static void swap_rows(const struct job *j, uint64_t at, long ld, long columns, long x, long y)
{
	for (long c = 0; c < columns; c++) {
		double kept = get(j, at, x + c * ld);

		put(j, at, x + c * ld, get(j, at, y + c * ld));
		put(j, at, y + c * ld, kept);
	}
}

static void factor_lu(const uint8_t *bytes)
{
	const struct job *j = (const void *)bytes;

	*(int *)j->info = 0;
	for (long c = 0; c < j->n && c < j->m; c++) {
		long best = c;

		for (long r = c; r < j->m; r++)
			if (fabs(get(j, j->a, r + c * j->ld)) >
			    fabs(get(j, j->a, best + c * j->ld)))
				best = r;
		if (j->pivots)
			((int *)j->pivots)[c] = (int)best + 1;
		swap_rows(j, j->a, j->ld, j->n, c, best);
		for (long r = c + 1; r < j->m; r++) {
			double f = get(j, j->a, r + c * j->ld) / get(j, j->a, c + c * j->ld);

			put(j, j->a, r + c * j->ld, f);
			for (long k = c + 1; k < j->n; k++)
				put(j, j->a, r + k * j->ld,
				    get(j, j->a, r + k * j->ld) - f * get(j, j->a, c + k * j->ld));
		}
	}
}

static void solve_lu(const uint8_t *bytes)
{
	const struct job *j = (const void *)bytes;

	*(int *)j->info = 0;
	for (long r = 0; j->pivots && r < j->n; r++)
		swap_rows(j, j->b, j->ldb, j->columns, r, ((const int *)j->pivots)[r] - 1);
	for (long c = 0; c < j->columns; c++) {
		for (long r = 0; r < j->n; r++)
			for (long k = 0; k < r; k++)
				put(j, j->b, r + c * j->ldb,
				    get(j, j->b, r + c * j->ldb) -
					    get(j, j->a, r + k * j->ld) *
						    get(j, j->b, k + c * j->ldb));
		for (long r = j->n; r--;) {
			double s = get(j, j->b, r + c * j->ldb);

			for (long k = r + 1; k < j->n; k++)
				s -= get(j, j->a, r + k * j->ld) * get(j, j->b, k + c * j->ldb);
			put(j, j->b, r + c * j->ldb, s / get(j, j->a, r + r * j->ld));
		}
	}
}

/* Rotates rows and columns p and q so that their element becomes 0. */
static void rotate(const struct job *j, double *a, long p, long q)
{
	long n = j->n;
	double t, c, s, theta;

	if (a[p + q * n] == 0)
		return;
	theta = (a[q + q * n] - a[p + p * n]) / (2 * a[p + q * n]);
	t = (theta < 0 ? -1 : 1) / (fabs(theta) + sqrt(theta * theta + 1));
	c = 1 / sqrt(t * t + 1);
	s = t * c;
	for (long k = 0; k < n; k++) {
		double x = a[k + p * n], y = a[k + q * n];

		a[k + p * n] = c * x - s * y;
		a[k + q * n] = s * x + c * y;
	}
	for (long k = 0; k < n; k++) {
		double x = a[p + k * n], y = a[q + k * n];

		a[p + k * n] = c * x - s * y;
		a[q + k * n] = s * x + c * y;
	}
}

static int ascending(const void *x, const void *y)
{
	double a = *(const double *)x, b = *(const double *)y;

	return (a > b) - (a < b);
}

static void eigenvalues(const uint8_t *bytes)
{
	const struct job *j = (const void *)bytes;
	long n = j->n;
	double *a = calloc((size_t)(n * n), sizeof *a);

	*(int *)j->info = 0;
	for (long c = 0; c < n; c++)
		for (long r = c; r < n; r++)
			a[r + c * n] = a[c + r * n] = get(j, j->a, r + c * j->ld);
	for (int sweep = 0; sweep < j->sweeps; sweep++)
		for (long p = 0; p < n; p++)
			for (long q = p + 1; q < n; q++)
				rotate(j, a, p, q);
	for (long i = 0; i < n; i++)
		a[i] = a[i + i * n];
	qsort(a, (size_t)n, sizeof *a, ascending);
	for (long i = 0; i < n; i++)
		put(j, j->w, i, a[i]);
	free(a);
}

/* ---- the library: handles and descriptors ---- */

EXPORT int cusolverDnCreate(void **out)
{
	BEGIN(cusolverDnCreate);
	if (solver)
		fake_fault("cusolverDnCreate: a second handle");
	*out = solver = calloc(1, sizeof *solver);
	return fake_end(SUCCESS);
}

EXPORT int cusolverDnDestroy(void *handle)
{
	BEGIN(cusolverDnDestroy);
	if (handle != solver || params || jacobi)
		fake_fault("cusolverDnDestroy: another handle, or descriptors are left");
	free(solver);
	solver = NULL;
	return fake_end(SUCCESS);
}

EXPORT int cusolverDnSetStream(void *handle, CUstream stream)
{
	BEGIN(cusolverDnSetStream);
	if (handle != solver)
		return fake_end(NO_HANDLE);
	solver->stream = stream;
	solver->streamed = true;
	return fake_end(SUCCESS);
}

EXPORT int cusolverDnCreateParams(void **out)
{
	BEGIN(cusolverDnCreateParams);
	*out = params = calloc(1, 1);
	return fake_end(SUCCESS);
}

EXPORT int cusolverDnDestroyParams(void *given)
{
	BEGIN(cusolverDnDestroyParams);
	if (given != params)
		fake_fault("cusolverDnDestroyParams: of another");
	free(params);
	params = NULL;
	return fake_end(SUCCESS);
}

EXPORT int cusolverDnCreateSyevjInfo(void **out)
{
	BEGIN(cusolverDnCreateSyevjInfo);
	*out = jacobi = calloc(1, sizeof *jacobi);
	jacobi->sweeps = SWEEPS;
	return fake_end(SUCCESS);
}

EXPORT int cusolverDnDestroySyevjInfo(void *info)
{
	BEGIN(cusolverDnDestroySyevjInfo);
	if (info != jacobi)
		fake_fault("cusolverDnDestroySyevjInfo: of another");
	free(jacobi);
	jacobi = NULL;
	return fake_end(SUCCESS);
}

EXPORT int cusolverDnXsyevjSetTolerance(void *info, double tolerance)
{
	BEGIN(cusolverDnXsyevjSetTolerance);
	if (info != jacobi || !(tolerance > 0 && tolerance < 1))
		fake_fault("cusolverDnXsyevjSetTolerance: %g", tolerance);
	return fake_end(SUCCESS);
}

EXPORT int cusolverDnXsyevjSetMaxSweeps(void *info, int sweeps)
{
	BEGIN(cusolverDnXsyevjSetMaxSweeps);
	if (info != jacobi)
		return fake_end(INVALID);
	jacobi->sweeps = sweeps;
	return fake_end(SUCCESS);
}

EXPORT int cusolverDnXsyevjSetSortEig(void *info, int sort)
{
	BEGIN(cusolverDnXsyevjSetSortEig);
	return fake_end(info == jacobi && (sort == 0 || sort == 1) ? SUCCESS : INVALID);
}

/* ---- the library: functions ---- */

static int run(const char *call, struct solver *handle, void (*kernel)(const uint8_t *),
	       const struct job *job)
{
	uint64_t size = job->wide ? 8 : 4;
	uint64_t bytes = ((uint64_t)(job->n - 1) * (uint64_t)job->ld + (uint64_t)job->n) * size;

	if (!valid(call, handle))
		return fake_end(NO_HANDLE);
	if (job->n < 1 || job->ld < job->n)
		return fake_end(INVALID);
	if (!shown(call, (void *)job->a, bytes) || !shown(call, (void *)job->info, 4))
		return fake_end(INVALID);
	fake_push_kernel(handle->stream, kernel, job, sizeof *job);
	return fake_end(SUCCESS);
}

static int size(const char *call, struct solver *handle, int n, int *words)
{
	if (!valid(call, handle))
		return fake_end(NO_HANDLE);
	if (n < 1)
		return fake_end(INVALID);
	*words = n * 2;
	return fake_end(SUCCESS);
}

#define OF_TYPE(S, T, is_wide)                                                                     \
	EXPORT int cusolverDn##S##potrf_bufferSize(void *h, int uplo, int n, T *a, int ld,         \
						   int *words)                                     \
	{                                                                                          \
		BEGIN(cusolverDnpotrf_bufferSize);                                                 \
		(void)uplo, (void)a, (void)ld;                                                     \
		return size("potrf_bufferSize", h, n, words);                                      \
	}                                                                                          \
	EXPORT int cusolverDn##S##potrf(void *h, int uplo, int n, T *a, int ld, T *work,           \
					int words, int *info)                                      \
	{                                                                                          \
		struct job j = {.a = (uint64_t)a,                                                  \
				.info = (uint64_t)info,                                            \
				.n = n,                                                            \
				.ld = ld,                                                          \
				.wide = is_wide};                                                  \
		BEGIN(cusolverDnpotrf);                                                            \
		if (uplo != 0 || words != 2 * n || !shown("potrf", work, (uint64_t)words))         \
			return fake_end(INVALID);                                                  \
		return run("potrf", h, factor_cholesky, &j);                                       \
	}                                                                                          \
	EXPORT int cusolverDn##S##getrf_bufferSize(void *h, int m, int n, T *a, int ld,            \
						   int *words)                                     \
	{                                                                                          \
		BEGIN(cusolverDngetrf_bufferSize);                                                 \
		(void)m, (void)a, (void)ld;                                                        \
		return size("getrf_bufferSize", h, n, words);                                      \
	}                                                                                          \
	EXPORT int cusolverDn##S##getrf(void *h, int m, int n, T *a, int ld, T *work, int *pivots, \
					int *info)                                                 \
	{                                                                                          \
		struct job j = {.a = (uint64_t)a,                                                  \
				.info = (uint64_t)info,                                            \
				.m = m,                                                            \
				.n = n,                                                            \
				.ld = ld,                                                          \
				.pivots = (uint64_t)pivots,                                        \
				.wide = is_wide};                                                  \
		BEGIN(cusolverDngetrf);                                                            \
		return shown("getrf", work, 1) ? run("getrf", h, factor_lu, &j)                    \
					       : fake_end(INVALID);                                \
	}                                                                                          \
	EXPORT int cusolverDn##S##getrs(void *h, int op, int n, int columns, const T *a, int ld,   \
					const int *pivots, T *b, int ldb, int *info)               \
	{                                                                                          \
		struct job j = {.a = (uint64_t)a,                                                  \
				.b = (uint64_t)b,                                                  \
				.pivots = (uint64_t)pivots,                                        \
				.info = (uint64_t)info,                                            \
				.n = n,                                                            \
				.ld = ld,                                                          \
				.ldb = ldb,                                                        \
				.columns = columns,                                                \
				.wide = is_wide};                                                  \
		BEGIN(cusolverDngetrs);                                                            \
		if (op || !shown("getrs", b, (uint64_t)(columns * ldb) * sizeof *b))               \
			return fake_end(INVALID);                                                  \
		return run("getrs", h, solve_lu, &j);                                              \
	}                                                                                          \
	EXPORT int cusolverDn##S##syevj_bufferSize(void *h, int vectors, int uplo, int n,          \
						   const T *a, int ld, const T *w, int *words,     \
						   void *info)                                     \
	{                                                                                          \
		BEGIN(cusolverDnsyevj_bufferSize);                                                 \
		(void)vectors, (void)uplo, (void)a, (void)ld, (void)w;                             \
		return info == jacobi ? size("syevj_bufferSize", h, n, words) : fake_end(INVALID); \
	}                                                                                          \
	EXPORT int cusolverDn##S##syevj(void *h, int vectors, int uplo, int n, T *a, int ld, T *w, \
					T *work, int words, int *info, void *given)                \
	{                                                                                          \
		struct job j = {.a = (uint64_t)a,                                                  \
				.w = (uint64_t)w,                                                  \
				.info = (uint64_t)info,                                            \
				.n = n,                                                            \
				.ld = ld,                                                          \
				.wide = is_wide};                                                  \
		BEGIN(cusolverDnsyevj);                                                            \
		if (vectors || uplo || given != jacobi || words != 2 * n ||                        \
		    !shown("syevj", work, 1) || !shown("syevj", w, (uint64_t)n * sizeof *w))       \
			return fake_end(INVALID);                                                  \
		j.sweeps = jacobi->sweeps;                                                         \
		return run("syevj", h, eigenvalues, &j);                                           \
	}
OF_TYPE(S, float, false)
OF_TYPE(D, double, true)

EXPORT int cusolverDnXpotrf_bufferSize(void *h, void *given, int uplo, int64_t n, int type, void *a,
				       int64_t ld, int computed, size_t *device, size_t *host)
{
	int words;

	BEGIN(cusolverDnXpotrf_bufferSize);
	(void)uplo, (void)a, (void)ld, (void)type, (void)computed;
	*device = 256;
	*host = 64;
	return given == params ? size("Xpotrf_bufferSize", h, (int)n, &words) : fake_end(INVALID);
}

EXPORT int cusolverDnXpotrf(void *h, void *given, int uplo, int64_t n, int type, void *a,
			    int64_t ld, int computed, void *on_device, size_t device_bytes,
			    void *on_host, size_t host_bytes, int *info)
{
	struct job j = {.a = (uint64_t)a,
			.info = (uint64_t)info,
			.n = (int)n,
			.ld = (int)ld,
			.wide = type == R_64F};

	BEGIN(cusolverDnXpotrf);
	if (given != params || uplo || computed != type || device_bytes != 256 ||
	    host_bytes != 64 || !shown("Xpotrf", on_device, device_bytes))
		return fake_end(INVALID);
	memset(on_host, 1, host_bytes); /* it is memory of this process */
	return run("Xpotrf", h, factor_cholesky, &j);
}
