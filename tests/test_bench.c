/* test_bench.c: `octet bench` on a small model: its three formats say the same kind of thing, its
 * numbers fit each other, and wrong command lines are refused. */
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

static const char tiny[] = "-m " OCT_TEST_MODELS "/tiny-grok.gguf ";

/* Standard output of `octet bench ARGUMENTS`, malloc'd; its exit code in *code. */
static char *bench(const char *arguments, int *code)
{
    char command[4096];
    assert_true(snprintf(command, sizeof command, "'%s' bench %s", OCT_TEST_OCTET, arguments) <
                (int)sizeof command);
    return command_output(command, code);
}

static json_t *bench_json(const char *arguments)
{
    char line[2048];
    int code;
    json_error_t e;
    snprintf(line, sizeof line, "%s --format json", arguments);
    char *text = bench(line, &code);
    json_t *all = json_loads(text, 0, &e);
    if (code != 0 || !all)
        fail_msg("%s: exit code %d, %s in %.200s", line, code, all ? "" : e.text, text);
    free(text);
    return all;
}

static double number(const json_t *row, const char *key)
{
    const json_t *v = json_object_get(row, key);
    if (!json_is_number(v))
        fail_msg("no number %s", key);
    return json_number_value(v);
}

static double median(const json_t *row, const char *key)
{
    const json_t *v = json_object_get(row, key);
    if (!v)
        fail_msg("no %s", key);
    double least = number(v, "min"), middle = number(v, "median"), most = number(v, "max");
    assert_true(least <= middle && middle <= most);
    assert_true(isfinite(most));
    return middle;
}

static void check_row(const json_t *row)
{
    static const char *const positive[] = {"tokens_per_second", "gb_per_second", "read_probe",
                                           "of_read_probe",     "tops",          "peak_probe",
                                           "of_peak_probe",     "predicted",     "of_predicted"};
    for (size_t i = 0; i < sizeof positive / sizeof *positive; i++)
        if (median(row, positive[i]) <= 0)
            fail_msg("%s: expected more than 0", positive[i]);
    double sync = median(row, "sync");
    assert_true(sync >= 0 && sync <= 1);
    double of_read = median(row, "of_read_probe"), of_peak = median(row, "of_peak_probe");
    double of_bound = median(row, "of_predicted");
    assert_true(of_bound >= of_read * 0.99 && of_bound >= of_peak * 0.99);
}

static void test_json(void **state)
{
    (void)state;
    char line[1024];
    snprintf(line, sizeof line, "%s -t 1,2 -p 8,33 -n 3 -d 0,40 -b 1,2 -r 2 --chunk 16", tiny);
    json_t *all = bench_json(line), *row, *set;
    size_t i, prefill = 0, decode = 0;
    json_array_foreach(json_object_get(all, "rows"), i, row)
    {
        const char *test = json_string_value(json_object_get(row, "test"));
        check_row(row);
        prefill += strcmp(test, "prefill") == 0;
        decode += strcmp(test, "decode") == 0;
        /* Bytes, tokens and time belong together (medians of two runs are their mean). */
        double ratio = number(row, "gb_per_token") * median(row, "tokens_per_second") /
                       median(row, "gb_per_second");
        assert_true(ratio > 0.98 && ratio < 1.02);
    }
    assert_int_equal(prefill, 2 * 2 * 2);
    assert_int_equal(decode, 2 * 2 * 2);
    assert_int_equal(json_array_size(json_object_get(all, "probes")), 2);
    json_array_foreach(json_object_get(all, "probes"), i, set)
    {
        assert_int_equal((int)number(set, "threads"), (int)i + 1);
        assert_true(median(set, "read") > 0.1);
        assert_true(number(set, "wake_us") > 0);
        assert_true(json_array_size(json_object_get(set, "arithmetic")) >= 2);
    }
    const json_t *machine = json_object_get(all, "machine");
    static const char *const facts[] = {"cpu", "threads", "kernels", "octet", "compiler"};
    for (size_t k = 0; k < sizeof facts / sizeof *facts; k++)
        assert_true(json_is_string(json_object_get(machine, facts[k])));
    json_decref(all);
}

