/* test_scheduler.c: whatever runs beside it, however often memory runs out and whoever cancels, a
 * text is the text of its request alone; and who waits for what. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "scheduler_impl.h"
#include "scheduler_rig.h"

/* ---- the promise ---- */

static ask *random_ask(rig_rng *rng)
{
    bool common = rig_int(rng, 0, 3) == 0; /* a beginning that others have, too */
    ask *a = make_ask(common ? rig_int(rng, 100, 330) : rig_int(rng, 1, 60), rig_int(rng, 0, 70),
                      rig_next(rng));
    for (int64_t i = 0; common && i < a->r.n_ids && i < 290; i++)
        a->ids[i] = (int32_t)(3 + i);
    if (rig_int(rng, 0, 5) == 0)
        a->r.n_max = rig_int(rng, 0, 1) ? -1 : 200;
    a->r.n = (int32_t)(rig_int(rng, 0, 3) ? 0 : rig_int(rng, 1, MAX_TEXTS));
    a->r.ignore_eos = rig_int(rng, 0, 1);
    a->r.keep = rig_int(rng, 0, 3) == 0;
    a->r.sampler.temperature = (float)rig_int(rng, 0, 3) * 0.5f;
    if (rig_int(rng, 0, 2) == 0) {
        static const oct_logit_bias bias[2] = {{300, 3.0f}, {17, -INFINITY}};
        a->r.sampler.bias = bias;
        a->r.sampler.n_bias = 2;
        a->r.sampler.frequency_penalty = 0.3f;
        a->r.sampler.presence_penalty = 0.6f;
        a->r.penalise_prompt = rig_int(rng, 0, 1);
    }
    return a;
}

/* Requests come at random steps, some are cancelled at random steps. */
static oct_scheduler_stats storm(uint64_t seed, int64_t n_seqs, int64_t pages, int64_t chunk,
                                 int64_t step_rows)
{
    rig_rng rng = {seed};
    bench b;
    ask *asks[32];
    int64_t at[32], cancel_at[32], n = 32, n_cancelled = 0;
    open_bench(&b, model,
               (oct_session_params){.n_ctx = 420,
                                    .n_seqs = n_seqs,
                                    .chunk = chunk,
                                    .kv_bytes = (uint64_t)pages * page_bytes()},
               (oct_scheduler_params){.step_rows = step_rows});
    for (int64_t i = 0; i < n; i++) {
        asks[i] = random_ask(&rng);
        at[i] = rig_int(&rng, 0, 150);
        cancel_at[i] = rig_int(&rng, 0, 4) ? -1 : at[i] + rig_int(&rng, 1, 100);
    }
    for (int64_t t = 0; t <= 260 || oct_scheduler_pending(b.scheduler) > 0; t++) {
        for (int64_t i = 0; i < n; i++) {
            if (at[i] == t)
                submit(&b, asks[i]);
            if (cancel_at[i] == t)
                oct_scheduler_cancel(b.scheduler, asks[i]->id);
        }
        step(&b);
        for (int64_t i = 0; i < n; i++) /* cancelled within the step */
            if (cancel_at[i] == t && asks[i]->text[0].n_ends == 0)
                fail_msg("request %lld is still there", (long long)i);
        assert_true(t < 20000);
    }
    for (int64_t i = 0; i < n; i++) {
        char what[64];
        snprintf(what, sizeof what, "seed %llu, request %lld", (unsigned long long)seed,
                 (long long)i);
        check_alone(&b, asks[i], what);
        n_cancelled += asks[i]->text[0].end == OCT_END_CANCELLED;
        free(asks[i]);
    }
    oct_scheduler_stats st = stats_of(&b);
    close_bench(&b);
    printf("  %lld steps, %lld evictions, %lld tokens there already, %lld cancelled\n",
           (long long)st.n_steps, (long long)st.n_evicted, (long long)st.n_cached,
           (long long)n_cancelled);
    assert_int_equal(st.n_running, 0);
    assert_int_equal(st.n_waiting, 0);
    return st;
}

