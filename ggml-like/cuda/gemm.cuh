/* gemm.cuh: products of many rows, on int8 tensor cores. Both digits of the activations meet the
 * weights in one pass: two sums of int32 for each output, until the block of activations ends; then
 * the chain of floats.
 *
 * A block of threads has three panels and 64 rows, a warp one of the panels and 16 rows. Weights
 * are the first operand (16 channels x 32 inputs), activations the second (32 inputs x 8 rows).
 * Which channel a row of the first is, and which input a column, is ours to choose, as long as both
 * operands agree: so that lanes load 16 bytes, and words of memory are registers of fragments:
 *   a lane (g = lane / 4, t = lane % 4) loads channels 4 g .. 4 g + 3 of a quad; the first two are
 *   rows g and g + 8 of one fragment, the others of a second one. Its quads of a stage (16) are
 *   4 t .. 4 t + 3: two for each product. An activation row's 16 bytes at input 16 t of the
 *   stage are the same quads.
 * So a lane ends with channels 4 g .. 4 g + 3, and 32 above them (gate and up), of rows
 * 2 t and 2 t + 1 of each eight.
 *
 * Stages of 64 inputs are copied ahead in shared memory: weights as they are in the panel, but with
 * the 16-byte pieces of a quad exchanged so that the four lanes t meet different banks; then the
 * digits. Weights of 4 bits are loaded a stage further ahead into registers, and lie in shared
 * memory as q8's: a thread puts down sixteen inputs of two channels (q4.cuh). */
#include "gemv.cuh"

enum {
    GEMM_PANELS = OCT_CUDA_GEMM_PANELS,
    GEMM_ROWS = OCT_CUDA_GEMM_ROWS,
    GEMM_QUADS = OCT_CUDA_GEMM_QUADS,
    GEMM_STAGES = OCT_CUDA_GEMM_STAGES,
    GEMM_THREADS = 128 * GEMM_PANELS,
    GEMM_PANEL_BYTES = GEMM_QUADS * 256,
    GEMM_PLANE = GEMM_ROWS * GEMM_QUADS * 4, /* one digit of the rows */
    GEMM_ROW_COPIES = (2 * GEMM_PLANE / 16 + GEMM_THREADS - 1) / GEMM_THREADS, /* of a thread */
    GEMM_STAGE_BYTES = GEMM_PANELS * GEMM_PANEL_BYTES + 2 * GEMM_PLANE
};

/* Where a stage of inputs is. */
typedef struct gemm_place {
    int group, quad; /* of the unit's groups, of the group's quads */
} gemm_place;

/* Moves on to the next; whether a group has ended. */
OCT_DEVICE bool gemm_advance(const oct_cuda_linear_args &a, gemm_place *at)
{
    at->quad += GEMM_QUADS;
    if (at->quad < (int)a.group_quads)
        return false;
    at->quad = 0;
    at->group++;
    return true;
}

/* The unit's first group, among those of the activations. */
OCT_DEVICE int gemm_first_group(const oct_cuda_linear_args &a)
{
    return a.split_in ? (a.first_slice + (int)blockIdx.z) * (int)a.unit_groups : 0;
}

/* What a thread copies next: a piece of 16 bytes of a quad and of the quad eight further on, and of
 * rows. It moves on by itself, so that no stage computes an address anew. */
typedef struct gemm_pieces {
    const uint8_t *w;
    uint32_t w_to; /* in the stage */
    int quads;     /* of the group, from this piece's on; none of a panel beyond the last */
    uint32_t x[GEMM_ROW_COPIES]; /* 16 bytes each, from the digits: 32 bits are enough */
    gemm_place at;
    q4_raw raw; /* of 4-bit weights: what is put down next; w is their panel */
} gemm_pieces;

/* Loads 4-bit weights of a stage. */
OCT_DEVICE void gemm_fetch_q4(const oct_cuda_linear_args &a, gemm_pieces *p)
{
    const int pair = threadIdx.x % 128 / 4, t = threadIdx.x % 4;
    const int n = ((int)a.group_quads + Q4_STEP_QUADS - 1) / Q4_STEP_QUADS;
    p->raw = {};
    if (p->quads && p->at.group < a.unit_groups)
        p->raw = q4_fetch(q4_place_of(p->w + p->at.group * a.group_bytes, a.q4_groups, n,
                                      (uint32_t)p->at.quad / Q4_STEP_QUADS, pair, t),
                          a.q4_groups, 0, 0);
}

