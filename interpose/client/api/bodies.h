/* bodies.h: the bodies of the API's functions, and the functions that expressions in the API's
 * descriptions may call in addition to those and to the headers of the layers below.
 */
#ifndef RANKFOLD_BODIES_H
#define RANKFOLD_BODIES_H

#include "../../blas/args.h"
#include "api.h"
#include "enqueue.h"
#include "library_call.h"

/* errors.c */
/* Called at the end of every runtime call: stores the error for cudaGetLastError. */
cudaError_t runtime_result(int error);

/* For a function that is not covered and does not return its library's usual type. */
#define REFUSED(name, result)                                                                      \
	__extension__({                                                                            \
		static _Atomic bool done;                                                          \
		refuse_call(&done, name, NULL, 0);                                                 \
		(result);                                                                          \
	})

/* devices.c */
#define CUDA_VERSION 13000
#define CUDA_VERSION_12 12040 /* as the library of that CUDA version reports it */
#define CUDA_VERSION_11 11080
extern _Atomic bool static_runtime_refused; /* by name, when its object was loaded */
int context_begin_driver(void);             /* cuInit, for the runtime; always CUDA_OK */
int version_get(int *version);
int version_put(int *version, int number);
/* In CUDA 12's form, or the first `bytes` of it. */
int device_properties_12(cudaDeviceProp_12 *, size_t bytes, int device);
int zero_int(int *value);
int cache_config(int config);
int no_peer(int *value, int device, int peer);
int pci_bus_id(char *out, int bytes, int device);
int device_by_pci_bus_id(int *device, const char *id);
int number_of_pci_bus_id(int *number, const char *id); /* for all devices of the job */
int same_device(int dst_device, int src_device);

/* streams.c */
int priority_range(int *least, int *greatest);
int stream_flags(const void *stream, unsigned *flags);
int stream_id(const void *stream, unsigned long long *id);
int stream_device(const void *stream, int *device);

/* allocations.c: sizes in bytes; pool NULL is the device's current one */
int free_nothing(void);
int free_now(const void *address);
int alloc_3d(cudaPitchedPtr *out, cudaExtent extent);
int memory_info_get(size_t *free_bytes, size_t *total_bytes);
int host_alloc(void **out, size_t bytes, unsigned flags);
int host_free(void *address);
int host_device_pointer(void **device, void *host, unsigned flags);
int host_flags(unsigned *flags, const void *host);
int managed_alloc(void **out, size_t bytes, unsigned flags);
int managed_prefetch(const void *address, size_t bytes, cudaMemLocation, unsigned flags,
		     const void *stream);
int managed_attach(const void *stream, const void *address, size_t bytes, unsigned flags);
int pool_alloc(void **out, uint64_t bytes, const void *pool, const void *stream);
int pool_alloc_from(void **out, uint64_t bytes, const void *pool, const void *stream);
int pool_free(const void *address, const void *stream);
int pool_attribute(const void *pool, int attribute, void *value);

/* pointers.c */
int pointer_attributes(cudaPointerAttributes *, const void *address);
int pointer_attributes_12(cudaPointerAttributes_12 *, const void *address);

/* copies.c */
int copy_2d(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
	    size_t height, int kind, const void *stream, bool async);
int copy_described(const CUDA_MEMCPY2D *, const void *stream, bool async);
int copy_described_3d(const CUDA_MEMCPY3D *, const void *stream, bool async);
int copy_runtime_3d(const cudaMemcpy3DParms *, const void *stream, bool async);
int copy_peer(void *dst, int dst_device, const void *src, int src_device, size_t bytes,
	      const void *stream);
int copy_runtime_peer(const cudaMemcpy3DPeerParms *, const void *stream, bool async);
int copy_context_peer(CUdeviceptr dst, const void *dst_context, CUdeviceptr src,
		      const void *src_context, size_t bytes, const void *stream);
