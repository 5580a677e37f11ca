/* test_panels.c: how weights are stored and shared out does not change a bit, for products with
 * outputs split and inputs split and for experts, with odd numbers of panels, channels, rows,
 * threads and NUMA domains: tasks that take several panels give what tasks that take one give, and
 * weights of 4 bits what the integers that they stand for give as q8. How many panels a task takes
 * is a property of the row of kernels; here it is set in a copy of a row. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu_impl.h"
#include "runner.h"
#include "rig.h"

enum { TOKENS = 137, IN = 72, MID = 2000, OUT = 1500, FF = 1600, SLICES = 2 };

static rig_rng rng;

/* A packed matrix of random bytes: what channels and inputs it has not got hold is nobody's
 * business. */
static void matrix_make(oct_weight *m, const char *name, const oct_weight_layout *l)
{
    *m = (oct_weight){.name = name, .layout = *l};
    assert_null(oct_weight_layout_init(&m->layout));
    const oct_weight_layout *at = &m->layout;
    size_t units = (size_t)(at->n_experts * at->n_slices);
    uint8_t *data = aligned_alloc(4096, units * at->unit_stride);
    uint16_t *scales = aligned_alloc(4096, units * at->scale_stride);
    assert_true(data && scales);
    for (size_t i = 0; i < units * at->unit_stride; i++)
        data[i] = (uint8_t)rig_int(&rng, 0, 255);
    for (size_t i = 0; i < units * at->scale_stride / 2; i++)
        scales[i] = (uint16_t)rig_int(&rng, 0x3a00, 0x3c00);
    m->data = data;
    m->scales = scales;
}

static void matrix_free(oct_weight *m)
{
    free((void *)(uintptr_t)m->data);
    free((void *)(uintptr_t)m->scales);
}

typedef struct weights {
    oct_weight out_split, in_split, gate_up, down;
} weights;

static oct_table table;

static void weights_make(weights *w, oct_weight_type type)
{
    matrix_make(&w->out_split, "outputs",
                &(oct_weight_layout){.type = type,
                                     .n_experts = 1,
                                     .n_slices = SLICES,
                                     .n_in = IN,
                                     .n_groups = 1,
                                     .part_out = {MID},
                                     .n_parts = 1,
                                     .split = OCT_SPLIT_OUT});
    matrix_make(&w->in_split, "inputs",
                &(oct_weight_layout){.type = type,
                                     .n_experts = 1,
                                     .n_slices = SLICES,
                                     .n_in = MID,
                                     .n_groups = 2,
                                     .part_out = {OUT},
                                     .n_parts = 1,
                                     .split = OCT_SPLIT_IN});
    matrix_make(&w->gate_up, "gate and up",
                &(oct_weight_layout){.type = type,
                                     .n_experts = 1,
                                     .n_slices = SLICES,
                                     .n_in = OUT,
                                     .n_groups = 1,
                                     .part_out = {FF, FF},
                                     .n_parts = 2,
                                     .interleave = true,
                                     .split = OCT_SPLIT_OUT});
    matrix_make(&w->down, "down",
                &(oct_weight_layout){.type = type,
                                     .n_experts = 1,
                                     .n_slices = SLICES,
                                     .n_in = FF,
                                     .n_groups = 4,
                                     .part_out = {OUT},
                                     .n_parts = 1,
                                     .split = OCT_SPLIT_IN});
}

static void table_make(void)
{
    uint16_t *rows = malloc(TOKENS * IN * sizeof *rows);
    assert_non_null(rows);
    for (int i = 0; i < TOKENS * IN; i++)
        rows[i] = (uint16_t)(rig_int(&rng, 0x3e00, 0x4000) | rig_int(&rng, 0, 1) << 15);
    table = (oct_table){rows, TOKENS, TOKENS, TOKENS, IN, 1};
}

static void weights_free(weights *w)
{
    matrix_free(&w->out_split);
    matrix_free(&w->in_split);
    matrix_free(&w->gate_up);
    matrix_free(&w->down);
}

static void table_free(void)
{
    free((void *)(uintptr_t)table.data);
}

