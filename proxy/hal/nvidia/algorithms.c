/* algorithms.c: the answers of cuBLASLt's heuristic, kept by the question. It takes longer than a
 * small product, and programs ask it the same again in each step.
 *
 * The question is the product without its addresses: their alignments are all that matters.
 *
 * Used by the device thread only.
 */
#include <stdlib.h>
#include <string.h>

#include "algorithms.h"

#define ANSWERS_MAX 1024u /* the answer that was not used for longest is dropped */

struct nvidia_algorithm {
	struct nvidia_question question;
	cublasLtMatmulAlgo_t algo;
	struct nvidia_algorithm *next; /* the last one used is the first */
};

struct nvidia_question nvidia_question_of(const struct rf_gemm *g, const struct rf_gemm_how *how,
					  const struct rf_matrix *aux)
{
	struct nvidia_question q;

	memset(&q, 0, sizeof q); /* also what is between the members */
	q.g = *g;
	if (how)
		q.how = *how;
	memset(&q.g.r, 0, sizeof q.g.r);
	q.g.stream = q.g.a.addr = q.g.b.addr = q.g.c.addr = q.g.d.addr = 0;
	q.g.alpha = q.g.beta = q.how.workspace = 0;
	q.g.bias = g->bias ? 1 + g->bias % NVIDIA_BIAS_ALIGNED : 0;
	q.aux = *aux;
	q.aux.addr %= NVIDIA_BIAS_ALIGNED;
	return q;
}

bool nvidia_algorithm_find(struct hal_device *device, const struct nvidia_question *question,
			   cublasLtMatmulAlgo_t *out)
{
	struct nvidia_algorithm **at = &device->algorithms, *found;

	while (*at && memcmp(&(*at)->question, question, sizeof *question) != 0)
		at = &(*at)->next;
	found = *at;
	if (!found)
		return false;
	*at = found->next;
	found->next = device->algorithms;
	device->algorithms = found;
	*out = found->algo;
	return true;
}

static void drop_beyond(struct hal_device *device, uint32_t most)
{
	struct nvidia_algorithm **at = &device->algorithms, *dropped;

	for (; *at && most; most--)
		at = &(*at)->next;
	while ((dropped = *at)) {
		*at = dropped->next;
		free(dropped);
	}
}

void nvidia_algorithm_keep(struct hal_device *device, const struct nvidia_question *question,
			   const cublasLtMatmulAlgo_t *algo)
{
	struct nvidia_algorithm *made = malloc(sizeof *made);

	if (!made) /* then it is asked again */
		return;
	memcpy(&made->question, question, sizeof *question);
	made->algo = *algo;
	made->next = device->algorithms;
	device->algorithms = made;
	drop_beyond(device, ANSWERS_MAX);
}

void nvidia_algorithms_close(struct hal_device *device) { drop_beyond(device, 0); }
