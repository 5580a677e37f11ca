/* k_amx.c: `linear` of the AMX row; the other kernels of the row are those of avx512, with whose
 * activations it works: signed digit planes hi and lo (or lo alone), and their sums for each block.
 *
 * A quad row of a panel is 64 channels x 4 inputs, so sixteen of them, 256 bytes apart, hold a tile
 * of 16 channels x 64 inputs just as tdpbsud wants its unsigned operand. The signed one is 16
 * activation rows x 64 inputs of one digit plane. As in avx512, weights are in excess 128, and
 * sum q a = sum (q + 128) a - 128 sum a, exactly, modulo 2^32.
 *
 * THE LOOP. A chunk of rows goes through the panels group by group and block by block (512 inputs),
 * each block through all panels, each panel through tiles of 16 rows, each tile through its passes.
 * A pass is 4 sums of 16 rows x 16 channels, 8 steps of 64 inputs: both digits of the rows by half
 * of the channels, so that a step loads two tiles of rows, two of weights, and forms 4 products.
 * Weights are loaded once for 16 rows; they and the two tiles of a step's rows fit L1 together.
 * With more rows their tiles come from L2, by the form of the load that leaves them out of L1, else
 * they push the weights out.
 *
 * Up to 8 rows of two digits are one tile, the high digits beside the low ones, and so are 16 rows
 * of one digit: one pass of all channels, 5 loads for 4 products.
 *
 * What a step costs depends on who else runs on the core. In cycles of an Emerald Rapids: a product
 * 16 and a load 8, side by side, while the other hardware thread is idle; 45 and 30, one after the
 * other, while it is busy, be it with nothing but integers. Then little but the number of tile
 * instructions counts, and what is between two of them is free for that long: everything else is
 * dealt to the places behind each of them. While it is idle, it is the number of all instructions
 * (440 a step with 128 rows), and that no more lines are being fetched than the tile loads leave
 * buffers for: so the next panel's weights are fetched evenly over all of this one's steps.
 *
 * Rows are anywhere in memory (tokens sorted by expert), and mostly not in L2: 128 rows of 6144
 * inputs are 1.5 MiB. So the first panel packs its block of them, 128 KiB at most, into tiles that
 * lie one behind the other and stay in L2 for the other panels. This is why several panels a call
 * pay: with one, every line of the rows comes from L3 for 64 channels, and reading 8 rows' weights
 * reaches 81 % of the read probe instead of 90.
 *
 * Three things run beside the products, because none may wait for the others:
 *   - packing, AHEAD steps before the use: tile loads are not served from the store buffer, and a
 *     miss of a tile load holds up all that follows;
 *   - the epilogue of the pass before: from its sums in memory to t = fma(isum, s, t). At the end
 *     of a pass the tile unit only waits for 4 tile stores, 16 cycles each;
 *   - fetching the next block's weights from memory, and its rows from L3, a share in each step.
 *
 * Inputs beyond a group are zero in the activations, so what a tile of weights holds there does not
 * matter, but it may not be there: the last step of a group whose quads do not fill it reads a
 * copy. Rows beyond the last repeat it; what they yield is not used. All tiles have one shape, and
 * one configuration serves all calls. It is loaded and released in each call (a few hundred cycles
 * of the 100 000 that 128 rows of a panel take): a kernel keeps no state, and a thread that waits
 * at a barrier should not have 8 KiB of tiles to save. */
#include "kernels.h"
#include "k_q4.h"
#ifndef OCT_TILE_UNIT_H
#include "tile_unit.h"
#endif

oct_k_linear_fn oct_k_linear_q8__amx, oct_k_linear_q8__avx512;
oct_k_linear_fn oct_k_linear_q4g32__amx, oct_k_linear_q4g32__avx512;
oct_k_linear_fn oct_k_linear_q4g16__amx, oct_k_linear_q4g16__avx512;

