/* octet plan: whether a model fits, and how fast it will be, before it is there. */
#include <string.h>

#include <octet/scheduler.h>

#include "commands.h"
#include "plan_job.h"

static int parse(oct_plan_job *j, int argc, char **argv, int *first)
{
    const oct_opt rows[] = {
        OCT_ROW_TEXT(0, "hosts", &j->hosts_file, "FILE",
                     "one rank on each host of this file, a line each:\n"
                     "NAME memory=384GiB read=400 [ops=TOPS] [cores=N] [numa=N];\n"
                     "read: GB/s from memory with all threads; mpirun's hosts file\n"
                     "will do, with these words behind #"),
        OCT_ROW_TEXT(0, "nodes", &j->nodes, "N,US,GBS",
                     "one rank on each of N hosts as this one, on a network of this\n"
                     "latency in us and GB/s"),
        OCT_ROW_TEXT(0, "network", &j->network_text, "US,GBS", "of --hosts [25,1.15: 10 GbE]"),
        OCT_ROW_TEXT(0, "memory", &j->memory, "SIZE",
                     "of each host [what is available here, or the file's]"),
        OCT_ROW_REAL(0, "read", &j->read, 0.001, 1e6, "GBS",
                     "that each host reads from memory [measured here, or the file's]"),
        OCT_ROW_REAL(0, "ops", &j->ops, 0.001, 1e6, "TOPS",
                     "of its integer instruction, see `octet bench` [the same]"),
        OCT_ROW_TEXT(0, "gpu", &j->gpu, "SIZE,GBS",
                     "a GPU beside each host: its memory, and GB/s from it; what it\n"
                     "is given is what `octet run --gpu` gives it"),
        OCT_CLI_CTX_ROW(j->session, "positions of each sequence [the model's context]"),
        OCT_ROW_INT('b', "batch", &j->n_seqs, 1, 4096, "N", "sequences at once [1]"),
        OCT_ROW_INT('p', "prompt", &j->n_prompt, 1, 2147483647, "N",
                    "tokens of the prompt before the first token [512]"),
        OCT_ROW_TEXT(0, "experts", &j->experts, "TYPE",
                     "weight type of the experts [the file's, or q8]"),
        OCT_ROW_INT('t', "threads", &j->session.n_threads, 1, OCT_MAX_THREADS, "N",
                    "threads of each host [one per physical core]"),
        OCT_ROW_INT(0, "chunk", &j->session.chunk, 1, 16384, "N",
                    "prompt tokens evaluated together [512; with AMX 2048]"),
        OCT_ROW_CHOICE(0, "kv", &j->session.kv, "f16|bf16|f32", "type of the KV cache [f16]"),
        OCT_ROW_CHOICE(0, "act", &j->session.act, "i16|i8", "activations in 16 or 8 bits [i16]"),
        OCT_ROW_CHOICE(0, "shard", &j->session.shard, "auto|slice|expert",
                       "what a rank holds, as in `octet run` [auto]"),
        OCT_ROW_FLAG(0, "replicate-attention", &j->session.replicate_attention,
                     "as in `octet run`"),
        OCT_ROW_FLAG(0, "json", &j->json, "print JSON"),
    };
    char names[128] = "";
    oct_model_name known;
    for (int i = 0; oct_model_name_get(i, &known); i++)
        if (!known.lacks)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", *names ? "|" : "",
                     known.name);
    const oct_cli cli = {
        .name = "plan",
        .synopsis = "grok-1 | MODEL | CHECKPOINT | config.json [options]",
        .about =
            "Says what a model takes, whether it fits, how fast it will be and what would fit\n"
            "instead: from its name, a model file, a checkpoint, or a config.json with xAI's\n"
            "names or Hugging Face's (or a folder with that and no weights). Nothing is "
            "downloaded\n"
            "and no weight is read: memory is what the engine's own plan of a session comes to,\n"
            "speed what memory and arithmetic allow, measured here for about a second or as "
            "given.\n"
            "Exit codes: 0 it fits, 3 it does not, 1 error, 2 wrong usage.",
        .opts = rows,
        .n_opts = sizeof rows / sizeof *rows,
        .notes = "SIZE is a number with K, M, G or T: GiB are 1024^3 bytes, GB are 1000^3, G is "
                 "GiB.\n\nexamples:\n"
                 "  octet plan grok-1\n"
                 "  octet plan grok-1 -c 2048 --memory 384GiB --read 400 --ops 20\n"
                 "  octet plan grok-1 --nodes 8,10,2.9 --memory 64GiB --read 70 --json\n"
                 "  octet plan model.gguf --hosts hosts.txt --network 10,2.9 --batch 8\n"
                 "  octet plan config.json --gpu 24GiB,900",
        .max_args = 1,
        .words = names,
    };
    return oct_cli_parse(&cli, argc, argv, first);
}

static oct_forecast_params params_of(const oct_plan_job *j)
{
    const oct_model_info *info = oct_model_get_info(j->outline.model);
    return (oct_forecast_params){
        .hosts = j->host,
        .n_hosts = j->n_hosts,
        .network = j->network,
        .card = j->gpu ? &j->card : NULL,
        .layouts = oct_cli_shards(&j->session),
        .session = j->params,
        .n_prompt = j->n_prompt,
        .extra = oct_scheduler_bytes(info->n_vocab, j->params.n_seqs, j->params.chunk)};
}

