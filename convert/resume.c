#include "resume.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

typedef struct list_head {
    char magic[8];
    uint64_t key, file_bytes, n;
} list_head;

static const char magic[8] = {'O', 'C', 'T', 'E', 'T', 'T', 'M', 'P'};

static uint64_t sum_of_files(const char *dir)
{
    uint64_t sum = 0; /* in whatever order the folder lists them */
    DIR *d = opendir(dir);
    struct stat st;
    for (struct dirent *e; d && (e = readdir(d));)
        if (fstatat(dirfd(d), e->d_name, &st, 0) == 0 && S_ISREG(st.st_mode)) {
            const int64_t v[] = {st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
            sum += XXH3_64bits_withSeed(v, sizeof v, XXH3_64bits(e->d_name, strlen(e->d_name)));
        }
    if (d)
        closedir(d);
    return sum;
}

uint64_t oct_resume_key(const oct_source *s, const void *header, size_t n, const oct_cut *cut)
{
    const uint64_t v[] = {XXH3_64bits(header, n), (uint64_t)cut->n, cut->room,
                          s->tokenizer ? XXH3_64bits(s->tokenizer, s->tokenizer_bytes) : 0,
                          sum_of_files(s->dir)};
    return XXH3_64bits(v, sizeof v);
}

static uint64_t sum_of(const void *data, size_t n)
{
    uint64_t sum = XXH3_64bits(data, n);
    return sum ? sum : 1;
}

static uint64_t place_of(const oct_resume *r, int64_t i)
{
    return r->file_bytes + sizeof(list_head) + (uint64_t)i * sizeof *r->sums;
}

static list_head head_of(const oct_resume *r)
{
    list_head h = {.key = r->key, .file_bytes = r->file_bytes, .n = (uint64_t)r->n};
    memcpy(h.magic, magic, sizeof magic);
    return h;
}

static bool is_same(void *ctx, int fd)
{
    const oct_resume *r = ctx;
    const list_head want = head_of(r);
    list_head have;
    return pread(fd, &have, sizeof have, (off_t)r->file_bytes) == (ssize_t)sizeof have &&
           memcmp(&have, &want, sizeof have) == 0;
}

oct_status oct_resume_create(oct_resume *r, oct_output *o, const char *path, uint64_t file_bytes,
                             int64_t n_pieces, uint64_t key, oct_lines *warnings, oct_error *err)
{
    *r = (oct_resume){.out = o, .key = key, .file_bytes = file_bytes, .n = n_pieces};
    r->sums = calloc((size_t)n_pieces + 1, sizeof *r->sums);
    if (!r->sums)
        return oct_fail(err, OCT_ERR_MEMORY, "out of memory for a list of pieces");
    OCT_TRY(oct_output_create_or(o, path, place_of(r, n_pieces), is_same, r, &r->resumed, warnings,
                                 err));
    if (!r->resumed) {
        const list_head h = head_of(r);
        return oct_output_write(o, &h, sizeof h, file_bytes, err);
    }
    oct_lines_add(warnings, "%s: going on with what a run that was interrupted has written",
                  o->temp);
    return oct_output_read(o, r->sums, (size_t)n_pieces * sizeof *r->sums, place_of(r, 0), err);
}

void oct_resume_free(oct_resume *r)
{
    free(r->sums);
    r->sums = NULL;
}

bool oct_resume_take(oct_resume *r, int64_t i, const oct_piece *p, void *data)
{
    if (!r->sums[i])
        return false;
    if (oct_output_read(r->out, data, p->bytes, p->at, NULL) == OCT_OK &&
        sum_of(data, p->bytes) == r->sums[i])
        return true;
    r->sums[i] = 0;
    return false;
}

oct_status oct_resume_mark(oct_resume *r, int64_t i, const oct_piece *p, const void *data,
                           oct_error *err)
{
    r->sums[i] = sum_of(data, p->bytes);
    return oct_output_write(r->out, &r->sums[i], sizeof *r->sums, place_of(r, i), err);
}

oct_status oct_resume_end(const oct_output *o, uint64_t file_bytes, oct_error *err)
{
    if (ftruncate(o->fd, (off_t)file_bytes) != 0)
        return oct_fail(err, OCT_ERR_IO, "%s: %s", o->temp, strerror(errno));
    return OCT_OK;
}
