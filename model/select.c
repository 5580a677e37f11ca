#include "select.h"

#include <math.h>
#include <string.h>

#include "f16.h"

/* ---- blocks --------------------------------------------------------------------------------- */

typedef float f32x4 __attribute__((vector_size(16)));
typedef int32_t i32x4 __attribute__((vector_size(16)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));

enum { WIDTH = 4 };

typedef struct extremes {
    f32x4 max, min;
    i32x4 nan;
} extremes;

/* a where mask is set, else b. */
static f32x4 pick(i32x4 mask, f32x4 a, f32x4 b)
{
    return (f32x4)((mask & (i32x4)a) | (~mask & (i32x4)b));
}

static void see(extremes *e, f32x4 x)
{
    e->max = pick(x > e->max, x, e->max);
    e->min = pick((x < e->min) & (x > -INFINITY), x, e->min);
    e->nan |= x != x;
}

static extremes nothing_seen(void)
{
    const float inf = INFINITY;
    return (extremes){{-inf, -inf, -inf, -inf}, {inf, inf, inf, inf}, {0, 0, 0, 0}};
}

/* Of x[n]: two chains of comparisons, which do not wait for each other. */
static void see_block(oct_blocks *b, int64_t block, const float *x, int64_t n)
{
    extremes e[2] = {nothing_seen(), nothing_seen()};
    f32x4 v[2];
    int64_t i = 0;
    for (; i + 2 * WIDTH <= n; i += 2 * WIDTH) {
        memcpy(v, x + i, sizeof v);
        see(&e[0], v[0]);
        see(&e[1], v[1]);
    }
    for (; i < n; i++)
        see(&e[0], (f32x4){x[i], x[i], x[i], x[i]});
    e[0].max = pick(e[1].max > e[0].max, e[1].max, e[0].max);
    e[0].min = pick(e[1].min < e[0].min, e[1].min, e[0].min);
    e[0].nan |= e[1].nan;
    float max = -INFINITY;
    for (int j = 0; j < WIDTH; j++) {
        max = e[0].max[j] > max ? e[0].max[j] : max;
        b->least = e[0].min[j] < b->least ? e[0].min[j] : b->least;
        b->has_nan = b->has_nan || e[0].nan[j];
    }
    b->max[block] = max;
    b->most = max > b->most ? max : b->most;
}

void oct_blocks_init(oct_blocks *b, const float *x, int64_t n)
{
    int64_t size = (n + OCT_MAX_BLOCKS - 1) / OCT_MAX_BLOCKS;
    b->x = x;
    b->n = n;
    b->size = size > OCT_BLOCK ? size : OCT_BLOCK;
    b->n_blocks = (n + b->size - 1) / b->size;
    b->most = -INFINITY;
    b->least = INFINITY;
    b->has_nan = false;
    for (int64_t k = 0; k < b->n_blocks; k++) {
        int64_t first = k * b->size, left = n - first;
        see_block(b, k, x + first, left < b->size ? left : b->size);
    }
}

float oct_blocks_bound(const oct_blocks *b, int64_t k)
{
    if (k > b->n_blocks)
        return -INFINITY;
    return oct_weighted_quantile(b->max, NULL, b->n_blocks, b->least, b->most,
                                 (double)(b->n_blocks - k + 1));
}

/* ---- quantile ------------------------------------------------------------------------------- */

/* Histograms are four, for values i mod 4: additions to one bucket wait for each other. FEW values
 * are copied out and finished there. */
enum { BUCKET_BITS = 9, BUCKETS = 1 << BUCKET_BITS, FEW = 1024 };

/* Monotone from values to buckets 0..BUCKETS-1. */
typedef struct scale {
    bool linear; /* (v - lo) * factor, within limits; else of keys: */
    float lo, factor;
    uint32_t first, range; /* keys first..first + range; others have bucket BUCKETS */
    int shift;             /* 2^shift keys in a bucket */
} scale;

/* The values that may be the answer are those in one bucket of a scale. */
typedef struct part {
    const float *v, *w;
    int64_t n;
} part;

/* Unsigned integers in the order of the floats; adding 0 makes +0 of -0. */
static u32x4 keys_of(f32x4 x)
{
    x += 0.0f;
    return (u32x4)x ^ ((u32x4)((i32x4)x >> 31) | 0x80000000u);
}

static uint32_t key_of(float x)
{
    return keys_of((f32x4){x})[0];
}

static scale linear_scale(float lo, float hi)
{
    float factor = BUCKETS / (hi - lo); /* 0, Inf: no good buckets, but some */
    return (scale){.linear = true, .lo = lo, .factor = factor < 1e38f ? factor : 1e38f};
}

