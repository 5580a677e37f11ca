/* fake_cuda.c: a driver of NVIDIA's that is none: libcuda.so.1 with the driver's names, made for
 * tests. Its devices are memory of this process, its kernels those of Octet compiled for the host.
 *
 * It does nothing before it must: copies and kernels wait in their stream until somebody waits for
 * them, so that whoever reads too early reads old bytes, and who overwrites too early is found out.
 * Memory of devices cannot be touched by the program (it is mapped without rights while no
 * operation runs), is poisoned when it is given and gone when it is freed. Wrong use ends the
 * process with a line: handles that are none, contexts that are not current, copies beyond what was
 * allocated, calls that would stop the whole device while an evaluation runs.
 *
 * What it has is read from the environment, OCTET_FAKE_CUDA="name=value,..." :
 *     devices=N          [1]
 *     memory=A/B/...     bytes of each, with k, M or G; the last goes for the rest [1G]
 *     version=N          of CUDA [13000]
 *     capability=N       times ten [89]
 *     shared=N           bytes of shared memory that a block may have [101376]
 *     init=N             what cuInit returns [0]
 *     fail=N             the N-th call fails ...
 *     code=N             with this number [999] ...
 *     lasting            and all after it, but those that release
 *     failing=NAME       only calls of this name count for fail
 *     blas=N             what calls of cuBLAS return [0]
 *     elapsed=MS         what all is said to take between two events [what it took]
 *     nopin              no memory of the host can be pinned
 *     order=lazy|eager|random   when operations run; random: some at every call, by seed [lazy]
 *     seed=N
 *     report=FILE        at the end of the process: what was called how often, and what is left
 *     reports=FILE       likewise, of several processes: with its number behind the name
 * Anything that is left at the end is said on stderr, and the process ends with 99. */
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_driver.h"
#include "fake_cuda_state.h"

#define OCT_CUDA_CALL(name, symbol, arguments) \
    __attribute__((visibility("default"))) int symbol arguments;
#include "cuda_api.inc"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

enum call {
#define OCT_CUDA_CALL(name, symbol, arguments) CALL_##name,
#include "cuda_api.inc"
    CALLS
};

static const char *const call_names[CALLS] = {
#define OCT_CUDA_CALL(name, symbol, arguments) [CALL_##name] = #symbol,
#include "cuda_api.inc"
};

static bool releases(enum call c)
{
    return c == CALL_context_release || c == CALL_context_pop || c == CALL_release ||
           c == CALL_host_release || c == CALL_host_unregister || c == CALL_stream_free ||
           c == CALL_event_free || c == CALL_module_unload || c == CALL_error_text;
}

/* ---- settings -------------------------------------------------------------------------------- */

static struct settings {
    bool read, lasting, nopin;
    int devices, version, capability, shared, init, code;
    long fail;
    char failing[48], report[256], order[8];
    float elapsed;
    int blas;
    size_t memory[FAKE_DEVICES];
    uint64_t seed;
} set;

static long n_calls, n_counted, calls[CALLS];
static bool failed;

static size_t bytes_of(const char *s, char **end)
{
    size_t n = strtoul(s, end, 10);
    switch (**end) {
    case 'k': ++*end; return n << 10;
    case 'M': ++*end; return n << 20;
    case 'G': ++*end; return n << 30;
    default: return n;
    }
}

static void read_memories(const char *s)
{
    size_t n = 0;
    for (int i = 0; i < FAKE_DEVICES; i++) {
        char *end = NULL;
        if (s && *s) {
            n = bytes_of(s, &end);
            s = *end == '/' ? end + 1 : NULL;
        }
        set.memory[i] = n;
    }
}

