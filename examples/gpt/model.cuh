// model.cuh: a GPT-2-shaped transformer: parameters, activations, forward and backward pass.
//
// One allocation has all parameters, another of the same layout their gradients. The layout
// follows the order in which the backward pass finishes gradients, so that each bucket of the
// gradient all-reduce is one contiguous range: last layer first, embeddings last.
#pragma once

#include <vector>

#include "check.h"
#include "kernels.cuh"

struct Config {
    int batch = 4, seq = 48, layers = 2, channels = 64, heads = 4, vocab = 0;
    int rows() const { return batch * seq; }
};

struct Layer {  // offsets are pointers into Parameters::data
    float *ln1_gamma, *ln1_beta, *qkv_weight, *qkv_bias, *proj_weight, *proj_bias;
    float *ln2_gamma, *ln2_beta, *up_weight, *up_bias, *down_weight, *down_bias;
};

struct Bucket {
    size_t first, count;  // floats
};

// Matrices are stored (inputs, outputs): y = x W + b.
struct Parameters {
    float *data = nullptr;
    size_t count = 0;
    float *final_gamma, *final_beta;
    std::vector<Layer> layers;
    float *wte, *wpe;  // (vocab, channels), shared with the output layer; (seq, channels)
    std::vector<Bucket> buckets;  // in the order in which their gradients are finished

    explicit Parameters(const Config &config)
    {
        lay_out(config);  // once to count, once with an address
        CUDA_CHECK(cudaMalloc(&data, count * sizeof(float)));
        CUDA_CHECK(cudaMemset(data, 0, count * sizeof(float)));
        lay_out(config);
    }
    ~Parameters() { cudaFree(data); }
    Parameters(const Parameters &) = delete;

private:
    float *take(size_t floats)
    {
        float *at = data ? data + count : nullptr;
        count += floats;
        return at;
    }
    void close_bucket()
    {
        size_t first = buckets.empty() ? 0 : buckets.back().first + buckets.back().count;
        buckets.push_back({first, count - first});
    }
    void lay_out(const Config &config)
    {
        size_t c = config.channels;
        count = 0;
        buckets.clear();
        layers.assign(config.layers, Layer{});
        final_gamma = take(c), final_beta = take(c);
        for (int l = config.layers - 1; l >= 0; l--) {
            Layer &p = layers[l];
            p.down_weight = take(4 * c * c), p.down_bias = take(c);
            p.up_weight = take(c * 4 * c), p.up_bias = take(4 * c);
            p.ln2_gamma = take(c), p.ln2_beta = take(c);
            p.proj_weight = take(c * c), p.proj_bias = take(c);
            p.qkv_weight = take(c * 3 * c), p.qkv_bias = take(3 * c);
            p.ln1_gamma = take(c), p.ln1_beta = take(c);
            close_bucket();
        }
        wte = take(config.vocab * c), wpe = take(config.seq * c);
        close_bucket();
    }
};

// What the backward pass needs from the forward pass of one layer.
struct LayerActivations {
    float *input, *ln1, *mean1, *rstd1, *qkv, *weights, *attention;
    float *middle, *ln2, *mean2, *rstd2, *up, *gelu;
};

class Model {
public:
    const Config config;
    Parameters params, grads;

    Model(const Config &config, cudaStream_t stream);
    ~Model();
    Model(const Model &) = delete;

    // Enqueues the forward pass and the loss's gradient; the mean loss goes to *loss (device).
    void forward(const int *tokens, const int *targets, float *loss);
    // Enqueues the backward pass. Calls bucket_done(i) when the kernels that finish bucket i
    // are in the stream.
    template <typename F>
    void backward(const int *tokens, F bucket_done);

private:
    cudaStream_t stream;
    std::vector<LayerActivations> acts;
    float *output, *final_ln, *final_mean, *final_rstd, *logits, *losses;
    float *d_stream, *d_wide, *d_narrow, *d_qkv, *d_scores;  // gradients of activations
    std::vector<float *> allocations;

    float *floats(size_t count);
    void attention_forward(const Layer &p, const LayerActivations &a);
    void layer_forward(int l, float *out);
    void layer_backward(int l);
    void attention_backward(const Layer &g, const Layer &p, const LayerActivations &a);
    void linear(const float *x, const float *weight, const float *bias, const float *add,
                float *out, int inputs, int outputs);
    void linear_backward(const float *x, const float *weight, const float *dy, float *dx,
                         float *dweight, float *dbias, int inputs, int outputs);
    void norm(const float *x, const float *gamma, const float *beta, float *out, float *mean,
              float *rstd);
    void norm_backward(const float *x, const float *gamma, const float *mean, const float *rstd,
                       const float *dy, float *dx, float *dgamma, float *dbeta);
};

