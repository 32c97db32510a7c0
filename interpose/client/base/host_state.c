/* host_state.c: records state of this process that a checkpoint would lose (host_state.h).
 *
 * These functions replace libc's: they make the same system call, and note what it has changed.
 * `syscall` is among them because some libraries (libkeyutils) and most programs make the rarer
 * calls with it; all other numbers are passed on by a tail call. Nothing is recorded, and no memory
 * is used, before the first call that changes such state. A failure to record never fails a call.
 *
 * The rank may be frozen at any instruction. So a call is noted before it is made, and this note is
 * removed when its effect has been noted: the launcher does not save the rank in between.
 *
 * Lock: HOST_STATE_LOCK, with all signals blocked, because a handler may make such a call.
 */
#pragma GCC optimize("O2") /* for the tail call, in every build */
#include <errno.h>
#include <linux/keyctl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base.h"
#include "host_state.h"

#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_GET_MDWE 66
#endif
/* Seconds. The times of other clocks count from the machine's start. */
#define LEAST_WALL_TIME 1000000000

typedef long word;
typedef word (*call_function)(word, word, word, word, word, word, word);
typedef int (*settime_function)(timer_t, int, const struct itimerspec *, struct itimerspec *);
typedef int (*delete_function)(timer_t);

static struct rf_host_state *state; /* NULL: nothing has been recorded yet */

/* A caller of `syscall` passes as many arguments as its call has. On x86-64 the last one is on the
 * stack, where other functions may not write, as gcc does to pass it on. There our function has one
 * parameter less, and its tail call leaves the stack as it is. */
#ifdef __x86_64__
#define LAST_PARAMETER
#define LAST_ARGUMENT
#else
#define LAST_PARAMETER , word f
#define LAST_ARGUMENT , f
#endif
typedef word (*passing_function)(word, word, word, word, word, word LAST_PARAMETER);
#define WITHOUT_TAIL_CALLS __attribute__((noinline, optimize("no-optimize-sibling-calls")))

static word first_call(word number, word a, word b, word c, word d, word e, word f);
static call_function _Atomic next_syscall = first_call; /* then libc's */

static WITHOUT_TAIL_CALLS word first_call(word number, word a, word b, word c, word d, word e,
					  word f)
{
	call_function found = (call_function)libc_function("syscall");
	atomic_store(&next_syscall, found);
	return found(number, a, b, c, d, e, f);
}

static call_function libc_syscall(void)
{
	return atomic_load_explicit(&next_syscall, memory_order_relaxed);
}

static word call_kernel(word number, word a, word b, word c)
{
	return libc_syscall()(number, a, b, c, 0, 0, 0);
}

/* ---- the record ---- */

static void lock_record(sigset_t *old_mask)
{
	sigset_t all;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, old_mask);
	lock(HOST_STATE_LOCK);
}

static void unlock_record(const sigset_t *old_mask)
{
	unlock(HOST_STATE_LOCK);
	pthread_sigmask(SIG_SETMASK, old_mask, NULL);
}

