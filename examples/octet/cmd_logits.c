/* octet logits: the model's raw scores for given token ids. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include <octet/convert.h>

#include "cli.h"
#include "commands.h"
#include "cli_session.h"
#include "ranks.h"

enum { IDS_BYTES_MAX = 1 << 30 };

typedef struct logits_state {
    oct_cli_session session;
    const char *ids_file, *out;
    int32_t *token, *seq;
    int64_t n, n_seqs, n_longest;
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

/* ---- input ---------------------------------------------------------------------------------- */

static oct_status push(logits_state *r, int64_t *room, int32_t id, oct_error *err)
{
    if (r->n == *room) {
        int64_t more = *room ? 2 * *room : 1024;
        int32_t *token = realloc(r->token, (size_t)more * sizeof *token);
        if (token)
            r->token = token;
        int32_t *seq = token ? realloc(r->seq, (size_t)more * sizeof *seq) : NULL;
        if (!seq)
            return oct_fail(err, OCT_ERR_MEMORY, "no memory for %lld ids", (long long)more);
        r->seq = seq;
        *room = more;
    }
    r->token[r->n] = id;
    r->seq[r->n++] = (int32_t)r->n_seqs;
    return OCT_OK;
}

static const char *ids_name(const logits_state *r)
{
    return strcmp(r->ids_file, "-") == 0 ? "standard input" : r->ids_file;
}

/* Reads "1 2 3\n4,5\n": every number must be an id of the vocabulary. */
static oct_status parse_ids(logits_state *r, const char *text, size_t n, int64_t n_vocab,
                            oct_error *err)
{
    int64_t room = 0, line = 1, start = 0;
    for (size_t i = 0; i <= n; i++) {
        char c = text[i]; /* the text ends with a NUL */
        if (i == n || c == '\n') {
            int64_t len = r->n - start;
            r->n_longest = len > r->n_longest ? len : r->n_longest;
            r->n_seqs += len > 0;
            start = r->n;
            line++;
        } else if (isdigit((unsigned char)c)) {
            int64_t id = 0;
            while (isdigit((unsigned char)text[i])) {
                id = id > INT32_MAX ? id : id * 10 + (text[i] - '0');
                i++;
            }
            i--;
            if (id >= n_vocab)
                return oct_fail(err, OCT_ERR_ARG,
                                "%s: line %lld: expected ids from 0 to %lld, "
                                "found %s%lld",
                                ids_name(r), (long long)line, (long long)n_vocab - 1,
                                id > INT32_MAX ? "at least " : "", (long long)id);
            OCT_TRY(push(r, &room, (int32_t)id, err));
        } else if (!strchr(" \t\r,", c) || c == 0) {
            return oct_fail(err, OCT_ERR_ARG, "%s: line %lld: expected token ids, found '%c'",
                            ids_name(r), (long long)line, isprint((unsigned char)c) ? c : '?');
        }
    }
    if (r->n == 0)
        return oct_fail(err, OCT_ERR_ARG, "%s: holds no token ids", ids_name(r));
    return OCT_OK;
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
    uint64_t bytes = HEADER_BYTES + (uint64_t)r->n * row_bytes;
    make_header(header, r->n, (int64_t)(row_bytes / sizeof(float)));
    OCT_TRY(oct_output_check(r->out, (const char *const[]){r->ids_file, r->session.model}, 2, err));
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
    for (int64_t at = 0; status == OCT_OK && at < r->n; at += p->chunk) {
        int64_t part = r->n - at < p->chunk ? r->n - at : p->chunk;
        oct_batch b = {part, r->token + at, r->seq + at, want};
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
    oct_status s = oct_cli_read(r->ids_file, IDS_BYTES_MAX, &text, &n, &err);
    if (s == OCT_OK)
        s = parse_ids(r, text, n, info->n_vocab, &err);
    free(text);
    if (s == OCT_OK && r->n_longest > info->n_ctx)
        s = oct_fail(&err, OCT_ERR_ARG,
                     "%s: a sequence has %lld tokens, but the model has a "
                     "context of %lld",
                     ids_name(r), (long long)r->n_longest, (long long)info->n_ctx);
    if (s != OCT_OK)
        return oct_cli_fail(&err);
    oct_session_params p;
    oct_cli_session_params(&r->session, r->n_longest, r->n_seqs, &p);
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
    free(r.token);
    free(r.seq);
    oct_ranks_close(m);
    return code;
}
