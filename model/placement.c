/* placement.c: a copy of the weights in memory of the process, laid out as the file, every slice
 * bound to the NUMA node whose threads read it, in huge pages where the system gives them. The
 * model stays as it is: sessions are told where to look. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cpu.h"
#include "part.h"
#include "placement.h"
#include "threads.h"

enum { PAGE = 4096, HUGE_PAGE = 2 << 20, COPY_BYTES = 8 << 20, SAMPLES = 512 };

typedef struct copy_job {
    const oct_model *m;
    const oct_own_params *p;
    const oct_topology *topology;
    const oct_numa *numa;
    oct_team *team;
    oct_span_list spans;
    unsigned char *to; /* the new memory, laid out as the file */
    int n_domains;
    oct_own_report *report;
    _Atomic int64_t next[OCT_WEIGHT_MAX_SLICES]; /* of each domain: the next span to look at */
    _Atomic uint64_t copied;
    _Atomic int refused; /* errno of a refused binding */
} copy_job;

static int domain_of(const copy_job *j, const oct_span *s)
{
    return (int)(s->slice * j->n_domains / j->m->config.n_slices);
}

/* The system's number of the node that a span belongs to. */
static int node_of(const copy_job *j, const oct_span *s)
{
    return j->topology->os_node[domain_of(j, s) * j->topology->n_nodes / j->n_domains];
}

/* Before the first touch; a refusal (as in some containers) costs speed only. */
static void bind_span(copy_job *j, const oct_span *s)
{
    int e =
        j->n_domains > 1 ? j->numa->bind(j->numa->ctx, j->to + s->at, s->bytes, node_of(j, s)) : 0;
    if (e)
        j->refused = e;
}

static void copy_range(copy_job *j, uint64_t at, uint64_t bytes)
{
    const unsigned char *from = oct_gguf_bytes(j->m->file);
    for (uint64_t done = 0; done < bytes && !oct_cancelled(j->p->cancel);) {
        uint64_t n = bytes - done < COPY_BYTES ? bytes - done : COPY_BYTES;
        memcpy(j->to + at + done, from + at + done, n);
        /* Whole pages of the file are not needed again. */
        uintptr_t lo = ((uintptr_t)from + at + done + PAGE - 1) / PAGE * PAGE;
        uintptr_t hi = ((uintptr_t)from + at + done + n) / PAGE * PAGE;
        if (hi > lo)
            (void)madvise((void *)lo, hi - lo, MADV_DONTNEED);
        done += n;
        j->copied += n;
    }
}

static void copy_thread(void *ctx, int thread, int n_threads)
{
    copy_job *j = ctx;
    int domain = 0;
    while (thread >= oct_cpu_first_thread(n_threads, domain + 1, j->n_domains))
        domain++;
    for (int64_t i; (i = j->next[domain]++) < j->spans.n;) {
        const oct_span *s = &j->spans.v[i];
        if (domain_of(j, s) != domain || !oct_model_has_span(j->m, s))
            continue;
        bind_span(j, s);
        copy_range(j, s->at, s->bytes);
        if (thread == 0 && j->p->progress)
            j->p->progress(j->p->progress_ctx, j->copied, j->report->bytes);
    }
}

/* What lies between the spans: norms, routers. */
static void copy_rest(copy_job *j)
{
    for (int64_t i = 0; i < oct_gguf_n_tensors(j->m->file); i++) {
        const oct_gguf_tensor *t = oct_gguf_tensor_at(j->m->file, i);
        if (t->dtype == OCT_GGUF_T_F32)
            copy_range(j, t->offset, t->bytes);
    }
}

/* Asks of a sample of spans whether their first page is where it should be. */
static void count_local(copy_job *j)
{
    if (j->n_domains < 2)
        return;
    for (int64_t i = 0; i < j->spans.n; i += j->spans.n / SAMPLES + 1) {
        const oct_span *s = &j->spans.v[i];
        if (!oct_model_has_span(j->m, s))
            continue;
        int node = j->numa->where(j->numa->ctx, j->to + s->at);
        j->report->pages_sampled += node >= 0;
        j->report->pages_local += node >= 0 && node == node_of(j, s);
    }
}

