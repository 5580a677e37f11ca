#include "checkpoint.h"
#include "file_map.h"
#include "zeros.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MAX_LAYERS = 4096,
    MAX_FILES = 2 + 12 * MAX_LAYERS,
    MAX_RANK = 3,
    MAX_VOTES = 8,
    READ_MAX = 256 << 20
};

/* Shapes are spelt with the first letters of these; small letters are scale groups. */
static const char dim_letters[OCT_CKPT_DIMS + 1] = "VDFEQKaogd";

static const struct {
    const char *path;   /* below transformer/decoder_layer_N, of a mixture of experts */
    const char *shape;  /* E is dropped for a dense model */
    const char *scales; /* NULL: always a plain array */
} roles[OCT_ROLES] = {[OCT_ROLE_GATE] = {"moe/linear", "EDF", "EgF"},
                      [OCT_ROLE_DOWN] = {"moe/linear_1", "EFD", "EdD"},
                      [OCT_ROLE_UP] = {"moe/linear_v", "EDF", "EgF"},
                      [OCT_ROLE_KEY] = {"multi_head_attention/key", "DK", "aK"},
                      [OCT_ROLE_ATTN_OUT] = {"multi_head_attention/linear", "QD", "oD"},
                      [OCT_ROLE_QUERY] = {"multi_head_attention/query", "DQ", "aQ"},
                      [OCT_ROLE_VALUE] = {"multi_head_attention/value", "DK", "aK"},
                      [OCT_ROLE_NORM_ATTN_IN] = {"rms_norm", "D", NULL},
                      [OCT_ROLE_NORM_ATTN_OUT] = {"rms_norm_1", "D", NULL},
                      [OCT_ROLE_NORM_FFN_IN] = {"rms_norm_2", "D", NULL},
                      [OCT_ROLE_NORM_FFN_OUT] = {"rms_norm_3", "D", NULL},
                      [OCT_ROLE_ROUTER] = {"router", "DE", NULL},
                      [OCT_ROLE_EMBEDDING] = {"language_model/in_out_embed", "VD", NULL},
                      [OCT_ROLE_NORM_FINAL] = {"language_model/rms_norm", "D", NULL}};

/* ---- the folder ----------------------------------------------------------------------------- */

/* A name of the form tensor<digits>_<digits>: its two numbers. */
static bool tensor_name(const char *name, int64_t *index, int64_t *part)
{
    const char *s = name + strlen("tensor");
    int64_t v[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        int digits = 0;
        for (; *s >= '0' && *s <= '9' && digits < 10; s++, digits++)
            v[i] = 10 * v[i] + (*s - '0');
        if (digits < (i ? 3 : 5) || *s != (i ? '\0' : '_'))
            return false;
        s++;
    }
    *index = v[0];
    *part = v[1];
    return true;
}

static bool starts_tensor(const char *name)
{
    return strncmp(name, "tensor", 6) == 0;
}

/* Whether a folder holds files called tensorNNNNN_NNN; false with errno set if it cannot be
 * read. */
static bool holds_tensors(const char *dir)
{
    DIR *d = opendir(dir);
    if (!d)
        return false;
    bool found = false;
    int64_t i, p;
    for (struct dirent *e; !found && (e = readdir(d));)
        found = starts_tensor(e->d_name) && tensor_name(e->d_name, &i, &p);
    closedir(d);
    errno = 0;
    return found;
}

oct_status oct_ckpt_find(const char *path, char **dir, oct_error *err)
{
    char *tried[2] = {strdup(path), NULL};
    oct_status s = OCT_OK;
    *dir = NULL;
    if (!tried[0] || asprintf(&tried[1], "%s/ckpt-0", path) < 0) {
        tried[1] = NULL;
        s = oct_fail(err, OCT_ERR_MEMORY, "out of memory");
    }
    for (int i = 0; i < 2 && s == OCT_OK && !*dir; i++) {
        errno = 0;
        if (holds_tensors(tried[i])) {
            *dir = tried[i];
            tried[i] = NULL;
        } else if (errno && errno != ENOENT && errno != ENOTDIR) {
            s = oct_fail(err, OCT_ERR_IO, "%s: %s", tried[i], strerror(errno));
        }
    }
    free(tried[0]);
    free(tried[1]);
    return s;
}

