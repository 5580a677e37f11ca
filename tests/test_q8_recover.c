/* test_q8_recover.c: int8 and scales found again in bf16(q s): they are the original's whenever only
 * one scale is possible, nothing passes that is not such a product, and a flipped bit is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "f16.h"
#include "q8_recover.h"

enum { MOST = 6144 };

static uint64_t state = 20;

static uint64_t draw(void)
{
    state += 0x9e3779b97f4a7c15u;
    uint64_t x = state;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static int8_t clip(float v)
{
    return (int8_t)(v > 127 ? 127 : v < -127 ? -127 : v);
}

/* Integers of about the shape of a trained row: the sum of several uniform numbers. */
static void draw_row(int8_t *q, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int k = 0; k < 6; k++)
            sum += (float)(int32_t)(draw() >> 32) * 0x1p-31f;
        q[i] = clip(sum * 30);
    }
    q[draw() % (uint64_t)n] = draw() & 1 ? 127 : -127;
}

/* A normal bf16 between 2^-20 and 2^4. */
static uint16_t draw_scale(void)
{
    return (uint16_t)((107 + draw() % 24) << 7 | (draw() & 127));
}

static void multiply(const int8_t *q, int64_t n, uint16_t scale, uint16_t *w)
{
    for (int64_t i = 0; i < n; i++)
        w[i] = oct_bf16_of_f32((float)q[i] * oct_f32_of_bf16(scale));
}

static void test_unique(void **s)
{
    static const int sizes[] = {6144, 4096, 768, 100, 33, 32, 24};
    static int8_t q[MOST], back[MOST];
    static uint16_t w[MOST];
    (void)s;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        for (int t = 0; t < 300; t++) {
            const uint16_t scale = draw_scale();
            uint16_t found;
            draw_row(q, sizes[k]);
            if (t % 3 == 0) /* the whole range */
                for (int i = 0; i < sizes[k]; i++)
                    q[i] = (int8_t)draw();
            multiply(q, sizes[k], scale, w);
            const oct_recovered kind = oct_q8_recover(w, sizes[k], &found, back);
            if (kind == OCT_RECOVERED_SEVERAL && sizes[k] < 100)
                continue;
            assert_int_equal(kind, OCT_RECOVERED_UNIQUE);
            assert_int_equal(found, scale);
            assert_memory_equal(back, q, (size_t)sizes[k]);
        }
}

/* Every q of every scale's mantissa comes back when the scale is known. */
static void test_every_product(void **s)
{
    int8_t q[256], back[256];
    uint16_t w[256];
    int64_t first;
    (void)s;
    for (int i = 0; i < 256; i++)
        q[i] = (int8_t)(i - 128);
    for (uint16_t scale = 120 << 7; scale < 121 << 7; scale++) {
        multiply(q, 256, scale, w);
        assert_int_equal(oct_q8_of_bf16(w, 256, scale, back, &first), 0);
        assert_int_equal(first, 256);
        assert_memory_equal(back, q, 256);
    }
}

/* Against all scales there are. */
static void check_all_scales(const uint16_t *w, int64_t n)
{
    int8_t q[64];
    uint16_t found, only = 0;
    int possible = 0;
    for (uint32_t scale = 0x0080; scale < 0x7f80; scale++)
        if (oct_q8_of_bf16(w, n, (uint16_t)scale, q, NULL) == 0) {
            possible++;
            only = (uint16_t)scale;
        }
    const oct_recovered kind = oct_q8_recover(w, n, &found, q);
    assert_int_equal(kind == OCT_RECOVERED_UNIQUE, possible == 1);
    assert_int_equal(kind == OCT_RECOVERED_SEVERAL, possible > 1);
    if (possible == 1)
        assert_int_equal(found, only);
    if (possible > 1)
        assert_int_equal(oct_q8_of_bf16(w, n, found, q, NULL), 0);
}

static void test_brute_force(void **s)
{
    int8_t q[64];
    uint16_t w[64];
    (void)s;
    for (int t = 0; t < 60; t++) {
        const int64_t n = 1 + (int64_t)(draw() % 12);
        for (int64_t i = 0; i < n; i++)
            q[i] = (int8_t)(t % 3 == 0 ? (int)draw() : 1 + (int)(draw() % 127));
        q[0] = q[0] ? q[0] : 3;
        multiply(q, n, draw_scale(), w);
        if (t % 4 == 1)
            w[draw() % (uint64_t)n] ^= (uint16_t)(1u << draw() % 7);
        check_all_scales(w, n);
    }
}

