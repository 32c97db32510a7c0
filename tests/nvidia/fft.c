/* fft.c: of the fake driver (fake.h): a cuFFT, as a part of the same library.
 *
 * Transforms are kernels of the fake's streams: sums in double, as the definition says. It is
 * stricter than NVIDIA's: plans that are left, a stream or a work area that is not set for a
 * transform, and memory outside of the window and of the stream's own are faults of the caller.
 */
#include <complex.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

enum { R_32F = 0, R_64F = 1, C_32F = 4, C_64F = 5 };
enum { SUCCESS = 0, INVALID_PLAN = 1, INVALID_TYPE = 3, INVALID_VALUE = 4 };
#define PLANS 1024
#define AREA 512 /* bytes of each plan's work area */

struct plan {
	bool live, made, streamed;
	int rank, in_type, out_type;
	long long n[3], batch;
	long long in_embed[3], in_stride, in_distance, out_embed[3], out_stride, out_distance;
	CUstream stream;
	uint64_t area;
};
static struct plan plans[PLANS];

struct transform { /* by value: what runs may outlive the plan */
	struct plan plan;
	uint64_t in, out;
	int direction;
};

static struct plan *plan_of(int number)
{
	if (number > 0 && number < PLANS && plans[number].live)
		return &plans[number];
	fake_fault("cufft: plan %d", number);
	return NULL;
}

static bool is_complex(int type) { return type == C_32F || type == C_64F; }

static uint64_t bytes_of(int type) { return type == C_64F ? 16 : type == R_32F ? 4 : 8; }

/* ---- sizes: of one side of a plan ---- */

struct side {
	int type;
	long long n[3], embed[3], stride, distance; /* n: how many elements are stored */
};

/* The complex side of a transform from or to real numbers has half of the last dimension. */
static struct side side_of(const struct plan *p, bool out)
{
	struct side s = {.type = out ? p->out_type : p->in_type};
	bool half = is_complex(s.type) && !is_complex(out ? p->in_type : p->out_type);

	memcpy(s.n, p->n, sizeof s.n);
	if (half)
		s.n[p->rank - 1] = s.n[p->rank - 1] / 2 + 1;
	memcpy(s.embed, out ? p->out_embed : p->in_embed, sizeof s.embed);
	s.stride = out ? p->out_stride : p->in_stride;
	s.distance = out ? p->out_distance : p->in_distance;
	if (!s.stride) { /* packed */
		memcpy(s.embed, s.n, sizeof s.embed);
		s.stride = s.distance = 1;
		for (int i = 0; i < p->rank; i++)
			s.distance *= s.n[i];
	}
	return s;
}

static uint64_t element(const struct plan *p, const struct side *s, long long b, const long long *i)
{
	long long at = 0;

	for (int d = 0; d < p->rank; d++)
		at = at * (d ? s->embed[d] : 1) + i[d];
	return (uint64_t)(b * s->distance + at * s->stride) * bytes_of(s->type);
}

static double complex get(uint64_t at, int type)
{
	switch (type) {
	case R_32F: return *(const float *)at;
	case R_64F: return *(const double *)at;
	case C_32F: return *(const float complex *)at;
	default: return *(const double complex *)at;
	}
}

static void put(uint64_t at, int type, double complex value)
{
	switch (type) {
	case R_32F: *(float *)at = (float)creal(value); break;
	case R_64F: *(double *)at = creal(value); break;
	case C_32F: *(float complex *)at = (float complex)value; break;
	default: *(double complex *)at = value;
	}
}

/* ---- the definition ---- */

static bool step(const struct plan *p, const long long *n, long long *i)
{
	for (int d = p->rank; d--;) {
		if (++i[d] < n[d])
			return true;
		i[d] = 0;
	}
	return false;
}

/* An element of the input; symmetry gives the missing half of a spectrum. */
static double complex input(const struct transform *t, const struct side *in, long long b,
			    const long long *i)
{
	long long at[3] = {i[0], i[1], i[2]};
	int last = t->plan.rank - 1;

	if (i[last] < in->n[last])
		return get(t->in + element(&t->plan, in, b, i), in->type);
	for (int d = 0; d < t->plan.rank; d++)
		at[d] = (t->plan.n[d] - i[d]) % t->plan.n[d];
	return conj(get(t->in + element(&t->plan, in, b, at), in->type));
}

static double complex sum(const struct transform *t, const struct side *in, long long b,
			  const long long *k)
{
	double complex total = 0;
	long long i[3] = {0};

	do {
		double turn = 0;

		for (int d = 0; d < t->plan.rank; d++)
			turn += (double)(i[d] * k[d] % t->plan.n[d]) / (double)t->plan.n[d];
		total += input(t, in, b, i) * cexp(2 * M_PI * I * turn * t->direction);
	} while (step(&t->plan, t->plan.n, i));
	return total;
}

