/* session_impl.h: a session as session.c makes it and eval.c uses it. */
#ifndef OCT_SESSION_IMPL_H
#define OCT_SESSION_IMPL_H

#include "job.h"
#include "model_impl.h"
#include "plan.h"
#include "threads.h"

struct oct_session {
    const oct_model *model;
    oct_backend *backend;
    oct_graph graph;
    oct_plan plan;
    oct_kv_cache kv;
    oct_attn_shape attn;
    float *rope; /* cos [n_ctx][P/2], then sin */
    int64_t n_seqs, n_ctx, chunk;
    int64_t *len; /* [n_seqs] positions held */
    int32_t *row; /* [4][chunk]: token, seq, pos, out_row */
    oct_comm *comm;
    oct_status comm_status; /* of orders that cannot report: the next oct_eval does */
    bool ready;             /* complete: the other ranks await orders */
    const volatile int *cancel;
    oct_session_stats stats;
    uint64_t *expert_rows;            /* [n_experts] */
    oct_phase_time phase[OCT_PHASES]; /* kept only if there are several ranks */
    oct_phase counts_as;              /* what is evaluated now */
    uint64_t *route_hash;             /* [1 + ranks][n_layers]: of a chunk; this rank's, then all */
};

/* The session's threads, between evaluations. */
oct_team *oct_measure_team(const oct_session *s);

/* On rank 0 of several: the other ranks do the same (end: stop serving). */
void oct_eval_truncate(oct_session *s, int32_t seq, int64_t n);
void oct_eval_end(oct_session *s);

#endif
