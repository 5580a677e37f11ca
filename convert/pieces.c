#include "pieces.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "f16.h"

enum { PANEL_GROUP = 16, SLACK = 4096, PLAIN_BYTES = 8 << 20 };

bool oct_new_tensor_is_plain(const oct_new_tensor *t)
{
    for (int i = 0; t->layout && i < t->layout->n_parts; i++)
        if (t->src[i].dtype != OCT_SOURCE_I8)
            return true;
    return false;
}

static bool is_scales(const oct_new_tensor *t)
{
    return oct_grok_is_scales(t->desc.kind);
}

/* What a tensor of packed units, or of their scales, holds of a layout. */
typedef struct extent {
    size_t panel, bytes, stride; /* of a panel, of a unit, from one unit to the next */
} extent;

static extent extent_of(const oct_new_tensor *t, const oct_weight_layout *l)
{
    if (!is_scales(t))
        return (extent){l->panel_bytes, l->unit_bytes, l->unit_stride};
    return (extent){l->scale_bytes / (size_t)l->n_panels, l->scale_bytes, l->scale_stride};
}

/* ---- cutting --------------------------------------------------------------------------------- */

typedef struct piece_list {
    oct_piece *p;
    int64_t n, cap;
    bool failed;
} piece_list;

static void add_piece(piece_list *l, oct_piece p)
{
    if (l->n == l->cap) {
        int64_t cap = l->cap ? 2 * l->cap : 256;
        oct_piece *q = realloc(l->p, (size_t)cap * sizeof *q);
        if (!q) {
            l->failed = true;
            return;
        }
        l->p = q;
        l->cap = cap;
    }
    l->p[l->n++] = p;
}

/* Panels of a piece: whole groups of those that are packed side by side, if they fit. What is
 * quantised on the way needs its f32 too, whichever half of it is wanted. */
static int64_t panels_per_piece(const oct_new_tensor *t, size_t max_bytes)
{
    bool plain = oct_new_tensor_is_plain(t);
    size_t panel = plain ? 4 * t->layout->panel_bytes : extent_of(t, t->layout).panel;
    int64_t n = (int64_t)((plain ? PLAIN_BYTES : max_bytes) / panel);
    if (n > PANEL_GROUP)
        n -= n % PANEL_GROUP;
    return n < 1 ? 1 : n;
}

static void cut_packed(const oct_new_tensor *t, int64_t tensor, size_t max_bytes, piece_list *list)
{
    const oct_weight_layout *l = t->layout;
    const extent x = extent_of(t, l);
    int64_t step = panels_per_piece(t, max_bytes);
    for (int64_t e = 0; e < l->n_experts; e++)
        for (int64_t s = 0; s < l->n_slices; s++)
            for (int64_t p = 0; p < l->n_panels; p += step) {
                int64_t n = l->n_panels - p < step ? l->n_panels - p : step;
                size_t from = (size_t)p * x.panel, to = (size_t)(p + n) * x.panel;
                if (p + n == l->n_panels)
                    to = x.stride;
                add_piece(list, (oct_piece){.tensor = tensor,
                                            .expert = e,
                                            .slice = s,
                                            .first = p,
                                            .n = n,
                                            .at = t->at +
                                                  (uint64_t)(e * l->n_slices + s) * x.stride + from,
                                            .bytes = to - from});
            }
}

/* Everything else: runs of rows or bytes of width `unit`; `per_slice` of them in each of
 * n_slices. */
static void cut_rows(const oct_new_tensor *t, int64_t tensor, size_t unit, int64_t per_slice,
                     int64_t n_slices, size_t max_bytes, piece_list *list)
{
    int64_t step = (int64_t)(max_bytes / unit);
    if (step < 1)
        step = 1;
    for (int64_t s = 0; s < n_slices; s++)
        for (int64_t r = 0; r < per_slice; r += step) {
            int64_t n = per_slice - r < step ? per_slice - r : step;
            add_piece(list, (oct_piece){.tensor = tensor,
                                        .slice = s,
                                        .first = r,
                                        .n = n,
                                        .at = t->at + (uint64_t)(s * per_slice + r) * unit,
                                        .bytes = (size_t)n * unit});
        }
}

