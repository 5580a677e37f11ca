/* scheduler.h: many requests over one session. Requests come and go at any time; each step is one
 * batch that holds a token of every text that is being generated and, in the rows that are left,
 * pieces of prompts.
 *
 *     submit, submit, ...          any thread
 *     step until nothing is left   the session's thread; events come while it runs
 *     cancel                       any thread
 *
 * A text depends on its request alone: not on what else runs, on when it was submitted, nor on
 * whether memory ran out in the middle of it. */
#ifndef OCT_SCHEDULER_H
#define OCT_SCHEDULER_H

#include "octet.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oct_scheduler oct_scheduler;

/* ---- events --------------------------------------------------------------------------------- */

typedef enum oct_event_kind {
    OCT_EVENT_PROGRESS, /* of a prompt: when it begins and after each of its pieces */
    OCT_EVENT_SCORE,    /* a token of a prompt has its probability: each but the first, in order */
    OCT_EVENT_TOKEN,    /* one was drawn */
    OCT_EVENT_END       /* exactly one for each text of a request, after which it is forgotten */
} oct_event_kind;

typedef enum oct_end {
    OCT_END_EOS,       /* the model ended its text (eos or pad) */
    OCT_END_LENGTH,    /* as many tokens as were asked for */
    OCT_END_CONTEXT,   /* no position is left */
    OCT_END_CANCELLED, /* by oct_scheduler_cancel */
    OCT_END_ERROR
} oct_end;

/* What it points to is valid during the call. */
typedef struct oct_event {
    oct_event_kind kind;
    uint64_t request; /* its id */
    void *user;       /* of the request */
    int32_t index;    /* of the text, 0..n-1 */
    /* All kinds: tokens of the prompt, those of them that were there already, tokens drawn. */
    int64_t n_prompt, n_cached, n_generated;
    /* PROGRESS */
    int64_t n_done; /* of n_prompt: evaluated or there already */
    /* TOKEN, SCORE */
    int32_t token;
    const char *bytes; /* what it adds to the text, see oct_token_bytes; NULL without tokenizer */
    size_t n_bytes;
    double logprob;               /* of a TOKEN, if the request wants it */
    const oct_token_logprob *top; /* [n_top] see oct_top_logprobs */
    int64_t n_top;
    /* END */
    oct_end end;
    const oct_error *error; /* NULL unless OCT_END_ERROR */
    uint64_t rng;           /* state of the sampler: a request that goes on starts with it */
} oct_event;

/* ---- requests ------------------------------------------------------------------------------- */

enum { OCT_TOP_MAX = 64 };

typedef struct oct_request {
    const int32_t *ids; /* [n_ids] the prompt, at least one token; copied */
    int64_t n_ids;
    int64_t n_max;       /* tokens to draw for each text; -1: as many as fit; 0: only evaluate */
    oct_sampler sampler; /* its bias is copied; its history is the text, from the first token drawn
                            on, or all of it: */
    bool penalise_prompt;
    bool ignore_eos; /* never draw eos or pad */
    int32_t n;       /* texts, drawn from one evaluation of the prompt, the k-th (from 0) with
                        sampler.rng + k; 0: 1 */
    int32_t n_top;   /* TOKEN has so many of the likeliest, at most OCT_TOP_MAX */
    bool logprob;    /* TOKEN has ln p of the token under the model, whatever it is drawn with */
    bool prompt_logprobs; /* SCORE of the prompt, which is evaluated from its first token on,
                             whatever is there already */
    bool keep; /* what was evaluated stays in its sequence until memory is wanted: a request
                        whose prompt is this whole text and more goes on there */
    void *user;
} oct_request;

/* ---- the scheduler -------------------------------------------------------------------------- */

enum { OCT_STEP_ROWS = 64 }; /* where nothing is known of the machine */

