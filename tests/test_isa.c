/* test_isa.c: instruction sets from CPUID and XCR0, on recorded answers of real CPUs and on answers
 * with single bits taken away; and the choice of a kernel row for them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels.h"

enum {
    AVX2 = OCT_ISA_AVX2 | OCT_ISA_FMA | OCT_ISA_F16C,
    AVX512 = AVX2 | OCT_ISA_AVX512F | OCT_ISA_AVX512DQ | OCT_ISA_AVX512BW | OCT_ISA_AVX512VL,
    VNNI = AVX512 | OCT_ISA_AVX512_VNNI,
    AMX = OCT_ISA_AMX_TILE | OCT_ISA_AMX_INT8,
};

/* The x86 rows, and two that Octet does not have: one for CPUs with AVX-VNNI and without AVX-512,
 * which is better than avx2 and worse than avx512; one for another processor, whose flag is none of
 * x86's. Not in the order of preference. */
enum { OTHER_PROCESSOR = 1 << 30 };
static const oct_kernels rows[] = {
    {.name = "ref", .needs = 0, .preference = 0},
    {.name = "avx512", .needs = VNNI, .preference = 40},
    {.name = "avx2", .needs = AVX2, .preference = 20},
    {.name = "amx", .needs = VNNI | AMX, .preference = 60},
    {.name = "avxvnni", .needs = AVX2 | OCT_ISA_AVX_VNNI, .preference = 30},
    {.name = "other", .needs = OTHER_PROCESSOR, .preference = 50},
};
enum { ROWS = sizeof rows / sizeof *rows };

static oct_status pick(oct_isa have, const char *name, const oct_kernels **row, oct_error *err)
{
    *err = (oct_error){0};
    return oct_kernels_pick(rows, ROWS, have, "test", name, row, err);
}

static const char *best(oct_isa have)
{
    oct_error err;
    const oct_kernels *row = NULL;
    assert_int_equal(pick(have, NULL, &row, &err), OCT_OK);
    assert_non_null(row);
    return row->name;
}

/* ---- recorded CPUs --------------------------------------------------------------------------- */

typedef struct recorded {
    const char *name;
    const char *row;
    oct_isa isa;
    oct_cpuid id;
} recorded;

/* Leaves 1, 7 and 7.1 as {eax, ebx, ecx, edx}. */
static const recorded cpus[] = {
    {"no CPUID leaf 7", "ref", OCT_ISA_FMA | OCT_ISA_F16C, {6, {0, 0, 0x7ffafbbf}, {0}, 7, {0}}},
    {"Sandy Bridge", "ref", 0, {13, {0x206a7, 0, 0x1fbae3ff, 0xbfebfbff}, {0}, 7, {0}}},
    {"Skylake client",
     "avx2",
     AVX2,
     {22,
      {0x506e3, 0x00100800, 0x7ffafbbf, 0xbfebfbff},
      {0, 0x029c6fbf, 0, 0x9c002400},
      0x1f,
      {0}}},
    {"Zen 2",
     "avx2",
     AVX2,
     {16, {0x840f70, 0x00100800, 0x7ed8320b, 0x178bfbff}, {0, 0x219c91a9, 0x00400004}, 7, {0}}},
    {"Skylake server: AVX-512 without VNNI",
     "avx2",
     AVX512,
     {22, {0x50654, 0, 0x7ffefbff, 0xbfebfbff}, {0, 0xd39ffffb, 0x8, 0x0c000000}, 0xe7, {0}}},
    {"Cascade Lake",
     "avx512",
     VNNI,
     {22,
      {0x50656, 0x12400800, 0x7ffefbff, 0xbfebfbff},
      {0, 0xd39ffffb, 0x808, 0xbc000400},
      0xe7,
      {0}}},
    {"Alder Lake: AVX-VNNI without AVX-512",
     "avxvnni",
     AVX2 | OCT_ISA_AVX_VNNI,
     {32,
      {0x90672, 0x00800800, 0x7ffafbff, 0xbfebfbff},
      {1, 0x239ca7eb, 0x98c027ac, 0xfc1cc410},
      0x207,
      {0x00400810}}},
    {"Zen 4",
     "avx512",
     VNNI | OCT_ISA_AVX512_BF16,
     {16,
      {0xa60f12, 0, 0x7ef8320b, 0x178bfbff},
      {1, 0xf1bf97a9, 0x00405fce, 0x10000010},
      0xe7,
      {0x20}}},
    {"Zen 5, guest",
     "avx512",
     VNNI | OCT_ISA_AVX_VNNI | OCT_ISA_AVX512_BF16,
     {28,
      {0xb00f21, 0x01020800, 0xfffa3203, 0x178bfbff},
      {1, 0xf1bf07ab, 0x00405fc6, 0x110},
      0xe7,
      {0x30}}},
    {"the same, had it tiles",
     "amx",
     VNNI | OCT_ISA_AVX_VNNI | OCT_ISA_AVX512_BF16 | AMX,
     {28,
      {0xb00f21, 0x01020800, 0xfffa3203, 0x178bfbff},
      {1, 0xf1bf07ab, 0x00405fc6, 0x03000110},
      0x600e7,
      {0x30}}},
};
enum { CPUS = sizeof cpus / sizeof *cpus };

