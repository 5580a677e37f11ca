/* kernels_cuda.h: what the host and the kernels on a CUDA device agree about. Read by C, by nvcc
 * and by the emulation in tests/.
 *
 * Every kernel is an extern "C" __global__ function of one parameter, a struct of arguments by
 * value; pointers in it are the device's. For each kind of arguments a pure function
 * oct_cuda_X_launch tells which entry (a width or a type of cache is an entry of its own), grid,
 * block and shared memory. Whatever is computed has the bits of the CPU's rows: the order of sums
 * is that of kernels.h and weight.h. Several kernels make a node of graph.h:
 *
 *   EMBED       embed
 *   NORM        norm
 *   ADD_NORM    norm (add); of an input that is still slices or slots: see oct_cuda_norm_args
 *   LINEAR      quantise, linear; inputs split: then fold, or norm reads the slices itself
 *   ROPE_STORE  kv_copy (if there are copies), rope
 *   ATTENTION   attention; in parts: then attention_fold
 *   ROUTE       route
 *   EXPERTS     sort, quantise, linear (gelu), quantise, linear, fold
 *   COMBINE     combine
 *   SELECT      select
 *   HEAD        head; by cuBLAS: split
 *
 * (FOLD_RANKS and GATHER_LOGITS are the host's.) Kernels allocate nothing and keep no state. A
 * launch with no rows must not be made. Numbers of rows are at most 2^20. */
#ifndef OCT_KERNELS_CUDA_H
#define OCT_KERNELS_CUDA_H

#include <stddef.h>
#include <stdint.h>

#include "act.h"
#include "q4.h"
#include "types.h"

#ifdef __CUDACC__
#define OCT_CUDA_PURE static inline __host__ __device__
#else
#define OCT_CUDA_PURE static inline
#endif

/* Every entry: its name in the module is oct_cuda_<name>; arguments oct_cuda_<args>_args; threads
 * of a block at most; blocks that a multiprocessor must have room for, by registers. */
#define OCT_CUDA_ENTRIES(ENTRY)              \
    ENTRY(embed, embed, 256, 4)              \
    ENTRY(norm, norm, 512, 2)                \
    ENTRY(quantise, quantise, 128, 8)        \
    ENTRY(gemv_1, linear, 256, 4)            \
    ENTRY(gemv_2, linear, 256, 3)            \
    ENTRY(gemv_4, linear, 256, 2)            \
    ENTRY(gemv_8, linear, 192, 2)            \
    ENTRY(gemm, linear, 384, 1)              \
    ENTRY(gemv_q4_1, linear, 256, 3)         \
    ENTRY(gemv_q4_2, linear, 256, 2)         \
    ENTRY(gemv_q4_4, linear, 256, 2)         \
    ENTRY(gemv_q4_8, linear, 192, 2)         \
    ENTRY(gemm_q4, linear, 384, 1)           \
    ENTRY(fold, fold, 256, 4)                \
    ENTRY(kv_copy, kv_copy, 256, 4)          \
    ENTRY(rope, rope, 128, 4)                \
    ENTRY(attention_2, attention, 256, 3)    \
    ENTRY(attention_6, attention, 256, 2)    \
    ENTRY(attention_fold, attention, 128, 8) \
    ENTRY(route, route, 256, 4)              \
    ENTRY(sort, sort, 1024, 1)               \
    ENTRY(combine, combine, 256, 4)          \
    ENTRY(select, select, 256, 4)            \
    ENTRY(split, split, 256, 4)              \
    ENTRY(head_1, head, 256, 4)              \
    ENTRY(head_4, head, 256, 2)              \
    ENTRY(probe_read, probe, 256, 4)         \
    ENTRY(probe_peak, probe, 256, 4)

typedef enum oct_cuda_entry {
#define OCT_CUDA_ENTRY(name, args, threads, blocks) OCT_CUDA_##name,
    OCT_CUDA_ENTRIES(OCT_CUDA_ENTRY)
#undef OCT_CUDA_ENTRY
        OCT_CUDA_N_ENTRIES
} oct_cuda_entry;

typedef struct oct_cuda_launch {
    oct_cuda_entry entry;
    uint32_t grid[3], block; /* block: threads along x */
    uint32_t shared;         /* bytes of dynamic shared memory */
} oct_cuda_launch;

