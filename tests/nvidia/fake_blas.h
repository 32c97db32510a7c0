/* fake_blas.h: what the fake's cuBLASLt (blas.c) and cuBLAS (cublas.c) share. */
#ifndef RANKFOLD_FAKE_BLAS_H
#define RANKFOLD_FAKE_BLAS_H

#include <stdbool.h>
#include <stdint.h>

#include "driver.h"

/* Numbers in memory, by cudaDataType. */
uint32_t fake_type_bytes(int32_t type);
double fake_load(uint64_t at, int32_t type);
void fake_store(uint64_t at, int32_t type, double x);
struct cublasLtMatrixLayoutOpaque {
	int32_t type, order, count, mode;
	uint64_t rows, columns;
	int64_t ld, stride;
};
void fake_described(int more);                /* descriptors of cuBLASLt that live */
extern int fake_cublas;                       /* the version of cuBLAS: 130100 for 13.1.0 */
bool fake_shown(uint64_t at, uint64_t bytes); /* in the window, or the stream's own */

/* The last product: the call, and the bytes of its workspace. */
struct fake_called {
	const char *name;
	uint64_t workspace;
};
void fake_called_with(struct fake_called);

/* cublas.c, under fake_lock: a call of the handle begins: its stream, and whether its pointer mode
 * is the device's. False: the handle is not right, which is a fault of the caller. */
bool fake_cublas_begin(const char *name, const void *handle, CUstream *stream, bool *on_device);

/* factors.c: a product of complex numbers by their cudaDataType, with all of its parameters. */
enum fake_batch { FAKE_ONE, FAKE_LISTED, FAKE_STRIDED };
int fake_complex_product(const char *name, enum fake_batch, bool wide, const uint64_t *parameters);

#endif
