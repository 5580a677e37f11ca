/* poisoned_device.h: a backend with a memory of its own, made of the CPU's, in which everything
 * that was not brought there is poison. To be included after cmocka.h. */
#ifndef OCT_TEST_POISONED_DEVICE_H
#define OCT_TEST_POISONED_DEVICE_H

#include <stdlib.h>
#include <string.h>

#include "session_impl.h"
#include "topology.h"

/* Not a number in all that the plan has at the beginning of a run. Where a router's choices will be
 * there are zeros instead, for a poisoned number of an expert would be a crash. */
static inline void poison(const oct_plan *p, int place, unsigned char *buffer)
{
    if (p->need[place].shared > 0)
        memset(buffer, 0xff, p->need[place].shared);
    for (int i = 0; i < p->graph->n_nodes; i++) {
        const oct_tensor *t = p->graph->nodes[i].out;
        bool here = place == OCT_HOST; /* where the runner counts them */
        if (!t || !t->routes)
            continue;
        for (int s = 0; s < p->n_steps; s++) {
            const oct_step *step = &p->steps[s];
            bool uses = step->copied == t ||
                        (step->node && (step->node->in[1] == t || step->node->out == t));
            here |= uses && (step->place == place || step->from == place);
        }
        if (here)
            memset(buffer + oct_plan_offset(p, place, t), 0, (size_t)t->rows * t->row_bytes);
    }
}

typedef struct poisoned_device {
    oct_backend base;
    oct_backend *cpu;
    /* Of the last run. */
    const oct_plan *plan;
    unsigned char *buffer;
    int place;
} poisoned_device;

static poisoned_device *device_of(oct_backend *b)
{
    return (poisoned_device *)(void *)b;
}

static bool device_supports(const void *numbers, const oct_node *n)
{
    return oct_cpu_kind.supports(numbers, n);
}

static size_t device_temp_bytes(const void *numbers, const oct_node *n, int64_t rows)
{
    return oct_cpu_kind.temp_bytes(numbers, n, rows);
}

static size_t device_scratch_bytes(const void *numbers, const oct_node *n, int64_t rows)
{
    return oct_cpu_kind.scratch_bytes(numbers, n, rows);
}

static const oct_backend_kind poisoned_kind = {.name = "poisoned",
                                               .supports = device_supports,
                                               .temp_bytes = device_temp_bytes,
                                               .scratch_bytes = device_scratch_bytes};

static oct_status device_alloc(oct_backend *b, size_t bytes, void **p, oct_error *err)
{
    (void)b;
    *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!*p)
        return oct_fail(err, OCT_ERR_MEMORY, "device: out of memory");
    memset(*p, 0xff, bytes);
    return OCT_OK;
}

static void device_release(oct_backend *b, void *p, size_t bytes)
{
    (void)b;
    (void)bytes;
    free(p);
}

static oct_status device_copy(oct_backend *b, void *to, const void *from, size_t bytes,
                              oct_error *err)
{
    (void)b;
    (void)err;
    memcpy(to, from, bytes);
    return OCT_OK;
}

static void device_begin(oct_backend *b)
{
    poisoned_device *d = device_of(b);
    if (d->buffer)
        poison(d->plan, d->place, d->buffer);
    d->cpu->begin(d->cpu);
}

static void device_end(oct_backend *b)
{
    device_of(b)->cpu->end(device_of(b)->cpu);
}

static oct_status device_run(oct_backend *b, const oct_plan *p, unsigned char *buffer, int first,
                             int end, oct_run *r, oct_error *err)
{
    poisoned_device *d = device_of(b);
    d->plan = p;
    d->place = p->steps[first].place;
    d->buffer = buffer;
    for (int i = first; i < end; i++)
        assert_int_equal(p->steps[i].place, d->place);
    return d->cpu->run(d->cpu, p, buffer, first, end, r, err);
}

static void device_free(oct_backend *b)
{
    device_of(b)->cpu->free(device_of(b)->cpu);
    free(b);
}

static oct_status device_open(const void *numbers, oct_backend **out, oct_error *err)
{
    poisoned_device *d = calloc(1, sizeof *d);
    oct_topology t;
    assert_non_null(d);
    d->base = (oct_backend){.kind = &poisoned_kind,
                            .alloc = device_alloc,
                            .release = device_release,
                            .upload = device_copy,
                            .download = device_copy,
                            .begin = device_begin,
                            .end = device_end,
                            .run = device_run,
                            .free = device_free};
    OCT_TRY(oct_topology_load(NULL, &t, err));
    oct_status s = oct_cpu_open(numbers, &t, false, &d->cpu, err);
    oct_topology_free(&t);
    *out = &d->base;
    return s;
}

#endif
