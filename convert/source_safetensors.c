/* source_safetensors.c: Grok-1 as Hugging Face has it: bf16 matrices [out][in] in safetensors
 * (hub.h), under either of two schemes of names, and the numbers of config.json (hparams.h). What
 * was int8 in xAI's release becomes int8 again (recovery.h). */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "f16.h"
#include "file_map.h"
#include "hparams.h"
#include "hub.h"
#include "recovery.h"
#include "source.h"

enum {
    SCHEMES = 2,
    MAX_RANK = 2,
    MAX_EXPERTS = OCT_WEIGHT_MAX_EXPERTS,
    NAME = 120,
    COMPARED = 16 << 10, /* bytes of the head that are compared at once */
    MAX_PROBLEMS = 1000  /* lines; a file that tells of thousands of layers has no more to say */
};

/* Sizes by letter, as dim_letters below. */
static const char dim_letters[] = "VDFEQK";
static const oct_ckpt_dim dims[] = {OCT_CKPT_VOCAB,   OCT_CKPT_MODEL,   OCT_CKPT_FFN,
                                    OCT_CKPT_EXPERTS, OCT_CKPT_Q_WIDTH, OCT_CKPT_KV_WIDTH};

/* Names by scheme, behind the prefix of the layer, %d being the expert; "scale" and "weight" of
 * norms are the same. Shapes are [out][in]. */
static const struct {
    const char *name[SCHEMES], *shape;
} roles[OCT_ROLES] = {
    [OCT_ROLE_GATE] = {{"moe.%d.linear.weight", "moe_block.experts.%d.linear.weight"}, "FD"},
    [OCT_ROLE_DOWN] = {{"moe.%d.linear_1.weight", "moe_block.experts.%d.linear_1.weight"}, "DF"},
    [OCT_ROLE_UP] = {{"moe.%d.linear_v.weight", "moe_block.experts.%d.linear_v.weight"}, "FD"},
    [OCT_ROLE_KEY] = {{"multi_head_attention.key.weight", "attn.k_proj.weight"}, "KD"},
    [OCT_ROLE_ATTN_OUT] = {{"multi_head_attention.linear.weight", "attn.o_proj.weight"}, "DQ"},
    [OCT_ROLE_QUERY] = {{"multi_head_attention.query.weight", "attn.q_proj.weight"}, "QD"},
    [OCT_ROLE_VALUE] = {{"multi_head_attention.value.weight", "attn.v_proj.weight"}, "KD"},
    [OCT_ROLE_NORM_ATTN_IN] = {{"rms_norm.weight", "pre_attn_norm.scale"}, "D"},
    [OCT_ROLE_NORM_ATTN_OUT] = {{"rms_norm_1.weight", "post_attn_norm.scale"}, "D"},
    [OCT_ROLE_NORM_FFN_IN] = {{"rms_norm_2.weight", "pre_moe_norm.scale"}, "D"},
    [OCT_ROLE_NORM_FFN_OUT] = {{"rms_norm_3.weight", "post_moe_norm.scale"}, "D"},
    [OCT_ROLE_ROUTER] = {{"router.weight", "moe_block.gate.weight"}, "ED"},
    [OCT_ROLE_EMBEDDING] = {{"transformer.in_out_embed.weight", "model.embed_tokens.weight"}, "VD"},
    [OCT_ROLE_NORM_FINAL] = {{"transformer.rms_norm.weight", "model.norm.scale"}, "D"}};
static const char *const prefixes[SCHEMES] = {"transformer.decoder_layer", "model.layers"};
static const char head_name[] = "lm_head.weight";

/* The tensors of a role and layer: one, or one for each expert. */
typedef struct matrix {
    oct_role role;
    int64_t layer, first_scale;
    const oct_hub_entry **of; /* [n_experts], a part of st.entry */
} matrix;

typedef struct st {
    oct_source base;
    oct_hub *hub;
    oct_recovery *recovery;
    int scheme;
    oct_ckpt shape; /* layers and sizes; no files */
    matrix *matrix; /* [n_layers][OCT_ROLE_EMBEDDING], then embedding and final norm */
    const oct_hub_entry **entry;
    const oct_hub_entry *head; /* beside the embedding; NULL: none */
} st;

