#include "serve_metrics.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* From a tiny model's step to a prompt of minutes. Seconds. */
static const double bounds[OCT_SERVE_BUCKETS] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                                 0.1,    0.25,  0.5,    1,     2.5,  5,     10,
                                                 25,     50,    100,    250,   500,  1000};

void oct_serve_metrics_observe(oct_serve_histogram *h, double seconds)
{
    int i = 0;
    while (i < OCT_SERVE_BUCKETS && seconds > bounds[i])
        i++;
    h->count[i]++;
    h->sum += seconds;
    if (seconds > h->max)
        h->max = seconds;
}

void oct_serve_metrics_reply(oct_serve_metrics *m, int code)
{
    for (int i = 0; i < OCT_SERVE_CODES; i++)
        if (m->replies[i].code == code || m->replies[i].code == 0) {
            m->replies[i].code = code;
            m->replies[i].n++;
            return;
        }
}

static void head(FILE *f, const char *name, const char *type, const char *what)
{
    fprintf(f, "# HELP octet_%s %s\n# TYPE octet_%s %s\n", name, what, name, type);
}

static void put(FILE *f, const char *name, const char *type, const char *what, double value)
{
    head(f, name, type, what);
    fprintf(f, "octet_%s %.17g\n", name, value);
}

static void put_histogram(FILE *f, const char *name, const char *what, const oct_serve_histogram *h)
{
    uint64_t n = 0;
    head(f, name, "histogram", what);
    for (int i = 0; i < OCT_SERVE_BUCKETS; i++) {
        n += h->count[i];
        fprintf(f, "octet_%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], (unsigned long long)n);
    }
    n += h->count[OCT_SERVE_BUCKETS];
    fprintf(f, "octet_%s_bucket{le=\"+Inf\"} %llu\n", name, (unsigned long long)n);
    fprintf(f, "octet_%s_sum %.17g\noctet_%s_count %llu\n", name, h->sum, name,
            (unsigned long long)n);
}

static void put_replies(FILE *f, const oct_serve_metrics *m)
{
    head(f, "http_replies_total", "counter", "Replies by status.");
    for (int i = 0; i < OCT_SERVE_CODES && m->replies[i].code; i++)
        fprintf(f, "octet_http_replies_total{code=\"%d\"} %llu\n", m->replies[i].code,
                (unsigned long long)m->replies[i].n);
    put(f, "clients_gone_total", "counter", "Clients that left before their answer was complete.",
        (double)m->n_gone);
    put(f, "connections_closed_total", "counter",
        "Connections closed for being slow or to make room.", (double)m->n_evicted);
    put(f, "slow_readers_total", "counter", "Times a stream waited for its reader.",
        (double)m->n_held);
}

static void put_scheduler(FILE *f, const oct_serve_figures *g)
{
    static const char *const ends[] = {"eos", "length", "context", "cancelled", "error"};
    const oct_scheduler_stats *s = &g->scheduler;
    put(f, "requests_waiting", "gauge", "Requests that wait for a sequence.", (double)s->n_waiting);
    put(f, "texts_running", "gauge", "Texts that have a sequence.", (double)s->n_running);
    put(f, "steps_total", "counter", "Batches evaluated.", (double)s->n_steps);
    put(f, "evictions_total", "counter", "Times a text lost its memory to an older one.",
        (double)s->n_evicted);
    head(f, "texts_ended_total", "counter", "Texts by why they ended.");
    for (int i = 0; i <= OCT_END_ERROR; i++)
        fprintf(f, "octet_texts_ended_total{reason=\"%s\"} %lld\n", ends[i],
                (long long)s->n_ended[i]);
    put(f, "prefill_seconds_total", "counter", "Time of steps, the share of prompts.",
        s->prompt.seconds);
    put(f, "decode_seconds_total", "counter", "Time of steps, the share of texts.",
        s->text.seconds);
    put(f, "prefill_tokens_total", "counter", "Rows of prompts evaluated.",
        (double)s->prompt.tokens);
    put(f, "decode_tokens_total", "counter", "Rows of texts evaluated.", (double)s->text.tokens);
    put(f, "prefill_bytes_read_total", "counter", "Bytes read in steps, the share of prompts.",
        (double)s->prompt.bytes_read);
    put(f, "decode_bytes_read_total", "counter", "Bytes read in steps, the share of texts.",
        (double)s->text.bytes_read);
    put(f, "step_seconds_total", "counter", "Time inside steps.", g->step_seconds);
    put(f, "eval_seconds_total", "counter", "Time inside steps that the model took.",
        g->eval_seconds);
}

static void put_session(FILE *f, const oct_serve_figures *g)
{
    const oct_kv_usage *kv = &g->kv;
    head(f, "kv_pages", "gauge", "Pages of keys and values by state.");
    fprintf(f,
            "octet_kv_pages{state=\"used\"} %lld\noctet_kv_pages{state=\"cached\"} %lld\n"
            "octet_kv_pages{state=\"free\"} %lld\n",
            (long long)kv->used, (long long)kv->cached,
            (long long)(kv->pages - kv->used - kv->cached));
    put(f, "kv_page_bytes", "gauge", "Bytes of a page on this rank.", (double)kv->page_bytes);
    put(f, "bytes_read_total", "counter", "Weights, keys and values read by this rank.",
        (double)g->session.bytes_read);
    if (g->read_limit > 0)
        put(f, "read_limit_bytes_per_second", "gauge",
            "What this rank's threads read at best, measured at the start.", g->read_limit);
    put(f, "rank_exchange_seconds_total", "counter",
        "Time in messages of ranks, waiting for the slowest included.", g->comm.seconds);
}

char *oct_serve_metrics_text(const oct_serve_metrics *m, const oct_serve_figures *g, bool ready,
                             int64_t n_connections, int64_t n_answers, size_t *n)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, n);
    if (!f)
        return NULL;
    put(f, "ready", "gauge", "1 once the model answers.", ready);
    put(f, "connections", "gauge", "Open connections.", (double)n_connections);
    put(f, "requests_active", "gauge", "Requests whose answer is not complete.", (double)n_answers);
    put_replies(f, m);
    put(f, "prompt_tokens_total", "counter", "Tokens of prompts, cached ones included.",
        (double)m->n_prompt);
    put(f, "cached_prompt_tokens_total", "counter", "Tokens of prompts that were there already.",
        (double)m->n_cached);
    put(f, "generated_tokens_total", "counter", "Tokens drawn.", (double)m->n_generated);
    put_scheduler(f, g);
    put_session(f, g);
    put_histogram(f, "time_to_first_token_seconds", "From a request's arrival to its first token.",
                  &m->first_token);
    put_histogram(f, "time_between_tokens_seconds", "From a token of a text to its next.",
                  &m->between_tokens);
    put(f, "time_between_tokens_max_seconds", "gauge", "The longest of these.",
        m->between_tokens.max);
    put_histogram(f, "queue_seconds", "From a request's arrival to its prefill.", &m->queue);
    put_histogram(f, "request_seconds", "From a request's arrival to its last token.", &m->request);
    return fclose(f) == 0 ? text : (free(text), NULL);
}
