/* numa.h: memory and NUMA nodes, as far as the system is asked (hwloc). */
#ifndef OCT_NUMA_H
#define OCT_NUMA_H

#include <stddef.h>

#include "status.h"

/* The system's part; a test may put its own here. Nodes have the operating system's numbers. */
typedef struct oct_numa {
    /* Binds pages before they are first touched. 0, or errno of the refusal. */
    int (*bind)(void *ctx, void *p, size_t bytes, int node);
    /* The node that has the page at p; -1: not known. */
    int (*where)(void *ctx, const void *p);
    void *ctx;
} oct_numa;

OCT_MUST_CHECK oct_status oct_numa_open(oct_numa *n, oct_error *err); /* of this machine */
oct_numa oct_numa_none(void);     /* binds nothing, knows nothing */
void oct_numa_close(oct_numa *n); /* of either, or zeroed */

#endif
