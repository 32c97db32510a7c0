/* copies.c: copies and fills of boxes, described by the structures of both APIs, and batches of
 * copies. A box is some slices of rows: one record per slice, and only the last may have to be
 * waited for.
 *
 * No lock; blocks as memory_copy does. A batch waits for its stream where it says when a source is
 * read and the copy alone would read it earlier or later.
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
	*c = (struct copy){corner(d->dstMemoryType, d->dstHost, d->dstDevice, d->dstXInBytes,
				  d->dstY, d->dstZ, dst_pitch, dst_slice),
			   corner(d->srcMemoryType, d->srcHost, d->srcDevice, d->srcXInBytes,
				  d->srcY, d->srcZ, src_pitch, src_slice),
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
	cudaMemcpy3DParms plain = {p->srcArray, p->srcPos, p->srcPtr, p->dstArray,
				   p->dstPos,   p->dstPtr, p->extent, BY_ADDRESS};
	return copy_runtime_3d(&plain, stream, async);
}

/* ---- batches ---- */

/* Which copy failed, if it was one of them. */
#define NONE_OF_THEM SIZE_MAX

/* The stream of a batch; the legacy one cannot be. */
static int batch_stream(const void *stream, uint64_t *number)
{
	int error = stream_number(stream, number);
	return !error && *number == RF_STREAM_LEGACY ? INVALID_VALUE : error;
}

static bool attributes_valid(int order, unsigned flags)
{
	return order >= SOURCE_IN_STREAM_ORDER && order <= SOURCE_IN_ANY_ORDER && flags <= 1;
}

/* Pageable memory is read during the call; in stream order means then: once the stream is there. */
static int copy_of_batch(const struct copy *c, const struct slices *slices, int order,
			 const void *stream)
{
	bool pageable = memory_where(registered_reached(c->src, 1)) == AT_PAGEABLE;
	int error = CUDA_OK;
	if (order == SOURCE_IN_STREAM_ORDER && pageable && !capturing(c->stream))
		error = cuStreamSynchronize((void *)stream);
	return error ? error : copy_slices(c, slices);
}

/* attributes[k] are those of the copies from number firsts[k] to the next one's first. */
int copy_batch(void *const *dst, const void *const *src, const size_t *bytes, size_t count,
	       const cudaMemcpyAttributes *attributes, const size_t *firsts, size_t attribute_count,
	       size_t *failed, const void *stream)
{
	struct slices one = {1, 0, 0};
	uint64_t number;
	size_t ignored, k = 0;
	bool wait = false;
	failed = failed ? failed : &ignored;
	*failed = NONE_OF_THEM;
	int error = batch_stream(stream, &number);
	if (!error && (!dst || !src || !bytes || !attributes || !firsts || !attribute_count ||
		       attribute_count > count || firsts[0]))
		error = INVALID_VALUE;
	for (size_t i = 1; !error && i < attribute_count; i++)
		if (firsts[i] <= firsts[i - 1] || firsts[i] >= count)
			error = INVALID_VALUE;
	for (size_t i = 0; !error && i < count; i++) {
		k += k + 1 < attribute_count && firsts[k + 1] == i;
		int order = attributes[k].srcAccessOrder;
		struct copy c = {dst[i], src[i],     bytes[i], bytes[i], bytes[i],
				 1,      BY_ADDRESS, number,   true};
		error = attributes_valid(order, attributes[k].flags)
				? copy_of_batch(&c, &one, order, stream)
				: INVALID_VALUE;
		wait |= order == SOURCE_DURING_CALL;
		if (error)
			*failed = i;
	}
	return !error && wait ? cuStreamSynchronize((void *)stream) : error;
}

