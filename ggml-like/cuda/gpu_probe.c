/* gpu_probe.c: what a GPU does at best, measured. */
#include "cuda_impl.h"
#include "gpu.h"

enum { LINK_BYTES = 8 << 20, ROUNDS = 5 };

double oct_cuda_measure_link(const oct_cuda_api *api)
{

    oct_cuda_stream stream = NULL;
    oct_cuda_event from = NULL, to = NULL;
    oct_cuda_address device = 0;
    void *host = NULL;
    float ms = 0, best = 0;
    int bad = api->stream_new(&stream, OCT_CUDA_STREAM_NON_BLOCKING);
    bad = bad ? bad : api->event_new(&from, 0);
    bad = bad ? bad : api->event_new(&to, 0);
    bad = bad ? bad : api->alloc(&device, LINK_BYTES);
    bad = bad ? bad : api->host_alloc(&host, LINK_BYTES, OCT_CUDA_HOST_PORTABLE);
    for (int i = 0; i < ROUNDS && !bad; i++) {
        bad = api->event_record(from, stream);
        bad = bad ? bad : api->upload(device, host, LINK_BYTES, stream);
        bad = bad ? bad : api->event_record(to, stream);
        bad = bad ? bad : api->event_sync(to);
        bad = bad ? bad : api->event_elapsed(&ms, from, to);
        best = !bad && ms > 0 && (best == 0 || ms < best) ? ms : best;
    }
    if (stream)
        (void)api->stream_free(stream);
    if (from)
        (void)api->event_free(from);
    if (to)
        (void)api->event_free(to);
    if (host)
        (void)api->host_release(host);
    if (device)
        (void)api->release(device);
    return best > 0 ? LINK_BYTES / (1e-3 * (double)best) : 0;
}

/* A probe in a device's stream. */
typedef struct probe {
    oct_cuda_run run;
    oct_cuda_event from, to;
    unsigned char *memory; /* [bytes] */
    size_t bytes;
} probe;

/* Once: a launch, or a product of cuBLAS'. */
typedef struct attempt {
    const oct_cuda_launch *launch;
    const void *args;
    const oct_cuda_blas *blas;
    const oct_cuda_blas_args *product;
} attempt;

static oct_status try_once(probe *p, const attempt *t, oct_error *err)
{
    return t->blas ? oct_cuda_blas_int8(t->blas, t->product, err)
                   : oct_cuda_launch_kernel(&p->run, t->launch, t->args, err);
}

/* The fastest of some attempts, in milliseconds. */
static oct_status time_probe(probe *p, const attempt *t, float *best, oct_error *err)
{
    const oct_cuda *c = p->run.cuda;
    float ms = 0;
    *best = 0;
    for (int i = 0; i < ROUNDS; i++) {
        OCT_TRY(oct_cuda_check(c, c->api->event_record(p->from, c->stream), "probe", err));
        OCT_TRY(try_once(p, t, err));
        OCT_TRY(oct_cuda_check(c, c->api->event_record(p->to, c->stream), "probe", err));
        OCT_TRY(oct_cuda_check(c, c->api->event_sync(p->to), "probe", err));
        OCT_TRY(oct_cuda_check(c, c->api->event_elapsed(&ms, p->from, p->to), "probe", err));
        *best = ms > 0 && (*best == 0 || ms < *best) ? ms : *best;
    }
    return OCT_OK;
}

