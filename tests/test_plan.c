/* test_plan.c: `octet plan`: the same memory as `octet run --dry-run` shows, exit codes, hosts and
 * networks, what would fit instead, and wrong command lines. */
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
#include <unistd.h>

#include <cmocka.h>

#include "command_output.h"

static const char tiny[] = OCT_TEST_MODELS "/tiny-grok.gguf";
static char folder[] = "/tmp/octet-plan-XXXXXX";

/* Both streams of `octet ARGUMENTS`, malloc'd; its exit code in *code. */
static char *octet(const char *arguments, int *code)
{
    char command[4096];
    assert_true(snprintf(command, sizeof command, "'%s' %s 2>&1", OCT_TEST_OCTET, arguments) <
                (int)sizeof command);
    return command_output(command, code);
}

/* `octet plan ARGUMENTS --json` without measuring; exit code `expect`. */
static json_t *plan(const char *arguments, int expect)
{
    char line[2048];
    int code;
    json_error_t e;
    snprintf(line, sizeof line, "plan %s --read 400 --ops 20 --json", arguments);
    char *text = octet(line, &code);
    json_t *all = json_loads(text, 0, &e);
    if (code != expect || !all)
        fail_msg("%s: exit code %d, %s in %.300s", line, code, all ? "" : e.text, text);
    assert_int_equal(json_is_true(json_object_get(all, "fits")), expect == 0);
    free(text);
    return all;
}

static double number(const json_t *o, const char *key)
{
    if (!json_is_number(json_object_get(o, key)))
        fail_msg("no number %s", key);
    return json_number_value(json_object_get(o, key));
}

static const json_t *host(const json_t *plan, size_t i)
{
    return json_array_get(json_object_get(plan, "hosts"), i);
}

static double least(const json_t *plan, const char *what)
{
    return number(json_object_get(json_object_get(plan, "speed"), what), "min");
}

/* The amount behind a word of --dry-run's table. */
static double amount(const char *text, const char *word)
{
    const char *at = strstr(text, word);
    double x = 0;
    char unit[8] = "";
    if (!at || sscanf(at + strlen(word), " %lf %7s", &x, unit) != 2)
        fail_msg("no %s in %s", word, text);
    return x * (strcmp(unit, "KiB") == 0   ? 0x1p10
                : strcmp(unit, "MiB") == 0 ? 0x1p20
                : strcmp(unit, "GiB") == 0 ? 0x1p30
                                           : 1);
}

static void near(double x, double y)
{
    if (fabs(x - y) > 0.01 * y)
        fail_msg("%.6g, expected %.6g", x, y);
}

static void test_dry_run(void **state)
{
    (void)state;
    static const char *const options[] = {"-c 1000", "-c 100 --kv f32 -t 1", "-c 700 --chunk 64"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        char line[512];
        int code;
        snprintf(line, sizeof line, "run -m %s %s --dry-run", tiny, options[i]);
        char *text = octet(line, &code);
        assert_int_equal(code, 0);
        snprintf(line, sizeof line, "%s %s -p 50", tiny, options[i]);
        json_t *p = plan(line, 0);
        near(number(host(p, 0), "weights_bytes"), amount(text, "\n  weights "));
        near(number(host(p, 0), "kv_bytes"), amount(text, "\n  KV cache "));
        near(number(host(p, 0), "buffers_bytes"), amount(text, "\n  buffers "));
        near(number(host(p, 0), "total_bytes"), amount(text, "\n  total "));
        json_decref(p);
        free(text);
    }
}

static void test_grok1(void **state)
{
    (void)state;
    json_t *p = plan("grok-1 --memory 400GiB", 0);
    const json_t *m = json_object_get(p, "model");
    assert_true(number(m, "download_bytes") == 318239886140.0);
    assert_true(number(m, "disk_bytes") > 630e9 && number(m, "disk_bytes") < 640e9);
    assert_true(least(p, "tokens_per_second") > 3.5 && least(p, "tokens_per_second") < 5);
    json_decref(p);
    p = plan("grok-1 --memory 297GiB", 3); /* a shorter context, or two such hosts */
    const json_t *instead = json_object_get(p, "instead");
    assert_true(json_array_size(instead) >= 2);
    assert_true(number(json_array_get(instead, 0), "context") < 8192);
    assert_int_equal((int)number(json_array_get(instead, 1), "hosts"), 2);
    json_decref(p);
    p = plan("grok-1 --memory 10G", 3);
    assert_int_equal(json_array_size(json_object_get(p, "instead")), 0);
    json_decref(p);
    p = plan("grok-1 --memory 400GiB --gpu 24GiB,900", 0);
    assert_true(number(host(p, 0), "card_bytes") > 9e9);
    assert_true(number(host(p, 0), "kv_bytes") == 0);
    json_decref(p);
    p = plan("grok-1 --memory 400GiB --batch 4 -c 2048", 0);
    assert_true(number(host(p, 0), "kv_bytes") == 4 * 2048 * 262144.0);
    json_decref(p);
}