enum {
    TILE = 16, /* rows of a tile, channels of a tile of weights */
    STEP = 64, /* inputs of a tile */
    STEP_QUADS = STEP / OCT_QUAD,
    CHUNK = 128,         /* rows */
    FEW_ROWS = 3,        /* up to this many rows are memory-bound: the AVX-512 kernel takes them; */
    FEW_ROWS_TURNED = 2, /* of q4, of which more than that are the tiles' (k_amx_q4.h) */
    AHEAD = 3,           /* steps from packing to use */
    SLOTS = 2 * (CHUNK / TILE * (OCT_ACT_BLOCK / STEP) + AHEAD),
    KEPT_TILES = 1, /* of rows, that fit L1 beside the weights */
    PARTS = 8,      /* of a step: tile instructions with fetches behind them */
    LINE = 64
};

/* ---- the walk over blocks ---- */

typedef struct block {
    int64_t group, start, n_quads, n_steps; /* group of the unit; first input in its group */
} block;

static void block_size(const oct_linear_args *a, block *b)
{
    int64_t left = a->w->group_quads - b->start / OCT_QUAD, most = a->act->block / OCT_QUAD;
    b->n_quads = left < most ? left : most;
    b->n_steps = (b->n_quads + STEP_QUADS - 1) / STEP_QUADS;
}

/* Behind the last block its group is unit_groups. */
static void block_next(const oct_linear_args *a, block *b)
{
    b->start += a->act->block;
    if (b->start >= a->w->group_in) {
        b->start = 0;
        b->group++;
    }
    block_size(a, b);
}

/* In a row. */
static size_t block_at(const oct_linear_args *a, const block *b)
{
    const oct_act_layout *l = a->act;
    return l->digits_at + (size_t)((a->first_group + b->group) * l->group_pad + b->start);
}

/* The next panel in the same block, or the first in the next. */
static void panel_next(const oct_linear_args *a, block *b, int64_t *panel)
{
    if (++*panel < a->n_panels)
        return;
    *panel = 0;
    block_next(a, b);
}

/* Of a block of q8; of q4, the strip that it is in. Behind the last block, what is read next. */
static const uint8_t *weights_of(const oct_linear_args *a, int groups, const block *b,
                                 int64_t panel)
{
    const oct_weight_layout *l = a->w;
    const size_t panel_at = (size_t)panel * l->panel_bytes;
    if (b->group == l->unit_groups)
        return a->next ? a->next + panel_at
                       : a->panel + (size_t)a->n_panels * l->panel_bytes + panel_at;
    const uint8_t *group = a->panel + panel_at + (size_t)b->group * l->group_bytes;
    if (groups)
        return group + b->start / OCT_Q4_STRIP * oct_q4_strip_bytes(OCT_Q4_STRIP, groups);
    return group + b->start / OCT_QUAD * OCT_Q8_QUAD_BYTES;
}

V_INLINE vi16 load_sums(const int32_t *p)
{
    return vi_of_bits(v_load((const float *)(const void *)p));
}

#include "k_amx_q4.h"

/* ---- all others ---- */

/* A pass whose sums are in memory. */
typedef struct pending {
    int64_t next, n_rows;  /* rows that are not finished */
    const float *scale;    /* [n_rows] */
    const int32_t *excess; /* [n_rows] 128 x the sum of the block's activations */
    float *t;              /* [n_rows][64], from the pass's first channel on */
} pending;

