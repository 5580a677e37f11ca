/* test_ranks.c: models divided over ranks give the bits of one process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "model_impl.h"
#include "npy.h"
#include "shard.h"
#include "convert.h"
#include "hparams.h"
#include "machine.h"
#include "machine_rig.h"
#include "thread_ranks.h"

/* What rank 0 must have folded: per chunk the embedding, and in every layer the experts' vectors,
 * before that the attention's unless it is replicated. */
static void check_folds(const job *j)
{
    const oct_model_info *i = oct_model_get_info(j->model);
    int64_t half = j->T / 2, rest = j->T - half, chunk = j->params.chunk;
    int64_t chunks = j->B * ((half + chunk - 1) / chunk + 2 * ((rest + chunk - 1) / chunk));
    oct_shard_layout by = j->params.shard;
    bool replicated = by == OCT_SHARD_SLICE_REPLICATED || by == OCT_SHARD_EXPERT_REPLICATED;
    bool whole = by == OCT_SHARD_EXPERT || by == OCT_SHARD_EXPERT_REPLICATED;
    bool sum = whole && i->n_experts > 1 && i->n_experts_used <= 2;
    int64_t vectors = (sum ? 1 : i->n_experts_used) + (replicated ? 0 : 1);
    int64_t folds = chunks * (1 + i->n_layers * (replicated ? 1 : 2));
    assert_int_equal(j->hub.folds, folds);
    assert_int_equal(j->hub.floats, /* and a word of each fold: who has been cancelled */
                     j->B * (half + 2 * rest) * i->d_model * (1 + i->n_layers * vectors) + folds);
}

static void check_model(const char *name, const char *isa)
{
    char path[512];
    oct_error err = {0};
    oct_model *m;
    oct_npy tokens;
    snprintf(path, sizeof path, "%s/%s.gguf", OCT_TEST_MODELS, name);
    assert_int_equal(oct_model_open(path, &m, &err), OCT_OK);
    snprintf(path, sizeof path, "%s/golden/%s/tokens.npy", OCT_TEST_DATA, name);
    assert_int_equal(oct_npy_load(path, &tokens), 0);
    int64_t V = oct_model_get_info(m)->n_vocab;
    job one = {.model = m,
               .params = {.isa = isa, .n_threads = 1, .chunk = 16},
               .tokens = tokens.data,
               .B = tokens.shape[0],
               .T = tokens.shape[1],
               .n_ranks = 1};
    size_t bytes = (size_t)(one.B * one.T * V) * sizeof(float);
    float *want = run_job(&one);
    for (int ranks = 2; ranks <= 8; ranks *= 2)
        for (int by = 0; by < OCT_SHARD_LAYOUTS; by++) {
            job many = one;
            many.n_ranks = ranks;
            many.params.shard = (oct_shard_layout)by;
            float *got = run_job(&many);
            bool same = memcmp(want, got, bytes) == 0;
            printf("  %s, %s, %d ranks by %s: %s, %lld folds\n", name, isa, ranks,
                   oct_shard_name((oct_shard_layout)by), same ? "same bits" : "DIFFER",
                   (long long)many.hub.folds);
            assert_true(same);
            check_folds(&many);
            free(got);
        }
    free(want);
    oct_npy_free(&tokens);
    oct_model_close(m);
}

static void test_models(void **state)
{
    (void)state;
    const oct_kernels *best;
    assert_int_equal(oct_kernels_choose(NULL, oct_isa_detect(), &best, NULL), OCT_OK);
    const char *isa = best->name;
    check_model("tiny-grok", isa);
    check_model("odd", isa);
    check_model("dense", isa);
    check_model("dense", "ref");
}

/* NUMA domains inside ranks. */
static void test_domains(void **state)
{
    (void)state;
    oct_error err = {0};
    oct_model *m;
    assert_int_equal(oct_model_open(OCT_TEST_MODELS "/dense.gguf", &m, &err), OCT_OK);
    static const int32_t tokens[12] = {5, 9, 200, 31, 4, 4, 77, 8, 90, 3, 6, 100};
    job one = {
        .model = m, .params = {.n_threads = 1}, .tokens = tokens, .B = 1, .T = 12, .n_ranks = 1};
    float *want = run_job(&one);
    oct_machine *two_nodes = machine_like("numa:2 core:2 pu:1");
    for (int by = 0; by < OCT_SHARD_LAYOUTS; by++) {
        job many = one;
        many.n_ranks = 2;
        many.params.shard = (oct_shard_layout)by;
        many.params.machine = two_nodes;
        many.params.n_threads = 4;
        float *got = run_job(&many);
        assert_memory_equal(want, got,
                            (size_t)(12 * oct_model_get_info(m)->n_vocab) * sizeof(float));
        free(got);
    }
    free(want);
    oct_machine_free(two_nodes);
    oct_model_close(m);
}

