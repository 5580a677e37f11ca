#include "kv_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "file_map.h"

static const char magic[8] = "OCTETKV";

_Static_assert(sizeof(oct_kv_file_head) == OCT_KV_FILE_BUILD + 16 * 8, "no padding in files");
_Static_assert(sizeof(oct_kv_file_entry) == 16 + 4 * OCT_KV_PAGE, "no padding in files");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian");

enum { MAX_PAGES = 1 << 24 };

uint64_t oct_kv_file_sum(const void *page, size_t n)
{
    return XXH3_64bits(page, n);
}

uint64_t oct_kv_file_pages_at(int64_t n_room)
{
    const uint64_t n = sizeof(oct_kv_file_head) + (uint64_t)n_room * sizeof(oct_kv_file_entry);
    return (n + OCT_KV_FILE_ALIGN - 1) / OCT_KV_FILE_ALIGN * OCT_KV_FILE_ALIGN;
}

uint64_t oct_kv_file_digest(const oct_kv_file_entry *e, int64_t n)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum = XXH3_64bits_withSeed(&e[i].parent, sizeof *e - offsetof(oct_kv_file_entry, parent),
                                   sum);
    return sum;
}

void oct_kv_file_seal(unsigned char *front, const oct_kv_file_head *from)
{
    oct_kv_file_head head = *from;
    memcpy(head.magic, magic, sizeof magic);
    head.sum = 0;
    head.pages_at = oct_kv_file_pages_at(head.n_room);
    memcpy(front, &head, sizeof head);
    head.sum = oct_kv_file_sum(front, head.pages_at);
    memcpy(front, &head, sizeof head);
}

/* ---- reading -------------------------------------------------------------------------------- */

static oct_status read_at(int fd, const char *path, void *to, size_t n, uint64_t at, oct_error *err)
{
    const int64_t have = oct_file_read(fd, to, n, at);
    if (have < 0)
        return oct_fail(err, OCT_ERR_IO, "%s: reading %zu bytes at %llu: %s", path, n,
                        (unsigned long long)at, strerror(errno));
    if (have < (int64_t)n)
        return oct_fail(err, OCT_ERR_FORMAT, "%s: ends at %llu, expected %zu bytes more", path,
                        (unsigned long long)at + (unsigned long long)have, n - (size_t)have);
    return OCT_OK;
}

/* The numbers of a kind, with what they are called in messages. */
static const struct {
    const char *name;
    size_t at;
} numbers[] = {
    {"KV type", offsetof(oct_kv_kind, kv)},
    {"activations", offsetof(oct_kv_kind, act)},
    {"order of sums", offsetof(oct_kv_kind, sums)},
    {"positions of a page", offsetof(oct_kv_kind, page)},
    {"layers", offsetof(oct_kv_kind, n_layers)},
    {"first head", offsetof(oct_kv_kind, first_head)},
    {"heads", offsetof(oct_kv_kind, n_heads)},
    {"dimensions of a head", offsetof(oct_kv_kind, head_dim)},
    {"stride of values", offsetof(oct_kv_kind, v_stride)},
};

static oct_status check_kind(const char *path, const oct_kv_kind *is, const oct_kv_kind *want,
                             oct_error *err)
{
    if (is->fingerprint != want->fingerprint)
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s: of another model: its fingerprint is %016llx, expected %016llx", path,
                        (unsigned long long)is->fingerprint, (unsigned long long)want->fingerprint);
    if (memcmp(is->build, want->build, sizeof is->build) != 0)
        return oct_fail(err, OCT_ERR_FORMAT, "%s: by another build of octet: %.16s, this is %.16s",
                        path, is->build, want->build);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int64_t a, b;
        memcpy(&a, (const char *)is + numbers[i].at, sizeof a);
        memcpy(&b, (const char *)want + numbers[i].at, sizeof b);
        if (a != b)
            return oct_fail(err, OCT_ERR_FORMAT, "%s: of another session: %s: %lld, expected %lld",
                            path, numbers[i].name, (long long)a, (long long)b);
    }
    return OCT_OK;
}

