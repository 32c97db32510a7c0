/* locks.h: every lock of the client, in the order in which they are acquired, and what each
 * protects.
 *
 * MOMENT: fork waits for it. Nothing waits for the server under it, and the child, which has only
 * the thread that called fork, finds it free and its data consistent. A child may still register
 * and look up functions, query what it knows, and above all exit, which unregisters fatbins. (Under
 * OPENING_LOCK a thread waits for the launcher.) WAITS: it may be held for as long as the server
 * takes, and no child acquires it: everything that sends a request first checks whether this is a
 * child.
 *
 * With the address sanitizer, acquiring a lock out of order ends the program.
 */
#ifndef RANKFOLD_LOCKS_H
#define RANKFOLD_LOCKS_H

#include <pthread.h>
#include <stdbool.h>

#define LOCKS(MOMENT, WAITS)                                                                       \
	MOMENT(CARRIED_LOCK)    /* which of our own kernels are registered */                      \
	WAITS(MODULE_LOCK)      /* what the server knows of modules and functions */               \
	WAITS(PINS_LOCK)        /* the request that says which pinned memory is in use */          \
	WAITS(HELPER_LOCK)      /* whether the thread for host functions runs */                   \
	MOMENT(OPENING_LOCK)    /* the hand-over to the launcher */                                \
	MOMENT(GRAPH_LOCK)      /* memory that graphs have allocated */                            \
	MOMENT(CAPTURE_LOCK)    /* the list of captures, and their graphs */                       \
	MOMENT(OBJECT_LOCK)     /* reference counts of user objects */                             \
	MOMENT(REGISTERED_LOCK) /* the table of registered memory, while it is resized */          \
	MOMENT(PINNED_LOCK)     /* the blocks of the pinned arena, and notes about them */         \
	MOMENT(VIRTUAL_LOCK)    /* memory that the program maps itself */                          \
	MOMENT(HEAP_LOCK)       /* device addresses, and the records that announce them */         \
	MOMENT(SITES_LOCK)      /* stack frames that were walked before */                         \
	MOMENT(POOL_LOCK)       /* the accounts of all pools */                                    \
	MOMENT(OPERATOR_LOCK)   /* NCCL operators that the program created */                      \
	MOMENT(COMM_LOCK)       /* which requests of communicators are in progress */              \
	MOMENT(LINK_LOCK)       /* the linker's states */                                          \
	MOMENT(VARIABLES_LOCK)  /* the list of managed variables */                                \
	MOMENT(REGISTRY_LOCK)   /* the meaning of the program's handles and addresses */           \
	MOMENT(ATTRIBUTE_LOCK)  /* attributes of streams */                                        \
	MOMENT(HANDLE_LOCK)     /* which numbers are in use */                                     \
	MOMENT(CONTEXT_LOCK)    /* the list of contexts */                                         \
	WAITS(PRINT_LOCK)       /* the printed part of kernel output: blocks as stdout does */     \
	WAITS(RING_LOCK)        /* the ring, while a record or a group is copied */                \
	MOMENT(HOST_STATE_LOCK) /* the record of what a checkpoint would lose */

#define LOCK_NAME(name) name,
enum lock { LOCKS(LOCK_NAME, LOCK_NAME) LOCK_COUNT };
#undef LOCK_NAME

/* One cache line each. */
struct locked {
	_Alignas(64) pthread_mutex_t mutex;
};
extern __attribute__((visibility("hidden"))) struct locked locks[LOCK_COUNT];

/* Checks of the order; without the sanitizer they generate no code. */
#ifdef __SANITIZE_ADDRESS__
void lock_ordered(enum lock); /* before it is acquired */
void lock_acquired(enum lock);
void lock_released(enum lock);
#else
static inline void lock_ordered(enum lock which) { (void)which; }
static inline void lock_acquired(enum lock which) { (void)which; }
static inline void lock_released(enum lock which) { (void)which; }
#endif

static inline void lock(enum lock which)
{
	lock_ordered(which);
	pthread_mutex_lock(&locks[which].mutex);
	lock_acquired(which);
}

static inline bool lock_try(enum lock which)
{
	lock_ordered(which);
	if (pthread_mutex_trylock(&locks[which].mutex))
		return false;
	lock_acquired(which);
	return true;
}

static inline void unlock(enum lock which)
{
	lock_released(which);
	pthread_mutex_unlock(&locks[which].mutex);
}

/* Waits until the condition is signalled. The caller holds the lock before and after. */
static inline void lock_wait(pthread_cond_t *condition, enum lock which)
{
	pthread_cond_wait(condition, &locks[which].mutex);
}

#endif
