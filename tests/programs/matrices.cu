// matrices.cu: matrix products on tensor cores: nvcuda::wmma in half, tf32, double and bytes, and
// ldmatrix with mma.sync in half, bfloat16 and bytes, as libraries write them.
//
// Each product is done twice: of small integers, whose result is exact in any order, and of numbers
// of any size, whose bits are printed. All ranks' exact results are summed by NCCL.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include <type_traits>

#include "common.h"

using namespace nvcuda;

constexpr int M = 64, N = 48, K = 64;

// ---- nvcuda::wmma: a warp for each tile of C -------------------------------------------------

template <typename T, typename Sum, int TM, int TN, int TK, typename Stored>
__global__ void by_wmma(const Stored *a, const Stored *b, Sum *c)  // C = A B, all by rows
{
    __shared__ Stored part[TM * TK];
    wmma::fragment<wmma::matrix_a, TM, TN, TK, T, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, TM, TN, TK, T, wmma::row_major> right;
    wmma::fragment<wmma::accumulator, TM, TN, TK, Sum> sum;
    int row = blockIdx.y * TM, column = blockIdx.x * TN;
    wmma::fill_fragment(sum, Sum(0));
    for (int k = 0; k < K; k += TK) {
        for (int i = threadIdx.x; i < TM * TK; i += warpSize)
            part[i] = a[(row + i / TK) * K + k + i % TK];
        __syncwarp();
        wmma::load_matrix_sync(left, part, TK);
        wmma::load_matrix_sync(right, b + k * N + column, N);
        if constexpr (std::is_same_v<T, wmma::precision::tf32>)
            for (int i = 0; i < left.num_elements; i++)
                left.x[i] = wmma::__float_to_tf32(left.x[i]);
        wmma::mma_sync(sum, left, right, sum);
        __syncwarp();
    }
    for (int i = 0; i < sum.num_elements; i++)
        sum.x[i] = sum.x[i] + sum.x[i];
    wmma::store_matrix_sync(c + row * N + column, sum, N, wmma::mem_row_major);
}

// ---- ldmatrix and mma.sync: four warps for 32 rows and 16 columns of C -----------------------

__device__ void load4(unsigned r[4], const void *row)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}

__device__ void load2_turned(unsigned r[2], const void *row)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(at));
}

__device__ void load2(unsigned r[2], const void *row)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(at));
}

