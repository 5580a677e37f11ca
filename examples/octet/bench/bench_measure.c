/* bench_measure.c: probes and measured work, interleaved. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "memory.h"
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

/* One span for each expert's panels of each matrix: they lie side by side. */
static oct_status find_spans(oct_bench_rig *r, oct_error *err)
{
    const oct_model *m = r->b->model;
    int64_t e = m->config.n_experts;
    r->n_spans = m->config.n_layers * 2 * e;
    r->spans = malloc((size_t)r->n_spans * sizeof *r->spans);
    if (!r->spans)
        return oct_fail(err, OCT_ERR_MEMORY, "bench: no memory for %lld spans",
                        (long long)r->n_spans);
    for (int64_t i = 0; i < r->n_spans; i++) {
        const oct_grok_layer *w = &m->layers[i / (2 * e)];
        const oct_weight *t = i / e % 2 ? &w->down : &w->gate_up;
        size_t bytes = t->layout.unit_stride * (size_t)t->layout.n_slices;
        r->spans[i] = (oct_probe_span){(const char *)t->data + (size_t)(i % e) * bytes, bytes};
    }
    return OCT_OK;
}

double oct_bench_read(oct_bench_rig *r)
{
    int64_t n = 0;
    size_t bytes = 0, enough = (size_t)READ_BYTES * (size_t)((r->n_threads + 7) / 8);
    if (r->next >= r->n_spans)
        r->next = 0;
    for (; r->next + n < r->n_spans && bytes < enough; n++)
        bytes += r->spans[r->next + n].bytes;
    double rate = oct_probe_read(r->team, r->b->kernels->isa, r->ahead, r->spans + r->next, n);
    r->next += n;
    return rate;
}

