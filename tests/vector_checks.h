/* vector_checks.h: the checks of kernel_checks.h for slots that work on one vector. */
#ifndef OCT_TEST_VECTOR_CHECKS_H
#define OCT_TEST_VECTOR_CHECKS_H

static const int64_t vector_sizes[] = {0,  1,  2,  7,  8,   15,  16,  17,  31,   32,  33,
                                       47, 64, 96, 97, 128, 255, 256, 688, 1031, 6144};
enum { VECTOR_SIZES = sizeof vector_sizes / sizeof *vector_sizes };

/* One case of one of the simple kernels: inputs a and b, y before and after. */
typedef struct vector_case {
    int64_t n;
    enum pattern p;
    const float *a, *b;
    float *y, *want, *near;
} vector_case;

typedef void vector_run(const oct_kernels *k, const vector_case *c, float *y);
typedef void vector_oracle(const vector_case *c, float *y);

/* rel: bound against the reference row, relative to the larger of 1 and its value. */
static const char *check_vector(const oct_kernels *k, vector_run *run, vector_oracle *oracle,
                                double rel)
{
    for (int i = 0; i < VECTOR_SIZES * PATTERNS; i++) {
        vector_case c = {.n = vector_sizes[i / PATTERNS], .p = (enum pattern)(i % PATTERNS)};
        c.a = new_input(c.n, c.p);
        c.b = new_input(c.n, c.p == HEAVY ? WITH_NAN : NORMAL);
        float *start = scratch((size_t)c.n * 4);
        fill_floats(start, c.n, NORMAL);
        c.y = new_copy(start, c.n);
        c.want = new_copy(start, c.n);
        c.near = new_copy(start, c.n);
        CHECK_RUNS(run(k, &c, c.y), "n = %d, pattern %d", (int)c.n, c.p);
        oracle(&c, c.want);
        int64_t at = rig_differs(c.y, c.want, c.n);
        if (at >= 0)
            CHECK_FAILS("n = %d, pattern %d: y[%d] is %.9g, expected %.9g", (int)c.n, c.p, (int)at,
                        (double)c.y[at], (double)c.want[at]);
        run(ref_row, &c, c.near);
        for (int64_t j = 0; j < c.n && c.p == NORMAL; j++) {
            double near = (double)c.near[j], size = fabs(near) > 1.0 ? fabs(near) : 1.0;
            if (!(fabs((double)c.y[j] - near) <= rel * size))
                CHECK_FAILS("n = %d: %.9g is too far from ref's %.9g", (int)c.n, (double)c.y[j],
                            near);
        }
        CHECK_CASE_ENDS("vector of %d", (int)c.n);
    }
    return NULL;
}

static void run_rms_norm(const oct_kernels *k, const vector_case *c, float *y)
{
    k->rms_norm(c->a, c->b, c->n, 1e-5f, c->n % 2, y);
}

static void oracle_run_rms_norm(const vector_case *c, float *y)
{
    oracle_rms_norm(c->a, c->b, c->n, 1e-5f, c->n % 2, y);
}

static void run_rms_norm_in_place(const oct_kernels *k, const vector_case *c, float *y)
{
    k->rms_norm(y, c->b, c->n, 1e-5f, false, y);
}

static void oracle_run_rms_norm_in_place(const vector_case *c, float *y)
{
    oracle_rms_norm(y, c->b, c->n, 1e-5f, false, y);
}

static const char *check_rms_norm(const oct_kernels *k)
{
    const char *wrong = check_vector(k, run_rms_norm, oracle_run_rms_norm, 1e-6);
    return wrong ? wrong
                 : check_vector(k, run_rms_norm_in_place, oracle_run_rms_norm_in_place, 1e-6);
}

static void run_gelu_mul(const oct_kernels *k, const vector_case *c, float *y)
{
    k->gelu_mul(c->a, c->b, c->n, y);
}

static void oracle_run_gelu_mul(const vector_case *c, float *y)
{
    for (int64_t i = 0; i < c->n; i++)
        y[i] = oct_geluf(c->a[i]) * c->b[i];
}

