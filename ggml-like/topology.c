#include "topology.h"

#include <hwloc.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cgroup.h"

static const char CPUS[] = "/sys/devices/system/cpu";

typedef struct core_place {
    int cpu, node; /* node: operating system's number, -1 if there are none */
} core_place;

static int by_node(const void *a, const void *b)
{
    const core_place *x = a, *y = b;
    return x->node != y->node ? (x->node < y->node ? -1 : 1)
                              : (x->cpu < y->cpu ? -1 : x->cpu > y->cpu);
}

/* The first hardware thread of every core that mask allows; *all counts the other cores too. */
static int list_cores(hwloc_topology_t topology, hwloc_const_bitmap_t mask, core_place *out,
                      int *all)
{
    hwloc_bitmap_t cpus = hwloc_bitmap_alloc();
    hwloc_obj_t core = NULL;
    int n = 0;
    *all = 0;
    while (cpus && (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core))) {
        (*all)++;
        hwloc_bitmap_and(cpus, core->cpuset, mask);
        if (!hwloc_bitmap_iszero(cpus))
            out[n++] = (core_place){hwloc_bitmap_first(cpus), hwloc_bitmap_first(core->nodeset)};
    }
    hwloc_bitmap_free(cpus);
    return n;
}

static oct_status fill(oct_topology *t, core_place *cores, int n, oct_error *err)
{
    t->cpu = calloc((size_t)n, sizeof *t->cpu);
    t->node = calloc((size_t)n, sizeof *t->node);
    t->os_node = calloc((size_t)n, sizeof *t->os_node);
    if (!t->cpu || !t->node || !t->os_node)
        return oct_fail(err, OCT_ERR_MEMORY, "topology: out of memory");
    qsort(cores, (size_t)n, sizeof *cores, by_node);
    t->n_cores = n;
    for (int i = 0; i < n; i++) {
        if (i == 0 || cores[i].node != cores[i - 1].node)
            t->os_node[t->n_nodes++] = cores[i].node;
        t->cpu[i] = cores[i].cpu;
        t->node[i] = t->n_nodes - 1;
    }
    return OCT_OK;
}

/* What the system says without hwloc: each CPU that this process may use is a core. */
static oct_status read_affinity(oct_topology *t, oct_error *err)
{
    cpu_set_t set;
    core_place cores[CPU_SETSIZE];
    int n = 0;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        for (int i = 0; i < CPU_SETSIZE; i++)
            if (CPU_ISSET(i, &set))
                cores[n++] = (core_place){i, -1};
    if (n == 0) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        for (; n < online && n < CPU_SETSIZE; n++)
            cores[n] = (core_place){n, -1};
    }
    if (n == 0)
        cores[n++] = (core_place){0, -1};
    t->why = "CPUs";
    return fill(t, cores, n, err);
}

/* Reads a loaded topology. */
static oct_status read_cores(hwloc_topology_t topology, oct_topology *t, oct_error *err)
{
    int all = 0, n_cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
    hwloc_bitmap_t mask = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(topology));
    core_place *cores = calloc(n_cores > 0 ? (size_t)n_cores : 1, sizeof *cores);
    if (!mask || !cores) {
        hwloc_bitmap_free(mask);
        free(cores);
        return oct_fail(err, OCT_ERR_MEMORY, "topology: out of memory");
    }
    if (t->real)
        (void)hwloc_get_cpubind(topology, mask, HWLOC_CPUBIND_PROCESS);
    int n = list_cores(topology, mask, cores, &all);
    t->why = n < all ? "affinity" : "cores";
    oct_status s = OCT_OK;
    if (n > 0)
        s = fill(t, cores, n, err);
    else if (t->real) /* a machine that does not tell its cores */
        s = read_affinity(t, err);
    else
        s = oct_fail(err, OCT_ERR_ARG, "topology: expected cores, found none");
    hwloc_bitmap_free(mask);
    free(cores);
    return s;
}

static int set_source(hwloc_topology_t topology, const char *synthetic)
{
    if (!synthetic)
        return 0;
    return strchr(synthetic, '.') ? hwloc_topology_set_xml(topology, synthetic)
                                  : hwloc_topology_set_synthetic(topology, synthetic);
}

static oct_status load(const char *synthetic, oct_topology *t, oct_error *err)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) < 0)
        return oct_fail(err, OCT_ERR_MEMORY, "topology: hwloc cannot start");
    oct_status s = OCT_OK;
    if (set_source(topology, synthetic) == 0 && hwloc_topology_load(topology) == 0)
        s = read_cores(topology, t, err);
    else if (t->real)
        s = read_affinity(t, err);
    else
        s = oct_fail(err, OCT_ERR_ARG, "topology: hwloc does not understand '%s'", synthetic);
    hwloc_topology_destroy(topology);
    return s;
}

oct_status oct_topology_load(const char *synthetic, oct_topology *t, oct_error *err)
{
    *t = (oct_topology){.real = !synthetic};
    /* Without /sys hwloc complains on standard error, and has little to tell. */
    if (t->real && access(CPUS, F_OK) != 0)
        OCT_TRY(read_affinity(t, err));
    else
        OCT_TRY(load(synthetic, t, err));
    t->n_threads = t->n_cores;
    double quota = t->real ? oct_cgroup_cpus("") : 0;
    if (quota > 0 && quota < t->n_threads) {
        t->n_threads = quota < 1 ? 1 : (int)quota;
        t->why = "cgroup quota";
    }
    return OCT_OK;
}

void oct_topology_free(oct_topology *t)
{
    free(t->cpu);
    free(t->node);
    free(t->os_node);
    *t = (oct_topology){0};
}

void oct_topology_spread(const oct_topology *t, int n_threads, int *core)
{
    for (int node = 0, first = 0; node < t->n_nodes; node++) {
        int end = first;
        while (end < t->n_cores && t->node[end] == node)
            end++;
        int lo = (int)((int64_t)n_threads * node / t->n_nodes);
        int hi = (int)((int64_t)n_threads * (node + 1) / t->n_nodes);
        for (int i = lo; i < hi; i++)
            core[i] = first + (i - lo) % (end - first);
        first = end;
    }
}

oct_status oct_topology_team(const oct_topology *t, int n_threads, bool bind, oct_team **out,
                             oct_error *err)
{
    const bool all = n_threads == t->n_cores;
    if (!bind || !t->real || n_threads > t->n_cores || (!all && t->n_nodes == 1))
        return oct_team_new(n_threads, NULL, out, err);
    int *core = malloc((size_t)n_threads * sizeof *core);
    cpu_set_t *sets = calloc((size_t)n_threads, sizeof *sets);
    oct_status s = OCT_OK;
    if (core && sets) {
        oct_topology_spread(t, n_threads, core);
        for (int i = 0; i < n_threads; i++)
            for (int k = 0; k < t->n_cores; k++)
                if (t->cpu[k] < CPU_SETSIZE &&
                    (k == core[i] || (!all && t->node[k] == t->node[core[i]])))
                    CPU_SET((size_t)t->cpu[k], &sets[i]);
        s = oct_team_new(n_threads, sets, out, err);
    } else {
        s = oct_fail(err, OCT_ERR_MEMORY, "topology: out of memory");
    }
    free(core);
    free(sets);
    return s;
}
