/* remote.c: sends calls of NVIDIA's own libraries to the proxy. */
#include "bodies.h"

#include <string.h>

static int register_library(struct remote_library *l)
{
	lock(CARRIED_LOCK);
	if (!l->module)
		l->module = module_register(l->image);
	unlock(CARRIED_LOCK);
	return l->module ? CUDA_OK : OUT_OF_MEMORY;
}

struct remote_library remote_cublas = {.image = RF_LIBRARY_TEXT "cublas"};

/* The module is dropped again, so that the rank may move to devices without the library. Each
 * thread that asks has its own. */
bool remote_is_there(struct remote_library *l)
{
	int there = atomic_load_explicit(&l->there, memory_order_relaxed);
	struct module *m;
	unsigned count;

	if (there)
		return there > 0;
	m = context_use_device() ? NULL : module_register(l->image);
	if (!m)
		return false;
	module_is_optional(m);
	there = module_function_count(m, &count) ? -1 : 1;
	if (there > 0)
		module_drop(m);
	atomic_store(&l->there, there);
	return there > 0;
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

/* The proxy writes the status and what else the call gives into memory of the device. */
static int launch_and_wait(struct remote_library *l, struct remote_function *f, const void *stream,
			   uint64_t *slots, size_t count, uint64_t *answer, size_t answer_slots)
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
	status = launch_call(l, f, stream, slots, count);
	if (!status && memory_copy_1d(answer, place, bytes, DEVICE_TO_HOST, stream, false))
		status = l->status.failed;
	if (pool_free(place, stream) && !status)
		status = l->status.failed;
	return status ? status : (int)answer[0];
}

int remote_query(struct remote_library *l, struct remote_function *f, const void *stream,
		 uint64_t *slots, size_t count, uint64_t *answer, size_t answer_slots)
{
	int status = remote_ready(l, f->name);

	slots[0] = 0;
	if (status)
		return status;
	return answer ? launch_and_wait(l, f, stream, slots, count, answer, answer_slots)
		      : launch_call(l, f, stream, slots, count);
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

static void store_outs(const char *kinds, const uint64_t *values, const uint64_t *outs)
{
	for (; *kinds; kinds++, values++) {
		if (!strchr("ilm", *kinds))
			continue;
		if (*values)
			memcpy((void *)*values, outs, *kinds == 'i' ? 4 : 8);
		outs++;
	}
}

/* A factor in host memory, in the type that the library reads. */
static uint64_t sent_scalar(const struct remote_library *l, const char *kinds,
			    const uint64_t *values, uint64_t at)
{
	const char *tensor = strchr(kinds, 't');
	size_t bytes = tensor && l->has_doubles((const void *)values[tensor - kinds]) ? 8 : 4;
	uint64_t value = 0;

	memcpy(&value, (const void *)at, bytes);
	return value;
}

int remote_call(struct remote_library *l, struct remote_function *f, const uint64_t *values)
{
	uint64_t slots[RF_CALL_SLOTS], outs[RF_CALL_OUTS];
	const struct handle *h = NULL;
	bool waits = false;
	size_t count = 0;
	int status;

	for (size_t i = 0; f->kinds[i]; i++)
		switch (f->kinds[i]) {
		case 'h': h = handle_get(l->handles, (const void *)values[i]); break;
		case 'j':
		case 'e': count += put_jacobi(slots + count, (const void *)values[i]); break;
		case 't':
		case 'a':
		case 'r':
		case 'q':
		case 'g':
			l->put(slots + count, f->kinds[i], (const void *)values[i]);
			count += rf_slots_of(f->kinds[i]);
			break;
		case 's':
			if (!values[i])
				return l->status.invalid;
			slots[count++] = sent_scalar(l, f->kinds, values, values[i]);
			break;
		case 'i':
		case 'l':
			if (!values[i])
				return l->status.invalid;
			waits = true;
			break;
		case 'm': waits = true; break;
		case 'n':
			if (values[i])
				return refuse_call(
					&f->reported, f->name,
					"a result in host memory is not supported by rankfold",
					l->status.refused);
			break;
		case 'd':
		case 'w': break;
		default: slots[count++] = values[i];
		}
	if (!h)
		return l->status.no_handle;
	status = remote_send(l, f, h->stream, slots, count, waits ? outs : NULL);
	if (!status && waits)
		store_outs(f->kinds, values, outs);
	return status;
}
