/* k_q4.h: weights of 4 bits in registers, for the kernel files alone. The bytes of a strip: q4.h.
 * A register holds inputs of one channel, 64 or, with AVX2, 32; vpshufb takes each sixteen of them
 * from a table. What it yields are the bytes of q8, excess 128. Products with few rows are formed
 * from these registers (k_avx512.c, k_avx2.c); for many rows a strip is put down as q8 has it, four
 * inputs of neighbouring channels in a register. */
#ifndef OCT_K_Q4_H
#define OCT_K_Q4_H

#include "linear_tiles.h"
#include "q4.h"
#include "q8.h"
#include "vec.h"

enum {
    Q4_SET = 16, /* channels, 8 pairs: of channels c and c + 8 */
    Q4_SET_PAIRS = 8
};

/* What is read some time after a line, to be fetched into L1 and, further on, into L2. */
typedef struct q4_ahead {
    const char *near, *far;
} q4_ahead;

V_INLINE q4_ahead q4_ahead_of(const linear_tiles *k, const void *line)
{
    q4_ahead a = {linear_stream(k, line, linear_near(k)), linear_stream(k, line, k->stream_ahead)};
    __asm__("" : "+r"(a.near), "+r"(a.far)); /* not the weights' address and a distance */
    return a;
}

/* Volatile, as the loads of weights are, to stay beside them: fetches that a compiler collects in
 * one place leave the queues of memory empty in others. */
V_INLINE void q4_fetch(const q4_ahead *a, int64_t lines)
{
    __asm__ volatile("prefetcht0 %0" : : "m"(a->near[lines * OCT_Q4_STEP]));
    __asm__ volatile("prefetcht1 %0" : : "m"(a->far[lines * OCT_Q4_STEP]));
}

/* The indices of a strip. */
V_INLINE void q4_fetch_indices(const linear_tiles *k, int64_t bytes)
{
    for (int64_t i = 0; i < bytes && k->stream_ahead; i += 64) {
        const q4_ahead ahead = q4_ahead_of(k, k->weights + i);
        q4_fetch(&ahead, 0);
    }
}

/* Where the pairs of a set have their steps s in a strip of n_steps. */
typedef struct q4_place {
    const uint8_t *index, *nibbles; /* of the first pair */
    int64_t index_step;             /* from a channel to the other of the pair */
    int64_t n_steps;
} q4_place;

V_INLINE q4_place q4_place_of(const uint8_t *strip, int groups, int64_t n_steps, int64_t pair,
                              int64_t s)
{
    const int64_t index_step = n_steps * groups;
    return (q4_place){.index = strip + 2 * pair * index_step + s * groups,
                      .nibbles = strip + 2 * OCT_Q4_PAIRS * index_step +
                                 (pair * n_steps + s) * OCT_Q4_STEP,
                      .index_step = index_step,
                      .n_steps = n_steps};
}

V_INLINE void q4_place_next(q4_place *p) /* pair */
{
    p->index += 2 * p->index_step;
    p->nibbles += p->n_steps * OCT_Q4_STEP;
}

/* The table at an offset from the first. */
V_INLINE const uint8_t *q4_table_at(uint16_t offset)
{
    return (const uint8_t *)(const void *)oct_q4_table + offset;
}

#ifdef __AVX512F__

/* Four tables, one for each sixteen inputs. */
V_INLINE __m512i q4_lane_of_tables(const __m128i *const *table, int groups)
{
    __m512i t = _mm512_broadcast_i32x4(_mm_load_si128(table[0]));
    if (groups == 2)
        return _mm512_mask_broadcast_i32x4(t, 0xff00, _mm_load_si128(table[1]));
    t = _mm512_mask_broadcast_i32x4(t, 0x00f0, _mm_load_si128(table[1]));
    t = _mm512_mask_broadcast_i32x4(t, 0x0f00, _mm_load_si128(table[2]));
    return _mm512_mask_broadcast_i32x4(t, 0xf000, _mm_load_si128(table[3]));
}

