/* kv_cache.h: keys and values of past positions, in pages that sequences share (kv_pages.h).
 *
 *   [domain][layer][page][head of the domain]
 *       K [OCT_KV_PAGE / 16][head_dim][16 positions]   no horizontal sums
 *       V [OCT_KV_PAGE][v_stride]                      v_stride: head_dim up to 16
 *
 * One page number names the same 128 positions in all layers and heads. The heads of a NUMA domain
 * have a region of their own. The memory comes zeroed and is touched as positions are written.
 * Elements of V beyond head_dim are never written, so they stay zero whoever used the page before.
 */
#ifndef OCT_KV_CACHE_H
#define OCT_KV_CACHE_H

#include <stdint.h>

#include "kernels.h"
#include "kv_pages.h"
#include "status.h"

typedef struct oct_kv_cache {
    oct_kv_type type;
    int64_t n_layers, n_heads, head_dim; /* of the rank, of the place */
    int64_t n_domains;                   /* divides n_heads */
    int64_t n_seqs, n_ctx;               /* n_ctx: positions of a sequence at most */
    uint64_t pool_bytes;                 /* 0: enough for n_seqs * n_ctx positions */
    /* oct_kv_cache_plan fills what follows */
    int64_t n_pages, v_stride;
    size_t elem_bytes, head_bytes; /* head: K and V of a page */
    uint64_t page_bytes, bytes;    /* page: in all layers and heads; bytes: of all pages */
    size_t domain_stride;          /* between the regions of domains */
    /* oct_kv_cache_alloc, or another place's memory, fills what follows */
    const oct_kv_pages *pages; /* borrowed: caches of several places have the same */
    unsigned char *data;       /* NULL until allocated; all zero at first */
    void *map;
    size_t map_bytes;
    _Atomic int64_t saturated; /* values that did not fit the type */
} oct_kv_cache;

/* Elements from V of a position to V of the next. */
static inline int64_t oct_kv_v_stride(int64_t head_dim)
{
    return (head_dim + 15) / 16 * 16;
}

/* Fills the sizes from the fields before. OCT_ERR_ARG if pool_bytes is less than a page,
 * OCT_ERR_MEMORY for more than any machine has. */
OCT_MUST_CHECK oct_status oct_kv_cache_plan(oct_kv_cache *kv, oct_error *err);
/* The same pages, of so many of the layers only, in one domain. */
oct_kv_cache oct_kv_cache_of_layers(const oct_kv_cache *kv, int64_t n_layers);
OCT_MUST_CHECK oct_status oct_kv_cache_alloc(oct_kv_cache *kv, const oct_kv_pages *pages,
                                             oct_error *err);
void oct_kv_cache_free(oct_kv_cache *kv); /* in any state */

/* First byte of K (V) of a position's group of 16 (row), of a sequence that holds it. */
unsigned char *oct_kv_cache_k(const oct_kv_cache *kv, int64_t layer, int64_t seq, int64_t head,
                              int64_t pos);
unsigned char *oct_kv_cache_v(const oct_kv_cache *kv, int64_t layer, int64_t seq, int64_t head,
                              int64_t pos);

/* First byte of K and V of a page, head_bytes. */
unsigned char *oct_kv_cache_page(const oct_kv_cache *kv, int64_t layer, int64_t page, int64_t head);

/* Copies keys and values of one layer and head, and not a byte of later positions: these may be
 * written at the same time. */
void oct_kv_cache_copy(const oct_kv_cache *kv, int64_t layer, int64_t head, const oct_kv_copy *c);

#endif
