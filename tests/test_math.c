/* test_math.c: error bounds of exp, softcap_exp, gelu, sin and cos against the C library in
 * double, what they give for special values, and exponentials of whole rows. `test_math exp`
 * compares the latter with exp for all floats: a minute on an idle core. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "f16.h"
#include "kernels.h"
#include "rig.h"

static rig_rng rng;

/* Distance of y from the exact value in units of the exact value's last place. */
static double ulps(float y, double exact)
{
    float near = fabsf((float)exact);
    double unit = (double)nextafterf(near, INFINITY) - (double)near;
    return fabs((double)y - exact) / unit;
}

/* Every STEP-th float, from a random one on. */
enum { STEP = 211 };

typedef double error_fn(float x);

static void bound_is_kept(const char *name, error_fn *error, double bound)
{
    double worst = 0.0;
    float at = 0.0f;
    for (uint64_t u = rig_next(&rng) % STEP; u <= UINT32_MAX; u += STEP) {
        float x = oct_f32_of_bits((uint32_t)u);
        double e = error(x);
        if (!(e <= worst)) {
            worst = e;
            at = x;
        }
    }
    print_message("    %-8s worst %.4g at %.9g, bound %.4g\n", name, worst, (double)at, bound);
    assert_true(worst <= bound);
}

static double exp_error(float x)
{
    return x >= -87.0f && x <= 88.0f ? ulps(oct_expf(x), exp((double)x)) : 0.0;
}

/* Relative, in units of the bound that kernels.h states. */
static double softcap_exp_error(float xf, double cap)
{
    double x = (double)xf, exact = exp(-2.0 * cap / (exp(x) + 1.0));
    return isnan(xf) ? 0.0 : fabs((double)oct_softcap_expf(xf, (float)cap) / exact - 1.0) * 0x1p16;
}

static double softcap_30_error(float x)
{
    return softcap_exp_error(x, 30.0);
}

static double softcap_40_error(float x)
{
    return softcap_exp_error(x, 40.0);
}

static double softcap_1_error(float x)
{
    return softcap_exp_error(x, 1.0);
}

/* Relative above -9, scaled so that the bound below is 1 for both halves. */
static double gelu_error(float xf)
{
    double x = (double)xf, u = sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
    if (!isfinite(xf) || fabsf(xf) > 1e18f || fabsf(xf) < 1e-30f)
        return 0.0;
    double exact = x / (1.0 + exp(-2.0 * u)), error = fabs((double)oct_geluf(xf) - exact);
    return xf < -9.0f ? error / 1e-30 : error / fabs(exact) * 0x1p16;
}

static double sincos_error(float x)
{
    if (!(x >= 0.0f && x <= 1e6f))
        return 0.0;
    float s, c;
    oct_sincosf(x, &s, &c);
    return fmax(ulps(s, sin((double)x)), ulps(c, cos((double)x)));
}

static void errors_are_bounded(void **state)
{
    (void)state;
    bound_is_kept("exp", exp_error, 3.0);
    bound_is_kept("cap 1", softcap_1_error, 1.0);
    bound_is_kept("cap 30", softcap_30_error, 1.0);
    bound_is_kept("cap 40", softcap_40_error, 1.0);
    bound_is_kept("gelu", gelu_error, 1.0);
    bound_is_kept("sincos", sincos_error, 1.0);
}

/* Angles as RoPE makes them: whole positions, and products with inverse frequencies. */
static void rope_angles(void **state)
{
    (void)state;
    for (int pos = 0; pos < 131072; pos++)
        assert_true(sincos_error((float)pos) < 1.0);
    for (int i = 0; i < 200000; i++) {
        float inverse = (float)pow(10000.0, -2.0 * (double)rig_int(&rng, 0, 63) / 128.0);
        assert_true(sincos_error((float)rig_int(&rng, 0, 8191) * inverse) < 1.0);
    }
}

static void special_values(void **state)
{
    (void)state;
    assert_true(oct_expf(0.0f) == 1.0f && oct_expf(-0.0f) == 1.0f);
    assert_true(oct_expf(-87.00001f) == 0.0f && oct_expf(-INFINITY) == 0.0f);
    assert_true(oct_expf(-87.0f) > 0.0f && isfinite(oct_expf(88.0f)));
    assert_true(isinf(oct_expf(88.00001f)) && isinf(oct_expf(INFINITY)));
    assert_true(isnan(oct_expf(NAN)) && isnan(oct_softcap_expf(NAN, 30.0f)));
    assert_true(isnan(oct_geluf(NAN)));
    assert_true(oct_softcap_expf(INFINITY, 30.0f) == 1.0f);
    assert_true(oct_softcap_expf(1e30f, 40.0f) == 1.0f);
    assert_true(oct_softcap_expf(-INFINITY, 30.0f) == oct_expf(-60.0f));
    assert_true(oct_softcap_expf(0.0f, 30.0f) == oct_expf(-30.0f));
    assert_true(oct_geluf(0.0f) == 0.0f && oct_geluf(100.0f) == 100.0f);
    assert_true(oct_geluf(-100.0f) == 0.0f && isinf(oct_geluf(INFINITY)));
    float s, c;
    oct_sincosf(0.0f, &s, &c);
    assert_true(s == 0.0f && c == 1.0f);
}