/* Six slices and three experts of six per token: three ranks have two slices each, but all six of
 * what they have whole, which two NUMA nodes cannot share as subtrees. */
static void test_six_slices(void **state)
{
    (void)state;
    static const int32_t tokens[12] = {5, 9, 120, 31, 4, 4, 77, 8, 90, 3, 6, 100};
    oct_error err = {0};
    oct_model *m;
    char path[64];
    oct_grok_config c = oct_grok1_config(2, 130);
    c.n_ctx = 64;
    c.d_model = 96;
    c.n_q_heads = 12;
    c.n_kv_heads = c.n_experts = c.n_slices = c.attn_out_groups = c.down_groups = 6;
    c.head_dim = 16;
    c.d_ff = 120;
    c.n_used = 3;
    const oct_synthetic_params p = {.config = &c, .seed = 1, .fd = memfd_create("model", 0)};
    assert_int_equal(oct_synthetic_write(&p, &err), OCT_OK);
    snprintf(path, sizeof path, "/proc/self/fd/%d", p.fd);
    assert_int_equal(oct_model_open(path, &m, &err), OCT_OK);
    job one = {.model = m,
               .params = {.n_threads = 1, .chunk = 16},
               .tokens = tokens,
               .B = 1,
               .T = 12,
               .n_ranks = 1};
    float *want = run_job(&one);
    oct_machine *two_nodes = machine_like("numa:2 core:1 pu:1");
    for (int ranks = 3; ranks <= 6; ranks += 3)
        for (int by = 0; by < OCT_SHARD_LAYOUTS; by++) {
            job many = one;
            many.n_ranks = ranks;
            many.params.shard = (oct_shard_layout)by;
            many.params.machine = two_nodes;
            many.params.n_threads = 2;
            float *got = run_job(&many);
            assert_memory_equal(want, got, (size_t)(12 * c.n_vocab) * sizeof(float));
            check_folds(&many);
            free(got);
        }
    free(want);
    oct_machine_free(two_nodes);
    oct_model_close(m);
    close(p.fd);
}

/* Sends the order that it has, to a rank that is alone. */
typedef struct order_comm {
    oct_comm base;
    const oct_rank_order *order;
    int64_t n_rows;
} order_comm;

static oct_status send_order(oct_comm *c, void *data, size_t *bytes, oct_error *err)
{
    const order_comm *o = (order_comm *)(void *)c;
    (void)err;
    *bytes = oct_order_bytes(o->n_rows);
    memcpy(data, o->order, *bytes);
    return OCT_OK;
}

/* Rank 0 does not know that a rank cannot do what it is told: the job must not go on. */
static void test_orders_that_do_not_fit(void **state)
{
    (void)state;
    const struct {
        int64_t what, a, b, n_rows;
        const char *words;
    } wrong[] = {{OCT_ORDER_EVAL, 65, 0, 130, "tokens that do not fit"},
                 {OCT_ORDER_EVAL, 1, 1, 2, "tokens that do not fit"},
                 {OCT_ORDER_REUSE, 0, 128, 128, "expected as many here, found 0"},
                 {OCT_ORDER_REUSE, 7, 128, 128, "sequence 7, expected 0..1"},
                 {OCT_ORDER_FORK, 0, 9, 0, "sequence 9, expected 0..1"}};
    oct_rank_order *order = calloc(1, oct_order_bytes(300));
    oct_error err = {0};
    oct_model *m;
    assert_int_equal(oct_model_open(OCT_TEST_MODELS "/tiny-grok.gguf", &m, &err), OCT_OK);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        order_comm comm = {.base = {.rank = 1, .size = 2, .announce = send_order},
                           .order = order,
                           .n_rows = wrong[i].n_rows};
        const oct_session_params p = {.n_seqs = 2, .chunk = 64, .n_threads = 1, .comm = &comm.base};
        oct_session *s;
        assert_int_equal(oct_session_new(m, &p, &s, &err), OCT_OK);
        order->what = wrong[i].what;
        order->a = wrong[i].a;
        order->b = wrong[i].b;
        /* not OCT_ERR_COMM, of which rank 0 would tell */
        assert_int_equal(oct_session_serve(s, &err), OCT_ERR_ARG);
        assert_non_null(strstr(err.text, wrong[i].words));
        assert_true(comm.base.broken);
        oct_session_free(s);
        err = (oct_error){0};
    }
    free(order);
    oct_model_close(m);
}