int copy_described_peer(const CUDA_MEMCPY3D_PEER *, const void *stream, bool async);
int copy_to_symbol(const void *symbol, const void *src, size_t bytes, size_t offset, int kind,
		   const void *stream, bool async);
int copy_from_symbol(void *dst, const void *symbol, size_t bytes, size_t offset, int kind,
		     const void *stream, bool async);
int copy_batch(void *const *dst, const void *const *src, const size_t *bytes, size_t count,
	       const cudaMemcpyAttributes *attributes, const size_t *firsts, size_t attribute_count,
	       size_t *failed, const void *stream);
int copy_batch_3d(const cudaMemcpy3DBatchOp *, size_t count, size_t *failed,
		  unsigned long long flags, const void *stream);
int fill_3d(cudaPitchedPtr at, int value, cudaExtent extent, const void *stream);
/* In the default stream. If the host can see the memory, the fill is complete when they return. */
int fill_now(const void *dst, uint64_t pitch, uint32_t value, uint32_t element, uint64_t width,
	     uint64_t height);
int fill_3d_now(cudaPitchedPtr at, int value, cudaExtent extent);

/* modules.c */
int module_from(void **module, const void *code);
/* Writes the logs that CUjit_options name: an empty information log, and the reason of a
 * failure. */
void fill_logs(int error, unsigned count, const int *options, void **values);
int module_from_options(void **module, const void *code, unsigned count, const int *options,
			void **values);
int module_from_file(void **module, const char *path);
int library_load(void **library, const void *code, unsigned count, const int *options,
		 void **values);
int library_load_file(void **library, const char *path);
int library_unload(void *library);
int library_function(void **function, void *library, const char *name);
int library_count(unsigned *count, void *library);
int library_enumerate(void **functions, unsigned capacity, void *library);
int library_global(CUdeviceptr *address, size_t *bytes, void *library, const char *name);
int library_managed(CUdeviceptr *address, size_t *bytes, void *library, const char *name);
char *file_content(const char *path, size_t *bytes);
int function_param(struct function *, size_t index, size_t *offset, size_t *bytes);
int function_attributes(cudaFuncAttributes *, const void *function);
int function_attributes_11(cudaFuncAttributes_11 *, const void *function);
int host_function_set(const void *function, int attribute, int value);
int host_occupancy(int *blocks, const void *function, int block_size, size_t dynamic_shared);
int host_clusters(int *count, const void *function, const cudaLaunchConfig_t *,
		  enum rf_clusters_kind);

/* launches.c */
int launch_cooperative(void *function, dim3 grid, dim3 block, void **args, size_t shared,
		       const void *stream);
int launch_runtime(void *function, dim3 grid, dim3 block, void **args, size_t shared,
		   const void *stream);
int launch_driver_cooperative(CUlaunchConfig, void *function, void **args);
int launch_driver(const CUlaunchConfig *, void *function, void **args, void **extra);

/* lookup.c and the generated tables */
int entry_point(const char *symbol, void **function, int version, unsigned long long flags,
		int *status);
struct api_entry {
	const char *name;
	void *function;
	uint32_t since;  /* first version (13000, …) with this meaning; 0: all */
	uint8_t refused; /* 1: a stub that only reports that the function is not covered */
};
/* For each library, the table of its newest version, and one per version. */
#define RF_LIBRARY(name, header, versioned, prefixes)                                              \
	extern const struct api_entry api_##name[];                                                \
	extern const size_t api_##name##_count;
#define RF_SONAME(name, cuda, soname)                                                              \
	extern RF_API const struct api_entry api_##name##_##cuda[];                                \
	extern const size_t api_##name##_##cuda##_count;
#include "../../api/libraries.def"
const struct api_entry *api_find(const char *name); /* in the newest version */
const struct api_entry *api_find_in(const struct api_entry *table, size_t count, const char *name);

