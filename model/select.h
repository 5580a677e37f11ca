/* select.h: order statistics of logits without sorting. Pure, thread-safe; nothing is allocated. */
#ifndef OCT_SELECT_H
#define OCT_SELECT_H

#include <stdbool.h>
#include <stdint.h>

enum { OCT_BLOCK = 64, OCT_MAX_BLOCKS = 2048 };

/* x[n] in blocks of size values, 64 or what makes 2048 blocks of it, and the largest of each: what
 * is among the k largest of x is in a block whose largest is among the k largest of those. */
typedef struct oct_blocks {
    const float *x;
    int64_t n, size, n_blocks;
    float max[OCT_MAX_BLOCKS]; /* [n_blocks], -Inf where a block has nothing else */
    float most, least;         /* of all: largest; smallest above -Inf, Inf if there is none */
    bool has_nan;              /* then the rest means nothing */
} oct_blocks;
void oct_blocks_init(oct_blocks *b, const float *x, int64_t n);

/* A value that at least k of x reach, 1 <= k <= n: near the k-th largest if k is far below the
 * number of blocks; -Inf if k is above it. No NaN. */
float oct_blocks_bound(const oct_blocks *b, int64_t k);

/* With v[n] sorted ascending: the first value at which the cumulative weight reaches target, the
 * largest that weighs anything if none does. w[n] >= 0, NULL: each value weighs 1. Values are
 * expected, not required, between lo and hi: these are good if the answer is between them with most
 * of the rest. If they are equal that is the answer. No NaN.
 *
 * By histograms: one of values, then at most four of their bits, each of the bucket that the one
 * before has found. Sums are in double; the order of additions depends on v, so that a cumulative
 * weight within a few units of rounding of target can be taken for either side of it. Counts are
 * exact. */
float oct_weighted_quantile(const float *v, const float *w, int64_t n, float lo, float hi,
                            double target);

#endif
