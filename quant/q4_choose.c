/* q4_choose.c: which table suits a group of integers. */
#include "q4.h"

#include <limits.h>
#include <stdlib.h>

enum { ZERO = 0x80, FINE = 16 /* magnitudes below have a cell each */ };

static int value_of(int table, int k)
{
    return oct_q4_table[table][k] - ZERO;
}

/* The cell of a magnitude 0..128; the magnitude in a cell's middle. */
static int cell_of(int magnitude)
{
    const int wide = (128 - FINE) / (OCT_Q4_CELLS - FINE);
    if (magnitude < FINE)
        return magnitude < 0 ? 0 : magnitude;
    const int cell = FINE + (magnitude - FINE) / wide;
    return cell < OCT_Q4_CELLS ? cell : OCT_Q4_CELLS - 1;
}

static int middle_of(int cell)
{
    const int wide = (128 - FINE) / (OCT_Q4_CELLS - FINE);
    return cell < FINE ? cell : FINE + (cell - FINE) * wide + wide / 2;
}

/* How unlike a table's reach is to a largest and a least integer. Tables may well end a little
 * inside; one that ends outside wastes its values. */
static int reach_differs(int table, int most, int least)
{
    const int over = value_of(table, OCT_Q4_VALUES - 1) - most;
    const int under = value_of(table, 0) - least;
    return over * over + under * under;
}

static void rank_tables(int most, int least, uint8_t *likely)
{
    int differs[OCT_Q4_TABLES];
    for (int t = 0; t < OCT_Q4_TABLES; t++)
        differs[t] = reach_differs(t, most, least);
    for (int i = 0; i < OCT_Q4_LIKELY; i++) {
        int best = 0;
        for (int t = 1; t < OCT_Q4_TABLES; t++)
            best = differs[t] < differs[best] ? t : best;
        likely[i] = (uint8_t)best;
        differs[best] = INT_MAX;
    }
}

static int reach_of(int table)
{
    return value_of(table, OCT_Q4_VALUES - 1) - value_of(table, 0);
}

/* The tables are in the order of their reach. */
static void find_spans(oct_q4_chooser *c)
{
    int first = 0, end = OCT_Q4_TABLES;
    for (int least = 0; least < 256; least++) {
        while (first + 1 < OCT_Q4_TABLES && 2 * reach_of(first) < least)
            first++;
        c->first[least] = (uint16_t)first;
    }
    for (int most = 255; most >= 0; most--) {
        while (end > 1 && 2 * reach_of(end - 1) > 4 * most + 16)
            end--;
        c->end[most] = (uint16_t)end;
    }
}

void oct_q4_chooser_init(oct_q4_chooser *c)
{
    find_spans(c);
    for (int t = 0; t < OCT_Q4_TABLES; t++)
        for (int q = -128, k = 0; q < 128; q++) {
            while (k + 1 < OCT_Q4_VALUES && value_of(t, k + 1) - q < q - value_of(t, k))
                k++;
            const int off = q - value_of(t, k);
            c->nibble[t][q + 128] = (uint8_t)k;
            c->error[t][q + 128] = (uint16_t)(off * off);
            c->off[t][q + 128] = (uint8_t)(abs(off) < 127 ? abs(off) : 127);
        }
    for (int most = 0; most < OCT_Q4_CELLS; most++)
        for (int least = 0; least < OCT_Q4_CELLS; least++)
            rank_tables(middle_of(most), -middle_of(least), c->likely[most][least]);
}

uint8_t oct_q4_choose(const oct_q4_chooser *c, const int8_t *q, int n, uint8_t *nibble)
{
    int most = 0, least = 0, best = 0;
    uint32_t best_error = UINT32_MAX;
    for (int i = 0; i < n; i++) {
        most = q[i] > most ? q[i] : most;
        least = q[i] < least ? q[i] : least;
    }
    const uint8_t *likely = c->likely[cell_of(most)][cell_of(-least)];
    for (int k = 0; k < OCT_Q4_LIKELY && n > 0; k++) {
        const uint16_t *error = c->error[likely[k]] + 128;
        uint32_t sum = 0;
        for (int i = 0; i < n; i++)
            sum += error[q[i]];
        if (sum < best_error) {
            best_error = sum;
            best = likely[k];
        }
    }
    const uint8_t *nearest = c->nibble[best] + 128;
    for (int i = 0; i < n; i++)
        nibble[i] = nearest[q[i]];
    return (uint8_t)best;
}

uint32_t oct_q4_nearest(const oct_q4_chooser *c, int table, const int8_t *q, int n, uint8_t *nibble,
                        uint32_t *most_sq)
{
    const uint8_t *near = c->nibble[table] + 128;
    uint32_t sum_sq = 0, most = *most_sq;
    for (int i = 0; i < n; i++) {
        const uint8_t k = near[q[i]];
        const int off = value_of(table, k) - q[i];
        const uint32_t square = (uint32_t)(off * off);
        nibble[i] = k;
        sum_sq += square;
        most = square > most ? square : most;
    }
    *most_sq = most;
    return sum_sq;
}

/* ---- sixteen channels ------------------------------------------------------------------------ */

static void span_of(const oct_q4_chooser *c, const uint8_t *quads, int n_quads, int *first,
                    int *end)
{
    int most = 0, least = 255;
    for (int lane = 0; lane < 16; lane++) {
        int hi = ZERO, lo = ZERO; /* zero is in reach */
        for (int i = 0; i < n_quads * OCT_QUAD; i++) {
            const int q =
                quads[i / OCT_QUAD * OCT_PANEL * OCT_QUAD + lane * OCT_QUAD + i % OCT_QUAD];
            hi = q > hi ? q : hi;
            lo = q < lo ? q : lo;
        }
        most = hi - lo > most ? hi - lo : most;
        least = hi - lo < least ? hi - lo : least;
    }
    oct_q4_span(c, most, least, first, end);
}

void oct_q4_choose16(const oct_q4_chooser *c, const uint8_t *quads, int n_quads, uint8_t *index)
{
    int first, end;
    span_of(c, quads, n_quads, &first, &end);
    for (int lane = 0; lane < 16; lane++) {
        uint32_t best = UINT32_MAX;
        for (int t = first; t < end; t++) {
            uint32_t sum = 0;
            for (int k = 0; k < n_quads; k++)
                for (int i = 0; i < OCT_QUAD; i++) {
                    const uint32_t off =
                        c->off[t][quads[k * OCT_PANEL * OCT_QUAD + lane * OCT_QUAD + i]];
                    sum += off * off;
                }
            if (sum < best) {
                best = sum;
                index[lane] = (uint8_t)t;
            }
        }
    }
}
