/* bench_measure.c: probes and measured work, interleaved. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cli_session.h"
#include "ranks.h"

enum { READ_BYTES = 1 << 30 }; /* of a read probe, per eight threads: about 30 ms, no cache */
static const double PEAK_SECONDS = 0.05;
static const size_t distances[] = {0, 2048, 4096, 8192, 16384}; /* for the read probe */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- the rig --------------------------------------------------------------------------------- */

/* Bytes per second over the next stretch of expert weights, or over all keys and values. */
static double read_rate(oct_bench_rig *r)
{
    uint64_t bytes = (uint64_t)READ_BYTES * (uint64_t)((r->n_threads + 7) / 8);
    return r->attention ? oct_operation_read(r->attention, r->ahead)
                        : oct_measure_read(r->session, r->ahead, bytes, &r->next);
}

/* The distance that reads fastest, by the median of five rounds over all. */
static void choose_ahead(oct_bench_rig *r)
{
    enum { N = sizeof distances / sizeof *distances, ROUNDS = 5 };
    double rate[N][ROUNDS], best = 0;
    for (int k = 0; k < ROUNDS; k++) {
        for (int i = 0; i < N; i++) {
            r->ahead = distances[i];
            rate[i][k] = read_rate(r);
        }
    }
    size_t ahead = 0;
    for (int i = 0; i < N; i++) {
        qsort(rate[i], ROUNDS, sizeof *rate[i], ascending);
        if (rate[i][ROUNDS / 2] > best) {
            best = rate[i][ROUNDS / 2];
            ahead = distances[i];
        }
    }
    r->ahead = ahead;
}

oct_status oct_bench_rig_init(oct_bench_rig *r, const oct_bench *b, int n_threads, oct_error *err)
{
    *r = (oct_bench_rig){.b = b, .n_threads = n_threads};
    r->integer = oct_instruction_find(b->kernels, OCT_PROBE_INT);
    r->f32 = oct_instruction_find(b->kernels, OCT_PROBE_F32);
    if (oct_ranks_job())
        return OCT_OK;
    oct_session_params p = {.n_ctx = 1, .chunk = 1, .n_threads = n_threads, .isa = b->kernels};
    oct_cli_session o = {.model = b->path, .weights = b->weights};
    OCT_TRY(oct_ranks_session_new(&o, b->model, &p, &r->session, err));
    /* Once over all weights, so that no probe pays for mapping a page or for the disk. */
    do
        (void)read_rate(r);
    while (r->next > 0);
    choose_ahead(r);
    return OCT_OK;
}

void oct_bench_rig_free(oct_bench_rig *r)
{
    oct_session_free(r->session);
    memset(r, 0, sizeof *r);
}

/* ---- numbers --------------------------------------------------------------------------------- */

json_t *oct_bench_spread(double *v, int64_t n)
{
    qsort(v, (size_t)n, sizeof *v, ascending);
    double median = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
    return json_pack("{s:f, s:f, s:f}", "median", median, "min", v[0], "max", v[n - 1]);
}

