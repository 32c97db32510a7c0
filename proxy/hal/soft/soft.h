/* soft.h: what the files of the software GPU share.
 *
 * A device is one memfd of chunks and a few worker threads that serve in-order queues. A space
 * is a reservation of addresses in this process; device address a of a rank is the host address
 * base + (a - RF_DEV_BASE), checked by compiled code, so a stray address reaches no other rank.
 * An access to a page that is not mapped raises SIGSEGV on the worker, which leaves the work and
 * marks the space.
 *
 * Locks: hal_device.lock guards the run queue and the queues' producer side; it is held for a few
 * instructions only and never while work runs. hal_space.error is written once, by the worker that
 * wins the exchange.
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

/* A window lies amid unmapped addresses: compiled code may miss it by this much on both sides
 * (addressing.py). What is further away goes to SOFT_NOWHERE, an offset from the window's base.
 * Only a build that runs no compiled code may say less. */
#ifndef SOFT_GUARD_BYTES
#define SOFT_GUARD_BYTES (1ull << 38)
#endif
#define SOFT_SPAN_BYTES (RF_WINDOW_BYTES + 3 * SOFT_GUARD_BYTES)
#define SOFT_NOWHERE (RF_WINDOW_BYTES + SOFT_GUARD_BYTES / 2)
#define SOFT_MISALIGNED (SOFT_NOWHERE + SOFT_GUARD_BYTES) /* what is not aligned, likewise */
#define SOFT_WINDOW_PAGES (RF_WINDOW_BYTES / RF_CHUNK_BYTES)
#define SOFT_UNTOLD (1ull << 32)
#define SOFT_QUEUE_WORKS 128u           /* power of two */
#define SOFT_SHARED_BYTES (256u << 10)  /* shared memory of a block: what is mapped */
#define SOFT_SHARED_WINDOW (1ull << 32) /* what a shared address can name */
#define SOFT_THREADS_MAX 1024u
#define SOFT_BARRIERS 16u
#define SOFT_RESIDENT_BYTES (1ull << 30) /* host memory for the blocks of a cooperative launch */
#define SOFT_NO_BLOCK UINT64_MAX
#define SOFT_TEXT_BYTES 256u
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

/* Scratch memory of a worker that kernels use; grows, never shrinks. */
struct soft_scratch {
	uint8_t *shared; /* SOFT_SHARED_WINDOW reserved, SOFT_SHARED_BYTES mapped */
	uint8_t *frame, *local, *resident;
	size_t frame_bytes, local_bytes, resident_bytes;
	void *gemm; /* NULL until the first matrix product */
	uint16_t next[SOFT_THREADS_MAX];
	uint64_t arrived[SOFT_BARRIERS];
};

/* The blocks of a launch, or tiles of a matrix product, as workers take them. It is the owner's,
 * who waits for its helpers. */
struct soft_share {
	const struct hal_work *work;
	uint64_t blocks;
	uint32_t batch; /* blocks that a worker takes at a time */
	bool ordered;   /* blocks are not for other workers: their order counts */
	_Atomic uint64_t next;
	uint64_t begun_ns;
	bool offered;     /* to other workers; the owner's */
	uint32_t helpers; /* under the device's lock */
};

struct soft_worker {
	struct hal_device *device;
	pthread_t thread;
	void *signal_stack;
	struct hal_space *_Atomic space; /* whose work runs guarded, else NULL */
	struct hal_space *const *others; /* more spaces that its work reaches, then NULL; or NULL */
	struct soft_share *share;        /* of the kernel that runs */
	bool owner;                      /* of the share */
	volatile sig_atomic_t guarded;   /* faults on this thread belong to the work */
	volatile bool kernel;            /* the work is one: what it writes to may be read-only */
	const char *volatile doing;      /* for the text of an error */
	sigjmp_buf escape;
	volatile uintptr_t fault_address;
	volatile uintptr_t refused; /* where it could not write although the space says so */
	volatile int fault_error;   /* enum soft_error; 0: an invalid access */
	char said[SOFT_TEXT_BYTES]; /* why, if the body knows; else "" */
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
	uint8_t *asked[SOFT_WHOLE_MAX]; /* mappings of a chunk */
};

