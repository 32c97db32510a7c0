/* dnn.c: plans of cuDNN's backend API, kept by the list of the descriptors that they are made from
 * (library_call.h). They are the device's: ranks with equal plans share one. Addresses, the
 * workspace and the stream are set for each execution.
 *
 * A list comes from a rank. Its attributes are passed on to cuDNN, which checks them, but none that
 * is an address.
 *
 * Runs in the device thread.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"

#define DNN_PLANS_MAX 1024u /* the one that was not used for longest is dropped */
#define DESCRIPTORS_MAX 512u
#define BY_VALUE_MAX 32u
#define RESULTS_MAX 256
#define NOTES_MAX 64
#define KNOBS_MAX 64

/* cudnnBackendDescriptorType_t */
enum {
	ENGINE = 2,
	CONFIGURATION = 3,
	HEURISTIC = 4,
	PLAN = 5,
	KNOB_CHOICE = 7,
	KNOB_INFO = 8,
	GRAPH = 15,
	VARIANT_PACK = 16,
	TENSOR = 17
};
/* cudnnBackendAttributeType_t */
enum {
	KIND_HANDLE = 0,
	KIND_BOOLEAN = 2,
	KIND_INT64 = 3,
	KIND_DOUBLE = 5,
	KIND_ADDRESS = 6,
	KIND_KNOB_TYPE = 9,
	KIND_NUMERICAL_NOTE = 11,
	KIND_DESCRIPTOR = 15,
	KIND_BEHAVIOR_NOTE = 19,
	KIND_INT32 = 23,
	KIND_CHARACTER = 24,
	KIND_FRACTION = 26,
	KIND_LAST = 32
};
/* cudnnBackendAttributeName_t */
enum {
	HEURISTIC_RESULTS = 202,
	CONFIGURATION_ENGINE = 300,
	CONFIGURATION_KNOBS = 302,
	CONFIGURATION_WORKSPACE = 303,
	CONFIGURATION_SHARED = 304,
	PLAN_WORKSPACE = 402,
	KNOB_CHOICE_TYPE = 600,
	KNOB_CHOICE_VALUE = 601,
	GRAPH_ENGINES = 802,
	TENSOR_ID = 906,
	TENSOR_BY_VALUE = 908,
	PACK_IDS = 1000,
	PACK_ADDRESSES = 1001,
	PACK_WORKSPACE = 1003,
	KNOB_INFO_TYPE = 1200,
	KNOB_INFO_MAXIMUM = 1201,
	KNOB_INFO_MINIMUM = 1202,
	KNOB_INFO_STRIDE = 1203,
	ENGINE_INDEX = 1301,
	ENGINE_KNOBS = 1302,
	ENGINE_NOTES = 1303,
	ENGINE_BEHAVIORS = 1305
};

static struct {
	size_t (*cudnnGetVersion)(void);
	int (*cudnnCreate)(void **);
	int (*cudnnDestroy)(void *);
	int (*cudnnSetStream)(void *, CUstream);
	int (*cudnnBackendCreateDescriptor)(int, void **);
	int (*cudnnBackendDestroyDescriptor)(void *);
	int (*cudnnBackendSetAttribute)(void *, int, int, int64_t, const void *);
	int (*cudnnBackendGetAttribute)(const void *, int, int, int64_t, int64_t *, void *);
	int (*cudnnBackendFinalize)(void *);
	int (*cudnnBackendExecute)(void *, void *, void *);
} cudnn;

static bool dnn_functions(void)
{
	char text[CUDA_TEXT_BYTES];
	void *library = nvidia_library("cudnn", text, sizeof text);
	bool found = library;

#define FIND(name) found = found && (*(void **)&cudnn.name = dlsym(library, #name))
	FIND(cudnnGetVersion);
	FIND(cudnnCreate);
	FIND(cudnnDestroy);
	FIND(cudnnSetStream);
	FIND(cudnnBackendCreateDescriptor);
	FIND(cudnnBackendDestroyDescriptor);
	FIND(cudnnBackendSetAttribute);
	FIND(cudnnBackendGetAttribute);
	FIND(cudnnBackendFinalize);
	FIND(cudnnBackendExecute);
#undef FIND
	return found;
}

int nvidia_dnn_open(struct hal_stream *s, void **handle)
{
	struct hal_device *device = s->device;
	int status = dnn_functions() ? 0 : DNN_NOT_SUPPORTED;

	if (!status && !device->dnn)
		status = cudnn.cudnnCreate(&device->dnn);
	*handle = device->dnn;
	return status ? status : cudnn.cudnnSetStream(device->dnn, s->stream);
}

