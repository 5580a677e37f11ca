/* status.h: how Octet reports errors. Every function that can fail returns an oct_status and fills
 * an oct_error that the caller owns; there are no globals, so errors are as thread-safe as their
 * owner. The library never exits, aborts or prints. */
#ifndef OCT_STATUS_H
#define OCT_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers are stable. */
typedef enum oct_status {
    OCT_OK = 0,
    OCT_ERR_MEMORY = 1,      /* an allocation or mapping was refused, or would not fit */
    OCT_ERR_IO = 2,          /* the system refused to read, write, open, rename ... */
    OCT_ERR_FORMAT = 3,      /* a file does not say what its format promises */
    OCT_ERR_SHAPE = 4,       /* sizes contradict each other */
    OCT_ERR_UNSUPPORTED = 5, /* well-formed, but nothing Octet can do */
    OCT_ERR_ARG = 6,         /* the caller asked for something impossible */
    OCT_ERR_COMM = 7,        /* another rank failed or disagrees */
    OCT_ERR_DEVICE = 8,      /* an accelerator failed */
    OCT_ERR_CANCELLED = 9,   /* the caller's cancel flag was raised */
    OCT_ERR_NUMERIC = 10,    /* NaN or Inf where a number was due */
    OCT_ERR_FULL = 11        /* too little is left of a pool; less, or later, may fit */
} oct_status;

enum { OCT_ERROR_TEXT = 512 };

typedef struct oct_error {
    oct_status status;
    char text[OCT_ERROR_TEXT]; /* one line, no newline: what, expected, found */
} oct_error;

#if defined(__GNUC__)
#define OCT_MUST_CHECK __attribute__((warn_unused_result))
#define OCT_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define OCT_API __attribute__((visibility("default")))
#else
#define OCT_MUST_CHECK
#define OCT_PRINTF(f, a)
#define OCT_API
#endif

/* Fills *err (may be NULL) and returns status. The first error stays: an err that already holds one
 * is left as it is. Control characters in the text are replaced by '?'. */
OCT_API oct_status oct_fail(oct_error *err, oct_status status, const char *fmt, ...)
    OCT_PRINTF(3, 4);

#ifdef __clang_analyzer__ /* which does not look into other files: it returns its argument */
#define oct_fail(err, status, ...) ((void)oct_fail(err, status, __VA_ARGS__), status)
#endif

/* A short name such as "format", for logs. */
OCT_API const char *oct_status_name(oct_status s);

#define OCT_TRY(expr)                 \
    do {                              \
        oct_status oct_try_ = (expr); \
        if (oct_try_ != OCT_OK)       \
            return oct_try_;          \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
