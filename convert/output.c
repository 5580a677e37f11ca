#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "convert_impl.h"

/* The folder of a path, malloc'd; *base is the name in it, inside path. NULL: no memory. */
static char *folder_of(const char *path, const char **base)
{
    const char *slash = strrchr(path, '/');
    *base = slash ? slash + 1 : path;
    if (!slash)
        return strdup(".");
    return strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

static oct_status no_memory(oct_error *err)
{
    return oct_fail(err, OCT_ERR_MEMORY, "out of memory");
}

oct_status oct_output_check_by(const char *path,
                               bool (*is_input)(const void *ctx, const struct stat *st),
                               const void *ctx, oct_error *err)
{
    struct stat st;
    size_t n = strlen(path);
    if (n == 0)
        return oct_fail(err, OCT_ERR_ARG, "the output's name is empty");
    if (stat(path, &st) != 0) {
        if (errno == ENOENT && path[n - 1] != '/')
            return OCT_OK;
        return oct_fail(err, OCT_ERR_IO, "%s: %s", path, strerror(errno));
    }
    if (S_ISDIR(st.st_mode))
        return oct_fail(err, OCT_ERR_ARG, "%s: is a folder; give the name of a file", path);
    if (!S_ISREG(st.st_mode))
        return oct_fail(err, OCT_ERR_ARG, "%s: exists and is not a regular file", path);
    if (is_input(ctx, &st))
        return oct_fail(err, OCT_ERR_ARG, "%s: is one of the inputs", path);
    return OCT_OK;
}

typedef struct path_list {
    const char *const *path;
    size_t n;
} path_list;

static bool is_listed(const void *ctx, const struct stat *st)
{
    const path_list *l = ctx;
    struct stat other;
    for (size_t i = 0; i < l->n; i++)
        if (stat(l->path[i], &other) == 0 && other.st_dev == st->st_dev &&
            other.st_ino == st->st_ino)
            return true;
    return false;
}

oct_status oct_output_check(const char *path, const char *const *inputs, size_t n, oct_error *err)
{
    return oct_output_check_by(path, is_listed, &(path_list){inputs, n}, err);
}

oct_status oct_output_room(const char *path, uint64_t n, oct_error *err)
{
    const char *base;
    struct statvfs v;
    char *dir = folder_of(path, &base);
    if (!dir)
        return no_memory(err);
    oct_status s = OCT_OK;
    if (statvfs(dir, &v) != 0) {
        s = oct_fail(err, OCT_ERR_IO, "%s: cannot be made: %s", path, strerror(errno));
    } else {
        uint64_t unit = v.f_frsize ? v.f_frsize : v.f_bsize, have = 0;
        if (__builtin_mul_overflow((uint64_t)v.f_bavail, unit, &have))
            have = UINT64_MAX;
        if (have < n)
            s = oct_fail(err, OCT_ERR_IO,
                         "%s: the new file needs %llu bytes (%.1f GiB), the disk has "
                         "%llu free (%.1f GiB)",
                         dir, (unsigned long long)n, (double)n / (double)(1 << 30),
                         (unsigned long long)have, (double)have / (double)(1 << 30));
    }
    free(dir);
    return s;
}

/* Names temporary files of the same output that earlier runs, killed, have left. */
static void warn_leftovers(const char *path, oct_lines *warnings)
{
    const char *base;
    char *dir = folder_of(path, &base);
    DIR *d = dir ? opendir(dir) : NULL;
    size_t n = strlen(base);
    for (struct dirent *e; d && (e = readdir(d));)
        if (strncmp(e->d_name, base, n) == 0 && strncmp(e->d_name + n, ".tmp-", 5) == 0)
            oct_lines_add(warnings,
                          "%s/%s: left by a run that was interrupted, or of one that is "
                          "still going on",
                          dir, e->d_name);
    if (d)
        closedir(d);
    free(dir);
}

oct_status oct_output_create(oct_output *o, const char *path, uint64_t n, oct_lines *warnings,
                             oct_error *err)
{
    if (warnings)
        warn_leftovers(path, warnings);
    o->path = strdup(path);
    if (!o->path)
        return no_memory(err);
    /* A name that exists is of a process that is gone: the next number is as good. */
    for (int i = 0; o->fd < 0 && i < 100; i++) {
        char *name = NULL;
        if (asprintf(&name, i ? "%s.tmp-%ld-%d" : "%s.tmp-%ld", path, (long)getpid(), i) < 0)
            return no_memory(err);
        o->fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (o->fd >= 0)
            o->temp = name;
        else if (errno != EEXIST) {
            oct_status s =
                oct_fail(err, OCT_ERR_IO, "%s: cannot be created: %s", name, strerror(errno));
            free(name);
            return s;
        } else
            free(name);
    }
    if (o->fd < 0)
        return oct_fail(err, OCT_ERR_IO, "%s: no free temporary name beside it", path);
    int failed = 0;
    if (fallocate(o->fd, 0, 0, (off_t)n) != 0)
        failed = errno;
    if (failed == EOPNOTSUPP || failed == ENOSYS)
        failed = ftruncate(o->fd, (off_t)n) == 0 ? 0 : errno;
    if (failed)
        return oct_fail(err, OCT_ERR_IO, "%s: %llu bytes cannot be reserved: %s", o->temp,
                        (unsigned long long)n, strerror(failed));
    return OCT_OK;
}

oct_status oct_output_write(const oct_output *o, const void *data, size_t n, uint64_t at,
                            oct_error *err)
{
    const char *p = data;
    while (n > 0) {
        ssize_t k = pwrite(o->fd, p, n, (off_t)at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return oct_fail(err, OCT_ERR_IO, "%s: writing %zu bytes at %llu: %s", o->temp, n,
                            (unsigned long long)at,
                            k < 0 ? strerror(errno) : "nothing was written");
        p += k;
        n -= (size_t)k;
        at += (uint64_t)k;
    }
    return OCT_OK;
}

oct_status oct_output_read(const oct_output *o, void *data, size_t n, uint64_t at, oct_error *err)
{
    char *p = data;
    while (n > 0) {
        ssize_t k = pread(o->fd, p, n, (off_t)at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return oct_fail(err, OCT_ERR_IO, "%s: reading %zu bytes at %llu: %s", o->temp, n,
                            (unsigned long long)at, k < 0 ? strerror(errno) : "the file ends");
        p += k;
        n -= (size_t)k;
        at += (uint64_t)k;
    }
    return OCT_OK;
}

oct_status oct_output_sync(const oct_output *o, oct_error *err)
{
    if (fsync(o->fd) != 0)
        return oct_fail(err, OCT_ERR_IO, "%s: %s", o->temp, strerror(errno));
    (void)posix_fadvise(o->fd, 0, 0, POSIX_FADV_DONTNEED);
    return OCT_OK;
}

oct_status oct_output_publish(oct_output *o, oct_error *err)
{
    const char *base;
    if (rename(o->temp, o->path) != 0)
        return oct_fail(err, OCT_ERR_IO, "%s: cannot be renamed to %s: %s", o->temp, o->path,
                        strerror(errno));
    free(o->temp);
    o->temp = NULL;
    char *dir = folder_of(o->path, &base);
    if (!dir)
        return no_memory(err);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    oct_status s = OCT_OK;
    /* EINVAL: a file system whose folders cannot be synced. */
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL))
        s = oct_fail(err, OCT_ERR_IO, "%s: %s", dir, strerror(errno));
    if (fd >= 0)
        close(fd);
    free(dir);
    return s;
}

void oct_output_close(oct_output *o)
{
    if (o->fd >= 0)
        close(o->fd);
    if (o->temp)
        unlink(o->temp);
    free(o->temp);
    free(o->path);
    *o = (oct_output){.fd = -1};
}
