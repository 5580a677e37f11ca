/* k_amx_q4.h: q4 with 3 to 32 rows of two digits, for k_amx.c alone.
 *
 * With so few rows the products take less time than turning nibbles into bytes. So weights are
 * operand A of the tile unit here, channel by channel, which is as vpshufb leaves them (as quads,
 * which operand B wants, they take twice the instructions), and the rows are B: 16 columns of a
 * tile are eight rows, the high digits beside the low ones, or one digit of 16 rows.
 *
 * THE LOOP. A strip of a panel is taken span by span: as many sets of 16 channels as there are
 * registers for their sums. Step by step of 64 inputs a tile of weights is looked up for each set
 * of the span, into a ring, and multiplied LAG tiles later: tile loads are not served from the
 * store buffer. So the last tiles of a span are multiplied while the next one's first are looked
 * up. Its sums are added to t in the second half of the next span; t has their orientation, and is
 * turned when a group ends. The next block's rows are turned meanwhile, a tile at a time.
 * A tile's eight pairs of channels are looked up in as many parts as there are tile instructions in
 * the set's step, one behind each: while the core's other hardware thread is busy, those run one
 * after the other and leave the place between them free (k_amx.c).
 *
 * What limits all this are the load ports and the instructions, not the tile unit: of a tile of
 * weights 16 x 5 loads, and 16 lines for itself and for each tile of the rows in a set. */
#ifndef OCT_K_AMX_Q4_H
#define OCT_K_AMX_Q4_H

enum {
    OCTET = 8, /* rows */
    TURNED_ROWS = 32,
    TURNED_TILES = TURNED_ROWS / OCTET, /* of rows and digits */
    TURNED_PANELS = 8,
    TURNED_STEPS = OCT_Q4_STRIP / STEP,
    SETS = OCT_PANEL / Q4_SET,
    RING = 8,                  /* tiles */
    LAG = 4,                   /* tiles, a multiple of a span's sets */
    FINISH = TURNED_STEPS / 2, /* the step with which sums begin to be added, not before LAG */
    FINISH_CHANNELS = TILE / (TURNED_STEPS - FINISH) /* of a set, in a step */
};

/* What products and sums of a strip need of its block. */
typedef struct turned_block {
    int64_t n_steps;
    int8_t (*rows)[TURNED_TILES][STEP_QUADS][STEP]; /* [step][tile][quad][column][4] */
    float *scale;                                   /* [row] */
    int32_t *excess;                                /* [row] 128 x the sum of its activations */
} turned_block;

/* Lies on the stack: 153 KiB. */
typedef struct turned {
    _Alignas(64) uint8_t ring[RING][TILE][STEP];
    _Alignas(64) int8_t rows[2][TURNED_STEPS][TURNED_TILES][STEP_QUADS][STEP];
    _Alignas(64) int32_t sums[4][TILE][TILE]; /* of a span, [set][tile][channel][column] */
    _Alignas(64) float t[(TURNED_PANELS + 1) * OCT_PANEL * TURNED_ROWS];
    _Alignas(64) uint16_t offset[OCT_PANEL * TURNED_STEPS * 4]; /* of the tables of a span */
    _Alignas(64) float scale[2][TURNED_ROWS];
    _Alignas(64) int32_t excess[2][TURNED_ROWS];

    oct_linear_args a; /* of the panels */
    int64_t y_stride;  /* from a panel of y to the next */
    block b;
    turned_block now, before; /* before: of the strip before */
    float *t_before;          /* of the last span of that strip */

    block pack;
    int64_t pack_step, pack_tile;
    int64_t credit;                           /* grows with each span; a tile of rows costs all */
    const int8_t *column[TURNED_TILES][TILE]; /* a row's digit */
} turned;

/* ---- rows ---- */

static void turned_columns(turned *w, int n_tiles)
{
    const oct_act_layout *l = w->a.act;
    const int64_t plane = l->n_groups * l->group_pad, last = w->a.n_rows - 1;
    for (int i = 0; i < n_tiles; i++) {
        const bool beside = n_tiles % 2 && i == n_tiles - 1;
        for (int c = 0; c < TILE; c++) {
            const int64_t row = beside ? i * OCTET + c % OCTET : i / 2 * TILE + c;
            const bool low = beside ? c >= OCTET : i % 2;
            w->column[i][c] =
                (const int8_t *)w->a.rows[row < last ? row : last] + (low ? plane : 0);
        }
    }
}

