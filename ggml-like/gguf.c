/* gguf.c: reads GGUF v3 files through a mapping, see gguf.h. A cursor with a sticky first error
 * walks the header once; nothing is allocated before the bytes that fill it are known to exist. */
#include "gguf_impl.h"
#include "gguf_part.h"
#include "sniff.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct pair {
    const char *key;
    uint32_t type, elem_type;
    uint64_t n;      /* elements of an array, else 1 */
    uint64_t at;     /* of the first value byte, in the file */
    const char *str; /* copy of a string value */
} pair;

/* Strings live in blocks that never move, so pointers into them stay good. */
typedef struct block {
    struct block *next;
    size_t used, size;
    char text[];
} block;

struct oct_gguf {
    char *path;
    const uint8_t *bytes;
    uint64_t file_bytes, data_at, alignment;
    size_t mapped;  /* 0: the bytes are borrowed */
    oct_part *part; /* NULL: the file is whole */
    int64_t n_kv, n_tensors;
    pair *kv;
    oct_gguf_tensor *tensors;
    const pair **by_key;             /* sorted */
    const oct_gguf_tensor **by_name; /* sorted */
    block *strings;
};

static const char *const type_name[] = {
    [OCT_GGUF_U8] = "u8",       [OCT_GGUF_I8] = "i8",     [OCT_GGUF_U16] = "u16",
    [OCT_GGUF_I16] = "i16",     [OCT_GGUF_U32] = "u32",   [OCT_GGUF_I32] = "i32",
    [OCT_GGUF_F32] = "f32",     [OCT_GGUF_BOOL] = "bool", [OCT_GGUF_STRING] = "string",
    [OCT_GGUF_ARRAY] = "array", [OCT_GGUF_U64] = "u64",   [OCT_GGUF_I64] = "i64",
    [OCT_GGUF_F64] = "f64"};

/* Bytes of a value; 0 for strings and arrays, whose length is in the file. */
static const uint8_t type_size[] = {
    [OCT_GGUF_U8] = 1,  [OCT_GGUF_I8] = 1,  [OCT_GGUF_U16] = 2, [OCT_GGUF_I16] = 2,
    [OCT_GGUF_U32] = 4, [OCT_GGUF_I32] = 4, [OCT_GGUF_F32] = 4, [OCT_GGUF_BOOL] = 1,
    [OCT_GGUF_U64] = 8, [OCT_GGUF_I64] = 8, [OCT_GGUF_F64] = 8};

enum { N_TYPES = sizeof type_size };

unsigned oct_gguf_type_bytes(uint32_t type)
{
    return type < N_TYPES ? type_size[type] : 0;
}

/* The tensor types of enum oct_gguf_dtype: elements and bytes of a block. */
static const struct {
    uint32_t dtype, block, bytes;
} dtypes[] = {{OCT_GGUF_T_F32, 1, 4},
              {OCT_GGUF_T_F16, 1, 2},
              {OCT_GGUF_T_Q8_0, 32, 34},
              {OCT_GGUF_T_I8, 1, 1},
              {OCT_GGUF_T_BF16, 1, 2}};

bool oct_gguf_tensor_bytes(uint32_t dtype, int rank, const uint64_t *ne, uint64_t *bytes)
{
    uint64_t n = 1;
    size_t i = 0;

    while (i < sizeof dtypes / sizeof dtypes[0] && dtypes[i].dtype != dtype)
        i++;
    if (i == sizeof dtypes / sizeof dtypes[0] || rank < 1 || rank > 4 || ne[0] % dtypes[i].block)
        return false;
    for (int d = 0; d < rank; d++)
        if (__builtin_mul_overflow(n, ne[d], &n))
            return false;
    return !__builtin_mul_overflow(n / dtypes[i].block, (uint64_t)dtypes[i].bytes, bytes) &&
           *bytes <= INT64_MAX;
}

/* ---- cursor --------------------------------------------------------------------------------- */