/* The lengths of an operand that is a pointer. False: the box does not fit in them. */
static bool operand(const cudaMemcpy3DOperand *o, const cudaExtent *e, size_t *pitch, size_t *slice)
{
	size_t height = o->op.ptr.layerHeight ? o->op.ptr.layerHeight : e->height;
	*pitch = o->op.ptr.rowLength ? o->op.ptr.rowLength : e->width;
	*slice = *pitch * height;
	return o->type == 1 && e->width <= *pitch && e->height <= height &&
	       *pitch <= RF_HEAP_BYTES && height <= RF_HEAP_BYTES / *pitch;
}

static int copy_op(const cudaMemcpy3DBatchOp *op, uint64_t number, const void *stream)
{
	const cudaExtent *e = &op->extent;
	struct copy c = {op->dst.op.ptr.ptr, op->src.op.ptr.ptr, 0,      0,   e->width,
			 e->height,          BY_ADDRESS,         number, true};
	struct slices slices = {e->depth, 0, 0};
	if (op->src.type == 2 || op->dst.type == 2)
		return no_arrays();
	if (!attributes_valid(op->srcAccessOrder, op->flags) || !e->width || !e->height ||
	    !e->depth || !operand(&op->dst, e, &c.dst_pitch, &slices.dst_bytes) ||
	    !operand(&op->src, e, &c.src_pitch, &slices.src_bytes))
		return INVALID_VALUE;
	return copy_of_batch(&c, &slices, op->srcAccessOrder, stream);
}

int copy_batch_3d(const cudaMemcpy3DBatchOp *list, size_t count, size_t *failed,
		  unsigned long long flags, const void *stream)
{
	uint64_t number;
	size_t ignored;
	bool wait = false;
	failed = failed ? failed : &ignored;
	*failed = NONE_OF_THEM;
	int error = batch_stream(stream, &number);
	if (!error && (!list || !count || flags))
		error = INVALID_VALUE;
	for (size_t i = 0; !error && i < count; i++) {
		error = copy_op(&list[i], number, stream);
		wait |= list[i].srcAccessOrder == SOURCE_DURING_CALL;
		if (error)
			*failed = i;
	}
	return !error && wait ? cuStreamSynchronize((void *)stream) : error;
}

int fill_3d(cudaPitchedPtr at, int value, cudaExtent extent, const void *stream)
{
	int error = extent.depth > 1 && at.ysize < extent.height ? INVALID_VALUE : CUDA_OK;
	for (size_t z = 0; !error && z < extent.depth; z++)
		error = memory_fill((uint8_t *)at.ptr + z * at.pitch * at.ysize, at.pitch,
				    (uint8_t)value, 1, extent.width, extent.height, stream);
	return error;
}

static int wait_where_seen(const void *dst)
{
	struct rf_handle m;
	if (memory_where(registered_reached(dst, 1)) != AT_PINNED)
		return CUDA_OK;
	int error = stream_number(NULL, &m.handle);
	if (error || capturing(m.handle))
		return error;
	return channel_call(&m.r, RF_OP_STREAM_SYNC, sizeof m, NULL, 0, NULL, 0);
}

int fill_now(const void *dst, uint64_t pitch, uint32_t value, uint32_t element, uint64_t width,
	     uint64_t height)
{
	int error = memory_fill(dst, pitch, value, element, width, height, NULL);
	return error ? error : wait_where_seen(dst);
}

int fill_3d_now(cudaPitchedPtr at, int value, cudaExtent extent)
{
	int error = fill_3d(at, value, extent, NULL);
	return error ? error : wait_where_seen(at.ptr);
}

int alloc_3d(cudaPitchedPtr *out, cudaExtent extent)
{
	if (!out || extent.height > RF_HEAP_BYTES || extent.depth > RF_HEAP_BYTES ||
	    (extent.height && extent.depth > RF_HEAP_BYTES / extent.height))
		return INVALID_VALUE;
	*out = (cudaPitchedPtr){NULL, 0, extent.width, extent.height};
	return cudaMallocPitch(&out->ptr, &out->pitch, extent.width, extent.height * extent.depth);
}
