/* images.S: the PTX of the kernels that the client carries, one text for each library and type. */
	.section .rodata
#define IMAGE(library, type) \
	.globl library##_ptx_##type; \
	.hidden library##_ptx_##type; \
	.balign 16; \
	library##_ptx_##type: .incbin IMAGE_PTX(library, type); \
	.byte 0;
#define IMAGE_PTX(library, type) IMAGE_TEXT(interpose/library/type.ptx)
#define IMAGE_TEXT(path) #path
	IMAGE(blas, s)
	IMAGE(blas, d)
	IMAGE(blas, c)
	IMAGE(blas, z)
	IMAGE(dnn, s)
	IMAGE(dnn, d)
	IMAGE(dnn, h)
	IMAGE(dnn, b)
	.section .note.GNU-stack,"",%progbits
