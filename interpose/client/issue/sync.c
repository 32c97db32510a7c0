/* sync.c: the program waits for what it has issued. Afterwards pools release what they retained,
 * and the output of kernels is printed. (The client's own waits do neither.)
 */
#include "issue.h"

static int after_synchronising(int error)
{
	pool_synchronised();
	print_kernels_output();
	return error;
}

int wait_for_device(void)
{
	struct rf_record m;
	return after_synchronising(channel_call(&m, RF_OP_DEVICE_SYNC, sizeof m, NULL, 0, NULL, 0));
}

int wait_for_stream(uint64_t stream)
{
	struct rf_handle m = {.handle = stream};
	return after_synchronising(
		channel_call(&m.r, RF_OP_STREAM_SYNC, sizeof m, NULL, 0, NULL, 0));
}

int wait_for_event(uint64_t event)
{
	struct rf_handle m = {.handle = event};
	return after_synchronising(
		channel_call(&m.r, RF_OP_EVENT_SYNC, sizeof m, NULL, 0, NULL, 0));
}
