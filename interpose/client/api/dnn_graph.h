/* dnn_graph.h: descriptors of cuDNN's backend API, which dnn_graph.c, dnn_nodes.c and dnn_answers.c
 * share. */
#ifndef RANKFOLD_DNN_GRAPH_H
#define RANKFOLD_DNN_GRAPH_H

#include "dnn.h"

struct record {
	struct record *next;
	int name, kind; /* cudnnBackendAttributeName_t, cudnnBackendAttributeType_t */
	bool answer;    /* it comes from the library, and is not sent */
	int64_t count;
	union {
		uint64_t number;
		struct node *node;
	} of[];
};
struct node {
	_Atomic uint32_t references;
	int type; /* cudnnBackendDescriptorType_t */
	bool final;
	bool known;       /* what the library says about it is among the records */
	uint64_t version; /* of a plan: of the library that made it */
	struct record *records;
};

/* ---- dnn_nodes.c ---- */

struct node *dnn_node_new(int type); /* NULL: no memory */
struct node *dnn_node_share(struct node *);
void dnn_node_release(struct node *); /* or NULL */
/* NULL: there is none of this name. */
struct record *dnn_record_of(const struct node *, int name);
/* The first element of an attribute, or NULL. */
struct node *dnn_node_of(const struct node *, int name);
struct record *dnn_record_new(int name, int kind, int64_t count); /* NULL: no memory */
/* Takes the place of an earlier record of this name. */
void dnn_record_put(struct node *, struct record *);
void dnn_record_free(struct record *);

/* ---- dnn_answers.c ---- */

/* Adds an answer of RF_DNN_QUERY_SLOTS, whose first is the status. False: no memory. */
bool dnn_read_answer(struct node *, const uint64_t *answer);

#endif
