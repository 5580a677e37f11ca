/* ranks_report.c: where the time of a job's session went. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"
#include "ranks_impl.h"
#include "shard.h"

typedef struct report {
    oct_comm *comm;
    const oct_model *model;
    oct_session *session;
    const oct_phase_time *phase; /* [OCT_PHASES] */
    oct_shard_layout by;
    const oct_rank_pace *pace;
    int64_t kv_elem;
} report;

/* Milliseconds per token. */
static oct_rank_time per_token(const report *r, const oct_node_time *t, double tokens)
{
    const oct_comm_stats none = {0};
    oct_rank_time x = oct_rank_divide(t->seconds, &none, &t->comm, r->comm->size, r->pace);
    double k = 1e3 / tokens;
    return (oct_rank_time){k * x.compute, k * x.exchange, k * x.wait};
}

static double total(oct_rank_time t)
{
    return t.compute + t.exchange + t.wait;
}

static void print_phase(const report *r, oct_phase phase, double between)
{
    const oct_phase_time *p = &r->phase[phase];
    oct_rank_time t = per_token(r, &p->all, (double)p->tokens);
    fprintf(stderr,
            "%-9s %.3f ms per token: compute %.3f, exchange %.3f, wait for the slowest %.3f",
            phase == OCT_PHASE_TEXT ? "text" : "prompt", total(t) + between, t.compute, t.exchange,
            t.wait);
    if (phase == OCT_PHASE_TEXT)
        fprintf(stderr, ", between tokens %.3f", between);
    fputc('\n', stderr);
}

static void print_layers(const report *r, oct_phase phase)
{
    const oct_phase_time *p = &r->phase[phase];
    int64_t n = oct_model_get_info(r->model)->n_layers, most = 0;
    const oct_comm_stats none = {0};
    oct_node_time sum = {0};
    for (int64_t i = 0; i < n; i++) {
        sum.seconds += p->layer[i].seconds;
        oct_comm_stats_add(&sum.comm, &none, &p->layer[i].comm);
        most = p->layer[i].seconds > p->layer[most].seconds ? i : most;
    }
    double tokens = (double)p->tokens;
    oct_rank_time mean = per_token(r, &sum, tokens * (double)n);
    oct_rank_time slowest = per_token(r, &p->layer[most], tokens);
    fprintf(stderr,
            "%-9s %.4f ms on average: compute %.4f, exchange %.4f, wait %.4f; the slowest, %lld: "
            "%.4f (%.4f, %.4f, %.4f); outside layers %.4f\n",
            "layer", total(mean), mean.compute, mean.exchange, mean.wait, (long long)most,
            total(slowest), slowest.compute, slowest.exchange, slowest.wait,
            1e3 * (p->all.seconds - sum.seconds) / tokens);
}

/* What each rank computed: time, and with whole experts which part of the tokens' experts. */
static void print_ranks(const report *r, oct_phase phase)
{
    const oct_model_info *i = oct_model_get_info(r->model);
    oct_session_stats st;
    oct_error err = {0};
    uint64_t rows = 0;
    double *all = calloc((size_t)r->comm->size * OCT_PHASES, sizeof *all);
    if (!all || oct_session_gather_compute(r->session, all, &err) != OCT_OK) {
        free(all);
        return;
    }
    oct_session_get_stats(r->session, &st);
    for (int64_t e = 0; e < i->n_experts; e++)
        rows += st.expert_rows[e];
    fprintf(stderr, "%-9s", "rank");
    for (int k = 0; k < r->comm->size; k++) {
        oct_shard s;
        fprintf(stderr, "%s %d: compute %.3f ms", k ? ";" : "", k,
                1e3 * all[k * OCT_PHASES + phase] / (double)r->phase[phase].tokens);
        if (rows == 0 || oct_shard_make(r->by, k, r->comm->size, i->n_slices, i->n_experts, &s) ||
            !s.whole_experts)
            continue;
        uint64_t mine = 0;
        for (int64_t e = s.experts.first; e < s.experts.end; e++)
            mine += st.expert_rows[e];
        fprintf(stderr, ", %.1f %% of experts", 100 * (double)mine / (double)rows);
    }
    fputc('\n', stderr);
    free(all);
}

/* The model of predict.h, for one sequence; what is between tokens is as measured. */
static void print_prediction(const report *r, double between)
{
    const oct_phase_time *p = &r->phase[OCT_PHASE_TEXT];
    int64_t depth = oct_session_pos(r->session, 0) - p->tokens / 2;
    double ms = 1e3 * oct_rank_predict(r->model, r->comm->size, r->by, depth > 0 ? depth : 0,
                                       r->kv_elem, r->pace) +
                between;
    double measured = total(per_token(r, &p->all, (double)p->tokens)) + between;
    fprintf(stderr, "%-9s %.2f tokens/s; measured %.2f, %.1f %%\n", "predicted", 1e3 / ms,
            1e3 / measured, 100 * ms / measured);
}

void oct_rank_report_print(oct_comm *c, const oct_comm_stats *since, const oct_model *m,
                           oct_session *s, oct_shard_layout by, const oct_rank_pace *pace,
                           double token_seconds)
{
    oct_session_parts parts;
    char b[24];
    oct_session_get_parts(s, &parts);
    const report r = {c, m, s, parts.phase, by, pace, (int64_t)parts.kv->elem_bytes};
    const oct_phase_time *prompt = &r.phase[OCT_PHASE_PROMPT], *t = &r.phase[OCT_PHASE_TEXT];
    double tokens = fmax(1, (double)(prompt->tokens + t->tokens)), between = 0;
    if (t->tokens > 0 && token_seconds > 0)
        between = fmax(0, 1e3 * (token_seconds - t->all.seconds / (double)t->tokens));
    fprintf(
        stderr, "%-9s %d by %s; per token %s sent in %.1f rounds by rank 0\n", "ranks", c->size,
        oct_shard_name(by),
        oct_cli_bytes((uint64_t)((double)(c->stats.bytes_sent - since->bytes_sent) / tokens), b),
        (double)(c->stats.rounds - since->rounds) / tokens);
    if (prompt->tokens > 0)
        print_phase(&r, OCT_PHASE_PROMPT, 0);
    if (t->tokens > 0)
        print_phase(&r, OCT_PHASE_TEXT, between);
    oct_phase main = t->tokens > 0 ? OCT_PHASE_TEXT : OCT_PHASE_PROMPT;
    if (r.phase[main].tokens == 0)
        return;
    print_layers(&r, main);
    print_ranks(&r, main);
    if (main == OCT_PHASE_TEXT && parts.kv->n_seqs == 1)
        print_prediction(&r, between);
}
