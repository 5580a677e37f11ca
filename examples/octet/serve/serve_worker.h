/* serve_worker.h: a thread for what takes long and is nobody's else: reading bodies, tokenizing. */
#ifndef OCT_SERVE_WORKER_H
#define OCT_SERVE_WORKER_H

#include <pthread.h>
#include <stdbool.h>

/* Part of what it is about. */
typedef struct oct_serve_job {
    struct oct_serve_job *next;
    void (*work)(struct oct_serve_job *j); /* on the worker */
    void (*done)(struct oct_serve_job *j); /* on the loop, from oct_serve_worker_collect */
} oct_serve_job;

typedef struct oct_serve_worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int notify; /* as of the engine */
    bool stop, started;
    oct_serve_job *first, *last;           /* to do */
    oct_serve_job *first_done, *last_done; /* to be collected */
} oct_serve_worker;

bool oct_serve_worker_start(oct_serve_worker *w, int notify); /* false: no thread */
void oct_serve_worker_post(oct_serve_worker *w, oct_serve_job *j);
void oct_serve_worker_collect(oct_serve_worker *w);
/* Finishes the job it is at; others are dropped, and their done is not called. */
void oct_serve_worker_stop(oct_serve_worker *w);

#endif
