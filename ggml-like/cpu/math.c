/* math.c: scalar exp, softcap_exp, gelu, sin and cos of Octet. Steps and constants: oct_math.h,
 * oct_math.inc. */
#include <math.h>

#include "f16.h"
#include "kernels.h"
#include "oct_math.h"

#define OCT_MATH_FN static
#define OCT_MATH_FMA(a, b, c) fmaf(a, b, c)
#define OCT_MATH_MUL(a, b) ((a) * (b))
#define OCT_MATH_DIV(a, b) ((a) / (b))
#define OCT_MATH_BITS oct_f32_bits
#define OCT_MATH_OF_BITS oct_f32_of_bits
#define OCT_MATH_GET(p) (*(p))
#define OCT_MATH_PUT(p, v) (*(p) = (v))
#include "oct_math.inc"

float oct_expf(float x)
{
    return math_exp(x);
}

float oct_softcap_expf(float x, float cap)
{
    return math_softcap_exp(x, cap);
}

float oct_geluf(float x)
{
    return math_gelu(x);
}

/* pi/2 in three parts; k * HI and k * MID are exact for |k| < 2^20. */
static const double PIO2_HI = 0x1.921fb544p+0;
static const double PIO2_MID = 0x1.0b4611a6p-34;
static const double PIO2_LO = 0x1.3198a2e037073p-69;
static const double TWO_OVER_PI = 0x1.45f306dc9c883p-1;
static const double ROUND = 0x1.8p+52; /* adding and subtracting it rounds to an integer */

static double sin_poly(double r, double z)
{
    double p = -0x1.a9fcc4020a412p-26;
    p = p * z + 0x1.71d949f67d4eep-19;
    p = p * z - 0x1.a019fd19bad0fp-13;
    p = p * z + 0x1.1111110f9d7b4p-7;
    p = p * z - 0x1.5555555555090p-3;
    return r + r * (z * p);
}

static double cos_poly(double z)
{
    double p = 0x1.1c68d4f781f64p-29;
    p = p * z - 0x1.27e22860b4440p-22;
    p = p * z + 0x1.a019ff0992eb3p-16;
    p = p * z - 0x1.6c16c16b42384p-10;
    p = p * z + 0x1.55555555553f8p-5;
    return 1.0 + z * (z * p - 0.5);
}

float oct_rope_inv_freq(float base, int64_t j, int64_t head_dim)
{
    float exponent = (float)(2 * j) / (float)head_dim;
    return 1.0f / (float)pow((double)base, (double)exponent);
}

void oct_sincosf(float x, float *s, float *c)
{
    double d = (double)x;
    double k = d * TWO_OVER_PI + ROUND - ROUND;
    double r = ((d - k * PIO2_HI) - k * PIO2_MID) - k * PIO2_LO;
    double z = r * r;
    double sine = sin_poly(r, z), cosine = cos_poly(z);
    unsigned quadrant = (unsigned)(int64_t)k & 3u;
    double sin_x = quadrant & 1u ? cosine : sine;
    double cos_x = quadrant & 1u ? sine : cosine;
    *s = (float)(quadrant & 2u ? -sin_x : sin_x);
    *c = (float)(quadrant == 1u || quadrant == 2u ? -cos_x : cos_x);
}

void oct_route(const float *logits, int64_t n, int64_t k, int32_t *expert, float *gate)
{
    float p[OCT_WEIGHT_MAX_EXPERTS];
    math_route(logits, n, k, p, expert, gate);
}
