/* q8_verify.c: compares a packed unit with its source: every number of the source where it must be,
 * and what is left over for being empty. */
#include <string.h>

#include "q8.h"
#include "weight_impl.h"

enum {
    COLUMNS = 1024, /* compared before going to the next rows, to stay near in memory */
    ZERO = 0x80
};

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
static bool columns_equal(const oct_weight_layout *l, const oct_part_place *p,
                          const oct_weight_source *s, int64_t first_row, int64_t unit_group,
                          int64_t c0, int64_t c1, const uint8_t *unit)
{
    unsigned differs = 0;
    int64_t n_rows;
    for (int64_t i = 0; i < l->group_in; i += n_rows) {
        n_rows = l->group_in - i >= 4 ? 4 : 1;
        const int8_t *row = s->w + (first_row + i) * s->ld + p->first;
        size_t quad = (size_t)unit_group * l->group_bytes + (size_t)(i / 4) * OCT_Q8_QUAD_BYTES +
                      (size_t)(i % 4);
        int64_t panel, lane, run;
        for (int64_t c = c0; c < c1; c += run) {
            run = oct_weight_locate(l, p, c, &panel, &lane);
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

static bool part_equal(const oct_weight_layout *l, const oct_part_place *p,
                       const oct_weight_source *s, int64_t first_group, const uint8_t *unit)
{
    for (int64_t c0 = 0; c0 < p->n; c0 += COLUMNS) {
        int64_t c1 = p->n - c0 < COLUMNS ? p->n : c0 + COLUMNS;
        for (int64_t g = 0; g < l->unit_groups; g++)
            if (!columns_equal(l, p, s, (first_group + g) * l->group_in, g, c0, c1, unit))
                return false;
    }
    return true;
}

/* Lanes without a source in one panel, and inputs missing in each group's last quad. */
static bool panel_padding_empty(const oct_weight_layout *l, const uint8_t *panel, const bool *used)
{
    for (int64_t g = 0; g < l->unit_groups; g++) {
        for (int64_t q = 0; q < l->group_quads; q++) {
            const uint8_t *quad =
                panel + (size_t)g * l->group_bytes + (size_t)q * OCT_Q8_QUAD_BYTES;
            int64_t rest = l->group_in - 4 * q;
            for (int b = 0; b < OCT_Q8_QUAD_BYTES; b++)
                if ((!used[b / 4] || b % 4 >= rest) && quad[b] != ZERO)
                    return false;
        }
    }
    return true;
}

/* The last quad of every group of a panel whose lanes are all used. */
static bool tails_empty(const oct_weight_layout *l, const uint8_t *panel)
{
    for (int64_t g = 0; g < l->unit_groups; g++) {
        const uint8_t *quad = panel + (size_t)(g + 1) * l->group_bytes - OCT_Q8_QUAD_BYTES;
        for (int b = 0; b < OCT_Q8_QUAD_BYTES; b++)
            if (b % 4 >= l->group_in - 4 * (l->group_quads - 1) && quad[b] != ZERO)
                return false;
    }
    return true;
}

bool oct_q8_verify(const oct_weight_layout *l, int64_t slice, const oct_weight_source *src,
                   const uint8_t *weights)
{
    for (int part = 0; part < l->n_parts; part++) {
        oct_part_place p = oct_weight_part_place(l, part, slice);
        if (!part_equal(l, &p, &src[part], oct_weight_first_group(l, slice), weights))
            return false;
    }
    for (int64_t p = 0; p < l->n_panels - 1; p++)
        if (!tails_empty(l, weights + (size_t)p * l->panel_bytes))
            return false;
    bool used[OCT_PANEL];
    oct_weight_used_lanes(l, slice, used);
    return panel_padding_empty(l, weights + (size_t)(l->n_panels - 1) * l->panel_bytes, used);
}
