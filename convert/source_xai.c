/* source_xai.c: xAI's release: ckpt-0, a folder of pickles (checkpoint.h), and the numbers of
 * config.json (hparams.h). Matrices lie [in][out]. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint.h"
#include "file_map.h"
#include "hparams.h"
#include "source.h"

typedef struct xai {
    oct_source base;
    oct_ckpt *ckpt;
} xai;

static const oct_ckpt *ckpt_of(const oct_source *s)
{
    return ((const xai *)(const void *)s)->ckpt;
}

static void close_xai(oct_source *s)
{
    xai *x = (xai *)(void *)s;
    oct_ckpt_free(x->ckpt);
    oct_source_free_common(s);
    free(x);
}

/* Configuration file, checkpoint, configuration, tokenizer. */
static oct_status fill(xai *x, const oct_source_params *p, const oct_folders *where, oct_error *err)
{
    oct_source *s = &x->base;
    oct_hparams h = {0};
    OCT_TRY(oct_folders_find(where, p->config, "config.json", &s->config_path, err));
    if (s->config_path) {
        OCT_TRY(oct_hparams_read(s->config_path, OCT_HPARAM_XAI, &h, p->warnings, err));
        if (stat(s->config_path, &s->config_stat) != 0)
            return oct_fail(err, OCT_ERR_IO, "%s: %s", s->config_path, strerror(errno));
    }
    int64_t layers = h.given[OCT_HP_NUM_LAYERS] ? (int64_t)h.value[OCT_HP_NUM_LAYERS] : 0;
    OCT_TRY(oct_ckpt_open(p->root, layers, &x->ckpt, p->problems, err));
    OCT_TRY(oct_hparams_resolve(x->ckpt, s->config_path ? &h : NULL, s->config_path, where->text,
                                &s->config, err));
    s->is_grok1 = oct_hparams_is_grok1(x->ckpt, NULL);
    s->n_files = x->ckpt->n_leaves;
    for (int64_t i = 0; i < x->ckpt->n_leaves; i++)
        s->n_bytes += x->ckpt->leaves[i].n;
    return oct_source_take_tokenizer(s, p, where, err);
}

static oct_status open_xai(const oct_source_params *p, oct_source **out, oct_error *err)
{
    oct_folders where;
    xai *x = calloc(1, sizeof *x);
    *out = NULL;
    if (!x || !(x->base.dir = strdup(p->root))) {
        free(x);
        return oct_fail(err, OCT_ERR_MEMORY, "out of memory");
    }
    x->base.kind = &oct_source_xai;
    oct_status s = oct_folders_init(p->path, p->root, &where, err);
    if (s == OCT_OK) {
        s = fill(x, p, &where, err);
        oct_folders_free(&where);
    }
    if (s != OCT_OK) {
        close_xai(&x->base);
        return s;
    }
    *out = &x->base;
    return OCT_OK;
}

static void describe(const oct_source *s, oct_role role, int64_t layer, oct_source_tensor *t)
{
    static const oct_source_dtype dtypes[] = {[OCT_PICKLE_I8] = OCT_SOURCE_I8,
                                              [OCT_PICKLE_BF16] = OCT_SOURCE_BF16,
                                              [OCT_PICKLE_F32] = OCT_SOURCE_F32};
    const oct_ckpt_leaf *f = oct_ckpt_leaf_of(ckpt_of(s), role, layer);
    const oct_pickle_array *w = &f->content.weight, *scales = &f->content.scales;
    const int64_t rows = w->rank > 1 ? w->shape[w->rank - 2] : 1, columns = w->shape[w->rank - 1];
    const bool turned = role == OCT_ROLE_EMBEDDING;
    *t = (oct_source_tensor){.role = role,
                             .layer = f->layer,
                             .dtype = dtypes[w->dtype],
                             .order = turned ? OCT_OUT_IN : OCT_IN_OUT,
                             .n_experts = w->rank == 3 ? w->shape[0] : 1,
                             .n_in = turned ? columns : rows,
                             .n_out = turned ? rows : columns,
                             .n_groups = f->content.quantised ? scales->shape[scales->rank - 2] : 0,
                             .own = f};
}

static const oct_pickle_array *array_of(const oct_ckpt_leaf *f, oct_source_part part)
{
    return part == OCT_SOURCE_SCALES ? &f->content.scales : &f->content.weight;
}

