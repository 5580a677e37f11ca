/* types.h: names that the engine and its callers share. */
#ifndef OCT_TYPES_H
#define OCT_TYPES_H

#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OCT_MAX_THREADS = 1024 }; /* of a session */

/* What keys and values of past positions are stored as. */
typedef enum oct_kv_type { OCT_KV_F16, OCT_KV_BF16, OCT_KV_F32 } oct_kv_type;

/* How ranks divide a model. */
typedef enum oct_shard_layout {
    OCT_SHARD_SLICE,  /* every rank has its slices of every matrix */
    OCT_SHARD_EXPERT, /* every rank has whole experts; attention and vocabulary by slices */
    /* The same, but every rank computes attention in full, with all of its weights and caches:
     * nothing is exchanged there. For slow networks. */
    OCT_SHARD_SLICE_REPLICATED,
    OCT_SHARD_EXPERT_REPLICATED,
    OCT_SHARD_LAYOUTS /* how many there are */
} oct_shard_layout;

/* "expert with attention replicated" */
OCT_API const char *oct_shard_name(oct_shard_layout layout);

/* What a rank has told the others so far. */
typedef struct oct_comm_stats {
    int64_t rounds; /* in each every rank sends to all others, or shows them, and takes from them */
    uint64_t bytes_sent; /* through shared memory: what each of the others reads of this rank's */
    double seconds;      /* inside sums and gatherings, with the wait for the slowest rank */
} oct_comm_stats;

/* Where the time of some work went. */
typedef struct oct_node_time {
    double seconds;
    oct_comm_stats comm; /* the part of it that was talk between ranks */
} oct_node_time;

/* What a probe of arithmetic measures. */
typedef enum oct_probe_kind {
    OCT_PROBE_INT,  /* the integer instruction of matrix products */
    OCT_PROBE_F32,  /* fused multiply-add */
    OCT_PROBE_BF16, /* pairs of bf16 summed in f32 */
    OCT_PROBE_KINDS
} oct_probe_kind;

#ifdef __cplusplus
}
#endif
#endif