/* contexts.c */
int context_device_get(int *device, const void *context);
int context_create(void **out, int device, unsigned flags);
int context_create_with(void **out, int device, unsigned flags, const CUctxCreateParams *);
int context_flags(unsigned *flags);
int context_set_flags(unsigned flags);
int context_set_primary_flags(int device, unsigned flags);
int context_init_device(int device, unsigned flags, unsigned which);
int context_reset(int device);
int context_release(int device);
int context_sync(const void *context);
int context_version(const void *context, unsigned *version);
int same_context(const void *dst, const void *src);

/* nvml.c */
enum nvml_result {
	NVML_SUCCESS = 0,
	NVML_UNINITIALIZED = 1,
	NVML_INVALID_ARGUMENT = 2,
	NVML_NOT_SUPPORTED = 3,
	NVML_NOT_FOUND = 6,
	NVML_INSUFFICIENT_SIZE = 7,
	NVML_DRIVER_NOT_LOADED = 9,
	NVML_VERSION_MISMATCH = 25,
};
int nvml_init(void);
int nvml_text(char *out, unsigned bytes, const char *text);
int nvml_cuda_version(int *version);
int nvml_lacks(const void *device);
int nvml_number(const void *device, unsigned *out, int attribute);
int nvml_pci(const void *device, nvmlPciInfo_t *out, size_t bytes);
int nvml_clock(const void *device, int type, unsigned *mhz);
int nvml_processes(const void *device, unsigned *count, void *out, size_t bytes);
int nvml_no_processes(const void *device, unsigned *count);

/* cublas.c */
#define BLAS_VERSION 130000
#define BLAS_VERSION_12 120405
#define BLAS_VERSION_11 111103
int blas_version(const void *handle, int *version, int number);
struct operand {
	const void *at;
	int type;
	int64_t ld;
	long long stride;
};
int blas_check(const void *handle);
int blas_create(void *out, enum handle_kind);
int blas_destroy(const void *handle, enum handle_kind);
int mode_set(const void *handle, enum blas_mode, int value, int most);
int mode_get(const void *handle, enum blas_mode, int *value);
int blas_property(int property, int *value, int version);
const char *blas_status_name(int status);
const char *blas_status_text(int status);
int cublas_gemm(const void *handle, int transa, int transb, int64_t m, int64_t n, int64_t k,
		const void *alpha, struct operand a, struct operand b, const void *beta,
		struct operand c, int64_t count, int compute, enum rf_gemm_api, int algorithm);
int blas_set_workspace(const void *handle, void *workspace, size_t bytes);
/* While it is true, functions for BLAS only check their parameters. */
extern _Thread_local bool blas_checking;
/* A product of other types is not a record: NVIDIA's cuBLAS may have it. */
bool gemm_is_record(int a, int b, int c, int compute);
/* The bytes of alpha and beta of a product with an A of this type; of a number; 0: unknown. */
size_t gemm_scalar_bytes(int compute, int a);
size_t blas_number_bytes(int type);
int cublas_dot(const void *handle, const int types[4], bool conj, int64_t n, const void *x,
	       int64_t incx, const void *y, int64_t incy, void *result);
int copy_elements(void *dst, int64_t dst_ld, const void *src, int64_t src_ld, int64_t width,
		  int64_t height, int64_t element, int kind, const void *stream, bool async);
/* For cublaslt.c. */
int gemm_types(struct rf_gemm *, int a, int b, int c, int compute);
int gemm_scalars(struct rf_gemm *, const void *alpha, const void *beta, bool on_device);
int gemm_send(struct rf_gemm_call *, const void *stream);

/* blas_routines.c: types are numbers of cudaDataType; an operand's ld may be a vector's step */
#define BLAS_FULL (-1) /* storage of a triangle, in place of its number of diagonals */
#define BLAS_PACKED (-2)
#define BLAS_BAND(k) ((k) < 0 ? -3 : (k))
#define ONE_TYPE(...) blas_one_type((int[]){__VA_ARGS__}, sizeof (int[]){__VA_ARGS__} / sizeof(int))
/* The type of x if the others have it, or the type of its real part. */
#define ONE_REAL(x, result, execution) blas_one_real(x, result, execution)
int blas_one_real(int x, int result, int execution);
int blas_one_type(const int *types, size_t count);
int blas_each(const void *handle, int type, int op, int64_t n, const void *alpha, bool real_alpha,
	      void *x, int64_t incx, void *y, int64_t incy);
