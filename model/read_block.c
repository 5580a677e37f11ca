#include "read_block.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "machine.h"

enum { PAGE = 4096, HUGE_PAGE = 2 << 20 };

void oct_read_block_new(size_t bytes, uint64_t share, oct_probe_span *span)
{
    oct_memory have;
    oct_memory_get("", &have);
    char *p = NULL;
    size_t n = bytes < have.limit / share ? bytes : (size_t)(have.limit / share), got = 0;
    for (; n >= HUGE_PAGE && !p; n /= 2) {
        got = n / HUGE_PAGE * HUGE_PAGE;
        p = aligned_alloc(HUGE_PAGE, got);
    }
    if (p)
        (void)madvise(p, got, MADV_HUGEPAGE); /* fewer faults; a refusal costs time only */
    *span = (oct_probe_span){p, p ? got : 0};
}

void oct_read_block_free(oct_probe_span *span)
{
    free((void *)(uintptr_t)span->data);
    *span = (oct_probe_span){0};
}

/* A thread's part is that which it will read. Then flushes the lines that this left cached. */
static void touch_thread(void *ctx, int thread, int n_threads)
{
    const oct_probe_span *span = ctx;
    char *p = (char *)(uintptr_t)span->data;
    int64_t lo, hi;
    oct_team_range((int64_t)(span->bytes / 256), thread, n_threads, &lo, &hi);
    for (int64_t i = 256 * lo; i < 256 * hi; i += PAGE)
        p[i] = 1;
    oct_probe_uncache(p + 256 * lo, (size_t)(hi - lo) * 256);
}

void oct_read_block_touch(oct_team *team, oct_probe_span *span)
{
    oct_team_run(team, touch_thread, span);
}
