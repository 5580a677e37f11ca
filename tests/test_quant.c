/* test_quant.c: the weight type, its packing, activations in 16 bits, and 16-bit floats. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "act.h"
#include "f16.h"
#include "q4.h"
#include "q8.h"
#include "rig.h"

static rig_rng rng;

/* ---- layouts ---- */

static oct_weight_layout layout_of(enum oct_weight_split split, int64_t slices, int64_t n_in,
                                   int64_t groups, int64_t p0, int64_t p1, int64_t p2,
                                   bool interleave)
{
    oct_weight_layout l = {.n_experts = 1,
                           .n_slices = slices,
                           .n_in = n_in,
                           .n_groups = groups,
                           .part_out = {p0, p1, p2},
                           .n_parts = p2   ? 3
                                      : p1 ? 2
                                           : 1,
                           .interleave = interleave,
                           .split = split};
    return l;
}

static void grok1_layouts(void **state)
{
    (void)state;
    oct_weight_layout l = layout_of(OCT_SPLIT_OUT, 8, 6144, 1, 32768, 32768, 0, true);
    l.n_experts = 8;
    assert_null(oct_weight_layout_init(&l));
    assert_int_equal(l.n_out, 65536);
    assert_int_equal(l.unit_out, 8192);
    assert_int_equal(l.n_panels, 128);
    assert_int_equal(l.panel_bytes, 6144 * 64);
    assert_int_equal(l.unit_align, 2 << 20);
    assert_int_equal(l.unit_stride % l.unit_align, 0);
    assert_true(l.unit_stride - l.unit_bytes < l.unit_align);
    assert_int_equal(l.unit_stride, 48 << 20); /* scales would need another 2 MiB */
    assert_int_equal(l.scale_bytes, 128 * 64 * 2);
    assert_int_equal(l.scale_stride, 16384);
    assert_int_equal(oct_weight_unit_offset(&l, 3, 5), l.unit_stride * 29);
    assert_int_equal(oct_weight_scale_offset(&l, 3, 5), l.scale_stride * 29);

    l = layout_of(OCT_SPLIT_IN, 8, 32768, 8, 6144, 0, 0, false);
    assert_null(oct_weight_layout_init(&l));
    assert_int_equal(l.unit_groups, 1);
    assert_int_equal(l.group_in, 4096);
    assert_int_equal(l.n_panels, 96);

    l = layout_of(OCT_SPLIT_IN, 4, 27 * 8, 8, 100, 0, 0, false);
    assert_null(oct_weight_layout_init(&l));
    assert_int_equal(l.group_quads, 7);
    assert_int_equal(l.unit_groups, 2);
    assert_int_equal(l.panel_bytes, 2 * 7 * 256);
    assert_int_equal(l.scale_bytes, 2 * 2 * 128);
    assert_int_equal(l.scale_stride, 4096);
    assert_int_equal(l.unit_align, 4096);
}

