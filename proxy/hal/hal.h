/* hal.h: the table of functions through which a proxy drives a device. hal/soft and hal/nvidia
 * implement it; the proxy's core does not depend on which of them it uses.
 *
 * Rules:
 *  - No entry blocks. Work goes into in-order queues (hal_stream); a counter reports completed
 *    work. When a counter changes, the HAL rings the proxy's doorbell.
 *  - All entries are called from the proxy's loop thread only, unless stated otherwise.
 *  - Errors are CUresult numbers; 0 is success.
 *  - submit copies the work record, including its parameters.
 *
 * Memory: the device has `memory_bytes` of physical chunks of RF_CHUNK_BYTES. A space is one rank's
 * window of addresses (RF_DEV_BASE, RF_WINDOW_BYTES); chunks are mapped into it. A kernel runs in
 * one space and may access everything that is mapped there and nothing else.
 *
 * Read-only mappings protect a chunk that several spaces map. A copy, fill, sum or product that
 * would write to one fails the space with CUDA_ERROR_ILLEGAL_ADDRESS (700), because the caller knew
 * what it writes. A kernel's write may be unforeseen: if the device supports it, the page gets its
 * own chunk with the bytes of that moment, and the kernel continues (space_copied); otherwise the
 * write is error 700.
 */
#ifndef RANKFOLD_HAL_H
#define RANKFOLD_HAL_H

#include <stdbool.h>
#include <stdint.h>
#include "channel.h"

/* Number of chunk numbers for this many bytes of memory: twice the chunks, because each may have a
 * copy. */
#define HAL_CHUNK_NUMBERS(bytes) (2 * ((bytes) / RF_CHUNK_BYTES))

struct hal_device;
struct hal_space;
struct hal_stream;
struct hal_function; /* made by the Python part of the HAL when a module is loaded */

struct hal_config {
	uint64_t memory_bytes; /* capacity, a multiple of RF_CHUNK_BYTES */
	uint32_t workers;      /* kernel worker threads */
	uint32_t cc_major, cc_minor;
	double speed; /* soft: 1.0: as fast as possible; 0.5: takes twice as long */
	/* Called (from any thread) after a counter has changed or a space has failed. */
	void (*ring)(void *ring_arg);
	void *ring_arg;
	uint32_t index; /* nvidia: index among the machine's GPUs */
	/* receives the reason why device_open fails, as a line for people; or NULL */
	char *text;
	uint32_t text_bytes;
};

enum hal_kind {
	HAL_KERNEL,   /* runs a kernel in `space` */
	HAL_COPY,     /* copies rows from src to dst */
	HAL_FILL,     /* fills rows with one element value */
	HAL_REDUCE,   /* dst[i] = a[i] op b[i]; each result rounded to dtype */
	HAL_SCALE,    /* dst[i] = a[i] * scalar, or / divisor */
	HAL_GEMM,     /* computes matrix products in `space` */
	HAL_CHECKSUM, /* of bytes, into the proxy's memory (checksum.h) */
};

/* The operation of HAL_REDUCE: the first values of ncclRedOp_t. */
enum hal_reduction { HAL_SUM, HAL_PROD, HAL_MAX, HAL_MIN };

/* An address: in a space, or (space NULL) in host memory of the proxy, in scratch memory or in an
 * outbox. */
struct hal_ref {
	struct hal_space *space;
	uint64_t
		addr; /* window address, scratch or outbox address, or host pointer as an integer */
};

/* Device memory that the devices of other processes read directly. */
struct hal_outbox {
	uint64_t addr, bytes;
	int fd;          /* names it to other processes */
	uint8_t gpu[16]; /* the device that has it: the same number in all processes */
};

/* A link: this device as a member of a communicator of its type's own library, with devices of
 * other processes. It has memory for HAL_LINK_SLOTS sums in progress. */
#define HAL_LINK_ID_BYTES 128u
#define HAL_LINK_TEXT_BYTES 256u
#define HAL_LINK_SLOTS 4u
#define HAL_LINK_SLOT_BYTES (4ull << 20)
struct hal_link;
enum hal_link_state {
	HAL_LINK_BUSY,
	HAL_LINK_OPENED,    /* version, gpu */
	HAL_LINK_NAMED,     /* id */
	HAL_LINK_CONNECTED, /* memory */
	HAL_LINK_FAILED,    /* text; it stays so */
};
struct hal_link_facts {
	uint64_t version; /* of the library; all members need the same one */
	uint8_t gpu[16];  /* as in hal_outbox; a GPU may be a member once */
	uint8_t id[HAL_LINK_ID_BYTES];
	uint64_t memory; /* for refs without a space */
	char text[HAL_LINK_TEXT_BYTES];
};

