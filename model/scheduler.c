/* scheduler.c: texts wait in a queue, run on a sequence of the session each, and end. Both lists
 * are ordered by age, so that the oldest text is first to run and last to lose its memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler_impl.h"
#include "machine.h"

int64_t oct_step_rows(double bytes, double ops_per_row, double read_rate, double op_rate)
{
    double rows = bytes / read_rate * op_rate / ops_per_row;
    if (!(rows >= 1))
        return 1;
    return rows < 0x1p31 ? (int64_t)rows : (int64_t)1 << 31;
}

int64_t oct_step_rows_next(int64_t rows, int64_t most, double passes)
{
    const double factor = passes > 1.5 ? 1.4 / passes : passes < 1.25 ? 1.1 : 1;
    const int64_t least = most / 8 > 1 ? most / 8 : 1;
    int64_t next = (int64_t)((double)rows * (factor > 0.5 ? factor : 0.5));
    next += factor > 1; /* few rows grow too */
    return next < least ? least : next > most ? most : next;
}

/* A step with prompts in it reads all experts. What rows multiply by themselves are the weights of
 * one token without the embedding, which only the last row of a prompt meets. Steps of few rows an
 * expert do not reach the instruction's rate: the first one has a third, and tells. */
static void choose_step_rows(oct_scheduler *s)
{
    const oct_model_info *i = &s->session->model->info;
    const double weights =
                     (double)i->active_bytes - (double)(i->n_vocab * i->d_model) * sizeof(uint16_t),
                 bytes = (double)i->weight_bytes;
    const int64_t chunk = s->session->p.chunk;
    if (s->p.step_rows == 0 && s->p.read_rate > 0 && s->p.op_rate > 0) {
        const int64_t rows = oct_step_rows(bytes, 2 * weights, s->p.read_rate, s->p.op_rate);
        s->most_step_rows = rows < chunk ? rows : chunk;
        s->pass_seconds = bytes / s->p.read_rate;
        s->p.step_rows = rows / 3 > 1 ? rows / 3 : 1;
    } else if (s->p.step_rows == 0) {
        s->p.step_rows = OCT_STEP_ROWS;
    }
    if (s->p.step_rows > chunk)
        s->p.step_rows = chunk;
}

/* Of a step in which prompts and texts were, as many rows as it may have. */
static void adapt_step_rows(oct_scheduler *s, double seconds)
{
    const int64_t n = s->batch.n, n_text = s->n_text_rows;
    if (s->pass_seconds > 0 && n_text > 0 && n > n_text && n >= s->p.step_rows)
        s->p.step_rows =
            oct_step_rows_next(s->p.step_rows, s->most_step_rows, seconds / s->pass_seconds);
}

/* ---- requests come and go ------------------------------------------------------------------- */

static oct_status check_request(const oct_scheduler *s, const oct_request *r, oct_error *err)
{
    if (r->n_ids < 1)
        return oct_fail(err, OCT_ERR_ARG, "request: %lld tokens, expected at least 1",
                        (long long)r->n_ids);
    if (r->n_ids > s->n_ctx)
        return oct_fail(err, OCT_ERR_ARG, "request: %lld tokens, but the context holds %lld",
                        (long long)r->n_ids, (long long)s->n_ctx);
    if (r->n < 0 || r->n > 1 << 16)
        return oct_fail(err, OCT_ERR_ARG, "request: %d texts, expected 1..%d", r->n, 1 << 16);
    if (r->n_top < 0 || r->n_top > OCT_TOP_MAX)
        return oct_fail(err, OCT_ERR_ARG, "request: the %d likeliest tokens, expected 0..%d",
                        r->n_top, OCT_TOP_MAX);
    if (r->sampler.n_bias < 0 || r->sampler.n_bias > s->n_vocab)
        return oct_fail(err, OCT_ERR_ARG, "request: bias for %lld tokens, expected 0..%lld",
                        (long long)r->sampler.n_bias, (long long)s->n_vocab);
    for (int64_t i = 0; i < r->n_ids; i++)
        if (r->ids[i] < 0 || r->ids[i] >= s->n_vocab || r->ids[i] == s->pad)
            return oct_fail(err, OCT_ERR_ARG,
                            "request: token %lld: id %d, expected 0..%lld and not the pad id",
                            (long long)i, r->ids[i], (long long)s->n_vocab - 1);
    return OCT_OK;
}

