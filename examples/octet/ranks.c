#include "ranks.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm.h"
#include "kernels.h"
#include "memory.h"
#include "progress.h"
#include "ranks_impl.h"
#include "shard.h"
#include "threads.h"

enum { ORDER_OPEN = 1, ORDER_FOLDS, ORDER_END };

/* What rank 0 tells the others to do. */
typedef struct open_order {
    int64_t what;
    int64_t force;             /* OPEN: although the weights do not fit */
    int64_t n_floats, n_folds; /* FOLDS */
    unsigned shards;           /* OPEN: that may be chosen, see oct_cli_shards */
    oct_session_params params; /* pointers are not used */
    char path[PATH_MAX];
} open_order;

/* A session that this rank has, or why not. */
typedef struct made {
    int32_t status;
    char text[OCT_ERROR_TEXT];
} made;

static oct_comm *job; /* NULL: one process */
static bool over;     /* all ranks know that the job has ended */
static bool settled;  /* the layout: later sessions keep it, what it leaves out is unmapped */
static oct_placement *owned; /* of one process: where the weights lie; NULL: in the file */
/* Of the last session. */
static oct_shard_layout layout;
static oct_rank_pace pace;
static oct_comm_stats since;

/* On the watching thread. */
static void say(void *ctx, bool fatal, const char *text)
{
    (void)ctx;
    fatal ? oct_cli_error("%s", text) : oct_cli_warning("%s", text);
}

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
    typedef oct_status open_fn(void (*say)(void *, bool, const char *), void *ctx, oct_comm **out,
                               oct_error *e);
    void *lib = dlopen("liboctet_mpi.so", RTLD_NOW | RTLD_GLOBAL);
    if (!lib)
        return oct_fail(err, OCT_ERR_UNSUPPORTED,
                        "started as one of several ranks, but MPI cannot be used: %s", dlerror());
    open_fn *open = NULL;
    *(void **)&open = dlsym(lib, "oct_comm_mpi_open");
    if (!open)
        return oct_fail(err, OCT_ERR_UNSUPPORTED, "liboctet_mpi.so lacks oct_comm_mpi_open");
    return open(say, NULL, &job, err);
}

/* Layouts, bit k for oct_shard_layout k: those that are allowed and possible, and those of them
 * that all hosts have memory for. */
typedef struct layouts {
    uint32_t can, fit;
} layouts;

/* Rank 0: the layout that is predicted to be fastest, of those that all ranks can use. */
static oct_shard_layout fastest(const oct_model *m, const oct_session_params *p, int n_threads,
                                layouts all)
{
    const int64_t d_model = oct_model_get_info(m)->d_model;
    const uint32_t from = all.fit ? all.fit : all.can & -all.can; /* the first: it needs least */
    char list[400] = "";
    int n = 0, best = -1;
    double least = 0;
    for (int k = 0; k < OCT_SHARD_LAYOUTS; k++) {
        if (!(all.can >> k & 1))
            continue;
        /* on average caches are half full */
        double seconds = oct_rank_predict(m, job->size, (oct_shard_layout)k, p->n_ctx / 2,
                                          oct_kv_elem_bytes(p->kv), &pace);
        n += snprintf(list + n, sizeof list - (size_t)n, "%s%.3g ms by %s%s", n ? "; " : "",
                      1e3 * seconds, oct_shard_name((oct_shard_layout)k),
                      all.fit >> k & 1 ? "" : " (not enough memory)");
        if (!(from >> k & 1) || (best >= 0 && seconds >= least))
            continue;
        best = k;
        least = seconds;
    }
    if (all.can & (all.can - 1)) /* there was a choice */
        fprintf(stderr,
                "ranks by %s: predicted per token: %s (%d threads read %.3g GB/s, %lld floats are "
                "folded%s in %.3g us)\n",
                oct_shard_name((oct_shard_layout)best), list, n_threads, pace.read / 1e9,
                (long long)d_model, job->shared_memory ? " through shared memory" : "",
                1e6 * (pace.latency + (double)d_model * pace.per_float));
    return (oct_shard_layout)best;
}

/* The weights need no memory of their own. */
static bool resident(const open_order *o)
{
    char path[PATH_MAX];
    return o->force || oct_cli_in_memory(oct_ranks_path(o->path, path));
}

