/* gguf_impl.h: what the GGUF reader (gguf.c) and writer (gguf_write.c) share; not for others. */
#ifndef OCT_GGUF_IMPL_H
#define OCT_GGUF_IMPL_H

#include "gguf.h"

enum {
    OCT_GGUF_VERSION = 3,
    OCT_GGUF_PREFIX = 24,            /* magic, version, two counts */
    OCT_GGUF_DEFAULT_ALIGNMENT = 32, /* of a file without "general.alignment" */
    OCT_GGUF_MIN_ALIGNMENT = 8,
    OCT_GGUF_MAX_ALIGNMENT = 2 << 20,
    OCT_GGUF_MAX_KV = 1 << 16,
    OCT_GGUF_MAX_TENSORS = 1 << 17,
    OCT_GGUF_MAX_KEY = 65535,
    OCT_GGUF_MAX_NAME = 63,         /* of a tensor */
    OCT_GGUF_MAX_HEADER = 256 << 20 /* bytes; the largest real one is a few MiB */
};

#define OCT_GGUF_KEY_ALIGNMENT "general.alignment"
#define OCT_GGUF_KEY_PADDING "general.padding"

/* Bytes of a value of this type; 0: a string, an array, or unknown. */
unsigned oct_gguf_type_bytes(uint32_t type);

/* v rounded up to a multiple of the power of two a; false on overflow. */
static inline bool oct_gguf_align(uint64_t v, uint64_t a, uint64_t *out)
{
    if (v > UINT64_MAX - (a - 1))
        return false;
    *out = (v + (a - 1)) & ~(a - 1);
    return true;
}

#endif