/* The request's own copy, with what may never be drawn; false: no memory. */
static bool copy_bias(const oct_scheduler *s, const oct_request *from, oct_text_request *r,
                      oct_sampler *sampler)
{
    int64_t n = from->sampler.n_bias;
    r->bias = malloc((size_t)(n + 2) * sizeof *r->bias);
    if (!r->bias)
        return false;
    if (n > 0)
        memcpy(r->bias, from->sampler.bias, (size_t)n * sizeof *r->bias);
    if (from->ignore_eos && s->eos >= 0)
        r->bias[n++] = (oct_logit_bias){s->eos, -INFINITY};
    if (from->ignore_eos && s->pad >= 0)
        r->bias[n++] = (oct_logit_bias){s->pad, -INFINITY};
    *sampler = from->sampler;
    sampler->bias = r->bias;
    sampler->n_bias = n;
    return true;
}

static oct_text_request *make_request(const oct_scheduler *s, const oct_request *from)
{
    int32_t n = from->n ? from->n : 1;
    int64_t max_drawn = s->n_ctx + 1 - from->n_ids; /* the last token drawn needs no position */
    int64_t room =
        from->n_ids + (from->n_max >= 0 && from->n_max < max_drawn ? from->n_max : max_drawn);
    oct_text_request *r = calloc(1, sizeof *r + (size_t)n * sizeof *r->texts);
    if (!r)
        return NULL;
    r->user = from->user;
    r->n_prompt = from->n_ids;
    r->n_max = from->n_max;
    r->penalise_prompt = from->penalise_prompt;
    r->n_top = from->n_top;
    r->logprob = from->logprob;
    r->prompt_logprobs = from->prompt_logprobs;
    r->keep = from->keep;
    r->n = r->n_left = n;
    oct_sampler sampler;
    if (!copy_bias(s, from, r, &sampler)) {
        oct_text_free_request(r);
        return NULL;
    }
    for (int32_t i = 0; i < n; i++) {
        oct_text *t = &r->texts[i];
        t->of = r;
        t->index = i;
        t->n_told = -1;
        t->n = from->n_ids;
        t->sampler = sampler;
        t->sampler.rng += (uint64_t)i;
        t->ids = malloc((size_t)room * sizeof *t->ids);
        if (!t->ids) {
            oct_text_free_request(r);
            return NULL;
        }
        memcpy(t->ids, from->ids, (size_t)t->n * sizeof *t->ids);
    }
    return r;
}

oct_status oct_scheduler_submit(oct_scheduler *s, const oct_request *from, uint64_t *id,
                                oct_error *err)
{
    OCT_TRY(check_request(s, from, err));
    oct_text_request *r = make_request(s, from);
    if (!r)
        return oct_fail(err, OCT_ERR_MEMORY, "request: out of memory for %lld tokens",
                        (long long)from->n_ids);
    pthread_mutex_lock(&s->lock);
    int64_t n_waiting = s->n_waiting;
    bool full = s->p.max_waiting > 0 && n_waiting >= s->p.max_waiting;
    if (!full) {
        *(s->last ? &s->last->next : &s->requests) = r;
        s->last = r;
        if (!s->fresh)
            s->fresh = r;
        *id = r->id = ++s->last_id;
        s->n_waiting++;
        s->n_pending++;
    }
    pthread_mutex_unlock(&s->lock);
    if (!full)
        return OCT_OK;
    oct_text_free_request(r);
    return oct_fail(err, OCT_ERR_FULL, "request: %lld wait already", (long long)n_waiting);
}

