#include "convert.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint.h"
#include "convert_impl.h"
#include "hparams.h"
#include "output.h"
#include "tokenizer.h"

enum { MAX_PLACES = 3 };

static oct_status no_memory(oct_error *err)
{
    return oct_fail(err, OCT_ERR_MEMORY, "out of memory");
}

/* ---- files beside the checkpoint ------------------------------------------------------------- */

/* The folder above a folder, malloc'd. */
static char *above(const char *dir)
{
    size_t n = strlen(dir);
    char *s = NULL;
    while (n > 1 && dir[n - 1] == '/')
        n--;
    size_t last = n;
    while (last > 0 && dir[last - 1] != '/')
        last--;
    bool dots = (n - last == 1 && dir[last] == '.') ||
                (n - last == 2 && dir[last] == '.' && dir[last + 1] == '.');
    if (n == 1 && dir[0] == '/')
        return strdup("/");
    if (dots)
        return asprintf(&s, "%.*s/..", (int)n, dir) < 0 ? NULL : s;
    if (last == 0)
        return strdup(".");
    return strndup(dir, last > 1 ? last - 1 : 1);
}

/* Folders where tokenizer.model and config.json may be: with the tensors, and up to two above. */
typedef struct places {
    char *dir[MAX_PLACES];
    int n;
    char *text; /* "A, B, C" */
} places;

static void places_free(places *p)
{
    for (int i = 0; i < p->n; i++)
        free(p->dir[i]);
    free(p->text);
}

static oct_status places_init(const char *checkpoint, const char *tensors, places *p,
                              oct_error *err)
{
    char *list[MAX_PLACES] = {strdup(tensors), NULL, NULL};
    *p = (places){0};
    /* What the caller named comes second even if ckpt-0 is a link to somewhere else. */
    list[1] = strcmp(checkpoint, tensors) ? strdup(checkpoint) : above(tensors);
    list[2] = list[1] ? above(list[1]) : NULL;
    for (int i = 0; i < MAX_PLACES; i++)
        if (list[i])
            p->dir[p->n++] = list[i];
    if (p->n < MAX_PLACES ||
        asprintf(&p->text, "%s, %s, %s", p->dir[0], p->dir[1], p->dir[2]) < 0) {
        p->text = NULL;
        return no_memory(err);
    }
    return OCT_OK;
}

/* A file given by the caller, or of this name in the first place that has it; *out NULL:
 * nowhere. */
static oct_status locate(const char *given, const char *name, const places *p, char **out,
                         oct_error *err)
{
    *out = NULL;
    if (given) {
        *out = strdup(given);
        return *out ? OCT_OK : no_memory(err);
    }
    for (int i = 0; i < p->n; i++) {
        char *path = NULL;
        if (asprintf(&path, "%s/%s", p->dir[i], name) < 0)
            return no_memory(err);
        if (access(path, F_OK) == 0) {
            *out = path;
            return OCT_OK;
        }
        free(path);
    }
    return OCT_OK;
}

/* ---- tokenizer ------------------------------------------------------------------------------- */