static void bad_layouts(void **state)
{
    (void)state;
    const int64_t big = INT64_MAX;
    const oct_weight_layout bad[] = {
        layout_of(OCT_SPLIT_OUT, 0, 64, 1, 64, 0, 0, false),
        layout_of(OCT_SPLIT_OUT, 9, 72, 1, 72, 0, 0, false),
        layout_of(OCT_SPLIT_OUT, -1, 64, 1, 64, 0, 0, false),
        layout_of(OCT_SPLIT_OUT, 1, 0, 1, 64, 0, 0, false),
        layout_of(OCT_SPLIT_OUT, 1, -4, 1, 64, 0, 0, false),
        layout_of(OCT_SPLIT_OUT, 1, 64, 0, 64, 0, 0, false),
        layout_of(OCT_SPLIT_OUT, 1, 64, 3, 64, 0, 0, false),
        layout_of(OCT_SPLIT_OUT, 1, 64, -1, 64, 0, 0, false),
        layout_of(OCT_SPLIT_OUT, 1, 64, 1, 0, 0, 0, false),
        layout_of(OCT_SPLIT_OUT, 8, 64, 1, 100, 0, 0, false),
        layout_of(OCT_SPLIT_IN, 8, 64, 4, 64, 0, 0, false),
        layout_of(OCT_SPLIT_OUT, 1, 64, 1, 64, 0, 0, true),
        layout_of(OCT_SPLIT_OUT, 1, 64, 1, 64, 32, 0, true),
        layout_of(OCT_SPLIT_OUT, 1, 64, 1, 64, 64, 64, true),
        layout_of(OCT_SPLIT_OUT, 1, big, 1, 64, 0, 0, false),
        layout_of(OCT_SPLIT_OUT, 1, 64, 1, big, 0, 0, false),
        layout_of(OCT_SPLIT_OUT, 1, 64, 1, big, big, big, false),
        layout_of(OCT_SPLIT_OUT, 1, INT64_C(1) << 40, 1, INT64_C(1) << 40, 0, 0, false),
        layout_of(OCT_SPLIT_IN, 1, INT64_C(1) << 50, INT64_C(1) << 50, 1 << 20, 0, 0, false),
        layout_of((enum oct_weight_split)7, 1, 64, 1, 64, 0, 0, false),
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        oct_weight_layout l = bad[i];
        if (!oct_weight_layout_init(&l))
            fail_msg("bad layout %zu was taken", i);
    }
    oct_weight_layout l = layout_of(OCT_SPLIT_OUT, 8, 6144, 1, 65536, 0, 0, false);
    l.n_experts = 0;
    assert_non_null(oct_weight_layout_init(&l));
    l.n_experts = big / 2;
    assert_non_null(oct_weight_layout_init(&l));
    l.n_experts = OCT_WEIGHT_MAX_EXPERTS + 1;
    assert_non_null(oct_weight_layout_init(&l));
    l.n_experts = 1;
    l.n_parts = 4;
    assert_non_null(oct_weight_layout_init(&l));
}

/* ---- packing ---- */

typedef struct matrix {
    oct_weight_layout l;
    oct_weight_source src[OCT_WEIGHT_MAX_PARTS];
    rig_pool pool;
} matrix;

/* Random integers over the whole range; scales at an odd address, as in a file. */
static void matrix_fill(matrix *m)
{
    assert_null(oct_weight_layout_init(&m->l));
    for (int p = 0; p < m->l.n_parts; p++) {
        int64_t ld = m->l.part_out[p];
        size_t n = (size_t)(m->l.n_in * ld), n_scales = (size_t)(m->l.n_groups * ld);
        int8_t *w = rig_buffer_new(&m->pool, n, 1);
        for (size_t i = 0; i < n; i++)
            w[i] = (int8_t)rig_int(&rng, -128, 127);
        uint8_t *s = (uint8_t *)rig_buffer_new(&m->pool, n_scales * 2 + 1, 2) + 1;
        for (size_t i = 0; i < n_scales * 2; i++)
            s[i] = (uint8_t)rig_int(&rng, 1, 255);
        m->src[p] =
            (oct_weight_source){.w = w, .scales = (const uint16_t *)(const void *)s, .ld = ld};
    }
}

static uint16_t source_scale(const oct_weight_source *s, int64_t i)
{
    uint16_t v;
    memcpy(&v, (const uint8_t *)s->scales + 2 * i, sizeof v);
    return v;
}

static const oct_weight_layout pack_cases[] = {
    /* split, slices, n_in, groups, parts, interleave */
    {.n_slices = 1, .n_in = 4, .n_groups = 1, .part_out = {64}, .n_parts = 1},
    {.n_slices = 1, .n_in = 1, .n_groups = 1, .part_out = {1}, .n_parts = 1},
    {.n_slices = 8, .n_in = 96, .n_groups = 1, .part_out = {192, 64, 64}, .n_parts = 3},
    {.n_slices = 8,
     .n_in = 96,
     .n_groups = 2,
     .part_out = {160, 160},
     .n_parts = 2,
     .interleave = true},
    {.n_slices = 8,
     .n_in = 160,
     .n_groups = 8,
     .part_out = {96},
     .n_parts = 1,
     .split = OCT_SPLIT_IN},
    {.n_slices = 4,
     .n_in = 27 * 8,
     .n_groups = 8,
     .part_out = {101},
     .n_parts = 1,
     .split = OCT_SPLIT_IN},
    {.n_slices = 2,
     .n_in = 130,
     .n_groups = 1,
     .part_out = {2 * 1100, 2 * 1100},
     .n_parts = 2,
     .interleave = true},
    {.n_slices = 1, .n_in = 23, .n_groups = 1, .part_out = {1200, 7, 70}, .n_parts = 3},
    {.n_slices = 3,
     .n_in = 6 * 5,
     .n_groups = 6,
     .part_out = {1500},
     .n_parts = 1,
     .split = OCT_SPLIT_IN},
};

