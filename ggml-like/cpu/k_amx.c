/* k_amx.c: `linear` of the AMX row; the other kernels of the row are those of avx512, with whose
 * activations it works: signed digit planes hi and lo, and their sums for each block.
 *
 * A quad row of a panel is 64 channels x 4 inputs, so sixteen of them, 256 bytes apart, hold a tile
 * of 16 channels x 64 inputs just as tdpbsud wants its unsigned operand. The signed one is 16
 * activation rows x 64 inputs of one digit plane. As in avx512, weights are in excess 128, and
 * sum q a = sum (q + 128) a - 128 sum a, exactly, modulo 2^32.
 *
 * THE LOOP. A chunk of rows goes through the panel group by group, block by block (512 inputs), in
 * each block through two halves of 32 channels, in each half through tiles of 16 rows. That is a
 * unit: 4 sums (2 digits x 2 x 16 channels), 8 steps of 64 inputs. A step needs 2 tiles of
 * activations and 2 of weights. In cycles of a Sapphire Rapids core, by Intel's figures:
 *     4 products of 16                                       64 of the tile unit
 *     4 tile loads of 16 lines, two a cycle                  32 of the load ports
 *     32 lines of the rows packed: a load and a store each   16 of the load ports
 *     an eighth of the epilogue: 4 registers, 3 loads each    6 of the load ports
 * so that the tile unit is the bound with a fifth of the load ports to spare. One digit and 64
 * channels a pass would read each activation once instead of twice, but needs 5 loads for 4
 * products, and its 32 KiB of weights with the rest do not fit L1; a half, 16 KiB, does.
 *
 * Three things run beside the products of a step, because none may wait for the others:
 *   - packing. Rows are anywhere in memory (tokens sorted by expert), and a tile load that misses
 *     L1 sixteen times holds up the unit. The 64 inputs of the step after next but one are copied
 *     to a ring: far enough ahead that the stores have left the store buffer, from which tile loads
 *     are not served.
 *   - the epilogue of the unit before: from its sums in memory to t = fma(isum, s, t). At the end of
 *     a unit the tile unit only waits for 4 tile stores, 16 cycles each.
 *   - fetching the next block of the panel from memory, its share a step.
 *
 * Activations of one digit are the business of avx512.
 *
 * Inputs beyond a group are zero in the activations, so what a tile of weights holds there does not
 * matter, but it may not be there: the last step of a group whose quads do not fill it reads a copy.
 * Rows beyond the last repeat it; what they yield is not used. All tiles have one shape, and one
 * configuration serves all calls. It is loaded and released in each call (a few hundred cycles of
 * the 100 000 that 128 rows of a panel take): a kernel keeps no state, and a thread that waits at a
 * barrier should not have 8 KiB of tiles to save. */
#include "kernels.h"
#include "vec.h"
#ifndef OCT_TILE_UNIT_H
#include "tile_unit.h"
#endif

oct_k_linear_fn oct_k_linear__amx, oct_k_linear__avx512;

enum {
    TILE = 16, /* rows of a tile, channels of a tile of weights */
    STEP = 64, /* inputs of a tile */
    STEP_QUADS = STEP / OCT_Q8_QUAD,
    QUAD_BYTES = OCT_Q8_PANEL * OCT_Q8_QUAD,
    HALF = 2 * TILE, /* channels of a unit */
    CHUNK = 128,     /* rows: 32 KiB of running sums */
    FEW_ROWS = 3,    /* are the business of avx512: memory is the bound */
    SLOTS = 4,       /* of the ring */
    AHEAD = 3        /* steps from packing to use */
};

/* Where the walk is. */
typedef struct place {
    int64_t group, start;     /* group of the unit; first input of the block in its group */
    int64_t n_quads, n_steps; /* of the block */
    int64_t half, row;        /* of the panel; first row of the tile */
} place;

/* A unit whose sums are in memory. */
typedef struct pending {
    const void *const *rows;
    int64_t n_rows, block;
    float *t; /* [n_rows][64], from its first channel on */
} pending;

typedef struct work {
    _Alignas(64) int8_t ring[SLOTS][2][TILE][STEP];    /* [slot][digit] */
    _Alignas(64) int32_t sums[2][2][TILE][TILE];       /* [digit][tile of the half][row][channel] */
    _Alignas(64) uint8_t tail[STEP_QUADS][QUAD_BYTES]; /* the last weights of a group, then zeros */
    _Alignas(64) float t[CHUNK][OCT_Q8_PANEL];
    oct_linear_args a; /* of the chunk */
    /* packing */
    place pack;
    bool packed_all;
    int64_t pack_step;
    const int8_t *pack_row[TILE]; /* upper digits of the unit's inputs */
    unsigned n_packed, n_used;    /* steps */
    pending done;
    /* fetching */
    const char *ahead;
    int64_t lines_a_step;
} work;

