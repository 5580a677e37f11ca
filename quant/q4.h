/* q4.h: weights of 4 bits that stand for int8: types q4g32 (4.25 bits) and q4g16 (4.5). Pure;
 * nothing allocates or keeps state.
 *
 * For 32 (or 16) inputs of a channel one byte, an index, names one of 256 tables of sixteen
 * integers; four bits for each input pick one of them:
 *
 *     q = oct_q4_table[index][nibble] XOR 0x80
 *
 * So a matrix of this type is one of int8, with the same scales: what is computed from the tables'
 * integers has the bits of the same integers stored as q8.
 *
 * A panel (weight.h) is, for each scale group of the unit, a run of strips of 512 inputs, the last
 * one shorter; a strip of n inputs has ceil(n / 64) steps. A strip is
 *
 *     index bytes [32 pairs][2 channels][steps * 64 / inputs of an index]
 *     nibbles     [32 pairs][steps][64 inputs], one byte each: the first channel's in bits 0..3,
 *                 the second's in bits 4..7
 *
 * Pair p is channels c and c + 8, c = p / 8 * 16 + p % 8. Inputs missing in the last step have
 * nibble 0, an index without any input is 0, and so is everything of channels missing in the last
 * panel; table 0 is zeros. A vector register so holds inputs of one channel, whose table is the
 * same for sixteen of them: vpshufb, or the GPU's byte permutation, looks them up at once. */
#ifndef OCT_Q4_H
#define OCT_Q4_H

#include "weight.h"

enum {
    OCT_Q4_STRIP = 512, /* inputs: what shares a scale of activations (act.h) */
    OCT_Q4_STEP = 64,   /* inputs */
    OCT_Q4_PAIRS = OCT_PANEL / 2,
    OCT_Q4_TABLES = 256,
    OCT_Q4_VALUES = 16
};

/* The integers, excess 128 as in q8, ascending in each table; aligned to 64 bytes. */
extern const uint8_t oct_q4_table[OCT_Q4_TABLES][OCT_Q4_VALUES];

/* Bytes of a strip of n inputs; groups: indices of a step, 2 or 4. */
static inline int64_t oct_q4_strip_bytes(int64_t n, int groups)
{
    return (n + OCT_Q4_STEP - 1) / OCT_Q4_STEP * OCT_PANEL * (groups + OCT_Q4_STEP / 2);
}

/* Indices of a step of one channel: 2 or 4; 0: the type is none of these. */
static inline int oct_q4_groups(oct_weight_type type)
{
    return type == OCT_WEIGHT_Q4G32 ? 2 : type == OCT_WEIGHT_Q4G16 ? 4 : 0;
}

/* ---- choosing tables ------------------------------------------------------------------------- */

enum { OCT_Q4_CELLS = 32, OCT_Q4_LIKELY = 64 };

/* What choosing needs of the tables, made once from them: 321 KiB, the caller's. */
typedef struct oct_q4_chooser {
    uint16_t error[OCT_Q4_TABLES][256]; /* [table][q + 128]: square of the distance */
    uint8_t nibble[OCT_Q4_TABLES][256]; /* the nearest integer's, the lower on ties */
    /* [table][q XOR 0x80]: the distance, 127 at most; 64-byte aligned if the chooser is. */
    uint8_t off[OCT_Q4_TABLES][256];
    /* By the largest and the least integer of a group: the tables that are likely best. */
    uint8_t likely[OCT_Q4_CELLS][OCT_Q4_CELLS][OCT_Q4_LIKELY];
    uint16_t first[256], end[256]; /* see oct_q4_span */
} oct_q4_chooser;
void oct_q4_chooser_init(oct_q4_chooser *c);

/* Of the likely tables the one whose integers are nearest to q[n] (least sum of squares, n <= 32),
 * and the nibbles. */
uint8_t oct_q4_choose(const oct_q4_chooser *c, const int8_t *q, int n, uint8_t *nibble);

/* The same for sixteen channels of q8 at once: quads[n_quads], 8 or 4 of them, 256 bytes from one
 * to the next, 16 channels x 4 inputs of each. All tables are looked at whose reach is not absurd
 * for every one of the channels, and the first of the best is taken: index[16]. Whoever computes it
 * comes to the same result. */
typedef void oct_q4_choose16_fn(const oct_q4_chooser *c, const uint8_t *quads, int n_quads,
                                uint8_t *index);
oct_q4_choose16_fn oct_q4_choose16;
/* The nibbles of q[n], n <= 32, in a table: the nearest values, the lower on ties. Returns the sum
 * of the squared distances and raises *most_sq to the largest of them. */
typedef uint32_t oct_q4_nearest_fn(const oct_q4_chooser *c, int table, const int8_t *q, int n,
                                   uint8_t *nibble, uint32_t *most_sq);
oct_q4_nearest_fn oct_q4_nearest;
/* The tables first..end - 1 that are looked at: `most` and `least` are the largest and the least
 * reach (greatest less smallest integer, zero among them) of the channels. */
static inline void oct_q4_span(const oct_q4_chooser *c, int most, int least, int *first, int *end)
{
    *first = c->first[least];
    *end = c->end[most] > *first ? c->end[most] : *first + 1;
}

/* Stores the index and nibbles of one group of a lane: inputs unit_in .. unit_in + n - 1 of the
 * unit, the first of which is the first of an index; what the unit holds beside them stays. */
void oct_q4_put(const oct_weight_layout *l, uint8_t *weights, int64_t panel, int lane,
                int64_t unit_in, int n, uint8_t index, const uint8_t *nibble);

#endif
