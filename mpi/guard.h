/* guard.h: a bound for calls of MPI that have none: they begin and end together on all ranks, and one
 * that never comes would keep the others for ever. */
#ifndef OCT_GUARD_H
#define OCT_GUARD_H

#include "status.h"

typedef struct oct_guard oct_guard;

/* Called on the guard's thread: text says what is waited for. When it returns, the process ends with
 * exit code 1. */
typedef void oct_guard_say(void *ctx, const char *text);

/* Watches the calling thread until oct_guard_end: what is done, like "MPI_Init", may take so many
 * seconds. NULL: there is no thread or memory, and no bound. */
oct_guard *oct_guard_begin(const char *what, double seconds, oct_guard_say *say, void *ctx);
void oct_guard_end(oct_guard *g); /* NULL is fine */

#endif
