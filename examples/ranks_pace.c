/* ranks_pace.c: how fast the ranks of a job are, and what that means for the layout and for the
 * time that their messages take. */
#include <math.h>
#include <stdlib.h>

#include "cli.h"
#include "model_impl.h"
#include "predict.h"
#include "probe.h"
#include "ranks_impl.h"
#include "shard.h"

enum { FOLDS = 32, LONG_VECTOR = 8, READ_BYTES = 64 << 20 };

/* The fastest of some folds: what the exchange takes when nobody is late. */
static oct_status time_fold(oct_comm *c, float *x, int64_t n, double *seconds, oct_error *err)
{
    *seconds = INFINITY;
    for (int i = 0; i < FOLDS; i++) {
        double start = oct_cli_seconds();
        OCT_TRY(c->fold(c, x, n, err));
        *seconds = fmin(*seconds, oct_cli_seconds() - start);
    }
    return OCT_OK;
}

/* 0 if it cannot be measured. */
static double time_reading(void *room, int n_threads, oct_isa isa)
{
    oct_team *team = NULL;
    oct_error err = {0};
    const oct_probe_span span = {room, READ_BYTES};
    if (oct_team_new(n_threads, NULL, &team, &err) != OCT_OK)
        return 0;
    double first = oct_probe_read(team, isa, 4096, &span, 1);
    double second = oct_probe_read(team, isa, 4096, &span, 1);
    oct_team_free(team);
    return fmax(first, second);
}

oct_status oct_rank_measure(oct_comm *c, int64_t d_model, int n_threads, oct_isa isa,
                            oct_rank_pace *pace, oct_error *err)
{
    int64_t told[2] = {d_model, n_threads};
    OCT_TRY(c->broadcast(c, told, sizeof told, err));
    int64_t n = told[0] < 64 ? 64 : told[0] > 1 << 16 ? 1 << 16 : told[0];
    float *room = aligned_alloc(64, READ_BYTES);
    double *all = malloc((size_t)c->size * sizeof *all);
    double brief = 0, lengthy = 0, read = 0;
    oct_status status =
        room && all ? OCT_OK : oct_fail(err, OCT_ERR_MEMORY, "no memory to measure");
    for (size_t i = 0; status == OCT_OK && i < READ_BYTES / sizeof *room; i++)
        room[i] = 1e-3f;
    if (status == OCT_OK)
        status = time_fold(c, room, n, &brief, err);
    if (status == OCT_OK)
        status = time_fold(c, room, LONG_VECTOR * n, &lengthy, err);
    if (status == OCT_OK) {
        read = time_reading(room, told[1] < 1 ? 1 : told[1] > 256 ? 256 : (int)told[1], isa);
        status = c->gather(c, &read, sizeof read, all, err);
    }
    for (int r = 0; r < c->size && status == OCT_OK; r++)
        read = fmin(read, all[r]);
    pace->per_float = fmax(0, (lengthy - brief) / (double)((LONG_VECTOR - 1) * n));
    pace->latency = fmax(0, brief - pace->per_float * (double)n);
    pace->read = fmax(read, 1e8);
    free(all);
    free(room);
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

double oct_rank_predict(const oct_model *m, int n_ranks, oct_shard_by by, int64_t depth,
                        const oct_rank_pace *pace)
{
    oct_shard s;
    const oct_network net = network_of(pace, n_ranks);
    if (oct_shard_make((oct_shard_layout)by, 0, n_ranks, m->config.n_slices, m->config.n_experts,
                       &s))
        return INFINITY;
    oct_token_cost cost = oct_predict_token(&m->config, &m->layouts, &s, (double)depth, &net);
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
