/* cuda_check_linear.h: checks of products with packed weights, gemv.cuh and gemm.cuh. */
#ifndef OCT_TEST_CUDA_CHECK_LINEAR_H
#define OCT_TEST_CUDA_CHECK_LINEAR_H

#include "cuda_check_rows.h"

typedef struct cuda_linear_shape {
    int64_t n_in, n_groups, n_slices, n_out; /* n_out: of each part */
    int n_experts, split_in, gelu;
    int64_t n_rows;
} cuda_linear_shape;

/* A matrix, rows, and the product by the oracle. */
typedef struct cuda_linear_case {
    oct_weight_layout l;
    oct_act_layout act;
    const uint8_t *weights, *scales;
    float *x;            /* [n_rows][n_in] */
    unsigned char *rows; /* rounded by the kernel */
    float *want;         /* [n_experts][n_slices][n_rows][unit_out] */
} cuda_linear_case;

/* A unit of any bytes, and what it stands for in the source matrices q, one behind the other. */
static inline void cuda_linear_any(const oct_weight_layout *l, int64_t slice, uint8_t *unit,
                                   int8_t *q, int64_t ld)
{
    const int64_t unit_in = l->unit_groups * l->group_in;
    const int64_t in0 = l->split == OCT_SPLIT_IN ? slice * unit_in : 0;
    int8_t *w = malloc((size_t)unit_in);
    for (size_t i = 0; i < l->unit_bytes; i++)
        unit[i] = (uint8_t)rig_next(&cuda_rng);
    for (int64_t p = 0; p < l->n_panels; p++)
        for (int lane = 0; lane < OCT_PANEL; lane++) {
            int part;
            int64_t channel;
            if (!oct_weight_lane(l, slice, p, lane, &part, &channel))
                continue;
            oct_weight_unpack(l, unit, p, lane, 0, unit_in, w);
            for (int64_t i = 0; i < unit_in; i++)
                q[(part * l->n_in + in0 + i) * ld + channel] = w[i];
        }
    free(w);
}

/* Units of all experts and slices; want of each from the source matrices. */
static inline void cuda_linear_make(const cuda_linear_shape *s, oct_weight_type type, int digits,
                                    cuda_pattern p, cuda_linear_case *c)
{
    int n_parts = s->gelu ? 2 : 1;
    c->l = (oct_weight_layout){.type = type,
                               .n_experts = s->n_experts,
                               .n_slices = s->n_slices,
                               .n_in = s->n_in,
                               .n_groups = s->n_groups,
                               .part_out = {s->n_out, s->gelu ? s->n_out : 0},
                               .n_parts = n_parts,
                               .interleave = s->gelu,
                               .split = s->split_in ? OCT_SPLIT_IN : OCT_SPLIT_OUT};
    if (oct_weight_layout_init(&c->l))
        abort();
    oct_act_layout_init(&c->act, s->n_in, s->n_groups, digits);
    int64_t units = s->n_experts * s->n_slices, ld = (s->n_out + 63) / 64 * 64 + 64;
    uint8_t *weights = cuda_room(c->l.unit_stride * (size_t)units);
    uint8_t *scales = cuda_room(c->l.scale_stride * (size_t)units);
    c->x = cuda_floats(s->n_rows * s->n_in, p);
    size_t row_floats = (size_t)(units * s->n_rows * c->l.n_panels * 64);
    c->want = cuda_room(row_floats * sizeof *c->want);
    int16_t *a = malloc((size_t)s->n_in * sizeof *a);
    float *scale = malloc((size_t)c->act.n_blocks * sizeof *scale);
    int8_t *q = malloc((size_t)(n_parts * s->n_in * ld));
    uint16_t *sc = malloc((size_t)(n_parts * s->n_groups * ld) * sizeof *sc);
    for (int64_t e = 0; e < s->n_experts; e++) {
        for (int64_t i = 0; i < n_parts * s->n_in * ld; i++)
            q[i] = (int8_t)rig_int(&cuda_rng, -128, 127);
        for (int64_t i = 0; i < n_parts * s->n_groups * ld; i++)
            sc[i] = (uint16_t)rig_int(&cuda_rng, 0x3a00, 0x3d00);
        oct_weight_source src[2] = {{q, sc, ld}, {q + s->n_in * ld, sc + s->n_groups * ld, ld}};
        for (int64_t slice = 0; slice < s->n_slices; slice++) {
            int64_t unit = e * s->n_slices + slice;
            uint8_t *to = weights + oct_weight_unit_offset(&c->l, e, slice);
            oct_weight_pack(
                &c->l, slice, src, type == OCT_WEIGHT_Q8 ? to : NULL,
                (uint16_t *)(void *)(scales + oct_weight_scale_offset(&c->l, e, slice)));
            if (type != OCT_WEIGHT_Q8)
                cuda_linear_any(&c->l, slice, to, q, ld);
            int64_t in0 = s->split_in ? slice * c->l.unit_groups : 0;
            int64_t out0 = s->split_in ? 0 : slice * c->l.unit_out / n_parts;
            int64_t n = c->l.unit_out / n_parts;
            for (int64_t r = 0; r < s->n_rows; r++) {
                float y[2][64], *want = c->want + (unit * s->n_rows + r) * c->l.n_panels * 64;
                oct_act_quantise_ref(&c->act, c->x + r * s->n_in, a, scale);
                for (int64_t o = 0; o < n; o += 64) {
                    for (int k = 0; k < n_parts; k++)
                        oracle_linear_row(
                            &c->l, &c->act, src[k].w + in0 * c->l.group_in * ld + out0 + o,
                            src[k].scales + in0 * ld + out0 + o, ld, a, scale, in0, y[k]);
                    for (int64_t i = 0; i < 64 && o + i < n; i++)
                        want[o + i] = s->gelu ? oct_geluf(y[0][i]) * y[1][i] : y[0][i];
                }
            }
        }
    }
    free(a);
    free(scale);
    free(q);
    free(sc);
    c->weights = weights;
    c->scales = scales;
}

