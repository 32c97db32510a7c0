/* blas_routines.c: translates each routine of BLAS to calls of the kernels of interpose/blas.
 *
 * Arguments are checked here as in cuBLAS, so that errors are returned at once; the device checks
 * addresses. Errors are cublasStatus_t.
 */
#include "blas.h"

#include <string.h>

#define FAR INT64_MAX
#define TRY(expression)                                                                            \
	do {                                                                                       \
		int status_ = (expression);                                                        \
		if (status_)                                                                       \
			return status_;                                                            \
	} while (0)
#define NEED(condition) TRY((condition) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE)

static int64_t at_least_one(int64_t x) { return x > 1 ? x : 1; }

static bool is_op(int op) { return op >= CUBLAS_OP_N && op <= CUBLAS_OP_C; }

static bool is_triangle(int uplo, int diag)
{
	return (uplo == CUBLAS_FILL_MODE_LOWER || uplo == CUBLAS_FILL_MODE_UPPER) &&
	       (diag == CUBLAS_DIAG_NON_UNIT || diag == CUBLAS_DIAG_UNIT);
}

/* ---- operands ---- */

static struct blas_vector vector_of(const void *at, int64_t step, int64_t batch)
{
	return (struct blas_vector){(uint64_t)at, step, batch};
}

static struct blas_matrix matrix_of(const void *at, int64_t ld, int64_t batch, int op)
{
	return (struct blas_matrix){.at = (uint64_t)at,
				    .ld = ld,
				    .batch = batch,
				    .below = FAR,
				    .above = FAR,
				    .shift = -1,
				    .turned = op != CUBLAS_OP_N,
				    .conj = op == CUBLAS_OP_C};
}

/* One triangle of a matrix of order n, stored as a band of `k` diagonals, or BLAS_FULL, or
 * BLAS_PACKED. */
static struct blas_matrix triangle_stored(const void *at, int64_t ld, int shape, int uplo,
					  int64_t n, int64_t k)
{
	struct blas_matrix x = matrix_of(at, ld, 0, CUBLAS_OP_N);

	x.shape = shape;
	x.upper = uplo == CUBLAS_FILL_MODE_UPPER;
	if (k >= 0) {
		x.below = x.above = k;
		x.shift = x.upper ? k : 0;
	}
	if (k == BLAS_PACKED)
		x.packed = n;
	if (shape == BLAS_TRIANGULAR && x.upper)
		x.below = 0;
	else if (shape == BLAS_TRIANGULAR)
		x.above = 0;
	return x;
}

static bool half_fits(int64_t ld, int64_t n, int64_t k)
{
	return k == BLAS_PACKED || (k == BLAS_FULL ? ld >= at_least_one(n) : ld > k);
}

static struct blas_matrix triangle_of(const void *at, int64_t ld, int uplo, int op, int diag,
				      int64_t n, int64_t k)
{
	struct blas_matrix x = triangle_stored(at, ld, BLAS_TRIANGULAR, uplo, n, k);

	x.unit = diag == CUBLAS_DIAG_UNIT;
	x.turned = op != CUBLAS_OP_N;
	x.conj = op == CUBLAS_OP_C;
	return x;
}

/* ---- level 1 ---- */

int blas_each(const void *handle, int type, int op, int64_t n, const void *alpha, bool real_alpha,
	      void *x, int64_t incx, void *y, int64_t incy)
{
	struct blas_call c;
	TRY(blas_begin(&c, handle, type));
	c.args.op = (uint32_t)op;
	if (op == BLAS_AXPY || op == BLAS_SCAL)
		TRY(blas_alpha(&c, alpha, real_alpha));
	if (n <= 0 || (op == BLAS_SCAL && incx <= 0))
		return CUBLAS_STATUS_SUCCESS;
	c.args.n = n;
	c.args.x = vector_of(x, incx, 0);
	c.args.y = vector_of(y, incy, 0);
	return blas_launch(&c, KERNEL_EACH, n);
}

