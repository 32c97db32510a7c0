// libraries.cu: kernels that the program compiles itself with NVRTC, loaded as modules and as
// libraries of both APIs, asked about, and launched in every form. NVRTC is opened when it runs.
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>

#include "behaviour.h"

static const char *source = R"(
    extern "C" {
    __device__ int numbers[4] = {1, 2, 3, 4};
    __constant__ int factor = 3;
    struct Pair { char tag; double value; };
    __global__ void weigh(int *to, int count, struct Pair pair, short last)
    {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < count)
            to[i] = numbers[i & 3] * factor + int(pair.value) + pair.tag + last + gridDim.y;
    }
    __global__ void __launch_bounds__(64) other() {}
    }
)";
struct Pair { char tag; double value; };

__global__ void nothing() {}

template <typename Function>
static Function find(void *library, const char *name)
{
    void *found = dlsym(library, name);
    EXPECT(found, "%s: %s", name, dlerror());
    return reinterpret_cast<Function>(found);
}

// PTX for this device. NVRTC's handles and results are a pointer and an int.
static std::string compiled()
{
    void *library = dlopen("libnvrtc.so", RTLD_NOW), *program = nullptr;
    EXPECT(library, "%s", dlerror());
    auto create = find<int (*)(void **, const char *, const char *, int, const char *const *,
                               const char *const *)>(library, "nvrtcCreateProgram");
    auto compile = find<int (*)(void *, int, const char *const *)>(library, "nvrtcCompileProgram");
    auto size = find<int (*)(void *, size_t *)>(library, "nvrtcGetPTXSize");
    auto get = find<int (*)(void *, char *)>(library, "nvrtcGetPTX");
    const char *options[] = {"--gpu-architecture=compute_75"};
    size_t bytes;
    EXPECT(create(&program, source, "weigh.cu", 0, nullptr, nullptr) == 0, "no program");
    EXPECT(compile(program, 1, options) == 0, "it does not compile");
    EXPECT(size(program, &bytes) == 0, "no PTX");
    std::string ptx(bytes, 0);
    EXPECT(get(program, &ptx[0]) == 0, "no PTX");
    return ptx;
}

constexpr int COUNT = 100;
struct Arguments {  // in the layout of the kernel's parameters
    int *to;
    int count = COUNT;
    Pair pair = {7, 20.0};
    short last = 5;
    void *list[4] = {&to, &count, &pair, &last};
};

static void expect(const Arguments &a, int extra, const char *how)
{
    std::vector<int> got = fetch(a.to, COUNT);
    for (int i = 0; i < COUNT; i++)
        EXPECT(got[i] == (i % 4 + 1) * 3 + 32 + extra, "%s: [%d] is %d", how, i, got[i]);
    CUDA_CHECK(cudaMemset(a.to, 0, COUNT * sizeof(int)));
}

// Every way to launch a function of the driver.
static void launches(CUfunction f, Arguments &a, cudaStream_t stream)
{
    DRIVER_CHECK(cuLaunchKernel(f, 2, 1, 1, 64, 1, 1, 0, stream, a.list, nullptr));
    expect(a, 1, "cuLaunchKernel");
    struct { int *to; int count; alignas(8) Pair pair; short last; } packed = {a.to, COUNT,
                                                                               a.pair, 5};
    size_t bytes = offsetof(decltype(packed), last) + sizeof packed.last;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    DRIVER_CHECK(cuLaunchKernel(f, 2, 3, 1, 64, 1, 1, 0, stream, nullptr, extra));
    expect(a, 3, "packed parameters");
    DRIVER_FAILS(cuLaunchKernel(f, 2, 1, 1, 64, 1, 1, 0, stream, a.list, extra),
                 CUDA_ERROR_INVALID_VALUE);
    CUlaunchAttribute attributes[2] = {};
    attributes[0].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
    attributes[0].value.priority = -1;
    attributes[1].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    attributes[1].value.cooperative = 1;
    CUlaunchConfig config = {2, 2, 1, 64, 1, 1, 0, stream, attributes, 2};
    DRIVER_CHECK(cuLaunchKernelEx(&config, f, a.list, nullptr));
    expect(a, 2, "cuLaunchKernelEx");
    DRIVER_CHECK(cuLaunchCooperativeKernel(f, 1, 1, 1, 128, 1, 1, 0, stream, a.list));
    expect(a, 1, "cuLaunchCooperativeKernel");
    cudaLaunchConfig_t plain = {};
    plain.gridDim = dim3(2, 4);
    plain.blockDim = dim3(64);
    plain.stream = stream;
    CUDA_CHECK(cudaLaunchKernelExC(&plain, (void *)f, a.list));
    expect(a, 4, "cudaLaunchKernelExC");
    attributes[0].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attributes[0].value.clusterDim = {2, 1, 1};
    DRIVER_FAILS(cuLaunchKernelEx(&config, f, a.list, nullptr), CUDA_ERROR_NOT_SUPPORTED);
    DRIVER_FAILS(cuLaunchKernel(f, 0, 1, 1, 64, 1, 1, 0, stream, a.list, nullptr),
                 CUDA_ERROR_INVALID_VALUE);
}

