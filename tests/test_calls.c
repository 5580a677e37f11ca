/* test_calls.c: sequences of calls of the public API with any values: whatever a program asks
 * for, in whatever order its documentation allows (pointers are valid, nothing is used after it
 * was freed, sizes of arrays are told truly), the answer is a result or an error with a line;
 * see any_values.h. Meant for the sanitizers; the seed is printed, and OCT_TEST_SEED=SEED
 * OCT_TEST_ROUNDS=N repeats or prolongs a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "any_values.h"
#include "convert.h"
#include "inspect.h"
#include "machine.h"
#include "measure.h"
#include "octet.h"
#include "scheduler.h"
#include "utf8.h"

enum { MODELS = 2, SESSIONS = 3, MACHINES = 2, PLACES = 2, MAX_BATCH = 40 };

typedef struct world {
    oct_model *model[MODELS];
    oct_session *session[SESSIONS];
    oct_scheduler *scheduler[SESSIONS]; /* over session k */
    int of[SESSIONS];                   /* its model */
    const oct_placement *places_of[SESSIONS];
    oct_placement *place[PLACES];
    int place_of[PLACES];
    oct_machine *machine[MACHINES];
    const oct_machine *machine_of[SESSIONS];
    int64_t calls, errors;
} world;

/* Every error has a line. */
static void answered(world *w, oct_status s, const oct_error *e)
{
    w->calls++;
    if (s == OCT_OK)
        return;
    w->errors++;
    if (!e->text[0] || e->status != s)
        fail_msg("status %s with the line '%s'", oct_status_name(s), e->text);
}

/* ---- what is made ---------------------------------------------------------------------------- */

static void free_session(world *w, int k)
{
    oct_scheduler_free(w->scheduler[k]);
    w->scheduler[k] = NULL;
    oct_session_free(w->session[k]);
    w->session[k] = NULL;
}

static oct_session_params params(world *w, int k)
{
    static const char *const isas[] = {NULL, NULL, NULL, "ref", "avx2", "none", ""};
    oct_session_params p = {.n_ctx = below(4) ? 1 + below(200) : number(0, 256),
                            .n_seqs = below(4) ? below(5) : number(0, 8),
                            .chunk = below(4) ? below(40) : number(0, 64),
                            .act = (oct_act)(below(9) ? below(2) : number(0, 1)),
                            .n_threads = (int)(below(4) ? below(3) : number(0, 4)),
                            .kv = (oct_kv_type)(below(9) ? below(3) : number(0, 2)),
                            .kv_bytes = below(4) ? 0 : (uint64_t)number(0, 1 << 20),
                            .shard = (oct_shard_layout)(below(9) ? 0 : number(0, 3)),
                            .no_bind = below(2),
                            .isa = isas[below(sizeof isas / sizeof *isas)]};
    w->machine_of[k] = p.machine = below(2) ? w->machine[below(MACHINES)] : NULL;
    int place = (int)below(PLACES);
    if (below(3) == 0)
        p.placement = w->place[place];
    w->places_of[k] = p.placement;
    return p;
}

static void make_session(world *w)
{
    int k = (int)below(SESSIONS), m = (int)below(MODELS);
    oct_error e = {0};
    oct_session_need need;
    if (!w->model[m])
        return;
    free_session(w, k);
    const oct_session_params p = params(w, k);
    w->of[k] = m;
    answered(w, oct_session_estimate(w->model[m], &p, &need, &e), &e);
    /* What would take the machine's memory is for nobody's test. */
    if (e.status == OCT_OK && need.kv + need.buffers > (uint64_t)64 << 20)
        return;
    e = (oct_error){0};
    answered(w, oct_session_new(w->model[m], &p, &w->session[k], &e), &e);
}

static void free_model(world *w, int m)
{
    for (int k = 0; k < SESSIONS; k++)
        if (w->of[k] == m)
            free_session(w, k);
    for (int i = 0; i < PLACES; i++)
        if (w->place_of[i] == m) {
            for (int k = 0; k < SESSIONS; k++) /* they borrow it, of whatever model they are */
                if (w->places_of[k] == w->place[i])
                    free_session(w, k);
            oct_placement_free(w->place[i]);
            w->place[i] = NULL;
        }
    oct_model_close(w->model[m]);
    w->model[m] = NULL;
}

