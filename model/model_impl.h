/* model_impl.h: what the files of model/ share. */
#ifndef OCT_MODEL_IMPL_H
#define OCT_MODEL_IMPL_H

#include <pthread.h>
#include <stdbool.h>

#include "gguf_part.h"
#include "graph.h"
#include "grok.h"
#include "octet.h"
#include "shard.h"
#include "runner.h"
#include "tokenizer.h"

typedef struct oct_grok_layer {
    oct_weight qkv, attn_out, gate_up, down;
    oct_plain router;                                                 /* [E, D]; data NULL: dense */
    oct_plain norm_attn_in, norm_attn_out, norm_ffn_in, norm_ffn_out; /* [1, D] */
} oct_grok_layer;

/* A layer's packed weights of a kind. */
static inline oct_weight *oct_grok_weight(oct_grok_layer *w, oct_grok_kind kind)
{
    return kind == OCT_GROK_QKV        ? &w->qkv
           : kind == OCT_GROK_ATTN_OUT ? &w->attn_out
           : kind == OCT_GROK_GATE_UP  ? &w->gate_up
                                       : &w->down;
}

/* Who uses a model: sessions. */
typedef struct oct_uses {
    pthread_mutex_t lock;
    int n;
    oct_shard of; /* what all of them use, if they are not several */
    bool several;
} oct_uses;

struct oct_model {
    oct_gguf *file;
    oct_grok_config config;
    oct_grok_types *types; /* [n_layers], that layouts point to */
    oct_grok_layouts layouts;
    oct_model_info info;
    oct_spm *tokenizer; /* NULL: none in the file */
    oct_grok_layer *layers;
    oct_plain norm_final;
    oct_table embedding;
    oct_shard kept; /* by oct_model_keep_part; size 0: all is there */
    oct_uses *uses;
};

/* oct_model_open of an open file, which stays the caller's; path is for messages. fd -1: of the
 * path. */
OCT_MUST_CHECK oct_status oct_model_open_fd(int fd, const char *path, oct_model **out,
                                            oct_error *err);

/* A session begins, and ends, to use a part of the model (or all of it). Thread-safe. */
void oct_model_use(const oct_model *m, const oct_shard *shard);
void oct_model_unuse(const oct_model *m);

/* What a rank's file holds: everything that is not a unit, or a slice of the embedding, of another
 * rank. Fills *part, checksums aside; the caller frees part->run. */
OCT_MUST_CHECK oct_status oct_model_part(const oct_model *m, const oct_shard *shard, oct_part *part,
                                         oct_error *err);

/* Where an array of the model lies for sessions of a placement; NULL: in the mapping. For
 * oct_runner_open. */
const void *oct_placement_at(const void *placement, const void *p);

/* An error unless the model's file holds what a rank needs. */
OCT_MUST_CHECK oct_status oct_model_holds(const oct_model *m, const oct_shard *shard,
                                          oct_error *err);

/* See oct_verify: everything that the file holds, against its checksums. */
OCT_MUST_CHECK oct_status oct_file_verify(const oct_gguf *g,
                                          void (*progress)(void *ctx, uint64_t done), void *ctx,
                                          const volatile int *cancel, oct_error *err);

/* Bytes of an element of the KV cache. */
static inline int64_t oct_kv_elem_bytes(oct_kv_type kv)
{
    return kv == OCT_KV_F32 ? 4 : 2;
}

/* Grok-1's forward pass for a capacity of rows, as reference equations give it:
 *   h = E[token] * embedding_scale
 *   per layer: h += norm_attn_out(attention(norm_attn_in(h)) Wo)
 *              h += norm_ffn_out(moe(norm_ffn_in(h)))
 *   logits = norm_final(h) E^T * output_scale
 * attn must outlive the graph. digits, room: see oct_graph_init. */
OCT_MUST_CHECK oct_status oct_grok_graph(const oct_model *m, const oct_attn_shape *attn,
                                         const oct_shard *shard, int64_t rows, int digits,
                                         void *room, size_t room_bytes, oct_graph *g,
                                         oct_error *err);

#endif
