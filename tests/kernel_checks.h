/* kernel_checks.h: one check for every slot of kernels.inc, check_<slot>(row). Each runs the row's
 * kernel over sizes and patterns, in buffers that end at a forbidden page and with inputs that
 * cannot be written to, and returns NULL or what went wrong. Results must equal the oracle's bit
 * for bit and lie within a bound of the reference row's, which sums in double. */
#ifndef OCT_TEST_KERNEL_CHECKS_H
#define OCT_TEST_KERNEL_CHECKS_H

#include <float.h>
#include <math.h>

#include "kernel_oracle.h"
#include "kernels.h"
#include "rig.h"

static rig_rng check_rng;
static rig_pool check_pool;
static char check_text[256];
static int check_digits = 2; /* of the activations of linear */

static const oct_kernels *const ref_row = &oct_kernel_rows[OCT_KERNELS_REF];

#define CHECK_FAILS(...)                                      \
    do {                                                      \
        snprintf(check_text, sizeof check_text, __VA_ARGS__); \
        rig_release(&check_pool);                             \
        return check_text;                                    \
    } while (0)

/* Ends a case: what was written beside the buffers. */
#define CHECK_CASE_ENDS(...)                                                                \
    do {                                                                                    \
        if (!rig_release(&check_pool)) {                                                    \
            snprintf(check_text, sizeof check_text, "wrote beside a buffer: " __VA_ARGS__); \
            return check_text;                                                              \
        }                                                                                   \
    } while (0)

#define CHECK_RUNS(call, ...)                     \
    do {                                          \
        if (!RIG_SURVIVES(call))                  \
            CHECK_FAILS("crashed: " __VA_ARGS__); \
    } while (0)

/* ---- patterns ---- */

enum pattern {
    NORMAL, /* the only one with a bound against the reference row in every check */
    HEAVY,  /* a few values a thousand times larger */
    SAME,
    ALTERNATING,
    ZEROS,
    ONE_HOT,
    TINY,
    HUGE_VALUES,
    WITH_NAN,
    WITH_INF,
    PATTERNS
};

static void fill_floats(float *x, int64_t n, enum pattern p)
{
    for (int64_t i = 0; i < n; i++) {
        float v = rig_normal(&check_rng);
        switch (p) {
        case SAME: v = -3.25f; break;
        case ALTERNATING: v = i % 2 ? 2.5f : -2.5f; break;
        case ZEROS:
        case ONE_HOT: v = i % 3 ? 0.0f : -0.0f; break;
        case HEAVY: v *= rig_int(&check_rng, 0, 60) ? 1.0f : 1000.0f; break;
        case TINY: v *= 1e-31f; break;
        case HUGE_VALUES: v *= 1e37f; break;
        default: break;
        }
        x[i] = v;
    }
    if (n > 0 && p == ONE_HOT)
        x[rig_int(&check_rng, 0, n - 1)] = 1.0f;
    if (n > 0 && p == WITH_NAN)
        x[rig_int(&check_rng, 0, n - 1)] = NAN;
    if (n > 0 && p == WITH_INF)
        x[rig_int(&check_rng, 0, n - 1)] = -INFINITY;
}

static float *new_input(int64_t n, enum pattern p)
{
    float *x = rig_buffer_new(&check_pool, (size_t)n * 4, 4);
    fill_floats(x, n, p);
    rig_seal(&check_pool);
    return x;
}

static float *new_copy(const float *from, int64_t n)
{
    float *x = rig_buffer_new(&check_pool, (size_t)n * 4, 4);
    if (n > 0)
        memcpy(x, from, (size_t)n * 4);
    return x;
}

static void fill_weights(int8_t *q, int64_t n, int pattern)
{
    for (int64_t i = 0; i < n; i++) {
        switch (pattern % 6) {
        case 1: q[i] = -128; break;
        case 2: q[i] = 127; break;
        case 3: q[i] = (int8_t)(i / 64 % 2 ? 127 : -128); break;
        case 4: q[i] = 0; break;
        default: q[i] = (int8_t)rig_int(&check_rng, -128, 127);
        }
    }
}

/* ---- linear and act_quantise ---- */

