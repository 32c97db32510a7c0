/* issue.h: everything that is sent to the server at once: memory, copies, streams, modules,
 * launches. Nothing here checks whether a stream is captured: for a captured stream, the functions
 * named issue_… are called only when the graph is launched.
 */
#ifndef RANKFOLD_ISSUE_H
#define RANKFOLD_ISSUE_H

#include "base.h"

/* ---- arena.c: pinned memory ---- */

struct allocation {
	uint64_t base, bytes; /* as requested by the program */
	uint64_t owner;       /* 0: none */
	unsigned flags;       /* of pinned memory */
	bool mapped;          /* by the program (virtual_memory.c) */
};
#define PINNED_MANAGED 0x80000000u   /* a flag in addition to those of cudaHostAlloc */
bool pinned_is(const void *address); /* true if it is in the arena */
bool pinned_find(const void *address, struct allocation *);
int pinned_alloc(uint64_t bytes, uint64_t owner, unsigned flags, void **address);
int pinned_release(void *address); /* without waiting for the device */
void pinned_end(uint64_t owner);
/* After these three, without a lock: the device reaches what was allocated, and the pages of what
 * was released are given back. Waits for the server. */
void pinned_announce(void);

/* ---- print.c ---- */

int print_ring(uint64_t *address); /* where kernels write their output */
void print_kernels_output(void);   /* what is complete by now, to stdout */

/* ---- pool.c: sizes in bytes ---- */

/* Counts memory that is about to be allocated; pool NULL is the device's current pool. */
int pool_book(const void *pool, uint64_t bytes, uint64_t *number);
void pool_took(uint64_t number);                    /* the allocation succeeded */
void pool_got_back(uint64_t owner, uint64_t bytes); /* freed; ignored if the owner is no pool */
void pool_synchronised(void);                       /* the program has synchronised */
/* Bytes that pools hold without allocations, out of `capacity` bytes that are not allocated. */
uint64_t pool_reserved(uint64_t capacity);
int pool_create(void **out, const cudaMemPoolProps *);
int pool_destroy(const void *pool);
int pool_default(void **pool, int device);
int pool_current(void **pool, int device);
int pool_make_current(int device, const void *pool);
int pool_default_at(void **pool, const cudaMemLocation *, int type);
int pool_current_at(void **pool, const cudaMemLocation *, int type);
int pool_make_current_at(const cudaMemLocation *, int type, const void *pool);
int pool_set(const void *pool, int attribute, const void *value);
int pool_trim(const void *pool, size_t keep);
int pool_set_access(const void *pool, const cudaMemAccessDesc *list, size_t count);
int pool_get_access(int *flags, const void *pool, const cudaMemLocation *);
int pool_get(const void *pool, int attribute, void *value); /* after releases by synchronisations */

/* ---- sync.c: the program's own waits ---- */

int wait_for_device(void);
int wait_for_stream(uint64_t stream);
int wait_for_event(uint64_t event);

/* ---- hints.c ---- */

enum hint_of { OF_STREAM = 1, OF_NODE = 2 };
extern const struct hints usual_hints;
int nearest_priority(int priority);
int hint_get(const struct hints *, int of, int id, launch_attribute_value *);
int hint_set(struct hints *, int of, int id, const launch_attribute_value *);
void hints_copy(struct hints *to, const struct hints *from, int of);
struct launch;
/* Checks the attributes, and stores them in the launch. */
int launch_attributes(const launch_attribute *attributes, unsigned count, struct launch *);

/* ---- stream.c ---- */

