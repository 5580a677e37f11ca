/* commands.h: the subcommands. Each takes its own argv (argv[0] is its name) and returns an exit
 * code. */
#ifndef OCT_COMMANDS_H
#define OCT_COMMANDS_H

#include <stdbool.h>

#define OCT_COMMAND(name, what) int oct_cmd_##name(int argc, char **argv);
#include "commands.inc"

typedef struct oct_command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *what;
    bool ranks; /* works with others that are started with it */
    bool lasts; /* after a signal rank 0 says when it is over */
} oct_command;
extern const oct_command oct_commands[];
extern const int oct_n_commands;

/* What the program says of itself beside its commands, several lines each. */
extern const char oct_program_about[], oct_program_examples[], oct_program_exit_codes[];

#endif
