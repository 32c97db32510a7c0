/* driver.h: the part of the CUDA driver API that this HAL uses, loaded at run time.
 *
 * A proxy is built where no CUDA is installed and starts where there is no driver, so nothing here
 * includes cuda.h, and nothing is linked. tests/nvidia/test_header.py compiles the list of calls
 * against NVIDIA's header and compares sizes, offsets and numbers. If cuda.h was included before,
 * as in that test, its types are used.
 */
#ifndef RANKFOLD_CUDA_DRIVER_H
#define RANKFOLD_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#ifndef CUDA_VERSION
typedef int CUdevice;
typedef unsigned long long CUdeviceptr, CUmemGenericAllocationHandle;
typedef uint64_t cuuint64_t;
typedef uint32_t cuuint32_t;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUarray_st *CUarray;
typedef void (*CUhostFn)(void *);

typedef enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_ILLEGAL_ADDRESS = 700,
	CUDA_ERROR_MISALIGNED_ADDRESS = 716,
	CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
	CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
	CUDA_ERROR_LAUNCH_FAILED = 719,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_UNKNOWN = 999,
} CUresult;
typedef enum {
	CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK = 12,
	CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13,
	CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
	CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE = 36,
	CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH = 37,
	CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,
	CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
	CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
	CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR = 82,
	CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
	CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR = 106,
	CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
	CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
	CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS = 122,
} CUdevice_attribute;
typedef enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1 } CUmemAllocationType;
typedef enum {
	CU_MEM_HANDLE_TYPE_NONE = 0,
	CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
} CUmemAllocationHandleType;
typedef enum { CU_MEM_LOCATION_TYPE_DEVICE = 1 } CUmemLocationType;
typedef enum {
	CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
	CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
} CUmemAccess_flags;
typedef enum { CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0 } CUmemAllocationGranularity_flags;
typedef enum { CU_MEMORYTYPE_UNIFIED = 4 } CUmemorytype;
typedef enum {
	CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
	CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
	CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES = 2,
	CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
	CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
	CU_FUNC_ATTRIBUTE_PTX_VERSION = 5,
	CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
	CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
} CUfunction_attribute;
typedef enum { CU_JIT_ERROR_LOG_BUFFER = 5, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6 } CUjit_option;
typedef enum {
	CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
	CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
} CUlaunchAttributeID;
typedef enum { CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0 } CUtensorMapDataType;
typedef enum { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 } CUtensorMapInterleave;
typedef enum { CU_TENSOR_MAP_SWIZZLE_NONE = 0 } CUtensorMapSwizzle;
typedef enum { CU_TENSOR_MAP_L2_PROMOTION_NONE = 0 } CUtensorMapL2promotion;
typedef enum { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 } CUtensorMapFloatOOBfill;
enum { CU_STREAM_NON_BLOCKING = 1, CU_EVENT_DISABLE_TIMING = 2 };
#define CU_MEMHOSTALLOC_PORTABLE 1
#define CU_MEMHOSTALLOC_DEVICEMAP 2
#define CU_MEMHOSTREGISTER_PORTABLE 1
#define CU_MEMHOSTREGISTER_DEVICEMAP 2
#define CU_LAUNCH_PARAM_END ((void *)0)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void *)1)
#define CU_LAUNCH_PARAM_BUFFER_SIZE ((void *)2)

