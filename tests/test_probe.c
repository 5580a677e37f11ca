/* test_probe.c: the probes do the work they are said to do, and their figures are possible. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "probe.h"

/* Every word counts: the sum changes with each of them, wherever it lies. */
static void test_read_sum(void **state)
{
    (void)state;
    enum { WORDS = 4096 };
    uint64_t *word = aligned_alloc(64, WORDS * sizeof *word), sum = 0, z = 1;
    assert_non_null(word);
    for (int i = 0; i < WORDS; i++) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        word[i] = z;
        sum += z;
    }
    for (int r = 0; r < oct_n_kernel_rows; r++) {
        const oct_kernels *row = &oct_kernel_rows[r];
        if (!row->probes || !oct_kernels_usable(row))
            continue;
        assert_true(row->probes->read(word, WORDS * sizeof *word, 4096) == sum);
        for (int i = 0; i < WORDS; i += 7) {
            word[i] += 3;
            assert_true(row->probes->read(word, WORDS * sizeof *word, 0) == sum + 3);
            word[i] -= 3;
        }
        assert_true(row->probes->read(word, 0, 4096) == 0);
    }
    free(word);
}

/* All probes of all rows, one after the other; NULL: not on this CPU. */
static const oct_probe *probe_at(int i)
{
    return oct_probe_find((oct_probe_kind)(i % OCT_PROBE_KINDS),
                          &oct_kernel_rows[i / OCT_PROBE_KINDS]);
}

/* Twice the rounds must not be free. */
static void test_rounds_cost(void **state)
{
    (void)state;
    for (int i = 0; i < oct_n_kernel_rows * OCT_PROBE_KINDS; i++) {
        const oct_probe *p = probe_at(i);
        if (!p)
            continue;
        double best[2] = {1e9, 1e9};
        for (int k = 0; k < 10; k++) {
            struct timespec a, b;
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
            volatile uint64_t sink = p->run(k % 2 ? 400000 : 100000);
            (void)sink;
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
            double t = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
            best[k % 2] = t < best[k % 2] ? t : best[k % 2];
        }
        print_message("%-26s 100000 rounds %7.3f ms, 400000 %7.3f ms\n", p->name, best[0] * 1e3,
                      best[1] * 1e3);
        assert_true(best[1] > 2 * best[0] && best[1] < 8 * best[0]);
    }
}

static oct_team *team_of(int n)
{
    oct_team *team = NULL;
    oct_error err = {0};
    assert_int_equal(oct_team_new(n, NULL, &team, &err), OCT_OK);
    return team;
}

static void test_peaks(void **state)
{
    (void)state;
    oct_team *team = team_of(1);
    const oct_kernels *ref_row = &oct_kernel_rows[OCT_KERNELS_REF];
    const oct_probe *ref_f32 = oct_probe_find(OCT_PROBE_F32, ref_row);
    assert_non_null(ref_f32);
    double ref = oct_probe_peak(team, ref_f32, 0.02);
    for (int i = 0; i < oct_n_kernel_rows * OCT_PROBE_KINDS; i++) {
        const oct_probe *p = probe_at(i);
        if (!p)
            continue;
        double peak = oct_probe_peak(team, p, 0.02);
        print_message("%-26s %.4f TOPS\n", p->name, peak * 1e-12);
        /* No core does less than 0.1 operations a nanosecond or more than 100 a picosecond. */
        assert_true(peak > 1e8 && peak < 1e14);
        if (i % OCT_PROBE_KINDS == OCT_PROBE_INT && i >= OCT_PROBE_KINDS)
            assert_true(peak > ref);
    }
    oct_team_free(team);
}

