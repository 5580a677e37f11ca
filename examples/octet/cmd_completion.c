/* octet completion: scripts for shells, from the rows that arguments are parsed by: they know every
 * command, its options, what their values can be, and need neither the program nor a model. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "commands.h"

/* What a value can be. */
typedef enum value_kind {
    VALUE_NONE, /* there is none */
    VALUE_ANY,  /* nothing that could be guessed */
    VALUE_FILE,
    VALUE_WORDS /* one of the option's choices */
} value_kind;

static value_kind value_of(const oct_opt *o)
{
    if (o->kind == OCT_OPT_FLAG)
        return VALUE_NONE;
    if (o->kind == OCT_OPT_CHOICE)
        return VALUE_WORDS;
    static const char *const files[] = {"FILE", "FOLDER", "DIR", "MODEL", "OUT"};
    for (size_t i = 0; i < sizeof files / sizeof *files && o->kind == OCT_OPT_TEXT; i++)
        if (strncmp(o->arg, files[i], strlen(files[i])) == 0)
            return VALUE_FILE;
    return VALUE_ANY;
}

/* "a|b" as "a b". */
static void put_words(const char *words)
{
    for (const char *p = words; p && *p; p++)
        oct_cli_out(*p == '|' ? " " : p, 1);
}

/* Text within single quotes; `also`: characters that get a backslash. Line ends become blanks. */
static void put_quoted(const char *text, const char *also)
{
    for (const char *p = text; *p; p++) {
        if (*p == '\'')
            oct_cli_outf("'\\''");
        else if (*p == '\n')
            oct_cli_out(" ", 1);
        else
            oct_cli_outf(strchr(also, *p) ? "\\%c" : "%c", *p);
    }
}

static void for_each_command(oct_cli_describe_fn *fn)
{
    for (int i = 0; i < oct_n_commands; i++) {
        char name[32], *argv[] = {name, NULL};
        snprintf(name, sizeof name, "%s", oct_commands[i].name);
        oct_cli_describe(fn, NULL);
        (void)oct_commands[i].run(1, argv);
        oct_cli_describe(NULL, NULL);
    }
}

static void put_commands(const char *separator)
{
    for (int i = 0; i < oct_n_commands; i++)
        oct_cli_outf("%s%s", i ? separator : "", oct_commands[i].name);
}

/* ---- bash ------------------------------------------------------------------------------------ */

/* "-m|--model" */
static void bash_pattern(const oct_opt *o, const char *separator)
{
    if (o->letter)
        oct_cli_outf("-%c%s", o->letter, o->name ? separator : "");
    if (o->name)
        oct_cli_outf("--%s", o->name);
}

/* Options of one kind of value as a pattern of `case`; false: there is none. */
static bool bash_kind(const oct_cli *cli, value_kind kind)
{
    bool any = false;
    for (int i = 0; i < cli->n_opts; i++) {
        if (value_of(&cli->opts[i]) != kind)
            continue;
        oct_cli_outf(any ? "|" : "        ");
        bash_pattern(&cli->opts[i], "|");
        any = true;
    }
    return any;
}

static void bash_command(void *ctx, const oct_cli *cli)
{
    (void)ctx;
    oct_cli_outf("    %s)\n        case $prev in\n", cli->name);
    for (int i = 0; i < cli->n_opts; i++) {
        if (value_of(&cli->opts[i]) != VALUE_WORDS)
            continue;
        oct_cli_outf("        ");
        bash_pattern(&cli->opts[i], "|");
        oct_cli_outf(") words='");
        put_words(cli->opts[i].arg);
        oct_cli_outf("' ;;\n");
    }
    if (bash_kind(cli, VALUE_FILE))
        oct_cli_outf(") files=1 ;;\n");
    if (bash_kind(cli, VALUE_ANY))
        oct_cli_outf(") return ;;\n");
    oct_cli_outf("        *)\n            case $cur in\n            -*) words='");
    for (int i = 0; i < cli->n_opts; i++) {
        bash_pattern(&cli->opts[i], " ");
        oct_cli_outf(" ");
    }
    oct_cli_outf("-h --help' ;;\n            *) words='");
    put_words(cli->words);
    oct_cli_outf("' files=%s ;;\n            esac ;;\n        esac ;;\n",
                 cli->max_args > 0 && !cli->no_files ? "1" : "");
}

