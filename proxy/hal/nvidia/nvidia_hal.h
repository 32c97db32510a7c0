/* nvidia_hal.h: declarations that the files of the NVIDIA HAL share, and how ranks share a context.
 * The files, from the lowest to the highest: a file calls those above it in this list and no others
 * (tests/proxy/test_floors.py).
 *
 *   driver.c    the driver's functions, found at run time
 *   libraries.c NVIDIA's other libraries
 *   blas.c      the functions of cuBLASLt
 *   versions.c  which library computes a product
 *   kernels.c   the PTX of the HAL's own kernels
 *   device.c    a GPU: its memory, its scratch memory, its loss
 *   outbox.c    memory that other GPUs read directly
 *   nccl.c      communicators of NCCL, with other proxies' devices
 *   module.c    modules and functions
 *   blocks.c    16 chunks in one handle of the driver
 *   pins.c      pinned memory that the device reaches directly
 *   tensor_map.c descriptions of tensors
 *   space.c     a rank's addresses, and the window
 *   algorithms.c the algorithm of a product, and the answers of cuBLASLt's heuristic
 *   cublas.c    the handle of cuBLAS, and products with the function that the program has called
 *   cublaslt.c  products by cuBLASLt
 *   cublaslt_own.c its products that are no records, and transformations
 *   gemm.c      matrix products: what they reach, and what computes them
 *   stream.c    the streams' rings of works
 *   stage.c     what all works need to be submitted
 *   sums.c      the arithmetic of collectives, checksums
 *   variables.c variables of machine code
 *   fft.c       plans of cuFFT
 *   dnn.c       plans of cuDNN
 *   dnn_rows.c  descriptors of its other functions that are rows of numbers
 *   dnn_descriptors.c the others
 *   dnn_ctc.c   its losses, with labels in memory of the host
 *   cusolver.c  the handle of cuSOLVER, and descriptors of its functions
 *   calls.c     calls of NVIDIA's libraries
 *   issue.c     submits one work
 *   thread.c    the device thread
 *   hal.c       the table
 *
 * All ranks of a proxy are in one context, the device's primary one, and therefore in one address
 * space; yet each has its memory at the same addresses, from RF_DEV_BASE on. So:
 *  - Each physical chunk is mapped once at its *alias* address, always. Copies and fills
 *    resolve (space, address) to aliases and do not depend on which rank is active.
 *  - The *window* at RF_DEV_BASE shows the chunks of one space. It is remapped before a kernel of
 *    another space, or of the same one after a map or unmap, and only while no rank's kernel runs
 *    (the HAL's own kernels, sums.c, use only aliases). A kernel therefore sees its own rank's
 *    memory there and no other. Only what is added to the active rank's is mapped while its
 *    kernels run. Memory that is read-only in a space is also read-only in the
 *    window: a kernel's write to it is a fault.
 *  - The window's upper half has the ranks' pinned arenas, which are host memory, each at its
 *    rank's own address. Chunks of them that are in use are registered with the driver (pins.c):
 *    copies use them directly, and kernels reach them. Copies treat the rest as pageable memory;
 *    kernels reach it if the device can access pageable memory (HMM or ATS). Where ranks have
 *    the same addresses for their arenas, nothing is registered, and the window shows the active
 *    rank's.
 *
 * Threads: the loop's thread creates chunks, spaces and streams and puts work into the streams'
 * rings. One device thread takes it out, submits it to the driver, and polls counters that the
 * device writes when works are done: after those that someone waits for, and after every sixteenth;
 * only this thread changes the window. The loop never waits for a device.
 *
 * Each link (nccl.c) has a thread of its own. One more registers and unregisters pinned memory: the
 * driver takes long for it, and may wait for kernels.
 *
 * Locks: pin_lock guards the list of spaces with changes of registrations, host_lock the mappings
 * of the window's upper half, link_lock the list of links and their places. hal_device.lock guards
 * the list of chunks to be cleared, the counters' free slots and the sleep of the device thread. It
 * is held for a few calls that only queue work. Everything else that the threads share is atomic,
 * with one writer.
 *
 * A fault of a kernel destroys the context; the device is then *lost*: all spaces have failed, all
 * work counts as completed, and only a new proxy brings the device back.
 */
#ifndef RANKFOLD_CUDA_HAL_H
#define RANKFOLD_CUDA_HAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver.h"
#include "hal.h"
#include "reduce.h"

