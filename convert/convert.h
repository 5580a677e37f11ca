/* convert.h: model files: from checkpoints, to llama.cpp, in parts for ranks, with random weights.
 * Public, beside octet.h.
 *
 * Whatever writes a file writes it under another name, reads it back where it says so, and gives it
 * its name at the very end: there is never an incomplete file under the name that was asked for,
 * and a file of that name stays until it is replaced as a whole.
 *
 * Each function works on the calling thread and may start more; it touches no state but its
 * arguments'. Functions called for progress are called by one thread at a time, but not always the
 * same. A cancel flag is read often; once it is not zero, the work stops within a moment, leaves
 * nothing behind and returns OCT_ERR_CANCELLED. */
#ifndef OCT_CONVERT_H
#define OCT_CONVERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "octet.h"
#include "output.h"
#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How far some work is. */
typedef enum oct_convert_phase {
    OCT_CONVERT_WRITE,  /* making and writing the file */
    OCT_CONVERT_SYNC,   /* waiting for the disk; done and total are 0 */
    OCT_CONVERT_VERIFY, /* reading back and comparing */
    OCT_CONVERT_DONE    /* the file has its name */
} oct_convert_phase;

typedef struct oct_convert_progress {
    oct_convert_phase phase;
    uint64_t done, total; /* bytes of the new file */
    const char *temp;     /* name of the temporary file, to be removed by a program that dies; NULL:
                             there is none, or none any more */
} oct_convert_progress;

/* Called at the start of each phase and after each piece. */
typedef void oct_convert_tell(void *ctx, const oct_convert_progress *p);

/* ---- from a checkpoint ----------------------------------------------------------------------- */

typedef struct oct_convert_params {
    const char *checkpoint; /* what to convert; its format is found out */
    const char *out;        /* the new file */
    const char *tokenizer;  /* NULL: tokenizer.model in the checkpoint's folder or above it */
    const char *config;     /* NULL: config.json there, if there is one */
    bool no_tokenizer;
    int n_threads;              /* 0: as many as there are processors; memory may allow fewer */
    oct_convert_tell *progress; /* may be NULL */
    void *progress_ctx;
    const volatile int *cancel; /* NULL: never */
} oct_convert_params;

/* How the int8 weights of a checkpoint of bf16 numbers came back, counted in scales: one for each
 * channel and group of inputs. All zero for formats that hold int8. */
typedef struct oct_convert_recovered {
    int64_t n;           /* scales of all matrices */
    int64_t n_unique;    /* every weight is an int8 times a scale, and only this scale does it */
    int64_t n_several;   /* other scales do it too: one was chosen, the numbers are the file's */
    int64_t n_zero;      /* all weights are zero: no scale can be told */
    int64_t n_odd;       /* a few weights are no multiples: they were rounded, warnings name them */
    int64_t n_quantised; /* the numbers were no such products: quantised */
    int64_t n_odd_weights;
    double error, error_largest; /* of the weights of n_odd and n_quantised, as q8_error below */
} oct_convert_recovered;

/* What was done. Strings and lists belong to the report. */
typedef struct oct_convert_report {
    oct_lines problems; /* every missing, short or odd file of the checkpoint */
    oct_lines warnings;
    const char *format; /* of the checkpoint: "an xAI checkpoint"; static */
    char *checkpoint_dir, *config_path, *tokenizer_path; /* as found; NULL: none */
    oct_model_info model; /* the model's numbers; of the file only file_bytes is filled in */
    int64_t n_files, n_tensors;
    uint64_t in_bytes, out_bytes;
    bool is_grok1;
    int64_t n_quantised;     /* tensors of the new file with matrices quantised on the way */
    double q8_error;         /* of all their weights, relative (root of the sum of squares) */
    double q8_error_largest; /* absolute; both measured on the finished file */
    oct_convert_recovered recovered;
} oct_convert_report;

/* Converts. Before any work starts everything is checked: all files of the checkpoint (problems are
 * listed in the report), configuration, tokenizer, output, disk space. Then the tensors are
 * written, read back, and compared with the checkpoint. Memory, mapped files included, stays below
 * 512 MiB for any model; one with so many inputs that this is impossible is refused
 * (OCT_ERR_UNSUPPORTED). *report must be zero at the start; free it with oct_convert_report_free in
 * any case. */
OCT_API OCT_MUST_CHECK oct_status oct_convert(const oct_convert_params *p,
                                              oct_convert_report *report, oct_error *err);
OCT_API void oct_convert_report_free(oct_convert_report *r);

/* ---- to llama.cpp ---------------------------------------------------------------------------- */

/* A GGUF of architecture "grok". Matrices become type Q8_0: rows of blocks, each an f16 scale and
 * 32 integers. The integers are the model's own, and every block carries the scale of its group, so
 * nothing is quantised again. That needs groups that are multiples of 32 inputs, and scales that
 * f16 holds exactly (every bf16 from 2^-17 to 65504 is one). Embedding: BF16, tied to the output
 * head; norms and router: F32. */
typedef struct oct_export_params {
    const char *model, *out;
    bool lossy;                 /* round scales that f16 does not hold, instead of refusing */
    oct_convert_tell *progress; /* may be NULL */
    void *progress_ctx;
    const volatile int *cancel; /* may be NULL */
} oct_export_params;

typedef struct oct_export_report {
    uint64_t bytes;     /* of the new file */
    int64_t n_scales;   /* of the model's matrices */
    int64_t n_inexact;  /* of them not held by f16: rounded if lossy */
    int64_t n_zeroed;   /* of those: too small, so that all weights with them become zero */
    int64_t n_capped;   /* of those: too large, so that they become 65504 */
    double scale_error; /* the largest relative error of the others */
    int64_t n_expanded; /* matrices of the model of fewer bits, written in 8 without loss */
    oct_lines warnings; /* the caller frees them with oct_lines_free, whatever the outcome */
} oct_export_report;

