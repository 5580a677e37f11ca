/* ranks_impl.h: what ranks find out about each other before they work together. */
#ifndef OCT_RANKS_IMPL_H
#define OCT_RANKS_IMPL_H

#include <sched.h>

#include "comm.h"
#include "model_impl.h"

/* What a rank says of itself before anything is loaded. */
typedef struct oct_rank_report {
    char boot[40]; /* of the running system, "": unknown; containers have their host's */
    char host[64], version[OCT_VERSION_TEXT_MAX], build[48];
    uint64_t fingerprint;
    /* Bytes. Of its part; of those, what has yet to come into memory; with caches and buffers; what
     * this process can have, and its host. */
    uint64_t weights, mapped, need, have, host_has;
    uint64_t file; /* bytes that all who map this file share; UINT64_MAX: it is this rank's part */
    int32_t isa, n_threads;
    int32_t n_cpus, n_cpus_parent; /* that the process and its launcher may use; 0: unknown */
    cpu_set_t cpus;                /* of the process */
    int32_t status;
    char text[OCT_ERROR_TEXT];
} oct_rank_report;

/* m may be NULL, with the reason in *opened. resident: the weights need no memory: they are there,
 * or may be read from disk again and again. */
void oct_rank_report_self(const oct_model *m, const oct_session_params *p, const oct_error *opened,
                          bool resident, oct_rank_report *r);

/* Whether rank i, and all ranks of its host together, have the memory that they need. *need, *have:
 * of the host; what its ranks map of one file counts once. */
bool oct_rank_host_fits(const oct_rank_report *r, int n, int i, uint64_t *need, uint64_t *have);
bool oct_rank_all_fit(const oct_rank_report *r, int n);

/* Every difference, a line each; print: on stderr. All ranks come to the same number of those that
 * cannot be worked with. *isa: the best kernel row that all have. */
int oct_rank_compare(const oct_rank_report *r, int n, bool print, int32_t *isa);

/* Whether a rank may use cores that another one on its machine uses: then it must not bind threads,
 * or all ranks would bind theirs to the same first cores. One with unknown CPUs may use all. */
bool oct_rank_shares_cores(const oct_rank_report *r, int n, int rank);

/* What the ranks can do. Seconds for a fold of n floats: latency + n * per_float. */
typedef struct oct_rank_pace {
    double latency, per_float;
    double read; /* bytes per second that the slowest rank reads from memory */
} oct_rank_pace;

/* To be called on all ranks; d_model and n_threads of rank 0 count, each reads with its own isa.
 * Reads 32 MiB per thread once, from memory: 0.1 s. */
OCT_MUST_CHECK oct_status oct_rank_measure(oct_comm *c, int64_t d_model, int n_threads, oct_isa isa,
                                           oct_rank_pace *pace, oct_error *err);

/* Seconds for a token of one sequence behind `depth` others (predict.h), with kv_elem bytes
 * for an element of the KV cache; infinite if such ranks cannot share the model. */
double oct_rank_predict(const oct_model *m, int n_ranks, oct_shard_layout by, int64_t depth,
                        int64_t kv_elem, const oct_rank_pace *pace);

/* Where the time of some work went, seconds on this rank: its own computing; its messages, had
 * nobody been late; the rest of what it spent on them, which is waiting for the slowest rank. */
typedef struct oct_rank_time {
    double compute, exchange, wait;
} oct_rank_time;

/* Divides the seconds of work between two looks at the communicator's counts. Pure. */
oct_rank_time oct_rank_divide(double seconds, const oct_comm_stats *from, const oct_comm_stats *to,
                              int n_ranks, const oct_rank_pace *pace);

/* Rank 0: where the time of a session went, some lines on stderr. since: of the communicator when
 * the session was made. token_seconds: from one generated token to the next, 0: there were none. */
void oct_rank_report_print(oct_comm *c, const oct_comm_stats *since, const oct_model *m,
                           oct_session *s, oct_shard_layout by, const oct_rank_pace *pace,
                           double token_seconds);

#endif