int blas_reduce(const void *handle, int type, int op, bool conj, int64_t n, const void *x,
		int64_t incx, const void *y, int64_t incy, void *result, size_t bytes)
{
	struct blas_call c;
	TRY(blas_begin(&c, handle, type));
	struct blas_number number = {result,
				     bytes                      ? bytes
				     : op == BLAS_DOT || c.real ? c.bytes
								: c.bytes / 2,
				     false, true, &c.args.result};
	c.args.op = (uint32_t)op;
	c.args.n = n > 0 && (op == BLAS_DOT || incx > 0) ? n : 0;
	c.args.flags |= (conj ? BLAS_CONJ : 0) | (bytes == 8 ? BLAS_WIDE : 0);
	c.args.x = vector_of(x, incx, 0);
	c.args.y = vector_of(y, incy, 0);
	return blas_with_numbers(&c, KERNEL_REDUCE, &number, 1);
}

int blas_rot(const void *handle, int type, int64_t n, void *x, int64_t incx, void *y, int64_t incy,
	     const void *cosine, const void *sine, bool real_sine)
{
	struct blas_call c;
	TRY(blas_begin(&c, handle, type));
	TRY(blas_alpha(&c, cosine, true));
	TRY(blas_beta(&c, sine, real_sine));
	if (n <= 0)
		return CUBLAS_STATUS_SUCCESS;
	c.args.op = BLAS_ROT;
	c.args.n = n;
	c.args.x = vector_of(x, incx, 0);
	c.args.y = vector_of(y, incy, 0);
	return blas_launch(&c, KERNEL_EACH, n);
}

/* Parameters in host memory are copied first; then one block does all the work. */
int blas_rotm(const void *handle, int type, int64_t n, void *x, int64_t incx, void *y, int64_t incy,
	      const void *param)
{
	struct blas_call c;
	TRY(blas_begin(&c, handle, type));
	NEED(param);
	if (n <= 0)
		return CUBLAS_STATUS_SUCCESS;
	c.args.op = BLAS_ROTM;
	c.args.n = n;
	c.args.x = vector_of(x, incx, 0);
	c.args.y = vector_of(y, incy, 0);
	memset(c.args.alpha, 0, sizeof c.args.alpha);
	c.args.result = (uint64_t)param;
	if (c.on_device)
		return blas_launch(&c, KERNEL_EACH, n);
	struct blas_number number = {(void *)param, 5 * c.bytes, true, false, &c.args.result};
	return blas_with_numbers(&c, KERNEL_EACH, &number, 1);
}

int blas_rotg(const void *handle, int type, void *a, void *b, void *cosine, void *sine)
{
	struct blas_call c;
	TRY(blas_begin(&c, handle, type));
	struct blas_number numbers[] = {
		{a, c.bytes, true, true, &c.args.x.at},
		{b, c.bytes, true, true, &c.args.y.at},
		{cosine, c.real ? c.bytes : c.bytes / 2, false, true, &c.args.beta[0]},
		{sine, c.bytes, false, true, &c.args.result},
	};
	c.args.op = BLAS_ROTG;
	return blas_with_numbers(&c, KERNEL_ROTATION, numbers, 4);
}

int blas_rotmg(const void *handle, int type, void *d1, void *d2, void *x1, const void *y1,
	       void *param)
{
	struct blas_call c;
	TRY(blas_begin(&c, handle, type));
	struct blas_number numbers[] = {
		{d1, c.bytes, true, true, &c.args.x.at},
		{d2, c.bytes, true, true, &c.args.alpha[0]},
		{x1, c.bytes, true, true, &c.args.beta[0]},
		{(void *)y1, c.bytes, true, false, &c.args.y.at},
		{param, 5 * c.bytes, true, true, &c.args.result},
	};
	c.args.op = BLAS_ROTMG;
	return blas_with_numbers(&c, KERNEL_ROTATION, numbers, 5);
}

