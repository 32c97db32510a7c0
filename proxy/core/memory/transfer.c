/* transfer.c: the transfers of collectives, in order (transfer.h). They access a rank's memory on
 * the device or in the image. They wait while the rank's pages move, and for chunks of its own
 * before they write shared pages. A sum is submitted in parts, each as long as all of its inputs
 * are contiguous. */
#include <stdlib.h>

#include "reduce.h"
#include "memory_parts.h"
#include "transfer.h"

int transfer_open(struct transfers *q, const struct hal *hal, struct hal_device *device)
{
	q->hal = hal;
	q->device = device;
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
	INVARIANT(!q->first == !q->last && (q->first || !q->next),
		  "transfers have a last one if they have a first one");
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
	if (!q->hal->available(q->stream))
		return false;
	t->hal_seq = q->hal->submit(q->stream, &t->work);
	t->error = t->hal_seq ? NCCL_OK : NCCL_SYSTEM_ERROR;
	return true;
}

static void request_ended(void *transfer, enum memory_purpose purpose, int result)
{
	struct transfer *t = transfer;
	(void)purpose;
	if (result && result != MEMORY_CANCELLED)
		t->error = NCCL_SYSTEM_ERROR;
}

/* True if the range may be written. All of it must be writable before the first piece is submitted:
 * after that, no page of the rank moves or becomes shared until the last piece has completed. */
static bool may_write(struct transfer *t, uint64_t addr, uint64_t bytes)
{
	struct rank_memory *m = t->memory;
	if (t->hal_seq || memory_owns(m, addr, bytes))
		return true;
	if (m->stopped) /* a failed rank gets no more memory */
		t->error = NCCL_SYSTEM_ERROR;
	else
		memory_request(m, &(struct memory_request){.purpose = PURPOSE_COPY,
							   .addr = addr,
							   .bytes = bytes,
							   .on_end = request_ended,
							   .arg = t});
	return false;
}

static uint64_t copy(struct transfers *q, struct hal_ref dst, struct hal_ref src, uint64_t bytes)
{
	struct hal_work work = {.kind = HAL_COPY};
	work.copy.dst = dst;
	work.copy.src = src;
	work.copy.width = work.copy.dst_pitch = work.copy.src_pitch = bytes;
	work.copy.height = 1;
	return q->hal->submit(q->stream, &work);
}

static bool failed(const struct transfers *q, struct hal_space *space)
{
	return space && q->hal->space_error(space, NULL, 0);
}

/* ---- from one rank to another: remaps pages where possible, and copies the rest ---- */

static bool is_there(const struct transfer *t, uint64_t addr)
{
	const struct chunk *c = t->memory->pages[page_at(addr)].chunk;
	return c && c == t->source->pages[page_at(addr)].chunk;
}

/* The end of the run from `addr` in which all pages are shared by both ranks, or none is. */
static uint64_t shared_run_end(const struct transfer *t, uint64_t addr)
{
	uint64_t end = t->addr + t->bytes, at = addr;
	do
		at = page_addr((uint32_t)page_at(at) + 1);
	while (at < end && is_there(t, at) == is_there(t, addr));
	return at < end ? at : end;
}

/* True if everything that has to be copied may be written. */
static bool may_copy(struct transfer *t)
{
	uint64_t end = t->addr + t->bytes, next;
	for (uint64_t at = t->addr + t->done; at < end; at = next) {
		next = shared_run_end(t, at);
		if (!is_there(t, at) && !may_write(t, at, next - at))
			return false;
	}
	return true;
}

static int cannot_be_handed(const struct transfers *q, const struct transfer *t)
{
	if (!memory_valid(t->memory, t->addr, t->bytes) ||
	    !memory_valid(t->source, t->addr, t->bytes))
		return NCCL_INVALID_ARGUMENT;
	return failed(q, t->source->space) ? NCCL_SYSTEM_ERROR : NCCL_OK;
}

/* True when all of it has been submitted. */
static bool submit_hand(struct transfers *q, struct transfer *t)
{
	struct rank_memory *m = t->memory, *from = t->source;
	if (t->error || (t->error = cannot_be_handed(q, t)))
		return true;
	if (memory_moving(m) || memory_moving(from))
		return false;
	if (!t->hal_seq && memory_hand(from, m, t->addr + t->done, t->bytes - t->done)) {
		t->error = NCCL_SYSTEM_ERROR;
		return true;
	}
	while (t->done < t->bytes) {
		uint64_t at = t->addr + t->done, n = shared_run_end(t, at) - at;
		if (!is_there(t, at)) {
			struct hal_ref src, dst;
			if (!q->hal->available(q->stream) || !may_copy(t))
				return t->error != NCCL_OK;
			n = memory_resolve(from, at, n, false, &src);
			n = memory_resolve(m, at, n, true, &dst);
			if (!t->hal_seq) {
				memory_use_exact(m);
				memory_use_exact(from);
			}
			t->hal_seq = copy(q, dst, src, n);
		}
		content_unknown(m, at, n);
		t->done += n;
	}
	return true;
}

/* ---- sums ---- */