oct_status oct_pieces_cut(const oct_new_tensor *t, int64_t n_tensors, size_t max_bytes,
                          oct_piece **out, int64_t *n, oct_error *err)
{
    piece_list list = {0};
    for (int64_t i = 0; i < n_tensors; i++) {
        if (t[i].layout)
            cut_packed(&t[i], i, max_bytes, &list);
        else if (t[i].embedding)
            cut_rows(&t[i], i, 2 * (size_t)t[i].desc.ne[0], t[i].embedding->slice_rows_pad,
                     (int64_t)t[i].desc.ne[2], max_bytes / 3, &list);
        else if (t[i].desc.kind != OCT_GROK_KINDS)
            cut_rows(&t[i], i, 4 * (size_t)t[i].src[0].n_in, t[i].src[0].n_out, 1, max_bytes,
                     &list);
        else
            cut_rows(&t[i], i, 1, (int64_t)t[i].bytes, 1, max_bytes, &list);
    }
    if (list.failed) {
        free(list.p);
        return oct_fail(err, OCT_ERR_MEMORY, "out of memory");
    }
    *out = list.p;
    *n = list.n;
    return OCT_OK;
}

void oct_piece_prefetch(const oct_new_tensor *t, const oct_piece *p)
{
    if (!t->layout || !t->source->kind->prefetch || p->slice || p->first)
        return;
    for (int i = 0; i < t->layout->n_parts; i++)
        if (!is_scales(t) || t->src[i].dtype != OCT_SOURCE_I8)
            t->source->kind->prefetch(t->source, &t->src[i], p->expert);
}

/* ---- working memory -------------------------------------------------------------------------- */

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* Some panels of a unit as a layout of one slice: its packed bytes are those of the panels. The
 * number of parts may shrink. */
typedef struct cutout {
    oct_weight_layout layout;
    int part[OCT_WEIGHT_MAX_PARTS]; /* of the whole layout */
    int64_t first_row, first_group, column[OCT_WEIGHT_MAX_PARTS];
} cutout;

/* Columns from..from+n-1 of a part; none if n is 0. */
static void add_part(cutout *c, int part, int64_t from, int64_t n)
{
    if (n <= 0)
        return;
    int k = c->layout.n_parts++;
    c->layout.part_out[k] = n;
    c->part[k] = part;
    c->column[k] = from;
}

static void begin_cutout(cutout *c, const oct_weight_layout *l, int64_t slice)
{
    *c = (cutout){.layout = {.n_experts = 1,
                             .n_slices = 1,
                             .split = OCT_SPLIT_OUT,
                             .type = l->type,
                             .n_in = l->unit_groups * l->group_in,
                             .n_groups = l->unit_groups,
                             .interleave = l->interleave},
                  .first_group = l->split == OCT_SPLIT_IN ? slice * l->unit_groups : 0};
    c->first_row = c->first_group * l->group_in;
}

/* For making: asks for every lane of the panels what belongs there. */
static void cut_out(const oct_weight_layout *l, const oct_piece *p, cutout *c)
{
    int64_t first[OCT_WEIGHT_MAX_PARTS] = {0}, count[OCT_WEIGHT_MAX_PARTS] = {0};
    for (int64_t panel = p->first; panel < p->first + p->n; panel++)
        for (int lane = 0; lane < OCT_PANEL; lane++) {
            int part;
            int64_t channel;
            if (oct_weight_lane(l, p->slice, panel, lane, &part, &channel) && count[part]++ == 0)
                first[part] = channel;
        }
    begin_cutout(c, l, p->slice);
    for (int i = 0; i < l->n_parts; i++)
        add_part(c, i, first[i], count[i]);
    /* Parts of a layout that was accepted, and smaller: accepted too. */
    (void)oct_weight_layout_init(&c->layout);
}

/* A part's tile after the packed bytes: int8 and scales; of plain ones f32 too. */
static size_t part_scratch(const oct_weight_layout *l, int part, bool plain)
{
    size_t columns = (size_t)l->part_out[part];
    return round_up((size_t)l->n_in * columns * (plain ? 5 : 1), 64) +
           round_up((size_t)l->n_groups * columns * 2, 64) + 64;
}

static size_t packed_scratch(const oct_new_tensor *t, const oct_piece *p, const cutout *c)
{
    size_t stride = extent_of(t, &c->layout).stride;
    return round_up(stride > p->bytes ? stride : p->bytes, 64);
}

