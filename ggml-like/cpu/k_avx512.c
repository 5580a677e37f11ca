/* k_avx512.c: the AVX-512 VNNI row. The f32 kernels are those of k_vec.inc; here are the integer
 * ones.
 *
 * vpdpbusd multiplies unsigned bytes with signed ones: excess-128 weights with the digits of the
 * activations. It yields sum (q + 128) a; with accumulators that start at -128 sum a (formed when
 * the activations are quantised) the result is sum q a, exactly.
 *
 * Activation row: digits_at holds int8 hi[n_groups * group_pad], then lo[the same]; sums holds for
 * each block the sum of hi, then for each block the sum of lo. */
#include <float.h>
#include <math.h>

#include "kernels.h"
#include "vec.h"

#define OCT_KERNEL_SLOT(slot) oct_k_##slot##_fn oct_k_##slot##__avx512;
#include "kernels.inc"
#define ROW(slot) oct_k_##slot##__avx512
#define V_REGS 32

typedef struct act_dst {
    int8_t *hi, *lo;
} act_dst;

static act_dst act_at(const oct_act_layout *l, char *row, int64_t group, int64_t i)
{
    int8_t *hi = (int8_t *)row + l->digits_at + group * l->group_pad + i;
    return (act_dst){hi, hi + l->n_groups * l->group_pad};
}

V_INLINE vi16 act_hi(vi16 a)
{
    return vi_sar(vi_add(a, vi_set1(128)), 8);
}

V_INLINE vi16 act_lo(vi16 a)
{
    return vi_sub(a, vi_shl(act_hi(a), 8));
}

V_INLINE void act_put(const act_dst *d, int64_t i, vi16 a)
{
    _mm_storeu_si128((__m128i *)(void *)(d->hi + i), _mm512_cvtepi32_epi8(act_hi(a)));
    _mm_storeu_si128((__m128i *)(void *)(d->lo + i), _mm512_cvtepi32_epi8(act_lo(a)));
}

V_INLINE void act_sum(vi16 a, vi16 *hi, vi16 *lo)
{
    *hi = vi_add(*hi, act_hi(a));
    *lo = vi_add(*lo, act_lo(a));
}

enum {
    LINEAR_CHUNK = 96,  /* rows: 24 KiB of running sums */
    LINEAR_TILE = 3,    /* rows in registers: 3 x 2 digits x 4 registers of 16 channels */
    STREAM_AHEAD = 4096 /* bytes fetched ahead where the panel comes from memory */
};

/* One block of inputs of one panel against n_rows rows: t[r][lane] = fma(isum, s, t[r][lane]). */
typedef struct linear_tiles {
    const oct_act_layout *act;
    const uint8_t *weights; /* [n_quads][64][4] */
    const void *const *rows;
    int64_t n_rows, n_quads, group, block_start;
    float *t; /* [n_rows][64] */
} linear_tiles;

/* GCC 12 copies the accumulator of the intrinsic and spills; this is the instruction itself. */
V_INLINE void dot_bytes(__m512i *acc, __m512i u8, __m512i s8)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*acc) : "v"(u8), "v"(s8));
}

V_INLINE __m512i quad_at(const int8_t *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm512_set1_epi32(v);
}

/* n rows from r0 on. lines: cache lines to fetch ahead with each quad; 4 is the stream itself,
 * STREAM_AHEAD bytes on, 1 and 2 are at ahead, which moves by ahead_step a quad. */
