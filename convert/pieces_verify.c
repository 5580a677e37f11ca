/* pieces_verify.c: compares pieces that were read back with their source. It shares no code with
 * what made them: there, every place of a unit is asked what belongs to it; here, the format
 * (convert/FORMAT.md) is asked which inputs and outputs a piece must have, and each of them where
 * it is. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "f16.h"
#include "pieces.h"

enum { HALF = OCT_PANEL / 2, ALIGN = 64 };

/* What the panels of one unit hold. */
typedef struct window {
    oct_weight_layout layout;       /* the panels as a unit of their own; parts may be missing */
    int part[OCT_WEIGHT_MAX_PARTS]; /* of the whole layout */
    int64_t out[OCT_WEIGHT_MAX_PARTS], n_out[OCT_WEIGHT_MAX_PARTS];
    int64_t in, n_in, group, n_groups;
} window;

static void window_of(const oct_weight_layout *l, const oct_piece *p, int64_t slice, window *w)
{
    const bool inputs = l->split == OCT_SPLIT_IN;
    const int64_t in_slices = inputs ? l->n_slices : 1, out_slices = inputs ? 1 : l->n_slices;
    const int64_t width = l->interleave ? HALF : OCT_PANEL;
    const int64_t from = p->first * width, to = from + p->n * width;
    int64_t base = 0; /* the part's first channel in the unit */
    *w = (window){.n_in = l->n_in / in_slices, .n_groups = l->n_groups / in_slices};
    w->in = inputs ? slice * w->n_in : 0;
    w->group = inputs ? slice * w->n_groups : 0;
    w->layout = (oct_weight_layout){.n_experts = 1,
                                    .n_slices = 1,
                                    .split = OCT_SPLIT_OUT,
                                    .type = l->type,
                                    .n_in = w->n_in,
                                    .n_groups = w->n_groups,
                                    .interleave = l->interleave};
    for (int i = 0; i < l->n_parts; i++) {
        const int64_t n = l->part_out[i] / out_slices;
        const int64_t lo = from > base ? from - base : 0, hi = to - base < n ? to - base : n;
        base += l->interleave ? 0 : n;
        if (hi <= lo)
            continue;
        const int k = w->layout.n_parts++;
        w->part[k] = i;
        w->out[k] = (inputs ? 0 : slice * n) + lo;
        w->n_out[k] = w->layout.part_out[k] = hi - lo;
    }
    /* Parts of a layout that was accepted, and smaller: accepted too. */
    (void)oct_weight_layout_init(&w->layout);
}

static bool all_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return false;
    return true;
}

/* What is left of the working memory. */
typedef struct memory {
    uint8_t *at;
    size_t left;
} memory;

/* n bytes of it, aligned as it is; NULL: too many (OCT_ERR_MEMORY). */
static void *take(memory *m, size_t n, oct_error *err)
{
    uint8_t *p = m->at;
    n = (n + ALIGN - 1) / ALIGN * ALIGN;
    if (n > m->left) {
        (void)oct_fail(err, OCT_ERR_MEMORY,
                       "comparing needs %zu bytes, but only %zu are left of its memory", n,
                       m->left);
        return NULL;
    }
    m->at += n;
    m->left -= n;
    return p;
}

/* ---- packed matrices ------------------------------------------------------------------------ */

/* The outputs of a part, as they are in the source. */
typedef struct columns {
    float *w;         /* plain: [n_in][ld]; NULL: only scales are compared */
    int8_t *q;        /* int8: [n_in][ld]; NULL likewise */
    uint16_t *scales; /* int8: [n_groups][ld]; NULL: only weights are */
    int64_t first, ld;
} columns;

