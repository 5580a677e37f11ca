/* cpu_impl.h: what the files of the CPU backend share. */
#ifndef OCT_CPU_IMPL_H
#define OCT_CPU_IMPL_H

#include "blas.h"
#include "plan.h"
#include "threads.h"

enum {
    OCT_ROW_BLOCK = 128, /* rows that share a panel while it is in the cache */
    OCT_FOLD_LEVELS = 4
};

typedef struct oct_cpu {
    oct_backend base;
    const oct_kernels *k;
    oct_team *team;
    oct_blas *blas; /* NULL: not asked for */
} oct_cpu;

/* One run as each thread sees it. */
typedef struct oct_cpu_run {
    oct_cpu *cpu;
    const oct_plan *plan;
    oct_run *run;
    int thread, n_threads;
    unsigned char *scratch; /* of this thread, 64-byte aligned */
} oct_cpu_run;

/* The thread's tiles: OCT_FOLD_LEVELS tiles of OCT_ROW_BLOCK rows of 64 floats, then row pointers. */
typedef struct oct_cpu_tiles {
    float *y;
    const void **rows; /* [OCT_ROW_BLOCK] */
} oct_cpu_tiles;
oct_cpu_tiles oct_cpu_tiles_at(const oct_cpu_run *c);
size_t oct_cpu_tiles_bytes(void);

void *oct_cpu_data(const oct_cpu_run *c, const oct_tensor *t);
/* Tokens of this run that t has rows for. */
int64_t oct_cpu_rows(const oct_cpu_run *c, const oct_tensor *t);

/* Panel times rows for one matrix: all slices of an inputs-split matrix are folded. Returns the tile
 * [n_rows][64], inside tiles.y. tiles.rows holds the n_rows <= OCT_ROW_BLOCK activation rows. */
float *oct_cpu_panel(const oct_cpu_run *c, const oct_tensor *w, const oct_act_layout *act,
                     int64_t expert, int64_t slice, int64_t panel, int64_t n_rows);

void oct_cpu_experts(const oct_cpu_run *c, const oct_node *n);
size_t oct_cpu_experts_temp(const oct_node *n, int64_t rows);

typedef void oct_cpu_op_fn(const oct_cpu_run *c, const oct_node *n);
extern oct_cpu_op_fn *const oct_cpu_ops[OCT_OP_COUNT];

#endif
