/* job.c: joining the ranks of a job, and what rank 0 has them do. */
#include "job.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda.h"
#include "job_impl.h"
#include "machine.h"

enum { ORDER_OPEN = 1, ORDER_FOLDS, ORDER_END };

/* What rank 0 tells the others to do; all ranks are of the same build. */
typedef struct order {
    int64_t what;
    int64_t force;             /* OPEN: although the weights do not fit */
    int64_t check;             /* OPEN: the file's checksums */
    int64_t n_floats, n_folds; /* FOLDS */
    unsigned layouts;          /* OPEN: that may be chosen */
    oct_session_params params; /* pointers are not used */
    oct_gpu_use gpu;
    char path[PATH_MAX];
} order;

/* A session that this rank has, or why not. */
typedef struct made {
    int32_t status;
    char text[OCT_ERROR_TEXT];
    char gpu[OCT_ERROR_TEXT]; /* what is placed on GPUs; "": nothing */
} made;

struct oct_job {
    oct_comm *comm;
    oct_job_voice voice;
    order order;  /* the last one given or received; here, so that none lacks memory */
    bool over;    /* all ranks know that the job has ended */
    int n_others; /* ranks that run another program than rank 0 */
    bool settled; /* the layout: later sessions keep it, what it leaves out is unmapped */
    /* Of the last session. */
    oct_shard_layout layout;
    oct_rank_pace pace;
    oct_comm_stats before;
};

void oct_job_tell(const oct_job_voice *v, oct_job_level level, const char *fmt, ...)
{
    char line[2 * OCT_ERROR_TEXT];
    va_list args;
    if (!v->say)
        return;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    v->say(v->ctx, level, line);
}

/* ---- joining and leaving --------------------------------------------------------------------- */

/* On the watching thread. */
static void say_of_network(void *ctx, bool fatal, const char *text)
{
    const oct_job *j = ctx;
    oct_job_tell(&j->voice, fatal ? OCT_JOB_ERROR : OCT_JOB_WARNING, "%s", text);
}

/* How a launcher tells the processes that it starts of each other; of the first that is set the
 * number is how many there are, which PMIx tells only those who ask it (0: unknown). Slurm sets
 * its own for all steps; a batch script is a step of one task. */
static const struct launcher {
    const char *mark, *size, *name;
} launchers[] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "Open MPI"},
                 {"PMI_SIZE", "PMI_SIZE", "an MPI like MPICH or Intel's"},
                 {"MPI_LOCALNRANKS", "MPI_LOCALNRANKS", "an MPI like MPICH or Intel's"},
                 {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "MVAPICH"},
                 {"PMIX_RANK", NULL, "PMIx"},
                 {"SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_TASKS", "Slurm"}};

/* Who has started this process as one of several, *n; NULL: nobody, or OCTET_RANKS=0 says that
 * they have nothing to do with each other. */
static const struct launcher *launched(int *n)
{
    const char *ranks = getenv("OCTET_RANKS");
    if (ranks && strcmp(ranks, "0") == 0)
        return NULL;
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const char *size = launchers[i].size ? getenv(launchers[i].size) : NULL;
        if (!getenv(launchers[i].mark))
            continue;
        *n = size ? atoi(size) : 0;
        return launchers[i].size && *n < 2 ? NULL : &launchers[i];
    }
    return NULL;
}

static oct_status open_comm(oct_job *j, oct_error *err)
{
    void *lib = dlopen("liboctet_mpi.so", RTLD_NOW | RTLD_GLOBAL);
    if (!lib)
        return oct_fail(err, OCT_ERR_UNSUPPORTED,
                        "started as one of several ranks, but MPI cannot be used: %s", dlerror());
    oct_comm_open_fn *open = NULL;
    *(void **)&open = dlsym(lib, "oct_comm_mpi_open");
    if (!open)
        return oct_fail(err, OCT_ERR_UNSUPPORTED, "liboctet_mpi.so lacks oct_comm_mpi_open");
    return open(say_of_network, j, &j->comm, err);
}

