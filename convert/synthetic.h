/* synthetic.h: model files of any shape with random weights, for measuring and testing at true
 * sizes without a checkpoint. */
#ifndef OCT_SYNTHETIC_H
#define OCT_SYNTHETIC_H

#include "grok.h"
#include "status.h"

typedef struct oct_synthetic_params {
    oct_grok_config config; /* checked here */
    uint64_t seed;          /* the same seed, the same file */
    bool hollow;            /* a hole instead of weights: for planning, takes no space */
    int fd;                 /* an open, empty, writable file; the caller's */
    void (*progress)(void *ctx, uint64_t done, uint64_t total); /* may be NULL */
    void *progress_ctx;
    const volatile int *cancel; /* may be NULL */
} oct_synthetic_params;

/* Writes a complete file that oct_model_open accepts: integers over the whole range, scales such
 * that every product keeps its input's magnitude, no tokenizer. Tensor checksums are those of the
 * data. */
OCT_MUST_CHECK oct_status oct_synthetic_write(const oct_synthetic_params *p, oct_error *err);

/* Grok-1's numbers, with n_layers layers and a vocabulary of n_vocab. */
oct_grok_config oct_synthetic_grok1(int64_t n_layers, int64_t n_vocab);

#endif