/* Returns the type that all of them have, or -1. */
int blas_one_type(const int *types, size_t count)
{
	for (size_t i = 1; i < count; i++)
		if (types[i] != types[0])
			return -1;
	return types[0];
}

int blas_one_real(int x, int result, int execution)
{
	int real = x == CUDA_C_32F ? CUDA_R_32F : x == CUDA_C_64F ? CUDA_R_64F : x;

	return result == real && (execution == real || execution == x) ? x : -1;
}

/* ---- level 2 ---- */

static int times_vector(struct blas_call *c, int64_t m, int64_t n, const void *alpha,
			const void *beta, struct blas_vector x, struct blas_vector y)
{
	TRY(blas_alpha(c, alpha, false));
	TRY(blas_beta(c, beta, false));
	NEED(x.step && y.step);
	if (!m || !n || !c->args.count)
		return CUBLAS_STATUS_SUCCESS;
	c->args.m = m;
	c->args.n = n;
	c->args.x = x;
	c->args.y = y;
	return blas_launch(c, KERNEL_TIMES_VECTOR, m);
}

int blas_gemv(const void *handle, int type, int trans, int64_t m, int64_t n, const void *alpha,
	      struct operand a, struct operand x, const void *beta, struct operand y, int64_t count,
	      bool listed)
{
	struct blas_call c;
	bool turned = trans != CUBLAS_OP_N;
	TRY(blas_begin(&c, handle, type));
	NEED(is_op(trans) && m >= 0 && n >= 0 && a.ld >= at_least_one(m) && count >= 0);
	c.args.count = count;
	c.args.flags |= listed ? BLAS_LISTED : 0;
	c.args.a = matrix_of(a.at, a.ld, a.stride, trans);
	if (!m || !n) /* as in BLAS: y is unchanged */
		return CUBLAS_STATUS_SUCCESS;
	return times_vector(&c, turned ? n : m, turned ? m : n, alpha, beta,
			    vector_of(x.at, x.ld, x.stride), vector_of(y.at, y.ld, y.stride));
}

int blas_gbmv(const void *handle, int type, int trans, int64_t m, int64_t n, int64_t kl, int64_t ku,
	      const void *alpha, const void *a, int64_t lda, const void *x, int64_t incx,
	      const void *beta, void *y, int64_t incy)
{
	struct blas_call c;
	bool turned = trans != CUBLAS_OP_N;
	TRY(blas_begin(&c, handle, type));
	NEED(is_op(trans) && m >= 0 && n >= 0 && kl >= 0 && ku >= 0 && lda > kl + ku);
	c.args.a = matrix_of(a, lda, 0, trans);
	c.args.a.below = kl;
	c.args.a.above = ku;
	c.args.a.shift = ku;
	return times_vector(&c, turned ? n : m, turned ? m : n, alpha, beta, vector_of(x, incx, 0),
			    vector_of(y, incy, 0));
}

int blas_symv(const void *handle, int type, int shape, int uplo, int64_t n, int64_t k,
	      const void *alpha, const void *a, int64_t lda, const void *x, int64_t incx,
	      const void *beta, void *y, int64_t incy)
{
	struct blas_call c;
	TRY(blas_begin(&c, handle, type));
	NEED(is_triangle(uplo, 0) && n >= 0 && k >= BLAS_PACKED && half_fits(lda, n, k));
	c.args.a = triangle_stored(a, lda, shape, uplo, n, k);
	return times_vector(&c, n, n, alpha, beta, vector_of(x, incx, 0), vector_of(y, incy, 0));
}

int blas_trv(const void *handle, int type, bool solve, int uplo, int trans, int diag, int64_t n,
	     int64_t k, const void *a, int64_t lda, void *x, int64_t incx)
{
	struct blas_call c;
	TRY(blas_begin(&c, handle, type));
	NEED(is_triangle(uplo, diag) && is_op(trans) && n >= 0 && k >= BLAS_PACKED && incx &&
	     half_fits(lda, n, k));
	if (!n)
		return CUBLAS_STATUS_SUCCESS;
	c.args.n = n;
	c.args.a = triangle_of(a, lda, uplo, trans, diag, n, k);
	c.args.x = vector_of(x, incx, 0);
	return blas_launch(&c, solve ? KERNEL_SOLVE_VECTOR : KERNEL_TRIANGLE_TIMES_VECTOR, 1);
}

