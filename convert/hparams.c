#include "hparams.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "utf8.h"

enum { MAX_CONFIG_BYTES = 1 << 20 };

/* The attention's cap, the base of rotations and the norms' epsilon are constants of xAI's code
 * that its configuration does not hold: they are these for other models of its format too. */
static const struct {
    const char *key;                   /* xAI's; NULL: has none */
    const char *hugging_face, *or_too; /* theirs, by one author or another */
    bool integer;
    double lo, hi;
} params[OCT_HPARAMS] = {
    [OCT_HP_VOCAB_SIZE] = {"vocab_size", "vocab_size", NULL, true, 1, INT32_MAX},
    [OCT_HP_EMB_SIZE] = {"emb_size", "hidden_size", NULL, true, 1, INT32_MAX},
    [OCT_HP_NUM_LAYERS] = {"num_layers", "num_hidden_layers", NULL, true, 1, OCT_GROK_MAX_LAYERS},
    [OCT_HP_NUM_EXPERTS] = {"num_experts", "num_experts", "num_local_experts", true, 0,
                            OCT_WEIGHT_MAX_EXPERTS},
    [OCT_HP_NUM_Q_HEADS] = {"num_q_heads", "num_attention_heads", NULL, true, 1, INT32_MAX},
    [OCT_HP_NUM_KV_HEADS] = {"num_kv_heads", "num_key_value_heads", NULL, true, 1, INT32_MAX},
    [OCT_HP_KEY_SIZE] = {"key_size", "head_dim", NULL, true, 1, INT32_MAX},
    [OCT_HP_WIDENING_FACTOR] = {"widening_factor", NULL, NULL, false, 1e-6, 1e6},
    [OCT_HP_NUM_SELECTED_EXPERTS] = {"num_selected_experts", "num_experts_per_tok", NULL, true, 1,
                                     OCT_WEIGHT_MAX_EXPERTS},
    [OCT_HP_SEQUENCE_LEN] = {"sequence_len", "max_position_embeddings", NULL, true, 1, INT32_MAX},
    [OCT_HP_PAD_TOKEN] = {"pad_token", "pad_token_id", NULL, true, -1, INT32_MAX},
    [OCT_HP_EOS_TOKEN] = {"eos_token", "eos_token_id", NULL, true, -1, INT32_MAX},
    [OCT_HP_EMBEDDING_MULTIPLIER_SCALE] = {"embedding_multiplier_scale",
                                           "embedding_multiplier_scale", NULL, false, 1e-30, 1e30},
    [OCT_HP_OUTPUT_MULTIPLIER_SCALE] = {"output_multiplier_scale", "output_multiplier_scale", NULL,
                                        false, 1e-30, 1e30},
    [OCT_HP_ATTN_OUTPUT_MULTIPLIER] = {"attn_output_multiplier", "attn_output_multiplier", NULL,
                                       false, 1e-30, 1e30},
    [OCT_HP_FFN_SIZE] = {NULL, "intermediate_size", NULL, true, 1, INT32_MAX},
    [OCT_HP_ATTN_CAP] = {NULL, "max_attn_value", "attn_logit_softcapping", false, 1e-30, 1e30},
    [OCT_HP_ROPE_BASE] = {NULL, "rope_theta", NULL, false, 1e-30, 1e30},
    [OCT_HP_NORM_EPS] = {NULL, "rms_norm_eps", NULL, false, 0, 1}};

static bool is_key(oct_hparam_names names, int i, const char *key)
{
    if (names == OCT_HPARAM_XAI)
        return params[i].key && strcmp(key, params[i].key) == 0;
    /* A user may give xAI's numbers beside their files. */
    return (params[i].hugging_face && strcmp(key, params[i].hugging_face) == 0) ||
           (params[i].or_too && strcmp(key, params[i].or_too) == 0) ||
           (params[i].key && strcmp(key, params[i].key) == 0);
}

const char *oct_hparams_key(const oct_hparams *h, oct_hparam p)
{
    const bool xai = h->names == OCT_HPARAM_XAI;
    const char *name = xai ? params[p].key : params[p].hugging_face;
    return name ? name : xai ? params[p].hugging_face : params[p].key;
}