static void test_hosts(void **state)
{
    (void)state;
    char path[64], line[256];
    snprintf(path, sizeof path, "%s/hosts", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("\xef\xbb\xbf# four of them\n\nnode1 slots=1 # memory=96GiB read=300 ops=9 cores=48 "
          "numa=2\r\nnode2 memory=96GiB read=100 ops=9\nnode3 memory=64GiB read=300 ops=9\n"
          "node4 memory=96GiB read=300 ops=9",
          f);
    fclose(f);
    snprintf(line, sizeof line, "plan grok-1 --hosts %s --network 10,11.5 --json", path);
    int code;
    char *text = octet(line, &code);
    assert_int_equal(code, 3);
    json_t *p = json_loads(text, 0, NULL);
    assert_non_null(p);
    assert_string_equal(json_string_value(json_object_get(host(p, 3), "name")), "node4");
    assert_int_equal((int)number(host(p, 0), "threads"), 48);
    assert_true(json_is_true(json_object_get(host(p, 1), "fits")));
    assert_true(json_is_false(json_object_get(host(p, 2), "fits"))); /* 79 GB are too many */
    /* The slow one sets the pace: 21.2 GB at 100 GB/s. */
    assert_true(least(p, "tokens_per_second") > 3.5 && least(p, "tokens_per_second") < 4.8);
    json_decref(p);
    free(text);
    p = plan("grok-1 --nodes 8,10,2.9 --memory 64GiB", 0);
    assert_int_equal(json_array_size(json_object_get(p, "hosts")), 8);
    json_decref(p);
}

/* The rest of the text, once, with this machine's own rates. */
static void test_text(void **state)
{
    (void)state;
    char line[256];
    int code;
    snprintf(line, sizeof line, "plan %s -c 512", tiny);
    char *text = octet(line, &code);
    assert_int_equal(code, 0);
    static const char *const parts[] = {"memory: 1 sequence of 512 positions",
                                        "  fits",
                                        "tokens/s",
                                        "first token after",
                                        "measured here just now",
                                        "octet run -m ",
                                        " --dry-run",
                                        "octet bench -m "};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(text, parts[i]))
            fail_msg("no '%s' in %s", parts[i], text);
    free(text);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *arguments;
        int code;
        const char *says;
    } rows[] = {{"", 2, "what to plan for is missing"},
                {"grok-1 x", 2, "unexpected argument"},
                {"grok-2", 1, "grok-2 is not supported yet"},
                {"mixtral-8x7b", 1, "not supported yet"},
                {"grok-7", 1, "no model of this name"},
                {"/nowhere/config.json", 1, "/nowhere/config.json"},
                {"grok-1 --experts q77", 1, "'q77' is no weight type, expected one of q8"},
                {"grok-1 --memory 12Q", 2, "--memory '12Q'"},
                {"grok-1 --memory -1", 2, "--memory '-1'"},
                {"grok-1 --memory 1e30T", 2, "--memory"},
                {"grok-1 --gpu 24", 2, "--gpu '24'"},
                {"grok-1 --gpu 24GiB,x", 2, "--gpu"},
                {"grok-1 --nodes 8", 2, "--nodes '8'"},
                {"grok-1 --nodes 9,1,1", 2, "--nodes"},
                {"grok-1 --nodes 3,1,1 --read 1 --ops 1", 1, "must divide"},
                {"grok-1 --network 1", 2, "--network '1'"},
                {"grok-1 --hosts /nowhere", 1, "/nowhere"},
                {"grok-1 --hosts a --nodes 2,1,1", 2, "one of the two"},
                {"grok-1 -c 9000", 2, "context of 8192"},
                {"grok-1 -c 100 -p 200 --read 1 --ops 1", 1, "a prompt of 200 tokens"},
                {"grok-1 --read 0", 2, "--read"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char line[256];
        int code;
        snprintf(line, sizeof line, "plan %s", rows[i].arguments);
        char *text = octet(line, &code);
        if (code != rows[i].code || !strstr(text, rows[i].says))
            fail_msg("%s: exit code %d, %s", line, code, text);
        free(text);
    }
    static const char *const bad[] = {
        "node1 read=3",       "memory=3G",           "a memory=0", "a memory=1G x=2",
        "a memory=1G read=x", "a memory=1G slots=2", "# none"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char path[64], line[256];
        int code;
        snprintf(path, sizeof path, "%s/bad", folder);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fprintf(f, "%s\n", bad[i]);
        fclose(f);
        snprintf(line, sizeof line, "plan grok-1 --hosts %s", path);
        char *text = octet(line, &code);
        if (code != 2 || !strstr(text, path))
            fail_msg("'%s': exit code %d, %s", bad[i], code, text);
        free(text);
    }
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    char path[64];
    static const char *const names[] = {"hosts", "bad"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        remove(path);
    }
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dry_run), cmocka_unit_test(test_grok1),
        cmocka_unit_test(test_hosts),   cmocka_unit_test(test_text),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
