/* kv_file.h: pages of keys and values in a file, for a later process (session_save.c).
 *
 *     head             an oct_kv_file_head
 *     list             [n_room] entries, n_pages of them used, the rest zero
 *     zeros            up to a multiple of OCT_KV_FILE_ALIGN
 *     pages            [n_pages][layer][head of the rank] K and V as in kv_cache.h
 *
 * Numbers are the machine's own, little-endian. A checksum is over all before the pages, and one
 * over each page. Pages come in an order in which any number of the first ones is complete: each
 * behind the one that it continues. */
#ifndef OCT_KV_FILE_H
#define OCT_KV_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "kv_pages.h"
#include "status.h"

enum { OCT_KV_FILE_ALIGN = 4096, OCT_KV_FILE_BUILD = 96 };

/* All that the bits and the places of keys and values depend on. */
typedef struct oct_kv_kind {
    char build[OCT_KV_FILE_BUILD]; /* of Octet; NUL behind it to the end */
    uint64_t fingerprint;          /* of the model's file */
    int64_t kv, act;               /* oct_kv_type, oct_act */
    int64_t sums;                  /* in which order: 0 as kernels.h has them, 1 ref, 2 BLAS */
    int64_t page, n_layers, first_head, n_heads, head_dim, v_stride;
} oct_kv_kind;

typedef struct oct_kv_file_head {
    char magic[8];
    uint64_t sum; /* XXH3 of all that comes before the pages, this taken as zero */
    oct_kv_kind kind;
    int64_t n_pages, n_room;
    uint64_t page_bytes, pages_at;
} oct_kv_file_head;

typedef struct oct_kv_file_entry {
    uint64_t sum;   /* XXH3 of the page */
    int64_t parent; /* the entry that it continues, one before it; -1: none */
    int32_t ids[OCT_KV_PAGE];
} oct_kv_file_entry;

/* Where pages begin behind a list with so much room. */
uint64_t oct_kv_file_pages_at(int64_t n_room);

/* All before the pages, of a file that is open for reading. */
typedef struct oct_kv_file {
    int fd;           /* borrowed */
    const char *path; /* for messages, borrowed */
    unsigned char *front;
    const oct_kv_file_head *head;   /* in front */
    const oct_kv_file_entry *entry; /* [n_pages] in front */
} oct_kv_file;

/* Reads and checks all but the pages: a file that is damaged, not of this format, of another kind
 * or not as long as it says is an error that names what differs, as is one that others can write
 * to: checksums are no signatures; OCT_ERR_MEMORY. n_vocab: ids are
 * below. Free with oct_kv_file_free in any case. */
OCT_MUST_CHECK oct_status oct_kv_file_read(int fd, const char *path, const oct_kv_kind *want,
                                           uint64_t page_bytes, int64_t n_vocab, oct_kv_file *f,
                                           oct_error *err);
/* Reads page i into to[page_bytes]; an error if that is not what was written. */
OCT_MUST_CHECK oct_status oct_kv_file_read_page(const oct_kv_file *f, int64_t i, void *to,
                                                oct_error *err);
void oct_kv_file_free(oct_kv_file *f);

/* front: [pages_at], the list filled in, zeros behind it. Writes head, whose n_room, n_pages,
 * page_bytes and kind are set, at its beginning. */
void oct_kv_file_seal(unsigned char *front, const oct_kv_file_head *head);
/* What the first n entries say but for the pages' sums, which are a rank's own. */
uint64_t oct_kv_file_digest(const oct_kv_file_entry *e, int64_t n);
uint64_t oct_kv_file_sum(const void *page, size_t n);

#endif
