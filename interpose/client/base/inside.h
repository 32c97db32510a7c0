/* inside.h: makes code that must not run inside a program of the user fail to compile. The build
 * includes this before every file of the client.
 *
 * A job's process is not ours: we do not end it, write to its stdout, read its environment
 * repeatedly, catch its signals, start processes, or change process-wide state. Messages for people
 * go through log_message(), locks are those of locks.h, threads are started by start_thread(). The
 * exceptions are the functions here; each names its only permitted caller
 * (tests/interpose/test_floors.py checks that).
 */
#ifndef RANKFOLD_INSIDE_H
#define RANKFOLD_INSIDE_H

/* All headers that declare a poisoned name come first. */
#include <assert.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "invariant.h" /* alone may abort, when a bug of ours has corrupted a structure */
#include "locks.h"

/* connect.c, once: the launcher's address. */
static inline const char *inside_environment(const char *name) { return getenv(name); }
/* visible.c, once: the devices that the process may see. */
static inline const char *inside_visible_devices(void) { return getenv("CUDA_VISIBLE_DEVICES"); }
/* print.c: the output of the program's own kernels is the program's output. */
static inline FILE *inside_stdout(void) { return stdout; }
/* thread.c: with all signals blocked. */
static inline int inside_thread(pthread_t *thread, void *(*function)(void *))
{
	return pthread_create(thread, NULL, function, NULL);
}

#undef stdin
#undef stdout
#undef stderr
#undef assert

#pragma GCC poison exit _exit _Exit quick_exit abort atexit on_exit raise kill pthread_exit assert
#pragma GCC poison stdin stdout stderr printf puts putchar vprintf perror psignal
#pragma GCC poison getenv secure_getenv setenv putenv unsetenv clearenv environ
#pragma GCC poison signal sigaction pthread_kill alarm setitimer
#pragma GCC poison fork vfork system popen execv execve execvp execl execlp posix_spawn waitpid
#pragma GCC poison chdir fchdir umask setlocale setrlimit nice srand rand strtok
#pragma GCC poison pthread_create pthread_mutex_lock pthread_mutex_trylock pthread_mutex_unlock
#pragma GCC poison pthread_mutex_init pthread_cond_wait

#endif
