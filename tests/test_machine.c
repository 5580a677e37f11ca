/* Memory and processors that a process may still take, read from made-up /proc and /sys trees. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "cgroup.h"
#include "machine.h"

static char root[] = "/tmp/octet-memory-XXXXXX";

/* Writes root/path, making its folders. */
static void put(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *p = full + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        assert_true(mkdir(full, 0700) == 0 || errno == EEXIST);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int begin(void **state)
{
    (void)state;
    strcpy(root + strlen(root) - 6, "XXXXXX");
    return mkdtemp(root) ? 0 : 1;
}

static int end(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

static void meminfo_only(void **state)
{
    (void)state;
    oct_memory m;
    put("proc/meminfo", "MemTotal:  8000 kB\nMemFree: 10 kB\nMemAvailable:    1234 kB\n");
    oct_memory_get(root, &m);
    assert_int_equal(m.system, 1234 * 1024);
    assert_true(m.cgroup == UINT64_MAX);
}

static void nothing_readable(void **state)
{
    (void)state;
    oct_memory m;
    oct_memory_get(root, &m);
    assert_true(m.system == UINT64_MAX && m.cgroup == UINT64_MAX);
}

/* The tightest level counts, wherever on the way up it is; page cache is not "used". */
static void v2_ancestors(void **state)
{
    (void)state;
    oct_memory m;
    put("proc/self/mountinfo",
        "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
    put("proc/self/cgroup", "0::/user.slice/box.scope\n");
    put("sys/fs/cgroup/user.slice/box.scope/memory.max", "max\n");
    put("sys/fs/cgroup/user.slice/box.scope/memory.current", "100\n");
    put("sys/fs/cgroup/user.slice/memory.max", "5000000\n");
    put("sys/fs/cgroup/user.slice/memory.current", "3000000\n");
    put("sys/fs/cgroup/user.slice/memory.stat",
        "anon 900000\nfile 2100000\ninactive_file 1500000\nactive_file 500000\nshmem 100000\n");
    oct_memory_get(root, &m);
    assert_int_equal(m.cgroup, 5000000 - (3000000 - 2000000));

    put("sys/fs/cgroup/user.slice/box.scope/memory.max", "2000100\n");
    oct_memory_get(root, &m);
    assert_int_equal(m.cgroup, 2000000);

    put("sys/fs/cgroup/user.slice/box.scope/memory.current", "9000000\n"); /* over the limit */
    oct_memory_get(root, &m);
    assert_int_equal(m.cgroup, 0);
}

/* Inside a container: the group's path is seen from outside, the mount shows its subtree. */
static void v1_container(void **state)
{
    (void)state;
    oct_memory m;
    put("proc/self/mountinfo",
        "40 20 0:30 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "41 20 0:31 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    put("proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc/job\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "700000\n");
    put("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "300000\n");
    put("sys/fs/cgroup/memory/job/memory.stat",
        "cache 1\ninactive_file 7\ntotal_inactive_file 90000\ntotal_active_file 10000\n");
    oct_memory_get(root, &m);
    assert_int_equal(m.cgroup, 700000 - 200000);
    assert_int_equal(m.limit, 700000 - 200000);
}

/* The tightest quota on the way up; "max", -1 and files that are missing are none. */
static void cpus_v2(void **state)
{
    (void)state;
    put("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    put("proc/self/cgroup", "0::/a/b\n");
    assert_true(oct_cgroup_cpus(root) == 0);
    put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_true(oct_cgroup_cpus(root) == 0);
    put("sys/fs/cgroup/a/cpu.max", "250000 100000\n");
    assert_true(oct_cgroup_cpus(root) == 2.5);
    put("sys/fs/cgroup/a/b/cpu.max", "300000 100000\n");
    assert_true(oct_cgroup_cpus(root) == 2.5);
}

static void cpus_v1(void **state)
{
    (void)state;
    put("proc/self/mountinfo",
        "39 20 0:29 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
        "40 20 0:30 /docker/abc /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n");
    put("proc/self/cgroup", "6:cpuset:/docker/abc\n5:cpuacct,cpu:/docker/abc\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    assert_true(oct_cgroup_cpus(root) == 0);
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n");
    assert_true(oct_cgroup_cpus(root) == 0.5);
}

/* One quota of 1.5 CPUs, seen from containers that are told little or wrong things about it. */
static void quotas_in_odd_places(void **state)
{
    (void)state;
    static const struct {
        const char *mounts, *group, *folder;
    } cases[] = {
        {"", "5:cpu,cpuacct:/docker/x", "sys/fs/cgroup/cpu,cpuacct/docker/x"},
        {"", "8:cpuacct,cpu:/x", "sys/fs/cgroup/cpu,cpuacct/x"},
        {"", "8:cpuacct,cpu:/x", "sys/fs/cgroup/cpu"},
        {"", "5:cpuset,cpu,cpuacct:/x", "cgroup/cpuset,cpu,cpuacct/x"},
        {"", "5:cpu:/docker/x/sub", "sys/fs/cgroup/cpu/sub"},
        {"", "5:cpu:/a/../b", "sys/fs/cgroup/cpu"},
        {"40 20 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", "5:cpu,cpuacct:/docker/x",
         "sys/fs/cgroup/cpu,cpuacct/docker/x"},
        {"40 20 0:30 /other /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
         "41 20 0:30 / /run/groups rw - cgroup cgroup rw,cpu\n",
         "5:cpu:/docker/x", "run/groups/docker/x"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[256];
        assert_int_equal(begin(NULL), 0);
        put("proc/self/mountinfo", cases[i].mounts);
        put("proc/self/cgroup", cases[i].group);
        assert_true(oct_cgroup_cpus(root) == 0);
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", cases[i].folder);
        put(path, "150000\n");
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", cases[i].folder);
        put(path, "100000\n");
        if (oct_cgroup_cpus(root) != 1.5)
            fail_msg("case %zu: %g", i, oct_cgroup_cpus(root));
        assert_int_equal(end(NULL), 0);
    }
    /* v2 that mountinfo does not show. */
    assert_int_equal(begin(NULL), 0);
    put("proc/self/cgroup", "0::/a/b");
    put("sys/fs/cgroup/cgroup.controllers", "cpu");
    put("sys/fs/cgroup/b/cpu.max", "50000 100000\n");
    assert_true(oct_cgroup_cpus(root) == 0.5);
    assert_int_equal(end(NULL), 0);
    assert_int_equal(begin(NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(quotas_in_odd_places, begin, end),
        cmocka_unit_test_setup_teardown(meminfo_only, begin, end),
        cmocka_unit_test_setup_teardown(nothing_readable, begin, end),
        cmocka_unit_test_setup_teardown(v2_ancestors, begin, end),
        cmocka_unit_test_setup_teardown(v1_container, begin, end),
        cmocka_unit_test_setup_teardown(cpus_v2, begin, end),
        cmocka_unit_test_setup_teardown(cpus_v1, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
