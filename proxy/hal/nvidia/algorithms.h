/* algorithms.h: questions to cuBLASLt's heuristic, and its answers (algorithms.c). */
#ifndef RANKFOLD_CUDA_ALGORITHMS_H
#define RANKFOLD_CUDA_ALGORITHMS_H

#include "blas.h"
#include "nvidia_hal.h"

#define NVIDIA_BIAS_ALIGNED                                                                        \
	16u /* kernels for a bias may need this alignment, and fault without it */
/* Compared byte by byte. */
struct nvidia_question {
	struct rf_gemm g;       /* without addresses */
	struct rf_gemm_how how; /* zeros: not as a program has called it */
	struct rf_matrix aux;
	uint32_t aligned[4];
};
struct nvidia_question nvidia_question_of(const struct rf_gemm *, const struct rf_gemm_how *,
					  const struct rf_matrix *aux);
bool nvidia_algorithm_find(struct hal_device *, const struct nvidia_question *,
			   cublasLtMatmulAlgo_t *);
void nvidia_algorithm_keep(struct hal_device *, const struct nvidia_question *,
			   const cublasLtMatmulAlgo_t *);

#endif
