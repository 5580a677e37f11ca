/* gemv.cuh: products of few rows. Weights are read once, straight from the packed panels: a panel
 * (or its share of an expert's tile) is a block's, and its warps divide the inputs among
 * themselves. That is allowed because sums of a block of activations are integers: warps add theirs
 * in shared memory, in whatever order. What follows, the chain over blocks and groups, is one
 * thread's for each channel and row.
 *
 * A lane has four channels, half a warp a quad of 64; a load is 16 bytes, eight are under way. Of
 * 4-bit weights (q4.cuh) a lane has sixteen inputs of four channels, eight apart: two pairs; eight
 * lanes and their neighbours half a panel of 64 inputs. */
#ifndef OCT_GEMV_CUH
#define OCT_GEMV_CUH

#include "q4.cuh"

enum {
    GEMV_CHUNK = 32, /* quads that a warp takes at once */
    GEMV_STEPS = GEMV_CHUNK / Q4_STEP_QUADS
};

/* Threads of a block; of which each has so many chains. */
#define GEMV_THREADS(R) ((R) == 8 ? OCT_CUDA_GEMV_8_THREADS : 256)
#define GEMV_CHAINS(R) (((R)*64 + GEMV_THREADS(R) - 1) / GEMV_THREADS(R))

/* The rows of a tile; those beyond it are the last again. */
OCT_DEVICE oct_cuda_tile tile_of(const oct_cuda_linear_args &a, int64_t i)
{
    if (a.tiles)
        return a.tiles[i];
    int64_t first = i * a.tile_rows;
    return {0, (int32_t)first, (int32_t)oct_cuda_min(a.tile_rows, a.n_rows - first)};
}

/* Where its activations are, in lines of 64 bytes from a.x: half as many registers as a pointer. */
OCT_DEVICE uint32_t row_of(const oct_cuda_linear_args &a, const oct_cuda_tile &t, int i)
{
    int row = t.first + (i < t.n ? i : t.n - 1);
    return (uint32_t)(a.x_row ? a.x_row[row] : row) * (uint32_t)(a.act.bytes / 64);
}

OCT_DEVICE const unsigned char *at_row(const oct_cuda_linear_args &a, uint32_t row)
{
    return a.x + (uint64_t)row * 64;
}

/* What is added to a block's sum of unsigned weights times digits, to make the weights signed. */
OCT_DEVICE uint32_t sum_offset(const oct_act_layout &l, const unsigned char *x, int block)
{
    const int32_t *sums = (const int32_t *)(x + l.sums_at);
    return 0u - 128u * ((uint32_t)sums[block] * 256u + (uint32_t)sums[l.n_blocks + block]);
}

/* Eight quads (a lane: four) of weights times the digits of R rows. n: quads that there are. */
template <int R, int DIGITS>
OCT_DEVICE void gemv_step(const uint8_t *w, int q, int n, const unsigned char *digits,
                          const uint32_t *x, uint32_t plane, int32_t (*acc)[DIGITS][4])
{
    uint4 u[4];
    OCT_UNROLL
    for (int i = 0; i < 4; i++)
        u[i] = q + i < n ? oct_stream16(w + (uint32_t)(q + i) * 256) : make_uint4(0, 0, 0, 0);
    if (q >= n)
        return;
    OCT_UNROLL
    for (int r = 0; r < R; r++) {
        OCT_UNROLL
        for (int d = 0; d < DIGITS; d++) {
            const uint4 v = oct_load16(digits + (uint64_t)x[r] * 64 +
                                       (uint32_t)(d + 2 - DIGITS) * plane + (uint32_t)q * OCT_QUAD);
            const uint32_t digit[4] = {v.x, v.y, v.z, v.w};
            OCT_UNROLL
            for (int i = 0; i < 4; i++) {
                acc[r][d][0] = oct_dot4(u[i].x, digit[i], acc[r][d][0]);
                acc[r][d][1] = oct_dot4(u[i].y, digit[i], acc[r][d][1]);
                acc[r][d][2] = oct_dot4(u[i].z, digit[i], acc[r][d][2]);
                acc[r][d][3] = oct_dot4(u[i].w, digit[i], acc[r][d][3]);
            }
        }
    }
}