/* Streams: needs a few MiB and no more. A model that llama.cpp could not run or that Q8_0 does not
 * hold is refused before anything is written (OCT_ERR_UNSUPPORTED, with the reason); scales that
 * f16 does not hold, when all have been counted. The tokenizer goes along if the model has one. A
 * dense model becomes one expert with a router of zeros, whose gate is 1. */
OCT_API OCT_MUST_CHECK oct_status oct_export_q8_0(const oct_export_params *p,
                                                  oct_export_report *report, oct_error *err);

/* ---- parts for ranks, checksums -------------------------------------------------------------- */

typedef struct oct_slice_params {
    const char *model, *out; /* a whole model; the new file */
    oct_shard_layout by;
    int rank, size;             /* size: at least 2 */
    oct_convert_tell *progress; /* may be NULL */
    void *progress_ctx;
    const volatile int *cancel; /* may be NULL */
} oct_slice_params;

typedef struct oct_slice_report {
    uint64_t bytes, whole_bytes;
    int64_t n_runs;
    oct_lines warnings; /* the caller frees them with oct_lines_free, whatever the outcome */
} oct_slice_report;

/* One rank's part of a model as a file of its own. Copies what the rank needs, reads it back and
 * compares. Of the model nothing but that is read: damage in it is found where whole tensors are
 * copied (norms, routers, tokenizer) or by oct_verify on the model before. */
OCT_API OCT_MUST_CHECK oct_status oct_slice(const oct_slice_params *p, oct_slice_report *report,
                                            oct_error *err);

/* Compares everything in a model file, or a part of one, with the checksums in it: of every tensor
 * that is held whole, and of every run of a part. Names the first that differs. progress (may be
 * NULL) gets the bytes that have been read; cancel may be NULL. */
OCT_API OCT_MUST_CHECK oct_status oct_verify(const char *path,
                                             void (*progress)(void *ctx, uint64_t done), void *ctx,
                                             const volatile int *cancel, oct_error *err);

/* ---- random weights -------------------------------------------------------------------------- */

/* Model files for measuring and testing at true sizes without a checkpoint: integers over the whole
 * range, scales such that every product keeps its input's magnitude, no tokenizer. */
typedef struct oct_synthetic_params {
    int64_t n_layers, n_vocab; /* 0: Grok-1's; all other numbers are Grok-1's */
    const struct oct_grok_config
        *config;   /* NULL; for the library's own tests: all of the numbers */
    uint64_t seed; /* the same seed, the same file */
    /* Name of the weight type of the experts' matrices; NULL: q8. */
    const char *experts;
    bool hollow;     /* no weights but a hole that takes no space: for plans and predictions */
    const char *out; /* the new file; NULL: into fd */
    int fd;          /* an open, empty, writable file; the caller's */
    oct_convert_tell *progress; /* may be NULL */
    void *progress_ctx;
    const volatile int *cancel; /* may be NULL */
} oct_synthetic_params;

/* Writes a complete file that oct_model_open accepts. */
OCT_API OCT_MUST_CHECK oct_status oct_synthetic_write(const oct_synthetic_params *p,
                                                      oct_error *err);
/* The bytes it will have. */
OCT_API OCT_MUST_CHECK oct_status oct_synthetic_bytes(const oct_synthetic_params *p,
                                                      uint64_t *bytes, oct_error *err);

/* ---- models that are not there --------------------------------------------------------------- */

/* The models that are known by name, from 0 on; false after the last. Strings are static. */
typedef struct oct_model_name {
    const char *name;
    const char *lacks; /* what it needs and Octet does not do; NULL: it runs */
} oct_model_name;
OCT_API bool oct_model_name_get(int i, oct_model_name *out);

/* The types of weights that this library knows, from 0 on; NULL after the last. Static. */
OCT_API const char *oct_weight_type_name(int i);

typedef enum oct_outline_of {
    OCT_OUTLINE_NAME,
    OCT_OUTLINE_CONFIG,
    OCT_OUTLINE_CHECKPOINT,
    OCT_OUTLINE_FILE
} oct_outline_of;

/* A model to plan with: its numbers and sizes are true, of its weights nothing may be used unless
 * it is of a file. */
typedef struct oct_outline {
    oct_model *model;
    oct_outline_of of;
    uint64_t source_bytes;   /* of the checkpoint that the model file is made of, for one of Hugging
                              Face's its numbers in bf16; 0: unknown, or the file is there */
    int64_t n_files;         /* of the checkpoint */
    uint64_t file_bytes;     /* of the model file */
    uint64_t original_bytes; /* of the model file that this one is quantised from; 0: from none */
    double parameters;
    const char *experts; /* weight type of its experts; static */
} oct_outline;

/* what: a name; a config.json with the keys of xAI's code or of Hugging Face's, or a folder with
 * one and no weights; a checkpoint that oct_convert would take, with a tokenizer or without; or a
 * model file. experts: weight type of the experts' matrices; NULL: what it has, or q8. Nothing is
 * written but a file in memory of the size of a header. OCT_ERR_UNSUPPORTED: a model that is known
 * and cannot run, or a type that these matrices cannot have; OCT_ERR_ARG: nothing of that name.
 * Close with oct_outline_close after success. */
OCT_API OCT_MUST_CHECK oct_status oct_outline_open(const char *what, const char *experts,
                                                   oct_outline *out, oct_error *err);
OCT_API void oct_outline_close(oct_outline *o); /* a zeroed one is fine */

#ifdef __cplusplus
}
#endif
#endif
