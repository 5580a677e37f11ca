/* tile_emulator.h: stands in for tile_unit.h: a tile unit in plain C, as strict as a real one. It
 * is written from the instructions' descriptions in the Intel SDM, volume 2 (LDTILECFG, TILELOADD,
 * TDPBSUD, TDPBUSD, TILESTORED, TILERELEASE). What a CPU would answer with #GP or #UD raises SIGILL
 * here, and memory is touched where it would be touched there, so that guard pages catch what they
 * would. */
#ifndef OCT_TILE_UNIT_H
#define OCT_TILE_UNIT_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "k_amx_emulated.h"

enum { TILES = 8, MAX_ROWS = 16, MAX_ROW_BYTES = 64 };

static tile_config unit_config; /* palette 0: not configured */
static uint8_t unit_tile[TILES][MAX_ROWS][MAX_ROW_BYTES];
tile_counts emulated_counts;

static void unit_needs(bool condition)
{
    if (!condition)
        raise(SIGILL);
}

static void unit_needs_tile(int n)
{
    unit_needs(unit_config.palette == 1 && n >= 0 && n < TILES && unit_config.rows[n] > 0 &&
               unit_config.row_bytes[n] > 0);
}

static void tile_configure(const tile_config *c)
{
    unit_needs(c->palette <= 1);
    for (int i = 0; i < 14; i++)
        unit_needs(c->reserved[i] == 0);
    for (int i = 0; i < 16; i++) {
        unit_needs(c->rows[i] <= MAX_ROWS && c->row_bytes[i] <= MAX_ROW_BYTES);
        unit_needs((c->rows[i] == 0) == (c->row_bytes[i] == 0));
        unit_needs(i < TILES || c->rows[i] == 0);
    }
    unit_needs(c->start_row == 0); /* only ever set by an interrupted instruction */
    unit_config = *c;
    memset(unit_tile, 0, sizeof unit_tile);
    emulated_counts.configured++;
}

static void tile_release(void)
{
    memset(&unit_config, 0, sizeof unit_config);
    memset(unit_tile, 0xee, sizeof unit_tile);
    emulated_counts.released++;
}

static void tile_zero(int n)
{
    unit_needs_tile(n);
    memset(unit_tile[n], 0, sizeof unit_tile[n]);
}

static void tile_load(int n, const void *p, int64_t stride)
{
    unit_needs_tile(n);
    memset(unit_tile[n], 0, sizeof unit_tile[n]);
    for (int r = 0; r < unit_config.rows[n]; r++)
        memcpy(unit_tile[n][r], (const uint8_t *)p + r * stride, unit_config.row_bytes[n]);
    emulated_counts.loads++;
}

static void tile_load_once(int n, const void *p, int64_t stride)
{
    tile_load(n, p, stride);
}

static void tile_store(int n, void *p, int64_t stride)
{
    unit_needs_tile(n);
    for (int r = 0; r < unit_config.rows[n]; r++)
        memcpy((uint8_t *)p + r * stride, unit_tile[n][r], unit_config.row_bytes[n]);
    emulated_counts.stores++;
}

/* Element i of a quad. */
static int unit_byte(const uint8_t *quad, int i, bool is_signed)
{
    return is_signed ? (int8_t)quad[i] : quad[i];
}

static void unit_dot(int c, int a, int b, bool a_signed)
{
    unit_needs_tile(c);
    unit_needs_tile(a);
    unit_needs_tile(b);
    const tile_config *t = &unit_config;
    unit_needs(c != a && a != b && c != b);
    unit_needs(t->rows[c] == t->rows[a] && t->row_bytes[c] == t->row_bytes[b]);
    unit_needs(t->row_bytes[a] % 4 == 0 && t->row_bytes[b] % 4 == 0);
    unit_needs(t->row_bytes[a] / 4 == t->rows[b]);
    for (int m = 0; m < t->rows[c]; m++) {
        for (int k = 0; k < t->rows[b]; k++) {
            const uint8_t *x = &unit_tile[a][m][4 * k];
            for (int n = 0; n < t->row_bytes[b] / 4; n++) {
                const uint8_t *w = &unit_tile[b][k][4 * n];
                int32_t sum;
                memcpy(&sum, &unit_tile[c][m][4 * n], 4);
                for (int i = 0; i < 4; i++)
                    sum = (int32_t)((uint32_t)sum + (uint32_t)(unit_byte(x, i, a_signed) *
                                                               unit_byte(w, i, !a_signed)));
                memcpy(&unit_tile[c][m][4 * n], &sum, 4);
            }
        }
    }
    emulated_counts.dots++;
}

static void tile_dot(int c, int a, int b)
{
    unit_dot(c, a, b, true);
}

static void tile_dot_us(int c, int a, int b)
{
    unit_dot(c, a, b, false);
}

#endif
