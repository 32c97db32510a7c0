// gradient.cu: one forward and backward pass of examples/gpt's model on given parameters, for
// comparison with the NumPy twin. Arguments: batch seq layers channels heads vocab, a file to read
// (parameters, tokens, targets) and one to write (loss, gradients), all raw 4-byte words.
#include <fstream>

#include "../../examples/gpt/model.cuh"

template <typename T>
static std::vector<T> read(std::ifstream &file, size_t count)
{
    std::vector<T> values(count);
    if (!file.read(reinterpret_cast<char *>(values.data()), std::streamsize(count * sizeof(T))))
        die("the input is too short");
    return values;
}

int main(int argc, char **argv)
{
    if (argc != 9)
        die("wants 8 arguments");
    Config config;
    config.batch = atoi(argv[1]), config.seq = atoi(argv[2]), config.layers = atoi(argv[3]);
    config.channels = atoi(argv[4]), config.heads = atoi(argv[5]), config.vocab = atoi(argv[6]);
    Model model(config, 0);
    std::ifstream in(argv[7], std::ios::binary);
    std::vector<float> params = read<float>(in, model.params.count);
    std::vector<int> tokens = read<int>(in, 2 * size_t(config.rows()));
    CUDA_CHECK(cudaMemcpy(model.params.data, params.data(), params.size() * 4,
                          cudaMemcpyHostToDevice));
    int *batch;
    float *loss;
    CUDA_CHECK(cudaMalloc(&batch, tokens.size() * 4));
    CUDA_CHECK(cudaMalloc(&loss, 4));
    CUDA_CHECK(cudaMemcpy(batch, tokens.data(), tokens.size() * 4, cudaMemcpyHostToDevice));

    size_t buckets = 0;
    model.forward(batch, batch + config.rows(), loss);
    model.backward(batch, [&](int bucket) { buckets += size_t(bucket) == buckets; });
    if (buckets != model.grads.buckets.size())
        die("%zu buckets of %zu in order", buckets, model.grads.buckets.size());

    std::vector<float> out(1 + params.size());
    CUDA_CHECK(cudaMemcpy(out.data(), loss, 4, cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaMemcpy(out.data() + 1, model.grads.data, params.size() * 4,
                          cudaMemcpyDeviceToHost));
    std::ofstream file(argv[8], std::ios::binary);
    file.write(reinterpret_cast<const char *>(out.data()), std::streamsize(out.size() * 4));
    return file.flush() ? 0 : 1;
}
