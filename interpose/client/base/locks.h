/* locks.h: every lock of the client, in the order in which any two of them are taken, with what it
 * guards.
 *
 * MOMENT: nothing is awaited under it, so fork waits for it: the child, which has only the thread
 * that called fork, finds it free and what it guards consistent. A child may still register and
 * look up functions, query what it knows, and above all end: then fatbins are unregistered. (Under
 * the first of them the launcher is awaited.) WAITS: it may be held for as long as the server
 * takes, and no child takes it: whatever sends a request first checks whether this is a child.
 *
 * Where the address sanitizer is on, taking one out of order ends the program.
 */
#ifndef RANKFOLD_LOCKS_H
#define RANKFOLD_LOCKS_H

#include <pthread.h>
#include <stdbool.h>

#define LOCKS(MOMENT, WAITS)                                                                       \
	MOMENT(BLAS_LOCK)       /* which of BLAS's modules are registered */                       \
	WAITS(MODULE_LOCK)      /* what the server knows of modules and functions */               \
	WAITS(HELPER_LOCK)      /* whether the thread for host functions runs */                   \
	MOMENT(OPENING_LOCK)    /* the meeting with the launcher */                                \
	MOMENT(CAPTURE_LOCK)    /* the list of captures, and their graphs */                       \
	MOMENT(OBJECT_LOCK)     /* counts of references to user objects */                         \
	MOMENT(REGISTERED_LOCK) /* the table of registered memory, while it changes places */      \
	MOMENT(PINNED_LOCK)     /* the blocks of the pinned arena, and notes about them */         \
	MOMENT(HEAP_LOCK)       /* device addresses, and the records that announce them */         \
	MOMENT(SITES_LOCK)      /* frames on the stack that were walked before */                  \
	MOMENT(POOL_LOCK)       /* the accounts of all pools */                                    \
	MOMENT(OPERATOR_LOCK)   /* operators of NCCL that the program made */                      \
	MOMENT(COMM_LOCK)       /* which requests of communicators are in progress */              \
	MOMENT(LINK_LOCK)       /* the linker's states */                                          \
	MOMENT(VARIABLES_LOCK)  /* the list of managed variables */                                \
	MOMENT(REGISTRY_LOCK)   /* what a handle or an address of the program stands for */        \
	MOMENT(ATTRIBUTE_LOCK)  /* attributes of streams */                                        \
	MOMENT(HANDLE_LOCK)     /* which numbers are taken */                                      \
	MOMENT(CONTEXT_LOCK)    /* the list of contexts */                                         \
	WAITS(PRINT_LOCK)       /* what of the kernels' output was shown: blocks as stdout does */ \
	WAITS(RING_LOCK)        /* the ring, for the copy of a record or of a group of them */

#define LOCK_NAME(name) name,
enum lock { LOCKS(LOCK_NAME, LOCK_NAME) LOCK_COUNT };
#undef LOCK_NAME

/* A cache line each. */
struct locked {
	_Alignas(64) pthread_mutex_t mutex;
};
extern __attribute__((visibility("hidden"))) struct locked locks[LOCK_COUNT];

/* Checks of the order: no code where the sanitizer is off. */
#ifdef __SANITIZE_ADDRESS__
void lock_ordered(enum lock); /* about to be taken */
void lock_taken(enum lock);
void lock_left(enum lock);
#else
static inline void lock_ordered(enum lock which) { (void)which; }
static inline void lock_taken(enum lock which) { (void)which; }
static inline void lock_left(enum lock which) { (void)which; }
#endif

static inline void lock(enum lock which)
{
	lock_ordered(which);
	pthread_mutex_lock(&locks[which].mutex);
	lock_taken(which);
}

static inline bool lock_try(enum lock which)
{
	lock_ordered(which);
	if (pthread_mutex_trylock(&locks[which].mutex))
		return false;
	lock_taken(which);
	return true;
}

static inline void unlock(enum lock which)
{
	lock_left(which);
	pthread_mutex_unlock(&locks[which].mutex);
}

/* Until the condition is signalled; the lock is the caller's, before and after. */
static inline void lock_wait(pthread_cond_t *condition, enum lock which)
{
	pthread_cond_wait(condition, &locks[which].mutex);
}

#endif
