/* test_ops.c: single operations against golden values made by the original code (norm, RoPE,
 * attention, router, gelu) or in float64 (linear, expert), for every kernel row of this CPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "f16.h"
#include "kernels.h"
#include "npy.h"

static oct_npy load(const char *name, char kind, int size)
{
    oct_npy a;
    if (oct_npy_load_as(OCT_TEST_DATA "/golden/ops", name, kind, size, &a) != 0)
        fail_msg("golden/ops/%s.npy", name);
    return a;
}

static bool is_ref(const oct_kernels *k)
{
    return k == &oct_kernel_rows[OCT_KERNELS_REF];
}

/* The row under test; skips it where this CPU cannot run it. */
static const oct_kernels *row_of(void **state)
{
    const oct_kernels *k = &oct_kernel_rows[(uintptr_t)*state];
    if (!oct_kernels_usable(k)) {
        print_message("SKIPPED %s: this CPU cannot run it\n", k->name);
        skip();
    }
    return k;
}

/* calloc at 64 bytes; never NULL. */
static void *zeroed(size_t bytes)
{
    bytes = (bytes + 64) / 64 * 64;
    void *p = aligned_alloc(64, bytes);
    assert_non_null(p);
    return memset(p, 0, bytes);
}

/* Unlike fmax, NaN where b is NaN. */
static double larger(double a, double b)
{
    return b <= a ? a : b;
}

/* Root of the summed squares of y - want, over that of want. */
static double relative(const float *y, const float *want, int64_t n)
{
    double err = 0.0, ref = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)y[i] - (double)want[i];
        err += d * d;
        ref += (double)want[i] * (double)want[i];
    }
    return err == 0.0 ? 0.0 : sqrt(err / ref);
}

/* ---- norm, rope, gelu, router ---- */

static void norm(void **state)
{
    const oct_kernels *k = row_of(state);
    oct_npy x = load("rmsnorm_x", 'f', 4), y = load("rmsnorm_y", 'f', 4);
    oct_npy gamma = load("rmsnorm_scale", 'f', 4);
    int64_t n = gamma.n;
    float *out = zeroed((size_t)n * 4);
    for (int64_t r = 0; r < x.shape[0]; r++) {
        k->rms_norm((float *)x.data + r * n, gamma.data, n, 1e-5f, false, out);
        double worst = 0.0;
        for (int64_t i = 0; i < n; i++) {
            double want = (double)((float *)y.data)[r * n + i];
            worst = larger(worst, fabs((double)out[i] - want) / (fabs(want) + 1e-30));
        }
        print_message("    %s row %d: worst relative difference %.2g\n", k->name, (int)r, worst);
        assert_true(worst <= 3e-6);
    }
    free(out);
    oct_npy_free(&x);
    oct_npy_free(&y);
    oct_npy_free(&gamma);
}

static void rope(void **state)
{
    const oct_kernels *k = row_of(state);
    oct_npy x = load("rope_x", 'f', 4), y = load("rope_y", 'f', 4);
    oct_npy exact = load("rope_y_f64", 'f', 8), pos = load("rope_pos", 'i', 4);
    int64_t n = x.shape[2], heads = x.shape[1];
    float *cos_table = zeroed((size_t)n * 2), *sin_table = zeroed((size_t)n * 2);
    double near = 0.0, far = 0.0;
    int most = 0;
    for (int64_t t = 0; t < pos.n; t++) {
        int p = ((int32_t *)pos.data)[t];
        most = p > most ? p : most;
        for (int64_t j = 0; j < n / 2; j++) {
            float inverse = oct_rope_inv_freq(10000.0f, j, n);
            oct_sincosf((float)p * inverse, &sin_table[j], &cos_table[j]);
        }
        for (int64_t h = 0; h < heads; h++) {
            float *v = (float *)x.data + (t * heads + h) * n;
            k->rope(v, cos_table, sin_table, n);
            for (int64_t i = 0; i < n; i++) {
                int64_t at = (t * heads + h) * n + i;
                near = larger(near, fabs((double)v[i] - (double)((float *)y.data)[at]));
                far = larger(far, fabs((double)v[i] - ((double *)exact.data)[at]));
            }
        }
    }
    print_message("    %s up to position %d: from the original %.2g, from float64 %.2g\n", k->name,
                  most, near, far);
    assert_int_equal(most, 8191);
    /* From float64 it is the rounding of angles near 8191 to f32, which the original does too. */
    assert_true(near <= 1e-6 && far <= 1e-3);
    free(cos_table);
    free(sin_table);
    oct_npy_free(&x);
    oct_npy_free(&y);
    oct_npy_free(&exact);
    oct_npy_free(&pos);
}