int blas_reduce(const void *handle, int type, int op, bool conj, int64_t n, const void *x,
		int64_t incx, const void *y, int64_t incy, void *result, size_t bytes);
int blas_rot(const void *handle, int type, int64_t n, void *x, int64_t incx, void *y, int64_t incy,
	     const void *cosine, const void *sine, bool real_sine);
int blas_rotm(const void *handle, int type, int64_t n, void *x, int64_t incx, void *y, int64_t incy,
	      const void *param);
int blas_rotg(const void *handle, int type, void *a, void *b, void *cosine, void *sine);
int blas_rotmg(const void *handle, int type, void *d1, void *d2, void *x1, const void *y1,
	       void *param);
int blas_gemv(const void *handle, int type, int trans, int64_t m, int64_t n, const void *alpha,
	      struct operand a, struct operand x, const void *beta, struct operand y, int64_t count,
	      bool listed);
int blas_gbmv(const void *handle, int type, int trans, int64_t m, int64_t n, int64_t kl, int64_t ku,
	      const void *alpha, const void *a, int64_t lda, const void *x, int64_t incx,
	      const void *beta, void *y, int64_t incy);
int blas_symv(const void *handle, int type, int shape, int uplo, int64_t n, int64_t k,
	      const void *alpha, const void *a, int64_t lda, const void *x, int64_t incx,
	      const void *beta, void *y, int64_t incy);
int blas_trv(const void *handle, int type, bool solve, int uplo, int trans, int diag, int64_t n,
	     int64_t k, const void *a, int64_t lda, void *x, int64_t incx);
int blas_ger(const void *handle, int type, bool conj, int64_t m, int64_t n, const void *alpha,
	     const void *x, int64_t incx, const void *y, int64_t incy, void *a, int64_t lda);
int blas_syr(const void *handle, int type, uint32_t flags, int uplo, int64_t n, int64_t k,
	     const void *alpha, const void *x, int64_t incx, const void *y, int64_t incy, void *a,
	     int64_t lda);
int blas_gemm(const void *handle, int type, int transa, int transb, int64_t m, int64_t n, int64_t k,
	      const void *alpha, struct operand a, struct operand b, const void *beta,
	      struct operand c, int64_t count, bool listed);
int blas_symm(const void *handle, int type, int shape, int side, int uplo, int64_t m, int64_t n,
	      const void *alpha, const void *a, int64_t lda, const void *b, int64_t ldb,
	      const void *beta, void *c, int64_t ldc);
int blas_syrk(const void *handle, int type, uint32_t flags, bool real_alpha, int uplo, int trans,
	      int64_t n, int64_t k, const void *alpha, const void *a, int64_t lda, const void *b,
	      int64_t ldb, const void *beta, void *c, int64_t ldc);
int blas_trmm(const void *handle, int type, int side, int uplo, int trans, int diag, int64_t m,
	      int64_t n, const void *alpha, const void *a, int64_t lda, const void *b, int64_t ldb,
	      void *c, int64_t ldc);
int blas_trsm(const void *handle, int type, int side, int uplo, int trans, int diag, int64_t m,
	      int64_t n, const void *alpha, const void *a, int64_t lda, const void *b, int64_t ldb,
	      int64_t count, bool listed);
int blas_getrf(const void *handle, int type, int64_t n, const void *a, int64_t lda,
	       const int *pivots, const int *infos, int64_t count);
int blas_getrs(const void *handle, int type, int op, int64_t n, int64_t columns, const void *a,
	       int64_t lda, const int *pivots, const void *b, int64_t ldb, int *info,
	       int64_t count);
