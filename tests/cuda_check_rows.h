/* cuda_check_rows.h: checks of ggml-like/cuda/vectors.cuh. */
#ifndef OCT_TEST_CUDA_CHECK_ROWS_H
#define OCT_TEST_CUDA_CHECK_ROWS_H

#include "cuda_rig.h"

static const int64_t cuda_widths[] = {1, 5, 16, 27, 100, 300, 513, 768};
enum { CUDA_WIDTHS = 8 };

/* ((0+1)+(2+3))+((4+5)+(6+7)), an odd one moves up: level by level, unlike oct_fold and kernels. */
static inline float cuda_tree(const float *parts, int64_t stride, int n)
{
    float v[OCT_WEIGHT_MAX_SLICES];
    for (int i = 0; i < n; i++)
        v[i] = parts[i * stride];
    for (; n > 1; n = (n + 1) / 2)
        for (int i = 0; i < (n + 1) / 2; i++)
            v[i] = 2 * i + 1 < n ? v[2 * i] + v[2 * i + 1] : v[2 * i];
    return v[0];
}

static inline const char *check_embed(void)
{
    enum { ROWS = 5, VOCABULARY = 11, SLICE = 4, SLICE_PAD = 5, TABLE = 3 * SLICE_PAD };
    for (int k = 0; k < CUDA_WIDTHS; k++) {
        int64_t n = cuda_widths[k];
        uint16_t table[TABLE * 768];
        int32_t token[ROWS] = {0, 10, 3, 4, 7};
        float want[ROWS * 768];
        for (int64_t i = 0; i < TABLE * n; i++)
            table[i] = oct_bf16_of_f32(rig_normal(&cuda_rng));
        oct_cuda_embed_args a = {.table = cuda_copy(table, (size_t)(TABLE * n) * 2),
                                 .cols = n,
                                 .slice_rows = SLICE,
                                 .slice_rows_pad = SLICE_PAD,
                                 .first = k % 2 ? 4 : 0,
                                 .end = k % 3 ? 8 : VOCABULARY,
                                 .token = cuda_copy(token, sizeof token),
                                 .out = cuda_room((size_t)(ROWS * n) * 4),
                                 .n_rows = ROWS,
                                 .scale = 78.38367f};
        CUDA_RUN(embed, a);
        for (int64_t i = 0; i < ROWS * n; i++) {
            int64_t v = token[i / n], at = (v / SLICE * SLICE_PAD + v % SLICE) * n + i % n;
            want[i] = v >= a.first && v < a.end ? oct_f32_of_bf16(table[at]) * a.scale : 0.0f;
        }
        CUDA_TRY(cuda_equal("embed", a.out, want, ROWS * n));
        CUDA_TRY(cuda_case_ends("embed"));
    }
    return NULL;
}

/* Routes of rows to different experts. */
static inline unsigned char *cuda_routes(int64_t rows, int n_used, int n_experts)
{
    int32_t *r = cuda_room((size_t)(rows * n_used) * 8);
    for (int64_t i = 0; i < rows; i++)
        for (int k = 0; k < n_used; k++) {
            float gate = rig_uniform(&cuda_rng) * 0.5f + 0.5f;
            bool again;
            do {
                r[i * 2 * n_used + k] = (int32_t)rig_int(&cuda_rng, 0, n_experts - 1);
                again = false;
                for (int j = 0; j < k; j++)
                    again |= r[i * 2 * n_used + j] == r[i * 2 * n_used + k];
            } while (again);
            memcpy(&r[(i * 2 + 1) * n_used + k], &gate, sizeof gate);
        }
    rig_seal(&cuda_pool);
    return (unsigned char *)r;
}

