/* plan_print.c: a plan as text and as JSON. */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "plan_job.h"

static const char *const kv_names[] = {"f16", "bf16", "f32"}, *const act_names[] = {"i16", "i8"};

/* Decimal units, as disks and files are sold. */
static const char *decimal(uint64_t bytes, char out[24])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    double x = (double)bytes;
    int u = 0;
    for (; x >= 1000 && u < 4; u++)
        x /= 1000;
    snprintf(out, 24, u == 0 ? "%.0f %s" : x < 10 ? "%.2f %s" : "%.1f %s", x, units[u]);
    return out;
}

/* "8.31..9.02" */
static const char *range(double lo, double hi, char out[40])
{
    const char *format = hi < 0.095 ? "%.3f" : hi < 10 ? "%.2f" : hi < 100 ? "%.1f" : "%.0f";
    char a[16], b[16];
    snprintf(a, sizeof a, format, lo);
    snprintf(b, sizeof b, format, hi);
    snprintf(out, 40, strcmp(a, b) == 0 ? "%s" : "%s..%s", a, b);
    return out;
}

static const char *duration(oct_bounds s, char out[40])
{
    char text[40];
    const bool minutes = s.max >= 300, milli = s.max < 1;
    const double unit = minutes ? 60 : milli ? 1e-3 : 1;
    snprintf(out, 40, "%.30s %s", range(s.min / unit, s.max / unit, text),
             minutes ? "min"
             : milli ? "ms"
                     : "s");
    return out;
}

/* Tokens per second of all sequences together. */
static oct_bounds rate_of(const oct_forecast *f, int64_t n_seqs)
{
    const oct_bounds s = f->step.seconds;
    return s.max > 0 ? (oct_bounds){(double)n_seqs / s.max, (double)n_seqs / s.min}
                     : (oct_bounds){0};
}

static const char *limit_text(oct_limit limit)
{
    static const char *const text[] = {[OCT_LIMIT_READ] = "reading memory",
                                       [OCT_LIMIT_OPS] = "arithmetic",
                                       [OCT_LIMIT_EXCHANGE] = "the network"};
    return text[limit];
}

/* ---- text ------------------------------------------------------------------------------------ */

static void print_model(const oct_plan_job *j)
{
    const oct_model_info *i = oct_model_get_info(j->outline.model);
    const oct_outline *o = &j->outline;
    char a[24], b[24], c[24];
    oct_cli_outf("%s: %.1f billion numbers, %lld layers of width %lld, %lld of %lld experts of "
                 "%lld (%s)\n",
                 j->what, o->parameters * 1e-9, (long long)i->n_layers, (long long)i->d_model,
                 (long long)i->n_experts_used, (long long)i->n_experts, (long long)i->d_ff,
                 o->experts);
    if (o->of == OCT_OUTLINE_NAME)
        oct_cli_outf("download  %s in %lld files, and the tokenizer\n", decimal(o->source_bytes, a),
                     (long long)o->n_files);
    if (o->of == OCT_OUTLINE_FILE && o->file_bytes == i->file_bytes)
        oct_cli_outf("disk      the file: %s\n", decimal(o->file_bytes, b));
    else if (o->source_bytes > 0)
        oct_cli_outf("disk      %s while converting: the checkpoint's %s and the model file's %s, "
                     "which stays\n",
                     decimal(o->source_bytes + o->file_bytes, c), decimal(o->source_bytes, a),
                     decimal(o->file_bytes, b));
    else
        oct_cli_outf("disk      the model file: %s\n", decimal(o->file_bytes, b));
}

static void print_card(const oct_plan_job *j, const oct_session_need *need)
{
    oct_gpus card = {.n = 1, .gpu = {{.name = "as given", .free = j->card.memory}}};
    char line[OCT_GPU_LINE];
    if (need->n_gpus == 0)
        oct_cli_outf("  the card is too small for anything\n");
    else
        oct_cli_outf("  %s\n", oct_gpu_share_text(&card, &need->gpu[0], line));
}