/* No memory for what the other ranks are about to send. */
static oct_status no_reports(oct_comm *c, oct_error *err)
{
    c->broken = true; /* they wait for this one */
    return oct_fail(err, OCT_ERR_MEMORY, "no memory for the reports of %d ranks", c->size);
}

/* Ranks of different builds could not even read each other's orders. */
static oct_status compare_builds(oct_job *j, oct_error *err)
{
    oct_comm *c = j->comm;
    const oct_job_voice silent = {0};
    oct_rank_build mine, *all = calloc((size_t)c->size, sizeof *all);
    if (!all)
        return no_reports(c, err);
    oct_rank_build_self(&mine);
    oct_status status = c->gather(c, &mine, sizeof mine, all, err);
    if (status == OCT_OK &&
        oct_rank_builds_differ(all, c->size, c->rank == 0 ? &j->voice : &silent) > 0) {
        j->over = true;
        status = oct_fail(err, OCT_ERR_COMM, "the ranks do not fit together");
    }
    if (status == OCT_OK)
        j->n_others = oct_rank_programs_differ(all, c->size, c->rank == 0 ? &j->voice : &silent);
    free(all);
    return status;
}

oct_status oct_job_join(oct_job_say_fn *say, void *ctx, oct_job **out, oct_error *err)
{
    int announced = 0;
    const struct launcher *by = launched(&announced);
    *out = NULL;
    if (!by)
        return OCT_OK;
    oct_job *j = calloc(1, sizeof *j);
    if (!j)
        return oct_fail(err, OCT_ERR_MEMORY, "no memory for a job");
    j->voice = (oct_job_voice){say, ctx};
    oct_status status = open_comm(j, err);
    if (status == OCT_OK && j->comm->size > 1) {
        status = compare_builds(j, err);
        if (j->over && j->comm->rank > 0) /* rank 0 tells; this one has nothing to serve */
            status = OCT_OK;
    } else if (status == OCT_OK) {
        oct_job_leave(j);
        return announced < 2
                   ? OCT_OK
                   : oct_fail(err, OCT_ERR_UNSUPPORTED,
                              "one of %d ranks that %s has started, but the MPI that octet "
                              "was built with (Open MPI) sees none of the others: use its "
                              "mpirun (with Slurm: srun --mpi=pmix), or OCTET_RANKS=0 for "
                              "programs that have nothing to do with each other",
                              announced, by->name);
    }
    *out = j;
    return status;
}

oct_status oct_job_compare(oct_job *j, int n_words, char *const *words, oct_error *err)
{
    const oct_job_voice silent = {0};
    int differ = 0;
    if (!j || j->over)
        return OCT_OK;
    OCT_TRY(oct_rank_words_differ(j->comm, n_words, words, j->comm->rank == 0 ? &j->voice : &silent,
                                  &differ, err));
    if (differ == 0)
        return OCT_OK;
    j->over = true;
    if (j->comm->rank > 0) /* rank 0 tells; this one has nothing to serve */
        return OCT_OK;
    return oct_fail(err, OCT_ERR_COMM,
                    "the ranks have different arguments (with %%r in its name each opens a "
                    "file of its own)");
}

void oct_job_leave(oct_job *j)
{
    oct_error err = {0};
    if (!j)
        return;
    oct_comm *c = j->comm;
    if (c && c->size > 1 && c->rank == 0 && !j->over && !c->broken) {
        j->order = (order){.what = ORDER_END};
        (void)!c->broadcast(c, &j->order, sizeof j->order, &err);
    }
    if (c)
        c->free(c);
    free(j);
}

int oct_job_rank(const oct_job *j)
{
    return j && j->comm ? j->comm->rank : 0;
}

int oct_job_size(const oct_job *j)
{
    return j && j->comm ? j->comm->size : 1;
}

oct_comm *oct_job_comm(const oct_job *j)
{
    return j ? j->comm : NULL;
}

