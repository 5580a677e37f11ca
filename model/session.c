/* session.c: a model with caches, threads and buffers, as a plan says. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpu_impl.h"
#include "job_impl.h"
#include "probe.h"
#include "session_impl.h"
#include "threads.h"
#include "topology.h"

oct_team *oct_session_team(const oct_session *s)
{
    return ((const oct_cpu *)(const void *)s->runner.backend[OCT_HOST])->team;
}

/* cos and sin of pos * base^(-2j / P). As in xAI's code the angle is a product of two f32. */
static void fill_rope(oct_session *s)
{
    int64_t half = s->p.rope.cols;
    float *cos = s->rope, *sin = s->rope + s->p.n_ctx * half;
    for (int64_t j = 0; j < half; j++) {
        float inv_freq = oct_rope_inv_freq(s->model->config.rope_base, j, s->p.attn.head_dim);
        for (int64_t pos = 0; pos < s->p.n_ctx; pos++)
            oct_sincosf((float)pos * inv_freq, &sin[pos * half + j], &cos[pos * half + j]);
    }
}

static oct_status allocate_tables(oct_session *s, oct_error *err)
{
    size_t n_layers = (size_t)s->model->config.n_layers;
    s->rope = malloc(oct_session_rope_bytes(&s->p));
    s->pos = malloc((size_t)s->p.chunk * sizeof *s->pos);
    s->order = malloc(oct_order_bytes(oct_order_rows(s)));
    s->expert_rows = calloc((size_t)s->model->config.n_experts, sizeof *s->expert_rows);
    s->route_hash = calloc((n_layers + 1) * (size_t)(1 + s->comm->size), sizeof *s->route_hash);
    for (int i = 0; i < OCT_PHASES; i++)
        s->phase[i].layer = calloc(n_layers, sizeof *s->phase[i].layer);
    if (!s->rope || !s->pos || !s->order || !s->expert_rows || !s->route_hash ||
        !s->phase[OCT_PHASE_PROMPT].layer || !s->phase[OCT_PHASE_TEXT].layer)
        return oct_fail(err, OCT_ERR_MEMORY, "session: out of memory for %lld positions",
                        (long long)s->p.n_ctx);
    fill_rope(s);
    s->p.rope.data = s->rope;
    return OCT_OK;
}

/* Of a place with a memory of its own. */
static oct_status allocate_kv_at(oct_session *s, int place, oct_error *err)
{
    oct_backend *b = s->runner.backend[place];
    void *p;
    s->failed = place;
    OCT_TRY(b->alloc(b, s->kv[place].bytes, &p, err));
    s->failed = OCT_HOST;
    s->kv[place].data = p;
    s->kv[place].pages = &s->pages;
    return OCT_OK;
}

/* One pool of pages; the keys and values of a layer are where its attention is. */
static oct_status allocate_kv(oct_session *s, oct_error *err)
{
    const oct_plan *plan = &s->p.plan;
    OCT_TRY(oct_kv_pages_init(&s->pages, s->p.n_seqs, s->p.n_ctx, s->p.kv.n_pages, NULL, err));
    for (int i = 0; i < plan->n_places; i++) {
        oct_kv_cache *kv = &s->kv[i];
        const bool host = s->runner.backend[i]->kind->host;
        if (plan->need[i].kv_layers == 0)
            continue;
        *kv = s->p.kv;
        if (plan->need[i].kv_layers != kv->n_layers || !host)
            *kv = oct_kv_cache_of_layers(kv, plan->need[i].kv_layers);
        OCT_TRY(host ? oct_kv_cache_alloc(kv, &s->pages, err) : allocate_kv_at(s, i, err));
    }
    return OCT_OK;
}

static oct_status open_devices(oct_session *s, const oct_devices *d, oct_error *err)
{
    const int n = s->p.plan.n_places - 1;
    for (int i = 0; i < n; i++) {
        s->failed = 1 + i;
        OCT_TRY(d ? d->device[i].open(d->device[i].numbers, &s->runner.backend[1 + i], err)
                  : oct_cuda_open(&s->p.gpus.numbers[i], &s->runner.backend[1 + i], err));
    }
    s->failed = OCT_HOST;
    return OCT_OK;
}

/* What decides about streaming: the slowest link of the GPUs, and what the host's threads do now. A
 * kernel of many rows gets about 0.6 of the instruction's peak; a multiprocessor, of int8 products
 * with both digits, 1e12 operations per second or more (README of bench). */
