/* fault_shim.c: preloaded into the program, or a shell that starts it, makes one call fail:
 * OCT_FAULT="NAME N WHAT", where NAME is one of the names below, N counts its calls from main() on
 * (0: none fails), and WHAT is an errno's number, "short" (half of the bytes), or "cut:PATH" (the
 * file is made 8192 bytes long, and the call goes on). OCT_FAULT_COUNT names a file that receives
 * how many calls there were. Calls by libraries that are not Octet's, and that do not live with
 * what they are refused, do not count: see ours(). */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    F_MALLOC,
    F_OWN, /* as malloc, but by Octet's own code alone: MPI, like others, does not live with less */
    F_MMAP,
    F_OPEN,
    F_READ,
    F_WRITE,
    F_PREAD,
    F_PWRITE,
    F_RENAME,
    F_FSYNC,
    F_FALLOCATE,
    F_FTRUNCATE,
    F_MBIND,
    F_THREAD,
    F_MAP_SHARED, /* all of them fail, not the Nth */
    F_MAP_FILE,
    N_NAMES
};
static const char *const names[N_NAMES] = {
    "malloc", "own",   "mmap",      "open",      "read",  "write",  "pread",      "pwrite",
    "rename", "fsync", "fallocate", "ftruncate", "mbind", "thread", "map-shared", "map-file"};

static _Atomic bool on;
static int which = -1;
static int64_t at;
static int error;
static bool is_short;
static char cut[4200], count_file[4096];
static _Atomic int64_t calls;
static uintptr_t libraries[64][2]; /* where those lie that count */
static int n_libraries;

#define REAL(name, type, args) \
    static type(*real) args;   \
    if (!real)                 \
    *(void **)&real = dlsym(RTLD_NEXT, #name)

/* Octet's, and the C library's and jansson's own, on behalf of strdup, opendir, json_loads. Not
 * hwloc, MPI, libedit, which some refusals end; nor SentencePiece: protobuf, refused while it
 * parses, destroys what it has not made (see oct_spm_new, which asks for all memory first). */
static bool ours(const void *caller)
{
    for (int i = 0; i < n_libraries; i++)
        if ((uintptr_t)caller >= libraries[i][0] && (uintptr_t)caller < libraries[i][1])
            return true;
    return false;
}

static void list_libraries(void)
{
    static const char *const counted[] = {"/octet", "/liboctet", "/libc.so", "/libjansson"};
    char line[4352];
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && n_libraries < 64 && fgets(line, sizeof line, f)) {
        unsigned long from, to;
        char *path = strchr(line, '/');
        if (!path || !strstr(line, " r-xp ") || sscanf(line, "%lx-%lx", &from, &to) != 2)
            continue;
        path = strrchr(path, '/');
        for (size_t i = 0; i < sizeof counted / sizeof *counted; i++)
            if (strncmp(path, counted[i], strlen(counted[i])) == 0) {
                libraries[n_libraries][0] = from;
                libraries[n_libraries++][1] = to;
                break;
            }
    }
    if (f)
        fclose(f);
}

/* Of Octet, and of its module that is loaded later. */
static bool own(const void *caller)
{
    Dl_info in;
    const char *file = dladdr(caller, &in) ? strrchr(in.dli_fname, '/') : NULL;
    return file && (strcmp(file, "/octet") == 0 || strncmp(file, "/liboctet", 9) == 0);
}

/* Whether this call is the one; then errno is set. */
static bool fails(int name, const void *caller)
{
    if (!on || (name != which && (name != F_MALLOC || which != F_OWN)) ||
        !(which == F_OWN ? own(caller) : ours(caller)))
        return false;
    if (atomic_fetch_add(&calls, 1) + 1 != at)
        return false;
    if (*cut) {
        on = false;
        if (truncate(cut, 8192) != 0)
            _exit(99);
        return false;
    }
    errno = error;
    return true;
}

#define CALLER __builtin_return_address(0)

static void report(void)
{
    char text[32];
    int fd =
        *count_file ? (int)syscall(SYS_open, count_file, O_WRONLY | O_CREAT | O_TRUNC, 0666) : -1;
    int n = snprintf(text, sizeof text, "%lld\n", (long long)calls);
    if (fd >= 0 && syscall(SYS_write, fd, text, (size_t)n) != n)
        _exit(99);
}

static int (*main_of)(int, char **, char **);

