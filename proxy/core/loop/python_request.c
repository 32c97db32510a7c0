/* python_request.c: requests to the proxy's Python half: posted, and never waited for.
 *
 * Loading a module and compiling a function happen elsewhere and take time; the answer arrives as a
 * call with the request's token. When a rank is detached, its requests are dropped.
 */
#include <stdlib.h>
#include <string.h>

#include "invariant.h"
#include "loop/internal.h"
#include "loop/job.h"
#include "loop/mailbox.h"
#include "loop/python_request.h"
#include "rank/module.h"
#include "rank/rank.h"

struct python_request *python_request_new(struct rank *r, uint64_t object, uint16_t slot,
					  uint32_t bulk)
{
	struct proxy *p = r->proxy;
	struct python_request *a = calloc(1, sizeof *a);
	if (!a)
		return NULL;
	*a = (struct python_request){p->python_requests, ++p->next_token, r, object, slot, bulk};
	p->python_requests = a;
	r->pending += slot != 0; /* without a slot the proxy waits, not the rank */
	return a;
}

/* Removes the request with this token from the list; its rank no longer waits for it. The caller
 * frees it. */
struct python_request *python_request_take(struct proxy *p, uint64_t token)
{
	for (struct python_request **at = &p->python_requests; *at; at = &(*at)->next) {
		struct python_request *a = *at;
		if (a->token != token)
			continue;
		*at = a->next;
		if (a->rank) {
			INVARIANT(a->rank->pending >= (a->slot != 0),
				  "a request that is answered was counted");
			a->rank->pending -= a->slot != 0;
		}
		turn_progress(&p->device.turn);
		return a;
	}
	return NULL;
}

/* Finds a request by its handle: joining a communicator is a request to the other ranks. */
struct python_request *python_request_take_object(struct rank *r, uint64_t object)
{
	for (struct python_request *a = r->proxy->python_requests; a; a = a->next)
		if (a->rank == r && a->object == object)
			return python_request_take(r->proxy, a->token);
	return NULL;
}

/* Drops the rank's requests. Later answers find none. */
void python_request_forget(struct rank *r)
{
	for (struct python_request **at = &r->proxy->python_requests; *at;) {
		struct python_request *a = *at;
		if (a->rank != r) {
			at = &a->next;
			continue;
		}
		*at = a->next;
		free(a);
	}
}

static void post(struct rank *r, struct proxy_event *e, const struct python_request *a)
{
	e->job = r->job->id;
	e->rank = r->rank;
	e->token = a->token;
	post_event(r->proxy, e);
}

/* slot 0: a module of a restored rank, known by its hash. why: as in struct rf_module_load. */
bool python_request_module(struct rank *r, struct module *m, uint32_t image_kind, uint16_t slot,
			   uint32_t why)
{
	struct python_request *a = python_request_new(r, m->o.id, slot, why);
	struct proxy_event e = {.kind = PROXY_EVENT_MODULE, .image_kind = image_kind};
	if (!a)
		return false;
	module_request(m);
	memcpy(e.text, m->hash, sizeof m->hash);
	e.data = m->image;
	e.bytes = m->image_bytes;
	post(r, &e, a);
	return true;
}

bool python_request_function(struct rank *r, struct function *f, uint16_t slot, uint32_t bulk)
{
	struct python_request *a = python_request_new(r, f->o.id, slot, bulk);
	struct proxy_event e = {.kind = PROXY_EVENT_FUNCTION};
	if (!a)
		return false;
	module_use(f->module);
	memcpy(e.text, f->module->hash, sizeof f->module->hash);
	snprintf(e.name, sizeof e.name, "%s", f->name);
	post(r, &e, a);
	return true;
}