static oct_status map_tokenizer(const char *path, oct_conversion *c, oct_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    oct_status s = OCT_OK;
    if (fd < 0 || fstat(fd, &c->tokenizer_stat) != 0)
        s = oct_fail(err, OCT_ERR_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(c->tokenizer_stat.st_mode) || c->tokenizer_stat.st_size == 0)
        s = oct_fail(err, OCT_ERR_FORMAT, "%s: not a SentencePiece model: %s", path,
                     S_ISDIR(c->tokenizer_stat.st_mode)   ? "it is a folder"
                     : S_ISREG(c->tokenizer_stat.st_mode) ? "the file is empty"
                                                          : "not a regular file");
    if (s == OCT_OK) {
        c->tokenizer_bytes = (size_t)c->tokenizer_stat.st_size;
        void *p = mmap(NULL, c->tokenizer_bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
            s = oct_fail(err, OCT_ERR_IO, "%s: cannot be mapped: %s", path, strerror(errno));
        else
            c->tokenizer = p;
    }
    if (fd >= 0)
        close(fd);
    return s;
}

/* Whether it is a model of the vocabulary's size and what its special ids are. */
static oct_status check_tokenizer(const char *path, const oct_conversion *c, oct_lines *warnings,
                                  oct_error *err)
{
    const oct_grok_config *cfg = &c->config;
    oct_spm *spm = NULL;
    oct_error e = {0};
    if (oct_spm_new(c->tokenizer, c->tokenizer_bytes, &spm, &e) != OCT_OK)
        return oct_fail(err, OCT_ERR_FORMAT, "%s: not a SentencePiece model: %s", path, e.text);
    int64_t n = oct_spm_size(spm);
    oct_status s = OCT_OK;
    if (n > cfg->n_vocab)
        s = oct_fail(err, OCT_ERR_SHAPE,
                     "%s has %" PRId64 " pieces, the embedding in %s has %" PRId64 " rows", path, n,
                     c->ckpt->dir, cfg->n_vocab);
    else if (n < cfg->n_vocab)
        oct_lines_add(warnings,
                      "%s has %" PRId64 " pieces, the embedding %" PRId64 " rows: the last %" PRId64
                      " ids have no text",
                      path, n, cfg->n_vocab, cfg->n_vocab - n);
    if (oct_spm_pad(spm) >= 0 && oct_spm_pad(spm) != cfg->pad_id)
        oct_lines_add(warnings,
                      "%s says pad id %d, the configuration %" PRId64
                      ": the configuration's is used",
                      path, oct_spm_pad(spm), cfg->pad_id);
    if (oct_spm_eos(spm) >= 0 && oct_spm_eos(spm) != cfg->eos_id)
        oct_lines_add(warnings,
                      "%s says eos id %d, the configuration %" PRId64
                      ": the configuration's is used",
                      path, oct_spm_eos(spm), cfg->eos_id);
    oct_spm_free(spm);
    return s;
}

static oct_status take_tokenizer(const oct_convert_params *p, const places *where,
                                 oct_conversion *c, oct_convert_report *r, oct_error *err)
{
    if (p->no_tokenizer)
        return p->tokenizer ? oct_fail(err, OCT_ERR_ARG, "a tokenizer is given and refused at once")
                            : OCT_OK;
    OCT_TRY(locate(p->tokenizer, "tokenizer.model", where, &r->tokenizer_path, err));
    if (!r->tokenizer_path)
        return oct_fail(err, OCT_ERR_ARG,
                        "tokenizer.model is needed and was found in none of %s; name "
                        "one (--tokenizer) or make a file without (--no-tokenizer)",
                        where->text);
    OCT_TRY(map_tokenizer(r->tokenizer_path, c, err));
    return check_tokenizer(r->tokenizer_path, c, &r->warnings, err);
}

/* ---- checks before the work ------------------------------------------------------------------ */

/* Configuration file, checkpoint, configuration. */
static oct_status take_checkpoint(const oct_convert_params *p, const places *where,
                                  oct_conversion *c, oct_convert_report *r, oct_error *err)
{
    oct_hparams h = {0};
    OCT_TRY(locate(p->config, "config.json", where, &r->config_path, err));
    if (r->config_path) {
        OCT_TRY(oct_hparams_read(r->config_path, &h, &r->warnings, err));
        if (stat(r->config_path, &c->config_stat) != 0)
            return oct_fail(err, OCT_ERR_IO, "%s: %s", r->config_path, strerror(errno));
    }
    int64_t layers = h.given[OCT_HP_NUM_LAYERS] ? (int64_t)h.value[OCT_HP_NUM_LAYERS] : 0;
    OCT_TRY(oct_ckpt_open(r->checkpoint_dir, layers, &c->ckpt, &r->problems, err));
    OCT_TRY(oct_hparams_resolve(c->ckpt, r->config_path ? &h : NULL, r->config_path, where->text,
                                &c->config, err));
    r->config = c->config;
    r->is_grok1 = oct_hparams_is_grok1(c->ckpt, NULL);
    r->n_files = c->ckpt->n_leaves;
    for (int64_t i = 0; i < c->ckpt->n_leaves; i++)
        r->in_bytes += c->ckpt->leaves[i].n;
    return OCT_OK;
}

static int same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static int is_input(const void *ctx, const struct stat *st)
{
    const oct_conversion *c = ctx;
    for (int64_t i = 0; i < c->ckpt->n_leaves; i++)
        if (c->ckpt->leaves[i].device == st->st_dev && c->ckpt->leaves[i].inode == st->st_ino)
            return 1;
    return same_file(&c->tokenizer_stat, st) || same_file(&c->config_stat, st);
}

static oct_status prepare(const oct_convert_params *p, oct_conversion *c, oct_convert_report *r,
                          oct_error *err)
{
    places where;
    OCT_TRY(oct_ckpt_find(p->checkpoint, &r->checkpoint_dir, err));
    oct_status s = places_init(p->checkpoint, r->checkpoint_dir, &where, err);
    if (s == OCT_OK)
        s = take_checkpoint(p, &where, c, r, err);
    if (s == OCT_OK)
        s = take_tokenizer(p, &where, c, r, err);
    places_free(&where);
    OCT_TRY(s);
    OCT_TRY(oct_output_check(p->out, is_input, c, err));
    OCT_TRY(oct_conversion_plan(c, err));
    r->n_tensors = c->n_tensors;
    r->out_bytes = c->file_bytes;
    for (int64_t i = 0; i < c->n_tensors; i++)
        r->n_quantised += c->tensors[i].scales && oct_new_tensor_is_plain(&c->tensors[i]);
    return oct_output_room(p->out, c->file_bytes, err);
}

static void tell(const oct_conversion *c, oct_convert_phase phase)
{
    if (c->params->progress)
        c->params->progress(c->params->progress_ctx,
                            &(oct_convert_progress){.phase = phase, .temp = c->output.temp});
}

oct_status oct_convert(const oct_convert_params *p, oct_convert_report *r, oct_error *err)
{
    oct_conversion c = {.params = p, .output.fd = -1};
    oct_status s = prepare(p, &c, r, err);
    if (s == OCT_OK)
        s = oct_output_create(&c.output, p->out, c.file_bytes, &r->warnings, err);
    if (s == OCT_OK)
        s = oct_conversion_write(&c, err);
    if (s == OCT_OK) {
        tell(&c, OCT_CONVERT_SYNC);
        s = oct_output_sync(&c.output, err);
    }
    if (s == OCT_OK)
        s = oct_conversion_verify(&c, &r->q8_error, err);
    if (s == OCT_OK && p->cancel && *p->cancel)
        s = oct_fail(err, OCT_ERR_CANCELLED, "cancelled");
    if (s == OCT_OK)
        s = oct_output_publish(&c.output, err);
    if (s == OCT_OK)
        tell(&c, OCT_CONVERT_DONE);
    oct_output_close(&c.output);
    oct_conversion_free(&c);
    return s;
}

void oct_convert_report_free(oct_convert_report *r)
{
    oct_lines_free(&r->problems);
    oct_lines_free(&r->warnings);
    free(r->checkpoint_dir);
    free(r->config_path);
    free(r->tokenizer_path);
    *r = (oct_convert_report){0};
}
