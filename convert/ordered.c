#include "ordered.h"

#include <pthread.h>
#include <stdbool.h>

#include "threads.h"

typedef struct loop {
    const oct_ordered *o;
    pthread_mutex_t lock;
    pthread_cond_t turned;
    int64_t next; /* item to begin */
    int64_t turn; /* item whose turn it is */
    bool stop;
    oct_error first; /* error */
} loop;

static bool stopped(loop *l)
{
    if (!l->stop && l->o->cancel && *l->o->cancel) {
        (void)oct_fail(&l->first, OCT_ERR_CANCELLED, "cancelled");
        l->stop = true;
        pthread_cond_broadcast(&l->turned);
    }
    return l->stop;
}

/* All with the lock held. */
static void stop_for(loop *l, const oct_error *e)
{
    if (!l->stop)
        l->first = *e;
    l->stop = true;
    pthread_cond_broadcast(&l->turned);
}

/* One item, lock held on entry and exit. */
static void run_item(loop *l, int thread, int64_t i)
{
    const oct_ordered *o = l->o;
    oct_error e = {0};
    oct_status s = OCT_OK;
    pthread_mutex_unlock(&l->lock);
    if (o->work)
        s = o->work(o->ctx, thread, i, &e);
    pthread_mutex_lock(&l->lock);
    while (s == OCT_OK && !l->stop && l->turn != i)
        pthread_cond_wait(&l->turned, &l->lock);
    if (s == OCT_OK && l->stop)
        return;
    pthread_mutex_unlock(&l->lock);
    if (s == OCT_OK && o->turn)
        s = o->turn(o->ctx, thread, i, &e);
    pthread_mutex_lock(&l->lock);
    if (s != OCT_OK) {
        stop_for(l, &e);
        return;
    }
    l->turn++;
    pthread_cond_broadcast(&l->turned);
    pthread_mutex_unlock(&l->lock);
    if (o->after)
        s = o->after(o->ctx, thread, i, &e);
    pthread_mutex_lock(&l->lock);
    if (s != OCT_OK)
        stop_for(l, &e);
    else if (o->done)
        o->done(o->ctx, i);
}

static void run_thread(void *ctx, int thread, int n_threads)
{
    loop *l = ctx;
    (void)n_threads;
    pthread_mutex_lock(&l->lock);
    while (!stopped(l) && l->next < l->o->n)
        run_item(l, thread, l->next++);
    pthread_mutex_unlock(&l->lock);
}

oct_status oct_ordered_run(const oct_ordered *o, int n_threads, oct_error *err)
{
    loop l = {.o = o, .lock = PTHREAD_MUTEX_INITIALIZER, .turned = PTHREAD_COND_INITIALIZER};
    oct_team *team = NULL;
    OCT_TRY(oct_team_new(n_threads, NULL, &team, err));
    oct_team_run(team, run_thread, &l);
    oct_team_free(team);
    pthread_mutex_destroy(&l.lock);
    pthread_cond_destroy(&l.turned);
    if (l.stop)
        return oct_fail(err, l.first.status, "%s", l.first.text);
    return OCT_OK;
}
