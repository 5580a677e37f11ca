/* operation.c: single operations of a plan, alone: experts, attention. */
#include <stdlib.h>
#include <string.h>

#include "cpu_impl.h"
#include "f16.h"
#include "machine.h"
#include "measure.h"
#include "probe.h"
#include "session_impl.h"

/* A session whose nodes are run one at a time on made-up inputs. */
struct oct_operation {
    oct_session *session;
    oct_status (*once)(oct_operation *o, oct_operation_run *run, oct_error *err);
    oct_run run;
    int64_t rows;
    int32_t *ids; /* four times [rows]: token, seq, pos, out_row of run */
    int64_t next; /* the expert whose turn it is */
};

static oct_status operation_new(const oct_model *m, const oct_session_params *like, int64_t rows,
                                int64_t n_seqs, int64_t n_ctx, oct_operation **out, oct_error *err)
{
    const oct_session_params p = {.n_ctx = n_ctx,
                                  .n_seqs = n_seqs,
                                  .chunk = rows,
                                  .n_threads = like->n_threads,
                                  .kv = like->kv,
                                  .act = like->act,
                                  .isa = like->isa};
    *out = NULL;
    if (rows < 1)
        return oct_fail(err, OCT_ERR_ARG, "operation: %lld rows, expected at least 1",
                        (long long)rows);
    oct_operation *o = calloc(1, sizeof *o);
    if (!o)
        return oct_fail(err, OCT_ERR_MEMORY, "operation: out of memory");
    oct_status status = oct_session_new(m, &p, &o->session, err);
    if (status != OCT_OK) {
        oct_operation_free(o);
        return status;
    }
    o->rows = rows;
    o->ids = calloc((size_t)(4 * rows), sizeof *o->ids);
    if (!o->ids) {
        oct_operation_free(o);
        return oct_fail(err, OCT_ERR_MEMORY, "operation: no memory for %lld rows", (long long)rows);
    }
    int32_t *token = o->ids, *seq = token + rows, *pos = seq + rows, *out_row = pos + rows;
    for (int64_t i = 0; i < rows; i++)
        out_row[i] = (int32_t)i;
    o->run = (oct_run){.n_rows = rows,
                       .token = token,
                       .seq = seq,
                       .pos = pos,
                       .n_out = rows,
                       .out_row = out_row,
                       .kv = o->session->kv,
                       .cancel = like->cancel};
    *out = o;
    return OCT_OK;
}

void oct_operation_free(oct_operation *o)
{
    if (!o)
        return;
    oct_session_free(o->session);
    free(o->ids);
    free(o);
}

oct_status oct_operation_do(oct_operation *o, oct_operation_run *run, oct_error *err)
{
    *run = (oct_operation_run){0};
    o->run.bytes_read = o->run.kv_read = 0;
    double waited = oct_measure_waited(o->session), start = oct_seconds();
    OCT_TRY(o->once(o, run, err));
    run->seconds = oct_seconds() - start;
    run->waited = oct_measure_waited(o->session) - waited;
    run->bytes = (double)(o->run.bytes_read + o->run.kv_read);
    return OCT_OK;
}

/* The next node of an operation from node i on, -1 if there is none. */
static int find_node(const oct_operation *o, oct_op op, int i)
{
    const oct_graph *g = &o->session->p.graph;
    for (; i < g->n_nodes; i++)
        if (g->nodes[i].op == op)
            return i;
    return -1;
}

static oct_status run_node(oct_operation *o, int i, oct_error *err)
{
    oct_runner *r = &o->session->runner; /* all is the host's: steps are nodes */
    oct_backend *cpu = r->backend[OCT_HOST];
    return cpu->run(cpu, r->plan, r->buffer[OCT_HOST], i, i + 1, &o->run, err);
}

/* Uniform in -1..1. */
static float noise(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*state >> 32) * 0x1p-31f;
}

static unsigned char *data_of(const oct_operation *o, const oct_tensor *t)
{
    const oct_runner *r = &o->session->runner;
    return r->buffer[OCT_HOST] + oct_plan_offset(r->plan, OCT_HOST, t);
}

