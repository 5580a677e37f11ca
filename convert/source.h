/* source.h: a checkpoint, whatever its format, as the converter reads it: configuration, tokenizer,
 * and tiles of matrices that are told by their role. A format is one file, source_NAME.c, and one
 * row of the table in source.c; all else in convert/ knows this interface only. */
#ifndef OCT_SOURCE_H
#define OCT_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "convert.h"
#include "grok.h"
#include "output_impl.h"
#include "status.h"

/* What a matrix of a model is. Its inputs and outputs are those of y = x W; a vector is a matrix of
 * one input. */
typedef enum oct_role {
    OCT_ROLE_GATE, /* of each expert: d_model -> d_ff */
    OCT_ROLE_DOWN, /* d_ff -> d_model */
    OCT_ROLE_UP,
    OCT_ROLE_KEY,
    OCT_ROLE_ATTN_OUT,
    OCT_ROLE_QUERY,
    OCT_ROLE_VALUE,
    OCT_ROLE_NORM_ATTN_IN,
    OCT_ROLE_NORM_ATTN_OUT,
    OCT_ROLE_NORM_FFN_IN,
    OCT_ROLE_NORM_FFN_OUT,
    OCT_ROLE_ROUTER,    /* d_model -> experts; not in a dense model */
    OCT_ROLE_EMBEDDING, /* as the head that it is too: d_model -> vocabulary */
    OCT_ROLE_NORM_FINAL,
    OCT_ROLES
} oct_role;

/* What elements are read as. A source whose files hold others (blocks of 4 bits) gives f32. */
typedef enum oct_source_dtype {
    OCT_SOURCE_I8, /* with bf16 scales, one for each output and group of inputs: kept bit for bit */
    OCT_SOURCE_BF16,
    OCT_SOURCE_F32
} oct_source_dtype;

/* Which way a matrix lies: what its rows are. The last dimension is contiguous. */
typedef enum oct_order { OCT_IN_OUT, OCT_OUT_IN } oct_order;

typedef struct oct_source_tensor {
    oct_role role;
    int64_t layer; /* -1: not of a layer */
    oct_source_dtype dtype;
    oct_order order;
    int64_t n_experts; /* 1 for all that is no expert's */
    int64_t n_in, n_out;
    int64_t n_groups; /* of scales along the inputs; 0: none, not int8 */
    const void *own;  /* for the source */
} oct_source_tensor;

/* Rows and columns of one expert's matrix as it is stored. */
typedef struct oct_block {
    int64_t expert, row, n_rows, column, n_columns;
} oct_block;

/* The same told by inputs (for scales: groups of inputs) and outputs. */
typedef struct oct_tile {
    int64_t expert, in, n_in, out, n_out;
} oct_tile;

typedef enum oct_source_part { OCT_SOURCE_WEIGHTS, OCT_SOURCE_SCALES } oct_source_part;

enum { OCT_SOURCE_WHERE = 200 };

/* An open checkpoint. A source begins with this and fills it when it is opened; everything belongs
 * to the source. Immutable then: any number of threads may read. */
typedef struct oct_source {
    const struct oct_source_kind *kind;
    char *dir;                          /* where its files are, for messages */
    char *config_path, *tokenizer_path; /* as found or given; NULL: none */
    oct_grok_config config;
    const uint8_t *tokenizer; /* a SentencePiece model; NULL: none */
    size_t tokenizer_bytes;
    struct stat config_stat, tokenizer_stat; /* zero: no such file */
    int64_t n_files;
    uint64_t n_bytes; /* of all files */
    bool is_grok1;
    /* Memory that grows while it is read, at most: the converter's share shrinks. */
    size_t kept_bytes;
    struct oct_zeros *zeros; /* runs of zeros in what was read; NULL: nobody looks */
} oct_source;

/* What a source is opened with. */
typedef struct oct_source_params {
    const char *path;               /* as the user named it */
    const char *root;               /* as recognised */
    const char *config, *tokenizer; /* files the user named; NULL: sought */
    bool no_tokenizer;
    oct_lines *problems; /* every missing, short or odd file */
    oct_lines *warnings;
} oct_source_params;

/* A format: a row of the table. Errors name the file, what was expected and what was found. What is
 * parsed is untrusted. */
