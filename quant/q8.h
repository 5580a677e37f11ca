/* q8.h: the weight type "int8 as it is", and making int8 from floats. Pure functions; nothing here
 * allocates or keeps state, so everything is thread-safe.
 *
 * A panel (weight.h) is
 *
 *     for each group of the unit: ceil(group_in / 4) quads of 256 bytes
 *     quad = 64 channels x 4 consecutive inputs, one byte each: q XOR 0x80 ("excess 128")
 *
 * Inputs missing in the last quad of a group, and channels missing in the last panel, hold 0x80
 * (weight zero). The same bytes serve GEMV (sequential stream, no horizontal sums), VNNI and AMX
 * GEMM (a quad row is a B-tile row) and the GPU (4 inputs in a 32-bit word). */
#ifndef OCT_Q8_H
#define OCT_Q8_H

#include "weight.h"

enum { OCT_Q8_QUAD_BYTES = OCT_PANEL * OCT_QUAD };

/* A unit of zeros; and in such a unit all integers q[unit_groups * group_in] of one lane. */
void oct_q8_clear(const oct_weight_layout *l, uint8_t *weights);
void oct_q8_put(const oct_weight_layout *l, uint8_t *weights, int64_t panel, int lane,
                const int8_t *q);

/* Symmetric quantisation of w[n_in][n_out] (f32, row stride n_out) in n_groups groups of inputs:
 * scale = bf16(max|w| / 127) rounded so that no integer leaves -127..127, q = round(w / scale).
 * q[n_in][n_out], scales[n_groups][n_out] (bf16 bits). NaN or Inf: returns false, and the outputs
 * are undefined. */
bool oct_q8_quantise(const float *w, int64_t n_in, int64_t n_out, int64_t n_groups, int8_t *q,
                     uint16_t *scales);

/* w[n_in][n_out] = q * scale in f32. */
void oct_q8_dequantise(const int8_t *q, const uint16_t *scales, int64_t n_in, int64_t n_out,
                       int64_t n_groups, float *w);

/* Error of an approximation, accumulated over any number of calls; start from zero. */
typedef struct oct_q8_error {
    double sum_sq_err, sum_sq_ref, max_abs;
    int64_t n;
} oct_q8_error;
void oct_q8_error_add(oct_q8_error *e, const float *ref, const float *approx, int64_t n);
double oct_q8_error_rel(const oct_q8_error *e); /* sqrt(sum_sq_err / sum_sq_ref), 0 if both are 0 */

#endif