static void open_model(world *w)
{
    static const char *const paths[] = {OCT_TEST_MODELS "/odd.gguf",
                                        OCT_TEST_MODELS "/dense.gguf",
                                        OCT_TEST_MODELS "/tiny-grok.gguf",
                                        "/",
                                        "",
                                        "/dev/null",
                                        OCT_TEST_TINY};
    int m = (int)below(MODELS);
    oct_error e = {0};
    free_model(w, m);
    answered(w, oct_model_open(paths[below(sizeof paths / sizeof *paths)], &w->model[m], &e), &e);
}

static void keep_part(world *w)
{
    int m = (int)below(MODELS);
    oct_error e = {0};
    if (w->model[m])
        answered(w,
                 oct_model_keep_part(w->model[m], (int)number(0, 3), (int)number(1, 4),
                                     (oct_shard_layout)number(0, 3), &e),
                 &e);
}

static void own(world *w)
{
    int i = (int)below(PLACES), m = (int)below(MODELS);
    oct_error e = {0};
    oct_own_report r;
    if (!w->model[m])
        return;
    for (int k = 0; k < SESSIONS; k++)
        if (w->places_of[k] == w->place[i])
            free_session(w, k);
    oct_placement_free(w->place[i]);
    w->place[i] = NULL;
    w->place_of[i] = m;
    const oct_own_params p = {.n_threads = (int)(below(3) ? below(3) : number(0, 4)),
                              .machine = below(2) ? w->machine[below(MACHINES)] : NULL};
    answered(w, oct_placement_own(w->model[m], &p, &w->place[i], &r, &e), &e);
}

static void load_machine(world *w)
{
    static const char *const names[] = {
        NULL,   "numa:2 core:2 pu:1", "numa:4 core:4 pu:2", "core:1", "nonsense", "", "numa:1 pu:3",
        "a.xml"};
    int i = (int)below(MACHINES);
    oct_error e = {0};
    for (int k = 0; k < SESSIONS; k++)
        if (w->machine_of[k] == w->machine[i])
            free_session(w, k);
    oct_machine_free(w->machine[i]);
    w->machine[i] = NULL;
    answered(w, oct_machine_load(names[below(sizeof names / sizeof *names)], &w->machine[i], &e),
             &e);
    if (w->machine[i])
        (void)oct_machine_get_info(w->machine[i]);
}

/* ---- what is done with it -------------------------------------------------------------------- */

static oct_session *session(const world *w, int *k)
{
    *k = (int)below(SESSIONS);
    return w->session[*k];
}

/* A scheduler has its session to itself. */
static oct_session *free_of_scheduler(const world *w, int *k)
{
    oct_session *s = session(w, k);
    return w->scheduler[*k] ? NULL : s;
}

static void eval(world *w)
{
    int k;
    oct_session *s = free_of_scheduler(w, &k);
    int32_t token[MAX_BATCH], seq[MAX_BATCH];
    uint8_t want[MAX_BATCH];
    oct_error e = {0};
    if (!s)
        return;
    const int64_t n_vocab = oct_model_get_info(w->model[w->of[k]])->n_vocab;
    oct_batch b = {below(9) ? 1 + below(MAX_BATCH) : -below(3), token, below(2) ? seq : NULL,
                   below(2) ? want : NULL};
    bool odd = below(6) == 0;
    for (int i = 0; i < MAX_BATCH; i++) {
        token[i] = (int32_t)(odd ? number(0, n_vocab - 1) : 3 + below(n_vocab - 3));
        seq[i] = (int32_t)(odd ? number(0, 3) : below(2));
        want[i] = (uint8_t)below(3);
    }
    float *logits = malloc(sizeof *logits * MAX_BATCH * (size_t)n_vocab);
    answered(w, oct_eval(s, &b, below(20) ? logits : NULL, &e), &e);
    free(logits);
}

static char folder[] = "/tmp/octet-calls-XXXXXX"; /* of keys and values */

