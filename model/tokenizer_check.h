/* tokenizer_check.h: what libsentencepiece does not check in a model before it uses it. */
#ifndef OCT_TOKENIZER_CHECK_H
#define OCT_TOKENIZER_CHECK_H

#include <stddef.h>

#include "status.h"

/* Looks through the bytes of a SentencePiece model (a protobuf message) for its character maps
 * (precompiled_charsmap of normalizer and denormalizer), which the library follows without looking
 * at bounds: a size, a double-array trie, and the texts that its values point to. For any text
 * that could ever be encoded, every unit of the trie that is visited must be inside it, every
 * value must be the start of a text that ends in the map, a text may have no more than 32 prefixes
 * in the trie (the library has room for so many), and what stands in its place may have no more
 * than 64 bytes (Unicode's own have up to 33; a map must not make gigabytes of a page). Likewise
 * of its user-defined pieces no more than 64 may begin one another. Messages that protobuf might
 * read otherwise than this does (groups, numbers of more than 32 bits where there are none) are
 * refused. Errors (OCT_ERR_FORMAT) name the place. Memory: 8 bytes for each unit, 16 for each
 * user-defined piece. Safe for untrusted input; thread-safe. */
OCT_MUST_CHECK oct_status oct_spm_check(const void *bytes, size_t n, oct_error *err);

#endif
