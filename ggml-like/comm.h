/* comm.h: what ranks need from each other. One process is rank 0 of 1; mpi/ provides more. The
 * model and the graph know this interface only. */
#ifndef OCT_COMM_H
#define OCT_COMM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "types.h"

/* sum += to - from */
static inline void oct_comm_stats_add(oct_comm_stats *sum, const oct_comm_stats *from,
                                      const oct_comm_stats *to)
{
    sum->rounds += to->rounds - from->rounds;
    sum->bytes_sent += to->bytes_sent - from->bytes_sent;
    sum->seconds += to->seconds - from->seconds;
}

typedef struct oct_comm oct_comm;
struct oct_comm {
    int rank, size;
    /* x[n] of every rank is replaced by the sum over the ranks, formed as the fixed binary tree of
     * oct_fold (ranks in the place of slices): the same bits on all. */
    oct_status (*fold)(oct_comm *c, float *x, int64_t n, oct_error *err);
    /* data[bytes] of rank 0 reaches all. The others may wait for long, without burning a core. */
    oct_status (*broadcast)(oct_comm *c, void *data, size_t bytes, oct_error *err);
    /* all[size * bytes] = mine[bytes] of every rank, in rank order. */
    oct_status (*gather)(oct_comm *c, const void *mine, size_t bytes, void *all, oct_error *err);
    /* If the communicator is broken, the job ends here on all ranks. */
    void (*free)(oct_comm *c);
    /* The ranks cannot go on together. Set by an operation that failed, or by the user. */
    bool broken;
    bool shared_memory; /* folds go through memory of this host, not by messages; constant */
    /* As broadcast, of as many bytes as rank 0 says: the others give *bytes as the room they have,
     * and are told how many came. */
    oct_status (*announce)(oct_comm *c, void *data, size_t *bytes, oct_error *err);
    /* As gather, but only rank 0 receives: all is NULL on the others, and so may mine be on rank 0,
     * whose part of all is then left alone. */
    oct_status (*collect)(oct_comm *c, const void *mine, size_t bytes, void *all, oct_error *err);
    oct_comm_stats stats; /* of this rank; to be read between operations */
    /* The layer that this rank computes, -1 outside layers: for messages of the other ranks.
     * Written while a graph runs; kept up to date only if size > 1. */
    _Atomic int64_t layer;
};

/* Of a module that provides communicators, see comm_mpi.h: say is told on a thread of its own of
 * ranks that were lost (fatal) and of what else goes wrong between them. */
typedef void oct_comm_say_fn(void *ctx, bool fatal, const char *text);
typedef oct_status oct_comm_open_fn(oct_comm_say_fn *say, void *ctx, oct_comm **out,
                                    oct_error *err);

/* The communicator of one process. Static, never freed, thread-safe. */
oct_comm *oct_comm_local(void);

#endif