/* A unit's weights and scales, room for both. */
typedef struct packed {
    uint8_t *weights;
    uint16_t *scales;
} packed;

static packed packed_new(matrix *m)
{
    return (packed){rig_buffer_new(&m->pool, m->l.unit_stride, 64),
                    rig_buffer_new(&m->pool, m->l.scale_stride, 64)};
}

static void pack(const matrix *m, int64_t slice, const oct_weight_source *src, packed u)
{
    oct_weight_pack(&m->l, slice, src, u.weights, u.scales);
}

static bool verify(const matrix *m, int64_t slice, packed u)
{
    return oct_weight_verify(&m->l, slice, m->src, u.weights, u.scales);
}

/* Every place of the unit against the source, and every source number seen once. */
static void unit_matches(const matrix *m, int64_t slice, packed u)
{
    const oct_weight_layout *l = &m->l;
    int64_t first_group = l->split == OCT_SPLIT_IN ? slice * l->unit_groups : 0, n_lanes = 0;
    int64_t sum_channels = 0;
    for (int64_t panel = 0; panel < l->n_panels; panel++) {
        for (int lane = 0; lane < OCT_PANEL; lane++) {
            int part;
            int64_t channel;
            bool used = oct_weight_lane(l, slice, panel, lane, &part, &channel);
            if (used) {
                n_lanes++;
                sum_channels += channel + 1000003 * part;
                assert_true(channel >= 0 && channel < l->part_out[part]);
            }
            for (int64_t i = 0; i < l->unit_groups * l->group_in; i++) {
                int want = used
                               ? m->src[part]
                                     .w[(first_group * l->group_in + i) * m->src[part].ld + channel]
                               : 0;
                assert_int_equal(oct_weight_at(l, u.weights, panel, lane, i), want);
            }
            for (int64_t g = 0; g < l->unit_groups; g++) {
                int want = used ? source_scale(&m->src[part],
                                               (first_group + g) * m->src[part].ld + channel)
                                : 0;
                assert_int_equal(oct_weight_scale(l, u.scales, panel, lane, g), want);
            }
        }
    }
    int64_t want_sum = 0;
    for (int p = 0; p < l->n_parts; p++) {
        int64_t n = l->split == OCT_SPLIT_OUT ? l->part_out[p] / l->n_slices : l->part_out[p];
        int64_t first = l->split == OCT_SPLIT_OUT ? slice * n : 0;
        want_sum += n * first + n * (n - 1) / 2 + 1000003 * p * n;
    }
    assert_int_equal(n_lanes, l->unit_out);
    assert_int_equal(sum_channels, want_sum);
}

/* Runs of inputs of any length, over borders of groups, are what single inputs are. */
static void runs_match(matrix *m, packed u)
{
    int64_t unit_in = m->l.unit_groups * m->l.group_in;
    for (int i = 0; i < 50; i++) {
        int64_t first = rig_int(&rng, 0, unit_in - 1), n = rig_int(&rng, 0, unit_in - first);
        int64_t panel = rig_int(&rng, 0, m->l.n_panels - 1);
        int lane = (int)rig_int(&rng, 0, OCT_PANEL - 1);
        int8_t *w = rig_buffer_new(&m->pool, (size_t)n + 1, 1);
        w[n] = 77;
        oct_weight_unpack(&m->l, u.weights, panel, lane, first, n, w);
        for (int64_t k = 0; k < n; k++)
            assert_int_equal(w[k], oct_weight_at(&m->l, u.weights, panel, lane, first + k));
        assert_int_equal(w[n], 77);
    }
}

/* One bit of n stored bytes changes: found, whichever byte it is, by verifying both places and
 * this one alone. */
