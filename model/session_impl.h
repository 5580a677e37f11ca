/* session_impl.h: a session as session.c makes it and eval.c uses it. */
#ifndef OCT_SESSION_IMPL_H
#define OCT_SESSION_IMPL_H

#include "job.h"
#include "model_impl.h"
#include "runner.h"
#include "session_plan.h"
#include "threads.h"

struct oct_session {
    const oct_model *model;
    const oct_placement *placement;
    oct_session_plan p;
    oct_runner runner;
    oct_kv_pages pages;
    oct_kv_cache kv[OCT_MAX_PLACES];
    float *rope;                  /* what p.rope is */
    int32_t *pos;                 /* [chunk] */
    struct oct_rank_order *order; /* with room for the rows of a chunk */
    oct_comm *comm;
    oct_status comm_status;       /* of orders that cannot report: the next oct_eval does */
    bool ready;                   /* complete: the other ranks await orders */
    int failed;                   /* the place that could not be had while the session was made */
    char gpu_why[OCT_ERROR_TEXT]; /* see oct_session_get_gpus */
    pid_t process;                /* that made it and has its threads */
    bool uses;                    /* the model knows of it */
    const volatile int *cancel;
    const oct_tap *tap; /* NULL, or who looks on */
    oct_session_stats stats;
    uint64_t *expert_rows;            /* [n_experts] */
    oct_phase_time phase[OCT_PHASES]; /* kept only if there are several ranks */
    oct_phase counts_as;              /* what is evaluated now */
    uint64_t *route_hash;             /* [1 + ranks][n_layers + 1]: of a chunk; this rank's, then
                                         all */
};

/* The session's threads, between evaluations. */
oct_team *oct_session_team(const oct_session *s);

/* As oct_session_new, with devices beside the CPU; d is read here, not kept. */
OCT_MUST_CHECK oct_status oct_session_new_on(const oct_model *m, const oct_session_params *p,
                                             const oct_devices *d, oct_session **out,
                                             oct_error *err);

/* What rank 0 tells the others to do. */
enum {
    OCT_ORDER_EVAL = 1, /* and those after it: one for each oct_phase */
    OCT_ORDER_TRUNCATE = OCT_ORDER_EVAL + OCT_PHASES,
    OCT_ORDER_FORK,
    OCT_ORDER_REUSE,
    OCT_ORDER_SAVE,
    OCT_ORDER_RESTORE,
    OCT_ORDER_REPORT,
    OCT_ORDER_END
};

/* An order and all that belongs to it are one message. */
typedef struct oct_rank_order {
    /* EVAL: tokens, logits wanted; TRUNCATE: sequence, length; FORK: from, to; REUSE: sequence,
     * positions; SAVE: milliseconds; RESTORE: nothing */
    int64_t what, a, b;
    int32_t rows[]; /* EVAL: token[a], seq[a], out_row[b]; REUSE: ids[b]; SAVE, RESTORE: the folder,
                       with its NUL */
} oct_rank_order;

/* Numbers of an order EVAL, and bytes of one with so many. */
static inline int64_t oct_order_eval_rows(int64_t n_rows, int64_t n_out)
{
    return 2 * n_rows + n_out;
}

static inline size_t oct_order_bytes(int64_t n)
{
    return sizeof(oct_rank_order) + (size_t)n * sizeof(int32_t);
}

/* What every rank shows to all behind a chunk: see route_hash. */
static inline size_t oct_routes_bytes(const oct_model *m)
{
    return (size_t)(m->config.n_layers + 1) * sizeof(uint64_t);
}

/* Numbers of the largest order. */
static inline int64_t oct_order_rows(const oct_session *s)
{
    const int64_t eval = oct_order_eval_rows(s->p.chunk, s->p.chunk);
    return eval > s->p.n_ctx ? eval : s->p.n_ctx;
}

/* On rank 0: tells the others what s->order->rows has n_rows numbers of; does nothing if it is the
 * only one. */
OCT_MUST_CHECK oct_status oct_eval_order(oct_session *s, int64_t what, int64_t a, int64_t b,
                                         int64_t n_rows, oct_error *err);
void oct_eval_end(oct_session *s); /* the other ranks stop serving */

/* On other ranks: TRUNCATE, FORK and REUSE in s->order, which came with n_rows numbers; other
 * orders are nothing to it. */
OCT_MUST_CHECK oct_status oct_session_obey_kv(oct_session *s, int64_t n_rows, oct_error *err);
/* SAVE and RESTORE. */
OCT_MUST_CHECK oct_status oct_session_obey_saving(oct_session *s, int64_t n_rows, oct_error *err);

#endif
