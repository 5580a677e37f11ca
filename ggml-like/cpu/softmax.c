/* softmax.c: the sum of the exponentials of a row of logits, in vectors that compilers make for
 * every CPU. */
#include <math.h>

#include "kernels.h"

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

/* x[i] = exp(x[i]) for x <= 0 or NaN, 0 below -700; relative error < 2e-14. x = n ln 2 + r, then
 * the series of exp(r) to r^11 / 11!. */
static void exp_of_doubles(f64x2 x[PAIRS])
{
    static const double factor[] = {
        1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120,
        1.0 / 24,      1.0 / 6,      0.5,         1,          1,
    };
    /* Adding it rounds to an integer; the lowest bits of k are then n + 1023. */
    const double to_int = 0x1.8p+52 + 1023;
    f64x2 k[PAIRS], r[PAIRS], p[PAIRS];
    EACH_PAIR (j)
        r[j] = pick((u64x2)(x[j] < -700.0), -700, x[j]);
    EACH_PAIR (j)
        k[j] = r[j] * 0x1.71547652b82fep+0 + to_int;
    EACH_PAIR (j)
        p[j] = k[j] - to_int;
    EACH_PAIR (j)
        r[j] = (r[j] - p[j] * 0x1.62e42feep-1) - p[j] * 0x1.a39ef35793c76p-33;
    EACH_PAIR (j)
        p[j] = r[j] * (1.0 / 39916800) + factor[0];
    for (size_t i = 1; i < sizeof factor / sizeof *factor; i++)
        EACH_PAIR (j)
            p[j] = p[j] * r[j] + factor[i];
    EACH_PAIR (j)
        x[j] = pick((u64x2)(x[j] < -700.0), 0, p[j] * (f64x2)((u64x2)k[j] << 52));
}

double oct_exp_sum(const float *x, int64_t n, float max)
{
    f64x2 sum[PAIRS] = {{0, 0}}, y[PAIRS];
    for (int64_t i = 0; i < n; i += WIDTH) {
        if (i + WIDTH <= n)
            EACH_PAIR (j)
                y[j] = (f64x2){x[i + 2 * j], x[i + 2 * j + 1]} - (double)max;
        else
            EACH_PAIR (j)
                y[j] = (f64x2){i + 2 * j < n ? x[i + 2 * j] - (double)max : -INFINITY,
                               i + 2 * j + 1 < n ? x[i + 2 * j + 1] - (double)max : -INFINITY};
        exp_of_doubles(y);
        EACH_PAIR (j)
            sum[j] += y[j];
    }
    f64x2 pair = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    return pair[0] + pair[1];
}