static bool turned_may_pack(const turned *w)
{
    return w->pack.group < w->a.w->unit_groups && w->pack_step < w->pack.n_steps;
}

/* The next tile of rows of w->pack, a block that has some left; two steps on they are fetched. */
static void turned_pack(turned *w, int n_tiles)
{
    const size_t at = block_at(&w->a, &w->pack) + (size_t)(w->pack_step * STEP);
    const int8_t *const *column = w->column[w->pack_tile];
    const int64_t other = w->now.rows == w->rows[0];
    q4_turn_rows(column, at, w->rows[other][w->pack_step][w->pack_tile][0], STEP);
    for (int c = 0; c < TILE; c++)
        _mm_prefetch((const char *)column[c] + at + 2 * STEP, _MM_HINT_T0);
    if (++w->pack_tile == n_tiles) {
        w->pack_tile = 0;
        w->pack_step++;
    }
}

/* As many as are due with each span. */
V_NOINLINE void turned_pack_share(turned *w, int n_tiles, int span)
{
    const int64_t cost = w->a.n_panels * SETS;
    w->credit += w->pack.n_steps * n_tiles * span;
    for (; w->credit >= cost && turned_may_pack(w); w->credit -= cost)
        turned_pack(w, n_tiles);
}

/* ---- sums ---- */

V_INLINE __m256i turned_load(const int32_t *p)
{
    return _mm256_load_si256((const __m256i *)(const void *)p);
}

/* FINISH_CHANNELS channels of a set from c on; sums[tile] and t: of the set. */
V_INLINE void turned_finish(int32_t (*sums)[TILE][TILE], const turned_block *b, int n_tiles,
                            int64_t c, float *t)
{
    t += c * n_tiles * OCTET;
    V_EACH (i, FINISH_CHANNELS) {
        V_EACH (pair, n_tiles / 2) {
            const int32_t *high = sums[2 * pair][c + i], *low = sums[2 * pair + 1][c + i];
            const vi16 isum = vi_sub(vi_add(vi_shl(load_sums(high), 8), load_sums(low)),
                                     load_sums(b->excess + pair * TILE));
            v_store(t, v_fma(v_of_vi(isum), v_load(b->scale + pair * TILE), v_load(t)));
            t += TILE;
        }
        if (n_tiles % 2) {
            const int32_t *high = sums[n_tiles - 1][c + i];
            __m256i isum = _mm256_add_epi32(_mm256_slli_epi32(turned_load(high), 8),
                                            turned_load(high + OCTET));
            isum = _mm256_sub_epi32(isum, turned_load(b->excess + (n_tiles - 1) * OCTET));
            const __m256 scale = _mm256_load_ps(b->scale + (n_tiles - 1) * OCTET);
            _mm256_store_ps(t, _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum), scale, _mm256_load_ps(t)));
            t += OCTET;
        }
    }
}

