/* test_q4.c: the bytes of q4g32 and q4g16 against a plain reading of q4.h, choosing of tables, and
 * what packing, verifying and unpacking say to each other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "q4.h"
#include "q8.h"
#include "rig.h"

static rig_rng rng;
static oct_q4_chooser chooser;

/* Where q4.h says that a weight is, counted byte by byte from the unit's start. */
static int plain_value(const oct_weight_layout *l, const uint8_t *unit, int64_t panel, int lane,
                       int64_t in, int inputs_of_index)
{
    const uint8_t *p = unit;
    for (int64_t i = 0; i < panel * l->unit_groups + in / l->group_in; i++)
        for (int64_t left = l->group_in; left > 0; left -= 512) {
            int64_t steps = ((left < 512 ? left : 512) + 63) / 64;
            p += steps * 64 / inputs_of_index * 64 + steps * 2048;
        }
    int64_t x = in % l->group_in, left = l->group_in;
    for (; x >= 512; x -= 512, left -= 512)
        p += 512 / inputs_of_index * 64 + 8 * 2048;
    const int64_t steps = ((left < 512 ? left : 512) + 63) / 64;
    int pair = 0;
    for (int c = 0; c < 64; c++) {
        if (c % 16 >= 8)
            continue;
        if (c == lane || c + 8 == lane)
            break;
        pair++;
    }
    const int second = lane % 16 >= 8;
    const int64_t per_channel = steps * 64 / inputs_of_index;
    const uint8_t index = p[(pair * 2 + second) * per_channel + x / inputs_of_index];
    const uint8_t both = p[64 * per_channel + (pair * steps + x / 64) * 64 + x % 64];
    return oct_q4_table[index][second ? both >> 4 : both & 15] - 128;
}

static oct_weight_layout layout_of(oct_weight_type type, int64_t group_in, int64_t groups,
                                   int64_t slices, int64_t out)
{
    oct_weight_layout l = {.type = type,
                           .n_experts = 1,
                           .n_slices = slices,
                           .n_in = group_in * groups,
                           .n_groups = groups,
                           .part_out = {out},
                           .n_parts = 1,
                           .split = slices > 1 ? OCT_SPLIT_IN : OCT_SPLIT_OUT};
    assert_null(oct_weight_layout_init(&l));
    return l;
}

static const int64_t sizes[] = {1, 15, 16, 17, 24, 32, 63, 64, 65, 511, 512, 513, 577, 1024, 1100};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void bytes(void **state)
{
    (void)state;
    for (int t = 0; t < 2 * SIZES; t++) {
        const oct_weight_type type = t % 2 ? OCT_WEIGHT_Q4G16 : OCT_WEIGHT_Q4G32;
        const int size = type == OCT_WEIGHT_Q4G16 ? 16 : 32;
        oct_weight_layout l = layout_of(type, sizes[t / 2], 2, 1, 100);
        const int64_t steps = (sizes[t / 2] + 63) / 64;
        assert_int_equal(l.group_bytes, steps * (64 * 64 / size + 2048));
        uint8_t *unit = malloc(l.unit_stride);
        for (size_t i = 0; i < l.unit_stride; i++)
            unit[i] = (uint8_t)rig_int(&rng, 0, 255);
        int8_t *row = malloc((size_t)l.n_in);
        for (int k = 0; k < 40; k++) {
            const int64_t panel = rig_int(&rng, 0, 1), first = rig_int(&rng, 0, (int)l.n_in - 1);
            const int64_t n = rig_int(&rng, 1, (int)(l.n_in - first));
            const int lane = (int)rig_int(&rng, 0, 63);
            oct_weight_unpack(&l, unit, panel, lane, first, n, row);
            for (int64_t i = 0; i < n; i++)
                assert_int_equal(row[i], plain_value(&l, unit, panel, lane, first + i, size));
        }
        free(row);
        free(unit);
    }
}

/* The tables: ascending, the first of zeros, of both signs beyond it. */
static void tables(void **state)
{
    (void)state;
    for (int t = 0; t < OCT_Q4_TABLES; t++)
        for (int k = 0; k < OCT_Q4_VALUES; k++) {
            if (t == 0)
                assert_int_equal(oct_q4_table[t][k], 128);
            else if (k > 0)
                assert_true(oct_q4_table[t][k] >= oct_q4_table[t][k - 1]);
        }
    for (int t = 1; t < OCT_Q4_TABLES; t++)
        assert_true(oct_q4_table[t][0] < 128 && oct_q4_table[t][15] > 128);
    assert_int_equal((uintptr_t)oct_q4_table % 64, 0);
}

/* Roughly normal. */
static int8_t normal(double sigma)
{
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (double)rig_int(&rng, -1000, 1000) / 1000;
    const double x = sum / 2 * sigma;
    return (int8_t)(x > 127 ? 127 : x < -127 ? -127 : x < 0 ? x - 0.5 : x + 0.5);
}

/* The nibbles are the nearest of the table that was chosen; with so few tables looked at the error
 * is within a twentieth of the best of all 256, summed over groups, and a hundredth of a step
 * each. */
