/* grok.h: Grok-1-shaped models as data: hyper-parameters, the layouts that follow from them, and
 * the one list of tensors that the converter writes and the loader checks. */
#ifndef OCT_GROK_H
#define OCT_GROK_H

#include "gguf.h"
#include "shard.h"
#include "status.h"
#include "weight.h"

#define OCT_GROK_ARCH "octet"
/* Versions of the file: the one that is written, and the oldest that is read. */
enum { OCT_GROK_FORMAT = 2, OCT_GROK_FORMAT_OLDEST = 1, OCT_GROK_MAX_LAYERS = 4096 };

/* Names as in convert/FORMAT.md; grok_keys.inc ties each to its key in the file. */
typedef struct oct_grok_config {
    int64_t n_layers, n_vocab, n_ctx, d_model;
    int64_t n_q_heads, n_kv_heads, head_dim;
    int64_t d_ff;
    int64_t n_experts, n_used; /* 1, 1: dense, no router */
    int64_t n_slices;
    int64_t qkv_groups, attn_out_groups, gate_up_groups, down_groups; /* scale groups */
    int64_t pad_id, eos_id;                                           /* -1: none */
    float embedding_scale, output_scale, attn_scale, attn_cap, rope_base, norm_eps;
} oct_grok_config;

/* Checks that the numbers make a model that Octet can run (ranges, divisibility); names the
 * field. */
OCT_MUST_CHECK oct_status oct_grok_config_check(const oct_grok_config *c, oct_error *err);

/* Grok-1's numbers, with n_layers layers (64) and a vocabulary of n_vocab (131072). */
oct_grok_config oct_grok1_config(int64_t n_layers, int64_t n_vocab);

/* Largest n <= 8 that divides kv heads and the groups of both inputs-split matrices. */
int64_t oct_grok_slices(int64_t n_kv_heads, int64_t attn_out_groups, int64_t down_groups);

/* FFN width of xAI's code: floor(w * d) * 2 / 3, rounded up to a multiple of 8. 0: no sensible
 * width (w not a number, not positive, or absurdly large). */
int64_t oct_grok_ffn_size(int64_t d_model, double widening_factor);

/* The tied embedding, bf16[n_slices][slice_rows_pad][d_model]: slice s holds the rows
 * s * slice_rows ... of the vocabulary; padding rows are zero. */
typedef struct oct_grok_embedding {
    int64_t slice_rows;     /* ceil(n_vocab / n_slices) */
    int64_t slice_rows_pad; /* so that a slice is a multiple of its alignment */
    size_t align;           /* 4096, or 2 MiB where a slice is larger than 16 MiB */
} oct_grok_embedding;

/* What a tensor of the file is. Order within the file: see oct_grok_manifest. */
typedef enum oct_grok_kind {
    OCT_GROK_GATE_UP, /* weights of packed units */
    OCT_GROK_DOWN,
    OCT_GROK_QKV,
    OCT_GROK_ATTN_OUT,
    OCT_GROK_GATE_UP_SCALES, /* and their scales */
    OCT_GROK_DOWN_SCALES,
    OCT_GROK_QKV_SCALES,
    OCT_GROK_ATTN_OUT_SCALES,
    OCT_GROK_EMBEDDING,
    OCT_GROK_ROUTER, /* f32 [n_experts][d_model] (transposed from the checkpoint) */
    OCT_GROK_NORM_ATTN_IN,
    OCT_GROK_NORM_ATTN_OUT,
    OCT_GROK_NORM_FFN_IN,
    OCT_GROK_NORM_FFN_OUT,
    OCT_GROK_NORM_FINAL, /* norms: f32 [d_model] */
    OCT_GROK_KINDS
} oct_grok_kind;

enum { OCT_GROK_PACKED = OCT_GROK_ATTN_OUT + 1 }; /* how many kinds are packed weights: the first */

bool oct_grok_is_scales(oct_grok_kind kind);
/* The packed weights that a kind is or whose scales it is; OCT_GROK_KINDS for the rest. */
oct_grok_kind oct_grok_weights_of(oct_grok_kind kind);
/* By which rule the slices of packed weights are divided among ranks. */
oct_shard_kind oct_grok_shard_kind(oct_grok_kind kind);

/* The weight types of a layer's packed matrices, by kind. */
typedef struct oct_grok_types {
    uint8_t of[OCT_GROK_PACKED]; /* enum oct_weight_type */
} oct_grok_types;

/* The layouts of a model's packed matrices. Those of one kind have one shape, so layers of the same
 * type share one layout. */
