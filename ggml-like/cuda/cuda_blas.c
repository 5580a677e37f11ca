#include "cuda_blas.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

/* Its numbers. */
enum {
    NO_TRANS = 0,
    TRANS = 1,
    F32 = 0,
    INT8 = 3,
    INT32 = 10,
    BF16 = 14,
    COMPUTE_F32 = 68,
    COMPUTE_INT32 = 72,
    DEFAULT = -1
};

typedef struct oct_cublas_of *handle;
typedef struct calls {
    int (*create)(handle *h);
    int (*destroy)(handle h);
    int (*set_stream)(handle h, oct_cuda_stream stream);
    int (*set_workspace)(handle h, void *p, size_t bytes);
    int (*gemm)(handle h, int trans_a, int trans_b, int m, int n, int k, const void *alpha,
                const void *a, int type_a, int lda, const void *b, int type_b, int ldb,
                const void *beta, void *c, int type_c, int ldc, int compute, int algorithm);
    const char *(*text)(int status);
} calls;

struct oct_cuda_blas {
    void *library;
    handle handle;
    calls call;
};

static oct_status check(const oct_cuda_blas *b, int status, const char *what, oct_error *err)
{
    if (status == 0)
        return OCT_OK;
    return oct_fail(err, OCT_ERR_DEVICE, "cuBLAS: %s: %s (%d)", what, b->call.text(status), status);
}

static oct_status load(oct_cuda_blas *b, oct_error *err)
{
    char name[32];
    snprintf(name, sizeof name, "libcublas.so.%d", oct_cuda_image_version() / 1000);
    b->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!b->library)
        return oct_fail(err, OCT_ERR_UNSUPPORTED, "cuBLAS: %s", dlerror());
    const struct {
        void **to;
        const char *symbol;
    } all[] = {{(void **)&b->call.create, "cublasCreate_v2"},
               {(void **)&b->call.destroy, "cublasDestroy_v2"},
               {(void **)&b->call.set_stream, "cublasSetStream_v2"},
               {(void **)&b->call.set_workspace, "cublasSetWorkspace_v2"},
               {(void **)&b->call.gemm, "cublasGemmEx"},
               {(void **)&b->call.text, "cublasGetStatusString"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        *all[i].to = dlsym(b->library, all[i].symbol);
        if (!*all[i].to)
            return oct_fail(err, OCT_ERR_UNSUPPORTED, "cuBLAS: %s lacks %s", name, all[i].symbol);
    }
    return OCT_OK;
}

static oct_status start(oct_cuda_blas *b, oct_cuda_stream stream, void *workspace, oct_error *err)
{
    OCT_TRY(check(b, b->call.create(&b->handle), "it does not start", err));
    OCT_TRY(check(b, b->call.set_stream(b->handle, stream), "stream", err));
    return check(b, b->call.set_workspace(b->handle, workspace, OCT_CUDA_BLAS_WORKSPACE),
                 "workspace", err);
}

oct_status oct_cuda_blas_open(oct_cuda_stream stream, void *workspace, oct_cuda_blas **out,
                              oct_error *err)
{
    *out = NULL;
    oct_cuda_blas *b = calloc(1, sizeof *b);
    if (!b)
        return oct_fail(err, OCT_ERR_MEMORY, "cuBLAS: out of memory");
    oct_status status = load(b, err);
    if (status == OCT_OK)
        status = start(b, stream, workspace, err);
    if (status == OCT_OK)
        *out = b;
    else
        oct_cuda_blas_close(b);
    return status;
}

void oct_cuda_blas_close(oct_cuda_blas *b)
{
    if (b && b->handle)
        (void)b->call.destroy(b->handle);
    if (b && b->library)
        dlclose(b->library);
    free(b);
}

/* Its matrices are columns: y is [n] columns of m, w and x columns of k. */
oct_status oct_cuda_blas_bf16(const oct_cuda_blas *b, const oct_cuda_blas_args *a, oct_error *err)
{
    const float beta = a->add ? 1.0f : 0.0f;
    return check(b,
                 b->call.gemm(b->handle, TRANS, NO_TRANS, a->m, a->n, a->k, &a->scale, a->w, BF16,
                              a->k, a->x, BF16, a->k, &beta, a->y, F32, a->y_stride, COMPUTE_F32,
                              DEFAULT),
                 "product", err);
}

oct_status oct_cuda_blas_int8(const oct_cuda_blas *b, const oct_cuda_blas_args *a, oct_error *err)
{
    const int32_t one = 1, zero = 0;
    return check(b,
                 b->call.gemm(b->handle, TRANS, NO_TRANS, a->m, a->n, a->k, &one, a->w, INT8, a->k,
                              a->x, INT8, a->k, &zero, a->y, INT32, a->y_stride, COMPUTE_INT32,
                              DEFAULT),
                 "product", err);
}
