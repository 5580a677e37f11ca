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

#include "linear_tiles.h"
#include "k_q4.h"
#include "q8.h"

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
    LINEAR_CHUNK = 128, /* rows: 32 KiB of running sums */
    LINEAR_TILE = 4     /* rows in registers, with a strip of 16 channels */
};

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
 * 8 the stream in two steps (linear_tiles.h), 1 and 2 are at ahead, which moves by ahead_step a
 * quad. */
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
            const char *stream = linear_stream(k, w, lines == 8 ? LINEAR_NEAR : k->stream_ahead);
            const char *far = linear_stream(k, w, k->stream_ahead);
            V_EACH (half, width / 2) {
                const int c = 2 * half;
                __m256i u0 = _mm256_load_si256((const __m256i *)(const void *)(w + 32 * c));
                __m256i u1 = _mm256_load_si256((const __m256i *)(const void *)(w + 32 * c + 32));
                __m256i odd0 = _mm256_srli_epi16(u0, 8), odd1 = _mm256_srli_epi16(u1, 8);
                __m256i even0 = _mm256_and_si256(u0, even_mask),
                        even1 = _mm256_and_si256(u1, even_mask);
                if (lines >= 4)
                    _mm_prefetch(stream + 32 * c, _MM_HINT_T0);
                if (lines == 8)
                    _mm_prefetch(far + 32 * c, _MM_HINT_T1);
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
LINEAR_CASE(1, 8)
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
        (linear_two_steps(k) ? linear_1_8 : linear_1_4)(k, 0, 0, NULL, 0);
        return;
    }
    const int64_t tiles = k->n_rows / 4 * 4 + k->n_rows % 4;
    const int64_t steps = tiles * k->n_quads, step = (k->n_bytes + steps - 1) / steps;
    tile_fn *const *tile = share[step > 64];
    const char *ahead = k->next;
    for (int64_t lane = 0; lane < OCT_PANEL; lane += 16)
        for (int64_t r = 0; r + 4 <= k->n_rows; r += 4, ahead += step * k->n_quads)
            tile[2](k, r, lane, ahead, step);
    if (k->n_rows & 2)
        for (int64_t lane = 0; lane < OCT_PANEL; lane += 32, ahead += step * k->n_quads)
            tile[1](k, k->n_rows & ~(int64_t)3, lane, ahead, step);
    if (k->n_rows & 1)
        tile[0](k, k->n_rows - 1, 0, ahead, step);
}

/* ---- weights of 4 bits, one row ----
 *
 * The registers of k_q4.h, 32 inputs of a channel, are multiplied as they come: even and odd bytes
 * widened to 16 bits, as above, with the row's even and odd activations. That leaves eight partial
 * sums of one channel, which are added up for eight channels together at the end of a block. */

/* A row's activations: even and odd ones of each 32. */
typedef struct q4_row {
    _Alignas(32) int16_t even[OCT_Q4_STRIP / Q4_REGISTER][16], odd[OCT_Q4_STRIP / Q4_REGISTER][16];
} q4_row;

/* From quads a0 a2 a1 a3. */
static void q4_row_split(const int16_t *a, int64_t n_halves, q4_row *row)
{
    for (int64_t h = 0; h < n_halves; h++, a += Q4_REGISTER) {
        const __m256 lo = _mm256_castsi256_ps(q4_load(a)),
                     hi = _mm256_castsi256_ps(q4_load(a + 16));
        __m256i even = _mm256_castps_si256(_mm256_shuffle_ps(lo, hi, 0x88));
        __m256i odd = _mm256_castps_si256(_mm256_shuffle_ps(lo, hi, 0xdd));
        _mm256_store_si256((__m256i *)(void *)row->even[h], _mm256_permute4x64_epi64(even, 0xd8));
        _mm256_store_si256((__m256i *)(void *)row->odd[h], _mm256_permute4x64_epi64(odd, 0xd8));
    }
}