int blas_geam(const void *handle, int type, int transa, int transb, int64_t m, int64_t n,
	      const void *alpha, const void *a, int64_t lda, const void *beta, const void *b,
	      int64_t ldb, void *c, int64_t ldc);
int blas_dgmm(const void *handle, int type, int side, int64_t m, int64_t n, const void *a,
	      int64_t lda, const void *x, int64_t incx, void *c, int64_t ldc);

/* cublaslt_descriptors.c */
enum described { OF_DESC, OF_LAYOUT, OF_PREFERENCE, OF_ALGO, OF_TRANSFORM };
int desc_create(cublasLtMatmulDesc_t *out, int compute, int scale);
int desc_init(cublasLtMatmulDesc_t, size_t bytes, int compute, int scale);
int layout_create(cublasLtMatrixLayout_t *out, int type, uint64_t rows, uint64_t columns,
		  int64_t ld);
int layout_init(cublasLtMatrixLayout_t, size_t bytes, int type, uint64_t rows, uint64_t columns,
		int64_t ld);
int transform_create(cublasLtMatrixTransformDesc_t *out, int scale);
int transform_init(cublasLtMatrixTransformDesc_t, size_t bytes, int scale);
int preference_create(cublasLtMatmulPreference_t *out);
int preference_init(cublasLtMatmulPreference_t, size_t bytes);
int described_free(void *object);
int attribute_set(void *object, enum described, int attribute, const void *from, size_t bytes);
int attribute_get(const void *object, enum described, int attribute, void *to, size_t bytes,
		  size_t *written);

/* remote.h: NVIDIA's own libraries, called in the proxy */
#include "remote.h"

/* solver.c */
int solver_create(void **out);
int solver_destroy(const void *handle);
int solver_set_stream(const void *handle, void *stream);
int solver_get_stream(const void *handle, void **stream);
int solver_params_create(void **out);
int solver_params_destroy(void *params);
int jacobi_create(void **out);
int jacobi_destroy(void *info);
int jacobi_set_tolerance(void *info, double tolerance);
int jacobi_set_sweeps(void *info, int sweeps);
int jacobi_set_sort(void *info, int sort);

/* fft.c: a plan's handle is an int. Numbers of a plan are int, or `wide`: long long. */
struct fft_side { /* how the input, or the output, is stored */
	const void *embed;
	int64_t stride, distance;
	int type; /* cudaDataType */
};
#define FFT_PACKED ((struct fft_side){NULL, 1, 0, 0})
/* `name`: of the function that the program has called. */
int fft_create(int *out, const char *name);
int fft_destroy(int plan);
int fft_set_stream(int plan, void *stream);
int fft_set_automatic(int plan, int automatic);
int fft_set_area(int plan, void *area);
int fft_size(int plan, size_t *bytes);
int fft_make_typed(int plan, int rank, const void *n, bool wide, struct fft_side in,
		   struct fft_side out, int type, int64_t batch, size_t *bytes);
int fft_make_wide(int plan, int rank, const long long *n, struct fft_side in, struct fft_side out,
		  int execution, int64_t batch, size_t *bytes);
int fft_plan(int *out, const char *name, int rank, const int *n, struct fft_side in,
	     struct fft_side to, int type, int batch);
int fft_execute(int plan, const void *in, const void *out, int direction);

/* dnn.c */
#define DNN_VERSION 93000 /* later than those with which programs were built */
struct dnn_tensor;        /* what the program has as a cudnnTensorDescriptor_t */
int dnn_check(const void *handle);
int dnn_create(void **out);
int dnn_destroy(const void *handle);
int dnn_set_stream(const void *handle, void *stream);
int dnn_get_stream(const void *handle, void **stream);
const char *dnn_status_name(int status);
void dnn_last_error(char *message, size_t bytes);
int tensor_create(void **out);
int tensor_destroy(void *tensor);
int tensor_set(void *tensor, int type, int dimensions, const int *size, const int *stride);
int tensor_set_packed(void *tensor, int format, int type, int n, int c, int h, int w);
int tensor_set_layout(void *tensor, int layout, int type, int dimensions, const int *size);
int tensor_bytes(const struct dnn_tensor *, size_t *bytes);
int tensor_get_4d(const struct dnn_tensor *, int *type, int *const size[4], int *const stride[4]);
int tensor_get(const void *tensor, int most, int *type, int *dimensions, int *size, int *stride);

