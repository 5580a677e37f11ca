/* scheduler_rig.h: requests to a scheduler, what is heard of them, and what they give alone. To be
 * included after cmocka.h. oct_eval is to be wrapped by the linker. */
#ifndef OCT_TEST_SCHEDULER_RIG_H
#define OCT_TEST_SCHEDULER_RIG_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model_impl.h"
#include "rig.h"
#include "scheduler.h"

enum { MAX_TEXTS = 4, MAX_TOKENS = 1100, MAX_REQUESTS = 64 };

/* ---- oct_eval, watched ---- */

static struct {
    int64_t n_calls, n_rows;
    oct_status fail;     /* the next call, instead of the evaluation */
    volatile int *raise; /* the next call raises this flag first */
} eval_hook;

oct_status __real_oct_eval(oct_session *s, const oct_batch *b, float *logits, oct_error *err);
oct_status __wrap_oct_eval(oct_session *s, const oct_batch *b, float *logits, oct_error *err);

oct_status __wrap_oct_eval(oct_session *s, const oct_batch *b, float *logits, oct_error *err)
{
    oct_status fail = eval_hook.fail;
    eval_hook.fail = OCT_OK;
    eval_hook.n_calls++;
    eval_hook.n_rows = b->n;
    if (eval_hook.raise)
        *eval_hook.raise = 1;
    eval_hook.raise = NULL;
    return fail ? oct_fail(err, fail, "made up") : __real_oct_eval(s, b, logits, err);
}

/* ---- what is asked for, what comes ---- */

typedef struct heard {
    int32_t token[MAX_TOKENS];
    double logprob[MAX_TOKENS];
    int64_t n, n_done, last_step, end_step;
    int n_ends;
    oct_end end;
    oct_status status;
    int64_t n_cached;
    uint64_t rng;
    oct_token_logprob top; /* the last */
    int64_t n_scores;      /* of the prompt */
    double score[MAX_TOKENS];
} heard;

typedef struct ask {
    oct_request r;
    int32_t ids[MAX_TOKENS];
    uint64_t id;
    heard text[MAX_TEXTS];
} ask;

static int64_t step_now; /* counted by the tests */
static oct_model *model;

static void on_event(void *ctx, const oct_event *e)
{
    ask *a = e->user;
    (void)ctx;
    assert_true(e->index >= 0 && e->index < (a->r.n ? a->r.n : 1));
    heard *h = &a->text[e->index];
    assert_int_equal(h->n_ends, 0); /* the end is the last event */
    assert_int_equal(e->n_prompt, a->r.n_ids);
    if (e->kind == OCT_EVENT_PROGRESS) {
        assert_true(e->n_done >= e->n_cached && e->n_done <= e->n_prompt);
        assert_true(e->n_done >= h->n_done && h->n == 0);
        h->n_done = e->n_done;
        h->n_cached = e->n_cached;
    } else if (e->kind == OCT_EVENT_SCORE) {
        assert_true(a->r.prompt_logprobs && e->index == 0 && h->n == 0);
        assert_int_equal(e->token, a->ids[h->n_scores + 1]);
        assert_int_equal(e->n_top, a->r.n_top);
        h->score[h->n_scores++] = e->logprob;
    } else if (e->kind == OCT_EVENT_TOKEN) {
        size_t n;
        assert_int_equal(e->n_generated, h->n + 1);
        assert_ptr_equal(e->bytes, oct_token_bytes(model, e->token, &n));
        assert_int_equal(e->n_bytes, n);
        h->logprob[h->n] = e->logprob;
        assert_int_equal(e->n_top, a->r.n_top);
        if (e->n_top > 0)
            h->top = e->top[0];
        h->token[h->n++] = e->token;
        h->last_step = step_now;
    } else {
        h->n_ends++;
        h->end = e->end;
        h->end_step = step_now;
        h->rng = e->rng;
        h->status = e->error ? e->error->status : OCT_OK;
        assert_int_equal(e->n_generated, h->n);
        assert_true((e->end == OCT_END_ERROR) == (e->error != NULL));
    }
}

static int64_t n_ctx_of(const oct_session_params *p)
{
    return p->n_ctx ? p->n_ctx : oct_model_get_info(model)->n_ctx;
}

/* The text of a request alone in a session of its own, without a scheduler. */
static void alone(const oct_model *m, const oct_session_params *params, const ask *a, int32_t k,
                  heard *h)
{
    const oct_model_info *info = oct_model_get_info(m);
    oct_session_params p = *params;
    oct_session *s;
    oct_error err = {0};
    float *logits = malloc((size_t)info->n_vocab * 3 * sizeof *logits);
    oct_sampler sampler = a->r.sampler;
    memset(h, 0, sizeof *h);
    sampler.rng += (uint64_t)k;
    p.n_seqs = 1;
    p.kv_bytes = 0;
    p.cancel = NULL;
    assert_int_equal(oct_session_new(m, &p, &s, &err), OCT_OK);
    oct_batch b = {.n = a->r.n_ids, .token = a->ids};
    for (h->n_ends = 0; h->n_ends == 0;) {
        oct_status status = __real_oct_eval(s, &b, logits, &err);
        h->n_ends = 1;
        h->end = OCT_END_LENGTH;
        if (status != OCT_OK) {
            h->status = status;
            h->end = OCT_END_ERROR;
            break;
        }
        if (h->n == a->r.n_max)
            break;
        if (a->r.ignore_eos)
            logits[info->eos_id] = logits[info->pad_id] = -INFINITY;
        int32_t text[MAX_TOKENS];
        memcpy(text, a->ids, (size_t)a->r.n_ids * sizeof *text);
        memcpy(text + a->r.n_ids, h->token, (size_t)h->n * sizeof *text);
        sampler.history = text + (a->r.penalise_prompt ? 0 : a->r.n_ids);
        sampler.n_history = h->n + (a->r.penalise_prompt ? a->r.n_ids : 0);
        int32_t id = oct_sample(&sampler, logits, info->n_vocab, logits + info->n_vocab);
        assert_true(id >= 0);
        if (id == info->eos_id || id == info->pad_id) {
            h->end = OCT_END_EOS;
            break;
        }
        h->token[h->n++] = id;
        if (h->n == a->r.n_max)
            break;
        h->end = OCT_END_CONTEXT;
        if (a->r.n_ids + h->n > n_ctx_of(params))
            break;
        h->n_ends = 0;
        b = (oct_batch){.n = 1, .token = &h->token[h->n - 1]};
    }
    h->rng = sampler.rng;
    oct_session_free(s);
    free(logits);
}

