/* machine.h: the machine that Octet runs on: processor, cores, NUMA nodes, memory, clock. */
#ifndef OCT_MACHINE_H
#define OCT_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

OCT_API double oct_seconds(void); /* monotonic clock */

/* ---- processor ------------------------------------------------------------------------------- */

/* What a process may use of a machine, read once: immutable, thread-safe. */
typedef struct oct_machine oct_machine;

/* topology: NULL, this machine; else an hwloc synthetic description such as "numa:2 core:4 pu:2" or
 * the path of an hwloc XML file (anything with a '.') of another one, to plan for. Affinity mask,
 * cpuset and CPU quota of this process count on this machine. */
OCT_API OCT_MUST_CHECK oct_status oct_machine_load(const char *topology, oct_machine **out,
                                                   oct_error *err);
OCT_API void oct_machine_free(oct_machine *m); /* NULL is fine */

enum { OCT_MACHINE_ISAS = 8 };
typedef struct oct_machine_info {
    char cpu[128];           /* "AMD EPYC 9554"; "unknown" */
    int n_cpus;              /* hardware threads that the affinity mask allows; 0: unknown */
    int n_cores;             /* physical cores that may be used */
    int n_nodes;             /* NUMA nodes that have some of them, at least 1 */
    int n_threads;           /* to run by default: cores, or fewer where a quota allows fewer */
    const char *threads_why; /* what decided that: "cores", "affinity", "cgroup quota" */
    int n_isas;
    const char *isas[OCT_MACHINE_ISAS]; /* kernel rows that this CPU can run, the best last */
} oct_machine_info;
OCT_API const oct_machine_info *oct_machine_get_info(const oct_machine *m);

/* The kernel row that a session takes: the one named; for NULL that of $OCTET_ISA, or the best that
 * this CPU can run. An unknown one is OCT_ERR_ARG, one that this CPU lacks OCT_ERR_UNSUPPORTED.
 * Static. */
OCT_API OCT_MUST_CHECK oct_status oct_machine_choose_isa(const char *name, const char **isa,
                                                         oct_error *err);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Bytes. UINT64_MAX: no limit, or it cannot be read. */
typedef struct oct_memory {
    uint64_t system; /* MemAvailable: free memory and what the kernel would give up for it */
    uint64_t cgroup; /* the tightest limit of the process's control groups (v1 and v2), less what is
                        in use there and cannot be reclaimed */
    uint64_t limit;  /* the smaller of the two */
} oct_memory;

/* What this process may still take, now. root: put in front of /proc and of mount points: "", or a
 * copy of another machine's. */
OCT_API void oct_memory_get(const char *root, oct_memory *m);

/* Whether a file is in memory already, because its file system is: what is available does not count
 * it. */
OCT_API bool oct_memory_has_file(const char *path);

/* "1.5 GiB" into out; returns out. */
OCT_API const char *oct_memory_text(uint64_t bytes, char out[24]);

#ifdef __cplusplus
}
#endif
#endif
