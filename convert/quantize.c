/* quantize.c: a model file in other weight types, see quantize.h. Tensors are made one after the
 * other in the order of the new file: packed matrices that change their type expert by expert, in
 * memory, by all threads; everything else is copied. */
#include "quantize.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "convert_impl.h"
#include "model_impl.h"
#include "requantise.h"

enum { PIECE = 8 << 20, PAGE = 4096, MAX_THREADS = 64, LEAST_SEEN = 256 };

typedef struct job {
    const oct_quantize_params *p;
    oct_quantize_report *report;
    const oct_model *model;
    oct_grok_types *types; /* [n_layers] of the new file */
    oct_grok_layouts layouts;
    oct_grok_tensor *list; /* [n] */
    int64_t n;
    uint64_t *offsets, *sums; /* [n + 1] */
    oct_output out;
    uint64_t done, total;
    oct_convert_phase phase;
    XXH3_state_t *hash;
    oct_team *team;
    oct_q4_chooser *chooser;
    float *u;      /* room for a feedback; NULL: not calibrated */
    uintptr_t end; /* of the old file's last tensor in memory */
    struct {
        double sum_sq_err, sum_sq_ref;
    } kind[OCT_GROK_PACKED];
} job;

const char *oct_quantize_kind_name(int kind)
{
    static const char *const names[OCT_QUANTIZE_KINDS] = {[OCT_GROK_GATE_UP] = "ffn_gate_up",
                                                          [OCT_GROK_DOWN] = "ffn_down",
                                                          [OCT_GROK_QKV] = "attn_qkv",
                                                          [OCT_GROK_ATTN_OUT] = "attn_output"};
    _Static_assert((int)OCT_QUANTIZE_KINDS == (int)OCT_GROK_PACKED, "kinds of packed matrices");
    return kind >= 0 && kind < OCT_QUANTIZE_KINDS ? names[kind] : NULL;
}

static oct_status no_memory(oct_error *err)
{
    return oct_fail(err, OCT_ERR_MEMORY, "quantize: out of memory");
}

static void tell(const job *j)
{
    const bool counted = j->phase != OCT_CONVERT_SYNC;
    if (j->p->progress)
        j->p->progress(j->p->progress_ctx,
                       &(oct_convert_progress){j->phase, counted ? j->done : 0,
                                               counted ? j->total : 0, j->out.temp});
}

static oct_status check_cancel(const job *j, oct_error *err)
{
    return oct_cancelled(j->p->cancel) ? oct_fail(err, OCT_ERR_CANCELLED, "interrupted") : OCT_OK;
}

/* Has the disk read what comes `behind` in the old file while what is before it is worked on. */
static void read_ahead(const job *j, const uint8_t *behind, size_t bytes)
{
    const uintptr_t from = (uintptr_t)behind / PAGE * PAGE;
    const size_t left = from < j->end ? j->end - from : 0;
    if (left)
        (void)madvise((void *)from, left < bytes ? left : bytes, MADV_WILLNEED);
}

/* Pages of the old file that are not needed again. */
static void drop(const void *from, size_t bytes)
{
    const uintptr_t lo = (uintptr_t)from / PAGE * PAGE;
    (void)madvise((void *)lo, (uintptr_t)from + bytes - lo, MADV_DONTNEED);
}

/* ---- what becomes of which matrix ------------------------------------------------------------ */

static oct_status apply_rule(job *j, const oct_quantize_rule *r, oct_error *err)
{
    const int64_t n = j->model->config.n_layers;
    if (r->first < 0 || r->last < r->first || r->last >= n)
        return oct_fail(err, OCT_ERR_ARG, "layers %lld to %lld: the model has layers 0 to %lld",
                        (long long)r->first, (long long)r->last, (long long)n - 1);
    if (!oct_weight_type_name(r->type))
        return oct_fail(err, OCT_ERR_ARG, "no weight type %d", r->type);
    for (int64_t i = r->first; i <= r->last; i++)
        for (int k = 0; k < OCT_GROK_PACKED; k++) {
            const bool expert = oct_grok_shard_kind((oct_grok_kind)k) == OCT_SHARD_OF_EXPERTS;
            if (expert ? r->experts : r->attention)
                j->types[i].of[k] = (uint8_t)r->type;
        }
    return OCT_OK;
}

static bool is_q4(int type)
{
    return oct_q4_groups((oct_weight_type)type) != 0;
}

