#include "memory.h"
#include "ranks.h"

#include <limits.h>
#include <linux/magic.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>

/* ---- what there is -------------------------------------------------------------------------- */

static FILE *open_in(const char *root, const char *dir, const char *name)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s%s/%s", root, dir, name);
    return n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
}

/* A file that holds one number; UINT64_MAX for "max", for v1's "no limit" (close to 2^63), or if it
 * is not there. */
static uint64_t read_number(const char *root, const char *dir, const char *name)
{
    FILE *f = open_in(root, dir, name);
    unsigned long long v;
    uint64_t out = UINT64_MAX;
    if (!f)
        return out;
    if (fscanf(f, "%llu", &v) == 1 && v < (1ull << 62))
        out = v;
    fclose(f);
    return out;
}

/* Page cache that the group can give back. */
static uint64_t read_reclaimable(const char *root, const char *dir, const char *prefix)
{
    FILE *f = open_in(root, dir, "memory.stat");
    char key[64], inactive[64], active[64];
    unsigned long long v;
    uint64_t sum = 0;
    if (!f)
        return 0;
    snprintf(inactive, sizeof inactive, "%sinactive_file", prefix);
    snprintf(active, sizeof active, "%sactive_file", prefix);
    while (fscanf(f, "%63s %llu", key, &v) == 2)
        if (strcmp(key, inactive) == 0 || strcmp(key, active) == 0)
            sum += v;
    fclose(f);
    return sum;
}

/* Walks from dir up to the mount point, keeping the least that any level leaves. */
static uint64_t walk(const char *root, const char *mount, char *dir, bool v2)
{
    uint64_t least = UINT64_MAX;
    size_t n_mount = strlen(mount);
    for (;;) {
        uint64_t max = read_number(root, dir, v2 ? "memory.max" : "memory.limit_in_bytes");
        if (max != UINT64_MAX) {
            uint64_t used = read_number(root, dir, v2 ? "memory.current" : "memory.usage_in_bytes");
            uint64_t cache = read_reclaimable(root, dir, v2 ? "" : "total_");
            used = used == UINT64_MAX || used < cache ? 0 : used - cache;
            uint64_t left = max > used ? max - used : 0;
            if (left < least)
                least = left;
        }
        char *slash = strrchr(dir, '/');
        if (!slash || strlen(dir) <= n_mount)
            return least;
        *slash = 0;
    }
}

/* Finds where a hierarchy is mounted: v2, or v1 with the memory controller. A line of mountinfo:
 * id parent major:minor root mount-point options ... - type source super-options */
static bool find_mount(const char *root, bool v2, char *mount_root, char *mount)
{
    FILE *f = open_in(root, "/proc/self", "mountinfo");
    char line[8192], type[32], super[1024];
    bool found = false;
    if (!f)
        return false;
    while (!found && fgets(line, sizeof line, f)) {
        const char *dash = strstr(line, " - ");
        if (!dash || sscanf(dash, " - %31s %*s %1023s", type, super) != 2 ||
            sscanf(line, "%*s %*s %*s %4095s %4095s", mount_root, mount) != 2)
            continue;
        if (v2)
            found = strcmp(type, "cgroup2") == 0;
        else
            found = strcmp(type, "cgroup") == 0 && strstr(super, "memory");
    }
    fclose(f);
    return found;
}

/* Lines of /proc/self/cgroup: "0::/path" for v2, "N:controllers:/path" for v1. */
static bool find_group(const char *root, bool v2, char *path)
{
    FILE *f = open_in(root, "/proc/self", "cgroup");
    char line[4096 + 256];
    bool found = false;
    if (!f)
        return false;
    while (!found && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *a = strchr(line, ':'), *b = a ? strchr(a + 1, ':') : NULL;
        if (!b)
            continue;
        *b = 0;
        found = v2 ? a[1] == 0 : strstr(a + 1, "memory") != NULL;
        if (found)
            snprintf(path, PATH_MAX, "%s", b + 1);
    }
    fclose(f);
    return found;
}

static uint64_t cgroup_left(const char *root, bool v2)
{
    char mount_root[PATH_MAX], mount[PATH_MAX], group[PATH_MAX], dir[2 * PATH_MAX];
    if (!find_mount(root, v2, mount_root, mount) || !find_group(root, v2, group))
        return UINT64_MAX;
    /* Inside a container the mount may show only a part of the tree: drop that part's prefix. */
    size_t n_root = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);
    const char *below = strncmp(group, mount_root, n_root) == 0 ? group + n_root : "";
    if (strcmp(below, "/") == 0 || strstr(below, "/.."))
        below = "";
    snprintf(dir, sizeof dir, "%s%s", mount, below);
    return walk(root, mount, dir, v2);
}

void oct_memory_have(const char *root, oct_memory *m)
{
    m->system = UINT64_MAX;
    FILE *f = open_in(root, "/proc", "meminfo");
    if (f) {
        char line[256];
        unsigned long long kib;
        while (fgets(line, sizeof line, f))
            if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
                m->system = kib * 1024;
        fclose(f);
    }
    uint64_t v1 = cgroup_left(root, false), v2 = cgroup_left(root, true);
    m->cgroup = v1 < v2 ? v1 : v2;
}

/* ---- what is needed ------------------------------------------------------------------------- */

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
    p->comm = oct_ranks_comm();
    p->cancel = oct_cli_cancel_flag();
}

bool oct_cli_in_memory(const char *path)
{
    struct statfs fs;
    return statfs(path, &fs) == 0 &&
           ((unsigned)fs.f_type == TMPFS_MAGIC || (unsigned)fs.f_type == RAMFS_MAGIC ||
            (unsigned)fs.f_type == HUGETLBFS_MAGIC);
}

static uint64_t add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static const char *amount(uint64_t n, char buf[24])
{
    if (n == UINT64_MAX)
        return "no limit";
    return oct_cli_bytes(n, buf);
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
                 oct_cli_bytes(need->weights, a), amount(have->system, b));
    oct_cli_outf("  KV cache %12s          cgroup limit     %12s\n", oct_cli_bytes(need->kv, a),
                 amount(have->cgroup, b));
    oct_cli_outf("  buffers  %12s\n", oct_cli_bytes(add(need->buffers, extra), a));
    oct_cli_outf("  total    %12s          %s\n", oct_cli_bytes(total, a),
                 fits ? "fits" : "does not fit");
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
    if (oct_cli_in_memory(oct_ranks_path(o->model, path)))
        need.weights = 0;
    oct_memory have;
    oct_memory_have("", &have);
    uint64_t limit = have.system < have.cgroup ? have.system : have.cgroup;
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
                      o->model, oct_cli_bytes(total, a), oct_cli_bytes(need.weights, b),
                      oct_cli_bytes(own, c), oct_cli_bytes(limit, d), where);
        return OCT_EXIT_ERROR;
    }
    if (o->dry_run)
        return OCT_EXIT_OK;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && o->n_threads > CPU_COUNT(&set))
        oct_cli_warning("%lld threads on %d CPUs will wait for each other", (long long)o->n_threads,
                        CPU_COUNT(&set));
    return -1;
}

int oct_cli_open(const oct_cli_session *o, const char *command, bool tokenizer, oct_model **m)
{
    oct_error err = {0};
    if (!o->model) {
        oct_cli_error("%s: -m MODEL is missing (octet %s --help shows the usage)", command,
                      command);
        return OCT_EXIT_USAGE;
    }
    char path[PATH_MAX];
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
