/* session_save.c: the pages of a session in a file (kv_file.h), each rank's in its own. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cpu_impl.h"
#include "job_impl.h"
#include "kv_file.h"
#include "machine.h"
#include "output_impl.h"
#include "session_impl.h"
#include "threads.h"

enum { SYNC_BYTES = 64 << 20 }; /* written between two looks at what the disk has taken */

/* ---- what is saved -------------------------------------------------------------------------- */

static oct_kv_kind kind_of(const oct_session *s)
{
    const oct_kv_cache *kv = &s->p.kv;
    const bool ref = s->p.cpu.k == &oct_kernel_rows[OCT_KERNELS_REF];
    const oct_grok_config *c = &s->model->config;
    oct_rank_build build;
    oct_kv_kind kind;
    memset(&kind, 0, sizeof kind);
    oct_rank_build_self(&build);
    snprintf(kind.build, sizeof kind.build, "%s%s%s", build.build, build.build[0] ? " " : "",
             build.version);
    kind.fingerprint = s->model->info.fingerprint;
    kind.kv = kv->type;
    kind.act = s->p.graph.digits == 1 ? OCT_ACT_I8 : OCT_ACT_I16;
    kind.sums = s->p.cpu.blas ? 2 : ref;
    kind.page = OCT_KV_PAGE;
    kind.n_layers = kv->n_layers;
    kind.first_head =
        s->p.shard.slices[OCT_SHARD_OF_ATTENTION].first * (c->n_kv_heads / c->n_slices);
    kind.n_heads = kv->n_heads;
    kind.head_dim = kv->head_dim;
    kind.v_stride = kv->v_stride;
    return kind;
}

/* The file of this rank, malloc'd. */
static oct_status path_of(const oct_session *s, const char *folder, char **path, oct_error *err)
{
    const uint64_t print = s->model->info.fingerprint;
    const int n = s->comm->size > 1 ? asprintf(path, "%s/octet-%016" PRIx64 "-%d-of-%d.kv", folder,
                                               print, s->comm->rank, s->comm->size)
                                    : asprintf(path, "%s/octet-%016" PRIx64 ".kv", folder, print);
    if (n < 0)
        *path = NULL;
    return n < 0 ? oct_fail(err, OCT_ERR_MEMORY, "out of memory") : OCT_OK;
}

static oct_status make_folder(const char *folder, oct_error *err)
{
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        return oct_fail(err, OCT_ERR_IO, "%s: cannot be made: %s", folder, strerror(errno));
    if (access(folder, W_OK | X_OK) != 0)
        return oct_fail(err, OCT_ERR_IO, "%s: cannot be written to: %s", folder, strerror(errno));
    return OCT_OK;
}

/* ---- a page in memory, wherever its layers are ---- */

/* A page between the session's memory and buf[layer][head]. */
typedef struct page_copy {
    oct_session *s;
    int64_t page;
    unsigned char *buf;
    bool in; /* into the session */
} page_copy;

/* Attention's steps, whose layers' keys and values are in their places; NULL: no more. */
static const oct_step *next_layer(const oct_plan *p, int *i)
{
    while (*i < p->n_steps) {
        const oct_step *step = &p->steps[(*i)++];
        if (step->node && step->node->op == OCT_OP_ATTENTION)
            return step;
    }
    return NULL;
}

static unsigned char *in_buf(const page_copy *c, const oct_step *step, int64_t head)
{
    const oct_kv_cache *kv = &c->s->kv[step->place];
    return c->buf + (size_t)(step->node->layer * kv->n_heads + head) * kv->head_bytes;
}

/* Layers of the host: each head by a thread of its domain, as whoever touches memory first decides
 * where it is. */
