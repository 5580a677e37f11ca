/* test_gpu_stream.c: experts that are brought to a GPU while they compute, on the fake driver that
 * this program is linked with. However a layer is divided between host and GPU, logits have the
 * bits of the host alone; and the division is the one that ends first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu_session_rig.h"
#include "thread_ranks.h"

static void open_model(const char *name)
{
    rig_rng rng = {.state = 5};
    oct_error err = {0};
    char path[512];
    snprintf(path, sizeof path, "%s/%s.gguf", OCT_TEST_MODELS, name);
    if (oct_model_open(path, &model, &err) != OCT_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < TOKENS; i++)
        text[i] = (int32_t)rig_int(&rng, 3, model->config.n_vocab - 1);
}

/* Logits of all tokens; *streamed: bytes. rates NULL: of the host alone. */
static float *logits_of(const oct_gpus *gpus, const oct_stream_rates *rates, uint64_t *streamed)
{
    oct_error err = {0};
    oct_session *s;
    oct_session_stats st;
    uint8_t want[TOKENS];
    const oct_session_params p = {.n_threads = 1, .chunk = CHUNK, .gpus = gpus, .n_ctx = TOKENS};
    float *logits = calloc(TOKENS, (size_t)model->config.n_vocab * sizeof *logits);
    memset(want, 1, sizeof want);
    if (oct_session_new(model, &p, &s, &err) != OCT_OK)
        fail_msg("%s", err.text);
    if (rates) {
        if (s->p.gpus.n == 0 || !s->p.gpus.share[0].streams)
            fail_msg("nothing is to be streamed");
        s->runner.rates = *rates;
    }
    const oct_batch b = {.n = TOKENS, .token = text, .want = want};
    if (oct_eval(s, &b, logits, &err) != OCT_OK)
        fail_msg("%s", err.text);
    oct_session_get_stats(s, &st);
    if (streamed)
        *streamed = st.streamed;
    assert_true(st.bytes_read >= st.streamed);
    oct_session_free(s);
    return logits;
}

static void check(const oct_gpus *g, const char *what, const oct_stream_rates *rates,
                  const float *want, uint64_t min, uint64_t max)
{
    uint64_t streamed;
    float *got = logits_of(g, rates, &streamed);
    if (memcmp(want, got, TOKENS * (size_t)model->config.n_vocab * sizeof *want) != 0)
        fail_msg("%s: other logits", what);
    if (streamed < min || streamed > max)
        fail_msg("%s: %llu bytes streamed, expected %llu..%llu", what, (unsigned long long)streamed,
                 (unsigned long long)min, (unsigned long long)max);
    printf("  %s: %llu bytes streamed, same bits\n", what, (unsigned long long)streamed);
    free(got);
}

static void test_divisions(void **state)
{
    (void)state;
    open_model("tiny-grok");
    const oct_weight *w[2] = {&model->layers[0].gate_up, &model->layers[0].down};
    uint64_t expert = 0;
    for (int k = 0; k < 2; k++)
        expert +=
            (uint64_t)w[k]->layout.n_slices * (w[k]->layout.unit_bytes + w[k]->layout.scale_bytes);
    const uint64_t layers = (uint64_t)model->config.n_layers,
                   all = 2 * layers * (uint64_t)model->config.n_experts * expert;
    float *want = logits_of(NULL, NULL, NULL);
    oct_gpus g = gpus_of(7 << 20); /* for all but the experts */
    g.gpu[1].budget = 0;
    check(&g, "no link", &(oct_stream_rates){0, 1, 1, 1}, want, 0, 0);
    check(&g, "a slow link", &(oct_stream_rates){1, 1e12, 1e9, 1e9}, want, 0, 0);
    /* Equal sides take equal parts. */
    check(&g, "equal sides", &(oct_stream_rates){1e9, 1e9, 1e9, 1e9}, want, all / 10, all * 3 / 4);
    check(&g, "a slow host", &(oct_stream_rates){1e12, 1e15, 1, 1}, want, all / 4, all);
    free(want);
    oct_model_close(model);
}

/* Two GPUs, each of its layers. */
static void test_two(void **state)
{
    (void)state;
    open_model("odd");
    float *want = logits_of(NULL, NULL, NULL);
    const oct_gpus g = gpus_of(5 << 20);
    assert_int_equal(g.n, 2);
    check(&g, "two GPUs", &(oct_stream_rates){1e9, 1e9, 1e9, 1e9}, want, 1, UINT64_MAX);
    free(want);
    oct_model_close(model);
}

