#include "f16.h"

float oct_f32_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 31u;
    uint32_t mantissa = h & 0x3ffu;
    if (exponent == 31u) {
        /* Inf stays; a NaN keeps its payload and becomes quiet, as VCVTPH2PS does. */
        uint32_t quiet = mantissa ? 0x400000u : 0u;
        return oct_f32_of_bits(sign | 0x7f800000u | quiet | mantissa << 13);
    }
    if (exponent == 0u) {
        /* Zero or subnormal: mantissa * 2^-24, exact in f32. */
        float magnitude = (float)mantissa * 0x1p-24f;
        return oct_f32_of_bits(sign | oct_f32_bits(magnitude));
    }
    return oct_f32_of_bits(sign | (exponent + 112u) << 23 | mantissa << 13);
}

uint16_t oct_f16_of_f32(float f)
{
    uint32_t u = oct_f32_bits(f);
    uint32_t sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((u >> 13) & 0x3ffu));
    if (u >= 0x477ff000u) /* 65520, half way between 65504 and the next step, rounds up to Inf */
        return (uint16_t)(sign | 0x7c00u);
    if (u < 0x38800000u) {
        /* Below 2^-14: adding 2^-1 leaves the value in steps of 2^-24 in the low bits, rounded to
         * nearest even by the addition itself. */
        float shifted = oct_f32_of_bits(u) + 0.5f;
        return (uint16_t)(sign | (oct_f32_bits(shifted) - 0x3f000000u));
    }
    u += 0xfffu + ((u >> 13) & 1u);
    return (uint16_t)(sign | ((u - 0x38000000u) >> 13));
}
