/* shard.h: which part of a model a rank holds. Pure arithmetic. */
#ifndef OCT_SHARD_H
#define OCT_SHARD_H

#include "types.h"
#include "weight.h"

typedef struct oct_shard_range {
    int64_t first, end;
} oct_shard_range;

/* Slices and experts are those of the model, in whole numbers: a rank's slices are a subtree of the
 * tree that folds them, so that sums over ranks have the bits of one process. */
typedef struct oct_shard {
    int rank, size;
    oct_shard_layout layout;
    bool whole_experts;   /* sums over the slices of an expert are the rank's own */
    bool whole_attention; /* as those over the slices of attention */
    oct_shard_range slices[OCT_SHARD_KINDS];
    oct_shard_range experts;
} oct_shard;

/* The shard of one rank. Returns NULL, or why size ranks cannot share such a model (static). */
const char *oct_shard_make(oct_shard_layout layout, int rank, int size, int64_t n_slices,
                           int64_t n_experts, oct_shard *out);

/* Weights and scales of one expert of a matrix that the rank reads. */
uint64_t oct_shard_read_bytes(const oct_shard *s, const oct_weight *w);

/* How many slices the rank has. */
int64_t oct_shard_n_slices(const oct_shard *s, oct_shard_kind kind);

#endif