/* What a sort has made finds memory for the kernels after it: it is within n_slots rows of n_x. */
static inline const char *sorted_within(const oct_cuda_sort_args *t, int64_t n_slots, int64_t n_x)
{
    for (int32_t i = 0; i < t->n_tiles; i++)
        if (t->tiles[i].expert < 0 || t->tiles[i].expert >= t->n_experts || t->tiles[i].first < 0 ||
            t->tiles[i].n < 0 || t->tiles[i].first > n_slots - t->tiles[i].n)
            CUDA_FAILS("sort: tile %d is of expert %d, rows %d + %d", i, t->tiles[i].expert,
                       t->tiles[i].first, t->tiles[i].n);
    for (int64_t i = 0; i < n_slots; i++)
        if (t->x_row[i] < 0 || t->x_row[i] >= n_x || t->order[i] < 0 || t->order[i] >= n_slots)
            CUDA_FAILS("sort: slot %d is of row %d, goes to %d", (int)i, t->x_row[i], t->order[i]);
    return NULL;
}

/* Rows of one matrix, or routed to the experts of several. */
static inline const char *linear_case(const cuda_linear_shape *s, oct_weight_type type,
                                      int32_t tile_rows, int digits, cuda_pattern p)
{
    enum { USED = 2 };
    cuda_linear_case c;
    cuda_linear_make(s, type, digits, p, &c);
    const oct_weight_layout *l = &c.l;
    int64_t width = s->gelu ? l->unit_out / 2 : l->unit_out;
    int64_t slots = s->n_experts > 1 ? s->n_rows * USED : s->n_rows;
    oct_cuda_quantise_args q = {c.x, cuda_room((size_t)s->n_rows * c.act.bytes), c.act, s->n_rows,
                                NULL};
    CUDA_RUN(quantise, q);
    c.rows = q.to;
    oct_cuda_linear_args a = oct_cuda_linear_of(l, 0, l->n_slices, digits);
    a.weights = c.weights;
    a.scales = c.scales;
    a.x = c.rows;
    a.gelu = s->gelu;
    a.y_cols = s->split_in ? width : width * s->n_slices;
    a.part_stride = s->split_in ? slots * a.y_cols : 0;
    size_t y_bytes = (size_t)(slots * width * s->n_slices) * sizeof(float);
    a.y = cuda_room(y_bytes);
    memset(a.y, 0x55, y_bytes);
    a.n_rows = slots;
    a.tile_rows = tile_rows;
    const unsigned char *routes = NULL;
    if (s->n_experts > 1) {
        routes = cuda_routes(s->n_rows, USED, s->n_experts);
        int32_t n_tiles = oct_cuda_tiles(slots, s->n_experts, tile_rows);
        oct_cuda_sort_args t = {.routes = routes,
                                .route_bytes = USED * 8,
                                .n_rows = s->n_rows,
                                .n_used = USED,
                                .n_experts = s->n_experts,
                                .first_expert = 0,
                                .end_expert = s->n_experts,
                                .tile_rows = tile_rows,
                                .order = cuda_room((size_t)slots * 4),
                                .x_row = cuda_room((size_t)slots * 4),
                                .n_sorted = cuda_room(4),
                                .tiles = cuda_room((size_t)n_tiles * sizeof(oct_cuda_tile)),
                                .n_tiles = n_tiles};
        CUDA_RUN(sort, t);
        CUDA_TRY(sorted_within(&t, slots, s->n_rows));
        a.tiles = t.tiles;
        a.n_tiles = n_tiles;
        a.x_row = t.x_row;
        a.y_row = t.order;
    }
    CUDA_RUN(linear, a);
    const char *wrong = NULL;
    for (int64_t i = 0; i < slots * s->n_slices && !wrong; i++) {
        int64_t slot = i / s->n_slices, slice = i % s->n_slices, row = slot, e = 0;
        if (routes) {
            row = slot / USED;
            e = ((const int32_t *)(const void *)(routes + row * USED * 8))[slot % USED];
        }
        const float *got = s->split_in ? a.y + slice * a.part_stride + slot * width
                                       : a.y + slot * a.y_cols + slice * width;
        wrong = cuda_equal(
            "linear", got,
            c.want + ((e * s->n_slices + slice) * s->n_rows + row) * l->n_panels * 64, width);
        if (wrong)
            wrong = cuda_note(
                wrong,
                " (%d x %d inputs, %d out, %d slices, split %d, gelu %d, row %d of %d, slice "
                "%d, expert %d, tile %d, %d digits, %s)",
                (int)s->n_groups, (int)l->group_in, (int)s->n_out, (int)s->n_slices, s->split_in,
                s->gelu, (int)row, (int)s->n_rows, (int)slice, (int)e, tile_rows, digits,
                oct_weight_types[type].name);
    }
    CUDA_TRY(wrong);
    return cuda_case_ends("linear");
}

