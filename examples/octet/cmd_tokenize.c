/* octet tokenize: text to token ids and back. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli_session.h"
#include "commands.h"
#include "ids.h"

typedef struct tokenize_state {
    oct_cli_session session;
    const char *text, *file, *ids_file;
    bool json;
} tokenize_state;

static int parse(tokenize_state *t, int argc, char **argv)
{
    const oct_opt rows[] = {
        OCT_CLI_MODEL_ROW(t->session),
        OCT_ROW_TEXT('p', "prompt", &t->text, "TEXT", "the text"),
        OCT_ROW_TEXT('f', "file", &t->file, "FILE",
                     "read it from a file, 16 MiB at most (which takes 1.6 GB of\n"
                     "memory), or from stdin for -"),
        OCT_ROW_TEXT(0, "ids", &t->ids_file, "FILE",
                     "the other way: ids, as `octet logits` takes them, to text"),
        OCT_ROW_FLAG(0, "json", &t->json, "print JSON, with the bytes of each token as text"),
    };
    const oct_cli cli = {
        .name = "tokenize",
        .synopsis = "-m MODEL [-p TEXT | -f FILE | --ids FILE] [options]",
        .about =
            "Prints the token ids of a text, all of it, on a line; or the text of ids, as it is,\n"
            "sequences separated by a newline. Without -p, -f and --ids the text is read from\n"
            "stdin. Only the file's header and its tokenizer are read.",
        .opts = rows,
        .n_opts = sizeof rows / sizeof *rows,
        .notes =
            "examples:\n"
            "  octet tokenize -m grok-1.gguf -p \"The answer to life\"\n"
            "  octet tokenize -m grok-1.gguf -f story.txt | octet logits -m grok-1.gguf --ids - "
            "-o s.npy\n"
            "  echo 17 4 256 | octet tokenize -m grok-1.gguf --ids -",
    };
    return oct_cli_parse(&cli, argc, argv, NULL);
}

static int print_json(const oct_model *m, const int32_t *ids, int64_t n, const char *text,
                      size_t n_text)
{
    json_t *list = json_array(), *pieces = json_array();
    for (int64_t i = 0; i < n; i++) {
        size_t n_bytes = 0;
        const char *bytes = oct_token_bytes(m, ids[i], &n_bytes);
        json_array_append_new(list, json_integer(ids[i]));
        json_array_append_new(pieces, oct_cli_json_bytes(bytes, n_bytes));
    }
    json_t *all =
        json_pack("{s:o, s:o, s:s%}", "ids", list, "pieces", pieces, "text", text, n_text);
    int code = oct_cli_out_json(all, JSON_COMPACT);
    json_decref(all);
    return code;
}

static int encode(const tokenize_state *t, const oct_model *m, const char *text, size_t n)
{
    oct_error err = {0};
    int32_t *ids = NULL;
    size_t n_ids = 0;
    if (oct_encode(m, text, n, &ids, &n_ids, &err) != OCT_OK)
        return oct_cli_fail(&err);
    int code;
    if (t->json) {
        code = print_json(m, ids, (int64_t)n_ids, text, n);
    } else {
        for (size_t i = 0; i < n_ids && oct_cli_outf("%s%d", i ? " " : "", ids[i]); i++)
            ;
        oct_cli_out("\n", 1);
        code = oct_cli_out_end();
    }
    free(ids);
    return code;
}

/* The text of one sequence, in JSON repaired where it is no UTF-8. */
static int decode_one(const tokenize_state *t, const oct_model *m, const int32_t *ids, int64_t n,
                      bool first)
{
    oct_error err = {0};
    char *text = NULL;
    size_t n_text = 0;
    int code = OCT_EXIT_OK;
    if (oct_decode(m, ids, (size_t)n, &text, &n_text, &err) != OCT_OK)
        return oct_cli_fail(&err);
    if (t->json) {
        code = print_json(m, ids, n, text, n_text);
    } else {
        if (!first)
            oct_cli_out("\n", 1);
        oct_cli_out(text, n_text);
    }
    free(text);
    return code;
}

static int decode(const tokenize_state *t, const oct_model *m, const char *text, size_t n)
{
    oct_error err = {0};
    oct_ids ids;
    int code = OCT_EXIT_OK;
    oct_status s = oct_ids_parse(oct_ids_name(t->ids_file), text, n, oct_model_get_info(m)->n_vocab,
                                 &ids, &err);
    if (s != OCT_OK)
        code = oct_cli_fail(&err);
    for (int64_t at = 0, end; at < ids.n && code == OCT_EXIT_OK; at = end) {
        for (end = at; end < ids.n && ids.seq[end] == ids.seq[at];)
            end++;
        code = decode_one(t, m, ids.token + at, end - at, at == 0);
    }
    oct_ids_free(&ids);
    return code == OCT_EXIT_OK ? oct_cli_out_end() : code;
}

static int run(const tokenize_state *t, const oct_model *m)
{
    oct_error err = {0};
    char *text = NULL;
    size_t n = 0;
    if (t->text)
        return encode(t, m, t->text, strlen(t->text));
    const char *path = t->ids_file ? t->ids_file : t->file ? t->file : "-";
    const size_t most = t->ids_file ? OCT_IDS_BYTES_MAX : OCT_CLI_TEXT_BYTES_MAX;
    if (oct_cli_read(path, most, &text, &n, &err) != OCT_OK)
        return oct_cli_fail(&err);
    int code = (t->ids_file ? decode : encode)(t, m, text, n);
    free(text);
    return code;
}

int oct_cmd_tokenize(int argc, char **argv)
{
    tokenize_state t = {0};
    oct_model *m = NULL;
    int code = parse(&t, argc, argv);
    if (code >= 0)
        return code;
    const int n = (t.text != NULL) + (t.file != NULL) + (t.ids_file != NULL);
    if (n > 1 || (n == 0 && isatty(STDIN_FILENO))) {
        oct_cli_error("tokenize: %s", n > 1 ? "only one of -p, -f and --ids can be given"
                                            : "a text is missing: -p TEXT, -f FILE or --ids FILE");
        return OCT_EXIT_USAGE;
    }
    code = oct_cli_open(&t.session, "tokenize", true, &m);
    if (code >= 0)
        return code;
    code = run(&t, m);
    oct_model_close(m);
    return code;
}