static void test_storm(void **state)
{
    (void)state;
    uint64_t seed = rig_seed();
    oct_scheduler_stats ample = storm(seed, 8, 8 * 4, 64, 0);
    assert_int_equal(ample.n_evicted, 0);
    assert_true(ample.n_cached > 0);
    oct_scheduler_stats some = storm(seed + 1, 8, 6, 64, 16), few = storm(seed + 2, 3, 12, 512, 7),
                        hardly = storm(seed + 3, 16, 5, 32, 1);
    assert_true(some.n_evicted + hardly.n_evicted > 0);
    assert_true(ample.n_ended[OCT_END_CANCELLED] + few.n_ended[OCT_END_CANCELLED] > 0);
}

/* ---- who waits for whom ---- */

static void test_fair(void **state)
{
    (void)state;
    bench b;
    ask *talks = make_ask(5, 60, 1), *longest = make_ask(900, 4, 2), *brief = make_ask(12, 4, 3);
    open_bench(&b, model, (oct_session_params){.n_seqs = 3, .chunk = 64},
               (oct_scheduler_params){.step_rows = 32});
    submit(&b, talks);
    step(&b);
    assert_int_equal(talks->text[0].n, 1);
    submit(&b, longest);
    step(&b);
    submit(&b, brief);
    bool brief_first = false;
    while (longest->text[0].n == 0) {
        int64_t before = talks->text[0].n, done = longest->text[0].n_done;
        step(&b);
        assert_int_equal(talks->text[0].n, before + 1); /* a token every step */
        assert_true(eval_hook.n_rows <= 32);
        assert_true(longest->text[0].n_done >= done + 14); /* and the oldest prompt goes on */
        brief_first |= brief->text[0].n > 0 && longest->text[0].n == 0;
    }
    assert_true(brief_first);
    run_to_end(&b);
    check_alone(&b, talks, "talks");
    check_alone(&b, longest, "longest");
    check_alone(&b, brief, "brief");
    close_bench(&b);
    free(talks);
    free(longest);
    free(brief);
}

/* While nobody decodes, a step is a chunk; more texts than rows do not stop a prompt. */
static void test_rows(void **state)
{
    (void)state;
    bench b;
    ask *a[6];
    open_bench(&b, model, (oct_session_params){.n_seqs = 6, .chunk = 128},
               (oct_scheduler_params){.step_rows = 4});
    for (int i = 0; i < 6; i++)
        a[i] = make_ask(i < 5 ? 3 : 200, 40, (uint64_t)i);
    for (int i = 0; i < 5; i++)
        submit(&b, a[i]);
    step(&b);
    assert_int_equal(eval_hook.n_rows, 15);
    submit(&b, a[5]);
    for (int i = 1; i < 20; i++) {
        step(&b);
        assert_int_equal(eval_hook.n_rows, 6);
        assert_int_equal(a[5]->text[0].n_done, i);
    }
    for (int i = 0; i < 5; i++)
        oct_scheduler_cancel(b.scheduler, a[i]->id);
    step(&b);
    assert_int_equal(eval_hook.n_rows, 128);
    run_to_end(&b);
    check_alone(&b, a[5], "the prompt");
    close_bench(&b);
    for (int i = 0; i < 6; i++)
        free(a[i]);
}

/* A bench of so many bytes and operations a second, whose second step has the first rows of a
 * beside a text that has begun: their number. */
static int64_t rows_beside_text(bench *b, ask *talks, ask *a, double read_rate, double op_rate)
{
    open_bench(b, model, (oct_session_params){.n_seqs = 2, .chunk = 256},
               (oct_scheduler_params){.read_rate = read_rate, .op_rate = op_rate});
    submit(b, talks);
    step(b);
    submit(b, a);
    step(b);
    return eval_hook.n_rows;
}

