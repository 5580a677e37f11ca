/* convert_impl.h: what the files of convert/ share beside sources; inside convert/ only. */
#ifndef OCT_CONVERT_IMPL_H
#define OCT_CONVERT_IMPL_H

#include "convert.h"
#include "grok.h"
#include "output_impl.h"
#include "pieces.h"
#include "source.h"

enum { OCT_FILE_ALIGN = 4096 };

/* Header bytes (malloc'd) of a model file with these tensors in this order and these checksums,
 * its own checksum filled in; offsets[n] receives each tensor's place. The size does not depend on
 * the checksums. */
OCT_MUST_CHECK oct_status oct_new_header(const oct_grok_config *config,
                                         const oct_grok_tensor *const *tensors,
                                         const uint64_t *sums, int64_t n, uint64_t *offsets,
                                         void **bytes, size_t *n_bytes, oct_error *err);

/* The weight type of a name; the error lists them all. */
OCT_MUST_CHECK oct_status oct_weight_type_named(const char *name, oct_weight_type *type,
                                                oct_error *err);

/* Converts an open source: oct_convert without looking for it. Of p, checkpoint, tokenizer and
 * config play no role. */
OCT_MUST_CHECK oct_status oct_convert_source(const oct_source *s, const oct_convert_params *p,
                                             oct_convert_report *r, oct_error *err);

/* One conversion under way. */
typedef struct oct_conversion {
    const oct_convert_params *params;
    const oct_source *source;
    oct_grok_layouts layouts;
    oct_new_tensor *tensors; /* [n_tensors] in file order; free() */
    int64_t n_tensors;
    uint64_t header_bytes, file_bytes;
    oct_output output;
} oct_conversion;

/* Layouts, the list of tensors with their sources and places, the file's size. */
OCT_MUST_CHECK oct_status oct_conversion_plan(oct_conversion *c, oct_error *err);
/* How the work is cut for a number of threads (0: of processors), and the memory that it takes:
 * room bytes for each of n_threads, which may be fewer. */
typedef struct oct_cut {
    oct_piece *pieces; /* [n], free() */
    int64_t n;
    size_t room;
    int n_threads;
} oct_cut;
enum {
    OCT_CONVERT_MEMORY = 384 << 20
}; /* of all threads; the rest of 512 MiB is for lists and
                                            libraries */
OCT_MUST_CHECK oct_status oct_conversion_cut(const oct_conversion *c, int n_threads, oct_cut *cut,
                                             oct_error *err);
/* Creates the temporary file, or goes on with one (resume.h), and writes all tensors, then the
 * header with their checksums. */
OCT_MUST_CHECK oct_status oct_conversion_write(oct_conversion *c, oct_lines *warnings,
                                               oct_error *err);
/* Reads the temporary file back and compares all of it with the source. */
OCT_MUST_CHECK oct_status oct_conversion_verify(oct_conversion *c, oct_q8_error *q8_error,
                                                oct_error *err);

#endif
