/* remote.c: sends calls of NVIDIA's own libraries to the proxy. */
#include "bodies.h"

#include <string.h>

#define RESULT_AT 4u /* of an answer: for a number of RESULT_BYTES, aligned */
#define RESULT_BYTES 16u
#define ANSWER_SLOTS (1u + RF_CALL_OUTS_MAX)

static int register_library(struct remote_library *l)
{
	lock(CARRIED_LOCK);
	if (!l->module)
		l->module = module_register(l->image);
	unlock(CARRIED_LOCK);
	return l->module ? CUDA_OK : OUT_OF_MEMORY;
}

/* 1: the device has the library, which is `m` now; -1: it has not; 0: the client cannot ask. */
static int find_library(struct remote_library *l, struct module **m)
{
	unsigned count;

	*m = context_use_device() ? NULL : module_register(l->image);
	if (!*m)
		return 0;
	module_is_optional(*m);
	return module_function_count(*m, &count) ? -1 : 1;
}

/* The module is dropped again, so that the rank may move to devices without the library. Each
 * thread that asks has its own. */
bool remote_is_there(struct remote_library *l)
{
	int there = atomic_load_explicit(&l->there, memory_order_relaxed);
	struct module *m;

	if (there)
		return there > 0;
	there = find_library(l, &m);
	if (there > 0)
		module_drop(m);
	atomic_store(&l->there, there);
	return there > 0;
}

/* All threads keep what one of them has found. */
bool remote_serves(struct remote_library *l)
{
	int serves = atomic_load_explicit(&l->serves, memory_order_relaxed), before = 0;
	struct module *m;

	if (serves)
		return serves > 0;
	serves = find_library(l, &m);
	lock(CARRIED_LOCK);
	if (serves && atomic_compare_exchange_strong(&l->serves, &before, serves))
		l->module = serves > 0 ? m : NULL;
	unlock(CARRIED_LOCK);
	if (before && serves > 0)
		module_drop(m);
	return (before ? before : serves) > 0;
}

int remote_ready(struct remote_library *l, const char *name)
{
	unsigned count;
	int error = context_use_device();

	if (!error)
		error = register_library(l);
	if (!error)
		error = module_function_count(l->module, &count);
	return error ? refuse_call(&l->reported, name, l->without, l->status.refused) : 0;
}

static int launch_call(struct remote_library *l, struct remote_function *f, const void *stream,
		       const uint64_t *slots, size_t count)
{
	struct launch launch = {.grid = {1, 1, 1},
				.block = {1, 1, 1},
				.packed = slots,
				.packed_bytes = count * sizeof *slots};
	int error = stream_number(stream, &launch.stream);

	if (!error)
		error = module_function(l->module, f->name, &launch.function);
	if (error)
		return refuse_call(&f->reported, f->name, l->without, l->status.refused);
	return enqueue_launch(&launch) ? l->status.failed : 0;
}

/* The proxy writes the status and what else the call gives into memory of the device. `result`: the
 * slot that gets the address of the answer's RESULT_AT, or 0. */
static int launch_and_wait(struct remote_library *l, struct remote_function *f, const void *stream,
			   uint64_t *slots, size_t count, uint64_t *answer, size_t answer_slots,
			   size_t result)
{
	size_t bytes = answer_slots * sizeof *answer;
	void *place = NULL;
	uint64_t number;
	int status;

	if (stream_idle_number(stream, &number)) /* a capture cannot wait */
		return l->status.failed;
	if (pool_alloc(&place, bytes, NULL, stream))
		return l->status.failed;
	slots[0] = (uint64_t)place;
	if (result)
		slots[result] = (uint64_t)place + RESULT_AT * sizeof *answer;
	status = launch_call(l, f, stream, slots, count);
	if (!status && memory_copy_1d(answer, place, bytes, DEVICE_TO_HOST, stream, false))
		status = l->status.failed;
	if (pool_free(place, stream) && !status)
		status = l->status.failed;
	return status ? status : (int)answer[0];
}

