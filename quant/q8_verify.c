/* q8_verify.c: compares a packed unit with its source. It shares no code with oct_q8_pack: packing
 * asks for every place of the unit what belongs there, this asks for every number of the source
 * where it must be, and checks what is left over for being empty. */
#include <string.h>

#include "q8.h"

enum {
    COLUMNS = 1024, /* compared before going to the next rows, to stay near in memory */
    LANES = OCT_PANEL,
    QUAD_BYTES = OCT_PANEL * OCT_QUAD,
    ZERO = 0x80
};

/* Where the columns of one part go. */
typedef struct part_place {
    int64_t n, first; /* columns of the unit, first one in the source */
    int64_t base;     /* unit channel of the first, if parts follow each other */
    int half;         /* lane of the first, if parts are interleaved */
} part_place;

static part_place place_part(const oct_weight_layout *l, int part, int64_t slice)
{
    int64_t cut = l->split == OCT_SPLIT_OUT ? l->n_slices : 1;
    part_place p = {.n = l->part_out[part] / cut, .half = part * LANES / 2};
    p.first = cut > 1 ? slice * p.n : 0;
    for (int i = 0; i < part; i++)
        p.base += l->part_out[i] / cut;
    return p;
}

/* Panel and lane of column c of the part; returns how many columns follow in the same panel. */
static int64_t locate(const oct_weight_layout *l, const part_place *p, int64_t c, int64_t *panel,
                      int64_t *lane)
{
    int64_t width = l->interleave ? LANES / 2 : LANES;
    int64_t o = l->interleave ? c : p->base + c;
    *panel = o / width;
    *lane = o % width + (l->interleave ? p->half : 0);
    int64_t run = width - o % width;
    return run < p->n - c ? run : p->n - c;
}

/* Differences of n stored bytes, four apart, from a row of the source. */
static unsigned row_differs(const uint8_t *stored, const int8_t *row, int64_t n)
{
    unsigned d = 0;
    for (int64_t j = 0; j < n; j++)
        d |= (unsigned)(stored[4 * j] ^ ZERO ^ (uint8_t)row[j]);
    return d & 0xffu;
}

static unsigned quad_differs(const uint8_t *restrict stored, const int8_t *r0, const int8_t *r1,
                             const int8_t *r2, const int8_t *r3, int64_t n)
{
    uint8_t d = 0;
    for (int64_t j = 0; j < n; j++) {
        uint8_t d0 = (uint8_t)(stored[4 * j + 0] ^ (uint8_t)r0[j] ^ ZERO);
        uint8_t d1 = (uint8_t)(stored[4 * j + 1] ^ (uint8_t)r1[j] ^ ZERO);
        uint8_t d2 = (uint8_t)(stored[4 * j + 2] ^ (uint8_t)r2[j] ^ ZERO);
        uint8_t d3 = (uint8_t)(stored[4 * j + 3] ^ (uint8_t)r3[j] ^ ZERO);
        d = (uint8_t)(d | d0 | d1 | d2 | d3);
    }
    return d;
}

/* Columns c0 .. c1 - 1 of one part, all rows of one group. */
static bool columns_equal(const oct_weight_layout *l, const part_place *p,
                          const oct_weight_source *s, int64_t first_row, int64_t unit_group,
                          int64_t c0, int64_t c1, const uint8_t *unit)
{
    unsigned differs = 0;
    int64_t n_rows;
    for (int64_t i = 0; i < l->group_in; i += n_rows) {
        n_rows = l->group_in - i >= 4 ? 4 : 1;
        const int8_t *row = s->w + (first_row + i) * s->ld + p->first;
        size_t quad = (size_t)(unit_group * l->group_quads + i / 4) * QUAD_BYTES + (size_t)(i % 4);
        int64_t panel, lane, run;
        for (int64_t c = c0; c < c1; c += run) {
            run = locate(l, p, c, &panel, &lane);
            run = run < c1 - c ? run : c1 - c;
            const uint8_t *stored = unit + (size_t)panel * l->panel_bytes + quad + lane * 4;
            if (n_rows == 4)
                differs |= quad_differs(stored, row + c, row + s->ld + c, row + 2 * s->ld + c,
                                        row + 3 * s->ld + c, run);
            else
                differs |= row_differs(stored, row + c, run);
        }
        if (differs)
            return false;
    }
    return true;
}

