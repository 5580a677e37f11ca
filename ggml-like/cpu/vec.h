/* vec.h: sixteen lanes of f32 or int32 as one value: a zmm register for the AVX-512 row, two ymm
 * registers for the AVX2 row. Every operation is an exact IEEE or integer operation lane by lane,
 * so that code written once over these types gives the same bits in both rows.
 * For the kernel files alone: everything here is compiled with their instruction sets. */
#ifndef OCT_VEC_H
#define OCT_VEC_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "oct_math.h"

#define V_INLINE static inline __attribute__((always_inline, unused))
#define V_NOINLINE static __attribute__((noinline))
/* for i in [0, n), n a constant: loops over tiles of registers must vanish, or the tile lives in
 * memory. */
#ifndef __OPTIMIZE__
#define V_EACH(i, n) for (int i = 0; i < (n); i++)
#elif defined(__clang__)
#define V_EACH(i, n) _Pragma("clang loop unroll(full)") for (int i = 0; i < (n); i++)
#else
#define V_EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
#endif

#ifdef __AVX512F__

typedef __m512 v16;
typedef __m512i vi16;
typedef __mmask16 vmask;

V_INLINE v16 v_zero(void)
{
    return _mm512_setzero_ps();
}
V_INLINE v16 v_set1(float x)
{
    return _mm512_set1_ps(x);
}
V_INLINE v16 v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
V_INLINE void v_store(float *p, v16 a)
{
    _mm512_storeu_ps(p, a);
}
V_INLINE vmask v_first(int64_t n)
{
    return (vmask)_cvtu32_mask16(n >= 16 ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u);
}
V_INLINE v16 v_load_n(const float *p, int64_t n)
{
    return _mm512_maskz_loadu_ps(v_first(n), p);
}
V_INLINE void v_store_n(float *p, int64_t n, v16 a)
{
    _mm512_mask_storeu_ps(p, v_first(n), a);
}
V_INLINE v16 v_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}
V_INLINE v16 v_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}
V_INLINE v16 v_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}
V_INLINE v16 v_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}
V_INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}
V_INLINE v16 v_min(v16 a, v16 b) /* b if either is NaN; v_max too */
{
    return _mm512_min_ps(a, b);
}
V_INLINE v16 v_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}
V_INLINE vmask v_gt(v16 a, v16 b) /* false for NaN */
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}
V_INLINE vmask v_lt(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
V_INLINE vmask v_nan(v16 a)
{
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}
V_INLINE v16 v_select(vmask m, v16 yes, v16 no)
{
    return _mm512_mask_blend_ps(m, no, yes);
}
V_INLINE int v_count(vmask m)
{
    return __builtin_popcount(_cvtmask16_u32(m));
}
V_INLINE vi16 vi_of_bits(v16 a)
{
    return _mm512_castps_si512(a);
}
V_INLINE v16 v_of_bits(vi16 a)
{
    return _mm512_castsi512_ps(a);
}
V_INLINE vi16 vi_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}
V_INLINE vi16 vi_add(vi16 a, vi16 b)
{
    return _mm512_add_epi32(a, b);
}
V_INLINE vi16 vi_sub(vi16 a, vi16 b)
{
    return _mm512_sub_epi32(a, b);
}
V_INLINE vi16 vi_and(vi16 a, vi16 b)
{
    return _mm512_and_si512(a, b);
}
V_INLINE vi16 vi_xor(vi16 a, vi16 b)
{
    return _mm512_xor_si512(a, b);
}
V_INLINE vi16 vi_or(vi16 a, vi16 b)
{
    return _mm512_or_si512(a, b);
}
V_INLINE vi16 vi_max(vi16 a, vi16 b)
{
    return _mm512_max_epi32(a, b);
}
V_INLINE vi16 vi_min(vi16 a, vi16 b)
{
    return _mm512_min_epi32(a, b);
}
#define vi_shl(a, n) _mm512_slli_epi32((a), (n))
#define vi_sar(a, n) _mm512_srai_epi32((a), (n))
#define vi_shr(a, n) _mm512_srli_epi32((a), (n))
V_INLINE vi16 vi_of_v(v16 a) /* to nearest even */
{
    return _mm512_cvtps_epi32(a);
}
V_INLINE v16 v_of_vi(vi16 a)
{
    return _mm512_cvtepi32_ps(a);
}
V_INLINE v16 v_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
V_INLINE v16 v_load_bf16(const uint16_t *p)
{
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
/* The first n (<= 16), the rest zero; nothing beyond is read. */
V_INLINE v16 v_load_bf16_n(const uint16_t *p, int64_t n)
{
    __m256i h = _mm256_maskz_loadu_epi16(v_first(n), p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
V_INLINE void v_store_f16(uint16_t *p, v16 a) /* to nearest even */
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
V_INLINE void vi_store_u16(uint16_t *p, vi16 a) /* low halves */
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(a));
}
/* The halves of eight lanes, for folds. */
V_INLINE __m256 v_low(v16 a)
{
    return _mm512_castps512_ps256(a);
}
V_INLINE __m256 v_high(v16 a)
{
    return _mm512_extractf32x8_ps(a, 1);
}
V_INLINE __m256i vi_low(vi16 a)
{
    return _mm512_castsi512_si256(a);
}
V_INLINE __m256i vi_high(vi16 a)
{
    return _mm512_extracti32x8_epi32(a, 1);
}

#else /* AVX2 */

typedef struct v16 {
    __m256 lo, hi;
} v16;
typedef struct vi16 {
    __m256i lo, hi;
} vi16;
typedef v16 vmask; /* all bits of a lane */

V_INLINE v16 v_pair(__m256 lo, __m256 hi)
{
    v16 r = {lo, hi};
    return r;
}
V_INLINE vi16 vi_pair(__m256i lo, __m256i hi)
{
    vi16 r = {lo, hi};
    return r;
}
V_INLINE v16 v_zero(void)
{
    return v_pair(_mm256_setzero_ps(), _mm256_setzero_ps());
}
V_INLINE v16 v_set1(float x)
{
    __m256 v = _mm256_set1_ps(x);
    return v_pair(v, v);
}
V_INLINE v16 v_load(const float *p)
{
    return v_pair(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
V_INLINE void v_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
V_INLINE vmask v_first(int64_t n)
{
    __m256i i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), k = _mm256_set1_epi32((int32_t)n);
    __m256i j = _mm256_add_epi32(i, _mm256_set1_epi32(8));
    return v_pair(_mm256_castsi256_ps(_mm256_cmpgt_epi32(k, i)),
                  _mm256_castsi256_ps(_mm256_cmpgt_epi32(k, j)));
}
V_INLINE v16 v_load_n(const float *p, int64_t n)
{
    vmask m = v_first(n);
    return v_pair(_mm256_maskload_ps(p, _mm256_castps_si256(m.lo)),
                  _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.hi)));
}
V_INLINE void v_store_n(float *p, int64_t n, v16 a)
{
    vmask m = v_first(n);
    _mm256_maskstore_ps(p, _mm256_castps_si256(m.lo), a.lo);
    _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.hi), a.hi);
}
V_INLINE v16 v_add(v16 a, v16 b)
{
    return v_pair(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi));
}
V_INLINE v16 v_sub(v16 a, v16 b)
{
    return v_pair(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi));
}
V_INLINE v16 v_mul(v16 a, v16 b)
{
    return v_pair(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi));
}
V_INLINE v16 v_div(v16 a, v16 b)
{
    return v_pair(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi));
}
V_INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    return v_pair(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}
V_INLINE v16 v_min(v16 a, v16 b)
{
    return v_pair(_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi));
}
V_INLINE v16 v_max(v16 a, v16 b)
{
    return v_pair(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi));
}
V_INLINE vmask v_gt(v16 a, v16 b) /* false for NaN */
{
    return v_pair(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ));
}
V_INLINE vmask v_lt(v16 a, v16 b)
{
    return v_pair(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ));
}
V_INLINE vmask v_nan(v16 a)
{
    return v_pair(_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q));
}
V_INLINE v16 v_select(vmask m, v16 yes, v16 no)
{
    return v_pair(_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi));
}
V_INLINE int v_count(vmask m)
{
    return __builtin_popcount((unsigned)_mm256_movemask_ps(m.lo)) +
           __builtin_popcount((unsigned)_mm256_movemask_ps(m.hi));
}
V_INLINE vi16 vi_of_bits(v16 a)
{
    return vi_pair(_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi));
}
V_INLINE v16 v_of_bits(vi16 a)
{
    return v_pair(_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi));
}
V_INLINE vi16 vi_set1(int32_t x)
{
    __m256i v = _mm256_set1_epi32(x);
    return vi_pair(v, v);
}
V_INLINE vi16 vi_add(vi16 a, vi16 b)
{
    return vi_pair(_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi));
}
V_INLINE vi16 vi_sub(vi16 a, vi16 b)
{
    return vi_pair(_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi));
}
V_INLINE vi16 vi_and(vi16 a, vi16 b)
{
    return vi_pair(_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi));
}
V_INLINE vi16 vi_xor(vi16 a, vi16 b)
{
    return vi_pair(_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi));
}
V_INLINE vi16 vi_or(vi16 a, vi16 b)
{
    return vi_pair(_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi));
}
V_INLINE vi16 vi_max(vi16 a, vi16 b)
{
    return vi_pair(_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi));
}
V_INLINE vi16 vi_min(vi16 a, vi16 b)
{
    return vi_pair(_mm256_min_epi32(a.lo, b.lo), _mm256_min_epi32(a.hi, b.hi));
}
#define vi_shl(a, n) vi_pair(_mm256_slli_epi32((a).lo, (n)), _mm256_slli_epi32((a).hi, (n)))
#define vi_sar(a, n) vi_pair(_mm256_srai_epi32((a).lo, (n)), _mm256_srai_epi32((a).hi, (n)))
#define vi_shr(a, n) vi_pair(_mm256_srli_epi32((a).lo, (n)), _mm256_srli_epi32((a).hi, (n)))
V_INLINE vi16 vi_of_v(v16 a) /* to nearest even */
{
    return vi_pair(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
}
V_INLINE v16 v_of_vi(vi16 a)
{
    return v_pair(_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi));
}
V_INLINE v16 v_load_f16(const uint16_t *p)
{
    return v_pair(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)),
                  _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 8))));
}
V_INLINE __m256 v_widen_bf16(const uint16_t *p)
{
    __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
}
V_INLINE v16 v_load_bf16(const uint16_t *p)
{
    return v_pair(v_widen_bf16(p), v_widen_bf16(p + 8));
}
/* The first n (<= 16), the rest zero; nothing beyond is read. */
V_INLINE v16 v_load_bf16_n(const uint16_t *p, int64_t n)
{
    uint16_t part[16] = {0};
    memcpy(part, p, (size_t)n * sizeof *p);
    return v_load_bf16(part);
}
V_INLINE void v_store_f16(uint16_t *p, v16 a) /* to nearest even */
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(void *)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
V_INLINE void vi_store_u16(uint16_t *p, vi16 a) /* low halves */
{
    __m256i m = _mm256_set1_epi32(0xffff);
    __m256i w = _mm256_packus_epi32(_mm256_and_si256(a.lo, m), _mm256_and_si256(a.hi, m));
    _mm256_storeu_si256((__m256i *)(void *)p, _mm256_permute4x64_epi64(w, 0xd8));
}
/* The halves of eight lanes, for folds. */
V_INLINE __m256 v_low(v16 a)
{
    return a.lo;
}
V_INLINE __m256 v_high(v16 a)
{
    return a.hi;
}
V_INLINE __m256i vi_low(vi16 a)
{
    return a.lo;
}
V_INLINE __m256i vi_high(vi16 a)
{
    return a.hi;
}

