/* test_choose16.c: choosing tables for sixteen channels: the plain way finds the best of all tables
 * but for absurd ones, and every fast one what the plain one finds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "q4_best.h"
#include "rig.h"

static rig_rng rng;
static oct_q4_chooser chooser;
enum { QUAD_BYTES = OCT_PANEL * OCT_QUAD };

static void fill(uint8_t *quads, int pattern)
{
    for (int i = 0; i < 8 * QUAD_BYTES; i++) {
        const float x = rig_normal(&rng) * (float)(pattern % 7 * pattern % 7 * 2 + 1);
        quads[i] = (uint8_t)(128 + (x > 127 ? 127 : x < -128 ? -128 : (int)x));
        if (pattern % 11 == 0)
            quads[i] = (uint8_t)rig_int(&rng, 0, 255);
        if (pattern % 11 == 1)
            quads[i] = 128;
    }
}

static void best(void **state)
{
    (void)state;
    double chosen = 0, least = 0;
    for (int p = 0; p < 60; p++) {
        uint8_t quads[8 * QUAD_BYTES], index[16];
        const int n = p % 2 ? 8 : 4;
        fill(quads, p);
        oct_q4_choose16(&chooser, quads, n, index);
        for (int lane = 0; lane < 16; lane++) {
            uint32_t sum[OCT_Q4_TABLES] = {0}, min = UINT32_MAX;
            for (int t = 0; t < OCT_Q4_TABLES; t++) {
                for (int i = 0; i < 4 * n; i++)
                    sum[t] += chooser.error[t][quads[i / 4 * QUAD_BYTES + lane * 4 + i % 4]];
                min = sum[t] < min ? sum[t] : min;
            }
            chosen += sum[index[lane]];
            least += min;
        }
    }
    assert_true(chosen <= 1.001 * least);
}

static void fast(void **state)
{
    (void)state;
    oct_q4_choose16_fn *fn = oct_q4_kernels_best()->choose16;
    if (fn == oct_q4_choose16)
        skip();
    for (int p = 0; p < 300; p++) {
        uint8_t quads[8 * QUAD_BYTES], want[16], got[16];
        fill(quads, p);
        for (int n = 4; n <= 8; n += 4)
            for (int lane = 0; lane < 64; lane += 16) {
                oct_q4_choose16(&chooser, quads + lane * 4, n, want);
                fn(&chooser, quads + lane * 4, n, got);
                assert_memory_equal(want, got, 16);
            }
    }
}

/* Every table, lengths up to 32, integers of every size: nothing behind the last is touched. */
static void nearest(void **state)
{
    (void)state;
    oct_q4_nearest_fn *fn = oct_q4_kernels_best()->nearest;
    uint32_t x = 1;
    if (fn == oct_q4_nearest)
        skip();
    for (int t = 0; t < OCT_Q4_TABLES; t++)
        for (int n = 1; n <= 32; n++) {
            int8_t q[32];
            uint8_t want[33], got[33];
            uint32_t most = 7, most_fast = 7;
            memset(want, 99, sizeof want);
            memset(got, 99, sizeof got);
            for (int i = 0; i < 32; i++) {
                x = x * 1664525u + 1013904223u;
                q[i] = (int8_t)((int8_t)(x >> 24) / (t % 3 * 4 + 1));
            }
            const uint32_t sum = oct_q4_nearest(&chooser, t, q, n, want, &most);
            assert_int_equal(fn(&chooser, t, q, n, got, &most_fast), sum);
            assert_int_equal(most_fast, most);
            assert_memory_equal(got, want, sizeof want);
            for (int i = 0; i < n; i++)
                assert_int_equal(want[i], chooser.nibble[t][q[i] + 128]);
        }
}

int main(void)
{
    oct_q4_chooser_init(&chooser);
    const struct CMUnitTest tests[] = {cmocka_unit_test(best), cmocka_unit_test(fast),
                                       cmocka_unit_test(nearest)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
