/* eval.c: evaluating batches of tokens, on one process or on all ranks of a job. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "session_impl.h"
#include "machine.h"

static bool wanted(const oct_batch *b, int64_t i)
{
    return b->want ? b->want[i] != 0 : i == b->n - 1;
}

static oct_status check_token(const oct_session *s, const oct_batch *b, int64_t i, oct_error *err)
{
    const oct_grok_config *c = &s->model->config;
    if (b->token[i] < 0 || b->token[i] >= c->n_vocab)
        return oct_fail(err, OCT_ERR_ARG, "token %lld: id %d, expected 0..%lld", (long long)i,
                        b->token[i], (long long)c->n_vocab - 1);
    if (b->token[i] == c->pad_id)
        return oct_fail(err, OCT_ERR_ARG,
                        "token %lld: id %d is the pad id, which has no meaning in an input",
                        (long long)i, b->token[i]);
    int32_t seq = b->seq ? b->seq[i] : 0;
    if (seq < 0 || seq >= s->p.n_seqs)
        return oct_fail(err, OCT_ERR_ARG, "token %lld: sequence %d, expected 0..%lld", (long long)i,
                        seq, (long long)s->p.n_seqs - 1);
    return OCT_OK;
}

/* Everything that can be wrong with a batch, before anything is computed. */
static oct_status check_batch(oct_session *s, const oct_batch *b, const float *logits,
                              oct_error *err)
{
    if (b->n < 1)
        return oct_fail(err, OCT_ERR_ARG, "batch: %lld tokens, expected at least 1",
                        (long long)b->n);
    bool any_wanted = false;
    for (int64_t i = 0; i < b->n; i++) {
        OCT_TRY(check_token(s, b, i, err));
        any_wanted |= wanted(b, i);
    }
    if (any_wanted && !logits)
        return oct_fail(err, OCT_ERR_ARG, "batch: logits are wanted but there is no room for them");
    return oct_kv_pages_check(&s->pages, b->seq, b->n, err);
}

static oct_status check_logits(const float *logits, int64_t n_out, int64_t n_vocab, oct_error *err)
{
    for (int64_t i = 0; i < n_out * n_vocab; i++)
        if (!isfinite(logits[i]))
            return oct_fail(err, OCT_ERR_NUMERIC,
                            "logits: %g for id %lld, expected a finite number", (double)logits[i],
                            (long long)(i % n_vocab));
    return OCT_OK;
}

/* All ranks must have routed the chunk's tokens alike: else what they added up is no answer.
 * Behind the hashes stands whether rank 0's logits are numbers, so that all keep or forget the
 * chunk. */
static oct_status compare_routes(oct_session *s, oct_status logits, oct_error *err)
{
    int64_t n_layers = s->model->config.n_layers, words = n_layers + 1;
    uint64_t *mine = s->route_hash, *all = mine + words;
    if (s->comm->size == 1)
        return logits;
    mine[n_layers] = logits == OCT_OK;
    OCT_TRY(s->comm->gather(s->comm, mine, oct_routes_bytes(s->model), all, err));
    for (int64_t i = 0; i < n_layers; i++)
        for (int r = 1; r < s->comm->size; r++)
            if (all[r * words + i] != all[i]) {
                s->comm->broken = true;
                return oct_fail(err, OCT_ERR_COMM,
                                "layer %lld: rank %d chose other experts than rank 0", (long long)i,
                                r);
            }
    return all[n_layers] ? OCT_OK : oct_fail(err, OCT_ERR_NUMERIC, "rank 0: logits are no numbers");
}