static void print_memory(const oct_plan_job *j)
{
    const oct_session_params *p = &j->params;
    oct_cli_outf("\nmemory: %lld sequence%s of %lld positions, KV cache %s, chunks of %lld, %s "
                 "kernels%s%s\n",
                 (long long)p->n_seqs, p->n_seqs == 1 ? "" : "s", (long long)p->n_ctx,
                 kv_names[j->session.kv], (long long)j->forecast.chunk, j->rank[0].need.isa,
                 j->n_hosts > 1 ? ", ranks by " : "",
                 j->n_hosts > 1 ? oct_shard_name(j->forecast.layout) : "");
    oct_cli_outf("%-16s %11s %11s %11s %11s %11s\n", "", "weights", "KV cache", "buffers", "total",
                 "there is");
    for (int i = 0; i < j->n_hosts; i++) {
        const oct_forecast_rank *r = &j->rank[i];
        char a[24], b[24], c[24], d[24], e[24], f[24];
        oct_cli_outf("%-16s %11s %11s %11s %11s %11s  %s", j->name[i],
                     oct_memory_text(r->need.weights, a), oct_memory_text(r->need.kv, b),
                     oct_memory_text(r->total - r->need.weights - r->need.kv, c),
                     oct_memory_text(r->total, d),
                     j->host[i].memory == UINT64_MAX ? "no limit"
                                                     : oct_memory_text(j->host[i].memory, e),
                     r->fits ? "fits" : "does not fit");
        if (!r->fits && r->total > j->host[i].memory)
            oct_cli_outf(": %s too little", oct_memory_text(r->total - j->host[i].memory, f));
        oct_cli_outf("\n");
        if (j->gpu)
            print_card(j, &r->need);
    }
}

static void print_speed(const oct_plan_job *j)
{
    const oct_forecast *f = &j->forecast;
    const oct_bounds rate = rate_of(f, j->params.n_seqs);
    char a[40], b[24];
    oct_cli_outf("\nspeed%s\n", f->fits ? "" : ", if it fitted");
    if (rate.max > 0)
        oct_cli_outf("  %s tokens/s behind a prompt of %lld: limited by %s, %s a %s%s\n",
                     range(rate.min, rate.max, a), (long long)j->n_prompt,
                     limit_text(f->step.limit), decimal((uint64_t)f->step.bytes, b),
                     j->params.n_seqs == 1 ? "token" : "step of all sequences",
                     j->n_hosts > 1 ? " on each host" : "");
    else
        oct_cli_outf("  %s are read for a token, at a rate that is not known (--read tells it)\n",
                     decimal((uint64_t)f->step.bytes, b));
    if (f->prompt.seconds.max > 0)
        oct_cli_outf("  first token after %s for a prompt of %lld: limited by %s\n",
                     duration(f->prompt.seconds, a), (long long)j->n_prompt,
                     limit_text(f->prompt.limit));
    else
        oct_cli_outf("  the first token waits for arithmetic of a rate that is not known (--ops "
                     "tells it)\n");
    if (j->n_hosts > 1)
        oct_cli_outf("  of each token %.2f ms are exchange (%.1f us, %.2f GB/s%s)\n",
                     f->exchange * 1e3, j->network.latency * 1e6, 1e-9 / j->network.per_byte,
                     j->network_given ? "" : ", assumed");
}

