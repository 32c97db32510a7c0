/* dnn_convolution.c: convolutions and their gradients, as matrix products.
 *
 * The kernel `unfold` writes what the window covers at each of its places into one column of a
 * matrix in the workspace. Then, for each image and group,
 *
 *   forward:           y = w * matrix
 *   gradient of x:     matrix = w' * y, and the kernel `fold` adds up what covers each element of x
 *   gradient of w:     w = y * matrix', a sum over all images
 *
 * A window of one element that visits all of x needs no matrix. CHUNK_BYTES limits how many images
 * are unfolded at a time, so that the size of a workspace, and the order of sums, depend on the
 * shapes alone. Sums are float (for double: double). Products and kernels are enqueued like a
 * program's own.
 */
#include <string.h>

#include "dnn.h"

#define CHUNK_BYTES (16ll << 20)
#define ROWS_MAX 64 /* blocks per column of blocks: each visits every 64th channel */
#define ALIGNMENT 256

/* A convolution that was checked. */
struct convolution {
	const struct dnn_convolution *request;
	struct dnn_type *type;
	int64_t images, groups, taps, places; /* places: of the window in an image */
	int64_t in, out;                      /* channels of a group of x, and of y */
	int64_t y_step, x_step;               /* between places; x_step: only if it is direct */
	int64_t channel_rows, tap_rows;       /* of the matrix, for a step of channel or tap */
	bool direct;                          /* no matrix */
	bool y_even;                          /* images of y follow each other as its places do */
	int64_t chunk;                        /* images */
	int64_t matrix_bytes, turned_bytes, sums_bytes; /* parts of the workspace */
	uint64_t x, w, y, workspace;
	const void *stream;
};

static int convolution_refused(const char *what)
{
	LOG_ONCE("a cuDNN convolution with %s is not supported by rankfold", what);
	return CUDNN_STATUS_NOT_SUPPORTED;
}

/* ---- checks ---- */

static int check_shapes(struct convolution *c)
{
	const struct dnn_convolution *g = c->request;
	const struct dnn_tensor *x = &g->x, *w = &g->w, *y = &g->y;

	if (g->spatial < 1 || g->spatial > DNN_SPATIAL_MAX)
		return convolution_refused("other than 1 to 3 dimensions");
	if (x->dimensions != g->spatial + 2 || w->dimensions != g->spatial + 2 ||
	    y->dimensions != g->spatial + 2)
		return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
	if (dnn_elements(x, 0) < 1 || dnn_elements(w, 0) < 1 || dnn_elements(y, 0) < 1)
		return convolution_refused("an empty tensor");
	c->images = x->size[0];
	c->in = w->size[1];
	c->groups = x->size[1] / c->in;
	c->out = w->size[0] / c->groups;
	if (y->size[0] != c->images || x->size[1] != c->in * c->groups ||
	    y->size[1] != w->size[0] || w->size[0] != c->out * c->groups)
		return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
	c->direct = true;
	for (int64_t i = 0; i < g->spatial; i++) {
		int64_t covered = (w->size[i + 2] - 1) * g->dilation[i] + 1;
		int64_t last = x->size[i + 2] + g->before[i] + g->after[i] - covered;

		if (g->step[i] < 1 || g->dilation[i] < 1 || g->before[i] < 0 || g->after[i] < 0 ||
		    last < 0 || y->size[i + 2] != last / g->step[i] + 1)
			return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
		if (w->size[i + 2] != 1 || g->step[i] != 1 || g->before[i] || g->after[i])
			c->direct = false;
	}
	c->taps = dnn_elements(w, 2);
	c->places = dnn_elements(y, 2);
	if (c->places > INT32_MAX || dnn_elements(x, 2) > INT32_MAX ||
	    c->taps * x->size[1] > INT32_MAX)
		return convolution_refused("an image of more than 2^31 - 1 elements");
	return CUDNN_STATUS_SUCCESS;
}