constexpr int BLOCK = 128;
inline int blocks(int threads) { return (threads + BLOCK - 1) / BLOCK; }
inline int row_blocks(int rows) { return (rows + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK; }
inline dim3 tiles(int m, int n) { return dim3((n + TILE - 1) / TILE, (m + TILE - 1) / TILE); }
static const dim3 GEMM_BLOCK(GEMM_SIDE, GEMM_SIDE), ROW_BLOCK(WARP, ROWS_PER_BLOCK);

inline float *Model::floats(size_t count)
{
    float *data;
    CUDA_CHECK(cudaMalloc(&data, count * sizeof(float)));
    allocations.push_back(data);
    return data;
}

inline Model::Model(const Config &config, cudaStream_t stream)
    : config(config), params(config), grads(config), stream(stream)
{
    size_t m = config.rows(), c = config.channels, square = m * config.heads * config.seq;
    for (int l = 0; l < config.layers; l++) {
        LayerActivations a;
        a.input = floats(m * c), a.ln1 = floats(m * c);
        a.mean1 = floats(m), a.rstd1 = floats(m);
        a.qkv = floats(m * 3 * c), a.weights = floats(square), a.attention = floats(m * c);
        a.middle = floats(m * c), a.ln2 = floats(m * c);
        a.mean2 = floats(m), a.rstd2 = floats(m);
        a.up = floats(m * 4 * c), a.gelu = floats(m * 4 * c);
        acts.push_back(a);
    }
    output = floats(m * c), final_ln = floats(m * c);
    final_mean = floats(m), final_rstd = floats(m);
    logits = floats(m * config.vocab), losses = floats(m);
    d_stream = floats(m * c), d_wide = floats(m * 4 * c), d_narrow = floats(m * c);
    d_qkv = floats(m * 3 * c), d_scores = floats(square);
}

inline Model::~Model()
{
    for (float *data : allocations)
        cudaFree(data);
}

inline void Model::linear(const float *x, const float *weight, const float *bias,
                          const float *add, float *out, int inputs, int outputs)
{
    int m = config.rows();
    gemm_nn<<<tiles(m, outputs), GEMM_BLOCK, 0, stream>>>(
        {x, weight, bias, add, out, m, outputs, inputs});
}

inline void Model::linear_backward(const float *x, const float *weight, const float *dy, float *dx,
                                   float *dweight, float *dbias, int inputs, int outputs)
{
    int m = config.rows();
    gemm_nt<<<tiles(m, inputs), GEMM_BLOCK, 0, stream>>>(
        {dy, weight, nullptr, nullptr, dx, m, inputs, outputs});
    gemm_tn<<<tiles(inputs, outputs), GEMM_BLOCK, 0, stream>>>(
        {x, dy, nullptr, nullptr, dweight, inputs, outputs, m});
    column_sum<<<blocks(outputs), BLOCK, 0, stream>>>(dy, dbias, m, outputs);
}

inline void Model::norm(const float *x, const float *gamma, const float *beta, float *out,
                        float *mean, float *rstd)
{
    layernorm_forward<<<row_blocks(config.rows()), ROW_BLOCK, 0, stream>>>(
        x, gamma, beta, out, mean, rstd, config.rows(), config.channels);
}

inline void Model::norm_backward(const float *x, const float *gamma, const float *mean,
                                 const float *rstd, const float *dy, float *dx, float *dgamma,
                                 float *dbeta)
{
    int m = config.rows(), c = config.channels;
    layernorm_backward_params<<<blocks(c), BLOCK, 0, stream>>>(dy, x, mean, rstd, dgamma, dbeta,
                                                               m, c);
    layernorm_backward_input<<<row_blocks(m), ROW_BLOCK, 0, stream>>>(dy, x, gamma, mean, rstd,
                                                                      dx, m, c);
}

inline void Model::attention_forward(const Layer &p, const LayerActivations &a)
{
    int c = config.channels;
    norm(a.input, p.ln1_gamma, p.ln1_beta, a.ln1, a.mean1, a.rstd1);
    linear(a.ln1, p.qkv_weight, p.qkv_bias, nullptr, a.qkv, c, 3 * c);
    ::attention_forward<<<row_blocks(config.rows() * config.heads), ROW_BLOCK, 0, stream>>>(
        a.qkv, a.weights, a.attention, {config.batch, config.seq, c, config.heads});
    linear(a.attention, p.proj_weight, p.proj_bias, a.input, a.middle, c, c);
}

inline void Model::layer_forward(int l, float *out)
{
    const Layer &p = params.layers[l];
    const LayerActivations &a = acts[l];
    int c = config.channels, wide = config.rows() * 4 * c;
    attention_forward(p, a);
    norm(a.middle, p.ln2_gamma, p.ln2_beta, a.ln2, a.mean2, a.rstd2);
    linear(a.ln2, p.up_weight, p.up_bias, nullptr, a.up, c, 4 * c);
    gelu_forward<<<blocks(wide), BLOCK, 0, stream>>>(a.up, a.gelu, wide);
    linear(a.gelu, p.down_weight, p.down_bias, a.middle, out, 4 * c, c);
}

inline void Model::forward(const int *tokens, const int *targets, float *loss)
{
    int m = config.rows(), c = config.channels, v = config.vocab;
    embedding_forward<<<blocks(m * c), BLOCK, 0, stream>>>(tokens, params.wte, params.wpe,
                                                           acts[0].input, m, config.seq, c);
    for (int l = 0; l < config.layers; l++)
        layer_forward(l, l + 1 < config.layers ? acts[l + 1].input : output);
    norm(output, params.final_gamma, params.final_beta, final_ln, final_mean, final_rstd);
    gemm_nt<<<tiles(m, v), GEMM_BLOCK, 0, stream>>>(
        {final_ln, params.wte, nullptr, nullptr, logits, m, v, c});
    cross_entropy<<<row_blocks(m), ROW_BLOCK, 0, stream>>>(logits, targets, losses, m, v);
    mean<<<1, WARP, 0, stream>>>(losses, loss, m);
    CUDA_CHECK(cudaGetLastError());
}

inline void Model::attention_backward(const Layer &g, const Layer &p, const LayerActivations &a)
{
    int c = config.channels, rows = config.rows() * config.heads;
    Attention shape = {config.batch, config.seq, c, config.heads};
    linear_backward(a.attention, p.proj_weight, d_stream, d_narrow, g.proj_weight, g.proj_bias,
                    c, c);
    attention_backward_query<<<row_blocks(rows), ROW_BLOCK, 0, stream>>>(
        a.qkv, a.weights, d_narrow, d_scores, d_qkv, shape);
    attention_backward_key_value<<<row_blocks(rows), ROW_BLOCK, 0, stream>>>(
        a.qkv, a.weights, d_narrow, d_scores, d_qkv, shape);
    linear_backward(a.ln1, p.qkv_weight, d_qkv, d_narrow, g.qkv_weight, g.qkv_bias, c, 3 * c);
    norm_backward(a.input, p.ln1_gamma, a.mean1, a.rstd1, d_narrow, d_stream, g.ln1_gamma,
                  g.ln1_beta);
}

// d_stream: in, the gradient of the layer's output; out, of its input.
inline void Model::layer_backward(int l)
{
    const Layer &p = params.layers[l], &g = grads.layers[l];
    const LayerActivations &a = acts[l];
    int c = config.channels, wide = config.rows() * 4 * c;
    linear_backward(a.gelu, p.down_weight, d_stream, d_wide, g.down_weight, g.down_bias, 4 * c, c);
    gelu_backward<<<blocks(wide), BLOCK, 0, stream>>>(a.up, d_wide, wide);
    linear_backward(a.ln2, p.up_weight, d_wide, d_narrow, g.up_weight, g.up_bias, c, 4 * c);
    norm_backward(a.middle, p.ln2_gamma, a.mean2, a.rstd2, d_narrow, d_stream, g.ln2_gamma,
                  g.ln2_beta);
    attention_backward(g, p, a);
}

template <typename F>
void Model::backward(const int *tokens, F bucket_done)
{
    int m = config.rows(), c = config.channels, v = config.vocab, bucket = 0;
    gemm_nn<<<tiles(m, c), GEMM_BLOCK, 0, stream>>>(
        {logits, params.wte, nullptr, nullptr, d_narrow, m, c, v});
    gemm_tn<<<tiles(v, c), GEMM_BLOCK, 0, stream>>>(
        {logits, final_ln, nullptr, nullptr, grads.wte, v, c, m});
    CUDA_CHECK(cudaMemsetAsync(d_stream, 0, sizeof(float) * m * c, stream));
    norm_backward(output, params.final_gamma, final_mean, final_rstd, d_narrow, d_stream,
                  grads.final_gamma, grads.final_beta);
    for (int l = config.layers - 1; l >= 0; l--) {
        layer_backward(l);
        bucket_done(bucket++);
    }
    token_embedding_backward<<<blocks(v * c), BLOCK, 0, stream>>>(tokens, d_stream, grads.wte, m,
                                                                  v, c);
    position_embedding_backward<<<blocks(config.seq * c), BLOCK, 0, stream>>>(
        d_stream, grads.wpe, config.batch, config.seq, c);
    CUDA_CHECK(cudaGetLastError());
    bucket_done(bucket);
}
