#include "kv_cache.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20 };

/* Pages by the size of the pool; positions are padded to whole pages. */
static oct_status count_pages(oct_kv_cache *kv, oct_error *err)
{
    int64_t all;
    if (kv->pool_bytes == 0) {
        if (kv->n_ctx > INT64_MAX - OCT_KV_PAGE ||
            __builtin_mul_overflow(kv->n_seqs, oct_kv_pages_of(kv->n_ctx), &all))
            all = INT64_MAX;
        kv->n_pages = all;
        return OCT_OK;
    }
    kv->n_pages = (int64_t)(kv->pool_bytes / kv->page_bytes);
    if (kv->n_pages == 0)
        return oct_fail(
            err, OCT_ERR_ARG,
            "KV cache: %llu bytes, expected at least the %llu of a page of %d positions",
            (unsigned long long)kv->pool_bytes, (unsigned long long)kv->page_bytes, OCT_KV_PAGE);
    return OCT_OK;
}

oct_status oct_kv_cache_plan(oct_kv_cache *kv, oct_error *err)
{
    uint64_t heads;
    assert(kv->n_heads % kv->n_domains == 0);
    kv->data = NULL;
    kv->elem_bytes = kv->type == OCT_KV_F32 ? 4 : 2;
    kv->v_stride = oct_kv_v_stride(kv->head_dim);
    kv->head_bytes = (size_t)(OCT_KV_PAGE * (kv->head_dim + kv->v_stride)) * kv->elem_bytes;
    if (kv->n_ctx < 1 || kv->n_seqs < 1 ||
        __builtin_mul_overflow((uint64_t)kv->n_layers, (uint64_t)kv->n_heads, &heads) ||
        __builtin_mul_overflow(heads, (uint64_t)kv->head_bytes, &kv->page_bytes))
        return oct_fail(err, OCT_ERR_MEMORY, "KV cache: a page of %lld layers and %lld heads",
                        (long long)kv->n_layers, (long long)kv->n_heads);
    OCT_TRY(count_pages(kv, err));
    if (kv->n_pages > INT32_MAX ||
        __builtin_mul_overflow((uint64_t)kv->n_pages, kv->page_bytes, &kv->bytes) ||
        kv->bytes > (uint64_t)1 << 50)
        return oct_fail(err, OCT_ERR_MEMORY,
                        "KV cache: %lld sequences of %lld positions cannot be held by any machine",
                        (long long)kv->n_seqs, (long long)kv->n_ctx);
    /* No huge page has heads of two domains. */
    kv->domain_stride = kv->bytes / (uint64_t)kv->n_domains;
    if (kv->n_domains > 1)
        kv->domain_stride = (kv->domain_stride + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    return OCT_OK;
}

oct_kv_cache oct_kv_cache_of_layers(const oct_kv_cache *kv, int64_t n_layers)
{
    oct_kv_cache part = *kv;
    part.n_layers = n_layers;
    part.n_domains = 1;
    part.page_bytes = kv->page_bytes / (uint64_t)kv->n_layers * (uint64_t)n_layers;
    part.bytes = part.domain_stride = part.page_bytes * (uint64_t)kv->n_pages;
    return part;
}

oct_status oct_kv_cache_alloc(oct_kv_cache *kv, const oct_kv_pages *pages, oct_error *err)
{
    kv->pages = pages;
    size_t bytes = kv->domain_stride * (size_t)kv->n_domains + HUGE_PAGE;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED)
        return oct_fail(err, OCT_ERR_MEMORY, "KV cache: cannot map %zu bytes: %s", bytes,
                        strerror(errno));
    madvise(p, bytes, MADV_HUGEPAGE); /* advice: a refusal costs speed only */
    kv->map = p;
    kv->map_bytes = bytes;
    kv->data = (unsigned char *)p + (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    return OCT_OK;
}

void oct_kv_cache_free(oct_kv_cache *kv)
{
    if (kv->map)
        munmap(kv->map, kv->map_bytes);
    kv->map = NULL;
    kv->data = NULL;
}

unsigned char *oct_kv_cache_page(const oct_kv_cache *kv, int64_t layer, int64_t page, int64_t head)
{
    int64_t heads = kv->n_heads / kv->n_domains, domain = head / heads;
    return kv->data + kv->domain_stride * (size_t)domain +
           kv->head_bytes * (size_t)((layer * kv->n_pages + page) * heads + head % heads);
}

/* V begins behind the K of a page. */
static unsigned char *v_of(const oct_kv_cache *kv, int64_t layer, int64_t page, int64_t head)
{
    return oct_kv_cache_page(kv, layer, page, head) +
           (size_t)(OCT_KV_PAGE * kv->head_dim) * kv->elem_bytes;
}

unsigned char *oct_kv_cache_k(const oct_kv_cache *kv, int64_t layer, int64_t seq, int64_t head,
                              int64_t pos)
{
    int64_t at = pos % OCT_KV_PAGE;
    return oct_kv_cache_page(kv, layer, oct_kv_page_at(kv->pages, seq, pos), head) +
           (size_t)(at / OCT_KV_LANES * OCT_KV_LANES * kv->head_dim) * kv->elem_bytes;
}

unsigned char *oct_kv_cache_v(const oct_kv_cache *kv, int64_t layer, int64_t seq, int64_t head,
                              int64_t pos)
{
    int64_t at = pos % OCT_KV_PAGE;
    return v_of(kv, layer, oct_kv_page_at(kv->pages, seq, pos), head) +
           (size_t)(at * kv->v_stride) * kv->elem_bytes;
}

void oct_kv_cache_copy(const oct_kv_cache *kv, int64_t layer, int64_t head, const oct_kv_copy *c)
{
    unsigned char *to = oct_kv_cache_page(kv, layer, c->to, head);
    const unsigned char *from = oct_kv_cache_page(kv, layer, c->from, head);
    size_t lanes = OCT_KV_LANES * kv->elem_bytes, group = lanes * (size_t)kv->head_dim;
    size_t whole = (size_t)(c->n_pos / OCT_KV_LANES) * group;
    size_t part = (size_t)(c->n_pos % OCT_KV_LANES) * kv->elem_bytes;
    memcpy(to, from, whole);
    for (size_t at = whole; part > 0 && at < whole + group; at += lanes)
        memcpy(to + at, from + at, part);
    memcpy(v_of(kv, layer, c->to, head), v_of(kv, layer, c->from, head),
           (size_t)(c->n_pos * kv->v_stride) * kv->elem_bytes);
}
