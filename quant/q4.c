/* q4.c: 4 bits that stand for int8: layout, packing, unpacking (see q4.h for the format). */
#include "q4.h"

#include <string.h>

#include "weight_impl.h"

enum {
    ZERO = 0x80, /* weight zero as tables store it */
    STRIP_STEPS = OCT_Q4_STRIP / OCT_Q4_STEP,
    GROUP_MAX = 32
};

_Alignas(64) const uint8_t oct_q4_table[OCT_Q4_TABLES][OCT_Q4_VALUES] = {
#include "q4_table.inc"
};

static size_t group_bytes(int64_t group_in, int groups)
{
    return (size_t)oct_q4_strip_bytes(group_in, groups);
}

size_t oct_q4g32_group_bytes(int64_t group_in)
{
    return group_bytes(group_in, 2);
}

size_t oct_q4g16_group_bytes(int64_t group_in)
{
    return group_bytes(group_in, 4);
}

/* ---- places ---------------------------------------------------------------------------------- */

/* Of one lane in one strip. */
typedef struct lane_place {
    size_t index;  /* offset in the unit: its first index */
    size_t nibble; /* and the byte of its first input */
    int shift;     /* of its nibbles in the bytes */
} lane_place;

/* The strip that an input of a group lies in. */
static lane_place place_of(const oct_weight_layout *l, int64_t panel, int lane, int64_t group,
                           int64_t in)
{
    const int groups = oct_q4_groups(l->type);
    const int64_t steps_all = (l->group_in + OCT_Q4_STEP - 1) / OCT_Q4_STEP;
    const int64_t first = in / OCT_Q4_STRIP * STRIP_STEPS;
    const int64_t steps = steps_all - first < STRIP_STEPS ? steps_all - first : STRIP_STEPS;
    const size_t pair = (size_t)(lane / 16 * 8 + lane % 8), second = (size_t)(lane / 8 % 2);
    const size_t per_lane = (size_t)steps * (size_t)groups;
    const size_t strip = (size_t)panel * l->panel_bytes + (size_t)group * l->group_bytes +
                         (size_t)oct_q4_strip_bytes(first * OCT_Q4_STEP, groups);
    return (lane_place){.index = strip + (2 * pair + second) * per_lane,
                        .nibble = strip + OCT_PANEL * per_lane + pair * (size_t)steps * OCT_Q4_STEP,
                        .shift = second ? 4 : 0};
}

void oct_q4_put(const oct_weight_layout *l, uint8_t *weights, int64_t panel, int lane,
                int64_t unit_in, int n, uint8_t index, const uint8_t *nibble)
{
    const int64_t in = unit_in % l->group_in;
    const lane_place at = place_of(l, panel, lane, unit_in / l->group_in, in);
    const int64_t size = OCT_Q4_STEP / oct_q4_groups(l->type);
    uint8_t *bytes = weights + at.nibble + in % OCT_Q4_STRIP;
    const unsigned other = 0xf0u >> at.shift;
    weights[at.index + (size_t)(in % OCT_Q4_STRIP / size)] = index;
    int i = 0;
    for (; i + 8 <= n; i += 8) { /* eight at once: a nibble does not leave its byte */
        uint64_t eight, in_them;
        memcpy(&eight, nibble + i, sizeof eight);
        memcpy(&in_them, bytes + i, sizeof in_them);
        in_them = (in_them & other * 0x0101010101010101u) | eight << at.shift;
        memcpy(bytes + i, &in_them, sizeof in_them);
    }
    for (; i < n; i++)
        bytes[i] = (uint8_t)((bytes[i] & other) | (unsigned)nibble[i] << at.shift);
}

/* ---- unpacking ------------------------------------------------------------------------------- */

