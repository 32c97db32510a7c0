/* tree.h: the one summation tree of a communicator (D1: the same bits under any placement).
 *
 * A node is a range [lo, hi) of communicator ranks. It splits at lo + the largest power of two
 * below hi - lo. Partial sums combine only at its nodes, on whichever device.
 */
#ifndef RANKFOLD_TREE_H
#define RANKFOLD_TREE_H

#include <stdbool.h>
#include <stdint.h>

#define TREE_DEPTH_MAX 16

struct tree_node {
	uint32_t lo, hi;
};

/* Returns where the node splits; hi - lo must be at least 2. */
uint32_t tree_split(struct tree_node);
/* True if all ranks of the node are on device `on`. device[i]: the device of communicator rank
 * i. */
bool tree_within(struct tree_node, const uint32_t *device, uint32_t on);
/* Finds the largest nodes below `node` that are wholly on one device, from left to right: the
 * partial sums that the device must provide. Returns their number; at most max are written. */
uint32_t tree_partials(struct tree_node, const uint32_t *device, uint32_t on, struct tree_node *out,
		       uint32_t max);

#endif
