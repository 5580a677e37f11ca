#include "serve_answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <octet/machine.h>

#include "cli.h"

enum { HELD_BYTES = 128 << 10, RETRY_SECONDS = 1 };

int64_t oct_serve_n_choices(const oct_serve_answer *a)
{
    return a->ask.n_prompts * a->ask.n;
}

/* ---- the beginning -------------------------------------------------------------------------- */

/* On the worker. */
static void read_body(oct_serve_job *job)
{
    oct_serve_answer *a = (oct_serve_answer *)job;
    if (a->errand) {
        json_t *body = oct_serve_json(a->body, a->n_body, &a->fault);
        if (body)
            a->errand(a->server->config, body, &a->out, &a->fault);
        json_decref(body);
    } else {
        oct_serve_ask_parse(a->server->config, a->chat, a->body, a->n_body, &a->ask, &a->fault);
    }
    free(a->body);
    a->body = NULL;
}

static void unlink_answer(oct_serve_answer *a)
{
    oct_serve_answer **at = &a->server->answers;
    while (*at != a)
        at = &(*at)->next;
    *at = a->next;
    a->server->n_answers--;
}

static void free_answer(oct_serve_answer *a)
{
    for (int64_t i = 0; a->choices && i < oct_serve_n_choices(a); i++)
        oct_serve_text_free(&a->choices[i].text);
    for (int64_t i = 0; a->parts && i < a->ask.n_prompts; i++)
        oct_serve_text_free(&a->parts[i].scores);
    free(a->choices);
    free(a->parts);
    free(a->body);
    json_decref(a->out);
    oct_serve_ask_free(&a->ask);
    free(a);
}

/* Frees it once nobody refers to it: the client, the worker, the scheduler. */
static void settle(oct_serve_answer *a)
{
    if (a->req || a->reading || a->n_open > 0)
        return;
    unlink_answer(a);
    free_answer(a);
}

static void log_end(const oct_serve_answer *a, int code)
{
    int64_t n_prompt = 0, n_cached = 0, n_text = 0;
    const char *ignored = a->reading ? "" : a->ask.ignored;
    for (int64_t i = 0; a->parts && i < a->ask.n_prompts; i++) {
        n_prompt += (int64_t)a->ask.prompts[i].n_ids;
        n_cached += a->parts[i].n_cached;
    }
    for (int64_t i = 0; a->choices && i < oct_serve_n_choices(a); i++)
        n_text += a->choices[i].n_generated;
    oct_serve_log("%s %s %d: prompt %lld tokens (%lld cached), text %lld, %.3f s%s%s", a->id,
                  a->errand ? "errand"
                  : a->chat ? "chat"
                            : "completion",
                  code, (long long)n_prompt, (long long)n_cached, (long long)n_text,
                  oct_seconds() - a->arrived, ignored[0] ? "; ignored: " : "", ignored);
    for (int64_t i = 0; a->server->config->log_texts && a->choices && i < oct_serve_n_choices(a);
         i++) {
        const oct_serve_prompt *p = &a->ask.prompts[i / a->ask.n];
        const oct_serve_text *t = &a->choices[i].text;
        oct_serve_log("%s prompt: %.*s", a->id, (int)(p->n < 900 ? p->n : 900), p->text);
        oct_serve_log("%s text: %.*s", a->id, (int)(t->n < 900 ? t->n : 900),
                      t->bytes ? t->bytes : "");
    }
}

/* The client has all it will get; the scheduler is told to forget the rest. */
static void finish(oct_serve_answer *a, int code)
{
    log_end(a, code);
    a->conn->answer = NULL;
    a->req = NULL;
    if (a->n_open > 0)
        for (int64_t i = 0; i < a->n_submitted; i++)
            oct_serve_engine_cancel(&a->server->engine, a->parts[i].id, -1);
}

void oct_serve_answer_gone(oct_serve_answer *a)
{
    struct evhttp_request *req = a->req;
    a->server->metrics.n_gone++;
    finish(a, 499);
    evhttp_request_free(req); /* its connection is not there any more, so it is ours */
    settle(a);
}

