#include "kv_cache.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

oct_status oct_kv_cache_plan(oct_kv_cache *kv, oct_error *err)
{
    kv->elem_bytes = kv->type == OCT_KV_F32 ? 4 : 2;
    kv->n_ctx_pad = (kv->n_ctx + OCT_ATTN_BLOCK - 1) / OCT_ATTN_BLOCK * OCT_ATTN_BLOCK;
    kv->v_stride = (kv->head_dim + 15) / 16 * 16;
    uint64_t head, total;
    if (kv->n_ctx < 1 || kv->n_ctx > (int64_t)1 << 40 || kv->n_seqs < 1 ||
        __builtin_mul_overflow((uint64_t)kv->n_ctx_pad,
                               (uint64_t)(kv->head_dim + kv->v_stride) * kv->elem_bytes, &head) ||
        __builtin_mul_overflow(head, (uint64_t)(kv->n_layers * kv->n_heads), &total) ||
        __builtin_mul_overflow(total, (uint64_t)kv->n_seqs, &total) || total > (uint64_t)1 << 50)
        return oct_fail(err, OCT_ERR_MEMORY,
                        "KV cache: %lld sequences of %lld positions cannot be held by any machine",
                        (long long)kv->n_seqs, (long long)kv->n_ctx);
    kv->head_bytes = head;
    kv->bytes = total;
    kv->data = NULL;
    return OCT_OK;
}

oct_status oct_kv_cache_alloc(oct_kv_cache *kv, oct_error *err)
{
    void *p = mmap(NULL, kv->bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return oct_fail(err, OCT_ERR_MEMORY, "KV cache: cannot map %llu bytes: %s",
                        (unsigned long long)kv->bytes, strerror(errno));
    madvise(p, kv->bytes, MADV_HUGEPAGE); /* advice: a refusal costs speed only */
    kv->data = p;
    return OCT_OK;
}

void oct_kv_cache_free(oct_kv_cache *kv)
{
    if (kv->data)
        munmap(kv->data, kv->bytes);
    kv->data = NULL;
}

static unsigned char *head_at(const oct_kv_cache *kv, int64_t layer, int64_t seq, int64_t head)
{
    return kv->data + kv->head_bytes * (size_t)((layer * kv->n_seqs + seq) * kv->n_heads + head);
}

unsigned char *oct_kv_cache_k(const oct_kv_cache *kv, int64_t layer, int64_t seq, int64_t head,
                              int64_t pos)
{
    return head_at(kv, layer, seq, head) +
           (size_t)(pos / OCT_KV_LANES * OCT_KV_LANES * kv->head_dim) * kv->elem_bytes;
}

unsigned char *oct_kv_cache_v(const oct_kv_cache *kv, int64_t layer, int64_t seq, int64_t head,
                              int64_t pos)
{
    return head_at(kv, layer, seq, head) +
           (size_t)(kv->n_ctx_pad * kv->head_dim + pos * kv->v_stride) * kv->elem_bytes;
}
