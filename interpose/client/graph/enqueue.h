/* enqueue.h: graphs and captures for the API's functions, and work that goes into a stream: it
 * becomes a node if the stream is captured, and is issued otherwise.
 */
#ifndef RANKFOLD_ENQUEUE_H
#define RANKFOLD_ENQUEUE_H

#include "issue.h"

/* ---- capture.c ---- */

extern _Atomic uint32_t captures_active;
/* True if the stream is captured, or if its use would affect a capture (the legacy stream). Then
 * the caller passes the request to capture_add, capture_refuse or one of the two functions for
 * events. */
bool capture_has(uint64_t stream);
static inline bool capturing(uint64_t stream)
{
	return atomic_load_explicit(&captures_active, memory_order_relaxed) && capture_has(stream);
}
/* A captured stream cannot do what was requested: invalidates the capture. */
int capture_refuse(uint64_t stream);
int capture_refuse_free(uint64_t stream); /* of memory that no graph has allocated */
/* The same for unsafe calls that concern no single stream: only for captures that forbid them. */
int capture_forbids(void);
/* The same for calls that wait for the whole device: every capture forbids them. */
int capture_forbids_device(void);
/* stream_number and event_number for calls that query progress: fail while it is captured. */
int stream_idle_number(const void *stream, uint64_t *number);
int event_idle_number(const void *event, uint64_t *number);
int capture_begin(const void *stream, int mode);
int capture_begin_to(const void *stream, void *graph, void *const *dependencies, size_t count,
		     int mode);
int capture_end(const void *stream, void **graph);
int capture_info(const void *stream, int *status, unsigned long long *id, void **graph,
		 const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count);
int capture_depend(const void *stream, void *const *dependencies, size_t count, unsigned flags);
int exchange_capture_mode(int *mode);

/* ---- graph_memory.c ---- */

/* On a captured stream: add nodes. */
int capture_allocate(uint64_t stream, uint64_t bytes, void **out);
int capture_free(uint64_t stream, const void *address);
/* True: the address is memory of a graph, which the program has freed now: in the stream, or for 0
 * after all earlier work. */
bool graph_memory_free(const void *address, uint64_t stream, int *error);
int graph_memory_get(int device, int attribute, void *value);
int graph_memory_set(int device, int attribute, const void *value);

/* ---- enqueue.c: work for captured and other streams ---- */

int memory_copy(const struct copy *);
int memory_copy_1d(void *dst, const void *src, uint64_t bytes, int kind, const void *stream,
		   bool async);
/* All slices. A copy to pageable memory waits by itself; a synchronous copy waits for its last
 * piece. */
int copy_slices(const struct copy *, const struct slices *);
int memory_fill(const void *dst, uint64_t pitch, uint32_t value, uint32_t element, uint64_t width,
		uint64_t height, const void *stream);
int enqueue_launch(const struct launch *);
int gemm_post(const struct rf_gemm_call *, const void *stream);
int event_record(const void *event, const void *stream, unsigned flags);
int stream_wait(const void *stream, const void *event, unsigned flags);
int stream_host_function(const void *stream, CUhostFn function, void *data);
int stream_callback(const void *stream, cudaStreamCallback_t callback, void *data, unsigned flags);
/* Wait for a stream, an event or the device: fail while it is captured. */
int stream_sync(const void *stream);
int stream_query(const void *stream);
int event_sync(const void *event);
int event_query(const void *event);
int device_sync(void);

/* ---- node.c ---- */

enum node_kind { /* numbers of CUgraphNodeType */
		 NODE_KERNEL = 0,
		 NODE_COPY = 1,
		 NODE_FILL = 2,
		 NODE_HOST = 3,
		 NODE_CHILD = 4,
		 NODE_EMPTY = 5,
		 NODE_WAIT = 6,
		 NODE_RECORD = 7,
		 NODE_KINDS = 8, /* that the program can add; the next two come from captures */
		 NODE_ALLOC = 10,
		 NODE_FREE = 11,
		 NODE_KINDS_KNOWN =
			 14, /* semaphores, memory, operations on memory, conditions: refused */
		 NODE_GEMM = 1000, /* a kernel, for the program */
};
int graph_event_set(const void *node, enum node_kind, const void *event);