const char *oct_job_path(const oct_job *j, const char *pattern, char *room, size_t n)
{
    const char *at = j ? strstr(pattern, "%r") : NULL;
    if (!at)
        return pattern;
    int k = snprintf(room, n, "%.*s%d%s", (int)(at - pattern), pattern, j->comm->rank, at + 2);
    return k >= 0 && (size_t)k < n ? room : pattern;
}

/* ---- the layout ------------------------------------------------------------------------------ */

/* Layouts, bit k for oct_shard_layout k: those that are allowed and possible, and those of them
 * that all hosts have memory for. */
typedef struct layouts {
    uint32_t can, fit;
} layouts;

/* Rank 0: the layout that is predicted to be fastest, of those that all ranks can use. */
static oct_shard_layout fastest(oct_job *j, const oct_model *m, const oct_session_params *p,
                                int n_threads, layouts all)
{
    const int64_t d_model = oct_model_get_info(m)->d_model;
    const uint32_t from = all.fit ? all.fit : all.can & -all.can; /* the first: it needs least */
    char list[400] = "";
    int n = 0, best = -1;
    double min = 0;
    for (int k = 0; k < OCT_SHARD_LAYOUTS; k++) {
        if (!(all.can >> k & 1))
            continue;
        /* on average caches are half full */
        double seconds =
            oct_rank_predict(m, j->comm->size, (oct_shard_layout)k, p->n_ctx / 2, p->kv, &j->pace);
        n += snprintf(list + n, sizeof list - (size_t)n, "%s%.3g ms by %s%s", n ? "; " : "",
                      1e3 * seconds, oct_shard_name((oct_shard_layout)k),
                      all.fit >> k & 1 ? "" : " (not enough memory)");
        if (!(from >> k & 1) || (best >= 0 && seconds >= min))
            continue;
        best = k;
        min = seconds;
    }
    if (all.can & (all.can - 1)) /* there was a choice */
        oct_job_tell(&j->voice, OCT_JOB_NOTE,
                     "ranks by %s: predicted per token: %s (%d threads read %.3g GB/s, %lld floats "
                     "are folded%s in %.3g us)",
                     oct_shard_name((oct_shard_layout)best), list, n_threads, j->pace.read / 1e9,
                     (long long)d_model, j->comm->shared_memory ? " through shared memory" : "",
                     1e6 * (j->pace.latency + (double)d_model * j->pace.per_float));
    return (oct_shard_layout)best;
}

/* The weights need no memory of their own. */
static bool resident(const oct_job *j, const order *o)
{
    char path[PATH_MAX];
    return o->force || oct_memory_has_file(oct_job_path(j, o->path, path, sizeof path));
}

/* Whether all ranks can use a layout, and have memory for it; bit `layout` of *found. */
static oct_status try_layout(const oct_job *j, const oct_rank_report *mine, oct_rank_report *all,
                             int layout, layouts *found, oct_error *err)
{
    oct_comm *c = j->comm;
    bool can = true;
    OCT_TRY(c->gather(c, mine, sizeof *mine, all, err));
    for (int n = 0; n < c->size; n++)
        can = can && all[n].status == OCT_OK;
    found->can |= can ? 1u << layout : 0;
    found->fit |= can && oct_rank_all_fit(all, c->size) ? 1u << layout : 0;
    return OCT_OK;
}