static void changes_are_found(const matrix *m, int64_t slice, packed u, bool scales)
{
    uint8_t *bytes = scales ? (uint8_t *)u.scales : u.weights;
    size_t n = scales ? m->l.scale_stride : m->l.unit_stride;
    size_t used = scales ? m->l.scale_bytes : m->l.unit_bytes;
    const packed alone = scales ? (packed){.scales = u.scales} : (packed){.weights = u.weights};
    const packed other = scales ? (packed){.weights = u.weights} : (packed){.scales = u.scales};
    for (int i = 0; i < 400; i++) {
        size_t at = i < 200
                        ? (size_t)rig_int(&rng, 0, (int64_t)n - 1)
                        : used - 1 - (size_t)rig_int(&rng, 0, used > 200 ? 200 : (int64_t)used - 1);
        uint8_t was = bytes[at];
        bytes[at] ^= (uint8_t)(1u << rig_int(&rng, 0, 7));
        if (verify(m, slice, u) || verify(m, slice, alone))
            fail_msg("slice %d: byte %zu of the %s changed unnoticed", (int)slice, at,
                     scales ? "scales" : "weights");
        assert_true(verify(m, slice, other));
        bytes[at] = was;
    }
}

/* All slices of a matrix: packed, unpacked, verified, and every change found. */
static void packs(matrix *m, const char *what, int64_t c)
{
    matrix_fill(m);
    for (int64_t slice = 0; slice < m->l.n_slices; slice++) {
        packed u = packed_new(m), half = packed_new(m);
        pack(m, slice, m->src, u);
        unit_matches(m, slice, u);
        runs_match(m, u);
        if (!verify(m, slice, u))
            fail_msg("%s %d slice %d: verify refuses what pack wrote", what, (int)c, (int)slice);
        changes_are_found(m, slice, u, false);
        changes_are_found(m, slice, u, true);
        /* One place at a time: the same bytes. */
        pack(m, slice, m->src, (packed){.weights = half.weights});
        pack(m, slice, m->src, (packed){.scales = half.scales});
        assert_memory_equal(half.weights, u.weights, m->l.unit_stride);
        assert_memory_equal(half.scales, u.scales, m->l.scale_stride);
    }
    assert_true(rig_release(&m->pool));
}

static void packing(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof pack_cases / sizeof *pack_cases; c++) {
        matrix m = {.l = pack_cases[c]};
        m.l.n_experts = 1;
        packs(&m, "case", (int64_t)c);
    }
}

/* Groups, slices and parts at random, with tails everywhere. */
static oct_weight_layout random_layout(oct_weight_type type)
{
    bool split_in = rig_int(&rng, 0, 1), interleave = rig_int(&rng, 0, 1);
    oct_weight_layout l = {.type = type,
                           .n_experts = 1,
                           .n_slices = rig_int(&rng, 1, 4),
                           .n_parts = interleave ? 2 : (int)rig_int(&rng, 1, 3),
                           .interleave = interleave,
                           .split = split_in ? OCT_SPLIT_IN : OCT_SPLIT_OUT};
    l.n_groups = rig_int(&rng, 1, 3) * (split_in ? l.n_slices : 1);
    int64_t group_in = rig_int(&rng, 1, 70);
    while (oct_weight_types[type].group_bytes(group_in) == 0)
        group_in++;
    l.n_in = l.n_groups * group_in;
    for (int p = 0; p < l.n_parts; p++)
        l.part_out[p] =
            interleave && p ? l.part_out[0] : rig_int(&rng, 1, 90) * (split_in ? 1 : l.n_slices);
    return l;
}

static void every_type_packs(void **state)
{
    (void)state;
    for (int t = 0; t < OCT_WEIGHT_TYPES; t++)
        for (int i = 0; i < 8 && !oct_q4_groups((oct_weight_type)t); i++) { /* those: test_q4 */
            matrix m = {.l = random_layout((oct_weight_type)t)};
            packs(&m, oct_weight_types[t].name, i);
        }
}

