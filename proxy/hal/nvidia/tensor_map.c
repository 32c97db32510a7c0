/* tensor_map.c: descriptions of tensors (hal.h). The driver encodes them from a rank's address,
 * which is that of the window: no memory is reached. */
#include <string.h>

#include "nvidia_hal.h"

static CUresult encode(const struct nvidia_driver *d, const struct rf_tensor_map *m,
		       CUtensorMap *map)
{
	void *at = (void *)(uintptr_t)m->addr;
	CUtensorMapDataType type = (CUtensorMapDataType)m->type;
	CUtensorMapInterleave interleave = (CUtensorMapInterleave)m->interleave;
	CUtensorMapSwizzle swizzle = (CUtensorMapSwizzle)m->swizzle;
	CUtensorMapL2promotion promotion = (CUtensorMapL2promotion)m->promotion;
	CUtensorMapFloatOOBfill fill = (CUtensorMapFloatOOBfill)m->fill;

	if (m->kind == RF_TENSOR_REPLACE_ADDRESS) {
		memcpy(map, m->map, sizeof *map);
		return d->cuTensorMapReplaceAddress(map, at);
	}
	if (m->rank < 1 || m->rank > 5)
		return CUDA_ERROR_INVALID_VALUE;
	if (m->kind == RF_TENSOR_TILED)
		return d->cuTensorMapEncodeTiled(map, type, m->rank, at, (const cuuint64_t *)m->dim,
						 (const cuuint64_t *)m->stride, m->box,
						 m->element_stride, interleave, swizzle, promotion,
						 fill);
	if (m->kind == RF_TENSOR_IM2COL)
		return d->cuTensorMapEncodeIm2col(
			map, type, m->rank, at, (const cuuint64_t *)m->dim,
			(const cuuint64_t *)m->stride, m->lower, m->upper, m->channels, m->pixels,
			m->element_stride, interleave, swizzle, promotion, fill);
	return CUDA_ERROR_INVALID_VALUE;
}

int nvidia_tensor_map(struct hal_device *device, const struct rf_tensor_map *m,
		      uint8_t out[RF_TENSOR_MAP_BYTES])
{
	CUtensorMap map;
	CUresult error = nvidia_bind(device);

	memset(&map, 0, sizeof map);
	if (!error)
		error = encode(device->driver, m, &map);
	memcpy(out, &map, RF_TENSOR_MAP_BYTES);
	return (int)error;
}