int blas_ger(const void *handle, int type, bool conj, int64_t m, int64_t n, const void *alpha,
	     const void *x, int64_t incx, const void *y, int64_t incy, void *a, int64_t lda)
{
	struct blas_call c;
	TRY(blas_begin(&c, handle, type));
	TRY(blas_alpha(&c, alpha, false));
	NEED(m >= 0 && n >= 0 && incx && incy && lda >= at_least_one(m));
	if (!m || !n)
		return CUBLAS_STATUS_SUCCESS;
	c.args.m = m;
	c.args.n = n;
	c.args.a = matrix_of(a, lda, 0, CUBLAS_OP_N);
	c.args.x = vector_of(x, incx, 0);
	c.args.y = vector_of(y, incy, 0);
	c.args.flags |= conj ? BLAS_CONJ : 0;
	return blas_launch(&c, KERNEL_UPDATE, m * n);
}

/* An update of rank 1 (y is x) or 2 (BLAS_TWICE). */
int blas_syr(const void *handle, int type, uint32_t flags, int uplo, int64_t n, int64_t k,
	     const void *alpha, const void *x, int64_t incx, const void *y, int64_t incy, void *a,
	     int64_t lda)
{
	struct blas_call c;
	TRY(blas_begin(&c, handle, type));
	TRY(blas_alpha(&c, alpha, flags & BLAS_HERMITIAN && !(flags & BLAS_TWICE)));
	NEED(is_triangle(uplo, 0) && n >= 0 && incx && incy && half_fits(lda, n, k));
	if (!n)
		return CUBLAS_STATUS_SUCCESS;
	c.args.m = c.args.n = n;
	c.args.a = triangle_stored(a, lda, BLAS_SYMMETRIC, uplo, n, k);
	c.args.x = vector_of(x, incx, 0);
	c.args.y = vector_of(y, incy, 0);
	c.args.flags |= flags | (flags & BLAS_HERMITIAN ? BLAS_CONJ : 0);
	return blas_launch(&c, KERNEL_UPDATE, n * n);
}

/* ---- level 3 ---- */

/* The caller has set the factors. */
static int times_matrix(struct blas_call *c, int64_t m, int64_t n, int64_t k, const void *alpha,
			const void *beta, bool real_alpha, bool real_beta)
{
	TRY(blas_alpha(c, alpha, real_alpha));
	TRY(blas_beta(c, beta, real_beta));
	if (!m || !n || !c->args.count)
		return CUBLAS_STATUS_SUCCESS;
	c->args.m = m;
	c->args.n = n;
	c->args.k = k;
	return blas_launch(c, KERNEL_TIMES_MATRIX, m * n);
}

/* gemm for complex numbers; for real ones it is a record (cublas.c). */
int blas_gemm(const void *handle, int type, int transa, int transb, int64_t m, int64_t n, int64_t k,
	      const void *alpha, struct operand a, struct operand b, const void *beta,
	      struct operand c, int64_t count, bool listed)
{
	struct blas_call call;
	TRY(blas_begin(&call, handle, type));
	NEED(is_op(transa) && is_op(transb) && m >= 0 && n >= 0 && k >= 0 && count >= 0 &&
	     a.ld >= at_least_one(transa == CUBLAS_OP_N ? m : k) &&
	     b.ld >= at_least_one(transb == CUBLAS_OP_N ? k : n) && c.ld >= at_least_one(m));
	call.args.count = count;
	call.args.flags |= listed ? BLAS_LISTED : 0;
	call.args.a = matrix_of(a.at, a.ld, a.stride, transa);
	call.args.b = matrix_of(b.at, b.ld, b.stride, transb);
	call.args.c = matrix_of(c.at, c.ld, c.stride, CUBLAS_OP_N);
	return times_matrix(&call, m, n, k, alpha, beta, false, false);
}

