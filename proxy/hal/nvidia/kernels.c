/* kernels.c: the PTX of kernels/sums.cu, which sums.c loads. The compiler runs in the repository's
 * folder. */
#include "nvidia_hal.h"

__asm__(".pushsection .rodata\n"
	".globl nvidia_sums_ptx\n"
	".hidden nvidia_sums_ptx\n"
	"nvidia_sums_ptx:\n"
	".incbin \"proxy/hal/nvidia/kernels/sums.ptx\"\n"
	".byte 0\n"
	".popsection\n");
