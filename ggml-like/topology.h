/* topology.h: what of the machine this process may use: physical cores and the NUMA nodes they are
 * on (hwloc), within affinity mask, cpuset and the CPU quota of control groups. */
#ifndef OCT_TOPOLOGY_H
#define OCT_TOPOLOGY_H

#include <stdbool.h>

#include "kernels.h"
#include "machine.h"
#include "status.h"
#include "threads.h"

typedef struct oct_topology {
    int n_cores;     /* physical cores that may be used */
    int n_nodes;     /* NUMA nodes that have some of them; at least 1 */
    int *cpu;        /* [n_cores] operating system's number of one hardware thread of each core */
    int *node;       /* [n_cores] 0..n_nodes-1, ascending */
    int *os_node;    /* [n_nodes] operating system's number; -1 if the machine has no NUMA nodes */
    int n_threads;   /* to run by default: cores, or fewer where a quota allows fewer */
    const char *why; /* what decided n_threads: "cores", "CPUs" (cores are not known), "affinity",
                         "cgroup quota" */
    bool real;       /* this machine: threads and pages can be bound */
} oct_topology;

/* Reads the machine. synthetic: NULL, or an hwloc synthetic description such as
 * "numa:2 core:4 pu:2" or the path of an hwloc XML file (anything with a '.'), to plan for a
 * machine that is not there; nothing is bound then. Free with oct_topology_free in any case. */
OCT_MUST_CHECK oct_status oct_topology_load(const char *synthetic, oct_topology *t, oct_error *err);
void oct_topology_free(oct_topology *t);

/* What machine.h hides. */
struct oct_machine {
    oct_topology topology;
    oct_isa isa; /* what this CPU has */
    oct_machine_info info;
};

/* *use: m, or for NULL the machine that this is, loaded into *here for the caller to free. */
OCT_MUST_CHECK oct_status oct_machine_find(const oct_machine *m, const oct_machine **use,
                                           oct_machine **here, oct_error *err);

/* The core of each of n_threads threads (more threads than cores share them): nodes are filled
 * evenly, threads of a node are neighbours. core[n_threads] receives indices into cpu and node. */
void oct_topology_spread(const oct_topology *t, int n_threads, int *core);

/* A team spread like that. With bind, on a real machine: if there are as many threads as cores, each
 * on a core of its own; if there are fewer, each on the cores of its NUMA node, since another
 * program's, or another session's, would be bound to the same few, and which are free only the system
 * knows. */
OCT_MUST_CHECK oct_status oct_topology_team(const oct_topology *t, int n_threads, bool bind,
                                            oct_team **out, oct_error *err);

#endif
