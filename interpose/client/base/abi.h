/* abi.h: the types of NVIDIA's public interfaces whose layout the client must know. CUDA's are
 * here, those of NCCL, cuBLAS and NVML in abi_libraries.h.
 *
 * The client builds on machines without a toolkit, so it declares the few structures that it reads
 * or fills. Handles are opaque pointers and enumerations plain integers, as in the ABI.
 * tests/interpose/test_abi.py compares sizes, offsets and prototypes with the real headers.
 */
#ifndef RANKFOLD_ABI_H
#define RANKFOLD_ABI_H

#include <stddef.h>
#include <stdint.h>

#include "abi_libraries.h"

/* ---- CUDA runtime ---- */

typedef int cudaError_t;
typedef void *cudaStream_t;
typedef void *cudaEvent_t;
typedef void *cudaKernel_t;
typedef void *cudaFunction_t;
typedef void *cudaLibrary_t;
typedef void *cudaMemPool_t;
typedef int cudaMemcpyKind;
typedef int cudaDeviceAttr;
typedef int cudaDeviceP2PAttr;
typedef int cudaLimit;
typedef int cudaFuncCache;
typedef int cudaChannelFormatKind;
typedef int cudaFuncAttribute;
typedef int cudaSharedMemConfig;
typedef int cudaMemPoolAttr;
typedef int cudaMemAccessFlags;
typedef int cudaMemAllocationType;
typedef int cudaMemoryAdvise;
typedef int cudaMemRangeAttribute;
typedef int cudaMemAllocationHandleType;
typedef int cudaGraphMemAttributeType;
typedef void cudaMemPoolPtrExportData;
typedef int cudaJitOption;
typedef int cudaLibraryOption;
typedef int cudaStreamCaptureStatus;
typedef int cudaStreamCaptureMode;
typedef int cudaDriverEntryPointQueryResult;
typedef void (*cudaStreamCallback_t)(cudaStream_t stream, cudaError_t status, void *userData);
typedef void (*cudaHostFn_t)(void *userData);

typedef struct {
	unsigned int x, y, z;
} dim3;
typedef struct {
	unsigned int x, y, z;
} uint3;
typedef struct {
	int x, y, z, w;
	cudaChannelFormatKind f;
} cudaChannelFormatDesc;
typedef void *cudaGraph_t;
typedef void *cudaGraphNode_t;
typedef void *cudaGraphExec_t;
typedef void *cudaArray_t;
typedef int cudaGraphNodeType;
typedef struct {
	unsigned char from_port, to_port, type, reserved[5];
} cudaGraphEdgeData;
typedef void *cudaUserObject_t;

typedef struct {
	int type, id;
} cudaMemLocation;
typedef struct {
	cudaMemLocation location;
	int flags;
} cudaMemAccessDesc;
typedef struct {
	int allocType, handleTypes;
	cudaMemLocation location;
	void *win32SecurityAttributes;
	size_t maxSize;
	unsigned short usage;
	unsigned char reserved[54];
} cudaMemPoolProps;

enum cuda_memcpy_kind {
	HOST_TO_HOST,
	HOST_TO_DEVICE,
	DEVICE_TO_HOST,
	DEVICE_TO_DEVICE,
	BY_ADDRESS,
};

