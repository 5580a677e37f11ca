/* measure.h: how fast a session is, what its machine can do at best, and what ranks would do.
 *
 * Reading is probed with the access pattern of decoding over the very memory that it reads;
 * arithmetic with nothing but the instruction in question, on independent accumulators. Probes run
 * on the session's threads: one thread of the caller at a time, and not while it evaluates. Figures
 * are of all of its threads together. */
#ifndef OCT_MEASURE_H
#define OCT_MEASURE_H

#include "octet.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- a session ------------------------------------------------------------------------------- */

/* Seconds that its threads have waited for each other since it was made, the mean over them. */
OCT_API double oct_measure_waited(const oct_session *s);

/* Bytes of the keys and values of one position in all layers; on a rank, of its own heads. */
OCT_API uint64_t oct_measure_kv_bytes(const oct_session *s);

/* What the system tells of the mapping that the experts' weights lie in. Bytes; 0: unknown. */
typedef struct oct_page_stats {
    uint64_t page; /* size of a normal one */
    uint64_t mapped, resident;
    uint64_t huge; /* the part of resident that is in huge pages */
} oct_page_stats;
OCT_API void oct_measure_pages(const oct_model *m, oct_page_stats *out);

/* ---- probes ---------------------------------------------------------------------------------- */

/* Bytes per second over the next `bytes` of expert weights or a little more, on a rank of its own,
 * each matrix shared between the threads in contiguous parts; every line is fetched `ahead` bytes
 * before it is read. Which distance is best depends on the machine: try some, and take the fastest.
 * *next: the matrix to begin with, 0 at first; moved on, to 0 again after the last. */
OCT_API double oct_measure_read(oct_session *s, size_t ahead, uint64_t bytes, int64_t *next);

/* An arithmetic instruction whose peak can be measured. */
typedef struct oct_instruction {
    const char *name; /* "vpdpbusd (zmm)" */
    const char *isa;  /* the kernel row that uses it */
    oct_probe_kind kind;
    int passes16; /* times it is needed per weight with 16-bit activations */
} oct_instruction;
/* The instruction with number i, 0 first, of those that this CPU has; false after the last. */
OCT_API bool oct_instruction_get(int i, oct_instruction *out);
/* The number of what a kernel row uses of a kind: its own, or that of the nearest row below; -1:
 * there is none. */
OCT_API int oct_instruction_find(const char *isa, oct_probe_kind kind);
/* Multiplications and additions per second, measured for about `seconds`. */
OCT_API double oct_measure_peak(oct_session *s, int instruction, double seconds);

/* Seconds per barrier when nothing else is done, the mean of n. */
OCT_API double oct_measure_barrier(oct_session *s, int64_t n);
/* Seconds to call threads that have gone to sleep and to see them return: the median of
 * n <= 101. */
OCT_API double oct_measure_wake(oct_session *s, int n);

/* ---- single operations ----------------------------------------------------------------------- */

/* An operation of a model, alone, on made-up inputs. One thread of the caller at a time. */
typedef struct oct_operation oct_operation;

/* The experts' part of a layer: as many experts of the first one as a token uses, each with n_rows
 * rows; each run takes the experts after those of the last. Of p: n_threads, kv, act, isa, cancel.
 * The same seed, the same inputs. Errors are those of oct_session_new, and OCT_ERR_ARG for n_rows <
 * 1; free *out with oct_operation_free. */
OCT_API OCT_MUST_CHECK oct_status oct_operation_experts(const oct_model *m,
                                                        const oct_session_params *p, int64_t n_rows,
                                                        uint64_t seed, oct_operation **out,
                                                        oct_error *err);
/* Attention in all layers, of one token for each of `batch` sequences at a time, over full
 * contexts, for as many sequences as have kv_bytes of keys and values or more: *n_seqs, a multiple
 * of batch, which is at least 1. Of p, and errors: as above. */
OCT_API OCT_MUST_CHECK oct_status oct_operation_attention(const oct_model *m,
                                                          const oct_session_params *p,
                                                          int64_t batch, uint64_t kv_bytes,
                                                          uint64_t seed, int64_t *n_seqs,
                                                          oct_operation **out, oct_error *err);
OCT_API void oct_operation_free(oct_operation *o); /* NULL is fine */

typedef struct oct_operation_run {
    double seconds, waited; /* at barriers, mean over the threads */
    double rows;            /* of experts, of each expert; of attention, tokens */
    double bytes;           /* weights and scales, or keys and values, that were read */
    double ops;             /* multiplications and additions that were needed */
} oct_operation_run;
/* Runs it once. An error, such as OCT_ERR_CANCELLED, leaves *run without meaning. */
OCT_API OCT_MUST_CHECK oct_status oct_operation_do(oct_operation *o, oct_operation_run *run,
                                                   oct_error *err);

/* Bytes per second over all keys and values of attention, read like weights. */
OCT_API double oct_operation_read(oct_operation *o, size_t ahead);

/* ---- ranks that are not there ---------------------------------------------------------------- */

typedef struct oct_network {
    double latency;  /* seconds until a message of no bytes is there */
    double per_byte; /* seconds; of each rank, both ways at once */
} oct_network;

/* One evaluation: a token for each of n_rows sequences, or n_rows tokens of a prompt. */
typedef struct oct_step_shape {
    int64_t n_rows;
    int64_t n_out;    /* logits wanted */
    double positions; /* keys and values that are read, each once: of all sequences together */
    oct_kv_type kv;
} oct_step_shape;

typedef struct oct_step_cost {
    double bytes;        /* read from memory by the rank that reads most */
    double expert_bytes; /* the part of it that are experts */
    double rounds;       /* of messages, each waiting for the one before */
    double exchange;     /* seconds */
} oct_step_cost;

/* Routing is taken as uniform. Where reading is what limits, its seconds are bytes / (bytes per
 * second that a rank reads) + exchange. Returns NULL, or why so many ranks cannot share such a
 * model, or that no step has so many tokens (static). Pure. */
OCT_API const char *oct_predict_step(const oct_model *m, oct_shard_layout layout, int n_ranks,
                                     const oct_step_shape *step, const oct_network *net,
                                     oct_step_cost *out);
/* Multiplications and additions with weights that it needs, on all ranks together: in the last
 * layer only rows whose logits are wanted go on once their keys and values are stored. Attention
 * itself, router and norms are left out. Pure. */
OCT_API double oct_predict_ops(const oct_model *m, double n_rows, double n_out);

#ifdef __cplusplus
}
#endif
#endif