static int query(struct remote_library *l, struct remote_function *f, const void *stream,
		 uint64_t *slots, size_t count, uint64_t *answer, size_t answer_slots,
		 size_t result)
{
	int status = remote_ready(l, f->name);

	slots[0] = 0;
	if (status)
		return status;
	return answer ? launch_and_wait(l, f, stream, slots, count, answer, answer_slots, result)
		      : launch_call(l, f, stream, slots, count);
}

int remote_query(struct remote_library *l, struct remote_function *f, const void *stream,
		 uint64_t *slots, size_t count, uint64_t *answer, size_t answer_slots)
{
	return query(l, f, stream, slots, count, answer, answer_slots, 0);
}

int remote_send(struct remote_library *l, struct remote_function *f, const void *stream,
		const uint64_t *slots, size_t count, uint64_t *outs)
{
	uint64_t sent[1 + RF_CALL_SLOTS], answer[1 + RF_CALL_OUTS] = {0};
	int status;

	memcpy(sent + 1, slots, count * sizeof *slots);
	status = remote_query(l, f, stream, sent, 1 + count, outs ? answer : NULL,
			      1 + RF_CALL_OUTS);
	if (outs && !status)
		memcpy(outs, answer + 1, RF_CALL_OUTS * sizeof *outs);
	return status;
}

static size_t put_jacobi(uint64_t *slots, const struct jacobi *j)
{
	if (!j) { /* a null descriptor is the library's to refuse */
		memset(slots, 0, RF_JACOBI_SLOTS * sizeof *slots);
		return RF_JACOBI_SLOTS;
	}
	slots[0] = j->set | RF_JACOBI_THERE;
	memcpy(slots + 1, &j->tolerance, sizeof j->tolerance);
	slots[2] = (uint64_t)j->sweeps;
	slots[3] = (uint64_t)j->sort;
	return RF_JACOBI_SLOTS;
}

/* ---- a function with its parameters ---- */

struct sending {
	struct remote_library *l;
	struct remote_function *f;
	const uint64_t *values;
	const size_t *sizes;
	uint64_t slots[1 + RF_CALL_SLOTS];
	size_t count; /* of the slots, with the first */
	size_t result; /* the slot for the address of a result that the host gets; 0: there is none */
	size_t answer_slots;
	const struct handle *h;
	bool waits;
};

/* A number in host memory: a factor in the type that the library reads, or an element of the first
 * tensor. */
static int send_scalar(struct sending *s, char kind, uint64_t at)
{
	const char *tensor = strchr(s->f->kinds, 't');
	const void *of = tensor ? (const void *)s->values[tensor - s->f->kinds] : NULL;
	size_t bytes = kind == 'E' ? s->l->element_bytes(of) : of && s->l->has_doubles(of) ? 8 : 4;
	uint64_t *to = s->slots + s->count++;

	*to = 0;
	if (!at || !bytes || bytes > sizeof *to)
		return s->l->status.invalid;
	memcpy(to, (const void *)at, bytes);
	return 0;
}

static bool numbers_on_device(const struct sending *s) { return s->h->modes[BLAS_POINTERS]; }

/* A number in host memory is sent as it is, or, a result, gets a place on the device: the call of
 * the proxy does not wait for the GPU. */
static int send_number(struct sending *s, size_t i, char kind)
{
	uint64_t *to = s->slots + s->count, at = s->values[i];
	size_t sent = rf_slots_of(kind) * sizeof *to, size = s->sizes[i];
	size_t most = kind == 'y' ? RESULT_BYTES : sent;

	if (!at)
		return s->l->status.invalid;
	if (!size || size > most)
		return s->l->status.refused;
	memset(to, 0, sent);
	if (numbers_on_device(s)) {
		*to = at;
	} else if (kind == 'y') {
		s->result = s->count;
		s->slots[1] |= RF_BLAS_ON_DEVICE;
	} else {
		memcpy(to, (const void *)at, size);
	}
	s->waits |= !numbers_on_device(s) && strchr("yuU", kind);
	s->count += rf_slots_of(kind);
	return 0;
}

