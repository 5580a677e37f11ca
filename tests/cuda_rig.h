/* cuda_rig.h: what checks of emulated CUDA kernels share: random numbers of many kinds, buffers
 * that end at a forbidden page, launches whose failure is a result. A check returns NULL or what is
 * wrong, and is used twice: as it is, and to see that it notices kernels that are spoiled
 * (test_cuda.c). */
#ifndef OCT_TEST_CUDA_RIG_H
#define OCT_TEST_CUDA_RIG_H

#include <math.h>
#include <stdarg.h>

#include "cuda_emulator.h"
#include "kernel_oracle.h"
#include "kernels_cuda.h"
#include "rig.h"

static rig_rng cuda_rng;
static rig_pool cuda_pool;
static char cuda_text[512];

#define CUDA_FAILS(...)                                     \
    do {                                                    \
        snprintf(cuda_text, sizeof cuda_text, __VA_ARGS__); \
        rig_release(&cuda_pool);                            \
        return cuda_text;                                   \
    } while (0)

#define CUDA_TRY(call)               \
    do {                             \
        const char *wrong_ = (call); \
        if (wrong_)                  \
            return wrong_;           \
    } while (0)

/* Says more about what is wrong. */
__attribute__((format(printf, 2, 3))) static inline const char *cuda_note(const char *wrong,
                                                                          const char *format, ...)
{
    if (wrong != cuda_text)
        snprintf(cuda_text, sizeof cuda_text, "%s", wrong);
    size_t n = strlen(cuda_text);
    va_list args;
    va_start(args, format);
    vsnprintf(cuda_text + n, sizeof cuda_text - n, format, args);
    va_end(args);
    rig_release(&cuda_pool);
    return cuda_text;
}

/* The end of a case. */
static inline const char *cuda_case_ends(const char *what)
{
    if (!rig_release(&cuda_pool))
        CUDA_FAILS("%s: wrote beside a buffer", what);
    return NULL;
}

/* ---- numbers ---- */

typedef enum cuda_pattern {
    CUDA_NORMAL,
    CUDA_HEAVY, /* a few values a thousand times larger */
    CUDA_ZEROS,
    CUDA_TINY,
    CUDA_HUGE,
    CUDA_WITH_NAN,
    CUDA_WITH_INF,
    CUDA_PATTERNS
} cuda_pattern;

static inline void cuda_fill(float *x, int64_t n, cuda_pattern p)
{
    for (int64_t i = 0; i < n; i++) {
        float v = rig_normal(&cuda_rng);
        v *= p == CUDA_HEAVY && rig_int(&cuda_rng, 0, 60) == 0 ? 1000.0f : 1.0f;
        v *= p == CUDA_TINY ? 1e-31f : p == CUDA_HUGE ? 1e37f : 1.0f;
        x[i] = p == CUDA_ZEROS ? (i % 3 ? 0.0f : -0.0f) : v;
    }
    if (n > 0 && p >= CUDA_WITH_NAN)
        x[rig_int(&cuda_rng, 0, n - 1)] = p == CUDA_WITH_NAN ? NAN : -INFINITY;
}

/* Uninitialised, 64-byte aligned as device memory is. */
static inline void *cuda_room(size_t bytes)
{
    return rig_buffer_new(&cuda_pool, bytes, 64);
}

/* Kernels may only read it. */
static inline float *cuda_floats(int64_t n, cuda_pattern p)
{
    float *x = rig_buffer_new(&cuda_pool, (size_t)n * sizeof *x, sizeof *x);
    cuda_fill(x, n, p);
    rig_seal(&cuda_pool);
    return x;
}

static inline void *cuda_copy(const void *from, size_t bytes)
{
    return rig_input(&cuda_pool, from, bytes, 4);
}

/* NULL if n floats are equal bit for bit. */
static inline const char *cuda_equal(const char *what, const float *got, const float *want,
                                     int64_t n)
{
    int64_t i = rig_differs(got, want, n);
    if (i >= 0)
        CUDA_FAILS("%s: number %lld of %lld is %.9g, expected %.9g", what, (long long)i,
                   (long long)n, (double)got[i], (double)want[i]);
    return NULL;
}

/* ---- launches ---- */

static const char *const cuda_names[] = {
#define OCT_CUDA_ENTRY(name, args, threads, blocks) "oct_cuda_" #name,
    OCT_CUDA_ENTRIES(OCT_CUDA_ENTRY)
#undef OCT_CUDA_ENTRY
};

static inline const char *cuda_run(oct_cuda_launch l, const void *args)
{
    const unsigned block[3] = {l.block, 1, 1};
    const oct_emulated_kernel *k = oct_emulated_find(cuda_names[l.entry]);
    int status = 1;
    if (!k)
        CUDA_FAILS("no kernel %s", cuda_names[l.entry]);
    rig_catch_crashes();
    if (!RIG_SURVIVES(status = oct_emulated_launch(k, l.grid, block, l.shared, args)))
        CUDA_FAILS("%s crashed", k->name);
    if (status != 0)
        CUDA_FAILS("%s: %s", k->name, oct_emulated_error());
    return NULL;
}

/* Launches what a struct of arguments asks for. */
#define CUDA_RUN(kind, args) CUDA_TRY(cuda_run(oct_cuda_##kind##_launch(&(args)), &(args)))

#endif