/* x[i][j] becomes x[j][i]. */
V_INLINE void turned_transpose(__m256 *x)
{
    __m256 a[OCTET], b[OCTET];
    V_EACH (i, OCTET / 2) {
        a[2 * i] = _mm256_unpacklo_ps(x[2 * i], x[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_ps(x[2 * i], x[2 * i + 1]);
    }
    V_EACH (i, 2)
        V_EACH (j, 2) {
            const __m256d p = _mm256_castps_pd(a[4 * i + j]),
                          q = _mm256_castps_pd(a[4 * i + j + 2]);
            b[4 * i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(p, q));
            b[4 * i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(p, q));
        }
    V_EACH (i, OCTET / 2) {
        x[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        x[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}

/* y = fma(t, scale, y), as the last thing of a group. */
static void turned_finish_group(turned *w, int n_tiles, int64_t group)
{
    const oct_linear_args *a = &w->a;
    for (int64_t p = 0; p < a->n_panels; p++) {
        _Alignas(64) float scale[OCT_PANEL];
        const uint16_t *scales = a->scales + (p * a->w->unit_groups + group) * OCT_PANEL;
        V_EACH (c, OCT_PANEL / TILE)
            v_store(scale + c * TILE, v_load_bf16(scales + c * TILE));
        for (int64_t c = 0; c < OCT_PANEL; c += OCTET)
            for (int64_t r = 0; r < a->n_rows; r += OCTET) {
                __m256 x[OCTET];
                const float *t = w->t + (p * OCT_PANEL + c) * n_tiles * OCTET + r;
                float *y = a->y + p * w->y_stride + r * OCT_PANEL + c;
                V_EACH (i, OCTET)
                    x[i] = _mm256_load_ps(t + i * n_tiles * OCTET);
                turned_transpose(x);
                for (int64_t i = 0; i < OCTET && r + i < a->n_rows; i++, y += OCT_PANEL) {
                    const __m256 before = group == 0 ? _mm256_setzero_ps() : _mm256_load_ps(y);
                    _mm256_store_ps(y, _mm256_fmadd_ps(x[i], _mm256_load_ps(scale + c), before));
                }
            }
    }
}

/* ---- products ---- */

/* Sets whose sums are in registers together. */
V_INLINE int turned_span(int n_tiles)
{
    return n_tiles == 1 ? 4 : n_tiles == 2 ? 2 : 1;
}

/* do_it(register) for the sum of a set of the span and a tile of rows. */
#define TURNED_SUM(do_it, i) \
    do {                     \
        if ((i) == 0)        \
            do_it(0);        \
        else if ((i) == 1)   \
            do_it(1);        \
        else if ((i) == 2)   \
            do_it(2);        \
        else                 \
            do_it(3);        \
    } while (0)

#define TURNED_ZERO(sum) tile_zero(sum)
#define TURNED_STORE(sum) tile_store(sum, w->sums[sum], LINE)
#define TURNED_DOT(sum)             \
    do {                            \
        if (tile % 2)               \
            tile_dot_us(sum, 4, 7); \
        else                        \
            tile_dot_us(sum, 4, 6); \
    } while (0)

V_INLINE void turned_zero(int n)
{
    V_EACH (i, n)
        TURNED_SUM(TURNED_ZERO, i);
}

V_INLINE void turned_store(turned *w, int n)
{
    V_EACH (i, n)
        TURNED_SUM(TURNED_STORE, i);
}

/* ---- weights ---- */

/* A tile of weights that is looked up, pair by pair. */
typedef struct turned_lookup {
    const uint8_t *nibbles;
    const uint16_t *offset;
    uint8_t *tile;
    const char *ahead; /* n_ahead lines are fetched meanwhile */
    int n_ahead;
} turned_lookup;

/* Its pairs from..end - 1, of a strip of n_steps. */
V_INLINE void turned_pairs(turned_lookup l, int groups, int64_t n_steps, int from, int end)
{
    V_EACH (p, Q4_SET_PAIRS) {
        if (p < from || p >= end)
            continue;
        q4_expand_pair(l.nibbles + p * n_steps * STEP, l.offset + 2 * p * n_steps * groups,
                       n_steps * groups, groups, l.tile + p * OCT_Q4_STEP);
        if (p < l.n_ahead)
            __asm__ volatile("prefetcht1 %0" : : "m"(l.ahead[p * LINE]));
        if (p == Q4_SET_PAIRS - 1 && l.n_ahead > Q4_SET_PAIRS)
            __asm__ volatile("prefetcht1 %0" : : "m"(l.ahead[Q4_SET_PAIRS * LINE]));
    }
}

V_NOINLINE void turned_look_up(turned_lookup l, int groups, int64_t n_steps)
{
    if (groups == 2)
        turned_pairs(l, 2, n_steps, 0, Q4_SET_PAIRS);
    else
        turned_pairs(l, 4, n_steps, 0, Q4_SET_PAIRS);
}

/* What is looked up behind tile instruction k of n. */
#define TURNED_SHARE(k, n)                                                \
    do {                                                                  \
        if (look)                                                         \
            turned_pairs(l, groups, TURNED_STEPS, (k)*Q4_SET_PAIRS / (n), \
                         ((k) + 1) * Q4_SET_PAIRS / (n));                 \
    } while (0)

/* A step of a set: a tile of weights with all rows; if look, those of l are looked up meanwhile. Up
 * to two tiles of rows are loaded for all sets of a span. */
V_INLINE void turned_dot(turned *w, const turned_block *b, int groups, int n_tiles, int set,
                         int64_t step, int64_t slot, bool look, turned_lookup l)
{
    const bool kept = turned_span(n_tiles) > 1;
    const int loads = !kept ? n_tiles : set == 0 ? n_tiles : 0, n = 1 + loads + n_tiles;
    int k = 0;
    V_EACH (tile, 2) {
        if (!kept || tile >= loads)
            continue;
        if (tile % 2)
            tile_load(7, b->rows[step][1], STEP);
        else
            tile_load(6, b->rows[step][0], STEP);
        TURNED_SHARE(k, n);
        k++;
    }
    tile_load(4, w->ring[slot], STEP);
    TURNED_SHARE(k, n);
    k++;
    V_EACH (tile, n_tiles) {
        if (!kept) {
            if (tile % 2)
                tile_load(7, b->rows[step][tile], STEP);
            else
                tile_load(6, b->rows[step][tile], STEP);
            TURNED_SHARE(k, n);
            k++;
        }
        TURNED_SUM(TURNED_DOT, set * n_tiles + tile);
        TURNED_SHARE(k, n);
        k++;
    }
}

/* A panel's strip, while the last tiles of the strip before are multiplied. t: of the panel. */
V_INLINE void turned_strip(turned *w, int groups, int n_tiles, const uint8_t *strip,
                           const uint8_t *following, float *t)
{
    const int span = turned_span(n_tiles);
    const int64_t n_steps = w->now.n_steps, lag = LAG / span;
    const int64_t set_indices = Q4_SET * n_steps * groups;
    const int64_t set_bytes = Q4_SET_PAIRS * n_steps * STEP, set_t = TILE * n_tiles * OCTET;
    const uint8_t *nibbles = strip + SETS * set_indices;
    const char *ahead = (const char *)following;
    const bool whole = n_steps == TURNED_STEPS;
    for (int64_t first = 0; first < SETS; first += span) {
        turned_block b = w->before;
        q4_offsets(strip + first * set_indices, span * set_indices, w->offset);
        for (int64_t s = 0; s < TURNED_STEPS; s++) {
            const int64_t step = (s + TURNED_STEPS - lag) % TURNED_STEPS;
            if (s == lag) {
                turned_store(w, span * n_tiles);
                turned_zero(span * n_tiles);
                b = w->now;
            }
            V_EACH (i, span) {
                const int64_t slot = (s * span + i) % RING, ready = (slot + RING - LAG) % RING;
                const int n_ahead = i % 2 == 0 || groups == 4 ? 9 : 8;
                turned_lookup l = {nibbles + (first + i) * set_bytes + s * STEP,
                                   w->offset + i * set_indices + s * groups, w->ring[slot][0],
                                   ahead, n_ahead};
                if (whole && step < b.n_steps) {
                    l.offset = w->offset + i * Q4_SET * TURNED_STEPS * groups + s * groups;
                    turned_dot(w, &b, groups, n_tiles, i, step, ready, true, l);
                    ahead += n_ahead * LINE;
                } else {
                    if (step < b.n_steps)
                        turned_dot(w, &b, groups, n_tiles, i, step, ready, false, l);
                    l.n_ahead = 0;
                    if (s < n_steps)
                        turned_look_up(l, groups, n_steps);
                }
                if (s >= FINISH)
                    turned_finish(w->sums + i * n_tiles, &w->before, n_tiles,
                                  (s - FINISH) * FINISH_CHANNELS, w->t_before + i * set_t);
            }
        }
        w->before = w->now;
        w->t_before = t + first * set_t;
        turned_pack_share(w, n_tiles, span);
    }
}

/* What turned_strip leaves of the last strip. */
V_INLINE void turned_end(turned *w, int n_tiles)
{
    const int span = turned_span(n_tiles);
    const turned_block b = w->before;
    for (int64_t step = TURNED_STEPS - LAG / span; step < b.n_steps; step++) {
        V_EACH (i, span)
            turned_dot(w, &b, 2, n_tiles, i, step, (step * span + i) % RING, false,
                       (turned_lookup){NULL});
    }
    turned_store(w, span * n_tiles);
    for (int64_t c = 0; c < TILE; c += FINISH_CHANNELS)
        V_EACH (i, span)
            turned_finish(w->sums + i * n_tiles, &b, n_tiles, c,
                          w->t_before + i * TILE * n_tiles * OCTET);
}

static void turned_begin_block(turned *w, int n_tiles)
{
    const oct_act_layout *l = w->a.act;
    const int64_t at = (w->a.first_group + w->b.group) * l->group_blocks + w->b.start / l->block;
    const int64_t other = w->now.rows == w->rows[0];
    while (turned_may_pack(w))
        turned_pack(w, n_tiles);
    w->now = (turned_block){w->b.n_steps, w->rows[other], w->scale[other], w->excess[other]};
    for (int64_t r = 0; r < n_tiles * OCTET; r++) {
        const char *row = w->a.rows[r < w->a.n_rows ? r : w->a.n_rows - 1];
        const int32_t *sums = (const int32_t *)(const void *)(row + l->sums_at) + at;
        uint32_t sum = ((uint32_t)sums[0] << 8) + (uint32_t)sums[l->n_blocks];
        w->now.scale[r] = ((const float *)(const void *)row)[at];
        w->now.excess[r] = (int32_t)(sum << 7);
    }
    w->credit = w->pack_step = w->pack_tile = 0;
    block_next(&w->a, &w->pack);
}

V_INLINE void turned_run(turned *w, int groups, int n_tiles)
{
    const oct_weight_layout *l = w->a.w;
    const int64_t panel_t = OCT_PANEL * n_tiles * OCTET;
    turned_columns(w, n_tiles);
    w->b = (block){0};
    block_size(&w->a, &w->b);
    w->pack = w->b;
    w->pack_step = w->pack_tile = 0;
    w->now = (turned_block){0, w->rows[0], w->scale[0], w->excess[0]};
    memset(w->sums, 0, sizeof w->sums);
    for (int64_t group = 0; group < l->unit_groups; group++) {
        memset(w->t, 0, (size_t)(w->a.n_panels * panel_t) * sizeof *w->t);
        w->before = (turned_block){0, w->rows[0], w->scale[0], w->excess[0]}; /* no steps */
        w->t_before = w->t + w->a.n_panels * panel_t;                         /* nobody's */
        for (; w->b.group == group; block_next(&w->a, &w->b)) {
            turned_begin_block(w, n_tiles);
            for (int64_t panel = 0; panel < w->a.n_panels; panel++) {
                block next = w->b;
                int64_t next_panel = panel;
                panel_next(&w->a, &next, &next_panel);
                turned_strip(w, groups, n_tiles, weights_of(&w->a, groups, &w->b, panel),
                             weights_of(&w->a, groups, &next, next_panel), w->t + panel * panel_t);
            }
        }
        turned_end(w, n_tiles);
        turned_finish_group(w, n_tiles, group);
    }
}

#define TURNED_CASE(groups, n_tiles)                       \
    V_NOINLINE void turned_##groups##_##n_tiles(turned *w) \
    {                                                      \
        turned_run(w, groups, n_tiles);                    \
    }
TURNED_CASE(2, 1)
TURNED_CASE(2, 2)
TURNED_CASE(2, 3)
TURNED_CASE(2, 4)
TURNED_CASE(4, 1)
TURNED_CASE(4, 2)
TURNED_CASE(4, 3)
TURNED_CASE(4, 4)

/* At most TURNED_ROWS rows of two digits; tiles are configured. */
V_NOINLINE void turned_linear(const oct_linear_args *a, int groups, int64_t first_row,
                              int64_t n_rows)
{
    typedef void run_fn(turned * w);
    static run_fn *const fn[2][TURNED_TILES] = {{turned_2_1, turned_2_2, turned_2_3, turned_2_4},
                                                {turned_4_1, turned_4_2, turned_4_3, turned_4_4}};
    turned w;
    w.y_stride = a->n_rows * OCT_PANEL;
    for (int64_t p = 0; p < a->n_panels; p += TURNED_PANELS) {
        w.a = oct_linear_panel(a, p);
        w.a.n_panels = a->n_panels - p < TURNED_PANELS ? a->n_panels - p : TURNED_PANELS;
        w.a.next = p + w.a.n_panels == a->n_panels ? a->next : NULL;
        w.a.rows += first_row;
        w.a.y += first_row * OCT_PANEL;
        w.a.n_rows = n_rows;
        fn[groups == 4][(n_rows + OCTET - 1) / OCTET - 1](&w);
    }
}

#endif
