/* octet serve: an OpenAI-compatible server. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include <octet/machine.h>
#include <octet/forecast.h>
#include <octet/measure.h>

#include "cli.h"
#include "cli_session.h"
#include "commands.h"
#include "ranks.h"
#include "serve_ask.h"
#include "serve_server.h"

static const uint64_t PACED_BYTES = 1 << 30;
enum { KEY_MAX = 4096, PARALLEL = 32, QUEUE = 64, PORT = 8080 };

typedef struct serve_state {
    oct_cli_session session;
    oct_serve_config config;
    const char *key_file, *kv_memory, *kv_save;
    int64_t port, step_rows, keep_alive, timeout, drain, body_mib, save_time;
    uint64_t kv_bytes;
    oct_serve_server server;
} serve_state;

#define NETWORK_ROWS(v)                                                                        \
    OCT_ROW_TEXT(0, "host", &(v)->config.host, "ADDRESS",                                      \
                 "where to listen [127.0.0.1]; others than loopback need\n"                    \
                 "--api-key-file or --open"),                                                  \
        OCT_ROW_INT(0, "port", &(v)->port, 0, 65535, "N", "[8080]; 0: any, printed"),          \
        OCT_ROW_TEXT(0, "unix", &(v)->config.unix_path, "PATH",                                \
                     "listen at a UNIX socket instead, which this user alone may use"),        \
        OCT_ROW_TEXT(0, "api-key-file", &(v)->key_file, "FILE",                                \
                     "clients must send the key in the first line of FILE"),                   \
        OCT_ROW_FLAG(0, "open", &(v)->config.open, "anybody who reaches the address may ask"), \
        OCT_ROW_TEXT(0, "allow-host", &(v)->config.allow_hosts, "NAME[,...]",                  \
                     "names of this server beside localhost; *: any"),                         \
        OCT_ROW_TEXT(0, "allow-origin", &(v)->config.allow_origins, "URL[,...]",               \
                     "pages of these origins may ask, too; *: any"),                           \
        OCT_ROW_INT(0, "connections", &(v)->config.connections_max, 1, 65536, "N",             \
                    "at once [512]; beyond, the idlest are closed"),                           \
        OCT_ROW_INT(0, "body", &(v)->body_mib, 1, 1024, "MIB", "of a request at most [4]"),    \
        OCT_ROW_INT(0, "timeout", &(v)->timeout, 1, 86400, "S",                                \
                    "seconds until a request must be complete, or a client must\n"             \
                    "have taken something of its answer [30]")

static int parse(serve_state *v, int argc, char **argv)
{
    const oct_opt rows[] = {
        OCT_CLI_MODEL_ROW(v->session),
        OCT_ROW_TEXT(0, "name", &v->config.name, "NAME", "of the model for clients [its file's]"),
        OCT_ROW_TEXT(0, "template", &v->config.template, "NAME",
                     "format of chats: grok-2 or plain [none: completions only]"),
        OCT_CLI_CTX_ROW(v->session, "positions for each prompt and its text [the model's]"),
        OCT_ROW_INT(0, "parallel", &v->config.n_parallel, 1, 4096, "N",
                    "texts generated at once [32]"),
        OCT_ROW_INT(0, "queue", &v->config.n_queue, 1, 1 << 20, "N",
                    "requests that may wait [64]; more are told to come again"),
        OCT_ROW_TEXT(0, "kv-memory", &v->kv_memory, "SIZE",
                     "for keys and values of all texts: 8G, 512M [a quarter of what\n"
                     "is free beside the weights, as far as it is of use]"),
        OCT_ROW_TEXT(0, "kv-save", &v->kv_save, "DIR",
                     "keep keys and values of prompts and texts in DIR while the\n"
                     "server is down; it tells who can read it what was asked"),
        OCT_ROW_INT(0, "kv-save-time", &v->save_time, 0, 86400, "S",
                    "seconds that saving may take at the end [20]; what is not\n"
                    "written by then, the oldest, is left out"),
        OCT_ROW_INT(0, "step-rows", &v->step_rows, 0, 16384, "N",
                    "tokens of a step while texts are generated [0: as many as\n"
                    "the machine computes while it reads the weights]"),
        NETWORK_ROWS(v),
        OCT_ROW_INT(0, "keep-alive", &v->keep_alive, 0, 3600, "S",
                    "seconds after which a silent stream gets a comment [5]; 0: never"),
        OCT_ROW_INT(0, "drain", &v->drain, 0, 86400, "S",
                    "after Ctrl-C or SIGTERM, seconds that answers may take to end [0]"),
        OCT_ROW_FLAG(0, "log-texts", &v->config.log_texts, "log prompts and answers, too"),
        OCT_CLI_SESSION_ROWS(v->session),
    };
    const oct_cli cli = {
        .name = "serve",
        .synopsis = "-m MODEL [options]",
        .about =
            "Answers OpenAI's clients over HTTP: /v1/completions, /v1/chat/completions,\n"
            "/v1/models, /tokenize, /detokenize, /apply-template, /health, /metrics.\n"
            "The same request with the same seed gets the same bytes, whoever else asks at the\n"
            "same time and whatever is cached. Ctrl-C or SIGTERM ends it (exit code 130 or 143);\n"
            "a second one ends it at once.",
        .opts = rows,
        .n_opts = sizeof rows / sizeof *rows,
        .notes = "examples:\n"
                 "  octet serve -m grok-1.gguf\n"
                 "  octet serve -m grok-1.gguf --template plain --kv-memory 32G\n"
                 "  octet serve -m grok-1.gguf --host 0.0.0.0 --api-key-file key.txt\n"
                 "  mpirun -n 8 octet serve -m grok-1.gguf\n"
                 "  curl http://127.0.0.1:8080/v1/completions -d \\\n"
                 "    '{\"prompt\": \"The answer to life is\", \"max_tokens\": 20}'",
    };
    return oct_cli_parse(&cli, argc, argv, NULL);
}

/* ---- options that are more than a number ---------------------------------------------------- */

