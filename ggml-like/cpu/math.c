/* math.c: scalar exp, softcap_exp, gelu, sin and cos of Octet. Steps and constants: oct_math.h. */
#include <math.h>

#include "f16.h"
#include "kernels.h"
#include "oct_math.h"

/* For arguments in [OCT_EXP_MIN, OCT_EXP_MAX] or NaN. */
static float exp_core(float x)
{
    float k = fmaf(x, OCT_EXP_LOG2E, OCT_EXP_ROUND);
    float n = k - OCT_EXP_ROUND;
    float r = fmaf(n, -OCT_EXP_LN2_HI, x);
    r = fmaf(n, -OCT_EXP_LN2_LO, r);
    float p = OCT_EXP_C5;
    p = fmaf(p, r, OCT_EXP_C4);
    p = fmaf(p, r, OCT_EXP_C3);
    p = fmaf(p, r, OCT_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    return p * oct_f32_of_bits(oct_f32_bits(k) << 23);
}

float oct_expf(float x)
{
    float y = exp_core(x);
    y = x < OCT_EXP_MIN ? 0.0f : y;
    return x > OCT_EXP_MAX ? INFINITY : y;
}

float oct_softcap_expf(float x, float cap)
{
    float c = x < OCT_SOFTCAP_MIN ? OCT_SOFTCAP_MIN : x;
    c = c > OCT_SOFTCAP_MAX ? OCT_SOFTCAP_MAX : c;
    return exp_core(-(2.0f * cap / (exp_core(c) + 1.0f)));
}

float oct_geluf(float x)
{
    float t = fmaf(x * x, OCT_GELU_CUBIC, OCT_GELU_LINEAR);
    float e = oct_expf(-(x * t));
    return x / (e + 1.0f);
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
    float max = logits[0], p[OCT_WEIGHT_MAX_EXPERTS], sum = 0;
    for (int64_t i = 1; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int64_t i = 0; i < n; i++)
        sum += p[i] = oct_expf(logits[i] - max);
    for (int64_t i = 0; i < n; i++)
        p[i] /= sum;

    bool taken[OCT_WEIGHT_MAX_EXPERTS] = {false};
    for (int64_t j = 0; j < k; j++) {
        int64_t best = -1;
        for (int64_t i = 0; i < n; i++)
            if (!taken[i] && (best < 0 || p[i] > p[best]))
                best = i;
        taken[best] = true;
        expert[j] = (int32_t)best;
        gate[j] = p[best];
    }
}
