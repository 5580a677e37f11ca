/* gguf_write.c: makes the header of a GGUF v3 file, see gguf.h. What it makes is checked by the
 * reader itself before it is handed out, so there is one list of rules. */
#include "gguf_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Growing bytes; once an allocation was refused nothing is added any more. */
typedef struct buffer {
    uint8_t *data;
    size_t n, size;
    bool failed;
} buffer;

typedef struct entry { /* a key, as offsets into the pairs */
    size_t key_at, key_bytes, value_at;
} entry;

struct oct_gguf_writer {
    uint64_t alignment;
    buffer kv;      /* encoded pairs */
    buffer entries; /* entry[n_kv] */
    buffer infos;   /* encoded tensor infos */
    buffer offsets; /* uint64_t[n_tensors], from the start of the data */
    uint64_t n_kv, n_tensors, data_bytes;
    oct_error err;
};

static void append(buffer *b, const void *data, size_t n)
{
    if (!b->failed && n > b->size - b->n) {
        size_t size = b->size + b->size / 2 + n + 256;
        uint8_t *p = size > b->size ? realloc(b->data, size) : NULL;
        b->failed = !p;
        if (p) {
            b->data = p;
            b->size = size;
        }
    }
    if (b->failed || n == 0)
        return;
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

static void append_u32(buffer *b, uint32_t v)
{
    append(b, &v, sizeof v);
}

static void append_u64(buffer *b, uint64_t v)
{
    append(b, &v, sizeof v);
}

static void append_string(buffer *b, const char *s, size_t n)
{
    append_u64(b, n);
    append(b, s, n);
}

oct_gguf_writer *oct_gguf_writer_new(uint64_t alignment)
{
    oct_gguf_writer *w = calloc(1, sizeof *w);

    if (!w)
        return NULL;
    w->alignment = alignment;
    if (alignment < OCT_GGUF_MIN_ALIGNMENT || alignment > OCT_GGUF_MAX_ALIGNMENT ||
        (alignment & (alignment - 1)))
        (void)oct_fail(&w->err, OCT_ERR_ARG,
                       "alignment: expected a power of two in %d..%d, found %" PRIu64,
                       OCT_GGUF_MIN_ALIGNMENT, OCT_GGUF_MAX_ALIGNMENT, alignment);
    oct_gguf_put_u32(w, OCT_GGUF_KEY_ALIGNMENT, (uint32_t)alignment);
    return w;
}

void oct_gguf_writer_free(oct_gguf_writer *w)
{
    if (!w)
        return;
    free(w->kv.data);
    free(w->entries.data);
    free(w->infos.data);
    free(w->offsets.data);
    free(w);
}

/* Starts a pair, whose first value byte follows after another value_skip bytes. */
static buffer *put_key(oct_gguf_writer *w, const char *key, uint32_t type, size_t value_skip)
{
    entry e = {.key_at = w->kv.n + 8, .key_bytes = strlen(key)};

    append_string(&w->kv, key, e.key_bytes);
    append_u32(&w->kv, type);
    e.value_at = w->kv.n + value_skip;
    if (!w->kv.failed) /* else it would lead to bytes that are not there */
        append(&w->entries, &e, sizeof e);
    w->n_kv++;
    return &w->kv;
}

void oct_gguf_put_u32(oct_gguf_writer *w, const char *key, uint32_t v)
{
    append_u32(put_key(w, key, OCT_GGUF_U32, 0), v);
}

void oct_gguf_put_u64(oct_gguf_writer *w, const char *key, uint64_t v)
{
    append_u64(put_key(w, key, OCT_GGUF_U64, 0), v);
}

void oct_gguf_put_f32(oct_gguf_writer *w, const char *key, float v)
{
    append(put_key(w, key, OCT_GGUF_F32, 0), &v, sizeof v);
}

void oct_gguf_put_bool(oct_gguf_writer *w, const char *key, bool v)
{
    append(put_key(w, key, OCT_GGUF_BOOL, 0), &(uint8_t){v}, 1);
}

void oct_gguf_put_str(oct_gguf_writer *w, const char *key, const char *v)
{
    append_string(put_key(w, key, OCT_GGUF_STRING, 8), v, strlen(v));
}

static buffer *put_array(oct_gguf_writer *w, const char *key, uint32_t elem_type, uint64_t n)
{
    buffer *b = put_key(w, key, OCT_GGUF_ARRAY, 12);

    append_u32(b, elem_type);
    append_u64(b, n);
    return b;
}

void oct_gguf_put_strs(oct_gguf_writer *w, const char *key, const char *const *v, const size_t *len,
                       uint64_t n)
{
    buffer *b = put_array(w, key, OCT_GGUF_STRING, n);

    for (uint64_t i = 0; i < n; i++)
        append_string(b, v[i], len[i]);
}

void oct_gguf_put_array(oct_gguf_writer *w, const char *key, uint32_t elem_type, const void *v,
                        uint64_t n)
{
    unsigned width = oct_gguf_type_bytes(elem_type);
    size_t bytes;

    if (!width || __builtin_mul_overflow(n, (uint64_t)width, &bytes)) {
        (void)oct_fail(&w->err, OCT_ERR_ARG,
                       "key '%.80s': expected elements of a fixed size that fit, found %" PRIu64
                       " of type %" PRIu32,
                       key, n, elem_type);
        return;
    }
    append(put_array(w, key, elem_type, n), v, bytes);
}

int64_t oct_gguf_put_tensor(oct_gguf_writer *w, const char *name, uint32_t dtype, int rank,
                            const uint64_t *ne)
{
    uint64_t bytes = 0, end = 0;

    if (w->err.status == OCT_OK && (!oct_gguf_tensor_bytes(dtype, rank, ne, &bytes) ||
                                    __builtin_add_overflow(w->data_bytes, bytes, &end) ||
                                    !oct_gguf_align(end, w->alignment, &end)))
        (void)oct_fail(
            &w->err, OCT_ERR_SHAPE,
            "tensor '%.63s': expected a known type and a size below 2^63 bytes, found type %" PRIu32
            " of rank %d",
            name, dtype, rank);
    if (w->err.status != OCT_OK)
        return 0;
    append_string(&w->infos, name, strlen(name));
    append_u32(&w->infos, (uint32_t)rank);
    for (int i = 0; i < rank; i++)
        append_u64(&w->infos, ne[i]);
    append_u32(&w->infos, dtype);
    append_u64(&w->infos, w->data_bytes);
    append_u64(&w->offsets, w->data_bytes);
    w->data_bytes = end;
    return (int64_t)w->n_tensors++;
}

uint64_t oct_gguf_writer_value_offset(const oct_gguf_writer *w, const char *key)
{
    for (size_t i = 0; i < w->entries.n / sizeof(entry); i++) {
        entry e;
        memcpy(&e, w->entries.data + i * sizeof e, sizeof e);
        if (e.key_bytes == strlen(key) && !memcmp(w->kv.data + e.key_at, key, e.key_bytes))
            return OCT_GGUF_PREFIX + e.value_at;
    }
    return 0;
}

/* Pads the pairs with a string of spaces so that the header is a multiple of data_alignment.
 * Without it the format would start the data at the next multiple of the (smaller) alignment. */
static bool pad_pairs(oct_gguf_writer *w, uint64_t data_alignment)
{
    uint64_t n = OCT_GGUF_PREFIX + w->kv.n + w->infos.n, end;

    if (!oct_gguf_align(n, w->alignment, &end))
        return false;
    if (end % data_alignment == 0)
        return true;
    n += 8 + strlen(OCT_GGUF_KEY_PADDING) + 4 + 8;
    if (!oct_gguf_align(n, data_alignment, &end))
        return false;
    buffer *b = put_key(w, OCT_GGUF_KEY_PADDING, OCT_GGUF_STRING, 8);
    append_u64(b, end - n);
    for (uint64_t i = n; i < end; i++)
        append(b, " ", 1);
    return true;
}

static oct_status check_header(const oct_gguf_writer *w, const buffer *out, oct_error *err)
{
    oct_gguf *g;

    OCT_TRY(oct_gguf_parse("new GGUF header", out->data, out->n, out->n + w->data_bytes, &g, err));
    oct_gguf_close(g);
    return OCT_OK;
}

oct_status oct_gguf_writer_header(oct_gguf_writer *w, uint64_t data_alignment, void **bytes,
                                  size_t *n, uint64_t *offsets, oct_error *err)
{
    buffer out = {0};
    oct_status status;

    *bytes = NULL;
    *n = 0;
    if (w->err.status != OCT_OK)
        return oct_fail(err, w->err.status, "%s", w->err.text);
    if (data_alignment < w->alignment || data_alignment > OCT_GGUF_MAX_ALIGNMENT ||
        (data_alignment & (data_alignment - 1)) || !pad_pairs(w, data_alignment))
        return oct_fail(err, OCT_ERR_ARG,
                        "data alignment: expected a power of two in %" PRIu64
                        "..%d, found %" PRIu64,
                        w->alignment, OCT_GGUF_MAX_ALIGNMENT, data_alignment);
    append(&out, "GGUF", 4);
    append_u32(&out, OCT_GGUF_VERSION);
    append_u64(&out, w->n_tensors);
    append_u64(&out, w->n_kv);
    append(&out, w->kv.data, w->kv.n);
    append(&out, w->infos.data, w->infos.n);
    while (out.n % w->alignment && !out.failed)
        append(&out, "", 1);
    if (out.failed || w->kv.failed || w->infos.failed || w->offsets.failed || w->entries.failed)
        status = oct_fail(err, OCT_ERR_MEMORY, "out of memory for a GGUF header");
    else
        status = check_header(w, &out, err);
    if (status != OCT_OK) {
        free(out.data);
        return status;
    }
    for (uint64_t i = 0; i < w->n_tensors; i++) {
        memcpy(&offsets[i], w->offsets.data + i * sizeof *offsets, sizeof *offsets);
        offsets[i] += out.n;
    }
    *bytes = out.data;
    *n = out.n;
    return OCT_OK;
}
