/* predict.c: the bytes are those of the slowest rank: with whole experts the one that has most of
 * the chosen ones. The exchange is the messages that grok_graph.c, eval.c and cpu_backend.c ask
 * for, none of them overlapped with work: of S bytes,
 *   a sum over n ranks takes  2 a + 2 (n-1)/n S/b   (two rounds; a: latency, b: bytes per second)
 *   a gathering takes           a + (n-1) S/b       (S of each rank; every rank gets all)
 *   a broadcast takes           a + (n-1) S/b       (from rank 0 to each)
 * and broadcasts behind each other take a once, since rank 0 does not wait for an answer. */
#include "measure.h"
#include "model_impl.h"

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

static double bytes_read(const oct_grok_config *c, const oct_grok_layouts *l, const oct_shard *s,
                         double depth, int64_t kv_elem)
{
    const oct_grok_bytes weights = oct_grok_weight_bytes(c, l, s);
    double attn = (double)oct_shard_n_slices(s, OCT_SHARD_OF_ATTENTION) / (double)c->n_slices;
    double experts = (double)c->n_used;
    if (s->whole_experts)
        experts = fullest_node(s->size, s->experts.end - s->experts.first, c->n_used);
    double kv = 2.0 * depth * (double)(kv_elem * c->n_kv_heads * c->head_dim) * attn;
    return (double)weights.common + experts * (double)weights.expert + (double)c->n_layers * kv;
}

static void add_sum(oct_token_cost *k, const oct_network *net, double ranks, double bytes)
{
    k->rounds += 2;
    k->exchange += 2 * net->latency + 2 * (ranks - 1) / ranks * bytes * net->per_byte;
}

/* Gathering, broadcast. */
static void add_all(oct_token_cost *k, const oct_network *net, double ranks, double bytes)
{
    k->rounds++;
    k->exchange += net->latency + (ranks - 1) * bytes * net->per_byte;
}

static oct_token_cost cost_of(const oct_model *m, const oct_shard *s, double depth, int64_t kv_elem,
                              const oct_network *net)
{
    const oct_grok_config *c = &m->config;
    oct_token_cost k = {.bytes = bytes_read(c, &m->layouts, s, depth, kv_elem)};
    double ranks = s->size, d = (double)c->d_model * sizeof(float);
    bool one_sum = s->whole_experts && c->n_used <= 2;
    if (s->size == 1)
        return k;
    /* order, token, sequence, wanted row */
    add_all(&k, net, ranks, 3 * sizeof(int64_t) + 3 * sizeof(int32_t));
    add_sum(&k, net, ranks, d); /* embedding */
    for (int64_t i = 0; i < c->n_layers; i++) {
        if (!s->whole_attention)
            add_sum(&k, net, ranks, d);
        add_sum(&k, net, ranks, one_sum ? d : d * (double)c->n_used);
    }
    add_all(&k, net, ranks, (double)(c->n_vocab * 4) / ranks); /* logits */
    add_all(&k, net, ranks, (double)c->n_layers * 8);          /* hashes of the choices */
    return k;
}

const char *oct_predict_token(const oct_model *m, oct_shard_layout layout, int n_ranks,
                              double depth, oct_kv_type kv, const oct_network *net,
                              oct_token_cost *out)
{
    oct_shard s;
    const char *wrong =
        oct_shard_make(layout, 0, n_ranks, m->config.n_slices, m->config.n_experts, &s);
    if (!wrong)
        *out = cost_of(m, &s, depth, oct_kv_elem_bytes(kv), net);
    return wrong;
}
