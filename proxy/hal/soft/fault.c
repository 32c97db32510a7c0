/* fault.c: how work ends early: an access to an unmapped page, a trap, a cancel.
 *
 * Work runs between sigsetjmp and the clearing of `in_fault_scope`, on a worker thread. Meanwhile
 * it holds no lock and owns no memory, so the signal handler may jump out at any instruction.
 * Faults of other threads, and of workers outside work in a fault scope, go to the previously
 * installed handlers.
 *
 * A kernel's write to a read-only page is not an error (unforeseen.c): the kernel continues.
 *
 * A cancel is a signal to the worker, so compiled kernels need no check in their loops. The cancel
 * flag is set before the signal is sent, and read after `in_fault_scope` is set, so no cancel is
 * lost.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "soft.h"

#define SIGNAL_STACK_BYTES (64u << 10)

static _Thread_local struct soft_worker *self;
static struct sigaction previous_segv, previous_bus, previous_fpe;

static int cancel_signal(void) { return SIGRTMIN + 6; }

/* Sheltered: before a call that does not return, the address sanitizer takes locks, which a cancel
 * must not interrupt. soft_abort is therefore not declared _Noreturn. */
_Noreturn static void escape(int error, uintptr_t address)
{
	self->fault_error = error;
	self->fault_address = address;
	siglongjmp(self->escape, 1);
}

static void call_previous(const struct sigaction *previous, int signum, siginfo_t *info,
			  void *context)
{
	if (previous->sa_flags & SA_SIGINFO) {
		previous->sa_sigaction(signum, info, context);
	} else if (previous->sa_handler == SIG_DFL || previous->sa_handler == SIG_IGN) {
		signal(signum, SIG_DFL); /* the access is repeated and ends the process */
	} else {
		previous->sa_handler(signum);
	}
}

static void on_fault(int signum, siginfo_t *info, void *context)
{
	uintptr_t address = (uintptr_t)info->si_addr;
	int saved = errno;

	if (self && self->in_fault_scope && info->si_code > 0) {
		soft_defer_cancel();
		if (signum != SIGSEGV || !self->kernel ||
		    !soft_unforeseen(self, soft_current_space(), address))
			escape(0, address);
		errno = saved;
		soft_allow_cancel();
		return; /* repeats the instruction */
	}
	call_previous(signum == SIGSEGV  ? &previous_segv
		      : signum == SIGBUS ? &previous_bus
					 : &previous_fpe,
		      signum, info, context);
}

static void on_cancel(int signum)
{
	int saved = errno;
	struct hal_space *space;

	(void)signum;
	if (self && self->in_fault_scope) {
		space = atomic_load(&self->space);
		if (space && atomic_load(&space->cancel)) {
			soft_defer_cancel();
			escape(SOFT_LAUNCH_FAILED, 0);
		}
	}
	errno = saved;
}

static pthread_once_t install_once = PTHREAD_ONCE_INIT;
static int install_result;

static void install_handlers(void)
{
	struct sigaction fault = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	struct sigaction cancel = {.sa_handler = on_cancel, .sa_flags = SA_RESTART | SA_ONSTACK};

	sigemptyset(&fault.sa_mask);
	sigemptyset(&cancel.sa_mask);
	if (sigaction(SIGSEGV, &fault, &previous_segv) ||
	    sigaction(SIGBUS, &fault, &previous_bus) || sigaction(SIGFPE, &fault, &previous_fpe) ||
	    sigaction(cancel_signal(), &cancel, NULL))
		install_result = SOFT_NOT_SUPPORTED;
}

int soft_fault_install(void)
{
	pthread_once(&install_once, install_handlers);
	return install_result;
}

int soft_worker_signals(struct soft_worker *worker)
{
	stack_t stack = {.ss_size = SIGNAL_STACK_BYTES};
	sigset_t all;

	/* Signals of the process are for its main thread; only these are for a worker. */
	sigfillset(&all);
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGBUS);
	sigdelset(&all, SIGFPE);
	sigdelset(&all, SIGILL);
	sigdelset(&all, SIGABRT);
	sigdelset(&all, cancel_signal());
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	worker->signal_stack = malloc(SIGNAL_STACK_BYTES);
	stack.ss_sp = worker->signal_stack;
	self = worker;
	return worker->signal_stack && sigaltstack(&stack, NULL) == 0 ? 0 : SOFT_OUT_OF_MEMORY;
}

void soft_signal_cancel(struct soft_worker *worker)
{
	pthread_kill(worker->thread, cancel_signal());
}

void soft_abort(int error)
{
	soft_defer_cancel();
	escape(error, 0);
}

void soft_abort_with_text(int error, const char *why)
{
	soft_defer_cancel();
	snprintf(self->said, sizeof self->said, "%s", why);
	escape(error, 0);
}

void soft_abort_space(const struct hal_space *space, int error)
{
	soft_defer_cancel();
	escape(error, (uintptr_t)space->reservation);
}

struct hal_space *soft_current_space(void) { return atomic_load(&self->space); }

