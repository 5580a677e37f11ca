/* zeros.h: zeros where a checkpoint should have numbers. Torrent clients and download managers
 * reserve a file at its full size and fill it piece by piece, so one that was not finished looks
 * whole: it has holes, or, once it was copied, runs of zeros. */
#ifndef OCT_ZEROS_H
#define OCT_ZEROS_H

#include "source.h"

/* A line if a file of n bytes has holes, which nobody has written to. */
void oct_hole_tell(int fd, const char *file, uint64_t n, oct_lines *problems);

typedef struct oct_zeros oct_zeros;
oct_zeros *oct_zeros_new(void);    /* NULL: no memory */
void oct_zeros_free(oct_zeros *z); /* NULL is fine */

/* Looks at a block that was read (see oct_source_kind). Only runs that chance does not make count:
 * a whole block, or 512 bytes. Thread-safe. */
void oct_zeros_look(oct_zeros *z, const oct_source_tensor *t, oct_source_part part,
                    const oct_block *b, const void *data);

/* A line for every matrix with many zeros, or of nothing else, as of now; then forgets them. Not
 * while others look. */
void oct_zeros_tell(oct_zeros *z, const oct_source *s, oct_lines *warnings);

#endif
