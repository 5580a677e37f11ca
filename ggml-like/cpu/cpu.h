/* cpu.h: the CPU backend. Its numbers say all that a plan needs; opening it takes the threads. */
#ifndef OCT_CPU_H
#define OCT_CPU_H

#include "backend.h"
#include "kernels.h"
#include "shard.h"
#include "topology.h"

typedef struct oct_cpu_numbers {
    const oct_kernels *k; /* a row of the table that this CPU has */
    int n_threads;
    int n_domains;   /* groups of threads that own slices, see oct_cpu_domains */
    bool blas;       /* OpenBLAS for f32 products of many rows */
    oct_shard shard; /* of one process: size 1, everything */
} oct_cpu_numbers;

extern const oct_backend_kind oct_cpu_kind; /* its numbers: oct_cpu_numbers */

/* topology: where the threads run; read here, not kept. bind: each thread to a core of its own.
 * OpenBLAS is loaded here if it is asked for, an error if it is missing. */
OCT_MUST_CHECK oct_status oct_cpu_open(const oct_cpu_numbers *n, const oct_topology *topology,
                                       bool bind, oct_backend **out, oct_error *err);

/* NUMA: a domain is a node with its threads, its n_slices / n_domains slices of every matrix, and
 * the KV heads of these slices. As many domains as nodes, if every node has a thread and the
 * domains' sums are subtrees of the tree that folds the slices (a power of two of slices each);
 * else 1. */
int oct_cpu_domains(const oct_topology *t, int n_threads, int64_t n_slices);
/* First thread of a domain (of the next one: domain + 1), as oct_topology_spread places them. */
int oct_cpu_first_thread(int n_threads, int domain, int n_domains);

#endif