/* Measures what the ranks can do; *by is the layout that all take. */
static oct_status choose_layout(const open_order *o, const oct_model *m, const oct_error *opened,
                                oct_shard_layout *by, oct_error *err)
{
    const oct_model_info *i = m ? oct_model_get_info(m) : NULL;
    oct_session_params p = o->params;
    layouts found = {0};
    int n_threads = 1;
    oct_isa isa = OCT_ISA_REF;
    oct_status status = OCT_OK;
    p.comm = job;
    p.isa = p.topology = NULL;
    oct_rank_report *all = calloc((size_t)job->size, sizeof *all);
    if (!all)
        return oct_fail(err, OCT_ERR_MEMORY, "no memory for the reports of %d ranks", job->size);
    for (int k = 0; k < OCT_SHARD_LAYOUTS && status == OCT_OK; k++) {
        oct_rank_report r = {0}; /* without a model nothing is known against any layout */
        bool can = true;
        if (!(o->shards >> k & 1))
            continue;
        p.shard = (oct_shard_layout)k;
        if (m)
            oct_rank_report_self(m, &p, opened, resident(o), &r);
        if (m && r.status == OCT_OK) {
            n_threads = r.n_threads;
            isa = (oct_isa)r.isa;
        }
        status = job->gather(job, &r, sizeof r, all, err);
        for (int n = 0; n < job->size; n++)
            can = can && all[n].status == OCT_OK;
        found.can |= can ? 1u << k : 0;
        found.fit |= can && oct_rank_all_fit(all, job->size) ? 1u << k : 0;
    }
    free(all);
    if (status != OCT_OK)
        return status;
    OCT_TRY(oct_rank_measure(job, i ? i->d_model : 0, n_threads, isa, &pace, err));
    int32_t chosen = (int32_t)*by; /* what is wrong with it the reports will say */
    if (job->rank == 0 && found.can)
        chosen = (int32_t)fastest(m, &p, n_threads, found);
    OCT_TRY(job->broadcast(job, &chosen, sizeof chosen, err));
    layout = *by = (oct_shard_layout)chosen;
    return OCT_OK;
}

/* All ranks make their sessions; if one cannot, none has one. */
static oct_status make_all(oct_model *m, const oct_session_params *p, oct_session **s,
                           oct_error *err)
{
    made mine = {0}, *all = calloc((size_t)job->size, sizeof *all);
    oct_error own = {0};
    if (!all)
        return oct_fail(err, OCT_ERR_MEMORY, "no memory for the reports of %d ranks", job->size);
    mine.status = (int32_t)oct_session_new(m, p, s, &own);
    if (mine.status == OCT_OK)
        mine.status = (int32_t)oct_model_keep_part(m, job->rank, job->size, p->shard, &own);
    memcpy(mine.text, own.text, sizeof mine.text);
    oct_status status = job->gather(job, &mine, sizeof mine, all, err);
    for (int i = 0; i < job->size && status == OCT_OK; i++)
        if (all[i].status != OCT_OK)
            status = oct_fail(err, OCT_ERR_COMM, "rank %d: %s", i, all[i].text);
    free(all);
    if (status != OCT_OK) {
        /* no orders have been given, and none must be: the others have no session to obey with */
        oct_session_abandon(*s);
        *s = NULL;
    }
    return status;
}

/* The ranks' reports; then the session, if all can have one. The row of kernels is the best that
 * all have. */
static oct_status make_together(const open_order *o, oct_model *m, const oct_session_params *params,
                                const oct_error *opened, oct_session **s, oct_error *err)
{
    *s = NULL;
    oct_session_params p = *params;
    p.comm = job;
    OCT_TRY(choose_layout(o, m, opened, &p.shard, err));
    oct_rank_report mine, *all = calloc((size_t)job->size, sizeof *all);
    if (!all)
        return oct_fail(err, OCT_ERR_MEMORY, "no memory for the reports of %d ranks", job->size);
    int32_t isa;
    oct_rank_report_self(m, &p, opened, resident(o), &mine);
    oct_status status = job->gather(job, &mine, sizeof mine, all, err);
    if (status == OCT_OK) {
        int problems = oct_rank_compare(all, job->size, false, &isa);
        if (job->rank == 0 && (problems > 0 || !settled)) /* what is well is told once */
            (void)oct_rank_compare(all, job->size, true, &isa);
        if (problems > 0)
            status = oct_fail(err, OCT_ERR_COMM, "the ranks do not fit together");
        p.no_bind |= oct_rank_shares_cores(all, job->size, job->rank);
    }
    free(all);
    if (status == OCT_OK) {
        p.isa = oct_kernel_rows[isa].name;
        status = make_all(m, &p, s, err);
    }
    settled = true;
    over = status != OCT_OK && !job->broken;
    since = job->stats;
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

const oct_placement *oct_ranks_placement(void)
{
    return owned;
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
    if (owned)
        return OCT_OK;
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
    oct_status s = oct_placement_own(m, &own, &owned, &r, err);
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
        oct_session_params here = *p;
        here.placement = owned;
        return oct_session_new(m, &here, s, err);
    }
    open_order o = {.what = ORDER_OPEN,
                    .shards = settled ? 1u << layout : oct_cli_shards(options),
                    .force = options->force,
                    .params = *p};
    if (options->weights == OCT_CLI_WEIGHTS_OWNED)
        return oct_fail(err, OCT_ERR_ARG, "--weights owned is of one process; ranks map parts");
    OCT_TRY(absolute(options->model, o.path, err));
    OCT_TRY(job->broadcast(job, &o, sizeof o, err));
    oct_error opened = {0};
    return make_together(&o, m, &o.params, &opened, s, err);
}

