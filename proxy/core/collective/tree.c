/* tree.c: see tree.h. Pure functions. */
#include "tree.h"

uint32_t tree_split(struct tree_node n)
{
	uint32_t half = 1;

	while (2 * half < n.hi - n.lo)
		half *= 2;
	return n.lo + half;
}

bool tree_within(struct tree_node n, const uint32_t *device, uint32_t on)
{
	for (uint32_t i = n.lo; i < n.hi; i++)
		if (device[i] != on)
			return false;
	return true;
}

uint32_t tree_partials(struct tree_node n, const uint32_t *device, uint32_t on,
		       struct tree_node *out, uint32_t max)
{
	uint32_t split, left;

	if (tree_within(n, device, on)) {
		if (max)
			out[0] = n;
		return 1;
	}
	if (n.hi - n.lo < 2)
		return 0;
	split = tree_split(n);
	left = tree_partials((struct tree_node){n.lo, split}, device, on, out, max);
	return left + tree_partials((struct tree_node){split, n.hi}, device, on,
				    left < max ? out + left : out, left < max ? max - left : 0);
}
