/* test_session_kv.c: sequences that were forked, cut, given up and taken up again have the bits of
 * fresh ones, on one process, on NUMA domains and on ranks; the pool gets everything back. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "model_impl.h"
#include "rig.h"
#include "convert.h"
#include "machine.h"
#include "session_impl.h"
#include "threads.h"
#include "grok.h"
#include "thread_ranks.h"

enum { V = 130, CTX = 4224, PAGE = 128 };

static oct_model *model;
static int model_fd;
static int32_t text[4 * CTX]; /* ids of no meaning, of which every test takes what it needs */

static int make_model(void **state)
{
    (void)state;
    oct_error err = {0};
    char path[64];
    rig_rng rng = {3};
    oct_grok_config c = oct_grok1_config(2, V);
    c.n_ctx = CTX;
    c.d_model = 64;
    c.n_q_heads = 16;
    c.head_dim = 24; /* values are padded to 32 */
    c.d_ff = 128;
    const oct_synthetic_params p = {.config = &c, .seed = 1, .fd = memfd_create("model", 0)};
    if (oct_synthetic_write(&p, &err) != OCT_OK) {
        printf("%s\n", err.text);
        return -1;
    }
    model_fd = p.fd;
    snprintf(path, sizeof path, "/proc/self/fd/%d", p.fd);
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        text[i] = (int32_t)rig_int(&rng, 3, V - 1);
    return oct_model_open(path, &model, &err) == OCT_OK ? 0 : -1;
}

static int drop_model(void **state)
{
    (void)state;
    oct_model_close(model);
    return close(model_fd);
}

/* ---- calls that must succeed ---- */

static oct_session *new_session(const oct_session_params *p)
{
    oct_session *s;
    MUST(oct_session_new(model, p, &s, &must));
    return s;
}

static oct_status try_append(oct_session *s, int32_t seq, const int32_t *ids, int64_t n,
                             float *logits, oct_error *err)
{
    int32_t *seqs = malloc((size_t)n * sizeof *seqs);
    for (int64_t i = 0; i < n; i++)
        seqs[i] = seq;
    oct_status status = oct_eval(s, &(oct_batch){.n = n, .token = ids, .seq = seqs}, logits, err);
    free(seqs);
    return status;
}

static void append(oct_session *s, int32_t seq, const int32_t *ids, int64_t n, float *logits)
{
    MUST(try_append(s, seq, ids, n, logits, &must));
}

static oct_kv_usage usage(const oct_session *s)
{
    oct_kv_usage u;
    oct_session_get_kv(s, &u);
    return u;
}

/* The logits after ids[n], of a session that has done nothing else. */
static void fresh(const int32_t *ids, int64_t n, float *logits)
{
    oct_session *s = new_session(&(oct_session_params){.n_ctx = 1024, .n_threads = 1});
    append(s, 0, ids, n, logits);
    oct_session_free(s);
}

static uint64_t page_bytes(void)
{
    oct_session *s = new_session(&(oct_session_params){.n_ctx = 1, .n_threads = 1});
    oct_kv_usage u = usage(s);
    oct_session_free(s);
    assert_int_equal(u.page_positions, PAGE);
    return u.page_bytes;
}

/* ---- one process ---- */