static void copy_host(void *ctx, int thread, int n_threads)
{
    const page_copy *c = ctx;
    const oct_kv_cache *kv = &c->s->kv[OCT_HOST];
    const int n_domains = (int)kv->n_domains;
    int d = 0, at = 0;
    while (oct_cpu_first_thread(n_threads, d + 1, n_domains) <= thread)
        d++;
    const int first = oct_cpu_first_thread(n_threads, d, n_domains),
              n = oct_cpu_first_thread(n_threads, d + 1, n_domains) - first;
    const int64_t heads = kv->n_heads / n_domains;
    for (const oct_step *step; (step = next_layer(&c->s->p.plan, &at));)
        for (int64_t h = d * heads + thread - first; step->place == OCT_HOST && h < (d + 1) * heads;
             h += n) {
            unsigned char *mine = oct_kv_cache_page(kv, step->kv_layer, c->page, h),
                          *its = in_buf(c, step, h);
            memcpy(c->in ? mine : its, c->in ? its : mine, kv->head_bytes);
        }
}

static oct_status copy_device(const page_copy *c, const oct_step *step, oct_error *err)
{
    const oct_kv_cache *kv = &c->s->kv[step->place];
    oct_backend *b = c->s->runner.backend[step->place];
    const size_t bytes = (size_t)kv->n_heads * kv->head_bytes; /* one domain: in one piece */
    unsigned char *mine = oct_kv_cache_page(kv, step->kv_layer, c->page, 0),
                  *its = in_buf(c, step, 0);
    return c->in ? b->upload(b, mine, its, bytes, err) : b->download(b, its, mine, bytes, err);
}

static oct_status copy_page(oct_session *s, int64_t page, unsigned char *buf, bool in,
                            oct_error *err)
{
    page_copy c = {s, page, buf, in};
    const oct_plan *plan = &s->p.plan;
    oct_status status = OCT_OK;
    int at = 0;
    for (int i = 1; i < plan->n_places; i++)
        if (s->runner.backend[i]->begin)
            s->runner.backend[i]->begin(s->runner.backend[i]);
    for (const oct_step *step; status == OCT_OK && (step = next_layer(plan, &at));)
        if (step->place != OCT_HOST)
            status = copy_device(&c, step, err);
    if (plan->need[OCT_HOST].kv_layers > 0)
        oct_team_run(oct_session_team(s), copy_host, &c);
    for (int i = 1; i < plan->n_places; i++) {
        oct_backend *b = s->runner.backend[i];
        oct_error late = {0};
        oct_status waited = b->wait ? b->wait(b, &late) : OCT_OK;
        if (status == OCT_OK && waited != OCT_OK)
            status = oct_fail(err, waited, "%s", late.text);
        if (b->end)
            b->end(b);
    }
    return status;
}

/* ---- saving --------------------------------------------------------------------------------- */

/* A file under way. */
typedef struct saving {
    oct_session *s;
    oct_output out;
    oct_kv_listed *list; /* [n] */
    int64_t n;
    unsigned char *front; /* of the file, see kv_file.h */
    unsigned char *page;  /* one */
    double end;           /* when to stop */
} saving;

static bool any_file(void *ctx, int fd)
{
    (void)ctx;
    (void)fd;
    return true; /* whatever was left behind is written over */
}

static oct_kv_file_entry *entries_of(const saving *a)
{
    return (void *)(a->front + sizeof(oct_kv_file_head));
}

/* Pages until the time is over, at least one; *n: how many. */
static oct_status write_pages(const saving *a, int64_t *n, oct_error *err)
{
    const oct_session *s = a->s;
    const uint64_t bytes = s->p.kv.page_bytes, at = oct_kv_file_pages_at(a->n);
    uint64_t unsynced = 0;
    for (*n = 0; *n < a->n && (*n == 0 || oct_seconds() < a->end); (*n)++) {
        const int32_t page = a->list[*n].page;
        oct_kv_file_entry *e = &entries_of(a)[*n];
        OCT_TRY(copy_page(a->s, page, a->page, false, err));
        e->sum = oct_kv_file_sum(a->page, bytes);
        e->parent = a->list[*n].parent;
        memcpy(e->ids, s->pages.ids[page], sizeof e->ids);
        OCT_TRY(oct_output_write(&a->out, a->page, bytes, at + (uint64_t)*n * bytes, err));
        unsynced += bytes;
        if (unsynced >= SYNC_BYTES) {
            OCT_TRY(oct_output_sync(&a->out, err));
            unsynced = 0;
        }
    }
    return OCT_OK;
}

