#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "convert_impl.h"
#include "resume.h"
#include "threads.h"

enum {
    MIN_PIECE = 4 << 20, /* smaller ones would be read in too short runs */
    MAX_PIECE = 64 << 20,
    MAX_THREADS = 64
};

static oct_status no_memory(oct_error *err)
{
    return oct_fail(err, OCT_ERR_MEMORY, "out of memory");
}

/* ---- header ---------------------------------------------------------------------------------- */

oct_status oct_new_header(const oct_grok_config *config, const oct_grok_tensor *const *tensors,
                          const uint64_t *sums, int64_t n, uint64_t *offsets, void **bytes,
                          size_t *n_bytes, oct_error *err)
{
    uint64_t align = OCT_FILE_ALIGN;
    oct_gguf_writer *w = oct_gguf_writer_new(OCT_FILE_ALIGN);
    uint32_t *packing = calloc((size_t)n + 1, sizeof *packing);
    if (!w || !packing) {
        oct_gguf_writer_free(w);
        free(packing);
        return oct_fail(err, OCT_ERR_MEMORY, "out of memory for the file's header");
    }
    oct_grok_config_put(config, w);
    for (int64_t i = 0; i < n; i++) {
        align = tensors[i]->align > align ? tensors[i]->align : align;
        packing[i] = tensors[i]->packing;
        oct_gguf_put_tensor(w, tensors[i]->name, tensors[i]->dtype, tensors[i]->rank,
                            tensors[i]->ne);
    }
    oct_gguf_put_array(w, OCT_GROK_KEY_TENSOR_SUMS, OCT_GGUF_U64, sums, (uint64_t)n);
    oct_gguf_put_array(w, OCT_GROK_KEY_TENSOR_PACKING, OCT_GGUF_U32, packing, (uint64_t)n);
    free(packing);
    oct_gguf_put_u64(w, OCT_GROK_KEY_HEADER_SUM, 0);
    uint64_t sum_at = oct_gguf_writer_value_offset(w, OCT_GROK_KEY_HEADER_SUM);
    oct_status s = oct_gguf_writer_header(w, align, bytes, n_bytes, offsets, err);
    oct_gguf_writer_free(w);
    OCT_TRY(s);
    uint64_t sum = oct_grok_header_sum(*bytes, *n_bytes, (size_t)sum_at);
    memcpy((uint8_t *)*bytes + sum_at, &sum, sizeof sum);
    return OCT_OK;
}

/* ---- plan ----------------------------------------------------------------------------------- */

/* What the tensors of a kind are made from, in the order of their layout's parts. */
#define GATE_UP                        \
    {                                  \
        2,                             \
        {                              \
            OCT_ROLE_GATE, OCT_ROLE_UP \
        }                              \
    }
#define DOWN              \
    {                     \
        1,                \
        {                 \
            OCT_ROLE_DOWN \
        }                 \
    }
#define QKV                                              \
    {                                                    \
        3,                                               \
        {                                                \
            OCT_ROLE_QUERY, OCT_ROLE_KEY, OCT_ROLE_VALUE \
        }                                                \
    }
#define ATTN_OUT              \
    {                         \
        1,                    \
        {                     \
            OCT_ROLE_ATTN_OUT \
        }                     \
    }
static const struct {
    int n;
    oct_role role[OCT_WEIGHT_MAX_PARTS];
} sources[OCT_GROK_KINDS] = {[OCT_GROK_GATE_UP] = GATE_UP,
                             [OCT_GROK_GATE_UP_SCALES] = GATE_UP,
                             [OCT_GROK_DOWN] = DOWN,
                             [OCT_GROK_DOWN_SCALES] = DOWN,
                             [OCT_GROK_QKV] = QKV,
                             [OCT_GROK_QKV_SCALES] = QKV,
                             [OCT_GROK_ATTN_OUT] = ATTN_OUT,
                             [OCT_GROK_ATTN_OUT_SCALES] = ATTN_OUT,
                             [OCT_GROK_EMBEDDING] = {1, {OCT_ROLE_EMBEDDING}},
                             [OCT_GROK_ROUTER] = {1, {OCT_ROLE_ROUTER}},
                             [OCT_GROK_NORM_ATTN_IN] = {1, {OCT_ROLE_NORM_ATTN_IN}},
                             [OCT_GROK_NORM_ATTN_OUT] = {1, {OCT_ROLE_NORM_ATTN_OUT}},
                             [OCT_GROK_NORM_FFN_IN] = {1, {OCT_ROLE_NORM_FFN_IN}},
                             [OCT_GROK_NORM_FFN_OUT] = {1, {OCT_ROLE_NORM_FFN_OUT}},
                             [OCT_GROK_NORM_FINAL] = {1, {OCT_ROLE_NORM_FINAL}}};