/* Puts them where gemm_stage expects those of q8. */
OCT_DEVICE void gemm_put_q4(const gemm_pieces &p, const uint4 *tables, unsigned char *stage)
{
    const int pair = threadIdx.x % 128 / 4, t = threadIdx.x % 4, channel = pair / 8 * 16 + pair % 8;
    unsigned char *to = stage + threadIdx.x / 128 * GEMM_PANEL_BYTES + 4 * t * 256;
    uint32_t w[2][4];
    q4_expand(tables, p.raw, w[0], w[1]);
    OCT_UNROLL
    for (int k = 0; k < 2; k++) { /* the second channel is eight further on: two pieces */
        const int piece = (channel / 4 + 2 * k) ^ 2 * t;
        OCT_UNROLL
        for (int q = 0; q < 4; q++)
            OCT_PUT((uint32_t *)(to + q * 256 + piece * 16 + channel % 4 * 4), w[k][q]);
    }
}

template <bool Q4>
OCT_DEVICE gemm_pieces gemm_pieces_of(const oct_cuda_linear_args &a, const oct_cuda_tile &tile)
{
    const uint32_t i = threadIdx.x, piece = i % 16, quad = i / 16 % 8, panel = i / 128;
    const int slice = a.first_slice + (int)blockIdx.z;
    gemm_pieces p;
    p.w = a.weights + tile.expert * a.expert_stride + slice * a.slice_stride +
          (blockIdx.y * GEMM_PANELS + panel) * a.panel_bytes + (Q4 ? 0 : quad * 256 + piece * 16);
    p.w_to = panel * GEMM_PANEL_BYTES + quad * 256 + (piece ^ quad / 4 * 2) * 16;
    p.quads =
        blockIdx.y * GEMM_PANELS + panel < a.n_panels ? (int)(a.group_quads - (Q4 ? 0 : quad)) : 0;
    p.at = {0, 0};
    if (Q4)
        gemm_fetch_q4(a, &p);
    const uint32_t plane = (uint32_t)(a.act.n_groups * a.act.group_pad / 16);
    OCT_UNROLL
    for (int k = 0; k < GEMM_ROW_COPIES; k++) {
        const uint32_t j = i + k * GEMM_THREADS;
        p.x[k] = row_of(a, tile, j / 4 % GEMM_ROWS) * 4 + j / (GEMM_PLANE / 16) * plane + j % 4 +
                 (uint32_t)(gemm_first_group(a) * a.act.group_pad / 16);
    }
    return p;
}

/* Begins to copy a stage; nothing beyond the last group. Quads and panels that there are not become
 * zeros. */
template <bool Q4>
OCT_DEVICE void gemm_copy(const oct_cuda_linear_args &a, gemm_pieces *p, unsigned char *stage)
{
    if (p->at.group < a.unit_groups) {
        if (Q4)
            gemm_put_q4(*p, (const uint4 *)(OCT_SHARED + GEMM_STAGES * GEMM_STAGE_BYTES), stage);
        OCT_UNROLL
        for (int k = 0; k < 2 && !Q4;
             k++) { /* what changes places is the same eight quads on, but for bit 6 */
            const bool ok = p->at.quad + 8 * k < p->quads;
            OCT_COPY16(stage + (p->w_to ^ 64 * k) + 2048 * k, ok ? p->w + 2048 * k : a.weights, ok);
        }
        unsigned char *to = stage + GEMM_PANELS * GEMM_PANEL_BYTES + threadIdx.x * 16;
        OCT_UNROLL
        for (int k = 0; k < GEMM_ROW_COPIES; k++) {
            if (threadIdx.x + k * GEMM_THREADS < 2 * GEMM_PLANE / 16)
                OCT_COPY16(to + k * GEMM_THREADS * 16,
                           a.x + a.act.digits_at + (uint64_t)p->x[k] * 16, true);
            p->x[k] += GEMM_QUADS / 4;
        }
        const bool ends = gemm_advance(a, &p->at);
        if (Q4) {
            gemm_fetch_q4(a, p);
        } else {
            p->w += GEMM_PANEL_BYTES;
            if (ends) /* the stages of a group may be longer than it is */
                p->w -= (a.group_quads + GEMM_QUADS - 1) / GEMM_QUADS * GEMM_PANEL_BYTES -
                        a.group_bytes;
        }
    }
    OCT_COPIES_COMMIT();
}

/* The sums of a warp: fragments of 16 channels x 8 rows, digit by digit. */
typedef struct gemm_sums {
    int32_t hi[4][2][4], lo[4][2][4];
} gemm_sums;

