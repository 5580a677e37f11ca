/* plan.h: who computes the nodes of a graph, where every tensor lies, and how much memory that
 * takes in every place. Made from numbers alone: nothing is allocated but the plan itself, no
 * system is asked. What is printed before a start, what is refused for lack of memory and what is
 * allocated in the end are the same plan. */
#ifndef OCT_PLAN_H
#define OCT_PLAN_H

#include "backend.h"
#include "comm.h"
#include "shard.h"

/* A place is a backend with its memory. The first is the host: ranks exchange what lies there, and
 * tensors pass from one place to another through it. */
enum { OCT_HOST = 0, OCT_MAX_PLACES = 16, OCT_ARRAY_ALIGN = 4096 };

typedef struct oct_plan_spec {
    const oct_shard *shard; /* what this rank computes */
    int n_places;
    struct {
        const oct_backend_kind *kind;
        const void *numbers; /* of that kind; they outlive the plan */
    } place[OCT_MAX_PLACES];
    const uint8_t *where; /* [n_nodes] the place of each node; NULL: all on the host. Exchanges are
                             the host's, and attention is where its keys and values are stored,
                             whatever it says. */
    /* [n_nodes] the place, of those that can, that may compute a part of EXPERTS of the host with
     * weights that are brought to it; 0: none. NULL: all 0. A COMBINE right behind it that says the
     * same place sums there; else the host gets the slots, or of a dense model, whose experts are
     * one, the place, unless ranks exchange them next. */
    const uint8_t *streams;
} oct_plan_spec;

/* What a node reads of the model, as arrays: weights and scales of w[0], then of w[1]; or plain, or
 * table, alone. A rank computes with n_runs runs of `run` bytes, the first at `first`, one every
 * `stride`. Packed, they follow each other, and begin `bias` bytes behind where unit 0 would be. */
enum { OCT_MAX_ARRAYS = 4 };
typedef struct oct_array {
    const void *p;
    size_t bytes; /* of the whole matrix, of all experts and slices */
    size_t first, run, stride, bias;
    int64_t n_runs;
} oct_array;
int oct_node_arrays(const oct_node *n, const oct_shard *s, oct_array out[OCT_MAX_ARRAYS]);

/* Bytes of an array in a place with a memory of its own. */
static inline size_t oct_array_stored(const oct_array *a, const oct_backend_kind *kind)
{
    return kind->packed ? (size_t)a->n_runs * a->run : a->bytes;
}

/* One thing to be done. */
typedef struct oct_step {
    const oct_node *node;     /* NULL: copies a tensor from a place to another */
    const oct_tensor *copied; /* then this one */
    int place, from;          /* that computes; a copy: to, from: one of them is the host */
    int64_t kv_layer;         /* of attention: the layer's number in the place's cache */
    bool streamed;            /* EXPERTS for the host, see oct_run.elsewhere; at: of the host */
    bool joined; /* COMBINE of the place's slots and the host's, which lie in temporary memory */
    bool part;   /* a copy to the temporary memory of the step behind it, which is joined */
    bool slots;  /* a copy of what the other side has made of the slots of the step before */
    size_t temp_offset; /* temporary memory in the place's buffer */
    size_t temp_bytes;
    /* Where the arrays of oct_node_arrays lie in the place: unit 0, though a place that packs them
     * may not have it. Filled by whoever executes the plan. */
    const void *at[OCT_MAX_ARRAYS];
} oct_step;

/* What a plan takes in one place. Bytes. */
typedef struct oct_plan_need {
    size_t shared;  /* tensors and temporaries, at offsets below this */
    size_t scratch; /* behind them, of the backend's threads */
    size_t buffer;  /* both: allocated as one */
    /* On the host: of the model's file, what the rank holds. In a place with a memory of its own:
     * the arrays of its nodes, each once, rounded up to OCT_ARRAY_ALIGN. */
    uint64_t weights;
    int64_t kv_layers; /* layers whose keys and values are kept here */
} oct_plan_need;

typedef struct oct_plan {
    oct_arena arena;
    const oct_graph *graph; /* borrowed */
    const oct_shard *shard; /* borrowed */
    int n_places;
    oct_plan_need need[OCT_MAX_PLACES];
    size_t *offset; /* [n_places][n_tensors], in the place's buffer */
    oct_step *steps;
    int n_steps;
    size_t logits_offset; /* ranks: in the host's buffer, see oct_plan_gather_rows */
} oct_plan;

/* room, if not NULL: memory of the caller that the plan takes first. Errors: what no backend
 * supports, by name; memory. Free in any state with oct_plan_free. */
OCT_MUST_CHECK oct_status oct_plan_make(const oct_graph *g, const oct_plan_spec *spec, void *room,
                                        size_t room_bytes, oct_plan *p, oct_error *err);
void oct_plan_free(oct_plan *p);

static inline size_t oct_plan_offset(const oct_plan *p, int place, const oct_tensor *t)
{
    return p->offset[place * p->graph->n_tensors + t->index];
}

/* Rows of a tensor in a run, which a row of the graph's capacity may have several of (slots). */
static inline int64_t oct_run_rows(const oct_plan *p, const oct_run *r, const oct_tensor *t)
{
    return t->rows / p->graph->rows * (t->selected ? r->n_out : r->n_rows);
}

/* Rows of the vocabulary that each rank computes; the last one's may end early. */
int64_t oct_plan_vocabulary(const oct_plan *p, const oct_table *t);
/* Rows of logits that reach rank 0 in one message: rank 0's buffer has room for them from all
 * ranks, the others' for all the rows of a run. */
int64_t oct_plan_gather_rows(const oct_plan *p, const oct_table *t);

/* Numbers behind a vector that is folded: whether a rank has been cancelled. */
enum { OCT_FOLD_WORD = 1 };

/* What the ranks exchange in a run: the messages that the runner sends, listed here once. */
typedef struct oct_exchange {
    bool fold;      /* two rounds, in each every rank sends (n-1)/n of the bytes; else one message
                       of so many bytes from every rank to rank 0 */
    int64_t layer;  /* -1 outside layers */
    uint64_t bytes; /* of the vector, or of each rank's part */
} oct_exchange;
/* The next exchange at or after step *at, which is moved behind it; false: there is none. */
bool oct_plan_next_exchange(const oct_plan *p, int64_t n_rows, int64_t n_out, int *at,
                            oct_exchange *e);

#endif
