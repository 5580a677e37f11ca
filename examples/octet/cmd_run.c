/* octet run: prompts to text. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <octet/machine.h>

#include "cli.h"
#include "commands.h"
#include "generate.h"
#include "interactive.h"
#include "cli_session.h"
#include "progress.h"
#include "ranks.h"
#include "run_json.h"

enum { PROMPT_BYTES_MAX = 64 << 20, DEFAULT_TOKENS = 128, DEFAULT_BATCH = 64 };

typedef struct run_prompt {
    char *text; /* what is echoed, then what was generated (if not streamed) */
    size_t n, room;
    size_t n_told; /* bytes of it that JSON lines have had */
    int32_t *ids;
    size_t n_ids;
    bool ended;
} run_prompt;

typedef struct run_state {
    oct_cli_session session;
    const char *prompt, *file, *prompts_file;
    int64_t n_max, top_k;
    double temp, top_p, min_p, repeat, frequency, presence;
    const char *bias_text;
    oct_logit_bias *bias; /* [n_bias] */
    int64_t n_bias;
    uint64_t seed;
    bool seed_given, ignore_eos, interactive, no_echo, unordered, json, no_history;
    int64_t n_logprobs; /* -1: none */
    const oct_model *model;
    const oct_gen *gen;
    run_prompt *prompts;
    int64_t n_prompts, n_batch;
    int64_t next; /* the first that is not printed, in order of the file */
    bool printed; /* one is */
    bool stream;
    bool echo_due;  /* the prompt has to be printed before the text */
    char last_char; /* streamed last */
    oct_progress progress;
} run_state;

#define SAMPLING_ROWS(r)                                                         \
    OCT_ROW_REAL(0, "temp", &(r)->temp, 0, 1000, "X",                            \
                 "temperature [0.7]; 0: always the likeliest token"),            \
        OCT_ROW_INT(0, "top-k", &(r)->top_k, 0, 2147483647, "K",                 \
                    "draw from the K likeliest tokens only [0: off]"),           \
        OCT_ROW_REAL(0, "top-p", &(r)->top_p, 0, 1, "P",                         \
                     "draw from the likeliest tokens that together have\n"       \
                     "probability P [0.95]; 1: off, 0: only the likeliest"),     \
        OCT_ROW_REAL(0, "min-p", &(r)->min_p, 0, 1, "P",                         \
                     "draw from what is at least P times as likely as the\n"     \
                     "likeliest [0: off]"),                                      \
        OCT_ROW_REAL(0, "repeat-penalty", &(r)->repeat, 0.01, 100, "X",          \
                     "what the text has already is less likely by this factor\n" \
                     "of its logit [1: off]"),                                   \
        OCT_ROW_REAL(0, "frequency-penalty", &(r)->frequency, -100, 100, "X",    \
                     "less for each time that the text has it [0: off]"),        \
        OCT_ROW_REAL(0, "presence-penalty", &(r)->presence, -100, 100, "X",      \
                     "less if the text has it at all [0: off]"),                 \
        OCT_ROW_TEXT(0, "logit-bias", &(r)->bias_text, "ID=X[,...]",             \
                     "add X to the logit of a token, -inf forbids it")

