#include "mksafetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "f16.h"
#include "source.h"

enum { BLOCK = 64, MAX_TENSORS = 4096, NAME = 160, INNER = 96 };

/* One tensor of the new files. */
typedef struct item {
    char name[NAME];
    oct_source_tensor t;
    int64_t expert;
    bool f32, vector;
    int shard;
    uint64_t at, bytes;
} item;

typedef struct list {
    item *item;
    int n;
} list;

static const char *const layer_names[2][OCT_ROLE_EMBEDDING] = {
    {"moe.%d.linear.weight", "moe.%d.linear_1.weight", "moe.%d.linear_v.weight",
     "multi_head_attention.key.weight", "multi_head_attention.linear.weight",
     "multi_head_attention.query.weight", "multi_head_attention.value.weight", "rms_norm.weight",
     "rms_norm_1.weight", "rms_norm_2.weight", "rms_norm_3.weight", "router.weight"},
    {"moe_block.experts.%d.linear.weight", "moe_block.experts.%d.linear_1.weight",
     "moe_block.experts.%d.linear_v.weight", "attn.k_proj.weight", "attn.o_proj.weight",
     "attn.q_proj.weight", "attn.v_proj.weight", "pre_attn_norm.scale", "post_attn_norm.scale",
     "pre_moe_norm.scale", "post_moe_norm.scale", "moe_block.gate.weight"}};
static const char *const top_names[2][3] = {
    {"transformer.in_out_embed.weight", "transformer.rms_norm.weight", "lm_head.weight"},
    {"model.embed_tokens.weight", "model.norm.scale", "lm_head.weight"}};

static void add(list *l, const oct_source *s, const mks_spec *spec, oct_role role, int64_t layer,
                int64_t expert, bool head)
{
    item *i = &l->item[l->n++];
    char inner[INNER];
    s->kind->tensor(s, role, layer, &i->t);
    i->expert = expert;
    i->vector = i->t.n_in == 1;
    i->f32 = spec->f32 && i->t.dtype != OCT_SOURCE_I8 && role != OCT_ROLE_EMBEDDING;
    i->bytes = (uint64_t)(i->t.n_in * i->t.n_out) * (i->f32 ? 4 : 2);
    if (role >= OCT_ROLE_EMBEDDING) {
        snprintf(i->name, NAME, "%s",
                 top_names[spec->scheme][head ? 2 : role - OCT_ROLE_EMBEDDING]);
    } else {
        const char *text = layer_names[spec->scheme][role], *mark = strchr(text, '%');
        if (mark)
            snprintf(inner, INNER, "%.*s%d%s", (int)(mark - text), text, (int)expert, mark + 2);
        else
            snprintf(inner, INNER, "%s", text);
        snprintf(i->name, NAME, "%s.%" PRId64 ".%s",
                 spec->scheme ? "model.layers" : "transformer.decoder_layer", layer, inner);
    }
    const size_t n = strlen(i->name);
    if (spec->weights_named && n > 5 && strcmp(i->name + n - 5, "scale") == 0)
        snprintf(i->name + n - 5, NAME - n + 5, "weight");
}

static list list_tensors(const oct_source *s, const mks_spec *spec)
{
    list l = {calloc(MAX_TENSORS, sizeof *l.item), 0};
    const int n_shards = spec->shards ? spec->shards : 1;
    add(&l, s, spec, OCT_ROLE_EMBEDDING, -1, 0, false);
    for (int64_t layer = 0; layer < s->config.n_layers; layer++)
        for (int role = 0; role < OCT_ROLE_EMBEDDING; role++)
            for (int64_t e = 0; e < (role <= OCT_ROLE_UP ? s->config.n_experts : 1); e++)
                add(&l, s, spec, (oct_role)role, layer, e, false);
    add(&l, s, spec, OCT_ROLE_NORM_FINAL, -1, 0, false);
    if (spec->head)
        add(&l, s, spec, OCT_ROLE_EMBEDDING, -1, 0, true);
    uint64_t at[64] = {0};
    for (int i = 0; i < l.n; i++) {
        item *t = &l.item[i];
        t->shard = i * n_shards / l.n;
        t->at = at[t->shard];
        at[t->shard] += t->bytes;
    }
    return l;
}

