/* outline.c: models to plan with, see convert.h: from a name, a configuration, a checkpoint or a
 * model file to a file of header and hole. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "convert_impl.h"
#include "hparams.h"
#include "model_impl.h"

/* Models by name. What lacks says why Octet cannot run one. Bytes are of the release as its makers
 * publish it; they are not looked up. */
static const struct {
    const char *name, *lacks;
    uint64_t bytes;
    int64_t n_files;
} names[] = {
    {"grok-1", NULL, 318239886140, 770},
    {"grok-2",
     "a cap of the router, gates that are not renormalised, a dense branch beside the experts and "
     "a "
     "tiktoken tokenizer",
     0, 0},
    {"mixtral-8x7b", "SiLU, renormalised gates, two norms a layer and an output head of its own", 0,
     0},
    {"mixtral-8x22b", "SiLU, renormalised gates, two norms a layer and an output head of its own",
     0, 0},
};
enum { N_NAMES = sizeof names / sizeof *names };

bool oct_model_name_get(int i, oct_model_name *out)
{
    if (i < 0 || i >= N_NAMES)
        return false;
    *out = (oct_model_name){names[i].name, names[i].lacks};
    return true;
}

const char *oct_weight_type_name(int i)
{
    return i >= 0 && i < OCT_WEIGHT_TYPES ? oct_weight_types[i].name : NULL;
}

static oct_status unknown_type(const char *name, oct_error *err)
{
    char list[128] = "";
    size_t n = 0;
    for (int i = 0; i < OCT_WEIGHT_TYPES && n < sizeof list; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "",
                              oct_weight_types[i].name);
    return oct_fail(err, OCT_ERR_ARG, "'%s' is no weight type, expected one of %s", name, list);
}

oct_status oct_weight_type_named(const char *name, oct_weight_type *type, oct_error *err)
{
    for (int i = 0; i < OCT_WEIGHT_TYPES; i++)
        if (strcmp(oct_weight_types[i].name, name) == 0) {
            *type = (oct_weight_type)i;
            return OCT_OK;
        }
    return unknown_type(name, err);
}

/* ---- configurations -------------------------------------------------------------------------- */

static int64_t count_of(const oct_hparams *h, oct_hparam p)
{
    return h->given[p] ? (int64_t)h->value[p] : 0;
}

/* What Hugging Face's files may leave out: the head dimension, which is what is left when the heads
 * are told. */
static void derive_head(oct_hparams *h)
{
    const int64_t heads = count_of(h, OCT_HP_NUM_Q_HEADS), width = count_of(h, OCT_HP_EMB_SIZE);
    if (h->names != OCT_HPARAM_HUGGING_FACE || h->given[OCT_HP_KEY_SIZE] || !heads || width % heads)
        return;
    h->given[OCT_HP_KEY_SIZE] = true;
    h->value[OCT_HP_KEY_SIZE] = (double)(width / heads);
}

/* The shapes that a configuration without a checkpoint implies. */
static oct_status shapes_of(const char *path, const oct_hparams *h, oct_ckpt *c, oct_error *err)
{
    static const oct_hparam needed[] = {OCT_HP_VOCAB_SIZE,  OCT_HP_EMB_SIZE,     OCT_HP_NUM_LAYERS,
                                        OCT_HP_NUM_Q_HEADS, OCT_HP_NUM_KV_HEADS, OCT_HP_KEY_SIZE};
    const oct_hparam ffn = h->given[OCT_HP_FFN_SIZE] || (h->names == OCT_HPARAM_HUGGING_FACE &&
                                                         !h->given[OCT_HP_WIDENING_FACTOR])
                               ? OCT_HP_FFN_SIZE
                               : OCT_HP_WIDENING_FACTOR;
    const char *lacks = h->given[ffn] ? NULL : oct_hparams_key(h, ffn);
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!h->given[needed[i]])
            lacks = oct_hparams_key(h, needed[i]);
    if (lacks)
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s: lacks \"%s\", which nothing else can tell without the checkpoint",
                        path, lacks);
    const int64_t head = count_of(h, OCT_HP_KEY_SIZE), experts = count_of(h, OCT_HP_NUM_EXPERTS);
    *c = (oct_ckpt){.dense = experts <= 1, .n_layers = count_of(h, OCT_HP_NUM_LAYERS)};
    c->dim[OCT_CKPT_VOCAB] = count_of(h, OCT_HP_VOCAB_SIZE);
    c->dim[OCT_CKPT_MODEL] = count_of(h, OCT_HP_EMB_SIZE);
    c->dim[OCT_CKPT_FFN] =
        ffn == OCT_HP_FFN_SIZE
            ? count_of(h, ffn)
            : oct_grok_ffn_size(c->dim[OCT_CKPT_MODEL], h->value[OCT_HP_WIDENING_FACTOR]);
    c->dim[OCT_CKPT_EXPERTS] = experts > 1 ? experts : 1;
    c->dim[OCT_CKPT_Q_WIDTH] = count_of(h, OCT_HP_NUM_Q_HEADS) * head;
    c->dim[OCT_CKPT_KV_WIDTH] = count_of(h, OCT_HP_NUM_KV_HEADS) * head;
    if (c->dim[OCT_CKPT_FFN] == 0)
        return oct_fail(err, OCT_ERR_FORMAT, "%s: widening_factor %g makes no width of an FFN",
                        path, h->value[OCT_HP_WIDENING_FACTOR]);
    return OCT_OK;
}