typedef struct linear_shape {
    int64_t group_in, unit_groups, row_groups, first_group, n_rows;
} linear_shape;

static const linear_shape linear_shapes[] = {
    {1, 1, 1, 0, 1},     {2, 1, 1, 0, 2},    {3, 2, 2, 0, 3},    {4, 1, 1, 0, 4},
    {5, 1, 1, 0, 5},     {16, 1, 8, 7, 6},   {20, 1, 8, 3, 7},   {24, 1, 8, 5, 1},
    {27, 1, 8, 2, 8},    {27, 4, 8, 4, 9},   {31, 3, 3, 0, 13},  {63, 1, 1, 0, 10},
    {64, 2, 2, 0, 11},   {65, 1, 2, 1, 12},  {127, 1, 1, 0, 1},  {128, 8, 8, 0, 2},
    {256, 1, 1, 0, 13},  {509, 1, 1, 0, 3},  {511, 1, 2, 1, 2},  {512, 2, 2, 0, 5},
    {513, 2, 4, 1, 3},   {768, 1, 8, 6, 6},  {1031, 2, 2, 0, 4}, {1536, 1, 1, 0, 1},
    {4096, 1, 8, 5, 13}, {6144, 1, 1, 0, 4}, {64, 1, 1, 0, 0},   {40, 1, 1, 0, 101},
    {200, 1, 1, 0, 19},  {72, 1, 2, 0, 23},
};

typedef struct linear_case {
    oct_weight_layout w;
    oct_act_layout act;
    int64_t n_panels, ld; /* ld: channels, 64 for each panel */
    int8_t *q;            /* [unit_in][ld] */
    uint16_t *scales;     /* [unit_groups][ld] */
    uint8_t *panel;
    uint16_t *panel_scales; /* [n_panels][unit_groups][64] */
    float **x;              /* [n_rows] */
    const void **rows;      /* [n_rows] of the row under test */
    const void **ref_rows;  /* [n_rows] of the reference */
    int16_t *a;             /* [n_in] of one row */
    float *s;               /* [n_blocks] */
    float *y, *near;        /* [n_panels][n_rows][64] of both rows */
    float *want;            /* [64] of the oracle */
} linear_case;

static void *scratch(size_t bytes)
{
    return rig_buffer_new(&check_pool, bytes, 64);
}

static void linear_case_make(const linear_shape *s, int64_t n_panels, int pattern, linear_case *c)
{
    int64_t unit_in = s->group_in * s->unit_groups, n_in = s->group_in * s->row_groups;
    c->n_panels = n_panels;
    c->ld = n_panels * OCT_PANEL;
    c->w = (oct_weight_layout){.n_experts = 1,
                               .n_slices = 1,
                               .n_in = unit_in,
                               .n_groups = s->unit_groups,
                               .part_out = {c->ld},
                               .n_parts = 1};
    if (oct_weight_layout_init(&c->w))
        abort();
    oct_act_layout_init(&c->act, n_in, s->row_groups, check_digits);
    c->q = scratch((size_t)(unit_in * c->ld));
    fill_weights(c->q, unit_in * c->ld, pattern / PATTERNS + pattern);
    c->scales = scratch((size_t)(s->unit_groups * c->ld) * 2);
    for (int64_t i = 0; i < s->unit_groups * c->ld; i++)
        c->scales[i] = (uint16_t)rig_int(&check_rng, 0x3a00, 0x3d00);
    uint8_t *unit = scratch(c->w.unit_stride);
    uint16_t *unit_scales = scratch(c->w.scale_stride);
    oct_weight_source src = {.w = c->q, .scales = c->scales, .ld = c->ld};
    oct_weight_pack(&c->w, 0, &src, unit, unit_scales);
    c->panel = rig_input(&check_pool, unit, c->w.unit_bytes, 64);
    c->panel_scales = rig_input(&check_pool, unit_scales, c->w.scale_bytes, 64);
    size_t n_rows = (size_t)s->n_rows;
    c->x = scratch(n_rows * sizeof *c->x);
    c->rows = scratch(n_rows * sizeof *c->rows);
    c->ref_rows = scratch(n_rows * sizeof *c->ref_rows);
    for (int64_t r = 0; r < s->n_rows; r++) {
        /* Row r of a run has the pattern's neighbour r; the first has the pattern itself. */
        bool plain = pattern % PATTERNS == NORMAL;
        c->x[r] = new_input(n_in, plain ? NORMAL : (enum pattern)((pattern + r) % PATTERNS));
        c->ref_rows[r] = scratch(c->act.bytes);
        ref_row->act_quantise(&c->act, c->x[r], (void *)(uintptr_t)c->ref_rows[r]);
        c->rows[r] = NULL;
    }
    c->a = scratch((size_t)n_in * 2);
    c->s = scratch((size_t)c->act.n_blocks * 4);
    const size_t y_bytes = n_rows * (size_t)c->ld * sizeof(float);
    c->y = scratch(y_bytes);
    memset(c->y, 0x55, y_bytes);
    c->near = scratch(y_bytes);
    c->want = scratch(256);
}