static void gelu(void **state)
{
    const oct_kernels *k = row_of(state);
    oct_npy x = load("gelu_x", 'f', 4), y = load("gelu_y", 'f', 4);
    float *one = zeroed((size_t)x.n * 4), *out = zeroed((size_t)x.n * 4);
    for (int64_t i = 0; i < x.n; i++)
        one[i] = 1.0f;
    k->gelu_mul(x.data, one, x.n, out);
    double worst = 0.0;
    for (int64_t i = 0; i < x.n; i++) {
        double want = (double)((float *)y.data)[i];
        worst = larger(worst, fabs((double)out[i] - want) / larger(1.0, fabs(want)));
    }
    print_message("    %s: worst difference %.2g\n", k->name, worst);
    assert_true(worst <= 1e-6);
    free(one);
    free(out);
    oct_npy_free(&x);
    oct_npy_free(&y);
}

static void router(void **state)
{
    (void)state;
    oct_npy logits = load("router_logits", 'f', 4), experts = load("router_experts", 'i', 4);
    oct_npy gates = load("router_gates", 'f', 4);
    int64_t n = logits.shape[1], used = experts.shape[1];
    for (int64_t t = 0; t < logits.shape[0]; t++) {
        int32_t expert[8];
        float gate[8];
        oct_route((float *)logits.data + t * n, n, used, expert, gate);
        for (int64_t j = 0; j < used; j++) {
            double want = (double)((float *)gates.data)[t * used + j];
            assert_int_equal(expert[j], ((int32_t *)experts.data)[t * used + j]);
            assert_true(fabs((double)gate[j] - want) <= 2e-6 * want);
        }
    }
    oct_npy_free(&logits);
    oct_npy_free(&experts);
    oct_npy_free(&gates);
}

/* ---- attention ---- */

enum { HEADS = 48, KV_HEADS = 8, DIM = 128, POS0 = 67 };

/* K and V of one KV head as the cache lays them out. */
static void store_kv(const oct_kernels *k, const float *keys, const float *values, int64_t n_pos,
                     int64_t kv_head, oct_kv_type type, char *k_cache, char *v_cache)
{
    size_t size = type == OCT_KV_F32 ? 4 : 2;
    for (int64_t pos = 0; pos < n_pos; pos++) {
        int64_t from = (pos * KV_HEADS + kv_head) * DIM;
        int64_t at = pos / OCT_KV_LANES * OCT_KV_LANES * DIM + pos % OCT_KV_LANES;
        assert_int_equal(
            k->kv_store(keys + from, DIM, type, k_cache + (size_t)at * size, OCT_KV_LANES), 0);
        assert_int_equal(
            k->kv_store(values + from, DIM, type, v_cache + (size_t)(pos * DIM) * size, 1), 0);
    }
}