typedef struct cursor {
    oct_gguf *g;
    uint64_t at, end;
    char place[128]; /* what is being read, for messages */
    oct_status status;
    oct_error *err;
} cursor;

static void fail(cursor *c, oct_status status, const char *fmt, ...) OCT_PRINTF(3, 4);

static void fail(cursor *c, oct_status status, const char *fmt, ...)
{
    char text[320];
    va_list args;

    if (c->status != OCT_OK)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    c->status = oct_fail(c->err, status, "%s: %s (near byte %" PRIu64 "): %s", c->g->path, c->place,
                         c->at, text);
}

/* The next n bytes, or NULL after an error. */
static const uint8_t *take(cursor *c, uint64_t n)
{
    const uint8_t *p = c->g->bytes + c->at;

    if (c->status != OCT_OK)
        return NULL;
    if (n > c->end - c->at) {
        if (c->end < c->g->file_bytes)
            fail(c, OCT_ERR_FORMAT,
                 "expected a header of at most %" PRIu64 " bytes, found a longer one", c->end);
        else
            fail(c, OCT_ERR_FORMAT,
                 "expected %" PRIu64 " more bytes, found the end of the file (%" PRIu64
                 " bytes): truncated?",
                 n, c->g->file_bytes);
        return NULL;
    }
    c->at += n;
    return p;
}

static uint64_t take_uint(cursor *c, unsigned width)
{
    const uint8_t *p = take(c, width);
    uint64_t v = 0;

    if (p)
        memcpy(&v, p, width);
    return v;
}

/* A copy of n bytes with a NUL behind them, owned by the file; NULL after an error. */
static const char *keep(cursor *c, const uint8_t *s, uint64_t n)
{
    block *b = c->g->strings;
    char *copy;

    if (!b || b->size - b->used <= n) {
        size_t size = n < 8192 ? 16384 : (size_t)n + 1;
        b = malloc(sizeof *b + size);
        if (!b) {
            fail(c, OCT_ERR_MEMORY, "out of memory for a string of %" PRIu64 " bytes", n);
            return NULL;
        }
        *b = (block){.next = c->g->strings, .size = size};
        c->g->strings = b;
    }
    copy = b->text + b->used;
    memcpy(copy, s, (size_t)n);
    copy[n] = '\0';
    b->used += (size_t)n + 1;
    return copy;
}

/* Walks over a string of at most max bytes without NUL; NULL after an error. */
static const uint8_t *take_string(cursor *c, uint64_t max, const char *what, uint64_t *n)
{
    const uint8_t *p;

    *n = take_uint(c, 8);
    if (c->status == OCT_OK && *n > max)
        fail(c, OCT_ERR_FORMAT,
             "expected a %s of at most %" PRIu64 " bytes, found a length of %" PRIu64, what, max,
             *n);
    p = take(c, *n);
    if (p && memchr(p, 0, (size_t)*n)) {
        fail(c, OCT_ERR_FORMAT, "expected a %s without NUL, found one that holds a NUL", what);
        return NULL;
    }
    return p;
}

/* ---- header --------------------------------------------------------------------------------- */

static void read_array(cursor *c, pair *kv)
{
    uint64_t least;

    kv->elem_type = (uint32_t)take_uint(c, 4);
    kv->n = take_uint(c, 8);
    kv->at = c->at;
    if (c->status != OCT_OK)
        return;
    if (kv->elem_type >= N_TYPES || kv->elem_type == OCT_GGUF_ARRAY) {
        fail(c, OCT_ERR_FORMAT,
             "expected an array of scalars or strings, found element type %" PRIu32, kv->elem_type);
        return;
    }
    least = kv->elem_type == OCT_GGUF_STRING ? 8 : type_size[kv->elem_type];
    if (kv->n > (c->end - c->at) / least) {
        fail(c, OCT_ERR_FORMAT,
             "expected at most the %" PRIu64
             " elements that the file has room for, found an array of "
             "%" PRIu64 ": truncated?",
             (c->end - c->at) / least, kv->n);
        return;
    }
    if (kv->elem_type == OCT_GGUF_STRING) {
        for (uint64_t i = 0, n; i < kv->n && c->status == OCT_OK; i++)
            take_string(c, OCT_GGUF_MAX_HEADER, "string", &n);
        return;
    }
    const uint8_t *p = take(c, kv->n * least);
    if (kv->elem_type == OCT_GGUF_BOOL)
        for (uint64_t i = 0; p && i < kv->n; i++)
            if (p[i] > 1) {
                fail(c, OCT_ERR_FORMAT, "expected bools of 0 or 1, found %u", p[i]);
                return;
            }
}

