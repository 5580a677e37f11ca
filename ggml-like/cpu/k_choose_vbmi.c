/* k_choose_vbmi.c: choosing tables of q4 with AVX-512 VBMI and VNNI: a register holds 16 channels
 * by 4 inputs as q8 has them; two lookups of 128 bytes find how far each is from a table, vpdpbusd
 * adds the squares. The nearest values of one channel are looked up in the same way. */
#include <immintrin.h>

#include "q4_best.h"

enum { MOST_QUADS = 8, QUAD_BYTES = OCT_PANEL * OCT_QUAD };

void oct_q4_choose16_vbmi(const oct_q4_chooser *c, const uint8_t *quads, int n_quads,
                          uint8_t *index)
{
    int first, end;
    __m512i q[MOST_QUADS], best = _mm512_set1_epi32(INT32_MAX), at = _mm512_setzero_si512();
    __mmask64 high[MOST_QUADS];
    __m512i hi = _mm512_set1_epi8(-128), lo = hi; /* zero is in reach */
    for (int k = 0; k < n_quads; k++) {
        q[k] = _mm512_loadu_si512(quads + k * QUAD_BYTES);
        high[k] = _mm512_movepi8_mask(q[k]);
        hi = _mm512_max_epu8(hi, q[k]);
        lo = _mm512_min_epu8(lo, q[k]);
    }
    hi = _mm512_max_epu8(hi, _mm512_rol_epi32(hi, 16));
    lo = _mm512_min_epu8(lo, _mm512_rol_epi32(lo, 16));
    hi = _mm512_max_epu8(hi, _mm512_rol_epi32(hi, 8));
    lo = _mm512_min_epu8(lo, _mm512_rol_epi32(lo, 8));
    const __m512i reach = _mm512_and_si512(_mm512_sub_epi8(hi, lo), _mm512_set1_epi32(255));
    oct_q4_span(c, _mm512_reduce_max_epi32(reach), _mm512_reduce_min_epi32(reach), &first, &end);
    for (int t = first; t < end; t++) {
        const uint8_t *off = c->off[t];
        const __m512i a = _mm512_loadu_si512(off), b = _mm512_loadu_si512(off + 64),
                      d = _mm512_loadu_si512(off + 128), e = _mm512_loadu_si512(off + 192);
        __m512i sum[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
        for (int k = 0; k < n_quads; k++) {
            const __m512i x = _mm512_mask_blend_epi8(high[k], _mm512_permutex2var_epi8(a, q[k], b),
                                                     _mm512_permutex2var_epi8(d, q[k], e));
            sum[k % 2] = _mm512_dpbusd_epi32(sum[k % 2], x, x);
        }
        const __m512i all = _mm512_add_epi32(sum[0], sum[1]);
        const __mmask16 better = _mm512_cmplt_epi32_mask(all, best);
        best = _mm512_min_epi32(best, all);
        at = _mm512_mask_mov_epi32(at, better, _mm512_set1_epi32(t));
    }
    _mm_storeu_si128((__m128i *)(void *)index, _mm512_cvtepi32_epi8(at));
}

uint32_t oct_q4_nearest_vbmi(const oct_q4_chooser *c, int table, const int8_t *q, int n,
                             uint8_t *nibble, uint32_t *most_sq)
{
    const uint8_t *near = c->nibble[table]; /* by q + 128 */
    const __mmask32 in = n < 32 ? (1u << n) - 1 : UINT32_MAX;
    const __m256i x = _mm256_xor_si256(_mm256_maskz_loadu_epi8(in, q), _mm256_set1_epi8(-128));
    const __m512i wide = _mm512_castsi256_si512(x);
    const __m512i low = _mm512_permutex2var_epi8(_mm512_loadu_si512(near), wide,
                                                 _mm512_loadu_si512(near + 64)),
                  high = _mm512_permutex2var_epi8(_mm512_loadu_si512(near + 128), wide,
                                                  _mm512_loadu_si512(near + 192));
    const __m256i k =
        _mm512_castsi512_si256(_mm512_mask_blend_epi8(_mm512_movepi8_mask(wide), low, high));
    const __m128i values = _mm_load_si128((const __m128i *)(const void *)oct_q4_table[table]);
    const __m256i v = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), k);
    const __m256i off = _mm256_maskz_sub_epi8(in, _mm256_max_epu8(v, x), _mm256_min_epu8(v, x));
    const __m512i off16 = _mm512_cvtepu8_epi16(off);
    const __m256i most = _mm256_max_epu8(off, _mm256_permute2x128_si256(off, off, 1));
    /* The largest byte: the least of the complements, pairs of bytes first. */
    const __m128i inv = _mm_xor_si128(_mm256_castsi256_si128(most), _mm_set1_epi8(-1));
    const __m128i least = _mm_minpos_epu16(_mm_min_epu8(inv, _mm_srli_epi16(inv, 8)));
    const uint32_t largest = 255 - ((uint32_t)_mm_cvtsi128_si32(least) & 255);
    _mm256_mask_storeu_epi8(nibble, in, k);
    *most_sq = largest * largest > *most_sq ? largest * largest : *most_sq;
    return (uint32_t)_mm512_reduce_add_epi32(_mm512_madd_epi16(off16, off16));
}
