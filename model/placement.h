/* placement.h: where weights lie on the host: in the mapped file, or in a copy that NUMA nodes own.
 */
#ifndef OCT_PLACEMENT_H
#define OCT_PLACEMENT_H

#include "model_impl.h"
#include "numa.h"
#include "topology.h"

struct oct_placement {
    void *map;
    size_t map_bytes;
    /* Bytes of the file's mapping, and the copy of them. */
    const unsigned char *from;
    uint64_t bytes;
    unsigned char *to;
};

/* oct_placement_own on a machine, and with a system, of the caller's. */
OCT_MUST_CHECK oct_status oct_placement_own_on(const oct_model *m, const oct_own_params *p,
                                               const oct_topology *topology, const oct_numa *numa,
                                               oct_placement **out, oct_own_report *report,
                                               oct_error *err);

#endif
