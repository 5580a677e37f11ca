/* pieces.c: cutting tensors into pieces, and making these; pieces_verify.c compares them. */
#include "pieces.h"

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

/* ---- cutting -------------------------------------------------------------------------------- */

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
    const int64_t step = panels_per_piece(t, max_bytes);
    int64_t slices = 1;
    if (step >= l->n_panels && l->split == OCT_SPLIT_OUT && !oct_new_tensor_is_plain(t))
        slices = (int64_t)(max_bytes / x.stride);
    if (slices < 1)
        slices = 1;
    for (int64_t e = 0; e < l->n_experts; e++)
        for (int64_t s = 0, k; s < l->n_slices; s += k) {
            k = l->n_slices - s < slices ? l->n_slices - s : slices;
            for (int64_t p = 0; p < l->n_panels; p += step) {
                int64_t n = l->n_panels - p < step ? l->n_panels - p : step;
                size_t from = (size_t)p * x.panel, to = (size_t)(p + n) * x.panel;
                if (p + n == l->n_panels)
                    to = (size_t)k * x.stride;
                add_piece(list, (oct_piece){.tensor = tensor,
                                            .expert = e,
                                            .slice = s,
                                            .n_slices = k,
                                            .first = p,
                                            .n = n,
                                            .at = t->at +
                                                  (uint64_t)(e * l->n_slices + s) * x.stride + from,
                                            .bytes = to - from});
            }
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

/* ---- working memory ------------------------------------------------------------------------- */

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* Some panels of a unit as a layout of one slice: its packed bytes are those of the panels. The
 * number of parts may shrink. In a piece of several units each is cut like the first. */
typedef struct cutout {
    oct_weight_layout layout;
    int part[OCT_WEIGHT_MAX_PARTS]; /* of the whole layout */
    int64_t first_row, first_group, column[OCT_WEIGHT_MAX_PARTS];
} cutout;

/* Asks for every lane of the panels what belongs there. */
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
    *c = (cutout){.layout = {.n_experts = 1,
                             .n_slices = 1,
                             .split = OCT_SPLIT_OUT,
                             .type = l->type,
                             .n_in = l->unit_groups * l->group_in,
                             .n_groups = l->unit_groups,
                             .interleave = l->interleave},
                  .first_group = l->split == OCT_SPLIT_IN ? p->slice * l->unit_groups : 0};
    c->first_row = c->first_group * l->group_in;
    for (int i = 0; i < l->n_parts; i++)
        if (count[i]) {
            int k = c->layout.n_parts++;
            c->layout.part_out[k] = count[i];
            c->part[k] = i;
            c->column[k] = first[i];
        }
    /* Parts of a layout that was accepted, and smaller: accepted too. */
    (void)oct_weight_layout_init(&c->layout);
}

/* A part's tile after the packed bytes: int8 and scales; of plain ones f32 too. */
static size_t part_scratch(const oct_piece *p, const oct_weight_layout *l, int part, bool plain)
{
    size_t columns = (size_t)(p->n_slices * l->part_out[part]);
    return round_up((size_t)l->n_in * columns * (plain ? 5 : 1), 64) +
           round_up((size_t)l->n_groups * columns * 2, 64) + 64;
}

/* The same of a tensor of scales whose sources are int8. */
static size_t scales_scratch(const oct_piece *p, const oct_weight_layout *l, int part)
{
    return round_up((size_t)(p->n_slices * l->part_out[part] * l->n_groups) * 2, 64);
}

/* Of a unit of the piece: its bytes in the file. */
static size_t unit_bytes(const oct_piece *p)
{
    return p->bytes / (size_t)p->n_slices;
}

/* The packed bytes; the last unit's may be written beyond the piece. */
static size_t packed_scratch(const oct_new_tensor *t, const oct_piece *p, const cutout *c)
{
    size_t stride = extent_of(t, &c->layout).stride, unit = unit_bytes(p);
    return round_up(p->bytes + (stride > unit ? stride - unit : 0), 64);
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
        n += is_scales(t) && !plain ? scales_scratch(p, &c.layout, i)
                                    : part_scratch(p, &c.layout, i, plain);
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

/* ---- making --------------------------------------------------------------------------------- */

static oct_tile weights_tile(const oct_piece *p, const cutout *c, int k)
{
    return (oct_tile){p->expert, c->first_row, c->layout.n_in, c->column[k],
                      p->n_slices * c->layout.part_out[k]};
}

static oct_tile scales_tile(const oct_piece *p, const cutout *c, int k)
{
    return (oct_tile){p->expert, c->first_group, c->layout.n_groups, c->column[k],
                      p->n_slices * c->layout.part_out[k]};
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

/* The next unit's columns. */
static void next_slice(const oct_weight_layout *l, oct_weight_source *src)
{
    for (int k = 0; k < l->n_parts; k++) {
        if (src[k].w)
            src[k].w += l->part_out[k];
        if (src[k].scales)
            src[k].scales += l->part_out[k];
    }
}

static void pack_units(const oct_new_tensor *t, const oct_piece *p, const oct_weight_layout *l,
                       oct_weight_source *src, uint8_t *out)
{
    const size_t made = extent_of(t, l).bytes, unit = unit_bytes(p);
    for (int64_t i = 0; i < p->n_slices; i++, out += unit) {
        if (is_scales(t))
            oct_weight_pack(l, 0, src, NULL, (uint16_t *)(void *)out);
        else
            oct_weight_pack(l, 0, src, out, NULL);
        if (made < unit)
            memset(out + made, 0, unit - made);
        next_slice(l, src);
    }
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
        src[k] = (oct_weight_source){.ld = weights.n_out};
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
        rest += is_scales(t) && !plain ? scales_scratch(p, &c.layout, k)
                                       : part_scratch(p, &c.layout, k, plain);
    }
    pack_units(t, p, &c.layout, src, scratch);
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
