/* bench_parts.c: single operations of a plan, alone: one expert's matrices, attention. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "f16.h"

/* A session whose nodes are run one at a time on made-up inputs. */
typedef struct part {
    oct_bench_rig *rig;
    oct_session *session;
    oct_session_parts of;
    oct_run run;
    int32_t *ids; /* four times [room]: token, seq, pos, out_row of run */
    int64_t room;
    int64_t next; /* expert or sequence whose turn it is */
} part;

static oct_status part_new(part *p, int64_t rows, int64_t n_seqs, int64_t n_ctx, oct_error *err)
{
    const oct_bench *b = p->rig->b;
    oct_session_params params = {.n_ctx = n_ctx,
                                 .n_seqs = n_seqs,
                                 .chunk = rows,
                                 .n_threads = p->rig->n_threads,
                                 .kv = (oct_kv_type)b->kv,
                                 .act = (oct_act)b->act,
                                 .isa = b->kernels->name};
    p->room = rows;
    p->ids = calloc((size_t)(4 * rows), sizeof *p->ids);
    if (!p->ids)
        return oct_fail(err, OCT_ERR_MEMORY, "bench: no memory for %lld rows", (long long)rows);
    OCT_TRY(oct_session_new(b->model, &params, &p->session, err));
    oct_session_get_parts(p->session, &p->of);
    int32_t *token = p->ids, *seq = token + rows, *pos = seq + rows, *out_row = pos + rows;
    for (int64_t i = 0; i < rows; i++)
        out_row[i] = (int32_t)i;
    p->run = (oct_run){.n_rows = rows,
                       .token = token,
                       .seq = seq,
                       .pos = pos,
                       .n_out = rows,
                       .out_row = out_row,
                       .kv = p->of.kv,
                       .cancel = oct_cli_cancel_flag()};
    return OCT_OK;
}

static void part_free(part *p)
{
    oct_session_free(p->session);
    free(p->ids);
}

/* The next node of an operation from node i on, -1 if there is none. */
static int find_node(const part *p, oct_op op, int i)
{
    const oct_graph *g = p->of.plan->graph;
    for (; i < g->n_nodes; i++)
        if (g->nodes[i].op == op)
            return i;
    return -1;
}

static oct_status run_node(part *p, int i, oct_error *err)
{
    return p->of.cpu->run(p->of.cpu, p->of.plan, p->of.buffer, i, i + 1, &p->run, err);
}

/* Uniform in -1..1. */
static float noise(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*state >> 32) * 0x1p-31f;
}

static void fill_noise(part *p, const oct_tensor *t)
{
    float *x = (float *)(void *)(p->of.buffer + oct_plan_offset(p->of.plan, OCT_HOST, t));
    uint64_t state = p->rig->b->seed;
    for (int64_t i = 0; i < t->rows * t->cols; i++)
        x[i] = noise(&state);
}

static json_t *new_row(const part *p, const char *test, int64_t tokens, int64_t depth)
{
    return oct_bench_row(p->rig, test, tokens, depth, p->room, p->room);
}

static oct_status finish(part *p, oct_status status, const oct_probe *probe, oct_bench_fn *fn,
                         json_t *row, oct_error *err)
{
    if (status == OCT_OK)
        status = oct_bench_measure(p->rig, probe, fn, p, row, err);
    if (status == OCT_OK)
        json_array_append(p->rig->b->rows, row);
    json_decref(row);
    return status;
}

/* ---- experts --------------------------------------------------------------------------------- */

/* Sends all rows to the experts whose turn it is. */
static void route_all(part *p, const oct_node *n)
{
    const oct_tensor *routes = n->in[1];
    if (!routes)
        return;
    unsigned char *out = p->of.buffer + oct_plan_offset(p->of.plan, OCT_HOST, routes);
    for (int64_t r = 0; r < p->room; r++) {
        int32_t *expert = (int32_t *)(void *)(out + (size_t)r * routes->row_bytes);
        for (int64_t s = 0; s < n->n_used; s++)
            expert[s] = (int32_t)((p->next + s) % p->rig->b->model->config.n_experts);
    }
    p->next += n->n_used;
}

/* The experts' part of a layer: sorting rows, gate and up, gelu, quantisation, down. */
static oct_status expert_once(void *ctx, oct_bench_run *run, oct_error *err)
{
    part *p = ctx;
    const oct_grok_config *c = &p->rig->b->model->config;
    int i = find_node(p, OCT_OP_EXPERTS, 0);
    route_all(p, &p->of.plan->graph->nodes[i]);
    p->run.bytes_read = 0;
    double waited = oct_bench_waited(p->session), start = oct_seconds();
    OCT_TRY(run_node(p, i, err));
    run->seconds = oct_seconds() - start;
    run->waited = oct_bench_waited(p->session) - waited;
    run->tokens = (double)(p->room * c->n_used);
    run->bytes = (double)p->run.bytes_read;
    run->ops = run->tokens * 6 * (double)c->d_model * (double)c->d_ff * oct_bench_passes(p->rig);
    return OCT_OK;
}