static void table_of_types(void **state)
{
    (void)state;
    oct_weight_type type;
    for (int t = 0; t < OCT_WEIGHT_TYPES; t++) {
        const oct_weight_type_info *info = &oct_weight_types[t];
        assert_true(info->number > 0 && info->name && info->name[0]);
        assert_true(oct_weight_type_find(info->number, &type));
        assert_int_equal(type, t); /* no other has the number */
        for (int u = 0; u < t; u++)
            assert_string_not_equal(info->name, oct_weight_types[u].name);
        assert_true(info->act_digits != 0 && (info->act_digits & ~6u) == 0);
        for (int digits = 0; digits < 4; digits++)
            assert_int_equal(oct_weight_takes(type, digits), info->act_digits >> digits & 1);
        for (int64_t n = 1; n < 300; n++) {
            oct_weight_layout l = layout_of(OCT_SPLIT_OUT, 1, 2 * n, 2, 100, 0, 0, false);
            l.type = (oct_weight_type)t;
            assert_int_equal(info->group_bytes(n) % 64, 0);
            assert_int_equal(oct_weight_layout_init(&l) == NULL, info->group_bytes(n) != 0);
        }
    }
    assert_true(oct_weight_type_find(1, &type) && type == OCT_WEIGHT_Q8);
    assert_true(oct_weight_takes(OCT_WEIGHT_Q8, 1) && oct_weight_takes(OCT_WEIGHT_Q8, 2));
    assert_false(oct_weight_type_find(0, &type)); /* plain, in a file */
    assert_false(oct_weight_type_find(UINT32_MAX, &type));
    oct_weight_layout l = layout_of(OCT_SPLIT_OUT, 1, 64, 1, 64, 0, 0, false);
    l.type = OCT_WEIGHT_TYPES;
    assert_non_null(oct_weight_layout_init(&l));
}

/* The padding of the last quad, byte by byte: 27 inputs leave one of four unused. */
static void padding_is_zero(void **state)
{
    (void)state;
    matrix m = {.l = layout_of(OCT_SPLIT_IN, 1, 54, 2, 70, 0, 0, false)};
    matrix_fill(&m);
    packed u = packed_new(&m);
    uint8_t *unit = u.weights;
    pack(&m, 0, m.src, u);
    for (int64_t panel = 0; panel < 2; panel++) {
        for (int64_t g = 0; g < 2; g++) {
            size_t last = (size_t)panel * m.l.panel_bytes + (size_t)(g * 7 + 6) * 256;
            for (size_t lane = 0; lane < 64; lane++) {
                assert_int_equal(unit[last + lane * 4 + 3], 0x80);
                unit[last + lane * 4 + 3] = 0x81;
                assert_false(verify(&m, 0, u));
                unit[last + lane * 4 + 3] = 0x80;
            }
        }
    }
    for (size_t i = m.l.unit_bytes; i < m.l.unit_stride; i++)
        assert_int_equal(unit[i], 0);
    /* Panel 1 has 6 channels: 58 lanes without scales. */
    for (size_t i = 0; i < m.l.scale_stride / 2; i++)
        if (i >= m.l.scale_bytes / 2 || (i >= 2 * 64 && i % 64 >= 6))
            assert_int_equal(u.scales[i], 0);
    assert_true(rig_release(&m.pool));
}

static void swapped_sources_are_found(void **state)
{
    (void)state;
    matrix m = {.l = layout_of(OCT_SPLIT_OUT, 2, 24, 2, 64, 64, 0, true)};
    matrix_fill(&m);
    packed u = packed_new(&m);
    oct_weight_source swapped[2] = {m.src[1], m.src[0]};
    pack(&m, 0, swapped, u);
    assert_false(verify(&m, 0, (packed){.weights = u.weights}));
    assert_false(verify(&m, 0, (packed){.scales = u.scales}));
    /* Scales of the two groups exchanged. */
    pack(&m, 0, m.src, u);
    uint16_t keep[64];
    memcpy(keep, u.scales, sizeof keep);
    memcpy(u.scales, u.scales + 64, sizeof keep);
    memcpy(u.scales + 64, keep, sizeof keep);
    assert_false(verify(&m, 0, u));
    /* Another slice. */
    pack(&m, 1, m.src, u);
    assert_false(verify(&m, 0, (packed){.weights = u.weights}));
    assert_false(verify(&m, 0, (packed){.scales = u.scales}));
    assert_true(rig_release(&m.pool));
}

/* ---- quantising weights ---- */

