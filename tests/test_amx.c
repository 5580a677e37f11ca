/* test_amx.c: the AMX row's matrix product, bit by bit against the oracle: its source compiled for
 * an emulated tile unit, and the row itself, whose tile instructions are the CPU's or, where it has
 * none, are caught and done by the emulated unit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Of the checks this program uses those of linear alone. */
#pragma GCC diagnostic ignored "-Wunused-function"
#include "k_amx_emulated.h"
#include "kernel_checks.h"

/* ---- activations as the avx512 row keeps them ---- */

static void planes_act_quantise(const oct_act_layout *l, const float *x, void *row)
{
    int64_t plane = l->n_groups * l->group_pad;
    int32_t *sums = (int32_t *)(void *)((char *)row + l->sums_at);
    int8_t *digits = (int8_t *)row + l->digits_at;
    int16_t *a = malloc((size_t)l->n_in * sizeof *a);
    if (!a)
        abort();
    oct_act_quantise_ref(l, x, a, row);
    memset(sums, 0, (size_t)l->n_blocks * 2 * sizeof *sums);
    memset(digits, 0, (size_t)plane * 2);
    for (int64_t i = 0; i < l->n_in; i++) {
        int64_t group = i / l->group_in, in = i % l->group_in;
        int64_t block = group * l->group_blocks + in / l->block;
        int hi = (a[i] + 128 + 65536) / 256 - 256; /* the floor */
        int lo = a[i] - 256 * hi;
        digits[group * l->group_pad + in] = (int8_t)hi;
        digits[plane + group * l->group_pad + in] = (int8_t)lo;
        sums[block] += hi;
        sums[l->n_blocks + block] += lo;
    }
    free(a);
}

static int64_t few_rows_calls, few_rows_most;

/* What stands in for the avx512 row's kernel: the same from the same rows, in plain C. */
void emulated_few_rows(const oct_linear_args *a)
{
    const oct_act_layout *l = a->act;
    int64_t plane = l->n_groups * l->group_pad;
    few_rows_calls++;
    few_rows_most = a->n_rows > few_rows_most ? a->n_rows : few_rows_most;
    for (int64_t r = 0; r < a->n_rows; r++) {
        const float *s = a->rows[r];
        const int8_t *digits = (const int8_t *)a->rows[r] + l->digits_at;
        for (int lane = 0; lane < OCT_PANEL; lane++) {
            float y = 0.0f;
            for (int64_t g = 0; g < a->w->unit_groups; g++) {
                float t = 0.0f;
                int64_t row_g = a->first_group + g, isum = 0;
                for (int64_t i = 0; i < l->group_in; i++) {
                    int64_t at = row_g * l->group_pad + i;
                    isum += (int64_t)oct_weight_at(a->w, a->panel, 0, lane, g * l->group_in + i) *
                            (256 * digits[at] + digits[plane + at]);
                    if ((i + 1) % l->block == 0 || i + 1 == l->group_in) {
                        t = fmaf((float)isum, s[row_g * l->group_blocks + i / l->block], t);
                        isum = 0;
                    }
                }
                y = fmaf(t, oct_f32_of_bf16(a->scales[g * OCT_PANEL + lane]), y);
            }
            a->y[r * OCT_PANEL + lane] = y;
        }
    }
}

static oct_kernels emulated_row(void)
{
    oct_kernels k = *ref_row;
    k.name = "amx, emulated";
    k.act_quantise = planes_act_quantise;
    k.linear_q8 = emulated_linear_q8;
    k.linear_q4g32 = emulated_linear_q4g32;
    k.linear_q4g16 = emulated_linear_q4g16;
    return k;
}

static bool can_emulate(void)
{
    if (oct_kernels_usable(oct_kernels_find("avx2")))
        return true;
    print_message("SKIPPED: the emulation is compiled for AVX2\n");
    return false;
}

/* ---- the emulator ---- */

static tile_config shape(int rows, int inputs, int channels)
{
    tile_config c = {.palette = 1};
    c.rows[0] = c.rows[1] = (uint8_t)rows;
    c.rows[2] = (uint8_t)(inputs / 4);
    c.row_bytes[0] = c.row_bytes[2] = (uint16_t)(4 * channels);
    c.row_bytes[1] = (uint16_t)inputs;
    return c;
}

static void emulator_multiplies(void **state)
{
    (void)state;
    if (!can_emulate())
        skip();
    static const int shapes[][3] = {{16, 64, 16}, {1, 4, 1}, {5, 32, 16}, {16, 60, 3}, {2, 64, 16}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        int M = shapes[s][0], K = shapes[s][1], N = shapes[s][2];
        int8_t a[16 * 64];
        uint8_t b[16 * 64];
        int32_t c[16 * 16] = {0};
        for (size_t i = 0; i < sizeof a; i++) {
            a[i] = (int8_t)rig_int(&check_rng, -128, 127);
            b[i] = (uint8_t)rig_int(&check_rng, 0, 255);
        }
        tile_config config = shape(M, K, N);
        emulated_product(&config, a, b, c);
        for (int m = 0; m < M; m++) {
            for (int n = 0; n < N; n++) {
                int32_t sum = 0;
                for (int k = 0; k < K; k++)
                    sum += a[m * K + k] * b[k / 4 * 4 * N + 4 * n + k % 4];
                assert_int_equal(c[m * N + n], sum);
            }
        }
    }
}

