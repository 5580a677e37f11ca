/* bench_machine.c: where a measurement was made. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#ifndef OCT_COMMIT
#error "the build defines OCT_COMMIT"
#endif

/* The rest of the first line of a file that begins with a word (all of it for ""); "" if there is
 * none. */
static const char *line_of(const char *path, const char *word, char out[128])
{
    char line[512];
    FILE *f = fopen(path, "r");
    out[0] = 0;
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, word, strlen(word)) != 0)
            continue;
        const char *p = line + strlen(word);
        p += strspn(p, " \t:");
        snprintf(out, 128, "%.*s", (int)strcspn(p, "\n"), p);
        break;
    }
    if (f)
        fclose(f);
    return out;
}

static void describe_pages(const oct_model *m, char out[128])
{
    oct_page_stats p;
    oct_measure_pages(m, &p);
    snprintf(out, 128, "%llu KiB, %.0f %% of what is mapped in huge pages, %.0f %% resident",
             (unsigned long long)p.page >> 10,
             p.resident ? 100.0 * (double)p.huge / (double)p.resident : 0.0,
             p.mapped ? 100.0 * (double)p.resident / (double)p.mapped : 0.0);
}

static void put(json_t *o, const char *key, const char *value)
{
    if (value[0])
        json_object_set_new(o, key, json_string(value));
}

json_t *oct_bench_machine(const oct_bench *b)
{
    static const char thp[] = "/sys/kernel/mm/transparent_hugepage/enabled";
    static const char governor[] = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
    char text[128];
    cpu_set_t set;
    json_t *o = json_object();
    put(o, "cpu", line_of("/proc/cpuinfo", "model name", text));
    int cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
    snprintf(text, sizeof text, "%d by default (%s), %d processors allowed, %d NUMA domain%s",
             b->need.n_threads, b->need.threads_why, cpus, b->need.n_domains,
             b->need.n_domains == 1 ? "" : "s");
    put(o, "threads", text);
    put(o, "kernels", b->kernels);
    describe_pages(b->model, text);
    put(o, "pages of the weights", text);
    put(o, "transparent huge pages", line_of(thp, "", text));
    put(o, "NUMA balancing", line_of("/proc/sys/kernel/numa_balancing", "", text));
    put(o, "governor", line_of(governor, "", text));
    put(o, "kernel", line_of("/proc/sys/kernel/osrelease", "", text));
    put(o, "load average", line_of("/proc/loadavg", "", text));
    put(o, "peak resident memory", line_of("/proc/self/status", "VmHWM", text));
    put(o, "compiler", __VERSION__);
    snprintf(text, sizeof text, "%s%s%s", oct_version(), OCT_COMMIT[0] ? ", " : "", OCT_COMMIT);
    put(o, "octet", text);
    return o;
}
