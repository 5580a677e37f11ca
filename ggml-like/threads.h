/* threads.h: a team of threads that run one function together, and their barrier.
 *
 * The caller of oct_team_run is thread 0. Between runs the others sleep; inside a run they spin for
 * a moment at barriers before they sleep, so that short phases cost little and an idle or
 * oversubscribed machine is left alone. */
#ifndef OCT_THREADS_H
#define OCT_THREADS_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "types.h"

/* Whether a flag is raised that another thread or a signal handler may be writing; NULL: never. */
static inline bool oct_cancelled(const volatile int *cancel)
{
    return cancel && __atomic_load_n(cancel, __ATOMIC_RELAXED) != 0;
}

typedef struct oct_team oct_team;

/* n_threads 1..OCT_MAX_THREADS. cpus: [n_threads] the processors that each thread is bound to,
 * NULL: none is. Thread 0 is bound while a run lasts only. A refused
 * binding costs speed, not correctness. Signals are blocked in the new
 * threads, but those that their own instructions raise. */
OCT_MUST_CHECK oct_status oct_team_new(int n_threads, const cpu_set_t *cpus, oct_team **out,
                                       oct_error *err);
void oct_team_free(oct_team *t); /* NULL is fine; not from inside a run */
int oct_team_size(const oct_team *t);

/* Calls fn(ctx, thread, n_threads) on every thread and returns when all have returned. One caller
 * at a time. */
typedef void oct_team_fn(void *ctx, int thread, int n_threads);
void oct_team_run(oct_team *t, oct_team_fn *fn, void *ctx);

/* Around runs that follow each other closely: thread 0 is bound once for all of them. Optional. */
void oct_team_begin(oct_team *t);
void oct_team_end(oct_team *t);

/* Inside a run, by every thread: waits for all. What was written before is visible after. */
void oct_team_barrier(oct_team *t);

/* Seconds that a thread has waited at barriers since the team was made, mean over its threads. */
double oct_team_waited(const oct_team *t);

/* The part of 0..n-1 that belongs to a thread: contiguous, sizes differ by at most one. */
void oct_team_range(int64_t n, int thread, int n_threads, int64_t *first, int64_t *end);

#endif