static int parse(run_state *r, int argc, char **argv)
{
    const oct_opt rows[] = {
        OCT_CLI_MODEL_ROW(r->session),
        OCT_ROW_TEXT('p', "prompt", &r->prompt, "TEXT", "the prompt"),
        OCT_ROW_TEXT('f', "file", &r->file, "FILE",
                     "read the prompt from a file, or from stdin for -"),
        OCT_ROW_TEXT(0, "prompts", &r->prompts_file, "FILE",
                     "one prompt a line (empty lines do not count), generated side\n"
                     "by side; the k-th is drawn with seed + k - 1"),
        OCT_ROW_INT(0, "batch", &r->n_batch, 1, 4096, "N",
                    "of --prompts: texts generated at once [64]; changes speed\n"
                    "and memory, never the texts"),
        OCT_ROW_FLAG(0, "unordered", &r->unordered,
                     "of --prompts: print each text when it ends, not in the order\n"
                     "of the file"),
        OCT_ROW_FLAG('i', "interactive", &r->interactive,
                     "a conversation: type, read, type on (/help there)"),
        OCT_ROW_INT('n', "n-predict", &r->n_max, -1, 2147483647, "N",
                    "tokens to generate [128]; -1: until the model ends its text\n"
                    "or the context is full; 0: only evaluate the prompt"),
        OCT_CLI_CTX_ROW(r->session, "positions for prompt and text [what -n needs, at most the\n"
                                    "model's]"),
        SAMPLING_ROWS(r),
        OCT_ROW_U64('s', "seed", &r->seed, &r->seed_given, "N",
                    "the same seed draws the same text [random, printed]"),
        OCT_ROW_FLAG(0, "ignore-eos", &r->ignore_eos, "never let the model end its text"),
        OCT_ROW_FLAG(0, "no-echo", &r->no_echo, "do not print the prompt before the text"),
        OCT_ROW_FLAG(0, "json", &r->json,
                     "print a JSON object a line: one for each token, one when a\n"
                     "text has ended, one with the timings"),
        OCT_ROW_INT(0, "logprobs", &r->n_logprobs, 0, OCT_TOP_MAX, "N",
                    "of --json: the log-probability of each token under the model,\n"
                    "and those of the N likeliest"),
        OCT_ROW_FLAG(0, "no-history", &r->no_history,
                     "of -i: keep no history of what is typed in\n"
                     "$XDG_STATE_HOME/octet (~/.local/state/octet)"),
        OCT_CLI_SESSION_ROWS(r->session),
    };
    const oct_cli cli = {
        .name = "run",
        .synopsis = "-m MODEL [-p TEXT | -f FILE | --prompts FILE | -i] [options]",
        .about =
            "Continues a prompt. The text goes to stdout as it is made, timings go to stderr.\n"
            "Without -p, -f, --prompts and -i the prompt is read from stdin. One newline at the\n"
            "end of a prompt that was read from a file or stdin is dropped. Generation stops\n"
            "when the model ends its text, after -n tokens, at the end of the context, or on\n"
            "Ctrl-C (exit code 130; a second Ctrl-C ends the program at once).",
        .opts = rows,
        .n_opts = sizeof rows / sizeof *rows,
        .notes = "examples:\n"
                 "  octet run -m grok-1.gguf -p \"The answer to life is\" -n 64\n"
                 "  octet run -m grok-1.gguf -p \"2 + 2 =\" -n 8 --temp 0\n"
                 "  octet run -m grok-1.gguf -f story.txt --temp 0.9 --top-p 0.9 --seed 7\n"
                 "  octet run -m grok-1.gguf --prompts questions.txt -n 50 > answers.txt\n"
                 "  octet run -m grok-1.gguf -i\n"
                 "  octet run -m grok-1.gguf -p \"2 + 2 =\" -n 1 --json --logprobs 5\n"
                 "  octet run -m grok-1.gguf -c 2048 --dry-run",
    };
    return oct_cli_parse(&cli, argc, argv, NULL);
}

/* --logit-bias into r->bias: ids of the model, numbers or -inf. */
static oct_status parse_bias(run_state *r, const oct_model *m, oct_error *err)
{
    const int64_t n_vocab = oct_model_get_info(m)->n_vocab;
    const char *at = r->bias_text;
    while (at && *at) {
        char *end;
        long long id = strtoll(at, &end, 10);
        float value = 0;
        bool good = end > at && *end == '=' && id >= 0 && id < n_vocab;
        if (good) {
            const char *number = end + 1;
            value = strtof(number, &end);
            good = end > number && (*end == ',' || *end == 0) && !isnan(value) &&
                   !(isinf(value) && value > 0);
        }
        if (!good)
            return oct_fail(err, OCT_ERR_ARG,
                            "--logit-bias: '%s', expected ID=X[,ID=X...] with ids of 0..%lld and "
                            "numbers or -inf",
                            at, (long long)n_vocab - 1);
        oct_logit_bias *more = realloc(r->bias, (size_t)(r->n_bias + 1) * sizeof *more);
        if (!more)
            return oct_fail(err, OCT_ERR_MEMORY, "no memory for --logit-bias");
        r->bias = more;
        r->bias[r->n_bias++] = (oct_logit_bias){.id = (int32_t)id, .value = value};
        at = *end ? end + 1 : end;
    }
    return OCT_OK;
}

/* ---- prompts -------------------------------------------------------------------------------- */

