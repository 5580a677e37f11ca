/* bench_simulate.c: tokens per second of a cluster that is not there, from the speed of one machine
 * and two numbers of its network.
 *
 * A token takes  compute + exchange.  compute is what the slowest rank reads, at the rate at which
 * a machine reads while it decodes. With whole experts on each rank the slowest is the one that has
 * most of the chosen experts; routing is taken as uniform. exchange is the messages that
 * grok_graph.c, eval.c and cpu_backend.c ask for, none of them overlapped with work: of S bytes,
 *   a sum over n ranks takes  2 a + 2 (n-1)/n S/b   (two rounds; a: latency, b: bytes per second)
 *   a gathering takes           a + (n-1) S/b       (S of each rank; every rank gets all)
 *   a broadcast takes           a + (n-1) S/b       (from rank 0 to each) */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "synthetic.h"

typedef struct network {
    int nodes;
    double latency, rate; /* seconds; bytes per second of each node */
    double read; /* bytes per second that a node reads while it decodes; 0: to be measured */
} network;

typedef struct cost {
    double bytes; /* read by the slowest rank */
    double rounds, compute, exchange;
} cost;

/* "8,25,1.15" or "8,25,1.15,400"; decimal points. */
static bool parse(const char *text, network *n)
{
    double v[4] = {0};
    int count = 0;
    for (const char *p = text; count < 4; p++) {
        char *end;
        v[count] = strtod(p, &end);
        if (end == p || !(v[count] >= 0 && v[count] < 1e9) || (*end && *end != ','))
            return false;
        count++;
        p = end;
        if (!*end)
            break;
        if (count == 4)
            return false;
    }
    *n = (network){(int)v[0], v[1] * 1e-6, v[2] * 1e9, v[3] * 1e9};
    return count >= 3 && v[0] == n->nodes && n->nodes >= 1 && n->rate > 0 &&
           (count == 3 || n->read > 0);
}

/* The mean, over all choices of `used` of the nodes' `each` experts, of how many the node that has
 * most has. The ways to choose k with at most m from any node are the coefficients of
 * (sum over i <= m of C(each, i) x^i) ^ nodes. */