static void bash(void)
{
    oct_cli_outf("# Completion of octet's words for bash, made by `octet completion bash`.\n"
                 "_octet()\n{\n"
                 "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
                 "    local words='' files='' line\n"
                 "    COMPREPLY=()\n"
                 "    if [ \"$cur\" = = ]; then # --option=\n"
                 "        cur=''\n"
                 "    elif [ \"$prev\" = = ]; then\n"
                 "        prev=${COMP_WORDS[COMP_CWORD-2]}\n"
                 "    fi\n"
                 "    if [ \"$COMP_CWORD\" = 1 ]; then\n"
                 "        words='");
    put_commands(" ");
    oct_cli_outf(" help --help --version'\n    else\n    case ${COMP_WORDS[1]} in\n");
    for_each_command(bash_command);
    oct_cli_outf("    help) words='");
    put_commands(" ");
    oct_cli_outf("' ;;\n    esac\n    fi\n"
                 "    while IFS= read -r line; do\n"
                 "        COMPREPLY+=(\"$line\")\n"
                 "    done < <(compgen -W \"$words\" -- \"$cur\")\n"
                 "    if [ -n \"$files\" ]; then\n"
                 "        compopt -o filenames 2>/dev/null\n"
                 "        while IFS= read -r line; do\n"
                 "            COMPREPLY+=(\"$line\")\n"
                 "        done < <(compgen -f -- \"$cur\")\n"
                 "    fi\n"
                 "}\n"
                 "complete -F _octet octet\n");
}

/* ---- zsh ------------------------------------------------------------------------------------- */

static const char zsh_special[] = "[]:\\";

static void zsh_value(const oct_opt *o)
{
    const value_kind kind = value_of(o);
    if (kind == VALUE_NONE)
        return;
    oct_cli_out(":", 1);
    put_quoted(kind == VALUE_WORDS ? "value" : o->arg, zsh_special);
    oct_cli_out(":", 1);
    if (kind == VALUE_FILE)
        oct_cli_outf("_files");
    if (kind == VALUE_WORDS) {
        oct_cli_out("(", 1);
        put_words(o->arg);
        oct_cli_out(")", 1);
    }
}

static void zsh_option(const oct_opt *o)
{
    const char *equals = value_of(o) == VALUE_NONE ? "" : "=";
    if (o->letter && o->name)
        oct_cli_outf("      '(-%c --%s)'{-%c,--%s%s}'[", o->letter, o->name, o->letter, o->name,
                     equals);
    else if (o->letter)
        oct_cli_outf("      '-%c[", o->letter);
    else
        oct_cli_outf("      '--%s%s[", o->name, equals);
    put_quoted(o->help, zsh_special);
    oct_cli_out("]", 1);
    zsh_value(o);
    oct_cli_outf("' \\\n");
}

static void zsh_command(void *ctx, const oct_cli *cli)
{
    (void)ctx;
    oct_cli_outf("  %s)\n    _arguments \\\n", cli->name);
    for (int i = 0; i < cli->n_opts; i++)
        zsh_option(&cli->opts[i]);
    if (cli->max_args > 0 && cli->words) {
        const bool files = !cli->no_files;
        oct_cli_outf("      '1:word:%s", files ? "{ compadd -- " : "(");
        put_words(cli->words);
        oct_cli_outf("%s' \\\n", files ? "; _files }" : ")");
    } else if (cli->max_args > 0) {
        oct_cli_outf("      '1:file:_files' \\\n");
    }
    oct_cli_outf("      '(-h --help)'{-h,--help}'[print a summary]'\n    ;;\n");
}

static void zsh(void)
{
    oct_cli_outf("#compdef octet\n"
                 "# Completion of octet's words for zsh, made by `octet completion zsh`.\n"
                 "_octet() {\n"
                 "  local -a commands=(\n");
    for (int i = 0; i < oct_n_commands; i++) {
        oct_cli_outf("    '%s:", oct_commands[i].name);
        put_quoted(oct_commands[i].what, zsh_special);
        oct_cli_outf("'\n");
    }
    oct_cli_outf("    'help:explain a command'\n  )\n"
                 "  if (( CURRENT == 2 )); then\n"
                 "    _describe command commands\n"
                 "    compadd -- --help --version\n"
                 "    return\n"
                 "  fi\n"
                 "  shift words\n"
                 "  (( CURRENT-- ))\n"
                 "  case $words[1] in\n");
    for_each_command(zsh_command);
    oct_cli_outf("  help) _describe command commands ;;\n  esac\n}\n"
                 "if [ \"$funcstack[1]\" = _octet ]; then\n"
                 "  _octet \"$@\"\n"
                 "else\n"
                 "  compdef _octet octet\n"
                 "fi\n");
}

