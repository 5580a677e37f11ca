/* types.h: names that the engine and its callers share. */
#ifndef OCT_TYPES_H
#define OCT_TYPES_H

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

#endif
