/* streams.c: queries of streams. */
#include "bodies.h"

int priority_range(int *least, int *greatest)
{
	if (least)
		*least = 0;
	if (greatest)
		*greatest = PRIORITY_GREATEST;
	return CUDA_OK;
}

static int stream_property(const void *stream, const struct handle **h)
{
	uint64_t number;
	*h = handle_get(HANDLE_STREAM, stream);
	return stream_number(stream, &number);
}

int stream_flags(const void *stream, unsigned *flags)
{
	const struct handle *h;
	int error = flags ? stream_property(stream, &h) : INVALID_VALUE;
	if (!error)
		*flags = h ? h->flags : 0;
	return error;
}

int stream_id(const void *stream, unsigned long long *id)
{
	uint64_t number;
	int error = id ? stream_number(stream, &number) : INVALID_VALUE;
	if (!error)
		*id = number;
	return error;
}

int stream_device(const void *stream, int *device)
{
	uint64_t number;
	int error = device ? stream_number(stream, &number) : INVALID_VALUE;
	if (!error)
		*device = current_device;
	return error;
}