static void recorded_cpus(void **state)
{
    (void)state;
    char found[OCT_ISA_NAMES], expected[OCT_ISA_NAMES];
    for (int i = 0; i < CPUS; i++) {
        oct_isa isa = oct_isa_decode(&cpus[i].id);
        if (isa != cpus[i].isa)
            fail_msg("%s: %s; expected %s", cpus[i].name, oct_isa_names(isa, found),
                     oct_isa_names(cpus[i].isa, expected));
        if (strcmp(best(isa), cpus[i].row) != 0)
            fail_msg("%s: row %s, expected %s", cpus[i].name, best(isa), cpus[i].row);
    }
}

/* A set without some of a CPU that has all. */
static void expect_lost(const oct_cpuid *c, oct_isa lost)
{
    const oct_isa all = cpus[CPUS - 1].isa;
    char found[OCT_ISA_NAMES], expected[OCT_ISA_NAMES];
    if (oct_isa_decode(c) != (all & ~lost))
        fail_msg("found %s; expected %s", oct_isa_names(oct_isa_decode(c), found),
                 oct_isa_names(all & ~lost, expected));
}

/* Every bit, taken away from a CPU that has all, takes away its own flag and no other; a state that
 * the system does not save, all that need it. */
static void every_bit_counts(void **state)
{
    (void)state;
    const oct_cpuid all = cpus[CPUS - 1].id;
    const oct_isa everything = ~(oct_isa)0, zmm = AVX512 & ~AVX2;
    const struct {
        size_t word; /* its offset */
        int bit;
        oct_isa lost;
    } bits[] = {
        {offsetof(oct_cpuid, leaf1[2]), 12, OCT_ISA_FMA},
        {offsetof(oct_cpuid, leaf1[2]), 27, everything}, /* OSXSAVE */
        {offsetof(oct_cpuid, leaf1[2]), 28, everything}, /* AVX */
        {offsetof(oct_cpuid, leaf1[2]), 29, OCT_ISA_F16C},
        {offsetof(oct_cpuid, leaf7[1]), 5, OCT_ISA_AVX2},
        {offsetof(oct_cpuid, leaf7[1]), 16, OCT_ISA_AVX512F},
        {offsetof(oct_cpuid, leaf7[1]), 17, OCT_ISA_AVX512DQ},
        {offsetof(oct_cpuid, leaf7[1]), 30, OCT_ISA_AVX512BW},
        {offsetof(oct_cpuid, leaf7[1]), 31, OCT_ISA_AVX512VL},
        {offsetof(oct_cpuid, leaf7[2]), 11, OCT_ISA_AVX512_VNNI},
        {offsetof(oct_cpuid, leaf7[3]), 24, OCT_ISA_AMX_TILE},
        {offsetof(oct_cpuid, leaf7[3]), 25, OCT_ISA_AMX_INT8},
        {offsetof(oct_cpuid, leaf7_1[0]), 4, OCT_ISA_AVX_VNNI},
        {offsetof(oct_cpuid, leaf7_1[0]), 5, OCT_ISA_AVX512_BF16},
    };
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
        oct_cpuid c = all;
        uint32_t word;
        memcpy(&word, (char *)&c + bits[i].word, sizeof word);
        assert_true(word >> bits[i].bit & 1);
        word &= ~(UINT32_C(1) << bits[i].bit);
        memcpy((char *)&c + bits[i].word, &word, sizeof word);
        expect_lost(&c, bits[i].lost);
    }
    /* SSE, AVX, opmasks, upper halves, ZMM 16..31, shapes and data of tiles. */
    const struct {
        int bit;
        oct_isa lost;
    } states[] = {
        {1, everything & ~AMX},
        {2, everything & ~AMX},
        {5, zmm | OCT_ISA_AVX512_VNNI | OCT_ISA_AVX512_BF16},
        {6, zmm | OCT_ISA_AVX512_VNNI | OCT_ISA_AVX512_BF16},
        {7, zmm | OCT_ISA_AVX512_VNNI | OCT_ISA_AVX512_BF16},
        {17, AMX},
        {18, AMX},
    };
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        oct_cpuid c = all;
        c.xcr0 &= ~(UINT64_C(1) << states[i].bit);
        expect_lost(&c, states[i].lost);
    }
    oct_cpuid c = all;
    c.xcr0 = 0;
    expect_lost(&c, everything);
    c = all;
    c.max_leaf = 1; /* no leaf 7 */
    expect_lost(&c, everything & ~(OCT_ISA_FMA | OCT_ISA_F16C));
    c = all;
    c.leaf7[0] = 0; /* no subleaf 1 */
    expect_lost(&c, OCT_ISA_AVX_VNNI | OCT_ISA_AVX512_BF16);
}

