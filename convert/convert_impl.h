/* convert_impl.h: one conversion under way; inside convert/ only. */
#ifndef OCT_CONVERT_IMPL_H
#define OCT_CONVERT_IMPL_H

#include <sys/stat.h>

#include "checkpoint.h"
#include "convert.h"
#include "grok.h"
#include "output.h"
#include "pieces.h"

typedef struct oct_conversion {
    const oct_convert_params *params;
    oct_ckpt *ckpt;
    oct_grok_config config;
    oct_grok_layouts layouts;
    const uint8_t *tokenizer; /* mapped; NULL: none */
    size_t tokenizer_bytes;
    struct stat tokenizer_stat, config_stat; /* zero: none */
    oct_new_tensor *tensors;                 /* [n_tensors] in file order */
    int64_t n_tensors;
    uint64_t header_bytes, file_bytes;
    oct_output output;
} oct_conversion;

/* Layouts, the list of tensors with their sources and places, the file's size. */
OCT_MUST_CHECK oct_status oct_conversion_plan(oct_conversion *c, oct_error *err);
/* Writes all tensors, then the header with their checksums. */
OCT_MUST_CHECK oct_status oct_conversion_write(oct_conversion *c, oct_error *err);
/* Opens the temporary file as a model and compares all of it with the checkpoint. */
OCT_MUST_CHECK oct_status oct_conversion_verify(oct_conversion *c, oct_q8_error *q8_error,
                                                oct_error *err);
void oct_conversion_free(oct_conversion *c);

#endif
