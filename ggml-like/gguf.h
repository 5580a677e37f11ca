/* gguf.h: reading GGUF v3 files by mapping them, and writing them. Format facts: little-endian;
 * "GGUF", u32 version, u64 n_tensors, u64 n_kv, pairs, tensor infos, padding, data.
 * Every number in a file is untrusted: readers are safe for any input and name the place. */
#ifndef OCT_GGUF_H
#define OCT_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

enum oct_gguf_type { /* of a value; numbers of the format */
                     OCT_GGUF_U8 = 0,
                     OCT_GGUF_I8,
                     OCT_GGUF_U16,
                     OCT_GGUF_I16,
                     OCT_GGUF_U32,
                     OCT_GGUF_I32,
                     OCT_GGUF_F32,
                     OCT_GGUF_BOOL,
                     OCT_GGUF_STRING,
                     OCT_GGUF_ARRAY,
                     OCT_GGUF_U64,
                     OCT_GGUF_I64,
                     OCT_GGUF_F64
};

enum oct_gguf_dtype { /* of a tensor; the format's numbers, those Octet reads or writes */
                      OCT_GGUF_T_F32 = 0,
                      OCT_GGUF_T_F16 = 1,
                      OCT_GGUF_T_Q8_0 = 8,
                      OCT_GGUF_T_I8 = 24,
                      OCT_GGUF_T_BF16 = 30
};

typedef struct oct_gguf oct_gguf; /* an open file: immutable, safe to share between threads */

typedef struct oct_gguf_tensor {
    const char *name; /* NUL-terminated, owned by the file */
    uint32_t dtype;
    int rank;
    uint64_t ne[4];  /* fastest first, as in the file; 1 beyond rank */
    uint64_t offset; /* from the start of the file */
    uint64_t bytes;
    const void *data; /* inside the mapping */
} oct_gguf_tensor;

/* Opens and checks a file: magic, version, every length and offset, duplicate keys and tensors,
 * overlaps, sizes against the file's. In which order tensors lie, and whether with gaps, is for the
 * reader of an architecture to judge. Nothing but the header is read. The mapping is shared and
 * read-only; the file must not shrink while it is open. */
OCT_MUST_CHECK oct_status oct_gguf_open(const char *path, oct_gguf **out, oct_error *err);
/* The same for an open file, which stays the caller's; path is for messages. */
OCT_MUST_CHECK oct_status oct_gguf_open_fd(int fd, const char *path, oct_gguf **out,
                                           oct_error *err);
/* The same for a header that was read: n bytes are readable at bytes, the file (which may be
 * longer) has file_bytes; the header with its padding must be among the n. The result borrows
 * bytes; its tensors have no data. */
OCT_MUST_CHECK oct_status oct_gguf_parse(const char *path, const void *bytes, size_t n,
                                         uint64_t file_bytes, oct_gguf **out, oct_error *err);
void oct_gguf_close(oct_gguf *g); /* NULL is fine */

const char *oct_gguf_path(const oct_gguf *g);
uint64_t oct_gguf_file_bytes(const oct_gguf *g); /* of the whole file, if this is a part of one */
/* What the file holds of another one, whose header, offsets and sizes all else here tells; NULL: it
 * is whole. Data that a part does not hold must not be touched. */
const struct oct_part *oct_gguf_part(const oct_gguf *g);
uint64_t oct_gguf_data_offset(const oct_gguf *g); /* the header's size */
uint64_t oct_gguf_alignment(const oct_gguf *g);   /* of tensors, from data_offset on */
const void *oct_gguf_bytes(const oct_gguf *g);    /* the whole mapping */

int64_t oct_gguf_n_tensors(const oct_gguf *g);
const oct_gguf_tensor *oct_gguf_tensor_at(const oct_gguf *g, int64_t i);
const oct_gguf_tensor *oct_gguf_find(const oct_gguf *g, const char *name); /* NULL: absent */

