#include "numa.h"

#include <errno.h>
#include <hwloc.h>

static int bind_area(void *ctx, void *p, size_t bytes, int node)
{
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (!set || node < 0 || hwloc_bitmap_only(set, (unsigned)node) < 0) {
        hwloc_bitmap_free(set);
        return node < 0 ? 0 : ENOMEM; /* a machine without nodes has nothing to bind to */
    }
    int e = hwloc_set_area_membind(ctx, p, bytes, set, HWLOC_MEMBIND_BIND,
                                   HWLOC_MEMBIND_STRICT | HWLOC_MEMBIND_BYNODESET) < 0
                ? errno
                : 0;
    hwloc_bitmap_free(set);
    return e;
}

static int where_is(void *ctx, const void *p)
{
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    int node = -1;
    if (set && hwloc_get_area_memlocation(ctx, p, 1, set, HWLOC_MEMBIND_BYNODESET) == 0 &&
        hwloc_bitmap_weight(set) == 1)
        node = hwloc_bitmap_first(set);
    hwloc_bitmap_free(set);
    return node;
}

oct_status oct_numa_open(oct_numa *n, oct_error *err)
{
    hwloc_topology_t t;
    *n = (oct_numa){0};
    if (hwloc_topology_init(&t) < 0)
        return oct_fail(err, OCT_ERR_MEMORY, "NUMA: hwloc cannot start");
    if (hwloc_topology_load(t) < 0) {
        hwloc_topology_destroy(t);
        return oct_fail(err, OCT_ERR_IO, "NUMA: hwloc cannot read this machine");
    }
    *n = (oct_numa){bind_area, where_is, t};
    return OCT_OK;
}

static int bind_none(void *ctx, void *p, size_t bytes, int node)
{
    (void)ctx, (void)p, (void)bytes, (void)node;
    return 0;
}

static int where_unknown(void *ctx, const void *p)
{
    (void)ctx, (void)p;
    return -1;
}

oct_numa oct_numa_none(void)
{
    return (oct_numa){bind_none, where_unknown, NULL};
}

void oct_numa_close(oct_numa *n)
{
    if (n->ctx)
        hwloc_topology_destroy(n->ctx);
    *n = (oct_numa){0};
}
