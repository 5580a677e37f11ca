/* q8.c: packing of int8 matrices into units (see q8.h for the format). */
#include "q8.h"

#include <string.h>

#include "f16.h"

enum {
    QUAD_BYTES = OCT_PANEL * OCT_QUAD,
    HALF = OCT_PANEL / 2, /* channels of each interleaved part in a panel */
    ZERO = 0x80,          /* weight zero as stored */
    BLOCK_PANELS = 16,    /* panels filled side by side: as many streams of writes */
    SMALL_ALIGN = 4096,
    LARGE_ALIGN = 2 << 20
};
static const size_t LARGE_UNIT = (size_t)16 << 20;

static const char *check_parts(const oct_weight_layout *l)
{
    if (l->n_parts < 1 || l->n_parts > OCT_WEIGHT_MAX_PARTS)
        return "the number of parts is not 1..3";
    for (int p = 0; p < l->n_parts; p++) {
        if (l->part_out[p] < 1 || l->part_out[p] > INT64_MAX / 16)
            return "a part has no output channels, or too many";
        if (l->split == OCT_SPLIT_OUT && l->part_out[p] % l->n_slices != 0)
            return "output channels cannot be cut into that many slices";
    }
    if (l->interleave && (l->n_parts != 2 || l->part_out[0] != l->part_out[1]))
        return "only two parts of equal size can be interleaved";
    return NULL;
}

static const char *check_given(const oct_weight_layout *l)
{
    if (l->n_experts < 1)
        return "the number of experts is not positive";
    if (l->n_slices < 1 || l->n_slices > OCT_WEIGHT_MAX_SLICES)
        return "the number of slices is not 1..8";
    if (l->split != OCT_SPLIT_OUT && l->split != OCT_SPLIT_IN)
        return "neither outputs nor inputs are split";
    if (l->n_in < 1 || l->n_in > INT64_MAX / 1024)
        return "there are no inputs, or too many";
    if (l->n_groups < 1 || l->n_in % l->n_groups != 0)
        return "inputs cannot be cut into that many scale groups";
    if (l->split == OCT_SPLIT_IN && l->n_groups % l->n_slices != 0)
        return "scale groups cannot be cut into that many slices";
    return check_parts(l);
}

const char *oct_weight_layout_init(oct_weight_layout *l)
{
    static const char too_large[] = "sizes are too large";
    const char *wrong = check_given(l);
    if (wrong)
        return wrong;
    l->n_out = 0;
    for (int p = 0; p < l->n_parts; p++)
        l->n_out += l->part_out[p];
    bool split_out = l->split == OCT_SPLIT_OUT;
    l->group_in = l->n_in / l->n_groups;
    l->group_quads = (l->group_in + OCT_QUAD - 1) / OCT_QUAD;
    l->unit_out = split_out ? l->n_out / l->n_slices : l->n_out;
    l->unit_groups = split_out ? l->n_groups : l->n_groups / l->n_slices;
    l->n_panels = l->interleave ? (l->unit_out / 2 + HALF - 1) / HALF
                                : (l->unit_out + OCT_PANEL - 1) / OCT_PANEL;
    /* At most (n_in + 3 n_groups) * 64, which check_given keeps below 2^63. */
    size_t group_bytes = (size_t)l->group_quads * QUAD_BYTES;
    size_t total;
    if (__builtin_mul_overflow((size_t)l->unit_groups, group_bytes, &l->panel_bytes) ||
        __builtin_mul_overflow((size_t)l->n_panels, l->panel_bytes, &l->unit_bytes) ||
        l->unit_bytes > SIZE_MAX / 4)
        return too_large;
    l->unit_align = l->unit_bytes > LARGE_UNIT ? LARGE_ALIGN : SMALL_ALIGN;
    l->unit_stride = (l->unit_bytes + l->unit_align - 1) / l->unit_align * l->unit_align;
    /* A group has at least a quad, twice as long as its scales: what fits holds for both. */
    l->scale_bytes = (size_t)(l->n_panels * l->unit_groups) * OCT_PANEL * sizeof(uint16_t);
    l->scale_stride = (l->scale_bytes + SMALL_ALIGN - 1) / SMALL_ALIGN * SMALL_ALIGN;
    if (__builtin_mul_overflow((size_t)l->n_experts, l->unit_stride, &total) ||
        __builtin_mul_overflow(total, (size_t)l->n_slices, &total) || total > PTRDIFF_MAX)
        return too_large;
    return NULL;
}

