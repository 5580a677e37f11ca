/* cuda_stream.c: experts whose weights are the host's. A thread copies them piece by piece through
 * pinned memory into one of two places on the device, in a stream of its own; the other stream
 * computes an expert as soon as it is there, while the next one is on its way. The host's own
 * threads compute other experts meanwhile. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_impl.h"

enum { PIECES = 2, STAGES = 2, PIECE_BYTES = 16 << 20 };

struct oct_cuda_streamer {
    oct_cuda *cuda;
    oct_cuda_stream copies;
    oct_cuda_event begun, filled[STAGES], freed[STAGES], sent[PIECES];
    unsigned char *piece[PIECES]; /* PIECE_BYTES */
    bool pinned[PIECES], used[PIECES];
    int64_t n_pieces; /* so far */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool started, due, quit; /* due: the job below is not done */
    oct_cuda_run job;
    oct_run run; /* what of it the thread reads: the caller goes on with its own */
    const oct_step *step;
    oct_status status;
    oct_error error;
};

/* ---- memory ---------------------------------------------------------------------------------- */

/* Offsets in the step's temporary memory. */
typedef struct stream_temp {
    size_t x, order, x_row, n_sorted, tiles, h, hq, parts;
    size_t stage[STAGES]; /* weights and scales of gate_up, then of down */
    size_t stage_at[OCT_MAX_ARRAYS];
    size_t bytes;
} stream_temp;

/* One expert may have all rows. Slots of the others' rows are made of zeros, in all slices. A stage
 * has an expert's slices that are the rank's. */
static stream_temp stream_temp_of(const oct_shard *s, const oct_node *n, int64_t rows)
{
    stream_temp t = {0};
    const oct_weight_layout *down = &n->w[1]->layout;
    size_t slots = (size_t)(rows * n->n_used), stage = 0;
    oct_array arrays[OCT_MAX_ARRAYS];
    for (int i = 0, count = oct_node_arrays(n, s, arrays); i < count; i++)
        t.stage_at[i] = oct_cuda_take(&stage, arrays[i].run);
    for (int i = 0; i < STAGES; i++)
        t.stage[i] = oct_cuda_take(&t.bytes, stage);
    t.x = oct_cuda_take(&t.bytes, (size_t)rows * oct_cuda_act(n, 0).bytes);
    t.order = oct_cuda_take(&t.bytes, slots * sizeof(int32_t));
    t.x_row = oct_cuda_take(&t.bytes, slots * sizeof(int32_t));
    t.n_sorted = oct_cuda_take(&t.bytes, sizeof(int32_t));
    t.tiles = oct_cuda_take(&t.bytes, (size_t)rows * sizeof(oct_cuda_tile));
    t.h = oct_cuda_take(&t.bytes, (size_t)rows * (size_t)down->n_in * sizeof(float));
    t.hq = oct_cuda_take(&t.bytes, (size_t)rows * oct_cuda_act(n, 1).bytes);
    t.parts = oct_cuda_take(&t.bytes, (size_t)oct_cuda_parts(s, n->w[1]) * slots *
                                          (size_t)down->n_out * sizeof(float));
    return t;
}

