/* k_probe_amx.c: probe loop of the AMX row: the tile unit alone, six independent sums. A product is
 * begun every 16 cycles and takes 52, so that four would do. */
#include "probe.h"
#include "tile_unit.h"

static uint64_t multiply_tiles(int64_t rounds)
{
    static const tile_config config = {
        .palette = 1,
        .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {16, 16, 16, 16, 16, 16, 16, 16},
    };
    int8_t digits[16][64];
    int32_t sums[6][16][16];
    for (int i = 0; i < 16 * 64; i++)
        digits[i / 64][i % 64] = (int8_t)(i * 37 % 251 - 125);
    tile_configure(&config);
    tile_load(6, digits, 64);
    tile_load(7, digits, 64);
    for (int64_t r = 0; r < rounds; r++) {
        tile_dot(0, 6, 7);
        tile_dot(1, 6, 7);
        tile_dot(2, 6, 7);
        tile_dot(3, 6, 7);
        tile_dot(4, 6, 7);
        tile_dot(5, 6, 7);
    }
    tile_store(0, sums[0], 64);
    tile_store(1, sums[1], 64);
    tile_store(2, sums[2], 64);
    tile_store(3, sums[3], 64);
    tile_store(4, sums[4], 64);
    tile_store(5, sums[5], 64);
    tile_release();
    uint64_t sum = 0;
    for (int i = 0; i < 6; i++)
        sum += (uint64_t)(uint32_t)sums[i][0][0] + (uint64_t)(uint32_t)sums[i][1][2];
    return sum;
}

static const oct_probe tiles = {"tdpbsud (tiles)", 0, 2, 6 * 16 * 16 * 64 * 2, multiply_tiles};
const oct_probe_set oct_probes__amx = {oct_probe_read__avx512,
                                       {&tiles, &oct_probe_f32__avx512, NULL}};
