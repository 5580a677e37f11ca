/* k_avx512.c: the AVX-512 VNNI row. The f32 kernels are those of k_vec.inc; here are the integer
 * ones.
 *
 * vpdpbusd multiplies unsigned bytes with signed ones: excess-128 weights with the digits of the
 * activations. It yields sum (q + 128) a; with accumulators that start at -128 sum a (formed when
 * the activations are quantised) the result is sum q a, exactly.
 *
 * Activation row: digits_at holds int8 hi[n_groups * group_pad], then lo[the same]; sums holds for
 * each block the sum of hi, then for each block the sum of lo. Of activations of one digit hi is
 * zero, and not read. */
#include <float.h>
#include <math.h>

#include "linear_tiles.h"
#include "k_q4.h"
#include "q8.h"

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
    LINEAR_CHUNK = 128, /* rows: 32 KiB of running sums */
    LINEAR_TILE = 6     /* rows x digits in registers, each 4 registers of 16 channels */
};

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
 * stream_ahead bytes on, 8 the stream in two steps (linear_tiles.h), 1 and 2 are at ahead, which
 * moves by ahead_step a quad. */
V_INLINE void linear_tile(const linear_tiles *k, int digits, int n, int64_t r0, int lines,
                          const char *ahead, int64_t ahead_step)
{
    const oct_act_layout *l = k->act;
    const int64_t plane = l->n_groups * l->group_pad, block_quads = l->block / OCT_QUAD;
    const int64_t first_block = k->group * l->group_blocks + k->start / l->block;
    const int64_t n_quads = k->n_quads;
    const int first_digit = 2 - digits;
    float *const t = k->t + r0 * OCT_PANEL;
    const char *row[LINEAR_TILE];
    const int8_t *a[LINEAR_TILE];
    V_EACH (r, n) {
        row[r] = k->rows[r0 + r];
        a[r] = (const int8_t *)row[r] + l->digits_at + first_digit * plane +
               k->group * l->group_pad + k->start;
    }
    const uint8_t *w = k->weights;
    for (int64_t b = 0, q = 0; q < n_quads; b++) {
        const int64_t end = n_quads - q < block_quads ? n_quads : q + block_quads;
        const int64_t block = first_block + b;
        __m512i acc[LINEAR_TILE][2][4];
        V_EACH (r, n) {
            const int32_t *sums = (const int32_t *)(const void *)(row[r] + l->sums_at) + block;
            V_EACH (d, digits) {
                __m512i start = _mm512_set1_epi32(-128 * sums[(first_digit + d) * l->n_blocks]);
                V_EACH (c, 4)
                    acc[r][d][c] = start;
            }
        }
        for (; q < end; q++) {
            __m512i u[4];
            const char *stream = linear_stream(k, w, lines == 8 ? LINEAR_NEAR : k->stream_ahead);
            V_EACH (c, 4)
                u[c] = _mm512_load_si512(w + 64 * c);
            if (lines == 4) /* one of the quad's lines: the hardware's prefetcher brings the rest */
                _mm_prefetch(stream, _MM_HINT_T0);
            if (lines == 8) {
                const char *far = linear_stream(k, w, k->stream_ahead);
                V_EACH (c, 4)
                    _mm_prefetch(stream + 64 * c, _MM_HINT_T0);
                V_EACH (c, 4)
                    _mm_prefetch(far + 64 * c, _MM_HINT_T1);
            }
            if (lines < 4) {
                _mm_prefetch(ahead, _MM_HINT_T0);
                if (lines == 2)
                    _mm_prefetch(ahead + 64, _MM_HINT_T0);
                ahead += ahead_step;
            }
            V_EACH (r, n)
                V_EACH (d, digits) {
                    __m512i x = quad_at(a[r] + d * plane + q * OCT_QUAD);
                    V_EACH (c, 4)
                        dot_bytes(&acc[r][d][c], u[c], x);
                }
            w += OCT_Q8_QUAD_BYTES;
        }
        V_EACH (r, n) {
            __m512 s = _mm512_set1_ps(((const float *)(const void *)row[r])[block]);
            V_EACH (c, 4) {
                __m512i sum = acc[r][0][c];
                if (digits == 2)
                    sum = _mm512_add_epi32(_mm512_slli_epi32(sum, 8), acc[r][1][c]);
                float *out = t + r * OCT_PANEL + 16 * c;
                __m512 before = _mm512_load_ps(out);
                _mm512_store_ps(out, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), s, before));
            }
        }
    }
}

#define LINEAR_CASE(digits, n, lines)                                                      \
    V_NOINLINE void linear_##digits##_##n##_##lines(const linear_tiles *k, int64_t r0,     \
                                                    const char *ahead, int64_t ahead_step) \
    {                                                                                      \
        linear_tile(k, digits, n, r0, lines, ahead, ahead_step);                           \
    }
