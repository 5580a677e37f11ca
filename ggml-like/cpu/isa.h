/* isa.h: instruction sets as flags: what a kernel row needs, what a CPU has. No order among them:
 * a CPU may have AVX-VNNI without AVX-512, or AVX-512 without VNNI. */
#ifndef OCT_ISA_H
#define OCT_ISA_H

#include <stdint.h>

/* A set of instruction sets. On processors other than x86-64 none of these is ever there. */
typedef uint32_t oct_isa;
enum {
    OCT_ISA_AVX2 = 1 << 0,
    OCT_ISA_FMA = 1 << 1,
    OCT_ISA_F16C = 1 << 2,
    OCT_ISA_AVX_VNNI = 1 << 3,
    OCT_ISA_AVX512F = 1 << 4,
    OCT_ISA_AVX512DQ = 1 << 5,
    OCT_ISA_AVX512BW = 1 << 6,
    OCT_ISA_AVX512VL = 1 << 7,
    OCT_ISA_AVX512_VNNI = 1 << 8,
    OCT_ISA_AVX512_BF16 = 1 << 9,
    OCT_ISA_AMX_TILE = 1 << 10,
    OCT_ISA_AMX_INT8 = 1 << 11
};

/* What this CPU and operating system can run. Linux lets a process use tiles only after it has
 * asked; the first call asks where the CPU has them, for the whole process, and without permission
 * AMX is not in the set. The answer of the first call is kept. Thread-safe. */
oct_isa oct_isa_detect(void);

/* Answers of x86's CPUID, registers as {eax, ebx, ecx, edx}. */
typedef struct oct_cpuid {
    uint32_t max_leaf;
    uint32_t leaf1[4], leaf7[4]; /* leaf 7: subleaf 0, whose eax is the number of the last one */
    uint64_t xcr0;               /* 0 if OSXSAVE is off */
    uint32_t leaf7_1[4];         /* leaf 7, subleaf 1 */
} oct_cpuid;

/* The set that such answers stand for, permission for tiles taken as given. Pure. */
oct_isa oct_isa_decode(const oct_cpuid *c);

/* The names of a set, as Linux has them in /proc/cpuinfo: "avx2, fma"; "" if it is empty. Returns
 * out. */
enum { OCT_ISA_NAMES = 160 };
char *oct_isa_names(oct_isa set, char out[OCT_ISA_NAMES]);

/* How many bytes ahead software should fetch a stream of weights on this CPU; 0 where the
 * hardware's prefetchers do better alone. From OCT_STREAM_FAR on every line is fetched twice: so
 * far ahead into L2, and shortly before its use into L1. */
enum { OCT_STREAM_FAR = 16384 };
int64_t oct_stream_ahead(void);

#endif
