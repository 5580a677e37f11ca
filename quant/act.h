/* act.h: activations as integers of 16 or 8 bits, what weights of any type are multiplied with.
 * Pure, thread-safe.
 *
 * Within a group of a matrix's inputs, blocks of inputs (the last may be shorter) are quantised
 * together: a[i] = round(x[i] / s), s = max|x| / most, f32.
 *     two digits   blocks of 512, most = 32639; a = 256 hi + lo, both int8. 512 is the largest
 *                  power of two whose dot products fit int32: 128 * 32639 * 512 < 2^31
 *     one digit    blocks of 256, most = 127; a = lo */
#ifndef OCT_ACT_H
#define OCT_ACT_H

#include "weight.h"

enum {
    OCT_ACT_BLOCK = 512,    /* activations of two digits that share a scale, at most */
    OCT_ACT_BLOCK_I8 = 256, /* of one digit; divides OCT_ACT_BLOCK */
    OCT_ACT_MAX = 32639,    /* largest activation of two digits: 127 * 256 + 127 */
    OCT_ACT_MAX_I8 = 127,   /* of one */
    OCT_ACT_ALIGN = 64      /* groups of an activation row start at multiples of this */
};

/* How a row of n_in activations is cut for a weight layout. Offsets are in bytes from the row's
 * start; what the digit area holds is the business of the kernel row that wrote it. */
typedef struct oct_act_layout {
    int64_t n_in, n_groups, group_in;
    int digits;           /* 8-bit digits of an activation: 2 or 1 */
    int32_t most;         /* largest integer */
    int64_t block;        /* inputs that share a scale, at most */
    int64_t group_pad;    /* group_in rounded up to OCT_ACT_ALIGN; padding is zero */
    int64_t group_blocks; /* ceil(group_in / block) */
    int64_t n_blocks;     /* n_groups * group_blocks */
    size_t sums_at;       /* int32[2][n_blocks]; scales, f32[n_blocks], are at 0 */
    size_t digits_at;     /* n_groups * group_pad * 2 bytes, 64-byte aligned */
    size_t bytes;         /* of a row, a multiple of 64; also enough for f32[n_in] (the ref row) */
} oct_act_layout;
void oct_act_layout_init(oct_act_layout *a, int64_t n_in, int64_t n_groups, int digits);

/* Plain reference of the activation quantiser: a[n_in] and scale[n_blocks]. Rule: m = max|x| of the
 * block. m == 0 or m < 1e-30: s = 0, a = 0. m is NaN or Inf: s = NaN, a = 0 (so that the outputs
 * are NaN). Else s = m / most and a = rint(x * (most / m)), in f32, rounded to nearest even,
 * clamped to +-most. */
void oct_act_quantise_ref(const oct_act_layout *l, const float *x, int16_t *a, float *scale);

#endif