static bool is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 ||
           strcmp(host, "::1") == 0;
}

/* The first line of the file, without white space around it. */
static int read_key(serve_state *v)
{
    oct_error err = {0};
    size_t n = 0;
    if (!v->key_file)
        return -1;
    if (oct_cli_read(v->key_file, KEY_MAX, &v->config.key, &n, &err) != OCT_OK)
        return oct_cli_fail(&err);
    v->config.key[strcspn(v->config.key, "\r\n \t")] = 0;
    if (v->config.key[0])
        return -1;
    oct_cli_error("%s: holds no key in its first line", v->key_file);
    return OCT_EXIT_ERROR;
}

static int check(serve_state *v)
{
    const char *names;
    oct_serve_config *c = &v->config;
    if (c->template && !oct_serve_template_known(c->template, &names)) {
        oct_cli_error("serve: --template %s: expected one of %s", c->template, names);
        return OCT_EXIT_USAGE;
    }
    if (!c->unix_path && !is_loopback(c->host) && !v->key_file && !c->open) {
        oct_cli_error("serve: --host %s lets others ask: give --api-key-file FILE, or --open",
                      c->host);
        return OCT_EXIT_USAGE;
    }
    if (v->kv_memory && !oct_cli_bytes(v->kv_memory, &v->kv_bytes)) {
        oct_cli_error("serve: --kv-memory %s: expected a number and K, M, G or T, such as 8G",
                      v->kv_memory);
        return OCT_EXIT_USAGE;
    }
    return read_key(v);
}

/* ---- what the engine takes ------------------------------------------------------------------ */

/* Keys and values of all texts at once, or a quarter of the memory that the weights leave; one text
 * must fit in any case. */
static uint64_t choose_kv(const serve_state *v, const oct_model *m, oct_session_params p)
{
    oct_session_need all, one;
    oct_memory have;
    oct_error ignored = {0};
    if (v->kv_bytes)
        return v->kv_bytes;
    p.kv_bytes = 0;
    if (oct_session_estimate(m, &p, &all, &ignored) != OCT_OK)
        return 0;
    p.n_seqs = 1;
    if (oct_session_estimate(m, &p, &one, &ignored) != OCT_OK)
        return 0;
    oct_memory_get("", &have);
    const uint64_t left = have.limit > all.weights ? (have.limit - all.weights) / 4 : 0;
    return all.kv <= left ? all.kv : one.kv > left ? one.kv : left;
}

