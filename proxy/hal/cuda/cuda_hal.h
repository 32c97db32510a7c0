/* cuda_hal.h: what the files of the NVIDIA HAL share, and how ranks share a context.
 *
 * All ranks of a proxy live in one context, the device's primary one, so in one address space; yet
 * each has its memory at the same addresses, from RF_DEV_BASE. So:
 *  - each physical chunk is mapped once, for good, at its *alias* address; copies and fills resolve
 *    (space, address) to aliases and do not care who is active;
 *  - the *window* at RF_DEV_BASE shows the chunks of one space. Before a kernel of another space,
 *    or of the same one after a map or unmap, it is mapped anew, and only while no rank's kernel
 *    runs (the HAL's own, sums.c, see aliases alone). So a kernel sees its own rank's memory there
 *    and nobody else's. What a space has read-only is so in the window: a kernel's write there is
 *    a fault;
 *  - the ranks' pinned arenas, which are host memory, are shown in the window's upper half
 *    likewise. They are not registered with the driver, which would pin all of their 8 GiB and know
 *    nothing of the holes that a program leaves where it frees: copies treat them as pageable
 *    memory; kernels reach them where the device can access pageable memory (HMM or ATS).
 *
 * Threads: the loop's thread makes chunks, spaces and streams and puts work into the streams'
 * rings. One device thread takes it out, gives it to the driver, and looks at counters that the
 * device writes when a work is done; it alone touches the window. The loop waits for no device.
 *
 * Locks: hal_device.lock guards the list of chunks to be cleared, the counters' free slots and the
 * sleep of the device thread; it is held for a few calls that only queue work. All else between the
 * threads is atomic, with one writer.
 *
 * A fault of a kernel destroys the context: then the device is *lost*. All spaces have failed, all
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

#define CUDA_QUEUE_WORKS 128u /* of a stream; power of two */
#define CUDA_STREAM_DEPTH 32u /* of these, in the driver's hands */
#define CUDA_STREAMS_MAX 65536u
#define CUDA_STAGES 16u /* pinned buffers for copies of pageable memory */
#define CUDA_STAGE_BYTES (1ull << 20)
#define CUDA_SCRATCH_SLOTS 64u /* for sums: a bit each */
#define CUDA_SCRATCH_SLOT_BYTES (1ull << 20)
#define CUDA_SCRATCH_BYTES (CUDA_SCRATCH_SLOTS * CUDA_SCRATCH_SLOT_BYTES)
#define CUDA_SCRATCH_CHUNKS ((uint32_t)(CUDA_SCRATCH_BYTES / RF_CHUNK_BYTES))
#define CUDA_SUM_TYPES 10u /* ncclDataType_t */
#define CUDA_HEAP_CHUNKS (RF_HEAP_BYTES / RF_CHUNK_BYTES)
#define CUDA_READ_ONLY (1u << 31) /* of an entry for a chunk */
#define CUDA_TEXT_BYTES 256u
#define CUDA_NO_GLOBALS UINT32_MAX
#define CUDA_CANCEL_NS 10000000000ull /* so long a cancelled kernel may still run */

struct hal_function {
	CUfunction function;
	uint32_t param_bytes;
	uint32_t globals_at;   /* offset of the parameter that rewrite.py added, or NO_GLOBALS */
	uint32_t shared_bytes; /* the kernel's own, beside what a launch adds */
	char name[];
};

#define CUDA_HOSTS_MAX 8u
struct cuda_host_range {
	uint64_t addr, bytes;
	uint8_t *memory;
};

struct hal_space {
	struct hal_device *device;
	struct hal_space *next;     /* among the dead */
	uint64_t serial;            /* never reused */
	_Atomic uint32_t *chunks;   /* by place in the heap: chunk + 1 and CUDA_READ_ONLY, or 0 */
	_Atomic uint32_t read_only; /* of them */
	_Atomic uint32_t top;       /* no chunk was ever mapped from here on */
	_Atomic uint64_t version;   /* grows with each map, unmap and protect */
	struct cuda_host_range hosts[CUDA_HOSTS_MAX];
	_Atomic uint32_t host_count;
	_Atomic bool failed; /* somebody is about to set `error`, and the text before it */
	_Atomic int error;
	_Atomic uint64_t cancelled_ns; /* 0: not cancelled */
	char text[CUDA_TEXT_BYTES];
};