static void read_pair(cursor *c, int64_t i)
{
    pair *kv = &c->g->kv[i];
    uint64_t n;
    const uint8_t *p;

    snprintf(c->place, sizeof c->place, "key %" PRId64 " of %" PRId64, i + 1, c->g->n_kv);
    p = take_string(c, OCT_GGUF_MAX_KEY, "key", &n);
    if (p && n == 0)
        fail(c, OCT_ERR_FORMAT, "expected a key, found an empty string");
    kv->key = p ? keep(c, p, n) : NULL;
    if (kv->key)
        snprintf(c->place, sizeof c->place, "key '%.80s'", kv->key);
    kv->type = (uint32_t)take_uint(c, 4);
    kv->n = 1;
    kv->at = c->at;
    if (c->status != OCT_OK)
        return;
    if (kv->type >= N_TYPES) {
        fail(c, OCT_ERR_FORMAT, "expected a value type of 0..%d, found %" PRIu32, N_TYPES - 1,
             kv->type);
    } else if (kv->type == OCT_GGUF_ARRAY) {
        read_array(c, kv);
    } else if (kv->type == OCT_GGUF_STRING) {
        kv->at += 8;
        p = take_string(c, OCT_GGUF_MAX_HEADER, "string", &n);
        kv->str = p ? keep(c, p, n) : NULL;
    } else {
        p = take(c, type_size[kv->type]);
        if (p && kv->type == OCT_GGUF_BOOL && *p > 1)
            fail(c, OCT_ERR_FORMAT, "expected a bool of 0 or 1, found %u", *p);
    }
}

static void read_tensor_info(cursor *c, int64_t i)
{
    oct_gguf_tensor *t = &c->g->tensors[i];
    uint64_t n, rank;
    const uint8_t *p;
    const char *arch = "(none)";

    snprintf(c->place, sizeof c->place, "tensor %" PRId64 " of %" PRId64, i + 1, c->g->n_tensors);
    p = take_string(c, OCT_GGUF_MAX_NAME, "tensor name", &n);
    if (p && n == 0)
        fail(c, OCT_ERR_FORMAT, "expected a name, found an empty string");
    t->name = p ? keep(c, p, n) : NULL;
    if (t->name)
        snprintf(c->place, sizeof c->place, "tensor '%s'", t->name);
    rank = take_uint(c, 4);
    if (c->status == OCT_OK && (rank < 1 || rank > 4))
        fail(c, OCT_ERR_FORMAT, "expected 1 to 4 dimensions, found %" PRIu64, rank);
    if (c->status != OCT_OK)
        return;
    t->rank = (int)rank;
    for (int d = 0; d < 4; d++) {
        t->ne[d] = d < t->rank ? take_uint(c, 8) : 1;
        if (c->status == OCT_OK && (t->ne[d] == 0 || t->ne[d] > INT64_MAX))
            fail(c, OCT_ERR_FORMAT, "expected dimension %d in 1..2^63-1, found %" PRIu64, d,
                 t->ne[d]);
    }
    t->dtype = (uint32_t)take_uint(c, 4);
    t->offset = take_uint(c, 8);
    if (c->status != OCT_OK)
        return;
    if (oct_gguf_tensor_bytes(t->dtype, t->rank, t->ne, &t->bytes))
        return;
    if (oct_gguf_tensor_bytes(t->dtype, 1, (const uint64_t[]){32}, &n)) {
        fail(c, OCT_ERR_FORMAT,
             "expected a size below 2^63 bytes and rows of whole blocks, found type %" PRIu32
             " with dimensions %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64,
             t->dtype, t->ne[0], t->ne[1], t->ne[2], t->ne[3]);
        return;
    }
    /* The likely reason is a file made for another runtime; the architecture tells. */
    (void)!oct_gguf_get_str(c->g, "general.architecture", &arch, NULL);
    fail(c, OCT_ERR_UNSUPPORTED,
         "expected tensor type 0 (f32), 1 (f16), 8 (q8_0), 24 (i8) or 30 (bf16), found %" PRIu32
         "; the file's architecture is '%.40s'",
         t->dtype, arch);
}

