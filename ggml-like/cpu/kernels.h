/* kernels.h: the CPU kernel table. Each row has a name, a function for every operation, and the
 * instruction sets that they need:
 *
 *   ref     plain loops written from the maths: f32 activations, weight = integer * scale in f32;
 *           needs nothing, and is the only row on processors other than x86-64
 *   avx2    AVX2 + FMA + F16C
 *   avx512  AVX-512 F/BW/DQ/VL + VNNI
 *   amx     avx512, but matrix products by AMX int8 tiles (Sapphire Rapids and later)
 *
 * kernels.inc lists every function once; prototypes, the table, `octet info` and the kernel tests
 * are expansions of it. All rows but ref give the same bits as each other; ref is their yardstick.
 *
 * LANES. f32 reductions over a vector of n run in 16 lanes: lane = i mod 16, fma, each lane in
 * ascending i from +0, then folded 16 -> 8 -> 4 -> 2 -> 1 by adding lane j + half to lane j.
 *
 * Kernels cannot fail, allocate nothing, keep no state, and may run on any number of threads as
 * long as their outputs are disjoint. Pointers are borrowed; inputs are never written. Unless a
 * comment says otherwise buffers need no alignment, and nothing outside [0, n) is read or
 * written. */
#ifndef OCT_KERNELS_H
#define OCT_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "act.h"
#include "isa.h"
#include "status.h"
#include "types.h"

enum {
    OCT_KV_LANES = 16,   /* positions stored side by side in the K cache */
    OCT_ATTN_BLOCK = 128 /* positions whose sums are formed from zero before they are folded */
};

/* Panels times n_rows activation rows: y[p][r][lane] as defined in weight.h, overwritten.
 * The unit's groups are groups first_group .. first_group + unit_groups - 1 of the rows.
 * The panel is 64-byte aligned, the rows too. */
typedef struct oct_linear_args {
    const oct_weight_layout *w;
    int64_t n_panels;       /* consecutive ones of a unit; one is what all rows but amx want */
    const uint8_t *panel;   /* the first */
    const uint16_t *scales; /* [n_panels][unit_groups][64] bf16, 64-byte aligned */
    const uint8_t *next;    /* what is read after them, to be fetched ahead; NULL: what follows */
    int64_t ahead;          /* bytes that a stream from memory is fetched ahead; 0: no further
                               than it is loaded */
    const oct_act_layout *act;
    const void *const *rows; /* [n_rows] rows written by the same ISA's act_quantise */
    int64_t n_rows;
    int64_t first_group;
    float *y; /* [n_panels][n_rows][64], 64-byte aligned */
} oct_linear_args;

/* One of the panels alone. */
static inline oct_linear_args oct_linear_panel(const oct_linear_args *a, int64_t p)
{
    oct_linear_args b = *a;
    b.n_panels = 1;
    b.next = p == a->n_panels - 1 ? a->next : NULL;
    b.panel += (size_t)p * a->w->panel_bytes;
    b.scales += p * a->w->unit_groups * OCT_PANEL;
    b.y += p * a->n_rows * OCT_PANEL;
    return b;
}

/* One block of at most 128 positions of one KV head against one token's query heads of that group.
 *   p = softcap_exp((q . k) * (2 scale / cap), cap)   q . k: one fma chain over ascending dimension
 *     = exp(s - cap) of the score s = cap tanh((q . k) * (scale / cap)): as s is in [-cap, cap], no
 *       running maximum is needed
 *   l[h]    += sum of p over the block            16 lanes by position, folded as above
 *   o[h][i] += sum of p * v[pos][i]               one fma chain over ascending position
 * The block's sums are formed from zero, then added. cap is in (0, 40].
 *   k  [n_pos up to 16][head_dim][16 positions]   v  [n_pos][v_stride]
 * Rows of v are v_stride = head_dim rounded up to 16 elements; the padding is zero. Positions
 * beyond n_pos in the last group of 16 are read but masked, whatever they hold. */
