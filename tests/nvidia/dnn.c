/* dnn.c: of the fake driver (fake.h): a cuDNN's backend API, as a part of the same library.
 *
 * Graphs of one convolution, or of one product of a tensor with a number. Each of the three engines
 * adds in another order, so results show which one computed them: 0 in double, 1 and 2 in float,
 * from the first and from the last. It is stricter than NVIDIA's: descriptors that are left, memory
 * that belongs to others, and a handle without a stream are faults of the caller.
 */
#include <stdlib.h>
#include <string.h>

#include "fake_dnn.h"

enum { NOT_INITIALIZED = 1001, NOT_FINALIZED = 2004, SHAPE_MISMATCH = 2008, ATTRIBUTE_TYPE = 2010 };
enum { POINTWISE = 0, CONVOLUTION = 1, ENGINE = 2, CONFIGURATION = 3, HEURISTIC = 4, PLAN = 5 };
enum { CHOICE = 7, INFO = 8, MULTIPLY = 13, GRAPH = 15 };
enum { PACK = 16, TENSOR = 17 };
#define ATTRIBUTES 24
#define ENGINES 3
#define AREA 512 /* bytes of a workspace, times the engine */

struct attribute {
	int name, kind;
	int64_t count;
	uint64_t of[64];
};
struct descriptor {
	int type, references;
	bool final, live;
	struct attribute attributes[ATTRIBUTES];
};
static struct dnn {
	CUstream stream;
	bool streamed;
} *dnn;          /* there is one at a time */
static int live; /* descriptors */

void fake_dnn_live(int more) { live += more; }

bool fake_dnn_handle(const char *call)
{
	if (dnn && dnn->streamed)
		return true;
	fake_fault("%s: without a handle, or a stream", call);
	return false;
}

CUstream fake_dnn_stream(void)
{
	dnn->streamed = false;
	return dnn->stream;
}

static int kind_bytes(int kind)
{
	return kind == 2                                                        ? 1
	       : kind == 0 || kind == 3 || kind == 5 || kind == 6 || kind == 15 ? 8
										: 4;
}

static const struct attribute *attribute(const struct descriptor *d, int name)
{
	for (int i = 0; d && i < ATTRIBUTES; i++)
		if (d->attributes[i].count && d->attributes[i].name == name)
			return &d->attributes[i];
	return NULL;
}

static int64_t number(const struct descriptor *d, int name)
{
	const struct attribute *a = attribute(d, name);

	return a ? (int64_t)a->of[0] : 0;
}

static const struct descriptor *child(const struct descriptor *d, int name)
{
	const struct attribute *a = d ? attribute(d, name) : NULL;

	return a && a->kind == 15 ? (const void *)a->of[0] : NULL;
}

static struct descriptor *new(int type)
{
	struct descriptor *d = calloc(1, sizeof *d);

	d->type = type;
	d->live = true;
	live++;
	return d;
}

static void set(struct descriptor *d, int name, int kind, int64_t count, const uint64_t *of)
{
	struct attribute *a = d->attributes;

	while (a->count && a->name != name)
		a++;
	*a = (struct attribute){name, kind, count, {0}};
	memcpy(a->of, of, (size_t)count * sizeof *of);
}

static void set_one(struct descriptor *d, int name, int kind, uint64_t value)
{
	set(d, name, kind, 1, &value);
}

/* ---- what runs ---- */

static struct fake_tensor tensor_of(const struct descriptor *d)
{
	struct fake_tensor t = {.id = number(d, 906), .by_value = number(d, 908)};
	const struct attribute *size = attribute(d, 902), *stride = attribute(d, 903);

	t.dimensions = size ? size->count : 0;
	for (int64_t i = 0; i < t.dimensions && i < 5; i++) {
		t.size[i] = (int64_t)size->of[i];
		t.stride[i] = stride && i < stride->count ? (int64_t)stride->of[i] : 0;
	}
	return t;
}

static float *element(const struct fake_tensor *t, uint64_t at, const int64_t *i)
{
	int64_t offset = 0;

	for (int64_t d = 0; d < t->dimensions; d++)
		offset += i[d] * t->stride[d];
	return (float *)at + offset;
}

