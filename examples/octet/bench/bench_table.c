/* bench_table.c: results as Markdown, CSV or JSON. A result is a row, a JSON object with
 *   test, threads, tokens, depth, batch, chunk, kv, act, weights, kernels: what was run
 *   gb_per_token      weights, scales, keys and values that the library read
 *   tokens_per_second, gb_per_second, read_probe (GB/s), tops, peak_probe (TOPS): spreads
 *   of_read_probe, of_peak_probe: spreads of ratios, each run against the probes beside it
 *   predicted         tokens per second if the run took the longer of (bytes / read probe) and
 *                     (operations / peak probe)
 *   of_predicted      measured / predicted
 *   sync              share of the time that threads waited for each other, the mean over them
 * under mpirun instead of probes and sync
 *   ranks, shard      how many, what each holds; gb_per_token is rank 0's
 *   compute_ms, exchange_ms, wait_ms: what a token's milliseconds are made of, see oct_rank_time
 * and of sums over the ranks (test "fold")
 *   floats, us, bytes_sent, rounds: the vector; how long it took; what each rank sent in how many
 *                     rounds of messages
 * A spread is {"median", "min", "max"}. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "ranks.h"

typedef struct column {
    const char *key, *title;
    char kind; /* s text, i integer, n number, r spread of numbers, p spread of ratios as % */
    int decimals;
    const char *tests; /* letters of the tests that print it in Markdown */
} column;

/* P prefill, D decode, E expert, A attention; of ranks p prefill, d decode, f fold */
static const column columns[] = {
    {"test", "test", 's', 0, "PDEApdf"},
    {"ranks", "ranks", 'i', 0, "pdf"},
    {"shard", "shard", 's', 0, "pd"},
    {"threads", "threads", 'i', 0, "PDEApd"},
    {"tokens", "tokens", 'i', 0, "PDEpd"},
    {"depth", "depth", 'i', 0, "PDApd"},
    {"batch", "batch", 'i', 0, "DAd"},
    {"chunk", "chunk", 'i', 0, "Pp"},
    {"act", "act", 's', 0, "PDEpd"},
    {"kv", "KV", 's', 0, "DAd"},
    {"weights", "weights", 's', 0, "PDE"},
    {"kernels", "kernels", 's', 0, "PDEApd"},
    {"tokens_per_second", "tokens/s", 'r', 2, "PDEpd"},
    {"gb_per_token", "GB/token", 'n', 3, "Dd"},
    {"gb_per_second", "GB/s", 'r', 1, "DA"},
    {"read_probe", "read probe", 'r', 1, "DPA"},
    {"of_read_probe", "% of read probe", 'p', 1, "DA"},
    {"tops", "TOPS", 'r', 3, "PEA"},
    {"peak_probe", "peak probe", 'r', 3, "PEA"},
    {"of_peak_probe", "% of peak probe", 'p', 1, "PEA"},
    {"sync", "% waiting", 'p', 1, "PDEA"},
    {"compute_ms", "compute, ms/token", 'r', 3, "pd"},
    {"exchange_ms", "exchange, ms/token", 'r', 3, "pd"},
    {"wait_ms", "waiting, ms/token", 'r', 3, "pd"},
    {"predicted", "predicted tokens/s", 'r', 2, "PDEd"},
    {"of_predicted", "% of predicted", 'p', 1, "PDEAd"},
    {"floats", "floats summed", 'i', 0, "f"},
    {"us", "us", 'r', 1, "f"},
    {"bytes_sent", "bytes sent by each", 'i', 0, "f"},
    {"rounds", "rounds", 'i', 0, "f"},
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

static double part(const json_t *spread, const char *key)
{
    return json_number_value(json_object_get(spread, key));
}

static void cell(const column *c, const json_t *row)
{
    const json_t *v = json_object_get(row, c->key);
    double scale = c->kind == 'p' ? 100 : 1;
    int d = c->decimals;
    if (!v || json_is_null(v))
        oct_cli_outf("-");
    else if (c->kind == 's')
        oct_cli_outf("%s", json_string_value(v));
    else if (c->kind == 'i')
        oct_cli_outf("%lld", (long long)json_integer_value(v));
    else if (c->kind == 'n')
        oct_cli_outf("%.*f", d, json_number_value(v));
    else
        oct_cli_outf("%.*f (%.*f..%.*f)", d, scale * part(v, "median"), d, scale * part(v, "min"),
                     d, scale * part(v, "max"));
}

static char letter_of(const json_t *row)
{
    char letter = json_string_value(json_object_get(row, "test"))[0];
    return (char)(json_object_get(row, "ranks") ? letter : letter - 'a' + 'A');
}

static void markdown_rows(const json_t *rows)
{
    char last = 0;
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row)
    {
        char letter = letter_of(row);
        if (letter != last) {
            oct_cli_outf("\n|");
            for (int c = 0; c < N_COLUMNS; c++)
                if (strchr(columns[c].tests, letter))
                    oct_cli_outf(" %s |", columns[c].title);
            oct_cli_outf("\n|");
            for (int c = 0; c < N_COLUMNS; c++)
                if (strchr(columns[c].tests, letter))
                    oct_cli_outf("---|");
            oct_cli_outf("\n");
        }
        last = letter;
        oct_cli_outf("|");
        for (int c = 0; c < N_COLUMNS; c++) {
            if (!strchr(columns[c].tests, letter))
                continue;
            oct_cli_outf(" ");
            cell(&columns[c], row);
            oct_cli_outf(" |");
        }
        oct_cli_outf("\n");
    }
}