static void emulator_is_strict(void **state)
{
    (void)state;
    if (!can_emulate())
        skip();
    static int8_t a[64 * 64], b[64 * 64];
    static int32_t c[64 * 64];
    rig_catch_crashes();
    assert_false(RIG_SURVIVES(emulated_without_configuration()));
    tile_config good = shape(16, 64, 16);
    assert_true(RIG_SURVIVES(emulated_product(&good, a, b, c)));
    assert_false(RIG_SURVIVES(emulated_without_configuration()));
    for (int fault = 0; fault < 10; fault++) {
        tile_config bad = good;
        switch (fault) {
        case 0: bad.palette = 2; break;
        case 1: bad.palette = 0; break;
        case 2: bad.reserved[13] = 1; break;
        case 3: bad.rows[7] = 17, bad.row_bytes[7] = 64; break;
        case 4: bad.rows[2] = 15; break;      /* other than a's inputs / 4 */
        case 5: bad.rows[1] = 8; break;       /* other than c's */
        case 6: bad.row_bytes[0] = 32; break; /* other than b's */
        case 7: bad.row_bytes[3] = 65, bad.rows[3] = 1; break;
        case 8: bad.rows[8] = 1, bad.row_bytes[8] = 4; break;
        case 9: bad.rows[0] = bad.row_bytes[0] = 0; break;
        }
        if (RIG_SURVIVES(emulated_product(&bad, a, b, c)))
            fail_msg("configuration %d is not refused", fault);
    }
}

/* ---- the kernel ---- */

static const int64_t groups[] = {20, 24, 27, 32, 768, 4096, 6144};
enum { GROUPS = sizeof groups / sizeof *groups };

/* 1 to 40 rows, 129 and 148, for the groups of the models; one to four of them in a panel, one to
 * three panels; both widths of activations. */
static void check_shapes(const oct_kernels *k)
{
    for (int64_t i = 0; i < GROUPS * 2 * OCT_WEIGHT_TYPES; i++) {
        const int64_t group = groups[i % GROUPS], digits = i / GROUPS % 2 + 1;
        const bool large = group > 1000;
        check_type = (oct_weight_type)(i / GROUPS / 2);
        const int step = large ? 8 : check_type == OCT_WEIGHT_Q8 ? 1 : 3;
        for (int64_t rows = 1; rows <= 41; rows += step) {
            linear_shape s = {group, large ? 1 : 1 + rows % 4, 8, rows % 5,
                              rows < 40     ? rows
                              : digits == 1 ? 148
                                            : 129};
            check_digits = (int)digits;
            const char *wrong = linear_case_run(k, &s, 1 + rows % 3, (int)(rows % (3 * PATTERNS)));
            if (wrong)
                fail_msg("%s, %s, %d digits: %s", k->name, oct_weight_types[check_type].name,
                         (int)digits, wrong);
        }
    }
    check_digits = 2;
    check_type = OCT_WEIGHT_Q8;
}

/* Of every type. */
static const char *check_linears(const oct_kernels *k)
{
    const char *wrong = NULL;
    for (int t = 0; t < OCT_WEIGHT_TYPES && !wrong; t++)
        wrong = check_linear(k, (oct_weight_type)t);
    return wrong;
}

static void emulated_shapes(void **state)
{
    (void)state;
    if (!can_emulate())
        skip();
    rig_catch_crashes();
    oct_kernels k = emulated_row();
    few_rows_calls = few_rows_most = 0;
    tile_counts before = emulated_counts;
    check_shapes(&k);
    assert_true(few_rows_calls > 0);
    assert_in_range(few_rows_most, 1, 3);
    assert_int_equal(emulated_counts.configured - before.configured,
                     emulated_counts.released - before.released);
}

static void emulated_checks(void **state)
{
    (void)state;
    if (!can_emulate())
        skip();
    rig_catch_crashes();
    oct_kernels k = emulated_row();
    const char *wrong = check_linears(&k);
    if (wrong)
        fail_msg("%s", wrong);
    const oct_kernels *avx512 = oct_kernels_find("avx512");
    if (!oct_kernels_usable(avx512))
        return;
    k.act_quantise = avx512->act_quantise; /* the rows it will get */
    wrong = check_linears(&k);
    if (wrong)
        fail_msg("with avx512's activations: %s", wrong);
}