static int64_t elements(const struct fake_tensor *t)
{
	int64_t count = 1;

	for (int64_t d = 0; d < t->dimensions; d++)
		count *= t->size[d];
	return count;
}

static bool next(const struct fake_tensor *t, int64_t *i)
{
	for (int64_t d = t->dimensions; d--;) {
		if (++i[d] < t->size[d])
			return true;
		i[d] = 0;
	}
	return false;
}

/* The tensor that is computed, and its sum of products for one element: over all elements of the
 * other one of y and w (forward: w; filter: y; data: w and all places of y). */
static double products(const struct fake_convolution *j, const int64_t *out, bool last_first)
{
	int64_t w[5] = {0}, y[5] = {0}, x[5];
	int64_t group_in = j->w.size[1], group_out = j->w.size[0] / (j->x.size[1] / group_in);
	float *terms = malloc((size_t)(elements(&j->w) + elements(&j->y)) * sizeof *terms);
	int64_t count = 0;
	double exact = 0;
	float sum = 0;

	do {
		memset(y, 0, sizeof y);
		do {
			bool inside = y[1] == w[0];

			x[0] = y[0];
			x[1] = w[0] / group_out * group_in + w[1];
			for (int d = 0; d < j->spatial && inside; d++) {
				x[d + 2] = y[d + 2] * j->step[d] - j->before[d] +
					   w[d + 2] * j->dilation[d];
				inside = x[d + 2] >= 0 && x[d + 2] < j->x.size[d + 2];
			}
			if (!inside || memcmp(j->type == FORWARD  ? y
					      : j->type == FILTER ? w
								  : x,
					      out, (size_t)(j->spatial + 2) * sizeof *out) != 0)
				continue;
			terms[count++] = j->type == FORWARD  ? *element(&j->x, j->at[0], x) *
								       *element(&j->w, j->at[1], w)
					 : j->type == FILTER ? *element(&j->x, j->at[0], x) *
								       *element(&j->y, j->at[2], y)
							     : *element(&j->w, j->at[1], w) *
								       *element(&j->y, j->at[2], y);
		} while (next(&j->y, y));
	} while (next(&j->w, w));
	for (int64_t i = 0; i < count; i++) {
		exact += (double)terms[i];
		sum += terms[last_first ? count - 1 - i : i];
	}
	free(terms);
	return j->engine ? (double)sum : exact;
}

void fake_dnn_convolve(const uint8_t *params)
{
	const struct fake_convolution *j = (const void *)params;
	const struct fake_tensor *to = j->type == FORWARD  ? &j->y
				       : j->type == FILTER ? &j->w
							   : &j->x;
	uint64_t at = j->at[j->type == FORWARD ? 2 : j->type == FILTER ? 1 : 0];
	int64_t i[5] = {0};

	do {
		float *e = element(to, at, i);

		*e = (float)(j->alpha * products(j, i, j->engine == 2) +
			     (j->beta ? j->beta * (double)*e : 0));
	} while (next(to, i));
}

static void multiply(const uint8_t *params)
{
	const struct fake_convolution *j = (const void *)params;
	int64_t i[5] = {0};

	do
		*element(&j->y, j->at[2], i) = *element(&j->x, j->at[0], i) * j->value;
	while (next(&j->x, i));
}

/* ---- handles ---- */

EXPORT size_t cudnnGetVersion(void) { return 92400; }

EXPORT int cudnnCreate(void **out)
{
	BEGIN(cudnnCreate);
	if (dnn)
		fake_fault("cudnnCreate: a second handle");
	*out = dnn = calloc(1, sizeof *dnn);
	return fake_end(SUCCESS);
}

EXPORT int cudnnDestroy(void *handle)
{
	BEGIN(cudnnDestroy);
	if (handle != dnn)
		fake_fault("cudnnDestroy: %p", handle);
	if (live)
		fake_fault("cudnnDestroy: %d descriptors are left", live);
	free(dnn);
	dnn = NULL;
	return fake_end(SUCCESS);
}

EXPORT int cudnnSetStream(void *handle, CUstream stream)
{
	BEGIN(cudnnSetStream);
	if (handle != dnn)
		return fake_end(BAD_PARAM);
	dnn->stream = stream;
	dnn->streamed = true;
	return fake_end(SUCCESS);
}