/* ---- a list of descriptors ---- */

struct nvidia_dnn_plan {              /* or the descriptors of a query */
	struct nvidia_dnn_plan *next; /* the last one used is the first */
	uint64_t hash;
	uint32_t slot_count, descriptor_count, by_value_count;
	void *descriptors[DESCRIPTORS_MAX];
	int64_t by_value[BY_VALUE_MAX]; /* identifiers of tensors */
	int64_t workspace;              /* bytes */
	int type;                       /* of the last descriptor */
	uint64_t slots[];
};

static void destroy_list(struct nvidia_dnn_plan *p)
{
	while (p->descriptor_count)
		cudnn.cudnnBackendDestroyDescriptor(p->descriptors[--p->descriptor_count]);
	free(p);
}

/* Bytes of an element, as cuDNN reads it; 0: a kind that is not passed on. */
static uint32_t bytes_of(uint32_t kind)
{
	switch (kind) {
	case KIND_BOOLEAN: return 1;
	case KIND_HANDLE:
	case KIND_INT64:
	case KIND_DOUBLE:
	case KIND_DESCRIPTOR: return 8;
	case KIND_ADDRESS:
	case KIND_CHARACTER:
	case KIND_FRACTION: return 0;
	default: return kind <= KIND_LAST ? 4 : 0;
	}
}

static int set_attribute(struct nvidia_dnn_plan *p, void *descriptor, void *handle, int name,
			 uint32_t kind, uint64_t count, const uint64_t *from)
{
	static uint8_t elements[RF_DNN_LIST_SLOTS * sizeof(uint64_t)];
	uint32_t bytes = bytes_of(kind);

	if (!bytes)
		return DNN_NOT_SUPPORTED;
	for (uint64_t i = 0; i < count; i++) {
		uint64_t value = from[i];

		if (kind == KIND_HANDLE)
			value = (uint64_t)(uintptr_t)handle;
		if (kind == KIND_DESCRIPTOR) {
			if (value >= p->descriptor_count)
				return DNN_BAD_PARAM;
			value = (uint64_t)(uintptr_t)p->descriptors[value];
		}
		memcpy(elements + i * bytes, &value, bytes);
	}
	return cudnn.cudnnBackendSetAttribute(descriptor, name, (int)kind, (int64_t)count,
					      elements);
}

/* Makes one descriptor of the list, and moves *at behind it. */
static int make_descriptor(struct nvidia_dnn_plan *p, void *handle, uint32_t *at)
{
	uint64_t head = p->slots[(*at)++], id = 0, by_value = 0;
	void *descriptor = NULL;
	int status;

	p->type = (int)(uint32_t)head;
	if (p->descriptor_count == DESCRIPTORS_MAX || p->type == VARIANT_PACK)
		return DNN_NOT_SUPPORTED;
	status = cudnn.cudnnBackendCreateDescriptor(p->type, &descriptor);
	for (uint64_t left = head >> 32; left && !status; left--) {
		uint64_t attribute = *at < p->slot_count ? p->slots[(*at)++] : 0;
		uint64_t count = attribute >> 40;
		int name = (int)(uint32_t)attribute;

		if (count > p->slot_count - *at) {
			status = DNN_BAD_PARAM;
			break;
		}
		if (p->type == TENSOR && name == TENSOR_ID && count)
			id = p->slots[*at];
		if (p->type == TENSOR && name == TENSOR_BY_VALUE && count)
			by_value = p->slots[*at];
		status = set_attribute(p, descriptor, handle, name, attribute >> 32 & 0xff, count,
				       p->slots + *at);
		*at += (uint32_t)count;
	}
	if (!status && by_value) {
		if (p->by_value_count == BY_VALUE_MAX)
			status = DNN_NOT_SUPPORTED;
		else
			p->by_value[p->by_value_count++] = (int64_t)id;
	}
	if (!status)
		status = cudnn.cudnnBackendFinalize(descriptor);
	if (descriptor && status)
		cudnn.cudnnBackendDestroyDescriptor(descriptor);
	else if (descriptor)
		p->descriptors[p->descriptor_count++] = descriptor;
	return status;
}

static int make_list(void *handle, const uint64_t *slots, uint32_t count,
		     struct nvidia_dnn_plan **out)
{
	struct nvidia_dnn_plan *p = calloc(1, sizeof *p + count * sizeof *slots);
	uint32_t at = 0;
	int status = count ? 0 : DNN_BAD_PARAM;

