/* source.c: which format a path is, reading tiles, and what sources that are folders share. */
#include "source.h"
#include "zeros.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "f16.h"
#include "file_map.h"
#include "gguf.h"
#include "sniff.h"

#if defined(__x86_64__)
#include <emmintrin.h> /* of every x86-64 */
#endif

/* All formats there are. */
static const oct_source_kind *const kinds[] = {&oct_source_xai, &oct_source_safetensors};

enum {
    N_KINDS = sizeof kinds / sizeof *kinds,
    BUFFER = 256 << 10,  /* of what is turned or converted on the way */
    RUN = 4096,          /* elements of a row that are read at once then */
    MAX_DEPTH = 3,       /* folders below the one that was named, when looking for a checkpoint */
    MAX_LOOKED_AT = 2000 /* entries, in all of them */
};

static oct_status no_memory(oct_error *err)
{
    return oct_fail(err, OCT_ERR_MEMORY, "out of memory");
}

/* ---- what a path is ------------------------------------------------------------------------- */

/* The first format that knows the path; *kind stays NULL if none does. */
static oct_status recognise(const char *path, const oct_source_kind **kind, char **root,
                            oct_error *err)
{
    *kind = NULL;
    *root = NULL;
    for (int i = 0; i < N_KINDS && !*kind; i++) {
        OCT_TRY(kinds[i]->recognise(path, root, err));
        if (*root)
            *kind = kinds[i];
    }
    return OCT_OK;
}

/* What folders hold that no format knows, by the ends of names. */
static const struct {
    const char *end, *what;
} strangers[] = {
    {".gguf", "GGUF files"},
    {".bin.index.json", "a Hugging Face model of PyTorch files"},
    {".pth", "PyTorch files"},
    {".pt", "PyTorch files"},
    {".bin", "a Hugging Face model of PyTorch files"},
    {".npz", "numpy archives"},
    {".torrent", "a torrent's description, not what it names"},
    {".tar", "an archive that has to be unpacked first"},
    {".tar.gz", "an archive that has to be unpacked first"},
    {".zip", "an archive that has to be unpacked first"},
    {".aria2", "an unfinished download"},
    {".part", "an unfinished download"},
    {".!qB", "an unfinished download"},
    {".incomplete", "an unfinished download"},
};

enum { N_STRANGERS = sizeof strangers / sizeof *strangers };

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

/* Looks through a folder and those below it for a checkpoint. */
typedef struct search {
    int looked_at;
    int64_t entries;        /* of the folder itself */
    int stranger;           /* least index into strangers of a name in it; N_STRANGERS: none */
    char example[64];       /* the name */
    char *found;            /* a folder below that is a checkpoint, malloc'd */
    const char *found_name; /* its format's */
} search;

static void look_below(search *s, const char *dir, int depth);

static void look_at(search *s, const char *dir, const struct dirent *e, int depth)
{
    char *path = NULL, *root = NULL;
    const oct_source_kind *kind;
    struct stat st;
    for (int i = 0; depth == 0 && i < s->stranger; i++)
        if (ends_with(e->d_name, strangers[i].end)) {
            s->stranger = i;
            snprintf(s->example, sizeof s->example, "%s", e->d_name);
        }
    if (e->d_type == DT_REG || asprintf(&path, "%s/%s", dir, e->d_name) < 0)
        return;
    if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode)) { /* not links: they could go round */
        if (recognise(path, &kind, &root, NULL) == OCT_OK && kind) {
            s->found = path;
            s->found_name = kind->name;
            free(root);
            return;
        }
        if (depth + 1 < MAX_DEPTH)
            look_below(s, path, depth + 1);
    }
    free(path);
}

static void look_below(search *s, const char *dir, int depth)
{
    DIR *d = opendir(dir);
    for (struct dirent *e; d && !s->found && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        s->entries += depth == 0;
        if (s->looked_at++ == MAX_LOOKED_AT)
            break;
        look_at(s, dir, e, depth);
    }
    if (d)
        closedir(d);
}

/* "expected a folder with ..., or ..." */
static void expectation(char text[400])
{
    size_t n = 0;
    for (int i = 0; i < N_KINDS && n < 400; i++)
        n += (size_t)snprintf(text + n, 400 - n, "%s%s", i ? ", or " : "", kinds[i]->looks);
}

