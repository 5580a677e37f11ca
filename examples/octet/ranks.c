#include "ranks.h"

#include <stdio.h>
#include <string.h>

#include "progress.h"
#include "ranks_report.h"

static oct_job *job;            /* NULL: one process */
static oct_session_params last; /* of the last session */
static oct_placement *owned;    /* of one process: where the weights lie; NULL: in the file */

static void say(void *ctx, oct_job_level level, const char *line)
{
    (void)ctx;
    switch (level) {
    case OCT_JOB_NOTE: fprintf(stderr, "%s\n", line); break;
    case OCT_JOB_WARNING: oct_cli_warning("%s", line); break;
    case OCT_JOB_ERROR: /* the job ends behind it, perhaps at once */
        oct_cli_leave_nothing();
        oct_cli_error("%s", line);
        break;
    }
}

static int serve(void)
{
    oct_error err = {0};
    oct_status status = oct_job_serve(job, &err);
    if (status != OCT_OK && status != OCT_ERR_COMM)
        oct_cli_fail(&err);
    oct_ranks_end();
    return status == OCT_OK ? OCT_EXIT_OK : OCT_EXIT_ERROR;
}

int oct_ranks_start(int argc, char **argv, bool lasts)
{
    oct_error err = {0};
    oct_status status = oct_job_join(say, NULL, &job, &err);
    if (status == OCT_OK)
        status = oct_job_compare(job, argc, argv, &err);
    if (status != OCT_OK) {
        int code = oct_cli_fail(&err);
        oct_ranks_end();
        return code;
    }
    if (job)
        oct_cli_hurry();
    if (oct_job_rank(job) == 0)
        return -1;
    if (lasts)
        oct_cli_grace(0);
    return serve();
}

oct_job *oct_ranks_job(void)
{
    return job;
}

oct_shard_layout oct_ranks_layout(oct_shard_layout otherwise)
{
    return oct_job_layout(job, otherwise);
}

const char *oct_ranks_path(const char *pattern, char room[PATH_MAX])
{
    return oct_job_path(job, pattern, room, PATH_MAX);
}

const oct_placement *oct_ranks_placement(void)
{
    return owned;
}

void oct_ranks_close(oct_model *m)
{
    oct_placement_free(owned);
    owned = NULL;
    oct_model_close(m);
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
                                .machine = p->machine,
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

/* Where GPUs have less than was planned; and when they are given experts. */
static void tell_gpus(const oct_session *s, int64_t chunk)
{
    const char *why;
    oct_gpu_share share[OCT_MAX_GPUS];
    int n = oct_session_get_gpus(s, share, &why);
    int64_t rows = oct_session_stream_rows(s);
    if (rows <= chunk)
        fprintf(stderr, "experts are streamed to GPUs for %lld tokens at once and more\n",
                (long long)rows);
    if (!why[0])
        return;
    oct_cli_warning("%s; %s", why, n > 0 ? "less is placed on GPUs" : "no GPU is used");
    oct_cli_gpu_print(stderr, share, n);
}

oct_status oct_ranks_session_new(const oct_cli_session *o, oct_model *m,
                                 const oct_session_params *p, oct_session **s, oct_error *err)
{
    if (!job) {
        OCT_TRY(place_weights(o, m, p, err));
        oct_session_params here = *p;
        here.placement = owned;
        OCT_TRY(oct_session_new(m, &here, s, err));
        tell_gpus(*s, p->chunk);
        return OCT_OK;
    }
    const oct_job_session how = {o->model, oct_cli_shards(o), o->force, *oct_cli_gpu_use(),
                                 o->check};
    if (o->weights == OCT_CLI_WEIGHTS_OWNED)
        return oct_fail(err, OCT_ERR_ARG, "--weights owned is of one process; ranks map parts");
    last = *p;
    return oct_job_session_new(job, m, &how, p, s, err);
}

void oct_ranks_print(const oct_model *m, oct_session *s, double token_seconds)
{
    if (job)
        oct_rank_report_print(job, m, s, &last, token_seconds);
}

void oct_ranks_end(void)
{
    oct_job_leave(job);
    job = NULL;
}