static st *st_of(const oct_source *s)
{
    return (st *)(uintptr_t)s;
}

static bool is_expert(oct_role role)
{
    return role <= OCT_ROLE_UP;
}

static bool is_int8(oct_role role)
{
    return role <= OCT_ROLE_VALUE;
}

/* ---- which tensor is what ------------------------------------------------------------------- */

static void name_of(int scheme, oct_role role, int64_t layer, int64_t expert, char name[NAME])
{
    size_t n = 0;
    if (role < OCT_ROLE_EMBEDDING)
        n = (size_t)snprintf(name, NAME, "%s.%" PRId64 ".", prefixes[scheme], layer);
    if (is_expert(role)) { /* the names have one %d */
        const char *text = roles[role].name[scheme], *mark = strchr(text, '%');
        snprintf(name + n, NAME - n, "%.*s%d%s", (int)(mark - text), text, (int)expert, mark + 2);
    } else {
        snprintf(name + n, NAME - n, "%s", roles[role].name[scheme]);
    }
}

/* *name is the one that was found, or the one that should be there. */
static const oct_hub_entry *find(const st *x, oct_role role, int64_t layer, int64_t expert,
                                 char name[NAME])
{
    char other[NAME];
    name_of(x->scheme, role, layer, expert, name);
    const oct_hub_entry *e = oct_hub_find_tensor(x->hub, name);
    const size_t n = strlen(name), k = strlen("scale");
    if (e || n < k || strcmp(name + n - k, "scale") != 0)
        return e;
    snprintf(other, sizeof other, "%.*sweight", (int)(n - k), name);
    e = oct_hub_find_tensor(x->hub, other);
    if (e)
        memcpy(name, other, sizeof other);
    return e;
}

/* The scheme whose names the files have. */
static oct_status find_scheme(st *x, oct_error *err)
{
    char name[NAME];
    for (x->scheme = 0; x->scheme < SCHEMES; x->scheme++)
        if (find(x, OCT_ROLE_ROUTER, 0, 0, name))
            return OCT_OK;
    const char *first = x->hub->n_entries ? x->hub->entry[0].tensor->name : "no tensor";
    const bool mixtral =
        oct_hub_find_tensor(x->hub, "model.layers.0.block_sparse_moe.gate.weight") != NULL;
    return oct_fail(err, OCT_ERR_UNSUPPORTED,
                    "%s: %s (its first tensor is \"%.80s\"); expected a mixture of experts with "
                    "Grok-1's names, transformer.decoder_layer.0.router.weight ... or "
                    "model.layers.0.moe_block.gate.weight ...",
                    x->hub->dir,
                    mixtral ? "the names of Grok-2 or Mixtral, which octet does not run"
                            : "a model with other names",
                    first);
}

static bool is_plain(oct_st_dtype t)
{
    return t == OCT_ST_BF16 || t == OCT_ST_F32;
}

/* Sizes: each is what the first tensor with it says, and all others have to agree. */
static oct_status find_sizes(st *x, const oct_hparams *h, oct_lines *problems, oct_error *err)
{
    static const oct_role from[] = {OCT_ROLE_ROUTER, OCT_ROLE_EMBEDDING, OCT_ROLE_GATE,
                                    OCT_ROLE_QUERY, OCT_ROLE_KEY};
    char name[NAME];
    oct_ckpt *c = &x->shape;
    for (c->n_layers = 0; find(x, OCT_ROLE_ROUTER, c->n_layers, 0, name);)
        c->n_layers++;
    if (h->given[OCT_HP_NUM_LAYERS])
        c->n_layers = (int64_t)h->value[OCT_HP_NUM_LAYERS];
    if (c->n_layers > OCT_GROK_MAX_LAYERS)
        return oct_fail(err, OCT_ERR_UNSUPPORTED,
                        "%s: %" PRId64 " layers; at most %d are supported", c->dir, c->n_layers,
                        OCT_GROK_MAX_LAYERS);
    for (size_t i = 0; i < sizeof from / sizeof *from; i++) {
        const oct_hub_entry *e = find(x, from[i], 0, 0, name);
        if (!e && from[i] == OCT_ROLE_EMBEDDING)
            e = oct_hub_find_tensor(x->hub, head_name);
        if (!e || e->tensor->rank != 2) {
            char shape[NAME] = "none";
            if (e)
                oct_st_shape_text(e->tensor, shape);
            return oct_fail(err, OCT_ERR_FORMAT, "%s: tensor %s: expected a matrix, found %s",
                            c->dir, name, shape);
        }
        for (int k = 0; k < MAX_RANK; k++)
            c->dim[dims[strchr(dim_letters, roles[from[i]].shape[k]) - dim_letters]] =
                e->tensor->shape[k];
    }
    if (c->dim[OCT_CKPT_EXPERTS] < 2 || c->dim[OCT_CKPT_EXPERTS] > MAX_EXPERTS)
        oct_lines_add(problems, "%" PRId64 " experts; expected 2 to %d", c->dim[OCT_CKPT_EXPERTS],
                      MAX_EXPERTS);
    return OCT_OK;
}