static int compare_pairs(const void *a, const void *b)
{
    return strcmp((*(const pair *const *)a)->key, (*(const pair *const *)b)->key);
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp((*(const oct_gguf_tensor *const *)a)->name,
                  (*(const oct_gguf_tensor *const *)b)->name);
}

static void index_pairs(cursor *c)
{
    oct_gguf *g = c->g;

    for (int64_t i = 0; i < g->n_kv; i++)
        g->by_key[i] = &g->kv[i];
    qsort(g->by_key, (size_t)g->n_kv, sizeof *g->by_key, compare_pairs);
    snprintf(c->place, sizeof c->place, "keys");
    for (int64_t i = 1; i < g->n_kv; i++)
        if (!strcmp(g->by_key[i - 1]->key, g->by_key[i]->key))
            fail(c, OCT_ERR_FORMAT, "expected every key once, found '%.80s' twice",
                 g->by_key[i]->key);
}

static void index_tensors(cursor *c)
{
    oct_gguf *g = c->g;

    for (int64_t i = 0; i < g->n_tensors; i++)
        g->by_name[i] = &g->tensors[i];
    qsort(g->by_name, (size_t)g->n_tensors, sizeof *g->by_name, compare_tensors);
    snprintf(c->place, sizeof c->place, "tensor names");
    for (int64_t i = 1; i < g->n_tensors; i++)
        if (!strcmp(g->by_name[i - 1]->name, g->by_name[i]->name))
            fail(c, OCT_ERR_FORMAT, "expected every tensor once, found '%s' twice",
                 g->by_name[i]->name);
}

static const pair *find_pair(const oct_gguf *g, const char *key)
{
    const pair wanted = {.key = key}, *p = &wanted;
    const pair **hit = bsearch(&p, g->by_key, (size_t)g->n_kv, sizeof *g->by_key, compare_pairs);

    return hit ? *hit : NULL;
}

static oct_status wrong_type(const oct_gguf *g, const char *key, const char *expected,
                             const pair *kv, oct_error *err)
{
    if (!kv)
        return oct_fail(err, OCT_ERR_FORMAT, "%s: key '%.80s': expected %s, found no such key",
                        g->path, key, expected);
    if (kv->type == OCT_GGUF_ARRAY)
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s: key '%.80s': expected %s, found an array of %" PRIu64 " %s", g->path,
                        key, expected, kv->n, type_name[kv->elem_type]);
    return oct_fail(err, OCT_ERR_FORMAT, "%s: key '%.80s': expected %s, found a %s", g->path, key,
                    expected, type_name[kv->type]);
}

