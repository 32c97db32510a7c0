/* client.h: what the parts of the client offer each other.
 *
 *   channel.c  the memfd, the ring, reply slots, bulk slots; the meeting with the launcher
 *   handle.c   virtual handles: streams and events
 *   heap.c     who owns which device address (pure: no channel, no lock)
 *   memory.c   malloc, free, copies, fills
 *   pinned.c   pinned and managed memory
 *   registered.c  memory that the program has registered
 *   pool.c     memory pools
 *   module.c   fatbins, modules, functions, launches
 *   managed_variables.c  __managed__ variables
 *   print.c    what kernels print
 *   stream.c   streams, events, host functions
 *   device.c   what the virtual device can do
 *   context.c  the driver's contexts, and what ends with one
 *   attributes.c  attributes of streams, kernel nodes, launches
 *   error.c    names of errors, the last error, lines for people
 *   capture.c  stream capture
 *   cudart.c, driver.c, link.c, graph.c, graph_node.c, graph_exec.c, graph_query.c,
 *   graph_runtime.c, user_object.c, copies.c, nccl.c, nvml.c, cublas.c, cublaslt.c,
 *   blas_routines.c
 *              the bodies of the API functions that need one
 *   blas.c     kernels for routines of BLAS
 *   lookup.c   dlsym, dlvsym, dlopen, cuGetProcAddress
 *   elf.c      libc's own dlsym, past ours
 *
 * Rules that hold in all of them:
 *  - Functions return the API's numbers: 0, or a CUresult/cudaError_t (they agree where both
 *    exist), or an ncclResult_t in nccl.c, or an nvmlReturn_t in nvml.c, or a
 *    cublasStatus_t in cublas.c, cublaslt.c, blas.c and blas_routines.c.
 *  - Nothing here ends the process, writes to stdout (but what the program's own kernels print:
 *    print.c), or changes errno.
 *  - Lock order: module lock, heap lock, registered lock, pinned lock; the ring lock is innermost
 *    and held only for the copy of a record (or of one group of collectives).
 *  - Only channel_call, channel_finish, bulk_claim and a full ring block, as re-checked futex
 *    waits without a deadline: a rank that is parked waits there.
 */
#ifndef RANKFOLD_CLIENT_H
#define RANKFOLD_CLIENT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi.h"
#include "channel.h"

#define RF_API __attribute__((visibility("default")))
/* What has an entry that asks for a context first: here the name is the body's, elsewhere the
 * entry's. */
#ifdef RF_CLIENT
#define RF_BODY(name) __asm__("body_" #name)
#else
#define RF_BODY(name) RF_API
#endif

enum cuda_error {
	CUDA_OK = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	INVALID_CONFIGURATION = 9,
	INVALID_PITCH = 12,
	INVALID_SYMBOL = 13,
	INVALID_DIRECTION = 21,
	INVALID_DEVICE_FUNCTION = 98,
	NO_DEVICE = 100,
	INVALID_DEVICE = 101,
	INVALID_IMAGE = 200,
	INVALID_CONTEXT = 201,
	NO_BINARY_FOR_GPU = 209,
	PEER_ACCESS_UNSUPPORTED = 217,
	INVALID_PTX = 218,
	FILE_NOT_FOUND = 301,
	OPERATING_SYSTEM = 304,
	INVALID_HANDLE = 400,
	ILLEGAL_STATE = 401,
	NOT_FOUND = 500,
	NOT_READY = 600,
	LAUNCH_OUT_OF_RESOURCES = 701,
	PEER_ACCESS_NOT_ENABLED = 705,
	CONTEXT_IS_DESTROYED = 709,
	ALREADY_REGISTERED = 712,
	NOT_REGISTERED = 713,
	COOPERATIVE_LAUNCH_TOO_LARGE = 720,
	NOT_PERMITTED = 800,
	NOT_SUPPORTED = 801,
	CAPTURE_UNSUPPORTED = 900,
	CAPTURE_INVALIDATED = 901,
	CAPTURE_MERGE = 902,
	CAPTURE_UNMATCHED = 903,
	CAPTURE_UNJOINED = 904,
	CAPTURE_ISOLATION = 905,
	CAPTURE_IMPLICIT = 906,
	CAPTURED_EVENT = 907,
	CAPTURE_WRONG_THREAD = 908,
	GRAPH_UPDATE_FAILED = 910,
	UNKNOWN_ERROR = 999,
};

