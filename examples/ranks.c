#include "ranks.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm.h"
#include "kernels.h"
#include "memory.h"
#include "progress.h"

enum { ORDER_OPEN = 1, ORDER_END };

/* What rank 0 tells the others to open. */
typedef struct open_order {
    int64_t what;
    oct_session_params params; /* pointers are not used */
    char path[PATH_MAX];
} open_order;

/* What a rank says before anything is loaded. */
typedef struct rank_report {
    char host[64], version[OCT_VERSION_TEXT_MAX];
    uint64_t fingerprint, need, have;
    int32_t isa, n_threads, n_cpus; /* n_cpus: that the process may use */
    int32_t status;
    char text[OCT_ERROR_TEXT];
} rank_report;

static oct_comm *job; /* NULL: one process */

static bool launched(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK",
                                        "MPI_LOCALNRANKS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]))
            return strcmp(names[i], "OMPI_COMM_WORLD_SIZE") != 0 || atoi(getenv(names[i])) > 1;
    return false;
}

static oct_status join(oct_error *err)
{
    typedef oct_status open_fn(oct_comm **out, oct_error *e);
    void *lib = dlopen("liboctet_mpi.so", RTLD_NOW | RTLD_GLOBAL);
    if (!lib)
        return oct_fail(err, OCT_ERR_UNSUPPORTED,
                        "started as one of several ranks, but MPI cannot be used: %s", dlerror());
    open_fn *open = NULL;
    *(void **)&open = dlsym(lib, "oct_comm_mpi_open");
    if (!open)
        return oct_fail(err, OCT_ERR_UNSUPPORTED, "liboctet_mpi.so lacks oct_comm_mpi_open");
    return open(&job, err);
}

static void report_self(rank_report *r, const oct_model *m, const oct_session_params *p,
                        const oct_error *opened)
{
    cpu_set_t set;
    memset(r, 0, sizeof *r);
    gethostname(r->host, sizeof r->host - 1);
    strncpy(r->version, oct_version(), sizeof r->version - 1);
    r->n_cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
    oct_error err = *opened;
    oct_session_need need = {0};
    r->status = (int32_t)err.status;
    if (m && err.status == OCT_OK)
        r->status = (int32_t)oct_session_estimate(m, p, &need, &err);
    memcpy(r->text, err.text, sizeof r->text);
    if (r->status != OCT_OK)
        return;
    oct_memory have;
    oct_memory_have("", &have);
    r->fingerprint = oct_model_get_info(m)->fingerprint;
    r->need = need.weights + need.kv + need.buffers;
    r->have = have.system < have.cgroup ? have.system : have.cgroup;
    r->n_threads = need.n_threads;
    oct_isa isa = OCT_ISA_REF;
    (void)oct_isa_parse(need.isa, &isa);
    r->isa = (int32_t)isa;
}

/* Every difference, a line each, printed by rank 0. All ranks come to the same verdict. */
static int count_problems(const rank_report *r, int n, bool print)
{
    int problems = 0;
    char a[24], b[24];
    for (int i = 0; i < n; i++) {
        if (r[i].status != OCT_OK && ++problems && print)
            oct_cli_error("rank %d on %s: %s", i, r[i].host, r[i].text);
        if (strcmp(r[i].version, r[0].version) != 0 && ++problems && print)
            oct_cli_error("rank %d on %s: octet %s, rank 0 has %s", i, r[i].host, r[i].version,
                          r[0].version);
        if (r[i].status == OCT_OK && r[0].status == OCT_OK &&
            r[i].fingerprint != r[0].fingerprint && ++problems && print)
            oct_cli_error("rank %d on %s: another model file (%016llx, rank 0 has %016llx)", i,
                          r[i].host, (unsigned long long)r[i].fingerprint,
                          (unsigned long long)r[0].fingerprint);
        if (r[i].need > r[i].have && ++problems && print)
            oct_cli_error("rank %d on %s: its part needs %s, %s is available", i, r[i].host,
                          oct_cli_bytes(r[i].need, a), oct_cli_bytes(r[i].have, b));
        if (print && r[i].n_cpus > 0 && r[i].n_cpus < r[i].n_threads)
            oct_cli_warning(
                "rank %d on %s may use %d CPU%s for %d threads; mpirun --bind-to none, or "
                "--map-by slot:PE=%d, gives it more",
                i, r[i].host, r[i].n_cpus, r[i].n_cpus == 1 ? "" : "s", r[i].n_threads,
                r[i].n_threads);
    }
    return problems;
}

