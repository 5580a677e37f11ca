/* oct_math.h: the constants of Octet's exp, softcap_exp and gelu, and their operations in order.
 *
 * oct_math.inc holds the scalar versions, vec.h the vector ones. Both perform these steps, each
 * rounded once to f32 (fma: one rounding of the whole), so every lane of every kernel row gives the
 * bits of the scalar function (a NaN result is a NaN everywhere, its payload may differ). `bits`
 * reads the float as a 32-bit unsigned integer; integer arithmetic wraps.
 *
 * exp(x):
 *   k = fma(x, OCT_EXP_LOG2E, OCT_EXP_ROUND)      the low bits of k: n + 127, n = rint(x / ln 2)
 *   n = k - OCT_EXP_ROUND
 *   r = fma(n, -OCT_EXP_LN2_HI, x)
 *   r = fma(n, -OCT_EXP_LN2_LO, r)
 *   p = OCT_EXP_C5
 *   p = fma(p, r, C4)  p = fma(p, r, C3)  p = fma(p, r, C2)  p = fma(p, r, 1)  p = fma(p, r, 1)
 *   y = p * float_of_bits(bits(k) << 23)
 *   y = x < OCT_EXP_MIN ? +0 : y
 *   y = x > OCT_EXP_MAX ? +Inf : y
 *
 * softcap_exp(x, cap) = exp(cap tanh(x / 2) - cap), the weight of a capped attention score. With
 * tanh(x / 2) = 1 - 2 / (exp(x) + 1) the difference is -2 cap / (exp(x) + 1), without the
 * cancellation. core(x) is exp(x) above up to the first y, for arguments that stay in range:
 *   c = x < OCT_SOFTCAP_MIN ? OCT_SOFTCAP_MIN : x
 *   c = c > OCT_SOFTCAP_MAX ? OCT_SOFTCAP_MAX : c        a NaN stays one
 *   y = core(-(2 cap / (core(c) + 1)))
 *
 * gelu(x) = x / (1 + exp(-2 u)), u = sqrt(2/pi) (x + 0.044715 x^3): the same function as
 * 0.5 x (1 + tanh(u)), without its cancellation for negative x:
 *   t = fma(x * x, OCT_GELU_CUBIC, OCT_GELU_LINEAR)
 *   e = exp(-(x * t))
 *   y = x / (e + 1)
 *
 * Divisions are IEEE divisions, not reciprocal estimates. */
#ifndef OCT_MATH_H
#define OCT_MATH_H

#define OCT_EXP_MIN (-87.0f)
#define OCT_EXP_MAX 88.0f
#define OCT_EXP_LOG2E 0x1.715476p+0f
#define OCT_EXP_ROUND 0x1.8000fep+23f /* 1.5 2^23 + 127 */
#define OCT_EXP_LN2_HI 0x1.62e43p-1f
#define OCT_EXP_LN2_LO (-0x1.05c61p-29f)
#define OCT_EXP_C2 0x1.fffdfcp-2f /* least relative error on |r| <= ln 2 / 2: 1.1e-7 */
#define OCT_EXP_C3 0x1.5557bp-3f
#define OCT_EXP_C4 0x1.572a66p-5f
#define OCT_EXP_C5 0x1.106252p-7f

#define OCT_SOFTCAP_MIN (-64.0f) /* beyond either the sum exp(x) + 1 does not change any more, */
#define OCT_SOFTCAP_MAX 64.0f    /* or its quotient is far below half a unit of 1 */

#define OCT_GELU_LINEAR 0x1.988454p+0f /* 2 sqrt(2/pi) */
#define OCT_GELU_CUBIC 0x1.2444f2p-4f  /* 2 sqrt(2/pi) 0.044715 */

#endif
