/* local_sum.c: steps that sum the inputs of local members. See engine.h.
 *
 * Rules: inputs are read in place. They combine at the nodes of the tree that are wholly local, and
 * each is rounded to the data type, so an early sum (early_sum.c) that a seat holds has the same
 * bits.
 */
#include "engine.h"

uint32_t local_sum_blocks(const struct plan *plan)
{
	uint32_t d = 0;

	while ((1u << d) < plan->sources.hi - plan->sources.lo)
		d++;
	return d;
}

/* Returns where the sum of a wholly local node can be read, after adding steps that compute it into
 * dst if no seat holds it. scratch[level] and above are free. */
static struct coll_operand add_local(struct coll *c, struct coll_piece *p, const struct plan *plan,
				     struct tree_node n, struct hal_ref dst, uint32_t level)
{
	uint64_t bytes = plan->count * dtype_bytes(p->shape.dtype);
	uint32_t seat = op_holder(p->op, n); /* that has the node's input or early sum */

	if (seat != NONE)
		return op_operand(c, p, seat, plan->src_at, plan->count, dst);
	uint32_t split = tree_split(n);
	struct step add = {.kind = STEP_REDUCE, .dst = dst, .count = plan->count};

	add.left = add_local(c, p, plan, (struct tree_node){n.lo, split}, dst, level);
	add.right = add_local(c, p, plan, (struct tree_node){split, n.hi},
			      ref_plus(p->scratch.at, level * bytes), level + 1);
	step_add(c, p, add);
	return (struct coll_operand){.at = dst};
}

void local_sum_node(struct coll *c, struct coll_piece *p, const struct plan *plan,
		    struct tree_node n, struct hal_ref dst)
{
	uint32_t seat = op_holder(p->op, n);

	if (seat != NONE)
		op_copy_input(c, p, seat, plan->src_at, plan->count, dst);
	else
		add_local(c, p, plan, n, dst, 0);
}

void local_sum_all(struct coll *c, struct coll_piece *p, const struct plan *plan,
		   struct hal_ref dst)
{
	struct tree_node nodes[2 * TREE_DEPTH_MAX + RANKS_MAX];
	uint64_t bytes = plan->count * dtype_bytes(p->shape.dtype);
	uint32_t n = tree_partials(plan->sources, p->comm->device, c->device, nodes,
				   sizeof nodes / sizeof *nodes);
	struct hal_ref other = ref_plus(p->scratch.at, local_sum_blocks(plan) * bytes);

	local_sum_node(c, p, plan, nodes[0], dst);
	for (uint32_t i = 1; i < n; i++) {
		struct step add = {
			.kind = STEP_REDUCE, .dst = dst, .left = {.at = dst}, .count = plan->count};

		add.right = add_local(c, p, plan, nodes[i], other, 0);
		step_add(c, p, add);
	}
}