static oct_status add_prompt(run_state *r, const char *text, size_t n, oct_error *err)
{
    run_prompt *more = realloc(r->prompts, (size_t)(r->n_prompts + 1) * sizeof *more);
    if (!more)
        return oct_fail(err, OCT_ERR_MEMORY, "no memory for %lld prompts",
                        (long long)r->n_prompts + 1);
    r->prompts = more;
    run_prompt *p = &more[r->n_prompts];
    memset(p, 0, sizeof *p);
    p->text = malloc(n + 1);
    if (!p->text)
        return oct_fail(err, OCT_ERR_MEMORY, "no memory for a prompt of %zu bytes", n);
    memcpy(p->text, text, n);
    p->text[n] = 0;
    p->n = n;
    p->room = n + 1;
    r->n_prompts++;
    return OCT_OK;
}

static oct_status split_lines(run_state *r, const char *text, size_t n, oct_error *err)
{
    for (size_t at = 0; at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = end ? (size_t)(end - text) - at : n - at;
        size_t used = len > 0 && text[at + len - 1] == '\r' ? len - 1 : len;
        if (used > 0)
            OCT_TRY(add_prompt(r, text + at, used, err));
        at += len + 1;
    }
    if (r->n_prompts == 0)
        return oct_fail(err, OCT_ERR_ARG, "%s: holds no prompt", r->prompts_file);
    return OCT_OK;
}

static oct_status read_prompts(run_state *r, oct_error *err)
{
    const char *path = r->prompts_file ? r->prompts_file : r->file ? r->file : "-";
    char *text = NULL;
    size_t n = 0;
    if (r->prompt)
        return add_prompt(r, r->prompt, strlen(r->prompt), err);
    OCT_TRY(oct_cli_read(path, PROMPT_BYTES_MAX, &text, &n, err));
    oct_status s;
    if (r->prompts_file) {
        s = split_lines(r, text, n, err);
    } else {
        if (n > 0 && text[n - 1] == '\n')
            n--;
        if (n > 0 && text[n - 1] == '\r')
            n--;
        s = add_prompt(r, text, n, err);
    }
    free(text);
    return s;
}

/* "the prompt" or "prompt 3", for messages. */
static const char *prompt_name(const run_state *r, int64_t i, char buf[40])
{
    if (r->n_prompts == 1)
        return "the prompt";
    snprintf(buf, 40, "prompt %lld", (long long)i + 1);
    return buf;
}

/* Encodes all prompts and finds the positions needed for the longest of them and its text. */
static oct_status encode(run_state *r, const oct_model *m, int64_t *n_longest, oct_error *err)
{
    char name[40];
    *n_longest = 0;
    for (int64_t i = 0; i < r->n_prompts; i++) {
        run_prompt *p = &r->prompts[i];
        oct_error inner = {0};
        if (oct_cli_too_long(m, p->text ? p->n : 0))
            return oct_fail(err, OCT_ERR_ARG,
                            "%s has %zu bytes: more than the context of %lld holds",
                            prompt_name(r, i, name), p->n, (long long)oct_model_get_info(m)->n_ctx);
        if (oct_encode(m, p->text, p->n, &p->ids, &p->n_ids, &inner) != OCT_OK)
            return oct_fail(err, inner.status, "%s: %s", prompt_name(r, i, name), inner.text);
        if (p->n_ids == 0)
            return oct_fail(err, OCT_ERR_ARG,
                            "%s is empty: the model has no start token, so there "
                            "is nothing to continue",
                            prompt_name(r, i, name));
        if ((int64_t)p->n_ids > *n_longest)
            *n_longest = (int64_t)p->n_ids;
    }
    return OCT_OK;
}

/* Positions per sequence: -c, else what is needed. The prompt has to fit in any case. */
static oct_status choose_ctx(const run_state *r, const oct_model *m, int64_t n_longest,
                             int64_t *n_ctx, oct_error *err)
{
    int64_t model_ctx = oct_model_get_info(m)->n_ctx;
    *n_ctx = r->session.n_ctx ? r->session.n_ctx : model_ctx;
    if (!r->session.n_ctx && !r->interactive && r->n_max >= 0 && r->n_prompts > 0 &&
        n_longest + r->n_max < model_ctx)
        *n_ctx = n_longest + r->n_max;
    if (*n_ctx > model_ctx)
        return oct_fail(err, OCT_ERR_ARG, "-c %lld: the model has a context of %lld tokens",
                        (long long)*n_ctx, (long long)model_ctx);
    if (n_longest > *n_ctx)
        return oct_fail(err, OCT_ERR_ARG, "the %s %lld tokens, but the context holds %lld%s",
                        r->n_prompts == 1 ? "prompt has" : "longest prompt has",
                        (long long)n_longest, (long long)*n_ctx,
                        *n_ctx < model_ctx ? " (-c sets it)" : "");
    return OCT_OK;
}

