/* octet bench: how fast this machine runs a model, measured against what the machine can do. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "commands.h"
#include "cli_session.h"
#include "ranks.h"

enum { N_LISTS = 6 };

static int parse(oct_bench *b, const char *text[N_LISTS], int argc, char **argv)
{
    const oct_opt rows[] = {
        OCT_ROW_TEXT('m', "model", &b->path, "FILE", "model file, made by `octet convert`"),
        OCT_ROW_CHOICE(0, "synthetic", &b->synthetic, "none|grok-1",
                       "instead of -m: layers of Grok-1's shape, random weights"),
        OCT_ROW_INT(0, "layers", &b->layers, 1, 64, "N", "synthetic: layers, 4.9 GB each [2]"),
        OCT_ROW_CHOICE(0, "experts", &b->experts, "q8|q4g32|q4g16",
                       "synthetic: type of the experts' weights; of 4 bits a layer takes\n"
                       "2.7 GB or 2.8 [q8]"),
        OCT_ROW_INT(0, "vocab", &b->vocab, 16, 131072, "N", "synthetic: vocabulary [4096]"),
        OCT_ROW_U64(0, "seed", &b->seed, NULL, "N", "of the weights and the tokens [1]"),
        OCT_ROW_TEXT('o', "output", &b->out, "FILE",
                     "synthetic: write this file and use it [in memory]"),
        OCT_ROW_TEXT('t', "threads", &text[0], "LIST",
                     "threads, as all lists separated by commas [physical cores]"),
        OCT_ROW_TEXT('p', "prompt", &text[1], "LIST", "lengths of prompts; 0: none [512]"),
        OCT_ROW_INT('n', "decode", &b->n_decode, 0, 100000, "N",
                    "tokens generated in a repetition; 0: none [16]"),
        OCT_ROW_TEXT('d', "depth", &text[2], "LIST", "positions held before [0]"),
        OCT_ROW_TEXT('b', "batch", &text[3], "LIST", "sequences decoded together [1]"),
        OCT_ROW_INT('r', "repeat", &b->repeats, 1, OCT_BENCH_REPEATS, "N", "repetitions [9]"),
        OCT_ROW_INT(0, "chunk", &b->chunk, 1, 16384, "N",
                    "prompt tokens evaluated together [512; with AMX 2048]"),
        OCT_ROW_CHOICE(0, "kv", &b->kv, "f16|bf16|f32", "type of the KV cache [f16]"),
        OCT_ROW_CHOICE(0, "act", &b->act, "i16|i8", "activations in 16 or in 8 bits [i16]"),
        OCT_ROW_CHOICE(0, "weights", &b->weights, "auto|mapped|owned",
                       "as in `octet run`: the file's pages, or a copy on the threads' nodes"),
        OCT_ROW_CHOICE(0, "shard", &b->shard, "auto|slice|expert",
                       "under mpirun: what a rank holds, as in `octet run`"),
        OCT_ROW_FLAG(0, "replicate-attention", &b->replicate_attention,
                     "under mpirun, as in `octet run`"),
        OCT_ROW_TEXT(0, "expert", &text[4], "LIST", "experts alone, each with so many rows [none]"),
        OCT_ROW_TEXT(0, "attention", &text[5], "LIST",
                     "attention alone, so many sequences at a time, over full contexts\n"
                     "with 1 GiB of keys and values or more [none]"),
        OCT_ROW_TEXT(0, "simulate", &b->simulate, "N,US,GBS[,READ]",
                     "instead: predict tokens/s of N nodes, of a network's latency in\n"
                     "us and GB/s, from decoding here or the GB/s that a node reads"),
        OCT_ROW_CHOICE(0, "format", &b->format, "md|csv|json", "of the result [md]"),
        OCT_CLI_GPU_ROW(&b->gpu),
        OCT_CLI_GPU_STREAM_ROW(&b->gpu_stream),
        OCT_ROW_FLAG(0, "force", &b->force, "go on although memory does not suffice"),
    };
    const oct_cli cli = {
        .name = "bench",
        .synopsis = "-m MODEL | --synthetic grok-1 [options]",
        .about =
            "Measures prompts and generated tokens, each repetition between two probes: reading\n"
            "the weights as fast as memory allows, and the kernels' integer instruction at its\n"
            "peak. Results are medians (least..greatest); shares are of the probes beside the\n"
            "very run. predicted is what the probes allow: the longer of bytes / bandwidth and\n"
            "operations / peak.\n"
            "Under mpirun the ranks are measured: what a token's time is made of, and sums over\n"
            "the ranks alone. predicted is then what all ranks read together and exchanged when\n"
            "they started.",
        .opts = rows,
        .n_opts = sizeof rows / sizeof *rows,
        .notes = "examples:\n"
                 "  octet bench -m grok-1.gguf\n"
                 "  octet bench --synthetic grok-1 --layers 2 -t 1,2 -p 64,512 -n 32\n"
                 "  octet bench -m grok-1.gguf -p 0 -n 16 -d 0,2048,8000 --format csv\n"
                 "  octet bench --simulate 8,10,11.5,400 -d 2048\n"
                 "  mpirun -n 8 --bind-to none octet bench -m grok-1.gguf -p 64,512 -n 16",
    };
    return oct_cli_parse(&cli, argc, argv, NULL);
}

/* "1,2,4" into numbers of lo..hi. */
static bool parse_list(const char *name, const char *text, int64_t lo, int64_t hi,
                       oct_bench_list *list)
{
    if (!text)
        return true;
    list->n = 0;
    for (const char *p = text;; p++) {
        char *end;
        long long v = strtoll(p, &end, 10);
        if (end == p || (*end && *end != ',') || v < lo || v > hi || list->n == OCT_BENCH_LIST) {
            oct_cli_error("bench: %s '%s': expected up to %d numbers of %lld..%lld with commas",
                          name, text, OCT_BENCH_LIST, (long long)lo, (long long)hi);
            return false;
        }
        list->v[list->n++] = v;
        if (!*end)
            return true;
        p = end;
    }
}