/* Reading, and products from registers. */
static oct_status measure_best(probe *p, const oct_gpu *g, oct_gpu_speed *out, oct_error *err)
{
    enum { BLOCKS_PER_SM = 8, WARPS = 8, PRODUCT_OPS = 2 * 16 * 8 * 32 };
    float ms;
    oct_cuda_probe_args a = {.p = p->memory,
                             .bytes = (int64_t)p->bytes,
                             .out = oct_cuda_saturated(p->run.cuda),
                             .n_blocks = (int64_t)g->n_sms * BLOCKS_PER_SM};
    oct_cuda_launch l = oct_cuda_probe_launch(&a);
    const attempt t = {.launch = &l, .args = &a};
    OCT_TRY(time_probe(p, &t, &ms, err));
    out->read = ms > 0 ? (double)p->bytes / (1e-3 * (double)ms) : 0;
    a.p = NULL;
    l = oct_cuda_probe_launch(&a);
    /* as long as it takes to matter */
    for (a.rounds = 1; a.rounds < 1 << 20; a.rounds *= 4) {
        OCT_TRY(time_probe(p, &t, &ms, err));
        if (ms > 1)
            break;
    }
    out->peak = ms > 0 ? (double)(a.n_blocks * WARPS * a.rounds) * OCT_CUDA_PROBE_CHAINS *
                             PRODUCT_OPS / (1e-3 * (double)ms)
                       : 0;
    return OCT_OK;
}

/* ---- a matrix -------------------------------------------------------------------------------- */

/* A dense matrix of one slice, and where in a probe's memory what a product takes is. */
typedef struct matrix {
    oct_weight_layout layout;
    oct_act_layout act;
    size_t scales, x, y, workspace, bytes;
    int64_t rows;
} matrix;

static bool matrix_of(int64_t n_out, int64_t n_in, int64_t rows, matrix *m)
{
    *m = (matrix){.layout = {.type = OCT_WEIGHT_Q8,
                             .n_experts = 1,
                             .n_slices = 1,
                             .n_in = n_in,
                             .n_groups = 1,
                             .part_out = {n_out},
                             .n_parts = 1,
                             .split = OCT_SPLIT_OUT},
                  .rows = rows};
    if (oct_weight_layout_init(&m->layout))
        return false;
    oct_act_layout_init(&m->act, n_in, 1, 2);
    (void)oct_cuda_take(&m->bytes, m->layout.unit_stride);
    m->scales = oct_cuda_take(&m->bytes, m->layout.scale_stride);
    m->x = oct_cuda_take(&m->bytes, (size_t)rows * m->act.bytes);
    m->y = oct_cuda_take(&m->bytes, (size_t)(rows * n_out) * sizeof(float));
    m->workspace = oct_cuda_take(&m->bytes, OCT_CUDA_BLAS_WORKSPACE);
    return true;
}

/* Ours, times so many of the rows. */
static oct_status time_ours(probe *p, const matrix *m, int64_t rows, float *ms, oct_error *err)
{
    oct_cuda_linear_args a = oct_cuda_linear_of(&m->layout, 0, 1, 2);
    a.weights = p->memory;
    a.scales = p->memory + m->scales;
    a.x = p->memory + m->x;
    a.y = (float *)(void *)(p->memory + m->y);
    a.y_cols = m->layout.n_out;
    a.n_rows = rows;
    a.tile_rows = oct_cuda_tile_rows(rows, 1, rows, 0);
    const oct_cuda_launch l = oct_cuda_linear_launch(&a);
    return time_probe(p, &(attempt){.launch = &l, .args = &a}, ms, err);
}

/* cuBLAS', if there is one. */
static oct_status time_blas(probe *p, const matrix *m, float *ms, oct_error *err)
{
    oct_cuda_blas *b;
    const oct_cuda_blas_args a = {.w = p->memory,
                                  .x = p->memory + m->x,
                                  .y = p->memory + m->y,
                                  .m = (int)m->layout.n_out,
                                  .n = (int)m->rows,
                                  .k = (int)m->layout.n_in,
                                  .y_stride = (int)m->layout.n_out};
    *ms = 0;
    if (oct_cuda_blas_open(p->run.cuda->stream, p->memory + m->workspace, &b, NULL) != OCT_OK)
        return OCT_OK;
    oct_status status = time_probe(p, &(attempt){.blas = b, .product = &a}, ms, err);
    oct_cuda_blas_close(b);
    return status;
}

