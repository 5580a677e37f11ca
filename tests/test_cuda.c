/* test_cuda.c: the kernels of CUDA devices, emulated: the bits are those of the definitions, which
 * the CPU's rows have too (test_kernels). And kernels that are spoiled, one barrier, one access,
 * one fragment at a time, are noticed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cuda_check_attention.h"
#include "cuda_check_linear.h"
#include "cuda_check_rows.h"

#define CHECKS(CHECK) \
    CHECK(embed)      \
    CHECK(norm)       \
    CHECK(slices)     \
    CHECK(select)     \
    CHECK(split)      \
    CHECK(quantise)   \
    CHECK(gemv)       \
    CHECK(gemm)       \
    CHECK(gemv_q4)    \
    CHECK(gemm_q4)    \
    CHECK(route)      \
    CHECK(sort)       \
    CHECK(rope)       \
    CHECK(kv_copy)    \
    CHECK(attention)  \
    CHECK(head)       \
    CHECK(probe)

/* In order, and twice in an order drawn. */
static void run(const char *name, const char *(*check)(void))
{
    for (int i = 0; i < 3; i++) {
        oct_emulated_seed(i == 0 ? 0 : rig_next(&cuda_rng));
        const char *wrong = check();
        if (wrong)
            fail_msg("%s, order %d: %s", name, i, wrong);
    }
}

#define CHECK(name)                   \
    static void test_##name(void **s) \
    {                                 \
        (void)s;                      \
        run(#name, check_##name);     \
    }
CHECKS(CHECK)
#undef CHECK

/* ---- shared memory at the shapes of Grok-1 ---- */

static const struct {
    const char *name;
    int threads, blocks;
} entries[] = {
#define OCT_CUDA_ENTRY(name, args, threads, blocks) {#name, threads, blocks},
    OCT_CUDA_ENTRIES(OCT_CUDA_ENTRY)
#undef OCT_CUDA_ENTRY
};

/* As many blocks as the registers allow by design must find shared memory too: of 100 KiB (8.6,
 * 8.9, 12.0), of which each block takes one more; and one of any kernel in the 64 KiB of 7.5. */
static void fits(oct_cuda_launch l)
{
    int blocks = entries[l.entry].blocks;
    uint32_t room = 100 * 1024 / ((uint32_t)l.shared + 1024);
    print_message("%-12s %4u threads, %6u bytes, %u blocks (designed for %d)\n",
                  entries[l.entry].name, l.block, l.shared, room, blocks);
    assert_true(l.shared <= OCT_CUDA_SHARED_75);
    assert_true(room >= (uint32_t)blocks);
    assert_true((int)l.block <= entries[l.entry].threads && l.block % 32 == 0);
}

static void test_shared_memory(void **state)
{
    (void)state;
    oct_cuda_linear_args a = {
        .n_panels = 96, .unit_out = 6144, .unit_groups = 1, .group_in = 32768, .end_slice = 1};
    oct_act_layout_init(&a.act, 32768, 1, 2);
    for (; a.q4_groups <= 2; a.q4_groups += 2)
        for (a.tile_rows = 1; a.tile_rows <= OCT_CUDA_GEMM_ROWS; a.tile_rows *= 2)
            if (a.tile_rows <= OCT_CUDA_GEMV_ROWS || a.tile_rows == OCT_CUDA_GEMM_ROWS) {
                a.n_rows = a.tile_rows;
                fits(oct_cuda_linear_launch(&a));
            }
    fits(oct_cuda_norm_launch(&(oct_cuda_norm_args){.n = 6144, .n_rows = 1}));
    fits(oct_cuda_route_launch(&(oct_cuda_route_args){.n = 6144, .n_rows = 1, .n_experts = 8}));
    oct_cuda_attention_args t = {.heads = {48, 8, 8, 0}, .n_rows = 1, .max_blocks = 64};
    t.kv.n_heads = 8;
    t.kv.head_dim = t.kv.v_stride = 128;
    for (t.n_rows = 1; t.n_rows <= 512; t.n_rows *= 8)
        for (t.kv.elem_bytes = 2; t.kv.elem_bytes <= (t.n_rows == 1 ? 4 : 2); t.kv.elem_bytes *= 2)
            fits(oct_cuda_attention_launch(&t));
    t.heads.n_q_heads = 8; /* one query head for each KV head */
    t.n_rows = 1;
    fits(oct_cuda_attention_launch(&t));
}

/* ---- tests of the tests ---- */

enum { MOST_SITES = 512 };

/* Spoils one place after the other: a check that passes it, or another, must fail. */
static void test_faults(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        const char *(*check)(void);
    } checks[] = {
#define CHECK(name) {#name, check_##name},
        CHECKS(CHECK)
#undef CHECK
    };
    static bool noticed[OCT_FAULTS][MOST_SITES], there[OCT_FAULTS][MOST_SITES];
    int n_places = 0, n_missed = 0;
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        oct_emulated_forget();
        oct_emulated_seed(0);
        oct_emulated_spoil(OCT_FAULT_NONE, -1);
        assert_null(checks[i].check());
        for (int f = OCT_FAULT_BARRIER; f < OCT_FAULT_FRAGMENT_A; f++) {
            int site[MOST_SITES], n;
            oct_emulated_spoil(OCT_FAULT_NONE, -1);
            n = oct_emulated_sites((oct_emulated_fault)f, site, MOST_SITES);
            for (int k = 0; k < n; k++) {
                assert_true(site[k] < MOST_SITES);
                there[f][site[k]] = true;
                if (noticed[f][site[k]])
                    continue;
                oct_emulated_spoil((oct_emulated_fault)f, site[k]);
                noticed[f][site[k]] = checks[i].check() != NULL;
            }
        }
    }
    /* Its threads do all the same. */
    assert_false(noticed[OCT_FAULT_THREAD][OCT_CUDA_probe_peak]);
    there[OCT_FAULT_THREAD][OCT_CUDA_probe_peak] = false;
    for (int f = OCT_FAULT_BARRIER; f < OCT_FAULT_FRAGMENT_A; f++)
        for (int k = 0; k < MOST_SITES; k++) {
            n_places += there[f][k];
            if (there[f][k] && !noticed[f][k]) {
                n_missed++;
                print_message("fault %d at %s is not noticed\n", f,
                              oct_emulated_place((oct_emulated_fault)f, k));
            }
        }
    for (int f = OCT_FAULT_FRAGMENT_A; f < OCT_FAULTS; f++) {
        oct_emulated_spoil((oct_emulated_fault)f, -1);
        assert_non_null(check_gemm());
        assert_non_null(check_gemm_q4());
    }
    oct_emulated_spoil(OCT_FAULT_NONE, -1);
    print_message("%d faults, %d not noticed\n", n_places + 8, n_missed);
    assert_int_equal(n_missed, 0);
    assert_true(n_places > 60);
    for (int k = 0; k < OCT_CUDA_N_ENTRIES; k++)
        if (!there[OCT_FAULT_BLOCK][k])
            fail_msg("no check launches %s", entries[k].name);
}

/* With an argument: the kernels are spoiled. */
int main(int argc, char **argv)
{
    (void)argv;
    const struct CMUnitTest tests[] = {
#define CHECK(name) cmocka_unit_test(test_##name),
        CHECKS(CHECK)
#undef CHECK
            cmocka_unit_test(test_shared_memory),
    };
    const struct CMUnitTest faults[] = {cmocka_unit_test(test_faults)};
    cuda_rng.state = rig_seed();
    return argc > 1 ? cmocka_run_group_tests(faults, NULL, NULL)
                    : cmocka_run_group_tests(tests, NULL, NULL);
}
