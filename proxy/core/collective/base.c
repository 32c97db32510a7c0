/* base.c: functions that the whole engine uses: failure, memory, messages, completions. See
 * engine.h.
 *
 * Rules: the first failure is reported once, and nothing happens after it; a message to the own
 * device waits in the inbox, so no handler runs inside another.
 */
#include "engine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void engine_fail(struct coll *c, const char *format, ...)
{
	char text[400];
	va_list args;

	if (c->failed)
		return;
	c->failed = true;
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	for (struct coll_comm *m = c->comms; m; m = m->next)
		if (m->link.at) /* a sum in progress there may never end */
			c->io.link_cancel(c->io.arg, m->link.at);
	c->io.failed(c->io.arg, text);
}

void *engine_new(struct coll *c, size_t bytes)
{
	void *p = calloc(1, bytes);

	if (!p)
		engine_fail(c, "the proxy is out of memory");
	return p;
}

uint64_t engine_hash(uint64_t a, uint64_t b, uint64_t c)
{
	uint64_t h = 0x9e3779b97f4a7c15ull, words[3] = {a, b, c};

	for (int i = 0; i < 3; i++) {
		h = (h ^ words[i]) * 0xbf58476d1ce4e5b9ull;
		h ^= h >> 29;
		h *= 0x94d049bb133111ebull;
		h ^= h >> 32;
	}
	return h ? h : 1;
}

void engine_send(struct coll *c, uint32_t to, const struct coll_message *m)
{
	if (to != c->device) {
		struct peer_message out = {{0}};

		memcpy(out.bytes, m, sizeof *m);
		c->io.send(c->io.arg, to, &out);
		return;
	}
	struct inbound *in = engine_new(c, sizeof *in);

	if (!in)
		return;
	in->from = to;
	in->m = *m;
	*c->inbox_end = in;
	c->inbox_end = &in->next;
}

void group_part_done(struct coll *c, struct coll_group *g)
{
	INVARIANT(!g || g->pending, "a group counts its parts that are not done");
	if (!g || --g->pending) /* none: its rank has aborted the communicator */
		return;
	g->next = c->done;
	c->done = g;
}

/* Peers may have learnt of a communicator earlier, and have sent messages for it. */
void engine_deliver_early(struct coll *c)
{
	struct inbound *early = c->early;

	c->early = NULL;
	c->early_count = 0;
	while (early) {
		struct inbound *next = early->next;

		early->next = NULL;
		*c->inbox_end = early;
		c->inbox_end = &early->next;
		early = next;
	}
}
