#include "stream.h"

/* Seconds for a matrix pair of one expert with so many rows: moving its bytes hides computing, or
 * the other way round. */
static double seconds(const oct_node *n, int64_t rows, double byte_rate, double op_rate)
{
    double bytes = 0, ops = 0;
    for (int k = 0; k < 2; k++) {
        const oct_weight_layout *l = &n->w[k]->layout;
        bytes += (double)l->n_slices * (double)(l->unit_bytes + l->scale_bytes);
        ops += 2.0 * (double)l->n_in * (double)l->n_out * (double)rows;
    }
    double move = bytes / byte_rate, compute = ops / op_rate;
    return rows == 0 ? 0 : move > compute ? move : compute;
}

uint64_t oct_stream_choose(const oct_stream_rates *r, const oct_node *n, const int64_t *rows)
{
    int64_t n_experts = n->w[0]->layout.n_experts;
    double host = 0, device = 0;
    uint64_t taken = 0;
    if (!(r->link > 0) || !(r->device_ops > 0) || !(r->read > 0) || !(r->host_ops > 0))
        return 0;
    for (int64_t e = 0; e < n_experts; e++)
        host += seconds(n, rows[e], r->read, r->host_ops);
    for (;;) {
        int64_t most = -1;
        for (int64_t e = 0; e < n_experts; e++)
            if (!(taken >> e & 1) && rows[e] > 0 && (most < 0 || rows[e] > rows[most]))
                most = e;
        if (most < 0)
            return taken;
        double here = seconds(n, rows[most], r->read, r->host_ops);
        double there = seconds(n, rows[most], r->link, r->device_ops);
        double now = host > device ? host : device;
        double rest = host - here, then = device + there > rest ? device + there : rest;
        if (then >= now)
            return taken;
        taken |= UINT64_C(1) << most;
        host = rest;
        device += there;
    }
}

int64_t oct_stream_break_even(const oct_stream_rates *r, const oct_node *n, oct_shard_range mine)
{
    enum { MAX_ROWS = 1 << 20 };
    int64_t rows[OCT_WEIGHT_MAX_EXPERTS] = {0}, n_experts = n->w[0]->layout.n_experts;
    int64_t lo = 0, hi = MAX_ROWS + 1;
    while (hi - lo > 1) { /* more rows are never worth less */
        int64_t middle = lo + (hi - lo) / 2;
        for (int64_t e = mine.first; e < mine.end; e++)
            rows[e] = (middle * n->n_used + n_experts - 1 - e) / n_experts;
        if (oct_stream_choose(r, n, rows))
            hi = middle;
        else
            lo = middle;
    }
    return hi > MAX_ROWS ? INT64_MAX : hi;
}