/* ---- instead --------------------------------------------------------------------------------- */

static uint64_t most_of(const oct_forecast_rank *ranks, int n)
{
    uint64_t most = 0;
    for (int i = 0; i < n; i++)
        most = ranks[i].total > most ? ranks[i].total : most;
    return most;
}

/* What becomes of other hosts or another context, if it fits or speed is told anyway. */
static oct_status consider(oct_plan_job *j, const oct_outline *o, const oct_forecast_params *p,
                           bool only_if_fits, oct_error *err)
{
    oct_forecast_rank ranks[OCT_PLAN_HOSTS];
    oct_plan_instead *x = &j->instead[j->n_instead];
    if (j->n_instead == OCT_PLAN_INSTEAD)
        return OCT_OK;
    *x =
        (oct_plan_instead){.experts = o->experts, .n_hosts = p->n_hosts, .n_ctx = p->session.n_ctx};
    OCT_TRY(oct_forecast_make(o->model, p, ranks, &x->forecast, err));
    x->fits = x->forecast.fits;
    x->total = most_of(ranks, p->n_hosts);
    j->n_instead += x->fits || !only_if_fits;
    return OCT_OK;
}

/* Of one weight type: the same; a shorter context; more hosts. `other`: not the type that was asked
 * for, so that the same is news. */
static oct_status alternatives(oct_plan_job *j, const oct_outline *o, bool other, oct_error *err)
{
    oct_forecast_params p = params_of(j);
    oct_host hosts[OCT_PLAN_HOSTS];
    int64_t n_ctx = 0;
    int n_hosts = 0, before = j->n_instead;
    if (other)
        OCT_TRY(consider(j, o, &p, true, err));
    if (j->forecast.fits || j->n_instead > before)
        return OCT_OK;
    OCT_TRY(oct_forecast_context(o->model, &p, &n_ctx, err));
    if (n_ctx > 0 && n_ctx < j->params.n_ctx) {
        oct_forecast_params shorter = p;
        shorter.session.n_ctx = n_ctx;
        shorter.n_prompt = p.n_prompt < n_ctx ? p.n_prompt : n_ctx;
        OCT_TRY(consider(j, o, &shorter, true, err));
    }
    OCT_TRY(oct_forecast_hosts(o->model, &p, &n_hosts, err));
    if (n_hosts == 0)
        return OCT_OK;
    for (int i = 0; i < n_hosts; i++)
        hosts[i] = j->host[0];
    p.hosts = hosts;
    p.n_hosts = n_hosts;
    return consider(j, o, &p, true, err);
}

static oct_status all_alternatives(oct_plan_job *j, oct_error *err)
{
    OCT_TRY(alternatives(j, &j->outline, false, err));
    for (int i = 0; oct_weight_type_name(i); i++) {
        oct_outline o;
        oct_error why = {0};
        if (strcmp(oct_weight_type_name(i), j->outline.experts) == 0)
            continue;
        oct_status s = oct_outline_open(j->what, oct_weight_type_name(i), &o, &why);
        if (s == OCT_ERR_UNSUPPORTED)
            continue; /* these matrices cannot have it */
        if (s != OCT_OK)
            return oct_fail(err, s, "%s", why.text);
        s = alternatives(j, &o, true, err);
        oct_outline_close(&o);
        OCT_TRY(s);
    }
    return OCT_OK;
}

/* ---- the plan -------------------------------------------------------------------------------- */

static int work(oct_plan_job *j)
{
    oct_error err = {0};
    const int64_t model_ctx = oct_model_get_info(j->outline.model)->n_ctx;
    const int64_t n_ctx = j->session.n_ctx ? j->session.n_ctx : model_ctx;
    if (n_ctx > model_ctx) {
        oct_cli_error("plan: -c %lld: the model has a context of %lld tokens", (long long)n_ctx,
                      (long long)model_ctx);
        return OCT_EXIT_USAGE;
    }
    j->n_prompt = j->n_prompt ? j->n_prompt : n_ctx < 512 ? n_ctx : 512;
    oct_cli_session_params(&j->session, n_ctx, j->n_seqs, &j->params);
    int code = oct_plan_hosts(j);
    if (code >= 0)
        return code;
    const oct_forecast_params p = params_of(j);
    oct_status s = oct_forecast_make(j->outline.model, &p, j->rank, &j->forecast, &err);
    if (s == OCT_OK)
        s = all_alternatives(j, &err);
    if (s != OCT_OK)
        return oct_cli_fail(&err);
    code = j->json ? oct_plan_print_json(j) : oct_plan_print(j);
    return code == OCT_EXIT_OK && !j->forecast.fits ? OCT_EXIT_NO : code;
}

int oct_cmd_plan(int argc, char **argv)
{
    oct_plan_job j = {.n_seqs = 1};
    oct_error err = {0};
    int first = 0, code = parse(&j, argc, argv, &first);
    if (code >= 0)
        return code;
    if (first >= argc) {
        oct_cli_error("plan: what to plan for is missing: grok-1, a model file, a checkpoint or a "
                      "config.json (octet plan --help shows the usage)");
        return OCT_EXIT_USAGE;
    }
    j.what = argv[first];
    if (oct_outline_open(j.what, j.experts, &j.outline, &err) != OCT_OK)
        return oct_cli_fail(&err);
    code = work(&j);
    oct_plan_hosts_free(&j);
    oct_outline_close(&j.outline);
    return code;
}