/* A decoded token at depth d reads the active weights and d + 1 or more positions of the cache. */
static void test_bytes(void **state)
{
    (void)state;
    char line[1024];
    snprintf(line, sizeof line, "%s -t 1 -p 0 -n 1 -d 0,100 -r 1", tiny);
    json_t *all = bench_json(line), *rows = json_object_get(all, "rows");
    assert_int_equal(json_array_size(rows), 2);
    double first = number(json_array_get(rows, 0), "gb_per_token");
    double later = number(json_array_get(rows, 1), "gb_per_token");
    /* tiny-grok: keys and values of 6 layers with 8 heads of 16 f16 numbers (its config.json) */
    double position = 2 * 6 * 8 * 16 * 2 * 1e-9;
    assert_true(fabs(later - first - 100 * position) < position * 0.01);
    json_decref(all);
}

static void test_parts(void **state)
{
    (void)state;
    char line[1024];
    snprintf(line, sizeof line, "%s -t 2 -p 0 -n 0 -r 1 --expert 1,50 --act i8", tiny);
    json_t *all = bench_json(line), *row;
    size_t i;
    json_array_foreach(json_object_get(all, "rows"), i, row)
    {
        check_row(row);
        assert_string_equal(json_string_value(json_object_get(row, "test")), "expert");
        assert_string_equal(json_string_value(json_object_get(row, "act")), "i8");
    }
    assert_int_equal(i, 2);
    json_decref(all);
}

static int count(const char *text, size_t n, char c)
{
    int found = 0;
    for (size_t i = 0; i < n; i++)
        found += text[i] == c;
    return found;
}

static void test_tables(void **state)
{
    (void)state;
    char line[1024];
    int code, lines = 0, commas = -1;
    snprintf(line, sizeof line, "%s -t 1 -p 8 -n 2 -r 1 --format csv", tiny);
    char *text = bench(line, &code);
    assert_int_equal(code, 0);
    for (const char *p = text; *p; p += strcspn(p, "\n") + 1, lines++) {
        int found = count(p, strcspn(p, "\n"), ',');
        if (commas >= 0)
            assert_int_equal(found, commas);
        commas = found;
    }
    assert_int_equal(lines, 3);
    free(text);
    snprintf(line, sizeof line, "%s -t 1 -p 8 -n 2 -r 1", tiny);
    text = bench(line, &code);
    assert_int_equal(code, 0);
    assert_non_null(strstr(text, "\n| prefill | 1 | 8 |"));
    assert_non_null(strstr(text, "\n| decode | 1 | 2 |"));
    int bars = 0;
    for (const char *p = text; *p; p += strcspn(p, "\n") + 1) {
        int found = count(p, strcspn(p, "\n"), '|');
        if (found && bars)
            assert_int_equal(found, bars);
        bars = found;
    }
    free(text);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *arguments;
        int code;
        const char *says;
    } wrong[] = {
        {"", 2, "expected either -m MODEL or --synthetic"},
        {"%s --synthetic grok-1", 2, "expected either"},
        {"%s -t 0", 2, "--threads '0'"},
        {"%s -t 1,,2", 2, "--threads '1,,2'"},
        {"%s -p 5x", 2, "--prompt '5x'"},
        {"%s -d -1", 2, "--depth '-1'"},
        {"%s -b 0", 2, "--batch '0'"},
        {"%s --expert 0", 2, "--expert '0'"},
        {"%s --attention x", 2, "--attention 'x'"},
        {"%s -r 0", 2, "expected a whole number from 1 to 99"},
        {"%s -r 100", 2, "expected a whole number from 1 to 99"},
        {"%s --format xml", 2, "md|csv|json"},
        {"%s -o x", 2, "-o is for --synthetic"},
        {"%s -d 100000", 2, "the model has"},
        {"%s -n 2000 -p 0", 2, "the model has"},
        {"-m /nowhere/no.gguf", 1, "/nowhere/no.gguf"},
        {"--synthetic grok-2", 2, "--synthetic"},
        {"--synthetic grok-1 -o /nowhere/x.gguf", 1, "/nowhere/x.gguf"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char arguments[1024], line[1200];
        int code;
        const char *at = strstr(wrong[i].arguments, "%s");
        snprintf(arguments, sizeof arguments, "%s%s", at ? tiny : "",
                 at ? at + 2 : wrong[i].arguments);
        snprintf(line, sizeof line, "%s 2>&1", arguments);
        char *text = bench(line, &code);
        if (code != wrong[i].code || !strstr(text, wrong[i].says) ||
            count(text, strlen(text), '\n') != 1)
            fail_msg("%s: exit code %d: %s", arguments, code, text);
        free(text);
    }
}

