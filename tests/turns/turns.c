/* turns.c: drives the proxy's core one turn of its loop at a time, in the thread of the caller,
 * whose clock, chances and device it has. The linker puts what begins with __wrap_ in the place of
 * what the core calls.
 */
#define hal_soft hal_declared /* the table can be written here */
#include "loop/internal.h"
#include "queue/pump.h"
#undef hal_soft

#include <string.h>
#include <sys/types.h>

#pragma GCC visibility push(default)
struct hal hal_soft;
uint64_t turns_now_ns, turns_chance; /* the test sets them */
void turns_device(const struct hal *);
uint32_t turns_turn(struct proxy *);        /* 1: progress, 2: settled, as loop.c says */
void turns_sleep(struct proxy *);           /* the loop is about to */
uint64_t turns_deadline_ns(struct proxy *); /* until then; 0: until it is woken */
const char *turns_invalid(struct proxy *);  /* NULL: nothing is */
uint64_t turns_opened_early(struct proxy *);
uint64_t turns_let_go(struct proxy *);
#pragma GCC visibility pop

const struct hal hal_nvidia = {.type = "nvidia"};

int __wrap_clock_gettime(clockid_t, struct timespec *);
ssize_t __wrap_getrandom(void *, size_t, unsigned);
void __wrap_in_loop(struct proxy *, void (*)(struct proxy *, void *), void *);
bool __wrap_mailbox_start(struct proxy *);
void __wrap_mailbox_stop(struct proxy *);

int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
	(void)clock;
	t->tv_sec = (time_t)(turns_now_ns / 1000000000);
	t->tv_nsec = (long)(turns_now_ns % 1000000000);
	return 0;
}

/* Each time another number. */
ssize_t __wrap_getrandom(void *to, size_t bytes, unsigned flags)
{
	(void)flags;
	memset(to, 0, bytes);
	turns_chance++;
	memcpy(to, &turns_chance, bytes < 8 ? bytes : 8);
	return (ssize_t)bytes;
}

void __wrap_in_loop(struct proxy *p, void (*run)(struct proxy *, void *), void *arg)
{
	run(p, arg);
}

bool __wrap_mailbox_start(struct proxy *p)
{
	(void)p;
	return true;
}

void __wrap_mailbox_stop(struct proxy *p) { (void)p; }

void turns_device(const struct hal *table) { hal_soft = *table; }

uint32_t turns_turn(struct proxy *p)
{
	turn_begin(&p->device.turn);
	loop_turn(p);
	return p->device.turn.progress | (uint32_t)p->device.turn.completed << 1;
}

void turns_sleep(struct proxy *p)
{
	for (uint32_t i = 0; i < p->device.rank_count; i++)
		rank_sleep(p->device.ranks[i]);
}

uint64_t turns_deadline_ns(struct proxy *p) { return loop_deadline_ns(p); }

const char *turns_invalid(struct proxy *p) { return core_invalid(p); }
uint64_t turns_opened_early(struct proxy *p) { return p->device.memory.opened_early; }
uint64_t turns_let_go(struct proxy *p) { return p->slice.lone_continuations; }
