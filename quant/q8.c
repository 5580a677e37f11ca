/* q8.c: int8 as it is: packing of units (see q8.h for the format). */
#include "q8.h"

#include <string.h>

#include "weight_impl.h"

enum {
    HALF = OCT_PANEL / 2, /* channels of each interleaved part in a panel */
    ZERO = 0x80,          /* weight zero as stored */
    BLOCK_PANELS = 16     /* panels filled side by side: as many streams of writes */
};

size_t oct_q8_group_bytes(int64_t group_in)
{
    return (size_t)((group_in + OCT_QUAD - 1) / OCT_QUAD) * OCT_Q8_QUAD_BYTES;
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
static void pack_panel_quad(const oct_panel_runs *runs, const oct_weight_source *src, int64_t first,
                            int n_rows, uint8_t *out)
{
    static const int8_t zeros[OCT_PANEL];
    if (runs->filled < OCT_PANEL)
        memset(out, ZERO, OCT_Q8_QUAD_BYTES);
    for (int i = 0; i < runs->n; i++) {
        const oct_lane_run *run = &runs->run[i];
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

/* Reads rows of a few panels' width one after the other and writes each panel as a stream. */
void oct_q8_pack(const oct_weight_layout *l, int64_t slice, const oct_weight_source *src,
                 uint8_t *weights)
{
    int64_t first_group = oct_weight_first_group(l, slice);
    for (int64_t p0 = 0; p0 < l->n_panels; p0 += BLOCK_PANELS) {
        int n = (int)(l->n_panels - p0 < BLOCK_PANELS ? l->n_panels - p0 : BLOCK_PANELS);
        oct_panel_runs runs[BLOCK_PANELS];
        for (int p = 0; p < n; p++)
            runs[p] = oct_weight_panel_runs(l, slice, p0 + p);
        uint8_t *block = weights + (size_t)p0 * l->panel_bytes;
        for (int64_t g = 0; g < l->unit_groups; g++) {
            int64_t group_row = (first_group + g) * l->group_in;
            for (int64_t q = 0; q < l->group_quads; q++) {
                int64_t rest = l->group_in - q * OCT_QUAD;
                int n_rows = rest < OCT_QUAD ? (int)rest : OCT_QUAD;
                size_t at = (size_t)g * l->group_bytes + (size_t)q * OCT_Q8_QUAD_BYTES;
                for (int p = 0; p < n; p++)
                    pack_panel_quad(&runs[p], src, group_row + q * OCT_QUAD, n_rows,
                                    block + (size_t)p * l->panel_bytes + at);
            }
        }
    }
}

void oct_q8_clear(const oct_weight_layout *l, uint8_t *weights)
{
    memset(weights, ZERO, l->unit_bytes);
}

void oct_q8_put(const oct_weight_layout *l, uint8_t *weights, int64_t panel, int lane,
                const int8_t *q)
{
    uint8_t *group = weights + (size_t)panel * l->panel_bytes + lane * OCT_QUAD;
    for (int64_t g = 0; g < l->unit_groups; g++, group += l->group_bytes)
        for (int64_t i = 0; i < l->group_in; i++)
            group[i / OCT_QUAD * OCT_Q8_QUAD_BYTES + i % OCT_QUAD] = (uint8_t)*q++ ^ ZERO;
}

/* Inputs first .. first + n - 1 of a group, from the bytes of one lane: quads of whole words, then
 * single bytes. */
static void unpack_group(const uint8_t *group, int64_t first, int64_t n, int8_t *w)
{
    int64_t i = first, end = first + n;
    for (; i < end && i % OCT_QUAD != 0; i++)
        *w++ = (int8_t)(group[i / OCT_QUAD * OCT_Q8_QUAD_BYTES + i % OCT_QUAD] ^ ZERO);
    for (const uint8_t *quad = group + i / OCT_QUAD * OCT_Q8_QUAD_BYTES; i + OCT_QUAD <= end;
         i += OCT_QUAD, w += OCT_QUAD, quad += OCT_Q8_QUAD_BYTES) {
        uint32_t four;
        memcpy(&four, quad, sizeof four);
        four ^= 0x01010101u * ZERO;
        memcpy(w, &four, sizeof four);
    }
    for (; i < end; i++)
        *w++ = (int8_t)(group[i / OCT_QUAD * OCT_Q8_QUAD_BYTES + i % OCT_QUAD] ^ ZERO);
}

void oct_q8_unpack(const oct_weight_layout *l, const uint8_t *weights, int64_t panel, int lane,
                   int64_t unit_in, int64_t n, int8_t *w)
{
    const uint8_t *group = weights + (size_t)panel * l->panel_bytes +
                           (size_t)(unit_in / l->group_in) * l->group_bytes + lane * OCT_QUAD;
    int64_t i = unit_in % l->group_in;
    for (int64_t run; n > 0; n -= run, w += run, group += l->group_bytes, i = 0) {
        run = l->group_in - i < n ? l->group_in - i : n;
        unpack_group(group, i, run, w);
    }
}
