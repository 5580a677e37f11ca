/* compare.c: how far two models' predictions of a text are apart, see quantize.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "moments.h"
#include "threads.h"

typedef struct comparison {
    const oct_text_params *p;
    int64_t window, n_vocab;
    oct_session *s[2];
    float *logits[2]; /* [window][n_vocab] */
    uint8_t *want;
    double kl, nll[2], windows, sum, sum_sq; /* of the windows' means */
    int64_t n, n_scored, n_same;
} comparison;

static int64_t top_of(const float *x, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

/* KL(softmax a || softmax b), in double. */
static double divergence(const float *a, const float *b, int64_t n, double log_a, double log_b)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const double la = (double)a[i] - log_a;
        sum += exp(la) * (la - ((double)b[i] - log_b));
    }
    return sum;
}

static void add_row(comparison *c, int64_t row, const int32_t *next, double *kl)
{
    const float *a = c->logits[0] + row * c->n_vocab, *b = c->logits[1] + row * c->n_vocab;
    const double log_a = oct_log_sum_exp(a, c->n_vocab), log_b = oct_log_sum_exp(b, c->n_vocab);
    *kl += divergence(a, b, c->n_vocab, log_a, log_b);
    c->n_same += top_of(a, c->n_vocab) == top_of(b, c->n_vocab);
    if (next) {
        c->nll[0] -= (double)a[*next] - log_a;
        c->nll[1] -= (double)b[*next] - log_b;
        c->n_scored++;
    }
}

static oct_status compare_window(comparison *c, int64_t first, int64_t n, oct_error *err)
{
    const int32_t *ids = c->p->ids + first;
    const oct_batch batch = {n, ids, NULL, c->want};
    double kl = 0;
    for (int k = 0; k < 2; k++) {
        oct_session_truncate(c->s[k], 0, 0);
        OCT_TRY(oct_eval(c->s[k], &batch, c->logits[k], err));
    }
    for (int64_t i = 0; i < n; i++)
        add_row(c, i, i + 1 < n ? &ids[i + 1] : NULL, &kl);
    c->kl += kl;
    c->n += n;
    c->windows++;
    c->sum += kl / (double)n;
    c->sum_sq += kl / (double)n * (kl / (double)n);
    return OCT_OK;
}

static oct_status run(comparison *c, const oct_model *const *m, oct_error *err)
{
    oct_session_params p = c->p->session ? *c->p->session : (oct_session_params){0};
    p.n_ctx = c->window;
    p.n_seqs = 1;
    p.cancel = c->p->cancel;
    for (int k = 0; k < 2; k++) {
        c->logits[k] = calloc((size_t)c->window, (size_t)c->n_vocab * sizeof(float));
        if (!c->logits[k])
            return oct_fail(err, OCT_ERR_MEMORY, "compare: no memory for the logits of %lld tokens",
                            (long long)c->window);
        OCT_TRY(oct_session_new(m[k], &p, &c->s[k], err));
    }
    for (int64_t at = 0; c->p->n - at >= 2; at += c->window) {
        const int64_t n = c->p->n - at < c->window ? c->p->n - at : c->window;
        OCT_TRY(compare_window(c, at, n, err));
        if (c->p->progress)
            c->p->progress(c->p->progress_ctx, (uint64_t)(at + n), (uint64_t)c->p->n);
    }
    return OCT_OK;
}

static void report_of(const comparison *c, oct_compare_report *r)
{
    const double mean = c->sum / c->windows, spread = c->sum_sq / c->windows - mean * mean;
    *r = (oct_compare_report){.n_tokens = c->n, .kl = c->kl / (double)c->n};
    r->kl_error = c->windows > 1 && spread > 0 ? sqrt(spread / (c->windows - 1)) : 0;
    for (int k = 0; k < 2; k++)
        r->ppl[k] = exp(c->nll[k] / (double)c->n_scored);
    r->same_top = (double)c->n_same / (double)c->n;
}

oct_status oct_compare(const oct_model *first, const oct_model *second, const oct_text_params *p,
                       oct_compare_report *report, oct_error *err)
{
    const oct_model *const m[2] = {first, second};
    int64_t window;
    OCT_TRY(oct_text_window(first, p, &window, err));
    if (!p->window && oct_model_get_info(second)->n_ctx < window)
        window = oct_model_get_info(second)->n_ctx;
    comparison c = {.p = p, .window = window, .n_vocab = oct_model_get_info(first)->n_vocab};
    if (oct_model_get_info(second)->n_vocab != c.n_vocab)
        return oct_fail(err, OCT_ERR_ARG, "compare: vocabularies of %lld and %lld tokens",
                        (long long)c.n_vocab, (long long)oct_model_get_info(second)->n_vocab);
    if (window < 2 || p->n < 2)
        return oct_fail(err, OCT_ERR_ARG,
                        "compare: a text of %lld tokens in windows of %lld, at least 2 are needed",
                        (long long)p->n, (long long)window);
    c.want = malloc((size_t)window);
    oct_status s = OCT_OK;
    if (!c.want)
        s = oct_fail(err, OCT_ERR_MEMORY, "compare: out of memory");
    else
        memset(c.want, 1, (size_t)window);
    if (s == OCT_OK)
        s = run(&c, m, err);
    if (s == OCT_OK)
        report_of(&c, report);
    for (int k = 0; k < 2; k++) {
        oct_session_free(c.s[k]);
        free(c.logits[k]);
    }
    free(c.want);
    return s;
}