static oct_status check_size(const oct_kv_file_head *h, const char *path, uint64_t bytes,
                             uint64_t page_bytes, oct_error *err)
{
    uint64_t all;
    if (h->n_pages < 0 || h->n_room < h->n_pages || h->n_room > MAX_PAGES ||
        h->page_bytes != page_bytes || h->pages_at != oct_kv_file_pages_at(h->n_room) ||
        __builtin_mul_overflow((uint64_t)h->n_pages, page_bytes, &all) ||
        __builtin_add_overflow(all, h->pages_at, &all))
        return oct_fail(err, OCT_ERR_FORMAT, "%s: damaged: its sizes contradict each other", path);
    if (all != bytes)
        return oct_fail(err, OCT_ERR_FORMAT, "%s: is %llu bytes long, expected %llu", path,
                        (unsigned long long)bytes, (unsigned long long)all);
    return OCT_OK;
}

static oct_status check_list(const oct_kv_file *f, int64_t n_vocab, oct_error *err)
{
    for (int64_t i = 0; i < f->head->n_pages; i++) {
        const oct_kv_file_entry *e = &f->entry[i];
        bool right = e->parent >= -1 && e->parent < i;
        for (int64_t k = 0; k < OCT_KV_PAGE; k++)
            right = right && e->ids[k] >= 0 && e->ids[k] < n_vocab;
        if (!right)
            return oct_fail(err, OCT_ERR_FORMAT, "%s: page %lld: holds what no session writes",
                            f->path, (long long)i);
    }
    return OCT_OK;
}

oct_status oct_kv_file_read(int fd, const char *path, const oct_kv_kind *want, uint64_t page_bytes,
                            int64_t n_vocab, oct_kv_file *f, oct_error *err)
{
    oct_kv_file_head head;
    struct stat st;
    *f = (oct_kv_file){.fd = fd, .path = path};
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return oct_fail(err, OCT_ERR_IO, "%s: is not a regular file", path);
    if ((st.st_uid != geteuid() && geteuid() != 0) || (st.st_mode & (S_IWGRP | S_IWOTH)))
        return oct_fail(err, OCT_ERR_FORMAT, "%s: other users can write to it", path);
    OCT_TRY(read_at(fd, path, &head, sizeof head, 0, err));
    if (memcmp(head.magic, magic, sizeof magic) != 0)
        return oct_fail(err, OCT_ERR_FORMAT, "%s: holds no keys and values of octet", path);
    OCT_TRY(check_kind(path, &head.kind, want, err));
    OCT_TRY(check_size(&head, path, (uint64_t)st.st_size, page_bytes, err));
    f->front = malloc(head.pages_at);
    if (!f->front)
        return oct_fail(err, OCT_ERR_MEMORY, "%s: out of memory for a list of %lld pages", path,
                        (long long)head.n_room);
    OCT_TRY(read_at(fd, path, f->front, head.pages_at, 0, err));
    const uint64_t sum = head.sum;
    head.sum = 0;
    memcpy(f->front, &head, sizeof head);
    const uint64_t found = oct_kv_file_sum(f->front, head.pages_at);
    if (found != sum)
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s: damaged: the checksum of its list is %016llx, expected %016llx", path,
                        (unsigned long long)found, (unsigned long long)sum);
    f->head = (const void *)f->front;
    f->entry = (const void *)(f->front + sizeof head);
    return check_list(f, n_vocab, err);
}

oct_status oct_kv_file_read_page(const oct_kv_file *f, int64_t i, void *to, oct_error *err)
{
    const uint64_t bytes = f->head->page_bytes;
    OCT_TRY(read_at(f->fd, f->path, to, bytes, f->head->pages_at + (uint64_t)i * bytes, err));
    const uint64_t found = oct_kv_file_sum(to, bytes);
    if (found != f->entry[i].sum)
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s: damaged: the checksum of page %lld is %016llx, expected %016llx",
                        f->path, (long long)i, (unsigned long long)found,
                        (unsigned long long)f->entry[i].sum);
    return OCT_OK;
}

void oct_kv_file_free(oct_kv_file *f)
{
    free(f->front);
    f->front = NULL;
}
