/* k_probe_avx2.c: probe loops of the AVX2 row. */
#include <immintrin.h>

#include "probe.h"

static uint64_t fold(__m256i v)
{
    __m128i s = _mm_add_epi64(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    return (uint64_t)_mm_cvtsi128_si64(s) + (uint64_t)_mm_extract_epi64(s, 1);
}

static uint64_t read_spans(const void *p, size_t bytes, size_t ahead)
{
    __m256i s[8];
    const char *c = p;
    for (int j = 0; j < 8; j++)
        s[j] = _mm256_setzero_si256();
    for (size_t i = 0; i < bytes; i += 256) {
        const char *next = (const char *)((uintptr_t)c + i + ahead);
        _mm_prefetch(next, _MM_HINT_T0);
        _mm_prefetch(next + 64, _MM_HINT_T0);
        _mm_prefetch(next + 128, _MM_HINT_T0);
        _mm_prefetch(next + 192, _MM_HINT_T0);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            const __m256i *v = (const __m256i *)(const void *)(c + i + 32 * j);
            s[j] = _mm256_add_epi64(s[j], _mm256_load_si256(v));
        }
    }
    uint64_t sum = 0;
    for (int j = 0; j < 8; j++)
        sum += fold(s[j]);
    return sum;
}

/* As the kernel does it: a product of pairs, then its sum; eight accumulators. */
#define EIGHT(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define TWELVE(X) EIGHT(X) X(8) X(9) X(10) X(11)
#define START(i) __m256i x##i = _mm256_setzero_si256();
#define SUM(i) a = _mm256_add_epi64(a, x##i);
#define PAIRS(i)                                       \
    __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" \
            : "+x"(x##i), "=&x"(product)               \
            : "x"(a), "x"(b));
#define FMA(i) __asm__("vfmadd231ps %2, %1, %0" : "+x"(x##i) : "x"(a), "x"(b));

static uint64_t multiply_int(int64_t rounds)
{
    __m256i a = _mm256_set1_epi32(0x00030005), b = a, product;
    EIGHT(START)
    for (int64_t r = 0; r < rounds; r++) {
        EIGHT(PAIRS)
    }
    a = _mm256_setzero_si256();
    EIGHT(SUM)
    return fold(a);
}

static uint64_t multiply_f32(int64_t rounds)
{
    __m256i a = _mm256_set1_epi32(0x3d003d00), b = a;
    TWELVE(START)
    for (int64_t r = 0; r < rounds; r++) {
        TWELVE(FMA)
    }
    a = _mm256_setzero_si256();
    TWELVE(SUM)
    return fold(a);
}

static const oct_probe pairs = {"vpmaddwd, vpaddd (ymm)", 0, 1, 8 * 16 * 2, multiply_int};
static const oct_probe muladd = {"vfmadd231ps (ymm)", 0, 0, 12 * 8 * 2, multiply_f32};
const oct_probe_set oct_probes__avx2 = {read_spans, {&pairs, &muladd, NULL}};
