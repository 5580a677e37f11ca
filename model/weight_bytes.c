/* weight_bytes.c: what a model's weights take, held and read: the only place that adds them up. */
#include "grok.h"

oct_grok_bytes oct_grok_weight_bytes(const oct_grok_config *c, const oct_grok_layouts *l,
                                     const oct_shard *s)
{
    oct_shard all;
    oct_grok_bytes b = {0};
    if (!s) {
        (void)oct_shard_make(OCT_SHARD_SLICE, 0, 1, c->n_slices, c->n_experts, &all);
        s = &all;
    }
    for (int64_t layer = 0; layer < c->n_layers; layer++)
        for (int k = 0; k < OCT_GROK_PACKED; k++) {
            const oct_weight_layout *w = oct_grok_layout_of(l, (oct_grok_kind)k, layer);
            oct_shard_kind kind = oct_grok_shard_kind((oct_grok_kind)k);
            bool experts = kind == OCT_SHARD_OF_EXPERTS;
            uint64_t slices = (uint64_t)oct_shard_n_slices(s, kind);
            uint64_t n = experts ? (uint64_t)(s->experts.end - s->experts.first) : 1;
            b.held += n * slices * (w->unit_stride + w->scale_stride);
            *(experts ? &b.expert : &b.attention) += slices * (w->unit_bytes + w->scale_bytes);
        }
    /* Four norms and the router in a layer, one norm behind them. */
    uint64_t row = (uint64_t)c->d_model * sizeof(float);
    uint64_t router = c->n_experts > 1 ? (uint64_t)c->n_experts : 0;
    uint64_t plain = (uint64_t)c->n_layers * (4 + router) * row + row;
    const oct_shard_range vocab = s->slices[OCT_SHARD_OF_VOCABULARY];
    int64_t first = vocab.first * l->embedding.slice_rows;
    int64_t end = vocab.end * l->embedding.slice_rows;
    first = first < c->n_vocab ? first : c->n_vocab;
    end = end < c->n_vocab ? end : c->n_vocab;
    uint64_t table_row = (uint64_t)c->d_model * sizeof(uint16_t);
    b.held +=
        plain + (uint64_t)((vocab.end - vocab.first) * l->embedding.slice_rows_pad) * table_row;
    b.head = (uint64_t)(end - first) * table_row;
    b.common = b.attention + plain + b.head;
    return b;
}
