/* interactive.c: the conversation: lines, answers, commands. */
#include "interactive.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <octet/convert.h>

#include "cli_session.h"
#include "line_source.h"
#include "ranks.h"

enum { TEXT_BYTES_MAX = 64 << 20 };

/* Generates what follows. False: the program has to end with *code. */
static bool answer(oct_gen *g, int *code)
{
    oct_error err = {0};
    oct_status s = oct_gen_run(g, &err);
    if (g->closed)
        return false;
    oct_cli_out("\n", 1);
    if (s == OCT_ERR_CANCELLED && oct_cli_interrupt_code() == OCT_EXIT_INTERRUPTED) {
        oct_cli_cancel_reset();
        return true;
    }
    if (s != OCT_OK) {
        *code = oct_cli_fail(&err);
        return false;
    }
    if (g->texts[0].end == OCT_END_CONTEXT)
        oct_cli_warning("the context of %lld tokens is full; /reset starts a new text",
                        (long long)g->n_ctx);
    return true;
}

/* Adds tokens to the text, if there is room for them. */
static oct_status append(oct_gen *g, const char *what, const int32_t *ids, int64_t n_ids,
                         oct_error *err)
{
    const oct_gen_text *t = &g->texts[0];
    if (n_ids > g->n_ctx - t->n)
        return oct_fail(err, OCT_ERR_ARG,
                        "%s has %lld tokens, but only %lld of the context's %lld are free; /reset "
                        "starts a new text",
                        what, (long long)n_ids, (long long)(g->n_ctx > t->n ? g->n_ctx - t->n : 0),
                        (long long)g->n_ctx);
    return oct_gen_append(g, 0, ids, n_ids, err);
}

static oct_status append_text(oct_gen *g, const char *what, const char *text, size_t n,
                              oct_error *err)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    if (oct_cli_too_long(g->model, n))
        return oct_fail(err, OCT_ERR_ARG, "%zu bytes: more than the context of %lld tokens holds",
                        n, (long long)oct_model_get_info(g->model)->n_ctx);
    OCT_TRY(oct_encode(g->model, text, n, &ids, &n_ids, err));
    oct_status s = append(g, what, ids, (int64_t)n_ids, err);
    free(ids);
    return s;
}

/* Adds what was typed to the text. After the first turn it begins on a new line, as on the
 * screen. */
static bool add_line(oct_gen *g, const char *line, size_t n)
{
    oct_error err = {0};
    char *text = malloc(n + 2);
    if (!text) {
        oct_cli_error("no memory for a line of %zu bytes", n);
        return false;
    }
    size_t skip = g->texts[0].n > 0 ? 1 : 0;
    text[0] = '\n';
    memcpy(text + skip, line, n);
    oct_status s = append_text(g, "the line", text, n + skip, &err);
    free(text);
    if (s != OCT_OK)
        oct_cli_error("%s", err.text);
    return s == OCT_OK;
}

/* ---- texts in files -------------------------------------------------------------------------- */

/* A file that appears when it is complete; not in place of the model. */
static oct_status write_file(const char *path, const char *model, const char *text, size_t n,
                             oct_error *err)
{
    char room[PATH_MAX];
    const char *const inputs[] = {oct_ranks_path(model, room)};
    oct_output o = {.fd = -1};
    OCT_TRY(oct_output_check(path, inputs, 1, err));
    oct_status s = oct_output_create(&o, path, n, NULL, err);
    oct_cli_temp_file(o.temp);
    if (s == OCT_OK)
        s = oct_output_write(&o, text, n, 0, err);
    if (s == OCT_OK)
        s = oct_output_publish(&o, err);
    oct_output_close(&o);
    oct_cli_temp_file(NULL);
    return s;
}

static void fingerprint_of(const oct_model *m, char out[24])
{
    snprintf(out, 24, "%016" PRIx64, oct_model_get_info(m)->fingerprint);
}

/* The tokens, which a text alone does not tell, with the model that they are of; and the text,
 * for people and other models. */
