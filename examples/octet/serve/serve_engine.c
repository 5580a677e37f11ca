#include "serve_engine.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <octet/job.h>
#include <octet/machine.h>

#include "ranks.h"

void oct_serve_engine_init(oct_serve_engine *e, int notify)
{
    *e = (oct_serve_engine){.notify = notify};
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wake, NULL);
}

void oct_serve_events_clear(oct_serve_events *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->event[i].error);
    l->n = l->n_top = 0;
}

static void free_events(oct_serve_events *l)
{
    oct_serve_events_clear(l);
    free(l->event);
    free(l->top);
}

void oct_serve_engine_free(oct_serve_engine *e)
{
    free_events(&e->events);
    free_events(&e->filling);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->wake);
}

static void notify(const oct_serve_engine *e)
{
    const uint64_t one = 1;
    (void)!write(e->notify, &one, sizeof one);
}

/* ---- events --------------------------------------------------------------------------------- */

static bool make_room(oct_serve_events *l, size_t n_top)
{
    if (l->n == l->room) {
        size_t room = 2 * l->room + 64;
        oct_serve_event *more = realloc(l->event, room * sizeof *more);
        if (!more)
            return false;
        l->event = more;
        l->room = room;
    }
    if (n_top > l->room_top - l->n_top) {
        size_t room = 2 * (l->n_top + n_top) + 64;
        oct_token_logprob *more = realloc(l->top, room * sizeof *more);
        if (!more)
            return false;
        l->top = more;
        l->room_top = room;
    }
    return true;
}

static bool add_event(oct_serve_events *l, const oct_event *from)
{
    const size_t n_top = from->n_top > 0 ? (size_t)from->n_top : 0;
    if (!make_room(l, n_top))
        return false;
    oct_serve_event *to = &l->event[l->n++];
    *to = (oct_serve_event){.user = from->user,
                            .kind = from->kind,
                            .index = from->index,
                            .token = from->token,
                            .n_prompt = from->n_prompt,
                            .n_cached = from->n_cached,
                            .n_generated = from->n_generated,
                            .n_done = from->n_done,
                            .logprob = from->logprob,
                            .time = oct_seconds(),
                            .top = l->n_top,
                            .n_top = from->n_top,
                            .end = from->end};
    if (n_top > 0)
        memcpy(l->top + l->n_top, from->top, n_top * sizeof *l->top);
    l->n_top += n_top;
    if (from->error) {
        to->status = from->error->status;
        to->error = strdup(from->error->text);
    }
    return true;
}

static void on_event(void *ctx, const oct_event *event)
{
    oct_serve_engine *e = ctx;
    if (!add_event(&e->filling, event))
        e->lost = true;
}

/* Hands over what a step gave. The loop may not have collected the last lists. */
static void publish(oct_serve_engine *e, double seconds)
{
    oct_serve_figures f = {0};
    oct_scheduler_get_stats(e->scheduler, &f.scheduler);
    oct_session_get_kv(e->session, &f.kv);
    oct_session_get_stats(e->session, &f.session);
    f.session.expert_rows = NULL;
    f.comm = oct_job_stats(oct_ranks_job());
    f.eval_seconds = f.session.seconds;
    f.read_limit = e->read_limit;
    pthread_mutex_lock(&e->lock);
    f.step_seconds = e->figures.step_seconds + seconds;
    e->figures = f;
    oct_serve_events *to = &e->events, *from = &e->filling;
    const bool any = from->n > 0;
    if (to->n == 0) {
        oct_serve_events swap = *to;
        *to = *from;
        *from = swap;
    } else {
        for (size_t i = 0; i < from->n && !e->lost; i++) {
            oct_serve_event *event = &from->event[i];
            if (!make_room(to, (size_t)(event->n_top > 0 ? event->n_top : 0))) {
                e->lost = true;
                break;
            }
            if (event->n_top > 0)
                memcpy(to->top + to->n_top, from->top + event->top,
                       (size_t)event->n_top * sizeof *to->top);
            to->event[to->n] = *event;
            to->event[to->n++].top = to->n_top;
            to->n_top += (size_t)(event->n_top > 0 ? event->n_top : 0);
            event->error = NULL;
        }
        oct_serve_events_clear(from);
    }
    pthread_mutex_unlock(&e->lock);
    if (any)
        notify(e);
}

/* ---- the engine's thread -------------------------------------------------------------------- */

static void set_state(oct_serve_engine *e, oct_serve_state state, const oct_error *err)
{
    pthread_mutex_lock(&e->lock);
    e->state = state;
    if (err)
        e->error = *err;
    pthread_mutex_unlock(&e->lock);
    notify(e);
}

void oct_serve_engine_fail(oct_serve_engine *e, const oct_error *err)
{
    set_state(e, OCT_SERVE_FAILED, err);
}

/* Waits until there is something to do; false: to stop. */
static bool wait_for_work(oct_serve_engine *e)
{
    pthread_mutex_lock(&e->lock);
    while (!e->stop && oct_scheduler_pending(e->scheduler) == 0)
        pthread_cond_wait(&e->wake, &e->lock);
    const bool go_on = !e->stop;
    pthread_mutex_unlock(&e->lock);
    return go_on;
}

void oct_serve_engine_run(oct_serve_engine *e, oct_session *s, const oct_scheduler_params *params)
{
    oct_error err = {0};
    oct_scheduler_params p = *params;
    p.event = on_event;
    p.ctx = e;
    e->session = s;
    oct_status status = oct_scheduler_new(s, &p, &e->scheduler, &err);
    if (status == OCT_OK) {
        publish(e, 0);
        set_state(e, OCT_SERVE_READY, NULL);
    }
    while (status == OCT_OK && wait_for_work(e)) {
        const double start = oct_seconds();
        status = oct_scheduler_step(e->scheduler, &err);
        publish(e, oct_seconds() - start);
        if (e->lost)
            status = oct_fail(&err, OCT_ERR_MEMORY, "out of memory");
    }
    if (status != OCT_OK && status != OCT_ERR_CANCELLED)
        set_state(e, OCT_SERVE_FAILED, &err);
}

/* ---- the loop's side ------------------------------------------------------------------------ */

oct_status oct_serve_engine_submit(oct_serve_engine *e, const oct_request *r, uint64_t *id,
                                   oct_error *err)
{
    OCT_TRY(oct_scheduler_submit(e->scheduler, r, id, err));
    pthread_mutex_lock(&e->lock);
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    return OCT_OK;
}

void oct_serve_engine_cancel(oct_serve_engine *e, uint64_t id, int32_t index)
{
    if (index < 0)
        oct_scheduler_cancel(e->scheduler, id);
    else
        oct_scheduler_cancel_text(e->scheduler, id, index);
}

void oct_serve_engine_stop(oct_serve_engine *e)
{
    __atomic_store_n(&e->cancel, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

void oct_serve_engine_collect(oct_serve_engine *e, oct_serve_events *out)
{
    pthread_mutex_lock(&e->lock);
    oct_serve_events swap = e->events;
    e->events = *out;
    *out = swap;
    pthread_mutex_unlock(&e->lock);
}

oct_serve_state oct_serve_engine_state(oct_serve_engine *e, oct_error *err)
{
    pthread_mutex_lock(&e->lock);
    const oct_serve_state state = e->state;
    if (err)
        *err = e->error;
    pthread_mutex_unlock(&e->lock);
    return state;
}

void oct_serve_engine_figures(oct_serve_engine *e, oct_serve_figures *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->figures;
    pthread_mutex_unlock(&e->lock);
}