/* Evaluates the chunk that s->order holds. logits: rank 0's. Positions advance on success only. */
static oct_status eval_rows(oct_session *s, float *logits, oct_error *err)
{
    const oct_rank_order *o = s->order;
    const int32_t *token = o->rows, *seq = token + o->a, *out_row = seq + o->a;
    int64_t n_vocab = s->model->config.n_vocab;
    oct_phase_time *phase = &s->phase[s->counts_as];
    const oct_comm_stats talked = s->comm->stats;
    double start = oct_seconds();
    oct_kv_pages_begin(&s->pages, seq, token, o->a, s->pos);
    oct_run run = {.n_rows = o->a,
                   .token = token,
                   .seq = seq,
                   .pos = s->pos,
                   .n_out = o->b,
                   .out_row = out_row,
                   .logits = logits,
                   .logits_stride = n_vocab,
                   .kv = s->kv,
                   .cancel = s->cancel,
                   .tap = s->tap};
    const oct_tally tally = {.layer_time = s->comm->size > 1 ? phase->layer : NULL,
                             .expert_rows = s->expert_rows,
                             .route_hash = s->route_hash};
    memset(s->route_hash, 0, (size_t)s->model->config.n_layers * sizeof *s->route_hash);
    oct_status status = oct_runner_run(&s->runner, &run, &tally, err);
    if (status == OCT_OK)
        status = compare_routes(
            s, s->comm->rank == 0 ? check_logits(logits, o->b, n_vocab, err) : OCT_OK, err);
    oct_kv_pages_end(&s->pages, status == OCT_OK);
    if (status != OCT_OK)
        return status;
    phase->tokens += o->a;
    phase->all.seconds += oct_seconds() - start;
    oct_comm_stats_add(&phase->all.comm, &talked, &s->comm->stats);
    s->stats.tokens += (uint64_t)o->a;
    s->stats.bytes_read += run.bytes_read + run.kv_read;
    s->stats.kv_read += run.kv_read;
    s->stats.streamed += run.streamed;
    return OCT_OK;
}

/* ---- ranks: rank 0 tells the others what to do, chunk by chunk ---- */

oct_status oct_eval_order(oct_session *s, int64_t what, int64_t a, int64_t b, int64_t n_rows,
                          oct_error *err)
{
    oct_rank_order *o = s->order;
    o->what = what;
    o->a = a;
    o->b = b;
    size_t bytes = oct_order_bytes(n_rows);
    if (s->comm->broken)
        return oct_fail(err, OCT_ERR_COMM, "another rank could not be reached");
    return s->comm->size > 1 ? s->comm->announce(s->comm, o, &bytes, err) : OCT_OK;
}

void oct_eval_end(oct_session *s)
{
    oct_error err = {0};
    if (s->comm && s->comm->rank == 0 && s->ready && !s->comm->broken)
        s->comm_status = oct_eval_order(s, OCT_ORDER_END, 0, 0, 0, &err);
}

static oct_status gather_compute(oct_session *s, double *all, oct_error *err)
{
    double mine[OCT_PHASES];
    for (int i = 0; i < OCT_PHASES; i++)
        mine[i] = s->phase[i].all.seconds - s->phase[i].all.comm.seconds;
    return s->comm->gather(s->comm, mine, sizeof mine, all, err);
}

oct_status oct_session_gather_compute(oct_session *s, double *all, oct_error *err)
{
    OCT_TRY(oct_eval_order(s, OCT_ORDER_REPORT, 0, 0, 0, err));
    return gather_compute(s, all, err);
}

static oct_status obey_report(oct_session *s, oct_error *err)
{
    double *all = malloc((size_t)s->comm->size * OCT_PHASES * sizeof *all);
    if (!all)
        return oct_fail(err, OCT_ERR_MEMORY, "rank %d: out of memory for a report", s->comm->rank);
    oct_status status = gather_compute(s, all, err);
    free(all);
    return status;
}

/* An order that does not fit this session is a failure of the job, never an index out of range. */
static bool order_fits(oct_session *s, int64_t n_rows)
{
    const oct_rank_order *o = s->order;
    if (o->a < 1 || o->a > s->p.chunk || o->b < 0 || o->b > o->a ||
        n_rows != oct_order_eval_rows(o->a, o->b))
        return false;
    const int32_t *token = o->rows, *seq = token + o->a, *out_row = seq + o->a;
    for (int64_t i = 0; i < o->a; i++)
        if (token[i] < 0 || token[i] >= s->model->config.n_vocab || seq[i] < 0 ||
            seq[i] >= s->p.n_seqs)
            return false;
    for (int64_t k = 0; k < o->b; k++)
        if (out_row[k] < 0 || out_row[k] >= o->a)
            return false;
    return oct_kv_pages_check(&s->pages, seq, o->a, NULL) == OCT_OK;
}