/* Operands of HAL_REDUCE and HAL_SCALE may be in host memory or in any spaces. A space fails with
 * CUDA_ERROR_MISALIGNED_ADDRESS (716) if an operand in it is not aligned to an element, and with
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
			uint64_t globals_addr;   /* address of this rank's globals of the module */
			uint64_t globals_number; /* of these globals, never reused; 0: none */
			bool globals_known; /* to the program: it may have written to constants */
			uint32_t cooperative;
			uint32_t cluster; /* as in rf_launch; 0 where `clusters` is NULL */
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
			uint32_t divide; /* 1: by `divisor` (ncclAvg); 0: times `scalar` */
			uint64_t divisor;
			uint8_t scalar[8]; /* in dtype */
		} scale;
		struct {
			struct hal_space *space;
			const struct rf_gemm_call *call;
		} gemm;
		struct { /* added to `sum`, which stays valid until the work completes */
			/* may cross chunks only if it begins at a multiple of 8 */
			struct hal_ref src;
			uint64_t bytes, *sum;
		} checksum;
	};
};

struct hal {
	const char *type; /* "soft", "nvidia", "null" */
	/* space_map may be called while work runs in the space, which uses nothing that is mapped
	 * by it. */
	bool maps_beneath;

	int (*device_open)(const struct hal_config *, struct hal_device **);
	void (*device_close)(struct hal_device *); /* waits for its worker threads */
	/* Returns why the device no longer serves anything, as a line for people; NULL: it works.
	 * If the entry is NULL, the device is never lost. All spaces of a lost device have failed,
	 * and all its work counts as done. */
	const char *(*device_lost)(const struct hal_device *);
	/* Devices of one type that return the same number produce the same bits when they run the
	 * same kernel or product on the same bits. For other devices nothing is known. */
	uint64_t (*arithmetic)(const struct hal_device *);
	/* The same for products that a library computes: identifies the one that computes this
	 * product. May load it. NULL: `arithmetic` says it all. */
	uint64_t (*product_library)(const struct rf_gemm_call *);

	/* Physical chunks. create fails with CUDA_ERROR_OUT_OF_MEMORY (2) at capacity, and while
	 * copies of pages exceed it (space_copied); and with CUDA_ERROR_NOT_READY (600) if a
	 * running kernel is taking chunks, which space_copied reports by the kernel's end. A new
	 * chunk reads as zero. A chunk may only be destroyed when nothing maps it and no submitted
	 * work uses it. Chunk numbers are below HAL_CHUNK_NUMBERS. */
	int (*chunk_create)(struct hal_device *, uint32_t *chunk);
	/* The same, but the chunk may hold any content: the caller overwrites all of it before it
	 * is read. NULL: the device gains nothing by it. */
	int (*chunk_create_unclean)(struct hal_device *, uint32_t *chunk);
	void (*chunk_destroy)(struct hal_device *, uint32_t chunk);

	/* Scratch memory for sums, near the device and in addition to its capacity. Returns an
	 * address for refs without a space, which only copies, sums and scalings may use. 0, or
	 * NULL entries: the caller uses host memory. scratch_free returns false if addr is not
	 * scratch memory. */
	uint64_t (*scratch_alloc)(struct hal_device *, uint64_t bytes);
	bool (*scratch_free)(struct hal_device *, uint64_t addr, uint64_t bytes);

	/* Outboxes, in addition to the device's capacity, for refs without a space, which only
	 * copies, sums and scalings may use. create makes one; its content is undefined, and the
	 * caller closes `fd` when it has passed it on. open makes another process's readable, given
	 * everything but its address; it never writes there. The content stays for readers that
	 * have it open when its creator closes it or is killed. On error `text` receives the
	 * reason, for people: the caller uses host memory. close: no submitted work uses it. NULL
	 * entries: the device has none. */
	int (*outbox_create)(struct hal_device *, struct hal_outbox *, char *text,
			     uint32_t text_bytes);
	int (*outbox_open)(struct hal_device *, struct hal_outbox *, char *text,
			   uint32_t text_bytes);
	void (*outbox_close)(struct hal_device *, const struct hal_outbox *);

	/* Links; NULL entries: the device has none. open begins to open one; 0: it has begun. Its
	 * state says when that has ended, or the last request: name makes an id; connect waits for
	 * all members, who have the same id and different numbers. The doorbell rings when the
	 * state changes. sum adds what all members have at an address of its memory, `count`
	 * elements, there: all make the same calls in the same order, as many at the same time as
	 * there is memory for. `done` is how many have ended, in this order. cancel ends what is in
	 * progress, whatever other members do; the link fails, its memory stays. close: `now` also
	 * cancels; otherwise nothing is in progress here. Its memory is gone then: no submitted
	 * work uses it. */
	int (*link_open)(struct hal_device *, struct hal_link **);
	/* `facts` and `done` may be NULL. */
	enum hal_link_state (*link_state)(const struct hal_link *, struct hal_link_facts *facts,
					  uint64_t *done);
	void (*link_name)(struct hal_link *);
	void (*link_connect)(struct hal_link *, const uint8_t *id, uint32_t members,
			     uint32_t member);
	void (*link_sum)(struct hal_link *, uint64_t addr, uint64_t count, uint32_t dtype,
			 enum hal_reduction);
	void (*link_cancel)(struct hal_link *);
	void (*link_close)(struct hal_link *, bool now);

