/* device.cuh: what kernels ask of the machine, in one place: roundings that are never fused, shared
 * memory, barriers, warps, integer products. tests/ compiles the same kernels for the host and
 * gives these names other bodies (OCT_CUDA_EMULATED), which watch what the hardware would not.
 *
 * Sums of floats are made of oct_fma, oct_mul, oct_add, oct_sub and oct_div only, each rounded
 * once. Shared memory is reached by OCT_GET and OCT_PUT only, one naturally aligned number or
 * vector. */
#ifndef OCT_DEVICE_CUH
#define OCT_DEVICE_CUH

#include <stdint.h>

#include "kernels_cuda.h"
#include "oct_math.h"

#ifdef OCT_CUDA_EMULATED
#include "cuda_emulation.h"
#else

#define OCT_DEVICE static __device__ __forceinline__
#define OCT_UNROLL _Pragma("unroll")
#define OCT_UNROLL_BY(n) OCT_PRAGMA(unroll n)
#define OCT_PRAGMA(text) _Pragma(#text)

/* The beginning of an entry; its arguments are called a. */
#define OCT_ENTRY(name, args, threads, blocks)                    \
    extern "C" __global__ void __launch_bounds__(threads, blocks) \
        oct_cuda_##name(const __grid_constant__ oct_cuda_##args##_args a)

extern __shared__ __align__(16) unsigned char oct_cuda_shared[];
#define OCT_SHARED oct_cuda_shared

OCT_DEVICE float oct_fma(float a, float b, float c)
{
    return __fmaf_rn(a, b, c);
}
OCT_DEVICE float oct_mul(float a, float b)
{
    return __fmul_rn(a, b);
}
OCT_DEVICE float oct_add(float a, float b)
{
    return __fadd_rn(a, b);
}
OCT_DEVICE float oct_sub(float a, float b)
{
    return __fsub_rn(a, b);
}
OCT_DEVICE float oct_div(float a, float b)
{
    return __fdiv_rn(a, b);
}
OCT_DEVICE float oct_sqrt(float a)
{
    return __fsqrt_rn(a);
}
OCT_DEVICE float oct_float_of_int(int32_t i)
{
    return __int2float_rn(i);
}
OCT_DEVICE int32_t oct_int_of_float(float f) /* to nearest even */
{
    return __float2int_rn(f);
}
OCT_DEVICE uint32_t oct_bits(float f)
{
    return __float_as_uint(f);
}
OCT_DEVICE float oct_of_bits(uint32_t u)
{
    return __uint_as_float(u);
}
OCT_DEVICE float oct_float_of_half(uint32_t h) /* the low 16 bits; exact */
{
    float f;
    asm("{\n\t.reg .b16 h;\n\tcvt.u16.u32 h, %1;\n\tcvt.f32.f16 %0, h;\n\t}" : "=f"(f) : "r"(h));
    return f;
}

/* ---- shared memory and barriers ---- */

#define OCT_GET(p) (*(p))
#define OCT_PUT(p, v) (*(p) = (v))
#define OCT_SHARED_ADD(p, v) ((void)atomicAdd((p), (v))) /* int32 */
#define OCT_BARRIER() __syncthreads()
#define OCT_IN_ORDER() asm volatile("" ::: "memory") /* for the compiler alone */

/* 16 bytes from global to shared memory, zeros if not ok; there after OCT_COPIES_WAIT and a
 * barrier. */
#if __CUDA_ARCH__ >= 800
#define OCT_COPY16(to, from, ok) oct_copy16(to, from, ok)
OCT_DEVICE void oct_copy16(void *to, const void *from, bool ok)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to), n = ok ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(n)
                 : "memory");
}
#define OCT_COPIES_COMMIT() asm volatile("cp.async.commit_group;" ::: "memory")
#define OCT_COPIES_WAIT(pending) asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory")
#else
#define OCT_COPY16(to, from, ok) \
    (*(uint4 *)(to) = (ok) ? *(const uint4 *)(from) : make_uint4(0, 0, 0, 0))
#define OCT_COPIES_COMMIT() ((void)0)
#define OCT_COPIES_WAIT(pending) ((void)0)
#endif

/* ---- global memory ---- */

