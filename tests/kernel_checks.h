/* kernel_checks.h: one check for every slot of kernels.inc, check_<slot>(row). Each runs the row's
 * kernel over sizes and patterns, in buffers that end at a forbidden page and with inputs that
 * cannot be written to, and returns NULL or what went wrong. Results must equal the oracle's bit
 * for bit and lie within a bound of the reference row's, which sums in double. */
#ifndef OCT_TEST_KERNEL_CHECKS_H
#define OCT_TEST_KERNEL_CHECKS_H

#include <float.h>
#include <math.h>

#include "kernel_oracle.h"
#include "kernels.h"
#include "rig.h"

static rig_rng check_rng;
static rig_pool check_pool;
static char check_text[256];

static const oct_kernels *const ref_row = &oct_kernel_rows[OCT_KERNELS_REF];

#define CHECK_FAILS(...)                                      \
    do {                                                      \
        snprintf(check_text, sizeof check_text, __VA_ARGS__); \
        rig_release(&check_pool);                             \
        return check_text;                                    \
    } while (0)

/* Ends a case: what was written beside the buffers. */
#define CHECK_CASE_ENDS(...)                                                                \
    do {                                                                                    \
        if (!rig_release(&check_pool)) {                                                    \
            snprintf(check_text, sizeof check_text, "wrote beside a buffer: " __VA_ARGS__); \
            return check_text;                                                              \
        }                                                                                   \
    } while (0)

#define CHECK_RUNS(call, ...)                     \
    do {                                          \
        if (!RIG_SURVIVES(call))                  \
            CHECK_FAILS("crashed: " __VA_ARGS__); \
    } while (0)

/* ---- patterns ---- */

enum pattern {
    NORMAL, /* the only one with a bound against the reference row in every check */
    HEAVY,  /* a few values a thousand times larger */
    SAME,
    ALTERNATING,
    ZEROS,
    ONE_HOT,
    TINY,
    HUGE_VALUES,
    WITH_NAN,
    WITH_INF,
    PATTERNS
};

static void fill_floats(float *x, int64_t n, enum pattern p)
{
    for (int64_t i = 0; i < n; i++) {
        float v = rig_normal(&check_rng);
        switch (p) {
        case SAME: v = -3.25f; break;
        case ALTERNATING: v = i % 2 ? 2.5f : -2.5f; break;
        case ZEROS:
        case ONE_HOT: v = i % 3 ? 0.0f : -0.0f; break;
        case HEAVY: v *= rig_int(&check_rng, 0, 60) ? 1.0f : 1000.0f; break;
        case TINY: v *= 1e-31f; break;
        case HUGE_VALUES: v *= 1e37f; break;
        default: break;
        }
        x[i] = v;
    }
    if (n > 0 && p == ONE_HOT)
        x[rig_int(&check_rng, 0, n - 1)] = 1.0f;
    if (n > 0 && p == WITH_NAN)
        x[rig_int(&check_rng, 0, n - 1)] = NAN;
    if (n > 0 && p == WITH_INF)
        x[rig_int(&check_rng, 0, n - 1)] = -INFINITY;
}

static float *new_input(int64_t n, enum pattern p)
{
    float *x = rig_buffer_new(&check_pool, (size_t)n * 4, 4);
    fill_floats(x, n, p);
    rig_seal(&check_pool);
    return x;
}

static float *new_copy(const float *from, int64_t n)
{
    float *x = rig_buffer_new(&check_pool, (size_t)n * 4, 4);
    if (n > 0)
        memcpy(x, from, (size_t)n * 4);
    return x;
}

#include "linear_checks.h"

/* ---- attention ---- */

static void *new_kv(const float *x, int64_t n, oct_kv_type type)
{
    size_t size = type == OCT_KV_F32 ? 4 : 2;
    void *p = rig_buffer_new(&check_pool, (size_t)n * size, size);
    for (int64_t i = 0; i < n; i++) {
        bool saturated;
        uint32_t bits = oracle_kv_bits(type, x[i], &saturated);
        uint16_t half = (uint16_t)bits;
        memcpy((char *)p + (size_t)i * size, size == 4 ? (void *)&bits : (void *)&half, size);
    }
    rig_seal(&check_pool);
    return p;
}