/* Where all experts fit, but not most of them and room to stream, all are placed. */
static void test_everything(void **state)
{
    (void)state;
    open_model("tiny-grok");
    oct_session_params p = {.n_threads = 1, .chunk = 1024, .n_ctx = 1024, .no_streaming = true};
    const int64_t layers = model->config.n_layers;
    oct_gpus g = gpus_of(64 << 20);
    g.gpu[1].budget = 0;
    while (share_of(&p, 0, 1, &g).experts == layers)
        g.gpu[0].budget -= 1 << 18;
    g.gpu[0].budget += 1 << 18;
    p.no_streaming = false;
    assert_int_equal(share_of(&p, 0, 1, &g).experts, layers);
    g.gpu[0].budget -= 1 << 18;
    assert_true(share_of(&p, 0, 1, &g).experts < layers - 1); /* the room is worth layers here */
    oct_model_close(model);
}

/* A dense model's only expert is brought whole, or not at all. */
static void test_dense(void **state)
{
    (void)state;
    const int fd = open_made_up(1, 1);
    float *want = logits_of(NULL, NULL, NULL);
    const oct_session_params p = {.n_threads = 1, .chunk = CHUNK, .n_ctx = TOKENS};
    const oct_gpus g = room_to_stream(&p, 0, 1);
    const oct_weight *w[2] = {&model->layers[0].gate_up, &model->layers[0].down};
    uint64_t each = 0;
    for (int k = 0; k < 2; k++)
        each +=
            (uint64_t)w[k]->layout.n_slices * (w[k]->layout.unit_bytes + w[k]->layout.scale_bytes);
    const uint64_t all = 2 * (uint64_t)model->config.n_layers * each;
    check(&g, "dense, a fast host", &(oct_stream_rates){1e9, 1e9, 1e12, 1e12}, want, 0, 0);
    check(&g, "dense, a slow host", &(oct_stream_rates){1e9, 1e9, 1, 1}, want, each, all);
    free(want);
    oct_model_close(model);
    close(fd);
}

/* Ranks by every layout, of which the last has a GPU: nobody's bits change, whether a part of its
 * experts is streamed or all, and whoever sums the slots. */
static void check_ranks(const char *what)
{
    static const oct_stream_rates some = {1e9, 1e9, 1e9, 1e9}, all = {1e12, 1e15, 1, 1};
    job one = {.model = model,
               .params = {.n_threads = 1, .chunk = CHUNK, .n_ctx = TOKENS},
               .tokens = text,
               .B = 1,
               .T = TOKENS,
               .n_ranks = 1};
    enum { N_RANKS = 2 };
    const size_t bytes = TOKENS * (size_t)model->config.n_vocab * sizeof(float);
    float *want = run_job(&one);
    const bool dense = model->config.n_experts == 1;
    for (int by = dense; by < 2 * OCT_SHARD_LAYOUTS; by += 1 + dense) {
        if (by % 2 && by / 2 > OCT_SHARD_EXPERT) /* attention makes no difference to it */
            continue;
        job many = one;
        many.n_ranks = N_RANKS;
        many.params.shard = (oct_shard_layout)(by / 2);
        many.rates = by % 2 ? all : some;
        const oct_gpus g = room_to_stream(&many.params, N_RANKS - 1, N_RANKS);
        many.gpus[N_RANKS - 1] = &g;
        float *got = run_job(&many);
        const bool same = memcmp(want, got, bytes) == 0;
        const uint64_t streamed = many.streamed[N_RANKS - 1];
        printf("  %s, %d ranks by %s, %s: %llu bytes streamed, %s\n", what, N_RANKS,
               oct_shard_name(many.params.shard), by % 2 ? "all" : "some",
               (unsigned long long)streamed, same ? "same bits" : "OTHER BITS");
        assert_true(same);
        assert_int_equal(streamed > 0, model->config.n_experts > 1 || by % 2);
        assert_int_equal(many.streamed[0], 0);
        free(got);
    }
    free(want);
}

/* With one expert, with two of four a token and with three: then ranks exchange each of them. */
static void test_ranks(void **state)
{
    (void)state;
    for (int used = 1; used < 4; used++) {
        const int fd = open_made_up(used > 1 ? 4 : 1, used);
        check_ranks(used == 1 ? "dense" : used == 2 ? "two of four" : "three of four");
        oct_model_close(model);
        close(fd);
    }
}

