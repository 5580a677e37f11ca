/* test_isa.c: the choice of a kernel row from CPUID and XCR0, on recorded answers of real CPUs and
 * on answers with single bits taken away. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels.h"

typedef struct recorded {
    const char *name;
    oct_isa isa;
    oct_cpuid id;
} recorded;

/* Leaves 1 and 7 as {eax, ebx, ecx, edx}. */
static const recorded cpus[] = {
    {"no CPUID leaf 7", OCT_ISA_REF, {6, {0, 0, 0x7ffafbbf, 0}, {0, 0, 0, 0}, 7}},
    {"Sandy Bridge", OCT_ISA_REF, {13, {0x206a7, 0, 0x1fbae3ff, 0xbfebfbff}, {0}, 7}},
    {"Skylake client",
     OCT_ISA_AVX2,
     {22, {0x506e3, 0x00100800, 0x7ffafbbf, 0xbfebfbff}, {0, 0x029c6fbf, 0, 0x9c002400}, 0x1f}},
    {"Zen 2",
     OCT_ISA_AVX2,
     {16, {0x840f70, 0x00100800, 0x7ed8320b, 0x178bfbff}, {0, 0x219c91a9, 0x00400004, 0}, 7}},
    {"Skylake server: AVX-512 without VNNI",
     OCT_ISA_AVX2,
     {22, {0x50654, 0, 0x7ffefbff, 0xbfebfbff}, {0, 0xd39ffffb, 0x8, 0x0c000000}, 0xe7}},
    {"Cascade Lake",
     OCT_ISA_AVX512,
     {22, {0x50656, 0x12400800, 0x7ffefbff, 0xbfebfbff}, {0, 0xd39ffffb, 0x808, 0xbc000400}, 0xe7}},
    {"Zen 4",
     OCT_ISA_AVX512,
     {16, {0xa60f12, 0, 0x7ef8320b, 0x178bfbff}, {1, 0xf1bf97a9, 0x00405fce, 0x10000010}, 0xe7}},
    {"Zen 5, guest",
     OCT_ISA_AVX512,
     {28,
      {0xb00f21, 0x01020800, 0xfffa3203, 0x178bfbff},
      {1, 0xf1bf07ab, 0x00405fc6, 0x110},
      0xe7}},
    {"the same, had it tiles",
     OCT_ISA_AMX,
     {28,
      {0xb00f21, 0x01020800, 0xfffa3203, 0x178bfbff},
      {1, 0xf1bf07ab, 0x00405fc6, 0x03000110},
      0x600e7}},
};
enum { CPUS = sizeof cpus / sizeof *cpus };

static void recorded_cpus(void **state)
{
    (void)state;
    for (int i = 0; i < CPUS; i++)
        if (oct_isa_decode(&cpus[i].id) != cpus[i].isa)
            fail_msg("%s: row %d, expected %d", cpus[i].name, oct_isa_decode(&cpus[i].id),
                     cpus[i].isa);
}

/* Every bit that a row needs, taken away from a CPU that has all. */
static void every_bit_counts(void **state)
{
    (void)state;
    const oct_cpuid all = cpus[CPUS - 1].id;
    static const int leaf1_ecx[] = {12, 27, 28, 29}; /* FMA OSXSAVE AVX F16C */
    for (int i = 0; i < 4; i++) {
        oct_cpuid c = all;
        c.leaf1[2] &= ~(1u << leaf1_ecx[i]);
        assert_int_equal(oct_isa_decode(&c), OCT_ISA_REF);
    }
    static const int leaf7_ebx[] = {5, 16, 17, 30, 31}; /* AVX2 F DQ BW VL */
    for (int i = 0; i < 5; i++) {
        oct_cpuid c = all;
        c.leaf7[1] &= ~(1u << leaf7_ebx[i]);
        assert_int_equal(oct_isa_decode(&c), i == 0 ? OCT_ISA_REF : OCT_ISA_AVX2);
    }
    oct_cpuid c = all;
    c.leaf7[2] &= ~(1u << 11); /* VNNI */
    assert_int_equal(oct_isa_decode(&c), OCT_ISA_AVX2);
    for (int bit = 24; bit <= 25; bit++) { /* AMX-TILE, AMX-INT8 */
        c = all;
        c.leaf7[3] &= ~(1u << bit);
        assert_int_equal(oct_isa_decode(&c), OCT_ISA_AVX512);
    }
    /* State that the system does not save: SSE, AVX, opmasks, upper halves, ZMM 16..31, shapes and
     * data of tiles. */
    static const int xcr0[] = {1, 2, 5, 6, 7, 17, 18};
    for (int i = 0; i < 7; i++) {
        c = all;
        c.xcr0 &= ~(UINT64_C(1) << xcr0[i]);
        assert_int_equal(oct_isa_decode(&c), i < 2   ? OCT_ISA_REF
                                             : i < 5 ? OCT_ISA_AVX2
                                                     : OCT_ISA_AVX512);
    }
    c = all;
    c.xcr0 = 0;
    assert_int_equal(oct_isa_decode(&c), OCT_ISA_REF);
    c = all;
    c.max_leaf = 1;
    assert_int_equal(oct_isa_decode(&c), OCT_ISA_REF);
}

/* Whether the kernel's list of this CPU's features names AMX and lets a process have tiles. */
static bool has_amx(void)
{
    char line[16384];
    bool named = false;
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && !named && fgets(line, sizeof line, f))
        named = strncmp(line, "flags", 5) == 0 && strstr(line, " amx_tile") &&
                strstr(line, " amx_int8");
    if (f)
        fclose(f);
    return named && syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

/* What the compiler finds out by its own means (it checks XCR0 as well). */
static void this_cpu(void **state)
{
    (void)state;
    oct_isa isa = oct_isa_detect();
    print_message("    this CPU: %s\n", oct_kernel_rows[isa].name);
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512vnni");
    assert_int_equal(isa, !avx2        ? OCT_ISA_REF
                          : !avx512    ? OCT_ISA_AVX2
                          : !has_amx() ? OCT_ISA_AVX512
                                       : OCT_ISA_AMX);
}

static void names(void **state)
{
    (void)state;
    for (int i = 0; i < OCT_ISA_COUNT; i++) {
        oct_isa isa = OCT_ISA_COUNT;
        assert_int_equal(oct_kernel_rows[i].isa, i);
        assert_true(oct_isa_parse(oct_kernel_rows[i].name, &isa));
        assert_int_equal(isa, i);
    }
    static const char *const bad[] = {"", "AVX2", "avx", "avx5120", "ref ", "amx-int8", "0"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        oct_isa isa;
        assert_false(oct_isa_parse(bad[i], &isa));
    }
    char list[OCT_ISA_NAMES];
    oct_isa_names(list);
    assert_string_equal(list, "ref, avx2, avx512, amx");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_cpus),
        cmocka_unit_test(every_bit_counts),
        cmocka_unit_test(this_cpu),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