static bool parse_lists(oct_bench *b, const char *text[N_LISTS])
{
    return parse_list("--threads", text[0], 1, OCT_MAX_THREADS, &b->threads) &&
           parse_list("--prompt", text[1], 0, 1 << 20, &b->prompts) &&
           parse_list("--depth", text[2], 0, 1 << 20, &b->depths) &&
           parse_list("--batch", text[3], 1, 1024, &b->batches) &&
           parse_list("--expert", text[4], 1, 1 << 16, &b->expert) &&
           parse_list("--attention", text[5], 1, 1024, &b->attention);
}

static int64_t max_of(const oct_bench_list *l)
{
    int64_t m = 0;
    for (int i = 0; i < l->n; i++)
        m = l->v[i] > m ? l->v[i] : m;
    return m;
}

/* Whether the largest session fits the context and the memory; -1 to go on. */
static int check(const oct_bench *b)
{
    int64_t longest = max_of(&b->prompts) > b->n_decode + 1 ? max_of(&b->prompts) : b->n_decode + 1;
    int64_t need = max_of(&b->depths) + longest, n_ctx = oct_model_get_info(b->model)->n_ctx;
    if (need > n_ctx) {
        oct_cli_error("bench: depth and tokens come to %lld positions, the model has %lld",
                      (long long)need, (long long)n_ctx);
        return OCT_EXIT_USAGE;
    }
    oct_cli_session o = {.model = b->path,
                         .n_threads = max_of(&b->threads),
                         .chunk = b->chunk,
                         .kv = b->kv,
                         .shard = b->shard,
                         .replicate_attention = b->replicate_attention,
                         .force = b->force,
                         .gpu_stream = b->gpu_stream};
    oct_session_params p;
    oct_cli_session_params(&o, need, max_of(&b->batches), &p);
    return oct_cli_fits(&o, b->model, &p, 0);
}