/* The same integers as q8: lane by lane, every place of them. */
static void matrix_widen(const oct_weight *from, oct_weight *m)
{
    oct_weight_layout l = from->layout;
    l.type = OCT_WEIGHT_Q8;
    matrix_make(m, from->name, &l);
    const oct_weight_layout *at = &m->layout;
    int8_t *lane = malloc((size_t)at->group_in);
    assert_non_null(lane);
    for (int64_t u = 0; u < at->n_experts * at->n_slices; u++) {
        const uint8_t *unit = (const uint8_t *)from->data + (size_t)u * from->layout.unit_stride;
        for (int64_t p = 0; p < at->n_panels * at->unit_groups * OCT_PANEL; p++) {
            const int64_t panel = p / OCT_PANEL / at->unit_groups, c = p % OCT_PANEL;
            const int64_t group = p / OCT_PANEL % at->unit_groups;
            uint8_t *to = (uint8_t *)(uintptr_t)m->data + (size_t)u * at->unit_stride +
                          (size_t)panel * at->panel_bytes + (size_t)group * at->group_bytes;
            oct_weight_unpack(&from->layout, unit, panel, (int)c, group * at->group_in,
                              at->group_in, lane);
            for (int64_t i = 0; i < at->group_in; i++)
                to[i / OCT_QUAD * OCT_PANEL * OCT_QUAD + c * OCT_QUAD + i % OCT_QUAD] =
                    (uint8_t)lane[i] ^ 0x80;
        }
    }
    free(lane);
    memcpy((void *)(uintptr_t)m->scales, from->scales,
           (size_t)(at->n_experts * at->n_slices) * at->scale_stride);
}

static const void *as_it_is(const void *placement, const void *p)
{
    (void)placement;
    return p;
}

/* The experts' outputs [n_rows][OUT], to be freed. */
static float *evaluate(const weights *w, int digits, const oct_kernels *k, const char *machine,
                       int n_threads, int64_t n_rows)
{
    oct_error err = {0};
    oct_topology topology;
    oct_backend *b;
    assert_int_equal(oct_topology_load(machine, &topology, &err), OCT_OK);
    oct_cpu_numbers numbers = {
        .k = k, .n_threads = n_threads, .n_domains = oct_cpu_domains(&topology, n_threads, SLICES)};
    assert_null(oct_shard_make(OCT_SHARD_SLICE, 0, 1, SLICES, 1, &numbers.shard));
    assert_int_equal(oct_cpu_open(&numbers, &topology, false, &b, &err), OCT_OK);
    oct_topology_free(&topology);

    oct_graph g;
    oct_graph_init(&g, TOKENS, digits, 0, NULL, 0);
    const oct_tensor *x = oct_graph_embed(&g, &table, 1.0f);
    x = oct_graph_linear(&g, x, &w->out_split);
    x = oct_graph_linear(&g, x, &w->in_split);
    x = oct_graph_experts(&g, x, NULL, 1, &w->gate_up, &w->down);
    oct_plan p;
    oct_plan_spec spec = {.shard = &numbers.shard, .n_places = 1};
    spec.place[OCT_HOST].kind = &oct_cpu_kind;
    spec.place[OCT_HOST].numbers = &numbers;
    assert_int_equal(oct_plan_make(&g, &spec, NULL, 0, &p, &err), OCT_OK);
    oct_runner r = {.comm = oct_comm_local(), .backend = {b}};
    assert_int_equal(oct_runner_open(&r, &p, as_it_is, NULL, &err), OCT_OK);
    int32_t token[TOKENS], zero[TOKENS] = {0};
    for (int i = 0; i < TOKENS; i++)
        token[i] = (i * 31 + 5) % TOKENS;
    oct_run run = {.n_rows = n_rows, .token = token, .seq = zero, .pos = zero};
    assert_int_equal(oct_runner_run(&r, &run, &(oct_tally){0}, &err), OCT_OK);
    float *out = malloc((size_t)n_rows * OUT * sizeof *out);
    assert_non_null(out);
    memcpy(out, r.buffer[OCT_HOST] + oct_plan_offset(&p, OCT_HOST, x),
           (size_t)n_rows * OUT * sizeof *out);
    oct_runner_free(&r);
    oct_plan_free(&p);
    oct_graph_free(&g);
    return out;
}

