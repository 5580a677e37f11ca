/* q8_recover.h: int8 weights and bf16 scales found again in the bf16 numbers that were made of them.
 * Pure functions; nothing here allocates or keeps state, so everything is thread-safe.
 *
 * A group of n weights that share a scale s was written as w[i] = bf16(q[i] s): the product of an
 * integer of 8 bits and a number of 8 bits is exact in f32 and rounded to nearest even once.
 *
 * 1. If s is known, q is: rounding moves a product by at most half a unit of its last place, which
 *    is at most 2^-8 of it, so |w / s - q| <= |q| / 256 <= 127 / 256 for |q| < 128; 128 s is exact.
 *    The nearest integer to w / s is therefore q, with 1/256 to spare, which is far more than f32's
 *    quotient errs; and no two q give the same w. Whether s is right for a weight is decided by
 *    multiplying back: bf16(q s) must be w, bit for bit.
 * 2. Which s are possible? Let lo and hi be the smallest and largest |w| that are not zero. lo =
 *    bf16(k s) for some k in 1..128, so s lies within 2^-8 of lo / k: at most two units of its last
 *    place from bf16(lo / k). And hi = bf16(Q s) with Q <= 128, so s >= hi / 128.5, so k <= 128.5
 *    lo / hi (1 + 2^-7). Few k are left, one where a weight of +-1 and one of +-127 meet: then lo is
 *    s. Each candidate is tried on all weights; those that pass are all the scales there are.
 * 3. One: unique. If nothing but bf16 was lost, it is the original. Several (all q even: s and 2 s):
 *    each gives the file's numbers; the one whose largest integer is 127 is taken, since scales are
 *    max|w| / 127, else the one that uses the range best. None: the group was not made so, or it is
 *    damaged: if a candidate from the next smallest and largest weights explains all but one in 256,
 *    it is taken, those few are named and rounded; else the group is quantised.
 *
 * Zeros: +0 is q = 0 with any s; -0 is no product of a positive scale. A group of zeros tells no
 * scale; it gets 0. Subnormal numbers round otherwise, and their groups are quantised. */
#ifndef OCT_Q8_RECOVER_H
#define OCT_Q8_RECOVER_H

#include <stdbool.h>
#include <stdint.h>

typedef enum oct_recovered {
    OCT_RECOVERED_UNIQUE,     /* every weight is q s, and no other scale does it */
    OCT_RECOVERED_SEVERAL,    /* every weight is q s, but other scales do it too */
    OCT_RECOVERED_ZERO,       /* all weights are +0; the scale is 0 */
    OCT_RECOVERED_ODD,        /* all but a few are q s */
    OCT_RECOVERED_NOT,        /* the scale is that of quantising: max|w| / 127, rounded up */
    OCT_RECOVERED_NOT_FINITE, /* a weight is NaN or infinite: no scale */
    OCT_RECOVERED_KINDS
} oct_recovered;

/* Finds the scale of w[n] (bf16 bits, n >= 1). *scale: bf16 bits, positive, or 0 if w is all zero.
 * q[n] = w / scale as oct_q8_of_bf16 makes it, unless a number is not finite. Two passes over w
 * where the scale is unique. */
oct_recovered oct_q8_recover(const uint16_t *w, int64_t n, uint16_t *scale, int8_t *q);

/* q[n] = w / scale, rounded to nearest and kept within -128..127 (-127..127 where the product is not
 * w). Returns how many weights are not bf16(q scale); *first (may be NULL): the first of them, n if
 * there is none. Weights must be finite. */
int64_t oct_q8_of_bf16(const uint16_t *w, int64_t n, uint16_t scale, int8_t *q, int64_t *first);

#endif