/* Ties the tensors of packed units to those of their scales, which come after them. */
static void tie_scales(oct_conversion *c)
{
    for (int64_t i = 0; i < c->n_tensors; i++) {
        const oct_grok_tensor *scales = &c->tensors[i].desc;
        oct_new_tensor *t = &c->tensors[i];
        if (!oct_grok_is_scales(scales->kind))
            continue;
        while (t->desc.kind != oct_grok_weights_of(scales->kind) || t->desc.layer != scales->layer)
            t--;
        t->scales = &c->tensors[i];
    }
}

/* The manifest's tensors, and the tokenizer's bytes as the last one. */
static oct_status list_tensors(oct_conversion *c, oct_error *err)
{
    oct_grok_tensor *list = NULL;
    int64_t n = 0;
    OCT_TRY(oct_grok_manifest(&c->source->config, &c->layouts, &list, &n, err));
    c->tensors = calloc((size_t)n + 1, sizeof *c->tensors);
    if (!c->tensors) {
        free(list);
        return no_memory(err);
    }
    for (int64_t i = 0; i < n; i++) {
        oct_new_tensor *t = &c->tensors[i];
        t->desc = list[i];
        t->layout = oct_grok_layout_of(&c->layouts, list[i].kind, list[i].layer);
        t->embedding = list[i].kind == OCT_GROK_EMBEDDING ? &c->layouts.embedding : NULL;
        t->source = c->source;
        for (int k = 0; k < sources[list[i].kind].n; k++)
            c->source->kind->tensor(c->source, sources[list[i].kind].role[k], list[i].layer,
                                    &t->src[k]);
    }
    free(list);
    c->n_tensors = n;
    tie_scales(c);
    if (c->source->tokenizer)
        c->tensors[c->n_tensors++] =
            (oct_new_tensor){.desc = {.kind = OCT_GROK_KINDS,
                                      .layer = -1,
                                      .name = OCT_GROK_TOKENIZER,
                                      .dtype = OCT_GGUF_T_I8,
                                      .rank = 1,
                                      .ne = {c->source->tokenizer_bytes, 1, 1, 1},
                                      .align = OCT_FILE_ALIGN},
                             .raw = c->source->tokenizer};
    return OCT_OK;
}

/* The header with the tensors' checksums as they are now, and the tensors' places. */
static oct_status make_header(const oct_conversion *c, uint64_t *offsets, void **bytes, size_t *n,
                              oct_error *err)
{
    uint64_t *sums = malloc((size_t)c->n_tensors * sizeof *sums);
    const oct_grok_tensor **list = malloc((size_t)c->n_tensors * sizeof *list);
    oct_status s = OCT_OK;
    if (!sums || !list) {
        s = no_memory(err);
    } else {
        for (int64_t i = 0; i < c->n_tensors; i++) {
            sums[i] = c->tensors[i].sum;
            list[i] = &c->tensors[i].desc;
        }
        s = oct_new_header(&c->source->config, list, sums, c->n_tensors, offsets, bytes, n, err);
    }
    free(list);
    free(sums);
    return s;
}

static oct_status place_tensors(oct_conversion *c, const uint64_t *offsets, size_t header_bytes,
                                oct_error *err)
{
    c->header_bytes = header_bytes;
    for (int64_t i = 0; i < c->n_tensors; i++) {
        oct_new_tensor *t = &c->tensors[i];
        t->at = offsets[i];
        if (!oct_gguf_tensor_bytes(t->desc.dtype, t->desc.rank, t->desc.ne, &t->bytes) ||
            t->at % t->desc.align)
            return oct_fail(err, OCT_ERR_SHAPE, "%s: cannot be placed at a multiple of %zu bytes",
                            t->desc.name, t->desc.align);
        c->file_bytes = t->at + t->bytes;
    }
    c->file_bytes = (c->file_bytes + OCT_FILE_ALIGN - 1) / OCT_FILE_ALIGN * OCT_FILE_ALIGN;
    return OCT_OK;
}

