/* blas.h: the part of cuBLASLt that this HAL uses, loaded at the first matrix product.
 *
 * As for driver.h, nothing here is copied from NVIDIA's headers, and nothing is linked.
 * tests/nvidia/test_header.py compares it with them.
 */
#ifndef RANKFOLD_CUDA_BLAS_H
#define RANKFOLD_CUDA_BLAS_H

#include <stdbool.h>

#include "driver.h"

#ifndef CUBLAS_VERSION
typedef enum {
	CUBLAS_STATUS_SUCCESS = 0,
	CUBLAS_STATUS_NOT_INITIALIZED = 1,
	CUBLAS_STATUS_ALLOC_FAILED = 3,
	CUBLAS_STATUS_INVALID_VALUE = 7,
	CUBLAS_STATUS_ARCH_MISMATCH = 8,
	CUBLAS_STATUS_EXECUTION_FAILED = 13,
	CUBLAS_STATUS_NOT_SUPPORTED = 15,
} cublasStatus_t;
enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
typedef enum {
	CUBLAS_COMPUTE_16F = 64,
	CUBLAS_COMPUTE_16F_PEDANTIC = 65,
	CUBLAS_COMPUTE_32F = 68,
	CUBLAS_COMPUTE_32F_PEDANTIC = 69,
	CUBLAS_COMPUTE_64F = 70,
	CUBLAS_COMPUTE_64F_PEDANTIC = 71,
	CUBLAS_COMPUTE_32I = 72,
	CUBLAS_COMPUTE_32I_PEDANTIC = 73,
	CUBLAS_COMPUTE_32F_FAST_16F = 74,
	CUBLAS_COMPUTE_32F_FAST_16BF = 75,
	CUBLAS_COMPUTE_32F_FAST_TF32 = 77,
} cublasComputeType_t;
enum {
	CUBLAS_PEDANTIC_MATH = 2,
	CUBLAS_TF32_TENSOR_OP_MATH = 3,
	CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16,
};
typedef enum {
	CUDA_R_32F = 0,
	CUDA_R_64F = 1,
	CUDA_R_16F = 2,
	CUDA_R_8I = 3,
	CUDA_R_32I = 10,
	CUDA_R_16BF = 14,
} cudaDataType;
enum { CUBLASLT_ORDER_COL = 0, CUBLASLT_ORDER_ROW = 1 };
enum { CUBLASLT_POINTER_MODE_HOST = 0, CUBLASLT_POINTER_MODE_DEVICE = 1 };
enum { CUBLASLT_BATCH_MODE_STRIDED = 0, CUBLASLT_BATCH_MODE_POINTER_ARRAY = 1 };
enum {
	CUBLASLT_EPILOGUE_DEFAULT = 1,
	CUBLASLT_EPILOGUE_RELU = 2,
	CUBLASLT_EPILOGUE_BIAS = 4,
	CUBLASLT_EPILOGUE_GELU = 32,
	CUBLASLT_EPILOGUE_RELU_AUX = 130,
	CUBLASLT_EPILOGUE_DRELU = 136,
	CUBLASLT_EPILOGUE_DRELU_BGRAD = 152,
	CUBLASLT_EPILOGUE_GELU_AUX = 160,
	CUBLASLT_EPILOGUE_DGELU = 192,
	CUBLASLT_EPILOGUE_DGELU_BGRAD = 208,
	CUBLASLT_EPILOGUE_BGRADA = 256,
	CUBLASLT_EPILOGUE_BGRADB = 512,
};
typedef enum {
	CUBLASLT_MATRIX_LAYOUT_ORDER = 1,
	CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,
	CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6,
	CUBLASLT_MATRIX_LAYOUT_BATCH_MODE = 8,
} cublasLtMatrixLayoutAttribute_t;
typedef enum {
	CUBLASLT_MATMUL_DESC_POINTER_MODE = 2,
	CUBLASLT_MATMUL_DESC_TRANSA = 3,
	CUBLASLT_MATMUL_DESC_TRANSB = 4,
	CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
	CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,
	CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE = 10,
	CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER = 11,
	CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD = 12,
	CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE = 13,
	CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET = 15,
	CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE = 26,
} cublasLtMatmulDescAttributes_t;
typedef enum {
	CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
	CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
	CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
	CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
	CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
	CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8,
} cublasLtMatmulPreferenceAttributes_t;
typedef enum {
	CUBLASLT_MATRIX_TRANSFORM_DESC_SCALE_TYPE = 0
} cublasLtMatrixTransformDescAttributes_t;
typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct cublasLtMatrixTransformDescOpaque *cublasLtMatrixTransformDesc_t;
typedef struct cublasLtMatmulDescOpaque *cublasLtMatmulDesc_t;
typedef struct cublasLtMatrixLayoutOpaque *cublasLtMatrixLayout_t;
typedef struct cublasLtMatmulPreferenceOpaque *cublasLtMatmulPreference_t;
typedef CUstream cudaStream_t;
typedef struct {
	uint64_t data[8];
} cublasLtMatmulAlgo_t;
typedef struct {
	cublasLtMatmulAlgo_t algo;
	size_t workspaceSize;
	cublasStatus_t state;
	float wavesCount;
	int reserved[4];
} cublasLtMatmulHeuristicResult_t;
#endif
#define CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE_MASK 2u

