/* q8_recover.c: the argument is in q8_recover.h. Loops are written for vectors of the baseline. */
#include "q8_recover.h"

#include <string.h>

#include "f16.h"

#if defined(__x86_64__)
#include <emmintrin.h> /* of every x86-64 */
#endif

enum {
    NORMAL = 0x0080,   /* the smallest bf16 that is normal */
    INFINITE = 0x7f80, /* all from here on are not finite */
    NONE = 0x7fff,     /* in place of a smallest weight that is not there */
    BLOCK = 256,       /* weights between two looks at how many are odd */
    DEEP = 3,          /* how many of the smallest and largest weights may be odd */
    ODD_SHARE = 256    /* one weight in so many may be */
};

static const float rounder = 0x1.8p23f; /* adding it rounds to the nearest integer */
static const uint32_t rounder_bits = 0x4b400000u;

/* ---- one scale ------------------------------------------------------------------------------ */

/* The bits of bf16(q s); q s is exact. */
static inline uint32_t product_bits(float q, float s)
{
    const uint32_t u = oct_f32_bits(q * s);
    return (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
}

/* The integer nearest to x, within -128..127. What lies beyond 2^22, infinity too, has bits that end
 * on the same side. */
static inline int32_t nearest_int8(float x)
{
    const int32_t q = (int32_t)(oct_f32_bits(x + rounder) - rounder_bits);
    const int32_t below = q > 127 ? 127 : q;
    return below < -128 ? -128 : below;
}

#if defined(__x86_64__)
/* Four products rounded to bf16, with their sign, as int32. */
static inline __m128i products(__m128i q, __m128 s)
{
    const __m128i u = _mm_castps_si128(_mm_mul_ps(_mm_cvtepi32_ps(q), s));
    const __m128i tie = _mm_and_si128(_mm_srli_epi32(u, 16), _mm_set1_epi32(1));
    return _mm_srai_epi32(_mm_add_epi32(_mm_add_epi32(u, _mm_set1_epi32(0x7fff)), tie), 16);
}

/* divide_block for as many whole eights as there are; returns how many weights that is. */
static int divide_eights(const uint16_t *restrict w, int n, float s, float inverse,
                         int8_t *restrict q, uint32_t *odd)
{
    const __m128 scale = _mm_set1_ps(s), by = _mm_set1_ps(inverse);
    const __m128i zero = _mm_setzero_si128();
    __m128i same = zero; /* counts of 16 bits */
    const int whole = n / 8 * 8;
    for (int i = 0; i < whole; i += 8) {
        const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)(w + i));
        const __m128 a = _mm_castsi128_ps(_mm_unpacklo_epi16(zero, x));
        const __m128 b = _mm_castsi128_ps(_mm_unpackhi_epi16(zero, x));
        /* What does not fit an int32 becomes its smallest, whose product is another number. */
        __m128i v =
            _mm_packs_epi32(_mm_cvtps_epi32(_mm_mul_ps(a, by)), _mm_cvtps_epi32(_mm_mul_ps(b, by)));
        v = _mm_max_epi16(_mm_min_epi16(v, _mm_set1_epi16(127)), _mm_set1_epi16(-128));
        _mm_storel_epi64((__m128i *)(void *)(q + i), _mm_packs_epi16(v, v));
        const __m128i back =
            _mm_packs_epi32(products(_mm_srai_epi32(_mm_unpacklo_epi16(v, v), 16), scale),
                            products(_mm_srai_epi32(_mm_unpackhi_epi16(v, v), 16), scale));
        same = _mm_sub_epi16(same, _mm_cmpeq_epi16(x, back));
    }
    uint16_t counts[8];
    _mm_storeu_si128((__m128i *)(void *)counts, same);
    *odd = (uint32_t)whole;
    for (int i = 0; i < 8; i++)
        *odd -= counts[i];
    return whole;
}
#endif

/* The integers of n weights, at most BLOCK; how many do not give the weight again. Where w / s is
 * beyond int8 the nearest int8 does not. */