/* Measures what the ranks can do; *by is the layout that all take. */
static oct_status choose_layout(oct_job *j, const order *o, const oct_model *m,
                                const oct_error *opened, oct_shard_layout *by, oct_error *err)
{
    oct_comm *c = j->comm;
    oct_session_params p = o->params;
    layouts found = {0};
    int n_threads = 1;
    const oct_kernels *row = &oct_kernel_rows[OCT_KERNELS_REF];
    oct_status status = OCT_OK;
    p.comm = c;
    p.isa = NULL;
    p.machine = NULL;
    oct_rank_report *all = calloc((size_t)c->size, sizeof *all);
    if (!all)
        return no_reports(c, err);
    for (int k = 0; k < OCT_SHARD_LAYOUTS && status == OCT_OK; k++) {
        oct_rank_report r = {0}; /* without a model nothing is known against any layout */
        if (!(o->layouts >> k & 1))
            continue;
        p.shard = (oct_shard_layout)k;
        if (m)
            oct_rank_report_self(m, &p, opened, resident(j, o), &r);
        if (m && r.status == OCT_OK) {
            n_threads = r.n_threads;
            row = oct_rank_kernels(r.kernels);
        }
        status = try_layout(j, &r, all, k, &found, err);
    }
    free(all);
    OCT_TRY(status);
    OCT_TRY(
        oct_rank_measure(c, m ? oct_model_get_info(m)->d_model : 0, n_threads, row, &j->pace, err));
    int32_t chosen = (int32_t)*by; /* what is wrong with it the reports will say */
    if (c->rank == 0 && found.can)
        chosen = (int32_t)fastest(j, m, &p, n_threads, found);
    OCT_TRY(c->broadcast(c, &chosen, sizeof chosen, err));
    j->layout = *by = (oct_shard_layout)chosen;
    return OCT_OK;
}

/* ---- sessions -------------------------------------------------------------------------------- */

/* A line about the session's GPUs. */
static void describe_gpus(const oct_session *s, const oct_gpus *gpus, char out[OCT_ERROR_TEXT])
{
    char line[OCT_GPU_LINE];
    const char *why;
    oct_gpu_share share[OCT_MAX_GPUS];
    int at = 0, n = oct_session_get_gpus(s, share, &why);
    if (why[0])
        at = snprintf(out, OCT_ERROR_TEXT, "%s%s", why, n > 0 ? "; " : "; no GPU is used");
    for (int i = 0; i < n && at < OCT_ERROR_TEXT; i++)
        at += snprintf(out + at, OCT_ERROR_TEXT - (size_t)at, "%s%s", i > 0 ? "; " : "",
                       oct_gpu_share_text(gpus, &share[i], line));
}

/* All ranks make their sessions; if one cannot, none has one. */
static oct_status make_all(oct_job *j, oct_model *m, const oct_session_params *p, oct_session **s,
                           oct_error *err)
{
    oct_comm *c = j->comm;
    made mine = {0}, *all = calloc((size_t)c->size, sizeof *all);
    oct_error own = {0};
    if (!all)
        return no_reports(c, err);
    mine.status = (int32_t)oct_session_new(m, p, s, &own);
    if (mine.status == OCT_OK)
        mine.status = (int32_t)oct_model_keep_part(m, c->rank, c->size, p->shard, &own);
    memcpy(mine.text, own.text, sizeof mine.text);
    if (mine.status == OCT_OK && p->gpus)
        describe_gpus(*s, p->gpus, mine.gpu);
    oct_status status = c->gather(c, &mine, sizeof mine, all, err);
    for (int i = 0; i < c->size && status == OCT_OK; i++)
        if (all[i].status != OCT_OK)
            status = oct_fail(err, OCT_ERR_COMM, "rank %d: %s", i, all[i].text);
    for (int i = 0; i < c->size && status == OCT_OK && c->rank == 0; i++)
        if (all[i].gpu[0])
            oct_job_tell(&j->voice, OCT_JOB_NOTE, "rank %d: %s", i, all[i].gpu);
    free(all);
    if (status != OCT_OK) {
        /* no orders have been given, and none must be: the others have no session to obey with */
        oct_session_abandon(*s);
        *s = NULL;
    }
    return status;
}

/* The GPUs of this machine that are this rank's; NULL: none. */
static const oct_gpus *own_gpus(const oct_job *j, const oct_gpu_use *use,
                                const oct_rank_report *all, oct_gpus *room)
{
    int local = 0, n = oct_rank_on_machine(all, j->comm->size, j->comm->rank, &local);
    if (!use->on)
        return NULL;
    oct_gpus_get(room);
    if (room->why[0])
        return NULL;
    oct_gpus_limit(room, use);
    oct_gpus_divide(room, local, n);
    return room;
}

