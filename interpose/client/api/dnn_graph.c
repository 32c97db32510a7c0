/* dnn_graph.c: descriptors of cuDNN's backend API, where NVIDIA's own library executes the plans.
 *
 * A descriptor keeps what the program has set (dnn_nodes.c). Engines, their knobs and the size of a
 * workspace come from NVIDIA's library in the proxy (dnn_answers.c): a query sends the descriptor
 * with all that it refers to (library_call.h), and so does the execution of a plan. So a plan is
 * nowhere but here, and moves and is saved with the process. Errors are cudnnStatus_t.
 *
 * A descriptor that refers to another one shares its content, which no longer changes once it is
 * finalized.
 */
#include <stdlib.h>
#include <string.h>

#include "dnn_graph.h"

#define NODES_MAX 512 /* descriptors of one list */

struct graph_descriptor {
	struct node *node;
};

/* Bytes of an element in the program's memory; 0: a kind that is not served. */
static size_t bytes_of_kind(int kind)
{
	switch (kind) {
	case CUDNN_TYPE_BOOLEAN: return 1;
	case CUDNN_TYPE_HANDLE:
	case CUDNN_TYPE_INT64:
	case CUDNN_TYPE_DOUBLE:
	case CUDNN_TYPE_VOID_PTR:
	case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
	case CUDNN_TYPE_CHAR:
	case CUDNN_TYPE_FRACTION: return 0;
	default: return kind > CUDNN_TYPE_HANDLE && kind <= CUDNN_TYPE_OPERATIONGRAPH_MODE ? 4 : 0;
	}
}

static int kind_refused(int kind)
{
	LOG_ONCE("an attribute of cudnnBackendAttributeType_t %d is not supported by rankfold",
		 kind);
	return CUDNN_STATUS_NOT_SUPPORTED;
}

/* ---- a list of descriptors, as it is sent ---- */

struct list {
	const struct node *nodes[NODES_MAX];
	uint32_t node_count, slot_count;
	uint64_t slots[RF_DNN_LIST_SLOTS];
};

static void put_slot(struct list *l, uint64_t value)
{
	if (l->slot_count < RF_DNN_LIST_SLOTS)
		l->slots[l->slot_count] = value;
	l->slot_count++;
}

static uint32_t index_in(const struct list *l, const struct node *n)
{
	uint32_t i = 0;

	while (i < l->node_count && l->nodes[i] != n)
		i++;
	return i;
}

static void put_record(struct list *l, const struct record *r)
{
	put_slot(l,
		 (uint32_t)r->name | (uint64_t)(uint8_t)r->kind << 32 | (uint64_t)r->count << 40);
	for (int64_t i = 0; i < r->count; i++)
		put_slot(l, r->kind == CUDNN_TYPE_BACKEND_DESCRIPTOR ? index_in(l, r->of[i].node)
			    : r->kind == CUDNN_TYPE_HANDLE           ? 0
								     : r->of[i].number);
}

/* Puts what `n` refers to before it. A descriptor refers to finished ones only, so there is no
 * circle. */
static void put_node(struct list *l, const struct node *n)
{
	uint64_t sent = 0;

	if (index_in(l, n) < l->node_count || l->node_count == NODES_MAX)
		return;
	for (const struct record *r = n->records; r; r = r->next) {
		if (r->answer)
			continue;
		sent++;
		for (int64_t i = 0; r->kind == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < r->count; i++)
			put_node(l, r->of[i].node);
	}
	if (l->node_count == NODES_MAX)
		return;
	put_slot(l, (uint32_t)n->type | sent << 32);
	for (const struct record *r = n->records; r; r = r->next)
		if (!r->answer)
			put_record(l, r);
	l->nodes[l->node_count++] = n;
}

/* NULL: a line has said why. The caller frees it. */
static struct list *list_of(const struct node *n)
{
	struct list *l = malloc(sizeof *l);

	if (!l)
		return NULL;
	l->node_count = l->slot_count = 0;
	put_node(l, n);
	if (l->node_count < NODES_MAX && l->slot_count <= RF_DNN_LIST_SLOTS)
		return l;
	LOG_ONCE("a cuDNN graph of more than %u descriptors, or %u numbers, is not supported by "
		 "rankfold",
		 NODES_MAX - 1, RF_DNN_LIST_SLOTS);
	free(l);
	return NULL;
}

/* ---- calls ---- */

#define SIZES_OF(name) {RF_DNN_SIZES(SIZE_##name)}
#define SIZE_query(slots) {{.name = "cudnnQuery " #slots}, slots},
#define SIZE_execute(slots) {{.name = "cudnnExecute " #slots}, slots},
static struct dnn_sized queries[DNN_SIZES] = SIZES_OF(query);
static struct dnn_sized executes[DNN_SIZES] = SIZES_OF(execute);