/* Inputs in .. in + n - 1 of a group, which one strip holds. */
static void unpack_strip(const oct_weight_layout *l, const uint8_t *weights, const lane_place *at,
                         int64_t in, int64_t n, int8_t *w)
{
    const int64_t size = OCT_Q4_STEP / oct_q4_groups(l->type);
    const uint8_t *bytes = weights + at->nibble;
    for (int64_t i = in % OCT_Q4_STRIP, end = i + n; i < end;) {
        const uint8_t *table = oct_q4_table[weights[at->index + (size_t)(i / size)]];
        const int64_t stop = (i / size + 1) * size < end ? (i / size + 1) * size : end;
        for (; i < stop; i++)
            *w++ = (int8_t)(table[bytes[i] >> at->shift & 15] ^ ZERO);
    }
}

static void unpack(const oct_weight_layout *l, const uint8_t *weights, int64_t panel, int lane,
                   int64_t unit_in, int64_t n, int8_t *w)
{
    int64_t group = unit_in / l->group_in, in = unit_in % l->group_in;
    for (int64_t run; n > 0; n -= run, w += run, in += run) {
        if (in == l->group_in) {
            in = 0;
            group++;
        }
        run = OCT_Q4_STRIP - in % OCT_Q4_STRIP;
        run = run < l->group_in - in ? run : l->group_in - in;
        run = run < n ? run : n;
        const lane_place at = place_of(l, panel, lane, group, in);
        unpack_strip(l, weights, &at, in, run, w);
    }
}

void oct_q4g32_unpack(const oct_weight_layout *l, const uint8_t *weights, int64_t panel, int lane,
                      int64_t unit_in, int64_t n, int8_t *w)
{
    unpack(l, weights, panel, lane, unit_in, n, w);
}

void oct_q4g16_unpack(const oct_weight_layout *l, const uint8_t *weights, int64_t panel, int lane,
                      int64_t unit_in, int64_t n, int8_t *w)
{
    unpack(l, weights, panel, lane, unit_in, n, w);
}

/* ---- packing --------------------------------------------------------------------------------- */

/* All indices of one lane; the source's column of the lane, its first row the unit's. */
static void pack_lane(const oct_q4_chooser *c, const oct_weight_layout *l, const int8_t *column,
                      int64_t ld, int64_t panel, int lane, uint8_t *weights)
{
    const int64_t size = OCT_Q4_STEP / oct_q4_groups(l->type);
    for (int64_t g = 0; g < l->unit_groups; g++)
        for (int64_t i = 0; i < l->group_in; i += size) {
            const int64_t first = g * l->group_in + i;
            const int n = (int)(l->group_in - i < size ? l->group_in - i : size);
            int8_t q[GROUP_MAX];
            uint8_t nibble[GROUP_MAX];
            for (int k = 0; k < n; k++)
                q[k] = column[(first + k) * ld];
            const uint8_t index = oct_q4_choose(c, q, n, nibble);
            oct_q4_put(l, weights, panel, lane, first, n, index, nibble);
        }
}

static void pack(const oct_weight_layout *l, int64_t slice, const oct_weight_source *src,
                 uint8_t *weights)
{
    const int64_t first_row = oct_weight_first_group(l, slice) * l->group_in;
    oct_q4_chooser c;
    oct_q4_chooser_init(&c);
    memset(weights, 0, l->unit_bytes);
    for (int64_t p = 0; p < l->n_panels; p++) {
        const oct_panel_runs runs = oct_weight_panel_runs(l, slice, p);
        for (int r = 0; r < runs.n; r++) {
            const oct_weight_source *s = &src[runs.run[r].part];
            const int8_t *from = s->w + first_row * s->ld + runs.run[r].channel;
            for (int k = 0; k < runs.run[r].n; k++)
                pack_lane(&c, l, from + k, s->ld, p, runs.run[r].lane + k, weights);
        }
    }
}

void oct_q4g32_pack(const oct_weight_layout *l, int64_t slice, const oct_weight_source *src,
                    uint8_t *weights)
{
    pack(l, slice, src, weights);
}

void oct_q4g16_pack(const oct_weight_layout *l, int64_t slice, const oct_weight_source *src,
                    uint8_t *weights)
{
    pack(l, slice, src, weights);
}
