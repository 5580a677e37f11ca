/* bench_synthetic.c: true-shape models with random weights, in memory or in a file. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"
#include "cli_session.h"
#include "progress.h"
#include "synthetic.h"

static void update(void *ctx, uint64_t done, uint64_t total)
{
    oct_progress *p = ctx;
    p->total = total;
    oct_progress_update(p, done);
}

static oct_status enough_memory(const oct_grok_config *c, oct_error *err)
{
    oct_grok_layouts l;
    oct_grok_tensor *list;
    int64_t n;
    uint64_t total = 0, bytes;
    oct_memory have;
    char a[24], b[24];
    OCT_TRY(oct_grok_config_check(c, err));
    OCT_TRY(oct_grok_layouts_init(c, &l, err));
    OCT_TRY(oct_grok_manifest(c, &l, &list, &n, err));
    for (int64_t i = 0; i < n; i++)
        total += oct_gguf_tensor_bytes(list[i].dtype, list[i].rank, list[i].ne, &bytes) ? bytes : 0;
    free(list);
    oct_memory_get("", &have);
    const uint64_t limit = have.least;
    if (total > limit - limit / 16)
        return oct_fail(err, OCT_ERR_MEMORY,
                        "%lld layers take %s of memory, but only %s are available (--layers makes "
                        "it fewer, -o FILE writes to disk)",
                        (long long)c->n_layers, oct_memory_text(total, a),
                        oct_memory_text(limit, b));
    return OCT_OK;
}

static oct_status write_to(const oct_bench *b, const oct_grok_config *c, int fd, oct_error *err)
{
    oct_progress progress;
    oct_synthetic_params p = {.config = *c,
                              .seed = b->seed,
                              .fd = fd,
                              .progress = update,
                              .progress_ctx = &progress,
                              .cancel = oct_cli_cancel_flag()};
    oct_progress_start(&progress, "random weights", 0);
    oct_status s = oct_synthetic_write(&p, err);
    oct_progress_end(&progress, s == OCT_OK);
    return s;
}

/* Under another name first, so that an interrupted run leaves no half a file. */
static oct_status write_file(const oct_bench *b, const oct_grok_config *c, oct_error *err)
{
    char temp[4096];
    if (snprintf(temp, sizeof temp, "%s.new", b->out) >= (int)sizeof temp)
        return oct_fail(err, OCT_ERR_ARG, "-o: the name has %zu characters", strlen(b->out));
    int fd = open(temp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return oct_fail(err, OCT_ERR_IO, "%s: cannot create: %s", temp, strerror(errno));
    oct_cli_temp_file(temp);
    oct_status s = write_to(b, c, fd, err);
    if (close(fd) != 0 && s == OCT_OK)
        s = oct_fail(err, OCT_ERR_IO, "%s: cannot write: %s", temp, strerror(errno));
    if (s == OCT_OK && rename(temp, b->out) != 0)
        s = oct_fail(err, OCT_ERR_IO, "%s: cannot rename to %s: %s", temp, b->out, strerror(errno));
    if (s != OCT_OK)
        unlink(temp);
    oct_cli_temp_file(NULL);
    return s;
}

oct_status oct_bench_synthetic(const oct_bench *b, char path[128], int *fd, oct_error *err)
{
    oct_grok_config c = oct_synthetic_grok1(b->layers, b->vocab);
    *fd = -1;
    if (b->out)
        return write_file(b, &c, err);
    OCT_TRY(enough_memory(&c, err));
    *fd = memfd_create("octet-synthetic", MFD_CLOEXEC);
    if (*fd < 0)
        return oct_fail(err, OCT_ERR_IO, "cannot make a file in memory: %s", strerror(errno));
    snprintf(path, 128, "/proc/%d/fd/%d", (int)getpid(), *fd); /* ranks on this host find it too */
    return write_to(b, &c, *fd, err);
}

oct_status oct_bench_grok1(oct_model **m, oct_error *err)
{
    char path[64];
    const oct_synthetic_params p = {.config = oct_synthetic_grok1(64, 131072),
                                    .hollow = true,
                                    .fd = memfd_create("octet-grok-1", MFD_CLOEXEC)};
    if (p.fd < 0)
        return oct_fail(err, OCT_ERR_IO, "cannot make a file in memory: %s", strerror(errno));
    snprintf(path, sizeof path, "/proc/self/fd/%d", p.fd);
    oct_status s = oct_synthetic_write(&p, err);
    if (s == OCT_OK)
        s = oct_model_open(path, m, err);
    close(p.fd);
    return s;
}
