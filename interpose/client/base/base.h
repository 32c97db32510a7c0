/* base.h: the client's lowest layer, which all of it uses.
 *
 * The client has layers, one folder each. A file includes the headers of its own and of lower
 * layers only (build.mk). A higher layer passes to a lower one what that needs of it.
 *
 *   base/   channel to the server, handles, the device, contexts, locks, messages for people
 *   issue/  memory, streams, modules: what is sent at once. Knows nothing of captures
 *   graph/  graphs and captures; enqueue.c decides whether work becomes a node or is issued
 *   api/    the bodies of the API's functions, by topic; what is one expression is generated
 *           (interpose/generate.py)
 *
 * Calls between files of one layer have no cycles (tests/interpose/test_floors.py).
 *
 * Rules for all layers:
 *  - Functions return the API's numbers: 0, or a CUresult/cudaError_t (they agree where both
 *    exist), or an ncclResult_t in nccl*.c, or an nvmlReturn_t in nvml.c, or a
 *    cublasStatus_t in cublas*.c and blas*.c, or a cudnnStatus_t in dnn*.c.
 *  - Nothing here ends the process, writes to stdout (except print.c, for the output of the
 *    program's own kernels), or changes errno. inside.h makes such calls fail to compile.
 *  - locks.h lists all locks, what they protect, and their order.
 *  - Only channel_call, channel_finish, bulk_claim and a full ring block, as re-checked futex
 *    waits without a deadline: a parked rank waits there.
 */
#ifndef RANKFOLD_BASE_H
#define RANKFOLD_BASE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi.h"
#include "channel.h"
#include "locks.h"

#define RF_API __attribute__((visibility("default")))
/* For functions whose entry first checks the context: in the client this is the name of the body,
 * elsewhere that of the entry. */
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
	INVALID_CLUSTER_SIZE = 912,
	UNKNOWN_ERROR = 999,
};

/* ---- log.c ---- */

/* Writes one line "rankfold: …" to stderr, in one piece. */
void log_message(const char *format, ...) __attribute__((format(__printf__, 1, 2)));
/* The same, once per place of use. */
#define LOG_ONCE(...)                                                                              \
	do {                                                                                       \
		static _Atomic bool done;                                                          \
		if (!atomic_exchange(&done, true))                                                 \
			log_message(__VA_ARGS__);                                                  \
	} while (0)
/* For a function that is not covered: reports that once, and returns `error`. */
int refuse_call(_Atomic bool *done, const char *function, const char *why, int error);

/* ---- error_text.c ---- */

struct error_text {
	int error;
	const char *runtime, *driver, *text; /* a name is NULL in an API that does not have it */
};
const struct error_text *error_text(int error); /* NULL: no error of either API */
const char *error_name(int error);              /* the runtime's name, for people */

/* ---- thread.c ---- */

/* Starts a thread of the client, with all signals blocked. */
int start_thread(void *(*function)(void *));

/* ---- connect.c ---- */

extern struct rf_header *channel_header; /* NULL until the channel is open */
extern int channel_spins;                /* checks of a reply before a thread yields */
bool channel_forked(void);               /* true in a child whose parent has opened the channel */

/* Returns the launcher's description of the virtual device. Does not claim the channel. */
int channel_welcome(const struct rf_welcome **out);
/* Called at the start of every call that needs the device. The first call opens the channel.
 * Returns the context's sticky error if there is one. */
int channel_enter(void);
/* Returns the error that a fault on the device left; the first call also reports the fault. */
int sticky_error(void);
/* Copies the description of the device's or a communicator's error. */
void channel_fault(char text[RF_FAULT_TEXT_BYTES]);
/* True in a host function of the program, where CUDA's functions must not be called: they fail. */
extern _Thread_local bool in_host_function;
/* channel_enter without the sticky error, for calls that must work in spite of it (frees). */
int channel_open(void);

/* ---- channel.c ---- */

/* Puts one record into the ring: `bytes` of *record, then `tail_bytes` of tail. Sets bytes, opcode,
 * slot and seq. Blocks only while the ring is full. */