/* Tile instructions of a call of `linear`. */
typedef struct tile_needs {
    int64_t dots, loads, stores;
} tile_needs;

/* Weights are operand B, the rows A. */
static tile_needs needs_of_rows(const linear_shape *s, int64_t n_panels, int64_t digits)
{
    const int64_t block = digits == 1 ? OCT_ACT_BLOCK_I8 : OCT_ACT_BLOCK;
    const int64_t a_tile = digits == 2 && s->n_rows <= 8 ? 1 : digits; /* both digits fit one */
    const int64_t tiles = a_tile * ((s->n_rows + 15) / 16) * n_panels * s->unit_groups;
    tile_needs n = {0};
    for (int64_t at = 0; at < s->group_in; at += block) {
        const int64_t left = s->group_in - at < block ? s->group_in - at : block;
        n.stores += 4 * tiles;
        n.dots += 4 * tiles * ((left + 63) / 64);
        n.loads += (a_tile == 2 ? 4 : 5) * tiles * ((left + 63) / 64);
    }
    return n;
}

/* q4 of few rows: the weights are operand A, the rows B, two digits of eight rows a tile; those are
 * loaded once for all sets of channels whose sums are in registers. Sums are stored once more for a
 * group: what is there before its first strip. */
static tile_needs needs_turned(const linear_shape *s, int64_t n_panels)
{
    const int64_t tiles = (s->n_rows + 7) / 8, span = tiles == 1 ? 4 : tiles == 2 ? 2 : 1;
    const int64_t steps = (s->group_in + 63) / 64 * n_panels * s->unit_groups;
    const int64_t strips = (s->group_in + 511) / 512 * n_panels;
    return (tile_needs){.dots = 4 * tiles * steps,
                        .loads = (4 + 4 / span * tiles) * steps,
                        .stores = (4 * strips + span) * tiles * s->unit_groups};
}

/* No product and no load more than the shape needs, and one configuration. */
static void no_needless_work(void **state)
{
    (void)state;
    if (!can_emulate())
        skip();
    rig_catch_crashes();
    oct_kernels k = emulated_row();
    static const linear_shape shapes[] = {
        {6144, 1, 1, 0, 16}, {4096, 1, 8, 2, 128}, {768, 1, 8, 0, 17}, {20, 4, 8, 4, 33},
        {512, 3, 8, 4, 4},   {1088, 2, 8, 1, 32},  {100, 1, 8, 0, 9},
    };
    enum { SHAPES = sizeof shapes / sizeof *shapes };
    for (size_t i = 0; i < SHAPES * 2 * OCT_WEIGHT_TYPES; i++) {
        const linear_shape *s = &shapes[i / 2 % SHAPES];
        const int64_t n_panels = 1 + (int64_t)i % 3, digits = 1 + (int64_t)i % 2;
        tile_counts before = emulated_counts;
        check_digits = (int)digits;
        check_type = (oct_weight_type)(i / 2 / SHAPES);
        const bool turned = check_type != OCT_WEIGHT_Q8 && digits == 2 && s->n_rows <= 32;
        const char *wrong = linear_case_run(&k, s, n_panels, NORMAL);
        check_digits = 2;
        check_type = OCT_WEIGHT_Q8;
        if (wrong)
            fail_msg("%s", wrong);
        const tile_needs n =
            turned ? needs_turned(s, n_panels) : needs_of_rows(s, n_panels, digits);
        assert_int_equal(emulated_counts.dots - before.dots, n.dots);
        assert_int_equal(emulated_counts.loads - before.loads, n.loads);
        assert_int_equal(emulated_counts.stores - before.stores, n.stores);
        assert_int_equal(emulated_counts.configured - before.configured, 1);
        assert_int_equal(emulated_counts.released - before.released, 1);
    }
}

/* The row of the table, as compiled: on tiles where the CPU has them, else each of its tile
 * instructions by the emulator. */
static void compiled_row(void **state)
{
    (void)state;
    const oct_kernels *k = oct_kernels_find("amx");
    if (!oct_kernels_usable(oct_kernels_find("avx512"))) {
        print_message("SKIPPED: the row needs AVX-512\n");
        skip();
    }
    bool tiles = oct_kernels_usable(k);
    print_message("    tiles: %s\n", tiles ? "of this CPU" : "emulated, this CPU has none");
    rig_catch_crashes();
    if (!tiles)
        emulated_trap(rig_on_signal);
    tile_counts before = emulated_counts;
    check_shapes(k);
    const char *wrong = check_linears(k);
    if (wrong)
        fail_msg("%s", wrong);
    assert_true(tiles || emulated_counts.dots > before.dots);
}

int main(void)
{
    check_rng.state = rig_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(emulator_multiplies), cmocka_unit_test(emulator_is_strict),
        cmocka_unit_test(emulated_shapes),     cmocka_unit_test(emulated_checks),
        cmocka_unit_test(no_needless_work),    cmocka_unit_test(compiled_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