/* ---- tokens of which the host computes the experts ---- */

static const char *const counted[] = {
    "cuStreamSynchronize", "cuStreamWaitValue32_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2",
    "cuEventSynchronize",  "cuEventRecord",          "cuMemAlloc_v2",        "cuMemHostAlloc",
    "cuMemFree_v2",        "cuMemHostRegister_v2",   "cuModuleLoadData",     "cuLaunchKernel"};
enum { SYNC, HELD, TO_DEVICE, TO_HOST, OTHERS, LAUNCHES = 11, COUNTED };

/* What one token asks of the driver: the host waits once a layer, and of all layers but the last,
 * behind which logits come, the device has been given the next one before the host computes. */
static void hand_over(bool streams)
{
    long n[COUNTED];
    oct_error err = {0};
    oct_session *s;
    oct_gpus g = gpus_of(7 << 20);
    g.gpu[1].budget = 0;
    const oct_session_params p = {
        .n_threads = 1, .chunk = CHUNK, .gpus = &g, .n_ctx = TOKENS, .no_streaming = !streams};
    float *logits = calloc((size_t)model->config.n_vocab, sizeof *logits);
    if (oct_session_new(model, &p, &s, &err) != OCT_OK)
        fail_msg("%s", err.text);
    const long layers = model->config.n_layers - s->p.gpus.share[0].experts; /* the host's */
    assert_int_equal(s->p.gpus.share[0].attention, model->config.n_layers);
    assert_true(layers > 2);
    s->runner.rates = (oct_stream_rates){streams ? 1 : 0, 1e12, 1e9, 1e9};
    for (int i = 0; i < 3; i++) {
        const oct_batch b = {.n = 1, .token = text + i};
        for (int k = 0; k < COUNTED; k++)
            n[k] = fake_cuda_calls(counted[k]);
        if (oct_eval(s, &b, logits, &err) != OCT_OK)
            fail_msg("%s", err.text);
        for (int k = 0; k < COUNTED; k++)
            n[k] = fake_cuda_calls(counted[k]) - n[k];
    }
    for (int k = 0; k < COUNTED; k++)
        printf("  %-24s %ld\n", counted[k], n[k]);
    assert_int_equal(n[SYNC], layers + 1); /* and once for the logits */
    assert_int_equal(n[HELD], layers - 1);
    /* Routes of all layers, rows of the host's; logits; once the counter of saturated values. */
    assert_int_equal(n[TO_HOST], model->config.n_layers + layers + 2);
    for (int k = OTHERS; k < LAUNCHES; k++)
        assert_int_equal(n[k], 0);
    assert_true(n[LAUNCHES] > layers);
    oct_session_free(s);
    free(logits);
}

static void test_hand_over(void **state)
{
    (void)state;
    open_model("tiny-grok");
    hand_over(false);
    hand_over(true);
    oct_model_close(model);
}

/* Likewise of the first of two ranks: its device is given what comes behind each exchange, two a
 * layer, before the ranks have exchanged; unless they share it. */
static long held_by_token;

static oct_status lead_tokens(job *j, oct_session *s, oct_error *err)
{
    const int64_t V = oct_model_get_info(j->model)->n_vocab;
    for (int64_t i = 0; i < j->T; i++) {
        const oct_batch b = {.n = 1, .token = j->tokens + i};
        const long before = fake_cuda_calls(counted[HELD]);
        OCT_TRY(oct_eval(s, &b, j->logits + i * V, err));
        held_by_token = fake_cuda_calls(counted[HELD]) - before;
    }
    return OCT_OK;
}