#define CUDA_QUEUE_WORKS 128u /* per stream; power of two */
#define CUDA_STREAM_DEPTH 32u /* of these, submitted to the driver */
#define CUDA_REPORT_EVERY 16u /* works, when no one waits for them; less than the depth */
#define CUDA_STREAMS_MAX 65536u
#define CUDA_STAGES 16u /* pinned buffers for copies of pageable memory */
#define CUDA_STAGE_BYTES (1ull << 20)
#define CUDA_SCRATCH_SLOTS 64u /* for sums: one bit each */
#define CUDA_SCRATCH_SLOT_BYTES (1ull << 20)
#define CUDA_SCRATCH_BYTES (CUDA_SCRATCH_SLOTS * CUDA_SCRATCH_SLOT_BYTES)
#define CUDA_SCRATCH_CHUNKS ((uint32_t)(CUDA_SCRATCH_BYTES / RF_CHUNK_BYTES))
#define CUDA_OUTBOX_BYTES (64ull << 20) /* of one job */
#define CUDA_OUTBOXES 128u              /* of this device and others, at the same time */
#define CUDA_LINKS 64u                  /* one bit each */
#define CUDA_LINK_BYTES (HAL_LINK_SLOTS * HAL_LINK_SLOT_BYTES)
#define CUDA_SUM_TYPES 10u /* ncclDataType_t */
#define CUDA_HEAP_CHUNKS (RF_HEAP_BYTES / RF_CHUNK_BYTES)
#define CUDA_READ_ONLY (1u << 31) /* flag in an entry for a chunk */
#define CUDA_TEXT_BYTES 256u
#define CUDA_NO_GLOBALS UINT32_MAX
#define CUDA_CANCEL_NS 10000000000ull /* a cancelled kernel may still run for this long */

/* Variables of machine code: the driver has them once for all ranks, at addresses of its own; each
 * rank has its own content, in its globals of the module. A part is what is contiguous in both. */
struct nvidia_part {
	CUdeviceptr at;
	uint64_t offset, bytes; /* in the globals */
	bool constant;
};
struct nvidia_variables { /* of a module; used by the device thread only */
	CUevent copied;   /* after the last launch that used them */
	bool in_use;      /* `copied` was recorded */
	bool differ;      /* ranks may have different constants */
	bool changing;    /* not all are constants */
	uint64_t number;  /* of the globals whose content the driver has; 0: none */
	uint32_t count;
	struct nvidia_part all[];
};

struct hal_function {
	CUfunction function;
	uint32_t param_bytes;
	uint32_t globals_at;   /* offset of the parameter added by rewrite.py, or NO_GLOBALS */
	uint32_t shared_bytes; /* the kernel's own, without that added by a launch */
	struct nvidia_variables *variables; /* of machine code that has some; or NULL */
	const struct nvidia_call *call;     /* no kernel: a function of a library; or NULL */
	char name[];
};

#define CUDA_BLOCK_CHUNKS 16u
#define CUDA_BLOCK_BYTES (CUDA_BLOCK_CHUNKS * RF_CHUNK_BYTES)
#define CUDA_REGIONS (CUDA_HEAP_CHUNKS / CUDA_BLOCK_CHUNKS) /* of the window, each for a block */
#define CUDA_SETTLED 3u /* times that a region was shown unchanged, before it becomes a block */
#define CUDA_PINNED_BASE (RF_DEV_BASE + RF_HEAP_BYTES)
#define CUDA_PIN_CHUNKS ((uint32_t)((RF_WINDOW_BYTES - RF_HEAP_BYTES) / RF_CHUNK_BYTES))
#define CUDA_SLOT_CHUNKS ((uint32_t)(RF_PINNED_SLOT_BYTES / RF_CHUNK_BYTES))
#define CUDA_HOSTS_MAX 8u
struct nvidia_host_range {
	uint64_t addr, bytes;
	uint8_t *memory;
};