/* Shared memory of a block at most on the smallest devices, those of 7.5. Keys of wide heads in f32
 * are what may need more. */
enum { OCT_CUDA_SHARED_75 = 64 * 1024 };

/* ---- arguments ---- */

/* out[r][i] = bf16 row of token[r] * scale; zeros for rows outside [first, end), which another rank
 * has. */
typedef struct oct_cuda_embed_args {
    const uint16_t *table; /* see oct_table */
    int64_t cols, slice_rows, slice_rows_pad;
    int64_t first, end;   /* rows of the vocabulary */
    const int32_t *token; /* [n_rows] */
    float *out;           /* [n_rows][cols] */
    int64_t n_rows;
    float scale;
} oct_cuda_embed_args;

/* y[r] = rms_norm(x[r]) * gamma, or y[r] += that. x is given in one of three forms:
 *   n_parts = 1, n_slots = 0   x[r][n]
 *   n_parts > 1, n_slots = 0   slices that are folded: part s of row r begins at
 *                              x + s * part_stride + r * n
 *   n_slots > 0                sums of slots, as combine: slot k of row r is row
 *                              r * n_slots + k, itself n_parts slices */
typedef struct oct_cuda_norm_args {
    const float *x, *gamma; /* gamma[n] */
    float *y;               /* [n_rows][n]; may be x */
    int64_t n, n_rows;
    int64_t part_stride; /* in floats */
    const unsigned char *routes;
    int64_t route_bytes; /* of a row of routes */
    int32_t n_parts, n_slots;
    int32_t add;
    float eps;
} oct_cuda_norm_args;

/* Rounds rows for a matrix: row r becomes a row of act, at to + r * act.bytes, in the layout of the
 * avx512 row: scales; sums of the digits; digits hi, then lo. n_used > 0: only the rows that sort
 * put there, of which there are *n_used. */
typedef struct oct_cuda_quantise_args {
    const float *x; /* [n_rows][act.n_in] */
    unsigned char *to;
    oct_act_layout act;
    int64_t n_rows;
    const int32_t *n_used; /* NULL: all */
} oct_cuda_quantise_args;

/* Rows first .. first + n - 1 (in the order of sort) go to an expert. */
typedef struct oct_cuda_tile {
    int32_t expert, first, n;
} oct_cuda_tile;

/* Panels times rows. Unit (expert, slice): weights + expert * expert_stride + slice * slice_stride,
 * scales likewise, bytes. The caller may bias the pointers, so that a rank needs to have only what
 * is its own. Row i of the product (0 .. n_rows - 1, or those of the tiles) reads activation row
 * x_row[i] (NULL: i) and writes output row y_row[i] (NULL: i).
 *   outputs split   slice s writes columns s * unit_out .. of y
 *   inputs split    slice s writes y + (s - first_slice) * part_stride: parts, to be folded
 *   gelu            (interleaved gate and up) columns s * unit_out / 2 ..: gelu(gate) * up */
typedef struct oct_cuda_linear_args {
    const uint8_t *weights, *scales;
    uint64_t expert_stride, slice_stride, scale_expert_stride, scale_slice_stride;
    int64_t n_panels, unit_out; /* of a unit */
    int64_t unit_groups, group_in, group_quads;
    uint64_t panel_bytes, group_bytes;
    const unsigned char *x;
    oct_act_layout act;
    float *y;
    int64_t y_cols; /* from one row to the next */
    int64_t part_stride;
    const int32_t *x_row, *y_row;
    const oct_cuda_tile
        *tiles; /* of tile_rows rows at most; NULL: rows 0 .. n_rows - 1 of expert 0 */
    int64_t n_rows;
    int32_t n_tiles;   /* of the list, at most; those unused have n = 0 */
    int32_t tile_rows; /* OCT_CUDA_GEMV_ROWS: gemv, OCT_CUDA_GEMM_ROWS: gemm */
    int32_t first_slice, end_slice;
    int32_t split_in, gelu;
    int32_t q4_groups; /* 0: the weights are q8; else of 4 bits, see oct_q4_groups */
} oct_cuda_linear_args;

/* out[r] = the n_parts slices of row r, folded as the tree of kernels.h. n_used > 0: row r is slot
 * r % n_used of routes row r / n_used; where its expert is outside [first_expert, end_expert),
 * zeros. */
