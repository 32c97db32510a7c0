/* fake.h: a libcuda.so.1 for tests of proxy/hal/nvidia where there is no GPU.
 *
 * Device memory is memory of this process, mapped where the driver would map it; streams are
 * threads that run in order; kernels are a few C functions, found by name in kernels.c. It is
 * stricter than a driver: what that may let pass, or answers with a crash, is noted as a fault of
 * the caller. nccl.c is NCCL, whose members are processes.
 *
 *   fake_fail(call, n, error)   the n-th call of this name from now gives `error` and does nothing
 *   fake_faults(text, bytes)    how many rules were broken, and which; forgets them
 *   fake_calls(call)            how often it was called
 *   fake_computed()             cublasComputeType_t of the last matrix product of cuBLASLt
 *   fake_called(name, bytes)    the call of the last matrix product; the bytes of its workspace
 *   fake_version(cublaslt, cublas)  their versions from now on: 130100 for 13.1.0
 *   fake_settings(values)       of cuBLAS's handle: modes of mathematics, pointers and atomics; SMs
 *   fake_most()                 results that cuDNN was last asked for, of algorithms
 *   fake_hold(hold)             1: host functions, and the work behind them, wait; 0: no longer
 *   fake_reset()                forgets all that a lost device left
 *
 * RANKFOLD_FAKE_FAIL=call:n:error does the same for a process of its own, and faults are appended
 * to the file RANKFOLD_FAKE_FAULTS. RANKFOLD_FAKE_DEVICES=n: there are n GPUs; each reaches the
 * memory of all others, except those that RANKFOLD_FAKE_NO_PEERS names (0:1,1:0: 0 not that of 1,
 * nor 1 that of 0). RANKFOLD_FAKE_SLOW_US: work with memory that processes share takes so much
 * longer. With
 * RANKFOLD_FAKE_KERNELS=1 kernels that are not in kernels.c do nothing, and can be launched: which
 * calls a large program needs is then seen without a GPU.
 *
 * memory.c has devices and memory, stream.c streams and what runs in them, order.c the order of
 * works of several processes, kernels.c modules, sums.c the HAL's own kernels. In the same library
 * are blas.c and transforms.c: cuBLASLt, cublas.c, routines.c, matrices.c and factors.c: cuBLAS,
 * fft.c: cuFFT, solver.c: cuSOLVER, dnn*.c: cuDNN, cupti.c: CUPTI.
 */
#ifndef RANKFOLD_FAKE_H
#define RANKFOLD_FAKE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver.h"

#define EXPORT __attribute__((visibility("default")))
#define FAKE_MEMORY (4ull << 30)

extern pthread_mutex_t fake_lock; /* guards everything; never held while work runs */
extern pthread_cond_t fake_moved;
extern CUresult fake_dead; /* the error that ended the context, or 0 */

/* At the beginning of each call: counts it, injects errors, checks the context of the thread. Takes
 * fake_lock if it returns 0. */
CUresult fake_enter(const char *call, bool needs_context);
void fake_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline CUresult fake_leave(CUresult error)
{
	pthread_mutex_unlock(&fake_lock);
	return error;
}
#define ENTER(name)                                                                                \
	do {                                                                                       \
		CUresult entered_ = fake_enter(#name, true);                                       \
		if (entered_)                                                                      \
			return entered_;                                                           \
	} while (0)
/* The same for libraries, whose calls give a status of their own. */
#define BEGIN(name)                                                                                \
	do {                                                                                       \
		CUresult entered_ = fake_enter(#name, true);                                       \
		if (entered_)                                                                      \
			return (int)entered_;                                                      \
	} while (0)
static inline int fake_end(int status)
{
	pthread_mutex_unlock(&fake_lock);
	return status;
}

/* Under fake_lock. Is all of it mapped with access, or pinned? */
bool fake_reachable(CUdeviceptr at, uint64_t bytes);
bool fake_is_window(CUdeviceptr at);
bool fake_is_spare(CUdeviceptr at, uint64_t bytes); /* of a stream's own, not freed yet */
uint8_t *fake_variables(uint64_t bytes);            /* memory for a module's variables: zeros */
bool fake_window_open(void);                        /* all that is mapped there may be accessed */
/* Is work queued that touches this, or (bytes 0) any kernel? */
bool fake_in_use(CUdeviceptr at, uint64_t bytes);

/* memory.c, under fake_lock: the file of memory here that processes may share, and the place in it;
 * -1: it is no such memory. */
int fake_shared_file(CUdeviceptr at, uint64_t bytes, uint64_t *offset);

/* order.c, under fake_lock: a queued work touches this memory; is over; whether any touches it.
 * begin: false if it is not memory that processes may share. */
bool fake_order_begin(const void *work, CUdeviceptr at, uint64_t bytes, bool write);
void fake_order_end(const void *work);
void fake_order_forget(void);
bool fake_order_touches(CUdeviceptr at, uint64_t bytes);

struct fake_launch {
	void (*run)(const uint8_t *params);
	uint8_t params[4096];
	CUresult error; /* this kernel ends the context */
	/* The output, and its size, of a kernel of the HAL itself, which has no window. */
	CUdeviceptr to;
	CUdeviceptr from[2]; /* its inputs of the same size; 0: none */
	uint64_t bytes;
};
/* Under fake_lock: a launch's function and parameters are checked and copied. */
CUresult fake_launch_check(const CUlaunchConfig *, CUfunction, void **extra, struct fake_launch *);

/* sums.c: the HAL's own kernel of this name, or NULL; whether its operands are there (under
 * fake_lock), how many bytes each has, and the first one of them. */
void (*fake_sum_named(const char *name))(const uint8_t *params);
bool fake_sum_check(void (*run)(const uint8_t *), struct fake_launch *);

/* Under fake_lock: a host function in the stream. */
void fake_push_host(CUstream, CUhostFn function, void *argument);
/* Under fake_lock: a kernel with such parameters, which are copied, in the stream. */
CUresult fake_push_kernel(CUstream, void (*run)(const uint8_t *params), const void *params,
			  size_t bytes);
/* The same for a kernel without a window, which touches this memory and no rank's. */
CUresult fake_push_near(CUstream, void (*run)(const uint8_t *params), const void *params,
			size_t bytes, CUdeviceptr at, uint64_t touched);
int fake_ordinal(void); /* of the GPU whose context this process has */

void fake_end_streams(void); /* under fake_lock */

/* dnn.c, under fake_lock: counts cuDNN's descriptors; whether its handle has a stream, which is a
 * fault otherwise; takes the stream, which must be set again. */
void fake_dnn_live(int more);
bool fake_dnn_handle(const char *call);
CUstream fake_dnn_stream(void);

/* cupti.c, under fake_lock: loads the library CUDA_INJECTION64_PATH; reports a call to it. */
void fake_inject(void);
void fake_report(void);

/* tensor_map.c: put_by_map(const CUtensorMap map, uint32_t value): all words of its first row */
void fake_put_by_map(const uint8_t *params);

EXPORT void fake_reset(void);
EXPORT void fake_hold(int hold);
EXPORT void fake_fail(const char *call, int nth, int error);
EXPORT int fake_faults(char *text, int bytes);
EXPORT int fake_calls(const char *call);
EXPORT int fake_computed(void);
EXPORT int fake_most(void);
EXPORT void fake_version(int cublaslt, int cublas);
EXPORT uint64_t fake_called(char *name, int bytes);
EXPORT void fake_settings(int values[4]);

#endif