int blas_symm(const void *handle, int type, int shape, int side, int uplo, int64_t m, int64_t n,
	      const void *alpha, const void *a, int64_t lda, const void *b, int64_t ldb,
	      const void *beta, void *c, int64_t ldc)
{
	struct blas_call call;
	bool right = side == CUBLAS_SIDE_RIGHT;
	int64_t order = right ? n : m;
	TRY(blas_begin(&call, handle, type));
	NEED((right || side == CUBLAS_SIDE_LEFT) && is_triangle(uplo, 0) && m >= 0 && n >= 0 &&
	     lda >= at_least_one(order) && ldb >= at_least_one(m) && ldc >= at_least_one(m));
	struct blas_matrix folded = triangle_stored(a, lda, shape, uplo, order, BLAS_FULL);
	struct blas_matrix other = matrix_of(b, ldb, 0, CUBLAS_OP_N);
	call.args.a = right ? other : folded;
	call.args.b = right ? folded : other;
	call.args.c = matrix_of(c, ldc, 0, CUBLAS_OP_N);
	return times_matrix(&call, m, n, order, alpha, beta, false, false);
}

/* syrk (B is A), syrkx, syr2k (BLAS_TWICE), and with BLAS_HERMITIAN herk, herkx, her2k. */
int blas_syrk(const void *handle, int type, uint32_t flags, bool real_alpha, int uplo, int trans,
	      int64_t n, int64_t k, const void *alpha, const void *a, int64_t lda, const void *b,
	      int64_t ldb, const void *beta, void *c, int64_t ldc)
{
	struct blas_call call;
	bool hermitian = flags & BLAS_HERMITIAN;
	TRY(blas_begin(&call, handle, type));
	int64_t rows = at_least_one(trans == CUBLAS_OP_N ? n : k);
	NEED(is_triangle(uplo, 0) && is_op(trans) && n >= 0 && k >= 0 && lda >= rows &&
	     ldb >= rows && ldc >= at_least_one(n) &&
	     (call.real || trans != (hermitian ? CUBLAS_OP_T : CUBLAS_OP_C)));
	call.args.flags |= flags | (hermitian ? BLAS_CONJ : 0);
	call.args.a = matrix_of(a, lda, 0, trans);
	call.args.b = matrix_of(b, ldb, 0, trans);
	call.args.b.turned = !call.args.a.turned;
	call.args.b.conj = hermitian ? !call.args.a.conj : 0;
	call.args.c = triangle_stored(c, ldc, BLAS_SYMMETRIC, uplo, n, BLAS_FULL);
	return times_matrix(&call, n, n, k, alpha, beta, real_alpha, hermitian);
}

static int run_triangular(struct blas_call *c, const void *handle, int type, int side, int uplo,
			  int trans, int diag, int64_t m, int64_t n, const void *alpha,
			  const void *a, int64_t lda)
{
	bool right = side == CUBLAS_SIDE_RIGHT;
	int64_t order = right ? n : m;
	TRY(blas_begin(c, handle, type));
	TRY(blas_alpha(c, alpha, false));
	NEED((right || side == CUBLAS_SIDE_LEFT) && is_triangle(uplo, diag) && is_op(trans));
	NEED(m >= 0 && n >= 0 && lda >= at_least_one(order));
	c->args.flags |= right ? BLAS_RIGHT : 0;
	c->args.m = m;
	c->args.n = n;
	c->args.a = triangle_of(a, lda, uplo, trans, diag, order, BLAS_FULL);
	return CUBLAS_STATUS_SUCCESS;
}