static const char *attn_case_run(const oct_kernels *k, int64_t n_heads, int64_t head_dim,
                                 int64_t n_pos, oct_kv_type type, enum pattern p)
{
    int64_t stride = (head_dim + 15) / 16 * 16, groups = (n_pos + 15) / 16;
    float *kf = scratch((size_t)(groups * head_dim * 16) * 4);
    float *vf = scratch((size_t)(n_pos * stride) * 4);
    fill_floats(kf, groups * head_dim * 16, p);
    fill_floats(vf, n_pos * stride, p == TINY ? NORMAL : p);
    /* Whatever lies beyond n_pos in K is masked; V is padded with zeros. */
    for (int64_t i = 0; i < groups * head_dim * 16; i++)
        if (i / (head_dim * 16) * 16 + i % 16 >= n_pos)
            kf[i] = i % 3 ? NAN : 1e4f;
    for (int64_t i = 0; i < n_pos * stride; i++)
        if (i % stride >= head_dim)
            vf[i] = 0.0f;
    oct_attn_args a = {.q = new_input(n_heads * head_dim, p == WITH_NAN ? NORMAL : p),
                       .k = new_kv(kf, groups * head_dim * 16, type),
                       .v = new_kv(vf, n_pos * stride, type),
                       .type = type,
                       .n_heads = n_heads,
                       .head_dim = head_dim,
                       .v_stride = stride,
                       .n_pos = n_pos,
                       .scale = 1.0f / sqrtf((float)head_dim),
                       .cap = 30.0f};
    float *start = scratch((size_t)(n_heads * (stride + 1)) * 4);
    fill_floats(start, n_heads * (stride + 1), NORMAL);
    float *got[3];
    for (int i = 0; i < 3; i++) {
        got[i] = new_copy(start, n_heads * (stride + 1));
        a.o = got[i];
        a.l = got[i] + n_heads * stride;
        if (i == 0)
            CHECK_RUNS(k->attn(&a), "%d heads of %d, %d positions", (int)n_heads, (int)head_dim,
                       (int)n_pos);
        else if (i == 1)
            oracle_attn(&a);
        else
            ref_row->attn(&a);
    }
    int64_t at = rig_differs(got[0], got[1], n_heads * (stride + 1));
    if (at >= 0)
        CHECK_FAILS("%d heads of %d, %d positions, type %d, pattern %d: value %d is %.9g, expected "
                    "%.9g",
                    (int)n_heads, (int)head_dim, (int)n_pos, type, p, (int)at, (double)got[0][at],
                    (double)got[1][at]);
    /* p is off by at most 1e-4 of itself (the score, up to 30, by a few ulp), and |v| <= 6. */
    for (int64_t i = 0; i < n_heads * (stride + 1) && p == NORMAL; i++) {
        double sum = (double)got[2][n_heads * stride + i % n_heads];
        if (!(fabs((double)got[0][i] - (double)got[2][i]) <= 1e-4 * 6 * (fabs(sum) + 1.0)))
            CHECK_FAILS("attn: %.9g is too far from ref's %.9g", (double)got[0][i],
                        (double)got[2][i]);
    }
    CHECK_CASE_ENDS("attn, %d heads of %d", (int)n_heads, (int)head_dim);
    return NULL;
}

static const char *check_attn(const oct_kernels *k)
{
    static const int64_t dims[] = {8, 16, 96, 128, 20, 1};
    static const int64_t pos[] = {1, 2, 15, 16, 17, 31, 48, 63, 64, 65, 100, 127, 128};
    for (size_t i = 0; i < sizeof pos / sizeof *pos; i++) {
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
            size_t turn = i * 7 + d;
            for (int type = 0; type < 3; type++) {
                const char *wrong =
                    attn_case_run(k, 1 + (int64_t)(turn % 13), dims[d], pos[i], (oct_kv_type)type,
                                  turn % 3 ? (enum pattern)(turn % PATTERNS) : NORMAL);
                if (wrong)
                    return wrong;
            }
        }
    }
    return NULL;
}

/* ---- dot products ---- */

static const char *dot_case_run(const oct_kernels *k, bool bf16, int64_t n_rows, int64_t n_out,
                                int64_t n_in, enum pattern p)
{
    int64_t stride = n_in + rig_int(&check_rng, 0, 3), y_stride = n_out + 5;
    int64_t n_w = n_out > 0 ? (n_out - 1) * stride + n_in : 0;
    float *wf = scratch((size_t)n_w * 4);
    fill_floats(wf, n_w, NORMAL);
    for (int64_t i = 0; i < n_w && bf16; i++)
        wf[i] = oct_f32_of_bf16(oct_bf16_of_f32(wf[i]));
    const float **rows = scratch((size_t)n_rows * sizeof *rows);
    for (int64_t r = 0; r < n_rows; r++)
        rows[r] = new_input(n_in, r % 2 ? NORMAL : p);
    int64_t n_y = n_rows > 0 ? (n_rows - 1) * y_stride + n_out : 0;
    float *y = rig_buffer_new(&check_pool, (size_t)n_y * 4, 4), *near = scratch((size_t)n_y * 4);
    memset(y, 0x55, (size_t)n_y * 4);
    oct_dot_args a = {.w = new_kv(wf, n_w, bf16 ? OCT_KV_BF16 : OCT_KV_F32),
                      .w_stride = stride,
                      .rows = rows,
                      .n_rows = n_rows,
                      .n_out = n_out,
                      .n_in = n_in,
                      .scale = 0.57f,
                      .y = y,
                      .y_stride = y_stride};
    CHECK_RUNS((bf16 ? k->dot_bf16 : k->dot_f32)(&a), "%d x %d x %d", (int)n_rows, (int)n_out,
               (int)n_in);
    a.y = near;
    (bf16 ? ref_row->dot_bf16 : ref_row->dot_f32)(&a);
    for (int64_t i = 0; i < n_y; i++) {
        int64_t r = i / y_stride, j = i % y_stride;
        float want;
        if (j >= n_out) {
            memset(&want, 0x55, sizeof want); /* between the rows: untouched */
        } else {
            want = 0.57f * oracle_dot(rows[r], wf + j * stride, n_in);
            double bound = 1e-9;
            for (int64_t m = 0; m < n_in; m++)
                bound += 1e-6 * fabs((double)rows[r][m] * (double)wf[j * stride + m]);
            if (p == NORMAL && !(fabs((double)y[i] - (double)near[i]) <= bound))
                CHECK_FAILS("dot: %.9g is too far from ref's %.9g", (double)y[i], (double)near[i]);
        }
        if (rig_differs(&y[i], &want, 1) >= 0)
            CHECK_FAILS("%d rows, %d x %d: y[%d][%d] is %.9g, expected %.9g", (int)n_rows,
                        (int)n_out, (int)n_in, (int)r, (int)j, (double)y[i], (double)want);
    }
    CHECK_CASE_ENDS("dot of %d", (int)n_in);
    return NULL;
}

