/* sampler.h: draws for several sequences together, with what is to be known of them. */
#ifndef OCT_SAMPLER_H
#define OCT_SAMPLER_H

#include <stdint.h>

#include "octet.h"
#include "threads.h"

typedef struct oct_draw {
    oct_sampler *sampler; /* no two draws may share one; NULL: id is given, and only told about */
    const float *logits;  /* [n_vocab] */
    int64_t n_top;        /* of the likeliest tokens to be told, 0: none */
    bool wants_logprob;
    /* Results, as oct_sample, oct_logprob and oct_top_logprobs return them. top is the caller's,
     * [n_top]. */
    int32_t id;
    double logprob;
    oct_token_logprob *top;
    int64_t n_found;
} oct_draw;

/* Fills the results of n_draws, which the team's threads divide among them: those of a draw are the
 * same as alone. scratch: f32[2 n_vocab] of the caller for every draw, or every thread of the team
 * if these are fewer. */
void oct_sample_many(oct_team *t, oct_draw *draws, int64_t n_draws, int64_t n_vocab,
                     float *scratch);

#endif
