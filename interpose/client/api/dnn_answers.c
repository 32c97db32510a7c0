/* dnn_answers.c: adds to a descriptor what NVIDIA's cuDNN says about it (library_call.h). */
#include <stdlib.h>

#include "dnn_graph.h"

struct reader {
	const uint64_t *at, *end;
};

static uint64_t next_number(struct reader *r) { return r->at < r->end ? *r->at++ : 0; }

/* The length of a list; its elements are `slots` long. */
static int64_t next_length(struct reader *r, int64_t slots)
{
	uint64_t count = next_number(r), most = (uint64_t)((r->end - r->at) / slots);

	return (int64_t)(count < most ? count : most);
}

static bool record_number(struct node *n, int name, int kind, uint64_t value, bool answer)
{
	struct record *r = dnn_record_new(name, kind, 1);

	if (!r)
		return false;
	r->answer = answer;
	r->of[0].number = value;
	dnn_record_put(n, r);
	return true;
}

static bool record_list(struct node *n, int name, int kind, struct reader *from)
{
	int64_t count = next_length(from, 1);
	struct record *r = dnn_record_new(name, kind, count);

	for (int64_t i = 0; i < count; i++) {
		uint64_t value = next_number(from);

		if (r)
			r->of[i].number = value;
	}
	if (!r)
		return false;
	r->answer = true;
	dnn_record_put(n, r);
	return true;
}

static bool record_notes(struct node *engine, struct reader *from)
{
	bool notes = record_list(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
				 CUDNN_TYPE_NUMERICAL_NOTE, from);

	return record_list(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
			   from) &&
	       notes;
}

/* Descriptors of `type`, each with the same attributes: first a knob's type, then whole numbers. */
static bool record_knobs(struct node *to, int attribute, bool answer, int type, const int *names,
			 int64_t each, struct reader *from)
{
	int64_t count = next_length(from, each);
	struct record *r = dnn_record_new(attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, count);
	bool made = r;

	for (int64_t i = 0; i < count; i++) {
		struct node *knob = r ? dnn_node_new(type) : NULL;

		for (int64_t j = 0; j < each; j++) {
			uint64_t value = next_number(from);

			made = knob && made &&
			       record_number(knob, names[j],
					     j ? CUDNN_TYPE_INT64 : CUDNN_TYPE_KNOB_TYPE, value,
					     answer);
		}
		if (knob)
			knob->final = true;
		if (r)
			r->of[i].node = knob;
	}
	if (!r)
		return false;
	r->answer = answer || !count; /* nothing is not sent */
	dnn_record_put(to, r);
	return made;
}

static bool record_node(struct node *to, int name, struct node *n)
{
	struct record *r = dnn_record_new(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1);

	if (!r)
		return false;
	r->of[0].node = dnn_node_share(n);
	dnn_record_put(to, r);
	return true;
}

static bool read_configuration(struct node *c, struct node *graph, struct reader *from)
{
	static const int choice[] = {CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
				     CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE};
	struct node *engine = dnn_node_new(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
	bool made = engine && record_node(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph) &&
		    record_number(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64,
				  next_number(from), false) &&
		    record_node(c, CUDNN_ATTR_ENGINECFG_ENGINE, engine) &&
		    record_knobs(c, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, false,
				 CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, choice, 2, from) &&
		    record_notes(engine, from);

	if (engine)
		engine->final = true;
	dnn_node_release(engine);
	c->final = true;
	return made;
}

static bool read_configurations(struct node *heuristic, struct reader *from)
{
	struct node *graph = dnn_node_of(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
	int64_t count = next_length(from, 4); /* a configuration has at least so many */
	struct record *r = dnn_record_new(CUDNN_ATTR_ENGINEHEUR_RESULTS,
					  CUDNN_TYPE_BACKEND_DESCRIPTOR, count);
	bool made = r && graph;

	if (r)
		r->count = 0;
	for (int64_t i = 0; made && i < count; i++) {
		struct node *c = dnn_node_new(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);

		made = c && read_configuration(c, graph, from);
		if (c)
			r->of[r->count++].node = c;
	}
	if (!r)
		return false;
	r->answer = true;
	dnn_record_put(heuristic, r);
	return made;
}

static bool read_about(struct node *n, struct reader *from)
{
	static const int info[] = {CUDNN_ATTR_KNOB_INFO_TYPE, CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE,
				   CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE, CUDNN_ATTR_KNOB_INFO_STRIDE};
	bool made;

	switch (n->type) {
	case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: return read_configurations(n, from);
	case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
		return record_notes(n, from) &&
		       record_knobs(n, CUDNN_ATTR_ENGINE_KNOB_INFO, true,
				    CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR, info, 4, from);
	case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
		return record_list(n, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
				   from) &&
		       record_list(n, CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED, CUDNN_TYPE_INT32,
				   from);
	case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
		made = record_number(n, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
				     next_number(from), true);
		n->version = next_number(from);
		return made;
	default:
		return record_number(n, CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT,
				     CUDNN_TYPE_INT64, next_number(from), true);
	}
}

bool dnn_read_answer(struct node *n, const uint64_t *answer)
{
	struct reader from = {answer + 1, answer + RF_DNN_QUERY_SLOTS};

	return read_about(n, &from);
}