static oct_status obey_eval(oct_session *s, int64_t n_rows, oct_error *err)
{
    if (!order_fits(s, n_rows))
        return oct_fail(err, OCT_ERR_ARG, "rank %d: rank 0 sent tokens that do not fit",
                        s->comm->rank);
    oct_error why = {0};
    s->counts_as = (oct_phase)(s->order->what - OCT_ORDER_EVAL);
    oct_status status = eval_rows(s, NULL, &why);
    /* in these all ranks agree, and rank 0 tells its caller */
    if (status == OCT_ERR_CANCELLED || status == OCT_ERR_NUMERIC)
        status = OCT_OK;
    return status == OCT_OK ? OCT_OK : oct_fail(err, status, "%s", why.text);
}

oct_status oct_session_serve(oct_session *s, oct_error *err)
{
    oct_status status = OCT_OK;
    oct_rank_order *o = s->order;
    if (s->comm->rank == 0)
        return oct_fail(err, OCT_ERR_ARG, "rank 0 gives orders, it does not take them");
    for (o->what = 0; status == OCT_OK && o->what != OCT_ORDER_END;) {
        size_t bytes = oct_order_bytes(oct_order_rows(s));
        status = s->comm->announce(s->comm, o, &bytes, err);
        int64_t n_rows = ((int64_t)bytes - (int64_t)sizeof *o) / (int64_t)sizeof *o->rows;
        if (status == OCT_OK && o->what >= OCT_ORDER_EVAL && o->what < OCT_ORDER_TRUNCATE)
            status = obey_eval(s, n_rows, err);
        else if (status == OCT_OK && o->what == OCT_ORDER_REPORT)
            status = obey_report(s, err);
        else if (status == OCT_OK)
            status = oct_session_obey_kv(s, n_rows, err);
    }
    if (status != OCT_OK)
        s->comm->broken = true; /* rank 0 goes on, and would wait for this one */
    return status;
}

/* ---- batches ---- */

/* Evaluates tokens first..first+n-1 of the batch; n <= chunk. */
static oct_status eval_chunk(oct_session *s, const oct_batch *b, int64_t first, int64_t n,
                             float *logits, int64_t *n_out, oct_error *err)
{
    int32_t *token = s->order->rows, *seq = token + n, *out_row = seq + n;
    *n_out = 0;
    for (int64_t i = 0; i < n; i++) {
        token[i] = b->token[first + i];
        seq[i] = b->seq ? b->seq[first + i] : 0;
        if (wanted(b, first + i))
            out_row[(*n_out)++] = (int32_t)i;
    }
    if (oct_cancelled(s->cancel))
        return oct_fail(err, OCT_ERR_CANCELLED, "evaluation cancelled");
    OCT_TRY(oct_eval_order(s, OCT_ORDER_EVAL + (int64_t)s->counts_as, n, *n_out,
                           oct_order_eval_rows(n, *n_out), err));
    return eval_rows(s, logits, err);
}

oct_status oct_eval(oct_session *s, const oct_batch *b, float *logits, oct_error *err)
{
    if (s->comm_status != OCT_OK || s->comm->broken)
        return oct_fail(err, OCT_ERR_COMM, "another rank could not be reached");
    if (s->process != getpid())
        return oct_fail(err, OCT_ERR_ARG,
                        "this session's threads are those of process %ld, which this one (%ld) has "
                        "forked off from: make a session here",
                        (long)s->process, (long)getpid());
    OCT_TRY(check_batch(s, b, logits, err));
    double start = oct_seconds();
    oct_status status = OCT_OK;
    for (int64_t first = 0; first < b->n && status == OCT_OK; first += s->p.chunk) {
        int64_t n = b->n - first < s->p.chunk ? b->n - first : s->p.chunk, n_out;
        status = eval_chunk(s, b, first, n, logits, &n_out, err);
        if (logits)
            logits += n_out * s->model->config.n_vocab;
    }
    double seconds = oct_seconds() - start;
    s->stats.seconds += seconds;
    if (seconds > s->stats.max_eval_seconds)
        s->stats.max_eval_seconds = seconds;
    return status;
}
