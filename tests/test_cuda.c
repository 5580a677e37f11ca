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

#define CHECKS(CHECK)   \
    CHECK(embed)        \
    CHECK(norm)         \
    CHECK(slices)       \
    CHECK(select)       \
    CHECK(quantise)     \
    CHECK(gemv)         \
    CHECK(gemm)         \
    CHECK(route)        \
    CHECK(sort)         \
    CHECK(rope)         \
    CHECK(kv_copy)      \
    CHECK(attention)    \
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

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CHECK(name) cmocka_unit_test(test_##name),
        CHECKS(CHECK)
#undef CHECK
    };
    cuda_rng.state = rig_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
