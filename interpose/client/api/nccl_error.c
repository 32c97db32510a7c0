/* nccl_error.c: NCCL's error reporting: a result's text, and the text of ncclGetLastError.
 *
 * A call that fails stores its name, the rank and the reason in a text of its thread; the reason
 * why a communicator becomes unusable later is in the channel, for every thread. Nothing blocks,
 * and there is no lock. The texts are allocated at a thread's first error: a library that is loaded
 * late has little thread-local memory.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_parts.h"

struct texts {
	/* of the call in progress; empty: its result is sufficient */
	char reason[RF_FAULT_TEXT_BYTES];
	char last[RF_FAULT_TEXT_BYTES + 128]; /* of the last call that failed */
	bool returned; /* the result of comm_error has been in one of these */
};

static _Thread_local struct texts *texts; /* NULL: no error yet, or no memory for one */

static bool have_texts(void)
{
	if (!texts)
		texts = calloc(1, sizeof *texts);
	return texts;
}

ncclResult_t because(ncclResult_t error, const char *format, ...)
{
	if (!have_texts() || texts->reason[0])
		return error;
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(texts->reason, sizeof texts->reason, format, arguments);
	va_end(arguments);
	return error;
}

ncclResult_t ended(const char *call, const struct comm *c, ncclResult_t error)
{
	char rank[64] = "";
	if (error && have_texts()) {
		if (c && c->count)
			snprintf(rank, sizeof rank, " (rank %d of %d)", c->rank, c->count);
		snprintf(texts->last, sizeof texts->last, "%s%s: %s%s%s", call, rank,
			 ncclGetErrorString(error), texts->reason[0] ? ": " : "", texts->reason);
	}
	if (texts)
		texts->reason[0] = 0;
	return error;
}

ncclResult_t nccl_error(int cuda)
{
	if (!cuda)
		return NCCL_SUCCESS;
	const struct error_text *e = error_text(cuda);
	return because(NCCL_UNHANDLED_CUDA_ERROR, "%s (%s)", error_name(cuda),
		       e ? e->text : "not a CUDA error");
}

/* Returns a lasting error: of the device, of all communicators, or of this one; NULL: of any. */
static ncclResult_t lasting_error(const struct comm *c)
{
	ncclResult_t error = (ncclResult_t)atomic_load(&channel_header->comm_error);
	if (!error && atomic_load(&channel_header->async_error))
		error = NCCL_UNHANDLED_CUDA_ERROR;
	for (uint32_t i = 0; !error && i < RF_COMM_ERRORS; i++) {
		uint64_t there = atomic_load(&channel_header->comm_errors[i]);
		if (there && (!c || there >> 8 == c->number))
			error = (ncclResult_t)(there & 0xff);
	}
	return error;
}

ncclResult_t comm_error(const struct comm *c)
{
	ncclResult_t error = channel_header ? lasting_error(c) : NCCL_SUCCESS;
	if (!error)
		return NCCL_SUCCESS;
	char text[RF_FAULT_TEXT_BYTES];
	channel_fault(text);
	because(error, "%s", text);
	if (texts)
		texts->returned = true;
	return error;
}

const char *ncclGetErrorString(ncclResult_t result)
{
	static const char *const names[] = {
		"no error",
		"unhandled cuda error",
		"unhandled system error",
		"internal error",
		"invalid argument",
		"invalid usage",
		"remote process exited or there was a network error",
		"operation in progress",
	};
	return result >= 0 && (size_t)result < sizeof names / sizeof *names ? names[result]
									    : "unknown result code";
}

/* The text of this thread's last failed call, or of what has made communicators unusable since
 * then. */
const char *ncclGetLastError(ncclComm_t comm)
{
	(void)comm; /* ignored, as in NCCL */
	if (!texts || !texts->returned)
		ended("an earlier call", NULL, comm_error(NULL));
	return texts ? texts->last : "";
}
