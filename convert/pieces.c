#include "pieces.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "f16.h"

enum { PANEL_GROUP = 16, SLACK = 4096 };

bool oct_new_tensor_is_plain(const oct_new_tensor *t)
{
    for (int i = 0; t->layout && i < t->layout->n_parts; i++)
        if (!t->src[i]->content.quantised)
            return true;
    return false;
}

static oct_status no_memory(oct_error *err)
{
    return oct_fail(err, OCT_ERR_MEMORY, "out of memory");
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
    if (max_bytes == 0)
        return t->layout->n_panels;
    bool plain = oct_new_tensor_is_plain(t);
    size_t panel = plain ? 4 * t->layout->panel_bytes : extent_of(t, t->layout).panel;
    int64_t n = (int64_t)(max_bytes / panel);
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
    int64_t step = max_bytes ? (int64_t)(max_bytes / unit) : per_slice;
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
                     (int64_t)t[i].desc.ne[2], max_bytes, &list);
        else
            cut_rows(&t[i], i, 1, (int64_t)t[i].bytes, 1, max_bytes, &list);
    }
    if (list.failed) {
        free(list.p);
        return no_memory(err);
    }
    *out = list.p;
    *n = list.n;
    return OCT_OK;
}

/* ---- working memory -------------------------------------------------------------------------- */

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* Panels first..first+n-1 of a unit as a layout of one slice, with the sources moved to their first
 * row and column: its packed bytes are those of the panels. The number of parts may shrink. */
typedef struct cutout {
    oct_weight_layout layout;
    int part[OCT_WEIGHT_MAX_PARTS]; /* of the whole layout */
    int64_t first_row, first_group, column[OCT_WEIGHT_MAX_PARTS];
} cutout;

static void cut_out(const oct_weight_layout *l, const oct_piece *p, cutout *c)
{
    int64_t first[OCT_WEIGHT_MAX_PARTS], count[OCT_WEIGHT_MAX_PARTS] = {0};
    for (int64_t panel = p->first; panel < p->first + p->n; panel++)
        for (int lane = 0; lane < OCT_PANEL; lane++) {
            int part;
            int64_t channel;
            if (oct_weight_lane(l, p->slice, panel, lane, &part, &channel) && count[part]++ == 0)
                first[part] = channel;
        }
    c->layout = (oct_weight_layout){.n_experts = 1,
                                    .n_slices = 1,
                                    .type = l->type,
                                    .split = OCT_SPLIT_OUT,
                                    .n_in = l->unit_groups * l->group_in,
                                    .n_groups = l->unit_groups,
                                    .interleave = l->interleave};
    for (int i = 0; i < l->n_parts; i++) {
        if (!count[i])
            continue;
        int k = c->layout.n_parts++;
        c->layout.part_out[k] = count[i];
        c->part[k] = i;
        c->column[k] = first[i];
    }
    c->first_group = l->split == OCT_SPLIT_IN ? p->slice * l->unit_groups : 0;
    c->first_row = c->first_group * l->group_in;
    /* Parts of a layout that was accepted, and smaller: accepted too. */
    (void)oct_weight_layout_init(&c->layout);
}

/* Scratch of a quantised piece: q, scales and f32 of every part after the packed bytes. */
static size_t part_scratch(const oct_weight_layout *l, int part)
{
    size_t columns = (size_t)l->part_out[part];
    return round_up((size_t)l->n_in * columns * 5 + (size_t)l->n_groups * columns * 2, 64) + 192;
}

static size_t packed_scratch(const oct_new_tensor *t, const oct_piece *p, const cutout *c)
{
    size_t stride = extent_of(t, &c->layout).stride;
    return stride > p->bytes ? stride : p->bytes;
}

static size_t piece_scratch(const oct_new_tensor *t, const oct_piece *p)
{
    if (!t->layout)
        return p->bytes + SLACK;
    cutout c;
    cut_out(t->layout, p, &c);
    size_t n = round_up(packed_scratch(t, p, &c), 64);
    if (oct_new_tensor_is_plain(t))
        for (int i = 0; i < c.layout.n_parts; i++)
            n += part_scratch(&c.layout, i);
    return n + SLACK;
}