static void test_ranks_hand_over(void **state)
{
    (void)state;
    open_model("tiny-grok");
    const int64_t layers = model->config.n_layers;
    const size_t bytes = TOKENS * (size_t)model->config.n_vocab * sizeof(float);
    float *want = NULL;
    oct_gpus two = gpus_of(1 << 20);
    oct_gpus_divide(&two, 1, 2);
    assert_false(two.gpu[0].divided || two.gpu[1].divided);
    oct_gpus_divide(&two, 1, 3);
    assert_true(two.gpu[0].divided && !two.gpu[1].divided);
    for (int i = 0; i < 4; i++) {
        oct_gpus g = gpus_of(i == 0 ? 0 : 7 << 20);
        g.gpu[1].budget = 0;
        g.gpu[0].divided = i == 3;
        job j = {.model = model,
                 .params = {.n_threads = 1,
                            .chunk = CHUNK,
                            .n_ctx = TOKENS,
                            .no_streaming = true,
                            .shard = i == 2 ? OCT_SHARD_EXPERT : OCT_SHARD_SLICE},
                 .tokens = text,
                 .B = 1,
                 .T = TOKENS,
                 .n_ranks = 2,
                 .lead = lead_tokens};
        j.gpus[0] = &g;
        float *got = run_job(&j);
        printf("  held %ld times in %lld layers\n", held_by_token, (long long)layers);
        assert_int_equal(held_by_token, i == 1 || i == 2 ? 2 * layers : 0);
        if (i > 0 && memcmp(want, got, bytes) != 0)
            fail_msg("%d: other logits", i);
        if (i == 0)
            want = got;
        else
            free(got);
    }
    free(want);
    oct_model_close(model);
}

/* Heads so wide that a block of threads has no room for their keys stay on the host. */
static void test_shared(void **state)
{
    (void)state;
    oct_attn_shape a = {.n_q_heads = 48, .n_kv_heads = 8, .head_dim = 128};
    const oct_node n = {.op = OCT_OP_ATTENTION, .attn = &a};
    oct_cuda_numbers c = {0};
    assert_true(oct_cuda_kind.supports(&c, &n));
    a.head_dim = 256;
    assert_false(oct_cuda_kind.supports(&c, &n));
    c.shared = 99 << 10;
    assert_true(oct_cuda_kind.supports(&c, &n));
    a.head_dim = 512;
    assert_false(oct_cuda_kind.supports(&c, &n));
    assert_int_equal(gpus_of(1).gpu[0].shared, 101376);
}

/* ---- the division alone ---- */

static void test_choice(void **state)
{
    (void)state;
    open_model("tiny-grok");
    const oct_grok_layer *l = &model->layers[0];
    const oct_node n = {.op = OCT_OP_EXPERTS, .w = {&l->gate_up, &l->down}, .n_used = 2};
    const int64_t n_experts = model->config.n_experts;
    int64_t rows[OCT_WEIGHT_MAX_EXPERTS] = {0};
    const oct_stream_rates even = {1e9, 1e12, 1e9, 1e12};
    assert_int_equal(oct_stream_choose(&even, &n, rows), 0); /* nobody has rows */
    rows[1] = 5;
    assert_int_equal(oct_stream_choose(&even, &n, rows), 0); /* it would end no earlier */
    rows[3] = 7;
    assert_int_equal(oct_stream_choose(&even, &n, rows), 1u << 3); /* one each */
    /* An expert that takes the host long goes, however slow the link. */
    const oct_stream_rates busy = {1e6, 1e15, 1e12, 1e6};
    rows[1] = 1;
    rows[3] = 1000000;
    assert_int_equal(oct_stream_choose(&busy, &n, rows), 1u << 3);
    /* The break-even: above it something is streamed, below nothing, and it grows with the host. */
    int64_t before = 0;
    for (double host = 1e9; host < 1e13; host *= 10) {
        const oct_stream_rates r = {1e9, 1e15, 1e11, host};
        int64_t from = oct_stream_break_even(&r, &n, (oct_shard_range){0, n_experts});
        assert_true(from >= before);
        before = from;
        if (from == INT64_MAX)
            continue;
        for (int64_t e = 0; e < n_experts; e++)
            rows[e] = (from * 2 + n_experts - 1 - e) / n_experts;
        assert_true(oct_stream_choose(&r, &n, rows) != 0);
        for (int64_t e = 0; e < n_experts; e++)
            rows[e] = ((from - 1) * 2 + n_experts - 1 - e) / n_experts;
        assert_int_equal(oct_stream_choose(&r, &n, rows), 0);
    }
    assert_true(before > 1);
    oct_model_close(model);
}

int main(void)
{
    setenv("OCTET_FAKE_CUDA", "devices=2,order=random", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_divisions),
        cmocka_unit_test(test_two),
        cmocka_unit_test(test_everything),
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_hand_over),
        cmocka_unit_test(test_shared),
        cmocka_unit_test(test_ranks_hand_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
