/* logit_shapes.h: logits of many distributions, for tests of the sampler. */
#ifndef OCT_TEST_LOGIT_SHAPES_H
#define OCT_TEST_LOGIT_SHAPES_H

#include <math.h>
#include <stdint.h>

#include "rig.h"

typedef enum logit_shape {
    SHAPE_ZIPF, /* what a trained model gives: probabilities near 1 / rank, in random order */
    SHAPE_FLAT,
    SHAPE_UNIFORM,
    SHAPE_EQUAL,
    SHAPE_NORMAL,
    SHAPE_SPIKE,
    SHAPE_RISING,
    SHAPE_TIES,     /* few different values, +0 and -0 among them */
    SHAPE_MASKED,   /* most are -Inf */
    SHAPE_EXPONENTS /* of every size, both signs: the worst case of a histogram */
} logit_shape;
enum { SHAPES = SHAPE_EXPONENTS + 1 };
static const char *const logit_shape_name[SHAPES] = {
    "zipf", "flat", "uniform", "equal", "normal", "spike", "rising", "ties", "masked", "exponents"};

static inline float logit_of(logit_shape shape, int64_t i, int64_t n, rig_rng *rng)
{
    float u = rig_uniform(rng);
    switch (shape) {
    case SHAPE_ZIPF: return 14 - 1.1f * logf((float)rig_int(rng, 1, n)) + 0.1f * u;
    case SHAPE_FLAT: return 1 + 1e-3f * u;
    case SHAPE_UNIFORM: return 10 * u;
    case SHAPE_EQUAL: return -1.5f;
    case SHAPE_NORMAL: return 2.5f * rig_normal(rng);
    case SHAPE_SPIKE: return i == n / 3 ? 25 : u;
    case SHAPE_RISING: return 12 * (float)i / (float)n;
    case SHAPE_TIES: return copysignf((float)rig_int(rng, 0, 2), u);
    case SHAPE_MASKED: return i % 7 == 3 ? 4 * u : -INFINITY;
    case SHAPE_EXPONENTS: return copysignf(exp2f(-120 * fabsf(u)), rig_uniform(rng));
    }
    return 0;
}

static inline void logits_fill(logit_shape shape, float *x, int64_t n, rig_rng *rng)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = logit_of(shape, i, n, rng);
}

#endif