/* The tables of 64 inputs of a channel, which has so many groups in them. */
V_INLINE __m512i q4_tables(const uint8_t *index, int groups)
{
    const __m128i *table[4] = {NULL}; /* the compiler may not see that 2 or 4 are read */
    V_EACH (g, groups)
        table[g] = (const __m128i *)(const void *)oct_q4_table[index[g]];
    return q4_lane_of_tables(table, groups);
}

/* The same by offsets of the tables. */
V_INLINE __m512i q4_tables_at(const uint16_t *offset, int groups)
{
    const __m128i *table[4] = {NULL};
    V_EACH (g, groups)
        table[g] = (const __m128i *)(const void *)q4_table_at(offset[g]);
    return q4_lane_of_tables(table, groups);
}

/* A load that GCC does not repeat for each use: load ports are what is short. */
V_INLINE __m512i q4_load(const void *p)
{
    __m512i v;
    __asm__ volatile("vmovdqa64 %1, %0" : "=v"(v) : "m"(*(const __m512i *)p));
    return v;
}

/* 64 inputs of a pair's channels. */
V_INLINE void q4_pair(const q4_place *p, int groups, __m512i *first, __m512i *second)
{
    const __m512i low = _mm512_set1_epi8(15), both = q4_load(p->nibbles);
    *first = _mm512_shuffle_epi8(q4_tables(p->index, groups), _mm512_and_si512(both, low));
    *second = _mm512_shuffle_epi8(q4_tables(p->index + p->index_step, groups),
                                  _mm512_and_si512(_mm512_srli_epi16(both, 4), low));
}

/* n indices, a multiple of 32, as offsets of their tables. */
V_INLINE void q4_offsets(const uint8_t *index, int64_t n, uint16_t *offset)
{
    for (int64_t i = 0; i < n; i += 32) {
        const __m512i wide =
            _mm512_cvtepu8_epi16(_mm256_load_si256((const __m256i *)(const void *)(index + i)));
        _mm512_store_si512(offset + i, _mm512_slli_epi16(wide, 4));
    }
}

/* A pair's lines of a tile of sixteen channels x 64 inputs, a line each; offset: of its first
 * channel's tables, those of the second are offset_step further. */
V_INLINE void q4_expand_pair(const uint8_t *nibbles, const uint16_t *offset, int64_t offset_step,
                             int groups, uint8_t *line)
{
    const __m512i low = _mm512_set1_epi8(15), both = q4_load(nibbles);
    const __m512i first = q4_tables_at(offset, groups);
    const __m512i second = q4_tables_at(offset + offset_step, groups);
    _mm512_store_si512(line, _mm512_shuffle_epi8(first, _mm512_and_si512(both, low)));
    _mm512_store_si512(
        line + Q4_SET_PAIRS * OCT_Q4_STEP,
        _mm512_shuffle_epi8(second, _mm512_and_si512(_mm512_srli_epi16(both, 4), low)));
}

/* Sixteen inputs of four channels, each in a lane, from two pairs p and q: p's first channel, q's
 * first, p's second, q's second. */
V_INLINE __m512i q4_lanes(const uint8_t *p, const uint8_t *q, __m512i tables)
{
    const __m512i shift = _mm512_set_epi64(4, 4, 4, 4, 0, 0, 0, 0), low = _mm512_set1_epi8(15);
    __m512i both = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)(const void *)p));
    both =
        _mm512_mask_broadcast_i32x4(both, 0xf0f0, _mm_load_si128((const __m128i *)(const void *)q));
    return _mm512_shuffle_epi8(tables, _mm512_and_si512(_mm512_srlv_epi64(both, shift), low));
}

V_INLINE __m512i q4_lane_tables(const uint8_t *p, const uint8_t *q, int64_t index_step)
{
    const uint8_t index[4] = {p[0], q[0], p[index_step], q[index_step]};
    return q4_tables(index, 4);
}