/* ---- the exchange alone --------------------------------------------------------------------- */

static oct_status fold_together(int64_t n, int64_t count, double *seconds, oct_comm_stats *one,
                                oct_error *err)
{
    float *x = calloc((size_t)n, sizeof *x);
    int32_t *all = calloc((size_t)job->size, sizeof *all), mine = 0;
    oct_status status = OCT_OK;
    if (!x || !all) {
        job->broken = true; /* the others fold by now */
        status = oct_fail(err, OCT_ERR_MEMORY, "no memory to fold %lld floats", (long long)n);
    }
    for (int64_t i = 0; i < count && status == OCT_OK; i++) {
        status = job->gather(job, &mine, sizeof mine, all, err); /* nobody begins before the rest */
        oct_comm_stats from = job->stats;
        double start = oct_seconds();
        if (status == OCT_OK)
            status = job->fold(job, x, n, err);
        if (seconds)
            seconds[i] = oct_seconds() - start;
        if (one) {
            one->rounds = job->stats.rounds - from.rounds;
            one->bytes_sent = job->stats.bytes_sent - from.bytes_sent;
        }
    }
    free(all);
    free(x);
    return status;
}

oct_status oct_ranks_time_folds(int64_t n, int64_t count, double *seconds, oct_comm_stats *one,
                                oct_error *err)
{
    open_order o = {.what = ORDER_FOLDS, .n_floats = n, .n_folds = count};
    *one = (oct_comm_stats){0};
    OCT_TRY(job->broadcast(job, &o, sizeof o, err));
    return fold_together(n, count, seconds, one, err);
}

/* ---- ranks other than 0 --------------------------------------------------------------------- */

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
    oct_status status = make_together(o, m, &p, &opened, &s, err);
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
        o->path[sizeof o->path - 1] = 0;
        if (status == OCT_OK && o->what == ORDER_OPEN)
            status = serve_once(o, &err);
        else if (status == OCT_OK && o->what == ORDER_FOLDS)
            status = fold_together(o->n_floats, o->n_folds, NULL, NULL, &err);
        else
            break;
    }
    free(o);
    /* What all ranks have found rank 0 has told; what this one has found ends all of them. */
    if (status != OCT_OK && status != OCT_ERR_COMM) {
        oct_cli_fail(&err);
        job->broken = true;
    }
    job->free(job);
    return status == OCT_OK ? OCT_EXIT_OK : OCT_EXIT_ERROR;
}

int oct_ranks_start(void)
{
    oct_error err = {0};
    if (!launched())
        return -1;
    if (join(&err) != OCT_OK) {
        int code = oct_cli_fail(&err);
        if (job)
            job->free(job);
        return code;
    }
    if (job->size == 1) {
        oct_ranks_end();
        return -1;
    }
    return job->rank == 0 ? -1 : serve();
}

const oct_rank_pace *oct_ranks_pace(void)
{
    return &pace;
}

oct_shard_layout oct_ranks_layout(oct_shard_layout by)
{
    return job ? layout : by;
}

void oct_ranks_print(const oct_model *m, oct_session *s, double token_seconds)
{
    if (job && job->size > 1)
        oct_rank_report_print(job, &since, m, s, layout, &pace, token_seconds);
}

void oct_ranks_end(void)
{
    oct_error err = {0};
    open_order o = {.what = ORDER_END};
    if (!job)
        return;
    if (job->size > 1 && !over && !job->broken)
        (void)!job->broadcast(job, &o, sizeof o, &err);
    job->free(job);
    job = NULL;
}
