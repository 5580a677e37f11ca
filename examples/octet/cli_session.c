#include "cli_session.h"

#include <limits.h>
#include <sched.h>
#include <string.h>
#include <sys/stat.h>

#include <octet/convert.h>

#include "progress.h"
#include "ranks.h"

oct_shard_layout oct_cli_shard(bool by_expert, bool replicate_attention)
{
    if (replicate_attention)
        return by_expert ? OCT_SHARD_EXPERT_REPLICATED : OCT_SHARD_SLICE_REPLICATED;
    return by_expert ? OCT_SHARD_EXPERT : OCT_SHARD_SLICE;
}

unsigned oct_cli_shards(const oct_cli_session *o)
{
    const unsigned replicated =
                       1u << OCT_SHARD_SLICE_REPLICATED | 1u << OCT_SHARD_EXPERT_REPLICATED,
                   divided = 1u << OCT_SHARD_SLICE | 1u << OCT_SHARD_EXPERT;
    if (o->shard != OCT_CLI_SHARD_AUTO)
        return 1u << oct_cli_shard(o->shard == OCT_CLI_SHARD_EXPERT, o->replicate_attention);
    return o->replicate_attention ? replicated : replicated | divided;
}

/* This machine, looked at once; NULL if that fails, which sessions then report. */
static const oct_machine *this_machine(void)
{
    static oct_machine *machine;
    oct_error ignored = {0};
    if (!machine)
        (void)!oct_machine_load(NULL, &machine, &ignored);
    return machine;
}

void oct_cli_session_params(const oct_cli_session *o, int64_t n_ctx, int64_t n_seqs,
                            oct_session_params *p)
{
    memset(p, 0, sizeof *p);
    p->n_ctx = n_ctx;
    p->n_seqs = n_seqs;
    p->chunk = o->chunk ? o->chunk : oct_session_default_chunk();
    if (p->chunk / n_seqs > n_ctx) /* no more rows than positions */
        p->chunk = n_ctx * n_seqs;
    p->n_threads = (int)o->n_threads;
    p->kv = (oct_kv_type)o->kv;
    p->act = (oct_act)o->act;
    p->blas = o->blas;
    p->shard = oct_cli_shard(o->shard == OCT_CLI_SHARD_EXPERT, o->replicate_attention);
    p->comm = oct_job_comm(oct_ranks_job());
    p->machine = this_machine();
    p->gpus = oct_cli_gpus();
    p->no_streaming = o->gpu_stream == 1;
    p->cancel = oct_cli_cancel_flag();
}

static uint64_t add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static const char *amount(uint64_t n, char buf[24])
{
    if (n == UINT64_MAX)
        return "no limit";
    return oct_memory_text(n, buf);
}

static int print_table(const oct_cli_session *o, const oct_session_params *p,
                       const oct_session_need *need, uint64_t extra, uint64_t total,
                       const oct_memory *have, bool fits)
{
    static const char *const kv_names[] = {"f16", "bf16", "f32"};
    char a[24], b[24];
    oct_cli_outf("%s\n%lld sequence%s of %lld positions, KV cache %s, chunks of %lld, "
                 "%d thread%s (%s), %s kernels\n\n",
                 o->model, (long long)p->n_seqs, p->n_seqs == 1 ? "" : "s", (long long)p->n_ctx,
                 kv_names[o->kv], (long long)p->chunk, need->n_threads,
                 need->n_threads == 1 ? "" : "s", need->threads_why, need->isa);
    oct_cli_outf("need                             have\n");
    oct_cli_outf("  weights  %12s          available memory %12s\n",
                 oct_memory_text(need->weights, a), amount(have->system, b));
    oct_cli_outf("  KV cache %12s          cgroup limit     %12s\n", oct_memory_text(need->kv, a),
                 amount(have->cgroup, b));
    oct_cli_outf("  buffers  %12s\n", oct_memory_text(add(need->buffers, extra), a));
    oct_cli_outf("  total    %12s          %s\n", oct_memory_text(total, a),
                 fits ? "fits" : "does not fit");
    if (need->n_gpus > 0)
        oct_cli_outf("\n");
    fflush(stdout);
    oct_cli_gpu_print(stdout, need->gpu, need->n_gpus);
    fflush(stdout);
    return oct_cli_out_end();
}

