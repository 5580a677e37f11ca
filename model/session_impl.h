/* session_impl.h: a session as session.c makes it and eval.c uses it. */
#ifndef OCT_SESSION_IMPL_H
#define OCT_SESSION_IMPL_H

#include "model_impl.h"
#include "plan.h"

struct oct_session {
    const oct_model *model;
    oct_backend *backend;
    oct_graph graph;
    oct_plan plan;
    oct_kv_cache kv;
    oct_attn_shape attn;
    float *rope; /* cos [n_ctx][P/2], then sin */
    int64_t n_seqs, n_ctx, chunk;
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

/* What rank 0 tells the others to do. */
enum {
    OCT_ORDER_EVAL = 1, /* and those after it: one for each oct_phase */
    OCT_ORDER_TRUNCATE = OCT_ORDER_EVAL + OCT_PHASES,
    OCT_ORDER_FORK,
    OCT_ORDER_REUSE,
    OCT_ORDER_REPORT,
    OCT_ORDER_END
};

typedef struct oct_order {
    /* EVAL: tokens, logits wanted; TRUNCATE: sequence, length; FORK: from, to; REUSE: sequence,
     * positions, then a message with their ids */
    int64_t what, a, b;
} oct_order;

/* On rank 0; does nothing if it is the only one. */
OCT_MUST_CHECK oct_status oct_eval_order(oct_session *s, int64_t what, int64_t a, int64_t b,
                                         oct_error *err);
void oct_eval_end(oct_session *s); /* the other ranks stop serving */

/* On other ranks: TRUNCATE, FORK and REUSE; other orders are nothing to it. */
OCT_MUST_CHECK oct_status oct_session_obey_kv(oct_session *s, const oct_order *o, oct_error *err);

#endif
