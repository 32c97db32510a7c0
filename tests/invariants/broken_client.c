/* broken_client.c: each invariant of the client's libraries is broken once (broken.h). The channel
 * is memory of this process that no proxy serves. broken_client_*.c: structures that only their own
 * file knows.
 */
#include "broken.h"

#include <sys/mman.h>

#include "broken_client.h"
#include "context.h"
#include "graph.h"

#define BREAK(text, ...) BREAKS(text, , __VA_ARGS__)

static void channel(void)
{
	struct rf_collective record = {0};
	BREAK("what waits for the server fits into the ring",
	      atomic_store(&channel_header->tail, UINT64_MAX / 2);
	      channel_try_post(&record.r, RF_OP_DEVICE_SYNC, sizeof record.r);
	      channel_wait_space(64));
	BREAK("a record is no larger than the server accepts",
	      channel_post(&record.r, RF_OP_DEVICE_SYNC, 4, NULL, 0));
	BREAK("a reply is awaited in a slot that was claimed", channel_finish(3, NULL, 0));
	BREAK("a bulk slot that is released was claimed", bulk_release(3));
}

static void handles(void)
{
	struct handle *h = NULL;
	BREAK("a handle that is dropped has its place in the table",
	      h = handle_new(HANDLE_STREAM, 0);
	      h->number++; handle_drop(h));
	BREAK("a context that is popped was pushed", context_pop());
}

/* A graph of two empty nodes; the second depends on the first. */
static struct graph *pair(void)
{
	struct graph *g = graph_new();
	struct nodes none = {NULL, 0}, first = none;
	MUST(!graph_append(g, node_new(NODE_EMPTY), &none) && nodes_add(&first, g->nodes[0]) &&
	     !graph_append(g, node_new(NODE_EMPTY), &first));
	nodes_clear(&first);
	return g;
}

static struct graph *instantiated(const struct graph *g)
{
	void *exec;
	MUST(!graph_instantiate(&exec, g, 0, NULL));
	return exec;
}

static void graphs(void)
{
	struct graph *g = pair(), *other = pair(), *exec = instantiated(g);
	CUgraphExecUpdateResultInfo info;
	void *copy;
	MUST(!graph_update(exec, other, &info));
	BREAK("a graph has space for its nodes", g->capacity = 1;
	      graph_instantiate(&copy, g, 0, NULL));
	BREAK("a node has its place in its graph", g->nodes[1]->index = 0;
	      graph_instantiate(&copy, g, 0, NULL));
	BREAK("a node needs only nodes of its graph", g->nodes[1]->needs.at[0] = other->nodes[0];
	      graph_instantiate(&copy, g, 0, NULL));
	BREAK("a node that goes has its place in its graph", g->nodes[0]->index = 1;
	      cuGraphDestroyNode(g->nodes[0]));
	BREAK("a launch issues the nodes of its graph", exec->order[1] = 2;
	      cuGraphLaunch((void *)exec, NULL));
	BREAK("a launch issues the nodes of its graph", exec->nodes[0]->graph = g;
	      cuGraphLaunch((void *)exec, NULL));
	BREAK("a captured stream ends in nodes of the capture's graph",
	      nodes_reach(g, &other->nodes[1]->needs, &other->nodes[1]->needs));
	graph_free(exec);
	graph_free(other);
	graph_free(g);
}

int main(void)
{
	channel_header = mmap(NULL, RF_OFF_PINNED, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	MUST(channel_header != MAP_FAILED);
	channel();
	handles();
	broken_heaps();
	graphs();
	broken_arena();
	broken_captures();
	broken_comms();
	broken_objects();
	broken_pools();
	broken_updates();
	return 0;
}