static void transform(const uint8_t *params)
{
	const struct transform *t = (const void *)params;
	struct side in = side_of(&t->plan, false), out = side_of(&t->plan, true);
	long long count = 1, at = 0;
	double complex *results;

	for (int d = 0; d < t->plan.rank; d++)
		count *= out.n[d];
	results = calloc((size_t)(count * t->plan.batch), sizeof *results); /* it may be in place */
	for (long long b = 0; b < t->plan.batch; b++) {
		long long k[3] = {0};

		do
			results[at++] = sum(t, &in, b, k);
		while (step(&t->plan, out.n, k));
	}
	at = 0;
	for (long long b = 0; b < t->plan.batch; b++) {
		long long k[3] = {0};

		do
			put(t->out + element(&t->plan, &out, b, k), out.type, results[at++]);
		while (step(&t->plan, out.n, k));
	}
	free(results);
}

/* ---- the library ---- */

EXPORT int cufftCreate(int *out)
{
	BEGIN(cufftCreate);
	for (*out = 1; *out < PLANS && plans[*out].live; ++*out)
		;
	if (*out == PLANS)
		return fake_end(INVALID_PLAN);
	plans[*out] = (struct plan){.live = true};
	return fake_end(SUCCESS);
}

EXPORT int cufftDestroy(int number)
{
	struct plan *p;

	BEGIN(cufftDestroy);
	p = plan_of(number);
	if (p)
		p->live = false;
	return fake_end(p ? SUCCESS : INVALID_PLAN);
}

EXPORT int cufftSetAutoAllocation(int number, int automatic)
{
	BEGIN(cufftSetAutoAllocation);
	if (automatic)
		fake_fault("cufftSetAutoAllocation: memory that is no rank's");
	return fake_end(plan_of(number) ? SUCCESS : INVALID_PLAN);
}

EXPORT int cufftXtMakePlanMany(int number, int rank, long long *n, long long *in_embed,
			       long long in_stride, long long in_distance, int in_type,
			       long long *out_embed, long long out_stride, long long out_distance,
			       int out_type, long long batch, size_t *bytes, int execution)
{
	struct plan *p;

	BEGIN(cufftXtMakePlanMany);
	p = plan_of(number);
	if (!p || p->made || rank < 1 || rank > 3 || batch < 1)
		return fake_end(INVALID_PLAN);
	if (execution != C_32F && execution != C_64F)
		return fake_end(INVALID_TYPE); /* halves, which this fake does not know */
	p->made = true;
	p->rank = rank;
	p->batch = batch;
	p->in_type = in_type;
	p->out_type = out_type;
	for (int d = 0; d < rank; d++) {
		if (n[d] < 1)
			return fake_end(INVALID_VALUE);
		p->n[d] = n[d];
		if (in_embed && out_embed) {
			p->in_embed[d] = in_embed[d];
			p->out_embed[d] = out_embed[d];
		}
	}
	if (in_embed && out_embed) {
		p->in_stride = in_stride;
		p->in_distance = in_distance;
		p->out_stride = out_stride;
		p->out_distance = out_distance;
	}
	*bytes = AREA;
	return fake_end(SUCCESS);
}

EXPORT int cufftSetStream(int number, CUstream stream)
{
	struct plan *p;

	BEGIN(cufftSetStream);
	p = plan_of(number);
	if (!p)
		return fake_end(INVALID_PLAN);
	p->stream = stream;
	p->streamed = true;
	return fake_end(SUCCESS);
}

EXPORT int cufftSetWorkArea(int number, void *area)
{
	struct plan *p;

	BEGIN(cufftSetWorkArea);
	p = plan_of(number);
	if (!p)
		return fake_end(INVALID_PLAN);
	p->area = (uint64_t)area;
	return fake_end(SUCCESS);
}

static bool shown(uint64_t at, uint64_t bytes)
{
	return fake_is_spare(at, bytes) || (fake_is_window(at) && fake_reachable(at, bytes));
}

static bool side_shown(const struct plan *p, bool out, uint64_t at)
{
	struct side s = side_of(p, out);
	long long last[3] = {s.n[0] - 1, s.n[1] - 1, s.n[2] - 1};

	return at % bytes_of(s.type) == 0 &&
	       shown(at, element(p, &s, p->batch - 1, last) + bytes_of(s.type));
}

EXPORT int cufftXtExec(int number, void *in, void *out, int direction)
{
	struct transform t = {.in = (uint64_t)in, .out = (uint64_t)out, .direction = direction};
	struct plan *p;

	BEGIN(cufftXtExec);
	p = plan_of(number);
	if (!p || !p->made || (direction != 1 && direction != -1))
		return fake_end(INVALID_PLAN);
	if (!p->streamed || !shown(p->area, AREA))
		fake_fault("cufftXtExec: without a stream, or a work area at %#llx",
			   (unsigned long long)p->area);
	if (!side_shown(p, false, t.in) || !side_shown(p, true, t.out)) {
		fake_fault("cufftXtExec: from %#llx to %#llx", (unsigned long long)t.in,
			   (unsigned long long)t.out);
		return fake_end(INVALID_VALUE);
	}
	t.plan = *p;
	p->streamed = false;
	p->area = 0;
	fake_push_kernel(t.plan.stream, transform, &t, sizeof t);
	return fake_end(SUCCESS);
}