static void several_panels(void **state)
{
    (void)state;
    static const struct {
        const char *machine;
        int n_threads;
        int64_t n_rows;
    } cases[] = {{NULL, 1, TOKENS}, {NULL, 2, 40}, {NULL, 1, 15}, {"numa:2 core:1 pu:1", 2, 33}};
    weights w;
    weights_make(&w, OCT_WEIGHT_Q8);
    table_make();
    const oct_kernels *best;
    assert_int_equal(oct_kernels_choose(NULL, oct_isa_detect(), &best, NULL), OCT_OK);
    oct_kernels k = *best;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        k.panels = 1;
        float *one = evaluate(&w, 2, &k, cases[i].machine, cases[i].n_threads, cases[i].n_rows);
        assert_true(one[0] == one[0] && one[0] != 0.0f);
        for (k.panels = 2; k.panels <= 5; k.panels++) {
            float *several =
                evaluate(&w, 2, &k, cases[i].machine, cases[i].n_threads, cases[i].n_rows);
            int64_t at = rig_differs(one, several, cases[i].n_rows * OUT);
            if (at >= 0)
                fail_msg("case %d, %d panels: row %d, output %d: %.9g, expected %.9g", (int)i,
                         k.panels, (int)(at / OUT), (int)(at % OUT), (double)several[at],
                         (double)one[at]);
            free(several);
        }
        free(one);
    }
    weights_free(&w);
    table_free();
}

/* Of every row of kernels and both widths of activations. */
static void four_bits_stand_for_eight(void **state)
{
    (void)state;
    static const int64_t n_rows[] = {1, 2, 3, 4, 5, 7, 18, 40, TOKENS};
    table_make();
    for (int i = 0; i < 2 * 2 * (int)(sizeof n_rows / sizeof *n_rows); i++) {
        const oct_weight_type type = i % 2 ? OCT_WEIGHT_Q4G32 : OCT_WEIGHT_Q4G16;
        const int64_t rows = n_rows[i / 4];
        const int digits = i / 2 % 2 + 1, n_threads = i % 3 ? 2 : 1;
        const char *machine = i % 5 ? NULL : "numa:2 core:1 pu:1";
        weights narrow, wide;
        weights_make(&narrow, type);
        matrix_widen(&narrow.out_split, &wide.out_split);
        matrix_widen(&narrow.in_split, &wide.in_split);
        matrix_widen(&narrow.gate_up, &wide.gate_up);
        matrix_widen(&narrow.down, &wide.down);
        for (int k = OCT_KERNELS_REF; k < oct_n_kernel_rows; k++) {
            const oct_kernels *row = &oct_kernel_rows[k];
            if (!oct_kernels_usable(row) || (k == OCT_KERNELS_REF && rows > 3))
                continue;
            float *four = evaluate(&narrow, digits, row, machine, n_threads, rows);
            float *eight = evaluate(&wide, digits, row, machine, n_threads, rows);
            assert_true(four[0] == four[0] && four[0] != 0.0f);
            int64_t at = rig_differs(four, eight, rows * OUT);
            if (at >= 0)
                fail_msg("%s, %s, %d digits, %d rows: row %d, output %d: %.9g, expected %.9g",
                         row->name, oct_weight_types[type].name, digits, (int)rows, (int)(at / OUT),
                         (int)(at % OUT), (double)four[at], (double)eight[at]);
            free(four);
            free(eight);
        }
        weights_free(&narrow);
        weights_free(&wide);
    }
    table_free();
}

/* Runs are as long as the row of kernels likes, if there are many rows and enough panels. */
static void run_lengths(void **state)
{
    (void)state;
    oct_kernels k = {.panels = 4};
    oct_cpu cpu = {.k = &k};
    oct_cpu_run c = {.cpu = &cpu, .domain_threads = 2};
    oct_weight_layout l = {.n_panels = 96};
    assert_int_equal(oct_cpu_panel_run(&c, &l, 1, 128), 4);
    assert_int_equal(oct_cpu_panel_run(&c, &l, 1, 3), 4);
    assert_int_equal(oct_cpu_panel_run(&c, &l, 1, 2), 1);
    c.domain_threads = 8;
    assert_int_equal(oct_cpu_panel_run(&c, &l, 1, 128), 3);
    assert_int_equal(oct_cpu_panel_run(&c, &l, 8, 128), 4);
    c.domain_threads = 56;
    assert_int_equal(oct_cpu_panel_run(&c, &l, 1, 128), 1);
    k.panels = 1;
    assert_int_equal(oct_cpu_panel_run(&c, &l, 8, 128), 1);
}

int main(void)
{
    rng.state = rig_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_panels),
        cmocka_unit_test(four_bits_stand_for_eight),
        cmocka_unit_test(run_lengths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
