#include "probe.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "machine.h"

/* Everything measured passes through here, so that no compiler can leave it out. */
static atomic_uint_fast64_t sink;

/* ---- the loops of the reference row ---------------------------------------------------------- */

static uint64_t read_words(const void *p, size_t bytes, size_t ahead)
{
    const char *c = p;
    uint64_t s[4] = {0}, v[4];
    for (size_t i = 0; i < bytes; i += sizeof v) {
        if (i % 64 == 0)
            __builtin_prefetch((const char *)((uintptr_t)c + i + ahead));
        memcpy(v, c + i, sizeof v);
        for (int j = 0; j < 4; j++)
            s[j] += v[j];
    }
    return s[0] + s[1] + s[2] + s[3];
}

/* Accumulators that the compiler cannot see through: it must neither fold nor vectorise. */
#if defined(__x86_64__)
#define IN_FLOAT_REGISTER "+x"
#elif defined(__aarch64__)
#define IN_FLOAT_REGISTER "+w"
#else
#define IN_FLOAT_REGISTER "+m"
#endif
#define EIGHT(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

static uint64_t multiply_int(int64_t rounds)
{
    int32_t a = 3, b = 5;
    __asm__("" : "+r"(a), "+r"(b));
#define START(i) uint32_t x##i = i;
#define STEP(i)                      \
    x##i += (uint32_t)(a * (b ^ i)); \
    __asm__("" : "+r"(x##i), "+r"(a));
#define SUM(i) +x##i
    EIGHT(START)
    for (int64_t r = 0; r < rounds; r++) {
        EIGHT(STEP)
    }
    return 0 EIGHT(SUM);
#undef START
#undef STEP
#undef SUM
}

static uint64_t multiply_f32(int64_t rounds)
{
    float a = 0.5f, b = 0.25f;
    __asm__("" : IN_FLOAT_REGISTER(a), IN_FLOAT_REGISTER(b));
#define START(i) float x##i = (float)i;
#define STEP(i)          \
    x##i = x##i * a + b; \
    __asm__("" : IN_FLOAT_REGISTER(x##i));
#define SUM(i) +x##i
    EIGHT(START)
    for (int64_t r = 0; r < rounds; r++) {
        EIGHT(STEP)
    }
    float sum = 0 EIGHT(SUM);
    return (uint64_t)(int64_t)sum;
#undef START
#undef STEP
#undef SUM
}

static const oct_probe ref_int = {"32-bit multiply and add", 0, 1, 8 * 2, multiply_int};
static const oct_probe ref_f32 = {"f32 multiply, add", 0, 0, 8 * 2, multiply_f32};
const oct_probe_set oct_probes__ref = {read_words, {&ref_int, &ref_f32, NULL}};

const oct_probe *oct_probe_find(oct_probe_kind kind, const oct_kernels *row)
{
    const oct_probe *p = row->probes ? row->probes->peaks[kind] : NULL;
    return p && ((row->needs | p->needs) & ~oct_isa_detect()) == 0 ? p : NULL;
}

/* ---- measuring ------------------------------------------------------------------------------- */

typedef struct read_job {
    oct_probe_read_fn *read;
    size_t ahead;
    const oct_probe_span *spans;
    int64_t n;
} read_job;

static void read_thread(void *ctx, int thread, int n_threads)
{
    const read_job *j = ctx;
    uint64_t sum = 0;
    for (int64_t i = 0; i < j->n; i++) {
        int64_t lo, hi;
        oct_team_range((int64_t)(j->spans[i].bytes / 256), thread, n_threads, &lo, &hi);
        sum +=
            j->read((const char *)j->spans[i].data + 256 * lo, (size_t)(hi - lo) * 256, j->ahead);
    }
    atomic_store_explicit(&sink, sum, memory_order_relaxed);
}

double oct_probe_read(oct_team *team, const oct_kernels *row, size_t ahead,
                      const oct_probe_span *spans, int64_t n_spans)
{
    read_job j = {(row->probes ? row->probes : &oct_probes__ref)->read, ahead, spans, n_spans};
    double bytes = 0;
    for (int64_t i = 0; i < n_spans; i++)
        bytes += (double)(spans[i].bytes / 256 * 256);
    double start = oct_seconds();
    oct_team_run(team, read_thread, &j);
    return bytes / (oct_seconds() - start);
}

void oct_probe_uncache(const void *p, size_t bytes)
{
#if defined(__x86_64__)
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_ia32_clflush((const char *)p + i);
    __builtin_ia32_mfence();
#else
    (void)p, (void)bytes;
#endif
}

typedef struct peak_job {
    const oct_probe *p;
    oct_team *team;
    double seconds;
    double *rate; /* [threads] operations per second */
} peak_job;

static void peak_thread(void *ctx, int thread, int n_threads)
{
    enum { ROUNDS = 20000 }; /* about 0.1 ms: between looks at the clock */
    const peak_job *j = ctx;
    uint64_t sum = j->p->run(ROUNDS / 10);
    int64_t n = 0;
    (void)n_threads;
    oct_team_barrier(j->team);
    double start = oct_seconds(), end;
    do {
        sum += j->p->run(ROUNDS);
        n += ROUNDS;
        end = oct_seconds();
    } while (end - start < j->seconds);
    atomic_store_explicit(&sink, sum, memory_order_relaxed);
    j->rate[thread] = (double)n * j->p->ops / (end - start);
}

double oct_probe_peak(oct_team *team, const oct_probe *p, double seconds)
{
    double rate[OCT_MAX_THREADS], sum = 0;
    peak_job j = {p, team, seconds, rate};
    oct_team_run(team, peak_thread, &j);
    for (int i = 0; i < oct_team_size(team); i++)
        sum += rate[i];
    return sum;
}

typedef struct barrier_job {
    oct_team *team;
    int64_t n;
} barrier_job;

static void barrier_thread(void *ctx, int thread, int n_threads)
{
    const barrier_job *j = ctx;
    (void)thread, (void)n_threads;
    for (int64_t i = 0; i < j->n; i++)
        oct_team_barrier(j->team);
}

double oct_probe_barrier(oct_team *team, int64_t n)
{
    barrier_job j = {team, n};
    double start = oct_seconds();
    oct_team_run(team, barrier_thread, &j);
    return (oct_seconds() - start) / (double)n;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double oct_probe_wake(oct_team *team, int n)
{
    enum { MOST = 101 };
    double t[MOST];
    barrier_job j = {team, 0};
    n = n < 1 ? 1 : n > MOST ? MOST : n;
    for (int i = 0; i < n; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL); /* longer than threads spin */
        double start = oct_seconds();
        oct_team_run(team, barrier_thread, &j);
        t[i] = oct_seconds() - start;
    }
    qsort(t, (size_t)n, sizeof *t, ascending);
    return t[n / 2];
}