struct cuda_item {
	struct hal_work work;
	uint8_t *params; /* of a kernel; or a product's record */
	uint32_t params_room, params_bytes;
};

struct hal_stream {
	struct hal_device *device;
	struct hal_stream *next; /* the device thread's list */
	CUstream stream;
	uint32_t slot;
	_Atomic uint64_t *counter;  /* the device writes: works done */
	_Atomic uint64_t submitted; /* the loop writes */
	_Atomic uint64_t notify_at;
	_Atomic bool doomed; /* the loop is done with it; the device thread frees it */
	/* the device thread's */
	uint64_t issued, seen, last_kernel, cleared;
	uint64_t row, column; /* how far the next work has been issued */
	struct cuda_item items[CUDA_QUEUE_WORKS];
};

/* A pinned buffer on the way between pageable memory and the device. */
struct cuda_stage {
	uint8_t *memory;
	_Atomic bool busy;
	uint8_t *host; /* rows of the pageable side */
	uint64_t width, rows, pitch;
	struct {
		uint8_t *host[HAL_SUM_REFS]; /* what lies in the proxy's memory, or NULL */
		uint64_t bytes;
	} sum;
	struct {
		const struct hal_work *work;
		uint64_t blocks; /* of the kernel; each leaves two words in `memory` */
	} checksum;
};

struct hal_device {
	const struct cuda_driver *driver;
	struct hal_config config;
	CUdevice ordinal;
	CUcontext context;
	CUdeviceptr alias; /* chunk c is at alias + c * RF_CHUNK_BYTES; then scratch memory */
	bool window_reserved;
	void *host_window; /* the window's upper half, of no access where not shown */
	uint32_t chunk_count, chunks_made, free_count;
	CUmemGenericAllocationHandle *chunks;
	uint32_t *free_chunks;      /* a stack */
	_Atomic uint64_t *counters; /* pinned; a stream each */
	uint32_t *free_slots;       /* of counters; a stack */
	uint32_t free_slot_count;
	uint8_t *stage_memory;
	uint64_t scratch_used; /* its slots: the loop's thread's */
	struct cuda_stage stages[CUDA_STAGES];
	struct {
		CUfunction sum, scale;
	} sums[CUDA_SUM_TYPES];
	CUfunction checksum;
	CUstream clear_stream;
	CUevent clear_event; /* the last clearing */
	uint64_t next_serial;

	pthread_mutex_t lock;
	pthread_cond_t wake;
	_Atomic bool sleeping, stopping;
	uint32_t *unclean; /* chunks to be cleared before any later work; its lock */
	bool *listed;      /* among these; its lock */
	_Atomic uint32_t unclean_count;
	struct hal_stream *_Atomic fresh;      /* new streams, for the device thread */
	struct hal_space *_Atomic dead_spaces; /* for it to free */
	pthread_t thread;
	bool started;

	/* the device thread's */
	struct hal_stream *streams;
	uint64_t cleared; /* clearings issued */
	uint32_t *window; /* what the window shows: entries as those of spaces */
	uint32_t window_top;
	struct cuda_host_range shown[CUDA_HOSTS_MAX];
	uint32_t shown_count;
	struct cublasLtContext *blas;   /* made for the first matrix product */
	struct hal_space *window_space; /* whose it is, while window_serial is its serial */
	uint64_t window_serial, window_version;

	_Atomic int lost;             /* the error that ended the context */
	_Atomic uint64_t lost_serial; /* the space that had the window then */
	char lost_text[CUDA_TEXT_BYTES];
};

