#include "cgroup.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* Where a hierarchy may be seen: a mount point, and which group is its top as far as known. */
typedef struct place {
    char root[PATH_MAX], mount[PATH_MAX + 512];
} place;

enum { MAX_PLACES = 16 };
typedef struct places {
    place *p; /* [MAX_PLACES] */
    int n;
} places;

static void add_place(places *l, const char *root, const char *mount)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->p[i].mount, mount) == 0)
            return;
    if (l->n == MAX_PLACES)
        return;
    place *p = &l->p[l->n++];
    snprintf(p->root, sizeof p->root, "%s", root);
    snprintf(p->mount, sizeof p->mount, "%s", mount);
}

/* As mounted: v2, or v1 with the controller. A line of mountinfo:
 * id parent major:minor root mount-point options ... - type source super-options */
static void list_mounts(const char *root, const char *controller, bool v2, places *l)
{
    FILE *f = open_proc(root, "mountinfo");
    char line[3 * PATH_MAX], type[32], super[1024], mount_root[PATH_MAX], mount[PATH_MAX];
    while (f && fgets(line, sizeof line, f)) {
        const char *dash = strstr(line, " - ");
        if (!dash || sscanf(dash, " - %31s %*s %1023s", type, super) != 2 ||
            sscanf(line, "%*s %*s %*s %4095s %4095s", mount_root, mount) != 2)
            continue;
        if (v2 ? strcmp(type, "cgroup2") == 0
               : strcmp(type, "cgroup") == 0 && has_word(super, controller))
            add_place(l, mount_root, mount);
    }
    if (f)
        fclose(f);
}

/* Containers show groups in places that mountinfo does not tell, or tells wrongly: folders named
 * after their controllers, where such folders usually are. */
static void list_usual(const char *root, const char *controller, bool v2, places *l)
{
    static const char *const above[] = {"/sys/fs/cgroup", "/cgroup", "/dev/cgroup", "/mnt/cgroup"};
    for (size_t i = 0; i < sizeof above / sizeof *above; i++) {
        char dir[PATH_MAX], full[PATH_MAX + 512];
        snprintf(dir, sizeof dir, "%s%s", root, above[i]);
        DIR *d = opendir(dir);
        snprintf(full, sizeof full, "%s/cgroup.controllers", dir);
        if (v2 && d && access(full, F_OK) == 0)
            add_place(l, "/", above[i]);
        for (struct dirent *e; d && (e = readdir(d));) {
            if (!(v2 ? strcmp(e->d_name, "unified") == 0 : has_word(e->d_name, controller)))
                continue;
            snprintf(full, sizeof full, "%s/%s", above[i], e->d_name);
            add_place(l, "/", full);
        }
        if (d)
            closedir(d);
    }
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

/* The process's group in a place, as a folder: below the mount's top group, if its path begins with
 * that; else, in a container that is told its path outside, whatever end of that path is there. */
static bool find_folder(const char *root, const place *p, const char *group, char dir[4 * PATH_MAX])
{
    struct stat st;
    size_t n = strcmp(p->root, "/") == 0 ? 0 : strlen(p->root);
    const char *below = strncmp(group, p->root, n) == 0 ? group + n : group;
    if (strcmp(below, "/") == 0 || strstr(below, "/.."))
        below = "";
    for (;;) {
        snprintf(dir, 4 * PATH_MAX, "%s%s%s", root, p->mount, below);
        if (stat(dir, &st) == 0 && S_ISDIR(st.st_mode))
            return true;
        if (!*below)
            return false;
        below = strchr(below + 1, '/');
        below = below ? below : "";
    }
}

static void walk(const char *root, const char *controller, bool v2, oct_cgroup_fn *fn, void *ctx)
{
    char group[PATH_MAX] = "", dir[4 * PATH_MAX];
    places l = {calloc(MAX_PLACES, sizeof *l.p), 0};
    if (!l.p)
        return;
    bool known = find_group(root, controller, v2, group);
    list_mounts(root, controller, v2, &l);
    list_usual(root, controller, v2, &l);
    for (int i = 0; i < l.n && known; i++) {
        if (!find_folder(root, &l.p[i], group, dir))
            continue;
        size_t top = strlen(root) + strlen(l.p[i].mount);
        for (;;) {
            fn(ctx, dir, v2);
            char *slash = strrchr(dir, '/');
            if (!slash || strlen(dir) <= top)
                break;
            *slash = 0;
        }
    }
    free(l.p);
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
