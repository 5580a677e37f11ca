/* cuda_driver.h: NVIDIA's driver, found when the program runs. Nothing of CUDA is needed to build
 * or to start. Thread-safe. */
#ifndef OCT_CUDA_DRIVER_H
#define OCT_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

typedef uint64_t oct_cuda_address; /* of device memory; 64-bit systems: a pointer fits */
typedef struct oct_cuda_context_of *oct_cuda_context;
typedef struct oct_cuda_stream_of *oct_cuda_stream;
typedef struct oct_cuda_event_of *oct_cuda_event;
typedef struct oct_cuda_module_of *oct_cuda_module;
typedef struct oct_cuda_function_of *oct_cuda_function;

/* The driver's numbers that are used. */
enum {
    OCT_CUDA_OUT_OF_MEMORY = 2,
    OCT_CUDA_NO_DEVICE = 100,
    OCT_CUDA_INVALID_IMAGE = 200,
    OCT_CUDA_NO_BINARY = 209,
    OCT_CUDA_PTX_VERSION = 222,

    OCT_CUDA_ATTR_SMS = 16,
    OCT_CUDA_ATTR_INTEGRATED = 18,
    OCT_CUDA_ATTR_MAJOR = 75,
    OCT_CUDA_ATTR_MINOR = 76,
    OCT_CUDA_ATTR_SHARED = 97, /* of a block at most */

    OCT_CUDA_FUNC_MAX_DYNAMIC_SHARED = 8,
    OCT_CUDA_STREAM_NON_BLOCKING = 1,
    OCT_CUDA_EVENT_NO_TIMING = 2,
    OCT_CUDA_HOST_PORTABLE = 1,
    OCT_CUDA_HOST_MAPPED = 2,
    OCT_CUDA_WAIT_REACHED = 0 /* until the word is the value or beyond it */
};

typedef struct oct_cuda_api {
#define OCT_CUDA_CALL(name, symbol, arguments) int(*name) arguments;
#include "cuda_api.inc"
} oct_cuda_api;

/* The driver, loaded and started by the first call and never unloaded. NULL: *why (static) says in
 * one line what is missing: a driver, a device, a call that is used, or a newer one. *absent (may
 * be NULL): there is no driver or no device, which is nothing to warn of. */
const oct_cuda_api *oct_cuda_driver(const char **why, bool *absent);

/* OCT_OK for 0. Else OCT_ERR_MEMORY where memory is out, OCT_ERR_DEVICE otherwise, with what and
 * the driver's text. */
OCT_MUST_CHECK oct_status oct_cuda_status(const oct_cuda_api *api, int result, const char *what,
                                          oct_error *err);

/* The kernels, as nvcc made them: *bytes, 0 if it was not found when Octet was built. */
const void *oct_cuda_image(size_t *bytes);
/* CUDA's version that they need of a driver, as 1000 major + 10 minor. */
int oct_cuda_image_version(void);

#endif
