/* bench_run.c: prompts and generated tokens through the public interface, timed. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cli_session.h"
#include "progress.h"
#include "ranks.h"

/* A session with everything it needs, at a depth of context that each repetition returns to. */
typedef struct run_state {
    oct_bench_rig *rig;
    oct_session *session;
    bool decoding;
    int64_t batch, depth;  /* sequences; positions held before */
    int64_t n, n_timed;    /* tokens of a repetition */
    int32_t *tokens, *seq; /* random ids [room]; 0, 1, ... [batch] */
    uint8_t *want;         /* ones [batch] */
    float *logits;         /* [batch][n_vocab] */
    int64_t room;
} run_state;

static uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void random_tokens(run_state *s, uint64_t *state)
{
    const oct_model_info *info = oct_model_get_info(s->rig->b->model);
    for (int64_t i = 0; i < s->room;) {
        int32_t id = (int32_t)(random_bits(state) % (uint64_t)info->n_vocab);
        if (id != info->pad_id)
            s->tokens[i++] = id;
    }
}

/* Fills every sequence up to the depth. */
static oct_status fill(run_state *s, uint64_t *state, oct_error *err)
{
    oct_progress progress;
    uint64_t total = (uint64_t)(s->batch * s->depth), done = 0;
    oct_progress_start_tokens(&progress, "filling the context", total);
    oct_status status = OCT_OK;
    for (int64_t q = 0; q < s->batch && status == OCT_OK; q++) {
        for (int64_t i = 0; i < s->room; i++)
            s->seq[i] = (int32_t)q;
        for (int64_t at = 0; at < s->depth && status == OCT_OK;) {
            int64_t n = s->depth - at < s->room ? s->depth - at : s->room;
            random_tokens(s, state);
            memset(s->want, 0, (size_t)s->room);
            oct_batch b = {n, s->tokens, s->seq, s->want};
            status = oct_eval(s->session, &b, NULL, err);
            at += n;
            oct_progress_update(&progress, done += (uint64_t)n);
        }
    }
    oct_progress_end(&progress, status == OCT_OK);
    return status;
}

static void free_state(run_state *s)
{
    oct_session_free(s->session);
    free(s->tokens);
    free(s->seq);
    free(s->want);
    free(s->logits);
}

static oct_status start(run_state *s, oct_error *err)
{
    const oct_bench *b = s->rig->b;
    uint64_t state = b->seed;
    oct_session_params p = {.n_ctx = s->depth + s->n,
                            .n_seqs = s->batch,
                            .chunk = b->chunk,
                            .n_threads = s->rig->n_threads,
                            .kv = (oct_kv_type)b->kv,
                            .act = (oct_act)b->act,
                            .isa = b->kernels,
                            .comm = oct_job_comm(oct_ranks_job()),
                            .gpus = oct_cli_gpus(),
                            .no_streaming = b->gpu_stream == 1,
                            .cancel = oct_cli_cancel_flag()};
    const oct_cli_session o = {
        .model = b->path, .shard = b->shard, .replicate_attention = b->replicate_attention};
    size_t vocab = (size_t)oct_model_get_info(b->model)->n_vocab;
    s->room = s->n > b->chunk ? s->n : b->chunk;
    s->room = s->room > s->batch ? s->room : s->batch;
    s->tokens = malloc((size_t)s->room * sizeof *s->tokens);
    s->seq = malloc((size_t)s->room * sizeof *s->seq);
    s->want = malloc((size_t)s->room);
    s->logits = malloc((size_t)s->batch * vocab * sizeof *s->logits);
    if (!s->tokens || !s->seq || !s->want || !s->logits)
        return oct_fail(err, OCT_ERR_MEMORY, "bench: no memory for %lld tokens",
                        (long long)s->room);
    OCT_TRY(p.comm ? oct_ranks_session_new(&o, b->model, &p, &s->session, err)
                   : oct_session_new(b->model, &p, &s->session, err));
    OCT_TRY(fill(s, &state, err));
    random_tokens(s, &state);
    for (int64_t q = 0; q < s->batch; q++)
        s->seq[q] = (int32_t)q;
    memset(s->want, 1, (size_t)s->room);
    return OCT_OK;
}

static void divide(const oct_comm_stats *from, oct_bench_run *run)
{
    const oct_comm_stats to = oct_job_stats(oct_ranks_job());
    run->ranks = oct_job_divide(oct_ranks_job(), run->seconds, from, &to);
}

