/* new_header.h: the header of a new model file. */
#ifndef OCT_NEW_HEADER_H
#define OCT_NEW_HEADER_H

#include "grok.h"
#include "status.h"

enum { OCT_FILE_ALIGN = 4096 };

/* Header bytes (malloc'd) of a file with these tensors in this order and these checksums, its own
 * checksum filled in; offsets[n] receives each tensor's place. The size does not depend on the
 * checksums. */
OCT_MUST_CHECK oct_status oct_new_header(const oct_grok_config *config,
                                         const oct_grok_tensor *const *tensors,
                                         const uint64_t *sums, int64_t n, uint64_t *offsets,
                                         void **bytes, size_t *n_bytes, oct_error *err);

#endif
