/* line_source.h: where the lines of a conversation come from: edited on a terminal, with history
 * and with what is pasted as one message; plain lines otherwise. */
#ifndef OCT_LINE_SOURCE_H
#define OCT_LINE_SOURCE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct oct_line_source oct_line_source;

/* NULL: no memory. history: keep one in $XDG_STATE_HOME/octet, ~/.local/state/octet without that
 * variable; made readable for the user alone. Where it cannot be, there is none. */
oct_line_source *oct_line_source_open(bool history);
void oct_line_source_close(oct_line_source *in); /* keeps the history; NULL is fine */
bool oct_line_source_edits(const oct_line_source *in);

/* The next message without the newline that ends it (CR LF is one, too); valid until the next call.
 * NULL at the end of input. A Ctrl-C while it is typed throws it away and starts a new one. */
const char *oct_line_source_read(oct_line_source *in, size_t *n);
/* The errno that ended the input; 0: it has ended by itself. */
int oct_line_source_error(const oct_line_source *in);

#endif
