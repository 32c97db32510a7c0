/* job_links.c: links of a job's communicators to its other devices (hal.h, collective/link.c): the
 * collective engine's requests for them, and what its decisions were.
 */
#include <stdio.h>
#include <string.h>

#include "loop/internal.h"
#include "loop/job.h"
#include "loop/mailbox.h"
#include "plural.h"

static const struct hal *hal_of(void *job) { return ((struct job *)job)->proxy->device.hal; }

static struct hal_link *io_link_open(void *arg, char *text, uint32_t text_bytes)
{
	struct hal_link *link = NULL;

	if (!hal_of(arg)->link_open)
		snprintf(text, text_bytes, "devices of type %s have no library that joins them",
			 hal_of(arg)->type);
	else if (hal_of(arg)->link_open(((struct job *)arg)->proxy->device.opened, &link))
		snprintf(text, text_bytes, "a device has no memory for a communicator");
	return link;
}

static enum hal_link_state io_link_state(void *arg, struct hal_link *link,
					 struct hal_link_facts *facts, uint64_t *done)
{
	return hal_of(arg)->link_state(link, facts, done);
}

static void io_link_name(void *arg, struct hal_link *link) { hal_of(arg)->link_name(link); }

static void io_link_connect(void *arg, struct hal_link *link, const uint8_t *id, uint32_t members,
			    uint32_t member)
{
	hal_of(arg)->link_connect(link, id, members, member);
}

static void io_link_sum(void *arg, struct hal_link *link, uint64_t addr, uint64_t count,
			uint32_t dtype, uint32_t op)
{
	hal_of(arg)->link_sum(link, addr, count, dtype, (enum hal_reduction)op);
}

static void io_link_cancel(void *arg, struct hal_link *link) { hal_of(arg)->link_cancel(link); }

static void io_link_close(void *arg, struct hal_link *link, bool now)
{
	hal_of(arg)->link_close(link, now);
}

static void io_link_decided(void *arg, uint32_t nranks, uint64_t version, const char *why_not)
{
	struct job *j = arg;
	struct proxy_event e = {.kind = PROXY_EVENT_LINK, .job = j->id};

	if (*why_not) {
		j->links.refused++;
		snprintf(j->links.why_not, sizeof j->links.why_not, "%s", why_not);
		snprintf(e.text, sizeof e.text,
			 "sums of a communicator of %u rank%s go without NCCL: %s", nranks,
			 plural(nranks), why_not);
	} else {
		j->links.used++;
		snprintf(e.text, sizeof e.text,
			 "sums of a communicator of %u rank%s go by NCCL %llu.%llu.%llu", nranks,
			 plural(nranks), (unsigned long long)version / 10000,
			 (unsigned long long)version / 100 % 100,
			 (unsigned long long)version % 100);
	}
	post_event(j->proxy, &e);
}

void links_io(struct coll_io *io)
{
	io->link_open = io_link_open;
	io->link_state = io_link_state;
	io->link_name = io_link_name;
	io->link_connect = io_link_connect;
	io->link_sum = io_link_sum;
	io->link_cancel = io_link_cancel;
	io->link_close = io_link_close;
	io->link_decided = io_link_decided;
}

struct link_call { /* arguments of the call below */
	uint64_t job;
	int result;
};

static void run_allow(struct proxy *p, void *arg)
{
	struct link_call *a = arg;
	struct job *j = job_find(p, a->job);

	if (!j)
		return;
	coll_allow_links(j->world.coll);
	a->result = 0;
}

int proxy_job_allow_links(struct proxy *p, uint64_t job)
{
	struct link_call a = {job, -1};

	in_loop(p, run_allow, &a);
	return a.result;
}
