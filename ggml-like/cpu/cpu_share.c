/* cpu_share.c: how the threads of a run divide work. Nothing here changes a result: tasks write to
 * places of their own, and sums over domains are a fixed tree. */
#include <string.h>

#include "cpu_impl.h"

/* Tasks, counted through all groups, that begin below a cost. */
static int64_t tasks_below(const oct_cpu_work *g, int64_t n_groups, int64_t cost)
{
    int64_t tasks = 0, before = 0;
    for (int64_t i = 0; i < n_groups && before < cost; i++) {
        if (g[i].n_tasks == 0)
            continue;
        int64_t n = (cost - before + g[i].cost - 1) / g[i].cost;
        tasks += n < g[i].n_tasks ? n : g[i].n_tasks;
        before += g[i].n_tasks * g[i].cost;
    }
    return tasks;
}

static void run_tasks(oct_cpu_run *c, const oct_cpu_work *g, int64_t n_groups, int64_t lo,
                      int64_t hi, oct_cpu_task_fn *fn, const void *job)
{
    for (int64_t i = 0; i < n_groups && lo < hi; i++) {
        int64_t end = hi < g[i].n_tasks ? hi : g[i].n_tasks;
        for (int64_t t = lo; t < end; t++)
            fn(c, job, i, t);
        lo = lo > g[i].n_tasks ? lo - g[i].n_tasks : 0;
        hi -= g[i].n_tasks;
    }
}

void oct_cpu_share(oct_cpu_run *c, const oct_cpu_work *groups, int64_t n_groups,
                   oct_cpu_task_fn *fn, const void *job)
{
    int64_t total = 0, n_tasks = 0, lo, hi;
    for (int64_t i = 0; i < n_groups; i++) {
        total += groups[i].n_tasks * groups[i].cost;
        n_tasks += groups[i].n_tasks;
    }
    /* A tail's counter is cleared two phases ahead: with a barrier behind at least every second
     * call no thread can still be, or be already, in that phase. */
    int64_t phase = c->phase++, n = c->cpu->n.n_domains;
    _Atomic int64_t *taken = &c->cpu->tails[phase % OCT_SHARE_PHASES * n + c->domain].taken;
    if (c->domain_thread == 0)
        atomic_store_explicit(&c->cpu->tails[(phase + 2) % OCT_SHARE_PHASES * n + c->domain].taken,
                              0, memory_order_relaxed);

    int64_t fixed = c->domain_threads > 1 ? total - total / 8 : total;
    oct_team_range(fixed, c->domain_thread, c->domain_threads, &lo, &hi);
    run_tasks(c, groups, n_groups, tasks_below(groups, n_groups, lo),
              tasks_below(groups, n_groups, hi), fn, job);
    int64_t tail = tasks_below(groups, n_groups, fixed);
    while (tail < n_tasks) {
        int64_t t = tail + atomic_fetch_add_explicit(taken, 1, memory_order_relaxed);
        if (t >= n_tasks)
            break;
        run_tasks(c, groups, n_groups, t, t + 1, fn, job);
    }
}

int64_t oct_cpu_first_slice(const oct_cpu_run *c, oct_shard_kind kind, int domain)
{
    const oct_shard *s = &c->cpu->n.shard;
    return s->slices[kind].first + oct_shard_n_slices(s, kind) * domain / c->cpu->n.n_domains;
}

void oct_cpu_join(const oct_cpu_run *c, float *parts, int64_t stride, int64_t n_rows, int64_t n,
                  float *out)
{
    int64_t lo, hi;
    oct_team_range(n_rows, c->thread, c->n_threads, &lo, &hi);
    for (int64_t r = lo; r < hi; r++) {
        float *row = parts + r * n;
        for (int step = 1; step < c->cpu->n.n_domains; step *= 2)
            for (int d = 0; d + step < c->cpu->n.n_domains; d += 2 * step)
                c->cpu->k->add(row + d * stride, row + (d + step) * stride, n, row + d * stride);
        memcpy(out + r * n, row, (size_t)n * sizeof *out);
    }
}
