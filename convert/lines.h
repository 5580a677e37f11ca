/* lines.h: a growing list of one-line messages. Warnings and the list of a checkpoint's problems
 * are kept in it until a program shows them. Not thread-safe. */
#ifndef OCT_LINES_H
#define OCT_LINES_H

#include <stdbool.h>
#include <stddef.h>

#include "status.h"

typedef struct oct_lines {
    char **line; /* [n], each malloc'd, without newline */
    size_t n, cap;
    bool failed; /* a line was lost for want of memory */
} oct_lines;     /* start from zero */

/* Adds a line; control characters in it become '?'. Sets failed if there is no memory. */
void oct_lines_add(oct_lines *l, const char *fmt, ...) OCT_PRINTF(2, 3);

/* Releases all lines and leaves an empty list. */
void oct_lines_free(oct_lines *l);

#endif