static oct_status unknown_folder(const char *path, oct_error *err)
{
    search s = {.stranger = N_STRANGERS};
    char expected[400];
    expectation(expected);
    look_below(&s, path, 0);
    oct_status status;
    if (s.found)
        status = oct_fail(err, OCT_ERR_FORMAT,
                          "%s: not a checkpoint itself, but %s below it is %s: name that", path,
                          s.found, s.found_name);
    else if (s.entries == 0)
        status = oct_fail(err, OCT_ERR_FORMAT,
                          "%s: no checkpoint: the folder is empty; expected %s", path, expected);
    else if (s.stranger < N_STRANGERS)
        status = oct_fail(err, OCT_ERR_FORMAT,
                          "%s: no checkpoint that octet converts: it holds %s (%s); expected %s",
                          path, strangers[s.stranger].what, s.example, expected);
    else
        status =
            oct_fail(err, OCT_ERR_FORMAT, "%s: no checkpoint in it; expected %s", path, expected);
    free(s.found);
    return status;
}

/* What a GGUF file is good for. */
static oct_status found_gguf(const char *path, const char *expected, oct_error *err)
{
    oct_gguf *g = NULL;
    const char *arch = NULL;
    bool known = oct_gguf_open(path, &g, NULL) == OCT_OK &&
                 oct_gguf_get_str(g, "general.architecture", &arch, NULL) == OCT_OK;
    oct_status s;
    if (known && strcmp(arch, OCT_GROK_ARCH) == 0)
        s = oct_fail(err, OCT_ERR_FORMAT,
                     "%s: a model file already: octet run takes it as it is; to convert, name %s",
                     path, expected);
    else
        s = oct_fail(err, OCT_ERR_UNSUPPORTED,
                     "%s: a GGUF file%s%.40s%s, made for another runtime; expected %s", path,
                     known ? " of architecture '" : "", known ? arch : "", known ? "'" : "",
                     expected);
    oct_gguf_close(g);
    return s;
}

static oct_status unknown_file(const char *path, oct_error *err)
{
    char expected[400], start[64];
    expectation(expected);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd >= 0 ? read(fd, start, sizeof start) : -1;
    if (fd >= 0)
        close(fd);
    if (n >= 4 && memcmp(start, "GGUF", 4) == 0)
        return found_gguf(path, expected, err);
    const char *what = n > 0 ? oct_sniff(start, (size_t)n) : NULL;
    return oct_fail(err, OCT_ERR_ARG, "%s: not a folder%s%s; expected %s", path,
                    what ? ", but " : "", what ? what : "", expected);
}

oct_status oct_source_open(oct_source_params *p, oct_source **out, oct_error *err)
{
    const oct_source_kind *kind;
    struct stat st;
    char *root;
    *out = NULL;
    if (stat(p->path, &st) != 0)
        return oct_fail(err, OCT_ERR_IO, "%s: %s", p->path, strerror(errno));
    OCT_TRY(recognise(p->path, &kind, &root, err));
    if (!kind)
        return S_ISDIR(st.st_mode) ? unknown_folder(p->path, err) : unknown_file(p->path, err);
    p->root = root;
    oct_status s = kind->open(p, out, err);
    p->root = NULL;
    free(root);
    OCT_TRY(s);
    (*out)->zeros = oct_zeros_new();
    if ((*out)->zeros)
        return OCT_OK;
    oct_source_close(*out);
    *out = NULL;
    return no_memory(err);
}

void oct_source_close(oct_source *s)
{
    if (!s)
        return;
    oct_zeros_free(s->zeros);
    s->zeros = NULL;
    s->kind->close(s);
}

/* ---- tiles ---------------------------------------------------------------------------------- */

static bool rows_are_inputs(const oct_source_tensor *t)
{
    return t->order == OCT_IN_OUT;
}

static oct_block block_of(const oct_source_tensor *t, const oct_tile *x)
{
    return rows_are_inputs(t) ? (oct_block){x->expert, x->in, x->n_in, x->out, x->n_out}
                              : (oct_block){x->expert, x->out, x->n_out, x->in, x->n_in};
}

