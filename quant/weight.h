/* weight.h: a packed matrix of any weight type: what it means, how it is cut into units, where
 * everything lies, and the table of types. Pure functions; nothing here can fail at run time,
 * allocates, or keeps state, so everything is thread-safe.
 *
 * A matrix W[n_out][n_in] has n_groups equal runs of inputs ("groups"); whatever its type, its
 * value is
 *     W[o][i] = q[o][i] * scale[i / group_in][o],   q int8 (all of -128..127), scale bf16.
 * A type decides how the integers q are stored: see q8.h for the plainest. What is said below of
 * units, panels, parts and scales holds for all.
 *
 * UNITS. A matrix is stored as units, one for each (expert, slice). Slices cut the outputs
 * (OCT_SPLIT_OUT: query/key/value, gate/up) or the inputs, always at borders of groups
 * (OCT_SPLIT_IN: attention output, down). A unit is a run of panels of 64 output channels, a panel
 * a run of the unit's groups, group_bytes each. Its scales are a block of their own, elsewhere, so
 * that the weights fill whole huge pages:
 *
 *     scales[n_panels][unit_groups][64]  bf16
 *
 * Channels missing in the last panel have weight and scale zero.
 *
 * PARTS. Matrices read by the same input share a unit: its channels come from up to three source
 * matrices ("parts"), one after the other (query, key, value) or, interleaved, 32 of part 0 beside
 * 32 of part 1 in every panel (gate, up), so that gelu(gate) * up needs one panel only.
 *
 * ORDER OF SUMS (the contract of every integer kernel, any type, any ISA). Activations are integers
 * too, a scale s_b for each block b of a group's inputs, see act.h. Per unit, token and channel:
 *     y = +0
 *     for each group g of the unit, ascending:
 *         t = +0
 *         for each block b of g, ascending:  t = fma((float)isum_b, s_b, t)      isum exact, int32
 *         y = fma(t, scale[g], y)
 * Inputs-split matrices then fold the slices' y as a fixed binary tree, see oct_fold in kernels.h.
 */
#ifndef OCT_WEIGHT_H
#define OCT_WEIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    OCT_PANEL = 64, /* output channels of a panel */
    OCT_QUAD = 4,   /* consecutive inputs that the products take together */
    OCT_WEIGHT_MAX_PARTS = 3,
    OCT_WEIGHT_MAX_SLICES = 8,
    OCT_WEIGHT_MAX_EXPERTS = 64
};

/* OCT_WEIGHT_Q8: the integers as they are, see q8.h; the others: weight_types.inc. */
typedef enum oct_weight_type {
#define OCT_WEIGHT_TYPE(NAME, name, number, digits) OCT_WEIGHT_##NAME,
#include "weight_types.inc"
    OCT_WEIGHT_TYPES
} oct_weight_type;

enum oct_weight_split { OCT_SPLIT_OUT, OCT_SPLIT_IN };

/* Where everything of a packed matrix lies. The first block is filled by the caller, the second by
 * oct_weight_layout_init. */
typedef struct oct_weight_layout {
    oct_weight_type type;
    int64_t n_experts;                      /* 1 for matrices that are not experts */
    int64_t n_slices;                       /* 1..8 */
    int64_t n_in;                           /* inputs, all slices together */
    int64_t n_groups;                       /* scale groups along n_in */
    int64_t part_out[OCT_WEIGHT_MAX_PARTS]; /* output channels of each part, all slices together */
    int n_parts;
    bool interleave; /* two parts, 32 + 32 channels in a panel */
    enum oct_weight_split split;

    int64_t n_out;       /* logical channels of all parts */
    int64_t group_in;    /* inputs of a group */
    int64_t group_quads; /* ceil(group_in / 4) */
    int64_t unit_out;    /* logical channels of a unit */
    int64_t unit_groups; /* groups of a unit */
    int64_t n_panels;    /* panels of a unit */
    size_t group_bytes;  /* of a panel's group: the type's */
    size_t panel_bytes;  /* unit_groups * group_bytes */
    size_t unit_bytes;   /* n_panels * panel_bytes, without alignment padding */
    size_t unit_align;   /* 4096, or 2 MiB where a unit is larger than 16 MiB */
    size_t unit_stride;  /* unit_bytes rounded up to unit_align */
    size_t scale_bytes;  /* of a unit: n_panels * unit_groups * 64 * 2 */
    size_t scale_stride; /* scale_bytes rounded up to 4096 */
} oct_weight_layout;

/* Fills the derived fields. Returns NULL, or what is wrong with the given ones (a static string).
 * Sizes that do not fit size_t are refused. Safe for untrusted numbers. */
const char *oct_weight_layout_init(oct_weight_layout *l);

/* Byte offset of the unit of one expert and slice: unit_stride * (expert * n_slices + slice); and
 * of its scales, in their own place: scale_stride * (expert * n_slices + slice). */
size_t oct_weight_unit_offset(const oct_weight_layout *l, int64_t expert, int64_t slice);
size_t oct_weight_scale_offset(const oct_weight_layout *l, int64_t expert, int64_t slice);

/* The source of lane 0..63 of a panel: part and channel (0..part_out-1, counted over all slices).
 * Returns false for a padding lane. */