/* The bits themselves, so that a compiler or a C library that changes them is noticed. */
static void bits_are_fixed(void **state)
{
    (void)state;
    uint64_t hash = 0;
    for (uint64_t u = 0; u <= UINT32_MAX; u += 4099) {
        float x = oct_f32_of_bits((uint32_t)u), angle = (float)(u >> 12), s, c;
        oct_sincosf(fminf(angle, 1e6f), &s, &c);
        const float y[] = {oct_expf(x), oct_softcap_expf(x, 30.0f), oct_geluf(x), s, c};
        for (size_t i = 0; i < sizeof y / sizeof *y; i++) {
            uint32_t bits = isnan(y[i]) ? 0x7fc00000u : oct_f32_bits(y[i]);
            hash = (hash ^ bits) * UINT64_C(0x100000001b3);
        }
    }
    print_message("    hash %016llx\n", (unsigned long long)hash);
    assert_true(hash == UINT64_C(0x7dae91c9e7e3e765));
}

/* Every step-th float of [-88, 0], and NaN; lengths that leave a rest. */
static void check_weights(const oct_kernels *k, uint64_t step)
{
    enum { N = 4099 };
    static float x[N], w[N];
    uint64_t last = oct_f32_bits(-88.0f);
    for (uint64_t u = 0x80000000u; u <= last; u += N * step) {
        for (uint64_t i = 0; i < N; i++)
            x[i] = u + i * step <= last ? oct_f32_of_bits((uint32_t)(u + i * step)) : 0.0f;
        k->softmax_weights(x, N, 0.0f, 1.0f, w);
        for (int i = 0; i < N; i++)
            assert_int_equal(oct_f32_bits(w[i]), oct_f32_bits(oct_expf(x[i])));
    }
}

/* The rest behind whole vectors; what is no number or far off; x and w the same. */
static void check_weights_of_few(const oct_kernels *k)
{
    const float max = 3.7f, t = 0.77f, of[] = {3.7f, -INFINITY, -60.0f, -3e38f, 3.69999f, NAN, 1};
    enum { N = 150, OF = sizeof of / sizeof *of };
    for (int64_t n = 0; n <= N; n++) {
        float w[N + 1];
        for (int64_t i = 0; i < n; i++)
            w[i] = of[i % OF];
        w[n] = 12.5f;
        k->softmax_weights(w, n, max, t, w);
        for (int64_t i = 0; i < n; i++) {
            float want = oct_expf((of[i % OF] - max) / t);
            assert_true(oct_f32_bits(w[i]) == oct_f32_bits(want) || (isnan(w[i]) && isnan(want)));
        }
        assert_true(w[n] == 12.5f);
    }
}

static void weights_are_exp(void **state)
{
    (void)state;
    for (int i = 0; i < oct_n_kernel_rows; i++)
        if (oct_kernels_usable(&oct_kernel_rows[i])) {
            check_weights(&oct_kernel_rows[i], 61);
            check_weights_of_few(&oct_kernel_rows[i]);
        }
}

static void weights_of_all_floats(void **state)
{
    (void)state;
    for (int i = 0; i < oct_n_kernel_rows; i++)
        if (oct_kernels_usable(&oct_kernel_rows[i]))
            check_weights(&oct_kernel_rows[i], 1);
}

static void sums_of_exp(void **state)
{
    (void)state;
    for (int64_t n = 0; n < 40; n++) {
        float x[40];
        double sum = 0;
        for (int64_t i = 0; i < n; i++) {
            x[i] = i == 7 ? -INFINITY : 5.0f - 800.0f * fabsf(rig_uniform(&rng)) / (float)(i + 1);
            x[0] = 5.0f; /* the largest is one of them */
            sum += exp((double)x[i] - 5.0);
        }
        assert_true(fabs(oct_exp_sum(x, n, 5.0f) - sum) <= 1e-13 * sum);
    }
    const float x[] = {1.0f, NAN, -INFINITY};
    assert_true(isnan(oct_exp_sum(x, 2, 1.0f)) && oct_exp_sum(x, 1, 1.0f) == 1.0);
    for (float y = -745.0f; y < 0; y += 0.37f) /* alone: each exponential is as good as the sum */
        assert_true(fabs(oct_exp_sum(&y, 1, 0.0f) - exp((double)y)) <=
                    1e-13 * exp((double)y) + 1e-300);
}

int main(int argc, char **argv)
{
    rng.state = rig_seed();
    if (argc > 1 && strcmp(argv[1], "exp") == 0) {
        const struct CMUnitTest all[] = {cmocka_unit_test(weights_of_all_floats)};
        return cmocka_run_group_tests(all, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_are_bounded), cmocka_unit_test(rope_angles),
        cmocka_unit_test(special_values),     cmocka_unit_test(bits_are_fixed),
        cmocka_unit_test(weights_are_exp),    cmocka_unit_test(sums_of_exp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
