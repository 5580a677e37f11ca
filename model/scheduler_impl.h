/* scheduler_impl.h: texts on their way through the scheduler: a queue, a sequence of the session,
 * an end. */
#ifndef OCT_SCHEDULER_IMPL_H
#define OCT_SCHEDULER_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "sampler.h"
#include "scheduler.h"
#include "session_impl.h"

typedef enum oct_text_state {
    OCT_TEXT_SIBLING, /* waits until the first text of its request has evaluated the prompt */
    OCT_TEXT_QUEUED,
    OCT_TEXT_PROMPT, /* has a sequence; tokens are left to evaluate before one is drawn */
    OCT_TEXT_DRAWN   /* the last token was drawn and is not evaluated yet */
} oct_text_state;

typedef struct oct_text_request oct_text_request;
typedef struct oct_text {
    oct_text_request *of;
    struct oct_text *next; /* in the queue */
    int32_t *ids;          /* [n] prompt, then what was drawn; room for all that can come */
    int64_t n, n_held;     /* the first n_held are in the sequence */
    int64_t n_generated, n_cached;
    int64_t n_scored; /* positions of the prompt whose next token has been scored */
    atomic_bool cancelled;
    int64_t n_told; /* of the prompt, in the last PROGRESS; -1: none */
    oct_sampler sampler;
    oct_text_state state;
    int32_t index, seq; /* seq: while it runs */
    /* of the step */
    int64_t first, n_rows; /* rows of the batch */
    int64_t row;           /* of the logits, -1: none */
    int64_t first_out;     /* of the logits: those of the n_scores rows, then row */
    int64_t n_scores;
    int64_t draw; /* -1: none */
} oct_text;

struct oct_text_request {
    oct_text_request *next;
    uint64_t id;
    void *user;
    int64_t n_prompt, n_max;
    bool penalise_prompt, logprob, prompt_logprobs, keep;
    int32_t n_top;
    oct_logit_bias *bias;
    atomic_bool cancelled;
    bool started; /* was given a sequence once */
    int32_t n, n_left;
    oct_text texts[];
};

/* A sequence of the session. kept: what it holds of a text that ended. */
typedef struct oct_text_slot {
    bool used;
    int32_t *kept;
    int64_t n_kept;
    uint64_t since;
} oct_text_slot;

struct oct_scheduler {
    oct_session *session;
    oct_scheduler_params p;
    int64_t n_vocab, n_ctx;
    int32_t eos, pad;
    /* Under lock: all requests in order of age, those not yet seen by a step, counts. */
    pthread_mutex_t lock;
    oct_text_request *requests, *last, *fresh;
    uint64_t last_id;
    int64_t n_pending, n_waiting;
    atomic_bool any_cancelled;
    /* The stepping thread's. */
    oct_text *queue, *queue_end;
    oct_text **running; /* [max_running] */
    int64_t n_running;
    oct_text_slot *slots; /* [max_running] */
    uint64_t n_kept_ever;
    bool hold;              /* memory ran out: no text gets a sequence until one ends */
    int64_t max_scores;     /* rows of a step that are scored */
    int64_t score_left;     /* of this one */
    float *logits;          /* [max_scores + max_running][n_vocab] */
    float *scratch;         /* [2 n_vocab] of each thread that draws */
    int64_t max_draws;      /* the larger of max_running and max_scores */
    oct_draw *draws;        /* [max_draws], of the texts whose draw they are */
    oct_token_logprob *top; /* [max_draws][OCT_TOP_MAX] */
    int32_t *token, *seq;
    uint8_t *want; /* [batch_rows()] each */
    oct_batch batch;
    int64_t n_text_rows;    /* of the batch, in front */
    int64_t most_step_rows; /* p.step_rows follows the clock up to here, where */
    double pass_seconds;    /* is not 0: that of reading the weights */
    oct_scheduler_stats stats;
};

static inline bool oct_text_cancelled(const oct_text *t)
{
    return atomic_load(&t->of->cancelled) || atomic_load(&t->cancelled);
}

/* Both lists are ordered by age, so that the oldest text is first to run and last to lose its
 * memory. Functions that send events may free the text. */

void oct_text_enqueue(oct_scheduler *s, oct_text *t);
/* Gives sequences to texts of the queue as long as there are any. */
void oct_text_admit(oct_scheduler *s);
/* The prompt of a request's first text is evaluated: the others begin here, or wait. */
void oct_text_fork(oct_scheduler *s, oct_text *first);
/* The session has no memory for what runs: takes some from whom it hurts least. */
void oct_text_make_room(oct_scheduler *s, const oct_error *full);
void oct_text_end(oct_scheduler *s, oct_text *t, oct_end why, const oct_error *error);
void oct_text_end_all(oct_scheduler *s, const oct_error *error);
void oct_text_tell_progress(const oct_scheduler *s, oct_text *t);
/* kind: TOKEN or SCORE. */
void oct_text_tell_token(oct_scheduler *s, const oct_text *t, oct_event_kind kind,
                         const oct_draw *d);
/* Positions of the prompt that have to be scored. */
static inline int64_t oct_text_to_score(const oct_text *t)
{
    return t->of->prompt_logprobs && t->index == 0 ? t->of->n_prompt - 1 : 0;
}
/* Forgets what the sequence was kept for. */
void oct_text_empty_slot(oct_scheduler *s, int32_t seq);
void oct_text_free_request(oct_text_request *r);

#endif
