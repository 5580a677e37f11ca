/* vectors.cuh: kernels that go through rows of numbers: embed, norm, fold, combine, select,
 * split, quantise. */
#include "device.cuh"

/* A block for each row. */
OCT_ENTRY(embed, embed, 256, 4)
{
    int64_t r = blockIdx.x, token = a.token[r];
    float *out = a.out + r * a.cols;
    bool mine = token >= a.first && token < a.end;
    const uint16_t *row =
        oct_table_row(a.table, mine ? token : a.first, a.slice_rows, a.slice_rows_pad, a.cols);
    for (int64_t i = threadIdx.x; i < a.cols; i += blockDim.x)
        out[i] = mine ? oct_mul(oct_float_of_bf16(row[i]), a.scale) : 0.0f;
}

/* ---- sums of slices and slots ---- */

OCT_DEVICE const int32_t *route_of(const unsigned char *routes, int64_t route_bytes, int64_t row)
{
    return (const int32_t *)(routes + row * route_bytes);
}

/* Element i of the gated sum of a row's slots. */
OCT_DEVICE float slots_sum(const float *slots, int64_t part_stride, int n_parts, int64_t n,
                           const int32_t *route, int n_used, int64_t row, int64_t i)
{
    const float *gate = (const float *)(route + n_used);
    float sum = 0.0f;
    for (int k = 0; k < n_used; k++)
        sum = oct_add(sum, oct_mul(gate[k], oct_tree(slots + (row * n_used + k) * n + i,
                                                     part_stride, n_parts)));
    return sum;
}

OCT_ENTRY(fold, fold, 256, 4)
{
    int64_t r = blockIdx.y, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    bool mine = true;
    if (i >= a.n)
        return;
    if (a.routes) {
        int32_t e = route_of(a.routes, a.route_bytes, r / a.n_used)[r % a.n_used];
        mine = e >= a.first_expert && e < a.end_expert;
    }
    int64_t at = r * a.n + i;
    a.out[at] = mine ? oct_tree(a.parts + at, a.part_stride, a.n_parts) : 0.0f;
}

OCT_ENTRY(combine, combine, 256, 4)
{
    int64_t r = blockIdx.y, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.n)
        a.out[r * a.n + i] = slots_sum(a.slots, a.part_stride, a.n_parts, a.n,
                                       route_of(a.routes, a.route_bytes, r), a.n_used, r, i);
}

OCT_ENTRY(select, select, 256, 4)
{
    int64_t r = blockIdx.y, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.n)
        a.out[r * a.n + i] = a.x[a.out_row[r] * a.n + i];
}

OCT_ENTRY(split, split, 256, 4)
{
    int64_t r = blockIdx.y, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n)
        return;
    float v = a.x[r * a.n + i];
    OCT_UNROLL
    for (int p = 0; p < 3; p++) { /* eight of 24 digits each, and what is left */
        const uint32_t high = oct_bits(v) & 0xffff0000u;
        a.out[(p * a.n_rows + r) * a.n + i] = (uint16_t)(high >> 16);
        v = oct_add(v, oct_of_bits(high ^ 0x80000000u));
    }
}

/* ---- norm ---- */

/* A block for each row, which it keeps in shared memory. The sum of squares is sixteen chains, so
 * one half of a warp forms it: n / 16 dependent steps, about a microsecond for 6144. */
OCT_ENTRY(norm, norm, 512, 2)
{
    float *row = (float *)OCT_SHARED, *root = row; /* root: row[0], the row begins at row + 4 */
    int64_t r = blockIdx.x;
    row += 4;
    for (int64_t i = threadIdx.x; i < a.n; i += blockDim.x) {
        float v = a.n_slots > 0 ? slots_sum(a.x, a.part_stride, a.n_parts, a.n,
                                            route_of(a.routes, a.route_bytes, r), a.n_slots, r, i)
                                : oct_tree(a.x + r * a.n + i, a.part_stride, a.n_parts);
        OCT_PUT(row + i, v);
    }
    OCT_BARRIER();
    if (threadIdx.x < 32) {
        float sum = 0.0f;
        OCT_UNROLL_BY(16)
        for (int64_t i = threadIdx.x % 16; i < a.n; i += 16) {
            float v = OCT_GET(row + i);
            sum = oct_fma(v, v, sum);
        }
        OCT_FOLD_16(sum);
        if (threadIdx.x == 0)
            OCT_PUT(root, oct_div(1.0f, oct_sqrt(oct_add(oct_div(sum, (float)a.n), a.eps))));
    }
    OCT_BARRIER();
    float scale = OCT_GET(root), *y = a.y + r * a.n;
    for (int64_t i = threadIdx.x; i < a.n; i += blockDim.x) {
        float v = oct_mul(oct_mul(OCT_GET(row + i), scale), a.gamma[i]);
        y[i] = a.add ? oct_add(y[i], v) : v;
    }
}