struct hal_space {
	struct hal_device *device;
	struct hal_space *next;     /* in the list of dead spaces */
	uint64_t serial;            /* never reused */
	_Atomic uint32_t *chunks;   /* by index in the heap: chunk + 1 and CUDA_READ_ONLY, or 0 */
	_Atomic uint8_t *settled;   /* by region: how often it was shown since it has changed */
	_Atomic uint32_t read_only; /* number of read-only ones */
	_Atomic uint32_t top;       /* no chunk was ever mapped at this index or above */
	_Atomic uint64_t version;   /* incremented by each map, unmap and protect */
	struct nvidia_host_range hosts[CUDA_HOSTS_MAX];
	_Atomic uint32_t host_count;
	/* Its first host range has its address for as long as the space exists: set by the pinning
	 * thread. */
	_Atomic bool placed;
	_Atomic bool
		pins_change; /* the pinning thread is to change, or is changing, registrations */
	bool pins_used;      /* by the loop's thread only */
	/* Guarded by pin_lock: */
	struct hal_space *pins_next;
	bool pins_queued, closing;
	uint64_t pins_wanted[RF_PIN_WORDS];
	uint64_t pins[RF_PIN_WORDS]; /* used by the pinning thread only */
	_Atomic bool failed;         /* claimed by the caller that sets the text and then `error` */
	_Atomic int error;
	_Atomic uint64_t cancelled_ns; /* 0: not cancelled */
	char text[CUDA_TEXT_BYTES];
};

struct nvidia_item {
	struct hal_work work;
	uint8_t *params; /* of a kernel, or a product's record */
	uint32_t params_capacity, params_bytes;
};

struct hal_stream {
	struct hal_device *device;
	struct hal_stream *next; /* in the device thread's list */
	CUstream stream;
	uint32_t slot;
	_Atomic uint64_t *counter;  /* written by the device: works done */
	_Atomic uint64_t submitted; /* written by the loop */
	_Atomic uint64_t notify_at;
	_Atomic uint64_t awaited_first, awaited_last;
	_Atomic bool doomed; /* the loop has destroyed it; the device thread frees it */
	/* Used by the device thread only: */
	uint64_t issued, seen, last_kernel, cleared;
	uint64_t reported;    /* of the issued works: the device will write this number */
	uint64_t row, column; /* how far the next work has been issued */
	struct nvidia_item items[CUDA_QUEUE_WORKS];
};

struct nvidia_block {
	bool used;
	CUmemGenericAllocationHandle handle;
	uint32_t chunks[CUDA_BLOCK_CHUNKS]; /* in the order of their places */
};

/* A pinned buffer for a copy between pageable memory and the device. */
struct nvidia_stage {
	uint8_t *memory;
	_Atomic bool busy;
	uint8_t *host; /* rows of the pageable side */
	uint64_t width, rows, pitch;
	struct {
		uint8_t *host[HAL_SUM_REFS]; /* operands in the proxy's memory, or NULL */
		uint64_t bytes;
	} sum;
	struct {
		const struct hal_work *work;
		uint64_t blocks; /* of the kernel; each writes two words to `memory` */
	} checksum;
};

struct hal_device {
	const struct nvidia_driver *driver;
	struct hal_config config;
	CUdevice ordinal;
	CUcontext context;
	int capability;    /* 90 for 9.0 */
	CUdeviceptr alias; /* a chunk c that is in no block is at alias + c * RF_CHUNK_BYTES;
			    * scratch memory follows */
	bool window_reserved;
	void *host_window; /* the window's upper half; inaccessible where nothing is shown */
	uint32_t chunk_count, chunks_made, free_count;
	CUmemGenericAllocationHandle *chunks;
	uint32_t *free_chunks;      /* a stack */
	_Atomic uint64_t *counters; /* pinned; one per stream */
	uint32_t *free_slots;       /* of counters; a stack */
	uint32_t free_slot_count;
	uint8_t *stage_memory;
	uint64_t scratch_used; /* bits of used slots; loop's thread only */
	/* Outbox i is at outboxes + i * CUDA_OUTBOX_BYTES. Loop's thread, except the address: */
	CUdeviceptr outboxes;
	CUmemGenericAllocationHandle outbox_handles[CUDA_OUTBOXES]; /* 0: none */
	CUmemGenericAllocationHandle next_outbox;                   /* for the next job; 0: none */
	/* Link i has its memory at links + i * CUDA_LINK_BYTES. */
	CUdeviceptr links;
	pthread_mutex_t link_lock; /* guards the two that follow */
	uint64_t link_places;      /* bits of those in use */
	struct hal_link *all_links;
	pthread_cond_t link_left; /* the list is shorter */
	bool has_peers;           /* other devices may be able to read this one's memory */
	struct nvidia_stage stages[CUDA_STAGES];
	struct {
		CUfunction sum, scale;
	} sums[CUDA_SUM_TYPES];
	CUfunction checksum;
	CUstream clear_stream;
	CUevent clear_event; /* after the last clearing */
	uint64_t next_serial;

