/* fuzz_config.c: JSON files: configurations of xAI's and Hugging Face's, the index of a model in
 * safetensors. The first byte says which. */
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint.h"
#include "fuzz.h"
#include "hparams.h"
#include "hub.h"

static void resolve(const oct_hparams *h, bool grok1)
{
    static char dir[] = "here";
    oct_ckpt c = {.dir = dir, .n_layers = grok1 ? 64 : 2};
    oct_grok_config g;
    oct_lines warnings = {0};
    oct_error err = {0};
    const int64_t dims[] = {
        [OCT_CKPT_VOCAB] = 131072, [OCT_CKPT_MODEL] = 6144,   [OCT_CKPT_FFN] = 32768,
        [OCT_CKPT_EXPERTS] = 8,    [OCT_CKPT_Q_WIDTH] = 6144, [OCT_CKPT_KV_WIDTH] = 1024};
    memcpy(c.dim, dims, sizeof dims);
    oct_hparams all = *h;
    oct_hparams_prefer_grok1(&c, "input", &all, &warnings);
    if (oct_hparams_resolve(&c, &all, "input", "here", &g, &err) == OCT_OK)
        FUZZ_CHECK(oct_grok_config_check(&g, &err) == OCT_OK);
    oct_lines_free(&warnings);
}

static void read_config(const uint8_t *data, size_t n, oct_hparam_names names, bool grok1)
{
    char path[64];
    oct_hparams h;
    oct_lines warnings = {0};
    oct_error err = {0};
    const int fd = memfd_create("config", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (oct_hparams_read(path, names, &h, &warnings, &err) == OCT_OK)
        resolve(&h, grok1);
    else
        FUZZ_CHECK(err.text[0]);
    oct_lines_free(&warnings);
    close(fd);
}

static void read_index(const uint8_t *data, size_t n)
{
    static char dir[] = "/tmp/fuzz-index-XXXXXX";
    static char path[64];
    oct_hub *h = NULL;
    oct_lines problems = {0};
    oct_error err = {0};
    if (!path[0]) {
        if (!mkdtemp(dir))
            abort();
        snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    }
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n)
        abort();
    fclose(f);
    FUZZ_CHECK(oct_hub_open(dir, &h, &problems, &err) != OCT_OK); /* there are no files */
    FUZZ_CHECK(err.text[0] && !h);
    oct_lines_free(&problems);
    unlink(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1)
        return 0;
    if (data[0] % 8 == 7)
        read_index(data + 1, n - 1);
    else
        read_config(data + 1, n - 1, data[0] & 1 ? OCT_HPARAM_HUGGING_FACE : OCT_HPARAM_XAI,
                    data[0] & 2);
    return 0;
}