/* Largest distance from the reference row that rounded activations explain: half a step each. */
static double linear_bound(const linear_case *c, const linear_shape *s, int64_t r, int64_t channel)
{
    double bound = 0.0;
    for (int64_t i = 0; i < s->group_in * s->unit_groups; i++) {
        int64_t g = i / s->group_in, row_g = s->first_group + g;
        double step = (double)c->s[row_g * c->act.group_blocks + i % s->group_in / c->act.block];
        double x = fabs((double)c->x[r][row_g * s->group_in + i % s->group_in]);
        double w = fabs((double)c->q[i * c->ld + channel] *
                        (double)oct_f32_of_bf16(c->scales[g * c->ld + channel]));
        bound += w * (0.501 * step + 2e-6 * x);
    }
    return bound;
}

/* One row's 64 channels of a panel; c->a and c->s are the row's. */
static const char *linear_row_check(const linear_case *c, const linear_shape *s, int pattern,
                                    int64_t r, int64_t p)
{
    const float *y = c->y + (p * s->n_rows + r) * 64, *near = c->near + (p * s->n_rows + r) * 64;
    oracle_linear_row(&c->w, &c->act, c->q + p * 64, c->scales + p * 64, c->ld, c->a, c->s,
                      s->first_group, c->want);
    int64_t lane = rig_differs(y, c->want, 64);
    if (lane >= 0)
        CHECK_FAILS("%d x group of %d, panel %d of %d, row %d of %d, lane %d, pattern %d: %.9g, "
                    "expected %.9g",
                    (int)s->unit_groups, (int)s->group_in, (int)p, (int)c->n_panels, (int)r,
                    (int)s->n_rows, (int)lane, pattern, (double)y[lane], (double)c->want[lane]);
    for (lane = 0; lane < 64 && pattern % PATTERNS == NORMAL; lane++)
        if (!(fabs((double)y[lane] - (double)near[lane]) <= linear_bound(c, s, r, p * 64 + lane)))
            CHECK_FAILS("group of %d: %.9g is too far from ref's %.9g", (int)s->group_in,
                        (double)y[lane], (double)near[lane]);
    return NULL;
}

static const char *linear_case_run(const oct_kernels *k, const linear_shape *s, int64_t n_panels,
                                   int pattern)
{
    linear_case c;
    linear_case_make(s, n_panels, pattern, &c);
    for (int64_t r = 0; r < s->n_rows; r++) {
        void *row = scratch(c.act.bytes);
        CHECK_RUNS(k->act_quantise(&c.act, c.x[r], row), "act_quantise, group of %d",
                   (int)s->group_in);
        rig_seal(&check_pool);
        c.rows[r] = row;
    }
    oct_linear_args args = {.w = &c.w,
                            .n_panels = n_panels,
                            .panel = c.panel,
                            .scales = c.panel_scales,
                            .act = &c.act,
                            .rows = c.rows,
                            .n_rows = s->n_rows,
                            .first_group = s->first_group,
                            .y = c.y};
    CHECK_RUNS(k->linear_q8(&args), "group of %d, pattern %d", (int)s->group_in, pattern);
    args.rows = c.ref_rows;
    args.y = c.near;
    ref_row->linear_q8(&args);
    for (int64_t r = 0; r < s->n_rows; r++) {
        oct_act_quantise_ref(&c.act, c.x[r], c.a, c.s);
        for (int64_t p = 0; p < n_panels; p++) {
            const char *wrong = linear_row_check(&c, s, pattern, r, p);
            if (wrong)
                return wrong;
        }
    }
    CHECK_CASE_ENDS("linear, group of %d", (int)s->group_in);
    return NULL;
}

