// train_gpt.cu: trains a small character-level GPT, data-parallel, one process per GPU.
//
// Each rank draws its own sequences, computes its gradients and averages them with the other
// ranks, bucket by bucket, on a communication stream while the backward pass still runs. A third
// stream uploads the next batch. Every step each rank prints its own loss and the loss's bits:
//
//     step 7 loss 3.14159274 40490fdb
#include <getopt.h>

#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "checkpoint.h"
#include "model.cuh"
#include "rendezvous.h"

struct Options {
    int steps = 200, seed = 1, save_every = 50;
    float lr = 3e-3f;
    std::string data = "text/genesis.txt", out, save, load;
    Config model;
};

static Options parse(int argc, char **argv)
{
    static const option names[] = {
        {"steps", 1, nullptr, 's'},  {"batch", 1, nullptr, 'b'},    {"seq", 1, nullptr, 't'},
        {"layers", 1, nullptr, 'l'}, {"channels", 1, nullptr, 'c'}, {"heads", 1, nullptr, 'h'},
        {"lr", 1, nullptr, 'r'},     {"seed", 1, nullptr, 'e'},     {"data", 1, nullptr, 'd'},
        {"out", 1, nullptr, 'o'},    {"save", 1, nullptr, 'S'},     {"save-every", 1, nullptr, 'E'},
        {"load", 1, nullptr, 'L'},   {nullptr, 0, nullptr, 0}};
    Options o;
    for (int c; (c = getopt_long(argc, argv, "", names, nullptr)) != -1;) {
        switch (c) {
        case 's': o.steps = atoi(optarg); break;
        case 'b': o.model.batch = atoi(optarg); break;
        case 't': o.model.seq = atoi(optarg); break;
        case 'l': o.model.layers = atoi(optarg); break;
        case 'c': o.model.channels = atoi(optarg); break;
        case 'h': o.model.heads = atoi(optarg); break;
        case 'r': o.lr = strtof(optarg, nullptr); break;
        case 'e': o.seed = atoi(optarg); break;
        case 'd': o.data = optarg; break;
        case 'o': o.out = optarg; break;
        case 'S': o.save = optarg; break;
        case 'E': o.save_every = atoi(optarg); break;
        case 'L': o.load = optarg; break;
        default: die("see README.md for the options");
        }
    }
    const Config &m = o.model;
    if (optind < argc || o.steps < 1 || o.save_every < 1 || m.batch < 1 || m.seq < 1 ||
        m.layers < 1 || m.heads < 1 || m.channels < 1 || m.channels % m.heads)
        die("sizes must be positive, and --channels a multiple of --heads");
    return o;
}

// ---- text ----------------------------------------------------------------------------------

// The text as symbols 0..vocab-1: the bytes that occur in it, in the order of their values.
struct Text {
    std::vector<int> symbols;
    int vocab = 0;

    explicit Text(const std::string &path)
    {
        std::ifstream file(path, std::ios::binary);
        std::vector<unsigned char> bytes{std::istreambuf_iterator<char>(file), {}};
        if (!file || bytes.empty())
            die("cannot read %s", path.c_str());
        int symbol_of[256];
        std::fill(symbol_of, symbol_of + 256, -1);
        for (unsigned char byte : bytes)
            symbol_of[byte] = 0;
        for (int &symbol : symbol_of)
            if (symbol == 0)
                symbol = vocab++;
        for (unsigned char byte : bytes)
            symbols.push_back(symbol_of[byte]);
    }
};

static uint64_t mix(uint64_t x)  // splitmix64
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// Two device buffers and two pinned ones, so that batch n + 1 is uploaded while n is in use.
// A buffer holds the tokens of a batch, then its targets.
class Loader {
public:
    Loader(const Text &text, const Config &config, const World &world, uint64_t seed)
        : text(text), config(config), world(world), seed(seed)
    {
        if (text.symbols.size() <= size_t(config.seq))
            die("the text is shorter than one sequence");
        CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        for (int i = 0; i < 2; i++) {
            CUDA_CHECK(cudaMallocHost(&pinned[i], bytes()));
            CUDA_CHECK(cudaMalloc(&device[i], bytes()));
            CUDA_CHECK(cudaEventCreateWithFlags(&uploaded[i], cudaEventDisableTiming));
            CUDA_CHECK(cudaEventCreateWithFlags(&used[i], cudaEventDisableTiming));
        }
    }
    ~Loader()
    {
        for (int i = 0; i < 2; i++) {
            cudaFreeHost(pinned[i]);
            cudaFree(device[i]);
            cudaEventDestroy(uploaded[i]);
            cudaEventDestroy(used[i]);
        }
        cudaStreamDestroy(stream);
    }

