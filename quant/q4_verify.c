/* q4_verify.c: compares a packed unit with integers: every number of the source where it must be,
 * and what is left over for being zero. It shares no code with packing. */
#include "q4.h"
#include "weight_impl.h"

/* Bytes and bits of a unit by panel, lane and input, counted anew from q4.h. */
typedef struct strip_at {
    const uint8_t *strip;
    int64_t steps;
    int groups;
} strip_at;

static strip_at strip_of(const oct_weight_layout *l, const uint8_t *unit, int64_t panel, int64_t g,
                         int64_t first)
{
    strip_at s = {.groups = oct_q4_groups(l->type)};
    int64_t inputs = l->group_in - first;
    inputs = inputs < OCT_Q4_STRIP ? inputs : OCT_Q4_STRIP;
    s.steps = (inputs + OCT_Q4_STEP - 1) / OCT_Q4_STEP;
    s.strip = unit + (panel * l->unit_groups + g) * (int64_t)l->group_bytes +
              first / OCT_Q4_STEP * (OCT_PANEL * s.groups + OCT_PANEL * OCT_Q4_STEP / 2);
    return s;
}

static uint8_t index_at(const strip_at *s, int64_t lane, int64_t group)
{
    const int64_t row = (lane / 16 * 8 + lane % 8) * 2 + (lane % 16 >= 8);
    return s->strip[row * s->steps * s->groups + group];
}

static unsigned nibble_at(const strip_at *s, int64_t lane, int64_t input)
{
    const uint8_t *bytes = s->strip + OCT_PANEL * s->steps * s->groups;
    const unsigned both = bytes[(lane / 16 * 8 + lane % 8) * s->steps * OCT_Q4_STEP + input];
    return lane % 16 >= 8 ? both / 16 : both % 16;
}

/* One lane in one strip against n inputs of a column. */
static bool lane_equal(const strip_at *s, int64_t lane, const int8_t *column, int64_t ld, int64_t n)
{
    const int64_t size = OCT_Q4_STEP / s->groups;
    for (int64_t i = 0; i < n; i++)
        if (oct_q4_table[index_at(s, lane, i / size)][nibble_at(s, lane, i)] - 128 !=
            column[i * ld])
            return false;
    return true;
}

/* That nothing is stored for inputs from n on. */
static bool lane_empty(const strip_at *s, int64_t lane, int64_t n)
{
    const int64_t size = OCT_Q4_STEP / s->groups;
    for (int64_t i = n; i < s->steps * OCT_Q4_STEP; i++)
        if (nibble_at(s, lane, i))
            return false;
    for (int64_t g = (n + size - 1) / size; g < s->steps * s->groups; g++)
        if (index_at(s, lane, g))
            return false;
    return true;
}

static int64_t inputs_of(const oct_weight_layout *l, int64_t first)
{
    return l->group_in - first < OCT_Q4_STRIP ? l->group_in - first : OCT_Q4_STRIP;
}

static bool column_equal(const oct_weight_layout *l, const uint8_t *unit, int64_t panel,
                         int64_t lane, const int8_t *column, int64_t ld)
{
    for (int64_t g = 0; g < l->unit_groups; g++)
        for (int64_t i = 0; i < l->group_in; i += OCT_Q4_STRIP) {
            const strip_at s = strip_of(l, unit, panel, g, i);
            if (!lane_equal(&s, lane, column + (g * l->group_in + i) * ld, ld, inputs_of(l, i)) ||
                !lane_empty(&s, lane, inputs_of(l, i)))
                return false;
        }
    return true;
}

static bool verify(const oct_weight_layout *l, int64_t slice, const oct_weight_source *src,
                   const uint8_t *weights)
{
    const int64_t first_row = oct_weight_first_group(l, slice) * l->group_in;
    bool used[OCT_PANEL];
    for (int part = 0; part < l->n_parts; part++) {
        const oct_part_place p = oct_weight_part_place(l, part, slice);
        for (int64_t c = 0; c < p.n; c++) {
            int64_t panel, lane;
            oct_weight_locate(l, &p, c, &panel, &lane);
            const int8_t *column = src[part].w + first_row * src[part].ld + p.first + c;
            if (!column_equal(l, weights, panel, lane, column, src[part].ld))
                return false;
        }
    }
    oct_weight_used_lanes(l, slice, used);
    for (int64_t g = 0; g < l->unit_groups; g++)
        for (int64_t i = 0; i < l->group_in; i += OCT_Q4_STRIP) {
            const strip_at s = strip_of(l, weights, l->n_panels - 1, g, i);
            for (int lane = 0; lane < OCT_PANEL; lane++)
                if (!used[lane] && !lane_empty(&s, lane, 0))
                    return false;
        }
    return true;
}

bool oct_q4g32_verify(const oct_weight_layout *l, int64_t slice, const oct_weight_source *src,
                      const uint8_t *weights)
{
    return verify(l, slice, src, weights);
}

bool oct_q4g16_verify(const oct_weight_layout *l, int64_t slice, const oct_weight_source *src,
                      const uint8_t *weights)
{
    return verify(l, slice, src, weights);
}