static const char *check_dot(const oct_kernels *k, bool bf16)
{
    static const int64_t sizes[][3] = {
        {1, 1, 1},    {0, 3, 8},    {1, 0, 8},    {2, 3, 0},    {1, 8, 96},   {1, 5, 15},
        {3, 7, 17},   {4, 4, 31},   {5, 9, 64},   {13, 11, 96}, {8, 16, 256}, {1, 19, 1031},
        {1, 8, 6144}, {9, 8, 6144}, {2, 64, 128}, {7, 2, 333},  {40, 3, 20},  {6, 33, 33},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int p = 0; p<PATTERNS; p += sizes[i][2]> 1000 ? 4 : 1) {
            const char *wrong =
                dot_case_run(k, bf16, sizes[i][0], sizes[i][1], sizes[i][2], (enum pattern)p);
            if (wrong)
                return wrong;
        }
    }
    return NULL;
}

static const char *check_dot_bf16(const oct_kernels *k)
{
    return check_dot(k, true);
}

static const char *check_dot_f32(const oct_kernels *k)
{
    return check_dot(k, false);
}

#include "vector_checks.h"

/* ---- keys and values ---- */

static const char *kv_store_case(const oct_kernels *k, int64_t n, enum pattern p, oct_kv_type type,
                                 int64_t stride)
{
    size_t size = type == OCT_KV_F32 ? 4 : 2, n_dst = n > 0 ? (size_t)((n - 1) * stride + 1) : 0;
    float *x = rig_buffer_new(&check_pool, (size_t)n * 4, 4);
    fill_floats(x, n, p);
    /* Around each type's limit, and whatever bits come. */
    static const float edge[] = {65504.0f, 65519.0f,  -65520.0f, 0x1.fep127f,
                                 FLT_MAX,  -FLT_MAX,  6e-8f,     1e-40f,
                                 INFINITY, -INFINITY, -65504.0f, 0x1.ff0002p127f};
    for (int64_t i = 0; i < n && p == HEAVY; i++)
        x[i] = i % 3 ? edge[(i + n) % 12] : oct_f32_of_bits((uint32_t)rig_next(&check_rng));
    rig_seal(&check_pool);
    uint8_t *dst = rig_buffer_new(&check_pool, n_dst * size, size);
    memset(dst, 0x5a, n_dst * size);
    int64_t count = -1, want_count = 0;
    CHECK_RUNS(count = k->kv_store(x, n, type, dst, stride), "n = %d, type %d", (int)n, type);
    for (int64_t i = 0; i < (int64_t)n_dst; i++) {
        uint32_t bits = 0;
        memcpy(&bits, dst + (size_t)i * size, size);
        uint32_t want = size == 4 ? 0x5a5a5a5au : 0x5a5au;
        bool saturated = false, nan = false;
        if (i % stride == 0) {
            float v = x[i / stride];
            want = oracle_kv_bits(type, v, &saturated);
            uint32_t inf = type == OCT_KV_F16    ? 0x7c00u
                           : type == OCT_KV_BF16 ? 0x7f80u
                                                 : 0x7f800000u;
            nan = v != v && (bits & (inf * 2 - 1) & (size == 4 ? ~0u >> 1 : 0x7fffu)) > inf;
        }
        want_count += saturated;
        if (bits != want && !nan)
            CHECK_FAILS("n = %d, type %d, stride %d: element %d is %x, expected %x", (int)n, type,
                        (int)stride, (int)i, bits, want);
    }
    if (count != want_count)
        CHECK_FAILS("n = %d, type %d: %d saturated, expected %d", (int)n, type, (int)count,
                    (int)want_count);
    CHECK_CASE_ENDS("kv_store of %d", (int)n);
    return NULL;
}

static const char *check_kv_store(const oct_kernels *k)
{
    for (int i = 0; i < VECTOR_SIZES * PATTERNS; i++) {
        for (int type = 0; type < 3; type++) {
            const char *wrong =
                kv_store_case(k, vector_sizes[i / PATTERNS] % 1024, (enum pattern)(i % PATTERNS),
                              (oct_kv_type)type, i % 2 ? 16 : 1);
            if (wrong)
                return wrong;
        }
    }
    return NULL;
}

#endif
