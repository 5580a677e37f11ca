#include "plan.h"

#include <stdlib.h>
#include <string.h>

enum {
    ALIGN = 64,
    GATHER_BYTES = 16 << 20 /* of logits of all ranks in one message, if that is a row or more */
};

static size_t round_up(size_t n)
{
    return (n + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

static oct_status no_memory(oct_error *err)
{
    return oct_fail(err, OCT_ERR_MEMORY, "plan: out of memory");
}

/* ---- steps ----------------------------------------------------------------------------------- */

typedef struct planner {
    const oct_plan_spec *spec;
    oct_plan *p;
    uint16_t *valid; /* [n_tensors] bit k: what lies in place k is what was computed last */
    int cap;         /* of steps */
    int kv_place;    /* of the last ROPE_STORE */
} planner;

static oct_step *add_step(planner *a, oct_step s)
{
    oct_plan *p = a->p;
    if (p->n_steps == a->cap) {
        int cap = 2 * a->cap;
        oct_step *more = oct_arena_alloc(&p->arena, (size_t)cap * sizeof *more);
        if (!more)
            return NULL;
        memcpy(more, p->steps, (size_t)p->n_steps * sizeof *more);
        p->steps = more;
        a->cap = cap;
    }
    p->steps[p->n_steps] = s;
    return &p->steps[p->n_steps++];
}

static bool copy(planner *a, const oct_tensor *t, int from, int to)
{
    a->valid[t->index] |= (uint16_t)(1u << to);
    return add_step(a, (oct_step){.copied = t, .from = from, .place = to}) != NULL;
}

/* Sees to it that a tensor is where it is read. */
static bool bring(planner *a, const oct_tensor *t, int place)
{
    unsigned valid = a->valid[t->index];
    if (valid >> place & 1)
        return true;
    if (place != OCT_HOST && !(valid & 1u << OCT_HOST)) /* from one device to another */
        if (!bring(a, t, OCT_HOST))
            return false;
    valid = a->valid[t->index];
    int from = OCT_HOST;
    while (place == OCT_HOST && !(valid >> from & 1))
        from++;
    return copy(a, t, from, place);
}

/* EXPERTS of the host, of which another place may take a part: that comes first, for it takes
 * none of the host's time. */
static bool add_streamed(planner *a, const oct_node *n, int place)
{
    const int to[2] = {place, OCT_HOST};
    for (int i = 0; i < 2; i++)
        if (!bring(a, n->in[0], to[i]) || (n->in[1] && !bring(a, n->in[1], to[i])))
            return false;
    return add_step(a, (oct_step){.node = n, .place = place, .from = place, .streamed = true});
}

/* Behind both sides of EXPERTS: their slots come together where they are read, unless it is by a
 * COMBINE of the place's, which takes both. */
static bool add_slots(planner *a, int i, int place)
{
    const oct_graph *g = a->p->graph;
    const oct_node *n = &g->nodes[i], *next = i + 1 < g->n_nodes ? n + 1 : NULL;
    if (next && next->op == OCT_OP_COMBINE && a->spec->streams[i + 1] == place)
        return true;
    const bool stays = !n->in[1] && next && !oct_op_is_exchange(next->op);
    const oct_step to_place = {.copied = n->out, .from = OCT_HOST, .place = place, .slots = true};
    const oct_step to_host = {.copied = n->out, .from = place, .place = OCT_HOST, .slots = true};
    a->valid[n->out->index] = (uint16_t)(stays ? 1u << place : 1u << OCT_HOST);
    return add_step(a, stays ? to_place : to_host) != NULL;
}

/* COMBINE of what the place has streamed and the host's part. */
static bool add_joined(planner *a, const oct_node *n, int place)
{
    const oct_step copy = {.copied = n->in[0], .from = OCT_HOST, .place = place, .part = true};
    const oct_step join = {.node = n, .place = place, .from = place, .joined = true};
    a->valid[n->out->index] = (uint16_t)(1u << place);
    return bring(a, n->in[1], place) && add_step(a, copy) && add_step(a, join);
}

static oct_status add_node(planner *a, int i, oct_error *err)
{
    const oct_node *n = &a->p->graph->nodes[i];
    int place = oct_op_is_exchange(n->op) || !a->spec->where ? OCT_HOST : a->spec->where[i];
    if (n->op == OCT_OP_ROPE_STORE)
        a->kv_place = place;
    else if (n->op == OCT_OP_ATTENTION)
        place = a->kv_place;
    const oct_backend_kind *kind = a->spec->place[place].kind;
    if (!oct_op_is_exchange(n->op) && !kind->supports(a->spec->place[place].numbers, n))
        return oct_fail(err, OCT_ERR_UNSUPPORTED,
                        "plan: backend %s cannot compute '%s' of layer %lld", kind->name,
                        oct_op_name(n->op), (long long)n->layer);
    const int streams = a->spec->streams ? a->spec->streams[i] : 0;
    if (streams && n->op == OCT_OP_COMBINE)
        return add_joined(a, n, streams) ? OCT_OK : no_memory(err);
    if (streams && !add_streamed(a, n, streams))
        return no_memory(err);
    const oct_tensor *read[3] = {n->in[0], n->in[1], oct_op_in_place(n->op) ? n->out : NULL};
    for (int k = 0; k < 3; k++)
        if (read[k] && !bring(a, read[k], place))
            return no_memory(err);
    if (!add_step(a, (oct_step){.node = n, .place = place, .from = place}))
        return no_memory(err);
    if (n->out)
        a->valid[n->out->index] = (uint16_t)(1u << place);
    if (streams && !add_slots(a, i, streams))
        return no_memory(err);
    /* The runner counts what the routers chose. */
    if (n->out && n->out->routes && !bring(a, n->out, OCT_HOST))
        return no_memory(err);
    return OCT_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* A piece of a place's buffer: while steps first..last run, these are its bytes. */
typedef struct piece {
    int first, last;
    size_t bytes, at;
    size_t *offset; /* where at goes in the end */
} piece;

static int by_first(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return (x->last < y->last) - (x->last > y->last);
}

/* The lowest place for a piece between those that are alive, which are in order of address. */
static size_t lowest(piece *const *alive, int n, size_t bytes, int *index)
{
    size_t at = 0;
    for (*index = 0; *index < n; ++*index) {
        if (alive[*index]->at >= at + bytes)
            break;
        at = alive[*index]->at + alive[*index]->bytes;
    }
    return at;
}

/* Gives all pieces their place; returns the bytes of all. alive: [n] */
static size_t give_places(piece *p, int n, piece **alive)
{
    size_t end = 0;
    int n_alive = 0, index;
    qsort(p, (size_t)n, sizeof *p, by_first);
    for (int i = 0; i < n; i++) {
        int kept = 0;
        for (int k = 0; k < n_alive; k++)
            if (alive[k]->last >= p[i].first)
                alive[kept++] = alive[k];
        n_alive = kept;
        p[i].at = lowest(alive, n_alive, p[i].bytes, &index);
        memmove(alive + index + 1, alive + index, (size_t)(n_alive - index) * sizeof *alive);
        alive[index] = &p[i];
        n_alive++;
        *p[i].offset = p[i].at;
        if (p[i].at + p[i].bytes > end)
            end = p[i].at + p[i].bytes;
    }
    return end;
}

static void touch(piece *p, int step)
{
    p->first = p->first < 0 ? step : p->first;
    p->last = step;
}

/* When each tensor is alive in a place, in t[n_tensors]. */
static void live(const oct_plan *p, int place, piece *t)
{
    for (int i = 0; i < p->n_steps; i++) {
        const oct_step *s = &p->steps[i];
        if (s->copied && (s->place == place || s->from == place))
            touch(&t[s->copied->index], i);
        if (!s->node || s->place != place)
            continue;
        const oct_tensor *used[3] = {s->node->in[0], s->node->in[1], s->node->out};
        for (int k = 0; k < 3; k++)
            if (used[k])
                touch(&t[used[k]->index], i);
    }
}

int64_t oct_plan_vocabulary(const oct_plan *p, const oct_table *t)
{
    return oct_shard_n_slices(p->shard, OCT_SHARD_OF_VOCABULARY) * t->slice_rows;
}

int64_t oct_plan_gather_rows(const oct_plan *p, const oct_table *t)
{
    int64_t row = oct_plan_vocabulary(p, t) * (int64_t)sizeof(float) * p->shard->size;
    int64_t rows = row < GATHER_BYTES ? GATHER_BYTES / row : 1;
    return rows < p->graph->rows ? rows : p->graph->rows;
}

static size_t exchange_bytes(const oct_plan *p, const oct_node *n)
{
    if (n->op != OCT_OP_GATHER_LOGITS)
        return 0;
    size_t row = (size_t)oct_plan_vocabulary(p, n->table) * sizeof(float);
    return p->shard->rank == 0
               ? row * (size_t)p->shard->size * (size_t)oct_plan_gather_rows(p, n->table)
               : row * (size_t)p->graph->rows;
}

/* Pieces of the temporaries of a place's steps; how much scratch they want. */
static int add_temporaries(planner *a, int place, piece *out)
{
    oct_plan *p = a->p;
    const oct_backend_kind *kind = a->spec->place[place].kind;
    const void *numbers = a->spec->place[place].numbers;
    int n = 0;
    for (int i = 0; i < p->n_steps; i++) {
        oct_step *s = &p->steps[i];
        if (!s->node || s->place != place)
            continue;
        bool exchange = oct_op_is_exchange(s->node->op);
        s->temp_bytes =
            round_up(exchange      ? exchange_bytes(p, s->node)
                     : s->joined   ? (size_t)s->node->in[0]->rows * s->node->in[0]->row_bytes
                     : s->streamed ? kind->stream_bytes(numbers, s->node, p->graph->rows)
                                   : kind->temp_bytes(numbers, s->node, p->graph->rows));
        size_t scratch =
            exchange ? 0 : round_up(kind->scratch_bytes(numbers, s->node, p->graph->rows));
        if (scratch > p->need[place].scratch)
            p->need[place].scratch = scratch;
        if (s->temp_bytes == 0)
            continue;
        out[n] = (piece){.first = i, .last = i, .bytes = s->temp_bytes, .offset = &s->temp_offset};
        if (s->node->op == OCT_OP_GATHER_LOGITS) { /* the node before writes them */
            out[n].first = i - 1;
            out[n].offset = &p->logits_offset;
        } else if (s->joined) { /* as the copy before does */
            out[n].first = i - 1;
        }
        n++;
    }
    return n;
}

/* Weights or scales of a matrix, whose units are `unit` bytes apart. */
static oct_array units_of(const oct_weight *w, const void *p, size_t unit, const oct_shard *s)
{
    const oct_weight_layout *l = &w->layout;
    const oct_shard_range slices = s->slices[w->kind];
    const oct_shard_range experts = l->n_experts > 1 ? s->experts : (oct_shard_range){0, 1};
    size_t all = (size_t)l->n_slices, mine = (size_t)(slices.end - slices.first);
    return (oct_array){.p = p,
                       .bytes = (size_t)l->n_experts * all * unit,
                       .first = ((size_t)experts.first * all + (size_t)slices.first) * unit,
                       .run = mine * unit,
                       .stride = all * unit,
                       .bias = ((size_t)experts.first * mine + (size_t)slices.first) * unit,
                       .n_runs = experts.end - experts.first};
}

static oct_array table_of(const oct_table *t, const oct_shard *s)
{
    const oct_shard_range slices = s->slices[OCT_SHARD_OF_VOCABULARY];
    size_t slice = (size_t)(t->slice_rows_pad * t->cols) * sizeof(uint16_t);
    return (oct_array){.p = t->data,
                       .bytes = (size_t)t->n_slices * slice,
                       .first = (size_t)slices.first * slice,
                       .run = (size_t)(slices.end - slices.first) * slice,
                       .bias = (size_t)slices.first * slice,
                       .n_runs = 1};
}

int oct_node_arrays(const oct_node *n, const oct_shard *s, oct_array out[OCT_MAX_ARRAYS])
{
    int count = 0;
    for (int k = 0; k < 2 && n->w[k]; k++) {
        out[count++] = units_of(n->w[k], n->w[k]->data, n->w[k]->layout.unit_stride, s);
        out[count++] = units_of(n->w[k], n->w[k]->scales, n->w[k]->layout.scale_stride, s);
    }
    if (n->plain) {
        size_t bytes = (size_t)(n->plain->rows * n->plain->cols) * sizeof(float);
        out[count++] = (oct_array){.p = n->plain->data, .bytes = bytes, .run = bytes, .n_runs = 1};
    }
    if (n->table)
        out[count++] = table_of(n->table, s);
    return count;
}

/* Bytes of a node's arrays in a place: on the host, what of the file the rank holds, which the
 * rotations are not in. */
static uint64_t stored(const oct_node *n, const oct_shard *s, const oct_backend_kind *kind)
{
    oct_array array[OCT_MAX_ARRAYS];
    uint64_t bytes = 0;
    for (int k = oct_node_arrays(n, s, array); k-- > 0;)
        if (!kind->host)
            bytes += (oct_array_stored(&array[k], kind) + OCT_ARRAY_ALIGN - 1) / OCT_ARRAY_ALIGN *
                     OCT_ARRAY_ALIGN;
        else if (!n->attn)
            bytes += (uint64_t)array[k].n_runs * array[k].run;
    return bytes;
}

/* Weights of every place, and the layers of its attention. The table and the rotations are read by
 * several nodes and kept once; all other arrays have one reader. */
static void count_weights(planner *a)
{
    oct_plan *p = a->p;
    const void *seen[OCT_MAX_PLACES][2] = {{NULL}};
    for (int i = 0; i < p->n_steps; i++) {
        const oct_node *n = p->steps[i].node;
        int place = p->steps[i].place;
        if (!n || oct_op_is_exchange(n->op) || p->steps[i].streamed)
            continue;
        if (n->attn) { /* ROPE_STORE comes before ATTENTION, with other nodes between */
            p->steps[i].kv_layer = p->need[place].kv_layers;
            p->need[place].kv_layers += n->op == OCT_OP_ATTENTION;
        }
        const void *shared = n->table ? (const void *)n->table : n->attn ? n->plain : NULL;
        if (shared && seen[place][n->attn != NULL] == shared)
            continue;
        seen[place][n->attn != NULL] = shared ? shared : seen[place][n->attn != NULL];
        p->need[place].weights += stored(n, p->shard, a->spec->place[place].kind);
    }
}

static oct_status place_all(planner *a, oct_error *err)
{
    oct_plan *p = a->p;
    int n_tensors = p->graph->n_tensors, max_pieces = n_tensors + p->n_steps;
    piece *all = oct_arena_alloc(&p->arena, (size_t)(max_pieces + n_tensors) * sizeof *all);
    piece **alive = oct_arena_alloc(&p->arena, (size_t)max_pieces * sizeof(piece *));
    const oct_tensor **tensor =
        oct_arena_alloc(&p->arena, (size_t)n_tensors * sizeof(oct_tensor *));
    p->offset =
        oct_arena_alloc(&p->arena, (size_t)p->n_places * (size_t)n_tensors * sizeof *p->offset);
    if (!all || !alive || !tensor || !p->offset)
        return no_memory(err);
    for (int i = 0; i < p->graph->n_nodes; i++)
        if (p->graph->nodes[i].out)
            tensor[p->graph->nodes[i].out->index] = p->graph->nodes[i].out;
    for (int place = 0; place < p->n_places; place++) {
        piece *t = all + max_pieces;
        for (int i = 0; i < n_tensors; i++)
            t[i] = (piece){.first = -1};
        live(p, place, t);
        int n = 0;
        for (int i = 0; i < n_tensors; i++) {
            if (t[i].first < 0)
                continue;
            all[n] = t[i];
            if (place == OCT_HOST && tensor[i]->routes)
                all[n].last = p->n_steps; /* counted by the runner, behind all */
            all[n].bytes = round_up((size_t)tensor[i]->rows * tensor[i]->row_bytes +
                                    OCT_FOLD_WORD * sizeof(float));
            all[n++].offset = &p->offset[place * n_tensors + i];
        }
        n += add_temporaries(a, place, all + n);
        oct_plan_need *need = &p->need[place];
        need->shared = give_places(all, n, alive);
        need->buffer = need->shared + need->scratch;
    }
    count_weights(a);
    return OCT_OK;
}

oct_status oct_plan_make(const oct_graph *g, const oct_plan_spec *spec, void *room,
                         size_t room_bytes, oct_plan *p, oct_error *err)
{
    memset(p, 0, sizeof *p);
    OCT_TRY(oct_graph_status(g, err));
    if (room)
        oct_arena_lend(&p->arena, room, room_bytes);
    p->graph = g;
    p->shard = spec->shard;
    p->n_places = spec->n_places;
    planner a = {.spec = spec, .p = p, .cap = g->n_nodes + 1};
    a.valid = oct_arena_alloc(&p->arena, (size_t)g->n_tensors * sizeof *a.valid);
    p->steps = oct_arena_alloc(&p->arena, (size_t)a.cap * sizeof *p->steps);
    if (!a.valid || !p->steps)
        return no_memory(err);
    for (int i = 0; i < g->n_nodes; i++)
        OCT_TRY(add_node(&a, i, err));
    return place_all(&a, err);
}

void oct_plan_free(oct_plan *p)
{
    oct_arena_free(&p->arena);
    memset(p, 0, sizeof *p);
}

bool oct_plan_next_exchange(const oct_plan *p, int64_t n_rows, int64_t n_out, int *at,
                            oct_exchange *e)
{
    const oct_run run = {.n_rows = n_rows, .n_out = n_out};
    while (*at < p->n_steps) {
        const oct_node *n = p->steps[(*at)++].node;
        if (!n || !oct_op_is_exchange(n->op))
            continue;
        *e = (oct_exchange){.fold = n->op == OCT_OP_FOLD_RANKS, .layer = n->layer};
        int64_t floats = e->fold ? oct_run_rows(p, &run, n->out) * n->out->cols + OCT_FOLD_WORD
                                 : n_out * oct_plan_vocabulary(p, n->table);
        e->bytes = (uint64_t)floats * sizeof(float);
        return true;
    }
    return false;
}