oct_status oct_conversion_plan(oct_conversion *c, oct_error *err)
{
    void *header = NULL;
    size_t n = 0;
    OCT_TRY(oct_grok_layouts_init(&c->source->config, NULL, &c->layouts, err));
    OCT_TRY(list_tensors(c, err));
    uint64_t *offsets = malloc((size_t)c->n_tensors * sizeof *offsets);
    if (!offsets)
        return no_memory(err);
    oct_status s = make_header(c, offsets, &header, &n, err);
    if (s == OCT_OK)
        s = place_tensors(c, offsets, n, err);
    free(header);
    free(offsets);
    return s;
}

/* ---- a parallel loop with a part in order ---------------------------------------------------- */

/* Several threads work on items while a checksum takes them one after the other. */
typedef struct ordered {
    int64_t n; /* items 0..n-1 are begun in this order */
    void *ctx;
    /* Each may be NULL. For one item they are called in this order by one thread
     * (0..n_threads-1). */
    oct_status (*work)(void *ctx, int thread, int64_t i, oct_error *err); /* in parallel */
    oct_status (*turn)(void *ctx, int thread, int64_t i,
                       oct_error *err); /* one at a time, 0, 1, 2 */
    oct_status (*after)(void *ctx, int thread, int64_t i, oct_error *err); /* in parallel */
    void (*done)(void *ctx, int64_t i); /* one at a time, any order: for progress */
    const volatile int *cancel;         /* non-zero: stop; may be NULL */
} ordered;

typedef struct loop {
    const ordered *o;
    pthread_mutex_t lock;
    pthread_cond_t turned;
    int64_t next; /* item to begin */
    int64_t turn; /* item whose turn it is */
    bool stop;
    oct_error first; /* error */
} loop;

static bool stopped(loop *l)
{
    if (!l->stop && oct_cancelled(l->o->cancel)) {
        (void)oct_fail(&l->first, OCT_ERR_CANCELLED, "cancelled");
        l->stop = true;
        pthread_cond_broadcast(&l->turned);
    }
    return l->stop;
}

/* All with the lock held. */
static void stop_for(loop *l, const oct_error *e)
{
    if (!l->stop)
        l->first = *e;
    l->stop = true;
    pthread_cond_broadcast(&l->turned);
}

/* One item, lock held on entry and exit. */
static void run_item(loop *l, int thread, int64_t i)
{
    const ordered *o = l->o;
    oct_error e = {0};
    oct_status s = OCT_OK;
    pthread_mutex_unlock(&l->lock);
    if (o->work)
        s = o->work(o->ctx, thread, i, &e);
    pthread_mutex_lock(&l->lock);
    while (s == OCT_OK && !l->stop && l->turn != i)
        pthread_cond_wait(&l->turned, &l->lock);
    if (s == OCT_OK && l->stop)
        return;
    pthread_mutex_unlock(&l->lock);
    if (s == OCT_OK && o->turn)
        s = o->turn(o->ctx, thread, i, &e);
    pthread_mutex_lock(&l->lock);
    if (s != OCT_OK) {
        stop_for(l, &e);
        return;
    }
    l->turn++;
    pthread_cond_broadcast(&l->turned);
    pthread_mutex_unlock(&l->lock);
    if (o->after)
        s = o->after(o->ctx, thread, i, &e);
    pthread_mutex_lock(&l->lock);
    if (s != OCT_OK)
        stop_for(l, &e);
    else if (o->done)
        o->done(o->ctx, i);
}

static void run_thread(void *ctx, int thread, int n_threads)
{
    loop *l = ctx;
    (void)n_threads;
    pthread_mutex_lock(&l->lock);
    while (!stopped(l) && l->next < l->o->n)
        run_item(l, thread, l->next++);
    pthread_mutex_unlock(&l->lock);
}

/* Returns the first error, or OCT_ERR_CANCELLED, after all threads have stopped. */
static oct_status run_ordered(const ordered *o, int n_threads, oct_error *err)
{
    loop l = {.o = o, .lock = PTHREAD_MUTEX_INITIALIZER, .turned = PTHREAD_COND_INITIALIZER};
    oct_team *team = NULL;
    OCT_TRY(oct_team_new(n_threads, NULL, &team, err));
    oct_team_run(team, run_thread, &l);
    oct_team_free(team);
    pthread_mutex_destroy(&l.lock);
    pthread_cond_destroy(&l.turned);
    if (l.stop)
        return oct_fail(err, l.first.status, "%s", l.first.text);
    return OCT_OK;
}

