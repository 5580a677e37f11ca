/* shared.h: a fold through memory that all ranks of a job share, for ranks on one host. */
#ifndef OCT_SHARED_H
#define OCT_SHARED_H

#include <mpi.h>
#include <stdint.h>

#include "comm.h"

typedef struct oct_shared oct_shared;

/* Where rank 0 has made the memory; key 0: it has none. */
typedef struct oct_shared_offer {
    uint64_t key; /* random */
    int32_t pid, fd;
} oct_shared_offer;

/* Makes the memory for so many ranks; for rank 0. The file descriptor stays open until the caller
 * closes it, after all have mapped. */
oct_shared_offer oct_shared_make(int size);
/* NULL if this rank cannot have it. Free with oct_shared_free. comm: whose messages move on while
 * this rank waits. */
oct_shared *oct_shared_map(const oct_shared_offer *offer, int rank, int size, MPI_Comm comm);
void oct_shared_free(oct_shared *s);

/* x[n] of every rank becomes the sum over the ranks. All ranks call it, with the same n, one thread
 * of each. A rank that waits sleeps after half a millisecond. Adds to rounds (whenever all wait for
 * all) and bytes_sent (what the others read) of *stats. After deadline seconds of waiting:
 * OCT_ERR_COMM without a text, and *missing is a rank that has not come. */
OCT_MUST_CHECK oct_status oct_shared_fold(oct_shared *s, float *x, int64_t n, double deadline,
                                          oct_comm_stats *stats, int *missing);

/* ---- what a fold by messages does as well ---------------------------------------------------- */

/* First element of rank r's part of n. */
static inline int64_t oct_part_at(int64_t n, int r, int size)
{
    return n / size * r + (r < n % size ? r : n % size);
}

/* sum[n] = in[0..size-1][n] added as the tree ((0+1)+(2+3))...: neighbours are added, an odd last
 * one moves up. sum is none of in. */
void oct_part_add(const float *const *in, int size, int64_t n, float *sum);

#endif