static void check_tensor(const st *x, oct_role role, const oct_hub_entry *e, oct_lines *problems)
{
    oct_st_tensor want = {.type = "BF16", .rank = (int)strlen(roles[role].shape)};
    char expected[NAME], found[NAME];
    bool same = e->tensor->rank == want.rank && is_plain(e->tensor->dtype);
    for (int i = 0; i < want.rank; i++) {
        want.shape[i] = x->shape.dim[dims[strchr(dim_letters, roles[role].shape[i]) - dim_letters]];
        same = same && e->tensor->shape[i] == want.shape[i];
    }
    oct_st_shape_text(&want, expected);
    oct_st_shape_text(e->tensor, found);
    if (!same)
        oct_lines_add(problems, "%s: tensor %s: expected %s (or F32), found %s", e->shard->file,
                      e->tensor->name, expected, found);
}

/* One matrix: where its tensors are. */
static void take_tensors(st *x, matrix *m, oct_lines *problems)
{
    const int64_t n = is_expert(m->role) ? x->shape.dim[OCT_CKPT_EXPERTS] : 1;
    char name[NAME];
    for (int64_t e = 0; e < n; e++) {
        m->of[e] = find(x, m->role, m->layer, e, name);
        if (!m->of[e] && m->role == OCT_ROLE_EMBEDDING) /* tied: either may have been left out */
            m->of[e] = oct_hub_find_tensor(x->hub, head_name);
        if (!m->of[e])
            oct_lines_add(problems, "tensor %s: in none of the files", name);
        else
            check_tensor(x, m->role, m->of[e], problems);
        if (m->of[e] && m->of[e]->tensor->dtype != m->of[0]->tensor->dtype)
            oct_lines_add(problems, "%s: tensor %s: %s, but that of the first expert %s",
                          m->of[e]->shard->file, name, m->of[e]->tensor->type,
                          m->of[0]->tensor->type);
    }
}

static oct_status take_all(st *x, oct_lines *problems, oct_error *err)
{
    const int64_t n_experts = x->shape.dim[OCT_CKPT_EXPERTS], n_layers = x->shape.n_layers;
    const int64_t per_layer = 3 * n_experts + OCT_ROLE_EMBEDDING - 3;
    const int64_t n = n_layers * OCT_ROLE_EMBEDDING + 2;
    x->matrix = calloc((size_t)n, sizeof *x->matrix);
    x->entry = calloc((size_t)(n_layers * per_layer + 2), sizeof *x->entry);
    if (!x->matrix || !x->entry)
        return oct_fail(err, OCT_ERR_MEMORY, "out of memory");
    int64_t used = 0;
    for (int64_t i = 0; i < n && problems->n < MAX_PROBLEMS; i++) {
        matrix *m = &x->matrix[i];
        const bool in_layer = i < n_layers * OCT_ROLE_EMBEDDING;
        m->role = in_layer ? (oct_role)(i % OCT_ROLE_EMBEDDING)
                           : (oct_role)(OCT_ROLE_EMBEDDING + (i - n_layers * OCT_ROLE_EMBEDDING));
        m->layer = in_layer ? i / OCT_ROLE_EMBEDDING : -1;
        m->of = x->entry + used;
        used += is_expert(m->role) ? n_experts : 1;
        take_tensors(x, m, problems);
    }
    x->head = oct_hub_find_tensor(x->hub, head_name);
    if (x->head && x->head == x->matrix[n - 2].of[0])
        x->head = NULL;
    if (x->head)
        check_tensor(x, OCT_ROLE_EMBEDDING, x->head, problems);
    if (x->head && x->matrix[n - 2].of[0] &&
        x->head->tensor->dtype != x->matrix[n - 2].of[0]->tensor->dtype)
        oct_lines_add(problems, "%s: tensor %s: %s, but the embedding is %s", x->head->shard->file,
                      head_name, x->head->tensor->type, x->matrix[n - 2].of[0]->tensor->type);
    return OCT_OK;
}

