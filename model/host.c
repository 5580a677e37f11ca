/* host.c: what this machine has to offer, measured without a model. */
#include <math.h>
#include <stdlib.h>

#include "forecast.h"
#include "probe.h"
#include "read_block.h"
#include "topology.h"

enum {
    ROUNDS = 9,
    READ_SHARE = 8,   /* of the memory that is available */
    THREAD_MIB = 128, /* read by each thread, */
    LEAST_MIB = 1024, /* by all of them, */
    MOST_MIB = 16384,
    USEFUL_MIB = 128 /* and less says nothing: it lies in caches */
};
static const size_t distances[] = {0, 2048, 4096, 8192, 16384};
static const double PEAK_SECONDS = 0.03;

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The middle half of some readings. */
static oct_bounds middle(double v[ROUNDS])
{
    qsort(v, ROUNDS, sizeof *v, ascending);
    return (oct_bounds){v[ROUNDS / 4], v[ROUNDS - 1 - ROUNDS / 4]};
}

static oct_bounds read_rate(oct_team *team, const oct_kernels *row, const oct_probe_span *span)
{
    double v[ROUNDS], best = 0;
    size_t ahead = 0;
    for (size_t i = 0; i < sizeof distances / sizeof *distances; i++)
        for (int k = 0; k < 2; k++) {
            double rate = oct_probe_read(team, row, distances[i], span, 1);
            ahead = rate > best ? distances[i] : ahead;
            best = fmax(best, rate);
        }
    for (int i = 0; i < ROUNDS; i++)
        v[i] = oct_probe_read(team, row, ahead, span, 1);
    return middle(v);
}

static oct_bounds peak(oct_team *team, const oct_kernels *row, oct_probe_kind kind)
{
    const oct_probe *p = oct_probe_find(kind, row);
    double v[ROUNDS];
    if (!p)
        return (oct_bounds){0};
    for (int i = 0; i < ROUNDS; i++)
        v[i] = oct_probe_peak(team, p, PEAK_SECONDS);
    return middle(v);
}

static void measure(oct_team *team, int n_threads, const oct_kernels *row, oct_host *out)
{
    size_t mib = (size_t)n_threads * THREAD_MIB;
    oct_probe_span span;
    mib = mib < LEAST_MIB ? LEAST_MIB : mib > MOST_MIB ? MOST_MIB : mib;
    oct_read_block_new(mib << 20, READ_SHARE, &span);
    if (span.bytes >= (size_t)USEFUL_MIB << 20) {
        oct_read_block_touch(team, &span);
        out->read = read_rate(team, row, &span);
    }
    oct_read_block_free(&span);
    out->ops = peak(team, row, OCT_PROBE_INT);
    out->flops = peak(team, row, OCT_PROBE_F32).min;
}

oct_status oct_host_measure(const oct_session_params *p, oct_host *out, oct_error *err)
{
    oct_machine *here = NULL;
    const oct_machine *machine;
    const oct_kernels *row;
    oct_team *team = NULL;
    oct_memory have;
    *out = (oct_host){.machine = p->machine};
    OCT_TRY(oct_machine_find(p->machine, &machine, &here, err));
    oct_status status = oct_kernels_choose(p->isa, machine->isa, &row, err);
    const int n_threads = p->n_threads ? p->n_threads : machine->topology.n_threads;
    if (status == OCT_OK)
        status = oct_topology_team(&machine->topology, n_threads, !p->no_bind, &team, err);
    if (status == OCT_OK) {
        measure(team, n_threads, row, out);
        oct_memory_get("", &have);
        out->memory = have.limit;
    }
    oct_team_free(team);
    oct_machine_free(here);
    return status;
}
