/* octet quantize: a model file of fewer bits from a model file, and what that costs. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <octet/machine.h>
#include <octet/quantize.h>

#include "cli.h"
#include "cli_session.h"
#include "commands.h"
#include "progress.h"

enum { RULES_MAX = 66 };

typedef struct quantize_state {
    oct_quantize_params params;
    oct_quantize_rule rule[RULES_MAX];
    const char *in, *experts, *attention, *layers, *calibrate, *moments_file, *compare;
    int64_t threads, window, least;
    oct_cli_session session;
    oct_progress progress;
} quantize_state;

/* "q8", "q4" (q4g32), "q4g32", "q4g16"; -1: none of them. */
static int type_of(const char *name, size_t n)
{
    if (n == 2 && memcmp(name, "q4", 2) == 0)
        return type_of("q4g32", 5);
    for (int i = 0; oct_weight_type_name(i); i++)
        if (strlen(oct_weight_type_name(i)) == n && memcmp(oct_weight_type_name(i), name, n) == 0)
            return i;
    return -1;
}

static bool add_rule(quantize_state *r, oct_quantize_rule rule, const char *type, size_t n)
{
    rule.type = type_of(type, n);
    if (rule.type < 0 || r->params.n_rules == RULES_MAX)
        return false;
    r->rule[r->params.n_rules++] = rule;
    return true;
}

/* "0-3=q8,60-63=q4g16,7=q8" */
static bool parse_layers(quantize_state *r, const char *text)
{
    for (const char *p = text; p;) {
        oct_quantize_rule rule = {.experts = true};
        char *end;
        if (!isdigit((unsigned char)*p))
            return false;
        rule.first = rule.last = strtol(p, &end, 10);
        if (*end == '-' && isdigit((unsigned char)end[1]))
            rule.last = strtol(end + 1, &end, 10);
        const char *comma = strchr(end, ',');
        const char *type = end + 1;
        if (*end != '=' || !add_rule(r, rule, type, comma ? (size_t)(comma - type) : strlen(type)))
            return false;
        p = comma ? comma + 1 : NULL;
    }
    return true;
}

static int parse(quantize_state *r, int argc, char **argv)
{
    const oct_opt rows[] = {
        OCT_ROW_TEXT('o', "output", &r->params.out, "FILE",
                     "the model file to make (required); replaced only when the\n"
                     "new one is complete"),
        OCT_ROW_TEXT(0, "experts", &r->experts, "TYPE",
                     "of the experts' matrices: q4g32 or q4 (4.25 bits), q4g16\n"
                     "(4.5 bits), q8 (8 bits) [q4]"),
        OCT_ROW_TEXT(0, "attention", &r->attention, "TYPE",
                     "of the attention's, which are 4 % of Grok-1 and are read for\n"
                     "every token: the same [as they are]"),
        OCT_ROW_TEXT(0, "layers", &r->layers, "A-B=TYPE[,...]",
                     "experts of some layers in another type"),
        OCT_ROW_TEXT(0, "calibrate", &r->calibrate, "TEXT",
                     "run the model over a text (UTF-8, - for stdin) and let what\n"
                     "its experts see steer the rounding; a few tens of thousands\n"
                     "of tokens of the kind that the model is for, 16 MiB at most\n"
                     "(needs 160 MB of memory for each layer of Grok-1)"),
        OCT_ROW_TEXT(0, "moments", &r->moments_file, "FILE",
                     "with --calibrate: keep what was seen in this file; without:\n"
                     "use what is in it"),
        OCT_ROW_INT(0, "least", &r->least, 1, 1000000000, "N",
                    "experts of a layer that saw fewer tokens of the text are\n"
                    "rounded without it, and named [256]"),
        OCT_ROW_TEXT(0, "compare", &r->compare, "TEXT",
                     "run both models over a text, another one, and print how far\n"
                     "their predictions are apart"),
        OCT_ROW_INT(0, "window", &r->window, 2, 2147483647, "N",
                    "tokens of these texts that are one sequence [512]"),
        OCT_ROW_INT('t', "threads", &r->threads, 1, 64, "N", "threads [all processors]"),
    };
    const oct_cli cli = {
        .name = "quantize",
        .synopsis = "MODEL -o FILE [options]",
        .about = "Makes a model file of fewer bits from one of `octet convert`. Weights of 4 bits "
                 "stand\n"
                 "for int8: 32 (or 16) of a channel pick theirs from one of 256 tables of sixteen, "
                 "under\n"
                 "the scales that they had. So the new file computes exactly what its integers "
                 "would in\n"
                 "8 bits, on every machine and any number of ranks. The error of the weights is "
                 "printed\n"
                 "for each kind of matrix. A file of 4 bits with --experts q8 is expanded, without "
                 "loss.",
        .opts = rows,
        .n_opts = sizeof rows / sizeof *rows,
        .notes = "examples:\n"
                 "  octet quantize grok-1.gguf -o grok-1-q4.gguf\n"
                 "  octet quantize grok-1.gguf -o small.gguf --calibrate books.txt "
                 "--moments grok-1.moments\n"
                 "  octet quantize grok-1.gguf -o small.gguf --moments grok-1.moments "
                 "--layers 0-1=q8 \\\n"
                 "      --compare other.txt",
        .max_args = 1,
    };
    int first = argc;
    int code = oct_cli_parse(&cli, argc, argv, &first);
    if (code >= 0)
        return code;
    r->in = first < argc ? argv[first] : NULL;
    if (!r->in || !r->params.out) {
        oct_cli_error("quantize: %s (octet quantize --help shows the usage)",
                      r->in ? "-o FILE is missing" : "which model file?");
        return OCT_EXIT_USAGE;
    }
    return -1;
}