/* index < 0: all texts. */
static void cancel(oct_scheduler *s, uint64_t id, int32_t index)
{
    pthread_mutex_lock(&s->lock);
    for (oct_text_request *r = s->requests; r; r = r->next)
        if (r->id == id && index < r->n)
            atomic_store(index < 0 ? &r->cancelled : &r->texts[index].cancelled, true);
    atomic_store(&s->any_cancelled, true);
    pthread_mutex_unlock(&s->lock);
}

void oct_scheduler_cancel(oct_scheduler *s, uint64_t id)
{
    cancel(s, id, -1);
}

void oct_scheduler_cancel_text(oct_scheduler *s, uint64_t id, int32_t index)
{
    if (index >= 0)
        cancel(s, id, index);
}

static void take_fresh(oct_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    for (; s->fresh; s->fresh = s->fresh->next)
        oct_text_enqueue(s, &s->fresh->texts[0]);
    pthread_mutex_unlock(&s->lock);
}

static void end_cancelled(oct_scheduler *s)
{
    for (oct_text *t = s->queue, *next; t; t = next) {
        next = t->next;
        if (oct_text_cancelled(t))
            oct_text_end(s, t, OCT_END_CANCELLED, NULL);
    }
    for (int64_t i = 0; i < s->n_running;)
        if (oct_text_cancelled(s->running[i]))
            oct_text_end(s, s->running[i], OCT_END_CANCELLED, NULL);
        else
            i++;
}

/* ---- a step --------------------------------------------------------------------------------- */

static int64_t batch_rows(const oct_scheduler *s)
{
    int64_t chunk = s->session->p.chunk;
    return (chunk > s->p.step_rows ? chunk : s->p.step_rows) + s->p.max_running;
}

static int64_t left(const oct_text *t)
{
    return t->n - t->n_held - t->n_rows;
}

/* Positions first..first+n-1 that are to be scored. */
static int64_t n_scores(const oct_text *t, int64_t first, int64_t n)
{
    int64_t from = first > t->n_scored ? first : t->n_scored, end = first + n;
    end = end < oct_text_to_score(t) ? end : oct_text_to_score(t);
    return end > from ? end - from : 0;
}

/* Rows of what is left that this step has room for: logits of scored ones are kept. */
static int64_t takes(const oct_scheduler *s, const oct_text *t)
{
    const int64_t first = t->n_held + t->n_rows, n = left(t), due = n_scores(t, first, n);
    if (due <= s->score_left)
        return n;
    return (t->n_scored > first ? t->n_scored - first : 0) + s->score_left;
}

static int64_t give_rows(oct_scheduler *s, oct_text *t, int64_t n)
{
    const int64_t most = takes(s, t);
    n = n < most ? n : most;
    s->score_left -= n_scores(t, t->n_held + t->n_rows, n);
    t->n_rows += n;
    return n;
}

/* Half of the rows go to the oldest prompt, so that it ends in any case; the others' to those that
 * have least left, so that a short one need not wait for a long one. */
static void deal_rows(oct_scheduler *s, int64_t n)
{
    oct_text *oldest = NULL, *shortest;
    int64_t n_prompts = 0;
    for (int64_t i = s->n_running - 1; i >= 0; i--)
        if (s->running[i]->state == OCT_TEXT_PROMPT) {
            oldest = s->running[i];
            n_prompts++;
        }
    if (!oldest)
        return;
    n -= give_rows(s, oldest, n_prompts > 1 ? (n + 1) / 2 : n);
    while (n > 0) {
        shortest = NULL;
        for (int64_t i = 0; i < s->n_running; i++) {
            oct_text *t = s->running[i];
            if (t->state == OCT_TEXT_PROMPT && t != oldest && takes(s, t) > 0 &&
                (!shortest || left(t) < left(shortest)))
                shortest = t;
        }
        if (!shortest)
            break;
        n -= give_rows(s, shortest, n);
    }
    give_rows(s, oldest, n);
}