/* Lies on the stack: 212 KiB. */
typedef struct work {
    _Alignas(64) int8_t packed[SLOTS][TILE][STEP]; /* a ring; by tile of rows, step, digit */
    _Alignas(64) int32_t sums[2][OCT_PANEL / TILE][TILE][TILE]; /* [digit][set][row][channel] */
    _Alignas(
        64) uint8_t tail[STEP_QUADS][OCT_Q8_QUAD_BYTES]; /* last weights of a group, then zeros */
    _Alignas(64) float t[CHUNK][OCT_PANEL];
    _Alignas(64) uint8_t expanded[OCT_ACT_BLOCK * OCT_PANEL]; /* q4: the block as q8 has it */
    float scale[2][CHUNK];                                    /* of this block and the last */
    int32_t excess[2][CHUNK];

    oct_linear_args a; /* of the chunk */
    int groups;        /* of 64 inputs of q4; 0: q8 */
    int beside; /* rows of a tile from a row's digit 0 to its digit 1; 0: tiles of their own */
    int passes; /* of a tile of rows; with two, each takes half of the channels and both digits */
    int64_t y_stride; /* from a panel of y to the next */
    float *sum;       /* t of all panels: [n_panels][n_rows][64] with the stride of y, or t above */
    int64_t n_tiles;  /* of rows */
    int64_t n_slots;  /* of the ring: what is used again and what is ahead */
    int64_t finish;   /* rows a step */
    bool packs;       /* in this pass */

    /* use */
    block b;
    int64_t parity; /* of the block */
    int64_t slot;   /* of the next tile */
    pending done;

    /* packing: it walks the blocks' first panels */
    block pack;
    int64_t pack_tile, pack_step, pack_slot;
    const int8_t *pack_row[TILE]; /* digits 0 of the tile's inputs */

    /* fetching */
    const uint8_t *following; /* of the next panel */
    const char *weights_ahead;
    int64_t weight_lines, weight_credit; /* the second grows by the first with each part */
    int64_t fetches;                     /* of a panel; what a line costs */
    size_t rows_ahead;                   /* offset of the next block in a row */
    int64_t block_steps;                 /* in all panels of the block */
    int64_t rows_left;                   /* to fetch, one digit each */
    int64_t credit; /* grows with each step; a digit of a row costs block_steps */
} work;

/* The digits of an activation are those from the first one to 1. */
static int first_digit(const work *w)
{
    return 2 - w->a.act->digits;
}

static int64_t plane_bytes(const work *w)
{
    return w->a.act->n_groups * w->a.act->group_pad;
}

/* ---- packing ---- */

static void pack_tile(work *w)
{
    const size_t at = block_at(&w->a, &w->pack);
    const int64_t last = w->a.n_rows - 1;
    for (int64_t r = 0; r < TILE; r++) {
        const bool second = w->beside && r >= w->beside;
        const int64_t row = w->pack_tile * TILE + r - (second ? w->beside : 0);
        w->pack_row[r] =
            (const int8_t *)w->a.rows[row < last ? row : last] + at + (second ? plane_bytes(w) : 0);
    }
}

V_INLINE void copy_line(int8_t *to, const int8_t *from)
{
    v_store((float *)(void *)to, v_load((const float *)(const void *)from));
}

V_INLINE int64_t slot_after(const work *w, int64_t slot, int64_t n)
{
    return slot + n < w->n_slots ? slot + n : slot + n - w->n_slots;
}

V_INLINE void pack_slot(work *w, int64_t digit)
{
    const int64_t at = w->pack_step * STEP + digit * plane_bytes(w);
    int8_t(*slot)[STEP] = w->packed[w->pack_slot];
    V_EACH (r, TILE)
        copy_line(slot[r], w->pack_row[r] + at);
    w->pack_slot = slot_after(w, w->pack_slot, 1);
}

/* The inputs of a step, in one digit or, if a pass is of half of the channels, both. */
V_INLINE void pack_next(work *w, bool halves)
{
    if (w->pack.group == w->a.w->unit_groups)
        return;
    pack_slot(w, first_digit(w));
    if (halves)
        pack_slot(w, 1);
    if (++w->pack_step < w->pack.n_steps)
        return;
    w->pack_step = 0;
    if (++w->pack_tile == w->n_tiles) {
        w->pack_tile = 0;
        block_next(&w->a, &w->pack);
    }
    if (w->pack.group < w->a.w->unit_groups)
        pack_tile(w);
}

/* ---- epilogue ---- */

/* So many rows of the pending pass, as far as there are any, in so many sets of 16 channels. */
V_INLINE void finish_rows(work *w, int64_t n, int sets)
{
    const pending u = w->done;
    const bool two = w->a.act->digits == 2;
    const int64_t left = u.n_rows - u.next, end = u.next + (n < left ? n : left);
    const int32_t *high = (const int32_t *)(const void *)w->sums + u.next * TILE;
    const int32_t *low = high + (w->beside ? w->beside : OCT_PANEL) * TILE;
    float *t = u.t + u.next * OCT_PANEL;
    for (int64_t r = u.next; r < end; r++, high += TILE, low += TILE, t += OCT_PANEL) {
        const vi16 excess = vi_set1(u.excess[r]);
        const v16 s = v_set1(u.scale[r]);
        V_EACH (c, sets) {
            vi16 isum = vi_sub(load_sums(low + c * TILE * TILE), excess);
            if (two)
                isum = vi_add(isum, vi_shl(load_sums(high + c * TILE * TILE), 8));
            v_store(t + c * TILE, v_fma(v_of_vi(isum), s, v_load(t + c * TILE)));
        }
    }
    w->done.next = end;
}

