/* routines.c: of the fake driver (fake.h): cuBLAS's routines of vectors, and what all of its
 * routines share. Stricter than NVIDIA's: a factor in the wrong memory, and a call that would make
 * its caller wait for the GPU, are faults.
 */
#include <math.h>
#include <string.h>

#include "routines.h"

/* ---- numbers ---- */

int real_of(int type)
{
	return type == FAKE_C_32F ? CUDA_R_32F : type == FAKE_C_64F ? CUDA_R_64F : type;
}

uint32_t number_bytes(int type)
{
	return fake_type_bytes(real_of(type)) * (type == real_of(type) ? 1 : 2);
}

number number_at(uint64_t at, int type)
{
	double real = fake_load(at, real_of(type));

	return type == real_of(type)
		       ? real
		       : real + fake_load(at + number_bytes(type) / 2, real_of(type)) * I;
}

void put_number(uint64_t at, int type, number x)
{
	fake_store(at, real_of(type), creal(x));
	if (type != real_of(type))
		fake_store(at + number_bytes(type) / 2, real_of(type), cimag(x));
}

/* ---- calls ---- */

int64_t whole_of(const struct call *c, int parameter)
{
	return c->wide ? (int64_t)c->at[parameter] : (int32_t)c->at[parameter];
}

number factor_of(const struct call *c, int parameter)
{
	int type = c->kinds[parameter - 1] == 'r' ? real_of(c->type) : c->type;

	return c->on_device ? number_at(c->at[parameter], type) : c->factors[parameter];
}

static void run(const uint8_t *params)
{
	const struct call *c = (const void *)params;

	c->compute(c);
}

/* How many bytes a parameter of this kind has in memory. */
static uint64_t bytes_of(const struct call *c, char kind)
{
	uint32_t bytes = number_bytes(c->type);

	switch (kind) {
	case 'r': return number_bytes(real_of(c->type));
	case 'U':
	case 'V': return 5ull * bytes;
	case 'p':
	case 'y': return 1;
	default: return bytes;
	}
}

/* Is a parameter what its kind says? */
static bool is_right(struct call *c, int i, char kind)
{
	uint64_t at = c->at[i];

	if (strchr("nel", kind))
		return true;
	if (kind == 'h')
		return !fake_is_window(at);
	if (kind == 'p')
		return !at || fake_shown(at, 1);
	if (c->on_device)
		return fake_shown(at, bytes_of(c, kind));
	if (fake_is_window(at) || kind == 'y')
		return false;
	if (kind == 'a' || kind == 'r')
		c->factors[i] = number_at(at, kind == 'r' ? real_of(c->type) : c->type);
	return true;
}

int fake_routine(const char *name, struct call *c, const uint64_t *parameters)
{
	int error = (int)fake_enter(name, true);
	CUstream stream;

	if (error)
		return error;
	memcpy(c->at, parameters, sizeof c->at);
	if (!fake_cublas_begin(name, (void *)parameters[0], &stream, &c->on_device))
		return fake_end(CUBLAS_STATUS_NOT_INITIALIZED);
	for (int i = 1; c->kinds[i - 1]; i++) {
		if (!is_right(c, i, c->kinds[i - 1]))
			fake_fault("%s: parameter %d", name, i + 1);
		if (c->kinds[i - 1] == 'h')
			*(int *)c->at[i] = 0;
	}
	if (c->on_device || !strpbrk(c->kinds, "uUV"))
		fake_push_kernel(stream, run, c, sizeof *c);
	else if (strchr(c->kinds,
			'p')) { /* five numbers of the host that work on the device reads */
		memcpy(c->five, (void *)c->at[strlen(c->kinds)], sizeof c->five);
		c->at[strlen(c->kinds)] = 0;
		fake_push_kernel(stream, run, c, sizeof *c);
	} else
		c->compute(c);
	return fake_end(CUBLAS_STATUS_SUCCESS);
}

