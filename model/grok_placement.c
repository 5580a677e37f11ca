/* grok_placement.c: where the tensors of a model file lie, see convert/FORMAT.md. GGUF leaves order
 * and gaps open; a model file has neither choice nor room for bytes that no checksum covers. */
#include <inttypes.h>

#include "grok.h"

static bool next_place(uint64_t end, uint64_t align, uint64_t *next)
{
    if (end > UINT64_MAX - (align - 1))
        return false;
    *next = (end + align - 1) / align * align;
    return true;
}

oct_status oct_grok_check_placement(const oct_gguf *g, oct_error *err)
{
    const uint64_t align = oct_gguf_alignment(g);
    uint64_t next = oct_gguf_data_offset(g);

    for (int64_t i = 0; i < oct_gguf_n_tensors(g); i++) {
        const oct_gguf_tensor *t = oct_gguf_tensor_at(g, i);
        if (t->offset != next)
            return oct_fail(err, OCT_ERR_FORMAT,
                            "%s: tensor '%s': expected it at byte %" PRIu64
                            " (tensors follow each other, padded to %" PRIu64
                            "), found it at byte %" PRIu64,
                            oct_gguf_path(g), t->name, next, align, t->offset);
        if (!next_place(t->offset + t->bytes, align, &next))
            return oct_fail(err, OCT_ERR_FORMAT, "%s: tensor '%s': sizes overflow",
                            oct_gguf_path(g), t->name);
    }
    if (oct_gguf_file_bytes(g) != next)
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s: end of data: expected a file of %" PRIu64 " bytes, found %" PRIu64
                        "%s",
                        oct_gguf_path(g), next, oct_gguf_file_bytes(g),
                        oct_gguf_file_bytes(g) < next ? ": truncated?" : "");
    return OCT_OK;
}