static void test_step_rows(void **state)
{
    (void)state;
    /* Grok-1 on 64 cores of Zen 4: 318 GB at 400 GB/s, 2 x 84.5e9 x 2 operations a row. */
    assert_in_range(oct_step_rows(318e9, 338e9, 400e9, 55e12), 129, 130);
    assert_int_equal(oct_step_rows(1e9, 1e9, 1e9, 64e9), 64);
    assert_int_equal(oct_step_rows(1e9, 1e9, 1e9, 64.9e9), 64);
    assert_int_equal(oct_step_rows(1e9, 1e12, 1e9, 1e9), 1);
    assert_int_equal(oct_step_rows(0, 0, 0, 0), 1); /* NaN */
    assert_true(oct_step_rows(1e9, 1, 1, 1e18) > 1 << 30);
    assert_int_equal(oct_step_rows_next(100, 200, 1.4), 100);
    assert_int_equal(oct_step_rows_next(100, 200, 2), 70);
    assert_int_equal(oct_step_rows_next(100, 200, 50), 50);
    assert_int_equal(oct_step_rows_next(30, 200, 50), 25); /* an eighth */
    assert_int_equal(oct_step_rows_next(1, 2, 50), 1);
    assert_int_equal(oct_step_rows_next(100, 200, 1), 111);
    assert_int_equal(oct_step_rows_next(1, 200, 1), 25);
    assert_int_equal(oct_step_rows_next(190, 200, 0.1), 200);
    bench b;
    /* tiny-grok's numbers: the rates decide, within a chunk */
    ask *a = make_ask(900, 1, 1), *talks = make_ask(3, 60, 2);
    const double weights = (double)oct_model_get_info(model)->weight_bytes;
    assert_int_equal(rows_beside_text(&b, talks, a, weights, 1e18), 256);
    run_to_end(&b);
    close_bench(&b);
    /* a second of reading is 100 rows: twice the weights of a token, its embedding left out */
    const oct_model_info *info = oct_model_get_info(model);
    const double row =
        2 * ((double)info->active_bytes - 2.0 * (double)(info->n_vocab * info->d_model));
    /* the first step has a third */
    assert_int_equal(rows_beside_text(&b, talks, a, weights, 100.5 * row), 33);
    for (int i = 0; i < 12; i++)
        step(&b);
    assert_int_equal(eval_hook.n_rows, 100); /* these take less than a second */
    run_to_end(&b);
    close_bench(&b);
    /* a microsecond of reading is 240 rows, which take longer */
    assert_int_equal(rows_beside_text(&b, talks, a, 1e6 * weights, 240.5e6 * row), 80);
    step(&b);
    assert_int_equal(eval_hook.n_rows, 40);
    step(&b);
    assert_int_equal(eval_hook.n_rows, 30);
    step(&b);
    assert_int_equal(eval_hook.n_rows, 30);
    run_to_end(&b);
    close_bench(&b);
    assert_int_equal(rows_beside_text(&b, talks, a, 0, 0), OCT_STEP_ROWS);
    run_to_end(&b);
    close_bench(&b);
    free(a);
    free(talks);
}

/* ---- cancelling ---- */

static void test_cancel(void **state)
{
    (void)state;
    bench b;
    ask *decodes = make_ask(5, 50, 1), *prompt = make_ask(800, 5, 2), *waits = make_ask(9, 5, 3),
        *stays = make_ask(7, 20, 4);
    oct_error err = {0};
    open_bench(&b, model, (oct_session_params){.n_seqs = 3, .chunk = 32},
               (oct_scheduler_params){0});
    decodes->r.n = 2;
    submit(&b, stays);
    submit(&b, decodes);
    step(&b);
    submit(&b, prompt); /* no sequence is free */
    submit(&b, waits);
    step(&b);
    step(&b);
    assert_int_equal(decodes->text[1].n, 3);
    assert_int_equal(stats_of(&b).n_waiting, 2);
    oct_scheduler_cancel(b.scheduler, waits->id); /* in the queue */
    step(&b);
    assert_int_equal(waits->text[0].n_ends, 1);
    assert_int_equal(stats_of(&b).n_waiting, 1);
    oct_scheduler_cancel(b.scheduler, decodes->id); /* while it decodes */
    step(&b);
    assert_int_equal(decodes->text[0].n_ends + decodes->text[1].n_ends, 2);
    assert_int_equal(decodes->text[0].n, 4);
    step(&b);
    assert_true(prompt->text[0].n_done > 0 && prompt->text[0].n_done < 800);
    oct_scheduler_cancel(b.scheduler, prompt->id); /* in its prompt */
    step(&b);
    assert_int_equal(prompt->text[0].n_ends, 1);
    oct_scheduler_cancel(b.scheduler, prompt->id); /* of one that has ended: nothing */
    oct_scheduler_cancel(b.scheduler, 12345);
    assert_int_equal(oct_scheduler_pending(b.scheduler), 1);
    run_to_end(&b);
    check_alone(&b, stays, "the one that stays");
    check_alone(&b, decodes, "cancelled while it decodes");
    /* before a step has seen it */
    submit(&b, waits);
    oct_scheduler_cancel(b.scheduler, waits->id);
    assert_int_equal(oct_scheduler_step(b.scheduler, &err), OCT_OK);
    assert_int_equal(waits->text[0].end, OCT_END_CANCELLED);
    close_bench(&b);
    free(decodes);
    free(prompt);
    free(waits);
    free(stays);
}