static float *sum_of(const work *w, int64_t panel)
{
    return w->sum + panel * w->y_stride;
}

/* y = fma(t, scale, y) for all panels, as the last thing of a group. */
static void finish_group(work *w, int64_t group)
{
    if (w->passes == 2)
        finish_rows(w, TILE, 2);
    else
        finish_rows(w, TILE, 4);
    for (int64_t p = 0; p < w->a.n_panels; p++) {
        const uint16_t *scales = w->a.scales + (p * w->a.w->unit_groups + group) * OCT_PANEL;
        for (int64_t c = 0; c < OCT_PANEL; c += TILE) {
            v16 scale = v_load_bf16(scales + c);
            float *y = w->a.y + p * w->y_stride + c;
            const float *t = sum_of(w, p) + c;
            for (int64_t r = 0; r < w->a.n_rows; r++, y += OCT_PANEL, t += OCT_PANEL) {
                v16 before = group == 0 ? v_zero() : v_load(y);
                v_store(y, v_fma(v_load(t), scale, before));
            }
        }
    }
}

/* t = 0 for all panels, as the first thing of a group. */
static void begin_group(work *w)
{
    for (int64_t p = 0; p < w->a.n_panels; p++)
        memset(sum_of(w, p), 0, (size_t)w->a.n_rows * OCT_PANEL * sizeof(float));
}

/* ---- blocks, tiles, passes ---- */

/* Cache lines of it. A strip of q4 is fetched with its first block. */
static int64_t lines_of(const work *w, const block *b)
{
    if (!w->groups)
        return b->n_quads * (OCT_Q8_QUAD_BYTES / LINE);
    const int64_t left = w->a.w->group_in - b->start;
    const int64_t n = left < OCT_Q4_STRIP ? left : OCT_Q4_STRIP;
    return b->start % OCT_Q4_STRIP ? 0 : oct_q4_strip_bytes(n, w->groups) / LINE;
}

/* A block of q4 as one of q8. */
V_INLINE void expand_block(work *w, const uint8_t *strip, int groups)
{
    const int64_t in_strip = w->b.start % OCT_Q4_STRIP;
    const int64_t left = w->a.w->group_in - w->b.start + in_strip;
    const int64_t n = left < OCT_Q4_STRIP ? left : OCT_Q4_STRIP;
    const int64_t n_steps = (n + OCT_Q4_STEP - 1) / OCT_Q4_STEP;
    for (int set = 0; set < OCT_PANEL / Q4_SET; set++)
        for (int64_t s = 0; s < w->b.n_steps; s++)
            q4_expand_set(strip, groups, n_steps, in_strip / OCT_Q4_STEP + s, set,
                          w->expanded + s * STEP_QUADS * OCT_Q8_QUAD_BYTES);
}

static void begin_block(work *w)
{
    const oct_act_layout *l = w->a.act;
    const int64_t at = (w->a.first_group + w->b.group) * l->group_blocks + w->b.start / l->block;
    const int64_t steps = w->n_tiles * w->passes * w->b.n_steps; /* in a panel */
    w->fetches = steps * PARTS / 2;
    w->block_steps = steps * w->a.n_panels;
    w->finish = (TILE + w->b.n_steps - 1) / w->b.n_steps;
    w->parity = !w->parity;
    for (int64_t r = 0; r < w->a.n_rows; r++) {
        const char *row = w->a.rows[r];
        const int32_t *sums = (const int32_t *)(const void *)(row + l->sums_at) + at;
        uint32_t sum = ((uint32_t)sums[0] << 8) + (uint32_t)sums[l->n_blocks];
        w->scale[w->parity][r] = ((const float *)(const void *)row)[at];
        w->excess[w->parity][r] = (int32_t)(sum << 7);
    }
    block next = w->b;
    block_next(&w->a, &next);
    w->rows_ahead = block_at(&w->a, &next);
    w->rows_left = next.group < w->a.w->unit_groups ? l->digits * w->a.n_rows : 0;
    w->credit = 0;
}

