/* k_ref.c: the reference row, plain loops written from the definitions in kernels.h, weight.h and
 * q8.h. Sums are formed in double and rounded once; activations stay f32. Slow, and free of any
 * other idea. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "f16.h"
#include "kernels.h"
#include "q4.h"
#include "q8.h"

#define OCT_KERNEL_SLOT(slot) oct_k_##slot##_fn oct_k_##slot##__ref;
#include "kernels.inc"

/* ---- activations and linear ---- */

void oct_k_act_quantise__ref(const oct_act_layout *l, const float *x, void *row)
{
    memcpy(row, x, (size_t)l->n_in * sizeof *x);
}

enum { ROWS = 8 }; /* activation rows that share the widening of weights */

/* The integers of a group's input i, from its bytes in a panel. */
typedef void weights_fn(const oct_weight_layout *w, const uint8_t *group, int64_t i,
                        int q[OCT_PANEL]);

static void weights_q8(const oct_weight_layout *w, const uint8_t *group, int64_t i,
                       int q[OCT_PANEL])
{
    const uint8_t *quad = group + i / OCT_QUAD * OCT_Q8_QUAD_BYTES;
    (void)w;
    for (int lane = 0; lane < OCT_PANEL; lane++)
        q[lane] = quad[lane * OCT_QUAD + i % OCT_QUAD] - 128;
}

static void weights_q4(const oct_weight_layout *w, const uint8_t *group, int64_t i, int groups,
                       int q[OCT_PANEL])
{
    const int64_t strip = i / OCT_Q4_STRIP, in_strip = i % OCT_Q4_STRIP;
    const int64_t left = w->group_in - strip * OCT_Q4_STRIP;
    const int64_t inputs = left < OCT_Q4_STRIP ? left : OCT_Q4_STRIP;
    const int64_t steps = (inputs + OCT_Q4_STEP - 1) / OCT_Q4_STEP;
    const uint8_t *index = group + strip * oct_q4_strip_bytes(OCT_Q4_STRIP, groups);
    const uint8_t *nibbles = index + OCT_PANEL * steps * groups;
    for (int lane = 0; lane < OCT_PANEL; lane++) {
        const int64_t pair = lane / 16 * 8 + lane % 8, second = lane / 8 % 2;
        const int table =
            index[(2 * pair + second) * steps * groups + in_strip * groups / OCT_Q4_STEP];
        const int both = nibbles[pair * steps * OCT_Q4_STEP + in_strip];
        q[lane] = oct_q4_table[table][second ? both >> 4 : both & 15] - 128;
    }
}

static void weights_q4g32(const oct_weight_layout *w, const uint8_t *group, int64_t i,
                          int q[OCT_PANEL])
{
    weights_q4(w, group, i, 2, q);
}

static void weights_q4g16(const oct_weight_layout *w, const uint8_t *group, int64_t i,
                          int q[OCT_PANEL])
{
    weights_q4(w, group, i, 4, q);
}

static void rows_ref(const oct_linear_args *a, int64_t first_row, int64_t n_rows,
                     weights_fn *weights)
{
    const oct_weight_layout *l = a->w;
    double sum[ROWS][OCT_PANEL] = {{0}};
    for (int64_t g = 0; g < l->unit_groups; g++) {
        const uint8_t *group = a->panel + (size_t)g * l->group_bytes;
        const int64_t first_in = (a->first_group + g) * l->group_in;
        float scale[OCT_PANEL];
        for (int lane = 0; lane < OCT_PANEL; lane++)
            scale[lane] = oct_f32_of_bf16(a->scales[g * OCT_PANEL + lane]);
        for (int64_t i = 0; i < l->group_in; i++) {
            int q[OCT_PANEL];
            double w[OCT_PANEL];
            weights(l, group, i, q);
            for (int lane = 0; lane < OCT_PANEL; lane++)
                w[lane] = (double)((float)q[lane] * scale[lane]);
            for (int64_t r = 0; r < n_rows; r++) {
                double x = (double)((const float *)a->rows[first_row + r])[first_in + i];
                for (int lane = 0; lane < OCT_PANEL; lane++)
                    sum[r][lane] += x * w[lane];
            }
        }
    }
    for (int64_t r = 0; r < n_rows; r++)
        for (int lane = 0; lane < OCT_PANEL; lane++)
            a->y[(first_row + r) * OCT_PANEL + lane] = (float)sum[r][lane];
}

static void linear_ref(const oct_linear_args *a, weights_fn *weights)
{
    for (int64_t p = 0; p < a->n_panels; p++) {
        const oct_linear_args one = oct_linear_panel(a, p);
        for (int64_t r = 0; r < a->n_rows; r += ROWS)
            rows_ref(&one, r, a->n_rows - r < ROWS ? a->n_rows - r : ROWS, weights);
    }
}

