/* test_calls_once.c: calls of the public API that need no history, with any values: files are
 * made, cut, read and compared, sessions measured, plans forecast. As test_calls: the answer is
 * a result or an error with a line; OCT_TEST_SEED=SEED OCT_TEST_ROUNDS=N repeats or prolongs a
 * run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/stat.h>
#include <unistd.h>

#include "any_values.h"
#include "convert.h"
#include "forecast.h"
#include "gpu.h"
#include "inspect.h"
#include "job.h"
#include "machine.h"
#include "measure.h"
#include "octet.h"
#include "output.h"
#include "quantize.h"
#include "scheduler.h"
#include "utf8.h"

static const char odd[] = OCT_TEST_MODELS "/odd.gguf";
static char folder[] = "/tmp/octet-once-XXXXXX", out[64], second[64], fifo[64];
static oct_model *model;
static int64_t calls, errors;

static void answered(const char *what, oct_status s, const oct_error *e)
{
    calls++;
    if (s == OCT_OK)
        return;
    errors++;
    if (!e->text[0] || e->status != s)
        fail_msg("%s: status %s with the line '%s'", what, oct_status_name(s), e->text);
}
#define ANSWERED(call) answered(#call, call, &e)

static const char *some_path(void)
{
    static const char *const paths[] = {odd, odd, odd,    out,          "/dev/null",
                                        "/", "",  "none", OCT_TEST_TINY};
    return paths[below(sizeof paths / sizeof *paths)];
}

/* Not the model: what writes a file of no model cannot know it. */
static const char *some_output(void)
{
    static const char *const paths[] = {out, out, out, out, second, fifo, "/", "", "none"};
    return paths[below(sizeof paths / sizeof *paths)];
}

static oct_session_params some_session(void)
{
    return (oct_session_params){.n_ctx = below(4) ? 1 + below(64) : number(0, 64),
                                .n_seqs = below(4) ? below(3) : number(0, 4),
                                .chunk = below(4) ? below(20) : number(0, 64),
                                .act = (oct_act)(below(9) ? 0 : number(0, 1)),
                                .n_threads = (int)(below(4) ? below(3) : number(0, 4)),
                                .kv = (oct_kv_type)(below(9) ? below(3) : number(0, 2)),
                                .shard = (oct_shard_layout)(below(9) ? 0 : number(0, 3))};
}

/* ---- files ----------------------------------------------------------------------------------- */

static void files(void)
{
    oct_error e = {0};
    switch (below(6)) {
    case 0: {
        const oct_slice_params p = {.model = some_path(),
                                    .out = below(5) ? some_output() : odd,
                                    .by = (oct_shard_layout)(below(4) ? below(4) : number(0, 3)),
                                    .rank = (int)(below(4) ? below(2) : number(0, 3)),
                                    .size = (int)(below(4) ? 2 : number(1, 4))};
        oct_slice_report r = {0};
        if (p.out != odd || strcmp(p.model, odd) == 0) /* over itself is refused */
            ANSWERED(oct_slice(&p, &r, &e));
        oct_lines_free(&r.warnings);
        break;
    }
    case 1: {
        const oct_export_params p = {some_path(), some_output(), below(2), NULL, NULL, NULL};
        oct_export_report r = {0};
        ANSWERED(oct_export_q8_0(&p, &r, &e));
        oct_lines_free(&r.warnings);
        break;
    }
    case 2: ANSWERED(oct_verify(some_path(), NULL, NULL, NULL, &e)); break;
    case 3: {
        static const char *const types[] = {NULL, "q8", "q4g32", "q4g16", "", "none"};
        const oct_synthetic_params p = {.n_layers = number(0, 3),
                                        .n_vocab = number(0, 5000),
                                        .seed = any(),
                                        .experts = types[below(6)],
                                        .hollow = true,
                                        .out = out};
        uint64_t bytes;
        ANSWERED(oct_synthetic_bytes(&p, &bytes, &e));
        if (e.status == OCT_OK && p.n_layers > 0 && p.n_layers < 5)
            ANSWERED(oct_synthetic_write(&p, &e));
        break;
    }
    case 4: {
        static const char *const names[] = {
            "grok-1", "grok-2", "", "none", "/", OCT_TEST_TINY, OCT_TEST_TINY "/config.json", odd};
        static const char *const types[] = {NULL, "q8", "q4g32", "q4g16", "", "none"};
        oct_outline o = {0};
        ANSWERED(oct_outline_open(names[below(8)], types[below(6)], &o, &e));
        oct_outline_close(&o);
        break;
    }
    default: {
        const oct_convert_params p = {.checkpoint =
                                          below(3) ? OCT_TEST_DATA "/models/odd" : some_path(),
                                      .out = some_output(),
                                      .tokenizer = below(3) ? NULL : some_path(),
                                      .config = below(3) ? NULL : some_path(),
                                      .no_tokenizer = below(2),
                                      .n_threads = (int)(below(4) ? below(3) : number(0, 4))};
        oct_convert_report r = {0};
        ANSWERED(oct_convert(&p, &r, &e));
        oct_convert_report_free(&r);
    }
    }
}

