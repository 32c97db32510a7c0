/* channel_atomics.c: what a channel's server does in one step, for channel_server.py. */
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

void and64(uint64_t address, uint64_t mask)
{
	atomic_fetch_and((_Atomic uint64_t *)address, mask);
}

void add32_and_wake(uint64_t address, uint32_t value)
{
	atomic_fetch_add((_Atomic uint32_t *)address, value);
	syscall(SYS_futex, (void *)address, FUTEX_WAKE, INT_MAX, 0, 0, 0);
}

void set32_and_wake(uint64_t address, uint32_t value)
{
	atomic_store((_Atomic uint32_t *)address, value);
	syscall(SYS_futex, (void *)address, FUTEX_WAKE, INT_MAX, 0, 0, 0);
}