static oct_status run_threads(oct_bench *b, oct_bench_rig *r, json_t *probes, oct_error *err)
{
    if (!oct_ranks_job())
        json_array_append_new(probes, oct_bench_probes(r, b->repeats));
    for (int d = 0; d < b->depths.n; d++)
        for (int p = 0; p < b->prompts.n; p++)
            if (b->prompts.v[p] > 0)
                OCT_TRY(oct_bench_prefill(r, b->prompts.v[p], b->depths.v[d], err));
    for (int d = 0; d < b->depths.n && b->n_decode > 0; d++)
        for (int s = 0; s < b->batches.n; s++)
            OCT_TRY(oct_bench_decode(r, b->batches.v[s], b->depths.v[d], err));
    for (int i = 0; i < b->expert.n; i++)
        OCT_TRY(oct_bench_expert(r, b->expert.v[i], err));
    for (int i = 0; i < b->attention.n; i++)
        OCT_TRY(oct_bench_attention(r, b->attention.v[i], err));
    return OCT_OK;
}

static oct_status run(oct_bench *b, json_t *probes, oct_error *err)
{
    for (int t = 0; t < b->threads.n; t++) {
        oct_bench_rig rig;
        char path[PATH_MAX];
        if (t > 0) { /* owned weights are placed for a number of threads */
            oct_ranks_close(b->model);
            b->model = NULL;
            OCT_TRY(oct_model_open(oct_ranks_path(b->path, path), &b->model, err));
        }
        oct_status s = oct_bench_rig_init(&rig, b, (int)b->threads.v[t], err);
        if (s == OCT_OK)
            s = run_threads(b, &rig, probes, err);
        oct_bench_rig_free(&rig);
        OCT_TRY(s);
    }
    return OCT_OK;
}

static json_t *model_facts(const oct_bench *b)
{
    const oct_model_info *i = oct_model_get_info(b->model);
    char shape[128], print[24], a[24], c[24], weights[80];
    snprintf(shape, sizeof shape,
             "%lld layers, width %lld, FFN %lld, %lld of %lld experts, %lld ids",
             (long long)i->n_layers, (long long)i->d_model, (long long)i->d_ff,
             (long long)i->n_experts_used, (long long)i->n_experts, (long long)i->n_vocab);
    snprintf(print, sizeof print, "%016llx", (unsigned long long)i->fingerprint);
    snprintf(weights, sizeof weights, "%s, %s read per token", oct_memory_text(i->weight_bytes, a),
             oct_memory_text(i->active_bytes, c));
    return json_pack("{s:s, s:s, s:s, s:s}", "model", b->synthetic ? "synthetic grok-1" : b->path,
                     "shape", shape, "weights", weights, "fingerprint", print);
}

static int work(oct_bench *b)
{
    oct_error err = {0};
    int code = check(b);
    if (code >= 0)
        return code;
    json_t *probes = json_array(), *gpus = oct_bench_gpus();
    b->rows = json_array();
    oct_status s = run(b, probes, &err);
    if (s == OCT_OK && oct_ranks_job())
        s = oct_bench_exchange(b, &err);
    if (s == OCT_OK && b->simulate) {
        const json_t *rate = json_object_get(json_array_get(b->rows, 0), "gb_per_second");
        code = oct_bench_simulate(b, 1e9 * json_number_value(json_object_get(rate, "median")));
        if (code < 0) {
            oct_cli_error("bench: --simulate needs tokens to measure, but -n is 0");
            code = OCT_EXIT_USAGE;
        }
    } else if (s == OCT_OK) {
        json_t *all = json_pack("{s:o, s:o, s:O, s:O}", "machine", oct_bench_machine(b), "model",
                                model_facts(b), "probes", probes, "rows", b->rows);
        if (json_array_size(gpus) > 0)
            json_object_set(all, "gpus", gpus);
        if (oct_ranks_job())
            json_object_set_new(all, "pace", oct_bench_pace(b));
        code = oct_cli_json_whole(all) ? oct_bench_print(b, all) : OCT_EXIT_ERROR;
        json_decref(all);
    } else {
        code = oct_cli_fail(&err);
    }
    json_decref(gpus);
    json_decref(probes);
    json_decref(b->rows);
    return code;
}

