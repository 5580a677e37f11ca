/* cgroup.h: the control groups that this process is in, v1 and v2. */
#ifndef OCT_CGROUP_H
#define OCT_CGROUP_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Called with the folder of a group, and whether it is of v2. */
typedef void oct_cgroup_fn(void *ctx, const char *dir, bool v2);

/* Visits the process's group of a controller ("memory", "cpu") and each one above it, up to the
 * highest that can be seen. root is put in front of /proc and of mount points: "" in life, a
 * made-up tree in tests. */
void oct_cgroup_walk(const char *root, const char *controller, oct_cgroup_fn *fn, void *ctx);

/* dir/name for reading; NULL if it cannot be opened. */
FILE *oct_cgroup_open(const char *dir, const char *name);

/* Processors' worth of time that the tightest CPU quota on the way up allows; 0: no limit. */
double oct_cgroup_cpus(const char *root);

/* The tightest memory limit on the way up, less what is in use there and cannot be reclaimed;
 * UINT64_MAX: no limit. */
uint64_t oct_cgroup_memory(const char *root);

#endif
