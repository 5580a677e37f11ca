/* act.c: activations as integers: where a row keeps what, and the plain quantiser. */
#include "act.h"

#include <math.h>

#include "f16.h"

static int64_t round_up(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

void oct_act_layout_init(oct_act_layout *a, int64_t n_in, int64_t n_groups, int digits)
{
    a->n_in = n_in;
    a->n_groups = n_groups;
    a->group_in = n_in / n_groups;
    a->digits = digits;
    a->most = digits == 1 ? OCT_ACT_MAX_I8 : OCT_ACT_MAX;
    a->block = digits == 1 ? OCT_ACT_BLOCK_I8 : OCT_ACT_BLOCK;
    a->group_pad = round_up(a->group_in, OCT_ACT_ALIGN);
    a->group_blocks = (a->group_in + a->block - 1) / a->block;
    a->n_blocks = n_groups * a->group_blocks;
    int64_t sums_at = round_up(a->n_blocks * 4, 64);
    int64_t digits_at = round_up(sums_at + a->n_blocks * 8, 64);
    int64_t fast = digits_at + n_groups * a->group_pad * 2;
    int64_t plain = n_in * 4;
    a->sums_at = (size_t)sums_at;
    a->digits_at = (size_t)digits_at;
    /* An odd number of cache lines: rows side by side then meet in all sets of a cache. */
    a->bytes = (size_t)round_up(fast > plain ? fast : plain, 64) | 64;
}

static float quantise_block(const float *x, int64_t n, float most, int16_t *a)
{
    /* As integers, magnitudes order like the floats, Inf above all numbers and NaN above Inf. */
    uint32_t max_bits = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t magnitude = oct_f32_bits(x[i]) & 0x7fffffffu;
        max_bits = magnitude > max_bits ? magnitude : max_bits;
    }
    float max = oct_f32_of_bits(max_bits);
    if (max_bits >= 0x7f800000u || max < 1e-30f) {
        for (int64_t i = 0; i < n; i++)
            a[i] = 0;
        return max < 1e-30f ? 0.0f : NAN;
    }
    float inverse = most / max;
    for (int64_t i = 0; i < n; i++) {
        float v = rintf(x[i] * inverse);
        v = v > most ? most : v;
        v = v < -most ? -most : v;
        a[i] = (int16_t)v;
    }
    return max / most;
}

void oct_act_quantise_ref(const oct_act_layout *l, const float *x, int16_t *a, float *scale)
{
    for (int64_t g = 0; g < l->n_groups; g++) {
        for (int64_t b = 0; b < l->group_blocks; b++) {
            int64_t first = b * l->block;
            int64_t n = l->group_in - first;
            n = n < l->block ? n : l->block;
            int64_t at = g * l->group_in + first;
            scale[g * l->group_blocks + b] = quantise_block(x + at, n, (float)l->most, a + at);
        }
    }
}
