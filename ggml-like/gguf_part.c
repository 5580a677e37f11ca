#include "file_map.h"
#include "gguf_part.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    PAGE = 4096,
    HUGE_PAGE = 2 << 20,
    HUGE_RUN = 16 << 20,
    MAX_RUNS = 1 << 20,
    MAX_RANKS = 1 << 16
};

/* The table is the runs, and this at the end of the file. */
typedef struct footer {
    uint64_t n_runs;
    uint32_t layout; /* index of layout_of */
    uint32_t rank, size, zero;
    uint64_t whole_bytes;
    uint64_t sum; /* XXH3 of the runs and of what is before it here */
    char magic[8];
} footer;

/* The footer's numbers. */
static const oct_shard_layout layout_of[OCT_SHARD_LAYOUTS] = {
    OCT_SHARD_EXPERT, OCT_SHARD_SLICE, OCT_SHARD_EXPERT_REPLICATED, OCT_SHARD_SLICE_REPLICATED};

static uint32_t number_of(oct_shard_layout layout)
{
    uint32_t i = 0;
    while (i < OCT_SHARD_LAYOUTS - 1 && layout_of[i] != layout)
        i++;
    return i;
}

static const char magic[8] = {'O', 'C', 'T', 'P', 'A', 'R', 'T', '1'};

_Static_assert(sizeof(footer) == 48 && sizeof(oct_part_run) == 32, "as they are in the file");

static uint64_t pages(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

void oct_part_free(oct_part *p)
{
    if (p)
        free(p->run);
    free(p);
}

static size_t table_bytes(uint64_t n_runs)
{
    return (size_t)n_runs * sizeof(oct_part_run) + sizeof(footer);
}

void oct_part_place(oct_part *p)
{
    uint64_t end = 0;
    for (int64_t i = 0; i < p->n_runs; i++) {
        oct_part_run *r = &p->run[i];
        uint64_t align = r->bytes >= HUGE_RUN && r->at % HUGE_PAGE == 0 ? HUGE_PAGE : PAGE;
        r->place = (end + align - 1) / align * align;
        end = r->place + pages(r->bytes);
    }
    p->file_bytes = end + table_bytes((uint64_t)p->n_runs);
}

static uint64_t table_sum(const void *table, size_t n)
{
    return XXH3_64bits(table, n - sizeof(footer) + offsetof(footer, sum));
}

void *oct_part_table(const oct_part *p, size_t *n)
{
    *n = table_bytes((uint64_t)p->n_runs);
    char *table = malloc(*n);
    footer f = {.n_runs = (uint64_t)p->n_runs,
                .layout = number_of(p->layout),
                .rank = (uint32_t)p->rank,
                .size = (uint32_t)p->size,
                .whole_bytes = p->whole_bytes};
    if (!table)
        return NULL;
    memcpy(f.magic, magic, sizeof magic);
    memcpy(table, p->run, *n - sizeof f);
    memcpy(table + *n - sizeof f, &f, sizeof f);
    f.sum = table_sum(table, *n);
    memcpy(table + *n - sizeof f, &f, sizeof f);
    return table;
}

/* What is wrong with the runs; NULL: nothing. */
static const char *runs_fault(const oct_part *p)
{
    uint64_t end = 0, room = p->file_bytes - table_bytes((uint64_t)p->n_runs);
    if (p->run[0].at != 0)
        return "no run with the header";
    for (int64_t i = 0; i < p->n_runs; i++) {
        const oct_part_run *r = &p->run[i];
        if (r->at % PAGE || r->place % PAGE || r->bytes == 0)
            return "a run that is not whole pages";
        if (r->at < end || r->at > p->whole_bytes || r->bytes > p->whole_bytes - r->at)
            return "a run that is not in its place in the whole file";
        if (r->place > room || pages(r->bytes) > room - r->place)
            return "a run that is not in the file";
        end = r->at + pages(r->bytes);
    }
    return NULL;
}

static oct_status check_footer(const footer *f, const char *path, uint64_t file_bytes,
                               oct_error *err)
{
    if (f->n_runs < 1 || f->n_runs > MAX_RUNS || table_bytes(f->n_runs) > file_bytes)
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s: the part's table has %" PRIu64 " runs, expected 1..%d that fit", path,
                        f->n_runs, MAX_RUNS);
    if (f->whole_bytes > INT64_MAX - HUGE_RUN || f->layout >= OCT_SHARD_LAYOUTS ||
        f->size > MAX_RANKS || f->rank >= f->size)
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s: the part says rank %u of %u, layout %u, of %" PRIu64 " bytes", path,
                        f->rank, f->size, f->layout, f->whole_bytes);
    return OCT_OK;
}