enum { ROWS = 60, COLS = 300, GROUPS = 3 };

static void quantise_error_is_bounded(void **state)
{
    (void)state;
    static float w[ROWS * COLS], back[ROWS * COLS];
    static int8_t q[ROWS * COLS];
    static uint16_t scales[GROUPS * COLS];
    static const float magnitude[] = {1.0f, 1e-3f, 3e4f, 1e-37f, 1e-40f, 1e-44f, 3e38f, 0.0f};
    for (int64_t i = 0; i < ROWS * COLS; i++)
        w[i] = rig_uniform(&rng) * magnitude[i % COLS % 8];
    assert_true(oct_q8_quantise(w, ROWS, COLS, GROUPS, q, scales));
    oct_q8_dequantise(q, scales, ROWS, COLS, GROUPS, back);
    for (int64_t i = 0; i < ROWS * COLS; i++) {
        int64_t col = i % COLS, group = i / COLS / (ROWS / GROUPS);
        float s = oct_f32_of_bf16(scales[group * COLS + col]);
        assert_true(q[i] >= -127);
        /* Half a step, and what rounding in f32 adds. */
        double bound = 0.5 * (double)s * 1.0001;
        if (fabs((double)w[i] - (double)back[i]) > bound)
            fail_msg("%g became %g with scale %g", (double)w[i], (double)back[i], (double)s);
    }
    oct_q8_error e = {0};
    for (int64_t i = 0; i < ROWS; i++)
        oct_q8_error_add(&e, w + i * COLS, back + i * COLS, 1);
    assert_int_equal(e.n, ROWS);
    assert_true(oct_q8_error_rel(&e) > 1e-4 && oct_q8_error_rel(&e) < 0.01);
}

static void quantise_keeps_integers(void **state)
{
    (void)state;
    static float w[ROWS * COLS];
    static int8_t q[ROWS * COLS], q2[ROWS * COLS];
    static uint16_t scales[GROUPS * COLS], scales2[GROUPS * COLS];
    for (int64_t i = 0; i < ROWS * COLS; i++)
        q[i] = (int8_t)(i / COLS % 7 == 0 ? 127 : rig_int(&rng, -127, 127));
    for (int64_t i = 0; i < GROUPS * COLS; i++)
        scales[i] = (uint16_t)rig_int(&rng, 0x3000, 0x4000);
    oct_q8_dequantise(q, scales, ROWS, COLS, GROUPS, w);
    assert_true(oct_q8_quantise(w, ROWS, COLS, GROUPS, q2, scales2));
    assert_memory_equal(scales, scales2, sizeof scales);
    assert_memory_equal(q, q2, sizeof q);
}

static void quantise_refuses_nan_and_inf(void **state)
{
    (void)state;
    float w[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    int8_t q[8];
    uint16_t scales[4];
    assert_true(oct_q8_quantise(w, 4, 2, 2, q, scales));
    for (int i = 0; i < 8; i++) {
        float was = w[i];
        w[i] = NAN;
        assert_false(oct_q8_quantise(w, 4, 2, 2, q, scales));
        w[i] = -INFINITY;
        assert_false(oct_q8_quantise(w, 4, 2, 2, q, scales));
        w[i] = was;
    }
}

static void error_metric(void **state)
{
    (void)state;
    oct_q8_error e = {0};
    assert_true(oct_q8_error_rel(&e) == 0.0);
    const float ref[] = {3, 4}, approx[] = {3, 3.5f}, one[] = {0}, zero[] = {0.25f};
    oct_q8_error_add(&e, ref, approx, 2);
    assert_true(fabs(oct_q8_error_rel(&e) - 0.1) < 1e-12);
    assert_true(e.max_abs == 0.5 && e.n == 2);
    oct_q8_error_add(&e, one, zero, 1);
    assert_true(e.sum_sq_err == 0.3125 && e.max_abs == 0.5);
}

/* ---- activations ---- */

static void act_layouts(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{6144, 1}, {32768, 8}, {216, 8},     {160, 8},
                                       {192, 8},  {1, 1},     {513, 1},     {256, 1},
                                       {6144, 8}, {64, 64},   {3 * 1025, 3}};
    for (size_t i = 0; i < 2 * (sizeof sizes / sizeof *sizes); i++) {
        oct_act_layout a;
        int digits = 1 + (int)(i % 2);
        oct_act_layout_init(&a, sizes[i / 2][0], sizes[i / 2][1], digits);
        assert_int_equal(a.digits, digits);
        assert_int_equal(a.most, digits == 1 ? 127 : 32639);
        assert_int_equal(a.block, digits == 1 ? OCT_ACT_BLOCK_I8 : 512);
        assert_int_equal(a.group_in * a.n_groups, a.n_in);
        assert_int_equal(a.group_pad % 64, 0);
        assert_true(a.group_pad >= a.group_in && a.group_pad < a.group_in + 64);
        assert_true(a.group_blocks * a.block >= a.group_in);
        assert_true((a.group_blocks - 1) * a.block < a.group_in);
        assert_int_equal(a.n_blocks, a.group_blocks * a.n_groups);
        assert_true(a.sums_at >= (size_t)a.n_blocks * 4 && a.sums_at % 4 == 0);
        assert_true(a.digits_at >= a.sums_at + (size_t)a.n_blocks * 8 && a.digits_at % 64 == 0);
        assert_true(a.bytes >= a.digits_at + (size_t)(a.n_groups * a.group_pad) * 2);
        assert_true(a.bytes >= (size_t)a.n_in * 4 && a.bytes % 64 == 0);
    }
}