/* STEPS steps of 4-bit weights, those that there are of n, times the digits of R rows, in half a
 * panel: channel 32 half + lane / 4 + 8 c is acc's c. */
template <int R, int DIGITS, int STEPS>
OCT_DEVICE void gemv_steps_q4(const uint8_t *group, int groups, int step, int n, int half,
                              const uint4 *tables, const unsigned char *digits, const uint32_t *x,
                              uint32_t plane, int32_t (*acc)[DIGITS][4])
{
    const int pair = 16 * half + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const q4_place at = q4_place_of(group, groups, n, step, pair, t);
    q4_raw raw[STEPS][2] = {};
    OCT_UNROLL
    for (int i = 0; i < STEPS; i++) {
        OCT_UNROLL
        for (int p = 0; p < 2; p++)
            if (step + i < n)
                raw[i][p] = q4_fetch(at, groups, i, 8 * p);
    }
    OCT_UNROLL
    for (int i = 0; i < STEPS; i++) {
        uint32_t w[4][4]; /* [channel][quad] */
        if (step + i >= n)
            return;
        q4_expand(tables, raw[i][0], w[0], w[1]);
        q4_expand(tables, raw[i][1], w[2], w[3]);
        OCT_UNROLL
        for (int r = 0; r < R; r++) {
            OCT_UNROLL
            for (int d = 0; d < DIGITS; d++) {
                const uint4 v =
                    oct_load16(digits + (uint64_t)x[r] * 64 + (uint32_t)(d + 2 - DIGITS) * plane +
                               (uint32_t)((step + i) * OCT_Q4_STEP + 16 * t));
                const uint32_t digit[4] = {v.x, v.y, v.z, v.w};
                OCT_UNROLL
                for (int k = 0; k < 16; k++)
                    acc[r][d][k / 4] = oct_dot4(w[k / 4][k % 4], digit[k % 4], acc[r][d][k / 4]);
            }
        }
    }
}

/* Adds a warp's sums to those of the block: sums [R][64] in shared memory. Of 4-bit weights four
 * lanes have sums of the same four channels, of which each comes to have one. half: of a panel. */
template <int R, int DIGITS, bool Q4>
OCT_DEVICE void gemv_flush(int32_t (*acc)[DIGITS][4], int half, int32_t *sums)
{
    const int lane = threadIdx.x % 32;
    const bool odd = lane % 2, upper = lane % 4 / 2;
    OCT_UNROLL
    for (int r = 0; r < R; r++) {
        uint32_t sum[4];
        OCT_UNROLL
        for (int c = 0; c < 4; c++) {
            sum[c] = (uint32_t)acc[r][0][c];
            if (DIGITS == 2)
                sum[c] = sum[c] * 256u + (uint32_t)acc[r][DIGITS - 1][c];
            for (int d = 0; d < DIGITS; d++)
                acc[r][d][c] = 0;
        }
        if (Q4) {
            OCT_UNROLL
            for (int c = 0; c < 4; c += 2)
                sum[c] =
                    (odd ? sum[c + 1] : sum[c]) + OCT_SHUFFLE_XOR(odd ? sum[c] : sum[c + 1], 1);
            sum[0] = (upper ? sum[2] : sum[0]) + OCT_SHUFFLE_XOR(upper ? sum[0] : sum[2], 2);
            OCT_SHARED_ADD(sums + r * 64 + 32 * half + lane / 4 + lane % 4 * 8, (int32_t)sum[0]);
        } else {
            OCT_UNROLL
            for (int c = 0; c < 4; c++) {
                sum[c] += OCT_SHUFFLE_XOR(sum[c], 16);
                if (lane < 16)
                    OCT_SHARED_ADD(sums + r * 64 + 4 * lane + c, (int32_t)sum[c]);
            }
        }
    }
}

/* Items item0 .. item0 + n - 1 (blocks of activations, group by group) of a panel: their sums. Of
 * 4-bit weights a warp takes a chunk of half a panel. */
