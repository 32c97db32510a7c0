/* library_call.h: what a call of one of NVIDIA's libraries sends to the proxy, as the parameters of
 * a launch: a row of numbers of 64 bits. The first is the address of memory of the device where the
 * proxy writes the call's answer, or 0. An answer is the library's status and what the call gives,
 * in 64 bits each.
 *
 * For a function of remote.def the others are its parameters in their order, as many for each as
 * rf_slots_of says (the kinds: kinds_of in interpose/descriptions.py).
 */
#ifndef RANKFOLD_LIBRARY_CALL_H
#define RANKFOLD_LIBRARY_CALL_H

#include <stdint.h>

#define RF_CALL_SLOTS 640u /* at most, without the first */
#define RF_CALL_OUTS 2u    /* in an answer, at least, after the status */
#define RF_CALL_OUTS_MAX 16u
/* Algorithms of a convolution (cudnnConvolution…AlgoPerf_t), in an answer after all others: at
 * most, slots of one. */
#define RF_RESULTS 32u
#define RF_RESULT_SLOTS 6u
#define RF_RESULTS_SLOTS (RF_RESULTS * RF_RESULT_SLOTS)

/* A descriptor of functions that iterate: bits, tolerance (double), sweeps, sort. The library's
 * defaults hold for the others. */
#define RF_JACOBI_SLOTS 4u
enum { RF_JACOBI_THERE = 1, RF_JACOBI_TOLERANCE = 2, RF_JACOBI_SWEEPS = 4, RF_JACOBI_SORT = 8 };

/* Descriptors of cuDNN. The first slot is 0 if there is none, otherwise its lowest bit is 1. The
 * numbers behind names are bits of a slot.
 *
 *   tensor        type 8, dimensions 32; of each dimension its size 0, stride 32
 *   activation    mode 8, NaN 16; coefficient (double)
 *   dropout       -; probability (float); address, bytes of its states; seed
 *   RNN           algorithm 8, cell 16, bias 24, direction 32, input 40, type 48, precision 56;
 *                 kind of mathematics 0, flags 32; sizes of input 0, hidden state 32, projection 0,
 *                 layers 32; its dropout
 *   sequences     type 8, layout 16, whether gaps are filled 24, runs 32; longest 0, number 32;
 *                 elements of a vector; what fills gaps; of each run of equal lengths the length 0,
 *                 and how many 32
 *   transformer   sampler 8, type 16, dimensions 32; four sizes
 *
 * The others are rows of whole numbers of 32 bits, two in a slot, behind a slot with how many 32:
 *
 *   filter        type, layout, dimensions; their sizes
 *   convolution   mode, type, mathematics, groups, order, places; paddings, strides, dilations
 *   pooling       mode, NaN, places; their windows, paddings, strides
 *   operation     operation, type, NaN
 *   reduction     operation, type, NaN, indices, type of the indices
 *   LRN           channels, 0; alpha, beta, k (doubles)
 *   CTC           type, normalisation, gradients, longest label
 */
#define RF_TENSOR_DIMENSIONS 8u
#define RF_TENSOR_SLOTS (1u + RF_TENSOR_DIMENSIONS)
#define RF_ACTIVATION_SLOTS 2u
#define RF_DROPOUT_SLOTS 5u
#define RF_RNN_SLOTS (4u + RF_DROPOUT_SLOTS)
#define RF_SEQUENCE_RUNS 256u
#define RF_SEQUENCES_SLOTS (4u + RF_SEQUENCE_RUNS)
#define RF_TRANSFORMER_DIMENSIONS 4u
#define RF_TRANSFORMER_SLOTS (1u + RF_TRANSFORMER_DIMENSIONS)
#define RF_ROW_NUMBERS 24u
#define RF_ROW_SLOTS (1u + RF_ROW_NUMBERS / 2)
#define RF_PLACES 6u /* of a convolution, a pooling */
enum {
	RF_ROW_FILTER = '1',
	RF_ROW_CONVOLUTION = '2',
	RF_ROW_POOLING = '3',
	RF_ROW_OPERATION = '4',
	RF_ROW_REDUCTION = '5',
	RF_ROW_LRN = '6',
	RF_ROW_CTC = '7',
};

/* A handle of cuBLAS: its mode of mathematics 0, pointer mode 32, atomics mode 40; target of SMs;
 * address, bytes of its workspace. Its pointer mode says whether a number follows as it is or as
 * its address. */
