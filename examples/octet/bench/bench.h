/* bench.h: what the files of `octet bench` share.
 *
 * Every measurement is interleaved with probes of the same machine at the same moment: probe, run,
 * probe, run, ... Each run is divided by the mean of the probes before and after it; medians and
 * extremes are taken of these ratios. The memory of a shared machine changes from minute to minute,
 * a ratio does not.
 *
 * Under mpirun there are no probes: what the ranks can do is measured on all of them together when
 * a session is made (job.h). */
#ifndef OCT_BENCH_H
#define OCT_BENCH_H

#include <jansson.h>

#include <octet/convert.h>
#include <octet/job.h>
#include <octet/machine.h>
#include <octet/measure.h>

#include "cli.h"

enum { OCT_BENCH_LIST = 32, OCT_BENCH_REPEATS = 99 };

typedef struct oct_bench_list {
    int64_t v[OCT_BENCH_LIST];
    int n;
} oct_bench_list;

typedef struct oct_bench {
    /* Options. */
    const char *path; /* model file */
    oct_bench_list threads, prompts, depths, batches, expert, attention;
    int64_t n_decode, repeats, chunk;
    int64_t layers, vocab; /* synthetic */
    uint64_t seed;
    const char *simulate; /* network to predict for; NULL: none */
    const char *out;      /* synthetic: file to write; NULL: memory */
    int kv, act, format, synthetic, experts, weights, shard;
    bool replicate_attention, force;
    const char *gpu;
    int gpu_stream;

    oct_model *model;
    const char *kernels;   /* the row, by name */
    oct_session_need need; /* of a session with default parameters */
    json_t *rows;          /* results */
} oct_bench;

/* ---- probes ---------------------------------------------------------------------------------- */

/* Threads and probes for one thread count. */
typedef struct oct_bench_rig {
    const oct_bench *b;
    oct_session *session;     /* whose threads the probes use */
    oct_operation *attention; /* whose keys and values the read probe reads; NULL: expert weights */
    int n_threads;
    int integer, f32; /* instructions */
    size_t ahead;     /* distance of fetches that reads fastest here */
    int64_t next;     /* where the next read probe begins: it walks round and round */
} oct_bench_rig;

/* Under mpirun: no session, threads and probes. */
OCT_MUST_CHECK oct_status oct_bench_rig_init(oct_bench_rig *r, const oct_bench *b, int n_threads,
                                             oct_error *err);
void oct_bench_rig_free(oct_bench_rig *r); /* a zeroed or failed one too */

/* All probes of a thread count, repeated. */
json_t *oct_bench_probes(oct_bench_rig *r, int64_t repeats);

/* What each GPU that is used does at best. */
json_t *oct_bench_gpus(void);

/* CPU, cores, pages, governor, compiler, version, model. */
json_t *oct_bench_machine(const oct_bench *b);

/* ---- measuring ------------------------------------------------------------------------------- */

/* One repetition: does the work, tells how long it took and what it needed. */
typedef struct oct_bench_run {
    double seconds;
    double tokens, bytes, ops; /* ops as the probe counts them */
    double waited;             /* seconds at barriers, mean over the threads */
    oct_rank_time ranks;       /* what seconds are made of, under mpirun */
} oct_bench_run;
typedef oct_status oct_bench_fn(void *ctx, oct_bench_run *run, oct_error *err);

/* Runs fn once unmeasured, then b->repeats times between probes, and adds the results to row: see
 * bench_table.c for the keys. arithmetic: the instruction that ops are compared with. */
OCT_MUST_CHECK oct_status oct_bench_measure(oct_bench_rig *r, int arithmetic, oct_bench_fn *fn,
                                            void *ctx, json_t *row, oct_error *err);
/* {"median": ..., "min": ..., "max": ...} of n values, which are sorted. */
json_t *oct_bench_spread(double *v, int64_t n);

/* The same without probes, for the ranks of a job. predicted: seconds per token, 0: unknown. */
OCT_MUST_CHECK oct_status oct_bench_measure_ranks(oct_bench_rig *r, oct_session *s,
                                                  double predicted, oct_bench_fn *fn, void *ctx,
                                                  json_t *row, oct_error *err);
/* The exchange alone: sums over the ranks of vectors of the model and of Grok-1. */
OCT_MUST_CHECK oct_status oct_bench_exchange(const oct_bench *b, oct_error *err);
/* What the ranks could do when the last session was made. */
json_t *oct_bench_pace(const oct_bench *b);

OCT_MUST_CHECK oct_status oct_bench_prefill(oct_bench_rig *r, int64_t n, int64_t depth,
                                            oct_error *err);
OCT_MUST_CHECK oct_status oct_bench_decode(oct_bench_rig *r, int64_t batch, int64_t depth,
                                           oct_error *err);
/* As many experts of the first layer as a token uses, each with n_rows rows. */
OCT_MUST_CHECK oct_status oct_bench_expert(oct_bench_rig *r, int64_t n_rows, oct_error *err);
/* Attention of `batch` sequences at a time over full contexts: 1 GiB of keys and values or more. */
OCT_MUST_CHECK oct_status oct_bench_attention(oct_bench_rig *r, int64_t batch, oct_error *err);

/* What was run, as the first keys of a result. */
json_t *oct_bench_row(const oct_bench_rig *r, const char *test, int64_t tokens, int64_t depth,
                      int64_t batch, int64_t chunk);
/* Integer instructions per weight and token, compared with one per weight. */
double oct_bench_passes(const oct_bench_rig *r);

/* ---- the rest -------------------------------------------------------------------------------- */

/* Writes the synthetic model to b->out or into memory; *path (128 bytes) is what to open, *fd the
 * memory (-1 for a file), to be closed after the model. */
OCT_MUST_CHECK oct_status oct_bench_synthetic(const oct_bench *b, char path[128], int *fd,
                                              oct_error *err);

/* Predicts tokens per second for b->simulate and prints them; an exit code. -1: nothing is printed,
 * because the rate at which a node reads is needed: measured, bytes per second, 0: not yet. The
 * shape is that of b->model; of Grok-1 if there is none or a synthetic one. */
int oct_bench_simulate(const oct_bench *b, double measured);

enum { OCT_BENCH_MARKDOWN, OCT_BENCH_CSV, OCT_BENCH_JSON };
/* Prints everything in the format asked for; an exit code. */
int oct_bench_print(const oct_bench *b, const json_t *all);

#endif