/* The matrix that is large enough to matter and has room. */
static oct_status measure_matrix(probe *p, oct_gpu_speed *out, oct_error *err)
{
    static const int64_t sizes[][3] = {
        {192, 512, 64}, {3072, 2048, 256}, {12288, 6144, 512}, {98304, 6144, 512}};
    matrix m = {0};
    float ms = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && ms < 1; i++) {
        matrix next;
        if (!matrix_of(sizes[i][0], sizes[i][1], sizes[i][2], &next) || next.bytes > p->bytes)
            break;
        m = next;
        OCT_TRY(time_ours(p, &m, m.rows, &ms, err));
    }
    if (!(ms > 0))
        return OCT_OK;
    const double ops = 2.0 * (double)(m.rows * m.layout.n_out) * (double)m.layout.n_in;
    out->n_out = m.layout.n_out;
    out->n_in = m.layout.n_in;
    out->n_rows = m.rows;
    out->gemm = 2 * ops / (1e-3 * (double)ms);
    OCT_TRY(time_ours(p, &m, 1, &ms, err));
    out->gemv =
        ms > 0 ? (double)(m.layout.unit_bytes + m.layout.scale_bytes) / (1e-3 * (double)ms) : 0;
    OCT_TRY(time_blas(p, &m, &ms, err));
    out->blas = ms > 0 ? ops / (1e-3 * (double)ms) : 0;
    return OCT_OK;
}

/* With the context current. */
static oct_status measure(probe *p, const oct_gpu *g, oct_gpu_speed *out, oct_error *err)
{
    const oct_cuda *c = p->run.cuda;
    OCT_TRY(oct_cuda_check(c, c->api->event_new(&p->from, 0), "event", err));
    OCT_TRY(oct_cuda_check(c, c->api->event_new(&p->to, 0), "event", err));
    OCT_TRY(oct_cuda_check(
        c, c->api->fill((oct_cuda_address)(uintptr_t)p->memory, 1, p->bytes, c->stream), "probe",
        err));
    OCT_TRY(measure_best(p, g, out, err));
    OCT_TRY(measure_matrix(p, out, err));
    out->link = oct_cuda_measure_link(c->api);
    return OCT_OK;
}

static oct_status measure_on(oct_backend *b, const oct_gpu *g, oct_gpu_speed *out, oct_error *err)
{
    enum { READ_BYTES = 1 << 30, LEAST_BYTES = 1 << 20 };
    oct_cuda *c = (oct_cuda *)(void *)b;
    oct_cuda_context popped;
    probe p = {.run = {.cuda = c}};
    void *memory = NULL;
    p.bytes = g->budget / 2 < READ_BYTES ? g->budget / 2 / 16 * 16 : READ_BYTES;
    if (p.bytes < LEAST_BYTES)
        return oct_fail(err, OCT_ERR_MEMORY, "GPU %d: too little memory to measure", g->index);
    OCT_TRY(b->alloc(b, p.bytes, &memory, err));
    p.memory = memory;
    oct_status status = oct_cuda_check(c, c->api->context_push(c->context), "context", err);
    if (status == OCT_OK) {
        status = measure(&p, g, out, err);
        (void)c->api->stream_sync(c->stream);
        if (p.from)
            (void)c->api->event_free(p.from);
        if (p.to)
            (void)c->api->event_free(p.to);
        (void)c->api->context_pop(&popped);
    }
    b->release(b, memory, p.bytes);
    return status;
}

oct_status oct_gpu_measure(const oct_gpu *g, oct_gpu_speed *out, oct_error *err)
{
    const oct_cuda_numbers n = {
        .device = g->index, .n_sms = g->n_sms, .rows = 1, .n_seqs = 1, .seq_pages = 1};
    oct_backend *b;
    *out = (oct_gpu_speed){0};
    OCT_TRY(oct_cuda_open(&n, &b, err));
    oct_status status = measure_on(b, g, out, err);
    b->free(b);
    return status;
}