static void test_fork(void **state)
{
    (void)state;
    enum { LONG = 4096 + 100 };
    static float a[V], b[V], c[V];
    oct_session *s = new_session(&(oct_session_params){.n_seqs = 3, .n_threads = 1});
    append(s, 0, text, LONG, a);
    oct_kv_usage before = usage(s);
    assert_int_equal(before.pages, 3 * CTX / PAGE);
    assert_int_equal(before.used, LONG / PAGE + 1);
    double best = 1, start;
    for (int i = 0; i < 1000; i++) {
        start = oct_seconds();
        MUST(oct_session_fork(s, 0, 1, &must));
        double seconds = oct_seconds() - start;
        best = seconds < best ? seconds : best;
        assert_int_equal(oct_session_pos(s, 1), LONG);
        oct_session_truncate(s, 1, 0);
    }
    printf("  fork of %d tokens: %.1f us\n", LONG, best * 1e6);
    assert_true(best < 1e-3);
    oct_kv_usage after = usage(s);
    assert_memory_equal(&before, &after, sizeof before); /* nothing copied, nothing taken */
    MUST(oct_session_fork(s, 0, 1, &must));
    append(s, 1, text + LONG, 5, b);
    assert_int_equal(usage(s).copied, 1);
    assert_int_equal(usage(s).used, LONG / PAGE + 2);
    append(s, 0, text + LONG, 5, a);
    assert_int_equal(usage(s).copied, 1); /* the other one had the page to itself by then */
    assert_memory_equal(a, b, sizeof a);
    append(s, 2, text, LONG + 5, c);
    assert_memory_equal(a, c, sizeof a);
    assert_int_equal(usage(s).used, LONG / PAGE + 3); /* equal full pages are one */
    for (int32_t q = 0; q < 3; q++)
        oct_session_truncate(s, q, 0);
    after = usage(s);
    assert_int_equal(after.used, 0);
    assert_int_equal(after.cached, LONG / PAGE);
    oct_session_free(s);
}

static void test_errors(void **state)
{
    (void)state;
    oct_error err = {0};
    int64_t held = 9;
    oct_session *s = new_session(&(oct_session_params){.n_ctx = 300, .n_seqs = 2, .n_threads = 1});
    static float logits[V];
    append(s, 0, text, 5, logits);
    assert_int_equal(oct_session_fork(s, 2, 1, &err), OCT_ERR_ARG);
    assert_string_equal(err.text, "sequence 2, expected 0..1");
    assert_int_equal(oct_session_fork(s, 0, -1, NULL), OCT_ERR_ARG);
    err = (oct_error){0};
    assert_int_equal(oct_session_fork(s, 1, 0, &err), OCT_ERR_ARG);
    assert_string_equal(err.text, "sequence 0: holds 5 tokens, expected none");
    assert_int_equal(oct_session_reuse(s, 0, text, 5, &held, NULL), OCT_ERR_ARG);
    assert_int_equal(oct_session_reuse(s, 1, text, 0, &held, NULL), OCT_ERR_ARG);
    assert_int_equal(held, 0);
    MUST(oct_session_reuse(s, 1, text, 2000, &held, &must)); /* longer than the context */
    assert_int_equal(held, 0);
    oct_session_free(s);
}

/* All full pages of ids but never all ids. */
static void test_reuse(void **state)
{
    (void)state;
    static float a[V], b[V];
    int64_t held;
    oct_session *s = new_session(&(oct_session_params){.n_ctx = 600, .n_seqs = 2, .n_threads = 1});
    append(s, 0, text, 2 * PAGE, a);
    MUST(oct_session_reuse(s, 1, text, 2 * PAGE, &held, &must));
    assert_int_equal(held, PAGE);
    append(s, 1, text + held, 2 * PAGE - held, b);
    assert_memory_equal(a, b, sizeof a);
    assert_int_equal(usage(s).used, 2);
    oct_session_truncate(s, 1, 0);
    MUST(oct_session_reuse(s, 1, text, 2 * PAGE + 1, &held, &must));
    assert_int_equal(held, 2 * PAGE);
    oct_session_truncate(s, 0, 0);
    oct_session_truncate(s, 1, 0);
    MUST(oct_session_reuse(s, 1, text + 1, 2 * PAGE, &held, &must)); /* other ids */
    assert_int_equal(held, 0);
    oct_session_free(s);
}