/* From a thread of its own, while requests are submitted by another one. */
static bench *shared;
static ask *shared_asks[MAX_REQUESTS];
static _Atomic int64_t n_submitted;

static void *submit_all(void *arg)
{
    (void)arg;
    for (int i = 0; i < MAX_REQUESTS; i++) {
        submit(shared, shared_asks[i]);
        n_submitted++;
        usleep(200);
    }
    return NULL;
}

static void *cancel_some(void *arg)
{
    (void)arg;
    for (int64_t i = 0; i < MAX_REQUESTS; i += 3) {
        while (n_submitted <= i)
            usleep(50);
        oct_scheduler_cancel(shared->scheduler, shared_asks[i]->id);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    bench b;
    pthread_t one, two;
    int64_t n_cancelled = 0;
    open_bench(&b, model, (oct_session_params){.n_seqs = 8, .n_ctx = 128},
               (oct_scheduler_params){0});
    shared = &b;
    n_submitted = 0;
    for (int i = 0; i < MAX_REQUESTS; i++)
        shared_asks[i] = make_ask(4 + i % 40, 12, (uint64_t)i);
    assert_int_equal(pthread_create(&one, NULL, submit_all, NULL), 0);
    assert_int_equal(pthread_create(&two, NULL, cancel_some, NULL), 0);
    while (n_submitted < MAX_REQUESTS || oct_scheduler_pending(b.scheduler) > 0)
        step(&b);
    pthread_join(one, NULL);
    pthread_join(two, NULL);
    for (int i = 0; i < MAX_REQUESTS; i++) {
        check_alone(&b, shared_asks[i], "of threads");
        n_cancelled += shared_asks[i]->text[0].end == OCT_END_CANCELLED;
        free(shared_asks[i]);
    }
    printf("  %lld cancelled\n", (long long)n_cancelled);
    close_bench(&b);
}

/* The session's own flag: the step has not happened, the next one goes on. */
static void test_interrupt(void **state)
{
    (void)state;
    bench b;
    volatile int flag = 0;
    oct_error err = {0};
    ask *decodes = make_ask(5, 30, 1), *prompt = make_ask(300, 5, 2);
    open_bench(&b, model, (oct_session_params){.n_seqs = 2, .chunk = 16, .cancel = &flag},
               (oct_scheduler_params){.step_rows = 16});
    submit(&b, decodes);
    submit(&b, prompt);
    for (int i = 0; i < 25; i++) {
        if (i % 3 == 1)
            eval_hook.raise = &flag;
        oct_status status = oct_scheduler_step(b.scheduler, &err);
        assert_int_equal(status, i % 3 == 1 ? OCT_ERR_CANCELLED : OCT_OK);
        flag = 0;
        err = (oct_error){0};
    }
    run_to_end(&b);
    check_alone(&b, decodes, "interrupted text");
    check_alone(&b, prompt, "interrupted prompt");
    close_bench(&b);
    free(decodes);
    free(prompt);
}

/* ---- several texts of one prompt ---- */

static void test_texts(void **state)
{
    (void)state;
    bench b;
    ask *a = make_ask(200, 20, 7);
    a->r.n = 4;
    a->r.logprob = true;
    open_bench(&b, model, (oct_session_params){.n_seqs = 4, .chunk = 64},
               (oct_scheduler_params){0});
    submit(&b, a);
    run_to_end(&b);
    check_alone(&b, a, "of four");
    assert_memory_not_equal(a->text[0].token, a->text[1].token, 20 * sizeof(int32_t));
    assert_int_equal(stats_of(&b).prompt.tokens, 200); /* evaluated once */
    assert_int_equal(stats_of(&b).text.tokens, 4 * 19);
    assert_int_equal(stats_of(&b).n_steps, 4 + 19); /* drawn side by side */
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 20; i++)
            assert_true(a->text[k].logprob[i] < 0 && a->text[k].logprob[i] > -40);
    close_bench(&b);
    /* more texts than sequences: the others follow */
    open_bench(&b, model, (oct_session_params){.n_seqs = 3, .chunk = 64},
               (oct_scheduler_params){0});
    submit(&b, a);
    run_to_end(&b);
    check_alone(&b, a, "the fourth of three");
    assert_int_equal(stats_of(&b).prompt.tokens, 200 + 200 - 128);
    close_bench(&b);
    free(a);
}

