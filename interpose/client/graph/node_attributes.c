/* node_attributes.c: attributes of kernel nodes. */
#include <string.h>

#include "graph.h"

static struct node *kernel_node(const void *node)
{
	struct node *n = node_of(node, NODE_KERNEL);
	return n ? n : node_of(node, NODE_GEMM);
}

int node_attribute_get(const void *node, int id, launch_attribute_value *value)
{
	const struct node *n = kernel_node(node);
	if (!n || !value)
		return INVALID_VALUE;
	if (id == ATTRIBUTE_DEVICE_NODE)
		memset(value, 0, sizeof value->deviceUpdatableKernelNode);
	else if (id == ATTRIBUTE_COOPERATIVE)
		value->cooperative = n->launch.cooperative;
	else
		return hint_get(&n->hints, OF_NODE, id, value);
	return CUDA_OK;
}

static int set_hint(struct node *n, int id, const launch_attribute_value *value)
{
	uint32_t cluster = id == ATTRIBUTE_CLUSTER ? cluster_of(value) : 0;
	int error = !cluster                 ? CUDA_OK
		    : n->kind == NODE_KERNEL ? clusters_supported(n->launch.function)
					     : INVALID_VALUE;
	if (!error)
		error = hint_set(&n->hints, OF_NODE, id, value);
	if (!error && id == ATTRIBUTE_CLUSTER && n->kind == NODE_KERNEL)
		n->launch.cluster = cluster;
	return error;
}

int node_attribute_set(const void *node, int id, const launch_attribute_value *value)
{
	struct node *n = kernel_node(node);
	if (!n || !value)
		return INVALID_VALUE;
	if (id == ATTRIBUTE_DEVICE_NODE && value->deviceUpdatableKernelNode.deviceUpdatable) {
		LOG_ONCE("kernel nodes that kernels change are not supported by rankfold");
		return NOT_SUPPORTED;
	}
	if (id == ATTRIBUTE_COOPERATIVE)
		n->launch.cooperative = value->cooperative != 0;
	else if (id != ATTRIBUTE_DEVICE_NODE)
		return set_hint(n, id, value);
	return CUDA_OK;
}

int node_attributes_copy(const void *to, const void *from)
{
	struct node *dst = kernel_node(to);
	const struct node *src = kernel_node(from);
	if (!dst || !src)
		return INVALID_VALUE;
	dst->hints = src->hints;
	dst->launch.cooperative = src->launch.cooperative;
	dst->launch.cluster = src->launch.cluster;
	return CUDA_OK;
}
