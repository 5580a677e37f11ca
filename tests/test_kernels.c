/* test_kernels.c: every slot of every kernel row above ref against the oracle, then the checks
 * themselves against kernels that are wrong on purpose. Since all rows must give the oracle's bits,
 * they give each other's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernel_checks.h"

typedef const char *check_fn(const oct_kernels *k);

/* A slot without a check does not compile. */
static const struct {
    const char *name;
    check_fn *check;
} slots[] = {
#define OCT_KERNEL_SLOT(slot) {#slot, check_##slot},
#include "kernels.inc"
};
enum { SLOTS = sizeof slots / sizeof *slots };

/* ---- the rows ---- */

static void row_is_right(void **state)
{
    size_t i = (size_t)(uintptr_t)*state;
    const oct_kernels *k = &oct_kernel_rows[i / SLOTS];
    if (!oct_kernels_usable(k)) {
        print_message("SKIPPED %s.%s: this CPU cannot run it\n", k->name, slots[i % SLOTS].name);
        skip();
    }
    rig_catch_crashes();
    const char *wrong = slots[i % SLOTS].check(k);
    if (wrong)
        fail_msg("%s.%s: %s", k->name, slots[i % SLOTS].name, wrong);
}

/* ---- a scalar row to break ---- */

enum fault {
    NO_FAULT,
    DROPS_TAIL,   /* inputs after the last whole quad */
    SWAPS_SCALES, /* of two groups */
    NEGATES_128,  /* -128 taken as +128 */
    IGNORES_LAST_BLOCK,
    WRITES_PAST_END,
    READS_PAST_END,
    PREVIOUS_ROW,
    IGNORES_FIRST_GROUP,
    FIRST_PANEL_ONLY,
    ADDS_TO_Y,
    ROUNDS_PRODUCT, /* t += isum * s instead of one rounding */
    SATURATES_16,   /* pairs of products in 16 bits */
    OTHER_OF_PAIR,  /* q4: the channel that shares the byte */
    TRUNCATES       /* activations instead of rounding */
};
static enum fault fault;

static void scalar_act_quantise(const oct_act_layout *l, const float *x, void *row)
{
    int16_t *a = (int16_t *)(void *)((char *)row + l->digits_at);
    oct_act_quantise_ref(l, x, a, row);
    const float *s = row;
    for (int64_t i = 0; i < l->n_in && fault == TRUNCATES; i++) {
        float scale = s[i / l->group_in * l->group_blocks + i % l->group_in / l->block];
        if (scale > 0.0f)
            a[i] = (int16_t)(x[i] / scale);
    }
}

/* Integer sum of one block, from the packed panel. */
static int64_t scalar_isum(const oct_linear_args *l, const int16_t *a, int64_t group, int64_t start,
                           int lane)
{
    const int64_t most = INT16_MAX * 256; /* of a pair, when 16 bits hold its upper digits */
    int64_t end = start + l->act->block, isum = 0, pair = 0;
    end = end < l->w->group_in ? end : l->w->group_in;
    end = fault == DROPS_TAIL ? end / 4 * 4 : end;
    for (int64_t i = start; i < end; i++) {
        int q = oct_weight_at(l->w, l->panel, 0, fault == OTHER_OF_PAIR ? lane ^ 8 : lane,
                              group * l->w->group_in + i);
        q = fault == NEGATES_128 && q == -128 ? 128 : q;
        pair += (q + 128) * a[i];
        isum -= 128 * a[i];
        if (i % 2 || i + 1 == end) {
            isum += fault == SATURATES_16 && pair > most ? most : pair;
            pair = 0;
        }
    }
    return isum;
}

static float scalar_sum(const oct_linear_args *l, const void *row, int lane)
{
    const float *s = row;
    const int16_t *digits = (const int16_t *)(const void *)((const char *)row + l->act->digits_at);
    int64_t groups = l->w->unit_groups, blocks = l->act->group_blocks;
    int64_t used = fault == IGNORES_LAST_BLOCK && blocks > 1 ? blocks - 1 : blocks;
    float y = 0.0f;
    for (int64_t g = 0; g < groups; g++) {
        int64_t row_group = g + (fault == IGNORES_FIRST_GROUP ? 0 : l->first_group);
        float t = 0.0f;
        for (int64_t b = 0; b < used; b++) {
            float isum = (float)scalar_isum(l, digits + row_group * l->act->group_in, g,
                                            b * l->act->block, lane);
            float scale = s[row_group * blocks + b], product = isum * scale;
            t = fault == ROUNDS_PRODUCT ? t + product : fmaf(isum, scale, t);
        }
        int64_t scale_group = fault == SWAPS_SCALES ? groups - 1 - g : g;
        y = fmaf(t, oct_f32_of_bf16(l->scales[scale_group * OCT_PANEL + lane]), y);
    }
    return y;
}