/* ---- descriptors ---- */

EXPORT int cudnnBackendCreateDescriptor(int type, void **out)
{
	BEGIN(cudnnBackendCreateDescriptor);
	if (type < 0 || type > 99)
		return fake_end(NOT_SUPPORTED);
	*out = new(type);
	return fake_end(SUCCESS);
}

EXPORT int cudnnBackendDestroyDescriptor(void *descriptor)
{
	struct descriptor *d = descriptor;

	BEGIN(cudnnBackendDestroyDescriptor);
	if (!d->live)
		fake_fault("cudnnBackendDestroyDescriptor: twice");
	d->live = false; /* others may refer to it: it is not freed */
	live--;
	return fake_end(SUCCESS);
}

EXPORT int cudnnBackendSetAttribute(void *descriptor, int name, int kind, int64_t count,
				    const void *from)
{
	struct descriptor *d = descriptor;
	uint64_t of[128] = {0};

	BEGIN(cudnnBackendSetAttribute);
	if (d->final || kind < 0 || kind > 32 || count < 0 || count > 64)
		return fake_end(BAD_PARAM);
	if (kind == 0 && count && *(void *const *)from != dnn)
		fake_fault("cudnnBackendSetAttribute: a handle %p", *(void *const *)from);
	for (int64_t i = 0; i < count; i++)
		memcpy(&of[i], (const char *)from + i * kind_bytes(kind), (size_t)kind_bytes(kind));
	for (int64_t i = 0; kind == 15 && i < count; i++) {
		const struct descriptor *c = (const void *)of[i];

		if (!c->live)
			fake_fault("cudnnBackendSetAttribute: a destroyed descriptor");
		if (!c->final)
			return fake_end(NOT_FINALIZED);
	}
	if ((name == 902 || name == 1000 || name == 601) && kind != 3)
		return fake_end(ATTRIBUTE_TYPE);
	set(d, name, kind, count, of);
	return fake_end(SUCCESS);
}

static const struct descriptor *graph_of(const struct descriptor *d)
{
	return d->type == PLAN            ? graph_of(child(d, 401))
	       : d->type == CONFIGURATION ? graph_of(child(d, 300))
	       : d->type == ENGINE        ? child(d, 1300)
					  : child(d, 201);
}

static int check_operation(const struct descriptor *d)
{
	int base = d->type == FORWARD ? 702 : d->type == DATA ? 708 : 714;
	const struct descriptor *c = child(d, base);
	const struct attribute *steps = c ? attribute(c, 103) : NULL;

	if (!c || c->type != CONVOLUTION || !steps || steps->count != number(c, 106))
		return BAD_PARAM;
	for (int i = 1; i <= 3; i++) {
		const struct descriptor *t = child(d, base + i);

		if (!t || t->type != TENSOR || number(t, 901) != 0)
			return BAD_PARAM;
		if (tensor_of(t).dimensions != steps->count + 2)
			return SHAPE_MISMATCH;
	}
	return SUCCESS;
}

static int check_final(struct descriptor *d)
{
	const struct descriptor *engine;

	switch (d->type) {
	case FORWARD:
	case FILTER:
	case DATA: return check_operation(d);
	case GRAPH: return child(d, 801) ? SUCCESS : BAD_PARAM;
	case HEURISTIC: return child(d, 201) ? SUCCESS : BAD_PARAM;
	case ENGINE:
		if (!child(d, 1300) || !attribute(d, 1301))
			return BAD_PARAM;
		return number(d, 1301) >= 0 && number(d, 1301) < ENGINES ? SUCCESS : NOT_SUPPORTED;
	case CONFIGURATION: return child(d, 300) ? SUCCESS : BAD_PARAM;
	case PLAN:
		engine = child(child(d, 401), 300);
		if (!engine || !attribute(graph_of(d), 800))
			return BAD_PARAM;
		set_one(d, 402, 3, (uint64_t)(AREA * number(engine, 1301)));
		return SUCCESS;
	case PACK: return attribute(d, 1000) && attribute(d, 1001) ? SUCCESS : BAD_PARAM;
	default: return SUCCESS;
	}
}

