/* shard.h: which part of a model a rank holds. Pure arithmetic. */
#ifndef OCT_SHARD_H
#define OCT_SHARD_H

#include <stdbool.h>
#include <stdint.h>

typedef enum oct_shard_layout {
    OCT_SHARD_EXPERT, /* whole experts; attention and head by slices */
    OCT_SHARD_SLICE   /* the same slices of every matrix */
} oct_shard_layout;

/* Slices and experts are those of the model, in whole numbers: a rank's slices are a subtree of the
 * tree that folds them, so that sums over ranks have the bits of one process. */
typedef struct oct_shard {
    int rank, size;
    oct_shard_layout layout;
    int64_t first_slice, end_slice;   /* of attention and vocabulary; SLICE: of the experts too */
    int64_t first_expert, end_expert; /* SLICE: all */
} oct_shard;

/* The shard of one rank. Returns NULL, or why size ranks cannot share such a model (static). */
const char *oct_shard_make(oct_shard_layout layout, int rank, int size, int64_t n_slices,
                           int64_t n_experts, oct_shard *out);

/* Slices of a matrix that the shard computes: all of an expert's in layout EXPERT. */
bool oct_shard_has_all_slices(const oct_shard *s, int64_t n_experts_of_matrix);

#endif