static void print_instead(const oct_plan_job *j)
{
    const bool fits = j->forecast.fits;
    if (j->n_instead > 0)
        oct_cli_outf("\n%s\n", fits ? "fits too" : "would fit instead");
    else if (!fits)
        oct_cli_outf("\nnothing that was tried would fit: other weight types, shorter contexts, up "
                     "to %d such hosts\n",
                     OCT_PLAN_HOSTS);
    for (int i = 0; i < j->n_instead; i++) {
        const oct_plan_instead *x = &j->instead[i];
        const oct_bounds rate = rate_of(&x->forecast, j->params.n_seqs);
        char a[24], b[40];
        oct_cli_outf("  experts %s, context %lld, %d host%s%s: %s%s", x->experts,
                     (long long)x->n_ctx, x->n_hosts, x->n_hosts == 1 ? "" : "s",
                     x->n_hosts == 1           ? ""
                     : x->n_hosts > j->n_hosts ? " like the first"
                                               : "",
                     oct_memory_text(x->total, a), x->n_hosts == 1 ? "" : " at most on each");
        if (rate.max > 0)
            oct_cli_outf(", %s tokens/s", range(rate.min, rate.max, b));
        oct_cli_outf("\n");
    }
}

/* The commands that show what was foretold. */
static void verify_commands(const oct_plan_job *j, char dry_run[512], char bench[512])
{
    const char *file = j->outline.of == OCT_OUTLINE_FILE ? j->what : "MODEL.gguf";
    const char *kv = kv_names[j->session.kv], *act = act_names[j->session.act];
    char mpi[64] = "";
    if (j->n_hosts > 1)
        snprintf(mpi, sizeof mpi, "mpirun -n %d --hostfile HOSTS ", j->n_hosts);
    snprintf(dry_run, 512, "octet run -m %.300s -c %lld --kv %s --dry-run", file,
             (long long)j->params.n_ctx, kv);
    snprintf(bench, 512, "%soctet bench -m %.300s -p %lld -n 16 -d %lld -b %lld --kv %s --act %s",
             mpi, file, (long long)j->n_prompt, (long long)j->n_prompt, (long long)j->params.n_seqs,
             kv, act);
}

static void print_basis(const oct_plan_job *j)
{
    const oct_host *h = &j->host[0];
    const oct_bounds step = oct_forecast_step_share(), prompt = oct_forecast_prompt_share();
    char a[40], dry_run[512], bench[512];
    oct_cli_outf("\nbasis\n  memory: the plan that a session is made by, for the model's own "
                 "header\n");
    if (h->read.max > 0)
        oct_cli_outf("  reading: %s GB/s%s, %s\n", range(h->read.min * 1e-9, h->read.max * 1e-9, a),
                     j->n_hosts > 1 ? " on the first host" : "",
                     j->read > 0 || !j->measured ? "as given" : "measured here just now");
    if (h->ops.max > 0)
        oct_cli_outf("  arithmetic: %s TOPS, %s\n",
                     range(h->ops.min * 1e-12, h->ops.max * 1e-12, a),
                     j->ops > 0 || !j->measured ? "as given" : "measured here just now");
    oct_cli_outf("  of these `octet bench` has reached %.0f..%.0f %% for tokens, %.0f..%.0f %% for "
                 "prompts; experts are\n  chosen evenly; weights are in memory already\n",
                 step.min * 100, step.max * 100, prompt.min * 100, prompt.max * 100);
    verify_commands(j, dry_run, bench);
    oct_cli_outf("to verify\n  %s\n  %s\n", dry_run, bench);
}

