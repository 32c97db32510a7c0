/* fault.c: a rank's sticky error: the first thing that went wrong with it, and why.
 *
 * From then on nothing of it runs: what is queued completes, and replies carry the error.
 */
#include "loop/internal.h"

void rank_fail(struct rank *r, int error, const char *text)
{
	if (r->async_error)
		return;
	r->async_error = error;
	memory_stop(&r->memory);
	snprintf(r->error_text, sizeof r->error_text, "%s", text);
	if (r->header) {
		snprintf(r->header->fault, sizeof r->header->fault, "%s", text);
		atomic_store(&r->header->async_error, (uint32_t)error);
	}
	r->proxy->progress = true;
}

void rank_fail_comm(struct rank *r, int error, const char *text)
{
	if (!r->async_error)
		snprintf(r->header->fault, sizeof r->header->fault, "%s", text);
	atomic_store(&r->header->comm_error, (uint32_t)error);
}