/* ln p, of the model also where a token is never drawn. */
static void test_logprob(void **state)
{
    (void)state;
    bench b;
    ask *a = make_ask(20, 1, 3);
    oct_error err = {0};
    oct_session *s;
    int64_t V = oct_model_get_info(model)->n_vocab;
    float *logits = malloc((size_t)V * sizeof *logits);
    a->r.logprob = true;
    a->r.n_top = 5;
    open_bench(&b, model, (oct_session_params){0}, (oct_scheduler_params){0});
    submit(&b, a);
    run_to_end(&b);
    oct_session_params p = {.n_threads = 1};
    const oct_batch batch = {.n = 20, .token = a->ids};
    assert_int_equal(oct_session_new(model, &p, &s, &err), OCT_OK);
    assert_int_equal(oct_eval(s, &batch, logits, &err), OCT_OK);
    assert_true(a->text[0].logprob[0] == oct_logprob(logits, V, a->text[0].token[0]));
    oct_token_logprob top;
    assert_int_equal(oct_top_logprobs(logits, V, 1, &top), 1);
    assert_int_equal(a->text[0].top.id, top.id);
    assert_true(a->text[0].top.logprob == top.logprob);
    oct_session_free(s);
    close_bench(&b);
    free(logits);
    free(a);
}

/* Every token of a prompt but the first, once, with the probability that it has there: whatever is
 * there already, however few rows a step may score, and though memory runs out in between. */
static void check_scores(const ask *a)
{
    oct_error err = {0};
    oct_session *s;
    const int64_t V = oct_model_get_info(model)->n_vocab, n = a->r.n_ids;
    float *logits = malloc((size_t)(n * V) * sizeof *logits);
    uint8_t *want = malloc((size_t)n);
    memset(want, 1, (size_t)n);
    const oct_session_params p = {.n_threads = 1};
    const oct_batch batch = {.n = n, .token = a->ids, .want = want};
    assert_int_equal(oct_session_new(model, &p, &s, &err), OCT_OK);
    assert_int_equal(oct_eval(s, &batch, logits, &err), OCT_OK);
    assert_int_equal(a->text[0].n_scores, n - 1);
    for (int64_t i = 0; i < n - 1; i++)
        assert_true(a->text[0].score[i] == oct_logprob(logits + i * V, V, a->ids[i + 1]));
    oct_session_free(s);
    free(logits);
    free(want);
}

