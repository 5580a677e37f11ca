#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "convert_impl.h"
#include "new_header.h"
#include "ordered.h"

enum {
    PIECE_BYTES = 8 << 20,
    SCRATCH_BYTES = 384 << 20, /* of all threads; the rest of 512 MiB is for lists and libraries */
    MAX_THREADS = 64
};

static oct_status no_memory(oct_error *err)
{
    return oct_fail(err, OCT_ERR_MEMORY, "out of memory");
}

/* ---- plan ------------------------------------------------------------------------------------ */

/* What the tensors of a kind are made from, in the order of their layout's parts. */
#define GATE_UP                        \
    {                                  \
        2,                             \
        {                              \
            OCT_CKPT_GATE, OCT_CKPT_UP \
        }                              \
    }
#define DOWN              \
    {                     \
        1,                \
        {                 \
            OCT_CKPT_DOWN \
        }                 \
    }
#define QKV                                              \
    {                                                    \
        3,                                               \
        {                                                \
            OCT_CKPT_QUERY, OCT_CKPT_KEY, OCT_CKPT_VALUE \
        }                                                \
    }
#define ATTN_OUT              \
    {                         \
        1,                    \
        {                     \
            OCT_CKPT_ATTN_OUT \
        }                     \
    }
static const struct {
    int n;
    oct_ckpt_role role[OCT_WEIGHT_MAX_PARTS];
} sources[OCT_GROK_KINDS] = {[OCT_GROK_GATE_UP] = GATE_UP,
                             [OCT_GROK_GATE_UP_SCALES] = GATE_UP,
                             [OCT_GROK_DOWN] = DOWN,
                             [OCT_GROK_DOWN_SCALES] = DOWN,
                             [OCT_GROK_QKV] = QKV,
                             [OCT_GROK_QKV_SCALES] = QKV,
                             [OCT_GROK_ATTN_OUT] = ATTN_OUT,
                             [OCT_GROK_ATTN_OUT_SCALES] = ATTN_OUT,
                             [OCT_GROK_EMBEDDING] = {1, {OCT_CKPT_EMBEDDING}},
                             [OCT_GROK_ROUTER] = {1, {OCT_CKPT_ROUTER}},
                             [OCT_GROK_NORM_ATTN_IN] = {1, {OCT_CKPT_NORM_ATTN_IN}},
                             [OCT_GROK_NORM_ATTN_OUT] = {1, {OCT_CKPT_NORM_ATTN_OUT}},
                             [OCT_GROK_NORM_FFN_IN] = {1, {OCT_CKPT_NORM_FFN_IN}},
                             [OCT_GROK_NORM_FFN_OUT] = {1, {OCT_CKPT_NORM_FFN_OUT}},
                             [OCT_GROK_NORM_FINAL] = {1, {OCT_CKPT_NORM_FINAL}}};

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
    OCT_TRY(oct_grok_manifest(&c->config, &c->layouts, &list, &n, err));
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
        for (int k = 0; k < sources[list[i].kind].n; k++)
            t->src[k] = oct_ckpt_leaf_of(c->ckpt, sources[list[i].kind].role[k], list[i].layer);
    }
    free(list);
    c->n_tensors = n;
    tie_scales(c);
    if (c->tokenizer)
        c->tensors[c->n_tensors++] = (oct_new_tensor){.desc = {.kind = OCT_GROK_KINDS,
                                                               .layer = -1,
                                                               .name = OCT_GROK_TOKENIZER,
                                                               .dtype = OCT_GGUF_T_I8,
                                                               .rank = 1,
                                                               .ne = {c->tokenizer_bytes, 1, 1, 1},
                                                               .align = OCT_FILE_ALIGN},
                                                      .raw = c->tokenizer};
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
        s = oct_new_header(&c->config, list, sums, c->n_tensors, offsets, bytes, n, err);
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
    OCT_TRY(oct_grok_layouts_init(&c->config, NULL, &c->layouts, err));
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

/* ---- both passes ----------------------------------------------------------------------------- */

/* One pass over all pieces: writing or verifying. */
typedef struct pass {
    oct_conversion *c;
    oct_piece *pieces;
    int64_t n_pieces;
    oct_convert_phase phase;
    uint64_t done, total;
    XXH3_state_t *hash;
    uint8_t **scratch;      /* [n_threads]: working memory (writing) */
    const uint8_t **made;   /* [n_threads]: the piece a thread has made */
    int64_t *left;          /* [n_pieces]: at the first piece of an expert, pieces not done yet */
    const uint8_t *file;    /* the mapped file (verifying) */
    oct_q8_error *q8_error; /* [n_threads + 1], the last the sum (verifying) */
    int n_threads;
} pass;