/* ---- the choice ------------------------------------------------------------------------------ */

static void the_preferred_row(void **state)
{
    (void)state;
    assert_string_equal(best(0), "ref");
    assert_string_equal(best(AVX2), "avx2");
    assert_string_equal(best(AVX2 & ~OCT_ISA_F16C), "ref");
    assert_string_equal(best(AVX2 | OCT_ISA_AVX_VNNI), "avxvnni");
    assert_string_equal(best(OCT_ISA_AVX_VNNI), "ref");
    assert_string_equal(best(VNNI), "avx512");
    assert_string_equal(best(VNNI | OCT_ISA_AVX_VNNI), "avx512");
    assert_string_equal(best(VNNI & ~OCT_ISA_AVX512VL), "avx2");
    assert_string_equal(best(AVX512 | OCT_ISA_AVX_VNNI), "avxvnni");
    assert_string_equal(best(VNNI | OCT_ISA_AMX_TILE), "avx512");
    assert_string_equal(best(AVX2 | AMX), "avx2"); /* tiles alone are not enough */
    assert_string_equal(best(VNNI | AMX), "amx");
    assert_string_equal(best(OTHER_PROCESSOR), "other");
}

static void a_row_that_is_asked_for(void **state)
{
    (void)state;
    const oct_isa alder_lake = AVX2 | OCT_ISA_AVX_VNNI;
    static const char *const usable[] = {"ref", "avx2", "avxvnni"};
    const oct_kernels *row;
    oct_error err;
    for (size_t i = 0; i < sizeof usable / sizeof *usable; i++) {
        assert_int_equal(pick(alder_lake, usable[i], &row, &err), OCT_OK);
        assert_string_equal(row->name, usable[i]);
    }
    assert_int_equal(pick(alder_lake, "", &row, &err), OCT_OK); /* as if not asked */
    assert_string_equal(row->name, "avxvnni");

    assert_int_equal(pick(alder_lake | OCT_ISA_AVX512F, "avx512", &row, &err), OCT_ERR_UNSUPPORTED);
    assert_string_equal(err.text,
                        "test: avx512 needs avx512dq, avx512bw, avx512vl, avx512_vnni, which this "
                        "CPU lacks; it can run ref, avx2, avxvnni");
    assert_int_equal(pick(VNNI | OCT_ISA_AMX_TILE, "amx", &row, &err), OCT_ERR_UNSUPPORTED);
    assert_string_equal(err.text, "test: amx needs amx_int8, which this CPU lacks; it can run ref, "
                                  "avx512, avx2");

    static const char *const bad[] = {"AVX2", "avx", "avx5120", "ref ", "amx-int8", "0"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(pick(alder_lake, bad[i], &row, &err), OCT_ERR_ARG);
        assert_non_null(strstr(err.text, bad[i]));
        assert_non_null(strstr(err.text, "ref, avx512, avx2, amx, avxvnni, other"));
    }
}

