#include "blas.h"

#include <dlfcn.h>
#include <stdlib.h>

/* The C interface of BLAS is fixed since 1999; these are its numbers, so that no header is
 * needed. */
enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

typedef void sgemm_fn(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                      const float *a, int lda, const float *b, int ldb, float beta, float *c,
                      int ldc);
typedef void set_threads_fn(int n);

struct oct_blas {
    void *handle;
    sgemm_fn *sgemm;
};

oct_status oct_blas_open(oct_blas **out, oct_error *err)
{
    *out = NULL;
    void *handle = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return oct_fail(err, OCT_ERR_UNSUPPORTED, "OpenBLAS: %s", dlerror());
    oct_blas *b = calloc(1, sizeof *b);
    set_threads_fn *set_threads = NULL;
    if (b) {
        /* POSIX promises that the pointers convert; ISO C does not, hence the detour. */
        *(void **)&b->sgemm = dlsym(handle, "cblas_sgemm");
        *(void **)&set_threads = dlsym(handle, "openblas_set_num_threads");
    }
    if (!b || !b->sgemm || !set_threads) {
        free(b);
        dlclose(handle);
        return oct_fail(err, OCT_ERR_UNSUPPORTED, "OpenBLAS: libopenblas.so.0 lacks cblas_sgemm");
    }
    set_threads(1);
    b->handle = handle;
    *out = b;
    return OCT_OK;
}

void oct_blas_close(oct_blas *b)
{
    if (b)
        dlclose(b->handle);
    free(b);
}

void oct_blas_gemm_nt(const oct_blas *b, int m, int n, int k, float alpha, const float *a,
                      const float *w, float *c, int ldc)
{
    b->sgemm(ROW_MAJOR, NO_TRANS, TRANS, m, n, k, alpha, a, k, w, k, 0.0f, c, ldc);
}
