/* dnn_graph.c: descriptors of cuDNN's backend API, where NVIDIA's own library executes the plans.
 *
 * A descriptor keeps what the program has set. Engines, their knobs and the size of a workspace
 * come from NVIDIA's library in the proxy: a query sends the descriptor with all that it refers to
 * (library_call.h), and so does the execution of a plan. So a plan is nowhere but here, and moves
 * and is saved with the process. Errors are cudnnStatus_t.
 *
 * A descriptor that refers to another one shares its content, which no longer changes once it is
 * finalized.
 */
#include <stdlib.h>
#include <string.h>

#include "dnn.h"

#define NODES_MAX 512 /* descriptors of one list */

struct record {
	struct record *next;
	int name, kind; /* cudnnBackendAttributeName_t, cudnnBackendAttributeType_t */
	bool answer;    /* it comes from the library, and is not sent */
	int64_t count;
	union {
		uint64_t number;
		struct node *node;
	} of[];
};
struct node {
	_Atomic uint32_t references;
	int type; /* cudnnBackendDescriptorType_t */
	bool final;
	bool known;       /* what the library says about it is among the records */
	uint64_t version; /* of a plan: of the library that made it */
	struct record *records;
};
struct graph_descriptor {
	struct node *node;
};

static void node_release(struct node *n);

static void record_free(struct record *r)
{
	for (int64_t i = 0; r->kind == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < r->count; i++)
		node_release(r->of[i].node);
	free(r);
}

static void node_release(struct node *n)
{
	if (!n || atomic_fetch_sub(&n->references, 1) != 1)
		return;
	for (struct record *r = n->records, *next; r; r = next) {
		next = r->next;
		record_free(r);
	}
	free(n);
}

static struct node *node_share(struct node *n)
{
	atomic_fetch_add(&n->references, 1);
	return n;
}

static struct node *node_new(int type)
{
	struct node *n = calloc(1, sizeof *n);

	if (n) {
		n->references = 1;
		n->type = type;
	}
	return n;
}

static struct record *record_of(const struct node *n, int name)
{
	struct record *r = n->records;

	while (r && r->name != name)
		r = r->next;
	return r;
}

/* The first element of an attribute, or NULL. */
static struct node *node_of(const struct node *n, int name)
{
	const struct record *r = record_of(n, name);

	return r && r->kind == CUDNN_TYPE_BACKEND_DESCRIPTOR && r->count ? r->of[0].node : NULL;
}

static struct record *record_new(int name, int kind, int64_t count)
{
	struct record *r = calloc(1, sizeof *r + (size_t)count * sizeof *r->of);

	if (r) {
		r->name = name;
		r->kind = kind;
		r->count = count;
	}
	return r;
}

/* Takes the place of an earlier record of this name. */
static void record_put(struct node *n, struct record *r)
{
	struct record **at = &n->records, *old;

	while (*at && (*at)->name != r->name)
		at = &(*at)->next;
	old = *at;
	r->next = old ? old->next : NULL;
	*at = r;
	if (old)
		record_free(old);
}

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
static struct sized {
	struct remote_function f;
	size_t slots;
} queries[] = SIZES_OF(query), executes[] = SIZES_OF(execute);
#define SIZES (sizeof queries / sizeof *queries)

static struct remote_function *sized_for(struct sized *all, size_t slots)
{
	for (size_t i = 0; i < SIZES; i++)
		if (slots <= all[i].slots)
			return &all[i].f;
	return NULL;
}

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
			const struct record *r = record_of(n, own[i]);
			const struct handle *h = r && r->count
							 ? handle_get(HANDLE_DNN,
								      (const void *)r->of[0].number)
							 : NULL;

			if (h)
				return h->stream;
		}
		for (size_t i = 0; i < sizeof up / sizeof *up && !next; i++)
			next = node_of(n, up[i]);
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
		status = remote_query(&remote_cudnn, sized_for(queries, 2 + l->slot_count),
				      stream_of_node(n), sent, 2 + (size_t)l->slot_count, answer,
				      RF_DNN_QUERY_SLOTS);
	}
	free(sent);
	free(l);
	return status;
}

/* ---- what the library says ---- */

struct reader {
	const uint64_t *at, *end;
};

static uint64_t next_number(struct reader *r) { return r->at < r->end ? *r->at++ : 0; }

/* The length of a list; its elements are `slots` long. */
static int64_t next_length(struct reader *r, int64_t slots)
{
	uint64_t count = next_number(r), most = (uint64_t)((r->end - r->at) / slots);

	return (int64_t)(count < most ? count : most);
}

static bool record_number(struct node *n, int name, int kind, uint64_t value, bool answer)
{
	struct record *r = record_new(name, kind, 1);

	if (!r)
		return false;
	r->answer = answer;
	r->of[0].number = value;
	record_put(n, r);
	return true;
}

static bool record_list(struct node *n, int name, int kind, struct reader *from)
{
	int64_t count = next_length(from, 1);
	struct record *r = record_new(name, kind, count);

	for (int64_t i = 0; i < count; i++) {
		uint64_t value = next_number(from);

		if (r)
			r->of[i].number = value;
	}
	if (!r)
		return false;
	r->answer = true;
	record_put(n, r);
	return true;
}

static bool record_notes(struct node *engine, struct reader *from)
{
	bool notes = record_list(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
				 CUDNN_TYPE_NUMERICAL_NOTE, from);

	return record_list(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
			   from) &&
	       notes;
}