static void pages(world *w)
{
    int k;
    oct_session *s = free_of_scheduler(w, &k);
    int32_t ids[300];
    int64_t held;
    oct_error e = {0};
    oct_kv_usage usage;
    oct_session_stats stats;
    if (!s)
        return;
    const int64_t n_vocab = oct_model_get_info(w->model[w->of[k]])->n_vocab;
    for (int i = 0; i < 300; i++)
        ids[i] = (int32_t)(below(50) ? 5 : number(0, n_vocab));
    oct_kv_kept kept;
    switch (below(8)) {
    case 0: oct_session_truncate(s, (int32_t)number(0, 3), number(0, 200)); break;
    case 1:
        answered(w, oct_session_fork(s, (int32_t)number(0, 3), (int32_t)number(0, 3), &e), &e);
        break;
    case 2:
        answered(w,
                 oct_session_reuse(s, (int32_t)number(0, 3), ids,
                                   below(9) ? 1 + below(300) : -below(3), &held, &e),
                 &e);
        break;
    case 3: (void)oct_session_pos(s, (int32_t)number(0, 3)); break;
    case 4: oct_session_get_kv(s, &usage); break;
    case 5: answered(w, oct_session_save(s, folder, (double)number(-1, 2), &kept, &e), &e); break;
    case 6: answered(w, oct_session_restore(s, folder, &kept, &e), &e); break;
    default: oct_session_get_stats(s, &stats); (void)oct_session_isa(s);
    }
    w->calls++;
}

static void event(void *ctx, const oct_event *e)
{
    (void)ctx;
    (void)e;
}

static void schedule(world *w)
{
    int k;
    oct_session *s = session(w, &k);
    oct_error e = {0};
    int32_t ids[200];
    uint64_t id = 0;
    oct_scheduler_stats stats;
    if (!s)
        return;
    if (!w->scheduler[k]) {
        const oct_scheduler_params p = {.max_running = below(3) ? 0 : number(0, 4),
                                        .max_waiting = below(3) ? 0 : number(0, 4),
                                        .step_rows = below(3) ? 0 : number(0, 64),
                                        .read_rate = (double)real() * 1e9,
                                        .op_rate = (double)real() * 1e9,
                                        .event = below(5) ? event : NULL};
        if (below(4) == 0)
            answered(w, oct_scheduler_new(s, &p, &w->scheduler[k], &e), &e);
        return;
    }
    const int64_t n_vocab = oct_model_get_info(w->model[w->of[k]])->n_vocab;
    for (int i = 0; i < 200; i++)
        ids[i] = (int32_t)(below(100) ? 3 + below(n_vocab - 3) : number(0, n_vocab));
    const oct_logit_bias bias[2] = {{(int32_t)number(0, n_vocab), real()}, {5, real()}};
    oct_request r = {.ids = ids,
                     .n_ids = below(9) ? 1 + below(200) : -below(3),
                     .n_max = below(4) ? below(6) : number(-1, 6),
                     .sampler = {.temperature = real(),
                                 .top_k = (int32_t)number(0, 20),
                                 .top_p = real(),
                                 .rng = any(),
                                 .min_p = real(),
                                 .repetition_penalty = real(),
                                 .frequency_penalty = real(),
                                 .presence_penalty = real(),
                                 .bias = bias,
                                 .n_bias = below(3)},
                     .penalise_prompt = below(2),
                     .ignore_eos = below(2),
                     .n = (int32_t)(below(4) ? below(3) : number(0, 3)),
                     .n_top = (int32_t)(below(4) ? below(3) : number(0, OCT_TOP_MAX)),
                     .logprob = below(2),
                     .prompt_logprobs = below(4) == 0,
                     .keep = below(2)};
    switch (below(7)) {
    case 0: answered(w, oct_scheduler_submit(w->scheduler[k], &r, &id, &e), &e); break;
    case 1: oct_scheduler_cancel(w->scheduler[k], below(2) ? any() : (uint64_t)below(20)); break;
    case 2: oct_scheduler_get_stats(w->scheduler[k], &stats); break;
    case 6:
        oct_scheduler_cancel_text(w->scheduler[k], (uint64_t)below(20), (int32_t)number(0, 3));
        assert_true(oct_scheduler_pending(w->scheduler[k]) >= 0);
        break;
    case 3:
        if (below(5) == 0) {
            oct_scheduler_free(w->scheduler[k]);
            w->scheduler[k] = NULL;
        }
        break;
    default: answered(w, oct_scheduler_step(w->scheduler[k], &e), &e);
    }
    w->calls++;
}

