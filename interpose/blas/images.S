/* images.S: the PTX of the kernels of BLAS, one text for each type, as blas.c loads them. */
	.section .rodata
#define IMAGE(type) \
	.globl blas_ptx_##type; \
	.hidden blas_ptx_##type; \
	.balign 16; \
	blas_ptx_##type: .incbin BLAS_PTX(type); \
	.byte 0;
#define BLAS_PTX(type) BLAS_TEXT(interpose/blas/type.ptx)
#define BLAS_TEXT(path) #path
	IMAGE(s)
	IMAGE(d)
	IMAGE(c)
	IMAGE(z)
	.section .note.GNU-stack,"",%progbits
