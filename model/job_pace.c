/* job_pace.c: how fast the ranks of a job are, and what that means for the layout and for the
 * time that their messages take. */
#include <math.h>
#include <stdlib.h>

#include "job_impl.h"
#include "machine.h"
#include "measure.h"
#include "probe.h"
#include "read_block.h"

enum {
    FOLDS = 32,
    LONG_VECTOR = 8,
    READ_SHARE = 32 /* of the memory: other ranks of the host take theirs */
};
static const size_t READ_BYTES = 32 << 20, READ_LIMIT = (size_t)4 << 30; /* per thread; of all */

/* The fastest of some folds: what the exchange takes when nobody is late. */
static oct_status time_fold(oct_comm *c, float *x, int64_t n, double *seconds, oct_error *err)
{
    *seconds = INFINITY;
    for (int i = 0; i < FOLDS; i++) {
        double start = oct_seconds();
        OCT_TRY(c->fold(c, x, n, err));
        *seconds = fmin(*seconds, oct_seconds() - start);
    }
    return OCT_OK;
}

/* All ranks read at once. *rate: 0 if this one cannot measure it. */
static oct_status time_reading(oct_comm *c, int n_threads, const oct_kernels *row, double *all,
                               double *rate, oct_error *err)
{
    oct_team *team = NULL;
    oct_error none = {0};
    const size_t want = (size_t)n_threads * READ_BYTES;
    oct_probe_span span;
    oct_read_block_new(want < READ_LIMIT ? want : READ_LIMIT, READ_SHARE, &span);
    *rate = 0;
    if (span.data && oct_team_new(n_threads, NULL, &team, &none) == OCT_OK)
        oct_read_block_touch(team, &span);
    oct_status status = c->gather(c, rate, sizeof *rate, all, err);
    if (status == OCT_OK && team)
        *rate = oct_probe_read(team, row, (size_t)oct_stream_ahead(), &span, 1);
    oct_team_free(team);
    oct_read_block_free(&span);
    return status == OCT_OK ? c->gather(c, rate, sizeof *rate, all, err) : status;
}

oct_status oct_rank_measure(oct_comm *c, int64_t d_model, int n_threads, const oct_kernels *row,
                            oct_rank_pace *pace, oct_error *err)
{
    int64_t told[2] = {d_model, n_threads};
    OCT_TRY(c->broadcast(c, told, sizeof told, err));
    int64_t n = told[0] < 64 ? 64 : told[0] > 1 << 16 ? 1 << 16 : told[0];
    float *x = calloc((size_t)(LONG_VECTOR * n), sizeof *x);
    double *all = malloc((size_t)c->size * sizeof *all);
    double brief = 0, lengthy = 0, read = 0;
    oct_status status = x && all ? OCT_OK : oct_fail(err, OCT_ERR_MEMORY, "no memory to measure");
    if (status == OCT_OK)
        status = time_fold(c, x, n, &brief, err);
    if (status == OCT_OK)
        status = time_fold(c, x, LONG_VECTOR * n, &lengthy, err);
    if (status == OCT_OK)
        status = time_reading(c,
                              told[1] < 1     ? 1
                              : told[1] > 256 ? 256
                                              : (int)told[1],
                              row, all, &read, err);
    for (int r = 0; r < c->size && status == OCT_OK; r++)
        read = fmin(read, all[r]);
    pace->per_float = fmax(0, (lengthy - brief) / (double)((LONG_VECTOR - 1) * n));
    pace->latency = fmax(0, brief - pace->per_float * (double)n);
    pace->read = fmax(read, 1e8);
    free(all);
    free(x);
    if (status == OCT_ERR_MEMORY)
        c->broken = true; /* the others fold by now */
    return status;
}

/* A fold takes two latencies and 2 (n-1)/n of its bytes. */
static oct_network network_of(const oct_rank_pace *pace, int n_ranks)
{
    double n = n_ranks;
    return (oct_network){pace->latency / 2,
                         pace->per_float / sizeof(float) * n / (2 * fmax(1, n - 1))};
}

double oct_rank_predict(const oct_model *m, int n_ranks, oct_shard_layout by, int64_t depth,
                        oct_kv_type kv, const oct_rank_pace *pace)
{
    oct_step_cost cost;
    const oct_network net = network_of(pace, n_ranks);
    const oct_step_shape step = {1, 1, (double)depth, kv};
    if (oct_predict_step(m, by, n_ranks, &step, &net, &cost))
        return INFINITY;
    return cost.bytes / pace->read + cost.exchange;
}

oct_rank_time oct_rank_divide(double seconds, const oct_comm_stats *from, const oct_comm_stats *to,
                              int n_ranks, const oct_rank_pace *pace)
{
    const oct_network net = network_of(pace, n_ranks);
    double talk = fmin(to->seconds - from->seconds, seconds);
    double pure = (double)(to->rounds - from->rounds) * net.latency +
                  (double)(to->bytes_sent - from->bytes_sent) * net.per_byte;
    pure = fmin(pure, talk);
    return (oct_rank_time){seconds - talk, pure, talk - pure};
}