static oct_status read_value(const char *path, const char *key, const json_t *v, oct_hparams *h,
                             oct_lines *warnings, oct_error *err)
{
    int i = 0;
    while (i < OCT_HPARAMS && !is_key(h->names, i, key))
        i++;
    if (i == OCT_HPARAMS) {
        if (h->names == OCT_HPARAM_XAI)
            oct_lines_add(warnings, "%s: key \"%s\" is not known; it is ignored", path, key);
        return OCT_OK;
    }
    if (h->names == OCT_HPARAM_HUGGING_FACE && json_is_null(v))
        return OCT_OK; /* as if it were not there */
    if (h->names == OCT_HPARAM_HUGGING_FACE && i == OCT_HP_EOS_TOKEN && json_is_array(v))
        v = json_array_get(v, 0); /* of several ends of text the first */
    bool integral =
        json_is_integer(v) || (json_is_real(v) && json_real_value(v) == floor(json_real_value(v)));
    if (!json_is_number(v) || (params[i].integer && !integral))
        return oct_fail(err, OCT_ERR_FORMAT, "%s: \"%s\" must be %s", path, key,
                        params[i].integer ? "a whole number" : "a number");
    double d = json_number_value(v);
    if (!(d >= params[i].lo && d <= params[i].hi))
        return oct_fail(err, OCT_ERR_FORMAT, "%s: \"%s\" is %.17g; expected %.10g to %.10g", path,
                        key, d, params[i].lo, params[i].hi);
    if (h->given[i] && h->value[i] != d)
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s: \"%s\" is %.17g, but another key for the same says %.17g", path, key,
                        d, h->value[i]);
    h->given[i] = true;
    h->value[i] = d;
    return OCT_OK;
}

/* Whether a text has "grok" in it, in any case. */
static bool says_grok(const json_t *v)
{
    const char *text = json_string_value(v);
    return text && strcasestr(text, "grok") != NULL;
}

/* What a file of Hugging Face's says that is not so of Grok-1. */
static void find_foreign(const json_t *root, oct_hparams *h)
{
    const json_t *type = json_object_get(root, "model_type"),
                 *architecture = json_array_get(json_object_get(root, "architectures"), 0),
                 *act = json_object_get(root, "hidden_act"),
                 *width = json_object_get(root, "moe_intermediate_size");
    const char *name = json_string_value(type ? type : architecture);
    static const char *const numbers[] = {"final_logit_softcapping", "attn_temperature_len",
                                          "num_shared_experts"};
    const size_t n = sizeof h->foreign;
    if (name && !says_grok(type) && !says_grok(architecture))
        snprintf(h->foreign, n, "%s \"%.60s\"", type ? "model_type" : "architectures", name);
    else if (json_is_true(json_object_get(root, "residual_moe")) ||
             (json_is_number(width) && h->given[OCT_HP_FFN_SIZE] &&
              json_number_value(width) != h->value[OCT_HP_FFN_SIZE]))
        snprintf(h->foreign, n, "a dense branch beside the experts");
    else if (json_is_string(act) && strncmp(json_string_value(act), "gelu", 4) != 0)
        snprintf(h->foreign, n, "hidden_act \"%.60s\"", json_string_value(act));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !h->foreign[0]; i++)
        if (json_number_value(json_object_get(root, numbers[i])) > 0)
            snprintf(h->foreign, n, "\"%s\"", numbers[i]);
}

static oct_status read_object(const char *path, oct_hparam_names names, const json_t *root,
                              oct_hparams *h, oct_lines *warnings, oct_error *err)
{
    json_t *mutable = (json_t *)(uintptr_t)root; /* what jansson's loop wants */
    const char *key;
    json_t *v;
    if (names == OCT_HPARAM_EITHER)
        names = json_object_get(root, params[OCT_HP_EMB_SIZE].hugging_face)
                    ? OCT_HPARAM_HUGGING_FACE
                    : OCT_HPARAM_XAI;
    h->names = names;
    json_object_foreach(mutable, key, v)
    {
        OCT_TRY(read_value(path, key, v, h, warnings, err));
    }
    find_foreign(root, h);
    return OCT_OK;
}

oct_status oct_hparams_read(const char *path, oct_hparam_names names, oct_hparams *h,
                            oct_lines *warnings, oct_error *err)
{
    *h = (oct_hparams){0};
    FILE *f = fopen(path, "rbe");
    if (!f)
        return oct_fail(err, OCT_ERR_IO, "%s: %s", path, strerror(errno));
    oct_status s = OCT_OK;
    json_t *root = NULL;
    json_error_t e;
    char *text = malloc(MAX_CONFIG_BYTES + 1);
    size_t n = text ? fread(text, 1, MAX_CONFIG_BYTES + 1, f) : 0;
    size_t skip = oct_utf8_bom(text, n);
    if (!text)
        s = oct_fail(err, OCT_ERR_MEMORY, "out of memory");
    else if (ferror(f))
        s = oct_fail(err, OCT_ERR_IO, "%s: %s", path, strerror(errno));
    else if (n > MAX_CONFIG_BYTES)
        s = oct_fail(err, OCT_ERR_FORMAT, "%s: larger than %d bytes; no configuration is", path,
                     MAX_CONFIG_BYTES);
    else if (!(root = json_loadb(text + skip, n - skip, JSON_REJECT_DUPLICATES, &e)))
        s = oct_fail(err, OCT_ERR_FORMAT, "%s: not JSON: line %d: %s", path, e.line, e.text);
    else if (!json_is_object(root))
        s = oct_fail(err, OCT_ERR_FORMAT, "%s: expected a JSON object", path);
    if (s == OCT_OK)
        s = read_object(path, names, root, h, warnings, err);
    json_decref(root);
    free(text);
    fclose(f);
    return s;
}

