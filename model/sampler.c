#include "sampler.h"

#include <math.h>
#include <string.h>

#include "f16.h"
#include "kernels.h"
#include "select.h"

/* splitmix64: any seed is a good one. Result in [0, 1). */
static double next_uniform(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

/* ---- bias and penalties --------------------------------------------------------------------- */

static bool repeats(const oct_sampler *s)
{
    return s->repetition_penalty > 0 && s->repetition_penalty != 1;
}

static float penalised(const oct_sampler *s, float logit, float count)
{
    if (repeats(s))
        logit = logit > 0 ? logit / s->repetition_penalty : logit * s->repetition_penalty;
    return logit - s->frequency_penalty * count - s->presence_penalty;
}

/* The logits with bias and penalties: logits itself if there are none, else a copy in scratch. Only
 * the counts of ids in the history are ever looked at, so no others are set. */
static const float *adjust(const oct_sampler *s, const float *logits, int64_t n, float *scratch)
{
    bool penalise =
        s->n_history > 0 && (repeats(s) || s->frequency_penalty != 0 || s->presence_penalty != 0);
    if (s->n_bias <= 0 && !penalise)
        return logits;
    float *x = scratch, *count = scratch + n;
    memcpy(x, logits, (size_t)n * sizeof *x);
    for (int64_t i = 0; i < s->n_bias; i++)
        if (s->bias[i].id >= 0 && s->bias[i].id < n)
            x[s->bias[i].id] += s->bias[i].value;
    if (!penalise)
        return x;
    for (int pass = 0; pass < 3; pass++)
        for (int64_t i = 0; i < s->n_history; i++) {
            int32_t id = s->history[i];
            if (id < 0 || id >= n)
                continue;
            if (pass < 2) {
                count[id] = pass == 0 ? 0 : count[id] + 1;
            } else if (count[id] > 0) {
                x[id] = penalised(s, x[id], count[id]);
                count[id] = 0;
            }
        }
    return x;
}

/* ---- candidates ----------------------------------------------------------------------------- */

/* What a draw chooses from: in ascending order of ids, so that sums have one order. All arrays are
 * the caller's scratch, except that v may be the logits. */
typedef struct candidates {
    const float *v; /* [n] logits */
    float *w;       /* [n] weights: exp((v - max) / temperature); 0: not kept */
    float *id;      /* [n] bits of an int32; NULL: 0..n-1 */
    int64_t n;
    double total; /* of w, added in order */
} candidates;

/* How many reach least. */
static int64_t count_reaching(const oct_blocks *b, float least)
{
    int64_t n = 0;
    for (int64_t k = 0; k < b->n_blocks; k++) {
        if (b->max[k] < least)
            continue;
        int64_t i = k * b->size, end = i + b->size < b->n ? i + b->size : b->n;
        for (; i < end; i++)
            n += b->x[i] >= least;
    }
    return n;
}

/* Those that reach least, with logits to v, which may be b->x itself, and ids to id. */
static int64_t collect(const oct_blocks *b, float least, float *v, float *id)
{
    int64_t kept = 0;
    for (int64_t k = 0; k < b->n_blocks; k++) {
        if (b->max[k] < least)
            continue;
        int64_t i = k * b->size, end = i + b->size < b->n ? i + b->size : b->n;
        for (; i < end; i++) {
            float x = b->x[i];
            v[kept] = x;
            id[kept] = oct_f32_of_bits((uint32_t)i);
            kept += x >= least;
        }
    }
    return kept;
}

/* Removes from v and id those below least. */
static int64_t drop_below(float least, float *v, float *id, int64_t n)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        float x = v[i];
        v[kept] = x;
        id[kept] = id[i];
        kept += x >= least;
    }
    return kept;
}

/* Weights of c->v from least on, and their total. */
static void weigh(candidates *c, const oct_sampler *s, float max, float least)
{
    const oct_kernels *k = oct_kernels_best();
    c->total = 0;
    for (int64_t i = 0; i < c->n; i += OCT_BLOCK) {
        int64_t end = i + OCT_BLOCK < c->n ? i + OCT_BLOCK : c->n;
        k->softmax_weights(c->v + i, end - i, max, s->temperature, c->w + i);
        if (least > -INFINITY)
            for (int64_t j = i; j < end; j++)
                c->w[j] = c->v[j] >= least ? c->w[j] : 0.0f;
        for (int64_t j = i; j < end; j++)
            c->total += c->w[j];
    }
}

/* Everything, or the top k and their equals, weighed. Those are put together if they are fewer than
 * half, so that the scratch has room for their logits, ids and weights; else the others weigh 0. */
