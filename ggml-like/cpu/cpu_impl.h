/* cpu_impl.h: what the files of the CPU backend share. */
#ifndef OCT_CPU_IMPL_H
#define OCT_CPU_IMPL_H

#include <stdatomic.h>

#include "blas.h"
#include "cpu.h"
#include "plan.h"
#include "threads.h"

enum {
    OCT_ROW_BLOCK = 128, /* rows that share a panel while it is in the cache */
    OCT_FOLD_LEVELS = 4,
    OCT_SHARE_PHASES = 4,
    OCT_HEAD_ROWS = 64 /* rows of the table that one task of the head takes */
};

typedef struct oct_cpu {
    oct_backend base;
    oct_cpu_numbers n;
    const oct_kernels *k;
    int64_t stream_ahead; /* oct_linear_args.ahead */
    oct_team *team;
    oct_blas *blas; /* NULL: not asked for */
    struct {
        _Alignas(64) _Atomic int64_t taken; /* tasks of the tail */
    } * tails;                              /* [OCT_SHARE_PHASES][n_domains] */
} oct_cpu;

/* One run as each thread sees it. */
typedef struct oct_cpu_run {
    oct_cpu *cpu;
    const oct_plan *plan;
    unsigned char *buffer; /* of the plan */
    int place;             /* of the steps that run */
    oct_run *run;
    int thread, n_threads;
    int domain, domain_thread,
        domain_threads;     /* this thread's domain, its place there, their number */
    int64_t phase;          /* calls of oct_cpu_share so far in this run */
    unsigned char *scratch; /* of this thread, 64-byte aligned */
} oct_cpu_run;

/* Tasks of equal cost. */
typedef struct oct_cpu_work {
    int64_t n_tasks, cost;
} oct_cpu_work;

/* Calls fn(c, job, group, task) for all tasks of all groups, shared by the threads of the domain:
 * each has a contiguous range of the first seven eighths of the cost; who is done takes from the
 * rest, one task at a time. Every thread must call it with the same groups; at most one call later
 * a barrier must follow. */
typedef void oct_cpu_task_fn(oct_cpu_run *c, const void *job, int64_t group, int64_t task);
void oct_cpu_share(oct_cpu_run *c, const oct_cpu_work *groups, int64_t n_groups,
                   oct_cpu_task_fn *fn, const void *job);

/* First slice of a domain (of the next one: domain + 1), among those that this rank computes. */
int64_t oct_cpu_first_slice(const oct_cpu_run *c, oct_shard_kind kind, int domain);

/* With several domains an inputs-split product is written as one partial sum for each: part d of
 * n_rows rows of n columns begins at parts + d * stride. Adds them as the tree over domains into
 * out[n_rows][n]; rows are shared by all threads. */
void oct_cpu_join(const oct_cpu_run *c, float *parts, int64_t stride, int64_t n_rows, int64_t n,
                  float *out);

/* Panels of one task, out of n_units units of the matrix with so many rows each: as many as suit
 * the row of kernels, but few enough to leave every thread tasks. A unit is taken in runs of this
 * many panels, the last may be shorter. */
int64_t oct_cpu_panel_run(const oct_cpu_run *c, const oct_weight_layout *l, int64_t n_units,
                          int64_t n_rows);

/* The thread's tiles: OCT_FOLD_LEVELS tiles of OCT_ROW_BLOCK rows of 64 floats for each panel of a
 * task, then row pointers. */
typedef struct oct_cpu_tiles {
    float *y;
    const void **rows; /* [OCT_ROW_BLOCK] */
} oct_cpu_tiles;
oct_cpu_tiles oct_cpu_tiles_at(const oct_cpu_run *c);
size_t oct_cpu_tiles_bytes(const oct_cpu_numbers *n);

void *oct_cpu_data(const oct_cpu_run *c, const oct_tensor *t);
void *oct_cpu_temp(const oct_cpu_run *c, const oct_step *s);
float *oct_cpu_row(const oct_cpu_run *c, const oct_tensor *t, int64_t row); /* of an f32 tensor */
/* Tokens of this run that t has rows for. */
int64_t oct_cpu_rows(const oct_cpu_run *c, const oct_tensor *t);

/* Panels times rows for the step's matrix w[which]: the domain's slices of an inputs-split matrix
 * are folded (slice is not used then). Returns the tiles [n_panels][n_rows][64], inside tiles.y.
 * tiles.rows holds the n_rows <= OCT_ROW_BLOCK activation rows; n_panels is at most what
 * oct_cpu_panel_run may return. */
float *oct_cpu_panels(const oct_cpu_run *c, const oct_step *s, int which, const oct_act_layout *act,
                      int64_t expert, int64_t slice, int64_t panel, int64_t n_panels,
                      int64_t n_rows);

/* Rounds the rows of a tensor, shared by all threads, for a matrix: rows at to + r * act->bytes. */
void oct_cpu_quantise(const oct_cpu_run *c, const oct_tensor *x, const oct_act_layout *act,
                      unsigned char *to);
/* How the inputs of a node's matrix w[which] are rounded. */
oct_act_layout oct_cpu_act(const oct_node *n, int which);

typedef void oct_cpu_op_fn(oct_cpu_run *c, const oct_step *s);

oct_cpu_op_fn oct_cpu_experts, oct_cpu_rope_store, oct_cpu_attention;
size_t oct_cpu_linear_temp(const oct_cpu_numbers *numbers, const oct_node *n, int64_t rows);
size_t oct_cpu_experts_temp(const oct_cpu_numbers *numbers, const oct_node *n, int64_t rows);
size_t oct_cpu_attention_temp(const oct_cpu_numbers *numbers, const oct_node *n, int64_t rows);
size_t oct_cpu_attention_scratch(const oct_node *n);

extern oct_cpu_op_fn *const oct_cpu_ops[OCT_OP_COUNT];

#endif
