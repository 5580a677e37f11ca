/* probe.cuh: what kernels are measured against: reading memory as fast as it can be read, and the
 * products of int8 tensor cores, one after the other on registers. */
#include "device.cuh"

/* The sum of all 32-bit words, modulo 2^32, is added to *out. */
OCT_ENTRY(probe_read, probe, 256, 4)
{
    uint32_t sum = 0;
    const int64_t n = a.bytes / 16, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        const uint4 v = oct_stream16(a.p + 16 * i);
        sum += v.x + v.y + v.z + v.w;
    }
    oct_count(a.out, (int)sum);
}

/* Each warp multiplies rounds * OCT_CUDA_PROBE_CHAINS fragments of ones; 32 per product and number,
 * which is added to *out by every thread, modulo 2^32. */
OCT_ENTRY(probe_peak, probe, 256, 4)
{
    int32_t d[OCT_CUDA_PROBE_CHAINS][4] = {};
    const uint32_t ones[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
    for (int64_t i = 0; i < a.rounds; i++) {
        OCT_UNROLL
        for (int c = 0; c < OCT_CUDA_PROBE_CHAINS; c++)
            OCT_MMA(d[c], ones, 0x01010101u, 0x01010101u);
    }
    uint32_t sum = 0;
    OCT_UNROLL
    for (int c = 0; c < OCT_CUDA_PROBE_CHAINS; c++)
        sum += (uint32_t)d[c][0] + (uint32_t)d[c][1] + (uint32_t)d[c][2] + (uint32_t)d[c][3];
    oct_count(a.out, (int)sum);
}