static uint32_t divide_block(const uint16_t *restrict w, int n, float s, float inverse,
                             int8_t *restrict q)
{
    uint32_t odd = 0;
    int i = 0;
#if defined(__x86_64__)
    i = divide_eights(w, n, s, inverse, q, &odd);
#endif
    for (; i < n; i++) {
        const int32_t v = nearest_int8(oct_f32_of_bf16(w[i]) * inverse);
        q[i] = (int8_t)v;
        odd += product_bits((float)v, s) != w[i];
    }
    return odd;
}

/* All integers, and how many weights are odd; or only so far as that are more than `most`. */
static int64_t try_scale(const uint16_t *w, int64_t n, uint16_t scale, int64_t most, int8_t *q)
{
    const float s = oct_f32_of_bf16(scale), inverse = scale ? 1.0f / s : 0.0f;
    int64_t odd = 0;
    for (int64_t i = 0; i < n && odd <= most; i += BLOCK)
        odd += divide_block(w + i, n - i < BLOCK ? (int)(n - i) : BLOCK, s, inverse, q + i);
    return odd;
}

int64_t oct_q8_of_bf16(const uint16_t *w, int64_t n, uint16_t scale, int8_t *q, int64_t *first)
{
    const float s = oct_f32_of_bf16(scale);
    const int64_t odd = try_scale(w, n, scale, n, q);
    int64_t at = n;
    for (int64_t i = 0; odd && i < n; i++)
        if (product_bits((float)q[i], s) != w[i]) {
            at = i < at ? i : at;
            q[i] = q[i] == -128 ? -127 : q[i];
        }
    if (first)
        *first = at;
    return odd;
}

/* ---- candidates ----------------------------------------------------------------------------- */

/* The smallest and largest |w| that are not zero, as bits. */
static void extremes(const uint16_t *w, int64_t n, int16_t *lo, int16_t *hi)
{
    int16_t least = INT16_MAX, most = 0;
    for (int64_t i = 0; i < n; i++) {
        const int16_t a = (int16_t)(w[i] & 0x7fff);
        const int16_t b = (int16_t)((uint16_t)(a - 1) ^ 0x8000u); /* 0 comes out as the largest */
        least = b < least ? b : least;
        most = a > most ? a : most;
    }
    *lo = (int16_t)(((uint16_t)least ^ 0x8000u) + 1u);
    *hi = most;
}

/* Of a scale that some weights suggest. */
typedef struct candidate {
    uint16_t scale;
    int64_t odd; /* weights that it does not explain */
    int top;     /* the largest |q| */
} candidate;

typedef struct found {
    candidate best;
    int n;         /* scales that are as good: different ones */
    uint16_t last; /* whose integers are in q */
} found;

/* 127 first, then the larger. */
static bool better(const candidate *a, const candidate *b)
{
    if (a->odd != b->odd)
        return a->odd < b->odd;
    if ((a->top == 127) != (b->top == 127))
        return a->top == 127;
    return a->top > b->top;
}

static void consider(found *f, const candidate *c)
{
    if (!f->n || c->odd < f->best.odd) {
        f->best = *c;
        f->n = 1;
        return;
    }
    if (c->odd > f->best.odd || c->scale == f->best.scale)
        return;
    f->n++;
    if (better(c, &f->best))
        f->best = *c;
}

/* Tries all scales for which lo and hi are products, as 2. says. */
static void try_all(const uint16_t *w, int64_t n, int16_t lo, int16_t hi, int64_t allowed,
                    int8_t *q, found *f)
{
    const float small = oct_f32_of_bf16((uint16_t)lo), large = oct_f32_of_bf16((uint16_t)hi);
    const float least = large / 128.6f;
    for (int k = 1; k <= 128 && small / (float)k >= least * 0.99f; k++) {
        const int middle = oct_bf16_of_f32(small / (float)k);
        for (int bits = middle - 2; bits <= middle + 2; bits++) {
            if (bits < NORMAL || bits >= INFINITE)
                continue;
            const float s = oct_f32_of_bf16((uint16_t)bits);
            const int32_t top = -nearest_int8(-large / s); /* up to 128 */
            if (product_bits((float)k, s) != (uint32_t)lo ||
                product_bits((float)top, s) != (uint32_t)hi)
                continue;
            candidate c = {.scale = (uint16_t)bits, .top = top};
            c.odd = try_scale(w, n, c.scale, allowed, q);
            f->last = c.scale;
            if (c.odd <= allowed)
                consider(f, &c);
        }
    }
}

