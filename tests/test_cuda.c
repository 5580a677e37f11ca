/* test_cuda.c: the kernels of CUDA devices, emulated: the bits are those of the definitions, which the
 * CPU's rows have too (test_kernels). And kernels that are spoiled, one barrier, one access, one fragment
 * at a time, are noticed. */
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
    CHECK(quantise)   \
    CHECK(gemv)       \
    CHECK(gemm)       \
    CHECK(route)      \
    CHECK(sort)       \
    CHECK(rope)       \
    CHECK(kv_copy)    \
    CHECK(attention)  \
    CHECK(head)

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
        for (int f = OCT_FAULT_BARRIER; f <= OCT_FAULT_EXCHANGE; f++) {
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
    for (int f = OCT_FAULT_BARRIER; f <= OCT_FAULT_EXCHANGE; f++)
        for (int k = 0; k < MOST_SITES; k++) {
            n_places += there[f][k];
            if (there[f][k] && !noticed[f][k]) {
                n_missed++;
                print_message("fault %d at %s is not noticed\n", f, oct_emulated_place(k));
            }
        }
    for (int f = OCT_FAULT_FRAGMENT_A; f < OCT_FAULTS; f++) {
        oct_emulated_spoil((oct_emulated_fault)f, -1);
        assert_non_null(check_gemm());
    }
    oct_emulated_spoil(OCT_FAULT_NONE, -1);
    print_message("%d faults, %d not noticed\n", n_places + 4, n_missed);
    assert_int_equal(n_missed, 0);
    assert_true(n_places > 60);
}

/* With an argument: the kernels are spoiled. */
int main(int argc, char **argv)
{
    (void)argv;
    const struct CMUnitTest tests[] = {
#define CHECK(name) cmocka_unit_test(test_##name),
        CHECKS(CHECK)
#undef CHECK
    };
    const struct CMUnitTest faults[] = {cmocka_unit_test(test_faults)};
    cuda_rng.state = rig_seed();
    return argc > 1 ? cmocka_run_group_tests(faults, NULL, NULL)
                    : cmocka_run_group_tests(tests, NULL, NULL);
}
