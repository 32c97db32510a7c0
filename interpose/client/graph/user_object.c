/* user_object.c: what programs give into the keeping of graphs: each object has a count of
 * references, and a function that is called when none is left.
 *
 * Who lets a reference go may hold any lock of the program's, so one thread of ours calls these
 * functions, one after the other; it is started with the first of them. A launch holds references
 * to what its graph has until it is over. Lock: object_lock, under which nothing is awaited.
 */
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>

#include "graph.h"

#define OBJECT_MAGIC 0x52465553u
#define NO_DESTRUCTOR_SYNC 1u
#define MOVE 1u

struct object {
	uint32_t magic;
	uint64_t count;
	CUhostFn destroy;
	void *data;
	struct object *next; /* that nobody refers to */
};
struct reference {
	struct object *object;
	uint64_t count;
};

pthread_mutex_t object_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t object_left = PTHREAD_COND_INITIALIZER;
static struct object *left, **left_end = &left;
static bool destroyer_runs;

static struct object *check(const void *handle, unsigned count)
{
	struct object *o = (struct object *)handle;
	return o && o->magic == OBJECT_MAGIC && count && count <= INT_MAX ? o : NULL;
}

static void *destroyer(void *unused)
{
	in_host_function = true; /* CUDA's functions must not be called */
	for (;;) {
		pthread_mutex_lock(&object_lock);
		while (!left)
			pthread_cond_wait(&object_left, &object_lock);
		struct object *o = left;
		left = o->next;
		if (!left)
			left_end = &left;
		pthread_mutex_unlock(&object_lock);
		o->destroy(o->data);
		free(o);
	}
	return unused;
}

/* Under object_lock. */
static void retain(struct object *o, uint64_t count) { o->count += count; }

/* Under object_lock. */
static void release(struct object *o, uint64_t count)
{
	o->count -= count < o->count ? count : o->count;
	if (o->count)
		return;
	o->magic = 0;
	o->next = NULL;
	*left_end = o;
	left_end = &o->next;
	pthread_cond_signal(&object_left);
}

/* ---- sets of references: under object_lock ---- */

static struct reference *find(const struct user_objects *set, const struct object *o)
{
	for (size_t i = 0; i < set->count; i++)
		if (set->at[i].object == o)
			return &set->at[i];
	return NULL;
}

static bool add(struct user_objects *set, struct object *o, uint64_t count)
{
	struct reference *r = find(set, o);
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
	pthread_mutex_lock(&object_lock);
	for (size_t i = 0; i < set->count; i++)
		release(set->at[i].object, set->at[i].count);
	pthread_mutex_unlock(&object_lock);
	free(set->at);
	*set = (struct user_objects){NULL, 0};
}

int user_objects_share(struct user_objects *to, const struct user_objects *from)
{
	int error = CUDA_OK;
	if (!from->count)
		return CUDA_OK;
	pthread_mutex_lock(&object_lock);
	for (size_t i = 0; !error && i < from->count; i++) {
		if (add(to, from->at[i].object, from->at[i].count))
			retain(from->at[i].object, from->at[i].count);
		else
			error = OUT_OF_MEMORY;
	}
	pthread_mutex_unlock(&object_lock);
	return error;
}

/* ---- launches ---- */

static int gather(const struct graph *exec, struct user_objects *set)
{
	int error = user_objects_share(set, &exec->objects);
	for (size_t i = 0; !error && i < exec->count; i++)
		if (exec->nodes[i]->child)
			error = gather(exec->nodes[i]->child, set);
	return error;
}

static void launch_over(void *set)
{
	user_objects_drop(set);
	free(set);
}

/* Into the stream, behind the launch; a capture's graph has the references instead. */
static int hold(struct user_objects *set, const void *stream)
{
	int status;
	void *graph = NULL;
	int error = capture_info(stream, &status, NULL, &graph, NULL, NULL, NULL);
	if (error || graph) {
		error = error ? error : user_objects_share(&((struct graph *)graph)->objects, set);
		launch_over(set);
		return error;
	}
	error = stream_host_function(stream, launch_over, set);
	if (error)
		launch_over(set);
	return error;
}

int user_objects_hold(const struct graph *exec, const void *stream)
{
	struct user_objects set = {NULL, 0};
	int error = gather(exec, &set);
	struct user_objects *kept = !error && set.count ? malloc(sizeof *kept) : NULL;
	if (kept) {
		*kept = set;
		return hold(kept, stream);
	}
	error = error || !set.count ? error : OUT_OF_MEMORY;
	user_objects_drop(&set);
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
	pthread_mutex_lock(&object_lock);
	if (!destroyer_runs)
		error = start_thread(destroyer);
	destroyer_runs |= !error;
	pthread_mutex_unlock(&object_lock);
	struct object *o = error ? NULL : calloc(1, sizeof *o);
	if (!o)
		return OUT_OF_MEMORY;
	*o = (struct object){OBJECT_MAGIC, initialRefcount, destroy, ptr, NULL};
	*object_out = o;
	return CUDA_OK;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
	struct object *o = check(object, count);
	if (!o)
		return INVALID_VALUE;
	pthread_mutex_lock(&object_lock);
	retain(o, count);
	pthread_mutex_unlock(&object_lock);
	return CUDA_OK;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
	struct object *o = check(object, count);
	if (!o)
		return INVALID_VALUE;
	pthread_mutex_lock(&object_lock);
	release(o, count);
	pthread_mutex_unlock(&object_lock);
	return CUDA_OK;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
				 unsigned int flags)
{
	struct graph *g = graph_check(graph, GRAPH_MAGIC);
	struct object *o = check(object, count);
	if (!g || !o || flags & ~MOVE)
		return INVALID_VALUE;
	pthread_mutex_lock(&object_lock);
	bool added = add(&g->objects, o, count);
	if (added && !(flags & MOVE))
		retain(o, count);
	pthread_mutex_unlock(&object_lock);
	return added ? CUDA_OK : OUT_OF_MEMORY;
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
	struct graph *g = graph_check(graph, GRAPH_MAGIC);
	struct object *o = check(object, count);
	if (!g || !o)
		return INVALID_VALUE;
	pthread_mutex_lock(&object_lock);
	struct reference *r = find(&g->objects, o);
	bool has = r && r->count >= count;
	if (has) {
		r->count -= count;
		if (!r->count)
			*r = g->objects.at[--g->objects.count];
		release(o, count);
	}
	pthread_mutex_unlock(&object_lock);
	return has ? CUDA_OK : INVALID_VALUE;
}
