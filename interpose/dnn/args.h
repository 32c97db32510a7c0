/* args.h: the arguments of the kernels in kernels.cu. The client (client/api/dnn_*.c) fills them
 * in; C and CUDA C++ include it. Sizes and strides count elements.
 */
#ifndef RANKFOLD_DNN_ARGS_H
#define RANKFOLD_DNN_ARGS_H

#include <stdint.h>

#define DNN_THREADS 256 /* of a block; part of the order of the sums of batch normalisation */

/* A window that moves over images of up to three dimensions, and the matrix of what it covers: one
 * row per channel and tap of the window, one column per image and place of the window. Row
 * (channel, tap) is group * group_rows + channel in its group * channel_rows + tap * tap_rows. */
struct dnn_window {
	uint64_t image, matrix;
	int64_t image_stride, channel_stride; /* of the images */
	int64_t depth_stride, height_stride, width_stride;
	int64_t columns, images, group_rows, channel_rows, tap_rows;
	int32_t channels, group_channels;
	int32_t depth, height, width;             /* of an image */
	int32_t out_depth, out_height, out_width; /* places of the window */
	int32_t taps_d, taps_h, taps_w;
	int32_t step_d, step_h, step_w;
	int32_t pad_d, pad_h, pad_w;
	int32_t dilation_d, dilation_h, dilation_w;
	double beta; /* fold: image = matrix's sums + beta * image */
};

/* to = from + beta * to; `from` has the type of sums */
struct dnn_narrow {
	uint64_t from, to;
	int64_t count;
	double beta;
};

enum dnn_norm_flags {
	DNN_RUNNING = 1, /* updates running_mean and running_variance */
	DNN_SAVED = 2,   /* forward: stores mean and deviation; backward: reads them */
};
/* Each feature is normalised over `samples` times `places` elements. The parameters and statistics
 * of all features have the type of sums, one after another. */
struct dnn_norm {
	uint64_t x, y, dy, dx;
	uint64_t scale, bias, d_scale, d_bias;
	uint64_t mean, deviation; /* saved; the latter is 1 / sqrt(variance + epsilon) */
	uint64_t running_mean, running_variance;
	int64_t samples, places, features;
	int64_t sample_stride, place_stride, feature_stride;          /* of x and y, or x and dx */
	int64_t dy_sample_stride, dy_place_stride, dy_feature_stride; /* forward: of y */
	double epsilon, factor; /* of the running statistics' average */
	double alpha, beta;     /* y, or dx: alpha * result + beta * old */
	double alpha_d, beta_d; /* the same for d_scale and d_bias */
	uint32_t flags, reserved;
};

#endif