static void text(world *w)
{
    int m = (int)below(MODELS);
    char in[64], *out = NULL;
    int32_t *ids = NULL, some[16];
    size_t n = 0;
    oct_error e = {0};
    if (!w->model[m])
        return;
    const oct_model_info *info = oct_model_get_info(w->model[m]);
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (char)(below(3) ? 'a' + below(26) : below(256));
    for (int i = 0; i < 16; i++)
        some[i] = (int32_t)number(0, info->n_vocab - 1);
    switch (below(5)) {
    case 0: answered(w, oct_encode(w->model[m], in, (size_t)below(64), &ids, &n, &e), &e); break;
    case 1: answered(w, oct_decode(w->model[m], some, (size_t)below(17), &out, &n, &e), &e); break;
    case 2: (void)oct_token_bytes(w->model[m], some[0], &n); break;
    case 3: {
        oct_tensor_info t;
        oct_key_info key;
        (void)oct_model_get_tensor(w->model[m], number(0, 20), &t);
        (void)oct_model_get_key(w->model[m], number(0, 20), &key);
        break;
    }
    default: (void)oct_model_get_info(w->model[m]);
    }
    free(ids);
    free(out);
    w->calls++;
}

static void sample(world *w)
{
    enum { N = 200 };
    float logits[N], scratch[2 * N];
    int32_t history[10];
    oct_token_logprob top[OCT_TOP_MAX];
    int64_t n = 1 + below(N);
    const oct_logit_bias bias[2] = {{(int32_t)number(0, n), real()},
                                    {(int32_t)number(0, n), real()}};
    for (int i = 0; i < N; i++)
        logits[i] = below(60) ? (float)below(2000) / 100 - 10 : real();
    for (int i = 0; i < 10; i++)
        history[i] = (int32_t)number(0, n);
    oct_sampler s = {.temperature = real(),
                     .top_k = (int32_t)number(0, n),
                     .top_p = real(),
                     .rng = any(),
                     .min_p = real(),
                     .repetition_penalty = real(),
                     .frequency_penalty = real(),
                     .presence_penalty = real(),
                     .history = history,
                     .n_history = below(11),
                     .bias = bias,
                     .n_bias = below(3)};
    int32_t id = oct_sample(&s, logits, n, scratch);
    if (id < -1 || id >= n)
        fail_msg("oct_sample: %d of %lld", id, (long long)n);
    (void)oct_logprob(logits, n, (int32_t)number(0, n));
    int64_t n_top = oct_top_logprobs(logits, n, below(OCT_TOP_MAX + 1), top);
    assert_true(n_top >= 0 && n_top <= OCT_TOP_MAX);
    w->calls += 3;
}

static void end(world *w)
{
    for (int m = 0; m < MODELS; m++)
        free_model(w, m);
    for (int i = 0; i < MACHINES; i++)
        oct_machine_free(w->machine[i]);
}

static void test_sequences(void **state)
{
    (void)state;
    static void (*const calls[])(world *) = {eval, eval,   eval,     eval,     pages,    pages,
                                             text, sample, schedule, schedule, schedule, schedule};
    const char *seed = getenv("OCT_TEST_SEED"), *n = getenv("OCT_TEST_ROUNDS");
    const int64_t rounds = n ? atoll(n) : 3000;
    assert_non_null(mkdtemp(folder));
    rng = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL);
    printf("OCT_TEST_SEED=%llu\n", (unsigned long long)rng);
    fflush(stdout);
    world w = {0};
    for (int64_t i = 0; i < rounds; i++) {
        switch (below(60)) {
        case 0: open_model(&w); break;
        case 1: keep_part(&w); break;
        case 2: own(&w); break;
        case 3: load_machine(&w); break;
        case 4:
        case 5:
        case 6: make_session(&w); break;
        case 7: free_session(&w, (int)below(SESSIONS)); break;
        default: calls[below(sizeof calls / sizeof *calls)](&w);
        }
        if (i == 0)
            while (!w.model[0])
                open_model(&w);
    }
    end(&w);
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    printf("%lld calls, %lld of them refused\n", (long long)w.calls, (long long)w.errors);
    assert_true(w.calls > rounds / 4 && w.errors > 0);
}

/* A child that has forked off may make sessions of its own; its parent's are refused. */
static void test_fork(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__)
    printf("SKIPPED: the sanitizer ends a child that begins threads\n");
    skip();