static void send_text(oct_serve_answer *a, const char *prefix, const char *text);

/* Refuses, or tells in the stream that it fails. */
static void fail(oct_serve_answer *a, const oct_serve_fault *f)
{
    struct evhttp_request *req = a->req;
    if (!req)
        return;
    if (a->streaming) {
        char *text = oct_serve_json_text(oct_serve_fault_json(f));
        send_text(a, "data: ", text ? text : "{\"error\":{\"message\":\"out of memory\"}}");
        free(text);
    }
    const bool streaming = a->streaming;
    finish(a, f->status);
    if (streaming)
        evhttp_send_reply_end(req);
    else
        oct_serve_reply_fault(a->server, req, f);
}

static void fail_memory(oct_serve_answer *a)
{
    oct_serve_fault f = {0};
    oct_serve_refuse(&f, 500, NULL, "", "out of memory");
    fail(a, &f);
}

/* The whole answer; json is taken, NULL: no memory. */
static void reply(oct_serve_answer *a, json_t *json)
{
    struct evhttp_request *req = a->req;
    const int code = json ? 200 : 500;
    finish(a, code);
    oct_serve_reply_json(a->server, req, code, json);
}

/* ---- into the scheduler --------------------------------------------------------------------- */

static oct_status submit(oct_serve_answer *a, int64_t i, oct_error *err)
{
    const oct_serve_ask *q = &a->ask;
    oct_serve_part *p = &a->parts[i];
    const oct_request r = {.ids = q->prompts[i].ids,
                           .n_ids = (int64_t)q->prompts[i].n_ids,
                           .n_max = q->n_max,
                           .sampler = q->sampler,
                           .ignore_eos = q->ignore_eos,
                           .n = q->n,
                           .n_top = q->n_top,
                           .logprob = q->logprobs,
                           .prompt_logprobs = q->echo && q->logprobs,
                           .user = p};
    OCT_TRY(oct_serve_engine_submit(&a->server->engine, &r, &p->id, err));
    a->n_submitted++;
    a->n_open += q->n;
    for (int32_t k = 0; k < q->n; k++)
        a->choices[i * q->n + k].open = true;
    a->server->metrics.n_prompt += (uint64_t)r.n_ids;
    return OCT_OK;
}

/* Of many prompts the first must find a place in the queue; the others wait here for theirs. False:
 * it was refused. */
static bool submit_more(oct_serve_answer *a)
{
    while (a->req && a->n_submitted < a->ask.n_prompts) {
        oct_error err = {0};
        oct_serve_fault f = {0};
        const oct_status status = submit(a, a->n_submitted, &err);
        if (status == OCT_OK)
            continue;
        if (status == OCT_ERR_FULL && a->n_submitted > 0)
            return true;
        if (status == OCT_ERR_FULL)
            oct_serve_refuse(&f, 429, "queue_full", "", "The queue is full: %s", err.text);
        else
            oct_serve_refuse(&f, status == OCT_ERR_ARG ? 400 : 500, NULL, "", "%s", err.text);
        f.retry_after = status == OCT_ERR_FULL ? RETRY_SECONDS : 0;
        fail(a, &f);
        return false;
    }
    return true;
}

static bool make_choices(oct_serve_answer *a)
{
    const oct_serve_ask *q = &a->ask;
    a->parts = calloc((size_t)q->n_prompts, sizeof *a->parts);
    a->choices = calloc((size_t)oct_serve_n_choices(a), sizeof *a->choices);
    if (!a->parts || !a->choices)
        return false;
    for (int64_t i = 0; i < oct_serve_n_choices(a); i++)
        a->choices[i].text.stops = &q->stops;
    for (int64_t i = 0; i < q->n_prompts; i++)
        a->parts[i].answer = a;
    return true;
}

static void flush_answer(oct_serve_answer *a);