enum soft_mapping { SOFT_UNMAPPED, SOFT_READ_ONLY, SOFT_WRITABLE };

struct hal_space {
	struct hal_device *device;
	uint8_t *reservation, *base;
	_Atomic uint8_t *pages;  /* by place in the window: enum soft_mapping */
	uint8_t *closed;         /* likewise: how often since it was mapped (whole.c) */
	atomic_flag copying;     /* held by who makes a page writable under work that runs */
	_Atomic uint32_t copied; /* the last such chunk + 1 that the loop has not taken, or 0 */
	uint32_t told;           /* the next one of those it has taken, likewise */
	_Atomic bool failed;     /* somebody is about to set `error`, and the text before it */
	_Atomic int error;
	_Atomic bool cancel;
	_Atomic uint32_t running; /* submitted kernels and products; only in checked builds */
	atomic_flag printing;     /* held by the worker that puts text into the rank's ring */
	atomic_flag allocating; /* held by the worker that changes the heap of the rank's kernels */
	char text[SOFT_TEXT_BYTES];
};

struct soft_item {
	_Alignas(64) struct hal_work work;
	uint64_t begun;  /* tiles of a matrix product that are done */
	uint8_t *params; /* of a kernel, or the call of a matrix product */
	uint32_t params_capacity;
};

/* What is hardly ever written, what the submitter writes, and what workers write: on cache lines of
 * their own. */
struct hal_stream {
	struct hal_device *device;
	_Atomic uint64_t notify_at; /* completions below it do not ring */
	_Alignas(64) _Atomic uint64_t submitted;
	uint64_t seen;       /* the submitter's: so many are complete, at least */
	_Atomic bool active; /* in the run queue, or a worker serves it */
	_Alignas(64) _Atomic uint64_t completed;
	_Atomic uint32_t servers; /* workers that may still touch the stream */
	struct hal_stream *next;  /* in the run queue */
	_Alignas(64) struct soft_item items[SOFT_QUEUE_WORKS];
};

#define SOFT_UNCLEAN_MAX 64u /* free chunks that keep memory of the host's */

struct soft_chunk {
	_Atomic uint32_t next; /* chunk + 1, among the free or a space's copied ones; 0: the last */
	uint32_t page;         /* copied: where it is */
	bool unclean;          /* free, and holds what it held */
	bool overwritten;      /* all of it is going to be, so its pages are wanted at once */
	bool unzeroed;         /* taken as zeros, and holds what it held until it is mapped */
};

struct hal_device {
	struct hal_config config;
	int memfd;
	uint32_t chunk_count;  /* the capacity */
	uint32_t numbers;      /* HAL_CHUNK_NUMBERS of it: of so many there are numbers */
	_Atomic uint64_t held; /* chunks; and SOFT_UNTOLD for each that the loop has not heard of */
	struct soft_chunk *chunks;
	/* The first free chunk + 1, the lowest at first; the high half counts what was taken, so that
	 * nobody takes a list for the one it was. */
	_Atomic uint64_t free;
	_Atomic uint32_t unclean; /* of these, SOFT_UNCLEAN_MAX at most */
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct hal_stream *_Atomic first, *last; /* under the lock, but for looks while spinning */
	struct soft_share *_Atomic share;        /* a launch that others may help with, or NULL */
	pthread_cond_t helped;                   /* the last helper is done */
	bool stopping;
	struct soft_whole whole;
	uint32_t worker_count;
	uint64_t taken;         /* streams by workers; under the lock, as the next two */
	pthread_cond_t starved; /* for the spare worker that looks, while it `rests` */
	bool rests;
	_Atomic uint32_t thread_count; /* workers, and behind them spare ones */
	struct soft_worker *workers;
};

