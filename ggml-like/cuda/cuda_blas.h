/* cuda_blas.h: cuBLAS, loaded when it is asked for: products whose last bits are its own, and what
 * ours are measured against. A device's context is current in all calls. */
#ifndef OCT_CUDA_BLAS_H
#define OCT_CUDA_BLAS_H

#include "cuda_driver.h"

enum { OCT_CUDA_BLAS_WORKSPACE = 4 << 20 };

typedef struct oct_cuda_blas oct_cuda_blas;

/* For products in this stream. workspace: OCT_CUDA_BLAS_WORKSPACE bytes of the device, the
 * caller's, until close. OCT_ERR_UNSUPPORTED: it is not there; OCT_ERR_DEVICE: it refuses. */
OCT_MUST_CHECK oct_status oct_cuda_blas_open(oct_cuda_stream stream, void *workspace,
                                             oct_cuda_blas **out, oct_error *err);
void oct_cuda_blas_close(oct_cuda_blas *b); /* NULL is fine */

/* y[n][m] = a x w^T, or += that: x[n][k], w[m][k], k at most 2^31 - 1. On the device. */
typedef struct oct_cuda_blas_args {
    const void *w, *x;
    void *y;
    int m, n, k, y_stride; /* y_stride: from one row to the next */
    bool add;
    float scale; /* a, of bf16 */
} oct_cuda_blas_args;
/* bf16 to f32; int8 to int32, where add is ignored. */
OCT_MUST_CHECK oct_status oct_cuda_blas_bf16(const oct_cuda_blas *b, const oct_cuda_blas_args *a,
                                             oct_error *err);
OCT_MUST_CHECK oct_status oct_cuda_blas_int8(const oct_cuda_blas *b, const oct_cuda_blas_args *a,
                                             oct_error *err);

#endif
