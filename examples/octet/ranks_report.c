#include "ranks_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <octet/machine.h>

typedef struct report {
    const oct_job *job;
    const oct_model *model;
    oct_session *session;
    const oct_phase_time *phase; /* [OCT_PHASES] */
    oct_kv_type kv;
} report;

/* Milliseconds per token. */
static oct_rank_time per_token(const report *r, const oct_node_time *t, double tokens)
{
    const oct_comm_stats none = {0};
    oct_rank_time x = oct_job_divide(r->job, t->seconds, &none, &t->comm);
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
    int64_t n = oct_model_get_info(r->model)->n_layers, slow = 0;
    oct_node_time sum = {0};
    for (int64_t i = 0; i < n; i++) {
        sum.seconds += p->layer[i].seconds;
        sum.comm.seconds += p->layer[i].comm.seconds;
        sum.comm.rounds += p->layer[i].comm.rounds;
        sum.comm.bytes_sent += p->layer[i].comm.bytes_sent;
        slow = p->layer[i].seconds > p->layer[slow].seconds ? i : slow;
    }
    double tokens = (double)p->tokens;
    oct_rank_time mean = per_token(r, &sum, tokens * (double)n);
    oct_rank_time slowest = per_token(r, &p->layer[slow], tokens);
    fprintf(stderr,
            "%-9s %.4f ms on average: compute %.4f, exchange %.4f, wait %.4f; the slowest, %lld: "
            "%.4f (%.4f, %.4f, %.4f); outside layers %.4f\n",
            "layer", total(mean), mean.compute, mean.exchange, mean.wait, (long long)slow,
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
    const int size = oct_job_size(r->job);
    double *all = calloc((size_t)size * OCT_PHASES, sizeof *all);
    if (!all || oct_session_gather_compute(r->session, all, &err) != OCT_OK) {
        free(all);
        return;
    }
    oct_session_get_stats(r->session, &st);
    for (int64_t e = 0; e < i->n_experts; e++)
        rows += st.expert_rows[e];
    fprintf(stderr, "%-9s", "rank");
    for (int k = 0; k < size; k++) {
        int64_t first, end;
        fprintf(stderr, "%s %d: compute %.3f ms", k ? ";" : "", k,
                1e3 * all[k * OCT_PHASES + phase] / (double)r->phase[phase].tokens);
        if (rows == 0 || !oct_job_experts(r->job, r->model, k, &first, &end))
            continue;
        uint64_t mine = 0;
        for (int64_t e = first; e < end; e++)
            mine += st.expert_rows[e];
        fprintf(stderr, ", %.1f %% of experts", 100 * (double)mine / (double)rows);
    }
    fputc('\n', stderr);
    free(all);
}

/* See oct_predict_step, for one sequence; what is between tokens is as measured. */
static void print_prediction(const report *r, double between)
{
    const oct_phase_time *p = &r->phase[OCT_PHASE_TEXT];
    int64_t depth = oct_session_pos(r->session, 0) - p->tokens / 2;
    double ms = 1e3 * oct_job_predict(r->job, r->model, depth > 0 ? depth : 0, r->kv) + between;
    double measured = total(per_token(r, &p->all, (double)p->tokens)) + between;
    fprintf(stderr, "%-9s %.2f tokens/s; measured %.2f, %.1f %%\n", "predicted", 1e3 / ms,
            1e3 / measured, 100 * ms / measured);
}

void oct_rank_report_print(const oct_job *j, const oct_model *m, oct_session *s,
                           const oct_session_params *p, double token_seconds)
{
    char b[24];
    const report r = {j, m, s, oct_session_phases(s), p->kv};
    const oct_comm_stats now = oct_job_stats(j), before = oct_job_stats_before(j);
    const oct_phase_time *prompt = &r.phase[OCT_PHASE_PROMPT], *t = &r.phase[OCT_PHASE_TEXT];
    double tokens = fmax(1, (double)(prompt->tokens + t->tokens)), between = 0;
    if (t->tokens > 0 && token_seconds > 0)
        between = fmax(0, 1e3 * (token_seconds - t->all.seconds / (double)t->tokens));
    fprintf(stderr, "%-9s %d by %s; per token %s sent in %.1f rounds by rank 0\n", "ranks",
            oct_job_size(j), oct_shard_name(oct_job_layout(j, OCT_SHARD_SLICE)),
            oct_memory_text((uint64_t)((double)(now.bytes_sent - before.bytes_sent) / tokens), b),
            (double)(now.rounds - before.rounds) / tokens);
    if (prompt->tokens > 0)
        print_phase(&r, OCT_PHASE_PROMPT, 0);
    if (t->tokens > 0)
        print_phase(&r, OCT_PHASE_TEXT, between);
    oct_phase main = t->tokens > 0 ? OCT_PHASE_TEXT : OCT_PHASE_PROMPT;
    if (r.phase[main].tokens == 0)
        return;
    print_layers(&r, main);
    print_ranks(&r, main);
    if (main == OCT_PHASE_TEXT && p->n_seqs == 1)
        print_prediction(&r, between);
}