typedef struct oct_attn_args {
    const float *q; /* [n_heads][head_dim], rotated */
    const void *k, *v;
    const void *next_k; /* of the next call, to be fetched meanwhile; NULL: not known */
    oct_kv_type type;
    int64_t n_heads, head_dim, v_stride, n_pos;
    float scale, cap;
    float *o; /* [n_heads][v_stride] */
    float *l; /* [n_heads] */
} oct_attn_args;

/* Dot products of f32 rows with matrix rows, y[r * y_stride + j] = scale * (x_r . w_j) in 16 lanes.
 * Weights are bf16 (tied head) or f32 (router), widened exactly. */
typedef struct oct_dot_args {
    const void *w;            /* [n_out][w_stride] bf16 or f32 */
    int64_t w_stride;         /* in elements */
    const float *const *rows; /* [n_rows] */
    int64_t n_rows, n_out, n_in;
    float scale;
    float *y;
    int64_t y_stride;
} oct_dot_args;

typedef void oct_k_act_quantise_fn(const oct_act_layout *l, const float *x, void *row);
/* Each weight type has its own. */
typedef void oct_k_linear_fn(const oct_linear_args *a);
#define OCT_WEIGHT_TYPE(NAME, name, number, digits) \
    typedef oct_k_linear_fn oct_k_linear_##name##_fn;
#include "weight_types.inc"
typedef void oct_k_attn_fn(const oct_attn_args *a);
typedef void oct_k_dot_bf16_fn(const oct_dot_args *a);
typedef void oct_k_dot_f32_fn(const oct_dot_args *a);
/* y[i] = x[i] / sqrt(mean(x^2) + eps) * gamma[i], as (x * r) * gamma with
 * r = 1 / sqrt(sum / n + eps); add: y[i] += that instead. x and y may be the same buffer. */
typedef void oct_k_rms_norm_fn(const float *x, const float *gamma, int64_t n, float eps, bool add,
                               float *y);
/* y[i] = gelu(gate[i]) * up[i], gelu(x) = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). */
typedef void oct_k_gelu_mul_fn(const float *gate, const float *up, int64_t n, float *y);
/* Rotates one head in place: pairs (j, j + n/2), cos and sin [n/2]; x' = x c - y s, y' = y c + x s,
 * each as fma of one rounded product. */
typedef void oct_k_rope_fn(float *x, const float *cos, const float *sin, int64_t n);
/* y[i] = bf16 row widened * scale. */
typedef void oct_k_embed_fn(const uint16_t *row, int64_t n, float scale, float *y);
/* y[i] += a * x[i], product rounded before the sum. */
typedef void oct_k_add_scaled_fn(const float *x, float a, int64_t n, float *y);
/* y[i] = a[i] + b[i]; y may be a or b. */
typedef void oct_k_add_fn(const float *a, const float *b, int64_t n, float *y);
/* Converts n values to the cache's type with an element stride at the destination (16 for K, 1 for
 * V). Values beyond the type's largest finite one saturate; returns how many did (NaN is kept). */
typedef int64_t oct_k_kv_store_fn(const float *x, int64_t n, oct_kv_type type, void *dst,
                                  int64_t dst_stride);
/* w[i] = oct_expf((x[i] - max) / temperature), temperature > 0; w may be x. */
typedef void oct_k_softmax_weights_fn(const float *x, int64_t n, float max, float temperature,
                                      float *w);

typedef struct oct_kernels {
    const char *name;
    oct_isa needs;  /* what the CPU must have */
    int preference; /* of the rows that a CPU can run, the one with the largest is the default */
    int panels;     /* of a call of linear, at its best, where rows are many */
    int chunk;      /* tokens of a prompt that keep memory from being the limit of linear */
    const struct oct_probe_set *probes; /* what measures its limits, see probe.h; NULL: nothing */
#define OCT_KERNEL_SLOT(slot) oct_k_##slot##_fn *slot;
#include "kernels.inc"
} oct_kernels;

/* The product with weights of a type. */
static inline oct_k_linear_fn *oct_kernels_linear(const oct_kernels *k, oct_weight_type type)
{
    oct_k_linear_fn *const of[OCT_WEIGHT_TYPES] = {
#define OCT_WEIGHT_TYPE(NAME, name, number, digits) [OCT_WEIGHT_##NAME] = k->linear_##name,
#include "weight_types.inc"
    };
    return of[type];
}