/* The keys that say how the file itself is made. */
static void read_file_keys(cursor *c)
{
    oct_gguf *g = c->g;
    uint64_t split = 1;

    if (c->status != OCT_OK)
        return;
    snprintf(c->place, sizeof c->place, "key '%s'", OCT_GGUF_KEY_ALIGNMENT);
    g->alignment = OCT_GGUF_DEFAULT_ALIGNMENT;
    const pair *alignment = find_pair(g, OCT_GGUF_KEY_ALIGNMENT);
    if (alignment && alignment->type != OCT_GGUF_U32) { /* the one key whose type is prescribed */
        c->status = wrong_type(g, OCT_GGUF_KEY_ALIGNMENT, "a u32", alignment, c->err);
    } else if (alignment) {
        c->status = oct_gguf_get_u64(g, OCT_GGUF_KEY_ALIGNMENT, &g->alignment, c->err);
        if (c->status == OCT_OK &&
            (g->alignment < OCT_GGUF_MIN_ALIGNMENT || g->alignment > OCT_GGUF_MAX_ALIGNMENT ||
             (g->alignment & (g->alignment - 1))))
            fail(c, OCT_ERR_FORMAT, "expected a power of two in %d..%d, found %" PRIu64,
                 OCT_GGUF_MIN_ALIGNMENT, OCT_GGUF_MAX_ALIGNMENT, g->alignment);
    }
    snprintf(c->place, sizeof c->place, "key 'split.count'");
    if (oct_gguf_get_u64(g, "split.count", &split, NULL) == OCT_OK && split > 1)
        fail(c, OCT_ERR_UNSUPPORTED,
             "expected a model in one file, found one part of a model split into %" PRIu64
             " files; join them first",
             split);
}

static int compare_places(const void *a, const void *b)
{
    const uint64_t x = (*(const oct_gguf_tensor *const *)a)->offset,
                   y = (*(const oct_gguf_tensor *const *)b)->offset;
    return x < y ? -1 : x > y;
}

static void place_tensor(cursor *c, oct_gguf_tensor *t)
{
    const oct_gguf *g = c->g;

    snprintf(c->place, sizeof c->place, "tensor '%s'", t->name);
    if (t->offset % g->alignment)
        fail(c, OCT_ERR_FORMAT,
             "expected an offset that is a multiple of %" PRIu64 ", found %" PRIu64, g->alignment,
             t->offset);
    else if (g->data_at > g->file_bytes || t->offset > g->file_bytes - g->data_at ||
             t->bytes > g->file_bytes - g->data_at - t->offset)
        fail(c, OCT_ERR_FORMAT,
             "expected %" PRIu64 " bytes at %" PRIu64 " of the data, which begins at byte %" PRIu64
             ", found a file of %" PRIu64 " bytes: truncated?",
             t->bytes, t->offset, g->data_at, g->file_bytes);
    else
        t->offset += g->data_at;
}

/* Every tensor lies at a multiple of the alignment, inside the file, and over no other one. Their
 * order, gaps, and what follows the last one are left to the file's architecture. */
static void place_tensors(cursor *c)
{
    oct_gguf *g = c->g;

    if (!oct_gguf_align(c->at, g->alignment, &g->data_at))
        g->data_at = UINT64_MAX;
    for (int64_t i = 0; i < g->n_tensors && c->status == OCT_OK; i++) {
        place_tensor(c, &g->tensors[i]);
        g->by_name[i] = &g->tensors[i]; /* by place, until index_tensors */
    }
    if (c->status != OCT_OK)
        return;
    qsort(g->by_name, (size_t)g->n_tensors, sizeof *g->by_name, compare_places);
    for (int64_t i = 1; i < g->n_tensors; i++) {
        const oct_gguf_tensor *t = g->by_name[i], *before = g->by_name[i - 1];
        snprintf(c->place, sizeof c->place, "tensor '%s'", t->name);
        if (before->bytes > t->offset - before->offset)
            fail(c, OCT_ERR_FORMAT,
                 "expected a place behind tensor '%s', which ends at byte %" PRIu64
                 ", found byte %" PRIu64,
                 before->name, before->offset + before->bytes, t->offset);
    }
    if (g->data_at > g->file_bytes) /* no tensors, no padding */
        g->data_at = g->file_bytes;
}

