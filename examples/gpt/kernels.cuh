// kernels.cuh: every kernel of the model, forward and backward, in single precision.
//
// Shapes: B sequences of T tokens give M = B*T rows; C channels, NH heads of HS = C/NH channels,
// V symbols in the vocabulary. All matrices are row-major. No atomics anywhere: each output
// element is computed by one thread or one warp in a fixed order, so that the same inputs give
// the same bits on every run.
#pragma once

constexpr int WARP = 32;
constexpr int ROWS_PER_BLOCK = 4;  // warps of a block in the one-warp-per-row kernels
constexpr int TILE = 32;           // gemm: a block computes TILE x TILE outputs ...
constexpr int TILE_K = 16;         // ... from slices that are TILE_K deep
constexpr int MICRO = 4;           // ... each thread MICRO x MICRO of them
constexpr int GEMM_SIDE = TILE / MICRO;

__device__ inline float warp_sum(float x)
{
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

__device__ inline float warp_max(float x)
{
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

// ---- matrix products ---------------------------------------------------------------------

struct Gemm {
    const float *a, *b;   // op(a): m x k, op(b): k x n
    const float *bias;    // n, or null
    const float *add;     // m x n, or null; may be `out`
    float *out;           // m x n
    int m, n, k;
};

// Copies the slices op(a)[row0.., k0..] and op(b)[k0.., col0..] into shared memory, zeros
// beyond the edges. Neighbouring threads read neighbouring addresses in either layout.
template <bool TransA, bool TransB>
__device__ inline void load_tiles(const Gemm &g, int row0, int col0, int k0,
                                  float (*as)[TILE], float (*bs)[TILE])
{
    int thread = threadIdx.y * GEMM_SIDE + threadIdx.x;
    for (int i = thread; i < TILE * TILE_K; i += GEMM_SIDE * GEMM_SIDE) {
        int am = TransA ? i % TILE : i / TILE_K, ak = TransA ? i / TILE : i % TILE_K;
        int bn = TransB ? i / TILE_K : i % TILE, bk = TransB ? i % TILE_K : i / TILE;
        int row = row0 + am, col = col0 + bn;
        float x = 0.0f, y = 0.0f;
        if (row < g.m && k0 + ak < g.k)
            x = g.a[TransA ? (k0 + ak) * g.m + row : row * g.k + k0 + ak];
        if (col < g.n && k0 + bk < g.k)
            y = g.b[TransB ? col * g.k + k0 + bk : (k0 + bk) * g.n + col];
        as[ak][am] = x;
        bs[bk][bn] = y;
    }
}

// out = op(a) op(b) (+ bias) (+ add)
template <bool TransA, bool TransB>
__device__ inline void gemm(const Gemm &g)
{
    __shared__ __align__(16) float as[TILE_K][TILE];
    __shared__ __align__(16) float bs[TILE_K][TILE];
    int row0 = blockIdx.y * TILE, col0 = blockIdx.x * TILE;
    float acc[MICRO][MICRO] = {};
    for (int k0 = 0; k0 < g.k; k0 += TILE_K) {
        load_tiles<TransA, TransB>(g, row0, col0, k0, as, bs);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TILE_K; k++) {
            float4 x4 = *reinterpret_cast<const float4 *>(&as[k][threadIdx.y * MICRO]);
            float4 y4 = *reinterpret_cast<const float4 *>(&bs[k][threadIdx.x * MICRO]);
            const float x[MICRO] = {x4.x, x4.y, x4.z, x4.w};
            const float y[MICRO] = {y4.x, y4.y, y4.z, y4.w};
#pragma unroll
            for (int i = 0; i < MICRO; i++)
#pragma unroll
                for (int j = 0; j < MICRO; j++)
                    acc[i][j] += x[i] * y[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < MICRO; i++)
#pragma unroll
        for (int j = 0; j < MICRO; j++) {
            int row = row0 + threadIdx.y * MICRO + i, col = col0 + threadIdx.x * MICRO + j;
            if (row >= g.m || col >= g.n)
                continue;
            float value = acc[i][j];
            if (g.bias)
                value += g.bias[col];
            if (g.add)
                value += g.add[row * g.n + col];
            g.out[row * g.n + col] = value;
        }
}

extern "C" __global__ void gemm_nn(Gemm g) { gemm<false, false>(g); }
extern "C" __global__ void gemm_nt(Gemm g) { gemm<false, true>(g); }
extern "C" __global__ void gemm_tn(Gemm g) { gemm<true, false>(g); }

// out[n] = sum over rows of in[m][n]: the gradient of a bias.
extern "C" __global__ void column_sum(const float *in, float *out, int m, int n)
{
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= n)
        return;
    float sum = 0.0f;
    for (int row = 0; row < m; row++)
        sum += in[row * n + col];
    out[col] = sum;
}

// ---- embedding ---------------------------------------------------------------------------

// out[m][c] = wte[token[m]][c] + wpe[m % T][c]
extern "C" __global__ void embedding_forward(const int *tokens, const float *wte,
                                             const float *wpe, float *out, int m, int t, int c)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= m * c)
        return;
    int row = i / c, channel = i % c;
    out[i] = wte[tokens[row] * c + channel] + wpe[row % t * c + channel];
}

