/* fuzz_model.c: whole model files. The input is a list of changes to the header of a small one, four
 * bytes each: place, value, and how; the header's checksum is made right again, so that what stands
 * behind it is reached. What is accepted tells its tensors and encodes. */
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "convert.h"
#include "fuzz.h"
#include "grok.h"
#include "inspect.h"
#include "octet.h"

static uint8_t *base; /* the file */
static size_t n_base, n_header;

static void make_base(void)
{
    oct_grok_config c = oct_grok1_config(2, 64);
    oct_error err = {0};
    struct stat st;
    c.n_ctx = 256;
    c.d_model = 64;
    c.n_q_heads = c.n_kv_heads = 2;
    c.head_dim = 32;
    c.d_ff = 64;
    c.n_experts = c.n_used = 2;
    c.attn_out_groups = c.down_groups = c.n_slices = 2;
    const int fd = memfd_create("base", MFD_CLOEXEC);
    const oct_synthetic_params p = {.config = &c, .seed = 1, .fd = fd};
    oct_gguf *g = NULL;
    if (fd < 0 || oct_synthetic_write(&p, &err) != OCT_OK || fstat(fd, &st) != 0) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    n_base = (size_t)st.st_size;
    base = malloc(n_base);
    FUZZ_CHECK(base && pread(fd, base, n_base, 0) == (ssize_t)n_base);
    FUZZ_CHECK(oct_gguf_parse("base", base, n_base, n_base, &g, &err) == OCT_OK);
    n_header = (size_t)oct_gguf_data_offset(g);
    oct_gguf_close(g);
    close(fd);
}

/* The checksum is behind its key and a type of four bytes. */
static void repair(uint8_t *file)
{
    static const char key[] = OCT_GROK_KEY_HEADER_SUM;
    uint8_t *at = memmem(file, n_header, key, sizeof key - 1);
    if (!at || (size_t)(at - file) + sizeof key - 1 + 12 > n_header)
        return;
    at += sizeof key - 1 + 4;
    const uint64_t sum = oct_grok_header_sum(file, n_header, (size_t)(at - file));
    memcpy(at, &sum, sizeof sum);
}

static void use(const oct_model *m)
{
    oct_tensor_info t;
    oct_key_info k;
    oct_error err = {0};
    int32_t *ids = NULL;
    size_t n;
    for (int64_t i = 0; oct_model_get_tensor(m, i, &t); i++)
        FUZZ_CHECK(t.name);
    for (int64_t i = 0; oct_model_get_key(m, i, &k); i++)
        FUZZ_CHECK(k.key);
    if (oct_encode(m, "a b", 3, &ids, &n, &err) == OCT_OK)
        free(ids);
    const oct_model_info *info = oct_model_get_info(m);
    FUZZ_CHECK(info->n_layers >= 1 && info->n_vocab >= 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char path[64];
    oct_model *m = NULL;
    oct_error err = {0};
    if (!base)
        make_base();
    const int fd = memfd_create("model", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)n_base) != 0)
        abort();
    uint8_t *file = mmap(NULL, n_base, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (file == MAP_FAILED)
        abort();
    memcpy(file, base, n_header); /* the data is zero */
    for (; n >= 4; data += 4, n -= 4) {
        uint8_t *at = file + (data[0] | (size_t)data[1] << 8) % n_header;
        *at = data[3] & 1 ? data[2] : *at ^ data[2];
    }
    repair(file);
    munmap(file, n_base);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (oct_model_open(path, &m, &err) == OCT_OK)
        use(m);
    else
        FUZZ_CHECK(err.text[0] && !m);
    oct_model_close(m);
    close(fd);
    return 0;
}
