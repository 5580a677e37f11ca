/* test_job_check.c: which ranks share a machine, its cores and its memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "job_impl.h"

enum { RANKS = 4 };

/* Four ranks on one host, each on a core of its own, that map a quarter of a file of 80 bytes. */
static void one_host(oct_rank_report r[RANKS])
{
    memset(r, 0, RANKS * sizeof *r);
    for (int i = 0; i < RANKS; i++) {
        strcpy(r[i].boot, "boot");
        strcpy(r[i].host, "host");
        r[i].n_cpus = 1;
        CPU_SET((size_t)i, &r[i].cpus);
        r[i].weights = r[i].mapped = 20;
        r[i].need = 25;
        r[i].have = r[i].host_has = 100;
        r[i].file = 80;
    }
}

static void test_cores(void **state)
{
    (void)state;
    oct_rank_report r[RANKS];
    one_host(r);
    for (int i = 0; i < RANKS; i++)
        assert_false(oct_rank_shares_cores(r, RANKS, i));
    r[1].cpus = r[0].cpus;
    strcpy(r[1].host, "container");
    assert_true(oct_rank_shares_cores(r, RANKS, 0));
    assert_true(oct_rank_shares_cores(r, RANKS, 1));
    assert_false(oct_rank_shares_cores(r, RANKS, 2));

    strcpy(r[1].host, "host"); /* two machines of one name */
    strcpy(r[1].boot, "other");
    assert_false(oct_rank_shares_cores(r, RANKS, 0));
    r[1].boot[0] = 0; /* by name */
    assert_true(oct_rank_shares_cores(r, RANKS, 0));

    one_host(r);
    r[3].n_cpus = 0; /* all, for what is known */
    CPU_ZERO(&r[3].cpus);
    for (int i = 0; i < RANKS; i++)
        assert_true(oct_rank_shares_cores(r, RANKS, i));
}

static void test_memory(void **state)
{
    (void)state;
    oct_rank_report r[RANKS];
    uint64_t need, have;
    one_host(r);
    assert_true(oct_rank_all_fit(r, RANKS)); /* 4 * 5 and the file */
    assert_true(oct_rank_host_fits(r, RANKS, 1, &need, &have));
    assert_int_equal(need, 100);
    assert_int_equal(have, 100);

    r[2].host_has = 99; /* each alone would fit */
    assert_false(oct_rank_all_fit(r, RANKS));
    assert_false(oct_rank_host_fits(r, RANKS, 1, &need, &have));
    strcpy(r[3].boot, "other");
    assert_true(oct_rank_all_fit(r, RANKS));

    one_host(r);
    for (int i = 0; i < RANKS; i++) { /* parts overlap: what several map is there once */
        r[i].mapped += 10;
        r[i].need += 10;
    }
    assert_true(oct_rank_all_fit(r, RANKS));
    for (int i = 0; i < RANKS; i++) /* each has a file of its own */
        r[i].file = UINT64_MAX;
    assert_false(oct_rank_all_fit(r, RANKS));

    one_host(r);
    r[1].have = 24; /* a limit of this process */
    assert_false(oct_rank_all_fit(r, RANKS));
}

typedef struct heard {
    char text[512];
    int lines;
} heard;

static void hear(void *ctx, oct_job_level level, const char *line)
{
    heard *h = ctx;
    assert_int_equal(level, OCT_JOB_ERROR);
    snprintf(h->text, sizeof h->text, "%s", line);
    h->lines++;
}

static void test_builds(void **state)
{
    (void)state;
    oct_rank_build b[RANKS] = {0};
    heard h = {0};
    const oct_job_voice voice = {hear, &h};
    oct_rank_build_self(&b[0]);
    assert_string_equal(b[0].version, oct_version());
    for (int i = 1; i < RANKS; i++)
        b[i] = b[0];
    assert_int_equal(oct_rank_builds_differ(b, RANKS, &voice), 0);
    assert_int_equal(h.lines, 0);
    strcpy(b[1].build, "cafe");
    strcpy(b[3].version, "0.0.9");
    assert_int_equal(oct_rank_builds_differ(b, RANKS, &voice), 2);
    assert_int_equal(h.lines, 2);
    assert_non_null(strstr(h.text, "octet 0.0.9, rank 0"));
    assert_int_equal(oct_rank_builds_differ(b, 2, &voice), 1);
    assert_non_null(strstr(h.text, "rank 1 on "));
    assert_non_null(strstr(h.text, "another build of octet (cafe, "));
}

/* Ranks compute with the most preferred row that all of them have, also where one's best is neither
 * among the other's nor below them all. */
static void test_kernels(void **state)
{
    (void)state;
    const oct_job_voice silent = {0};
    oct_rank_report r[RANKS];
    const oct_kernels *row;
    const uint32_t every = (uint32_t)((UINT64_C(1) << oct_n_kernel_rows) - 1);
    one_host(r);
    for (int i = 0; i < RANKS; i++)
        r[i].kernels = every;
    assert_int_equal(oct_rank_compare(r, RANKS, &silent, &row), 0);
    for (int i = 0; i < oct_n_kernel_rows; i++)
        assert_true(oct_kernel_rows[i].preference <= row->preference);
    for (int i = 0; i < oct_n_kernel_rows; i++) { /* ref and one more */
        r[2].kernels = 1u << i | 1;
        assert_int_equal(oct_rank_compare(r, RANKS, &silent, &row), 0);
        assert_ptr_equal(row, &oct_kernel_rows[i]);
    }
    if (oct_n_kernel_rows < 3)
        return;
    r[1].kernels = 1 | 1u << 1;
    r[2].kernels = 1 | 1u << 2;
    assert_int_equal(oct_rank_compare(r, RANKS, &silent, &row), 0);
    assert_ptr_equal(row, &oct_kernel_rows[OCT_KERNELS_REF]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cores), cmocka_unit_test(test_memory),
                                       cmocka_unit_test(test_builds),
                                       cmocka_unit_test(test_kernels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