size_t oct_cuda_stream_bytes(const void *numbers, const oct_node *n, int64_t rows)
{
    return stream_temp_of(&((const oct_cuda_numbers *)numbers)->shard, n, rows).bytes;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static oct_status check(const oct_cuda_streamer *s, int result, const char *what, oct_error *err)
{
    return oct_cuda_check(s->cuda, result, what, err);
}

/* Bytes of the host to the device, by way of pinned memory. */
static oct_status send(oct_cuda_streamer *s, unsigned char *to, const unsigned char *from,
                       size_t bytes, oct_error *err)
{
    const oct_cuda_api *api = s->cuda->api;
    for (size_t done = 0; done < bytes;) {
        size_t n = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        int k = (int)(s->n_pieces++ % PIECES);
        if (s->used[k])
            OCT_TRY(check(s, api->event_sync(s->sent[k]), "streaming", err));
        memcpy(s->piece[k], from + done, n);
        OCT_TRY(check(
            s, api->upload((oct_cuda_address)(uintptr_t)(to + done), s->piece[k], n, s->copies),
            "streaming", err));
        OCT_TRY(check(s, api->event_record(s->sent[k], s->copies), "streaming", err));
        s->used[k] = true;
        done += n;
    }
    return OCT_OK;
}

/* Where slice 0 of expert 0 of an array would be, so that this one's first slice is at `at`. */
static const uint8_t *biased(const unsigned char *at, int64_t expert, uint64_t expert_stride,
                             int64_t slice, uint64_t slice_stride)
{
    return (const uint8_t *)((uintptr_t)at - (uint64_t)expert * expert_stride -
                             (uint64_t)slice * slice_stride);
}

/* The matrix w[which] of an expert in a stage. */
static oct_cuda_linear_args staged(const oct_cuda_run *c, const oct_step *s, int which,
                                   int64_t expert, const stream_temp *t, const unsigned char *stage)
{
    oct_cuda_linear_args a = oct_cuda_linear(c, s, which);
    a.weights = biased(stage + t->stage_at[2 * which], expert, a.expert_stride, a.first_slice,
                       a.slice_stride);
    a.scales = biased(stage + t->stage_at[2 * which + 1], expert, a.scale_expert_stride,
                      a.first_slice, a.scale_slice_stride);
    return a;
}

/* Sorted rows of one expert, through both matrices, into the parts of their slots. */
static oct_status compute(oct_cuda_streamer *s, int64_t expert, unsigned char *temp,
                          const stream_temp *t, const unsigned char *stage, oct_error *err)
{
    oct_cuda_run *c = &s->job;
    const oct_node *n = s->step->node;
    const int64_t rows = s->run.n_rows, D = n->out->cols;
    oct_cuda_linear_args up = staged(c, s->step, 0, expert, t, stage),
                         down = staged(c, s->step, 1, expert, t, stage);
    oct_cuda_sort_args sort = {
        .routes = n->in[1] ? oct_cuda_data(c, n->in[1]) : NULL,
        .route_bytes = n->in[1] ? (int64_t)n->in[1]->row_bytes : 0,
        .n_rows = rows,
        .n_used = (int32_t)n->n_used,
        .n_experts = (int32_t)n->w[0]->layout.n_experts,
        .first_expert = (int32_t)expert,
        .end_expert = (int32_t)expert + 1,
        .tile_rows = oct_cuda_tile_rows(rows, 1, rows, n->w[0]->layout.unit_groups > 1),
        .order = (int32_t *)(void *)(temp + t->order),
        .x_row = (int32_t *)(void *)(temp + t->x_row),
        .n_sorted = (int32_t *)(void *)(temp + t->n_sorted),
        .tiles = (oct_cuda_tile *)(void *)(temp + t->tiles)};
    sort.n_tiles = (int32_t)oct_cuda_div_up(rows, sort.tile_rows);
    up.x = temp + t->x;
    up.y = (float *)(void *)(temp + t->h);
    up.y_cols = n->w[1]->layout.n_in;
    down.x = temp + t->hq;
    down.y = (float *)(void *)(temp + t->parts);
    down.y_cols = D;
    down.part_stride = rows * n->n_used * D;
    oct_cuda_link_experts(&up, &down, &sort, rows);
    oct_cuda_launch l = oct_cuda_sort_launch(&sort);
    OCT_TRY(oct_cuda_launch_kernel(c, &l, &sort, err));
    l = oct_cuda_linear_launch(&up);
    OCT_TRY(oct_cuda_launch_kernel(c, &l, &up, err));
    OCT_TRY(oct_cuda_quantise(c, up.y, temp + t->hq, &down.act, rows, sort.n_sorted, err));
    l = oct_cuda_linear_launch(&down);
    return oct_cuda_launch_kernel(c, &l, &down, err);
}

/* The i-th expert of the job. */
static oct_status do_expert(oct_cuda_streamer *s, int64_t expert, int64_t i, unsigned char *temp,
                            const stream_temp *t, oct_error *err)
{
    const oct_cuda_api *api = s->cuda->api;
    const int k = (int)(i % STAGES);
    unsigned char *stage = temp + t->stage[k];
    const oct_shard *shard = &s->cuda->n.shard;
    oct_array arrays[OCT_MAX_ARRAYS];
    const int n_arrays = oct_node_arrays(s->step->node, shard, arrays);
    const int64_t index = expert - shard->experts.first;
    if (i >= STAGES)
        OCT_TRY(check(s, api->stream_wait(s->copies, s->freed[k], 0), "streaming", err));
    for (int a = 0; a < n_arrays; a++)
        OCT_TRY(send(s, stage + t->stage_at[a],
                     (const unsigned char *)s->step->at[a] + arrays[a].first +
                         (size_t)index * arrays[a].stride,
                     arrays[a].run, err));
    OCT_TRY(check(s, api->event_record(s->filled[k], s->copies), "streaming", err));
    OCT_TRY(check(s, api->stream_wait(s->cuda->stream, s->filled[k], 0), "streaming", err));
    OCT_TRY(compute(s, expert, temp, t, stage, err));
    return check(s, api->event_record(s->freed[k], s->cuda->stream), "streaming", err);
}

static oct_status do_job(oct_cuda_streamer *s, oct_error *err)
{
    const oct_cuda_api *api = s->cuda->api;
    oct_cuda_run *c = &s->job;
    const oct_node *n = s->step->node;
    const stream_temp t = stream_temp_of(&c->cuda->n.shard, n, c->plan->graph->rows);
    unsigned char *temp = c->buffer + s->step->temp_offset;
    const oct_act_layout act = oct_cuda_act(n, 0);
    const int64_t slots = s->run.n_rows * n->n_used, D = n->out->cols;
    const int64_t parts = oct_cuda_parts(&c->cuda->n.shard, n->w[1]);
    const oct_cuda_fold_args fold = {.parts = (float *)(void *)(temp + t.parts),
                                     .out = oct_cuda_data(c, n->out),
                                     .part_stride = slots * D,
                                     .n = D,
                                     .n_rows = slots,
                                     .n_parts = (int32_t)parts};
    /* What lay here before may still be in use. */
    OCT_TRY(check(s, api->event_record(s->begun, s->cuda->stream), "streaming", err));
    OCT_TRY(check(s, api->stream_wait(s->copies, s->begun, 0), "streaming", err));
    OCT_TRY(check(s,
                  api->fill((oct_cuda_address)(uintptr_t)fold.parts, 0,
                            (size_t)(parts * slots * D) * sizeof(float), s->cuda->stream),
                  "streaming", err));
    OCT_TRY(oct_cuda_quantise(c, oct_cuda_data(c, n->in[0]), temp + t.x, &act, s->run.n_rows, NULL,
                              err));
    for (int64_t e = 0, i = 0; e < n->w[0]->layout.n_experts; e++) {
        if (!(s->run.elsewhere >> e & 1))
            continue;
        if (oct_cancelled(s->run.cancel))
            return oct_fail(err, OCT_ERR_CANCELLED, "evaluation cancelled");
        OCT_TRY(do_expert(s, e, i++, temp, &t, err));
    }
    const oct_cuda_launch l = oct_cuda_fold_launch(&fold);
    return oct_cuda_launch_kernel(c, &l, &fold, err);
}

static void do_job_in_context(oct_cuda_streamer *s)
{
    oct_cuda_context popped;
    s->error = (oct_error){0};
    s->status = check(s, s->cuda->api->context_push(s->cuda->context), "context", &s->error);
    if (s->status != OCT_OK)
        return;
    s->status = do_job(s, &s->error);
    if (s->status != OCT_OK) /* nothing of it goes on behind the error */
        (void)s->cuda->api->stream_sync(s->copies);
    (void)s->cuda->api->context_pop(&popped);
}

static void *work(void *ctx)
{
    oct_cuda_streamer *s = ctx;
    pthread_mutex_lock(&s->lock);
    while (!s->quit) {
        if (s->due) {
            pthread_mutex_unlock(&s->lock);
            do_job_in_context(s);
            pthread_mutex_lock(&s->lock);
            s->due = false;
            pthread_cond_broadcast(&s->changed);
        } else {
            pthread_cond_wait(&s->changed, &s->lock);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- for the backend ------------------------------------------------------------------------- */

oct_status oct_cuda_streamer_join(oct_cuda *c, oct_error *err)
{
    oct_cuda_streamer *s = c->streamer;
    if (!s)
        return OCT_OK;
    pthread_mutex_lock(&s->lock);
    while (s->due)
        pthread_cond_wait(&s->changed, &s->lock);
    oct_status status = s->status;
    s->status = OCT_OK;
    pthread_mutex_unlock(&s->lock);
    return status == OCT_OK ? OCT_OK : oct_fail(err, status, "%s", s->error.text);
}

oct_status oct_cuda_stream_begin(oct_backend *b, const oct_plan *p, unsigned char *buffer, int step,
                                 oct_run *r, oct_error *err)
{
    oct_cuda *c = (oct_cuda *)(void *)b;
    oct_cuda_streamer *s = c->streamer;
    OCT_TRY(oct_cuda_streamer_join(c, err));
    pthread_mutex_lock(&s->lock);
    s->step = &p->steps[step];
    s->run = *r;
    s->job = (oct_cuda_run){
        .cuda = c, .plan = p, .buffer = buffer, .place = s->step->place, .run = &s->run};
    s->due = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return OCT_OK;
}

void oct_cuda_streamer_free(oct_cuda *c, bool entered)
{
    oct_cuda_streamer *s = c->streamer;
    oct_cuda_event *const events[] = {&s->begun,    &s->filled[0], &s->filled[1], &s->freed[0],
                                      &s->freed[1], &s->sent[0],   &s->sent[1]};
    if (s->started && c->process == getpid()) {
        pthread_mutex_lock(&s->lock);
        s->quit = true;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    if (entered && s->copies)
        (void)c->api->stream_free(s->copies);
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (entered && *events[i])
            (void)c->api->event_free(*events[i]);
    for (int i = 0; i < PIECES; i++) {
        if (entered && s->pinned[i])
            (void)c->api->host_release(s->piece[i]);
        if (!s->pinned[i])
            free(s->piece[i]);
    }
    if (c->process == getpid()) { /* else they may look as if somebody waited */
        pthread_mutex_destroy(&s->lock);
        pthread_cond_destroy(&s->changed);
    }
    free(s);
    c->streamer = NULL;
}

static oct_status fill_streamer(oct_cuda_streamer *s, oct_error *err)
{
    const oct_cuda_api *api = s->cuda->api;
    oct_cuda_event *const events[] = {&s->begun,    &s->filled[0], &s->filled[1], &s->freed[0],
                                      &s->freed[1], &s->sent[0],   &s->sent[1]};
    OCT_TRY(check(s, api->stream_new(&s->copies, OCT_CUDA_STREAM_NON_BLOCKING), "stream", err));
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        OCT_TRY(check(s, api->event_new(events[i], OCT_CUDA_EVENT_NO_TIMING), "event", err));
    for (int i = 0; i < PIECES; i++) {
        void *p = NULL;
        s->pinned[i] = api->host_alloc(&p, PIECE_BYTES, OCT_CUDA_HOST_PORTABLE) == 0;
        s->piece[i] = s->pinned[i] ? p : malloc(PIECE_BYTES);
        if (!s->piece[i])
            return oct_fail(err, OCT_ERR_MEMORY, "GPU %d: out of memory", s->cuda->n.device);
    }
    /* Signals are for the caller's threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    s->started = pthread_create(&s->thread, NULL, work, s) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!s->started)
        return oct_fail(err, OCT_ERR_MEMORY, "GPU %d: no thread", s->cuda->n.device);
    return OCT_OK;
}

oct_status oct_cuda_streamer_open(oct_cuda *c, oct_error *err)
{
    c->streamer = calloc(1, sizeof *c->streamer);
    if (!c->streamer)
        return oct_fail(err, OCT_ERR_MEMORY, "GPU %d: out of memory", c->n.device);
    c->streamer->cuda = c;
    pthread_mutex_init(&c->streamer->lock, NULL);
    pthread_cond_init(&c->streamer->changed, NULL);
    return fill_streamer(c->streamer, err);
}