/* Quantising what is quantised already would add error to error. */
static oct_status check_types(const job *j, oct_error *err)
{
    for (int64_t i = 0; i < j->model->config.n_layers; i++)
        for (int k = 0; k < OCT_GROK_PACKED; k++) {
            const int from = j->model->types[i].of[k], to = j->types[i].of[k];
            if (from != to && is_q4(from) && is_q4(to))
                return oct_fail(err, OCT_ERR_UNSUPPORTED,
                                "%s: layer %" PRId64 ", %s is %s already: make %s from the file "
                                "that it was made from",
                                j->p->model_path, i, oct_quantize_kind_name(k),
                                oct_weight_type_name(from), oct_weight_type_name(to));
        }
    return OCT_OK;
}

/* The new file's tensors; the tokenizer's bytes last, if there is one. */
static oct_status list_tensors(job *j, oct_error *err)
{
    const oct_grok_config *c = &j->model->config;
    const oct_gguf_tensor *tokenizer = oct_gguf_find(j->model->file, OCT_GROK_TOKENIZER);
    oct_grok_tensor *list;
    j->types = calloc((size_t)c->n_layers, sizeof *j->types);
    if (!j->types)
        return no_memory(err);
    memcpy(j->types, j->model->types, (size_t)c->n_layers * sizeof *j->types);
    for (int64_t i = 0; i < j->p->n_rules; i++)
        OCT_TRY(apply_rule(j, &j->p->rule[i], err));
    OCT_TRY(check_types(j, err));
    OCT_TRY(oct_grok_layouts_init(c, j->types, &j->layouts, err));
    OCT_TRY(oct_grok_manifest(c, &j->layouts, &list, &j->n, err));
    j->list = realloc(list, (size_t)(j->n + 1) * sizeof *list);
    if (!j->list) {
        free(list);
        return no_memory(err);
    }
    if (tokenizer) {
        oct_grok_tensor *t = &j->list[j->n++];
        *t = (oct_grok_tensor){.kind = OCT_GROK_KINDS,
                               .layer = -1,
                               .name = OCT_GROK_TOKENIZER,
                               .dtype = OCT_GGUF_T_I8,
                               .rank = 1,
                               .ne = {tokenizer->ne[0], 1, 1, 1},
                               .align = OCT_FILE_ALIGN};
    }
    return OCT_OK;
}

static oct_status make_header(const job *j, void **bytes, size_t *n, oct_error *err)
{
    const oct_grok_tensor **t = calloc((size_t)j->n + 1, sizeof *t);
    if (!t)
        return no_memory(err);
    for (int64_t i = 0; i < j->n; i++)
        t[i] = &j->list[i];
    oct_status s = oct_new_header(&j->model->config, t, j->sums, j->n, j->offsets, bytes, n, err);
    free(t);
    return s;
}

static oct_status tensor_bytes(const oct_grok_tensor *t, uint64_t *bytes, oct_error *err)
{
    if (!oct_gguf_tensor_bytes(t->dtype, t->rank, t->ne, bytes))
        return oct_fail(err, OCT_ERR_SHAPE, "%s: its size overflows", t->name);
    return OCT_OK;
}

