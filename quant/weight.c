/* weight.c: layouts of packed matrices, packing and the table of types (see weight.h). */
#include "weight.h"

#include <string.h>

#include "weight_impl.h"

enum {
    HALF = OCT_PANEL / 2, /* channels of each interleaved part in a panel */
    SMALL_ALIGN = 4096,
    LARGE_ALIGN = 2 << 20
};
static const size_t LARGE_UNIT = (size_t)16 << 20;

const oct_weight_type_info oct_weight_types[OCT_WEIGHT_TYPES] = {
#define OCT_WEIGHT_TYPE(NAME, type_name, type_number, digits)            \
    [OCT_WEIGHT_##NAME] = {.name = #type_name,                           \
                           .number = (type_number),                      \
                           .act_digits = (digits),                       \
                           .group_bytes = oct_##type_name##_group_bytes, \
                           .pack = oct_##type_name##_pack,               \
                           .verify = oct_##type_name##_verify,           \
                           .unpack = oct_##type_name##_unpack},
#include "weight_types.inc"
};

bool oct_weight_type_find(uint32_t number, oct_weight_type *type)
{
    for (int i = 0; i < OCT_WEIGHT_TYPES; i++)
        if (oct_weight_types[i].number == number) {
            *type = (oct_weight_type)i;
            return true;
        }
    return false;
}

/* ---- layouts --------------------------------------------------------------------------------- */

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
    if ((unsigned)l->type >= OCT_WEIGHT_TYPES)
        return "there is no such type of weights";
    if (l->n_experts < 1 || l->n_experts > OCT_WEIGHT_MAX_EXPERTS)
        return "the number of experts is not 1..64";
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
    l->group_bytes = oct_weight_types[l->type].group_bytes(l->group_in);
    if (l->group_bytes == 0)
        return "the type of weights has no groups of that many inputs";
    int64_t n_scales; /* of a unit */
    size_t total;
    if (__builtin_mul_overflow((size_t)l->unit_groups, l->group_bytes, &l->panel_bytes) ||
        __builtin_mul_overflow((size_t)l->n_panels, l->panel_bytes, &l->unit_bytes) ||
        l->unit_bytes > SIZE_MAX / 4 ||
        __builtin_mul_overflow(l->n_panels * OCT_PANEL, l->unit_groups, &n_scales) ||
        n_scales > INT64_MAX / 8)
        return too_large;
    l->unit_align = l->unit_bytes > LARGE_UNIT ? LARGE_ALIGN : SMALL_ALIGN;
    l->unit_stride = (l->unit_bytes + l->unit_align - 1) / l->unit_align * l->unit_align;
    l->scale_bytes = (size_t)n_scales * sizeof(uint16_t);
    l->scale_stride = (l->scale_bytes + SMALL_ALIGN - 1) / SMALL_ALIGN * SMALL_ALIGN;
    size_t units = (size_t)(l->n_experts * l->n_slices);
    if (__builtin_mul_overflow(units, l->unit_stride, &total) || total > PTRDIFF_MAX ||
        __builtin_mul_overflow(units, l->scale_stride, &total) || total > PTRDIFF_MAX)
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

/* ---- packing --------------------------------------------------------------------------------- */

oct_panel_runs oct_weight_panel_runs(const oct_weight_layout *l, int64_t slice, int64_t panel)
{
    oct_panel_runs r = {.n = 0};
    for (int lane = 0; lane < OCT_PANEL; lane++) {
        int part;
        int64_t channel;
        if (!oct_weight_lane(l, slice, panel, lane, &part, &channel))
            continue;
        r.filled++;
        oct_lane_run *last = &r.run[r.n > 0 ? r.n - 1 : 0];
        if (r.n > 0 && last->part == part && last->lane + last->n == lane)
            last->n++;
        else
            r.run[r.n++] = (oct_lane_run){.lane = lane, .n = 1, .part = part, .channel = channel};
    }
    return r;
}

static void pack_scales(const oct_panel_runs *runs, const oct_weight_source *src, int64_t group,
                        uint16_t *out)
{
    memset(out, 0, OCT_PANEL * sizeof *out);
    for (int i = 0; i < runs->n; i++) {
        const oct_lane_run *run = &runs->run[i];
        const oct_weight_source *s = &src[run->part];
        /* As bytes: the source may be unaligned. */
        const uint8_t *from = (const uint8_t *)s->scales;
        memcpy(out + run->lane, from + (group * s->ld + run->channel) * 2, (size_t)run->n * 2);
    }
}

void oct_weight_pack(const oct_weight_layout *l, int64_t slice, const oct_weight_source *src,
                     uint8_t *weights, uint16_t *scales)
{
    if (weights) {
        oct_weight_types[l->type].pack(l, slice, src, weights);
        memset(weights + l->unit_bytes, 0, l->unit_stride - l->unit_bytes);
    }
    if (!scales)
        return;
    int64_t first_group = oct_weight_first_group(l, slice);
    for (int64_t p = 0; p < l->n_panels; p++) {
        oct_panel_runs runs = oct_weight_panel_runs(l, slice, p);
        for (int64_t g = 0; g < l->unit_groups; g++)
            pack_scales(&runs, src, first_group + g, scales + (p * l->unit_groups + g) * OCT_PANEL);
    }
    memset((uint8_t *)scales + l->scale_bytes, 0, l->scale_stride - l->scale_bytes);
}

void oct_weight_unpack(const oct_weight_layout *l, const uint8_t *weights, int64_t panel, int lane,
                       int64_t unit_in, int64_t n, int8_t *w)
{
    oct_weight_types[l->type].unpack(l, weights, panel, lane, unit_in, n, w);
}

uint16_t oct_weight_scale(const oct_weight_layout *l, const uint16_t *scales, int64_t panel,
                          int lane, int64_t unit_group)
{
    return scales[(panel * l->unit_groups + unit_group) * OCT_PANEL + lane];
}