static oct_status write_file(saving *a, const char *path, oct_kv_kept *kept, oct_error *err)
{
    const oct_session *s = a->s;
    bool resumed;
    oct_kv_file_head head = {.kind = kind_of(s), .n_room = a->n, .page_bytes = s->p.kv.page_bytes};
    const uint64_t front = oct_kv_file_pages_at(a->n);
    a->front = calloc(1, front);
    a->page = calloc(1, head.page_bytes);
    if (!a->front || !a->page)
        return oct_fail(err, OCT_ERR_MEMORY, "%s: out of memory for a page", path);
    OCT_TRY(oct_output_create_or(&a->out, path, front + (uint64_t)a->n * head.page_bytes, any_file,
                                 NULL, &resumed, NULL, err));
    if (fchmod(a->out.fd, 0600) != 0)
        return oct_fail(err, OCT_ERR_IO, "%s: %s", path, strerror(errno));
    OCT_TRY(write_pages(a, &head.n_pages, err));
    oct_kv_file_seal(a->front, &head);
    OCT_TRY(oct_output_write(&a->out, a->front, front, 0, err));
    kept->pages = head.n_pages;
    kept->bytes = (uint64_t)head.n_pages * head.page_bytes;
    if (ftruncate(a->out.fd, (off_t)(front + kept->bytes)) != 0)
        return oct_fail(err, OCT_ERR_IO, "%s: %s", path, strerror(errno));
    return oct_output_publish(&a->out, err);
}

static oct_status save_here(oct_session *s, const char *folder, double seconds, oct_kv_kept *kept,
                            oct_error *err)
{
    saving a = {.s = s, .out = {.fd = -1}, .end = oct_seconds() + seconds};
    char *path = NULL;
    oct_status status = make_folder(folder, err);
    if (status == OCT_OK)
        status = oct_kv_pages_list(&s->pages, &a.list, &a.n, err);
    if (status == OCT_OK && a.n > 0)
        status = path_of(s, folder, &path, err);
    if (status == OCT_OK && a.n > 0)
        status = write_file(&a, path, kept, err);
    oct_output_close(&a.out);
    free(a.list);
    free(a.front);
    free(a.page);
    free(path);
    if (status != OCT_OK)
        *kept = (oct_kv_kept){0};
    return status;
}

/* ---- restoring ------------------------------------------------------------------------------ */

/* Brings the pages of an open file into the pool's memory: *n of them, for the index to come. */
static oct_status read_pages(oct_session *s, const oct_kv_file *f, int64_t *n, oct_error *err)
{
    const int64_t room = s->p.kv.n_pages, all = f->head->n_pages < room ? f->head->n_pages : room;
    unsigned char *page = malloc(s->p.kv.page_bytes);
    oct_status status =
        page ? OCT_OK : oct_fail(err, OCT_ERR_MEMORY, "%s: out of memory for a page", f->path);
    for (int64_t i = 0; i < all && status == OCT_OK; i++) {
        if (oct_cancelled(s->cancel))
            status = oct_fail(err, OCT_ERR_CANCELLED, "%s: interrupted", f->path);
        else
            status = oct_kv_file_read_page(f, i, page, err);
        if (status == OCT_OK)
            status = copy_page(s, i, page, true, err);
    }
    free(page);
    *n = status == OCT_OK ? all : 0;
    return status;
}

/* As read_pages, of the rank's file if there is one; *f is to be freed, and closed, by the caller.
 */
