/* driver.c: bodies of the driver API that are more than one call.
 *
 * No lock, nothing that blocks of its own.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bodies.h"

CUresult cuInit(unsigned int Flags)
{
	int count;
	int error = Flags ? INVALID_VALUE : device_count(&count);
	if (!error)
		atomic_store(&context_driver, true);
	return error;
}

/* The runtime that a program links statically, and profilers, come through here first. */
CUresult cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId)
{
	(void)pExportTableId;
	if (ppExportTable)
		*ppExportTable = NULL;
	Dl_info asking = {0};
	dladdr(__builtin_return_address(0), &asking);
	if (asking.dli_fname && strstr(asking.dli_fname, "/libnvrtc."))
		return NOT_SUPPORTED; /* it does without */
	SAY_ONCE(
		"%s contains the CUDA runtime (static libcudart), which cannot be served: rebuild it "
		"with `nvcc -cudart shared`; or it is a profiler (CUPTI): profile the program without "
		"rankfold",
		asking.dli_fname ? asking.dli_fname : "the program");
	return NOT_SUPPORTED;
}

/* ---- device ---- */

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	int error = device ? device_check(ordinal) : INVALID_VALUE;
	if (!error)
		*device = ordinal;
	return error;
}

static int device_facts(CUdevice device, const struct rf_device **out)
{
	const struct rf_welcome *welcome;
	int error = device_check(device);
	if (!error)
		error = channel_welcome(&welcome);
	if (!error)
		*out = &welcome->device;
	return error;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
	const struct rf_device *d;
	int error = name && len > 0 ? device_facts(dev, &d) : INVALID_VALUE;
	if (!error)
		snprintf(name, (size_t)len, "%s", d->name);
	return error;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	cudaDeviceProp p;
	int error = uuid ? device_properties(&p, dev) : INVALID_VALUE;
	if (!error)
		memcpy(uuid->bytes, p.uuid, sizeof uuid->bytes);
	return error;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	const struct rf_device *d;
	int error = bytes ? device_facts(dev, &d) : INVALID_VALUE;
	if (!error)
		*bytes = d->memory_bytes;
	return error;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
	const struct rf_device *d;
	int error = major && minor ? device_facts(dev, &d) : INVALID_VALUE;
	if (error)
		return error;
	*major = (int)d->cc_major;
	*minor = (int)d->cc_minor;
	return CUDA_OK;
}

CUresult cuDeviceGetProperties(CUdevprop *prop, CUdevice dev)
{
	cudaDeviceProp p;
	int error = prop ? device_properties(&p, dev) : INVALID_VALUE;
	if (error)
		return error;
	*prop = (CUdevprop){.maxThreadsPerBlock = p.maxThreadsPerBlock,
			    .sharedMemPerBlock = (int)p.sharedMemPerBlock,
			    .totalConstantMemory = (int)p.totalConstMem,
			    .SIMDWidth = p.warpSize,
			    .memPitch = (int)p.memPitch,
			    .regsPerBlock = p.regsPerBlock,
			    .textureAlign = (int)p.textureAlignment};
	memcpy(prop->maxThreadsDim, p.maxThreadsDim, sizeof prop->maxThreadsDim);
	memcpy(prop->maxGridSize, p.maxGridSize, sizeof prop->maxGridSize);
	return device_attribute(&prop->clockRate, 13, dev);
}

/* ---- modules and functions ---- */

/* A file's bytes, to be freed, and a zero after them, as PTX ends; NULL: it cannot be read. */
char *file_content(const char *path, size_t *bytes)
{
	int kept = errno;
	char *content = NULL;
	long length;
	FILE *file = fopen(path, "rbe");
	if (file && !fseek(file, 0, SEEK_END) && (length = ftell(file)) > 0) {
		rewind(file);
		*bytes = (size_t)length;
		content = calloc(1, *bytes + 1);
		if (content && fread(content, 1, *bytes, file) != *bytes) {
			free(content);
			content = NULL;
		}
	}
	if (file)
		fclose(file);
	errno = kept;
	return content;
}

CUresult cuModuleLoad(CUmodule *module, const char *fname)
{
	size_t bytes;
	if (!module || !fname)
		return INVALID_VALUE;
	char *image = file_content(fname, &bytes);
	int error = image ? library_load(module, image) : FILE_NOT_FOUND;
	free(image);
	return error;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
	if (!mode)
		return INVALID_VALUE;
	*mode = 2; /* lazy */
	return CUDA_OK;
}

CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library)
{
	if (!pMod || !module_is(library))
		return pMod ? INVALID_HANDLE : INVALID_VALUE;
	*pMod = library;
	return CUDA_OK;
}

CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
	if (!pFunc || !function_is(kernel))
		return pFunc ? INVALID_HANDLE : INVALID_VALUE;
	*pFunc = kernel;
	return CUDA_OK;
}

CUresult cuFuncGetModule(CUmodule *hmod, CUfunction hfunc)
{
	if (!hmod || !function_is(hfunc))
		return hmod ? INVALID_HANDLE : INVALID_VALUE;
	*hmod = module_of(hfunc);
	return CUDA_OK;
}

CUresult cuFuncGetName(const char **name, CUfunction hfunc)
{
	if (!name || !function_is(hfunc))
		return name ? INVALID_HANDLE : INVALID_VALUE;
	*name = ((struct function *)hfunc)->name;
	return CUDA_OK;
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function)
{
	if (!state || !function_is(function))
		return state ? INVALID_HANDLE : INVALID_VALUE;
	*state = atomic_load(&((struct function *)function)->ready);
	return CUDA_OK;
}

/* The list form of parameters: pairs, ended by CU_LAUNCH_PARAM_END. */
int packed_parameters(void **extra, const void **packed, size_t *bytes)
{
	const size_t *size = NULL;
	*packed = NULL;
	*bytes = 0;
	for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
		if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
			*packed = extra[1];
		else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
			size = extra[1];
		else
			return INVALID_VALUE;
	}
	if (size)
		*bytes = *size;
	return *packed && !size ? INVALID_VALUE : CUDA_OK;
}

/* The driver's number for a bad grid is "invalid value". */
int launch_driver(const CUlaunchConfig *c, void *function, void **args, void **extra)
{
	struct launch l = {.function = function,
			   .args = args,
			   .shared_bytes = c->sharedMemBytes,
			   .grid = {c->gridDimX, c->gridDimY, c->gridDimZ},
			   .block = {c->blockDimX, c->blockDimY, c->blockDimZ}};
	if (!function_is(function))
		return INVALID_HANDLE;
	int error = stream_number(c->hStream, &l.stream);
	if (!error)
		error = launch_attributes(c->attrs, c->numAttrs, &l);
	if (!error && args && extra)
		error = INVALID_VALUE;
	if (!error && !args)
		error = packed_parameters(extra, &l.packed, &l.packed_bytes);
	if (!error)
		error = launch(&l);
	return error == INVALID_CONFIGURATION ? INVALID_VALUE : error;
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
			unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
			unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
			void **kernelParams, void **extra)
{
	CUlaunchConfig c = {gridDimX,  gridDimY,       gridDimZ, blockDimX, blockDimY,
			    blockDimZ, sharedMemBytes, hStream,  NULL,      0};
	return launch_driver(&c, f, kernelParams, extra);
}

int launch_driver_cooperative(CUlaunchConfig c, void *function, void **args)
{
	launch_attribute together = {.id = ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
	c.attrs = &together;
	c.numAttrs = 1;
	return launch_driver(&c, function, args, NULL);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams,
			  void **extra)
{
	return config ? launch_driver(config, f, kernelParams, extra) : INVALID_VALUE;
}

/* ---- memory ---- */

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
	uint64_t address;
	int error = dptr && bytesize ? capture_forbids() : INVALID_VALUE;
	if (!error)
		error = memory_alloc_for(context_owner(), bytesize, &address);
	if (!error)
		*dptr = address;
	return error;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
			    unsigned int ElementSizeBytes)
{
	(void)ElementSizeBytes;
	if (!pPitch || !WidthInBytes || !Height || WidthInBytes > RF_HEAP_BYTES)
		return INVALID_VALUE;
	*pPitch = (WidthInBytes + RF_ALLOC_ALIGN - 1) & ~(RF_ALLOC_ALIGN - 1);
	return *pPitch > RF_HEAP_BYTES / Height ? OUT_OF_MEMORY
						: cuMemAlloc_v2(dptr, *pPitch * Height);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
	struct allocation a;
	if (!memory_find((void *)dptr, &a))
		return NOT_FOUND;
	if (pbase)
		*pbase = a.base;
	if (psize)
		*psize = a.bytes;
	return CUDA_OK;
}

/* The forms of free that may wait. */
int free_now(const void *address)
{
	int error = channel_open();
	if (!error)
		error = capture_forbids();
	if (error)
		return error;
	return managed_is(address) ? managed_free((void *)address) : memory_free(address);
}

int host_free(void *address)
{
	int error = capture_forbids();
	return error ? error : pinned_free(address);
}