static void check_act_error(int digits)
{
    enum { GROUP = 1300, N = 2 * GROUP };
    static float x[N], scale[N];
    static int16_t a[N];
    oct_act_layout l;
    oct_act_layout_init(&l, N, 2, digits);
    int64_t blocks = (GROUP + l.block - 1) / l.block;
    assert_int_equal(l.n_blocks, 2 * blocks);
    for (int64_t i = 0; i < N; i++)
        x[i] = rig_normal(&rng) * (i == 700 ? 1e4f : 1.0f);
    oct_act_quantise_ref(&l, x, a, scale);
    for (int64_t g = 0; g < 2; g++) {
        for (int64_t b = 0; b < blocks; b++) {
            float max = 0.0f, s = scale[g * blocks + b];
            int most = 0;
            for (int64_t i = b * l.block; i < GROUP && i < (b + 1) * l.block; i++) {
                float v = x[g * GROUP + i];
                max = fabsf(v) > max ? fabsf(v) : max;
                most = abs(a[g * GROUP + i]) > most ? abs(a[g * GROUP + i]) : most;
                double error = fabs((double)v - (double)s * a[g * GROUP + i]);
                assert_true(error <= 0.5 * (double)s + 1e-6 * fabs((double)v));
            }
            assert_true(s == max / (float)l.most);
            assert_int_equal(most, l.most);
        }
    }
}

static void act_error_is_bounded(void **state)
{
    (void)state;
    check_act_error(2);
    check_act_error(1);
}

static void check_special_values(int digits)
{
    oct_act_layout l;
    oct_act_layout_init(&l, 4, 1, digits);
    int16_t a[4];
    float s;
    oct_act_quantise_ref(&l, (const float[]){0, -0.0f, 0, 0}, a, &s);
    assert_true(s == 0.0f && a[0] == 0);
    oct_act_quantise_ref(&l, (const float[]){9e-31f, 0, 0, 0}, a, &s);
    assert_true(s == 0.0f && a[0] == 0);
    oct_act_quantise_ref(&l, (const float[]){2e-30f, 0, 0, 0}, a, &s);
    assert_true(s > 0.0f && a[0] == l.most);
    oct_act_quantise_ref(&l, (const float[]){1, 2, NAN, 4}, a, &s);
    assert_true(isnan(s) && a[0] == 0 && a[3] == 0);
    oct_act_quantise_ref(&l, (const float[]){1, 2, 3, -INFINITY}, a, &s);
    assert_true(isnan(s) && a[0] == 0 && a[3] == 0);
    oct_act_quantise_ref(&l, (const float[]){3.4e38f, -3.4e38f, 1.7e38f, 0}, a, &s);
    assert_true(isfinite(s) && a[0] == l.most && a[1] == -l.most && a[3] == 0);
    /* Halves go to even: with the largest integer as maximum the scale is 1. */
    oct_act_quantise_ref(&l, (const float[]){(float)l.most, 0.5f, 1.5f, -2.5f}, a, &s);
    assert_true(s == 1.0f && a[1] == 0 && a[2] == 2 && a[3] == -2);
}

