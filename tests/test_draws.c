/* test_draws.c: the sampler draws what the plain one of version 0.1.0 draws, for every shape of
 * logits, length, setting and seed; what its parts compute; and several sequences on a team. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "f16.h"
#include "logit_shapes.h"
#include "plain_sampler.h"
#include "sampler.h"
#include "select.h"

static rig_rng rng;

static float one_of(const float *values, int64_t n)
{
    return values[rig_int(&rng, 0, n - 1)];
}

static oct_sampler any_setting(int64_t n)
{
    const float temperature[] = {-1, 0, 1e-6f, 0.1f, 0.7f, 1, 1, 1.7f, 30, 1e6f};
    const float top_p[] = {1, 1, 0.9999f, 0.95f, 0.9f, 0.5f, 0.05f, 0, -1};
    const int64_t top_k[] = {0, 0, 0, 1, 2, 40, n / 20, n / 3, n / 2, n - 1, n, n + 5};
    return (oct_sampler){
        .temperature = one_of(temperature, sizeof temperature / sizeof *temperature),
        .top_p = one_of(top_p, sizeof top_p / sizeof *top_p),
        .top_k = (int32_t)top_k[rig_int(&rng, 0, sizeof top_k / sizeof *top_k - 1)],
        .rng = rig_next(&rng),
    };
}

/* scratch as small as is allowed, in memory of its own: sanitizers watch its end. */
static void compare(const float *x, int64_t n, logit_shape shape, int settings)
{
    float *scratch = malloc((size_t)n * 2 * sizeof *scratch);
    assert_non_null(scratch);
    for (int i = 0; i < settings; i++) {
        oct_sampler s = any_setting(n), plain = s;
        for (int draw = 0; draw < 3; draw++) {
            int32_t want = plain_sample(&plain, x, n, scratch);
            int32_t got = oct_sample(&s, x, n, scratch);
            if (got != want)
                fail_msg("%s, %lld logits, temperature %g, k %d, p %g: drew %d, not %d",
                         logit_shape_name[shape], (long long)n, (double)s.temperature, s.top_k,
                         (double)s.top_p, got, want);
            assert_int_equal(s.rng, plain.rng);
        }
    }
    free(scratch);
}

static void draws_are_the_same(void **state)
{
    (void)state;
    const int64_t size[] = {1, 2, 3, 7, 50, 63, 64, 65, 129, 1000, 1025, 5003, 131072, 140001};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        float *x = malloc((size_t)size[i] * sizeof *x);
        assert_non_null(x);
        for (int shape = 0; shape < SHAPES; shape++)
            for (int again = 0; again < (size[i] > 10000 ? 1 : 4); again++) {
                logits_fill((logit_shape)shape, x, size[i], &rng);
                compare(x, size[i], (logit_shape)shape, size[i] > 10000 ? 12 : 60);
            }
        free(x);
    }
}

/* NaN, Inf and -Inf anywhere. */
static void special_logits_too(void **state)
{
    (void)state;
    enum { N = 300 };
    const float special[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-40f};
    float x[N];
    for (int again = 0; again < 300; again++) {
        logits_fill(SHAPE_NORMAL, x, N, &rng);
        for (int64_t k = rig_int(&rng, 1, 3); k > 0; k--)
            x[rig_int(&rng, 0, N - 1)] = one_of(special, 6);
        compare(x, N, SHAPE_NORMAL, 10);
    }
    for (int i = 0; i < N; i++)
        x[i] = -INFINITY;
    compare(x, N, SHAPE_MASKED, 20);
}

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static void blocks_and_counts(void **state)
{
    (void)state;
    const int64_t size[] = {1, 63, 64, 65, 1000, 140001};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        for (int shape = 0; shape < SHAPES; shape++) {
            int64_t n = size[i];
            float *x = malloc((size_t)n * 2 * sizeof *x), *sorted = x + n;
            assert_non_null(x);
            logits_fill((logit_shape)shape, x, n, &rng);
            memcpy(sorted, x, (size_t)n * sizeof *x);
            qsort(sorted, (size_t)n, sizeof *sorted, ascending);
            oct_blocks b;
            oct_blocks_init(&b, x, n);
            assert_false(b.has_nan);
            assert_true(b.most == sorted[n - 1]);
            for (int again = 0; again < 20; again++) {
                int64_t k = rig_int(&rng, 1, again < 10 && n > 40 ? 40 : n);
                assert_true(oct_blocks_bound(&b, k) <= sorted[n - k]);
                float kth = oct_weighted_quantile(x, NULL, n, b.least, b.most, (double)(n - k + 1));
                assert_true(kth == sorted[n - k]);
                /* whatever is expected */
                float lo = x[rig_int(&rng, 0, n - 1)];
                if (lo < b.most)
                    assert_true(
                        oct_weighted_quantile(x, NULL, n, lo, b.most, (double)(n - k + 1)) == kth);
            }
            free(x);
        }
}

