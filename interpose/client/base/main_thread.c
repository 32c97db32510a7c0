/* main_thread.c: a main thread that ends by pthread_exit stays until the process ends.
 *
 * CRIU cannot save a process whose main thread has exited, as it does where others go on without
 * it. The last destructor of its thread-specific data runs when nothing of the program is left to
 * run in it. There it blocks all signals, tells a thread that joins it, and waits for the others;
 * as the last one it goes on to what glibc does then, which is to exit the process.
 */
#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base.h"

#define LOOK_AGAIN_NS (50 * 1000 * 1000)

static pthread_key_t leaving; /* value: which round of destructors comes next */

static bool is_main_thread(void) { return syscall(SYS_gettid) == getpid(); }

/* 0: nobody can say. */
static unsigned thread_count(void)
{
	struct stat about;
	return stat("/proc/self/task", &about) == 0 && about.st_nlink > 2
		       ? (unsigned)about.st_nlink - 2
		       : 0;
}

/* It ends when the other threads have, or the process does. Nothing in the loop may use memory of
 * the thread's own but errno: pthread_join frees that. */
static void wait_for_the_others(void)
{
	const struct timespec pause = {0, LOOK_AGAIN_NS};
	const uint64_t all = UINT64_MAX;
	_Atomic int *tid = NULL; /* what the kernel clears when a thread exits */
	if (prctl(PR_GET_TID_ADDRESS, &tid) || !tid)
		return;
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, sizeof all);
	atomic_store(tid, 0);
	syscall(SYS_futex, tid, FUTEX_WAKE, 1, NULL, NULL, 0);
	while (thread_count() > 1)
		nanosleep(&pause, NULL);
	atomic_store(tid, (int)syscall(SYS_gettid));
}

static void leave(void *round)
{
	if (!is_main_thread())
		return;
	if ((uintptr_t)round < PTHREAD_DESTRUCTOR_ITERATIONS)
		pthread_setspecific(leaving, (void *)((uintptr_t)round + 1));
	else
		wait_for_the_others();
}

/* The thread that forks is the child's main thread. */
static void watch_main_thread(void)
{
	if (is_main_thread())
		pthread_setspecific(leaving, (void *)1);
}

__attribute__((constructor)) static void begin(void)
{
	if (pthread_key_create(&leaving, leave))
		return;
	watch_main_thread();
	pthread_atfork(NULL, NULL, watch_main_thread);
}
