/* kernels.cu: levels 1 and 2 of BLAS, and of level 3 what is not a plain real product.
 *
 * Compiled once for each type (BLAS_S, _D, _C or _Z) into PTX, which the client carries and
 * launches like a program's own (`make blas-ptx`; nvcc is not needed to build rankfold).
 *
 * The order of operations is part of the interface: a result's bits depend on the operands alone,
 * not on the device. An element's sum runs upwards with one fused multiply-add each, from zero, in
 * the routine's type; then alpha * sum, fused beta * C. A complex multiply-add is four fused real
 * ones: re += ar * br, re -= ai * bi, im += ar * bi, im += ai * br. In reductions thread t of 256
 * takes t, t + 256, … and the 256 results are added up as a binary tree. Solves subtract in the
 * order of elimination, then divide. As in BLAS, nothing is read that a zero scalar multiplies.
 */
#include "operands.cuh"

/* alpha * sum + beta * C, where C is not read if beta is 0 */
INLINE T blended(T alpha, T sum, T beta, const T &old)
{
    T value = times(alpha, sum);
    return is_zero(beta) ? value : madd(beta, old, value);
}

/* ---- level 1 ---- */

INLINE void rotate_modified(const R *p, T &x, T &y)
{
    R flag = p[0], h11 = flag == 1 || flag == -1 ? p[1] : 1, h21 = flag == 1 ? -1 : p[2];
    R h12 = flag == 1 ? 1 : p[3], h22 = flag == 1 || flag == -1 ? p[4] : 1;
    T old = x;
    if (flag == -2)
        return;
    x = madd(number(h12), y, scaled(h11, x));
    y = madd(number(h21), old, scaled(h22, y));
}

KERNEL each(const __grid_constant__ blas_args g)
{
    Vector x = open(g, g.x, g.n, 0), y = open(g, g.y, g.n, 0);
    T alpha = number(0), beta = number(0);
    if (g.op == BLAS_AXPY || g.op == BLAS_SCAL || g.op == BLAS_ROT)
        alpha = alpha_of(g);
    if (g.op == BLAS_ROT)
        beta = beta_of(g);
    if (g.op == BLAS_AXPY && is_zero(alpha))
        return;
    EACH(i, g.n) {
        T old = x[i];
        switch (g.op) {
        case BLAS_AXPY: y[i] = madd(alpha, old, y[i]); break;
        case BLAS_SCAL:
            x[i] = g.flags & BLAS_REAL_ALPHA ? scaled(real(alpha), old) : times(alpha, old);
            break;
        case BLAS_COPY: y[i] = old; break;
        case BLAS_SWAP: x[i] = y[i]; y[i] = old; break;
        case BLAS_ROT:
            x[i] = madd(beta, y[i], scaled(real(alpha), old));
            y[i] = madd(minus(conj(beta)), old, scaled(real(alpha), y[i]));
            break;
        default: rotate_modified((const R *)g.result, x[i], y[i]);
        }
    }
}

/* Reduces the values of one block. */
template <class V, class Add> INLINE V reduced(V *shared, V mine, Add add)
{
    I t = threadIdx.x;
    shared[t] = mine;
    __syncthreads();
    LOOP (I half = BLAS_REDUCERS / 2; half; half /= 2) {
        if (t < half)
            shared[t] = add(shared[t], shared[t + half]);
        __syncthreads();
    }
    V all = shared[0];
    __syncthreads();
    return all;
}

struct Found { R value; I at; };
struct Larger {
    bool least;
    INLINE_MEMBER Found operator()(Found a, Found b) const
    {
        if (a.at == 0 || b.at == 0)
            return a.at ? a : b;
        bool other = least ? b.value < a.value : b.value > a.value;
        return other || (b.value == a.value && b.at < a.at) ? b : a;
    }
};
struct Sum { template <class V> INLINE_MEMBER V operator()(V a, V b) const { return plus(a, b); } };
struct SumOfDoubles { INLINE_MEMBER double operator()(double a, double b) const { return a + b; } };
struct Most { /* a NaN stays */
    INLINE_MEMBER double operator()(double a, double b) const { return b <= a || a != a ? a : b; }
};
struct Both { INLINE_MEMBER R operator()(R a, R b) const { return a + b; } };