    void upload(int step)
    {
        int i = step % 2;
        CUDA_CHECK(cudaEventSynchronize(uploaded[i]));  // the upload of step - 2 has read it
        fill(pinned[i], step);
        CUDA_CHECK(cudaStreamWaitEvent(stream, used[i], 0));
        CUDA_CHECK(cudaMemcpyAsync(device[i], pinned[i], bytes(), cudaMemcpyHostToDevice,
                                   stream));
        CUDA_CHECK(cudaEventRecord(uploaded[i], stream));
    }
    // The batch of a step, for use in `consumer`, until release(step, consumer).
    const int *acquire(int step, cudaStream_t consumer)
    {
        CUDA_CHECK(cudaStreamWaitEvent(consumer, uploaded[step % 2], 0));
        return device[step % 2];
    }
    void release(int step, cudaStream_t consumer)
    {
        CUDA_CHECK(cudaEventRecord(used[step % 2], consumer));
    }

private:
    const Text &text;
    const Config config;
    const World &world;
    uint64_t seed;
    cudaStream_t stream;
    int *pinned[2], *device[2];
    cudaEvent_t uploaded[2], used[2];

    size_t bytes() const { return 2 * sizeof(int) * config.rows(); }

    void fill(int *batch, int step) const
    {
        for (int b = 0; b < config.batch; b++) {
            uint64_t sequence = (uint64_t(step) * world.size + world.rank) * config.batch + b;
            size_t start = mix(seed << 40 ^ sequence) % (text.symbols.size() - config.seq);
            for (int t = 0; t < config.seq; t++) {
                batch[b * config.seq + t] = text.symbols[start + t];
                batch[config.rows() + b * config.seq + t] = text.symbols[start + t + 1];
            }
        }
    }
};

// ---- parameters ----------------------------------------------------------------------------

static void set_normal(float *device, size_t count, float deviation, uint64_t &state)
{
    std::vector<float> values(count);
    for (float &value : values) {  // Box-Muller
        double u = (double(mix(state++) >> 11) + 0.5) * 0x1p-53;
        double angle = double(mix(state++) >> 11) * 0x1p-53 * 6.283185307179586;
        value = float(deviation * std::sqrt(-2.0 * std::log(u)) * std::cos(angle));
    }
    CUDA_CHECK(cudaMemcpy(device, values.data(), count * sizeof(float), cudaMemcpyHostToDevice));
}

static void set_ones(float *device, size_t count)
{
    std::vector<float> ones(count, 1.0f);
    CUDA_CHECK(cudaMemcpy(device, ones.data(), count * sizeof(float), cudaMemcpyHostToDevice));
}

// GPT-2's initialisation; biases and betas stay zero.
static void initialise(const Parameters &params, const Config &config, uint64_t seed)
{
    size_t c = config.channels;
    uint64_t state = mix(seed);
    float residual = 0.02f / std::sqrt(2.0f * config.layers);
    set_normal(params.wte, config.vocab * c, 0.02f, state);
    set_normal(params.wpe, config.seq * c, 0.02f, state);
    set_ones(params.final_gamma, c);
    for (const Layer &p : params.layers) {
        set_ones(p.ln1_gamma, c);
        set_ones(p.ln2_gamma, c);
        set_normal(p.qkv_weight, 3 * c * c, 0.02f, state);
        set_normal(p.proj_weight, c * c, residual, state);
        set_normal(p.up_weight, 4 * c * c, 0.02f, state);
        set_normal(p.down_weight, 4 * c * c, residual, state);
    }
}

static void save(const Parameters &params, const std::string &path)
{
    std::vector<float> values(params.count);
    CUDA_CHECK(cudaMemcpy(values.data(), params.data, params.count * sizeof(float),
                          cudaMemcpyDeviceToHost));
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char *>(values.data()),
               std::streamsize(values.size() * sizeof(float)));
    if (!file.flush())
        die("cannot write %s", path.c_str());
}

// ---- training ------------------------------------------------------------------------------

class Trainer {
public:
    Trainer(const Options &options, const World &world, const Text &text, ncclComm_t comm)
        : options(options), world(world), comm(comm), compute(make_stream()),
          communication(make_stream()), model(options.model, compute),
          first(options.model), second(options.model),
          loader(text, options.model, world, uint64_t(options.seed))
    {
        for (size_t i = 0; i < model.params.buckets.size(); i++) {
            computed.push_back(make_event());
            averaged.push_back(make_event());
        }
        for (int i = 0; i < 2; i++) {
            CUDA_CHECK(cudaMalloc(&loss[i], sizeof(float)));
            CUDA_CHECK(cudaMallocHost(&host_loss[i], sizeof(float)));
            loss_copied[i] = make_event();
        }
    }
    ~Trainer()
    {
        for (int i = 0; i < 2; i++) {
            cudaFree(loss[i]);
            cudaFreeHost(host_loss[i]);
            cudaEventDestroy(loss_copied[i]);
        }
        for (size_t i = 0; i < computed.size(); i++) {
            cudaEventDestroy(computed[i]);
            cudaEventDestroy(averaged[i]);
        }
        cudaStreamDestroy(communication);
        cudaStreamDestroy(compute);
    }