typedef struct {
	char bytes[16];
} CUuuid;
typedef struct {
	CUmemLocationType type;
	int id;
} CUmemLocation;
typedef struct {
	CUmemAllocationType type;
	CUmemAllocationHandleType requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	unsigned char allocFlags[8];
} CUmemAllocationProp;
typedef struct {
	CUmemLocation location;
	CUmemAccess_flags flags;
} CUmemAccessDesc;
typedef struct {
	size_t srcXInBytes, srcY;
	CUmemorytype srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	CUarray srcArray;
	size_t srcPitch;
	size_t dstXInBytes, dstY;
	CUmemorytype dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	CUarray dstArray;
	size_t dstPitch;
	size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;
typedef union {
	char pad[64];
	int cooperative;
	struct {
		unsigned x, y, z;
	} clusterDim;
	uint64_t aligned;
} CUlaunchAttributeValue;
typedef struct {
	CUlaunchAttributeID id;
	char pad[8 - sizeof(CUlaunchAttributeID)];
	CUlaunchAttributeValue value;
} CUlaunchAttribute;
typedef struct {
	unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
	CUstream hStream;
	CUlaunchAttribute *attrs;
	unsigned numAttrs;
} CUlaunchConfig;
typedef struct {
	_Alignas(128) cuuint64_t opaque[16]; /* 64 before CUDA 13 */
} CUtensorMap;
#endif

/* X(name as the library exports it, parameters). All are there since CUDA 12.0. */
#define CUDA_CALLS(X)                                                                              \
	X(cuInit, (unsigned))                                                                      \
	X(cuDriverGetVersion, (int *))                                                             \
	X(cuGetErrorName, (CUresult, const char **))                                               \
	X(cuDeviceGetCount, (int *))                                                               \
	X(cuDeviceGet, (CUdevice *, int))                                                          \
	X(cuDeviceGetAttribute, (int *, CUdevice_attribute, CUdevice))                             \
	X(cuDeviceGetUuid_v2, (CUuuid *, CUdevice))                                                \
	X(cuDeviceCanAccessPeer, (int *, CUdevice, CUdevice))                                      \
	X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                       \
	X(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                \
	X(cuCtxSetCurrent, (CUcontext))                                                            \
	X(cuMemGetInfo_v2, (size_t *, size_t *))                                                   \
	X(cuMemGetAllocationGranularity,                                                           \
	  (size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags))               \
	X(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))   \
	X(cuMemAddressFree, (CUdeviceptr, size_t))                                                 \
	X(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,       \
			unsigned long long))                                                       \
	X(cuMemRelease, (CUmemGenericAllocationHandle))                                            \
	X(cuMemExportToShareableHandle,                                                            \
	  (void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long))   \
	X(cuMemImportFromShareableHandle,                                                          \
	  (CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType))                     \
	X(cuMemMap,                                                                                \
	  (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))         \
	X(cuMemUnmap, (CUdeviceptr, size_t))                                                       \
	X(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))                  \
	X(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))                                      \
	X(cuMemFreeAsync, (CUdeviceptr, CUstream))                                                 \
	X(cuMemHostAlloc, (void **, size_t, unsigned))                                             \
	X(cuMemFreeHost, (void *))                                                                 \
	X(cuMemHostRegister_v2, (void *, size_t, unsigned))                                        \
	X(cuMemHostUnregister, (void *))                                                           \
	X(cuStreamCreate, (CUstream *, unsigned))                                                  \
	X(cuStreamDestroy_v2, (CUstream))                                                          \
	X(cuStreamQuery, (CUstream))                                                               \
	X(cuStreamWriteValue64_v2, (CUstream, CUdeviceptr, cuuint64_t, unsigned))                  \
	X(cuStreamWaitEvent, (CUstream, CUevent, unsigned))                                        \
	X(cuEventCreate, (CUevent *, unsigned))                                                    \
	X(cuEventDestroy_v2, (CUevent))                                                            \
	X(cuEventRecord, (CUevent, CUstream))                                                      \
	X(cuLaunchHostFunc, (CUstream, CUhostFn, void *))                                          \
	X(cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **))                \
	X(cuMemcpyAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                             \
	X(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *, CUstream))                                   \
	X(cuMemsetD2D8Async, (CUdeviceptr, size_t, unsigned char, size_t, size_t, CUstream))       \
	X(cuMemsetD2D16Async, (CUdeviceptr, size_t, unsigned short, size_t, size_t, CUstream))     \
	X(cuMemsetD2D32Async, (CUdeviceptr, size_t, unsigned, size_t, size_t, CUstream))           \
	X(cuModuleLoadDataEx, (CUmodule *, const void *, unsigned, CUjit_option *, void **))       \
	X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                             \
	X(cuModuleGetGlobal_v2, (CUdeviceptr *, size_t *, CUmodule, const char *))                 \
	X(cuFuncGetAttribute, (int *, CUfunction_attribute, CUfunction))                           \
	X(cuFuncSetAttribute, (CUfunction, CUfunction_attribute, int))                             \
	X(cuOccupancyMaxActiveClusters, (int *, CUfunction, const CUlaunchConfig *))               \
	X(cuOccupancyMaxPotentialClusterSize, (int *, CUfunction, const CUlaunchConfig *))         \
	X(cuTensorMapEncodeTiled,                                                                  \
	  (CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,             \
	   const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,      \
	   CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill))                   \
	X(cuTensorMapEncodeIm2col,                                                                 \
	  (CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,             \
	   const cuuint64_t *, const int *, const int *, cuuint32_t, cuuint32_t,                   \
	   const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,  \
	   CUtensorMapFloatOOBfill))                                                               \
	X(cuTensorMapReplaceAddress, (CUtensorMap *, void *))

struct nvidia_driver {
#define CUDA_POINTER(name, parameters) CUresult(*name) parameters;
	CUDA_CALLS(CUDA_POINTER)
#undef CUDA_POINTER
};

/* The driver of this process, loaded and initialised once. NULL: `text` states what is missing. */
const struct nvidia_driver *nvidia_driver(char *text, uint32_t text_bytes);

#endif
