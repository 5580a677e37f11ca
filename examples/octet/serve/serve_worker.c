#include "serve_worker.h"

#include <stdint.h>
#include <unistd.h>

static void append(oct_serve_job **first, oct_serve_job **last, oct_serve_job *j)
{
    j->next = NULL;
    if (*first)
        (*last)->next = j;
    else
        *first = j;
    *last = j;
}

static oct_serve_job *take(oct_serve_worker *w)
{
    oct_serve_job *j = NULL;
    pthread_mutex_lock(&w->lock);
    while (!w->stop && !w->first)
        pthread_cond_wait(&w->wake, &w->lock);
    if (!w->stop) {
        j = w->first;
        w->first = j->next;
    }
    pthread_mutex_unlock(&w->lock);
    return j;
}

static void *run(void *ctx)
{
    oct_serve_worker *w = ctx;
    const uint64_t one = 1;
    for (oct_serve_job *j; (j = take(w)) != NULL;) {
        j->work(j);
        pthread_mutex_lock(&w->lock);
        append(&w->first_done, &w->last_done, j);
        pthread_mutex_unlock(&w->lock);
        (void)!write(w->notify, &one, sizeof one);
    }
    return NULL;
}

bool oct_serve_worker_start(oct_serve_worker *w, int notify)
{
    *w = (oct_serve_worker){.notify = notify};
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    w->started = pthread_create(&w->thread, NULL, run, w) == 0;
    return w->started;
}

void oct_serve_worker_post(oct_serve_worker *w, oct_serve_job *j)
{
    pthread_mutex_lock(&w->lock);
    append(&w->first, &w->last, j);
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

void oct_serve_worker_collect(oct_serve_worker *w)
{
    pthread_mutex_lock(&w->lock);
    oct_serve_job *j = w->first_done;
    w->first_done = NULL;
    pthread_mutex_unlock(&w->lock);
    for (oct_serve_job *next; j; j = next) {
        next = j->next;
        j->done(j);
    }
}

void oct_serve_worker_stop(oct_serve_worker *w)
{
    if (!w->started)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->wake);
    w->started = false;
}