typedef struct oct_scheduler_params {
    int64_t max_running; /* texts generated at once; 0: the session's n_seqs */
    int64_t max_waiting; /* requests that wait; 0: any number */
    /* Tokens of a step while texts are generated, those of prompts included: how long a prompt
     * delays them. 0: at most as many as the machine computes while it reads the weights, see
     * oct_step_rows, and as many as the steps that were timed allow, see oct_step_rows_next;
     * OCT_STEP_ROWS if a rate is 0. While none is generated, a step is a chunk. */
    int64_t step_rows;
    double read_rate; /* bytes per second that the session's threads read from memory */
    double op_rate;   /* integer multiplications and additions per second with its activations: half
                         the instruction's rate where they have 16 bits */
    void (*event)(void *ctx, const oct_event *e); /* inside step; may submit and cancel */
    void *ctx;
} oct_scheduler_params;

/* The session is borrowed: its sequences belong to the scheduler until it is freed, which empties
 * them. */
OCT_API OCT_MUST_CHECK oct_status oct_scheduler_new(oct_session *s, const oct_scheduler_params *p,
                                                    oct_scheduler **out, oct_error *err);
OCT_API void oct_scheduler_free(oct_scheduler *s); /* NULL is fine; no more events */

/* Bytes that oct_scheduler_new takes at most for a session of a vocabulary and chunks. Pure. */
OCT_API uint64_t oct_scheduler_bytes(int64_t n_vocab, int64_t max_running, int64_t chunk);

/* Adds a request; *id (from 1) names it in events. OCT_ERR_ARG: it can never be done;
 * OCT_ERR_FULL: max_waiting wait already. Any thread. */
OCT_API OCT_MUST_CHECK oct_status oct_scheduler_submit(oct_scheduler *s, const oct_request *r,
                                                       uint64_t *id, oct_error *err);

/* Ends a request within one step, wherever it is. An id that has ended is fine. Any thread. */
OCT_API void oct_scheduler_cancel(oct_scheduler *s, uint64_t id);
/* Ends one text of a request; before the prompt is evaluated, that with index 0 ends all. */
OCT_API void oct_scheduler_cancel_text(oct_scheduler *s, uint64_t id, int32_t index);

/* One batch, or less if there is nothing to do. OCT_ERR_CANCELLED: the session's cancel flag was
 * raised; nothing is lost, the next step goes on. A request that fails alone ends with
 * OCT_END_ERROR and does not fail the step; any other status fails all requests, each with its END.
 * One thread at a time, never from inside an event. */
OCT_API OCT_MUST_CHECK oct_status oct_scheduler_step(oct_scheduler *s, oct_error *err);

/* Requests that have not ended. Any thread. */
OCT_API int64_t oct_scheduler_pending(oct_scheduler *s);

/* Rows of a step that compute for as long as reading takes: bytes read by a pass over the weights,
 * operations per row. Pure; at least 1. */
OCT_API int64_t oct_step_rows(double bytes, double ops_per_row, double read_rate, double op_rate);

/* Rows of the next step after one of `rows` that took so many passes (its time by that of reading
 * the weights): fewer after more than 1.5, more after less than 1.25, so that a text waits for its
 * next token for less than 2. Between most / 8 and most, at least 1. Pure. */
OCT_API int64_t oct_step_rows_next(int64_t rows, int64_t most, double passes);

/* Work of one kind. A step that has both counts by rows. */
typedef struct oct_work {
    int64_t tokens; /* evaluated */
    uint64_t bytes_read;
    double seconds; /* wall clock of the steps, drawing and events included */
} oct_work;

typedef struct oct_scheduler_stats {
    oct_work prompt, text; /* prompt: what had to be evaluated again, too */
    int64_t n_waiting;     /* requests */
    int64_t n_running;     /* texts that have a sequence */
    int64_t n_cached;      /* tokens of prompts that were there already */
    int64_t n_evicted;     /* times a text lost its memory to an older one */
    int64_t n_steps;
    int64_t n_ended[OCT_END_ERROR + 1]; /* texts */
} oct_scheduler_stats;
/* The thread that steps. */
OCT_API void oct_scheduler_get_stats(oct_scheduler *s, oct_scheduler_stats *st);

#ifdef __cplusplus
}
#endif
#endif