static void read_setting(const char *name, const char *value)
{
    if (strcmp(name, "devices") == 0)
        set.devices = atoi(value);
    else if (strcmp(name, "memory") == 0)
        read_memories(value);
    else if (strcmp(name, "version") == 0)
        set.version = atoi(value);
    else if (strcmp(name, "capability") == 0)
        set.capability = atoi(value);
    else if (strcmp(name, "shared") == 0)
        set.shared = atoi(value);
    else if (strcmp(name, "init") == 0)
        set.init = atoi(value);
    else if (strcmp(name, "fail") == 0)
        set.fail = atol(value);
    else if (strcmp(name, "code") == 0)
        set.code = atoi(value);
    else if (strcmp(name, "lasting") == 0)
        set.lasting = true;
    else if (strcmp(name, "blas") == 0)
        set.blas = atoi(value);
    else if (strcmp(name, "elapsed") == 0)
        set.elapsed = strtof(value, NULL);
    else if (strcmp(name, "nopin") == 0)
        set.nopin = true;
    else if (strcmp(name, "failing") == 0)
        snprintf(set.failing, sizeof set.failing, "%s", value);
    else if (strcmp(name, "order") == 0)
        snprintf(set.order, sizeof set.order, "%s", value);
    else if (strcmp(name, "seed") == 0)
        set.seed = strtoull(value, NULL, 10);
    else if (strcmp(name, "reports") == 0)
        snprintf(set.report, sizeof set.report, "%s.%ld", value, (long)getpid());
    else if (strcmp(name, "report") == 0)
        snprintf(set.report, sizeof set.report, "%s", value);
    else
        fake_wrong("OCTET_FAKE_CUDA: no setting '%s'", name);
}

static void read_settings(void)
{
    char text[1024];
    const char *all = getenv("OCTET_FAKE_CUDA");
    set = (struct settings){.read = true,
                            .devices = 1,
                            .version = 13000,
                            .capability = 89,
                            .shared = 101376,
                            .code = 999,
                            .seed = 1};
    read_memories("1G");
    snprintf(text, sizeof text, "%s", all ? all : "");
    for (char *save, *s = strtok_r(text, ",", &save); s; s = strtok_r(NULL, ",", &save)) {
        char *equal = strchr(s, '=');
        if (equal)
            *equal = 0;
        read_setting(s, equal ? equal + 1 : "");
    }
    for (int i = 0; i < FAKE_DEVICES; i++)
        fake_device_at(i)->memory = set.memory[i];
    fake_order(set.order[0] ? set.order[0] : 'l', set.seed);
}

/* For programs that are linked with it: the n-th call from now fails with this code, and if lasting
 * all after it; 0: none. */
__attribute__((visibility("default"))) void fake_cuda_fail(long n, int code, int lasting);
void fake_cuda_fail(long n, int code, int lasting)
{
    pthread_mutex_lock(&lock);
    set.fail = n > 0 ? n_counted + n : 0;
    set.code = code;
    set.lasting = lasting;
    failed = false;
    pthread_mutex_unlock(&lock);
}

/* Likewise: what has not been given back, in words; 0: nothing. */
__attribute__((visibility("default"))) int fake_cuda_left(char *words, size_t room);
int fake_cuda_left(char *words, size_t room)
{
    pthread_mutex_lock(&lock);
    const int left = fake_left(words, room);
    pthread_mutex_unlock(&lock);
    return left;
}

/* Likewise: how often a call was made so far; NULL: all that count for fail. */
__attribute__((visibility("default"))) long fake_cuda_calls(const char *name);
long fake_cuda_calls(const char *name)
{
    long n = -1;
    pthread_mutex_lock(&lock);
    n = name ? n : n_counted;
    for (int i = 0; name && i < CALLS; i++)
        if (strcmp(call_names[i], name) == 0)
            n = calls[i];
    pthread_mutex_unlock(&lock);
    return n;
}

/* For the tests' cuBLAS: a kernel of its own in a stream; non-zero: its calls fail, with this. */
__attribute__((visibility("default"))) int fake_cuda_blas(void *stream, void (*call)(const void *),
                                                          const void *args, size_t bytes);
int fake_cuda_blas(void *stream, void (*call)(const void *), const void *args, size_t bytes)
{
    pthread_mutex_lock(&lock);
    (void)fake_current();
    if (set.blas == 0 && call)
        fake_call(fake_stream_check(stream), call, args, bytes);
    const int result = set.blas;
    pthread_mutex_unlock(&lock);
    return result;
}

