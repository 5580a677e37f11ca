#include "shard.h"

#include <stddef.h>

const char *oct_shard_make(oct_shard_layout layout, int rank, int size, int64_t n_slices,
                           int64_t n_experts, oct_shard *out)
{
    if (size < 1 || rank < 0 || rank >= size)
        return "a rank must be below the number of ranks";
    int64_t each = n_slices / size;
    if (n_slices % size != 0)
        return "the number of ranks must divide the number of slices";
    if (size > 1 && (each & (each - 1)) != 0) /* or their sums are no subtrees of the fold */
        return "every rank must have 1, 2, 4 or 8 slices";
    if (layout == OCT_SHARD_EXPERT && n_experts > 1 && n_experts % size != 0)
        return "the number of ranks must divide the number of experts";
    bool whole = layout == OCT_SHARD_EXPERT && n_experts > 1;
    *out = (oct_shard){.rank = rank,
                       .size = size,
                       .layout = layout,
                       .first_slice = rank * each,
                       .end_slice = (rank + 1) * each,
                       .first_expert = whole ? n_experts / size * rank : 0,
                       .end_expert = whole ? n_experts / size * (rank + 1) : n_experts};
    return NULL;
}

bool oct_shard_has_all_slices(const oct_shard *s, int64_t n_experts_of_matrix)
{
    return s->layout == OCT_SHARD_EXPERT && n_experts_of_matrix > 1;
}
