/* hub.c: folders of safetensors, see hub.h. */
#include "hub.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "source.h"
#include "zeros.h"

#define INDEX "model.safetensors.index.json"
#define END ".safetensors"

enum {
    MAX_INDEX = 16 << 20, /* bytes */
    INDEX_DEPTH = 4,      /* metadata may nest */
    MAX_INDEX_VALUES = 1 << 18,
    MAX_TENSORS = 1 << 17 /* of all shards */
};

static oct_status no_memory(oct_error *err)
{
    return oct_fail(err, OCT_ERR_MEMORY, "out of memory");
}

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), k = strlen(end);
    return n > k && strcmp(s + n - k, end) == 0;
}

/* ---- finding -------------------------------------------------------------------------------- */

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Whether a folder holds names that end as shards do. */
static bool holds_shards(const char *dir)
{
    DIR *d = opendir(dir);
    bool found = false;
    for (struct dirent *e; d && !found && (e = readdir(d));)
        found = ends_with(e->d_name, END) || strcmp(e->d_name, INDEX) == 0;
    if (d)
        closedir(d);
    return found;
}

/* The snapshot that refs/main names, malloc'd; NULL: path is no model's folder of the cache. */
static char *snapshot_of(const char *path)
{
    char *ref = NULL, *dir = NULL, commit[80] = "";
    if (asprintf(&ref, "%s/refs/main", path) < 0)
        return NULL;
    FILE *f = fopen(ref, "re");
    free(ref);
    if (f && fgets(commit, sizeof commit, f))
        commit[strspn(commit, "0123456789abcdef")] = 0;
    else
        commit[0] = 0;
    if (f)
        fclose(f);
    if (!commit[0] || asprintf(&dir, "%s/snapshots/%s", path, commit) < 0)
        return NULL;
    if (is_folder(dir))
        return dir;
    free(dir);
    return NULL;
}

oct_status oct_hub_find(const char *path, char **root, oct_error *err)
{
    struct stat st;
    *root = NULL;
    if (stat(path, &st) != 0)
        return OCT_OK;
    if (S_ISREG(st.st_mode) ? ends_with(path, END) : holds_shards(path)) {
        *root = strdup(path);
        return *root ? OCT_OK : no_memory(err);
    }
    char *snapshot = S_ISDIR(st.st_mode) ? snapshot_of(path) : NULL;
    if (snapshot && holds_shards(snapshot))
        *root = snapshot;
    else
        free(snapshot);
    return OCT_OK;
}

/* ---- which shards --------------------------------------------------------------------------- */

static oct_status add_shard(oct_hub *h, const char *file, oct_error *err)
{
    for (int64_t i = 0; i < h->n_shards; i++)
        if (strcmp(h->shard[i].file, file) == 0)
            return OCT_OK;
    if (h->n_shards == OCT_HUB_MAX_SHARDS)
        return oct_fail(err, OCT_ERR_UNSUPPORTED, "%s: more than %d files", h->dir,
                        OCT_HUB_MAX_SHARDS);
    if (!h->shard)
        h->shard = calloc(OCT_HUB_MAX_SHARDS, sizeof *h->shard);
    if (!h->shard || !(h->shard[h->n_shards].file = strdup(file)))
        return no_memory(err);
    h->n_shards++;
    return OCT_OK;
}

/* The folder's other files of a set "NAME-00001-of-00019.safetensors", of which there is one. */
static oct_status add_set_of(oct_hub *h, const char *file, oct_error *err)
{
    const size_t tail = strlen("-00001-of-00019" END), n = strlen(file);
    int at = 0, of = 0, end = 0;
    if (n <= tail || sscanf(file + n - tail, "-%5d-of-%5d" END "%n", &at, &of, &end) != 2 ||
        (size_t)end != tail || at < 1 || at > of || of > OCT_HUB_MAX_SHARDS)
        return add_shard(h, file, err);
    for (int i = 1; i <= of; i++) {
        char *name = NULL;
        if (asprintf(&name, "%.*s-%05d-of-%05d" END, (int)(n - tail), file, i, of) < 0)
            return no_memory(err);
        oct_status s = add_shard(h, name, err);
        free(name);
        OCT_TRY(s);
    }
    return OCT_OK;
}

