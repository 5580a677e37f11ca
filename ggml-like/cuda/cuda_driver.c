#include "cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char library[] = "libcuda.so.1";

static struct {
    oct_cuda_api api;
    bool usable, absent;
    char why[OCT_ERROR_TEXT];
} driver;

OCT_PRINTF(1, 2) static void unusable(const char *fmt, ...)
{
    char line[OCT_ERROR_TEXT];
    oct_error e = {0};
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    (void)oct_fail(&e, OCT_ERR_DEVICE, "%s", line); /* one line, whatever the loader says */
    memcpy(driver.why, e.text, sizeof driver.why);
}

static const char *text_of(int result)
{
    const char *text = NULL;
    if (driver.api.error_text(result, &text) != 0 || !text)
        text = "an error without a text";
    return text;
}

/* Every call that is used, or the name of one that the driver lacks. */
static const char *missing_call(void *lib)
{
#define OCT_CUDA_CALL(name, symbol, arguments)        \
    *(void **)&driver.api.name = dlsym(lib, #symbol); \
    if (!driver.api.name)                             \
        return #symbol;
#include "cuda_api.inc"
    return NULL;
}

/* A driver runs what is made for the same major version of CUDA or an earlier one. */
static bool is_new_enough(void)
{
    char have[24], need[24];
    int version = 0, want = oct_cuda_image_version();
    int result = driver.api.driver_version(&version);
    if (result != 0) {
        unusable("NVIDIA's driver does not tell its version: %s", text_of(result));
        return false;
    }
    if (version / 1000 >= want / 1000)
        return true;
    snprintf(have, sizeof have, "%d.%d", version / 1000, version % 1000 / 10);
    snprintf(need, sizeof need, "%d.0", want / 1000);
    unusable("NVIDIA's driver is of CUDA %s, expected %s or later", have, need);
    return false;
}

static void load(void)
{
    size_t bytes;
    (void)oct_cuda_image(&bytes);
    if (bytes == 0) {
        driver.absent = true;
        unusable("this build has no kernels for GPUs: nvcc was not found");
        return;
    }
    void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        const char *text = dlerror();
        driver.absent = !text || strstr(text, "No such file") != NULL;
        if (driver.absent)
            unusable("there is no driver of NVIDIA (%s)", library);
        else
            unusable("NVIDIA's driver: %s", text);
        return;
    }
    const char *lacks = missing_call(lib);
    if (lacks) {
        unusable("NVIDIA's driver (%s) lacks %s", library, lacks);
        return;
    }
    int result = driver.api.init(0);
    if (result != 0) {
        driver.absent = result == OCT_CUDA_NO_DEVICE;
        unusable("NVIDIA's driver does not start: %s", text_of(result));
        return;
    }
    driver.usable = is_new_enough();
}

const oct_cuda_api *oct_cuda_driver(const char **why, bool *absent)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    *why = driver.usable ? NULL : driver.why;
    if (absent)
        *absent = driver.absent;
    return driver.usable ? &driver.api : NULL;
}

oct_status oct_cuda_status(const oct_cuda_api *api, int result, const char *what, oct_error *err)
{
    const char *text = NULL;
    if (result == 0)
        return OCT_OK;
    if (api->error_text(result, &text) != 0 || !text)
        text = "an error without a text";
    return oct_fail(err, result == OCT_CUDA_OUT_OF_MEMORY ? OCT_ERR_MEMORY : OCT_ERR_DEVICE,
                    "%s: %s (%d)", what, text, result);
}
