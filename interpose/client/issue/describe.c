/* describe.c: converts copies of boxes from and to the structures of both APIs. A box consists of
 * slices of rows: one record per slice. Nothing is sent here.
 */
#include "issue.h"

int no_arrays(void)
{
	LOG_ONCE("copies of CUDA arrays are not supported by rankfold: use linear memory");
	return NOT_SUPPORTED;
}

/* ---- the driver's description ---- */

static uint8_t *corner_address(int type, const void *host, CUdeviceptr device, size_t x, size_t y,
			       size_t z, size_t pitch, size_t slice)
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
	*c = (struct copy){corner_address(d->dstMemoryType, d->dstHost, d->dstDevice,
					  d->dstXInBytes, d->dstY, d->dstZ, dst_pitch, dst_slice),
			   corner_address(d->srcMemoryType, d->srcHost, d->srcDevice,
					  d->srcXInBytes, d->srcY, d->srcZ, src_pitch, src_slice),
			   dst_pitch,
			   src_pitch,
			   d->WidthInBytes,
			   d->Height,
			   BY_ADDRESS,
			   0,
			   false};
	*slices = (struct slices){d->Depth, dst_slice, src_slice};
	return d->Depth > 1 && (dst_slice < d->Height * dst_pitch ||
				src_slice < d->Height * src_pitch)
		       ? INVALID_VALUE
		       : CUDA_OK;
}

/* ---- the runtime's description ---- */

/* Without arrays, positions and extents in x are bytes. */
int copy_of_runtime(const cudaMemcpy3DParms *p, struct copy *c, struct slices *slices)
{
	if (!p)
		return INVALID_VALUE;
	if (p->srcArray || p->dstArray)
		return no_arrays();
	const cudaPitchedPtr *dst = &p->dstPtr, *src = &p->srcPtr;
	size_t dst_slice = dst->pitch * dst->ysize, src_slice = src->pitch * src->ysize;
	*c = (struct copy){(uint8_t *)dst->ptr + p->dstPos.z * dst_slice +
				   p->dstPos.y * dst->pitch + p->dstPos.x,
			   (uint8_t *)src->ptr + p->srcPos.z * src_slice +
				   p->srcPos.y * src->pitch + p->srcPos.x,
			   dst->pitch,
			   src->pitch,
			   p->extent.width,
			   p->extent.height,
			   p->kind,
			   0,
			   false};
	*slices = (struct slices){p->extent.depth, dst_slice, src_slice};
	if (!dst->ptr || !src->ptr || (p->extent.height > 1 && (!dst->pitch || !src->pitch)) ||
	    (p->extent.depth > 1 &&
	     (dst->ysize < p->extent.height || src->ysize < p->extent.height)))
		return INVALID_VALUE;
	return CUDA_OK;
}

/* ---- the reverse direction ---- */

/* Describes a captured copy, which was given by addresses. */
CUDA_MEMCPY3D description_of_copy(const struct copy *c)
{
	bool from = memory_where(c->src) == AT_DEVICE, to = memory_where(c->dst) == AT_DEVICE;
	return (CUDA_MEMCPY3D){.srcMemoryType = from ? CU_DEVICE : CU_HOST,
			       .srcHost = from ? NULL : c->src,
			       .srcDevice = from ? (CUdeviceptr)c->src : 0,
			       .srcPitch = c->src_pitch,
			       .srcHeight = c->height,
			       .dstMemoryType = to ? CU_DEVICE : CU_HOST,
			       .dstHost = to ? NULL : c->dst,
			       .dstDevice = to ? (CUdeviceptr)c->dst : 0,
			       .dstPitch = c->dst_pitch,
			       .dstHeight = c->height,
			       .WidthInBytes = c->width,
			       .Height = c->height,
			       .Depth = 1};
}