/* ---- channel.c ---- */

extern struct rf_header *channel_header; /* NULL until the channel is open */

/* What the launcher says of the virtual device. Does not claim the channel. */
int channel_welcome(const struct rf_welcome **out);
/* Start of every call that needs the device: opens the channel at the first one, and returns the
 * sticky error of the context if there is one. */
int channel_enter(void);
/* In a host function of the program, where CUDA's functions must not be called: they fail. */
extern _Thread_local bool in_host_function;
/* The same for calls that use the thread's current device: the first of them makes it the one of
 * the process, another one is refused. What names a stream, an event or an address does not. */
int channel_use_device(void);
/* The virtual device that this process uses, -1 before the first such call. */
int channel_device(void);
/* channel_enter without the sticky error, for calls that must work after it (frees). */
int channel_open(void);

/* Put one record into the ring: `bytes` of *record, then `tail_bytes` of tail. Sets bytes, opcode,
 * slot and seq. Blocks only while the ring is full. Returns its seq. */
uint64_t channel_post(struct rf_record *record, enum rf_opcode opcode, size_t bytes,
		      const void *tail, size_t tail_bytes);
/* The same for who holds a lock: 0, and nothing was put, if that would have to wait. */
uint64_t channel_try_post(struct rf_record *record, enum rf_opcode opcode, size_t bytes);
void channel_wait_room(size_t bytes); /* until it is worth another try */
/* The same with a reply: its error; `reply_bytes` of its data go to reply. */
int channel_call(struct rf_record *record, enum rf_opcode opcode, size_t bytes, const void *tail,
		 size_t tail_bytes, void *reply, size_t reply_bytes);
/* channel_call in two steps, for calls in flight together. begin returns the slot. */
uint32_t channel_begin(struct rf_record *record, enum rf_opcode opcode, size_t bytes,
		       const void *tail, size_t tail_bytes);
int channel_finish(uint32_t slot, void *reply, size_t reply_bytes);
/* Wakes the server if it sleeps: for what it learns from the header, not from a record. */
void channel_wake(void);
/* One outermost group of collectives: consecutive in the ring, group_left counting down. */
void channel_post_group(struct rf_collective *records, uint32_t count);

/* A bulk slot: BULK_NONE if none is free and `wait` is false. Nobody may wait for a slot while
 * it holds one that only it can let go. */
#define BULK_NONE UINT32_MAX
uint32_t bulk_claim(bool wait);
uint8_t *bulk_data(uint32_t slot);
void bulk_release(uint32_t slot);


void channel_forked(void); /* this is a child */

/* ---- fork.c ---- */

/* Each is held for a moment, under none of them anything is awaited: fork takes them all. */
extern pthread_mutex_t opening_lock, capture_lock, object_lock, registered_lock, pinned_lock,
	heap_lock, pool_lock, link_lock, variables_lock, registry_lock, attribute_lock, handle_lock,
	context_lock;

/* ---- error.c ---- */

/* One line on stderr, "rankfold: …", kept whole. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same, once per `done`. */
#define SAY_ONCE(...)                                                                              \
	do {                                                                                       \
		static _Atomic bool done;                                                          \
		if (!atomic_exchange(&done, true))                                                 \
			say(__VA_ARGS__);                                                          \
	} while (0)
/* The error that a fault on the device left, and at the first call a line that says which. */
int sticky_error(void);
/* A function that is not covered: says so once, returns `error`. */
int refuse(_Atomic bool *done, const char *function, const char *why, int error);
/* End of every runtime call: remembers the error for cudaGetLastError. */
cudaError_t runtime_result(int error);

/* ---- attributes.c ---- */

/* What streams and kernel nodes have of it: told back, without effect. */
enum hint_of { OF_STREAM = 1, OF_NODE = 2 };
struct hints {
	access_policy_window window;
	int sync_policy, priority, domain, cluster_policy, carveout, nvlink;
	unsigned cluster[3], preferred_cluster[3];
	unsigned char domain_map[2];
};
extern const struct hints usual_hints;
int nearest_priority(int priority);
int hint_get(const struct hints *, int of, int id, launch_attribute_value *);
int hint_set(struct hints *, int of, int id, const launch_attribute_value *);
void hints_copy(struct hints *to, const struct hints *from, int of);

