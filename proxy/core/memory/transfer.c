/* transfer.c: the transfers of collectives, in order (transfer.h). They reach a rank's memory where
 * it lies, on the device or in the image, and wait while it moves, or for chunks of its own where
 * they write what it shares. */
#include <stdlib.h>

#include "reduce.h"
#include "transfer.h"

int transfer_open(struct transfers *q, const struct hal *hal, struct hal_device *device)
{
	q->hal = hal;
	return hal->stream_create(device, &q->stream);
}

void transfer_close(struct transfers *q)
{
	if (q->stream)
		q->hal->stream_destroy(q->stream);
	q->stream = NULL;
}

void transfer_push(struct transfers *q, struct transfer *t)
{
	t->next = NULL;
	if (q->last)
		q->last->next = t;
	else
		q->first = t;
	q->last = t;
	if (!q->next)
		q->next = t;
	q->progress = true;
}

static bool submit_work(struct transfers *q, struct transfer *t)
{
	if (!q->hal->room(q->stream))
		return false;
	t->hal_seq = q->hal->submit(q->stream, &t->work);
	t->error = t->hal_seq ? NCCL_OK : NCCL_SYSTEM_ERROR;
	return true;
}

static void asked(void *transfer, enum memory_purpose purpose, int result)
{
	struct transfer *t = transfer;
	(void)purpose;
	if (result && result != MEMORY_CANCELLED)
		t->error = NCCL_SYSTEM_ERROR;
}

/* May all of it be written? It must be before the first piece is on its way: then nothing of the
 * rank's moves or comes to be shared until the last one has completed. */
static bool may_write(struct transfer *t)
{
	struct rank_memory *m = t->memory;
	if (t->kind != TRANSFER_WRITE || t->hal_seq || memory_owns(m, t->addr, t->bytes))
		return true;
	if (m->stopped) /* it gets nothing any more */
		t->error = NCCL_SYSTEM_ERROR;
	else
		memory_ask(m, &(struct memory_request){.purpose = PURPOSE_COPY,
						       .addr = t->addr,
						       .bytes = t->bytes,
						       .over = asked,
						       .arg = t});
	return false;
}

/* True when all of it has been submitted. */
static bool submit(struct transfers *q, struct transfer *t)
{
	if (t->kind == TRANSFER_WORK)
		return submit_work(q, t);
	struct rank_memory *m = t->memory;
	if (!m || t->error)
		return true;
	if (!memory_valid(m, t->addr, t->bytes)) {
		t->error = NCCL_INVALID_ARGUMENT;
		return true;
	}
	while (t->done < t->bytes) {
		if (memory_moving(m) || !q->hal->room(q->stream) || !may_write(t))
			return t->error != NCCL_OK;
		struct hal_ref ref, other = {t->other.space, t->other.addr + t->done};
		bool write = t->kind == TRANSFER_WRITE;
		uint64_t n = memory_resolve(m, t->addr + t->done, t->bytes - t->done, write, &ref);
		struct hal_work work = {.kind = HAL_COPY};
		work.copy.dst = write ? ref : other;
		work.copy.src = write ? other : ref;
		work.copy.width = work.copy.dst_pitch = work.copy.src_pitch = n;
		work.copy.height = 1;
		if (!t->hal_seq)
			memory_use(m);
		if (write)
			content_unknown(m, t->addr + t->done, n);
		t->hal_seq = q->hal->submit(q->stream, &work);
		t->done += n;
	}
	return true;
}

static bool failed(const struct transfers *q, struct hal_space *space)
{
	return space && q->hal->space_error(space, NULL, 0);
}

/* The device skips the work of a failed rank: what was not read or added goes to nobody. */
static bool skipped(const struct transfers *q, const struct transfer *t)
{
	struct hal_ref refs[HAL_SUM_REFS];
	bool any = false;

	if (t->kind == TRANSFER_READ)
		return t->memory && failed(q, t->memory->space);
	if (t->kind == TRANSFER_WORK)
		for (uint32_t i = hal_sum_refs(&t->work, refs); i > 0; i--)
			any |= failed(q, refs[i - 1].space);
	return any;
}

static void complete(struct transfers *q, struct transfer *t)
{
	if (t->memory && t->hal_seq)
		memory_used(t->memory);
	if (skipped(q, t))
		t->error = NCCL_SYSTEM_ERROR;
	else if (t->named && t->memory && !t->error)
		content_is(t->memory, t->addr, t->bytes, t->content);
	if (t->over)
		t->over(t->arg, t->token, t->error);
	q->progress = true;
	free(t);
}

bool transfer_pump(struct transfers *q)
{
	while (q->next && submit(q, q->next)) {
		q->next = q->next->next;
		q->progress = true;
	}
	uint64_t completed = q->first ? q->hal->completed(q->stream) : 0;
	while (q->first && q->first != q->next && q->first->hal_seq <= completed) {
		struct transfer *t = q->first;
		q->first = t->next;
		if (!q->first)
			q->last = NULL;
		complete(q, t);
	}
	bool changed = q->progress;
	q->progress = false;
	return changed;
}

bool transfer_pending(const struct transfers *q, const struct rank_memory *m)
{
	for (const struct transfer *t = q->first; t; t = t->next)
		if (t->memory == m)
			return true;
	return false;
}

bool transfer_pending_for(const struct transfers *q, const void *arg)
{
	for (const struct transfer *t = q->first; t; t = t->next)
		if (t->arg == arg)
			return true;
	return false;
}
