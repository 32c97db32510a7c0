/* image.S: the PTX of sums.cu, as kernels.c gives it to the driver. */
	.section .rodata
	.globl cuda_sums_ptx
	.hidden cuda_sums_ptx
	.balign 16
cuda_sums_ptx: .incbin "proxy/hal/cuda/kernels/sums.ptx"
	.byte 0
	.section .note.GNU-stack,"",%progbits