/* Another panel in the same block; returns its weights as q8 has them. */
static const uint8_t *begin_panel(work *w, int64_t panel)
{
    const uint8_t *weights = weights_of(&w->a, w->groups, &w->b, panel);
    const int64_t over = w->b.n_quads % STEP_QUADS;
    block next = w->b;
    panel_next(&w->a, &next, &panel);
    w->following = weights_of(&w->a, w->groups, &next, panel);
    w->weights_ahead = (const char *)w->following;
    w->weight_lines = lines_of(w, &next);
    w->weight_credit = 0;
    if (w->groups == 2)
        expand_block(w, weights, 2);
    else if (w->groups == 4)
        expand_block(w, weights, 4);
    if (w->groups)
        return w->expanded;
    if (over > 0) {
        memset(w->tail, 0, sizeof w->tail);
        memcpy(w->tail, weights + (w->b.n_quads - over) * OCT_Q8_QUAD_BYTES,
               (size_t)over * OCT_Q8_QUAD_BYTES);
    }
    return weights;
}

V_INLINE void fetch_rows(work *w)
{
    const int64_t digits = w->a.act->digits;
    w->credit += digits * w->a.n_rows;
    for (; w->credit >= w->block_steps && w->rows_left > 0; w->credit -= w->block_steps) {
        int64_t i = --w->rows_left, digit = i % digits + first_digit(w);
        const char *row = (const char *)w->a.rows[i / digits] + w->rows_ahead;
        for (int64_t line = 0; line < w->a.act->block; line += LINE)
            _mm_prefetch(row + digit * plane_bytes(w) + line, _MM_HINT_T1);
    }
}

/* A part of the next panel's weights into L2. Volatile, to stay between the tiles. */
V_INLINE void fetch_weights(work *w)
{
    const char *far = w->weights_ahead;
    int64_t credit = w->weight_credit + w->weight_lines;
    for (; credit >= w->fetches; credit -= w->fetches, far += LINE)
        __asm__ volatile("prefetcht1 %0" : : "m"(*far));
    w->weights_ahead = far;
    w->weight_credit = credit;
}

/* What a step does beside its tiles, a part of it behind each of PARTS tile instructions. Of the
 * next step's weights at near, two quads of so many sets of channels come into L1. */
V_INLINE void beside(work *w, int part, int sets, const uint8_t *near)
{
    enum { QUADS = STEP_QUADS / PARTS };
    if (near)
        V_EACH (i, QUADS * sets) {
            const uint8_t *quad = near + (part * QUADS + i / sets) * OCT_Q8_QUAD_BYTES;
            __asm__ volatile("prefetcht0 %0" : : "m"(quad[i % sets * LINE]));
        }
    if (part & 1)
        fetch_weights(w);
    if (part == 3)
        finish_rows(w, w->finish, sets);
    if (part == 5 && w->packs)
        pack_next(w, sets == 2);
    if (part == PARTS - 1)
        fetch_rows(w);
}

/* A step of one tile of rows, all channels. */
V_INLINE void step_all(work *w, const uint8_t *u, const uint8_t *near)
{
    if (w->n_tiles <= KEPT_TILES)
        tile_load(4, w->packed[w->slot], STEP);
    else
        tile_load_once(4, w->packed[w->slot], STEP);
    tile_load(5, u, OCT_Q8_QUAD_BYTES);
    beside(w, 0, 4, near);
    tile_dot(0, 4, 5);
    beside(w, 1, 4, near);
    tile_load(6, u + LINE, OCT_Q8_QUAD_BYTES);
    beside(w, 2, 4, near);
    tile_dot(1, 4, 6);
    beside(w, 3, 4, near);
    tile_load(7, u + 2 * LINE, OCT_Q8_QUAD_BYTES);
    beside(w, 4, 4, near);
    tile_dot(2, 4, 7);
    beside(w, 5, 4, near);
    tile_load(5, u + 3 * LINE, OCT_Q8_QUAD_BYTES);
    beside(w, 6, 4, near);
    tile_dot(3, 4, 5);
    beside(w, 7, 4, near);
}

