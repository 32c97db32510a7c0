/* broken_client_updates.c: updates of graphs (broken_client.c). */
#include "graph/graph_exec.c"

#include "broken.h"
#include "broken_client.h"

#define BREAK(text, ...) BREAKS(text, , __VA_ARGS__)

void broken_updates(void)
{
	struct graph *one = graph_new(), *none = graph_new();
	graph_append(one, node_new(NODE_EMPTY), &(struct nodes){NULL, 0});
	BREAK("an update keeps the nodes of a graph", reuse_nodes(one, none));
	graph_free(one);
	graph_free(none);
}