	if (!p)
		return DNN_NO_MEMORY;
	p->slot_count = count;
	memcpy(p->slots, slots, count * sizeof *slots);
	while (at < count && !status)
		status = make_descriptor(p, handle, &at);
	if (status)
		destroy_list(p);
	else
		*out = p;
	return status;
}

/* The last descriptor. */
static void *result_of(const struct nvidia_dnn_plan *p)
{
	return p->descriptors[p->descriptor_count - 1];
}

/* ---- answers ---- */

static void answer_number(struct nvidia_answer *a, uint64_t value)
{
	if (a->count < sizeof a->of / sizeof *a->of)
		a->of[a->count++] = value;
}

/* Reads up to `most` elements; returns how many. */
static int64_t read_elements(const void *descriptor, int name, int kind, int64_t most, void *to)
{
	int64_t count = 0;

	if (cudnn.cudnnBackendGetAttribute(descriptor, name, kind, most, &count, to))
		return 0;
	return count < most ? count : most;
}

static uint64_t read_number(const void *descriptor, int name)
{
	int64_t value = 0;

	read_elements(descriptor, name, KIND_INT64, 1, &value);
	return (uint64_t)value;
}

/* Reads descriptors of `type` into `to`, which the caller destroys; returns how many. */
static int64_t read_descriptors(const void *from, int name, int type, int64_t most, void **to)
{
	int64_t made = 0, count;

	while (made < most && !cudnn.cudnnBackendCreateDescriptor(type, &to[made]))
		made++;
	count = read_elements(from, name, KIND_DESCRIPTOR, made, to);
	while (made > count)
		cudnn.cudnnBackendDestroyDescriptor(to[--made]);
	return count;
}

static void destroy_all(void **descriptors, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		cudnn.cudnnBackendDestroyDescriptor(descriptors[i]);
}

static void answer_notes(struct nvidia_answer *a, const void *engine, int name, int kind)
{
	int32_t notes[NOTES_MAX];
	int64_t count = read_elements(engine, name, kind, NOTES_MAX, notes);

	answer_number(a, (uint64_t)count);
	for (int64_t i = 0; i < count; i++)
		answer_number(a, (uint64_t)(uint32_t)notes[i]);
}

static void answer_knobs(struct nvidia_answer *a, const void *from, int name, int type,
			 const int *numbers, uint32_t each)
{
	void *knobs[KNOBS_MAX];
	int64_t count = read_descriptors(from, name, type, KNOBS_MAX, knobs);

	answer_number(a, (uint64_t)count);
	for (int64_t i = 0; i < count; i++) {
		int32_t kind = 0;

		read_elements(knobs[i], numbers[0], KIND_KNOB_TYPE, 1, &kind);
		answer_number(a, (uint64_t)(uint32_t)kind);
		for (uint32_t j = 1; j < each; j++)
			answer_number(a, read_number(knobs[i], numbers[j]));
	}
	destroy_all(knobs, count);
}

static void answer_engine(struct nvidia_answer *a, const void *engine)
{
	static const int numbers[] = {KNOB_INFO_TYPE, KNOB_INFO_MAXIMUM, KNOB_INFO_MINIMUM,
				      KNOB_INFO_STRIDE};

	answer_notes(a, engine, ENGINE_NOTES, KIND_NUMERICAL_NOTE);
	answer_notes(a, engine, ENGINE_BEHAVIORS, KIND_BEHAVIOR_NOTE);
	answer_knobs(a, engine, ENGINE_KNOBS, KNOB_INFO, numbers, 4);
}

/* Not every configuration says it. */
static void answer_needs(struct nvidia_answer *a, const void *configuration)
{
	int64_t workspace, count;
	int32_t shared;

	count = read_elements(configuration, CONFIGURATION_WORKSPACE, KIND_INT64, 1, &workspace);
	answer_number(a, (uint64_t)count);
	if (count)
		answer_number(a, (uint64_t)workspace);
	count = read_elements(configuration, CONFIGURATION_SHARED, KIND_INT32, 1, &shared);
	answer_number(a, (uint64_t)count);
	if (count)
		answer_number(a, (uint64_t)(uint32_t)shared);
}