LINEAR_CASE(1, 1, 4)
LINEAR_CASE(1, 2, 4)
LINEAR_CASE(1, 3, 4)
LINEAR_CASE(1, 4, 4)
LINEAR_CASE(1, 5, 4)
LINEAR_CASE(1, 6, 4)
LINEAR_CASE(1, 3, 2)
LINEAR_CASE(1, 4, 2)
LINEAR_CASE(1, 5, 2)
LINEAR_CASE(1, 6, 2)
LINEAR_CASE(1, 4, 1)
LINEAR_CASE(1, 5, 1)
LINEAR_CASE(1, 6, 1)
LINEAR_CASE(1, 1, 8)
LINEAR_CASE(1, 2, 8)
LINEAR_CASE(1, 3, 8)
LINEAR_CASE(1, 4, 8)
LINEAR_CASE(1, 5, 8)
LINEAR_CASE(1, 6, 8)
LINEAR_CASE(2, 1, 8)
LINEAR_CASE(2, 2, 8)
LINEAR_CASE(2, 3, 8)
LINEAR_CASE(2, 1, 4)
LINEAR_CASE(2, 2, 4)
LINEAR_CASE(2, 3, 4)
LINEAR_CASE(2, 2, 2)
LINEAR_CASE(2, 3, 2)
LINEAR_CASE(2, 2, 1)
LINEAR_CASE(2, 3, 1)

/* As many rows as fit the registers: the strip streams through. More: tiles of about the same
 * number of rows, each fetching its share of the next strip. */
static void linear_strip(const linear_tiles *k)
{
    typedef void tile_fn(const linear_tiles *k, int64_t r0, const char *ahead, int64_t ahead_step);
    static tile_fn *const stream[2][2][LINEAR_TILE + 1] = {
        {{NULL, linear_1_1_4, linear_1_2_4, linear_1_3_4, linear_1_4_4, linear_1_5_4, linear_1_6_4},
         {NULL, linear_2_1_4, linear_2_2_4, linear_2_3_4}},
        {{NULL, linear_1_1_8, linear_1_2_8, linear_1_3_8, linear_1_4_8, linear_1_5_8, linear_1_6_8},
         {NULL, linear_2_1_8, linear_2_2_8, linear_2_3_8}}};
    static tile_fn *const share[2][2][LINEAR_TILE + 1] = {
        {{NULL, NULL, NULL, NULL, linear_1_4_1, linear_1_5_1, linear_1_6_1},
         {NULL, NULL, NULL, linear_1_3_2, linear_1_4_2, linear_1_5_2, linear_1_6_2}},
        {{NULL, NULL, linear_2_2_1, linear_2_3_1}, {NULL, NULL, linear_2_2_2, linear_2_3_2}}};
    const int digits = k->act->digits;
    const int64_t most = LINEAR_TILE / digits;
    if (k->n_rows <= most) {
        stream[linear_two_steps(k)][digits - 1][k->n_rows](k, 0, NULL, 0);
        return;
    }
    const int64_t tiles = (k->n_rows + most - 1) / most, n = k->n_rows / tiles;
    const int64_t larger = k->n_rows % tiles; /* of the tiles have n + 1 rows */
    const int64_t steps = tiles * k->n_quads, step = (k->n_bytes + steps - 1) / steps;
    tile_fn *const *tile = share[digits - 1][step > 64];
    const char *ahead = k->next;
    for (int64_t i = 0, r = 0; i < tiles; i++, ahead += step * k->n_quads) {
        int64_t rows = n + (i < larger);
        tile[rows](k, r, ahead, step);
        r += rows;
    }
}

/* ---- weights of 4 bits, few rows ---- */

/* The sum of the sixteen parts of each x[channel]: t[channel] = fma(sum, scale, t[channel]). */
V_NOINLINE void q4_finish_set(const __m512i *x, float scale, float *t)
{
    __m512i a[8], b[4], c[2];
    V_EACH (i, 8)
        a[i] = _mm512_add_epi32(_mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]),
                                _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]));
    V_EACH (i, 4)
        b[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(a[2 * i], a[2 * i + 1]),
                                _mm512_unpackhi_epi64(a[2 * i], a[2 * i + 1]));
    V_EACH (i, 2)
        c[i] = _mm512_add_epi32(_mm512_shuffle_i32x4(b[2 * i], b[2 * i + 1], 0x88),
                                _mm512_shuffle_i32x4(b[2 * i], b[2 * i + 1], 0xdd));
    const __m512i isum = _mm512_add_epi32(_mm512_shuffle_i32x4(c[0], c[1], 0x88),
                                          _mm512_shuffle_i32x4(c[0], c[1], 0xdd));
    _mm512_store_ps(
        t, _mm512_fmadd_ps(_mm512_cvtepi32_ps(isum), _mm512_set1_ps(scale), _mm512_load_ps(t)));
}