static size_t element_bytes(const oct_source_tensor *t, oct_source_part part)
{
    if (part == OCT_SOURCE_SCALES || t->dtype == OCT_SOURCE_BF16)
        return 2;
    return t->dtype == OCT_SOURCE_I8 ? 1 : 4;
}

void oct_source_where(const oct_source *s, const oct_source_tensor *t, oct_source_part part,
                      int64_t expert, int64_t in, int64_t out, char text[OCT_SOURCE_WHERE])
{
    bool inputs = rows_are_inputs(t);
    s->kind->where(s, t, part, expert, inputs ? in : out, inputs ? out : in, text);
}

/* n elements, one after the other, to every stride-th place. wide: bf16 becomes f32. */
static void spread(const uint8_t *from, size_t element, bool wide, int64_t n, void *to,
                   int64_t stride)
{
    if (element == 1) {
        for (int64_t i = 0; i < n; i++)
            ((uint8_t *)to)[i * stride] = from[i];
    } else if (element == 2 && wide) {
        const uint16_t *b = (const uint16_t *)(const void *)from;
        for (int64_t i = 0; i < n; i++)
            ((float *)to)[i * stride] = oct_f32_of_bf16(b[i]);
    } else if (element == 2) {
        const uint16_t *b = (const uint16_t *)(const void *)from;
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)to)[i * stride] = b[i];
    } else {
        const float *b = (const float *)(const void *)from;
        for (int64_t i = 0; i < n; i++)
            ((float *)to)[i * stride] = b[i];
    }
}

enum { SQUARE = 16 };

/* SQUARE bytes from each of SQUARE rows: byte j of row i becomes byte i of row j. */
#if defined(__x86_64__)
static void turn_square(const uint8_t *from, size_t pitch, uint8_t *to, size_t to_pitch)
{
    __m128i a[SQUARE], b[SQUARE];
    for (int i = 0; i < SQUARE; i++)
        a[i] = _mm_loadu_si128((const __m128i *)(const void *)(from + (size_t)i * pitch));
    /* Four times: rows i and i + 8 shuffled like cards. */
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < SQUARE / 2; i++) {
            b[2 * i] = _mm_unpacklo_epi8(a[i], a[i + SQUARE / 2]);
            b[2 * i + 1] = _mm_unpackhi_epi8(a[i], a[i + SQUARE / 2]);
        }
        memcpy(a, b, sizeof a);
    }
    for (int i = 0; i < SQUARE; i++)
        _mm_storeu_si128((__m128i *)(void *)(to + (size_t)i * to_pitch), a[i]);
}
#else
static void turn_square(const uint8_t *from, size_t pitch, uint8_t *to, size_t to_pitch)
{
    for (size_t j = 0; j < SQUARE; j++)
        for (size_t i = 0; i < SQUARE; i++)
            to[j * to_pitch + i] = from[i * pitch + j];
}
#endif

/* Rows of n_columns bytes to columns of `to`. Through a small block, since rows whose length is a
 * power of two share few sets of the cache. */
static void turn_bytes(const uint8_t *from, int64_t n_rows, int64_t n_columns, uint8_t *to,
                       int64_t pitch)
{
    enum { SIDE = 64 };
    uint8_t block[SIDE][SIDE];
    for (int64_t r = 0; r < n_rows; r += SIDE)
        for (int64_t c = 0; c < n_columns; c += SIDE) {
            const int nr = n_rows - r < SIDE ? (int)(n_rows - r) : SIDE;
            const int nc = n_columns - c < SIDE ? (int)(n_columns - c) : SIDE;
            uint8_t *corner = to + c * pitch + r;
            for (int i = 0; i < nr; i++)
                memcpy(block[i], from + (r + i) * n_columns + c, (size_t)nc);
            for (int j = 0; j < nc; j += SQUARE)
                for (int i = 0; i < nr; i += SQUARE) {
                    if (j + SQUARE <= nc && i + SQUARE <= nr) {
                        turn_square(&block[i][j], SIDE, corner + j * pitch + i, (size_t)pitch);
                        continue;
                    }
                    for (int k = j; k < j + SQUARE && k < nc; k++)
                        for (int l = i; l < i + SQUARE && l < nr; l++)
                            corner[k * pitch + l] = block[l][k];
                }
        }
}

/* How many elements of a row are read at once when it is turned or converted: of int8 whole groups,
 * if they are not longer than the buffer, since a source may have to look at one as a whole. */