/* +0 and -0 are one value, also where they are the edge of what a histogram is made of. */
static void zeros_are_equal(void **state)
{
    (void)state;
    enum { N = 6000 };
    float x[N], sorted[N];
    for (int sign = -1; sign <= 1; sign += 2) {
        for (int i = 0; i < N; i++)
            x[i] = i % 3 < 2 ? copysignf(0, (float)(sign * (i % 3 * 2 - 1))) : i % 2 ? 1 : 1e-20f;
        memcpy(sorted, x, sizeof x);
        qsort(sorted, N, sizeof *sorted, ascending);
        for (int k = 1; k <= N; k += 37)
            assert_true(oct_weighted_quantile(x, NULL, N, 0, 1, N - k + 1) == sorted[N - k]);
    }
}

/* A team's draws are those of one thread, each thread works on its part of the scratch, and the
 * samplers move on. */
static void many_at_once(void **state)
{
    (void)state;
    enum { N = 3000, DRAWS = 16, THREADS = 4 };
    float *x = malloc(sizeof *x * N * DRAWS), *scratch = calloc(2 * N * THREADS, sizeof *scratch);
    assert_true(x && scratch);
    oct_team *team = NULL;
    oct_error err = {0};
    assert_int_equal(oct_team_new(THREADS, NULL, &team, &err), OCT_OK);
    oct_sampler alone[DRAWS], sampler[DRAWS];
    oct_draw draw[DRAWS];
    oct_token_logprob top[DRAWS][4];
    for (int i = 0; i < DRAWS; i++) {
        logits_fill((logit_shape)(i % SHAPES), x + i * N, N, &rng);
        alone[i] = sampler[i] = any_setting(N);
        alone[i].temperature = sampler[i].temperature =
            0.8f; /* not greedy, which uses no scratch */
        draw[i] = (oct_draw){.sampler = &sampler[i],
                             .logits = x + i * N,
                             .n_top = i % 4,
                             .wants_logprob = i % 2,
                             .top = top[i]};
    }
    oct_sample_many(team, draw, DRAWS, N, scratch);
    for (int i = 0; i < THREADS; i++) {
        int used = 0;
        for (int j = 0; j < 2 * N; j++)
            used += scratch[i * 2 * N + j] != 0;
        assert_true(used > 0);
    }
    for (int i = 0; i < DRAWS; i++) {
        assert_int_equal(draw[i].id, oct_sample(&alone[i], x + i * N, N, scratch));
        assert_int_equal(sampler[i].rng, alone[i].rng);
        assert_true(draw[i].logprob == (i % 2 ? oct_logprob(x + i * N, N, draw[i].id) : 0));
        oct_token_logprob want[4];
        int64_t n = i % 4 ? oct_top_logprobs(x + i * N, N, i % 4, want) : 0;
        assert_int_equal(draw[i].n_found, n);
        for (int64_t k = 0; k < n; k++)
            assert_true(top[i][k].id == want[k].id && top[i][k].logprob == want[k].logprob);
    }
    oct_sample_many(team, draw, 1, N, scratch); /* fewer than threads */
    assert_int_equal(draw[0].id, oct_sample(&alone[0], x, N, scratch));
    oct_sample_many(team, draw, 0, N, scratch);
    oct_team_free(team);
    free(x);
    free(scratch);
}

int main(void)
{
    rng.state = rig_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_are_the_same), cmocka_unit_test(special_logits_too),
        cmocka_unit_test(blocks_and_counts),  cmocka_unit_test(zeros_are_equal),
        cmocka_unit_test(many_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