/* device.c */
extern struct hal_device *_Atomic cuda_open_device; /* of this process: the window is one */
int cuda_device_open(const struct hal_config *, struct hal_device **);
void cuda_device_close(struct hal_device *);
const char *cuda_device_lost(const struct hal_device *);
uint64_t cuda_arithmetic(const struct hal_device *);
int cuda_chunk_create(struct hal_device *, uint32_t *chunk);
void cuda_chunk_destroy(struct hal_device *, uint32_t chunk);
uint64_t cuda_scratch_alloc(struct hal_device *, uint64_t bytes);
bool cuda_scratch_free(struct hal_device *, uint64_t addr, uint64_t bytes);
CUresult cuda_bind(const struct hal_device *); /* the context becomes this thread's */
const char *cuda_error_name(const struct hal_device *, CUresult);
CUresult cuda_set_access(const struct hal_device *, CUdeviceptr, uint64_t bytes, bool writable);
static inline CUdeviceptr cuda_alias(const struct hal_device *device, uint32_t chunk)
{
	return device->alias + chunk * RF_CHUNK_BYTES;
}
/* How many bytes of scratch memory lie from here on; 0: it is elsewhere. */
static inline uint64_t cuda_scratch_room(const struct hal_device *device, uint64_t addr)
{
	uint64_t offset = addr - cuda_alias(device, device->chunk_count);

	return offset < CUDA_SCRATCH_BYTES ? CUDA_SCRATCH_BYTES - offset : 0;
}

/* space.c */
int cuda_space_create(struct hal_device *, struct hal_space **);
void cuda_space_destroy(struct hal_space *);
int cuda_space_map(struct hal_space *, uint64_t addr, uint32_t chunk, bool writable);
int cuda_space_unmap(struct hal_space *, uint64_t addr);
int cuda_space_protect(struct hal_space *, uint64_t addr, uint32_t chunks, bool writable);
bool cuda_space_copied(struct hal_space *, uint64_t *addr, uint32_t *chunk);
int cuda_space_map_host(struct hal_space *, uint64_t addr, int fd, uint64_t offset, uint64_t bytes);
int cuda_space_error(struct hal_space *, char *text, uint32_t text_bytes);
void cuda_space_cancel(struct hal_space *);
void cuda_space_fail(struct hal_space *, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Where a heap address lies for copies, and how many bytes lie together there; 0: it is not mapped,
 * or it is to be written and read-only. Aliases are writable: here is where that is caught. Device
 * thread. */
uint64_t cuda_space_resolve(const struct hal_space *, uint64_t addr, bool write, CUdeviceptr *at);
/* The space fails for an address that was not resolved. */
void cuda_space_stray(struct hal_space *, const char *what, uint64_t addr);
/* A range of host memory becomes what it is in this process. Device thread. */
void cuda_space_settle(struct hal_ref *, uint64_t bytes);
/* The window shows this space; only while no rank's kernel runs. Device thread. */
CUresult cuda_window_show(struct hal_device *, struct hal_space *);
bool cuda_window_shows(const struct hal_device *, const struct hal_space *);

/* issue.c: a work into the driver's hands. Device thread. False: not all of it yet, come again. */
bool cuda_issue(struct hal_stream *, struct cuda_item *);

/* gemm.c: has this device, in general, such a product? (The loop's thread.) One into the driver's
 * hands; if that fails, `what` gets the call and the reason. What the library holds. */
bool cuda_gemm_acceptable(const struct rf_gemm_aux *);
CUresult cuda_gemm(struct hal_stream *, struct hal_space *, const struct rf_gemm_aux *, char *what,
		   uint32_t what_bytes);
void cuda_gemm_close(struct hal_device *);

/* kernels.c, as text */
extern const char cuda_sums_ptx[];
/* sums.c: its kernels are loaded. */
CUresult cuda_sums_load(struct hal_device *);

/* queue.c */
int cuda_stream_create(struct hal_device *, struct hal_stream **);
void cuda_stream_destroy(struct hal_stream *);
uint32_t cuda_room(struct hal_stream *);
uint64_t cuda_submit(struct hal_stream *, const struct hal_work *);
uint64_t cuda_completed(const struct hal_stream *);
void cuda_notify_at(struct hal_stream *, uint64_t number);
void *cuda_thread_main(void *device);
void cuda_wake(struct hal_device *);
void cuda_ring(const struct hal_device *);
bool cuda_kernels_run(const struct hal_device *);
/* Chunks that were given out since are cleared before what the stream gets next. */
CUresult cuda_clear(struct hal_device *, struct hal_stream *);
void cuda_lose(struct hal_device *, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