#endif
    oct_error e = {0};
    oct_model *m;
    oct_session *s, *other;
    const oct_session_params p = {.n_ctx = 64, .n_threads = 2};
    const int32_t token = 5;
    const oct_batch b = {1, &token, NULL, NULL};
    int status;
    assert_int_equal(oct_model_open(OCT_TEST_MODELS "/odd.gguf", &m, &e), OCT_OK);
    float *logits = malloc(sizeof *logits * (size_t)oct_model_get_info(m)->n_vocab);
    assert_int_equal(oct_session_new(m, &p, &s, &e), OCT_OK);
    assert_int_equal(oct_eval(s, &b, logits, &e), OCT_OK);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        if (oct_eval(s, &b, logits, &e) == OCT_OK || !strstr(e.text, "process"))
            _exit(2);
        oct_kv_kept kept;
        e = (oct_error){0};
        if (oct_session_save(s, "/tmp/octet-child", 1, &kept, &e) == OCT_OK ||
            !strstr(e.text, "process"))
            _exit(4);
        e = (oct_error){0};
        if (oct_session_new(m, &p, &other, &e) != OCT_OK ||
            oct_eval(other, &b, logits, &e) != OCT_OK)
            _exit(3);
        oct_session_free(other);
        oct_session_free(s); /* the parent's threads are not waited for */
        oct_model_close(m);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("the child's status: %#x", (unsigned)status);
    assert_int_equal(oct_eval(s, &b, logits, &e), OCT_OK);
    oct_session_free(s);
    oct_model_close(m);
    free(logits);
}

/* A part is not kept while sessions use more, or another one. */
static void test_keep(void **state)
{
    (void)state;
    oct_error e = {0};
    oct_model *m;
    oct_session *s;
    const oct_session_params p = {.n_ctx = 64, .n_threads = 1};
    assert_int_equal(oct_model_open(OCT_TEST_MODELS "/odd.gguf", &m, &e), OCT_OK);
    assert_int_equal(oct_session_new(m, &p, &s, &e), OCT_OK);
    assert_int_equal(oct_model_keep_part(m, 0, 2, OCT_SHARD_SLICE, &e), OCT_ERR_ARG);
    assert_non_null(strstr(e.text, "sessions"));
    assert_int_equal(oct_model_keep_part(m, 77, 2, OCT_SHARD_SLICE, &e), OCT_ERR_ARG);
    assert_int_equal(oct_model_keep_part(m, 0, 2, (oct_shard_layout)77, &e), OCT_ERR_ARG);
    oct_session_free(s);
    assert_int_equal(oct_model_keep_part(m, 0, 2, OCT_SHARD_SLICE, &e), OCT_OK);
    assert_true(oct_session_new(m, &p, &s, &e) != OCT_OK && e.text[0]);
    oct_model_close(m);
}

/* What is beyond the ends is refused, what is at them is not. */
static void test_ends(void **state)
{
    (void)state;
    oct_error e = {0};
    oct_model *m;
    oct_session *s;
    const oct_session_params p = {.n_ctx = 64, .n_threads = 1};
    assert_int_equal(oct_model_open(OCT_TEST_MODELS "/odd.gguf", &m, &e), OCT_OK);
    assert_int_equal(oct_session_new(m, &p, &s, &e), OCT_OK);
    const oct_model_info *info = oct_model_get_info(m);
    float *logits = malloc(sizeof *logits * (size_t)info->n_vocab);
    const int32_t bad[] = {-1, (int32_t)info->n_vocab, INT32_MIN, INT32_MAX, info->pad_id};
    const int32_t last = (int32_t)info->n_vocab - 1, seq = 1;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const oct_batch b = {1, &bad[i], NULL, NULL};
        assert_int_equal(oct_eval(s, &b, logits, &e), OCT_ERR_ARG);
    }
    assert_int_equal(oct_eval(s, &(oct_batch){1, &last, &seq, NULL}, logits, &e), OCT_ERR_ARG);
    assert_int_equal(oct_eval(s, &(oct_batch){1, &last, NULL, NULL}, logits, &e), OCT_OK);
    free(logits);
    oct_session_free(s);
    oct_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sequences),
                                       cmocka_unit_test(test_fork), cmocka_unit_test(test_keep),
                                       cmocka_unit_test(test_ends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