/* Eight registers of eight partial sums: the sum of x[c] in lane c. */
V_INLINE __m256i q4_fold(const __m256i *x)
{
    __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(x[0], x[1]), _mm256_hadd_epi32(x[2], x[3]));
    __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(x[4], x[5]), _mm256_hadd_epi32(x[6], x[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                            _mm256_permute2x128_si256(a, b, 0x31));
}

/* A block of a strip against one row. */
typedef struct q4_block {
    const linear_tiles *k;
    int64_t n_steps; /* of the strip; of them the block has */
    int64_t first, end;
    const q4_row *row;
    __m256i start;
} q4_block;

/* sum[channel of the set] */
V_INLINE void q4_dot_pair(const q4_block *b, int groups, int64_t pair, __m256i *sum)
{
    const linear_tiles *k = b->k;
    q4_place at = q4_place_of(k->weights, groups, b->n_steps, pair, b->first);
    q4_ahead ahead = q4_ahead_of(k, at.nibbles);
    const __m256i even_mask = _mm256_set1_epi32(0x00ff00ff);
    __m256i acc[2] = {b->start, b->start};
    for (int64_t s = b->first; s < b->end; s++) {
        q4_fetch(&ahead, s - b->first);
        V_EACH (h, 2) {
            const __m256i even = q4_load(b->row->even[2 * s + h]);
            const __m256i odd = q4_load(b->row->odd[2 * s + h]);
            V_EACH (c, 2) {
                __m256i u = q4_weights(&at, groups, h, c);
                madd_add(&acc[c], _mm256_and_si256(u, even_mask), even);
                madd_add(&acc[c], _mm256_srli_epi16(u, 8), odd);
            }
        }
        at.index += groups;
        at.nibbles += OCT_Q4_STEP;
    }
    sum[pair % Q4_SET_PAIRS] = acc[0];
    sum[pair % Q4_SET_PAIRS + Q4_SET_PAIRS] = acc[1];
}

V_INLINE void q4_dot_block(const q4_block *b, int groups, float scale)
{
    for (int64_t set = 0; set < OCT_PANEL / Q4_SET; set++) {
        __m256i sum[Q4_SET];
        for (int64_t p = 0; p < Q4_SET_PAIRS; p++)
            q4_dot_pair(b, groups, set * Q4_SET_PAIRS + p, sum);
        V_EACH (c, 2) {
            float *t = b->k->t + set * Q4_SET + 8 * c;
            __m256 isum = _mm256_cvtepi32_ps(q4_fold(sum + 8 * c));
            _mm256_store_ps(t, _mm256_fmadd_ps(isum, _mm256_set1_ps(scale), _mm256_load_ps(t)));
        }
    }
}

static bool q4_strip_streams(const linear_tiles *k)
{
    return k->n_rows == 1;
}

V_INLINE void q4_strip_dot(const linear_tiles *k, int groups)
{
    const oct_act_layout *l = k->act;
    const int64_t n_steps = linear_steps(k);
    const int64_t index_bytes = OCT_PANEL * n_steps * groups, block_steps = l->block / OCT_Q4_STEP;
    const char *row = k->rows[0];
    q4_row split;
    q4_row_split((const int16_t *)(const void *)(row + l->digits_at) + k->group * l->group_pad +
                     k->start,
                 2 * n_steps, &split);
    q4_fetch_indices(k, index_bytes);
    q4_block b = {.k = k, .n_steps = n_steps, .row = &split};
    int64_t block = k->group * l->group_blocks + k->start / l->block;
    for (; b.first < n_steps; b.first = b.end, block++) {
        const int32_t *sums = (const int32_t *)(const void *)(row + l->sums_at);
        b.end = b.first + block_steps < n_steps ? b.first + block_steps : n_steps;
        b.start = _mm256_set1_epi32(-16 * sums[block]); /* 128 times, in eight lanes */
        q4_dot_block(&b, groups, ((const float *)(const void *)row)[block]);
    }
}

#include "k_vec.inc"
