/* locks.c: the locks of locks.h, and their state in a child made by fork. */
#include "locks.h"
#include "base.h"

#define FREE(name) [name] = {PTHREAD_MUTEX_INITIALIZER},
struct locked locks[LOCK_COUNT] = {LOCKS(FREE, FREE)};

#define OVER_FORK(name) name,
#define NOT_OVER_FORK(name)
static const enum lock locked_over_fork[] = {LOCKS(OVER_FORK, NOT_OVER_FORK)};
#define OVER_FORK_COUNT (sizeof locked_over_fork / sizeof *locked_over_fork)

#ifdef __SANITIZE_ADDRESS__
#define NAME(name) #name,
static const char *const names[LOCK_COUNT] = {LOCKS(NAME, NAME)};
static _Thread_local uint32_t held; /* one bit per lock */

void lock_ordered(enum lock which)
{
	if (!(held >> which))
		return;
	log_message("%s is taken while %s is held: locks.h has their order", names[which],
		    names[31 - __builtin_clz(held)]);
	__builtin_trap();
}

void lock_acquired(enum lock which) { held |= 1u << which; }

void lock_released(enum lock which) { held &= ~(1u << which); }
#endif

static void before_fork(void)
{
	for (size_t i = 0; i < OVER_FORK_COUNT; i++)
		lock(locked_over_fork[i]);
}

static void unlock_after_fork(void)
{
	for (size_t i = OVER_FORK_COUNT; i-- > 0;)
		unlock(locked_over_fork[i]);
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(before_fork, unlock_after_fork, unlock_after_fork);
}