static void test_scores(void **state)
{
    (void)state;
    bench b;
    ask *a[5];
    open_bench(
        &b, model,
        (oct_session_params){.n_seqs = 5, .n_ctx = 420, .chunk = 64, .kv_bytes = 5 * page_bytes()},
        (oct_scheduler_params){.step_rows = 40});
    b.scheduler->max_scores = 9;
    for (int i = 0; i < 5; i++) {
        a[i] = make_ask(i == 4 ? 1 : 130 + 40 * i, i == 3 ? 0 : 150, (uint64_t)i);
        for (int k = 0; i > 0 && i < 4 && k < 130; k++)
            a[i]->ids[k] = a[0]->ids[k];
        a[i]->r.prompt_logprobs = i != 3; /* which one finds pages, and goes on beside the others */
        a[i]->r.n_top = i;
        a[i]->r.n = i == 2 ? 3 : 1;
        submit(&b, a[i]);
        step(&b);
    }
    run_to_end(&b);
    assert_true(stats_of(&b).n_evicted > 0);
    for (int i = 0; i < 5; i++) {
        check_alone(&b, a[i], "scored");
        if (i != 3)
            check_scores(a[i]);
        assert_true(i != 3 || a[i]->text[0].n_scores == 0);
    }
    close_bench(&b);
    for (int i = 0; i < 5; i++)
        free(a[i]);
}

/* ---- one of several texts ---- */

static void test_cancel_text(void **state)
{
    (void)state;
    bench b;
    ask *a = make_ask(30, 25, 8);
    a->r.n = 3;
    open_bench(&b, model, (oct_session_params){.n_seqs = 4}, (oct_scheduler_params){0});
    submit(&b, a);
    for (int i = 0; i < 4; i++)
        step(&b);
    oct_scheduler_cancel_text(b.scheduler, a->id, 1);
    oct_scheduler_cancel_text(b.scheduler, a->id, 7); /* there is none */
    oct_scheduler_cancel_text(b.scheduler, a->id, -1);
    const int64_t at = step_now;
    run_to_end(&b);
    assert_true(a->text[1].end == OCT_END_CANCELLED && a->text[1].end_step == at + 1);
    for (int32_t k = 0; k < 3; k += 2)
        same_text("the others", &a->text[k], text_alone(&b, a, k));
    close_bench(&b);
    free(a);
}

/* ---- a conversation ---- */

static void test_keep(void **state)
{
    (void)state;
    bench b;
    ask *a = make_ask(40, 10, 5), *other = make_ask(30, 5, 6);
    oct_kv_usage kv;
    open_bench(&b, model, (oct_session_params){.n_seqs = 1, .n_ctx = 200},
               (oct_scheduler_params){0});
    a->r.keep = true;
    submit(&b, a);
    run_to_end(&b);
    oct_session_get_kv(b.session, &kv);
    assert_int_equal(kv.used, 1);
    /* the next turn: all of that, and three more */
    memcpy(a->ids + 40, a->text[0].token, 10 * sizeof *a->ids);
    a->ids[50] = 9;
    a->ids[51] = 8;
    a->ids[52] = 7;
    a->r.n_ids = 53;
    a->r.sampler.rng = a->text[0].rng;
    int64_t before = stats_of(&b).prompt.tokens;
    submit(&b, a);
    run_to_end(&b);
    assert_int_equal(stats_of(&b).prompt.tokens - before, 4); /* the last token was not evaluated */
    assert_int_equal(a->text[0].n_cached, 49);
    check_alone(&b, a, "second turn");
    /* another text takes the sequence; the conversation starts anew */
    submit(&b, other);
    run_to_end(&b);
    check_alone(&b, other, "another text");
    submit(&b, a);
    run_to_end(&b);
    assert_int_equal(a->text[0].n_cached, 0);
    check_alone(&b, a, "second turn again");
    close_bench(&b);
    free(a);
    free(other);
}

/* ---- what cannot be done ---- */