static const char *linear_shapes_run(const oct_kernels *k)
{
    for (size_t i = 0; i < sizeof linear_shapes / sizeof *linear_shapes; i++) {
        const linear_shape *s = &linear_shapes[i];
        /* Large ones fewer patterns, so that the whole takes a moment. */
        int step = s->group_in * s->unit_groups > 1000 ? 7 : 1;
        for (int p = 0; p < 3 * PATTERNS; p += step) {
            const char *wrong = linear_case_run(k, s, 1 + p % 3, p);
            if (wrong)
                return wrong;
        }
    }
    return NULL;
}

/* Scales lie where all rows keep them; the digits are read back by one-hot weights. */
static const char *act_sizes_run(const oct_kernels *k)
{
    static const int64_t sizes[][2] = {{1, 1},    {27 * 8, 8}, {160, 8}, {192, 8}, {511, 1},
                                       {1031, 1}, {6144, 1},   {100, 4}, {768, 2}, {4096 * 2, 2}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes * PATTERNS; i++) {
        enum pattern p = (enum pattern)(i % PATTERNS);
        int64_t n_in = sizes[i / PATTERNS][0], n_groups = sizes[i / PATTERNS][1];
        oct_act_layout l;
        oct_act_layout_init(&l, n_in, n_groups, check_digits);
        float *x = new_input(n_in, p), *s = scratch((size_t)l.n_blocks * 4),
              *row = scratch(l.bytes);
        int16_t *a = scratch((size_t)n_in * 2);
        oct_act_quantise_ref(&l, x, a, s);
        CHECK_RUNS(k->act_quantise(&l, x, row), "%d inputs, pattern %d", (int)n_in, p);
        int64_t b = rig_differs(row, s, l.n_blocks);
        if (b >= 0)
            CHECK_FAILS("%d inputs, pattern %d: scale %d is %.9g, expected %.9g", (int)n_in, p,
                        (int)b, (double)row[b], (double)s[b]);
        CHECK_CASE_ENDS("act_quantise of %d", (int)n_in);
    }
    /* Inputs 0 .. group_in - 1 of one group, 64 channels at a time: channel j weighs input i0 + j
     * by 1. */
    enum { GROUP = 603 };
    for (int64_t i0 = 0; i0 < GROUP; i0 += 64) {
        linear_shape shape = {GROUP, 1, 1, 0, 1};
        linear_case c;
        linear_case_make(&shape, 1, HEAVY, &c);
        memset(c.q, 0, GROUP * 64);
        for (int64_t j = 0; j < 64 && i0 + j < GROUP; j++)
            c.q[(i0 + j) * 64 + j] = 1;
        uint8_t *unit = scratch(c.w.unit_stride);
        oct_weight_source src = {.w = c.q, .scales = c.scales, .ld = 64};
        oct_weight_pack(&c.w, 0, &src, unit, NULL);
        void *row = scratch(c.act.bytes);
        CHECK_RUNS(k->act_quantise(&c.act, c.x[0], row), "603 inputs");
        const void *rows[] = {row};
        oct_linear_args args = {.w = &c.w,
                                .n_panels = 1,
                                .panel = unit,
                                .scales = c.panel_scales,
                                .act = &c.act,
                                .rows = rows,
                                .n_rows = 1,
                                .y = c.y};
        CHECK_RUNS(k->linear_q8(&args), "603 inputs");
        oct_act_quantise_ref(&c.act, c.x[0], c.a, c.s);
        oracle_linear_row(&c.w, &c.act, c.q, c.scales, c.ld, c.a, c.s, 0, c.want);
        if (rig_differs(c.y, c.want, 64) >= 0)
            CHECK_FAILS("digits near input %d are wrong", (int)i0);
        CHECK_CASE_ENDS("act_quantise of 603");
    }
    return NULL;
}