/* Puts a parameter into the slots; a status of the library. */
static int put_parameter(struct sending *s, size_t i)
{
	uint64_t value = s->values[i], *to = s->slots + s->count;
	char kind = s->f->kinds[i];

	switch (kind) {
	case 'h':
	case 'b':
		s->h = handle_get(s->l->handles, (const void *)value);
		if (!s->h)
			return s->l->status.no_handle;
		if (kind == 'b')
			s->l->put(to, kind, s->h);
		break;
	case 'j':
	case 'e': put_jacobi(to, (const void *)value); break;
	case 't':
	case 'a':
	case 'r':
	case 'q':
	case 'g':
	case 'o':
	case RF_ROW_FILTER:
	case RF_ROW_CONVOLUTION:
	case RF_ROW_POOLING:
	case RF_ROW_OPERATION:
	case RF_ROW_REDUCTION:
	case RF_ROW_LRN:
	case RF_ROW_CTC: s->l->put(to, kind, (const void *)value); break;
	case 'c':
	case 'C':
	case 'u':
	case 'U':
	case 'y': return send_number(s, i, kind);
	case 's':
	case 'E': return send_scalar(s, kind, value);
	case 'R': s->answer_slots += RF_RESULTS_SLOTS; /* fallthrough */
	case 'i':
	case 'l':
		if (!value)
			return s->l->status.invalid;
		s->waits = true;
		return 0;
	case 'm': s->waits = true; return 0;
	case 'n':
		return value ? refuse_call(&s->f->reported, s->f->name,
					   "a result in host memory is not supported by rankfold",
					   s->l->status.refused)
			     : 0;
	case 'd':
	case 'w':
	case 'x': return 0;
	default: *to = value;
	}
	s->count += rf_slots_of(kind);
	return 0;
}

static void store_outs(const struct sending *s, const uint64_t *answer)
{
	const uint64_t *outs = answer + 1;
	const char *kinds = s->f->kinds;
	uint32_t most = (uint32_t)*outs; /* results, if there are any */

	for (size_t i = 0; kinds[i]; i++) {
		void *to = (void *)s->values[i];

		if (strchr("ilm", kinds[i]) && to)
			memcpy(to, outs, kinds[i] == 'i' ? 4 : 8);
		else if (strchr("uU", kinds[i]) && !numbers_on_device(s))
			memcpy(to, outs, s->sizes[i]);
		else if (kinds[i] == 'N' && s->values[i] < most)
			most = (uint32_t)s->values[i];
		else if (kinds[i] == 'R')
			memcpy(to, outs,
			       (most < RF_RESULTS ? most : RF_RESULTS) * RF_RESULT_SLOTS *
				       sizeof *outs);
		else if (kinds[i] == 'y' && s->result)
			memcpy(to, answer + RESULT_AT, s->sizes[i]);
		outs += rf_outs_of(kinds[i]);
	}
}

int remote_call(struct remote_library *l, struct remote_function *f, const uint64_t *values,
		const size_t *sizes, int checked)
{
	struct sending s;
	uint64_t answer[ANSWER_SLOTS + RF_RESULTS_SLOTS];
	int status = checked == l->status.refused ? 0 : checked;

	s.l = l;
	s.f = f;
	s.values = values;
	s.sizes = sizes;
	s.count = 1;
	s.result = 0;
	s.answer_slots = ANSWER_SLOTS;
	s.h = NULL;
	s.waits = checked && !atomic_load_explicit(&captures_active, memory_order_relaxed);
	for (size_t i = 0; f->kinds[i] && !status; i++)
		status = put_parameter(&s, i);
	if (status)
		return status;
	status = query(l, f, s.h ? s.h->stream : NULL, s.slots, s.count, s.waits ? answer : NULL,
		       s.answer_slots, s.result);
	if (!status && s.waits)
		store_outs(&s, answer);
	return status;
}