static void choosing(void **state)
{
    (void)state;
    static const double sigma[] = {3, 8, 20, 33, 50};
    for (int s = 0; s < 5; s++)
        for (int n = 16; n <= 32; n += 16) {
            double chosen = 0, best = 0;
            for (int g = 0; g < 400; g++) {
                int8_t q[32];
                uint8_t nibble[32];
                for (int i = 0; i < n; i++)
                    q[i] = normal(sigma[s]);
                const uint8_t t = oct_q4_choose(&chooser, q, n, nibble);
                int least = INT32_MAX, sum = 0;
                for (int i = 0; i < n; i++) {
                    const int d = oct_q4_table[t][nibble[i]] - 128 - q[i];
                    for (int k = 0; k < OCT_Q4_VALUES; k++)
                        assert_true(abs(oct_q4_table[t][k] - 128 - q[i]) >= abs(d));
                    sum += d * d;
                }
                for (int x = 0; x < OCT_Q4_TABLES; x++) {
                    int e = 0;
                    for (int i = 0; i < n; i++)
                        e += chooser.error[x][q[i] + 128];
                    least = e < least ? e : least;
                }
                chosen += sum;
                best += least;
            }
            if (chosen > 1.05 * best + 0.01 * 400 * n)
                fail_msg("sigma %g, %d inputs: error %g, the best %g", sigma[s], n, chosen, best);
        }
    int8_t zeros[32] = {0}, ends[2] = {-128, 127};
    uint8_t nibble[32];
    uint8_t t = oct_q4_choose(&chooser, zeros, 32, nibble);
    for (int i = 0; i < 32; i++)
        assert_int_equal(oct_q4_table[t][nibble[i]], 128);
    t = oct_q4_choose(&chooser, ends, 2, nibble);
    assert_true(oct_q4_table[t][nibble[0]] - 128 < -100);
    assert_int_equal(oct_q4_choose(&chooser, zeros, 0, nibble), 0);
}

/* A packed unit is near its source, and verify holds it against integers: those that it stands for,
 * not others; padding neither. */
static void packing(void **state)
{
    (void)state;
    for (int t = 0; t < 2 * SIZES; t++) {
        const oct_weight_type type = t % 2 ? OCT_WEIGHT_Q4G16 : OCT_WEIGHT_Q4G32;
        const int64_t slices = t % 3 == 0 ? 2 : 1;
        oct_weight_layout l = layout_of(type, sizes[t / 2], 2, slices, 70);
        const int64_t n_in = l.n_in, ld = 70, slice = slices - 1;
        int8_t *w = malloc((size_t)(n_in * ld)), *made = malloc((size_t)(n_in * ld));
        for (int64_t i = 0; i < n_in * ld; i++)
            w[i] = normal(30);
        memcpy(made, w, (size_t)(n_in * ld));
        uint8_t *unit = malloc(l.unit_stride);
        memset(unit, 0xa5, l.unit_stride);
        oct_weight_source src = {.w = w, .ld = ld};
        oct_weight_pack(&l, slice, &src, unit, NULL);
        const int64_t first = slice * l.unit_groups * l.group_in, n = l.unit_groups * l.group_in;
        double err = 0, ref = 0;
        for (int64_t c = 0; c < ld; c++)
            for (int64_t i = 0; i < n; i++) {
                const int8_t v = oct_weight_at(&l, unit, c / 64, (int)(c % 64), i);
                const int8_t was = w[(first + i) * ld + c];
                made[(first + i) * ld + c] = v;
                err += (v - was) * (v - was);
                ref += was * was;
            }
        assert_true(err < 0.09 * 0.09 * ref);
        src.w = made;
        assert_true(oct_weight_verify(&l, slice, &src, unit, NULL));
        made[(first + n - 1) * ld + ld - 1] ^= 1;
        assert_false(oct_weight_verify(&l, slice, &src, unit, NULL));
        made[(first + n - 1) * ld + ld - 1] ^= 1;
        free(unit);
        free(made);
        free(w);
    }
}

/* Lanes without a channel and inputs that are not there are zero. */
static void padding(void **state)
{
    (void)state;
    oct_weight_layout l = layout_of(OCT_WEIGHT_Q4G32, 40, 1, 1, 3);
    int8_t w[40 * 3];
    memset(w, 77, sizeof w);
    uint8_t *unit = malloc(l.unit_stride);
    oct_weight_source src = {.w = w, .ld = 3};
    oct_weight_pack(&l, 0, &src, unit, NULL);
    for (int lane = 3; lane < 64; lane++)
        for (int i = 0; i < 40; i++)
            assert_int_equal(oct_weight_at(&l, unit, 0, lane, i), 0);
    for (int lane = 0; lane < 3; lane++)
        for (int i = 40; i < 64; i++)
            assert_int_equal(unit[128 + lane * 64 + i], 0);
    unit[128 + 63] = 1;
    assert_false(oct_weight_verify(&l, 0, &src, unit, NULL));
    free(unit);
}

/* A lane put into a unit of q8 is where packing puts it. */
static void lanes_of_q8(void **state)
{
    (void)state;
    oct_weight_layout l = layout_of(OCT_WEIGHT_Q8, 27, 3, 1, 70);
    int8_t w[81 * 70], row[81];
    for (size_t i = 0; i < sizeof w; i++)
        w[i] = (int8_t)rig_int(&rng, -128, 127);
    uint8_t *want = calloc(1, l.unit_stride), *got = calloc(1, l.unit_stride);
    oct_weight_source src = {.w = w, .ld = 70};
    oct_weight_pack(&l, 0, &src, want, NULL);
    oct_q8_clear(&l, got);
    for (int c = 0; c < 70; c++) {
        for (int i = 0; i < 81; i++)
            row[i] = w[i * 70 + c];
        oct_q8_put(&l, got, c / 64, c % 64, row);
    }
    assert_memory_equal(want, got, l.unit_stride);
    free(want);
    free(got);
}

int main(void)
{
    oct_q4_chooser_init(&chooser);
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes),    cmocka_unit_test(tables),
                                       cmocka_unit_test(choosing), cmocka_unit_test(packing),
                                       cmocka_unit_test(padding),  cmocka_unit_test(lanes_of_q8)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