/* A stage: 64 inputs, two products deep. */
template <int DIGITS>
OCT_DEVICE void gemm_stage(const unsigned char *stage, int panel, int row0, gemm_sums *s)
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const unsigned char *w = stage + panel * GEMM_PANEL_BYTES;
    const unsigned char *x = stage + GEMM_PANELS * GEMM_PANEL_BYTES + (row0 + g) * 64 + t * 16;
    uint4 lo[2], hi[2];
    OCT_UNROLL
    for (int n = 0; n < 2; n++) {
        lo[n] = OCT_GET((const uint4 *)(x + GEMM_PLANE + n * 8 * 64));
        if (DIGITS == 2)
            hi[n] = OCT_GET((const uint4 *)(x + n * 8 * 64));
    }
    OCT_UNROLL
    for (int k = 0; k < 2; k++) {
        const unsigned char *quad = w + (4 * t + 2 * k) * 256;
        OCT_UNROLL
        for (int half = 0; half < 2; half++) { /* channels 0 .. 31, 32 .. 63 */
            const int piece = ((g + 8 * half) ^ 2 * t) * 16;
            const uint4 p = OCT_GET((const uint4 *)(quad + piece));
            const uint4 q = OCT_GET((const uint4 *)(quad + 256 + piece));
            const uint32_t a0[4] = {p.x, p.y, q.x, q.y}, a1[4] = {p.z, p.w, q.z, q.w};
            OCT_UNROLL
            for (int n = 0; n < 2; n++) {
                const uint32_t b0 = k ? lo[n].z : lo[n].x, b1 = k ? lo[n].w : lo[n].y;
                OCT_MMA(s->lo[2 * half][n], a0, b0, b1);
                OCT_MMA(s->lo[2 * half + 1][n], a1, b0, b1);
                if (DIGITS == 2) {
                    const uint32_t h0 = k ? hi[n].z : hi[n].x, h1 = k ? hi[n].w : hi[n].y;
                    OCT_MMA(s->hi[2 * half][n], a0, h0, h1);
                    OCT_MMA(s->hi[2 * half + 1][n], a1, h0, h1);
                }
            }
        }
    }
}

/* A block of activations ends: t = fma(sum, scale, t). */
template <int DIGITS>
OCT_DEVICE void gemm_block_end(const oct_cuda_linear_args &a, int row0, int block, gemm_sums *s,
                               float (*t)[2][4])
{
    OCT_IN_ORDER(); /* so that nothing for this is kept in registers all the time */
    const oct_cuda_tile tile = tile_of(a, blockIdx.x);
    OCT_UNROLL
    for (int i = 0; i < 4; i++) {
        const int n = i / 2, j = i % 2;
        const unsigned char *row =
            at_row(a, row_of(a, tile, row0 + n * 8 + threadIdx.x % 4 * 2 + j));
        const uint32_t offset = sum_offset(a.act, row, block);
        const float scale = ((const float *)row)[block];
        OCT_UNROLL
        for (int k = 0; k < 4; k++) {
            OCT_UNROLL
            for (int up = 0; up < 4; up += 2) { /* rows g and g + 8 of the fragment */
                uint32_t sum = (uint32_t)s->lo[k][n][j + up] + offset;
                if (DIGITS == 2)
                    sum += (uint32_t)s->hi[k][n][j + up] * 256u;
                t[k][n][j + up] = oct_fma(oct_float_of_int((int32_t)sum), scale, t[k][n][j + up]);
                s->lo[k][n][j + up] = s->hi[k][n][j + up] = 0;
            }
        }
    }
}

/* Four channels of a row, or those that are left. */
OCT_DEVICE void gemm_put(float *to, int left, const float *v)
{
    if (left >= 4 && (uintptr_t)to % 16 == 0) {
        *(float4 *)to = make_float4(v[0], v[1], v[2], v[3]);
        return;
    }
    OCT_UNROLL
    for (int i = 0; i < 4; i++)
        if (i < left)
            to[i] = v[i];
}

/* A group ends: y = fma(t, scale, y). y is where it is to be in the end: each element has one
 * thread. GELU: there is one group, and half as many columns. */
