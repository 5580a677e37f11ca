/* session.c: a model with caches, threads and buffers: evaluates batches of tokens. */
#include <stdlib.h>
#include <string.h>

#include "session_impl.h"
#include "threads.h"
#include "topology.h"

enum { MAX_SEQS = 4096 };

/* What the parameters come to on this machine. */
typedef struct resolved {
    int64_t n_ctx, n_seqs, chunk;
    int n_threads;
    const char *threads_why;
    oct_isa isa;
    int n_domains;
    bool bind;
    oct_shard shard;
    oct_topology topology; /* freed by resolved_free */
} resolved;

static void resolved_free(resolved *r)
{
    oct_topology_free(&r->topology);
}

static oct_status resolve_isa(const char *name, oct_isa *isa, oct_error *err)
{
    const char *source = name ? "isa" : "OCTET_ISA";
    oct_isa best = oct_isa_detect();
    name = name ? name : getenv("OCTET_ISA");
    *isa = best;
    if (!name || !*name)
        return OCT_OK;
    if (!oct_isa_parse(name, isa)) {
        char names[OCT_ISA_NAMES];
        oct_isa_names(names);
        return oct_fail(err, OCT_ERR_ARG, "%s: '%s', expected one of %s", source, name, names);
    }
    if (*isa > best)
        return oct_fail(err, OCT_ERR_UNSUPPORTED,
                        "%s: this CPU cannot run %s; the best it can is %s", source, name,
                        oct_kernel_rows[best].name);
    return OCT_OK;
}

static oct_status in_range(const char *what, int64_t v, int64_t lo, int64_t hi, oct_error *err)
{
    if (v >= lo && v <= hi)
        return OCT_OK;
    return oct_fail(err, OCT_ERR_ARG, "%s: %lld, expected %lld..%lld", what, (long long)v,
                    (long long)lo, (long long)hi);
}

/* A thread that has less than this to read for a token is not worth its barriers. */
enum { BYTES_PER_THREAD = 4 << 20 };

static void choose_threads(const oct_model *m, const oct_session_params *p, resolved *r)
{
    r->n_threads = p->n_threads;
    r->threads_why = "asked";
    if (p->n_threads == 0) {
        uint64_t most = m->info.active_bytes / BYTES_PER_THREAD + 1;
        r->n_threads = r->topology.n_threads;
        r->threads_why = r->topology.why;
        if ((uint64_t)r->n_threads > most) {
            r->n_threads = (int)most;
            r->threads_why = "small model";
        }
    }
    r->bind = !p->no_bind && strcmp(r->topology.why, "cgroup quota") != 0;
    r->n_domains = r->topology.n_nodes;
    for (int kind = 0; kind < OCT_SHARD_KINDS; kind++) { /* what suits all of them */
        int n = oct_cpu_domains(&r->topology, r->n_threads,
                                oct_shard_n_slices(&r->shard, (oct_shard_kind)kind));
        r->n_domains = n < r->n_domains ? n : r->n_domains;
    }
}

static oct_status choose_shard(const oct_model *m, const oct_session_params *p, oct_shard *shard,
                               oct_error *err)
{
    const oct_comm *comm = p->comm ? p->comm : oct_comm_local();
    const char *wrong = oct_shard_make(p->shard, comm->rank, comm->size, m->config.n_slices,
                                       m->config.n_experts, shard);
    if (wrong)
        return oct_fail(err, OCT_ERR_UNSUPPORTED, "%d ranks for %lld slices and %lld experts: %s",
                        comm->size, (long long)m->config.n_slices, (long long)m->config.n_experts,
                        wrong);
    return oct_model_holds(m, shard, err);
}

/* *r must be zero, and freed in any case. */
static oct_status resolve(const oct_model *m, const oct_session_params *p, resolved *r,
                          oct_error *err)
{
    r->n_ctx = p->n_ctx ? p->n_ctx : m->config.n_ctx;
    r->n_seqs = p->n_seqs ? p->n_seqs : 1;
    OCT_TRY(resolve_isa(p->isa, &r->isa, err));
    bool ranks = p->comm && p->comm->size > 1;
    r->chunk = p->chunk ? p->chunk : oct_kernel_rows[ranks ? OCT_ISA_REF : r->isa].chunk;
    OCT_TRY(choose_shard(m, p, &r->shard, err));
    OCT_TRY(oct_topology_load(p->topology, &r->topology, err));
    choose_threads(m, p, r);
    OCT_TRY(in_range("context", r->n_ctx, 1, m->config.n_ctx, err));
    OCT_TRY(in_range("sequences", r->n_seqs, 1, MAX_SEQS, err));
    OCT_TRY(in_range("chunk", r->chunk, 1, 1 << 16, err));
    OCT_TRY(in_range("threads", r->n_threads, 1, OCT_MAX_THREADS, err));
    OCT_TRY(in_range("KV type", p->kv, OCT_KV_F16, OCT_KV_F32, err));
    OCT_TRY(in_range("activations", p->act, OCT_ACT_I16, OCT_ACT_I8, err));
    if (r->chunk > r->n_ctx * r->n_seqs) /* never more rows than there are positions */
        r->chunk = r->n_ctx * r->n_seqs;
    return OCT_OK;
}