static void add_rows(oct_scheduler *s, oct_text_state state, int64_t *n_out)
{
    for (int64_t i = 0; i < s->n_running; i++) {
        oct_text *t = s->running[i];
        if (t->state != state)
            continue;
        t->first = s->batch.n;
        t->first_out = *n_out;
        t->n_scores = n_scores(t, t->n_held, t->n_rows);
        *n_out += t->n_scores;
        t->row = t->n_rows > 0 && left(t) == 0 ? (*n_out)++ : -1;
        for (int64_t k = 0; k < t->n_rows; k++, s->batch.n++) {
            s->token[s->batch.n] = t->ids[t->n_held + k];
            s->seq[s->batch.n] = t->seq;
            s->want[s->batch.n] =
                (t->row >= 0 && k == t->n_rows - 1) || n_scores(t, t->n_held + k, 1) > 0;
        }
    }
}

static void build_batch(oct_scheduler *s)
{
    int64_t n_drawn = 0, n_out = 0;
    for (int64_t i = 0; i < s->n_running; i++) {
        bool drawn = s->running[i]->state == OCT_TEXT_DRAWN;
        s->running[i]->n_rows = drawn;
        n_drawn += drawn;
    }
    int64_t n = n_drawn > 0 ? s->p.step_rows : s->session->p.chunk;
    int64_t min_rows = n / 8 > 0 ? n / 8 : 1; /* many texts do not stop prompts */
    s->score_left = s->max_scores;
    deal_rows(s, n - n_drawn > min_rows ? n - n_drawn : min_rows);
    s->batch = (oct_batch){0, s->token, s->seq, s->want};
    add_rows(s, OCT_TEXT_DRAWN, &n_out);
    s->n_text_rows = s->batch.n;
    add_rows(s, OCT_TEXT_PROMPT, &n_out);
}

/* The step has not happened. */
static void roll_back(oct_scheduler *s)
{
    for (int64_t i = 0; i < s->n_running; i++)
        oct_session_truncate(s->session, s->running[i]->seq, s->running[i]->n_held);
}

/* The batch cannot be evaluated because of one text, or some: evaluates text by text, and ends
 * those. */
static oct_status eval_alone(oct_scheduler *s, oct_error *err)
{
    for (int64_t i = 0; i < s->n_running;) {
        oct_text *t = s->running[i];
        oct_error error = {0};
        oct_batch b = {t->n_rows, s->token + t->first, s->seq + t->first, s->want + t->first};
        oct_status status = OCT_OK;
        if (b.n > 0)
            status = oct_eval(s->session, &b, s->logits + t->first_out * s->n_vocab, &error);
        if (status == OCT_ERR_NUMERIC)
            oct_text_end(s, t, OCT_END_ERROR, &error);
        else if (status != OCT_OK)
            return oct_fail(err, status, "%s", error.text);
        else
            i++;
    }
    return OCT_OK;
}

/* Builds and evaluates a batch of what the session has memory for; empty: nothing is to do. */
static oct_status eval_step(oct_scheduler *s, oct_error *err)
{
    for (;;) {
        oct_error error = {0};
        oct_text_admit(s);
        build_batch(s);
        if (s->batch.n == 0)
            return OCT_OK;
        oct_session_count_as(s->session,
                             s->n_text_rows == s->batch.n ? OCT_PHASE_TEXT : OCT_PHASE_PROMPT);
        oct_status status = oct_eval(s->session, &s->batch, s->logits, &error);
        if (status != OCT_OK)
            roll_back(s);
        if (status == OCT_ERR_NUMERIC) {
            oct_error alone = {0};
            status = eval_alone(s, &alone);
            error = alone;
            if (status != OCT_OK)
                roll_back(s);
        }
        if (status == OCT_OK)
            return OCT_OK;
        if (status != OCT_ERR_FULL)
            return oct_fail(err, status, "%s", error.text);
        oct_text_make_room(s, &error);
    }
}

