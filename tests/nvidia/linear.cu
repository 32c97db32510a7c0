// linear.cu: ranks that transform, factorise and solve with NVIDIA's libraries, and check what they
// get. All numbers of a step depend on the rank, and on the step before.
#include "../programs/common.h"

// As in <cufft.h> and <cusolverDn.h>, which are not everywhere.
extern "C" {
int cufftCreate(int *);
int cufftDestroy(int);
int cufftSetStream(int, cudaStream_t);
int cufftSetAutoAllocation(int, int);
int cufftSetWorkArea(int, void *);
int cufftMakePlan2d(int, int, int, int, size_t *);
int cufftPlan1d(int *, int, int, int);
int cufftPlanMany(int *, int, int *, int *, int, int, int *, int, int, int, int);
int cufftExecC2C(int, void *, void *, int);
int cufftExecD2Z(int, void *, void *);
int cufftExecZ2D(int, void *, void *);
int cusolverDnCreate(void **);
int cusolverDnDestroy(void *);
int cusolverDnSetStream(void *, cudaStream_t);
int cusolverDnCreateParams(void **);
int cusolverDnDestroyParams(void *);
int cusolverDnDgetrf_bufferSize(void *, int, int, double *, int, int *);
int cusolverDnDgetrf(void *, int, int, double *, int, double *, int *, int *);
int cusolverDnDgetrs(void *, int, int, int, const double *, int, const int *, double *, int,
                     int *);
int cusolverDnSpotrf_bufferSize(void *, int, int, float *, int, int *);
int cusolverDnSpotrf(void *, int, int, float *, int, float *, int, int *);
int cusolverDnXpotrf_bufferSize(void *, void *, int, int64_t, int, void *, int64_t, int, size_t *,
                                size_t *);
int cusolverDnXpotrf(void *, void *, int, int64_t, int, void *, int64_t, int, void *, size_t,
                     void *, size_t, int *);
int cusolverDnCreateSyevjInfo(void **);
int cusolverDnDestroySyevjInfo(void *);
int cusolverDnXsyevjSetTolerance(void *, double);
int cusolverDnXsyevjSetMaxSweeps(void *, int);
int cusolverDnDsyevj_bufferSize(void *, int, int, int, const double *, int, const double *, int *,
                                void *);
int cusolverDnDsyevj(void *, int, int, int, double *, int, double *, double *, int, int *, void *);
}
enum { C2C = 0x29, Z2D = 0x6c, D2Z = 0x6a, R_64F = 1 };
#define OK(call) EXPECT((call) == 0, "%s", #call)

constexpr int N = 6;

