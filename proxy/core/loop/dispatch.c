/* dispatch.c: takes records from the request ring and calls the handler of each (handlers.h).
 *
 * A wrong name in a record is an error of that rank: in the reply if the record wants one, else the
 * sticky error. A broken ring (a record that cannot be one) ends the service of that rank only.
 */
#include <string.h>

#include "clock.h"
#include "codes.h"
#include "loop/handlers.h"
#include "loop/intake.h"
#include "loop/internal.h"
#include "loop/job.h"
#include "queue/pump.h"
#include "queue/queue.h"
#include "rank/fault.h"

typedef int (*handler)(struct rank *, const void *, uint32_t extra);
enum errors { ERRORS_CUDA, ERRORS_NCCL }; /* which numbers a request's errors are */
static const struct opcode {
	const char *name;
	handler handle;
	uint32_t bytes; /* of the fixed part */
	uint32_t about; /* offset in it of the request's subject */
	const char *about_name;
	enum rf_kind kind;
	enum errors errors;
} opcodes[] = {
#define ROW(code, function, type, field, what, whose)                                              \
	[RF_OP_##code] = {.name = #code,                                                           \
			  .handle = (handler)(void *)(function),                                   \
			  .bytes = sizeof(struct type),                                            \
			  .about = offsetof(struct type, field),                                   \
			  .about_name = #field,                                                    \
			  .kind = RF_##what,                                                       \
			  .errors = ERRORS_##whose},
#define RF_OPCODE(code, lower, number, type, size, field, what, whose)                             \
	ROW(code, on_##lower, type, field, what, whose)
#define RF_OPCODE_GROUP(code, lower, number, type, size, field, what, whose)                       \
	ROW(code, NULL, type, field, what, whose)
#include "opcodes.def"
};

static const struct opcode *opcode_of(const struct rf_record *record)
{
	uint16_t n = record->opcode;
	return n < sizeof opcodes / sizeof *opcodes && opcodes[n].name ? &opcodes[n] : NULL;
}

/* Replies of CUDA requests carry the sticky error. */
static int reply_error(const struct rank *r, const struct opcode *op, int error)
{
	return error || op->errors == ERRORS_NCCL ? error : r->async_error;
}

/* Describes a request and what happened to it. */
static void describe_record(char text[RF_FAULT_BYTES], const struct rf_record *record,
			    const char *what)
{
	const struct opcode *op = opcode_of(record);
	char about[64] = "";
	if (op && record->bytes < op->bytes) {
		snprintf(about, sizeof about, ", too short");
	} else if (op) {
		uint64_t value;
		memcpy(&value, (const uint8_t *)record + op->about, sizeof value);
		snprintf(about, sizeof about, value < RF_DEV_BASE ? ", %s %llu" : ", %s %#llx",
			 op->about_name, (unsigned long long)value);
	}
	snprintf(text, RF_FAULT_BYTES, "request %llu, %s (opcode %u%s), %s",
		 (unsigned long long)record->seq, op ? op->name : "of unknown kind", record->opcode,
		 about, what);
}

/* A refused request without a reply slot: the error is kept, and the rank's next calls return
 * it. */
static void refuse_record(struct rank *r, const struct rf_record *record, int error)
{
	const struct opcode *op = opcode_of(record);
	uint64_t comm = 0; /* 0: all communicators (for an operator) */
	char text[RF_FAULT_BYTES], what[64];
	snprintf(what, sizeof what, "was refused with error %d", error);
	describe_record(text, record, what);
	if (op && op->errors == ERRORS_NCCL && strncmp(op->about_name, "redop", 5))
		memcpy(&comm, (const uint8_t *)record + op->about, sizeof comm);
	if (op && op->errors == ERRORS_NCCL)
		rank_fail_comm(r, comm, error, text);
	else
		rank_fail(r, error, text);
}

/* Handles one record that is not a collective. False: it has to wait. */
static bool dispatch_record(struct rank *r, const struct rf_record *record)
{
	const struct opcode *op = opcode_of(record);
	int error = CU_NOT_SUPPORTED;
	if (record->slot > RF_SLOT_COUNT || (record->slot && r->ring.replies >= RF_SLOT_COUNT)) {
		char text[RF_FAULT_BYTES];
		describe_record(text, record, "has no reply slot of its own");
		rank_fail(r, CU_INVALID_VALUE, text);
		return true; /* the slots bound what may wait for replies */
	}
	ring_expect_reply(r, record->slot);
	if (op && op->handle && record->bytes >= op->bytes)
		error = op->handle(r, record, record->bytes - op->bytes);
	if (error == RETRY) {
		ring_cancel_reply(r, record->slot);
		return false;
	}
	if (error == ANSWERED)
		return true;
	if (record->slot)
		ring_reply(r, record->slot, reply_error(r, op, error), NULL, 0);
	else if (error)
		refuse_record(r, record, error);
	return true;
}

/* Handles an outermost group. first: NULL, or the record that begins it. Moves *at behind the
 * group. */
static bool dispatch_group(struct rank *r, const struct rf_collective *first, struct place *at)
{
	int error = group_turn(r, first, at);
	if (error == GROUP_WAITS)
		return false;
	if (error == GROUP_BROKEN) {
		char text[RF_FAULT_BYTES];
		describe_record(text, &r->queue->group.first.r,
				"begins a broken group of collectives");
		rank_fail(r, CU_INVALID_VALUE, text);
	} else if (error > 0) {
		refuse_record(r, &r->queue->group.first.r, error);
	}
	return true;
}

/* True for a query. Programs poll without end: that is neither work nor a reason to keep the
 * device. */
static bool only_requests(const struct rf_record *record)
{
	const struct opcode *op = opcode_of(record);
	return op && op->kind == RF_QUERY;
}

/* A record may be lost, and its rank would wait for it forever: fail the rank's job.
 */
static void ring_is_broken(struct rank *r, int how, const struct rf_record *record)
{
	char text[160];
	int used = snprintf(text, sizeof text, "rank %u: its request ring is damaged", r->rank);
	if (how == RING_NUMBER)
		snprintf(text + used, sizeof text - (size_t)used,
			 ": record %llu has the number %llu",
			 (unsigned long long)r->ring.tail.seq + 1, (unsigned long long)record->seq);
	rank_fail(r, CU_INVALID_VALUE, text);
	job_rank_broken(r, text);
}

void intake_open(struct rank *r) { r->intake.silent_since_ns = now_ns(); }

void intake_from(struct rank *r, uint64_t records) { r->intake.records = records; }

void intake_wait_for_transfers(struct rank *r) { r->intake.waits_for_transfers = true; }

#define RECORDS_PER_TURN 512

static void consume_record(struct rank *r)
{
	_Alignas(64) uint8_t record[RF_RECORD_MAX];
	r->intake.record_waits = r->intake.full = false;
	if (r->intake.waits_for_transfers && !transfer_pending(&r->proxy->transfers, &r->memory))
		r->intake.waits_for_transfers = false;
	for (int n = 0; n < RECORDS_PER_TURN; n++) {
		struct place at = r->ring.tail;
		if (r->intake.waits_for_transfers || r->end.closing || ring_empty(r) ||
		    !host_lets_consume(r))
			return;
		if (!barrier_may_consume(r->job->world.barrier, r->rank) ||
		    r->job->world.state >= PROXY_JOB_CUT) {
			r->intake.record_waits = true;
			return;
		}
		if (r->queue->items >= STREAM_ITEMS_MAX) {
			r->intake.full = true;
			return;
		}
		const struct rf_record *head = (const void *)record;
		bool kept = r->queue->group.count,
		     done; /* kept: a group that was read completely or in part */
		int bytes = kept ? 0 : ring_peek(r, &at, record);
		if (bytes < 0)
			ring_is_broken(r, bytes, head);
		if (bytes <= 0 && !kept)
			return;
		if (kept || head->opcode == RF_OP_COLLECTIVE)
			done = dispatch_group(r, kept ? NULL : (const void *)record, &at);
		else
			done = dispatch_record(r, head);
		if (!done) {
			r->intake.record_waits = true;
			return;
		}
		ring_consume(r, at);
		r->intake.records++;
		if (!kept && only_requests(head))
			r->intake.queries++;
		turn_progress(&r->proxy->device.turn);
	}
}

static void answer_query(struct rank *r, uint64_t handle, uint16_t slot)
{
	struct rf_handle a = {.handle = handle};
	struct rf_query_reply reply = {.consumed = r->ring.tail.seq};
	int error;
	if (!handle)
		error = events_elapsed(r, ring_events(r, slot), &reply.milliseconds);
	else if (get_stream(r, handle))
		error = on_stream_query(r, &a, 0);
	else
		error = on_event_query(r, &a, 0);
	ring_reply(r, slot, error, &reply, sizeof reply);
	r->intake.records++;
	r->intake.queries++;
}

/* Handles requests outside of the ring, after those in it: a query sees what was recorded before
 * it. At a cut, no abort begins, as a drained rank may have reported that it is there; and no rank
 * is answered, as from the ring. */
static void answer_urgent(struct rank *r)
{
	uint32_t at = 0;
	uint64_t request;
	uint16_t slot;
	if (!ring_urgent(r) || !ring_owned(r) || r->end.closing ||
	    r->job->world.state >= PROXY_JOB_CUT ||
	    (!barrier_may_consume(r->job->world.barrier, r->rank) && rank_drained(r)))
		return;
	while (ring_take_urgent(r, &at, &request, &slot)) {
		if (r->ring.replies >= RF_SLOT_COUNT)
			continue; /* named twice: no thread waits for this slot */
		ring_expect_reply(r, slot);
		if (request & RF_URGENT_QUERY)
			answer_query(r, request & ~RF_URGENT_QUERY, slot);
		else
			comm_abort_now(r, request, slot);
	}
	turn_progress(&r->proxy->device.turn);
}

/* Takes the records of a turn. It reads the time, and reports free space to the client, once for
 * all of them. */
void rank_consume(struct rank *r)
{
	uint64_t before = r->ring.tail.bytes, said = r->intake.records - r->intake.queries;
	consume_record(r);
	answer_urgent(r);
	if (r->ring.tail.bytes == before)
		return;
	if (r->intake.records - r->intake.queries != said)
		r->intake.silent_since_ns = now_ns();
	ring_report_space(r);
}
