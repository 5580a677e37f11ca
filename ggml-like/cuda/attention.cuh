/* attention.cuh: rotating and storing, and attention over pages. A block of 128 positions has its
 * sums formed from zero; they are added in ascending order, by one block of threads that walks
 * through them, or, in decode, by attention_fold. */
#include "device.cuh"

/* ---- pages ---- */

OCT_DEVICE unsigned char *page_at(const oct_cuda_kv &kv, int64_t layer, int64_t page, int64_t head)
{
    return kv.data + ((layer * kv.n_pages + page) * kv.n_heads + head) * kv.head_bytes;
}

OCT_DEVICE int64_t page_of(const oct_cuda_kv &kv, int64_t seq, int64_t pos)
{
    return kv.table[seq * kv.seq_pages + pos / OCT_CUDA_KV_PAGE];
}

OCT_DEVICE uint64_t keys_bytes(const oct_cuda_kv &kv)
{
    return (uint64_t)(OCT_CUDA_KV_PAGE * kv.head_dim * kv.elem_bytes);
}

/* A copy and a head for each block. Elements of later positions stay as they are: they may be
 * written at the same time. */
OCT_ENTRY(kv_copy, kv_copy, 256, 4)
{
    const oct_cuda_page_copy c = a.copies[blockIdx.x];
    const unsigned char *from = page_at(a.kv, a.layer, c.from, blockIdx.y);
    unsigned char *to = page_at(a.kv, a.layer, c.to, blockIdx.y);
    const int64_t words = a.kv.elem_bytes / 2; /* of 16 bits */
    const int64_t keys = OCT_CUDA_KV_PAGE * a.kv.head_dim;
    const int64_t all = keys + c.n_pos * a.kv.v_stride;
    for (int64_t i = threadIdx.x; i < all * words; i += blockDim.x) {
        const int64_t e = i / words; /* the element */
        const int64_t pos =
            e / (OCT_CUDA_KV_LANES * a.kv.head_dim) * OCT_CUDA_KV_LANES + e % OCT_CUDA_KV_LANES;
        if (e >= keys || pos < c.n_pos)
            ((uint16_t *)to)[i] = ((const uint16_t *)from)[i];
    }
}

/* ---- rotating and storing ---- */

typedef struct head_place {
    int64_t q, k, v, n_q; /* in a row of the projection; query heads of the KV head */
} head_place;

OCT_DEVICE head_place place_of(const oct_cuda_heads &h, int64_t head_dim, int64_t kv_head)
{
    const int64_t q_heads = h.n_q_heads / h.n_slices, kv_heads = h.n_kv_heads / h.n_slices;
    const int64_t slice = kv_head / kv_heads, local = kv_head % kv_heads, n_q = q_heads / kv_heads;
    const int64_t base = slice * (q_heads + 2 * kv_heads) * head_dim;
    return {base + local * n_q * head_dim, base + (q_heads + local) * head_dim,
            base + (q_heads + kv_heads + local) * head_dim, n_q};
}

OCT_DEVICE int64_t qkv_cols(const oct_cuda_heads &h, int64_t head_dim)
{
    return (h.n_q_heads + 2 * h.n_kv_heads) * head_dim;
}

/* To nearest even, NaN as VCVTPS2PH has it; |f| <= 65504 or NaN. The device's own conversion has
 * other bits for NaN. */
OCT_DEVICE uint32_t half_of_float(float f)
{
    uint32_t u = oct_bits(f), sign = u >> 16 & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return sign | 0x7e00u | (u >> 13 & 0x3ffu);
    if (u < 0x38800000u)
        return sign | (oct_bits(oct_add(oct_of_bits(u), 0.5f)) - 0x3f000000u);
    u += 0xfffu + (u >> 13 & 1u);
    return sign | (u - 0x38000000u) >> 13;
}