/* Kernels and number of threads as any session would choose them. */
static oct_status choose(oct_bench *b, oct_error *err)
{
    oct_session_params p = {.chunk = 1, .n_ctx = 1, .comm = oct_job_comm(oct_ranks_job())};
    p.shard = oct_model_get_info(b->model)->part_by;
    OCT_TRY(oct_session_estimate(b->model, &p, &b->need, err));
    b->kernels = b->need.isa;
    bool integer = oct_instruction_find(b->kernels, OCT_PROBE_INT) >= 0;
    if (!integer || oct_instruction_find(b->kernels, OCT_PROBE_F32) < 0)
        oct_cli_warning("the %s kernels have no probe of their %s peak: no share of it is printed",
                        b->kernels, integer ? "f32" : "integer");
    if (b->threads.n == 0)
        b->threads = (oct_bench_list){{b->need.n_threads}, 1};
    return OCT_OK;
}

static int open_and_work(oct_bench *b)
{
    oct_error err = {0};
    char path[128] = "", room[PATH_MAX];
    int fd = -1, code;
    oct_status s = OCT_OK;
    if (!oct_cli_gpu_parse(b->gpu, "bench"))
        return OCT_EXIT_USAGE;
    if (b->synthetic) {
        s = oct_bench_synthetic(b, path, &fd, &err);
        b->path = b->out ? b->out : path;
    }
    if (s == OCT_OK)
        s = oct_model_open(oct_ranks_path(b->path, room), &b->model, &err);
    if (s == OCT_OK)
        s = choose(b, &err);
    code = s != OCT_OK ? oct_cli_fail(&err) : b->simulate ? oct_bench_simulate(b, 0) : -1;
    if (code < 0)
        code = work(b);
    oct_ranks_close(b->model);
    if (fd >= 0)
        close(fd);
    return code;
}

/* Whether all that is asked for can be measured over ranks. */
static bool fits_ranks(const oct_bench *b)
{
    const char *what = b->expert.n > 0                       ? "--expert"
                       : b->attention.n > 0                  ? "--attention"
                       : b->simulate                         ? "--simulate"
                       : b->weights == OCT_CLI_WEIGHTS_OWNED ? "--weights owned"
                                                             : NULL;
    if (what)
        oct_cli_error("bench: %s is of one process; start it without mpirun", what);
    return !what;
}

int oct_cmd_bench(int argc, char **argv)
{
    const char *text[N_LISTS] = {0};
    oct_bench b = {.prompts = {{512}, 1},
                   .depths = {{0}, 1},
                   .batches = {{1}, 1},
                   .n_decode = 16,
                   .repeats = 9,
                   .chunk = oct_session_default_chunk(),
                   .layers = 2,
                   .vocab = 4096,
                   .seed = 1};
    int code = parse(&b, text, argc, argv);
    if (code >= 0)
        return code;
    if (!parse_lists(&b, text) || (oct_ranks_job() && !fits_ranks(&b)))
        return OCT_EXIT_USAGE;
    if (b.simulate) {
        b.prompts = (oct_bench_list){{0}, 1};
        b.batches = (oct_bench_list){{1}, 1};
        code = b.path ? -1 : oct_bench_simulate(&b, 0);
        if (code >= 0)
            return code;
    }
    if (!b.path == !b.synthetic) {
        oct_cli_error("bench: expected either -m MODEL or --synthetic grok-1%s (octet bench --help "
                      "shows the usage)",
                      b.simulate ? ", or the GB/s that a node reads as fourth number" : "");
        return OCT_EXIT_USAGE;
    }
    if (b.out && !b.synthetic) {
        oct_cli_error("bench: -o is for --synthetic (results go to standard output)");
        return OCT_EXIT_USAGE;
    }
    return open_and_work(&b);
}
