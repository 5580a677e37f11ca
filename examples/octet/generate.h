/* generate.h: prompts in, text out, for one sequence or several in one batch. */
#ifndef OCT_GENERATE_H
#define OCT_GENERATE_H

#include "cli.h"
#include <octet/utf8.h>

typedef enum oct_gen_stop {
    OCT_GEN_RUNNING,
    OCT_GEN_END,    /* the model ended its text (eos or pad) */
    OCT_GEN_LENGTH, /* as many tokens as were asked for */
    OCT_GEN_CONTEXT /* no position is left */
} oct_gen_stop;

typedef struct oct_gen_seq {
    int32_t *ids; /* the whole sequence; those from oct_session_pos() on are not evaluated yet */
    int64_t n, room;
    int64_t n_generated; /* since the last oct_gen_run began */
    oct_sampler sampler;
    oct_utf8 utf8;
    int64_t row; /* of the logits buffer, while running */
    oct_gen_stop stop;
} oct_gen_seq;

/* Work done and the time it took. */
typedef struct oct_gen_work {
    int64_t tokens;
    uint64_t bytes_read;
    double seconds; /* wall clock, sampling included */
} oct_gen_work;

typedef struct oct_gen {
    /* Filled by the caller; borrowed. */
    const oct_model *model;
    oct_session *session;
    int64_t n_seqs, n_ctx, chunk;
    int64_t n_max; /* tokens to generate for each sequence; -1: as many as fit */
    bool ignore_eos;
    bool printable; /* no control characters in the text: it goes to a terminal */
    /* Valid UTF-8 as it comes; false: nobody listens, stop. */
    bool (*emit)(void *ctx, int64_t seq, const char *text, size_t n);
    /* Prompt tokens evaluated so far, may be NULL. */
    void (*progress)(void *ctx, int64_t done, int64_t total);
    void *ctx;

    /* Made by oct_gen_init. */
    oct_gen_seq *seqs;
    float *logits;  /* [n_seqs][n_vocab] */
    float *scratch; /* [2 n_vocab] */
    int32_t *token, *seq;
    uint8_t *want; /* [max(chunk, n_seqs)] each */
    bool closed;   /* emit returned false */
    oct_gen_work prompt, text;
} oct_gen;

/* Bytes that oct_gen_init will take, for the memory check. */
uint64_t oct_gen_bytes(int64_t n_vocab, int64_t n_seqs, int64_t chunk);
OCT_MUST_CHECK oct_status oct_gen_init(oct_gen *g, oct_error *err);
void oct_gen_free(oct_gen *g); /* also after a failed init; the caller's things stay */

/* Adds tokens to a sequence; nothing is computed yet. */
OCT_MUST_CHECK oct_status oct_gen_append(oct_gen *g, int64_t seq, const int32_t *ids, int64_t n,
                                         oct_error *err);
/* Evaluates what was added and generates until every sequence has a reason to stop. Each sequence
 * needs at least one token that is not evaluated. On OCT_ERR_CANCELLED nothing is lost: the next
 * run goes on. */
OCT_MUST_CHECK oct_status oct_gen_run(oct_gen *g, oct_error *err);
/* Forgets a sequence's text. */
void oct_gen_reset(oct_gen *g, int64_t seq);

#endif