/* Every call begins here; non-zero: the number with which it fails. */
static int begin(enum call c)
{
    pthread_mutex_lock(&lock);
    if (!set.read)
        read_settings();
    n_calls++;
    calls[c]++;
    fake_some_time();
    bool counts = !set.failing[0] || strcmp(set.failing, call_names[c]) == 0;
    n_counted += counts && c != CALL_error_text;
    if (c == CALL_error_text)
        return 0;
    if (failed && set.lasting && !releases(c) && c != CALL_context_push)
        return set.code;
    if (counts && set.fail > 0 && n_counted == set.fail) {
        failed = true;
        return set.code;
    }
    return 0;
}

static int end(int result)
{
    pthread_mutex_unlock(&lock);
    return result;
}

/* For calls that do nothing when they fail. */
#define BEGIN(name)                      \
    do {                                 \
        int begun_ = begin(CALL_##name); \
        if (begun_ != 0)                 \
            return end(begun_);          \
    } while (0)

/* ---- the driver and its devices -------------------------------------------------------------- */

int cuInit(unsigned flags)
{
    BEGIN(init);
    if (flags != 0)
        fake_wrong("cuInit: flags %u", flags);
    return end(set.devices == 0 && set.init == 0 ? OCT_CUDA_NO_DEVICE : set.init);
}

int cuDriverGetVersion(int *version)
{
    BEGIN(driver_version);
    *version = set.version;
    return end(0);
}

int cuGetErrorString(int error, const char **text)
{
    (void)begin(CALL_error_text);
    switch (error) {
    case OCT_CUDA_OUT_OF_MEMORY: *text = "out of memory"; break;
    case OCT_CUDA_NO_DEVICE: *text = "no CUDA-capable device is detected"; break;
    case 999: *text = "unknown error"; break;
    default: *text = "fake error"; break;
    }
    return end(0);
}

int cuDeviceGetCount(int *n)
{
    BEGIN(device_count);
    *n = set.devices;
    return end(0);
}

static void check_device(int device)
{
    if (device < 0 || device >= set.devices)
        fake_wrong("device %d of %d", device, set.devices);
}

int cuDeviceGet(int *device, int i)
{
    BEGIN(device_get);
    check_device(i);
    *device = i;
    return end(0);
}

int cuDeviceGetName(char *name, int room, int device)
{
    BEGIN(device_name);
    check_device(device);
    snprintf(name, (size_t)room, "Fake GPU %d", device);
    return end(0);
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    BEGIN(device_attribute);
    check_device(device);
    switch (attribute) {
    case OCT_CUDA_ATTR_SMS: *value = 4; break;
    case OCT_CUDA_ATTR_SHARED: *value = set.shared; break;
    case OCT_CUDA_ATTR_MAJOR: *value = set.capability / 10; break;
    case OCT_CUDA_ATTR_MINOR: *value = set.capability % 10; break;
    default: *value = 0; break;
    }
    return end(0);
}

int cuDevicePrimaryCtxRetain(oct_cuda_context *context, int device)
{
    BEGIN(context_retain);
    check_device(device);
    fake_device_at(device)->retained++;
    *context = (oct_cuda_context)fake_device_at(device);
    return end(0);
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    int result = begin(CALL_context_release);
    check_device(device);
    if (fake_device_at(device)->retained-- == 0)
        fake_wrong("a context is released that nobody retains");
    if (fake_device_at(device)->retained == 0)
        fake_sweep(fake_device_at(device), failed);
    return end(result);
}

int cuCtxPushCurrent_v2(oct_cuda_context context)
{
    BEGIN(context_push);
    fake_push((fake_device *)context);
    return end(0);
}

int cuCtxPopCurrent_v2(oct_cuda_context *context)
{
    int result = begin(CALL_context_pop);
    *context = (oct_cuda_context)fake_pop();
    return end(result);
}

/* ---- memory ---------------------------------------------------------------------------------- */

int cuMemGetInfo_v2(size_t *left, size_t *total)
{
    BEGIN(memory_info);
    const fake_device *d = fake_current();
    *total = d->memory;
    *left = d->memory - d->used;
    return end(0);
}

int cuMemAlloc_v2(oct_cuda_address *p, size_t bytes)
{
    BEGIN(alloc);
    fake_device *d = fake_current();
    if (bytes == 0)
        return end(1);
    if (bytes > d->memory - d->used)
        return end(OCT_CUDA_OUT_OF_MEMORY);
    *p = fake_alloc(d, bytes);
    return end(0);
}

int cuMemFree_v2(oct_cuda_address p)
{
    int result = begin(CALL_release);
    fake_release(fake_current(), p);
    return end(result);
}

int cuMemHostAlloc(void **p, size_t bytes, unsigned flags)
{
    BEGIN(host_alloc);
    (void)fake_current();
    if (flags > 7)
        fake_wrong("cuMemHostAlloc: flags %u", flags);
    if (set.nopin)
        return end(OCT_CUDA_OUT_OF_MEMORY);
    *p = calloc(1, bytes);
    if (!*p)
        return end(OCT_CUDA_OUT_OF_MEMORY);
    fake_pin(*p, bytes, true);
    return end(0);
}

int cuMemFreeHost(void *p)
{
    int result = begin(CALL_host_release);
    fake_unpin(p);
    free(p);
    return end(result);
}

int cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags)
{
    BEGIN(host_register);
    (void)fake_current();
    if (flags > 15)
        fake_wrong("cuMemHostRegister: flags %u", flags);
    if (set.nopin)
        return end(OCT_CUDA_OUT_OF_MEMORY);
    fake_pin(p, bytes, false);
    return end(0);
}