/* ---- both passes ---------------------------------------------------------------------------- */

/* Large pieces, as far as memory allows: the larger one is, the longer the runs that are read. */
oct_status oct_conversion_cut(const oct_conversion *c, int n_threads, oct_cut *cut, oct_error *err)
{
    const long wanted = n_threads > 0 ? n_threads : sysconf(_SC_NPROCESSORS_ONLN);
    const size_t threads = wanted < 1 ? 1 : wanted > MAX_THREADS ? MAX_THREADS : (size_t)wanted;
    const size_t memory =
        OCT_CONVERT_MEMORY > c->source->kept_bytes ? OCT_CONVERT_MEMORY - c->source->kept_bytes : 0;
    size_t piece = memory / threads / 2; /* and as much of the source */
    int64_t most;
    piece -= piece / 16; /* what is rounded up */
    piece = piece < MIN_PIECE ? MIN_PIECE : piece > MAX_PIECE ? MAX_PIECE : piece;
    *cut = (oct_cut){0};
    OCT_TRY(oct_pieces_cut(c->tensors, c->n_tensors, piece, &cut->pieces, &cut->n, err));
    cut->room = oct_pieces_scratch(c->tensors, cut->pieces, cut->n, &most);
    cut->room = (cut->room + 63) / 64 * 64;
    const size_t fit = memory / cut->room;
    if (!fit) {
        free(cut->pieces);
        cut->pieces = NULL;
        return oct_fail(err, OCT_ERR_UNSUPPORTED,
                        "%s: the least that can be converted at once, %d channels with all of "
                        "their inputs, takes %zu bytes; expected at most %zu",
                        c->tensors[most].desc.name, OCT_PANEL, cut->room, memory);
    }
    cut->n_threads = (int)(threads < fit ? threads : fit);
    return OCT_OK;
}

/* One pass over all pieces: writing or verifying. */
typedef struct pass {
    oct_conversion *c;
    oct_cut cut;
    oct_convert_phase phase;
    uint64_t done, total;
    oct_resume resume; /* writing */
    bool *taken;       /* [n_threads]: the piece was there already (writing) */
    XXH3_state_t *hash;
    uint8_t **scratch;      /* [n_threads]: working memory, beginning with the piece's bytes */
    oct_q8_error *q8_error; /* [n_threads + 1], the last the sum (verifying) */
} pass;

static void pass_free(pass *p)
{
    for (int i = 0; p->scratch && i < p->cut.n_threads; i++)
        free(p->scratch[i]);
    free(p->scratch);
    free(p->q8_error);
    free(p->taken);
    free(p->cut.pieces);
    oct_resume_free(&p->resume);
    XXH3_freeState(p->hash);
}

static oct_status pass_init(pass *p, oct_conversion *c, oct_convert_phase phase, oct_error *err)
{
    *p = (pass){.c = c, .phase = phase};
    OCT_TRY(oct_conversion_cut(c, c->params->n_threads, &p->cut, err));
    p->hash = XXH3_createState();
    p->scratch = calloc((size_t)p->cut.n_threads, sizeof *p->scratch);
    p->q8_error = calloc((size_t)p->cut.n_threads + 1, sizeof *p->q8_error);
    p->taken = calloc((size_t)p->cut.n_threads, sizeof *p->taken);
    if (!p->hash || !p->scratch || !p->q8_error || !p->taken)
        return no_memory(err);
    for (int i = 0; i < p->cut.n_threads; i++)
        if (!(p->scratch[i] = aligned_alloc(64, p->cut.room)))
            return no_memory(err);
    for (int64_t i = 0; i < p->cut.n; i++)
        p->total += p->cut.pieces[i].bytes;
    return OCT_OK;
}

static const oct_new_tensor *tensor_of(const pass *p, int64_t i)
{
    return &p->c->tensors[p->cut.pieces[i].tensor];
}

/* Feeds a piece to its tensor's checksum; true at the tensor's end, with the checksum in *sum. */
static bool hash_piece(pass *p, int thread, int64_t i, uint64_t *sum)
{
    const oct_piece *q = &p->cut.pieces[i];
    if (i == 0 || p->cut.pieces[i - 1].tensor != q->tensor)
        XXH3_64bits_reset(p->hash);
    XXH3_64bits_update(p->hash, p->scratch[thread], q->bytes);
    if (i + 1 < p->cut.n && p->cut.pieces[i + 1].tensor == q->tensor)
        return false;
    *sum = XXH3_64bits_digest(p->hash);
    return true;
}