/* What the options ask of a model with so many layers; -1: go on. */
static int make_rules(quantize_state *r, int64_t n_layers)
{
    const oct_quantize_rule experts = {.last = n_layers - 1, .experts = true},
                            attention = {.last = n_layers - 1, .attention = true};
    const char *e = r->experts ? r->experts : "q4", *wrong = NULL;
    if (!add_rule(r, experts, e, strlen(e)))
        wrong = "--experts";
    else if (r->attention && !add_rule(r, attention, r->attention, strlen(r->attention)))
        wrong = "--attention";
    if (wrong) {
        oct_cli_error("quantize: %s '%s', expected q8, q4, q4g32 or q4g16", wrong,
                      wrong[2] == 'e' ? e : r->attention);
        return OCT_EXIT_USAGE;
    }
    if (r->layers && !parse_layers(r, r->layers)) {
        oct_cli_error("quantize: --layers '%s', expected layers and types such as "
                      "0-3=q8,60-63=q4g16",
                      r->layers);
        return OCT_EXIT_USAGE;
    }
    r->params.rule = r->rule;
    return -1;
}

/* ---- texts ----------------------------------------------------------------------------------- */

typedef struct text {
    int32_t *ids; /* free() */
    size_t n;
    oct_session_params session;
    oct_text_params params;
} text;

static void tell_tokens(void *ctx, uint64_t done, uint64_t total)
{
    (void)total;
    oct_progress_update(ctx, done);
}

static oct_status text_read(quantize_state *r, const char *path, const oct_model *m, text *t,
                            oct_error *err)
{
    char *bytes = NULL;
    size_t n = 0;
    oct_error why = {0};
    OCT_TRY(oct_cli_read(path, OCT_CLI_TEXT_BYTES_MAX, &bytes, &n, err));
    oct_status s = oct_encode(m, bytes, n, &t->ids, &t->n, &why);
    free(bytes);
    if (s == OCT_OK && t->n < 2)
        s = oct_fail(&why, OCT_ERR_ARG, "has %zu tokens, at least 2 are needed", t->n);
    if (s != OCT_OK)
        return oct_fail(err, s, "%s: %s", path, why.text);
    const int64_t n_ctx = oct_model_get_info(m)->n_ctx;
    const int64_t window = r->window < n_ctx ? r->window : n_ctx;
    oct_cli_session_params(&r->session, window, 1, &t->session);
    t->params = (oct_text_params){.ids = t->ids,
                                  .n = (int64_t)t->n,
                                  .window = window,
                                  .session = &t->session,
                                  .progress = tell_tokens,
                                  .progress_ctx = &r->progress,
                                  .cancel = oct_cli_cancel_flag()};
    return OCT_OK;
}

/* Moments from a text or a file, or none. */
static oct_status calibrate(quantize_state *r, const oct_model *m, oct_moments **out,
                            oct_error *err)
{
    text t = {0};
    *out = NULL;
    if (!r->calibrate)
        return r->moments_file ? oct_moments_read(r->moments_file, m, out, err) : OCT_OK;
    oct_status s = text_read(r, r->calibrate, m, &t, err);
    if (s == OCT_OK) {
        oct_progress_start_tokens(&r->progress, "calibrating", t.n);
        s = oct_moments_gather(m, &t.params, out, err);
        oct_progress_end(&r->progress, s == OCT_OK);
    }
    if (s == OCT_OK && r->moments_file)
        s = oct_moments_write(*out, r->moments_file, err);
    free(t.ids);
    return s;
}