static bool part_equal(const oct_weight_layout *l, const part_place *p, const oct_weight_source *s,
                       int64_t first_group, const uint8_t *unit)
{
    for (int64_t c0 = 0; c0 < p->n; c0 += COLUMNS) {
        int64_t c1 = p->n - c0 < COLUMNS ? p->n : c0 + COLUMNS;
        for (int64_t g = 0; g < l->unit_groups; g++)
            if (!columns_equal(l, p, s, (first_group + g) * l->group_in, g, c0, c1, unit))
                return false;
    }
    return true;
}

static bool part_scales_equal(const oct_weight_layout *l, const part_place *p,
                              const oct_weight_source *s, int64_t first_group,
                              const uint16_t *stored)
{
    const uint8_t *scales = (const uint8_t *)s->scales; /* may be unaligned */
    for (int64_t g = 0; g < l->unit_groups; g++)
        for (int64_t c = 0; c < p->n; c++) {
            int64_t panel, lane;
            locate(l, p, c, &panel, &lane);
            if (memcmp(stored + (panel * l->unit_groups + g) * LANES + lane,
                       scales + 2 * ((first_group + g) * s->ld + p->first + c), 2) != 0)
                return false;
        }
    return true;
}

/* Lanes without a source in one panel, and inputs missing in each group's last quad. */
static bool panel_padding_empty(const oct_weight_layout *l, const uint8_t *panel, const bool *used)
{
    for (int64_t g = 0; g < l->unit_groups; g++) {
        for (int64_t q = 0; q < l->group_quads; q++) {
            const uint8_t *quad = panel + (size_t)(g * l->group_quads + q) * QUAD_BYTES;
            int64_t rest = l->group_in - 4 * q;
            for (int b = 0; b < QUAD_BYTES; b++)
                if ((!used[b / 4] || b % 4 >= rest) && quad[b] != ZERO)
                    return false;
        }
    }
    return true;
}

/* The same lanes' scales; scales are those of the panel. */
static bool scale_padding_empty(const oct_weight_layout *l, const uint16_t *scales,
                                const bool *used)
{
    for (int64_t i = 0; i < l->unit_groups * LANES; i++)
        if (!used[i % LANES] && scales[i] != 0)
            return false;
    return true;
}

/* The last quad of every group of a panel whose lanes are all used. */
static bool tails_empty(const oct_weight_layout *l, const uint8_t *panel)
{
    for (int64_t g = 0; g < l->unit_groups; g++) {
        const uint8_t *quad = panel + (size_t)((g + 1) * l->group_quads - 1) * QUAD_BYTES;
        for (int b = 0; b < QUAD_BYTES; b++)
            if (b % 4 >= l->group_in - 4 * (l->group_quads - 1) && quad[b] != ZERO)
                return false;
    }
    return true;
}

static bool bytes_zero(const void *p, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        if (((const uint8_t *)p)[i] != 0)
            return false;
    return true;
}

/* What no part of the source fills; used: lanes of the last panel that have one. */
static bool padding_empty(const oct_weight_layout *l, const uint8_t *unit, const bool *used)
{
    for (int64_t p = 0; p < l->n_panels - 1; p++)
        if (!tails_empty(l, unit + (size_t)p * l->panel_bytes))
            return false;
    return panel_padding_empty(l, unit + (size_t)(l->n_panels - 1) * l->panel_bytes, used) &&
           bytes_zero(unit, l->unit_bytes, l->unit_stride);
}

bool oct_q8_verify(const oct_weight_layout *l, int64_t slice, const oct_weight_source *src,
                   const uint8_t *weights, const uint16_t *scales)
{
    int64_t first_group = l->split == OCT_SPLIT_IN ? slice * l->unit_groups : 0;
    /* Only the last panel can have lanes without a source. */
    bool used[LANES] = {false};
    for (int part = 0; part < l->n_parts; part++) {
        part_place p = place_part(l, part, slice);
        if ((weights && !part_equal(l, &p, &src[part], first_group, weights)) ||
            (scales && !part_scales_equal(l, &p, &src[part], first_group, scales)))
            return false;
        int64_t panel, lane;
        for (int64_t c = p.n > LANES ? p.n - LANES : 0; c < p.n; c++) {
            locate(l, &p, c, &panel, &lane);
            used[lane] |= panel == l->n_panels - 1;
        }
    }
    if (weights && !padding_empty(l, weights, used))
        return false;
    const int64_t last = (l->n_panels - 1) * l->unit_groups * LANES;
    return !scales || (scale_padding_empty(l, scales + last, used) &&
                       bytes_zero(scales, l->scale_bytes, l->scale_stride));
}