/* Both widths of activations; the first failure, with the width. */
static const char *both_digits(const oct_kernels *k, const char *(*run)(const oct_kernels *))
{
    static char text[sizeof check_text + 32];
    const char *wrong = NULL;
    for (int digits = 2; digits >= 1 && !wrong; digits--) {
        check_digits = digits;
        wrong = run(k);
        if (wrong)
            snprintf(text, sizeof text, "%d digit%s: %s", digits, digits > 1 ? "s" : "", wrong);
    }
    check_digits = 2;
    return wrong ? text : NULL;
}

static const char *check_linear_q8(const oct_kernels *k)
{
    return both_digits(k, linear_shapes_run);
}

static const char *check_act_quantise(const oct_kernels *k)
{
    return both_digits(k, act_sizes_run);
}

/* ---- attention ---- */

static void *new_kv(const float *x, int64_t n, oct_kv_type type)
{
    size_t size = type == OCT_KV_F32 ? 4 : 2;
    void *p = rig_buffer_new(&check_pool, (size_t)n * size, size);
    for (int64_t i = 0; i < n; i++) {
        bool saturated;
        uint32_t bits = oracle_kv_bits(type, x[i], &saturated);
        uint16_t half = (uint16_t)bits;
        memcpy((char *)p + (size_t)i * size, size == 4 ? (void *)&bits : (void *)&half, size);
    }
    rig_seal(&check_pool);
    return p;
}

static const char *attn_case_run(const oct_kernels *k, int64_t n_heads, int64_t head_dim,
                                 int64_t n_pos, oct_kv_type type, enum pattern p)
{
    int64_t stride = (head_dim + 15) / 16 * 16, groups = (n_pos + 15) / 16;
    float *kf = scratch((size_t)(groups * head_dim * 16) * 4);
    float *vf = scratch((size_t)(n_pos * stride) * 4);
    fill_floats(kf, groups * head_dim * 16, p);
    fill_floats(vf, n_pos * stride, p == TINY ? NORMAL : p);
    /* Whatever lies beyond n_pos in K is masked; V is padded with zeros. */
    for (int64_t i = 0; i < groups * head_dim * 16; i++)
        if (i / (head_dim * 16) * 16 + i % 16 >= n_pos)
            kf[i] = i % 3 ? NAN : 1e4f;
    for (int64_t i = 0; i < n_pos * stride; i++)
        if (i % stride >= head_dim)
            vf[i] = 0.0f;
    oct_attn_args a = {.q = new_input(n_heads * head_dim, p == WITH_NAN ? NORMAL : p),
                       .k = new_kv(kf, groups * head_dim * 16, type),
                       .v = new_kv(vf, n_pos * stride, type),
                       .type = type,
                       .n_heads = n_heads,
                       .head_dim = head_dim,
                       .v_stride = stride,
                       .n_pos = n_pos,
                       .scale = 1.0f / sqrtf((float)head_dim),
                       .cap = 30.0f};
    float *start = scratch((size_t)(n_heads * (stride + 1)) * 4);
    fill_floats(start, n_heads * (stride + 1), NORMAL);
    float *got[3];
    for (int i = 0; i < 3; i++) {
        got[i] = new_copy(start, n_heads * (stride + 1));
        a.o = got[i];
        a.l = got[i] + n_heads * stride;
        if (i == 0)
            CHECK_RUNS(k->attn(&a), "%d heads of %d, %d positions", (int)n_heads, (int)head_dim,
                       (int)n_pos);
        else if (i == 1)
            oracle_attn(&a);
        else
            ref_row->attn(&a);
    }
    int64_t at = rig_differs(got[0], got[1], n_heads * (stride + 1));
    if (at >= 0)
        CHECK_FAILS("%d heads of %d, %d positions, type %d, pattern %d: value %d is %.9g, expected "
                    "%.9g",
                    (int)n_heads, (int)head_dim, (int)n_pos, type, p, (int)at, (double)got[0][at],
                    (double)got[1][at]);
    /* p is off by at most 1e-4 of itself (the score, up to 30, by a few ulp), and |v| <= 6. */
    for (int64_t i = 0; i < n_heads * (stride + 1) && p == NORMAL; i++) {
        double sum = (double)got[2][n_heads * stride + i % n_heads];
        if (!(fabs((double)got[0][i] - (double)got[2][i]) <= 1e-4 * 6 * (fabs(sum) + 1.0)))
            CHECK_FAILS("attn: %.9g is too far from ref's %.9g", (double)got[0][i],
                        (double)got[2][i]);
    }
    CHECK_CASE_ENDS("attn, %d heads of %d", (int)n_heads, (int)head_dim);
    return NULL;
}

