/* octet logits: the model's raw scores for given token ids. */
#include <stdlib.h>
#include <string.h>

#include <octet/convert.h>

#include "cli.h"
#include "commands.h"
#include "cli_session.h"
#include "ids.h"
#include "ranks.h"

typedef struct logits_state {
    oct_cli_session session;
    const char *ids_file, *out;
    oct_ids ids;
} logits_state;

static int parse(logits_state *r, int argc, char **argv)
{
    const oct_opt rows[] = {
        OCT_CLI_MODEL_ROW(r->session),
        OCT_ROW_TEXT(0, "ids", &r->ids_file, "FILE",
                     "token ids, one sequence a line, separated by spaces or\n"
                     "commas; empty lines do not count; - for stdin (required)"),
        OCT_ROW_TEXT('o', "output", &r->out, "FILE", "the .npy file to write (required)"),
        OCT_CLI_SESSION_ROWS(r->session),
    };
    const oct_cli cli = {
        .name = "logits",
        .synopsis = "-m MODEL --ids FILE -o OUT.npy [options]",
        .about =
            "Writes the scores before softmax of the token after each position, for tests and\n"
            "research. All sequences run as one batch. The file is a float32 array\n"
            "[positions of all sequences, vocabulary], in the order of the input. It appears\n"
            "under its name when it is complete.",
        .opts = rows,
        .n_opts = sizeof rows / sizeof *rows,
        .notes = "examples:\n"
                 "  echo '17 4 256' | octet logits -m grok-1.gguf --ids - -o logits.npy\n"
                 "  python3 -c 'import numpy; print(numpy.load(\"logits.npy\").argmax(1))'",
    };
    return oct_cli_parse(&cli, argc, argv, NULL);
}

/* ---- output --------------------------------------------------------------------------------- */

enum { HEADER_BYTES = 128 };

/* Format 1.0 of numpy's .npy: magic, version, header length, a Python dictionary padded so that the
 * data starts at a multiple of 64. */
static void make_header(char header[HEADER_BYTES], int64_t rows, int64_t columns)
{
    static const char magic[10] = "\x93NUMPY\x01\x00\x76\x00"; /* 0x76 = 128 - 10 bytes */
    memset(header, ' ', HEADER_BYTES);
    memcpy(header, magic, sizeof magic);
    int n = snprintf(header + 10, HEADER_BYTES - 10,
                     "{'descr': '<f4', 'fortran_order': False, 'shape': (%lld, %lld), }",
                     (long long)rows, (long long)columns);
    header[10 + n] = ' ';
    header[HEADER_BYTES - 1] = '\n';
}

static oct_status begin(const logits_state *r, size_t row_bytes, oct_output *o, oct_error *err)
{
    char header[HEADER_BYTES];
    uint64_t bytes = HEADER_BYTES + (uint64_t)r->ids.n * row_bytes;
    make_header(header, r->ids.n, (int64_t)(row_bytes / sizeof(float)));
    char model[PATH_MAX];
    const char *const inputs[] = {r->ids_file, oct_ranks_path(r->session.model, model)};
    OCT_TRY(oct_output_check(r->out, inputs, 2, err));
    OCT_TRY(oct_output_create(o, r->out, bytes, NULL, err));
    oct_cli_temp_file(o->temp);
    return oct_output_write(o, header, sizeof header, 0, err);
}

/* Gives the file its name, or removes it after an error. */
static oct_status end(oct_output *o, oct_status s, oct_error *err)
{
    if (s == OCT_OK)
        s = oct_output_publish(o, err);
    oct_output_close(o);
    oct_cli_temp_file(NULL);
    return s;
}

/* ---- work ----------------------------------------------------------------------------------- */

static oct_status evaluate(const logits_state *r, oct_model *m, const oct_session_params *p,
                           const oct_output *o, oct_error *err)
{
    const size_t row_bytes = (size_t)oct_model_get_info(m)->n_vocab * sizeof(float);
    float *logits = calloc((size_t)p->chunk, row_bytes);
    uint8_t *want = malloc((size_t)p->chunk);
    oct_session *s = NULL;
    oct_status status = OCT_OK;
    if (!logits || !want)
        status = oct_fail(err, OCT_ERR_MEMORY, "no memory for the logits of %lld tokens",
                          (long long)p->chunk);
    if (status == OCT_OK) {
        memset(want, 1, (size_t)p->chunk);
        status = oct_ranks_session_new(&r->session, m, p, &s, err);
    }
    for (int64_t at = 0; status == OCT_OK && at < r->ids.n; at += p->chunk) {
        int64_t part = r->ids.n - at < p->chunk ? r->ids.n - at : p->chunk;
        oct_batch b = {part, r->ids.token + at, r->ids.seq + at, want};
        status = oct_eval(s, &b, logits, err);
        if (status == OCT_OK)
            status = oct_output_write(o, logits, row_bytes * (size_t)part,
                                      HEADER_BYTES + (uint64_t)at * row_bytes, err);
    }
    oct_session_free(s);
    free(want);
    free(logits);
    return status;
}

static int run(logits_state *r, oct_model *m)
{
    const oct_model_info *info = oct_model_get_info(m);
    oct_error err = {0};
    char *text = NULL;
    size_t n = 0;
    oct_status s = oct_cli_read(r->ids_file, OCT_IDS_BYTES_MAX, &text, &n, &err);
    if (s == OCT_OK)
        s = oct_ids_parse(oct_ids_name(r->ids_file), text, n, info->n_vocab, &r->ids, &err);
    free(text);
    if (s == OCT_OK && r->ids.n_longest > info->n_ctx)
        s = oct_fail(&err, OCT_ERR_ARG,
                     "%s: a sequence has %lld tokens, but the model has a "
                     "context of %lld",
                     oct_ids_name(r->ids_file), (long long)r->ids.n_longest,
                     (long long)info->n_ctx);
    if (s != OCT_OK)
        return oct_cli_fail(&err);
    oct_session_params p;
    oct_cli_session_params(&r->session, r->ids.n_longest, r->ids.n_seqs, &p);
    int code = oct_cli_fits(&r->session, m, &p,
                            (uint64_t)p.chunk * (uint64_t)info->n_vocab * sizeof(float));
    if (code >= 0)
        return code;
    oct_output o = {.fd = -1};
    s = begin(r, (size_t)info->n_vocab * sizeof(float), &o, &err);
    if (s == OCT_OK)
        s = evaluate(r, m, &p, &o, &err);
    s = end(&o, s, &err);
    return s == OCT_OK ? oct_cli_out_end() : oct_cli_fail(&err);
}

int oct_cmd_logits(int argc, char **argv)
{
    logits_state r = {0};
    oct_model *m = NULL;
    int code = parse(&r, argc, argv);
    if (code < 0 && (!r.ids_file || (!r.out && !r.session.dry_run))) {
        oct_cli_error("logits: %s is missing (octet logits --help shows the usage)",
                      r.ids_file ? "-o OUT.npy" : "--ids FILE");
        return OCT_EXIT_USAGE;
    }
    if (code < 0)
        code = oct_cli_open(&r.session, "logits", false, &m);
    if (code >= 0)
        return code;
    code = run(&r, m);
    oct_ids_free(&r.ids);
    oct_ranks_close(m);
    return code;
}
