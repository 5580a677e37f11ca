/* tile_unit.h: the AMX instructions that k_amx.c and the probe use, written out. GCC 12's
 * intrinsics do not tell the compiler which memory they read (8 of the 64 bytes of a configuration,
 * nothing of a tile), so that stores to it are moved or dropped; here every access to memory is a
 * barrier to the compiler. Registers are tmm0 to tmm7, given as literal numbers. The tests put
 * functions of these names in the place of this file. */
#ifndef OCT_TILE_UNIT_H
#define OCT_TILE_UNIT_H

#include <stdint.h>

/* What LDTILECFG reads. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* Sets the shapes and zeroes all tiles. */
#define tile_configure(c) __asm__ volatile("ldtilecfg %0" : : "m"(*(c)) : "memory")
/* Back to the initial state: nothing to save when the thread is switched. */
#define tile_release() __asm__ volatile("tilerelease")
#define tile_zero(n) __asm__ volatile("tilezero %%tmm" #n : :)
/* Row r of the tile lies at p + r * stride. */
#define tile_load(n, p, stride)                                       \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #n                  \
                     :                                                \
                     : "r"((const void *)(p)), "r"((int64_t)(stride)) \
                     : "memory")
/* The same of what should not push other lines out of L1. */
#define tile_load_once(n, p, stride)                                  \
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #n                \
                     :                                                \
                     : "r"((const void *)(p)), "r"((int64_t)(stride)) \
                     : "memory")
#define tile_store(n, p, stride)                                \
    __asm__ volatile("tilestored %%tmm" #n ", (%0,%1,1)"        \
                     :                                          \
                     : "r"((void *)(p)), "r"((int64_t)(stride)) \
                     : "memory")
/* c[m][n] += sum over i < 64 of a[m][i] * b[i / 4][4 n + i % 4], a signed and b unsigned bytes. */
#define tile_dot(c, a, b) __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)
/* The same of a unsigned and b signed. */
#define tile_dot_us(c, a, b) __asm__ volatile("tdpbusd %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)

#endif