static oct_status list_folder(oct_hub *h, oct_error *err)
{
    DIR *d = opendir(h->dir);
    oct_status s = d ? OCT_OK : oct_fail(err, OCT_ERR_IO, "%s: %s", h->dir, strerror(errno));
    for (struct dirent *e; s == OCT_OK && (e = readdir(d));)
        if (ends_with(e->d_name, END) && e->d_name[0] != '.')
            s = add_set_of(h, e->d_name, err);
    if (d)
        closedir(d);
    return s;
}

/* The index's whole text, malloc'd; *text NULL: there is no index. */
static oct_status read_index(const char *path, char **text, size_t *n, oct_error *err)
{
    struct stat st;
    *text = NULL;
    FILE *f = fopen(path, "rbe");
    if (!f)
        return errno == ENOENT ? OCT_OK
                               : oct_fail(err, OCT_ERR_IO, "%s: %s", path, strerror(errno));
    oct_status s = OCT_OK;
    if (fstat(fileno(f), &st) != 0)
        s = oct_fail(err, OCT_ERR_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode) || st.st_size > MAX_INDEX)
        s = oct_fail(err, OCT_ERR_FORMAT, "%s: expected a file of at most %d bytes", path,
                     MAX_INDEX);
    else if (!(*text = malloc((size_t)st.st_size + 1)))
        s = no_memory(err);
    *n = *text ? fread(*text, 1, (size_t)st.st_size, f) : 0;
    if (s == OCT_OK && ferror(f))
        s = oct_fail(err, OCT_ERR_IO, "%s: %s", path, strerror(errno));
    else if (s == OCT_OK && !oct_json_is_tame(*text, *n, INDEX_DEPTH, MAX_INDEX_VALUES))
        s = oct_fail(err, OCT_ERR_FORMAT, "%s: nests deeper than %d or has more than %d entries",
                     path, INDEX_DEPTH, MAX_INDEX_VALUES);
    fclose(f);
    if (s != OCT_OK) {
        free(*text);
        *text = NULL;
    }
    return s;
}

/* The files of the index. */
static oct_status list_index(oct_hub *h, const char *path, const json_t *map, oct_error *err)
{
    const char *name;
    json_t *v;
    if (!json_is_object(map) || !json_object_size(map))
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s: no index of safetensors: expected an object \"weight_map\" that tells "
                        "each tensor's file",
                        path);
    json_object_foreach((json_t *)(uintptr_t)map, name, v)
    {
        const char *file = json_string_value(v);
        if (!file || strchr(file, '/') || file[0] == '.' || !ends_with(file, END))
            return oct_fail(err, OCT_ERR_FORMAT,
                            "%s: the file of tensor \"%.80s\" is \"%.80s\"; expected the name of "
                            "one beside the index that ends in " END,
                            path, name, file ? file : "(no string)");
        OCT_TRY(add_shard(h, file, err));
    }
    return OCT_OK;
}

/* ---- headers -------------------------------------------------------------------------------- */

/* Marks that download tools leave beside a file which they have not finished. */
static bool is_unfinished(const char *path)
{
    static const char *const ends[] = {".aria2",      ".aria2__temp", ".part", ".tmp",
                                       ".crdownload", ".incomplete",  ".!qB"};
    bool found = false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends && !found; i++) {
        char *mark = NULL;
        if (asprintf(&mark, "%s%s", path, ends[i]) < 0)
            return false;
        found = access(mark, F_OK) == 0;
        free(mark);
    }
    return found;
}

