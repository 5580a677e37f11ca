/* k_amx_emulated.h: the AMX row's `linear`, compiled for a tile unit in plain C (tile_emulator.h).
 * It needs AVX2, no more. One thread at a time. */
#ifndef OCT_TEST_K_AMX_EMULATED_H
#define OCT_TEST_K_AMX_EMULATED_H

#include <stdint.h>

#include "kernels.h"

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* Instructions executed so far. */
typedef struct tile_counts {
    int64_t configured, released, loads, dots, stores;
} tile_counts;
extern tile_counts emulated_counts;

oct_k_linear_fn emulated_linear_q8, emulated_linear_q4g32, emulated_linear_q4g16;

/* Takes the place of avx512's kernel, for calls of few rows; the test's. */
oct_k_linear_fn emulated_few_rows;

/* The unit alone: configures it and runs one instruction of each kind. A unit that is not content
 * with what it is given raises SIGILL. c[rows of c][columns of c]. */
void emulated_product(const tile_config *config, const void *a, const void *b, int32_t *c);
/* tile_dot before any configuration. */
void emulated_without_configuration(void);

/* From now on this unit does the tile instructions that the CPU has not got, see tile_trap.h. Any
 * other SIGILL goes to `otherwise`, which must not return. */
void emulated_trap(void (*otherwise)(int sig));

#endif
