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

oct_team *oct_measure_team(const oct_session *s)
{
    return cpu_of(s)->team;
}

/* ---- a session ------------------------------------------------------------------------------- */

double oct_measure_waited(const oct_session *s)
{
    return oct_team_waited(oct_measure_team(s));
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

/* One span for each expert's panels of each matrix: they lie side by side. */
static oct_probe_span span_at(const oct_model *m, int64_t i)
{
    int64_t e = m->config.n_experts;
    const oct_grok_layer *w = &m->layers[i / (2 * e)];
    const oct_weight *t = i / e % 2 ? &w->down : &w->gate_up;
    size_t bytes = t->layout.unit_stride * (size_t)t->layout.n_slices;
    return (oct_probe_span){(const char *)t->data + (size_t)(i % e) * bytes, bytes};
}

double oct_measure_read(oct_session *s, size_t ahead, uint64_t bytes, int64_t *next)
{
    const oct_model *m = s->model;
    const int64_t n_spans = m->config.n_layers * 2 * m->config.n_experts;
    oct_probe_span spans[SPANS];
    double total = 0, seconds = 0;
    while (*next < n_spans && total < (double)bytes) {
        int64_t n = 0;
        double part = 0;
        for (; n < SPANS && *next < n_spans && total + part < (double)bytes; n++) {
            spans[n] = span_at(m, (*next)++);
            part += (double)spans[n].bytes;
        }
        seconds += part / oct_probe_read(oct_measure_team(s), cpu_of(s)->k->isa, ahead, spans, n);
        total += part;
    }
    *next = *next < n_spans ? *next : 0;
    return total / seconds;
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

/* Whether this CPU has what row i of the table needs. */
static bool is_here(int i)
{
    const oct_probe *p = &oct_probes[i];
    return oct_probe_find(p->kind, p->isa) == p;
}

/* Row of the table for the number of an instruction; -1 after the last. */
static int row_of(int instruction)
{
    for (int i = 0; i < oct_n_probes; i++)
        if (is_here(i) && instruction-- == 0)
            return i;
    return -1;
}

bool oct_instruction_get(int i, oct_instruction *out)
{
    int row = i < 0 ? -1 : row_of(i);
    if (row < 0)
        return false;
    const oct_probe *p = &oct_probes[row];
    *out = (oct_instruction){p->name, oct_kernel_rows[p->isa].name, p->kind, p->passes16};
    return true;
}

int oct_instruction_find(const char *isa, oct_probe_kind kind)
{
    oct_isa row;
    const oct_probe *p = oct_isa_parse(isa, &row) ? oct_probe_find(kind, row) : NULL;
    for (int i = 0, number = 0; i < oct_n_probes && p; i++) {
        if (&oct_probes[i] == p)
            return number;
        number += is_here(i);
    }
    return -1;
}

double oct_measure_peak(oct_session *s, int instruction, double seconds)
{
    int row = instruction < 0 ? -1 : row_of(instruction);
    return row < 0 ? 0 : oct_probe_peak(oct_measure_team(s), &oct_probes[row], seconds);
}

/* ---- threads --------------------------------------------------------------------------------- */

double oct_measure_barrier(oct_session *s, int64_t n)
{
    return oct_probe_barrier(oct_measure_team(s), n);
}

double oct_measure_wake(oct_session *s, int n)
{
    return oct_probe_wake(oct_measure_team(s), n);
}
