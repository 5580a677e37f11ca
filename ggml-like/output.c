#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "file_map.h"
#include "output_impl.h"

/* ---- lines ---------------------------------------------------------------------------------- */

void oct_lines_add(oct_lines *l, const char *fmt, ...)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 16;
        char **p = cap > SIZE_MAX / sizeof *p ? NULL : realloc(l->line, cap * sizeof *p);
        if (!p) {
            l->failed = true;
            return;
        }
        l->line = p;
        l->cap = cap;
    }
    char *s = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&s, fmt, ap);
    va_end(ap);
    if (n < 0) {
        l->failed = true;
        return;
    }
    for (char *c = s; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    l->line[l->n++] = s;
}

void oct_lines_free(oct_lines *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->line[i]);
    free(l->line);
    *l = (oct_lines){0};
}

/* ---- names ---------------------------------------------------------------------------------- */

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

enum { MAX_LINKS = 40 };

/* Where a path leads if it is a link, or a link to a link: the file that is made, or replaced, is
 * that one, and the link stays. The file need not exist. *target is malloc'd. */
static oct_status follow(const char *path, char **target, oct_error *err)
{
    char *here = strdup(path);
    for (int i = 0; here && i < MAX_LINKS; i++) {
        char to[PATH_MAX];
        const char *base;
        ssize_t n = readlink(here, to, sizeof to - 1);
        if (n < 0) { /* no link: a file, or nothing yet */
            *target = here;
            return OCT_OK;
        }
        to[n] = 0;
        char *dir = folder_of(here, &base), *next = NULL;
        if (to[0] == '/')
            next = strdup(to);
        else if (!dir || asprintf(&next, "%s/%s", dir, to) < 0)
            next = NULL;
        free(dir);
        free(here);
        here = next;
    }
    if (!here)
        return no_memory(err);
    free(here);
    return oct_fail(err, OCT_ERR_IO, "%s: %s", path, strerror(ELOOP));
}

/* Whether a file is where one of this process's standard streams reads or writes: replaced, it
 * would take with it what the shell or another program has put there. */
static const char *stream_of(const struct stat *st)
{
    static const char *const names[] = {"input", "output", "error"};
    struct stat other;
    for (int fd = 0; fd < 3; fd++)
        if (fstat(fd, &other) == 0 && other.st_dev == st->st_dev && other.st_ino == st->st_ino)
            return names[fd];
    return NULL;
}

/* Whether a file of this name may be made: nothing is there yet (*st is zeroed), or a regular file
 * that is no standard stream. Every output passes here when it is created, checked before or not:
 * a device, a folder and what a shell has opened are never replaced. */
static oct_status replaceable(const char *path, struct stat *st, oct_error *err)
{
    size_t n = strlen(path);
    *st = (struct stat){0};
    if (n == 0)
        return oct_fail(err, OCT_ERR_ARG, "the output's name is empty");
    if (stat(path, st) != 0) {
        if (errno == ENOENT && path[n - 1] != '/')
            return OCT_OK;
        return oct_fail(err, OCT_ERR_IO, "%s: %s", path, strerror(errno));
    }
    if (S_ISDIR(st->st_mode))
        return oct_fail(err, OCT_ERR_ARG, "%s: is a folder; give the name of a file", path);
    if (!S_ISREG(st->st_mode))
        return oct_fail(err, OCT_ERR_ARG, "%s: exists and is not a regular file", path);
    const char *stream = stream_of(st);
    if (stream)
        return oct_fail(err, OCT_ERR_ARG,
                        "%s: is the standard %s of this program; give the name of another file",
                        path, stream);
    return OCT_OK;
}