static const char *check_attn(const oct_kernels *k)
{
    static const int64_t dims[] = {8, 16, 96, 128, 20, 1};
    static const int64_t pos[] = {1, 2, 15, 16, 17, 31, 48, 63, 64, 65, 100, 127, 128};
    for (size_t i = 0; i < sizeof pos / sizeof *pos; i++) {
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
            size_t turn = i * 7 + d;
            for (int type = 0; type < 3; type++) {
                const char *wrong =
                    attn_case_run(k, 1 + (int64_t)(turn % 13), dims[d], pos[i], (oct_kv_type)type,
                                  turn % 3 ? (enum pattern)(turn % PATTERNS) : NORMAL);
                if (wrong)
                    return wrong;
            }
        }
    }
    return NULL;
}

/* ---- dot products ---- */

static const char *dot_case_run(const oct_kernels *k, bool bf16, int64_t n_rows, int64_t n_out,
                                int64_t n_in, enum pattern p)
{
    int64_t stride = n_in + rig_int(&check_rng, 0, 3), y_stride = n_out + 5;
    int64_t n_w = n_out > 0 ? (n_out - 1) * stride + n_in : 0;
    float *wf = scratch((size_t)n_w * 4);
    fill_floats(wf, n_w, NORMAL);
    for (int64_t i = 0; i < n_w && bf16; i++)
        wf[i] = oct_f32_of_bf16(oct_bf16_of_f32(wf[i]));
    const float **rows = scratch((size_t)n_rows * sizeof *rows);
    for (int64_t r = 0; r < n_rows; r++)
        rows[r] = new_input(n_in, r % 2 ? NORMAL : p);
    int64_t n_y = n_rows > 0 ? (n_rows - 1) * y_stride + n_out : 0;
    float *y = rig_buffer_new(&check_pool, (size_t)n_y * 4, 4), *near = scratch((size_t)n_y * 4);
    memset(y, 0x55, (size_t)n_y * 4);
    oct_dot_args a = {.w = new_kv(wf, n_w, bf16 ? OCT_KV_BF16 : OCT_KV_F32),
                      .w_stride = stride,
                      .rows = rows,
                      .n_rows = n_rows,
                      .n_out = n_out,
                      .n_in = n_in,
                      .scale = 0.57f,
                      .y = y,
                      .y_stride = y_stride};
    CHECK_RUNS((bf16 ? k->dot_bf16 : k->dot_f32)(&a), "%d x %d x %d", (int)n_rows, (int)n_out,
               (int)n_in);
    a.y = near;
    (bf16 ? ref_row->dot_bf16 : ref_row->dot_f32)(&a);
    for (int64_t i = 0; i < n_y; i++) {
        int64_t r = i / y_stride, j = i % y_stride;
        float want;
        if (j >= n_out) {
            memset(&want, 0x55, sizeof want); /* between the rows: untouched */
        } else {
            want = 0.57f * oracle_dot(rows[r], wf + j * stride, n_in);
            double bound = 1e-9;
            for (int64_t m = 0; m < n_in; m++)
                bound += 1e-6 * fabs((double)rows[r][m] * (double)wf[j * stride + m]);
            if (p == NORMAL && !(fabs((double)y[i] - (double)near[i]) <= bound))
                CHECK_FAILS("dot: %.9g is too far from ref's %.9g", (double)y[i], (double)near[i]);
        }
        if (rig_differs(&y[i], &want, 1) >= 0)
            CHECK_FAILS("%d rows, %d x %d: y[%d][%d] is %.9g, expected %.9g", (int)n_rows,
                        (int)n_out, (int)n_in, (int)r, (int)j, (double)y[i], (double)want);
    }
    CHECK_CASE_ENDS("dot of %d", (int)n_in);
    return NULL;
}

