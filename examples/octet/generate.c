#include "generate.h"

#include <stdlib.h>
#include <string.h>

/* Passes bytes on, as far as they make whole characters. */
static void say(oct_gen *g, int64_t i, const char *bytes, size_t n)
{
    enum { PART = 64 };
    char out[OCT_UTF8_ROOM(PART)];
    for (size_t at = 0; at < n && !g->closed; at += PART) {
        size_t part = n - at < PART ? n - at : PART;
        size_t k = oct_utf8_feed(&g->texts[i].utf8, bytes + at, part, out);
        if (k > 0 && !g->emit(g->ctx, i, out, k))
            g->closed = true;
    }
}

static void hush(oct_gen *g, int64_t i)
{
    char out[OCT_UTF8_ROOM(0)];
    size_t k = oct_utf8_end(&g->texts[i].utf8, out);
    if (k > 0 && !g->closed && !g->emit(g->ctx, i, out, k))
        g->closed = true;
}

static void on_end(oct_gen *g, int64_t i, const oct_event *e)
{
    oct_gen_text *t = &g->texts[i];
    t->end = e->end;
    t->complete = e->end == OCT_END_EOS || e->end == OCT_END_CONTEXT;
    t->sampler.rng = e->rng;
    hush(g, i);
    if (e->end != OCT_END_CANCELLED && g->ended && !g->closed && !g->ended(g->ctx, i))
        g->closed = true;
}

static void on_event(void *ctx, const oct_event *e)
{
    oct_gen *g = ctx;
    oct_gen_text *t = e->user;
    int64_t i = t - g->texts;
    switch (e->kind) {
    case OCT_EVENT_PROGRESS:
        if (t->n_done < 0) { /* it begins */
            t->n_done = e->n_cached;
            g->total -= e->n_cached;
        }
        g->done += e->n_done - t->n_done;
        t->n_done = e->n_done;
        if (g->progress)
            g->progress(g->ctx, g->done, g->total);
        break;
    case OCT_EVENT_TOKEN:
        if (g->failed == OCT_OK)
            g->failed = oct_gen_append(g, i, &e->token, 1, &g->error);
        if (e->bytes)
            say(g, i, e->bytes, e->n_bytes);
        if (g->token && !g->closed && !g->token(g->ctx, i, e))
            g->closed = true;
        break;
    case OCT_EVENT_SCORE: break; /* not asked for */
    case OCT_EVENT_END:
        if (e->end == OCT_END_ERROR && g->failed == OCT_OK)
            g->failed = oct_fail(&g->error, e->error->status, "%s", e->error->text);
        on_end(g, i, e);
        break;
    }
}

oct_status oct_gen_init(oct_gen *g, oct_error *err)
{
    const oct_scheduler_params p = {.step_rows = g->step_rows, .event = on_event, .ctx = g};
    g->texts = calloc((size_t)g->n_texts, sizeof *g->texts);
    if (!g->texts)
        return oct_fail(err, OCT_ERR_MEMORY, "no memory for %lld texts", (long long)g->n_texts);
    for (int64_t i = 0; i < g->n_texts; i++)
        g->texts[i].utf8.printable = g->printable;
    return oct_scheduler_new(g->session, &p, &g->scheduler, err);
}

void oct_gen_free(oct_gen *g)
{
    oct_scheduler_free(g->scheduler);
    for (int64_t i = 0; g->texts && i < g->n_texts; i++)
        free(g->texts[i].ids);
    free(g->texts);
}

oct_status oct_gen_append(oct_gen *g, int64_t i, const int32_t *ids, int64_t n, oct_error *err)
{
    oct_gen_text *t = &g->texts[i];
    if (n > t->room - t->n) {
        int64_t room = 2 * (t->n + n) + 64;
        int32_t *more = realloc(t->ids, (size_t)room * sizeof *more);
        if (!more)
            return oct_fail(err, OCT_ERR_MEMORY, "no memory for a text of %lld tokens",
                            (long long)(t->n + n));
        t->ids = more;
        t->room = room;
    }
    memcpy(t->ids + t->n, ids, (size_t)n * sizeof *ids);
    t->n += n;
    t->complete = false;
    return OCT_OK;
}

void oct_gen_reset(oct_gen *g, int64_t i)
{
    oct_gen_text *t = &g->texts[i];
    t->n = 0;
    t->utf8 = (oct_utf8){.printable = g->printable};
}

static oct_status submit(oct_gen *g, oct_gen_text *t, oct_error *err)
{
    const oct_request r = {.ids = t->ids,
                           .n_ids = t->n,
                           .n_max = g->n_max,
                           .sampler = t->sampler,
                           .ignore_eos = g->ignore_eos,
                           .n_top = g->n_top,
                           .logprob = g->logprob,
                           .keep = g->n_texts == 1, /* a conversation goes on there */
                           .user = t};
    t->n_done = -1;
    g->total += t->n;
    return oct_scheduler_submit(g->scheduler, &r, &t->request, err);
}

/* Whatever has not ended does so now. */
static oct_status cancel_all(oct_gen *g, oct_error *err)
{
    for (int64_t i = 0; i < g->n_texts; i++)
        oct_scheduler_cancel(g->scheduler, g->texts[i].request);
    return oct_scheduler_step(g->scheduler, err);
}

oct_status oct_gen_run(oct_gen *g, oct_error *err)
{
    oct_status status = OCT_OK;
    g->done = g->total = 0;
    g->failed = OCT_OK;
    g->error = (oct_error){0};
    for (int64_t i = 0; i < g->n_texts && status == OCT_OK; i++)
        status = submit(g, &g->texts[i], err);
    while (status == OCT_OK && oct_scheduler_pending(g->scheduler) > 0 && !g->closed) {
        if (*oct_cli_cancel_flag())
            status = oct_fail(err, OCT_ERR_CANCELLED, "interrupted");
        else
            status = oct_scheduler_step(g->scheduler, err);
    }
    if (status != OCT_OK || g->closed) {
        oct_status stopped = cancel_all(g, err);
        status = status == OCT_OK ? stopped : status;
    }
    return status == OCT_OK && g->failed ? oct_fail(err, g->failed, "%s", g->error.text) : status;
}