oct_status oct_output_check_by(const char *path,
                               bool (*is_input)(const void *ctx, const struct stat *st),
                               const void *ctx, oct_error *err)
{
    struct stat st;
    OCT_TRY(replaceable(path, &st, err));
    if (S_ISREG(st.st_mode) && is_input(ctx, &st))
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
    char *target;
    OCT_TRY(follow(path, &target, err));
    char *dir = folder_of(target, &base);
    free(target);
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

/* ---- temporary files ------------------------------------------------------------------------- */

enum { TEMP_NAME_MAX = 255, TEMP_END_MAX = 32 };

/* How much of a name temporary files take, so that theirs is not too long. */
static int stem_of(const char *base)
{
    size_t n = strlen(base);
    return (int)(n < TEMP_NAME_MAX - TEMP_END_MAX ? n : TEMP_NAME_MAX - TEMP_END_MAX);
}

/* What is done with one temporary file of the same output that is there already. */
typedef struct leftovers {
    oct_lines *warnings;   /* may be NULL */
    oct_output_same *same; /* NULL: none can be gone on with */
    void *ctx;
    oct_output *o;
    oct_error *err;
} leftovers;

/* Those that are locked are being written. One that nobody writes was left by a process that was
 * killed; it is gone on with if it is the same work. */
static oct_status meet(leftovers *l, const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat st;
    if (fd >= 0 && (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))) {
        close(fd);
        return OCT_OK;
    }
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(fd);
        return oct_fail(l->err, OCT_ERR_IO,
                        "%s: another process is making this file (it writes %s)", l->o->path, path);
    }
    if (fd >= 0 && l->o->fd < 0 && l->same && l->same(l->ctx, fd)) {
        l->o->temp = strdup(path);
        l->o->fd = fd;
        return l->o->temp ? OCT_OK : no_memory(l->err);
    }
    if (fd >= 0)
        close(fd);
    if (l->warnings)
        oct_lines_add(l->warnings, "%s: left by a run that was interrupted", path);
    return OCT_OK;
}

static oct_status meet_all(leftovers *l, const char *dir, const char *base)
{
    DIR *d = opendir(dir);
    int n = stem_of(base);
    oct_status s = OCT_OK;
    for (struct dirent *e; d && s == OCT_OK && (e = readdir(d));) {
        char *path = NULL;
        if (strncmp(e->d_name, base, (size_t)n) != 0 || strncmp(e->d_name + n, ".tmp-", 5) != 0)
            continue;
        if (asprintf(&path, "%.*s%s", (int)(base - l->o->path), l->o->path, e->d_name) < 0)
            s = no_memory(l->err);
        else
            s = meet(l, path);
        free(path);
    }
    if (d)
        closedir(d);
    return s;
}

/* A new temporary file. A name that exists is of a process that is gone: the next number is as
 * good. */
static oct_status create(oct_output *o, const char *base, oct_error *err)
{
    for (int i = 0; o->fd < 0 && i < 100; i++) {
        char *name = NULL;
        if (asprintf(&name, i ? "%.*s%.*s.tmp-%ld-%d" : "%.*s%.*s.tmp-%ld", (int)(base - o->path),
                     o->path, stem_of(base), base, (long)getpid(), i) < 0)
            return no_memory(err);
        o->fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (o->fd >= 0) {
            o->temp = name;
            (void)flock(o->fd, LOCK_EX | LOCK_NB); /* where there are locks */
        } else if (errno != EEXIST) {
            oct_status s =
                oct_fail(err, OCT_ERR_IO, "%s: cannot be created: %s", name, strerror(errno));
            free(name);
            return s;
        } else {
            free(name);
        }
    }
    if (o->fd < 0)
        return oct_fail(err, OCT_ERR_IO, "%s: no free temporary name beside it", o->path);
    return OCT_OK;
}

/* Two processes must not look at the same time: the folder is locked for that moment, where
 * folders can be. Never for long, whoever else locks it. */
static int lock_folder(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; fd >= 0 && i < 100 && flock(fd, LOCK_EX | LOCK_NB) != 0; i++)
        if (errno != EWOULDBLOCK || nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL) != 0)
            break;
    return fd;
}