static void test_refused(void **state)
{
    (void)state;
    bench b;
    ask *a = make_ask(100, 2, 1);
    oct_error err = {0};
    open_bench(&b, model,
               (oct_session_params){.n_seqs = 2, .n_ctx = 420, .kv_bytes = 2 * page_bytes()},
               (oct_scheduler_params){.max_running = 1, .max_waiting = 2});
    oct_request r = a->r;
    r.ids = a->ids;
    r.user = a;
    r.n_ids = 0;
    assert_int_equal(oct_scheduler_submit(b.scheduler, &r, &a->id, &err), OCT_ERR_ARG);
    r.n_ids = 257; /* positions of the pool */
    err = (oct_error){0};
    assert_int_equal(oct_scheduler_submit(b.scheduler, &r, &a->id, &err), OCT_ERR_ARG);
    assert_non_null(strstr(err.text, "257 tokens, but the context holds 256"));
    r.n_ids = 3;
    r.n = -1;
    err = (oct_error){0};
    assert_int_equal(oct_scheduler_submit(b.scheduler, &r, &a->id, &err), OCT_ERR_ARG);
    r.n = 1;
    a->ids[2] = (int32_t)oct_model_get_info(model)->n_vocab;
    err = (oct_error){0};
    assert_int_equal(oct_scheduler_submit(b.scheduler, &r, &a->id, &err), OCT_ERR_ARG);
    assert_non_null(strstr(err.text, "token 2"));
    a->ids[2] = 5;
    r.n_top = OCT_TOP_MAX + 1;
    err = (oct_error){0};
    assert_int_equal(oct_scheduler_submit(b.scheduler, &r, &a->id, &err), OCT_ERR_ARG);
    r.n_top = 0;
    r.sampler.n_bias = -1;
    err = (oct_error){0};
    assert_int_equal(oct_scheduler_submit(b.scheduler, &r, &a->id, &err), OCT_ERR_ARG);
    r.sampler.n_bias = 0;
    a->ids[2] = oct_model_get_info(model)->pad_id;
    err = (oct_error){0};
    assert_int_equal(oct_scheduler_submit(b.scheduler, &r, &a->id, &err), OCT_ERR_ARG);
    a->ids[2] = 5;
    assert_int_equal(oct_scheduler_pending(b.scheduler), 0);
    /* the queue's bound */
    ask *more[3] = {make_ask(10, 3, 1), make_ask(10, 3, 2), make_ask(10, 3, 3)};
    a->r.n_max = -1; /* until the pool is full */
    submit(&b, a);
    step(&b);
    submit(&b, more[0]);
    submit(&b, more[1]);
    err = (oct_error){0};
    more[2]->r.ids = more[2]->ids;
    assert_int_equal(oct_scheduler_submit(b.scheduler, &more[2]->r, &more[2]->id, &err),
                     OCT_ERR_FULL);
    oct_scheduler_cancel(b.scheduler, more[0]->id);
    step(&b);
    submit(&b, more[2]);
    run_to_end(&b);
    assert_int_equal(a->text[0].end, OCT_END_CONTEXT);
    assert_int_equal(a->text[0].n, 256 + 1 - 100);
    check_alone(&b, more[1], "queued");
    check_alone(&b, more[2], "refused, then queued");
    close_bench(&b);
    for (int i = 0; i < 3; i++)
        free(more[i]);
    free(a);
    oct_scheduler *s;
    oct_session *session;
    oct_session_params p = {.n_threads = 1};
    oct_scheduler_params q = {.max_running = 2};
    err = (oct_error){0};
    assert_int_equal(oct_session_new(model, &p, &session, &err), OCT_OK);
    assert_int_equal(oct_scheduler_new(session, &q, &s, &err), OCT_ERR_ARG);
    oct_session_free(session);
}

/* An error of the whole session is told to everyone. */
static void test_failure(void **state)
{
    (void)state;
    bench b;
    ask *a = make_ask(10, 20, 1), *c = make_ask(10, 20, 2), *d = make_ask(10, 5, 3);
    oct_error err = {0};
    open_bench(&b, model, (oct_session_params){.n_seqs = 1}, (oct_scheduler_params){0});
    submit(&b, a);
    submit(&b, c);
    step(&b);
    eval_hook.fail = OCT_ERR_COMM;
    assert_int_equal(oct_scheduler_step(b.scheduler, &err), OCT_ERR_COMM);
    assert_int_equal(a->text[0].status, OCT_ERR_COMM);
    assert_int_equal(c->text[0].status, OCT_ERR_COMM);
    assert_int_equal(oct_scheduler_pending(b.scheduler), 0);
    submit(&b, d); /* if it was not for good */
    run_to_end(&b);
    check_alone(&b, d, "after a failure");
    /* memory that the books say is there is not: only who needs it is told */
    submit(&b, d);
    eval_hook.fail = OCT_ERR_FULL;
    step(&b);
    assert_int_equal(d->text[0].status, OCT_ERR_FULL);
    close_bench(&b);
    free(a);
    free(c);
    free(d);
}

