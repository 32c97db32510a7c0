/* dnn_ctc.c: of the fake driver (fake.h): cuDNN's CTC loss in float, by the recursion over an
 * alphabet in which 0 is the blank (Graves et al. 2006, section 4.1). Algorithm 0 adds in double,
 * 1 in float, so results show which one was chosen.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fake_dnn.h"

enum { FLOAT = 0, SOFTMAX = 1 };
#define LABELS_MAX 255
#define STEPS_MAX 64

DESCRIPTOR(CTCLossDescriptor, 'b')

EXPORT int cudnnSetCTCLossDescriptor_v9(void *descriptor, int type, int normalisation,
					int gradients, int longest)
{
	struct numbers *d = descriptor;

	BEGIN(cudnnSetCTCLossDescriptor_v9);
	if (type != FLOAT || normalisation < 0 || normalisation > 1 || gradients < 0 ||
	    gradients > 1 || longest < 0 || longest > LABELS_MAX)
		return fake_end(BAD_PARAM);
	d->n[0] = type;
	d->n[1] = normalisation;
	d->n[2] = gradients;
	d->n[3] = longest;
	d->set = true;
	return fake_end(SUCCESS);
}

struct loss {
	struct numbers x;
	bool softmax;
	int algorithm;
	const float *in;
	float *costs, *gradients;
	const int *input_lengths, *label_lengths, *labels;
	int *copied; /* the three lists, if they came from the host */
};

static double sum_of(const struct loss *k, double a, double b)
{
	return k->algorithm ? (double)((float)a + (float)b) : a + b;
}

static int64_t place(const struct numbers *x, int t, int n, int symbol)
{
	return (int64_t)t * x->stride[0] + (int64_t)n * x->stride[1] +
	       (int64_t)symbol * x->stride[2];
}

/* The probabilities of the symbols at one step. */
static void normalise_step(const struct loss *k, int t, int n, double *p)
{
	int symbols = k->x.size[2];
	double most = (double)k->in[place(&k->x, t, n, 0)], sum = 0;

	for (int s = 0; s < symbols; s++) {
		p[s] = (double)k->in[place(&k->x, t, n, s)];
		most = fmax(most, p[s]);
	}
	if (!k->softmax)
		return;
	for (int s = 0; s < symbols; s++) {
		p[s] = exp(p[s] - most);
		sum += p[s];
	}
	for (int s = 0; s < symbols; s++)
		p[s] /= sum;
}

/* One step of the recursion, at place s of the labels with blanks between them. `ahead` is 1, or -1
 * backwards. */
static double reach(const struct loss *k, const double *last, const int *extended, int count, int s,
		    int ahead)
{
	double sum = last[s];
	int one = s - ahead, two = s - 2 * ahead;

	if (one >= 0 && one < count)
		sum = sum_of(k, sum, last[one]);
	if (two >= 0 && two < count && extended[s] && extended[s] != extended[two])
		sum = sum_of(k, sum, last[two]);
	return sum;
}

#define EXTENDED_MAX (2 * LABELS_MAX + 1)
struct tables {
	double p[STEPS_MAX][256], alpha[STEPS_MAX][EXTENDED_MAX], beta[STEPS_MAX][EXTENDED_MAX];
};

