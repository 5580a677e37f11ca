/* place.c: where the weights lie. At first they are pages of the mapped file, which the kernel
 * brings in when they are first read, on the node of whoever reads them. Two things can be done
 * about that:
 *
 *   own    a private copy in anonymous memory, laid out as the file, every slice bound to the NUMA
 *          node whose threads read it, in huge pages where the system gives them
 *   keep   a rank unmaps what other ranks compute
 *
 * Both work on units (see q8.h) and slices of the embedding, which are whole pages. */
#include <errno.h>
#include <linux/mempolicy.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "model_impl.h"
#include "plan.h"
#include "threads.h"
#include "topology.h"

enum { PAGE = 4096, HUGE_PAGE = 2 << 20, COPY_BYTES = 8 << 20, SAMPLES = 512 };

/* A run of pages of the file that belongs to one slice. */
typedef struct span {
    uint64_t at, bytes; /* in the file */
    int64_t expert, slice;
    oct_shard_kind kind;
} span;

typedef struct span_list {
    span *v;
    int64_t n;
} span_list;

static uint64_t file_offset(const oct_model *m, const void *p)
{
    return (uint64_t)((const unsigned char *)p - (const unsigned char *)oct_gguf_bytes(m->file));
}

static void add_matrix(const oct_model *m, const oct_weight *w, span_list *out)
{
    const oct_weight_layout *l = &w->layout;
    for (int64_t e = 0; e < l->n_experts; e++)
        for (int64_t s = 0; s < l->n_slices; s++) {
            if (out->v) {
                out->v[out->n] = (span){file_offset(m, w->data) + oct_weight_unit_offset(l, e, s),
                                        l->unit_stride, e, s, w->kind};
                out->v[out->n + 1] =
                    (span){file_offset(m, w->scales) + oct_weight_scale_offset(l, e, s),
                           l->scale_stride, e, s, w->kind};
            }
            out->n += 2;
        }
}

/* All spans; counts only where out->v is NULL. The tensors must still point into the file. */
static void list_spans(const oct_model *m, span_list *out)
{
    out->n = 0;
    for (int64_t i = 0; i < m->config.n_layers; i++) {
        const oct_grok_layer *w = &m->layers[i];
        add_matrix(m, &w->qkv, out);
        add_matrix(m, &w->attn_out, out);
        add_matrix(m, &w->gate_up, out);
        add_matrix(m, &w->down, out);
    }
    uint64_t bytes = (uint64_t)(m->embedding.slice_rows_pad * m->embedding.cols) * sizeof(uint16_t);
    for (int64_t s = 0; s < m->config.n_slices; s++, out->n++)
        if (out->v)
            out->v[out->n] = (span){file_offset(m, m->embedding.data) + (uint64_t)s * bytes, bytes,
                                    0, s, OCT_SHARD_OF_VOCABULARY};
}

static oct_status make_spans(const oct_model *m, span_list *out, oct_error *err)
{
    *out = (span_list){0};
    list_spans(m, out);
    out->v = calloc((size_t)out->n, sizeof *out->v);
    if (!out->v)
        return oct_fail(err, OCT_ERR_MEMORY, "model: out of memory for %lld pieces",
                        (long long)out->n);
    list_spans(m, out);
    return OCT_OK;
}

/* ---- parts ----------------------------------------------------------------------------------- */

static bool is_mine(const span *s, const oct_shard *shard)
{
    const oct_shard_range slices = shard->slices[s->kind], experts = shard->experts;
    return s->slice >= slices.first && s->slice < slices.end &&
           (s->kind != OCT_SHARD_OF_EXPERTS ||
            (s->expert >= experts.first && s->expert < experts.end));
}

