/* moments.h: second moments of inputs, inside convert/. */
#ifndef OCT_MOMENTS_H
#define OCT_MOMENTS_H

#include "quantize.h"

enum { OCT_MOMENT_BLOCK = 256 }; /* inputs; the last block of a matrix may be shorter */

/* The sums of one block: the rows of its lower triangle one after the other, 1, 2 ... n numbers.
 * which 0: of the input of gate and up, 1: of down; block: its first input / 256. */
const float *oct_moments_block(const oct_moments *m, int64_t layer, int64_t expert, int which,
                               int64_t block);
/* Inputs of a matrix. */
int64_t oct_moments_inputs(const oct_moments *m, int which);

/* Tokens of a window of a text; an error if the model's context is shorter. */
OCT_MUST_CHECK oct_status oct_text_window(const oct_model *m, const oct_text_params *p,
                                          int64_t *window, oct_error *err);

#endif