/* Sizes that both the shapes and a configuration can tell. */
static const struct {
    oct_hparam param;
    oct_ckpt_dim dim;
} shared_sizes[] = {{OCT_HP_VOCAB_SIZE, OCT_CKPT_VOCAB},
                    {OCT_HP_EMB_SIZE, OCT_CKPT_MODEL},
                    {OCT_HP_FFN_SIZE, OCT_CKPT_FFN},
                    {OCT_HP_NUM_EXPERTS, OCT_CKPT_EXPERTS}};

static int64_t number(const oct_hparams *h, oct_hparam p)
{
    return (int64_t)h->value[p];
}

bool oct_hparams_is_grok1(const oct_ckpt *c, char why[128])
{
    const oct_grok_config grok1 = oct_grok1_config(64, 131072);
    const struct {
        const char *name;
        int64_t here, grok1;
    } sizes[] = {{"vocab_size", c->dim[OCT_CKPT_VOCAB], grok1.n_vocab},
                 {"emb_size", c->dim[OCT_CKPT_MODEL], grok1.d_model},
                 {"the FFN's width", c->dim[OCT_CKPT_FFN], grok1.d_ff},
                 {"num_experts", c->dim[OCT_CKPT_EXPERTS], grok1.n_experts},
                 {"the query's width", c->dim[OCT_CKPT_Q_WIDTH], grok1.n_q_heads * grok1.head_dim},
                 {"the key's width", c->dim[OCT_CKPT_KV_WIDTH], grok1.n_kv_heads * grok1.head_dim},
                 {"num_layers", c->n_layers, grok1.n_layers}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].here != sizes[i].grok1) {
            if (why)
                snprintf(why, 128, "%s is %" PRId64 " (Grok-1: %" PRId64 ")", sizes[i].name,
                         sizes[i].here, sizes[i].grok1);
            return false;
        }
    return true;
}

/* What the file says against what the shapes say. */
static oct_status check_shapes(const oct_ckpt *c, const oct_hparams *h, const char *path,
                               oct_error *err)
{
    for (size_t i = 0; i < sizeof shared_sizes / sizeof *shared_sizes; i++) {
        oct_hparam p = shared_sizes[i].param;
        int64_t said = number(h, p), found = c->dim[shared_sizes[i].dim];
        if (p == OCT_HP_NUM_EXPERTS && said == 0)
            said = 1; /* both mean a dense model */
        if (h->given[p] && said != found)
            return oct_fail(err, OCT_ERR_SHAPE,
                            "%s says %s %" PRId64 ", the shapes in %s say %" PRId64, path,
                            oct_hparams_key(h, p), number(h, p), c->dir, found);
    }
    if (h->given[OCT_HP_NUM_LAYERS] && number(h, OCT_HP_NUM_LAYERS) != c->n_layers)
        return oct_fail(err, OCT_ERR_SHAPE,
                        "%s says num_layers %" PRId64 ", %s has %" PRId64 " files: %" PRId64
                        " layers",
                        path, number(h, OCT_HP_NUM_LAYERS), c->dir, c->n_leaves, c->n_layers);
    if (h->given[OCT_HP_WIDENING_FACTOR]) {
        double w = h->value[OCT_HP_WIDENING_FACTOR];
        int64_t ffn = oct_grok_ffn_size(c->dim[OCT_CKPT_MODEL], w);
        if (ffn != c->dim[OCT_CKPT_FFN])
            return oct_fail(err, OCT_ERR_SHAPE,
                            "%s says widening_factor %.10g (an FFN of %" PRId64
                            "), the shapes in %s say an FFN of %" PRId64,
                            path, w, ffn, c->dir, c->dim[OCT_CKPT_FFN]);
    }
    return OCT_OK;
}

