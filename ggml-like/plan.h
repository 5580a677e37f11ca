/* plan.h: a graph made ready to run, and the backends that run it.
 *
 * A plan is made once: it places every activation and every node's temporary memory in one buffer
 * (things that are never alive together share bytes). Running a plan allocates nothing. */
#ifndef OCT_PLAN_H
#define OCT_PLAN_H

#include "comm.h"
#include "graph.h"
#include "kv_cache.h"
#include "shard.h"
#include "topology.h"

typedef struct oct_plan {
    oct_graph *graph;      /* borrowed; its tensors and nodes hold the offsets */
    size_t shared_bytes;   /* activations and temporaries */
    size_t thread_bytes;   /* scratch of each thread */
    size_t bytes;          /* all together */
    unsigned char *buffer; /* bytes, allocated by the backend; NULL until then */
} oct_plan;

/* Where the time of some nodes went. */
typedef struct oct_node_time {
    double seconds;
    oct_comm_stats comm; /* the part of it that was talk between ranks */
} oct_node_time;

/* One evaluation: n_rows <= the graph's capacity tokens. */
typedef struct oct_run {
    int64_t n_rows;
    const int32_t *token, *seq; /* [n_rows] */
    const int32_t *pos;         /* [n_rows] absolute positions */
    int64_t n_out;
    const int32_t *out_row; /* [n_out] rows whose logits are wanted, ascending */
    float *logits;          /* [n_out][V] */
    oct_kv_cache *kv;
    oct_comm *comm;
    const volatile int *cancel; /* NULL: never */
    uint64_t bytes_read;        /* added to: weights and scales */
    uint64_t kv_read;           /* added to: keys and values */
    oct_node_time *layer_time;  /* [layers] added to: of the nodes of each; NULL: not wanted */
    /* What the routers chose; both NULL: not wanted. */
    uint64_t *expert_rows; /* [E] added to: rows sent to each expert, over all layers */
    uint64_t *route_hash;  /* [layers] changed by the choices of each layer's router */
} oct_run;

/* A backend owns memory and computes nodes. One thread of the caller at a time. */
typedef struct oct_backend oct_backend;
struct oct_backend {
    const char *name;
    int n_threads;
    /* Whether it can compute a node; asked when the plan is made, never at run time. */
    bool (*supports)(const oct_backend *b, const oct_node *n);
    /* Shared temporary memory of a node, and scratch per thread, for a capacity of rows. */
    size_t (*temp_bytes)(const oct_backend *b, const oct_node *n, int64_t rows);
    size_t (*thread_bytes)(const oct_backend *b, const oct_node *n, int64_t rows);
    oct_status (*alloc)(oct_backend *b, size_t bytes, unsigned char **p, oct_error *err);
    void (*release)(oct_backend *b, unsigned char *p, size_t bytes);
    /* Runs nodes first..end-1. OCT_ERR_CANCELLED leaves outputs undefined. */
    oct_status (*run)(oct_backend *b, const oct_plan *p, int first, int end, oct_run *r,
                      oct_error *err);
    void (*free)(oct_backend *b);
};

/* The CPU backend. */
typedef struct oct_cpu_config {
    const oct_kernels *kernels; /* a row that this CPU can run */
    int n_threads;
    const oct_topology *topology; /* where threads run; read here, not kept */
    bool bind;                    /* each thread to a core of its own */
    bool blas;       /* OpenBLAS for f32 products of many rows; loaded here, an error if missing */
    int n_domains;   /* groups of threads that own slices, see oct_cpu_domains */
    oct_shard shard; /* of one process: size 1, everything */
} oct_cpu_config;
OCT_MUST_CHECK oct_status oct_backend_cpu(const oct_cpu_config *config, oct_backend **out,
                                          oct_error *err);

/* NUMA: a domain is a node with its threads, its n_slices / n_domains slices of every matrix, and
 * the KV heads of these slices. As many domains as nodes, if every node has a thread and the
 * domains' sums are subtrees of the tree that folds the slices (a power of two of slices each);
 * else 1. */
int oct_cpu_domains(const oct_topology *t, int n_threads, int64_t n_slices);
/* First thread of a domain (of the next one: domain + 1), as oct_topology_spread places them. */
int oct_cpu_first_thread(int n_threads, int domain, int n_domains);

/* Computes offsets and sizes; allocates no buffer. */
OCT_MUST_CHECK oct_status oct_plan_make(oct_graph *g, const oct_backend *b, oct_plan *p,
                                        oct_error *err);
OCT_MUST_CHECK oct_status oct_plan_alloc(oct_plan *p, oct_backend *b, oct_error *err);
void oct_plan_free(oct_plan *p, oct_backend *b);

#endif