/* ---- output --------------------------------------------------------------------------------- */

static void echo(run_state *r)
{
    if (r->echo_due && r->prompts[0].n > 0) {
        r->last_char = r->prompts[0].text[r->prompts[0].n - 1];
        oct_cli_out(r->prompts[0].text, r->prompts[0].n);
    }
    r->echo_due = false;
}

/* The line about a long prompt is drawn before the prompt is echoed, and taken away again. */
static void show_progress(void *ctx, int64_t done, int64_t total)
{
    run_state *r = ctx;
    if (!r->progress.what)
        oct_progress_start_tokens(&r->progress, "prompt", (uint64_t)total);
    r->progress.total = (uint64_t)total;
    oct_progress_update(&r->progress, (uint64_t)done);
    if (done == total)
        oct_progress_end(&r->progress, true);
}

static bool emit(void *ctx, int64_t i, const char *text, size_t n)
{
    run_state *r = ctx;
    if (r->stream) {
        echo(r);
        r->last_char = text[n - 1];
        return oct_cli_out(text, n);
    }
    run_prompt *p = &r->prompts[i];
    if (n > p->room - p->n) {
        size_t room = 2 * (p->n + n);
        char *more = realloc(p->text, room);
        if (!more)
            return true; /* the text goes on without these bytes */
        p->text = more;
        p->room = room;
    }
    memcpy(p->text + p->n, text, n);
    p->n += n;
    return true;
}

static bool print_text(run_state *r, int64_t i)
{
    const run_prompt *p = &r->prompts[i];
    if (r->progress.what)
        oct_progress_end(&r->progress, false);
    oct_cli_outf("%s--- %lld of %lld\n", r->printed ? "\n" : "", (long long)i + 1,
                 (long long)r->n_prompts);
    r->printed = true;
    bool open = oct_cli_out(p->text, p->n);
    return p->n > 0 && p->text[p->n - 1] == '\n' ? open : oct_cli_out("\n", 1);
}

/* What a text has had since the last JSON line. */
static oct_run_piece next_piece(run_prompt *p)
{
    const oct_run_piece piece = {p->text + p->n_told, p->n - p->n_told};
    p->n_told = p->n;
    return piece;
}

static bool print_token(void *ctx, int64_t i, const oct_event *e)
{
    run_state *r = ctx;
    return oct_run_json_token(r->model, i, e, next_piece(&r->prompts[i]), r->n_logprobs >= 0);
}

/* A text of --prompts: it is printed, or waits for those before it. */
static bool ended(void *ctx, int64_t i)
{
    run_state *r = ctx;
    bool open = true;
    if (r->stream)
        return true;
    r->prompts[i].ended = true;
    if (r->json) {
        run_prompt *p = &r->prompts[i];
        const oct_run_piece rest = next_piece(p);
        return oct_run_json_end(i, &r->gen->texts[i], p->n_ids, rest,
                                (oct_run_piece){p->text, p->n});
    }
    if (r->unordered)
        return print_text(r, i);
    while (open && r->next < r->n_prompts && r->prompts[r->next].ended)
        open = print_text(r, r->next++);
    return open;
}

/* What an interruption left unfinished. */
static void print_rest(run_state *r)
{
    for (; r->next < r->n_prompts; r->next++)
        if (!r->unordered || !r->prompts[r->next].ended)
            print_text(r, r->next);
}

/* JSON of what an interruption left unfinished, and of the work. */
static void print_json_rest(run_state *r, const oct_gen *g)
{
    oct_scheduler_stats work;
    for (int64_t i = 0; i < r->n_prompts; i++)
        if (!r->prompts[i].ended)
            ended(r, i);
    oct_scheduler_get_stats(g->scheduler, &work);
    oct_run_json_work(&work, r->seed, r->temp > 0);
}

static void print_work(const char *what, const oct_work *w, bool decode)
{
    double s = w->seconds > 1e-9 ? w->seconds : 1e-9;
    char b[24];
    if (w->tokens == 0)
        return;
    fprintf(stderr, "%-9s %6lld token%s %9.3f s %9.2f tokens/s", what, (long long)w->tokens,
            w->tokens == 1 ? " " : "s", w->seconds, (double)w->tokens / s);
    if (decode)
        fprintf(stderr, "   %s read per token, %.2f GB/s",
                oct_memory_text(w->bytes_read / (uint64_t)w->tokens, b),
                (double)w->bytes_read / s / 1e9);
    fputc('\n', stderr);
}