/* X(name, parameters) of those that give a cublasStatus_t. All are there in cuBLAS 13. */
#define CUBLASLT_CALLS(X)                                                                          \
	X(cublasLtCreate, (cublasLtHandle_t *))                                                    \
	X(cublasLtDestroy, (cublasLtHandle_t))                                                     \
	X(cublasLtMatmulDescCreate, (cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType))   \
	X(cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t))                                       \
	X(cublasLtMatmulDescSetAttribute,                                                          \
	  (cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t))            \
	X(cublasLtMatrixLayoutCreate,                                                              \
	  (cublasLtMatrixLayout_t *, cudaDataType, uint64_t, uint64_t, int64_t))                   \
	X(cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t))                                   \
	X(cublasLtMatrixLayoutSetAttribute,                                                        \
	  (cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, const void *, size_t))         \
	X(cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t *))                          \
	X(cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t))                           \
	X(cublasLtMatmulPreferenceSetAttribute,                                                    \
	  (cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *,         \
	   size_t))                                                                                \
	X(cublasLtMatmulAlgoGetHeuristic,                                                          \
	  (cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, \
	   cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,        \
	   cublasLtMatmulHeuristicResult_t *, int *))                                              \
	X(cublasLtMatrixTransformDescCreate, (cublasLtMatrixTransformDesc_t *, cudaDataType))      \
	X(cublasLtMatrixTransformDescDestroy, (cublasLtMatrixTransformDesc_t))                     \
	X(cublasLtMatrixTransformDescSetAttribute,                                                 \
	  (cublasLtMatrixTransformDesc_t, cublasLtMatrixTransformDescAttributes_t, const void *,   \
	   size_t))                                                                                \
	X(cublasLtMatrixTransform,                                                                 \
	  (cublasLtHandle_t, cublasLtMatrixTransformDesc_t, const void *, const void *,            \
	   cublasLtMatrixLayout_t, const void *, const void *, cublasLtMatrixLayout_t, void *,     \
	   cublasLtMatrixLayout_t, cudaStream_t))                                                  \
	X(cublasLtMatmul,                                                                          \
	  (cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *,                     \
	   cublasLtMatrixLayout_t, const void *, cublasLtMatrixLayout_t, const void *,             \
	   const void *, cublasLtMatrixLayout_t, void *, cublasLtMatrixLayout_t,                   \
	   const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t))

struct nvidia_blas {
	const char *(*cublasLtGetStatusName)(cublasStatus_t);
	size_t (*cublasLtGetVersion)(void);
#define CUBLASLT_POINTER(name, parameters) cublasStatus_t(*name) parameters;
	CUBLASLT_CALLS(CUBLASLT_POINTER)
#undef CUBLASLT_POINTER
};

/* cublas.c: runs a product as the program has called it, with cuBLAS. False: there is no such
 * library, and `what` has the reason. */
struct hal_stream;
struct rf_gemm_call;
bool nvidia_cublas(struct hal_stream *, const struct rf_gemm_call *, cublasStatus_t *, char *what,
		   uint32_t what_bytes);

/* The library of this process, loaded once. NULL: `text` states what is missing. */
const struct nvidia_blas *nvidia_blas(char *text, uint32_t text_bytes);

#endif