static void report_missing(const char *path, const oct_hub_shard *s, oct_lines *problems)
{
    char target[256] = "";
    const int e = errno;
    const ssize_t n = readlink(path, target, sizeof target - 1);
    if (e == ENOENT && n > 0)
        oct_lines_add(problems,
                      "%s: a link to %s, which is not there: the download is not finished", s->file,
                      target);
    else if (e == ENOENT)
        oct_lines_add(problems, "%s: missing%s", s->file,
                      is_unfinished(path) ? ": its download is not finished" : "");
    else
        oct_lines_add(problems, "%s: %s", s->file, strerror(e));
}

/* Trouble becomes a line. */
static void open_shard(const oct_hub *h, oct_hub_shard *s, oct_lines *problems)
{
    char *path = NULL;
    struct stat st;
    oct_error err = {0};
    if (asprintf(&path, "%s/%s", h->dir, s->file) < 0) {
        problems->failed = true;
        return;
    }
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0)
        report_missing(path, s, problems);
    else if (!S_ISREG(st.st_mode))
        oct_lines_add(problems, "%s: not a regular file", s->file);
    else if (is_unfinished(path))
        oct_lines_add(problems, "%s: the download of this file is not finished", s->file);
    else if (oct_safetensors_read(s->file, fd, (uint64_t)st.st_size, &s->content, &err) != OCT_OK)
        oct_lines_add(problems, "%s", err.text);
    else {
        oct_hole_tell(fd, s->file, (uint64_t)st.st_size, problems);
        s->n = (uint64_t)st.st_size;
        s->device = st.st_dev;
        s->inode = st.st_ino;
    }
    if (fd >= 0)
        close(fd);
    free(path);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const oct_hub_entry *)a)->tensor->name,
                  ((const oct_hub_entry *)b)->tensor->name);
}

/* All tensors of all shards. */
static oct_status list_tensors(oct_hub *h, oct_lines *problems, oct_error *err)
{
    size_t n = 0;
    for (int64_t i = 0; i < h->n_shards; i++)
        n += (size_t)h->shard[i].content.n;
    h->entry = calloc(n + 1, sizeof *h->entry);
    if (!h->entry)
        return no_memory(err);
    for (int64_t i = 0; i < h->n_shards; i++)
        for (int64_t k = 0; k < h->shard[i].content.n; k++)
            h->entry[h->n_entries++] =
                (oct_hub_entry){&h->shard[i], &h->shard[i].content.tensor[k]};
    qsort(h->entry, n, sizeof *h->entry, by_name);
    for (size_t i = 1; i < n; i++)
        if (by_name(&h->entry[i - 1], &h->entry[i]) == 0)
            oct_lines_add(problems, "%s: tensor \"%.120s\" is in %s too", h->entry[i].shard->file,
                          h->entry[i].tensor->name, h->entry[i - 1].shard->file);
    return OCT_OK;
}

static void check_index(const oct_hub *h, const json_t *map, oct_lines *problems)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)map, name, v)
    {
        const oct_hub_entry *e = oct_hub_find_tensor(h, name);
        const char *file = json_string_value(v);
        if (!e || strcmp(e->shard->file, file) != 0)
            oct_lines_add(problems, "%s: tensor \"%.120s\", which the index puts here, is %s%s",
                          file, name, e ? "in " : "not in it", e ? e->shard->file : "");
    }
}

/* ---- the whole ------------------------------------------------------------------------------ */

static oct_status load(oct_hub *h, const json_t *map, oct_lines *problems, oct_error *err)
{
    const size_t before = problems->n;
    int64_t n = 0;
    for (int64_t i = 0; i < h->n_shards; i++) {
        open_shard(h, &h->shard[i], problems);
        n += h->shard[i].content.n;
        if (n > MAX_TENSORS)
            return oct_fail(err, OCT_ERR_UNSUPPORTED, "%s: more than %d tensors", h->dir,
                            MAX_TENSORS);
    }
    OCT_TRY(list_tensors(h, problems, err));
    if (map && problems->n == before) /* else every tensor of a missing file would be a line */
        check_index(h, map, problems);
    return OCT_OK;
}

