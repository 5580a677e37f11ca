/* ordered.h: a parallel loop with a part that runs in order: several threads prepare items while a
 * checksum takes them one after the other. */
#ifndef OCT_ORDERED_H
#define OCT_ORDERED_H

#include <stdint.h>

#include "status.h"

typedef struct oct_ordered {
    int64_t n; /* items 0..n-1 are begun in this order */
    void *ctx;
    /* Each may be NULL. For one item they are called in this order by one thread
     * (0..n_threads-1). */
    oct_status (*work)(void *ctx, int thread, int64_t i, oct_error *err); /* in parallel */
    oct_status (*turn)(void *ctx, int thread, int64_t i,
                       oct_error *err); /* one at a time, 0, 1, 2 */
    oct_status (*after)(void *ctx, int thread, int64_t i, oct_error *err); /* in parallel */
    void (*done)(void *ctx, int64_t i); /* one at a time, any order: for progress */
    const volatile int *cancel;         /* non-zero: stop; may be NULL */
} oct_ordered;

/* Runs the loop on n_threads threads. Returns the first error, or OCT_ERR_CANCELLED, after all
 * threads have stopped. */
OCT_MUST_CHECK oct_status oct_ordered_run(const oct_ordered *o, int n_threads, oct_error *err);

#endif
