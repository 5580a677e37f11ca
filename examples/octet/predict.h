/* predict.h: what a token costs when ranks share a model, from the speed of one rank and two
 * numbers of the network. `octet bench --simulate` and `--shard auto` both ask here. */
#ifndef OCT_PREDICT_H
#define OCT_PREDICT_H

#include "grok.h"
#include "shard.h"

typedef struct oct_network {
    double latency;  /* seconds until a message of no bytes is there */
    double per_byte; /* seconds; of each rank, both ways at once */
} oct_network;

typedef struct oct_token_cost {
    double bytes;    /* read from memory by the rank that reads most */
    double rounds;   /* of messages, each waiting for the one before */
    double exchange; /* seconds */
} oct_token_cost;

/* One token of one sequence with `depth` positions before it; routing is taken as uniform. s: any
 * rank's. kv_elem: bytes of an element of the KV cache. Its seconds are bytes / (bytes per second
 * that a rank reads) + exchange. Pure. */
oct_token_cost oct_predict_token(const oct_grok_config *c, const oct_grok_layouts *l,
                                 const oct_shard *s, double depth, int64_t kv_elem,
                                 const oct_network *net);

#endif
