/* tokenizer.h: a C interface to SentencePiece, the library that defines Grok-1's tokenizer. The
 * shim behind it (tokenizer_spm.cpp) lets no C++ exception through. An oct_spm is immutable and may
 * be used by several threads. */
#ifndef OCT_TOKENIZER_H
#define OCT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

typedef struct oct_spm oct_spm;

/* From the bytes of a SentencePiece model (copied). Safe for untrusted input: what the library does
 * not check is checked before (tokenizer_check.h), and whatever it throws or reports becomes an
 * error. */
OCT_MUST_CHECK oct_status oct_spm_new(const void *bytes, size_t n, oct_spm **out, oct_error *err);
void oct_spm_free(oct_spm *t);

int32_t oct_spm_size(const oct_spm *t);
int32_t oct_spm_pad(const oct_spm *t); /* -1: none */
int32_t oct_spm_bos(const oct_spm *t);
int32_t oct_spm_eos(const oct_spm *t);
int32_t oct_spm_unk(const oct_spm *t);

enum oct_spm_type { /* numbers of llama.cpp's tokenizer.ggml.token_type */
                    OCT_SPM_NORMAL = 1,
                    OCT_SPM_UNKNOWN,
                    OCT_SPM_CONTROL,
                    OCT_SPM_USER,
                    OCT_SPM_UNUSED,
                    OCT_SPM_BYTE
};
/* One piece as stored (U+2581 for a space, "<0x41>" for a byte); owned by t. id must be in
 * range. */
const char *oct_spm_piece(const oct_spm *t, int32_t id, size_t *n, float *score,
                          enum oct_spm_type *type);

/* What a token adds inside a text: U+2581 as a space, a byte piece as its byte, nothing for a
 * control piece. Owned by t; NULL if id is out of range. */
const char *oct_spm_bytes(const oct_spm *t, int32_t id, size_t *n);

/* text[n], valid UTF-8 -> ids, malloc'd. */
OCT_MUST_CHECK oct_status oct_spm_encode(const oct_spm *t, const char *text, size_t n,
                                         int32_t **ids, size_t *n_ids, oct_error *err);
/* ids -> text as the library decodes it, malloc'd, NUL-terminated. Ids must be in range. */
OCT_MUST_CHECK oct_status oct_spm_decode(const oct_spm *t, const int32_t *ids, size_t n_ids,
                                         char **text, size_t *n, oct_error *err);

#endif
