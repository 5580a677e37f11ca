/* output_impl.h: what of output.h programs do not need. */
#ifndef OCT_OUTPUT_IMPL_H
#define OCT_OUTPUT_IMPL_H

#include <sys/stat.h>

#include "output.h"

/* Adds a line; control characters in it become '?'. Sets failed if there is no memory. */
void oct_lines_add(oct_lines *l, const char *fmt, ...) OCT_PRINTF(2, 3);

/* Whether an open temporary file was left by the same work, so that it can be gone on with. */
typedef bool oct_output_same(void *ctx, int fd);
/* oct_output_create, or such a file (*resumed), if same is not NULL. */
OCT_MUST_CHECK oct_status oct_output_create_or(oct_output *o, const char *path, uint64_t n,
                                               oct_output_same *same, void *ctx, bool *resumed,
                                               oct_lines *warnings, oct_error *err);

/* oct_output_check where the inputs are told by their stat. */
OCT_MUST_CHECK oct_status oct_output_check_by(const char *path,
                                              bool (*is_input)(const void *ctx,
                                                               const struct stat *st),
                                              const void *ctx, oct_error *err);

#endif
