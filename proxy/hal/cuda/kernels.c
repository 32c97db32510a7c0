/* kernels.c: the PTX of kernels/sums.cu, which sums.c loads. The compiler runs in the repository's
 * folder. */
#include "cuda_hal.h"

__asm__(".pushsection .rodata\n"
	".globl cuda_sums_ptx\n"
	".hidden cuda_sums_ptx\n"
	"cuda_sums_ptx:\n"
	".incbin \"proxy/hal/cuda/kernels/sums.ptx\"\n"
	".byte 0\n"
	".popsection\n");