static void read_prefix(cursor *c, uint64_t *n_tensors, uint64_t *n_kv)
{
    const uint8_t *b = c->g->bytes;
    uint64_t n = c->end, version;

    snprintf(c->place, sizeof c->place, "start of file");
    if (n == 0) {
        fail(c, OCT_ERR_FORMAT, "expected a GGUF file, found an empty file");
    } else if (memcmp(b, "GGUF", n < 4 ? (size_t)n : 4)) {
        char hex[16] = "";
        for (size_t i = 0; i < 4 && i < n; i++)
            snprintf(hex + 3 * i, 4, " %02x", b[i]);
        const char *what = oct_sniff(b, (size_t)n);
        fail(c, OCT_ERR_FORMAT, "expected \"GGUF\" (47 47 55 46), found%s%s%s", hex,
             what ? ": " : "", what ? what : "");
    }
    take(c, 4);
    version = take_uint(c, 4);
    if (c->status == OCT_OK && version != OCT_GGUF_VERSION) {
        bool swapped = version >> 24 && !(version & 0xffffff);
        fail(c, OCT_ERR_UNSUPPORTED, "expected GGUF version %d, found %" PRIu64 "%s",
             OCT_GGUF_VERSION, swapped ? version >> 24 : version,
             swapped ? " of a big-endian file" : "");
    }
    *n_tensors = take_uint(c, 8);
    *n_kv = take_uint(c, 8);
    if (c->status == OCT_OK && (*n_tensors > OCT_GGUF_MAX_TENSORS || *n_kv > OCT_GGUF_MAX_KV))
        fail(c, OCT_ERR_FORMAT,
             "expected at most %d tensors and %d keys, found %" PRIu64 " and %" PRIu64,
             OCT_GGUF_MAX_TENSORS, OCT_GGUF_MAX_KV, *n_tensors, *n_kv);
    /* The shortest key has 14 bytes, the shortest tensor 33. */
    if (c->status == OCT_OK && *n_tensors * 33 + *n_kv * 14 > c->end - c->at)
        fail(c, OCT_ERR_FORMAT,
             "expected at least %" PRIu64 " bytes for %" PRIu64 " tensors and %" PRIu64
             " keys, found a file of %" PRIu64 " bytes: truncated?",
             *n_tensors * 33 + *n_kv * 14, *n_tensors, *n_kv, c->g->file_bytes);
}

static void read_header(cursor *c)
{
    oct_gguf *g = c->g;
    uint64_t n_tensors, n_kv;

    read_prefix(c, &n_tensors, &n_kv);
    if (c->status != OCT_OK)
        return;
    g->kv = calloc(n_kv + 1, sizeof *g->kv);
    g->by_key = calloc(n_kv + 1, sizeof *g->by_key);
    g->tensors = calloc(n_tensors + 1, sizeof *g->tensors);
    g->by_name = calloc(n_tensors + 1, sizeof *g->by_name);
    if (!g->kv || !g->by_key || !g->tensors || !g->by_name) {
        fail(c, OCT_ERR_MEMORY, "out of memory for %" PRIu64 " keys and %" PRIu64 " tensors", n_kv,
             n_tensors);
        return;
    }
    g->n_kv = (int64_t)n_kv;
    for (int64_t i = 0; i < g->n_kv && c->status == OCT_OK; i++)
        read_pair(c, i);
    if (c->status == OCT_OK)
        index_pairs(c);
    read_file_keys(c);
    g->n_tensors = (int64_t)n_tensors;
    for (int64_t i = 0; i < g->n_tensors && c->status == OCT_OK; i++)
        read_tensor_info(c, i);
    if (c->status == OCT_OK)
        place_tensors(c);
    if (c->status == OCT_OK)
        index_tensors(c);
}