typedef struct oct_cuda_fold_args {
    const float *parts;
    float *out; /* may be parts */
    int64_t part_stride, n, n_rows;
    const unsigned char *routes; /* NULL: expert 0 */
    int64_t route_bytes;
    int32_t n_parts, n_used, first_expert, end_expert;
} oct_cuda_fold_args;

/* Keys and values of a place, see kv_cache.h: one domain. */
typedef struct oct_cuda_kv {
    unsigned char *data;
    const int32_t *table; /* [n_seqs][seq_pages] pages of a sequence */
    int64_t seq_pages, n_pages;
    int64_t n_heads, head_dim, v_stride;
    uint64_t head_bytes;
    int32_t type; /* oct_kv_type */
    int32_t elem_bytes;
} oct_cuda_kv;

/* A copy of a page's first positions, as oct_kv_copy. */
typedef struct oct_cuda_page_copy {
    int32_t seq, from, to;
    int32_t pad;
    int64_t n_pos;
} oct_cuda_page_copy;

typedef struct oct_cuda_kv_copy_args {
    oct_cuda_kv kv;
    const oct_cuda_page_copy *copies; /* [n_copies] */
    int64_t n_copies, layer;
} oct_cuda_kv_copy_args;

/* Heads of oct_attn_shape; those from first_head to first_head + kv.n_heads - 1 are the cache's. */
typedef struct oct_cuda_heads {
    int64_t n_q_heads, n_kv_heads, n_slices, first_head;
} oct_cuda_heads;

/* Rotates queries and keys of the cache's heads in qkv, stores keys and values. */
typedef struct oct_cuda_rope_args {
    oct_cuda_kv kv;
    oct_cuda_heads heads;
    float *qkv;                    /* [n_rows][(Hq + 2 Hkv) P] */
    const float *rope;             /* [2 n_ctx][P / 2] */
    const int32_t *pos, *seq;      /* [n_rows] */
    unsigned long long *saturated; /* added to */
    int64_t n_rows, n_ctx, layer;
} oct_cuda_rope_args;

/* out[r][Hq P] from the queries of qkv. Row r is token out_row[r] (NULL: r) of the run. Whole (sums
 * NULL): a block of threads walks all blocks of positions of a few rows and a head. In parts: each
 * block of positions has its sums, oct_cuda_attention_sums floats in all, and attention_fold adds
 * them. max_blocks: of 128 positions, of any row, or more. */
typedef struct oct_cuda_attention_args {
    oct_cuda_kv kv;
    oct_cuda_heads heads;
    const float *qkv;
    const int32_t *pos, *seq, *out_row;
    float *out;
    float *sums;
    int64_t n_rows, max_blocks, layer;
    float factor, cap; /* factor: 2 scale / cap, in f32 */
    int32_t fold;      /* the second launch */
} oct_cuda_attention_args;

/* routes: per row n_used experts (int32), then their gates (f32). */
typedef struct oct_cuda_route_args {
    const float *x, *router; /* [n_rows][n], [n_experts][n] */
    unsigned char *routes;
    int64_t n, n_rows, route_bytes;
    int32_t n_experts, n_used;
} oct_cuda_route_args;

/* Sorts slots (row * n_used + k) by expert, stable, those of first_expert .. end_expert - 1 only,
 * and makes tiles of them. */
typedef struct oct_cuda_sort_args {
    const unsigned char *routes; /* NULL: a dense model, all go to expert 0 */
    int64_t route_bytes, n_rows;
    int32_t n_used, n_experts, first_expert, end_expert, tile_rows;
    int32_t *order;    /* [n_rows * n_used] slots: y_row of down, whose x_row is NULL */
    int32_t *x_row;    /* [n_rows * n_used] their rows: x_row of gate and up, whose y_row is NULL */
    int32_t *n_sorted; /* [1] how many */
    oct_cuda_tile *tiles; /* [n_tiles] */
    int32_t n_tiles;      /* oct_cuda_tiles(...) */
} oct_cuda_sort_args;

/* out[r] = 0, then += gate * slot for each slot in order, each of n_parts slices. */
typedef struct oct_cuda_combine_args {
    const float *slots; /* part s: + s * part_stride; [n_rows * n_used][n] */
    const unsigned char *routes;
    float *out;
    int64_t part_stride, route_bytes, n, n_rows;
    int32_t n_parts, n_used;
} oct_cuda_combine_args;