bool dnn_is_remote(void); /* NVIDIA's own library is called, in the proxy */

/* dnn_descriptors.c: other descriptors than tensors, for NVIDIA's library; `kind` as for
 * rf_slots_of */
int descriptor_create(char kind, void **out, const char *name);
int descriptor_destroy(char kind, void *descriptor);
int activation_set(void *descriptor, int mode, int nan, double coefficient);
int activation_get(void *descriptor, int *mode, int *nan, double *coefficient);
/* `fill`: the library fills the states. */
int dropout_set(void *descriptor, const void *handle, float probability, const void *states,
		size_t bytes, unsigned long long seed, bool fill);
/* Numbers in the order of cudnnSetRNNDescriptor_v8, without the dropout. */
int rnn_set(void *descriptor, const uint32_t numbers[13], const void *dropout);
int rnn_weights(const void *handle, const void *rnn, const struct rf_dnn_weights *which,
		void *matrix, void **matrix_at, void *bias, void **bias_at);
int sequences_set(void *descriptor, int type, int layout, int longest, int count, int elements,
		  const int *lengths, const void *fill);
int transformer_set(void *descriptor, int sampler, int type, int dimensions, const int *sizes);

/* dnn_rows.c: descriptors that are rows of numbers; `kind` is an RF_ROW_… */
int row_set(int kind, void *descriptor, const int *numbers, uint32_t count);
int filter_set(void *descriptor, int type, int layout, int dimensions, const int *sizes);
int convolution_set(void *descriptor, int places, const int *padding, const int *stride,
		    const int *dilation, int mode, int type);
/* 2: how it computes, 3: its groups, 4: the order of its filters */
int convolution_change(void *descriptor, int number, int value);
int pooling_set(void *descriptor, int mode, int nan, int places, const int *windows,
		const int *padding, const int *stride);
int lrn_set(void *descriptor, unsigned channels, double alpha, double beta, double k);
/* Stores the first numbers of a row where these point, unless they are NULL. */
int row_get(int kind, void *descriptor, int *const *to, uint32_t count);
/* The same for rows that end with lists of equal lengths: the first `most` numbers of each are
 * stored. The last one of the first numbers is the length. */
int row_get_lists(int kind, void *descriptor, int *const *to, uint32_t count, int most,
		  int *const *lists, uint32_t list_count);
int lrn_get(void *descriptor, unsigned *channels, double *alpha, double *beta, double *k);
int filter_bytes(void *descriptor, size_t *bytes);
/* The sizes of what a convolution, or a pooling, makes of a tensor. */
int convolution_sizes(void *descriptor, const struct dnn_tensor *, void *filter, int dimensions,
		      int *sizes);
int convolution_sizes_4d(void *descriptor, const struct dnn_tensor *, void *filter,
			 int *const to[4]);
int pooling_sizes(void *descriptor, const struct dnn_tensor *, int dimensions, int *sizes);
int pooling_sizes_4d(void *descriptor, const struct dnn_tensor *, int *const to[4]);

/* dnn_ctc.c: losses with labels in memory of the host */
struct ctc_labels {
	const int *labels, *label_lengths, *input_lengths;
};
int ctc_loss(const void *handle, struct rf_dnn_ctc, const struct dnn_tensor *probabilities,
	     const struct dnn_tensor *gradients, const void *descriptor, struct ctc_labels);
