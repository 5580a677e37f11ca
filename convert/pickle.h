/* pickle.h: what is in one file of an xAI checkpoint, without unpickling it.
 *
 * A pickle is a program for a stack machine. This reader knows the opcodes that CPython's pickler
 * writes (protocol 4) for one numpy array, or for one QuantizedWeight8bit that holds an int8 array
 * `weight` and a bfloat16 array `scales`; it interprets them symbolically. No global is looked up,
 * nothing is called, nothing is allocated. Anything that is not needed for such a file is refused,
 * and there is no fallback. */
#ifndef OCT_PICKLE_H
#define OCT_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

typedef enum oct_pickle_dtype { OCT_PICKLE_I8, OCT_PICKLE_BF16, OCT_PICKLE_F32 } oct_pickle_dtype;

enum { OCT_PICKLE_MAX_RANK = 4 };

/* An array in C order, little-endian. Its bytes lie anywhere in the file: not aligned. */
typedef struct oct_pickle_array {
    oct_pickle_dtype dtype;
    int rank;                           /* 1..4 */
    int64_t shape[OCT_PICKLE_MAX_RANK]; /* each >= 1 */
    int64_t n;                          /* elements */
    size_t at, bytes;                   /* place of the payload in the file */
} oct_pickle_array;

typedef struct oct_pickle {
    bool quantised; /* a QuantizedWeight8bit: weight and scales; else weight only */
    oct_pickle_array weight;
    oct_pickle_array scales;
} oct_pickle;

/* Bytes of an element: 1, 2, 4. */
size_t oct_pickle_dtype_bytes(oct_pickle_dtype t);
/* "int8", "bf16", "f32". */
const char *oct_pickle_dtype_name(oct_pickle_dtype t);

/* Describes the n bytes of a file; `name` stands for it in messages. Touches only the pages that
 * hold opcodes, not the payloads. Errors (OCT_ERR_FORMAT) name the file, the offset, and the opcode
 * or the global. Safe for untrusted input; thread-safe. */
OCT_MUST_CHECK oct_status oct_pickle_read(const char *name, const void *data, size_t n,
                                          oct_pickle *out, oct_error *err);

#endif
