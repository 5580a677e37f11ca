/* head.cuh: the tied head, bf16 rows of the vocabulary against rows of f32. */
#include "device.cuh"

/* Two threads have a row of the vocabulary, each eight of the sixteen lanes of its sum: 16 bytes
 * are eight neighbours, one for each of them. Where registers allow it four loads are under way,
 * the line of 128 bytes that both threads use up. */
template <int R> OCT_DEVICE void head(const oct_cuda_head_args &a)
{
    const int loads = R > 1 ? 2 : 4;
    const int half = threadIdx.x % 2;
    const int64_t v = a.first + (int64_t)blockIdx.x * 128 + threadIdx.x / 2;
    const int64_t r0 = (int64_t)blockIdx.y * R;
    const bool mine = v < a.end;
    const uint16_t *w =
        oct_table_row(a.table, mine ? v : a.first, a.slice_rows, a.slice_rows_pad, a.cols);
    float sum[R][8] = {};
    const float *x = a.x + r0 * a.cols;
    uint32_t row[R]; /* from x; those beyond the last are the first */
    OCT_UNROLL
    for (int r = 0; r < R; r++)
        row[r] = r0 + r < a.n_rows ? (uint32_t)(r * a.cols) : 0;
    int64_t i = 8 * half;
    const bool aligned = a.cols % 8 == 0;
    for (; aligned && i - 8 * half + 16 * loads <= a.cols; i += 16 * loads) {
        uint4 u[loads];
        OCT_UNROLL
        for (int k = 0; k < loads; k++)
            u[k] = oct_stream16(w + i + 16 * k);
        OCT_UNROLL
        for (int k = 0; k < loads; k++) {
            const uint32_t pair[4] = {u[k].x, u[k].y, u[k].z, u[k].w};
            OCT_UNROLL
            for (int r = 0; r < R; r++) {
                OCT_UNROLL
                for (int j = 0; j < 8; j += 4) {
                    const uint4 f = oct_load16(x + row[r] + i + 16 * k + j);
                    const uint32_t p = pair[j / 2], q = pair[j / 2 + 1];
                    sum[r][j] = oct_fma(oct_of_bits(f.x), oct_of_bits(p << 16), sum[r][j]);
                    sum[r][j + 1] =
                        oct_fma(oct_of_bits(f.y), oct_of_bits(p & 0xffff0000u), sum[r][j + 1]);
                    sum[r][j + 2] = oct_fma(oct_of_bits(f.z), oct_of_bits(q << 16), sum[r][j + 2]);
                    sum[r][j + 3] =
                        oct_fma(oct_of_bits(f.w), oct_of_bits(q & 0xffff0000u), sum[r][j + 3]);
                }
            }
        }
    }
    for (; i < a.cols; i += 16) {
        OCT_UNROLL
        for (int j = 0; j < 8; j++) {
            if (i + j < a.cols) {
                OCT_UNROLL
                for (int r = 0; r < R; r++)
                    sum[r][j] = oct_fma(x[row[r] + i + j], oct_float_of_bf16(w[i + j]), sum[r][j]);
            }
        }
    }
    OCT_UNROLL
    for (int r = 0; r < R; r++) {
        OCT_UNROLL
        for (int j = 0; j < 8; j++) /* lane j + 8 to lane j; then 4, 2, 1 */
            sum[r][j] = oct_add(sum[r][j], OCT_SHUFFLE_XOR(sum[r][j], 1));
        OCT_UNROLL
        for (int h = 4; h >= 1; h /= 2) {
            OCT_UNROLL
            for (int j = 0; j < h; j++)
                sum[r][j] = oct_add(sum[r][j], sum[r][j + h]);
        }
        if (half == 0 && mine && r0 + r < a.n_rows)
            a.y[(r0 + r) * a.y_stride + v - a.first] = oct_mul(a.scale, sum[r][0]);
    }
}

OCT_ENTRY(head_1, head, 256, 4)
{
    head<1>(a);
}
OCT_ENTRY(head_4, head, 256, 2)
{
    head<4>(a);
}