static double attention_error(const oct_kernels *k, oct_kv_type type)
{
    oct_npy q = load("attn_q", 'f', 4), keys = load("attn_k", 'f', 4);
    oct_npy values = load("attn_v", 'f', 4), y = load("attn_y", 'f', 4);
    enum { GROUP = HEADS / KV_HEADS };
    char *k_cache = zeroed(80 * DIM * 4), *v_cache = zeroed(80 * DIM * 4);
    float *o = zeroed(GROUP * DIM * 4), *l = zeroed(GROUP * 4);
    double worst = 0.0;
    for (int64_t kv_head = 0; kv_head < KV_HEADS; kv_head++) {
        store_kv(k, keys.data, values.data, keys.shape[0], kv_head, type, k_cache, v_cache);
        for (int64_t t = 0; t < q.shape[0]; t++) {
            int64_t at = (t * HEADS + kv_head * GROUP) * DIM;
            memset(o, 0, GROUP * DIM * 4);
            memset(l, 0, GROUP * 4);
            k->attn(&(oct_attn_args){.q = (float *)q.data + at,
                                     .k = k_cache,
                                     .v = v_cache,
                                     .type = type,
                                     .n_heads = GROUP,
                                     .head_dim = DIM,
                                     .v_stride = DIM,
                                     .n_pos = POS0 + t + 1,
                                     .scale = 0.08838834764831845f,
                                     .cap = 30.0f,
                                     .o = o,
                                     .l = l});
            for (int64_t i = 0; i < GROUP * DIM; i++)
                worst = larger(
                    worst, fabs((double)(o[i] / l[i / DIM]) - (double)((float *)y.data)[at + i]));
        }
    }
    free(k_cache);
    free(v_cache);
    free(o);
    free(l);
    oct_npy_free(&q);
    oct_npy_free(&keys);
    oct_npy_free(&values);
    oct_npy_free(&y);
    return worst;
}

static void attention(void **state)
{
    const oct_kernels *k = row_of(state);
    double f32 = attention_error(k, OCT_KV_F32), f16 = attention_error(k, OCT_KV_F16);
    double bf16 = attention_error(k, OCT_KV_BF16);
    print_message("    %s: worst difference with KV in f32 %.2g, f16 %.2g, bf16 %.2g\n", k->name,
                  f32, f16, bf16);
    assert_true(f32 <= 2e-5);
    assert_true(f16 <= 1e-2 && f16 < bf16 / 3.0);
}

/* ---- matrices ---- */

typedef struct packed {
    oct_weight_layout l;
    oct_act_layout act;
    uint8_t *units;
    uint16_t *scales;
} packed;

static uint16_t *scales_of(const packed *p, int64_t slice)
{
    return p->scales + oct_weight_scale_offset(&p->l, 0, slice) / sizeof *p->scales;
}

/* Parts w0 and, interleaved, w1 (name or NULL): golden/ops/NAME_w and NAME_scales_bf16. */
static packed pack(const char *w0, const char *w1, enum oct_weight_split split)
{
    packed p = {.l = {.n_experts = 1, .n_slices = 1, .n_parts = w1 ? 2 : 1, .interleave = w1}};
    oct_npy w[2] = {{0}}, s[2] = {{0}};
    oct_weight_source src[2] = {{0}};
    for (int i = 0; i < p.l.n_parts; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s_w", i ? w1 : w0);
        w[i] = load(name, 'i', 1);
        snprintf(name, sizeof name, "%s_scales_bf16", i ? w1 : w0);
        s[i] = load(name, 'u', 2);
        src[i] = (oct_weight_source){.w = w[i].data, .scales = s[i].data, .ld = w[i].shape[1]};
        p.l.part_out[i] = w[i].shape[1];
    }
    p.l.n_in = w[0].shape[0];
    p.l.n_groups = s[0].shape[0];
    p.l.split = split;
    p.l.n_slices = split == OCT_SPLIT_IN ? p.l.n_groups : 1;
    assert_null(oct_weight_layout_init(&p.l));
    oct_act_layout_init(&p.act, p.l.n_in, p.l.n_groups, 2);
    p.units = zeroed(p.l.unit_stride * (size_t)p.l.n_slices);
    p.scales = zeroed(p.l.scale_stride * (size_t)p.l.n_slices);
    for (int64_t slice = 0; slice < p.l.n_slices; slice++) {
        uint8_t *unit = p.units + oct_weight_unit_offset(&p.l, 0, slice);
        uint16_t *scales = scales_of(&p, slice);
        oct_weight_pack(&p.l, slice, src, unit, scales);
        assert_true(oct_weight_verify(&p.l, slice, src, unit, scales));
    }
    for (int i = 0; i < 2; i++) {
        oct_npy_free(&w[i]);
        oct_npy_free(&s[i]);
    }
    return p;
}

