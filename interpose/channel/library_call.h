/* library_call.h: what a call of one of NVIDIA's libraries sends to the proxy, as the parameters of
 * a launch: a row of numbers of 64 bits. The first is the address of memory of the device where the
 * proxy writes the call's answer, or 0. An answer is the library's status and what the call gives,
 * in 64 bits each.
 *
 * For a function of remote.def the others are its parameters in their order, one for each `v`, `p`
 * and `n`, and RF_JACOBI_SLOTS for each `j` and `e`; the other kinds send none (kinds_of in
 * interpose/descriptions.py).
 */
#ifndef RANKFOLD_LIBRARY_CALL_H
#define RANKFOLD_LIBRARY_CALL_H

#include <stdint.h>

#define RF_CALL_SLOTS 40u /* at most, without the first */
#define RF_CALL_OUTS 2u   /* in an answer, at most, after the status */

/* A descriptor of functions that iterate: bits, tolerance (double), sweeps, sort. The library's
 * defaults hold for the others. */
#define RF_JACOBI_SLOTS 4u
enum { RF_JACOBI_THERE = 1, RF_JACOBI_TOLERANCE = 2, RF_JACOBI_SWEEPS = 4, RF_JACOBI_SORT = 8 };

/* A plan of cuFFT, as cufftXtMakePlanMany has it. */
#define RF_FFT_RANK_MAX 3
struct rf_fft {
	int64_t rank, n[RF_FFT_RANK_MAX];
	int64_t embedded; /* 0: the next two are not used */
	int64_t in_embed[RF_FFT_RANK_MAX], out_embed[RF_FFT_RANK_MAX];
	int64_t in_stride, in_distance, out_stride, out_distance;
	int64_t in_type, out_type, execution; /* cudaDataType */
	int64_t batch;
};
/* cufftMakePlan: the plan; gives the bytes of its work area. cufftExec: the plan, then these. */
struct rf_fft_exec {
	uint64_t in, out, area, area_bytes;
	int64_t direction;
};

#endif
