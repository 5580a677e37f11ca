#include "file_map.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

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
    for (size_t have = 0; have < n;) {
        ssize_t k = pread(fd, p + have, n - have, (off_t)(offset + have));
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0) {
            int e = k < 0 ? errno : EIO; /* shorter than it was */
            munmap(p, n);
            errno = e;
            return NULL;
        }
        have += (size_t)k;
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