/* One block of a strip against all rows. */
typedef struct q4_block {
    const linear_tiles *k;
    int64_t n_steps; /* of the strip; of them the block has */
    int64_t first, end;
    int64_t at; /* the block in the rows */
} q4_block;

/* Where a pair's next step is. */
typedef struct q4_at {
    q4_place place;
    q4_ahead ahead;
    const int8_t *x[2][LINEAR_TILE]; /* [digit][row] */
} q4_at;

/* steps of a pair, a constant number: acc[row][digit][channel] */
V_INLINE void q4_dot_steps(q4_at *at, int steps, int groups, int digits, int n,
                           __m512i (*acc)[2][2])
{
    V_EACH (s, steps) {
        __m512i u[2];
        q4_place place = at->place;
        place.index += s * groups;
        place.nibbles += s * OCT_Q4_STEP;
        q4_pair(&place, groups, &u[0], &u[1]);
        q4_fetch(&at->ahead, s);
        V_EACH (r, n)
            V_EACH (d, digits) {
                __m512i x = q4_load(at->x[d][r] + s * OCT_Q4_STEP);
                dot_bytes(&acc[r][d][0], u[0], x);
                dot_bytes(&acc[r][d][1], u[1], x);
            }
    }
    at->place.index += steps * groups;
    at->place.nibbles += steps * OCT_Q4_STEP;
    at->ahead.near += steps * OCT_Q4_STEP;
    at->ahead.far += steps * OCT_Q4_STEP;
    V_EACH (r, n)
        V_EACH (d, digits)
            at->x[d][r] += steps * OCT_Q4_STEP;
}

/* A pair's registers with those of the rows: sum[row][channel of the set] */
V_INLINE void q4_dot_pair(q4_at at, int64_t steps, int groups, int digits, int n,
                          const __m512i *start, int64_t pair, __m512i (*sum)[Q4_SET])
{
    enum { TOGETHER = 4 };
    __m512i acc[LINEAR_TILE][2][2];
    V_EACH (r, n)
        V_EACH (d, digits)
            acc[r][d][0] = acc[r][d][1] = start[r * digits + d];
    for (; steps >= TOGETHER; steps -= TOGETHER)
        q4_dot_steps(&at, TOGETHER, groups, digits, n, acc);
    for (; steps > 0; steps--)
        q4_dot_steps(&at, 1, groups, digits, n, acc);
    V_EACH (r, n)
        V_EACH (c, 2) {
            __m512i isum = acc[r][digits - 1][c];
            if (digits == 2)
                isum = _mm512_add_epi32(_mm512_slli_epi32(acc[r][0][c], 8), isum);
            sum[r][pair + Q4_SET_PAIRS * c] = isum;
        }
}

/* The usual case of decode, a whole block against one row of two digits: the row's stay in
 * registers for all pairs. */
V_INLINE void q4_dot_whole(const q4_block *b, int groups)
{
    enum { STEPS = OCT_ACT_BLOCK / OCT_Q4_STEP };
    const linear_tiles *k = b->k;
    const oct_act_layout *l = k->act;
    const char *row = k->rows[0];
    const int32_t *sums = (const int32_t *)(const void *)(row + l->sums_at) + b->at;
    const int64_t plane = l->n_groups * l->group_pad;
    const __m512i start[2] = {_mm512_set1_epi32(-8 * sums[0]),
                              _mm512_set1_epi32(-8 * sums[l->n_blocks])};
    __m512i x[STEPS][2], sum[Q4_SET];
    V_EACH (s, STEPS)
        V_EACH (d, 2)
            x[s][d] = q4_load(row + l->digits_at + d * plane + k->group * l->group_pad + k->start +
                              s * OCT_Q4_STEP);
    for (int64_t set = 0; set < OCT_PANEL / Q4_SET; set++) {
        q4_place at = q4_place_of(k->weights, groups, STEPS, set * Q4_SET_PAIRS, 0);
        for (int64_t p = 0; p < Q4_SET_PAIRS; p++) {
            const q4_ahead ahead = q4_ahead_of(k, at.nibbles);
            __m512i acc[2][2] = {{start[0], start[0]}, {start[1], start[1]}};
            V_EACH (s, STEPS) {
                __m512i u[2];
                q4_place place = at;
                place.index += s * groups;
                place.nibbles += s * OCT_Q4_STEP;
                q4_pair(&place, groups, &u[0], &u[1]);
                q4_fetch(&ahead, s);
                V_EACH (d, 2)
                    V_EACH (c, 2)
                        dot_bytes(&acc[d][c], u[c], x[s][d]);
            }
            V_EACH (c, 2)
                sum[p + Q4_SET_PAIRS * c] =
                    _mm512_add_epi32(_mm512_slli_epi32(acc[0][c], 8), acc[1][c]);
            q4_place_next(&at);
        }
        q4_finish_set(sum, ((const float *)(const void *)row)[b->at], k->t + set * Q4_SET);
    }
}