	pthread_mutex_t lock;
	pthread_cond_t wake;
	_Atomic bool sleeping, stopping;
	uint32_t *unclean; /* chunks to be cleared before any later work; guarded by the lock */
	bool *listed;      /* by chunk: in `unclean`; guarded by the lock */
	_Atomic uint32_t unclean_count;
	struct hal_stream *_Atomic fresh;      /* new streams, to be adopted by the device thread */
	struct hal_space *_Atomic dead_spaces; /* to be freed by the device thread */
	pthread_t thread;
	bool started;

	pthread_mutex_t pin_lock, host_lock;
	pthread_cond_t pin_wake;
	struct hal_space *pins_first, **pins_last;
	bool pins_stop;
	pthread_t pin_thread;
	bool pins_started, pins_refused;
	_Atomic int pins_failed; /* CUresult: memory could not be taken back from the driver */
	_Atomic uint64_t pinned[CUDA_PIN_CHUNKS / 64]; /* registered chunks of the arenas */
	_Atomic uint64_t slot_owner[RF_PINNED_SLOTS];  /* the space that is placed there; 0: none */

	/* Used by the device thread only: */
	struct hal_stream *streams;
	uint64_t cleared;         /* clearings issued */
	uint32_t *window;         /* entries that the window shows, as in spaces */
	uint32_t *window_blocks;  /* by region: the block + 1 that is mapped there; 0: chunks are */
	struct hal_stream *alone; /* no other stream begins a work; NULL: all may */
	struct nvidia_block *blocks;
	uint32_t *block_of; /* by chunk: block + 1; 0: it has its own handle */
	uint32_t block_count;
	CUdeviceptr block_alias; /* block b is at block_alias + b * CUDA_BLOCK_BYTES */
	CUmemGenericAllocationHandle spares[CUDA_BLOCK_CHUNKS]; /* for a division */
	uint32_t spare_count;
	bool blocks_refused;
	uint32_t window_top;
	struct nvidia_host_range shown[CUDA_HOSTS_MAX];
	uint32_t shown_count;
	struct cublasLtContext *blas; /* created for the first matrix product */
	struct nvidia_algorithm *algorithms;
	void *cublas;                 /* for the first product of a program's own call */
	void *solver, *solver_params; /* of cuSOLVER, for its first call */
	struct nvidia_fft_plan *fft_plans;
	void *dnn; /* of cuDNN, for its first call */
	struct nvidia_dnn_plan *dnn_plans;
	/* the space shown, valid while window_serial is its serial */
	struct hal_space *window_space;
	uint64_t window_serial, window_version;

	_Atomic int lost;             /* the error that ended the context */
	_Atomic uint64_t lost_serial; /* serial of the space that the window showed then */
	char lost_text[CUDA_TEXT_BYTES];
};