int oct_cli_fits(const oct_cli_session *o, const oct_model *m, const oct_session_params *p,
                 uint64_t extra)
{
    oct_session_need need;
    oct_error err = {0};
    char a[24], b[24], c[24], d[24];
    oct_session_params params = *p;
    const oct_model_info *info = oct_model_get_info(m);
    if (info->part_size && oct_cli_shards(o) >> info->part_by & 1)
        params.shard = info->part_by; /* there is no choice */
    if (oct_session_estimate(m, &params, &need, &err) != OCT_OK)
        return oct_cli_fail(&err);
    char path[PATH_MAX];
    if (oct_memory_has_file(oct_ranks_path(o->model, path)))
        need.weights = 0;
    oct_memory have;
    oct_memory_get("", &have);
    const uint64_t limit = have.limit;
    const char *where = have.system <= have.cgroup ? "is available" : "is left in the cgroup limit";
    uint64_t own = add(add(need.kv, need.buffers), extra);
    uint64_t total = add(own, need.weights);
    if (o->dry_run) {
        int rc = print_table(o, p, &need, extra, total, &have, total <= limit);
        if (rc != OCT_EXIT_OK)
            return rc;
    }
    if (own > limit || (total > limit && !o->force)) {
        oct_cli_error("%s: needs %s (weights %s, KV cache and buffers %s), but only %s %s",
                      o->model, oct_memory_text(total, a), oct_memory_text(need.weights, b),
                      oct_memory_text(own, c), oct_memory_text(limit, d), where);
        return OCT_EXIT_ERROR;
    }
    if (o->dry_run)
        return OCT_EXIT_OK;
    oct_cli_gpu_print(stderr, need.gpu, need.n_gpus);
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && o->n_threads > CPU_COUNT(&set))
        oct_cli_warning("%lld threads on %d CPUs will wait for each other", (long long)o->n_threads,
                        CPU_COUNT(&set));
    return -1;
}

static void show_verifying(void *ctx, uint64_t done)
{
    oct_progress *p = ctx;
    oct_progress_update(p, done < p->total ? done : p->total); /* some tensors are read twice */
}

oct_status oct_cli_verify(const char *path, oct_error *err)
{
    oct_progress p;
    struct stat st;
    oct_progress_start(&p, "verifying", stat(path, &st) == 0 ? (uint64_t)st.st_size : 0);
    oct_status s = oct_verify(path, show_verifying, &p, oct_cli_cancel_flag(), err);
    oct_progress_end(&p, s == OCT_OK);
    return s;
}

int oct_cli_open(const oct_cli_session *o, const char *command, bool tokenizer, oct_model **m)
{
    oct_error err = {0};
    if (!oct_cli_gpu_parse(o->gpu, command))
        return OCT_EXIT_USAGE;
    if (!o->model) {
        oct_cli_error("%s: -m MODEL is missing (octet %s --help shows the usage)", command,
                      command);
        return OCT_EXIT_USAGE;
    }
    char path[PATH_MAX];
    if (o->check && oct_cli_verify(oct_ranks_path(o->model, path), &err) != OCT_OK)
        return oct_cli_fail(&err);
    if (oct_model_open(oct_ranks_path(o->model, path), m, &err) != OCT_OK)
        return oct_cli_fail(&err);
    if (tokenizer && !oct_model_get_info(*m)->has_tokenizer) {
        oct_cli_error("%s: has no tokenizer, so text cannot be read or written (convert with "
                      "--tokenizer; `octet logits` works with token ids)",
                      o->model);
        oct_model_close(*m);
        *m = NULL;
        return OCT_EXIT_ERROR;
    }
    return -1;
}