#define OCT_WEIGHT_TYPE(NAME, name, number, digits)           \
    void oct_k_linear_##name##__ref(const oct_linear_args *a) \
    {                                                         \
        linear_ref(a, weights_##name);                        \
    }
#include "weight_types.inc"

/* ---- attention ---- */

static double kv_at(oct_kv_type type, const void *p, int64_t i)
{
    switch (type) {
    case OCT_KV_F16: return (double)oct_f32_of_f16(((const uint16_t *)p)[i]);
    case OCT_KV_BF16: return (double)oct_f32_of_bf16(((const uint16_t *)p)[i]);
    case OCT_KV_F32: break;
    }
    return (double)((const float *)p)[i];
}

void oct_k_attn__ref(const oct_attn_args *a)
{
    for (int64_t h = 0; h < a->n_heads; h++) {
        const float *q = a->q + h * a->head_dim;
        float p[OCT_ATTN_BLOCK];
        double sum = 0.0;
        for (int64_t pos = 0; pos < a->n_pos; pos++) {
            int64_t at = pos / OCT_KV_LANES * OCT_KV_LANES * a->head_dim + pos % OCT_KV_LANES;
            double dot = 0.0;
            for (int64_t i = 0; i < a->head_dim; i++)
                dot += (double)q[i] * kv_at(a->type, a->k, at + i * OCT_KV_LANES);
            dot *= 2.0 * (double)a->scale / (double)a->cap;
            p[pos] = oct_softcap_expf((float)dot, a->cap);
            sum += (double)p[pos];
        }
        a->l[h] += (float)sum;
        for (int64_t i = 0; i < a->v_stride; i++) {
            double o = 0.0;
            for (int64_t pos = 0; pos < a->n_pos; pos++)
                o += (double)p[pos] * kv_at(a->type, a->v, pos * a->v_stride + i);
            a->o[h * a->v_stride + i] += (float)o;
        }
    }
}

/* ---- dot products with matrix rows ---- */

void oct_k_dot_bf16__ref(const oct_dot_args *a)
{
    const uint16_t *w = a->w;
    for (int64_t r = 0; r < a->n_rows; r++) {
        for (int64_t j = 0; j < a->n_out; j++) {
            double sum = 0.0;
            for (int64_t i = 0; i < a->n_in; i++)
                sum += (double)a->rows[r][i] * (double)oct_f32_of_bf16(w[j * a->w_stride + i]);
            a->y[r * a->y_stride + j] = (float)(sum * (double)a->scale);
        }
    }
}

void oct_k_dot_f32__ref(const oct_dot_args *a)
{
    const float *w = a->w;
    for (int64_t r = 0; r < a->n_rows; r++) {
        for (int64_t j = 0; j < a->n_out; j++) {
            double sum = 0.0;
            for (int64_t i = 0; i < a->n_in; i++)
                sum += (double)a->rows[r][i] * (double)w[j * a->w_stride + i];
            a->y[r * a->y_stride + j] = (float)(sum * (double)a->scale);
        }
    }
}

/* ---- vectors ---- */

void oct_k_rms_norm__ref(const float *x, const float *gamma, int64_t n, float eps, bool add,
                         float *y)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    double r = 1.0 / sqrt(sum / (double)n + (double)eps);
    for (int64_t i = 0; i < n; i++) {
        float v = (float)((double)x[i] * r * (double)gamma[i]);
        y[i] = add ? y[i] + v : v;
    }
}

void oct_k_gelu_mul__ref(const float *gate, const float *up, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = oct_geluf(gate[i]) * up[i];
}

void oct_k_softmax_weights__ref(const float *x, int64_t n, float max, float temperature, float *w)
{
    for (int64_t i = 0; i < n; i++)
        w[i] = oct_expf((x[i] - max) / temperature);
}

void oct_k_rope__ref(float *x, const float *cos, const float *sin, int64_t n)
{
    float *y = x + n / 2;
    for (int64_t j = 0; j < n / 2; j++) {
        double xj = (double)x[j], yj = (double)y[j], c = (double)cos[j], s = (double)sin[j];
        x[j] = (float)(xj * c - yj * s);
        y[j] = (float)(yj * c + xj * s);
    }
}

void oct_k_embed__ref(const uint16_t *row, int64_t n, float scale, float *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = oct_f32_of_bf16(row[i]) * scale;
}

void oct_k_add_scaled__ref(const float *x, float a, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

void oct_k_add__ref(const float *a, const float *b, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

/* The largest finite value of each type of cache. */
static float kv_max(oct_kv_type type)
{
    switch (type) {
    case OCT_KV_F16: return 65504.0f;
    case OCT_KV_BF16: return 0x1.fep127f;
    case OCT_KV_F32: break;
    }
    return FLT_MAX;
}

int64_t oct_k_kv_store__ref(const float *x, int64_t n, oct_kv_type type, void *dst,
                            int64_t dst_stride)
{
    float max = kv_max(type);
    int64_t saturated = 0;
    for (int64_t i = 0; i < n; i++) {
        float v = x[i];
        if (fabsf(v) > max) {
            v = copysignf(max, v);
            saturated++;
        }
        if (type == OCT_KV_F32)
            ((float *)dst)[i * dst_stride] = v;
        else
            ((uint16_t *)dst)[i * dst_stride] =
                type == OCT_KV_F16 ? oct_f16_of_f32(v) : oct_bf16_of_f32(v);
    }
    return saturated;
}