EXPORT int cudnnBackendFinalize(void *descriptor)
{
	struct descriptor *d = descriptor;
	int status;

	BEGIN(cudnnBackendFinalize);
	if (!d->live || d->final)
		fake_fault("cudnnBackendFinalize: a finished descriptor");
	status = check_final(d);
	d->final = !status;
	return fake_end(status);
}

/* Engine 2 first: a program that takes the best gets another one than 0. */
static void fill_configuration(struct descriptor *c, const struct descriptor *graph, int rank)
{
	struct descriptor *engine = new(ENGINE), *choice = new(CHOICE);

	live -= 2; /* they belong to the result */
	set_one(engine, 1300, 15, (uint64_t)graph);
	set_one(engine, 1301, 3, (uint64_t)(ENGINES - 1 - rank));
	set_one(choice, 600, 9, 4);
	set_one(choice, 601, 3, (uint64_t)(70 + rank));
	engine->final = choice->final = c->final = true;
	set_one(c, 300, 15, (uint64_t)engine);
	if (rank)
		set_one(c, 302, 15, (uint64_t)choice);
}

static void fill_info(struct descriptor *info)
{
	set_one(info, 1200, 9, 4);
	set_one(info, 1201, 3, 72);
	set_one(info, 1202, 3, 70);
	set_one(info, 1203, 3, 1);
	info->final = true;
}

static int copy_out(const struct attribute *a, int64_t most, int64_t *count, void *to)
{
	*count = to && most && most < a->count ? most : a->count;
	for (int64_t i = 0; to && i < most && i < a->count; i++)
		if (a->kind == 15) { /* what it has goes into the caller's */
			struct descriptor *given = ((struct descriptor **)to)[i];
			const struct descriptor *from = (const void *)a->of[i];

			if (given->type != from->type)
				return BAD_PARAM;
			memcpy(given->attributes, from->attributes, sizeof from->attributes);
			given->final = true;
		} else {
			memcpy((char *)to + i * kind_bytes(a->kind), &a->of[i],
			       (size_t)kind_bytes(a->kind));
		}
	return SUCCESS;
}

EXPORT int cudnnBackendGetAttribute(const void *descriptor, int name, int kind, int64_t most,
				    int64_t *count, void *to)
{
	const struct descriptor *d = descriptor;
	struct attribute made = {name, kind, 0, {0}};
	const struct attribute *a = &made;

	BEGIN(cudnnBackendGetAttribute);
	if (!d->live || !d->final)
		return fake_end(NOT_FINALIZED);
	if (d->type == HEURISTIC && name == 202) {
		*count = to && most && most < ENGINES ? most : ENGINES;
		for (int i = 0; to && i < ENGINES && i < most; i++)
			fill_configuration(((struct descriptor **)to)[i], child(d, 201), i);
		return fake_end(SUCCESS);
	}
	if (d->type == ENGINE && name == 1302) {
		*count = 1;
		if (to && most)
			fill_info(*(struct descriptor **)to);
		return fake_end(SUCCESS);
	}
	if (d->type == ENGINE && name == 1303) {
		made.count = number(d, 1301) == 2; /* not deterministic, says the library */
		made.of[0] = 4;
	} else if (d->type == GRAPH && name == 802) {
		made.count = 1;
		made.of[0] = ENGINES;
	} else if (d->type == CONFIGURATION && (name == 303 || name == 304)) {
		made.count = 1;
		made.of[0] = (uint64_t)(name == 303 ? AREA * number(child(d, 300), 1301) : 48);
	} else if (d->type != ENGINE || name != 1305) {
		a = attribute(d, name);
	}
	if (!a) {
		*count = 0;
		return fake_end(name == 302 ? SUCCESS : NOT_SUPPORTED);
	}
	return fake_end(a->kind == kind ? copy_out(a, most, count, to) : ATTRIBUTE_TYPE);
}

/* ---- executions ---- */

static uint64_t address_in(const struct descriptor *pack, int64_t id)
{
	const struct attribute *ids = attribute(pack, 1000), *at = attribute(pack, 1001);

	for (int64_t i = 0; i < ids->count && i < at->count; i++)
		if ((int64_t)ids->of[i] == id)
			return at->of[i];
	return 0;
}