typedef struct oct_cuda_select_args {
    const float *x;
    const int32_t *out_row; /* [n_rows] */
    float *out;             /* [n_rows][n] */
    int64_t n, n_rows;
} oct_cuda_select_args;

/* Rows as sums of three bf16, which loses nothing of normal numbers: part p at out +
 * p * n_rows * n. */
typedef struct oct_cuda_split_args {
    const float *x; /* [n_rows][n] */
    uint16_t *out;  /* [3][n_rows][n] */
    int64_t n, n_rows;
} oct_cuda_split_args;

/* y[r * y_stride + v - first] = scale * (x_r . row v of the table) for v in [first, end). */
typedef struct oct_cuda_head_args {
    const float *x; /* [n_rows][cols] */
    const uint16_t *table;
    float *y;
    int64_t cols, slice_rows, slice_rows_pad;
    int64_t first, end, n_rows, y_stride;
    float scale;
} oct_cuda_head_args;

/* What `octet bench` compares with, see probe.cuh. */
enum { OCT_CUDA_PROBE_CHAINS = 4 };
typedef struct oct_cuda_probe_args {
    const unsigned char *p; /* [bytes], read; a multiple of 16 */
    int64_t bytes, rounds;
    unsigned long long *out; /* added to */
    int64_t n_blocks;
} oct_cuda_probe_args;

/* ---- sizes and launches ---- */

enum {
    OCT_CUDA_GEMV_ROWS = 8,        /* of a tile, at most */
    OCT_CUDA_GEMV_8_THREADS = 192, /* of a block of gemv_8, whose threads need registers */
    OCT_CUDA_GEMM_ROWS = 64,       /* of a tile, always */
    OCT_CUDA_GEMM_PANELS = 3,      /* of a block */
    OCT_CUDA_GEMM_STAGES = 3,
    OCT_CUDA_GEMM_QUADS = 16, /* of a stage */
    OCT_CUDA_GEMV_ITEMS = 16, /* blocks of activations whose sums are in shared memory */
    OCT_CUDA_ROW_TILE = 4,    /* rows that share keys and values, where attention is whole */
    OCT_CUDA_KEY_DIMS = 16,   /* of keys in shared memory, twice */
    OCT_CUDA_QUERY_GROUPS = 4,
    OCT_CUDA_KV_PAGE = 128, /* OCT_KV_PAGE, OCT_ATTN_BLOCK */
    OCT_CUDA_KV_LANES = 16  /* OCT_KV_LANES */
};

