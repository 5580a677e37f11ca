/* q8.h: the weight type of Octet, "int8, one scale per output channel and per group of inputs",
 * and the activations of 16 or 8 bits it is multiplied with. Pure functions; nothing here can fail
 * at run time, allocates, or keeps state, so everything is thread-safe.
 *
 * A matrix W[n_out][n_in] has n_groups equal runs of inputs ("groups"); its value is
 *     W[o][i] = q[o][i] * scale[i / group_in][o],   q int8 (all of -128..127), scale bf16.
 *
 * PACKING. A matrix is stored as units, one for each (expert, slice). Slices cut the outputs
 * (OCT_SPLIT_OUT: query/key/value, gate/up) or the inputs, always at group borders (OCT_SPLIT_IN:
 * attention output, down). A unit is a run of panels of 64 output channels:
 *
 *     panel = for each group of the unit: ceil(group_in / 4) quads of 256 bytes
 *     quad  = 64 channels x 4 consecutive inputs, one byte each: q XOR 0x80 ("excess 128")
 *
 * Its scales are a block of their own, elsewhere, so that the weights fill whole huge pages:
 *
 *     scales[n_panels][unit_groups][64]  bf16
 *
 * Inputs missing in the last quad of a group, and channels missing in the last panel, hold 0x80
 * (weight zero) with scale zero. The same bytes serve GEMV (sequential stream, no horizontal sums),
 * VNNI and AMX GEMM (a quad row is a B-tile row) and the GPU (4 inputs in a 32-bit word).
 *
 * PARTS. Matrices read by the same input share a unit: its channels come from up to three source
 * matrices ("parts"), one after the other (query, key, value) or, interleaved, 32 of part 0 beside
 * 32 of part 1 in every panel (gate, up), so that gelu(gate) * up needs one panel only.
 *
 * ACTIVATIONS. Within a group, blocks of inputs (the last may be shorter) are quantised together:
 * a[i] = round(x[i] / s), s = max|x| / most, f32.
 *     two digits   blocks of 512, most = 32639; a = 256 hi + lo, both int8. 512 is the largest
 *                  power of two whose dot products fit int32: 128 * 32639 * 512 < 2^31
 *     one digit    blocks of OCT_Q8_BLOCK_I8, most = 127; a = lo
 *
 * ORDER OF SUMS (the contract of every integer kernel, any ISA). Per unit, token and channel:
 *     y = +0
 *     for each group g of the unit, ascending:
 *         t = +0
 *         for each block b of g, ascending:  t = fma((float)isum_b, s_b, t)      isum exact, int32
 *         y = fma(t, scale[g], y)
 * Inputs-split matrices then fold the slices' y as a fixed binary tree, see oct_fold in kernels.h.
 */
#ifndef OCT_Q8_H
#define OCT_Q8_H

#include "weight.h"

enum {
    OCT_Q8_BLOCK = 512,      /* activations of two digits that share a scale, at most */
    OCT_Q8_BLOCK_I8 = 256,   /* of one digit; divides OCT_Q8_BLOCK */
    OCT_Q8_ACT_MAX = 32639,  /* largest activation of two digits: 127 * 256 + 127 */
    OCT_Q8_ACT_MAX_I8 = 127, /* of one */
    OCT_Q8_ACT_ALIGN = 64    /* groups of an activation row start at multiples of this */
};

/* Packs one unit from its parts (src[n_parts], each the whole matrix of one expert), padding
 * included: writes exactly unit_stride bytes of weights and scale_stride bytes of scales. Either
 * place may be NULL: that half is not wanted, and its source is not read. */
void oct_q8_pack(const oct_weight_layout *l, int64_t slice, const oct_weight_source *src,
                 uint8_t *weights, uint16_t *scales);

/* Compares a packed unit with its source, integer by integer and scale by scale, padding too; what
 * is NULL is left out. Returns true if they are equal. Written apart from oct_q8_pack: it walks the
 * source. */
bool oct_q8_verify(const oct_weight_layout *l, int64_t slice, const oct_weight_source *src,
                   const uint8_t *weights, const uint16_t *scales);

/* Weight and scale of a panel's lane (oct_weight_lane names its source) at an input or group,
 * counted from the unit's first. For tests, export, info. */
int8_t oct_q8_weight(const oct_weight_layout *l, const uint8_t *weights, int64_t panel, int lane,
                     int64_t unit_in);
uint16_t oct_q8_scale(const oct_weight_layout *l, const uint16_t *scales, int64_t panel, int lane,
                      int64_t unit_group);

/* Symmetric quantisation of w[n_in][n_out] (f32, row stride n_out) in n_groups groups of inputs:
 * scale = bf16(max|w| / 127) rounded so that no integer leaves -127..127, q = round(w / scale).
 * q[n_in][n_out], scales[n_groups][n_out] (bf16 bits). NaN or Inf: returns false, and the outputs
 * are undefined. */
bool oct_q8_quantise(const float *w, int64_t n_in, int64_t n_out, int64_t n_groups, int8_t *q,
                     uint16_t *scales);

/* w[n_in][n_out] = q * scale in f32. */
void oct_q8_dequantise(const int8_t *q, const uint16_t *scales, int64_t n_in, int64_t n_out,
                       int64_t n_groups, float *w);

/* Error of an approximation, accumulated over any number of calls; start from zero. */
typedef struct oct_q8_error {
    double sum_sq_err, sum_sq_ref, max_abs;
    int64_t n;
} oct_q8_error;
void oct_q8_error_add(oct_q8_error *e, const float *ref, const float *approx, int64_t n);
double oct_q8_error_rel(const oct_q8_error *e); /* sqrt(sum_sq_err / sum_sq_ref), 0 if both are 0 */

/* How a row of n_in activations is cut for a weight layout. Offsets are in bytes from the row's
 * start; what the digit area holds is the business of the kernel row that wrote it. */
typedef struct oct_act_layout {
    int64_t n_in, n_groups, group_in;
    int digits;           /* 8-bit digits of an activation: 2 or 1 */
    int32_t most;         /* largest integer */
    int64_t block;        /* inputs that share a scale, at most */
    int64_t group_pad;    /* group_in rounded up to OCT_Q8_ACT_ALIGN; padding is zero */
    int64_t group_blocks; /* ceil(group_in / block) */
    int64_t n_blocks;     /* n_groups * group_blocks */
    size_t sums_at;       /* int32[2][n_blocks]; scales, f32[n_blocks], are at 0 */
    size_t digits_at;     /* n_groups * group_pad * 2 bytes, 64-byte aligned */
    size_t bytes;         /* of a row, a multiple of 64; also enough for f32[n_in] (the ref row) */
} oct_act_layout;
void oct_act_layout_init(oct_act_layout *a, int64_t n_in, int64_t n_groups, int digits);

/* Plain reference of the activation quantiser: a[n_in] and scale[n_blocks]. Rule: m = max|x| of the
 * block. m == 0 or m < 1e-30: s = 0, a = 0. m is NaN or Inf: s = NaN, a = 0 (so that the outputs
 * are NaN). Else s = m / most and a = rint(x * (most / m)), in f32, rounded to nearest even,
 * clamped to +-most. */
void oct_act_quantise_ref(const oct_act_layout *l, const float *x, int16_t *a, float *scale);

#endif
