/* api.c: the functions of proxy.h but those of status.c: each packs its arguments, runs a function
 * in the loop and returns its result.
 *
 * Functions named run_… run in the loop's thread and may access everything; the others run in the
 * caller's thread and access only their arguments.
 */
#include <stdlib.h>
#include <string.h>

#include "codes.h"
#include "loop/internal.h"
#include "loop/job.h"
#include "loop/mailbox.h"
#include "loop/python_request.h"
#include "plural.h"
#include "rank/fault.h"
#include "rank/module.h"
#include "rank/rank.h"

#define QUANTUM_NS 30000000000ull

static const struct hal *hal_by_name(const char *name)
{
	static const struct hal *const all[] = {&hal_soft, &hal_nvidia, &hal_null};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (!strcmp(name, all[i]->type))
			return all[i];
	return NULL;
}

/* Frees whatever parts of the proxy exist; its loop does not run. */
static void proxy_free(struct proxy *p)
{
	/* With jobs, work may be in progress, and the process ends anyway. */
	if (!p->jobs)
		transfer_close(&p->transfers), checks_close(&p->checks);
	device_memory_close(&p->device.memory, !p->jobs);
	if (p->device.opened)
		p->device.hal->device_close(
			p->device.opened); /* no worker rings the doorbell after this */
	if (p->mailbox)
		mailbox_close(p);
	free(p->device.ranks);
	free(p);
}

/* Devices with equal versions compute equal bits. */
static struct version arithmetic(const struct proxy *p)
{
	struct digest d;
	digest_begin(&d);
	digest_bytes(&d, p->device.hal->type, strlen(p->device.hal->type));
	digest_word(&d, p->device.hal->arithmetic(p->device.opened));
	return digest_end(&d);
}

struct proxy *proxy_open(const struct proxy_config *c, char *error, uint32_t error_bytes)
{
	struct proxy *p = calloc(1, sizeof *p);
	char text[256] = "the device cannot be opened";
	const char *why;
	snprintf(error, error_bytes, "%s device: out of host memory", c->hal);
	if (!p)
		return NULL;
	p->device.hal = hal_by_name(c->hal);
	p->mailbox = mailbox_open(p);
	p->hal_config = (struct hal_config){.memory_bytes = c->memory_bytes -
							    c->memory_bytes % RF_CHUNK_BYTES,
					    .workers = c->workers,
					    .cc_major = c->cc_major,
					    .cc_minor = c->cc_minor,
					    .speed = c->speed,
					    .ring = mailbox_ring,
					    .ring_arg = p,
					    .index = c->index,
					    .text = text,
					    .text_bytes = sizeof text};
	slice_open(p, c->quantum_ns ? c->quantum_ns : QUANTUM_NS);
	p->device.no_squash = c->no_squash;
	p->no_prefetch = c->no_prefetch;
	memory_log_moves(&p->device.memory, c->moves_fd);
	p->device.validate = c->validate;
	p->opaque = c->opaque;
	memory_may_share(&p->device.memory, c->share);
	if (!p->device.hal)
		why = "unknown kind of device";
	else if (c->memory_bytes < RF_CHUNK_BYTES)
		why = "a device needs at least 2 MiB of memory";
	else if (!p->mailbox)
		why = "out of host memory or descriptors";
	else if (p->device.hal->device_open(&p->hal_config, &p->device.opened))
		why = text;
	else if (!checks_open(&p->checks, p->device.hal, p->device.opened) ||
		 transfer_open(&p->transfers, p->device.hal, p->device.opened) ||
		 device_memory_open(&p->device.memory, p->device.hal, p->device.opened,
				    c->memory_bytes) ||
		 !mailbox_start(p))
		why = "the device's queues cannot be made";
	else {
		p->device.arithmetic = arithmetic(p);
		return p;
	}
	snprintf(error, error_bytes, "%s device: %s", c->hal, why);
	proxy_free(p);
	return NULL;
}

void proxy_close(struct proxy *p)
{
	mailbox_stop(p);
	proxy_free(p);
}

struct arguments { /* for all calls */
	uint64_t job, token;
	const struct job *fresh;
	uint32_t rank;
	int fd, fd2, error, request;
	const char *text, *hash, *function_names, *global_names;
	char *why;
	uint32_t why_bytes;
	uint64_t bytes;
	const uint8_t *data;
	uint32_t count, count2, count3;
	const uint64_t *offsets, *sizes;
	const struct proxy_function *function;
	const uint32_t *params;
	int result;
};

static void run_job_open(struct proxy *p, void *arg)
{
	struct arguments *a = arg;
	a->result = job_open(p, a->fresh, a->fd, a->why, a->why_bytes);
}