/* False: the engine of the configuration cannot be read, and nothing was put. */
static bool answer_configuration(struct nvidia_answer *a, const void *configuration)
{
	static const int numbers[] = {KNOB_CHOICE_TYPE, KNOB_CHOICE_VALUE};
	void *engine;

	if (!read_descriptors(configuration, CONFIGURATION_ENGINE, ENGINE, 1, &engine))
		return false;
	answer_number(a, read_number(engine, ENGINE_INDEX));
	answer_knobs(a, configuration, CONFIGURATION_KNOBS, KNOB_CHOICE, numbers, 2);
	answer_notes(a, engine, ENGINE_NOTES, KIND_NUMERICAL_NOTE);
	answer_notes(a, engine, ENGINE_BEHAVIORS, KIND_BEHAVIOR_NOTE);
	destroy_all(&engine, 1);
	return true;
}

/* As many configurations as fit, in the library's order: the best come first. */
static void answer_configurations(struct nvidia_answer *a, const void *heuristic)
{
	void *found[RESULTS_MAX];
	int64_t count = read_descriptors(heuristic, HEURISTIC_RESULTS, CONFIGURATION, RESULTS_MAX,
					 found);

	answer_number(a, 0);
	for (int64_t i = 0; i < count; i++) {
		uint32_t before = a->count;

		if (!answer_configuration(a, found[i]))
			continue;
		if (a->count == sizeof a->of / sizeof *a->of) {
			a->count = before;
			break;
		}
		a->of[0]++;
	}
	destroy_all(found, count);
}

/* ---- plans ---- */

static void drop_plans(struct hal_device *device, uint32_t most)
{
	struct nvidia_dnn_plan **at = &device->dnn_plans, *dropped;

	for (; *at && most; most--)
		at = &(*at)->next;
	while ((dropped = *at)) {
		*at = dropped->next;
		destroy_list(dropped);
	}
}

static uint64_t plan_hash(const uint64_t *slots, uint32_t count)
{
	uint64_t hash = count;

	for (uint32_t i = 0; i < count; i++)
		hash = (hash ^ slots[i]) * 0x9e3779b97f4a7c15u;
	return hash;
}

/* The plan becomes the first one. */
static int find_plan(struct hal_device *device, void *handle, const uint64_t *slots, uint32_t count,
		     struct nvidia_dnn_plan **out)
{
	struct nvidia_dnn_plan **at = &device->dnn_plans, *p;
	uint64_t hash = plan_hash(slots, count);
	int status;

	while (*at && ((*at)->hash != hash || (*at)->slot_count != count ||
		       memcmp((*at)->slots, slots, count * sizeof *slots) != 0))
		at = &(*at)->next;
	p = *at;
	if (p) {
		*at = p->next;
	} else {
		status = make_list(handle, slots, count, &p);
		if (!status && p->type != PLAN) {
			destroy_list(p);
			status = DNN_BAD_PARAM;
		}
		if (status)
			return status;
		p->hash = hash;
		p->workspace = (int64_t)read_number(result_of(p), PLAN_WORKSPACE);
	}
	p->next = device->dnn_plans;
	device->dnn_plans = *out = p;
	drop_plans(device, DNN_PLANS_MAX);
	return 0;
}

/* The type of the last descriptor of a list; -1: it is no list. */
static int last_type(const uint64_t *slots, uint32_t count)
{
	int type = -1;

	for (uint32_t at = 0; at < count;) {
		uint64_t head = slots[at++];

		type = (int)(uint32_t)head;
		for (uint64_t left = head >> 32; left; left--) {
			uint64_t elements = at < count ? slots[at++] >> 40 : UINT64_MAX;

			if (elements > count - at)
				return -1;
			at += (uint32_t)elements;
		}
	}
	return type;
}

int nvidia_dnn_query(struct hal_stream *s, const struct hal_space *space, const uint64_t *slots,
		     uint32_t count, struct nvidia_answer *answer)
{
	const uint64_t *list = slots + 2;
	struct nvidia_dnn_plan *p;
	void *handle;
	int type, status = nvidia_dnn_open(s, &handle);

	(void)space;
	answer->count = 0;
	if (!status && slots[1] > count - 2)
		status = DNN_BAD_PARAM;
	if (status)
		return status;
	count = (uint32_t)slots[1];
	type = last_type(list, count);
	if (type == PLAN) {
		status = find_plan(s->device, handle, list, count, &p);
		if (!status) {
			answer_number(answer, (uint64_t)p->workspace);
			answer_number(answer, cudnn.cudnnGetVersion());
		}
		return status;
	}
	status = make_list(handle, list, count, &p);
	if (status)
		return status;
	if (type == HEURISTIC)
		answer_configurations(answer, result_of(p));
	else if (type == ENGINE)
		answer_engine(answer, result_of(p));
	else if (type == CONFIGURATION)
		answer_needs(answer, result_of(p));
	else if (type == GRAPH)
		answer_number(answer, read_number(result_of(p), GRAPH_ENGINES));
	else
		status = DNN_BAD_PARAM;
	destroy_list(p);
	return status;
}