static oct_status measure_rates(oct_session *s, const oct_gpus *gpus, oct_error *err)
{
    const double kernel_share = 0.6, sm_ops = 1e12;
    const oct_probe *peak = oct_probe_find(OCT_PROBE_INT, s->p.cpu.k);
    oct_stream_rates rates = {0};
    oct_rank_pace pace;
    for (int i = 0; i < s->p.gpus.n; i++) {
        const oct_gpu *g = &gpus->gpu[s->p.gpus.share[i].gpu];
        if (s->p.gpus.share[i].streams && (rates.link == 0 || g->link < rates.link)) {
            rates.link = g->link;
            rates.device_ops = sm_ops * g->n_sms;
        }
    }
    if (!(rates.link > 0) || !peak)
        return OCT_OK;
    OCT_TRY(oct_rank_measure(oct_comm_local(), 1, s->p.cpu.n_threads, s->p.cpu.k, &pace, err));
    rates.read = pace.read;
    rates.host_ops = kernel_share * oct_probe_peak(oct_session_team(s), peak, 0.01) /
                     (s->p.graph.digits == 2 ? peak->passes16 : 1);
    s->runner.rates = rates;
    return OCT_OK;
}

static oct_status carry_out(oct_session *s, const oct_session_params *p, const oct_machine *machine,
                            const oct_devices *d, oct_error *err)
{
    OCT_TRY(allocate_tables(s, err));
    s->runner.comm = s->comm;
    OCT_TRY(
        oct_cpu_open(&s->p.cpu, &machine->topology, s->p.bind, &s->runner.backend[OCT_HOST], err));
    OCT_TRY(open_devices(s, d, err));
    OCT_TRY(allocate_kv(s, err));
    oct_status status =
        oct_runner_open(&s->runner, &s->p.plan, oct_placement_at, p->placement, err);
    s->failed = s->runner.failed;
    if (status == OCT_OK && !d && p->gpus)
        status = measure_rates(s, p->gpus, err);
    return status;
}

/* A session as planned, or what there was of it when it failed. */
static oct_status make(const oct_model *m, const oct_session_params *p, const oct_machine *machine,
                       const oct_devices *d, oct_session **out, oct_error *err)
{
    oct_session *s = calloc(1, sizeof *s);
    *out = s;
    if (!s)
        return oct_fail(err, OCT_ERR_MEMORY, "session: out of memory");
    s->model = m;
    s->placement = p->placement;
    s->comm = p->comm ? p->comm : oct_comm_local();
    s->cancel = p->cancel;
    s->process = getpid();
    oct_status status = oct_session_plan_make(m, p, machine, d, NULL, 0, &s->p, err);
    return status == OCT_OK ? carry_out(s, p, machine, d, err) : status;
}

/* Whether it was a GPU that failed a session; then less is expected of it. */
static bool expect_less(const oct_session *s, oct_status status, oct_gpus *gpus)
{
    if (status == OCT_OK || !s || s->failed == OCT_HOST || s->failed > s->p.gpus.n)
        return false;
    if (status == OCT_ERR_UNSUPPORTED) /* cuBLAS, which was asked for */
        return false;
    const oct_gpu_share *share = &s->p.gpus.share[s->failed - 1];
    uint64_t used = share->weights + share->kv + share->buffers;
    /* What is out of memory may have some; what fails otherwise will go on failing. */
    gpus->gpu[share->gpu].budget = status == OCT_ERR_MEMORY ? used - used / 8 - 1 : 0;
    return true;
}

/* Plans anew with less as long as a GPU fails. */
static oct_status make_with_gpus(const oct_model *m, const oct_session_params *p,
                                 const oct_machine *machine, oct_session **out, oct_error *err)
{
    oct_gpus gpus = *p->gpus;
    oct_session_params params = *p;
    char why[OCT_ERROR_TEXT] = "";
    params.gpus = &gpus;
    for (;;) {
        oct_error e = {0};
        oct_status status = make(m, &params, machine, NULL, out, &e);
        if (!expect_less(*out, status, &gpus)) {
            if (status == OCT_OK)
                memcpy((*out)->gpu_why, why, sizeof why);
            return status == OCT_OK ? OCT_OK : oct_fail(err, status, "%s", e.text);
        }
        if (!why[0])
            memcpy(why, e.text, sizeof why);
        oct_session_free(*out);
        *out = NULL;
    }
}

oct_status oct_session_new_on(const oct_model *m, const oct_session_params *p, const oct_devices *d,
                              oct_session **out, oct_error *err)
{
    *out = NULL;
    oct_machine *here;
    const oct_machine *machine;
    oct_session *s = NULL;
    OCT_TRY(oct_machine_find(p->machine, &machine, &here, err));
    oct_status status =
        p->gpus && !d ? make_with_gpus(m, p, machine, &s, err) : make(m, p, machine, d, &s, err);
    oct_machine_free(here);
    if (status != OCT_OK) {
        oct_session_free(s);
        return status;
    }
    s->ready = true;
    s->uses = true;
    oct_model_use(m, &s->p.shard);
    *out = s;
    return OCT_OK;
}

