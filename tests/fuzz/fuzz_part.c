/* fuzz_part.c: parts of model files. The input is a table of runs, 8 bytes each, behind six bytes of
 * who the part is for; the table is written with its checksum, and then a byte may be changed. Every
 * byte that is said to be held can be read where it is in the whole. */
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "gguf_part.h"

enum { PAGE = 4096, MAX_RUNS = 32, MAX_FILE = 256 * PAGE };

/* A number of pages, seldom an odd one. */
static uint64_t pages(const uint8_t *b)
{
    return (uint64_t)b[0] * PAGE + (b[1] > 250 ? b[1] : 0) + (b[1] == 250 ? (uint64_t)1 << 62 : 0);
}

static void use(int fd, uint64_t file_bytes)
{
    const void *map = NULL;
    size_t n = 0;
    oct_part *part = NULL;
    oct_error err = {0};
    if (oct_part_map(fd, "input", file_bytes, &map, &n, &part, &err) != OCT_OK) {
        FUZZ_CHECK(err.text[0]);
        oct_part_free(part);
        return;
    }
    volatile uint8_t seen = 0;
    for (int64_t i = 0; part && i < part->n_runs; i++) {
        const oct_part_run *r = &part->run[i];
        FUZZ_CHECK(oct_part_holds(part, r->at, r->bytes));
        seen = *((const uint8_t *)map + r->at);
        seen = *((const uint8_t *)map + r->at + r->bytes - 1);
    }
    (void)seen;
    munmap((void *)(uintptr_t)map, n);
    oct_part_free(part);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    oct_part_run run[MAX_RUNS];
    oct_part p = {.run = run};
    if (n < 14)
        return 0;
    p.layout = (oct_shard_layout)(data[0] % OCT_SHARD_LAYOUTS);
    p.rank = data[1];
    p.size = data[2];
    const uint8_t *end = data + n;
    for (const uint8_t *b = data + 6; end - b >= 8 && p.n_runs < MAX_RUNS; b += 8)
        run[p.n_runs++] =
            (oct_part_run){.at = pages(b), .place = pages(b + 2), .bytes = pages(b + 4)};
    p.whole_bytes = pages(data + 3);
    size_t table_bytes;
    uint8_t *table = oct_part_table(&p, &table_bytes);
    const uint64_t at = data[5] * (uint64_t)PAGE;
    const int fd = memfd_create("part", MFD_CLOEXEC);
    if (!table || fd < 0)
        abort();
    if (data[2] & 1)
        table[data[n - 2] % table_bytes] ^= data[n - 1] & (data[2] & 2 ? 0xff : 0);
    if (ftruncate(fd, (off_t)at) == 0 &&
        pwrite(fd, table, table_bytes, (off_t)at) == (ssize_t)table_bytes)
        use(fd, at + table_bytes);
    close(fd);
    free(table);
    return 0;
}