/* How many numbers the model has, for those who know it as "a model of 314 billion". */
static double parameters(const oct_grok_config *c)
{
    const double d = (double)c->d_model, layers = (double)c->n_layers;
    const double experts = (double)c->n_experts * 3 * d * (double)c->d_ff;
    const double attention = 2 * d * (double)((c->n_q_heads + c->n_kv_heads) * c->head_dim);
    const double router = c->n_experts > 1 ? (double)c->n_experts * d : 0;
    return layers * (experts + attention + router + 4 * d) + d + (double)c->n_vocab * d;
}

static oct_status read_config(const char *path, oct_grok_config *out, oct_outline *o,
                              oct_error *err)
{
    oct_hparams h;
    oct_ckpt shapes;
    oct_lines warnings = {0};
    oct_status s = oct_hparams_read(path, OCT_HPARAM_EITHER, &h, &warnings, err);
    if (s == OCT_OK) {
        derive_head(&h);
        s = shapes_of(path, &h, &shapes, err);
    }
    if (s == OCT_OK && h.names == OCT_HPARAM_HUGGING_FACE)
        oct_hparams_prefer_grok1(&shapes, path, &h, &warnings);
    oct_lines_free(&warnings);
    OCT_TRY(s);
    if (h.foreign[0] && !oct_hparams_is_grok1(&shapes, NULL))
        return oct_fail(err, OCT_ERR_UNSUPPORTED,
                        "%s: not a model of Grok-1's kind, which is all that octet runs: it has %s",
                        path, h.foreign);
    shapes.dir = (char *)(uintptr_t)path; /* for messages */
    oct_error why = {0};
    s = oct_hparams_resolve(&shapes, &h, path, NULL, out, &why);
    if (s != OCT_OK) /* not every message of numbers out of range names a file */
        return oct_fail(err, s, "%s%s%s", strstr(why.text, path) ? "" : path,
                        strstr(why.text, path) ? "" : ": ", why.text);
    o->of = OCT_OUTLINE_CONFIG;
    o->source_bytes = h.names == OCT_HPARAM_HUGGING_FACE ? (uint64_t)(2 * parameters(out)) : 0;
    return OCT_OK;
}

/* The config.json of a folder that has no weights, malloc'd; NULL: there is none, or there are. */
static char *only_config(const char *dir)
{
    static const char end[] = ".safetensors";
    char *path = NULL, *root = NULL;
    struct stat st;
    bool weights = oct_ckpt_find(dir, &root, NULL) != OCT_OK || root;
    DIR *d = opendir(dir);
    free(root);
    for (struct dirent *e; d && !weights && (e = readdir(d));) {
        const size_t n = strlen(e->d_name), k = sizeof end - 1;
        weights = n >= k && strcmp(e->d_name + n - k, end) == 0;
    }
    if (d)
        closedir(d);
    if (weights || asprintf(&path, "%s/config.json", dir) < 0)
        return NULL;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
        return path;
    free(path);
    return NULL;
}

/* ---- outlines -------------------------------------------------------------------------------- */

/* A model of a configuration, in a file that is a header and a hole. */
static oct_status make(const oct_grok_config *config, const char *experts, oct_model **out,
                       oct_error *err)
{
    const oct_synthetic_params p = {.config = config,
                                    .experts = experts,
                                    .hollow = true,
                                    .fd = memfd_create("octet-outline", MFD_CLOEXEC)};
    if (p.fd < 0)
        return oct_fail(err, OCT_ERR_IO, "cannot make a file in memory: %s", strerror(errno));
    oct_status s = oct_synthetic_write(&p, err);
    if (s == OCT_OK)
        s = oct_model_open_fd(p.fd, "outline of a model", out, err);
    close(p.fd);
    return s;
}