template <bool GELU>
OCT_DEVICE void gemm_group_end(const oct_cuda_linear_args &a, int row0, int panel, int group,
                               float (*t)[2][4])
{
    OCT_IN_ORDER();
    const oct_cuda_tile tile = tile_of(a, blockIdx.x);
    const int lane = threadIdx.x % 32, channel = lane / 4 * 4, width = GELU ? 32 : 64;
    const int slice = a.first_slice + (int)blockIdx.z;
    const int unit_out = (int)(GELU ? a.unit_out / 2 : a.unit_out);
    const int left = unit_out - panel * width - channel;
    float *y = a.y + (a.split_in ? blockIdx.z * a.part_stride : slice * unit_out) + panel * width +
               channel;
    const uint16_t *scale = (const uint16_t *)(a.scales + tile.expert * a.scale_expert_stride +
                                               slice * a.scale_slice_stride) +
                            (panel * a.unit_groups + group) * 64 + channel;
    if (panel >= a.n_panels)
        return;
    OCT_UNROLL
    for (int i = 0; i < 4; i++) {
        const int n = i / 2, j = i % 2, row = row0 + n * 8 + lane % 4 * 2 + j;
        if (row >= tile.n)
            continue;
        OCT_IN_ORDER(); /* else the loads of all rows come first, and need registers */
        float *to = y + (a.y_row ? a.y_row[tile.first + row] : tile.first + row) * a.y_cols;
        float v[2][4];
        OCT_UNROLL
        for (int k = 0; k < 8; k++) { /* channel k % 4 of half k / 4 */
            const bool again = !GELU && group > 0 && k / 4 * 32 + k % 4 < left;
            v[k / 4][k % 4] =
                oct_fma(t[k / 2][n][k % 2 * 2 + j], oct_float_of_bf16(scale[k / 4 * 32 + k % 4]),
                        again ? to[k / 4 * 32 + k % 4] : 0.0f);
        }
        if (GELU) {
            OCT_UNROLL
            for (int k = 0; k < 4; k++)
                v[0][k] = oct_mul(math_gelu(v[0][k]), v[1][k]);
        }
        gemm_put(to, left, v[0]);
        if (!GELU)
            gemm_put(to + 32, left - 32, v[1]);
    }
    OCT_UNROLL
    for (int i = 0; i < 32; i++)
        t[i / 8][i / 4 % 2][i % 4] = 0.0f;
}

/* A block: a tile of rows, three panels, a slice. */
template <int DIGITS, bool Q4> OCT_DEVICE void gemm(const oct_cuda_linear_args &a)
{
    const oct_cuda_tile tile = tile_of(a, blockIdx.x);
    if (tile.n == 0)
        return;
    const int warp = threadIdx.x / 32, panel = warp % GEMM_PANELS, row0 = warp / GEMM_PANELS * 16;
    gemm_pieces pieces = gemm_pieces_of<Q4>(a, tile);
    const int block_quads = (DIGITS == 2 ? OCT_ACT_BLOCK : OCT_ACT_BLOCK_I8) / OCT_QUAD;
    gemm_sums s = {};
    float t[4][2][4] = {};
    gemm_place at = {0, 0};
    int now = 0; /* the stage of the sums; behind it those ahead, in a ring */
    if (Q4) {
        q4_bring_tables((uint4 *)(OCT_SHARED + GEMM_STAGES * GEMM_STAGE_BYTES));
        OCT_BARRIER();
    }
    OCT_UNROLL_BY(1) /* else gemm_q4 spills on 9.0 */
    for (int i = 0; i < GEMM_STAGES - 1; i++)
        gemm_copy<Q4>(a, &pieces, OCT_SHARED + i * GEMM_STAGE_BYTES);
    do {
        OCT_COPIES_WAIT(GEMM_STAGES - 2);
        OCT_BARRIER();
        gemm_copy<Q4>(a, &pieces,
                      OCT_SHARED + (now == 0 ? GEMM_STAGES - 1 : now - 1) * GEMM_STAGE_BYTES);
        gemm_stage<DIGITS>(OCT_SHARED + now * GEMM_STAGE_BYTES, panel, row0, &s);
        now = now == GEMM_STAGES - 1 ? 0 : now + 1;
        const int group = at.group, block = at.quad / block_quads;
        const bool ends = gemm_advance(a, &at);
        if (ends || at.quad % block_quads == 0)
            gemm_block_end<DIGITS>(
                a, row0, (gemm_first_group(a) + group) * (int)a.act.group_blocks + block, &s, t);
        if (ends && !a.gelu)
            gemm_group_end<false>(a, row0, (int)blockIdx.y * GEMM_PANELS + panel, group, t);
    } while (at.group < a.unit_groups);
    if (a.gelu)
        gemm_group_end<true>(a, row0, (int)blockIdx.y * GEMM_PANELS + panel, 0, t);
}

#define GEMM_ENTRY(name, q4)        \
    OCT_ENTRY(name, linear, 384, 1) \
    {                               \
        if (a.act.digits == 2)      \
            gemm<2, q4>(a);         \
        else                        \
            gemm<1, q4>(a);         \
    }
GEMM_ENTRY(gemm, false)
GEMM_ENTRY(gemm_q4, true)