typedef struct oct_grok_layouts {
    oct_weight_layout of[OCT_WEIGHT_TYPES][OCT_GROK_PACKED]; /* zero where no layer has the type */
    const oct_grok_types *types; /* [n_layers], borrowed; NULL: OCT_WEIGHT_Q8 everywhere */
    oct_grok_embedding embedding;
} oct_grok_layouts;
/* c must have passed oct_grok_config_check; types: see oct_grok_layouts. */
OCT_MUST_CHECK oct_status oct_grok_layouts_init(const oct_grok_config *c,
                                                const oct_grok_types *types, oct_grok_layouts *l,
                                                oct_error *err);
/* Of a layer's packed weights, or their scales; NULL for all other kinds. */
const oct_weight_layout *oct_grok_layout_of(const oct_grok_layouts *l, oct_grok_kind kind,
                                            int64_t layer);

/* What the weights of a model take. */
typedef struct oct_grok_bytes {
    uint64_t held;   /* bytes of tensors that a shard has, their padding included */
    uint64_t common; /* read for every token, without padding: attention, norms, router, head */
    uint64_t expert; /* and for each expert that the token uses, in all layers together */
    uint64_t attention, head; /* the parts of common that are its matrices, and the output's */
} oct_grok_bytes;
/* Of a rank's shard; NULL: of all. Pure, and quick: no list of tensors is made. */
oct_grok_bytes oct_grok_weight_bytes(const oct_grok_config *c, const oct_grok_layouts *l,
                                     const oct_shard *s);

typedef struct oct_grok_tensor {
    oct_grok_kind kind;
    int64_t layer; /* -1: not of a layer */
    char name[48];
    uint32_t dtype;   /* enum oct_gguf_dtype; packed weights are I8, their scales BF16 */
    uint32_t packing; /* of packed weights: the number of their type in files; else 0 */
    int rank;
    /* Fastest first. Packed weights: {unit_stride, n_slices, n_experts}, scales: {scale_stride / 2,
     * n_slices, n_experts}. */
    uint64_t ne[4];
    size_t align; /* of the tensor in the file */
} oct_grok_tensor;

/* The model's tensors in file order: those aligned to 2 MiB first, then the rest, each part by
 * layer, scales after their weights. (The tokenizer, an I8 tensor named OCT_GROK_TOKENIZER, follows
 * them if there is one.) *out is malloc'd; the caller frees it. */
#define OCT_GROK_TOKENIZER "tokenizer.sentencepiece"
OCT_MUST_CHECK oct_status oct_grok_manifest(const oct_grok_config *c, const oct_grok_layouts *l,
                                            oct_grok_tensor **out, int64_t *n, oct_error *err);

/* Keys "general.architecture", "octet.format" and those of grok_keys.inc: to and from a file. */
void oct_grok_config_put(const oct_grok_config *c, oct_gguf_writer *w);
/* Whether the file's tensors follow each other in its order, without gaps but the padding to its
 * alignment, which follows the last one too, and nothing else does. */
OCT_MUST_CHECK oct_status oct_grok_check_placement(const oct_gguf *g, oct_error *err);
/* Checks architecture, format version, header checksum, placement and the config itself. */
OCT_MUST_CHECK oct_status oct_grok_config_get(const oct_gguf *g, oct_grok_config *c,
                                              oct_error *err);

/* PACKING. "octet.tensor_packing", u32 array: of every tensor in file order, 0 or the number of its
 * weight type. Files of format 1 have none: all their packed weights are OCT_WEIGHT_Q8. *types,
 * [c->n_layers], is malloc'd; the caller frees it. Numbers that are unknown, or of tensors that are
 * not packed, are errors; tensors that are missing are not. */
#define OCT_GROK_KEY_TENSOR_PACKING "octet.tensor_packing"
OCT_MUST_CHECK oct_status oct_grok_types_get(const oct_gguf *g, const oct_grok_config *c,
                                             oct_grok_types **types, oct_error *err);

/* CHECKSUMS (XXH3, 64 bits). "octet.header_xxh3", u64: of the bytes before the tensor data, its own
 * eight bytes taken as zero. "octet.tensor_xxh3", u64 array: of every tensor's bytes (without
 * padding between tensors), in file order. */
#define OCT_GROK_KEY_HEADER_SUM "octet.header_xxh3"
#define OCT_GROK_KEY_TENSOR_SUMS "octet.tensor_xxh3"
uint64_t oct_grok_header_sum(const void *header, size_t n, size_t sum_at);

#endif
