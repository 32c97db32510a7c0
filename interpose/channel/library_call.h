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

/* Descriptors of cuDNN's backend: a list in which each is after those that it refers to. One is a
 * head, its type | attributes << 32, and its attributes: name | kind << 32 | elements << 40 (the
 * kind is a cudnnBackendAttributeType_t), and the elements in 64 bits each: a number as its bits,
 * another descriptor as its index in the list, a handle as 0.
 *
 * cudnnQuery: the length of the list, then the list. It gives this about the last descriptor:
 *   ENGINEHEUR        the number of configurations; of each the engine, and lists of knobs (type,
 *                     value), numerical notes, and behaviours
 *   ENGINE            lists of numerical notes, behaviours, and knobs (type, maximum, minimum,
 *                     stride)
 *   EXECUTION_PLAN    the bytes of its workspace
 *   OPERATIONGRAPH    the number of engines
 * A list is its length, and its elements.
 *
 * cudnnExecute: struct rf_dnn_exec, the tensors (identifier, and address or value), then the list,
 * which ends with a plan. A tensor that is passed by value has at most 8 bytes. */
#define RF_DNN_QUERY_SLOTS 2048u /* of an answer, at most, with the status */
#define RF_DNN_LIST_SLOTS 3800u  /* of a list, at most */
#define RF_DNN_TENSORS 128u      /* of a call, at most */
struct rf_dnn_exec {
	uint64_t area, area_bytes; /* of the workspace that the plan needed when it was made */
	uint64_t tensors, list;    /* their number; slots */
};
/* cudnnExecute and cudnnQuery are there for several numbers of slots. */
#define RF_DNN_SIZES(X) X(256) X(1024) X(4080)

#endif
