// products.cu: ranks that multiply matrices of small whole numbers by cuBLAS and cuBLASLt, with no
// kernel of their own. Each product's bits are known, whichever device computes it.
#include <cublasLt.h>
#include <cublas_v2.h>

#include "../programs/common.h"

#define BLAS_CHECK(call) EXPECT((call) == CUBLAS_STATUS_SUCCESS, "%s", #call)

constexpr int N = 48;
constexpr float ONE = 1, ZERO = 0;

// Row i of the product is row (i + 1) % N of what it is multiplied with.
static std::vector<float> shift()
{
    std::vector<float> matrix(N * N);
    for (int i = 0; i < N; i++)
        matrix[i + (i + 1) % N * N] = 1;
    return matrix;
}

// out = relu(matrix * in + bias), with the first algorithm for this workspace
static void layer(cublasLtHandle_t lt, const float *matrix, const float *in, const float *bias,
                  float *out, void *workspace, size_t bytes)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t square;
    cublasLtEpilogue_t steps = CUBLASLT_EPILOGUE_RELU_BIAS;
    BLAS_CHECK(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    BLAS_CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &steps,
                                              sizeof steps));
    BLAS_CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                              sizeof bias));
    BLAS_CHECK(cublasLtMatrixLayoutCreate(&square, CUDA_R_32F, N, N, N));
    BLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    BLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    BLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(lt, desc, square, square, square, square, preference,
                                              1, &found, &count));
    EXPECT(count == 1, "%d algorithms", count);
    BLAS_CHECK(cublasLtMatmul(lt, desc, &ONE, matrix, square, in, square, &ZERO, out, square, out,
                              square, &found.algo, workspace, bytes, 0));
    BLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
    BLAS_CHECK(cublasLtMatrixLayoutDestroy(square));
    BLAS_CHECK(cublasLtMatmulDescDestroy(desc));
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    World world = start(&comm);
    int steps = argument(argc, argv, 1, 40);
    std::vector<float> numbers(N * N);
    for (int i = 0; i < N * N; i++)
        numbers[i] = float(i % 17 + world.rank);
    float *matrix = on_device(shift()), *x = on_device(numbers), *y = on_device<float>(N * N);
    float *bias = on_device(std::vector<float>(N, -1));
    float **list = on_device(std::vector<float *>{matrix, x, y});
    cublasHandle_t blas;
    cublasLtHandle_t lt;
    BLAS_CHECK(cublasCreate(&blas));
    BLAS_CHECK(cublasLtCreate(&lt));
    constexpr size_t BYTES = 64 << 10;
    void *workspace;
    CUDA_CHECK(cudaMalloc(&workspace, BYTES));
    BLAS_CHECK(cublasSetWorkspace(blas, workspace, BYTES));
    for (int k = 0; k < steps; k++) {
        BLAS_CHECK(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_T, N, N, N, &ONE, matrix, N, x, N,
                               &ZERO, y, N));
        layer(lt, matrix, y, bias, x, workspace, BYTES);
        BLAS_CHECK(cublasSgemmBatched(blas, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &ONE, list, N,
                                      list + 1, N, &ZERO, list + 2, N, 1));
        // And once more where nothing looks: the same again.
        BLAS_CHECK(cublasGemmStridedBatchedEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &ONE, matrix,
                                              CUDA_R_32F, N, 0, x, CUDA_R_32F, N, 0, &ZERO, y,
                                              CUDA_R_32F, N, N * N, 1, CUBLAS_COMPUTE_32F,
                                              CUBLAS_GEMM_DEFAULT));
        NCCL_CHECK(ncclAllReduce(y, x, N * N, ncclFloat, ncclMax, comm, 0));
        std::vector<float> got = report(k, "product", x, N * N);
        for (int i = 0; i < N * N; i++) {
            // Transposed and shifted, then shifted and one less or zero, then shifted, each step.
            int row = i % N, column = i / N;
            float before = numbers[column + (row + 3) % N * N];
            EXPECT(got[i] >= (before > 1 ? before - 1 : 0), "element %d is %g", i, got[i]);
        }
        numbers = got;
    }
    BLAS_CHECK(cublasDestroy(blas));
    BLAS_CHECK(cublasLtDestroy(lt));
    return 0;
}
