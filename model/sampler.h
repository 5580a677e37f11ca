/* sampler.h: draws for several sequences together. */
#ifndef OCT_SAMPLER_H
#define OCT_SAMPLER_H

#include <stdint.h>

#include "octet.h"
#include "threads.h"

typedef struct oct_draw {
    oct_sampler *sampler; /* no two draws may share one */
    const float *logits;  /* [n_vocab] */
    int32_t id;           /* result, as oct_sample returns it */
} oct_draw;

/* oct_sample for each of n_draws, which the team's threads divide among them: a draw has the same
 * result as alone. scratch: f32[threads of the team][2 n_vocab] of the caller. */
void oct_sample_many(oct_team *t, oct_draw *draws, int64_t n_draws, int64_t n_vocab,
                     float *scratch);

#endif