/* What the step was good for, but for tokens: texts that were cancelled end, prompts say how far
 * they are, and what waited for one to end begins. */
static void note_progress(oct_scheduler *s)
{
    for (int64_t i = 0; i < s->n_running;) {
        oct_text *t = s->running[i];
        if (oct_text_cancelled(t)) {
            oct_text_end(s, t, OCT_END_CANCELLED, NULL);
            continue;
        }
        if (t->state == OCT_TEXT_PROMPT && t->n_rows > 0)
            oct_text_tell_progress(s, t);
        if (t->row >= 0)
            oct_text_fork(s, t);
        i++;
    }
}

/* What the step has told of the tokens of prompts. The row of a position says how likely the token
 * behind it is. */
static void score_prompts(oct_scheduler *s)
{
    int64_t n = 0;
    for (int64_t i = 0; i < s->n_running; i++) {
        oct_text *t = s->running[i];
        for (int64_t k = 0; k < t->n_scores; k++, n++)
            s->draws[n] = (oct_draw){.logits = s->logits + (t->first_out + k) * s->n_vocab,
                                     .id = t->ids[t->n_scored + k + 1],
                                     .n_top = t->of->n_top,
                                     .wants_logprob = true,
                                     .top = s->top + n * OCT_TOP_MAX};
    }
    if (n == 0)
        return;
    oct_sample_many(oct_session_team(s->session), s->draws, n, s->n_vocab, s->scratch);
    n = 0;
    for (int64_t i = 0; i < s->n_running; i++) {
        oct_text *t = s->running[i];
        for (int64_t k = 0; k < t->n_scores; k++)
            oct_text_tell_token(s, t, OCT_EVENT_SCORE, &s->draws[n++]);
        t->n_scored += t->n_scores;
        t->n_scores = 0;
    }
}

static int64_t most_tokens(const oct_text *t)
{
    return t->of->n_max >= 0 ? t->of->n_max : INT64_MAX;
}

/* Of all texts whose logits are there, together. */
static void draw_tokens(oct_scheduler *s)
{
    int64_t n = 0;
    for (int64_t i = 0; i < s->n_running; i++) {
        oct_text *t = s->running[i];
        t->draw = -1;
        if (t->row < 0 || t->n_generated >= most_tokens(t))
            continue;
        const int64_t skip = t->of->penalise_prompt ? 0 : t->of->n_prompt;
        t->sampler.history = t->ids + skip;
        t->sampler.n_history = t->n - skip;
        t->draw = n++;
        s->draws[t->draw] = (oct_draw){.sampler = &t->sampler,
                                       .logits = s->logits + t->row * s->n_vocab,
                                       .n_top = t->of->n_top,
                                       .wants_logprob = t->of->logprob,
                                       .top = s->top + t->draw * OCT_TOP_MAX};
    }
    if (n > 0)
        oct_sample_many(oct_session_team(s->session), s->draws, n, s->n_vocab, s->scratch);
}

/* A text gets the token that was drawn for it, or ends; false: it ended. A token always belongs to
 * the text, even if nothing will be evaluated after it. */