oct_status oct_gguf_parse(const char *path, const void *bytes, size_t n, uint64_t file_bytes,
                          oct_gguf **out, oct_error *err)
{
    oct_gguf *g = calloc(1, sizeof *g);
    cursor c = {.g = g, .end = n, .err = err};

    *out = NULL;
    if (g)
        g->path = strdup(path);
    if (!g || !g->path) {
        free(g);
        return oct_fail(err, OCT_ERR_MEMORY, "%s: out of memory", path);
    }
    g->bytes = bytes;
    g->file_bytes = file_bytes;
    if (c.end > OCT_GGUF_MAX_HEADER)
        c.end = OCT_GGUF_MAX_HEADER;
    read_header(&c);
    /* A part may hold less than the whole's header and its padding. */
    if (c.status == OCT_OK && g->data_at > n)
        c.status = oct_fail(err, OCT_ERR_FORMAT,
                            "%s: the header ends with its padding at byte %" PRIu64
                            ", but only %zu bytes of it are held",
                            path, g->data_at, n);
    if (c.status != OCT_OK) {
        oct_gguf_close(g);
        return c.status;
    }
    *out = g;
    return OCT_OK;
}

/* ---- file ----------------------------------------------------------------------------------- */

/* Maps a regular file; *map stays NULL for an empty one. The caller frees *part in any case. */
static oct_status map_file(int fd, const char *path, const void **map, size_t *n, oct_part **part,
                           oct_error *err)
{
    struct stat st;
    oct_status status = OCT_OK;

    *map = NULL;
    *n = 0;
    *part = NULL;
    if (fstat(fd, &st) != 0) {
        status = oct_fail(err, OCT_ERR_IO, "%s: cannot stat: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        status = oct_fail(err, OCT_ERR_IO, "%s: expected a GGUF file, found a %s", path,
                          S_ISDIR(st.st_mode) ? "directory" : "device, pipe or socket");
    } else if (st.st_size > 0) {
        status = oct_part_map(fd, path, (uint64_t)st.st_size, map, n, part, err);
    }
    return status;
}

static void unmap(const void *map, size_t n)
{
    if (n)
        munmap((void *)(uintptr_t)map, n);
}

oct_status oct_gguf_open(const char *path, oct_gguf **out, oct_error *err)
{
    /* Opening a pipe would wait for its other end without O_NONBLOCK. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    *out = NULL;
    if (fd < 0)
        return oct_fail(err, OCT_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    oct_status status = oct_gguf_open_fd(fd, path, out, err);
    close(fd);
    return status;
}

oct_status oct_gguf_open_fd(int fd, const char *path, oct_gguf **out, oct_error *err)
{
    const void *map;
    size_t n;
    oct_gguf *g = NULL;
    oct_part *part;

    *out = NULL;
    oct_status status = map_file(fd, path, &map, &n, &part, err);
    if (status == OCT_OK) {
        /* A part's first run has the header; no byte beyond it may be looked at. */
        status =
            oct_gguf_parse(path, n ? map : "", part ? (size_t)part->run[0].bytes : n, n, &g, err);
        if (!g)
            unmap(map, n);
    }
    if (!g) {
        oct_part_free(part);
        return status;
    }
    g->mapped = n;
    g->part = part;
    for (int64_t i = 0; i < g->n_tensors; i++)
        g->tensors[i].data = g->bytes + g->tensors[i].offset;
    *out = g;
    return OCT_OK;
}

void oct_gguf_close(oct_gguf *g)
{
    if (!g)
        return;
    while (g->strings) {
        block *next = g->strings->next;
        free(g->strings);
        g->strings = next;
    }
    free(g->by_name);
    free(g->by_key);
    free(g->tensors);
    free(g->kv);
    free(g->path);
    unmap(g->bytes, g->mapped);
    oct_part_free(g->part);
    free(g);
}

/* ---- access --------------------------------------------------------------------------------- */

const char *oct_gguf_path(const oct_gguf *g)
{
    return g->path;
}

uint64_t oct_gguf_file_bytes(const oct_gguf *g)
{
    return g->file_bytes;
}

const oct_part *oct_gguf_part(const oct_gguf *g)
{
    return g->part;
}

uint64_t oct_gguf_alignment(const oct_gguf *g)
{
    return g->alignment;
}

uint64_t oct_gguf_data_offset(const oct_gguf *g)
{
    return g->data_at;
}