/* Puts a into its place among the DEEP smallest, all different, in ascending order. */
static void keep_smallest(int16_t a, int16_t least[DEEP])
{
    for (int k = 0; k < DEEP && a != least[k]; k++)
        if (a < least[k]) {
            const int16_t next = least[k];
            least[k] = a;
            a = next;
        }
}

/* The DEEP smallest different |w| that are not zero in ascending order, and the DEEP largest in
 * descending order; those that are missing: NONE, 0. */
static void deep_extremes(const uint16_t *w, int64_t n, int16_t lo[DEEP], int16_t hi[DEEP])
{
    int16_t most[DEEP]; /* mirrored: NONE - |w| */
    for (int k = 0; k < DEEP; k++)
        lo[k] = most[k] = NONE;
    for (int64_t i = 0; i < n; i++) {
        const int16_t a = (int16_t)(w[i] & 0x7fff);
        if (a && a < lo[DEEP - 1])
            keep_smallest(a, lo);
        if (NONE - a < most[DEEP - 1])
            keep_smallest((int16_t)(NONE - a), most);
    }
    for (int k = 0; k < DEEP; k++)
        hi[k] = (int16_t)(NONE - most[k]);
}

/* The scale that explains all but a few. */
static bool recover_odd(const uint16_t *w, int64_t n, uint16_t *scale, int8_t *q)
{
    const int64_t allowed = 1 + n / ODD_SHARE;
    int16_t lo[DEEP], hi[DEEP];
    found f = {0};
    if (n < 16)
        return false; /* too few to tell damage from another kind of numbers */
    deep_extremes(w, n, lo, hi);
    for (int i = 0; i < DEEP; i++)
        for (int j = 0; j < DEEP; j++)
            if (lo[i] >= NORMAL && lo[i] != NONE && hi[j] >= lo[i])
                try_all(w, n, lo[i], hi[j], allowed, q, &f);
    *scale = f.best.scale;
    return f.n > 0;
}

/* max|w| / 127 in bf16, upwards, so that no integer leaves -127..127. */
static uint16_t quantising_scale(int16_t hi)
{
    const float scale = oct_f32_of_bf16((uint16_t)hi) / 127.0f;
    uint16_t bits = oct_bf16_of_f32(scale);
    if (bits < NORMAL)
        return NORMAL;
    while (oct_f32_of_bf16(bits) * 127.49f < oct_f32_of_bf16((uint16_t)hi))
        bits++;
    return bits;
}

oct_recovered oct_q8_recover(const uint16_t *w, int64_t n, uint16_t *scale, int8_t *q)
{
    int16_t lo, hi;
    found f = {0};
    extremes(w, n, &lo, &hi);
    *scale = 0;
    if (hi >= INFINITE)
        return OCT_RECOVERED_NOT_FINITE;
    if (!hi)
        return oct_q8_of_bf16(w, n, 0, q, NULL) ? OCT_RECOVERED_ODD : OCT_RECOVERED_ZERO;
    if (lo >= NORMAL)
        try_all(w, n, lo, hi, 0, q, &f);
    if (f.n == 1 && f.last == f.best.scale) {
        *scale = f.best.scale;
        return OCT_RECOVERED_UNIQUE;
    }
    oct_recovered kind = f.n == 1 ? OCT_RECOVERED_UNIQUE : OCT_RECOVERED_SEVERAL;
    *scale = f.best.scale;
    if (!f.n)
        kind = recover_odd(w, n, scale, q) ? OCT_RECOVERED_ODD : OCT_RECOVERED_NOT;
    if (kind == OCT_RECOVERED_NOT)
        *scale = quantising_scale(hi);
    (void)oct_q8_of_bf16(w, n, *scale, q, NULL);
    return kind;
}