/* 2^-e of x = m 2^e, so that squares neither overflow nor vanish; exact. */
INLINE double down(double x)
{
    int e = (int)(__double_as_longlong(x) >> 52 & 2047);
    return __longlong_as_double((long long)(e > 2045 ? 1 : e < 1 ? 2046 : 2046 - e) << 52);
}
#if COMPLEX
INLINE double larger_part(T x) { return Most()(magnitude(x.re), magnitude(x.im)); }
INLINE double squares(T x, double s, double sum)
{
    return fma(x.im * s, x.im * s, fma(x.re * s, x.re * s, sum));
}
#else
INLINE double larger_part(T x) { return magnitude(x); }
INLINE double squares(T x, double s, double sum) { return fma(x * s, x * s, sum); }
#endif

INLINE R norm(const Vector &x, I n, double *shared)
{
    double most = 0, sum = 0;
    LOOP (I i = threadIdx.x; i < n; i += BLAS_REDUCERS)
        most = Most()(most, larger_part(x[i]));
    most = reduced(shared, most, Most());
    if (most == 0 || most != most || most > 1.7976931348623157e308)
        return (R)most;
    double s = down(most);
    LOOP (I i = threadIdx.x; i < n; i += BLAS_REDUCERS)
        sum = squares(x[i], s, sum);
    return (R)(__dsqrt_rn(reduced(shared, sum, SumOfDoubles())) / s);
}

/* Found is the first of the largest, or smallest, counted from 1. */
INLINE void find(const blas_args &g, const Vector &x, Found *shared)
{
    Larger larger{g.op == BLAS_AMIN};
    Found best = {0, 0};
    LOOP (I i = threadIdx.x; i < g.n; i += BLAS_REDUCERS) {
        R value = size_of(x[i]);
        if (value == value)
            best = larger(best, Found{value, i + 1});
    }
    best = reduced(shared, best, larger);
    if (best.at == 0 && g.n > 0) /* nothing but NaN */
        best.at = 1;
    if (threadIdx.x == 0 && g.flags & BLAS_WIDE)
        *(int64_t *)g.result = best.at;
    else if (threadIdx.x == 0)
        *(int32_t *)g.result = (int32_t)best.at;
}

KERNEL reduce(const __grid_constant__ blas_args g)
{
    __shared__ alignas(16) char shared[BLAS_REDUCERS * 16];
    Vector x = open(g, g.x, g.n, 0);
    if (g.op == BLAS_DOT) {
        Vector y = open(g, g.y, g.n, 0);
        T sum = number(0);
        LOOP (I i = threadIdx.x; i < g.n; i += BLAS_REDUCERS)
            sum = madd(g.flags & BLAS_CONJ ? conj(x[i]) : x[i], y[i], sum);
        sum = reduced((T *)shared, sum, Sum());
        if (threadIdx.x == 0)
            *(T *)g.result = sum;
    } else if (g.op == BLAS_NRM2) {
        R value = norm(x, g.n, (double *)shared);
        if (threadIdx.x == 0)
            *(R *)g.result = value;
    } else if (g.op == BLAS_ASUM) {
        R sum = 0;
        LOOP (I i = threadIdx.x; i < g.n; i += BLAS_REDUCERS)
            sum += size_of(x[i]);
        sum = reduced((R *)shared, sum, Both());
        if (threadIdx.x == 0)
            *(R *)g.result = sum;
    } else
        find(g, x, (Found *)shared);
}

/* ---- level 2 ---- */