/* ---- the walk ---- */

static void place_block(const oct_linear_args *a, place *p)
{
    int64_t left = a->w->group_quads - p->start / OCT_Q8_QUAD, most = OCT_Q8_BLOCK / OCT_Q8_QUAD;
    p->n_quads = left < most ? left : most;
    p->n_steps = (p->n_quads + STEP_QUADS - 1) / STEP_QUADS;
}

/* To the next unit; false behind the last. */
static bool place_next(const oct_linear_args *a, place *p)
{
    p->row += TILE;
    if (p->row < a->n_rows)
        return true;
    p->row = 0;
    p->half = !p->half;
    if (p->half)
        return true;
    p->start += OCT_Q8_BLOCK;
    if (p->start >= a->w->group_in) {
        p->start = 0;
        p->group++;
    }
    place_block(a, p);
    return p->group < a->w->unit_groups;
}

static bool at_block_start(const place *p)
{
    return p->half == 0 && p->row == 0;
}

static int64_t rows_at(const oct_linear_args *a, const place *p)
{
    return a->n_rows - p->row < TILE ? a->n_rows - p->row : TILE;
}

/* ---- packing ---- */

static void pack_unit(work *w)
{
    const oct_act_layout *l = w->a.act;
    const size_t at =
        l->digits_at + (size_t)((w->a.first_group + w->pack.group) * l->group_pad + w->pack.start);
    const int64_t n = rows_at(&w->a, &w->pack);
    const void *const *rows = w->a.rows + w->pack.row;
    for (int64_t r = 0; r < TILE; r++)
        w->pack_row[r] = (const int8_t *)rows[r < n ? r : n - 1] + at;
    w->pack_step = 0;
}

V_INLINE void copy_line(int8_t *to, const int8_t *from)
{
    v_store((float *)(void *)to, v_load((const float *)(const void *)from));
}

V_INLINE void pack_next(work *w)
{
    if (w->packed_all)
        return;
    const int64_t plane = w->a.act->n_groups * w->a.act->group_pad, at = w->pack_step * STEP;
    int8_t(*slot)[TILE][STEP] = w->ring[w->n_packed++ % SLOTS];
    V_EACH (r, TILE) {
        const int8_t *row = w->pack_row[r] + at;
        copy_line(slot[0][r], row);
        copy_line(slot[1][r], row + plane);
    }
    if (++w->pack_step == w->pack.n_steps) {
        w->packed_all = !place_next(&w->a, &w->pack);
        if (!w->packed_all)
            pack_unit(w);
    }
}

/* ---- epilogue ---- */

V_INLINE vi16 sums_at(const int32_t *p)
{
    return vi_of_bits(v_load((const float *)(const void *)p));
}

/* Rows [from, end) of the pending unit, as far as there are any. */
V_INLINE void finish_rows(work *w, int64_t from, int64_t end)
{
    const oct_act_layout *l = w->a.act;
    const pending *u = &w->done;
    for (int64_t r = from; r < end && r < u->n_rows; r++) {
        const char *row = u->rows[r];
        const int32_t *sums = (const int32_t *)(const void *)(row + l->sums_at) + u->block;
        uint32_t sum = ((uint32_t)sums[0] << 8) + (uint32_t)sums[l->n_blocks];
        vi16 excess = vi_set1((int32_t)(sum << 7));
        v16 s = v_set1(((const float *)(const void *)row)[u->block]);
        V_EACH (c, 2) {
            vi16 hi = sums_at(w->sums[0][c][r]), lo = sums_at(w->sums[1][c][r]);
            vi16 isum = vi_sub(vi_add(vi_shl(hi, 8), lo), excess);
            float *t = u->t + r * OCT_Q8_PANEL + c * TILE;
            v_store(t, v_fma(v_of_vi(isum), s, v_load(t)));
        }
    }
}

/* y = fma(t, scale, y), as the last thing of a group; t is zero again. */
static void finish_group(work *w, int64_t group)
{
    finish_rows(w, 0, TILE);
    w->done.n_rows = 0;
    for (int64_t c = 0; c < OCT_Q8_PANEL; c += TILE) {
        v16 scale = v_load_bf16(w->a.scales + group * OCT_Q8_PANEL + c);
        for (int64_t r = 0; r < w->a.n_rows; r++) {
            float *y = w->a.y + r * OCT_Q8_PANEL + c;
            v16 before = group == 0 ? v_zero() : v_load(y);
            v_store(y, v_fma(v_load(w->t[r] + c), scale, before));
            v_store(w->t[r] + c, v_zero());
        }
    }
}