static scale key_scale(uint32_t first, uint32_t last)
{
    scale s = {.first = first, .range = last - first};
    while (s.range >> s.shift >= BUCKETS)
        s.shift++;
    return s;
}

static i32x4 buckets_of(const scale *s, f32x4 v)
{
    if (s->linear) {
        const float most = BUCKETS - 1;
        f32x4 t = (v - s->lo) * s->factor;
        t = pick(t > 0, t, (f32x4){0, 0, 0, 0}); /* NaN gives 0 */
        t = pick(t < most, t, (f32x4){most, most, most, most});
        return __builtin_convertvector(t, i32x4);
    }
    u32x4 at = keys_of(v) - s->first;
    u32x4 in = (u32x4)(at <= s->range);
    return (i32x4)(((at >> s->shift) & in) | (~in & BUCKETS));
}

static const float ones[WIDTH] = {1, 1, 1, 1};

static void fill_buckets(const part *p, const scale *s, double bucket[BUCKETS + 1])
{
    double sum[WIDTH][BUCKETS + 1];
    memset(sum, 0, sizeof sum);
    int64_t i = 0;
    for (; i + WIDTH <= p->n; i += WIDTH) {
        f32x4 v;
        memcpy(&v, p->v + i, sizeof v);
        i32x4 at = buckets_of(s, v);
        const float *w = p->w ? p->w + i : ones;
        for (int j = 0; j < WIDTH; j++)
            sum[j][at[j]] += (double)w[j];
    }
    for (; i < p->n; i++)
        sum[0][buckets_of(s, (f32x4){p->v[i]})[0]] += p->w ? (double)p->w[i] : 1.0;
    for (int b = 0; b <= BUCKETS; b++)
        bucket[b] = (sum[0][b] + sum[1][b]) + (sum[2][b] + sum[3][b]);
}

/* The bucket in which the cumulative weight, *below before the first, reaches target, else the last
 * that weighs anything; *below becomes the weight before it. */
static int find_bucket(const double bucket[BUCKETS + 1], double target, double *below)
{
    int found = 0;
    double sum = *below;
    for (int b = 0; b < BUCKETS && !(b > 0 && sum >= target); b++) {
        if (bucket[b] == 0)
            continue;
        found = b;
        *below = sum;
        sum += bucket[b];
    }
    return found;
}

/* What is in a bucket: its extremes, and if they are less than FEW, the values. */
typedef struct content {
    float v[FEW], w[FEW];
    int64_t n; /* FEW: or more */
    float least, most;
} content;

static void see_values(content *c, extremes *e, f32x4 v, const float *w, i32x4 in)
{
    e->max = pick(in & (v > e->max), v, e->max);
    e->min = pick(in & (v < e->min), v, e->min);
    for (int j = 0; j < WIDTH && c->n < FEW; j++) {
        c->v[c->n] = v[j];
        c->w[c->n] = w[j];
        c->n -= in[j];
    }
}

static void take_bucket(const part *p, const scale *s, int32_t found, content *c)
{
    extremes e = nothing_seen();
    int64_t i = 0;
    c->n = 0;
    for (; i + WIDTH <= p->n; i += WIDTH) {
        f32x4 v;
        uint64_t any[2];
        memcpy(&v, p->v + i, sizeof v);
        i32x4 in = buckets_of(s, v) == found;
        memcpy(any, &in, sizeof any);
        if (any[0] | any[1])
            see_values(c, &e, v, p->w ? p->w + i : ones, in);
    }
    for (; i < p->n; i++) {
        f32x4 v = {p->v[i]};
        i32x4 in = (buckets_of(s, v) == found) & (i32x4){-1};
        see_values(c, &e, v, (float[WIDTH]){p->w ? p->w[i] : 1}, in);
    }
    c->least = INFINITY;
    c->most = -INFINITY;
    for (int j = 0; j < WIDTH; j++) {
        c->least = e.min[j] < c->least ? e.min[j] : c->least;
        c->most = e.max[j] > c->most ? e.max[j] : c->most;
    }
}

float oct_weighted_quantile(const float *v, const float *w, int64_t n, float lo, float hi,
                            double target)
{
    part p = {v, w, n};
    scale s = linear_scale(lo, hi);
    double bucket[BUCKETS + 1], below = 0;
    content c[2]; /* one is read while the other is written */
    for (int i = 0; lo < hi; i = !i) {
        fill_buckets(&p, &s, bucket);
        take_bucket(&p, &s, find_bucket(bucket, target, &below), &c[i]);
        lo = c[i].least;
        hi = c[i].most;
        if (c[i].n < FEW)
            p = (part){c[i].v, c[i].w, c[i].n};
        s = key_scale(key_of(lo), key_of(hi));
    }
    return hi;
}
