/* cuda_emulation.h: the machine of ggml-like/cuda/device.cuh on the host, for kernels that are
 * compiled with OCT_CUDA_EMULATED. One block of threads runs at a time; its threads are fibers, and
 * which of them goes on is drawn by a seed. Watched is what hardware would let pass:
 *
 *   shared memory   beyond its end; not aligned; read before it was written; written by one thread
 *                   and read or written by another with no barrier between (a warp's own
 *                   exchanges order its lanes); read while a copy to it is under way
 *   barriers        not reached by every thread, or at different places
 *   warps           an exchange that not all lanes reach
 *
 * Global memory is the host's: the sanitizer or guarded buffers watch it. */
#ifndef OCT_CUDA_EMULATION_H
#define OCT_CUDA_EMULATION_H

#include <math.h>
#include <string.h>

extern "C" {
#include "f16.h"
}

struct uint4 {
    alignas(16) uint32_t x;
    uint32_t y, z, w;
};
struct uint2 {
    alignas(8) uint32_t x;
    uint32_t y;
};
struct float4 {
    alignas(16) float x;
    float y, z, w;
};
struct float2 {
    alignas(8) float x;
    float y;
};
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return {x, y, z, w};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}

struct emu_dim {
    unsigned x, y, z;
};

/* What warps exchange. */
enum emu_op { EMU_XOR, EMU_DOWN, EMU_BALLOT, EMU_MMA };

/* Places in the kernels' text, by kind; a test can spoil one of them. */
enum emu_kind { EMU_BARRIER, EMU_GET, EMU_PUT, EMU_COPY, EMU_WAIT, EMU_EXCHANGE, EMU_KINDS };

struct emu_place {
    int site;
    const char *file;
    int line;
};
/* __COUNTER__ tells places apart: several may be in one line. */
#define EMU_HERE                        \
    emu_place                           \
    {                                   \
        __COUNTER__, __FILE__, __LINE__ \
    }

extern emu_dim emu_thread_index, emu_block_index, emu_block_size, emu_grid_size;
extern unsigned char *emu_shared;

/* Each returns where to read or write: the address, or, where the access is wrong, some memory that
 * harms nobody; the launch then fails. */
void *emu_access(emu_kind kind, const void *p, unsigned bytes, emu_place at);
void *emu_atomic(const void *p, emu_place at);
void emu_barrier(emu_place at);
void emu_copy16(void *to, const void *from, bool ok, emu_place at);
void emu_copies_commit(void);
void emu_copies_wait(int pending, emu_place at);
uint32_t emu_exchange(emu_op op, uint32_t v, uint32_t by, emu_place at);
void emu_mma(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, emu_place at);

#define threadIdx emu_thread_index
#define blockIdx emu_block_index
#define blockDim emu_block_size
#define gridDim emu_grid_size

#define OCT_DEVICE static inline
#define OCT_UNROLL
#define OCT_UNROLL_BY(n)
#define OCT_ENTRY(name, args, threads, blocks) \
    extern "C" void oct_cuda_##name(const oct_cuda_##args##_args a)
#define OCT_SHARED emu_shared

OCT_DEVICE float oct_fma(float a, float b, float c)
{
    return fmaf(a, b, c);
}
OCT_DEVICE float oct_mul(float a, float b)
{
    return a * b;
}
OCT_DEVICE float oct_add(float a, float b)
{
    return a + b;
}
OCT_DEVICE float oct_sub(float a, float b)
{
    return a - b;
}
OCT_DEVICE float oct_div(float a, float b)
{
    return a / b;
}
OCT_DEVICE float oct_sqrt(float a)
{
    return sqrtf(a);
}
OCT_DEVICE float oct_float_of_int(int32_t i)
{
    return (float)i;
}
/* Saturates, and NaN is 0, as on the device. */
OCT_DEVICE int32_t oct_int_of_float(float f)
{
    float r = rintf(f);
    return r != r ? 0 : r >= 0x1p31f ? INT32_MAX : r < -0x1p31f ? INT32_MIN : (int32_t)r;
}
OCT_DEVICE uint32_t oct_bits(float f)
{
    return oct_f32_bits(f);
}
OCT_DEVICE float oct_of_bits(uint32_t u)
{
    return oct_f32_of_bits(u);
}
OCT_DEVICE float oct_float_of_half(uint32_t h)
{
    return oct_f32_of_f16((uint16_t)h);
}