static void act_special_values(void **state)
{
    (void)state;
    check_special_values(2);
    check_special_values(1);
}

/* ---- 16-bit floats ---- */

static void f16_is_exact(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = oct_f32_of_f16((uint16_t)h);
        uint32_t exponent = h >> 10 & 31, mantissa = h & 1023;
        double want = exponent ? ldexp(1024 + mantissa, (int)exponent - 25) : ldexp(mantissa, -24);
        if (exponent == 31) {
            assert_true(mantissa ? isnan(f) : isinf(f));
        } else {
            assert_true((double)fabsf(f) == want);
        }
        assert_int_equal(!!signbit(f), h >> 15);
        if (exponent != 31 || !mantissa)
            assert_int_equal(oct_f16_of_f32(f), h);
        else
            assert_int_equal(oct_f16_of_f32(f), h | 0x200);
    }
}

/* Half way between neighbours goes to the even one, a hair to either side to the nearer. */
static void f16_rounds_to_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) {
        float low = oct_f32_of_f16((uint16_t)h), high = oct_f32_of_f16((uint16_t)(h + 1));
        float middle = (low + high) * 0.5f;
        assert_int_equal(oct_f16_of_f32(middle), h % 2 ? h + 1 : h);
        assert_int_equal(oct_f16_of_f32(nextafterf(middle, 0)), h);
        assert_int_equal(oct_f16_of_f32(nextafterf(middle, INFINITY)), h + 1);
        assert_int_equal(oct_f16_of_f32(-nextafterf(middle, INFINITY)), (h + 1) | 0x8000);
    }
    assert_int_equal(oct_f16_of_f32(65519.996f), 0x7bff);
    assert_int_equal(oct_f16_of_f32(65520.0f), 0x7c00);
    assert_int_equal(oct_f16_of_f32(3e38f), 0x7c00);
    assert_int_equal(oct_f16_of_f32(-INFINITY), 0xfc00);
    assert_int_equal(oct_f16_of_f32(1e-40f), 0);
}

static void bf16_rounds_to_even(void **state)
{
    (void)state;
    for (uint32_t b = 0; b < 0x7f7f; b++) {
        float low = oct_f32_of_bf16((uint16_t)b);
        float middle = oct_f32_of_bits(b << 16 | 0x8000);
        assert_int_equal(oct_bf16_of_f32(low), b);
        assert_int_equal(oct_bf16_of_f32(middle), b % 2 ? b + 1 : b);
        assert_int_equal(oct_bf16_of_f32(nextafterf(middle, 0)), b);
        assert_int_equal(oct_bf16_of_f32(-nextafterf(middle, INFINITY)), (b + 1) | 0x8000);
    }
    assert_int_equal(oct_bf16_of_f32(INFINITY), 0x7f80);
    assert_true(isnan(oct_f32_of_bf16(oct_bf16_of_f32(NAN))));
    assert_true(isnan(oct_f32_of_bf16(oct_bf16_of_f32(oct_f32_of_bits(0x7f800001)))));
}

int main(void)
{
    rng.state = rig_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grok1_layouts),
        cmocka_unit_test(bad_layouts),
        cmocka_unit_test(packing),
        cmocka_unit_test(every_type_packs),
        cmocka_unit_test(table_of_types),
        cmocka_unit_test(padding_is_zero),
        cmocka_unit_test(swapped_sources_are_found),
        cmocka_unit_test(quantise_error_is_bounded),
        cmocka_unit_test(quantise_keeps_integers),
        cmocka_unit_test(quantise_refuses_nan_and_inf),
        cmocka_unit_test(error_metric),
        cmocka_unit_test(act_layouts),
        cmocka_unit_test(act_error_is_bounded),
        cmocka_unit_test(act_special_values),
        cmocka_unit_test(f16_is_exact),
        cmocka_unit_test(f16_rounds_to_even),
        cmocka_unit_test(bf16_rounds_to_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