/* The distance that reads fastest, by the median of five rounds over all. */
static void choose_ahead(oct_bench_rig *r)
{
    enum { N = sizeof distances / sizeof *distances, ROUNDS = 5 };
    double rate[N][ROUNDS], best = 0;
    for (int k = 0; k < ROUNDS; k++) {
        for (int i = 0; i < N; i++) {
            r->ahead = distances[i];
            rate[i][k] = oct_bench_read(r);
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
    oct_isa isa = b->kernels->isa;
    oct_comm *job = oct_ranks_comm();
    *r = (oct_bench_rig){.b = b, .comm = job ? job : oct_comm_local(), .n_threads = n_threads};
    r->integer = oct_probe_find(OCT_PROBE_INT, isa);
    r->f32 = oct_probe_find(OCT_PROBE_F32, isa);
    if (job)
        return OCT_OK;
    oct_session_params p = {
        .n_ctx = 1, .chunk = 1, .n_threads = n_threads, .isa = b->kernels->name};
    oct_cli_session o = {.model = b->path, .weights = b->weights};
    OCT_TRY(oct_ranks_session_new(&o, b->model, &p, &r->session, err));
    OCT_TRY(find_spans(r, err));
    oct_session_parts parts;
    oct_session_get_parts(r->session, &parts);
    r->team = ((oct_cpu *)(void *)parts.cpu)->team;
    /* Once over all weights, so that no probe pays for mapping a page or for the disk. */
    do
        (void)oct_bench_read(r);
    while (r->next < r->n_spans);
    choose_ahead(r);
    return OCT_OK;
}

void oct_bench_rig_free(oct_bench_rig *r)
{
    oct_session_free(r->session);
    free(r->spans);
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

double oct_bench_waited(oct_session *s)
{
    oct_session_parts parts;
    oct_session_get_parts(s, &parts);
    return oct_team_waited(((oct_cpu *)(void *)parts.cpu)->team);
}

double oct_bench_passes(const oct_bench_rig *r)
{
    return r->b->act == 0 ? r->integer->passes16 : 1;
}

json_t *oct_bench_row(const oct_bench_rig *r, const char *test, int64_t tokens, int64_t depth,
                      int64_t batch, int64_t chunk)
{
    static const char *const kv[] = {"f16", "bf16", "f32"}, *const act[] = {"i16", "i8"};
    return json_pack("{s:s, s:i, s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:s}", "test", test, "threads",
                     r->n_threads, "tokens", (json_int_t)tokens, "depth", (json_int_t)depth,
                     "batch", (json_int_t)batch, "chunk", (json_int_t)chunk, "kv", kv[r->b->kv],
                     "act", act[r->b->act], "kernels", r->b->kernels->name, "weights",
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

oct_status oct_bench_measure(oct_bench_rig *r, const oct_probe *arithmetic, oct_bench_fn *fn,
                             void *ctx, json_t *row, oct_error *err)
{
    samples s;
    oct_bench_run run = {0};
    int64_t n = r->b->repeats;
    OCT_TRY(fn(ctx, &run, err));
    double read0 = oct_bench_read(r), peak0 = oct_probe_peak(r->team, arithmetic, PEAK_SECONDS);
    for (int64_t i = 0; i < n; i++) {
        OCT_TRY(fn(ctx, &run, err));
        double read1 = oct_bench_read(r), peak1 = oct_probe_peak(r->team, arithmetic, PEAK_SECONDS);
        double read = (read0 + read1) / 2, peak = (peak0 + peak1) / 2;
        double least = larger(run.bytes / read, run.ops / peak); /* seconds */
        s.rate[i] = run.tokens / run.seconds;
        s.bytes[i] = run.bytes / run.seconds * 1e-9;
        s.read[i] = read * 1e-9;
        s.of_read[i] = run.bytes / run.seconds / read;
        s.ops[i] = run.ops / run.seconds * 1e-12;
        s.peak[i] = peak * 1e-12;
        s.of_peak[i] = run.ops / run.seconds / peak;
        s.sync[i] = run.waited / run.seconds;
        s.bound[i] = run.tokens / least;
        s.of_bound[i] = least / run.seconds;
        read0 = read1;
        peak0 = peak1;
    }
    json_object_set_new(row, "gb_per_token", json_real(run.bytes / run.tokens * 1e-9));
    put(row, "tokens_per_second", s.rate, n);
    put(row, "gb_per_second", s.bytes, n);
    put(row, "read_probe", s.read, n);
    put(row, "of_read_probe", s.of_read, n);
    put(row, "tops", s.ops, n);
    put(row, "peak_probe", s.peak, n);
    put(row, "of_peak_probe", s.of_peak, n);
    put(row, "predicted", s.bound, n);
    put(row, "of_predicted", s.of_bound, n);
    put(row, "sync", s.sync, n);
    return OCT_OK;
}

/* ---- the probes as a table ------------------------------------------------------------------- */

json_t *oct_bench_probes(oct_bench_rig *r, int64_t repeats)
{
    double v[OCT_BENCH_REPEATS];
    for (int64_t i = 0; i < repeats; i++)
        v[i] = oct_bench_read(r) * 1e-9;
    json_t *list = json_array(), *read = oct_bench_spread(v, repeats);
    for (int i = 0; i < oct_n_probes; i++) {
        const oct_probe *p = &oct_probes[i];
        if (oct_probe_find(p->kind, p->isa) != p)
            continue;
        for (int64_t k = 0; k < repeats; k++)
            v[k] = oct_probe_peak(r->team, p, PEAK_SECONDS) * 1e-12;
        json_t *spread = oct_bench_spread(v, repeats);
        json_array_append_new(list, json_pack("{s:s, s:s, s:o}", "instruction", p->name, "kernels",
                                              oct_kernel_rows[p->isa].name, "tops", spread));
    }
    r->barrier = oct_probe_barrier(r->team, 20000);
    r->wake = oct_probe_wake(r->team, 21);
    return json_pack("{s:i, s:f, s:I, s:o, s:o, s:f, s:f}", "threads", r->n_threads,
                     "gb_per_second", median_of(read), "ahead", (json_int_t)r->ahead, "read", read,
                     "arithmetic", list, "barrier_us", r->barrier * 1e6, "wake_us", r->wake * 1e6);
}
