/* ask.c: requests to the proxy's Python half, posted and never waited for.
 *
 * Loading a module and compiling a function take their time elsewhere; the answer comes as a call
 * with the question's token. A rank that goes meanwhile takes its questions with it.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

struct ask *ask_new(struct rank *r, uint64_t object, uint16_t slot, uint32_t bulk)
{
	struct proxy *p = r->proxy;
	struct ask *a = calloc(1, sizeof *a);
	if (!a)
		return NULL;
	*a = (struct ask){p->asks, ++p->next_token, r, object, slot, bulk};
	p->asks = a;
	r->pending += slot != 0; /* without a slot it is our business, not the rank's */
	return a;
}

/* The question, out of the list; its rank no longer waits for it. Caller frees. */
struct ask *ask_take(struct proxy *p, uint64_t token)
{
	for (struct ask **at = &p->asks; *at; at = &(*at)->next) {
		struct ask *a = *at;
		if (a->token != token)
			continue;
		*at = a->next;
		if (a->rank)
			a->rank->pending -= a->slot != 0;
		turn_progress(&p->turn);
		return a;
	}
	return NULL;
}

/* A communicator's joining is a question to the other ranks, found by its handle. */
struct ask *ask_take_object(struct rank *r, uint64_t object)
{
	for (struct ask *a = r->proxy->asks; a; a = a->next)
		if (a->rank == r && a->object == object)
			return ask_take(r->proxy, a->token);
	return NULL;
}

/* Answers that come later find no question. */
void ask_forget(struct rank *r)
{
	for (struct ask **at = &r->proxy->asks; *at;) {
		struct ask *a = *at;
		if (a->rank != r) {
			at = &a->next;
			continue;
		}
		*at = a->next;
		free(a);
	}
}

static void post(struct rank *r, struct proxy_event *e, const struct ask *a)
{
	e->job = r->job->id;
	e->rank = r->rank;
	e->token = a->token;
	post_event(r->proxy, e);
}

/* slot 0: a module of a restored rank, known by its hash. */
bool ask_module(struct rank *r, struct module *m, uint32_t image_kind, uint16_t slot)
{
	struct ask *a = ask_new(r, m->o.id, slot, 0);
	struct proxy_event e = {.kind = PROXY_EVENT_MODULE, .image_kind = image_kind};
	if (!a)
		return false;
	module_ask(m);
	memcpy(e.text, m->hash, sizeof m->hash);
	e.data = m->image;
	e.bytes = m->image_bytes;
	post(r, &e, a);
	return true;
}

bool ask_function(struct rank *r, struct function *f, uint16_t slot, uint32_t bulk)
{
	struct ask *a = ask_new(r, f->o.id, slot, bulk);
	struct proxy_event e = {.kind = PROXY_EVENT_FUNCTION};
	if (!a)
		return false;
	module_use(f->module);
	memcpy(e.text, f->module->hash, sizeof f->module->hash);
	snprintf(e.name, sizeof e.name, "%s", f->name);
	post(r, &e, a);
	return true;
}