int cuMemHostUnregister(void *p)
{
    int result = begin(CALL_host_unregister);
    fake_unpin(p);
    return end(result);
}

int cuMemcpyHtoDAsync_v2(oct_cuda_address to, const void *from, size_t bytes,
                         oct_cuda_stream stream)
{
    BEGIN(upload);
    fake_upload(fake_stream_check(stream), to, from, bytes);
    return end(0);
}

int cuMemcpyDtoHAsync_v2(void *to, oct_cuda_address from, size_t bytes, oct_cuda_stream stream)
{
    BEGIN(download);
    fake_download(fake_stream_check(stream), to, from, bytes);
    return end(0);
}

int cuMemsetD8Async(oct_cuda_address p, unsigned char value, size_t bytes, oct_cuda_stream stream)
{
    BEGIN(fill);
    fake_fill(fake_stream_check(stream), p, value, bytes);
    return end(0);
}

/* ---- streams and events ---------------------------------------------------------------------- */

int cuStreamCreate(oct_cuda_stream *stream, unsigned flags)
{
    BEGIN(stream_new);
    if (flags != OCT_CUDA_STREAM_NON_BLOCKING)
        fake_wrong("a stream that waits for the whole device");
    *stream = (oct_cuda_stream)fake_stream_new(fake_current());
    return end(0);
}

int cuStreamDestroy_v2(oct_cuda_stream stream)
{
    int result = begin(CALL_stream_free);
    fake_stream_free(fake_stream_check(stream));
    return end(result);
}

int cuStreamSynchronize(oct_cuda_stream stream)
{
    BEGIN(stream_sync);
    fake_stream_finish(fake_stream_check(stream));
    return end(0);
}

int cuStreamWaitEvent(oct_cuda_stream stream, oct_cuda_event event, unsigned flags)
{
    BEGIN(stream_wait);
    if (flags != 0)
        fake_wrong("cuStreamWaitEvent: flags %u", flags);
    fake_stream_wait(fake_stream_check(stream), (fake_event *)event);
    return end(0);
}

int cuStreamWaitValue32_v2(oct_cuda_stream stream, oct_cuda_address at, uint32_t value,
                           unsigned flags)
{
    BEGIN(stream_wait_value);
    if (flags != OCT_CUDA_WAIT_REACHED)
        fake_wrong("cuStreamWaitValue32: flags %u", flags);
    fake_stream_wait_value(fake_stream_check(stream), at, value);
    return end(0);
}

