#include "new_header.h"

#include <stdlib.h>
#include <string.h>

oct_status oct_new_header(const oct_grok_config *config, const oct_grok_tensor *const *tensors,
                          const uint64_t *sums, int64_t n, uint64_t *offsets, void **bytes,
                          size_t *n_bytes, oct_error *err)
{
    uint64_t align = OCT_FILE_ALIGN;
    oct_gguf_writer *w = oct_gguf_writer_new(OCT_FILE_ALIGN);
    uint32_t *packing = calloc((size_t)n + 1, sizeof *packing);
    if (!w || !packing) {
        oct_gguf_writer_free(w);
        free(packing);
        return oct_fail(err, OCT_ERR_MEMORY, "out of memory for the file's header");
    }
    oct_grok_config_put(config, w);
    for (int64_t i = 0; i < n; i++) {
        align = tensors[i]->align > align ? tensors[i]->align : align;
        packing[i] = tensors[i]->packing;
        oct_gguf_put_tensor(w, tensors[i]->name, tensors[i]->dtype, tensors[i]->rank,
                            tensors[i]->ne);
    }
    oct_gguf_put_array(w, OCT_GROK_KEY_TENSOR_SUMS, OCT_GGUF_U64, sums, (uint64_t)n);
    oct_gguf_put_array(w, OCT_GROK_KEY_TENSOR_PACKING, OCT_GGUF_U32, packing, (uint64_t)n);
    free(packing);
    oct_gguf_put_u64(w, OCT_GROK_KEY_HEADER_SUM, 0);
    uint64_t sum_at = oct_gguf_writer_value_offset(w, OCT_GROK_KEY_HEADER_SUM);
    oct_status s = oct_gguf_writer_header(w, align, bytes, n_bytes, offsets, err);
    oct_gguf_writer_free(w);
    OCT_TRY(s);
    uint64_t sum = oct_grok_header_sum(*bytes, *n_bytes, (size_t)sum_at);
    memcpy((uint8_t *)*bytes + sum_at, &sum, sizeof sum);
    return OCT_OK;
}