V_NOINLINE void q4_2_whole(const q4_block *b)
{
    q4_dot_whole(b, 2);
}

V_NOINLINE void q4_4_whole(const q4_block *b)
{
    q4_dot_whole(b, 4);
}

V_INLINE void q4_dot_block(const q4_block *b, int groups, int digits, int n)
{
    const linear_tiles *k = b->k;
    const oct_act_layout *l = k->act;
    const int first_digit = 2 - digits;
    const int64_t plane = l->n_groups * l->group_pad;
    __m512i sum[LINEAR_TILE][Q4_SET], start[LINEAR_TILE];
    q4_at at;
    V_EACH (r, n) {
        const char *row = k->rows[r];
        const int32_t *sums = (const int32_t *)(const void *)(row + l->sums_at) + b->at;
        V_EACH (d, digits) {
            at.x[d][r] = (const int8_t *)row + l->digits_at + (first_digit + d) * plane +
                         k->group * l->group_pad + k->start + b->first * OCT_Q4_STEP;
            /* 128 times, in sixteen lanes */
            start[r * digits + d] = _mm512_set1_epi32(-8 * sums[(first_digit + d) * l->n_blocks]);
        }
    }
    for (int64_t set = 0; set < OCT_PANEL / Q4_SET; set++) {
        at.place = q4_place_of(k->weights, groups, b->n_steps, set * Q4_SET_PAIRS, b->first);
        for (int64_t p = 0; p < Q4_SET_PAIRS; p++) {
            at.ahead = q4_ahead_of(k, at.place.nibbles);
            q4_dot_pair(at, b->end - b->first, groups, digits, n, start, p, sum);
            q4_place_next(&at.place);
        }
        V_EACH (r, n)
            q4_finish_set(sum[r], ((const float *)k->rows[r])[b->at],
                          k->t + r * OCT_PANEL + set * Q4_SET);
    }
}

#define Q4_CASE(groups, digits, n)                                  \
    V_NOINLINE void q4_##groups##_##digits##_##n(const q4_block *b) \
    {                                                               \
        q4_dot_block(b, groups, digits, n);                         \
    }
#define Q4_CASES(groups)  \
    Q4_CASE(groups, 1, 1) \
    Q4_CASE(groups, 1, 2) \
    Q4_CASE(groups, 1, 3) \
    Q4_CASE(groups, 1, 4) \
    Q4_CASE(groups, 1, 5) \
    Q4_CASE(groups, 1, 6) \
    Q4_CASE(groups, 2, 1) \
    Q4_CASE(groups, 2, 2) \
    Q4_CASE(groups, 2, 3)
Q4_CASES(2)
Q4_CASES(4)

static bool q4_strip_streams(const linear_tiles *k)
{
    return k->n_rows * k->act->digits <= LINEAR_TILE;
}

/* As many rows as fit the registers. */
static void q4_strip_dot(const linear_tiles *k, int groups)
{
    typedef void block_fn(const q4_block *b);
    static block_fn *const fn[2][2][LINEAR_TILE + 1] = {
        {{NULL, q4_2_1_1, q4_2_1_2, q4_2_1_3, q4_2_1_4, q4_2_1_5, q4_2_1_6},
         {NULL, q4_2_2_1, q4_2_2_2, q4_2_2_3}},
        {{NULL, q4_4_1_1, q4_4_1_2, q4_4_1_3, q4_4_1_4, q4_4_1_5, q4_4_1_6},
         {NULL, q4_4_2_1, q4_4_2_2, q4_4_2_3}}};
    const oct_act_layout *l = k->act;
    const int64_t n_steps = linear_steps(k);
    const int64_t index_bytes = OCT_PANEL * n_steps * groups, block_steps = l->block / OCT_Q4_STEP;
    q4_block b = {
        .k = k, .n_steps = n_steps, .at = k->group * l->group_blocks + k->start / l->block};
    q4_fetch_indices(k, index_bytes);
    for (; b.first < n_steps; b.first = b.end, b.at++) {
        b.end = b.first + block_steps < n_steps ? b.first + block_steps : n_steps;
        if (k->n_rows == 1 && l->digits == 2 && b.end == OCT_ACT_BLOCK / OCT_Q4_STEP)
            (groups == 4 ? q4_4_whole : q4_2_whole)(&b);
        else
            fn[groups == 4][l->digits - 1][k->n_rows](&b);
    }
}

#include "k_vec.inc"