static void parameters(CUkernel kernel)
{
    static const size_t expected[4][2] = {{0, 8}, {8, 4}, {16, 16}, {32, 2}};
    size_t offset, bytes;
    for (size_t i = 0; i < 4; i++) {
        DRIVER_CHECK(cuKernelGetParamInfo(kernel, i, &offset, &bytes));
        EXPECT(offset == expected[i][0] && bytes == expected[i][1], "parameter %zu: %zu, %zu", i,
               offset, bytes);
        DRIVER_CHECK(cuFuncGetParamInfo(CUfunction(kernel), i, &offset, nullptr));
    }
    DRIVER_FAILS(cuKernelGetParamInfo(kernel, 4, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
}

static void as_a_library(const std::string &ptx, Arguments &a, cudaStream_t stream)
{
    CUlibrary library;
    CUkernel kernel, other;
    CUfunction function;
    CUmodule module;
    CUdeviceptr address;
    size_t bytes;
    int value, device;
    const char *name;
    CUDA_CHECK(cudaGetDevice(&device));
    DRIVER_CHECK(cuLibraryLoadData(&library, ptx.c_str(), nullptr, nullptr, 0, nullptr, nullptr,
                                   0));
    DRIVER_CHECK(cuLibraryGetKernel(&kernel, library, "weigh"));
    DRIVER_CHECK(cuLibraryGetKernel(&other, library, "other"));
    DRIVER_FAILS(cuLibraryGetKernel(&other, library, "nobody"), CUDA_ERROR_NOT_FOUND);
    DRIVER_CHECK(cuKernelGetName(&name, kernel));
    EXPECT(!strcmp(name, "weigh"), "it is %s", name);
    DRIVER_CHECK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, other,
                                      device));
    EXPECT(value == 64, "%d threads", value);
    parameters(kernel);
    DRIVER_CHECK(cuLibraryGetGlobal(&address, &bytes, library, "numbers"));
    EXPECT(bytes == 16, "%zu bytes", bytes);
    DRIVER_FAILS(cuLibraryGetGlobal(&address, &bytes, library, "nothing"), CUDA_ERROR_NOT_FOUND);
    DRIVER_CHECK(cuKernelGetFunction(&function, kernel));
    launches(function, a, stream);
    launches(CUfunction(kernel), a, stream);  // a kernel is accepted in its place
    DRIVER_CHECK(cuLibraryGetModule(&module, library));
    DRIVER_CHECK(cuModuleGetFunction(&function, module, "weigh"));
    DRIVER_CHECK(cuLibraryUnload(library));
    DRIVER_FAILS(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, a.list, nullptr),
                 CUDA_ERROR_INVALID_HANDLE);
    cudaLibrary_t runtime;
    cudaKernel_t runtime_kernel;
    void *global;
    CUDA_CHECK(cudaLibraryLoadData(&runtime, ptx.c_str(), nullptr, nullptr, 0, nullptr, nullptr,
                                   0));
    CUDA_CHECK(cudaLibraryGetKernel(&runtime_kernel, runtime, "weigh"));
    CUDA_CHECK(cudaLibraryGetGlobal(&global, &bytes, runtime, "factor"));
    EXPECT(bytes == 4, "%zu bytes", bytes);
    CUDA_CHECK(cudaLaunchKernel((void *)runtime_kernel, dim3(2, 5), dim3(64), a.list, 0, stream));
    expect(a, 5, "cudaLaunchKernel");
    CUDA_CHECK(cudaLibraryUnload(runtime));
}