OCT_DEVICE uint32_t bf16_of_float(float f)
{
    const uint32_t u = oct_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return u >> 16 | 0x40u;
    return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

/* Stores one value; whether it was beyond the type's largest finite one. */
OCT_DEVICE int kv_put(const oct_cuda_kv &kv, void *at, int64_t i, float v)
{
    const float most = kv.type == OCT_KV_F16    ? 65504.0f
                       : kv.type == OCT_KV_BF16 ? 0x1.fep127f
                                                : 0x1.fffffep127f;
    const int beyond = v > most || v < -most;
    v = v > most ? most : v < -most ? -most : v;
    if (kv.type == OCT_KV_F32)
        ((float *)at)[i] = v;
    else
        ((uint16_t *)at)[i] =
            (uint16_t)(kv.type == OCT_KV_F16 ? half_of_float(v) : bf16_of_float(v));
    return beyond;
}

OCT_DEVICE void rotate(float *x, float *y, float c, float s)
{
    const float p = *x, q = *y;
    *x = oct_fma(p, c, oct_sub(0.0f, oct_mul(q, s)));
    *y = oct_fma(q, c, oct_mul(p, s));
}

/* A warp for a KV head of a row and the query heads that share it. */
OCT_ENTRY(rope, rope, 128, 4)
{
    const int64_t r = blockIdx.x, local = (int64_t)blockIdx.y * 4 + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int64_t P = a.kv.head_dim, half = P / 2;
    if (local >= a.kv.n_heads)
        return;
    const head_place at = place_of(a.heads, P, a.heads.first_head + local);
    const int64_t pos = a.pos[r], in_page = pos % OCT_CUDA_KV_PAGE;
    const float *cos = a.rope + pos * half, *sin = cos + a.n_ctx * half;
    float *row = a.qkv + r * qkv_cols(a.heads, P);
    unsigned char *page = page_at(a.kv, a.layer, page_of(a.kv, a.seq[r], pos), local);
    unsigned char *key =
        page + (in_page / OCT_CUDA_KV_LANES * OCT_CUDA_KV_LANES * P + in_page % OCT_CUDA_KV_LANES) *
                   a.kv.elem_bytes;
    unsigned char *value = page + keys_bytes(a.kv) + in_page * a.kv.v_stride * a.kv.elem_bytes;
    int beyond = 0;
    OCT_UNROLL_BY(1)
    for (int64_t j = lane; j < half; j += 32) {
        const float c = cos[j], s = sin[j];
        OCT_UNROLL_BY(1)
        for (int64_t h = 0; h < at.n_q; h++)
            rotate(row + at.q + h * P + j, row + at.q + h * P + half + j, c, s);
        float x = row[at.k + j], y = row[at.k + half + j];
        rotate(&x, &y, c, s);
        row[at.k + j] = x;
        row[at.k + half + j] = y;
        beyond += kv_put(a.kv, key, j * OCT_CUDA_KV_LANES, x);
        beyond += kv_put(a.kv, key, (half + j) * OCT_CUDA_KV_LANES, y);
    }
    OCT_UNROLL_BY(1)
    for (int64_t i = lane; i < P; i += 32)
        beyond += kv_put(a.kv, value, i, row[at.v + i]);
    if (beyond)
        oct_count(a.saturated, beyond);
}

/* ---- attention ---- */

/* Two neighbours of the cache, as floats. */
OCT_DEVICE float2 pair_of(int32_t type, uint2 u)
{
    if (type == OCT_KV_F32)
        return make_float2(oct_of_bits(u.x), oct_of_bits(u.y));
    if (type == OCT_KV_BF16)
        return make_float2(oct_of_bits(u.x << 16), oct_of_bits(u.x & 0xffff0000u));
    return make_float2(oct_float_of_half(u.x), oct_float_of_half(u.x >> 16));
}

template <int TYPE> OCT_DEVICE float2 keys_at(const unsigned char *p)
{
    if (TYPE == OCT_KV_F32)
        return pair_of(TYPE, OCT_GET((const uint2 *)p));
    uint2 u = {OCT_GET((const uint32_t *)p), 0};
    return pair_of(TYPE, u);
}

template <int TYPE> OCT_DEVICE float2 values_at(const unsigned char *p)
{
    if (TYPE == OCT_KV_F32)
        return pair_of(TYPE, *(const uint2 *)p);
    uint2 u = {*(const uint32_t *)p, 0};
    return pair_of(TYPE, u);
}

/* What a block of threads works on: queries (rows x heads) of one sequence and KV head. A thread
 * has Q of them, from q0 on, and two positions, then two elements of the values. */
typedef struct attention_task {
    int local;             /* the head, in the cache */
    int first_row, n_rows; /* of one sequence */
    int seq;
    int n_q;              /* query heads of the KV head */
    int queries;          /* that there are: n_rows * n_q */
    int first;            /* query of this pass */
    float *q, *p, *o, *l; /* shared: [queries of a pass][head_dim], [128], [v_stride], [1] */
    unsigned char *keys;  /* shared: two stages */
} attention_task;

OCT_DEVICE int token_of(const oct_cuda_attention_args &a, int row)
{
    return a.out_row ? a.out_row[row] : row;
}

/* Positions that a query sees of block b. */
OCT_DEVICE int seen_by(const oct_cuda_attention_args &a, const attention_task &t, int query, int b)
{
    if (query >= t.queries)
        return 0;
    const int n = a.pos[token_of(a, t.first_row + query / t.n_q)] + 1 - b * OCT_CUDA_KV_PAGE;
    return n < 0 ? 0 : n < OCT_CUDA_KV_PAGE ? n : OCT_CUDA_KV_PAGE;
}

/* Begins to copy OCT_CUDA_KEY_DIMS dimensions of a page's keys, from d0 on, to a stage: eight
 * groups of 16 positions, each with a gap behind it, so that four are in different banks. */
template <int TYPE>
OCT_DEVICE void keys_copy(const oct_cuda_kv &kv, const unsigned char *page, int d0, int groups,
                          unsigned char *stage)
{
    const int elem = TYPE == OCT_KV_F32 ? 4 : 2, line = OCT_CUDA_KV_LANES * elem;
    const int pieces = OCT_CUDA_KEY_DIMS * line / 16; /* of a group */
    const int there = ((int)kv.head_dim - d0) * line / 16;
    for (int i = threadIdx.x; i < groups * pieces; i += blockDim.x) {
        const int g = i / pieces, at = i % pieces * 16;
        const bool ok = i % pieces < there;
        const unsigned char *from = page + (g * kv.head_dim + d0) * line + at;
        OCT_COPY16(stage + g * (OCT_CUDA_KEY_DIMS + 1) * line + at, ok ? from : page, ok);
    }
    OCT_COPIES_COMMIT();
}

/* dot[query][position] of a thread's Q queries and two positions, a chain over the dimensions. */
template <int TYPE, int Q>
OCT_DEVICE void attention_dots(const oct_cuda_kv &kv, const attention_task &t,
                               const unsigned char *page, int groups, float (*dot)[2])
{
    const int elem = TYPE == OCT_KV_F32 ? 4 : 2, line = OCT_CUDA_KV_LANES * elem;
    const int stage_bytes = (OCT_CUDA_KEY_DIMS + 1) * OCT_CUDA_KV_PAGE * elem;
    const int P = (int)kv.head_dim, pair = threadIdx.x % 64, q0 = threadIdx.x / 64 * Q;
    const int group = pair / 8;
    keys_copy<TYPE>(kv, page, 0, groups, t.keys);
    for (int d0 = 0, stage = 0; d0 < P; d0 += OCT_CUDA_KEY_DIMS, stage ^= 1) {
        if (d0 + OCT_CUDA_KEY_DIMS < P) {
            keys_copy<TYPE>(kv, page, d0 + OCT_CUDA_KEY_DIMS, groups,
                            t.keys + (stage ^ 1) * stage_bytes);
            OCT_COPIES_WAIT(1);
        } else {
            OCT_COPIES_WAIT(0);
        }
        OCT_BARRIER();
        const unsigned char *k = t.keys + stage * stage_bytes +
                                 group * (OCT_CUDA_KEY_DIMS + 1) * line + pair % 8 * 2 * elem;
        const int n = P - d0 < OCT_CUDA_KEY_DIMS ? P - d0 : OCT_CUDA_KEY_DIMS;
        if (group < groups) {
            OCT_UNROLL_BY(4)
            for (int d = 0; d < n; d++) {
                const float2 key = keys_at<TYPE>(k + d * line);
                OCT_UNROLL
                for (int i = 0; i < Q; i++) {
                    const float q = OCT_GET(t.q + (q0 + i) * P + d0 + d);
                    dot[i][0] = oct_fma(q, key.x, dot[i][0]);
                    dot[i][1] = oct_fma(q, key.y, dot[i][1]);
                }
            }
        }
        if (d0 + 2 * OCT_CUDA_KEY_DIMS < P)
            OCT_BARRIER(); /* the next copy is to this stage */
    }
}

/* l[query] += the sum of p: sixteen lanes by position. Half a warp for each query. */
OCT_DEVICE void attention_sum(const oct_cuda_attention_args &a, const attention_task &t, int n,
                              int b)
{
    const int lane = threadIdx.x % 16;
    for (int q = threadIdx.x / 32 * 2; q < n; q += blockDim.x / 32 * 2) { /* alike in a warp */
        const int mine = q + threadIdx.x % 32 / 16, seen = seen_by(a, t, t.first + mine, b);
        float sum = 0.0f;
        for (int i = lane; i < seen; i += 16)
            sum = oct_add(sum, OCT_GET(t.p + mine * OCT_CUDA_KV_PAGE + i));
        OCT_FOLD_16(sum);
        if (lane == 0 && seen > 0)
            OCT_PUT(t.l + mine, oct_add(OCT_GET(t.l + mine), sum));
    }
}

/* o[query][element] += the sum of p v, a chain over positions, for Q queries and two elements. */
template <int TYPE, int Q>
OCT_DEVICE void attention_values(const oct_cuda_attention_args &a, const attention_task &t,
                                 const unsigned char *values, int b)
{
    const int elem = TYPE == OCT_KV_F32 ? 4 : 2, stride = (int)a.kv.v_stride;
    const int q0 = threadIdx.x / 64 * Q;
    int seen[Q], least = OCT_CUDA_KV_PAGE, most = 0;
    OCT_UNROLL
    for (int i = 0; i < Q; i++) {
        seen[i] = seen_by(a, t, t.first + q0 + i, b);
        least = seen[i] < least ? seen[i] : least;
        most = seen[i] > most ? seen[i] : most;
    }
    for (int e = threadIdx.x % 64 * 2; e < stride; e += 128) {
        float sum[Q][2] = {};
        const unsigned char *v = values + e * elem;
        int pos = 0;
        OCT_UNROLL_BY((Q > 2 ? 4 : 8))
        for (; pos < least; pos++) {
            const float2 value = values_at<TYPE>(v + pos * stride * elem);
            OCT_UNROLL
            for (int i = 0; i < Q; i++) {
                const float p = OCT_GET(t.p + (q0 + i) * OCT_CUDA_KV_PAGE + pos);
                sum[i][0] = oct_fma(p, value.x, sum[i][0]);
                sum[i][1] = oct_fma(p, value.y, sum[i][1]);
            }
        }
        for (; pos < most; pos++) { /* what only some of the rows see */
            const float2 value = values_at<TYPE>(v + pos * stride * elem);
            OCT_UNROLL
            for (int i = 0; i < Q; i++) {
                if (pos < seen[i]) {
                    const float p = OCT_GET(t.p + (q0 + i) * OCT_CUDA_KV_PAGE + pos);
                    sum[i][0] = oct_fma(p, value.x, sum[i][0]);
                    sum[i][1] = oct_fma(p, value.y, sum[i][1]);
                }
            }
        }
        OCT_UNROLL
        for (int i = 0; i < Q; i++) {
            float2 *o = (float2 *)(t.o + (q0 + i) * stride + e);
            if (seen[i] > 0) {
                const float2 before = OCT_GET(o);
                OCT_PUT(o, make_float2(oct_add(before.x, sum[i][0]), oct_add(before.y, sum[i][1])));
            }
        }
    }
}

/* One block of positions: its sums are added to o and l. */
template <int TYPE, int Q>
OCT_DEVICE void attention_block(const oct_cuda_attention_args &a, const attention_task &t, int n,
                                int b)
{
    const int pair = threadIdx.x % 64, q0 = threadIdx.x / 64 * Q;
    const unsigned char *page =
        page_at(a.kv, a.layer, page_of(a.kv, t.seq, (int64_t)b * OCT_CUDA_KV_PAGE), t.local);
    const int seen = seen_by(a, t, t.queries - 1, b); /* by the last row: the most */
    float dot[Q][2] = {};
    attention_dots<TYPE, Q>(a.kv, t, page, (seen + OCT_CUDA_KV_LANES - 1) / OCT_CUDA_KV_LANES, dot);
    if (2 * pair < seen) {
        OCT_UNROLL
        for (int i = 0; i < Q; i++) {
            float2 w = make_float2(math_softcap_exp(oct_mul(dot[i][0], a.factor), a.cap),
                                   math_softcap_exp(oct_mul(dot[i][1], a.factor), a.cap));
            OCT_PUT((float2 *)(t.p + (q0 + i) * OCT_CUDA_KV_PAGE + 2 * pair), w);
        }
    }
    OCT_BARRIER();
    attention_sum(a, t, n, b);
    attention_values<TYPE, Q>(a, t, page + keys_bytes(a.kv), b);
}

/* Sums of a query's block begin at sums + this: v_stride of them, then l. */
OCT_DEVICE int64_t sums_at(const oct_cuda_attention_args &a, int64_t row, int64_t q_head, int64_t b)
{
    return ((row * a.kv.n_heads * (a.heads.n_q_heads / a.heads.n_kv_heads) + q_head) *
                a.max_blocks +
            b) *
           (a.kv.v_stride + 1);
}

/* The queries of a pass, at most four times Q, over the blocks first .. end - 1. */
template <int TYPE, int Q>
OCT_DEVICE void attention_pass(const oct_cuda_attention_args &a, const attention_task &t,
                               int first_block, int end_block)
{
    const int P = (int)a.kv.head_dim, stride = (int)a.kv.v_stride;
    const int room = blockDim.x / 64 * Q, left = t.queries - t.first, n = left < room ? left : room;
    const int64_t cols = qkv_cols(a.heads, P);
    const head_place at = place_of(a.heads, P, a.heads.first_head + t.local);
    for (int i = threadIdx.x; i < room * P; i += blockDim.x) {
        const int query = t.first + (i / P < n ? i / P : 0);
        OCT_PUT(t.q + i,
                a.qkv[(t.first_row + query / t.n_q) * cols + at.q + query % t.n_q * P + i % P]);
    }
    for (int i = threadIdx.x; i < room * stride; i += blockDim.x)
        OCT_PUT(t.o + i, 0.0f);
    for (int i = threadIdx.x; i < room; i += blockDim.x)
        OCT_PUT(t.l + i, 0.0f);
    for (int b = first_block; b < end_block; b++)
        attention_block<TYPE, Q>(a, t, n, b);
    OCT_BARRIER();
    for (int i = threadIdx.x; i < n * stride; i += blockDim.x) {
        const int query = t.first + i / stride, e = i % stride;
        const int row = t.first_row + query / t.n_q, head = t.local * t.n_q + query % t.n_q;
        const float sum = OCT_GET(t.o + i), l = OCT_GET(t.l + i / stride);
        if (a.sums) {
            float *to = a.sums + sums_at(a, row, head, first_block);
            to[e] = sum;
            if (e == 0)
                to[stride] = l;
        } else if (e < P) {
            a.out[(row * a.heads.n_q_heads + a.heads.first_head * t.n_q + head) * P + e] =
                oct_div(sum, l);
        }
    }
    OCT_BARRIER();
}

/* A few rows and a KV head: rows of one sequence after the other, as many queries at once as there
 * is room for. In parts: one block of positions, blockIdx.z. */
template <int TYPE, int Q> OCT_DEVICE void attention_rows(const oct_cuda_attention_args &a)
{
    const int tile = a.sums ? 1 : OCT_CUDA_ROW_TILE;
    const int end = (int)oct_cuda_min(((int64_t)blockIdx.x + 1) * tile, a.n_rows);
    const int room = blockDim.x / 64 * Q;
    attention_task t;
    t.local = (int)blockIdx.y;
    t.n_q = (int)(a.heads.n_q_heads / a.heads.n_kv_heads);
    t.q = (float *)OCT_SHARED;
    t.p = t.q + (room * a.kv.head_dim + 3) / 4 * 4;
    t.o = t.p + room * OCT_CUDA_KV_PAGE;
    t.l = t.o + room * a.kv.v_stride;
    t.keys = (unsigned char *)(t.l + (room + 3) / 4 * 4);
    for (int r = (int)blockIdx.x * tile; r < end; r += t.n_rows) {
        t.first_row = r;
        t.seq = a.seq[token_of(a, r)];
        int last = a.pos[token_of(a, r)];
        for (t.n_rows = 1; r + t.n_rows < end; t.n_rows++) {
            const int token = token_of(a, r + t.n_rows);
            if (a.seq[token] != t.seq || a.pos[token] < last)
                break;
            last = a.pos[token];
        }
        t.queries = t.n_rows * t.n_q;
        const int blocks = last / OCT_CUDA_KV_PAGE + 1, first = a.sums ? (int)blockIdx.z : 0;
        const int stop = a.sums && first < blocks ? first + 1 : blocks;
        for (t.first = 0; t.first < t.queries && first < stop; t.first += room)
            attention_pass<TYPE, Q>(a, t, first, stop);
    }
}

#define ATTENTION_ENTRY(q, blocks)                   \
    OCT_ENTRY(attention_##q, attention, 256, blocks) \
    {                                                \
        if (a.kv.type == OCT_KV_F16)                 \
            attention_rows<OCT_KV_F16, q>(a);        \
        else if (a.kv.type == OCT_KV_BF16)           \
            attention_rows<OCT_KV_BF16, q>(a);       \
        else                                         \
            attention_rows<OCT_KV_F32, q>(a);        \
    }
ATTENTION_ENTRY(2, 3)
ATTENTION_ENTRY(6, 2)

/* A block for each row and query head. */
OCT_ENTRY(attention_fold, attention, 128, 8)
{
    const int r = (int)blockIdx.x, head = (int)blockIdx.y;
    const int64_t P = a.kv.head_dim, n_q = a.heads.n_q_heads / a.heads.n_kv_heads;
    const int blocks = a.pos[token_of(a, r)] / OCT_CUDA_KV_PAGE + 1;
    const float *sums = a.sums + sums_at(a, r, head, 0);
    const int64_t step = a.kv.v_stride + 1;
    float l = sums[a.kv.v_stride];
    OCT_UNROLL_BY(8)
    for (int b = 1; b < blocks; b++)
        l = oct_add(l, sums[b * step + a.kv.v_stride]);
    for (int64_t i = threadIdx.x; i < P; i += blockDim.x) {
        float o = sums[i];
        OCT_UNROLL_BY(8)
        for (int b = 1; b < blocks; b++)
            o = oct_add(o, sums[b * step + i]);
        a.out[(r * a.heads.n_q_heads + a.heads.first_head * n_q + head) * P + i] = oct_div(o, l);
    }
}
