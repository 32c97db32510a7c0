/* blaslt.h: the layout of cuBLASLt's descriptors, which cublaslt_descriptors.c writes and
 * cublaslt.c reads.
 */
#ifndef RANKFOLD_BLASLT_H
#define RANKFOLD_BLASLT_H

#include "bodies.h"

struct layout {
	uint32_t type, order;
	uint64_t rows, columns;
	int64_t ld;
	int32_t count;
	uint32_t reserved;
	int64_t stride;
};
struct desc {
	int32_t compute, scale, pointers, transa, transb, transc, fill;
	uint32_t epilogue;
	const void *bias;
	int64_t bias_stride;
	int32_t bias_type, sm_count;
	int8_t fast_accumulation;
	const void *aux;
	int64_t aux_ld, aux_stride;
	int32_t aux_type;
	uint32_t bytes; /* that the program has for it */
	uint64_t set;   /* attributes that it has set: bits by their numbers */
	/* Only for NVIDIA's library. */
	const void *scales[4], *amax, *aux_scale, *aux_amax, *out_scale;
	int32_t scale_modes[4], aux_scale_mode, out_scale_mode;
	int64_t alpha_stride;
};
#define DESC_BYTES_LEAST 128u /* of a desc, in older headers */
struct transform {
	int32_t scale, pointers, transa, transb;
};
struct preference {
	uint64_t workspace, implementations;
	uint32_t search, reductions, alignment[4];
	float waves;
};
struct algo {
	int32_t id;
	uint32_t tile, split_k, reduction, swizzling, custom, stages;
	uint16_t inner_shape, cluster_shape;
	/* The preference with which the program got it, if `chosen`. */
	uint8_t chosen, aligned[4]; /* powers of two */
	uint32_t reductions;
	uint64_t most_bytes;
};
_Static_assert(sizeof(struct layout) <= 64, "older headers have no more space for one");
_Static_assert(offsetof(struct desc, scales) <= DESC_BYTES_LEAST, "as the layout");
_Static_assert(sizeof(struct desc) <= sizeof(cublasLtMatmulDescOpaque_t), "it fits");
_Static_assert(sizeof(struct transform) <= sizeof(cublasLtMatrixTransformDescOpaque_t), "it fits");
_Static_assert(sizeof(struct preference) <= 64, "as the layout");
_Static_assert(sizeof(struct algo) <= sizeof(cublasLtMatmulAlgo_t), "it fits");

/* cublaslt_descriptors.c */
/* Copies the value into an object of the program, which has `capacity` bytes. */
int described_init(void *object, size_t capacity, const void *value, size_t bytes);
/* The attributes that the program has set, as a call sends them. */
void desc_put_attributes(const struct desc *, uint64_t to[][2]);

struct operands {
	const void *a, *b, *c, *d;
	const struct layout *la, *lb, *lc, *ld;
};
/* cublaslt_remote.c: a product that is no record, by NVIDIA's library. algo NULL: the library
 * chooses. A status. */
int lt_multiply(const struct desc *, const struct operands *, const void *alpha, const void *beta,
		const struct algo *, const void *workspace, size_t bytes, const void *stream);

#endif
