/* kernels.cu: what convolutions need besides matrix products, and batch normalisation.
 *
 * Compiled once for each type (DNN_S: float, _D: double, _H: half, _B: bfloat16) into PTX, which
 * the client carries and launches like a program's own (`make carried-ptx`; nvcc is not needed to
 * build rankfold). Sums are double for double, else float.
 *
 * The order of operations is part of the interface: a result's bits depend on the operands alone.
 * `fold` adds the taps of a window in ascending order. In batch normalisation thread t of a block
 * of 256 adds elements t, t + 256, … of its feature, and the 256 sums are added as a binary tree.
 */
#include "args.h"

#define INLINE static __device__ __forceinline__
#define KERNEL extern "C" __global__ void
#define LOOP _Pragma("unroll 1") for /* small code, soon compiled */
typedef int64_t I;

/* ---- numbers ---- */

#if DNN_D
typedef double A; /* the type of sums */
typedef double T;
INLINE A wide(T x) { return x; }
INLINE T narrowed(A x) { return x; }
INLINE A inverse_root(A x) { return 1 / __dsqrt_rn(x); }
#else
typedef float A;
INLINE A inverse_root(A x) { return 1 / __fsqrt_rn(x); }
#if DNN_S
typedef float T;
INLINE A wide(T x) { return x; }
INLINE T narrowed(A x) { return x; }
#elif DNN_H
typedef unsigned short T;
INLINE A wide(T x)
{
    A y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
INLINE T narrowed(A x)
{
    T y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
#else
typedef unsigned short T;
INLINE A wide(T x) { return __uint_as_float((unsigned)x << 16); }
INLINE T narrowed(A x) /* to the nearest, ties to even; a NaN stays one */
{
    unsigned bits = __float_as_uint(x);
    unsigned near = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (T)(x != x ? 0x7fffu : near);
}
#endif
#endif
INLINE A madd(A a, A b, A c) { return sizeof(A) == 4 ? (A)fmaf(a, b, c) : (A)fma(a, b, c); }

/* value + beta * old, where old is not read if beta is 0 */
INLINE void blend(T *to, A value, A beta)
{
    *to = narrowed(beta == 0 ? value : madd(beta, wide(*to), value));
}

INLINE I me() { return (I)blockIdx.x * blockDim.x + threadIdx.x; }

/* ---- windows ---- */

INLINE I row_of(const dnn_window &g, int channel, int tap)
{
    return (channel / g.group_channels) * g.group_rows +
           (channel % g.group_channels) * g.channel_rows + tap * g.tap_rows;
}

/* Fills in the matrix: 0 where a tap is outside of its image. */
KERNEL unfold(const __grid_constant__ dnn_window g)
{
    I column = me();
    if (column >= g.columns)
        return;
    unsigned places = g.out_depth * g.out_height * g.out_width;
    unsigned image = (unsigned)column / places, place = (unsigned)column % places;
    int w = place % g.out_width * g.step_w - g.pad_w;
    int h = place / g.out_width % g.out_height * g.step_h - g.pad_h;
    int d = place / g.out_width / g.out_height * g.step_d - g.pad_d;
    LOOP (int c = blockIdx.y; c < g.channels; c += gridDim.y) {
        const T *from = (const T *)g.image + image * g.image_stride + c * g.channel_stride;
        T *to = (T *)g.matrix + row_of(g, c, 0) * g.columns + column;
        LOOP (int i = 0; i < g.taps_d; i++)
            LOOP (int j = 0; j < g.taps_h; j++)
                LOOP (int k = 0; k < g.taps_w; k++) {
                    int z = d + i * g.dilation_d, y = h + j * g.dilation_h;
                    int x = w + k * g.dilation_w;
                    bool inside = (unsigned)z < (unsigned)g.depth &&
                                  (unsigned)y < (unsigned)g.height &&
                                  (unsigned)x < (unsigned)g.width;
                    *to = inside ? from[z * g.depth_stride + y * g.height_stride +
                                        x * g.width_stride]
                                 : (T)0;
                    to += g.tap_rows * g.columns;
                }
    }
}

/* The place at which a tap `back` before the origin covers it; -1: none. */
INLINE int place_of(int back, int step, int places)
{
    int place = step == 1 ? back : back / step;
    return back >= 0 && place < places && (step == 1 || place * step == back) ? place : -1;
}

/* Adds up, for each element of the images, the elements of the matrix that cover it. */
KERNEL fold(const __grid_constant__ dnn_window g)
{
    I element = me(), size = (I)g.depth * g.height * g.width;
    if (element >= g.images * size)
        return;
    unsigned image = (unsigned)element / (unsigned)size, at = (unsigned)element % (unsigned)size;
    int x = at % g.width, y = at / g.width % g.height, z = at / g.width / g.height;
    I first = (I)image * g.out_depth * g.out_height * g.out_width;
    A beta = (A)g.beta;
    LOOP (int c = blockIdx.y; c < g.channels; c += gridDim.y) {
        const A *from = (const A *)g.matrix + row_of(g, c, 0) * g.columns + first;
        A sum = 0;
        LOOP (int i = 0; i < g.taps_d; i++) {
            int d = place_of(z + g.pad_d - i * g.dilation_d, g.step_d, g.out_depth);
            LOOP (int j = 0; j < g.taps_h; j++) {
                int h = place_of(y + g.pad_h - j * g.dilation_h, g.step_h, g.out_height);
                LOOP (int k = 0; k < g.taps_w; k++) {
                    int w = place_of(x + g.pad_w - k * g.dilation_w, g.step_w, g.out_width);
                    if (d >= 0 && h >= 0 && w >= 0)
                        sum += from[((I)d * g.out_height + h) * g.out_width + w];
                    from += g.tap_rows * g.columns;
                }
            }
        }
        blend((T *)g.image + image * g.image_stride + c * g.channel_stride + z * g.depth_stride +
                  y * g.height_stride + x * g.width_stride,
              sum, beta);
    }
}

KERNEL narrow(const __grid_constant__ dnn_narrow g)
{
    if (me() < g.count)
        blend((T *)g.to + me(), ((const A *)g.from)[me()], (A)g.beta);
}

/* ---- batch normalisation: one block for each feature ---- */

/* Sums the values of one block. */
INLINE A sum_of_block(A *shared, A mine)
{
    int t = threadIdx.x;
    shared[t] = mine;
    __syncthreads();
    LOOP (int half = DNN_THREADS / 2; half; half /= 2) {
        if (t < half)
            shared[t] += shared[t + half];
        __syncthreads();
    }
    A all = shared[0];
    __syncthreads();
    return all;
}

/* The elements of one thread: t, t + 256, …; `sample` and `place` without a division for each. */
struct Walk {
    I sample, place;
    I samples, places, jump, rest;
    __device__ __forceinline__ Walk(const dnn_norm &g)
        : sample(threadIdx.x / (unsigned)g.places), place(threadIdx.x % (unsigned)g.places),
          samples(g.samples), places(g.places), jump(DNN_THREADS / (unsigned)g.places),
          rest(DNN_THREADS % (unsigned)g.places)
    {
    }
    __device__ __forceinline__ bool more() const { return sample < samples; }
    __device__ __forceinline__ void next()
    {
        sample += jump;
        place += rest;
        if (place >= places) {
            place -= places;
            sample++;
        }
    }
};
#define WALK(w) LOOP (Walk w(g); w.more(); w.next())
INLINE I at(const dnn_norm &g, const Walk &w)
{
    return w.sample * g.sample_stride + w.place * g.place_stride;
}
INLINE I at_dy(const dnn_norm &g, const Walk &w)
{
    return w.sample * g.dy_sample_stride + w.place * g.dy_place_stride;
}

struct Moments { A mean, variance; };
INLINE Moments moments(const dnn_norm &g, const T *x, A *shared)
{
    A count = (A)(g.samples * g.places), sum = 0, squares = 0;
    WALK (w)
        sum += wide(x[at(g, w)]);
    A mean = sum_of_block(shared, sum) / count;
    WALK (w) {
        A from_mean = wide(x[at(g, w)]) - mean;
        squares = madd(from_mean, from_mean, squares);
    }
    return {mean, sum_of_block(shared, squares) / count};
}

/* to = (1 - factor) * to + factor * value */
INLINE void average(uint64_t to, I f, A factor, A value)
{
    A *at = (A *)to + f;
    *at = madd(factor, value, (1 - factor) * *at);
}

/* y = scale * (x - mean) * deviation + bias */
INLINE void normalise(const dnn_norm &g, I f, const T *x, A mean, A deviation)
{
    T *y = (T *)g.y + f * g.dy_feature_stride;
    A scale = ((const A *)g.scale)[f], bias = ((const A *)g.bias)[f];
    A alpha = (A)g.alpha, beta = (A)g.beta;
    WALK (w) {
        A value = madd((wide(x[at(g, w)]) - mean) * deviation, scale, bias);
        blend(y + at_dy(g, w), alpha * value, beta);
    }
}

KERNEL norm_training(const __grid_constant__ dnn_norm g)
{
    __shared__ A shared[DNN_THREADS];
    LOOP (I f = blockIdx.x; f < g.features; f += gridDim.x) {
        const T *x = (const T *)g.x + f * g.feature_stride;
        Moments m = moments(g, x, shared);
        A deviation = inverse_root(m.variance + (A)g.epsilon);
        if (threadIdx.x == 0 && g.flags & DNN_SAVED) {
            ((A *)g.mean)[f] = m.mean;
            ((A *)g.deviation)[f] = deviation;
        }
        if (threadIdx.x == 0 && g.flags & DNN_RUNNING) {
            A count = (A)(g.samples * g.places);
            average(g.running_mean, f, (A)g.factor, m.mean);
            average(g.running_variance, f, (A)g.factor,
                    count > 1 ? m.variance * (count / (count - 1)) : m.variance);
        }
        normalise(g, f, x, m.mean, deviation);
    }
}

KERNEL norm_inference(const __grid_constant__ dnn_norm g)
{
    LOOP (I f = blockIdx.x; f < g.features; f += gridDim.x)
        normalise(g, f, (const T *)g.x + f * g.feature_stride, ((const A *)g.running_mean)[f],
                  inverse_root(((const A *)g.running_variance)[f] + (A)g.epsilon));
}

INLINE void blend_sum(uint64_t to, I f, A value, A beta)
{
    A *at = (A *)to + f;
    *at = beta == 0 ? value : madd(beta, *at, value);
}

KERNEL norm_backward(const __grid_constant__ dnn_norm g)
{
    __shared__ A shared[DNN_THREADS];
    LOOP (I f = blockIdx.x; f < g.features; f += gridDim.x) {
        const T *x = (const T *)g.x + f * g.feature_stride;
        const T *dy = (const T *)g.dy + f * g.dy_feature_stride;
        T *dx = (T *)g.dx + f * g.feature_stride;
        A mean, deviation, sum = 0, products = 0, count = (A)(g.samples * g.places);
        if (g.flags & DNN_SAVED) {
            mean = ((const A *)g.mean)[f];
            deviation = ((const A *)g.deviation)[f];
        } else {
            Moments m = moments(g, x, shared);
            mean = m.mean;
            deviation = inverse_root(m.variance + (A)g.epsilon);
        }
        WALK (w) {
            A gradient = wide(dy[at_dy(g, w)]);
            sum += gradient;
            products = madd(gradient, wide(x[at(g, w)]) - mean, products);
        }
        sum = sum_of_block(shared, sum);
        products = sum_of_block(shared, products) * deviation;
        if (threadIdx.x == 0) {
            blend_sum(g.d_scale, f, (A)g.alpha_d * products, (A)g.beta_d);
            blend_sum(g.d_bias, f, (A)g.alpha_d * sum, (A)g.beta_d);
        }
        A scale = (A)g.alpha * ((const A *)g.scale)[f] * deviation, beta = (A)g.beta;
        A mean_gradient = sum / count, slope = products / count * deviation;
        WALK (w) {
            A value = wide(dy[at_dy(g, w)]) - mean_gradient;
            value = madd(mean - wide(x[at(g, w)]), slope, value);
            blend(dx + at(g, w), scale * value, beta);
        }
    }
}