/* y = alpha * op(A) * x + beta * y */
KERNEL times_vector(const __grid_constant__ blas_args g)
{
    T alpha = alpha_of(g), beta = beta_of(g);
    EACH_BATCH(b) {
        Vector x = open(g, g.x, g.n, b), y = open(g, g.y, g.m, b);
        Matrix a = open(g, g.a, b);
        EACH(i, g.m) {
            T sum = number(0);
            I end = is_zero(alpha) ? 0 : end_of(a, i, g.n);
            LOOP (I k = first_of(a, i); k < end; k++)
                sum = madd(element(a, g.a, i, k), x[k], sum);
            y[i] = blended(alpha, sum, beta, y[i]);
        }
    }
}

/* x = op(A) * x, of a triangle. One block: rows whose sums need nothing that was written before. */
KERNEL triangle_times_vector(const __grid_constant__ blas_args g)
{
    Vector x = open(g, g.x, g.n, 0);
    Matrix a = open(g, g.a, 0);
    bool up = (g.a.upper != 0) != (g.a.turned != 0);
    LOOP (I done = 0; done < g.n; done += blockDim.x) {
        I i = up ? done + threadIdx.x : g.n - 1 - done - threadIdx.x;
        T sum = number(0);
        if (i >= 0 && i < g.n)
            LOOP (I k = first_of(a, i); k < end_of(a, i, g.n); k++)
                sum = madd(element(a, g.a, i, k), x[k], sum);
        __syncthreads();
        if (i >= 0 && i < g.n)
            x[i] = sum;
        __syncthreads();
    }
}

/* op(A) * x = b, of a triangle, x in b's place. One block: column after column. */
KERNEL solve_vector(const __grid_constant__ blas_args g)
{
    Vector x = open(g, g.x, g.n, 0);
    Matrix a = open(g, g.a, 0);
    bool up = (g.a.upper != 0) != (g.a.turned != 0);
    LOOP (I step = 0; step < g.n; step++) {
        I j = up ? g.n - 1 - step : step;
        if (threadIdx.x == 0 && !g.a.unit)
            x[j] = over(x[j], element(a, g.a, j, j));
        __syncthreads();
        T known = minus(x[j]);
        I first = up ? (a.above < j ? j - a.above : 0) : j + 1;
        I end = up ? j : (a.below < g.n - 1 - j ? j + a.below + 1 : g.n);
        LOOP (I i = first + threadIdx.x; i < end; i += blockDim.x)
            x[i] = madd(element(a, g.a, i, j), known, x[i]);
        __syncthreads();
    }
}

/* A += alpha * x * y', and with BLAS_TWICE + alpha * y * x', in one triangle or everywhere. */
KERNEL update(const __grid_constant__ blas_args g)
{
    T alpha = alpha_of(g);
    T other = g.flags & BLAS_CONJ ? conj(alpha) : alpha;
    if (is_zero(alpha))
        return;
    EACH_BATCH(b) {
        Vector x = open(g, g.x, g.m, b), y = open(g, g.y, g.n, b);
        T *a = start(g, g.a.at, g.a.batch, b);
        EACH(at, g.m * g.n) {
            I i = at % g.m, j = at / g.m;
            if (g.a.shape != BLAS_GENERAL && (g.a.upper ? i > j : i < j))
                continue;
            T *to = a + place(g.a, i, j);
            T value = madd(times(alpha, x[i]), g.flags & BLAS_CONJ ? conj(y[j]) : y[j], *to);
            if (g.flags & BLAS_TWICE)
                value = madd(times(other, y[i]), g.flags & BLAS_CONJ ? conj(x[j]) : x[j], value);
            *to = g.flags & BLAS_HERMITIAN && i == j ? number(real(value)) : value;
        }
    }
}

/* ---- level 3 ---- */

