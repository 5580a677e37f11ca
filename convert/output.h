/* output.h: a file that appears under its name only when it is complete. It is written under a
 * temporary name beside it, OUT.tmp-PID, synced, and renamed. */
#ifndef OCT_OUTPUT_H
#define OCT_OUTPUT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "lines.h"
#include "status.h"

typedef struct oct_output {
    char *path, *temp; /* temp: NULL while there is no temporary file */
    int fd;
} oct_output; /* start with {.fd = -1} */

/* Whether path can become a new file: it does not exist, or is a regular file and none of the
 * inputs (which the caller tells by is_input(ctx, stat)). */
OCT_MUST_CHECK oct_status oct_output_check(const char *path,
                                           int (*is_input)(const void *ctx, const struct stat *st),
                                           const void *ctx, oct_error *err);

/* Whether the disk of path's folder has room for n bytes; the error names both numbers. */
OCT_MUST_CHECK oct_status oct_output_room(const char *path, uint64_t n, oct_error *err);

/* Creates the temporary file, n bytes long, its blocks reserved where the file system can. Files
 * that earlier runs left behind are named in a warning. */
OCT_MUST_CHECK oct_status oct_output_create(oct_output *o, const char *path, uint64_t n,
                                            oct_lines *warnings, oct_error *err);
/* Writes at an offset; any number of threads at once. */
OCT_MUST_CHECK oct_status oct_output_write(const oct_output *o, const void *data, size_t n,
                                           uint64_t at, oct_error *err);
/* Waits until the bytes are on the disk, and drops them from memory, so that reading them back
 * reads the disk. */
OCT_MUST_CHECK oct_status oct_output_sync(const oct_output *o, oct_error *err);
/* Gives the file its name (replacing a file of that name) and syncs the folder. */
OCT_MUST_CHECK oct_status oct_output_publish(oct_output *o, oct_error *err);
/* Closes, and removes the temporary file if it was not published. */
void oct_output_close(oct_output *o);

#endif