/* Everything but memory: graph, plan and cache sizes. s is zeroed; freed by oct_session_free in any
 * state. */
static oct_status prepare(oct_session *s, const oct_model *m, const oct_session_params *p,
                          const resolved *r, oct_error *err)
{
    const oct_grok_config *c = &m->config;
    s->model = m;
    s->n_ctx = r->n_ctx;
    s->n_seqs = r->n_seqs;
    s->chunk = r->chunk;
    s->comm = p->comm ? p->comm : oct_comm_local();
    s->cancel = p->cancel;
    s->attn = (oct_attn_shape){.n_q_heads = c->n_q_heads,
                               .n_kv_heads = c->n_kv_heads,
                               .head_dim = c->head_dim,
                               .n_slices = c->n_slices,
                               .n_ctx = r->n_ctx,
                               .scale = c->attn_scale,
                               .cap = c->attn_cap};
    s->kv.type = p->kv;
    s->kv.n_layers = c->n_layers;
    s->kv.n_domains = r->n_domains;
    s->kv.n_seqs = r->n_seqs;
    s->kv.n_heads =
        c->n_kv_heads / c->n_slices * oct_shard_n_slices(&r->shard, OCT_SHARD_OF_ATTENTION);
    s->kv.head_dim = c->head_dim;
    s->kv.n_ctx = r->n_ctx;
    s->kv.pool_bytes = p->kv_bytes;
    OCT_TRY(oct_kv_cache_plan(&s->kv, err));
    const oct_cpu_config cpu = {.isa = r->isa,
                                .n_threads = r->n_threads,
                                .topology = &r->topology,
                                .bind = r->bind,
                                .blas = p->blas,
                                .n_domains = r->n_domains,
                                .shard = r->shard};
    OCT_TRY(oct_backend_cpu(&cpu, &s->backend, err));
    const int digits = p->act == OCT_ACT_I8 ? 1 : 2;
    OCT_TRY(oct_grok_graph(m, &s->attn, &r->shard, r->chunk, digits, &s->graph, err));
    return oct_plan_make(&s->graph, s->backend, &s->plan, err);
}

static size_t rope_bytes(const oct_session *s)
{
    return (size_t)(s->n_ctx * s->attn.head_dim) * sizeof(float);
}

/* cos and sin of pos * base^(-2j / P). As in xAI's code the angle is a product of two f32. */
static void fill_rope(oct_session *s)
{
    int64_t half = s->attn.head_dim / 2;
    float *cos = s->rope, *sin = s->rope + s->n_ctx * half;
    for (int64_t j = 0; j < half; j++) {
        float inv_freq = oct_rope_inv_freq(s->model->config.rope_base, j, s->attn.head_dim);
        for (int64_t pos = 0; pos < s->n_ctx; pos++)
            oct_sincosf((float)pos * inv_freq, &sin[pos * half + j], &cos[pos * half + j]);
    }
    s->attn.cos = cos;
    s->attn.sin = sin;
}

static oct_status allocate(oct_session *s, oct_error *err)
{
    s->rope = malloc(rope_bytes(s));
    s->row = malloc((size_t)(4 * s->chunk) * sizeof *s->row);
    s->expert_rows = calloc((size_t)s->model->config.n_experts, sizeof *s->expert_rows);
    s->route_hash = calloc((size_t)s->model->config.n_layers * (size_t)(1 + s->comm->size),
                           sizeof *s->route_hash);
    for (int i = 0; i < OCT_PHASES; i++)
        s->phase[i].layer = calloc((size_t)s->model->config.n_layers, sizeof *s->phase[i].layer);
    if (!s->rope || !s->row || !s->expert_rows || !s->route_hash ||
        !s->phase[OCT_PHASE_PROMPT].layer || !s->phase[OCT_PHASE_TEXT].layer)
        return oct_fail(err, OCT_ERR_MEMORY, "session: out of memory for %lld positions",
                        (long long)s->n_ctx);
    fill_rope(s);
    OCT_TRY(oct_kv_cache_alloc(&s->kv, err));
    return oct_plan_alloc(&s->plan, s->backend, err);
}

