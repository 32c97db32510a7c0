/* soft.h: declarations that the files of the software GPU share.
 *
 * A device is one memfd of chunks and a few worker threads that serve in-order queues. A space is a
 * reservation of addresses in this process. Device address a of a rank is the host address base +
 * (a - RF_DEV_BASE); compiled code checks it, so a wrong address cannot reach another rank. An
 * access to a page that is not mapped raises SIGSEGV on the worker, which abandons the work and
 * marks the space as failed.
 *
 * Locks: hal_device.lock guards the run queue and the producer side of the queues. It is held for a
 * few instructions only, and never while work runs. hal_space.error is written once, by the worker
 * whose exchange succeeds.
 */
#ifndef RANKFOLD_SOFT_H
#define RANKFOLD_SOFT_H

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hal.h"

/* A window is surrounded by unmapped addresses: compiled code may exceed it by this much on both
 * sides (addressing.py). Accesses that are further away are redirected to SOFT_NOWHERE, an offset
 * from the window's base. Only a build that runs no compiled code may define a smaller value. */
#ifndef SOFT_GUARD_BYTES
#define SOFT_GUARD_BYTES (1ull << 38)
#endif
#define SOFT_SPAN_BYTES (RF_WINDOW_BYTES + 3 * SOFT_GUARD_BYTES)
#define SOFT_NOWHERE (RF_WINDOW_BYTES + SOFT_GUARD_BYTES / 2)
#define SOFT_MISALIGNED (SOFT_NOWHERE + SOFT_GUARD_BYTES) /* the same for misaligned accesses */
#define SOFT_WINDOW_PAGES (RF_WINDOW_BYTES / RF_CHUNK_BYTES)
#define SOFT_UNREPORTED (1ull << 32)
#define SOFT_QUEUE_WORKS 128u           /* power of two */
#define SOFT_SHARED_BYTES (256u << 10)  /* mapped shared memory of a block */
#define SOFT_SHARED_WINDOW (1ull << 32) /* range of shared addresses */
#define SOFT_THREADS_MAX 1024u
#define SOFT_BARRIERS 16u
/* limit of host memory for the blocks of a cooperative launch */
#define SOFT_RESIDENT_BYTES (1ull << 30)
#define SOFT_NO_BLOCK UINT64_MAX
#define SOFT_TEXT_BYTES RF_FAULT_TEXT_BYTES
#define SOFT_PARAMS_PAD 16u /* a kernel may load a whole vector at the end */

enum soft_error {
	SOFT_INVALID_VALUE = 1,
	SOFT_OUT_OF_MEMORY = 2,
	SOFT_ILLEGAL_ADDRESS = 700,
	SOFT_ASSERT = 710,
	SOFT_STACK = 714,
	SOFT_MISALIGNED_ADDRESS = 716,
	SOFT_LAUNCH_FAILED = 719,
	SOFT_NOT_READY = 600,
	SOFT_NOT_SUPPORTED = 801,
};

struct soft_block;

/* Memory of a worker that kernels use; it grows and never shrinks. */
struct soft_scratch {
	uint8_t *shared; /* SOFT_SHARED_WINDOW reserved, SOFT_SHARED_BYTES mapped */
	uint8_t *frame, *local, *resident;
	size_t frame_bytes, local_bytes, resident_bytes;
	void *gemm; /* NULL until the first matrix product */
	uint16_t next[SOFT_THREADS_MAX];
	uint64_t arrived[SOFT_BARRIERS];
};

/* The blocks of a launch, or tiles of a matrix product, that workers take. Its owner waits for its
 * helpers before it ends. */
struct soft_share {
	const struct hal_work *work;
	uint64_t blocks;
	uint32_t batch; /* blocks that a worker takes at a time */
	bool ordered;   /* only the owner runs blocks, because their order matters */
	_Atomic uint64_t next;
	uint64_t begun_ns;
	bool offered;     /* offered to other workers; set by the owner */
	uint32_t helpers; /* guarded by the device's lock */
};

struct soft_worker {
	struct hal_device *device;
	pthread_t thread;
	void *signal_stack;
	struct hal_space *_Atomic space; /* the space of the work in a fault scope, else NULL */
	/* further spaces that the work accesses, terminated by NULL; or NULL */
	struct hal_space *const *others;
	struct soft_share *share; /* of the running kernel */
	bool owner;               /* it owns the share */
	/* in a fault scope: faults on this thread belong to the work */
	volatile sig_atomic_t in_fault_scope;
	/* the work is a kernel: its writes to read-only pages may be unforeseen */
	volatile bool kernel;
	const char *volatile doing; /* description of the work for error texts */
	sigjmp_buf escape;
	volatile uintptr_t fault_address;
	/* address of a failed write where the page is marked writable */
	volatile uintptr_t refused;
	volatile int fault_error;   /* enum soft_error; 0: an invalid access */
	char said[SOFT_TEXT_BYTES]; /* reason, if the body knows it; else "" */
	volatile bool started;
	struct soft_scratch scratch;
};