int ctc_size(const void *handle, int algorithm, const struct dnn_tensor *probabilities,
	     const struct dnn_tensor *gradients, const void *descriptor, struct ctc_labels,
	     size_t *bytes);

/* dnn_backend.c: `count` and `most` are numbers of elements of an attribute */
int backend_create(int type, void **out);
int backend_destroy(void *descriptor);
int backend_finalize(void *descriptor);
int backend_set(void *descriptor, int name, int kind, int64_t count, const void *from);
int backend_get(const void *descriptor, int name, int kind, int64_t most, int64_t *count, void *to);
int backend_execute(const void *handle, const void *plan, const void *pack);
/* dnn_graph.c: the same, where NVIDIA's own library executes the plans */
int graph_create(int type, void **out);
int graph_destroy(void *descriptor);
int graph_finalize(void *descriptor);
int graph_set(void *descriptor, int name, int kind, int64_t count, const void *from);
int graph_get(const void *descriptor, int name, int kind, int64_t most, int64_t *count, void *to);
int graph_execute(const void *handle, const void *plan, const void *pack);

/* dnn_norm.c */
struct norm_tensor {
	const struct dnn_tensor *as;
	const void *at; /* device address */
};
struct norm_parameters { /* device addresses, described by `as`; unused ones are NULL */
	const struct dnn_tensor *as;
	const void *scale, *bias, *running_mean, *running_variance, *mean, *deviation;
	const void *d_scale, *d_bias;
};
int norm_plain(int operations);
int norm_training(const void *handle, int mode, const void *alpha, const void *beta,
		  struct norm_tensor x, struct norm_tensor y, struct norm_parameters, double factor,
		  double epsilon);
int norm_inference(const void *handle, int mode, const void *alpha, const void *beta,
		   struct norm_tensor x, struct norm_tensor y, struct norm_parameters,
		   double epsilon);
/* scalar: alpha and beta of dx, then those of the parameters' gradients */
int norm_backward(const void *handle, int mode, const void *const scalar[4], struct norm_tensor x,
		  struct norm_tensor dy, struct norm_tensor dx, struct norm_parameters,
		  double epsilon);
int norm_derive(struct dnn_tensor *to, const struct dnn_tensor *x, int mode);
int norm_no_memory(const void *handle, size_t *bytes);

/* nccl.c */
enum nccl_result {
	NCCL_SUCCESS = 0,
	NCCL_UNHANDLED_CUDA_ERROR = 1,
	NCCL_SYSTEM_ERROR = 2,
	NCCL_INTERNAL_ERROR = 3,
	NCCL_INVALID_ARGUMENT = 4,
	NCCL_INVALID_USAGE = 5,
	NCCL_IN_PROGRESS = 7,
};
ncclResult_t comm_check(const void *comm);
ncclResult_t comm_window(const void *comm, void *buff, size_t size, ncclWindow_t *win);
/* config may be NULL */
ncclResult_t nccl_comm_init(ncclComm_t *out, int nranks, const ncclUniqueId *id, int rank,
			    const ncclConfig_t *config);
ncclResult_t nccl_comm_split(const void *comm, int color, int key, ncclComm_t *out,
			     const ncclConfig_t *config);
ncclResult_t comm_shrink(const void *comm, const int *excluded, int count, ncclComm_t *out,
			 const ncclConfig_t *config, int flags);
ncclResult_t comm_finalize(const void *comm);
ncclResult_t comm_destroy(void *comm);
ncclResult_t comm_abort(void *comm);
ncclResult_t group_start(void);
ncclResult_t group_end(void);
ncclResult_t redop_create(ncclRedOp_t *op, const void *scalar, ncclDataType_t type, int residence,
			  const void *comm);
ncclResult_t redop_destroy(ncclRedOp_t op, const void *comm);
ncclResult_t nccl_collective(enum rf_coll kind, const void *send, void *recv, size_t count,
			     int type, int op, int root, const void *comm, const void *stream);

#endif
