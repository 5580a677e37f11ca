/* header_only.c: writes the model file of a whole Grok-1 whose data is a hole, so that 300 GB take
 * no space. Its header is right in everything: for tests of what must work, or be refused, from the
 * header alone. Usage: header_only OUT */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gguf.h"
#include "grok.h"

static oct_status build(int fd, oct_gguf_writer *w, oct_error *err)
{
    const oct_grok_config c = oct_grok1_config(64, 131072);
    oct_grok_layouts l;
    oct_grok_tensor *tensors = NULL;
    int64_t n = 0;
    OCT_TRY(oct_grok_config_check(&c, err));
    OCT_TRY(oct_grok_layouts_init(&c, NULL, &l, err));
    OCT_TRY(oct_grok_manifest(&c, &l, &tensors, &n, err));
    uint64_t *sums = calloc((size_t)n, sizeof *sums), *at = calloc((size_t)n, sizeof *at);
    uint32_t *packing = calloc((size_t)n, sizeof *packing);
    oct_grok_config_put(&c, w);
    oct_gguf_put_array(w, OCT_GROK_KEY_TENSOR_SUMS, OCT_GGUF_U64, sums, (uint64_t)n);
    for (int64_t i = 0; i < n; i++)
        packing[i] = tensors[i].packing;
    oct_gguf_put_array(w, OCT_GROK_KEY_TENSOR_PACKING, OCT_GGUF_U32, packing, (uint64_t)n);
    oct_gguf_put_u64(w, OCT_GROK_KEY_HEADER_SUM, 0);
    for (int64_t i = 0; i < n; i++)
        oct_gguf_put_tensor(w, tensors[i].name, tensors[i].dtype, tensors[i].rank, tensors[i].ne);
    void *header = NULL;
    size_t n_header = 0;
    oct_status s = oct_gguf_writer_header(w, 2u << 20, &header, &n_header, at, err);
    if (s == OCT_OK) {
        uint64_t sum_at = oct_gguf_writer_value_offset(w, OCT_GROK_KEY_HEADER_SUM), bytes = 0;
        uint64_t sum = oct_grok_header_sum(header, n_header, sum_at);
        memcpy((char *)header + sum_at, &sum, sizeof sum);
        oct_gguf_tensor_bytes(tensors[n - 1].dtype, tensors[n - 1].rank, tensors[n - 1].ne, &bytes);
        uint64_t end = (at[n - 1] + bytes + 4095) / 4096 * 4096;
        if (write(fd, header, n_header) != (ssize_t)n_header || ftruncate(fd, (off_t)end) != 0)
            s = oct_fail(err, OCT_ERR_IO, "cannot write the file");
    }
    free(header);
    free(sums);
    free(packing);
    free(at);
    free(tensors);
    return s;
}

int main(int argc, char **argv)
{
    oct_error err = {0};
    int fd = argc == 2 ? open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
    oct_gguf_writer *w = oct_gguf_writer_new(4096);
    oct_status s =
        fd >= 0 && w ? build(fd, w, &err) : oct_fail(&err, OCT_ERR_ARG, "usage: header_only OUT");
    if (s != OCT_OK)
        fprintf(stderr, "header_only: %s\n", err.text);
    oct_gguf_writer_free(w);
    return s == OCT_OK ? 0 : 1;
}