void channel_post(struct rf_record *record, enum rf_opcode opcode, size_t bytes, const void *tail,
		  size_t tail_bytes);
/* The same for work in a stream, for whose completion queries ask. Returns the record's seq. */
uint64_t channel_post_work(struct rf_record *record, enum rf_opcode opcode, size_t bytes,
			   const void *tail, size_t tail_bytes, uint64_t stream);
/* The same for a caller that holds a lock: returns 0, and puts nothing, if it would have to
 * wait. */
uint64_t channel_try_post(struct rf_record *record, enum rf_opcode opcode, size_t bytes);
/* Posts the release of a handle that no later record names. Never blocks: if the ring is full or in
 * use, the record is put before the next one of any thread. */
void channel_post_later(enum rf_opcode opcode, uint64_t handle);
void channel_wait_space(size_t bytes); /* until another try may succeed */
/* Posts a record and waits for the reply. Returns its error; `reply_bytes` of its data go to
 * reply. */
int channel_call(struct rf_record *record, enum rf_opcode opcode, size_t bytes, const void *tail,
		 size_t tail_bytes, void *reply, size_t reply_bytes);
/* channel_call in two steps, for several calls in flight. channel_begin returns the slot. */
uint32_t channel_begin(struct rf_record *record, enum rf_opcode opcode, size_t bytes,
		       const void *tail, size_t tail_bytes);
/* The same, or SLOT_NONE without posting anything if *cancelled is true. The record comes before
 * every one that is posted after *cancelled became true. */
#define SLOT_NONE UINT32_MAX
uint32_t channel_begin_unless(const _Atomic bool *cancelled, struct rf_record *record,
			      enum rf_opcode opcode, size_t bytes, const void *tail,
			      size_t tail_bytes);
int channel_finish(uint32_t slot, void *reply, size_t reply_bytes);
bool channel_answered(uint32_t slot); /* then channel_finish does not block */
/* Waits for the reply for at most so long. Returns whether it has come. */
bool channel_wait(uint32_t slot, uint64_t ns);
/* Requests that the server ends the communicator's operations, and waits until it has. The request
 * bypasses the ring, which these operations may block. */
int channel_abort_comm(uint64_t comm);
/* Query a stream or an event, or the time between two events, likewise. */
int channel_query(uint64_t handle, struct rf_query_reply *);
int channel_query_elapsed(const struct rf_events *, struct rf_query_reply *);
/* Wakes the server if it sleeps: for changes of the header without a record. */
void channel_wake(void);
/* Posts one outermost group of collectives: consecutive in the ring, group_left counting down.
 * Those for which `cancelled` is true are removed from the list. As above, the others come before
 * every record that is posted after it became true. */
void channel_post_group(struct rf_collective *records, uint32_t count,
			bool (*cancelled)(const struct rf_collective *));

/* Claims a bulk slot; BULK_NONE if none is free and `wait` is false. A thread must not wait for a
 * slot while it holds one that only it can free. */
#define BULK_NONE UINT32_MAX
uint32_t bulk_claim(bool wait);
uint8_t *bulk_data(uint32_t slot);
void bulk_release(uint32_t slot);

/* ---- handle.c ---- */

/* The attributes of streams and kernel nodes: stored and returned, without effect. */
struct hints {
	access_policy_window window;
	int sync_policy, priority, domain, cluster_policy, carveout, nvlink;
	unsigned cluster[3], preferred_cluster[3];
	unsigned char domain_map[2];
};