/* What --simulate says of Grok-1, against the same sums done here. */
static void test_simulate(void **state)
{
    (void)state;
    json_t *rows = bench_json("--simulate 8,25,1.15,415");
    const double layers = 64, d = 6144, expert = 3 * d * 32768, attention = d * (2 * d + 2048);
    const double head = 131072 * d * 2, a = 25e-6, rate = 1.15e9;
    size_t i;
    json_t *row;
    assert_int_equal(json_array_size(rows), 13);
    json_array_foreach(rows, i, row)
    {
        double n = number(row, "nodes");
        const char *shard = json_string_value(json_object_get(row, "shard"));
        bool whole = strstr(shard, "expert") != NULL, all = strstr(shard, "replicated") != NULL;
        /* Two different experts of eight: chance of being on one node of n. */
        double both = (8 / n - 1) / 7, experts = whole ? 1 + both : 2 / n;
        double bytes = layers * (experts * expert + attention / (all ? 1 : n)) + head / n;
        double found = 1e9 * number(row, "gb_per_token");
        assert_true(found > bytes && found < 1.01 * bytes); /* scales, norms, routers */
        double folds = 1 + layers * (all ? 1 : 2), vectors = folds + layers * (whole ? 0 : 1);
        double sums = 2 * a * folds + 2 * (n - 1) / n * 4 * (d * vectors + folds) / rate;
        double rest = 3 * a + (n - 1) * (36 + 131072 * 4 / n + 65 * 8) / rate;
        double exchange = n > 1 ? sums + rest : 0;
        assert_true(fabs(1e-3 * number(row, "exchange_ms") - exchange) < 1e-9);
        assert_true(number(row, "rounds") == (n > 1 ? 2 * folds + 3 : 0));
        double seconds = found / 415e9 + exchange;
        assert_true(fabs(number(row, "tokens_per_second") * seconds - 1) < 1e-6);
    }
    json_decref(rows);
    static const char *const wrong[] = {"8,2", "8,2,3",     "0,2,3,4",   "8,-1,3,4", "8,2,0,4",
                                        "x",   "8,2,3,4,5", "1.5,2,3,4", "5,2,3,4",  "8,2,3,4x"};
    for (i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char line[64];
        int code;
        snprintf(line, sizeof line, "--simulate %s 2>/dev/null", wrong[i]);
        char *text = bench(line, &code);
        if (code == 0 || *text)
            fail_msg("%s: exit code %d, '%s'", wrong[i], code, text);
        free(text);
    }
    rows = bench_json("-m " OCT_TEST_MODELS "/tiny-grok.gguf -t 1 -n 2 -r 1 --simulate 2,25,1.15");
    assert_int_equal(json_array_size(rows), 5);
    assert_true(number(json_array_get(rows, 0), "tokens_per_second") > 1);
    json_decref(rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),    cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_parts),   cmocka_unit_test(test_tables),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_simulate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