int blas_trmm(const void *handle, int type, int side, int uplo, int trans, int diag, int64_t m,
	      int64_t n, const void *alpha, const void *a, int64_t lda, const void *b, int64_t ldb,
	      void *c, int64_t ldc)
{
	struct blas_call call;
	TRY(run_triangular(&call, handle, type, side, uplo, trans, diag, m, n, alpha, a, lda));
	NEED(ldb >= at_least_one(m) && ldc >= at_least_one(m));
	call.args.b = matrix_of(b, ldb, 0, CUBLAS_OP_N);
	call.args.c = matrix_of(c, ldc, 0, CUBLAS_OP_N);
	if (!m || !n)
		return CUBLAS_STATUS_SUCCESS;
	return blas_launch(&call, KERNEL_TRIANGLE_TIMES_MATRIX, side == CUBLAS_SIDE_RIGHT ? m : n);
}

int blas_trsm(const void *handle, int type, int side, int uplo, int trans, int diag, int64_t m,
	      int64_t n, const void *alpha, const void *a, int64_t lda, const void *b, int64_t ldb,
	      int64_t count, bool listed)
{
	struct blas_call call;
	TRY(run_triangular(&call, handle, type, side, uplo, trans, diag, m, n, alpha, a, lda));
	NEED(ldb >= at_least_one(m) && count >= 0);
	call.args.count = count;
	call.args.flags |= listed ? BLAS_LISTED : 0;
	call.args.b = matrix_of(b, ldb, 0, CUBLAS_OP_N);
	if (!m || !n || !count)
		return CUBLAS_STATUS_SUCCESS;
	return blas_launch(&call, KERNEL_SOLVE_MATRIX, side == CUBLAS_SIDE_RIGHT ? m : n);
}

/* ---- LU, of lists of matrices ---- */

static struct blas_matrix listed_matrix(struct blas_call *c, const void *at, int64_t ld)
{
	c->args.flags |= BLAS_LISTED;
	return matrix_of(at, ld, 0, CUBLAS_OP_N);
}

/* The scalar of a call that takes none. */
static void alpha_is_one(struct blas_call *c)
{
	float single = 1;
	double wide = 1;
	bool is_wide = c->type == CUDA_R_64F || c->type == CUDA_C_64F;

	c->args.flags &= ~(uint32_t)BLAS_ON_DEVICE;
	memcpy(c->args.alpha, is_wide ? (void *)&wide : &single,
	       is_wide ? sizeof wide : sizeof single);
}

/* `pivots` (NULL: no rows are swapped) and `infos` are on the device. */
int blas_getrf(const void *handle, int type, int64_t n, const void *a, int64_t lda,
	       const int *pivots, const int *infos, int64_t count)
{
	struct blas_call call;
	TRY(blas_begin(&call, handle, type));
	NEED(n >= 0 && lda >= at_least_one(n) && count >= 0);
	if (!n || !count)
		return CUBLAS_STATUS_SUCCESS;
	call.args.m = call.args.n = n;
	call.args.count = count;
	call.args.a = listed_matrix(&call, a, lda);
	call.args.x = vector_of(pivots, 1, 0);
	call.args.result = (uint64_t)infos;
	return blas_launch(&call, KERNEL_FACTOR, 1);
}

/* The number of the first argument that is wrong, negative, or 0; the handle is not counted. */
static int wrong_getrs(int op, int64_t n, int64_t columns, int64_t lda, int64_t ldb, int64_t count)
{
	return !is_op(op)              ? -1
	       : n < 0                 ? -2
	       : columns < 0           ? -3
	       : lda < at_least_one(n) ? -5
	       : ldb < at_least_one(n) ? -8
	       : count < 0             ? -10
				       : 0;
}

static int swap_rows(struct blas_call *c, const int *pivots, bool backwards)
{
	if (!pivots)
		return CUBLAS_STATUS_SUCCESS;
	c->args.x = vector_of(pivots, 1, 0);
	c->args.flags |= backwards ? BLAS_BACKWARDS : 0;
	return blas_launch(c, KERNEL_SWAP_ROWS, c->args.n);
}