/* One output, handled in any order; what was written is what is read. */
static void outputs(void)
{
    oct_output o = {.fd = -1};
    oct_error e = {0};
    oct_lines warnings = {0};
    uint8_t data[600];
    const uint64_t size = (uint64_t)(below(4) ? below(1000) : number(0, 1 << 20));
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)i;
    ANSWERED(oct_output_check(below(4) ? out : some_output(), (const char *const[]){odd, second},
                              (size_t)below(3), &e));
    e = (oct_error){0};
    ANSWERED(oct_output_room(below(4) ? out : some_path(), (uint64_t)number(0, 100), &e));
    e = (oct_error){0};
    ANSWERED(oct_output_create(&o, some_output(), size, below(2) ? &warnings : NULL, &e));
    for (int i = 0; i < 6 && o.fd >= 0; i++) {
        e = (oct_error){0};
        switch (below(5)) {
        case 0:
            ANSWERED(oct_output_write(&o, data, (size_t)below(600), (uint64_t)number(0, 1000), &e));
            break;
        case 1:
            ANSWERED(oct_output_read(&o, data, (size_t)below(600), (uint64_t)number(0, 1000), &e));
            break;
        case 2: ANSWERED(oct_output_sync(&o, &e)); break;
        case 3: ANSWERED(oct_output_publish(&o, &e)); break;
        default: oct_output_close(&o); break;
        }
    }
    oct_output_close(&o);
    oct_output_close(&o);
    oct_lines_free(&warnings);
}

/* ---- fewer bits ------------------------------------------------------------------------------ */

/* By experts and layers that are not there. */
static void none_seen(const oct_moments *m)
{
    const oct_model_info *info = oct_model_get_info(model);
    const int64_t far = INT64_C(1) << 40;
    const int64_t place[][2] = {{-1, 0}, {info->n_layers, 0},  {far, 0}, {-far, 0},
                                {0, -1}, {0, info->n_experts}, {0, far}, {0, -far}};
    for (size_t i = 0; i < sizeof place / sizeof *place; i++)
        assert_int_equal(oct_moments_seen(m, place[i][0], place[i][1]), 0);
}

static void quantising(void)
{
    oct_error e = {0};
    oct_moments *moments = NULL;
    int32_t ids[200];
    const int64_t n_vocab = oct_model_get_info(model)->n_vocab;
    for (int i = 0; i < 200; i++)
        ids[i] = (int32_t)(below(300) ? 3 + below(n_vocab - 3) : number(0, n_vocab));
    const oct_session_params session = some_session();
    const oct_text_params text = {.ids = ids,
                                  .n = below(9) ? below(200) : -below(3),
                                  .window = below(4) ? below(60) : number(0, 64),
                                  .session = below(9) ? &session : NULL};
    oct_quantize_rule rule[2];
    for (int i = 0; i < 2; i++)
        rule[i] =
            (oct_quantize_rule){number(0, 3), number(0, 3), below(2), below(2), (int)number(0, 3)};
    if (below(2)) {
        ANSWERED(oct_moments_gather(model, &text, &moments, &e));
        if (moments) {
            (void)oct_moments_tokens(moments);
            (void)oct_moments_seen(moments, number(0, 3), number(0, 8));
            none_seen(moments);
            e = (oct_error){0};
            ANSWERED(oct_moments_write(moments, below(4) ? second : some_output(), &e));
        }
        oct_moments_free(moments);
        moments = NULL;
    }
    e = (oct_error){0};
    ANSWERED(oct_moments_read(below(3) ? second : some_path(), model, &moments, &e));
    const oct_quantize_params p = {.model = model,
                                   .model_path = below(9) ? odd : some_path(),
                                   .out = some_output(),
                                   .rule = rule,
                                   .n_rules = below(9) ? below(3) : -below(3),
                                   .moments = below(2) ? moments : NULL,
                                   .least_seen = number(0, 300),
                                   .n_threads = (int)(below(4) ? below(3) : number(0, 4))};
    oct_quantize_report r = {0};
    e = (oct_error){0};
    ANSWERED(oct_quantize(&p, &r, &e));
    oct_lines_free(&r.warnings);
    oct_moments_free(moments);
    oct_compare_report c;
    e = (oct_error){0};
    ANSWERED(oct_compare(model, model, &text, &c, &e));
    (void)oct_quantize_kind_name((int)number(0, OCT_QUANTIZE_KINDS));
    (void)oct_weight_type_name((int)number(0, 5));
    oct_model_name name;
    (void)oct_model_name_get((int)number(0, 5), &name);
}