static void scalar_linear(const oct_linear_args *l)
{
    for (int64_t p = 0; p < l->n_panels; p++) {
        const oct_linear_args one = oct_linear_panel(l, fault == FIRST_PANEL_ONLY ? 0 : p);
        float *y = l->y + p * l->n_rows * OCT_PANEL;
        for (int64_t r = 0; r < l->n_rows; r++) {
            const void *row = l->rows[fault == PREVIOUS_ROW && r > 0 ? r - 1 : r];
            for (int lane = 0; lane < OCT_PANEL; lane++) {
                float before = fault == ADDS_TO_Y ? y[r * OCT_PANEL + lane] : 0.0f;
                y[r * OCT_PANEL + lane] = before + scalar_sum(&one, row, lane);
            }
        }
    }
    const volatile uint8_t *end =
        (const uint8_t *)(l->scales + l->n_panels * l->w->unit_groups * OCT_PANEL);
    if (fault == READS_PAST_END)
        (void)*end;
    if (fault == WRITES_PAST_END)
        l->y[l->n_panels * l->n_rows * OCT_PANEL] = 0.0f;
}

/* ---- other kernels that are wrong ---- */

static void rms_norm_without_eps(const float *x, const float *gamma, int64_t n, float eps, bool add,
                                 float *y)
{
    (void)eps;
    oracle_rms_norm(x, gamma, n, 0.0f, add, y);
}

