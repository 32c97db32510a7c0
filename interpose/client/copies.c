/* copies.c: copies and fills of boxes, described by the structures of both APIs. A box is some
 * slices of rows: one record per slice, and only the last may have to be waited for.
 *
 * No lock; blocks as memory_copy does.
 */
#include <string.h>

#include "bodies.h"

static int no_arrays(void)
{
	SAY_ONCE("copies of CUDA arrays are not supported by rankfold: use linear memory");
	return NOT_SUPPORTED;
}

/* All slices; copies to pageable memory wait by themselves, and a synchronous copy for its last. */
int copy_slices(const struct copy *given, const struct slices *slices)
{
	struct copy c = *given;
	int error = CUDA_OK;
	for (uint64_t z = 0; !error && z < slices->count; z++) {
		c.dst = (uint8_t *)given->dst + z * slices->dst_bytes;
		c.src = (const uint8_t *)given->src + z * slices->src_bytes;
		error = memory_copy(&c);
	}
	return error;
}

/* ---- the driver's description ---- */

static uint8_t *corner(int type, const void *host, CUdeviceptr device, size_t x, size_t y, size_t z,
		       size_t pitch, size_t slice)
{
	uint8_t *base = type == CU_HOST ? (uint8_t *)host : (uint8_t *)device;
	return base + z * slice + y * pitch + x;
}

int copy_of_description(const CUDA_MEMCPY3D *d, struct copy *c, struct slices *slices)
{
	if (!d)
		return INVALID_VALUE;
	if (d->srcMemoryType == CU_ARRAY || d->dstMemoryType == CU_ARRAY)
		return no_arrays();
	size_t dst_pitch = d->dstPitch ? d->dstPitch : d->WidthInBytes;
	size_t src_pitch = d->srcPitch ? d->srcPitch : d->WidthInBytes;
	size_t dst_slice = dst_pitch * (d->dstHeight ? d->dstHeight : d->Height);
	size_t src_slice = src_pitch * (d->srcHeight ? d->srcHeight : d->Height);
	*c = (struct copy){
		corner(d->dstMemoryType, d->dstHost, d->dstDevice, d->dstXInBytes, d->dstY, d->dstZ,
		       dst_pitch, dst_slice),
		corner(d->srcMemoryType, d->srcHost, d->srcDevice, d->srcXInBytes, d->srcY, d->srcZ,
		       src_pitch, src_slice),
		dst_pitch, src_pitch, d->WidthInBytes, d->Height, BY_ADDRESS, 0, false};
	*slices = (struct slices){d->Depth, dst_slice, src_slice};
	return d->Depth > 1 && (dst_slice < d->Height * dst_pitch || src_slice < d->Height * src_pitch)
		       ? INVALID_VALUE : CUDA_OK;
}

int copy_described_3d(const CUDA_MEMCPY3D *d, const void *stream, bool async)
{
	struct copy c;
	struct slices slices;
	int error = copy_of_description(d, &c, &slices);
	if (!error)
		error = stream_number(stream, &c.stream);
	c.async = async;
	return error ? error : copy_slices(&c, &slices);
}

/* ---- the runtime's description ---- */

/* Positions and extents are bytes in x where no array takes part. */
int copy_of_runtime(const cudaMemcpy3DParms *p, struct copy *c, struct slices *slices)
{
	if (!p)
		return INVALID_VALUE;
	if (p->srcArray || p->dstArray)
		return no_arrays();
	const cudaPitchedPtr *dst = &p->dstPtr, *src = &p->srcPtr;
	size_t dst_slice = dst->pitch * dst->ysize, src_slice = src->pitch * src->ysize;
	*c = (struct copy){
		(uint8_t *)dst->ptr + p->dstPos.z * dst_slice + p->dstPos.y * dst->pitch + p->dstPos.x,
		(uint8_t *)src->ptr + p->srcPos.z * src_slice + p->srcPos.y * src->pitch + p->srcPos.x,
		dst->pitch, src->pitch, p->extent.width, p->extent.height, p->kind, 0, false};
	*slices = (struct slices){p->extent.depth, dst_slice, src_slice};
	if (!dst->ptr || !src->ptr || (p->extent.height > 1 && (!dst->pitch || !src->pitch)) ||
	    (p->extent.depth > 1 && (dst->ysize < p->extent.height || src->ysize < p->extent.height)))
		return INVALID_VALUE;
	return CUDA_OK;
}

int copy_runtime_3d(const cudaMemcpy3DParms *p, const void *stream, bool async)
{
	struct copy c;
	struct slices slices;
	int error = copy_of_runtime(p, &c, &slices);
	if (!error)
		error = stream_number(stream, &c.stream);
	c.async = async;
	return error ? error : copy_slices(&c, &slices);
}

int copy_runtime_peer(const cudaMemcpy3DPeerParms *p, const void *stream, bool async)
{
	int error = p ? same_device(p->dstDevice, p->srcDevice) : INVALID_VALUE;
	if (error)
		return error;
	cudaMemcpy3DParms plain = {p->srcArray, p->srcPos, p->srcPtr, p->dstArray, p->dstPos, p->dstPtr,
				   p->extent, BY_ADDRESS};
	return copy_runtime_3d(&plain, stream, async);
}

int fill_3d(cudaPitchedPtr at, int value, cudaExtent extent, const void *stream)
{
	int error = extent.depth > 1 && at.ysize < extent.height ? INVALID_VALUE : CUDA_OK;
	for (size_t z = 0; !error && z < extent.depth; z++)
		error = memory_fill((uint8_t *)at.ptr + z * at.pitch * at.ysize, at.pitch,
				    (uint8_t)value, 1, extent.width, extent.height, stream);
	return error;
}

int alloc_3d(cudaPitchedPtr *out, cudaExtent extent)
{
	if (!out || extent.height > RF_HEAP_BYTES || extent.depth > RF_HEAP_BYTES ||
	    (extent.height && extent.depth > RF_HEAP_BYTES / extent.height))
		return INVALID_VALUE;
	*out = (cudaPitchedPtr){NULL, 0, extent.width, extent.height};
	return cudaMallocPitch(&out->ptr, &out->pitch, extent.width, extent.height * extent.depth);
}
