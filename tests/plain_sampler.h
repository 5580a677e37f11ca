/* plain_sampler.h: the sampler of version 0.1.0, which passes over all logits at every step: the
 * yardstick for draws and for speed. */
#ifndef OCT_TEST_PLAIN_SAMPLER_H
#define OCT_TEST_PLAIN_SAMPLER_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels.h"
#include "octet.h"

static inline double plain_uniform(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

/* The index of the largest logit, the lowest on ties; -1 if one is NaN or none is above -Inf. */
static inline int32_t plain_argmax(const float *logits, int64_t n)
{
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(logits[i]))
            return -1;
        if (logits[i] > -INFINITY && (best < 0 || logits[i] > logits[best]))
            best = i;
    }
    return (int32_t)best;
}

static inline void plain_swap(float *x, int64_t i, int64_t j)
{
    float t = x[i];
    x[i] = x[j];
    x[j] = t;
}

/* With the values sorted ascending: the first one at which the cumulative weight reaches target,
 * the largest if none does. Quickselect; reorders v and w. */
static inline float plain_quantile(float *v, float *w, int64_t n, double target)
{
    int64_t lo = 0, hi = n; /* the answer is in [lo, hi) or above all of it */
    double below = 0;       /* weight of what has been cut off underneath */
    float answer = v[0];
    while (lo < hi) {
        float pivot = v[lo + (hi - lo) / 2];
        /* [lo, less) < pivot, [less, i) == pivot, [more, hi) > */
        int64_t less = lo, i = lo, more = hi;
        double sum_less = 0, sum_equal = 0;
        while (i < more) {
            if (v[i] < pivot) {
                sum_less += w[i];
                plain_swap(v, i, less);
                plain_swap(w, i++, less++);
            } else if (v[i] > pivot) {
                plain_swap(v, i, --more);
                plain_swap(w, i, more);
            } else {
                sum_equal += w[i++];
            }
        }
        answer = pivot;
        if (below + sum_less >= target && less > lo) {
            hi = less;
        } else if (below + sum_less + sum_equal >= target) {
            return pivot;
        } else {
            below += sum_less + sum_equal;
            lo = more;
        }
    }
    return answer;
}

static inline float plain_top_k(const float *logits, int64_t n, int32_t k, float *scratch)
{
    memcpy(scratch, logits, (size_t)n * sizeof *scratch);
    for (int64_t i = 0; i < n; i++)
        scratch[n + i] = 1.0f;
    return plain_quantile(scratch, scratch + n, n, (double)(n - k + 1));
}

static inline float plain_top_p(const oct_sampler *s, const float *logits, int64_t n, float max,
                                float least, float *scratch)
{
    int64_t kept = 0;
    double total = 0;
    for (int64_t i = 0; i < n; i++)
        if (logits[i] >= least)
            scratch[kept++] = logits[i];
    float *w = scratch + n;
    for (int64_t i = 0; i < kept; i++)
        total += w[i] = oct_expf((scratch[i] - max) / s->temperature);
    double p = s->top_p > 0 ? s->top_p : 0;
    return plain_quantile(scratch, w, kept, (1 - p) * total);
}

/* oct_sample of then: temperature, top_k, top_p, rng. */
static inline int32_t plain_sample(oct_sampler *s, const float *logits, int64_t n, float *scratch)
{
    int32_t best = plain_argmax(logits, n);
    if (best < 0 || !(s->temperature > 0))
        return best;
    float max = logits[best], least = -INFINITY;
    if (!isfinite(max))
        return -1;
    if (s->top_k > 0 && s->top_k < n)
        least = plain_top_k(logits, n, s->top_k, scratch);
    if (s->top_p < 1)
        least = plain_top_p(s, logits, n, max, least, scratch);
    double total = 0;
    for (int64_t i = 0; i < n; i++) {
        scratch[i] = logits[i] >= least ? oct_expf((logits[i] - max) / s->temperature) : 0.0f;
        total += scratch[i];
    }
    double left = plain_uniform(&s->rng) * total;
    int32_t drawn = best;
    for (int64_t i = 0; i < n; i++) {
        if (scratch[i] == 0)
            continue;
        drawn = (int32_t)i;
        left -= scratch[i];
        if (left < 0)
            break;
    }
    return drawn;
}

static inline double plain_logprob(const float *logits, int64_t n, int32_t id)
{
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int64_t i = 0; i < n; i++)
        sum += exp(logits[i] - max);
    return logits[id] - max - log(sum);
}

#endif