static double most_on_a_node(int nodes, int64_t each, int64_t used)
{
    double all = 1, mean = 0;
    for (int64_t i = 0; i < used; i++) /* C(nodes * each, used) */
        all = all * (double)(nodes * each - i) / (double)(i + 1);
    for (int64_t m = 0; m < used && m < each; m++) {
        double ways[OCT_GROK_MAX_EXPERTS + 1] = {1};
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

static double unit_bytes(const oct_q8_layout *l)
{
    return (double)(l->unit_bytes + l->scale_bytes);
}

/* One rank's reading for a token after `depth` others. */
static double bytes_read(const oct_grok_config *c, const oct_grok_layouts *l, const oct_shard *s,
                         double depth)
{
    double slices = (double)(s->end_slice - s->first_slice), experts = (double)c->n_used;
    double expert_slices = slices, d = (double)c->d_model;
    if (oct_shard_has_all_slices(s, c->n_experts)) {
        experts = most_on_a_node(s->size, s->end_expert - s->first_expert, c->n_used);
        expert_slices = (double)c->n_slices;
    }
    double share = slices / (double)c->n_slices;
    double kv = 2.0 * 2.0 * depth * (double)(c->n_kv_heads * c->head_dim) * share;
    double layer = slices * (unit_bytes(&l->qkv) + unit_bytes(&l->attn_out)) + kv +
                   experts * expert_slices * (unit_bytes(&l->gate_up) + unit_bytes(&l->down)) +
                   4 * d * (4 + (c->n_experts > 1 ? (double)c->n_experts : 0));
    return (double)c->n_layers * layer + share * (double)c->n_vocab * d * sizeof(uint16_t);
}

static void add_sum(cost *k, const network *n, double ranks, double bytes)
{
    k->rounds += 2;
    k->exchange += 2 * n->latency + 2 * (ranks - 1) / ranks * bytes / n->rate;
}

static void add_all(cost *k, const network *n, double ranks, double bytes)
{
    k->rounds++;
    k->exchange += n->latency + (ranks - 1) * bytes / n->rate;
}

static cost predict(const oct_grok_config *c, const oct_grok_layouts *l, const network *n,
                    const oct_shard *s, double depth)
{
    cost k = {.bytes = bytes_read(c, l, s, depth)};
    double ranks = s->size, d = (double)c->d_model * sizeof(float);
    bool one_sum = s->layout == OCT_SHARD_EXPERT && c->n_experts > 1 && c->n_used <= 2;
    k.compute = k.bytes / n->read;
    if (s->size == 1)
        return k;
    for (int i = 0; i < 4; i++) /* order, token, sequence, wanted row */
        add_all(&k, n, ranks, sizeof(int32_t));
    add_sum(&k, n, ranks, d); /* embedding */
    for (int64_t i = 0; i < c->n_layers; i++) {
        add_sum(&k, n, ranks, d);
        add_sum(&k, n, ranks, one_sum ? d : d * (double)c->n_used);
    }
    add_all(&k, n, ranks, (double)(c->n_vocab * 4) / ranks); /* logits */
    add_all(&k, n, ranks, (double)c->n_layers * 8);          /* hashes of the choices */
    return k;
}

static json_t *row_of(const cost *k, const cost *one, const oct_shard *s)
{
    double seconds = k->compute + k->exchange;
    return json_pack("{s:i, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "nodes", s->size, "shard",
                     s->size == 1                    ? "-"
                     : s->layout == OCT_SHARD_EXPERT ? "expert"
                                                     : "slice",
                     "gb_per_token", k->bytes * 1e-9, "compute_ms", k->compute * 1e3, "exchange_ms",
                     k->exchange * 1e3, "rounds", k->rounds, "tokens_per_second", 1 / seconds,
                     "speed_up", one->compute / seconds, "exchange_share", k->exchange / seconds);
}

static oct_status simulate(const oct_grok_config *c, const network *n, double depth, json_t *rows,
                           oct_error *err)
{
    static const oct_shard_layout layouts[] = {OCT_SHARD_SLICE, OCT_SHARD_EXPERT};
    oct_grok_layouts l;
    oct_shard s;
    cost one = {0};
    OCT_TRY(oct_grok_config_check(c, err));
    OCT_TRY(oct_grok_layouts_init(c, &l, err));
    for (int size = 1; size <= n->nodes;
         size = size < n->nodes && 2 * size > n->nodes ? n->nodes : 2 * size)
        for (int k = 0; k < (size == 1 ? 1 : 2); k++) {
            const char *wrong = oct_shard_make(layouts[k], 0, size, c->n_slices, c->n_experts, &s);
            if (wrong && size == n->nodes)
                return oct_fail(err, OCT_ERR_ARG, "bench: %d nodes: %s", size, wrong);
            if (wrong)
                continue;
            cost result = predict(c, &l, n, &s, depth);
            one = size == 1 ? result : one;
            json_array_append_new(rows, row_of(&result, &one, &s));
        }
    return OCT_OK;
}

static double number(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}

static void print_rows(const network *n, const json_t *rows, const oct_grok_config *c, double depth)
{
    size_t i;
    json_t *row;
    oct_cli_outf(
        "\nPredicted: %lld layers, vocabulary %lld, one sequence, %.0f positions held; "
        "each node decodes\nreading %.1f GB/s; network: %.1f us per message, %.2f GB/s per "
        "node, full duplex.\n",
        (long long)c->n_layers, (long long)c->n_vocab, depth, n->read * 1e-9, n->latency * 1e6,
        n->rate * 1e-9);
    oct_cli_outf(
        "\n| nodes | shard | GB/token of the slowest | compute, ms | rounds | exchange, ms "
        "| exchange, %% | tokens/s | speed-up |\n|---|---|---|---|---|---|---|---|---|\n");
    json_array_foreach(rows, i, row)
        oct_cli_outf("| %.0f | %s | %.4g | %.2f | %.0f | %.2f | %.1f | %.2f | %.2f |\n",
                     number(row, "nodes"), json_string_value(json_object_get(row, "shard")),
                     number(row, "gb_per_token"), number(row, "compute_ms"), number(row, "rounds"),
                     number(row, "exchange_ms"), 100 * number(row, "exchange_share"),
                     number(row, "tokens_per_second"), number(row, "speed_up"));
    oct_cli_outf("\nAssumed: compute is the bytes that the slowest rank reads; routing is uniform; "
                 "no exchange overlaps\nwith work; a sum over n nodes takes 2 latencies and "
                 "2 (n-1)/n of its bytes, and nobody waits for\nanybody but for reading more.\n");
}

int oct_bench_simulate(const oct_bench *b, double measured)
{
    network n = {0};
    oct_error err = {0};
    double depth = (double)b->depths.v[0];
    oct_grok_config c =
        b->model && !b->synthetic ? b->model->config : oct_synthetic_grok1(64, 131072);
    if (!parse(b->simulate, &n)) {
        oct_cli_error("bench: --simulate '%s', expected NODES,LATENCY_US,GBYTE_PER_S, and perhaps "
                      ",READ_GBYTE_PER_S",
                      b->simulate);
        return OCT_EXIT_USAGE;
    }
    n.read = n.read > 0 ? n.read : measured;
    if (!(n.read > 0))
        return -1;
    json_t *rows = json_array();
    oct_status s = simulate(&c, &n, depth, rows, &err);
    int code = OCT_EXIT_OK;
    if (s != OCT_OK) {
        code = oct_cli_fail(&err);
    } else if (b->format == OCT_BENCH_JSON) {
        char *text = json_dumps(rows, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        oct_cli_outf("%s\n", text ? text : "null");
        free(text);
    } else {
        print_rows(&n, rows, &c, depth);
    }
    json_decref(rows);
    return code != OCT_EXIT_OK ? code : oct_cli_out_end();
}
