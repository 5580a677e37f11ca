/* octet man: pages of the manual, in mdoc(7), from the rows that arguments are parsed by. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "commands.h"

enum { COLUMNS = 76 };                          /* of the source */
static const char date[] = "November 30, 2026"; /* of this version */

/* ---- mdoc ------------------------------------------------------------------------------------ */

/* A character of text; `dash`: '-' is the one that is typed. */
static void put(FILE *f, char c, bool dash)
{
    if (c == '\\')
        fputs("\\e", f);
    else if (c == '-' && dash)
        fputs("\\-", f);
    else
        fputc(c, f);
}

/* Text as a paragraph: line ends are blanks, lines have at most COLUMNS, sentences begin one. */
static void put_text(FILE *f, const char *text)
{
    static const char blanks[] = " \n";
    size_t column = 0, n;
    bool ended = false;
    for (const char *p = text + strspn(text, blanks); *p; p += n, p += strspn(p, blanks)) {
        n = strcspn(p, blanks);
        const bool breaks = column > 0 && (ended || column + 1 + 2 * n > COLUMNS);
        if (column > 0)
            fputc(breaks ? '\n' : ' ', f);
        column = breaks ? 0 : column + (column > 0);
        if (column == 0 && (*p == '.' || *p == '\''))
            fputs("\\&", f);
        for (size_t i = 0; i < n; i++)
            put(f, p[i], p[0] == '-' && n > 1);
        column += n;
        ended = strchr(".!?", p[n - 1]) && !(n > 1 && p[n - 2] == '.');
    }
    fputc('\n', f);
}

/* Lines as they are, but for the indentation that all of them have. */
static void put_literal(FILE *f, const char *text, size_t n_text)
{
    fputs(".Bd -literal -offset indent\n", f);
    for (const char *p = text; p < text + n_text;) {
        const char *end = memchr(p, '\n', (size_t)(text + n_text - p));
        size_t n = (size_t)((end ? end : text + n_text) - p);
        for (int i = 0; i < 2 && n > 0 && *p == ' '; i++, n--)
            p++;
        if (n > 0 && (*p == '.' || *p == '\''))
            fputs("\\&", f);
        for (size_t i = 0; i < n; i++)
            put(f, p[i], true);
        fputc('\n', f);
        p += n + (end != NULL);
    }
    fputs(".Ed\n", f);
}

/* An argument of a macro: no word of it is taken for a macro or a delimiter. */
static void put_argument(FILE *f, const char *text)
{
    fputs("\"\\&", f);
    for (const char *p = text; *p; p++)
        if (*p == '"')
            fputs("\"\"", f);
        else
            put(f, *p, true);
    fputc('"', f);
}

static void put_option(FILE *f, const oct_opt *o)
{
    fputs(".It", f);
    if (o->letter)
        fprintf(f, " Fl %c%s", o->letter, o->name ? " ," : "");
    if (o->name)
        fprintf(f, " Fl \\-%s", o->name);
    if (o->kind != OCT_OPT_FLAG) {
        fputs(" Ar ", f);
        put_argument(f, o->arg);
    }
    fputc('\n', f);
    put_text(f, o->help);
}

static void put_head(FILE *f, const char *name, const char *what)
{
    fprintf(f, ".\\\" made by `octet man` of octet %s\n.Dd %s\n.Dt ", oct_version(), date);
    for (const char *p = name; *p; p++)
        fputc(toupper((unsigned char)*p), f);
    fprintf(f, " 1\n.Os\n.Sh NAME\n.Nm %s\n.Nd ", name);
    put_text(f, what);
}

/* ---- pages ----------------------------------------------------------------------------------- */

typedef struct page {
    FILE *f;
    const oct_command *command;
} page;

/* Notes are text, and examples behind a line that says so. */
static void put_notes(FILE *f, const char *notes)
{
    static const char mark[] = "examples:\n";
    const char *examples = notes ? strstr(notes, mark) : NULL;
    size_t n = !notes ? 0 : examples ? (size_t)(examples - notes) : strlen(notes);
    if (n > 0) {
        fputs(".Sh NOTES\n", f);
        put_literal(f, notes, n);
    }
    if (examples) {
        fputs(".Sh EXAMPLES\n", f);
        put_literal(f, examples + sizeof mark - 1, strlen(examples + sizeof mark - 1));
    }
}

static void put_command(void *ctx, const oct_cli *cli)
{
    const page *p = ctx;
    char name[64];
    snprintf(name, sizeof name, "octet-%s", cli->name);
    put_head(p->f, name, p->command->what);
    fprintf(p->f, ".Sh SYNOPSIS\n.Nm octet %s\n", cli->name);
    put_text(p->f, cli->synopsis);
    fputs(".Sh DESCRIPTION\n", p->f);
    put_text(p->f, cli->about);
    fputs(".Pp\nThe options are:\n.Bl -tag -width Ds\n", p->f);
    for (int i = 0; i < cli->n_opts; i++)
        put_option(p->f, &cli->opts[i]);
    fputs(".It Fl h , Fl \\-help\nprint a summary of the options\n.El\n", p->f);
    put_notes(p->f, cli->notes);
    fputs(".Sh SEE ALSO\n.Xr octet 1\n", p->f);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const oct_command *)a)->name, ((const oct_command *)b)->name);
}