template <class T> static inline T emu_get(const T *p, emu_place at)
{
    return *(T *)emu_access(EMU_GET, p, sizeof(T), at);
}
template <class T, class V> static inline void emu_put(T *p, V v, emu_place at)
{
    *(T *)emu_access(EMU_PUT, p, sizeof(T), at) = (T)v;
}
static inline uint32_t emu_bits(uint32_t v)
{
    return v;
}
static inline uint32_t emu_bits(int32_t v)
{
    return (uint32_t)v;
}
static inline uint32_t emu_bits(float v)
{
    return oct_f32_bits(v);
}
template <class T> static inline T emu_exchanged(emu_op op, T v, uint32_t by, emu_place at)
{
    static_assert(sizeof(T) == 4, "32 bits");
    uint32_t u = emu_exchange(op, emu_bits(v), by, at);
    memcpy(&v, &u, 4);
    return v;
}

#define OCT_GET(p) emu_get((p), EMU_HERE)
#define OCT_PUT(p, v) emu_put((p), (v), EMU_HERE)
#define OCT_SHARED_ADD(p, v) (*(int32_t *)emu_atomic((p), EMU_HERE) += (v))
#define OCT_BARRIER() emu_barrier(EMU_HERE)
#define OCT_IN_ORDER() ((void)0)
#define OCT_COPY16(to, from, ok) emu_copy16((to), (from), (ok), EMU_HERE)
#define OCT_COPIES_COMMIT() emu_copies_commit()
#define OCT_COPIES_WAIT(pending) emu_copies_wait((pending), EMU_HERE)
#define OCT_SHUFFLE_XOR(v, mask) emu_exchanged(EMU_XOR, (v), (uint32_t)(mask), EMU_HERE)
#define OCT_SHUFFLE_DOWN(v, by) emu_exchanged(EMU_DOWN, (v), (uint32_t)(by), EMU_HERE)
#define OCT_BALLOT(v) emu_exchange(EMU_BALLOT, (v) ? 1u : 0u, 0, EMU_HERE)
#define OCT_POPULATION(v) __builtin_popcount(v)
#define OCT_MMA(d, a, b0, b1) emu_mma(d, a, b0, b1, EMU_HERE)

OCT_DEVICE uint4 oct_stream16(const void *p)
{
    return *(const uint4 *)p;
}
OCT_DEVICE uint4 oct_load16(const void *p)
{
    return *(const uint4 *)p;
}
OCT_DEVICE void oct_count(unsigned long long *p, int n)
{
    *p += (unsigned long long)n;
}
/* PTX ISA, "prmt": bit 3 of a selector spreads the byte's sign; kernels do not use that. */
OCT_DEVICE uint32_t oct_permute(uint32_t a, uint32_t b, uint32_t select)
{
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t d = 0;
    for (int k = 0; k < 4; k++) {
        uint32_t s = select >> 4 * k & 15u, byte = (uint32_t)(bytes >> 8 * (s & 7u)) & 255u;
        if (s & 8u)
            byte = byte & 128u ? 255u : 0u;
        d |= byte << 8 * k;
    }
    return d;
}
#define OCT_Q4_TABLE ((const uint4 *)(const void *)&oct_q4_table[0][0])

OCT_DEVICE int32_t oct_dot4(uint32_t w, uint32_t x, int32_t c)
{
    uint32_t sum = (uint32_t)c;
    for (int i = 0; i < 32; i += 8)
        sum += (uint32_t)((int32_t)(w >> i & 255u) * (int8_t)(x >> i & 255u));
    return (int32_t)sum;
}

#endif
