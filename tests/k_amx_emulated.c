/* k_amx_emulated.c: k_amx.c as it is, with the tile unit of tile_emulator.h. */
#include "tile_emulator.h"
#include "tile_trap.h"

#define oct_k_linear_q8__amx emulated_linear_q8
#define oct_k_linear_q4g32__amx emulated_linear_q4g32
#define oct_k_linear_q4g16__amx emulated_linear_q4g16
#define oct_k_linear_q8__avx512 emulated_few_rows
#define oct_k_linear_q4g32__avx512 emulated_few_rows
#define oct_k_linear_q4g16__avx512 emulated_few_rows
#include "k_amx.c" /* NOLINT(bugprone-suspicious-include): that is what is meant */

void emulated_product(const tile_config *config, const void *a, const void *b, int32_t *c)
{
    tile_configure(config);
    tile_zero(0);
    tile_load(1, a, config->row_bytes[1]);
    tile_load(2, b, config->row_bytes[2]);
    tile_dot(0, 1, 2);
    tile_store(0, c, config->row_bytes[0]);
    tile_release();
}

void emulated_without_configuration(void)
{
    tile_dot(0, 1, 2);
}

void emulated_trap(void (*otherwise)(int sig))
{
    struct sigaction a = {.sa_sigaction = trap_on_sigill, .sa_flags = SA_SIGINFO | SA_NODEFER};
    trap_otherwise = otherwise;
    sigaction(SIGILL, &a, NULL);
}