const void *oct_gguf_bytes(const oct_gguf *g)
{
    return g->bytes;
}

int64_t oct_gguf_n_tensors(const oct_gguf *g)
{
    return g->n_tensors;
}

const oct_gguf_tensor *oct_gguf_tensor_at(const oct_gguf *g, int64_t i)
{
    return &g->tensors[i];
}

const oct_gguf_tensor *oct_gguf_find(const oct_gguf *g, const char *name)
{
    const oct_gguf_tensor wanted = {.name = name}, *p = &wanted;
    const oct_gguf_tensor **hit =
        bsearch(&p, g->by_name, (size_t)g->n_tensors, sizeof *g->by_name, compare_tensors);

    return hit ? *hit : NULL;
}

int64_t oct_gguf_n_kv(const oct_gguf *g)
{
    return g->n_kv;
}

const char *oct_gguf_key_at(const oct_gguf *g, int64_t i, uint32_t *type, uint32_t *elem_type,
                            uint64_t *n)
{
    *type = g->kv[i].type;
    *elem_type = g->kv[i].elem_type;
    *n = g->kv[i].n;
    return g->kv[i].key;
}

bool oct_gguf_has(const oct_gguf *g, const char *key)
{
    return find_pair(g, key) != NULL;
}

uint64_t oct_gguf_value_offset(const oct_gguf *g, const char *key)
{
    const pair *kv = find_pair(g, key);

    return kv ? kv->at : 0;
}

oct_status oct_gguf_get_u64(const oct_gguf *g, const char *key, uint64_t *v, oct_error *err)
{
    const pair *kv = find_pair(g, key);
    uint64_t u = 0;
    bool is_signed = false;

    if (kv) {
        switch (kv->type) {
        case OCT_GGUF_I8:
        case OCT_GGUF_I16:
        case OCT_GGUF_I32:
        case OCT_GGUF_I64: is_signed = true; break;
        case OCT_GGUF_U8:
        case OCT_GGUF_U16:
        case OCT_GGUF_U32:
        case OCT_GGUF_U64: break;
        default: return wrong_type(g, key, "an integer", kv, err);
        }
    } else {
        return wrong_type(g, key, "an integer", kv, err);
    }
    memcpy(&u, g->bytes + kv->at, type_size[kv->type]);
    if (is_signed && u >> (8 * type_size[kv->type] - 1))
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s: key '%.80s': expected an integer >= 0, found a negative one", g->path,
                        key);
    *v = u;
    return OCT_OK;
}

oct_status oct_gguf_get_f32(const oct_gguf *g, const char *key, float *v, oct_error *err)
{
    const pair *kv = find_pair(g, key);

    if (!kv || kv->type != OCT_GGUF_F32)
        return wrong_type(g, key, "an f32", kv, err);
    memcpy(v, g->bytes + kv->at, sizeof *v);
    return OCT_OK;
}

oct_status oct_gguf_get_str(const oct_gguf *g, const char *key, const char **v, oct_error *err)
{
    const pair *kv = find_pair(g, key);

    if (!kv || kv->type != OCT_GGUF_STRING)
        return wrong_type(g, key, "a string", kv, err);
    *v = kv->str;
    return OCT_OK;
}

oct_status oct_gguf_get_array(const oct_gguf *g, const char *key, uint32_t elem_type,
                              const void **data, uint64_t *n, oct_error *err)
{
    const pair *kv = find_pair(g, key);
    char expected[32];

    if (!oct_gguf_type_bytes(elem_type))
        return oct_fail(err, OCT_ERR_ARG, "key '%.80s': element type %" PRIu32 " has no fixed size",
                        key, elem_type);
    snprintf(expected, sizeof expected, "an array of %s", type_name[elem_type]);
    if (!kv || kv->type != OCT_GGUF_ARRAY || kv->elem_type != elem_type)
        return wrong_type(g, key, expected, kv, err);
    *data = g->bytes + kv->at;
    *n = kv->n;
    return OCT_OK;
}