/* Under HOST_STATE_LOCK. */
static bool make_record(void)
{
	if (state)
		return true;
	int fd = memfd_create(RF_HOST_NAME, MFD_CLOEXEC);
	void *map = MAP_FAILED;
	if (fd >= 0 && !ftruncate(fd, RF_HOST_BYTES))
		map = mmap(NULL, RF_HOST_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	if (map == MAP_FAILED)
		LOG_ONCE("cannot record what a checkpoint would lose (keys, SEM_UNDO, mlockall and "
			 "the like): %s; a restored rank may lack it",
			 strerror(errno));
	else
		state = map;
	if (fd >= 0)
		close(fd);
	return state;
}

static bool is_inherited(uint32_t kind)
{
	return kind == RF_HOST_KEY || (kind >= RF_HOST_SEALED && kind <= RF_HOST_NO_NEW_CODE);
}

static uint32_t object_kind(const struct rf_host_object *o, uint32_t process)
{
	uint32_t kind = atomic_load_explicit(&o->kind, memory_order_relaxed);
	return is_inherited(kind) || o->pid == process ? kind : RF_HOST_NONE;
}

static struct rf_host_object *find_object(uint32_t kind, uint64_t what)
{
	uint32_t process = (uint32_t)getpid();
	for (int i = 0; i < RF_HOST_OBJECTS; i++) {
		struct rf_host_object *o = &state->objects[i];
		if (object_kind(o, process) == kind && (kind == RF_HOST_NONE || o->what == what))
			return o;
	}
	return NULL;
}

static void drop_object(struct rf_host_object *o)
{
	atomic_store_explicit(&o->kind, RF_HOST_NONE, memory_order_release);
}

/* `value` 0: there is no such object any more. */
static void put_object(uint32_t kind, uint64_t what, uint64_t value)
{
	struct rf_host_object *o = find_object(kind, what);
	if (!value) {
		if (o)
			drop_object(o);
		return;
	}
	if (!o) {
		o = find_object(RF_HOST_NONE, 0);
		if (!o) {
			state->full = 1;
			return;
		}
		drop_object(o); /* it may be a parent's */
		o->pid = (uint32_t)getpid();
		o->what = what;
	}
	o->value = value;
	atomic_store_explicit(&o->kind, kind, memory_order_release);
}

static void add_value(uint32_t kind, uint64_t what, uint64_t change)
{
	const struct rf_host_object *o = find_object(kind, what);
	put_object(kind, what, (o ? o->value : 0) + change);
}

static uint64_t this_thread(void) { return (uint64_t)call_kernel(SYS_gettid, 0, 0, 0); }

/* ---- what the calls change ---- */

static bool undoes_at_exit(const struct sembuf *operations, size_t count)
{
	for (size_t i = 0; operations && i < count; i++)
		if (operations[i].sem_flg & SEM_UNDO)
			return true;
	return false;
}

static void note_undo(word set, const struct sembuf *operations, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (operations[i].sem_flg & SEM_UNDO)
			add_value(RF_HOST_UNDO, (uint64_t)set << 32 | operations[i].sem_num,
				  (uint64_t)-operations[i].sem_op);
}

static void note_cleared(uint64_t keyring)
{
	for (int i = 0; i < RF_HOST_OBJECTS; i++) {
		struct rf_host_object *o = &state->objects[i];
		if (object_kind(o, 0) == RF_HOST_KEY && o->value == keyring)
			drop_object(o);
	}
}

static bool changes_keys(word operation)
{
	return operation == KEYCTL_UNLINK || operation == KEYCTL_REVOKE ||
	       operation == KEYCTL_INVALIDATE || operation == KEYCTL_CLEAR ||
	       operation == KEYCTL_LINK;
}

static void note_keys(word operation, uint64_t key, uint64_t keyring)
{
	if (operation == KEYCTL_CLEAR)
		note_cleared(key);
	else
		put_object(RF_HOST_KEY, key, operation == KEYCTL_LINK ? keyring : 0);
}

/* Whether a call may change state that is recorded; and whether it does with these arguments. */
static bool may_change(word number)
{
	return number == SYS_add_key || number == SYS_request_key || number == SYS_keyctl ||
	       number == SYS_semop || number == SYS_semtimedop || number == SYS_mlockall ||
	       number == SYS_munlockall || number == SYS_mseal || number == SYS_prctl;
}

static bool changes_state(word number, const word *a)
{
	switch (number) {
	case SYS_request_key: return a[3] != 0;
	case SYS_keyctl: return changes_keys(a[0]);
	case SYS_semop:
	case SYS_semtimedop: return undoes_at_exit((const struct sembuf *)a[1], (size_t)a[2]);
	case SYS_prctl: return a[0] == PR_SET_TSC || a[0] == PR_SET_MDWE;
	default: return true;
	}
}

/* The call has returned `result`. */
static void note_effect(word number, const word *a, word result)
{
	switch (number) {
	case SYS_add_key: put_object(RF_HOST_KEY, (uint64_t)result, (uint64_t)a[4]); break;
	case SYS_request_key: put_object(RF_HOST_KEY, (uint64_t)result, (uint64_t)a[3]); break;
	case SYS_keyctl: note_keys(a[0], (uint64_t)a[1], (uint64_t)a[2]); break;
	case SYS_semop:
	case SYS_semtimedop: note_undo(a[0], (const struct sembuf *)a[1], (size_t)a[2]); break;
	case SYS_mlockall: put_object(RF_HOST_LOCKS_NEXT, 0, (a[0] & MCL_FUTURE) != 0); break;
	case SYS_munlockall: put_object(RF_HOST_LOCKS_NEXT, 0, 0); break;
	case SYS_mseal: put_object(RF_HOST_SEALED, (uint64_t)a[0], (uint64_t)a[1]); break;
	default: /* prctl */
		if (a[0] == PR_SET_TSC)
			put_object(RF_HOST_NO_TSC, 0, a[1] == PR_TSC_SIGSEGV);
		else
			put_object(RF_HOST_NO_NEW_CODE, 0, a[1] != 0);
	}
}

/* Before and after a call. `recording`: what `before` returned. */
static bool before_call(word number)
{
	sigset_t old_mask;
	int error = errno;
	lock_record(&old_mask);
	bool recording = make_record();
	if (recording)
		put_object(RF_HOST_CALL, this_thread(), (uint64_t)number);
	unlock_record(&old_mask);
	errno = error;
	return recording;
}

static WITHOUT_TAIL_CALLS word record_syscall(word number, word first, word b, word c, word d,
					      word e, word f)
{
	const word a[] = {first, b, c, d, e, f};
	sigset_t old_mask;
	bool recording = changes_state(number, a) && before_call(number);
	word result = libc_syscall()(number, first, b, c, d, e, f);
	if (!recording)
		return result;
	int error = errno;
	lock_record(&old_mask);
	if (result != -1)
		note_effect(number, a, result);
	put_object(RF_HOST_CALL, this_thread(), 0);
	unlock_record(&old_mask);
	errno = error;
	return result;
}

/* ---- libc's functions ---- */

/* Not declared as libc declares them, with `...`: all their arguments are passed on. */
RF_API word our_syscall(word number, word a, word b, word c, word d,
			word e LAST_PARAMETER) __asm__("syscall");
RF_API int our_prctl(int option, word a, word b, word c, word d) __asm__("prctl");

word our_syscall(word number, word a, word b, word c, word d, word e LAST_PARAMETER)
{
	call_function next = may_change(number) ? record_syscall : libc_syscall();
	return ((passing_function)(void *)next)(number, a, b, c, d, e LAST_ARGUMENT);
}

int our_prctl(int option, word a, word b, word c, word d)
{
	return (int)record_syscall(SYS_prctl, option, a, b, c, d, 0);
}

RF_API int semop(int set, struct sembuf *operations, size_t count)
{
	return (int)record_syscall(SYS_semop, set, (word)operations, (word)count, 0, 0, 0);
}

RF_API int semtimedop(int set, struct sembuf *operations, size_t count,
		      const struct timespec *timeout)
{
	return (int)record_syscall(SYS_semtimedop, set, (word)operations, (word)count,
				   (word)timeout, 0, 0);
}

RF_API int mlockall(int flags) { return (int)record_syscall(SYS_mlockall, flags, 0, 0, 0, 0, 0); }
RF_API int munlockall(void) { return (int)record_syscall(SYS_munlockall, 0, 0, 0, 0, 0, 0); }

RF_API int mseal(void *address, size_t bytes, unsigned long flags);
int mseal(void *address, size_t bytes, unsigned long flags)
{
	return (int)record_syscall(SYS_mseal, (word)address, (word)bytes, (word)flags, 0, 0, 0);
}

/* A timer_t is not always the kernel's number, so these call libc's functions. A timer that has
 * expired, for the last time, is still recorded: the launcher compares the time. */
RF_API int timer_settime(timer_t timer, int flags, const struct itimerspec *new,
			 struct itimerspec *old)
{
	static void *_Atomic found;
	settime_function next = (settime_function)libc_cached(&found, "timer_settime");
	bool absolute = flags & TIMER_ABSTIME && new && new->it_value.tv_sec >= LEAST_WALL_TIME;
	if (!absolute && !state)
		return next(timer, flags, new, old);
	uint64_t last = !absolute ? 0
			: new->it_interval.tv_sec || new->it_interval.tv_nsec
				? INT64_MAX
				: (uint64_t)new->it_value.tv_sec;
	sigset_t old_mask;
	bool recording = before_call(SYS_timer_settime);
	int result = next(timer, flags, new, old), error = errno;
	lock_record(&old_mask);
	if (recording && !result)
		put_object(RF_HOST_WALL_TIMER, (uint64_t)timer, last);
	if (recording)
		put_object(RF_HOST_CALL, this_thread(), 0);
	unlock_record(&old_mask);
	errno = error;
	return result;
}

RF_API int timer_delete(timer_t timer)
{
	static void *_Atomic found;
	delete_function next = (delete_function)libc_cached(&found, "timer_delete");
	int result = next(timer), error = errno;
	sigset_t old_mask;
	if (state && !result) {
		lock_record(&old_mask);
		put_object(RF_HOST_WALL_TIMER, (uint64_t)timer, 0);
		unlock_record(&old_mask);
		errno = error;
	}
	return result;
}

/* Records the state inherited from the program that has executed this one. */
__attribute__((constructor)) static void note_inherited(void)
{
	int tsc = PR_TSC_ENABLE, saved_errno = errno;
	sigset_t signals;
	call_kernel(SYS_prctl, PR_GET_TSC, (word)&tsc, 0);
	bool no_new_code = call_kernel(SYS_prctl, PR_GET_MDWE, 0, 0) > 0;
	if (tsc == PR_TSC_SIGSEGV || no_new_code) {
		lock_record(&signals);
		if (make_record()) {
			put_object(RF_HOST_NO_TSC, 0, tsc == PR_TSC_SIGSEGV);
			put_object(RF_HOST_NO_NEW_CODE, 0, no_new_code);
		}
		unlock_record(&signals);
	}
	errno = saved_errno;
}
