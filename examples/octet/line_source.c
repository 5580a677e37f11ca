#include "line_source.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <limits.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include <octet/utf8.h>

#include "cli.h"

struct oct_line_source {
    EditLine *el; /* NULL: plain lines */
    History *history;
    char history_path[PATH_MAX]; /* empty: none */
    char *line;                  /* of getline */
    size_t line_room;
    bool begun;
    int error;   /* errno that ended the input */
    bool pastes; /* the terminal is asked to mark what is pasted */
};

enum { HISTORY_LINES = 1000, PASTE_PART = 256 };

/* Of more than four columns: over fewer libedit moves the cursor by writing them again, so that a
 * paste shows the prompt a second time. */
static char *prompt(EditLine *el)
{
    static char text[] = "text> ";
    (void)el;
    return text;
}

/* ---- pasting --------------------------------------------------------------------------------- */

/* Terminals put these around what is pasted, if they are asked to. */
static const char paste_on[] = "\033[?2004h", paste_off[] = "\033[?2004l";
static const wchar_t paste_end[] = L"\033[201~";

/* Called at the mark in front. Everything up to the one behind goes into the line as it is, so that
 * newlines do not end it; the last one is left to the user's key. */
static unsigned char take_paste(EditLine *el, int key)
{
    wchar_t part[PASTE_PART + 1], c, last = 0;
    size_t n = 0, seen = 0; /* characters of the end mark that have come */
    bool newline = false;   /* one waits for what follows it */
    (void)key;
    while (seen < sizeof paste_end / sizeof *paste_end - 1 && el_wgetc(el, &c) == 1) {
        seen = c == paste_end[seen] ? seen + 1 : c == paste_end[0];
        if (seen > 0)
            continue; /* text has no escape sequences to lose */
        const bool line_end = c == L'\r' || (c == L'\n' && last != L'\r');
        const bool control = (c < L' ' && c != L'\t') || c == 0x7f;
        last = c;
        if (n + 2 > PASTE_PART) {
            part[n] = 0;
            n = 0;
            if (el_winsertstr(el, part) != 0)
                break;
        }
        if (newline && (line_end || !control))
            part[n++] = L'\n';
        newline = line_end;
        if (!control)
            part[n++] = c;
    }
    part[n] = 0;
    if (n > 0)
        (void)el_winsertstr(el, part);
    return CC_REFRESH;
}

/* ---- history --------------------------------------------------------------------------------- */

/* Makes a folder and those above it, for the user alone. */
static bool make_folder(char *path)
{
    for (char *at = path + 1; *at; at++) {
        if (*at != '/')
            continue;
        *at = 0;
        bool made = mkdir(path, 0700) == 0 || errno == EEXIST;
        *at = '/';
        if (!made)
            return false;
    }
    struct stat st;
    return mkdir(path, 0700) == 0 ||
           (errno == EEXIST && stat(path, &st) == 0 && S_ISDIR(st.st_mode));
}

static bool find_history(char path[PATH_MAX])
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (state && state[0] == '/')
        n = snprintf(path, PATH_MAX, "%s/octet", state);
    else if (home && home[0] == '/')
        n = snprintf(path, PATH_MAX, "%s/.local/state/octet", home);
    if (n < 0 || n > PATH_MAX - 16 || !make_folder(path))
        return false;
    strcat(path, "/history");
    return true;
}

static void open_history(oct_line_source *in, bool kept)
{
    HistEvent ev;
    in->history = history_init();
    if (!in->history)
        return;
    history(in->history, &ev, H_SETSIZE, HISTORY_LINES);
    history(in->history, &ev, H_SETUNIQUE, 1);
    el_set(in->el, EL_HIST, history, in->history);
    if (!kept || !find_history(in->history_path))
        in->history_path[0] = 0;
    else if (access(in->history_path, R_OK) == 0)
        history(in->history, &ev, H_LOAD, in->history_path);
}

/* ---- opening, closing ------------------------------------------------------------------------ */

static void open_editor(oct_line_source *in, bool kept)
{
    /* libedit reads characters as the locale says; text is UTF-8 here, whatever the environment. */
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
    in->el = el_init("octet", stdin, stdout, stderr);
    if (!in->el)
        return;
    const char *term = getenv("TERM");
    in->pastes = isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
    el_set(in->el, EL_PROMPT, prompt);
    el_set(in->el, EL_EDITOR, "emacs");
    el_set(in->el, EL_ADDFN, "octet-paste", "take what is pasted as one message", take_paste);
    el_set(in->el, EL_BIND, "\\e[200~", "octet-paste", NULL);
    open_history(in, kept);
    el_source(in->el, NULL);
}

oct_line_source *oct_line_source_open(bool history)
{
    oct_line_source *in = calloc(1, sizeof *in);
    if (in && isatty(STDIN_FILENO))
        open_editor(in, history);
    return in;
}

void oct_line_source_close(oct_line_source *in)
{
    HistEvent ev;
    if (!in)
        return;
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
    free(in);
}

bool oct_line_source_edits(const oct_line_source *in)
{
    return in->el != NULL;
}

int oct_line_source_error(const oct_line_source *in)
{
    return in->error;
}

/* ---- reading --------------------------------------------------------------------------------- */

static const char *edited(oct_line_source *in, int *count)
{
    if (in->pastes)
        oct_cli_out(paste_on, sizeof paste_on - 1);
    const char *line = el_gets(in->el, count);
    if (in->pastes)
        oct_cli_out(paste_off, sizeof paste_off - 1);
    return line;
}

static const char *plain(oct_line_source *in, int *count)
{
    ssize_t k = getline(&in->line, &in->line_room, stdin);
    if (k < 0 && !feof(stdin)) /* memory that is lacking is no error of the stream */
        in->error = errno;
    size_t bom = k > 0 && !in->begun ? oct_utf8_bom(in->line, (size_t)k) : 0;
    in->begun = true;
    *count = (int)(k > INT_MAX ? INT_MAX : k) - (int)bom;
    return k > 0 ? in->line + bom : NULL;
}

const char *oct_line_source_read(oct_line_source *in, size_t *n)
{
    for (;;) {
        int count = 0;
        HistEvent ev;
        const char *line = in->el ? edited(in, &count) : plain(in, &count);
        if (*oct_cli_cancel_flag()) {
            if (!in->el || oct_cli_interrupt_code() != OCT_EXIT_INTERRUPTED)
                return NULL; /* told to end, not to stop */
            oct_cli_cancel_reset();
            el_reset(in->el);
            oct_cli_out("\n", 1);
            continue;
        }
        if (!line || count <= 0)
            return NULL;
        if (in->history && line[0] != '\n')
            history(in->history, &ev, H_ENTER, line);
        *n = (size_t)count;
        *n -= line[*n - 1] == '\n';
        *n -= *n > 0 && line[*n - 1] == '\r';
        return line;
    }
}