static std::vector<CUfunction> functions_of(CUmodule module)
{
    unsigned count = 0;
    DRIVER_CHECK(cuModuleGetFunctionCount(&count, module));
    std::vector<CUfunction> all(count + 1, nullptr);  // one more than there are
    DRIVER_CHECK(cuModuleEnumerateFunctions(all.data(), count + 1, module));
    EXPECT(!all[count], "%u functions, and one more", count);
    all.resize(count);
    return all;
}

// All kernels of a library or module, each with the one handle that it has.
static void enumerated(const std::string &ptx, Arguments &a, cudaStream_t stream)
{
    CUlibrary library, found;
    CUmodule module;
    CUkernel kernels[4] = {}, weigh;
    CUfunction function;
    CUfunctionLoadingState state;
    unsigned count = 0;
    const char *name;
    DRIVER_CHECK(cuLibraryLoadData(&library, ptx.c_str(), nullptr, nullptr, 0, nullptr, nullptr,
                                   0));
    DRIVER_CHECK(cuLibraryGetKernelCount(&count, library));
    EXPECT(count == 2, "%u kernels", count);
    DRIVER_CHECK(cuLibraryEnumerateKernels(kernels, 0, library));
    EXPECT(!kernels[0], "a kernel where none was asked for");
    DRIVER_CHECK(cuLibraryEnumerateKernels(kernels, 1, library));
    EXPECT(kernels[0] && !kernels[1], "not the one kernel that was asked for");
    DRIVER_CHECK(cuLibraryEnumerateKernels(kernels, 4, library));
    EXPECT(kernels[1] && !kernels[2], "not two kernels");
    std::string names;
    for (int i = 0; i < 2; i++) {
        DRIVER_CHECK(cuFuncIsLoaded(&state, CUfunction(kernels[i])));
        EXPECT(state == CU_FUNCTION_LOADING_STATE_UNLOADED, "loaded already: %d", int(state));
        DRIVER_CHECK(cuKernelGetName(&name, kernels[i]));
        DRIVER_CHECK(cuLibraryGetKernel(&weigh, library, name));
        EXPECT(weigh == kernels[i], "two handles of one kernel %s", name);
        DRIVER_CHECK(cuKernelGetLibrary(&found, kernels[i]));
        EXPECT(found == library, "%s is of another library", name);
        names += std::string(name) + " ";
    }
    EXPECT(names == "weigh other " || names == "other weigh ", "they are %s", names.c_str());
    DRIVER_CHECK(cuLibraryGetModule(&module, library));
    EXPECT(functions_of(module).size() == 2, "%zu functions", functions_of(module).size());
    DRIVER_CHECK(cuModuleGetFunction(&function, module, "weigh"));
    DRIVER_CHECK(cuLaunchKernel(function, 2, 1, 1, 64, 1, 1, 0, stream, a.list, nullptr));
    expect(a, 1, "an enumerated kernel");
    DRIVER_FAILS(cuLibraryGetKernelCount(nullptr, library), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(cuLibraryEnumerateKernels(nullptr, 1, library), CUDA_ERROR_INVALID_VALUE);
    DRIVER_FAILS(cuLibraryGetKernelCount(&count, CUlibrary(&count)), CUDA_ERROR_INVALID_HANDLE);
    cudaLibrary_t runtime = cudaLibrary_t(library);  // they are one thing
    cudaKernel_t two[2];
    CUDA_CHECK(cudaLibraryGetKernelCount(&count, runtime));
    CUDA_CHECK(cudaLibraryEnumerateKernels(two, 2, runtime));
    EXPECT(count == 2 && CUkernel(two[1]) == kernels[1], "the runtime finds others");
    DRIVER_CHECK(cuLibraryUnload(library));
    DRIVER_FAILS(cuLibraryGetKernelCount(&count, library), CUDA_ERROR_INVALID_HANDLE);
    FAILS(cudaLibraryEnumerateKernels(two, 2, runtime), cudaErrorInvalidResourceHandle);
}

// So many kernels with such long names that they do not come in one piece.
static void many_kernels()
{
    constexpr unsigned COUNT = 1500;
    std::string ptx = ".version 7.0\n.target sm_75\n.address_size 64\n", last;
    for (unsigned i = 0; i < COUNT; i++) {
        last = std::string(200, 'k') + std::to_string(i);
        ptx += ".visible .entry " + last + "() { ret; }\n";
    }
    CUmodule module;
    CUfunction function;
    DRIVER_CHECK(cuModuleLoadData(&module, ptx.c_str()));
    std::vector<CUfunction> all = functions_of(module);
    EXPECT(all.size() == COUNT, "%zu functions", all.size());
    DRIVER_CHECK(cuModuleGetFunction(&function, module, last.c_str()));
    EXPECT(std::count(all.begin(), all.end(), function) == 1, "the last is not among them");
    std::sort(all.begin(), all.end());
    EXPECT(std::unique(all.begin(), all.end()) == all.end(), "one function came twice");
    DRIVER_CHECK(cuModuleUnload(module));
}

// A kernel that the program registered when it was loaded is among those of its module.
static void own_module()
{
    cudaFunction_t own;
    CUmodule module;
    CUDA_CHECK(cudaGetFuncBySymbol(&own, (void *)nothing));
    DRIVER_CHECK(cuFuncGetModule(&module, CUfunction(own)));
    int same = 0;
    for (CUfunction f : functions_of(module))
        same += f == CUfunction(own);
    EXPECT(same == 1, "the program's own kernel was found %d times", same);
}

// Options that give something back do so; broken code is an error with a text.
static void with_options(const std::string &ptx, Arguments &a)
{
    CUmodule module;
    CUdeviceptr address;
    size_t bytes;
    char log[256] = "untouched", errors[256] = "untouched";
    CUjit_option options[] = {CU_JIT_MAX_REGISTERS, CU_JIT_WALL_TIME, CU_JIT_ERROR_LOG_BUFFER,
                              CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_INFO_LOG_BUFFER,
                              CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {(void *)32, nullptr, errors, (void *)sizeof errors, log, (void *)sizeof log};
    DRIVER_CHECK(cuModuleLoadDataEx(&module, ptx.c_str(), 6, options, values));
    EXPECT(!values[3] && !values[5], "logs of %p and %p bytes", values[3], values[5]);
    EXPECT(!*log && !*errors, "the logs are \"%s\" and \"%s\"", log, errors);
    DRIVER_CHECK(cuModuleGetGlobal(&address, &bytes, module, "factor"));
    int two = 2;
    CUfunction function;
    DRIVER_CHECK(cuMemcpyHtoD(address, &two, sizeof two));
    DRIVER_CHECK(cuModuleGetFunction(&function, module, "weigh"));
    DRIVER_CHECK(cuLaunchKernel(function, 2, 1, 1, 64, 1, 1, 0, 0, a.list, nullptr));
    EXPECT(fetch(a.to, COUNT)[3] == 4 * 2 + 32 + 1, "the constant is %d", fetch(a.to, COUNT)[3]);
    DRIVER_CHECK(cuModuleUnload(module));
    DRIVER_FAILS(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
    values[3] = (void *)sizeof errors;
    std::string broken = ptx.substr(0, ptx.size() / 2) + "this is no instruction;";
    DRIVER_FAILS(cuModuleLoadDataEx(&module, broken.c_str(), 6, options, values),
                 CUDA_ERROR_INVALID_PTX);
    EXPECT(size_t(values[3]) == strlen(errors) && *errors, "an error log of %p bytes", values[3]);
    DRIVER_FAILS(cuModuleLoadData(&module, "no code at all"), CUDA_ERROR_INVALID_IMAGE);
}

int main(int argc, char **argv)
{
    start();
    Arguments a;
    a.to = on_device<int>(COUNT);
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    std::string ptx = compiled();
    CUmodule kept;
    CUfunction weigh;
    DRIVER_CHECK(cuModuleLoadData(&kept, ptx.c_str()));
    DRIVER_CHECK(cuModuleGetFunction(&weigh, kept, "weigh"));
    for (int half = 0; half < 2; half++) {
        launches(weigh, a, stream);
        as_a_library(ptx, a, stream);
        enumerated(ptx, a, stream);
        own_module();
        many_kernels();
        with_options(ptx, a);
        if (half == 0)
            interlude(argc, argv);
    }
    return 0;
}