/* The ranks' reports; then the session, if all can have one. The row of kernels is the best that
 * all have. */
static oct_status make_together(oct_model *m, const oct_session_params *params,
                                const oct_error *opened, oct_session **s, oct_error *err)
{
    *s = NULL;
    oct_session_params p = *params;
    p.comm = job;
    rank_report mine, *all = calloc((size_t)job->size, sizeof *all);
    if (!all)
        return oct_fail(err, OCT_ERR_MEMORY, "no memory for the reports of %d ranks", job->size);
    report_self(&mine, m, &p, opened);
    oct_status status = job->gather(job, &mine, sizeof mine, all, err);
    if (status == OCT_OK && count_problems(all, job->size, job->rank == 0) > 0)
        status = oct_fail(err, OCT_ERR_COMM, "the ranks do not fit together");
    if (status == OCT_OK) {
        int32_t isa = all[0].isa;
        for (int i = 1; i < job->size; i++)
            isa = all[i].isa < isa ? all[i].isa : isa;
        p.isa = oct_kernel_rows[isa].name;
        oct_error own = {0};
        int32_t ok = oct_session_new(m, &p, s, &own) == OCT_OK &&
                     oct_model_keep_part(m, job->rank, job->size, p.shard, &own) == OCT_OK;
        int32_t *oks = (int32_t *)(void *)all;
        status = job->gather(job, &ok, sizeof ok, oks, err);
        for (int i = 0; i < job->size && status == OCT_OK; i++)
            if (!oks[i])
                status = oct_fail(err, OCT_ERR_COMM, "rank %d cannot make its session: %s", i,
                                  i == job->rank ? own.text : "see its host");
        if (status != OCT_OK) {
            /* no orders have been given, and none must be: the others have no session to obey
             * with */
            oct_session_abandon(*s);
            *s = NULL;
        }
    }
    free(all);
    return status;
}

oct_comm *oct_ranks_comm(void)
{
    return job;
}

const char *oct_ranks_path(const char *pattern, char room[PATH_MAX])
{
    const char *at = job ? strstr(pattern, "%r") : NULL;
    if (!at)
        return pattern;
    int n = snprintf(room, PATH_MAX, "%.*s%d%s", (int)(at - pattern), pattern, job->rank, at + 2);
    return n < PATH_MAX ? room : pattern;
}

/* The absolute name of what rank 0 opened, for ranks that may have been started elsewhere. Links
 * are not followed: on another host the same name may lead to another part. */
static oct_status absolute(const char *pattern, char path[PATH_MAX], oct_error *err)
{
    char folder[PATH_MAX] = "";
    if (pattern[0] != '/' && !getcwd(folder, sizeof folder))
        return oct_fail(err, OCT_ERR_IO, "the working folder: %s", strerror(errno));
    int n = snprintf(path, PATH_MAX, "%s%s%s", folder, folder[0] ? "/" : "", pattern);
    return n < PATH_MAX ? OCT_OK : oct_fail(err, OCT_ERR_ARG, "%s: name too long", pattern);
}

static void show_loading(void *ctx, uint64_t done, uint64_t total)
{
    (void)total;
    oct_progress_update(ctx, done);
}

