/* broken_client_objects.c: objects that graphs keep (broken_client.c). */
#include "graph/user_object.c"

#include "broken.h"
#include "broken_client.h"

#define BREAK(text, ...) BREAKS(text, , __VA_ARGS__)

void broken_objects(void)
{
	struct object o = {.magic = OBJECT_MAGIC, .count = 2};
	struct graph *g = graph_new();
	BREAK("an object counts the references that graphs have",
	      cuGraphRetainUserObject((void *)g, (void *)&o, 2, MOVE);
	      o.count = 1; cuGraphReleaseUserObject((void *)g, (void *)&o, 2));
	graph_free(g);
}
