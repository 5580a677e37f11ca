/* test_run_json.c: `octet run --json` and `octet tokenize --json` say what the same commands print
 * without it; log-probabilities fit each other. */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "command_output.h"

/* Standard output of `octet ARGUMENTS` on the small model, malloc'd. */
static char *octet(const char *command, const char *arguments, int expect)
{
    char line[4096];
    snprintf(line, sizeof line, "'%s' %s -m '" OCT_TEST_MODELS "/tiny-grok.gguf' %s 2>/dev/null",
             OCT_TEST_OCTET, command, arguments);
    int code;
    char *text = command_output(line, &code);
    if (code != expect)
        fail_msg("%s %s: exit code %d", command, arguments, code);
    return text;
}

/* The lines of a text as an array. */
static json_t *lines_of(const char *text)
{
    json_t *all = json_array();
    for (const char *at = text; *at;) {
        const char *end = strchr(at, '\n');
        assert_non_null(end);
        json_error_t e;
        json_t *o = json_loadb(at, (size_t)(end - at), JSON_REJECT_DUPLICATES, &e);
        if (!o)
            fail_msg("%s in %.*s", e.text, (int)(end - at), at);
        json_array_append_new(all, o);
        at = end + 1;
    }
    return all;
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    if (!text)
        fail_msg("no text %s", key);
    return text;
}

static double number_of(const json_t *o, const char *key)
{
    if (!json_is_number(json_object_get(o, key)))
        fail_msg("no number %s", key);
    return json_number_value(json_object_get(o, key));
}

static void check_logprobs(const json_t *o, bool greedy)
{
    const json_t *top = json_object_get(o, "top");
    assert_int_equal(json_array_size(top), 4);
    double sum = 0, before = 0;
    for (size_t i = 0; i < 4; i++) {
        const json_t *t = json_array_get(top, i);
        double p = number_of(t, "logprob");
        assert_true(p <= before);
        before = p;
        sum += exp(p);
        if (number_of(t, "token") == number_of(o, "token"))
            assert_true(p == number_of(o, "logprob"));
    }
    assert_true(sum > 0 && sum <= 1 + 1e-9);
    assert_true(number_of(o, "logprob") <= number_of(json_array_get(top, 0), "logprob"));
    if (greedy)
        assert_true(number_of(json_array_get(top, 0), "token") == number_of(o, "token"));
}

/* The pieces of each prompt and its end, against the text without --json. */
static void check_run(const char *arguments, size_t n_prompts, bool greedy, bool logprobs)
{
    char with[2048], *made[8] = {0}, *plain = octet("run", arguments, 0);
    size_t n_ended = 0, n_made[8] = {0};
    snprintf(with, sizeof with, "%s --json%s", arguments, logprobs ? " --logprobs 4" : "");
    char *text = octet("run", with, 0);
    json_t *all = lines_of(text), *o;
    size_t i;
    json_array_foreach(all, i, o)
    {
        if (json_object_get(o, "timings"))
            continue;
        size_t prompt = (size_t)number_of(o, "prompt") - 1;
        assert_true(prompt < n_prompts);
        const bool end = json_object_get(o, "end") != NULL;
        const char *piece = text_of(o, end ? "rest" : "text");
        size_t old = made[prompt] ? strlen(made[prompt]) : 0;
        made[prompt] = realloc(made[prompt], old + strlen(piece) + 1);
        memcpy(made[prompt] + old, piece, strlen(piece) + 1);
        if (!end) {
            n_made[prompt]++;
            if (logprobs)
                check_logprobs(o, greedy);
            else
                assert_null(json_object_get(o, "logprob"));
            continue;
        }
        n_ended++;
        assert_int_equal((size_t)number_of(o, "tokens"), n_made[prompt]);
        assert_string_equal(text_of(o, "text"), made[prompt]);
        assert_true(number_of(o, "prompt_tokens") >= 1);
        assert_non_null(strstr(plain, made[prompt]));
    }
    assert_int_equal(n_ended, n_prompts);
    assert_non_null(json_object_get(json_array_get(all, json_array_size(all) - 1), "timings"));
    for (size_t k = 0; k < n_prompts; k++)
        free(made[k]);
    json_decref(all);
    free(text);
    free(plain);
}

static void test_run(void **state)
{
    (void)state;
    check_run("-p 'In the beginning' -n 30 --temp 0", 1, true, true);
    check_run("-p 'In the beginning' -n 30 --seed 5", 1, false, true);
    check_run("-p And -n 200 --temp 1000 --top-p 1 --seed 3 --ignore-eos", 1, false, false);
}

/* A text behind a byte order mark, which is no part of it, in a file of its own. */
static void write_marked(char path[40], const char *text)
{
    strcpy(path, "/tmp/octet-text-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "w");
    assert_non_null(f);
    fprintf(f, "\xef\xbb\xbf%s", text);
    fclose(f);
}

static void test_prompts(void **state)
{
    (void)state;
    char path[40], line[256];
    write_marked(path, "In the beginning\r\nAnd God\nhacker:\n");
    snprintf(line, sizeof line, "--prompts %s -n 12 --temp 0 --no-echo", path);
    check_run(line, 3, true, true);
    remove(path);
}

static void test_refused(void **state)
{
    (void)state;
    free(octet("run", "-p a --logprobs 2", 2));
    free(octet("run", "-i --json", 2));
    free(octet("run", "-p a --json --logprobs 65", 2));
    free(octet("tokenize", "-p a -f b", 2));
    free(octet("tokenize", "-f /nowhere", 1));
}

static void test_tokenize(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "In the beginning", "Gr\xc3\xbc\xc3\x9f\x65, \xf0\x9f\x98\x80", "  two  spaces", "a\tb"};
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        char line[512];
        snprintf(line, sizeof line, "-p '%s'", texts[k]);
        char *ids = octet("tokenize", line, 0);
        snprintf(line, sizeof line, "-p '%s' --json", texts[k]);
        char *json = octet("tokenize", line, 0);
        json_t *all = lines_of(json), *o = json_array_get(all, 0), *v;
        char *joined = calloc(1, strlen(ids) + 2);
        size_t i;
        json_array_foreach(json_object_get(o, "ids"), i, v)
            sprintf(joined + strlen(joined), "%s%d", i ? " " : "", (int)json_integer_value(v));
        strcat(joined, "\n");
        assert_string_equal(ids, joined);
        assert_int_equal(json_array_size(json_object_get(o, "pieces")), i);
        assert_string_equal(text_of(o, "text"), texts[k]);
        /* And back. */
        char path[40];
        write_marked(path, ids);
        snprintf(line, sizeof line, "--ids %s", path);
        char *back = octet("tokenize", line, 0);
        assert_string_equal(back, texts[k]);
        remove(path);
        free(back);
        free(joined);
        json_decref(all);
        free(json);
        free(ids);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_tokenize),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
