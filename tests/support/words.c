/* words.c: for words.py. Every access is one atomic step, sequentially consistent. */
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef _Atomic uint32_t *word32;
typedef _Atomic uint64_t *word64;

static void wake(uint64_t address)
{
	syscall(SYS_futex, (void *)address, FUTEX_WAKE, INT_MAX, 0, 0, 0);
}

uint32_t load32(uint64_t address) { return atomic_load((word32)address); }
uint64_t load64(uint64_t address) { return atomic_load((word64)address); }
void store32(uint64_t address, uint64_t value) { atomic_store((word32)address, (uint32_t)value); }
void store64(uint64_t address, uint64_t value) { atomic_store((word64)address, value); }
void and64(uint64_t address, uint64_t mask) { atomic_fetch_and((word64)address, mask); }

void add32_and_wake(uint64_t address, uint64_t value)
{
	atomic_fetch_add((word32)address, (uint32_t)value);
	wake(address);
}

void set32_and_wake(uint64_t address, uint64_t value)
{
	store32(address, value);
	wake(address);
}
