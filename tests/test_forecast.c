/* test_forecast.c: what is foretold of a model without weights is what a session then takes; what
 * limits it, on which hosts it fits, and models by name, file and configuration. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "convert.h"
#include "forecast.h"
#include "grok.h"
#include "kernels.h"
#include "model_impl.h"

static oct_outline grok1;

static int open_grok1(void **state)
{
    (void)state;
    oct_error err = {0};
    return oct_outline_open("grok-1", NULL, &grok1, &err) != OCT_OK;
}

static int close_grok1(void **state)
{
    (void)state;
    oct_outline_close(&grok1);
    return 0;
}

static oct_host host_of(double gib, double read)
{
    return (oct_host){.memory = (uint64_t)(gib * 0x1p30),
                      .read = {read * 1e9, read * 1e9},
                      .ops = {20e12, 20e12},
                      .flops = 5e12};
}

static oct_forecast_params params_of(const oct_host *hosts, int n)
{
    return (oct_forecast_params){.hosts = hosts,
                                 .n_hosts = n,
                                 .network = {10e-6, 1 / 2.9e9},
                                 .session = {.n_seqs = 1, .chunk = 512},
                                 .n_prompt = 512};
}

static oct_forecast make(const oct_model *m, const oct_forecast_params *p, oct_forecast_rank *ranks)
{
    oct_error err = {0};
    oct_forecast f;
    if (oct_forecast_make(m, p, ranks, &f, &err) != OCT_OK)
        fail_msg("%s", err.text);
    return f;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* 290 MB of weights, keys and values of 64 MB. */
static oct_grok_config middling(void)
{
    oct_grok_config c = oct_grok1_config(4, 8192);
    c.n_ctx = 4096;
    c.d_model = 1024;
    c.n_q_heads = 16;
    c.d_ff = 2816;
    c.embedding_scale = 32;
    return c;
}

/* A line of /proc/self/status in bytes. */
static uint64_t status_bytes(const char *key)
{
    FILE *f = fopen("/proc/self/status", "re");
    char line[256];
    unsigned long long kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0)
            sscanf(line + strlen(key), ": %llu", &kib);
    if (f)
        fclose(f);
    return (uint64_t)kib << 10;
}

/* Reads a prompt that fills the context and reaches every expert, and tells how far the process
 * grew. */
static oct_status use_all(const oct_model *m, const oct_session_params *p, uint64_t *grown)
{
    oct_error err = {0};
    oct_session *s = NULL;
    const int64_t n = p->n_ctx, n_out = 512; /* rows whose logits are wanted use the last layer */
    const size_t logits_bytes = (size_t)(n_out * m->config.n_vocab) * sizeof(float);
    int32_t *token = malloc((size_t)n * sizeof *token);
    uint8_t *want = calloc(1, (size_t)n);
    float *logits = malloc(logits_bytes);
    if (!token || !want || !logits)
        return OCT_ERR_MEMORY;
    for (int64_t i = 0; i < n; i++) {
        token[i] = (int32_t)(1 + i * 2 % (m->config.n_vocab - 1));
        want[i] = i >= n - n_out;
    }
    memset(logits, 1, logits_bytes);
    const oct_batch b = {n, token, NULL, want};
    const uint64_t before = status_bytes("VmRSS");
    oct_status status = oct_session_new(m, p, &s, &err);
    if (status == OCT_OK)
        status = oct_eval(s, &b, logits, &err);
    *grown = status_bytes("VmHWM") - before;
    if (status != OCT_OK)
        printf("%s\n", err.text);
    oct_session_free(s);
    free(token);
    free(want);
    free(logits);
    return status;
}

