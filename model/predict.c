/* predict.c: the bytes are those of the slowest rank: with whole experts the one that has most of
 * the chosen ones. The exchange is the messages that a rank's plan lists, and the two that eval.c
 * sends around them, none of them overlapped with work: of S bytes,
 *   a sum over n ranks takes  2 a + 2 (n-1)/n S/b   (two rounds; a: latency, b: bytes per second)
 *   a gathering takes           a + (n-1) S/b       (S of each rank; to one rank, or to all)
 *   a broadcast takes           a + (n-1) S/b       (from rank 0 to each) */
#include <math.h>

#include "measure.h"
#include "session_impl.h"

/* The mean, over all choices of `used` of the nodes' `each` experts, of how many the node that has
 * most has. The ways to choose k with at most m from any node are the coefficients of
 * (sum over i <= m of C(each, i) x^i) ^ nodes. */
static double fullest_node(int nodes, int64_t each, int64_t used)
{
    double all = 1, mean = 0;
    for (int64_t i = 0; i < used; i++) /* C(nodes * each, used) */
        all = all * (double)(nodes * each - i) / (double)(i + 1);
    for (int64_t m = 0; m < used && m < each; m++) {
        double ways[OCT_WEIGHT_MAX_EXPERTS + 1] = {1};
        for (int node = 0; node < nodes; node++)
            for (int64_t k = used; k > 0; k--) { /* downwards: lower ones are still without node */
                double choose = 1;
                for (int64_t i = 1; i <= m && i <= k; i++) {
                    choose = choose * (double)(each - i + 1) / (double)i;
                    ways[k] += choose * ways[k - i];
                }
            }
        mean += 1 - ways[used] / all; /* the chance of more than m */
    }
    return mean;
}

/* Experts that the rank which has most of them reads for so many tokens together: however many
 * different ones are chosen, all choices of so many are equally likely. */
static double experts_read(const oct_grok_config *c, const oct_shard *s, double rows)
{
    const double all = (double)c->n_experts, used = (double)c->n_used;
    const double different = rows <= 1 ? used : all * (1 - pow(1 - used / all, rows));
    if (!s->whole_experts)
        return different;
    const int64_t each = s->experts.end - s->experts.first, whole = (int64_t)different;
    const double less = fullest_node(s->size, each, whole), part = different - (double)whole;
    return part > 0 ? less + part * (fullest_node(s->size, each, whole + 1) - less) : less;
}

static void add_bytes(const oct_grok_config *c, const oct_grok_layouts *l, const oct_shard *s,
                      const oct_step_shape *step, oct_step_cost *k)
{
    const oct_grok_bytes weights = oct_grok_weight_bytes(c, l, s);
    double attn = (double)oct_shard_n_slices(s, OCT_SHARD_OF_ATTENTION) / (double)c->n_slices;
    double kv = 2.0 * step->positions * attn *
                (double)(oct_kv_elem_bytes(step->kv) * c->n_kv_heads * c->head_dim);
    k->expert_bytes = experts_read(c, s, (double)step->n_rows) * (double)weights.expert;
    k->bytes = (double)weights.common + k->expert_bytes + (double)c->n_layers * kv;
}

/* Gathering, broadcast. */
static void add_all(oct_step_cost *k, const oct_network *net, double ranks, double bytes)
{
    k->rounds++;
    k->exchange += net->latency + (ranks - 1) * bytes * net->per_byte;
}

static void add_exchange(oct_step_cost *k, const oct_network *net, double ranks,
                         const oct_exchange *e)
{
    if (!e->fold) {
        add_all(k, net, ranks, (double)e->bytes);
        return;
    }
    k->rounds += 2;
    k->exchange += 2 * net->latency + 2 * (ranks - 1) / ranks * (double)e->bytes * net->per_byte;
}

/* The messages of an evaluation: order, those of the plan, routes. */
static oct_status add_messages(const oct_model *m, const oct_shard *s, int64_t n_rows,
                               int64_t n_out, const oct_network *net, oct_step_cost *k)
{
    _Alignas(64) unsigned char room[OCT_SESSION_PLAN_ROOM];
    oct_session_plan p;
    oct_exchange e;
    oct_status status = oct_session_plan_ranks(m, s, room, sizeof room, &p);
    if (status == OCT_OK) {
        add_all(k, net, s->size, (double)oct_order_bytes(oct_order_eval_rows(n_rows, n_out)));
        for (int at = 0; oct_plan_next_exchange(&p.plan, n_rows, n_out, &at, &e);)
            add_exchange(k, net, s->size, &e);
        add_all(k, net, s->size, (double)oct_routes_bytes(m));
    }
    oct_session_plan_free(&p);
    return status;
}

const char *oct_predict_step(const oct_model *m, oct_shard_layout layout, int n_ranks,
                             const oct_step_shape *step, const oct_network *net, oct_step_cost *out)
{
    oct_shard s;
    const char *wrong =
        oct_shard_make(layout, 0, n_ranks, m->config.n_slices, m->config.n_experts, &s);
    if (step->n_rows < 0 || step->n_rows > INT32_MAX || step->n_out < 0 || step->n_out > INT32_MAX)
        wrong = "no step has so many tokens";
    if (wrong)
        return wrong;
    *out = (oct_step_cost){0};
    add_bytes(&m->config, &m->layouts, &s, step, out);
    return n_ranks == 1 || add_messages(m, &s, step->n_rows, step->n_out, net, out) == OCT_OK
               ? NULL
               : "out of memory";
}

double oct_predict_ops(const oct_model *m, double n_rows, double n_out)
{
    const oct_grok_config *c = &m->config;
    const double d = (double)c->d_model, p = (double)c->head_dim, q = (double)c->n_q_heads,
                 kv = (double)c->n_kv_heads, layers = (double)c->n_layers;
    const double to_kv = d * p * (q + 2 * kv);
    const double behind = d * p * q + (double)c->n_used * 3 * d * (double)c->d_ff;
    return 2 * (layers * n_rows * to_kv + ((layers - 1) * n_rows + n_out) * behind +
                n_out * (double)c->n_vocab * d);
}