static bool grow(oct_scheduler *s, oct_text *t)
{
    const oct_draw *d = t->draw >= 0 ? &s->draws[t->draw] : NULL;
    oct_error error = {0};
    if (d && d->id < 0)
        oct_fail(&error, OCT_ERR_NUMERIC,
                 "no token can be drawn: the logits hold NaN or nothing but -Inf");
    if (d && (d->id < 0 || d->id == s->eos || d->id == s->pad)) {
        oct_text_end(s, t, d->id < 0 ? OCT_END_ERROR : OCT_END_EOS, &error);
        return false;
    }
    if (d) {
        t->ids[t->n++] = d->id;
        t->n_generated++;
        t->state = OCT_TEXT_DRAWN;
        oct_text_tell_token(s, t, OCT_EVENT_TOKEN, d);
    }
    if (t->n_generated < most_tokens(t) && t->n <= s->n_ctx)
        return true;
    oct_text_end(s, t, t->n_generated >= most_tokens(t) ? OCT_END_LENGTH : OCT_END_CONTEXT, NULL);
    return false;
}

static void count_work(oct_scheduler *s, const oct_session_stats *before, int64_t n, int64_t n_text,
                       double seconds)
{
    oct_session_stats now;
    oct_session_get_stats(s->session, &now);
    uint64_t bytes = now.bytes_read - before->bytes_read;
    double part = (double)n_text / (double)n;
    uint64_t text_bytes = n_text == n ? bytes : (uint64_t)(part * (double)bytes);
    s->stats.text.tokens += n_text;
    s->stats.text.bytes_read += text_bytes;
    s->stats.text.seconds += part * seconds;
    s->stats.prompt.tokens += n - n_text;
    s->stats.prompt.bytes_read += bytes - text_bytes;
    s->stats.prompt.seconds += (1 - part) * seconds;
    s->stats.n_steps++;
}

oct_status oct_scheduler_step(oct_scheduler *s, oct_error *err)
{
    oct_session_stats before;
    oct_error error = {0};
    double start = oct_seconds();
    oct_session_get_stats(s->session, &before);
    /* Read first: what is submitted and cancelled after that is for the next step to end. */
    const bool any_cancelled = atomic_exchange(&s->any_cancelled, false);
    take_fresh(s);
    if (any_cancelled)
        end_cancelled(s);
    oct_status status = eval_step(s, &error);
    if (status != OCT_OK && status != OCT_ERR_CANCELLED)
        oct_text_end_all(s, &error);
    if (status != OCT_OK)
        return oct_fail(err, status, "%s", error.text);
    int64_t n = s->batch.n, n_text = s->n_text_rows;
    for (int64_t i = 0; i < s->n_running; i++)
        s->running[i]->n_held += s->running[i]->n_rows;
    note_progress(s);
    score_prompts(s);
    draw_tokens(s);
    for (int64_t i = 0; i < s->n_running;)
        i += s->running[i]->row < 0 || grow(s, s->running[i]);
    const double seconds = oct_seconds() - start;
    if (n > 0)
        count_work(s, &before, n, n_text, seconds);
    adapt_step_rows(s, seconds);
    return OCT_OK;
}

/* ---- the whole ------------------------------------------------------------------------------ */

/* Logits of so many rows of prompts are kept at once. */
static int64_t max_scores(int64_t n_vocab, int64_t chunk)
{
    const int64_t n = (16 << 20) / n_vocab, most = chunk < 512 ? chunk : 512;
    return n < 1 ? 1 : n < most ? n : most;
}

uint64_t oct_scheduler_bytes(int64_t n_vocab, int64_t max_running, int64_t chunk)
{
    const int64_t most = INT32_MAX; /* what is beyond takes more memory than there is */
    if (n_vocab < 1 || n_vocab > most || max_running < 0 || max_running > most || chunk < 0 ||
        chunk > most)
        return UINT64_MAX;
    return (uint64_t)n_vocab * sizeof(float) *
               (uint64_t)(3 * max_running + max_scores(n_vocab, chunk)) +
           (uint64_t)(chunk + max_running) * (2 * sizeof(int32_t) + 1);
}