#endif

/* 16 -> 8 -> 4 -> 2 -> 1, lane j + half added to lane j. */
V_INLINE float v_fold(v16 a)
{
    __m256 s8 = _mm256_add_ps(v_low(a), v_high(a));
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
V_INLINE int32_t vi_fold_add(vi16 a)
{
    __m256i s8 = _mm256_add_epi32(vi_low(a), vi_high(a));
    __m128i s4 = _mm_add_epi32(_mm256_castsi256_si128(s8), _mm256_extracti128_si256(s8, 1));
    __m128i s2 = _mm_add_epi32(s4, _mm_shuffle_epi32(s4, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s2, _mm_shuffle_epi32(s2, 0xb1)));
}
V_INLINE int32_t vi_fold_max(vi16 a)
{
    __m256i s8 = _mm256_max_epi32(vi_low(a), vi_high(a));
    __m128i s4 = _mm_max_epi32(_mm256_castsi256_si128(s8), _mm256_extracti128_si256(s8, 1));
    __m128i s2 = _mm_max_epi32(s4, _mm_shuffle_epi32(s4, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(s2, _mm_shuffle_epi32(s2, 0xb1)));
}

/* bf16 to nearest even, as oct_bf16_of_f32. */
V_INLINE void v_store_bf16(uint16_t *p, v16 a)
{
    vi16 u = vi_of_bits(a), top = vi_shr(u, 16);
    vi16 even = vi_add(vi_set1(0x7fff), vi_and(top, vi_set1(1)));
    v16 rounded = v_of_bits(vi_shr(vi_add(u, even), 16));
    v16 quiet = v_of_bits(vi_or(top, vi_set1(0x40)));
    vi_store_u16(p, vi_of_bits(v_select(v_nan(a), quiet, rounded)));
}

/* exp, softcap_exp and gelu: the steps of oct_math.h. */
/* x[n] in place, n a constant: step by step for all, for one alone is a chain of latencies. */
V_INLINE void v_exp_core(int n, v16 *x)
{
    enum { MOST = 4 };
    v16 k[MOST], r[MOST], p[MOST];
    V_EACH (i, n)
        k[i] = v_fma(x[i], v_set1(OCT_EXP_LOG2E), v_set1(OCT_EXP_ROUND));
    V_EACH (i, n)
        p[i] = v_sub(k[i], v_set1(OCT_EXP_ROUND));
    V_EACH (i, n)
        r[i] = v_fma(p[i], v_set1(-OCT_EXP_LN2_HI), x[i]);
    V_EACH (i, n)
        r[i] = v_fma(p[i], v_set1(-OCT_EXP_LN2_LO), r[i]);
    V_EACH (i, n)
        p[i] = v_fma(v_set1(OCT_EXP_C5), r[i], v_set1(OCT_EXP_C4));
    V_EACH (i, n)
        p[i] = v_fma(p[i], r[i], v_set1(OCT_EXP_C3));
    V_EACH (i, n)
        p[i] = v_fma(p[i], r[i], v_set1(OCT_EXP_C2));
    V_EACH (i, n)
        p[i] = v_fma(p[i], r[i], v_set1(1.0f));
    V_EACH (i, n)
        p[i] = v_fma(p[i], r[i], v_set1(1.0f));
    V_EACH (i, n)
        x[i] = v_mul(p[i], v_of_bits(vi_shl(vi_of_bits(k[i]), 23)));
}
V_INLINE void v_exps(int n, v16 *x)
{
    v16 y[4];
    V_EACH (i, n)
        y[i] = x[i];
    v_exp_core(n, y);
    V_EACH (i, n)
        y[i] = v_select(v_lt(x[i], v_set1(OCT_EXP_MIN)), v_zero(), y[i]);
    V_EACH (i, n)
        x[i] = v_select(v_gt(x[i], v_set1(OCT_EXP_MAX)), v_of_bits(vi_set1(0x7f800000)), y[i]);
}
V_INLINE v16 v_exp(v16 x)
{
    v_exps(1, &x);
    return x;
}
V_INLINE void v_softcap_exp(int n, v16 *x, v16 two_cap)
{
    V_EACH (i, n)
        x[i] = v_min(v_set1(OCT_SOFTCAP_MAX), v_max(v_set1(OCT_SOFTCAP_MIN), x[i]));
    v_exp_core(n, x);
    V_EACH (i, n)
        x[i] = v_div(two_cap, v_add(x[i], v_set1(1.0f)));
    V_EACH (i, n)
        x[i] = v_of_bits(vi_xor(vi_of_bits(x[i]), vi_set1(INT32_MIN)));
    v_exp_core(n, x);
}
V_INLINE v16 v_gelu(v16 x)
{
    v16 t = v_fma(v_mul(x, x), v_set1(OCT_GELU_CUBIC), v_set1(OCT_GELU_LINEAR));
    v16 minus = v_of_bits(vi_sub(vi_of_bits(v_mul(x, t)), vi_set1(INT32_MIN))); /* -(x t) */
    return v_div(x, v_add(v_exp(minus), v_set1(1.0f)));
}

#endif
