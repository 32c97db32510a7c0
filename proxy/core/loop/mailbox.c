/* mailbox.c: between Python and the loop: calls in, events out.
 *
 * A call is a function and an argument on the caller's stack; the caller waits until the loop has
 * run it, which takes one turn. Events are a list with an eventfd. One mutex protects both lists
 * and is held only for one list operation; the loop may take it, since no thread sleeps while it
 * holds it.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "doorbell.h"
#include "loop/internal.h"
#include "loop/mailbox.h"
#include "proxy.h"

#define LATE_S 2 /* for one turn of the loop, before that is reported */

struct call {
	struct call *next;
	void (*run)(struct proxy *, void *);
	void *arg;
	bool done;
};

struct queued_event {
	struct queued_event *next;
	struct proxy_event event;
};

struct mailbox {
	pthread_mutex_t lock;
	pthread_cond_t ran;
	pthread_t loop;
	_Atomic int loop_tid; /* 0: it has not begun */
	struct call *calls, **calls_end;
	struct queued_event *events, **events_end, *taken;
	int event_fd;
	_Atomic uint32_t doorbell, sleeping;
	_Atomic bool stopping, called; /* true: there may be calls */
};

struct mailbox *mailbox_open(struct proxy *p)
{
	struct mailbox *m = calloc(1, sizeof *m);
	pthread_condattr_t monotonic;
	(void)p;
	if (!m)
		return NULL;
	m->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (m->event_fd < 0) {
		free(m);
		return NULL;
	}
	pthread_mutex_init(&m->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&m->ran, &monotonic);
	pthread_condattr_destroy(&monotonic);
	m->calls_end = &m->calls;
	m->events_end = &m->events;
	return m;
}

static void free_event(struct queued_event *q)
{
	if (q)
		free((void *)(uintptr_t)q->event.data);
	free(q);
}

void mailbox_close(struct proxy *p)
{
	struct mailbox *m = p->mailbox;
	while (m->events) {
		struct queued_event *q = m->events;
		m->events = q->next;
		free_event(q);
	}
	free_event(m->taken);
	close(m->event_fd);
	free(m);
}

void mailbox_ring(void *proxy)
{
	struct mailbox *m = ((struct proxy *)proxy)->mailbox;
	doorbell_fence();
	doorbell_ring(&m->doorbell, &m->sleeping);
}

void mailbox_doorbell(struct proxy *p, uint32_t **word, uint32_t *value)
{
	*word = (uint32_t *)&p->mailbox->doorbell;
	*value = doorbell_seen(&p->mailbox->doorbell);
}

void mailbox_sleep(struct proxy *p, bool sleeping)
{
	doorbell_asleep(&p->mailbox->sleeping, sleeping);
}

bool mailbox_stopping(const struct proxy *p) { return atomic_load(&p->mailbox->stopping); }

void mailbox_run_calls(struct proxy *p)
{
	struct mailbox *m = p->mailbox;
	if (!atomic_load_explicit(&m->called, memory_order_acquire))
		return;
	pthread_mutex_lock(&m->lock);
	atomic_store(&m->called, false);
	while (m->calls) {
		struct call *c = m->calls;
		m->calls = c->next;
		if (!m->calls)
			m->calls_end = &m->calls;
		pthread_mutex_unlock(&m->lock);
		c->run(p, c->arg);
		turn_progress(&p->device.turn);
		pthread_mutex_lock(&m->lock);
		c->done = true;
		pthread_cond_broadcast(&m->ran);
	}
	pthread_mutex_unlock(&m->lock);
}

/* With the lock held: waits until the loop has run the call. No deadline: the call may have any
 * effect meanwhile. */
static void wait_for_turn(struct mailbox *m, const struct call *c)
{
	struct timespec late;
	int error = 0;
	clock_gettime(CLOCK_MONOTONIC, &late);
	late.tv_sec += LATE_S;
	while (!c->done && error != ETIMEDOUT)
		error = pthread_cond_timedwait(&m->ran, &m->lock, &late);
	if (c->done)
		return;
	pthread_mutex_unlock(&m->lock); /* the log's disk may be what hangs */
	dprintf(2,
		"rankfold: a turn of the device's loop (thread %d) has not ended for %d s; until it "
		"does, this proxy answers no request\n",
		atomic_load(&m->loop_tid), LATE_S);
	pthread_mutex_lock(&m->lock);
	while (!c->done)
		pthread_cond_wait(&m->ran, &m->lock);
}

void in_loop(struct proxy *p, void (*run)(struct proxy *, void *), void *arg)
{
	struct mailbox *m = p->mailbox;
	struct call c = {NULL, run, arg, false};
	pthread_mutex_lock(&m->lock);
	*m->calls_end = &c;
	m->calls_end = &c.next;
	atomic_store(&m->called, true);
	mailbox_ring(p);
	wait_for_turn(m, &c);
	pthread_mutex_unlock(&m->lock);
}

void post_event(struct proxy *p, const struct proxy_event *e)
{
	struct mailbox *m = p->mailbox;
	struct queued_event *q = calloc(1, sizeof *q);
	uint64_t one = 1;
	if (!q)
		abort(); /* an event must never be lost */
	q->event = *e;
	if (e->data) {
		uint8_t *copy = malloc(e->bytes ? e->bytes : 1);
		if (!copy)
			abort();
		memcpy(copy, e->data, e->bytes);
		q->event.data = copy;
	}
	pthread_mutex_lock(&m->lock);
	*m->events_end = q;
	m->events_end = &q->next;
	pthread_mutex_unlock(&m->lock);
	if (write(m->event_fd, &one, sizeof one) < 0) {
		/* the counter is full: the descriptor is readable anyway */
	}
}

int proxy_event_fd(struct proxy *p) { return p->mailbox->event_fd; }

int proxy_next_event(struct proxy *p, struct proxy_event *event)
{
	struct mailbox *m = p->mailbox;
	uint64_t count;
	free_event(m->taken);
	pthread_mutex_lock(&m->lock);
	m->taken = m->events;
	if (m->events) {
		m->events = m->events->next;
		if (!m->events)
			m->events_end = &m->events;
	} else if (read(m->event_fd, &count, sizeof count) < 0) {
		/* nothing to clear */
	}
	pthread_mutex_unlock(&m->lock);
	if (m->taken)
		*event = m->taken->event;
	return m->taken != NULL;
}

static void *begin(void *proxy)
{
	struct proxy *p = proxy;
	pthread_setname_np(pthread_self(), "device-loop");
	atomic_store(&p->mailbox->loop_tid, gettid());
	return loop_main(p);
}

/* Starts the loop's thread; false if that fails. */
bool mailbox_start(struct proxy *p) { return !pthread_create(&p->mailbox->loop, NULL, begin, p); }

/* Stops the loop's thread and waits for its end. */
void mailbox_stop(struct proxy *p)
{
	struct mailbox *m = p->mailbox;
	atomic_store(&m->stopping, true);
	mailbox_ring(p);
	pthread_join(m->loop, NULL);
}