static void fill_noise(oct_operation *o, const oct_tensor *t, uint64_t seed)
{
    float *x = (float *)(void *)data_of(o, t);
    for (int64_t i = 0; i < t->rows * t->cols; i++)
        x[i] = noise(&seed);
}

/* ---- experts --------------------------------------------------------------------------------- */

/* Sends all rows to the experts whose turn it is. */
static void route_all(oct_operation *o, const oct_node *n)
{
    const oct_tensor *routes = n->in[1];
    if (!routes)
        return;
    unsigned char *out = data_of(o, routes);
    for (int64_t r = 0; r < o->rows; r++) {
        int32_t *expert = (int32_t *)(void *)(out + (size_t)r * routes->row_bytes);
        for (int64_t s = 0; s < n->n_used; s++)
            expert[s] = (int32_t)((o->next + s) % o->session->model->config.n_experts);
    }
    o->next += n->n_used;
}

/* Quantisation, sorting rows, gate and up, gelu, quantisation again, down. */
static oct_status experts_once(oct_operation *o, oct_operation_run *run, oct_error *err)
{
    const oct_grok_config *c = &o->session->model->config;
    int i = find_node(o, OCT_OP_EXPERTS, 0);
    route_all(o, &o->session->p.graph.nodes[i]);
    run->rows = (double)(o->rows * c->n_used);
    run->ops = run->rows * 6 * (double)c->d_model * (double)c->d_ff;
    return run_node(o, i, err);
}

oct_status oct_operation_experts(const oct_model *m, const oct_session_params *p, int64_t n_rows,
                                 uint64_t seed, oct_operation **out, oct_error *err)
{
    OCT_TRY(operation_new(m, p, n_rows, n_rows, 1, out, err));
    (*out)->once = experts_once;
    int i = find_node(*out, OCT_OP_EXPERTS, 0);
    fill_noise(*out, (*out)->session->p.graph.nodes[i].in[0], seed);
    return OCT_OK;
}

/* ---- attention ------------------------------------------------------------------------------- */

enum { PATTERN = 1 << 16 };

typedef struct fill_job {
    oct_kv_cache *kv;
    const unsigned char *pattern; /* [PATTERN] values of the cache's type */
} fill_job;

/* Every thread writes the heads it will mostly read, so that their pages come to lie near it. */
static void fill_thread(void *ctx, int thread, int n_threads)
{
    const fill_job *j = ctx;
    const oct_kv_cache *kv = j->kv;
    int64_t lo, hi;
    oct_team_range(kv->n_heads, thread, n_threads, &lo, &hi);
    for (int64_t i = 0; i < kv->n_layers * kv->n_seqs * (hi - lo); i++) {
        int64_t head = lo + i % (hi - lo), seq = i / (hi - lo);
        for (int64_t pos = 0; pos < kv->n_ctx; pos += OCT_KV_PAGE) {
            unsigned char *out = oct_kv_cache_k(kv, seq / kv->n_seqs, seq % kv->n_seqs, head, pos);
            for (size_t at = 0; at < kv->head_bytes; at += PATTERN)
                memcpy(out + at, j->pattern,
                       kv->head_bytes - at < PATTERN ? kv->head_bytes - at : PATTERN);
        }
    }
}

/* Every sequence takes its whole context, of ids that no other has. */
static oct_status hold_context(oct_session *s, oct_error *err)
{
    const oct_kv_cache *kv = &s->kv[OCT_HOST];
    int32_t *seq = malloc((size_t)(2 * kv->n_ctx) * sizeof *seq);
    if (!seq)
        return oct_fail(err, OCT_ERR_MEMORY, "operation: no memory for keys and values");
    int32_t *pos = seq + kv->n_ctx;
    for (int32_t q = 0; q < kv->n_seqs; q++) {
        for (int64_t i = 0; i < kv->n_ctx; i++)
            seq[i] = q;
        oct_kv_pages_begin(&s->pages, seq, seq, kv->n_ctx, pos);
        oct_kv_pages_end(&s->pages, true);
    }
    free(seq);
    return OCT_OK;
}

