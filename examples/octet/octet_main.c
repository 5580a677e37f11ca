/* octet: the program. Finds the subcommand; each has its own file. */
#include <string.h>

#include "cli.h"
#include "commands.h"
#include "ranks.h"

const oct_command oct_commands[] = {
#define OCT_COMMAND(name, what) {#name, oct_cmd_##name, what, false, false},
#define OCT_RANKS_COMMAND(name, what) {#name, oct_cmd_##name, what, true, false},
#define OCT_SERVER_COMMAND(name, what) {#name, oct_cmd_##name, what, true, true},
#include "commands.inc"
};
enum { N_COMMANDS = sizeof oct_commands / sizeof *oct_commands };
const int oct_n_commands = N_COMMANDS;

const char oct_program_about[] =
    "runs Grok-1-class mixture-of-experts language models on this machine";
const char oct_program_examples[] =
    "  octet plan grok-1\n"
    "  octet convert grok-1/ -o grok-1.gguf\n"
    "  octet run -m grok-1.gguf --dry-run\n"
    "  octet run -m grok-1.gguf -p \"The answer to life is\" -n 100";
const char oct_program_exit_codes[] =
    "0 done, 1 error, 2 wrong usage, 3 `octet plan`: it does not fit; ended by a signal:\n"
    "130 Ctrl-C, 143 SIGTERM, 129 SIGHUP, 128 + its number for others";

static int run_command(const oct_command *c, int argc, char **argv)
{
    /* The others need not wait for one that works alone; perhaps they are other programs. */
    int code = c->ranks ? oct_ranks_start(argc, argv, c->lasts) : -1;
    if (code >= 0)
        return code;
    code = c->run(argc, argv);
    oct_ranks_end();
    return code;
}

static const oct_command *find(const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(oct_commands[i].name, name) == 0)
            return &oct_commands[i];
    return NULL;
}

static int usage(void)
{
    oct_cli_outf("octet %s: %s\n\nusage: octet COMMAND [options]\n\ncommands:\n", oct_version(),
                 oct_program_about);
    for (int i = 0; i < N_COMMANDS; i++)
        oct_cli_outf("  %-10s %s\n", oct_commands[i].name, oct_commands[i].what);
    oct_cli_outf("\n`octet help COMMAND` explains a command and gives examples.\n"
                 "\nfrom a checkpoint to text:\n%s\n\nexit codes: %s\n",
                 oct_program_examples, oct_program_exit_codes);
    return oct_cli_out_end();
}

static int unknown(const char *name)
{
    const char *names[N_COMMANDS];
    for (int i = 0; i < N_COMMANDS; i++)
        names[i] = oct_commands[i].name;
    const char *near = oct_cli_nearest(name, names, N_COMMANDS);
    if (near)
        oct_cli_error("unknown command '%s'; did you mean '%s'?", name, near);
    else
        oct_cli_error("unknown command '%s' (octet --help lists them)", name);
    return OCT_EXIT_USAGE;
}

int main(int argc, char **argv)
{
    if (!oct_cli_start())
        return OCT_EXIT_ERROR;
    if (argc < 2) {
        usage();
        return OCT_EXIT_USAGE;
    }
    const char *word = argv[1];
    bool help = strcmp(word, "help") == 0;
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || (help && argc == 2))
        return usage();
    if (strcmp(word, "--version") == 0) {
        oct_cli_outf("octet %s\n", oct_version());
        return oct_cli_out_end();
    }
    const oct_command *c = find(help ? argv[2] : word);
    if (!c)
        return unknown(help ? argv[2] : word);
    if (help) {
        char name[32], option[] = "--help";
        strncpy(name, c->name, sizeof name - 1);
        name[sizeof name - 1] = 0;
        char *args[] = {name, option, NULL};
        return c->run(2, args);
    }
    return run_command(c, argc - 1, argv + 1);
}
