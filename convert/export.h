/* export.h: writes a model file as a GGUF of architecture "grok" that stock llama.cpp runs.
 *
 * Matrices become type Q8_0: rows of blocks, each an f16 scale and 32 integers. The integers are
 * the model's own, and every block carries the scale of its group, so nothing is quantised again.
 * That needs groups that are multiples of 32 inputs, and scales that f16 holds exactly (every bf16
 * from 2^-17 to 65504 is one). Embedding: BF16, tied to the output head; norms and router: F32. */
#ifndef OCT_EXPORT_H
#define OCT_EXPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "lines.h"
#include "status.h"

typedef struct oct_export_options {
    bool lossy;                 /* round scales that f16 does not hold, instead of refusing */
    const volatile int *cancel; /* non-zero: stop and leave nothing; may be NULL */
    /* Bytes written of total, and the temporary file's name. May be NULL. */
    void (*progress)(void *ctx, uint64_t done, uint64_t total, const char *temp);
    void *ctx;
} oct_export_options;

typedef struct oct_export_report {
    uint64_t bytes;     /* of the new file */
    int64_t n_scales;   /* of the model's matrices */
    int64_t n_inexact;  /* of them not held by f16: rounded if lossy */
    oct_lines warnings; /* the caller frees them with oct_lines_free, whatever the outcome */
} oct_export_report;

/* Reads the model at model_path and writes out_path. A file of that name is replaced, but only by
 * a complete one; until then the data is in a temporary file beside it, which is removed on any
 * error. Streams: needs a few MiB and no more. A model that llama.cpp could not run or that Q8_0
 * does not hold is refused before anything is written (OCT_ERR_UNSUPPORTED, with the reason);
 * scales that f16 does not hold, when all have been counted. The tokenizer goes along if the model
 * has one. A dense model becomes one expert with a router of zeros, whose gate is 1. */
OCT_MUST_CHECK oct_status oct_export_q8_0(const char *model_path, const char *out_path,
                                          const oct_export_options *options,
                                          oct_export_report *report, oct_error *err);

#endif
