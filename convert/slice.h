/* slice.h: one rank's part of a model as a file of its own, for hosts that share no file system. */
#ifndef OCT_SLICE_H
#define OCT_SLICE_H

#include <stdint.h>

#include "gguf.h"
#include "lines.h"
#include "octet.h"

typedef enum oct_slice_phase {
    OCT_SLICE_WRITE,
    OCT_SLICE_SYNC,  /* waiting for the disk; done and total are 0 */
    OCT_SLICE_VERIFY /* reading back */
} oct_slice_phase;

typedef struct oct_slice_params {
    const char *model,
        *out; /* a whole model; the new file, replaced at the very end if it exists */
    oct_shard_layout by;
    int rank, size; /* size: at least 2 */
    /* Called at the start of each phase and after each piece. temp: the temporary file's name. May
     * be NULL. */
    void (*progress)(void *ctx, oct_slice_phase phase, uint64_t done, uint64_t total,
                     const char *temp);
    void *progress_ctx;
    const volatile int *cancel; /* non-zero: stop soon and leave nothing; NULL: never */
} oct_slice_params;

typedef struct oct_slice_report {
    uint64_t bytes, whole_bytes;
    int64_t n_runs;
    oct_lines warnings; /* the caller frees them with oct_lines_free, whatever the outcome */
} oct_slice_report;

/* Copies what the rank needs, reads it back and compares, and only then gives the file its name. Of
 * the model nothing but that is read: damage in it is found where whole tensors are copied (norms,
 * routers, tokenizer) or by oct_slice_verify on the model before. */
OCT_MUST_CHECK oct_status oct_slice(const oct_slice_params *p, oct_slice_report *report,
                                    oct_error *err);

/* Compares everything in a model file or part with the checksums in it: of every tensor that is
 * held whole, and of every run of a part. Names the first that differs. progress may be NULL. */
OCT_MUST_CHECK oct_status oct_slice_verify(const oct_gguf *g,
                                           void (*progress)(void *ctx, uint64_t done), void *ctx,
                                           const volatile int *cancel, oct_error *err);

#endif