static void tell_pass(const pass *p)
{
    const oct_convert_params *params = p->c->params;
    if (params->progress)
        params->progress(params->progress_ctx, &(oct_convert_progress){.phase = p->phase,
                                                                       .done = p->done,
                                                                       .total = p->total,
                                                                       .temp = p->c->output.temp});
}

/* With the loop's lock held. */
static void piece_done(void *ctx, int64_t i)
{
    pass *p = ctx;
    p->done += p->cut.pieces[i].bytes;
    tell_pass(p);
}

/* ---- writing -------------------------------------------------------------------------------- */

static oct_status make_piece(void *ctx, int thread, int64_t i, oct_error *err)
{
    pass *p = ctx;
    p->taken[thread] = oct_resume_take(&p->resume, i, &p->cut.pieces[i], p->scratch[thread]);
    if (p->taken[thread])
        return OCT_OK;
    oct_piece_prefetch(tensor_of(p, i), &p->cut.pieces[i]);
    return oct_piece_make(tensor_of(p, i), &p->cut.pieces[i], p->scratch[thread], err);
}

static oct_status sum_piece(void *ctx, int thread, int64_t i, oct_error *err)
{
    pass *p = ctx;
    uint64_t sum;
    (void)err;
    if (hash_piece(p, thread, i, &sum))
        p->c->tensors[p->cut.pieces[i].tensor].sum = sum;
    return OCT_OK;
}

static oct_status write_piece(void *ctx, int thread, int64_t i, oct_error *err)
{
    pass *p = ctx;
    const oct_piece *q = &p->cut.pieces[i];
    if (p->taken[thread])
        return OCT_OK;
    OCT_TRY(oct_output_write(&p->c->output, p->scratch[thread], q->bytes, q->at, err));
    return oct_resume_mark(&p->resume, i, q, p->scratch[thread], err);
}

/* The temporary file, new or one that an earlier run of the same work has left. */
static oct_status open_output(pass *p, oct_lines *warnings, oct_error *err)
{
    oct_conversion *c = p->c;
    void *header = NULL;
    size_t n = 0;
    uint64_t *offsets = malloc((size_t)c->n_tensors * sizeof *offsets);
    if (!offsets)
        return no_memory(err);
    oct_status s = make_header(c, offsets, &header, &n, err);
    if (s == OCT_OK)
        s = oct_resume_create(&p->resume, &c->output, c->params->out, c->file_bytes, p->cut.n,
                              oct_resume_key(c->source, header, n, &p->cut), warnings, err);
    free(header);
    free(offsets);
    return s;
}

static oct_status write_header(oct_conversion *c, oct_error *err)
{
    void *header = NULL;
    size_t n = 0;
    uint64_t *offsets = malloc((size_t)c->n_tensors * sizeof *offsets);
    if (!offsets)
        return no_memory(err);
    oct_status s = make_header(c, offsets, &header, &n, err);
    if (s == OCT_OK && n != c->header_bytes)
        s = oct_fail(err, OCT_ERR_FORMAT, "the header has %zu bytes, planned were %" PRIu64, n,
                     c->header_bytes);
    if (s == OCT_OK)
        s = oct_output_write(&c->output, header, n, 0, err);
    free(header);
    free(offsets);
    return s;
}

oct_status oct_conversion_write(oct_conversion *c, oct_lines *warnings, oct_error *err)
{
    pass p;
    oct_status s = pass_init(&p, c, OCT_CONVERT_WRITE, err);
    if (s == OCT_OK)
        s = open_output(&p, warnings, err);
    if (s == OCT_OK) {
        tell_pass(&p);
        const ordered o = {.n = p.cut.n,
                           .ctx = &p,
                           .work = make_piece,
                           .turn = sum_piece,
                           .after = write_piece,
                           .done = piece_done,
                           .cancel = c->params->cancel};
        s = run_ordered(&o, p.cut.n_threads, err);
    }
    pass_free(&p);
    OCT_TRY(s);
    return write_header(c, err);
}

/* ---- verifying ------------------------------------------------------------------------------ */

static oct_status verify_piece(void *ctx, int thread, int64_t i, oct_error *err)
{
    pass *p = ctx;
    oct_piece_prefetch(tensor_of(p, i), &p->cut.pieces[i]);
    return oct_piece_verify(tensor_of(p, i), &p->cut.pieces[i], &p->c->output, p->scratch[thread],
                            p->cut.room, &p->q8_error[thread], err);
}

