/* test_serve_text.c: texts of answers as they are given out: stop strings over tokens, characters
 * over tokens, nothing twice and nothing lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rig.h"
#include "serve_text.h"

/* Adds all bytes in tokens of the sizes given by `cut`, looks after each at what may be given out,
 * and returns the whole; given[]: what was given out on the way, together. */
static char *run(const char *bytes, size_t n, const oct_serve_stops *stops, rig_rng *rng,
                 int64_t longest, char *given, int64_t *n_tokens)
{
    oct_serve_text t = {.stops = stops};
    size_t n_given = 0, ready;
    int64_t tokens, tokens_given = 0;
    for (size_t at = 0; at < n && !t.ended;) {
        size_t k = (size_t)rig_int(rng, 0, longest);
        k = k < n - at ? k : n - at;
        assert_true(oct_serve_text_add(&t, (int32_t)at, bytes + at, k, -1.0, NULL, 0));
        at += k;
        oct_serve_text_ready(&t, &ready, &tokens);
        assert_true(ready >= n_given && (tokens >= tokens_given || t.ended));
        assert_true(oct_utf8_valid(t.bytes, ready) == ready || ready == 0);
        if (ready > 0)
            memcpy(given + n_given, t.bytes + n_given, ready - n_given);
        n_given = ready;
        tokens_given = tokens;
    }
    oct_serve_text_end(&t);
    oct_serve_text_ready(&t, &ready, &tokens);
    assert_int_equal(ready, t.n);
    assert_int_equal(tokens, t.n_tokens);
    if (t.n > 0)
        memcpy(given + n_given, t.bytes + n_given, t.n - n_given);
    given[t.n] = 0;
    size_t last = 0;
    for (int64_t i = 0; i < t.n_tokens; i++) {
        assert_true(t.tokens[i].end >= last && t.tokens[i].end <= t.n);
        last = t.tokens[i].end;
    }
    assert_true(t.n_tokens == 0 || last == t.n);
    *n_tokens = t.n_tokens;
    char *whole = strndup(t.bytes ? t.bytes : "", t.n);
    oct_serve_text_free(&t);
    return whole;
}

/* Random texts of few letters and random stop strings, which so begin often and come sometimes. */
static void test_stops(void **state)
{
    (void)state;
    rig_rng rng = {rig_seed()};
    int n_stopped = 0;
    for (int round = 0; round < 20000; round++) {
        char text[64], given[300], want[64], stop[4][8];
        oct_serve_stops stops = {.count = (int)rig_int(&rng, 0, 4)};
        const int64_t n = rig_int(&rng, 0, 60);
        for (int64_t i = 0; i < n; i++)
            text[i] = (char)('a' + rig_int(&rng, 0, 1));
        text[n] = 0;
        memcpy(want, text, sizeof want);
        for (int i = 0; i < stops.count; i++) {
            stops.n[i] = (size_t)rig_int(&rng, 1, 7);
            for (size_t k = 0; k < stops.n[i]; k++)
                stop[i][k] = (char)('a' + rig_int(&rng, 0, 1));
            stop[i][stops.n[i]] = 0;
            stops.text[i] = stop[i];
        }
        /* The stop that is complete first, by tokens, ends the text; with tokens of one byte that is
         * the one which ends first, and of those the one that begins first. */
        size_t end = SIZE_MAX, start = SIZE_MAX;
        for (int i = 0; i < stops.count; i++) {
            const char *at = strstr(text, stop[i]);
            const size_t from = at ? (size_t)(at - text) : 0, to = from + stops.n[i];
            if (at && (to < end || (to == end && from < start))) {
                end = to;
                start = from;
            }
        }
        if (end != SIZE_MAX)
            want[start] = 0;
        n_stopped += end != SIZE_MAX;
        int64_t n_tokens;
        char *whole = run(text, (size_t)n, &stops, &rng, 1, given, &n_tokens);
        assert_string_equal(whole, want);
        assert_string_equal(given, want);
        free(whole);
    }
    assert_in_range(n_stopped, 2000, 19999);
}