template <int R, int DIGITS, bool Q4>
OCT_DEVICE void gemv_sums(const oct_cuda_linear_args &a, const uint8_t *panel, int first_group,
                          int item0, int n, const uint32_t *x, const uint4 *tables, int32_t *sums)
{
    enum { HALVES = Q4 ? 2 : 1, AHEAD = R < 8 ? GEMV_STEPS : 1 };
    const oct_act_layout &l = a.act;
    constexpr int block_quads = (DIGITS == 2 ? OCT_ACT_BLOCK : OCT_ACT_BLOCK_I8) / OCT_QUAD;
    constexpr int each = block_quads / GEMV_CHUNK;
    const int group_blocks = (int)l.group_blocks, group_quads = (int)a.group_quads;
    const uint32_t plane = (uint32_t)(l.n_groups * l.group_pad);
    const int warps = GEMV_THREADS(R) / 32;
    const int chunks = n * HALVES * each, share = (chunks + warps - 1) / warps;
    const int lane = threadIdx.x % 32, c0 = threadIdx.x / 32 * share;
    const int c1 = c0 + share < chunks ? c0 + share : chunks;
    int32_t acc[R][DIGITS][4] = {};
    for (int c = c0; c < c1; c++) {
        const int at = c / (HALVES * each), item = item0 + at, g = item / group_blocks;
        const int q0 = item % group_blocks * block_quads, half = c / each % HALVES;
        const int left = group_quads - q0 < block_quads ? group_quads - q0 : block_quads;
        const uint8_t *w = panel + g * a.group_bytes;
        const unsigned char *digits = a.x + l.digits_at + (first_group + g) * l.group_pad;
        if (Q4) {
            const int first = (q0 + c % each * GEMV_CHUNK) / Q4_STEP_QUADS;
            const int n_steps = (group_quads + Q4_STEP_QUADS - 1) / Q4_STEP_QUADS;
            OCT_UNROLL_BY(1)
            for (int i = 0; i < GEMV_STEPS; i += AHEAD)
                gemv_steps_q4<R, DIGITS, AHEAD>(w, a.q4_groups, first + i, n_steps, half, tables,
                                                digits, x, plane, acc);
        } else {
            w += (uint32_t)q0 * 256 + lane % 16 * 16;
            OCT_UNROLL_BY(2)
            for (int i = 0; i < GEMV_CHUNK; i += 8)
                gemv_step<R, DIGITS>(w, c % each * GEMV_CHUNK + i + lane / 16 * 4, left,
                                     digits + q0 * OCT_QUAD, x, plane, acc);
        }
        if (c + 1 == c1 || (c + 1) % each == 0)
            gemv_flush<R, DIGITS, Q4>(acc, half, sums + at * R * 64);
    }
}

/* The chains of a thread's channels and rows over the items whose sums are there. */
template <int R>
OCT_DEVICE void gemv_chain(const oct_cuda_linear_args &a, const uint16_t *scales, int first_group,
                           int item0, int n, const int32_t *sums, float *t, float *y)
{
    const oct_act_layout &l = a.act;
    const int group_blocks = (int)l.group_blocks;
    OCT_IN_ORDER(); /* so that nothing for this is kept in registers all the time */
    const oct_cuda_tile tile = tile_of(a, blockIdx.x);
    OCT_UNROLL
    for (int k = 0; k < GEMV_CHAINS(R); k++) {
        const int i = threadIdx.x + k * GEMV_THREADS(R), channel = i % 64;
        if (i >= R * 64)
            return;
        const unsigned char *row = at_row(a, row_of(a, tile, i / 64));
        for (int item = 0; item < n; item++) {
            const int g = (item0 + item) / group_blocks, b = (item0 + item) % group_blocks;
            const int block = (first_group + g) * group_blocks + b;
            const uint32_t sum = (uint32_t)OCT_GET(sums + item * R * 64 + i);
            const int32_t exact = (int32_t)(sum + sum_offset(l, row, block));
            t[k] = oct_fma(oct_float_of_int(exact), ((const float *)row)[block], t[k]);
            if (b == group_blocks - 1) {
                y[k] = oct_fma(t[k], oct_float_of_bf16(scales[g * 64 + channel]), y[k]);
                t[k] = 0.0f;
            }
        }
    }
}