/*  inputs, groups, slices, outputs, experts, split of inputs, gelu, rows */
static const cuda_linear_shape cuda_linear_shapes[] = {
    {1, 1, 1, 1, 1, 0, 0, 1},       {27 * 4, 4, 2, 64, 1, 1, 0, 3},  {27 * 8, 8, 8, 40, 1, 1, 0, 8},
    {100, 1, 2, 130, 1, 0, 0, 2},   {512, 1, 1, 64, 1, 0, 0, 1},     {513, 1, 1, 70, 1, 0, 0, 5},
    {768, 2, 1, 72, 1, 1, 0, 4},    {1200, 1, 4, 320, 1, 0, 0, 2},   {96, 3, 1, 65, 1, 0, 0, 9},
    {160, 1, 2, 80, 1, 0, 1, 3},    {64, 2, 1, 33, 1, 0, 1, 7},      {128, 1, 1, 100, 3, 0, 1, 6},
    {27 * 4, 4, 4, 90, 4, 1, 0, 6}, {40 * 36, 36, 2, 64, 1, 1, 0, 2}};
enum { CUDA_LINEAR_SHAPES = sizeof cuda_linear_shapes / sizeof *cuda_linear_shapes };

static inline const char *gemm_cases(oct_weight_type type)
{
    static const cuda_linear_shape larger[] = {{520, 1, 1, 200, 1, 0, 0, 70},
                                               {27 * 4, 4, 2, 65, 1, 1, 0, 130},
                                               {640, 1, 1, 80, 1, 0, 1, 66},
                                               {70, 1, 1, 64, 1, 0, 0, 512},
                                               {1100, 2, 2, 130, 3, 1, 0, 100}};
    for (int i = 0; i < CUDA_LINEAR_SHAPES; i++)
        if (!cuda_linear_shapes[i].gelu || cuda_linear_shapes[i].n_groups == 1)
            CUDA_TRY(linear_case(&cuda_linear_shapes[i], type, OCT_CUDA_GEMM_ROWS, 1 + i % 2,
                                 (cuda_pattern)(i % CUDA_PATTERNS)));
    for (size_t i = 0; i < sizeof larger / sizeof *larger; i++)
        CUDA_TRY(linear_case(&larger[i], type, OCT_CUDA_GEMM_ROWS, 2, CUDA_NORMAL));
    return NULL;
}

static inline const char *gemv_cases(oct_weight_type type)
{
    for (int i = 0; i < 2 * CUDA_LINEAR_SHAPES; i++) {
        const cuda_linear_shape *s = &cuda_linear_shapes[i / 2];
        CUDA_TRY(linear_case(s, type, 1 << (i + i / 8) % 4, 2 - i % 2,
                             (cuda_pattern)(i % CUDA_PATTERNS)));
    }
    return NULL;
}

static inline const char *check_gemm(void)
{
    return gemm_cases(OCT_WEIGHT_Q8);
}

static inline const char *check_gemv(void)
{
    return gemv_cases(OCT_WEIGHT_Q8);
}

/* Either type, by chance: they differ in where indices lie. */
static inline oct_weight_type cuda_q4(void)
{
    return rig_int(&cuda_rng, 0, 1) ? OCT_WEIGHT_Q4G32 : OCT_WEIGHT_Q4G16;
}

static inline const char *check_gemm_q4(void)
{
    return gemm_cases(cuda_q4());
}

static inline const char *check_gemv_q4(void)
{
    return gemv_cases(cuda_q4());
}

#endif