/* Resolves an operand after `done` bytes; returns the number of contiguous bytes. */
static uint64_t resolve_operand(struct rank_memory *m, struct hal_ref at, const struct transfer *t,
				struct hal_ref *ref)
{
	uint64_t bytes = t->bytes - t->done;
	if (m)
		return memory_resolve(m, at.addr + t->done, bytes, false, ref);
	*ref = (struct hal_ref){at.space, at.addr + t->done};
	return bytes;
}

/* Submits the next part: as many bytes as are contiguous in each operand. */
static bool submit_part(struct transfers *q, struct transfer *t)
{
	struct hal_work work = t->work;
	const struct hal_ref dst = t->work.reduce.dst;
	uint64_t n = resolve_operand(t->memory, t->work.reduce.a, t, &work.reduce.a);
	uint64_t other = resolve_operand(t->source, t->work.reduce.b, t, &work.reduce.b);
	n = n < other ? n : other;
	work.reduce.dst = (struct hal_ref){dst.space, dst.addr + t->done};
	work.reduce.count = n / hal_sum_element(&work);
	uint64_t number = q->hal->submit(q->stream, &work);
	if (!number) {
		t->error = NCCL_SYSTEM_ERROR;
		return false;
	}
	if (!t->hal_seq && t->memory)
		memory_use_exact(t->memory);
	if (!t->hal_seq && t->source)
		memory_use_exact(t->source);
	t->hal_seq = number;
	t->done += n;
	return true;
}

static bool may_read(const struct rank_memory *m, struct hal_ref at, uint64_t bytes)
{
	return !m || memory_valid(m, at.addr, bytes);
}

/* True when all of it has been submitted. */
static bool submit_sum(struct transfers *q, struct transfer *t)
{
	if (!t->error && (!may_read(t->memory, t->work.reduce.a, t->bytes) ||
			  !may_read(t->source, t->work.reduce.b, t->bytes)))
		t->error = NCCL_INVALID_ARGUMENT;
	while (!t->error && t->done < t->bytes) {
		if ((t->memory && memory_moving(t->memory)) ||
		    (t->source && memory_moving(t->source)) || !q->hal->available(q->stream))
			return false;
		if (!submit_part(q, t))
			break;
	}
	return true;
}

/* ---- all transfers ---- */

/* True when all of it has been submitted. */
static bool submit(struct transfers *q, struct transfer *t)
{
	if (t->kind == TRANSFER_WORK)
		return submit_work(q, t);
	if (t->kind == TRANSFER_HAND)
		return submit_hand(q, t);
	if (t->kind == TRANSFER_SUM)
		return submit_sum(q, t);
	struct rank_memory *m = t->memory;
	if (!m || t->error)
		return true;
	if (!memory_valid(m, t->addr, t->bytes)) {
		t->error = NCCL_INVALID_ARGUMENT;
		return true;
	}
	while (t->done < t->bytes) {
		bool write = t->kind == TRANSFER_WRITE;
		if (memory_moving(m) || !q->hal->available(q->stream) ||
		    (write && !may_write(t, t->addr, t->bytes)))
			return t->error != NCCL_OK;
		struct hal_ref ref, other = {t->other.space, t->other.addr + t->done};
		uint64_t n = memory_resolve(m, t->addr + t->done, t->bytes - t->done, write, &ref);
		if (!t->hal_seq)
			memory_use_exact(m);
		if (write)
			content_unknown(m, t->addr + t->done, n);
		t->hal_seq = copy(q, write ? ref : other, write ? other : ref, n);
		t->done += n;
	}
	return true;
}

/* True if the device was lost: its work counts as completed, but may not have run. */
static bool device_lost(const struct transfers *q)
{
	return q->hal->device_lost && q->hal->device_lost(q->device);
}

/* True if the device skipped the work because a rank has failed: data that was not read or added
 * must not be used. */
static bool was_skipped(const struct transfers *q, const struct transfer *t)
{
	struct hal_ref refs[HAL_SUM_REFS];
	bool any = false;

	if (t->kind == TRANSFER_READ)
		return t->memory && failed(q, t->memory->space);
	if (t->kind == TRANSFER_HAND)
		return t->source && failed(q, t->source->space);
	if (t->kind == TRANSFER_SUM)
		any |= (t->memory && failed(q, t->memory->space)) ||
		       (t->source && failed(q, t->source->space));
	if (t->kind == TRANSFER_SUM || t->kind == TRANSFER_WORK)
		for (uint32_t i = hal_sum_refs(&t->work, refs); i > 0; i--)
			any |= failed(q, refs[i - 1].space);
	return any;
}

static void complete(struct transfers *q, struct transfer *t)
{
	if (t->memory && t->hal_seq)
		memory_used_exact(t->memory);
	if (t->source && t->hal_seq)
		memory_used_exact(t->source);
	if (device_lost(q) || was_skipped(q, t))
		t->error = NCCL_SYSTEM_ERROR;
	else if (t->named && t->memory && !t->error)
		content_is(t->memory, t->addr, t->bytes, t->content);
	if (t->on_end)
		t->on_end(t->arg, t->token, t->error);
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
		if (t->memory == m || t->source == m)
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
