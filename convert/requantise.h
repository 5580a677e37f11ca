/* requantise.h: one expert of a matrix, from one weight type into another; inside convert/. */
#ifndef OCT_REQUANTISE_H
#define OCT_REQUANTISE_H

#include "moments.h"
#include "q4.h"
#include "threads.h"

/* The feedback of one block of inputs, from its second moments H (see requantise.c): u[n][n], the
 * upper triangle, of which the diagonal is positive. */
typedef struct oct_feedback {
    const float *u; /* [blocks][256][256], rows of a shorter last block as long as it is */
    int64_t n_in;
} oct_feedback;

/* Makes the feedback of an expert's matrix on all threads; floats for u are the caller's, as many
 * as oct_feedback_floats says. *good: false if the moments are of no use (not finite). Returns
 * false without memory. */
size_t oct_feedback_floats(int64_t n_in);
bool oct_feedback_make(oct_team *team, const oct_moments *m, int64_t layer, int64_t expert,
                       int which, float *u, bool *good);

/* Error of what was stored, in order of panels so that it does not depend on threads. */
typedef struct oct_requantise_error {
    double sum_sq_err, sum_sq_ref, largest;
} oct_requantise_error;

/* All slices of one expert: from its units of layout from, at weights and scales, to units of
 * layout to (the same shape, another type) at out, which is zero. feedback may be NULL. Calls
 * cancel's readers often; returns false if no memory was left. */
bool oct_requantise(oct_team *team, const oct_weight *from, int64_t expert,
                    const oct_weight_layout *to, const oct_q4_chooser *chooser,
                    const oct_feedback *feedback, const volatile int *cancel, uint8_t *out,
                    oct_requantise_error *error);

#endif
