#include "forecast.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "comm.h"
#include "cuda.h"
#include "kernels.h"
#include "model_impl.h"
#include "probe.h"

/* What `octet bench` found on the machines of examples/octet/bench: of the read probe when tokens
 * are generated, and when the weights are what a prompt waits for; of the integer instruction's
 * peak, by kernels; and of the FMA peak in attention. */
static const oct_bounds STEP_READ = {0.84, 1.0};
static const struct {
    const char *isa; /* the first is all others' */
    oct_bounds read, ops;
} prompt_shares[] = {{"", {0.7, 0.95}, {0.7, 0.95}}, {"amx", {0.5, 0.8}, {0.22, 0.45}}};
static const double ATTENTION_SHARE = 0.84;

enum { CARD_SMS = 64 }; /* decides buffers of some MiB only */

/* One layout on all hosts. */
typedef struct attempt {
    const oct_model *m;
    const oct_forecast_params *p;
    oct_shard_layout layout;
    oct_bounds read, ops; /* of the slowest host */
    double flops;
    double lacking;  /* bytes, of all hosts together */
    const char *isa; /* kernels of the last host */
    double passes;   /* integer instructions for each weight and row */
    /* On the card: shares of keys and values and of experts; bytes of what every token reads. */
    double kv_carded, experts_carded, common_carded;
} attempt;

static uint64_t add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The card as the engine would find it. */
static oct_gpus gpus_of(const oct_card *card)
{
    oct_gpus g = {.n = 1};
    oct_gpu *one = &g.gpu[0];
    snprintf(one->name, sizeof one->name, "card");
    one->n_sms = CARD_SMS;
    one->total = one->free = card->memory;
    one->budget = oct_gpu_budget(one);
    return g;
}

/* What a step does not read from the host any more. */
static void use_card(attempt *a, const oct_shard *shard, oct_forecast_rank *r)
{
    const oct_grok_bytes b = oct_grok_weight_bytes(&a->m->config, &a->m->layouts, shard);
    const double layers = (double)a->m->config.n_layers;
    for (int i = 0; i < r->need.n_gpus; i++) {
        const oct_gpu_share *s = &r->need.gpu[i];
        r->on_card += s->weights + s->kv + s->buffers;
        a->kv_carded = (double)s->attention / layers;
        a->experts_carded = (double)s->experts / layers;
        a->common_carded = a->kv_carded * (double)b.attention + (s->head ? (double)b.head : 0);
    }
}

static oct_status rank_needs(attempt *a, int rank, oct_forecast_rank *r, oct_error *err)
{
    const oct_forecast_params *p = a->p;
    const oct_grok_config *c = &a->m->config;
    oct_comm comm = {.rank = rank, .size = p->n_hosts}; /* that nobody talks through */
    const oct_gpus gpus = p->card ? gpus_of(p->card) : (oct_gpus){0};
    oct_session_params sp = p->session;
    oct_shard shard;
    sp.gpus = p->card ? &gpus : NULL;
    sp.comm = p->n_hosts > 1 ? &comm : NULL;
    sp.machine = p->hosts[rank].machine;
    sp.shard = a->layout;
    memset(r, 0, sizeof *r);
    OCT_TRY(oct_session_estimate(a->m, &sp, &r->need, err));
    if (p->card && !oct_shard_make(a->layout, rank, p->n_hosts, c->n_slices, c->n_experts, &shard))
        use_card(a, &shard, r);
    r->total = add(add(r->need.weights, r->need.kv), r->need.buffers);
    r->total = add(r->total, rank == 0 ? p->extra : 0);
    r->fits = r->total <= p->hosts[rank].memory && (!p->card || r->on_card <= p->card->memory);
    if (!r->fits)
        a->lacking += (double)r->total - (double)p->hosts[rank].memory;
    return OCT_OK;
}

/* ---- time ------------------------------------------------------------------------------------ */

static void slowest(const oct_bounds *host, bool first, oct_bounds *all)
{
    all->min = first ? host->min : fmin(all->min, host->min);
    all->max = first ? host->max : fmin(all->max, host->max);
}

