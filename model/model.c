/* model.c: opening a model file: every tensor is found, checked and given its place. */
#include <stdlib.h>
#include <string.h>

#include "model_impl.h"
#include "utf8.h"

#ifndef OCT_VERSION
#error "the build defines OCT_VERSION"
#endif

const char *oct_version(void)
{
    return OCT_VERSION;
}

static oct_status shape_error(const oct_gguf *g, const oct_grok_tensor *want,
                              const oct_gguf_tensor *have, oct_error *err)
{
    return oct_fail(
        err, OCT_ERR_SHAPE,
        "%s: tensor %s: expected type %u [%llu, %llu, %llu], found type %u [%llu, %llu, %llu]",
        oct_gguf_path(g), want->name, want->dtype, (unsigned long long)want->ne[0],
        (unsigned long long)want->ne[1], (unsigned long long)want->ne[2], have->dtype,
        (unsigned long long)have->ne[0], (unsigned long long)have->ne[1],
        (unsigned long long)have->ne[2]);
}

static oct_plain plain(const char *name, int64_t rows, int64_t cols, const void *data)
{
    return (oct_plain){.name = name, .rows = rows, .cols = cols, .data = data};
}

static void bind_packed(oct_model *m, const oct_grok_tensor *t, const oct_gguf_tensor *have)
{
    const oct_grok_kind kind = oct_grok_weights_of(t->kind);
    oct_weight *w = oct_grok_weight(&m->layers[t->layer], kind);
    if (t->kind != kind) {
        w->scales = have->data;
        return;
    }
    w->name = have->name;
    w->layout = *oct_grok_layout_of(&m->layouts, kind, t->layer);
    w->kind = oct_grok_shard_kind(kind);
    w->data = have->data;
}

static void bind(oct_model *m, const oct_grok_tensor *t, const oct_gguf_tensor *have)
{
    oct_grok_layer *w = t->layer >= 0 ? &m->layers[t->layer] : NULL;
    const oct_grok_embedding *e = &m->layouts.embedding;
    int64_t d = m->config.d_model;
    oct_plain norm = plain(have->name, 1, d, have->data);
    switch (t->kind) {
    case OCT_GROK_GATE_UP:
    case OCT_GROK_DOWN:
    case OCT_GROK_QKV:
    case OCT_GROK_ATTN_OUT:
    case OCT_GROK_GATE_UP_SCALES:
    case OCT_GROK_DOWN_SCALES:
    case OCT_GROK_QKV_SCALES:
    case OCT_GROK_ATTN_OUT_SCALES: bind_packed(m, t, have); break;
    case OCT_GROK_ROUTER: w->router = plain(have->name, m->config.n_experts, d, have->data); break;
    case OCT_GROK_NORM_ATTN_IN: w->norm_attn_in = norm; break;
    case OCT_GROK_NORM_ATTN_OUT: w->norm_attn_out = norm; break;
    case OCT_GROK_NORM_FFN_IN: w->norm_ffn_in = norm; break;
    case OCT_GROK_NORM_FFN_OUT: w->norm_ffn_out = norm; break;
    case OCT_GROK_NORM_FINAL: m->norm_final = norm; break;
    case OCT_GROK_EMBEDDING:
        m->embedding = (oct_table){have->data, m->config.n_vocab, e->slice_rows, e->slice_rows_pad,
                                   d,          m->config.n_slices};
        break;
    case OCT_GROK_KINDS: break;
    }
}

/* Checks every tensor of the manifest against the file and binds it; none may be missing. Tensors
 * the manifest does not know are refused: they would be weights that nobody multiplies. */
static oct_status bind_all(oct_model *m, oct_error *err)
{
    oct_grok_tensor *list;
    int64_t n;
    OCT_TRY(oct_grok_manifest(&m->config, &m->layouts, &list, &n, err));
    oct_status status = OCT_OK;
    for (int64_t i = 0; i < n && status == OCT_OK; i++) {
        const oct_gguf_tensor *have = oct_gguf_find(m->file, list[i].name);
        if (!have)
            status = oct_fail(err, OCT_ERR_FORMAT, "%s: tensor %s is missing",
                              oct_gguf_path(m->file), list[i].name);
        else if (have->dtype != list[i].dtype || memcmp(have->ne, list[i].ne, sizeof have->ne) != 0)
            status = shape_error(m->file, &list[i], have, err);
        else if (have->offset % list[i].align != 0)
            status =
                oct_fail(err, OCT_ERR_FORMAT, "%s: tensor %s at %llu, expected a multiple of %zu",
                         oct_gguf_path(m->file), list[i].name, (unsigned long long)have->offset,
                         list[i].align);
        else
            bind(m, &list[i], have);
    }
    free(list);
    OCT_TRY(status);
    int64_t known = n + (oct_gguf_find(m->file, OCT_GROK_TOKENIZER) ? 1 : 0);
    if (oct_gguf_n_tensors(m->file) != known)
        return oct_fail(
            err, OCT_ERR_FORMAT, "%s: %lld tensors, expected %lld for this configuration",
            oct_gguf_path(m->file), (long long)oct_gguf_n_tensors(m->file), (long long)known);
    return OCT_OK;
}