typedef struct {
	char name[256];
	char uuid[16];
	char luid[8];
	unsigned int luidDeviceNodeMask;
	size_t totalGlobalMem, sharedMemPerBlock;
	int regsPerBlock, warpSize;
	size_t memPitch;
	int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
	size_t totalConstMem;
	int major, minor;
	size_t textureAlignment, texturePitchAlignment;
	int multiProcessorCount, integrated, canMapHostMemory;
	int maxTexture[39]; /* limits of textures and surfaces, which are not supported */
	size_t surfaceAlignment;
	int concurrentKernels, ECCEnabled, pciBusID, pciDeviceID, pciDomainID, tccDriver;
	int asyncEngineCount, unifiedAddressing, memoryBusWidth, l2CacheSize;
	int persistingL2CacheMaxSize, maxThreadsPerMultiProcessor, streamPrioritiesSupported;
	int globalL1CacheSupported, localL1CacheSupported;
	size_t sharedMemPerMultiprocessor;
	int regsPerMultiprocessor, managedMemory, isMultiGpuBoard, multiGpuBoardGroupID;
	int hostNativeAtomicSupported, pageableMemoryAccess, concurrentManagedAccess;
	int computePreemptionSupported, canUseHostPointerForRegisteredMem, cooperativeLaunch;
	size_t sharedMemPerBlockOptin;
	int pageableMemoryAccessUsesHostPageTables, directManagedMemAccessFromHost;
	int maxBlocksPerMultiProcessor, accessPolicyMaxWindowSize;
	size_t reservedSharedMemPerBlock;
	int hostRegisterSupported, sparseCudaArraySupported, hostRegisterReadOnlySupported;
	int timelineSemaphoreInteropSupported, memoryPoolsSupported, gpuDirectRDMASupported;
	unsigned int gpuDirectRDMAFlushWritesOptions;
	int gpuDirectRDMAWritesOrdering;
	unsigned int memoryPoolSupportedHandleTypes;
	int deferredMappingCudaArraySupported, ipcEventSupported, clusterLaunch;
	int unifiedFunctionPointers, deviceNumaConfig, deviceNumaId, mpsEnabled, hostNumaId;
	unsigned int gpuPciDeviceID, gpuPciSubsystemID;
	int hostNumaMultinodeIpcSupported;
	int reserved[56];
} cudaDeviceProp;
/* The same in CUDA 12. CUDA 11's ends before hostRegisterSupported. */
typedef struct {
	char name[256];
	char uuid[16];
	char luid[8];
	unsigned int luidDeviceNodeMask;
	size_t totalGlobalMem, sharedMemPerBlock;
	int regsPerBlock, warpSize;
	size_t memPitch;
	int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], clockRate;
	size_t totalConstMem;
	int major, minor;
	size_t textureAlignment, texturePitchAlignment;
	int deviceOverlap, multiProcessorCount, kernelExecTimeoutEnabled, integrated;
	int canMapHostMemory, computeMode, maxTexture[40];
	size_t surfaceAlignment;
	int concurrentKernels, ECCEnabled, pciBusID, pciDeviceID, pciDomainID, tccDriver;
	int asyncEngineCount, unifiedAddressing, memoryClockRate, memoryBusWidth, l2CacheSize;
	int persistingL2CacheMaxSize, maxThreadsPerMultiProcessor, streamPrioritiesSupported;
	int globalL1CacheSupported, localL1CacheSupported;
	size_t sharedMemPerMultiprocessor;
	int regsPerMultiprocessor, managedMemory, isMultiGpuBoard, multiGpuBoardGroupID;
	int hostNativeAtomicSupported, singleToDoublePrecisionPerfRatio, pageableMemoryAccess;
	int concurrentManagedAccess, computePreemptionSupported, canUseHostPointerForRegisteredMem;
	int cooperativeLaunch, cooperativeMultiDeviceLaunch;
	size_t sharedMemPerBlockOptin;
	int pageableMemoryAccessUsesHostPageTables, directManagedMemAccessFromHost;
	int maxBlocksPerMultiProcessor, accessPolicyMaxWindowSize;
	size_t reservedSharedMemPerBlock;
	int hostRegisterSupported, sparseCudaArraySupported, hostRegisterReadOnlySupported;
	int timelineSemaphoreInteropSupported, memoryPoolsSupported, gpuDirectRDMASupported;
	unsigned int gpuDirectRDMAFlushWritesOptions;
	int gpuDirectRDMAWritesOrdering;
	unsigned int memoryPoolSupportedHandleTypes;
	int deferredMappingCudaArraySupported, ipcEventSupported, clusterLaunch;
	int unifiedFunctionPointers, reserved[63];
} cudaDeviceProp_12;

typedef struct {
	size_t x, y, z;
} cudaPos;
typedef struct {
	size_t width, height, depth;
} cudaExtent;
typedef struct {
	void *ptr;
	size_t pitch, xsize, ysize;
} cudaPitchedPtr;
typedef struct {
	cudaArray_t srcArray;
	cudaPos srcPos;
	cudaPitchedPtr srcPtr;
	cudaArray_t dstArray;
	cudaPos dstPos;
	cudaPitchedPtr dstPtr;
	cudaExtent extent;
	cudaMemcpyKind kind;
} cudaMemcpy3DParms;
typedef struct {
	cudaArray_t srcArray;
	cudaPos srcPos;
	cudaPitchedPtr srcPtr;
	int srcDevice;
	cudaArray_t dstArray;
	cudaPos dstPos;
	cudaPitchedPtr dstPtr;
	int dstDevice;
	cudaExtent extent;
} cudaMemcpy3DPeerParms;

