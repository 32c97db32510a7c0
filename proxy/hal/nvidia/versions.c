/* versions.c: which library computes a product. Two versions of it may give other bits.
 *
 * Any thread. The library is loaded here if no product has run yet.
 */
#include <dlfcn.h>
#include <stdatomic.h>

#include "blas.h"
#include "nvidia_hal.h"

typedef cublasStatus_t property_t(int which, int *value); /* a libraryPropertyType: 0 to 2 */

static uint64_t version_of_cublas(void)
{
	static property_t *_Atomic known;
	property_t *property = atomic_load(&known);
	char text[CUDA_TEXT_BYTES];
	uint64_t number = 0;

	if (!property) {
		void *library = nvidia_library("cublas", text, sizeof text);

		property = library ? (property_t *)dlsym(library, "cublasGetProperty") : NULL;
		atomic_store(&known, property);
	}
	for (int which = 0; property && which < 3; which++) { /* major, minor, patch */
		int value = 0;

		property(which, &value);
		number = number * 1000 + (uint64_t)value;
	}
	return number;
}

uint64_t nvidia_product_library(const struct rf_gemm_call *call)
{
	char text[CUDA_TEXT_BYTES];
	const struct nvidia_blas *blas = nvidia_blas(text, sizeof text);
	uint64_t number = blas ? blas->cublasLtGetVersion() : 0;

	return call->how.api > RF_GEMM_LT ? number * 1000000000 + version_of_cublas() : number;
}
