/* interactive.h: a conversation on the terminal, all of it one growing text in one KV cache. */
#ifndef OCT_INTERACTIVE_H
#define OCT_INTERACTIVE_H

#include "generate.h"

/* Reads lines and generates after each, until Ctrl-D or /quit. If first is true the sequence
 * already holds a prompt: generation begins with it. history: keep what is typed on a terminal.
 * model: its file, which /save does not replace. Returns an exit code. */
int oct_interactive(oct_gen *g, const char *model, bool first, bool history);

#endif