    void run()
    {
        int begin = 0;
        if (!options.load.empty())
            begin = load_checkpoint(options.load, state());
        else if (world.rank == 0)
            initialise(model.params, options.model, uint64_t(options.seed));
        // Copies and memsets on the default stream do not order with non-blocking streams.
        CUDA_CHECK(cudaDeviceSynchronize());
        NCCL_CHECK(ncclBroadcast(model.params.data, model.params.data, model.params.count,
                                 ncclFloat, 0, comm, compute));
        loader.upload(begin);
        for (int n = begin; n < options.steps; n++) {
            step(n);
            if (n + 1 < options.steps)
                loader.upload(n + 1);
            if (n > begin)
                report(n - 1);  // one step behind, so that the GPU never waits for us
            if (!options.save.empty() && world.rank == 0 && (n + 1) % options.save_every == 0)
                save_checkpoint(options.save, n + 1, state());
        }
        if (begin < options.steps)
            report(options.steps - 1);
        CUDA_CHECK(cudaDeviceSynchronize());
        if (!options.out.empty())
            save(model.params, options.out + "-rank" + std::to_string(world.rank) + ".bin");
    }

private:
    const Options &options;
    const World &world;
    ncclComm_t comm;
    cudaStream_t compute, communication;
    Model model;
    Parameters first, second;  // Adam's moments, in the parameters' layout
    Loader loader;
    std::vector<cudaEvent_t> computed, averaged;  // per bucket
    float *loss[2], *host_loss[2];
    cudaEvent_t loss_copied[2];

    static cudaStream_t make_stream()
    {
        cudaStream_t stream;
        CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        return stream;
    }
    static cudaEvent_t make_event()
    {
        cudaEvent_t event;
        CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        return event;
    }

    // The content of a checkpoint: everything else follows from the step.
    std::vector<Floats> state() const
    {
        return {{model.params.data, model.params.count}, {first.data, first.count},
                {second.data, second.count}};
    }

    void step(int n)
    {
        const int *tokens = loader.acquire(n, compute);
        model.forward(tokens, tokens + options.model.rows(), loss[n % 2]);
        CUDA_CHECK(cudaMemcpyAsync(host_loss[n % 2], loss[n % 2], sizeof(float),
                                   cudaMemcpyDeviceToHost, compute));
        CUDA_CHECK(cudaEventRecord(loss_copied[n % 2], compute));
        model.backward(tokens, [&](int bucket) { average(bucket); });
        loader.release(n, compute);
        update(n + 1);
    }

    // Starts the all-reduce of a bucket while the backward pass continues.
    void average(int bucket)
    {
        Bucket range = model.grads.buckets[bucket];
        float *gradient = model.grads.data + range.first;
        CUDA_CHECK(cudaEventRecord(computed[bucket], compute));
        CUDA_CHECK(cudaStreamWaitEvent(communication, computed[bucket], 0));
        NCCL_CHECK(ncclAllReduce(gradient, gradient, range.count, ncclFloat, ncclAvg, comm,
                                 communication));
        CUDA_CHECK(cudaEventRecord(averaged[bucket], communication));
    }

    void update(int t)
    {
        AdamW rule = {options.lr, 0.9f, 0.95f, 1e-8f, 0.01f,
                      1.0f - float(std::pow(0.9, t)), 1.0f - float(std::pow(0.95, t))};
        for (size_t i = 0; i < averaged.size(); i++) {
            Bucket range = model.grads.buckets[i];
            int count = int(range.count);
            CUDA_CHECK(cudaStreamWaitEvent(compute, averaged[i], 0));
            adamw<<<blocks(count), BLOCK, 0, compute>>>(
                model.params.data + range.first, model.grads.data + range.first,
                first.data + range.first, second.data + range.first, count, rule);
        }
        CUDA_CHECK(cudaGetLastError());
    }

    void report(int n)
    {
        CUDA_CHECK(cudaEventSynchronize(loss_copied[n % 2]));
        float value = *host_loss[n % 2];
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        printf("step %d loss %.9g %08" PRIx32 "\n", n, double(value), bits);
        fflush(stdout);
    }
};

int main(int argc, char **argv)
{
    Options options = parse(argc, argv);
    World world = world_from_env();
    int devices;
    CUDA_CHECK(cudaGetDeviceCount(&devices));
    if (world.local_rank >= devices)
        die("rank %d wants GPU %d of %d", world.rank, world.local_rank, devices);
    CUDA_CHECK(cudaSetDevice(world.local_rank));

    ncclUniqueId id;
    if (world.rank == 0)
        NCCL_CHECK(ncclGetUniqueId(&id));
    share(world, &id, sizeof id);
    ncclComm_t comm;
    NCCL_CHECK(ncclCommInitRank(&comm, world.size, id, world.rank));

    Text text(options.data);
    options.model.vocab = text.vocab;
    Trainer(options, world, text, comm).run();
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
}
