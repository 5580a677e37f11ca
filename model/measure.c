#include "measure.h"

#include <stdio.h>
#include <string.h>

#include "cpu_impl.h"
#include "probe.h"
#include "session_impl.h"

static const oct_cpu *cpu_of(const oct_session *s)
{
    return (const oct_cpu *)(const void *)s->runner.backend[OCT_HOST];
}

/* ---- a session ------------------------------------------------------------------------------- */

double oct_measure_waited(const oct_session *s)
{
    return oct_team_waited(oct_session_team(s));
}

uint64_t oct_measure_kv_bytes(const oct_session *s)
{
    const oct_kv_cache *kv = &s->p.kv;
    return (uint64_t)(2 * kv->n_layers * kv->n_heads * kv->head_dim) * kv->elem_bytes;
}

const char *oct_session_isa(const oct_session *s)
{
    return cpu_of(s)->k->name;
}

void oct_measure_pages(const oct_model *m, oct_page_stats *out)
{
    FILE *f = fopen("/proc/self/smaps", "re");
    char line[512];
    unsigned long long lo, hi, kib, at = (uintptr_t)m->layers[0].gate_up.data;
    bool inside = false;
    *out = (oct_page_stats){0};
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%llx-%llx ", &lo, &hi) == 2) {
            if (inside)
                break;
            inside = lo <= at && at < hi;
        } else if (inside) {
            if (sscanf(line, "Size: %llu", &kib) == 1)
                out->mapped = kib << 10;
            else if (sscanf(line, "Rss: %llu", &kib) == 1)
                out->resident = kib << 10;
            else if (sscanf(line, "KernelPageSize: %llu", &kib) == 1)
                out->page = kib << 10;
            else if (sscanf(line, "AnonHugePages: %llu", &kib) == 1 ||
                     sscanf(line, "ShmemPmdMapped: %llu", &kib) == 1 ||
                     sscanf(line, "FilePmdMapped: %llu", &kib) == 1)
                out->huge += kib << 10;
        }
    }
    if (f)
        fclose(f);
}

/* ---- reading --------------------------------------------------------------------------------- */

enum { SPANS = 512 }; /* of one run of the threads */

static int64_t n_experts(const oct_session *s)
{
    return s->p.shard.experts.end - s->p.shard.experts.first;
}

/* One span for each expert's panels of each matrix, of the rank's slices: they lie side by side. */
static oct_probe_span span_at(const oct_session *s, int64_t i)
{
    const oct_shard *shard = &s->p.shard;
    const int64_t e = n_experts(s), expert = shard->experts.first + i % e;
    const oct_grok_layer *w = &s->model->layers[i / (2 * e)];
    const oct_weight *t = i / e % 2 ? &w->down : &w->gate_up;
    const int64_t n_slices = oct_shard_n_slices(shard, OCT_SHARD_OF_EXPERTS);
    const char *data = oct_placement_at(s->placement, t->data);
    data += oct_weight_unit_offset(&t->layout, expert, shard->slices[OCT_SHARD_OF_EXPERTS].first);
    return (oct_probe_span){data, t->layout.unit_stride * (size_t)n_slices};
}

double oct_measure_read(oct_session *s, size_t ahead, uint64_t bytes, int64_t *next)
{
    const int64_t n_spans = s->model->config.n_layers * 2 * n_experts(s);
    oct_probe_span spans[SPANS];
    double total = 0, seconds = 0;
    *next = *next < 0 ? 0 : *next;
    while (*next < n_spans && total < (double)bytes) {
        int64_t n = 0;
        double part = 0;
        for (; n < SPANS && *next < n_spans && total + part < (double)bytes; n++) {
            spans[n] = span_at(s, (*next)++);
            part += (double)spans[n].bytes;
        }
        seconds += part / oct_probe_read(oct_session_team(s), cpu_of(s)->k, ahead, spans, n);
        total += part;
    }
    *next = *next < n_spans ? *next : 0;
    return total / seconds;
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

/* Instructions are numbered by row of kernels, then by kind; of several rows that share a probe the
 * first has it. */
static const oct_probe *probe_at(int place, const oct_kernels **row)
{
    const oct_probe_kind kind = (oct_probe_kind)(place % OCT_PROBE_KINDS);
    *row = &oct_kernel_rows[place / OCT_PROBE_KINDS];
    const oct_probe *p = oct_probe_find(kind, *row);
    for (const oct_kernels *k = oct_kernel_rows; p && k < *row; k++)
        p = oct_probe_find(kind, k) == p ? NULL : p;
    return p;
}

/* The instruction with a number; NULL after the last. */
static const oct_probe *numbered(int instruction, const oct_kernels **row, oct_probe_kind *kind)
{
    for (int i = 0; i < oct_n_kernel_rows * OCT_PROBE_KINDS && instruction >= 0; i++) {
        const oct_probe *p = probe_at(i, row);
        *kind = (oct_probe_kind)(i % OCT_PROBE_KINDS);
        if (p && instruction-- == 0)
            return p;
    }
    return NULL;
}

bool oct_instruction_get(int i, oct_instruction *out)
{
    const oct_kernels *row;
    oct_probe_kind kind;
    const oct_probe *p = numbered(i, &row, &kind);
    if (p)
        *out = (oct_instruction){p->name, row->name, kind, p->passes16};
    return p != NULL;
}

int oct_instruction_find(const char *isa, oct_probe_kind kind)
{
    const oct_kernels *row = oct_kernels_find(isa), *other;
    const bool known = row && (unsigned)kind < OCT_PROBE_KINDS;
    const oct_probe *want = known ? oct_probe_find(kind, row) : NULL, *p;
    oct_probe_kind its;
    for (int i = 0; want && (p = numbered(i, &other, &its)); i++)
        if (p == want)
            return i;
    return -1;
}

double oct_measure_peak(oct_session *s, int instruction, double seconds)
{
    const oct_kernels *row;
    oct_probe_kind kind;
    const oct_probe *p = numbered(instruction, &row, &kind);
    return p ? oct_probe_peak(oct_session_team(s), p, seconds) : 0;
}

/* ---- threads --------------------------------------------------------------------------------- */

double oct_measure_barrier(oct_session *s, int64_t n)
{
    return oct_probe_barrier(oct_session_team(s), n);
}

double oct_measure_wake(oct_session *s, int n)
{
    return oct_probe_wake(oct_session_team(s), n);
}