/* Tensors that no role has, such as tables of rotations; and what has lost bits before. */
static void tell_oddities(const st *x, oct_lines *warnings)
{
    int64_t used =
        (int64_t)x->shape.n_layers * (3 * x->shape.dim[OCT_CKPT_EXPERTS] + OCT_ROLE_EMBEDDING - 3) +
        2 + (x->head != NULL);
    if (x->hub->n_entries > used)
        oct_lines_add(warnings, "%s: %" PRId64 " tensors are none of Grok-1's; they are ignored",
                      x->hub->dir, x->hub->n_entries - used);
    if (x->matrix[OCT_ROLE_ROUTER].of[0]->tensor->dtype == OCT_ST_BF16)
        oct_lines_add(
            warnings,
            "%s: norms and routers are bf16; where they were f32, as in xAI's release, they "
            "have been rounded",
            x->hub->dir);
}

/* ---- opening -------------------------------------------------------------------------------- */

static int64_t groups_of(const oct_grok_config *c, oct_role role)
{
    switch (role) {
    case OCT_ROLE_GATE:
    case OCT_ROLE_UP: return c->gate_up_groups;
    case OCT_ROLE_DOWN: return c->down_groups;
    case OCT_ROLE_ATTN_OUT: return c->attn_out_groups;
    default: return c->qkv_groups;
    }
}

static bool is_recovered(const matrix *m)
{
    return is_int8(m->role) && m->of[0]->tensor->dtype == OCT_ST_BF16;
}

/* Each matrix's place among all scales. */
static oct_status place_scales(st *x, oct_error *err)
{
    int64_t n = 0;
    for (int64_t i = 0; i < x->shape.n_layers * OCT_ROLE_EMBEDDING; i++) {
        matrix *m = &x->matrix[i];
        m->first_scale = n;
        if (is_recovered(m))
            n += (is_expert(m->role) ? x->shape.dim[OCT_CKPT_EXPERTS] : 1) *
                 m->of[0]->tensor->shape[0] * groups_of(&x->base.config, m->role);
    }
    OCT_TRY(oct_recovery_new(n, &x->recovery, err));
    x->base.kept_bytes = oct_recovery_bytes(x->recovery);
    return OCT_OK;
}

static oct_status take_config(st *x, const oct_source_params *p, const oct_folders *where,
                              oct_hparams *h, oct_error *err)
{
    oct_source *s = &x->base;
    OCT_TRY(oct_folders_find(where, p->config, "config.json", &s->config_path, err));
    if (!s->config_path)
        return OCT_OK;
    OCT_TRY(oct_hparams_read(s->config_path, OCT_HPARAM_HUGGING_FACE, h, p->warnings, err));
    return stat(s->config_path, &s->config_stat) == 0
               ? OCT_OK
               : oct_fail(err, OCT_ERR_IO, "%s: %s", s->config_path, strerror(errno));
}

/* The head dimension is what is left when the heads are told. */
static void derive_head(const oct_ckpt *c, oct_hparams *h)
{
    const int64_t heads = h->given[OCT_HP_NUM_Q_HEADS] ? (int64_t)h->value[OCT_HP_NUM_Q_HEADS] : 0;
    if (h->given[OCT_HP_KEY_SIZE] || !heads || c->dim[OCT_CKPT_Q_WIDTH] % heads)
        return;
    h->given[OCT_HP_KEY_SIZE] = true;
    h->value[OCT_HP_KEY_SIZE] = (double)(c->dim[OCT_CKPT_Q_WIDTH] / heads);
}