OCT_CUDA_PURE int64_t oct_cuda_div_up(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

OCT_CUDA_PURE int64_t oct_cuda_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The tile_rows of a product, for launches whose rows are in tiles those of sort: n_rows rows,
 * slots in all of n_experts, of which no expert gets more than most. mixed: gelu of units with
 * several groups, which gemm cannot. */
static inline int32_t oct_cuda_tile_rows(int64_t n_rows, int64_t n_experts, int64_t most, int mixed)
{
    if (n_rows > OCT_CUDA_GEMV_ROWS * n_experts && !mixed)
        return OCT_CUDA_GEMM_ROWS;
    return most > 4 ? 8 : most > 2 ? 4 : most > 1 ? 2 : 1;
}

/* Tiles that so many slots of n_experts make at most. */
static inline int32_t oct_cuda_tiles(int64_t n_slots, int64_t n_experts, int32_t tile_rows)
{
    int64_t each = n_slots < n_experts ? n_slots : n_experts;
    return (int32_t)(each + n_slots / tile_rows);
}

/* Floats of oct_cuda_attention_args.sums. */
static inline int64_t oct_cuda_attention_sums(int64_t n_rows, int64_t n_q_heads, int64_t max_blocks,
                                              int64_t v_stride)
{
    return n_rows * n_q_heads * max_blocks * (v_stride + 1);
}

/* Whether blocks of positions are worth launches of their own on a device of so many
 * multiprocessors. Either gives the same bits. */
static inline int oct_cuda_attention_splits(int64_t n_rows, int64_t n_heads, int64_t n_processors)
{
    return n_rows <= OCT_CUDA_ROW_TILE && n_rows * n_heads < 2 * n_processors;
}

static inline oct_cuda_launch oct_cuda_launch_of(oct_cuda_entry entry, int64_t x, int64_t y,
                                                 int64_t z, int64_t block, int64_t shared)
{
    oct_cuda_launch l = {
        entry, {(uint32_t)x, (uint32_t)y, (uint32_t)z}, (uint32_t)block, (uint32_t)shared};
    return l;
}

static inline oct_cuda_launch oct_cuda_embed_launch(const oct_cuda_embed_args *a)
{
    return oct_cuda_launch_of(OCT_CUDA_embed, a->n_rows, 1, 1, 256, 0);
}

static inline oct_cuda_launch oct_cuda_norm_launch(const oct_cuda_norm_args *a)
{
    return oct_cuda_launch_of(OCT_CUDA_norm, a->n_rows, 1, 1, 512, (a->n + 4) * 4);
}

/* A warp for each block of activations. */
static inline oct_cuda_launch oct_cuda_quantise_launch(const oct_cuda_quantise_args *a)
{
    return oct_cuda_launch_of(OCT_CUDA_quantise, oct_cuda_div_up(a->act.n_blocks, 4), a->n_rows, 1,
                              128, 0);
}

static inline oct_cuda_launch oct_cuda_linear_launch(const oct_cuda_linear_args *a)
{
    int64_t tiles = a->tiles ? a->n_tiles : oct_cuda_div_up(a->n_rows, a->tile_rows);
    int64_t slices = a->end_slice - a->first_slice, rows = a->tile_rows;
    int64_t tables = a->q4_groups ? OCT_Q4_TABLES * OCT_Q4_VALUES : 0;
    if (rows == OCT_CUDA_GEMM_ROWS)
        return oct_cuda_launch_of(
            a->q4_groups ? OCT_CUDA_gemm_q4 : OCT_CUDA_gemm, tiles,
            oct_cuda_div_up(a->n_panels, OCT_CUDA_GEMM_PANELS), slices, 128 * OCT_CUDA_GEMM_PANELS,
            tables + OCT_CUDA_GEMM_STAGES * OCT_CUDA_GEMM_QUADS *
                         (OCT_CUDA_GEMM_PANELS * 256 + OCT_CUDA_GEMM_ROWS * 8));
    int64_t items = oct_cuda_min(a->unit_groups * a->act.group_blocks, OCT_CUDA_GEMV_ITEMS);
    int entry = rows == 8   ? OCT_CUDA_gemv_8
                : rows == 4 ? OCT_CUDA_gemv_4
                : rows == 2 ? OCT_CUDA_gemv_2
                            : OCT_CUDA_gemv_1;
    if (a->q4_groups)
        entry += OCT_CUDA_gemv_q4_1 - OCT_CUDA_gemv_1;
    return oct_cuda_launch_of((oct_cuda_entry)entry, tiles, a->n_panels, slices,
                              rows == 8 ? OCT_CUDA_GEMV_8_THREADS : 256,
                              tables + items * rows * 256 + rows * 256);
}

#ifndef __cplusplus
/* What a matrix decides: its slices first_slice .. end_slice - 1 are there, one behind the other,
 * for activations of so many digits. Where it lies, and whose rows it takes and gives, is the
 * caller's to add. */
static inline oct_cuda_linear_args
oct_cuda_linear_of(const oct_weight_layout *l, int64_t first_slice, int64_t end_slice, int digits)
{
    const uint64_t n = (uint64_t)(end_slice - first_slice);
    oct_cuda_linear_args a = {.expert_stride = n * l->unit_stride,
                              .slice_stride = l->unit_stride,
                              .scale_expert_stride = n * l->scale_stride,
                              .scale_slice_stride = l->scale_stride,
                              .n_panels = l->n_panels,
                              .unit_out = l->unit_out,
                              .unit_groups = l->unit_groups,
                              .group_in = l->group_in,
                              .group_quads = l->group_quads,
                              .panel_bytes = l->panel_bytes,
                              .group_bytes = l->group_bytes,
                              .first_slice = (int32_t)first_slice,
                              .end_slice = (int32_t)end_slice,
                              .split_in = l->split == OCT_SPLIT_IN,
                              .q4_groups = oct_q4_groups(l->type)};
    oct_act_layout_init(&a.act, l->n_in, l->n_groups, digits);
    return a;
}
#endif

static inline oct_cuda_launch oct_cuda_fold_launch(const oct_cuda_fold_args *a)
{
    return oct_cuda_launch_of(OCT_CUDA_fold, oct_cuda_div_up(a->n, 256), a->n_rows, 1, 256, 0);
}

static inline oct_cuda_launch oct_cuda_kv_copy_launch(const oct_cuda_kv_copy_args *a)
{
    return oct_cuda_launch_of(OCT_CUDA_kv_copy, a->n_copies, a->kv.n_heads, 1, 256, 0);
}

/* A warp for each KV head of a row. */
static inline oct_cuda_launch oct_cuda_rope_launch(const oct_cuda_rope_args *a)
{
    return oct_cuda_launch_of(OCT_CUDA_rope, a->n_rows, oct_cuda_div_up(a->kv.n_heads, 4), 1, 128,
                              0);
}

static inline oct_cuda_launch oct_cuda_attention_launch(const oct_cuda_attention_args *a)
{
    int64_t n_q = a->heads.n_q_heads / a->heads.n_kv_heads, heads = a->kv.n_heads;
    if (a->fold)
        return oct_cuda_launch_of(OCT_CUDA_attention_fold, a->n_rows, heads * n_q, 1, 128, 0);
    int64_t rows = a->sums ? 1 : OCT_CUDA_ROW_TILE;
    rows = oct_cuda_min(rows, a->n_rows);
    int64_t queries = rows * n_q, each = queries > 2 ? 6 : 2; /* of a thread */
    int64_t groups = oct_cuda_min(oct_cuda_div_up(queries, each), OCT_CUDA_QUERY_GROUPS);
    /* queries, weights, sums; keys twice, each group of 16 positions a little apart */
    int64_t floats = groups * each * (a->kv.head_dim + OCT_CUDA_KV_PAGE + a->kv.v_stride + 1);
    int64_t keys = (OCT_CUDA_KEY_DIMS + 1) * OCT_CUDA_KV_PAGE * a->kv.elem_bytes;
    return oct_cuda_launch_of(each == 6 ? OCT_CUDA_attention_6 : OCT_CUDA_attention_2,
                              oct_cuda_div_up(a->n_rows, rows), heads, a->sums ? a->max_blocks : 1,
                              64 * groups, (floats + 15) / 4 * 16 + 2 * keys);
}

/* Half a warp for each expert's logit. */
static inline oct_cuda_launch oct_cuda_route_launch(const oct_cuda_route_args *a)
{
    return oct_cuda_launch_of(OCT_CUDA_route, a->n_rows, 1, 1, 256, 2 * OCT_WEIGHT_MAX_EXPERTS * 4);
}

static inline oct_cuda_launch oct_cuda_sort_launch(const oct_cuda_sort_args *a)
{
    (void)a;
    return oct_cuda_launch_of(OCT_CUDA_sort, 1, 1, 1, 1024, (OCT_WEIGHT_MAX_EXPERTS + 1) * 4);
}

static inline oct_cuda_launch oct_cuda_combine_launch(const oct_cuda_combine_args *a)
{
    return oct_cuda_launch_of(OCT_CUDA_combine, oct_cuda_div_up(a->n, 256), a->n_rows, 1, 256, 0);
}

static inline oct_cuda_launch oct_cuda_select_launch(const oct_cuda_select_args *a)
{
    return oct_cuda_launch_of(OCT_CUDA_select, oct_cuda_div_up(a->n, 256), a->n_rows, 1, 256, 0);
}

static inline oct_cuda_launch oct_cuda_split_launch(const oct_cuda_split_args *a)
{
    return oct_cuda_launch_of(OCT_CUDA_split, oct_cuda_div_up(a->n, 256), a->n_rows, 1, 256, 0);
}

/* Two threads for each row of the vocabulary. */
static inline oct_cuda_launch oct_cuda_head_launch(const oct_cuda_head_args *a)
{
    int64_t rows = a->n_rows > 1 ? 4 : 1;
    return oct_cuda_launch_of(rows == 4 ? OCT_CUDA_head_4 : OCT_CUDA_head_1,
                              oct_cuda_div_up(a->end - a->first, 128),
                              oct_cuda_div_up(a->n_rows, rows), 1, 256, 0);
}

static inline oct_cuda_launch oct_cuda_probe_launch(const oct_cuda_probe_args *a)
{
    return oct_cuda_launch_of(a->p ? OCT_CUDA_probe_read : OCT_CUDA_probe_peak, a->n_blocks, 1, 1,
                              256, 0);
}

#endif
