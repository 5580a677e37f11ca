/* k_probe_avx512.c: probe loops of the AVX-512 row. */
#include <immintrin.h>

#include "probe.h"

static uint64_t fold(__m512i v)
{
    uint64_t word[8], sum = 0;
    _mm512_storeu_si512(word, v);
    for (int i = 0; i < 8; i++)
        sum += word[i];
    return sum;
}

uint64_t oct_probe_read__avx512(const void *p, size_t bytes, size_t ahead)
{
    __m512i s0 = _mm512_setzero_si512(), s1 = s0, s2 = s0, s3 = s0;
    const char *c = p;
    for (size_t i = 0; i < bytes; i += 256) {
        const char *next = (const char *)((uintptr_t)c + i + ahead);
        _mm_prefetch(next, _MM_HINT_T0);
        _mm_prefetch(next + 64, _MM_HINT_T0);
        _mm_prefetch(next + 128, _MM_HINT_T0);
        _mm_prefetch(next + 192, _MM_HINT_T0);
        s0 = _mm512_add_epi64(s0, _mm512_load_si512(c + i));
        s1 = _mm512_add_epi64(s1, _mm512_load_si512(c + i + 64));
        s2 = _mm512_add_epi64(s2, _mm512_load_si512(c + i + 128));
        s3 = _mm512_add_epi64(s3, _mm512_load_si512(c + i + 192));
    }
    s0 = _mm512_add_epi64(_mm512_add_epi64(s0, s1), _mm512_add_epi64(s2, s3));
    return fold(s0);
}

/* Sixteen accumulators: enough for two instructions a cycle with a latency of up to eight. Written
 * as the instruction itself, so that nothing is folded, split or spilled. */
#define SIXTEEN(X) \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)

#define LOOP(name, instruction)                           \
    static uint64_t name(int64_t rounds)                  \
    {                                                     \
        __m512i a = _mm512_set1_epi32(0x3d003d00), b = a; \
        SIXTEEN(START)                                    \
        for (int64_t r = 0; r < rounds; r++) {            \
            SIXTEEN(instruction)                          \
        }                                                 \
        a = _mm512_setzero_si512();                       \
        SIXTEEN(SUM)                                      \
        return fold(a);                                   \
    }
#define START(i) __m512i x##i = _mm512_setzero_si512();
#define SUM(i) a = _mm512_add_epi64(a, x##i);
#define BYTES(i) __asm__("vpdpbusd %2, %1, %0" : "+v"(x##i) : "v"(a), "v"(b));
#define FMA(i) __asm__("vfmadd231ps %2, %1, %0" : "+v"(x##i) : "v"(a), "v"(b));
#define BF16(i) __asm__("vdpbf16ps %2, %1, %0" : "+v"(x##i) : "v"(a), "v"(b));

LOOP(multiply_bytes, BYTES)
LOOP(multiply_f32, FMA)
LOOP(multiply_bf16, BF16)

static const oct_probe bytes = {"vpdpbusd (zmm)", 0, 2, 16 * 64 * 2, multiply_bytes};
const oct_probe oct_probe_f32__avx512 = {"vfmadd231ps (zmm)", 0, 0, 16 * 16 * 2, multiply_f32};
static const oct_probe bf16 = {"vdpbf16ps (zmm)", OCT_ISA_AVX512_BF16, 0, 16 * 32 * 2,
                               multiply_bf16};
const oct_probe_set oct_probes__avx512 = {oct_probe_read__avx512,
                                          {&bytes, &oct_probe_f32__avx512, &bf16}};