static void lose(const struct loss *k, struct tables *of, int n, const int *labels)
{
	int steps = k->input_lengths[n], symbols = k->x.size[2], extended[EXTENDED_MAX] = {0};
	int count = 2 * k->label_lengths[n] + 1;
	double chance;

	memset(of, 0, sizeof *of);
	for (int i = 0; i < k->label_lengths[n]; i++)
		extended[2 * i + 1] = labels[i];
	for (int t = 0; t < steps; t++)
		normalise_step(k, t, n, of->p[t]);
	for (int s = 0; s < 2 && s < count; s++) {
		of->alpha[0][s] = of->p[0][extended[s]];
		of->beta[steps - 1][count - 1 - s] = of->p[steps - 1][extended[count - 1 - s]];
	}
	for (int t = 1; t < steps; t++)
		for (int s = 0; s < count; s++) {
			int back = steps - 1 - t;

			of->alpha[t][s] = of->p[t][extended[s]] *
					  reach(k, of->alpha[t - 1], extended, count, s, 1);
			of->beta[back][s] = of->p[back][extended[s]] *
					    reach(k, of->beta[back + 1], extended, count, s, -1);
		}
	chance = of->alpha[steps - 1][count - 1] +
		 (count > 1 ? of->alpha[steps - 1][count - 2] : 0);
	k->costs[n] = (float)-log(chance);
	for (int t = 0; k->gradients && t < k->x.size[0]; t++)
		for (int symbol = 0; symbol < symbols; symbol++) {
			double through = 0;

			for (int s = 0; t < steps && s < count; s++)
				if (extended[s] == symbol)
					through += of->alpha[t][s] * of->beta[t][s] /
						   of->p[t][symbol];
			k->gradients[place(&k->x, t, n, symbol)] =
				t < steps ? (float)(of->p[t][symbol] - through / chance) : 0;
		}
}

static void lose_all(const uint8_t *params)
{
	const struct loss *k = (const void *)params;
	struct tables *tables = malloc(sizeof *tables);
	const int *labels = k->labels;

	for (int n = 0; n < k->x.size[1]; n++) {
		lose(k, tables, n, labels);
		labels += k->label_lengths[n];
	}
	free(tables);
	free(k->copied);
}

static bool tensors_fit(const char *call, const struct numbers *x, const struct numbers *gradients,
			const struct numbers *ctc)
{
	return fake_dnn_handle(call) && fake_dnn_is_set(call, x, 't') &&
	       fake_dnn_is_set(call, ctc, 'b') && x->n[0] == FLOAT && x->count == 3 &&
	       x->size[0] <= STEPS_MAX && x->size[2] <= 256 &&
	       (!gradients ||
		(fake_dnn_is_set(call, gradients, 't') && gradients->size[0] == x->size[0] &&
		 gradients->size[2] == x->size[2] &&
		 !memcmp(gradients->stride, x->stride, 3 * sizeof *x->stride)));
}

/* More for more labels: whoever asks sends them. -1: they are wrong. */
static int64_t area_of(const struct numbers *x, const int *labels, const int *label_lengths,
		       const int *input_lengths)
{
	int64_t sum = 0;

	for (int n = 0; n < x->size[1]; n++) {
		if (label_lengths[n] > LABELS_MAX || input_lengths[n] < 1 ||
		    input_lengths[n] > x->size[0])
			return -1;
		for (int i = 0; i < label_lengths[n]; i++)
			if (labels[sum + i] < 1 || labels[sum + i] >= x->size[2])
				return -1;
		sum += label_lengths[n];
	}
	return 64 + 4 * sum;
}

EXPORT int cudnnGetCTCLossWorkspaceSize(void *handle, void *x, void *gradients, const int *labels,
					const int *label_lengths, const int *input_lengths,
					int algorithm, void *ctc, size_t *bytes)
{
	static const char call[] = "cudnnGetCTCLossWorkspaceSize";
	int64_t area;

	(void)handle;
	BEGIN(cudnnGetCTCLossWorkspaceSize);
	if (!tensors_fit(call, x, gradients, ctc) || algorithm < 0 || algorithm > 1)
		return fake_end(BAD_PARAM);
	area = area_of(x, labels, label_lengths, input_lengths);
	return fake_end(area < 0 ? BAD_PARAM : fake_dnn_sized(call, bytes, (size_t)area));
}

