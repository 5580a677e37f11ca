/* UTF-8 repair: the same result for every way a text is cut into pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "utf8.h"

#define FFFD "\xEF\xBF\xBD"

typedef struct repair {
    const char *what;
    const char *in, *out;
} repair;

static const repair repairs[] = {
    {"nothing", "", ""},
    {"ASCII", "Aa 1\n", "Aa 1\n"},
    {"two, three and four bytes", "\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80",
     "\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80"},
    {"least and largest of each length",
     "\xC2\x80\xDF\xBF\xE0\xA0\x80\xEF\xBF\xBF\xF0\x90\x80\x80\xF4\x8F\xBF\xBF",
     "\xC2\x80\xDF\xBF\xE0\xA0\x80\xEF\xBF\xBF\xF0\x90\x80\x80\xF4\x8F\xBF\xBF"},
    {"around the surrogates", "\xED\x9F\xBF\xEE\x80\x80", "\xED\x9F\xBF\xEE\x80\x80"},
    {"a surrogate", "\xED\xA0\x80", FFFD FFFD FFFD},
    {"overlong in four bytes", "\xF0\x80\x80\x41", FFFD FFFD FFFD "A"},
    {"overlong in three bytes", "\xE0\x80\xAF", FFFD FFFD FFFD},
    {"overlong in two bytes", "\xC0\xAF\xC1\xBF", FFFD FFFD FFFD FFFD},
    {"cut after two of three", "\xE2\x80\x41", FFFD "A"},
    {"cut after three of four", "\xF0\x9F\x98\x41", FFFD "A"},
    {"cut by another character", "\xE2\x80\xC3\xA9", FFFD "\xC3\xA9"},
    {"above U+10FFFF", "\xF4\x90\x80\x80", FFFD FFFD FFFD FFFD},
    {"bytes that start nothing", "\x80\xBF\xF5\xFF", FFFD FFFD FFFD FFFD},
    {"the end in the middle of a character", "x\xF0\x9F\x98", "x" FFFD},
    {"the end after a first byte", "x\xC3", "x" FFFD},
    {"Unicode's own example", "\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64",
     "\x61" FFFD FFFD FFFD "\x62" FFFD "\x63" FFFD FFFD "\x64"},
};

static void same_for_every_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof repairs / sizeof *repairs; i++) {
        const repair *r = &repairs[i];
        size_t n = strlen(r->in);
        for (size_t a = 0; a <= n; a++) {
            for (size_t b = a; b <= n; b++) {
                char out[256];
                oct_utf8 u = {0};
                size_t k = oct_utf8_feed(&u, r->in, a, out);
                assert_true(k <= OCT_UTF8_ROOM(a));
                k += oct_utf8_feed(&u, r->in + a, b - a, out + k);
                k += oct_utf8_feed(&u, r->in + b, n - b, out + k);
                k += oct_utf8_end(&u, out + k);
                out[k] = 0;
                if (strcmp(out, r->out) != 0)
                    print_error("%s, cut at %zu and %zu\n", r->what, a, b);
                assert_string_equal(out, r->out);
            }
        }
    }
}

static void no_controls_for_terminals(void **state)
{
    (void)state;
    char out[OCT_UTF8_ROOM(32)];
    oct_utf8 u = {.printable = true};
    const char in[] = "a\n\tb\x1b[31m\r\x7f\xC2\x9B\xC2\xA0\xC3\x9B";
    size_t n = oct_utf8_feed(&u, in, sizeof in - 1, out);
    out[n] = 0;
    assert_string_equal(out, "a\n\tb" FFFD "[31m" FFFD FFFD FFFD "\xC2\xA0\xC3\x9B");
}

/* What is certain is not held back. */
static void nothing_held_without_need(void **state)
{
    (void)state;
    char out[OCT_UTF8_ROOM(8)];
    oct_utf8 u = {0};
    assert_int_equal(oct_utf8_feed(&u, "\xE2\x82\xAC\xE2", 4, out), 3);
    assert_int_equal(oct_utf8_feed(&u, "A", 1, out), 4);
    assert_memory_equal(out, FFFD "A", 4);
    assert_int_equal(oct_utf8_end(&u, out), 0);
}

/* Random bytes: the output decodes by the plain definition of UTF-8, and fits the promised room. */
static void always_valid(void **state)
{
    (void)state;
    uint64_t x = 88172645463325252u;
    for (int round = 0; round < 20000; round++) {
        unsigned char in[24], out[OCT_UTF8_ROOM(24)];
        for (size_t i = 0; i < sizeof in; i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            in[i] = (unsigned char)(x >> 32 & 1 ? x >> 40 : 0x80 | (x >> 40 & 0x7f));
        }
        oct_utf8 u = {0};
        size_t n = oct_utf8_feed(&u, (const char *)in, sizeof in, (char *)out);
        n += oct_utf8_end(&u, (char *)out + n);
        assert_true(n <= sizeof out);
        for (size_t i = 0; i < n;) {
            int len = out[i] < 0x80 ? 1 : out[i] >= 0xF0 ? 4 : out[i] >= 0xE0 ? 3 : 2;
            uint32_t c = len == 1 ? out[i] : out[i] & (0xFFu >> (len + 1));
            assert_true(len == 1 || out[i] >= 0xC0);
            for (int j = 1; j < len; j++) {
                assert_int_equal(out[i + (size_t)j] & 0xC0, 0x80);
                c = c << 6 | (out[i + (size_t)j] & 0x3F);
            }
            static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
            assert_true(c >= least[len] && c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF));
            i += (size_t)len;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_for_every_cut),
        cmocka_unit_test(no_controls_for_terminals),
        cmocka_unit_test(nothing_held_without_need),
        cmocka_unit_test(always_valid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
