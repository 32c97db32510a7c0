/* operands.cuh: numbers of BLAS in its four types, vectors and matrices however they lie.
 *
 * T is the type that BLAS_S, _D, _C or _Z names, R its real one.
 */
#ifndef RANKFOLD_BLAS_OPERANDS_CUH
#define RANKFOLD_BLAS_OPERANDS_CUH

#include "args.h"

#if BLAS_S || BLAS_C
typedef float R;
#else
typedef double R;
#endif
#if BLAS_S || BLAS_D
typedef R T;
#define COMPLEX 0
#else
struct alignas(2 * sizeof(R)) T { R re, im; };
#define COMPLEX 1
#endif
#define INLINE static __device__ __forceinline__
#define INLINE_MEMBER __device__ __forceinline__
#define KERNEL extern "C" __global__ void
typedef int64_t I;

/* ---- numbers ---- */

INLINE R madd(R a, R b, R c) { return sizeof(R) == 4 ? (R)fmaf(a, b, c) : (R)fma(a, b, c); }
INLINE R magnitude(R x) { return sizeof(R) == 4 ? (R)fabsf(x) : (R)fabs(x); }
#if !COMPLEX
INLINE R root(R x) { return sizeof(R) == 4 ? (R)__fsqrt_rn(x) : (R)__dsqrt_rn(x); }
#endif
#if COMPLEX
INLINE T number(R re, R im = 0) { return T{re, im}; }
INLINE R real(T a) { return a.re; }
INLINE bool is_zero(T a) { return a.re == 0 && a.im == 0; }
INLINE T conj(T a) { return T{a.re, -a.im}; }
INLINE T madd(T a, T b, T c)
{
    c.re = madd(a.re, b.re, c.re);
    c.re = madd(-a.im, b.im, c.re);
    c.im = madd(a.re, b.im, c.im);
    c.im = madd(a.im, b.re, c.im);
    return c;
}
INLINE T times(T a, T b)
{
    return T{madd(-a.im, b.im, a.re * b.re), madd(a.im, b.re, a.re * b.im)};
}
INLINE T scaled(R a, T b) { return T{a * b.re, a * b.im}; }
INLINE T plus(T a, T b) { return T{a.re + b.re, a.im + b.im}; }
INLINE T minus(T a) { return T{-a.re, -a.im}; }
INLINE T over(T a, T b) /* Smith's way: no intermediate result is larger than need be */
{
    if (magnitude(b.re) >= magnitude(b.im)) {
        R r = b.im / b.re, d = madd(b.im, r, b.re);
        return T{madd(a.im, r, a.re) / d, madd(-a.re, r, a.im) / d};
    }
    R r = b.re / b.im, d = madd(b.re, r, b.im);
    return T{madd(a.re, r, a.im) / d, madd(a.im, r, -a.re) / d};
}
INLINE R size_of(T a) { return magnitude(a.re) + magnitude(a.im); }
#else
INLINE T number(R re, R = 0) { return re; }
INLINE R real(T a) { return a; }
INLINE bool is_zero(T a) { return a == 0; }
INLINE T conj(T a) { return a; }
INLINE T times(T a, T b) { return a * b; }
INLINE T scaled(R a, T b) { return a * b; }
INLINE T plus(T a, T b) { return a + b; }
INLINE T minus(T a) { return -a; }
INLINE T over(T a, T b) { return a / b; }
INLINE R size_of(T a) { return magnitude(a); }
#endif

INLINE void swap(T &a, T &b)
{
    T kept = a;
    a = b;
    b = kept;
}

INLINE T scalar(const blas_args &g, const uint64_t *bits, uint32_t real_flag)
{
    const void *at = g.flags & BLAS_ON_DEVICE ? (const void *)bits[0] : bits;
    return g.flags & real_flag ? number(*(const R *)at) : *(const T *)at;
}
INLINE T alpha_of(const blas_args &g) { return scalar(g, g.alpha, BLAS_REAL_ALPHA); }
INLINE T beta_of(const blas_args &g) { return scalar(g, g.beta, BLAS_REAL_BETA); }

/* ---- operands ---- */

INLINE T *start(const blas_args &g, uint64_t at, I batch, I b)
{
    return g.flags & BLAS_LISTED ? ((T *const *)at)[b] : (T *)at + b * batch;
}

struct Vector { /* of n elements; a negative step begins at the end */
    T *at;
    I step;
    INLINE_MEMBER T &operator[](I i) const { return at[i * step]; }
};
INLINE Vector open(const blas_args &g, const blas_vector &v, I n, I b)
{
    T *at = start(g, v.at, v.batch, b);
    return {v.step < 0 ? at - (n - 1) * v.step : at, v.step};
}

/* op(A) */
struct Matrix {
    T *at;
    I row, col, below, above; /* of op(A); strides are those of a plain one */
    bool plain, conjugated;
};
INLINE Matrix open(const blas_args &g, const blas_matrix &x, I b)
{
    bool turned = x.turned;
    return {start(g, x.at, x.batch, b), turned ? x.ld : 1, turned ? 1 : x.ld,
            turned ? x.above : x.below, turned ? x.below : x.above,
            x.shape == BLAS_GENERAL && x.shift < 0, x.conj != 0};
}
INLINE I place(const blas_matrix &x, I i, I j)
{
    if (x.packed)
        return x.upper ? i + j * (j + 1) / 2 : i + j * (2 * x.packed - j - 1) / 2;
    return x.shift < 0 ? i + j * x.ld : x.shift + i - j + j * x.ld;
}
INLINE T odd_element(const Matrix &m, const blas_matrix &x, I i, I j)
{
    bool swap = x.turned, conjugated = m.conjugated;
    I row = swap ? j : i, col = swap ? i : j;
    if (x.shape != BLAS_GENERAL && (x.upper ? row > col : row < col)) {
        if (x.shape == BLAS_TRIANGULAR)
            return number(0);
        I kept = row;
        row = col;
        col = kept;
        conjugated ^= x.shape == BLAS_HERMITIC;
    }
    if (x.unit && row == col)
        return number(1);
    T value = m.at[place(x, row, col)];
    if (x.shape == BLAS_HERMITIC && row == col)
        return number(real(value));
    return conjugated ? conj(value) : value;
}
/* Element (i, j) of op(A). */
INLINE T element(const Matrix &m, const blas_matrix &x, I i, I j)
{
    if (!m.plain)
        return odd_element(m, x, i, j);
    T value = m.at[i * m.row + j * m.col];
    return m.conjugated ? conj(value) : value;
}
/* Columns of op(A)'s row i that may not be zero: [first, end) of n. */
INLINE I first_of(const Matrix &m, I i) { return m.below < i ? i - m.below : 0; }
INLINE I end_of(const Matrix &m, I i, I n) { return m.above < n - 1 - i ? i + m.above + 1 : n; }

INLINE I me() { return (I)blockIdx.x * blockDim.x + threadIdx.x; }
INLINE I all() { return (I)gridDim.x * blockDim.x; }
#define LOOP _Pragma("unroll 1") for /* small code, soon compiled */
#define EACH(i, n) LOOP (I i = me(); i < (n); i += all())
#define EACH_BATCH(b) LOOP (I b = blockIdx.y; b < g.count; b += gridDim.y)

#endif
