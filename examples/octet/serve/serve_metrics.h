/* serve_metrics.h: what the server counts, and the text that Prometheus reads. The loop's. */
#ifndef OCT_SERVE_METRICS_H
#define OCT_SERVE_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "serve_engine.h"

enum { OCT_SERVE_BUCKETS = 20, OCT_SERVE_CODES = 16 };

typedef struct oct_serve_histogram {
    uint64_t count[OCT_SERVE_BUCKETS + 1]; /* the last: beyond the largest bound */
    double sum, max;
} oct_serve_histogram;

typedef struct oct_serve_metrics {
    struct {
        int code; /* of HTTP; 0: free */
        uint64_t n;
    } replies[OCT_SERVE_CODES];
    uint64_t n_gone;    /* clients that left before their answer was complete */
    uint64_t n_evicted; /* connections closed: too slow, or for others */
    uint64_t n_held;    /* times that a stream waited for a slow reader */
    uint64_t n_prompt, n_cached, n_generated; /* tokens */
    oct_serve_histogram first_token, between_tokens, queue, request;
} oct_serve_metrics;

void oct_serve_metrics_observe(oct_serve_histogram *h, double seconds);
void oct_serve_metrics_reply(oct_serve_metrics *m, int code);
/* malloc'd text; NULL: no memory. */
char *oct_serve_metrics_text(const oct_serve_metrics *m, const oct_serve_figures *f, bool ready,
                             int64_t n_connections, int64_t n_answers, size_t *n);

#endif
