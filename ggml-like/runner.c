#include "runner.h"

#include <string.h>

#include "machine.h"

/* One run. */
typedef struct running {
    oct_runner *r;
    oct_run *run;
    const oct_tally *tally;
    const volatile int *cancel; /* of this rank */
    unsigned moving;            /* bit k: copies from or to place k may not have been made */
    int held;                   /* the place that is held, see oct_backend.hold; 0: none */
    /* For tally->layer_time: the layer that runs, when it began, what was counted then. */
    int64_t layer;
    double began;
    oct_comm_stats talked;
} running;

static unsigned char *data_at(const oct_runner *r, int place, const oct_tensor *t)
{
    return r->buffer[place] + oct_plan_offset(r->plan, place, t);
}

/* ---- counting -------------------------------------------------------------------------------- */

/* Before a step of layer `next`: what has passed is the time of the layer before. */
static void note_layer(running *a, int64_t next)
{
    const oct_comm *comm = a->r->comm;
    if (comm->size > 1)
        atomic_store_explicit(&a->r->comm->layer, next, memory_order_relaxed);
    if (!a->tally->layer_time || next == a->layer)
        return;
    double t = oct_seconds();
    if (a->layer >= 0) {
        oct_node_time *l = &a->tally->layer_time[a->layer];
        l->seconds += t - a->began;
        oct_comm_stats_add(&l->comm, &a->talked, &comm->stats);
    }
    a->layer = next;
    a->began = t;
    a->talked = comm->stats;
}

/* The choices of one layer's router. */
static void note_choices(const running *a, const oct_node *n)
{
    const unsigned char *data = data_at(a->r, OCT_HOST, n->out);
    int64_t rows = oct_run_rows(a->r->plan, a->run, n->out);
    uint64_t hash = a->tally->route_hash[n->layer];
    for (int64_t i = 0; i < rows; i++) {
        const int32_t *expert = (const void *)(data + (size_t)i * n->out->row_bytes);
        for (int64_t k = 0; k < n->n_used; k++) {
            a->tally->expert_rows[expert[k]]++;
            hash = (hash ^ (uint64_t)(expert[k] + 1)) * 0x9e3779b97f4a7c15u;
            hash ^= hash >> 29;
        }
    }
    a->tally->route_hash[n->layer] = hash;
}

/* Of EXPERTS: the expert of a slot. */
static int64_t expert_of(const running *a, const oct_node *n, int64_t slot)
{
    if (!n->in[1])
        return 0;
    const unsigned char *data = data_at(a->r, OCT_HOST, n->in[1]);
    const int32_t *expert = (const void *)(data + (size_t)(slot / n->n_used) * n->in[1]->row_bytes);
    return expert[slot % n->n_used];
}

/* Experts that a device has read: it does not tell the host which. */
static void note_read(const running *a, const oct_node *n)
{
    const oct_shard *s = a->r->plan->shard;
    uint64_t chosen = 0, each = oct_shard_read_bytes(s, n->w[0]) + oct_shard_read_bytes(s, n->w[1]);
    for (int64_t i = 0; i < oct_run_rows(a->r->plan, a->run, n->out); i++) {
        const int64_t e = expert_of(a, n, i);
        chosen |= (uint64_t)(e >= s->experts.first && e < s->experts.end) << e;
    }
    a->run->bytes_read += (uint64_t)__builtin_popcountll(chosen) * each;
}

/* The plan keeps the routes of all layers in the host's memory to the end. */
static void note_routes(const running *a)
{
    const oct_plan *p = a->r->plan;
    for (int i = 0; i < p->n_steps; i++) {
        const oct_step *s = &p->steps[i];
        if (s->node && s->node->op == OCT_OP_ROUTE && a->tally->expert_rows)
            note_choices(a, s->node);
        if (s->node && s->node->op == OCT_OP_EXPERTS && !s->streamed &&
            !a->r->backend[s->place]->kind->host && a->r->backend[s->place]->wait)
            note_read(a, s->node);
    }
}

/* ---- steps that are no backend's ------------------------------------------------------------- */

/* Until the copies of all places but one are made; -1: of all. */
static oct_status settle(running *a, int but, oct_error *err)
{
    oct_status status = OCT_OK;
    for (int i = 1; i < a->r->plan->n_places && status == OCT_OK; i++) {
        oct_backend *b = a->r->backend[i];
        if (i == but || i == a->held || !(a->moving >> i & 1))
            continue;
        status = b->wait ? b->wait(b, err) : OCT_OK;
        a->moving &= ~(1u << i);
    }
    return status;
}

