/* pieces.h: the tensors of a new file, cut into pieces that are made one by one from the source, so
 * that memory does not depend on the model's size; and the comparison of a finished file with its
 * source. */
#ifndef OCT_PIECES_H
#define OCT_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "convert.h"
#include "grok.h"
#include "q8.h"
#include "source.h"
#include "status.h"

/* A tensor of the new file and what it is made from. */
typedef struct oct_new_tensor {
    oct_grok_tensor desc;                /* kind OCT_GROK_KINDS: the tokenizer */
    const oct_weight_layout *layout;     /* of packed units or their scales; NULL for the rest */
    const struct oct_new_tensor *scales; /* of packed units: the tensor of their scales */
    const oct_grok_embedding *embedding; /* of the embedding only */
    const oct_source *source;
    oct_source_tensor src[OCT_WEIGHT_MAX_PARTS];
    const uint8_t *raw; /* the tokenizer's bytes */
    uint64_t at, bytes; /* place in the file */
    uint64_t sum;       /* XXH3, once written */
} oct_new_tensor;

/* A run of bytes of one tensor. */
typedef struct oct_piece {
    int64_t tensor; /* index into the list of tensors */
    int64_t expert, slice;
    int64_t n_slices; /* packed: 1, or whole units of so many slices, whose outputs are side by side
                       * in the source, so that it is read in longer runs */
    int64_t first, n; /* packed, scales: panels of the unit; embedding: rows of the slice; norms,
                       * router: rows; the tokenizer: bytes */
    uint64_t at;      /* in the file */
    size_t bytes;     /* padding up to the next unit included */
} oct_piece;

/* Whether a packed tensor's sources are plain arrays that are quantised on the way. */
bool oct_new_tensor_is_plain(const oct_new_tensor *t);

/* Cuts all tensors into pieces of about max_bytes, in file order; those with plain sources always
 * alike, so that errors are added up in the same order. *out is malloc'd. */
OCT_MUST_CHECK oct_status oct_pieces_cut(const oct_new_tensor *t, int64_t n_tensors,
                                         size_t max_bytes, oct_piece **out, int64_t *n,
                                         oct_error *err);

/* Bytes of working memory that making or verifying any of the pieces needs, and the tensor whose
 * piece needs them. */
size_t oct_pieces_scratch(const oct_new_tensor *t, const oct_piece *p, int64_t n, int64_t *most);

/* Makes the bytes of a piece at the start of scratch (64-byte aligned). NaN and infinite numbers of
 * the source are errors that name file and element. */
OCT_MUST_CHECK oct_status oct_piece_make(const oct_new_tensor *t, const oct_piece *p,
                                         uint8_t *scratch, oct_error *err);

/* Reads a piece back to the start of scratch (room bytes, as oct_pieces_scratch says), where it
 * stays, and compares it with the source, without the code that made it (pieces_verify.c). For
 * matrices that were quantised on the way: every weight, with its stored scale, within half a step
 * of its source; the difference is added to *q8_error. */
OCT_MUST_CHECK oct_status oct_piece_verify(const oct_new_tensor *t, const oct_piece *p,
                                           const oct_output *file, uint8_t *scratch, size_t room,
                                           oct_q8_error *q8_error, oct_error *err);

/* Tells the system that an expert's matrices will be read soon, if the piece is the first of it. */
void oct_piece_prefetch(const oct_new_tensor *t, const oct_piece *p);

#endif
