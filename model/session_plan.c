#include "session_plan.h"

#include <string.h>

enum {
    MAX_SEQS = 4096,
    BYTES_PER_THREAD = 4 << 20 /* a thread that has less to read for a token is not worth its
                                  barriers */
};

static oct_status in_range(const char *what, int64_t v, int64_t lo, int64_t hi, oct_error *err)
{
    if (v >= lo && v <= hi)
        return OCT_OK;
    return oct_fail(err, OCT_ERR_ARG, "%s: %lld, expected %lld..%lld", what, (long long)v,
                    (long long)lo, (long long)hi);
}

static void choose_threads(const oct_model *m, const oct_session_params *p, const oct_topology *t,
                           oct_session_plan *s)
{
    s->cpu.n_threads = p->n_threads;
    s->threads_why = "asked";
    if (p->n_threads == 0) {
        uint64_t max = m->info.active_bytes / BYTES_PER_THREAD + 1;
        s->cpu.n_threads = t->n_threads;
        s->threads_why = t->why;
        if ((uint64_t)t->n_threads > max) {
            s->cpu.n_threads = (int)max;
            s->threads_why = "small model";
        }
    }
    s->bind = !p->no_bind && strcmp(t->why, "cgroup quota") != 0;
    s->cpu.n_domains = t->n_nodes;
    for (int kind = 0; kind < OCT_SHARD_KINDS; kind++) { /* what suits all of them */
        int n = oct_cpu_domains(t, s->cpu.n_threads,
                                oct_shard_n_slices(&s->shard, (oct_shard_kind)kind));
        s->cpu.n_domains = n < s->cpu.n_domains ? n : s->cpu.n_domains;
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

static oct_status resolve(const oct_model *m, const oct_session_params *p,
                          const oct_machine *machine, oct_session_plan *s, oct_error *err)
{
    s->n_ctx = p->n_ctx ? p->n_ctx : m->config.n_ctx;
    s->n_seqs = p->n_seqs ? p->n_seqs : 1;
    s->cpu.blas = p->blas;
    OCT_TRY(oct_kernels_choose(p->isa, machine->isa, &s->cpu.k, err));
    bool ranks = p->comm && p->comm->size > 1;
    s->chunk = p->chunk ? p->chunk : (ranks ? &oct_kernel_rows[OCT_KERNELS_REF] : s->cpu.k)->chunk;
    OCT_TRY(choose_shard(m, p, &s->shard, err));
    s->cpu.shard = s->shard;
    choose_threads(m, p, &machine->topology, s);
    OCT_TRY(in_range("context", s->n_ctx, 1, m->config.n_ctx, err));
    OCT_TRY(in_range("sequences", s->n_seqs, 1, MAX_SEQS, err));
    OCT_TRY(in_range("chunk", s->chunk, 1, 1 << 16, err));
    OCT_TRY(in_range("threads", s->cpu.n_threads, 1, OCT_MAX_THREADS, err));
    OCT_TRY(in_range("KV type", p->kv, OCT_KV_F16, OCT_KV_F32, err));
    OCT_TRY(in_range("activations", p->act, OCT_ACT_I16, OCT_ACT_I8, err));
    if (s->chunk > s->n_ctx * s->n_seqs) /* never more rows than there are positions */
        s->chunk = s->n_ctx * s->n_seqs;
    return OCT_OK;
}

static oct_status shape(const oct_model *m, const oct_session_params *p, oct_session_plan *s,
                        oct_error *err)
{
    const oct_grok_config *c = &m->config;
    s->rope = (oct_plain){.name = "rope", .rows = 2 * s->n_ctx, .cols = c->head_dim / 2};
    s->attn = (oct_attn_shape){.n_q_heads = c->n_q_heads,
                               .n_kv_heads = c->n_kv_heads,
                               .head_dim = c->head_dim,
                               .n_slices = c->n_slices,
                               .n_ctx = s->n_ctx,
                               .scale = c->attn_scale,
                               .cap = c->attn_cap,
                               .rope = &s->rope};
    int64_t slices = oct_shard_n_slices(&s->shard, OCT_SHARD_OF_ATTENTION);
    s->kv = (oct_kv_cache){.type = p->kv,
                           .n_layers = c->n_layers,
                           .n_heads = c->n_kv_heads / c->n_slices * slices,
                           .head_dim = c->head_dim,
                           .n_domains = s->cpu.n_domains,
                           .n_seqs = s->n_seqs,
                           .n_ctx = s->n_ctx,
                           .pool_bytes = p->kv_bytes};
    return oct_kv_cache_plan(&s->kv, err);
}

/* The graph takes the first half of the room, its plan the rest. */
static oct_status plan(const oct_model *m, const oct_session_params *p, const oct_devices *d,
                       unsigned char *room, size_t room_bytes, oct_session_plan *s, oct_error *err)
{
    const int digits = p->act == OCT_ACT_I8 ? 1 : 2;
    const size_t half = room_bytes / 2 / 64 * 64;
    OCT_TRY(oct_grok_graph(m, &s->attn, &s->shard, s->chunk, digits, room, half, &s->graph, err));
    oct_plan_spec spec = {.shard = &s->shard, .n_places = 1};
    spec.place[OCT_HOST].kind = &oct_cpu_kind;
    spec.place[OCT_HOST].numbers = &s->cpu;
    if (d) {
        uint8_t *where = oct_arena_alloc(&s->graph.arena, (size_t)s->graph.n_nodes);
        if (!where)
            return oct_fail(err, OCT_ERR_MEMORY, "plan: out of memory");
        d->deal(d->ctx, &s->graph, where);
        for (int i = 0; i < d->n; i++, spec.n_places++) {
            spec.place[1 + i].kind = d->device[i].kind;
            spec.place[1 + i].numbers = d->device[i].numbers;
        }
        spec.where = where;
    } else if (p->gpus && s->cpu.k != &oct_kernel_rows[OCT_KERNELS_REF]) {
        const oct_gpu_task task = {.gpus = p->gpus,
                                   .kv = &s->kv,
                                   .n_layers = m->config.n_layers,
                                   .streams = !p->no_streaming,
                                   .numbers = {.shard = s->shard,
                                               .blas = p->blas,
                                               .rows = s->chunk,
                                               .n_seqs = s->n_seqs,
                                               .seq_pages = oct_kv_pages_of(s->n_ctx)}};
        return oct_gpu_deal_make(&task, &s->graph, &spec, room ? room + half : NULL, half, &s->gpus,
                                 &s->plan, err);
    }
    return oct_plan_make(&s->graph, &spec, room ? room + half : NULL, half, &s->plan, err);
}

oct_status oct_session_plan_make(const oct_model *m, const oct_session_params *p,
                                 const oct_machine *machine, const oct_devices *d, void *room,
                                 size_t room_bytes, oct_session_plan *s, oct_error *err)
{
    memset(s, 0, sizeof *s);
    OCT_TRY(resolve(m, p, machine, s, err));
    OCT_TRY(shape(m, p, s, err));
    return plan(m, p, d, room, room_bytes, s, err);
}

oct_status oct_session_plan_ranks(const oct_model *m, const oct_shard *shard, void *room,
                                  size_t room_bytes, oct_session_plan *s)
{
    const oct_session_params p = {.kv = OCT_KV_F16};
    memset(s, 0, sizeof *s);
    s->n_ctx = s->n_seqs = s->chunk = 1;
    s->shard = s->cpu.shard = *shard;
    s->cpu.k = &oct_kernel_rows[OCT_KERNELS_REF];
    s->cpu.n_threads = s->cpu.n_domains = 1;
    OCT_TRY(shape(m, &p, s, NULL));
    return plan(m, &p, NULL, room, room_bytes, s, NULL);
}

void oct_session_plan_free(oct_session_plan *s)
{
    oct_plan_free(&s->plan);
    oct_graph_free(&s->graph);
}