static double median_of(const json_t *spread)
{
    return json_number_value(json_object_get(spread, "median"));
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

double oct_bench_passes(const oct_bench_rig *r)
{
    oct_instruction i;
    return r->b->act == 0 && oct_instruction_get(r->integer, &i) ? i.passes16 : 1;
}

json_t *oct_bench_row(const oct_bench_rig *r, const char *test, int64_t tokens, int64_t depth,
                      int64_t batch, int64_t chunk)
{
    static const char *const kv[] = {"f16", "bf16", "f32"}, *const act[] = {"i16", "i8"};
    return json_pack("{s:s, s:i, s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:s}", "test", test, "threads",
                     r->n_threads, "tokens", (json_int_t)tokens, "depth", (json_int_t)depth,
                     "batch", (json_int_t)batch, "chunk", (json_int_t)chunk, "kv", kv[r->b->kv],
                     "act", act[r->b->act], "kernels", r->b->kernels, "weights",
                     oct_ranks_placement() ? "owned" : "mapped");
}

/* ---- probe, run, probe ----------------------------------------------------------------------- */

typedef struct samples {
    double rate[OCT_BENCH_REPEATS], bytes[OCT_BENCH_REPEATS], read[OCT_BENCH_REPEATS];
    double of_read[OCT_BENCH_REPEATS], ops[OCT_BENCH_REPEATS], peak[OCT_BENCH_REPEATS];
    double of_peak[OCT_BENCH_REPEATS], sync[OCT_BENCH_REPEATS], bound[OCT_BENCH_REPEATS],
        of_bound[OCT_BENCH_REPEATS];
} samples;

static void put(json_t *row, const char *key, double *v, int64_t n)
{
    json_object_set_new(row, key, oct_bench_spread(v, n));
}

/* Without a probe nothing is known, so that arithmetic takes no time in what is predicted. */
static double peak_of(const oct_bench_rig *r, int arithmetic)
{
    return arithmetic < 0 ? INFINITY : oct_measure_peak(r->session, arithmetic, PEAK_SECONDS);
}

oct_status oct_bench_measure(oct_bench_rig *r, int arithmetic, oct_bench_fn *fn, void *ctx,
                             json_t *row, oct_error *err)
{
    samples s;
    oct_bench_run run = {0};
    int64_t n = r->b->repeats;
    OCT_TRY(fn(ctx, &run, err));
    double read0 = read_rate(r), peak0 = peak_of(r, arithmetic);
    for (int64_t i = 0; i < n; i++) {
        OCT_TRY(fn(ctx, &run, err));
        double read1 = read_rate(r), peak1 = peak_of(r, arithmetic);
        double read = (read0 + read1) / 2, peak = (peak0 + peak1) / 2;
        double bound = larger(run.bytes / read, run.ops / peak); /* seconds */
        s.rate[i] = run.tokens / run.seconds;
        s.bytes[i] = run.bytes / run.seconds * 1e-9;
        s.read[i] = read * 1e-9;
        s.of_read[i] = run.bytes / run.seconds / read;
        s.ops[i] = run.ops / run.seconds * 1e-12;
        s.peak[i] = peak * 1e-12;
        s.of_peak[i] = run.ops / run.seconds / peak;
        s.sync[i] = run.waited / run.seconds;
        s.bound[i] = run.tokens / bound;
        s.of_bound[i] = bound / run.seconds;
        read0 = read1;
        peak0 = peak1;
    }
    json_object_set_new(row, "gb_per_token", json_real(run.bytes / run.tokens * 1e-9));
    put(row, "tokens_per_second", s.rate, n);
    put(row, "gb_per_second", s.bytes, n);
    put(row, "read_probe", s.read, n);
    put(row, "of_read_probe", s.of_read, n);
    put(row, "tops", s.ops, n);
    if (arithmetic >= 0) {
        put(row, "peak_probe", s.peak, n);
        put(row, "of_peak_probe", s.of_peak, n);
    }
    put(row, "predicted", s.bound, n);
    put(row, "of_predicted", s.of_bound, n);
    put(row, "sync", s.sync, n);
    return OCT_OK;
}

/* ---- GPUs ------------------------------------------------------------------------------------ */

json_t *oct_bench_gpus(void)
{
    json_t *list = json_array();
    const oct_gpus *g = oct_cli_gpus();
    for (int i = 0; g && i < g->n; i++) {
        oct_error err = {0};
        oct_gpu_speed speed;
        if (g->gpu[i].budget == 0)
            continue;
        if (oct_gpu_measure(&g->gpu[i], &speed, &err) != OCT_OK) {
            oct_cli_warning("%s", err.text);
            continue;
        }
        char shape[64];
        snprintf(shape, sizeof shape, "%lld x %lld, %lld rows", (long long)speed.n_out,
                 (long long)speed.n_in, (long long)speed.n_rows);
        json_array_append_new(
            list,
            json_pack("{s:i, s:s, s:f, s:f, s:f, s:s, s:f, s:f, s:f}", "gpu", g->gpu[i].index,
                      "name", g->gpu[i].name, "read_gb_per_second", speed.read * 1e-9, "int8_tops",
                      speed.peak * 1e-12, "link_gb_per_second", speed.link * 1e-9, "matrix", shape,
                      "gemv_gb_per_second", speed.gemv * 1e-9, "gemm_int8_tops", speed.gemm * 1e-12,
                      "cublas_int8_tops", speed.blas * 1e-12));
    }
    return list;
}

/* ---- the probes as a table ------------------------------------------------------------------- */

json_t *oct_bench_probes(oct_bench_rig *r, int64_t repeats)
{
    double v[OCT_BENCH_REPEATS];
    for (int64_t i = 0; i < repeats; i++)
        v[i] = read_rate(r) * 1e-9;
    json_t *list = json_array(), *read = oct_bench_spread(v, repeats);
    oct_instruction p;
    for (int i = 0; oct_instruction_get(i, &p); i++) {
        for (int64_t k = 0; k < repeats; k++)
            v[k] = oct_measure_peak(r->session, i, PEAK_SECONDS) * 1e-12;
        json_t *spread = oct_bench_spread(v, repeats);
        json_array_append_new(list, json_pack("{s:s, s:s, s:o}", "instruction", p.name, "kernels",
                                              p.isa, "tops", spread));
    }
    double barrier = oct_measure_barrier(r->session, 20000),
           wake = oct_measure_wake(r->session, 21);
    return json_pack("{s:i, s:f, s:I, s:o, s:o, s:f, s:f}", "threads", r->n_threads,
                     "gb_per_second", median_of(read), "ahead", (json_int_t)r->ahead, "read", read,
                     "arithmetic", list, "barrier_us", barrier * 1e6, "wake_us", wake * 1e6);
}
