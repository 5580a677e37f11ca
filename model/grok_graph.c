#include "model_impl.h"

/* In the last layer only the rows whose logits are wanted go on once keys and values are stored;
 * *h becomes those rows. */
static const oct_tensor *attention(oct_graph *g, const oct_grok_layer *w,
                                   const oct_attn_shape *attn, const oct_shard *shard, bool last,
                                   const oct_tensor *x, const oct_tensor **h)
{
    const oct_tensor *qkv = oct_graph_linear(g, x, &w->qkv);
    oct_graph_rope_store(g, qkv, attn);
    if (last) {
        qkv = oct_graph_select(g, qkv);
        *h = oct_graph_select(g, *h);
    }
    const oct_tensor *o = oct_graph_attention(g, qkv, attn);
    const oct_tensor *y = oct_graph_linear(g, o, &w->attn_out);
    if (shard->size > 1 && !shard->whole_attention)
        oct_graph_fold_ranks(g, y);
    return y;
}

/* Ranks that hold whole experts may add their gated outputs first, if there are at most two: the
 * sum of two numbers and zeros has the same bits in any order. Else every slot's vector is folded,
 * and gated and added behind. */
static const oct_tensor *feed_forward(oct_graph *g, const oct_grok_layer *w, int64_t n_used,
                                      const oct_shard *shard, const oct_tensor *x)
{
    bool fold_sum = shard->whole_experts && n_used <= 2;
    const oct_tensor *routes = w->router.data ? oct_graph_route(g, x, &w->router, n_used) : NULL;
    const oct_tensor *slots = oct_graph_experts(g, x, routes, n_used, &w->gate_up, &w->down);
    if (shard->size > 1 && !fold_sum)
        oct_graph_fold_ranks(g, slots);
    const oct_tensor *y = routes ? oct_graph_combine(g, slots, routes, n_used) : slots;
    if (shard->size > 1 && fold_sum)
        oct_graph_fold_ranks(g, y);
    return y;
}

oct_status oct_grok_graph(const oct_model *m, const oct_attn_shape *attn, const oct_shard *shard,
                          int64_t rows, int digits, void *room, size_t room_bytes, oct_graph *g,
                          oct_error *err)
{
    const oct_grok_config *c = &m->config;
    enum { PER_LAYER = 15, OTHERS = 6 }; /* nodes, at most */
    oct_graph_init(g, rows, digits, (int)c->n_layers * PER_LAYER + OTHERS, room, room_bytes);
    const oct_tensor *h = oct_graph_embed(g, &m->embedding, c->embedding_scale);
    if (shard->size > 1)
        oct_graph_fold_ranks(g, h);
    for (int64_t i = 0; i < c->n_layers; i++) {
        const oct_grok_layer *w = &m->layers[i];
        g->layer = i;
        const oct_tensor *x = oct_graph_norm(g, h, &w->norm_attn_in, c->norm_eps);
        const oct_tensor *a = attention(g, w, attn, shard, i == c->n_layers - 1, x, &h);
        oct_graph_add_norm(g, h, a, &w->norm_attn_out, c->norm_eps);
        const oct_tensor *f = feed_forward(g, w, c->n_used, shard,
                                           oct_graph_norm(g, h, &w->norm_ffn_in, c->norm_eps));
        oct_graph_add_norm(g, h, f, &w->norm_ffn_out, c->norm_eps);
    }
    g->layer = -1;
    oct_graph_head(g, oct_graph_norm(g, h, &m->norm_final, c->norm_eps), &m->embedding,
                   c->output_scale);
    if (shard->size > 1)
        oct_graph_gather_logits(g, &m->embedding);
    return oct_graph_status(g, err);
}