/* What download tools, systems and people leave beside a file: its name and one of these ends. */
static const struct {
    const char *end;
    bool unfinished; /* the file itself is not complete: the checkpoint is refused */
} side_files[] = {
    {".aria2", true},      {".aria2__temp", true}, {".part", true},       {".partial", true},
    {".crdownload", true}, {".download", true},    {".incomplete", true}, {".tmp", true},
    {".!qB", true},        {".!ut", true},         {".bc!", true},        {".sha256", false},
    {".sha256sum", false}, {".sha1", false},       {".sha512", false},    {".md5", false},
    {".md5sum", false},    {".crc32", false},      {".b3", false},        {".asc", false},
    {".sig", false},       {".torrent", false},    {".lock", false},      {".metadata", false},
    {"~", false}};

/* Whether a name is that of a tensor file and an end that is known, or a stream of one that Windows
 * kept (":Zone.Identifier"). */
static bool is_side_file(const char *name, bool *unfinished)
{
    char tensor[256];
    int64_t index, part;
    size_t n = strspn(name, "tensor0123456789_");
    if (n >= sizeof tensor || !name[n])
        return false;
    memcpy(tensor, name, n);
    tensor[n] = 0;
    if (!tensor_name(tensor, &index, &part))
        return false;
    *unfinished = false;
    if (name[n] == ':')
        return true;
    for (size_t i = 0; i < sizeof side_files / sizeof *side_files; i++)
        if (strcasecmp(name + n, side_files[i].end) == 0) {
            *unfinished = side_files[i].unfinished;
            return true;
        }
    return false;
}

/* One entry of the folder. */
static void list_file(const char *name, uint8_t *exists, int64_t *top, oct_lines *problems)
{
    int64_t index = 0, part = 0;
    char canonical[32];
    bool unfinished;
    if (is_side_file(name, &unfinished)) {
        if (unfinished)
            oct_lines_add(problems, "%s: the download of this file is not finished", name);
        return;
    }
    if (!tensor_name(name, &index, &part)) {
        oct_lines_add(problems, "%s: an odd name; expected tensorNNNNN_000", name);
        return;
    }
    snprintf(canonical, sizeof canonical, "tensor%05" PRId64 "_%03" PRId64, index, part);
    if (part != 0)
        oct_lines_add(problems, "%s: part %" PRId64 " of a tensor; expected one file (_000) each",
                      name, part);
    else if (strcmp(canonical, name) != 0)
        oct_lines_add(problems, "%s: a second spelling of %s", name, canonical);
    else if (index >= MAX_FILES)
        oct_lines_add(problems, "%s: beyond %d layers", name, MAX_LAYERS);
    else {
        exists[index] = 1;
        *top = index + 1 > *top ? index + 1 : *top;
    }
}

/* Marks the indices that exist; *top is the largest plus one. */
static oct_status list_files(const char *dir, uint8_t *exists, int64_t *top, oct_lines *problems,
                             oct_error *err)
{
    DIR *d = opendir(dir);
    if (!d)
        return oct_fail(err, OCT_ERR_IO, "%s: %s", dir, strerror(errno));
    struct dirent *e;
    for (errno = 0; (e = readdir(d)); errno = 0)
        if (starts_tensor(e->d_name))
            list_file(e->d_name, exists, top, problems);
    int failed = errno;
    closedir(d);
    if (failed)
        return oct_fail(err, OCT_ERR_IO, "%s: %s", dir, strerror(failed));
    return OCT_OK;
}