// dwte[v][c] += the sum of dout over the rows whose token is v. The output layer, which shares
// wte, has written its part already.
extern "C" __global__ void token_embedding_backward(const int *tokens, const float *dout,
                                                    float *dwte, int m, int v, int c)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= v * c)
        return;
    int symbol = i / c, channel = i % c;
    float sum = 0.0f;
    for (int row = 0; row < m; row++)
        if (tokens[row] == symbol)
            sum += dout[row * c + channel];
    dwte[i] += sum;
}

extern "C" __global__ void position_embedding_backward(const float *dout, float *dwpe, int b,
                                                       int t, int c)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= t * c)
        return;
    float sum = 0.0f;
    for (int sequence = 0; sequence < b; sequence++)
        sum += dout[sequence * t * c + i];
    dwpe[i] = sum;
}

// ---- layer normalisation: one warp per row -----------------------------------------------

extern "C" __global__ void layernorm_forward(const float *in, const float *gamma,
                                             const float *beta, float *out, float *mean,
                                             float *rstd, int m, int c)
{
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= m)
        return;
    const float *x = in + row * c;
    float sum = 0.0f, squares = 0.0f;
    for (int i = threadIdx.x; i < c; i += WARP)
        sum += x[i];
    float mu = warp_sum(sum) / c;
    for (int i = threadIdx.x; i < c; i += WARP)
        squares += (x[i] - mu) * (x[i] - mu);
    float inverse = 1.0f / sqrtf(warp_sum(squares) / c + 1e-5f);
    for (int i = threadIdx.x; i < c; i += WARP)
        out[row * c + i] = (x[i] - mu) * inverse * gamma[i] + beta[i];
    if (threadIdx.x == 0) {
        mean[row] = mu;
        rstd[row] = inverse;
    }
}

// din += the gradient with respect to the input: the residual stream's share is in din already.
extern "C" __global__ void layernorm_backward_input(const float *dout, const float *in,
                                                    const float *gamma, const float *mean,
                                                    const float *rstd, float *din, int m, int c)
{
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= m)
        return;
    const float *x = in + row * c, *dy = dout + row * c;
    float mu = mean[row], inverse = rstd[row], sum = 0.0f, dot = 0.0f;
    for (int i = threadIdx.x; i < c; i += WARP) {
        float d = dy[i] * gamma[i];
        sum += d;
        dot += d * (x[i] - mu) * inverse;
    }
    sum = warp_sum(sum) / c;
    dot = warp_sum(dot) / c;
    for (int i = threadIdx.x; i < c; i += WARP) {
        float normal = (x[i] - mu) * inverse;
        din[row * c + i] += (dy[i] * gamma[i] - sum - normal * dot) * inverse;
    }
}