/* C = alpha * op(A) * op(B) + beta * C; with BLAS_TWICE + alpha * op(B)' * op(A)' */
KERNEL times_matrix(const __grid_constant__ blas_args g)
{
    T alpha = alpha_of(g), beta = beta_of(g);
    bool conjugate = g.flags & BLAS_CONJ;
    EACH_BATCH(b) {
        Matrix x = open(g, g.a, b), y = open(g, g.b, b);
        T *c = start(g, g.c.at, g.c.batch, b);
        EACH(at, g.m * g.n) {
            I i = at % g.m, j = at / g.m;
            if (g.c.shape != BLAS_GENERAL && (g.c.upper ? i > j : i < j))
                continue;
            T sum = number(0), swapped = number(0);
            I end = is_zero(alpha) ? 0 : end_of(x, i, g.k);
            LOOP (I k = first_of(x, i); k < end; k++)
                sum = madd(element(x, g.a, i, k), element(y, g.b, k, j), sum);
            LOOP (I k = 0; k < end && g.flags & BLAS_TWICE; k++) {
                T left = element(y, g.b, k, i), right = element(x, g.a, j, k);
                swapped = madd(conjugate ? conj(left) : left, conjugate ? conj(right) : right,
                               swapped);
            }
            T *to = c + place(g.c, i, j);
            T value = times(alpha, sum);
            if (g.flags & BLAS_TWICE)
                value = madd(conjugate ? conj(alpha) : alpha, swapped, value);
            if (!is_zero(beta))
                value = madd(beta, *to, value);
            *to = g.flags & BLAS_HERMITIAN && i == j ? number(real(value)) : value;
        }
    }
}

/* A triangle on the right is that, transposed, on the left of each row. */
INLINE Matrix triangle(const blas_args &g, blas_matrix &x, I b)
{
    x = g.a;
    if (g.flags & BLAS_RIGHT)
        x.turned = !x.turned;
    return open(g, x, b);
}
/* Which of B's columns, or rows. */
INLINE Vector line(const blas_args &g, const blas_matrix &x, I which, I b)
{
    T *at = start(g, x.at, x.batch, b);
    bool row = g.flags & BLAS_RIGHT;
    return {row ? at + which : at + which * x.ld, row ? x.ld : 1};
}

/* C = alpha * op(A) * B, or B * op(A), of a triangle; C may be B. One thread per column, or row. */
KERNEL triangle_times_matrix(const __grid_constant__ blas_args g)
{
    T alpha = alpha_of(g);
    I length = g.flags & BLAS_RIGHT ? g.n : g.m, lines = g.flags & BLAS_RIGHT ? g.m : g.n;
    blas_matrix stored;
    Matrix a = triangle(g, stored, 0);
    bool up = (stored.upper != 0) != (stored.turned != 0);
    EACH(which, lines) {
        Vector from = line(g, g.b, which, 0), to = line(g, g.c, which, 0);
        LOOP (I step = 0; step < length; step++) {
            I i = up ? step : length - 1 - step;
            T sum = number(0);
            I end = is_zero(alpha) ? 0 : end_of(a, i, length);
            LOOP (I k = first_of(a, i); k < end; k++)
                sum = madd(element(a, stored, i, k), from[k], sum);
            to[i] = times(alpha, sum);
        }
    }
}

/* op(A) * X = alpha * B, or X * op(A) = alpha * B, of a triangle, X in B's place. */
KERNEL solve_matrix(const __grid_constant__ blas_args g)
{
    T alpha = alpha_of(g);
    I length = g.flags & BLAS_RIGHT ? g.n : g.m, lines = g.flags & BLAS_RIGHT ? g.m : g.n;
    EACH_BATCH(b) {
        blas_matrix stored;
        Matrix a = triangle(g, stored, b);
        bool up = (stored.upper != 0) != (stored.turned != 0);
        EACH(which, lines) {
            Vector x = line(g, g.b, which, b);
            LOOP (I step = 0; step < length; step++) {
                I i = up ? length - 1 - step : step;
                if (is_zero(alpha)) {
                    x[i] = number(0);
                    continue;
                }
                T value = times(alpha, x[i]);
                LOOP (I k = 0; k < step; k++) {
                    I known = up ? length - 1 - k : k;
                    value = madd(element(a, stored, i, known), minus(x[known]), value);
                }
                x[i] = stored.unit ? value : over(value, element(a, stored, i, i));
            }
        }
    }
}

/* ---- LU ---- */

/* A = P * L * U in A's place, of m rows and n columns, as in LAPACK. One thread for each matrix.
 * x: the pivots, which count from 1, min(m, n) of each matrix; 0: no rows are swapped. result: of
 * each matrix the first pivot that is zero, or 0. */
