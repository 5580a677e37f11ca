#include "generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <octet/job.h>
#include <octet/machine.h>

uint64_t oct_gen_bytes(int64_t n_vocab, int64_t n_seqs, int64_t chunk)
{
    uint64_t batch = (uint64_t)(chunk > n_seqs ? chunk : n_seqs);
    return (uint64_t)n_vocab * sizeof(float) * ((uint64_t)n_seqs + 2) +
           batch * (2 * sizeof(int32_t) + 1);
}

oct_status oct_gen_init(oct_gen *g, oct_error *err)
{
    size_t n_vocab = (size_t)oct_model_get_info(g->model)->n_vocab;
    size_t n_seqs = (size_t)g->n_seqs, batch = g->chunk > g->n_seqs ? (size_t)g->chunk : n_seqs;
    g->seqs = calloc(n_seqs, sizeof *g->seqs);
    g->logits = calloc(n_seqs, n_vocab * sizeof(float));
    g->scratch = calloc(n_vocab, 2 * sizeof(float));
    g->token = calloc(batch, sizeof *g->token);
    g->seq = calloc(batch, sizeof *g->seq);
    g->want = calloc(batch, 1);
    if (!g->seqs || !g->logits || !g->scratch || !g->token || !g->seq || !g->want)
        return oct_fail(err, OCT_ERR_MEMORY, "no memory for the logits of %zu sequences", n_seqs);
    for (size_t s = 0; s < n_seqs; s++)
        g->seqs[s].utf8.printable = g->printable;
    return OCT_OK;
}

void oct_gen_free(oct_gen *g)
{
    for (int64_t s = 0; g->seqs && s < g->n_seqs; s++)
        free(g->seqs[s].ids);
    free(g->seqs);
    free(g->logits);
    free(g->scratch);
    free(g->token);
    free(g->seq);
    free(g->want);
}

oct_status oct_gen_append(oct_gen *g, int64_t seq, const int32_t *ids, int64_t n, oct_error *err)
{
    oct_gen_seq *q = &g->seqs[seq];
    if (n > q->room - q->n) {
        int64_t room = 2 * (q->n + n) + 64;
        int32_t *more = realloc(q->ids, (size_t)room * sizeof *more);
        if (!more)
            return oct_fail(err, OCT_ERR_MEMORY, "no memory for a text of %lld tokens",
                            (long long)(q->n + n));
        q->ids = more;
        q->room = room;
    }
    memcpy(q->ids + q->n, ids, (size_t)n * sizeof *ids);
    q->n += n;
    return OCT_OK;
}

void oct_gen_reset(oct_gen *g, int64_t seq)
{
    oct_session_truncate(g->session, (int32_t)seq, 0);
    g->seqs[seq].n = 0;
    g->seqs[seq].utf8 = (oct_utf8){.printable = g->printable};
}

static int64_t waiting(const oct_gen *g, int64_t seq)
{
    return g->seqs[seq].n - oct_session_pos(g->session, (int32_t)seq);
}

/* Adds what happened in the session since `before`, and the wall time since `t`. */
static void account(oct_gen *g, oct_gen_work *w, const oct_session_stats *before, double t)
{
    oct_session_stats now;
    oct_session_get_stats(g->session, &now);
    w->tokens += (int64_t)(now.tokens - before->tokens);
    w->bytes_read += now.bytes_read - before->bytes_read;
    w->seconds += oct_seconds() - t;
}

/* Evaluates everything that waits, chunk by chunk, sequence after sequence; a chunk may hold the
 * end of one and the beginning of the next. The logits after a sequence's last token end up in its
 * row. */
static oct_status prefill(oct_gen *g, oct_error *err)
{
    int64_t n_vocab = oct_model_get_info(g->model)->n_vocab, total = 0, done = 0, rows = 0;
    for (int64_t s = 0; s < g->n_seqs; s++)
        total += waiting(g, s);
    int64_t s = 0, at = oct_session_pos(g->session, 0);
    if (g->progress)
        g->progress(g->ctx, 0, total);
    while (done < total) {
        oct_batch b = {0, g->token, g->seq, g->want};
        int64_t ends = 0;
        while (b.n < g->chunk && s < g->n_seqs) {
            oct_gen_seq *q = &g->seqs[s];
            bool last = at == q->n - 1;
            g->token[b.n] = q->ids[at++];
            g->seq[b.n] = (int32_t)s;
            g->want[b.n] = last;
            b.n++;
            if (last) {
                q->row = rows + ends++;
                if (++s < g->n_seqs)
                    at = oct_session_pos(g->session, (int32_t)s);
            }
        }
        OCT_TRY(oct_eval(g->session, &b, g->logits + rows * n_vocab, err));
        rows += ends;
        done += b.n;
        if (g->progress)
            g->progress(g->ctx, done, total);
    }
    return OCT_OK;
}