/* A block: a tile of rows, a panel, a slice. */
template <int R, int DIGITS, bool Q4> OCT_DEVICE void gemv(const oct_cuda_linear_args &a)
{
    const oct_cuda_tile tile = tile_of(a, blockIdx.x);
    if (tile.n == 0)
        return;
    const int64_t slice = a.first_slice + blockIdx.z, panel = blockIdx.y;
    const int items = (int)(a.unit_groups * a.act.group_blocks);
    const int room = items < OCT_CUDA_GEMV_ITEMS ? items : OCT_CUDA_GEMV_ITEMS;
    const int first_group = (int)(a.split_in ? slice * a.unit_groups : 0);
    const uint8_t *weights =
        a.weights + tile.expert * a.expert_stride + slice * a.slice_stride + panel * a.panel_bytes;
    const uint16_t *scales = (const uint16_t *)(a.scales + tile.expert * a.scale_expert_stride +
                                                slice * a.scale_slice_stride) +
                             panel * a.unit_groups * 64;
    int32_t *sums = (int32_t *)OCT_SHARED;
    float *out = (float *)(sums + room * R * 64); /* [R][64] */
    uint4 *tables = (uint4 *)(out + R * 64);      /* of 4-bit weights */
    uint32_t x[R];
    float t[GEMV_CHAINS(R)] = {}, y[GEMV_CHAINS(R)] = {};
    OCT_UNROLL
    for (int r = 0; r < R; r++)
        x[r] = row_of(a, tile, r);
    if (Q4)
        q4_bring_tables(tables); /* the barrier is below */
    for (int item = 0; item < items; item += room) {
        const int n = items - item < room ? items - item : room;
        for (int i = threadIdx.x; i < n * R * 64; i += GEMV_THREADS(R))
            OCT_PUT(sums + i, 0);
        OCT_BARRIER();
        gemv_sums<R, DIGITS, Q4>(a, weights, first_group, item, n, x, tables, sums);
        OCT_BARRIER();
        gemv_chain<R>(a, scales, first_group, item, n, sums, t, y);
        if (item + n < items)
            OCT_BARRIER();
    }
    OCT_UNROLL
    for (int k = 0; k < GEMV_CHAINS(R); k++)
        if (threadIdx.x + k * GEMV_THREADS(R) < R * 64)
            OCT_PUT(out + threadIdx.x + k * GEMV_THREADS(R), y[k]);
    OCT_BARRIER();
    OCT_IN_ORDER();
    const oct_cuda_tile rows = tile_of(a, blockIdx.x);
    const int width = a.gelu ? 32 : 64;
    const int64_t unit_out = a.gelu ? a.unit_out / 2 : a.unit_out;
    float *to = a.y + (a.split_in ? blockIdx.z * a.part_stride : slice * unit_out) + panel * width;
    for (int i = threadIdx.x; i < rows.n * width; i += GEMV_THREADS(R)) {
        const int r = i / width, channel = i % width;
        if (panel * width + channel >= unit_out)
            continue;
        float v = OCT_GET(out + r * 64 + channel);
        if (a.gelu)
            v = oct_mul(math_gelu(v), OCT_GET(out + r * 64 + 32 + channel));
        to[(a.y_row ? a.y_row[rows.first + r] : rows.first + r) * a.y_cols + channel] = v;
    }
}

#define GEMV_ENTRY(name, rows, blocks, q4)              \
    OCT_ENTRY(name, linear, GEMV_THREADS(rows), blocks) \
    {                                                   \
        if (a.act.digits == 2)                          \
            gemv<rows, 2, q4>(a);                       \
        else                                            \
            gemv<rows, 1, q4>(a);                       \
    }
GEMV_ENTRY(gemv_1, 1, 4, false)
GEMV_ENTRY(gemv_2, 2, 3, false)
GEMV_ENTRY(gemv_4, 4, 2, false)
GEMV_ENTRY(gemv_8, 8, 2, false)
GEMV_ENTRY(gemv_q4_1, 1, 3, true)
GEMV_ENTRY(gemv_q4_2, 2, 2, true)
GEMV_ENTRY(gemv_q4_4, 4, 2, true)
GEMV_ENTRY(gemv_q4_8, 8, 2, true)

#endif