/* For copies in a batch; the driver's structures are the same. */
enum source_order { SOURCE_IN_STREAM_ORDER = 1, SOURCE_DURING_CALL, SOURCE_IN_ANY_ORDER };
typedef struct {
	int srcAccessOrder; /* enum source_order */
	cudaMemLocation srcLocHint, dstLocHint;
	unsigned int flags;
} cudaMemcpyAttributes;
typedef struct {
	int type; /* 1: ptr, 2: array */
	union {
		struct {
			void *ptr;
			size_t rowLength, layerHeight;
			cudaMemLocation locHint;
		} ptr;
		struct {
			cudaArray_t array;
			cudaPos offset;
		} array;
	} op;
} cudaMemcpy3DOperand;
typedef struct {
	cudaMemcpy3DOperand src, dst;
	cudaExtent extent;
	int srcAccessOrder; /* enum source_order */
	unsigned int flags;
} cudaMemcpy3DBatchOp;

typedef struct {
	void *func;
	dim3 gridDim, blockDim;
	unsigned int sharedMemBytes;
	void **kernelParams, **extra;
} cudaKernelNodeParams;

typedef struct {
	int type; /* enum cuda_memory_type */
	int device;
	void *devicePointer, *hostPointer;
	long reserved[8];
} cudaPointerAttributes;
typedef struct {
	int type, device;
	void *devicePointer, *hostPointer;
} cudaPointerAttributes_12;
enum cuda_memory_type { MEMORY_UNREGISTERED, MEMORY_HOST, MEMORY_DEVICE, MEMORY_MANAGED };
enum cuda_attach { ATTACH_GLOBAL = 1, ATTACH_HOST = 2, ATTACH_SINGLE = 4 };

typedef struct {
	size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
	int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, cacheModeCA;
	int maxDynamicSharedSizeBytes, preferredShmemCarveout, clusterDimMustBeSet;
	int requiredClusterWidth, requiredClusterHeight, requiredClusterDepth;
	int clusterSchedulingPolicyPreference, nonPortableClusterSizeAllowed;
	int reserved[16];
} cudaFuncAttributes;
typedef struct {
	size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
	int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, cacheModeCA;
	int maxDynamicSharedSizeBytes, preferredShmemCarveout;
} cudaFuncAttributes_11;

typedef struct {
	void *base_ptr;
	size_t num_bytes;
	float hitRatio;
	int hitProp, missProp; /* 0 normal, 1 streaming, 2 persisting (not for a miss) */
} access_policy_window;
typedef union {
	char pad[64];
	access_policy_window accessPolicyWindow;
	int cooperative, syncPolicy, priority, memSyncDomain;
	int hint; /* any other attribute that is one number */
	struct {
		unsigned char default_, remote;
	} memSyncDomainMap;
	struct {
		unsigned int x, y, z;
	} clusterDim;
	struct {
		int deviceUpdatable;
		void *devNode;
	} deviceUpdatableKernelNode;
} launch_attribute_value;
/* The same in both interfaces: cudaLaunchAttribute and CUlaunchAttribute. */
typedef struct {
	int id; /* enum launch_attribute_id */
	char pad[4];
	_Alignas(8) launch_attribute_value value;
} launch_attribute;
enum launch_attribute_id {
	ATTRIBUTE_IGNORE = 0,
	ATTRIBUTE_WINDOW = 1,
	ATTRIBUTE_COOPERATIVE = 2,
	ATTRIBUTE_SYNC_POLICY = 3,
	ATTRIBUTE_CLUSTER = 4,
	ATTRIBUTE_CLUSTER_POLICY = 5,
	ATTRIBUTE_SERIALIZATION = 6,
	ATTRIBUTE_PROGRAMMATIC_EVENT = 7,
	ATTRIBUTE_PRIORITY = 8,
	ATTRIBUTE_DOMAIN_MAP = 9,
	ATTRIBUTE_DOMAIN = 10,
	ATTRIBUTE_PREFERRED_CLUSTER = 11,
	ATTRIBUTE_LAUNCH_EVENT = 12,
	ATTRIBUTE_DEVICE_NODE = 13,
	ATTRIBUTE_CARVEOUT = 14,
	ATTRIBUTE_NVLINK = 16,
};
typedef int cudaLaunchAttributeID;
typedef int CUlaunchAttributeID;
typedef launch_attribute_value cudaLaunchAttributeValue;
typedef launch_attribute_value CUlaunchAttributeValue;
typedef int cudaKernelNodeAttrID;
typedef int CUkernelNodeAttrID;
typedef launch_attribute_value cudaKernelNodeAttrValue;
typedef launch_attribute_value CUkernelNodeAttrValue;

