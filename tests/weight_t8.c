/* weight_t8.c: a type of weights that no program has, to see that nothing but a type's own file
 * knows how its integers are stored. A group is 32 bytes of 0x5a, then [group_in][64 channels]
 * in two's complement, then bytes of 0x5a up to a multiple of 64. There are no groups of 17
 * inputs. */
#include <string.h>

#include "weight_impl.h"

enum { HEAD = 32, FILL = 0x5a };

size_t oct_t8_group_bytes(int64_t group_in)
{
    return group_in == 17 ? 0 : (size_t)(HEAD + group_in * OCT_PANEL + 63) / 64 * 64;
}

void oct_t8_pack(const oct_weight_layout *l, int64_t slice, const oct_weight_source *src,
                 uint8_t *weights)
{
    int64_t first_row = oct_weight_first_group(l, slice) * l->group_in;
    memset(weights, FILL, l->unit_bytes);
    for (int64_t p = 0; p < l->n_panels; p++) {
        const oct_panel_runs runs = oct_weight_panel_runs(l, slice, p);
        for (int64_t i = 0; i < l->unit_groups * l->group_in; i++) {
            uint8_t *row = weights + (size_t)p * l->panel_bytes +
                           (size_t)(i / l->group_in) * l->group_bytes + HEAD +
                           i % l->group_in * OCT_PANEL;
            memset(row, 0, OCT_PANEL);
            for (int r = 0; r < runs.n; r++) {
                const oct_weight_source *s = &src[runs.run[r].part];
                memcpy(row + runs.run[r].lane, s->w + (first_row + i) * s->ld + runs.run[r].channel,
                       (size_t)runs.run[r].n);
            }
        }
    }
}

static const uint8_t *place(const oct_weight_layout *l, const uint8_t *weights, int64_t panel,
                            int64_t lane, int64_t i)
{
    return weights + (size_t)panel * l->panel_bytes + (size_t)(i / l->group_in) * l->group_bytes +
           HEAD + i % l->group_in * OCT_PANEL + lane;
}

/* The source's numbers, lanes without a channel, then what lies between. */
bool oct_t8_verify(const oct_weight_layout *l, int64_t slice, const oct_weight_source *src,
                   const uint8_t *weights)
{
    int64_t first_row = oct_weight_first_group(l, slice) * l->group_in;
    int64_t unit_in = l->unit_groups * l->group_in, panel, lane;
    bool used[OCT_PANEL];
    oct_weight_used_lanes(l, slice, used);
    for (int part = 0; part < l->n_parts; part++) {
        const oct_part_place p = oct_weight_part_place(l, part, slice);
        const oct_weight_source *s = &src[part];
        for (int64_t c = 0; c < p.n; c++) {
            oct_weight_locate(l, &p, c, &panel, &lane);
            for (int64_t i = 0; i < unit_in; i++)
                if ((int8_t)*place(l, weights, panel, lane, i) !=
                    s->w[(first_row + i) * s->ld + p.first + c])
                    return false;
        }
    }
    for (lane = 0; lane < OCT_PANEL; lane++)
        for (int64_t i = 0; !used[lane] && i < unit_in; i++)
            if (*place(l, weights, l->n_panels - 1, lane, i))
                return false;
    for (size_t at = 0; at < l->unit_bytes; at++) {
        size_t in_group = at % l->group_bytes;
        if ((in_group < HEAD || in_group >= HEAD + (size_t)l->group_in * OCT_PANEL) &&
            weights[at] != FILL)
            return false;
    }
    return true;
}

void oct_t8_unpack(const oct_weight_layout *l, const uint8_t *weights, int64_t panel, int lane,
                   int64_t unit_in, int64_t n, int8_t *w)
{
    for (int64_t i = 0; i < n; i++)
        w[i] = (int8_t)*place(l, weights, panel, lane, unit_in + i);
}
