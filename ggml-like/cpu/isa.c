/* isa.c: which kernel row this CPU and operating system can run. Bit numbers: Intel SDM volume 2,
 * CPUID leaves 1 and 7; XCR0: volume 1, chapter 13. Tiles: Linux,
 * Documentation/arch/x86/xstate.rst. */
#include <cpuid.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels.h"

enum { EAX, EBX, ECX, EDX };

#define BIT(n) (UINT32_C(1) << (n))

static const uint32_t LEAF1_ECX_FMA = BIT(12), LEAF1_ECX_OSXSAVE = BIT(27), LEAF1_ECX_AVX = BIT(28),
                      LEAF1_ECX_F16C = BIT(29);
static const uint32_t LEAF7_EBX_AVX2 = BIT(5);
static const uint32_t LEAF7_EBX_AVX512 = BIT(16) | BIT(17) | BIT(30) | BIT(31); /* F DQ BW VL */
static const uint32_t LEAF7_ECX_VNNI = BIT(11);
static const uint32_t LEAF7_EDX_AMX = BIT(24) | BIT(25); /* TILE INT8 */
/* Registers that the operating system saves: XMM and YMM; the ZMM halves, ZMM 16..31, opmasks; the
 * configuration of tiles and their data. */
enum { XCR0_TILE_DATA_BIT = 18 };
static const uint64_t XCR0_YMM = 0x6, XCR0_ZMM = 0xe6, XCR0_TILES = 3 << 17;

static bool has(uint64_t word, uint64_t bits)
{
    return (word & bits) == bits;
}

oct_isa oct_isa_decode(const oct_cpuid *c)
{
    const uint32_t leaf1 = LEAF1_ECX_FMA | LEAF1_ECX_OSXSAVE | LEAF1_ECX_AVX | LEAF1_ECX_F16C;
    if (c->max_leaf < 7 || !has(c->leaf1[ECX], leaf1) || !has(c->leaf7[EBX], LEAF7_EBX_AVX2) ||
        !has(c->xcr0, XCR0_YMM))
        return OCT_ISA_REF;
    if (!has(c->leaf7[EBX], LEAF7_EBX_AVX512) || !has(c->leaf7[ECX], LEAF7_ECX_VNNI) ||
        !has(c->xcr0, XCR0_ZMM))
        return OCT_ISA_AVX2;
    if (!has(c->leaf7[EDX], LEAF7_EDX_AMX) || !has(c->xcr0, XCR0_TILES))
        return OCT_ISA_AVX512;
    return OCT_ISA_AMX;
}

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
    enum { ARCH_REQ_XCOMP_PERM = 0x1023 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XCR0_TILE_DATA_BIT) == 0;
}

oct_isa oct_isa_detect(void)
{
    oct_cpuid c = {.max_leaf = __get_cpuid_max(0, NULL)};
    if (c.max_leaf >= 1)
        __cpuid(1, c.leaf1[EAX], c.leaf1[EBX], c.leaf1[ECX], c.leaf1[EDX]);
    if (c.max_leaf >= 7)
        __cpuid_count(7, 0, c.leaf7[EAX], c.leaf7[EBX], c.leaf7[ECX], c.leaf7[EDX]);
    if (c.leaf1[ECX] & LEAF1_ECX_OSXSAVE)
        c.xcr0 = read_xcr0();
    oct_isa isa = oct_isa_decode(&c);
    return isa == OCT_ISA_AMX && !tiles_granted() ? OCT_ISA_AVX512 : isa;
}

int64_t oct_stream_ahead(void)
{
    /* Measured with AVX-512: Zen 5 reads 5 % faster with one line fetched 4 KiB ahead for every
     * 256 bytes; Zen 4 reads up to 20 % slower so, wherever one stream ends and another begins.
     * With AVX2 on Zen 4, 1 and 2 threads: 93 and 95 % of the read probe with nothing fetched
     * ahead, 86 and 94 % with 4 KiB, 88 and 90 % with 8. Zen 3 has the same family number; it was
     * not measured. */
    enum { SIGNATURE_AMD_EBX = 0x68747541, FAMILY_ZEN_4 = 0x19 }; /* "Auth" */
    uint32_t r[4] = {0};
    __get_cpuid(0, &r[EAX], &r[EBX], &r[ECX], &r[EDX]);
    bool amd = r[EBX] == SIGNATURE_AMD_EBX;
    __get_cpuid(1, &r[EAX], &r[EBX], &r[ECX], &r[EDX]);
    uint32_t family = (r[EAX] >> 8 & 0xf) + (r[EAX] >> 20 & 0xff); /* base and extended */
    return amd && family == FAMILY_ZEN_4 ? 0 : 4096;
}

oct_status oct_isa_choose(const char *name, oct_isa best, oct_isa *isa, oct_error *err)
{
    const char *source = name ? "isa" : "OCTET_ISA";
    name = name ? name : getenv("OCTET_ISA");
    *isa = best;
    if (!name || !*name)
        return OCT_OK;
    if (!oct_isa_parse(name, isa)) {
        char names[OCT_ISA_NAMES];
        oct_isa_names(names);
        return oct_fail(err, OCT_ERR_ARG, "%s: '%s', expected one of %s", source, name, names);
    }
    if (*isa > best)
        return oct_fail(err, OCT_ERR_UNSUPPORTED,
                        "%s: this CPU cannot run %s; the best it can is %s", source, name,
                        oct_kernel_rows[best].name);
    return OCT_OK;
}

bool oct_isa_parse(const char *name, oct_isa *isa)
{
    for (int i = 0; i < OCT_ISA_COUNT; i++) {
        if (strcmp(name, oct_kernel_rows[i].name) == 0) {
            *isa = oct_kernel_rows[i].isa;
            return true;
        }
    }
    return false;
}

void oct_isa_names(char out[OCT_ISA_NAMES])
{
    size_t used = 0;
    for (int i = 0; i < OCT_ISA_COUNT && used < OCT_ISA_NAMES; i++)
        used += (size_t)snprintf(out + used, OCT_ISA_NAMES - used, "%s%s", i ? ", " : "",
                                 oct_kernel_rows[i].name);
}