static int start(int argc, char **argv, char **env)
{
    char name[32] = "", what[4200] = "";
    long long n = 0;
    const char *fault = getenv("OCT_FAULT"), *count = getenv("OCT_FAULT_COUNT");
    if (count)
        snprintf(count_file, sizeof count_file, "%s", count);
    if (strcmp(program_invocation_short_name, "octet") != 0)
        fault = NULL; /* a shell: its children are meant */
    if (fault && sscanf(fault, "%31s %lld %4199s", name, &n, what) >= 2) {
        for (int i = 0; i < N_NAMES; i++)
            if (strcmp(names[i], name) == 0)
                which = i;
        at = n;
        is_short = strcmp(what, "short") == 0;
        error = is_short ? -1 : atoi(what);
        if (strncmp(what, "cut:", 4) == 0)
            snprintf(cut, sizeof cut, "%s", what + 4);
        unsetenv("LD_PRELOAD"); /* children are not meant */
        list_libraries();
        atexit(report);
        on = true;
    }
    return main_of(argc, argv, env);
}

int __libc_start_main(int (*m)(int, char **, char **), int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*rtld)(void), void *end)
{
    REAL(__libc_start_main, int,
         (int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void),
          void (*)(void), void *));
    main_of = m;
    return real(start, argc, argv, init, fini, rtld, end);
}

/* ---- memory: glibc's own names for these need no dlsym, which would allocate ----------------- */

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

void *malloc(size_t n)
{
    return fails(F_MALLOC, CALLER) ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return fails(F_MALLOC, CALLER) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    return fails(F_MALLOC, CALLER) ? NULL : __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    return fails(F_MALLOC, CALLER) ? NULL : __libc_memalign(align, n);
}

/* ---- the rest -------------------------------------------------------------------------------- */

void *mmap(void *p, size_t n, int prot, int flags, int fd, off_t off)
{
    if (on && fd >= 0 && ours(CALLER) &&
        (which == F_MAP_FILE || (which == F_MAP_SHARED && flags & MAP_SHARED))) {
        errno = error;
        return MAP_FAILED;
    }
    if (fails(F_MMAP, CALLER))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, p, n, prot, flags, fd, off);
}

int open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, int) : 0;
    va_end(ap);
    return fails(F_OPEN, CALLER) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

/* An eventfd, which neither fails nor takes half. */
static bool is_event(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && (st.st_mode & S_IFMT) == 0;
}

ssize_t read(int fd, void *p, size_t n)
{
    if (!is_event(fd) && fails(F_READ, CALLER)) {
        if (!is_short)
            return -1;
        n = n > 1 ? n / 2 : n;
    }
    return syscall(SYS_read, fd, p, n);
}

ssize_t write(int fd, const void *p, size_t n)
{
    if (!is_event(fd) && fails(F_WRITE, CALLER)) {
        if (!is_short)
            return -1;
        n = n > 1 ? n / 2 : n;
    }
    return syscall(SYS_write, fd, p, n);
}

ssize_t pread(int fd, void *p, size_t n, off_t off)
{
    if (fails(F_PREAD, CALLER)) {
        if (!is_short)
            return -1;
        n = n > 1 ? n / 2 : n;
    }
    return syscall(SYS_pread64, fd, p, n, off);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t off)
{
    if (fails(F_PWRITE, CALLER)) {
        if (!is_short)
            return -1;
        n = n > 1 ? n / 2 : n;
    }
    return syscall(SYS_pwrite64, fd, p, n, off);
}

int rename(const char *a, const char *b)
{
    return fails(F_RENAME, CALLER) ? -1 : (int)syscall(SYS_rename, a, b);
}

int fsync(int fd)
{
    return fails(F_FSYNC, CALLER) ? -1 : (int)syscall(SYS_fsync, fd);
}

int fallocate(int fd, int mode, off_t off, off_t n)
{
    return fails(F_FALLOCATE, CALLER) ? -1 : (int)syscall(SYS_fallocate, fd, mode, off, n);
}

int ftruncate(int fd, off_t n)
{
    return fails(F_FTRUNCATE, CALLER) ? -1 : (int)syscall(SYS_ftruncate, fd, n);
}

/* What binds memory to a NUMA node. */
int hwloc_set_area_membind(void *t, const void *p, size_t n, const void *set, int policy, int flags)
{
    REAL(hwloc_set_area_membind, int, (void *, const void *, size_t, const void *, int, int));
    return fails(F_MBIND, CALLER) ? -1 : real(t, p, n, set, policy, flags);
}

int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *arg)
{
    REAL(pthread_create, int, (pthread_t *, const pthread_attr_t *, void *(*)(void *), void *));
    return fails(F_THREAD, CALLER) ? EAGAIN : real(t, a, fn, arg);
}