/* space.c */
int soft_chunk_create(struct hal_device *, uint32_t *chunk);
int soft_chunk_create_unclean(struct hal_device *, uint32_t *chunk);
void soft_chunk_destroy(struct hal_device *, uint32_t chunk); /* from any thread */
/* Whatever the capacity says; its content is unknown. From any thread, in signal handlers too. */
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
/* What a chunk of the window is mapped as; `at`: a host address. */
enum soft_mapping soft_space_mapping(const struct hal_space *, uintptr_t at);
int soft_space_error(struct hal_space *, char *text, uint32_t text_bytes);
void soft_space_cancel(struct hal_space *);
void soft_space_fail(struct hal_space *, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* unforeseen.c: at a fault of a kernel. True: now it may write there. */
bool soft_unforeseen(struct soft_worker *, struct hal_space *, uintptr_t address);
bool soft_space_copied(struct hal_space *, uint64_t *addr, uint32_t *chunk);

/* whole.c: the mapping of a chunk at `at` has become read-only, once more. */
int soft_whole_open(struct soft_whole *);
void soft_whole_close(struct soft_whole *);
void soft_whole_closed(struct soft_whole *, uint8_t *at, uint8_t *times);

/* fault.c: run `body` so that an invalid access, a trap or a cancel ends it and fails the space
 * (or that of `others`, up to a NULL, where the address lies). Without a space a fault takes its
 * ordinary course. */
int soft_fault_install(void);
int soft_worker_signals(struct soft_worker *);
void soft_guard(struct soft_worker *, struct hal_space *, struct hal_space *const *others,
		const char *doing, void (*body)(struct soft_worker *, const struct hal_work *),
		const struct hal_work *);
void soft_leave(int error); /* from inside a body; does not return */
void soft_leave_saying(int error, const char *why);
void soft_leave_in(const struct hal_space *,
		   int error);           /* it is this one of the spaces that fails */
struct hal_space *soft_working_in(void); /* whose work this thread runs */
/* What stands between these may take locks of the C library and must not fault. */
void soft_shelter(void);
void soft_expose(void);
void soft_signal_cancel(struct soft_worker *);

/* copy.c, kernel.c, gemm.c: the kinds of work */
void soft_sum(struct soft_worker *, const struct hal_work *);
void soft_checksum(struct soft_worker *, const struct hal_work *);
void soft_copy(struct soft_worker *, const struct hal_work *);
void soft_fill(struct soft_worker *, const struct hal_work *);
void soft_kernel(struct soft_worker *, const struct hal_work *);
/* Blocks that are best run by one worker at a time. */
uint32_t soft_batch(const struct hal_work *, uint32_t workers);
int soft_scratch_open(struct soft_scratch *);
void soft_scratch_close(struct soft_scratch *);
const char *soft_function_name(const struct hal_function *);
void soft_gemm(struct soft_worker *, const struct hal_work *);
uint64_t soft_gemm_tiles(const struct rf_gemm_aux *); /* 0: this device cannot do it */
uint64_t soft_gemm_slice(const struct rf_gemm *);     /* tiles until other streams get a turn */
bool soft_gemm_ready(struct soft_scratch *);          /* false: host memory is short */

/* queue.c */
uint64_t soft_blocks(const struct hal_work *);
/* For a running kernel: the first of `count` blocks to run next, or SOFT_NO_BLOCK. */
uint64_t soft_next_blocks(struct soft_worker *, uint32_t *count);
int soft_device_open(const struct hal_config *, struct hal_device **);
void soft_device_close(struct hal_device *);
uint64_t soft_arithmetic(const struct hal_device *);
int soft_stream_create(struct hal_device *, struct hal_stream **);
void soft_stream_destroy(struct hal_stream *);
uint32_t soft_room(struct hal_stream *);
uint64_t soft_submit(struct hal_stream *, const struct hal_work *);
uint64_t soft_completed(const struct hal_stream *);
void soft_notify_at(struct hal_stream *, uint64_t number);

#endif