static void start_stream(oct_serve_answer *a)
{
    struct evkeyvalq *out = evhttp_request_get_output_headers(a->req);
    oct_serve_common_headers(a->server, a->req);
    evhttp_add_header(out, "Content-Type", "text/event-stream; charset=utf-8");
    evhttp_add_header(out, "Cache-Control", "no-cache");
    evhttp_add_header(out, "X-Accel-Buffering", "no");
    oct_serve_metrics_reply(&a->server->metrics, 200);
    evhttp_send_reply_start(a->req, 200, NULL);
    a->streaming = true;
    a->written = oct_seconds();
}

static bool check_ready(oct_serve_server *s, oct_serve_fault *f)
{
    const oct_serve_state state = oct_serve_engine_state(&s->engine, NULL);
    f->retry_after = state == OCT_SERVE_LOADING ? 5 : 1;
    if (s->stopping)
        return oct_serve_refuse(f, 503, "shutting_down", "", "the server is shutting down");
    if (state != OCT_SERVE_READY)
        return oct_serve_refuse(f, 503, "loading", "", "the model is being loaded");
    f->retry_after = 0;
    return true;
}

/* The worker is done with the body. */
static void on_read(oct_serve_job *job)
{
    oct_serve_answer *a = (oct_serve_answer *)job;
    a->reading = false;
    a->server->n_in -= a->n_body;
    if (a->req) {
        if (a->fault.status || (!a->errand && !check_ready(a->server, &a->fault))) {
            fail(a, &a->fault);
        } else if (a->errand) {
            reply(a, a->out);
            a->out = NULL;
        } else if (!make_choices(a)) {
            fail_memory(a);
        } else if (submit_more(a) && a->ask.stream) {
            start_stream(a);
            flush_answer(a);
        }
    }
    settle(a);
}

void oct_serve_answer_begin(oct_serve_server *s, struct evhttp_request *req,
                            oct_serve_errand *errand, bool chat)
{
    oct_serve_fault f = {0};
    oct_serve_answer *a = calloc(1, sizeof *a);
    if (!a) {
        oct_serve_refuse(&f, 500, NULL, "", "out of memory");
        oct_serve_reply_fault(s, req, &f);
        return;
    }
    *a = (oct_serve_answer){.job = {.work = read_body, .done = on_read},
                            .next = s->answers,
                            .server = s,
                            .req = req,
                            .conn = oct_serve_conn_of(s, req),
                            .errand = errand,
                            .chat = chat,
                            .created = (int64_t)time(NULL),
                            .arrived = oct_seconds()};
    snprintf(a->id, sizeof a->id, "%s-%016llx", chat ? "chatcmpl" : "cmpl",
             (unsigned long long)oct_cli_random());
    s->answers = a;
    s->n_answers++;
    a->conn->answer = a;
    if (a->conn->extra)
        oct_serve_refuse(&f, 503, "too_many_connections", "", "too many connections");
    else if ((errand || check_ready(s, &f)) && !(a->body = oct_serve_body(req, &a->n_body)))
        oct_serve_refuse(&f, 500, NULL, "", "out of memory");
    if (f.status) {
        fail(a, &f);
        settle(a);
        return;
    }
    a->reading = true;
    s->n_in += a->n_body;
    oct_serve_worker_post(&s->worker, &a->job);
}

/* ---- the stream ----------------------------------------------------------------------------- */

static void send_text(oct_serve_answer *a, const char *prefix, const char *text)
{
    struct evbuffer *out = evbuffer_new();
    if (!out)
        return;
    evbuffer_add_printf(out, "%s%s\n\n", prefix, text);
    evhttp_send_reply_chunk(a->req, out);
    evbuffer_free(out);
    a->written = oct_seconds();
}

/* A chunk as an event. False: there was none, or no memory for it, which ends the answer. */
static bool send_json(oct_serve_answer *a, json_t *json)
{
    const bool lost = oct_cli_json_lost();
    const bool any = json != NULL;
    char *text = oct_serve_json_text(json);
    if (lost || (any && !text)) {
        free(text);
        fail_memory(a);
        return false;
    }
    if (!text)
        return false;
    send_text(a, "data: ", text);
    free(text);
    return true;
}