/* A step of two tiles, the digits of some rows, half of the channels. */
V_INLINE void step_half(work *w, const uint8_t *u, const uint8_t *near)
{
    const int64_t low = w->slot + 1;
    if (w->n_tiles <= KEPT_TILES) {
        tile_load(4, w->packed[w->slot], STEP);
        beside(w, 0, 2, near);
        tile_load(5, w->packed[low], STEP);
    } else {
        tile_load_once(4, w->packed[w->slot], STEP);
        beside(w, 0, 2, near);
        tile_load_once(5, w->packed[low], STEP);
    }
    beside(w, 1, 2, near);
    tile_load(6, u, OCT_Q8_QUAD_BYTES);
    beside(w, 2, 2, near);
    tile_dot(0, 4, 6);
    beside(w, 3, 2, near);
    tile_dot(1, 5, 6);
    beside(w, 4, 2, near);
    tile_load(7, u + LINE, OCT_Q8_QUAD_BYTES);
    beside(w, 5, 2, near);
    tile_dot(2, 4, 7);
    beside(w, 6, 2, near);
    tile_dot(3, 5, 7);
    beside(w, 7, 2, near);
}

V_INLINE void pass_steps(work *w, const uint8_t *weights, int pass, bool halves, bool fresh)
{
    const int64_t n_steps = w->b.n_steps, whole = w->groups ? n_steps : w->b.n_quads / STEP_QUADS;
    const int64_t at = pass * 2 * LINE; /* in a quad */
    for (int64_t i = 0; i < n_steps; i++) {
        const uint8_t *u = i < whole ? weights + i * STEP_QUADS * OCT_Q8_QUAD_BYTES : w->tail[0];
        const uint8_t *next = u + STEP_QUADS * OCT_Q8_QUAD_BYTES + at;
        if (i + 1 == n_steps)
            next = halves && pass == 0 ? weights + 2 * LINE : w->following;
        if (halves)
            step_half(w, u + at, fresh ? next : NULL);
        else
            step_all(w, u, fresh ? next : NULL);
        w->slot = slot_after(w, w->slot, halves ? 2 : 1);
    }
}

/* All channels of a tile of rows, or half of them with both digits; the pass before is finished.
 * fresh: the weights are read for the first time, and each step's are brought from L2 in the step
 * before. */
V_NOINLINE void pass_run(work *w, const uint8_t *weights, int pass, bool fresh)
{
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    if (w->passes == 2) {
        pass_steps(w, weights, pass, true, fresh);
        tile_store(0, w->sums[0][0], LINE);
        tile_store(1, w->sums[1][0], LINE);
        tile_store(2, w->sums[0][1], LINE);
        tile_store(3, w->sums[1][1], LINE);
    } else {
        pass_steps(w, weights, pass, false, fresh);
        int32_t(*sums)[TILE][TILE] = w->sums[first_digit(w)];
        tile_store(0, sums[0], LINE);
        tile_store(1, sums[1], LINE);
        tile_store(2, sums[2], LINE);
        tile_store(3, sums[3], LINE);
    }
}

static void tile_run(work *w, const uint8_t *weights, int64_t panel, int64_t tile)
{
    const int64_t row = tile * TILE, left = w->a.n_rows - row, slot = w->slot;
    for (int pass = 0; pass < w->passes; pass++) {
        w->slot = slot;
        w->packs = panel == 0 && pass == 0;
        pass_run(w, weights, pass, tile == 0 && !w->groups);
        w->done = (pending){.n_rows = left < TILE ? left : TILE,
                            .scale = w->scale[w->parity] + row,
                            .excess = w->excess[w->parity] + row,
                            .t = sum_of(w, panel) + row * OCT_PANEL + pass * 2 * TILE};
    }
}

