/* kernel_oracle.h: what the fast kernel rows must compute, in scalar C that follows the order of
 * operations of kernels.h and weight.h step by step. It shares no code with the rows, except the
 * scalar exp, softcap_exp and gelu, which test_math checks against the C library. */
#ifndef OCT_TEST_KERNEL_ORACLE_H
#define OCT_TEST_KERNEL_ORACLE_H

#include <float.h>
#include <math.h>

#include "f16.h"
#include "kernels.h"

/* Sixteen lanes folded 16 -> 8 -> 4 -> 2 -> 1. */
static inline float oracle_fold(const float *lanes)
{
    float t[16];
    for (int i = 0; i < 16; i++)
        t[i] = lanes[i];
    for (int half = 8; half >= 1; half /= 2)
        for (int i = 0; i < half; i++)
            t[i] = t[i] + t[i + half];
    return t[0];
}

static inline float oracle_dot(const float *x, const float *w, int64_t n)
{
    float lanes[16] = {0};
    for (int64_t i = 0; i < n; i++)
        lanes[i % 16] = fmaf(x[i], w[i], lanes[i % 16]);
    return oracle_fold(lanes);
}

/* 64 channels of y from the definition: int64 sums over the source matrix, not the packed one.
 *   q [unit_in][ld], scales [unit_groups][ld] bf16; a [n_in of the whole row] and s [n_blocks] from
 *   oct_act_quantise_ref. */
static inline void oracle_linear_row(const oct_weight_layout *w, const oct_act_layout *act,
                                     const int8_t *q, const uint16_t *scales, int64_t ld,
                                     const int16_t *a, const float *s, int64_t first_group,
                                     float *y)
{
    for (int lane = 0; lane < OCT_PANEL; lane++) {
        float sum = 0.0f;
        for (int64_t g = 0; g < w->unit_groups; g++) {
            float t = 0.0f;
            int64_t row_group = first_group + g;
            for (int64_t b = 0; b < act->group_blocks; b++) {
                int64_t end = (b + 1) * act->block, isum = 0;
                end = end < w->group_in ? end : w->group_in;
                for (int64_t i = b * act->block; i < end; i++)
                    isum += (int64_t)q[(g * w->group_in + i) * ld + lane] *
                            a[row_group * w->group_in + i];
                t = fmaf((float)isum, s[row_group * act->group_blocks + b], t);
            }
            sum = fmaf(t, oct_f32_of_bf16(scales[g * ld + lane]), sum);
        }
        y[lane] = sum;
    }
}

static inline float oracle_kv_at(oct_kv_type type, const void *p, int64_t i)
{
    if (type == OCT_KV_F32)
        return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return type == OCT_KV_F16 ? oct_f32_of_f16(h) : oct_f32_of_bf16(h);
}

static inline void oracle_attn(const oct_attn_args *a)
{
    for (int64_t h = 0; h < a->n_heads; h++) {
        float p[OCT_ATTN_BLOCK], lanes[16] = {0};
        for (int64_t pos = 0; pos < a->n_pos; pos++) {
            int64_t at = pos / 16 * 16 * a->head_dim + pos % 16;
            float dot = 0.0f;
            for (int64_t i = 0; i < a->head_dim; i++)
                dot =
                    fmaf(a->q[h * a->head_dim + i], oracle_kv_at(a->type, a->k, at + i * 16), dot);
            p[pos] = oct_softcap_expf(dot * (2.0f * a->scale / a->cap), a->cap);
            lanes[pos % 16] += p[pos];
        }
        a->l[h] += oracle_fold(lanes);
        for (int64_t i = 0; i < a->v_stride; i++) {
            float sum = 0.0f;
            for (int64_t pos = 0; pos < a->n_pos; pos++)
                sum = fmaf(p[pos], oracle_kv_at(a->type, a->v, pos * a->v_stride + i), sum);
            a->o[h * a->v_stride + i] += sum;
        }
    }
}

static inline void oracle_rms_norm(const float *x, const float *gamma, int64_t n, float eps,
                                   bool add, float *y)
{
    float r = 1.0f / sqrtf(oracle_dot(x, x, n) / (float)n + eps);
    for (int64_t i = 0; i < n; i++) {
        float v = x[i] * r * gamma[i];
        y[i] = add ? y[i] + v : v;
    }
}

static inline void oracle_rope(float *x, const float *cos, const float *sin, int64_t n)
{
    for (int64_t j = 0; j < n / 2; j++) {
        float a = x[j], b = x[j + n / 2], bs = b * sin[j], as = a * sin[j];
        x[j] = fmaf(a, cos[j], 0.0f - bs);
        x[j + n / 2] = fmaf(b, cos[j], as);
    }
}

static inline float oracle_kv_max(oct_kv_type type)
{
    return type == OCT_KV_F16 ? 65504.0f : type == OCT_KV_BF16 ? 0x1.fep127f : FLT_MAX;
}

/* Bits that must be stored for one value, and whether it saturated. */
static inline uint32_t oracle_kv_bits(oct_kv_type type, float x, bool *saturated)
{
    float max = oracle_kv_max(type);
    *saturated = x > max || x < -max;
    float v = *saturated ? copysignf(max, x) : x;
    if (type == OCT_KV_F32)
        return oct_f32_bits(v);
    return type == OCT_KV_F16 ? oct_f16_of_f32(v) : oct_bf16_of_f32(v);
}

#endif
