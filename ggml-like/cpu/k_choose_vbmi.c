/* k_choose_vbmi.c: choosing tables of q4 with AVX-512 VBMI and VNNI: a register holds 16 channels
 * by 4 inputs as q8 has them; two lookups of 128 bytes find how far each is from a table, vpdpbusd
 * adds the squares. */
#include <immintrin.h>

#include "q4_best.h"

enum { MOST_QUADS = 8, QUAD_BYTES = OCT_PANEL * OCT_QUAD };

void oct_q4_choose16_vbmi(const oct_q4_chooser *c, const uint8_t *quads, int n_quads,
                          uint8_t *index)
{
    int first, end;
    __m512i q[MOST_QUADS], best = _mm512_set1_epi32(INT32_MAX), at = _mm512_setzero_si512();
    __mmask64 high[MOST_QUADS];
    oct_q4_reach16(quads, n_quads, &first, &end);
    for (int k = 0; k < n_quads; k++) {
        q[k] = _mm512_loadu_si512(quads + k * QUAD_BYTES);
        high[k] = _mm512_movepi8_mask(q[k]);
    }
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
