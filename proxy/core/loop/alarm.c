/* alarm.c: alarms: contents of a job that should be equal and are not (crosscheck/crosscheck.h).
 * After an alarm no rank of the job shares or squashes anything, on all of its devices and wherever
 * it moves, and the alarm is reported as an event.
 *
 * Each device compares contents of its own ranks, and sends each content once per check to the
 * lowest device, which compares those of all devices. The device that finds a difference sends an
 * alarm to all others. It is unknown which side is right, and the cause may have affected other
 * contents, too: so the whole job stops sharing.
 */
#include "loop/alarm.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "loop/internal.h"
#include "loop/job.h"
#include "loop/mailbox.h"
#include "plural.h"
#include "rank/rank.h"

enum { MESSAGE_PAIR = 1, MESSAGE_ALARM, MESSAGE_DISSENT };

struct crosscheck_message {
	uint32_t kind, reserved;
	struct pair pair;
	struct witness other; /* ALARM: the rank with other bytes */
};
struct dissent_message {
	uint32_t kind, reserved;
	struct dissent dissent;
	char kernel[LAUNCH_NAME_BYTES];
};
_Static_assert(sizeof(struct dissent_message) <= PEER_MESSAGE_BYTES, "a message fits");
_Static_assert(sizeof(struct crosscheck_message) <= PEER_MESSAGE_BYTES, "a message fits");

/* ---- alarms ---- */

static void device_text(const struct job *j, uint32_t device, char *out, size_t bytes)
{
	const char *at = j->crosscheck.names, *end = at ? strchr(at, '\n') : NULL;
	for (uint32_t n = 0; end && n < device; n++) {
		at = end + 1;
		end = strchr(at, '\n');
	}
	if (end)
		snprintf(out, bytes, "%.*s", (int)(end - at), at);
	else
		snprintf(out, bytes, "device %u", device);
}

static void alarm_text(const struct job *j, const struct witness *w, const struct witness *o,
		       char text[ALARM_BYTES])
{
	char one[64], other[64];
	device_text(j, w->device, one, sizeof one);
	device_text(j, o->device, other, sizeof other);
	snprintf(text, ALARM_BYTES,
		 "rank %u on %s has bytes that differ from those of rank %u on %s, where they must "
		 "be equal: %llu byte%s at %#llx, in its buffer of %llu byte%s at %#llx (call site "
		 "%#llx), before collective %llu of communicator %#llx; rank %u's are at %#llx, "
		 "before collective %llu of %#llx",
		 w->rank, one, o->rank, other, (unsigned long long)w->bytes, plural(w->bytes),
		 (unsigned long long)w->addr, (unsigned long long)w->buffer_bytes,
		 plural(w->buffer_bytes), (unsigned long long)w->buffer,
		 (unsigned long long)w->call_site, (unsigned long long)w->number,
		 (unsigned long long)w->key, o->rank, (unsigned long long)o->addr,
		 (unsigned long long)o->number, (unsigned long long)o->key);
}

void crosscheck_restore_alarm(struct job *j, const char *text)
{
	struct job_crosscheck *g = &j->crosscheck;
	struct proxy_event e = {.kind = PROXY_EVENT_ALARM, .job = j->id};
	for (uint32_t i = 0; i < g->count; i++)
		if (!strcmp(g->alarms[i], text))
			return;
	if (g->count == ALARMS_MAX)
		return;
	snprintf(g->alarms[g->count++], ALARM_BYTES, "%s", text);
	launches_forget(&j->world.launches);
	for (uint32_t n = 0; n < j->world.size; n++)
		if (j->world.ranks[n])
			memory_distrust(&j->world.ranks[n]->memory);
	snprintf(e.text, sizeof e.text, "%s", text);
	post_event(j->proxy, &e);
}

static void raise_alarm(struct job *j, const struct pair *pair, const struct witness *other)
{
	struct job_crosscheck *g = &j->crosscheck;
	const struct witness *w = &pair->who;
	char text[ALARM_BYTES];
	uint32_t low = w->rank < other->rank ? w->rank : other->rank;
	uint32_t high = w->rank + other->rank - low;
	for (uint32_t i = 0; i < g->raised_count; i++)
		if (g->raised[i].low == low && g->raised[i].high == high &&
		    g->raised[i].addr == w->addr)
			return;
	if (g->raised_count == ALARMS_MAX)
		return;
	g->raised[g->raised_count].low = low;
	g->raised[g->raised_count].high = high;
	g->raised[g->raised_count++].addr = w->addr;
	alarm_text(j, w, other, text);
	crosscheck_restore_alarm(j, text);
}

/* ---- to and from other devices ---- */

static void send_pair(struct job *j, uint32_t to, uint32_t kind, const struct pair *pair,
		      const struct witness *other)
{
	struct crosscheck_message message = {.kind = kind, .pair = *pair, .other = *other};
	struct peer_message m = {0};
	memcpy(&m, &message, sizeof message);
	peer_send(j->peer, to, PEER_CROSSCHECK, &m);
}