/* The stream of the handle that a descriptor, or one to which it refers, was given. */
static const void *stream_of_node(const struct node *n)
{
	static const int up[] = {CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
				 CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_ATTR_ENGINE_OPERATION_GRAPH,
				 CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH};
	static const int own[] = {CUDNN_ATTR_EXECUTION_PLAN_HANDLE,
				  CUDNN_ATTR_OPERATIONGRAPH_HANDLE};

	for (const struct node *next; n; n = next) {
		next = NULL;
		for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
			const struct record *r = dnn_record_of(n, own[i]);
			const struct handle *h = r && r->count
							 ? handle_get(HANDLE_DNN,
								      (const void *)r->of[0].number)
							 : NULL;

			if (h)
				return h->stream;
		}
		for (size_t i = 0; i < sizeof up / sizeof *up && !next; i++)
			next = dnn_node_of(n, up[i]);
	}
	return NULL;
}

/* Asks the library about a descriptor. `answer` has RF_DNN_QUERY_SLOTS; its first is the status. */
static int query_library(const struct node *n, uint64_t *answer)
{
	struct list *l = list_of(n);
	uint64_t *sent = l ? malloc((2 + (size_t)l->slot_count) * sizeof *sent) : NULL;
	int status = CUDNN_STATUS_NOT_SUPPORTED;

	if (sent) {
		sent[1] = l->slot_count;
		memcpy(sent + 2, l->slots, l->slot_count * sizeof *sent);
		status = remote_query(&remote_cudnn, dnn_sized_for(queries, 2 + l->slot_count),
				      stream_of_node(n), sent, 2 + (size_t)l->slot_count, answer,
				      RF_DNN_QUERY_SLOTS);
	}
	free(sent);
	free(l);
	return status;
}

/* ---- what the library says ---- */

static int learn(struct node *n)
{
	uint64_t *answer = calloc(RF_DNN_QUERY_SLOTS, sizeof *answer);
	int status = answer ? query_library(n, answer)
			    : CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;

	n->known = !status;
	if (!status && !dnn_read_answer(n, answer))
		status = CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
	free(answer);
	return status;
}

/* ---- attributes ---- */

int graph_set(void *descriptor, int name, int kind, int64_t count, const void *from)
{
	struct node *n = descriptor ? ((struct graph_descriptor *)descriptor)->node : NULL;
	size_t bytes = bytes_of_kind(kind);
	struct record *r;

	if (!n || (count && !from))
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	if (n->final)
		return CUDNN_STATUS_NOT_INITIALIZED;
	if (!bytes)
		return kind_refused(kind);
	if (count < 0 || count > RF_DNN_LIST_SLOTS)
		return CUDNN_STATUS_BAD_PARAM;
	r = dnn_record_new(name, kind, count);
	if (!r)
		return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
	for (int64_t i = 0; i < count; i++)
		memcpy(&r->of[i].number, (const char *)from + (size_t)i * bytes, bytes);
	for (int64_t i = 0; kind == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < count; i++) {
		const struct graph_descriptor *d = (const void *)r->of[i].number;

		if (!d || !d->node || !d->node->final) {
			r->count = i; /* the others are not shared */
			dnn_record_free(r);
			return d ? CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED
				 : CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
		}
		r->of[i].node = dnn_node_share(d->node);
	}
	dnn_record_put(n, r);
	return CUDNN_STATUS_SUCCESS;
}

/* Fills in a descriptor that the program made for a result. */
static int store_node(struct graph_descriptor *to, struct node *n)
{
	if (!to || !to->node || !n)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	if (to->node->type != n->type)
		return CUDNN_STATUS_BAD_PARAM;
	dnn_node_release(to->node);
	to->node = dnn_node_share(n);
	return CUDNN_STATUS_SUCCESS;
}

static bool has_answer(const struct node *n)
{
	return n->type == CUDNN_BACKEND_ENGINE_DESCRIPTOR ||
	       n->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR ||
	       n->type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR;
}

int graph_get(const void *descriptor, int name, int kind, int64_t most, int64_t *count, void *to)
{
	struct node *n = descriptor ? ((const struct graph_descriptor *)descriptor)->node : NULL;
	const struct record *r;
	int64_t ignored;
	int status = CUDNN_STATUS_SUCCESS;

	if (!n)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	if (!n->final)
		return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
	count = count ? count : &ignored;
	r = dnn_record_of(n, name);
	if (!r && has_answer(n) && !n->known) {
		status = learn(n);
		r = dnn_record_of(n, name);
	}
	if (status)
		return status;
	if (!r) {
		LOG_ONCE("cudnnBackendAttributeName_t %d is not supported by rankfold", name);
		return CUDNN_STATUS_NOT_SUPPORTED;
	}
	if (kind != r->kind)
		return CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
	*count = to && most > 0 && most < r->count ? most : r->count;
	for (int64_t i = 0; to && i < most && i < r->count && !status; i++)
		if (kind == CUDNN_TYPE_BACKEND_DESCRIPTOR)
			status = store_node(((struct graph_descriptor **)to)[i], r->of[i].node);
		else
			memcpy((char *)to + (size_t)i * bytes_of_kind(kind), &r->of[i].number,
			       bytes_of_kind(kind));
	return status;
}

/* ---- descriptors ---- */

