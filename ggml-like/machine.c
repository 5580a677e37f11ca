#include "machine.h"

#include <linux/magic.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <sys/vfs.h>

#include "cgroup.h"
#include "kernels.h"
#include "topology.h"

/* ---- processor ------------------------------------------------------------------------------- */

static void read_cpu_name(char out[128])
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[512];
    snprintf(out, 128, "unknown");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon) {
            colon[strcspn(colon, "\n")] = 0;
            snprintf(out, 128, "%s", colon + 1 + strspn(colon + 1, " "));
            break;
        }
    }
    if (f)
        fclose(f);
}

oct_status oct_machine_load(const char *topology, oct_machine **out, oct_error *err)
{
    cpu_set_t set;
    *out = NULL;
    oct_machine *m = calloc(1, sizeof *m);
    if (!m)
        return oct_fail(err, OCT_ERR_MEMORY, "machine: out of memory");
    oct_status s = oct_topology_load(topology, &m->topology, err);
    if (s != OCT_OK) {
        oct_machine_free(m);
        return s;
    }
    oct_machine_info *i = &m->info;
    read_cpu_name(i->cpu);
    i->n_cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
    i->n_cores = m->topology.n_cores;
    i->n_nodes = m->topology.n_nodes;
    i->n_threads = m->topology.n_threads;
    i->threads_why = m->topology.why;
    m->isa = oct_isa_detect();
    for (int row = 0; row < oct_n_kernel_rows && i->n_isas < OCT_MACHINE_ISAS; row++)
        if ((oct_kernel_rows[row].needs & ~m->isa) == 0)
            i->isas[i->n_isas++] = oct_kernel_rows[row].name;
    *out = m;
    return OCT_OK;
}

oct_status oct_machine_find(const oct_machine *m, const oct_machine **use, oct_machine **here,
                            oct_error *err)
{
    *here = NULL;
    *use = m;
    if (m)
        return OCT_OK;
    oct_status s = oct_machine_load(NULL, here, err);
    *use = *here;
    return s;
}

void oct_machine_free(oct_machine *m)
{
    if (m)
        oct_topology_free(&m->topology);
    free(m);
}

const oct_machine_info *oct_machine_get_info(const oct_machine *m)
{
    return &m->info;
}

oct_status oct_machine_choose_isa(const char *name, const char **isa, oct_error *err)
{
    const oct_kernels *row;
    OCT_TRY(oct_kernels_choose(name, oct_isa_detect(), &row, err));
    *isa = row->name;
    return OCT_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static uint64_t available(const char *root)
{
    char dir[4096], line[256];
    unsigned long long kib;
    uint64_t bytes = UINT64_MAX;
    int n = snprintf(dir, sizeof dir, "%s/proc", root);
    FILE *f = n > 0 && (size_t)n < sizeof dir ? oct_cgroup_open(dir, "meminfo") : NULL;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            bytes = kib * 1024;
    if (f)
        fclose(f);
    struct sysinfo info; /* without /proc: less than that, since it knows of no cache */
    if (bytes == UINT64_MAX && !*root && sysinfo(&info) == 0)
        bytes = ((uint64_t)info.freeram + info.bufferram) * info.mem_unit;
    return bytes;
}

void oct_memory_get(const char *root, oct_memory *m)
{
    m->system = available(root);
    m->cgroup = oct_cgroup_memory(root);
    m->limit = m->system < m->cgroup ? m->system : m->cgroup;
}

bool oct_memory_has_file(const char *path)
{
    struct statfs fs;
    return statfs(path, &fs) == 0 &&
           ((unsigned)fs.f_type == TMPFS_MAGIC || (unsigned)fs.f_type == RAMFS_MAGIC ||
            (unsigned)fs.f_type == HUGETLBFS_MAGIC);
}

const char *oct_memory_text(uint64_t bytes, char out[24])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double x = (double)bytes;
    int u = 0;
    while (x >= 1024 && u < 6) {
        x /= 1024;
        u++;
    }
    snprintf(out, 24, u == 0 ? "%.0f %s" : x < 10 ? "%.2f %s" : "%.1f %s", x, units[u]);
    return out;
}