/* The reader has taken all there was. */
static void on_drained(struct evhttp_connection *evcon, void *answer)
{
    oct_serve_answer *a = answer;
    (void)evcon;
    a->held = false;
    flush_answer(a);
    settle(a);
}

/* Whether so much waits for the reader that nothing should be added; then on_drained follows. */
static bool hold(oct_serve_answer *a)
{
    struct evbuffer *out = bufferevent_get_output(a->conn->bev);
    if (evbuffer_get_length(out) < HELD_BYTES)
        return false;
    struct evbuffer *last = evbuffer_new();
    if (!last)
        return false;
    a->held = true;
    a->server->metrics.n_held++;
    evbuffer_add_printf(last, ": waiting for the reader\n\n");
    evhttp_send_reply_chunk_with_cb(a->req, last, on_drained, a);
    evbuffer_free(last);
    return true;
}

static bool all_finished(const oct_serve_answer *a)
{
    for (int64_t i = 0; i < oct_serve_n_choices(a); i++)
        if (!a->choices[i].finish)
            return false;
    return true;
}

static void end_stream(oct_serve_answer *a)
{
    struct evhttp_request *req = a->req;
    if (a->ask.usage && !send_json(a, oct_serve_chunk_usage(a)))
        return;
    send_text(a, "data: ", "[DONE]");
    finish(a, 200);
    evhttp_send_reply_end(req);
}

/* Sends what can be sent. */
static void flush_answer(oct_serve_answer *a)
{
    if (!a->req || a->held)
        return;
    if (a->streaming) {
        for (int64_t i = 0; i < oct_serve_n_choices(a); i++)
            while (a->req && !a->choices[i].closed) {
                if (hold(a))
                    return;
                if (!send_json(a, oct_serve_chunk_next(a, i)))
                    break;
            }
    }
    if (!a->req || !all_finished(a))
        return;
    oct_serve_metrics_observe(&a->server->metrics.request, oct_seconds() - a->arrived);
    if (a->streaming) {
        end_stream(a);
        return;
    }
    reply(a, oct_serve_answer_json(a));
}

/* ---- what the engine did -------------------------------------------------------------------- */

static void on_progress(oct_serve_part *p, const oct_serve_event *e)
{
    oct_serve_answer *a = p->answer;
    oct_serve_metrics *m = &a->server->metrics;
    if (!p->begun) {
        p->begun = true;
        p->n_cached = e->n_cached;
        m->n_cached += (uint64_t)e->n_cached;
        oct_serve_metrics_observe(&m->queue, e->time - a->arrived);
    }
    p->n_done = e->n_done;
    if (a->streaming && a->ask.progress && a->req && !a->held)
        send_json(a, oct_serve_chunk_progress(a, e->time));
}

static const oct_token_logprob *top_of(const oct_serve_events *l, const oct_serve_event *e)
{
    return e->n_top > 0 ? l->top + e->top : NULL;
}

/* Tokens of the prompt, from the second on, in order. */
static void on_score(oct_serve_part *p, const oct_serve_events *l, const oct_serve_event *e)
{
    const oct_model *m = p->answer->server->config->model;
    const int32_t *ids = p->answer->ask.prompts[p - p->answer->parts].ids;
    size_t n = 0;
    const char *bytes;
    if (p->scores.n_tokens == 0) {
        bytes = oct_token_bytes(m, ids[0], &n);
        if (!oct_serve_text_add(&p->scores, ids[0], bytes, n, 0, NULL, 0))
            fail_memory(p->answer);
    }
    bytes = oct_token_bytes(m, e->token, &n);
    if (!oct_serve_text_add(&p->scores, e->token, bytes, n, e->logprob, top_of(l, e), e->n_top))
        fail_memory(p->answer);
}

