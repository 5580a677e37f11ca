/* rig.h: what tests of numeric code share: repeatable random numbers, buffers that end at a page
 * nobody may touch, and calls whose crash is a result. */
#ifndef OCT_TEST_RIG_H
#define OCT_TEST_RIG_H

#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* ---- random numbers (splitmix64) ---- */

typedef struct rig_rng {
    uint64_t state;
} rig_rng;

/* The seed of this run, printed so that a failure can be repeated. */
static inline uint64_t rig_seed(void)
{
    const char *text = getenv("OCTET_TEST_SEED");
    uint64_t seed =
        text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid();
    printf("seed: OCTET_TEST_SEED=%llu repeats this run\n", (unsigned long long)seed);
    return seed;
}

static inline uint64_t rig_next(rig_rng *r)
{
    uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* lo..hi, both included. */
static inline int64_t rig_int(rig_rng *r, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(rig_next(r) % (uint64_t)(hi - lo + 1));
}

/* -1..1 */
static inline float rig_uniform(rig_rng *r)
{
    return (float)((double)(rig_next(r) >> 11) * 0x1p-52 - 1.0);
}

/* Roughly normal, standard deviation 1. */
static inline float rig_normal(rig_rng *r)
{
    float sum = 0.0f;
    for (int i = 0; i < 12; i++)
        sum += rig_uniform(r);
    return sum * 0.5f;
}

/* ---- guarded buffers ---- */

enum { RIG_BUFFERS = 512, RIG_CANARY = 0xa5 };

typedef struct rig_buffer {
    uint8_t *map, *data;
    size_t map_bytes, data_bytes, open_bytes; /* open: before the forbidden page */
} rig_buffer;

/* Buffers of the running check; rig_release gives all of them back. */
typedef struct rig_pool {
    rig_buffer buffer[RIG_BUFFERS];
    int n;
} rig_pool;

/* bytes that end right before a forbidden page, or as near to it as align allows; what lies around
 * them is watched. Never NULL. */
static inline void *rig_buffer_new(rig_pool *p, size_t bytes, size_t align)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t used = (bytes + align - 1) / align * align;
    size_t open = (used + 64 + page - 1) / page * page;
    uint8_t *map =
        mmap(NULL, open + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || p->n == RIG_BUFFERS || mprotect(map + open, page, PROT_NONE) != 0) {
        fprintf(stderr, "rig: no buffer of %zu bytes\n", bytes);
        exit(1);
    }
    memset(map, RIG_CANARY, open);
    uint8_t *data = map + open - used;
    p->buffer[p->n++] = (rig_buffer){map, data, open + page, bytes, open};
    return data;
}

/* From now on the newest buffer may only be read. */
static inline void rig_seal(rig_pool *p)
{
    rig_buffer *b = &p->buffer[p->n - 1];
    mprotect(b->map, b->open_bytes, PROT_READ);
}

/* As rig_buffer_new, holding a copy that the code under test may not write to. */
static inline void *rig_input(rig_pool *p, const void *from, size_t bytes, size_t align)
{
    void *data = rig_buffer_new(p, bytes, align);
    if (bytes > 0)
        memcpy(data, from, bytes);
    rig_seal(p);
    return data;
}

/* Frees all buffers; false if something was written beside one. */
static inline bool rig_release(rig_pool *p)
{
    bool clean = true;
    for (int i = 0; i < p->n; i++) {
        rig_buffer *b = &p->buffer[i];
        const uint8_t *end = b->map + b->open_bytes;
        for (const uint8_t *c = b->map; c < b->data; c++)
            clean &= *c == RIG_CANARY;
        for (const uint8_t *c = b->data + b->data_bytes; c < end; c++)
            clean &= *c == RIG_CANARY;
        munmap(b->map, b->map_bytes);
    }
    p->n = 0;
    return clean;
}

/* ---- calls that may crash ---- */

static sigjmp_buf rig_escape;
static volatile sig_atomic_t rig_inside;

static inline void rig_on_signal(int sig)
{
    if (!rig_inside) {
        signal(sig, SIG_DFL);
        raise(sig);
        return;
    }
    siglongjmp(rig_escape, sig);
}

/* Call it inside the test: cmocka sets handlers of its own around each. */
static inline void rig_catch_crashes(void)
{
    struct sigaction a = {.sa_handler = rig_on_signal};
    const int sigs[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++)
        sigaction(sigs[i], &a, NULL);
}

/* The compiler fears for variables that a call changes before it crashes; those of the checks
 * change between calls only. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wclobbered"
#endif

/* Runs the statement; true if it came back, false if it crashed. */
#define RIG_SURVIVES(statement)                                                                \
    (sigsetjmp(rig_escape, 1) == 0 ? (rig_inside = 1, (void)(statement), rig_inside = 0, true) \
                                   : (rig_inside = 0, false))

/* Equal bit for bit; any NaN equals any other. Returns the first index that differs, or -1. */
static inline int64_t rig_differs(const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && !(a[i] != a[i] && b[i] != b[i]))
            return i;
    return -1;
}

/* A call that must succeed: its error is `must`. */
#define MUST(call)                     \
    do {                               \
        oct_error must = {0};          \
        if ((call) != OCT_OK)          \
            fail_msg("%s", must.text); \
    } while (0)

#endif