extern "C" __global__ void layernorm_backward_params(const float *dout, const float *in,
                                                     const float *mean, const float *rstd,
                                                     float *dgamma, float *dbeta, int m, int c)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= c)
        return;
    float dg = 0.0f, db = 0.0f;
    for (int row = 0; row < m; row++) {
        float d = dout[row * c + i];
        dg += d * (in[row * c + i] - mean[row]) * rstd[row];
        db += d;
    }
    dgamma[i] = dg;
    dbeta[i] = db;
}

// ---- causal self-attention: one warp per (sequence, head, position) -----------------------

// Where a row (m = b*T + t) of q, k or v of one head starts in qkv[m][3*C].
__device__ inline const float *head_row(const float *qkv, int which, int m, int head, int c,
                                        int hs)
{
    return qkv + m * 3 * c + which * c + head * hs;
}

struct Attention {
    int b, t, c, nh;
};

// weights[b][h][t][s] = softmax over s <= t of q[t].k[s] / sqrt(HS); out[t] = weights[t] v
extern "C" __global__ void attention_forward(const float *qkv, float *weights, float *out,
                                             Attention n)
{
    int unit = blockIdx.x * blockDim.y + threadIdx.y, hs = n.c / n.nh;
    if (unit >= n.b * n.nh * n.t)
        return;
    int t = unit % n.t, head = unit / n.t % n.nh, first = unit / n.t / n.nh * n.t;
    const float *q = head_row(qkv, 0, first + t, head, n.c, hs);
    float *w = weights + unit * n.t;
    float scale = 1.0f / sqrtf((float)hs), top = -INFINITY, sum = 0.0f;
    for (int s = threadIdx.x; s <= t; s += WARP) {
        const float *k = head_row(qkv, 1, first + s, head, n.c, hs);
        float dot = 0.0f;
        for (int i = 0; i < hs; i++)
            dot += q[i] * k[i];
        w[s] = dot * scale;
        top = fmaxf(top, w[s]);
    }
    top = warp_max(top);
    for (int s = threadIdx.x; s <= t; s += WARP) {
        w[s] = expf(w[s] - top);
        sum += w[s];
    }
    sum = warp_sum(sum);
    for (int s = threadIdx.x; s < n.t; s += WARP)
        w[s] = s <= t ? w[s] / sum : 0.0f;
    __syncwarp();
    for (int i = threadIdx.x; i < hs; i += WARP) {
        float value = 0.0f;
        for (int s = 0; s <= t; s++)
            value += w[s] * head_row(qkv, 2, first + s, head, n.c, hs)[i];
        out[(first + t) * n.c + head * hs + i] = value;
    }
}

// dscores[b][h][t][s], the gradient before the softmax, and dq[t]
extern "C" __global__ void attention_backward_query(const float *qkv, const float *weights,
                                                    const float *dout, float *dscores,
                                                    float *dqkv, Attention n)
{
    int unit = blockIdx.x * blockDim.y + threadIdx.y, hs = n.c / n.nh;
    if (unit >= n.b * n.nh * n.t)
        return;
    int t = unit % n.t, head = unit / n.t % n.nh, first = unit / n.t / n.nh * n.t;
    const float *w = weights + unit * n.t, *dy = dout + (first + t) * n.c + head * hs;
    float *ds = dscores + unit * n.t;
    float scale = 1.0f / sqrtf((float)hs), sum = 0.0f;
    for (int s = threadIdx.x; s <= t; s += WARP) {
        const float *v = head_row(qkv, 2, first + s, head, n.c, hs);
        float dw = 0.0f;
        for (int i = 0; i < hs; i++)
            dw += dy[i] * v[i];
        ds[s] = dw;
        sum += w[s] * dw;
    }
    sum = warp_sum(sum);
    for (int s = threadIdx.x; s < n.t; s += WARP)
        ds[s] = s <= t ? w[s] * (ds[s] - sum) * scale : 0.0f;
    __syncwarp();
    for (int i = threadIdx.x; i < hs; i += WARP) {
        float dq = 0.0f;
        for (int s = 0; s <= t; s++)
            dq += ds[s] * head_row(qkv, 1, first + s, head, n.c, hs)[i];
        dqkv[(first + t) * 3 * n.c + head * hs + i] = dq;
    }
}