size_t oct_pieces_scratch(const oct_new_tensor *t, const oct_piece *p, int64_t n)
{
    size_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        /* All units of a tensor are cut alike. */
        if (p[i].expert || p[i].slice)
            continue;
        size_t s = piece_scratch(&t[p[i].tensor], &p[i]);
        most = s > most ? s : most;
    }
    return most;
}

/* ---- numbers of the source ------------------------------------------------------------------- */

static float load(const oct_ckpt_leaf *f, int64_t i)
{
    const uint8_t *p = f->bytes + f->content.weight.at;
    if (f->content.weight.dtype == OCT_PICKLE_BF16) {
        uint16_t b;
        memcpy(&b, p + 2 * i, sizeof b);
        return oct_f32_of_bf16(b);
    }
    float v;
    memcpy(&v, p + 4 * i, sizeof v);
    return v;
}

static oct_status not_finite(const oct_ckpt_leaf *f, const char *what, const oct_pickle_array *a,
                             int64_t i, float v, oct_error *err)
{
    int64_t at[OCT_PICKLE_MAX_RANK] = {0};
    char index[96] = "";
    size_t n = 0;
    for (int d = a->rank - 1; d >= 0; d--) {
        at[d] = i % a->shape[d];
        i /= a->shape[d];
    }
    for (int d = 0; d < a->rank; d++)
        n += (size_t)snprintf(index + n, sizeof index - n, "%s%" PRId64, d ? "," : "", at[d]);
    return oct_fail(err, OCT_ERR_NUMERIC, "%s (%s): %s[%s] is %s; expected a finite number",
                    f->file, f->path, what, index, isnan(v) ? "NaN" : "infinite");
}

/* Element i as stored in the new file: finite. */
static oct_status load_finite(const oct_ckpt_leaf *f, int64_t i, float *v, oct_error *err)
{
    *v = load(f, i);
    if (!isfinite(*v))
        return not_finite(f, "element ", &f->content.weight, i, *v, err);
    return OCT_OK;
}

/* Element index of a matrix's first row and column of an expert. */
static int64_t expert_base(const oct_pickle_array *a, int64_t expert)
{
    return expert * a->shape[a->rank - 2] * a->shape[a->rank - 1];
}

static int64_t columns_of(const oct_pickle_array *a)
{
    return a->shape[a->rank - 1];
}

/* The whole matrix of an expert. */
static oct_weight_source whole_source(const oct_ckpt_leaf *f, int64_t expert)
{
    const oct_pickle *p = &f->content;
    const void *scales = f->bytes + p->scales.at + 2 * expert_base(&p->scales, expert);
    const void *w = f->bytes + p->weight.at + expert_base(&p->weight, expert);
    return (oct_weight_source){.w = w, .scales = scales, .ld = columns_of(&p->weight)};
}

/* ---- making ---------------------------------------------------------------------------------- */

static oct_status check_scales(const oct_ckpt_leaf *f, int64_t expert, int64_t first_group,
                               int64_t n_groups, int64_t column, int64_t n, oct_error *err)
{
    const oct_pickle_array *a = &f->content.scales;
    for (int64_t g = 0; g < n_groups; g++)
        for (int64_t c = 0; c < n; c++) {
            int64_t i = expert_base(a, expert) + (first_group + g) * columns_of(a) + column + c;
            uint16_t b;
            memcpy(&b, f->bytes + a->at + 2 * i, sizeof b);
            if ((b & 0x7f80) == 0x7f80)
                return not_finite(f, "scales", a, i, oct_f32_of_bf16(b), err);
        }
    return OCT_OK;
}

