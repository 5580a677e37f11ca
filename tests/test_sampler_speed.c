/* test_sampler_speed.c: the time of a draw from 131072 logits, against the plain sampler of version
 * 0.1.0 in the same process, taking turns. Prints milliseconds; the least of some runs counts. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "logit_shapes.h"
#include "plain_sampler.h"
#include "machine.h"

enum { N = 131072, RUNS = 5 };

static float x[N], scratch[2 * N];

typedef struct timing {
    const char *name;
    oct_sampler s;   /* temperature 0: oct_logprob instead */
    double at_least; /* the factor asked for over all shapes; far below what it is on any machine,
                         so that other work does not matter */
} timing;

static const timing timings[] = {
    {"temperature", {.temperature = 1, .top_p = 1}, 1.5},
    {"top-p 0.95", {.temperature = 1, .top_p = 0.95f}, 1.5},
    {"top-p 0.5", {.temperature = 0.7f, .top_p = 0.5f}, 1.5},
    {"top-k 40", {.temperature = 1, .top_k = 40, .top_p = 1}, 3},
    {"k 40, p 0.9", {.temperature = 1, .top_k = 40, .top_p = 0.9f}, 3},
    {"top-k 20000", {.temperature = 1, .top_k = 20000, .top_p = 1}, 1.2},
    {"logprob", {.temperature = 0}, 1},
};
enum { TIMINGS = sizeof timings / sizeof *timings };

static double best_of(double best, double start)
{
    double t = oct_seconds() - start;
    return t < best ? t : best;
}

/* The least times of both, and that they agree. */
static void measure(const timing *t, double *now, double *plain)
{
    *now = *plain = INFINITY;
    for (int run = 0; run < RUNS; run++) {
        oct_sampler a = t->s, b = t->s;
        a.rng = b.rng = (uint64_t)run;
        bool draw = t->s.temperature > 0;
        double start = oct_seconds();
        double got = draw ? oct_sample(&a, x, N, scratch) : oct_logprob(x, N, 3);
        *now = best_of(*now, start);
        start = oct_seconds();
        double want = draw ? plain_sample(&b, x, N, scratch) : plain_logprob(x, N, 3);
        *plain = best_of(*plain, start);
        assert_true(got == want || (!draw && fabs(got - want) <= 1e-11));
    }
}

static void faster_than_the_plain_one(void **state)
{
    (void)state;
    rig_rng rng = {7};
    double now[TIMINGS] = {0}, plain[TIMINGS] = {0};
    printf("ms for %d logits: now (plain)\n%-10s", N, "");
    for (int i = 0; i < TIMINGS; i++)
        printf(" %14s", timings[i].name);
    for (int shape = 0; shape < SHAPES; shape++) {
        logits_fill((logit_shape)shape, x, N, &rng);
        printf("\n%-10s", logit_shape_name[shape]);
        for (int i = 0; i < TIMINGS; i++) {
            double a, b;
            measure(&timings[i], &a, &b);
            now[i] += a;
            plain[i] += b;
            printf("  %5.2f (%5.2f)", 1e3 * a, 1e3 * b);
        }
    }
    printf("\n%-10s", "factor");
    for (int i = 0; i < TIMINGS; i++)
        printf(" %14.1f", plain[i] / now[i]);
    printf("\n");
#ifdef __OPTIMIZE__
    const char *sanitize = getenv("OCT_TEST_SANITIZE");
    if (sanitize && sanitize[0] == '1')
        return; /* they count memory accesses, not time */
    for (int i = 0; i < TIMINGS; i++)
        assert_true(plain[i] >= timings[i].at_least * now[i]);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(faster_than_the_plain_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