static int64_t run_of(const oct_source_tensor *t, int64_t n_columns)
{
    const int64_t group = t->n_groups && !rows_are_inputs(t) ? t->n_in / t->n_groups : RUN;
    int64_t run = group > RUN / 2 && group <= BUFFER / 8 ? group : RUN;
    return n_columns < run ? n_columns : run;
}

static oct_status read_block(const oct_source *s, const oct_source_tensor *t, oct_source_part part,
                             const oct_block *b, void *out, oct_error *err)
{
    OCT_TRY(s->kind->read(s, t, part, b, out, err));
    if (s->zeros)
        oct_zeros_look(s->zeros, t, part, b, out);
    return OCT_OK;
}

/* A tile in the order that is wanted; wide: bf16 becomes f32. */
static oct_status read_tile(const oct_source *s, const oct_source_tensor *t, oct_source_part part,
                            const oct_tile *tile, oct_order order, bool wide, void *out,
                            oct_error *err)
{
    const oct_block whole = block_of(t, tile);
    const size_t element = element_bytes(t, part);
    const bool turned = order != t->order;
    wide = wide && element == 2;
    if (!turned && !wide)
        return read_block(s, t, part, &whole, out, err);
    const size_t width = wide ? 4 : element;
    const int64_t row_step = turned ? 1 : whole.n_columns, step = turned ? whole.n_rows : 1;
    const int64_t run = run_of(t, whole.n_columns);
    int64_t rows = BUFFER / ((int64_t)element * run);
    rows -= rows > SQUARE ? rows % SQUARE : 0;
    uint8_t *buffer = malloc(BUFFER);
    oct_status status = buffer ? OCT_OK : no_memory(err);
    for (int64_t r = 0; r < whole.n_rows && status == OCT_OK; r += rows)
        for (int64_t c = 0; c < whole.n_columns && status == OCT_OK; c += run) {
            oct_block b = {whole.expert, whole.row + r, whole.n_rows - r, whole.column + c,
                           whole.n_columns - c};
            b.n_rows = b.n_rows < rows ? b.n_rows : rows;
            b.n_columns = b.n_columns < run ? b.n_columns : run;
            status = read_block(s, t, part, &b, buffer, err);
            if (status == OCT_OK && turned && element == 1) {
                turn_bytes(buffer, b.n_rows, b.n_columns, (uint8_t *)out + r + c * step, step);
                continue;
            }
            for (int64_t i = 0; i < b.n_rows && status == OCT_OK; i++)
                spread(buffer + (size_t)(i * b.n_columns) * element, element, wide, b.n_columns,
                       (uint8_t *)out + (size_t)((r + i) * row_step + c * step) * width, step);
        }
    free(buffer);
    return status;
}

static oct_status not_finite(const oct_source *s, const oct_source_tensor *t, oct_source_part part,
                             int64_t expert, int64_t in, int64_t out, float v, oct_error *err)
{
    char where[OCT_SOURCE_WHERE];
    oct_source_where(s, t, part, expert, in, out, where);
    return oct_fail(err, OCT_ERR_NUMERIC, "%s is %s; expected a finite number", where,
                    isnan(v) ? "NaN" : "infinite");
}

oct_status oct_source_read_i8(const oct_source *s, const oct_source_tensor *t, const oct_tile *tile,
                              int8_t *out, oct_error *err)
{
    return read_tile(s, t, OCT_SOURCE_WEIGHTS, tile, OCT_IN_OUT, false, out, err);
}

oct_status oct_source_read_scales(const oct_source *s, const oct_source_tensor *t,
                                  const oct_tile *x, uint16_t *out, oct_error *err)
{
    OCT_TRY(read_tile(s, t, OCT_SOURCE_SCALES, x, OCT_IN_OUT, false, out, err));
    for (int64_t i = 0; i < x->n_in * x->n_out; i++)
        if ((out[i] & 0x7f80) == 0x7f80)
            return not_finite(s, t, OCT_SOURCE_SCALES, x->expert, x->in + i / x->n_out,
                              x->out + i % x->n_out, oct_f32_of_bf16(out[i]), err);
    return OCT_OK;
}

