#include "interactive.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <limits.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Where lines come from: libedit on a terminal, plain lines otherwise. */
typedef struct line_source {
    EditLine *el;
    History *history;
    char history_path[PATH_MAX]; /* empty: none */
    char *line;                  /* of getline */
    size_t line_room;
} line_source;

static char *prompt(EditLine *el)
{
    static char text[] = "> ";
    (void)el;
    return text;
}

/* $XDG_STATE_HOME/octet/history; no history file where that variable is not set. */
static void open_history(line_source *in)
{
    HistEvent ev;
    in->history = history_init();
    if (!in->history)
        return;
    history(in->history, &ev, H_SETSIZE, 1000);
    history(in->history, &ev, H_SETUNIQUE, 1);
    el_set(in->el, EL_HIST, history, in->history);
    const char *state = getenv("XDG_STATE_HOME");
    if (!state || state[0] != '/')
        return;
    int n = snprintf(in->history_path, sizeof in->history_path, "%s/octet", state);
    if (n < 0 || (size_t)n > sizeof in->history_path - 16) {
        in->history_path[0] = 0;
        return;
    }
    if (mkdir(in->history_path, 0700) != 0 && errno != EEXIST) {
        in->history_path[0] = 0;
        return;
    }
    strcat(in->history_path, "/history");
    if (access(in->history_path, R_OK) == 0)
        history(in->history, &ev, H_LOAD, in->history_path);
}

static void open_source(line_source *in)
{
    memset(in, 0, sizeof *in);
    if (!isatty(STDIN_FILENO))
        return;
    /* libedit reads characters as the locale says; text is UTF-8 here, whatever the environment. */
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
    in->el = el_init("octet", stdin, stdout, stderr);
    if (!in->el)
        return;
    el_set(in->el, EL_PROMPT, prompt);
    el_set(in->el, EL_EDITOR, "emacs");
    open_history(in);
    el_source(in->el, NULL);
}

static void close_source(line_source *in)
{
    HistEvent ev;
    if (in->history && in->history_path[0]) {
        mode_t mask = umask(077);
        history(in->history, &ev, H_SAVE, in->history_path);
        umask(mask);
    }
    if (in->el)
        el_end(in->el);
    if (in->history)
        history_end(in->history);
    free(in->line);
}

/* The next line without its newline; valid until the next call. NULL at the end of input. A Ctrl-C
 * while the line is typed throws the line away and starts a new one. */
static const char *read_line(line_source *in, size_t *n)
{
    for (;;) {
        int count = 0;
        const char *line;
        HistEvent ev;
        if (in->el) {
            line = el_gets(in->el, &count);
        } else {
            ssize_t k = getline(&in->line, &in->line_room, stdin);
            line = k > 0 ? in->line : NULL;
            count = (int)(k > INT_MAX ? INT_MAX : k);
        }
        if (*oct_cli_cancel_flag()) {
            if (oct_cli_interrupt_code() != OCT_EXIT_INTERRUPTED)
                return NULL; /* told to end, not to stop */
            if (in->el) {
                oct_cli_cancel_reset();
                el_reset(in->el);
                oct_cli_out("\n", 1);
                continue;
            }
            return NULL;
        }
        if (!line || count <= 0)
            return NULL;
        if (in->history && line[0] != '\n')
            history(in->history, &ev, H_ENTER, line);
        *n = (size_t)count;
        if (line[*n - 1] == '\n')
            --*n;
        return line;
    }
}

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

/* Adds what was typed to the text. After the first turn it begins on a new line, as on the
 * screen. */
static bool add_line(oct_gen *g, const char *line, size_t n)
{
    oct_error err = {0};
    const oct_gen_text *t = &g->texts[0];
    int32_t *ids = NULL;
    size_t n_ids = 0;
    char *text = malloc(n + 2);
    if (!text) {
        oct_cli_error("no memory for a line of %zu bytes", n);
        return false;
    }
    size_t skip = t->n > 0 ? 1 : 0;
    text[0] = '\n';
    memcpy(text + skip, line, n);
    oct_status s = oct_encode(g->model, text, n + skip, &ids, &n_ids, &err);
    free(text);
    if (s == OCT_OK && (int64_t)n_ids > g->n_ctx - t->n)
        s = oct_fail(&err, OCT_ERR_ARG,
                     "the line has %zu tokens, but only %lld of the context's "
                     "%lld are free; /reset starts a new text",
                     n_ids, (long long)(g->n_ctx > t->n ? g->n_ctx - t->n : 0),
                     (long long)g->n_ctx);
    if (s == OCT_OK)
        s = oct_gen_append(g, 0, ids, (int64_t)n_ids, &err);
    free(ids);
    if (s != OCT_OK)
        oct_cli_error("%s", err.text);
    return s == OCT_OK;
}

/* A line that starts with '/'. False: end. */
static bool command(oct_gen *g, const char *line, size_t n)
{
    if (n == 5 && memcmp(line, "/quit", 5) == 0)
        return false;
    if (n == 6 && memcmp(line, "/reset", 6) == 0) {
        oct_gen_reset(g, 0);
        fprintf(stderr, "(new text)\n");
    } else {
        fprintf(stderr, "/reset  start a new text\n/quit   end (or Ctrl-D)\n"
                        "Ctrl-C  stop the generation; an empty line goes on with it\n");
    }
    return true;
}

int oct_interactive(oct_gen *g, bool first)
{
    if (!oct_cli_converse())
        return oct_cli_fail(&(oct_error){.status = OCT_ERR_CANCELLED});
    int code = OCT_EXIT_OK;
    line_source in;
    bool go = first ? answer(g, &code) : true;
    open_source(&in);
    if (in.el)
        fprintf(stderr, "(the model continues what you write; /help, /reset, Ctrl-D ends)\n");
    while (go) {
        size_t n = 0;
        const char *line = read_line(&in, &n);
        if (!line)
            break;
        if (n > 0 && line[0] == '/') {
            go = command(g, line, n);
            continue;
        }
        if (n > 0 && !add_line(g, line, n))
            continue;
        if (g->texts[0].n == 0 || g->texts[0].complete)
            continue; /* nothing to continue */
        go = answer(g, &code);
    }
    if (in.el)
        oct_cli_out("\n", 1);
    close_source(&in);
    if (code == OCT_EXIT_OK && *oct_cli_cancel_flag())
        code = oct_cli_fail(&(oct_error){.status = OCT_ERR_CANCELLED});
    return code == OCT_EXIT_OK ? oct_cli_out_end() : code;
}
