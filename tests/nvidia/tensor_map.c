/* tensor_map.c: of the fake driver (fake.h): descriptions of tensors, in an encoding of its own.
 * Its arguments obey the rules of NVIDIA's documentation. */
#include <string.h>

#include "fake.h"

#define MAGIC 0x50414d524f534e45ull /* a description: a number, the address, the sizes, a sum */

struct fake_map {
	uint64_t magic, addr, dim[5], stride[4], form, box[2], corners;
	uint64_t sum;
};
_Static_assert(sizeof(struct fake_map) <= sizeof(CUtensorMap), "it fits");

static const uint8_t element[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4, 1, 1, 1};

static uint64_t sum_of(const struct fake_map *m)
{
	const uint64_t *word = (const uint64_t *)m;
	uint64_t sum = 1;

	for (size_t i = 0; i < offsetof(struct fake_map, sum) / sizeof *word; i++)
		sum = sum * 31 + word[i];
	return sum;
}

static bool shape_is_valid(CUtensorMapDataType type, cuuint32_t rank, const void *at,
			   const cuuint64_t *dim, const cuuint64_t *stride, const cuuint32_t *step,
			   CUtensorMapInterleave interleave)
{
	uint64_t align = interleave == 2 ? 32 : 16;

	if (type >= sizeof element || (uintptr_t)at % align || interleave > 2 || rank < 1 ||
	    rank > 5)
		return false;
	for (cuuint32_t i = 0; i < rank; i++)
		if (!dim[i] || dim[i] > 1ull << 32 || !step[i] || step[i] > 8 ||
		    (i + 1 < rank && (stride[i] % align || stride[i] >= 1ull << 40)))
			return false;
	return true;
}

static void put(CUtensorMap *map, struct fake_map m)
{
	m.magic = MAGIC;
	m.sum = sum_of(&m);
	memset(map, 0, sizeof *map);
	memcpy(map, &m, sizeof m);
}

static struct fake_map shape_of(cuuint32_t rank, const void *at, const cuuint64_t *dim,
				const cuuint64_t *stride, uint64_t form)
{
	struct fake_map m = {.addr = (uint64_t)(uintptr_t)at, .form = form};

	memcpy(m.dim, dim, rank * sizeof *dim);
	if (rank > 1)
		memcpy(m.stride, stride, (rank - 1) * sizeof *stride);
	return m;
}

EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
				       void *at, const cuuint64_t *dim, const cuuint64_t *stride,
				       const cuuint32_t *box, const cuuint32_t *step,
				       CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
				       CUtensorMapL2promotion promotion,
				       CUtensorMapFloatOOBfill fill)
{
	struct fake_map m;

	ENTER(cuTensorMapEncodeTiled);
	if (!shape_is_valid(type, rank, at, dim, stride, step, interleave) || swizzle > 6 ||
	    promotion > 3 || fill > 1 || (!interleave && box[0] * element[type] % 16))
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	m = shape_of(rank, at, dim, stride, type | rank << 8 | swizzle << 16 | promotion << 24);
	for (cuuint32_t i = 0; i < rank; i++) {
		if (!box[i] || box[i] > 256)
			return fake_leave(CUDA_ERROR_INVALID_VALUE);
		m.box[0] = m.box[0] << 9 | box[i];
		m.box[1] = m.box[1] << 4 | step[i];
	}
	put(map, m);
	return fake_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
					void *at, const cuuint64_t *dim, const cuuint64_t *stride,
					const int *lower, const int *upper, cuuint32_t channels,
					cuuint32_t pixels, const cuuint32_t *step,
					CUtensorMapInterleave interleave,
					CUtensorMapSwizzle swizzle,
					CUtensorMapL2promotion promotion,
					CUtensorMapFloatOOBfill fill)
{
	struct fake_map m;

	ENTER(cuTensorMapEncodeIm2col);
	if (rank < 3 || !shape_is_valid(type, rank, at, dim, stride, step, interleave) ||
	    swizzle > 6 || promotion > 3 || fill > 1 || channels > 256 || pixels > 1024)
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	m = shape_of(rank, at, dim, stride, type | rank << 8 | swizzle << 16 | promotion << 24);
	m.box[0] = (uint64_t)channels << 32 | pixels;
	for (cuuint32_t i = 0; i < rank - 2; i++)
		m.corners = m.corners << 20 | (uint64_t)(lower[i] & 0x3ff) << 10 |
			    (upper[i] & 0x3ff);
	put(map, m);
	return fake_leave(CUDA_SUCCESS);
}

static bool get(const void *map, struct fake_map *m)
{
	memcpy(m, map, sizeof *m);
	return m->magic == MAGIC && m->sum == sum_of(m);
}

EXPORT CUresult cuTensorMapReplaceAddress(CUtensorMap *map, void *at)
{
	struct fake_map m;

	ENTER(cuTensorMapReplaceAddress);
	if (!get(map, &m) || (uintptr_t)at % 16)
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	m.addr = (uint64_t)(uintptr_t)at;
	put(map, m);
	return fake_leave(CUDA_SUCCESS);
}

void fake_put_by_map(const uint8_t *params)
{
	struct fake_map m;
	uint32_t value;

	memcpy(&value, params + sizeof(CUtensorMap), sizeof value);
	if (!get(params, &m)) {
		fake_fault("a kernel has got a tensor map that was not encoded");
		return;
	}
	for (uint64_t i = 0; i < m.dim[0]; i++)
		((uint32_t *)(uintptr_t)m.addr)[i] = value;
}