int64_t oct_gguf_n_kv(const oct_gguf *g);
/* Key i, its type (and element type and count for an array). */
const char *oct_gguf_key_at(const oct_gguf *g, int64_t i, uint32_t *type, uint32_t *elem_type,
                            uint64_t *n);
bool oct_gguf_has(const oct_gguf *g, const char *key);

/* Typed lookups. Missing key or another type: an error that names key, expected, found. Integers of
 * any width and sign convert if the value fits. Strings: NUL-terminated copy owned by the file; a
 * string with NUL inside is refused when the file is opened. An array's data may be unaligned. */
OCT_MUST_CHECK oct_status oct_gguf_get_u64(const oct_gguf *g, const char *key, uint64_t *v,
                                           oct_error *err);
OCT_MUST_CHECK oct_status oct_gguf_get_f32(const oct_gguf *g, const char *key, float *v,
                                           oct_error *err);
OCT_MUST_CHECK oct_status oct_gguf_get_str(const oct_gguf *g, const char *key, const char **v,
                                           oct_error *err);
OCT_MUST_CHECK oct_status oct_gguf_get_array(const oct_gguf *g, const char *key, uint32_t elem_type,
                                             const void **data, uint64_t *n,
                                             oct_error *err); /* fixed-size elements */
/* Offset in the file of a scalar's or array's first value byte; 0 if absent. */
uint64_t oct_gguf_value_offset(const oct_gguf *g, const char *key);

/* WRITING. A writer collects pairs and tensors in memory, then the header's bytes are made in one
 * go; the data is the caller's to write at the offsets told. Sticky: after an error every call is a
 * no-op and oct_gguf_writer_header returns it. */
typedef struct oct_gguf_writer oct_gguf_writer;
oct_gguf_writer *oct_gguf_writer_new(uint64_t alignment); /* power of two; NULL: no memory */
void oct_gguf_writer_free(oct_gguf_writer *w);
void oct_gguf_put_u32(oct_gguf_writer *w, const char *key, uint32_t v);
void oct_gguf_put_u64(oct_gguf_writer *w, const char *key, uint64_t v);
void oct_gguf_put_f32(oct_gguf_writer *w, const char *key, float v);
void oct_gguf_put_bool(oct_gguf_writer *w, const char *key, bool v);
void oct_gguf_put_str(oct_gguf_writer *w, const char *key, const char *v);
/* n strings, each with its length (they may hold any byte but NUL). */
void oct_gguf_put_strs(oct_gguf_writer *w, const char *key, const char *const *v, const size_t *len,
                       uint64_t n);
void oct_gguf_put_array(oct_gguf_writer *w, const char *key, uint32_t elem_type, const void *v,
                        uint64_t n);
/* Tensors follow each other in the order added, each padded to the alignment. Returns its index. */
int64_t oct_gguf_put_tensor(oct_gguf_writer *w, const char *name, uint32_t dtype, int rank,
                            const uint64_t *ne);
/* Header bytes (malloc'd, the caller frees), padded so that data starts at a multiple of
 * data_alignment (>= alignment; the padding is the value of a string key "general.padding" when it
 * exceeds what the format's own padding gives), and for every tensor its offset in the file. */
OCT_MUST_CHECK oct_status oct_gguf_writer_header(oct_gguf_writer *w, uint64_t data_alignment,
                                                 void **bytes, size_t *n, uint64_t *offsets,
                                                 oct_error *err);
/* Where oct_gguf_writer_header puts the first value byte of a key already added: offset in the file
 * (for checksums, filled in last); 0: no such key. */
uint64_t oct_gguf_writer_value_offset(const oct_gguf_writer *w, const char *key);
/* Bytes of a tensor of this type and shape; false: no such number (overflow, part of a block). */
bool oct_gguf_tensor_bytes(uint32_t dtype, int rank, const uint64_t *ne, uint64_t *bytes);

#endif