static oct_status read_here(oct_session *s, const char *path, oct_kv_file *f, int64_t *n,
                            oct_error *err)
{
    const oct_kv_kind want = kind_of(s);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *f = (oct_kv_file){.fd = fd};
    if (fd < 0 && errno == ENOENT)
        return OCT_OK;
    if (fd < 0)
        return oct_fail(err, OCT_ERR_IO, "%s: %s", path, strerror(errno));
    OCT_TRY(
        oct_kv_file_read(fd, path, &want, s->p.kv.page_bytes, s->model->config.n_vocab, f, err));
    return read_pages(s, f, n, err);
}

/* ---- ranks agree ---- */

/* What each tells all. */
typedef struct told {
    oct_status status;
    bool ends; /* the call: it is not the file that is wrong */
    int64_t pages;
    uint64_t digest; /* of so many entries as all have */
    char why[OCT_ERROR_TEXT];
} told;

/* *mine becomes what all have: the fewest pages, the first error, which names its rank. */
static oct_status agree(oct_session *s, told *mine, oct_error *err)
{
    oct_comm *c = s->comm;
    if (c->size == 1)
        return OCT_OK;
    told *all = calloc((size_t)c->size, sizeof *all);
    if (!all) {
        c->broken = true; /* the others wait for this rank */
        return oct_fail(err, OCT_ERR_COMM, "rank %d: out of memory", c->rank);
    }
    oct_status status = c->gather(c, mine, sizeof *mine, all, err);
    for (int r = c->size; status == OCT_OK && r-- > 0;) {
        if (all[r].pages < mine->pages)
            mine->pages = all[r].pages;
        if (all[r].digest != all[0].digest) {
            mine->pages = 0;
            snprintf(mine->why, sizeof mine->why,
                     "rank %d has keys and values of other texts than rank 0", r);
        }
    }
    for (int r = c->size; status == OCT_OK && r-- > 0;)
        if (all[r].why[0]) {
            mine->status = all[r].status;
            mine->ends = all[r].ends;
            snprintf(mine->why, sizeof mine->why, "rank %d: %.480s", r, all[r].why);
        }
    free(all);
    return status;
}

static void tell(told *t, oct_status status, int64_t pages, const oct_error *err)
{
    memset(t, 0, sizeof *t);
    t->status = status;
    t->pages = pages;
    if (status != OCT_OK)
        memcpy(t->why, err->text, sizeof t->why);
}

static oct_status save_all(oct_session *s, const char *folder, double seconds, oct_kv_kept *kept,
                           oct_error *err)
{
    oct_error why = {0};
    told all;
    oct_status status = save_here(s, folder, seconds, kept, &why);
    tell(&all, status, kept->pages, &why);
    OCT_TRY(agree(s, &all, err));
    kept->pages = all.pages;
    return all.status == OCT_OK ? OCT_OK : oct_fail(err, all.status, "%s", all.why);
}

/* The ranks take up pages only if all of them have the same: then they stay alike. */
static oct_status restore_all(oct_session *s, const char *folder, oct_kv_kept *kept, oct_error *err)
{
    oct_error why = {0};
    oct_kv_file f = {.fd = -1};
    char *path = NULL;
    int64_t n = 0;
    told all;
    oct_status status = make_folder(folder, &why);
    const bool ends = status != OCT_OK;
    if (status == OCT_OK)
        status = path_of(s, folder, &path, &why);
    if (status == OCT_OK)
        status = read_here(s, path, &f, &n, &why);
    tell(&all, status, n, &why);
    all.ends = ends || status == OCT_ERR_CANCELLED;
    status = agree(s, &all, err);
    if (status == OCT_OK && all.pages > 0) {
        all.digest = oct_kv_file_digest(f.entry, all.pages);
        status = agree(s, &all, err);
    }
    if (status == OCT_OK && all.ends)
        status = oct_fail(err, all.status, "%s", all.why);
    for (int64_t i = 0; i < all.pages && status == OCT_OK; i++)
        oct_kv_pages_put(&s->pages, f.entry[i].ids, f.entry[i].parent);
    oct_kv_pages_put_end(&s->pages);
    kept->pages = s->pages.n_cached;
    kept->bytes = (uint64_t)kept->pages * s->p.kv.page_bytes;
    memcpy(kept->why, all.why, sizeof kept->why);
    oct_kv_file_free(&f);
    if (f.fd >= 0)
        close(f.fd);
    free(path);
    return status;
}