enum handle_kind {
	HANDLE_STREAM = 1,
	HANDLE_EVENT,
	HANDLE_BLAS,
	HANDLE_BLASLT,
	HANDLE_DNN,
	HANDLE_SOLVER,
	HANDLE_FFT
};
enum blas_mode { BLAS_POINTERS, BLAS_MATH, BLAS_ATOMICS, BLAS_SM_COUNT, BLAS_MODES };
struct handle {
	uint64_t number;
	enum handle_kind kind;
	uint32_t flags;
	_Atomic bool captured; /* event: last recorded in a captured stream */
	_Atomic uint64_t
		last;       /* seq of an event's last record, or of a stream's last work; 0: none */
	uint64_t context;   /* in which it was created */
	struct hints hints; /* HANDLE_STREAM */
	void *stream;       /* of the work of a library's handle */
	int modes[BLAS_MODES];
	void *plan;                          /* HANDLE_FFT */
	uint64_t workspace, workspace_bytes; /* HANDLE_BLAS: the program's; 0: none */
};
uint64_t handle_number(void); /* a new number, never reused */
struct handle *handle_new(enum handle_kind kind, uint64_t context);
struct handle *handle_get(enum handle_kind kind, const void *value); /* NULL: no live one */
void handle_drop(struct handle *);
/* `last` of a stream, also of the two that have no handle. */
_Atomic uint64_t *stream_last(uint64_t stream);
/* Iterates over the live handles, starting with *place = 0; NULL at the end. */
struct handle *handle_next(uint64_t *place);

/* ---- device.c ---- */

#define DEVICES_MAX 256 /* of a job; device number, context, pool and handle: one per rank */
/* Eight bits: the 256th device is on bus 0. */
static inline int pci_bus_of(int number) { return (number + 1) & 0xff; }
static inline int number_on_pci_bus(unsigned bus) { return bus ? (int)bus - 1 : DEVICES_MAX - 1; }
#define DEVICE_SHARED_RESERVED 1024u /* per block */

extern _Thread_local int current_device;
/* For the devices that this process sees (visible.c), by ordinal. */
int device_count(int *count); /* NO_DEVICE: it sees none */
int device_attribute(int *value, int attribute, int device);
int device_properties(cudaDeviceProp *, int device);
int device_check(int ordinal);
/* For all devices of the job, by number. */
int device_total(void); /* -1: unknown, the launcher did not answer */
bool device_exists(int number);
int device_number_attribute(int *value, int attribute, int number);
void device_number_properties(cudaDeviceProp *, int number); /* the number must exist */
bool device_is_gpu(void);                                    /* false: the software GPU */

/* ---- visible.c ---- */

#define DEVICE_UUID_TEXT 41 /* "GPU-", 32 digits, 4 dashes, terminating zero */
/* For the job's device with that number. */
void device_uuid(unsigned char uuid[16], int number);
void device_uuid_text(char text[DEVICE_UUID_TEXT], int number);

/* How many of `total` devices this process sees; an ordinal's device number, and a device's
 * ordinal, or -1 if this process does not see that device. */
int visible_count(int total);
int visible_number(int ordinal);
int visible_ordinal(int number, int total);

/* ---- context.c ---- */

bool context_current(void);              /* true if the thread has a current context */
uint64_t context_owner(void);            /* the number of the context to which new objects belong */
void *context_numbered(uint64_t number); /* the current context if none has that number */
int context_set_device(int device);      /* makes its primary context current */

/* For calls that use the thread's current device. The first such call makes it the device of the
 * process; any other device is refused later. Calls that name a stream, an event or an address do
 * not need it. Enters the channel. */
int context_use_device(void);
/* The device that this process uses, as its ordinal and as its number in the job; -1 before the
 * first such call. */
int context_used_ordinal(void);
int context_used_number(void);

/* Checks of the API's entries. Usually one read of a thread-local pointer's target. */
extern _Thread_local const _Atomic bool *context_lives; /* of the current context */
extern _Atomic bool context_driver;                     /* cuInit was called */
int context_missing(void);
int context_make_current(void);
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
/* A stream that was created in a context works in that context. */
static inline int context_needed_for(const void *stream)
{
	bool of_thread = (uint64_t)stream <= RF_STREAM_PER_THREAD;
	return context_lacks() && of_thread ? context_missing() : CUDA_OK;
}
/* The runtime makes the primary context current if there is none. */
static inline int context_of_runtime(void)
{
	return context_lacks() ? context_make_current() : CUDA_OK;
}

/* ---- elf.c ---- */

/* Returns libc's own function of a name that this library defines too. */
void *libc_function(const char *name);
/* The same, looked up once; a second thread finds the same. */
void *libc_cached(void *_Atomic *cached, const char *name);

#endif
