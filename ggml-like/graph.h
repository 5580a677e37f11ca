/* graph.h: a model as a list of operations on tensors. Nothing here belongs to a backend: how a
 * product rounds its inputs, where a tensor lies and who computes a node is the plan's business.
 *
 * A graph is built once, for a capacity of T rows (tokens evaluated together), in an arena; once
 * built it is not changed, and any number of plans may be made of it. Nodes run in the order they
 * were added. Building is sticky: after the first error (memory, shapes) calls return NULL and do
 * nothing, and oct_graph_status tells it.
 *
 * Shapes are row-major, x[T, n]; letters as in the model: T rows, D model width, V vocabulary,
 * E experts, K experts per token, S slices. */
#ifndef OCT_GRAPH_H
#define OCT_GRAPH_H

#include "arena.h"
#include "act.h"
#include "shard.h"
#include "status.h"

/* What a node computes and another reads. */
typedef struct oct_tensor {
    const char *name;   /* a literal */
    int index;          /* 0.. in the order of building */
    bool routes;        /* per row K expert numbers (int32), then K gates (f32); else f32 */
    bool selected;      /* its rows are those whose logits are wanted, see SELECT */
    int64_t rows, cols; /* [rows, cols]; rows is the capacity T (or T * K), cols of routes is K */
    size_t row_bytes;
} oct_tensor;

/* Numbers of a model that are used as they are: norms, routers, rotations. [rows, cols] f32. */
typedef struct oct_plain {
    const char *name; /* borrowed */
    int64_t rows, cols;
    const float *data; /* borrowed */
} oct_plain;

typedef enum oct_op {
    OCT_OP_EMBED,      /* out[T,D] = table row of each token * scale */
    OCT_OP_NORM,       /* out[T,D] = rms_norm(in0) * plain */
    OCT_OP_ADD_NORM,   /* out[T,D] += rms_norm(in0) * plain */
    OCT_OP_LINEAR,     /* out[T,N] = in0 * w0, slices folded; in0 rounded, see digits */
    OCT_OP_ROPE_STORE, /* rotates q and k in out[T,S*unit] by plain, appends k and v to the cache */
    OCT_OP_ATTENTION,  /* out[T,Hq*P] from the q of in0 and the cache */
    OCT_OP_ROUTE,      /* out (routes) = top-K of softmax(in0 * plain) */
    OCT_OP_EXPERTS,    /* out[T*K,D]: down(gelu(gate(x)) * up(x)) of in0 for every route in in1 */
    OCT_OP_COMBINE,    /* out[T,D] = sum over slots, in order, of gate * in0[T*K,D] */
    OCT_OP_FOLD_RANKS, /* out summed over the ranks, in place */
    OCT_OP_SELECT, /* out = the rows of in0 whose logits are wanted; what follows has no others */
    OCT_OP_HEAD,   /* logits[T,V] of the run = in0 * table^T * scale */
    OCT_OP_GATHER_LOGITS, /* every rank's rows of the vocabulary reach rank 0 */
    OCT_OP_COUNT
} oct_op;
const char *oct_op_name(oct_op op);

/* The tied embedding [S][slice_rows_pad][D] bf16, see grok.h. */
typedef struct oct_table {
    const uint16_t *data;
    int64_t n_rows, slice_rows, slice_rows_pad, cols, n_slices;
} oct_table;

/* Geometry of attention. In a row of the fused projection slice s lies at s * (Hq + 2 Hkv) / S * P:
 * its query heads, its key heads, its value heads. */
typedef struct oct_attn_shape {
    int64_t n_q_heads, n_kv_heads, head_dim, n_slices, n_ctx;
    float scale, cap;
    const oct_plain *rope; /* [2 n_ctx][P/2]: cosines of all positions, then sines */
} oct_attn_shape;

typedef struct oct_node {
    oct_op op;
    int digits; /* of activations that w are multiplied with, see act.h: 2 or 1 */
    const oct_tensor *in[2];
    const oct_tensor *out;  /* NULL: the logits of the run */
    const oct_weight *w[2]; /* LINEAR: w0; EXPERTS: gate_up and down */
    const oct_plain *plain; /* the scale of a norm, the router, the rotations */
    const oct_table *table; /* EMBED, HEAD, GATHER_LOGITS */
    const oct_attn_shape *attn;
    int64_t layer;  /* for messages and the cache; -1 outside layers */
    int64_t n_used; /* K */
    float scale, eps;
} oct_node;

/* Nodes that read what is in their output before they write it. */
static inline bool oct_op_in_place(oct_op op)
{
    return op == OCT_OP_ADD_NORM || op == OCT_OP_ROPE_STORE || op == OCT_OP_FOLD_RANKS;
}

/* Nodes that are talk between ranks. */
static inline bool oct_op_is_exchange(oct_op op)
{
    return op == OCT_OP_FOLD_RANKS || op == OCT_OP_GATHER_LOGITS;
}

typedef struct oct_graph {
    oct_arena arena;
    oct_node *nodes;
    int n_nodes, cap_nodes;
    int n_tensors;
    int64_t rows;  /* T */
    int64_t layer; /* given to the nodes that follow */
    int digits;    /* and this */
    oct_status status;
    oct_error error;
} oct_graph;

/* rows: capacity T >= 1; digits: of activations, 1 or 2; n_nodes: how many are to be expected.
 * room, if not NULL, is memory of the caller for the graph to begin with. Free in any state with
 * oct_graph_free. */
void oct_graph_init(oct_graph *g, int64_t rows, int digits, int n_nodes, void *room,
                    size_t room_bytes);
void oct_graph_free(oct_graph *g);
OCT_MUST_CHECK oct_status oct_graph_status(const oct_graph *g, oct_error *err);

/* Builders: one per operation; each returns its output. Weights are borrowed: they outlive the
 * graph. */
const oct_tensor *oct_graph_embed(oct_graph *g, const oct_table *t, float scale);
const oct_tensor *oct_graph_norm(oct_graph *g, const oct_tensor *x, const oct_plain *gamma,
                                 float eps);
void oct_graph_add_norm(oct_graph *g, const oct_tensor *sum, const oct_tensor *x,
                        const oct_plain *gamma, float eps);
const oct_tensor *oct_graph_linear(oct_graph *g, const oct_tensor *x, const oct_weight *w);
void oct_graph_rope_store(oct_graph *g, const oct_tensor *qkv, const oct_attn_shape *a);
const oct_tensor *oct_graph_attention(oct_graph *g, const oct_tensor *qkv, const oct_attn_shape *a);
const oct_tensor *oct_graph_route(oct_graph *g, const oct_tensor *x, const oct_plain *router,
                                  int64_t n_used);
/* routes NULL: a dense model, every row goes to expert 0. */
const oct_tensor *oct_graph_experts(oct_graph *g, const oct_tensor *x, const oct_tensor *routes,
                                    int64_t n_used, const oct_weight *gate_up,
                                    const oct_weight *down);
const oct_tensor *oct_graph_combine(oct_graph *g, const oct_tensor *slots, const oct_tensor *routes,
                                    int64_t n_used);
void oct_graph_fold_ranks(oct_graph *g, const oct_tensor *x);
const oct_tensor *oct_graph_select(oct_graph *g, const oct_tensor *x);
void oct_graph_head(oct_graph *g, const oct_tensor *x, const oct_table *t, float scale);
void oct_graph_gather_logits(oct_graph *g, const oct_table *t);

#endif