static oct_status read_table(oct_part *p, const footer *f, int fd, const char *path, oct_error *err)
{
    size_t n = table_bytes(f->n_runs);
    char *table = malloc(n);
    if (!table)
        return oct_fail(err, OCT_ERR_MEMORY, "%s: out of memory for %" PRIu64 " runs", path,
                        f->n_runs);
    oct_status s = oct_file_read_all(fd, path, table, n, p->file_bytes - n, err);
    if (s == OCT_OK && table_sum(table, n) != f->sum)
        s = oct_fail(err, OCT_ERR_FORMAT,
                     "%s: the part's table has the checksum %016" PRIx64 ", expected %016" PRIx64
                     ": the file is damaged",
                     path, table_sum(table, n), f->sum);
    p->run = (oct_part_run *)(void *)table;
    return s;
}

/* *out stays NULL if the file does not end as a part does. */
static oct_status read_part(int fd, const char *path, uint64_t file_bytes, oct_part **out,
                            oct_error *err)
{
    footer f;
    *out = NULL;
    if (file_bytes < sizeof f)
        return OCT_OK;
    OCT_TRY(oct_file_read_all(fd, path, &f, sizeof f, file_bytes - sizeof f, err));
    if (memcmp(f.magic, magic, sizeof magic) != 0)
        return OCT_OK;
    OCT_TRY(check_footer(&f, path, file_bytes, err));
    oct_part *p = calloc(1, sizeof *p);
    if (!p)
        return oct_fail(err, OCT_ERR_MEMORY, "%s: out of memory", path);
    *p = (oct_part){.layout = layout_of[f.layout],
                    .rank = (int)f.rank,
                    .size = (int)f.size,
                    .whole_bytes = f.whole_bytes,
                    .file_bytes = file_bytes,
                    .n_runs = (int64_t)f.n_runs};
    oct_status s = read_table(p, &f, fd, path, err);
    const char *fault = s == OCT_OK ? runs_fault(p) : NULL;
    if (fault)
        s = oct_fail(err, OCT_ERR_FORMAT, "%s: the part's table has %s", path, fault);
    if (s != OCT_OK) {
        oct_part_free(p);
        return s;
    }
    *out = p;
    return OCT_OK;
}

/* Addresses that begin where a huge page can; NULL: refused. */
static char *reserve(size_t bytes)
{
    char *p = mmap(NULL, bytes + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    size_t before = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    if (before)
        munmap(p, before);
    munmap(p + before + bytes, HUGE_PAGE - before);
    return p + before;
}

static oct_status map_runs(const oct_part *p, int fd, const char *path, const void **map,
                           oct_error *err)
{
    size_t whole = (size_t)pages(p->whole_bytes);
    char *base = reserve(whole);
    *map = NULL;
    if (!base)
        return oct_fail(err, OCT_ERR_MEMORY, "%s: cannot reserve %zu bytes of addresses: %s", path,
                        whole, strerror(errno));
    for (int64_t i = 0; i < p->n_runs; i++) {
        const oct_part_run *r = &p->run[i];
        if (!oct_file_map(base + r->at, (size_t)r->bytes, fd, r->place, SIZE_MAX)) {
            oct_status s = oct_fail(err, OCT_ERR_MEMORY, "%s: cannot map %" PRIu64 " bytes: %s",
                                    path, r->bytes, strerror(errno));
            munmap(base, whole);
            return s;
        }
    }
    *map = base;
    return OCT_OK;
}

oct_status oct_part_map(int fd, const char *path, uint64_t file_bytes, const void **map, size_t *n,
                        oct_part **part, oct_error *err)
{
    OCT_TRY(read_part(fd, path, file_bytes, part, err));
    *n = (size_t)(*part ? (*part)->whole_bytes : file_bytes);
    if (*part)
        return map_runs(*part, fd, path, map, err);
    *map = oct_file_map(NULL, *n, fd, 0, SIZE_MAX);
    return *map ? OCT_OK
                : oct_fail(err, OCT_ERR_MEMORY, "%s: cannot map %zu bytes: %s", path, *n,
                           strerror(errno));
}

bool oct_part_holds(const oct_part *p, uint64_t at, uint64_t bytes)
{
    int64_t lo = 0, hi = p->n_runs; /* the last run that begins at or before at */
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        if (p->run[mid].at <= at)
            lo = mid;
        else
            hi = mid;
    }
    uint64_t from = at - p->run[lo].at;
    return from <= p->run[lo].bytes && bytes <= p->run[lo].bytes - from;
}

const char *oct_part_name(oct_shard_layout layout, int rank, int size, char out[OCT_PART_NAME_MAX])
{
    if (size == 1)
        return "the whole model";
    snprintf(out, OCT_PART_NAME_MAX, "rank %d of %d by %s", rank, size, oct_shard_name(layout));
    return out;
}