#define SOFT_WHOLE_MAX 256u
struct soft_whole { /* whole.c */
	pthread_t thread;
	bool started, stopping;
	pthread_mutex_t lock; /* held for a few instructions */
	pthread_cond_t wake;
	uint32_t count;
	uint8_t *queue[SOFT_WHOLE_MAX]; /* mappings of chunks */
};

enum soft_mapping { SOFT_UNMAPPED, SOFT_READ_ONLY, SOFT_WRITABLE };

struct hal_space {
	struct hal_device *device;
	uint8_t *reservation, *base;
	_Atomic uint8_t *pages; /* enum soft_mapping, by page of the window */
	uint8_t *closed;        /* by page: write-protections since it was mapped (whole.c) */
	atomic_flag copying;    /* held while a page is made writable during work */
	/* newest chunk + 1 of a copied page that the loop has not taken, or 0 */
	_Atomic uint32_t copied;
	uint32_t taken_copies; /* next chunk + 1 of those that the loop has taken, or 0 */
	_Atomic bool failed;   /* claimed by the caller that sets the text and then `error` */
	_Atomic int error;
	_Atomic bool cancel;
	_Atomic uint32_t running; /* submitted kernels and products; only in checked builds */
	atomic_flag printing;     /* held by the worker that writes to the rank's print ring */
	atomic_flag allocating; /* held by the worker that changes the heap of the rank's kernels */
	char text[SOFT_TEXT_BYTES];
};

struct soft_item {
	_Alignas(64) struct hal_work work;
	uint64_t begun;  /* tiles of a matrix product that are done */
	uint8_t *params; /* of a kernel, or the call of a matrix product */
	uint32_t params_capacity;
};

/* Rarely written fields, fields that the submitter writes, and fields that workers write are on
 * separate cache lines. */
struct hal_stream {
	struct hal_device *device;
	_Atomic uint64_t notify_at; /* completions below it do not ring */
	_Alignas(64) _Atomic uint64_t submitted;
	uint64_t seen;       /* submitter's lower bound of completed works */
	_Atomic bool active; /* in the run queue, or served by a worker */
	_Alignas(64) _Atomic uint64_t completed;
	_Atomic uint32_t servers; /* workers that may still access the stream */
	struct hal_stream *next;  /* in the run queue */
	_Alignas(64) struct soft_item items[SOFT_QUEUE_WORKS];
};

#define SOFT_UNCLEAN_MAX 64u /* free chunks that keep host memory */
#define SOFT_REFUSED_MAX 16u /* no more huge pages are requested after so many refusals */

struct soft_chunk {
	/* chunk + 1: next in the free list or in a space's list of copied chunks; 0: the last */
	_Atomic uint32_t next;
	uint32_t page; /* copied: its page */
	bool unclean;  /* free, with old content */
	/* the caller overwrites all of it, so its pages are populated at once */
	bool overwritten;
	bool unzeroed; /* to read as zeros, but has old content until it is mapped */
	bool huge;     /* its host memory is one huge page, unless the system has divided it */
};

struct hal_device {
	struct hal_config config;
	int memfd;
	uint32_t chunk_count; /* the capacity */
	uint32_t numbers;     /* HAL_CHUNK_NUMBERS of the capacity */
	/* chunks in use; plus SOFT_UNREPORTED for each that the loop does not know of yet */
	_Atomic uint64_t chunks_in_use;
	struct soft_chunk *chunks;
	/* The first free chunk + 1, initially the lowest. The high half counts removals, so that a
	 * compare-and-swap detects a list that has changed and changed back. */
	_Atomic uint64_t free;
	_Atomic uint32_t unclean; /* unclean free chunks, at most SOFT_UNCLEAN_MAX */
	uint32_t refused;         /* chunks that the system did not make huge */
	pthread_mutex_t lock;
	pthread_cond_t wake;
	/* guarded by the lock, except for reads while spinning */
	struct hal_stream *_Atomic first, *last;
	/* a launch that other workers may help with, or NULL */
	struct soft_share *_Atomic share;
	pthread_cond_t helped; /* signalled when the last helper is done */
	bool stopping;
	struct soft_whole whole;
	uint32_t worker_count;
	/* streams taken by workers; guarded by the lock, as are the next two */
	uint64_t taken;
	pthread_cond_t starved; /* for the observing spare worker while it `rests` */
	bool rests;
	_Atomic uint32_t thread_count; /* workers, followed by spare workers */
	struct soft_worker *workers;
};

/* space.c */
int soft_chunk_create(struct hal_device *, uint32_t *chunk);
int soft_chunk_create_unclean(struct hal_device *, uint32_t *chunk);
void soft_chunk_destroy(struct hal_device *, uint32_t chunk); /* from any thread */
/* Takes a chunk regardless of capacity; its content is undefined. From any thread and from signal
 * handlers. */