static oct_status reserve(const oct_output *o, uint64_t n, oct_error *err)
{
    struct stat st;
    int failed = 0;
    if (fallocate(o->fd, 0, 0, (off_t)n) != 0)
        failed = errno;
    if (failed == EOPNOTSUPP || failed == ENOSYS)
        failed = fstat(o->fd, &st) == 0 && (uint64_t)st.st_size >= n ? 0
                 : ftruncate(o->fd, (off_t)n) == 0                   ? 0
                                                                     : errno;
    if (failed)
        return oct_fail(err, OCT_ERR_IO, "%s: %llu bytes cannot be reserved: %s", o->temp,
                        (unsigned long long)n, strerror(failed));
    return OCT_OK;
}

oct_status oct_output_create_or(oct_output *o, const char *path, uint64_t n, oct_output_same *same,
                                void *ctx, bool *resumed, oct_lines *warnings, oct_error *err)
{
    const char *base;
    struct stat st;
    *resumed = false;
    OCT_TRY(replaceable(path, &st, err));
    OCT_TRY(follow(path, &o->path, err));
    char *dir = folder_of(o->path, &base);
    if (!dir)
        return no_memory(err);
    int lock = lock_folder(dir);
    leftovers l = {warnings, same, ctx, o, err};
    oct_status s = meet_all(&l, dir, base);
    *resumed = o->fd >= 0;
    if (s == OCT_OK && !*resumed)
        s = oct_output_room(o->path, n, err);
    if (s == OCT_OK && !*resumed)
        s = create(o, base, err);
    if (lock >= 0)
        close(lock);
    free(dir);
    return s == OCT_OK ? reserve(o, n, err) : s;
}

oct_status oct_output_create(oct_output *o, const char *path, uint64_t n, oct_lines *warnings,
                             oct_error *err)
{
    bool resumed;
    return oct_output_create_or(o, path, n, NULL, NULL, &resumed, warnings, err);
}

/* ---- writing, reading back ------------------------------------------------------------------- */

oct_status oct_output_write(const oct_output *o, const void *data, size_t n, uint64_t at,
                            oct_error *err)
{
    const char *p = data;
    while (n > 0) {
        ssize_t k = pwrite(o->fd, p, n, (off_t)at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0 && errno == EFAULT)
            return oct_fail(err, OCT_ERR_IO,
                            "%s: cannot be read any more: it has become shorter, or its disk fails",
                            o->from ? o->from : "what is to be written");
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
    return oct_file_read_all(o->fd, o->temp, data, n, at, err);
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
    struct stat st;
    if (fsync(o->fd) != 0) /* what a disk could not write it may say only now */
        return oct_fail(err, OCT_ERR_IO, "%s: %s", o->temp, strerror(errno));
    OCT_TRY(replaceable(o->path, &st, err)); /* again: something else may lie there by now */
    if (S_ISREG(st.st_mode))                 /* who may read it is as before */
        (void)!fchmod(o->fd, st.st_mode & 0777);
    char *dir = folder_of(o->path, &base);
    if (!dir)
        return no_memory(err);
    /* One that cannot be read cannot be synced, nor can those of some file systems (EINVAL). */
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    oct_status s = OCT_OK;
    if (fd < 0 && errno != EACCES)
        s = oct_fail(err, OCT_ERR_IO, "%s: %s", dir, strerror(errno));
    else if (rename(o->temp, o->path) != 0)
        s = oct_fail(err, OCT_ERR_IO, "%s: cannot be renamed to %s: %s", o->temp, o->path,
                     strerror(errno));
    if (s == OCT_OK) {
        free(o->temp);
        o->temp = NULL;
        if (fd >= 0 && fsync(fd) != 0 && errno != EINVAL)
            s = oct_fail(err, OCT_ERR_IO, "%s: is complete, but its folder could not be synced: %s",
                         o->path, strerror(errno));
    }
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