/* ---- fish ------------------------------------------------------------------------------------ */

static void fish_option(const char *command, const oct_opt *o)
{
    const value_kind kind = value_of(o);
    oct_cli_outf("complete -c octet -n '__octet_is %s'", command);
    if (o->letter)
        oct_cli_outf(" -s %c", o->letter);
    if (o->name)
        oct_cli_outf(" -l %s", o->name);
    if (kind == VALUE_FILE)
        oct_cli_outf(" -r -F");
    else if (kind == VALUE_ANY)
        oct_cli_outf(" -x");
    if (kind == VALUE_WORDS) {
        oct_cli_outf(" -x -a '");
        put_words(o->arg);
        oct_cli_out("'", 1);
    }
    oct_cli_outf(" -d '");
    put_quoted(o->help, "\\");
    oct_cli_outf("'\n");
}

static void fish_command(void *ctx, const oct_cli *cli)
{
    (void)ctx;
    for (int i = 0; i < cli->n_opts; i++)
        fish_option(cli->name, &cli->opts[i]);
    if (cli->words) {
        oct_cli_outf("complete -c octet -n '__octet_is %s' -a '", cli->name);
        put_words(cli->words);
        oct_cli_outf("'\n");
    }
    if (cli->max_args > 0 && !cli->no_files)
        oct_cli_outf("complete -c octet -n '__octet_is %s' -F\n", cli->name);
    oct_cli_outf("complete -c octet -n '__octet_is %s' -s h -l help -d 'print a summary'\n",
                 cli->name);
}

static void fish(void)
{
    oct_cli_outf("# Completion of octet's words for fish, made by `octet completion fish`.\n"
                 "function __octet_is\n"
                 "    set -l words (commandline -opc)\n"
                 "    test (count $words) -ge 2; and test $words[2] = $argv[1]\n"
                 "end\n"
                 "complete -c octet -f\n");
    for (int i = 0; i < oct_n_commands; i++) {
        oct_cli_outf("complete -c octet -n __fish_use_subcommand -a %s -d '", oct_commands[i].name);
        put_quoted(oct_commands[i].what, "\\");
        oct_cli_outf("'\n");
    }
    oct_cli_outf("complete -c octet -n __fish_use_subcommand -a help -d 'explain a command'\n"
                 "complete -c octet -n '__octet_is help' -a '");
    put_commands(" ");
    oct_cli_outf("'\n"
                 "complete -c octet -n __fish_use_subcommand -l help -d 'what there is'\n"
                 "complete -c octet -n __fish_use_subcommand -l version -d 'its version'\n");
    for_each_command(fish_command);
}

/* From here on, standard output is this file. */
static bool into_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0) {
        oct_cli_error("%s: cannot write: %s", path, strerror(errno));
        return false;
    }
    close(fd);
    return true;
}

int oct_cmd_completion(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*print)(void);
    } shells[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}};
    int first = 0;
    const char *out = NULL;
    const oct_opt rows[] = {
        OCT_ROW_TEXT('o', "output", &out, "FILE", "write it into this file instead"),
    };
    const oct_cli cli = {
        .name = "completion",
        .synopsis = "bash | zsh | fish [-o FILE]",
        .opts = rows,
        .n_opts = sizeof rows / sizeof *rows,
        .about =
            "Prints the script that completes octet's commands, options and their values in a\n"
            "shell. It is made from the tables that the arguments are parsed by; `cmake "
            "--install`\n"
            "puts it where each shell looks.",
        .notes = "examples:\n"
                 "  . <(octet completion bash)\n"
                 "  octet completion zsh >~/.zfunc/_octet\n"
                 "  octet completion fish >~/.config/fish/completions/octet.fish",
        .max_args = 1,
        .words = "bash|zsh|fish",
        .no_files = true,
    };
    int code = oct_cli_parse(&cli, argc, argv, &first);
    if (code >= 0)
        return code;
    for (size_t i = 0; i < sizeof shells / sizeof *shells && first < argc; i++)
        if (strcmp(argv[first], shells[i].name) == 0) {
            if (out && !into_file(out))
                return OCT_EXIT_ERROR;
            shells[i].print();
            return oct_cli_out_end();
        }
    oct_cli_error("completion: expected bash, zsh or fish%s%s", first < argc ? ", found " : "",
                  first < argc ? argv[first] : "");
    return OCT_EXIT_USAGE;
}
