/* plan.h: a graph made ready to run, and the backends that run it.
 *
 * A plan is made once: it places every activation and every node's temporary memory in one buffer
 * (things that are never alive together share bytes). Running a plan allocates nothing. */
#ifndef OCT_PLAN_H
#define OCT_PLAN_H

#include "comm.h"
#include "graph.h"
#include "kv_cache.h"

typedef struct oct_plan {
    oct_graph *graph;    /* borrowed; its tensors and nodes hold the offsets */
    size_t shared_bytes; /* activations and temporaries */
    size_t thread_bytes; /* scratch of each thread */
    size_t bytes;        /* all together */
    unsigned char *buffer; /* bytes, allocated by the backend; NULL until then */
} oct_plan;

/* One evaluation: n_rows <= the graph's capacity tokens. */
typedef struct oct_run {
    int64_t n_rows;
    const int32_t *token, *seq; /* [n_rows] */
    const int32_t *pos;         /* [n_rows] absolute positions */
    int64_t n_out;
    const int32_t *out_row;     /* [n_out] rows whose logits are wanted, ascending */
    float *logits;              /* [n_out][V] */
    oct_kv_cache *kv;
    oct_comm *comm;
    const volatile int *cancel; /* NULL: never */
    uint64_t bytes_read;        /* added to: weights, scales, keys and values */
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
    oct_status (*run)(oct_backend *b, const oct_plan *p, int first, int end, oct_run *r, oct_error *err);
    void (*free)(oct_backend *b);
};

/* The CPU backend. isa: a row of the kernel table that this CPU has. blas: OpenBLAS for f32 products
 * of many rows (it is loaded here; a missing library is an error). */
OCT_MUST_CHECK oct_status oct_backend_cpu(oct_isa isa, int n_threads, bool blas, oct_backend **out,
                           oct_error *err);

/* Computes offsets and sizes; allocates no buffer. */
OCT_MUST_CHECK oct_status oct_plan_make(oct_graph *g, const oct_backend *b, oct_plan *p, oct_error *err);
OCT_MUST_CHECK oct_status oct_plan_alloc(oct_plan *p, oct_backend *b, oct_error *err);
void oct_plan_free(oct_plan *p, oct_backend *b);

#endif