static void test_read_rate(void **state)
{
    (void)state;
    size_t bytes = (size_t)64 << 20;
    unsigned char *data = aligned_alloc(4096, bytes);
    assert_non_null(data);
    memset(data, 1, bytes);
    for (int n = 1; n <= 2; n++) {
        oct_team *team = team_of(n);
        const oct_probe_span spans[] = {{data, bytes / 2}, {data + bytes / 2, bytes / 2}};
        for (const oct_kernels *k = oct_kernel_rows; k < oct_kernel_rows + oct_n_kernel_rows; k++) {
            if (!oct_kernels_usable(k))
                continue;
            double rate = oct_probe_read(team, k, 4096, spans, 2) * 1e-9;
            print_message("%d threads, %s: %.1f GB/s\n", n, k->name, rate);
            assert_true(rate > 0.1 && rate < 1e5);
        }
        oct_team_free(team);
    }
    free(data);
}

static void test_find(void **state)
{
    (void)state;
    for (const oct_kernels *k = oct_kernel_rows; k < oct_kernel_rows + oct_n_kernel_rows; k++) {
        for (int kind = 0; kind < OCT_PROBE_KINDS; kind++) {
            const oct_probe *p = oct_probe_find((oct_probe_kind)kind, k);
            if (!oct_kernels_usable(k))
                assert_null(p);
            else if (kind != OCT_PROBE_BF16)
                assert_non_null(p);
            if (p && kind == OCT_PROBE_INT)
                assert_in_range(p->passes16, 1, 2);
        }
    }
    const oct_kernels *avx2 = oct_kernels_find("avx2");
    if (avx2 && oct_kernels_usable(avx2))
        assert_int_equal(oct_probe_find(OCT_PROBE_INT, avx2)->passes16, 1);
}

/* A row may have no probes: none is found, and reading is measured all the same; or some that need
 * more than this CPU has. */
static void test_row_without_probes(void **state)
{
    (void)state;
    oct_kernels row = oct_kernel_rows[OCT_KERNELS_REF];
    const oct_probe beyond = {.name = "not here", .needs = ~oct_isa_detect()};
    const oct_probe_set set = {row.probes->read, {&beyond, NULL, NULL}};
    assert_non_null(oct_probe_find(OCT_PROBE_INT, &row));
    row.probes = &set;
    assert_null(oct_probe_find(OCT_PROBE_INT, &row));
    assert_null(oct_probe_find(OCT_PROBE_F32, &row));
    row.probes = NULL;
    assert_null(oct_probe_find(OCT_PROBE_INT, &row));
    static const uint64_t data[512] = {1};
    const oct_probe_span span = {data, sizeof data};
    oct_team *team = team_of(1);
    assert_true(oct_probe_read(team, &row, 0, &span, 1) > 0);
    oct_team_free(team);
}

static void wait_for_other(void *ctx, int thread, int n_threads)
{
    oct_team *team = *(oct_team **)ctx;
    (void)n_threads;
    if (thread == 1)
        nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    oct_team_barrier(team);
}

static void test_barrier(void **state)
{
    (void)state;
    oct_team *one = team_of(1), *two = team_of(2);
    double barrier = oct_probe_barrier(two, 2000), wake = oct_probe_wake(two, 5);
    print_message("barrier %.2f us, wake %.1f us\n", barrier * 1e6, wake * 1e6);
    assert_true(barrier > 1e-8 && barrier < 0.1);
    assert_true(wake > 1e-7 && wake < 1);
    assert_true(oct_probe_barrier(one, 2000) < barrier);

    /* One of two threads waits 30 ms: 15 ms on average. */
    double before = oct_team_waited(two);
    oct_team_run(two, wait_for_other, &two);
    double waited = oct_team_waited(two) - before;
    assert_true(waited > 0.014 && waited < 5);
    assert_true(oct_team_waited(one) < 1e-9);
    oct_team_free(one);
    oct_team_free(two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_sum), cmocka_unit_test(test_rounds_cost),
        cmocka_unit_test(test_peaks),    cmocka_unit_test(test_read_rate),
        cmocka_unit_test(test_find),     cmocka_unit_test(test_row_without_probes),
        cmocka_unit_test(test_barrier),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