/* Rows of outputs, as they lie in the new file. */
static bool make_rows(const oct_source *s, const item *i, int64_t out, int64_t n, void *to)
{
    const int64_t n_in = i->t.n_in, groups = i->t.n_groups;
    oct_error err = {0};
    uint16_t *b = to;
    oct_tile tile = {i->expert, 0, n_in, out, n};
    bool good;
    if (i->t.dtype == OCT_SOURCE_I8) {
        int8_t *q = malloc((size_t)(n_in * n));
        uint16_t *scale = malloc((size_t)(groups * n) * sizeof *scale);
        const oct_tile of_scales = {i->expert, 0, groups, out, n};
        good = oct_source_read_i8(s, &i->t, &tile, q, &err) == OCT_OK &&
               oct_source_read_scales(s, &i->t, &of_scales, scale, &err) == OCT_OK;
        for (int64_t o = 0; o < n; o++)
            for (int64_t k = 0; k < n_in; k++)
                b[o * n_in + k] = oct_bf16_of_f32(
                    (float)q[k * n + o] * oct_f32_of_bf16(scale[k / (n_in / groups) * n + o]));
        free(q);
        free(scale);
    } else {
        float *x = malloc((size_t)(n_in * n) * sizeof *x);
        good = oct_source_read_f32(s, &i->t, &tile, OCT_OUT_IN, x, &err) == OCT_OK;
        for (int64_t k = 0; k < n_in * n && !i->f32; k++)
            b[k] = oct_bf16_of_f32(x[k]);
        if (i->f32)
            memcpy(to, x, (size_t)(n_in * n) * sizeof *x);
        free(x);
    }
    if (!good)
        fprintf(stderr, "mksafetensors: %s: %s\n", i->name, err.text);
    return good;
}

/* The JSON of a shard, padded with blanks as others do; malloc'd. */
static char *header(const list *l, int shard, size_t *n)
{
    char *text = malloc((size_t)(l->n + 1) * 300);
    size_t k = (size_t)sprintf(text, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < l->n; i++) {
        const item *t = &l->item[i];
        if (t->shard != shard)
            continue;
        k += (size_t)sprintf(text + k, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRId64, t->name,
                             t->f32 ? "F32" : "BF16", t->t.n_out);
        if (!t->vector)
            k += (size_t)sprintf(text + k, ",%" PRId64, t->t.n_in);
        k += (size_t)sprintf(text + k, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->at,
                             t->at + t->bytes);
    }
    text[k++] = '}';
    while (k % 8)
        text[k++] = ' ';
    *n = k;
    return text;
}

static void shard_name(const mks_spec *spec, int shard, char name[64])
{
    if (spec->shards)
        snprintf(name, 64, "model-%05d-of-%05d.safetensors", shard + 1, spec->shards);
    else
        snprintf(name, 64, "model.safetensors");
}

static bool write_shard(const oct_source *s, const list *l, const mks_spec *spec, int shard,
                        const char *dir)
{
    char path[4096], name[64];
    size_t n;
    shard_name(spec, shard, name);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f) {
        fprintf(stderr, "mksafetensors: %s: %s\n", path, strerror(errno));
        return false;
    }
    char *text = header(l, shard, &n);
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)n >> (8 * i));
    fwrite(length, 1, sizeof length, f);
    fwrite(text, 1, n, f);
    free(text);
    bool good = true;
    for (int i = 0; i < l->n && good; i++) {
        const item *t = &l->item[i];
        const size_t row = t->shard == shard ? t->bytes / (size_t)t->t.n_out : 0;
        void *rows = malloc(row * BLOCK + 1);
        for (int64_t o = 0; row && o < t->t.n_out && good; o += BLOCK) {
            const int64_t k = t->t.n_out - o < BLOCK ? t->t.n_out - o : BLOCK;
            good = make_rows(s, t, o, k, rows);
            fwrite(rows, row, (size_t)k, f);
        }
        free(rows);
    }
    good = good && !ferror(f);
    return fclose(f) == 0 && good;
}