/* fold, combine, and norm of what either reads. */
static inline const char *slices_case(int64_t n, int parts, int n_used, cuda_pattern p)
{
    enum { ROWS = 3 };
    int64_t stride = ROWS * n_used * n + 7, slots = ROWS * n_used;
    const float *x = cuda_floats(parts * stride, p);
    const unsigned char *routes = cuda_routes(ROWS, n_used, 5);
    float *want = malloc((size_t)(slots * n * 2) * sizeof *want), *sum = want + slots * n;
    for (int64_t i = 0; i < slots * n; i++)
        want[i] = cuda_tree(x + i, stride, parts);
    for (int64_t i = 0; i < ROWS * n; i++) {
        const float *gate = (const float *)(const void *)(routes + i / n * n_used * 8 + n_used * 4);
        sum[i] = 0.0f;
        for (int k = 0; k < n_used; k++)
            sum[i] += gate[k] * want[(i / n * n_used + k) * n + i % n];
    }
    oct_cuda_combine_args c = {
        x, routes, cuda_room((size_t)(ROWS * n) * 4), stride, n_used * 8, n, ROWS, parts, n_used};
    CUDA_RUN(combine, c);
    const char *wrong = cuda_equal("combine", c.out, sum, ROWS * n);
    float *y = cuda_room((size_t)(ROWS * n) * 4), *gamma = cuda_floats(n, CUDA_NORMAL);
    cuda_fill(y, ROWS * n, CUDA_NORMAL);
    for (int64_t r = 0; r < ROWS && !wrong; r++) {
        memcpy(c.out + r * n, y + r * n, (size_t)n * 4);
        oracle_rms_norm(sum + r * n, gamma, n, 1e-5f, true, c.out + r * n);
    }
    oct_cuda_norm_args m = {.x = x,
                            .gamma = gamma,
                            .y = y,
                            .n = n,
                            .n_rows = ROWS,
                            .part_stride = stride,
                            .routes = routes,
                            .route_bytes = n_used * 8,
                            .n_parts = parts,
                            .n_slots = n_used,
                            .add = 1,
                            .eps = 1e-5f};
    if (!wrong)
        wrong = cuda_run(oct_cuda_norm_launch(&m), &m);
    if (!wrong)
        wrong = cuda_equal("norm of slots", y, c.out, ROWS * n);
    oct_cuda_fold_args f = {x,          cuda_room((size_t)(slots * n) * 4),
                            stride,     n,
                            slots,      routes,
                            n_used * 8, parts,
                            n_used,     1,
                            3};
    if (!wrong)
        wrong = cuda_run(oct_cuda_fold_launch(&f), &f);
    for (int64_t i = 0; i < slots && !wrong; i++) {
        int32_t e = ((const int32_t *)(const void *)(routes + i / n_used * n_used * 8))[i % n_used];
        if (e < 1 || e >= 3)
            memset(want + i * n, 0, (size_t)n * 4);
    }
    if (!wrong)
        wrong = cuda_equal("fold", f.out, want, slots * n);
    free(want);
    CUDA_TRY(wrong);
    return cuda_case_ends("slices");
}

static inline const char *check_slices(void)
{
    for (int i = 0; i < 3 * CUDA_WIDTHS; i++)
        CUDA_TRY(slices_case(cuda_widths[i % CUDA_WIDTHS], 1 + i % 8, 1 + i / 8,
                             (cuda_pattern)(i % CUDA_PATTERNS)));
    return NULL;
}

static inline const char *check_norm(void)
{
    enum { ROWS = 2 };
    for (int k = 0; k < CUDA_WIDTHS * CUDA_PATTERNS; k++) {
        int64_t n = cuda_widths[k % CUDA_WIDTHS];
        bool add = k % 2;
        float want[ROWS * 768];
        const float *gamma = cuda_floats(n, CUDA_NORMAL),
                    *x = cuda_floats(ROWS * n, (cuda_pattern)(k / CUDA_WIDTHS));
        float *y = cuda_room((size_t)(ROWS * n) * 4);
        cuda_fill(y, ROWS * n, CUDA_NORMAL);
        memcpy(want, y, (size_t)(ROWS * n) * 4);
        for (int64_t r = 0; r < ROWS; r++)
            oracle_rms_norm(x + r * n, gamma, n, 1e-5f, add, want + r * n);
        oct_cuda_norm_args a = {.x = x,
                                .gamma = gamma,
                                .y = y,
                                .n = n,
                                .n_rows = ROWS,
                                .n_parts = 1,
                                .add = add,
                                .eps = 1e-5f};
        CUDA_RUN(norm, a);
        CUDA_TRY(cuda_equal("norm", y, want, ROWS * n));
        CUDA_TRY(cuda_case_ends("norm"));
    }
    return NULL;
}

static inline const char *check_select(void)
{
    for (int k = 0; k < CUDA_WIDTHS; k++) {
        int64_t n = cuda_widths[k];
        const int32_t rows[] = {0, 2, 6};
        const float *x = cuda_floats(7 * n, CUDA_NORMAL);
        oct_cuda_select_args a = {x, cuda_copy(rows, sizeof rows), cuda_room((size_t)(3 * n) * 4),
                                  n, 3};
        CUDA_RUN(select, a);
        for (int i = 0; i < 3; i++)
            CUDA_TRY(cuda_equal("select", a.out + i * n, x + rows[i] * n, n));
        CUDA_TRY(cuda_case_ends("select"));
    }
    return NULL;
}

/* Three parts of eight digits are the number. */
static inline const char *check_split(void)
{
    enum { ROWS = 3 };
    for (int k = 0; k < CUDA_WIDTHS; k++) {
        int64_t n = cuda_widths[k];
        const float *x = cuda_floats(ROWS * n, CUDA_NORMAL);
        float *sum = cuda_room((size_t)(ROWS * n) * 4);
        oct_cuda_split_args a = {x, cuda_room((size_t)(3 * ROWS * n) * 2), n, ROWS};
        CUDA_RUN(split, a);
        for (int64_t i = 0; i < ROWS * n; i++) {
            float part[3];
            for (int p = 0; p < 3; p++)
                part[p] = oct_f32_of_bf16(a.out[p * ROWS * n + i]);
            sum[i] = part[0] + (part[1] + part[2]);
        }
        CUDA_TRY(cuda_equal("split", sum, x, ROWS * n));
        CUDA_TRY(cuda_case_ends("split"));
    }
    return NULL;
}