/* ---- prompts --------------------------------------------------------------------------------- */

static oct_status prefill_once(void *ctx, oct_bench_run *run, oct_error *err)
{
    run_state *s = ctx;
    const oct_bench *b = s->rig->b;
    oct_session_stats before, after;
    oct_batch batch = {s->n, s->tokens, NULL, NULL};
    oct_session_truncate(s->session, 0, s->depth);
    oct_session_get_stats(s->session, &before);
    const oct_comm_stats talked = oct_job_stats(oct_ranks_job());
    double waited = oct_measure_waited(s->session), start = oct_seconds();
    OCT_TRY(oct_eval(s->session, &batch, s->logits, err));
    run->seconds = oct_seconds() - start;
    divide(&talked, run);
    run->waited = oct_measure_waited(s->session) - waited;
    oct_session_get_stats(s->session, &after);
    double n = (double)s->n;
    run->tokens = n;
    /* Keys and values once a layer, however often the kernels come back to them. */
    run->bytes = (double)(after.bytes_read - after.kv_read - before.bytes_read + before.kv_read) +
                 (double)oct_measure_kv_bytes(s->session) * (double)(s->depth + s->n);
    run->ops = oct_predict_ops(b->model, n, 1) * oct_bench_passes(s->rig);
    return OCT_OK;
}

/* Seconds per token of ranks that decode one sequence; 0: there is no prediction. */
static double predict(const run_state *s)
{
    int64_t depth = s->depth + s->n / 2;
    return s->batch == 1 && s->decoding ? oct_job_predict(oct_ranks_job(), s->rig->b->model, depth,
                                                          (oct_kv_type)s->rig->b->kv)
                                        : 0;
}

static oct_status measure(run_state *s, const char *test, oct_bench_fn *fn, oct_error *err)
{
    json_t *row = oct_bench_row(s->rig, test, s->n_timed, s->depth, s->batch, s->rig->b->chunk);
    oct_status status = start(s, err);
    if (status == OCT_OK && oct_ranks_job())
        status = oct_bench_measure_ranks(s->rig, s->session, predict(s), fn, s, row, err);
    else if (status == OCT_OK)
        status = oct_bench_measure(s->rig, s->rig->integer, fn, s, row, err);
    if (status == OCT_OK)
        json_array_append(s->rig->b->rows, row);
    json_decref(row);
    free_state(s);
    return status;
}

oct_status oct_bench_prefill(oct_bench_rig *r, int64_t n, int64_t depth, oct_error *err)
{
    run_state s = {.rig = r, .batch = 1, .depth = depth, .n = n, .n_timed = n};
    return measure(&s, "prefill", prefill_once, err);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* The first token after a change of work is not timed. */
static oct_status decode_once(void *ctx, oct_bench_run *run, oct_error *err)
{
    run_state *s = ctx;
    const oct_bench *b = s->rig->b;
    oct_session_stats before = {0}, after;
    oct_comm_stats talked = {0};
    double start = 0, waited = 0;
    for (int64_t q = 0; q < s->batch; q++)
        oct_session_truncate(s->session, (int32_t)q, s->depth);
    for (int64_t i = 0; i < s->n; i++) {
        if (i == 1) {
            oct_session_get_stats(s->session, &before);
            talked = oct_job_stats(oct_ranks_job());
            waited = oct_measure_waited(s->session);
            start = oct_seconds();
        }
        oct_batch batch = {s->batch, s->tokens + i * s->batch % (s->room - s->batch + 1), s->seq,
                           s->want};
        OCT_TRY(oct_eval(s->session, &batch, s->logits, err));
    }
    run->seconds = oct_seconds() - start;
    divide(&talked, run);
    run->waited = oct_measure_waited(s->session) - waited;
    oct_session_get_stats(s->session, &after);
    run->tokens = (double)(s->n_timed * s->batch);
    run->bytes = (double)(after.bytes_read - before.bytes_read);
    run->ops = oct_predict_ops(b->model, run->tokens, run->tokens) * oct_bench_passes(s->rig);
    return OCT_OK;
}

oct_status oct_bench_decode(oct_bench_rig *r, int64_t batch, int64_t depth, oct_error *err)
{
    int64_t n = r->b->n_decode;
    run_state s = {
        .rig = r, .decoding = true, .batch = batch, .depth = depth, .n = n + 1, .n_timed = n};
    return measure(&s, "decode", decode_once, err);
}