/* ---- handle.c ---- */

enum handle_kind { HANDLE_STREAM = 1, HANDLE_EVENT, HANDLE_BLAS, HANDLE_BLASLT };
enum blas_mode { BLAS_POINTERS, BLAS_MATH, BLAS_ATOMICS, BLAS_SM_COUNT, BLAS_MODES };
struct handle {
	uint64_t number;
	enum handle_kind kind;
	uint32_t flags;
	_Atomic bool captured; /* an event: last recorded in a captured stream */
	uint64_t context;      /* in which it was made */
	struct hints hints;    /* HANDLE_STREAM */
	void *stream;          /* HANDLE_BLAS: of its products */
	int modes[BLAS_MODES];
};
uint64_t handle_number(void); /* a fresh one, never reused */
struct handle *handle_new(enum handle_kind kind);
struct handle *handle_get(enum handle_kind kind, const void *value); /* NULL: not a live one */
void handle_drop(struct handle *);
/* One live handle after another, from *place = 0 on; NULL: no more. */
struct handle *handle_next(uint64_t *place);
/* What API functions take: a stream (NULL is the thread's default one) or an event. */
int stream_number(const void *stream, uint64_t *number);
int event_number(const void *event, uint64_t *number);
extern _Thread_local uint64_t default_stream;

/* ---- memory.c ---- */

/* Where an address lies: what may be done with it. */
enum where { AT_PAGEABLE, AT_PINNED, AT_DEVICE };
enum where memory_where(const void *address);
struct allocation {
	uint64_t base, bytes; /* as the program asked */
	uint64_t owner;       /* 0: nobody */
	unsigned flags;       /* of pinned memory */
};
bool memory_find(const void *address, struct allocation *); /* the live one that holds it */
/* Does [address, +bytes) lie in one live allocation? */
bool memory_on_device(const void *address, uint64_t bytes);
/* The same for what kernels do: in the multiple of RF_ALLOC_ALIGN bytes that an allocation has, as
 * CUDA's have. Programs reduce sizes that are rounded up. */
bool memory_reachable(const void *address, uint64_t bytes);
int memory_alloc(uint64_t bytes, uint64_t *address);
/* The owner is a context, which it ends with, or a pool, which hears of its end. */
int memory_alloc_for(uint64_t owner, uint64_t bytes, uint64_t *address);
int memory_end(uint64_t owner); /* frees what is its */
int memory_free(const void *address);
int memory_info(uint64_t *free_bytes, uint64_t *total_bytes);
void memory_first_launch(void); /* what is allocated from here on is not predicted stable */

struct copy {
	void *dst;
	const void *src;
	uint64_t dst_pitch, src_pitch, width, height;
	int kind; /* enum cuda_memcpy_kind; BY_ADDRESS: from the addresses alone */
	uint64_t stream;
	bool async;
};
int memory_copy(const struct copy *);
int memory_copy_1d(void *dst, const void *src, uint64_t bytes, int kind, const void *stream,
		   bool async);
/* Of ours, between our memory and the device's on this stream, also while captures run: done when
 * they return. */
int memory_get(void *to, uint64_t from, uint64_t bytes, uint64_t stream);
int memory_put(uint64_t to, const void *from, uint64_t bytes, uint64_t stream);
int memory_fill(const void *dst, uint64_t pitch, uint32_t value, uint32_t element, uint64_t width,
		uint64_t height, const void *stream);

/* ---- pinned.c ---- */

#define PINNED_MANAGED 0x80000000u   /* a flag beside those of cudaHostAlloc */
bool pinned_is(const void *address); /* does it lie in the arena? */
bool pinned_find(const void *address, struct allocation *);
int pinned_alloc(uint64_t bytes, uint64_t owner, unsigned flags, void **address);
int pinned_free(void *address);
int pinned_release(void *address); /* without waiting for the device */
void pinned_end(uint64_t owner);
bool managed_is(const void *address);
int managed_place(uint64_t bytes, uint64_t owner, void **out);
int managed_free(void *address);

/* ---- pool.c ---- */

void pool_got_back(uint64_t owner, uint64_t bytes); /* its allocation was freed, if it is a pool */
void pool_synchronised(void);                       /* the program has synchronised */
/* What pools hold on to of `room` bytes that are not allocated. */
uint64_t pool_kept(uint64_t room);