static oct_status compare(quantize_state *r, const oct_model *m, const text *t, oct_error *err)
{
    oct_model *made;
    oct_compare_report c;
    OCT_TRY(oct_model_open(r->params.out, &made, err));
    oct_progress_start_tokens(&r->progress, "comparing", t->n);
    oct_status s = oct_compare(m, made, &t->params, &c, err);
    oct_progress_end(&r->progress, s == OCT_OK);
    if (s == OCT_OK)
        oct_cli_outf("%s, %lld tokens: KL %.5f (+- %.5f), perplexity %.4f -> %.4f, "
                     "same likeliest token %.2f %%\n",
                     r->compare, (long long)c.n_tokens, c.kl, c.kl_error, c.ppl[0], c.ppl[1],
                     100 * c.same_top);
    oct_model_close(made);
    return s;
}

/* ---- work ------------------------------------------------------------------------------------ */

static void show(const quantize_state *r, const oct_quantize_report *report)
{
    char a[24], b[24];
    for (int k = 0; k < OCT_QUANTIZE_KINDS; k++) {
        const oct_quantize_kind *q = &report->kind[k];
        if (q->n_matrices)
            oct_cli_outf("%-12s %5lld tensors, %s -> %s, weight error %.3f %%, largest %.0f "
                         "steps of int8\n",
                         oct_quantize_kind_name(k), (long long)q->n_matrices,
                         oct_memory_text(q->bytes_before, a), oct_memory_text(q->bytes, b),
                         100 * q->error, q->largest);
    }
    if (r->params.moments)
        oct_cli_outf("calibrated with %lld tokens: %lld experts, %lld not\n",
                     (long long)oct_moments_tokens(r->params.moments),
                     (long long)report->n_calibrated, (long long)report->n_fallen_back);
    fprintf(stderr, "%s -> %s: %s -> %s, verified\n", r->in, r->params.out,
            oct_memory_text(report->bytes_before, a), oct_memory_text(report->bytes, b));
}

/* Neither file that is made replaces what is read, or the other one. */
static oct_status check_outputs(const quantize_state *r, oct_error *err)
{
    const char *in[4] = {r->in};
    size_t n = 1;
    if (r->calibrate)
        in[n++] = r->calibrate;
    if (r->compare)
        in[n++] = r->compare;
    if (r->calibrate && r->moments_file) {
        if (strcmp(r->moments_file, r->params.out) == 0)
            return oct_fail(err, OCT_ERR_ARG, "%s: given both to -o and to --moments",
                            r->params.out);
        OCT_TRY(oct_output_check(r->moments_file, in, n, err));
    }
    if (r->moments_file)
        in[n++] = r->moments_file;
    return oct_output_check(r->params.out, in, n, err);
}

static oct_status quantize(quantize_state *r, const oct_model *m, oct_error *err)
{
    oct_quantize_report report = {0};
    oct_moments *moments = NULL;
    OCT_TRY(calibrate(r, m, &moments, err));
    oct_status s = check_outputs(r, err); /* names of one file that was not there before */
    if (s != OCT_OK) {
        oct_moments_free(moments);
        return s;
    }
    r->params.moments = moments;
    r->params.progress = oct_progress_tell;
    r->params.progress_ctx = &r->progress;
    r->progress = (oct_progress){0};
    s = oct_quantize(&r->params, &report, err);
    oct_progress_made(&r->progress, s == OCT_OK, &report.warnings);
    if (s == OCT_OK)
        show(r, &report);
    oct_moments_free(moments);
    return s;
}

/* A text to compare by is read first: hours of work should not end with what is wrong with it. */
static oct_status run(quantize_state *r, const oct_model *m, oct_error *err)
{
    text t = {0};
    OCT_TRY(check_outputs(r, err));
    oct_status s = r->compare ? text_read(r, r->compare, m, &t, err) : OCT_OK;
    if (s == OCT_OK)
        s = quantize(r, m, err);
    if (s == OCT_OK && r->compare)
        s = compare(r, m, &t, err);
    free(t.ids);
    return s;
}

int oct_cmd_quantize(int argc, char **argv)
{
    quantize_state r = {.window = 512};
    oct_error err = {0};
    oct_model *m;
    int code = parse(&r, argc, argv);
    if (code >= 0)
        return code;
    if (oct_model_open(r.in, &m, &err) != OCT_OK)
        return oct_cli_fail(&err);
    code = make_rules(&r, oct_model_get_info(m)->n_layers);
    if (code < 0) {
        r.session.n_threads = r.threads;
        r.params.model = m;
        r.params.model_path = r.in;
        r.params.n_threads = (int)r.threads;
        r.params.least_seen = r.least;
        r.params.cancel = oct_cli_cancel_flag();
        oct_status s = run(&r, m, &err);
        code = s == OCT_OK ? oct_cli_out_end() : oct_cli_fail(&err);
    }
    oct_model_close(m);
    return code;
}
