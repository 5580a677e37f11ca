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
    oct_sampler s = {.temperature = temperature, .top_k = top_k, .top_p = top_p, .rng = 1234};
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
        oct_sampler s = {.temperature = t, .top_k = 3, .top_p = 0.1f, .rng = 5};
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
    oct_sampler none = {.temperature = 1}, one = {.temperature = 1, .top_k = 1, .top_p = 1},
                tiny = {.temperature = 1e-6f, .top_p = 1};
    for (int i = 0; i < 20; i++) {
        assert_int_equal(oct_sample(&none, logits, N, scratch), best); /* top_p 0 keeps one */
        assert_int_equal(oct_sample(&one, logits, N, scratch), best);
        assert_int_equal(oct_sample(&tiny, logits, N, scratch), best);
    }
    logits[3] = NAN;
    oct_sampler s = {.temperature = 1, .top_p = 0.9f};
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
    oct_sampler a = {.temperature = 1, .top_p = 0.95f, .rng = 42}, b = a, c = a;
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

/* ---- bias and penalties --------------------------------------------------------------------- */

/* What octet.h says, written out. */
static void adjusted(const oct_sampler *s, float out[N])
{
    memcpy(out, logits, sizeof logits);
    for (int64_t i = 0; i < s->n_bias; i++)
        if (s->bias[i].id >= 0 && s->bias[i].id < N)
            out[s->bias[i].id] += s->bias[i].value;
    for (int id = 0; id < N; id++) {
        int count = 0;
        for (int64_t i = 0; i < s->n_history; i++)
            count += s->history[i] == id;
        if (count == 0)
            continue;
        float r = s->repetition_penalty > 0 ? s->repetition_penalty : 1;
        out[id] = out[id] > 0 ? out[id] / r : out[id] * r;
        out[id] = out[id] - s->frequency_penalty * (float)count - s->presence_penalty;
    }
}

/* Draws with s are draws from the adjusted logits, and the logits are not written to. */
static void check_adjusted(oct_sampler s)
{
    float by_hand[N], before[N], room[2 * N];
    oct_sampler plain = {.temperature = s.temperature,
                         .top_k = s.top_k,
                         .top_p = s.top_p,
                         .min_p = s.min_p,
                         .rng = s.rng};
    adjusted(&s, by_hand);
    memcpy(before, logits, sizeof before);
    for (int i = 0; i < 50; i++)
        assert_int_equal(oct_sample(&s, logits, N, scratch), oct_sample(&plain, by_hand, N, room));
    assert_memory_equal(before, logits, sizeof before);
}

static void test_adjusted(void **state)
{
    (void)state;
    const int32_t history[] = {4, 9, 4, 4, 17, -1, N, 30, 9, INT32_MAX, 2};
    const oct_logit_bias bias[] = {{5, 8}, {30, -INFINITY}, {6, 2}, {6, 3}, {N, 1}, {-4, 1}};
    const oct_sampler base = {.history = history,
                              .n_history = sizeof history / sizeof *history,
                              .bias = bias,
                              .n_bias = sizeof bias / sizeof *bias,
                              .rng = 77};
    const float value[] = {0, 1, 1.3f, 0.5f, -0.7f};
    for (uint64_t seed = 1; seed <= 300; seed++) {
        oct_sampler s = base;
        fill(seed);
        s.n_bias = seed % 3 == 0 ? 0 : s.n_bias;
        s.n_history = seed % 5 == 0 ? 0 : s.n_history;
        s.repetition_penalty = value[seed % 4];
        s.frequency_penalty = value[seed / 4 % 5];
        s.presence_penalty = value[seed / 20 % 5];
        s.temperature = seed % 7 == 0 ? 0 : 1.5f;
        s.top_k = (int32_t)(seed % 11 == 0 ? 0 : seed % (N + 3));
        s.top_p = seed % 2 ? 0.9f : 1;
        s.min_p = seed % 13 == 0 ? 0.2f : 0;
        check_adjusted(s);
    }
}

/* The documented cases by number. */
static void test_penalties(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++)
        logits[i] = -1;
    logits[3] = 4; /* with a penalty below logits[8] */
    logits[8] = 3;
    const int32_t history[] = {3, 3};
    const oct_logit_bias ban = {3, -INFINITY}, push = {3, -0.9f};
    oct_sampler s = {.history = history, .n_history = 2};
    assert_int_equal(oct_sample(&s, logits, N, scratch), 3); /* all off */
    s.repetition_penalty = 1;
    assert_int_equal(oct_sample(&s, logits, N, scratch), 3);
    s.repetition_penalty = 1.3f; /* 4 / 1.3 = 3.08: once, not twice */
    assert_int_equal(oct_sample(&s, logits, N, scratch), 3);
    s.repetition_penalty = 1.4f;
    assert_int_equal(oct_sample(&s, logits, N, scratch), 8);
    s = (oct_sampler){.history = history, .n_history = 2, .presence_penalty = 0.9f};
    assert_int_equal(oct_sample(&s, logits, N, scratch), 3); /* once */
    s.presence_penalty = 1.1f;
    assert_int_equal(oct_sample(&s, logits, N, scratch), 8);
    s = (oct_sampler){.history = history, .n_history = 2, .frequency_penalty = 0.6f};
    assert_int_equal(oct_sample(&s, logits, N, scratch), 8); /* twice */
    s.n_history = 1;
    assert_int_equal(oct_sample(&s, logits, N, scratch), 3);
    s = (oct_sampler){.bias = &ban, .n_bias = 1};
    assert_int_equal(oct_sample(&s, logits, N, scratch), 8);
    s.bias = &push;
    assert_int_equal(oct_sample(&s, logits, N, scratch), 3);
    s.repetition_penalty = 1.02f; /* (4 - 0.9) / 1.02 = 3.04 */
    s.history = history;
    s.n_history = 1;
    assert_int_equal(oct_sample(&s, logits, N, scratch), 3);
    s.repetition_penalty = 1.06f; /* (4 - 0.9) / 1.06 = 2.92 */
    assert_int_equal(oct_sample(&s, logits, N, scratch), 8);
    for (int i = 0; i < N; i++)
        logits[i] = -INFINITY; /* a bias of Inf has no meaning */
    const oct_logit_bias inf = {3, INFINITY};
    s = (oct_sampler){.bias = &inf, .n_bias = 1};
    assert_int_equal(oct_sample(&s, logits, N, scratch), -1);
}

