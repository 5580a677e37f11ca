/* graph.h: a model as a list of operations on tensors.
 *
 * A graph is built once, for a capacity of T rows (tokens evaluated together), in an arena. Weights
 * are views into the mapped file; activations get their place in one buffer from the plan. Nodes
 * run in the order they were added. Building is sticky: after the first error (memory, shapes)
 * calls return NULL and do nothing, and oct_graph_status tells it.
 *
 * Shapes are row-major, x[T, n]; letters as in the model: T rows, D model width, V vocabulary,
 * E experts, K experts per token, S slices. */
#ifndef OCT_GRAPH_H
#define OCT_GRAPH_H

#include "arena.h"
#include "q8.h"
#include "shard.h"
#include "status.h"

typedef enum oct_dtype {
    OCT_F32,
    OCT_ACT,   /* rows of integer activations for one weight layout, see q8.h */
    OCT_ROUTES /* per row: K expert numbers (int32), then K gates (f32) */
} oct_dtype;

typedef struct oct_tensor {
    const char *name; /* borrowed: a literal or the file's */
    oct_dtype dtype;
    int64_t rows, cols; /* [rows, cols]; activations: rows is the capacity T (or T * K) */
    size_t row_bytes;
    oct_act_layout act;      /* OCT_ACT */
    bool selected;           /* its rows are those whose logits are wanted, see SELECT */
    const void *data;        /* f32 weights; NULL for activations */
    size_t offset;           /* activations: in the plan's buffer */
    int first, last;         /* activations: nodes that write it first and read it last */
    struct oct_tensor *next; /* activations, newest first */
} oct_tensor;

typedef enum oct_op {
    OCT_OP_EMBED,      /* out[T,D] = table row of each token * scale */
    OCT_OP_NORM,       /* out[T,D] = rms_norm(in0) * plain */
    OCT_OP_ADD_NORM,   /* out[T,D] += rms_norm(in0) * plain */
    OCT_OP_QUANTISE,   /* out (OCT_ACT) = in0 */
    OCT_OP_LINEAR,     /* out[T,N] = in0 * w0, outputs or inputs split; slices folded */
    OCT_OP_ROPE_STORE, /* rotates q and k in in0[T,S*unit], appends k and v to the cache */
    OCT_OP_ATTENTION,  /* out[T,Hq*P] from the q of in0 and the cache */
    OCT_OP_ROUTE,      /* out (OCT_ROUTES) = top-K of softmax(in0 * plain) */
    OCT_OP_EXPERTS,    /* out[T*K,D]: down(gelu(gate(x)) * up(x)) of in0 for every route in in1 */
    OCT_OP_COMBINE,    /* out[T,D] = sum over slots, in order, of gate * in0[T*K,D] */
    OCT_OP_FOLD_RANKS, /* out summed over the ranks, in place */
    OCT_OP_SELECT, /* out = the rows of in0 whose logits are wanted; what follows has no others */
    OCT_OP_HEAD,   /* logits[T,V] of the run = in0 * table^T * scale */
    OCT_OP_GATHER_LOGITS, /* every rank's rows of the vocabulary reach all ranks */
    OCT_OP_COUNT
} oct_op;
const char *oct_op_name(oct_op op);

/* The tied embedding [S][slice_rows_pad][D] bf16, see grok.h. */
typedef struct oct_table {
    const uint16_t *data;
    int64_t n_rows, slice_rows, slice_rows_pad, cols;
} oct_table;

/* Geometry of attention. In a row of the fused projection slice s lies at s * (Hq + 2 Hkv) / S * P:
 * its query heads, its key heads, its value heads. */
typedef struct oct_attn_shape {
    int64_t n_q_heads, n_kv_heads, head_dim, n_slices, n_ctx;
    float scale, cap;
    const float *cos, *sin; /* [n_ctx][P/2] */
} oct_attn_shape;

typedef struct oct_node {
    oct_op op;
    oct_tensor *in[2], *out;
    const oct_weight *w[2];  /* LINEAR: w0; EXPERTS: gate_up and down */
    const oct_tensor *plain; /* f32: the scale of a norm, the router */
    int64_t layer;           /* for messages and the cache; -1 outside layers */
    size_t temp_bytes;       /* of shared temporary memory, set by the backend */
    size_t temp_offset;      /* in the plan's buffer */
    float scale, eps;
    int64_t n_used; /* K */
    const oct_table *table;
    const oct_attn_shape *attn;
} oct_node;

typedef struct oct_graph {
    oct_arena arena;
    oct_node *nodes;
    int n_nodes, cap_nodes;
    oct_tensor *activations;
    int64_t rows;   /* T */
    int64_t layer;  /* given to the nodes that follow */
    int act_digits; /* of activations that weights are multiplied with, see q8.h: 2, or 1 if set */
    oct_status status;
    oct_error error;
} oct_graph;

/* rows: capacity T >= 1. Free in any state with oct_graph_free. */
void oct_graph_init(oct_graph *g, int64_t rows);
void oct_graph_free(oct_graph *g);
OCT_MUST_CHECK oct_status oct_graph_status(const oct_graph *g, oct_error *err);

/* Builders: one per operation; each returns its output. */
oct_tensor *oct_graph_embed(oct_graph *g, const oct_table *t, float scale);
oct_tensor *oct_graph_norm(oct_graph *g, oct_tensor *x, const oct_tensor *gamma, float eps);
void oct_graph_add_norm(oct_graph *g, oct_tensor *sum, oct_tensor *x, const oct_tensor *gamma,
                        float eps);
oct_tensor *oct_graph_quantise(oct_graph *g, oct_tensor *x, const oct_weight_layout *for_weights);
oct_tensor *oct_graph_linear(oct_graph *g, oct_tensor *act, const oct_weight *w);
void oct_graph_rope_store(oct_graph *g, oct_tensor *qkv, const oct_attn_shape *a);
oct_tensor *oct_graph_attention(oct_graph *g, oct_tensor *qkv, const oct_attn_shape *a);
oct_tensor *oct_graph_route(oct_graph *g, oct_tensor *x, const oct_tensor *router, int64_t n_used);
/* routes NULL: a dense model, every row goes to expert 0. */
oct_tensor *oct_graph_experts(oct_graph *g, oct_tensor *act, oct_tensor *routes, int64_t n_used,
                              const oct_weight *gate_up, const oct_weight *down);
oct_tensor *oct_graph_combine(oct_graph *g, oct_tensor *slots, oct_tensor *routes, int64_t n_used);
void oct_graph_fold_ranks(oct_graph *g, oct_tensor *x);
oct_tensor *oct_graph_select(oct_graph *g, oct_tensor *x);
void oct_graph_head(oct_graph *g, oct_tensor *x, const oct_table *t, float scale);
void oct_graph_gather_logits(oct_graph *g, const oct_table *t);

#endif