/* A batch that the pool cannot hold changes nothing; one that it can is not refused. */
static void test_full(void **state)
{
    (void)state;
    static float a[V], b[V];
    oct_error err = {0};
    const oct_session_params p = {
        .n_ctx = 1024, .n_seqs = 3, .n_threads = 1, .chunk = 32, .kv_bytes = 4 * page_bytes() + 1};
    oct_session_need need;
    MUST(oct_session_estimate(model, &p, &need, &must));
    assert_true(need.kv == 4 * page_bytes());
    oct_session *s = new_session(&p);
    assert_int_equal(usage(s).pages, 4);
    append(s, 0, text, 2 * PAGE + 1, a);
    oct_kv_usage before = usage(s);
    oct_session_stats stats[2];
    oct_session_get_stats(s, &stats[0]);
    assert_int_equal(try_append(s, 1, text + 9, PAGE + 1, a, &err), OCT_ERR_FULL);
    assert_string_equal(err.text,
                        "KV cache: the batch needs 2 more pages of 128 positions, 1 of 4 are left");
    oct_session_get_stats(s, &stats[1]);
    assert_true(stats[0].tokens == stats[1].tokens);
    oct_kv_usage after = usage(s);
    assert_memory_equal(&before, &after, sizeof before);
    assert_int_equal(oct_session_pos(s, 1), 0);
    MUST(oct_session_fork(s, 0, 1, &must));
    MUST(oct_session_fork(s, 0, 2, &must));
    /* three sequences that append to one page: two copies, one page is left */
    const int32_t seq[3] = {0, 1, 2};
    const oct_batch three = {.n = 3, .token = text + 2 * PAGE + 1, .seq = seq};
    assert_int_equal(oct_eval(s, &three, a, NULL), OCT_ERR_FULL);
    const oct_batch two = {.n = 2, .token = text + 2 * PAGE + 1, .seq = seq};
    assert_int_equal(oct_eval(s, &two, a, NULL), OCT_ERR_FULL);
    oct_session_truncate(s, 2, 0);
    MUST(oct_eval(s, &two, a, &must)); /* one copy */
    assert_int_equal(usage(s).used, 4);
    oct_session_truncate(s, 0, 0);
    append(s, 2, text + 50, PAGE, b);
    fresh(text + 50, PAGE, a);
    assert_memory_equal(a, b, sizeof a);
    oct_session_free(s);
    const oct_session_params small = {.n_threads = 1, .kv_bytes = page_bytes() - 1};
    assert_int_equal(oct_session_new(model, &small, &s, NULL), OCT_ERR_ARG);
}

/* Tokens of two forks, with logits that are no numbers: pages and copies are given back, and what
 * the sequences held before is unhurt. */
static void test_numeric(void **state)
{
    (void)state;
    static float a[V], b[V];
    int32_t seq[2 * PAGE];
    oct_error err = {0};
    oct_session *s = new_session(&(oct_session_params){.n_ctx = 600, .n_seqs = 2, .n_threads = 2});
    append(s, 0, text, 200, a);
    MUST(oct_session_fork(s, 0, 1, &must));
    oct_session_truncate(s, 1, 190);
    oct_kv_usage before = usage(s);
    for (int i = 0; i < 2 * PAGE; i++)
        seq[i] = i % 2;
    const oct_plain *norm = &model->norm_final;
    oct_step *last = s->p.plan.steps;
    while (!last->node || last->node->plain != norm)
        last++;
    const void *right = last->at[0];
    float *wrong = malloc((size_t)norm->cols * sizeof *wrong);
    for (int64_t i = 0; i < norm->cols; i++)
        wrong[i] = NAN;
    last->at[0] = wrong;
    const oct_batch both = {.n = 2 * PAGE, .token = text + 200, .seq = seq};
    assert_int_equal(oct_eval(s, &both, a, &err), OCT_ERR_NUMERIC);
    last->at[0] = right;
    free(wrong);
    oct_kv_usage after = usage(s);
    assert_memory_equal(&before, &after, sizeof before);
    append(s, 1, text + 190, 30, b);
    fresh(text, 220, a);
    assert_memory_equal(a, b, sizeof a);
    append(s, 0, text + 200, 20, b);
    assert_memory_equal(a, b, sizeof a);
    oct_session_free(s);
}