static void fill_config(serve_state *v, oct_model *m)
{
    static const char *const kv[] = {"f16", "bf16", "f32"}, *const act[] = {"i16", "i8"};
    oct_serve_config *c = &v->config;
    const oct_model_info *info = oct_model_get_info(m);
    c->model = m;
    if (!c->name) {
        const char *slash = strrchr(v->session.model, '/');
        c->name = slash ? slash + 1 : v->session.model;
    }
    c->n_ctx = v->session.n_ctx && v->session.n_ctx < info->n_ctx ? v->session.n_ctx : info->n_ctx;
    c->port = (int)v->port;
    c->body_max = v->body_mib << 20;
    c->keep_alive = (double)v->keep_alive;
    c->timeout = (double)v->timeout;
    c->drain = (double)v->drain;
    c->started = (int64_t)time(NULL);
    snprintf(c->fingerprint, sizeof c->fingerprint, "octet-%s-%016llx-%s-%s%s", oct_version(),
             (unsigned long long)info->fingerprint, kv[v->session.kv], act[v->session.act],
             v->session.blas ? "-blas" : "");
    size_t longest = 1;
    for (int32_t id = 0; id < info->n_vocab; id++) {
        size_t n = 0;
        if (oct_token_bytes(m, id, &n) && n > longest)
            longest = n;
    }
    if (!info->has_tokenizer)
        oct_cli_warning("%s has no tokenizer: prompts must be token ids, and answers hold no text",
                        v->session.model);
    c->n_ids_bytes_max = c->n_ctx * (int64_t)longest;
}

static void say_where(const serve_state *v)
{
    const oct_serve_config *c = &v->config;
    if (c->unix_path)
        oct_serve_log("listening at %s", c->unix_path);
    else
        oct_serve_log("listening at http://%s%s%s:%d", strchr(c->host, ':') ? "[" : "", c->host,
                      strchr(c->host, ':') ? "]" : "", oct_serve_server_port(&v->server));
}

/* ---- the run -------------------------------------------------------------------------------- */

/* Bytes per second over the experts of a model that is so small that it may lie in caches. */
static double read_small(oct_session *s)
{
    static const size_t distances[] = {0, 4096, 16384};
    const uint64_t bytes = 64 << 20;
    double best = 0;
    int64_t next = 0;
    for (int i = 0; i < 3 * (int)(sizeof distances / sizeof *distances); i++) {
        const double rate = oct_measure_read(s, distances[i / 3], bytes, &next);
        best = rate > best ? rate : best;
    }
    return best;
}

/* What the machine reads and computes: for whoever looks at the figures, and for steps in which a
 * prompt delays no text for much longer than the weights take to be read. What a small model's
 * steps should be like is not known from that. Returns what it reads; 0: unknown, or not all. */
static double measure_pace(const serve_state *v, oct_session *s, const oct_session_params *p,
                           oct_scheduler_params *out)
{
    oct_host host;
    oct_error ignored = {0}; /* then as where nothing is known */
    oct_instruction integer;
    oct_gpu_share gpus[OCT_MAX_GPUS];
    const oct_job *job = oct_ranks_job();
    const int i = oct_instruction_find(oct_session_isa(s), OCT_PROBE_INT);
    const bool small = oct_model_get_info(v->config.model)->weight_bytes < PACED_BYTES,
               alone = oct_session_get_gpus(s, gpus, NULL) == 0;
    if (small)
        return !alone ? 0 : job ? oct_job_pace(job)->read : read_small(s);
    if (oct_host_measure(p, &host, &ignored) != OCT_OK)
        return 0;
    const double read = job ? oct_job_pace(job)->read : (host.read.min + host.read.max) / 2;
    if (v->step_rows == 0 && oct_instruction_get(i, &integer)) {
        const double passes = p->act == OCT_ACT_I16 && integer.passes16 > 0 ? integer.passes16 : 1;
        out->read_rate = read;
        out->op_rate = (host.ops.min + host.ops.max) / 2 / passes;
    }
    return alone ? read : 0;
}

/* What an earlier server has saved. False: DIR cannot be used. */
static bool restore(const serve_state *v, oct_session *s, oct_error *err)
{
    oct_kv_kept kept;
    char size[24];
    const double start = oct_seconds();
    if (!v->kv_save)
        return true;
    const oct_status status = oct_session_restore(s, v->kv_save, &kept, err);
    if (status == OCT_ERR_CANCELLED)
        return true; /* the engine sees to the end */
    if (status != OCT_OK)
        return false;
    if (kept.why[0])
        oct_serve_log("saved keys and values are not used: %s", kept.why);
    else
        oct_serve_log("restored %lld pages of keys and values (%s) in %.1f s",
                      (long long)kept.pages, oct_memory_text(kept.bytes, size),
                      oct_seconds() - start);
    return true;
}

