/* fake_cublas.c: a libcublas that is none, on the fake driver (fake_cuda.c): the calls that Octet
 * uses. Its sums are formed in an order of its own, so their last bits are not ours. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int fake_cuda_blas(void *stream, void (*call)(const void *), const void *args, size_t bytes);

#define CALL __attribute__((visibility("default")))

typedef struct fake_handle {
    void *stream;
    int has_workspace;
} fake_handle;

enum { NO_TRANS, TRANS, F32 = 0, INT8 = 3, INT32 = 10, BF16 = 14, IN_F32 = 68, IN_INT32 = 72 };

typedef struct product {
    int m, n, k, ldc, in_int32;
    float alpha, beta;
    const void *a, *b;
    void *c;
} product;

static double bf16(const uint16_t *p)
{
    const uint32_t bits = (uint32_t)*p << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

/* The device's memory is open while this runs. */
static void multiply(const void *args)
{
    const product *p = args;
    for (int j = 0; j < p->n; j++)
        for (int i = 0; i < p->m; i++) {
            const size_t at = (size_t)j * (size_t)p->ldc + (size_t)i;
            const size_t a = (size_t)i * (size_t)p->k, b = (size_t)j * (size_t)p->k;
            double sum = 0;
            int32_t whole = 0;
            for (int l = p->k - 1; l >= 0; l--)
                if (p->in_int32)
                    whole += ((const int8_t *)p->a)[a + (size_t)l] *
                             ((const int8_t *)p->b)[b + (size_t)l];
                else
                    sum +=
                        bf16((const uint16_t *)p->a + a + l) * bf16((const uint16_t *)p->b + b + l);
            float *c = (float *)p->c + at;
            if (p->in_int32)
                ((int32_t *)p->c)[at] = whole;
            else
                *c = (float)((double)p->alpha * sum + (p->beta != 0 ? (double)*c : 0.0));
        }
}

CALL int cublasCreate_v2(fake_handle **h);
int cublasCreate_v2(fake_handle **h)
{
    const int refused = fake_cuda_blas(NULL, NULL, NULL, 0);
    *h = refused ? NULL : calloc(1, sizeof **h);
    return refused;
}

CALL int cublasDestroy_v2(fake_handle *h);
int cublasDestroy_v2(fake_handle *h)
{
    free(h);
    return 0;
}

CALL int cublasSetStream_v2(fake_handle *h, void *stream);
int cublasSetStream_v2(fake_handle *h, void *stream)
{
    h->stream = stream;
    return 0;
}

CALL int cublasSetWorkspace_v2(fake_handle *h, void *p, size_t bytes);
int cublasSetWorkspace_v2(fake_handle *h, void *p, size_t bytes)
{
    h->has_workspace = bytes > 0 && (uintptr_t)p % 256 == 0;
    return h->has_workspace ? 0 : 7;
}

CALL const char *cublasGetStatusString(int status);
const char *cublasGetStatusString(int status)
{
    return status == 7 ? "an invalid value" : "fake error";
}

CALL int cublasGemmEx(fake_handle *h, int trans_a, int trans_b, int m, int n, int k,
                      const void *alpha, const void *a, int type_a, int lda, const void *b,
                      int type_b, int ldb, const void *beta, void *c, int type_c, int ldc,
                      int compute, int algorithm);
int cublasGemmEx(fake_handle *h, int trans_a, int trans_b, int m, int n, int k, const void *alpha,
                 const void *a, int type_a, int lda, const void *b, int type_b, int ldb,
                 const void *beta, void *c, int type_c, int ldc, int compute, int algorithm)
{
    const int in_int32 = compute == IN_INT32;
    product p = {m, n, k, ldc, in_int32, 1, 0, a, b, c};
    if (trans_a != TRANS || trans_b != NO_TRANS || lda != k || ldb != k || ldc < m || m < 1 ||
        n < 1 || k < 1 || algorithm != -1 || !h->has_workspace)
        return 7;
    if (type_a != type_b || type_a != (in_int32 ? INT8 : BF16) ||
        type_c != (in_int32 ? INT32 : F32) || (!in_int32 && compute != IN_F32))
        return 7;
    if (!in_int32) {
        memcpy(&p.alpha, alpha, sizeof p.alpha);
        memcpy(&p.beta, beta, sizeof p.beta);
    }
    return fake_cuda_blas(h->stream, multiply, &p, sizeof p);
}