bool soft_chunk_take(struct hal_device *, uint32_t *chunk, bool *unclean);
int soft_memory_open(struct hal_device *);
void soft_memory_close(struct hal_device *);
int soft_space_create(struct hal_device *, struct hal_space **);
void soft_space_destroy(struct hal_space *);
int soft_space_map(struct hal_space *, uint64_t addr, uint32_t chunk, bool writable);
int soft_space_unmap(struct hal_space *, uint64_t addr);
int soft_space_protect(struct hal_space *, uint64_t addr, uint32_t chunks, bool writable);
int soft_space_own(struct hal_space *, uint64_t addr, uint32_t chunk);
int soft_space_map_host(struct hal_space *, uint64_t addr, int fd, uint64_t offset, uint64_t bytes);
/* How the page at host address `at` is mapped. */
enum soft_mapping soft_space_mapping(const struct hal_space *, uintptr_t at);
int soft_space_error(struct hal_space *, char *text, uint32_t text_bytes);
void soft_space_cancel(struct hal_space *);
void soft_space_fail(struct hal_space *, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* unforeseen.c: called at a fault of a kernel. True: the kernel may now write there. */
bool soft_unforeseen(struct soft_worker *, struct hal_space *, uintptr_t address);
bool soft_space_copied(struct hal_space *, uint64_t *addr, uint32_t *chunk);

/* whole.c: called when the mapping of a chunk at `at` has become read-only; `times` counts that. */
int soft_whole_open(struct soft_whole *);
void soft_whole_close(struct soft_whole *);
void soft_whole_closed(struct soft_whole *, uint8_t *at, uint8_t *times);

/* fault.c: runs `body` in a fault scope: an invalid access, a trap or a cancel ends it and fails
 * the space (or the one of `others`, terminated by NULL, that contains the address). Without a
 * space, faults are not caught. */
int soft_fault_install(void);
int soft_worker_signals(struct soft_worker *);
void soft_fault_scope(struct soft_worker *, struct hal_space *, struct hal_space *const *others,
		      const char *doing,
		      void (*body)(struct soft_worker *, const struct hal_work *),
		      const struct hal_work *);
void soft_abort(int error); /* called inside a body; does not return */
void soft_abort_with_text(int error, const char *why);
void soft_abort_space(const struct hal_space *, int error); /* fails this one of the spaces */
struct hal_space *soft_current_space(void); /* the space whose work this thread runs */
/* Code between these two calls may take locks of the C library and must not fault. */
void soft_defer_cancel(void);
void soft_allow_cancel(void);
void soft_signal_cancel(struct soft_worker *);

/* copy.c, kernel.c, gemm.c: the kinds of work */
void soft_sum(struct soft_worker *, const struct hal_work *);
void soft_checksum(struct soft_worker *, const struct hal_work *);
void soft_copy(struct soft_worker *, const struct hal_work *);
void soft_fill(struct soft_worker *, const struct hal_work *);
void soft_kernel(struct soft_worker *, const struct hal_work *);
/* The number of blocks that one worker should run at a time. */
uint32_t soft_batch(const struct hal_work *, uint32_t workers);
int soft_scratch_open(struct soft_scratch *);
void soft_scratch_close(struct soft_scratch *);
const char *soft_function_name(const struct hal_function *);
void soft_gemm(struct soft_worker *, const struct hal_work *);
uint64_t soft_gemm_tiles(const struct rf_gemm_call *); /* 0: not supported */
uint64_t soft_gemm_slice(const struct rf_gemm *);      /* tiles until other streams get a turn */
bool soft_gemm_ready(struct soft_scratch *);           /* false: host memory is short */

/* work.c */
uint64_t soft_blocks(const struct hal_work *);
/* For a running kernel: takes the next blocks; returns the first of `count`, or SOFT_NO_BLOCK. */
uint64_t soft_next_blocks(struct soft_worker *, uint32_t *count);
bool soft_work_run(struct soft_worker *, struct soft_item *); /* false: more of it remains */
void soft_work_help(struct soft_worker *, struct soft_share *);
bool soft_work_failed(const struct hal_work *); /* a space of it has */
/* Impossible work is refused at submit, so that running it needs no error path. */
bool soft_work_acceptable(const struct hal_work *);

/* queue.c */
int soft_workers_start(struct hal_device *);
void soft_workers_stop(struct hal_device *);
int soft_stream_create(struct hal_device *, struct hal_stream **);
void soft_stream_destroy(struct hal_stream *);
uint32_t soft_available(struct hal_stream *);
uint64_t soft_submit(struct hal_stream *, const struct hal_work *);
uint64_t soft_completed(const struct hal_stream *);
void soft_notify_at(struct hal_stream *, uint64_t number);

/* device.c */
int soft_device_open(const struct hal_config *, struct hal_device **);
void soft_device_close(struct hal_device *);
uint64_t soft_arithmetic(const struct hal_device *);

#endif
