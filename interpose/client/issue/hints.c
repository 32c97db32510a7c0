/* hints.c: attributes of streams, kernel nodes and launches. The cooperative attribute and clusters
 * change a launch; the others are hints, which are checked, stored and returned.
 *
 * No lock here: streams use their own around their attributes.
 */
#include <string.h>

#include "issue.h"

const struct hints usual_hints = {.sync_policy = 1, .domain_map = {0, 1}, .carveout = -1};

/* The known attributes: which objects have it, and where it is stored. All values start at the same
 * place in their union. */
#define HINT(id, of, member) {id, of, offsetof(struct hints, member), sizeof usual_hints.member}
static const struct {
	int id, of;
	size_t at, bytes;
} known[] = {
	HINT(ATTRIBUTE_WINDOW, OF_STREAM | OF_NODE, window),
	HINT(ATTRIBUTE_SYNC_POLICY, OF_STREAM, sync_policy),
	HINT(ATTRIBUTE_CLUSTER, OF_NODE, cluster),
	HINT(ATTRIBUTE_CLUSTER_POLICY, OF_NODE, cluster_policy),
	HINT(ATTRIBUTE_PRIORITY, OF_STREAM | OF_NODE, priority),
	HINT(ATTRIBUTE_DOMAIN_MAP, OF_STREAM | OF_NODE, domain_map),
	HINT(ATTRIBUTE_DOMAIN, OF_STREAM | OF_NODE, domain),
	HINT(ATTRIBUTE_PREFERRED_CLUSTER, OF_NODE, preferred_cluster),
	HINT(ATTRIBUTE_CARVEOUT, OF_NODE, carveout),
	HINT(ATTRIBUTE_NVLINK, OF_STREAM | OF_NODE, nvlink),
};
enum { KNOWN = sizeof known / sizeof *known };

static size_t attribute_place(int id, int of)
{
	size_t i = 0;
	while (i < KNOWN && !(known[i].id == id && known[i].of & of))
		i++;
	return i;
}

static bool is_between(int value, int least, int most) { return value >= least && value <= most; }

#define CLUSTER_MAX 16 /* of any device */

static uint64_t cluster_blocks(const launch_attribute_value *v)
{
	const unsigned side[] = {v->clusterDim.x, v->clusterDim.y, v->clusterDim.z};
	uint64_t blocks = 1;
	for (int i = 0; i < 3; i++)
		blocks = side[i] <= CLUSTER_MAX ? blocks * side[i] : CLUSTER_MAX + 1;
	return blocks;
}

uint32_t cluster_of(const launch_attribute_value *v)
{
	return cluster_blocks(v) <= 1
		       ? 0
		       : v->clusterDim.x | v->clusterDim.y << 8 | v->clusterDim.z << 16;
}

static int check_attribute(int id, const launch_attribute_value *v)
{
	const access_policy_window *w = &v->accessPolicyWindow;
	bool valid = true;
	switch (id) {
	case ATTRIBUTE_WINDOW:
		valid = w->hitRatio >= 0 && w->hitRatio <= 1 && is_between(w->hitProp, 0, 2) &&
			is_between(w->missProp, 0, 1);
		break;
	case ATTRIBUTE_SYNC_POLICY: valid = is_between(v->syncPolicy, 1, 4); break;
	case ATTRIBUTE_CLUSTER_POLICY: valid = is_between(v->hint, 0, 2); break;
	case ATTRIBUTE_DOMAIN:
	case ATTRIBUTE_NVLINK: valid = is_between(v->hint, 0, 1); break;
	case ATTRIBUTE_CARVEOUT: valid = is_between(v->hint, -1, 100); break;
	case ATTRIBUTE_CLUSTER:
		if (cluster_blocks(v) > CLUSTER_MAX)
			return INVALID_CLUSTER_SIZE;
		break;
	case ATTRIBUTE_PREFERRED_CLUSTER:
		if ((uint64_t)v->clusterDim.x * v->clusterDim.y * v->clusterDim.z <= 1)
			break;
		LOG_ONCE("thread block clusters are not supported by rankfold");
		return NOT_SUPPORTED;
	}
	return valid ? CUDA_OK : INVALID_VALUE;
}

int nearest_priority(int priority)
{
	return priority > 0 ? 0 : priority < PRIORITY_GREATEST ? PRIORITY_GREATEST : priority;
}

int hint_get(const struct hints *hints, int of, int id, launch_attribute_value *value)
{
	size_t i = attribute_place(id, of);
	if (!value || i == KNOWN)
		return INVALID_VALUE;
	memcpy(value, (const uint8_t *)hints + known[i].at, known[i].bytes);
	return CUDA_OK;
}

int hint_set(struct hints *hints, int of, int id, const launch_attribute_value *value)
{
	size_t i = attribute_place(id, of);
	int error = value && i < KNOWN ? check_attribute(id, value) : INVALID_VALUE;
	if (error)
		return error;
	memcpy((uint8_t *)hints + known[i].at, value, known[i].bytes);
	hints->priority = nearest_priority(hints->priority);
	return CUDA_OK;
}

void hints_copy(struct hints *to, const struct hints *from, int of)
{
	for (size_t i = 0; i < KNOWN; i++)
		if (known[i].of & of)
			memcpy((uint8_t *)to + known[i].at, (const uint8_t *)from + known[i].at,
			       known[i].bytes);
}

/* ---- launches ---- */

static int check_launch_attribute(const launch_attribute *a)
{
	switch (a->id) {
	case ATTRIBUTE_IGNORE:
	case ATTRIBUTE_COOPERATIVE:
	case ATTRIBUTE_SYNC_POLICY:
	case ATTRIBUTE_SERIALIZATION: /* the next launch may begin early */ return CUDA_OK;
	case ATTRIBUTE_PROGRAMMATIC_EVENT:
	case ATTRIBUTE_LAUNCH_EVENT:
	case ATTRIBUTE_DEVICE_NODE:
		LOG_ONCE("launch attribute %d is not supported by rankfold", a->id);
		return NOT_SUPPORTED;
	default:
		return attribute_place(a->id, OF_NODE) < KNOWN ? check_attribute(a->id, &a->value)
							       : INVALID_VALUE;
	}
}

int launch_attributes(const launch_attribute *attributes, unsigned count, struct launch *l)
{
	int error = count && !attributes ? INVALID_VALUE : CUDA_OK;
	for (unsigned i = 0; !error && i < count; i++) {
		error = check_launch_attribute(&attributes[i]);
		if (attributes[i].id == ATTRIBUTE_COOPERATIVE)
			l->cooperative = attributes[i].value.cooperative != 0;
		if (!error && attributes[i].id == ATTRIBUTE_CLUSTER)
			l->cluster = cluster_of(&attributes[i].value);
	}
	l->attributes = attributes;
	l->attribute_count = count;
	return error;
}
