#include "cgroup.h"

#include <limits.h>
#include <string.h>

/* ---- finding groups -------------------------------------------------------------------------- */

FILE *oct_cgroup_open(const char *dir, const char *name)
{
    char path[2 * PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    return n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
}

static FILE *open_proc(const char *root, const char *name)
{
    char dir[PATH_MAX];
    int n = snprintf(dir, sizeof dir, "%s/proc/self", root);
    return n > 0 && (size_t)n < sizeof dir ? oct_cgroup_open(dir, name) : NULL;
}

/* Whether word is in a list with commas. */
static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; p; p = strchr(p, ','), p = p ? p + 1 : NULL)
        if (strncmp(p, word, n) == 0 && (p[n] == 0 || p[n] == ','))
            return true;
    return false;
}

/* Finds where a hierarchy is mounted: v2, or v1 with the controller. A line of mountinfo:
 * id parent major:minor root mount-point options ... - type source super-options */
static bool find_mount(const char *root, const char *controller, bool v2, char *mount_root,
                       char *mount)
{
    FILE *f = open_proc(root, "mountinfo");
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
            found = strcmp(type, "cgroup") == 0 && has_word(super, controller);
    }
    fclose(f);
    return found;
}

/* Lines of /proc/self/cgroup: "0::/path" for v2, "N:controllers:/path" for v1. */
static bool find_group(const char *root, const char *controller, bool v2, char *path)
{
    FILE *f = open_proc(root, "cgroup");
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
        found = v2 ? a[1] == 0 : has_word(a + 1, controller);
        if (found)
            snprintf(path, PATH_MAX, "%s", b + 1);
    }
    fclose(f);
    return found;
}

static void walk(const char *root, const char *controller, bool v2, oct_cgroup_fn *fn, void *ctx)
{
    char mount_root[PATH_MAX], mount[PATH_MAX], group[PATH_MAX], dir[3 * PATH_MAX];
    if (!find_mount(root, controller, v2, mount_root, mount) ||
        !find_group(root, controller, v2, group))
        return;
    /* Inside a container the mount may show only a part of the tree: drop that part's prefix. */
    size_t n_root = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);
    const char *below = strncmp(group, mount_root, n_root) == 0 ? group + n_root : "";
    if (strcmp(below, "/") == 0 || strstr(below, "/.."))
        below = "";
    size_t top = strlen(root) + strlen(mount);
    snprintf(dir, sizeof dir, "%s%s%s", root, mount, below);
    for (;;) {
        fn(ctx, dir, v2);
        char *slash = strrchr(dir, '/');
        if (!slash || strlen(dir) <= top)
            return;
        *slash = 0;
    }
}

void oct_cgroup_walk(const char *root, const char *controller, oct_cgroup_fn *fn, void *ctx)
{
    walk(root, controller, false, fn, ctx);
    walk(root, controller, true, fn, ctx);
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* A file that holds one number; UINT64_MAX for "max", for v1's "no limit" (close to 2^63, or -1),
 * or if it is not there. */
static uint64_t read_number(const char *dir, const char *name)
{
    FILE *f = oct_cgroup_open(dir, name);
    unsigned long long v;
    uint64_t out = UINT64_MAX;
    if (!f)
        return out;
    if (fscanf(f, "%llu", &v) == 1 && v < (1ull << 62))
        out = v;
    fclose(f);
    return out;
}

/* "quota period" in microseconds, or "max period". */
static void read_quota(const char *dir, uint64_t *quota, uint64_t *period)
{
    FILE *f = oct_cgroup_open(dir, "cpu.max");
    unsigned long long q, p;
    if (!f)
        return;
    if (fscanf(f, "%llu %llu", &q, &p) == 2) {
        *quota = q;
        *period = p;
    }
    fclose(f);
}

static void visit_cpus(void *ctx, const char *dir, bool v2)
{
    double *min = ctx;
    uint64_t quota = UINT64_MAX, period = 0;
    if (v2) {
        read_quota(dir, &quota, &period);
    } else {
        quota = read_number(dir, "cpu.cfs_quota_us");
        period = read_number(dir, "cpu.cfs_period_us");
    }
    if (quota == UINT64_MAX || quota == 0 || period == UINT64_MAX || period == 0)
        return;
    double cpus = (double)quota / (double)period;
    if (*min == 0 || cpus < *min)
        *min = cpus;
}

double oct_cgroup_cpus(const char *root)
{
    double min = 0;
    oct_cgroup_walk(root, "cpu", visit_cpus, &min);
    return min;
}

/* Page cache that the group can give back. */
static uint64_t read_reclaimable(const char *dir, bool v2)
{
    static const char *const keys[2][2] = {{"total_inactive_file", "total_active_file"},
                                           {"inactive_file", "active_file"}};
    FILE *f = oct_cgroup_open(dir, "memory.stat");
    char key[64];
    unsigned long long v;
    uint64_t sum = 0;
    if (!f)
        return 0;
    while (fscanf(f, "%63s %llu", key, &v) == 2)
        if (strcmp(key, keys[v2][0]) == 0 || strcmp(key, keys[v2][1]) == 0)
            sum += v;
    fclose(f);
    return sum;
}

static void visit_memory(void *ctx, const char *dir, bool v2)
{
    uint64_t *min = ctx;
    uint64_t max = read_number(dir, v2 ? "memory.max" : "memory.limit_in_bytes");
    if (max == UINT64_MAX)
        return;
    uint64_t used = read_number(dir, v2 ? "memory.current" : "memory.usage_in_bytes");
    uint64_t cache = read_reclaimable(dir, v2);
    used = used == UINT64_MAX || used < cache ? 0 : used - cache;
    uint64_t left = max > used ? max - used : 0;
    if (left < *min)
        *min = left;
}

uint64_t oct_cgroup_memory(const char *root)
{
    uint64_t min = UINT64_MAX;
    oct_cgroup_walk(root, "memory", visit_memory, &min);
    return min;
}
