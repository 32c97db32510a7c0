/* main_thread.c: keeps a main thread that calls pthread_exit alive until the process ends.
 *
 * CRIU cannot save a process whose main thread has exited while others continue. The last
 * destructor of the thread's specific data runs after all of the program's code in that thread.
 * There the thread blocks all signals, wakes a thread that joins it, and waits until all other
 * threads have exited. As the last one it continues with what glibc does then, which is to exit the
 * process.
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

static pthread_key_t leaving; /* value: the next round of destructors */

static bool is_main_thread(void) { return syscall(SYS_gettid) == getpid(); }

/* 0: unknown. */
static unsigned thread_count(void)
{
	struct stat about;
	return stat("/proc/self/task", &about) == 0 && about.st_nlink > 2
		       ? (unsigned)about.st_nlink - 2
		       : 0;
}

/* Returns when the other threads have exited. The loop may use no memory of the thread's own except
 * errno: pthread_join frees that memory. */
static void wait_for_the_others(void)
{
	const struct timespec pause = {0, LOOK_AGAIN_NS};
	const uint64_t all = UINT64_MAX;
	_Atomic int *tid = NULL; /* the word that the kernel clears when a thread exits */
	if (prctl(PR_GET_TID_ADDRESS, &tid) || !tid)
		return;
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, sizeof all);
	atomic_store(tid, 0);
	syscall(SYS_futex, tid, FUTEX_WAKE, 1, NULL, NULL, 0);
	while (thread_count() > 1)
		nanosleep(&pause, NULL);
	atomic_store(tid, (int)syscall(SYS_gettid));
}

static void main_thread_leaves(void *round)
{
	if (!is_main_thread())
		return;
	if ((uintptr_t)round < PTHREAD_DESTRUCTOR_ITERATIONS)
		pthread_setspecific(leaving, (void *)((uintptr_t)round + 1));
	else
		wait_for_the_others();
}

/* The thread that forks becomes the child's main thread. */
static void watch_main_thread(void)
{
	if (is_main_thread())
		pthread_setspecific(leaving, (void *)1);
}

__attribute__((constructor)) static void begin(void)
{
	if (pthread_key_create(&leaving, main_thread_leaves))
		return;
	watch_main_thread();
	pthread_atfork(NULL, NULL, watch_main_thread);
}
