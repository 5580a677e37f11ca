/* weight.h: a packed matrix of any weight type: how it is cut into units and where everything lies.
 * What a unit's bytes mean is the type's business (q8.h). Pure functions; nothing here can fail at
 * run time, allocates, or keeps state, so everything is thread-safe.
 *
 * A matrix W[n_out][n_in] is stored as units, one for each (expert, slice). Slices cut the outputs
 * (OCT_SPLIT_OUT: query/key/value, gate/up) or the inputs, always at borders of scale groups
 * (OCT_SPLIT_IN: attention output, down). A unit is a run of panels of 64 output channels. Its
 * scales are a block of their own, elsewhere, so that the weights fill whole huge pages.
 *
 * PARTS. Matrices read by the same input share a unit: its channels come from up to three source
 * matrices ("parts"), one after the other (query, key, value) or, interleaved, 32 of part 0 beside
 * 32 of part 1 in every panel (gate, up), so that gelu(gate) * up needs one panel only. */
#ifndef OCT_WEIGHT_H
#define OCT_WEIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    OCT_PANEL = 64, /* output channels of a panel */
    OCT_QUAD = 4,   /* consecutive inputs stored side by side */
    OCT_WEIGHT_MAX_PARTS = 3,
    OCT_WEIGHT_MAX_SLICES = 8
};

enum oct_weight_split { OCT_SPLIT_OUT, OCT_SPLIT_IN };

/* Where everything of a packed matrix lies. The first block is filled by the caller, the second by
 * oct_weight_layout_init. */
typedef struct oct_weight_layout {
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
    size_t panel_bytes;
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
