/* octet ppl: perplexity of a text, in consecutive windows. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "commands.h"
#include "cli_session.h"
#include "progress.h"
#include "ranks.h"

typedef struct ppl_state {
    oct_cli_session session;
    const char *file;
    int64_t window;
    bool json;
    double nll; /* sum of -ln p */
    int64_t n_scored;
} ppl_state;

static int parse(ppl_state *r, int argc, char **argv)
{
    const oct_opt rows[] = {
        OCT_CLI_MODEL_ROW(r->session),
        OCT_ROW_TEXT('f', "file", &r->file, "FILE",
                     "the text, UTF-8, 16 MiB at most (which takes 1.6 GB of memory);\n"
                     "- for stdin (required)"),
        OCT_ROW_INT(0, "window", &r->window, 2, 2147483647, "N", "tokens of a window [512]"),
        OCT_ROW_FLAG(0, "json", &r->json, "print one JSON object with the keys ppl, nll, tokens"),
        OCT_CLI_SESSION_ROWS(r->session),
    };
    const oct_cli cli = {
        .name = "ppl",
        .synopsis = "-m MODEL -f FILE [options]",
        .about =
            "Perplexity of a text. The text is encoded once and cut into consecutive windows;\n"
            "each is scored on its own from its second token on, the short last one too.\n"
            "nll is the mean of -ln p in nats, ppl = exp(nll), tokens is how many were scored.",
        .opts = rows,
        .n_opts = sizeof rows / sizeof *rows,
        .notes = "examples:\n"
                 "  octet ppl -m grok-1.gguf -f heldout.txt\n"
                 "  octet ppl -m grok-1.gguf -f heldout.txt --window 2048 --json | jq .ppl",
    };
    return oct_cli_parse(&cli, argc, argv, NULL);
}

/* Scores one window of n tokens; logits has room for chunk rows. */
static oct_status score(ppl_state *r, oct_session *s, const int32_t *ids, int64_t n, int64_t chunk,
                        int64_t n_vocab, float *logits, const uint8_t *want, oct_error *err)
{
    oct_session_truncate(s, 0, 0);
    for (int64_t at = 0; at < n - 1; at += chunk) {
        int64_t part = n - 1 - at < chunk ? n - 1 - at : chunk;
        oct_batch b = {part, ids + at, NULL, want};
        OCT_TRY(oct_eval(s, &b, logits, err));
        for (int64_t i = 0; i < part; i++)
            r->nll -= oct_logprob(logits + i * n_vocab, n_vocab, ids[at + i + 1]);
        r->n_scored += part;
    }
    return OCT_OK;
}

static oct_status score_all(ppl_state *r, oct_model *m, const oct_session_params *p,
                            const int32_t *ids, int64_t n, oct_error *err)
{
    int64_t n_vocab = oct_model_get_info(m)->n_vocab;
    oct_session *s = NULL;
    float *logits = calloc((size_t)p->chunk, (size_t)n_vocab * sizeof *logits);
    uint8_t *want = malloc((size_t)p->chunk);
    oct_status status = OCT_OK;
    if (!logits || !want)
        status = oct_fail(err, OCT_ERR_MEMORY, "no memory for the logits of %lld tokens",
                          (long long)p->chunk);
    if (status == OCT_OK) {
        memset(want, 1, (size_t)p->chunk);
        status = oct_ranks_session_new(&r->session, m, p, &s, err);
    }
    oct_progress progress;
    oct_progress_start_tokens(&progress, "scoring", (uint64_t)n);
    for (int64_t at = 0; status == OCT_OK && n - at >= 2; at += r->window) {
        int64_t len = n - at < r->window ? n - at : r->window;
        status = score(r, s, ids + at, len, p->chunk, n_vocab, logits, want, err);
        oct_progress_update(&progress, (uint64_t)(at + len));
    }
    oct_progress_end(&progress, status == OCT_OK);
    oct_session_free(s);
    free(want);
    free(logits);
    return status;
}

static int report(const ppl_state *r)
{
    double nll = r->nll / (double)r->n_scored;
    if (!isfinite(nll)) {
        oct_cli_error("the likelihood of the text is not a number");
        return OCT_EXIT_ERROR;
    }
    if (!r->json) {
        oct_cli_outf("ppl %.6f   nll %.8f   tokens %lld\n", exp(nll), nll, (long long)r->n_scored);
        return oct_cli_out_end();
    }
    json_t *o = json_pack("{s:f, s:f, s:I}", "ppl", exp(nll), "nll", nll, "tokens",
                          (json_int_t)r->n_scored);
    int code = oct_cli_out_json(o, JSON_REAL_PRECISION(17));
    json_decref(o);
    return code;
}

static int run(ppl_state *r, oct_model *m)
{
    const oct_model_info *info = oct_model_get_info(m);
    oct_error err = {0};
    char *text = NULL;
    int32_t *ids = NULL;
    size_t n = 0, n_ids = 0;
    oct_session_params p;
    oct_cli_session_params(&r->session, r->window, 1, &p);
    if (p.chunk > r->window)
        p.chunk = r->window;
    if (r->window > info->n_ctx) {
        oct_cli_error("--window %lld: the model has a context of %lld tokens", (long long)r->window,
                      (long long)info->n_ctx);
        return OCT_EXIT_ERROR;
    }
    uint64_t extra = (uint64_t)p.chunk * (uint64_t)info->n_vocab * sizeof(float);
    int code = oct_cli_fits(&r->session, m, &p, extra);
    if (code >= 0)
        return code;
    oct_status s = oct_cli_read(r->file, OCT_CLI_TEXT_BYTES_MAX, &text, &n, &err);
    if (s == OCT_OK && oct_encode(m, text, n, &ids, &n_ids, &err) != OCT_OK) {
        oct_cli_error("%s: %s", r->file, err.text);
        free(text);
        return OCT_EXIT_ERROR;
    }
    free(text);
    if (s == OCT_OK && n_ids < 2)
        s = oct_fail(&err, OCT_ERR_ARG, "%s: has %zu token%s, at least 2 are needed", r->file,
                     n_ids, n_ids == 1 ? "" : "s");
    if (s == OCT_OK)
        s = score_all(r, m, &p, ids, (int64_t)n_ids, &err);
    free(ids);
    return s == OCT_OK ? report(r) : oct_cli_fail(&err);
}

int oct_cmd_ppl(int argc, char **argv)
{
    ppl_state r = {.window = 512};
    oct_model *m = NULL;
    int code = parse(&r, argc, argv);
    if (code < 0 && !r.file && !r.session.dry_run) {
        oct_cli_error("ppl: -f FILE is missing (octet ppl --help shows the usage)");
        return OCT_EXIT_USAGE;
    }
    if (code < 0)
        code = oct_cli_open(&r.session, "ppl", true, &m);
    if (code >= 0)
        return code;
    code = run(&r, m);
    oct_ranks_close(m);
    return code;
}