int host_alloc(void **out, size_t bytes, unsigned flags)
{
	int error = out && bytes && flags <= 7 ? capture_forbids() : INVALID_VALUE;
	return error ? error : pinned_alloc(bytes, context_owner(), flags, out);
}

static int put(void *data, const void *value, size_t bytes)
{
	memcpy(data, value, bytes);
	return CUDA_OK;
}

/* Numbers of CUpointer_attribute. */
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	struct allocation a;
	CUdeviceptr at = (CUdeviceptr)registered_reached((void *)ptr, 0);
	if (!data || !memory_find((void *)at, &a))
		return INVALID_VALUE;
	void *context = context_numbered(a.owner);
	bool pinned = memory_where((void *)at) == AT_PINNED;
	char managed = (a.flags & PINNED_MANAGED) != 0;
	unsigned type = pinned && !managed ? CU_HOST : CU_DEVICE, yes = 1, no = 0;
	switch (attribute) {
	case 1: return put(data, &context, sizeof context);
	case 2: return put(data, &type, sizeof type);
	case 3: return put(data, &at, sizeof at);                            /* device pointer */
	case 4: return pinned ? put(data, &ptr, sizeof ptr) : INVALID_VALUE; /* host pointer */
	case 6: return put(data, &yes, sizeof yes);         /* synchronous copies */
	case 7: return put(data, &a.base, sizeof a.base);   /* buffer id */
	case 8: return put(data, &managed, sizeof managed); /* managed? */
	case 9: return put(data, &current_device, sizeof current_device);
	case 10: return put(data, &no, sizeof(char)); /* legacy IPC? */
	case 11: return put(data, &a.base, sizeof a.base);
	case 12: return put(data, &a.bytes, sizeof a.bytes);
	case 13: return put(data, &yes, sizeof(char)); /* mapped? */
	default: return NOT_SUPPORTED;
	}
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes,
				void **data, CUdeviceptr ptr)
{
	static const size_t width[] = {[1] = 8, [2] = 4, [3] = 8,  [4] = 8, [6] = 4,
				       [7] = 8, [9] = 4, [11] = 8, [12] = 8};
	int nowhere = -2; /* CU_DEVICE_INVALID */
	if (!attributes || !data)
		return INVALID_VALUE;
	for (unsigned i = 0; i < numAttributes; i++) {
		unsigned which = attributes[i];
		if (!cuPointerGetAttribute(data[i], attributes[i], ptr))
			continue;
		bool known = which < sizeof width / sizeof *width && width[which];
		memset(data[i], 0, known ? width[which] : 1);
		if (which == 9)
			put(data[i], &nowhere, sizeof nowhere);
	}
	return CUDA_OK;
}

/* One side of a described copy: its first byte. */
static void *side(int type, const void *host, CUdeviceptr device, size_t x, size_t y, size_t pitch)
{
	char *base = type == CU_HOST ? (char *)host : (char *)device;
	return type == CU_ARRAY ? NULL : base + y * pitch + x;
}

int copy_described(const CUDA_MEMCPY2D *d, const void *stream, bool async)
{
	if (!d)
		return INVALID_VALUE;
	if (d->srcMemoryType == CU_ARRAY || d->dstMemoryType == CU_ARRAY) {
		SAY_ONCE("copies of CUDA arrays are not supported by rankfold");
		return NOT_SUPPORTED;
	}
	size_t dst_pitch = d->dstPitch ? d->dstPitch : d->WidthInBytes;
	size_t src_pitch = d->srcPitch ? d->srcPitch : d->WidthInBytes;
	int error = copy_2d(side(d->dstMemoryType, d->dstHost, d->dstDevice, d->dstXInBytes,
				 d->dstY, dst_pitch),
			    dst_pitch,
			    side(d->srcMemoryType, d->srcHost, d->srcDevice, d->srcXInBytes,
				 d->srcY, src_pitch),
			    src_pitch, d->WidthInBytes, d->Height, BY_ADDRESS, stream, async);
	return error == INVALID_PITCH ? INVALID_VALUE : error;
}

int copy_context_peer(CUdeviceptr dst, const void *dst_context, CUdeviceptr src,
		      const void *src_context, size_t bytes, const void *stream)
{
	int error = same_context(dst_context, src_context);
	return error ? error
		     : memory_copy_1d((void *)dst, (void *)src, bytes, DEVICE_TO_DEVICE, stream,
				      true);
}

int copy_described_peer(const CUDA_MEMCPY3D_PEER *d, const void *stream, bool async)
{
	int error = d ? same_context(d->reserved1, d->reserved0) : INVALID_VALUE;
	return error ? error : copy_described_3d(d, stream, async);
}