static void test_peak(void **state)
{
    (void)state;
    oct_error err = {0};
    char path[64];
    const oct_grok_config config = middling();
    const oct_synthetic_params made = {.config = &config, .fd = memfd_create("model", 0)};
    assert_int_equal(oct_synthetic_write(&made, &err), OCT_OK);
    snprintf(path, sizeof path, "/proc/self/fd/%d", made.fd);
    for (int kv = OCT_KV_F16; kv <= OCT_KV_F32; kv += 2) {
        const int64_t n_ctx = kv == OCT_KV_F16 ? 1024 : 2048;
        oct_outline o;
        oct_forecast_rank rank;
        oct_host here = host_of(64, 10);
        oct_forecast_params p = params_of(&here, 1);
        p.session.n_ctx = n_ctx;
        p.session.kv = (oct_kv_type)kv;
        p.session.n_threads = 2;
        assert_int_equal(oct_outline_open(path, NULL, &o, &err), OCT_OK);
        (void)make(o.model, &p, &rank);
        int result[2];
        assert_int_equal(pipe(result), 0);
        pid_t pid = fork(); /* a peak of its own */
        if (pid == 0) {
            uint64_t grown = 0;
            if (use_all(o.model, &p.session, &grown) != OCT_OK ||
                write(result[1], &grown, sizeof grown) != sizeof grown)
                _exit(1);
            _exit(0);
        }
        int status;
        uint64_t grown = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        assert_int_equal(read(result[0], &grown, sizeof grown), sizeof grown);
        close(result[0]);
        close(result[1]);
        double off = (double)grown / (double)rank.total - 1;
        printf("  %lld positions of %s: planned %.1f MB (%.1f weights, %.1f keys and values, "
               "%.1f buffers), peak %+.2f %%\n",
               (long long)n_ctx, kv == OCT_KV_F16 ? "f16" : "f32", (double)rank.total * 1e-6,
               (double)rank.need.weights * 1e-6, (double)rank.need.kv * 1e-6,
               (double)rank.need.buffers * 1e-6, 100 * off);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        assert_true(fabs(off) <= 0.02);
#endif
        oct_outline_close(&o);
    }
    close(made.fd);
}

/* All ranks together hold what one process does, and what each needs is what it would be told. */
static void test_ranks(void **state)
{
    (void)state;
    oct_host hosts[8];
    oct_forecast_rank one, ranks[8];
    oct_error err = {0};
    for (int i = 0; i < 8; i++)
        hosts[i] = host_of(40, 70);
    oct_forecast_params p = params_of(hosts, 1);
    oct_session_need need;
    p.extra = 1000;
    oct_forecast f = make(grok1.model, &p, &one);
    assert_false(f.fits);
    assert_int_equal(oct_session_estimate(grok1.model, &p.session, &need, &err), OCT_OK);
    assert_int_equal(one.total, need.weights + need.kv + need.buffers + 1000);
    p.n_hosts = 8;
    for (unsigned by = 0; by < OCT_SHARD_LAYOUTS; by++) {
        uint64_t weights = 0;
        p.layouts = 1u << by;
        f = make(grok1.model, &p, ranks);
        assert_int_equal(f.layout, by);
        for (int i = 0; i < 8; i++)
            weights += ranks[i].need.weights;
        const bool whole = by >= OCT_SHARD_SLICE_REPLICATED;
        assert_true(whole ? weights > one.need.weights + (uint64_t)30e9
                          : weights < one.need.weights + (uint64_t)1e9);
        assert_true(weights >= one.need.weights);
    }
    p.layouts = 1u << OCT_SHARD_SLICE;
    assert_true(make(grok1.model, &p, ranks).fits);
    hosts[5].memory = (uint64_t)30 << 30; /* one is enough to fail */
    assert_false(make(grok1.model, &p, ranks).fits);
    assert_true(ranks[4].fits && !ranks[5].fits);
    p.n_hosts = 3;
    assert_int_equal(oct_forecast_make(grok1.model, &p, ranks, &f, &err), OCT_ERR_UNSUPPORTED);
    assert_true(strstr(err.text, "must divide") != NULL);
}

