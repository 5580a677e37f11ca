/* blas.h: OpenBLAS, loaded when it is asked for. It runs with one thread, called from ours. */
#ifndef OCT_BLAS_H
#define OCT_BLAS_H

#include <stdint.h>

#include "status.h"

typedef struct oct_blas oct_blas;

/* Loads the library; an error if it is not installed. */
OCT_MUST_CHECK oct_status oct_blas_open(oct_blas **out, oct_error *err);
void oct_blas_close(oct_blas *b); /* NULL is fine */

/* c[m][n] (row stride ldc) = alpha * a[m][k] * b[n][k]^T, all f32, dense rows. Thread-safe. */
void oct_blas_gemm_nt(const oct_blas *b, int m, int n, int k, float alpha, const float *a,
                      const float *w, float *c, int ldc);

#endif
