/* cuda_emulator.h: the CUDA kernels of ggml-like/cuda/ on the host, see cuda_emulation.h. One
 * launch at a time in a process. */
#ifndef OCT_CUDA_EMULATOR_H
#define OCT_CUDA_EMULATOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oct_emulated_kernel {
    const char *name;      /* of the module's function */
    size_t args_bytes;     /* of its one parameter */
    unsigned most_threads; /* of a block */
    void (*call)(const void *args);
} oct_emulated_kernel;

/* NULL: no such kernel. */
const oct_emulated_kernel *oct_emulated_find(const char *name);

/* Runs all blocks; 0, or what went wrong is oct_emulated_error(). */
int oct_emulated_launch(const oct_emulated_kernel *k, const unsigned grid[3],
                        const unsigned block[3], unsigned shared_bytes, const void *args);
const char *oct_emulated_error(void);

/* Order of blocks, warps and lanes from now on; 0: ascending. */
void oct_emulated_seed(uint64_t seed);

/* ---- for tests of the tests ---- */

/* What is done to a kernel's text. */
typedef enum oct_emulated_fault {
    OCT_FAULT_NONE,
    OCT_FAULT_BARRIER,    /* left out */
    OCT_FAULT_GET,        /* reads the next number, or vector, instead */
    OCT_FAULT_PUT,        /* writes it */
    OCT_FAULT_COPY,       /* to the next 16 bytes */
    OCT_FAULT_WAIT,       /* for copies: left out */
    OCT_FAULT_EXCHANGE,   /* lanes 0 and 1 get each other's answer; ballots lack lane 0 */
    OCT_FAULT_THREAD,     /* of each block the last thread takes the index of the one before; and */
    OCT_FAULT_BLOCK,      /* of a launch the last block does not run: the place is the kernel */
    OCT_FAULT_FRAGMENT_A, /* of products of matrices: registers 1 and 2 of a change places, */
    OCT_FAULT_FRAGMENT_B, /* or those of b, */
    OCT_FAULT_FRAGMENT_D, /* or 1 and 2 of d, */
    OCT_FAULT_SIGN,       /* or a is taken as signed */
    OCT_FAULTS
} oct_emulated_fault;

/* At one place, by number, or at all (-1). */
void oct_emulated_spoil(oct_emulated_fault fault, int site);
/* Places that have been passed so far where this fault can be made: their numbers, at most n. */
int oct_emulated_sites(oct_emulated_fault fault, int *site, int n);
void oct_emulated_forget(void); /* as if none had been passed */
/* "file:line", or the kernel's name. */
const char *oct_emulated_place(oct_emulated_fault fault, int site);

#ifdef __cplusplus
}
#endif
#endif
