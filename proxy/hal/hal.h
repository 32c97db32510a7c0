/* hal.h: the table of driver functions a proxy drives. hal/soft and hal/cuda offer it; the
 * proxy's core does not know which one it has.
 *
 * Rules:
 *  - No entry blocks. Work goes into in-order queues (hal_stream); what is done is read
 *    from a counter. When a counter moves, the HAL rings the proxy's doorbell.
 *  - All entries are called from the proxy's loop thread only, unless said otherwise.
 *  - Errors are CUresult numbers; 0 is success.
 *  - A work record is copied at submit, parameters included.
 *
 * Memory: the device has `memory_bytes` of physical chunks of RF_CHUNK_BYTES. A space is one
 * rank's window of addresses (RF_DEV_BASE, RF_WINDOW_BYTES); chunks are mapped into it. A
 * kernel runs in one space and may touch all that is mapped there and nothing else.
 *
 * Read-only mappings keep a chunk that several spaces map as it is. A copy, a fill, a sum or a
 * product that would write to one fails the space with CUDA_ERROR_ILLEGAL_ADDRESS (700): the caller
 * knew. A kernel's write was not foreseen: where the device can, the page gets a chunk of its own
 * with the same bytes at that moment and the kernel goes on (space_copied); else that is error 700.
 */
#ifndef RANKFOLD_HAL_H
#define RANKFOLD_HAL_H

#include <stdbool.h>
#include <stdint.h>
#include "channel.h"

/* Numbers of chunks for so many bytes of memory: each may have a copy beside it. */
#define HAL_CHUNK_NUMBERS(bytes) (2 * ((bytes) / RF_CHUNK_BYTES))

struct hal_device;
struct hal_space;
struct hal_stream;
struct hal_function; /* made by the Python side of the HAL when a module is loaded */

struct hal_config {
	uint64_t memory_bytes; /* capacity, a multiple of RF_CHUNK_BYTES */
	uint32_t workers;      /* kernel worker threads */
	uint32_t cc_major, cc_minor;
	double speed; /* soft: 1.0 as fast as it can; 0.5 takes twice as long */
	/* Called (from any thread) after a counter moved or a space failed. */
	void (*ring)(void *ring_arg);
	void *ring_arg;
	uint32_t index; /* nvidia: which of the machine's GPUs */
	char *text;     /* or NULL: why device_open fails, a line for people */
	uint32_t text_bytes;
};

enum hal_kind {
	HAL_KERNEL,   /* run a kernel in `space` */
	HAL_COPY,     /* rows from src to dst */
	HAL_FILL,     /* rows of one element value */
	HAL_REDUCE,   /* dst[i] = a[i] op b[i]; each result rounded to dtype */
	HAL_SCALE,    /* dst[i] = a[i] * scalar, or / divisor */
	HAL_GEMM,     /* matrix products in `space` */
	HAL_CHECKSUM, /* of bytes, into the proxy's memory (checksum.h) */
};

/* What HAL_REDUCE does: the first of ncclRedOp_t. */
enum hal_reduction { HAL_SUM, HAL_PROD, HAL_MAX, HAL_MIN };

/* An address: in a space, or (space NULL) plain host memory of the proxy or scratch memory. */
struct hal_ref {
	struct hal_space *space;
	uint64_t addr; /* window address, scratch address, or the host pointer as an integer */
};

/* Operands of HAL_REDUCE and HAL_SCALE may lie in host memory or in any spaces. A space fails with
 * CUDA_ERROR_MISALIGNED_ADDRESS (716) if one in it is not aligned to an element, and with
 * CUDA_ERROR_ILLEGAL_ADDRESS (700) where nothing is mapped. */
struct hal_work {
	enum hal_kind kind;
	union {
		struct {
			struct hal_space *space;
			const struct hal_function *function;
			uint32_t grid[3], block[3];
			uint32_t shared_bytes, param_bytes;
			const void *params;
			uint64_t globals_addr; /* where this rank's globals of the module lie */
			uint32_t cooperative;
		} kernel;
		struct {
			struct hal_ref dst, src;
			uint64_t width, height, dst_pitch, src_pitch;
		} copy;
		struct {
			struct hal_ref dst;
			uint64_t width, height, pitch; /* width in elements */
			uint32_t value, element;
		} fill;
		struct { /* dst is a or b, or overlaps neither */
			struct hal_ref dst, a, b;
			uint64_t count;
			uint32_t dtype; /* ncclDataType_t */
			uint32_t op;    /* enum hal_reduction */
		} reduce;
		struct {
			struct hal_ref dst, a;
			uint64_t count;
			uint32_t dtype;
			uint32_t
				divide; /* 1: divide by `divisor` (ncclAvg), 0: multiply by scalar */
			uint64_t divisor;
			uint8_t scalar[8]; /* in dtype */
		} scale;
		struct {
			struct hal_space *space;
			const struct rf_gemm_aux *call;
		} gemm;
		struct { /* added to `sum`, which is there until the work is over */
			struct hal_ref src; /* across chunks only from a multiple of 8 on */
			uint64_t bytes, *sum;
		} checksum;
	};
};