template <typename T> static std::vector<T> host(const T *at, size_t n)
{
    std::vector<T> out(n);
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemcpy(out.data(), at, n * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
}

// There and back is the input, times the number of elements.
static void transforms(int k, double seed, cudaStream_t stream)
{
    std::vector<float> start(2 * 4 * N);
    for (size_t i = 0; i < start.size(); i++)
        start[i] = float(seed + double(i * i % 7));
    float *data = on_device(start);
    void *area;
    size_t bytes;
    int plan, there, back;
    OK(cufftCreate(&plan));
    OK(cufftSetAutoAllocation(plan, 0));
    OK(cufftMakePlan2d(plan, 4, N, C2C, &bytes));
    CUDA_CHECK(cudaMalloc(&area, bytes + 1)); // it may need none
    OK(cufftSetWorkArea(plan, area));
    OK(cufftSetStream(plan, stream));
    OK(cufftExecC2C(plan, data, data, -1));
    OK(cufftExecC2C(plan, data, data, 1));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    auto twice = host(data, start.size());
    for (size_t i = 0; i < start.size(); i++)
        EXPECT(fabs(twice[i] / (4 * N) - start[i]) < 1e-4, "element %zu is %g", i, twice[i]);
    print_line(k, "transformed", twice.data(), twice.size() * sizeof(float));
    OK(cufftDestroy(plan));

    // Two rows of 8 real numbers, which are not next to each other.
    int n[] = {8}, real[] = {10}, half[] = {6};
    std::vector<double> rows(20, seed);
    rows[3] = 1, rows[14] = -2;
    double *in = on_device(rows), *spectrum = on_device<double>(2 * 12), *out = on_device(rows);
    OK(cufftPlanMany(&there, 1, n, real, 1, 10, half, 1, 6, D2Z, 2));
    OK(cufftPlanMany(&back, 1, n, half, 1, 6, real, 1, 10, Z2D, 2));
    OK(cufftExecD2Z(there, in, spectrum));
    OK(cufftExecZ2D(back, spectrum, out));
    auto again = host(out, rows.size());
    for (size_t i = 0; i < rows.size(); i++)
        if (i % 10 < 8)
            EXPECT(fabs(again[i] / 8 - rows[i]) < 1e-9, "number %zu is %g", i, again[i]);
    EXPECT(again[8] == seed, "what is between the rows is %g", again[8]);
    OK(cufftDestroy(there));
    OK(cufftDestroy(back));
    for (void *each : {(void *)data, area, (void *)in, (void *)spectrum, (void *)out})
        CUDA_CHECK(cudaFree(each));
}

static std::vector<double> positive(double seed)
{
    std::vector<double> a(N * N);
    for (int c = 0; c < N; c++)
        for (int r = 0; r < N; r++)
            a[r + c * N] = (r == c ? 2 * N + seed : 1.0 / (1 + abs(r - c)));
    return a;
}

static void check_info(int *info)
{
    EXPECT(host(info, 1)[0] == 0, "info is %d", host(info, 1)[0]);
}

// a * x = b, and L * L' = a
static void solves(int k, double seed, void *solver)
{
    std::vector<double> a = positive(seed), b(N, 1 + seed);
    double *lu = on_device(a), *x = on_device(b), *whole = on_device(a), *work;
    int words, *pivots = on_device<int>(N), *info = on_device<int>(1);
    OK(cusolverDnDgetrf_bufferSize(solver, N, N, lu, N, &words));
    CUDA_CHECK(cudaMalloc(&work, words * sizeof *work + 256));
    OK(cusolverDnDgetrf(solver, N, N, lu, N, work, pivots, info));
    check_info(info);
    OK(cusolverDnDgetrs(solver, 0, N, 1, lu, N, pivots, x, N, info));
    check_info(info);
    auto found = host(x, N);
    for (int r = 0; r < N; r++) {
        double sum = 0;
        for (int c = 0; c < N; c++)
            sum += a[r + c * N] * found[c];
        EXPECT(fabs(sum - b[r]) < 1e-9, "row %d is %g", r, sum);
    }
    print_line(k, "solved", found.data(), N * sizeof(double));

    size_t device_bytes = 0, host_bytes = 0;
    void *params;
    OK(cusolverDnCreateParams(&params));
    OK(cusolverDnXpotrf_bufferSize(solver, params, 0, N, R_64F, whole, N, R_64F, &device_bytes,
                                   &host_bytes));
    std::vector<char> on_host(host_bytes, 'x');
    void *on_device_too;
    CUDA_CHECK(cudaMalloc(&on_device_too, device_bytes + 1));
    OK(cusolverDnXpotrf(solver, params, 0, N, R_64F, whole, N, R_64F, on_device_too, device_bytes,
                        on_host.data(), host_bytes, info));
    check_info(info);
    OK(cusolverDnDestroyParams(params));
    auto l = host(whole, N * N);
    for (int r = 0; r < N; r++)
        for (int c = 0; c <= r; c++) {
            double sum = 0;
            for (int i = 0; i <= c; i++)
                sum += l[r + i * N] * l[c + i * N];
            EXPECT(fabs(sum - a[r + c * N]) < 1e-9, "element %d, %d is %g", r, c, sum);
        }
    print_line(k, "factor", l.data(), l.size() * sizeof(double));
    for (void *each : {(void *)lu, (void *)x, (void *)whole, (void *)work, (void *)pivots,
                       (void *)info, on_device_too})
        CUDA_CHECK(cudaFree(each));
}

// The sum of the eigenvalues is that of the diagonal.
static void values(int k, double seed, void *solver, int sweeps)
{
    std::vector<double> a = positive(seed);
    double *at = on_device(a), *w = on_device<double>(N), *work;
    int words, *info = on_device<int>(1);
    void *how;
    OK(cusolverDnCreateSyevjInfo(&how));
    OK(cusolverDnXsyevjSetTolerance(how, 1e-8));
    if (sweeps)
        OK(cusolverDnXsyevjSetMaxSweeps(how, sweeps));
    OK(cusolverDnDsyevj_bufferSize(solver, 0, 0, N, at, N, w, &words, how));
    CUDA_CHECK(cudaMalloc(&work, words * sizeof *work + 256));
    OK(cusolverDnDsyevj(solver, 0, 0, N, at, N, w, work, words, info, how));
    check_info(info);
    OK(cusolverDnDestroySyevjInfo(how));
    auto found = host(w, N);
    double sum = 0;
    for (double each : found)
        sum += each;
    EXPECT(fabs(sum - N * a[0]) < 1e-9, "their sum is %g", sum);
    EXPECT(found[0] < a[0] - 0.1, "the first one is %g", found[0]);
    print_line(k, "eigenvalues", found.data(), N * sizeof(double));
    for (void *each : {(void *)at, (void *)w, (void *)work, (void *)info})
        CUDA_CHECK(cudaFree(each));
}

// The library refuses a wrong call, and the rank continues.
static void refused(void *solver)
{
    float *a = on_device<float>(N * N);
    int words;
    EXPECT(cusolverDnSpotrf_bufferSize(solver, 0, -1, a, N, &words) == 3, "a size of -1");
    EXPECT(cusolverDnSpotrf_bufferSize(solver, 0, N, a, N, nullptr) == 3, "no place for a result");
    EXPECT(cusolverDnSpotrf_bufferSize(nullptr, 0, N, a, N, &words) == 1, "no handle");
    int plan, none[] = {0};
    EXPECT(cufftPlanMany(&plan, 1, none, nullptr, 1, 0, nullptr, 1, 0, C2C, 1) != 0, "no elements");
    EXPECT(cufftPlan1d(&plan, 8, 77, 1) == 3, "no such type");
    EXPECT(cufftDestroy(12345) == 1, "no such plan");
    CUDA_CHECK(cudaFree(a));
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 12);
    double *seed = on_device(std::vector<double>(1, world.rank));
    cudaStream_t stream;
    void *solver;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cusolverDnCreate(&solver));
    OK(cusolverDnSetStream(solver, stream));
    for (int k = 0; k < steps; k++) {
        double at = host(seed, 1)[0] + k;
        transforms(k, at, stream);
        solves(k, at, solver);
        values(k, at, solver, k % 2 * 20);
        refused(solver);
        NCCL_CHECK(ncclAllReduce(seed, seed, 1, ncclDouble, ncclSum, comm, nullptr));
        CUDA_CHECK(cudaStreamSynchronize(nullptr));
    }
    OK(cusolverDnDestroy(solver));
    return 0;
}
