/* test_runtime.c: what carries the kernels: arena, team, plan, router, cache, communicator. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu_impl.h"
#include "plan.h"
#include "threads.h"
#include "topology.h"

static void test_arena(void **state)
{
    (void)state;
    oct_arena a = {0};
    unsigned char *p[100];
    for (int i = 0; i < 100; i++) {
        size_t n = (size_t)(i * i * 31 + 1);
        p[i] = oct_arena_alloc(&a, n);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 16, 0);
        for (size_t j = 0; j < n; j++)
            assert_int_equal(p[i][j], 0);
        memset(p[i], i + 1, n);
    }
    for (int i = 0; i < 100; i++)
        assert_int_equal(p[i][i * i * 31], i + 1);
    assert_null(oct_arena_alloc(&a, SIZE_MAX - 8));
    oct_arena_free(&a);
}

static void test_range(void **state)
{
    (void)state;
    for (int threads = 1; threads < 9; threads++)
        for (int64_t n = 0; n < 40; n++) {
            int64_t next = 0, lo, hi;
            for (int t = 0; t < threads; t++) {
                oct_team_range(n, t, threads, &lo, &hi);
                assert_int_equal(lo, next);
                assert_in_range(hi - lo, n / threads, n / threads + 1);
                next = hi;
            }
            assert_int_equal(next, n);
        }
}

/* Every thread adds to its own cell in each phase; behind a barrier all cells must be full. */
typedef struct phases {
    oct_team *team;
    int cell[16];
    _Atomic int wrong;
} phases;

static void run_phases(void *ctx, int thread, int n_threads)
{
    phases *p = ctx;
    for (int phase = 1; phase <= 500; phase++) {
        p->cell[thread]++;
        oct_team_barrier(p->team);
        for (int t = 0; t < n_threads; t++)
            if (p->cell[t] != phase)
                p->wrong++;
        oct_team_barrier(p->team);
    }
}

static void test_team(void **state)
{
    (void)state;
    oct_error err = {0};
    for (int threads = 1; threads <= 7; threads++) {
        phases p = {0};
        assert_int_equal(oct_team_new(threads, NULL, &p.team, &err), OCT_OK);
        for (int run = 0; run < 3; run++) {
            memset(p.cell, 0, sizeof p.cell);
            oct_team_run(p.team, run_phases, &p);
        }
        assert_int_equal(p.wrong, 0);
        oct_team_free(p.team);
    }
    oct_team *t;
    assert_int_equal(oct_team_new(0, NULL, &t, &err), OCT_ERR_ARG);
    oct_error again = {0};
    assert_int_equal(oct_team_new(OCT_MAX_THREADS + 1, NULL, &t, &again), OCT_ERR_ARG);
}

static void test_topology(void **state)
{
    (void)state;
    oct_error err = {0};
    oct_topology t;
    assert_int_equal(oct_topology_load(NULL, &t, &err), OCT_OK);
    assert_true(t.real && t.n_nodes >= 1 && t.n_threads >= 1 && t.n_threads <= t.n_cores);
    assert_non_null(t.why);
    oct_topology_free(&t);

    /* two nodes of four cores with two hardware threads each */
    assert_int_equal(oct_topology_load("numa:2 core:4 pu:2", &t, &err), OCT_OK);
    assert_int_equal(t.n_cores, 8);
    assert_int_equal(t.n_nodes, 2);
    assert_int_equal(t.n_threads, 8);
    assert_false(t.real);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(t.cpu[i], 2 * i);
        assert_int_equal(t.node[i], i / 4);
    }
    int core[8];
    oct_topology_spread(&t, 4, core);
    assert_int_equal(core[0], 0);
    assert_int_equal(core[1], 1);
    assert_int_equal(core[2], 4);
    assert_int_equal(core[3], 5);
    assert_int_equal(oct_cpu_domains(&t, 4, 8), 2);
    assert_int_equal(oct_cpu_domains(&t, 1, 8), 1); /* a node without a thread */
    assert_int_equal(oct_cpu_domains(&t, 4, 6), 1); /* three slices are no subtree */
    assert_int_equal(oct_cpu_domains(&t, 4, 1), 1);
    oct_topology_free(&t);

    assert_int_equal(oct_topology_load("numa:3 core:2 pu:1", &t, &err), OCT_OK);
    assert_int_equal(oct_cpu_domains(&t, 6, 6), 3);
    assert_int_equal(oct_cpu_domains(&t, 6, 8), 1);
    oct_topology_free(&t);
    assert_int_equal(oct_topology_load("nonsense", &t, &err), OCT_ERR_ARG);
    oct_topology_free(&t);
}

