/* probe.h: what this machine can do at best: the yardsticks that measurements are divided by.
 *
 * Reading is probed with the access pattern of the decode kernels over the very memory that they
 * read; arithmetic with nothing but the instruction in question, on independent accumulators. Every
 * loop's result depends on all of its work and is consumed. Figures are of all threads of a team
 * together. Nothing here can fail; a team belongs to one caller at a time. */
#ifndef OCT_PROBE_H
#define OCT_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels.h"
#include "threads.h"

/* A run of memory: a multiple of 256 bytes, 64-byte aligned. */
typedef struct oct_probe_span {
    const void *data;
    size_t bytes;
} oct_probe_span;

/* Reads spans one after the other, each shared between the threads in contiguous parts, as decode
 * shares the panels of an expert; every line is fetched `ahead` bytes before it is read. Bytes per
 * second. Which distance is best depends on the machine: try some, and take the fastest. */
double oct_probe_read(oct_team *team, oct_isa isa, size_t ahead, const oct_probe_span *spans,
                      int64_t n_spans);

/* One row of the table of arithmetic probes: adding one is adding a row (and its loop, in a file
 * that is compiled for the instruction). */
typedef struct oct_probe {
    const char *name; /* of the instruction */
    oct_probe_kind kind;
    oct_isa isa;  /* kernel row that uses it, and that the CPU must have at least */
    int passes16; /* times it is needed per weight with 16-bit activations */
    double ops;   /* multiplications and additions of one round */
    uint64_t (*run)(int64_t rounds);
    bool (*available)(void); /* what the CPU must have beyond isa; NULL: nothing */
} oct_probe;
extern const oct_probe oct_probes[];
extern const int oct_n_probes;

/* The probe of a kind for a kernel row on this CPU: the row's own, or that of the nearest row
 * below.
 * NULL if there is none. */
const oct_probe *oct_probe_find(oct_probe_kind kind, oct_isa isa);

/* Operations per second, measured for about `seconds`. */
double oct_probe_peak(oct_team *team, const oct_probe *p, double seconds);

/* Seconds per barrier when nothing else is done, the mean of n. */
double oct_probe_barrier(oct_team *team, int64_t n);
/* Seconds from oct_team_run until it returns, for a function that does nothing and a team that has
 * gone to sleep: the median of n <= 101. */
double oct_probe_wake(oct_team *team, int n);

/* The loops, one set per kernel row. Reading returns the sum of all 64-bit words (modulo 2^64). */
typedef uint64_t oct_probe_read_fn(const void *p, size_t bytes, size_t ahead);
#define OCT_PROBE_ROW(isa)                                                     \
    uint64_t oct_probe_read__##isa(const void *p, size_t bytes, size_t ahead); \
    uint64_t oct_probe_int__##isa(int64_t rounds);                             \
    uint64_t oct_probe_f32__##isa(int64_t rounds);
OCT_PROBE_ROW(ref)
OCT_PROBE_ROW(avx2)
OCT_PROBE_ROW(avx512)
uint64_t oct_probe_bf16__avx512(int64_t rounds);
uint64_t oct_probe_int__amx(int64_t rounds);

#endif
