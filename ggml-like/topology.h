/* topology.h: what of the machine this process may use. */
#ifndef OCT_TOPOLOGY_H
#define OCT_TOPOLOGY_H

/* Threads to run by default: physical cores (hwloc) that the affinity mask allows, and no more than
 * the CPU quota of the process's control groups (v1 and v2, every level), rounded down, at least 1.
 * *why: "cores", "affinity" or "cgroup quota" (static). Never fails: without a topology it counts
 * the CPUs of the affinity mask. */
int oct_topology_threads(const char **why);

#endif