typedef struct {
	dim3 gridDim, blockDim;
	size_t dynamicSmemBytes;
	cudaStream_t stream;
	launch_attribute *attrs;
	unsigned int numAttrs;
} cudaLaunchConfig_t;

/* ---- CUDA driver ---- */

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef void *CUcontext;
typedef void *CUgreenCtx;
typedef void CUexecAffinityParam;
typedef void *CUmodule;
typedef void *CUfunction;
typedef void *CUlibrary;
typedef void *CUkernel;
typedef void *CUstream;
typedef void *CUevent;
typedef void *CUgraph;
typedef void *CUgraphNode;
typedef void *CUgraphExec;
typedef void *CUuserObject;
typedef void *CUmemoryPool;
typedef void *CUarray;
typedef int CUdevice_attribute;
typedef int CUdevice_P2PAttribute;
typedef int CUfunction_attribute;
typedef int CUpointer_attribute;
typedef int CUfunc_cache;
typedef int CUsharedconfig;
typedef int CUlimit;
typedef int CUjit_option;
typedef int CUjitInputType;
typedef void *CUlinkState;
typedef int CUlibraryOption;
typedef int CUmemPool_attribute;
typedef int CUmemAccess_flags;
typedef int CUmemAllocationType;
typedef int CUmem_advise;
typedef int CUmem_range_attribute;
typedef int CUmemAllocationHandleType;
typedef int CUgraphMem_attribute;
typedef void CUmemPoolPtrExportData;
typedef cudaMemLocation CUmemLocation;
typedef cudaMemAccessDesc CUmemAccessDesc;
typedef cudaMemPoolProps CUmemPoolProps;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef int CUmemAllocationGranularity_flags;
typedef struct {
	int type, requestedHandleTypes;
	cudaMemLocation location;
	void *win32HandleMetaData;
	unsigned char allocFlags[8];
} CUmemAllocationProp;
typedef int CUmoduleLoadingMode;
typedef int CUtensorMapDataType, CUtensorMapInterleave, CUtensorMapSwizzle;
typedef int CUtensorMapL2promotion, CUtensorMapFloatOOBfill;
typedef void *CUlogsCallback;
typedef void *CUlogsCallbackHandle;
typedef int CUfunctionLoadingState;
typedef int CUstreamCaptureStatus;
typedef int CUstreamCaptureMode;
typedef int CUgraphNodeType;
typedef int CUdriverProcAddressQueryResult;
typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
typedef struct {
	_Alignas(64) cuuint64_t opaque[16];
} CUtensorMap;
typedef struct {
	char bytes[16];
} CUuuid;
typedef void (*CUstreamCallback)(CUstream stream, CUresult status, void *userData);
typedef void (*CUhostFn)(void *userData);
typedef size_t (*CUoccupancyB2DSize)(int blockSize);
typedef struct {
	void *affinity;
	int count;
	void *cig;
} CUctxCreateParams;

typedef struct {
	int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], sharedMemPerBlock;
	int totalConstantMemory, SIMDWidth, memPitch, regsPerBlock, clockRate, textureAlign;
} CUdevprop;

typedef struct {
	unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
	CUstream hStream;
	launch_attribute *attrs;
	unsigned int numAttrs;
} CUlaunchConfig;