static bool write_index(const list *l, const mks_spec *spec, const char *dir)
{
    char path[4096], name[64];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    FILE *f = fopen(path, "w");
    if (!f)
        return false;
    fprintf(f, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (int i = 0; i < l->n; i++) {
        shard_name(spec, l->item[i].shard, name);
        fprintf(f, "%s\n  \"%s\": \"%s\"", i ? "," : "", l->item[i].name, name);
    }
    fprintf(f, "\n}}\n");
    return fclose(f) == 0;
}

static bool write_config(const oct_grok_config *c, const mks_spec *spec, const char *dir)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "w");
    if (!f)
        return false;
    fprintf(f,
            "{\"architectures\": [\"%s\"], \"model_type\": \"grok-1\", \"torch_dtype\": "
            "\"bfloat16\",\n \"vocab_size\": %" PRId64 ", \"hidden_size\": %" PRId64
            ", \"intermediate_size\": %" PRId64 ", \"num_hidden_layers\": %" PRId64 ",\n"
            " \"num_attention_heads\": %" PRId64 ", \"num_key_value_heads\": %" PRId64
            ", \"head_dim\": %" PRId64 ", \"max_position_embeddings\": %" PRId64 ",\n",
            spec->scheme ? "Grok1ModelForCausalLM" : "GrokForCausalLM", c->n_vocab, c->d_model,
            c->d_ff, c->n_layers, c->n_q_heads, c->n_kv_heads, c->head_dim, c->n_ctx);
    fprintf(f,
            " \"%s\": %" PRId64 ", \"num_experts_per_tok\": %" PRId64 ", \"pad_token_id\": %" PRId64
            ", \"eos_token_id\": %" PRId64 ", \"bos_token_id\": 1, \"rope_scaling\": null,\n"
            " \"embedding_multiplier_scale\": %.9g, \"output_multiplier_scale\": %.9g,\n"
            " \"attn_output_multiplier\": %.9g, \"max_attn_value\": %.9g, \"rms_norm_eps\": %.9g,\n"
            " \"use_cache\": true, \"tie_word_embeddings\": true}\n",
            spec->scheme ? "num_experts" : "num_local_experts", c->n_experts, c->n_used, c->pad_id,
            c->eos_id, (double)c->embedding_scale, (double)c->output_scale, (double)c->attn_scale,
            (double)c->attn_cap, (double)c->norm_eps);
    return fclose(f) == 0;
}

bool mks_write(const char *ckpt, const mks_spec *spec, const char *dir)
{
    oct_lines problems = {0}, warnings = {0};
    oct_source_params p = {
        .path = ckpt, .no_tokenizer = true, .problems = &problems, .warnings = &warnings};
    oct_error err = {0};
    oct_source *s = NULL;
    bool good = mkdir(dir, 0777) == 0 || errno == EEXIST;
    if (oct_source_open(&p, &s, &err) != OCT_OK) {
        fprintf(stderr, "mksafetensors: %s\n", err.text);
        good = false;
    }
    if (good) {
        list l = list_tensors(s, spec);
        for (int i = 0; i < (spec->shards ? spec->shards : 1) && good; i++)
            good = write_shard(s, &l, spec, i, dir);
        good = good && (!spec->shards || write_index(&l, spec, dir)) &&
               write_config(&s->config, spec, dir);
        free(l.item);
    }
    oct_source_close(s);
    oct_lines_free(&problems);
    oct_lines_free(&warnings);
    return good;
}
