/* test_serve_save.c: octet serve --kv-save: what was cached is there after a restart, and answers
 * have the bytes that they have without; files that are no good are told of and not used. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "serve_api_rig.h"

enum { N = 300, PAGE = 128 }; /* tokens of the prompt */

static char top[] = "/tmp/octet-save-XXXXXX", folder[64], file[160], prompt[N * 8];

static int set_up(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(top));
    snprintf(folder, sizeof folder, "%s/kv", top);
    size_t n = 0;
    for (int i = 0; i < N; i++)
        n += (size_t)snprintf(prompt + n, sizeof prompt - n, "%s%d", i ? "," : "",
                              100 + i * i * 7 % 900);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    if (*file)
        unlink(file);
    rmdir(folder);
    return rmdir(top);
}

static void start(const char *more)
{
    char options[300];
    snprintf(options, sizeof options, "-c 1024 --parallel 4 --kv-save %s %s", folder, more);
    server = start_server(options);
}

/* Ends it, and returns what it has said, malloc'd. */
static char *end(int sig)
{
    const rig_server s = server;
    kill(s.pid, sig);
    int status = 0;
    for (double till = rig_now() + 60; waitpid(s.pid, &status, WNOHANG) == 0;) {
        if (rig_now() > till)
            fail_msg("the server does not end");
        rig_sleep(0.005);
    }
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 128 + sig);
    char *log = rig_read_file(s.log);
    unlink(s.log);
    return log;
}

/* The text for the prompt and seed; cached: tokens that must have been there. */
static char *ask(int cached)
{
    json_t *r = post(200, "/v1/completions", "{'prompt':[%s],'max_tokens':24,'seed':5}", prompt);
    assert_int_equal(int_at(r, "usage.prompt_tokens_details.cached_tokens"), cached);
    char *text = strdup(text_at(r, "choices.0.text"));
    json_decref(r);
    return text;
}

static void same(char *text, const char *want)
{
    assert_string_equal(text, want);
    free(text);
}

static void said(char *log, const char *words)
{
    if (!strstr(log, words))
        fail_msg("the log lacks \"%s\": %s", words, log);
    free(log);
}

static void damage(off_t at)
{
    unsigned char byte;
    const int fd = open(file, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void test_restart(void **state)
{
    (void)state;
    struct stat st;
    char *want, words[200];
    start("");
    want = ask(0);
    same(ask(2 * PAGE), want);
    json_t *r = post(200, "/v1/completions", "{'prompt':[%s],'max_tokens':1}", prompt);
    const char *print = strchr(text_at(r, "system_fingerprint"), '-') + 1;
    snprintf(file, sizeof file, "%s/octet-%.16s.kv", folder, strchr(print, '-') + 1);
    json_decref(r);
    said(end(SIGTERM), "\nsaved 2 of 2 pages of keys and values");
    assert_int_equal(stat(file, &st), 0);
    /* Warm, over three restarts, by both signals. */
    for (int i = 0; i < 3; i++) {
        start("");
        same(ask(2 * PAGE), want);
        said(end(i % 2 ? SIGTERM : SIGINT), "\nrestored 2 pages of keys and values");
    }
    /* Damaged in front, in a page, cut off; of another kind. Then it works cold, and is mended. */
    for (int i = 0; i < 4; i++) {
        if (i == 0)
            damage(40);
        else if (i == 1)
            damage(st.st_size - 100);
        else if (i == 2)
            assert_int_equal(truncate(file, st.st_size / 2), 0);
        start(i == 3 ? "--kv f32" : "");
        char *text = ask(0);
        if (i < 3)
            assert_string_equal(text, want);
        free(text);
        snprintf(words, sizeof words, "\nsaved keys and values are not used: %s: ", file);
        said(end(SIGTERM), words);
        if (i < 3) {
            start("");
            same(ask(2 * PAGE), want);
            free(end(SIGTERM));
        }
    }
    free(want);
}

/* A folder that cannot be used ends it at once; a disk that takes nothing is told of at the end. */
static void test_disk(void **state)
{
    (void)state;
    int code = 0;
    char command[400], line[512] = "", *log;
    snprintf(command, sizeof command,
             "%s serve -m %s --port 0 -t 1 --kv-save %s/not/there 2>&1 | grep not/there",
             OCT_TEST_OCTET, model_path, top);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    code = pclose(f);
    assert_int_equal(code, 0);
    assert_non_null(strstr(line, "/not/there: cannot be made: No such file or directory"));
    unlink(file);
    start("");
    free(ask(0));
    assert_int_equal(rmdir(folder), 0);
    f = fopen(folder, "w"); /* a file is in the way */
    assert_non_null(f);
    fclose(f);
    log = end(SIGTERM);
    unlink(folder);
    said(log, "keys and values are not saved: ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_disk),
    };
    setvbuf(stdout, NULL, _IOLBF, 0);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