enum cu_memory_type { CU_HOST = 1, CU_DEVICE = 2, CU_ARRAY = 3, CU_UNIFIED = 4 };
typedef struct {
	size_t srcXInBytes, srcY;
	int srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	CUarray srcArray;
	size_t srcPitch;
	size_t dstXInBytes, dstY;
	int dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	CUarray dstArray;
	size_t dstPitch;
	size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

typedef struct {
	size_t srcXInBytes, srcY, srcZ, srcLOD;
	int srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	CUarray srcArray;
	void *reserved0;
	size_t srcPitch, srcHeight;
	size_t dstXInBytes, dstY, dstZ, dstLOD;
	int dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	CUarray dstArray;
	void *reserved1;
	size_t dstPitch, dstHeight;
	size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;
/* `reserved0` and `reserved1` are the contexts of source and destination. */
typedef CUDA_MEMCPY3D CUDA_MEMCPY3D_PEER;
typedef cudaMemcpyAttributes CUmemcpyAttributes;
typedef cudaMemcpy3DBatchOp CUDA_MEMCPY3D_BATCH_OP;

/* The first version ends before `kern`. */
typedef struct {
	CUfunction func;
	unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
	void **kernelParams, **extra;
	CUkernel kern;
	CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct {
	CUdeviceptr dst;
	size_t pitch;
	unsigned int value, elementSize;
	size_t width, height;
} CUDA_MEMSET_NODE_PARAMS;

typedef struct {
	CUhostFn fn;
	void *userData;
} CUDA_HOST_NODE_PARAMS;
/* The same in both interfaces. */
typedef CUDA_MEMSET_NODE_PARAMS cudaMemsetParams;
typedef CUDA_HOST_NODE_PARAMS cudaHostNodeParams;

typedef int CUgraphExecUpdateResult;
typedef struct {
	int result;
	CUgraphNode errorNode, errorFromNode;
} CUgraphExecUpdateResultInfo;
typedef CUgraphExecUpdateResultInfo cudaGraphExecUpdateResultInfo;
typedef cudaGraphEdgeData CUgraphEdgeData;

typedef struct {
	int flags, reserved;
	CUcontext copyCtx;
	CUDA_MEMCPY3D copyParams;
} CUDA_MEMCPY_NODE_PARAMS;
typedef struct {
	CUDA_MEMSET_NODE_PARAMS params;
	CUcontext ctx;
} CUDA_MEMSET_NODE_PARAMS_v2;
typedef struct {
	CUgraph graph;
	int ownership;
} CUDA_CHILD_GRAPH_NODE_PARAMS;
/* A node of kind `type`; both interfaces have the same frame. */
typedef struct {
	CUgraphNodeType type;
	int reserved0[3];
	union {
		long long reserved1[29];
		CUDA_KERNEL_NODE_PARAMS kernel;
		CUDA_MEMCPY_NODE_PARAMS memcpy;
		CUDA_MEMSET_NODE_PARAMS_v2 memset;
		CUDA_HOST_NODE_PARAMS host;
		CUDA_CHILD_GRAPH_NODE_PARAMS graph;
		CUevent eventWait, eventRecord;
	};
	long long reserved2;
} CUgraphNodeParams;
typedef struct {
	int flags, reserved[3];
	cudaMemcpy3DParms copyParams;
} cudaMemcpyNodeParams;
typedef struct {
	cudaGraphNodeType type;
	int reserved0[3];
	union {
		long long reserved1[29];
		cudaKernelNodeParams kernel;
		cudaMemcpyNodeParams memcpy;
		cudaMemsetParams memset;
		cudaHostNodeParams host;
		CUDA_CHILD_GRAPH_NODE_PARAMS graph;
		cudaEvent_t eventWait, eventRecord;
	};
	long long reserved2;
} cudaGraphNodeParams;

enum instantiate_result { /* values of result_out */
			  INSTANTIATE_SUCCESS = 0,
			  INSTANTIATE_ERROR = 1,
			  INSTANTIATE_INVALID_STRUCTURE = 2,
};
typedef struct {
	unsigned long long flags;
	CUstream hUploadStream;
	CUgraphNode hErrNode_out;
	int result_out;
} CUDA_GRAPH_INSTANTIATE_PARAMS;
typedef CUDA_GRAPH_INSTANTIATE_PARAMS cudaGraphInstantiateParams;

/* Terminators and tags of the lists that cuLaunchKernel takes as `extra`. */
#define CU_LAUNCH_PARAM_END ((void *)0)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void *)1)
#define CU_LAUNCH_PARAM_BUFFER_SIZE ((void *)2)

#endif
