/* runner_open.c: a plan becomes memory: buffers, and where every step finds its weights. */
#include <string.h>

#include "runner.h"

typedef struct opening {
    oct_runner *r;
    oct_plan *plan;
    oct_place_fn *where;
    const void *placement;
} opening;

/* Where an earlier step of the place has the same array; NULL: nowhere. */
static const void *uploaded(const oct_plan *p, int place, int before, const void *what)
{
    oct_array a[OCT_MAX_ARRAYS];
    for (int i = 0; i < before; i++) {
        const oct_step *s = &p->steps[i];
        bool has = s->node && s->place == place && !s->streamed;
        int n = has ? oct_node_arrays(s->node, p->shard, a) : 0;
        for (int k = 0; k < n; k++)
            if (a[k].p == what)
                return s->at[k];
    }
    return NULL;
}

/* Brings an array to a place of a memory of its own, at `to`; returns where unit 0 is, or would be,
 * in *at. */
static oct_status bring(oct_backend *b, const oct_array *a, const unsigned char *host,
                        unsigned char *to, const void **at, oct_error *err)
{
    if (!b->kind->packed) {
        *at = to;
        return b->upload(b, to, host, a->bytes, err);
    }
    *at = (const void *)((uintptr_t)to - a->bias);
    bool joined = a->run == a->stride; /* every run is followed by the next */
    int64_t n = joined ? 1 : a->n_runs;
    size_t run = joined ? a->run * (size_t)a->n_runs : a->run;
    for (int64_t i = 0; i < n; i++)
        OCT_TRY(
            b->upload(b, to + (size_t)i * run, host + a->first + (size_t)i * a->stride, run, err));
    return OCT_OK;
}

/* Tells the steps of a place where their weights are. A place with a memory of its own takes each
 * array once. */
static oct_status bind(const opening *o, int place, oct_error *err)
{
    oct_array a[OCT_MAX_ARRAYS];
    oct_backend *b = o->r->backend[place];
    unsigned char *free_room = o->r->weights[place];
    for (int i = 0; i < o->plan->n_steps; i++) {
        oct_step *s = &o->plan->steps[i];
        bool mine = s->node && s->place == place && !oct_op_is_exchange(s->node->op);
        int n = mine ? oct_node_arrays(s->node, o->plan->shard, a) : 0;
        for (int k = 0; k < n; k++) {
            const void *host = o->where(o->placement, a[k].p);
            s->at[k] = b->kind->host || s->streamed ? host : uploaded(o->plan, place, i, a[k].p);
            if (s->at[k])
                continue;
            OCT_TRY(bring(b, &a[k], host, free_room, &s->at[k], err));
            free_room += (oct_array_stored(&a[k], b->kind) + OCT_ARRAY_ALIGN - 1) /
                         OCT_ARRAY_ALIGN * OCT_ARRAY_ALIGN;
        }
    }
    return b->wait ? b->wait(b, err) : OCT_OK;
}

/* What all copies of the devices go through. One of them tells the driver for all. */
static void pin_host(oct_runner *r)
{
    oct_backend *b = r->plan->n_places > 1 ? r->backend[1] : NULL;
    if (b && b->pin && r->buffer[OCT_HOST])
        r->pinned = b->pin(b, r->buffer[OCT_HOST], r->plan->need[OCT_HOST].buffer);
}

/* An error says in r->failed whose it is. */
static oct_status take(oct_runner *r, int place, size_t bytes, void **p, oct_error *err)
{
    oct_status status = r->backend[place]->alloc(r->backend[place], bytes, p, err);
    if (status != OCT_OK)
        r->failed = place;
    return status;
}

oct_status oct_runner_open(oct_runner *r, oct_plan *plan, oct_place_fn *where,
                           const void *placement, oct_error *err)
{
    const opening o = {r, plan, where, placement};
    r->plan = plan;
    for (int i = 0; i < plan->n_places; i++) {
        const oct_plan_need *need = &plan->need[i];
        oct_backend *b = r->backend[i];
        void *p = NULL;
        if (need->buffer > 0)
            OCT_TRY(take(r, i, need->buffer, &p, err));
        r->buffer[i] = p;
        if (!b->kind->host && need->weights > 0)
            OCT_TRY(take(r, i, need->weights, &r->weights[i], err));
    }
    pin_host(r);
    for (int i = 0; i < plan->n_places; i++) { /* long: when all memory is there */
        oct_status status = bind(&o, i, err);
        if (status != OCT_OK)
            r->failed = i;
        OCT_TRY(status);
    }
    return OCT_OK;
}

void oct_runner_free(oct_runner *r)
{
    oct_backend *pins = r->backend[1];
    if (pins && pins->unpin && r->buffer[OCT_HOST])
        pins->unpin(pins, r->buffer[OCT_HOST]);
    for (int i = 0; i < OCT_MAX_PLACES; i++) {
        oct_backend *b = r->backend[i];
        if (!b)
            continue;
        if (r->buffer[i])
            b->release(b, r->buffer[i], r->plan->need[i].buffer);
        if (r->weights[i])
            b->release(b, r->weights[i], r->plan->need[i].weights);
        b->free(b);
    }
    memset(r, 0, sizeof *r);
}