static int solve_half(struct blas_call *c, const void *a, int64_t lda, int op, bool upper)
{
	c->args.a = triangle_of(a, lda, upper ? CUBLAS_FILL_MODE_UPPER : CUBLAS_FILL_MODE_LOWER, op,
				upper ? CUBLAS_DIAG_NON_UNIT : CUBLAS_DIAG_UNIT, c->args.m,
				BLAS_FULL);
	return blas_launch(c, KERNEL_SOLVE_MATRIX, c->args.n);
}

/* `pivots` are on the device, or NULL; `info` is on the host. */
int blas_getrs(const void *handle, int type, int op, int64_t n, int64_t columns, const void *a,
	       int64_t lda, const int *pivots, const void *b, int64_t ldb, int *info, int64_t count)
{
	struct blas_call call;
	bool turned = op != CUBLAS_OP_N;
	TRY(blas_begin(&call, handle, type));
	NEED(info);
	*info = wrong_getrs(op, n, columns, lda, ldb, count);
	NEED(!*info);
	if (!n || !columns || !count)
		return CUBLAS_STATUS_SUCCESS;
	alpha_is_one(&call);
	call.args.m = n;
	call.args.n = columns;
	call.args.count = count;
	call.args.b = listed_matrix(&call, b, ldb);
	if (!turned)
		TRY(swap_rows(&call, pivots, false));
	TRY(solve_half(&call, a, lda, op, turned));
	TRY(solve_half(&call, a, lda, op, !turned));
	return turned ? swap_rows(&call, pivots, true) : CUBLAS_STATUS_SUCCESS;
}

int blas_geam(const void *handle, int type, int transa, int transb, int64_t m, int64_t n,
	      const void *alpha, const void *a, int64_t lda, const void *beta, const void *b,
	      int64_t ldb, void *c, int64_t ldc)
{
	struct blas_call call;
	TRY(blas_begin(&call, handle, type));
	TRY(blas_alpha(&call, alpha, false));
	TRY(blas_beta(&call, beta, false));
	NEED(is_op(transa) && is_op(transb) && m >= 0 && n >= 0 && ldc >= at_least_one(m) &&
	     lda >= at_least_one(transa == CUBLAS_OP_N ? m : n) &&
	     ldb >= at_least_one(transb == CUBLAS_OP_N ? m : n));
	NEED((c != a || (lda == ldc && transa == CUBLAS_OP_N)) &&
	     (c != b || (ldb == ldc && transb == CUBLAS_OP_N)));
	if (!m || !n)
		return CUBLAS_STATUS_SUCCESS;
	call.args.op = BLAS_GEAM;
	call.args.m = m;
	call.args.n = n;
	call.args.a = matrix_of(a, lda, 0, transa);
	call.args.b = matrix_of(b, ldb, 0, transb);
	call.args.c = matrix_of(c, ldc, 0, CUBLAS_OP_N);
	return blas_launch(&call, KERNEL_COMBINE, m * n);
}

int blas_dgmm(const void *handle, int type, int side, int64_t m, int64_t n, const void *a,
	      int64_t lda, const void *x, int64_t incx, void *c, int64_t ldc)
{
	struct blas_call call;
	bool right = side == CUBLAS_SIDE_RIGHT;
	TRY(blas_begin(&call, handle, type));
	NEED((right || side == CUBLAS_SIDE_LEFT) && m >= 0 && n >= 0 && lda >= at_least_one(m) &&
	     ldc >= at_least_one(m));
	if (!m || !n)
		return CUBLAS_STATUS_SUCCESS;
	call.args.op = BLAS_DGMM;
	call.args.flags |= right ? BLAS_RIGHT : 0;
	call.args.m = m;
	call.args.n = n;
	call.args.a = matrix_of(a, lda, 0, CUBLAS_OP_N);
	call.args.b = call.args.a;
	call.args.c = matrix_of(c, ldc, 0, CUBLAS_OP_N);
	call.args.x = vector_of(x, incx, 0);
	return blas_launch(&call, KERNEL_COMBINE, m * n);
}