static bool tensor_shown(const struct fake_tensor *t, uint64_t at)
{
	int64_t last[5];

	for (int64_t d = 0; d < t->dimensions; d++)
		last[d] = t->size[d] - 1;
	return fake_is_window(at) &&
	       fake_reachable(at, (uint64_t)element(t, 0, last) + sizeof(float));
}

static double scalar(const struct descriptor *d, int name)
{
	const struct attribute *a = attribute(d, name);
	float narrow;
	double wide;

	if (!a)
		return name == 701 || name == 707 || name == 713 ? 0 : 1;
	memcpy(&wide, a->of, sizeof wide);
	memcpy(&narrow, a->of, sizeof narrow);
	return a->kind == 4 ? (double)narrow : wide;
}

static void describe_convolution(struct fake_convolution *j, const struct descriptor *o)
{
	int base = o->type == FORWARD ? 700 : o->type == DATA ? 706 : 712;
	/* in the order of the attributes: forward w, x, y; data w, dx, dy; filter dw, x, dy */
	const struct descriptor *c = child(o, base + 2);

	j->alpha = scalar(o, base);
	j->beta = scalar(o, base + 1);
	j->w = tensor_of(child(o, base + 3));
	j->x = tensor_of(child(o, base + 4));
	j->y = tensor_of(child(o, base + 5));
	j->spatial = (int)number(c, 106);
	for (int i = 0; i < j->spatial; i++) {
		j->dilation[i] = (int64_t)attribute(c, 102)->of[i];
		j->step[i] = (int64_t)attribute(c, 103)->of[i];
		j->before[i] = (int64_t)attribute(c, 105)->of[i];
	}
}

static bool takes_tensors(struct fake_convolution *j, const struct descriptor *pack)
{
	const struct fake_tensor *tensors[] = {&j->x, &j->w, &j->y};

	for (int i = 0; i < 3; i++) {
		j->at[i] = address_in(pack, tensors[i]->id);
		if (tensors[i]->by_value)
			memcpy(&j->value, (const void *)j->at[i], sizeof j->value);
		else if (!tensor_shown(tensors[i], j->at[i]))
			return false;
	}
	return true;
}

EXPORT int cudnnBackendExecute(void *handle, void *plan, void *pack)
{
	const struct descriptor *p = plan, *v = pack, *o;
	struct fake_convolution j = {0};
	uint64_t area;

	BEGIN(cudnnBackendExecute);
	if (handle != dnn || !dnn->streamed)
		return fake_end(NOT_INITIALIZED);
	if (p->type != PLAN || !p->live || !p->final || v->type != PACK || !v->final) {
		fake_fault("cudnnBackendExecute: descriptors of types %d and %d", p->type, v->type);
		return fake_end(BAD_PARAM);
	}
	o = child(graph_of(p), 801);
	if (attribute(graph_of(p), 801)->count > 1 || o->type < FORWARD || o->type > MULTIPLY)
		return fake_end(getenv("RANKFOLD_FAKE_KERNELS") ? SUCCESS : NOT_SUPPORTED);
	j.type = o->type;
	j.engine = (int)number(child(child(p, 401), 300), 1301);
	area = (uint64_t)number(v, 1003);
	if (number(p, 402) && !fake_is_spare(area, (uint64_t)number(p, 402)) &&
	    !(fake_is_window(area) && fake_reachable(area, (uint64_t)number(p, 402))))
		fake_fault("cudnnBackendExecute: a workspace at %#llx", (unsigned long long)area);
	if (o->type == MULTIPLY) {
		j.x = tensor_of(child(o, 751));
		j.w = tensor_of(child(o, 752));
		j.y = tensor_of(child(o, 753));
	} else {
		describe_convolution(&j, o);
	}
	if (!takes_tensors(&j, v)) {
		fake_fault("cudnnBackendExecute: a tensor that is not there");
		return fake_end(BAD_PARAM);
	}
	dnn->streamed = false;
	fake_push_kernel(dnn->stream, o->type == MULTIPLY ? multiply : fake_dnn_convolve, &j,
			 sizeof j);
	return fake_end(SUCCESS);
}