static void block_run(work *w)
{
    const int64_t first_slot = w->slot;
    begin_block(w);
    for (int64_t panel = 0; panel < w->a.n_panels; panel++) {
        const uint8_t *weights = begin_panel(w, panel);
        if (panel > 0)
            w->slot = first_slot;
        for (int64_t tile = 0; tile < w->n_tiles; tile++)
            tile_run(w, weights, panel, tile);
    }
}

/* w->a, w->sum and w->y_stride are set; at most CHUNK rows. */
static void chunk_run(work *w)
{
    const oct_weight_layout *l = w->a.w;
    w->n_tiles = (w->a.n_rows + TILE - 1) / TILE;
    w->beside = w->a.act->digits == 2 && w->a.n_rows <= TILE / 2 ? TILE / 2 : 0;
    w->passes = w->beside ? 1 : w->a.act->digits;
    w->b = (block){0};
    block_size(&w->a, &w->b);
    w->n_slots = ((w->a.n_panels > 1 ? w->n_tiles : 1) * w->b.n_steps + AHEAD) * w->passes;
    w->parity = w->slot = 0;
    w->done = (pending){0};
    w->pack = w->b;
    w->pack_tile = w->pack_step = w->pack_slot = 0;
    pack_tile(w);
    for (int i = 0; i < AHEAD; i++)
        pack_next(w, w->passes == 2);
    for (int64_t group = 0; group < l->unit_groups; group++) {
        begin_group(w);
        for (; w->b.group == group; block_next(&w->a, &w->b))
            block_run(w);
        finish_group(w, group);
    }
}

/* The panels of a unit of one group sum up in y; with several groups y holds those before, and
 * panels are taken one by one. */
V_NOINLINE void rows_linear(const oct_linear_args *a, int groups, int64_t first_row, int64_t n_rows)
{
    work of_chunk, *w = &of_chunk;
    w->groups = groups;
    bool one_group = a->w->unit_groups == 1;
    int64_t step = one_group ? a->n_panels : 1;
    w->y_stride = a->n_rows * OCT_PANEL;
    for (int64_t p = 0; p < a->n_panels; p += step) {
        w->a = oct_linear_panel(a, p);
        w->a.n_panels = step;
        w->a.next = p + step == a->n_panels ? a->next : NULL;
        w->a.rows += first_row;
        w->a.y += first_row * OCT_PANEL;
        w->a.n_rows = n_rows;
        w->sum = one_group ? w->a.y : w->t[0];
        chunk_run(w);
    }
}

static void few_rows(const oct_linear_args *a, int groups, int64_t first_row, int64_t n_rows)
{
    oct_k_linear_fn *const linear = groups == 0   ? oct_k_linear_q8__avx512
                                    : groups == 2 ? oct_k_linear_q4g32__avx512
                                                  : oct_k_linear_q4g16__avx512;
    for (int64_t p = 0; p < a->n_panels; p++) {
        oct_linear_args b = oct_linear_panel(a, p);
        b.rows += first_row;
        b.y += first_row * OCT_PANEL;
        b.n_rows = n_rows;
        linear(&b);
    }
}

static void linear(const oct_linear_args *a, int groups)
{
    static const tile_config config = {
        .palette = 1,
        .row_bytes = {STEP, STEP, STEP, STEP, STEP, STEP, STEP, STEP},
        .rows = {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE},
    };
    bool configured = false;
    for (int64_t r = 0; r < a->n_rows; r += CHUNK) {
        const int64_t n = a->n_rows - r < CHUNK ? a->n_rows - r : CHUNK;
        const bool is_turned = groups && a->act->digits == 2 && n <= TURNED_ROWS;
        if (n <= (is_turned ? FEW_ROWS_TURNED : FEW_ROWS)) {
            few_rows(a, groups, r, n);
            continue;
        }
        if (!configured)
            tile_configure(&config);
        configured = true;
        (is_turned ? turned_linear : rows_linear)(a, groups, r, n);
    }
    if (configured)
        tile_release();
}

void oct_k_linear_q8__amx(const oct_linear_args *a)
{
    linear(a, 0);
}

void oct_k_linear_q4g32__amx(const oct_linear_args *a)
{
    linear(a, 2);
}

void oct_k_linear_q4g16__amx(const oct_linear_args *a)
{
    linear(a, 4);
}
