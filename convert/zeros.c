#include "zeros.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    CHUNK = 512, /* a run of so many zero bytes is no chance */
    TOLD = 3072, /* so many are worth a line: of a page that lies anyhow more are whole chunks */
    PLACES = 64  /* matrices that are told of one by one */
};

/* *at, *bytes: the first hole, and the size of all. File systems that know of none: false. */
static bool has_hole(int fd, uint64_t n, uint64_t *at, uint64_t *bytes)
{
    off_t hole = lseek(fd, 0, SEEK_HOLE);
    *bytes = 0;
    *at = hole < 0 ? 0 : (uint64_t)hole;
    while (hole >= 0 && (uint64_t)hole < n) {
        off_t data = lseek(fd, hole, SEEK_DATA);
        uint64_t end = data < 0 ? n : (uint64_t)data;
        if (end <= (uint64_t)hole) /* changes while we look */
            break;
        *bytes += (end < n ? end : n) - (uint64_t)hole;
        hole = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
    }
    return *bytes > 0;
}

void oct_hole_tell(int fd, const char *file, uint64_t n, oct_lines *problems)
{
    uint64_t at, bytes;
    if (has_hole(fd, n, &at, &bytes))
        oct_lines_add(problems,
                      "%s: %" PRIu64 " of its %" PRIu64 " bytes, the first at %" PRIu64
                      ", are a hole: zeros that were never written; was its download finished? (If "
                      "the zeros are meant, make a copy with cp --sparse=never)",
                      file, bytes, n, at);
}

typedef struct place {
    oct_source_tensor tensor;
    oct_source_part part;
    int64_t expert, row, column; /* of the first, as read */
    uint64_t bytes;
} place;

struct oct_zeros {
    pthread_mutex_t lock;
    place place[PLACES];
    int n;
    int64_t n_more; /* blocks of further matrices */
};

oct_zeros *oct_zeros_new(void)
{
    oct_zeros *z = calloc(1, sizeof *z);
    if (z)
        pthread_mutex_init(&z->lock, NULL);
    return z;
}

void oct_zeros_free(oct_zeros *z)
{
    if (z)
        pthread_mutex_destroy(&z->lock);
    free(z);
}

static size_t element_of(const oct_source_tensor *t, oct_source_part part)
{
    if (part == OCT_SOURCE_SCALES || t->dtype == OCT_SOURCE_BF16)
        return 2;
    return t->dtype == OCT_SOURCE_I8 ? 1 : 4;
}

static bool all_zero(const uint8_t *p, size_t n)
{
    return n > 0 && p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
}

static void count(oct_zeros *z, const oct_source_tensor *t, oct_source_part part,
                  const oct_block *b, int64_t element, uint64_t bytes)
{
    int i = 0;
    pthread_mutex_lock(&z->lock);
    while (i < z->n && (z->place[i].tensor.role != t->role ||
                        z->place[i].tensor.layer != t->layer || z->place[i].part != part))
        i++;
    if (i == PLACES) {
        z->n_more++;
    } else {
        if (i == z->n)
            z->place[z->n++] = (place){*t,
                                       part,
                                       b->expert,
                                       b->row + element / b->n_columns,
                                       b->column + element % b->n_columns,
                                       0};
        z->place[i].bytes += bytes;
    }
    pthread_mutex_unlock(&z->lock);
}

void oct_zeros_look(oct_zeros *z, const oct_source_tensor *t, oct_source_part part,
                    const oct_block *b, const void *data)
{
    const size_t element = element_of(t, part),
                 n = (size_t)b->n_rows * (size_t)b->n_columns * element;
    const uint8_t *p = data;
    uint64_t bytes = 0;
    size_t first = 0;
    for (size_t at = 0, k; at < n; at += k) {
        k = n - at < CHUNK ? n - at : CHUNK;
        if ((k < CHUNK && n > CHUNK) || !all_zero(p + at, k))
            continue;
        first = bytes ? first : at;
        bytes += k;
    }
    if (bytes)
        count(z, t, part, b, (int64_t)(first / element), bytes);
}

void oct_zeros_tell(oct_zeros *z, const oct_source *s, oct_lines *warnings)
{
    for (int i = 0; i < z->n; i++) {
        const place *p = &z->place[i];
        const oct_source_tensor *t = &p->tensor;
        char where[OCT_SOURCE_WHERE];
        uint64_t all = (uint64_t)t->n_experts * (uint64_t)t->n_out * element_of(t, p->part) *
                       (uint64_t)(p->part == OCT_SOURCE_SCALES ? t->n_groups : t->n_in);
        s->kind->where(s, t, p->part, p->expert, p->row, p->column, where);
        if (p->bytes >= all)
            oct_lines_add(warnings,
                          "%s and all others there are zero: a download that was not finished? "
                          "Compare the file's checksum with its source's",
                          where);
        else if (p->bytes >= TOLD)
            oct_lines_add(warnings,
                          "%" PRIu64 " of %" PRIu64 " bytes are runs of zeros, the first at %s: a "
                          "download that was not finished? Compare the file's checksum with its "
                          "source's",
                          p->bytes, all, where);
    }
    if (z->n_more)
        oct_lines_add(warnings, "more than %d matrices have runs of zeros", PLACES);
    z->n = 0;
    z->n_more = 0;
}