static void print_timings(const run_state *r, const oct_gen *g, const oct_session_params *p,
                          double load_seconds)
{
    oct_session_need need;
    oct_session_stats st;
    oct_scheduler_stats work;
    char b[24];
    oct_scheduler_get_stats(g->scheduler, &work);
    fflush(stdout);
    fprintf(stderr, "\n%-9s %s in %.3f s\n", "load",
            oct_memory_text(oct_model_get_info(g->model)->file_bytes, b), load_seconds);
    print_work("prompt", &work.prompt, false);
    print_work("text", &work.text, true);
    oct_session_params chosen = *p;
    chosen.shard = oct_ranks_layout(p->shard);
    if (oct_session_estimate(g->model, &chosen, &need, NULL) == OCT_OK)
        fprintf(stderr, "%-9s %d (%s), %s kernels\n", "threads", need.n_threads, need.threads_why,
                oct_session_isa(g->session));
    oct_ranks_print(g->model, g->session,
                    work.text.tokens > 0 ? work.text.seconds / (double)work.text.tokens : 0);
    if (!r->seed_given && r->temp > 0)
        fprintf(stderr, "%-9s %llu\n", "seed", (unsigned long long)r->seed);
    oct_session_get_stats(g->session, &st);
    if (st.kv_saturated > 0)
        oct_cli_warning(
            "%llu values did not fit the KV cache's type and were limited; --kv bf16 or "
            "f32 keeps them",
            (unsigned long long)st.kv_saturated);
}

/* ---- the run -------------------------------------------------------------------------------- */

static oct_status start_texts(run_state *r, oct_gen *g, oct_error *err)
{
    for (int64_t i = 0; i < g->n_texts; i++) {
        g->texts[i].sampler = (oct_sampler){.temperature = (float)r->temp,
                                            .top_k = (int32_t)r->top_k,
                                            .top_p = (float)r->top_p,
                                            .rng = r->seed + (uint64_t)i,
                                            .min_p = (float)r->min_p,
                                            .repetition_penalty = (float)r->repeat,
                                            .frequency_penalty = (float)r->frequency,
                                            .presence_penalty = (float)r->presence,
                                            .bias = r->bias,
                                            .n_bias = r->n_bias};
        if (i < r->n_prompts)
            OCT_TRY(oct_gen_append(g, i, r->prompts[i].ids, (int64_t)r->prompts[i].n_ids, err));
    }
    return OCT_OK;
}

/* One prompt streamed, or all of --prompts. */
static int one_shot(run_state *r, oct_gen *g, int64_t chunk)
{
    oct_error err = {0};
    if (r->n_prompts > 0 && (int64_t)r->prompts[0].n_ids <= chunk)
        echo(r); /* at once: there will be nothing to say about its progress */
    oct_status s = oct_gen_run(g, &err);
    if (r->progress.what)
        oct_progress_end(&r->progress, false);
    echo(r);
    if (r->json && !g->closed)
        print_json_rest(r, g);
    else if (!r->stream && !g->closed)
        print_rest(r);
    else if (r->last_char && r->last_char != '\n')
        oct_cli_out("\n", 1);
    if (s == OCT_OK && r->n_max != 0 && g->texts[0].end == OCT_END_CONTEXT && r->stream)
        oct_cli_warning("stopped because the context of %lld tokens is full", (long long)g->n_ctx);
    if (s != OCT_OK)
        return oct_cli_fail(&err);
    return oct_cli_out_end();
}