oct_status oct_session_new(const oct_model *m, const oct_session_params *p, oct_session **out,
                           oct_error *err)
{
    return oct_session_new_on(m, p, NULL, out, err);
}

void oct_session_free(oct_session *s)
{
    if (s && s->process == getpid()) /* else the ranks are another process's */
        oct_eval_end(s);
    oct_session_abandon(s);
}

void oct_session_abandon(oct_session *s)
{
    if (!s)
        return;
    if (s->uses)
        oct_model_unuse(s->model);
    for (int i = 0; i < s->p.plan.n_places; i++) {
        oct_backend *b = s->runner.backend[i];
        if (b && !b->kind->host && s->kv[i].data)
            b->release(b, s->kv[i].data, s->kv[i].bytes);
        else
            oct_kv_cache_free(&s->kv[i]);
    }
    oct_runner_free(&s->runner);
    oct_kv_pages_free(&s->pages);
    oct_session_plan_free(&s->p);
    free(s->rope);
    free(s->pos);
    free(s->order);
    free(s->expert_rows);
    free(s->route_hash);
    for (int i = 0; i < OCT_PHASES; i++)
        free(s->phase[i].layer);
    free(s);
}

int64_t oct_session_default_chunk(void)
{
    const oct_kernels *row;
    oct_error ignored = {0}; /* oct_session_new reports this error */
    if (oct_kernels_choose(NULL, oct_isa_detect(), &row, &ignored) != OCT_OK)
        row = &oct_kernel_rows[OCT_KERNELS_REF];
    return row->chunk;
}

static oct_status estimate_on(const oct_model *m, const oct_session_params *p,
                              const oct_machine *machine, oct_session_need *need, oct_error *err)
{
    _Alignas(64) unsigned char room[OCT_SESSION_PLAN_ROOM];
    oct_session_plan s;
    oct_status status = oct_session_plan_make(m, p, machine, NULL, room, sizeof room, &s, err);
    if (status == OCT_OK) {
        *need = (oct_session_need){
            .weights = s.plan.need[OCT_HOST].weights,
            .kv = s.kv.page_bytes / (uint64_t)s.kv.n_layers *
                  (uint64_t)s.plan.need[OCT_HOST].kv_layers * (uint64_t)s.kv.n_pages,
            .buffers = s.plan.need[OCT_HOST].buffer + oct_session_rope_bytes(&s),
            .chunk = s.chunk,
            .n_threads = s.cpu.n_threads,
            .n_domains = s.cpu.n_domains,
            .isa = s.cpu.k->name,
            .threads_why = s.threads_why,
            .n_gpus = s.gpus.n};
        memcpy(need->gpu, s.gpus.share, sizeof need->gpu);
    }
    oct_session_plan_free(&s);
    return status;
}

oct_status oct_session_estimate(const oct_model *m, const oct_session_params *p,
                                oct_session_need *need, oct_error *err)
{
    oct_machine *here;
    const oct_machine *machine;
    OCT_TRY(oct_machine_find(p->machine, &machine, &here, err));
    oct_status status = estimate_on(m, p, machine, need, err);
    oct_machine_free(here);
    return status;
}

const oct_phase_time *oct_session_phases(const oct_session *s)
{
    return s->phase;
}

void oct_session_count_as(oct_session *s, oct_phase phase)
{
    if ((unsigned)phase < OCT_PHASES)
        s->counts_as = phase;
}

int oct_session_get_gpus(const oct_session *s, oct_gpu_share out[OCT_MAX_GPUS], const char **why)
{
    memcpy(out, s->p.gpus.share, sizeof s->p.gpus.share);
    if (why)
        *why = s->gpu_why;
    return s->p.gpus.n;
}

int64_t oct_session_stream_rows(const oct_session *s)
{
    for (int i = 0; i < s->p.plan.n_steps; i++)
        if (s->p.plan.steps[i].streamed && s->runner.rates.link > 0)
            return oct_stream_break_even(&s->runner.rates, s->p.plan.steps[i].node,
                                         s->p.shard.experts);
    return INT64_MAX;
}

void oct_session_get_stats(const oct_session *s, oct_session_stats *st)
{
    *st = s->stats;
    st->kv_saturated = 0;
    for (int i = 0; i < s->p.plan.n_places; i++)
        st->kv_saturated += (uint64_t)s->kv[i].saturated;
    st->expert_rows = s->expert_rows;
}