static oct_status allocate(oct_scheduler *s, oct_error *err)
{
    size_t n = (size_t)s->p.max_running, rows = (size_t)batch_rows(s);
    size_t n_threads = (size_t)oct_team_size(oct_session_team(s->session));
    s->running = calloc(n, sizeof *s->running);
    s->slots = calloc(n, sizeof *s->slots);
    s->logits = calloc(n + (size_t)s->max_scores, (size_t)s->n_vocab * sizeof *s->logits);
    s->scratch = calloc(n_threads < n ? n_threads : n, 2 * (size_t)s->n_vocab * sizeof *s->scratch);
    s->draws = calloc((size_t)s->max_draws, sizeof *s->draws);
    s->top = calloc((size_t)s->max_draws, OCT_TOP_MAX * sizeof *s->top);
    s->token = calloc(rows, sizeof *s->token);
    s->seq = calloc(rows, sizeof *s->seq);
    s->want = calloc(rows, 1);
    if (!s->running || !s->slots || !s->logits || !s->scratch || !s->draws || !s->top ||
        !s->token || !s->seq || !s->want)
        return oct_fail(err, OCT_ERR_MEMORY, "scheduler: out of memory for the logits of %zu texts",
                        n);
    return OCT_OK;
}

oct_status oct_scheduler_new(oct_session *session, const oct_scheduler_params *p,
                             oct_scheduler **out, oct_error *err)
{
    *out = NULL;
    if (p->max_running < 0 || p->max_running > session->p.n_seqs)
        return oct_fail(err, OCT_ERR_ARG, "scheduler: %lld texts at once, expected 0..%lld",
                        (long long)p->max_running, (long long)session->p.n_seqs);
    if (p->step_rows < 0 || p->max_waiting < 0)
        return oct_fail(err, OCT_ERR_ARG, "scheduler: steps of %lld rows, %lld requests waiting",
                        (long long)p->step_rows, (long long)p->max_waiting);
    oct_kv_usage kv;
    oct_scheduler *s = calloc(1, sizeof *s);
    if (!s)
        return oct_fail(err, OCT_ERR_MEMORY, "scheduler: out of memory");
    s->session = session;
    s->p = *p;
    s->n_vocab = session->model->info.n_vocab;
    s->eos = session->model->info.eos_id;
    s->pad = session->model->info.pad_id;
    oct_session_get_kv(session, &kv);
    s->n_ctx = kv.pages * kv.page_positions < session->p.n_ctx ? kv.pages * kv.page_positions
                                                               : session->p.n_ctx;
    if (s->p.max_running == 0)
        s->p.max_running = session->p.n_seqs;
    choose_step_rows(s);
    s->max_scores = max_scores(s->n_vocab, session->p.chunk);
    s->max_draws = s->p.max_running > s->max_scores ? s->p.max_running : s->max_scores;
    pthread_mutex_init(&s->lock, NULL);
    oct_status status = allocate(s, err);
    if (status != OCT_OK) {
        oct_scheduler_free(s);
        return status;
    }
    *out = s;
    return OCT_OK;
}

void oct_scheduler_free(oct_scheduler *s)
{
    if (!s)
        return;
    for (int32_t i = 0; s->slots && i < (int32_t)s->p.max_running; i++)
        oct_text_empty_slot(s, i);
    while (s->requests) {
        oct_text_request *r = s->requests;
        s->requests = r->next;
        oct_text_free_request(r);
    }
    pthread_mutex_destroy(&s->lock);
    free(s->running);
    free(s->slots);
    free(s->logits);
    free(s->scratch);
    free(s->draws);
    free(s->top);
    free(s->token);
    free(s->seq);
    free(s->want);
    free(s);
}

int64_t oct_scheduler_pending(oct_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    int64_t n = s->n_pending;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void oct_scheduler_get_stats(oct_scheduler *s, oct_scheduler_stats *st)
{
    *st = s->stats;
    pthread_mutex_lock(&s->lock);
    st->n_waiting = s->n_waiting;
    pthread_mutex_unlock(&s->lock);
    st->n_running = s->n_running;
}
