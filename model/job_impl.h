/* job_impl.h: what ranks find out about each other before they work together. */
#ifndef OCT_JOB_IMPL_H
#define OCT_JOB_IMPL_H

#include <sched.h>

#include "comm.h"
#include "job.h"
#include "kernels.h"
#include "model_impl.h"

/* Where lines go. */
typedef struct oct_job_voice {
    oct_job_say_fn *say; /* NULL: nowhere */
    void *ctx;
} oct_job_voice;
void oct_job_tell(const oct_job_voice *v, oct_job_level level, const char *fmt, ...)
    OCT_PRINTF(3, 4);

/* ---- builds ---------------------------------------------------------------------------------- */

/* Which Octet a rank is. Characters only, so that other builds can read it. */
typedef struct oct_rank_build {
    char host[64], version[OCT_VERSION_TEXT_MAX];
    char build[64]; /* the linker's checksum of the object that holds this code, in hex; "": none */
    char program[64]; /* the same of the program */
} oct_rank_build;
void oct_rank_build_self(oct_rank_build *b);

/* Tells every rank that is not what rank 0 is; returns how many. */
int oct_rank_builds_differ(const oct_rank_build *b, int n, const oct_job_voice *v);
/* The same of the programs that use the library: what they send is alike, so that the rest can be
 * compared, but they do not belong together. */
int oct_rank_programs_differ(const oct_rank_build *b, int n, const oct_job_voice *v);

/* ---- what they were given -------------------------------------------------------------------- */

/* On all ranks: tells of each that was given other words than rank 0; *differ: how many. */
OCT_MUST_CHECK oct_status oct_rank_words_differ(oct_comm *c, int n_words, char *const *words,
                                                const oct_job_voice *v, int *differ,
                                                oct_error *err);

/* ---- memory, cores, models ------------------------------------------------------------------- */

/* What a rank says of itself before anything is loaded. */
typedef struct oct_rank_report {
    char boot[40]; /* of the running system, "": unknown; containers have their host's */
    char host[64];
    uint64_t fingerprint;
    /* Bytes. Of its part; of those, what has yet to come into memory; with caches and buffers; what
     * this process can have, and its host. */
    uint64_t weights, mapped, need, have, host_has;
    uint64_t file; /* bytes that all who map this file share; UINT64_MAX: it is this rank's part */
    uint32_t kernels; /* rows of the table that it can take, a bit each */
    int32_t n_threads;
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

/* Tells every difference; all ranks come to the same number of those that cannot be worked with.
 * *kernels: the most preferred row that all have. */
int oct_rank_compare(const oct_rank_report *r, int n, const oct_job_voice *v,
                     const oct_kernels **kernels);
/* The most preferred of some rows; ref is one of them. */
const oct_kernels *oct_rank_kernels(uint32_t rows);

/* Whether a rank may use cores that another one on its machine uses: then it must not bind threads,
 * or all ranks would bind theirs to the same first cores. One with unknown CPUs may use all. */
bool oct_rank_shares_cores(const oct_rank_report *r, int n, int rank);

/* Which of the ranks on its machine a rank is; returns how many they are. */
int oct_rank_on_machine(const oct_rank_report *r, int n, int rank, int *local);

/* ---- pace ------------------------------------------------------------------------------------ */

/* To be called on all ranks; d_model and n_threads of rank 0 count, each reads with its own
 * kernels. Reads 32 MiB per thread once, from memory: 0.1 s. */
OCT_MUST_CHECK oct_status oct_rank_measure(oct_comm *c, int64_t d_model, int n_threads,
                                           const oct_kernels *row, oct_rank_pace *pace,
                                           oct_error *err);

/* See oct_job_predict; infinite if such ranks cannot share the model. */
double oct_rank_predict(const oct_model *m, int n_ranks, oct_shard_layout by, int64_t depth,
                        oct_kv_type kv, const oct_rank_pace *pace);

/* See oct_job_divide. Pure. */
oct_rank_time oct_rank_divide(double seconds, const oct_comm_stats *from, const oct_comm_stats *to,
                              int n_ranks, const oct_rank_pace *pace);

#endif
