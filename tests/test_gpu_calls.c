/* test_gpu_calls.c: every call that a session makes of a GPU's driver fails, by number: once, for
 * good, or as if memory were out. A session is made all the same, with less on the device; an
 * evaluation gives the CPU's bits or a line that says what failed; nothing is left. Usage:
 * test_gpu_calls [all]: all numbers, else one in STEP of them, from a seed on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpu_session_rig.h"

enum { STEP = 29, N = 5 };

static int step, first;
static float *want; /* [vocabulary] behind N tokens */

/* What is placed, and how it fails. */
typedef struct scene {
    const char *name;
    oct_gpus gpus;
    bool streams;
    int code, lasting;
    int less, lines, right; /* sessions with less, evaluations that failed, that did not */
} scene;

static void check_nothing_left(const scene *c, long call)
{
    char left[256];
    if (fake_cuda_left(left, sizeof left))
        fail_msg("%s, call %ld: left: %s", c->name, call, left);
}

/* An evaluation, which may fail with a line about a GPU. */
static bool evaluate(const scene *c, oct_session *s, float *got, long call)
{
    oct_error err = {0};
    const oct_batch b = {.n = N, .token = text};
    oct_session_truncate(s, 0, 0);
    memset(got, 0xff, (size_t)model->config.n_vocab * sizeof *got);
    const oct_status status = oct_eval(s, &b, got, &err);
    if (status == OCT_OK) {
        if (memcmp(want, got, (size_t)model->config.n_vocab * sizeof *got) != 0)
            fail_msg("%s, call %ld: other logits", c->name, call);
        return true;
    }
    if (status != OCT_ERR_DEVICE && status != OCT_ERR_MEMORY)
        fail_msg("%s, call %ld: status %d: %s", c->name, call, (int)status, err.text);
    if (strncmp(err.text, "GPU ", 4) != 0)
        fail_msg("%s, call %ld: no line of a GPU's: %s", c->name, call, err.text);
    return false;
}

/* A session that is made, evaluates twice and ends; the call-th call of it fails, 0: none. Returns
 * how many there were. */
static long live(scene *c, long call)
{
    oct_error err = {0};
    oct_session *s;
    const char *why;
    const oct_stream_rates even = {1e9, 1e9, 1e9, 1e9};
    const oct_session_params p = {.n_threads = 1,
                                  .chunk = CHUNK,
                                  .gpus = &c->gpus,
                                  .n_ctx = TOKENS,
                                  .no_streaming = !c->streams};
    float *got = malloc((size_t)model->config.n_vocab * sizeof *got);
    const long before = fake_cuda_calls(NULL);
    fake_cuda_fail(call, c->code, c->lasting);
    if (oct_session_new(model, &p, &s, &err) != OCT_OK)
        fail_msg("%s, call %ld: no session: %s", c->name, call, err.text);
    (void)oct_session_get_gpus(s, (oct_gpu_share[OCT_MAX_GPUS]){{0}}, &why);
    c->less += why[0] != 0;
    if (c->streams)
        s->runner.rates = even;
    const bool good = evaluate(c, s, got, call);
    c->lines += !good;
    c->right += good;
    /* The device is as good as before, unless it is gone. */
    if (!good && !c->lasting && !evaluate(c, s, got, call))
        fail_msg("%s, call %ld: the session does not go on", c->name, call);
    oct_session_free(s);
    fake_cuda_fail(0, 0, 0);
    check_nothing_left(c, call);
    free(got);
    return fake_cuda_calls(NULL) - before;
}

/* One scene, in all ways of failing. */
static void fail_all(const char *name, const oct_gpus *g, bool streams)
{
    static const struct {
        const char *how;
        int code, lasting;
    } ways[] = {{"once", 999, 0}, {"for good", 999, 1}, {"out of memory", 2, 0}};
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        scene c = {name, *g, streams, ways[w].code, ways[w].lasting, 0, 0, 0};
        const long calls = live(&c, 0);
        assert_int_equal(c.lines + c.less, 0);
        for (long i = first; i <= calls; i += step)
            (void)live(&c, i);
        printf("  %s, %s: of %ld calls, %d numbers; %d sessions with less, %d lines, %d times the "
               "right logits\n",
               name, ways[w].how, calls, c.lines + c.right - 1, c.less, c.lines, c.right);
        assert_true(step > 1 || (c.less > 0 && c.lines > 0 && c.right > 1));
    }
}

static void test_calls(void **state)
{
    (void)state;
    oct_error err = {0};
    oct_session *s;
    const int fd = open_made_up(4, 2);
    oct_session_params p = {.n_threads = 1, .chunk = CHUNK, .n_ctx = TOKENS};
    const oct_batch b = {.n = N, .token = text};
    want = malloc((size_t)model->config.n_vocab * sizeof *want);
    assert_int_equal(oct_session_new(model, &p, &s, &err), OCT_OK);
    assert_int_equal(oct_eval(s, &b, want, &err), OCT_OK);
    oct_session_free(s);
    oct_gpus g = room_to_stream(&p, 0, 1);
    fail_all("streaming", &g, true);
    fail_all("experts of the host", &g, false);
    g.gpu[0].budget = g.gpu[1].budget = 64 << 20;
    fail_all("two GPUs", &g, true);
    free(want);
    oct_model_close(model);
    close(fd);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_calls)};
    setenv("OCTET_FAKE_CUDA", "devices=2,order=random", 1);
    step = argc > 1 && strcmp(argv[1], "all") == 0 ? 1 : STEP;
    first = step == 1 ? 1 : 1 + (int)(rig_seed() % STEP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
