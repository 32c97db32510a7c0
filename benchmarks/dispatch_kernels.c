/* dispatch_kernels.c: what the kernels of dispatch_kernels.cu compute, as plain C for gcc -O3; and
 * the loop that has the device run them. */
#include <math.h>
#include <stddef.h>

#include "hal.h"

void host_vadd(const float *a, const float *b, float *c, int n)
{
	for (int i = 0; i < n; i++)
		c[i] = a[i] + b[i];
}

void host_softmax(const float *in, float *out, int rows, int columns)
{
	for (int r = 0; r < rows; r++) {
		const float *row = in + (size_t)r * columns;
		float *to = out + (size_t)r * columns, largest = -INFINITY, sum = 0;
		for (int i = 0; i < columns; i++)
			largest = fmaxf(largest, row[i]);
		for (int i = 0; i < columns; i++)
			sum += to[i] = expf(row[i] - largest);
		for (int i = 0; i < columns; i++)
			to[i] /= sum;
	}
}

void host_layernorm(const float *in, const float *gamma, const float *beta, float *out, int rows,
		    int columns)
{
	for (int r = 0; r < rows; r++) {
		const float *row = in + (size_t)r * columns;
		float *to = out + (size_t)r * columns, sum = 0, squares = 0;
		for (int i = 0; i < columns; i++)
			sum += row[i];
		float mean = sum / columns;
		for (int i = 0; i < columns; i++)
			squares += (row[i] - mean) * (row[i] - mean);
		float scale = 1 / sqrtf(squares / columns + 1e-5f);
		for (int i = 0; i < columns; i++)
			to[i] = (row[i] - mean) * scale * gamma[i] + beta[i];
	}
}

void host_adam(float *p, const float *g, float *m, float *v, float rate, int n)
{
	for (int i = 0; i < n; i++) {
		m[i] = 0.9f * m[i] + 0.1f * g[i];
		v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
		p[i] -= rate * m[i] / (sqrtf(v[i]) + 1e-8f);
	}
}

/* The device's side of a timing: `count` times the same work, one after another. */
void device_run(const struct hal *hal, struct hal_stream *stream, const struct hal_work *work,
		int count)
{
	uint64_t last = 0;
	for (int n = 0; n < count; n++)
		last = hal->submit(stream, work);
	while (hal->completed(stream) < last)
		__builtin_ia32_pause();
}