static oct_status take_tokenizer(st *x, const oct_source_params *p, const oct_folders *where,
                                 oct_error *err)
{
    char *model = NULL, *json = NULL;
    OCT_TRY(oct_folders_find(where, p->tokenizer, "tokenizer.model", &model, err));
    oct_status s = OCT_OK;
    if (!model && !p->no_tokenizer)
        s = oct_folders_find(where, NULL, "tokenizer.json", &json, err);
    if (s == OCT_OK && json)
        s = oct_fail(err, OCT_ERR_ARG,
                     "%s: a tokenizer of Hugging Face's library; octet needs SentencePiece's "
                     "tokenizer.model, which is beside the code that xAI released: name it "
                     "(--tokenizer) or make a file without (--no-tokenizer)",
                     json);
    free(model);
    free(json);
    OCT_TRY(s);
    return oct_source_take_tokenizer(&x->base, p, where, err);
}

static oct_status fill(st *x, const oct_source_params *p, const oct_folders *where, oct_error *err)
{
    oct_source *s = &x->base;
    oct_hparams h = {.names = OCT_HPARAM_HUGGING_FACE};
    OCT_TRY(take_config(x, p, where, &h, err));
    OCT_TRY(oct_hub_open(p->root, &x->hub, p->problems, err));
    x->shape.dir = x->hub->dir;
    OCT_TRY(find_scheme(x, err));
    OCT_TRY(find_sizes(x, &h, p->problems, err));
    if (!p->problems->n)
        OCT_TRY(take_all(x, p->problems, err));
    if (p->problems->failed)
        return oct_fail(err, OCT_ERR_MEMORY, "out of memory");
    if (p->problems->n)
        return oct_fail(err, OCT_ERR_FORMAT, "%s: %zu problem%s with its tensors, the first: %s",
                        s->dir, p->problems->n, p->problems->n > 1 ? "s" : "",
                        p->problems->line[0]);
    derive_head(&x->shape, &h);
    oct_hparams_prefer_grok1(&x->shape, s->config_path, &h, p->warnings);
    OCT_TRY(oct_hparams_resolve(&x->shape, &h, s->config_path, where->text, &s->config, err));
    s->is_grok1 = oct_hparams_is_grok1(&x->shape, NULL);
    s->n_files = x->hub->n_shards;
    for (int64_t i = 0; i < x->hub->n_shards; i++)
        s->n_bytes += x->hub->shard[i].n;
    tell_oddities(x, p->warnings);
    OCT_TRY(place_scales(x, err));
    return take_tokenizer(x, p, where, err);
}

static void close_st(oct_source *s)
{
    st *x = st_of(s);
    oct_hub_free(x->hub);
    oct_recovery_free(x->recovery);
    free(x->matrix);
    free(x->entry);
    oct_source_free_common(s);
    free(x);
}

static oct_status open_st(const oct_source_params *p, oct_source **out, oct_error *err)
{
    oct_folders where;
    st *x = calloc(1, sizeof *x);
    *out = NULL;
    if (!x || !(x->base.dir = strdup(p->root))) {
        free(x);
        return oct_fail(err, OCT_ERR_MEMORY, "out of memory");
    }
    x->base.kind = &oct_source_safetensors;
    oct_status s = oct_folders_init(p->path, p->root, &where, err);
    if (s == OCT_OK) {
        s = fill(x, p, &where, err);
        oct_folders_free(&where);
    }
    if (s != OCT_OK) {
        close_st(&x->base);
        return s;
    }
    *out = &x->base;
    return OCT_OK;
}

/* ---- reading -------------------------------------------------------------------------------- */