static void markdown_facts(const json_t *facts)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)facts, key, v)
    {
        if (json_is_string(v))
            oct_cli_outf("- %s: %s\n", key, json_string_value(v));
        else if (json_is_integer(v))
            oct_cli_outf("- %s: %lld\n", key, (long long)json_integer_value(v));
    }
}

static void markdown_probes(const json_t *probes)
{
    static const column spread = {"tops", NULL, 'r', 3, ""}, read = {"read", NULL, 'r', 1, ""};
    size_t i, k;
    json_t *set, *p;
    oct_cli_outf("\n| threads | probe | median (min..max) |\n|---|---|---|\n");
    json_array_foreach(probes, i, set)
    {
        long long threads = json_integer_value(json_object_get(set, "threads"));
        oct_cli_outf("| %lld | reading the weights, fetched %lld bytes ahead, GB/s | ", threads,
                     (long long)json_integer_value(json_object_get(set, "ahead")));
        cell(&read, set);
        oct_cli_outf(" |\n");
        json_array_foreach(json_object_get(set, "arithmetic"), k, p)
        {
            oct_cli_outf("| %lld | %s, TOPS | ", threads,
                         json_string_value(json_object_get(p, "instruction")));
            cell(&spread, p);
            oct_cli_outf(" |\n");
        }
        oct_cli_outf("| %lld | barrier, us | %.3f |\n", threads, part(set, "barrier_us"));
        oct_cli_outf("| %lld | waking the threads, us | %.1f |\n", threads, part(set, "wake_us"));
    }
}

static void markdown_gpus(const json_t *gpus)
{
    size_t i;
    json_t *g;
    if (json_array_size(gpus) > 0)
        oct_cli_outf(
            "\n| GPU | reading its memory, GB/s | int8 products, TOPS | from the host, GB/s "
            "| a matrix | for one token, GB/s (%% of reading) | for all rows, both digits, TOPS "
            "(%% of products) | by cuBLAS, one digit, TOPS |\n|---|---|---|---|---|---|---|---|\n");
    json_array_foreach(gpus, i, g)
    {
        const double read = part(g, "read_gb_per_second"), peak = part(g, "int8_tops"),
                     gemv = part(g, "gemv_gb_per_second"), gemm = part(g, "gemm_int8_tops"),
                     blas = part(g, "cublas_int8_tops");
        oct_cli_outf("| %lld, %s | %.1f | %.2f | %.1f | %s | %.1f (%.1f) | %.2f (%.1f) | ",
                     (long long)json_integer_value(json_object_get(g, "gpu")),
                     json_string_value(json_object_get(g, "name")), read, peak,
                     part(g, "link_gb_per_second"), json_string_value(json_object_get(g, "matrix")),
                     gemv, read > 0 ? 100 * gemv / read : 0.0, gemm,
                     peak > 0 ? 100 * gemm / peak : 0.0);
        oct_cli_outf(blas > 0 ? "%.2f |\n" : "not there |\n", blas);
    }
}

static void print_csv(const json_t *rows)
{
    static const char *const parts[] = {"median", "min", "max"};
    size_t i;
    json_t *row;
    for (int c = 0; c < N_COLUMNS; c++) {
        bool many = columns[c].kind == 'r' || columns[c].kind == 'p';
        for (int k = 0; k < (many ? 3 : 1); k++)
            oct_cli_outf("%s%s%s%s", c ? "," : "", columns[c].key, many ? "_" : "",
                         many ? parts[k] : "");
    }
    oct_cli_outf("\n");
    json_array_foreach(rows, i, row)
    {
        for (int c = 0; c < N_COLUMNS; c++) {
            const json_t *v = json_object_get(row, columns[c].key);
            bool many = columns[c].kind == 'r' || columns[c].kind == 'p';
            oct_cli_outf("%s", c ? "," : "");
            for (int k = 0; many && k < 3; k++)
                oct_cli_outf("%s%.6g", k ? "," : "", part(v, parts[k]));
            if (!many && json_is_string(v))
                oct_cli_outf("%s", json_string_value(v));
            else if (!many && json_is_number(v))
                oct_cli_outf("%.6g", json_number_value(v));
        }
        oct_cli_outf("\n");
    }
}

int oct_bench_print(const oct_bench *b, const json_t *all)
{
    if (b->format == OCT_BENCH_JSON)
        return oct_cli_out_json(all, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    if (b->format == OCT_BENCH_CSV) {
        print_csv(json_object_get(all, "rows"));
        return oct_cli_out_end();
    }
    markdown_facts(json_object_get(all, "machine"));
    markdown_facts(json_object_get(all, "model"));
    if (oct_ranks_job())
        markdown_facts(json_object_get(all, "pace"));
    else
        markdown_probes(json_object_get(all, "probes"));
    markdown_gpus(json_object_get(all, "gpus"));
    markdown_rows(json_object_get(all, "rows"));
    return oct_cli_out_end();
}