/* Every task exactly once, whatever the costs, however often; each domain its own. */
typedef struct count_job {
    _Atomic int count[2][64];
} count_job;

static void count_task(oct_cpu_run *c, const void *job, int64_t group, int64_t task)
{
    count_job *j = (count_job *)(uintptr_t)job;
    j->count[c->domain][group * 16 + task]++;
}

static void share_thread(void *ctx, int thread, int n_threads)
{
    void **args = ctx;
    oct_cpu_run c = {.cpu = args[0], .thread = thread, .n_threads = n_threads};
    int half = n_threads / c.cpu->n.n_domains;
    c.domain = thread / half;
    c.domain_thread = thread % half;
    c.domain_threads = half;
    static const oct_cpu_work groups[4] = {{5, 3}, {0, 100}, {16, 1}, {9, 40}};
    for (int i = 0; i < 300; i++) {
        oct_cpu_share(&c, groups, 4, count_task, args[1]);
        oct_cpu_share(&c, groups, 4, count_task, args[1]); /* no barrier between two calls */
        oct_team_barrier(c.cpu->team);
    }
}

static void test_share(void **state)
{
    (void)state;
    static const int64_t n_tasks[4] = {5, 0, 16, 9};
    oct_error err = {0};
    oct_topology t;
    assert_int_equal(oct_topology_load("numa:2 core:4 pu:1", &t, &err), OCT_OK);
    for (int domains = 1; domains <= 2; domains++)
        for (int threads = domains; threads <= 8; threads += domains) {
            oct_backend *b;
            const oct_cpu_numbers numbers = {
                .k = oct_kernel_rows, .n_threads = threads, .n_domains = domains};
            assert_int_equal(oct_cpu_open(&numbers, &t, false, &b, &err), OCT_OK);
            count_job j = {0};
            void *args[2] = {b, &j};
            oct_team_run(((oct_cpu *)(void *)b)->team, share_thread, args);
            for (int d = 0; d < domains; d++)
                for (int g = 0; g < 4; g++)
                    for (int64_t i = 0; i < 16; i++)
                        assert_int_equal(j.count[d][g * 16 + i], i < n_tasks[g] ? 600 : 0);
            b->free(b);
        }
    oct_topology_free(&t);
}

/* When a tensor is alive: from the first step that writes it to the last that reads it. */
typedef struct span {
    int first, last;
    size_t at, bytes;
} span;

/* Pieces of the buffer that are alive at the same time must not overlap, and the buffer must be
 * smaller than the sum of all pieces: otherwise nothing was shared. */