static void save(const serve_state *v, oct_session *s)
{
    oct_error err = {0};
    oct_kv_kept kept;
    oct_kv_usage kv;
    char size[24];
    const double start = oct_seconds();
    oct_session_get_kv(s, &kv);
    if (oct_session_save(s, v->kv_save, (double)v->save_time, &kept, &err) != OCT_OK)
        oct_cli_error("keys and values are not saved: %s", err.text);
    else
        oct_serve_log("saved %lld of %lld pages of keys and values (%s) in %.1f s",
                      (long long)kept.pages, (long long)(kv.cached + kv.used),
                      oct_memory_text(kept.bytes, size), oct_seconds() - start);
}

static void run_engine(serve_state *v, oct_model *m, const oct_session_params *p)
{
    oct_error err = {0};
    oct_session *session = NULL;
    oct_serve_engine *e = &v->server.engine;
    if (oct_ranks_session_new(&v->session, m, p, &session, &err) != OCT_OK) {
        oct_serve_engine_fail(e, &err);
        return;
    }
    oct_scheduler_params params = {.max_running = v->config.n_parallel,
                                   .max_waiting = v->config.n_queue,
                                   .step_rows = v->step_rows};
    e->session = session;
    e->read_limit = measure_pace(v, session, p, &params);
    if (restore(v, session, &err))
        oct_serve_engine_run(e, session, &params);
    else
        oct_serve_engine_fail(e, &err);
}

static int serve(serve_state *v, oct_model *m, const oct_session_params *p)
{
    oct_error err = {0};
    pthread_t loop;
    oct_serve_server *s = &v->server;
    int code = OCT_EXIT_OK;
    oct_cli_grace(0); /* the loop sees to the end */
    oct_status status = oct_serve_server_open(s, &v->config, oct_cli_cancel_flag(), &err);
    if (status == OCT_OK) {
        say_where(v);
        oct_session_params params = *p;
        params.cancel = &s->engine.cancel;
        if (pthread_create(&loop, NULL, oct_serve_server_run, s) == 0) {
            run_engine(v, m, &params);
            pthread_join(loop, NULL);
        } else {
            status = oct_fail(&err, OCT_ERR_MEMORY, "no thread for the server");
        }
    }
    if (status == OCT_OK && oct_serve_engine_state(&s->engine, &err) == OCT_SERVE_FAILED)
        status = err.status;
    if (status != OCT_OK)
        code = oct_cli_fail(&err);
    else if (*oct_cli_cancel_flag())
        code = oct_cli_interrupt_code();
    oct_scheduler_free(s->engine.scheduler);
    if (status == OCT_OK && v->kv_save)
        save(v, s->engine.session);
    oct_session_free(s->engine.session);
    oct_serve_server_close(s);
    return code;
}

static int start(serve_state *v, oct_model *m)
{
    oct_session_params p;
    fill_config(v, m);
    oct_cli_session_params(&v->session, v->config.n_ctx, v->config.n_parallel, &p);
    p.kv_bytes = choose_kv(v, m, p);
    int code = oct_cli_fits(&v->session, m, &p,
                            oct_scheduler_bytes(oct_model_get_info(m)->n_vocab, p.n_seqs, p.chunk));
    return code >= 0 ? code : serve(v, m, &p);
}

int oct_cmd_serve(int argc, char **argv)
{
    static serve_state v;
    oct_model *m = NULL;
    v = (serve_state){.config = {.host = "127.0.0.1",
                                 .n_parallel = PARALLEL,
                                 .n_queue = QUEUE,
                                 .connections_max = 512},
                      .port = PORT,
                      .keep_alive = 5,
                      .timeout = 30,
                      .body_mib = 4,
                      .save_time = 20};
    int code = parse(&v, argc, argv);
    if (code < 0)
        code = check(&v);
    if (code < 0)
        code = oct_cli_open(&v.session, "serve", false, &m);
    if (code < 0)
        code = start(&v, m);
    free(v.config.key);
    oct_ranks_close(m);
    return code;
}