static void same_text(const char *what, const heard *have, const heard *want)
{
    bool cut = have->end == OCT_END_CANCELLED;
    if (have->n_ends != 1)
        fail_msg("%s: %d ends", what, have->n_ends);
    if (cut ? have->n > want->n : have->n != want->n)
        fail_msg("%s: %lld tokens, alone %lld", what, (long long)have->n, (long long)want->n);
    for (int64_t i = 0; i < have->n; i++)
        if (have->token[i] != want->token[i])
            fail_msg("%s: token %lld is %d, alone %d", what, (long long)i, have->token[i],
                     want->token[i]);
    if (!cut && (have->end != want->end || have->status != want->status || have->rng != want->rng))
        fail_msg("%s: ends with %d (%d), alone with %d (%d)", what, have->end, have->status,
                 want->end, want->status);
}

/* ---- a session with its scheduler ---- */

typedef struct bench {
    oct_session_params session_params;
    oct_session *session;
    oct_scheduler *scheduler;
} bench;

static void open_bench(bench *b, const oct_model *m, oct_session_params p,
                       oct_scheduler_params params)
{
    oct_error err = {0};
    memset(&eval_hook, 0, sizeof eval_hook);
    step_now = 0;
    p.n_threads = 1;
    params.event = on_event;
    b->session_params = p;
    if (oct_session_new(m, &p, &b->session, &err) != OCT_OK ||
        oct_scheduler_new(b->session, &params, &b->scheduler, &err) != OCT_OK)
        fail_msg("%s", err.text);
}

/* The pool is as it was: nothing is held. */
static void close_bench(bench *b)
{
    oct_kv_usage kv;
    assert_int_equal(oct_scheduler_pending(b->scheduler), 0);
    oct_scheduler_free(b->scheduler);
    oct_session_get_kv(b->session, &kv);
    assert_int_equal(kv.used, 0);
    oct_session_free(b->session);
}

/* What the request points to is gone when it runs. */
static void submit(bench *b, ask *a)
{
    oct_error err = {0};
    oct_request r = a->r;
    size_t ids_bytes = (size_t)r.n_ids * sizeof *a->ids;
    size_t bias_bytes = (size_t)r.sampler.n_bias * sizeof *r.sampler.bias;
    int32_t *ids = malloc(ids_bytes);
    oct_logit_bias *bias = malloc(bias_bytes + 1);
    memset(a->text, 0, sizeof a->text);
    memcpy(ids, a->ids, ids_bytes);
    if (bias_bytes)
        memcpy(bias, r.sampler.bias, bias_bytes);
    r.ids = ids;
    r.sampler.bias = bias;
    r.user = a;
    if (oct_scheduler_submit(b->scheduler, &r, &a->id, &err) != OCT_OK)
        fail_msg("%s", err.text);
    free(ids);
    free(bias);
}

static void step(bench *b)
{
    oct_error err = {0};
    step_now++;
    if (oct_scheduler_step(b->scheduler, &err) != OCT_OK)
        fail_msg("step %lld: %s", (long long)step_now, err.text);
}

static void run_to_end(bench *b)
{
    while (oct_scheduler_pending(b->scheduler) > 0)
        step(b);
}

static ask *make_ask(int64_t n_ids, int64_t n_max, uint64_t seed)
{
    rig_rng rng = {seed};
    ask *a = calloc(1, sizeof *a);
    a->r.n_ids = n_ids;
    a->r.n_max = n_max;
    a->r.ignore_eos = true;
    a->r.sampler = (oct_sampler){.temperature = 1.0f, .top_p = 0.95f, .rng = seed};
    for (int64_t i = 0; i < n_ids; i++)
        a->ids[i] = (int32_t)rig_int(&rng, 3, 4000);
    return a;
}

static oct_scheduler_stats stats_of(bench *b)
{
    oct_scheduler_stats st;
    oct_scheduler_get_stats(b->scheduler, &st);
    return st;
}

static uint64_t page_bytes(void)
{
    bench b;
    oct_kv_usage kv;
    open_bench(&b, model, (oct_session_params){0}, (oct_scheduler_params){0});
    oct_session_get_kv(b.session, &kv);
    close_bench(&b);
    return kv.page_bytes;
}

static const heard *text_alone(const bench *b, const ask *a, int32_t k)
{
    static heard h;
    alone(model, &b->session_params, a, k, &h);
    return &h;
}

static void check_alone(const bench *b, const ask *a, const char *what)
{
    for (int32_t k = 0; k < (a->r.n ? a->r.n : 1); k++)
        same_text(what, &a->text[k], text_alone(b, a, k));
}

#endif