/* A part holds the runs that follow from its rank, neither more nor less: then whatever a session
 * of that rank reads is there. */
static oct_status check_part(const oct_model *m, oct_error *err)
{
    const oct_part *have = oct_gguf_part(m->file);
    oct_shard shard;
    oct_part want;
    if (!have)
        return OCT_OK;
    const char *wrong = oct_shard_make(have->layout, have->rank, have->size, m->config.n_slices,
                                       m->config.n_experts, &shard);
    if (wrong)
        return oct_fail(err, OCT_ERR_FORMAT, "%s: a part for %d ranks, but %s",
                        oct_gguf_path(m->file), have->size, wrong);
    oct_status s = oct_model_part(m, &shard, &want, err);
    bool same = s == OCT_OK && want.n_runs == have->n_runs;
    for (int64_t i = 0; same && i < want.n_runs; i++)
        same = want.run[i].at == have->run[i].at && want.run[i].bytes == have->run[i].bytes;
    free(want.run);
    char name[OCT_PART_NAME_MAX];
    if (s == OCT_OK && !same)
        s = oct_fail(err, OCT_ERR_FORMAT, "%s: does not hold what the part of %s should",
                     oct_gguf_path(m->file),
                     oct_part_name(have->layout, have->rank, have->size, name));
    return s;
}

static oct_status open_tokenizer(oct_model *m, oct_error *err)
{
    const oct_gguf_tensor *t = oct_gguf_find(m->file, OCT_GROK_TOKENIZER);
    if (!t)
        return OCT_OK;
    if (t->dtype != OCT_GGUF_T_I8 || t->rank != 1)
        return oct_fail(err, OCT_ERR_FORMAT, "%s: tensor %s is not a row of bytes",
                        oct_gguf_path(m->file), t->name);
    oct_error e = {0};
    const oct_status s = oct_spm_new(t->data, t->bytes, &m->tokenizer, &e);
    if (s != OCT_OK)
        return oct_fail(err, s, "%s: %s", oct_gguf_path(m->file), e.text);
    if (oct_spm_size(m->tokenizer) > m->config.n_vocab)
        return oct_fail(
            err, OCT_ERR_SHAPE, "%s: the tokenizer has %d pieces, the embedding %lld rows",
            oct_gguf_path(m->file), oct_spm_size(m->tokenizer), (long long)m->config.n_vocab);
    return OCT_OK;
}

static oct_status fill_info(oct_model *m, oct_error *err)
{
    const oct_grok_config *c = &m->config;
    oct_model_info *i = &m->info;
    i->n_layers = c->n_layers;
    i->n_vocab = c->n_vocab;
    i->n_ctx = c->n_ctx;
    i->d_model = c->d_model;
    i->n_q_heads = c->n_q_heads;
    i->n_kv_heads = c->n_kv_heads;
    i->head_dim = c->head_dim;
    i->d_ff = c->d_ff;
    i->n_experts = c->n_experts;
    i->n_experts_used = c->n_used;
    i->n_slices = c->n_slices;
    i->embedding_scale = c->embedding_scale;
    i->output_scale = c->output_scale;
    i->attn_scale = c->attn_scale;
    i->attn_cap = c->attn_cap;
    i->rope_base = c->rope_base;
    i->norm_eps = c->norm_eps;
    i->pad_id = (int32_t)c->pad_id;
    i->eos_id = (int32_t)c->eos_id;
    i->has_tokenizer = m->tokenizer != NULL;
    const oct_part *part = oct_gguf_part(m->file);
    i->file_bytes = part ? part->file_bytes : oct_gguf_file_bytes(m->file);
    i->part_size = part ? part->size : 0;
    i->part_rank = part ? part->rank : 0;
    i->part_by = part ? part->layout : OCT_SHARD_SLICE;
    const oct_grok_bytes bytes = oct_grok_weight_bytes(c, &m->layouts, NULL);
    i->weight_bytes = bytes.held;
    i->active_bytes = bytes.common + (uint64_t)c->n_used * bytes.expert;
    uint64_t format;
    OCT_TRY(oct_gguf_get_u64(m->file, "octet.format", &format, err));
    i->format = (int)format;
    return oct_gguf_get_u64(m->file, OCT_GROK_KEY_HEADER_SUM, &i->fingerprint, err);
}

