/* algorithms.c: chooses the algorithm of a product: the first that cuBLASLt's heuristic returns for
 * its shapes, types and alignments, with the program's preferences or without a workspace.
 *
 * The heuristic's answers are kept by the question. It takes longer than a small product, and
 * programs ask it the same again in each step. The question is the product without its addresses:
 * their alignments are all that matters.
 *
 * Used by the device thread only.
 */
#include <stdlib.h>
#include <string.h>

#include "gemm.h"

#define ALIGNED_MAX 256u  /* no algorithm needs a larger alignment */
#define ANSWERS_MAX 1024u /* the answer that was not used for longest is dropped */

/* Compared byte by byte. */
struct question {
	struct rf_gemm g;       /* without addresses */
	struct rf_gemm_how how; /* zeros: not as a program has called it */
	struct rf_matrix aux;
	uint32_t aligned[4];
};

struct nvidia_algorithm {
	struct question question;
	cublasLtMatmulAlgo_t algo;
	struct nvidia_algorithm *next; /* the last one used is the first */
};

/* ---- the question --------------------------------------------------------------------------- */

static struct question without_addresses(const struct rf_gemm *g, const struct rf_gemm_how *how,
					 const struct rf_matrix *aux)
{
	struct question q;

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

/* The alignment of several matrices is that of the first one and of their distance; for those in a
 * list only the type is known. */
static uint32_t alignment(const struct rf_gemm *g, const struct rf_matrix *x, uint8_t type)
{
	bool listed = g->flags & RF_GEMM_POINTERS;
	uint64_t size = type_bytes(type), bits = listed ? size : x->addr | ALIGNED_MAX;

	if (!listed && g->count > 1)
		bits |= x->batch * size;
	return (uint32_t)(bits & -bits);
}

static struct question question_of(const struct gemm_call *k)
{
	const struct rf_gemm *g = k->g;
	struct question q = without_addresses(g, k->how, k->aux);

	if (k->how) {
		memcpy(q.aligned, k->how->aligned, sizeof q.aligned);
		return q;
	}
	q.aligned[0] = alignment(g, &g->a, g->type_ab);
	q.aligned[1] = alignment(g, &g->b, g->type_ab);
	q.aligned[2] = alignment(g, is_zero(g, g->beta) ? &g->d : &g->c, g->type_cd);
	q.aligned[3] = alignment(g, &g->d, g->type_cd);
	return q;
}

/* ---- its answers ----------------------------------------------------------------------------- */

static bool find_answer(struct hal_device *device, const struct question *question,
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

static void keep_answer(struct hal_device *device, const struct question *question,
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

/* ---- the heuristic -------------------------------------------------------------------------- */

#define SET_PREFERENCE(k, attribute, value)                                                        \
	TRY(k, cublasLtMatmulPreferenceSetAttribute, (k)->preference, attribute, &(value),         \
	    sizeof(value))

/* The preference: the program's, or without a workspace. */
static void prefer(struct gemm_call *k, const uint32_t aligned[4])
{
	static const cublasLtMatmulPreferenceAttributes_t attributes[] = {
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
	};
	bool exact = !k->how && k->g->math & CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
	uint64_t workspace = k->how ? k->how->most_bytes : 0;
	uint32_t reductions = k->how  ? k->how->reductions
			      : exact ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE_MASK
				      : UINT32_MAX;

	TRY(k, cublasLtMatmulPreferenceCreate, &k->preference);
	SET_PREFERENCE(k, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
	if (reductions != UINT32_MAX)
		SET_PREFERENCE(k, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
	for (uint32_t i = 0; i < 4; i++)
		SET_PREFERENCE(k, attributes[i], aligned[i]);
}

void nvidia_choose_algorithm(struct gemm_call *k, struct hal_device *device,
			     cublasLtMatmulAlgo_t *algo)
{
	struct question question = question_of(k);
	cublasLtMatmulHeuristicResult_t found = {0};
	int count = 0;

	if (find_answer(device, &question, algo))
		return;
	prefer(k, question.aligned);
	TRY(k, cublasLtMatmulAlgoGetHeuristic, device->blas, k->desc, k->a, k->b, k->c, k->d,
	    k->preference, 1, &found, &count);
	if (!k->status && !count)
		k->status = CUBLAS_STATUS_NOT_SUPPORTED;
	if (!k->status)
		k->status = found.state;
	*algo = found.algo;
	if (!k->status)
		keep_answer(device, &question, algo);
}
