/* q4_choose.c: which table suits a group of integers. */
#include "q4.h"

#include <limits.h>

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

void oct_q4_chooser_init(oct_q4_chooser *c)
{
    for (int t = 0; t < OCT_Q4_TABLES; t++)
        for (int q = -128, k = 0; q < 128; q++) {
            while (k + 1 < OCT_Q4_VALUES && value_of(t, k + 1) - q < q - value_of(t, k))
                k++;
            const int off = q - value_of(t, k);
            c->nibble[t][q + 128] = (uint8_t)k;
            c->error[t][q + 128] = (uint16_t)(off * off);
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
