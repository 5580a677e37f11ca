/* mkckpt.h: writes synthetic checkpoints in xAI's format: any shape and size, in a stream, every
 * number a function of (seed, layer, tensor, index) that tests can compute again. */
#ifndef MKCKPT_H
#define MKCKPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum mk_kind { MK_INT8, MK_F32, MK_BF16 } mk_kind;

/* Leaves by their path below transformer/decoder_layer_N (moe/ is dropped for dense models). */
typedef enum mk_leaf {
    MK_GATE,
    MK_DOWN,
    MK_UP,
    MK_KEY,
    MK_ATTN_OUT,
    MK_QUERY,
    MK_VALUE,
    MK_NORM0,
    MK_NORM1,
    MK_NORM2,
    MK_NORM3,
    MK_ROUTER,
    MK_EMBEDDING,
    MK_NORM_FINAL,
    MK_LEAVES
} mk_leaf;

typedef struct mk_spec {
    int64_t layers, vocab, d, ffn, q_heads, kv_heads, head, experts, used, context;
    int64_t groups; /* of the attention output and down matrices */
    mk_kind kind;   /* of the matrices; the rest is f32, or bf16 for MK_BF16 */
    uint64_t seed;
} mk_spec;

/* Makes dir, dir/ckpt-0 with all files, and dir/config.json. Prints what failed and returns
 * false. */
bool mk_write(const mk_spec *s, const char *dir);

/* Number of files; the name of file i, "tensor00002_000"; which leaf of which layer (-1) it
 * holds. */
int64_t mk_n_files(const mk_spec *s);
void mk_file_name(int64_t i, char out[32]);
void mk_file_leaf(const mk_spec *s, int64_t i, mk_leaf *leaf, int64_t *layer);

/* Shape [experts,] in, out of a leaf; returns its rank. */
int mk_shape(const mk_spec *s, mk_leaf leaf, int64_t shape[3]);
int64_t mk_groups(const mk_spec *s, mk_leaf leaf);

/* Element i in C order of a leaf (layer -1 for the embedding and the final norm). */
int8_t mk_weight(const mk_spec *s, int64_t layer, mk_leaf leaf, int64_t i);
uint16_t mk_scale(const mk_spec *s, int64_t layer, mk_leaf leaf, int64_t i);
float mk_number(const mk_spec *s, int64_t layer, mk_leaf leaf, int64_t i);

/* Writes one array, or a quantised weight, as CPython's pickler frames it. `fill` makes n elements
 * from index `first` on; it is called in order. */
typedef void mk_fill(void *ctx, bool scales, int64_t first, int64_t n, void *out);
typedef struct mk_pickle {
    mk_kind kind; /* of the array; MK_INT8: a QuantizedWeight8bit */
    int rank;
    int64_t shape[3];
    int64_t groups; /* MK_INT8: the second last dimension of the scales */
} mk_pickle;
bool mk_pickle_write(FILE *f, const mk_pickle *p, mk_fill *fill, void *ctx);

#endif