/* ---- calls, and orders ---- */

/* The threads are the process's that made the session. */
static oct_status check_process(const oct_session *s, oct_error *err)
{
    return s->process == getpid()
               ? OCT_OK
               : oct_fail(err, OCT_ERR_ARG, "this session belongs to process %ld, this one is %ld",
                          (long)s->process, (long)getpid());
}

static oct_status order(oct_session *s, int64_t what, int64_t a, const char *folder, oct_error *err)
{
    const size_t bytes = strlen(folder) + 1;
    const int64_t n_rows = (int64_t)((bytes + sizeof(int32_t) - 1) / sizeof(int32_t));
    if (s->comm->size == 1)
        return OCT_OK;
    if (n_rows > oct_order_rows(s))
        return oct_fail(err, OCT_ERR_ARG, "%s: a name too long to tell the ranks", folder);
    s->order->rows[n_rows - 1] = 0;
    memcpy(s->order->rows, folder, bytes);
    return oct_eval_order(s, what, a, 0, n_rows, err);
}

static bool untouched(const oct_session *s)
{
    return s->pages.n_fresh == s->pages.n_pages;
}

oct_status oct_session_save(oct_session *s, const char *folder, double seconds, oct_kv_kept *kept,
                            oct_error *err)
{
    const double most = 1e9;
    seconds = seconds > 0 ? fmin(seconds, most) : 0;
    *kept = (oct_kv_kept){0};
    OCT_TRY(check_process(s, err));
    OCT_TRY(order(s, OCT_ORDER_SAVE, (int64_t)(seconds * 1e3), folder, err));
    return save_all(s, folder, seconds, kept, err);
}

oct_status oct_session_restore(oct_session *s, const char *folder, oct_kv_kept *kept,
                               oct_error *err)
{
    *kept = (oct_kv_kept){0};
    OCT_TRY(check_process(s, err));
    if (!untouched(s))
        return oct_fail(err, OCT_ERR_ARG, "%s: the session has evaluated already", folder);
    OCT_TRY(order(s, OCT_ORDER_RESTORE, 0, folder, err));
    return restore_all(s, folder, kept, err);
}

oct_status oct_session_obey_saving(oct_session *s, int64_t n_rows, oct_error *err)
{
    const oct_rank_order *o = s->order;
    const char *text = (const char *)o->rows;
    const bool saves = o->what == OCT_ORDER_SAVE;
    oct_kv_kept kept = {0};
    oct_error why = {0};
    if (n_rows < 1 || !memchr(text, 0, (size_t)n_rows * sizeof *o->rows) || o->a < 0 ||
        (!saves && !untouched(s)))
        return oct_fail(err, OCT_ERR_ARG, "rank %d: rank 0 sent an order that does not fit",
                        s->comm->rank);
    char *folder = strdup(text); /* the order's place is used again */
    if (!folder)
        return oct_fail(err, OCT_ERR_MEMORY, "rank %d: out of memory", s->comm->rank);
    oct_status status = saves ? save_all(s, folder, (double)o->a * 1e-3, &kept, &why)
                              : restore_all(s, folder, &kept, &why);
    free(folder);
    /* What a rank lacks all know of, and rank 0 tells; only a broken exchange is this one's end. */
    return status == OCT_ERR_COMM ? oct_fail(err, status, "%s", why.text) : OCT_OK;
}
