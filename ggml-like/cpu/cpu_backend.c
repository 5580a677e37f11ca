/* cpu_backend.c: runs a plan on a team of threads, node by node with a barrier behind each. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cpu_impl.h"

static oct_cpu *cpu_of(oct_backend *b)
{
    return (oct_cpu *)(void *)b;
}

/* Nodes that are talk between ranks: thread 0 does it. */
static bool is_exchange(const oct_node *n)
{
    return n->op == OCT_OP_FOLD_RANKS || n->op == OCT_OP_GATHER_LOGITS;
}

static bool cpu_supports(const oct_backend *b, const oct_node *n)
{
    (void)b;
    return is_exchange(n) || oct_cpu_ops[n->op] != NULL;
}

static size_t cpu_temp_bytes(const oct_backend *b, const oct_node *n, int64_t rows)
{
    const oct_cpu *cpu = (const oct_cpu *)(const void *)b;
    if (n->op == OCT_OP_EXPERTS)
        return oct_cpu_experts_temp(cpu, n, rows);
    if (n->op == OCT_OP_ATTENTION)
        return oct_cpu_attention_temp(cpu, n, rows);
    if (n->op == OCT_OP_GATHER_LOGITS)
        return (size_t)(oct_shard_n_slices(&cpu->shard, OCT_SHARD_OF_VOCABULARY) *
                        n->table->slice_rows * (cpu->shard.size + 1)) *
               sizeof(float);
    if (n->op == OCT_OP_LINEAR && n->w[0]->layout.split == OCT_SPLIT_IN && cpu->n_domains > 1)
        return (size_t)(cpu->n_domains * rows * n->w[0]->layout.n_out) * sizeof(float);
    return 0;
}

static size_t cpu_thread_bytes(const oct_backend *b, const oct_node *n, int64_t rows)
{
    (void)rows;
    const oct_cpu *cpu = (const oct_cpu *)(const void *)b;
    switch (n->op) {
    case OCT_OP_ATTENTION: return oct_cpu_attention_scratch(n);
    case OCT_OP_ROUTE: return (size_t)n->plain->rows * sizeof(float);
    case OCT_OP_HEAD:
        return oct_cpu_tiles_bytes(cpu) +
               (cpu->blas ? 64 * (size_t)n->table->cols * sizeof(float) : 0);
    default: return oct_cpu_tiles_bytes(cpu);
    }
}

static oct_status cpu_alloc(oct_backend *b, size_t bytes, unsigned char **p, oct_error *err)
{
    (void)b;
    void *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED)
        return oct_fail(err, OCT_ERR_MEMORY, "buffers: cannot map %zu bytes: %s", bytes,
                        strerror(errno));
    *p = m;
    return OCT_OK;
}

static void cpu_release(oct_backend *b, unsigned char *p, size_t bytes)
{
    (void)b;
    munmap(p, bytes);
}

/* What all threads of a run share. */
typedef struct shared_run {
    oct_cpu *cpu;
    const oct_plan *plan;
    oct_run *run;
    oct_error *err;
    int first, end;
    oct_status status;
    /* 1 + the node behind whose barrier all leave, 0: none. Thread 0 writes it before that barrier.
     * A number, not a flag: a slow thread may read it when thread 0 is a node ahead. */
    _Atomic int stop;
    /* Thread 0, for run->layer_time: the layer that runs, when it began, what was counted then. */
    int64_t layer;
    double began;
    oct_comm_stats talked;
} shared_run;

/* Thread 0, before a node of layer `next`: what has passed is the time of the layer before. */
static void note_time(shared_run *s, int64_t next)
{
    oct_run *r = s->run;
    if (!r->layer_time || next == s->layer)
        return;
    double t = oct_seconds();
    if (s->layer >= 0) {
        oct_node_time *l = &r->layer_time[s->layer];
        l->seconds += t - s->began;
        oct_comm_stats_add(&l->comm, &s->talked, &r->comm->stats);
    }
    s->layer = next;
    s->began = t;
    s->talked = r->comm->stats;
}

static void fold_ranks(shared_run *s, const oct_node *n)
{
    oct_run *r = s->run;
    int64_t rows = n->out->rows / s->plan->graph->rows * (n->out->selected ? r->n_out : r->n_rows);
    s->status = r->comm->fold(r->comm, (float *)(void *)(s->plan->buffer + n->out->offset),
                              rows * n->out->cols, s->err);
}

/* Each rank has made the logits of its rows of the vocabulary; rows of the ranks are equally many,
 * the last rank's may end early. */
static void gather_logits(shared_run *s, const oct_node *n)
{
    oct_run *r = s->run;
    const oct_table *t = n->table;
    int64_t each = oct_shard_n_slices(&s->cpu->shard, OCT_SHARD_OF_VOCABULARY) * t->slice_rows;
    float *mine = (float *)(void *)(s->plan->buffer + n->temp_offset), *all = mine + each;
    for (int64_t i = 0; i < r->n_out && s->status == OCT_OK; i++) {
        float *row = r->logits + i * t->n_rows;
        int64_t at = each * r->comm->rank, count = t->n_rows - at < each ? t->n_rows - at : each;
        memcpy(mine, row + at, (size_t)(count > 0 ? count : 0) * sizeof *row);
        s->status = r->comm->gather(r->comm, mine, (size_t)each * sizeof *row, all, s->err);
        memcpy(row, all, (size_t)t->n_rows * sizeof *row);
    }
}