static size_t piece_scratch(const oct_new_tensor *t, const oct_piece *p)
{
    if (t->embedding) /* and its f32 */
        return 3 * round_up(p->bytes, 64) + SLACK;
    if (!t->layout)
        return 2 * round_up(p->bytes, 64) + SLACK;
    cutout c;
    cut_out(t->layout, p, &c);
    size_t n = packed_scratch(t, p, &c);
    bool plain = oct_new_tensor_is_plain(t);
    for (int i = 0; i < c.layout.n_parts; i++)
        if (!is_scales(t) || plain)
            n += part_scratch(&c.layout, i, plain);
        else
            n += round_up((size_t)(c.layout.n_groups * c.layout.part_out[i]) * 2, 64);
    if (plain && !is_scales(t)) /* the scales that are stored */
        n += round_up(c.layout.scale_bytes, 64);
    return n + SLACK;
}

size_t oct_pieces_scratch(const oct_new_tensor *t, const oct_piece *p, int64_t n, int64_t *most)
{
    size_t largest = 0;
    *most = 0;
    for (int64_t i = 0; i < n; i++) {
        /* All units of a tensor are cut alike. */
        if (p[i].expert || p[i].slice)
            continue;
        size_t s = piece_scratch(&t[p[i].tensor], &p[i]);
        if (s > largest) {
            largest = s;
            *most = p[i].tensor;
        }
    }
    return largest;
}

/* ---- making ---------------------------------------------------------------------------------- */

static oct_tile weights_tile(const oct_piece *p, const cutout *c, int k)
{
    return (oct_tile){p->expert, c->first_row, c->layout.n_in, c->column[k], c->layout.part_out[k]};
}

static oct_tile scales_tile(const oct_piece *p, const cutout *c, int k)
{
    return (oct_tile){p->expert, c->first_group, c->layout.n_groups, c->column[k],
                      c->layout.part_out[k]};
}

/* Quantises the part of a plain matrix that a piece needs. */
static oct_status quantise_part(const oct_new_tensor *t, const oct_piece *p, const cutout *c, int k,
                                uint8_t *scratch, oct_weight_source *out, oct_error *err)
{
    const oct_source_tensor *from = &t->src[c->part[k]];
    const oct_tile tile = weights_tile(p, c, k);
    const size_t n = (size_t)(tile.n_in * tile.n_out);
    float *w = (float *)(void *)scratch;
    int8_t *q = (int8_t *)(scratch + 4 * n);
    uint16_t *scales = (uint16_t *)(void *)(scratch + round_up(5 * n, 64));
    OCT_TRY(oct_source_read_f32(t->source, from, &tile, OCT_IN_OUT, w, err));
    if (!oct_q8_quantise(w, tile.n_in, tile.n_out, c->layout.n_groups, q, scales)) {
        char where[OCT_SOURCE_WHERE];
        oct_source_where(t->source, from, OCT_SOURCE_WEIGHTS, p->expert, tile.in, tile.out, where);
        return oct_fail(err, OCT_ERR_NUMERIC, "%s and those behind it cannot be quantised", where);
    }
    *out = (oct_weight_source){.w = q, .scales = scales, .ld = tile.n_out};
    return OCT_OK;
}

static oct_status make_packed(const oct_new_tensor *t, const oct_piece *p, uint8_t *scratch,
                              oct_error *err)
{
    cutout c;
    cut_out(t->layout, p, &c);
    uint8_t *rest = scratch + packed_scratch(t, p, &c);
    oct_weight_source src[OCT_WEIGHT_MAX_PARTS];
    for (int k = 0; k < c.layout.n_parts; k++) {
        const oct_source_tensor *from = &t->src[c.part[k]];
        const bool plain = from->dtype != OCT_SOURCE_I8;
        const oct_tile weights = weights_tile(p, &c, k), scales = scales_tile(p, &c, k);
        src[k] = (oct_weight_source){.ld = c.layout.part_out[k]};
        if (plain) {
            OCT_TRY(quantise_part(t, p, &c, k, rest, &src[k], err));
        } else if (is_scales(t)) {
            uint16_t *s = (uint16_t *)(void *)rest;
            OCT_TRY(oct_source_read_scales(t->source, from, &scales, s, err));
            src[k].scales = s;
        } else {
            OCT_TRY(oct_source_read_i8(t->source, from, &weights, (int8_t *)rest, err));
            src[k].w = (int8_t *)rest;
        }
        if (plain || !is_scales(t))
            rest += part_scratch(&c.layout, k, plain);
        else
            rest += round_up((size_t)(scales.n_in * scales.n_out) * 2, 64);
    }
    if (is_scales(t))
        oct_weight_pack(&c.layout, 0, src, NULL, (uint16_t *)(void *)scratch);
    else
        oct_weight_pack(&c.layout, 0, src, scratch, NULL);
    size_t made = extent_of(t, &c.layout).bytes;
    if (made < p->bytes)
        memset(scratch + made, 0, p->bytes - made);
    return OCT_OK;
}