static oct_status take_nothing(oct_comm *c, void *data, size_t *bytes, oct_error *err)
{
    (void)c, (void)data, (void)bytes, (void)err;
    return OCT_OK;
}

static oct_status fail_to_fold(oct_comm *c, float *x, int64_t n, oct_error *err)
{
    (void)c, (void)x, (void)n;
    return oct_fail(err, OCT_ERR_MEMORY, "no memory to fold");
}

/* What fails on rank 0 alone leaves the others waiting: the next evaluation does not begin. */
static void test_failing_alone(void **state)
{
    (void)state;
    oct_error err = {0};
    oct_model *m;
    oct_session *s;
    oct_comm comm = {.size = 2, .announce = take_nothing, .fold = fail_to_fold};
    const oct_session_params p = {.n_threads = 1, .comm = &comm};
    const int32_t token = 5;
    const oct_batch b = {.n = 1, .token = &token};
    assert_int_equal(oct_model_open(OCT_TEST_MODELS "/tiny-grok.gguf", &m, &err), OCT_OK);
    float *logits = malloc((size_t)oct_model_get_info(m)->n_vocab * sizeof *logits);
    assert_int_equal(oct_session_new(m, &p, &s, &err), OCT_OK);
    assert_int_equal(oct_eval(s, &b, logits, &err), OCT_ERR_MEMORY);
    assert_true(comm.broken);
    assert_int_equal(oct_session_pos(s, 0), 0);
    assert_int_equal(oct_eval(s, &b, logits, &err), OCT_ERR_COMM);
    oct_session_free(s);
    free(logits);
    oct_model_close(m);
}

/* The last rank's model has another router in one layer: all ranks find it, none goes on. */
static void test_routers(void **state)
{
    (void)state;
    enum { RANKS = 4, LAYER = 3 };
    static const int32_t tokens[12] = {5, 9, 200, 31, 4, 4, 77, 8, 90, 3, 6, 100};
    oct_error err = {0};
    oct_model *m, *other;
    assert_int_equal(oct_model_open(OCT_TEST_MODELS "/tiny-grok.gguf", &m, &err), OCT_OK);
    assert_int_equal(oct_model_open(OCT_TEST_MODELS "/tiny-grok.gguf", &other, &err), OCT_OK);
    oct_plain *router = &other->layers[LAYER].router;
    const float *right = router->data;
    float *wrong = malloc((size_t)(router->rows * router->cols) * sizeof *wrong);
    for (int64_t i = 0; i < router->rows * router->cols; i++)
        wrong[i] = -right[i];
    router->data = wrong;
    oct_model *models[RANKS] = {m, m, m, other};
    job j = {.model = m,
             .parts = models,
             .params = {.n_threads = 1},
             .tokens = tokens,
             .B = 1,
             .T = 12,
             .n_ranks = RANKS};
    run_ranks(&j);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(j.status[r], OCT_ERR_COMM);
        assert_string_equal(j.error[r].text, "layer 3: rank 3 chose other experts than rank 0");
    }
    free(j.logits);
    free(wrong);
    oct_model_close(other);
    oct_model_close(m);
}

/* Part r of size of n, or all. */
static void check_range(oct_shard_range range, bool whole, int r, int size, int64_t n)
{
    assert_int_equal(range.first, whole ? 0 : n / size * r);
    assert_int_equal(range.end, whole ? n : n / size * (r + 1));
}

/* The parts of all ranks are the whole, once; what a layout has whole, every rank has. */
static void check_shards(oct_shard_layout layout, int64_t n_experts, bool experts, bool attention)
{
    oct_shard s;
    for (int size = 1; size <= 8; size *= 2)
        for (int r = 0; r < size; r++) {
            assert_null(oct_shard_make(layout, r, size, 8, n_experts, &s));
            assert_true(s.whole_experts == experts && s.whole_attention == attention);
            check_range(s.slices[OCT_SHARD_OF_VOCABULARY], false, r, size, 8);
            check_range(s.slices[OCT_SHARD_OF_ATTENTION], attention, r, size, 8);
            check_range(s.slices[OCT_SHARD_OF_EXPERTS], experts, r, size, 8);
            check_range(s.experts, !experts, r, size, n_experts);
            assert_int_equal(oct_shard_n_slices(&s, OCT_SHARD_OF_VOCABULARY), 8 / size);
        }
}