static oct_status copy_all(copy_job *j, oct_placement *out, oct_error *err)
{
    uint64_t bytes = oct_gguf_file_bytes(j->m->file);
    OCT_TRY(oct_model_spans(j->m, &j->spans, err));
    for (int64_t i = 0; i < j->spans.n; i++)
        if (oct_model_has_span(j->m, &j->spans.v[i]))
            j->report->bytes += j->spans.v[i].bytes;
    /* Room to begin where a huge page begins, as the units of the file do. */
    uint64_t room = bytes + HUGE_PAGE;
    void *p = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED)
        return oct_fail(err, OCT_ERR_MEMORY, "model: cannot map %llu bytes: %s",
                        (unsigned long long)bytes, strerror(errno));
    j->to = (unsigned char *)(((uintptr_t)p + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    (void)madvise(p, room, MADV_HUGEPAGE);
    oct_team_run(j->team, copy_thread, j);
    if (j->p->progress) /* thread 0 may have found nothing left to do */
        j->p->progress(j->p->progress_ctx, j->copied, j->report->bytes);
    copy_rest(j);
    if (oct_cancelled(j->p->cancel)) {
        munmap(p, room);
        return oct_fail(err, OCT_ERR_CANCELLED, "loading cancelled");
    }
    count_local(j);
    *out = (oct_placement){.map = p,
                           .map_bytes = room,
                           .from = oct_gguf_bytes(j->m->file),
                           .bytes = bytes,
                           .to = j->to};
    j->report->bind_errno = j->refused;
    return OCT_OK;
}

static oct_status own(copy_job *j, oct_placement *out, oct_error *err)
{
    int n = j->p->n_threads > 0 ? j->p->n_threads : j->topology->n_threads;
    j->n_domains = oct_cpu_domains(j->topology, n, j->m->config.n_slices);
    j->report->n_domains = j->n_domains;
    OCT_TRY(oct_topology_team(j->topology, n, true, &j->team, err));
    oct_status s = copy_all(j, out, err);
    oct_team_free(j->team);
    free(j->spans.v);
    return s;
}

oct_status oct_placement_own_on(const oct_model *m, const oct_own_params *p,
                                const oct_topology *topology, const oct_numa *numa,
                                oct_placement **out, oct_own_report *report, oct_error *err)
{
    *out = NULL;
    *report = (oct_own_report){0};
    copy_job *j = calloc(1, sizeof *j);
    oct_placement *made = calloc(1, sizeof *made);
    oct_status s = j && made ? OCT_OK : oct_fail(err, OCT_ERR_MEMORY, "model: out of memory");
    if (s == OCT_OK) {
        *j = (copy_job){.m = m, .p = p, .topology = topology, .numa = numa, .report = report};
        s = own(j, made, err);
    }
    free(j);
    if (s == OCT_OK)
        *out = made;
    else
        free(made);
    return s;
}

oct_status oct_placement_own(const oct_model *m, const oct_own_params *p, oct_placement **out,
                             oct_own_report *report, oct_error *err)
{
    oct_machine *here;
    const oct_machine *machine;
    oct_numa numa = {0};
    *out = NULL;
    OCT_TRY(oct_machine_find(p->machine, &machine, &here, err));
    const oct_topology *t = &machine->topology;
    oct_status s = t->real ? oct_numa_open(&numa, err) : OCT_OK;
    if (!t->real) /* nothing is bound on a machine that is not there */
        numa = oct_numa_none();
    if (s == OCT_OK)
        s = oct_placement_own_on(m, p, t, &numa, out, report, err);
    oct_numa_close(&numa);
    oct_machine_free(here);
    return s;
}

void oct_placement_free(oct_placement *p)
{
    if (p)
        munmap(p->map, p->map_bytes);
    free(p);
}

const void *oct_placement_at(const void *placement, const void *p)
{
    const oct_placement *a = placement;
    uintptr_t at = (uintptr_t)p - (a ? (uintptr_t)a->from : 0);
    return a && (uintptr_t)p >= (uintptr_t)a->from && at < a->bytes ? a->to + at : p;
}