/* Passes a token's bytes on, as far as they make whole characters. */
static void say(oct_gen *g, int64_t s, int32_t id)
{
    enum { PART = 64 };
    char out[OCT_UTF8_ROOM(PART)];
    size_t n = 0;
    const char *bytes = oct_token_bytes(g->model, id, &n);
    for (size_t i = 0; bytes && i < n && !g->closed; i += PART) {
        size_t part = n - i < PART ? n - i : PART;
        size_t k = oct_utf8_feed(&g->seqs[s].utf8, bytes + i, part, out);
        if (k > 0 && !g->emit(g->ctx, s, out, k))
            g->closed = true;
    }
}

static void hush(oct_gen *g, int64_t s)
{
    char out[OCT_UTF8_ROOM(0)];
    size_t k = oct_utf8_end(&g->seqs[s].utf8, out);
    if (k > 0 && !g->closed && !g->emit(g->ctx, s, out, k))
        g->closed = true;
}

/* Draws the next token of a running sequence, or finds why it stops. A token that was drawn always
 * belongs to the text, even if nothing will be evaluated after it. */
static oct_status draw(oct_gen *g, int64_t s, oct_error *err)
{
    const oct_model_info *info = oct_model_get_info(g->model);
    oct_gen_seq *q = &g->seqs[s];
    float *logits = g->logits + q->row * info->n_vocab;
    if (g->n_max >= 0 && q->n_generated >= g->n_max) {
        q->stop = OCT_GEN_LENGTH;
        return OCT_OK;
    }
    if (g->ignore_eos && info->eos_id >= 0)
        logits[info->eos_id] = -INFINITY;
    if (g->ignore_eos && info->pad_id >= 0)
        logits[info->pad_id] = -INFINITY;
    int32_t id = oct_sample(&q->sampler, logits, info->n_vocab, g->scratch);
    if (id < 0)
        return oct_fail(err, OCT_ERR_NUMERIC,
                        "no token can be drawn: the logits hold NaN or "
                        "nothing but -Inf");
    if (id == info->eos_id || id == info->pad_id) {
        q->stop = OCT_GEN_END;
        return OCT_OK;
    }
    OCT_TRY(oct_gen_append(g, s, &id, 1, err));
    q->n_generated++;
    say(g, s, id);
    if (g->n_max >= 0 && q->n_generated >= g->n_max)
        q->stop = OCT_GEN_LENGTH;
    else if (q->n > g->n_ctx)
        q->stop = OCT_GEN_CONTEXT;
    return OCT_OK;
}

/* Draws a token for every running sequence and evaluates them together; *n_running: how many still
 * run. */
static oct_status step(oct_gen *g, int64_t *n_running, oct_error *err)
{
    oct_batch b = {0, g->token, g->seq, g->want};
    for (int64_t s = 0; s < g->n_seqs; s++) {
        oct_gen_seq *q = &g->seqs[s];
        if (q->stop != OCT_GEN_RUNNING)
            continue;
        OCT_TRY(draw(g, s, err));
        if (q->stop != OCT_GEN_RUNNING)
            hush(g, s);
    }
    for (int64_t s = 0; s < g->n_seqs; s++) {
        oct_gen_seq *q = &g->seqs[s];
        if (q->stop != OCT_GEN_RUNNING)
            continue;
        g->token[b.n] = q->ids[q->n - 1];
        g->seq[b.n] = (int32_t)s;
        g->want[b.n] = 1;
        q->row = b.n++;
    }
    *n_running = b.n;
    return b.n > 0 && !g->closed ? oct_eval(g->session, &b, g->logits, err) : OCT_OK;
}

oct_status oct_gen_run(oct_gen *g, oct_error *err)
{
    oct_session_stats before;
    oct_session_get_stats(g->session, &before);
    double t = oct_seconds();
    for (int64_t s = 0; s < g->n_seqs; s++) {
        g->seqs[s].n_generated = 0;
        g->seqs[s].stop = OCT_GEN_RUNNING;
    }
    oct_session_count_as(g->session, OCT_PHASE_PROMPT);
    oct_status status = prefill(g, err);
    account(g, &g->prompt, &before, t);
    oct_session_get_stats(g->session, &before);
    t = oct_seconds();
    oct_session_count_as(g->session, OCT_PHASE_TEXT);
    int64_t n_running = g->n_seqs;
    while (status == OCT_OK && n_running > 0 && !g->closed) {
        if (*oct_cli_cancel_flag())
            status = oct_fail(err, OCT_ERR_CANCELLED, "interrupted");
        else
            status = step(g, &n_running, err);
    }
    if (status != OCT_OK)
        for (int64_t s = 0; s < g->n_seqs; s++)
            hush(g, s);
    account(g, &g->text, &before, t);
    return status;
}