/* ---- node_attributes.c ---- */

int node_attribute_get(const void *node, int id, launch_attribute_value *);
int node_attribute_set(const void *node, int id, const launch_attribute_value *);
int node_attributes_copy(const void *to, const void *from);

/* ---- graph_build.c ---- */

int graph_add_node(void **out, void *graph, const CUgraphNode *needs, const CUgraphEdgeData *data,
		   size_t count, const CUgraphNodeParams *);
int graph_edges(void *graph, const CUgraphNode *from, const CUgraphNode *to,
		const CUgraphEdgeData *data, size_t count);
int graph_cut(void *graph, const CUgraphNode *from, const CUgraphNode *to,
	      const CUgraphEdgeData *data, size_t count);

/* ---- graph_exec.c ---- */

int graph_instantiate(void **out, const void *graph, unsigned long long flags, void **failed);
int graph_instantiate_with(void **out, const void *graph, CUDA_GRAPH_INSTANTIATE_PARAMS *);
int graph_exec_event_set(const void *exec, const void *node, enum node_kind, const void *event);
int graph_update(void *exec, const void *graph, CUgraphExecUpdateResultInfo *info);
int graph_update_plain(void *exec, const void *graph, void **failed, int *result);

/* ---- graph_query.c ---- */

int node_dependencies(const void *node, CUgraphNode *out, CUgraphEdgeData *data, size_t *count);
int node_dependents(const void *node, CUgraphNode *out, CUgraphEdgeData *data, size_t *count);
int graph_edges_get(const void *graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data,
		    size_t *count);
int node_kernel(const void *node, CUDA_KERNEL_NODE_PARAMS *, size_t bytes);
int graph_event_get(const void *node, enum node_kind, void **event);

/* ---- graph_runtime.c ---- */

int graph_add_kernel(void **out, void *graph, const CUgraphNode *needs, size_t count,
		     const cudaKernelNodeParams *);
/* The setters change a node of the graph itself if exec is NULL. */
int graph_set_kernel(void *exec, void *node, const cudaKernelNodeParams *);
int graph_get_kernel(void *node, cudaKernelNodeParams *);
int graph_add_copy(void **out, void *graph, const CUgraphNode *needs, size_t count,
		   const cudaMemcpy3DParms *);
int graph_set_copy(void *exec, void *node, const cudaMemcpy3DParms *);
int graph_get_copy(void *node, cudaMemcpy3DParms *);
int graph_add_copy_1d(void **out, void *graph, const CUgraphNode *needs, size_t count, void *dst,
		      const void *src, size_t bytes, int kind);
int graph_set_copy_1d(void *exec, void *node, void *dst, const void *src, size_t bytes, int kind);
int graph_add_to_symbol(void **out, void *graph, const CUgraphNode *needs, size_t count,
			const void *symbol, const void *src, size_t bytes, size_t offset, int kind);
int graph_add_from_symbol(void **out, void *graph, const CUgraphNode *needs, size_t count,
			  void *dst, const void *symbol, size_t bytes, size_t offset, int kind);
int graph_set_to_symbol(void *exec, void *node, const void *symbol, const void *src, size_t bytes,
			size_t offset, int kind);
int graph_set_from_symbol(void *exec, void *node, void *dst, const void *symbol, size_t bytes,
			  size_t offset, int kind);
int graph_add_any(void **out, void *graph, const CUgraphNode *needs, const cudaGraphEdgeData *,
		  size_t count, const cudaGraphNodeParams *);
int graph_set_any(void *exec, void *node, const cudaGraphNodeParams *);

#endif
