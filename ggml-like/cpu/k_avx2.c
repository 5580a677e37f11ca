/* k_avx2.c: the AVX2 row (with FMA and F16C). The f32 kernels are those of k_vec.inc; here are the
 * integer ones.
 *
 * Of the four weights of a quad the even ones (bytes 0, 2) and the odd ones (1, 3) are taken apart
 * by a mask and a shift, which widens them to 16 bits; vpmaddwd multiplies each pair with a pair of
 * activations and adds. It yields sum (q + 128) a modulo 2^32; accumulators that start at
 * -128 sum a make it sum q a, which fits int32 (act.h). (vpmaddubsw would saturate.)
 *
 * Activation row: digits_at holds int16[n_groups * group_pad] in quads a0 a2 a1 a3; sums holds for
 * each block the sum of a, then zeros. One digit or two makes no difference here but for the
 * blocks. */
#include <float.h>
#include <math.h>

#include "kernels.h"
#include "q8.h"
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
    LINEAR_CHUNK = 96, /* rows: 24 KiB of running sums */
    LINEAR_TILE = 4    /* rows in registers, with a strip of 16 channels */
};

/* A strip of the panel against n_rows rows, block by block: t[r][lane] = fma(isum, s,
 * t[r][lane]) */
typedef struct linear_tiles {
    const oct_act_layout *act;
    const uint8_t *weights; /* [n_quads][64][4] */
    const void *const *rows;
    int64_t n_rows, n_quads, group, start; /* first input of the strip in its group */
    float *t;                              /* [n_rows][64] */
    const char *stream_end;                /* of the panel, and */
    int64_t jump;                          /* from there to what is read next */
    int64_t stream_ahead;                  /* bytes that are fetched ahead */
} linear_tiles;

V_INLINE __m256i pair_at(const int16_t *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}

/* Written out because compilers reorder the sums, run out of registers and spill accumulators. */
V_INLINE void madd_add(__m256i *acc, __m256i weights, __m256i pair)
{
    __m256i product;
    __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0"
            : "+x"(*acc), "=&x"(product)
            : "x"(weights), "x"(pair));
}

/* n rows from r0 on, width registers of 8 channels from lane on; n * width = 8 accumulators.
 * lines: cache lines to fetch ahead with each quad; 4 is the stream itself, stream_ahead bytes on,
 * 1 and 2 are at ahead, which moves by ahead_step a quad. */
