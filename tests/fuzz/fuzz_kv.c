/* fuzz_kv.c: files of keys and values. The input says what the head and the list of a file hold;
 * that is written with right checksums; then a byte may be changed, the end cut off. What is
 * accepted can be put into a pool as it is. */
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"
#include "kv_file.h"

enum { VOCAB = 100, PAGE_BYTES = 96, MAX_PAGES = 24 };

static void use(int fd, const oct_kv_kind *want)
{
    oct_kv_file f;
    oct_kv_pages pool;
    oct_error err = {0};
    unsigned char page[PAGE_BYTES];
    if (oct_kv_file_read(fd, "input", want, PAGE_BYTES, VOCAB, &f, &err) != OCT_OK) {
        FUZZ_CHECK(err.text[0] && err.status != OCT_OK);
        oct_kv_file_free(&f);
        return;
    }
    FUZZ_CHECK(f.head->n_pages >= 0 && f.head->n_pages <= MAX_PAGES);
    FUZZ_CHECK(oct_kv_pages_init(&pool, 1, 1 << 16, MAX_PAGES, NULL, &err) == OCT_OK);
    for (int64_t i = 0; i < f.head->n_pages; i++) {
        (void)!oct_kv_file_read_page(&f, i, page, &err);
        for (int k = 0; k < OCT_KV_PAGE; k++)
            FUZZ_CHECK(f.entry[i].ids[k] >= 0 && f.entry[i].ids[k] < VOCAB);
        oct_kv_pages_put(&pool, f.entry[i].ids, f.entry[i].parent);
    }
    oct_kv_pages_put_end(&pool);
    FUZZ_CHECK(pool.n_cached == f.head->n_pages);
    if (f.head->n_pages > 0 && f.entry[0].parent < 0)
        FUZZ_CHECK(oct_kv_pages_reuse(&pool, 0, f.entry[0].ids, OCT_KV_PAGE) == OCT_KV_PAGE);
    oct_kv_pages_free(&pool);
    oct_kv_file_free(&f);
}

/* Seldom what it should be. */
static int64_t near(int64_t right, uint8_t b)
{
    return b < 240 ? right : b < 248 ? right + b - 244 : b < 252 ? -right : INT64_MAX / (b - 250);
}

/* Two bytes an entry: its parent, and one of its ids. */
static void fill_list(unsigned char *front, const uint8_t *data, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        oct_kv_file_entry e = {.parent = data[2 * i] < 200 ? data[2 * i] % (i + 1) - 1
                                                           : (int8_t)data[2 * i]};
        for (int k = 0; k < OCT_KV_PAGE; k++)
            e.ids[k] = (int32_t)((i + k) % VOCAB);
        e.ids[i % OCT_KV_PAGE] = (int8_t)data[2 * i + 1];
        memcpy(front + sizeof(oct_kv_file_head) + (size_t)i * sizeof e, &e, sizeof e);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const oct_kv_kind want = {.build = "a build", .fingerprint = 7, .n_layers = 2, .n_heads = 4};
    if (n < 12)
        return 0;
    const int64_t n_list = (int64_t)(n - 12) / 2 < MAX_PAGES ? (int64_t)(n - 12) / 2 : MAX_PAGES;
    const int64_t n_room = n_list + data[0] % 3;
    const size_t at = oct_kv_file_pages_at(n_room), all = at + (size_t)n_list * PAGE_BYTES;
    unsigned char *file = calloc(1, all + 1);
    if (!file)
        abort();
    oct_kv_file_head head = {.kind = want,
                             .n_pages = near(n_list, data[1]),
                             .n_room = n_room,
                             .page_bytes = (uint64_t)near(PAGE_BYTES, data[2])};
    head.kind.n_heads = near(4, data[3]);
    head.kind.fingerprint += data[4] > 250;
    fill_list(file, data + 12, n_list);
    oct_kv_file_seal(file, &head);
    if (data[5] & 1)
        file[(size_t)(data[6] << 8 | data[7]) % all] ^= data[8];
    const size_t length = data[5] & 2 ? (size_t)(data[9] << 8 | data[10]) % (all + 2) : all;
    const int fd = memfd_create("kv", MFD_CLOEXEC);
    if (fd < 0 || fchmod(fd, 0600) != 0 || pwrite(fd, file, length, 0) != (ssize_t)length)
        abort();
    use(fd, &want);
    close(fd);
    free(file);
    return 0;
}