static void find_rates(attempt *a)
{
    for (int i = 0; i < a->p->n_hosts; i++) {
        const oct_host *h = &a->p->hosts[i];
        slowest(&h->read, i == 0, &a->read);
        slowest(&h->ops, i == 0, &a->ops);
        a->flops = i == 0 ? h->flops : fmin(a->flops, h->flops);
    }
}

/* Work of one evaluation, for the rank that has most of it. */
typedef struct work {
    double bytes, kv_bytes, card_bytes; /* bytes: without keys and values */
    double ops, flops;                  /* products with weights; attention */
    double card_ops;                    /* the part of ops that the card has */
    double exchange;
    bool reads; /* reading, not arithmetic, is what its products wait for */
} work;

/* rows tokens, of one sequence behind `depth` or of so many at that depth. */
static const char *count(const attempt *a, int64_t rows, bool prompt, double depth, work *w)
{
    const oct_grok_config *c = &a->m->config;
    const double n = (double)rows, ranks = (double)a->p->n_hosts;
    const bool whole =
        a->layout == OCT_SHARD_SLICE_REPLICATED || a->layout == OCT_SHARD_EXPERT_REPLICATED;
    const double held = prompt ? depth + n : n * depth;
    const double seen = prompt ? n * (depth + (n + 1) / 2) : n * (depth + 1);
    const double kv = 2.0 * (double)(c->n_layers * c->n_kv_heads * c->head_dim) *
                      (double)oct_kv_elem_bytes(a->p->session.kv) / (whole ? 1 : ranks);
    const oct_step_shape shape = {rows, prompt ? 1 : rows, 0, a->p->session.kv};
    oct_step_cost cost;
    const char *wrong =
        oct_predict_step(a->m, a->layout, a->p->n_hosts, &shape, &a->p->network, &cost);
    if (wrong)
        return wrong;
    const double moved = a->common_carded + a->experts_carded * cost.expert_bytes;
    *w = (work){.bytes = cost.bytes - moved,
                .kv_bytes = kv * held * (1 - a->kv_carded),
                .card_bytes = moved + kv * held * a->kv_carded,
                .ops = oct_predict_ops(a->m, n, (double)shape.n_out) / ranks * a->passes,
                .flops = 4.0 * (double)(c->n_layers * c->n_q_heads * c->head_dim) * seen *
                         (1 - a->kv_carded) / (whole ? 1 : ranks),
                .exchange = cost.exchange};
    w->card_ops = w->ops * moved / cost.bytes;
    return NULL;
}

/* Seconds at some rates, of which shares are reached; a rate of 0 is unknown and counts as no time.
 * The card's products take none, or as long as the host would need for them. */
static double seconds_of(const attempt *a, work *w, double read, double ops, bool fast_card)
{
    const double reading = w->bytes / read;
    const double products = ops > 0 ? (w->ops - (fast_card ? w->card_ops : 0)) / ops : 0;
    const double attention =
        a->flops > 0 ? w->flops / (a->flops * ATTENTION_SHARE) : w->kv_bytes / read;
    const double card = a->p->card ? w->card_bytes / a->p->card->read : 0;
    w->reads = reading >= products;
    return fmax(reading, products) + card + fmax(w->kv_bytes / read, attention) + w->exchange;
}

/* Adds an evaluation, of which these shares of the rates are reached. parts: seconds of each
 * limit. */
static void add_work(const attempt *a, work *w, const oct_bounds *read, const oct_bounds *ops,
                     oct_forecast_time *t, double parts[OCT_LIMIT_EXCHANGE + 1])
{
    if (!(a->read.max > 0))
        return;
    t->seconds.min += seconds_of(a, w, a->read.max * read->max, a->ops.max * ops->max, true);
    double most = seconds_of(a, w, a->read.min * read->min, a->ops.min * ops->min, false);
    t->seconds.max += most;
    parts[OCT_LIMIT_EXCHANGE] += w->exchange;
    parts[w->reads ? OCT_LIMIT_READ : OCT_LIMIT_OPS] += most - w->exchange;
    t->bytes += w->bytes + w->kv_bytes;
    for (int i = 0; i <= OCT_LIMIT_EXCHANGE; i++)
        t->limit = parts[i] > parts[t->limit] ? (oct_limit)i : t->limit;
    t->share = t->limit == OCT_LIMIT_OPS ? *ops : *read;
}

