/* generate.h: the texts of `octet run`: requests to the scheduler, and what it draws for them as
 * valid UTF-8. */
#ifndef OCT_GENERATE_H
#define OCT_GENERATE_H

#include <octet/scheduler.h>
#include <octet/utf8.h>

#include "cli.h"

typedef struct oct_gen_text {
    int32_t *ids; /* [n] prompt and what was drawn */
    int64_t n, room;
    oct_sampler sampler; /* as it is between runs */
    oct_utf8 utf8;
    uint64_t request;
    int64_t n_done; /* tokens of the prompt evaluated; -1: it has not begun */
    bool complete;  /* nothing can follow: the model has ended it, or no position is left */
    oct_end end;    /* of the last run */
} oct_gen_text;

typedef struct oct_gen {
    /* Filled by the caller; borrowed. */
    const oct_model *model;
    oct_session *session;
    int64_t n_texts, n_ctx;
    int64_t step_rows; /* as in oct_scheduler_params */
    int64_t n_max;     /* tokens to generate for each text; -1: as many as fit */
    bool ignore_eos;
    bool printable; /* no control characters in the text: it goes to a terminal */
    /* Valid UTF-8 as it comes; false: nobody listens, stop. */
    bool (*emit)(void *ctx, int64_t i, const char *text, size_t n);
    /* A token of text i was drawn, after what it completes was emitted; as emit. May be NULL. */
    bool (*token)(void *ctx, int64_t i, const oct_event *e);
    int32_t n_top; /* of the likeliest tokens that e has, with log-probabilities; 0: none */
    bool logprob;  /* e has that of the token */
    /* Text i has ended; as emit. May be NULL. */
    bool (*ended)(void *ctx, int64_t i);
    /* Prompt tokens of all texts evaluated so far. May be NULL. */
    void (*progress)(void *ctx, int64_t done, int64_t total);
    void *ctx;

    /* Made by oct_gen_init. */
    oct_scheduler *scheduler;
    oct_gen_text *texts; /* [n_texts] */
    int64_t done, total; /* prompt tokens of the run */
    bool closed;         /* emit or ended returned false */
    oct_status failed;   /* of the first text that failed; the others go on */
    oct_error error;
} oct_gen;

OCT_MUST_CHECK oct_status oct_gen_init(oct_gen *g, oct_error *err);
void oct_gen_free(oct_gen *g); /* also after a failed init; before the session */

/* Adds tokens to a text; nothing is computed yet. */
OCT_MUST_CHECK oct_status oct_gen_append(oct_gen *g, int64_t i, const int32_t *ids, int64_t n,
                                         oct_error *err);
/* Goes on with every text, until each has a reason to stop. Each needs at least one token. On
 * OCT_ERR_CANCELLED nothing is lost: the next run goes on. */
OCT_MUST_CHECK oct_status oct_gen_run(oct_gen *g, oct_error *err);
/* Forgets a text. */
void oct_gen_reset(oct_gen *g, int64_t i);

#endif