V_INLINE void linear_tile(const linear_tiles *k, int n, int64_t r0, int lines, const char *ahead,
                          int64_t ahead_step)
{
    const oct_act_layout *l = k->act;
    const int64_t block = k->group * l->group_blocks + k->block_start / OCT_Q8_BLOCK;
    const int64_t plane = l->n_groups * l->group_pad;
    const int8_t *hi[LINEAR_TILE], *lo[LINEAR_TILE];
    const char *row[LINEAR_TILE];
    __m512i h[LINEAR_TILE][4], o[LINEAR_TILE][4];
    V_EACH (r, n) {
        row[r] = k->rows[r0 + r];
        hi[r] = (const int8_t *)row[r] + l->digits_at + k->group * l->group_pad + k->block_start;
        lo[r] = hi[r] + plane;
        const int32_t *sums = (const int32_t *)(const void *)(row[r] + l->sums_at);
        V_EACH (c, 4) {
            h[r][c] = _mm512_set1_epi32(-128 * sums[block]);
            o[r][c] = _mm512_set1_epi32(-128 * sums[l->n_blocks + block]);
        }
    }
    const uint8_t *w = k->weights;
    for (int64_t i = 0; i < 4 * k->n_quads; i += 4) {
        __m512i u[4];
        V_EACH (c, 4) {
            u[c] = _mm512_load_si512(w + 64 * c);
            if (lines == 4)
                _mm_prefetch((const char *)w + 64 * c + STREAM_AHEAD, _MM_HINT_T1);
        }
        if (lines < 4) {
            _mm_prefetch(ahead, _MM_HINT_T0);
            if (lines == 2)
                _mm_prefetch(ahead + 64, _MM_HINT_T0);
            ahead += ahead_step;
        }
        V_EACH (r, n) {
            __m512i a = quad_at(hi[r] + i);
            V_EACH (c, 4)
                dot_bytes(&h[r][c], u[c], a);
            a = quad_at(lo[r] + i);
            V_EACH (c, 4)
                dot_bytes(&o[r][c], u[c], a);
        }
        w += 256;
    }
    V_EACH (r, n) {
        __m512 s = _mm512_set1_ps(((const float *)(const void *)row[r])[block]);
        float *t = k->t + (r0 + r) * OCT_Q8_PANEL;
        V_EACH (c, 4) {
            __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(h[r][c], 8), o[r][c]);
            __m512 before = _mm512_load_ps(t + 16 * c);
            _mm512_store_ps(t + 16 * c, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), s, before));
        }
    }
}

#define LINEAR_CASE(n, lines)                                                                  \
    V_NOINLINE void linear_##n##_##lines(const linear_tiles *k, int64_t r0, const char *ahead, \
                                         int64_t ahead_step)                                   \
    {                                                                                          \
        linear_tile(k, n, r0, lines, ahead, ahead_step);                                       \
    }
LINEAR_CASE(1, 4)
LINEAR_CASE(2, 4)
LINEAR_CASE(3, 4)
LINEAR_CASE(2, 2)
LINEAR_CASE(3, 2)
LINEAR_CASE(2, 1)
LINEAR_CASE(3, 1)

/* Up to three rows: the block streams through. More: tiles of three and, at the end, of two, each
 * fetching its share of the next block. */
static void linear_block(const linear_tiles *k)
{
    typedef void tile_fn(const linear_tiles *k, int64_t r0, const char *ahead, int64_t ahead_step);
    static tile_fn *const stream[] = {NULL, linear_1_4, linear_2_4, linear_3_4};
    static tile_fn *const share[2][2] = {{linear_2_1, linear_3_1}, {linear_2_2, linear_3_2}};
    if (k->n_rows <= LINEAR_TILE) {
        stream[k->n_rows](k, 0, NULL, 0);
        return;
    }
    const int64_t tiles = (k->n_rows + LINEAR_TILE - 1) / LINEAR_TILE;
    const int64_t twos = tiles * LINEAR_TILE - k->n_rows; /* 0, 1 or 2 of the tiles */
    const int64_t step = (OCT_Q8_PANEL * OCT_Q8_QUAD + tiles - 1) / tiles;
    tile_fn *const *tile = share[step > 64];
    const char *ahead = (const char *)k->weights + k->n_quads * OCT_Q8_PANEL * OCT_Q8_QUAD;
    for (int64_t i = 0, r = 0; i < tiles; i++, ahead += step * k->n_quads) {
        bool three = i + twos < tiles;
        tile[three](k, r, ahead, step);
        r += three ? 3 : 2;
    }
}

#include "k_vec.inc"