/* The choices of a layer's router, which came before this node. */
static void note_routes(shared_run *s, const oct_node *n)
{
    oct_run *r = s->run;
    const oct_tensor *t = n->in[1];
    if (n->op != OCT_OP_EXPERTS || !t || !r->expert_rows)
        return;
    int64_t rows = t->selected ? r->n_out : r->n_rows;
    uint64_t hash = r->route_hash[n->layer];
    for (int64_t i = 0; i < rows; i++) {
        const int32_t *expert =
            (const void *)(s->plan->buffer + t->offset + (size_t)i * t->row_bytes);
        for (int64_t k = 0; k < n->n_used; k++) {
            r->expert_rows[expert[k]]++;
            hash = (hash ^ (uint64_t)(expert[k] + 1)) * 0x9e3779b97f4a7c15u;
            hash ^= hash >> 29;
        }
    }
    r->route_hash[n->layer] = hash;
}

int oct_cpu_first_thread(int n_threads, int domain, int n_domains)
{
    return (int)((int64_t)n_threads * domain / n_domains);
}

static void run_thread(void *ctx, int thread, int n_threads)
{
    shared_run *s = ctx;
    int n_domains = s->cpu->n_domains;
    oct_cpu_run c = {
        .cpu = s->cpu, .plan = s->plan, .run = s->run, .thread = thread, .n_threads = n_threads};
    c.scratch = s->plan->buffer + s->plan->shared_bytes + s->plan->thread_bytes * (size_t)thread;
    while (thread >= oct_cpu_first_thread(n_threads, c.domain + 1, n_domains))
        c.domain++;
    c.domain_thread = thread - oct_cpu_first_thread(n_threads, c.domain, n_domains);
    c.domain_threads =
        oct_cpu_first_thread(n_threads, c.domain + 1, n_domains) - thread + c.domain_thread;
    for (int i = s->first; i < s->end; i++) {
        const oct_node *n = &s->plan->graph->nodes[i];
        if (thread == 0) {
            if (s->run->comm && s->run->comm->size > 1)
                atomic_store_explicit(&s->run->comm->layer, n->layer, memory_order_relaxed);
            note_time(s, n->layer);
            note_routes(s, n);
        }
        if (!is_exchange(n))
            oct_cpu_ops[n->op](&c, n);
        else if (thread == 0)
            n->op == OCT_OP_FOLD_RANKS ? fold_ranks(s, n) : gather_logits(s, n);
        if (thread == 0) {
            if (s->status == OCT_OK && s->run->cancel && *s->run->cancel)
                s->status = oct_fail(s->err, OCT_ERR_CANCELLED, "evaluation cancelled");
            if (s->status != OCT_OK)
                atomic_store_explicit(&s->stop, i + 1, memory_order_relaxed);
        }
        oct_team_barrier(s->cpu->team);
        if (atomic_load_explicit(&s->stop, memory_order_relaxed) == i + 1)
            return;
    }
}

static void clear_tails(oct_cpu *cpu)
{
    for (int i = 0; i < OCT_SHARE_PHASES * cpu->n_domains; i++)
        cpu->tails[i].taken = 0;
}

static oct_status cpu_run(oct_backend *b, const oct_plan *p, int first, int end, oct_run *r,
                          oct_error *err)
{
    shared_run s = {
        .cpu = cpu_of(b), .plan = p, .run = r, .err = err, .first = first, .end = end, .layer = -1};
    clear_tails(s.cpu);
    oct_team_run(s.cpu->team, run_thread, &s);
    return s.status;
}

static void cpu_free(oct_backend *b)
{
    oct_cpu *cpu = cpu_of(b);
    oct_team_free(cpu->team);
    oct_blas_close(cpu->blas);
    free(cpu->tails);
    free(cpu);
}

int oct_cpu_domains(const oct_topology *t, int n_threads, int64_t n_slices)
{
    int64_t each = n_slices / t->n_nodes;
    bool subtrees = n_slices % t->n_nodes == 0 && (each & (each - 1)) == 0;
    return subtrees && n_threads >= t->n_nodes ? t->n_nodes : 1;
}

oct_status oct_backend_cpu(const oct_cpu_config *config, oct_backend **out, oct_error *err)
{
    *out = NULL;
    oct_cpu *cpu = calloc(1, sizeof *cpu);
    if (!cpu)
        return oct_fail(err, OCT_ERR_MEMORY, "CPU backend: out of memory");
    cpu->base =
        (oct_backend){"cpu",     config->n_threads, cpu_supports, cpu_temp_bytes, cpu_thread_bytes,
                      cpu_alloc, cpu_release,       cpu_run,      cpu_free};
    cpu->k = &oct_kernel_rows[config->isa];
    cpu->stream_ahead = oct_stream_ahead();
    cpu->n_domains = config->n_domains;
    cpu->shard = config->shard;
    cpu->tails = aligned_alloc(64, sizeof *cpu->tails * OCT_SHARE_PHASES * (size_t)cpu->n_domains);
    oct_status status = OCT_OK;
    if (cpu->tails)
        clear_tails(cpu);
    else
        status = oct_fail(err, OCT_ERR_MEMORY, "CPU backend: out of memory");
    if (status == OCT_OK)
        status =
            oct_topology_team(config->topology, config->n_threads, config->bind, &cpu->team, err);
    if (status == OCT_OK && config->blas)
        status = oct_blas_open(&cpu->blas, err);
    if (status != OCT_OK) {
        cpu_free(&cpu->base);
        return status;
    }
    *out = &cpu->base;
    return OCT_OK;
}