/* The ranks' reports; then the session, if all can have one. The row of kernels is the best that
 * all have. */
static oct_status make_together(oct_job *j, const order *o, oct_model *m,
                                const oct_session_params *params, const oct_error *opened,
                                oct_session **s, oct_error *err)
{
    oct_comm *c = j->comm;
    const oct_job_voice silent = {0};
    oct_session_params p = *params;
    oct_gpus gpus;
    *s = NULL;
    p.comm = c;
    p.gpus = NULL;
    OCT_TRY(choose_layout(j, o, m, opened, &p.shard, err));
    oct_rank_report mine, *all = calloc((size_t)c->size, sizeof *all);
    if (!all)
        return no_reports(c, err);
    const oct_kernels *kernels;
    oct_rank_report_self(m, &p, opened, resident(j, o), &mine);
    oct_status status = c->gather(c, &mine, sizeof mine, all, err);
    if (status == OCT_OK) {
        int problems = oct_rank_compare(all, c->size, &silent, &kernels);
        if (c->rank == 0 && (problems > 0 || !j->settled)) /* what is well is told once */
            (void)oct_rank_compare(all, c->size, &j->voice, &kernels);
        if (problems + j->n_others > 0)
            status = oct_fail(err, OCT_ERR_COMM, "the ranks do not fit together");
        p.no_bind |= oct_rank_shares_cores(all, c->size, c->rank);
        if (status == OCT_OK)
            p.gpus = own_gpus(j, &o->gpu, all, &gpus);
    }
    free(all);
    if (status == OCT_OK) {
        p.isa = kernels->name;
        status = make_all(j, m, &p, s, err);
    }
    j->settled = true;
    j->over = status != OCT_OK && !c->broken;
    j->before = c->stats;
    return status;
}