/* Heads: any of the three numbers may be missing if the others tell it. */
static oct_status resolve_heads(const oct_ckpt *c, const oct_hparams *h, const char *path,
                                oct_grok_config *out, oct_error *err)
{
    static const struct {
        oct_hparam count;
        oct_ckpt_dim width;
        const char *what;
    } rows[] = {{OCT_HP_NUM_Q_HEADS, OCT_CKPT_Q_WIDTH, "query"},
                {OCT_HP_NUM_KV_HEADS, OCT_CKPT_KV_WIDTH, "key"}};
    out->head_dim = number(h, OCT_HP_KEY_SIZE);
    int64_t *heads[] = {&out->n_q_heads, &out->n_kv_heads};
    for (int i = 0; i < 2; i++) {
        int64_t width = c->dim[rows[i].width];
        *heads[i] = h->given[rows[i].count] ? number(h, rows[i].count) : width / out->head_dim;
        int64_t product = 0;
        if (__builtin_mul_overflow(*heads[i], out->head_dim, &product) || product != width)
            return oct_fail(err, OCT_ERR_SHAPE,
                            "%s says %s %" PRId64 " and key_size %" PRId64
                            ", the shapes in %s say a %s of %" PRId64,
                            path, oct_hparams_key(h, rows[i].count), *heads[i], out->head_dim,
                            c->dir, rows[i].what, width);
    }
    return OCT_OK;
}

/* Scale groups of an inputs-split matrix: the checkpoint's, or for plain arrays as many as divide
 * both the KV heads and the inputs, so that the matrix can be cut like the attention. */
static int64_t input_groups(int64_t groups, int64_t n_kv_heads, int64_t n_in)
{
    if (groups)
        return groups;
    int64_t g = 8;
    while (n_kv_heads % g || n_in % g)
        g--;
    return g;
}

static oct_status missing_numbers(const oct_ckpt *c, const oct_hparams *h, const char *path,
                                  const char *looked_in, oct_error *err)
{
    static const oct_hparam required[] = {OCT_HP_KEY_SIZE,
                                          OCT_HP_SEQUENCE_LEN,
                                          OCT_HP_PAD_TOKEN,
                                          OCT_HP_EOS_TOKEN,
                                          OCT_HP_EMBEDDING_MULTIPLIER_SCALE,
                                          OCT_HP_OUTPUT_MULTIPLIER_SCALE,
                                          OCT_HP_ATTN_OUTPUT_MULTIPLIER,
                                          OCT_HP_NUM_SELECTED_EXPERTS};
    char names[300] = "", why[128] = "";
    size_t n = 0;
    for (size_t i = 0; i < sizeof required / sizeof *required; i++) {
        if (h->given[required[i]] || (c->dense && required[i] == OCT_HP_NUM_SELECTED_EXPERTS))
            continue;
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "",
                              oct_hparams_key(h, required[i]));
    }
    if (!n)
        return OCT_OK;
    oct_hparams_is_grok1(c, why);
    if (path)
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s lacks %s, which the shapes cannot tell; this is not "
                        "Grok-1: %s",
                        path, names, why);
    return oct_fail(err, OCT_ERR_ARG,
                    "config.json is needed (keys %s): this is not Grok-1: %s. Looked in %s", names,
                    why, looked_in ? looked_in : "no folder");
}

/* What Grok-1's shapes do not tell. */
static double grok1_number(oct_hparam p, bool *told_by_shapes)
{
    const oct_grok_config grok1 = oct_grok1_config(64, 131072);
    *told_by_shapes = false;
    switch (p) {
    case OCT_HP_NUM_Q_HEADS: return (double)grok1.n_q_heads;
    case OCT_HP_NUM_KV_HEADS: return (double)grok1.n_kv_heads;
    case OCT_HP_KEY_SIZE: return (double)grok1.head_dim;
    case OCT_HP_NUM_SELECTED_EXPERTS: return (double)grok1.n_used;
    case OCT_HP_SEQUENCE_LEN: return (double)grok1.n_ctx;
    case OCT_HP_PAD_TOKEN: return (double)grok1.pad_id;
    case OCT_HP_EOS_TOKEN: return (double)grok1.eos_id;
    case OCT_HP_EMBEDDING_MULTIPLIER_SCALE: return (double)grok1.embedding_scale;
    case OCT_HP_OUTPUT_MULTIPLIER_SCALE: return (double)grok1.output_scale;
    case OCT_HP_ATTN_OUTPUT_MULTIPLIER: return (double)grok1.attn_scale;
    case OCT_HP_ATTN_CAP: return (double)grok1.attn_cap;
    case OCT_HP_ROPE_BASE: return (double)grok1.rope_base;
    case OCT_HP_NORM_EPS: return (double)grok1.norm_eps;
    default: *told_by_shapes = true; return 0;
    }
}

