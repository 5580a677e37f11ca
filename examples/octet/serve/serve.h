/* serve.h: what the parts of `octet serve` share. Threads:
 *
 *     loop      sockets, HTTP, answers: everything that is not said to belong to another
 *     engine    the program's main thread: session and scheduler, step by step
 *     worker    bodies to requests: JSON, templates, tokenizer
 *
 * The loop posts to the two others, and they to the loop, which an eventfd wakes. */
#ifndef OCT_SERVE_H
#define OCT_SERVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <octet/octet.h>

/* What does not change while the server runs. */
typedef struct oct_serve_config {
    const oct_model *model;
    const char *name;     /* of the model, for clients */
    const char *template; /* of chats; NULL: there is none */
    const char *host, *unix_path, *allow_hosts, *allow_origins;
    char *key; /* NULL: none is asked for */
    int port;
    bool open;      /* other addresses than loopback, without a key */
    bool log_texts; /* prompts and answers go to the log */
    int64_t n_ctx, n_parallel, n_queue, body_max, connections_max;
    double keep_alive, timeout, drain; /* seconds */
    char fingerprint[96];              /* what the bytes of an answer depend on */
    int64_t started;                   /* seconds of the epoch */
    int64_t n_ids_bytes_max;           /* bytes of the longest text that can fit the context */
} oct_serve_config;

/* Why a request is refused or failed, as OpenAI's clients read it. */
typedef struct oct_serve_fault {
    int status;              /* of HTTP; 0: none */
    const char *type, *code; /* static; code may be NULL */
    char param[64];          /* "": none */
    char message[512];
    int retry_after; /* seconds; 0: not said; -1: it is no use */
} oct_serve_fault;

/* Fills *f and returns false, for the end of a function that parses. */
bool oct_serve_refuse(oct_serve_fault *f, int status, const char *code, const char *param,
                      const char *fmt, ...) OCT_PRINTF(5, 6);

#endif