oct_status oct_source_read_f32(const oct_source *s, const oct_source_tensor *t, const oct_tile *x,
                               oct_order order, float *out, oct_error *err)
{
    OCT_TRY(read_tile(s, t, OCT_SOURCE_WEIGHTS, x, order, true, out, err));
    const int64_t columns = order == OCT_IN_OUT ? x->n_out : x->n_in;
    for (int64_t i = 0; i < x->n_in * x->n_out; i++)
        if (!isfinite(out[i])) {
            int64_t row = i / columns, column = i % columns;
            return not_finite(s, t, OCT_SOURCE_WEIGHTS, x->expert,
                              x->in + (order == OCT_IN_OUT ? row : column),
                              x->out + (order == OCT_IN_OUT ? column : row), out[i], err);
        }
    return OCT_OK;
}

/* ---- folders -------------------------------------------------------------------------------- */

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

void oct_folders_free(oct_folders *f)
{
    for (int i = 0; i < OCT_SOURCE_FOLDERS; i++)
        free(f->dir[i]);
    free(f->text);
    *f = (oct_folders){0};
}

oct_status oct_folders_init(const char *path, const char *root, oct_folders *f, oct_error *err)
{
    *f = (oct_folders){{strdup(root)}, NULL};
    /* What the user named comes second even if the root is a link to somewhere else. */
    f->dir[1] = strcmp(path, root) ? strdup(path) : above(root);
    f->dir[2] = f->dir[1] ? above(f->dir[1]) : NULL;
    if (f->dir[0] && f->dir[2] &&
        asprintf(&f->text, "%s, %s, %s", f->dir[0], f->dir[1], f->dir[2]) >= 0)
        return OCT_OK;
    f->text = NULL;
    oct_folders_free(f);
    return no_memory(err);
}

oct_status oct_folders_find(const oct_folders *f, const char *given, const char *name, char **out,
                            oct_error *err)
{
    *out = NULL;
    if (given) {
        *out = strdup(given);
        return *out ? OCT_OK : no_memory(err);
    }
    for (int i = 0; i < OCT_SOURCE_FOLDERS; i++) {
        char *path = NULL;
        if (asprintf(&path, "%s/%s", f->dir[i], name) < 0)
            return no_memory(err);
        if (access(path, F_OK) == 0) {
            *out = path;
            return OCT_OK;
        }
        free(path);
    }
    return OCT_OK;
}

static oct_status map_tokenizer(oct_source *s, oct_error *err)
{
    const char *path = s->tokenizer_path;
    struct stat *st = &s->tokenizer_stat;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    oct_status status = OCT_OK;
    if (fd < 0 || fstat(fd, st) != 0)
        status = oct_fail(err, OCT_ERR_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st->st_mode) || st->st_size == 0)
        status = oct_fail(err, OCT_ERR_FORMAT, "%s: not a SentencePiece model: %s", path,
                          S_ISDIR(st->st_mode)   ? "it is a folder"
                          : S_ISREG(st->st_mode) ? "the file is empty"
                                                 : "not a regular file");
    if (status == OCT_OK) {
        void *p = oct_file_map(NULL, (size_t)st->st_size, fd, 0, SIZE_MAX);
        if (!p) {
            status = oct_fail(err, OCT_ERR_IO, "%s: cannot be mapped: %s", path, strerror(errno));
        } else {
            s->tokenizer = p;
            s->tokenizer_bytes = (size_t)st->st_size;
        }
    }
    if (fd >= 0)
        close(fd);
    return status;
}

oct_status oct_source_take_tokenizer(oct_source *s, const oct_source_params *p,
                                     const oct_folders *f, oct_error *err)
{
    if (p->no_tokenizer)
        return OCT_OK;
    OCT_TRY(oct_folders_find(f, p->tokenizer, "tokenizer.model", &s->tokenizer_path, err));
    if (!s->tokenizer_path)
        return oct_fail(err, OCT_ERR_ARG,
                        "tokenizer.model is needed and was found in none of %s; name "
                        "one (--tokenizer) or make a file without (--no-tokenizer)",
                        f->text);
    return map_tokenizer(s, err);
}

void oct_source_free_common(oct_source *s)
{
    if (s->tokenizer)
        munmap((void *)(uintptr_t)s->tokenizer, s->tokenizer_bytes);
    free(s->dir);
    free(s->config_path);
    free(s->tokenizer_path);
}