/* y[n_rows][64] = one panel times the rows of x, the slices folded. */
static void multiply_panel(const oct_kernels *k, const packed *p, int64_t panel,
                           const void *const *rows, int64_t n_rows, float *y)
{
    int64_t n = n_rows * OCT_PANEL;
    float *levels = zeroed((size_t)n * 4 * 4);
    oct_fold fold;
    oct_fold_begin(&fold, levels, n, k->add);
    for (int64_t slice = 0; slice < p->l.n_slices; slice++) {
        k->linear_q8(
            &(oct_linear_args){.n_panels = 1,
                               .w = &p->l,
                               .panel = p->units + oct_weight_unit_offset(&p->l, 0, slice) +
                                        (size_t)panel * p->l.panel_bytes,
                               .scales = scales_of(p, slice) + panel * p->l.unit_groups * OCT_PANEL,
                               .act = &p->act,
                               .rows = rows,
                               .n_rows = n_rows,
                               .first_group = slice * p->l.unit_groups,
                               .y = oct_fold_next(&fold)});
        oct_fold_push(&fold);
    }
    memcpy(y, oct_fold_end(&fold), (size_t)n * 4);
    free(levels);
}

/* y[n_rows][part][part_out] of all channels. x [n_rows][n_in]. */
static void multiply(const oct_kernels *k, const packed *p, const float *x, int64_t n_rows,
                     float *y)
{
    enum { MOST = 8 };
    const void *rows[MOST];
    void *row[MOST];
    assert_true(n_rows <= MOST);
    for (int64_t r = 0; r < n_rows; r++) {
        rows[r] = row[r] = zeroed(p->act.bytes);
        k->act_quantise(&p->act, x + r * p->l.n_in, row[r]);
    }
    float *tile = zeroed((size_t)n_rows * OCT_PANEL * 4);
    for (int64_t panel = 0; panel < p->l.n_panels; panel++) {
        multiply_panel(k, p, panel, rows, n_rows, tile);
        for (int lane = 0; lane < OCT_PANEL; lane++) {
            int part;
            int64_t channel;
            if (!oct_weight_lane(&p->l, 0, panel, lane, &part, &channel))
                continue;
            for (int64_t r = 0; r < n_rows; r++)
                y[r * p->l.n_out + part * p->l.part_out[0] + channel] = tile[r * OCT_PANEL + lane];
        }
    }
    free(tile);
    for (int64_t r = 0; r < n_rows; r++)
        free(row[r]);
}

/* What rounding x to bf16 would lose, everything else exact: for scale. */
static double bf16_error(const packed *p, const float *x, const float *want)
{
    double err = 0.0, ref = 0.0;
    for (int64_t o = 0; o < p->l.n_out; o++) {
        double y = 0.0;
        for (int64_t i = 0; i < p->l.n_in; i++) {
            int64_t unit_in = p->l.unit_groups * p->l.group_in;
            const uint8_t *unit = p->units + oct_weight_unit_offset(&p->l, 0, i / unit_in);
            int lane = (int)(o % OCT_PANEL);
            int64_t panel = o / OCT_PANEL, in = i % unit_in;
            double w = (double)oct_weight_at(&p->l, unit, panel, lane, in) *
                       (double)oct_f32_of_bf16(oct_weight_scale(&p->l, scales_of(p, i / unit_in),
                                                                panel, lane, in / p->l.group_in));
            y += w * (double)oct_f32_of_bf16(oct_bf16_of_f32(x[i]));
        }
        err += (y - (double)want[o]) * (y - (double)want[o]);
        ref += (double)want[o] * (double)want[o];
    }
    return sqrt(err / ref);
}

