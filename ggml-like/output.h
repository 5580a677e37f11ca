/* output.h: files that appear when they are complete, and lists of messages about them. */
#ifndef OCT_OUTPUT_H
#define OCT_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A list of one-line messages: warnings, problems. Start from zero. Not thread-safe. */
typedef struct oct_lines {
    char **line; /* [n], each malloc'd, without newline */
    size_t n, cap;
    bool failed; /* a line was lost for want of memory */
} oct_lines;

/* Releases all lines and leaves an empty list. */
OCT_API void oct_lines_free(oct_lines *l);

/* A file that appears under its name only when it is complete: it is written under a temporary
 * name beside it, OUT.tmp-PID, synced, and renamed. OUT may be a link: the file that it leads to
 * is made. The temporary file is locked (flock) while it is written. */
typedef struct oct_output {
    char *path, *temp; /* temp: NULL while there is no temporary file */
    int fd;
    const char *from; /* the file that what is written is mapped from, for messages; may be NULL */
} oct_output;         /* start with {.fd = -1} */

/* Whether path can become a new file: it does not exist, or is a regular file, none of the n inputs
 * (paths; those that do not exist are passed over), and none of this process's standard streams. */
OCT_API OCT_MUST_CHECK oct_status oct_output_check(const char *path, const char *const *inputs,
                                                   size_t n, oct_error *err);
/* Whether the disk of path's folder has room for n bytes; the error names both numbers. (Creating
 * asks that first.) */
OCT_API OCT_MUST_CHECK oct_status oct_output_room(const char *path, uint64_t n, oct_error *err);
/* Creates the temporary file, n bytes long, its blocks reserved where the file system can. What
 * oct_output_check refuses, the inputs apart, is refused here too, and when it is published. While
 * another process makes the same file that is an error; files that earlier runs left behind are
 * named in a warning (warnings may be NULL). */
OCT_API OCT_MUST_CHECK oct_status oct_output_create(oct_output *o, const char *path, uint64_t n,
                                                    oct_lines *warnings, oct_error *err);
/* Writes, or reads back, n bytes at an offset; any number of threads at once. */
OCT_API OCT_MUST_CHECK oct_status oct_output_write(const oct_output *o, const void *data, size_t n,
                                                   uint64_t at, oct_error *err);
OCT_API OCT_MUST_CHECK oct_status oct_output_read(const oct_output *o, void *data, size_t n,
                                                  uint64_t at, oct_error *err);
/* Waits until the bytes are on the disk, and drops them from memory, so that reading them back
 * reads the disk. */
OCT_API OCT_MUST_CHECK oct_status oct_output_sync(const oct_output *o, oct_error *err);
/* Gives the file its name (replacing a file of that name) and syncs the folder. */
OCT_API OCT_MUST_CHECK oct_status oct_output_publish(oct_output *o, oct_error *err);
/* Closes, and removes the temporary file if it was not published. */
OCT_API void oct_output_close(oct_output *o);

#ifdef __cplusplus
}
#endif
#endif