/* ---- vectors ---- */

struct vector {
	uint64_t at;
	int64_t step, n;
	int type;
};

static struct vector vector_of(const struct call *c, int parameter, int64_t n)
{
	return (struct vector){c->at[parameter], whole_of(c, parameter + 1), n, c->type};
}

static uint64_t element(const struct vector *v, int64_t i)
{
	int64_t at = v->step > 0 ? i * v->step : (i - v->n + 1) * v->step;

	return v->at + (uint64_t)at * number_bytes(v->type);
}

static number get(const struct vector *v, int64_t i) { return number_at(element(v, i), v->type); }

static void put(const struct vector *v, int64_t i, number x)
{
	put_number(element(v, i), v->type, x);
}

enum { AXPY, COPY, SWAP };
static void axpy(const struct call *c) /* n, x, y, with a factor in between */
{
	int first = c->variant == AXPY ? 3 : 2;
	struct vector x = vector_of(c, first, whole_of(c, 1));
	struct vector y = vector_of(c, first + 2, x.n);

	for (int64_t i = 0; i < x.n; i++) {
		number a = get(&x, i), b = c->variant == COPY ? 0 : get(&y, i);

		put(&y, i, c->variant == AXPY ? factor_of(c, 2) * a + b : a);
		if (c->variant == SWAP)
			put(&x, i, b);
	}
}
FOUR(axpy_v2, "napnpn", axpy, AXPY)
FOUR(copy_v2, "npnpn", axpy, COPY)
FOUR(swap_v2, "npnpn", axpy, SWAP)

static void scal(const struct call *c)
{
	struct vector x = vector_of(c, 3, whole_of(c, 1));

	for (int64_t i = 0; i < x.n && x.step > 0; i++)
		put(&x, i, factor_of(c, 2) * get(&x, i));
}
FOUR(scal_v2, "napn", scal, 0)
BOTH(cublasCsscal_v2, FAKE_C_32F, "nrpn", scal, 0)
BOTH(cublasZdscal_v2, FAKE_C_64F, "nrpn", scal, 0)

static void dot(const struct call *c)
{
	struct vector x = vector_of(c, 2, whole_of(c, 1)), y = vector_of(c, 4, x.n);
	number sum = 0;

	for (int64_t i = 0; i < x.n; i++)
		sum += (c->variant ? conj(get(&x, i)) : get(&x, i)) * get(&y, i);
	put_number(c->at[6], c->type, sum);
}
REALS(dot_v2, "npnpny", dot, false)
PAIRS(dotu_v2, "npnpny", dot, false)
PAIRS(dotc_v2, "npnpny", dot, true)

static double size_of(number x) { return fabs(creal(x)) + fabs(cimag(x)); }

enum { NRM2, ASUM };
static void norm(const struct call *c)
{
	struct vector x = vector_of(c, 2, whole_of(c, 1));
	double sum = 0;

	for (int64_t i = 0; i < x.n; i++)
		sum += c->variant == ASUM ? size_of(get(&x, i)) : pow(cabs(get(&x, i)), 2);
	put_number(c->at[4], real_of(c->type), c->variant == ASUM ? sum : sqrt(sum));
}
REALS(nrm2_v2, "npny", norm, NRM2)
BOTH(cublasScnrm2_v2, FAKE_C_32F, "npny", norm, NRM2)
BOTH(cublasDznrm2_v2, FAKE_C_64F, "npny", norm, NRM2)
REALS(asum_v2, "npny", norm, ASUM)
BOTH(cublasScasum_v2, FAKE_C_32F, "npny", norm, ASUM)
BOTH(cublasDzasum_v2, FAKE_C_64F, "npny", norm, ASUM)