#define PRIORITY_GREATEST (-5)
extern _Thread_local uint64_t default_stream;
/* The handles of API functions: a stream (NULL is the thread's default stream) or an event. */
int stream_number(const void *stream, uint64_t *number);
int event_number(const void *event, uint64_t *number);
int stream_create(void **out, unsigned flags, int priority);
int stream_destroy(const void *stream);
void stream_on_end(void (*callback)(uint64_t stream)); /* callback: called before a stream ends */
struct hints stream_hints(uint64_t stream);
void stream_end(uint64_t context); /* destroys the context's streams and events */
int event_create(void **out, unsigned flags);
int event_destroy(const void *event);
int event_elapsed(float *ms, const void *start, const void *end);
void issue_record(uint64_t event, uint64_t stream);
int issue_query(uint64_t event); /* NOT_READY: its last record is not complete */
int issue_query_stream(uint64_t stream);
void issue_wait(uint64_t stream, uint64_t event);
int stream_priority(const void *stream, int *priority);
int stream_attribute_get(const void *stream, int id, launch_attribute_value *);
int stream_attribute_set(const void *stream, int id, const launch_attribute_value *);
int stream_attributes_copy(const void *to, const void *from);

/* ---- host_function.c ---- */

int issue_host_call(const void *stream, CUhostFn function, void *data);
int issue_callback(const void *stream, cudaStreamCallback_t callback, void *data);
/* Called before the client reads pageable memory in stream order: waits for host functions that are
 * still to run, because they may write it. Kernels cannot, and copies to it have waited. */
int stream_before_reading(uint64_t stream);

/* ---- registered.c ---- */

int host_register(void *address, uint64_t bytes, unsigned flags);
int host_unregister(void *address);
/* The device's address of [address, +bytes), if that is registered memory in the arena; otherwise
 * the address itself. */
void *registered_reached(const void *address, uint64_t bytes);
bool registered_is(const void *address);

/* ---- memory.c ---- */

/* The kind of memory at an address, which decides what may be done with it. */
enum where { AT_PAGEABLE, AT_PINNED, AT_DEVICE };
static inline enum where memory_where(const void *address)
{
	if ((uint64_t)address - RF_DEV_BASE < RF_HEAP_BYTES)
		return AT_DEVICE;
	return pinned_is(address) ? AT_PINNED : AT_PAGEABLE;
}
bool allocation_find(const void *address, struct allocation *); /* the live one that contains it */
/* True if [address, +bytes) is in one live allocation, or in adjacent ones that were mapped. */
bool memory_on_device(const void *address, uint64_t bytes);
/* The same for accesses by kernels: an allocation extends to a multiple of RF_ALLOC_ALIGN bytes, as
 * CUDA's do. Programs reduce sizes that are rounded up. */
bool memory_reachable(const void *address, uint64_t bytes);
/* For the client itself, at any time; `which` distinguishes several of one kind. */
enum memory_use { MEMORY_VARIABLES = 1, MEMORY_KERNEL_HEAP };
int allocation_new(enum memory_use, uint64_t which, uint64_t bytes, uint64_t *address);
/* For the program. The owner is a context, with which the allocation ends, or a pool, which is
 * notified of its end; 0: none. */
int memory_alloc_for(uint64_t owner, uint64_t bytes, uint64_t *address);
int memory_end(uint64_t owner); /* frees the owner's allocations */
int allocation_free(const void *address);
/* The program releases it at this place in the stream. */
int memory_free_in(const void *address, uint64_t stream);
int memory_info(uint64_t *free_bytes, uint64_t *total_bytes);

/* Reserved addresses, and memory for them; bytes are of whole chunks. See heap.h. */
int addresses_reserve(uint64_t bytes, uint64_t *addr);
bool addresses_free(uint64_t addr);
bool addresses_find(uint64_t addr, uint64_t *first, uint64_t *bytes);
int memory_promise(uint64_t bytes);
void memory_unpromise(uint64_t bytes);
int memory_map(uint64_t addr, uint64_t bytes);
int memory_unmap(uint64_t addr, bool keep); /* keep: it is promised again */

/* ---- virtual_memory.c: memory that a program maps itself; sizes in bytes ---- */

