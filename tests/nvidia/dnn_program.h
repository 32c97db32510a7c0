// dnn_program.h: what programs share that call cuDNN's functions outside of its backend API.
#pragma once

#include "../programs/common.h"

// As in <cudnn_ops.h>, which is not everywhere.
extern "C" {
int cudnnCreate(void **);
int cudnnDestroy(void *);
int cudnnSetStream(void *, cudaStream_t);
int cudnnCreateTensorDescriptor(void **);
int cudnnDestroyTensorDescriptor(void *);
int cudnnSetTensorNdDescriptor(void *, int, int, const int *, const int *);
int cudnnCreateDropoutDescriptor(void **);
int cudnnDestroyDropoutDescriptor(void *);
int cudnnDropoutGetStatesSize(void *, size_t *);
int cudnnSetDropoutDescriptor(void *, void *, float, void *, size_t, unsigned long long);
}
constexpr int FLOAT = 0;
#define OK(call) EXPECT((call) == 0, "%s", #call)

inline std::vector<float> host(const float *at, size_t n)
{
	std::vector<float> out(n);
	CUDA_CHECK(cudaDeviceSynchronize());
	CUDA_CHECK(cudaMemcpy(out.data(), at, n * sizeof(float), cudaMemcpyDeviceToHost));
	return out;
}

inline void expect_near(const char *what, const std::vector<float> &a, const std::vector<double> &b)
{
	for (size_t i = 0; i < a.size(); i++)
		EXPECT(fabs(a[i] - b[i]) < 1e-3, "%s: element %zu is %g, not %g", what, i, a[i],
		       b[i]);
}

inline std::vector<float> waves(size_t n, double seed)
{
	std::vector<float> out(n);
	for (size_t i = 0; i < n; i++)
		out[i] = float(sin(seed + double(i) * 0.7));
	return out;
}

inline void *tensor(std::vector<int> size)
{
	std::vector<int> stride(size.size(), 1);
	void *t;
	for (size_t i = size.size() - 1; i--;)
		stride[i] = stride[i + 1] * size[i + 1];
	OK(cudnnCreateTensorDescriptor(&t));
	OK(cudnnSetTensorNdDescriptor(t, FLOAT, int(size.size()), size.data(), stride.data()));
	return t;
}

inline void *bytes_on_device(size_t bytes) { return on_device<char>(bytes ? bytes : 1); }