/* The rows of this build, [oct_n_kernel_rows]; preferences differ. The first is ref. */
enum { OCT_KERNELS_REF = 0, OCT_MAX_KERNEL_ROWS = 32 };
extern const oct_kernels oct_kernel_rows[];
extern const int oct_n_kernel_rows;

/* The row of a name; NULL for anything else. */
const oct_kernels *oct_kernels_find(const char *name);

/* Whether this CPU can run a row. */
bool oct_kernels_usable(const oct_kernels *row);

/* The most preferred row that this CPU can run, whatever the environment says: for what has the
 * same bits in all of them. Thread-safe. */
const oct_kernels *oct_kernels_best(void);

/* The row to compute with on a CPU that has `have`: the one called `name`; if name is NULL, the one
 * that the environment's OCTET_ISA names; without that, the most preferred that the CPU can run.
 * OCT_ERR_ARG: no such row; OCT_ERR_UNSUPPORTED: the CPU cannot run it; the message names what it
 * lacks. *row is set only on success. */
OCT_MUST_CHECK oct_status oct_kernels_choose(const char *name, oct_isa have,
                                             const oct_kernels **row, oct_error *err);

/* The same choice among any rows[n], pure. name: NULL or "": none is asked for; source:
 * where it is from, for the message. One row at least must need nothing. */
OCT_MUST_CHECK oct_status oct_kernels_pick(const oct_kernels *rows, int n, oct_isa have,
                                           const char *source, const char *name,
                                           const oct_kernels **row, oct_error *err);

/* exp of Octet and what is made of it: the same bits on every CPU and in every kernel row (the
 * vector versions are the same operations, lane by lane). The largest errors that are stated here
 * are tested. NaN gives NaN. The steps are in oct_math.h. */
float oct_expf(float x); /* <= 3 ulp on [-87, 88]; 0 below, Inf above */
/* sum of exp(x[i] - max), no x above max, in double and 8 lanes; relative error < 1e-13. */
double oct_exp_sum(const float *x, int64_t n, float max);
/* exp(cap tanh(x / 2) - cap), cap in (0, 40]; relative error <= 2^-16. */
float oct_softcap_expf(float x, float cap);
float oct_geluf(float x); /* tanh form; relative error <= 2^-16 above -9, absolute <= 1e-30 below */
/* RoPE's inverse frequency of pair j, 1 / base^(2 j / head_dim), rounded to f32 where xAI's code
 * does: exponent, power, reciprocal. The angle of position p is (float)p times it, in f32. */
float oct_rope_inv_freq(float base, int64_t j, int64_t head_dim);
/* cos and sin of x, 0 <= x <= 1e6, computed in double from +, -, * alone; error < 1 ulp of f32. */
void oct_sincosf(float x, float *s, float *c);

/* Grok-1's router for one token: gate = softmax over all logits[n] (f32, sum in ascending order);
 * the k largest gates in falling order, the lower expert first on ties, not renormalised.
 * 1 <= k <= n <= OCT_WEIGHT_MAX_EXPERTS. With NaN among the logits the gates are NaN; experts are
 * always in range and distinct. */
void oct_route(const float *logits, int64_t n, int64_t k, int32_t *expert, float *gate);

/* Binary tree of slices, ((0+1)+(2+3))+((4+5)+(6+7)); an odd one moves up unchanged. Fed one slice
 * at a time in ascending order; level[] holds at most 4 pending partial tiles of n floats each.
 *   fold.n_done = 0; for each slice: memcpy/compute into oct_fold_next(&fold), oct_fold_push(&fold)
 *   result: oct_fold_end(&fold) returns a pointer to the n sums (inside levels). */
typedef struct oct_fold {
    float *levels; /* [4][n], 64-byte aligned, caller's */
    int64_t n;
    int depth;   /* pending tiles */
    int size[4]; /* slices summed in each pending tile */
    oct_k_add_fn *add;
} oct_fold;
void oct_fold_begin(oct_fold *f, float *levels, int64_t n, oct_k_add_fn *add);
float *oct_fold_next(oct_fold *f);
void oct_fold_push(oct_fold *f);
float *oct_fold_end(oct_fold *f);

#endif
