/* test_sampler.c: sampling against a plain sort-based reference of the rule in octet.h. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "octet.h"

enum { N = 50 };

static float logits[N], scratch[2 * N];

static void fill(uint64_t seed)
{
    for (int i = 0; i < N; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        logits[i] = (float)(int32_t)(seed >> 32) / 3e8f;
    }
}

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* Probability of each id by the rule: sort, softmax, cut. */
static void reference(float temperature, int top_k, float top_p, double prob[N])
{
    float sorted[N];
    memcpy(sorted, logits, sizeof sorted);
    qsort(sorted, N, sizeof *sorted, ascending);
    int first = top_k > 0 && top_k < N ? N - top_k : 0;
    double total = 0, sum = 0;
    for (int i = first; i < N; i++)
        total += exp((double)(sorted[i] - sorted[N - 1]) / temperature);
    if (top_p < 1)
        for (int i = first; i < N; i++) {
            sum += exp((double)(sorted[i] - sorted[N - 1]) / temperature) / total;
            if (sum >= 1.0 - top_p || i == N - 1) {
                first = i;
                break;
            }
        }
    total = 0;
    for (int i = 0; i < N; i++)
        total += prob[i] =
            logits[i] >= sorted[first] ? exp((double)(logits[i] - sorted[N - 1]) / temperature) : 0;
    for (int i = 0; i < N; i++)
        prob[i] /= total;
}

/* Frequencies of 40,000 draws: nothing outside the kept set, and each within six standard
 * deviations. */
static void check(float temperature, int top_k, float top_p)
{
    enum { DRAWS = 40000 };
    double prob[N];
    int count[N] = {0};
    oct_sampler s = {temperature, top_k, top_p, 1234};
    reference(temperature, top_k, top_p, prob);
    for (int i = 0; i < DRAWS; i++) {
        int32_t id = oct_sample(&s, logits, N, scratch);
        assert_in_range(id, 0, N - 1);
        count[id]++;
    }
    for (int i = 0; i < N; i++) {
        if (prob[i] == 0)
            assert_int_equal(count[i], 0);
        double sd = sqrt(DRAWS * prob[i] * (1 - prob[i])) + 1;
        assert_true(fabs(count[i] - DRAWS * prob[i]) < 6 * sd);
    }
}

static void test_distribution(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        fill(seed);
        check(1.0f, 0, 1.0f);
        check(0.7f, 0, 0.9f);
        check(1.5f, 5, 1.0f);
        check(1.0f, 20, 0.5f);
        check(2.0f, 0, 0.05f);
        check(1.0f, 1, 1.0f);
    }
    for (int i = 0; i < N; i++) /* all equal: nothing to cut between */
        logits[i] = 3;
    check(1.0f, 0, 0.9f);
}

static void test_greedy(void **state)
{
    (void)state;
    fill(9);
    logits[7] = logits[31] = 100; /* a tie: the lower id */
    for (float t = -1; t <= 0; t += 1) {
        oct_sampler s = {t, 3, 0.1f, 5};
        assert_int_equal(oct_sample(&s, logits, N, scratch), 7);
        assert_int_equal(s.rng, 5); /* untouched */
    }
}

static void test_edges(void **state)
{
    (void)state;
    fill(4);
    int best = 0;
    for (int i = 1; i < N; i++)
        best = logits[i] > logits[best] ? i : best;
    oct_sampler none = {1, 0, 0.0f, 1}, one = {1, 1, 1.0f, 1}, tiny = {1e-6f, 0, 1.0f, 1};
    for (int i = 0; i < 20; i++) {
        assert_int_equal(oct_sample(&none, logits, N, scratch), best); /* top_p 0 keeps one */
        assert_int_equal(oct_sample(&one, logits, N, scratch), best);
        assert_int_equal(oct_sample(&tiny, logits, N, scratch), best);
    }
    logits[3] = NAN;
    oct_sampler s = {1, 0, 0.9f, 1};
    assert_int_equal(oct_sample(&s, logits, N, scratch), -1);
    for (int i = 0; i < N; i++)
        logits[i] = -INFINITY;
    assert_int_equal(oct_sample(&s, logits, N, scratch), -1);
    logits[11] = 0;
    assert_int_equal(oct_sample(&s, logits, N, scratch), 11);
    logits[12] = INFINITY;
    assert_int_equal(oct_sample(&s, logits, N, scratch), -1);
}

static void test_seed(void **state)
{
    (void)state;
    fill(6);
    oct_sampler a = {1, 0, 0.95f, 42}, b = a, c = a;
    c.rng = 43;
    int differ = 0;
    for (int i = 0; i < 200; i++) {
        int32_t x = oct_sample(&a, logits, N, scratch);
        assert_int_equal(x, oct_sample(&b, logits, N, scratch));
        differ += x != oct_sample(&c, logits, N, scratch);
    }
    assert_true(differ > 20);
}

static void test_logprob(void **state)
{
    (void)state;
    fill(8);
    double sum = 0;
    for (int i = 0; i < N; i++)
        sum += exp(oct_logprob(logits, N, i));
    assert_true(fabs(sum - 1) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distribution), cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_edges),        cmocka_unit_test(test_seed),
        cmocka_unit_test(test_logprob),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
