/* kv_cache.h: keys and values of past positions, per layer, sequence and KV head.
 *
 *   K of (layer, seq, head): [n_ctx_pad / 16][head_dim][16 positions]   no horizontal sums
 *   V of (layer, seq, head): [n_ctx_pad][v_stride]                      v_stride: head_dim up to 16
 *
 * The memory comes zeroed and is touched as positions are written. */
#ifndef OCT_KV_CACHE_H
#define OCT_KV_CACHE_H

#include <stdint.h>

#include "kernels.h"
#include "status.h"

typedef struct oct_kv_cache {
    oct_kv_type type;
    int64_t n_layers, n_seqs, n_heads, head_dim;
    int64_t n_ctx, n_ctx_pad; /* positions; padded to whole attention blocks */
    int64_t v_stride;
    size_t elem_bytes, head_bytes; /* K and V of one head */
    uint64_t bytes;
    unsigned char *data;       /* NULL until allocated */
    _Atomic int64_t saturated; /* values that did not fit the type */
} oct_kv_cache;

/* Fills the sizes from the first line of fields and n_ctx; bytes is the need. Refuses overflow. */
OCT_MUST_CHECK oct_status oct_kv_cache_plan(oct_kv_cache *kv, oct_error *err);
OCT_MUST_CHECK oct_status oct_kv_cache_alloc(oct_kv_cache *kv, oct_error *err);
void oct_kv_cache_free(oct_kv_cache *kv);

/* First byte of K (V) of a position's group of 16 (row). */
unsigned char *oct_kv_cache_k(const oct_kv_cache *kv, int64_t layer, int64_t seq, int64_t head,
                              int64_t pos);
unsigned char *oct_kv_cache_v(const oct_kv_cache *kv, int64_t layer, int64_t seq, int64_t head,
                              int64_t pos);

#endif