void soft_defer_cancel(void)
{
	self->in_fault_scope = 0;
	atomic_signal_fence(memory_order_seq_cst);
}

void soft_allow_cancel(void)
{
	self->in_fault_scope = 1;
	atomic_signal_fence(memory_order_seq_cst);
	if (atomic_load(&soft_current_space()->cancel)) /* it may have been set meanwhile */
		soft_abort(SOFT_LAUNCH_FAILED);
}

static bool in_window(const struct hal_space *space, uintptr_t address)
{
	return space && address - (uintptr_t)space->reservation < SOFT_SPAN_BYTES;
}

static unsigned long long device_address(const struct hal_space *space, uintptr_t address)
{
	return RF_DEV_BASE + address - (uintptr_t)space->base;
}

static void fault_report(struct soft_worker *worker, struct hal_space *space)
{
	uintptr_t address = worker->fault_address, shared = (uintptr_t)worker->scratch.shared;

	for (uint32_t i = 0; worker->others && worker->others[i]; i++)
		if (in_window(worker->others[i], address))
			space = worker->others[i];

	if (worker->fault_error == SOFT_LAUNCH_FAILED && atomic_load(&space->cancel))
		soft_space_fail(space, SOFT_LAUNCH_FAILED, "%s: cancelled", worker->doing);
	else if (worker->fault_error == SOFT_ASSERT) /* the line that CUDA prints, then the rest */
		soft_space_fail(space, SOFT_ASSERT, "%s (kernel %s)", worker->said, worker->doing);
	else if (worker->fault_error)
		soft_space_fail(
			space, worker->fault_error, "%s: %s", worker->doing,
			worker->said[0]                     ? worker->said
			: worker->fault_error == SOFT_STACK ? "the stack of a thread is full"
			: worker->fault_error == SOFT_NOT_SUPPORTED
				? "it called a device function that the software GPU lacks"
			: worker->fault_error == SOFT_MISALIGNED_ADDRESS ? "a misaligned address"
			: worker->fault_error == SOFT_ILLEGAL_ADDRESS
				? "an address outside of device memory, or not aligned"
				: "the kernel trapped or can never continue");
	else if (address - (uintptr_t)space->base - RF_WINDOW_BYTES < SOFT_GUARD_BYTES)
		soft_space_fail(space, SOFT_ILLEGAL_ADDRESS,
				"%s: an address outside of device "
				"memory (NULL, or a host pointer?)",
				worker->doing);
	else if (address - (uintptr_t)space->base - RF_WINDOW_BYTES - SOFT_GUARD_BYTES <
		 SOFT_GUARD_BYTES)
		soft_space_fail(space, SOFT_MISALIGNED_ADDRESS, "%s: a misaligned address",
				worker->doing);
	else if (soft_space_mapping(space, address) == SOFT_READ_ONLY)
		soft_space_fail(
			space, SOFT_ILLEGAL_ADDRESS,
			"%s: a write to device address 0x%llx, where memory is read-only%s",
			worker->doing, device_address(space, address),
			worker->kernel
				? ": it is outside the footprint, and there is no memory for a copy"
				: "");
	else if (in_window(space, address))
		soft_space_fail(space, SOFT_ILLEGAL_ADDRESS,
				"%s: no memory at device address 0x%llx", worker->doing,
				device_address(space, address));
	else if (address - shared < SOFT_SHARED_WINDOW + 4096)
		soft_space_fail(space, SOFT_ILLEGAL_ADDRESS,
				"%s: no memory at shared address 0x%llx", worker->doing,
				(unsigned long long)(address - shared));
	else
		soft_space_fail(space, SOFT_ILLEGAL_ADDRESS,
				"%s: invalid access (host address "
				"%p)",
				worker->doing, (void *)address);
}

void soft_fault_scope(struct soft_worker *worker, struct hal_space *space,
		      struct hal_space *const *others, const char *doing,
		      void (*body)(struct soft_worker *, const struct hal_work *),
		      const struct hal_work *work)
{
	sigset_t ours;

	if (!space) {
		body(worker, work);
		return;
	}
	worker->doing = doing;
	worker->kernel = work->kind == HAL_KERNEL;
	worker->said[0] = 0;
	worker->refused = 0;
	worker->others = others;
	atomic_store(&worker->space, space);
	if (sigsetjmp(worker->escape, 0) == 0) { /* without the signal mask: no system call */
		worker->in_fault_scope = 1;
		atomic_signal_fence(memory_order_seq_cst);
		if (atomic_load(&space->cancel))
			soft_abort(SOFT_LAUNCH_FAILED);
		body(worker, work);
		worker->in_fault_scope = 0;
	} else {
		sigemptyset(&ours);
		sigaddset(&ours, SIGSEGV);
		sigaddset(&ours, SIGBUS);
		sigaddset(&ours, SIGFPE);
		sigaddset(&ours, cancel_signal());
		pthread_sigmask(SIG_UNBLOCK, &ours, NULL);
		fault_report(worker, space);
	}
	atomic_store(&worker->space, NULL);
}
