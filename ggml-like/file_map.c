#include "file_map.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int64_t oct_file_read(int fd, void *to, size_t n, uint64_t at)
{
    size_t have = 0;
    while (have < n) {
        const ssize_t k = pread(fd, (char *)to + have, n - have, (off_t)(at + have));
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return -1;
        if (k == 0)
            break;
        have += (size_t)k;
    }
    return (int64_t)have;
}

oct_status oct_file_read_all(int fd, const char *path, void *to, size_t n, uint64_t at,
                             oct_error *err)
{
    const int64_t have = oct_file_read(fd, to, n, at);
    if (have == (int64_t)n)
        return OCT_OK;
    return oct_fail(err, OCT_ERR_IO, "%s: reading %zu bytes at %llu: %s", path, n,
                    (unsigned long long)at, have < 0 ? strerror(errno) : "the file ends");
}

static int fixed(const void *at)
{
    return at ? MAP_FIXED : 0;
}

static void *read_file(void *at, size_t n, int fd, uint64_t offset)
{
    /* Shared, so that MADV_DONTNEED takes pages from this process, but not what they hold. */
    char *p = mmap(at, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | fixed(at), -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    const int64_t have = oct_file_read(fd, p, n, offset);
    if (have != (int64_t)n) {
        int e = have < 0 ? errno : EIO; /* shorter than it was */
        munmap(p, n);
        errno = e;
        return NULL;
    }
    (void)mprotect(p, n, PROT_READ);
    return p;
}

void *oct_file_map(void *at, size_t n, int fd, uint64_t offset, size_t read_max)
{
    void *p = mmap(at, n, PROT_READ, MAP_SHARED | fixed(at), fd, (off_t)offset);
    if (p == MAP_FAILED)
        p = mmap(at, n, PROT_READ, MAP_PRIVATE | fixed(at), fd, (off_t)offset);
    if (p != MAP_FAILED)
        return p;
    return n <= read_max && errno != ENOMEM ? read_file(at, n, fd, offset) : NULL;
}