/* Filters are stored one after another, each by channels, then taps, or by taps, then channels. */
static int check_filters(struct convolution *c)
{
	const struct dnn_tensor *w = &c->request->w;
	int64_t step, filter = c->in * c->taps;
	bool channels_last;

	if (w->size[0] > 1 && w->stride[0] != filter)
		return convolution_refused("filters that are not stored densely");
	channels_last = !dnn_even(w, 1, &step);
	if (channels_last ? w->stride[1] != 1 || !dnn_even(w, 2, &step) || step != c->in
			  : filter > 1 && step != 1)
		return convolution_refused("filters of other than the layouts NCHW and NHWC");
	c->channel_rows = channels_last ? 1 : c->taps;
	c->tap_rows = channels_last ? c->in : 1;
	return CUDNN_STATUS_SUCCESS;
}

static int64_t aligned_part(int64_t bytes)
{
	return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void plan_workspace(struct convolution *c)
{
	const struct dnn_convolution *g = c->request;
	bool filter = g->direction == DNN_BACKWARD_FILTER;
	bool data = g->direction == DNN_BACKWARD_DATA;
	int64_t rows = c->groups * c->in * c->taps,
		turned = filter && !c->y_even ? g->y.size[1] : 0;
	int64_t element = data ? c->type->sum_bytes : c->type->bytes;
	int64_t image = c->places * (rows * element + turned * c->type->bytes);
	int64_t most = c->places > dnn_elements(&g->x, 2) ? c->places : dnn_elements(&g->x, 2);

	c->chunk = CHUNK_BYTES / image < 1 ? 1 : CHUNK_BYTES / image;
	if (c->chunk > c->images || (c->direct && !filter))
		c->chunk = c->images;
	if (c->chunk > INT32_MAX / most)
		c->chunk = INT32_MAX / most;
	if (!c->direct || filter)
		c->matrix_bytes = aligned_part(rows * c->chunk * c->places * element);
	c->turned_bytes = aligned_part(turned * c->chunk * c->places * c->type->bytes);
	if (filter && c->chunk < c->images && c->type->bytes != c->type->sum_bytes)
		c->sums_bytes = aligned_part(dnn_elements(&g->w, 0) * c->type->sum_bytes);
}

static int convolution_check(struct convolution *c, const struct dnn_convolution *g)
{
	int status;

	*c = (struct convolution){.request = g, .type = dnn_type_of(g->x.type)};
	if (!c->type)
		return CUDNN_STATUS_NOT_SUPPORTED;
	if (g->w.type != g->x.type || g->y.type != g->x.type)
		return convolution_refused("several types");
	if (g->mode != CUDNN_CROSS_CORRELATION)
		return convolution_refused("reversed filters (CUDNN_CONVOLUTION)");
	if (g->compute != c->type->sums)
		return convolution_refused("another type of sums than float (for double: double)");
	status = check_shapes(c);
	if (!status)
		status = check_filters(c);
	if (status)
		return status;
	if (!dnn_even(&g->y, 2, &c->y_step))
		return convolution_refused("places of y that are not evenly spaced");
	c->y_even = c->images == 1 || c->places == 1 || g->y.stride[0] == c->places * c->y_step;
	if (c->places == 1)
		c->y_step = g->y.stride[0]; /* with y_even: the images are the places */
	c->direct = c->direct && dnn_even(&g->x, 2, &c->x_step);
	plan_workspace(c);
	return CUDNN_STATUS_SUCCESS;
}

int dnn_convolution_check(const struct dnn_convolution *request, int64_t *workspace)
{
	struct convolution c;
	int status = convolution_check(&c, request);

	*workspace = status ? 0 : c.matrix_bytes + c.turned_bytes + c.sums_bytes;
	return status;
}

/* ---- kernels ---- */

/* The windows on images of `t`, from number `first` on. */
static struct dnn_window window_on(const struct convolution *c, const struct dnn_tensor *t,
				   uint64_t at, int64_t first, int64_t images)
{
	const struct dnn_tensor *y = &c->request->y;
	int64_t spatial = t->dimensions - 2;
	int32_t size[3] = {1, 1, 1}, out[3] = {1, 1, 1};
	int64_t stride[3] = {0, 0, 0};

	for (int64_t i = 0; i < spatial; i++) {
		size[3 - spatial + i] = (int32_t)t->size[i + 2];
		stride[3 - spatial + i] = t->stride[i + 2];
		out[3 - spatial + i] = (int32_t)y->size[i + 2];
	}
	return (struct dnn_window){
		.image = at + (uint64_t)(first * t->stride[0] * c->type->bytes),
		.matrix = c->workspace,
		.image_stride = t->stride[0],
		.channel_stride = t->stride[1],
		.depth_stride = stride[0],
		.height_stride = stride[1],
		.width_stride = stride[2],
		.columns = images * c->places,
		.images = images,
		.channels = (int32_t)t->size[1],
		.depth = size[0],
		.height = size[1],
		.width = size[2],
		.out_depth = out[0],
		.out_height = out[1],
		.out_width = out[2],
	};
}

/* Lets the window of the convolution move over x. */
static void shape_window(struct dnn_window *k, const struct convolution *c)
{
	const struct dnn_convolution *g = c->request;
	int32_t taps[3] = {1, 1, 1}, step[3] = {1, 1, 1}, pad[3] = {0, 0, 0};
	int32_t dilation[3] = {1, 1, 1};

	for (int64_t i = 0; i < g->spatial; i++) {
		int64_t at = 3 - g->spatial + i;

		taps[at] = (int32_t)g->w.size[i + 2];
		step[at] = (int32_t)g->step[i];
		pad[at] = (int32_t)g->before[i];
		dilation[at] = (int32_t)g->dilation[i];
	}
	k->taps_d = taps[0], k->taps_h = taps[1], k->taps_w = taps[2];
	k->step_d = step[0], k->step_h = step[1], k->step_w = step[2];
	k->pad_d = pad[0], k->pad_h = pad[1], k->pad_w = pad[2];
	k->dilation_d = dilation[0], k->dilation_h = dilation[1], k->dilation_w = dilation[2];
	k->group_rows = c->in * c->taps;
	k->channel_rows = c->channel_rows;
	k->tap_rows = c->tap_rows;
	k->group_channels = (int32_t)c->in;
}

static int launch_window(const struct convolution *c, const char *kernel,
			 const struct dnn_window *k, int64_t width)
{
	int64_t height = k->channels < ROWS_MAX ? k->channels : ROWS_MAX;

	return dnn_launch(c->type, kernel, k, sizeof *k, width, height, c->stream);
}

static int unfold_x(const struct convolution *c, int64_t first, int64_t images)
{
	struct dnn_window k = window_on(c, &c->request->x, c->x, first, images);

	shape_window(&k, c);
	return launch_window(c, "unfold", &k, k.columns);
}

static int fold_x(const struct convolution *c, int64_t first, int64_t images)
{
	struct dnn_window k = window_on(c, &c->request->x, c->x, first, images);

	shape_window(&k, c);
	k.beta = c->request->beta;
	return launch_window(c, "fold", &k, images * dnn_elements(&c->request->x, 2));
}

/* Copies images of y, so that each channel is one row. A window of one element does it. */
static int turn_y(const struct convolution *c, int64_t first, int64_t images)
{
	struct dnn_window k = window_on(c, &c->request->y, c->y, first, images);

	k.matrix = c->workspace + (uint64_t)c->matrix_bytes;
	k.taps_d = k.taps_h = k.taps_w = 1;
	k.step_d = k.step_h = k.step_w = 1;
	k.dilation_d = k.dilation_h = k.dilation_w = 1;
	k.channel_rows = k.tap_rows = 1;
	k.group_rows = k.group_channels = k.channels;
	return launch_window(c, "unfold", &k, k.columns);
}

/* ---- products ---- */

/* A matrix that has one copy for each image and group. Strides count elements. */
struct operand_of_all {
	uint64_t at;
	int64_t row, column, image, group;
};

static uint64_t scalar_bits(const struct convolution *c, double number)
{
	float narrow = (float)number;
	uint64_t bits = 0;

	if (c->type->type == CUDNN_DATA_DOUBLE)
		memcpy(&bits, &number, sizeof number);
	else
		memcpy(&bits, &narrow, sizeof narrow);
	return bits;
}

/* A matrix of one row or column has a stride that no element uses: it becomes one that a product
 * accepts. */
static struct rf_matrix matrix_of(const struct operand_of_all *x, int64_t rows, int64_t columns,
				  int64_t bytes, int64_t image, int64_t group, int64_t batch)
{
	int64_t row = x->row, column = x->column;

	if (rows == 1)
		row = column == 1 ? columns : 1;
	else if (columns == 1)
		column = row == 1 ? rows : 1;
	return (struct rf_matrix){x->at + (uint64_t)((image * x->image + group * x->group) * bytes),
				  (uint64_t)row, (uint64_t)column, (uint64_t)batch};
}

/* d = alpha * a * b + beta * d for each image and group; `to` is d's cudaDataType. */
static int multiply_all(const struct convolution *c, const int64_t size[3], int64_t images,
			const struct operand_of_all *a, const struct operand_of_all *b,
			const struct operand_of_all *d, int to, double alpha, double beta)
{
	bool by_group = images >= c->groups; /* a call for each group */
	int64_t calls = by_group ? c->groups : images;
	int64_t d_bytes = to == c->type->cuda ? c->type->bytes : c->type->sum_bytes;
	int status = CUDNN_STATUS_SUCCESS;

	for (int64_t i = 0; i < calls && !status; i++) {
		int64_t image = by_group ? 0 : i, group = by_group ? i : 0;
		struct rf_gemm_call m = {.g = {.m = (uint64_t)size[0],
					       .n = (uint64_t)size[1],
					       .k = (uint64_t)size[2],
					       .count = (uint64_t)(by_group ? images : c->groups),
					       .alpha = scalar_bits(c, alpha),
					       .beta = scalar_bits(c, beta)}};

		m.g.a = matrix_of(a, size[0], size[2], c->type->bytes, image, group,
				  by_group ? a->image : a->group);
		m.g.b = matrix_of(b, size[2], size[1], c->type->bytes, image, group,
				  by_group ? b->image : b->group);
		m.g.d = matrix_of(d, size[0], size[1], d_bytes, image, group,
				  by_group ? d->image : d->group);
		m.g.c = m.g.d;
		status = gemm_types(&m.g, c->type->cuda, c->type->cuda, to,
				    c->type->type == CUDNN_DATA_DOUBLE ? CUBLAS_COMPUTE_64F
								       : CUBLAS_COMPUTE_32F);
		if (!status)
			status = gemm_send(&m, c->stream);
	}
	return status ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_SUCCESS;
}

static int cuda_sums(const struct convolution *c)
{
	return c->type->type == CUDNN_DATA_DOUBLE ? CUDA_R_64F : CUDA_R_32F;
}

static struct operand_of_all operand_y(const struct convolution *c, int64_t first)
{
	const struct dnn_tensor *y = &c->request->y;

	return (struct operand_of_all){c->y + (uint64_t)(first * y->stride[0] * c->type->bytes),
				       y->stride[1], c->y_step, y->stride[0],
				       c->out * y->stride[1]};
}

/* The matrix of the windows on `images` images, or these images of x themselves. */
static struct operand_of_all operand_matrix(const struct convolution *c, int64_t first,
					    int64_t images)
{
	const struct dnn_tensor *x = &c->request->x;
	int64_t columns = images * c->places;

	if (c->direct && c->request->direction != DNN_BACKWARD_FILTER)
		return (struct operand_of_all){
			c->x + (uint64_t)(first * x->stride[0] * c->type->bytes), x->stride[1],
			c->x_step, x->stride[0], c->in * x->stride[1]};
	return (struct operand_of_all){c->workspace, columns, 1, c->places,
				       c->in * c->taps * columns};
}

static int convolve_forward(const struct convolution *c, int64_t first, int64_t images)
{
	int64_t filter = c->in * c->taps;
	struct operand_of_all filters = {c->w, filter, 1, 0, c->out * filter};
	struct operand_of_all matrix = operand_matrix(c, first, images), y = operand_y(c, first);
	int status = c->direct ? CUDNN_STATUS_SUCCESS : unfold_x(c, first, images);

	if (status)
		return status;
	return multiply_all(c, (int64_t[]){c->out, c->places, filter}, images, &filters, &matrix,
			    &y, c->type->cuda, c->request->alpha, c->request->beta);
}

static int convolve_data(const struct convolution *c, int64_t first, int64_t images)
{
	int64_t filter = c->in * c->taps;
	struct operand_of_all filters = {c->w, 1, filter, 0, c->out * filter};
	struct operand_of_all matrix = operand_matrix(c, first, images), y = operand_y(c, first);
	int status = multiply_all(c, (int64_t[]){filter, c->places, c->out}, images, &filters, &y,
				  &matrix, c->direct ? c->type->cuda : cuda_sums(c),
				  c->request->alpha, c->direct ? c->request->beta : 0);

	return status || c->direct ? status : fold_x(c, first, images);
}

/* One product for all images of a chunk. Sums over several chunks are kept in the type of sums. */
static int convolve_filter(const struct convolution *c, int64_t first, int64_t images)
{
	int64_t columns = images * c->places, filter = c->in * c->taps;
	struct operand_of_all y = operand_y(c, first), matrix = operand_matrix(c, first, images);
	struct operand_of_all filters = {c->w, filter, 1, 0, c->out * filter};
	double beta = first ? 1 : c->sums_bytes ? 0 : c->request->beta;
	int status = unfold_x(c, first, images);

	if (!status && !c->y_even) {
		status = turn_y(c, first, images);
		y = (struct operand_of_all){c->workspace + (uint64_t)c->matrix_bytes, columns, 1, 0,
					    c->out * columns};
	}
	if (status)
		return status;
	matrix.row = 1; /* transposed */
	matrix.column = columns;
	if (c->sums_bytes)
		filters.at = c->workspace + (uint64_t)(c->matrix_bytes + c->turned_bytes);
	return multiply_all(c, (int64_t[]){c->out, filter, columns}, 1, &y, &matrix, &filters,
			    c->sums_bytes ? cuda_sums(c) : c->type->cuda, c->request->alpha, beta);
}

static int narrow_sums(const struct convolution *c)
{
	struct dnn_narrow k = {.from = c->workspace + (uint64_t)(c->matrix_bytes + c->turned_bytes),
			       .to = c->w,
			       .count = dnn_elements(&c->request->w, 0),
			       .beta = c->request->beta};

	return dnn_launch(c->type, "narrow", &k, sizeof k, k.count, 1, c->stream);
}

int dnn_convolve(const struct dnn_convolution *request, uint64_t x, uint64_t w, uint64_t y,
		 uint64_t workspace, const void *stream)
{
	static int (*const compute[])(const struct convolution *, int64_t, int64_t) = {
		[DNN_FORWARD] = convolve_forward,
		[DNN_BACKWARD_DATA] = convolve_data,
		[DNN_BACKWARD_FILTER] = convolve_filter,
	};
	struct convolution c;
	int status = convolution_check(&c, request);

	if (status)
		return status;
	if (!x || !w || !y || (!workspace && c.matrix_bytes))
		return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
	c.x = x, c.w = w, c.y = y;
	c.workspace = workspace;
	c.stream = stream;
	for (int64_t first = 0; first < c.images && !status; first += c.chunk) {
		int64_t left = c.images - first;

		status = compute[request->direction](&c, first, left < c.chunk ? left : c.chunk);
	}
	return status || !c.sums_bytes ? status : narrow_sums(&c);
}