/* Reads a file's description. Trouble becomes a line. */
static void open_leaf(const char *dir, oct_ckpt_leaf *f, oct_lines *problems)
{
    char *path = NULL;
    struct stat st;
    oct_error err = {0};
    if (asprintf(&path, "%s/%s", dir, f->file) < 0) {
        problems->failed = true;
        return;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    free(path);
    if (fd < 0 || fstat(fd, &st) != 0) {
        oct_lines_add(problems, "%s: %s", f->file, strerror(errno));
        goto done;
    }
    if (!S_ISREG(st.st_mode)) {
        oct_lines_add(problems, "%s: not a regular file", f->file);
        goto done;
    }
    if (st.st_size == 0) {
        oct_lines_add(problems, "%s: the file is empty", f->file);
        goto done;
    }
    oct_hole_tell(fd, f->file, (uint64_t)st.st_size, problems);
    /* For as long as the few pages of opcodes are read: payloads are not, see source_xai.c. */
    size_t n = (size_t)st.st_size;
    void *p = oct_file_map(NULL, n, fd, 0, READ_MAX);
    if (!p) {
        oct_lines_add(problems, "%s: its %zu bytes cannot be mapped: %s%s", f->file, n,
                      strerror(errno),
                      errno == ENOMEM ? " (is the address space limited, by ulimit -v?)" : "");
        goto done;
    }
    f->n = n;
    f->device = st.st_dev;
    f->inode = st.st_ino;
    if (oct_pickle_read(f->file, p, n, &f->content, &err) == OCT_OK)
        f->parsed = true;
    else
        oct_lines_add(problems, "%s", err.text);
    munmap(p, n);
done:
    if (fd >= 0)
        close(fd);
}

/* ---- files, layers, roles ------------------------------------------------------------------- */

static int compare_numbers_as_text(const void *a, const void *b)
{
    char s[24], t[24];
    snprintf(s, sizeof s, "%" PRId64, *(const int64_t *)a);
    snprintf(t, sizeof t, "%" PRId64, *(const int64_t *)b);
    return strcmp(s, t);
}

/* Gives every leaf its layer, role and path. */
static oct_status name_leaves(oct_ckpt *c, oct_error *err)
{
    int64_t per_layer = c->dense ? 11 : 12;
    int64_t *order = malloc((size_t)c->n_layers * sizeof *order);
    c->layer_at = malloc((size_t)c->n_layers * sizeof *c->layer_at);
    if (!order || !c->layer_at) {
        free(order);
        return oct_fail(err, OCT_ERR_MEMORY, "out of memory");
    }
    for (int64_t i = 0; i < c->n_layers; i++)
        order[i] = i;
    qsort(order, (size_t)c->n_layers, sizeof *order, compare_numbers_as_text);
    for (int64_t i = 0; i < c->n_layers; i++)
        c->layer_at[order[i]] = i;
    for (int64_t i = 0; i < c->n_leaves; i++) {
        oct_ckpt_leaf *f = &c->leaves[i];
        if (i < 2) {
            f->role = i ? OCT_ROLE_NORM_FINAL : OCT_ROLE_EMBEDDING;
            f->layer = -1;
            snprintf(f->path, sizeof f->path, "%s", roles[f->role].path);
            continue;
        }
        f->role = (oct_role)((i - 2) % per_layer);
        f->layer = order[(i - 2) / per_layer];
        const char *p = roles[f->role].path;
        if (c->dense && strncmp(p, "moe/", 4) == 0)
            p += 4;
        snprintf(f->path, sizeof f->path, "transformer/decoder_layer_%" PRId64 "/%s", f->layer, p);
    }
    free(order);
    return OCT_OK;
}

/* Lines for files that are missing below n or exist from n on; runs are drawn together. */
static void list_gaps(const uint8_t *exists, int64_t top, int64_t n, oct_lines *problems)
{
    int64_t end = top > n ? top : n;
    for (int64_t i = 0; i < end;) {
        bool missing = i < n && !exists[i], surplus = i >= n && exists[i];
        int64_t j = i + 1;
        if (!missing && !surplus) {
            i = j;
            continue;
        }
        while (j < end && (missing ? j < n && !exists[j] : exists[j]))
            j++;
        const char *what = missing ? "missing" : "surplus";
        if (j - i == 1)
            oct_lines_add(problems, "tensor%05" PRId64 "_000: %s", i, what);
        else
            oct_lines_add(problems,
                          "tensor%05" PRId64 "_000 to tensor%05" PRId64 "_000: %s (%" PRId64
                          " files)",
                          i, j - 1, what, j - i);
        i = j;
    }
}

/* Dense or not: the first three files of a layer are the feed-forward part in both; experts give
 * them three dimensions. Then the number of layers from that of files. */
static oct_status count_layers(oct_ckpt *c, int64_t top, int64_t expect_layers, oct_lines *problems,
                               oct_error *err)
{
    int64_t moe = 0, dense = 0;
    for (int64_t i = 2; i < 5 && i < top; i++)
        if (c->leaves[i].parsed) {
            moe += c->leaves[i].content.weight.rank == 3;
            dense += c->leaves[i].content.weight.rank == 2;
        }
    if (moe == dense)
        return oct_fail(
            err, OCT_ERR_FORMAT,
            "%s: tensor00002_000 to tensor00004_000 must be the first layer's feed-forward "
            "matrices (2 or 3 dimensions); they are %s",
            c->dir, moe ? "of both kinds" : "missing, unreadable or of another kind");
    c->dense = dense > moe;
    int64_t per_layer = c->dense ? 11 : 12, whole = (top - 2) / per_layer;
    bool even = (top - 2) % per_layer == 0;
    if (expect_layers > 0 && even && whole != expect_layers)
        oct_lines_add(problems,
                      "the configuration says num_layers %" PRId64 " (%" PRId64
                      " files), the folder has %" PRId64 " files: %" PRId64 " layers",
                      expect_layers, 2 + per_layer * expect_layers, top, whole);
    c->n_layers = expect_layers > 0 ? expect_layers : whole + !even;
    c->n_leaves = 2 + per_layer * c->n_layers;
    if (c->n_layers < 1 || c->n_layers > MAX_LAYERS)
        return oct_fail(err, OCT_ERR_FORMAT, "%s: %" PRId64 " layers; expected 1 to %d", c->dir,
                        c->n_layers, MAX_LAYERS);
    return OCT_OK;
}

/* ---- shapes --------------------------------------------------------------------------------- */

/* The letters of a role's shape, without E for a dense model. */
static const char *spelling(const oct_ckpt *c, const char *shape)
{
    return c->dense && shape[0] == 'E' ? shape + 1 : shape;
}

static oct_ckpt_dim dim_of(char letter)
{
    return (oct_ckpt_dim)(strchr(dim_letters, letter) - dim_letters);
}

typedef struct votes {
    int64_t value[MAX_VOTES], count[MAX_VOTES];
} votes;

static void vote(votes *v, const char *shape, const oct_pickle_array *a)
{
    if ((size_t)a->rank != strlen(shape))
        return;
    for (int i = 0; i < a->rank; i++) {
        votes *w = &v[dim_of(shape[i])];
        for (int k = 0; k < MAX_VOTES; k++) {
            if (w->count[k] && w->value[k] != a->shape[i])
                continue;
            w->value[k] = a->shape[i];
            w->count[k]++;
            break;
        }
    }
}

/* Each size is what most files say, so that one odd file does not make all others look wrong. */
static void settle_sizes(oct_ckpt *c)
{
    votes v[OCT_CKPT_DIMS] = {0};
    for (int64_t i = 0; i < c->n_leaves; i++) {
        const oct_ckpt_leaf *f = &c->leaves[i];
        if (!f->parsed)
            continue;
        vote(v, spelling(c, roles[f->role].shape), &f->content.weight);
        if (f->content.quantised && roles[f->role].scales)
            vote(v, spelling(c, roles[f->role].scales), &f->content.scales);
    }
    for (int d = 0; d < OCT_CKPT_DIMS; d++) {
        int best = 0;
        for (int k = 1; k < MAX_VOTES; k++)
            if (v[d].count[k] > v[d].count[best])
                best = k;
        c->dim[d] = v[d].value[best];
    }
    if (c->dense)
        c->dim[OCT_CKPT_EXPERTS] = 1;
}

static void print_shape(const oct_pickle_array *a, char out[64])
{
    size_t n = (size_t)snprintf(out, 64, "%s[", oct_pickle_dtype_name(a->dtype));
    for (int i = 0; i < a->rank && n < 64; i++)
        n += (size_t)snprintf(out + n, 64 - n, "%s%" PRId64, i ? "," : "", a->shape[i]);
    if (n < 64)
        snprintf(out + n, 64 - n, "]");
}

/* Compares an array with the sizes of the model and says what was expected instead. */
static bool shape_fits(const oct_ckpt *c, const char *shape, const oct_pickle_array *a,
                       oct_pickle_array *expected)
{
    *expected = *a;
    expected->rank = (int)strlen(shape);
    bool same = a->rank == expected->rank;
    for (int i = 0; i < expected->rank; i++) {
        expected->shape[i] = c->dim[dim_of(shape[i])];
        same = same && a->shape[i] == expected->shape[i];
    }
    return same;
}

static void check_leaf(const oct_ckpt *c, const oct_ckpt_leaf *f, oct_lines *problems)
{
    const oct_pickle *p = &f->content;
    const char *shape = spelling(c, roles[f->role].shape), *scales = roles[f->role].scales;
    char found[64], want[64];
    oct_pickle_array expected;
    print_shape(&p->weight, found);
    if (p->quantised && !scales)
        oct_lines_add(problems,
                      "%s (%s): expected a plain f32 or bf16 array, found a "
                      "QuantizedWeight8bit",
                      f->file, f->path);
    else if (p->quantised &&
             (p->weight.dtype != OCT_PICKLE_I8 || p->scales.dtype != OCT_PICKLE_BF16))
        oct_lines_add(problems, "%s (%s): expected int8 weight and bf16 scales, found %s and %s",
                      f->file, f->path, oct_pickle_dtype_name(p->weight.dtype),
                      oct_pickle_dtype_name(p->scales.dtype));
    else if (!p->quantised && p->weight.dtype == OCT_PICKLE_I8)
        oct_lines_add(problems, "%s (%s): a plain int8 array without scales", f->file, f->path);
    else if (!shape_fits(c, shape, &p->weight, &expected)) {
        print_shape(&expected, want);
        oct_lines_add(problems, "%s (%s): expected %s, found %s", f->file, f->path, want, found);
    } else if (p->quantised) {
        int64_t n_in = p->weight.shape[p->weight.rank - 2];
        if (!shape_fits(c, spelling(c, scales), &p->scales, &expected)) {
            print_shape(&expected, want);
            print_shape(&p->scales, found);
            oct_lines_add(problems, "%s (%s): expected scales %s, found %s", f->file, f->path, want,
                          found);
        } else if (n_in % p->scales.shape[p->scales.rank - 2]) {
            oct_lines_add(problems,
                          "%s (%s): %" PRId64 " inputs are not a multiple of %" PRId64
                          " scale groups",
                          f->file, f->path, n_in, p->scales.shape[p->scales.rank - 2]);
        }
    }
}

static void check_shapes(oct_ckpt *c, oct_lines *problems)
{
    settle_sizes(c);
    for (int64_t i = 0; i < c->n_leaves; i++)
        if (c->leaves[i].parsed)
            check_leaf(c, &c->leaves[i], problems);
    if (!c->dense && c->dim[OCT_CKPT_EXPERTS] == 1)
        oct_lines_add(problems, "one expert, but the files are those of a mixture of experts");
}

/* A client that loads a whole folder leaves its mark beside it. */
static void check_finished(const char *dir, oct_lines *problems)
{
    char *mark = NULL;
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    if (asprintf(&mark, "%.*s.aria2", (int)n, dir) < 0) {
        problems->failed = true;
        return;
    }
    if (access(mark, F_OK) == 0)
        oct_lines_add(problems, "%s: the download of the folder is not finished", mark);
    free(mark);
}

/* ---- the whole ------------------------------------------------------------------------------ */

static oct_status scan(oct_ckpt *c, uint8_t *exists, int64_t expect_layers, oct_lines *problems,
                       oct_error *err)
{
    int64_t top = 0;
    check_finished(c->dir, problems);
    OCT_TRY(list_files(c->dir, exists, &top, problems, err));
    int64_t room = top;
    if (expect_layers > 0 && 2 + 12 * expect_layers > room)
        room = 2 + 12 * expect_layers;
    room += 12; /* an unfinished last layer is filled up */
    c->leaves = calloc((size_t)room, sizeof *c->leaves);
    if (!c->leaves)
        return oct_fail(err, OCT_ERR_MEMORY, "out of memory");
    for (int64_t i = 0; i < room; i++) {
        snprintf(c->leaves[i].file, sizeof c->leaves[i].file, "tensor%05" PRId64 "_000", i);
        if (i < top && exists[i])
            open_leaf(c->dir, &c->leaves[i], problems);
    }
    oct_status s = count_layers(c, top, expect_layers, problems, err);
    if (s != OCT_OK) {
        list_gaps(exists, top, top, problems);
        return s;
    }
    list_gaps(exists, top, c->n_leaves, problems);
    OCT_TRY(name_leaves(c, err));
    check_shapes(c, problems);
    return OCT_OK;
}

oct_status oct_ckpt_open(const char *dir, int64_t expect_layers, oct_ckpt **out,
                         oct_lines *problems, oct_error *err)
{
    *out = NULL;
    if (expect_layers > MAX_LAYERS)
        return oct_fail(err, OCT_ERR_ARG, "%" PRId64 " layers; at most %d are supported",
                        expect_layers, MAX_LAYERS);
    oct_ckpt *c = calloc(1, sizeof *c);
    uint8_t *exists = calloc(MAX_FILES, 1);
    oct_status s = OCT_OK;
    if (c)
        c->dir = strdup(dir);
    if (!c || !exists || !c->dir)
        s = oct_fail(err, OCT_ERR_MEMORY, "out of memory");
    else
        s = scan(c, exists, expect_layers, problems, err);
    free(exists);
    if (s == OCT_OK && problems->failed)
        s = oct_fail(err, OCT_ERR_MEMORY, "out of memory");
    if (s == OCT_OK && problems->n)
        s = oct_fail(err, OCT_ERR_FORMAT,
                     "%s: %zu problem%s with the checkpoint's files, the first: %s", dir,
                     problems->n, problems->n > 1 ? "s" : "", problems->line[0]);
    if (s != OCT_OK) {
        oct_ckpt_free(c);
        return s;
    }
    *out = c;
    return OCT_OK;
}

void oct_ckpt_free(oct_ckpt *c)
{
    if (!c)
        return;
    free(c->leaves);
    free(c->layer_at);
    free(c->dir);
    free(c);
}

const oct_ckpt_leaf *oct_ckpt_leaf_of(const oct_ckpt *c, oct_role role, int64_t layer)
{
    if (role == OCT_ROLE_EMBEDDING)
        return &c->leaves[0];
    if (role == OCT_ROLE_NORM_FINAL)
        return &c->leaves[1];
    return &c->leaves[2 + c->layer_at[layer] * (c->dense ? 11 : 12) + role];
}
