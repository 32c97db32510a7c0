/* graph_memory.h: what the two files about memory of captures share. */
#pragma once

#include "graph.h"

enum state {
	FREED,    /* the program does not have it */
	CAPTURED, /* the program has it, but no launch has allocated it yet */
	LAUNCHED,
};
struct graph_memory {
	uint64_t address, bytes;
	_Atomic uint32_t references; /* of nodes, and of calls in progress */
	enum state state;
	uint64_t freed_by; /* the number of a node; 0: it cannot be used again */
	struct graph_memory *next;
};

extern struct graph_memory *graph_memories;
extern uint64_t graph_memory_used, graph_memory_most_used; /* bytes */

/* Under GRAPH_LOCK: unlinks memory that nothing needs. The caller then returns it. */
bool graph_memory_unlink_unneeded(struct graph_memory *m);
