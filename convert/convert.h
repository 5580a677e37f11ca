/* convert.h: from xAI's checkpoint to the file that Octet runs (described in FORMAT.md). */
#ifndef OCT_CONVERT_H
#define OCT_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

#include "grok.h"
#include "lines.h"
#include "q8.h"
#include "status.h"

typedef enum oct_convert_phase {
    OCT_CONVERT_WRITE,  /* making and writing the tensors */
    OCT_CONVERT_SYNC,   /* waiting for the disk; done and total are 0 */
    OCT_CONVERT_VERIFY, /* reading back and comparing with the source */
    OCT_CONVERT_DONE    /* the file has its name */
} oct_convert_phase;

typedef struct oct_convert_progress {
    oct_convert_phase phase;
    uint64_t done, total; /* bytes of the new file */
    const char *temp;     /* name of the temporary file; NULL when there is none any more */
} oct_convert_progress;

typedef struct oct_convert_params {
    const char *checkpoint; /* the folder that holds ckpt-0, or ckpt-0 itself */
    const char *out;        /* the new file; an existing one is replaced at the very end */
    const char *tokenizer;  /* NULL: tokenizer.model in the checkpoint's folder or above it */
    const char *config;     /* NULL: config.json there, if there is one */
    bool no_tokenizer;
    int n_threads; /* 0: as many as there are processors; memory may allow fewer */
    /* Called at the start of each phase and after each piece, by one thread at a time but not
     * always the same. May be NULL. */
    void (*progress)(void *ctx, const oct_convert_progress *p);
    void *progress_ctx;
    const volatile int *cancel; /* when it turns non-zero the work stops soon; NULL: never */
} oct_convert_params;

/* What was done. Strings and lists belong to the report. */
typedef struct oct_convert_report {
    oct_lines problems; /* every missing, short or odd file of the checkpoint */
    oct_lines warnings;
    char *checkpoint_dir, *config_path, *tokenizer_path; /* as found; NULL: none */
    oct_grok_config config;
    int64_t n_files, n_tensors;
    uint64_t in_bytes, out_bytes;
    bool is_grok1;
    int64_t n_quantised;   /* tensors of the new file with matrices quantised on the way */
    oct_q8_error q8_error; /* of all of them, measured on the finished file */
} oct_convert_report;

/* Converts. Before any work starts everything is checked: all files of the checkpoint (problems are
 * listed in the report), configuration, tokenizer, output, disk space. Then the tensors are written
 * to a temporary file beside the output, read back, compared with the source, and the file is
 * renamed: there is never an incomplete file under the final name. Anonymous memory stays below 512
 * MiB for any model. *report must be zero at the start; free it with oct_convert_report_free in any
 * case. */
OCT_MUST_CHECK oct_status oct_convert(const oct_convert_params *p, oct_convert_report *report,
                                      oct_error *err);
void oct_convert_report_free(oct_convert_report *r);

#endif