int graph_create(int type, void **out)
{
	struct graph_descriptor *d;

	if (!out)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	d = calloc(1, sizeof *d);
	if (d)
		d->node = dnn_node_new(type);
	if (!d || !d->node) {
		free(d);
		return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
	}
	*out = d;
	return CUDNN_STATUS_SUCCESS;
}

int graph_destroy(void *descriptor)
{
	struct graph_descriptor *d = descriptor;

	if (d)
		dnn_node_release(d->node);
	free(d);
	return CUDNN_STATUS_SUCCESS;
}

int graph_finalize(void *descriptor)
{
	struct node *n = descriptor ? ((struct graph_descriptor *)descriptor)->node : NULL;
	int status = CUDNN_STATUS_SUCCESS;

	if (!n)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	if (n->type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR ||
	    n->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
		status = learn(n);
	n->final = !status;
	return status;
}

/* ---- execution ---- */

/* Bytes of a tensor's element that the program passes by value; 0: the tensor is in memory. */
static size_t value_bytes(const struct node *const *nodes, uint32_t count, int64_t id)
{
	const struct record *r;

	for (uint32_t i = 0; i < count; i++) {
		if (nodes[i]->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR)
			continue;
		r = dnn_record_of(nodes[i], CUDNN_ATTR_TENSOR_UNIQUE_ID);
		if (!r || !r->count || (int64_t)r->of[0].number != id)
			continue;
		r = dnn_record_of(nodes[i], CUDNN_ATTR_TENSOR_IS_BY_VALUE);
		if (!r || !r->count || !r->of[0].number)
			return 0;
		r = dnn_record_of(nodes[i], CUDNN_ATTR_TENSOR_DATA_TYPE);
		switch (r && r->count ? (int)r->of[0].number : CUDNN_DATA_FLOAT) {
		case CUDNN_DATA_DOUBLE:
		case CUDNN_DATA_INT64: return 8;
		case CUDNN_DATA_HALF:
		case CUDNN_DATA_BFLOAT16: return 2;
		case CUDNN_DATA_INT8:
		case CUDNN_DATA_UINT8:
		case CUDNN_DATA_BOOLEAN: return 1;
		default: return 4;
		}
	}
	return 0;
}

static int put_tensors(uint64_t *to, const struct list *l, const struct record *ids,
		       const struct record *addresses)
{
	for (int64_t i = 0; i < ids->count; i++) {
		size_t bytes = value_bytes(l->nodes, l->node_count, (int64_t)ids->of[i].number);
		const void *value = (const void *)addresses->of[i].number;

		if (bytes && !value)
			return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
		to[2 * i] = ids->of[i].number;
		to[2 * i + 1] = bytes ? 0 : addresses->of[i].number;
		if (bytes)
			memcpy(&to[2 * i + 1], value, bytes);
	}
	return CUDNN_STATUS_SUCCESS;
}

static int execute_list(const struct list *l, const struct node *plan, const struct node *pack,
			const struct handle *h)
{
	const struct record *ids = dnn_record_of(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
	const struct record *at = dnn_record_of(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
	const struct record *area = dnn_record_of(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
	const struct record *need = dnn_record_of(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
	struct rf_dnn_exec exec = {area && area->count ? area->of[0].number : 0,
				   need ? need->of[0].number : 0, 0, l->slot_count, plan->version};
	size_t head = sizeof exec / sizeof(uint64_t), count;
	uint64_t *sent;
	int status;

	if (!ids || !at || ids->count != at->count || ids->count > RF_DNN_TENSORS)
		return CUDNN_STATUS_BAD_PARAM;
	if (exec.area_bytes && !exec.area)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	exec.tensors = (uint64_t)ids->count;
	count = head + 2 * exec.tensors + l->slot_count;
	if (!dnn_sized_for(executes, 1 + count)) {
		LOG_ONCE("a cuDNN plan of this size is not supported by rankfold");
		return CUDNN_STATUS_NOT_SUPPORTED;
	}
	sent = malloc((1 + count) * sizeof *sent);
	if (!sent)
		return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
	memcpy(sent + 1, &exec, sizeof exec);
	status = put_tensors(sent + 1 + head, l, ids, at);
	memcpy(sent + 1 + head + 2 * exec.tensors, l->slots, l->slot_count * sizeof *sent);
	if (!status)
		status = remote_query(&remote_cudnn, dnn_sized_for(executes, 1 + count), h->stream,
				      sent, 1 + count, NULL, 0);
	free(sent);
	return status;
}

int graph_execute(const void *handle, const void *plan, const void *pack)
{
	const struct handle *h = handle_get(HANDLE_DNN, handle);
	const struct node *p = plan ? ((const struct graph_descriptor *)plan)->node : NULL;
	const struct node *v = pack ? ((const struct graph_descriptor *)pack)->node : NULL;
	struct list *l;
	int status;

	if (!h)
		return CUDNN_STATUS_NOT_INITIALIZED;
	if (!p || !v)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	if (p->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR ||
	    v->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
		return CUDNN_STATUS_BAD_PARAM;
	if (!p->final || !v->final)
		return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
	l = list_of(p);
	if (!l)
		return CUDNN_STATUS_NOT_SUPPORTED;
	status = execute_list(l, p, v, h);
	free(l);
	return status;
}
