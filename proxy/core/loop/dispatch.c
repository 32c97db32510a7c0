/* dispatch.c: takes records from the request ring and has each handled (handlers.h).
 *
 * What a record names wrongly is that rank's error: in the reply if it wants one, else its sticky
 * error. A broken ring (a record that cannot be one) ends the rank's service, nobody else's.
 */
#include <string.h>

#include "handlers.h"

void rank_fail(struct rank *r, int error, const char *text)
{
	if (r->async_error)
		return;
	r->async_error = error;
	snprintf(r->error_text, sizeof r->error_text, "%s", text);
	if (r->header) {
		snprintf(r->header->fault, sizeof r->header->fault, "%s", text);
		atomic_store(&r->header->async_error, (uint32_t)error);
	}
	r->proxy->progress = true;
}

typedef int (*handler)(struct rank *, const void *, uint32_t extra);
struct opcode {
	handler handle;
	uint32_t bytes; /* of the fixed part */
	bool nccl;      /* errors are ncclResult_t */
};
#define OP(code, function, type, nccl)                                                             \
	[RF_OP_##code] = {(handler)(void *)function, sizeof(struct type), nccl}
static const struct opcode opcodes[] = {
	OP(ALLOC, on_alloc, rf_alloc, false),
	OP(FREE, on_free, rf_free, false),
	OP(GRANT, on_grant, rf_grant, false),
	OP(COPY, on_copy, rf_copy, false),
	OP(FILL, on_fill, rf_fill, false),
	OP(MODULE_DATA, on_module_data, rf_module_data, false),
	OP(MODULE_LOAD, on_module_load, rf_module_load, false),
	OP(MODULE_GLOBALS, on_module_globals, rf_module_globals, false),
	OP(MODULE_UNLOAD, on_module_unload, rf_handle, false),
	OP(FUNCTION_GET, on_function_get, rf_name, false),
	OP(GLOBAL_GET, on_global_get, rf_name, false),
	OP(FUNCTION_NAMES, on_function_names, rf_function_names, false),
	OP(STREAM_CREATE, on_stream_create, rf_stream_create, false),
	OP(STREAM_DESTROY, on_stream_destroy, rf_handle, false),
	OP(STREAM_SYNC, on_stream_sync, rf_handle, false),
	OP(STREAM_QUERY, on_stream_query, rf_handle, false),
	OP(DEVICE_SYNC, on_device_sync, rf_record, false),
	OP(EVENT_CREATE, on_event_create, rf_event_create, false),
	OP(EVENT_DESTROY, on_event_destroy, rf_handle, false),
	OP(EVENT_RECORD, on_event_record, rf_event, false),
	OP(STREAM_WAIT, on_stream_wait, rf_event, false),
	OP(EVENT_SYNC, on_event_sync, rf_handle, false),
	OP(EVENT_QUERY, on_event_query, rf_handle, false),
	OP(EVENT_ELAPSED, on_event_elapsed, rf_elapsed, false),
	OP(LAUNCH, on_launch, rf_launch, false),
	OP(GEMM, on_gemm, rf_gemm, false),
	OP(GEMM_AUX, on_gemm_aux, rf_gemm_aux, false),
	OP(HOST_FUNC, on_host_func, rf_host_func, false),
	OP(HOST_DONE, on_host_done, rf_host_func, false),
	OP(COMM_INIT, on_comm_init, rf_comm_init, true),
	OP(COMM_SPLIT, on_comm_split, rf_comm_split, true),
	OP(COMM_DESTROY, on_comm_destroy, rf_handle, true),
	OP(COMM_ABORT, on_comm_abort, rf_handle, true),
	OP(REDOP_CREATE, on_redop, rf_redop, true),
	OP(REDOP_DESTROY, on_redop_gone, rf_handle, true),
};

/* One record that is not a collective. False: it has to wait. */
static bool dispatch(struct rank *r, const struct rf_record *record)
{
	const struct opcode *op = record->opcode < sizeof opcodes / sizeof *opcodes
					  ? &opcodes[record->opcode]
					  : NULL;
	int error = CU_NOT_SUPPORTED;
	if (record->slot > RF_SLOT_COUNT || (record->slot && r->replies >= RF_SLOT_COUNT)) {
		rank_fail(r, CU_INVALID_VALUE, "a request without a reply slot of its own");
		return true; /* what waits for replies is bounded by the slots */
	}
	if (record->slot)
		r->replies++;
	if (op && op->handle && record->bytes >= op->bytes)
		error = op->handle(r, record, record->bytes - op->bytes);
	if (error == RETRY) {
		if (record->slot)
			r->replies--;
		return false;
	}
	if (error == ANSWERED)
		return true;
	if (record->slot)
		ring_reply(r, record->slot, error ? error : op->nccl ? 0 : r->async_error, NULL, 0);
	else if (error && op && op->nccl)
		atomic_store(&r->header->comm_error, (uint32_t)error);
	else if (error)
		rank_fail(r, error, "an asynchronous request was invalid");
	return true;
}

/* An outermost group: all its records at once, or none yet. *at moves behind them. */
static bool dispatch_group(struct rank *r, const struct rf_record *first, struct place *at)
{
	static struct rf_collective ops[GROUP_MAX]; /* the loop is one thread */
	_Alignas(64) uint8_t record[RF_RECORD_MAX];
	uint32_t count = 0;
	memcpy(record, first, first->bytes);
	for (;;) {
		const struct rf_collective *c = (const void *)record;
		if (c->r.opcode != RF_OP_COLLECTIVE || c->r.bytes < sizeof *c ||
		    count == GROUP_MAX) {
			rank_fail(r, CU_INVALID_VALUE, "a broken group of collectives");
			return true;
		}
		ops[count++] = *c;
		if (!c->group_left)
			break;
		int n = ring_peek(r, at, record);
		if (n <= 0)
			return n < 0;
	}
	if (!job_may_issue_group(r, ops, count))
		return false;
	int error = job_submit_group(r, ops, count);
	if (error)
		atomic_store(&r->header->comm_error, (uint32_t)error);
	return true;
}

/* Programs ask for ever: that is neither work nor a reason to keep the device. */
static bool only_asks(uint16_t opcode)
{
	return opcode == RF_OP_STREAM_QUERY || opcode == RF_OP_EVENT_QUERY ||
	       opcode == RF_OP_EVENT_ELAPSED;
}

/* Nobody knows what it meant to say: a record may be lost. It waits for ever, so its job ends. */
static void ring_is_broken(struct rank *r, int how, const struct rf_record *record)
{
	char text[160];
	int used = snprintf(text, sizeof text, "rank %u: its request ring is broken", r->rank);
	if (how == RING_NUMBER)
		snprintf(text + used, sizeof text - (size_t)used,
			 ": record %llu has the number %llu", (unsigned long long)r->tail.seq + 1,
			 (unsigned long long)record->seq);
	rank_fail(r, CU_INVALID_VALUE, text);
	r->closing = true;
	job_fail(r->job, text);
}

#define RECORDS_PER_TURN 512

static void consume(struct rank *r)
{
	_Alignas(64) uint8_t record[RF_RECORD_MAX];
	r->held = r->full = false;
	if (r->hold && !transfer_pending(r->proxy, r))
		r->hold = false;
	for (int n = 0; n < RECORDS_PER_TURN; n++) {
		struct place at = r->tail;
		if (r->hold || r->closing || ring_empty(r))
			return;
		if (!barrier_may_consume(r->job->barrier, r->rank) ||
		    r->job->state >= PROXY_JOB_CUT) {
			r->held = true;
			return;
		}
		if (r->items >= STREAM_ITEMS_MAX) {
			r->full = true;
			return;
		}
		int bytes = ring_peek(r, &at, record);
		const struct rf_record *head = (const void *)record;
		if (bytes < 0)
			ring_is_broken(r, bytes, head);
		if (bytes <= 0)
			return;
		bool done = head->opcode == RF_OP_COLLECTIVE ? dispatch_group(r, head, &at)
							     : dispatch(r, head);
		if (!done) {
			r->held = true;
			return;
		}
		ring_consume(r, at);
		r->records++;
		if (only_asks(head->opcode))
			r->queries++;
		r->proxy->progress = true;
	}
}

/* Once for all records of a turn: the time, and to the client that there is room. */
void rank_consume(struct rank *r)
{
	uint64_t before = r->tail.bytes, said = r->records - r->queries;
	consume(r);
	if (r->tail.bytes == before)
		return;
	if (r->records - r->queries != said)
		r->silent_since_ns = now_ns();
	ring_tell_room(r);
}