void oct_hparams_prefer_grok1(const oct_ckpt *c, const char *path, oct_hparams *h,
                              oct_lines *warnings)
{
    for (int i = 0; i < OCT_HPARAMS && oct_hparams_is_grok1(c, NULL); i++) {
        bool by_shapes;
        const double v = grok1_number((oct_hparam)i, &by_shapes);
        if (by_shapes)
            continue;
        if (h->given[i] && (float)h->value[i] != (float)v)
            oct_lines_add(warnings,
                          "%s says %s %.10g; the shapes are Grok-1's, whose %.10g is used", path,
                          oct_hparams_key(h, (oct_hparam)i), h->value[i], v);
        h->given[i] = true;
        h->value[i] = v;
    }
}

oct_status oct_hparams_resolve(const oct_ckpt *c, const oct_hparams *given, const char *path,
                               const char *looked_in, oct_grok_config *out, oct_error *err)
{
    oct_hparams h = {0};
    if (given) {
        OCT_TRY(check_shapes(c, given, path, err));
        h = *given;
    }
    for (int i = 0; i < OCT_HPARAMS; i++) {
        bool by_shapes;
        const double v = grok1_number((oct_hparam)i, &by_shapes);
        /* Those that xAI's files do not have are constants of its code. */
        if (by_shapes || h.given[i] || (params[i].key && !oct_hparams_is_grok1(c, NULL)))
            continue;
        h.given[i] = true;
        h.value[i] = v;
    }
    OCT_TRY(missing_numbers(c, &h, path, looked_in, err));
    const int64_t *dim = c->dim;
    *out = (oct_grok_config){.n_layers = c->n_layers,
                             .n_vocab = dim[OCT_CKPT_VOCAB],
                             .d_model = dim[OCT_CKPT_MODEL],
                             .d_ff = dim[OCT_CKPT_FFN],
                             .n_experts = dim[OCT_CKPT_EXPERTS],
                             .n_used = c->dense ? 1 : number(&h, OCT_HP_NUM_SELECTED_EXPERTS),
                             .n_ctx = number(&h, OCT_HP_SEQUENCE_LEN),
                             .pad_id = number(&h, OCT_HP_PAD_TOKEN),
                             .eos_id = number(&h, OCT_HP_EOS_TOKEN),
                             .embedding_scale = (float)h.value[OCT_HP_EMBEDDING_MULTIPLIER_SCALE],
                             .output_scale = (float)h.value[OCT_HP_OUTPUT_MULTIPLIER_SCALE],
                             .attn_scale = (float)h.value[OCT_HP_ATTN_OUTPUT_MULTIPLIER],
                             .attn_cap = (float)h.value[OCT_HP_ATTN_CAP],
                             .rope_base = (float)h.value[OCT_HP_ROPE_BASE],
                             .norm_eps = (float)h.value[OCT_HP_NORM_EPS]};
    OCT_TRY(resolve_heads(c, &h, path ? path : "Grok-1's configuration", out, err));
    if (c->dense && h.given[OCT_HP_NUM_SELECTED_EXPERTS] &&
        number(&h, OCT_HP_NUM_SELECTED_EXPERTS) > 1)
        return oct_fail(err, OCT_ERR_SHAPE,
                        "%s says num_selected_experts %" PRId64 ", the checkpoint in %s is dense",
                        path, number(&h, OCT_HP_NUM_SELECTED_EXPERTS), c->dir);
    if (out->n_used > out->n_experts)
        return oct_fail(err, OCT_ERR_SHAPE,
                        "%s says num_selected_experts %" PRId64 ", the shapes in %s say %" PRId64
                        " experts",
                        path ? path : "Grok-1", out->n_used, c->dir, out->n_experts);
    out->qkv_groups = dim[OCT_CKPT_QKV_GROUPS] ? dim[OCT_CKPT_QKV_GROUPS] : 1;
    out->gate_up_groups = dim[OCT_CKPT_GATE_UP_GROUPS] ? dim[OCT_CKPT_GATE_UP_GROUPS] : 1;
    out->attn_out_groups =
        input_groups(dim[OCT_CKPT_ATTN_OUT_GROUPS], out->n_kv_heads, dim[OCT_CKPT_Q_WIDTH]);
    out->down_groups = input_groups(dim[OCT_CKPT_DOWN_GROUPS], out->n_kv_heads, out->d_ff);
    out->n_slices = oct_grok_slices(out->n_kv_heads, out->attn_out_groups, out->down_groups);
    return oct_grok_config_check(out, err);
}