#define RF_BLAS_SLOTS 4u
#define RF_BLAS_ON_DEVICE (1ull << 32)
#define RF_BLAS_ATOMICS 40
#define RF_NUMBER_SLOTS 2u       /* up to 16 bytes */
#define RF_FIVE_NUMBERS_SLOTS 5u /* of up to 8 bytes */

/* How many slots a parameter of this kind sends. */
static inline uint32_t rf_slots_of(char kind)
{
	switch (kind) {
	case 'v':
	case 'f':
	case 'p':
	case 's':
	case 'E':
	case 'N':
	case 'y': return 1;
	case 'j':
	case 'e': return RF_JACOBI_SLOTS;
	case 't': return RF_TENSOR_SLOTS;
	case 'a': return RF_ACTIVATION_SLOTS;
	case 'o': return RF_DROPOUT_SLOTS;
	case 'r': return RF_RNN_SLOTS;
	case 'q': return RF_SEQUENCES_SLOTS;
	case 'g': return RF_TRANSFORMER_SLOTS;
	case 'b': return RF_BLAS_SLOTS;
	case 'c':
	case 'u': return RF_NUMBER_SLOTS;
	case 'C':
	case 'U': return RF_FIVE_NUMBERS_SLOTS;
	case RF_ROW_FILTER:
	case RF_ROW_CONVOLUTION:
	case RF_ROW_POOLING:
	case RF_ROW_OPERATION:
	case RF_ROW_REDUCTION:
	case RF_ROW_LRN:
	case RF_ROW_CTC: return RF_ROW_SLOTS;
	default: return 0;
	}
}

/* How many slots of an answer a parameter of this kind gets, if it is in memory of the host. */
static inline uint32_t rf_outs_of(char kind)
{
	switch (kind) {
	case 'i':
	case 'l':
	case 'm': return 1;
	case 'u':
	case 'U': return rf_slots_of(kind);
	case 'R': return RF_RESULTS_SLOTS;
	default: return 0;
	}
}

/* cudnnSetDropoutDescriptor: a dropout. cudnnGetRNNWeightParams: an RNN, then these; gives the
 * addresses of a matrix and of its bias, and their tensors. */
struct rf_dnn_weights {
	uint64_t layer, bytes, weights, matrix;
};
/* cudnnCTCLoss and cudnnGetCTCLossWorkspaceSize, whose labels are in memory of the host: the
 * tensors of probabilities and gradients, the CTC descriptor, then these, and numbers of 32 bits,
 * two in a slot: for each sequence the length of its input, for each that of its labels, and the
 * labels. */
struct rf_dnn_ctc {
	uint64_t probabilities, costs, gradients, area, area_bytes, algorithm;
	uint64_t sequences, labels; /* their numbers */
};
#define RF_CTC_HEAD                                                                                \
	(2 * RF_TENSOR_SLOTS + RF_ROW_SLOTS + sizeof(struct rf_dnn_ctc) / sizeof(uint64_t))

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

/* cublasLtMatmul: a product that is no record (channel.h). cublasLtMatrixTransform: from A and B to
 * C. Attributes are those of the operation's descriptor, each its number | bytes << 32, and its
 * value; unused ones are 0. Factors are as they are, or addresses. */
#define RF_LT_ATTRIBUTES 24u
struct rf_lt_layout {
	uint64_t there; /* 0: there is none */
	uint64_t type, order, rows, columns;
	int64_t ld, count, stride;
};
struct rf_lt {
	int64_t compute, scale;
	uint64_t attributes[RF_LT_ATTRIBUTES][2];
	struct rf_lt_layout layouts[4]; /* of A to D */
	uint64_t at[4];
	uint64_t alpha[RF_NUMBER_SLOTS], beta[RF_NUMBER_SLOTS];
	uint64_t alpha_on_device, beta_on_device;
	uint64_t workspace, workspace_bytes;
	/* The preference with which the program got its algorithm; alignments 0: the call chooses. */
	uint64_t most_bytes, reductions, aligned[4];
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
 *   ENGINECFG         lists of one number, or none: bytes of its workspace, of shared memory
 *   EXECUTION_PLAN    the bytes of its workspace; the version of the library, in which alone its
 *                     engine has this number
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
	uint64_t version;          /* of the library that made the plan */
};
/* cudnnExecute, cudnnQuery, and those of CTC are there for several numbers of slots. */
#define RF_DNN_SIZES(X) X(256) X(1024) X(4080)

#endif