/* Opens the file of a leaf, which must still be the one that was checked. */
static oct_status open_leaf(const oct_source *s, const oct_ckpt_leaf *f, int *fd, oct_error *err)
{
    char path[4096];
    struct stat st;
    if (snprintf(path, sizeof path, "%s/%s", s->dir, f->file) >= (int)sizeof path)
        return oct_fail(err, OCT_ERR_IO, "%s: %s", s->dir, strerror(ENAMETOOLONG));
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return oct_fail(err, OCT_ERR_IO, "%s: %s", path, strerror(errno));
    if (fstat(*fd, &st) == 0 && st.st_dev == f->device && st.st_ino == f->inode &&
        st.st_size == (off_t)f->n)
        return OCT_OK;
    close(*fd);
    return oct_fail(err, OCT_ERR_IO, "%s: has changed since it was checked", path);
}

static oct_status read_all(const oct_source *s, const oct_ckpt_leaf *f, int fd, void *out, size_t n,
                           size_t at, oct_error *err)
{
    const int64_t have = oct_file_read(fd, out, n, at);
    if (have == (int64_t)n)
        return OCT_OK;
    return oct_fail(err, OCT_ERR_IO, "%s/%s: reading %zu bytes at %zu: %s", s->dir, f->file, n, at,
                    have < 0 ? strerror(errno) : "the file has become shorter");
}

static oct_status read_block(const oct_source *s, const oct_source_tensor *t, oct_source_part part,
                             const oct_block *b, void *out, oct_error *err)
{
    const oct_ckpt_leaf *f = t->own;
    const oct_pickle_array *a = array_of(f, part);
    const size_t element = oct_pickle_dtype_bytes(a->dtype);
    const int64_t rows = a->rank > 1 ? a->shape[a->rank - 2] : 1, columns = a->shape[a->rank - 1];
    /* Whole rows follow each other. */
    const bool whole = b->n_columns == columns;
    const int64_t n_runs = whole ? 1 : b->n_rows;
    const size_t n = (size_t)(whole ? b->n_rows * columns : b->n_columns) * element;
    int fd;
    OCT_TRY(open_leaf(s, f, &fd, err));
    oct_status status = OCT_OK;
    for (int64_t r = 0; r < n_runs && status == OCT_OK; r++) {
        int64_t first = (b->expert * rows + b->row + r) * columns + b->column;
        status = read_all(s, f, fd, (uint8_t *)out + (size_t)r * n, n,
                          a->at + (size_t)first * element, err);
    }
    close(fd);
    return status;
}

static void where(const oct_source *s, const oct_source_tensor *t, oct_source_part part,
                  int64_t expert, int64_t row, int64_t column, char text[OCT_SOURCE_WHERE])
{
    const oct_ckpt_leaf *f = t->own;
    const oct_pickle_array *a = array_of(f, part);
    const int64_t index[] = {expert, row, column};
    (void)s;
    size_t n = (size_t)snprintf(text, OCT_SOURCE_WHERE, "%s (%s): %s[", f->file, f->path,
                                part == OCT_SOURCE_SCALES ? "scales" : "element ");
    for (int d = 0; d < a->rank; d++)
        n += (size_t)snprintf(text + n, OCT_SOURCE_WHERE - n, "%s%" PRId64, d ? "," : "",
                              index[3 - a->rank + d]);
    snprintf(text + n, OCT_SOURCE_WHERE - n, "]");
}

static void prefetch(const oct_source *s, const oct_source_tensor *t, int64_t expert)
{
    const oct_ckpt_leaf *f = t->own;
    const oct_pickle_array *a = &f->content.weight;
    const size_t n = a->bytes / (size_t)t->n_experts;
    int fd;
    if (open_leaf(s, f, &fd, NULL) != OCT_OK)
        return; /* whoever reads will tell */
    (void)posix_fadvise(fd, (off_t)(a->at + (size_t)expert * n), (off_t)n, POSIX_FADV_WILLNEED);
    close(fd);
}

static bool is_file(const oct_source *s, const struct stat *st)
{
    const oct_ckpt *c = ckpt_of(s);
    for (int64_t i = 0; i < c->n_leaves; i++)
        if (c->leaves[i].device == st->st_dev && c->leaves[i].inode == st->st_ino)
            return true;
    return false;
}

const oct_source_kind oct_source_xai = {
    .name = "an xAI checkpoint",
    .looks = "the folder that holds ckpt-0, or ckpt-0 itself, with files called tensor00000_000, "
             "tensor00001_000, ...",
    .recognise = oct_ckpt_find,
    .open = open_xai,
    .close = close_xai,
    .tensor = describe,
    .read = read_block,
    .where = where,
    .prefetch = prefetch,
    .is_file = is_file,
};