static void describe(const oct_source *s, oct_role role, int64_t layer, oct_source_tensor *t)
{
    const st *x = st_of(s);
    const matrix *m =
        role < OCT_ROLE_EMBEDDING
            ? &x->matrix[layer * OCT_ROLE_EMBEDDING + role]
            : &x->matrix[x->shape.n_layers * OCT_ROLE_EMBEDDING + role - OCT_ROLE_EMBEDDING];
    const oct_st_tensor *w = m->of[0]->tensor;
    const bool recovered = is_recovered(m), vector = w->rank == 1;
    *t = (oct_source_tensor){.role = role,
                             .layer = m->layer,
                             .dtype = recovered                ? OCT_SOURCE_I8
                                      : w->dtype == OCT_ST_F32 ? OCT_SOURCE_F32
                                                               : OCT_SOURCE_BF16,
                             .order = vector ? OCT_IN_OUT : OCT_OUT_IN,
                             .n_experts = is_expert(role) ? x->shape.dim[OCT_CKPT_EXPERTS] : 1,
                             .n_in = vector ? 1 : w->shape[1],
                             .n_out = w->shape[0],
                             .n_groups = recovered ? groups_of(&s->config, role) : 0,
                             .own = m};
}

/* A tensor that is being read. */
typedef struct reader {
    const st *x;
    const oct_hub_entry *e;
    int fd;
} reader;

/* n numbers from the first one on. */
static oct_status read_run(const reader *r, int64_t first, int64_t n, void *out, oct_error *err)
{
    const oct_st_tensor *t = r->e->tensor;
    const size_t element = t->dtype == OCT_ST_F32 ? 4 : 2;
    const size_t bytes = (size_t)n * element;
    const uint64_t at = t->at + (uint64_t)first * element;
    const int64_t have = oct_file_read(r->fd, out, bytes, at);
    if (have == (int64_t)bytes)
        return OCT_OK;
    return oct_fail(err, OCT_ERR_IO, "%s/%s: reading %zu bytes at %llu: %s", r->x->hub->dir,
                    r->e->shard->file, bytes, (unsigned long long)at,
                    have < 0 ? strerror(errno) : "the file has become shorter");
}

static void where_of(const oct_hub_entry *e, int64_t row, int64_t column,
                     char text[OCT_SOURCE_WHERE])
{
    if (e->tensor->rank == 1)
        snprintf(text, OCT_SOURCE_WHERE, "%.60s (%.100s): element [%" PRId64 "]", e->shard->file,
                 e->tensor->name, column);
    else
        snprintf(text, OCT_SOURCE_WHERE, "%.60s (%.90s): element [%" PRId64 ",%" PRId64 "]",
                 e->shard->file, e->tensor->name, row, column);
}

static oct_status read_bf16(const void *ctx, int64_t row, int64_t column, int64_t n, uint16_t *out,
                            oct_error *err)
{
    const reader *r = ctx;
    return read_run(r, row * r->e->tensor->shape[1] + column, n, out, err);
}

static void where_bf16(const void *ctx, int64_t row, int64_t column, char text[OCT_SOURCE_WHERE])
{
    where_of(((const reader *)ctx)->e, row, column, text);
}

/* Numbers as they are. */
static oct_status read_plain(const reader *r, const oct_block *b, void *out, oct_error *err)
{
    const oct_st_tensor *t = r->e->tensor;
    const size_t element = t->dtype == OCT_ST_F32 ? 4 : 2;
    const int64_t columns = t->rank == 1 ? t->shape[0] : t->shape[1];
    if (b->n_columns == columns) /* whole rows follow each other */
        return read_run(r, b->row * columns, b->n_rows * columns, out, err);
    for (int64_t i = 0; i < b->n_rows; i++)
        OCT_TRY(read_run(r, (b->row + i) * columns + b->column, b->n_columns,
                         (uint8_t *)out + (size_t)(i * b->n_columns) * element, err));
    return OCT_OK;
}