static oct_status from_checkpoint(const char *path, oct_grok_config *config, oct_outline *o,
                                  oct_error *err)
{
    oct_lines problems = {0}, warnings = {0};
    oct_source_params p = {
        .path = path, .no_tokenizer = true, .problems = &problems, .warnings = &warnings};
    oct_source *source = NULL;
    oct_status s = oct_source_open(&p, &source, err);
    if (s == OCT_OK) {
        o->of = OCT_OUTLINE_CHECKPOINT;
        o->source_bytes = source->n_bytes;
        o->n_files = source->n_files;
        *config = source->config;
    }
    oct_source_close(source);
    oct_lines_free(&problems);
    oct_lines_free(&warnings);
    return s;
}

static oct_status from_name(int i, oct_grok_config *config, oct_outline *o, oct_error *err)
{
    if (names[i].lacks)
        return oct_fail(err, OCT_ERR_UNSUPPORTED, "%s is not supported yet: it needs %s",
                        names[i].name, names[i].lacks);
    o->of = OCT_OUTLINE_NAME;
    o->source_bytes = names[i].bytes;
    o->n_files = names[i].n_files;
    *config = oct_grok1_config(64, 131072);
    return OCT_OK;
}

/* Whether a file of this name is a model file, by its first bytes. */
static bool is_gguf(const char *path)
{
    char magic[4] = "";
    FILE *f = fopen(path, "rbe");
    bool yes = f && fread(magic, 1, 4, f) == 4 && memcmp(magic, "GGUF", 4) == 0;
    if (f)
        fclose(f);
    return yes;
}

static oct_status unknown(const char *what, oct_error *err)
{
    char list[200] = "";
    size_t n = 0;
    for (int i = 0; i < N_NAMES && n < sizeof list; i++)
        if (!names[i].lacks)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", names[i].name);
    return oct_fail(err, OCT_ERR_ARG,
                    "'%s': no model of this name is known (%s is), and there is no such file", what,
                    list);
}

static oct_status open_any(const char *what, const char *experts, oct_outline *o, oct_error *err)
{
    oct_grok_config config;
    struct stat st;
    char *alone;
    const size_t n = strlen(what);
    for (int i = 0; i < N_NAMES; i++)
        if (strcmp(names[i].name, what) == 0) {
            OCT_TRY(from_name(i, &config, o, err));
            return make(&config, experts, &o->model, err);
        }
    if (stat(what, &st) != 0)
        return errno == ENOENT ? unknown(what, err)
                               : oct_fail(err, OCT_ERR_IO, "%s: %s", what, strerror(errno));
    if (S_ISREG(st.st_mode) && is_gguf(what)) {
        o->of = OCT_OUTLINE_FILE;
        OCT_TRY(oct_model_open(what, &o->model, err));
        if (!experts)
            return OCT_OK;
        config = o->model->config;
        oct_model_close(o->model);
        o->model = NULL;
    } else if (S_ISREG(st.st_mode) && n >= 5 && strcmp(what + n - 5, ".json") == 0) {
        OCT_TRY(read_config(what, &config, o, err));
    } else if ((alone = S_ISDIR(st.st_mode) ? only_config(what) : NULL)) {
        oct_status s = read_config(alone, &config, o, err);
        free(alone);
        OCT_TRY(s);
    } else {
        OCT_TRY(from_checkpoint(what, &config, o, err));
    }
    return make(&config, experts, &o->model, err);
}

static const char *experts_of(const oct_model *m)
{
    return oct_weight_types[m->layers[0].gate_up.layout.type].name;
}

/* The file that one of other experts is made of: that of the same model with them as they come. */
static oct_status find_original(const char *what, oct_outline *o, oct_error *err)
{
    oct_outline as_it_comes = {0};
    oct_status s = open_any(what, NULL, &as_it_comes, err);
    if (s == OCT_OK && strcmp(experts_of(as_it_comes.model), o->experts) != 0)
        o->original_bytes = oct_model_get_info(as_it_comes.model)->file_bytes;
    oct_outline_close(&as_it_comes);
    return s;
}

oct_status oct_outline_open(const char *what, const char *experts, oct_outline *o, oct_error *err)
{
    oct_weight_type type;
    *o = (oct_outline){0};
    if (experts)
        OCT_TRY(oct_weight_type_named(experts, &type, err));
    oct_status s = open_any(what, experts, o, err);
    if (s == OCT_OK) {
        o->file_bytes = oct_model_get_info(o->model)->file_bytes;
        o->parameters = parameters(&o->model->config);
        o->experts = experts_of(o->model);
        s = experts ? find_original(what, o, err) : OCT_OK;
    }
    if (s != OCT_OK)
        oct_outline_close(o);
    return s;
}

void oct_outline_close(oct_outline *o)
{
    oct_model_close(o->model);
    *o = (oct_outline){0};
}
