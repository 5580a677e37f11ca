/* session.c: a model with caches, threads and buffers: evaluates batches of tokens. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "model_impl.h"
#include "plan.h"
#include "threads.h"
#include "topology.h"

enum { DEFAULT_CHUNK = 512, MAX_SEQS = 4096 };

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

struct oct_session {
    const oct_model *model;
    oct_backend *backend;
    oct_graph graph;
    oct_plan plan;
    oct_kv_cache kv;
    oct_attn_shape attn;
    float *rope; /* cos [n_ctx][P/2], then sin */
    int64_t n_seqs, n_ctx, chunk;
    int64_t *len;    /* [n_seqs] positions held */
    int32_t *row;    /* [4][chunk]: token, seq, pos, out_row */
    oct_comm *comm;
    const volatile int *cancel;
    oct_session_stats stats;
};

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
        return oct_fail(err, OCT_ERR_UNSUPPORTED, "%s: this CPU cannot run %s; the best it can is %s",
                        source, name, oct_kernel_rows[best].name);
    return OCT_OK;
}

static oct_status in_range(const char *what, int64_t v, int64_t lo, int64_t hi, oct_error *err)
{
    if (v >= lo && v <= hi)
        return OCT_OK;
    return oct_fail(err, OCT_ERR_ARG, "%s: %lld, expected %lld..%lld", what, (long long)v, (long long)lo,
                    (long long)hi);
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
    r->n_domains = oct_cpu_domains(&r->topology, r->n_threads, r->shard.end_slice - r->shard.first_slice);
}

static oct_status choose_shard(const oct_model *m, const oct_session_params *p, oct_shard *shard,
                               oct_error *err)
{
    const oct_comm *comm = p->comm ? p->comm : oct_comm_local();
    oct_shard_layout layout = p->shard == OCT_SHARD_BY_EXPERT ? OCT_SHARD_EXPERT : OCT_SHARD_SLICE;
    const char *wrong = oct_shard_make(layout, comm->rank, comm->size, m->config.n_slices,
                                       m->config.n_experts, shard);
    return wrong ? oct_fail(err, OCT_ERR_UNSUPPORTED, "%d ranks for %lld slices and %lld experts: %s",
                            comm->size, (long long)m->config.n_slices, (long long)m->config.n_experts,
                            wrong)
                 : OCT_OK;
}

/* *r must be zero, and freed in any case. */
static oct_status resolve(const oct_model *m, const oct_session_params *p, resolved *r, oct_error *err)
{
    r->n_ctx = p->n_ctx ? p->n_ctx : m->config.n_ctx;
    r->n_seqs = p->n_seqs ? p->n_seqs : 1;
    r->chunk = p->chunk ? p->chunk : DEFAULT_CHUNK;
    OCT_TRY(choose_shard(m, p, &r->shard, err));
    OCT_TRY(oct_topology_load(p->topology, &r->topology, err));
    choose_threads(m, p, r);
    OCT_TRY(in_range("context", r->n_ctx, 1, m->config.n_ctx, err));
    OCT_TRY(in_range("sequences", r->n_seqs, 1, MAX_SEQS, err));
    OCT_TRY(in_range("chunk", r->chunk, 1, 1 << 16, err));
    OCT_TRY(in_range("threads", r->n_threads, 1, OCT_MAX_THREADS, err));
    OCT_TRY(in_range("KV type", p->kv, OCT_KV_CACHE_F16, OCT_KV_CACHE_F32, err));
    if (r->chunk > r->n_ctx * r->n_seqs) /* never more rows than there are positions */
        r->chunk = r->n_ctx * r->n_seqs;
    return resolve_isa(p->isa, &r->isa, err);
}

/* Everything but memory: graph, plan and cache sizes. s is zeroed; freed by oct_session_free in any
 * state. */
