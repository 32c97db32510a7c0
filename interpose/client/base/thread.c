/* thread.c: the client's own threads, next to the program's. */
#include <pthread.h>
#include <signal.h>

#include "base.h"

/* The thread is never joined: it ends with the process. */
int start_thread(void *(*function)(void *))
{
	sigset_t all, old_mask;
	pthread_t thread;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old_mask);
	int error = inside_thread(&thread, function) ? OUT_OF_MEMORY : CUDA_OK;
	if (!error)
		pthread_detach(thread);
	pthread_sigmask(SIG_SETMASK, &old_mask, NULL);
	return error;
}