/* device.c */
/* the only one of this process, because there is one window */
extern struct hal_device *_Atomic nvidia_open_device;
/* Opens a device without its kernels and thread (hal.c). */
int nvidia_device_open(const struct hal_config *, struct hal_device **);
void nvidia_device_close(struct hal_device *);
const char *nvidia_device_lost(const struct hal_device *);
/* Writes the reason for people why the device cannot be opened; returns `error`. */
CUresult nvidia_refuse(const struct hal_device *, const char *what, CUresult error);
/* Records the error that ended the context. */
void nvidia_lose(struct hal_device *, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
void nvidia_wake(struct hal_device *);       /* the device thread */
void nvidia_ring(const struct hal_device *); /* the loop */
uint64_t nvidia_arithmetic(const struct hal_device *);
int nvidia_chunk_create(struct hal_device *, uint32_t *chunk);
void nvidia_chunk_destroy(struct hal_device *, uint32_t chunk);
uint64_t nvidia_scratch_alloc(struct hal_device *, uint64_t bytes);
bool nvidia_scratch_free(struct hal_device *, uint64_t addr, uint64_t bytes);
CUresult nvidia_bind(const struct hal_device *); /* makes the context current in this thread */
const char *nvidia_error_name(const struct hal_device *, CUresult);
CUresult nvidia_set_access(const struct hal_device *, CUdeviceptr, uint64_t bytes, bool writable);
static inline CUdeviceptr nvidia_alias(const struct hal_device *device, uint32_t chunk)
{
	return device->alias + chunk * RF_CHUNK_BYTES;
}
/* The number of bytes of scratch memory from here on; 0: the address is elsewhere. */
static inline uint64_t nvidia_scratch_space(const struct hal_device *device, uint64_t addr)
{
	uint64_t offset = addr - nvidia_alias(device, device->chunk_count);

	return offset < CUDA_SCRATCH_BYTES ? CUDA_SCRATCH_BYTES - offset : 0;
}

/* The number of bytes from here on that are contiguous memory of a GPU, for a ref without a space;
 * 0: the address is in host memory. */
static inline uint64_t nvidia_near_space(const struct hal_device *device, uint64_t addr)
{
	uint64_t offset = addr - device->outboxes;

	if (device->outboxes && offset < CUDA_OUTBOXES * CUDA_OUTBOX_BYTES)
		return CUDA_OUTBOX_BYTES - offset % CUDA_OUTBOX_BYTES;
	offset = addr - device->links;
	if (device->links && offset < CUDA_LINKS * CUDA_LINK_BYTES)
		return CUDA_LINK_BYTES - offset % CUDA_LINK_BYTES;
	return nvidia_scratch_space(device, addr);
}

/* outbox.c */
int nvidia_outbox_create(struct hal_device *, struct hal_outbox *, char *text, uint32_t text_bytes);
int nvidia_outbox_open(struct hal_device *, struct hal_outbox *, char *text, uint32_t text_bytes);
void nvidia_outbox_close(struct hal_device *, const struct hal_outbox *);
/* Makes the memory for the next job's outbox, if there is enough. */
CUresult nvidia_outbox_prepare(struct hal_device *);

/* nccl.c */
int nvidia_link_open(struct hal_device *, struct hal_link **);
enum hal_link_state nvidia_link_state(const struct hal_link *, struct hal_link_facts *,
				      uint64_t *done);
void nvidia_link_name(struct hal_link *);
void nvidia_link_connect(struct hal_link *, const uint8_t *id, uint32_t members, uint32_t member);
void nvidia_link_sum(struct hal_link *, uint64_t addr, uint64_t count, uint32_t dtype,
		     enum hal_reduction);
void nvidia_link_cancel(struct hal_link *);
void nvidia_link_close(struct hal_link *, bool now);
/* Closes all. False: a call of NCCL has not returned in time. */
bool nvidia_links_end(struct hal_device *);

/* blocks.c */
/* The alias address of a chunk, as long as its content does not move. */
CUdeviceptr nvidia_chunk_at(const struct hal_device *, uint32_t chunk);
/* Moves the content of 16 chunks to a block; their mappings in the window are gone. False: they are
 * as they were, or the device is lost. */
bool nvidia_block_make(struct hal_device *, const uint32_t *chunks);
/* Moves it back; its mapping in the window is gone. */
CUresult nvidia_block_divide(struct hal_device *, uint32_t block);

/* pins.c */
void nvidia_space_pin(struct hal_space *, uint64_t addr, uint64_t bytes, bool pinned);
bool nvidia_space_pinned(const struct hal_space *);
/* Unregisters all of it, and then hands the space to the device thread. */
void nvidia_pins_close(struct hal_space *);
/* The number of bytes from here on that one registration covers; 0: none does. */
uint64_t nvidia_pinned_from(const struct hal_device *, uint64_t addr);
/* Whether another space, that is being closed, still has the addresses of this one. */
bool nvidia_pins_in_the_way(const struct hal_device *, const struct hal_space *);
int nvidia_pins_start(struct hal_device *);
void nvidia_pins_stop(struct hal_device *);
void nvidia_space_dead(struct hal_space *); /* for the device thread to free */

/* space.c */
int nvidia_space_create(struct hal_device *, struct hal_space **);
void nvidia_space_destroy(struct hal_space *);
int nvidia_space_map(struct hal_space *, uint64_t addr, uint32_t chunk, bool writable);
int nvidia_space_unmap(struct hal_space *, uint64_t addr);
int nvidia_space_protect(struct hal_space *, uint64_t addr, uint32_t chunks, bool writable);
bool nvidia_space_copied(struct hal_space *, uint64_t *addr, uint32_t *chunk);
int nvidia_space_map_host(struct hal_space *, uint64_t addr, int fd, uint64_t offset,
			  uint64_t bytes);
int nvidia_space_error(struct hal_space *, char *text, uint32_t text_bytes);
void nvidia_space_cancel(struct hal_space *);
void nvidia_space_fail(struct hal_space *, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Resolves a heap address for copies; returns the number of contiguous bytes; 0: it is not mapped,
 * or it is to be written and read-only. Aliases are writable, so this check is what protects
 * read-only memory. Device thread. */
uint64_t nvidia_space_resolve(const struct hal_space *, uint64_t addr, bool write, CUdeviceptr *at);
/* True if the address is in memory that kernels of the space reach. Device thread. */
bool nvidia_space_has(const struct hal_space *, uint64_t addr);
/* Fails the space for an address that was not resolved. */
void nvidia_space_stray(struct hal_space *, const char *what, uint64_t addr);
/* Translates a range of shown host memory to its address in this process. Device thread. */
void nvidia_space_settle(struct hal_ref *, uint64_t bytes);
/* Makes the window show this space; only while no rank's kernel runs. Device thread. */
CUresult nvidia_window_show(struct hal_device *, struct hal_space *);
bool nvidia_window_shows(const struct hal_device *, const struct hal_space *);
/* Shows what was mapped in this space since the window showed it, also while its kernels run.
 * False: the window shows another space, or more has changed. */
bool nvidia_window_grow(struct hal_device *, struct hal_space *, CUresult *error);
/* Whether content is to move before the window can show this space: then nothing may be in
 * progress. */
bool nvidia_window_moves(const struct hal_device *, const struct hal_space *);

/* issue.c: submits a work to the driver. Device thread. False: not complete yet; call again. */
bool nvidia_issue(struct hal_stream *, struct nvidia_item *);
/* Has the device write the number of works of this stream that it has done, after all that were
 * issued. */
void nvidia_report(struct hal_stream *);

/* gemm.c: whether this device supports such a product in general (loop's thread); submits one to
 * the driver (if that fails, `what` gets the call and the reason); frees what the library holds. */
bool nvidia_gemm_acceptable(const struct rf_gemm_call *);
CUresult nvidia_gemm(struct hal_stream *, struct hal_space *, const struct rf_gemm_call *,
		     char *what, uint32_t what_bytes);
void nvidia_gemm_close(struct hal_device *);
void nvidia_cublas_close(struct hal_device *); /* cublas.c, likewise */
void nvidia_algorithms_close(struct hal_device *);
/* versions.c */
uint64_t nvidia_product_library(const struct rf_gemm_call *);

/* libraries.c: the library of this name in libraries.def. NULL: `text` states what is missing. */
void *nvidia_library(const char *name, char *text, uint32_t text_bytes);

/* calls.c: makes a rank's call of a library, in its stream (if that fails, `what` gets the call and
 * the reason); frees what the libraries hold. */
CUresult nvidia_call(struct hal_stream *, struct hal_space *, const struct nvidia_item *,
		     char *what, uint32_t what_bytes);
void nvidia_calls_close(struct hal_device *);

/* kernels.c: PTX text */
extern const char nvidia_sums_ptx[];
/* sums.c: loads its kernels. */
CUresult nvidia_sums_load(struct hal_device *);

/* stream.c */
int nvidia_stream_create(struct hal_device *, struct hal_stream **);
void nvidia_stream_destroy(struct hal_stream *);
uint32_t nvidia_available(struct hal_stream *);
uint64_t nvidia_submit(struct hal_stream *, const struct hal_work *);
uint64_t nvidia_completed(const struct hal_stream *);
void nvidia_notify_at(struct hal_stream *, uint64_t number);
void nvidia_await(struct hal_stream *, uint64_t first, uint64_t last);
/* module.c */
int nvidia_clusters(struct hal_device *, const struct hal_function *, const struct rf_clusters *,
		    uint32_t *count);
CUlaunchAttribute nvidia_cluster_of(uint32_t cluster); /* as in rf_launch */
/* Allows the function so much memory and so many blocks of a cluster, if it has to be asked for. */
CUresult nvidia_allow(const struct nvidia_driver *, const struct hal_function *,
		      uint32_t shared_bytes, bool large);
/* tensor_map.c */
int nvidia_tensor_map(struct hal_device *, const struct rf_tensor_map *,
		      uint8_t map[RF_TENSOR_MAP_BYTES]);
/* Device thread: */
bool nvidia_kernels_run(const struct hal_device *);
/* Makes the stream wait until chunks that were created since are cleared. */
CUresult nvidia_clear(struct hal_device *, struct hal_stream *);

/* thread.c */
void *nvidia_thread_main(void *device);

#endif