/* ---- units ---- */

static const uint8_t *weights_at(const oct_linear_args *a, const place *p)
{
    return a->panel + (size_t)(p->group * a->w->group_quads + p->start / OCT_Q8_QUAD) * QUAD_BYTES;
}

static void block_start(work *w, const place *p)
{
    const uint8_t *weights = weights_at(&w->a, p);
    const int64_t units = 2 * ((w->a.n_rows + TILE - 1) / TILE), steps = p->n_steps * units;
    const int64_t over = p->n_quads % STEP_QUADS;
    if (over > 0) {
        memset(w->tail, 0, sizeof w->tail);
        memcpy(w->tail, weights + (p->n_quads - over) * QUAD_BYTES, (size_t)over * QUAD_BYTES);
    }
    w->ahead = (const char *)weights + p->n_quads * QUAD_BYTES;
    w->lines_a_step = (p->n_quads * (QUAD_BYTES / 64) + steps - 1) / steps;
}

V_NOINLINE void unit_run(work *w, const place *p)
{
    const int64_t whole = p->n_quads / STEP_QUADS, n_steps = p->n_steps;
    const int64_t finish = (TILE + n_steps - 1) / n_steps; /* rows a step */
    const uint8_t *weights = weights_at(&w->a, p) + p->half * HALF * OCT_Q8_QUAD;
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    for (int64_t i = 0; i < n_steps; i++) {
        const int8_t(*slot)[TILE][STEP] = (const int8_t(*)[TILE][STEP])w->ring[w->n_used++ % SLOTS];
        const uint8_t *u = i < whole ? weights + i * STEP_QUADS * QUAD_BYTES
                                     : w->tail[0] + p->half * HALF * OCT_Q8_QUAD;
        tile_load(4, slot[0], STEP);
        tile_load(6, u, QUAD_BYTES);
        tile_dot(0, 4, 6);
        tile_load(7, u + TILE * OCT_Q8_QUAD, QUAD_BYTES);
        tile_dot(1, 4, 7);
        tile_load(5, slot[1], STEP);
        tile_dot(2, 5, 6);
        tile_dot(3, 5, 7);
        pack_next(w);
        finish_rows(w, i * finish, (i + 1) * finish);
        const char *ahead = w->ahead;
        for (int64_t line = w->lines_a_step; line > 0; line--, ahead += 64)
            _mm_prefetch(ahead, _MM_HINT_T1);
        w->ahead = ahead;
    }
    tile_store(0, w->sums[0][0], sizeof w->sums[0][0][0]);
    tile_store(1, w->sums[0][1], sizeof w->sums[0][1][0]);
    tile_store(2, w->sums[1][0], sizeof w->sums[1][0][0]);
    tile_store(3, w->sums[1][1], sizeof w->sums[1][1][0]);
    w->done = (pending){.rows = w->a.rows + p->row,
                        .n_rows = rows_at(&w->a, p),
                        .block = (w->a.first_group + p->group) * w->a.act->group_blocks +
                                 p->start / OCT_Q8_BLOCK,
                        .t = w->t[p->row] + p->half * HALF};
}

/* w->a: at most CHUNK rows. */
static void chunk_run(work *w)
{
    place p = {0};
    place_block(&w->a, &p);
    memset(w->t, 0, (size_t)w->a.n_rows * sizeof *w->t);
    w->done.n_rows = 0;
    w->pack = p;
    w->packed_all = false;
    w->n_packed = w->n_used = 0;
    pack_unit(w);
    for (int i = 0; i < AHEAD; i++)
        pack_next(w);
    for (bool more = true; more;) {
        int64_t group = p.group;
        if (at_block_start(&p))
            block_start(w, &p);
        unit_run(w, &p);
        more = place_next(&w->a, &p);
        if (!more || p.group != group)
            finish_group(w, group);
    }
}

void oct_k_linear__amx(const oct_linear_args *a)
{
    static const tile_config config = {
        .palette = 1,
        .row_bytes = {STEP, STEP, STEP, STEP, STEP, STEP, STEP, STEP},
        .rows = {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE},
    };
    work w;
    bool configured = false;
    for (int64_t r = 0; r < a->n_rows; r += CHUNK) {
        w.a = *a;
        w.a.rows = a->rows + r;
        w.a.y = a->y + r * OCT_Q8_PANEL;
        w.a.n_rows = a->n_rows - r < CHUNK ? a->n_rows - r : CHUNK;
        if (w.a.n_rows <= FEW_ROWS || a->act->digits == 1) {
            oct_k_linear__avx512(&w.a);
            continue;
        }
        if (!configured)
            tile_configure(&config);
        configured = true;
        chunk_run(&w);
    }
    if (configured)
        tile_release();
}
