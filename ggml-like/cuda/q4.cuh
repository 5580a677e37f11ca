/* q4.cuh: weights of 4 bits (q4.h) as the bytes that they stand for. A lane has sixteen inputs of a
 * pair of channels, 16 bytes: their four-bit numbers are selectors of byte permutations, which look
 * four inputs of a channel up at once, in a table that is in registers; its sixteen bytes come from
 * shared memory, where all tables are, once for the sixteen inputs. What results are q8's words of
 * four inputs, excess 128. */
#ifndef OCT_Q4_CUH
#define OCT_Q4_CUH

#include "device.cuh"

enum { Q4_STRIP_STEPS = OCT_Q4_STRIP / OCT_Q4_STEP, Q4_STEP_QUADS = OCT_Q4_STEP / OCT_QUAD };

/* Sixteen inputs of a pair, as they are in memory. */
typedef struct q4_raw {
    uint4 nibbles;
    uint32_t first, second; /* the channels' indices */
} q4_raw;

/* Copies all tables to shared memory; they are there behind a barrier. */
OCT_DEVICE void q4_bring_tables(uint4 *tables)
{
    for (int i = threadIdx.x; i < OCT_Q4_TABLES; i += blockDim.x)
        OCT_PUT(tables + i, oct_load16(OCT_Q4_TABLE + i));
}

/* Where a lane's inputs are, 16 t .. 16 t + 15 (t: 0..3) of a step of a pair; the strip's other
 * steps and the panel's other pairs are so many bytes apart. */
typedef struct q4_place {
    const uint8_t *nibbles, *index; /* of the first channel */
    uint32_t pair_nibbles, channel_index;
} q4_place;

/* In a panel's group, which has n_steps in all; groups: indices of a step. */
OCT_DEVICE q4_place q4_place_of(const uint8_t *group, uint32_t groups, uint32_t n_steps,
                                uint32_t step, uint32_t pair, uint32_t t)
{
    const uint32_t s = step % Q4_STRIP_STEPS, strip = step - s;
    const uint32_t left = n_steps - strip,
                   n = left < Q4_STRIP_STEPS ? left : (uint32_t)Q4_STRIP_STEPS;
    const uint8_t *at = group + strip * (OCT_PANEL * (groups + OCT_Q4_STEP / 2));
    return {at + OCT_PANEL * n * groups + (pair * n + s) * OCT_Q4_STEP + 16 * t,
            at + (2 * pair * n + s) * groups + t * groups / 4, n * OCT_Q4_STEP, n * groups};
}

/* The same inputs of the step that is `step` further on, of the pair that is `pair` further on. */
OCT_DEVICE q4_raw q4_fetch(const q4_place &p, uint32_t groups, uint32_t step, uint32_t pair)
{
    const uint8_t *index = p.index + step * groups + 2 * pair * p.channel_index;
    q4_raw raw;
    raw.nibbles = oct_stream16(p.nibbles + step * OCT_Q4_STEP + pair * p.pair_nibbles);
    raw.first = index[0];
    raw.second = index[p.channel_index];
    return raw;
}

/* Of one channel: the inputs of bits 0..15 and of bits 16..31, four each. */
OCT_DEVICE void q4_look_up(const uint4 &table, uint32_t nibbles, uint32_t out[2])
{
    const uint32_t low = nibbles & 0x77777777u;                       /* which of eight */
    const uint32_t half = (nibbles >> 1 & 0x44444444u) | 0x32103210u; /* of which eight */
    OCT_UNROLL
    for (int i = 0; i < 2; i++) {
        const uint32_t a = oct_permute(table.x, table.y, low >> 16 * i);
        const uint32_t b = oct_permute(table.z, table.w, low >> 16 * i);
        out[i] = oct_permute(a, b, half >> 16 * i);
    }
}

/* Eight inputs of a channel, whose low (or high) halves of bytes u and v are: w[0] the first four.
 * Nibbles of u and v are put side by side, 0 4 1 5 2 6 3 7, and so come out. */
template <bool HIGH>
OCT_DEVICE void q4_eight(const uint4 &table, uint32_t u, uint32_t v, uint32_t w[2])
{
    const uint32_t low = 0x0f0f0f0fu;
    uint32_t out[2];
    q4_look_up(table, HIGH ? (u >> 4 & low) | (v & ~low) : (u & low) | (v << 4 & ~low), out);
    w[0] = oct_permute(out[0], out[1], 0x6420u);
    w[1] = oct_permute(out[0], out[1], 0x7531u);
}

/* All sixteen: words of four inputs of the first and of the second channel. */
OCT_DEVICE void q4_expand(const uint4 *tables, const q4_raw &raw, uint32_t first[4],
                          uint32_t second[4])
{
    const uint4 a = OCT_GET(tables + raw.first), b = OCT_GET(tables + raw.second);
    q4_eight<false>(a, raw.nibbles.x, raw.nibbles.y, first);
    q4_eight<false>(a, raw.nibbles.z, raw.nibbles.w, first + 2);
    q4_eight<true>(b, raw.nibbles.x, raw.nibbles.y, second);
    q4_eight<true>(b, raw.nibbles.z, raw.nibbles.w, second + 2);
}

#endif