/* The context and the number of hosts that are named fit, and the next ones do not. */
static void test_instead(void **state)
{
    (void)state;
    oct_error err = {0};
    oct_forecast_rank ranks[8];
    int64_t n_ctx;
    int n_hosts;
    oct_host hosts[8];
    for (int i = 0; i < 8; i++)
        hosts[i] = host_of(297, 70);
    oct_forecast_params p = params_of(hosts, 1);
    assert_false(make(grok1.model, &p, ranks).fits);
    assert_int_equal(oct_forecast_context(grok1.model, &p, &n_ctx, &err), OCT_OK);
    assert_true(n_ctx > 128 && n_ctx < 8192 && n_ctx % 128 == 0);
    p.session.n_ctx = n_ctx;
    assert_true(make(grok1.model, &p, ranks).fits);
    p.session.n_ctx = n_ctx + 128;
    assert_false(make(grok1.model, &p, ranks).fits);

    hosts[0].memory = (uint64_t)100 << 30;
    p = params_of(hosts, 1);
    assert_int_equal(oct_forecast_context(grok1.model, &p, &n_ctx, &err), OCT_OK);
    assert_int_equal(n_ctx, 0);
    assert_int_equal(oct_forecast_hosts(grok1.model, &p, &n_hosts, &err), OCT_OK);
    assert_int_equal(n_hosts, 4);
    hosts[0].memory = (uint64_t)10 << 30;
    assert_int_equal(oct_forecast_hosts(grok1.model, &p, &n_hosts, &err), OCT_OK);
    assert_int_equal(n_hosts, 0);
    hosts[0].memory = UINT64_MAX;
    assert_int_equal(oct_forecast_context(grok1.model, &p, &n_ctx, &err), OCT_OK);
    assert_int_equal(n_ctx, 8192);
}

/* ---- speed ----------------------------------------------------------------------------------- */

static bool near(double x, double y, double tolerance)
{
    return fabs(x / y - 1) <= tolerance;
}

/* By hand, from Grok-1's shape: see the comment of each line. */
static void test_grok1(void **state)
{
    (void)state;
    oct_host host = host_of(400, 400);
    oct_forecast_params p = params_of(&host, 1);
    oct_forecast_rank rank;
    oct_forecast f = make(grok1.model, &p, &rank);
    const double experts = 64.0 * 3 * 6144 * 32768; /* of each of 8 */
    const double attention = 64.0 * 2 * 6144 * (6144 + 1024), head = 2.0 * 131072 * 6144;
    const double kv = 2.0 * 64 * 1024 * 2;
    assert_true(f.fits);
    assert_true(near(f.step.bytes, 2 * experts + attention + head + 512 * kv, 0.002));
    assert_int_equal(f.step.limit, OCT_LIMIT_READ);
    assert_true(near(f.step.seconds.min, f.step.bytes / 400e9, 0.01));
    const double slowest = f.step.bytes / 400e9 / f.step.share.min;
    assert_true(near(f.step.seconds.max, slowest, 0.01));
    /* 165.9 GOP a token, the last layer and the head for one row only; two instructions each. */
    double ops = oct_predict_ops(grok1.model, 512, 1);
    assert_true(near(ops, 2 * (experts * 2 + attention) * 511, 0.02));
    double passes = f.prompt.seconds.min * f.prompt.share.max * 20e12 / ops;
    assert_true(f.prompt.limit == OCT_LIMIT_READ || near(passes, 1, 0.1) || near(passes, 2, 0.1));
    /* Of eight sequences, 8 (1 - 0.75^8) = 7.2 experts are read. */
    p.session.n_seqs = 8;
    oct_forecast many = make(grok1.model, &p, &rank);
    assert_true(near(many.step.bytes,
                     8 * (1 - pow(0.75, 8)) * experts + attention + head + 8 * 512 * kv, 0.002));
    /* Without rates, bytes are known all the same. */
    host.read = host.ops = (oct_bounds){0};
    many = make(grok1.model, &p, &rank);
    assert_true(many.step.seconds.max == 0 && many.prompt.seconds.max == 0);
    assert_true(many.step.bytes > 280e9);
}