/* ---- one token of the model is broken ---- */

enum { BROKEN = 777 };
static char broken_path[] = "/tmp/octet-scheduler-XXXXXX";

/* A copy of the model in which the token's vector overflows, in a dimension that the last norm
 * leaves out: other logits stay finite. */
static void write_broken(void)
{
    FILE *in = fopen(OCT_TEST_MODELS "/tiny-grok.gguf", "rb"), *out;
    const char *base = oct_gguf_bytes(model->file);
    uint64_t size = oct_gguf_file_bytes(model->file);
    const oct_table *e = &model->embedding;
    int64_t row = BROKEN / e->slice_rows * e->slice_rows_pad + BROKEN % e->slice_rows;
    const uint16_t huge = 0x7f7f; /* bf16: 3.39e38 */
    const float zero = 0;
    char *bytes = malloc(size);
    int fd = mkstemp(broken_path);
    assert_true(fd >= 0);
    assert_int_equal(fread(bytes, 1, size, in), size);
    memcpy(bytes + ((const char *)(e->data + row * e->cols) - base), &huge, sizeof huge);
    memcpy(bytes + ((const char *)model->norm_final.data - base), &zero, sizeof zero);
    out = fdopen(fd, "wb");
    assert_int_equal(fwrite(bytes, 1, size, out), size);
    fclose(in);
    fclose(out);
    free(bytes);
}

static void test_numeric(void **state)
{
    (void)state;
    oct_error err = {0};
    oct_model *broken, *whole = model;
    bench b;
    ask *a[5];
    write_broken();
    assert_int_equal(oct_model_open(broken_path, &broken, &err), OCT_OK);
    model = broken;
    open_bench(&b, broken, (oct_session_params){.n_seqs = 5, .chunk = 32},
               (oct_scheduler_params){0});
    for (int i = 0; i < 5; i++) {
        a[i] = make_ask(10 + 20 * i, 30, (uint64_t)i + 50);
        submit(&b, a[i]);
    }
    oct_scheduler_cancel(b.scheduler, a[4]->id);
    step(&b);
    a[4]->ids[70] = BROKEN; /* in the middle of a prompt, while others draw */
    submit(&b, a[4]);
    run_to_end(&b);
    for (int i = 0; i < 5; i++)
        check_alone(&b, a[i], "beside a broken text");
    assert_int_equal(a[4]->text[0].status, OCT_ERR_NUMERIC);
    for (int i = 0; i < 4; i++)
        assert_int_equal(a[i]->text[0].n, 30);
    /* several texts of a broken prompt */
    a[4]->r.n = 3;
    submit(&b, a[4]);
    submit(&b, a[0]);
    run_to_end(&b);
    for (int k = 0; k < 3; k++)
        assert_int_equal(a[4]->text[k].status, OCT_ERR_NUMERIC);
    check_alone(&b, a[0], "beside three broken texts");
    close_bench(&b);
    model = whole;
    oct_model_close(broken);
    unlink(broken_path);
    for (int i = 0; i < 5; i++)
        free(a[i]);
}

static int open_model(void **state)
{
    (void)state;
    oct_error err = {0};
    return oct_model_open(OCT_TEST_MODELS "/tiny-grok.gguf", &model, &err) == OCT_OK ? 0 : -1;
}

static int close_model(void **state)
{
    (void)state;
    oct_model_close(model);
    return 0;
}

/* test_scheduler [TEST]: that one alone, which thread sanitizers are quick enough for. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_storm),       cmocka_unit_test(test_fair),
        cmocka_unit_test(test_rows),        cmocka_unit_test(test_step_rows),
        cmocka_unit_test(test_cancel),      cmocka_unit_test(test_threads),
        cmocka_unit_test(test_interrupt),   cmocka_unit_test(test_texts),
        cmocka_unit_test(test_logprob),     cmocka_unit_test(test_keep),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_failure),
        cmocka_unit_test(test_numeric),     cmocka_unit_test(test_scores),
        cmocka_unit_test(test_cancel_text),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, open_model, close_model);
}
