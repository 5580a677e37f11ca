/* cpu_backend.c: runs steps on a team of threads, with a barrier behind each. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cpu_impl.h"
#include "machine.h"

static oct_cpu *cpu_of(oct_backend *b)
{
    return (oct_cpu *)(void *)b;
}

static bool cpu_supports(const void *numbers, const oct_node *n)
{
    (void)numbers;
    for (int k = 0; k < 2 && n->w[k]; k++)
        if (!oct_weight_takes(n->w[k]->layout.type, n->digits))
            return false;
    return oct_cpu_ops[n->op] != NULL;
}

static size_t cpu_temp_bytes(const void *numbers, const oct_node *n, int64_t rows)
{
    switch (n->op) {
    case OCT_OP_LINEAR: return oct_cpu_linear_temp(numbers, n, rows);
    case OCT_OP_EXPERTS: return oct_cpu_experts_temp(numbers, n, rows);
    case OCT_OP_ATTENTION: return oct_cpu_attention_temp(numbers, n, rows);
    default: return 0;
    }
}

static size_t thread_bytes(const oct_cpu_numbers *c, const oct_node *n)
{
    switch (n->op) {
    case OCT_OP_ATTENTION: return oct_cpu_attention_scratch(n);
    case OCT_OP_ROUTE: return (size_t)n->plain->rows * sizeof(float);
    case OCT_OP_HEAD:
        return oct_cpu_tiles_bytes(c) +
               (c->blas ? OCT_HEAD_ROWS * (size_t)n->table->cols * sizeof(float) : 0);
    case OCT_OP_LINEAR:
    case OCT_OP_EXPERTS: return oct_cpu_tiles_bytes(c);
    default: return 0;
    }
}

/* Each thread's begins at a multiple of 64. */
static size_t cpu_scratch_bytes(const void *numbers, const oct_node *n, int64_t rows)
{
    const oct_cpu_numbers *c = numbers;
    (void)rows;
    return (size_t)c->n_threads * ((thread_bytes(c, n) + 63) / 64 * 64);
}

const oct_backend_kind oct_cpu_kind = {.name = "cpu",
                                       .host = true,
                                       .supports = cpu_supports,
                                       .temp_bytes = cpu_temp_bytes,
                                       .scratch_bytes = cpu_scratch_bytes};

static oct_status cpu_alloc(oct_backend *b, size_t bytes, void **p, oct_error *err)
{
    (void)b;
    void *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED)
        return oct_fail(err, OCT_ERR_MEMORY, "buffers: cannot map %zu bytes: %s", bytes,
                        strerror(errno));
    *p = m;
    return OCT_OK;
}

static void cpu_release(oct_backend *b, void *p, size_t bytes)
{
    (void)b;
    munmap(p, bytes);
}

static oct_status cpu_copy(oct_backend *b, void *to, const void *from, size_t bytes, oct_error *err)
{
    (void)b, (void)err;
    memcpy(to, from, bytes);
    return OCT_OK;
}

static void cpu_begin(oct_backend *b)
{
    oct_team_begin(cpu_of(b)->team);
}

static void cpu_end(oct_backend *b)
{
    oct_team_end(cpu_of(b)->team);
}

/* What all threads of a run share. */
typedef struct shared_run {
    oct_cpu *cpu;
    const oct_plan *plan;
    unsigned char *buffer;
    oct_run *run;
    int first, end;
    /* Index + 1 of the step after which all threads return; 0: none. Thread 0 writes it before the
     * barrier behind that step. A number, not a flag: a slow thread may read it when thread 0 is a
     * step ahead. */
    _Atomic int stop;
} shared_run;

int oct_cpu_first_thread(int n_threads, int domain, int n_domains)
{
    return (int)((int64_t)n_threads * domain / n_domains);
}

static void run_thread(void *ctx, int thread, int n_threads)
{
    shared_run *s = ctx;
    const oct_plan *p = s->plan;
    int n_domains = s->cpu->n.n_domains;
    oct_cpu_run c = {.cpu = s->cpu,
                     .plan = p,
                     .buffer = s->buffer,
                     .place = p->steps[s->first].place,
                     .run = s->run,
                     .thread = thread,
                     .n_threads = n_threads};
    c.scratch = s->buffer + p->need[c.place].shared +
                p->need[c.place].scratch / (size_t)n_threads * (size_t)thread;
    while (thread >= oct_cpu_first_thread(n_threads, c.domain + 1, n_domains))
        c.domain++;
    c.domain_thread = thread - oct_cpu_first_thread(n_threads, c.domain, n_domains);
    c.domain_threads =
        oct_cpu_first_thread(n_threads, c.domain + 1, n_domains) - thread + c.domain_thread;
    for (int i = s->first; i < s->end; i++) {
        oct_cpu_ops[p->steps[i].node->op](&c, &p->steps[i]);
        if (i + 1 == s->end) /* the end of the run is a barrier too */
            return;
        if (thread == 0 && oct_cancelled(s->run->cancel))
            atomic_store_explicit(&s->stop, i + 1, memory_order_relaxed);
        oct_team_barrier(s->cpu->team);
        if (atomic_load_explicit(&s->stop, memory_order_relaxed) == i + 1)
            return;
    }
}

static void clear_tails(oct_cpu *cpu)
{
    for (int i = 0; i < OCT_SHARE_PHASES * cpu->n.n_domains; i++)
        cpu->tails[i].taken = 0;
}

static oct_status cpu_run(oct_backend *b, const oct_plan *p, unsigned char *buffer, int first,
                          int end, oct_run *r, oct_error *err)
{
    shared_run s = {
        .cpu = cpu_of(b), .plan = p, .buffer = buffer, .run = r, .first = first, .end = end};
    clear_tails(s.cpu);
    oct_team_run(s.cpu->team, run_thread, &s);
    if (s.stop || oct_cancelled(r->cancel))
        return oct_fail(err, OCT_ERR_CANCELLED, "evaluation cancelled");
    return OCT_OK;
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

oct_status oct_cpu_open(const oct_cpu_numbers *n, const oct_topology *topology, bool bind,
                        oct_backend **out, oct_error *err)
{
    *out = NULL;
    oct_cpu *cpu = calloc(1, sizeof *cpu);
    if (!cpu)
        return oct_fail(err, OCT_ERR_MEMORY, "CPU backend: out of memory");
    cpu->base = (oct_backend){.kind = &oct_cpu_kind,
                              .alloc = cpu_alloc,
                              .release = cpu_release,
                              .upload = cpu_copy,
                              .download = cpu_copy,
                              .begin = cpu_begin,
                              .end = cpu_end,
                              .run = cpu_run,
                              .free = cpu_free};
    cpu->n = *n;
    cpu->k = n->k;
    cpu->stream_ahead = oct_stream_ahead();
    cpu->tails = aligned_alloc(64, sizeof *cpu->tails * OCT_SHARE_PHASES * (size_t)n->n_domains);
    oct_status status = OCT_OK;
    if (cpu->tails)
        clear_tails(cpu);
    else
        status = oct_fail(err, OCT_ERR_MEMORY, "CPU backend: out of memory");
    if (status == OCT_OK)
        status = oct_topology_team(topology, n->n_threads, bind, &cpu->team, err);
    if (status == OCT_OK && n->blas)
        status = oct_blas_open(&cpu->blas, err);
    if (status != OCT_OK) {
        cpu_free(&cpu->base);
        return status;
    }
    *out = &cpu->base;
    return OCT_OK;
}