/* One stop string ends the same text at the same place, however it is cut into tokens. */
static void test_cuts(void **state)
{
    (void)state;
    rig_rng rng = {rig_seed()};
    static const char text[] = "one two thr\xc3\xa9\xc3\xa9 \xf0\x9f\x98\x80 four STOP five";
    oct_serve_stops stops = {.text = {"STOP"}, .n = {4}, .count = 1};
    for (int round = 0; round < 3000; round++) {
        char given[300];
        int64_t n_tokens;
        char *whole =
            run(text, sizeof text - 1, &stops, &rng, rig_int(&rng, 1, 12), given, &n_tokens);
        assert_string_equal(whole, "one two thr\xc3\xa9\xc3\xa9 \xf0\x9f\x98\x80 four ");
        assert_string_equal(given, whole);
        free(whole);
    }
}

/* What is no UTF-8 becomes U+FFFD, one for each maximal subpart (Unicode 3.9). */
static void test_invalid(void **state)
{
    static const struct {
        const char *bytes, *want;
    } cases[] = {
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf0\x80\x80\x41", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\x41"},
        {"\xe2\x80\x41", "\xef\xbf\xbd\x41"},
        {"\xf0\x9f\x98", "\xef\xbf\xbd"},
        {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
    };
    (void)state;
    rig_rng rng = {rig_seed()};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int round = 0; round < 100; round++) {
            char given[300];
            int64_t n_tokens;
            char *whole =
                run(cases[i].bytes, strlen(cases[i].bytes), NULL, &rng, 3, given, &n_tokens);
            assert_string_equal(whole, cases[i].want);
            assert_string_equal(given, cases[i].want);
            free(whole);
        }
}

/* A character is given out with the token that completes it, and a stop string that may have begun
 * holds its tokens back, with their alternatives. */
static void test_held(void **state)
{
    (void)state;
    oct_serve_stops stops = {.text = {"</x>"}, .n = {4}, .count = 1};
    oct_serve_text t = {.stops = &stops};
    const oct_token_logprob top[2] = {{7, -0.5}, {8, -1.5}};
    size_t n;
    int64_t k;
    assert_true(oct_serve_text_add(&t, 1, "\xf0\x9f", 2, -1, top, 2));
    oct_serve_text_ready(&t, &n, &k);
    assert_true(n == 0 && k == 0);
    assert_true(oct_serve_text_add(&t, 2, "\x98\x80", 2, -2, top, 2));
    oct_serve_text_ready(&t, &n, &k);
    assert_true(n == 4 && k == 2);
    assert_true(oct_serve_text_add(&t, 3, "a<", 2, -3, top, 1));
    assert_true(oct_serve_text_add(&t, 4, "/x", 2, -4, NULL, 0));
    oct_serve_text_ready(&t, &n, &k);
    assert_true(n == 4 && k == 2);
    assert_true(oct_serve_text_add(&t, 5, "y", 1, -5, NULL, 0));
    oct_serve_text_ready(&t, &n, &k);
    assert_true(n == 9 && k == 5);
    assert_int_equal(t.tokens[2].n_top, 1);
    assert_int_equal(t.tops[t.tokens[1].top + 1].id, 8);
    /* The token that begins the stop string stays, as far as it says more. */
    assert_true(oct_serve_text_add(&t, 6, "z</", 3, -6, NULL, 0));
    assert_true(oct_serve_text_add(&t, 7, "x>more", 6, -7, NULL, 0));
    assert_true(t.ended && t.stopped && t.n == 10 && t.n_tokens == 6);
    assert_true(oct_serve_text_add(&t, 8, "late", 4, -8, NULL, 0));
    assert_true(t.n == 10 && t.n_tokens == 6);
    oct_serve_text_free(&t);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_invalid),
        cmocka_unit_test(test_held),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