/* How many of an embedding piece's rows are of the vocabulary, and which is the first of them: the
 * others, at the end, are padding. */
static int64_t vocabulary_rows(const oct_new_tensor *t, const oct_piece *p, int64_t *first)
{
    int64_t end = t->embedding->slice_rows, rows = t->src[0].n_out;
    *first = p->slice * end + p->first;
    if (rows - p->slice * end < end)
        end = rows - p->slice * end;
    int64_t n = end - p->first;
    return n < 0 ? 0 : n < p->n ? n : p->n;
}

static oct_status make_embedding(const oct_new_tensor *t, const oct_piece *p, uint8_t *scratch,
                                 oct_error *err)
{
    uint16_t *out = (uint16_t *)(void *)scratch;
    float *x = (float *)(void *)(scratch + round_up(p->bytes, 64));
    int64_t d = (int64_t)t->desc.ne[0], first, n = vocabulary_rows(t, p, &first);
    if (n)
        OCT_TRY(oct_source_read_f32(t->source, &t->src[0], &(oct_tile){0, 0, d, first, n},
                                    OCT_OUT_IN, x, err));
    for (int64_t i = 0; i < n * d; i++) {
        out[i] = oct_bf16_of_f32(x[i]);
        if ((out[i] & 0x7f80) == 0x7f80) {
            char where[OCT_SOURCE_WHERE];
            oct_source_where(t->source, &t->src[0], OCT_SOURCE_WEIGHTS, 0, i % d, first + i / d,
                             where);
            return oct_fail(err, OCT_ERR_NUMERIC, "%s = %g is beyond bfloat16", where,
                            (double)x[i]);
        }
    }
    memset(out + n * d, 0, p->bytes - (size_t)(n * d) * 2);
    return OCT_OK;
}

/* Norms and routers: rows of f32, an output each. */
static oct_tile vector_tile(const oct_new_tensor *t, const oct_piece *p)
{
    return (oct_tile){0, 0, t->src[0].n_in, p->first, p->n};
}

oct_status oct_piece_make(const oct_new_tensor *t, const oct_piece *p, uint8_t *scratch,
                          oct_error *err)
{
    if (t->layout)
        return make_packed(t, p, scratch, err);
    if (t->embedding)
        return make_embedding(t, p, scratch, err);
    const oct_tile tile = vector_tile(t, p);
    if (t->desc.kind != OCT_GROK_KINDS)
        return oct_source_read_f32(t->source, &t->src[0], &tile, OCT_OUT_IN,
                                   (float *)(void *)scratch, err);
    memcpy(scratch, t->raw + p->first, (size_t)p->n);
    return OCT_OK;
}

/* ---- verifying ------------------------------------------------------------------------------- */

/* The same panels as cut_out, told from the other side: which columns of every part the format puts
 * there (convert/FORMAT.md). */
static void window_of(const oct_weight_layout *l, const oct_piece *p, cutout *c)
{
    const int64_t cut = l->split == OCT_SPLIT_OUT ? l->n_slices : 1;
    const int64_t width = l->interleave ? OCT_PANEL / 2 : OCT_PANEL;
    const int64_t from = p->first * width, to = from + p->n * width;
    int64_t base = 0; /* the part's first channel in the unit */
    begin_cutout(c, l, p->slice);
    for (int i = 0; i < l->n_parts; i++) {
        const int64_t n = l->part_out[i] / cut;
        int64_t lo = from > base ? from - base : 0, hi = to - base < n ? to - base : n;
        add_part(c, i, (cut > 1 ? p->slice * n : 0) + lo, hi - lo);
        base += l->interleave ? 0 : n;
    }
    (void)oct_weight_layout_init(&c->layout);
}

static bool all_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return false;
    return true;
}

/* One lane of some panels as they lie in the new file, and one group of it. */
typedef struct stored_lane {
    const oct_weight_layout *l;
    const uint8_t *weights; /* NULL: only scales are compared */
    const uint16_t *scales;
    int64_t panel, group;
    int lane;
} stored_lane;

static uint16_t lane_scale(const stored_lane *s)
{
    return oct_weight_scale(s->l, s->scales, s->panel, s->lane, s->group);
}

static int8_t lane_weight(const stored_lane *s, int64_t i)
{
    return oct_weight_at(s->l, s->weights, s->panel, s->lane, s->group * s->l->group_in + i);
}