/* ---- measuring ------------------------------------------------------------------------------- */

static double small_seconds(void)
{
    const double x = real();
    return x > 0.001 ? 0.001 : x; /* for ever is for ever */
}

static void sessions(void)
{
    oct_error e = {0};
    oct_session *s = NULL;
    const oct_session_params p = some_session();
    oct_session_need need;
    ANSWERED(oct_session_estimate(model, &p, &need, &e));
    if (e.status != OCT_OK || need.kv + need.buffers > (uint64_t)64 << 20)
        return;
    ANSWERED(oct_session_new(model, &p, &s, &e));
    if (!s)
        return;
    int64_t next = number(0, 40);
    const char *why;
    oct_gpu_share share[OCT_MAX_GPUS];
    double all[OCT_PHASES];
    oct_instruction in;
    (void)oct_measure_waited(s);
    (void)oct_measure_kv_bytes(s);
    (void)oct_measure_read(s, (size_t)number(0, 1 << 16), (uint64_t)below(1 << 20), &next);
    (void)oct_measure_peak(s, (int)number(0, 4), small_seconds());
    (void)oct_measure_barrier(s, below(3) ? below(100) : -below(3));
    (void)oct_measure_wake(s, (int)(below(3) ? below(3) : number(0, 4) % 200));
    (void)oct_instruction_get((int)number(0, 5), &in);
    (void)oct_instruction_find(below(2) ? "avx2" : "none", (oct_probe_kind)number(0, 2));
    if (oct_instruction_find("avx2", (oct_probe_kind)INT32_MAX) != -1 ||
        oct_instruction_find("avx2", (oct_probe_kind)INT32_MIN) != -1)
        fail_msg("an instruction of a kind that there is not");
    (void)oct_session_get_gpus(s, share, &why);
    (void)oct_session_stream_rows(s);
    oct_session_count_as(s, (oct_phase)number(0, 1));
    (void)oct_session_phases(s);
    ANSWERED(oct_session_gather_compute(s, all, &e));
    e = (oct_error){0};
    if (below(4) == 0)
        ANSWERED(oct_session_serve(s, &e));
    if (below(2))
        oct_session_abandon(s);
    else
        oct_session_free(s);
    calls += 12;
}

static void operations(void)
{
    oct_error e = {0};
    oct_operation *o = NULL;
    oct_operation_run run;
    oct_session_params p = some_session();
    int64_t n_seqs;
    if (p.n_ctx > 4096 ||
        p.n_ctx < -4096) /* what takes the machine's memory is for nobody's test */
        p.n_ctx = -1;
    if (below(2))
        ANSWERED(oct_operation_experts(model, &p, below(3) ? below(20) : number(0, 20) % 5000,
                                       any(), &o, &e));
    else
        ANSWERED(oct_operation_attention(model, &p, below(3) ? below(5) : number(0, 5) % 100,
                                         (uint64_t)below(1 << 16), any(), &n_seqs, &o, &e));
    if (o) {
        ANSWERED(oct_operation_do(o, &run, &e));
        (void)oct_operation_read(o, (size_t)number(0, 1 << 16));
    }
    oct_operation_free(o);
}

static void forecasts(void)
{
    oct_error e = {0};
    oct_host hosts[4];
    oct_forecast_rank ranks[4];
    oct_forecast f;
    for (int i = 0; i < 4; i++)
        hosts[i] = (oct_host){
            (uint64_t)number(0, 1 << 30), NULL, {real(), real()}, {real(), real()}, real()};
    const oct_card card = {(uint64_t)number(0, 1 << 30), real()};
    const oct_forecast_params p = {.hosts = hosts,
                                   .n_hosts = (int)(below(9) ? below(5) : -below(3)),
                                   .network = {real(), real()},
                                   .card = below(2) ? &card : NULL,
                                   .layouts = (unsigned)(any() >> (below(3) ? 60 : 0)),
                                   .session = some_session(),
                                   .n_prompt = number(0, 100),
                                   .extra = (uint64_t)number(0, 1 << 20)};
    int64_t n_ctx;
    int n_hosts;
    ANSWERED(oct_forecast_make(model, &p, ranks, &f, &e));
    e = (oct_error){0};
    ANSWERED(oct_forecast_context(model, &p, &n_ctx, &e));
    e = (oct_error){0};
    ANSWERED(oct_forecast_hosts(model, &p, &n_hosts, &e));
    const oct_step_shape step = {number(0, 100), number(0, 100), real(), (oct_kv_type)number(0, 2)};
    const oct_network net = {real(), real()};
    oct_step_cost cost;
    (void)oct_predict_step(model, (oct_shard_layout)number(0, 3), (int)number(0, 9), &step, &net,
                           &cost);
    (void)oct_predict_ops(model, real(), real());
    (void)oct_step_rows(real(), real(), real(), real());
    (void)oct_scheduler_bytes(number(0, 100), number(0, 100), number(0, 100));
    (void)oct_shard_name((oct_shard_layout)number(0, 3));
}