static void rms_norm_in_one_chain(const float *x, const float *gamma, int64_t n, float eps,
                                  bool add, float *y)
{
    float sum = 0.0f;
    for (int64_t i = 0; i < n; i++)
        sum = fmaf(x[i], x[i], sum);
    float r = 1.0f / sqrtf(sum / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = add ? y[i] + x[i] * r * gamma[i] : x[i] * r * gamma[i];
}

static void gelu_by_erf(const float *gate, const float *up, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = 0.5f * gate[i] * (1.0f + erff(gate[i] * 0.70710678f)) * up[i];
}

static void gelu_of_up(const float *gate, const float *up, int64_t n, float *y)
{
    ref_row->gelu_mul(up, gate, n, y);
}

static void add_without_tail(const float *a, const float *b, int64_t n, float *y)
{
    ref_row->add(a, b, n / 16 * 16, y);
}

static void add_one_more(const float *a, const float *b, int64_t n, float *y)
{
    ref_row->add(a, b, n, y);
    y[n] = 1.0f;
}

static void add_into_input(const float *a, const float *b, int64_t n, float *y)
{
    ref_row->add(a, b, n, y);
    if (n > 0 && a != y)
        ((float *)(uintptr_t)a)[0] = y[0];
}

static void add_scaled_fused(const float *x, float a, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = fmaf(a, x[i], y[i]);
}

static void softmax_weights_by_libm(const float *x, int64_t n, float max, float t, float *w)
{
    for (int64_t i = 0; i < n; i++)
        w[i] = expf((x[i] - max) / t);
}

static void softmax_weights_by_reciprocal(const float *x, int64_t n, float max, float t, float *w)
{
    for (int64_t i = 0; i < n; i++)
        w[i] = oct_expf((x[i] - max) * (1 / t));
}

static void rope_of_neighbours(float *x, const float *cos, const float *sin, int64_t n)
{
    for (int64_t i = 0; i < n / 2; i++)
        oracle_rope(x + 2 * i, cos + i, sin + i, 2);
}

static void embed_without_scale(const uint16_t *row, int64_t n, float scale, float *y)
{
    (void)scale;
    ref_row->embed(row, n, 1.0f, y);
}

static void dot_in_one_chain(const oct_dot_args *a)
{
    for (int64_t r = 0; r < a->n_rows; r++) {
        for (int64_t j = 0; j < a->n_out; j++) {
            float sum = 0.0f;
            for (int64_t i = 0; i < a->n_in; i++)
                sum = fmaf(a->rows[r][i], ((const float *)a->w)[j * a->w_stride + i], sum);
            a->y[r * a->y_stride + j] = a->scale * sum;
        }
    }
}

static void dot_without_scale(const oct_dot_args *a)
{
    oct_dot_args b = *a;
    b.scale = 1.0f;
    ref_row->dot_bf16(&b);
}

static void attn_without_mask(const oct_attn_args *a)
{
    oct_attn_args b = *a;
    b.n_pos = (a->n_pos + 15) / 16 * 16;
    oracle_attn(&b);
}

static void attn_without_cap(const oct_attn_args *a)
{
    oct_attn_args b = *a;
    b.cap = 40.0f;
    oracle_attn(&b);
}

static void attn_overwrites(const oct_attn_args *a)
{
    memset(a->o, 0, (size_t)(a->n_heads * a->v_stride) * 4);
    oracle_attn(a);
}

static int64_t kv_store_to_inf(const float *x, int64_t n, oct_kv_type type, void *dst,
                               int64_t stride)
{
    int64_t saturated = ref_row->kv_store(x, n, type, dst, stride);
    for (int64_t i = 0; i < n && type == OCT_KV_F16; i++)
        ((uint16_t *)dst)[i * stride] = oct_f16_of_f32(x[i]);
    return saturated;
}

static int64_t kv_store_uncounted(const float *x, int64_t n, oct_kv_type type, void *dst,
                                  int64_t stride)
{
    ref_row->kv_store(x, n, type, dst, stride);
    return 0;
}

static const struct wrong_kernel {
    const char *name;
    check_fn *check;
    enum fault fault;
    oct_kernels k; /* its one slot that is set replaces the good one */
} wrong_kernels[] = {
    {"linear drops the tail", check_linear_q8, .fault = DROPS_TAIL},
    {"linear swaps scales", check_linear_q8, .fault = SWAPS_SCALES},
    {"linear negates -128", check_linear_q8, .fault = NEGATES_128},
    {"linear ignores the last block", check_linear_q8, .fault = IGNORES_LAST_BLOCK},
    {"linear writes past the end", check_linear_q8, .fault = WRITES_PAST_END},
    {"linear reads past the end", check_linear_q8, .fault = READS_PAST_END},
    {"linear takes the previous row", check_linear_q8, .fault = PREVIOUS_ROW},
    {"linear ignores first_group", check_linear_q8, .fault = IGNORES_FIRST_GROUP},
    {"linear takes the first panel only", check_linear_q8, .fault = FIRST_PANEL_ONLY},
    {"linear adds to y", check_linear_q8, .fault = ADDS_TO_Y},
    {"linear rounds the product", check_linear_q8, .fault = ROUNDS_PRODUCT},
    {"linear saturates", check_linear_q8, .fault = SATURATES_16},
    {"linear_q4g32 drops the tail", check_linear_q4g32, .fault = DROPS_TAIL},
    {"linear_q4g32 ignores the last block", check_linear_q4g32, .fault = IGNORES_LAST_BLOCK},
    {"linear_q4g32 takes the pair's other", check_linear_q4g32, .fault = OTHER_OF_PAIR},
    {"linear_q4g16 reads past the end", check_linear_q4g16, .fault = READS_PAST_END},
    {"act_quantise truncates", check_act_quantise, .fault = TRUNCATES},
    {"rms_norm without eps", check_rms_norm, .k.rms_norm = rms_norm_without_eps},
    {"rms_norm in one chain", check_rms_norm, .k.rms_norm = rms_norm_in_one_chain},
    {"gelu by erf", check_gelu_mul, .k.gelu_mul = gelu_by_erf},
    {"gelu of the other", check_gelu_mul, .k.gelu_mul = gelu_of_up},
    {"add without tail", check_add, .k.add = add_without_tail},
    {"add writes past the end", check_add, .k.add = add_one_more},
    {"add writes to its input", check_add, .k.add = add_into_input},
    {"add_scaled fused", check_add_scaled, .k.add_scaled = add_scaled_fused},
    {"softmax_weights by libm", check_softmax_weights,
     .k.softmax_weights = softmax_weights_by_libm},
    {"softmax_weights by reciprocal", check_softmax_weights,
     .k.softmax_weights = softmax_weights_by_reciprocal},
    {"rope of neighbours", check_rope, .k.rope = rope_of_neighbours},
    {"embed without scale", check_embed, .k.embed = embed_without_scale},
    {"dot_f32 in one chain", check_dot_f32, .k.dot_f32 = dot_in_one_chain},
    {"dot_bf16 without scale", check_dot_bf16, .k.dot_bf16 = dot_without_scale},
    {"attn without mask", check_attn, .k.attn = attn_without_mask},
    {"attn without cap", check_attn, .k.attn = attn_without_cap},
    {"attn overwrites", check_attn, .k.attn = attn_overwrites},
    {"kv_store to Inf", check_kv_store, .k.kv_store = kv_store_to_inf},
    {"kv_store uncounted", check_kv_store, .k.kv_store = kv_store_uncounted},
};

static oct_kernels scalar_row(void)
{
    oct_kernels k = *ref_row;
    k.act_quantise = scalar_act_quantise;
    k.linear_q8 = k.linear_q4g32 = k.linear_q4g16 = scalar_linear;
    return k;
}

static void wrong_kernels_are_caught(void **state)
{
    (void)state;
    rig_catch_crashes();
    fault = NO_FAULT;
    oct_kernels good = scalar_row();
    assert_null(check_linear_q8(&good));
    assert_null(check_linear_q4g32(&good));
    assert_null(check_linear_q4g16(&good));
    assert_null(check_act_quantise(&good));
    for (size_t i = 0; i < sizeof wrong_kernels / sizeof *wrong_kernels; i++) {
        const struct wrong_kernel *w = &wrong_kernels[i];
        oct_kernels k = scalar_row();
#define OCT_KERNEL_SLOT(slot) k.slot = w->k.slot ? w->k.slot : k.slot;
#include "kernels.inc"
        fault = w->fault;
        const char *wrong = w->check(&k);
        fault = NO_FAULT;
        print_message("    %-32s %s\n", w->name, wrong ? wrong : "NOT CAUGHT");
        assert_non_null(wrong);
    }
}

/* ---- the fold of slices ---- */

/* The tree of weight.h level by level: neighbours are added, an odd one moves up. */
static void fold_is_a_binary_tree(void **state)
{
    (void)state;
    enum { N = 21 };
    for (int row = 0; row < oct_n_kernel_rows; row++) {
        if (!oct_kernels_usable(&oct_kernel_rows[row]))
            continue;
        for (int n_slices = 1; n_slices <= OCT_WEIGHT_MAX_SLICES; n_slices++) {
            float tile[OCT_WEIGHT_MAX_SLICES][N], *levels = scratch(4 * N * sizeof *levels);
            oct_fold f;
            oct_fold_begin(&f, levels, N, oct_kernel_rows[row].add);
            for (int s = 0; s < n_slices; s++) {
                fill_floats(tile[s], N, NORMAL);
                memcpy(oct_fold_next(&f), tile[s], sizeof tile[s]);
                oct_fold_push(&f);
            }
            const float *sum = oct_fold_end(&f);
            for (int n = n_slices; n > 1; n = (n + 1) / 2)
                for (int s = 0; s < (n + 1) / 2; s++)
                    for (int i = 0; i < N; i++)
                        tile[s][i] =
                            2 * s + 1 < n ? tile[2 * s][i] + tile[2 * s + 1][i] : tile[2 * s][i];
            assert_int_equal(rig_differs(sum, tile[0], N), -1);
            assert_true(rig_release(&check_pool));
        }
    }
}

int main(void)
{
    check_rng.state = rig_seed();
    static char names[OCT_MAX_KERNEL_ROWS * SLOTS][48];
    struct CMUnitTest tests[OCT_MAX_KERNEL_ROWS * SLOTS + 2] = {
        cmocka_unit_test(wrong_kernels_are_caught),
        cmocka_unit_test(fold_is_a_binary_tree),
    };
    size_t n = 2;
    for (size_t i = SLOTS; i < (size_t)oct_n_kernel_rows * SLOTS; i++) {
        snprintf(names[i], sizeof names[i], "%s.%s", oct_kernel_rows[i / SLOTS].name,
                 slots[i % SLOTS].name);
        tests[n++] = (struct CMUnitTest){
            .name = names[i], .test_func = row_is_right, .initial_state = (void *)(uintptr_t)i};
    }
    return _cmocka_run_group_tests("kernels", tests, n, NULL, NULL);
}