size_t oct_weight_unit_offset(const oct_weight_layout *l, int64_t expert, int64_t slice)
{
    return l->unit_stride * (size_t)(expert * l->n_slices + slice);
}

size_t oct_weight_scale_offset(const oct_weight_layout *l, int64_t expert, int64_t slice)
{
    return l->scale_stride * (size_t)(expert * l->n_slices + slice);
}

/* Channels of a part that belong to one unit. */
static int64_t part_unit_out(const oct_weight_layout *l, int part)
{
    return l->split == OCT_SPLIT_OUT ? l->part_out[part] / l->n_slices : l->part_out[part];
}

/* First channel of a part that belongs to a slice's unit. */
static int64_t part_first(const oct_weight_layout *l, int part, int64_t slice)
{
    return l->split == OCT_SPLIT_OUT ? slice * part_unit_out(l, part) : 0;
}

bool oct_weight_lane(const oct_weight_layout *l, int64_t slice, int64_t panel, int lane, int *part,
                     int64_t *channel)
{
    int64_t o;
    int p = 0;
    if (l->interleave) {
        p = lane / HALF;
        o = panel * HALF + lane % HALF;
    } else {
        o = panel * OCT_PANEL + lane;
        while (p < l->n_parts - 1 && o >= part_unit_out(l, p))
            o -= part_unit_out(l, p++);
    }
    if (o >= part_unit_out(l, p))
        return false;
    *part = p;
    *channel = part_first(l, p, slice) + o;
    return true;
}

/* Neighbouring lanes of a panel whose sources are neighbouring columns of one part. */
typedef struct lane_run {
    int lane, n, part;
    int64_t channel;
} lane_run;

typedef struct panel_runs {
    int n;      /* runs */
    int filled; /* lanes that have a source */
    lane_run run[OCT_WEIGHT_MAX_PARTS];
} panel_runs;

static panel_runs find_runs(const oct_weight_layout *l, int64_t slice, int64_t panel)
{
    panel_runs r = {.n = 0};
    for (int lane = 0; lane < OCT_PANEL; lane++) {
        int part;
        int64_t channel;
        if (!oct_weight_lane(l, slice, panel, lane, &part, &channel))
            continue;
        r.filled++;
        lane_run *last = &r.run[r.n > 0 ? r.n - 1 : 0];
        if (r.n > 0 && last->part == part && last->lane + last->n == lane)
            last->n++;
        else
            r.run[r.n++] = (lane_run){.lane = lane, .n = 1, .part = part, .channel = channel};
    }
    return r;
}

/* out[4 j + k] = row k, column j, excess 128. */
static inline void pack_quad(const int8_t *r0, const int8_t *r1, const int8_t *r2, const int8_t *r3,
                             int n, uint8_t *restrict out)
{
    for (int j = 0; j < n; j++) {
        out[4 * j + 0] = (uint8_t)r0[j] ^ ZERO;
        out[4 * j + 1] = (uint8_t)r1[j] ^ ZERO;
        out[4 * j + 2] = (uint8_t)r2[j] ^ ZERO;
        out[4 * j + 3] = (uint8_t)r3[j] ^ ZERO;
    }
}

/* One quad of one panel: source rows first .. first + n_rows - 1, n_rows 1..4. */
static void pack_panel_quad(const panel_runs *runs, const oct_weight_source *src, int64_t first,
                            int n_rows, uint8_t *out)
{
    static const int8_t zeros[OCT_PANEL];
    if (runs->filled < OCT_PANEL)
        memset(out, ZERO, QUAD_BYTES);
    for (int i = 0; i < runs->n; i++) {
        const lane_run *run = &runs->run[i];
        const oct_weight_source *s = &src[run->part];
        const int8_t *row[OCT_QUAD];
        for (int k = 0; k < OCT_QUAD; k++)
            row[k] = k < n_rows ? s->w + (first + k) * s->ld + run->channel : zeros;
        uint8_t *to = out + run->lane * OCT_QUAD;
        /* The two usual lengths as constants, so that the loop is unrolled into whole vectors. */
        if (run->n == OCT_PANEL)
            pack_quad(row[0], row[1], row[2], row[3], OCT_PANEL, to);
        else if (run->n == HALF)
            pack_quad(row[0], row[1], row[2], row[3], HALF, to);
        else
            pack_quad(row[0], row[1], row[2], row[3], run->n, to);
    }
}

