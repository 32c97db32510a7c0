/* copies.c: copies and fills that programs request: lines, boxes, variables, batches.
 *
 * No lock; blocks as memory_copy does. A batch waits for its stream if its attributes specify when
 * a source is read and the copy alone would read it earlier or later.
 */
#include <string.h>

#include "bodies.h"

/* ---- lines ---- */

int copy_2d(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
	    size_t height, int kind, const void *stream, bool async)
{
	struct copy c = {dst, src, dst_pitch, src_pitch, width, height, kind, 0, async};
	int error = width > dst_pitch || width > src_pitch ? INVALID_PITCH : CUDA_OK;
	if (!error)
		error = stream_number(stream, &c.stream);
	return error ? error : memory_copy(&c);
}

/* The first byte of one side of a described copy. */
static void *copy_side(int type, const void *host, CUdeviceptr device, size_t x, size_t y,
		       size_t pitch)
{
	char *base = type == CU_HOST ? (char *)host : (char *)device;
	return type == CU_ARRAY ? NULL : base + y * pitch + x;
}

int copy_described(const CUDA_MEMCPY2D *d, const void *stream, bool async)
{
	if (!d)
		return INVALID_VALUE;
	if (d->srcMemoryType == CU_ARRAY || d->dstMemoryType == CU_ARRAY) {
		LOG_ONCE("copies of CUDA arrays are not supported by rankfold");
		return NOT_SUPPORTED;
	}
	size_t dst_pitch = d->dstPitch ? d->dstPitch : d->WidthInBytes;
	size_t src_pitch = d->srcPitch ? d->srcPitch : d->WidthInBytes;
	int error = copy_2d(copy_side(d->dstMemoryType, d->dstHost, d->dstDevice, d->dstXInBytes,
				      d->dstY, dst_pitch),
			    dst_pitch,
			    copy_side(d->srcMemoryType, d->srcHost, d->srcDevice, d->srcXInBytes,
				      d->srcY, src_pitch),
			    src_pitch, d->WidthInBytes, d->Height, BY_ADDRESS, stream, async);
	return error == INVALID_PITCH ? INVALID_VALUE : error;
}

/* ---- boxes ---- */

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

int copy_runtime_3d(const cudaMemcpy3DParms *p, const void *stream, bool async)
{
	struct copy c;
	struct slices slices;
	if (p && (!p->extent.width || !p->extent.height || !p->extent.depth))
		return channel_enter();
	int error = copy_of_runtime(p, &c, &slices);
	if (!error)
		error = stream_number(stream, &c.stream);
	c.async = async;
	return error ? error : copy_slices(&c, &slices);
}

/* ---- between devices or contexts, as the program sees them ---- */

int copy_peer(void *dst, int dst_device, const void *src, int src_device, size_t bytes,
	      const void *stream)
{
	int error = same_device(dst_device, src_device);
	return error ? error : memory_copy_1d(dst, src, bytes, DEVICE_TO_DEVICE, stream, true);
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

/* ---- variables ---- */

int copy_to_symbol(const void *symbol, const void *src, size_t bytes, size_t offset, int kind,
		   const void *stream, bool async)
{
	void *at;
	int error = symbol_part(symbol, bytes, offset, kind, true, &at);
	return error ? error : memory_copy_1d(at, src, bytes, kind, stream, async);
}

int copy_from_symbol(void *dst, const void *symbol, size_t bytes, size_t offset, int kind,
		     const void *stream, bool async)
{
	void *at;
	int error = symbol_part(symbol, bytes, offset, kind, false, &at);
	return error ? error : memory_copy_1d(dst, at, bytes, kind, stream, async);
}

cudaError_t cudaGetSymbolAddress(void **devPtr, const void *symbol)
{
	uint64_t address, size;
	int error = devPtr ? channel_enter() : INVALID_VALUE;
	if (!error)
		error = symbol_address(symbol, &address, &size);
	if (!error)
		*devPtr = (void *)address;
	return runtime_result(error);
}

cudaError_t cudaGetSymbolSize(size_t *size, const void *symbol)
{
	uint64_t address, bytes;
	int error = size ? channel_enter() : INVALID_VALUE;
	if (!error)
		error = symbol_address(symbol, &address, &bytes);
	if (!error)
		*size = bytes;
	return runtime_result(error);
}

/* ---- batches ---- */

/* The value of *failed if the error is not due to one copy. */
#define NONE_OF_THEM SIZE_MAX

/* The stream of a batch; the legacy stream is not allowed. */
static int batch_stream(const void *stream, uint64_t *number)
{
	int error = stream_number(stream, number);
	return !error && *number == RF_STREAM_LEGACY ? INVALID_VALUE : error;
}

static bool attributes_valid(int order, unsigned flags)
{
	return order >= SOURCE_IN_STREAM_ORDER && order <= SOURCE_IN_ANY_ORDER && flags <= 1;
}

/* Pageable memory is read during the call. So for a read in stream order the call first waits for
 * the stream. */
static int copy_of_batch(const struct copy *c, const struct slices *slices, int order,
			 const void *stream)
{
	bool pageable = memory_where(registered_reached(c->src, 1)) == AT_PAGEABLE;
	int error = CUDA_OK;
	if (order == SOURCE_IN_STREAM_ORDER && pageable && !capturing(c->stream))
		error = stream_sync(stream);
	return error ? error : copy_slices(c, slices);
}

/* attributes[k] apply to the copies from number firsts[k] up to firsts[k + 1]. */
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
	return !error && wait ? stream_sync(stream) : error;
}

/* Computes pitch and slice of an operand that is a pointer. False: the box does not fit in them. */
static bool operand_pitch(const cudaMemcpy3DOperand *o, const cudaExtent *e, size_t *pitch,
			  size_t *slice)
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
	    !e->depth || !operand_pitch(&op->dst, e, &c.dst_pitch, &slices.dst_bytes) ||
	    !operand_pitch(&op->src, e, &c.src_pitch, &slices.src_bytes))
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
	return !error && wait ? stream_sync(stream) : error;
}

/* ---- fills ---- */

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
	uint64_t number;
	if (memory_where(registered_reached(dst, 1)) != AT_PINNED)
		return CUDA_OK;
	int error = stream_number(NULL, &number);
	return error || capturing(number) ? error : wait_for_stream(number);
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