/* Quantises the part of a plain matrix that a piece needs. */
static oct_status quantise_part(const oct_ckpt_leaf *f, const oct_piece *p, const cutout *c, int k,
                                uint8_t *scratch, oct_weight_source *out, oct_error *err)
{
    const oct_pickle_array *a = &f->content.weight;
    int64_t rows = c->layout.n_in, columns = c->layout.part_out[k];
    float *w = (float *)(void *)scratch;
    uint16_t *scales = (uint16_t *)(void *)(scratch + round_up((size_t)(rows * columns) * 4, 64));
    int8_t *q = (int8_t *)scales + round_up((size_t)(c->layout.n_groups * columns) * 2, 64);
    for (int64_t r = 0; r < rows; r++) {
        int64_t i = expert_base(a, p->expert) + (c->first_row + r) * columns_of(a) + c->column[k];
        for (int64_t j = 0; j < columns; j++)
            OCT_TRY(load_finite(f, i + j, &w[r * columns + j], err));
    }
    if (!oct_q8_quantise(w, rows, columns, c->layout.n_groups, q, scales))
        return oct_fail(err, OCT_ERR_NUMERIC, "%s (%s): cannot be quantised", f->file, f->path);
    *out = (oct_weight_source){.w = q, .scales = scales, .ld = columns};
    return OCT_OK;
}