/* --weights: mapped by default on one NUMA node; on several a copy with every slice on its node. */
static oct_status place_weights(const oct_cli_session *o, oct_model *m, const oct_session_params *p,
                                oct_error *err)
{
    oct_session_need need;
    OCT_TRY(oct_session_estimate(m, p, &need, err));
    if (o->weights == OCT_CLI_WEIGHTS_MAPPED ||
        (o->weights == OCT_CLI_WEIGHTS_AUTO && need.n_domains < 2))
        return OCT_OK;
    oct_progress progress;
    oct_own_report r;
    const oct_own_params own = {.n_threads = need.n_threads,
                                .topology = p->topology,
                                .progress = show_loading,
                                .progress_ctx = &progress,
                                .cancel = p->cancel};
    oct_progress_start(&progress, "loading", need.weights);
    oct_status s = oct_model_own(m, &own, &r, err);
    oct_progress_end(&progress, s == OCT_OK);
    if (s == OCT_OK && r.bind_errno)
        oct_cli_warning(
            "the system refused to bind memory to NUMA nodes (%s); pages lie where they fall",
            strerror(r.bind_errno));
    if (s == OCT_OK && r.pages_sampled)
        fprintf(stderr, "weights on %d nodes, %lld of %lld sampled pages on the right one\n",
                r.n_domains, (long long)r.pages_local, (long long)r.pages_sampled);
    return s;
}

oct_status oct_ranks_session_new(const oct_cli_session *options, oct_model *m,
                                 const oct_session_params *p, oct_session **s, oct_error *err)
{
    if (!job) {
        OCT_TRY(place_weights(options, m, p, err));
        return oct_session_new(m, p, s, err);
    }
    open_order o = {.what = ORDER_OPEN, .params = *p};
    OCT_TRY(absolute(options->model, o.path, err));
    OCT_TRY(job->broadcast(job, &o, sizeof o, err));
    oct_error opened = {0};
    return make_together(m, p, &opened, s, err);
}

/* One session of rank 0's. */
static oct_status serve_once(const open_order *o, oct_error *err)
{
    oct_session_params p = o->params;
    oct_model *m = NULL;
    oct_session *s;
    oct_error opened = {0};
    p.cancel = NULL;
    p.isa = p.topology = NULL;
    char path[PATH_MAX];
    (void)!oct_model_open(oct_ranks_path(o->path, path), &m, &opened);
    oct_status status = make_together(m, &p, &opened, &s, err);
    if (status == OCT_OK) {
        status = oct_session_serve(s, err);
        oct_session_free(s);
    }
    oct_model_close(m);
    return status;
}

static int serve(void)
{
    oct_error err = {0};
    oct_status status = OCT_OK;
    open_order *o = calloc(1, sizeof *o);
    while (o && status == OCT_OK) {
        status = job->broadcast(job, o, sizeof *o, &err);
        if (status == OCT_OK && o->what != ORDER_OPEN)
            break;
        o->path[sizeof o->path - 1] = 0;
        if (status == OCT_OK)
            status = serve_once(o, &err);
    }
    free(o);
    /* What all ranks have found rank 0 has told. */
    if (status != OCT_OK && status != OCT_ERR_COMM)
        return oct_cli_fail(&err);
    job->free(job);
    return status == OCT_OK ? OCT_EXIT_OK : OCT_EXIT_ERROR;
}

int oct_ranks_start(void)
{
    oct_error err = {0};
    if (!launched())
        return -1;
    if (join(&err) != OCT_OK)
        return oct_cli_fail(&err);
    if (job->size == 1) {
        oct_ranks_end();
        return -1;
    }
    return job->rank == 0 ? -1 : serve();
}

void oct_ranks_end(void)
{
    oct_error err = {0};
    open_order o = {.what = ORDER_END};
    if (!job)
        return;
    if (job->size > 1)
        (void)!job->broadcast(job, &o, sizeof o, &err);
    job->free(job);
    job = NULL;
}
