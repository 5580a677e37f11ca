#include "topology.h"

#include <hwloc.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One number pair from a control group: quota and period in microseconds; 0 if there is no limit. */
static double quota_v2(const char *dir)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    FILE *f = fopen(path, "r");
    long long quota = 0, period = 0;
    int n = f ? fscanf(f, "%lld %lld", &quota, &period) : 0; /* "max 100000" reads nothing */
    if (f)
        fclose(f);
    return n == 2 && quota > 0 && period > 0 ? (double)quota / (double)period : 0;
}

static long long number_in(const char *dir, const char *name)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "r");
    long long v = -1;
    if (f) {
        if (fscanf(f, "%lld", &v) != 1)
            v = -1;
        fclose(f);
    }
    return v;
}

static double quota_v1(const char *dir)
{
    long long quota = number_in(dir, "cpu.cfs_quota_us"), period = number_in(dir, "cpu.cfs_period_us");
    return quota > 0 && period > 0 ? (double)quota / (double)period : 0;
}

/* Smallest quota from a group up to its root, 0 if none. A container may see a path that does not
 * exist below its own mount; walking up then still ends at the root of what it can see. */
static double quota_of_chain(const char *root, const char *group, double (*quota)(const char *))
{
    char dir[PATH_MAX];
    if (snprintf(dir, sizeof dir, "%s%s", root, group) >= (int)sizeof dir)
        return 0;
    double least = 0;
    for (;;) {
        double q = quota(dir);
        if (q > 0 && (least == 0 || q < least))
            least = q;
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < strlen(root))
            return least;
        *slash = '\0';
    }
}

static double cgroup_quota(void)
{
    FILE *f = fopen("/proc/self/cgroup", "r");
    if (!f)
        return 0;
    char line[PATH_MAX];
    double least = 0;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        double q = 0;
        if (controllers[1] == '\0')
            q = quota_of_chain("/sys/fs/cgroup", group, quota_v2);
        else if (strstr(controllers, "cpu") && !strstr(controllers, "cpuset"))
            q = quota_of_chain("/sys/fs/cgroup/cpu", group, quota_v1);
        if (q > 0 && (least == 0 || q < least))
            least = q;
    }
    fclose(f);
    return least;
}

/* Physical cores in the affinity mask and in the whole machine; false without a topology. */
static int count_cores(int *allowed, int *all)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) < 0)
        return 0;
    if (hwloc_topology_load(topology) < 0) {
        hwloc_topology_destroy(topology);
        return 0;
    }
    hwloc_bitmap_t mask = hwloc_bitmap_alloc();
    *allowed = *all = 0;
    if (mask && hwloc_get_cpubind(topology, mask, HWLOC_CPUBIND_PROCESS) == 0) {
        hwloc_obj_t core = NULL;
        while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core))) {
            (*all)++;
            *allowed += hwloc_bitmap_intersects(core->cpuset, mask) ? 1 : 0;
        }
    }
    hwloc_bitmap_free(mask);
    hwloc_topology_destroy(topology);
    return *allowed > 0;
}

int oct_topology_threads(const char **why)
{
    int n, all;
    *why = "cores";
    if (count_cores(&n, &all)) {
        if (n < all)
            *why = "affinity";
    } else {
        cpu_set_t mask;
        n = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
        *why = "affinity";
    }
    double quota = cgroup_quota();
    if (quota > 0 && quota < n) {
        n = quota < 1 ? 1 : (int)quota;
        *why = "cgroup quota";
    }
    return n;
}
