/* any_values.h: numbers for tests that call with any values: those that make sense, their
 * neighbours, and the ends of their types. One test program each, its own state. */
#ifndef OCT_TEST_ANY_VALUES_H
#define OCT_TEST_ANY_VALUES_H

#include <float.h>
#include <math.h>
#include <stdint.h>

static uint64_t rng;

static inline uint64_t any(void)
{
    uint64_t z = rng += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline int64_t below(int64_t n)
{
    return (int64_t)(any() % (uint64_t)n);
}

/* Mostly lo..hi, else near them, or an end of some type. */
static inline int64_t number(int64_t lo, int64_t hi)
{
    static const int64_t ends[] = {INT64_MIN,
                                   INT64_MIN + 1,
                                   INT64_MAX,
                                   INT64_MAX - 1,
                                   INT32_MIN,
                                   INT32_MAX,
                                   UINT32_MAX,
                                   -1,
                                   0,
                                   1,
                                   77,
                                   1 << 20,
                                   (int64_t)1 << 40};
    switch (below(8)) {
    case 0: return ends[below(sizeof ends / sizeof *ends)];
    case 1: return lo - 1 - below(3);
    case 2: return hi + 1 + below(3);
    default: return lo + below(hi - lo + 1);
    }
}

static inline float real(void)
{
    static const float odd[] = {0,   -0.0f,   1,      -1,     INFINITY, -INFINITY,
                                NAN, FLT_MAX, -1e30f, 1e-40f, 0.5f,     2};
    return below(3) ? (float)below(1000) / 250 : odd[below(sizeof odd / sizeof *odd)];
}

#endif