/* The head that is stored beside the embedding must be the embedding: Grok-1's are one matrix. */
static oct_status compare_head(const st *x, const oct_hub_entry *embedding, const oct_block *b,
                               const void *have, oct_error *err)
{
    const size_t element = x->head->tensor->dtype == OCT_ST_F32 ? 4 : 2;
    const int64_t columns = x->head->tensor->shape[1], step = COMPARED / (int64_t)element;
    uint8_t other[COMPARED];
    char text[OCT_SOURCE_WHERE];
    reader r = {x, x->head, -1};
    OCT_TRY(oct_hub_open_shard(x->hub, x->head->shard, &r.fd, err));
    oct_status s = OCT_OK;
    for (int64_t i = 0; i < b->n_rows && s == OCT_OK; i++)
        for (int64_t c = 0; c < b->n_columns && s == OCT_OK; c += step) {
            const int64_t n = b->n_columns - c < step ? b->n_columns - c : step;
            const uint8_t *mine = (const uint8_t *)have + (size_t)(i * b->n_columns + c) * element;
            size_t k = 0;
            s = read_run(&r, (b->row + i) * columns + b->column + c, n, other, err);
            while (s == OCT_OK && k < (size_t)n * element && mine[k] == other[k])
                k++;
            if (s != OCT_OK || k == (size_t)n * element)
                continue;
            where_of(x->head, b->row + i, b->column + c + (int64_t)(k / element), text);
            s = oct_fail(err, OCT_ERR_UNSUPPORTED,
                         "%s is not that of %s; expected one matrix for both, as in Grok-1", text,
                         embedding->tensor->name);
        }
    close(r.fd);
    return s;
}

static oct_status read_block(const oct_source *s, const oct_source_tensor *t, oct_source_part part,
                             const oct_block *b, void *out, oct_error *err)
{
    const st *x = st_of(s);
    const matrix *m = t->own;
    reader r = {x, m->of[b->expert], -1};
    OCT_TRY(oct_hub_open_shard(x->hub, r.e->shard, &r.fd, err));
    const oct_bf16_matrix w = {.n_in = t->n_in,
                               .n_groups = t->n_groups,
                               .first_scale = m->first_scale + b->expert * t->n_out * t->n_groups,
                               .read = read_bf16,
                               .where = where_bf16,
                               .ctx = &r};
    oct_status status;
    if (part == OCT_SOURCE_SCALES)
        status = oct_recovery_read_scales(x->recovery, &w, b, out, err);
    else if (t->dtype == OCT_SOURCE_I8)
        status = oct_recovery_read_i8(x->recovery, &w, b, out, err);
    else
        status = read_plain(&r, b, out, err);
    close(r.fd);
    if (status == OCT_OK && m->role == OCT_ROLE_EMBEDDING && x->head)
        status = compare_head(x, r.e, b, out, err);
    return status;
}

static void where(const oct_source *s, const oct_source_tensor *t, oct_source_part part,
                  int64_t expert, int64_t row, int64_t column, char text[OCT_SOURCE_WHERE])
{
    const matrix *m = t->own;
    (void)s;
    if (part == OCT_SOURCE_SCALES) /* of the first weight that has it */
        column *= t->n_in / t->n_groups;
    where_of(m->of[expert], row, column, text);
}

static void prefetch(const oct_source *s, const oct_source_tensor *t, int64_t expert)
{
    const st *x = st_of(s);
    const oct_hub_entry *e = ((const matrix *)t->own)->of[expert];
    int fd;
    if (oct_hub_open_shard(x->hub, e->shard, &fd, NULL) != OCT_OK)
        return; /* whoever reads will tell */
    (void)posix_fadvise(fd, (off_t)e->tensor->at, (off_t)e->tensor->bytes, POSIX_FADV_WILLNEED);
    close(fd);
}

static bool is_file(const oct_source *s, const struct stat *have)
{
    const oct_hub *h = st_of(s)->hub;
    for (int64_t i = 0; i < h->n_shards; i++)
        if (h->shard[i].device == have->st_dev && h->shard[i].inode == have->st_ino)
            return true;
    return false;
}

static void tell(const oct_source *s, oct_convert_report *r)
{
    oct_recovery_tell(st_of(s)->recovery, &r->recovered, &r->warnings);
}

const oct_source_kind oct_source_safetensors = {
    .name = "a Hugging Face model in safetensors",
    .looks = "a folder with model.safetensors.index.json or model.safetensors",
    .recognise = oct_hub_find,
    .open = open_st,
    .close = close_st,
    .tensor = describe,
    .read = read_block,
    .where = where,
    .prefetch = prefetch,
    .is_file = is_file,
    .tell = tell,
};
