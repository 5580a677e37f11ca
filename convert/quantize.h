/* quantize.h: model files of fewer bits, made from model files, and what they lose. Public, beside
 * convert.h, whose words on output, progress, threads and cancelling hold here too.
 *
 * Formats of 4 bits still stand for int8 under the same scales (convert/FORMAT.md), so the new file
 * is a model like any other: its logits have the bits of its integers stored in 8 bits. */
#ifndef OCT_QUANTIZE_H
#define OCT_QUANTIZE_H

#include "convert.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- calibration ----------------------------------------------------------------------------- */

/* Second moments of what the experts' matrices are multiplied with: for each expert of each layer,
 * the sums of x x' over the tokens that it saw, in blocks of 256 inputs, for the input of gate and
 * up and for that of down. They tell which errors of weights cancel and which do not matter. */
typedef struct oct_moments oct_moments;

typedef struct oct_text_params {
    const int32_t *ids; /* [n] tokens, borrowed */
    int64_t n;
    int64_t window; /* tokens that are evaluated as one sequence, at most the context; 0: 512 */
    const oct_session_params *session; /* threads and the like; NULL: what zeros mean there */
    void (*progress)(void *ctx, uint64_t done, uint64_t total); /* tokens; may be NULL */
    void *progress_ctx;
    const volatile int *cancel; /* may be NULL */
} oct_text_params;

/* Runs the model over a text. About 512 bytes for each input of each expert are taken; *out is
 * freed with oct_moments_free. The same text gives the same bits, whatever the threads. */
OCT_API OCT_MUST_CHECK oct_status oct_moments_gather(const oct_model *m, const oct_text_params *p,
                                                     oct_moments **out, oct_error *err);
OCT_API void oct_moments_free(oct_moments *m); /* NULL is fine */
/* A small file of its own, with a checksum, that names the model it is of. It can be used for that
 * model only; one of another model is refused (OCT_ERR_ARG), a damaged one (OCT_ERR_FORMAT) too. */
OCT_API OCT_MUST_CHECK oct_status oct_moments_write(const oct_moments *m, const char *path,
                                                    oct_error *err);
OCT_API OCT_MUST_CHECK oct_status oct_moments_read(const char *path, const oct_model *of,
                                                   oct_moments **out, oct_error *err);
/* Tokens of the text; those that an expert of a layer saw, 0 if there is none such. */
OCT_API int64_t oct_moments_tokens(const oct_moments *m);
OCT_API int64_t oct_moments_seen(const oct_moments *m, int64_t layer, int64_t expert);

/* ---- the new file ---------------------------------------------------------------------------- */

enum { OCT_QUANTIZE_KINDS = 4 };

/* Kinds of matrices, as tensors are called: "ffn_gate_up", "ffn_down", "attn_qkv",
 * "attn_output". */
OCT_API const char *oct_quantize_kind_name(int kind);

/* Layers first..last are stored as type (a number of oct_weight_type_name, convert.h): their
 * experts, their attention or both. A later rule overrules an earlier one. */
typedef struct oct_quantize_rule {
    int64_t first, last;
    bool experts, attention;
    int type;
} oct_quantize_rule;

typedef struct oct_quantize_params {
    const oct_model *model; /* whole; what is 4 bits in it already can only stay so */
    const char *model_path, *out;
    const oct_quantize_rule *rule; /* [n_rules]; what no rule names stays as it is */
    int64_t n_rules;
    const oct_moments *moments; /* NULL: not calibrated. Used for the experts */
    int64_t least_seen;         /* experts that saw fewer tokens are not calibrated; 0: 256 */
    int n_threads;              /* 0: as many as there are processors */
    oct_convert_tell *progress; /* may be NULL */
    void *progress_ctx;
    const volatile int *cancel; /* may be NULL */
} oct_quantize_params;

typedef struct oct_quantize_kind {
    int64_t n_matrices;    /* tensors that were made anew */
    double error, largest; /* of their weights: relative (root of the sum of squares), and the
                              largest in steps of int8 */
    uint64_t bytes, bytes_before;
} oct_quantize_kind;

typedef struct oct_quantize_report {
    oct_quantize_kind kind[OCT_QUANTIZE_KINDS];
    uint64_t bytes, bytes_before;        /* of the files */
    int64_t n_calibrated, n_fallen_back; /* experts of layers */
    oct_lines warnings;                  /* which fell back, and others; oct_lines_free */
} oct_quantize_report;

/* Writes the new file and reads it back. Memory: the largest matrix of one expert in the new type,
 * and a few MiB for each thread; pages of the old file are given back as the work goes on. */
OCT_API OCT_MUST_CHECK oct_status oct_quantize(const oct_quantize_params *p,
                                               oct_quantize_report *report, oct_error *err);

/* ---- what was lost --------------------------------------------------------------------------- */

typedef struct oct_compare_report {
    int64_t n_tokens; /* positions compared */
    double kl;        /* mean over positions of KL(first || second), nats */
    double kl_error;  /* standard error of that mean, over windows */
    double ppl[2];    /* of the text: of the first model, of the second */
    double same_top;  /* share of positions with the same likeliest token */
} oct_compare_report;

/* Two models of one vocabulary over a text, window by window. */
OCT_API OCT_MUST_CHECK oct_status oct_compare(const oct_model *first, const oct_model *second,
                                              const oct_text_params *p, oct_compare_report *report,
                                              oct_error *err);

#ifdef __cplusplus
}
#endif
#endif