/* ---- streaming ---- */

/* The host is to have all of a layer that was divided, or nothing of one that will be. */
static void join(running *a)
{
    a->run->elsewhere = 0;
    a->run->all_elsewhere = false;
}

/* Rows of each of the rank's experts; returns how many they are. */
static int64_t chosen_rows(const running *a, const oct_node *n, int64_t rows[])
{
    const oct_shard_range mine = a->r->plan->shard->experts;
    const int64_t slots = oct_run_rows(a->r->plan, a->run, n->out);
    int64_t all = 0;
    for (int64_t e = 0; e < n->w[0]->layout.n_experts; e++)
        rows[e] = 0;
    for (int64_t i = 0; i < slots; i++) {
        const int64_t e = expert_of(a, n, i);
        rows[e] += e >= mine.first && e < mine.end;
        all += e >= mine.first && e < mine.end;
    }
    return all;
}

/* Divides the experts of a layer between the host, whose step is the next, and a device. */
static oct_status divide(running *a, int step, oct_error *err)
{
    const oct_step *s = &a->r->plan->steps[step];
    oct_backend *b = a->r->backend[s->place];
    int64_t rows[OCT_WEIGHT_MAX_EXPERTS];
    join(a);
    if (!(a->r->rates.link > 0))
        return OCT_OK;
    if (s->node->in[1])
        OCT_TRY(settle(a, -1, err)); /* what the router has chosen */
    if (chosen_rows(a, s->node, rows) == 0)
        return OCT_OK;
    a->run->elsewhere = oct_stream_choose(&a->r->rates, s->node, rows);
    if (a->run->elsewhere == 0)
        return OCT_OK;
    a->run->all_elsewhere = true;
    for (int64_t e = 0; e < s->node->w[0]->layout.n_experts; e++)
        a->run->all_elsewhere &= rows[e] == 0 || (a->run->elsewhere >> e & 1);
    const uint64_t each = oct_shard_read_bytes(a->r->plan->shard, s->node->w[0]) +
                          oct_shard_read_bytes(a->r->plan->shard, s->node->w[1]);
    const uint64_t bytes = (uint64_t)__builtin_popcountll(a->run->elsewhere) * each;
    a->run->streamed += bytes;
    a->run->bytes_read += bytes;
    return b->stream(b, a->r->plan, a->r->buffer[s->place], step, a->run, err);
}

/* A place does its copies in order; what other places still read or write on the host comes first.
 */
static oct_status move(running *a, const oct_step *s, unsigned char *to, const unsigned char *from,
                       size_t bytes, oct_error *err)
{
    const int device = s->place == OCT_HOST ? s->from : s->place;
    oct_backend *b = a->r->backend[device];
    OCT_TRY(settle(a, device, err));
    a->moving |= 1u << device;
    return (s->place == OCT_HOST ? b->download : b->upload)(b, to, from, bytes, err);
}

/* The slots that a device has made, into the host's: all, or each run of them. */
static oct_status bring_slots(running *a, const oct_step *s, oct_error *err)
{
    const oct_tensor *t = s->copied;
    const oct_node *n = s[-1].node;
    const int64_t slots = oct_run_rows(a->r->plan, a->run, t);
    unsigned char *to = data_at(a->r, OCT_HOST, t);
    const unsigned char *from = data_at(a->r, s->from, t);
    for (int64_t i = 0, end; a->run->elsewhere != 0 && i < slots; i = end) {
        for (end = i; end < slots; end++)
            if (!a->run->all_elsewhere && !(a->run->elsewhere >> expert_of(a, n, end) & 1))
                break;
        const size_t at = (size_t)i * t->row_bytes;
        if (end > i)
            OCT_TRY(move(a, s, to + at, from + at, (size_t)(end - i) * t->row_bytes, err));
        else
            end++;
    }
    return OCT_OK;
}

static oct_status copy(running *a, const oct_step *s, oct_error *err)
{
    oct_runner *r = a->r;
    size_t bytes = (size_t)oct_run_rows(r->plan, a->run, s->copied) * s->copied->row_bytes;
    unsigned char *to = data_at(r, s->place, s->copied);
    oct_status status = OCT_OK;
    if (s->part)
        to = r->buffer[s->place] + s[1].temp_offset;
    if (s->slots && s->place == OCT_HOST)
        status = bring_slots(a, s, err);
    else if (bytes > 0 && !((s->part || s->slots) && a->run->all_elsewhere))
        status = move(a, s, to, data_at(r, s->from, s->copied), bytes, err);
    if (s->slots)
        join(a);
    return status;
}