KERNEL factor(const __grid_constant__ blas_args g)
{
    I order = g.m < g.n ? g.m : g.n;
    EACH(b, g.count) {
        T *a = start(g, g.a.at, g.a.batch, b);
        int *pivots = g.x.at ? (int *)g.x.at + b * order : nullptr, zero = 0;
        LOOP (I k = 0; k < order; k++) {
            T *column = a + k * g.a.ld;
            I most = k;
            LOOP (I i = k + 1; pivots && i < g.m; i++)
                most = size_of(column[i]) > size_of(column[most]) ? i : most;
            if (pivots)
                pivots[k] = (int)most + 1;
            LOOP (I j = 0; most != k && j < g.n; j++)
                swap(a[k + j * g.a.ld], a[most + j * g.a.ld]);
            if (is_zero(column[k])) {
                zero = zero ? zero : (int)k + 1;
                continue;
            }
            LOOP (I i = k + 1; i < g.m; i++)
                column[i] = over(column[i], column[k]);
            LOOP (I j = k + 1; j < g.n; j++) {
                T *other = a + j * g.a.ld, known = minus(other[k]);
                LOOP (I i = k + 1; i < g.m; i++)
                    other[i] = madd(column[i], known, other[i]);
            }
        }
        ((int *)g.result)[b] = zero;
    }
}

/* Swaps the rows of B as the pivots say: x, m of each matrix. One thread per column. */
KERNEL swap_rows(const __grid_constant__ blas_args g)
{
    EACH_BATCH(b) {
        const int *pivots = (const int *)g.x.at + b * g.m;
        EACH(which, g.n) {
            Vector x = line(g, g.b, which, b);
            LOOP (I step = 0; step < g.m; step++) {
                I i = g.flags & BLAS_BACKWARDS ? g.m - 1 - step : step;
                swap(x[i], x[pivots[i] - 1]);
            }
        }
    }
}

/* C = alpha * op(A) + beta * op(B), or A times a diagonal; element by element. */
KERNEL combine(const __grid_constant__ blas_args g)
{
    Matrix a = open(g, g.a, 0), second = open(g, g.b, 0);
    T *c = (T *)g.c.at, alpha = number(1), beta = number(0);
    Vector x = {(T *)g.x.at, g.x.step};
    if (g.op == BLAS_GEAM) {
        alpha = alpha_of(g);
        beta = beta_of(g);
    } else
        x = open(g, g.x, g.flags & BLAS_RIGHT ? g.n : g.m, 0);
    EACH(at, g.m * g.n) {
        I i = at % g.m, j = at / g.m;
        T value = is_zero(alpha) ? number(0) : element(a, g.a, i, j);
        if (g.op == BLAS_DGMM)
            value = times(value, x[g.flags & BLAS_RIGHT ? j : i]);
        else {
            value = is_zero(alpha) ? value : times(alpha, value);
            if (!is_zero(beta))
                value = madd(beta, element(second, g.b, i, j), value);
        }
        c[i + j * g.c.ld] = value;
    }
}

/* ---- Givens rotations: of one thread ---- */