static oct_status load_folder(oct_hub *h, oct_lines *problems, oct_error *err)
{
    char *path = NULL, *text;
    size_t n;
    json_error_t e;
    json_t *index = NULL;
    if (asprintf(&path, "%s/" INDEX, h->dir) < 0)
        return no_memory(err);
    oct_status s = read_index(path, &text, &n, err);
    if (s == OCT_OK && text && !(index = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e)))
        s = oct_fail(err, OCT_ERR_FORMAT, "%s: not JSON: line %d: %s", path, e.line, e.text);
    const json_t *map = json_object_get(index, "weight_map");
    if (s == OCT_OK)
        s = index ? list_index(h, path, map, err) : list_folder(h, err);
    if (s == OCT_OK)
        s = load(h, map, problems, err);
    json_decref(index);
    free(text);
    free(path);
    return s;
}

/* dir/file of a path that is a file. */
static oct_status load_file(oct_hub *h, const char *root, oct_lines *problems, oct_error *err)
{
    const char *slash = strrchr(root, '/');
    free(h->dir);
    h->dir = slash ? strndup(root, slash > root ? (size_t)(slash - root) : 1) : strdup(".");
    if (!h->dir)
        return no_memory(err);
    OCT_TRY(add_shard(h, slash ? slash + 1 : root, err));
    return load(h, NULL, problems, err);
}

oct_status oct_hub_open(const char *root, oct_hub **out, oct_lines *problems, oct_error *err)
{
    oct_hub *h = calloc(1, sizeof *h);
    *out = NULL;
    if (!h || !(h->dir = strdup(root))) {
        free(h);
        return no_memory(err);
    }
    oct_status s =
        is_folder(root) ? load_folder(h, problems, err) : load_file(h, root, problems, err);
    if (s == OCT_OK && problems->failed)
        s = no_memory(err);
    if (s == OCT_OK && problems->n)
        s = oct_fail(err, OCT_ERR_FORMAT, "%s: %zu problem%s with its safetensors, the first: %s",
                     root, problems->n, problems->n > 1 ? "s" : "", problems->line[0]);
    if (s != OCT_OK) {
        oct_hub_free(h);
        return s;
    }
    *out = h;
    return OCT_OK;
}

void oct_hub_free(oct_hub *h)
{
    if (!h)
        return;
    for (int64_t i = 0; i < h->n_shards; i++) {
        oct_safetensors_free(&h->shard[i].content);
        free(h->shard[i].file);
    }
    free(h->shard);
    free(h->entry);
    free(h->dir);
    free(h);
}

const oct_hub_entry *oct_hub_find_tensor(const oct_hub *h, const char *name)
{
    const oct_st_tensor key = {.name = (char *)(uintptr_t)name};
    const oct_hub_entry wanted = {NULL, &key};
    return bsearch(&wanted, h->entry, (size_t)h->n_entries, sizeof wanted, by_name);
}

oct_status oct_hub_open_shard(const oct_hub *h, const oct_hub_shard *s, int *fd, oct_error *err)
{
    char path[4096];
    struct stat st;
    if (snprintf(path, sizeof path, "%s/%s", h->dir, s->file) >= (int)sizeof path)
        return oct_fail(err, OCT_ERR_IO, "%s: %s", h->dir, strerror(ENAMETOOLONG));
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return oct_fail(err, OCT_ERR_IO, "%s: %s", path, strerror(errno));
    if (fstat(*fd, &st) == 0 && st.st_dev == s->device && st.st_ino == s->inode &&
        st.st_size == (off_t)s->n)
        return OCT_OK;
    close(*fd);
    return oct_fail(err, OCT_ERR_IO, "%s: has changed since it was checked", path);
}