static void linear(void **state)
{
    const oct_kernels *k = row_of(state);
    static const char *const names[] = {"linear_a", "linear_b", "linear_c", "linear_d"};
    for (int c = 0; c < 4; c++) {
        char name[64];
        snprintf(name, sizeof name, "%s_x", names[c]);
        oct_npy x = load(name, 'f', 4);
        snprintf(name, sizeof name, "%s_y", names[c]);
        oct_npy want = load(name, 'f', 4);
        packed p = pack(names[c], NULL, OCT_SPLIT_IN);
        float *y = zeroed((size_t)want.n * 4);
        multiply(k, &p, x.data, x.shape[0], y);
        for (int64_t r = 0; r < x.shape[0]; r++) {
            const float *x_row = (float *)x.data + r * p.l.n_in;
            const float *want_row = (float *)want.data + r * p.l.n_out;
            double error = relative(y + r * p.l.n_out, want_row, p.l.n_out);
            double bf16 = bf16_error(&p, x_row, want_row);
            print_message("    %s %s row %d: relative error %.2g, bf16 activations %.2g\n", k->name,
                          names[c], (int)r, error, bf16);
            /* Row 3 is heavy-tailed, row 4 one-hot: its value is the block's largest, which 16 bits
             * keep. */
            double bound = is_ref(k) || r == 4 ? 2e-7 : r == 3 ? bf16 / 5.0 : bf16 / 15.0;
            assert_true(error <= bound);
        }
        free(y);
        free(p.units);
        free(p.scales);
        oct_npy_free(&x);
        oct_npy_free(&want);
    }
}

static void expert(void **state)
{
    const oct_kernels *k = row_of(state);
    oct_npy x = load("expert_x", 'f', 4), want = load("expert_y", 'f', 4);
    packed gate_up = pack("expert_gate", "expert_up", OCT_SPLIT_OUT);
    packed down = pack("expert_down", NULL, OCT_SPLIT_IN);
    assert_int_equal(down.l.n_groups, 8);
    int64_t rows = x.shape[0], ff = down.l.n_in;
    float *both = zeroed((size_t)(rows * 2 * ff) * 4), *h = zeroed((size_t)(rows * ff) * 4);
    float *y = zeroed((size_t)want.n * 4);
    multiply(k, &gate_up, x.data, rows, both);
    for (int64_t r = 0; r < rows; r++)
        k->gelu_mul(both + r * 2 * ff, both + r * 2 * ff + ff, ff, h + r * ff);
    multiply(k, &down, h, rows, y);
    double error = relative(y, want.data, want.n);
    print_message("    %s: relative error %.2g\n", k->name, error);
    assert_true(error <= (is_ref(k) ? 1e-6 : 1e-4));
    free(both);
    free(h);
    free(y);
    free(gate_up.units);
    free(gate_up.scales);
    free(down.units);
    free(down.scales);
    oct_npy_free(&x);
    oct_npy_free(&want);
}

int main(void)
{
    static const struct {
        const char *name;
        CMUnitTestFunction f;
    } ops[] = {{"norm", norm},           {"rope", rope},     {"gelu", gelu},
               {"attention", attention}, {"linear", linear}, {"expert", expert}};
    enum { OPS = sizeof ops / sizeof *ops };
    static char names[OCT_MAX_KERNEL_ROWS * OPS][32];
    struct CMUnitTest tests[OCT_MAX_KERNEL_ROWS * OPS + 1] = {cmocka_unit_test(router)};
    size_t n = 1;
    for (size_t row = 0; row < (size_t)oct_n_kernel_rows; row++) {
        for (size_t i = 0; i < OPS; i++, n++) {
            snprintf(names[n - 1], sizeof names[0], "%s.%s", oct_kernel_rows[row].name,
                     ops[i].name);
            tests[n] = (struct CMUnitTest){.name = names[n - 1],
                                           .test_func = ops[i].f,
                                           .initial_state = (void *)(uintptr_t)row};
        }
    }
    return _cmocka_run_group_tests("ops", tests, n, NULL, NULL);
}