typedef struct oct_source_kind {
    const char *name;  /* "an xAI checkpoint" */
    const char *looks; /* "a folder with files called tensor00000_000, ..., or one that ..." */
    /* Looks at names and first bytes only: *root (malloc'd) is where the checkpoint is if path is,
     * or directly holds, one of this format, else NULL. */
    oct_status (*recognise)(const char *path, char **root, oct_error *err);
    /* Checks all files: presence, sizes, types, shapes; no payload is read. */
    oct_status (*open)(const oct_source_params *p, oct_source **out, oct_error *err);
    void (*close)(oct_source *s);
    /* Describes the tensor of a role and layer, which the configuration says is there. */
    void (*tensor)(const oct_source *s, oct_role role, int64_t layer, oct_source_tensor *t);
    /* Reads a block in the tensor's order and dtype (scales: bf16), without gaps. Memory that it
     * takes itself does not depend on the tensor's size. Thread-safe. */
    oct_status (*read)(const oct_source *s, const oct_source_tensor *t, oct_source_part part,
                       const oct_block *b, void *out, oct_error *err);
    /* Names an element for messages: "tensor00009_000 (transformer/...): element [2,7]". row and
     * column as stored. */
    void (*where)(const oct_source *s, const oct_source_tensor *t, oct_source_part part,
                  int64_t expert, int64_t row, int64_t column, char text[OCT_SOURCE_WHERE]);
    /* Tells the system that an expert's matrix will be read soon. May be NULL. */
    void (*prefetch)(const oct_source *s, const oct_source_tensor *t, int64_t expert);
    /* Whether a file is one of the checkpoint's own. */
    bool (*is_file)(const oct_source *s, const struct stat *st);
    /* Adds to the report what only the source knows, when all has been read. May be NULL. */
    void (*tell)(const oct_source *s, oct_convert_report *r);
} oct_source_kind;

extern const oct_source_kind oct_source_xai;         /* source_xai.c */
extern const oct_source_kind oct_source_safetensors; /* source_safetensors.c */

/* Finds out what p->path is and opens it (p->root is set here). For a path of no format the error
 * says what it is, and what would be right. On success *out is the caller's. */
OCT_MUST_CHECK oct_status oct_source_open(oct_source_params *p, oct_source **out, oct_error *err);
void oct_source_close(oct_source *s); /* NULL is fine */

/* ---- tiles ---------------------------------------------------------------------------------- */

/* A tile of int8 weights into out[n_in][n_out]. These three turn and convert what the source gives;
 * they take 256 KiB of memory at most. Thread-safe. */
OCT_MUST_CHECK oct_status oct_source_read_i8(const oct_source *s, const oct_source_tensor *t,
                                             const oct_tile *tile, int8_t *out, oct_error *err);
/* Its scales (tile.in counts groups), bf16 bits, into out[n_in][n_out]; one that is not finite is
 * an error that names its place. */
OCT_MUST_CHECK oct_status oct_source_read_scales(const oct_source *s, const oct_source_tensor *t,
                                                 const oct_tile *tile, uint16_t *out,
                                                 oct_error *err);
/* A tile of a bf16 or f32 matrix as f32, in the order that is wanted; numbers that are not finite
 * are errors that name their place. */
OCT_MUST_CHECK oct_status oct_source_read_f32(const oct_source *s, const oct_source_tensor *t,
                                              const oct_tile *tile, oct_order order, float *out,
                                              oct_error *err);
/* Names an element by input and output, see where above. */
void oct_source_where(const oct_source *s, const oct_source_tensor *t, oct_source_part part,
                      int64_t expert, int64_t in, int64_t out, char text[OCT_SOURCE_WHERE]);

/* ---- for sources that are folders ----------------------------------------------------------- */

enum { OCT_SOURCE_FOLDERS = 3 };

/* Folders where configuration and tokenizer may be: with the tensors, and up to two above. */
typedef struct oct_folders {
    char *dir[OCT_SOURCE_FOLDERS];
    char *text; /* "A, B, C" */
} oct_folders;
OCT_MUST_CHECK oct_status oct_folders_init(const char *path, const char *root, oct_folders *f,
                                           oct_error *err);
void oct_folders_free(oct_folders *f);
/* A file given by the user, or of this name in the first folder that has it. *out is malloc'd;
 * NULL: nowhere. */
OCT_MUST_CHECK oct_status oct_folders_find(const oct_folders *f, const char *given,
                                           const char *name, char **out, oct_error *err);
/* Maps the tokenizer that p names, or tokenizer.model in the folders, into s. */
OCT_MUST_CHECK oct_status oct_source_take_tokenizer(oct_source *s, const oct_source_params *p,
                                                    const oct_folders *f, oct_error *err);
/* Releases what those two have put into s. */
void oct_source_free_common(oct_source *s);

#endif