#define MULTIPLY(text, constraint)                                                               \
    asm volatile("mma.sync.aligned." text " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "      \
                 "{%0, %1, %2, %3};"                                                             \
                 : "+" constraint(c[0]), "+" constraint(c[1]), "+" constraint(c[2]),             \
                   "+" constraint(c[3])                                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

__device__ void multiply(float c[4], const unsigned a[4], const unsigned b[2], half)
{
    MULTIPLY("m16n8k16.row.col.f32.f16.f16.f32", "f");
}

__device__ void multiply(float c[4], const unsigned a[4], const unsigned b[2], __nv_bfloat16)
{
    MULTIPLY("m16n8k16.row.col.f32.bf16.bf16.f32", "f");
}

__device__ void multiply(int c[4], const unsigned a[4], const unsigned b[2], signed char)
{
    MULTIPLY("m16n8k32.row.col.satfinite.s32.s8.s8.s32", "r");
}

// A by rows; B by rows if its elements have two bytes, else by columns. Rows in shared memory are
// padded by 16 bytes, so that eight of them are in different banks.
template <typename T, typename Sum>
__global__ void by_mma(const T *a, const T *b, Sum *c)
{
    constexpr int STEP = 32 / sizeof(T), PAD = 16 / sizeof(T);
    constexpr bool BY_ROWS = sizeof(T) == 2;
    constexpr int B_LINES = BY_ROWS ? STEP : 16, B_WIDTH = BY_ROWS ? 16 : STEP;
    __shared__ __align__(16) T left[32][STEP + PAD], right[B_LINES][B_WIDTH + PAD];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int row = blockIdx.y * 32, column = blockIdx.x * 16;
    int my_row = warp / 2 * 16, my_column = warp % 2 * 8;
    Sum sum[4] = {};
    for (int k = 0; k < K; k += STEP) {
        for (int i = threadIdx.x; i < 32 * STEP; i += blockDim.x)
            left[i / STEP][i % STEP] = a[(row + i / STEP) * K + k + i % STEP];
        for (int i = threadIdx.x; i < 16 * STEP; i += blockDim.x) {
            int line = i / B_WIDTH, place = i % B_WIDTH;
            right[line][place] =
                BY_ROWS ? b[(k + line) * N + column + place] : b[(column + line) * K + k + place];
        }
        __syncthreads();
        unsigned x[4], y[2];
        load4(x, &left[my_row + lane % 16][lane / 16 * STEP / 2]);
        if (BY_ROWS)
            load2_turned(y, &right[lane % 16][my_column]);
        else
            load2(y, &right[my_column + lane % 8][lane / 8 % 2 * STEP / 2]);
        multiply(sum, x, y, T());
        __syncthreads();
    }
    for (int i = 0; i < 4; i++) {
        int at_row = row + my_row + lane / 4 + i / 2 * 8;
        c[at_row * N + column + my_column + lane % 4 * 2 + i % 2] = sum[i] + sum[i];
    }
}

// ---- checking --------------------------------------------------------------------------------

template <typename T>
float worth(T x)
{
    return float(x);
}

static uint32_t seed;

// Integers up to 3, or for each `fine` number some of any size.
template <typename T>
std::vector<T> numbers(int count, bool fine)
{
    std::vector<T> made(count);
    for (int i = 0; i < count; i++) {
        float x = noise(seed++);
        made[i] = T(fine ? (x - 0.5f) * (i % 7 + 0.1f) : float(int(x * 7) - 3));
    }
    return made;
}

struct Check {
    ncclComm_t comm;
    int step;
    double *sum;  // on the device
};

template <typename T, typename Sum, typename Launch>
void product(const Check &check, const char *name, bool b_by_rows, Launch launch)
{
    for (bool fine : {false, true}) {
        if (fine && sizeof(T) == 1)
            continue;  // integers are always exact
        std::vector<T> a = numbers<T>(M * K, fine), b = numbers<T>(K * N, fine);
        T *device_a = on_device(a), *device_b = on_device(b);
        Sum *device_c = on_device<Sum>(M * N);
        launch(device_a, device_b, device_c);
        CUDA_CHECK(cudaGetLastError());
        std::vector<Sum> c = report(check.step, name, device_c, M * N);
        double total = 0;
        for (int i = 0; i < M && !fine; i++)
            for (int j = 0; j < N; j++) {
                double wanted = 0;
                for (int k = 0; k < K; k++)
                    wanted += double(worth(a[i * K + k])) *
                              double(worth(b_by_rows ? b[k * N + j] : b[j * K + k]));
                double got = worth(c[i * N + j]);
                EXPECT(got == 2 * wanted, "%s: row %d, column %d: %g, not %g", name, i, j, got,
                       2 * wanted);
                total += wanted;
            }
        if (!fine) {
            CUDA_CHECK(cudaMemcpy(check.sum, &total, sizeof total, cudaMemcpyHostToDevice));
            NCCL_CHECK(ncclAllReduce(check.sum, check.sum, 1, ncclDouble, ncclSum, check.comm, 0));
            report(check.step, "total", check.sum, 1);
        }
        CUDA_CHECK(cudaFree(device_a));
        CUDA_CHECK(cudaFree(device_b));
        CUDA_CHECK(cudaFree(device_c));
    }
}

template <typename T, typename Sum, int TM, int TN, int TK, typename Stored = T>
void wmma_product(const Check &check, const char *name)
{
    product<Stored, Sum>(check, name, true, [](const Stored *a, const Stored *b, Sum *c) {
        by_wmma<T, Sum, TM, TN, TK, Stored><<<dim3(N / TN, M / TM), 32>>>(a, b, c);
    });
}

template <typename T, typename Sum>
void mma_product(const Check &check, const char *name)
{
    product<T, Sum>(check, name, sizeof(T) == 2, [](const T *a, const T *b, Sum *c) {
        by_mma<T, Sum><<<dim3(N / 16, M / 32), 128>>>(a, b, c);
    });
}

int main(int argc, char **argv)
{
    int steps = argument(argc, argv, 1, 10);
    Check check{};
    World world = start(&check.comm);
    check.sum = on_device<double>(1);
    for (check.step = 0; check.step < steps; check.step++) {
        seed = uint32_t(check.step * world.size + world.rank) << 16;
        switch (check.step % 3) {
        case 0:
            wmma_product<half, float, 16, 16, 16>(check, "wmma-half");
            wmma_product<signed char, int, 32, 8, 16>(check, "wmma-bytes");
            mma_product<half, float>(check, "mma-half");
            break;
        case 1:
            wmma_product<half, half, 32, 8, 16>(check, "wmma-half-sums");
            wmma_product<wmma::precision::tf32, float, 16, 16, 8, float>(check, "wmma-tf32");
            mma_product<signed char, int>(check, "mma-bytes");
            break;
        default:
            wmma_product<double, double, 8, 8, 4>(check, "wmma-double");
            wmma_product<__nv_bfloat16, float, 16, 16, 16>(check, "wmma-bfloat16");
            mma_product<__nv_bfloat16, float>(check, "mma-bfloat16");
        }
    }
    NCCL_CHECK(ncclCommDestroy(check.comm));
    return 0;
}
