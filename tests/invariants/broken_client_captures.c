/* broken_client_captures.c: captures (broken_client.c). */
#include "graph/capture.c"

#include "broken.h"
#include "broken_client.h"

#define BREAK(text, ...) BREAKS(text, , __VA_ARGS__)

void broken_captures(void)
{
	struct capture capture = {0};
	struct nodes none = {NULL, 0};
	struct graph *g = graph_new();
	BREAK("a capture that ends was counted", forget_capture(&capture));
	/* A captured stream refers to nodes of the graph: none may be removed. */
	MUST(!graph_append(g, node_new(NODE_EMPTY), &none));
	MUST(!start_capture(RF_HANDLE_FIRST, g, &g->nodes[0]->needs, CAPTURE_RELAXED, false));
	MUST(cuGraphDestroyNode(g->nodes[0]) == CAPTURE_UNSUPPORTED && g->count == 1);
	MUST(cuGraphDestroy(g) == CAPTURE_UNSUPPORTED);
	stream_ends(RF_HANDLE_FIRST);
	MUST(!cuGraphDestroyNode(g->nodes[0]) && !cuGraphDestroy(g));
}
