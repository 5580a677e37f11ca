/* bench_simulate.c: tokens per second of a cluster that is not there, from the speed of one machine
 * and two numbers of its network. A token takes as long as the slowest rank reads, at the rate at
 * which a machine reads while it decodes, and the exchange on top: see oct_predict_step. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

typedef struct cluster {
    int nodes;
    oct_network net;
    double read; /* bytes per second that a node reads while it decodes; 0: to be measured */
} cluster;

/* "8,25,1.15" or "8,25,1.15,400"; decimal points. */
static bool parse(const char *text, cluster *n)
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
    if (!(count >= 3 && v[0] == (int)v[0] && v[0] >= 1 && v[2] > 0 && (count == 3 || v[3] > 0)))
        return false;
    *n = (cluster){(int)v[0], {v[1] * 1e-6, 1e-9 / v[2]}, v[3] * 1e9};
    return true;
}

/* one: seconds of one node. */
static json_t *row_of(const oct_step_cost *k, double compute, double one, int nodes,
                      oct_shard_layout layout)
{
    double seconds = compute + k->exchange;
    return json_pack("{s:i, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "nodes", nodes, "shard",
                     nodes == 1 ? "-" : oct_shard_name(layout), "gb_per_token", k->bytes * 1e-9,
                     "compute_ms", compute * 1e3, "exchange_ms", k->exchange * 1e3, "rounds",
                     k->rounds, "tokens_per_second", 1 / seconds, "speed_up", one / seconds,
                     "exchange_share", k->exchange / seconds);
}

static oct_status simulate(const oct_model *m, const cluster *n, double depth, oct_kv_type kv,
                           json_t *rows, oct_error *err)
{
    double one = 0;
    const oct_step_shape step = {1, 1, depth, kv};
    for (int size = 1; size <= n->nodes;
         size = size < n->nodes && 2 * size > n->nodes ? n->nodes : 2 * size)
        for (int k = 0; k < (size == 1 ? 1 : OCT_SHARD_LAYOUTS); k++) {
            oct_step_cost cost;
            const char *wrong =
                oct_predict_step(m, (oct_shard_layout)k, size, &step, &n->net, &cost);
            if (wrong && size == n->nodes)
                return oct_fail(err, OCT_ERR_ARG, "bench: %d nodes: %s", size, wrong);
            if (wrong)
                continue;
            double compute = cost.bytes / n->read;
            one = size == 1 ? compute : one;
            json_array_append_new(rows, row_of(&cost, compute, one, size, (oct_shard_layout)k));
        }
    return OCT_OK;
}

static double number(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}

static void print_rows(const cluster *n, const json_t *rows, const oct_model_info *c, double depth)
{
    size_t i;
    json_t *row;
    oct_cli_outf(
        "\nPredicted: %lld layers, vocabulary %lld, one sequence, %.0f positions held; "
        "each node decodes\nreading %.1f GB/s; network: %.1f us per message, %.2f GB/s per "
        "node, full duplex.\n",
        (long long)c->n_layers, (long long)c->n_vocab, depth, n->read * 1e-9, n->net.latency * 1e6,
        1e-9 / n->net.per_byte);
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

static int predict(const oct_bench *b, const oct_model *m, const cluster *n)
{
    oct_error err = {0};
    double depth = (double)b->depths.v[0];
    json_t *rows = json_array();
    int code = OCT_EXIT_OK;
    if (simulate(m, n, depth, (oct_kv_type)b->kv, rows, &err) != OCT_OK) {
        code = oct_cli_fail(&err);
    } else if (b->format == OCT_BENCH_JSON) {
        char *text = json_dumps(rows, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        oct_cli_outf("%s\n", text ? text : "null");
        free(text);
    } else {
        print_rows(n, rows, oct_model_get_info(m), depth);
    }
    json_decref(rows);
    return code != OCT_EXIT_OK ? code : oct_cli_out_end();
}

int oct_bench_simulate(const oct_bench *b, double measured)
{
    cluster n = {0};
    oct_error err = {0};
    oct_outline grok1;
    if (!parse(b->simulate, &n)) {
        oct_cli_error("bench: --simulate '%s', expected NODES,LATENCY_US,GBYTE_PER_S, and perhaps "
                      ",READ_GBYTE_PER_S",
                      b->simulate);
        return OCT_EXIT_USAGE;
    }
    n.read = n.read > 0 ? n.read : measured;
    if (!(n.read > 0))
        return -1;
    if (b->model && !b->synthetic)
        return predict(b, b->model, &n);
    if (oct_outline_open("grok-1", NULL, &grok1, &err) != OCT_OK)
        return oct_cli_fail(&err);
    int code = predict(b, grok1.model, &n);
    oct_outline_close(&grok1);
    return code;
}