/* Reads part k of all units of a piece, the first and last of which are told. */
static oct_status read_columns(const oct_new_tensor *t, const oct_piece *p, const window *first,
                               const window *last, int k, memory *m, columns *c, oct_error *err)
{
    const oct_source_tensor *from = &t->src[first->part[k]];
    const bool scales = oct_grok_is_scales(t->desc.kind), int8 = from->dtype == OCT_SOURCE_I8;
    oct_tile tile = {p->expert, first->in, first->n_in, first->out[k],
                     last->out[k] + last->n_out[k] - first->out[k]};
    *c = (columns){.first = tile.out, .ld = tile.n_out};
    const size_t n = (size_t)(tile.n_in * tile.n_out);
    if (!scales && !int8) {
        if (!(c->w = take(m, n * sizeof(float), err)))
            return OCT_ERR_MEMORY;
        return oct_source_read_f32(t->source, from, &tile, OCT_IN_OUT, c->w, err);
    }
    if (!scales) {
        if (!(c->q = take(m, n, err)))
            return OCT_ERR_MEMORY;
        OCT_TRY(oct_source_read_i8(t->source, from, &tile, c->q, err));
    }
    if (!int8 || !(scales || oct_new_tensor_is_plain(t)))
        return OCT_OK; /* what the scales of plain matrices are worth shows with the weights */
    tile.in = first->group;
    tile.n_in = first->n_groups;
    if (!(c->scales = take(m, (size_t)(tile.n_in * tile.n_out) * 2, err)))
        return OCT_ERR_MEMORY;
    return oct_source_read_scales(t->source, from, &tile, c->scales, err);
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

/* A group of a lane: each weight of a plain matrix within half a step of its source, each of an
 * int8 matrix, and its scale, equal. */
static bool near_source(const stored_lane *s, const columns *c, int64_t column, oct_q8_error *e)
{
    const int64_t first = s->group * s->l->group_in;
    const float step = oct_f32_of_bf16(lane_scale(s));
    if (c->scales && lane_scale(s) != c->scales[s->group * c->ld + column])
        return false;
    for (int64_t i = 0; s->weights && i < s->l->group_in; i++) {
        const int64_t at = (first + i) * c->ld + column;
        const float v = step * lane_weight(s, i);
        if (c->w ? !(fabsf(c->w[at] - v) <= 0.501f * step + 1e-37f) : c->q[at] != lane_weight(s, i))
            return false;
        if (c->w)
            oct_q8_error_add(e, &c->w[at], &v, 1);
    }
    return isfinite(step);
}

static bool all_near_source(const stored_lane *stored, const columns *c, oct_q8_error *e)
{
    stored_lane s = *stored;
    for (s.panel = 0; s.panel < s.l->n_panels; s.panel++)
        for (s.lane = 0; s.lane < OCT_PANEL; s.lane++) {
            int part = 0;
            int64_t column = 0;
            bool used = oct_weight_lane(s.l, 0, s.panel, s.lane, &part, &column), good = true;
            for (s.group = 0; good && s.group < s.l->unit_groups; s.group++)
                good = used ? near_source(&s, &c[part], column, e) : lane_scale(&s) == 0;
            if (!good)
                return false;
        }
    return true;
}

/* Panels of which at least one part was quantised on the way, or their scales alone. */
static oct_status verify_plain(const oct_new_tensor *t, const oct_piece *p, const window *w,
                               const oct_output *file, const columns *c, const uint8_t *stored,
                               memory *m, bool *same, oct_q8_error *e, oct_error *err)
{
    stored_lane s = {.l = &w->layout, .scales = (const uint16_t *)(const void *)stored};
    size_t bytes = w->layout.scale_bytes;
    if (!oct_grok_is_scales(t->desc.kind)) {
        uint16_t *scales;
        const uint64_t at = t->scales->at +
                            oct_weight_scale_offset(t->layout, p->expert, p->slice) +
                            (size_t)(p->first * w->n_groups * OCT_PANEL) * 2;
        if (!(scales = take(m, bytes, err)))
            return OCT_ERR_MEMORY;
        OCT_TRY(oct_output_read(file, scales, bytes, at, err));
        s.weights = stored;
        s.scales = scales;
        bytes = w->layout.unit_bytes;
    }
    *same = bytes <= p->bytes && all_zero(stored + bytes, p->bytes - bytes) &&
            all_near_source(&s, c, e);
    return OCT_OK;
}

/* The panels of one unit, n bytes of them. They are compared as a unit of their own, for which its
 * padding is put behind them: in the file the next panels may follow. */
static bool unit_equals(const oct_new_tensor *t, const window *w, const columns *c, uint8_t *stored,
                        size_t n)
{
    const bool scales = oct_grok_is_scales(t->desc.kind);
    const size_t bytes = scales ? w->layout.scale_bytes : w->layout.unit_bytes;
    const size_t stride = scales ? w->layout.scale_stride : w->layout.unit_stride;
    oct_weight_source src[OCT_WEIGHT_MAX_PARTS];
    if (bytes > n || !all_zero(stored + bytes, n - bytes))
        return false;
    if (stride > n)
        memset(stored + n, 0, stride - n);
    for (int k = 0; k < w->layout.n_parts; k++) {
        const int64_t at = w->out[k] - c[k].first;
        src[k] = (oct_weight_source){c[k].q ? c[k].q + at : NULL,
                                     c[k].scales ? c[k].scales + at : NULL, c[k].ld};
    }
    return scales ? oct_weight_verify(&w->layout, 0, src, NULL, (uint16_t *)(void *)stored)
                  : oct_weight_verify(&w->layout, 0, src, stored, NULL);
}

static oct_status verify_packed(const oct_new_tensor *t, const oct_piece *p, const oct_output *file,
                                memory *m, bool *same, oct_q8_error *e, oct_error *err)
{
    const int64_t last = p->n_slices - 1;
    const size_t unit = p->bytes / (size_t)p->n_slices;
    columns c[OCT_WEIGHT_MAX_PARTS];
    window w[OCT_WEIGHT_MAX_SLICES];
    uint8_t *stored;
    for (int64_t i = 0; i <= last; i++)
        window_of(t->layout, p, p->slice + i, &w[i]);
    /* And room for the padding of the last. */
    const size_t stride =
        oct_grok_is_scales(t->desc.kind) ? w[last].layout.scale_stride : w[last].layout.unit_stride;
    if (!(stored = take(m, (size_t)last * unit + (stride > unit ? stride : unit), err)))
        return OCT_ERR_MEMORY;
    for (int k = 0; k < w[0].layout.n_parts; k++)
        OCT_TRY(read_columns(t, p, &w[0], &w[last], k, m, &c[k], err));
    if (oct_new_tensor_is_plain(t))
        return verify_plain(t, p, w, file, c, stored, m, same, e, err);
    for (int64_t i = 0; i <= last && *same; i++)
        *same = unit_equals(t, &w[i], c, stored + (size_t)i * unit, unit);
    return OCT_OK;
}

/* ---- the rest ------------------------------------------------------------------------------- */

static oct_status verify_embedding(const oct_new_tensor *t, const oct_piece *p, memory *m,
                                   bool *same, oct_error *err)
{
    const int64_t d = (int64_t)t->desc.ne[0], rows = t->embedding->slice_rows;
    oct_tile tile = {.n_in = d};
    uint8_t *stored;
    float *x;
    if (!(stored = take(m, p->bytes, err)))
        return OCT_ERR_MEMORY;
    /* Row by row: which of the vocabulary it is, if any. */
    for (int64_t r = 0; r < p->n; r++) {
        const int64_t v = p->slice * rows + p->first + r;
        if (p->first + r >= rows || v >= t->src[0].n_out)
            break;
        tile.out = tile.n_out++ ? tile.out : v;
    }
    const size_t n = (size_t)(tile.n_out * d);
    if (n) {
        if (!(x = take(m, n * sizeof *x, err)))
            return OCT_ERR_MEMORY;
        OCT_TRY(oct_source_read_f32(t->source, &t->src[0], &tile, OCT_OUT_IN, x, err));
        const uint16_t *have = (const uint16_t *)(const void *)stored;
        for (size_t i = 0; i < n; i++)
            *same = *same && have[i] == oct_bf16_of_f32(x[i]);
    }
    *same = *same && all_zero(stored + 2 * n, p->bytes - 2 * n);
    return OCT_OK;
}

/* Read the other way round than for making. */
static oct_status verify_vector(const oct_new_tensor *t, const oct_piece *p, memory *m, bool *same,
                                oct_error *err)
{
    const oct_tile tile = {0, 0, t->src[0].n_in, p->first, p->n};
    float *have, *x;
    if (!(have = take(m, p->bytes, err)))
        return OCT_ERR_MEMORY;
    if (!(x = take(m, p->bytes, err)))
        return OCT_ERR_MEMORY;
    OCT_TRY(oct_source_read_f32(t->source, &t->src[0], &tile, OCT_IN_OUT, x, err));
    for (int64_t i = 0; i < tile.n_in; i++)
        for (int64_t o = 0; o < tile.n_out; o++)
            *same = *same &&
                    oct_f32_bits(have[o * tile.n_in + i]) == oct_f32_bits(x[i * tile.n_out + o]);
    return OCT_OK;
}

oct_status oct_piece_verify(const oct_new_tensor *t, const oct_piece *p, const oct_output *file,
                            uint8_t *scratch, size_t room, oct_q8_error *q8_error, oct_error *err)
{
    memory m = {scratch, room};
    bool same = true;
    OCT_TRY(oct_output_read(file, scratch, p->bytes, p->at, err));
    if (t->layout)
        OCT_TRY(verify_packed(t, p, file, &m, &same, q8_error, err));
    else if (t->embedding)
        OCT_TRY(verify_embedding(t, p, &m, &same, err));
    else if (t->desc.kind != OCT_GROK_KINDS)
        OCT_TRY(verify_vector(t, p, &m, &same, err));
    else
        same = memcmp(scratch, t->raw + p->first, (size_t)p->n) == 0;
    if (same)
        return OCT_OK;
    return oct_fail(err, OCT_ERR_IO,
                    "%s (expert %" PRId64 ", slice %" PRId64
                    "): what was read back from the new file is not what the checkpoint holds",
                    t->desc.name, p->expert, p->slice);
}