/* After the end of the job nobody takes orders. */
static oct_status check_open(const oct_job *j, oct_error *err)
{
    return j->over ? oct_fail(err, OCT_ERR_COMM, "the job has ended on the other ranks") : OCT_OK;
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

oct_status oct_job_session_new(oct_job *j, oct_model *m, const oct_job_session *how,
                               const oct_session_params *p, oct_session **out, oct_error *err)
{
    oct_comm *c = j->comm;
    order o = {.what = ORDER_OPEN,
               .layouts = j->settled ? 1u << j->layout : how->layouts,
               .force = how->force,
               .params = *p,
               .gpu = how->gpu,
               .check = how->check};
    *out = NULL;
    OCT_TRY(check_open(j, err));
    OCT_TRY(absolute(how->model, o.path, err));
    OCT_TRY(c->broadcast(c, &o, sizeof o, err));
    oct_error opened = {0};
    return make_together(j, &o, m, &o.params, &opened, out, err);
}

oct_shard_layout oct_job_layout(const oct_job *j, oct_shard_layout otherwise)
{
    return j ? j->layout : otherwise;
}

bool oct_job_experts(const oct_job *j, const oct_model *m, int rank, int64_t *first, int64_t *end)
{
    oct_shard s;
    if (oct_shard_make(j->layout, rank, j->comm->size, m->config.n_slices, m->config.n_experts,
                       &s) ||
        !s.whole_experts)
        return false;
    *first = s.experts.first;
    *end = s.experts.end;
    return true;
}

/* ---- speed ----------------------------------------------------------------------------------- */

const oct_rank_pace *oct_job_pace(const oct_job *j)
{
    return &j->pace;
}

oct_comm_stats oct_job_stats(const oct_job *j)
{
    return j ? j->comm->stats : (oct_comm_stats){0};
}

oct_comm_stats oct_job_stats_before(const oct_job *j)
{
    return j ? j->before : (oct_comm_stats){0};
}

double oct_job_predict(const oct_job *j, const oct_model *m, int64_t depth, oct_kv_type kv)
{
    return oct_rank_predict(m, j->comm->size, j->layout, depth, kv, &j->pace);
}

oct_rank_time oct_job_divide(const oct_job *j, double seconds, const oct_comm_stats *from,
                             const oct_comm_stats *to)
{
    if (!j)
        return (oct_rank_time){.compute = seconds};
    return oct_rank_divide(seconds, from, to, j->comm->size, &j->pace);
}

/* ---- the exchange alone ---------------------------------------------------------------------- */

static oct_status fold_together(oct_job *j, int64_t n, int64_t count, double *seconds,
                                oct_comm_stats *one, oct_error *err)
{
    oct_comm *c = j->comm;
    float *x = calloc((size_t)n, sizeof *x);
    int32_t *all = calloc((size_t)c->size, sizeof *all), mine = 0;
    oct_status status = OCT_OK;
    if (!x || !all) {
        c->broken = true; /* the others fold by now */
        status = oct_fail(err, OCT_ERR_MEMORY, "no memory to fold %lld floats", (long long)n);
    }
    for (int64_t i = 0; i < count && status == OCT_OK; i++) {
        status = c->gather(c, &mine, sizeof mine, all, err); /* nobody begins before the rest */
        oct_comm_stats from = c->stats;
        double start = oct_seconds();
        if (status == OCT_OK)
            status = c->fold(c, x, n, err);
        if (seconds)
            seconds[i] = oct_seconds() - start;
        if (one) {
            one->rounds = c->stats.rounds - from.rounds;
            one->bytes_sent = c->stats.bytes_sent - from.bytes_sent;
        }
    }
    free(all);
    free(x);
    return status;
}

oct_status oct_job_time_folds(oct_job *j, int64_t n, int64_t count, double *seconds,
                              oct_comm_stats *one, oct_error *err)
{
    order o = {.what = ORDER_FOLDS, .n_floats = n, .n_folds = count};
    *one = (oct_comm_stats){0};
    if (n < 1 || count < 0)
        return oct_fail(err, OCT_ERR_ARG, "folds: %lld of %lld floats, expected at least 0 of 1",
                        (long long)count, (long long)n);
    OCT_TRY(check_open(j, err));
    OCT_TRY(j->comm->broadcast(j->comm, &o, sizeof o, err));
    return fold_together(j, n, count, seconds, one, err);
}

/* ---- ranks other than 0 ---------------------------------------------------------------------- */

/* One session of rank 0's. */
static oct_status serve_once(oct_job *j, const order *o, oct_error *err)
{
    oct_session_params p = o->params;
    oct_model *m = NULL;
    oct_session *s;
    oct_error opened = {0};
    /* Pointers are rank 0's. */
    p.cancel = NULL;
    p.isa = NULL;
    p.machine = NULL;
    p.placement = NULL;
    p.gpus = NULL;
    char path[PATH_MAX];
    (void)!oct_model_open(oct_job_path(j, o->path, path, sizeof path), &m, &opened);
    if (m && o->check && oct_file_verify(m->file, NULL, NULL, NULL, &opened) != OCT_OK) {
        oct_model_close(m);
        m = NULL;
    }
    oct_status status = make_together(j, o, m, &p, &opened, &s, err);
    if (status == OCT_OK) {
        status = oct_session_serve(s, err);
        oct_session_free(s);
    }
    oct_model_close(m);
    return status;
}

oct_status oct_job_serve(oct_job *j, oct_error *err)
{
    oct_comm *c = j->comm;
    order *o = &j->order;
    oct_status status = OCT_OK;
    if (j->over)
        return oct_fail(err, OCT_ERR_COMM, "the ranks do not fit together");
    while (status == OCT_OK) {
        status = c->broadcast(c, o, sizeof *o, err);
        o->path[sizeof o->path - 1] = 0;
        if (status == OCT_OK && o->what == ORDER_OPEN)
            status = serve_once(j, o, err);
        else if (status == OCT_OK && o->what == ORDER_FOLDS)
            status = fold_together(j, o->n_floats, o->n_folds, NULL, NULL, err);
        else
            break;
    }
    if (status != OCT_OK && status != OCT_ERR_COMM) /* what only this one has found ends all */
        c->broken = true;
    return status;
}
