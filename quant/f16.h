/* f16.h: conversions between f32 and its 16-bit relatives. Pure, thread-safe. */
#ifndef OCT_F16_H
#define OCT_F16_H

#include <stdint.h>
#include <string.h>

static inline float oct_f32_of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t oct_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* bf16 -> f32, exact. */
static inline float oct_f32_of_bf16(uint16_t b)
{
    return oct_f32_of_bits((uint32_t)b << 16);
}

/* f32 -> bf16, to nearest even; NaN stays NaN. */
static inline uint16_t oct_bf16_of_f32(float f)
{
    uint32_t u = oct_f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* f16 -> f32, exact (subnormals, Inf and NaN included). */
float oct_f32_of_f16(uint16_t h);

/* f32 -> f16, to nearest even, as VCVTPS2PH does; values beyond 65504 become Inf. */
uint16_t oct_f16_of_f32(float f);

#endif