static void test_shards(void **state)
{
    (void)state;
    oct_shard s;
    check_shards(OCT_SHARD_SLICE, 8, false, false);
    check_shards(OCT_SHARD_EXPERT, 8, true, false);
    check_shards(OCT_SHARD_SLICE_REPLICATED, 8, false, true);
    check_shards(OCT_SHARD_EXPERT_REPLICATED, 8, true, true);
    check_shards(OCT_SHARD_EXPERT, 1, false, false);
    check_shards(OCT_SHARD_EXPERT_REPLICATED, 1, false, true);
    static const int wrong[] = {0, 3, 5, 9, 16};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_non_null(oct_shard_make(OCT_SHARD_SLICE, 0, wrong[i], 8, 8, &s));
    assert_non_null(oct_shard_make(OCT_SHARD_EXPERT, 0, 4, 8, 6, &s)); /* 6 experts on 4 ranks */
    assert_non_null(oct_shard_make(OCT_SHARD_EXPERT_REPLICATED, 0, 4, 8, 6, &s));
    assert_non_null(oct_shard_make(OCT_SHARD_SLICE, 0, 2, 6, 8, &s)); /* 3 slices: no subtree */
    assert_non_null(oct_shard_make(OCT_SHARD_SLICE, 2, 2, 8, 8, &s));
}

/* Rank 0: a chunk in whose middle a rank is cancelled, then the same again undisturbed. */
static oct_status lead_cancelled(job *j, oct_session *s, oct_error *err)
{
    oct_error ignored = {0};
    const oct_batch b = {.n = j->T, .token = j->tokens};
    oct_status status = oct_eval(s, &b, j->logits, &ignored);
    if (status != OCT_ERR_CANCELLED)
        return oct_fail(err, OCT_ERR_ARG, "status %d, expected that all are cancelled", status);
    /* It was raised while one fold went on: the next one tells all ranks, and there is no other. */
    if (j->hub.folds != j->hub.cancel_at + 1)
        return oct_fail(err, OCT_ERR_ARG, "%lld folds, expected %lld", (long long)j->hub.folds,
                        (long long)j->hub.cancel_at + 1);
    if (oct_session_pos(s, 0) != 0)
        return oct_fail(err, OCT_ERR_ARG, "a chunk that was cancelled is kept");
    __atomic_store_n(j->hub.cancel, 0, __ATOMIC_RELAXED);
    j->hub.cancel_at = -1;
    return oct_eval(s, &b, j->logits, err);
}

/* Whichever rank is cancelled, in whatever layer, all leave at the next fold, and the job goes on.
 */
static void test_cancelled_together(void **state)
{
    (void)state;
    enum { T = 12 };
    static const int32_t tokens[T] = {5, 9, 200, 31, 4, 4, 77, 8, 90, 3, 6, 100};
    oct_error err = {0};
    oct_model *m;
    assert_int_equal(oct_model_open(OCT_TEST_MODELS "/tiny-grok.gguf", &m, &err), OCT_OK);
    const size_t V = (size_t)oct_model_get_info(m)->n_vocab;
    job one = {
        .model = m, .params = {.n_threads = 1}, .tokens = tokens, .B = 1, .T = T, .n_ranks = 1};
    float *want = run_job(&one);
    for (int ranks = 2; ranks <= 8; ranks *= 2)
        for (int at = 1; at <= 12; at += 5) { /* of 13 folds: the embedding, two in each layer */
            volatile int cancel = 0;
            job many = one;
            many.n_ranks = ranks;
            many.lead = lead_cancelled;
            many.hub.cancel_at = at;
            many.hub.cancel_rank = at % ranks;
            many.hub.cancel = &cancel;
            float *got = run_job(&many); /* the last row: what the batch wants */
            assert_memory_equal(want + (T - 1) * V, got, V * sizeof *got);
            free(got);
        }
    free(want);
    oct_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards),        cmocka_unit_test(test_domains),
        cmocka_unit_test(test_six_slices),    cmocka_unit_test(test_orders_that_do_not_fit),
        cmocka_unit_test(test_failing_alone), cmocka_unit_test(test_cancelled_together),
        cmocka_unit_test(test_routers),       cmocka_unit_test(test_models),
    };
    setvbuf(stdout, NULL, _IOLBF, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
