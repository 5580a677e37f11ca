/* inspect.h: what a model file holds: its tensors and its keys. Thread-safe, as the model is
 * immutable. */
#ifndef OCT_INSPECT_H
#define OCT_INSPECT_H

#include "octet.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Strings belong to the model. */
typedef struct oct_tensor_info {
    const char *name;
    const char *type; /* "f32", "f16", "bf16", "i8", "q8_0"; "?" */
    int rank;
    uint64_t shape[4];      /* [rank] rows first */
    uint64_t offset, bytes; /* in the whole model's file */
} oct_tensor_info;
/* Tensor i, from 0 on; false after the last. */
OCT_API bool oct_model_get_tensor(const oct_model *m, int64_t i, oct_tensor_info *out);

typedef enum oct_key_value {
    OCT_KEY_INTEGER, /* u64 */
    OCT_KEY_REAL,    /* f32 */
    OCT_KEY_TEXT,    /* text */
    OCT_KEY_ARRAY,   /* u64 elements */
    OCT_KEY_OTHER    /* a negative number, or a type that Octet does not use */
} oct_key_value;
typedef struct oct_key_info {
    const char *key;
    const char *type; /* "u32", "string", "array" ...; "?" */
    oct_key_value value;
    uint64_t u64;
    float f32;
    const char *text;
} oct_key_info;
/* Metadata key i, from 0 on; false after the last. */
OCT_API bool oct_model_get_key(const oct_model *m, int64_t i, oct_key_info *out);

#ifdef __cplusplus
}
#endif
#endif