bool oct_weight_lane(const oct_weight_layout *l, int64_t slice, int64_t panel, int lane, int *part,
                     int64_t *channel);

/* A checkpoint matrix: w[n_in][ld], scales[n_groups][ld]; column = output channel. */
typedef struct oct_weight_source {
    const int8_t *w;        /* borrowed; row stride ld */
    const uint16_t *scales; /* bf16 bits, borrowed, may be unaligned; row stride ld */
    int64_t ld;             /* columns: output channels of the part */
} oct_weight_source;

/* Packs one unit from its parts (src[n_parts], each the whole matrix of one expert), padding
 * included: writes exactly unit_stride bytes of weights and scale_stride bytes of scales. Either
 * place may be NULL: that half is not wanted, and its source is not read. */
void oct_weight_pack(const oct_weight_layout *l, int64_t slice, const oct_weight_source *src,
                     uint8_t *weights, uint16_t *scales);

/* Compares a packed unit with its source, integer by integer and scale by scale, padding too; what
 * is NULL is left out. Returns true if they are equal. Written apart from packing: it walks the
 * source. */
bool oct_weight_verify(const oct_weight_layout *l, int64_t slice, const oct_weight_source *src,
                       const uint8_t *weights, const uint16_t *scales);

/* The integers w[n] of a panel's lane (oct_weight_lane names its source) at inputs unit_in ..
 * unit_in + n - 1, counted from the unit's first; and the scale at one of the unit's groups. */
void oct_weight_unpack(const oct_weight_layout *l, const uint8_t *weights, int64_t panel, int lane,
                       int64_t unit_in, int64_t n, int8_t *w);
static inline int8_t oct_weight_at(const oct_weight_layout *l, const uint8_t *weights,
                                   int64_t panel, int lane, int64_t unit_in)
{
    int8_t w;
    oct_weight_unpack(l, weights, panel, lane, unit_in, 1, &w);
    return w;
}
uint16_t oct_weight_scale(const oct_weight_layout *l, const uint16_t *scales, int64_t panel,
                          int lane, int64_t unit_group);

/* ---- the types ------------------------------------------------------------------------------- */

/* A type of weights: a file of its own in this folder, a row of weight_types.inc, and kernels. Its
 * functions get initialised layouts; weights is a unit. */
typedef struct oct_weight_type_info {
    const char *name;
    uint32_t number;     /* in files */
    unsigned act_digits; /* bit d: of d digits are the activations that it is multiplied with */
    /* Bytes of a panel's group of so many inputs, a multiple of 64; 0: no group can have as many.
     * group_in is at most 2^53. */
    size_t (*group_bytes)(int64_t group_in);
    /* The three above, weights alone: unit_bytes of them. */
    void (*pack)(const oct_weight_layout *l, int64_t slice, const oct_weight_source *src,
                 uint8_t *weights);
    bool (*verify)(const oct_weight_layout *l, int64_t slice, const oct_weight_source *src,
                   const uint8_t *weights);
    void (*unpack)(const oct_weight_layout *l, const uint8_t *weights, int64_t panel, int lane,
                   int64_t unit_in, int64_t n, int8_t *w);
} oct_weight_type_info;

#define OCT_WEIGHT_TYPE(NAME, name, number, digits)                                             \
    size_t oct_##name##_group_bytes(int64_t group_in);                                          \
    void oct_##name##_pack(const oct_weight_layout *l, int64_t slice,                           \
                           const oct_weight_source *src, uint8_t *weights);                     \
    bool oct_##name##_verify(const oct_weight_layout *l, int64_t slice,                         \
                             const oct_weight_source *src, const uint8_t *weights);             \
    void oct_##name##_unpack(const oct_weight_layout *l, const uint8_t *weights, int64_t panel, \
                             int lane, int64_t unit_in, int64_t n, int8_t *w);
#include "weight_types.inc"

extern const oct_weight_type_info oct_weight_types[OCT_WEIGHT_TYPES];

/* Whether a type is multiplied with activations of so many digits. */
static inline bool oct_weight_takes(oct_weight_type type, int digits)
{
    return (oct_weight_types[type].act_digits >> digits & 1) != 0;
}

/* The type with a number of the file; false: there is none. */
bool oct_weight_type_find(uint32_t number, oct_weight_type *type);

/* ---- a model's matrices ---------------------------------------------------------------------- */

/* What is divided into slices, and among ranks by the same rule (shard.h). */
typedef enum oct_shard_kind {
    OCT_SHARD_OF_ATTENTION, /* its matrices and KV heads */
    OCT_SHARD_OF_EXPERTS,   /* or the feed-forward matrices of a dense model */
    OCT_SHARD_OF_VOCABULARY,
    OCT_SHARD_KINDS
} oct_shard_kind;

/* A packed matrix of a model: all its experts and slices. */
typedef struct oct_weight {
    const char *name; /* borrowed: the file's */
    oct_weight_layout layout;
    oct_shard_kind kind;    /* decides which slices a rank computes */
    const void *data;       /* borrowed: units, see oct_weight_unit_offset */
    const uint16_t *scales; /* borrowed: bf16, see oct_weight_scale_offset */
} oct_weight;

#endif