static oct_status check_sum(void *ctx, int thread, int64_t i, oct_error *err)
{
    pass *p = ctx;
    const oct_new_tensor *t = tensor_of(p, i);
    oct_q8_error *sum_error = &p->q8_error[p->cut.n_threads], *e = &p->q8_error[thread];
    uint64_t sum;
    /* In order, so that the sum does not depend on which thread did what. */
    sum_error->sum_sq_err += e->sum_sq_err;
    sum_error->sum_sq_ref += e->sum_sq_ref;
    sum_error->n += e->n;
    if (e->max_abs > sum_error->max_abs)
        sum_error->max_abs = e->max_abs;
    *e = (oct_q8_error){0};
    if (hash_piece(p, thread, i, &sum) && sum != t->sum)
        return oct_fail(err, OCT_ERR_IO,
                        "%s: %s was written with checksum %016" PRIx64
                        ", reading it back gives %016" PRIx64,
                        p->c->output.temp, t->desc.name, t->sum, sum);
    return OCT_OK;
}

/* The header read back: the same configuration, tensors and checksums as planned. */
static oct_status compare_header(const oct_conversion *c, const oct_gguf *g, oct_error *err)
{
    oct_grok_config config;
    const void *sums = NULL, *packing = NULL;
    uint64_t n = 0, n_packing = 0;
    OCT_TRY(oct_grok_config_get(g, &config, err));
    OCT_TRY(oct_gguf_get_array(g, OCT_GROK_KEY_TENSOR_SUMS, OCT_GGUF_U64, &sums, &n, err));
    OCT_TRY(oct_gguf_get_array(g, OCT_GROK_KEY_TENSOR_PACKING, OCT_GGUF_U32, &packing, &n_packing,
                               err));
    bool same =
        n == (uint64_t)c->n_tensors && n_packing == n && oct_gguf_n_tensors(g) == c->n_tensors;
#define OCT_GROK_INT(field, key) same = same && config.field == c->source->config.field;
#define OCT_GROK_FLOAT(field, key) \
    same = same && memcmp(&config.field, &c->source->config.field, sizeof config.field) == 0;
#include "grok_keys.inc"
    for (int64_t i = 0; same && i < c->n_tensors; i++) {
        const oct_new_tensor *t = &c->tensors[i];
        const oct_gguf_tensor *f = oct_gguf_tensor_at(g, i);
        uint64_t sum;
        uint32_t number;
        memcpy(&sum, (const uint8_t *)sums + 8 * i, sizeof sum);
        memcpy(&number, (const uint8_t *)packing + 4 * i, sizeof number);
        same = number == t->desc.packing && strcmp(f->name, t->desc.name) == 0 &&
               f->offset == t->at && f->bytes == t->bytes && f->dtype == t->desc.dtype &&
               sum == t->sum;
    }
    return same ? OCT_OK
                : oct_fail(err, OCT_ERR_IO,
                           "%s: the header read back is not the one that was written",
                           oct_gguf_path(g));
}

static oct_status check_header(const oct_conversion *c, oct_error *err)
{
    oct_gguf *g = NULL;
    void *header = malloc((size_t)c->header_bytes);
    if (!header)
        return no_memory(err);
    oct_status s = oct_output_read(&c->output, header, (size_t)c->header_bytes, 0, err);
    if (s == OCT_OK)
        s = oct_gguf_parse(c->output.temp, header, (size_t)c->header_bytes, c->file_bytes, &g, err);
    if (s == OCT_OK)
        s = compare_header(c, g, err);
    oct_gguf_close(g);
    free(header);
    return s;
}

oct_status oct_conversion_verify(oct_conversion *c, oct_q8_error *q8_error, oct_error *err)
{
    pass p;
    OCT_TRY(check_header(c, err));
    oct_status s = pass_init(&p, c, OCT_CONVERT_VERIFY, err);
    if (s == OCT_OK) {
        tell_pass(&p);
        const ordered o = {.n = p.cut.n,
                           .ctx = &p,
                           .work = verify_piece,
                           .turn = check_sum,
                           .done = piece_done,
                           .cancel = c->params->cancel};
        s = run_ordered(&o, p.cut.n_threads, err);
        *q8_error = p.q8_error[p.cut.n_threads];
    }
    pass_free(&p);
    return s;
}