static void test_min_p(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++)
        logits[i] = -0.1f * (float)i; /* probabilities exp(-0.1 i) of the likeliest */
    const float min_p[] = {1e-30f, 0.01f, 0.1f, 0.5f, 0.95f, 1, 7};
    for (size_t k = 0; k < sizeof min_p / sizeof *min_p; k++)
        for (float t = 0.5f; t <= 2; t *= 2) {
            int kept = 0;
            bool seen[N] = {false};
            while (kept < N && exp(-0.1 * kept / (double)t) >= fmin((double)min_p[k], 1))
                kept++;
            oct_sampler s = {.temperature = t, .top_p = 1, .min_p = min_p[k], .rng = k};
            for (int i = 0; i < 20000; i++) {
                int32_t id = oct_sample(&s, logits, N, scratch);
                assert_in_range(id, 0, kept - 1);
                seen[id] = true;
            }
            for (int i = 0; i < kept && exp(-0.1 * i / (double)t) > 0.01; i++)
                assert_true(seen[i]);
        }
}

/* ---- log-probabilities ---------------------------------------------------------------------- */

static void test_log_sum_exp(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed < 20; seed++) {
        double sum = 0;
        fill(seed);
        logits[seed] = seed % 2 ? -INFINITY : -2000;
        for (int i = 0; i < N; i++)
            sum += exp((double)logits[i]);
        assert_true(fabs(oct_log_sum_exp(logits, N) - log(sum)) < 1e-12);
        assert_true(oct_logprob(logits, N, 3) == logits[3] - oct_log_sum_exp(logits, N));
    }
    logits[1] = 1e4f; /* far from where exp itself would do */
    logits[2] = 1e4f;
    assert_true(fabs(oct_log_sum_exp(logits, N) - 1e4 - log(2)) < 1e-11);
    logits[4] = NAN;
    assert_true(isnan(oct_log_sum_exp(logits, N)) && isnan(oct_logprob(logits, N, 1)));
    assert_true(isnan(oct_logprob(logits, N, -1)) && isnan(oct_logprob(logits, N, N)));
    logits[4] = INFINITY;
    assert_true(isnan(oct_log_sum_exp(logits, N)));
    for (int i = 0; i < N; i++)
        logits[i] = -INFINITY;
    assert_true(isnan(oct_log_sum_exp(logits, N)));
}

static void check_top(const float *x, int64_t n, int64_t n_top)
{
    enum { MOST = 80 };
    oct_token_logprob top[MOST + 1];
    bool taken[6000] = {false};
    double sum = oct_log_sum_exp(x, n);
    top[n_top].id = -7;
    int64_t found = oct_top_logprobs(x, n, n_top, top);
    assert_true(found <= n_top && top[n_top].id == -7);
    for (int64_t k = 0; k < n_top; k++) {
        int64_t best = -1; /* the lowest of the largest that are left */
        for (int64_t i = 0; i < n; i++)
            if (!taken[i] && x[i] > -INFINITY && (best < 0 || x[i] > x[best]))
                best = i;
        if (best < 0) {
            assert_int_equal(found, k);
            return;
        }
        assert_true(k < found);
        assert_int_equal(top[k].id, best);
        assert_true(top[k].logprob == x[best] - sum);
        taken[best] = true;
    }
}

static void test_top_logprobs(void **state)
{
    (void)state;
    enum { LONG = 6000 };
    static float x[LONG];
    const int64_t n_top[] = {0, 1, 2, 5, 20, 49, 50, 64, 80};
    for (size_t k = 0; k < sizeof n_top / sizeof *n_top; k++)
        for (int kind = 0; kind < 5; kind++) {
            fill(k + 1);
            for (int i = 0; i < LONG; i++) {
                float y = logits[i % N] + (float)(i * 7919 % LONG);
                x[i] = kind == 0   ? y
                       : kind == 1 ? (float)(i % 5) /* many ties */
                       : kind == 2 ? 1
                       : kind == 3 ? (float)i /* each one is the largest yet */
                                   : (i % 100 == 7 ? y : -INFINITY);
            }
            check_top(x, LONG, n_top[k]);
            check_top(x, N, n_top[k]);
            check_top(x, 1, n_top[k]);
        }
    oct_token_logprob top[1];
    x[9] = NAN;
    assert_int_equal(oct_top_logprobs(x, LONG, 1, top), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distribution), cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_edges),        cmocka_unit_test(test_seed),
        cmocka_unit_test(test_logprob),      cmocka_unit_test(test_adjusted),
        cmocka_unit_test(test_penalties),    cmocka_unit_test(test_min_p),
        cmocka_unit_test(test_log_sum_exp),  cmocka_unit_test(test_top_logprobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
