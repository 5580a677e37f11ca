/* checkpoint.h: xAI's ckpt-0 folder as a list of typed arrays.
 *
 * The folder holds one pickle for every leaf of the parameter tree, tensorNNNNN_000, in the order
 * of the leaves' paths as strings: the embedding, the final norm, then the decoder layers in the
 * order 0, 1, 10, 11, ..., 2, 20, ... A layer of a mixture of experts has 12 files, a dense one
 * 11, which have the roles in the order of oct_role. */
#ifndef OCT_CHECKPOINT_H
#define OCT_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "pickle.h"
#include "source.h"
#include "status.h"

/* Sizes that the shapes of all files must agree on. */
typedef enum oct_ckpt_dim {
    OCT_CKPT_VOCAB,
    OCT_CKPT_MODEL,
    OCT_CKPT_FFN,
    OCT_CKPT_EXPERTS,
    OCT_CKPT_Q_WIDTH,  /* query heads x head dimension */
    OCT_CKPT_KV_WIDTH, /* KV heads x head dimension */
    /* scale groups along the inputs; 0: the matrices are plain arrays */
    OCT_CKPT_QKV_GROUPS,
    OCT_CKPT_ATTN_OUT_GROUPS,
    OCT_CKPT_GATE_UP_GROUPS,
    OCT_CKPT_DOWN_GROUPS,
    OCT_CKPT_DIMS
} oct_ckpt_dim;

typedef struct oct_ckpt_leaf {
    char file[32]; /* "tensor00002_000" */
    char path[96]; /* "transformer/decoder_layer_0/moe/linear" */
    oct_role role;
    int64_t layer; /* -1: not of a layer */
    size_t n;      /* bytes of the file; 0 if it is missing or unreadable */
    dev_t device;
    ino_t inode;
    oct_pickle content;
    bool parsed;
} oct_ckpt_leaf;

typedef struct oct_ckpt {
    char *dir; /* where the files are */
    bool dense;
    int64_t n_layers;
    int64_t n_leaves;
    oct_ckpt_leaf *leaves;      /* [n_leaves], in file order */
    int64_t *layer_at;          /* [n_layers]: place of a layer among the layers in file order */
    int64_t dim[OCT_CKPT_DIMS]; /* experts: 1 if dense */
} oct_ckpt;

/* The folder with the tensor files: path itself, or path/ckpt-0. *dir is malloc'd; NULL: neither is
 * one. Only what cannot be read is an error. */
OCT_MUST_CHECK oct_status oct_ckpt_find(const char *path, char **dir, oct_error *err);

/* Checks every file of dir: names, numbers, contents, types, shapes. expect_layers > 0
 * (from a configuration) tells how many files there must be; else a whole number of layers is
 * expected. Every missing, short, odd or surplus file adds a line to problems; then the status is
 * OCT_ERR_FORMAT and err sums up. Only opcodes are read, no payload. On success *out is the
 * caller's; free with oct_ckpt_free. */
OCT_MUST_CHECK oct_status oct_ckpt_open(const char *dir, int64_t expect_layers, oct_ckpt **out,
                                        oct_lines *problems, oct_error *err);
void oct_ckpt_free(oct_ckpt *c); /* NULL is fine */

/* The file of a role; layer is ignored for the embedding and the final norm. */
const oct_ckpt_leaf *oct_ckpt_leaf_of(const oct_ckpt *c, oct_role role, int64_t layer);

#endif