static oct_status cancelled(oct_error *err)
{
    return oct_fail(err, OCT_ERR_CANCELLED, "evaluation cancelled");
}

/* Behind the vector goes a word of every rank: whether it has been cancelled. The sum tells all. */
static oct_status fold(const running *a, const oct_node *n, oct_error *err)
{
    oct_comm *comm = a->r->comm;
    float *x = (float *)(void *)data_at(a->r, OCT_HOST, n->out);
    int64_t floats = oct_run_rows(a->r->plan, a->run, n->out) * n->out->cols;
    x[floats] = oct_cancelled(a->cancel) ? 1.0f : 0.0f;
    OCT_TRY(comm->fold(comm, x, floats + OCT_FOLD_WORD, err));
    return x[floats] == 0.0f ? OCT_OK : cancelled(err);
}

/* Each rank has made the logits of its rows of the vocabulary. Rank 0 has its own in their place;
 * the others' come as many rows at a time as there is room for. */
static oct_status gather(const running *a, const oct_node *n, oct_error *err)
{
    const oct_plan *p = a->r->plan;
    oct_comm *comm = a->r->comm;
    oct_run *r = a->run;
    int64_t each = oct_plan_vocabulary(p, n->table), max_rows = oct_plan_gather_rows(p, n->table);
    float *all = (float *)(void *)(a->r->buffer[OCT_HOST] + p->logits_offset);
    for (int64_t first = 0; first < r->n_out; first += max_rows) {
        int64_t rows = r->n_out - first < max_rows ? r->n_out - first : max_rows;
        size_t bytes = (size_t)(rows * each) * sizeof *all;
        const float *mine = comm->rank ? r->logits + first * each : NULL;
        OCT_TRY(comm->collect(comm, mine, bytes, comm->rank ? NULL : all, err));
        for (int64_t i = 0; comm->rank == 0 && i < rows * (comm->size - 1); i++) {
            int64_t rank = 1 + i / rows, row = i % rows, at = rank * each;
            int64_t count = n->table->n_rows - at < each ? n->table->n_rows - at : each;
            if (count > 0)
                memcpy(r->logits + (first + row) * r->logits_stride + at,
                       all + (rank * rows + row) * each, (size_t)count * sizeof *all);
        }
    }
    return OCT_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

static bool is_exchange(const oct_step *s)
{
    return s->node && oct_op_is_exchange(s->node->op);
}

/* Behind the steps from `first` that its backend can do in one go. */
static int segment_end(const running *a, int first)
{
    const oct_plan *p = a->r->plan;
    const oct_step *s = &p->steps[first];
    int end = first + 1;
    while (end < p->n_steps && p->steps[end].node && p->steps[end].place == s->place &&
           !is_exchange(&p->steps[end]) && !p->steps[end].streamed && !p->steps[end - 1].joined &&
           (!a->tally->layer_time || p->steps[end].node->layer == s->node->layer))
        end++;
    return end;
}

/* What begins with step i; *end: behind it. */
static oct_status run_step(running *a, int i, int *end, oct_error *err)
{
    const oct_plan *p = a->r->plan;
    const oct_step *s = &p->steps[i];
    *end = i + 1;
    if (!s->node)
        return copy(a, s, err);
    note_layer(a, s->node->layer);
    if (s->place == OCT_HOST) /* where it computes, too */
        OCT_TRY(settle(a, -1, err));
    if (s->streamed) {
        OCT_TRY(divide(a, i, err));
        *end = i + 1 + a->run->all_elsewhere; /* without the host's step */
        return OCT_OK;
    }
    if (s->node->op == OCT_OP_FOLD_RANKS)
        return fold(a, s->node, err);
    if (s->node->op == OCT_OP_GATHER_LOGITS)
        return gather(a, s->node, err);
    oct_backend *b = a->r->backend[s->place];
    *end = segment_end(a, i);
    OCT_TRY(b->run(b, p, a->r->buffer[s->place], i, *end, a->run, err));
    if (s->place != OCT_HOST && !p->steps[*end - 1].node->out) /* logits are on the way */
        a->moving |= 1u << s->place;
    if (s->joined)
        join(a);
    return OCT_OK;
}

static oct_status run_range(running *a, int first, int end, oct_error *err)
{
    for (int i = first; i < end;)
        OCT_TRY(run_step(a, i, &i, err));
    return OCT_OK;
}

/* Behind the steps from `first` that the host and ranks do. */
static int host_end(const oct_plan *p, int first)
{
    int end = first;
    while (end < p->n_steps && p->steps[end].node && p->steps[end].place == OCT_HOST)
        end++;
    return end;
}

static bool is_copy(const oct_step *s, int from, int to)
{
    return !s->node && s->from == from && s->place == to;
}

/* Behind the steps from `first` that a device can be given before the host has computed what they
 * begin with: copies to it, its nodes, copies of what these make. `first`: there are none, or too
 * many: drivers keep some hundred launches before they wait themselves. */
static int ahead_end(const running *a, int first)
{
    enum { MOST_ROWS = 512, MOST_NODES = 32 };
    const oct_plan *p = a->r->plan;
    int end = first;
    if (!a->r->pinned || a->run->elsewhere != 0 || first == p->n_steps ||
        a->run->n_rows > MOST_ROWS)
        return first;
    const int device = p->steps[first].place;
    while (end < p->n_steps && is_copy(&p->steps[end], OCT_HOST, device))
        end++;
    const int nodes = end;
    for (; end > first && end < p->n_steps && p->steps[end].node; end++) {
        if (p->steps[end].place != device || p->steps[end].streamed)
            break;
        if (!p->steps[end].node->out || end - nodes == MOST_NODES)
            return first; /* logits go to memory of the caller's */
    }
    while (end > first && end < p->n_steps && is_copy(&p->steps[end], device, OCT_HOST))
        end++;
    return end;
}

/* Steps first..host-1 of the host, while a device has been given those behind them, to ahead-1. */
static oct_status run_held(running *a, int first, int host, int ahead, oct_error *err)
{
    const int device = a->r->plan->steps[host].place;
    oct_backend *b = a->r->backend[device];
    note_layer(a, a->r->plan->steps[first].node->layer); /* waiting is its time already */
    OCT_TRY(settle(a, -1, err));
    if (!b->hold || !b->hold(b)) {
        OCT_TRY(run_range(a, first, host, err));
        return run_range(a, host, ahead, err);
    }
    oct_status status = run_range(a, host, ahead, err);
    a->held = device;
    if (status == OCT_OK)
        status = run_range(a, first, host, err);
    a->held = 0;
    b->go(b);
    return status;
}

static oct_status run_steps(running *a, oct_error *err)
{
    const oct_plan *p = a->r->plan;
    oct_status status = OCT_OK;
    for (int i = 0, end; i < p->n_steps && status == OCT_OK; i = end) {
        const int host = host_end(p, i), ahead = host > i ? ahead_end(a, host) : host;
        end = ahead;
        status = ahead > host ? run_held(a, i, host, ahead, err) : run_step(a, i, &end, err);
    }
    note_layer(a, -1);
    return status;
}

/* Nothing is under way when a run ends, however it does. */
static oct_status finish(running *a, oct_status status, oct_error *err)
{
    for (int i = 1; i < a->r->plan->n_places; i++) {
        oct_backend *b = a->r->backend[i];
        oct_error late = {0};
        oct_status s = b->wait ? b->wait(b, &late) : OCT_OK;
        if (status == OCT_OK && s != OCT_OK)
            status = oct_fail(err, s, "%s", late.text);
    }
    return status;
}

oct_status oct_runner_run(oct_runner *r, oct_run *run, const oct_tally *tally, oct_error *err)
{
    running a = {.r = r, .run = run, .tally = tally, .cancel = run->cancel, .layer = -1};
    if (r->comm->size > 1)
        run->cancel = NULL; /* ranks leave together */
    if (r->comm->rank > 0) {
        const oct_node *last = &r->plan->graph->nodes[r->plan->graph->n_nodes - 1];
        run->logits_stride = oct_plan_vocabulary(r->plan, last->table);
        run->first_logit = r->comm->rank * run->logits_stride;
        run->logits = (float *)(void *)(r->buffer[OCT_HOST] + r->plan->logits_offset);
    }
    for (int i = 0; i < r->plan->n_places; i++)
        if (r->backend[i]->begin)
            r->backend[i]->begin(r->backend[i]);
    oct_status status = finish(&a, run_steps(&a, err), err);
    for (int i = 0; i < r->plan->n_places; i++)
        if (r->backend[i]->end)
            r->backend[i]->end(r->backend[i]);
    if (status == OCT_OK)
        note_routes(&a);
    else if (status != OCT_ERR_CANCELLED && r->comm->size > 1)
        r->comm->broken = true; /* the other ranks do not know of it: they wait for this one */
    run->cancel = a.cancel;
    return status;
}