V_INLINE void linear_tile(const linear_tiles *k, int n, int width, int64_t r0, int64_t lane,
                          int lines, const char *ahead, int64_t ahead_step)
{
    const oct_act_layout *l = k->act;
    const int64_t first_block = k->group * l->group_blocks + k->start / l->block;
    const int64_t block_quads = l->block / OCT_QUAD;
    const int16_t *a[LINEAR_TILE];
    const char *row[LINEAR_TILE];
    V_EACH (r, n) {
        row[r] = k->rows[r0 + r];
        a[r] = (const int16_t *)(const void *)(row[r] + l->digits_at) + k->group * l->group_pad +
               k->start;
    }
    const __m256i even_mask = _mm256_set1_epi32(0x00ff00ff);
    const uint8_t *w = k->weights + lane * OCT_QUAD;
    for (int64_t b = 0, q = 0; q < k->n_quads; b++) {
        const int64_t end = k->n_quads - q < block_quads ? k->n_quads : q + block_quads;
        const int64_t block = first_block + b;
        __m256i acc[LINEAR_TILE][8];
        V_EACH (r, n) {
            const int32_t *sums = (const int32_t *)(const void *)(row[r] + l->sums_at);
            V_EACH (c, width)
                acc[r][c] = _mm256_set1_epi32(-128 * sums[block]);
        }
        for (; q < end; q++) {
            if (lines < 4) {
                _mm_prefetch(ahead, _MM_HINT_T0);
                if (lines == 2)
                    _mm_prefetch(ahead + 64, _MM_HINT_T0);
                ahead += ahead_step;
            }
            /* Two registers of channels at a time: with 8 accumulators, their 4 halves of weights
             * and a pair of activations, the 16 registers just suffice. */
            const char *stream = (const char *)w + k->stream_ahead;
            stream += stream >= k->stream_end ? k->jump : 0;
            V_EACH (half, width / 2) {
                const int c = 2 * half;
                __m256i u0 = _mm256_load_si256((const __m256i *)(const void *)(w + 32 * c));
                __m256i u1 = _mm256_load_si256((const __m256i *)(const void *)(w + 32 * c + 32));
                __m256i odd0 = _mm256_srli_epi16(u0, 8), odd1 = _mm256_srli_epi16(u1, 8);
                __m256i even0 = _mm256_and_si256(u0, even_mask),
                        even1 = _mm256_and_si256(u1, even_mask);
                if (lines == 4)
                    _mm_prefetch(stream + 32 * c, _MM_HINT_T0);
                V_EACH (r, n) {
                    __m256i pair = pair_at(a[r] + OCT_QUAD * q);
                    madd_add(&acc[r][c], even0, pair);
                    madd_add(&acc[r][c + 1], even1, pair);
                    pair = pair_at(a[r] + OCT_QUAD * q + 2);
                    madd_add(&acc[r][c], odd0, pair);
                    madd_add(&acc[r][c + 1], odd1, pair);
                }
            }
            w += OCT_Q8_QUAD_BYTES;
        }
        V_EACH (r, n) {
            __m256 s = _mm256_set1_ps(((const float *)(const void *)row[r])[block]);
            float *t = k->t + (r0 + r) * OCT_PANEL + lane;
            V_EACH (c, width) {
                __m256 sum = _mm256_cvtepi32_ps(acc[r][c]);
                _mm256_store_ps(t + 8 * c, _mm256_fmadd_ps(sum, s, _mm256_load_ps(t + 8 * c)));
            }
        }
    }
}

#define LINEAR_CASE(n, lines)                                                             \
    V_NOINLINE void linear_##n##_##lines(const linear_tiles *k, int64_t r0, int64_t lane, \
                                         const char *ahead, int64_t ahead_step)           \
    {                                                                                     \
        linear_tile(k, n, 8 / n, r0, lane, lines, ahead, ahead_step);                     \
    }
LINEAR_CASE(1, 4)
LINEAR_CASE(1, 2)
LINEAR_CASE(2, 2)
LINEAR_CASE(4, 2)
LINEAR_CASE(1, 1)
LINEAR_CASE(2, 1)
LINEAR_CASE(4, 1)

/* One row: the strip streams through. More: strips of 16 channels with four rows, of 32 with two,
 * all 64 with one, each fetching its share of the next strip. */
static void linear_strip(const linear_tiles *k)
{
    typedef void tile_fn(const linear_tiles *k, int64_t r0, int64_t lane, const char *ahead,
                         int64_t ahead_step);
    static tile_fn *const share[2][3] = {{linear_1_1, linear_2_1, linear_4_1},
                                         {linear_1_2, linear_2_2, linear_4_2}};
    if (k->n_rows == 1) {
        linear_1_4(k, 0, 0, NULL, 0);
        return;
    }
    const int64_t tiles = k->n_rows / 4 * 4 + k->n_rows % 4;
    const int64_t step = (OCT_Q8_QUAD_BYTES + tiles - 1) / tiles;
    tile_fn *const *tile = share[step > 64];
    const char *ahead = (const char *)k->weights + k->n_quads * OCT_Q8_QUAD_BYTES;
    ahead += ahead >= k->stream_end ? k->jump : 0;
    for (int64_t lane = 0; lane < OCT_PANEL; lane += 16)
        for (int64_t r = 0; r + 4 <= k->n_rows; r += 4, ahead += step * k->n_quads)
            tile[2](k, r, lane, ahead, step);
    if (k->n_rows & 2)
        for (int64_t lane = 0; lane < OCT_PANEL; lane += 32, ahead += step * k->n_quads)
            tile[1](k, k->n_rows & ~(int64_t)3, lane, ahead, step);
    if (k->n_rows & 1)
        tile[0](k, k->n_rows - 1, 0, ahead, step);
}

#include "k_vec.inc"