static int64_t first_of_expert(const pass *p, int64_t i)
{
    const oct_piece *q = &p->pieces[i];
    while (i > 0 && p->pieces[i - 1].tensor == q->tensor && p->pieces[i - 1].expert == q->expert)
        i--;
    return i;
}

static int wanted_threads(const oct_conversion *c)
{
    long n = c->params->n_threads > 0 ? c->params->n_threads : sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : (int)n;
}

static void pass_free(pass *p)
{
    for (int i = 0; p->scratch && i < p->n_threads; i++)
        free(p->scratch[i]);
    free(p->scratch);
    free(p->made);
    free(p->left);
    free(p->q8_error);
    free(p->pieces);
    XXH3_freeState(p->hash);
}

static oct_status pass_init(pass *p, oct_conversion *c, oct_convert_phase phase, size_t piece_bytes,
                            oct_error *err)
{
    *p = (pass){.c = c, .phase = phase, .n_threads = wanted_threads(c)};
    OCT_TRY(oct_pieces_cut(c->tensors, c->n_tensors, piece_bytes, &p->pieces, &p->n_pieces, err));
    size_t scratch = 0;
    if (phase == OCT_CONVERT_WRITE) {
        scratch = oct_pieces_scratch(c->tensors, p->pieces, p->n_pieces);
        scratch = (scratch + 63) / 64 * 64;
        size_t most = SCRATCH_BYTES / scratch;
        if ((size_t)p->n_threads > most)
            p->n_threads = most ? (int)most : 1;
    }
    p->hash = XXH3_createState();
    p->scratch = calloc((size_t)p->n_threads, sizeof *p->scratch);
    p->made = calloc((size_t)p->n_threads, sizeof *p->made);
    p->left = calloc((size_t)p->n_pieces, sizeof *p->left);
    p->q8_error = calloc((size_t)p->n_threads + 1, sizeof *p->q8_error);
    if (!p->hash || !p->scratch || !p->made || !p->left || !p->q8_error)
        return no_memory(err);
    for (int i = 0; scratch && i < p->n_threads; i++)
        if (!(p->scratch[i] = aligned_alloc(64, scratch)))
            return no_memory(err);
    for (int64_t i = 0; i < p->n_pieces; i++) {
        p->left[first_of_expert(p, i)]++;
        p->total += p->pieces[i].bytes;
    }
    return OCT_OK;
}

static const oct_new_tensor *tensor_of(const pass *p, int64_t i)
{
    return &p->c->tensors[p->pieces[i].tensor];
}

/* Feeds a piece to its tensor's checksum; true at the tensor's end, with the checksum in *sum. */
static bool hash_piece(pass *p, int64_t i, const uint8_t *bytes, uint64_t *sum)
{
    const oct_piece *q = &p->pieces[i];
    if (i == 0 || p->pieces[i - 1].tensor != q->tensor)
        XXH3_64bits_reset(p->hash);
    XXH3_64bits_update(p->hash, bytes, q->bytes);
    if (i + 1 < p->n_pieces && p->pieces[i + 1].tensor == q->tensor)
        return false;
    *sum = XXH3_64bits_digest(p->hash);
    return true;
}

/* With the loop's lock held. */
static void piece_done(void *ctx, int64_t i)
{
    pass *p = ctx;
    p->done += p->pieces[i].bytes;
    if (--p->left[first_of_expert(p, i)] == 0 || tensor_of(p, i)->embedding)
        oct_piece_advise(tensor_of(p, i), &p->pieces[i], true);
    const oct_convert_params *params = p->c->params;
    if (params->progress)
        params->progress(params->progress_ctx, &(oct_convert_progress){.phase = p->phase,
                                                                       .done = p->done,
                                                                       .total = p->total,
                                                                       .temp = p->c->output.temp});
}

static void tell_start(const pass *p)
{
    const oct_convert_params *params = p->c->params;
    if (params->progress)
        params->progress(params->progress_ctx, &(oct_convert_progress){.phase = p->phase,
                                                                       .total = p->total,
                                                                       .temp = p->c->output.temp});
}

/* ---- writing --------------------------------------------------------------------------------- */

static oct_status make_piece(void *ctx, int thread, int64_t i, oct_error *err)
{
    pass *p = ctx;
    const oct_piece *q = &p->pieces[i];
    if (first_of_expert(p, i) == i)
        oct_piece_advise(tensor_of(p, i), q, false);
    return oct_piece_make(tensor_of(p, i), q, p->scratch[thread], &p->made[thread], err);
}