static oct_status fill_cache(oct_operation *o, uint64_t seed, oct_error *err)
{
    oct_kv_cache *kv = &o->session->kv[OCT_HOST];
    OCT_TRY(hold_context(o->session, err));
    unsigned char *pattern = malloc(PATTERN);
    if (!pattern)
        return oct_fail(err, OCT_ERR_MEMORY, "operation: no memory for keys and values");
    for (int64_t i = 0; i < PATTERN / (int64_t)kv->elem_bytes; i++) {
        float x = noise(&seed);
        uint16_t half = kv->type == OCT_KV_BF16 ? oct_bf16_of_f32(x) : oct_f16_of_f32(x);
        if (kv->elem_bytes == sizeof x)
            memcpy(pattern + i * 4, &x, sizeof x);
        else
            memcpy(pattern + i * 2, &half, sizeof half);
    }
    fill_job job = {kv, pattern};
    oct_team_run(oct_session_team(o->session), fill_thread, &job);
    free(pattern);
    return OCT_OK;
}

/* One token for each of a batch of sequences, batch after batch, in every layer. */
static oct_status attention_once(oct_operation *o, oct_operation_run *run, oct_error *err)
{
    const oct_session *s = o->session;
    const oct_grok_config *c = &s->model->config;
    const oct_kv_cache *kv = &s->kv[OCT_HOST];
    int32_t *seq = o->ids + o->rows, *pos = seq + o->rows;
    for (int64_t first = 0; first + o->rows <= kv->n_seqs; first += o->rows) {
        for (int64_t i = 0; i < o->rows; i++) {
            seq[i] = (int32_t)(first + i);
            pos[i] = (int32_t)kv->n_ctx - 1;
        }
        for (int i = find_node(o, OCT_OP_ATTENTION, 0); i >= 0;
             i = find_node(o, OCT_OP_ATTENTION, i + 1))
            OCT_TRY(run_node(o, i, err));
    }
    run->rows = (double)kv->n_seqs;
    /* A product and a sum for each key and value of each query head, and no more: softcap and
     * exponential are not counted. */
    run->ops = run->rows * (double)c->n_layers * (double)kv->n_ctx * (double)c->n_q_heads * 4 *
               (double)c->head_dim;
    return OCT_OK;
}

oct_status oct_operation_attention(const oct_model *m, const oct_session_params *p, int64_t batch,
                                   uint64_t kv_bytes, uint64_t seed, int64_t *n_seqs,
                                   oct_operation **out, oct_error *err)
{
    const oct_grok_config *c = &m->config;
    oct_operation *o;
    uint64_t position =
        (uint64_t)(2 * c->n_layers * c->n_kv_heads * c->head_dim * oct_kv_elem_bytes(p->kv));
    uint64_t each = position * (uint64_t)c->n_ctx, want = kv_bytes / each + (kv_bytes % each > 0);
    *out = NULL;
    if (batch < 1 || want > INT32_MAX || batch > INT32_MAX)
        return oct_fail(err, OCT_ERR_ARG,
                        "operation: batches of %lld of %llu sequences, expected 1..%d of them",
                        (long long)batch, (unsigned long long)want, INT32_MAX);
    int64_t n = ((int64_t)want + batch - 1) / batch * batch;
    n = n > 0 ? n : batch;
    OCT_TRY(operation_new(m, p, batch, n, c->n_ctx, &o, err));
    o->once = attention_once;
    oct_status status = fill_cache(o, seed, err);
    for (int i = find_node(o, OCT_OP_ATTENTION, 0); i >= 0 && status == OCT_OK;
         i = find_node(o, OCT_OP_ATTENTION, i + 1))
        fill_noise(o, o->session->p.graph.nodes[i].in[0], seed);
    if (status != OCT_OK) {
        oct_operation_free(o);
        o = NULL;
    }
    *out = o;
    *n_seqs = n;
    return status;
}

double oct_operation_read(oct_operation *o, size_t ahead)
{
    const oct_session *s = o->session;
    const oct_probe_span whole = {s->kv[OCT_HOST].data,
                                  (size_t)s->kv[OCT_HOST].bytes & ~(size_t)255};
    return oct_probe_read(oct_session_team(s), s->p.cpu.k, ahead, &whole, 1);
}