static void on_token(oct_serve_part *p, oct_serve_choice *c, const oct_serve_events *l,
                     const oct_serve_event *e)
{
    oct_serve_answer *a = p->answer;
    oct_serve_metrics *m = &a->server->metrics;
    size_t n = 0;
    m->n_generated++;
    if (!a->req || c->finish) /* one more than was wanted */
        return;
    if (c->n_generated++ == 0)
        oct_serve_metrics_observe(&m->first_token, e->time - a->arrived);
    else
        oct_serve_metrics_observe(&m->between_tokens, e->time - c->last);
    c->last = e->time;
    const char *bytes = oct_token_bytes(a->server->config->model, e->token, &n);
    if (!oct_serve_text_add(&c->text, e->token, bytes, n, e->logprob, top_of(l, e), e->n_top)) {
        fail_memory(a);
    } else if (c->text.stopped) {
        c->finish = "stop";
        oct_serve_engine_cancel(&a->server->engine, p->id, e->index);
    }
}

static void on_end(oct_serve_part *p, oct_serve_choice *c, const oct_serve_event *e)
{
    oct_serve_answer *a = p->answer;
    oct_serve_fault f = {0};
    a->n_open--;
    c->open = false;
    if (!a->req || c->finish)
        return;
    if (e->end == OCT_END_ERROR) {
        const bool numeric = e->status == OCT_ERR_NUMERIC;
        oct_serve_refuse(&f, 500, numeric ? "numeric" : NULL, "", "%s%s",
                         e->error ? e->error : "out of memory",
                         numeric ? "; is the model's file whole? octet info --verify looks" : "");
        f.retry_after = numeric ? -1 : 0;
        fail(a, &f);
        return;
    }
    oct_serve_text_end(&c->text);
    c->finish = e->end == OCT_END_EOS || c->text.stopped ? "stop" : "length";
}

static void hear(const oct_serve_events *l, const oct_serve_event *e)
{
    oct_serve_part *p = e->user;
    oct_serve_answer *a = p->answer;
    oct_serve_choice *c = &a->choices[(p - a->parts) * a->ask.n + e->index];
    switch (e->kind) {
    case OCT_EVENT_PROGRESS: on_progress(p, e); break;
    case OCT_EVENT_SCORE:
        if (a->req)
            on_score(p, l, e);
        break;
    case OCT_EVENT_TOKEN: on_token(p, c, l, e); break;
    case OCT_EVENT_END: on_end(p, c, e); break;
    }
}

void oct_serve_answers_hear(oct_serve_server *s, const oct_serve_events *l)
{
    for (size_t i = 0; i < l->n; i++)
        hear(l, &l->event[i]);
    for (oct_serve_answer *a = s->answers, *next; a; a = next) {
        next = a->next;
        if (!a->reading && a->parts) {
            if (submit_more(a))
                flush_answer(a);
        }
        settle(a);
    }
}

/* ---- time ----------------------------------------------------------------------------------- */

/* A comment, which clients skip: the connection is alive, and this is how far the prompt is. */
static void keep_alive(oct_serve_answer *a)
{
    char text[96] = "working";
    int64_t n_done = 0, n = 0, n_begun = 0;
    for (int64_t i = 0; i < a->ask.n_prompts; i++) {
        n_begun += a->parts[i].begun;
        n_done += a->parts[i].n_done;
        n += (int64_t)a->ask.prompts[i].n_ids;
    }
    if (n_begun == 0)
        snprintf(text, sizeof text, "waiting in the queue");
    else if (n_done < n)
        snprintf(text, sizeof text, "prefill %lld of %lld tokens", (long long)n_done, (long long)n);
    send_text(a, ": ", text);
}

void oct_serve_answers_tick(oct_serve_server *s, double now)
{
    for (oct_serve_answer *a = s->answers; a; a = a->next)
        if (a->req && a->streaming && !a->held && s->config->keep_alive > 0 &&
            now - a->written >= s->config->keep_alive)
            keep_alive(a);
}

void oct_serve_answers_fail(oct_serve_server *s, const oct_serve_fault *f)
{
    for (oct_serve_answer *a = s->answers, *next; a; a = next) {
        next = a->next;
        fail(a, f);
        settle(a);
    }
}

void oct_serve_answers_free(oct_serve_server *s)
{
    while (s->answers) {
        oct_serve_answer *a = s->answers;
        s->answers = a->next;
        free_answer(a);
    }
}