static int generate(run_state *r, oct_model *m, const oct_session_params *p, double t0)
{
    oct_error err = {0};
    oct_session *session = NULL;
    oct_gen g = {.model = m,
                 .n_texts = r->n_prompts > 1 ? r->n_prompts : 1,
                 .n_ctx = p->n_ctx,
                 .step_rows = p->chunk, /* nobody waits for the next token of a text */
                 .n_max = r->n_max,
                 .ignore_eos = r->ignore_eos,
                 .printable = !r->json && isatty(STDOUT_FILENO) == 1,
                 .emit = emit,
                 .token = r->json ? print_token : NULL,
                 .n_top = (int32_t)(r->n_logprobs > 0 ? r->n_logprobs : 0),
                 .logprob = r->n_logprobs >= 0,
                 .ended = ended,
                 .progress = show_progress,
                 .ctx = r};
    int code;
    oct_status s = oct_ranks_session_new(&r->session, m, p, &session, &err);
    g.session = session;
    r->model = m;
    r->gen = &g;
    if (s == OCT_OK)
        s = oct_gen_init(&g, &err);
    if (s == OCT_OK)
        s = start_texts(r, &g, &err);
    if (s != OCT_OK) {
        code = oct_cli_fail(&err);
    } else {
        double load = oct_seconds() - t0;
        r->echo_due = r->stream && r->n_prompts > 0 && !r->no_echo;
        if (r->no_echo || r->json)
            for (int64_t i = 0; i < r->n_prompts; i++)
                r->prompts[i].n = 0;
        code = r->interactive
                   ? oct_interactive(&g, r->session.model, r->n_prompts > 0, !r->no_history)
                   : one_shot(r, &g, p->chunk);
        if (code == OCT_EXIT_OK || code >= 128)
            print_timings(r, &g, p, load);
    }
    oct_gen_free(&g);
    oct_session_free(session);
    return code;
}

static int check_sources(const run_state *r)
{
    int n = (r->prompt != NULL) + (r->file != NULL) + (r->prompts_file != NULL);
    if (n > 1) {
        oct_cli_error("run: only one of -p, -f and --prompts can be given");
        return OCT_EXIT_USAGE;
    }
    if (r->interactive && (r->prompts_file || (r->file && strcmp(r->file, "-") == 0))) {
        oct_cli_error("run: -i goes with -p or -f FILE, not with --prompts or -f -");
        return OCT_EXIT_USAGE;
    }
    if (r->interactive && r->json) {
        oct_cli_error("run: --json is not for -i");
        return OCT_EXIT_USAGE;
    }
    if (r->n_logprobs >= 0 && !r->json) {
        oct_cli_error("run: --logprobs goes with --json");
        return OCT_EXIT_USAGE;
    }
    if (n == 0 && !r->interactive && !r->session.dry_run && isatty(STDIN_FILENO)) {
        oct_cli_error("run: a prompt is missing: -p TEXT, -f FILE, --prompts FILE or -i");
        return OCT_EXIT_USAGE;
    }
    return -1;
}

static int run(run_state *r, oct_model *m, double t0)
{
    oct_error err = {0};
    int64_t n_longest = 0, n_ctx = 0;
    bool any = r->prompt || r->file || r->prompts_file;
    oct_status s = parse_bias(r, m, &err);
    if (s == OCT_OK && (any || (!r->interactive && !r->session.dry_run)))
        s = read_prompts(r, &err);
    if (s == OCT_OK)
        s = encode(r, m, &n_longest, &err);
    if (s == OCT_OK)
        s = choose_ctx(r, m, n_longest, &n_ctx, &err);
    if (s != OCT_OK)
        return oct_cli_fail(&err);
    oct_session_params p;
    int64_t n_batch = r->n_batch ? r->n_batch : DEFAULT_BATCH;
    n_batch = r->n_prompts < n_batch ? r->n_prompts : n_batch;
    oct_cli_session_params(&r->session, n_ctx, n_batch > 1 ? n_batch : 1, &p);
    r->stream = !r->prompts_file && !r->json;
    int code = oct_cli_fits(&r->session, m, &p,
                            oct_scheduler_bytes(oct_model_get_info(m)->n_vocab, p.n_seqs, p.chunk));
    return code >= 0 ? code : generate(r, m, &p, t0);
}

int oct_cmd_run(int argc, char **argv)
{
    run_state r = {
        .n_max = DEFAULT_TOKENS, .temp = 0.7, .top_p = 0.95, .repeat = 1, .n_logprobs = -1};
    oct_model *m = NULL;
    double t0 = oct_seconds();
    int code = parse(&r, argc, argv);
    if (code < 0)
        code = check_sources(&r);
    if (code < 0)
        code = oct_cli_open(&r.session, "run", true, &m);
    if (code >= 0)
        return code;
    if (!r.seed_given)
        r.seed = oct_cli_random() >> 32; /* short enough to type */
    code = run(&r, m, t0);
    for (int64_t i = 0; i < r.n_prompts; i++) {
        free(r.prompts[i].text);
        free(r.prompts[i].ids);
    }
    free(r.prompts);
    free(r.bias);
    oct_ranks_close(m);
    return code;
}