/* 16 bytes that are read once: past the first cache, the whole line into the second. */
OCT_DEVICE uint4 oct_stream16(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
/* That are read often. */
OCT_DEVICE uint4 oct_load16(const void *p)
{
    return __ldg((const uint4 *)p);
}
OCT_DEVICE void oct_count(unsigned long long *p, int n)
{
    atomicAdd(p, (unsigned long long)n);
}

/* ---- warps: all 32 lanes must call ---- */

#define OCT_SHUFFLE_XOR(v, mask) __shfl_xor_sync(0xffffffffu, (v), (mask))
#define OCT_SHUFFLE_DOWN(v, by) __shfl_down_sync(0xffffffffu, (v), (by))
#define OCT_BALLOT(v) __ballot_sync(0xffffffffu, (v))
#define OCT_POPULATION(v) __popc(v)

/* ---- bytes ---- */

/* Byte k of the result is byte s of the eight a, b (a's are 0..3), s: bits 4 k .. 4 k + 2 of select;
 * bit 4 k + 3 is 0. */
OCT_DEVICE uint32_t oct_permute(uint32_t a, uint32_t b, uint32_t select)
{
    uint32_t d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(select));
    return d;
}

/* oct_q4_table, the device's. */
static __device__ const __align__(16) uint8_t oct_cuda_q4_table[OCT_Q4_TABLES][OCT_Q4_VALUES] = {
#include "q4_table.inc"
};
#define OCT_Q4_TABLE ((const uint4 *)&oct_cuda_q4_table[0][0])

/* ---- products of bytes ---- */

/* c + the four products of unsigned bytes of w and signed bytes of x */
OCT_DEVICE int32_t oct_dot4(uint32_t w, uint32_t x, int32_t c)
{
    int32_t d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(w), "r"(x), "r"(c));
    return d;
}

/* d += a b: a 16 x 32 unsigned, b 32 x 8 signed, in the fragments of mma.m16n8k32. */
#define OCT_MMA(d, a, b0, b1) oct_mma(d, a, b0, b1)
#if __CUDA_ARCH__ >= 800
OCT_DEVICE void oct_mma(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
/* Four of m8n8k16, whose fragments are the quarters. */
OCT_DEVICE void oct_mma_8(int32_t &d0, int32_t &d1, uint32_t a, uint32_t b)
{
    asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+r"(d0), "+r"(d1)
        : "r"(a), "r"(b));
}
OCT_DEVICE void oct_mma(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    oct_mma_8(d[0], d[1], a[0], b0);
    oct_mma_8(d[2], d[3], a[1], b0);
    oct_mma_8(d[0], d[1], a[2], b1);
    oct_mma_8(d[2], d[3], a[3], b1);
}
#endif
#endif /* OCT_CUDA_EMULATED */

#define OCT_MATH_FN OCT_DEVICE
#define OCT_MATH_FMA oct_fma
#define OCT_MATH_MUL oct_mul
#define OCT_MATH_DIV oct_div
#define OCT_MATH_BITS oct_bits
#define OCT_MATH_OF_BITS oct_of_bits
#define OCT_MATH_GET OCT_GET
#define OCT_MATH_PUT OCT_PUT
#include "oct_math.inc"

OCT_DEVICE float oct_float_of_bf16(uint32_t b) /* the low 16 bits */
{
    return oct_of_bits(b << 16);
}

/* Lane j + half is added to lane j, 16 -> 1, in each half of the warp; lanes 0 and 16 have it. */
#define OCT_FOLD_16(v)                                \
    do {                                              \
        (v) = oct_add((v), OCT_SHUFFLE_DOWN((v), 8)); \
        (v) = oct_add((v), OCT_SHUFFLE_DOWN((v), 4)); \
        (v) = oct_add((v), OCT_SHUFFLE_DOWN((v), 2)); \
        (v) = oct_add((v), OCT_SHUFFLE_DOWN((v), 1)); \
    } while (0)

/* p[0] .. p[(n - 1) * stride], the tree of slices; n is 1..8. */
OCT_DEVICE float oct_tree(const float *p, int64_t stride, int n)
{
    float v0 = p[0], v2 = 0, v4 = 0, v6 = 0;
    if (n > 1)
        v0 = oct_add(v0, p[stride]);
    if (n > 2)
        v2 = p[2 * stride];
    if (n > 3)
        v2 = oct_add(v2, p[3 * stride]);
    if (n > 4)
        v4 = p[4 * stride];
    if (n > 5)
        v4 = oct_add(v4, p[5 * stride]);
    if (n > 6)
        v6 = p[6 * stride];
    if (n > 7)
        v6 = oct_add(v6, p[7 * stride]);
    if (n > 2)
        v0 = oct_add(v0, v2);
    if (n > 6)
        v4 = oct_add(v4, v6);
    return n > 4 ? oct_add(v0, v4) : v0;
}

/* Row of the tied embedding. */
OCT_DEVICE const uint16_t *oct_table_row(const uint16_t *table, int64_t row, int64_t slice_rows,
                                         int64_t slice_rows_pad, int64_t cols)
{
    return table + (row / slice_rows * slice_rows_pad + row % slice_rows) * cols;
}

#endif