int virtual_granularity(size_t *out, const CUmemAllocationProp *);
int virtual_reserve(uint64_t *addr, uint64_t bytes, uint64_t alignment);
int virtual_free(uint64_t addr, uint64_t bytes);
int virtual_create(CUmemGenericAllocationHandle *out, uint64_t bytes, const CUmemAllocationProp *);
int virtual_release(CUmemGenericAllocationHandle);
int virtual_map(uint64_t addr, uint64_t bytes, uint64_t offset, CUmemGenericAllocationHandle);
int virtual_unmap(uint64_t addr, uint64_t bytes);
int virtual_set_access(uint64_t addr, uint64_t bytes, const cudaMemAccessDesc *, size_t count);
int virtual_get_access(unsigned long long *flags, const cudaMemLocation *, uint64_t addr);
int virtual_retain(CUmemGenericAllocationHandle *out, const void *address);
int virtual_properties(CUmemAllocationProp *out, CUmemGenericAllocationHandle);

/* ---- pinned.c: host memory that programs free; sizes in bytes ---- */

int pinned_free(void *address);
bool managed_is(const void *address);
int managed_place(uint64_t bytes, uint64_t owner, void **out);
int managed_free(void *address);
/* Checks and normalises a location: the rank's own host, or a device. Ids of hosts are ignored. */
int managed_location(cudaMemLocation *);
int managed_prefetched(const void *address, size_t bytes, cudaMemLocation);
int managed_advise(const void *address, size_t bytes, int advice, cudaMemLocation);
/* `data` is one int, or several for attributes that have a list. */
int managed_attribute(void *data, size_t bytes, int which, const void *address, size_t count);
int managed_attributes(void **data, const size_t *bytes, const int *which, size_t attributes,
		       const void *address, size_t count);
cudaMemLocation location_of_device(int device); /* -1: the host */

/* ---- copy.c ---- */

struct copy {
	void *dst;
	const void *src;
	uint64_t dst_pitch, src_pitch, width, height;
	int kind; /* enum cuda_memcpy_kind; BY_ADDRESS: determined by the addresses */
	uint64_t stream;
	bool async;
};
/* Checks a copy, and brings it into the form in which it is kept or issued. If nothing is to be
 * done, its height becomes 0. */
int copy_check(struct copy *);
int issue_copy(const struct copy *);
int fill_check(struct rf_fill *);
void issue_fill(struct rf_fill *);
/* Copies of the client itself, between host memory and the device's on this stream, also during
 * captures: complete when they return. */
int memory_get(void *to, uint64_t from, uint64_t bytes, uint64_t stream);
int memory_put(uint64_t to, const void *from, uint64_t bytes, uint64_t stream);

/* ---- describe.c: copies as the structures of both APIs describe them ---- */

struct slices {
	uint64_t count, dst_bytes, src_bytes;
};
int no_arrays(void); /* reports that arrays are not supported */
int copy_of_description(const CUDA_MEMCPY3D *, struct copy *, struct slices *);
int copy_of_runtime(const cudaMemcpy3DParms *, struct copy *, struct slices *);
CUDA_MEMCPY3D description_of_copy(const struct copy *);

/* ---- kernel_heap.c ---- */

int kernel_heap_write_address(uint64_t address); /* writes the heap's address there */
void kernel_heap_reset(void);                    /* frees the heap and resets the limits */
int limit_get(size_t *value, int limit);
int limit_set(int limit, size_t value);

/* ---- set_up.c ---- */

/* Fills in the module's struct rf_setup. *heap: where its kernels read their heap's address; 0:
 * they allocate nothing. */
int module_set_up(uint64_t globals, uint64_t address, uint64_t bytes, uint64_t *heap);

/* ---- module.c ---- */