	/* A rank's window. map, unmap and protect are called only when no submitted kernel or
	 * product runs in the space, and no submitted copy, fill or sum uses the chunk. protect
	 * makes `chunks` mappings from addr on writable or read-only; after an error the caller
	 * treats them as read-only. On a device with space_own, mappings may become writable while
	 * work runs, and read-only while copies and sums run that do not write there. */
	int (*space_create)(struct hal_device *, struct hal_space **);
	void (*space_destroy)(struct hal_space *);
	int (*space_map)(struct hal_space *, uint64_t addr, uint32_t chunk, bool writable);
	int (*space_unmap)(struct hal_space *, uint64_t addr);
	int (*space_protect)(struct hal_space *, uint64_t addr, uint32_t chunks, bool writable);
	/* Replaces a read-only mapping while work runs: the page is mapped, writable, to another
	 * chunk with the same bytes, so work that reads there cannot distinguish them.
	 * CUDA_ERROR_NOT_READY (600): a kernel has written there first, and the page has its own
	 * chunk (space_copied). After any error the mapping is unchanged. NULL: the device does not
	 * support it. */
	int (*space_own)(struct hal_space *, uint64_t addr, uint32_t chunk);
	/* Returns the next page that got its own chunk because a kernel wrote to it: its address
	 * and the new chunk, which now belongs to the caller and is mapped writable; the old chunk
	 * is not mapped there any more. False: there is no further page. All pages of a kernel are
	 * available when it completes. Work submitted after the kernel may have read what it wrote.
	 * The caller must call this before it changes mappings of the space, if kernels have run in
	 * it since the last call. */
	bool (*space_copied)(struct hal_space *, uint64_t *addr, uint32_t *chunk);
	/* Maps host memory (the pinned arena), whole chunks, at an address of the window, from file
	 * `fd` at `offset`. */
	int (*space_map_host)(struct hal_space *, uint64_t addr, int fd, uint64_t offset,
			      uint64_t bytes);
	/* Host memory of the space that the device is to reach directly from now on, or no longer:
	 * whole chunks, which no other space of the device has at this address. No submitted work
	 * uses memory that it is no longer to reach. space_pinned: all of it is done; until then
	 * the space's work waits, and the pages must stay. NULL: nothing is to be done. */
	void (*space_pin)(struct hal_space *, uint64_t addr, uint64_t bytes, bool pinned);
	bool (*space_pinned)(const struct hal_space *);
	/* Returns the sticky error of the space (700: illegal address, 719: launch failure, …), 0
	 * if none; `text`, unless NULL, receives a line for people. Work of a failed space is
	 * skipped. */
	int (*space_error)(struct hal_space *, char *text, uint32_t text_bytes);
	/* Ends the kernel that runs in this space soon; the space gets error 719. */
	void (*space_cancel)(struct hal_space *);

	/* In-order queues. submit returns the work's number: 1, 2, 3 …, or 0 if the queue is full
	 * or the device cannot do such work (an unknown data type). completed returns the number of
	 * the last finished work. Different streams may run at the same time. A queue holds at
	 * least 64 works; available returns a lower bound of how many more fit: 0 if none. */
	int (*stream_create)(struct hal_device *, struct hal_stream **);
	void (*stream_destroy)(struct hal_stream *); /* only when idle */
	uint32_t (*available)(struct hal_stream *);
	uint64_t (*submit)(struct hal_stream *, const struct hal_work *);
	uint64_t (*completed)(const struct hal_stream *);
	/* Before work `number` completes, nothing waits for this stream: earlier works need not
	 * ring the doorbell. 0, the default: each work rings. A failing space rings at once. The
	 * caller reads `completed` once more after this call, because a work that ended meanwhile
	 * may not have rung. */
	void (*notify_at)(struct hal_stream *, uint64_t number);
	/* Something waits for works first to last: `completed` must show them soon. Other works it
	 * may show some milliseconds later, together. last 0, the default: each is awaited. NULL:
	 * the device gains nothing by it. */
	void (*await_works)(struct hal_stream *, uint64_t first, uint64_t last);

	/* Encodes a description of a tensor at an address of a window, or replaces the address in
	 * one: RF_TENSOR_MAP_BYTES. It is valid on all devices of the type for which the same code
	 * is chosen. NULL: the device has none. */
	int (*tensor_map)(struct hal_device *, const struct rf_tensor_map *, uint8_t *map);
	/* Answers about clusters of blocks. NULL: a block is its own cluster. */
	int (*clusters)(struct hal_device *, const struct hal_function *,
			const struct rf_clusters *, uint32_t *count);
};

extern const struct hal hal_soft;
extern const struct hal hal_null;
extern const struct hal hal_nvidia;

#endif
