#include "guard.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "machine.h"

/* LOOK: how often this thread wakes. STALL: if it does not, its process was stopped, and can say
 * nothing of others; it waits anew. */
static const double LOOK_SECONDS = 0.5, STALL_SECONDS = 1;
/* TURNS: ranks speak one after the other, a second apart, up to this one: the first ends the
 * job. */
enum { LAST_SECONDS = 3, TURNS = 4 };

struct oct_guard {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool end;
    const char *what;
    double seconds, started, until;
    oct_guard_say *say;
    void *ctx;
};

static void *guard(void *arg)
{
    oct_guard *g = arg;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    const int turn = rank ? atoi(rank) : 0;
    g->until += turn < TURNS ? turn : TURNS;
    pthread_mutex_lock(&g->lock);
    for (double seen = g->started; !g->end;) {
        const double now = oct_seconds();
        if (now - seen > LOOK_SECONDS + STALL_SECONDS)
            g->until = now + g->seconds;
        if (now >= g->until)
            break;
        seen = now;
        const double next = now + LOOK_SECONDS < g->until ? now + LOOK_SECONDS : g->until;
        const struct timespec at = {(time_t)next, (long)(1e9 * (next - floor(next)))};
        (void)pthread_cond_timedwait(&g->ended, &g->lock, &at);
    }
    bool late = !g->end;
    pthread_mutex_unlock(&g->lock);
    if (!late)
        return NULL;
    char text[OCT_ERROR_TEXT], host[64] = "";
    gethostname(host, sizeof host - 1);
    snprintf(
        text, sizeof text,
        "MPI: rank %s on %s waits for the others in %s, for %.0f s now: one has not been started, "
        "is no octet, or is stopped",
        rank ? rank : "?", host, g->what, g->seconds);
    signal(SIGALRM, SIG_DFL); /* should even that not end */
    alarm(LAST_SECONDS);
    g->say(g->ctx, text);
    _exit(1);
}

oct_guard *oct_guard_begin(const char *what, double seconds, oct_guard_say *say, void *ctx)
{
    oct_guard *g = calloc(1, sizeof *g);
    pthread_condattr_t monotonic;
    sigset_t all, old;
    if (!g)
        return NULL;
    g->what = what;
    g->seconds = seconds;
    g->say = say;
    g->ctx = ctx;
    g->started = oct_seconds();
    g->until = g->started + seconds;
    pthread_mutex_init(&g->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&g->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int e = pthread_create(&g->thread, NULL, guard, g);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (e == 0)
        return g;
    pthread_cond_destroy(&g->ended);
    pthread_mutex_destroy(&g->lock);
    free(g);
    return NULL;
}

void oct_guard_end(oct_guard *g)
{
    if (!g)
        return;
    pthread_mutex_lock(&g->lock);
    g->end = true;
    pthread_cond_signal(&g->ended);
    pthread_mutex_unlock(&g->lock);
    pthread_join(g->thread, NULL);
    pthread_cond_destroy(&g->ended);
    pthread_mutex_destroy(&g->lock);
    free(g);
}