int cuEventCreate(oct_cuda_event *event, unsigned flags)
{
    BEGIN(event_new);
    (void)flags;
    *event = (oct_cuda_event)fake_event_new(fake_current());
    return end(0);
}

int cuEventDestroy_v2(oct_cuda_event event)
{
    int result = begin(CALL_event_free);
    fake_event_free((fake_event *)event);
    return end(result);
}

int cuEventRecord(oct_cuda_event event, oct_cuda_stream stream)
{
    BEGIN(event_record);
    fake_event_record((fake_event *)event, fake_stream_check(stream));
    return end(0);
}

int cuEventSynchronize(oct_cuda_event event)
{
    BEGIN(event_sync);
    fake_event_finish((fake_event *)event);
    return end(0);
}

int cuEventElapsedTime(float *milliseconds, oct_cuda_event from, oct_cuda_event to)
{
    BEGIN(event_elapsed);
    *milliseconds = fake_event_elapsed((fake_event *)from, (fake_event *)to);
    if (set.elapsed > 0)
        *milliseconds = set.elapsed;
    return end(0);
}

/* ---- modules --------------------------------------------------------------------------------- */

int cuModuleLoadData(oct_cuda_module *module, const void *image)
{
    static const unsigned char fatbin[4] = {0x50, 0xed, 0x55, 0xba};
    BEGIN(module_load);
    if (memcmp(image, fatbin, sizeof fatbin) != 0)
        return end(OCT_CUDA_INVALID_IMAGE);
    *module = (oct_cuda_module)fake_module_new(fake_current());
    return end(0);
}

int cuModuleUnload(oct_cuda_module module)
{
    int result = begin(CALL_module_unload);
    fake_module_free((fake_module *)module);
    return end(result);
}

int cuModuleGetFunction(oct_cuda_function *function, oct_cuda_module module, const char *name)
{
    BEGIN(module_function);
    fake_module_check((fake_module *)module);
    const oct_emulated_kernel *k = oct_emulated_find(name);
    if (!k)
        return end(500);
    /* handles are never written through */
    memcpy(function, &k, sizeof k);
    return end(0);
}

int cuFuncSetAttribute(oct_cuda_function function, int attribute, int value)
{
    BEGIN(function_set);
    if (!function || attribute != OCT_CUDA_FUNC_MAX_DYNAMIC_SHARED || value < 0)
        fake_wrong("cuFuncSetAttribute: attribute %d, value %d", attribute, value);
    return end(value > set.shared ? 1 : 0);
}

int cuLaunchKernel(oct_cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   oct_cuda_stream stream, void **arguments, void **extra)
{
    const unsigned grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
    BEGIN(launch);
    const oct_emulated_kernel *k;
    memcpy(&k, &function, sizeof k);
    if (extra || (uint64_t)block_x * block_y * block_z > 1024 ||
        (uint64_t)grid_x * grid_y * grid_z == 0 || (uint64_t)block_x * block_y * block_z == 0 ||
        grid_y > 65535 || grid_z > 65535 || shared_bytes > (unsigned)set.shared)
        return end(1);
    fake_launch(fake_stream_check(stream), k, grid, block, shared_bytes, arguments);
    return end(0);
}

/* ---- the end --------------------------------------------------------------------------------- */

__attribute__((destructor)) static void report(void)
{
    char left[256];
    bool leaks = fake_left(left, sizeof left);
    FILE *f = set.report[0] ? fopen(set.report, "w") : NULL;
    if (f) {
        fprintf(f, "calls %ld\ncounted %ld\nfailed %d\nleft %s\n", n_calls, n_counted, failed,
                leaks ? left : "nothing");
        for (int i = 0; i < CALLS; i++)
            if (calls[i])
                fprintf(f, "%s %ld\n", call_names[i], calls[i]);
        fclose(f);
    }
    if (leaks) {
        fprintf(stderr, "fake CUDA: left: %s\n", left);
        _exit(99);
    }
}