static void put_program(FILE *f)
{
    put_head(f, "octet", oct_program_about);
    fputs(".Sh SYNOPSIS\n.Nm octet\n.Ar command\n.Op Ar options\n.Nm octet\n.Cm help\n.Ar command\n"
          ".Nm octet\n.Fl \\-version\n.Sh DESCRIPTION\nThe commands are:\n.Bl -tag -width Ds\n",
          f);
    for (int i = 0; i < oct_n_commands; i++) {
        fprintf(f, ".It Cm %s\n", oct_commands[i].name);
        put_text(f, oct_commands[i].what);
    }
    fputs(".El\n.Sh ENVIRONMENT\n.Bl -tag -width Ds\n.It Ev OCTET_ISA\n", f);
    put_text(f, "the kernels to compute with, of those that octet info lists; without it the best "
                "that the processor can run");
    fputs(".It Ev XDG_STATE_HOME\n", f);
    put_text(f, "where the history of conversations is kept, in octet/history; without it in "
                "~/.local/state");
    fputs(".El\n.Sh EXIT STATUS\n", f);
    put_text(f, oct_program_exit_codes);
    fputs(".Sh EXAMPLES\n", f);
    put_literal(f, oct_program_examples, strlen(oct_program_examples));
    fputs(".Sh SEE ALSO\n", f);
    oct_command *sorted = malloc((size_t)oct_n_commands * sizeof *sorted);
    if (!sorted)
        return;
    memcpy(sorted, oct_commands, (size_t)oct_n_commands * sizeof *sorted);
    qsort(sorted, (size_t)oct_n_commands, sizeof *sorted, by_name);
    for (int i = 0; i < oct_n_commands; i++)
        fprintf(f, ".Xr octet-%s 1%s\n", sorted[i].name, i + 1 < oct_n_commands ? " ," : "");
    free(sorted);
}

/* c NULL: the page of the program. */
static void put_page(FILE *f, const oct_command *c)
{
    char name[32], *argv[] = {name, NULL};
    page p = {f, c};
    if (!c) {
        put_program(f);
        return;
    }
    snprintf(name, sizeof name, "%s", c->name);
    oct_cli_describe(put_command, &p);
    (void)c->run(1, argv);
    oct_cli_describe(NULL, NULL);
}

/* ---- output ---------------------------------------------------------------------------------- */

static int print_page(const oct_command *c)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (f)
        put_page(f, c);
    bool lost = !f || (fflush(f), ferror(f)) || n == 0;
    if ((f && fclose(f) != 0) || lost) {
        free(text);
        oct_cli_error("no memory for a page");
        return OCT_EXIT_ERROR;
    }
    oct_cli_out(text, n);
    free(text);
    return oct_cli_out_end();
}

static bool write_page(const char *folder, const oct_command *c)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/octet%s%s.1", folder, c ? "-" : "", c ? c->name : "");
    FILE *f = fopen(path, "we");
    if (f)
        put_page(f, c);
    if (!f || (fflush(f), ferror(f)) || fclose(f) != 0) {
        oct_cli_error("%s: cannot write: %s", path, strerror(errno));
        return false;
    }
    return true;
}

int oct_cmd_man(int argc, char **argv)
{
    const char *folder = NULL;
    char names[256] = "";
    int first = 0;
    for (int i = 0; i < oct_n_commands; i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? "|" : "",
                 oct_commands[i].name);
    const oct_opt rows[] = {
        OCT_ROW_TEXT('o', "output", &folder, "FOLDER", "write all pages into this folder instead"),
    };
    const oct_cli cli = {
        .name = "man",
        .synopsis = "[COMMAND] [-o FOLDER]",
        .about =
            "Prints the page of a command, or of the program itself, in mdoc. The pages are made\n"
            "from the tables that the arguments are parsed by.",
        .opts = rows,
        .n_opts = sizeof rows / sizeof *rows,
        .notes = "examples:\n"
                 "  octet man run | mandoc -l | less\n"
                 "  octet man -o /usr/local/share/man/man1",
        .max_args = 1,
        .words = names,
        .no_files = true,
    };
    int code = oct_cli_parse(&cli, argc, argv, &first);
    if (code >= 0)
        return code;
    const oct_command *c = NULL;
    for (int i = 0; i < oct_n_commands && first < argc && !c; i++)
        c = strcmp(oct_commands[i].name, argv[first]) == 0 ? &oct_commands[i] : NULL;
    if (first < argc && (!c || folder)) {
        oct_cli_error(c ? "man: -o writes all pages; '%s' is one too many"
                        : "man: there is no command '%s' (octet --help lists them)",
                      argv[first]);
        return OCT_EXIT_USAGE;
    }
    if (!folder)
        return print_page(c);
    for (int i = -1; i < oct_n_commands; i++)
        if (!write_page(folder, i < 0 ? NULL : &oct_commands[i]))
            return OCT_EXIT_ERROR;
    return OCT_EXIT_OK;
}
