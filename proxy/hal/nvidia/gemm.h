/* gemm.h: what the files about matrix products have in common. */
#ifndef RANKFOLD_CUDA_GEMM_H
#define RANKFOLD_CUDA_GEMM_H

#include "blas.h"
#include "nvidia_hal.h"

#define NVIDIA_BIAS_ALIGNED                                                                        \
	16u /* kernels for a bias may need this alignment, and fault without it */

#define WITH_AUX (RF_GEMM_KEEP | RF_GEMM_DRELU | RF_GEMM_DGELU)
#define SUMMED (RF_GEMM_SUM_D | RF_GEMM_SUM_A | RF_GEMM_SUM_B)

/* Bytes of an element; 0: products have no such type. */
static inline uint32_t type_bytes(uint8_t type)
{
	switch (type) {
	case CUDA_R_8I: return 1;
	case CUDA_R_16F:
	case CUDA_R_16BF: return 2;
	case CUDA_R_32F:
	case CUDA_R_32I: return 4;
	case CUDA_R_64F: return 8;
	default: return 0;
	}
}

/* True if a scalar is zero, as far as that is known before the product runs. Its factor is then not
 * read. */
static inline bool is_zero(const struct rf_gemm *g, uint64_t bits)
{
	uint32_t width = 8 * type_bytes(g->type_scale);
	uint64_t sign = g->type_scale == CUDA_R_32I ? 0 : 1ull << (width - 1);

	if (width < 64)
		bits &= (1ull << width) - 1;
	return !(g->flags & RF_GEMM_SCALARS) && !(bits & ~sign);
}

/* With a single row or column the distance to the next one does not matter. */
static inline bool by_columns(const struct rf_matrix *x, uint64_t rows, uint64_t columns)
{
	return (x->row == 1 || rows == 1) && (x->col >= rows || columns == 1);
}

struct gemm_call { /* one product, as cuBLASLt takes it */
	const struct nvidia_blas *blas;
	const struct rf_gemm *g;
	const struct rf_matrix *aux;
	const struct rf_gemm_how *how; /* NULL: not as a program has called it */
	cublasStatus_t status;         /* of the first call that failed */
	cublasLtMatmulDesc_t desc;
	cublasLtMatrixLayout_t a, b, c, d;
	cublasLtMatmulPreference_t preference;
};
#define TRY(k, name, ...) ((k)->status = (k)->status ? (k)->status : (k)->blas->name(__VA_ARGS__))

/* algorithms.c: the algorithm of a product that is described; sets `status` if there is none. */
void nvidia_choose_algorithm(struct gemm_call *, struct hal_device *, cublasLtMatmulAlgo_t *);

/* cublaslt.c: makes the call of cuBLASLt. `g`: the product of `call`, as it is to be computed. */
cublasStatus_t nvidia_cublaslt(const struct nvidia_blas *, struct hal_device *,
			       const struct rf_gemm *g, const struct rf_gemm_call *call, CUstream);

#endif
