/* fork.c: what a child made by fork finds.
 *
 * It has the thread that called fork alone, but all locks as they were, and it may still register
 * and look up functions, ask what it knows, and above all end: then fatbins are unregistered. So
 * fork waits for every lock that is held for a moment only; the child finds them free, and what
 * they guard whole. What asks the server comes after a look at whether this is a child (channel.c):
 * ring_lock, module_lock and what else is held while something is awaited are not its business.
 */
#include <pthread.h>

#include "client.h"

/* In the order in which any two of them are taken. Nothing is awaited under them but, under the
 * first, the launcher. */
static pthread_mutex_t *const locks[] = {
	&opening_lock,   &capture_lock, &object_lock,  &registered_lock, &pinned_lock,
	&heap_lock,      &pool_lock,    &link_lock,    &variables_lock,  &registry_lock,
	&attribute_lock, &handle_lock,  &context_lock,
};
#define COUNT (sizeof locks / sizeof *locks)

static void before(void)
{
	for (size_t i = 0; i < COUNT; i++)
		pthread_mutex_lock(locks[i]);
}

static void after(void)
{
	for (size_t i = COUNT; i-- > 0;)
		pthread_mutex_unlock(locks[i]);
}

static void in_child(void)
{
	after();
	channel_forked();
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(before, after, in_child);
}
