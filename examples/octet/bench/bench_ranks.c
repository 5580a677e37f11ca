/* bench_ranks.c: a model over the ranks of a job, and their exchange alone. */
#include "bench.h"
#include "cli_session.h"
#include "ranks.h"

enum { FOLDS = 100, WARM_UP = 10, GROK_D_MODEL = 6144 };

static const char *layout_name(void)
{
    return oct_shard_name(oct_ranks_layout(OCT_SHARD_SLICE));
}

typedef struct samples {
    double rate[OCT_BENCH_REPEATS], compute[OCT_BENCH_REPEATS], exchange[OCT_BENCH_REPEATS],
        wait[OCT_BENCH_REPEATS], predicted[OCT_BENCH_REPEATS], of_predicted[OCT_BENCH_REPEATS];
} samples;

static void put(json_t *row, const char *key, double *v, int64_t n)
{
    json_object_set_new(row, key, oct_bench_spread(v, n));
}

oct_status oct_bench_measure_ranks(oct_bench_rig *r, oct_session *session, double predicted,
                                   oct_bench_fn *fn, void *ctx, json_t *row, oct_error *err)
{
    samples s;
    oct_bench_run run = {0};
    int64_t n = r->b->repeats;
    OCT_TRY(fn(ctx, &run, err));
    for (int64_t i = 0; i < n; i++) {
        OCT_TRY(fn(ctx, &run, err));
        s.rate[i] = run.tokens / run.seconds;
        s.compute[i] = 1e3 * run.ranks.compute / run.tokens;
        s.exchange[i] = 1e3 * run.ranks.exchange / run.tokens;
        s.wait[i] = 1e3 * run.ranks.wait / run.tokens;
        s.predicted[i] = 1 / predicted;
        s.of_predicted[i] = s.rate[i] * predicted;
    }
    json_object_set_new(row, "kernels", json_string(oct_session_isa(session)));
    json_object_set_new(row, "ranks", json_integer(oct_job_size(oct_ranks_job())));
    json_object_set_new(row, "shard", json_string(layout_name()));
    json_object_set_new(row, "gb_per_token", json_real(run.bytes / run.tokens * 1e-9));
    put(row, "tokens_per_second", s.rate, n);
    put(row, "compute_ms", s.compute, n);
    put(row, "exchange_ms", s.exchange, n);
    put(row, "wait_ms", s.wait, n);
    if (predicted > 0) {
        put(row, "predicted", s.predicted, n);
        put(row, "of_predicted", s.of_predicted, n);
    }
    return OCT_OK;
}

static oct_status time_folds(const oct_bench *b, int64_t n, oct_error *err)
{
    double seconds[WARM_UP + FOLDS];
    oct_comm_stats one;
    OCT_TRY(oct_job_time_folds(oct_ranks_job(), n, WARM_UP + FOLDS, seconds, &one, err));
    for (int i = 0; i < WARM_UP + FOLDS; i++)
        seconds[i] *= 1e6;
    return json_array_append_new(
               b->rows, json_pack("{s:s, s:i, s:I, s:o, s:I, s:I}", "test", "fold", "ranks",
                                  oct_job_size(oct_ranks_job()), "floats", (json_int_t)n, "us",
                                  oct_bench_spread(seconds + WARM_UP, FOLDS), "bytes_sent",
                                  (json_int_t)one.bytes_sent, "rounds", (json_int_t)one.rounds))
               ? oct_fail(err, OCT_ERR_MEMORY, "bench: no memory for a result")
               : OCT_OK;
}

oct_status oct_bench_exchange(const oct_bench *b, oct_error *err)
{
    const oct_model_info *i = oct_model_get_info(b->model);
    OCT_TRY(time_folds(b, i->d_model, err));
    if (i->n_experts_used > 1)
        OCT_TRY(time_folds(b, i->d_model * i->n_experts_used, err));
    if (i->d_model == GROK_D_MODEL)
        return OCT_OK;
    OCT_TRY(time_folds(b, GROK_D_MODEL, err));
    return time_folds(b, 2 * GROK_D_MODEL, err);
}

json_t *oct_bench_pace(const oct_bench *b)
{
    const oct_rank_pace *p = oct_job_pace(oct_ranks_job());
    const int64_t d_model = oct_model_get_info(b->model)->d_model;
    char ranks[80], read[96], sum[96];
    snprintf(ranks, sizeof ranks, "%d by %s", oct_job_size(oct_ranks_job()), layout_name());
    snprintf(read, sizeof read, "%.1f GB/s by the slowest rank, all at once", p->read * 1e-9);
    snprintf(sum, sizeof sum, "%.1f us, and %.2f us for each %lld floats", p->latency * 1e6,
             p->per_float * 1e6 * (double)d_model, (long long)d_model);
    return json_pack("{s:s, s:s, s:s}", "ranks", ranks, "memory read", read,
                     "sum over the ranks, nobody late", sum);
}