#if COMPLEX
/* x: a, then b; y: the cosine, a real number; result: the sine */
INLINE void make_rotation(const blas_args &g)
{
    T *a = (T *)g.x.at, b = *(T *)g.y.at, *s = (T *)g.result;
    R *c = (R *)g.beta[0];
    double ar = a->re, ai = a->im, br = b.re, bi = b.im;
    double most = Most()(larger_part(*a), larger_part(b));
    double k = most == 0 ? 1 : down(most);
    double a2 = fma(ai * k, ai * k, ar * k * ar * k), b2 = fma(bi * k, bi * k, br * k * br * k);
    double left = __dsqrt_rn(a2), whole = __dsqrt_rn(a2 + b2);
    if (a2 == 0) {
        *c = 0;
        *s = number(1);
        *a = b;
        return;
    }
    double ur = ar * k / left, ui = ai * k / left; /* a / |a| */
    *c = (R)(left / whole);
    *s = T{(R)((fma(ui, bi, ur * br)) * k / whole), (R)((fma(ui, br, -(ur * bi))) * k / whole)};
    *a = T{(R)(ur * (whole / k)), (R)(ui * (whole / k))};
}
#else
INLINE void make_rotation(const blas_args &g)
{
    R *a = (R *)g.x.at, *b = (R *)g.y.at, *c = (R *)g.beta[0], *s = (R *)g.result;
    R roe = magnitude(*a) > magnitude(*b) ? *a : *b, scale = magnitude(*a) + magnitude(*b), z = 1;
    if (scale == 0) {
        *c = 1;
        *s = *a = *b = 0;
        return;
    }
    R x = *a / scale, y = *b / scale, r = scale * root(madd(y, y, x * x));
    r = roe < 0 ? -r : r;
    *c = *a / r;
    *s = *b / r;
    if (magnitude(*a) > magnitude(*b))
        z = *s;
    else if (*c != 0)
        z = 1 / *c;
    *a = r;
    *b = z;
}
#endif

#if !COMPLEX
/* x: d1, d2, x1, one after another; y: y1; result: the five parameters. As in BLAS, with its
 * scaling by 4096. */
INLINE void make_modified_rotation(const blas_args &g)
{
    const R gam = 4096, most = gam * gam, least = 1 / most;
    R *d1 = (R *)g.x.at, *d2 = (R *)g.alpha[0], *x1 = (R *)g.beta[0], y1 = *(R *)g.y.at;
    R *p = (R *)g.result, flag = -1, h11 = 0, h12 = 0, h21 = 0, h22 = 0;
    if (*d1 < 0) {
        *d1 = *d2 = *x1 = 0;
    } else {
        R p2 = *d2 * y1, p1 = *d1 * *x1, q2 = p2 * y1, q1 = p1 * *x1;
        if (p2 == 0) {
            p[0] = -2;
            return;
        }
        if (magnitude(q1) > magnitude(q2)) {
            h21 = -y1 / *x1;
            h12 = p2 / p1;
            R u = 1 - h12 * h21;
            if (u > 0) {
                flag = 0;
                *d1 /= u;
                *d2 /= u;
                *x1 *= u;
            } else
                *d1 = *d2 = *x1 = 0, h12 = h21 = 0;
        } else if (q2 < 0) {
            *d1 = *d2 = *x1 = 0;
        } else {
            flag = 1;
            h11 = p1 / p2;
            h22 = *x1 / y1;
            R u = 1 + h11 * h22, kept = *d2 / u;
            *d2 = *d1 / u;
            *d1 = kept;
            *x1 = y1 * u;
        }
        if (flag >= 0 && (*d1 != 0 || *d2 != 0)) {
            R *d[2] = {d1, d2};
            LOOP (int i = 0; i < 2; i++)
                LOOP (R size = magnitude(*d[i]); size != 0 && (size <= least || size >= most);
                      size = magnitude(*d[i])) {
                    bool small = size <= least;
                    if (flag == 0)
                        h11 = h22 = 1;
                    else if (flag == 1)
                        h21 = -1, h12 = 1;
                    flag = -1;
                    *d[i] = small ? *d[i] * most : *d[i] / most;
                    R f = small ? 1 / gam : gam;
                    if (i == 0)
                        *x1 *= f, h11 *= f, h12 *= f;
                    else
                        h21 *= f, h22 *= f;
                }
        }
    }
    if (flag < 0)
        p[1] = h11, p[2] = h21, p[3] = h12, p[4] = h22;
    else if (flag == 0)
        p[2] = h21, p[3] = h12;
    else
        p[1] = h11, p[4] = h22;
    p[0] = flag;
}
#endif

KERNEL rotation(const __grid_constant__ blas_args g)
{
#if !COMPLEX
    if (g.op == BLAS_ROTMG)
        make_modified_rotation(g);
    else
#endif
        make_rotation(g);
}