/* All even: s and 2 s. The one whose largest integer is 127, or the larger, is taken. */
static void test_several(void **s)
{
    const int8_t even[] = {2, -4, 126, 64}, whole[] = {1, 127, 127, 127};
    int8_t q[4];
    uint16_t w[4], found;
    (void)s;
    multiply(even, 4, 0x3c80, w);
    assert_int_equal(oct_q8_recover(w, 4, &found, q), OCT_RECOVERED_SEVERAL);
    assert_int_equal(found, 0x3c80);
    assert_memory_equal(q, even, 4);
    multiply(whole, 4, 0x3c80, w);
    (void)oct_q8_recover(w, 4, &found, q);
    assert_int_equal(found, 0x3c80);
}

static void test_zero(void **s)
{
    uint16_t w[32] = {0}, found = 1;
    int8_t q[32];
    (void)s;
    assert_int_equal(oct_q8_recover(w, 32, &found, q), OCT_RECOVERED_ZERO);
    assert_int_equal(found, 0);
    w[7] = 0x8000; /* -0 is no product */
    assert_int_equal(oct_q8_recover(w, 32, &found, q), OCT_RECOVERED_ODD);
    w[7] = 0x0001; /* subnormal */
    assert_int_equal(oct_q8_recover(w, 32, &found, q), OCT_RECOVERED_NOT);
    w[7] = 0x7f80;
    assert_int_equal(oct_q8_recover(w, 32, &found, q), OCT_RECOVERED_NOT_FINITE);
    w[7] = 0xffff;
    assert_int_equal(oct_q8_recover(w, 32, &found, q), OCT_RECOVERED_NOT_FINITE);
}

/* Each bit of each weight: it is named, or the new number is another product of the same scale. */
static void flip_bits(int64_t n, int tries)
{
    static int8_t q[MOST], back[MOST];
    static uint16_t w[MOST];
    int named = 0, passed = 0, small = 0;
    uint16_t found;
    for (int t = 0; t < tries; t++) {
        const uint16_t scale = draw_scale();
        const int64_t at = (int64_t)(draw() % (uint64_t)n);
        const int bit = (int)(draw() % 15); /* a flipped sign is another int8 */
        int64_t first;
        draw_row(q, n);
        multiply(q, n, scale, w);
        w[at] ^= (uint16_t)(1u << bit);
        const oct_recovered kind = oct_q8_recover(w, n, &found, back);
        if (kind == OCT_RECOVERED_NOT_FINITE)
            continue;
        if (oct_q8_of_bf16(w, n, scale, back, &first) == 0) {
            passed++;
            small += abs(q[at]) < 64 && bit == 0 && q[at];
            continue;
        }
        assert_int_equal(first, at);
        assert_int_equal(kind, OCT_RECOVERED_ODD);
        assert_int_equal(found, scale);
        named++;
    }
    assert_int_equal(small, 0); /* a step of half a scale at most leads to no other product */
    assert_true(named > passed);
}

static void test_flipped_bit(void **s)
{
    (void)s;
    flip_bits(6144, 400);
    flip_bits(768, 2000);
    flip_bits(96, 4000);
}

/* Numbers that never were int8. */
static void test_not_int8(void **s)
{
    static uint16_t w[MOST];
    static int8_t q[MOST];
    uint16_t found;
    (void)s;
    for (int t = 0; t < 200; t++) {
        const int64_t n = t % 2 ? 768 : 6144;
        float most = 0;
        for (int64_t i = 0; i < n; i++) {
            const float v =
                (float)(int32_t)(draw() >> 32) * (float)(int32_t)(draw() >> 32) * 0x1p-66f;
            w[i] = oct_bf16_of_f32(v);
            most = v > most ? v : -v > most ? -v : most;
        }
        assert_int_equal(oct_q8_recover(w, n, &found, q), OCT_RECOVERED_NOT);
        const float scale = oct_f32_of_bf16(found);
        assert_true(scale * 127 >= most * 0.99f && scale * 127 <= most * 1.02f);
        for (int64_t i = 0; i < n; i++) {
            const float e = (float)q[i] * scale - oct_f32_of_bf16(w[i]);
            assert_true((e < 0 ? -e : e) <= 0.501f * scale);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unique),      cmocka_unit_test(test_every_product),
        cmocka_unit_test(test_brute_force), cmocka_unit_test(test_several),
        cmocka_unit_test(test_zero),        cmocka_unit_test(test_flipped_bit),
        cmocka_unit_test(test_not_int8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