static void choose(const oct_sampler *s, const oct_blocks *b, float *scratch, candidates *c)
{
    int64_t n = b->n, k = s->top_k;
    float least = -INFINITY;
    *c = (candidates){b->x, scratch + n, NULL, n, 0};
    if (k > 0 && k < n) {
        float *v = scratch, *id = scratch + n;
        least = oct_blocks_bound(b, k);
        int64_t kept = count_reaching(b, least);
        if (kept >= n / 2) {
            least = oct_weighted_quantile(b->x, NULL, n, b->least, b->most, (double)(n - k + 1));
            kept = count_reaching(b, least);
        }
        if (kept < n / 2) {
            kept = collect(b, least, v, id);
            least = oct_weighted_quantile(v, NULL, kept, least, b->most, (double)(kept - k + 1));
            kept = drop_below(least, v, id, kept);
            *c = (candidates){v, id + kept, id, kept, 0};
        }
    }
    weigh(c, s, b->most, least);
}

/* Smallest logit that top-p keeps. */
static float top_p_bound(const oct_sampler *s, const oct_blocks *b, const candidates *c)
{
    double p = s->top_p > 0 ? s->top_p : 0;
    double target = (1 - p) * c->total;
    /* All that weigh less than target / n make less than target; half of it for roundings. */
    float bound = b->most + s->temperature * (float)log(target / (2 * (double)c->n));
    return oct_weighted_quantile(c->v, c->w, c->n, bound > b->least ? bound : b->least, b->most,
                                 target);
}

/* Cuts by top-p and min-p, and puts together what is left. */
static void cut(const oct_sampler *s, const oct_blocks *b, float *scratch, candidates *c)
{
    float least = s->top_p < 1 ? top_p_bound(s, b, c) : -INFINITY;
    float *id = c->id ? c->id : scratch, *w = c->w, min_p = s->min_p < 1 ? s->min_p : 1;
    int64_t kept = 0;
    for (int64_t start = 0, end; start < c->n; start = end) {
        end = start + b->size < c->n ? start + b->size : c->n;
        if (!c->id && b->max[start / b->size] < least)
            continue; /* v is what the blocks are of */
        for (int64_t i = start; i < end; i++) {
            float x = c->v[i], weight = w[i];
            id[kept] = c->id ? id[i] : oct_f32_of_bits((uint32_t)i);
            w[kept] = weight;
            kept += (x >= least) & (weight >= min_p);
        }
    }
    c->id = id;
    c->n = kept;
    c->total = 0;
    for (int64_t i = 0; i < kept; i++)
        c->total += w[i];
}

/* ---- draw ----------------------------------------------------------------------------------- */

static int32_t draw(const candidates *c, double uniform)
{
    double left = uniform * c->total;
    int64_t i = 0;
    while (i < c->n && !((left -= c->w[i]) < 0))
        i++;
    if (i == c->n) /* roundings: the last that can be drawn */
        do
            i--;
        while (i > 0 && c->w[i] == 0);
    return c->id ? (int32_t)oct_f32_bits(c->id[i]) : (int32_t)i;
}

/* The lowest id with the largest logit. */
static int32_t argmax(const oct_blocks *b)
{
    int64_t k = 0;
    while (b->max[k] < b->most)
        k++;
    int64_t i = k * b->size;
    while (b->x[i] < b->most)
        i++;
    return (int32_t)i;
}

int32_t oct_sample(oct_sampler *s, const float *logits, int64_t n, float *scratch)
{
    oct_blocks b;
    candidates c;
    oct_blocks_init(&b, adjust(s, logits, n, scratch), n);
    if (b.has_nan || !(b.most > -INFINITY))
        return -1;
    if (!(s->temperature > 0))
        return argmax(&b);
    if (b.most == INFINITY)
        return -1;
    choose(s, &b, scratch, &c);
    if (s->top_p < 1 || s->min_p > 0)
        cut(s, &b, scratch, &c);
    return draw(&c, next_uniform(&s->rng));
}

/* ---- several sequences ---------------------------------------------------------------------- */

typedef struct many {
    oct_draw *draws;
    int64_t n_draws, n_vocab;
    float *scratch;
} many;

static void sample_some(void *ctx, int thread, int n_threads)
{
    const many *m = ctx;
    int64_t i, end;
    n_threads = m->n_draws < n_threads ? (int)m->n_draws : n_threads;
    if (thread >= n_threads)
        return;
    for (oct_team_range(m->n_draws, thread, n_threads, &i, &end); i < end; i++) {
        oct_draw *d = &m->draws[i];
        if (d->sampler)
            d->id =
                oct_sample(d->sampler, d->logits, m->n_vocab, m->scratch + 2 * m->n_vocab * thread);
        if (d->wants_logprob)
            d->logprob = oct_logprob(d->logits, m->n_vocab, d->id);
        if (d->n_top > 0)
            d->n_found = oct_top_logprobs(d->logits, m->n_vocab, d->n_top, d->top);
    }
}

void oct_sample_many(oct_team *t, oct_draw *draws, int64_t n_draws, int64_t n_vocab, float *scratch)
{
    many m = {draws, n_draws, n_vocab, scratch};
    oct_team_run(t, sample_some, &m);
}
