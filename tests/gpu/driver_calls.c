/* driver_calls.c: counts the calls of the CUDA driver in a process. The driver loads this library
 * into each process that uses it (CUDA_INJECTION64_PATH), and CUPTI reports each call.
 *
 * The count is a uint64_t in the file PID of the folder DRIVER_CALLS, always up to date. CUPTI is
 * the library DRIVER_CALLS_CUPTI.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { DRIVER_API = 1, ENTER = 0 }; /* CUpti_CallbackDomain, CUpti_ApiCallbackSite */

typedef void callback(void *user, int domain, uint32_t id, const void *data);

static _Atomic uint64_t *count;

static void count_call(void *user, int domain, uint32_t id, const void *data)
{
	const int *site = data; /* CUpti_CallbackData begins with it */

	(void)user;
	(void)id;
	if (domain == DRIVER_API && *site == ENTER)
		atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
}

static void *counter_in(const char *folder)
{
	char path[4096];
	int fd;
	void *at;

	snprintf(path, sizeof path, "%s/%d", folder, getpid());
	fd = open(path, O_RDWR | O_CREAT, 0600);
	if (fd < 0)
		return NULL;
	at = ftruncate(fd, sizeof *count)
		     ? MAP_FAILED
		     : mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return at == MAP_FAILED ? NULL : at;
}

/* The driver calls it when the process initialises it. */
__attribute__((visibility("default"))) int InitializeInjection(void)
{
	const char *folder = getenv("DRIVER_CALLS"), *name = getenv("DRIVER_CALLS_CUPTI");
	void *cupti = folder && name ? dlopen(name, RTLD_NOW) : NULL, *subscriber;
	int (*subscribe)(void **, callback *, void *) = NULL;
	int (*enable)(uint32_t, void *, int) = NULL;

	if (cupti) {
		*(void **)&subscribe = dlsym(cupti, "cuptiSubscribe");
		*(void **)&enable = dlsym(cupti, "cuptiEnableDomain");
	}
	if (!subscribe || !enable || !(count = counter_in(folder)) ||
	    subscribe(&subscriber, count_call, NULL) || enable(1, subscriber, DRIVER_API)) {
		fprintf(stderr, "driver_calls.c: calls are not counted: %s\n",
			cupti ? "CUPTI refuses, or the folder cannot be written" : dlerror());
		return 0;
	}
	return 1;
}