/* ---- registered.c ---- */

int host_register(void *address, uint64_t bytes, unsigned flags);
int host_unregister(void *address);
/* Where the device reaches [address, +bytes), if that is registered memory which it reaches;
 * otherwise the address itself. */
void *registered_reached(const void *address, uint64_t bytes);
bool registered_is(const void *address);

/* ---- module.c ---- */

struct module;
struct function {
	uint64_t number; /* 0 until the server knows it */
	struct module *module;
	const char *name;
	const void *host;      /* the program's stub, NULL for the driver API */
	struct function *next; /* of its module */
	struct rf_function_reply info;
	struct rf_param *params;
	_Atomic bool ready;
	bool explained;         /* why the device cannot have it */
	int max_dynamic_shared; /* raised by the program; -1: the device's default */
	int carveout;           /* what it prefers, in percent; -1: nothing */
};
struct launch {
	struct function *function;
	uint32_t grid[3], block[3];
	uint64_t shared_bytes;
	uint64_t stream;
	void **args;        /* one pointer per parameter, or NULL */
	const void *packed; /* all of them in the kernel's layout, packed_bytes */
	size_t packed_bytes;
	bool cooperative;
	const launch_attribute *attributes; /* for the case that it is captured */
	unsigned attribute_count;
	const struct hints *hints; /* instead, and of its stream's */
};
int module_load(const void *image, struct module **out);
void module_has_managed(struct module *); /* a variable of it is */
int module_unload(struct module *);
void module_end(uint64_t context); /* unloads what was loaded in it */
void module_reset(void);           /* the program's own are as before their first use */
int module_function(struct module *, const char *name, struct function **out);
int module_function_count(struct module *, unsigned *count);
int module_enumerate(struct module *, void **functions, unsigned room); /* the first `room` */
int module_global(struct module *, const char *name, uint64_t *address, uint64_t *bytes);
bool module_is(const void *value);
bool function_is(const void *value);
int function_ready(struct function *);
int function_can_run(struct function *);             /* ready, and with a heap if it may allocate */
struct function *function_of_host(const void *host); /* NULL: not registered */
struct module *module_of(const struct function *);
int symbol_address(const void *host_variable, uint64_t *address, uint64_t *bytes);
int launch(const struct launch *);
/* Checked, and noted in the launch. */
int launch_attributes(const launch_attribute *attributes, unsigned count, struct launch *);

/* ---- managed_variables.c ---- */

/* Is it one of the program's? What it is to the device. */
bool managed_variable(const void *host, uint64_t *address, uint64_t *bytes);

/* ---- print.c ---- */

/* *heap: where kernels of the module look for their heap's address, or 0: they allocate nothing. */
int module_set_up(uint64_t globals, uint64_t address, uint64_t bytes, uint64_t *heap);
void print_kernels_output(void); /* to stdout, what there is by now */

/* ---- kernel_heap.c ---- */

int kernel_heap_tell(uint64_t address); /* writes the heap's address there */
void kernel_heap_reset(void);           /* it is gone, and limits are as at first */

/* ---- stream.c ---- */

#define PRIORITY_GREATEST (-5)
#define STREAM_NON_BLOCKING 1u /* flag of a stream */
int device_sync(void);
/* The calling thread's own default stream: made when it first asks, gone when it ends. */
int stream_of_thread(uint64_t *number);
int stream_create(void **out, unsigned flags, int priority);
int stream_destroy(const void *stream);
struct hints stream_hints(uint64_t stream);
void stream_end(uint64_t context); /* destroys its streams and events */
int event_create(void **out, unsigned flags);
int event_destroy(const void *event);
int event_record(const void *event, const void *stream, unsigned flags);
int stream_wait(const void *stream, const void *event, unsigned flags);
int event_elapsed(float *ms, const void *start, const void *end);
int stream_host_function(const void *stream, CUhostFn function, void *data);
int stream_callback(const void *stream, cudaStreamCallback_t callback, void *data, unsigned flags);
/* A thread of ours, which takes none of the program's signals. */
int start_thread(void *(*function)(void *));
/* Pageable memory is about to be read as the stream finds it: host functions that are still to run
 * may write it. Kernels cannot, and copies to it have waited. */
int stream_before_reading(uint64_t stream);

/* ---- capture.c ---- */

