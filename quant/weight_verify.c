/* weight_verify.c: what verifying units of any type shares, and the comparison of scales. It shares
 * no code with packing. */
#include <string.h>

#include "weight_impl.h"

oct_part_place oct_weight_part_place(const oct_weight_layout *l, int part, int64_t slice)
{
    int64_t cut = l->split == OCT_SPLIT_OUT ? l->n_slices : 1;
    oct_part_place p = {.n = l->part_out[part] / cut, .half = part * OCT_PANEL / 2};
    p.first = cut > 1 ? slice * p.n : 0;
    for (int i = 0; i < part; i++)
        p.base += l->part_out[i] / cut;
    return p;
}

void oct_weight_used_lanes(const oct_weight_layout *l, int64_t slice, bool used[OCT_PANEL])
{
    memset(used, 0, OCT_PANEL * sizeof *used);
    for (int part = 0; part < l->n_parts; part++) {
        oct_part_place p = oct_weight_part_place(l, part, slice);
        int64_t panel, lane;
        for (int64_t c = p.n > OCT_PANEL ? p.n - OCT_PANEL : 0; c < p.n; c++) {
            oct_weight_locate(l, &p, c, &panel, &lane);
            used[lane] |= panel == l->n_panels - 1;
        }
    }
}

static bool part_scales_equal(const oct_weight_layout *l, const oct_part_place *p,
                              const oct_weight_source *s, int64_t first_group,
                              const uint16_t *stored)
{
    const uint8_t *scales = (const uint8_t *)s->scales; /* may be unaligned */
    for (int64_t g = 0; g < l->unit_groups; g++)
        for (int64_t c = 0; c < p->n; c++) {
            int64_t panel, lane;
            oct_weight_locate(l, p, c, &panel, &lane);
            if (memcmp(stored + (panel * l->unit_groups + g) * OCT_PANEL + lane,
                       scales + 2 * ((first_group + g) * s->ld + p->first + c), 2) != 0)
                return false;
        }
    return true;
}

/* Lanes without a source; scales are those of the last panel. */
static bool scale_padding_empty(const oct_weight_layout *l, const uint16_t *scales,
                                const bool *used)
{
    for (int64_t i = 0; i < l->unit_groups * OCT_PANEL; i++)
        if (!used[i % OCT_PANEL] && scales[i] != 0)
            return false;
    return true;
}

static bool bytes_zero(const void *p, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        if (((const uint8_t *)p)[i] != 0)
            return false;
    return true;
}

static bool scales_equal(const oct_weight_layout *l, int64_t slice, const oct_weight_source *src,
                         const uint16_t *scales)
{
    for (int part = 0; part < l->n_parts; part++) {
        oct_part_place p = oct_weight_part_place(l, part, slice);
        if (!part_scales_equal(l, &p, &src[part], oct_weight_first_group(l, slice), scales))
            return false;
    }
    bool used[OCT_PANEL];
    oct_weight_used_lanes(l, slice, used);
    return scale_padding_empty(l, scales + (l->n_panels - 1) * l->unit_groups * OCT_PANEL, used) &&
           bytes_zero(scales, l->scale_bytes, l->scale_stride);
}

bool oct_weight_verify(const oct_weight_layout *l, int64_t slice, const oct_weight_source *src,
                       const uint8_t *weights, const uint16_t *scales)
{
    return (!weights || (oct_weight_types[l->type].verify(l, slice, src, weights) &&
                         bytes_zero(weights, l->unit_bytes, l->unit_stride))) &&
           (!scales || scales_equal(l, slice, src, scales));
}
