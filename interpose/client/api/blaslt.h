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
_Static_assert(sizeof(struct desc) <= 128, "as the layout");
_Static_assert(sizeof(struct preference) <= 64, "as the layout");
_Static_assert(sizeof(struct algo) <= sizeof(cublasLtMatmulAlgo_t), "it fits");

/* cublaslt_descriptors.c */
/* Copies the value into an object of the program, which has `capacity` bytes. */
int described_init(void *object, size_t capacity, const void *value, size_t bytes);

#endif