static const char *check_dot(const oct_kernels *k, bool bf16)
{
    static const int64_t sizes[][3] = {
        {1, 1, 1},    {0, 3, 8},    {1, 0, 8},    {2, 3, 0},    {1, 8, 96},   {1, 5, 15},
        {3, 7, 17},   {4, 4, 31},   {5, 9, 64},   {13, 11, 96}, {8, 16, 256}, {1, 19, 1031},
        {1, 8, 6144}, {9, 8, 6144}, {2, 64, 128}, {7, 2, 333},  {40, 3, 20},  {6, 33, 33},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int p = 0; p<PATTERNS; p += sizes[i][2]> 1000 ? 4 : 1) {
            const char *wrong =
                dot_case_run(k, bf16, sizes[i][0], sizes[i][1], sizes[i][2], (enum pattern)p);
            if (wrong)
                return wrong;
        }
    }
    return NULL;
}

static const char *check_dot_bf16(const oct_kernels *k)
{
    return check_dot(k, true);
}

static const char *check_dot_f32(const oct_kernels *k)
{
    return check_dot(k, false);
}

#include "vector_checks.h"

/* ---- keys and values ---- */

static const char *kv_store_case(const oct_kernels *k, int64_t n, enum pattern p, oct_kv_type type,
                                 int64_t stride)
{
    size_t size = type == OCT_KV_F32 ? 4 : 2, n_dst = n > 0 ? (size_t)((n - 1) * stride + 1) : 0;
    float *x = rig_buffer_new(&check_pool, (size_t)n * 4, 4);
    fill_floats(x, n, p);
    /* Around each type's limit, and whatever bits come. */
    static const float edge[] = {65504.0f, 65519.0f,  -65520.0f, 0x1.fep127f,
                                 FLT_MAX,  -FLT_MAX,  6e-8f,     1e-40f,
                                 INFINITY, -INFINITY, -65504.0f, 0x1.ff0002p127f};
    for (int64_t i = 0; i < n && p == HEAVY; i++)
        x[i] = i % 3 ? edge[(i + n) % 12] : oct_f32_of_bits((uint32_t)rig_next(&check_rng));
    rig_seal(&check_pool);
    uint8_t *dst = rig_buffer_new(&check_pool, n_dst * size, size);
    memset(dst, 0x5a, n_dst * size);
    int64_t count = -1, want_count = 0;
    CHECK_RUNS(count = k->kv_store(x, n, type, dst, stride), "n = %d, type %d", (int)n, type);
    for (int64_t i = 0; i < (int64_t)n_dst; i++) {
        uint32_t bits = 0;
        memcpy(&bits, dst + (size_t)i * size, size);
        uint32_t want = size == 4 ? 0x5a5a5a5au : 0x5a5au;
        bool saturated = false, nan = false;
        if (i % stride == 0) {
            float v = x[i / stride];
            want = oracle_kv_bits(type, v, &saturated);
            uint32_t inf = type == OCT_KV_F16    ? 0x7c00u
                           : type == OCT_KV_BF16 ? 0x7f80u
                                                 : 0x7f800000u;
            nan = v != v && (bits & (inf * 2 - 1) & (size == 4 ? ~0u >> 1 : 0x7fffu)) > inf;
        }
        want_count += saturated;
        if (bits != want && !nan)
            CHECK_FAILS("n = %d, type %d, stride %d: element %d is %x, expected %x", (int)n, type,
                        (int)stride, (int)i, bits, want);
    }
    if (count != want_count)
        CHECK_FAILS("n = %d, type %d: %d saturated, expected %d", (int)n, type, (int)count,
                    (int)want_count);
    CHECK_CASE_ENDS("kv_store of %d", (int)n);
    return NULL;
}

static const char *check_kv_store(const oct_kernels *k)
{
    for (int i = 0; i < VECTOR_SIZES * PATTERNS; i++) {
        for (int type = 0; type < 3; type++) {
            const char *wrong =
                kv_store_case(k, vector_sizes[i / PATTERNS] % 1024, (enum pattern)(i % PATTERNS),
                              (oct_kv_type)type, i % 2 ? 16 : 1);
            if (wrong)
                return wrong;
        }
    }
    return NULL;
}

#endif