/* Compares the content with known ones. False: it need not be forwarded. */
static bool compare_pair(struct job *j, const struct pair *pair)
{
	struct witness other = {0};
	enum pair_is is = pairs_add(&j->crosscheck.pairs, pair, &other);
	if (is != PAIR_DIFFERS)
		return is != PAIR_KNOWN;
	raise_alarm(j, pair, &other);
	for (uint32_t n = 0; n < j->device_count && j->peer; n++)
		if (n != j->device)
			send_pair(j, n, MESSAGE_ALARM, pair, &other);
	return false;
}

/* ---- opaque kernels ---- */

static void note_dissent(struct job *j, const char *kernel, const struct dissent *d)
{
	char text[ALARM_BYTES];
	snprintf(
		text, sizeof text,
		"opaque code: kernel %.*s, after collective %llu of communicator %#llx, had "
		"different effects for rank %u and rank %u; before, its effects were equal, last "
		"after collective %llu: results that were computed once for both since then may be "
		"wrong",
		(int)LAUNCH_NAME_BYTES, kernel, (unsigned long long)d->number,
		(unsigned long long)d->key, d->rank, d->other, (unsigned long long)d->equal_number);
	crosscheck_restore_alarm(j, text);
}

void crosscheck_dissent(struct job *j, const char *kernel, const struct dissent *d)
{
	struct dissent_message message = {.kind = MESSAGE_DISSENT, .dissent = *d};
	struct peer_message m = {0};
	snprintf(message.kernel, sizeof message.kernel, "%s", kernel);
	memcpy(&m, &message, sizeof message);
	for (uint32_t n = 0; n < j->device_count && j->peer; n++)
		if (n != j->device)
			peer_send(j->peer, n, PEER_CROSSCHECK, &m);
	note_dissent(j, message.kernel, d);
}

static void receive_dissent(struct job *j, const struct peer_message *m)
{
	struct dissent_message message;
	memcpy(&message, m, sizeof message);
	message.kernel[sizeof message.kernel - 1] = 0;
	if (message.dissent.rank >= j->world.size || message.dissent.other >= j->world.size)
		job_fail(j, "a peer's messages are damaged");
	else
		note_dissent(j, message.kernel, &message.dissent);
}

void crosscheck_receive(struct job *j, uint32_t from, const struct peer_message *m)
{
	struct crosscheck_message message;
	(void)from;
	memcpy(&message, m, sizeof message);
	if (message.kind == MESSAGE_DISSENT) {
		receive_dissent(j, m);
		return;
	}
	if (message.pair.who.rank >= j->world.size || message.other.rank >= j->world.size) {
		job_fail(j, "a peer's messages are damaged");
		return;
	}
	if (message.kind == MESSAGE_ALARM)
		raise_alarm(j, &message.pair, &message.other);
	else if (message.kind == MESSAGE_PAIR)
		compare_pair(j, &message.pair);
	else
		job_fail(j, "a peer's messages are damaged");
}

/* ---- ranks ---- */

static void on_pair(void *job, const struct pair *pair)
{
	struct job *j = job;
	const struct witness none = {0};
	j->crosscheck.checked++;
	if (compare_pair(j, pair) && j->device != 0)
		send_pair(j, 0, MESSAGE_PAIR, pair, &none);
}

void crosscheck_turn(struct proxy *p)
{
	for (uint32_t i = 0; i < p->device.rank_count; i++) {
		struct rank *r = p->device.ranks[i];
		if (check_holds(&r->check) &&
		    check_turn(&r->check, &r->memory, &p->checks, &r->job->crosscheck.pairs,
			       r->async_error || r->end.closing, now_ns(), on_pair, r->job))
			turn_progress(&p->device.turn);
	}
}

uint64_t crosscheck_deadline_ns(const struct proxy *p)
{
	uint64_t first = 0;
	for (uint32_t i = 0; i < p->device.rank_count; i++) {
		uint64_t its = check_deadline_ns(&p->device.ranks[i]->check);
		if (its && (!first || its < first))
			first = its;
	}
	return first;
}

uint64_t crosscheck_every(const struct job *j)
{
	return j->proxy->device.memory.shares && j->world.size > 1 ? j->proxy->device.validate : 0;
}

void crosscheck_attached(struct rank *r, bool arrives)
{
	struct job *j = r->job;
	check_open(&r->check, crosscheck_every(j), j->device, arrives);
	if (j->crosscheck.count)
		memory_distrust(&r->memory);
}

void crosscheck_close(struct job *j)
{
	pairs_close(&j->crosscheck.pairs);
	launches_forget(&j->world.launches);
	free(j->crosscheck.names);
}

struct naming {
	uint64_t job;
	const char *names;
	int result;
};

static void run_names(struct proxy *p, void *arg)
{
	struct naming *a = arg;
	struct job *j = job_find(p, a->job);
	if (!j || j->crosscheck.names)
		return;
	j->crosscheck.names = strdup(a->names);
	a->result = 0;
}

int proxy_job_names(struct proxy *p, uint64_t job, const char *names)
{
	struct naming a = {job, names, -1};
	in_loop(p, run_names, &a);
	return a.result;
}
