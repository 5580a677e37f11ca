#include "session_gpu.h"

#include <string.h>

enum { GRANULE = 2 << 20 /* in which drivers give large pieces of memory */ };

/* How far down the list of what is worth placing each GPU goes: attention of its layers one by one,
 * the head if it is its, experts of its layers one by one. */
typedef struct dealer {
    const oct_gpu_task *task;
    oct_graph *g;
    oct_plan_spec *spec;
    void *room;
    size_t room_bytes;
    oct_gpu_deal *deal;
    oct_plan *p;
    uint8_t *where, *streams;
    int64_t level[OCT_MAX_GPUS];
} dealer;

static bool has_head(const dealer *a, int k)
{
    return k == a->deal->n - 1;
}

static int64_t all_levels(const dealer *a, int k)
{
    return 2 * a->deal->share[k].n_layers + has_head(a, k) + a->task->streams;
}

/* Shares by levels. */
static void settle(dealer *a)
{
    for (int k = 0; k < a->deal->n; k++) {
        oct_gpu_share *s = &a->deal->share[k];
        int64_t left = a->level[k];
        s->attention = left < s->n_layers ? left : s->n_layers;
        left -= s->attention;
        s->head = has_head(a, k) && left > 0;
        left -= s->head;
        s->streams = a->task->streams && left > 0 && left - 1 < s->n_layers;
        s->experts = left - (a->task->streams && left > 0);
        a->deal->numbers[k].streams = s->streams;
        a->deal->numbers[k].blas = a->task->numbers.blas && s->head;
        /* where the table is anyway, and the first layer */
        s->embed = s->head && a->deal->first[k] == 0 && s->attention > 0;
    }
}

/* Rows that experts have made are summed where they are. */
static bool is_experts(const oct_node *n)
{
    return n->op == OCT_OP_EXPERTS || n->op == OCT_OP_COMBINE;
}

static bool has_node(const dealer *a, int k, const oct_node *n)
{
    const oct_gpu_share *s = &a->deal->share[k];
    int64_t layer = n->layer - a->deal->first[k];
    if (!oct_cuda_kind.supports(&a->deal->numbers[k], n))
        return false;
    if (n->layer < 0)
        return n->op == OCT_OP_EMBED ? s->embed : s->head;
    return layer >= 0 && layer < (is_experts(n) ? s->experts : s->attention);
}

/* Where ranks exchange slots, these are summed by the host. */
static bool streams_node(const dealer *a, int k, const oct_node *n)
{
    const oct_gpu_share *s = &a->deal->share[k];
    int64_t layer = n->layer - a->deal->first[k];
    return s->streams && is_experts(n) &&
           !(n->op == OCT_OP_COMBINE && n[-1].op != OCT_OP_EXPERTS) && layer >= s->experts &&
           layer < s->attention && oct_cuda_kind.supports(&a->deal->numbers[k], n);
}

static oct_status make_plan(dealer *a, oct_error *err)
{
    settle(a);
    for (int i = 0; i < a->g->n_nodes; i++) {
        a->where[i] = OCT_HOST;
        a->streams[i] = 0;
        for (int k = 0; k < a->deal->n; k++) {
            if (has_node(a, k, &a->g->nodes[i]))
                a->where[i] = (uint8_t)(1 + k);
            if (streams_node(a, k, &a->g->nodes[i]))
                a->streams[i] = (uint8_t)(1 + k);
        }
    }
    a->spec->where = a->where;
    a->spec->streams = a->streams;
    a->spec->n_places = 1 + a->deal->n;
    for (int k = 0; k < a->deal->n; k++) {
        a->spec->place[1 + k].kind = &oct_cuda_kind;
        a->spec->place[1 + k].numbers = &a->deal->numbers[k];
    }
    return oct_plan_make(a->g, a->spec, a->room, a->room_bytes, a->p, err);
}

static uint64_t granules(uint64_t bytes)
{
    return bytes < GRANULE / 2 ? bytes : (bytes + GRANULE - 1) / GRANULE * GRANULE;
}

/* Whether what the plan takes of GPU k is within its budget; fills the share's bytes. */
static bool fits(const dealer *a, int k)
{
    const oct_plan_need *need = &a->p->need[1 + k];
    const oct_kv_cache *kv = a->task->kv;
    oct_gpu_share *s = &a->deal->share[k];
    s->weights = need->weights;
    s->kv =
        kv->page_bytes / (uint64_t)kv->n_layers * (uint64_t)need->kv_layers * (uint64_t)kv->n_pages;
    s->buffers = need->buffer + oct_cuda_own_bytes(&a->deal->numbers[k]);
    return granules(s->weights) + granules(s->kv) + granules(s->buffers) <=
           a->task->gpus->gpu[s->gpu].budget;
}