/* Descriptors of `type`, each with the same attributes: first a knob's type, then whole numbers. */
static bool record_knobs(struct node *to, int attribute, bool answer, int type, const int *names,
			 int64_t each, struct reader *from)
{
	int64_t count = next_length(from, each);
	struct record *r = record_new(attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, count);
	bool made = r;

	for (int64_t i = 0; i < count; i++) {
		struct node *knob = r ? node_new(type) : NULL;

		for (int64_t j = 0; j < each; j++) {
			uint64_t value = next_number(from);

			made = knob && made &&
			       record_number(knob, names[j],
					     j ? CUDNN_TYPE_INT64 : CUDNN_TYPE_KNOB_TYPE, value,
					     answer);
		}
		if (knob)
			knob->final = true;
		if (r)
			r->of[i].node = knob;
	}
	if (!r)
		return false;
	r->answer = answer || !count; /* nothing is not sent */
	record_put(to, r);
	return made;
}

static bool record_node(struct node *to, int name, struct node *n)
{
	struct record *r = record_new(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1);

	if (!r)
		return false;
	r->of[0].node = node_share(n);
	record_put(to, r);
	return true;
}

static bool read_configuration(struct node *c, struct node *graph, struct reader *from)
{
	static const int choice[] = {CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
				     CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE};
	struct node *engine = node_new(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
	bool made = engine && record_node(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph) &&
		    record_number(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64,
				  next_number(from), false) &&
		    record_node(c, CUDNN_ATTR_ENGINECFG_ENGINE, engine) &&
		    record_knobs(c, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, false,
				 CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, choice, 2, from) &&
		    record_notes(engine, from);

	if (engine)
		engine->final = true;
	node_release(engine);
	c->final = true;
	return made;
}

static bool read_configurations(struct node *heuristic, struct reader *from)
{
	struct node *graph = node_of(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
	int64_t count = next_length(from, 4); /* a configuration has at least so many */
	struct record *r = record_new(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
				      count);
	bool made = r && graph;

	if (r)
		r->count = 0;
	for (int64_t i = 0; made && i < count; i++) {
		struct node *c = node_new(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);

		made = c && read_configuration(c, graph, from);
		if (c)
			r->of[r->count++].node = c;
	}
	if (!r)
		return false;
	r->answer = true;
	record_put(heuristic, r);
	return made;
}

static bool read_answer(struct node *n, struct reader *from)
{
	static const int info[] = {CUDNN_ATTR_KNOB_INFO_TYPE, CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE,
				   CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE, CUDNN_ATTR_KNOB_INFO_STRIDE};
	bool made;

	switch (n->type) {
	case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: return read_configurations(n, from);
	case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
		return record_notes(n, from) &&
		       record_knobs(n, CUDNN_ATTR_ENGINE_KNOB_INFO, true,
				    CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR, info, 4, from);
	case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
		return record_list(n, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
				   from) &&
		       record_list(n, CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED, CUDNN_TYPE_INT32,
				   from);
	case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
		made = record_number(n, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
				     next_number(from), true);
		n->version = next_number(from);
		return made;
	default:
		return record_number(n, CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT,
				     CUDNN_TYPE_INT64, next_number(from), true);
	}
}

static int learn(struct node *n)
{
	uint64_t *answer = calloc(RF_DNN_QUERY_SLOTS, sizeof *answer);
	int status = answer ? query_library(n, answer)
			    : CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
	struct reader from = {answer + 1, answer + RF_DNN_QUERY_SLOTS};

	n->known = !status;
	if (!status && !read_answer(n, &from))
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
	r = record_new(name, kind, count);
	if (!r)
		return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
	for (int64_t i = 0; i < count; i++)
		memcpy(&r->of[i].number, (const char *)from + (size_t)i * bytes, bytes);
	for (int64_t i = 0; kind == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < count; i++) {
		const struct graph_descriptor *d = (const void *)r->of[i].number;

		if (!d || !d->node || !d->node->final) {
			r->count = i; /* the others are not shared */
			record_free(r);
			return d ? CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED
				 : CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
		}
		r->of[i].node = node_share(d->node);
	}
	record_put(n, r);
	return CUDNN_STATUS_SUCCESS;
}

/* Fills in a descriptor that the program made for a result. */
static int store_node(struct graph_descriptor *to, struct node *n)
{
	if (!to || !to->node || !n)
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	if (to->node->type != n->type)
		return CUDNN_STATUS_BAD_PARAM;
	node_release(to->node);
	to->node = node_share(n);
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
	r = record_of(n, name);
	if (!r && has_answer(n) && !n->known) {
		status = learn(n);
		r = record_of(n, name);
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
		d->node = node_new(type);
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
		node_release(d->node);
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
		r = record_of(nodes[i], CUDNN_ATTR_TENSOR_UNIQUE_ID);
		if (!r || !r->count || (int64_t)r->of[0].number != id)
			continue;
		r = record_of(nodes[i], CUDNN_ATTR_TENSOR_IS_BY_VALUE);
		if (!r || !r->count || !r->of[0].number)
			return 0;
		r = record_of(nodes[i], CUDNN_ATTR_TENSOR_DATA_TYPE);
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
	const struct record *ids = record_of(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
	const struct record *at = record_of(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
	const struct record *area = record_of(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
	const struct record *need = record_of(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
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
	if (!sized_for(executes, 1 + count)) {
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
		status = remote_query(&remote_cudnn, sized_for(executes, 1 + count), h->stream,
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
