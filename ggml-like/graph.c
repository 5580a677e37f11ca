#include "graph.h"

#include <string.h>

const char *oct_op_name(oct_op op)
{
    static const char *const names[OCT_OP_COUNT] = {
        [OCT_OP_EMBED] = "embed",
        [OCT_OP_NORM] = "norm",
        [OCT_OP_ADD_NORM] = "add_norm",
        [OCT_OP_LINEAR] = "linear",
        [OCT_OP_ROPE_STORE] = "rope_store",
        [OCT_OP_ATTENTION] = "attention",
        [OCT_OP_ROUTE] = "route",
        [OCT_OP_EXPERTS] = "experts",
        [OCT_OP_COMBINE] = "combine",
        [OCT_OP_FOLD_RANKS] = "fold_ranks",
        [OCT_OP_SELECT] = "select",
        [OCT_OP_HEAD] = "head",
        [OCT_OP_GATHER_LOGITS] = "gather_logits",
    };
    return (unsigned)op < OCT_OP_COUNT ? names[op] : "?";
}

void oct_graph_init(oct_graph *g, int64_t rows, int digits, int n_nodes, void *room,
                    size_t room_bytes)
{
    memset(g, 0, sizeof *g);
    if (room)
        oct_arena_lend(&g->arena, room, room_bytes);
    g->rows = rows;
    g->layer = -1;
    g->digits = digits;
    g->cap_nodes = -n_nodes; /* of the first allocation */
}

void oct_graph_free(oct_graph *g)
{
    oct_arena_free(&g->arena);
    memset(g, 0, sizeof *g);
}

oct_status oct_graph_status(const oct_graph *g, oct_error *err)
{
    return g->status == OCT_OK ? OCT_OK : oct_fail(err, g->status, "%s", g->error.text);
}

static void stick(oct_graph *g, oct_status status, const char *what)
{
    if (g->status == OCT_OK)
        g->status = oct_fail(&g->error, status, "graph: layer %lld, node %d: %s",
                             (long long)g->layer, g->n_nodes, what);
}

static void *alloc(oct_graph *g, size_t bytes)
{
    void *p = g->status == OCT_OK ? oct_arena_alloc(&g->arena, bytes) : NULL;
    if (!p)
        stick(g, OCT_ERR_MEMORY, "out of memory");
    return p;
}

/* The arena cannot resize: nodes move to twice the room and the old room is forgotten. */
static oct_node *add_node(oct_graph *g, oct_op op, const oct_tensor *in0, const oct_tensor *in1,
                          const oct_tensor *out)
{
    if (!g->nodes || g->n_nodes == g->cap_nodes) {
        int cap = g->nodes ? 2 * g->cap_nodes : g->cap_nodes < 0 ? -g->cap_nodes : 64;
        oct_node *nodes = alloc(g, (size_t)cap * sizeof *nodes);
        if (!nodes)
            return NULL;
        if (g->n_nodes)
            memcpy(nodes, g->nodes, (size_t)g->n_nodes * sizeof *nodes);
        g->nodes = nodes;
        g->cap_nodes = cap;
    }
    oct_node *n = &g->nodes[g->n_nodes++];
    *n = (oct_node){.op = op, .in = {in0, in1}, .out = out, .layer = g->layer, .digits = g->digits};
    return n;
}

/* An activation that the next node writes. like: a tensor whose rows it has, NULL: all rows. */
static oct_tensor *activation(oct_graph *g, const char *name, const oct_tensor *like, int64_t rows,
                              int64_t cols)
{
    oct_tensor *t = alloc(g, sizeof *t);
    if (!t)
        return NULL;
    *t = (oct_tensor){.name = name,
                      .index = g->n_tensors++,
                      .selected = like && like->selected,
                      .rows = rows,
                      .cols = cols,
                      .row_bytes = (size_t)cols * sizeof(float)};
    return t;
}

const oct_tensor *oct_graph_embed(oct_graph *g, const oct_table *table, float scale)
{
    oct_tensor *out = activation(g, "h", NULL, g->rows, table->cols);
    oct_node *n = out ? add_node(g, OCT_OP_EMBED, NULL, NULL, out) : NULL;
    if (!n)
        return NULL;
    n->table = table;
    n->scale = scale;
    return out;
}

static bool norm_fits(oct_graph *g, const oct_tensor *x, const oct_plain *gamma)
{
    if (!x || !gamma)
        return false;
    if (x->cols != gamma->cols)
        stick(g, OCT_ERR_SHAPE, "norm: input and scale differ in width");
    return g->status == OCT_OK;
}

const oct_tensor *oct_graph_norm(oct_graph *g, const oct_tensor *x, const oct_plain *gamma,
                                 float eps)
{
    if (!norm_fits(g, x, gamma))
        return NULL;
    oct_tensor *out = activation(g, "norm", x, x->rows, x->cols);
    oct_node *n = out ? add_node(g, OCT_OP_NORM, x, NULL, out) : NULL;
    if (!n)
        return NULL;
    n->plain = gamma;
    n->eps = eps;
    return out;
}

void oct_graph_add_norm(oct_graph *g, const oct_tensor *sum, const oct_tensor *x,
                        const oct_plain *gamma, float eps)
{
    if (!sum || !norm_fits(g, x, gamma))
        return;
    if (sum->selected != x->selected || sum->rows != x->rows)
        stick(g, OCT_ERR_SHAPE, "add_norm: sum and input have different rows");
    oct_node *n = add_node(g, OCT_OP_ADD_NORM, x, NULL, sum);
    if (!n)
        return;
    n->plain = gamma;
    n->eps = eps;
}