static int by_offset(const void *a, const void *b)
{
    const span *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

oct_status oct_model_part(const oct_model *m, const oct_shard *shard, oct_part *part,
                          oct_error *err)
{
    span_list spans;
    *part = (oct_part){.layout = shard->layout,
                       .rank = shard->rank,
                       .size = shard->size,
                       .whole_bytes = oct_gguf_file_bytes(m->file)};
    OCT_TRY(make_spans(m, &spans, err));
    qsort(spans.v, (size_t)spans.n, sizeof *spans.v, by_offset);
    part->run = calloc((size_t)spans.n + 1, sizeof *part->run);
    uint64_t at = 0; /* what is before it is in a run, or of another rank */
    for (int64_t i = 0; i <= spans.n && part->run; i++) {
        uint64_t end = i < spans.n ? spans.v[i].at : part->whole_bytes;
        if (i < spans.n && is_mine(&spans.v[i], shard))
            continue;
        if (end > at)
            part->run[part->n_runs++] = (oct_part_run){.at = at, .bytes = end - at};
        at = i < spans.n ? end + spans.v[i].bytes : end;
    }
    free(spans.v);
    if (!part->run)
        return oct_fail(err, OCT_ERR_MEMORY, "model: out of memory for a part");
    oct_part_place(part);
    return OCT_OK;
}

oct_status oct_model_holds(const oct_model *m, const oct_shard *shard, oct_error *err)
{
    const oct_part *p = oct_gguf_part(m->file);
    char have[OCT_PART_NAME_MAX], want[OCT_PART_NAME_MAX];
    if (!p || (p->rank == shard->rank && p->size == shard->size && p->layout == shard->layout))
        return OCT_OK;
    return oct_fail(err, OCT_ERR_UNSUPPORTED, "%s: holds the part of %s, asked for is %s",
                    oct_gguf_path(m->file), oct_part_name(p->layout, p->rank, p->size, have),
                    oct_part_name(shard->layout, shard->rank, shard->size, want));
}

/* ---- keep ------------------------------------------------------------------------------------ */

oct_status oct_model_keep_part(oct_model *m, int rank, int size, oct_shard_layout by,
                               oct_error *err)
{
    oct_shard shard;
    span_list spans;
    const char *wrong =
        oct_shard_make(by, rank, size, m->config.n_slices, m->config.n_experts, &shard);
    if (wrong)
        return oct_fail(err, OCT_ERR_ARG, "part %d of %d: %s", rank, size, wrong);
    if (m->owned)
        return oct_fail(err, OCT_ERR_ARG, "part %d of %d: the weights are not mapped", rank, size);
    OCT_TRY(oct_model_holds(m, &shard, err));
    if (oct_gguf_part(m->file))
        return OCT_OK; /* no more than that is mapped */
    OCT_TRY(make_spans(m, &spans, err));
    for (int64_t i = 0; i < spans.n; i++) {
        const span *s = &spans.v[i];
        /* Something unusable instead of nothing: the range stays the model's until it is closed. A
         * refusal leaves pages mapped that nobody touches. */
        if (!is_mine(s, &shard))
            (void)!mmap((void *)((uintptr_t)oct_gguf_bytes(m->file) + s->at), s->bytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    }
    free(spans.v);
    return OCT_OK;
}

/* ---- own ------------------------------------------------------------------------------------- */

typedef struct copy_job {
    oct_model *m;
    const oct_own_params *p;
    const oct_topology *topology;
    oct_team *team;
    span_list spans;
    unsigned char *to; /* the new memory, laid out as the file */
    int n_domains;
    oct_own_report *report;
    _Atomic int64_t next[64]; /* of each domain: the next span to look at */
    _Atomic uint64_t copied;
    _Atomic int refused; /* errno of a refused binding */
} copy_job;

static int domain_of(const copy_job *j, const span *s)
{
    return (int)(s->slice * j->n_domains / j->m->config.n_slices);
}

static bool is_held(const oct_model *m, const span *s)
{
    const oct_part *p = oct_gguf_part(m->file);
    return !p || oct_part_holds(p, s->at, s->bytes);
}

/* Before the first touch; a refusal (as in some containers) costs speed only. */
static void bind_span(copy_job *j, const span *s)
{
    int node = j->topology->os_node[domain_of(j, s) * j->topology->n_nodes / j->n_domains];
    unsigned long mask[16] = {0};
    if (j->topology->n_nodes < 2 || !j->topology->real || node < 0 || node >= (int)sizeof mask * 8)
        return;
    mask[(size_t)node / (8 * sizeof *mask)] |= 1ul << ((size_t)node % (8 * sizeof *mask));
    if (syscall(SYS_mbind, j->to + s->at, s->bytes, MPOL_BIND, mask, sizeof mask * 8, 0) != 0)
        j->refused = errno;
}

static void copy_range(copy_job *j, uint64_t at, uint64_t bytes)
{
    const unsigned char *from = oct_gguf_bytes(j->m->file);
    for (uint64_t done = 0; done < bytes && !(j->p->cancel && *j->p->cancel);) {
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
        const span *s = &j->spans.v[i];
        if (domain_of(j, s) != domain || !is_held(j->m, s))
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

/* Pages of a sample that lie on the node they should; needs a real machine of several nodes. */
static void count_local(copy_job *j)
{
    void *page[SAMPLES];
    int status[SAMPLES], want[SAMPLES];
    unsigned long n = 0;
    for (int64_t i = 0; i < j->spans.n && n < SAMPLES; i += j->spans.n / SAMPLES + 1) {
        if (!is_held(j->m, &j->spans.v[i]))
            continue;
        page[n] = j->to + j->spans.v[i].at;
        want[n] = j->topology
                      ->os_node[domain_of(j, &j->spans.v[i]) * j->topology->n_nodes / j->n_domains];
    }
    if (j->topology->n_nodes < 2 || !j->topology->real ||
        syscall(SYS_move_pages, 0, n, page, NULL, status, 0) != 0)
        return;
    for (unsigned long i = 0; i < n; i++) {
        j->report->pages_sampled++;
        j->report->pages_local += status[i] == want[i];
    }
}

static void *moved(const copy_job *j, const void *p)
{
    return p ? j->to + file_offset(j->m, p) : NULL;
}

static void move_matrix(const copy_job *j, oct_weight *w)
{
    w->data = moved(j, w->data);
    w->scales = moved(j, w->scales);
}

static void switch_over(copy_job *j)
{
    oct_model *m = j->m;
    for (int64_t i = 0; i < m->config.n_layers; i++) {
        oct_grok_layer *w = &m->layers[i];
        oct_weight *packed[] = {&w->qkv, &w->attn_out, &w->gate_up, &w->down};
        oct_tensor *plain[] = {&w->router, &w->norm_attn_in, &w->norm_attn_out, &w->norm_ffn_in,
                               &w->norm_ffn_out};
        for (size_t k = 0; k < sizeof packed / sizeof *packed; k++)
            move_matrix(j, packed[k]);
        for (size_t k = 0; k < sizeof plain / sizeof *plain; k++)
            plain[k]->data = moved(j, plain[k]->data);
    }
    m->norm_final.data = moved(j, m->norm_final.data);
    m->embedding.data = moved(j, m->embedding.data);
}

static oct_status copy_all(copy_job *j, oct_error *err)
{
    uint64_t bytes = oct_gguf_file_bytes(j->m->file);
    OCT_TRY(make_spans(j->m, &j->spans, err));
    for (int64_t i = 0; i < j->spans.n; i++)
        if (is_held(j->m, &j->spans.v[i]))
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
    if (j->p->cancel && *j->p->cancel) {
        munmap(p, room);
        return oct_fail(err, OCT_ERR_CANCELLED, "loading cancelled");
    }
    count_local(j);
    switch_over(j);
    j->m->owned = p;
    j->m->owned_bytes = room;
    j->report->bind_errno = j->refused;
    return OCT_OK;
}

oct_status oct_model_own(oct_model *m, const oct_own_params *p, oct_own_report *report,
                         oct_error *err)
{
    oct_topology t;
    *report = (oct_own_report){0};
    if (m->owned)
        return OCT_OK;
    copy_job *j = calloc(1, sizeof *j);
    oct_status s = oct_topology_load(p->topology, &t, err);
    if (s == OCT_OK && !j)
        s = oct_fail(err, OCT_ERR_MEMORY, "model: out of memory");
    if (s == OCT_OK) {
        int n = p->n_threads > 0 ? p->n_threads : t.n_threads;
        j->m = m;
        j->p = p;
        j->topology = &t;
        j->report = report;
        j->n_domains = oct_cpu_domains(&t, n, m->config.n_slices);
        report->n_domains = j->n_domains;
        s = oct_topology_team(&t, n, true, &j->team, err);
    }
    if (s == OCT_OK)
        s = copy_all(j, err);
    if (j) {
        oct_team_free(j->team);
        free(j->spans.v);
    }
    free(j);
    oct_topology_free(&t);
    return s;
}