int proxy_job_open(struct proxy *p, uint64_t job, uint64_t epoch, uint32_t device,
		   uint32_t device_count, uint32_t world_size, const uint32_t *rank_device,
		   int segment_fd, char *error, uint32_t error_bytes)
{
	struct job j = {.id = job,
			.world = {.epoch = epoch, .size = world_size},
			.device = device,
			.device_count = device_count};
	if (!world_size || world_size > RANKS_MAX || !device_count || device_count > DEVICES_MAX ||
	    device >= device_count || !epoch) {
		snprintf(error, error_bytes, "a job of %u rank%s on %u device%s cannot be served",
			 world_size, plural(world_size), device_count, plural(device_count));
		return -1;
	}
	memcpy(j.rank_device, rank_device, world_size * sizeof *rank_device);
	struct arguments a = {
		.fresh = &j, .fd = segment_fd, .why = error, .why_bytes = error_bytes};
	in_loop(p, run_job_open, &a);
	return a.result;
}

static void run_job_close(struct proxy *p, void *arg)
{
	struct arguments *a = arg;
	struct job *j = job_find(p, a->job);
	if (!j || j->world.attached || j->goal != GOAL_RUN)
		return;
	job_close(p, j);
	a->result = 0;
}

static int call_job(struct proxy *p, void (*run)(struct proxy *, void *), uint64_t job, int request,
		    const char *text)
{
	struct arguments a = {.job = job, .request = request, .text = text, .result = -1};
	in_loop(p, run, &a);
	return a.result;
}

int proxy_job_close(struct proxy *p, uint64_t job)
{
	return call_job(p, run_job_close, job, 0, NULL);
}

static void run_job_aim(struct proxy *p, void *arg)
{
	struct arguments *a = arg;
	struct job *j = job_find(p, a->job);
	if (j)
		a->result = job_aim(j, (enum job_goal)a->request);
}

int proxy_job_save(struct proxy *p, uint64_t job)
{
	return call_job(p, run_job_aim, job, GOAL_SAVE, NULL);
}

int proxy_job_leave(struct proxy *p, uint64_t job)
{
	return call_job(p, run_job_aim, job, GOAL_LEAVE, NULL);
}

int proxy_job_discard(struct proxy *p, uint64_t job)
{
	return call_job(p, run_job_aim, job, GOAL_DISCARD, NULL);
}

static void run_job_barrier(struct proxy *p, void *arg)
{
	struct arguments *a = arg;
	struct job *j = job_find(p, a->job);
	if (!j || j->goal == GOAL_SAVE || j->goal == GOAL_LEAVE || j->world.state > PROXY_JOB_CUT)
		return;
	job_barrier(j, a->request);
	a->result = 0;
}

int proxy_job_barrier(struct proxy *p, uint64_t job, int request)
{
	return call_job(p, run_job_barrier, job, request, NULL);
}

static void run_job_hurry(struct proxy *p, void *arg)
{
	struct arguments *a = arg;
	struct job *j = job_find(p, a->job);
	if (!j)
		return;
	job_hurry(j);
	a->result = 0;
}

int proxy_job_hurry(struct proxy *p, uint64_t job)
{
	return call_job(p, run_job_hurry, job, 0, NULL);
}

static void run_job_fail(struct proxy *p, void *arg)
{
	struct arguments *a = arg;
	struct job *j = job_find(p, a->job);
	if (!j)
		return;
	job_fail(j, a->text);
	a->result = 0;
}

int proxy_job_fail(struct proxy *p, uint64_t job, const char *text)
{
	return call_job(p, run_job_fail, job, 0, text);
}

static void run_rank_attach(struct proxy *p, void *arg)
{
	struct arguments *a = arg;
	struct job *j = job_find(p, a->job);
	if (!j || a->rank >= j->world.size || j->rank_device[a->rank] != j->device ||
	    j->world.ranks[a->rank] || j->goal >= GOAL_LEAVE) {
		snprintf(a->why, a->why_bytes, "rank %u is not placed here", a->rank);
		return;
	}
	if (rank_attach(j, a->rank, a->fd, a->fd2, a->why, a->why_bytes))
		a->result = 0;
}

int proxy_rank_attach(struct proxy *p, uint64_t job, uint32_t rank, int channel_fd, int image_fd,
		      char *error, uint32_t error_bytes)
{
	struct arguments a = {.job = job,
			      .rank = rank,
			      .fd = channel_fd,
			      .fd2 = image_fd,
			      .why = error,
			      .why_bytes = error_bytes,
			      .result = -1};
	in_loop(p, run_rank_attach, &a);
	return a.result;
}

static void run_rank_exited(struct proxy *p, void *arg)
{
	struct arguments *a = arg;
	struct job *j = job_find(p, a->job);
	if (!j || a->rank >= j->world.size)
		return;
	job_rank_exited(j, a->rank, a->request);
	a->result = 0;
}

int proxy_rank_exited(struct proxy *p, uint64_t job, uint32_t rank, int how)
{
	struct arguments a = {.job = job, .rank = rank, .request = how, .result = -1};
	in_loop(p, run_rank_exited, &a);
	return a.result;
}

/* ---- answers ---- */

/* Writes the reason of an error, for people, into a bulk slot of the client. */
static void explain(struct rank *r, uint32_t slot, const char *why)
{
	uint8_t *bulk = ring_bulk(r, (uint64_t)slot * RF_BULK_BYTES, RF_BULK_BYTES);
	if (bulk)
		snprintf((char *)bulk, RF_BULK_BYTES, "%s", why);
}