static const char *times(const attempt *a, oct_forecast *out)
{
    double step[OCT_LIMIT_EXCHANGE + 1] = {0}, prompt[OCT_LIMIT_EXCHANGE + 1] = {0};
    const int64_t n = a->p->n_prompt, seqs = a->p->session.n_seqs ? a->p->session.n_seqs : 1;
    work w;
    const int row = strcmp(a->isa, prompt_shares[1].isa) == 0;
    const oct_bounds *read = &prompt_shares[row].read, *ops = &prompt_shares[row].ops;
    const char *wrong = count(a, seqs, false, (double)n, &w);
    if (wrong)
        return wrong;
    out->exchange = w.exchange;
    add_work(a, &w, &STEP_READ, ops, &out->step, step);
    if (!(a->read.max > 0))
        out->step.bytes = w.bytes + w.kv_bytes;
    for (int64_t at = 0; at < n && !wrong; at += out->chunk) {
        const int64_t rows = n - at < out->chunk ? n - at : out->chunk;
        wrong = count(a, rows, true, (double)at, &w);
        if (!wrong)
            add_work(a, &w, read, ops, &out->prompt, prompt);
    }
    if (!(a->ops.max > 0)) /* a prompt is bound by what is not known */
        out->prompt.seconds = (oct_bounds){0};
    return wrong;
}

/* ---- layouts --------------------------------------------------------------------------------- */

static double passes_of(const oct_session_params *p, const char *isa)
{
    const oct_kernels *row = oct_kernels_find(isa);
    const oct_probe *probe = row ? oct_probe_find(OCT_PROBE_INT, row) : NULL;
    return p->act == OCT_ACT_I8 ? 1 : probe ? probe->passes16 : 2;
}

static oct_status try_layout(attempt *a, oct_forecast_rank *ranks, oct_forecast *out,
                             oct_error *err)
{
    *out = (oct_forecast){.fits = true, .layout = a->layout};
    for (int i = 0; i < a->p->n_hosts; i++) {
        OCT_TRY(rank_needs(a, i, &ranks[i], err));
        out->fits = out->fits && ranks[i].fits;
        out->chunk = ranks[i].need.chunk;
        a->isa = ranks[i].need.isa;
        a->passes = fmax(a->passes, passes_of(&a->p->session, ranks[i].need.isa));
    }
    find_rates(a);
    const char *wrong = times(a, out);
    return wrong
               ? oct_fail(err, OCT_ERR_UNSUPPORTED, "forecast: %d hosts: %s", a->p->n_hosts, wrong)
               : OCT_OK;
}

/* Whether b is to be preferred to a. */
static bool better(const oct_forecast *b, double b_lacks, const oct_forecast *a, double a_lacks)
{
    if (b->fits != a->fits)
        return b->fits;
    if (!b->fits && b_lacks < a_lacks)
        return true;
    const bool known = a->step.seconds.max > 0;
    return (b->fits || b_lacks <= a_lacks) &&
           (known ? b->step.seconds.max < a->step.seconds.max : b->step.bytes < a->step.bytes);
}

static oct_status check(const oct_model *m, const oct_forecast_params *p, oct_error *err)
{
    const int64_t n_ctx = p->session.n_ctx ? p->session.n_ctx : m->config.n_ctx;
    if (p->n_hosts < 1)
        return oct_fail(err, OCT_ERR_ARG, "forecast: %d hosts, expected 1 or more", p->n_hosts);
    if (p->n_prompt < 1 || p->n_prompt > n_ctx)
        return oct_fail(err, OCT_ERR_ARG,
                        "a prompt of %lld tokens, expected 1 to the context's %lld",
                        (long long)p->n_prompt, (long long)n_ctx);
    if (p->layouts && !(p->layouts & ((1u << OCT_SHARD_LAYOUTS) - 1)))
        return oct_fail(err, OCT_ERR_ARG, "forecast: layouts %#x, of which there is none",
                        p->layouts);
    if (p->n_hosts > OCT_WEIGHT_MAX_SLICES)
        return oct_fail(err, OCT_ERR_UNSUPPORTED, "%d hosts, at most %d can share a model",
                        p->n_hosts, OCT_WEIGHT_MAX_SLICES);
    return OCT_OK;
}

