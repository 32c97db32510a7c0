/* fault.c: a rank's sticky error: its first error, and the reason.
 *
 * From then on nothing of the rank runs: queued items complete, and replies carry the error.
 */
#include "rank/rank_parts.h"

void fault_from(struct rank *r, int error, const char *text)
{
	r->async_error = error;
	snprintf(r->error_text, sizeof r->error_text, "%.*s", (int)RF_FAULT_BYTES - 1, text);
}

void rank_fail(struct rank *r, int error, const char *text)
{
	if (r->async_error)
		return;
	r->async_error = error;
	memory_stop(&r->memory);
	snprintf(r->error_text, sizeof r->error_text, "%s", text);
	if (r->ring.header) {
		ring_fault_text(r, text);
		atomic_store(&r->ring.header->async_error, (uint32_t)error);
	}
	turn_progress(&r->device->turn);
}

void rank_fail_comm(struct rank *r, uint64_t comm, int error, const char *text)
{
	if (!r->async_error)
		ring_fault_text(r, text);
	if (comm)
		ring_comm_error(r, comm, error);
	else
		atomic_store(&r->ring.header->comm_error, (uint32_t)error);
}
