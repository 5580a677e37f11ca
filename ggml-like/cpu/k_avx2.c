/* k_avx2.c: the AVX2 row (with FMA and F16C). The f32 kernels are those of k_vec.inc; here are the
 * integer ones.
 *
 * Of the four weights of a quad the even ones (bytes 0, 2) and the odd ones (1, 3) are taken apart
 * by a mask and a shift, which widens them to 16 bits; vpmaddwd multiplies each pair with a pair of
 * activations and adds. It yields sum (q + 128) a modulo 2^32; accumulators that start at
 * -128 sum a make it sum q a, which fits int32 (q8.h). (vpmaddubsw would saturate.)
 *
 * Activation row: digits_at holds int16[n_groups * group_pad] in quads a0 a2 a1 a3; sums holds for
 * each block the sum of a, then zeros. */
#include <float.h>
#include <math.h>

#include "kernels.h"
#include "vec.h"

#define OCT_KERNEL_SLOT(slot) oct_k_##slot##_fn oct_k_##slot##__avx2;
#include "kernels.inc"
#define ROW(slot) oct_k_##slot##__avx2
#define V_REGS 8

typedef struct act_dst {
    int16_t *a;
} act_dst;

static act_dst act_at(const oct_act_layout *l, char *row, int64_t group, int64_t i)
{
    return (act_dst){(int16_t *)(void *)(row + l->digits_at) + group * l->group_pad + i};
}

V_INLINE void act_put(const act_dst *d, int64_t i, vi16 a)
{
    uint16_t *out = (uint16_t *)(d->a + i);
    vi_store_u16(out, a);
    __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)out);
    v = _mm256_shufflelo_epi16(v, 0xd8);
    v = _mm256_shufflehi_epi16(v, 0xd8);
    _mm256_storeu_si256((__m256i *)(void *)out, v);
}

V_INLINE void act_sum(vi16 a, vi16 *sum, vi16 *none)
{
    (void)none;
    *sum = vi_add(*sum, a);
}

enum {
    LINEAR_CHUNK = 96,  /* rows: 24 KiB of running sums */
    LINEAR_TILE = 4,    /* rows in registers, with a strip of 16 channels */
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

V_INLINE __m256i pair_at(const int16_t *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}

/* n rows from r0 on, width registers of 8 channels from lane on; n * width = 8 accumulators. */
V_INLINE void linear_tile(const linear_tiles *k, int n, int width, int64_t r0, int64_t lane,
                          bool stream, const char *ahead, int64_t ahead_step)
{
    const oct_act_layout *l = k->act;
    const int64_t block = k->group * l->group_blocks + k->block_start / OCT_Q8_BLOCK;
    const int16_t *a[LINEAR_TILE];
    const char *row[LINEAR_TILE];
    __m256i acc[LINEAR_TILE][8];
    V_UNROLL for (int r = 0; r < n; r++) {
        row[r] = k->rows[r0 + r];
        a[r] = (const int16_t *)(const void *)(row[r] + l->digits_at) + k->group * l->group_pad +
               k->block_start;
        const int32_t *sums = (const int32_t *)(const void *)(row[r] + l->sums_at);
        V_UNROLL for (int c = 0; c < width; c++)
            acc[r][c] = _mm256_set1_epi32(-128 * sums[block]);
    }
    const __m256i even_mask = _mm256_set1_epi32(0x00ff00ff);
    const uint8_t *w = k->weights + lane * OCT_Q8_QUAD;
    for (int64_t i = 0; i < 4 * k->n_quads; i += 4) {
        if (!stream) {
            _mm_prefetch(ahead, _MM_HINT_T1);
            ahead += ahead_step;
        }
        V_UNROLL for (int c = 0; c < width; c++) {
            __m256i u = _mm256_load_si256((const __m256i *)(const void *)(w + 32 * c));
            __m256i even = _mm256_and_si256(u, even_mask), odd = _mm256_srli_epi16(u, 8);
            if (stream && c % 2 == 0)
                _mm_prefetch((const char *)w + 32 * c + STREAM_AHEAD, _MM_HINT_T1);
            V_UNROLL for (int r = 0; r < n; r++) {
                __m256i e = _mm256_madd_epi16(even, pair_at(a[r] + i));
                __m256i o = _mm256_madd_epi16(odd, pair_at(a[r] + i + 2));
                acc[r][c] = _mm256_add_epi32(_mm256_add_epi32(acc[r][c], e), o);
            }
        }
        w += 256;
    }
    V_UNROLL for (int r = 0; r < n; r++) {
        __m256 s = _mm256_set1_ps(((const float *)(const void *)row[r])[block]);
        float *t = k->t + (r0 + r) * OCT_Q8_PANEL + lane;
        V_UNROLL for (int c = 0; c < width; c++) {
            __m256 sum = _mm256_cvtepi32_ps(acc[r][c]);
            _mm256_store_ps(t + 8 * c, _mm256_fmadd_ps(sum, s, _mm256_load_ps(t + 8 * c)));
        }
    }
}

V_NOINLINE void linear_one_stream(const linear_tiles *k)
{
    linear_tile(k, 1, 8, 0, 0, true, NULL, 0);
}

V_NOINLINE void linear_one(const linear_tiles *k, int64_t r0)
{
    linear_tile(k, 1, 8, r0, 0, false, (const char *)k->weights, 0);
}

V_NOINLINE void linear_four(const linear_tiles *k, int64_t r0, int64_t lane, const char *ahead,
                            int64_t ahead_step)
{
    linear_tile(k, 4, 2, r0, lane, false, ahead, ahead_step);
}

/* Rows in fours, a strip of 16 channels after the other, every tile fetching its share of the next
 * block; the rest one by one. With fewer than four the block streams through under the first. */
static void linear_block(const linear_tiles *k)
{
    int64_t fours = k->n_rows / 4, r = fours * 4;
    if (fours > 0) {
        int64_t tiles = 4 * fours, step = (256 + tiles - 1) / tiles;
        const char *ahead = (const char *)k->weights + 256 * k->n_quads;
        for (int64_t lane = 0; lane < OCT_Q8_PANEL; lane += 16)
            for (int64_t i = 0; i < r; i += 4, ahead += step * k->n_quads)
                linear_four(k, i, lane, ahead, step);
    } else {
        linear_one_stream(k);
        r = 1;
    }
    for (; r < k->n_rows; r++)
        linear_one(k, r);
}

#include "k_vec.inc"