static oct_status sum_piece(void *ctx, int thread, int64_t i, oct_error *err)
{
    pass *p = ctx;
    uint64_t sum;
    (void)err;
    if (hash_piece(p, i, p->made[thread], &sum))
        p->c->tensors[p->pieces[i].tensor].sum = sum;
    return OCT_OK;
}

static oct_status write_piece(void *ctx, int thread, int64_t i, oct_error *err)
{
    pass *p = ctx;
    return oct_output_write(&p->c->output, p->made[thread], p->pieces[i].bytes, p->pieces[i].at,
                            err);
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

oct_status oct_conversion_write(oct_conversion *c, oct_error *err)
{
    pass p;
    oct_status s = pass_init(&p, c, OCT_CONVERT_WRITE, PIECE_BYTES, err);
    if (s == OCT_OK) {
        tell_start(&p);
        const oct_ordered o = {.n = p.n_pieces,
                               .ctx = &p,
                               .work = make_piece,
                               .turn = sum_piece,
                               .after = write_piece,
                               .done = piece_done,
                               .cancel = c->params->cancel};
        s = oct_ordered_run(&o, p.n_threads, err);
    }
    pass_free(&p);
    OCT_TRY(s);
    return write_header(c, err);
}

/* ---- verifying ------------------------------------------------------------------------------- */

static oct_status verify_piece(void *ctx, int thread, int64_t i, oct_error *err)
{
    pass *p = ctx;
    const oct_piece *q = &p->pieces[i];
    return oct_piece_verify(tensor_of(p, i), q, p->file, &p->q8_error[thread], err);
}

static oct_status check_sum(void *ctx, int thread, int64_t i, oct_error *err)
{
    pass *p = ctx;
    const oct_new_tensor *t = tensor_of(p, i);
    oct_q8_error *sum_error = &p->q8_error[p->n_threads], *e = &p->q8_error[thread];
    uint64_t sum;
    /* In order, so that the sum does not depend on which thread did what. */
    sum_error->sum_sq_err += e->sum_sq_err;
    sum_error->sum_sq_ref += e->sum_sq_ref;
    sum_error->n += e->n;
    if (e->max_abs > sum_error->max_abs)
        sum_error->max_abs = e->max_abs;
    *e = (oct_q8_error){0};
    if (hash_piece(p, i, p->file + p->pieces[i].at, &sum) && sum != t->sum)
        return oct_fail(err, OCT_ERR_IO,
                        "%s: %s was written with checksum %016" PRIx64
                        ", reading it back gives %016" PRIx64,
                        p->c->output.temp, t->desc.name, t->sum, sum);
    return OCT_OK;
}

static oct_status drop_piece(void *ctx, int thread, int64_t i, oct_error *err)
{
    pass *p = ctx;
    const oct_piece *q = &p->pieces[i];
    (void)thread;
    (void)err;
    /* Pieces are whole pages, the tokenizer's and small tensors' ends aside. */
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)(p->file + q->at);
    if (q->bytes >= page)
        (void)madvise((void *)(at / page * page), q->bytes / page * page, MADV_DONTNEED);
    return OCT_OK;
}

/* The header read back: the same configuration, tensors and checksums as planned. */
static oct_status check_header(const oct_conversion *c, const oct_gguf *g, oct_error *err)
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
#define OCT_GROK_INT(field, key) same = same && config.field == c->config.field;
#define OCT_GROK_FLOAT(field, key) \
    same = same && memcmp(&config.field, &c->config.field, sizeof config.field) == 0;
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

oct_status oct_conversion_verify(oct_conversion *c, oct_q8_error *q8_error, oct_error *err)
{
    oct_gguf *g = NULL;
    pass p = {0};
    OCT_TRY(oct_gguf_open(c->output.temp, &g, err));
    oct_status s = check_header(c, g, err);
    if (s == OCT_OK)
        s = pass_init(&p, c, OCT_CONVERT_VERIFY, 0, err);
    if (s == OCT_OK) {
        tell_start(&p);
        p.file = oct_gguf_bytes(g);
        const oct_ordered o = {.n = p.n_pieces,
                               .ctx = &p,
                               .work = verify_piece,
                               .turn = check_sum,
                               .after = drop_piece,
                               .done = piece_done,
                               .cancel = c->params->cancel};
        s = oct_ordered_run(&o, p.n_threads, err);
        *q8_error = p.q8_error[p.n_threads];
    }
    pass_free(&p);
    oct_gguf_close(g);
    return s;
}

void oct_conversion_free(oct_conversion *c)
{
    if (c->tokenizer)
        munmap((void *)(uintptr_t)c->tokenizer, c->tokenizer_bytes);
    oct_ckpt_free(c->ckpt);
    free(c->tensors);
}
