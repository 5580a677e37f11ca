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
        int n = s->node && s->place == place ? oct_node_arrays(s->node, a) : 0;
        for (int k = 0; k < n; k++)
            if (a[k].p == what)
                return s->at[k];
    }
    return NULL;
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
        int n = mine ? oct_node_arrays(s->node, a) : 0;
        for (int k = 0; k < n; k++) {
            const void *host = o->where(o->placement, a[k].p);
            s->at[k] = b->kind->host ? host : uploaded(o->plan, place, i, a[k].p);
            if (s->at[k])
                continue;
            OCT_TRY(b->upload(b, free_room, host, a[k].bytes, err));
            s->at[k] = free_room;
            free_room += (a[k].bytes + OCT_ARRAY_ALIGN - 1) / OCT_ARRAY_ALIGN * OCT_ARRAY_ALIGN;
        }
    }
    return OCT_OK;
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
            OCT_TRY(b->alloc(b, need->buffer, &p, err));
        r->buffer[i] = p;
        if (!b->kind->host && need->weights > 0)
            OCT_TRY(b->alloc(b, need->weights, &r->weights[i], err));
        OCT_TRY(bind(&o, i, err));
    }
    return OCT_OK;
}

void oct_runner_free(oct_runner *r)
{
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