/* The vector exp over its whole range: gelu of values whose exponents cover it. */
static const char *check_gelu_mul(const oct_kernels *k)
{
    const char *wrong = check_vector(k, run_gelu_mul, oracle_run_gelu_mul, 1e-6);
    if (wrong)
        return wrong;
    enum { N = 4096 };
    for (int round = 0; round < 64; round++) {
        float *x = scratch(N * 4), *one = scratch(N * 4), *y = scratch(N * 4),
              *want = scratch(N * 4);
        for (int i = 0; i < N; i++) {
            /* Any bits at all, or -14..14, where exp neither vanishes nor overflows. */
            x[i] = round % 2 ? oct_f32_of_bits((uint32_t)rig_next(&check_rng))
                             : rig_uniform(&check_rng) * 14.0f;
            one[i] = 1.0f;
            want[i] = oct_geluf(x[i]);
        }
        CHECK_RUNS(k->gelu_mul(x, one, N, y), "n = 4096");
        int64_t at = rig_differs(y, want, N);
        if (at >= 0)
            CHECK_FAILS("gelu(%a) is %a, expected %a", (double)x[at], (double)y[at],
                        (double)want[at]);
        CHECK_CASE_ENDS("gelu of 4096");
    }
    return NULL;
}

static void run_rope(const oct_kernels *k, const vector_case *c, float *y)
{
    k->rope(y, c->a, c->b, c->n / 2 * 2);
}

static void oracle_run_rope(const vector_case *c, float *y)
{
    oracle_rope(y, c->a, c->b, c->n / 2 * 2);
}

static const char *check_rope(const oct_kernels *k)
{
    return check_vector(k, run_rope, oracle_run_rope, 1e-6);
}

/* The bf16 row is the upper halves of a's bits. */
static void run_embed(const oct_kernels *k, const vector_case *c, float *y)
{
    uint16_t *row = rig_buffer_new(&check_pool, (size_t)c->n * 2, 2);
    for (int64_t i = 0; i < c->n; i++)
        row[i] = (uint16_t)(oct_f32_bits(c->a[i]) >> 16);
    rig_seal(&check_pool);
    k->embed(row, c->n, 78.38367f, y);
}

static void oracle_run_embed(const vector_case *c, float *y)
{
    for (int64_t i = 0; i < c->n; i++)
        y[i] = oct_f32_of_bits(oct_f32_bits(c->a[i]) & 0xffff0000u) * 78.38367f;
}

static const char *check_embed(const oct_kernels *k)
{
    return check_vector(k, run_embed, oracle_run_embed, 0.0);
}

static void run_add_scaled(const oct_kernels *k, const vector_case *c, float *y)
{
    k->add_scaled(c->a, 0.3f, c->n, y);
}

static void oracle_run_add_scaled(const vector_case *c, float *y)
{
    for (int64_t i = 0; i < c->n; i++) {
        float product = 0.3f * c->a[i];
        y[i] = y[i] + product;
    }
}

static const char *check_add_scaled(const oct_kernels *k)
{
    return check_vector(k, run_add_scaled, oracle_run_add_scaled, 0.0);
}

static void run_add(const oct_kernels *k, const vector_case *c, float *y)
{
    k->add(c->a, c->b, c->n, y);
}

static void oracle_run_add(const vector_case *c, float *y)
{
    for (int64_t i = 0; i < c->n; i++)
        y[i] = c->a[i] + c->b[i];
}

static void run_add_in_place(const oct_kernels *k, const vector_case *c, float *y)
{
    if (c->n % 2)
        k->add(y, c->b, c->n, y);
    else
        k->add(c->b, y, c->n, y);
}

static void oracle_run_add_in_place(const vector_case *c, float *y)
{
    for (int64_t i = 0; i < c->n; i++)
        y[i] += c->b[i];
}

static const char *check_add(const oct_kernels *k)
{
    const char *wrong = check_vector(k, run_add, oracle_run_add, 0.0);
    return wrong ? wrong : check_vector(k, run_add_in_place, oracle_run_add_in_place, 0.0);
}

static void run_softmax_weights(const oct_kernels *k, const vector_case *c, float *y)
{
    k->softmax_weights(c->a, c->n, 3.7f, 0.77f, y);
}

static void oracle_run_softmax_weights(const vector_case *c, float *y)
{
    for (int64_t i = 0; i < c->n; i++)
        y[i] = oct_expf((c->a[i] - 3.7f) / 0.77f);
}

static const char *check_softmax_weights(const oct_kernels *k)
{
    return check_vector(k, run_softmax_weights, oracle_run_softmax_weights, 1e-6);
}

#endif