struct hal {
	const char *type; /* "soft", "nvidia" */

	int (*device_open)(const struct hal_config *, struct hal_device **);
	void (*device_close)(struct hal_device *); /* waits for its worker threads */
	/* Why the device serves nobody any more, as a line for people; NULL: it does. An entry that
	 * is NULL: it always will. All its spaces have failed then, and all work counts as done. */
	const char *(*device_lost)(const struct hal_device *);
	/* Devices of one type that have the same number here leave the same bits where they run the
	 * same kernel or product on the same bits. Of others nobody knows. */
	uint64_t (*arithmetic)(const struct hal_device *);

	/* Physical chunks. create fails with CUDA_ERROR_OUT_OF_MEMORY (2) at capacity, and while
	 * copies of pages have gone beyond it (space_copied); with CUDA_ERROR_NOT_READY (600) if a
	 * kernel is taking some of them, of which space_copied will tell by its end. A new chunk
	 * reads as zero. A chunk may only be destroyed when nothing maps it and no submitted work
	 * uses it. Their numbers are below HAL_CHUNK_NUMBERS. */
	int (*chunk_create)(struct hal_device *, uint32_t *chunk);
	/* The same, but it may hold anything: whoever calls overwrites all of it before it is read.
	 * NULL: there is nothing to be gained by it. */
	int (*chunk_create_unclean)(struct hal_device *, uint32_t *chunk);
	void (*chunk_destroy)(struct hal_device *, uint32_t chunk);

	/* Scratch memory for what is summed up, near the device and beside its capacity: an address
	 * for refs without a space, which only copies, sums and scalings may name. 0, or entries
	 * that are NULL: host memory will do. scratch_free: false, if it is none of it. */
	uint64_t (*scratch_alloc)(struct hal_device *, uint64_t bytes);
	bool (*scratch_free)(struct hal_device *, uint64_t addr, uint64_t bytes);

	/* A window. map, unmap and protect only when no submitted kernel or product runs in the
	 * space, and no submitted copy, fill or sum touches the chunk. protect: `chunks` mappings
	 * from addr on become writable, or read-only; after an error they are to be taken for
	 * read-only. On a device with space_own they may become writable under work that runs, and
	 * read-only under copies and sums that do not write there. */
	int (*space_create)(struct hal_device *, struct hal_space **);
	void (*space_destroy)(struct hal_space *);
	int (*space_map)(struct hal_space *, uint64_t addr, uint32_t chunk, bool writable);
	int (*space_unmap)(struct hal_space *, uint64_t addr);
	int (*space_protect)(struct hal_space *, uint64_t addr, uint32_t chunks, bool writable);
	/* Under work that runs: the page, mapped read-only, is from now on this other chunk, which
	 * has the same bytes, and can be written: so who reads there cannot tell. CUDA_ERROR_NOT_READY
	 * (600): a kernel has written there first, and has a chunk of its own (space_copied). After
	 * any error the mapping is what it was. NULL: the device cannot. */
	int (*space_own)(struct hal_space *, uint64_t addr, uint32_t chunk);
	/* The next of the pages that got chunks of their own because a kernel wrote to them: its
	 * address and the new chunk, which is the caller's now and mapped writable; the old one is
	 * not mapped there any more. False: no other. A kernel's are all there when it is
	 * complete. What was submitted behind it may have read what it wrote. To be asked before
	 * the mappings of the space are changed, when kernels have run in it since. */
	bool (*space_copied)(struct hal_space *, uint64_t *addr, uint32_t *chunk);
	/* Host memory (the pinned arena) at an address of the window: file offset of fd. */
	int (*space_map_host)(struct hal_space *, uint64_t addr, int fd, uint64_t offset,
			      uint64_t bytes);
	/* The sticky error of the space (700: illegal address, 719: launch failure, …), 0 if
	 * none; text, if wanted, gets a line for people. Work of a failed space is skipped. */
	int (*space_error)(struct hal_space *, char *text, uint32_t text_bytes);
	/* End the kernel that runs in this space soon; the space gets error 719. */
	void (*space_cancel)(struct hal_space *);

	/* In-order queues. submit returns the work's number: 1, 2, 3 …, or 0 when the queue is full
	 * or the device cannot do such work (an unknown data type); completed is the
	 * number of the last finished work. Different streams may run at the same time. The
	 * queue holds at least 64 works; room says how many more fit, at least: 0 is true. */
	int (*stream_create)(struct hal_device *, struct hal_stream **);
	void (*stream_destroy)(struct hal_stream *); /* only when idle */
	uint32_t (*room)(struct hal_stream *);
	uint64_t (*submit)(struct hal_stream *, const struct hal_work *);
	uint64_t (*completed)(const struct hal_stream *);
	/* Before `number` nobody waits for this stream: its works up to there need not ring
	 * the doorbell one by one. 0, the default: each rings. A failing space rings at once. The
	 * caller looks at `completed` once more afterwards: a work that ended meanwhile may not
	 * have rung. */
	void (*notify_at)(struct hal_stream *, uint64_t number);
};

extern const struct hal hal_soft;
extern const struct hal hal_nvidia;

#endif