/* ---- this build, this CPU -------------------------------------------------------------------- */

static void table(void **state)
{
    (void)state;
    assert_string_equal(oct_kernel_rows[OCT_KERNELS_REF].name, "ref");
    assert_int_equal(oct_kernel_rows[OCT_KERNELS_REF].needs, 0);
    assert_null(oct_kernels_find("sse9"));
    for (int i = 0; i < oct_n_kernel_rows; i++) {
        const oct_kernels *k = &oct_kernel_rows[i];
        assert_ptr_equal(oct_kernels_find(k->name), k);
        for (int j = 0; j < i; j++)
            assert_int_not_equal(k->preference, oct_kernel_rows[j].preference);
    }
#if defined(__x86_64__)
    static const char *const names[] = {"ref", "avx2", "avx512", "amx"};
    assert_int_equal(oct_n_kernel_rows, 4);
    for (int i = 0; i < 4; i++) {
        assert_string_equal(oct_kernel_rows[i].name, names[i]);
        for (int j = 0; j < ROWS; j++)
            if (strcmp(rows[j].name, names[i]) == 0) {
                assert_int_equal(oct_kernel_rows[i].needs, rows[j].needs);
                assert_int_equal(oct_kernel_rows[i].preference, rows[j].preference);
            }
    }
#else
    assert_int_equal(oct_n_kernel_rows, 1);
#endif
}

/* Whether Linux names a feature of this CPU. */
static bool linux_names(const char *flag)
{
    char line[16384], *save = NULL;
    bool named = false;
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && !named && fgets(line, sizeof line, f))
        if (strncmp(line, "flags", 5) == 0)
            for (char *word = strtok_r(line, " \t\n", &save); word && !named;
                 word = strtok_r(NULL, " \t\n", &save))
                named = strcmp(word, flag) == 0;
    if (f)
        fclose(f);
    return named;
}

/* What Linux says of this CPU, flag by flag; of tiles, whether it lets this process have them. */
static void this_cpu(void **state)
{
    (void)state;
    oct_isa isa = oct_isa_detect();
    char names[OCT_ISA_NAMES];
    print_message("    this CPU: %s\n", oct_isa_names(isa, names));
#if defined(__x86_64__)
    if (getenv("OCT_TEST_EMULATED"))
        return; /* /proc/cpuinfo is of the machine below */
    bool tiles = syscall(SYS_arch_prctl, 0x1023, 18) == 0;
    for (oct_isa flag = 1; *oct_isa_names(flag, names); flag <<= 1) {
        bool expected = linux_names(names) && (tiles || !(flag & AMX));
        if (((isa & flag) != 0) != expected)
            fail_msg("%s: %s, Linux says otherwise", names, isa & flag ? "found" : "not found");
    }
#else
    (void)linux_names;
    assert_int_equal(isa, 0);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_cpus),
        cmocka_unit_test(every_bit_counts),
        cmocka_unit_test(the_preferred_row),
        cmocka_unit_test(a_row_that_is_asked_for),
        cmocka_unit_test(table),
        cmocka_unit_test(this_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
