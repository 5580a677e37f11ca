/* job.h: one run of Octet over the ranks of an MPI job. Rank 0 is the program that the user sees;
 * the others open the model that it names and do what its sessions ask for. An oct_job belongs to
 * one thread. Where j may be NULL, that is one process: rank 0 of 1. */
#ifndef OCT_JOB_H
#define OCT_JOB_H

#include "octet.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oct_job oct_job;

/* What ranks find out about each other and about a network that has gone: a line each. Errors and
 * warnings may come from a thread of the job's own; when it returns from an error, the job may
 * end. */
typedef enum oct_job_level { OCT_JOB_NOTE, OCT_JOB_WARNING, OCT_JOB_ERROR } oct_job_level;
typedef void oct_job_say_fn(void *ctx, oct_job_level level, const char *line);

/* Joins the job if a launcher (mpirun, srun) started this process as one of several; only then is
 * the MPI module loaded. *out stays NULL if not. After an error it may be set: then oct_job_leave
 * ends the job, once the error has been shown. */
OCT_API OCT_MUST_CHECK oct_status oct_job_join(oct_job_say_fn *say, void *ctx, oct_job **out,
                                               oct_error *err);
/* All ranks, next: whether each was given what rank 0 was, word by word. If not, every rank that
 * differs is told of, with the first word that does, and the job is over: OCT_ERR_COMM on rank
 * 0, on the others from oct_job_serve. The words stay the caller's. j may be NULL. */
OCT_API OCT_MUST_CHECK oct_status oct_job_compare(oct_job *j, int n_words, char *const *words,
                                                  oct_error *err);

OCT_API int oct_job_rank(const oct_job *j);              /* j may be NULL */
OCT_API int oct_job_size(const oct_job *j);              /* j may be NULL */
OCT_API struct oct_comm *oct_job_comm(const oct_job *j); /* for session parameters; j may be NULL */

/* Ranks other than 0: does what rank 0 asks for, until it leaves. OCT_ERR_COMM: all ranks know, and
 * rank 0 tells its user; any other error is to be shown. oct_job_leave must follow. */
OCT_API OCT_MUST_CHECK oct_status oct_job_serve(oct_job *j, oct_error *err);

/* Rank 0: lets the others end. After a failure that only some ranks know of, the job and this
 * process end here. NULL is fine. */
OCT_API void oct_job_leave(oct_job *j);

/* The name of this rank's file: in a job, the first "%r" becomes the rank. Returns pattern, or
 * room[n]. j may be NULL. */
OCT_API const char *oct_job_path(const oct_job *j, const char *pattern, char *room, size_t n);

/* ---- sessions -------------------------------------------------------------------------------- */

typedef struct oct_job_session {
    const char
        *model;       /* as given to oct_job_path, for ranks that may have been started elsewhere */
    unsigned layouts; /* that may be chosen, bit k: oct_shard_layout k; the first session settles */
    bool force;       /* although the weights do not fit into memory */
    /* Of every rank's machine, whose GPUs its ranks share; params.gpus is not used. */
    oct_gpu_use gpu;
    bool check; /* the other ranks compare what their files hold with its checksums, see
                   oct_verify; rank 0 has done so */
} oct_job_session;

/* Rank 0: all ranks open the model and make their part of a session. They compare builds, model
 * files and memory; those that do not fit together are listed, line by line, and then no rank has a
 * session and the job is over. The layout is the one predicted to be fastest of those that all have
 * memory for. m: opened from this rank's file; it keeps this rank's part only. */
OCT_API OCT_MUST_CHECK oct_status oct_job_session_new(oct_job *j, oct_model *m,
                                                      const oct_job_session *how,
                                                      const oct_session_params *p,
                                                      oct_session **out, oct_error *err);

/* The layout of the last session. j may be NULL: otherwise. */
OCT_API oct_shard_layout oct_job_layout(const oct_job *j, oct_shard_layout otherwise);

/* The experts that a rank of the last session holds whole; false: it has slices of all of them. */
OCT_API bool oct_job_experts(const oct_job *j, const oct_model *m, int rank, int64_t *first,
                             int64_t *end);

/* ---- speed ----------------------------------------------------------------------------------- */

/* What the ranks could do when the last session was made. Seconds for a sum of n floats over the
 * ranks when nobody is late: latency + n * per_float. */
typedef struct oct_rank_pace {
    double latency, per_float;
    double read; /* bytes per second that the slowest rank reads from memory, all at once */
} oct_rank_pace;
OCT_API const oct_rank_pace *oct_job_pace(const oct_job *j);

/* What this rank has told the others, and what it had told them when the last session was made. j
 * may be NULL. */
OCT_API oct_comm_stats oct_job_stats(const oct_job *j);
OCT_API oct_comm_stats oct_job_stats_before(const oct_job *j);

/* Seconds for a token of one sequence behind `depth` others with the layout of the last session:
 * reading and exchange at its pace, see oct_predict_step. */
OCT_API double oct_job_predict(const oct_job *j, const oct_model *m, int64_t depth, oct_kv_type kv);

/* Where the time of some work went, seconds on this rank: its own computing; its messages, had
 * nobody been late; the rest of what it spent on them, which is waiting for the slowest rank. */
typedef struct oct_rank_time {
    double compute, exchange, wait;
} oct_rank_time;
/* Divides the seconds of work between two looks at the stats. j may be NULL. */
OCT_API oct_rank_time oct_job_divide(const oct_job *j, double seconds, const oct_comm_stats *from,
                                     const oct_comm_stats *to);

/* Rank 0 of several, no session open: sums n floats over the ranks, count times. seconds: [count],
 * of sums that all began together. *one: what each of them added to the stats. OCT_ERR_ARG: n < 1
 * or count < 0; OCT_ERR_COMM: the job has ended. */
OCT_API OCT_MUST_CHECK oct_status oct_job_time_folds(oct_job *j, int64_t n, int64_t count,
                                                     double *seconds, oct_comm_stats *one,
                                                     oct_error *err);

/* ---- where the time of a session went -------------------------------------------------------- */

/* Of text, which was drawn from logits, and of all else. Only the caller that samples knows which
 * of the two an evaluation is: what the next ones count as, on all ranks; at first a prompt. */
typedef enum oct_phase { OCT_PHASE_PROMPT, OCT_PHASE_TEXT, OCT_PHASES } oct_phase;
OCT_API void oct_session_count_as(oct_session *s, oct_phase phase);

typedef struct oct_phase_time {
    int64_t tokens;
    oct_node_time all;    /* what is outside layers too */
    oct_node_time *layer; /* [n_layers]; zero in one process */
} oct_phase_time;
OCT_API const oct_phase_time *oct_session_phases(const oct_session *s); /* [OCT_PHASES] */

/* Rank 0 of several, between evaluations: all[ranks][OCT_PHASES] of the caller receives the seconds
 * that each rank has computed. */
OCT_API OCT_MUST_CHECK oct_status oct_session_gather_compute(oct_session *s, double *all,
                                                             oct_error *err);

#ifdef __cplusplus
}
#endif
#endif