/* ---- the rest -------------------------------------------------------------------------------- */

static void small_ones(void)
{
    oct_error e = {0};
    static const char *const isas[] = {NULL, "ref", "amx", "none", ""};
    const char *isa;
    char text[24], line[OCT_GPU_LINE], in[40], repaired[OCT_UTF8_ROOM(40)], room[16];
    oct_memory memory;
    oct_gpus gpus = {.n = (int)below(3), .gpu = {{.budget = any()}}};
    const oct_gpu_use use = {below(2), (int)below(4), {any(), 1, any()}};
    const oct_gpu_share share = {(int)below(2), number(0, 3), number(0, 3), number(0, 3), true,
                                 true,          true,         any(),        any(),        any()};
    ANSWERED(oct_machine_choose_isa(isas[below(5)], &isa, &e));
    (void)oct_memory_text(any() >> below(64), text);
    oct_memory_get(below(2) ? "" : "/none", &memory);
    (void)oct_memory_has_file(some_path());
    oct_gpus_limit(&gpus, &use);
    (void)oct_gpu_share_text(&gpus, &share, line);
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (char)(below(3) ? 0x80 + below(128) : below(256));
    oct_utf8 u = {.printable = below(2)};
    size_t n = 0;
    for (size_t at = 0; at < sizeof in;) {
        const size_t piece = 1 + (size_t)below(5), left = sizeof in - at;
        n += oct_utf8_feed(&u, in + at, piece < left ? piece : left, repaired + n);
        at += piece < left ? piece : left;
    }
    n += oct_utf8_end(&u, repaired + n);
    assert_int_equal(oct_utf8_valid(repaired, n), n);
    (void)oct_utf8_length(in, 1 + (size_t)below(40));
    (void)oct_utf8_is_control(in, 1 + (size_t)below(4));
    (void)oct_utf8_bom(in, (size_t)below(5));
    assert_string_equal(oct_job_path(NULL, "a-%r", room, sizeof room), "a-%r");
    assert_int_equal(oct_job_rank(NULL) + oct_job_size(NULL), 1);
    (void)oct_job_divide(NULL, real(), NULL, NULL);
    oct_job_leave(NULL);
    oct_tensor_info tensor;
    oct_key_info key;
    (void)oct_model_get_tensor(model, number(0, 60), &tensor);
    (void)oct_model_get_key(model, number(0, 40), &key);
    (void)oct_log_sum_exp((const float[]){real(), real()}, below(3));
    calls += 15;
}

static void test_any(void **state)
{
    static void (*const all[])(void) = {files,      outputs,   quantising, sessions,
                                        operations, forecasts, small_ones, small_ones};
    const char *seed = getenv("OCT_TEST_SEED"), *n = getenv("OCT_TEST_ROUNDS");
    const int64_t rounds = n ? atoll(n) : 150;
    oct_error e = {0};
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    snprintf(out, sizeof out, "%s/out", folder);
    snprintf(second, sizeof second, "%s/second", folder);
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    assert_int_equal(mkfifo(fifo, 0666), 0);
    rng = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL);
    printf("OCT_TEST_SEED=%llu\n", (unsigned long long)rng);
    fflush(stdout);
    assert_int_equal(oct_model_open(odd, &model, &e), OCT_OK);
    for (int64_t i = 0; i < rounds; i++)
        all[below(sizeof all / sizeof *all)]();
    oct_model_close(model);
    struct stat st;
    assert_true(stat(fifo, &st) == 0 && S_ISFIFO(st.st_mode)); /* nothing replaced it */
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    printf("%lld calls, %lld of them refused\n", (long long)calls, (long long)errors);
    assert_true(calls > rounds && errors > rounds / 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_any)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