/* Tells the program why its code cannot be loaded. If it did not cause that, its rank fails:
 * programs ignore such errors (CUB does) and would continue without the results of a kernel. */
static void code_refused(struct rank *r, const struct arguments *a, bool asked, uint32_t slot)
{
	if (a->error == CU_UNKNOWN)
		rank_fail(r, a->error, a->text);
	else if (asked)
		explain(r, slot, a->text);
}

static void not_here(struct rank *r, int error, const char *why)
{
	char text[512];
	snprintf(text, sizeof text, "a module of the moved rank cannot be loaded here: %s", why);
	rank_fail(r, error, text);
}

static void run_module_ready(struct proxy *p, void *arg)
{
	struct arguments *a = arg;
	struct python_request *ask = python_request_take(p, a->token);
	struct rank *r = ask ? ask->rank : NULL;
	struct module *m = r ? (struct module *)table_get(&r->objects, ask->object, OBJ_MODULE)
			     : NULL;
	a->result = 0;
	if (m) {
		const struct module_contents contents = {
			.hash = a->hash,
			.globals_bytes = a->bytes,
			.globals = a->data,
			.function_count = a->count,
			.global_count = a->count2,
			.managed_count = a->count3,
			.function_names = a->function_names,
			.global_names = a->global_names,
			.global_offsets = a->offsets,
			.global_sizes = a->sizes,
		};
		a->error = module_answered(r, m, a->error, &contents);
		struct rf_module_reply reply = {
			m->globals_bytes, m->function_count,
			m->global_count | (m->managed_count ? RF_GLOBALS_MANAGED : 0)};
		if (a->error)
			code_refused(r, a, ask->bulk, ask->bulk - 1);
		ring_reply(r, ask->slot, a->error, &reply, sizeof reply);
		if (a->error && !ask->slot)
			not_here(r, a->error, a->text);
		if (a->error && ask->slot)
			module_unload(r, m); /* a client that tries again sends it again */
		module_release(r, m);
	}
	free(ask);
}

int proxy_module_ready(struct proxy *p, uint64_t token, int error, const char *why,
		       const char *hash, uint64_t globals_bytes, const uint8_t *globals_image,
		       uint32_t function_count, const char *function_names, uint32_t global_count,
		       uint32_t managed_count, const char *global_names,
		       const uint64_t *global_offsets, const uint64_t *global_sizes)
{
	struct arguments a = {.token = token,
			      .error = error,
			      .text = why,
			      .hash = hash,
			      .bytes = globals_bytes,
			      .data = globals_image,
			      .count = function_count,
			      .function_names = function_names,
			      .count2 = global_count,
			      .count3 = managed_count,
			      .global_names = global_names,
			      .offsets = global_offsets,
			      .sizes = global_sizes};
	in_loop(p, run_module_ready, &a);
	return a.result;
}

/* Removes a function if the client was informed that it does not exist. */
static void function_answered(struct rank *r, struct function *f, bool refused)
{
	struct module *m = f->module;
	if (refused) {
		table_remove(&r->objects, f->o.id);
		function_free(f);
	}
	module_release(r, m);
}

static void run_function_ready(struct proxy *p, void *arg)
{
	struct arguments *a = arg;
	struct python_request *ask = python_request_take(p, a->token);
	struct rank *r = ask ? ask->rank : NULL;
	struct function *f = r ? (struct function *)table_get(&r->objects, ask->object,
							      OBJ_FUNCTION)
			       : NULL;
	const struct proxy_function *from = a->function;
	char unfit[RF_NAME_MAX + 200];
	if (f && !a->error && (a->error = function_fill(f, from, a->params))) {
		snprintf(unfit, sizeof unfit, "kernel %s: %s", f->name, function_unfit(a->error));
		a->text = unfit;
	}
	if (f && !a->error && p->opaque)
		function_hide(f);
	if (f && !a->error) {
		uint8_t *bulk = ring_bulk(r, (uint64_t)ask->bulk * RF_BULK_BYTES,
					  from->param_count * sizeof(struct rf_param));
		if (ask->slot && bulk)
			memcpy(bulk, f->params, from->param_count * sizeof(struct rf_param));
		struct rf_function_reply reply = {from->param_count,         from->param_bytes,
						  from->static_shared_bytes, from->max_threads,
						  from->registers,           from->local_bytes,
						  from->const_bytes,         from->ptx_version};
		ring_reply(r, ask->slot, CU_OK, &reply, sizeof reply);
	} else if (f) {
		function_refuse(f, a->error, a->text);
		code_refused(r, a, ask->slot, ask->bulk);
		ring_reply(r, ask->slot, a->error, NULL, 0);
	}
	if (f)
		function_answered(r, f, a->error && ask->slot);
	free(ask);
}

int proxy_function_ready(struct proxy *p, uint64_t token, int error, const char *why,
			 const struct proxy_function *function, const uint32_t *params)
{
	struct arguments a = {.token = token,
			      .error = error,
			      .text = why,
			      .function = function,
			      .params = params};
	in_loop(p, run_function_ready, &a);
	return a.result;
}