/* The columns of a part, as they are in the source. */
typedef struct source_columns {
    const float *w; /* plain: [n_in][ld] */
    const int8_t *q;
    const uint16_t *scales; /* int8: [n_groups][ld] */
    int64_t ld;
} source_columns;

/* A group of a lane: each weight of a plain matrix within half a step of its source, each of an
 * int8 matrix, and its scale, equal. */
static bool near_source(const stored_lane *s, const source_columns *c, int64_t column,
                        oct_q8_error *e)
{
    const int64_t first = s->group * s->l->group_in;
    const float step = oct_f32_of_bf16(lane_scale(s));
    if (!c->w && lane_scale(s) != c->scales[s->group * c->ld + column])
        return false;
    for (int64_t i = 0; s->weights && i < s->l->group_in; i++) {
        const int64_t at = (first + i) * c->ld + column;
        float v = step * lane_weight(s, i);
        if (c->w ? !(fabsf(c->w[at] - v) <= 0.501f * step + 1e-37f) : c->q[at] != lane_weight(s, i))
            return false;
        if (c->w)
            oct_q8_error_add(e, &c->w[at], &v, 1);
    }
    return isfinite(step);
}

/* Panels of which at least one part was quantised on the way, or their scales alone: what they are
 * worth shows with the weights. */
static bool all_near_source(const stored_lane *stored, const source_columns *columns,
                            oct_q8_error *e)
{
    stored_lane s = *stored;
    for (s.panel = 0; s.panel < s.l->n_panels; s.panel++)
        for (s.lane = 0; s.lane < OCT_PANEL; s.lane++) {
            int part = 0;
            int64_t column = 0;
            bool used = oct_weight_lane(s.l, 0, s.panel, s.lane, &part, &column), good = true;
            for (s.group = 0; good && s.group < s.l->unit_groups; s.group++)
                good = used ? near_source(&s, &columns[part], column, e) : lane_scale(&s) == 0;
            if (!good)
                return false;
        }
    return true;
}

/* The source of one part of the panels, into rest. */
static oct_status read_columns(const oct_new_tensor *t, const oct_piece *p, const cutout *c, int k,
                               uint8_t *rest, source_columns *out, oct_error *err)
{
    const oct_source_tensor *from = &t->src[c->part[k]];
    const oct_tile weights = weights_tile(p, c, k), scales = scales_tile(p, c, k);
    const size_t n = (size_t)(weights.n_in * weights.n_out);
    *out = (source_columns){.ld = c->layout.part_out[k]};
    if (from->dtype != OCT_SOURCE_I8) {
        out->w = (float *)(void *)rest;
        return is_scales(t) ? OCT_OK
                            : oct_source_read_f32(t->source, from, &weights, OCT_IN_OUT,
                                                  (float *)(void *)rest, err);
    }
    const bool mixed = oct_new_tensor_is_plain(t);
    if (!is_scales(t)) {
        out->q = (int8_t *)rest;
        OCT_TRY(oct_source_read_i8(t->source, from, &weights, (int8_t *)rest, err));
    }
    if (!is_scales(t) && !mixed)
        return OCT_OK;
    uint16_t *s = (uint16_t *)(void *)(rest + (is_scales(t) && !mixed ? 0 : round_up(n, 64)));
    out->scales = s;
    return oct_source_read_scales(t->source, from, &scales, s, err);
}

