/* cuda_backend.c: a device with a stream of its own. Everything of an evaluation is put into the
 * stream in order and nothing waits but wait: no memory is taken and no device stopped between the
 * first token and the last. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_impl.h"

static oct_cuda *cuda_of(oct_backend *b)
{
    return (oct_cuda *)(void *)b;
}

/* ---- the driver ------------------------------------------------------------------------------ */

/* What failed on which device. */
oct_status oct_cuda_check(const oct_cuda *c, int result, const char *what, oct_error *err)
{
    char text[128];
    if (result == 0)
        return OCT_OK;
    snprintf(text, sizeof text, "GPU %d: %s", c->n.device, what);
    return oct_cuda_status(c->api, result, text, err);
}

/* The context is current between enter and leave, and the caller's is as it was behind them. */
static oct_status enter(const oct_cuda *c, oct_error *err)
{
    if (c->process != getpid())
        return oct_fail(err, OCT_ERR_DEVICE, "GPU %d: belongs to the process %ld", c->n.device,
                        (long)c->process);
    return oct_cuda_check(c, c->api->context_push(c->context), "context", err);
}

static void leave(const oct_cuda *c)
{
    oct_cuda_context popped;
    (void)c->api->context_pop(&popped);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static bool takes_type(oct_weight_type t)
{
    return t == OCT_WEIGHT_Q8 || oct_q4_groups(t) != 0;
}

/* Shared memory of a node's blocks at most, where that depends on the model: keys as f32. */
static uint32_t shared_of(const oct_node *n)
{
    if (n->op == OCT_OP_NORM || n->op == OCT_OP_ADD_NORM)
        return oct_cuda_norm_launch(&(oct_cuda_norm_args){.n = n->out->cols}).shared;
    if (n->op != OCT_OP_ATTENTION)
        return 0;
    const oct_attn_shape *s = n->attn;
    const int64_t n_kv = s->n_kv_heads;
    const oct_cuda_attention_args a = {.kv = {.n_heads = n_kv,
                                              .head_dim = s->head_dim,
                                              .v_stride = oct_kv_v_stride(s->head_dim),
                                              .elem_bytes = sizeof(float)},
                                       .heads = {.n_q_heads = s->n_q_heads, .n_kv_heads = n_kv},
                                       .n_rows = OCT_CUDA_ROW_TILE};
    return oct_cuda_attention_launch(&a).shared;
}

static bool cuda_supports(const void *numbers, const oct_node *n)
{
    const oct_cuda_numbers *c = numbers;
    for (int k = 0; k < 2 && n->w[k]; k++)
        if (!takes_type(n->w[k]->layout.type) || !oct_weight_takes(n->w[k]->layout.type, n->digits))
            return false;
    if (shared_of(n) > (uint32_t)(c->shared > 0 ? c->shared : OCT_CUDA_SHARED_75))
        return false;
    return oct_cuda_ops[n->op] != NULL;
}

static size_t cuda_scratch_bytes(const void *numbers, const oct_node *n, int64_t rows)
{
    (void)numbers, (void)n, (void)rows;
    return 0;
}

const oct_backend_kind oct_cuda_kind = {.name = "cuda",
                                        .packed = true,
                                        .supports = cuda_supports,
                                        .temp_bytes = oct_cuda_temp_bytes,
                                        .stream_bytes = oct_cuda_stream_bytes,
                                        .scratch_bytes = cuda_scratch_bytes};

/* Behind the inputs, on both sides, the counter of saturated values; the host's gate. */
enum { BEHIND_INPUTS = 2 * sizeof(uint64_t) };

static oct_cuda_inputs inputs_of(const oct_cuda_numbers *n)
{
    oct_cuda_inputs at = {0};
    size_t rows = (size_t)n->rows, seqs = (size_t)(n->rows < n->n_seqs ? n->rows : n->n_seqs);
    at.token = oct_cuda_take(&at.bytes, rows * sizeof(int32_t));
    at.seq = oct_cuda_take(&at.bytes, rows * sizeof(int32_t));
    at.pos = oct_cuda_take(&at.bytes, rows * sizeof(int32_t));
    at.out_row = oct_cuda_take(&at.bytes, rows * sizeof(int32_t));
    at.copies = oct_cuda_take(&at.bytes, seqs * sizeof(oct_cuda_page_copy));
    at.table = oct_cuda_take(&at.bytes, seqs * (size_t)n->seq_pages * sizeof(int32_t));
    return at;
}

size_t oct_cuda_own_bytes(const oct_cuda_numbers *n)
{
    const size_t bytes = inputs_of(n).bytes + BEHIND_INPUTS;
    size_t workspace_at = 0;
    (void)oct_cuda_take(&workspace_at, bytes);
    return n->blas ? workspace_at + OCT_CUDA_BLAS_WORKSPACE : bytes;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static oct_status cuda_alloc(oct_backend *b, size_t bytes, void **p, oct_error *err)
{
    const oct_cuda *c = cuda_of(b);
    oct_cuda_address at = 0;
    char what[64];
    snprintf(what, sizeof what, "%zu bytes", bytes);
    OCT_TRY(enter(c, err));
    oct_status status = oct_cuda_check(c, c->api->alloc(&at, bytes), what, err);
    leave(c);
    if (status == OCT_OK)
        *p = (void *)(uintptr_t)at;
    return status;
}

static void cuda_release(oct_backend *b, void *p, size_t bytes)
{
    const oct_cuda *c = cuda_of(b);
    (void)bytes;
    if (enter(c, NULL) != OCT_OK)
        return;
    (void)c->api->release((oct_cuda_address)(uintptr_t)p);
    leave(c);
}

static oct_status cuda_upload(oct_backend *b, void *to, const void *from, size_t bytes,
                              oct_error *err)
{
    oct_cuda *c = cuda_of(b);
    OCT_TRY(oct_cuda_streamer_join(c, err));
    OCT_TRY(enter(c, err));
    oct_status status =
        oct_cuda_check(c, c->api->upload((oct_cuda_address)(uintptr_t)to, from, bytes, c->stream),
                       "copy to the device", err);
    leave(c);
    return status;
}

static oct_status cuda_download(oct_backend *b, void *to, const void *from, size_t bytes,
                                oct_error *err)
{
    oct_cuda *c = cuda_of(b);
    OCT_TRY(oct_cuda_streamer_join(c, err));
    OCT_TRY(enter(c, err));
    oct_status status =
        oct_cuda_check(c, c->api->download(to, (oct_cuda_address)(uintptr_t)from, bytes, c->stream),
                       "copy from the device", err);
    leave(c);
    return status;
}

/* Also behind an error: then nothing is under way. */
static oct_status cuda_wait(oct_backend *b, oct_error *err)
{
    oct_cuda *c = cuda_of(b);
    oct_status status = oct_cuda_streamer_join(c, err);
    OCT_TRY(enter(c, err));
    const int result = c->api->stream_sync(c->stream);
    leave(c);
    return status == OCT_OK ? oct_cuda_check(c, result, "computing", err) : status;
}

/* Without it the driver copies by way of memory of its own. */
static bool cuda_pin(oct_backend *b, void *p, size_t bytes)
{
    oct_cuda *c = cuda_of(b);
    if (enter(c, NULL) != OCT_OK)
        return false;
    if (c->api->host_register(p, bytes, OCT_CUDA_HOST_PORTABLE) == 0)
        c->pinned = p;
    leave(c);
    return c->pinned == p;
}

static void cuda_unpin(oct_backend *b, void *p)
{
    oct_cuda *c = cuda_of(b);
    if (c->pinned != p || enter(c, NULL) != OCT_OK)
        return;
    (void)c->api->host_unregister(p);
    c->pinned = NULL;
    leave(c);
}

/* The stream waits for a word of the host's memory, which needs nobody but itself. The host may
 * have to wait for another rank meanwhile, whose device must not be this one: nobody promises that
 * it goes on with that rank's stream while this one's waits. */
static bool cuda_hold(oct_backend *b)
{
    oct_cuda *c = cuda_of(b);
    if (c->n.divided || !c->inputs_pinned || oct_cuda_streamer_join(c, NULL) != OCT_OK ||
        enter(c, NULL) != OCT_OK)
        return false;
    const int result = c->api->stream_wait_value(c->stream, (oct_cuda_address)(uintptr_t)c->gate,
                                                 c->turn + 1, OCT_CUDA_WAIT_REACHED);
    c->turn += result == 0;
    leave(c);
    return result == 0;
}

static void cuda_go(oct_backend *b)
{
    oct_cuda *c = cuda_of(b);
    __atomic_store_n(c->gate, c->turn, __ATOMIC_RELEASE);
}

/* ---- running --------------------------------------------------------------------------------- */

const void *oct_cuda_input(const oct_cuda *c, size_t at)
{
    return (const void *)(uintptr_t)(c->device + at);
}

unsigned long long *oct_cuda_saturated(const oct_cuda *c)
{
    return (unsigned long long *)(uintptr_t)(c->device + c->at.bytes);
}

oct_status oct_cuda_launch_kernel(oct_cuda_run *run, const oct_cuda_launch *l, const void *args,
                                  oct_error *err)
{
    static const char *const names[OCT_CUDA_N_ENTRIES] = {
#define OCT_CUDA_NAME(name, args, threads, blocks) [OCT_CUDA_##name] = #name,
        OCT_CUDA_ENTRIES(OCT_CUDA_NAME)
#undef OCT_CUDA_NAME
    };
    enum { GRANTED = 48 << 10 }; /* shared memory that every function may have */
    oct_cuda *c = run->cuda;
    union {
        const void *args;
        void *given;
    } arguments = {args};
    if (l->shared > GRANTED && l->shared > c->shared[l->entry]) {
        OCT_TRY(
            oct_cuda_check(c,
                           c->api->function_set(c->function[l->entry],
                                                OCT_CUDA_FUNC_MAX_DYNAMIC_SHARED, (int)l->shared),
                           names[l->entry], err));
        c->shared[l->entry] = l->shared;
    }
    return oct_cuda_check(c,
                          c->api->launch(c->function[l->entry], l->grid[0], l->grid[1], l->grid[2],
                                         l->block, 1, 1, l->shared, c->stream, &arguments.given,
                                         NULL),
                          names[l->entry], err);
}

/* The table's row of a sequence; it gets one if it has none. */
static int32_t table_row(oct_cuda *c, const oct_kv_pages *pages, int32_t seq, int32_t *n)
{
    int32_t *table = (int32_t *)(void *)(c->inputs + c->at.table);
    if (c->row_of[seq] < 0) {
        memcpy(table + *n * pages->seq_pages, pages->table + seq * pages->seq_pages,
               (size_t)pages->seq_pages * sizeof *table);
        c->row_of[seq] = (*n)++;
    }
    return c->row_of[seq];
}

/* Tokens, positions and pages of an evaluation, in one copy. */
static oct_status bring_inputs(oct_cuda *c, const oct_run *r, const oct_kv_cache *kv,
                               oct_error *err)
{
    int32_t *seq = (int32_t *)(void *)(c->inputs + c->at.seq), n = 0;
    size_t rows = (size_t)r->n_rows * sizeof(int32_t);
    memcpy(c->inputs + c->at.token, r->token, rows);
    memcpy(c->inputs + c->at.pos, r->pos, rows);
    if (r->n_out > 0)
        memcpy(c->inputs + c->at.out_row, r->out_row, (size_t)r->n_out * sizeof(int32_t));
    for (int64_t i = 0; kv->pages && i < r->n_rows; i++)
        seq[i] = table_row(c, kv->pages, r->seq[i], &n);
    for (int64_t i = 0; kv->pages && i < r->n_rows; i++)
        c->row_of[r->seq[i]] = -1;
    oct_cuda_page_copy *copies = (oct_cuda_page_copy *)(void *)(c->inputs + c->at.copies);
    for (int64_t i = 0; kv->pages && i < kv->pages->n_copies; i++) {
        const oct_kv_copy *k = &kv->pages->copies[i];
        copies[i] =
            (oct_cuda_page_copy){.seq = k->seq, .from = k->from, .to = k->to, .n_pos = k->n_pos};
    }
    size_t used = kv->pages ? (size_t)(n * kv->pages->seq_pages) * sizeof(int32_t) : 0;
    return oct_cuda_check(c, c->api->upload(c->device, c->inputs, c->at.table + used, c->stream),
                          "copy to the device", err);
}

static void cuda_begin(oct_backend *b)
{
    cuda_of(b)->fresh = true;
}

/* The stream is empty. */
static void cuda_end(oct_backend *b)
{
    oct_cuda *c = cuda_of(b);
    if (c->kv && *c->saturated > c->seen) {
        c->kv->saturated += (int64_t)(*c->saturated - c->seen);
        c->seen = *c->saturated;
    }
    c->kv = NULL;
}

static oct_status run_steps(oct_cuda_run *r, int first, int end, oct_error *err)
{
    bool last = false; /* keys and values have been stored in all layers of the device */
    oct_cuda *c = r->cuda;
    const int64_t n_layers = r->run->kv[r->place].n_layers;
    for (int i = first; i < end; i++) {
        const oct_step *s = &r->plan->steps[i];
        const oct_tensor *rows = s->node->out ? s->node->out : s->node->in[0];
        if (oct_cancelled(r->run->cancel))
            return oct_fail(err, OCT_ERR_CANCELLED, "evaluation cancelled");
        last |= s->node->op == OCT_OP_ROPE_STORE && s->kv_layer == n_layers - 1;
        if ((rows->selected ? r->run->n_out : r->run->n_rows) > 0)
            OCT_TRY(oct_cuda_ops[s->node->op](r, s, err));
    }
    if (!last)
        return OCT_OK;
    return oct_cuda_check(
        c, c->api->download(c->saturated, c->device + c->at.bytes, sizeof *c->saturated, c->stream),
        "copy from the device", err);
}

static oct_status cuda_run(oct_backend *b, const oct_plan *p, unsigned char *buffer, int first,
                           int end, oct_run *r, oct_error *err)
{
    oct_cuda *c = cuda_of(b);
    oct_cuda_run run = {
        .cuda = c, .plan = p, .buffer = buffer, .place = p->steps[first].place, .run = r};
    oct_status status = OCT_OK;
    OCT_TRY(oct_cuda_streamer_join(c, err));
    OCT_TRY(enter(c, err));
    if (c->fresh)
        status = bring_inputs(c, r, &r->kv[run.place], err);
    c->fresh = false;
    c->kv = &r->kv[run.place];
    if (status == OCT_OK)
        status = run_steps(&run, first, end, err);
    leave(c);
    return status;
}

/* ---- opening --------------------------------------------------------------------------------- */

static void cuda_free(oct_backend *b)
{
    oct_cuda *c = cuda_of(b);
    const bool entered = c->context && enter(c, NULL) == OCT_OK;
    if (c->streamer)
        oct_cuda_streamer_free(c, entered);
    if (entered) {
        oct_cuda_blas_close(c->blas);
        if (c->stream)
            (void)c->api->stream_free(c->stream);
        if (c->module)
            (void)c->api->module_unload(c->module);
        if (c->device)
            (void)c->api->release(c->device);
        if (c->inputs_pinned)
            (void)c->api->host_release(c->inputs);
        leave(c);
    }
    if (!c->inputs_pinned)
        free(c->inputs);
    if (c->context && c->process == getpid())
        (void)c->api->context_release(c->n.device);
    free(c->row_of);
    free(c);
}

static oct_status load_module(oct_cuda *c, oct_error *err)
{
    static const char *const names[OCT_CUDA_N_ENTRIES] = {
#define OCT_CUDA_NAME(name, args, threads, blocks) [OCT_CUDA_##name] = "oct_cuda_" #name,
        OCT_CUDA_ENTRIES(OCT_CUDA_NAME)
#undef OCT_CUDA_NAME
    };
    size_t bytes;
    OCT_TRY(
        oct_cuda_check(c, c->api->module_load(&c->module, oct_cuda_image(&bytes)), "kernels", err));
    for (int i = 0; i < OCT_CUDA_N_ENTRIES; i++)
        OCT_TRY(oct_cuda_check(c, c->api->module_function(&c->function[i], c->module, names[i]),
                               names[i], err));
    return OCT_OK;
}

/* With the context current. */
static oct_status open_blas(oct_cuda *c, oct_error *err)
{
    oct_error e = {0};
    const size_t at = oct_cuda_own_bytes(&c->n) - OCT_CUDA_BLAS_WORKSPACE;
    oct_status status =
        oct_cuda_blas_open(c->stream, (void *)(uintptr_t)(c->device + at), &c->blas, &e);
    return status == OCT_OK ? OCT_OK : oct_fail(err, status, "GPU %d: %s", c->n.device, e.text);
}

/* With the context current. */
static oct_status open_parts(oct_cuda *c, oct_error *err)
{
    void *host = NULL;
    const size_t bytes = c->at.bytes + BEHIND_INPUTS;
    OCT_TRY(oct_cuda_check(c, c->api->stream_new(&c->stream, OCT_CUDA_STREAM_NON_BLOCKING),
                           "stream", err));
    OCT_TRY(load_module(c, err));
    OCT_TRY(oct_cuda_check(c, c->api->alloc(&c->device, oct_cuda_own_bytes(&c->n)),
                           "memory for inputs", err));
    /* Pageable memory costs a copy more. */
    c->inputs_pinned =
        c->api->host_alloc(&host, bytes, OCT_CUDA_HOST_PORTABLE | OCT_CUDA_HOST_MAPPED) == 0;
    c->inputs = c->inputs_pinned ? host : malloc(bytes);
    if (!c->inputs)
        return oct_fail(err, OCT_ERR_MEMORY, "GPU %d: out of memory", c->n.device);
    c->saturated = (uint64_t *)(void *)(c->inputs + c->at.bytes);
    c->gate = (uint32_t *)(void *)(c->saturated + 1);
    *c->saturated = *c->gate = 0;
    if (c->n.streams)
        OCT_TRY(oct_cuda_streamer_open(c, err));
    if (c->n.blas)
        OCT_TRY(open_blas(c, err));
    OCT_TRY(
        oct_cuda_check(c, c->api->fill(c->device, 0, bytes, c->stream), "memory for inputs", err));
    return oct_cuda_check(c, c->api->stream_sync(c->stream), "memory for inputs", err);
}

static oct_status open_device(oct_cuda *c, oct_error *err)
{
    int device;
    OCT_TRY(oct_cuda_check(c, c->api->device_get(&device, c->n.device), "device", err));
    OCT_TRY(oct_cuda_check(c, c->api->context_retain(&c->context, device), "context", err));
    OCT_TRY(enter(c, err));
    oct_status status = open_parts(c, err);
    leave(c);
    return status;
}

oct_status oct_cuda_open(const void *numbers, oct_backend **out, oct_error *err)
{
    const char *why;
    const oct_cuda_api *api = oct_cuda_driver(&why, NULL);
    *out = NULL;
    if (!api)
        return oct_fail(err, OCT_ERR_DEVICE, "GPU: %s", why);
    oct_cuda *c = calloc(1, sizeof *c);
    if (!c)
        return oct_fail(err, OCT_ERR_MEMORY, "GPU: out of memory");
    c->base = (oct_backend){.kind = &oct_cuda_kind,
                            .alloc = cuda_alloc,
                            .release = cuda_release,
                            .upload = cuda_upload,
                            .download = cuda_download,
                            .wait = cuda_wait,
                            .pin = cuda_pin,
                            .unpin = cuda_unpin,
                            .hold = cuda_hold,
                            .go = cuda_go,
                            .begin = cuda_begin,
                            .end = cuda_end,
                            .run = cuda_run,
                            .stream = oct_cuda_stream_begin,
                            .free = cuda_free};
    c->n = *(const oct_cuda_numbers *)numbers;
    c->api = api;
    c->process = getpid();
    c->at = inputs_of(&c->n);
    c->row_of = malloc((size_t)c->n.n_seqs * sizeof *c->row_of);
    oct_status status =
        c->row_of ? open_device(c, err) : oct_fail(err, OCT_ERR_MEMORY, "GPU: out of memory");
    if (status != OCT_OK) {
        cuda_free(&c->base);
        return status;
    }
    memset(c->row_of, -1, (size_t)c->n.n_seqs * sizeof *c->row_of);
    *out = &c->base;
    return OCT_OK;
}
