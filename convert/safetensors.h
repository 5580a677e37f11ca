/* safetensors.h: what is in one file of Hugging Face's safetensors format.
 *
 *     u64 n (little-endian), n bytes of JSON, the tensors' bytes
 *
 * The JSON is one object: "name": {"dtype": "BF16", "shape": [6144, 1024], "data_offsets": [from,
 * to]}, offsets counted from behind the JSON; "__metadata__" may hold strings. Tensors are
 * contiguous, row-major, little-endian; together they fill the file without holes and overlaps. */
#ifndef OCT_SAFETENSORS_H
#define OCT_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

enum {
    OCT_SAFETENSORS_MAX_RANK = 4,
    OCT_SAFETENSORS_MAX_HEADER = 16 << 20, /* Grok-1's takes 0.4 MB */
    OCT_SAFETENSORS_MAX_TENSORS = 1 << 15  /* Grok-1 has 2115 */
};

typedef enum oct_st_dtype { OCT_ST_BF16, OCT_ST_F16, OCT_ST_F32, OCT_ST_OTHER } oct_st_dtype;

typedef struct oct_st_tensor {
    char *name; /* may hold any characters */
    oct_st_dtype dtype;
    char type[12]; /* as the file spells it */
    int rank;
    int64_t shape[OCT_SAFETENSORS_MAX_RANK];
    uint64_t at, bytes; /* in the file */
} oct_st_tensor;

/* Sorted by name. */
typedef struct oct_safetensors {
    oct_st_tensor *tensor; /* [n] */
    int64_t n;
} oct_safetensors;

/* Parses the JSON (n bytes) of a file of file_bytes bytes; `name` stands for it in messages. Errors
 * (OCT_ERR_FORMAT) name the file, the tensor, what was expected and what was found. Memory is a few
 * times n, whatever the bytes are. Safe for untrusted input; thread-safe. Free *out in any case. */
OCT_MUST_CHECK oct_status oct_safetensors_parse(const char *name, const char *json, size_t n,
                                                uint64_t file_bytes, oct_safetensors *out,
                                                oct_error *err);
/* Reads the header of an open file. What is no such file is told by its first bytes. */
OCT_MUST_CHECK oct_status oct_safetensors_read(const char *name, int fd, uint64_t file_bytes,
                                               oct_safetensors *out, oct_error *err);
void oct_safetensors_free(oct_safetensors *s);

/* The tensor of a name; NULL: none. */
const oct_st_tensor *oct_safetensors_find(const oct_safetensors *s, const char *name);

/* Whether a text of n bytes is JSON that is no deeper than `depth` and has no more than max_values
 * commas, so that parsing it takes bounded memory and stack. Says nothing else about it. */
bool oct_json_is_tame(const char *json, size_t n, int depth, int64_t max_values);

/* "BF16 [6144, 1024]". */
void oct_st_shape_text(const oct_st_tensor *t, char text[120]);

#endif
