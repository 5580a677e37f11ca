/* stream.h: which experts of a layer a device computes for the host, from weights that are brought
 * to it meanwhile; of a dense model all or none. Pure. */
#ifndef OCT_STREAM_H
#define OCT_STREAM_H

#include "graph.h"
#include "shard.h"

/* What decides. Bytes and operations (multiplications and additions) per second. */
typedef struct oct_stream_rates {
    double link;           /* from the host's weights to the device */
    double device_ops;     /* of the device */
    double read, host_ops; /* of the host's threads */
} oct_stream_rates;

/* The experts, a bit each, that the device takes so that both end together as early as they can:
 * those with most rows, for each costs it a whole copy. rows[n_experts]; 0: none is worth it. */
uint64_t oct_stream_choose(const oct_stream_rates *r, const oct_node *n, const int64_t *rows);

/* Rows of a run from which, routed evenly, the first expert is worth it, of those that a rank has;
 * INT64_MAX: never below 2^20. */
int64_t oct_stream_break_even(const oct_stream_rates *r, const oct_node *n, oct_shard_range mine);

#endif