/* ---- activations ---- */

/* A warp for each block of activations: 512 are four times four for each lane, so that a lane has
 * whole words of digits. */
OCT_ENTRY(quantise, quantise, 128, 8)
{
    const oct_act_layout &l = a.act;
    int64_t block = (int64_t)blockIdx.x * 4 + threadIdx.x / 32, r = blockIdx.y;
    int lane = threadIdx.x % 32;
    if (block >= l.n_blocks || (a.n_used && r >= *a.n_used))
        return;
    int64_t g = block / l.group_blocks, start = block % l.group_blocks * l.block;
    int64_t n = oct_cuda_min(l.group_in - start, l.block),
            pad = oct_cuda_min(l.group_pad - start, l.block);
    const float *x = a.x + r * l.n_in + g * l.group_in + start;
    unsigned char *to = a.to + r * (int64_t)l.bytes;
    float v[4][4];
    uint32_t most = 0; /* of the magnitudes' bits: Inf, then NaN, above all numbers */
    OCT_UNROLL
    for (int j = 0; j < 4; j++) {
        OCT_UNROLL
        for (int c = 0; c < 4; c++) {
            int64_t i = 128 * j + 4 * lane + c;
            v[j][c] = i < n ? x[i] : 0.0f;
            uint32_t magnitude = oct_bits(v[j][c]) & 0x7fffffffu;
            most = magnitude > most ? magnitude : most;
        }
    }
    for (int m = 16; m > 0; m /= 2) {
        uint32_t other = OCT_SHUFFLE_XOR(most, m);
        most = other > most ? other : most;
    }
    float max = oct_of_bits(most), limit = (float)l.most, inverse = 0.0f, scale = 0.0f;
    bool finite = most < 0x7f800000u;
    if (finite && max >= 1e-30f) {
        scale = oct_div(max, limit);
        inverse = oct_div(limit, max);
    }
    bool zero = inverse == 0.0f;
    uint32_t *hi = (uint32_t *)(to + l.digits_at + g * l.group_pad + start);
    uint32_t *lo = hi + l.n_groups * l.group_pad / 4;
    int32_t sum_hi = 0, sum_lo = 0;
    OCT_UNROLL
    for (int j = 0; j < 4; j++) {
        uint32_t word_hi = 0, word_lo = 0;
        OCT_UNROLL
        for (int c = 0; c < 4; c++) {
            int32_t q = zero ? 0 : oct_int_of_float(oct_mul(v[j][c], inverse));
            q = q > l.most ? l.most : q;
            q = q < -l.most ? -l.most : q;
            int32_t h = (q + 128) >> 8, low = q - h * 256;
            word_hi |= ((uint32_t)h & 255u) << 8 * c;
            word_lo |= ((uint32_t)low & 255u) << 8 * c;
            sum_hi += h;
            sum_lo += low;
        }
        if (128 * j + 4 * lane < pad) {
            hi[32 * j + lane] = word_hi;
            lo[32 * j + lane] = word_lo;
        }
    }
    for (int m = 16; m > 0; m /= 2) {
        sum_hi += OCT_SHUFFLE_XOR(sum_hi, m);
        sum_lo += OCT_SHUFFLE_XOR(sum_lo, m);
    }
    if (lane == 0) {
        ((float *)to)[block] = finite ? scale : oct_of_bits(0x7fc00000u);
        int32_t *sums = (int32_t *)(to + l.sums_at);
        sums[block] = sum_hi;
        sums[l.n_blocks + block] = sum_lo;
    }
}