// dk[s] and dv[s]: sums over the positions t >= s that looked at s
extern "C" __global__ void attention_backward_key_value(const float *qkv, const float *weights,
                                                        const float *dout, const float *dscores,
                                                        float *dqkv, Attention n)
{
    int unit = blockIdx.x * blockDim.y + threadIdx.y, hs = n.c / n.nh;
    if (unit >= n.b * n.nh * n.t)
        return;
    int s = unit % n.t, head = unit / n.t % n.nh, first = unit / n.t / n.nh * n.t;
    int square = unit / n.t * n.t * n.t;  // where this (sequence, head) starts in the weights
    for (int i = threadIdx.x; i < hs; i += WARP) {
        float dk = 0.0f, dv = 0.0f;
        for (int t = s; t < n.t; t++) {
            dk += dscores[square + t * n.t + s] * head_row(qkv, 0, first + t, head, n.c, hs)[i];
            dv += weights[square + t * n.t + s] * dout[(first + t) * n.c + head * hs + i];
        }
        float *row = dqkv + (first + s) * 3 * n.c + head * hs;
        row[n.c + i] = dk;
        row[2 * n.c + i] = dv;
    }
}

// ---- GELU (tanh approximation) -------------------------------------------------------------

constexpr float GELU_SCALE = 0.7978845608f;  // sqrt(2/pi)
constexpr float GELU_CUBE = 0.044715f;

extern "C" __global__ void gelu_forward(const float *in, float *out, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    float x = in[i];
    out[i] = 0.5f * x * (1.0f + tanhf(GELU_SCALE * (x + GELU_CUBE * x * x * x)));
}

// dx = dx * gelu'(in), in place
extern "C" __global__ void gelu_backward(const float *in, float *dx, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    float x = in[i];
    float t = tanhf(GELU_SCALE * (x + GELU_CUBE * x * x * x));
    float slope = GELU_SCALE * (1.0f + 3.0f * GELU_CUBE * x * x);
    dx[i] *= 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * slope;
}

// ---- loss: one warp per row ----------------------------------------------------------------

// losses[m] = -log softmax(logits[m])[target[m]]; logits become their gradient of the mean loss.
extern "C" __global__ void cross_entropy(float *logits, const int *targets, float *losses,
                                         int m, int v)
{
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= m)
        return;
    float *x = logits + row * v;
    float top = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x; i < v; i += WARP)
        top = fmaxf(top, x[i]);
    top = warp_max(top);
    for (int i = threadIdx.x; i < v; i += WARP)
        sum += expf(x[i] - top);
    sum = warp_sum(sum);
    int target = targets[row];
    if (threadIdx.x == 0)
        losses[row] = logf(sum) - (x[target] - top);
    __syncwarp();
    for (int i = threadIdx.x; i < v; i += WARP)
        x[i] = (expf(x[i] - top) / sum - (i == target ? 1.0f : 0.0f)) / m;
}

// One warp: the mean of `count` numbers, always added in the same order.
extern "C" __global__ void mean(const float *in, float *out, int count)
{
    float sum = 0.0f;
    for (int i = threadIdx.x; i < count; i += WARP)
        sum += in[i];
    sum = warp_sum(sum);
    if (threadIdx.x == 0)
        *out = sum / count;
}

// ---- optimizer -----------------------------------------------------------------------------

struct AdamW {
    float lr, beta1, beta2, epsilon, decay;
    float correction1, correction2;  // 1 - beta^step
};

extern "C" __global__ void adamw(float *params, const float *grads, float *first, float *second,
                                 int count, AdamW o)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    float g = grads[i];
    float m = first[i] = o.beta1 * first[i] + (1.0f - o.beta1) * g;
    float v = second[i] = o.beta2 * second[i] + (1.0f - o.beta2) * g * g;
    float step = (m / o.correction1) / (sqrtf(v / o.correction2) + o.epsilon);
    params[i] -= o.lr * (step + o.decay * params[i]);
}