static oct_status prepare(oct_session *s, const oct_model *m, const oct_session_params *p,
                          const resolved *r, oct_error *err)
{
    static const oct_kv_type kv_types[] = {OCT_KV_F16, OCT_KV_BF16, OCT_KV_F32};
    const oct_grok_config *c = &m->config;
    s->model = m;
    s->n_ctx = r->n_ctx;
    s->n_seqs = r->n_seqs;
    s->chunk = r->chunk;
    s->comm = p->comm ? p->comm : oct_comm_local();
    s->cancel = p->cancel;
    s->attn = (oct_attn_shape){.n_q_heads = c->n_q_heads, .n_kv_heads = c->n_kv_heads,
                               .head_dim = c->head_dim, .n_slices = c->n_slices,
                               .n_ctx = r->n_ctx, .scale = c->attn_scale, .cap = c->attn_cap};
    s->kv.type = kv_types[p->kv];
    s->kv.n_layers = c->n_layers;
    s->kv.n_seqs = r->n_seqs;
    s->kv.n_heads = c->n_kv_heads / c->n_slices * (r->shard.end_slice - r->shard.first_slice);
    s->kv.head_dim = c->head_dim;
    s->kv.n_ctx = r->n_ctx;
    OCT_TRY(oct_kv_cache_plan(&s->kv, err));
    const oct_cpu_config cpu = {.isa = r->isa, .n_threads = r->n_threads, .topology = &r->topology,
                                .bind = r->bind, .blas = p->blas, .n_domains = r->n_domains,
                                .shard = r->shard};
    OCT_TRY(oct_backend_cpu(&cpu, &s->backend, err));
    OCT_TRY(oct_grok_graph(m, &s->attn, &r->shard, r->chunk, &s->graph, err));
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
    s->len = calloc((size_t)s->n_seqs, sizeof *s->len);
    s->row = malloc((size_t)(4 * s->chunk) * sizeof *s->row);
    if (!s->rope || !s->len || !s->row)
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
    if (status != OCT_OK) {
        oct_session_free(s);
        return status;
    }
    *out = s;
    return OCT_OK;
}

void oct_session_free(oct_session *s)
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
    free(s->len);
    free(s->row);
    free(s);
}

