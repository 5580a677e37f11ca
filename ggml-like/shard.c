#include "shard.h"

#include <stddef.h>

const char *oct_shard_name(oct_shard_layout layout)
{
    static const char *const names[OCT_SHARD_LAYOUTS] = {
        [OCT_SHARD_SLICE] = "slice",
        [OCT_SHARD_EXPERT] = "expert",
        [OCT_SHARD_SLICE_REPLICATED] = "slice with attention replicated",
        [OCT_SHARD_EXPERT_REPLICATED] = "expert with attention replicated",
    };
    return (unsigned)layout < OCT_SHARD_LAYOUTS ? names[layout] : "?";
}

const char *oct_shard_make(oct_shard_layout layout, int rank, int size, int64_t n_slices,
                           int64_t n_experts, oct_shard *out)
{
    if ((unsigned)layout >= OCT_SHARD_LAYOUTS)
        return "there is no such layout";
    if (size < 1 || rank < 0 || rank >= size)
        return "a rank must be below the number of ranks";
    int64_t each = n_slices / size;
    if (n_slices % size != 0)
        return "the number of ranks must divide the number of slices";
    if (size > 1 && (each & (each - 1)) != 0) /* or their sums are no subtrees of the fold */
        return "every rank must have 1, 2, 4 or 8 slices";
    bool replicated = layout == OCT_SHARD_SLICE_REPLICATED || layout == OCT_SHARD_EXPERT_REPLICATED;
    bool experts = layout == OCT_SHARD_EXPERT || layout == OCT_SHARD_EXPERT_REPLICATED;
    if (experts && n_experts > 1 && n_experts % size != 0)
        return "the number of ranks must divide the number of experts";
    const oct_shard_range mine = {rank * each, (rank + 1) * each}, all = {0, n_slices};
    int64_t share = n_experts / size;
    *out = (oct_shard){.rank = rank,
                       .size = size,
                       .layout = layout,
                       .whole_experts = experts && n_experts > 1,
                       .whole_attention = replicated,
                       .experts = {0, n_experts}};
    if (out->whole_experts)
        out->experts = (oct_shard_range){rank * share, (rank + 1) * share};
    out->slices[OCT_SHARD_OF_ATTENTION] = replicated ? all : mine;
    out->slices[OCT_SHARD_OF_EXPERTS] = out->whole_experts ? all : mine;
    out->slices[OCT_SHARD_OF_VOCABULARY] = mine;
    return NULL;
}

int64_t oct_shard_n_slices(const oct_shard *s, oct_shard_kind kind)
{
    return s->slices[kind].end - s->slices[kind].first;
}

uint64_t oct_shard_read_bytes(const oct_shard *s, const oct_weight *w)
{
    uint64_t slices = (uint64_t)oct_shard_n_slices(s, w->kind);
    return slices * (w->layout.unit_bytes + w->layout.scale_bytes);
}