static void test_plan(void **state)
{
    (void)state;
    oct_error err = {0};
    const oct_shard shard = {.size = 1};
    const oct_cpu_numbers numbers = {.k = oct_kernel_rows, .n_threads = 2, .n_domains = 1};
    const oct_table table = {NULL, 100, 100, 100, 96, 1};
    static const float ones[96];
    const oct_plain gamma = {.name = "g", .rows = 1, .cols = 96, .data = ones};
    oct_graph g;
    oct_graph_init(&g, 9, 2, 0, NULL, 0);
    const oct_tensor *h = oct_graph_embed(&g, &table, 2);
    for (int i = 0; i < 20; i++)
        oct_graph_add_norm(&g, h,
                           oct_graph_norm(&g, oct_graph_norm(&g, h, &gamma, 1e-5f), &gamma, 1e-5f),
                           &gamma, 1e-5f);
    oct_graph_head(&g, oct_graph_norm(&g, oct_graph_select(&g, h), &gamma, 1e-5f), &table, 1);
    oct_plan p;
    oct_plan_spec spec = {.shard = &shard, .n_places = 1};
    spec.place[0].kind = &oct_cpu_kind;
    spec.place[0].numbers = &numbers;
    assert_int_equal(oct_plan_make(&g, &spec, NULL, 0, &p, &err), OCT_OK);
    assert_int_equal(p.n_steps, g.n_nodes);
    enum { MAX = 100 };
    span s[MAX];
    size_t sum = 0;
    assert_true(g.n_tensors < MAX);
    for (int i = 0; i < g.n_tensors; i++)
        s[i] = (span){.first = -1};
    for (int i = 0; i < g.n_nodes; i++) {
        const oct_tensor *used[3] = {g.nodes[i].in[0], g.nodes[i].in[1], g.nodes[i].out};
        for (int k = 0; k < 3; k++)
            if (used[k]) {
                span *t = &s[used[k]->index];
                t->first = t->first < 0 ? i : t->first;
                t->last = i;
                t->at = oct_plan_offset(&p, 0, used[k]);
                t->bytes = (size_t)used[k]->rows * used[k]->row_bytes;
            }
    }
    for (int i = 0; i < g.n_tensors; i++) {
        sum += s[i].bytes;
        assert_int_equal(s[i].at % 64, 0);
        assert_true(s[i].at + s[i].bytes <= p.need[0].shared);
        for (int k = 0; k < i; k++) {
            bool together = s[i].first <= s[k].last && s[k].first <= s[i].last;
            bool overlap = s[i].at < s[k].at + s[k].bytes && s[k].at < s[i].at + s[i].bytes;
            assert_false(together && overlap);
        }
    }
    assert_true(p.need[0].shared * 5 < sum);
    oct_plan_free(&p);
    oct_graph_free(&g);
}

static void test_graph_errors(void **state)
{
    (void)state;
    oct_error err = {0};
    oct_table table = {NULL, 100, 100, 100, 96, 1};
    static const float ones[64];
    oct_plain narrow = {.name = "g", .rows = 1, .cols = 64, .data = ones};
    oct_graph g;
    oct_graph_init(&g, 3, 2, 0, NULL, 0);
    const oct_tensor *h = oct_graph_embed(&g, &table, 1);
    assert_null(oct_graph_norm(&g, h, &narrow, 1e-5f));
    assert_null(oct_graph_select(&g, h)); /* sticky */
    assert_int_equal(oct_graph_status(&g, &err), OCT_ERR_SHAPE);
    assert_non_null(strstr(err.text, "norm"));
    oct_graph_free(&g);
}

static void test_route(void **state)
{
    (void)state;
    const float equal[4] = {1, 1, 1, 1}, mixed[5] = {0, 3, -1, 3, 2};
    const float bad[4] = {0, NAN, 1, 2};
    int32_t e[4];
    float gate[4];
    oct_route(equal, 4, 2, e, gate);
    assert_int_equal(e[0], 0);
    assert_int_equal(e[1], 1);
    assert_true(gate[0] == 0.25f && gate[1] == 0.25f); /* not renormalised */
    oct_route(mixed, 5, 3, e, gate);
    assert_int_equal(e[0], 1);
    assert_int_equal(e[1], 3);
    assert_int_equal(e[2], 4);
    double sum = exp(-3) + 1 + exp(-4) + 1 + exp(-1);
    assert_true(fabs(gate[0] - 1 / sum) < 1e-6 && fabs(gate[2] - exp(-1) / sum) < 1e-6);
    oct_route(bad, 4, 2, e, gate);
    assert_true(isnan(gate[0]) && e[0] != e[1]);
    assert_in_range(e[0], 0, 3);
    assert_in_range(e[1], 0, 3);
}

static void test_comm(void **state)
{
    (void)state;
    oct_error err = {0};
    oct_comm *c = oct_comm_local();
    float x[3] = {1, 2, 3};
    int mine = 7, all = 0;
    assert_int_equal(c->size, 1);
    assert_int_equal(c->fold(c, x, 3, &err), OCT_OK);
    assert_true(x[0] == 1 && x[2] == 3);
    assert_int_equal(c->gather(c, &mine, sizeof mine, &all, &err), OCT_OK);
    assert_int_equal(all, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena),        cmocka_unit_test(test_range),
        cmocka_unit_test(test_team),         cmocka_unit_test(test_topology),
        cmocka_unit_test(test_share),        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_graph_errors), cmocka_unit_test(test_route),
        cmocka_unit_test(test_comm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
