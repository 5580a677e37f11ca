#include "gpu.h"

#include <stdio.h>
#include <string.h>

#include "cuda_impl.h"
#include "machine.h"

enum {
    MIN_MAJOR = 7, /* dp4a, int8 tensor cores, and the oldest that the kernels are made for */
    MIN_MINOR = 5,
    RESERVE_PART = 16, /* of all memory, at most RESERVE_BYTES: for desktops, and what fragments */
    RESERVE_BYTES = 512 << 20
};

/* Free memory is a matter of the GPU's context. */
static int read_memory(const oct_cuda_api *api, int device, oct_gpu *g)
{
    oct_cuda_context context, popped;
    size_t left = 0, total = 0;
    int result = api->context_retain(&context, device);
    if (result != 0)
        return result;
    result = api->context_push(context);
    if (result == 0) {
        result = api->memory_info(&left, &total);
        g->link = result == 0 ? oct_cuda_measure_link(api) : 0;
        (void)api->context_pop(&popped);
    }
    (void)api->context_release(device);
    g->total = total;
    g->free = left;
    return result;
}

static int read_gpu(const oct_cuda_api *api, int i, oct_gpu *g)
{
    int device, result = api->device_get(&device, i);
    g->index = i;
    if (result == 0)
        result = api->device_name(g->name, sizeof g->name, device);
    if (result == 0)
        result = api->device_attribute(&g->major, OCT_CUDA_ATTR_MAJOR, device);
    if (result == 0)
        result = api->device_attribute(&g->minor, OCT_CUDA_ATTR_MINOR, device);
    if (result == 0)
        result = api->device_attribute(&g->n_sms, OCT_CUDA_ATTR_SMS, device);
    if (result == 0)
        result = api->device_attribute(&g->shared, OCT_CUDA_ATTR_SHARED, device);
    if (result != 0)
        return result;
    if (g->major * 10 + g->minor < MIN_MAJOR * 10 + MIN_MINOR) {
        snprintf(g->why, sizeof g->why, "of compute capability %d.%d, expected %d.%d or later",
                 g->major, g->minor, MIN_MAJOR, MIN_MINOR);
        return 0;
    }
    return read_memory(api, device, g);
}

uint64_t oct_gpu_budget(const oct_gpu *g)
{
    uint64_t reserve = g->total / RESERVE_PART;
    reserve = reserve < RESERVE_BYTES ? reserve : RESERVE_BYTES;
    return g->free > reserve ? g->free - reserve : 0;
}

static void describe(const oct_cuda_api *api, int i, oct_gpu *g)
{
    oct_error e = {0};
    if (oct_cuda_status(api, read_gpu(api, i, g), "cannot be used", &e) != OCT_OK)
        snprintf(g->why, sizeof g->why, "%.*s", (int)sizeof g->why - 1, e.text);
    if (!g->why[0])
        g->budget = oct_gpu_budget(g);
}

void oct_gpus_get(oct_gpus *out)
{
    const char *why;
    oct_error e = {0};
    int n = 0, usable = 0;
    memset(out, 0, sizeof *out);
    const oct_cuda_api *api = oct_cuda_driver(&why, &out->absent);
    if (!api) {
        snprintf(out->why, sizeof out->why, "%s", why);
        return;
    }
    if (oct_cuda_status(api, api->driver_version(&out->driver), "the driver's version", &e) !=
            OCT_OK ||
        oct_cuda_status(api, api->device_count(&n), "GPUs", &e) != OCT_OK) {
        snprintf(out->why, sizeof out->why, "%s", e.text);
        return;
    }
    for (int i = 0; i < n && i < OCT_MAX_GPUS; i++) {
        describe(api, i, &out->gpu[out->n++]);
        usable += out->gpu[i].why[0] == 0;
    }
    out->absent = n == 0;
    if (n == 0)
        snprintf(out->why, sizeof out->why, "NVIDIA's driver has no GPU");
    else if (usable == 0)
        snprintf(out->why, sizeof out->why, "GPU 0 (%s): %s", out->gpu[0].name, out->gpu[0].why);
}

/* Appends "what of n of all layers, ". */
static void append_layers(char *out, size_t room, const char *what, int64_t n, int64_t all)
{
    size_t at = strlen(out);
    if (n == all)
        snprintf(out + at, room - at, "%s of %lld layer%s, ", what, (long long)n,
                 n == 1 ? "" : "s");
    else if (n > 0)
        snprintf(out + at, room - at, "%s of %lld of %lld layers, ", what, (long long)n,
                 (long long)all);
}

const char *oct_gpu_share_text(const oct_gpus *g, const oct_gpu_share *s, char out[OCT_GPU_LINE])
{
    char what[160] = "", a[24], b[24], c[24], d[24];
    const oct_gpu *gpu = &g->gpu[s->gpu];
    append_layers(what, sizeof what, "attention", s->attention, s->n_layers);
    if (s->head)
        strcat(what, "head, ");
    append_layers(what, sizeof what, "experts", s->experts, s->n_layers);
    if (s->streams)
        strcat(what, "room to stream experts, ");
    what[strlen(what) > 2 ? strlen(what) - 2 : 0] = 0;
    snprintf(out, OCT_GPU_LINE, "GPU %d (%s): %s; weights %s, KV cache %s, buffers %s, of %s free",
             gpu->index, gpu->name, what, oct_memory_text(s->weights, a), oct_memory_text(s->kv, b),
             oct_memory_text(s->buffers, c), oct_memory_text(gpu->free, d));
    return out;
}

void oct_gpus_limit(oct_gpus *g, const oct_gpu_use *use)
{
    for (int i = 0; i < g->n; i++) {
        oct_gpu *gpu = &g->gpu[i];
        if (!use->on || gpu->why[0])
            gpu->budget = 0;
        else if (use->n > 0) {
            uint64_t bytes = i < use->n ? use->bytes[i] : 0;
            gpu->budget = bytes < gpu->free ? bytes : gpu->free;
        }
    }
}

void oct_gpus_divide(oct_gpus *g, int local, int n_local)
{
    for (int i = 0; i < g->n; i++) {
        int owners = 0;
        bool mine = false;
        for (int r = 0; r < n_local; r++) {
            bool owns = g->n < n_local ? r % g->n == i : i % n_local == r;
            owners += owns;
            mine |= owns && r == local;
        }
        g->gpu[i].budget = mine ? g->gpu[i].budget / (uint64_t)owners : 0;
        g->gpu[i].link = mine ? g->gpu[i].link / owners : 0;
        g->gpu[i].divided = owners > 1;
    }
}
