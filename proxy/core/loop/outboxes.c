/* outboxes.c: outboxes of jobs in the memory of their devices (hal_outbox), which other devices
 * read directly. Python passes the descriptors on; a pair of devices without one uses host
 * memory.
 *
 * Functions named run_… run in the loop's thread; the others run in the caller's thread.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "loop/internal.h"
#include "loop/job.h"
#include "loop/mailbox.h"

struct outbox_call { /* arguments of both calls */
	uint64_t job;
	uint32_t device;
	struct proxy_outbox *outbox;
	char *error;
	uint32_t error_bytes;
	int result;
};

/* The job, if this device may have an outbox for `device` of it. */
static struct job *job_for(struct proxy *p, const struct outbox_call *a, bool own)
{
	struct job *j = job_find(p, a->job);

	if (!j || !j->peer || (own ? j->device : a->device) >= j->device_count ||
	    (!own && a->device == j->device)) {
		snprintf(a->error, a->error_bytes, "the job has no such device");
		return NULL;
	}
	if (!p->device.hal->outbox_create) {
		snprintf(a->error, a->error_bytes,
			 "devices of type %s have no memory that others read directly",
			 p->device.hal->type);
		return NULL;
	}
	return j;
}

static void run_outbox(struct proxy *p, void *arg)
{
	struct outbox_call *a = arg;
	struct job *j = job_for(p, a, true);
	const struct hal_outbox *own = j ? peer_outbox(j->peer, j->device) : NULL;
	struct hal_outbox made = {0};

	if (!j)
		return;
	if (!own->addr) {
		if (p->device.hal->outbox_create(p->device.opened, &made, a->error, a->error_bytes))
			return;
		peer_outbox_set(j->peer, j->device, &made);
	}
	a->outbox->fd = own->fd;
	a->outbox->bytes = own->bytes;
	memcpy(a->outbox->gpu, own->gpu, sizeof own->gpu);
	a->result = 0;
}

int proxy_job_outbox(struct proxy *p, uint64_t job, struct proxy_outbox *outbox, char *error,
		     uint32_t error_bytes)
{
	struct outbox_call a = {.job = job,
				.outbox = outbox,
				.error = error,
				.error_bytes = error_bytes,
				.result = -1};
	in_loop(p, run_outbox, &a);
	return a.result;
}

static void run_outbox_open(struct proxy *p, void *arg)
{
	struct outbox_call *a = arg;
	struct job *j = job_for(p, a, false);
	struct hal_outbox found = {.bytes = a->outbox->bytes, .fd = a->outbox->fd};

	if (!j)
		return;
	if (!peer_outbox(j->peer, a->device)->addr) {
		memcpy(found.gpu, a->outbox->gpu, sizeof found.gpu);
		if (p->device.hal->outbox_open(p->device.opened, &found, a->error, a->error_bytes))
			return;
		found.fd = -1;
		peer_outbox_set(j->peer, a->device, &found);
	}
	a->result = 0;
}

int proxy_job_outbox_open(struct proxy *p, uint64_t job, uint32_t device,
			  const struct proxy_outbox *outbox, char *error, uint32_t error_bytes)
{
	struct proxy_outbox copy = *outbox;
	struct outbox_call a = {.job = job,
				.device = device,
				.outbox = &copy,
				.error = error,
				.error_bytes = error_bytes,
				.result = -1};
	in_loop(p, run_outbox_open, &a);
	return a.result;
}

void outboxes_close(struct job *j)
{
	const struct proxy *p = j->proxy;

	for (uint32_t i = 0; j->peer && i < j->device_count; i++) {
		const struct hal_outbox *outbox = peer_outbox(j->peer, i);

		if (!outbox->addr)
			continue;
		p->device.hal->outbox_close(p->device.opened, outbox);
		if (outbox->fd >= 0)
			close(outbox->fd);
	}
}