EXPORT int cudnnGetCTCLossWorkspaceSize_v8(void *handle, int algorithm, void *ctc, void *x,
					   void *gradients, size_t *bytes)
{
	static const char call[] = "cudnnGetCTCLossWorkspaceSize_v8";

	(void)handle;
	BEGIN(cudnnGetCTCLossWorkspaceSize_v8);
	if (!tensors_fit(call, x, gradients, ctc) || algorithm < 0 || algorithm > 1)
		return fake_end(BAD_PARAM);
	return fake_end(fake_dnn_sized(call, bytes, 96));
}

static int begin_loss(const char *call, struct loss *k, const void *x, const void *gradients,
		      const void *ctc, const void *area, size_t bytes, size_t needed)
{
	if (!tensors_fit(call, x, gradients, ctc) || k->algorithm < 0 || k->algorithm > 1 ||
	    !gradients != !k->gradients)
		return BAD_PARAM;
	k->x = *(const struct numbers *)x;
	k->softmax = ((const struct numbers *)ctc)->n[1] == SOFTMAX;
	if (bytes < needed || !fake_dnn_shown(call, area, bytes) ||
	    !fake_dnn_shown(call, k->in, fake_dnn_bytes(&k->x)) ||
	    !fake_dnn_shown(call, k->costs, (uint64_t)k->x.size[1] * sizeof(float)) ||
	    (k->gradients && !fake_dnn_shown(call, k->gradients, fake_dnn_bytes(&k->x))))
		return BAD_PARAM;
	fake_push_kernel(fake_dnn_stream(), lose_all, k, sizeof *k);
	return SUCCESS;
}

EXPORT int cudnnCTCLoss(void *handle, void *x, const float *in, const int *labels,
			const int *label_lengths, const int *input_lengths, float *costs,
			void *gradients_of, float *gradients, int algorithm, void *ctc, void *area,
			size_t area_bytes)
{
	static const char call[] = "cudnnCTCLoss";
	struct loss k = {.in = in, .costs = costs, .gradients = gradients, .algorithm = algorithm};
	size_t n, sum = 0;
	int64_t needed;

	(void)handle;
	BEGIN(cudnnCTCLoss);
	if (!tensors_fit(call, x, gradients_of, ctc))
		return fake_end(BAD_PARAM);
	needed = area_of(x, labels, label_lengths, input_lengths);
	if (needed < 0)
		return fake_end(BAD_PARAM);
	n = (size_t)((struct numbers *)x)->size[1];
	for (size_t i = 0; i < n; i++)
		sum += (size_t)label_lengths[i];
	k.copied = malloc((2 * n + sum) * sizeof(int));
	memcpy(k.copied, input_lengths, n * sizeof(int));
	memcpy(k.copied + n, label_lengths, n * sizeof(int));
	memcpy(k.copied + 2 * n, labels, sum * sizeof(int));
	k.input_lengths = k.copied;
	k.label_lengths = k.copied + n;
	k.labels = k.copied + 2 * n;
	return fake_end(
		begin_loss(call, &k, x, gradients_of, ctc, area, area_bytes, (size_t)needed));
}

EXPORT int cudnnCTCLoss_v8(void *handle, int algorithm, void *ctc, void *x, const float *in,
			   const int *labels, const int *label_lengths, const int *input_lengths,
			   float *costs, void *gradients_of, float *gradients, size_t area_bytes,
			   void *area)
{
	static const char call[] = "cudnnCTCLoss_v8";
	struct loss k = {.in = in,
			 .costs = costs,
			 .gradients = gradients,
			 .algorithm = algorithm,
			 .labels = labels,
			 .label_lengths = label_lengths,
			 .input_lengths = input_lengths};

	(void)handle;
	BEGIN(cudnnCTCLoss_v8);
	if (!fake_dnn_shown(call, labels, 4) || !fake_dnn_shown(call, label_lengths, 4) ||
	    !fake_dnn_shown(call, input_lengths, 4))
		return fake_end(BAD_PARAM);
	return fake_end(begin_loss(call, &k, x, gradients_of, ctc, area, area_bytes, 96));
}
