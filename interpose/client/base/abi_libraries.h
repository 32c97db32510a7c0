/* abi_libraries.h: the types of NVIDIA's libraries other than CUDA itself, by the rules of abi.h.
 */
#ifndef RANKFOLD_ABI_LIBRARIES_H
#define RANKFOLD_ABI_LIBRARIES_H

#include <stddef.h>
#include <stdint.h>

/* ---- NCCL ---- */

typedef int ncclResult_t;
typedef int ncclDataType_t;
typedef int ncclRedOp_t;
typedef int ncclScalarResidence_t;
typedef void *ncclComm_t;
typedef void *ncclWindow_t;
typedef struct {
	char internal[128];
} ncclUniqueId;
typedef struct {
	size_t size;
	unsigned int magic, version;
	int blocking;
} ncclConfig_t;
typedef struct {
	size_t size;
	unsigned int magic, version;
	float estimatedTime;
} ncclSimInfo_t;

/* ---- cuBLAS and cuBLASLt: their enumerations are in api.h ---- */

typedef int cudaDataType;
typedef int cudaDataType_t;
enum {
	CUDA_R_32F = 0,
	CUDA_R_64F = 1,
	CUDA_R_16F = 2,
	CUDA_R_8I = 3,
	CUDA_R_32I = 10,
	CUDA_R_16BF = 14,
	CUDA_C_32F = 4,
	CUDA_C_64F = 5,
	CUDA_C_16F = 6,
	CUDA_C_8I = 7,
	CUDA_R_8U = 8,
	CUDA_C_16BF = 15,
};
typedef int libraryPropertyType;
typedef struct {
	unsigned short bits;
} __half, __nv_bfloat16;
typedef struct {
	float x, y;
} cuComplex;
typedef struct {
	double x, y;
} cuDoubleComplex;
typedef void *cublasHandle_t;
typedef int cufftHandle, cufftType;
typedef float cufftReal;
typedef double cufftDoubleReal;
typedef cuComplex cufftComplex;
typedef cuDoubleComplex cufftDoubleComplex;
typedef void *cusolverDnHandle_t, *cusolverDnParams_t, *gesvdjInfo_t, *syevjInfo_t;
typedef void *cublasLtHandle_t;
typedef struct {
	uint64_t data[14];
} cublasLtMatrixLayoutOpaque_t, *cublasLtMatrixLayout_t;
typedef struct {
	uint64_t data[32];
} cublasLtMatmulDescOpaque_t, *cublasLtMatmulDesc_t;
typedef struct {
	uint64_t data[12];
} cublasLtMatmulPreferenceOpaque_t, *cublasLtMatmulPreference_t;
typedef struct {
	uint64_t data[8];
} cublasLtMatmulAlgo_t, cublasLtMatrixTransformDescOpaque_t, *cublasLtMatrixTransformDesc_t;
typedef struct {
	cublasLtMatmulAlgo_t algo;
	size_t workspaceSize;
	int state;
	float wavesCount;
	int reserved[4];
} cublasLtMatmulHeuristicResult_t;

/* ---- cuDNN: enumerations are int, their numbers in api.h ---- */

typedef void *cudnnHandle_t;
typedef struct dnn_tensor *cudnnTensorDescriptor_t;
typedef void *cudnnActivationDescriptor_t;
typedef void *cudnnDropoutDescriptor_t;
typedef void *cudnnRNNDescriptor_t;
typedef void *cudnnFilterDescriptor_t;
typedef void *cudnnConvolutionDescriptor_t;
typedef void *cudnnPoolingDescriptor_t;
typedef void *cudnnOpTensorDescriptor_t;
typedef void *cudnnReduceTensorDescriptor_t;
typedef void *cudnnLRNDescriptor_t;
typedef void *cudnnCTCLossDescriptor_t;
typedef void cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionBwdDataAlgoPerf_t;
typedef void cudnnConvolutionBwdFilterAlgoPerf_t;
typedef void *cudnnRNNDataDescriptor_t;
typedef void *cudnnSpatialTransformerDescriptor_t;
typedef void *cudnnBackendDescriptor_t;

/* ---- NVML: types that are never read or filled are only names ---- */

typedef int nvmlReturn_t;
typedef void *nvmlDevice_t;
typedef int nvmlClockType_t;
typedef int nvmlComputeMode_t;
typedef int nvmlEccCounterType_t;
typedef int nvmlEnableState_t;
typedef int nvmlGpuP2PCapsIndex_t;
typedef int nvmlGpuP2PStatus_t;
typedef int nvmlGpuTopologyLevel_t;
typedef int nvmlIntNvLinkDeviceType_t;
typedef int nvmlMemoryErrorType_t;
typedef int nvmlMemoryLocation_t;
typedef int nvmlNvLinkCapability_t;
typedef int nvmlNvLinkErrorCounter_t;
typedef int nvmlPageRetirementCause_t;
typedef int nvmlPcieUtilCounter_t;
typedef int nvmlPstates_t;
typedef int nvmlTemperatureSensors_t;
typedef int nvmlTemperatureThresholds_t;
typedef unsigned int nvmlDeviceArchitecture_t;
typedef void nvmlBAR1Memory_t;
typedef void nvmlDeviceAttributes_t;
typedef void nvmlGpuFabricInfo_t;
typedef void nvmlGpuFabricInfoV_t;
typedef void nvmlPlatformInfo_t;
typedef void nvmlProcessUtilizationSample_t;
typedef void nvmlTemperature_t;
typedef void nvmlUtilization_t;

typedef struct {
	unsigned long long total, free, used;
} nvmlMemory_t;
typedef struct {
	unsigned int version;
	unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;
/* The first version ends before pciSubSystemId, the second before busId. */
typedef struct {
	char busIdLegacy[16];
	unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
	char busId[32];
} nvmlPciInfo_t;
typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;
typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;
	unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_v2_t;
typedef nvmlProcessInfo_v2_t nvmlProcessInfo_t;
typedef struct {
	unsigned int fieldId, scopeId;
	long long timestamp, latencyUsec;
	int valueType, nvmlReturn;
	unsigned long long value;
} nvmlFieldValue_t;

#endif
