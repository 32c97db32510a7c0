/* whole.c: chunks that are write-protected and made writable repeatedly become one huge page each,
 * so that a change costs one page-table entry and not 512.
 *
 * The system collapses pages on request (MADV_COLLAPSE), in a millisecond or two, and copies the
 * content. A separate thread therefore requests it, for mappings whose protection has changed a few
 * times. No other code depends on it: the content stays the same, concurrent accesses wait, and if
 * the system cannot do it, or the mapping is gone or replaced, nothing changes. A destroyed chunk
 * loses its huge page.
 */
#include <pthread.h>
#include <sys/mman.h>

#include "soft.h"

#define CLOSED_OFTEN 3u

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static void *whole_main(void *arg)
{
	struct soft_whole *w = arg;
	sigset_t all;

	sigfillset(&all); /* signals of the process are for its main thread */
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	pthread_setname_np(pthread_self(), "soft-pages");
	pthread_mutex_lock(&w->lock);
	for (;;) {
		uint8_t *at;

		while (!w->count && !w->stopping)
			pthread_cond_wait(&w->wake, &w->lock);
		if (w->stopping)
			break;
		at = w->queue[--w->count];
		pthread_mutex_unlock(&w->lock);
		madvise(at, RF_CHUNK_BYTES, MADV_COLLAPSE);
		pthread_mutex_lock(&w->lock);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

int soft_whole_open(struct soft_whole *w)
{
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->wake, NULL);
	w->started = pthread_create(&w->thread, NULL, whole_main, w) == 0;
	return w->started ? 0 : SOFT_OUT_OF_MEMORY;
}

void soft_whole_close(struct soft_whole *w)
{
	if (!w->started)
		return;
	pthread_mutex_lock(&w->lock);
	w->stopping = true;
	pthread_cond_signal(&w->wake);
	pthread_mutex_unlock(&w->lock);
	pthread_join(w->thread, NULL);
	pthread_cond_destroy(&w->wake);
	pthread_mutex_destroy(&w->lock);
}

void soft_whole_closed(struct soft_whole *w, uint8_t *at, uint8_t *times)
{
	if (*times == CLOSED_OFTEN || ++*times < CLOSED_OFTEN)
		return;
	pthread_mutex_lock(&w->lock);
	if (w->count < SOFT_WHOLE_MAX)
		w->queue[w->count++] = at;
	else
		*times = 0; /* tried again later */
	pthread_cond_signal(&w->wake);
	pthread_mutex_unlock(&w->lock);
}