/* Every word is read once; every thread counts its products. */
static inline const char *check_probe(void)
{
    enum { WORDS = 4 * 1500, BLOCKS = 3, ROUNDS = 5 };
    uint32_t word[WORDS];
    uint64_t sum[2] = {7, 7}, want[2] = {7, 7};
    for (int i = 0; i < WORDS; i++)
        word[i] = (uint32_t)rig_next(&cuda_rng);
    oct_cuda_probe_args a = {.p = cuda_copy(word, sizeof word),
                             .bytes = sizeof word,
                             .rounds = ROUNDS,
                             .n_blocks = BLOCKS};
    for (int k = 0; k < 2; k++, a.p = NULL) {
        unsigned long long *out = cuda_room(sizeof *out);
        *out = sum[k];
        a.out = out;
        CUDA_RUN(probe, a);
        sum[k] = *out;
    }
    for (int i = 0; i < WORDS; i++)
        want[0] += word[i];
    want[1] += UINT64_C(32) * 4 * OCT_CUDA_PROBE_CHAINS * ROUNDS * 256 * BLOCKS;
    for (int k = 0; k < 2; k++) /* modulo 2^32 */
        if ((uint32_t)sum[k] != (uint32_t)want[k])
            CUDA_FAILS("probe %d: %#llx, expected %#llx", k, (unsigned long long)sum[k],
                       (unsigned long long)want[k]);
    return cuda_case_ends("probe");
}

static inline const char *quantise_case(int64_t n_in, int64_t n_groups, int digits, cuda_pattern p)
{
    enum { ROWS = 3 };
    oct_act_layout l;
    oct_act_layout_init(&l, n_in, n_groups, digits);
    int32_t used = ROWS - 1;
    const float *x = cuda_floats(ROWS * n_in, p);
    int16_t *a = cuda_room((size_t)n_in * 2);
    float *s = cuda_room((size_t)l.n_blocks * 4);
    oct_cuda_quantise_args q = {x, cuda_room(ROWS * l.bytes), l, ROWS,
                                cuda_copy(&used, sizeof used)};
    memset(q.to, 0x55, ROWS * l.bytes);
    CUDA_RUN(quantise, q);
    for (int64_t r = 0; r < used; r++) {
        const unsigned char *row = q.to + (size_t)r * l.bytes;
        const int32_t *sums = (const int32_t *)(const void *)(row + l.sums_at);
        const int8_t *hi = (const int8_t *)row + l.digits_at, *lo = hi + n_groups * l.group_pad;
        oct_act_quantise_ref(&l, x + r * n_in, a, s);
        CUDA_TRY(cuda_equal("scales", (const float *)(const void *)row, s, l.n_blocks));
        for (int64_t b = 0; b < l.n_blocks; b++) {
            int64_t g = b / l.group_blocks, start = b % l.group_blocks * l.block, sum[2] = {0, 0};
            for (int64_t i = start; i < start + l.block && i < l.group_pad; i++) {
                int want = i < l.group_in ? a[g * l.group_in + i] : 0,
                    at = (int)(g * l.group_pad + i);
                if (hi[at] * 256 + lo[at] != want)
                    CUDA_FAILS("%d x %d inputs, %d digits: number %d is %d, expected %d",
                               (int)n_groups, (int)l.group_in, digits, at, hi[at] * 256 + lo[at],
                               want);
                sum[0] += hi[at];
                sum[1] += lo[at];
            }
            if (sums[b] != sum[0] || sums[l.n_blocks + b] != sum[1])
                CUDA_FAILS("%d inputs: sums of block %d are wrong", (int)n_in, (int)b);
        }
    }
    for (size_t i = 0; i < l.bytes; i++)
        if (q.to[(size_t)used * l.bytes + i] != 0x55)
            CUDA_FAILS("quantise wrote a row that is not used");
    return cuda_case_ends("quantise");
}

static inline const char *check_quantise(void)
{
    static const int64_t sizes[][2] = {{1, 1},   {27 * 8, 8}, {160, 8}, {511, 1},
                                       {512, 1}, {1031, 1},   {100, 4}, {768 * 2, 2}};
    for (int i = 0; i < 8 * CUDA_PATTERNS; i++)
        for (int digits = 1; digits <= 2; digits++)
            CUDA_TRY(
                quantise_case(sizes[i % 8][0], sizes[i % 8][1], digits, (cuda_pattern)(i / 8)));
    return NULL;
}

#endif