/* ---- executions ---- */

struct tensors {
	uint64_t count;
	int64_t id[RF_DNN_TENSORS];
	uint64_t value[RF_DNN_TENSORS]; /* of those that are passed by value */
	void *at[RF_DNN_TENSORS];
};

static bool is_by_value(const struct nvidia_dnn_plan *p, int64_t id)
{
	for (uint32_t i = 0; i < p->by_value_count; i++)
		if (p->by_value[i] == id)
			return true;
	return false;
}

static int read_tensors(struct tensors *t, const struct nvidia_dnn_plan *p,
			const struct hal_space *space, const uint64_t *slots)
{
	for (uint64_t i = 0; i < t->count; i++) {
		uint64_t value = slots[2 * i + 1];

		t->id[i] = (int64_t)slots[2 * i];
		t->value[i] = value;
		t->at[i] = (void *)(uintptr_t)value;
		if (is_by_value(p, t->id[i]))
			t->at[i] = &t->value[i];
		else if (value && !nvidia_space_has(space, value))
			return DNN_BAD_PARAM;
	}
	return 0;
}

static int execute_plan(const struct nvidia_dnn_plan *p, void *handle, const struct tensors *t,
			uint64_t area)
{
	void *pack = NULL, *workspace = (void *)(uintptr_t)area;
	int status = cudnn.cudnnBackendCreateDescriptor(VARIANT_PACK, &pack);

	if (status)
		return status;
	status = cudnn.cudnnBackendSetAttribute(pack, PACK_IDS, KIND_INT64, (int64_t)t->count,
						t->id);
	if (!status)
		status = cudnn.cudnnBackendSetAttribute(pack, PACK_ADDRESSES, KIND_ADDRESS,
							(int64_t)t->count, t->at);
	if (!status)
		status = cudnn.cudnnBackendSetAttribute(pack, PACK_WORKSPACE, KIND_ADDRESS, 1,
							&workspace);
	if (!status)
		status = cudnn.cudnnBackendFinalize(pack);
	if (!status)
		status = cudnn.cudnnBackendExecute(handle, result_of(p), pack);
	cudnn.cudnnBackendDestroyDescriptor(pack);
	return status;
}

/* The workspace that the program has given was large enough where the plan was made. Another GPU
 * may need more: then it is the device's, for this call. */
int nvidia_dnn_execute(struct hal_stream *s, const struct hal_space *space, const uint64_t *slots,
		       uint32_t count, struct nvidia_answer *answer)
{
	static struct tensors t; /* of the one device thread */
	const struct nvidia_driver *d = s->device->driver;
	const uint64_t *pairs = slots + 1 + sizeof(struct rf_dnn_exec) / sizeof *slots;
	struct nvidia_dnn_plan *p;
	struct rf_dnn_exec exec;
	CUdeviceptr spare = 0;
	void *handle;
	int status = nvidia_dnn_open(s, &handle);

	(void)answer;
	memcpy(&exec, slots + 1, sizeof exec);
	count -= (uint32_t)(pairs - slots);
	if (exec.tensors > RF_DNN_TENSORS || exec.list > count ||
	    2 * exec.tensors > count - exec.list ||
	    (exec.area_bytes && !nvidia_space_has(space, exec.area)))
		return DNN_BAD_PARAM;
	if (!status && exec.version != cudnn.cudnnGetVersion())
		return DNN_NOT_SUPPORTED; /* the engine of this number may be another one here */
	t.count = exec.tensors;
	if (!status)
		status = find_plan(s->device, handle, pairs + 2 * t.count, (uint32_t)exec.list, &p);
	if (!status)
		status = read_tensors(&t, p, space, pairs);
	if (!status && (uint64_t)p->workspace > exec.area_bytes) {
		if (d->cuMemAllocAsync(&spare, (size_t)p->workspace, s->stream))
			return DNN_NO_MEMORY;
		exec.area = spare;
	}
	if (!status)
		status = execute_plan(p, handle, &t, exec.area);
	if (spare && d->cuMemFreeAsync(spare, s->stream) && !status)
		status = DNN_NO_MEMORY;
	return status;
}

void nvidia_dnn_close(struct hal_device *device)
{
	drop_plans(device, 0);
	if (device->dnn)
		cudnn.cudnnDestroy(device->dnn);
	device->dnn = NULL;
}