/* z[j], in lane l sixteen inputs of channel 4 l + j, to out + q * stride: quad q of them. */
V_INLINE void q4_put_quads(const __m512i *z, uint8_t *out, int64_t stride)
{
    const __m512i a = _mm512_unpacklo_epi32(z[0], z[1]), b = _mm512_unpackhi_epi32(z[0], z[1]);
    const __m512i c = _mm512_unpacklo_epi32(z[2], z[3]), d = _mm512_unpackhi_epi32(z[2], z[3]);
    _mm512_store_si512(out, _mm512_unpacklo_epi64(a, c));
    _mm512_store_si512(out + stride, _mm512_unpackhi_epi64(a, c));
    _mm512_store_si512(out + 2 * stride, _mm512_unpacklo_epi64(b, d));
    _mm512_store_si512(out + 3 * stride, _mm512_unpackhi_epi64(b, d));
}

/* 64 activations of sixteen rows, at row[r] + at, as quads: quad q of all rows to out + q * stride.
 */
V_INLINE void q4_turn_rows(const int8_t *const *row, size_t at, int8_t *out, int64_t stride)
{
    V_EACH (i, 4) {
        __m512i z[4];
        V_EACH (j, 4) {
            const __m128i *lane[4];
            V_EACH (l, 4)
                lane[l] = (const __m128i *)(const void *)(row[4 * l + j] + at + 16 * i);
            z[j] = q4_lane_of_tables(lane, 4);
        }
        q4_put_quads(z, (uint8_t *)out + 4 * i * stride, stride);
    }
}

/* Step s of a strip of n_steps, sixteen channels from 16 set on, as quads: out is quad 0 of the
 * step, channel 0. */
V_INLINE void q4_expand_set(const uint8_t *strip, int groups, int64_t n_steps, int64_t s, int set,
                            uint8_t *out)
{
    enum { APART = 4 }; /* pairs in neighbouring lanes */
    const q4_place at = q4_place_of(strip, groups, n_steps, set * Q4_SET_PAIRS, s);
    const int64_t pair_index = 2 * at.index_step, pair_nibbles = n_steps * OCT_Q4_STEP;
    out += Q4_SET * OCT_QUAD * set;
    V_EACH (g, groups) {
        __m512i tables[4], z[4];
        V_EACH (j, 4) {
            const uint8_t *index = at.index + j * pair_index + g;
            tables[j] = q4_lane_tables(index, index + APART * pair_index, at.index_step);
        }
        for (int in = 0; in < OCT_Q4_STEP / groups; in += 16) {
            const int64_t i = g * (OCT_Q4_STEP / groups) + in;
            V_EACH (j, 4) {
                const uint8_t *p = at.nibbles + j * pair_nibbles + i;
                z[j] = q4_lanes(p, p + APART * pair_nibbles, tables[j]);
            }
            q4_put_quads(z, out + i / OCT_QUAD * OCT_Q8_QUAD_BYTES, OCT_Q8_QUAD_BYTES);
        }
    }
}

#else

enum { Q4_REGISTER = 32 }; /* inputs */

V_INLINE __m256i q4_load(const void *p)
{
    return _mm256_load_si256((const __m256i *)p);
}

/* The tables of 32 inputs; groups: of 64 inputs. */
V_INLINE __m256i q4_tables(const uint8_t *index, int groups)
{
    const __m128i *first = (const __m128i *)(const void *)oct_q4_table[index[0]];
    __m256i t = _mm256_broadcastsi128_si256(_mm_load_si128(first));
    if (groups == 2)
        return t;
    const __m128i *second = (const __m128i *)(const void *)oct_q4_table[index[1]];
    return _mm256_inserti128_si256(t, _mm_load_si128(second), 1);
}

/* The first or second half of 64 inputs of a pair's first or second channel. */
V_INLINE __m256i q4_weights(const q4_place *p, int groups, int half, int second)
{
    const uint8_t *index = p->index + half * groups / 2 + (second ? p->index_step : 0);
    __m256i both = q4_load(p->nibbles + half * Q4_REGISTER);
    if (second)
        both = _mm256_srli_epi16(both, 4);
    return _mm256_shuffle_epi8(q4_tables(index, groups),
                               _mm256_and_si256(both, _mm256_set1_epi8(15)));
}

/* n indices as offsets of their tables. */
V_INLINE void q4_offsets(const uint8_t *index, int64_t n, uint16_t *offset)
{
    for (int64_t i = 0; i < n; i++)
        offset[i] = (uint16_t)(index[i] * OCT_Q4_VALUES);
}