/* The plan with GPU k alone, at a level. */
static oct_status try_level(dealer *a, int k, int64_t level, bool *good, oct_error *err)
{
    for (int i = 0; i < a->deal->n; i++)
        a->level[i] = i == k ? level : 0;
    OCT_TRY(make_plan(a, err));
    *good = fits(a, k);
    oct_plan_free(a->p);
    return OCT_OK;
}

static oct_status highest_level(dealer *a, int k, int64_t *level, oct_error *err)
{
    int64_t lo = 0, hi = all_levels(a, k); /* lo fits, above hi does not */
    bool all;
    OCT_TRY(try_level(a, k, hi, &all, err)); /* without room to stream, so maybe before others */
    if (all)
        lo = hi;
    while (lo < hi) {
        int64_t middle = lo + (hi - lo + 1) / 2;
        bool good;
        OCT_TRY(try_level(a, k, middle, &good, err));
        if (good)
            lo = middle;
        else
            hi = middle - 1;
    }
    *level = lo;
    return OCT_OK;
}

/* GPUs that may be used, with layers in proportion to their budgets. idle: that nothing fits on. */
static void list_gpus(dealer *a, const bool idle[OCT_MAX_GPUS])
{
    const oct_gpu_task *t = a->task;
    oct_gpu_deal *deal = a->deal;
    double sum = 0, before = 0;
    deal->n = 0;
    for (int i = 0; i < t->gpus->n; i++)
        sum += idle[i] ? 0 : (double)t->gpus->gpu[i].budget;
    for (int i = 0; i < t->gpus->n; i++) {
        double budget = idle[i] ? 0 : (double)t->gpus->gpu[i].budget;
        if (budget == 0)
            continue;
        int64_t first = (int64_t)((double)t->n_layers * before / sum + 0.5);
        int64_t end = (int64_t)((double)t->n_layers * (before + budget) / sum + 0.5);
        before += budget;
        if (end == first)
            continue;
        int k = deal->n++;
        deal->share[k] = (oct_gpu_share){.gpu = i, .n_layers = end - first};
        deal->first[k] = first;
        deal->numbers[k] = t->numbers;
        deal->numbers[k].device = t->gpus->gpu[i].index;
        deal->numbers[k].n_sms = t->gpus->gpu[i].n_sms;
        deal->numbers[k].shared = t->gpus->gpu[i].shared;
        deal->numbers[k].divided = t->gpus->gpu[i].divided;
    }
}

/* Each GPU's level, as high as it fits with all others; *again: one of them is idle now. Together
 * they may need a little more than each alone, for what passes from one to another. */
static oct_status find_levels(dealer *a, bool idle[OCT_MAX_GPUS], bool *again, oct_error *err)
{
    int64_t level[OCT_MAX_GPUS];
    for (int k = 0; k < a->deal->n; k++)
        OCT_TRY(highest_level(a, k, &level[k], err));
    memcpy(a->level, level, sizeof level);
    for (;;) {
        bool good = true;
        for (int k = 0; k < a->deal->n; k++)
            if (a->level[k] == 0)
                idle[a->deal->share[k].gpu] = *again = true;
        if (*again)
            return OCT_OK;
        OCT_TRY(make_plan(a, err));
        for (int k = 0; k < a->deal->n; k++)
            if (!fits(a, k)) {
                good = false;
                a->level[k]--;
            }
        if (good)
            return OCT_OK;
        oct_plan_free(a->p);
    }
}

oct_status oct_gpu_deal_make(const oct_gpu_task *task, oct_graph *g, oct_plan_spec *spec,
                             void *room, size_t room_bytes, oct_gpu_deal *deal, oct_plan *p,
                             oct_error *err)
{
    bool idle[OCT_MAX_GPUS] = {false}, again = true;
    dealer a = {.task = task,
                .g = g,
                .spec = spec,
                .room = room,
                .room_bytes = room_bytes,
                .deal = deal,
                .p = p};
    memset(deal, 0, sizeof *deal);
    a.where = oct_arena_alloc(&g->arena, (size_t)g->n_nodes);
    a.streams = oct_arena_alloc(&g->arena, (size_t)g->n_nodes);
    if (!a.where || !a.streams)
        return oct_fail(err, OCT_ERR_MEMORY, "plan: out of memory");
    while (again) {
        again = false;
        list_gpus(&a, idle);
        OCT_TRY(find_levels(&a, idle, &again, err));
    }
    return OCT_OK;
}