static void pack_scales(const panel_runs *runs, const oct_weight_source *src, int64_t group,
                        uint16_t *out)
{
    memset(out, 0, OCT_PANEL * sizeof *out);
    for (int i = 0; i < runs->n; i++) {
        const lane_run *run = &runs->run[i];
        const oct_weight_source *s = &src[run->part];
        /* As bytes: the source may be unaligned. */
        const uint8_t *from = (const uint8_t *)s->scales;
        memcpy(out + run->lane, from + (group * s->ld + run->channel) * 2, (size_t)run->n * 2);
    }
}

/* Reads rows of a few panels' width one after the other and writes each panel as a stream. */
static void pack_weights(const oct_weight_layout *l, int64_t slice, const oct_weight_source *src,
                         uint8_t *out)
{
    int64_t first_group = l->split == OCT_SPLIT_IN ? slice * l->unit_groups : 0;
    for (int64_t p0 = 0; p0 < l->n_panels; p0 += BLOCK_PANELS) {
        int n = (int)(l->n_panels - p0 < BLOCK_PANELS ? l->n_panels - p0 : BLOCK_PANELS);
        panel_runs runs[BLOCK_PANELS];
        for (int p = 0; p < n; p++)
            runs[p] = find_runs(l, slice, p0 + p);
        uint8_t *block = out + (size_t)p0 * l->panel_bytes;
        for (int64_t g = 0; g < l->unit_groups; g++) {
            int64_t group_row = (first_group + g) * l->group_in;
            for (int64_t q = 0; q < l->group_quads; q++) {
                int64_t rest = l->group_in - q * OCT_QUAD;
                int n_rows = rest < OCT_QUAD ? (int)rest : OCT_QUAD;
                size_t at = (size_t)(g * l->group_quads + q) * QUAD_BYTES;
                for (int p = 0; p < n; p++)
                    pack_panel_quad(&runs[p], src, group_row + q * OCT_QUAD, n_rows,
                                    block + (size_t)p * l->panel_bytes + at);
            }
        }
    }
    memset(out + l->unit_bytes, 0, l->unit_stride - l->unit_bytes);
}

void oct_q8_pack(const oct_weight_layout *l, int64_t slice, const oct_weight_source *src,
                 uint8_t *weights, uint16_t *scales)
{
    if (weights)
        pack_weights(l, slice, src, weights);
    if (!scales)
        return;
    int64_t first_group = l->split == OCT_SPLIT_IN ? slice * l->unit_groups : 0;
    for (int64_t p = 0; p < l->n_panels; p++) {
        panel_runs runs = find_runs(l, slice, p);
        for (int64_t g = 0; g < l->unit_groups; g++)
            pack_scales(&runs, src, first_group + g, scales + (p * l->unit_groups + g) * OCT_PANEL);
    }
    memset((uint8_t *)scales + l->scale_bytes, 0, l->scale_stride - l->scale_bytes);
}

int8_t oct_q8_weight(const oct_weight_layout *l, const uint8_t *weights, int64_t panel, int lane,
                     int64_t unit_in)
{
    int64_t g = unit_in / l->group_in, i = unit_in % l->group_in;
    size_t at = (size_t)(g * l->group_quads + i / OCT_QUAD) * QUAD_BYTES;
    at += (size_t)(lane * OCT_QUAD + i % OCT_QUAD);
    return (int8_t)(weights[(size_t)panel * l->panel_bytes + at] ^ ZERO);
}

uint16_t oct_q8_scale(const oct_weight_layout *l, const uint16_t *scales, int64_t panel, int lane,
                      int64_t unit_group)
{
    return scales[(panel * l->unit_groups + unit_group) * OCT_PANEL + lane];
}