oct_status oct_bench_expert(oct_bench_rig *r, int64_t n_rows, oct_error *err)
{
    part p = {.rig = r};
    oct_status s = part_new(&p, n_rows, n_rows, 1, err);
    if (s == OCT_OK) {
        int i = find_node(&p, OCT_OP_EXPERTS, 0);
        fill_noise(&p, p.of.plan->graph->nodes[i].in[0]);
    }
    s = finish(&p, s, r->integer, expert_once, new_row(&p, "expert", n_rows, 0), err);
    part_free(&p);
    return s;
}

/* ---- attention ------------------------------------------------------------------------------- */

enum { KV_BYTES = 1 << 30, PATTERN = 1 << 16 };

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
static oct_status hold_context(part *p, oct_error *err)
{
    const oct_kv_cache *kv = p->of.kv;
    int32_t *seq = malloc((size_t)(2 * kv->n_ctx) * sizeof *seq), *pos = seq + kv->n_ctx;
    if (!seq)
        return oct_fail(err, OCT_ERR_MEMORY, "bench: no memory for keys and values");
    for (int32_t q = 0; q < kv->n_seqs; q++) {
        for (int64_t i = 0; i < kv->n_ctx; i++)
            seq[i] = q;
        oct_kv_pages_begin(p->of.pages, seq, seq, kv->n_ctx, pos);
        oct_kv_pages_end(p->of.pages, true);
    }
    free(seq);
    return OCT_OK;
}

static oct_status fill_cache(part *p, oct_error *err)
{
    oct_kv_cache *kv = p->of.kv;
    OCT_TRY(hold_context(p, err));
    unsigned char *pattern = malloc(PATTERN);
    uint64_t state = p->rig->b->seed;
    if (!pattern)
        return oct_fail(err, OCT_ERR_MEMORY, "bench: no memory for keys and values");
    for (int64_t i = 0; i < PATTERN / (int64_t)kv->elem_bytes; i++) {
        float x = noise(&state);
        uint16_t half = kv->type == OCT_KV_BF16 ? oct_bf16_of_f32(x) : oct_f16_of_f32(x);
        if (kv->elem_bytes == sizeof x)
            memcpy(pattern + i * 4, &x, sizeof x);
        else
            memcpy(pattern + i * 2, &half, sizeof half);
    }
    fill_job job = {kv, pattern};
    oct_team_run(((oct_cpu *)(void *)p->of.cpu)->team, fill_thread, &job);
    free(pattern);
    return OCT_OK;
}

/* One token for each of a batch of sequences, batch after batch, in every layer. */
static oct_status attention_once(void *ctx, oct_bench_run *run, oct_error *err)
{
    part *p = ctx;
    const oct_grok_config *c = &p->rig->b->model->config;
    oct_kv_cache *kv = p->of.kv;
    int32_t *seq = p->ids + p->room, *pos = seq + p->room;
    p->run.kv_read = 0;
    double waited = oct_bench_waited(p->session), start = oct_seconds();
    for (int64_t first = 0; first + p->room <= kv->n_seqs; first += p->room) {
        for (int64_t i = 0; i < p->room; i++) {
            seq[i] = (int32_t)(first + i);
            pos[i] = (int32_t)kv->n_ctx - 1;
        }
        for (int i = find_node(p, OCT_OP_ATTENTION, 0); i >= 0;
             i = find_node(p, OCT_OP_ATTENTION, i + 1))
            OCT_TRY(run_node(p, i, err));
    }
    run->seconds = oct_seconds() - start;
    run->waited = oct_bench_waited(p->session) - waited;
    run->tokens = (double)(kv->n_seqs / p->room * p->room);
    run->bytes = (double)p->run.kv_read;
    /* A product and a sum for each key and value of each query head, and no more: softcap and
     * exponential are not counted. */
    run->ops = run->tokens * (double)c->n_layers * (double)kv->n_ctx * (double)c->n_q_heads * 4 *
               (double)c->head_dim;
    return OCT_OK;
}

oct_status oct_bench_attention(oct_bench_rig *r, int64_t batch, oct_error *err)
{
    const oct_grok_config *c = &r->b->model->config;
    int64_t position =
        2 * c->n_layers * c->n_kv_heads * c->head_dim * oct_kv_elem_bytes((oct_kv_type)r->b->kv);
    int64_t n_seqs = (KV_BYTES + position * c->n_ctx - 1) / (position * c->n_ctx);
    n_seqs = (n_seqs + batch - 1) / batch * batch;
    part p = {.rig = r};
    oct_status s = part_new(&p, batch, n_seqs, c->n_ctx, err);
    if (s == OCT_OK)
        s = fill_cache(&p, err);
    /* The read probe of these measurements reads the very keys and values. */
    oct_probe_span whole = {0}, *spans = r->spans;
    int64_t n_spans = r->n_spans;
    if (s == OCT_OK) {
        for (int i = find_node(&p, OCT_OP_ATTENTION, 0); i >= 0;
             i = find_node(&p, OCT_OP_ATTENTION, i + 1))
            fill_noise(&p, p.of.plan->graph->nodes[i].in[0]);
        whole = (oct_probe_span){p.of.kv->data, (size_t)p.of.kv->bytes & ~(size_t)255};
        r->spans = &whole;
        r->n_spans = 1;
    }
    s = finish(&p, s, r->f32, attention_once, new_row(&p, "attention", n_seqs, c->n_ctx), err);
    r->spans = spans;
    r->n_spans = n_spans;
    part_free(&p);
    return s;
}