static oct_status save(const oct_gen *g, const char *model, const char *path, oct_error *err)
{
    const oct_gen_text *t = &g->texts[0];
    char *text = NULL, print[24];
    size_t n = 0;
    OCT_TRY(oct_decode(g->model, t->ids, (size_t)t->n, &text, &n, err));
    (void)oct_cli_json_lost();
    json_t *ids = json_array();
    for (int64_t i = 0; i < t->n; i++)
        json_array_append_new(ids, json_integer(t->ids[i]));
    fingerprint_of(g->model, print);
    json_t *all = json_pack("{s:s, s:o, s:o}", "octet_text", print, "text",
                            oct_cli_json_bytes(text, n), "ids", ids);
    char *line = all ? json_dumps(all, JSON_COMPACT) : NULL;
    json_decref(all);
    free(text);
    if (oct_cli_json_lost() || !line) {
        free(line);
        return oct_fail(err, OCT_ERR_MEMORY, "no memory to save the text");
    }
    oct_status s = write_file(path, model, line, strlen(line), err);
    free(line);
    return s;
}

/* The tokens of a saved text; *out stays NULL if they are none of this model. */
static oct_status ids_of(const oct_gen *g, const json_t *saved, int32_t **out, int64_t *n,
                         oct_error *err)
{
    const json_t *ids = json_object_get(saved, "ids");
    const char *of = json_string_value(json_object_get(saved, "octet_text"));
    const oct_model_info *info = oct_model_get_info(g->model);
    char print[24];
    fingerprint_of(g->model, print);
    *n = (int64_t)json_array_size(ids);
    if (!of || strcmp(of, print) != 0)
        return OCT_OK;
    *out = malloc((size_t)*n * sizeof **out + 1);
    if (!*out)
        return oct_fail(err, OCT_ERR_MEMORY, "no memory for %lld tokens", (long long)*n);
    for (int64_t i = 0; *out && i < *n; i++) {
        const json_t *v = json_array_get(ids, (size_t)i);
        const json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= info->n_vocab || id == info->pad_id) {
            free(*out);
            *out = NULL;
        } else {
            (*out)[i] = (int32_t)id;
        }
    }
    return OCT_OK;
}

/* What /save wrote, or any other text. The text so far is gone, unless the file cannot be had. */
static oct_status load(oct_gen *g, const char *path, oct_error *err)
{
    char *file = NULL;
    size_t n = 0;
    int32_t *ids = NULL;
    int64_t n_ids = 0;
    size_t n_encoded = 0;
    OCT_TRY(oct_cli_read(path, TEXT_BYTES_MAX, &file, &n, err));
    (void)oct_cli_json_lost();
    json_t *saved = json_loadb(file, n, 0, NULL);
    const json_t *text = json_object_get(saved, "text");
    const bool is_saved = json_object_get(saved, "octet_text") && json_is_string(text);
    oct_status s = OCT_OK;
    if (oct_cli_json_lost()) /* it may be one, for all that is known */
        s = oct_fail(err, OCT_ERR_MEMORY, "%s: no memory to read it", path);
    else if (is_saved)
        s = ids_of(g, saved, &ids, &n_ids, err);
    const bool exact = ids != NULL;
    if (s == OCT_OK && !exact)
        s = oct_encode(g->model, is_saved ? json_string_value(text) : file,
                       is_saved ? json_string_length(text) : n, &ids, &n_encoded, err);
    n_ids = exact ? n_ids : (int64_t)n_encoded;
    if (s == OCT_OK && n_ids > g->n_ctx)
        s = oct_fail(err, OCT_ERR_ARG, "%s: %lld tokens, but the context holds %lld", path,
                     (long long)n_ids, (long long)g->n_ctx);
    if (s == OCT_OK) {
        oct_gen_reset(g, 0);
        s = oct_gen_append(g, 0, ids, n_ids, err);
    }
    if (s == OCT_OK)
        fprintf(stderr, "(%lld tokens%s; an empty line goes on)\n", (long long)n_ids,
                is_saved && !exact ? ", anew from the text of another model" : "");
    free(ids);
    json_decref(saved);
    free(file);
    return s;
}