oct_status oct_session_new(const oct_model *m, const oct_session_params *p, oct_session **out,
                           oct_error *err)
{
    *out = NULL;
    resolved r = {0};
    oct_session *s = calloc(1, sizeof *s);
    if (!s)
        return oct_fail(err, OCT_ERR_MEMORY, "session: out of memory");
    oct_status status = resolve(m, p, &r, err);
    if (status == OCT_OK)
        status = prepare(s, m, p, &r, err);
    if (status == OCT_OK)
        status = allocate(s, err);
    resolved_free(&r);
    s->ready = status == OCT_OK;
    if (status != OCT_OK) {
        oct_session_free(s);
        return status;
    }
    *out = s;
    return OCT_OK;
}

void oct_session_free(oct_session *s)
{
    if (s)
        oct_eval_end(s);
    oct_session_abandon(s);
}

void oct_session_abandon(oct_session *s)
{
    if (!s)
        return;
    if (s->backend) {
        oct_plan_free(&s->plan, s->backend);
        s->backend->free(s->backend);
    }
    oct_kv_cache_free(&s->kv);
    oct_graph_free(&s->graph);
    free(s->rope);
    free(s->row);
    free(s->expert_rows);
    free(s->route_hash);
    for (int i = 0; i < OCT_PHASES; i++)
        free(s->phase[i].layer);
    free(s);
}

/* Bytes of the file that a rank's part lies in. */
static uint64_t shard_weights(const oct_model *m, const oct_shard *s)
{
    const oct_grok_config *c = &m->config;
    const oct_grok_layouts *l = &m->layouts;
    if (s->size == 1)
        return m->info.weight_bytes;
    uint64_t attn = (uint64_t)oct_shard_n_slices(s, OCT_SHARD_OF_ATTENTION);
    uint64_t ffn = (uint64_t)oct_shard_n_slices(s, OCT_SHARD_OF_EXPERTS);
    uint64_t vocab = (uint64_t)oct_shard_n_slices(s, OCT_SHARD_OF_VOCABULARY);
    uint64_t experts = (uint64_t)(s->experts.end - s->experts.first), d = (uint64_t)c->d_model;
    uint64_t layer = attn * (l->qkv.unit_stride + l->qkv.scale_stride + l->attn_out.unit_stride +
                             l->attn_out.scale_stride) +
                     experts * ffn *
                         (l->gate_up.unit_stride + l->gate_up.scale_stride + l->down.unit_stride +
                          l->down.scale_stride) +
                     4 * d * (4 + (uint64_t)c->n_experts);
    return (uint64_t)c->n_layers * layer + vocab * (uint64_t)l->embedding.slice_rows_pad * d * 2 +
           4 * d;
}

int64_t oct_session_default_chunk(void)
{
    oct_isa isa;
    oct_error ignored = {0}; /* who makes a session is told */
    return oct_kernel_rows[resolve_isa(NULL, &isa, &ignored) == OCT_OK ? isa : OCT_ISA_REF].chunk;
}

oct_status oct_session_estimate(const oct_model *m, const oct_session_params *p,
                                oct_session_need *need, oct_error *err)
{
    resolved r = {0};
    oct_session *s = calloc(1, sizeof *s);
    if (!s)
        return oct_fail(err, OCT_ERR_MEMORY, "session: out of memory");
    oct_status status = resolve(m, p, &r, err);
    if (status == OCT_OK)
        status = prepare(s, m, p, &r, err);
    if (status == OCT_OK)
        *need = (oct_session_need){.weights = shard_weights(m, &r.shard),
                                   .kv = s->kv.bytes,
                                   .buffers = s->plan.bytes + rope_bytes(s),
                                   .n_threads = r.n_threads,
                                   .n_domains = r.n_domains,
                                   .isa = oct_kernel_rows[r.isa].name,
                                   .threads_why = r.threads_why};
    resolved_free(&r);
    oct_session_free(s);
    return status;
}

void oct_session_get_parts(oct_session *s, oct_session_parts *p)
{
    *p = (oct_session_parts){s->backend, &s->plan, &s->kv, s->phase};
}

void oct_session_count_as(oct_session *s, oct_phase phase)
{
    s->counts_as = phase;
}

void oct_session_get_stats(const oct_session *s, oct_session_stats *st)
{
    *st = s->stats;
    st->kv_saturated = (uint64_t)s->kv.saturated;
    st->expert_rows = s->expert_rows;
}
