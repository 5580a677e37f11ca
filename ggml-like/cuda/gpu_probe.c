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

/* A probe's launches, of which the fastest counts: in milliseconds. */
static oct_status time_probe(oct_cuda_run *run, const oct_cuda_probe_args *a, oct_cuda_event from,
                             oct_cuda_event to, float *best, oct_error *err)
{
    const oct_cuda *c = run->cuda;
    const oct_cuda_launch l = oct_cuda_probe_launch(a);
    float ms = 0;
    *best = 0;
    for (int i = 0; i < ROUNDS; i++) {
        OCT_TRY(oct_cuda_check(c, c->api->event_record(from, c->stream), "probe", err));
        OCT_TRY(oct_cuda_launch_kernel(run, &l, a, err));
        OCT_TRY(oct_cuda_check(c, c->api->event_record(to, c->stream), "probe", err));
        OCT_TRY(oct_cuda_check(c, c->api->event_sync(to), "probe", err));
        OCT_TRY(oct_cuda_check(c, c->api->event_elapsed(&ms, from, to), "probe", err));
        *best = ms > 0 && (*best == 0 || ms < *best) ? ms : *best;
    }
    return OCT_OK;
}

/* With the context current. */
static oct_status measure(oct_cuda_run *run, const oct_gpu *g, void *memory, size_t bytes,
                          oct_cuda_event from, oct_cuda_event to, oct_gpu_speed *out,
                          oct_error *err)
{
    enum { BLOCKS_PER_SM = 8, WARPS = 8, PRODUCT_OPS = 2 * 16 * 8 * 32 };
    oct_cuda *c = run->cuda;
    float ms;
    oct_cuda_probe_args a = {.p = memory,
                             .bytes = (int64_t)bytes,
                             .out = oct_cuda_saturated(c),
                             .n_blocks = (int64_t)g->n_sms * BLOCKS_PER_SM};
    OCT_TRY(oct_cuda_check(
        c, c->api->fill((oct_cuda_address)(uintptr_t)memory, 1, bytes, c->stream), "probe", err));
    OCT_TRY(time_probe(run, &a, from, to, &ms, err));
    out->read = ms > 0 ? (double)bytes / (1e-3 * (double)ms) : 0;
    a.p = NULL;
    /* as long as it takes to matter */
    for (a.rounds = 1; a.rounds < 1 << 20; a.rounds *= 4) {
        OCT_TRY(time_probe(run, &a, from, to, &ms, err));
        if (ms > 1)
            break;
    }
    out->peak = ms > 0 ? (double)(a.n_blocks * WARPS * a.rounds) * OCT_CUDA_PROBE_CHAINS *
                             PRODUCT_OPS / (1e-3 * (double)ms)
                       : 0;
    out->link = oct_cuda_measure_link(c->api);
    return OCT_OK;
}

static oct_status measure_on(oct_backend *b, const oct_gpu *g, oct_gpu_speed *out, oct_error *err)
{
    enum { READ_BYTES = 1 << 30, LEAST_BYTES = 1 << 20 };
    oct_cuda *c = (oct_cuda *)(void *)b;
    oct_cuda_run run = {.cuda = c};
    oct_cuda_context popped;
    oct_cuda_event from = NULL, to = NULL;
    size_t bytes = g->budget / 2 < READ_BYTES ? g->budget / 2 / 16 * 16 : READ_BYTES;
    void *memory = NULL;
    if (bytes < LEAST_BYTES)
        return oct_fail(err, OCT_ERR_MEMORY, "GPU %d: too little memory to measure", g->index);
    OCT_TRY(b->alloc(b, bytes, &memory, err));
    oct_status status = oct_cuda_check(c, c->api->context_push(c->context), "context", err);
    if (status == OCT_OK) {
        status = oct_cuda_check(c, c->api->event_new(&from, 0), "event", err);
        if (status == OCT_OK)
            status = oct_cuda_check(c, c->api->event_new(&to, 0), "event", err);
        if (status == OCT_OK)
            status = measure(&run, g, memory, bytes, from, to, out, err);
        (void)c->api->stream_sync(c->stream);
        if (from)
            (void)c->api->event_free(from);
        if (to)
            (void)c->api->event_free(to);
        (void)c->api->context_pop(&popped);
    }
    b->release(b, memory, bytes);
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