extern _Atomic uint32_t captures_active;
/* Is the stream captured, or would its use reach into a capture (the legacy stream)? Then what is
 * asked of it goes to capture_add, capture_refuse or one of the two for events. */
bool capture_has(uint64_t stream);
static inline bool capturing(uint64_t stream)
{
	return atomic_load_explicit(&captures_active, memory_order_relaxed) && capture_has(stream);
}
struct node;
/* The node becomes what the stream did last; it is taken, whatever this returns. */
int capture_add(uint64_t stream, struct node *);
/* What was asked of a captured stream cannot be: the capture is of no use any more. */
int capture_refuse(uint64_t stream);
int capture_refuse_memory(uint64_t stream); /* because it would allocate or free */
/* The same for unsafe calls that are not of one stream: only for captures that forbid them. */
int capture_forbids(void);
/* The same for what waits for the whole device: no capture allows it. */
int capture_forbids_device(void);
/* True: a capture is in it. The event stands for nodes, or the stream waits for them, or *error. */
bool capture_record(struct handle *event, uint64_t stream, int *error);
bool capture_wait(uint64_t stream, const struct handle *event, int *error);
void capture_stream_ends(uint64_t stream); /* it is destroyed */
/* stream_number and event_number for calls that ask how far they are: not while captured. */
int stream_idle_number(const void *stream, uint64_t *number);
int event_idle_number(const void *event, uint64_t *number);

/* ---- device.c ---- */

#define DEVICES_MAX 64 /* that have a context, a pool, a handle */

extern _Thread_local int current_device;
int device_count(int *count);
int device_attribute(int *value, int attribute, int device);
int device_properties(cudaDeviceProp *, int device);
int device_check(int ordinal);
bool device_is_gpu(void); /* and no software */
int function_attribute(int *value, int attribute, struct function *);
int function_set_attribute(struct function *, int attribute, int value);
int occupancy_blocks(int *blocks, struct function *, int block_size, size_t dynamic_shared);
int occupancy_shared(size_t *bytes, struct function *, int blocks, int block_size);
int occupancy_block_size(int *grid, int *block, struct function *, CUoccupancyB2DSize shared_of,
			 size_t dynamic_shared, int limit);

/* ---- context.c ---- */

bool context_current(void);              /* has the thread one? */
uint64_t context_owner(void);            /* the number of the one that calls now work in */
void *context_numbered(uint64_t number); /* the current one if there is none of that number */
int context_set_device(int device);      /* as the runtime does: its primary one is current */

/* What entries of the API ask. The usual answer takes one look at what the thread knows. */
extern _Thread_local const _Atomic bool *context_lives; /* the current one, if there is one */
extern _Atomic bool context_driver;                     /* cuInit was called */
int context_missing(void);
int context_make_current(void);
int context_begin_driver(void); /* cuInit, as the runtime calls it; the body knows why not */
static inline bool context_lacks(void)
{
	return __builtin_expect(!atomic_load_explicit(context_lives, memory_order_relaxed), false);
}
static inline int context_needs_driver(void)
{
	return atomic_load_explicit(&context_driver, memory_order_relaxed) ? CUDA_OK
									   : NOT_INITIALIZED;
}
static inline int context_needed(void) { return context_lacks() ? context_missing() : CUDA_OK; }
/* A stream that was made in a context works in that one. */
static inline int context_needed_for(const void *stream)
{
	bool of_thread = (uint64_t)stream <= RF_STREAM_PER_THREAD;
	return context_lacks() && of_thread ? context_missing() : CUDA_OK;
}
/* The runtime makes the primary one current, where none is. */
static inline int context_of_runtime(void)
{
	return context_lacks() ? context_make_current() : CUDA_OK;
}

/* ---- lookup.c and the generated tables ---- */

struct api_entry {
	const char *name;
	void *function;
	uint32_t since;  /* first version (13000, …) that means this one; 0: all */
	uint8_t refused; /* 1: a stub that only says that it is not covered */
};
extern RF_API const struct api_entry api_cudart[], api_cuda[], api_nccl[], api_nvml[], api_cublas[],
	api_cublasLt[];
extern const size_t api_cudart_count, api_cuda_count, api_nccl_count, api_nvml_count,
	api_cublas_count, api_cublasLt_count;
const struct api_entry *api_find(const char *name);
/* libc's function of a name that this library has too. */
void *libc_function(const char *name);

#endif