oct_status oct_forecast_make(const oct_model *m, const oct_forecast_params *p,
                             oct_forecast_rank *ranks, oct_forecast *out, oct_error *err)
{
    const unsigned layouts = p->layouts ? p->layouts : (1u << OCT_SHARD_LAYOUTS) - 1;
    double lacks = 0;
    bool any = false;
    oct_error why = {0};
    OCT_TRY(check(m, p, err));
    for (int k = 0; k < (p->n_hosts > 1 ? OCT_SHARD_LAYOUTS : 1); k++) {
        oct_forecast_rank mine[OCT_WEIGHT_MAX_SLICES];
        oct_forecast f;
        attempt a = {.m = m, .p = p, .layout = (oct_shard_layout)k};
        if (p->n_hosts > 1 && !(layouts >> k & 1))
            continue;
        oct_status status = try_layout(&a, mine, &f, &why);
        if (status != OCT_OK && status != OCT_ERR_UNSUPPORTED)
            return oct_fail(err, status, "%s", why.text);
        if (status != OCT_OK || (any && !better(&f, a.lacking, out, lacks)))
            continue;
        any = true;
        *out = f;
        lacks = a.lacking;
        memcpy(ranks, mine, (size_t)p->n_hosts * sizeof *ranks);
    }
    return any ? OCT_OK : oct_fail(err, OCT_ERR_UNSUPPORTED, "%s", why.text);
}

/* ---- what would fit instead ------------------------------------------------------------------ */

oct_status oct_forecast_context(const oct_model *m, const oct_forecast_params *p, int64_t *n_ctx,
                                oct_error *err)
{
    const int64_t whole = m->config.n_ctx, page = 128, n_prompt = p->n_prompt;
    oct_forecast_rank ranks[OCT_WEIGHT_MAX_SLICES];
    oct_forecast f;
    oct_forecast_params q = *p;
    int64_t lo = 0, hi = (whole + page - 1) / page; /* pages: lo fit; more than hi do not exist */
    while (lo < hi) {
        const int64_t pages = (lo + hi + 1) / 2;
        q.session.n_ctx = pages * page < whole ? pages * page : whole;
        q.n_prompt = n_prompt < q.session.n_ctx ? n_prompt : q.session.n_ctx;
        OCT_TRY(oct_forecast_make(m, &q, ranks, &f, err));
        if (f.fits)
            lo = pages;
        else
            hi = pages - 1;
    }
    *n_ctx = lo * page < whole ? lo * page : whole;
    return OCT_OK;
}

oct_status oct_forecast_hosts(const oct_model *m, const oct_forecast_params *p, int *n_hosts,
                              oct_error *err)
{
    oct_host hosts[OCT_WEIGHT_MAX_SLICES];
    oct_forecast_rank ranks[OCT_WEIGHT_MAX_SLICES];
    oct_forecast f;
    oct_forecast_params q = *p;
    q.hosts = hosts;
    *n_hosts = 0;
    OCT_TRY(check(m, p, err));
    for (int i = 0; i < OCT_WEIGHT_MAX_SLICES; i++)
        hosts[i] = p->hosts[0];
    for (q.n_hosts = p->n_hosts + 1; q.n_hosts <= OCT_WEIGHT_MAX_SLICES; q.n_hosts++) {
        oct_error why = {0};
        oct_status status = oct_forecast_make(m, &q, ranks, &f, &why);
        if (status != OCT_OK && status != OCT_ERR_UNSUPPORTED)
            return oct_fail(err, status, "%s", why.text);
        if (status == OCT_OK && f.fits) {
            *n_hosts = q.n_hosts;
            break;
        }
    }
    return OCT_OK;
}
