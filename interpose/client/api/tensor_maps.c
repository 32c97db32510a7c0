/* tensor_maps.c: descriptions of tensors, which kernels get as parameters. The device's driver
 * encodes them: a rank's addresses are the same there. No lock; each call waits for the server.
 */
#include <string.h>

#include "bodies.h"

#define RANK_MAX 5

static int ask(struct rf_tensor_map *m, CUtensorMap *map)
{
	struct rf_tensor_map_reply reply;
	int error = channel_enter();
	if (!error)
		error = channel_call(&m->r, RF_OP_TENSOR_MAP, sizeof *m, NULL, 0, &reply,
				     sizeof reply);
	if (error == NOT_SUPPORTED)
		LOG_ONCE("tensor maps (cuTensorMapEncodeTiled) are not supported by rankfold on "
			 "this device: use devices of type nvidia, or kernels for architectures "
			 "before sm_90");
	if (!error)
		memcpy(map, reply.map, sizeof *map);
	return error;
}

static bool is_aligned(const CUtensorMap *map) { return map && (uintptr_t)map % 64 == 0; }

/* The tensor's size, which both forms have. */
static bool set_shape(struct rf_tensor_map *m, cuuint32_t rank, const cuuint64_t *dim,
		      const cuuint64_t *stride, const cuuint32_t *element_stride)
{
	if (rank < 1 || rank > RANK_MAX || !dim || (rank > 1 && !stride) || !element_stride)
		return false;
	m->rank = rank;
	memcpy(m->dim, dim, rank * sizeof *dim);
	if (rank > 1)
		memcpy(m->stride, stride, (rank - 1) * sizeof *stride);
	memcpy(m->element_stride, element_stride, rank * sizeof *element_stride);
	return true;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType,
				cuuint32_t tensorRank, void *globalAddress,
				const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
				const cuuint32_t *boxDim, const cuuint32_t *elementStrides,
				CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
				CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill)
{
	struct rf_tensor_map m = {.addr = (uint64_t)globalAddress,
				  .kind = RF_TENSOR_TILED,
				  .type = (uint32_t)tensorDataType,
				  .interleave = (uint32_t)interleave,
				  .swizzle = (uint32_t)swizzle,
				  .promotion = (uint32_t)l2Promotion,
				  .fill = (uint32_t)oobFill};
	if (!is_aligned(tensorMap) || !boxDim ||
	    !set_shape(&m, tensorRank, globalDim, globalStrides, elementStrides))
		return INVALID_VALUE;
	memcpy(m.box, boxDim, tensorRank * sizeof *boxDim);
	return ask(&m, tensorMap);
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType,
				 cuuint32_t tensorRank, void *globalAddress,
				 const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
				 const int *pixelBoxLowerCorner, const int *pixelBoxUpperCorner,
				 cuuint32_t channelsPerPixel, cuuint32_t pixelsPerColumn,
				 const cuuint32_t *elementStrides, CUtensorMapInterleave interleave,
				 CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
				 CUtensorMapFloatOOBfill oobFill)
{
	struct rf_tensor_map m = {.addr = (uint64_t)globalAddress,
				  .kind = RF_TENSOR_IM2COL,
				  .type = (uint32_t)tensorDataType,
				  .interleave = (uint32_t)interleave,
				  .swizzle = (uint32_t)swizzle,
				  .promotion = (uint32_t)l2Promotion,
				  .fill = (uint32_t)oobFill,
				  .channels = channelsPerPixel,
				  .pixels = pixelsPerColumn};
	if (!is_aligned(tensorMap) || tensorRank < 3 || !pixelBoxLowerCorner ||
	    !pixelBoxUpperCorner ||
	    !set_shape(&m, tensorRank, globalDim, globalStrides, elementStrides))
		return INVALID_VALUE;
	memcpy(m.lower, pixelBoxLowerCorner, (tensorRank - 2) * sizeof *m.lower);
	memcpy(m.upper, pixelBoxUpperCorner, (tensorRank - 2) * sizeof *m.upper);
	return ask(&m, tensorMap);
}

CUresult cuTensorMapReplaceAddress(CUtensorMap *tensorMap, void *globalAddress)
{
	struct rf_tensor_map m = {.addr = (uint64_t)globalAddress,
				  .kind = RF_TENSOR_REPLACE_ADDRESS};
	if (!is_aligned(tensorMap))
		return INVALID_VALUE;
	memcpy(m.map, tensorMap, sizeof m.map);
	return ask(&m, tensorMap);
}