static oct_status plan(job *j, oct_error *err)
{
    void *header = NULL;
    size_t n = 0;
    OCT_TRY(list_tensors(j, err));
    j->offsets = calloc((size_t)j->n + 1, sizeof *j->offsets);
    j->sums = calloc((size_t)j->n + 1, sizeof *j->sums);
    if (!j->offsets || !j->sums)
        return no_memory(err);
    OCT_TRY(make_header(j, &header, &n, err));
    free(header);
    for (int64_t i = 0; i < j->n; i++) {
        uint64_t bytes;
        OCT_TRY(tensor_bytes(&j->list[i], &bytes, err));
        j->total += bytes;
        j->report->bytes = j->offsets[i] + bytes;
    }
    for (int64_t i = 0; i < oct_gguf_n_tensors(j->model->file); i++) {
        const oct_gguf_tensor *t = oct_gguf_tensor_at(j->model->file, i);
        const uintptr_t end = (uintptr_t)t->data + t->bytes;
        j->end = end > j->end ? end : j->end;
    }
    j->report->bytes = (j->report->bytes + OCT_FILE_ALIGN - 1) / OCT_FILE_ALIGN * OCT_FILE_ALIGN;
    j->report->bytes_before = j->model->info.file_bytes;
    return OCT_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static oct_status put(job *j, const void *data, size_t n, uint64_t at, oct_error *err)
{
    OCT_TRY(check_cancel(j, err));
    XXH3_64bits_update(j->hash, data, n);
    OCT_TRY(oct_output_write(&j->out, data, n, at, err));
    j->done += n;
    tell(j);
    return OCT_OK;
}

static oct_status copy_tensor(job *j, const oct_gguf_tensor *from, uint64_t at, oct_error *err)
{
    const uint8_t *bytes = from->data;
    for (uint64_t i = 0, n; i < from->bytes; i += n) {
        n = from->bytes - i < PIECE ? from->bytes - i : PIECE;
        read_ahead(j, bytes + i + n, 4 * PIECE);
        OCT_TRY(put(j, bytes + i, (size_t)n, at + i, err));
        drop(bytes + i, (size_t)n);
    }
    return OCT_OK;
}

/* The feedback of an expert's matrix, if it has seen enough; else *fed is NULL. Told once for both
 * matrices. False: no memory. */
static bool feedback_of(job *j, const oct_grok_tensor *t, int64_t expert, oct_feedback *f,
                        const oct_feedback **fed)
{
    const oct_moments *m = j->p->moments;
    const int which = t->kind == OCT_GROK_DOWN;
    const int64_t least = j->p->least_seen ? j->p->least_seen : LEAST_SEEN;
    *fed = NULL;
    if (!j->u || (t->kind != OCT_GROK_GATE_UP && !which))
        return true;
    const int64_t seen = oct_moments_seen(m, t->layer, expert);
    *f = (oct_feedback){j->u, oct_moments_inputs(m, which)};
    bool good = seen >= least;
    if (good && !oct_feedback_make(j->team, m, t->layer, expert, which, j->u, &good))
        return false;
    if (!which) {
        j->report->n_calibrated += good;
        j->report->n_fallen_back += !good;
    }
    if (!good && (!which || seen >= least))
        oct_lines_add(&j->report->warnings,
                      "layer %" PRId64 ", expert %" PRId64 ": saw %" PRId64
                      " tokens of the text%s: not calibrated",
                      t->layer, expert, seen, seen >= least ? ", with moments of no use" : "");
    *fed = good ? f : NULL;
    return true;
}

static oct_status requantise_tensor(job *j, const oct_grok_tensor *t, const oct_weight *from,
                                    uint64_t at, uint8_t *unit, oct_error *err)
{
    const oct_weight_layout *to = oct_grok_layout_of(&j->layouts, t->kind, t->layer);
    const size_t bytes = to->unit_stride * (size_t)to->n_slices;
    const size_t old = from->layout.unit_stride * (size_t)from->layout.n_slices;
    const uint8_t *data = from->data;
    oct_requantise_error e = {0};
    oct_quantize_kind *kind = &j->report->kind[t->kind];
    for (int64_t x = 0; x < to->n_experts; x++, data += old) {
        oct_feedback f;
        const oct_feedback *fed;
        if (!feedback_of(j, t, x, &f, &fed))
            return no_memory(err);
        memset(unit, 0, bytes);
        read_ahead(j, data + old, old);
        if (!oct_requantise(j->team, from, x, to, j->chooser, fed, j->p->cancel, unit, &e))
            return no_memory(err);
        OCT_TRY(put(j, unit, bytes, at + (uint64_t)x * bytes, err));
        drop(data, old);
    }
    j->kind[t->kind].sum_sq_err += e.sum_sq_err;
    j->kind[t->kind].sum_sq_ref += e.sum_sq_ref;
    kind->largest = e.largest > kind->largest ? e.largest : kind->largest;
    kind->n_matrices++;
    kind->bytes += bytes * (size_t)to->n_experts;
    kind->bytes_before += old * (size_t)from->layout.n_experts;
    return OCT_OK;
}

static oct_status write_tensor(job *j, int64_t i, oct_error *err)
{
    const oct_grok_tensor *t = &j->list[i];
    const oct_gguf_tensor *old = oct_gguf_find(j->model->file, t->name);
    XXH3_64bits_reset(j->hash);
    oct_status s = OCT_OK;
    if ((int)t->kind < OCT_GROK_PACKED &&
        j->types[t->layer].of[t->kind] != j->model->types[t->layer].of[t->kind]) {
        const oct_weight *from = oct_grok_weight(&j->model->layers[t->layer], t->kind);
        uint8_t *unit = malloc(t->ne[0] * t->ne[1]);
        s = unit ? requantise_tensor(j, t, from, j->offsets[i], unit, err) : no_memory(err);
        free(unit);
    } else {
        s = copy_tensor(j, old, j->offsets[i], err);
    }
    j->sums[i] = XXH3_64bits_digest(j->hash);
    return s;
}

static oct_status write_header(job *j, oct_error *err)
{
    void *header = NULL;
    size_t n = 0;
    OCT_TRY(make_header(j, &header, &n, err));
    oct_status s = oct_output_write(&j->out, header, n, 0, err);
    free(header);
    return s;
}

/* Reads everything back, against the checksums of what was meant to be written. */
static void verified(void *ctx, uint64_t done)
{
    job *j = ctx;
    j->done = done < j->total ? done : j->total;
    tell(j);
}

static oct_status write_all(job *j, oct_error *err)
{
    j->phase = OCT_CONVERT_WRITE;
    tell(j);
    for (int64_t i = 0; i < j->n; i++)
        OCT_TRY(write_tensor(j, i, err));
    OCT_TRY(write_header(j, err));
    j->phase = OCT_CONVERT_SYNC;
    tell(j);
    OCT_TRY(oct_output_sync(&j->out, err));
    j->phase = OCT_CONVERT_VERIFY;
    j->done = 0;
    tell(j);
    OCT_TRY(oct_verify(j->out.temp, verified, j, j->p->cancel, err));
    OCT_TRY(check_cancel(j, err));
    OCT_TRY(oct_output_publish(&j->out, err));
    j->phase = OCT_CONVERT_DONE;
    j->done = j->total;
    tell(j);
    return OCT_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static oct_status prepare(job *j, oct_error *err)
{
    const long wanted = j->p->n_threads > 0 ? j->p->n_threads : sysconf(_SC_NPROCESSORS_ONLN);
    const int n_threads = wanted < 1 ? 1 : wanted > MAX_THREADS ? MAX_THREADS : (int)wanted;
    j->hash = XXH3_createState();
    j->chooser = malloc(sizeof *j->chooser);
    if (j->p->moments) {
        const size_t x = oct_feedback_floats(oct_moments_inputs(j->p->moments, 0)),
                     h = oct_feedback_floats(oct_moments_inputs(j->p->moments, 1));
        j->u = malloc((x > h ? x : h) * sizeof *j->u);
    }
    if (!j->hash || !j->chooser || (j->p->moments && !j->u))
        return no_memory(err);
    oct_q4_chooser_init(j->chooser);
    return oct_team_new(n_threads, NULL, &j->team, err);
}

static void report_errors(const job *j)
{
    for (int k = 0; k < OCT_GROK_PACKED; k++) {
        const double err = j->kind[k].sum_sq_err, ref = j->kind[k].sum_sq_ref;
        j->report->kind[k].error = err > 0 ? sqrt(err / ref) : 0;
    }
}

static oct_status quantize(job *j, oct_error *err)
{
    OCT_TRY(oct_model_holds(j->model, &(oct_shard){.size = 1}, err));
    OCT_TRY(oct_output_check(j->p->out, &j->p->model_path, 1, err));
    OCT_TRY(plan(j, err));
    OCT_TRY(prepare(j, err));
    OCT_TRY(oct_output_room(j->p->out, j->report->bytes, err));
    OCT_TRY(oct_output_create(&j->out, j->p->out, j->report->bytes, &j->report->warnings, err));
    OCT_TRY(write_all(j, err));
    report_errors(j);
    return OCT_OK;
}

oct_status oct_quantize(const oct_quantize_params *p, oct_quantize_report *report, oct_error *err)
{
    job j = {.p = p, .report = report, .model = p->model, .out = {.fd = -1, .from = p->model_path}};
    *report = (oct_quantize_report){0};
    oct_status s = quantize(&j, err);
    oct_output_close(&j.out);
    oct_team_free(j.team);
    XXH3_freeState(j.hash);
    free(j.u);
    free(j.chooser);
    free(j.sums);
    free(j.offsets);
    free(j.list);
    free(j.types);
    return s;
}
