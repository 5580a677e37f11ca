/* commands.h: the subcommands. Each takes its own argv (argv[0] is its name) and returns an exit
 * code. */
#ifndef OCT_COMMANDS_H
#define OCT_COMMANDS_H

#define OCT_COMMAND(name, what) int oct_cmd_##name(int argc, char **argv);
#include "commands.inc"

#endif