static bool is_as_wide(oct_graph *g, const oct_tensor *x, const oct_weight *w)
{
    if (!x || !w)
        return false;
    if (x->routes || x->cols != w->layout.n_in)
        stick(g, OCT_ERR_SHAPE, "the input is not as wide as the weights");
    return g->status == OCT_OK;
}

const oct_tensor *oct_graph_linear(oct_graph *g, const oct_tensor *x, const oct_weight *w)
{
    if (!is_as_wide(g, x, w))
        return NULL;
    oct_tensor *out = activation(g, "linear", x, x->rows, w->layout.n_out);
    oct_node *n = out ? add_node(g, OCT_OP_LINEAR, x, NULL, out) : NULL;
    if (!n)
        return NULL;
    n->w[0] = w;
    return out;
}

void oct_graph_rope_store(oct_graph *g, const oct_tensor *qkv, const oct_attn_shape *a)
{
    if (!qkv)
        return;
    if (qkv->cols != (a->n_q_heads + 2 * a->n_kv_heads) * a->head_dim)
        stick(g, OCT_ERR_SHAPE, "attention: the projection's width is not that of the heads");
    oct_node *n = g->status == OCT_OK ? add_node(g, OCT_OP_ROPE_STORE, NULL, NULL, qkv) : NULL;
    if (n) {
        n->attn = a;
        n->plain = a->rope;
    }
}

const oct_tensor *oct_graph_attention(oct_graph *g, const oct_tensor *qkv, const oct_attn_shape *a)
{
    if (!qkv)
        return NULL;
    oct_tensor *out = activation(g, "attention", qkv, qkv->rows, a->n_q_heads * a->head_dim);
    oct_node *n = out ? add_node(g, OCT_OP_ATTENTION, qkv, NULL, out) : NULL;
    if (!n)
        return NULL;
    n->attn = a;
    return out;
}

const oct_tensor *oct_graph_route(oct_graph *g, const oct_tensor *x, const oct_plain *router,
                                  int64_t n_used)
{
    if (!x)
        return NULL;
    if (x->cols != router->cols || n_used < 1 || n_used > router->rows)
        stick(g, OCT_ERR_SHAPE, "router: width or number of experts does not fit");
    oct_tensor *out = activation(g, "routes", x, x->rows, n_used);
    oct_node *n = out ? add_node(g, OCT_OP_ROUTE, x, NULL, out) : NULL;
    if (!n)
        return NULL;
    out->routes = true;
    out->row_bytes = (size_t)n_used * (sizeof(int32_t) + sizeof(float));
    n->plain = router;
    n->n_used = n_used;
    return out;
}

const oct_tensor *oct_graph_experts(oct_graph *g, const oct_tensor *x, const oct_tensor *routes,
                                    int64_t n_used, const oct_weight *gate_up,
                                    const oct_weight *down)
{
    if (!is_as_wide(g, x, gate_up))
        return NULL;
    if (gate_up->layout.n_out != 2 * down->layout.n_in ||
        gate_up->layout.n_experts != down->layout.n_experts)
        stick(g, OCT_ERR_SHAPE, "experts: gate/up and down do not fit each other");
    oct_tensor *out = activation(g, "slots", x, x->rows * n_used, down->layout.n_out);
    oct_node *n = out ? add_node(g, OCT_OP_EXPERTS, x, routes, out) : NULL;
    if (!n)
        return NULL;
    n->w[0] = gate_up;
    n->w[1] = down;
    n->n_used = n_used;
    return out;
}

const oct_tensor *oct_graph_combine(oct_graph *g, const oct_tensor *slots, const oct_tensor *routes,
                                    int64_t n_used)
{
    if (!slots || !routes)
        return NULL;
    oct_tensor *out = activation(g, "moe", slots, slots->rows / n_used, slots->cols);
    oct_node *n = out ? add_node(g, OCT_OP_COMBINE, slots, routes, out) : NULL;
    if (!n)
        return NULL;
    n->n_used = n_used;
    return out;
}

void oct_graph_fold_ranks(oct_graph *g, const oct_tensor *x)
{
    if (x)
        add_node(g, OCT_OP_FOLD_RANKS, NULL, NULL, x);
}

const oct_tensor *oct_graph_select(oct_graph *g, const oct_tensor *x)
{
    oct_tensor *out = x ? activation(g, "selected", x, x->rows, x->cols) : NULL;
    if (!out || !add_node(g, OCT_OP_SELECT, x, NULL, out))
        return NULL;
    if (x->selected)
        stick(g, OCT_ERR_SHAPE, "select: the rows have been selected before");
    out->selected = true;
    return out;
}

void oct_graph_head(oct_graph *g, const oct_tensor *x, const oct_table *table, float scale)
{
    if (!x)
        return;
    if (x->cols != table->cols || !x->selected)
        stick(g, OCT_ERR_SHAPE,
              "head: the input is not the selected rows of the embedding's width");
    oct_node *n = g->status == OCT_OK ? add_node(g, OCT_OP_HEAD, x, NULL, NULL) : NULL;
    if (!n)
        return;
    n->table = table;
    n->scale = scale;
}

void oct_graph_gather_logits(oct_graph *g, const oct_table *table)
{
    oct_node *n = g->status == OCT_OK ? add_node(g, OCT_OP_GATHER_LOGITS, NULL, NULL, NULL) : NULL;
    if (n)
        n->table = table;
}