/* A pair's lines of a tile of sixteen channels x 64 inputs, a line each; offset: of its first
 * channel's tables, those of the second are offset_step further. */
V_INLINE void q4_expand_pair(const uint8_t *nibbles, const uint16_t *offset, int64_t offset_step,
                             int groups, uint8_t *line)
{
    for (int i = 0; i < OCT_Q4_STEP; i++) {
        const uint16_t *table = offset + i * groups / OCT_Q4_STEP;
        line[i] = q4_table_at(table[0])[nibbles[i] & 15];
        line[Q4_SET_PAIRS * OCT_Q4_STEP + i] = q4_table_at(table[offset_step])[nibbles[i] >> 4];
    }
}

/* 64 activations of sixteen rows, at row[r] + at, as quads: quad q of all rows to out + q * stride.
 */
V_INLINE void q4_turn_rows(const int8_t *const *row, size_t at, int8_t *out, int64_t stride)
{
    for (int64_t q = 0; q < OCT_Q4_STEP / OCT_QUAD; q++)
        for (int r = 0; r < Q4_SET; r++)
            memcpy(out + q * stride + r * OCT_QUAD, row[r] + at + q * OCT_QUAD, OCT_QUAD);
}

/* z[c], 32 inputs of channel c, to out + 256 q: quad q of the eight channels. */
V_INLINE void q4_put_quads(const __m256i *z, uint8_t *out)
{
    __m256i a[8],
        b[8]; /* b: in each lane, inputs 16 l .. 16 l + 15, quad j % 4 of channels j / 4 */
    V_EACH (j, 4) {
        a[2 * j] = _mm256_unpacklo_epi32(z[2 * j], z[2 * j + 1]);
        a[2 * j + 1] = _mm256_unpackhi_epi32(z[2 * j], z[2 * j + 1]);
    }
    V_EACH (c, 2)
        V_EACH (j, 2) {
            b[4 * c + 2 * j] = _mm256_unpacklo_epi64(a[4 * c + j], a[4 * c + j + 2]);
            b[4 * c + 2 * j + 1] = _mm256_unpackhi_epi64(a[4 * c + j], a[4 * c + j + 2]);
        }
    V_EACH (j, 4) {
        uint8_t *to = out + OCT_Q8_QUAD_BYTES * j;
        _mm256_store_si256((__m256i *)(void *)to, _mm256_permute2x128_si256(b[j], b[4 + j], 0x20));
        to += 4 * OCT_Q8_QUAD_BYTES;
        _mm256_store_si256((__m256i *)(void *)to, _mm256_permute2x128_si256(b[j], b[4 + j], 0x31));
    }
}

/* Step s of a strip of n_steps, sixteen channels from 16 set on, as quads: out is quad 0 of the
 * step, channel 0. */
V_INLINE void q4_expand_set(const uint8_t *strip, int groups, int64_t n_steps, int64_t s, int set,
                            uint8_t *out)
{
    out += Q4_SET * OCT_QUAD * set;
    V_EACH (half, 2)
        V_EACH (second, 2) {
            q4_place at = q4_place_of(strip, groups, n_steps, set * Q4_SET_PAIRS, s);
            __m256i z[Q4_SET_PAIRS];
            V_EACH (p, Q4_SET_PAIRS) {
                z[p] = q4_weights(&at, groups, half, second);
                q4_place_next(&at);
            }
            q4_put_quads(z, out + half * Q4_REGISTER / OCT_QUAD * OCT_Q8_QUAD_BYTES +
                                second * Q4_SET_PAIRS * OCT_QUAD);
        }
}

#endif

/* A whole strip: out[n_quads][64][4]. */
V_INLINE void q4_expand(const uint8_t *strip, int groups, int64_t n_steps, uint8_t *out)
{
    for (int64_t s = 0; s < n_steps; s++, out += OCT_Q4_STEP / OCT_QUAD * OCT_Q8_QUAD_BYTES)
        for (int set = 0; set < OCT_PANEL / Q4_SET; set++)
            q4_expand_set(strip, groups, n_steps, s, set, out);
}

#endif