static void test_hosts(void **state)
{
    (void)state;
    oct_host hosts[8];
    oct_forecast_rank ranks[8];
    for (int i = 0; i < 8; i++)
        hosts[i] = host_of(64, 400);
    oct_forecast_params p = params_of(hosts, 8);
    oct_forecast f = make(grok1.model, &p, ranks);
    assert_true(f.fits && f.exchange > 0);
    assert_true(near(f.step.seconds.min, f.step.bytes / 400e9 + f.exchange, 0.01));
    assert_true(f.step.bytes < 12e9);
    hosts[3].read = (oct_bounds){50e9, 50e9}; /* all wait for the slowest */
    oct_forecast slow = make(grok1.model, &p, ranks);
    assert_true(near(slow.step.seconds.min, slow.step.bytes / 50e9 + slow.exchange, 0.01));
    hosts[3] = hosts[0];
    p.network = (oct_network){2e-3, 1 / 0.118e9};
    assert_int_equal(make(grok1.model, &p, ranks).step.limit, OCT_LIMIT_EXCHANGE);
    /* However many tokens share them, a rank has no more than its experts. */
    p.layouts = 1u << OCT_SHARD_EXPERT;
    p.session.n_seqs = 1;
    oct_forecast one = make(grok1.model, &p, ranks);
    p.session.n_seqs = 512;
    p.session.n_ctx = p.n_prompt = 1;
    oct_forecast all = make(grok1.model, &p, ranks);
    assert_true(one.step.bytes < all.step.bytes * 1.5 && all.step.bytes < one.step.bytes * 1.5);
}

static void test_card(void **state)
{
    (void)state;
    oct_host host = host_of(400, 400);
    oct_card card = {.memory = (uint64_t)24 << 30, .read = 900e9};
    oct_forecast_params p = params_of(&host, 1);
    p.session.isa = "avx2"; /* the reference row has no use for a card */
    if (oct_kernels_find(p.session.isa) == NULL)
        skip();
    oct_forecast_rank without, with;
    oct_forecast slow = make(grok1.model, &p, &without);
    p.card = &card;
    oct_forecast fast = make(grok1.model, &p, &with);
    /* Attention, its keys and values, the head, and experts of layers as far as they fit. */
    const oct_gpu_share *share = &with.need.gpu[0];
    assert_int_equal(with.need.n_gpus, 1);
    assert_true(share->attention == 64 && share->head && share->experts >= 1);
    assert_int_equal(with.need.kv, 0);
    assert_true(with.on_card < card.memory && with.on_card > card.memory - ((uint64_t)6 << 30));
    assert_true(
        near((double)(with.need.weights + share->weights), (double)without.need.weights, 0.01));
    assert_true(fast.step.seconds.max < slow.step.seconds.max);
    const double on_host = 1 - (double)share->experts / 64, experts = 2 * 64.0 * 3 * 6144 * 32768;
    assert_true(near(fast.step.bytes, experts * on_host, 0.01));
    assert_true(near(fast.step.seconds.min,
                     fast.step.bytes / 400e9 + (slow.step.bytes - fast.step.bytes) / 900e9, 0.01));
    card.memory = (uint64_t)4 << 30; /* some layers, no head */
    fast = make(grok1.model, &p, &with);
    assert_true(with.need.kv > 0 && with.on_card > (uint64_t)2 << 30);
    assert_true(with.on_card <= card.memory);
}

/* ---- this machine, names --------------------------------------------------------------------- */

static void test_measure(void **state)
{
    (void)state;
    oct_error err = {0};
    oct_host here;
    const oct_session_params p = {.n_threads = 1};
    assert_int_equal(oct_host_measure(&p, &here, &err), OCT_OK);
    printf("  %.1f..%.1f GB/s, %.3f..%.3f TOPS\n", here.read.min * 1e-9, here.read.max * 1e-9,
           here.ops.min * 1e-12, here.ops.max * 1e-12);
    assert_true(here.read.min > 1e8 && here.read.max >= here.read.min && here.read.max < 1e13);
    assert_true(here.ops.max >= here.ops.min && here.memory > 0);
    const oct_session_params wrong = {.isa = "none"};
    assert_int_equal(oct_host_measure(&wrong, &here, &err), OCT_ERR_ARG);
}