/* ---- commands -------------------------------------------------------------------------------- */

/* Whether the line is this command; rest: the word behind it, without blanks around it, cut off
 * if no path is so long. */
static bool is_command(const char *line, size_t n, const char *name, char rest[PATH_MAX])
{
    const size_t k = strlen(name);
    rest[0] = 0;
    if (n < k || memcmp(line, name, k) != 0 || (n > k && line[k] != ' '))
        return false;
    size_t from = k, to = n;
    while (from < to && line[from] == ' ')
        from++;
    while (to > from && line[to - 1] == ' ')
        to--;
    snprintf(rest, PATH_MAX, "%.*s", (int)(to - from < PATH_MAX ? to - from : PATH_MAX),
             line + from);
    return true;
}

static void file_command(oct_gen *g, const char *model, const char *name, const char *path,
                         bool saves)
{
    oct_error err = {0};
    if (!*path)
        oct_cli_error("%s: the name of a file is missing", name);
    else if (strlen(path) == PATH_MAX - 1)
        oct_cli_error("%s: the name of the file is too long", name);
    else if ((saves ? save(g, model, path, &err) : load(g, path, &err)) != OCT_OK)
        oct_cli_error("%s", err.text);
    else if (saves)
        fprintf(stderr, "(%lld tokens saved)\n", (long long)g->texts[0].n);
}

/* A line that starts with '/'. False: end. */
static bool command(oct_gen *g, const char *model, const char *line, size_t n)
{
    char rest[PATH_MAX];
    bool go = true;
    if (is_command(line, n, "/quit", rest)) {
        go = false;
    } else if (is_command(line, n, "/reset", rest)) {
        oct_gen_reset(g, 0);
        fprintf(stderr, "(new text)\n");
    } else if (is_command(line, n, "/save", rest)) {
        file_command(g, model, "/save", rest, true);
    } else if (is_command(line, n, "/load", rest)) {
        file_command(g, model, "/load", rest, false);
    } else {
        fprintf(stderr, "/reset      start a new text\n"
                        "/save FILE  keep the text with its tokens\n"
                        "/load FILE  go on with a text that was kept, or any other\n"
                        "/quit       end (or Ctrl-D)\n"
                        "Ctrl-C      stop the generation; an empty line goes on with it\n"
                        "What is pasted is one message, however many lines it has.\n");
    }
    return go;
}

int oct_interactive(oct_gen *g, const char *model, bool first, bool history)
{
    if (!oct_cli_converse())
        return oct_cli_fail(&(oct_error){.status = OCT_ERR_CANCELLED});
    int code = OCT_EXIT_OK;
    bool go = first ? answer(g, &code) : true;
    oct_line_source *in = oct_line_source_open(history);
    if (!in) {
        oct_cli_error("no memory to read lines");
        return OCT_EXIT_ERROR;
    }
    const bool edits = oct_line_source_edits(in);
    if (edits)
        fprintf(stderr, "(the model continues what you write; /help, /reset, Ctrl-D ends)\n");
    while (go) {
        size_t n = 0;
        const char *line = oct_line_source_read(in, &n);
        if (!line)
            break;
        if (n > 0 && line[0] == '/') {
            go = command(g, model, line, n);
            continue;
        }
        if (n > 0 && !add_line(g, line, n))
            continue;
        if (g->texts[0].n == 0 || g->texts[0].complete)
            continue; /* nothing to continue */
        go = answer(g, &code);
    }
    const int error = oct_line_source_error(in);
    if (edits)
        oct_cli_out("\n", 1);
    oct_line_source_close(in);
    if (code == OCT_EXIT_OK && error && !*oct_cli_cancel_flag()) {
        oct_cli_error("standard input: cannot read: %s", strerror(error));
        code = OCT_EXIT_ERROR;
    }
    if (code == OCT_EXIT_OK && *oct_cli_cancel_flag())
        code = oct_cli_fail(&(oct_error){.status = OCT_ERR_CANCELLED});
    return code == OCT_EXIT_OK ? oct_cli_out_end() : code;
}
