/* user_object.c: objects of the program that graphs keep alive: each has a reference count, and a
 * function that is called when the count becomes 0.
 *
 * The caller that releases a reference may hold any lock of the program. So one thread of the
 * client calls these functions, one after the other; it is started for the first object. A launch
 * holds references to its graph's objects until it completes. Lock: OBJECT_LOCK, under which
 * nothing is awaited except the next object to destroy (which releases the lock).
 */
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>

#include "graph.h"
#include "invariant.h"

#define OBJECT_MAGIC 0x52465553u
#define NO_DESTRUCTOR_SYNC 1u
#define MOVE 1u

struct object {
	uint32_t magic;
	uint64_t count;
	CUhostFn destroy;
	void *data;
	struct object *next; /* list of objects without references */
};
struct reference {
	struct object *object;
	uint64_t count;
};

static pthread_cond_t object_unreferenced = PTHREAD_COND_INITIALIZER;
static struct object *unreferenced, **unreferenced_end = &unreferenced;
static bool destroyer_runs;

static struct object *checked_object(const void *handle, unsigned count)
{
	struct object *o = (struct object *)handle;
	return o && o->magic == OBJECT_MAGIC && count && count <= INT_MAX ? o : NULL;
}

static void *run_destructors(void *unused)
{
	in_host_function = true; /* CUDA's functions must not be called */
	for (;;) {
		lock(OBJECT_LOCK);
		while (!unreferenced)
			lock_wait(&object_unreferenced, OBJECT_LOCK);
		struct object *o = unreferenced;
		unreferenced = o->next;
		if (!unreferenced)
			unreferenced_end = &unreferenced;
		unlock(OBJECT_LOCK);
		o->destroy(o->data);
		free(o);
	}
	return unused;
}

/* Under OBJECT_LOCK. */
static void add_references(struct object *o, uint64_t count) { o->count += count; }

/* Under OBJECT_LOCK. */
static void release_object(struct object *o, uint64_t count)
{
	o->count -= count < o->count ? count : o->count;
	if (o->count)
		return;
	o->magic = 0;
	o->next = NULL;
	*unreferenced_end = o;
	unreferenced_end = &o->next;
	pthread_cond_signal(&object_unreferenced);
}

/* ---- sets of references: under OBJECT_LOCK ---- */

static struct reference *find_reference(const struct user_objects *set, const struct object *o)
{
	for (size_t i = 0; i < set->count; i++)
		if (set->at[i].object == o)
			return &set->at[i];
	return NULL;
}

static bool add_reference(struct user_objects *set, struct object *o, uint64_t count)
{
	struct reference *r = find_reference(set, o);
	if (!r) {
		struct reference *more = realloc(set->at, (set->count + 1) * sizeof *more);
		if (!more)
			return false;
		set->at = more;
		r = &more[set->count++];
		*r = (struct reference){o, 0};
	}
	r->count += count;
	return true;
}

void user_objects_drop(struct user_objects *set)
{
	if (!set->count)
		return;
	lock(OBJECT_LOCK);
	for (size_t i = 0; i < set->count; i++)
		release_object(set->at[i].object, set->at[i].count);
	unlock(OBJECT_LOCK);
	free(set->at);
	*set = (struct user_objects){NULL, 0};
}

int user_objects_share(struct user_objects *to, const struct user_objects *from)
{
	int error = CUDA_OK;
	if (!from->count)
		return CUDA_OK;
	lock(OBJECT_LOCK);
	for (size_t i = 0; !error && i < from->count; i++) {
		if (add_reference(to, from->at[i].object, from->at[i].count))
			add_references(from->at[i].object, from->at[i].count);
		else
			error = OUT_OF_MEMORY;
	}
	unlock(OBJECT_LOCK);
	return error;
}

/* ---- the API ---- */

CUresult cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroy,
			    unsigned int initialRefcount, unsigned int flags)
{
	if (!object_out || !destroy || !initialRefcount || initialRefcount > INT_MAX ||
	    flags != NO_DESTRUCTOR_SYNC)
		return INVALID_VALUE;
	int error = CUDA_OK;
	lock(OBJECT_LOCK);
	if (!destroyer_runs)
		error = start_thread(run_destructors);
	destroyer_runs |= !error;
	unlock(OBJECT_LOCK);
	struct object *o = error ? NULL : calloc(1, sizeof *o);
	if (!o)
		return OUT_OF_MEMORY;
	*o = (struct object){OBJECT_MAGIC, initialRefcount, destroy, ptr, NULL};
	*object_out = o;
	return CUDA_OK;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
	struct object *o = checked_object(object, count);
	if (!o)
		return INVALID_VALUE;
	lock(OBJECT_LOCK);
	add_references(o, count);
	unlock(OBJECT_LOCK);
	return CUDA_OK;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
	struct object *o = checked_object(object, count);
	if (!o)
		return INVALID_VALUE;
	lock(OBJECT_LOCK);
	release_object(o, count);
	unlock(OBJECT_LOCK);
	return CUDA_OK;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
				 unsigned int flags)
{
	struct graph *g = graph_check(graph, GRAPH_MAGIC);
	struct object *o = checked_object(object, count);
	if (!g || !o || flags & ~MOVE)
		return INVALID_VALUE;
	lock(OBJECT_LOCK);
	bool added = add_reference(&g->objects, o, count);
	if (added && !(flags & MOVE))
		add_references(o, count);
	unlock(OBJECT_LOCK);
	return added ? CUDA_OK : OUT_OF_MEMORY;
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
	struct graph *g = graph_check(graph, GRAPH_MAGIC);
	struct object *o = checked_object(object, count);
	if (!g || !o)
		return INVALID_VALUE;
	lock(OBJECT_LOCK);
	struct reference *r = find_reference(&g->objects, o);
	bool has = r && r->count >= count;
	if (has) {
		INVARIANT(o->count >= count, "an object counts the references that graphs have");
		r->count -= count;
		if (!r->count)
			*r = g->objects.at[--g->objects.count];
		release_object(o, count);
	}
	unlock(OBJECT_LOCK);
	return has ? CUDA_OK : INVALID_VALUE;
}