static void place_of_most(const struct call *c) /* or, by the variant, of least */
{
	struct vector x = vector_of(c, 2, whole_of(c, 1));
	int64_t best = 0, sign = c->variant;

	for (int64_t i = 1; i < x.n; i++)
		if ((double)sign * size_of(get(&x, i)) > (double)sign * size_of(get(&x, best)))
			best = i;
	best += x.n > 0;
	memcpy((void *)c->at[4], &best, c->wide ? 8 : 4);
}
#define PLACES(name, sign)                                                                         \
	BOTH(cublasIs##name, CUDA_R_32F, "npny", place_of_most, sign)                              \
	BOTH(cublasId##name, CUDA_R_64F, "npny", place_of_most, sign)                              \
	BOTH(cublasIc##name, FAKE_C_32F, "npny", place_of_most, sign)                              \
	BOTH(cublasIz##name, FAKE_C_64F, "npny", place_of_most, sign)
PLACES(amax_v2, 1)
PLACES(amin_v2, -1)

/* ---- rotations ---- */

static void rotate(const struct call *c, const number h[4])
{
	struct vector x = vector_of(c, 2, whole_of(c, 1)), y = vector_of(c, 4, x.n);

	for (int64_t i = 0; i < x.n; i++) {
		number a = get(&x, i), b = get(&y, i);

		put(&x, i, h[0] * a + h[1] * b);
		put(&y, i, h[2] * a + h[3] * b);
	}
}

static void rot(const struct call *c)
{
	number cosine = factor_of(c, 6), sine = factor_of(c, 7);

	rotate(c, (number[]){cosine, sine, -conj(sine), cosine});
}
FOUR(rot_v2, "npnpnra", rot, 0)
BOTH(cublasCsrot_v2, FAKE_C_32F, "npnpnrr", rot, 0)
BOTH(cublasZdrot_v2, FAKE_C_64F, "npnpnrr", rot, 0)

static void rotg(const struct call *c)
{
	number a = number_at(c->at[1], c->type), b = number_at(c->at[2], c->type), sine = 1, r = b;
	double norm = sqrt(pow(cabs(a), 2) + pow(cabs(b), 2)), cosine = 0;

	if (cabs(a) > 0) {
		cosine = cabs(a) / norm;
		sine = a / cabs(a) * conj(b) / norm;
		r = a / cabs(a) * norm;
	}
	put_number(c->at[1], c->type, r);
	put_number(c->at[3], real_of(c->type), cosine);
	put_number(c->at[4], c->type, sine);
}
#define ROTG(letter, TYPE) ENTRY(cublas##letter##rotg_v2, TYPE, false, "uuuu", rotg, 0)
ROTG(S, CUDA_R_32F)
ROTG(D, CUDA_R_64F)
ROTG(C, FAKE_C_32F)
ROTG(Z, FAKE_C_64F)

static void rotm(const struct call *c)
{
	uint64_t at = c->at[6] ? c->at[6] : (uint64_t)c->five;
	number p[5];

	for (uint32_t i = 0; i < 5; i++)
		p[i] = number_at(at + i * number_bytes(c->type), c->type);
	switch ((int)creal(p[0])) {
	case -1: rotate(c, (number[]){p[1], p[3], p[2], p[4]}); break;
	case 0: rotate(c, (number[]){1, p[3], p[2], 1}); break;
	case 1: rotate(c, (number[]){p[1], 1, -1, p[4]}); break;
	default: break;
	}
}
REALS(rotm_v2, "npnpnV", rotm, 0)

/* Without the rescaling of very small and large numbers, except that of one small d1. */
static void rotmg(const struct call *c)
{
	double v[4], h[5] = {-2}, u;
	double *d1 = &v[0], *d2 = &v[1], *x1 = &v[2], y1;

	for (int i = 0; i < 4; i++)
		v[i] = creal(number_at(c->at[1 + i], c->type));
	y1 = v[3];
	if (fabs(*d1 * *x1 * *x1) > fabs(*d2 * y1 * y1)) {
		h[2] = -y1 / *x1;
		h[3] = *d2 * y1 / (*d1 * *x1);
		u = 1 - h[3] * h[2];
		h[0] = 0;
		*d1 /= u;
		*d2 /= u;
		*x1 *= u;
	} else {
		h[1] = *d1 * *x1 / (*d2 * y1);
		h[4] = *x1 / y1;
		u = 1 + h[1] * h[4];
		h[0] = 1;
		*x1 = y1 * u;
		u = *d2 / u;
		*d2 = *d1 / (1 + h[1] * h[4]);
		*d1 = u;
	}
	for (int i = 0; i < 3; i++)
		put_number(c->at[1 + i], c->type, v[i]);
	for (uint32_t i = 0; i < 5; i++)
		put_number(c->at[5] + i * number_bytes(c->type), c->type, h[i]);
}
ENTRY(cublasSrotmg_v2, CUDA_R_32F, false, "uuuuU", rotmg, 0)
ENTRY(cublasDrotmg_v2, CUDA_R_64F, false, "uuuuU", rotmg, 0)

/* ---- the same by cudaDataType ---- */

struct by_type {
	struct call call;
	int same[4]; /* parameters that have the type of the numbers */
	int real;    /* one that has their real type */
	int execution;
	int order[8]; /* the parameters of the function whose type is in its name */
};

static bool is_supported(const struct by_type *f, const uint64_t *a)
{
	int type = (int)a[f->same[0]], execution = (int)a[f->execution];
	bool half = type == CUDA_R_16F || type == CUDA_R_16BF;

	for (int i = 1; f->same[i]; i++)
		if ((int)a[f->same[i]] != type)
			return false;
	if (f->real && (int)a[f->real] != real_of(type))
		return false;
	if (half)
		return f->call.compute == dot && execution == CUDA_R_32F;
	return (type == real_of(type) ? type <= CUDA_R_64F : type <= FAKE_C_64F) &&
	       (execution == type || execution == real_of(type));
}

static int call_by_type(const char *name, const struct by_type *f, const uint64_t *a)
{
	struct call call = f->call;
	uint64_t parameters[PARAMETERS] = {a[0]};

	if (!is_supported(f, a))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	call.type = (int)a[f->same[0]];
	for (int i = 0; f->order[i]; i++)
		parameters[i + 1] = a[f->order[i]];
	return fake_routine(name, &call, parameters);
}

#define LIST(...) {__VA_ARGS__}
#define TYPED_ENTRY(symbol, WIDE, kinds, function, variant, same, real, execution, order)          \
	EXPORT int symbol(N a, N b, N c, N d, N e, N f, N g, N h, N i, N j, N k, N l)              \
	{                                                                                          \
		const uint64_t all[PARAMETERS] = {a, b, c, d, e, f, g, h, i, j, k, l};             \
		struct by_type by = {{function, kinds, 0, variant, .wide = WIDE},                  \
				     LIST same,                                                    \
				     real,                                                         \
				     execution,                                                    \
				     LIST order};                                                  \
		return call_by_type(#symbol, &by, all);                                            \
	}
#define BY_TYPE(symbol, ...)                                                                       \
	TYPED_ENTRY(symbol, false, __VA_ARGS__) TYPED_ENTRY(symbol##_64, true, __VA_ARGS__)
BY_TYPE(cublasAxpyEx, "napnpn", axpy, AXPY, (3, 5, 8), 0, 10, (1, 2, 4, 6, 7, 9))
BY_TYPE(cublasScalEx, "napn", scal, 0, (3, 5), 0, 7, (1, 2, 4, 6))
BY_TYPE(cublasDotEx, "npnpny", dot, false, (3, 6, 9), 0, 10, (1, 2, 4, 5, 7, 8))
BY_TYPE(cublasDotcEx, "npnpny", dot, true, (3, 6, 9), 0, 10, (1, 2, 4, 5, 7, 8))
BY_TYPE(cublasNrm2Ex, "npny", norm, NRM2, (3), 6, 7, (1, 2, 4, 5))
