/* ckpt_rig.h: folders and conversions for the converter's tests. */
#ifndef OCT_TEST_CKPT_RIG_H
#define OCT_TEST_CKPT_RIG_H

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "convert.h"
#include "mkckpt.h"

/* A small mixture of experts whose sizes divide badly: 12 layers (their order as strings matters),
 * groups of 27 and 6 rows, 8 slices, a vocabulary that 8 does not divide. */
static const mk_spec rig_small = {.layers = 12,
                                  .vocab = 77,
                                  .d = 54,
                                  .ffn = 216,
                                  .q_heads = 8,
                                  .kv_heads = 8,
                                  .head = 6,
                                  .experts = 3,
                                  .used = 2,
                                  .context = 64,
                                  .groups = 8,
                                  .seed = 7};

typedef struct rig_dir {
    char path[64]; /* relative to the folder the test runs in */
    char ckpt[80], out[80];
} rig_dir;

/* A new folder with a checkpoint inside (spec NULL: none). */
static inline rig_dir rig_new(const mk_spec *spec)
{
    rig_dir d = {.path = "convert-XXXXXX"};
    assert_non_null(mkdtemp(d.path));
    snprintf(d.ckpt, sizeof d.ckpt, "%s/model", d.path);
    snprintf(d.out, sizeof d.out, "%s/model.gguf", d.path);
    if (spec)
        assert_true(mk_write(spec, d.ckpt));
    return d;
}

static inline void rig_remove_all(const char *path)
{
    DIR *dir = opendir(path);
    if (!dir) {
        unlink(path);
        return;
    }
    for (struct dirent *e; (e = readdir(dir));) {
        char *inner = NULL;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        assert_true(asprintf(&inner, "%s/%s", path, e->d_name) > 0);
        rig_remove_all(inner);
        free(inner);
    }
    closedir(dir);
    rmdir(path);
}

static inline void rig_free(rig_dir *d)
{
    rig_remove_all(d->path);
}

/* Names in the folder that start as the output's does: 0 if nothing was left. */
static inline int rig_count_outputs(const rig_dir *d)
{
    DIR *dir = opendir(d->path);
    int n = 0;
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        n += strncmp(e->d_name, "model.gguf", 10) == 0;
    closedir(dir);
    return n;
}

static inline oct_status rig_convert_with(const oct_convert_params *p, oct_convert_report *r,
                                          oct_error *err)
{
    *r = (oct_convert_report){0};
    *err = (oct_error){0};
    return oct_convert(p, r, err);
}

static inline oct_status rig_convert(const rig_dir *d, oct_convert_report *r, oct_error *err)
{
    oct_convert_params p = {
        .checkpoint = d->ckpt, .out = d->out, .no_tokenizer = true, .n_threads = 3};
    return rig_convert_with(&p, r, err);
}

/* Path of the checkpoint's file i. */
static inline const char *rig_file(const rig_dir *d, int i, char out[160])
{
    char name[32];
    mk_file_name(i, name);
    snprintf(out, 160, "%s/ckpt-0/%s", d->ckpt, name);
    return out;
}

/* A whole file as memory that may be changed without changing the file. */
typedef struct rig_map {
    uint8_t *data;
    size_t n;
} rig_map;

static inline rig_map rig_map_file(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    rig_map m = {mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0),
                 (size_t)st.st_size};
    assert_true(m.data != MAP_FAILED);
    close(fd);
    return m;
}

static inline void rig_unmap(rig_map m)
{
    munmap(m.data, m.n);
}

static inline void rig_write_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

#endif
