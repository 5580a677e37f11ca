/* oct_math.h: the constants of Octet's exp, tanh and gelu, and the exact order of operations.
 *
 * math.c holds the scalar versions, vec.h the vector ones. Both perform these steps, each rounded
 * once to f32 (fma: one rounding of the whole), so every lane of every kernel row gives the bits of
 * the scalar function (a NaN result is a NaN everywhere, its payload may differ). `bits` reads the
 * float as a 32-bit unsigned integer; integer arithmetic wraps.
 *
 * exp(x):
 *   k = fma(x, OCT_EXP_LOG2E, OCT_EXP_ROUND)      the low bits of k hold n = rint(x / ln 2)
 *   n = k - OCT_EXP_ROUND
 *   r = fma(n, -OCT_EXP_LN2_HI, x)
 *   r = fma(n, -OCT_EXP_LN2_LO, r)
 *   p = OCT_EXP_C6
 *   p = fma(p, r, C5)  p = fma(p, r, C4)  p = fma(p, r, C3)  p = fma(p, r, C2)
 *   p = fma(p, r, 1)   p = fma(p, r, 1)
 *   y = p * float_of_bits((bits(k) + 127) << 23)
 *   y = x < OCT_EXP_MIN ? +0 : y
 *   y = x > OCT_EXP_MAX ? +Inf : y
 *
 * tanh(x), a = |x| (sign bit cleared):
 *   z = a * a
 *   p = OCT_TANH_C11
 *   p = fma(p, z, C9)  p = fma(p, z, C7)  p = fma(p, z, C5)  p = fma(p, z, C3)
 *   small = fma(p * z, a, a)
 *   large = 1 - 2 / (exp(2 * a) + 1)
 *   y = a < OCT_TANH_SMALL ? small : large        a NaN takes large, which is NaN
 *   y = y with the sign bit of x
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
#define OCT_EXP_ROUND 0x1.8p+23f
#define OCT_EXP_LN2_HI 0x1.63p-1f
#define OCT_EXP_LN2_LO (-0x1.bd0106p-13f)
#define OCT_EXP_C2 0x1p-1f
#define OCT_EXP_C3 0x1.5554d8p-3f
#define OCT_EXP_C4 0x1.555516p-5f
#define OCT_EXP_C5 0x1.12106cp-7f
#define OCT_EXP_C6 0x1.6d1606p-10f

#define OCT_TANH_SMALL 0.625f
#define OCT_TANH_C3 (-0x1.555552p-2f)
#define OCT_TANH_C5 0x1.110e1ap-3f
#define OCT_TANH_C7 (-0x1.b924eap-5f)
#define OCT_TANH_C9 0x1.57fe94p-6f
#define OCT_TANH_C11 (-0x1.8f6b1ep-8f)

#define OCT_GELU_LINEAR 0x1.988454p+0f /* 2 sqrt(2/pi) */
#define OCT_GELU_CUBIC 0x1.2444f2p-4f  /* 2 sqrt(2/pi) 0.044715 */

#endif
