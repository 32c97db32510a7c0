/* dnn_nodes.c: the contents of descriptors of cuDNN's backend API: nodes that refer to each other.
 */
#include <stdlib.h>

#include "dnn_graph.h"

void dnn_record_free(struct record *r)
{
	for (int64_t i = 0; r->kind == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < r->count; i++)
		dnn_node_release(r->of[i].node);
	free(r);
}

void dnn_node_release(struct node *n)
{
	if (!n || atomic_fetch_sub(&n->references, 1) != 1)
		return;
	for (struct record *r = n->records, *next; r; r = next) {
		next = r->next;
		dnn_record_free(r);
	}
	free(n);
}

struct node *dnn_node_share(struct node *n)
{
	atomic_fetch_add(&n->references, 1);
	return n;
}

struct node *dnn_node_new(int type)
{
	struct node *n = calloc(1, sizeof *n);

	if (n) {
		n->references = 1;
		n->type = type;
	}
	return n;
}

struct record *dnn_record_of(const struct node *n, int name)
{
	struct record *r = n->records;

	while (r && r->name != name)
		r = r->next;
	return r;
}

/* The first element of an attribute, or NULL. */
struct node *dnn_node_of(const struct node *n, int name)
{
	const struct record *r = dnn_record_of(n, name);

	return r && r->kind == CUDNN_TYPE_BACKEND_DESCRIPTOR && r->count ? r->of[0].node : NULL;
}

struct record *dnn_record_new(int name, int kind, int64_t count)
{
	struct record *r = calloc(1, sizeof *r + (size_t)count * sizeof *r->of);

	if (r) {
		r->name = name;
		r->kind = kind;
		r->count = count;
	}
	return r;
}

/* Takes the place of an earlier record of this name. */
void dnn_record_put(struct node *n, struct record *r)
{
	struct record **at = &n->records, *old;

	while (*at && (*at)->name != r->name)
		at = &(*at)->next;
	old = *at;
	r->next = old ? old->next : NULL;
	*at = r;
	if (old)
		dnn_record_free(old);
}