/* fd -1: of the path. */
static oct_status open_all(oct_model *m, int fd, const char *path, oct_error *err)
{
    OCT_TRY(fd < 0 ? oct_gguf_open(path, &m->file, err)
                   : oct_gguf_open_fd(fd, path, &m->file, err));
    OCT_TRY(oct_grok_config_get(m->file, &m->config, err));
    OCT_TRY(oct_grok_types_get(m->file, &m->config, &m->types, err));
    oct_error why = {0};
    oct_status status = oct_grok_layouts_init(&m->config, m->types, &m->layouts, &why);
    if (status != OCT_OK)
        return oct_fail(err, status, "%s: %s", path, why.text);
    m->layers = calloc((size_t)m->config.n_layers, sizeof *m->layers);
    if (!m->layers)
        return oct_fail(err, OCT_ERR_MEMORY, "%s: out of memory for %lld layers", path,
                        (long long)m->config.n_layers);
    OCT_TRY(bind_all(m, err));
    OCT_TRY(check_part(m, err));
    OCT_TRY(open_tokenizer(m, err));
    return fill_info(m, err);
}

oct_status oct_model_open(const char *path, oct_model **out, oct_error *err)
{
    return oct_model_open_fd(-1, path, out, err);
}

oct_status oct_model_open_fd(int fd, const char *path, oct_model **out, oct_error *err)
{
    *out = NULL;
    oct_model *m = calloc(1, sizeof *m);
    if (!m)
        return oct_fail(err, OCT_ERR_MEMORY, "model: out of memory");
    m->uses = calloc(1, sizeof *m->uses);
    if (!m->uses) {
        free(m);
        return oct_fail(err, OCT_ERR_MEMORY, "model: out of memory");
    }
    pthread_mutex_init(&m->uses->lock, NULL);
    oct_status status = open_all(m, fd, path, err);
    if (status != OCT_OK) {
        oct_model_close(m);
        return status;
    }
    *out = m;
    return OCT_OK;
}

void oct_model_close(oct_model *m)
{
    if (!m)
        return;
    oct_spm_free(m->tokenizer);
    free(m->layers);
    free(m->types);
    oct_gguf_close(m->file);
    pthread_mutex_destroy(&m->uses->lock);
    free(m->uses);
    free(m);
}

const oct_model_info *oct_model_get_info(const oct_model *m)
{
    return &m->info;
}

static oct_status need_tokenizer(const oct_model *m, oct_error *err)
{
    if (m->tokenizer)
        return OCT_OK;
    return oct_fail(err, OCT_ERR_UNSUPPORTED, "%s: the file holds no tokenizer",
                    oct_gguf_path(m->file));
}

oct_status oct_encode(const oct_model *m, const char *text, size_t n, int32_t **ids, size_t *n_ids,
                      oct_error *err)
{
    *ids = NULL;
    *n_ids = 0;
    OCT_TRY(need_tokenizer(m, err));
    size_t valid = oct_utf8_valid(text, n);
    if (valid != n)
        return oct_fail(err, OCT_ERR_ARG, "text: byte 0x%02x at offset %zu is not UTF-8",
                        (unsigned char)text[valid], valid);
    return oct_spm_encode(m->tokenizer, text, n, ids, n_ids, err);
}

oct_status oct_decode(const oct_model *m, const int32_t *ids, size_t n_ids, char **text, size_t *n,
                      oct_error *err)
{
    *text = NULL;
    *n = 0;
    OCT_TRY(need_tokenizer(m, err));
    return oct_spm_decode(m->tokenizer, ids, n_ids, text, n, err);
}

const char *oct_token_bytes(const oct_model *m, int32_t id, size_t *n)
{
    *n = 0;
    return m->tokenizer ? oct_spm_bytes(m->tokenizer, id, n) : NULL;
}
