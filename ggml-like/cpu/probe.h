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

/* One arithmetic instruction. */
typedef struct oct_probe {
    const char *name;
    oct_isa needs; /* what the CPU must have, beyond what the row needs */
    int passes16;  /* times it is needed per weight with 16-bit activations; 0: not by `linear` */
    double ops;    /* multiplications and additions of one round */
    uint64_t (*run)(int64_t rounds);
} oct_probe;

/* Reads a span, fetching `ahead` bytes ahead; returns the sum of all 64-bit words (modulo 2^64). */
typedef uint64_t oct_probe_read_fn(const void *p, size_t bytes, size_t ahead);

/* What a kernel row is measured against. It lies beside its loops, in a file that is compiled for
 * their instructions, and the row of the kernel table points to it. A row may share another one's
 * loops, or have none. */
typedef struct oct_probe_set {
    oct_probe_read_fn *read;                 /* as its decode kernel reads; never NULL */
    const oct_probe *peaks[OCT_PROBE_KINDS]; /* NULL: none of this kind */
} oct_probe_set;
extern const oct_probe_set oct_probes__ref;

/* The row's probe of a kind; NULL if it has none or this CPU cannot run it. */
const oct_probe *oct_probe_find(oct_probe_kind kind, const oct_kernels *row);

/* Reads spans one after the other, each shared between the threads in contiguous parts, as decode
 * shares the panels of an expert; every line is fetched `ahead` bytes before it is read. Bytes per
 * second. Which distance is best depends on the machine: try some, and take the fastest. This CPU
 * can run the row; the loop is that of ref where the row has no probes. */
double oct_probe_read(oct_team *team, const oct_kernels *row, size_t ahead,
                      const oct_probe_span *spans, int64_t n_spans);

/* Puts memory that was just written out of all caches, so that reading it reads memory. Does
 * nothing on processors other than x86-64: there, let it be larger than the caches. */
void oct_probe_uncache(const void *p, size_t bytes);

/* Operations per second, measured for about `seconds`. */
double oct_probe_peak(oct_team *team, const oct_probe *p, double seconds);

/* Seconds per barrier when nothing else is done, the mean of n. */
double oct_probe_barrier(oct_team *team, int64_t n);
/* Seconds from oct_team_run until it returns, for a function that does nothing and a team that has
 * gone to sleep: the median of n <= 101. */
double oct_probe_wake(oct_team *team, int n);

#if defined(__x86_64__)
extern const oct_probe_set oct_probes__avx2, oct_probes__avx512, oct_probes__amx;
extern const oct_probe oct_probe_f32__avx512;
oct_probe_read_fn oct_probe_read__avx512;
#endif

#endif