struct module;
struct function {
	uint64_t number; /* 0 until the server knows it */
	struct module *module;
	const char *name;
	const void *host;      /* the program's stub; NULL for the driver API */
	struct function *next; /* of its module */
	struct rf_function_reply info;
	struct rf_param *params;
	_Atomic bool ready;
	bool explained;         /* the device's reason for refusing it was reported */
	int max_dynamic_shared; /* raised by the program; -1: the device's default */
	int carveout;           /* preference in percent; -1: none */
	bool large_clusters;    /* of more than eight blocks: allowed by the program */
};
bool module_is(const void *value);
bool function_is(const void *value);
int module_load(const void *image, struct module **out);
/* A library: it keeps a copy of the image, and a reset leaves it as a new one. */
int module_load_library(const void *image, struct module **out);
struct module *module_register(const void *image); /* the program's own; NULL: it cannot be */
void module_is_optional(struct module *); /* the reason why it cannot be loaded is not reported */
int module_drop(struct module *);
void module_end(uint64_t context); /* unloads the context's modules */
void module_reset(void); /* the program's own, and libraries, are as before their first use */
uint64_t module_number(struct module *); /* a different one after each reset; 0: not loaded */
int module_global(struct module *, const char *name, uint64_t *address, uint64_t *bytes);
/* The same; NOT_FOUND also for a variable that the host cannot access. */
int module_managed(struct module *, const char *name, uint64_t *address, uint64_t *bytes);

/* ---- function.c ---- */

struct function *function_register(struct module *, const char *name, const void *host);
int module_function(struct module *, const char *name, struct function **out);
int module_function_count(struct module *, unsigned *count);
int module_enumerate(struct module *, void **functions, unsigned capacity); /* at most `capacity` */
int function_ready(struct function *);
int function_can_run(struct function *); /* ready, and with a heap if it may allocate */
struct module *module_of(const struct function *);

/* ---- managed_variables.c ---- */

void managed_variable_add(struct module *, void **host, const char *name);
void managed_variables_fill(const struct module *); /* the program's pointers to them */
/* If `host` is one of the program's managed variables, returns its device address and size. */
bool managed_variable(const void *host, uint64_t *address, uint64_t *bytes);

/* ---- symbol.c ---- */

void symbol_add(const void *host, struct module *, const char *name, struct function *);
void symbols_end(const struct module *);
struct function *function_of_host(const void *host); /* NULL: not registered */
int symbol_address(const void *host_variable, uint64_t *address, uint64_t *bytes);
/* The address of a part of a variable, for a copy to or from it. */
int symbol_part(const void *symbol, size_t bytes, size_t offset, int kind, bool to, void **at);

/* ---- occupancy.c ---- */

int function_attribute(int *value, int attribute, struct function *);
int function_set_attribute(struct function *, int attribute, int value);
int occupancy_blocks(int *blocks, struct function *, int block_size, size_t dynamic_shared);
int occupancy_shared(size_t *bytes, struct function *, int blocks, int block_size);
int occupancy_block_size(int *grid, int *block, struct function *, CUoccupancyB2DSize shared_of,
			 size_t dynamic_shared, int limit);

/* ---- launch.c ---- */

struct launch {
	struct function *function;
	uint32_t grid[3], block[3];
	uint64_t shared_bytes;
	uint64_t stream;
	void **args;        /* one pointer per parameter, or NULL */
	const void *packed; /* all parameters in the kernel's layout, packed_bytes */
	size_t packed_bytes;
	bool cooperative;
	uint32_t cluster;                   /* as in rf_launch */
	const launch_attribute *attributes; /* for a captured launch */
	unsigned attribute_count;
	const struct hints *hints; /* instead of these and of its stream's hints */
};
/* Packs the dimensions of a cluster, which were checked; one block is no cluster. */
uint32_t cluster_of(const launch_attribute_value *);
/* clusters.c */
int cluster_check(struct function *, const uint32_t grid[3], uint32_t cluster);
int clusters_supported(struct function *);
int occupancy_clusters(int *count, struct function *, const CUlaunchConfig *,
		       enum rf_clusters_kind);
int launch_check(const struct launch *);             /* also makes the kernel ready */
int launch_pack(const struct launch *, uint8_t *to); /* into `to`, in the kernel's layout */
int issue_launch(const struct launch *);             /* after launch_check */
int packed_parameters(void **extra, const void **packed, size_t *bytes);
void issue_gemm(struct rf_gemm_call *);

#endif
