/* q8_metrics.c: quantising f32 weights, dequantising, and how much was lost. */
#include <math.h>

#include "f16.h"
#include "q8.h"

/* Columns handled together: their maxima and scales stay on the stack while rows stream by. */
enum { COLUMNS = 256, Q_MAX = 127 };

/* bf16 next to max / 127, moved up where an integer would leave -127..127: that happens to
 * subnormal scales only, since elsewhere rounding moves 127 by less than a quarter. */
static uint16_t scale_for(float max)
{
    uint16_t bits = oct_bf16_of_f32(max / (float)Q_MAX);
    while (max > 0.0f && !(max / oct_f32_of_bf16(bits) < (float)Q_MAX + 0.5f))
        bits++;
    return bits;
}

/* Largest magnitude of each column of rows [0, n_in); false if one is NaN or Inf. */
static bool column_max(const float *w, int64_t n_in, int64_t ld, int64_t n, uint32_t *max_bits)
{
    for (int64_t j = 0; j < n; j++)
        max_bits[j] = 0;
    for (int64_t i = 0; i < n_in; i++) {
        const float *row = w + i * ld;
        for (int64_t j = 0; j < n; j++) {
            uint32_t magnitude = oct_f32_bits(row[j]) & 0x7fffffffu;
            max_bits[j] = magnitude > max_bits[j] ? magnitude : max_bits[j];
        }
    }
    bool finite = true;
    for (int64_t j = 0; j < n; j++)
        finite &= max_bits[j] < 0x7f800000u;
    return finite;
}

static void quantise_columns(const float *w, int64_t n_in, int64_t ld, int64_t n,
                             const float *scale, int8_t *q)
{
    const float round = 0x1.8p23f; /* adding and subtracting it rounds to the nearest integer */
    for (int64_t i = 0; i < n_in; i++) {
        for (int64_t j = 0; j < n; j++) {
            /* A scale of zero means that the column is zero; dividing by 1 keeps it so. */
            float v = w[i * ld + j] / scale[j];
            q[i * ld + j] = (int8_t)(v + round - round);
        }
    }
}

bool oct_q8_quantise(const float *w, int64_t n_in, int64_t n_out, int64_t n_groups, int8_t *q,
                     uint16_t *scales)
{
    int64_t group_in = n_in / n_groups;
    for (int64_t g = 0; g < n_groups; g++) {
        for (int64_t first = 0; first < n_out; first += COLUMNS) {
            int64_t n = n_out - first < COLUMNS ? n_out - first : COLUMNS;
            int64_t at = g * group_in * n_out + first;
            uint32_t max_bits[COLUMNS];
            float scale[COLUMNS];
            if (!column_max(w + at, group_in, n_out, n, max_bits))
                return false;
            for (int64_t j = 0; j < n; j++) {
                uint16_t bits = scale_for(oct_f32_of_bits(max_bits[j]));
                scales[g * n_out + first + j] = bits;
                scale[j] = bits ? oct_f32_of_bf16(bits) : 1.0f;
            }
            quantise_columns(w + at, group_in, n_out, n, scale, q + at);
        }
    }
    return true;
}

void oct_q8_dequantise(const int8_t *q, const uint16_t *scales, int64_t n_in, int64_t n_out,
                       int64_t n_groups, float *w)
{
    int64_t group_in = n_in / n_groups;
    for (int64_t i = 0; i < n_in; i++) {
        const uint16_t *scale = scales + i / group_in * n_out;
        for (int64_t j = 0; j < n_out; j++)
            w[i * n_out + j] = (float)q[i * n_out + j] * oct_f32_of_bf16(scale[j]);
    }
}

void oct_q8_error_add(oct_q8_error *e, const float *ref, const float *approx, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double r = (double)ref[i], d = (double)approx[i] - r;
        e->sum_sq_err += d * d;
        e->sum_sq_ref += r * r;
        e->max_abs = fabs(d) > e->max_abs ? fabs(d) : e->max_abs;
    }
    e->n += n;
}

double oct_q8_error_rel(const oct_q8_error *e)
{
    if (e->sum_sq_err == 0.0)
        return 0.0;
    return sqrt(e->sum_sq_err / e->sum_sq_ref);
}
