#include "threads.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "machine.h"

/* Spins before sleeping: about 50 us, longer than any barrier takes when all threads have a core of
 * their own, shorter than a scheduler's slice when they do not. */
enum { SPINS = 1500 };

/* A word that threads wait on until it changes. */
typedef struct gate {
    _Alignas(64) _Atomic uint32_t word;
    _Atomic uint32_t sleepers;
} gate;

/* Time that one thread spent at barriers; written by that thread alone. */
typedef struct wait_time {
    _Alignas(64) _Atomic uint64_t ns;
} wait_time;

struct oct_team {
    gate start;                       /* word: runs begun */
    gate barrier;                     /* word: barriers passed */
    _Alignas(64) _Atomic int waiting; /* threads at the current barrier */
    int n_threads, n_started;
    pid_t process; /* that has the threads */
    _Atomic int quit;
    oct_team_fn *fn;
    void *ctx;
    pthread_t *thread; /* [n_threads], 0 unused */
    cpu_set_t *cpus;   /* [n_threads]; NULL: nobody is bound */
    wait_time *waited; /* [n_threads] */
    /* Of thread 0, while depth > 0. */
    int depth;
    bool bound;
    cpu_set_t before;
};

typedef struct starter {
    oct_team *team;
    int thread;
} starter;

/* Of the team that this thread is running for. */
static _Thread_local wait_time *my_waited;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

double oct_seconds(void)
{
    return 1e-9 * (double)now_ns();
}

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static void gate_wait(gate *g, uint32_t seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&g->word, memory_order_acquire) != seen)
            return;
        pause_cpu();
    }
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->word) == seen)
        syscall(SYS_futex, &g->word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&g->sleepers, 1);
}

static void gate_open(gate *g)
{
    atomic_fetch_add(&g->word, 1);
    if (atomic_load(&g->sleepers) > 0)
        syscall(SYS_futex, &g->word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void oct_team_barrier(oct_team *t)
{
    if (t->n_threads == 1)
        return;
    uint32_t seen = atomic_load_explicit(&t->barrier.word, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&t->waiting, 1, memory_order_acq_rel) == t->n_threads - 1) {
        atomic_store_explicit(&t->waiting, 0, memory_order_relaxed);
        gate_open(&t->barrier);
    } else {
        uint64_t start = now_ns();
        gate_wait(&t->barrier, seen);
        uint64_t before = atomic_load_explicit(&my_waited->ns, memory_order_relaxed);
        atomic_store_explicit(&my_waited->ns, before + now_ns() - start, memory_order_relaxed);
    }
}

double oct_team_waited(const oct_team *t)
{
    uint64_t ns = 0;
    for (int i = 0; i < t->n_threads; i++)
        ns += atomic_load_explicit(&t->waited[i].ns, memory_order_relaxed);
    return 1e-9 * (double)ns / t->n_threads;
}

static bool bind_self(const oct_team *t, int thread)
{
    return sched_setaffinity(0, sizeof t->cpus[thread], &t->cpus[thread]) == 0;
}

static void *worker(void *arg)
{
    starter s = *(starter *)arg;
    free(arg);
    if (s.team->cpus)
        (void)bind_self(s.team, s.thread);
    my_waited = &s.team->waited[s.thread];
    uint32_t seen = 0;
    for (;;) {
        gate_wait(&s.team->start, seen++);
        if (atomic_load(&s.team->quit))
            return NULL;
        s.team->fn(s.team->ctx, s.thread, s.team->n_threads);
        oct_team_barrier(s.team);
    }
}

static oct_status start_worker(oct_team *t, int i, oct_error *err)
{
    starter *s = malloc(sizeof *s);
    if (!s)
        return oct_fail(err, OCT_ERR_MEMORY, "threads: out of memory");
    *s = (starter){t, i};
    int e = pthread_create(&t->thread[i], NULL, worker, s);
    if (e) {
        free(s);
        return oct_fail(err, OCT_ERR_MEMORY, "threads: cannot start thread %d of %d: %s", i + 1,
                        t->n_threads, strerror(e));
    }
    t->n_started = i + 1;
    return OCT_OK;
}

/* False without memory. */
static bool copy_cpus(oct_team *t, const cpu_set_t *cpus)
{
    if (!cpus)
        return true;
    t->cpus = malloc((size_t)t->n_threads * sizeof *t->cpus);
    if (t->cpus)
        memcpy(t->cpus, cpus, (size_t)t->n_threads * sizeof *t->cpus);
    return t->cpus != NULL;
}

oct_status oct_team_new(int n_threads, const cpu_set_t *cpus, oct_team **out, oct_error *err)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > OCT_MAX_THREADS)
        return oct_fail(err, OCT_ERR_ARG, "threads: %d asked for, expected 1..%d", n_threads,
                        OCT_MAX_THREADS);
    oct_team *t = aligned_alloc(64, sizeof *t);
    pthread_t *ids = calloc((size_t)n_threads, sizeof *ids);
    if (!t || !ids) {
        free(t);
        free(ids);
        return oct_fail(err, OCT_ERR_MEMORY, "threads: out of memory");
    }
    memset(t, 0, sizeof *t);
    t->n_threads = n_threads;
    t->n_started = 1;
    t->process = getpid();
    t->thread = ids;
    t->waited = aligned_alloc(64, (size_t)n_threads * sizeof *t->waited);
    if (t->waited)
        memset(t->waited, 0, (size_t)n_threads * sizeof *t->waited);
    if (!t->waited || !copy_cpus(t, cpus)) {
        oct_team_free(t);
        return oct_fail(err, OCT_ERR_MEMORY, "threads: out of memory");
    }

    sigset_t all, before; /* but those that a thread's own instructions raise */
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    oct_status status = OCT_OK;
    for (int i = 1; i < n_threads && status == OCT_OK; i++)
        status = start_worker(t, i, err);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status != OCT_OK) {
        oct_team_free(t);
        return status;
    }
    *out = t;
    return OCT_OK;
}

void oct_team_free(oct_team *t)
{
    if (!t)
        return;
    atomic_store(&t->quit, 1);
    gate_open(&t->start);
    for (int i = 1; i < t->n_started && t->process == getpid(); i++)
        pthread_join(t->thread[i], NULL);
    free(t->thread);
    free(t->waited);
    free(t->cpus);
    free(t);
}

int oct_team_size(const oct_team *t)
{
    return t->n_threads;
}

void oct_team_begin(oct_team *t)
{
    if (t->depth++ == 0)
        t->bound =
            t->cpus && sched_getaffinity(0, sizeof t->before, &t->before) == 0 && bind_self(t, 0);
}

void oct_team_end(oct_team *t)
{
    if (--t->depth == 0 && t->bound)
        (void)sched_setaffinity(0, sizeof t->before, &t->before);
}

void oct_team_run(oct_team *t, oct_team_fn *fn, void *ctx)
{
    t->fn = fn;
    t->ctx = ctx;
    my_waited = &t->waited[0];
    oct_team_begin(t);
    if (t->n_threads > 1)
        gate_open(&t->start);
    fn(ctx, 0, t->n_threads);
    oct_team_barrier(t);
    oct_team_end(t);
}

void oct_team_range(int64_t n, int thread, int n_threads, int64_t *first, int64_t *end)
{
    int64_t each = n / n_threads, more = n % n_threads;
    *first = thread * each + (thread < more ? thread : more);
    *end = *first + each + (thread < more);
}