/* stored: the piece's bytes, followed by scratch. */
static oct_status verify_packed(const oct_new_tensor *t, const oct_piece *p, const oct_output *file,
                                uint8_t *stored, bool *same, oct_q8_error *e, oct_error *err)
{
    const bool plain = oct_new_tensor_is_plain(t);
    source_columns columns[OCT_WEIGHT_MAX_PARTS];
    cutout c;
    window_of(t->layout, p, &c);
    const extent x = extent_of(t, &c.layout);
    uint8_t *rest = stored + packed_scratch(t, p, &c);
    for (int k = 0; k < c.layout.n_parts; k++) {
        OCT_TRY(read_columns(t, p, &c, k, rest, &columns[k], err));
        if (!is_scales(t) || plain)
            rest += part_scratch(&c.layout, k, t->src[c.part[k]].dtype != OCT_SOURCE_I8);
        else
            rest += round_up((size_t)(c.layout.n_groups * c.layout.part_out[k]) * 2, 64);
    }
    *same = p->bytes >= x.bytes && all_zero(stored + x.bytes, p->bytes - x.bytes);
    if (!*same)
        return OCT_OK;
    if (plain) {
        stored_lane s = {.l = &c.layout, .scales = (const uint16_t *)(const void *)stored};
        if (!is_scales(t)) {
            const uint64_t at = t->scales->at +
                                oct_weight_scale_offset(t->layout, p->expert, p->slice) +
                                (size_t)(p->first * t->layout->unit_groups * OCT_PANEL) * 2;
            OCT_TRY(oct_output_read(file, rest, c.layout.scale_bytes, at, err));
            s.weights = stored;
            s.scales = (const uint16_t *)(const void *)rest;
        }
        *same = all_near_source(&s, columns, e);
        return OCT_OK;
    }
    oct_weight_source src[OCT_WEIGHT_MAX_PARTS];
    for (int k = 0; k < c.layout.n_parts; k++)
        src[k] = (oct_weight_source){columns[k].q, columns[k].scales, columns[k].ld};
    /* The panels as a unit of their own: what would be its padding was just found to be zero, or is
     * the beginning of the next panels and not here. */
    if (x.stride > p->bytes)
        memset(stored + p->bytes, 0, x.stride - p->bytes);
    *same = is_scales(t) ? oct_weight_verify(&c.layout, 0, src, NULL, (uint16_t *)(void *)stored)
                         : oct_weight_verify(&c.layout, 0, src, stored, NULL);
    return OCT_OK;
}

static oct_status verify_embedding(const oct_new_tensor *t, const oct_piece *p,
                                   const uint8_t *stored, float *x, bool *same, oct_error *err)
{
    const uint16_t *have = (const uint16_t *)(const void *)stored;
    const int64_t d = (int64_t)t->desc.ne[0], rows = t->embedding->slice_rows;
    oct_tile tile = {.n_in = d};
    /* Row by row: which of the vocabulary it is, if any. */
    for (int64_t r = 0; r < p->n; r++) {
        const int64_t v = p->slice * rows + p->first + r;
        if (p->first + r >= rows || v >= t->src[0].n_out)
            break;
        tile.out = tile.n_out++ ? tile.out : v;
    }
    if (tile.n_out)
        OCT_TRY(oct_source_read_f32(t->source, &t->src[0], &tile, OCT_OUT_IN, x, err));
    for (int64_t i = 0; i < tile.n_out * d; i++)
        *same = *same && have[i] == oct_bf16_of_f32(x[i]);
    *same = *same && all_zero(stored + 2 * tile.n_out * d, p->bytes - (size_t)(2 * tile.n_out * d));
    return OCT_OK;
}

/* Read the other way round than for making. */
static oct_status verify_vector(const oct_new_tensor *t, const oct_piece *p, const uint8_t *stored,
                                float *x, bool *same, oct_error *err)
{
    const float *have = (const float *)(const void *)stored;
    const oct_tile tile = vector_tile(t, p);
    OCT_TRY(oct_source_read_f32(t->source, &t->src[0], &tile, OCT_IN_OUT, x, err));
    for (int64_t i = 0; i < tile.n_in; i++)
        for (int64_t o = 0; o < tile.n_out; o++)
            *same = *same &&
                    oct_f32_bits(have[o * tile.n_in + i]) == oct_f32_bits(x[i * tile.n_out + o]);
    return OCT_OK;
}

oct_status oct_piece_verify(const oct_new_tensor *t, const oct_piece *p, const oct_output *file,
                            uint8_t *scratch, oct_q8_error *q8_error, oct_error *err)
{
    float *x = (float *)(void *)(scratch + round_up(p->bytes, 64));
    bool same = true;
    OCT_TRY(oct_output_read(file, scratch, p->bytes, p->at, err));
    if (t->layout)
        OCT_TRY(verify_packed(t, p, file, scratch, &same, q8_error, err));
    else if (t->embedding)
        OCT_TRY(verify_embedding(t, p, scratch, x, &same, err));
    else if (t->desc.kind != OCT_GROK_KINDS)
        OCT_TRY(verify_vector(t, p, scratch, x, &same, err));
    else
        same = memcmp(scratch, t->raw + p->first, (size_t)p->n) == 0;
    if (same)
        return OCT_OK;
    return oct_fail(err, OCT_ERR_IO,
                    "%s (expert %" PRId64 ", slice %" PRId64
                    "): what was read back from the new file is not what the checkpoint holds",
                    t->desc.name, p->expert, p->slice);
}
