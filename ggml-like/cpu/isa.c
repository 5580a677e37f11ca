/* isa.c: which instruction sets this CPU and operating system have. Bit numbers: Intel SDM volume
 * 2, CPUID leaves 1 and 7; XCR0: volume 1, chapter 13. Tiles: Linux,
 * Documentation/arch/x86/xstate.rst. */
#include "isa.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

enum { EAX, EBX, ECX, EDX };

/* ---- the table ------------------------------------------------------------------------------- */

/* The words of CPUID that flags are read from. */
enum { LEAF1_ECX, LEAF7_EBX, LEAF7_ECX, LEAF7_EDX, LEAF7_1_EAX, WORDS };

/* Registers that the operating system must save: XMM and YMM; with them the ZMM halves, ZMM 16..31
 * and opmasks; the configuration of tiles and their data. */
enum { XCR0_YMM = 0x6, XCR0_ZMM = 0xe6, XCR0_TILES = 3 << 17 };

static const struct {
    oct_isa flag;
    const char *name;
    int word, bit;
    uint64_t state;
} flags[] = {
    {OCT_ISA_AVX2, "avx2", LEAF7_EBX, 5, XCR0_YMM},
    {OCT_ISA_FMA, "fma", LEAF1_ECX, 12, XCR0_YMM},
    {OCT_ISA_F16C, "f16c", LEAF1_ECX, 29, XCR0_YMM},
    {OCT_ISA_AVX_VNNI, "avx_vnni", LEAF7_1_EAX, 4, XCR0_YMM},
    {OCT_ISA_AVX512F, "avx512f", LEAF7_EBX, 16, XCR0_ZMM},
    {OCT_ISA_AVX512DQ, "avx512dq", LEAF7_EBX, 17, XCR0_ZMM},
    {OCT_ISA_AVX512BW, "avx512bw", LEAF7_EBX, 30, XCR0_ZMM},
    {OCT_ISA_AVX512VL, "avx512vl", LEAF7_EBX, 31, XCR0_ZMM},
    {OCT_ISA_AVX512_VNNI, "avx512_vnni", LEAF7_ECX, 11, XCR0_ZMM},
    {OCT_ISA_AVX512_BF16, "avx512_bf16", LEAF7_1_EAX, 5, XCR0_ZMM},
    {OCT_ISA_AMX_TILE, "amx_tile", LEAF7_EDX, 24, XCR0_TILES},
    {OCT_ISA_AMX_INT8, "amx_int8", LEAF7_EDX, 25, XCR0_TILES},
};
enum { N_FLAGS = sizeof flags / sizeof *flags };

oct_isa oct_isa_decode(const oct_cpuid *c)
{
    const uint32_t osxsave_avx = UINT32_C(3) << 27; /* leaf 1, ECX; without them none of the rest */
    bool leaf7 = c->max_leaf >= 7, leaf7_1 = leaf7 && c->leaf7[EAX] >= 1;
    const uint32_t word[WORDS] = {
        [LEAF1_ECX] = c->leaf1[ECX],
        [LEAF7_EBX] = leaf7 ? c->leaf7[EBX] : 0,
        [LEAF7_ECX] = leaf7 ? c->leaf7[ECX] : 0,
        [LEAF7_EDX] = leaf7 ? c->leaf7[EDX] : 0,
        [LEAF7_1_EAX] = leaf7_1 ? c->leaf7_1[EAX] : 0,
    };
    oct_isa set = 0;
    if ((c->leaf1[ECX] & osxsave_avx) != osxsave_avx)
        return 0;
    for (int i = 0; i < N_FLAGS; i++)
        if (word[flags[i].word] >> flags[i].bit & 1 && (c->xcr0 & flags[i].state) == flags[i].state)
            set |= flags[i].flag;
    return set;
}

char *oct_isa_names(oct_isa set, char out[OCT_ISA_NAMES])
{
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < N_FLAGS; i++)
        if (set & flags[i].flag && used < OCT_ISA_NAMES)
            used += (size_t)snprintf(out + used, OCT_ISA_NAMES - used, "%s%s", used ? ", " : "",
                                     flags[i].name);
    return out;
}

/* ---- this CPU -------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t read_xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* Asks for tiles. Refused by kernels before 5.16, by a filter of system calls, or where a thread
 * has a signal stack too small for their 8 KiB. */
static bool tiles_granted(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XCR0_TILE_DATA_BIT = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XCR0_TILE_DATA_BIT) == 0;
}

static oct_isa ask_cpu(void)
{
    const oct_isa tiles = OCT_ISA_AMX_TILE | OCT_ISA_AMX_INT8;
    oct_cpuid c = {.max_leaf = __get_cpuid_max(0, NULL)};
    if (c.max_leaf >= 1)
        __cpuid(1, c.leaf1[EAX], c.leaf1[EBX], c.leaf1[ECX], c.leaf1[EDX]);
    if (c.max_leaf >= 7) {
        __cpuid_count(7, 0, c.leaf7[EAX], c.leaf7[EBX], c.leaf7[ECX], c.leaf7[EDX]);
        __cpuid_count(7, 1, c.leaf7_1[EAX], c.leaf7_1[EBX], c.leaf7_1[ECX], c.leaf7_1[EDX]);
    }
    if (c.leaf1[ECX] & bit_OSXSAVE)
        c.xcr0 = read_xcr0();
    oct_isa set = oct_isa_decode(&c);
    return set & tiles && !tiles_granted() ? set & ~tiles : set;
}

int64_t oct_stream_ahead(void)
{
    /* Measured with AVX-512: Zen 5 reads 5 % faster with one line fetched 4 KiB ahead for every
     * 256 bytes; Zen 4 reads up to 20 % slower so, wherever one stream ends and another begins.
     * With AVX2 on Zen 4, 1 and 2 threads: 93 and 95 % of the read probe with nothing fetched
     * ahead, 86 and 94 % with 4 KiB, 88 and 90 % with 8. Zen 3 has the same family number; it was
     * not measured.
     *     Intel, Emerald Rapids, 1 and 2 threads, q8 with AVX-512: 97 and 99 % of the probe in two
     * steps, 85 and 84 % with one line of 256 bytes fetched 4 KiB ahead. */
    enum { FAMILY_ZEN_4 = 0x19 };
    uint32_t r[4] = {0};
    __get_cpuid(0, &r[EAX], &r[EBX], &r[ECX], &r[EDX]);
    bool amd = r[EBX] == signature_AMD_ebx;
    __get_cpuid(1, &r[EAX], &r[EBX], &r[ECX], &r[EDX]);
    uint32_t family = (r[EAX] >> 8 & 0xf) + (r[EAX] >> 20 & 0xff); /* base and extended */
    return !amd ? OCT_STREAM_FAR : family == FAMILY_ZEN_4 ? 0 : 4096;
}

#else

static oct_isa ask_cpu(void)
{
    return 0;
}

int64_t oct_stream_ahead(void)
{
    return 4096; /* as on most x86; not measured */
}

#endif

static oct_isa here;

static void detect(void)
{
    here = ask_cpu();
}

oct_isa oct_isa_detect(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, detect);
    return here;
}
