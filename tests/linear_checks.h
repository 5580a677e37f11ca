/* linear_checks.h: the checks of linear, of every weight type, and of act_quantise; a part of
 * kernel_checks.h, which has patterns, buffers and how a check fails. */
#ifndef OCT_TEST_LINEAR_CHECKS_H
#define OCT_TEST_LINEAR_CHECKS_H

static int check_digits = 2;                       /* of the activations of linear */
static oct_weight_type check_type = OCT_WEIGHT_Q8; /* of its weights */

/* ---- weights ---- */

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

/* Bytes of a packed unit of a type that has not got every integer: any bytes are legal, and q is
 * what they stand for. */
static void fill_packed(const oct_weight_layout *l, uint8_t *unit, int64_t ld, int pattern,
                        int8_t *q)
{
    for (size_t i = 0; i < l->unit_bytes; i++)
        unit[i] = pattern % 6 == 1   ? 0
                  : pattern % 6 == 2 ? 0xff
                                     : (uint8_t)rig_int(&check_rng, 0, 255);
    int8_t *lane = rig_buffer_new(&check_pool, (size_t)l->n_in, 1);
    for (int64_t o = 0; o < ld; o++) {
        oct_weight_unpack(l, unit, o / OCT_PANEL, (int)(o % OCT_PANEL), 0, l->n_in, lane);
        for (int64_t i = 0; i < l->n_in; i++)
            q[i * ld + o] = lane[i];
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
    c->w = (oct_weight_layout){.type = check_type,
                               .n_experts = 1,
                               .n_slices = 1,
                               .n_in = unit_in,
                               .n_groups = s->unit_groups,
                               .part_out = {c->ld},
                               .n_parts = 1};
    if (oct_weight_layout_init(&c->w))
        abort();
    oct_act_layout_init(&c->act, n_in, s->row_groups, check_digits);
    c->q = scratch((size_t)(unit_in * c->ld));
    c->scales = scratch((size_t)(s->unit_groups * c->ld) * 2);
    for (int64_t i = 0; i < s->unit_groups * c->ld; i++)
        c->scales[i] = (uint16_t)rig_int(&check_rng, 0x3a00, 0x3d00);
    uint8_t *unit = scratch(c->w.unit_stride);
    uint16_t *unit_scales = scratch(c->w.scale_stride);
    oct_weight_source src = {.w = c->q, .scales = c->scales, .ld = c->ld};
    const int weights = pattern / PATTERNS + pattern;
    if (check_type == OCT_WEIGHT_Q8) {
        fill_weights(c->q, unit_in * c->ld, weights);
        oct_weight_pack(&c->w, 0, &src, unit, NULL);
    } else {
        fill_packed(&c->w, unit, c->ld, weights, c->q);
    }
    oct_weight_pack(&c->w, 0, &src, NULL, unit_scales);
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
    CHECK_RUNS(oct_kernels_linear(k, check_type)(&args), "group of %d, pattern %d",
               (int)s->group_in, pattern);
    args.rows = c.ref_rows;
    args.y = c.near;
    oct_kernels_linear(ref_row, check_type)(&args);
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

static const char *check_linear(const oct_kernels *k, oct_weight_type type)
{
    check_type = type;
    const char *wrong = both_digits(k, linear_shapes_run);
    check_type = OCT_WEIGHT_Q8;
    return wrong;
}

#define OCT_WEIGHT_TYPE(NAME, name, number, digits)              \
    static const char *check_linear_##name(const oct_kernels *k) \
    {                                                            \
        return check_linear(k, OCT_WEIGHT_##NAME);               \
    }
#include "weight_types.inc"

static const char *check_act_quantise(const oct_kernels *k)
{
    return both_digits(k, act_sizes_run);
}

#endif
