/* bench_synthetic.c: true-shape models with random weights, in memory or in a file. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"
#include "cli_session.h"
#include "progress.h"

static oct_status enough_memory(const oct_synthetic_params *p, oct_error *err)
{
    uint64_t total = 0;
    oct_memory have;
    char a[24], b[24];
    OCT_TRY(oct_synthetic_bytes(p, &total, err));
    oct_memory_get("", &have);
    const uint64_t limit = have.limit;
    if (total > limit - limit / 16)
        return oct_fail(err, OCT_ERR_MEMORY,
                        "%lld layers take %s of memory, but only %s are available (--layers makes "
                        "it fewer, -o FILE writes to disk)",
                        (long long)p->n_layers, oct_memory_text(total, a),
                        oct_memory_text(limit, b));
    return OCT_OK;
}

static void on_progress(void *ctx, const oct_convert_progress *p)
{
    static const char *const names[] = {[OCT_CONVERT_WRITE] = "random weights",
                                        [OCT_CONVERT_SYNC] = "syncing",
                                        [OCT_CONVERT_DONE] = NULL};
    oct_progress_phase(ctx, names[p->phase], p->done, p->total, p->temp);
}

oct_status oct_bench_synthetic(const oct_bench *b, char path[128], int *fd, oct_error *err)
{
    static const char *const types[] = {"q8", "q4g32", "q4g16"}; /* as the option names them */
    oct_progress progress = {0};
    oct_synthetic_params p = {.n_layers = b->layers,
                              .n_vocab = b->vocab,
                              .experts = types[b->experts],
                              .seed = b->seed,
                              .out = b->out,
                              .progress = on_progress,
                              .progress_ctx = &progress,
                              .cancel = oct_cli_cancel_flag()};
    *fd = -1;
    if (!b->out) {
        OCT_TRY(enough_memory(&p, err));
        *fd = p.fd = memfd_create("octet-synthetic", MFD_CLOEXEC);
        if (*fd < 0)
            return oct_fail(err, OCT_ERR_IO, "cannot make a file in memory: %s", strerror(errno));
        /* Ranks on this host find it too. */
        snprintf(path, 128, "/proc/%d/fd/%d", (int)getpid(), *fd);
    }
    oct_status s = oct_synthetic_write(&p, err);
    if (progress.what)
        oct_progress_end(&progress, s == OCT_OK);
    oct_cli_temp_file(NULL);
    return s;
}