oct_status oct_session_estimate(const oct_model *m, const oct_session_params *p, oct_session_need *need,
                                oct_error *err)
{
    resolved r = {0};
    oct_session *s = calloc(1, sizeof *s);
    if (!s)
        return oct_fail(err, OCT_ERR_MEMORY, "session: out of memory");
    oct_status status = resolve(m, p, &r, err);
    if (status == OCT_OK)
        status = prepare(s, m, p, &r, err);
    if (status == OCT_OK)
        *need = (oct_session_need){.weights = m->info.weight_bytes,
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

/* ---- evaluation ----------------------------------------------------------------------------- */

static bool wanted(const oct_batch *b, int64_t i)
{
    return b->want ? b->want[i] != 0 : i == b->n - 1;
}

static oct_status check_token(const oct_session *s, const oct_batch *b, int64_t i, oct_error *err)
{
    const oct_grok_config *c = &s->model->config;
    if (b->token[i] < 0 || b->token[i] >= c->n_vocab)
        return oct_fail(err, OCT_ERR_ARG, "token %lld: id %d, expected 0..%lld", (long long)i, b->token[i],
                        (long long)c->n_vocab - 1);
    if (b->token[i] == c->pad_id)
        return oct_fail(err, OCT_ERR_ARG, "token %lld: id %d is the pad id, which has no meaning in an input",
                        (long long)i, b->token[i]);
    int32_t seq = b->seq ? b->seq[i] : 0;
    if (seq < 0 || seq >= s->n_seqs)
        return oct_fail(err, OCT_ERR_ARG, "token %lld: sequence %d, expected 0..%lld", (long long)i, seq,
                        (long long)s->n_seqs - 1);
    return OCT_OK;
}

/* Everything that can be wrong with a batch, before anything is computed. Counts on s->len and takes
 * it back. */
static oct_status check_batch(oct_session *s, const oct_batch *b, const float *logits, oct_error *err)
{
    if (b->n < 1)
        return oct_fail(err, OCT_ERR_ARG, "batch: %lld tokens, expected at least 1", (long long)b->n);
    oct_status status = OCT_OK;
    int64_t n = 0;
    bool any_wanted = false;
    for (; n < b->n && status == OCT_OK; n++) {
        status = check_token(s, b, n, err);
        if (status != OCT_OK)
            break;
        int32_t seq = b->seq ? b->seq[n] : 0;
        any_wanted |= wanted(b, n);
        if (++s->len[seq] > s->n_ctx)
            status = oct_fail(err, OCT_ERR_ARG,
                              "sequence %d: the batch reaches past the context of %lld positions", seq,
                              (long long)s->n_ctx);
    }
    while (n-- > 0)
        s->len[b->seq ? b->seq[n] : 0]--;
    if (status == OCT_OK && any_wanted && !logits)
        status = oct_fail(err, OCT_ERR_ARG, "batch: logits are wanted but there is no room for them");
    return status;
}

static oct_status check_logits(const float *logits, int64_t n_out, int64_t n_vocab, oct_error *err)
{
    for (int64_t i = 0; i < n_out * n_vocab; i++)
        if (!isfinite(logits[i]))
            return oct_fail(err, OCT_ERR_NUMERIC, "logits: %g for id %lld, expected a finite number",
                            (double)logits[i], (long long)(i % n_vocab));
    return OCT_OK;
}

/* Evaluates tokens first..first+n-1 of the batch; n <= chunk. Positions advance on success only. */
static oct_status eval_chunk(oct_session *s, const oct_batch *b, int64_t first, int64_t n, float *logits,
                             int64_t *n_out, oct_error *err)
{
    int32_t *token = s->row, *seq = token + s->chunk, *pos = seq + s->chunk, *out_row = pos + s->chunk;
    *n_out = 0;
    for (int64_t i = 0; i < n; i++) {
        token[i] = b->token[first + i];
        seq[i] = b->seq ? b->seq[first + i] : 0;
        pos[i] = (int32_t)s->len[seq[i]]++;
        if (wanted(b, first + i))
            out_row[(*n_out)++] = (int32_t)i;
    }
    oct_run run = {.n_rows = n, .token = token, .seq = seq, .pos = pos, .n_out = *n_out,
                   .out_row = out_row, .logits = logits, .kv = &s->kv, .comm = s->comm,
                   .cancel = s->cancel};
    oct_status status = s->backend->run(s->backend, &s->plan, 0, s->graph.n_nodes, &run, err);
    if (status == OCT_OK)
        status = check_logits(logits, *n_out, s->model->config.n_vocab, err);
    if (status != OCT_OK) {
        for (int64_t i = 0; i < n; i++)
            s->len[seq[i]]--;
        return status;
    }
    s->stats.tokens += (uint64_t)n;
    s->stats.bytes_read += run.bytes_read + run.kv_read;
    s->stats.kv_read += run.kv_read;
    return OCT_OK;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

oct_status oct_eval(oct_session *s, const oct_batch *b, float *logits, oct_error *err)
{
    OCT_TRY(check_batch(s, b, logits, err));
    double start = now();
    oct_status status = OCT_OK;
    for (int64_t first = 0; first < b->n && status == OCT_OK; first += s->chunk) {
        int64_t n = b->n - first < s->chunk ? b->n - first : s->chunk, n_out;
        status = eval_chunk(s, b, first, n, logits, &n_out, err);
        if (logits)
            logits += n_out * s->model->config.n_vocab;
    }
    double seconds = now() - start;
    s->stats.seconds += seconds;
    if (seconds > s->stats.max_eval_seconds)
        s->stats.max_eval_seconds = seconds;
    return status;
}

void oct_session_get_parts(oct_session *s, oct_session_parts *p)
{
    *p = (oct_session_parts){s->backend, &s->plan, &s->kv};
}

int64_t oct_session_pos(const oct_session *s, int32_t seq)
{
    return seq >= 0 && seq < s->n_seqs ? s->len[seq] : 0;
}

void oct_session_truncate(oct_session *s, int32_t seq, int64_t n)
{
    if (seq >= 0 && seq < s->n_seqs && n >= 0 && n < s->len[seq])
        s->len[seq] = n;
}

void oct_session_get_stats(const oct_session *s, oct_session_stats *st)
{
    *st = s->stats;
    st->kv_saturated = (uint64_t)s->kv.saturated;
}