typedef struct raiser {
    volatile int *flag;
    _Atomic int go;
    long ns;
} raiser;

static void *raise_flag(void *arg)
{
    raiser *r = arg;
    while (!atomic_load(&r->go))
        ;
    nanosleep(&(struct timespec){0, r->ns}, NULL);
    __atomic_store_n(r->flag, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* Cancelled anywhere, between two layers too, when a page may be copied in one of them only. */
static void test_cancelled(void **state)
{
    (void)state;
    static float a[V], b[V], got[V];
    volatile int cancel = 0;
    int cancelled = 0;
    int32_t seq[2 * PAGE];
    const oct_session_params p = {
        .n_ctx = 600, .n_seqs = 2, .n_threads = 1, .chunk = 64, .cancel = &cancel};
    oct_session *s = new_session(&p);
    fresh(text, 220, a);
    fresh(text, 200, b);
    for (int i = 0; i < 2 * PAGE; i++)
        seq[i] = i % 2;
    for (int i = 0; i < 40; i++) {
        raiser r = {.flag = &cancel, .ns = 50000 * i};
        pthread_t thread;
        oct_session_truncate(s, 0, 0);
        oct_session_truncate(s, 1, 0);
        append(s, 0, text, 200, got);
        assert_memory_equal(b, got, sizeof b);
        MUST(oct_session_fork(s, 0, 1, &must));
        pthread_create(&thread, NULL, raise_flag, &r);
        atomic_store(&r.go, 1);
        const oct_batch both = {.n = 2 * PAGE, .token = text + 200, .seq = seq};
        cancelled += oct_eval(s, &both, got, NULL) == OCT_ERR_CANCELLED;
        pthread_join(thread, NULL);
        cancel = 0;
        assert_int_equal(oct_session_pos(s, 0), oct_session_pos(s, 1)); /* whole chunks */
        for (int32_t q = 0; q < 2; q++) {
            oct_session_truncate(s, q, 200);
            append(s, q, text + 200, 20, got);
            assert_memory_equal(a, got, sizeof a);
        }
        assert_in_range(usage(s).used, 3, 3); /* one full, two of their own */
    }
    printf("  %d of 40 were cancelled\n", cancelled);
    assert_true(cancelled > 0);
    oct_session_free(s);
}

/* ---- any number of ranks ---- */

enum { RESULTS = 7 };

/* Text of result r: some of the common beginning, then what only it has. */
typedef struct story {
    int64_t common, own_at, own;
} story;

static const story stories[RESULTS] = {
    {300, 0, 0},      {300, 1000, 20},  {300, 2000, 20},  {200, 3000, 100},
    {300, 1000, 200}, {300, 1000, 200}, {140, 4000, 250},
};

static int64_t tell(const story *t, int32_t *ids)
{
    memcpy(ids, text, (size_t)t->common * sizeof *ids);
    memcpy(ids + t->common, text + t->own_at, (size_t)t->own * sizeof *ids);
    return t->common + t->own;
}

/* Frees a sequence and builds it again from what the index has. */
static oct_status rebuild(oct_session *s, int32_t seq, const story *t, float *logits, int64_t *held,
                          oct_error *err)
{
    int32_t ids[CTX];
    int64_t n = tell(t, ids);
    oct_session_truncate(s, seq, 0);
    OCT_TRY(oct_session_reuse(s, seq, ids, n, held, err));
    return try_append(s, seq, ids + *held, n - *held, logits, err);
}

static oct_status play(job *j, oct_session *s, oct_error *err)
{
    float *out = j->logits, ignored[V];
    int32_t ids[40], seq[40];
    const uint8_t want[40] = {[38] = 1, [39] = 1};
    int64_t held;
    OCT_TRY(try_append(s, 0, text, 300, out, err));
    OCT_TRY(oct_session_fork(s, 0, 1, err));
    for (int i = 0; i < 40; i++) { /* both append to the page that they share */
        seq[i] = i % 2;
        ids[i] = text[stories[1 + i % 2].own_at + i / 2];
    }
    OCT_TRY(oct_eval(s, &(oct_batch){40, ids, seq, want}, out + V, err));
    oct_session_truncate(s, 1, 200);
    OCT_TRY(try_append(s, 1, text + stories[3].own_at, 100, out + 3 * V, err));
    OCT_TRY(rebuild(s, 0, &stories[4], out + 4 * V, &held, err));
    if (held != 256)
        return oct_fail(err, OCT_ERR_ARG, "reused %lld, expected 256", (long long)held);
    /* 4 + 2 pages are in use or cached, 8 are in the pool: 1000 tokens take all that nobody holds
     */
    oct_session_truncate(s, 0, 0);
    oct_session_truncate(s, 1, 0);
    OCT_TRY(try_append(s, 2, text + 5000, 1000, ignored, err));
    if (try_append(s, 0, text, 30, ignored, NULL) != OCT_ERR_FULL)
        return oct_fail(err, OCT_ERR_ARG, "expected a full pool");
    oct_session_truncate(s, 2, 500);
    OCT_TRY(rebuild(s, 1, &stories[5], out + 5 * V, &held, err));
    if (held != 0)
        return oct_fail(err, OCT_ERR_ARG, "reused %lld, expected none", (long long)held);
    OCT_TRY(oct_session_fork(s, 1, 3, err));
    oct_session_truncate(s, 3, 140);
    oct_session_truncate(s, 1, 0);
    oct_session_truncate(s, 2, 0);
    return try_append(s, 3, text + stories[6].own_at, 250, out + 6 * V, err);
}

static void check_play(const float *want, int ranks, oct_shard_layout by, const char *topology,
                       int n_threads)
{
    oct_machine *machine;
    MUST(oct_machine_load(topology, &machine, &must));
    job j = {.model = model,
             .params = {.n_ctx = 1024,
                        .n_seqs = 4,
                        .n_threads = n_threads,
                        .chunk = 48,
                        .machine = machine,
                        .shard = by},
             .tokens = text,
             .B = 1,
             .T = RESULTS,
             .n_ranks = ranks,
             .lead = play};
    oct_comm comm = {.rank = 0, .size = ranks};
    oct_session_params p = j.params;
    oct_session_need need;
    p.comm = &comm;
    MUST(oct_session_estimate(model, &p, &need, &must));
    j.params.kv_bytes = need.kv / 4; /* 8 pages of the 32 that the sequences could fill */
    float *got = run_job(&j);
    for (int r = 0; r < RESULTS; r++)
        if (memcmp(want + r * V, got + r * V, V * sizeof *got) != 0)
            fail_msg("%d ranks, layout %d, %s: result %d differs", ranks, (int)by,
                     topology ? topology : "no domains", r);
    free(got);
    oct_machine_free(machine);
}

static void test_play(void **state)
{
    (void)state;
    static float want[RESULTS * V];
    int32_t ids[CTX];
    for (int r = 0; r < RESULTS; r++)
        fresh(ids, tell(&stories[r], ids), want + r * V);
    for (int ranks = 1; ranks <= 4; ranks *= 2)
        for (int by = 0; by < (ranks == 1 ? 1 : OCT_SHARD_LAYOUTS); by++) {
            check_play(want, ranks, (oct_shard_layout)by, NULL, 1);
            check_play(want, ranks, (oct_shard_layout)by, "numa:2 core:2 pu:1", 4);
        }
    check_play(want, 1, OCT_SHARD_SLICE, "numa:8 core:1 pu:1", 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fork),    cmocka_unit_test(test_errors),
        cmocka_unit_test(test_reuse),   cmocka_unit_test(test_full),
        cmocka_unit_test(test_numeric), cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_play),
    };
    setvbuf(stdout, NULL, _IOLBF, 0);
    return cmocka_run_group_tests(tests, make_model, drop_model);
}
