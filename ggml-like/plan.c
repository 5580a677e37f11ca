#include "plan.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64 };

/* Something that needs bytes of the buffer while nodes first..last run. */
typedef struct piece {
    int first, last;
    size_t bytes;
    size_t *offset; /* where the result goes */
} piece;

static size_t round_up(size_t n)
{
    return (n + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

static int by_first(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    return x->first != y->first ? (x->first < y->first ? -1 : 1) : (x->last < y->last ? 1 : -1);
}

/* Lowest offset where piece i overlaps no earlier piece that is alive with it. Every candidate is 0
 * or the end of such a piece. */
static size_t lowest_offset(const piece *p, int i)
{
    size_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int j = 0; j < i; j++) {
            if (p[j].last < p[i].first || p[j].first > p[i].last)
                continue;
            size_t end = *p[j].offset + p[j].bytes;
            if (at < end && *p[j].offset < at + p[i].bytes) {
                at = end;
                moved = true;
            }
        }
    }
    return at;
}

static int collect(oct_graph *g, const oct_backend *b, piece *p, size_t *thread_bytes)
{
    int n = 0;
    for (oct_tensor *t = g->activations; t; t = t->next)
        p[n++] = (piece){t->first, t->last, round_up((size_t)t->rows * t->row_bytes), &t->offset};
    for (int i = 0; i < g->n_nodes; i++) {
        oct_node *node = &g->nodes[i];
        size_t scratch = round_up(b->thread_bytes(b, node, g->rows));
        if (scratch > *thread_bytes)
            *thread_bytes = scratch;
        node->temp_bytes = round_up(b->temp_bytes(b, node, g->rows));
        if (node->temp_bytes)
            p[n++] = (piece){i, i, node->temp_bytes, &node->temp_offset};
    }
    return n;
}

oct_status oct_plan_make(oct_graph *g, const oct_backend *b, oct_plan *plan, oct_error *err)
{
    memset(plan, 0, sizeof *plan);
    OCT_TRY(oct_graph_status(g, err));
    size_t n_pieces = (size_t)g->n_nodes;
    for (oct_tensor *t = g->activations; t; t = t->next)
        n_pieces++;
    for (int i = 0; i < g->n_nodes; i++)
        if (!b->supports(b, &g->nodes[i]))
            return oct_fail(err, OCT_ERR_UNSUPPORTED,
                            "plan: backend %s cannot compute '%s' of layer %lld", b->name,
                            oct_op_name(g->nodes[i].op), (long long)g->nodes[i].layer);
    piece *p = calloc(n_pieces + 1, sizeof *p);
    if (!p)
        return oct_fail(err, OCT_ERR_MEMORY, "plan: out of memory");
    int n = collect(g, b, p, &plan->thread_bytes);
    qsort(p, (size_t)n, sizeof *p, by_first);
    for (int i = 0; i < n; i++) {
        *p[i].offset = lowest_offset(p, i);
        if (*p[i].offset + p[i].bytes > plan->shared_bytes)
            plan->shared_bytes = *p[i].offset + p[i].bytes;
    }
    free(p);
    plan->graph = g;
    plan->bytes = plan->shared_bytes + plan->thread_bytes * (size_t)b->n_threads;
    return OCT_OK;
}

oct_status oct_plan_alloc(oct_plan *p, oct_backend *b, oct_error *err)
{
    return b->alloc(b, p->bytes, &p->buffer, err);
}

void oct_plan_free(oct_plan *p, oct_backend *b)
{
    if (p->buffer)
        b->release(b, p->buffer, p->bytes);
    p->buffer = NULL;
}