static oct_status make_packed(const oct_new_tensor *t, const oct_piece *p, uint8_t *scratch,
                              oct_error *err)
{
    cutout c;
    cut_out(t->layout, p, &c);
    uint8_t *rest = scratch + round_up(packed_scratch(t, p, &c), 64);
    oct_weight_source src[OCT_WEIGHT_MAX_PARTS];
    for (int k = 0; k < c.layout.n_parts; k++) {
        const oct_ckpt_leaf *f = t->src[c.part[k]];
        if (f->content.quantised) {
            OCT_TRY(check_scales(f, p->expert, c.first_group, c.layout.n_groups, c.column[k],
                                 c.layout.part_out[k], err));
            src[k] = whole_source(f, p->expert);
            src[k].w += c.first_row * src[k].ld + c.column[k];
            src[k].scales += c.first_group * src[k].ld + c.column[k];
        } else {
            OCT_TRY(quantise_part(f, p, &c, k, rest, &src[k], err));
            rest += part_scratch(&c.layout, k);
        }
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

/* Row of the vocabulary behind a stored row of a slice; -1: padding. */
static int64_t vocabulary_row(const oct_new_tensor *t, int64_t slice, int64_t row)
{
    int64_t v = slice * t->embedding->slice_rows + row;
    bool real = row < t->embedding->slice_rows && v < t->src[0]->content.weight.shape[0];
    return real ? v : -1;
}

static oct_status make_embedding(const oct_new_tensor *t, const oct_piece *p, uint16_t *out,
                                 oct_error *err)
{
    int64_t d = (int64_t)t->desc.ne[0];
    for (int64_t r = 0; r < p->n; r++) {
        int64_t v = vocabulary_row(t, p->slice, p->first + r);
        if (v < 0) {
            memset(out + r * d, 0, (size_t)d * 2);
            continue;
        }
        for (int64_t i = 0; i < d; i++) {
            float x;
            OCT_TRY(load_finite(t->src[0], v * d + i, &x, err));
            uint16_t b = oct_bf16_of_f32(x);
            if ((b & 0x7f80) == 0x7f80)
                return oct_fail(err, OCT_ERR_NUMERIC,
                                "%s (%s): element [%" PRId64 ",%" PRId64
                                "] = %g is beyond bfloat16",
                                t->src[0]->file, t->src[0]->path, v, i, (double)x);
            out[r * d + i] = b;
        }
    }
    return OCT_OK;
}

/* Source element of number i of a stored norm or router (whose rows are the checkpoint's
 * columns). */
static int64_t vector_source(const oct_new_tensor *t, int64_t i)
{
    if (t->desc.kind != OCT_GROK_ROUTER)
        return i;
    int64_t d = (int64_t)t->desc.ne[0], experts = (int64_t)t->desc.ne[1];
    return i % d * experts + i / d;
}

static oct_status make_vector(const oct_new_tensor *t, const oct_piece *p, float *out,
                              oct_error *err)
{
    for (int64_t i = 0; i < p->n / 4; i++)
        OCT_TRY(load_finite(t->src[0], vector_source(t, p->first / 4 + i), &out[i], err));
    return OCT_OK;
}

oct_status oct_piece_make(const oct_new_tensor *t, const oct_piece *p, void *scratch,
                          const uint8_t **made, oct_error *err)
{
    *made = scratch;
    if (t->layout)
        return make_packed(t, p, scratch, err);
    if (t->embedding)
        return make_embedding(t, p, scratch, err);
    if (t->desc.kind != OCT_GROK_KINDS)
        return make_vector(t, p, scratch, err);
    memcpy(scratch, t->raw + p->first, (size_t)p->n);
    return OCT_OK;
}

/* ---- verifying ------------------------------------------------------------------------------- */

static oct_status differs(const oct_new_tensor *t, const oct_piece *p, oct_error *err)
{
    return oct_fail(err, OCT_ERR_IO,
                    "%s (expert %" PRId64 ", slice %" PRId64
                    "): what was read back from the new file is not what the checkpoint holds",
                    t->desc.name, p->expert, p->slice);
}

/* One lane of a unit as it lies in the new file, and one group of it. */
typedef struct stored_lane {
    const oct_weight_layout *l;
    const uint8_t *weights; /* NULL: only scales are compared */
    const uint16_t *scales;
    int64_t panel, group, source_group;
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

/* Against its column of a plain matrix: each weight within half a step of its source. */
static bool near_plain(const stored_lane *s, const oct_ckpt_leaf *f, int64_t expert, int64_t column,
                       oct_q8_error *e)
{
    const oct_pickle_array *a = &f->content.weight;
    int64_t first = s->source_group * s->l->group_in;
    float step = oct_f32_of_bf16(lane_scale(s));
    for (int64_t i = 0; s->weights && i < s->l->group_in; i++) {
        float w = load(f, expert_base(a, expert) + (first + i) * columns_of(a) + column);
        float v = step * lane_weight(s, i);
        if (!(fabsf(w - v) <= 0.501f * step + 1e-37f))
            return false;
        oct_q8_error_add(e, &w, &v, 1);
    }
    return isfinite(step);
}

/* The same against an int8 matrix: equal. */
static bool equals_int8(const stored_lane *s, const oct_ckpt_leaf *f, int64_t expert,
                        int64_t column)
{
    oct_weight_source from = whole_source(f, expert);
    uint16_t scale;
    memcpy(&scale, (const uint8_t *)from.scales + 2 * (s->source_group * from.ld + column),
           sizeof scale);
    bool same = scale == lane_scale(s);
    for (int64_t i = 0; s->weights && same && i < s->l->group_in; i++)
        same =
            lane_weight(s, i) == from.w[(s->source_group * s->l->group_in + i) * from.ld + column];
    return same;
}

/* A unit of which at least one part was quantised on the way, or its scales alone: what they are
 * worth shows with the weights. */
static bool near_source(const oct_new_tensor *t, const oct_piece *p, const uint8_t *weights,
                        const uint16_t *scales, oct_q8_error *e)
{
    const oct_weight_layout *l = t->layout;
    stored_lane s = {.l = l, .weights = weights, .scales = scales};
    int64_t first_group = l->split == OCT_SPLIT_IN ? p->slice * l->unit_groups : 0;
    for (s.panel = 0; s.panel < l->n_panels; s.panel++)
        for (s.lane = 0; s.lane < OCT_PANEL; s.lane++) {
            int part = 0;
            int64_t column = 0;
            bool used = oct_weight_lane(l, p->slice, s.panel, s.lane, &part, &column), good = true;
            const oct_ckpt_leaf *f = t->src[part];
            for (s.group = 0; good && s.group < l->unit_groups; s.group++) {
                s.source_group = first_group + s.group;
                if (!used)
                    good = lane_scale(&s) == 0;
                else if (f->content.quantised)
                    good = equals_int8(&s, f, p->expert, column);
                else
                    good = near_plain(&s, f, p->expert, column, e);
            }
            if (!good)
                return false;
        }
    return true;
}

static bool packed_equals(const oct_new_tensor *t, const oct_piece *p, const uint8_t *file,
                          oct_q8_error *e)
{
    const oct_weight_layout *l = t->layout;
    const oct_new_tensor *of = is_scales(t) ? t : t->scales;
    const uint8_t *weights = is_scales(t) ? NULL : file + p->at;
    const uint16_t *scales =
        (const uint16_t *)(const void *)(file + of->at +
                                         oct_weight_scale_offset(l, p->expert, p->slice));
    if (oct_new_tensor_is_plain(t))
        return near_source(t, p, weights, scales, e);
    oct_weight_source src[OCT_WEIGHT_MAX_PARTS];
    for (int i = 0; i < l->n_parts; i++)
        src[i] = whole_source(t->src[i], p->expert);
    return oct_weight_verify(l, p->slice, src, weights, weights ? NULL : scales);
}

static bool embedding_equals(const oct_new_tensor *t, const oct_piece *p, const uint8_t *stored)
{
    int64_t d = (int64_t)t->desc.ne[0];
    for (int64_t r = 0; r < p->n; r++) {
        int64_t v = vocabulary_row(t, p->slice, p->first + r);
        for (int64_t i = 0; i < d; i++) {
            uint16_t b, want = 0;
            memcpy(&b, stored + 2 * (r * d + i), sizeof b);
            if (v >= 0)
                want = oct_bf16_of_f32(load(t->src[0], v * d + i));
            if (b != want)
                return false;
        }
    }
    return true;
}

static bool vector_equals(const oct_new_tensor *t, const oct_piece *p, const uint8_t *stored)
{
    for (int64_t i = 0; i < p->n / 4; i++) {
        float v, want = load(t->src[0], vector_source(t, p->first / 4 + i));
        memcpy(&v, stored + 4 * i, sizeof v);
        if (oct_f32_bits(v) != oct_f32_bits(want))
            return false;
    }
    return true;
}

oct_status oct_piece_verify(const oct_new_tensor *t, const oct_piece *p, const uint8_t *file,
                            oct_q8_error *q8_error, oct_error *err)
{
    const uint8_t *stored = file + p->at;
    bool same;
    if (t->layout) {
        same = packed_equals(t, p, file, q8_error);
    } else if (t->embedding) {
        same = embedding_equals(t, p, stored);
    } else if (t->desc.kind != OCT_GROK_KINDS) {
        same = vector_equals(t, p, stored);
    } else {
        same = memcmp(stored, t->raw + p->first, (size_t)p->n) == 0;
    }
    return same ? OCT_OK : differs(t, p, err);
}

/* n elements of an array from element i on. Whole pages: what they hold besides is read again. */
static void advise(const oct_ckpt_leaf *f, int64_t i, int64_t n, bool done)
{
    const oct_pickle_array *a = &f->content.weight;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), element = oct_pickle_dtype_bytes(a->dtype);
    uintptr_t at = (uintptr_t)(f->bytes + a->at) + (uintptr_t)i * element;
    uintptr_t from = at / page * page;
    (void)madvise((void *)from, at + (uintptr_t)n * element - from,
                  done ? MADV_DONTNEED : MADV_WILLNEED);
}

void oct_piece_advise(const oct_new_tensor *t, const oct_piece *p, bool done)
{
    if (t->embedding) {
        int64_t d = (int64_t)t->desc.ne[0], n = t->src[0]->content.weight.shape[0];
        int64_t first = p->slice * t->embedding->slice_rows + p->first;
        int64_t end = first + p->n < n ? first + p->n : n;
        if (first < end)
            advise(t->src[0], first * d, (end - first) * d, done);
    }
    for (int i = 0; t->layout && i < t->layout->n_parts; i++) {
        const oct_pickle_array *a = &t->src[i]->content.weight;
        if (is_scales(t) && t->src[i]->content.quantised)
            continue;
        advise(t->src[i], expert_base(a, p->expert), expert_base(a, 1), done);
    }
}