int oct_plan_print(const oct_plan_job *j)
{
    print_model(j);
    print_memory(j);
    print_speed(j);
    print_instead(j);
    print_basis(j);
    return oct_cli_out_end();
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *json_bounds(oct_bounds b)
{
    return b.max > 0 ? json_pack("{s:f, s:f}", "min", b.min, "max", b.max) : json_null();
}

static json_t *json_speed(const oct_forecast *f, int64_t n_seqs)
{
    static const char *const limits[] = {[OCT_LIMIT_READ] = "read",
                                         [OCT_LIMIT_OPS] = "arithmetic",
                                         [OCT_LIMIT_EXCHANGE] = "network"};
    return json_pack("{s:o, s:s, s:f, s:f, s:o, s:s}", "tokens_per_second",
                     json_bounds(rate_of(f, n_seqs)), "limit", limits[f->step.limit], "step_bytes",
                     f->step.bytes, "exchange_seconds", f->exchange, "first_token_seconds",
                     json_bounds(f->prompt.seconds), "prompt_limit", limits[f->prompt.limit]);
}

static json_t *json_host(const oct_plan_job *j, int i)
{
    const oct_forecast_rank *r = &j->rank[i];
    return json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:i, s:s, s:o, s:o}", "name", j->name[i],
        "memory_bytes", (json_int_t)(j->host[i].memory > INT64_MAX ? INT64_MAX : j->host[i].memory),
        "weights_bytes", (json_int_t)r->need.weights, "kv_bytes", (json_int_t)r->need.kv,
        "buffers_bytes", (json_int_t)(r->total - r->need.weights - r->need.kv), "total_bytes",
        (json_int_t)r->total, "card_bytes", (json_int_t)r->on_card, "fits", r->fits, "threads",
        r->need.n_threads, "kernels", r->need.isa, "read_bytes_per_second",
        json_bounds(j->host[i].read), "ops_per_second", json_bounds(j->host[i].ops));
}

static json_t *json_model(const oct_plan_job *j)
{
    const oct_model_info *i = oct_model_get_info(j->outline.model);
    const oct_outline *o = &j->outline;
    const bool name = o->of == OCT_OUTLINE_NAME;
    const uint64_t disk = o->source_bytes ? o->source_bytes + o->file_bytes : o->file_bytes;
    return json_pack("{s:s, s:f, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:I, s:I}", "name",
                     j->what, "parameters", o->parameters, "layers", (json_int_t)i->n_layers,
                     "width", (json_int_t)i->d_model, "experts", (json_int_t)i->n_experts,
                     "experts_used", (json_int_t)i->n_experts_used, "context", (json_int_t)i->n_ctx,
                     "experts_type", o->experts, "download_bytes",
                     (json_int_t)(name ? o->source_bytes : 0), "checkpoint_bytes",
                     (json_int_t)o->source_bytes, "file_bytes", (json_int_t)o->file_bytes,
                     "disk_bytes", (json_int_t)disk);
}

int oct_plan_print_json(const oct_plan_job *j)
{
    json_t *hosts = json_array(), *instead = json_array();
    char dry_run[512], bench[512];
    const oct_bounds step = oct_forecast_step_share(), prompt = oct_forecast_prompt_share();
    for (int i = 0; i < j->n_hosts; i++)
        json_array_append_new(hosts, json_host(j, i));
    for (int i = 0; i < j->n_instead; i++) {
        const oct_plan_instead *x = &j->instead[i];
        json_array_append_new(instead,
                              json_pack("{s:s, s:i, s:I, s:I, s:o}", "experts_type", x->experts,
                                        "hosts", x->n_hosts, "context", (json_int_t)x->n_ctx,
                                        "total_bytes", (json_int_t)x->total, "speed",
                                        json_speed(&x->forecast, j->params.n_seqs)));
    }
    verify_commands(j, dry_run, bench);
    json_t *all = json_pack(
        "{s:b, s:o, s:I, s:I, s:I, s:I, s:s, s:s?, s:o, s:o, s:o, s:{s:b, s:o, s:o}, s:[s, s]}",
        "fits", j->forecast.fits, "model", json_model(j), "context", (json_int_t)j->params.n_ctx,
        "sequences", (json_int_t)j->params.n_seqs, "prompt", (json_int_t)j->n_prompt, "chunk",
        (json_int_t)j->forecast.chunk, "kv", kv_names[j->session.kv], "shard",
        j->n_hosts > 1 ? oct_shard_name(j->forecast.layout) : NULL, "hosts", hosts, "speed",
        json_speed(&j->forecast, j->params.n_seqs), "instead", instead, "basis", "measured",
        j->measured, "step_share", json_bounds(step), "prompt_share", json_bounds(prompt), "verify",
        dry_run, bench);
    int code = oct_cli_out_json(all, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(all);
    return code;
}
