/* softmax.c: exponentials of whole rows of logits, in vectors that compilers make for every CPU. */
#include <math.h>
#include <string.h>

#include "kernels.h"
#include "oct_math.h"

typedef float f32x2 __attribute__((vector_size(8)));
typedef float f32x4 __attribute__((vector_size(16)));
typedef double f64x2 __attribute__((vector_size(16)));
typedef uint64_t u64x2 __attribute__((vector_size(16)));

/* Numbers are taken WIDTH at a time, step by step: one exp is a long chain of operations that wait
 * for each other, several side by side keep a core busy. */
enum { WIDTH = 8, PAIRS = WIDTH / 2 };
#define EACH_PAIR(j) for (int j = 0; j < PAIRS; j++)

static f64x2 pick(u64x2 mask, double a, f64x2 b)
{
    return (f64x2)((mask & (u64x2)(f64x2){a, a}) | (~mask & (u64x2)b));
}

/* To f32 and back. */
static f64x2 rounded(f64x2 x)
{
    return __builtin_convertvector(__builtin_convertvector(x, f32x2), f64x2);
}

/* Adding it and taking it away rounds to a multiple of 2^-bits, nearest, ties to even. */
#define ROUND_TO(bits) (0x1.8p+52 / (double)(1ll << (bits)))

/* x[i] = oct_expf(x[i]) for floats x <= 0 or NaN, by the steps of oct_math.h in double. Products of
 * two floats are exact there, so each step needs one rounding to f32:
 *   k, n       to an integer, by adding what has integers in its last place
 *   r          the first step is exact in f32: x and n ln2_hi are multiples of 2^-25 and close to
 *              each other, or n is 0
 *   C4, C3     their results stay within [2^-5, 2^-4) and [2^-3, 2^-2): as k, to 2^-28 and 2^-26
 *   the rest   are rounded to double first; that no float in [OCT_EXP_MIN, 0] has a result which
 *              this changes is known because `test_math exp` tries them all
 * Unlike fma, every CPU has these operations, and for vectors. */
static void exp_of_floats(f64x2 x[PAIRS])
{
    const double to_int = ROUND_TO(0) + 1023, to_28 = ROUND_TO(28), to_26 = ROUND_TO(26);
    f64x2 k[PAIRS], r[PAIRS], p[PAIRS];
    EACH_PAIR(j)
    r[j] = pick((u64x2)(x[j] < (double)OCT_EXP_MIN), (double)OCT_EXP_MIN, x[j]);
    EACH_PAIR(j)
    k[j] = r[j] * (double)OCT_EXP_LOG2E + to_int;
    EACH_PAIR(j)
    p[j] = k[j] - to_int;
    EACH_PAIR(j)
    r[j] = (r[j] - p[j] * (double)OCT_EXP_LN2_HI) - p[j] * (double)OCT_EXP_LN2_LO;
    EACH_PAIR(j)
    r[j] = rounded(r[j]);
    EACH_PAIR(j)
    p[j] = r[j] * (double)OCT_EXP_C5 + ((double)OCT_EXP_C4 + to_28) - to_28;
    EACH_PAIR(j)
    p[j] = p[j] * r[j] + ((double)OCT_EXP_C3 + to_26) - to_26;
    EACH_PAIR(j)
    p[j] = rounded(p[j] * r[j] + (double)OCT_EXP_C2);
    EACH_PAIR(j)
    p[j] = rounded(p[j] * r[j] + 1.0);
    EACH_PAIR(j)
    p[j] = (p[j] * r[j] + 1.0) * (f64x2)((u64x2)k[j] << 52);
    EACH_PAIR(j)
    x[j] = pick((u64x2)(x[j] < (double)OCT_EXP_MIN), 0, p[j]);
}

static void weights(const float x[WIDTH], float max, float temperature, float w[WIDTH])
{
    f32x4 v[WIDTH / 4];
    f64x2 y[PAIRS];
    memcpy(v, x, sizeof v);
    for (int j = 0; j < WIDTH / 4; j++)
        v[j] = (v[j] - max) / temperature;
    EACH_PAIR(j)
    y[j] = (f64x2){v[j / 2][j % 2 * 2], v[j / 2][j % 2 * 2 + 1]};
    exp_of_floats(y);
    EACH_PAIR(j)
    {
        f32x2 f = __builtin_convertvector(y[j], f32x2);
        memcpy(w + 2 * j, &f, sizeof f);
    }
}

void oct_softmax_weights(const float *x, int64_t n, float max, float temperature, float *w)
{
    for (int64_t i = 0; i < n; i += WIDTH) {
        float rest[WIDTH] = {0};
        const float *from = x + i;
        float *to = w + i;
        if (n - i < WIDTH) {
            memcpy(rest, from, (size_t)(n - i) * sizeof *rest);
            from = to = rest;
        }
        weights(from, max, temperature, to);
        if (n - i < WIDTH)
            memcpy(w + i, rest, (size_t)(n - i) * sizeof *rest);
    }
}

/* x[i] = exp(x[i]) for x <= 0 or NaN, 0 below -700; relative error < 2e-14. x = n ln 2 + r, then
 * the series of exp(r) to r^11 / 11!. */
static void exp_of_doubles(f64x2 x[PAIRS])
{
    static const double factor[] = {
        1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120,
        1.0 / 24,      1.0 / 6,      0.5,         1,          1,
    };
    const double to_int = ROUND_TO(0) + 1023; /* the lowest bits of k: n + 1023 */
    f64x2 k[PAIRS], r[PAIRS], p[PAIRS];
    EACH_PAIR(j)
    r[j] = pick((u64x2)(x[j] < -700.0), -700, x[j]);
    EACH_PAIR(j)
    k[j] = r[j] * 0x1.71547652b82fep+0 + to_int;
    EACH_PAIR(j)
    p[j] = k[j] - to_int;
    EACH_PAIR(j)
    r[j] = (r[j] - p[j] * 0x1.62e42feep-1) - p[j] * 0x1.a39ef35793c76p-33;
    EACH_PAIR(j)
    p[j] = r[j] * (1.0 / 39916800) + factor[0];
    for (size_t i = 1; i < sizeof factor / sizeof *factor; i++)
        EACH_PAIR(j)
    p[j] = p[j] * r[j] + factor[i];
    EACH_PAIR(j)
    x[j] = pick((u64x2)(x[j] < -700.0), 0, p[j] * (f64x2)((u64x2)k[j] << 52));
}

double oct_exp_sum(const float *x, int64_t n, float max)
{
    f64x2 sum[PAIRS] = {{0, 0}}, y[PAIRS];
    for (int64_t i = 0; i < n; i += WIDTH) {
        if (i + WIDTH <= n)
            EACH_PAIR(j)
        y[j] = (f64x2){x[i + 2 * j], x[i + 2 * j + 1]} - (double)max;
        else EACH_PAIR(j) y[j] =
            (f64x2){i + 2 * j < n ? x[i + 2 * j] - (double)max : -INFINITY,
                    i + 2 * j + 1 < n ? x[i + 2 * j + 1] - (double)max : -INFINITY};
        exp_of_doubles(y);
        EACH_PAIR(j)
        sum[j] += y[j];
    }
    f64x2 pair = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    return pair[0] + pair[1];
}