static void test_names(void **state)
{
    (void)state;
    oct_model_name name;
    int known = 0;
    for (int i = 0; oct_model_name_get(i, &name); i++) {
        oct_outline o;
        oct_error err = {0};
        oct_status s = oct_outline_open(name.name, NULL, &o, &err);
        assert_int_equal(s, name.lacks ? OCT_ERR_UNSUPPORTED : OCT_OK);
        if (name.lacks)
            assert_true(strstr(err.text, "not supported yet") && strstr(err.text, name.name));
        known += s == OCT_OK;
        if (s == OCT_OK)
            oct_outline_close(&o);
    }
    assert_true(known >= 1);
    assert_false(oct_model_name_get(-1, &name));
    oct_outline o;
    oct_error err = {0};
    assert_int_equal(oct_outline_open("grok-9", NULL, &o, &err), OCT_ERR_ARG);
    assert_true(strstr(err.text, "grok-1") != NULL);
    err = (oct_error){0};
    assert_int_equal(oct_outline_open("grok-1", "q77", &o, &err), OCT_ERR_ARG);
    assert_true(strstr(err.text, "q8") != NULL);
}

/* The same model from its file, its checkpoint and, but for scales' groups, its configuration. */
static void test_outlines(void **state)
{
    (void)state;
    oct_error err = {0};
    oct_outline file, ckpt, config;
    assert_int_equal(oct_outline_open(OCT_TEST_MODELS "/tiny-grok.gguf", NULL, &file, &err),
                     OCT_OK);
    assert_int_equal(oct_outline_open(OCT_TEST_TINY, NULL, &ckpt, &err), OCT_OK);
    assert_int_equal(oct_outline_open(OCT_TEST_TINY "/config.json", NULL, &config, &err), OCT_OK);
    assert_true(file.of == OCT_OUTLINE_FILE && ckpt.of == OCT_OUTLINE_CHECKPOINT &&
                config.of == OCT_OUTLINE_CONFIG);
    assert_memory_equal(&file.model->config, &ckpt.model->config, sizeof file.model->config);
    assert_int_equal(oct_model_get_info(file.model)->weight_bytes,
                     oct_model_get_info(ckpt.model)->weight_bytes);
    assert_int_equal(oct_model_get_info(file.model)->active_bytes,
                     oct_model_get_info(ckpt.model)->active_bytes);
    assert_true(ckpt.source_bytes > 15e6 && ckpt.n_files > 70 && file.source_bytes == 0);
    assert_int_equal(config.model->config.d_ff, file.model->config.d_ff);
    assert_true(near((double)config.file_bytes, (double)ckpt.file_bytes, 0.1));
    oct_outline_close(&file);
    oct_outline_close(&ckpt);
    oct_outline_close(&config);
}

/* Every weight type of the table can be planned with. */
static void test_types(void **state)
{
    (void)state;
    oct_error err = {0};
    for (int i = 0; oct_weight_type_name(i); i++) {
        oct_outline o;
        if (oct_outline_open("grok-1", oct_weight_type_name(i), &o, &err) != OCT_OK)
            fail_msg("%s", err.text);
        assert_string_equal(o.experts, oct_weight_type_name(i));
        for (int k = 0; k < 64; k++) {
            assert_int_equal(o.model->layers[k].gate_up.layout.type, i);
            assert_int_equal(o.model->layers[k].down.layout.type, i);
            assert_int_equal(o.model->layers[k].qkv.layout.type, OCT_WEIGHT_Q8);
        }
        assert_true(i == OCT_WEIGHT_Q8 ? o.original_bytes == 0
                                       : o.original_bytes == grok1.file_bytes);
        assert_true(o.file_bytes <= grok1.file_bytes);
        printf("  experts %s: %.1f GB\n", o.experts, (double)o.file_bytes * 1e-9);
        oct_outline_close(&o);
    }
    assert_null(oct_weight_type_name(-1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peak),     cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_instead),  cmocka_unit_test(test_grok1),
        cmocka_unit_test(test_hosts),    cmocka_unit_test(test_card),
        cmocka_unit_test(test_measure),  cmocka_unit_test(test_names),
        cmocka_unit_test(test_outlines), cmocka_unit_test(test_types),
    };
    setvbuf(stdout, NULL, _IOLBF, 0);
    return cmocka_run_group_tests(tests, open_grok1, close_grok1);
}
