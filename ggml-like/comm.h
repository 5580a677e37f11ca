/* comm.h: what ranks need from each other. One process is rank 0 of 1; mpi/ will provide more. The
 * model and the graph know this interface only. */
#ifndef OCT_COMM_H
#define OCT_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

typedef struct oct_comm oct_comm;
struct oct_comm {
    int rank, size;
    /* x[n] of every rank is replaced by the sum over the ranks, formed as the fixed binary tree of
     * oct_fold (ranks in the place of slices): the same bits on all. */
    oct_status (*fold)(oct_comm *c, float *x, int64_t n, oct_error *err);
    /* data[bytes] of rank 0 reaches all. The others may wait for long: they must not burn a
     * core. */
    oct_status (*broadcast)(oct_comm *c, void *data, size_t bytes, oct_error *err);
    /* all[size * bytes] = mine[bytes] of every rank, in rank order. */
    oct_status (*gather)(oct_comm *c, const void *mine, size_t bytes, void *all, oct_error *err);
    void (*free)(oct_comm *c);
};

/* The communicator of one process. Static, never freed, thread-safe. */
oct_comm *oct_comm_local(void);

#endif
