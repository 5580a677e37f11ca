/* memory.h: how much memory this process may still take, and whether a session fits into it. */
#ifndef OCT_MEMORY_H
#define OCT_MEMORY_H

#include <stdint.h>

#include "cli.h"

/* Bytes. UINT64_MAX: no limit, or it cannot be read. */
typedef struct oct_memory {
    uint64_t system; /* MemAvailable: free memory and what the kernel would give up for it */
    uint64_t cgroup; /* tightest limit on the way from the process's control groups (v1 and v2) to
                        their roots, minus what is in use there and cannot be reclaimed */
} oct_memory;

/* root is put in front of /proc and of mount points: "" in life, a made-up tree in tests. */
void oct_memory_have(const char *root, oct_memory *m);

/* Options that every command which runs a model understands. */
typedef struct oct_cli_session {
    const char *model;
    int64_t n_ctx, n_threads, chunk; /* 0: not given */
    int kv;                          /* oct_kv */
    bool blas, dry_run, force;
} oct_cli_session;

/* Rows for an oct_opt table; s is an oct_cli_session. */
#define OCT_CLI_MODEL_ROW(s) \
    {.letter = 'm', .name = "model", .kind = OCT_OPT_TEXT, .value = &(s).model, .arg = "FILE", \
     .help = "model file, made by `octet convert` (required)"}
#define OCT_CLI_CTX_ROW(s, text) \
    {.letter = 'c', .name = "ctx-size", .kind = OCT_OPT_INT, .value = &(s).n_ctx, .arg = "N", \
     .help = text, .lo = 1, .hi = 2147483647}
#define OCT_CLI_SESSION_ROWS(s) \
    {.letter = 't', .name = "threads", .kind = OCT_OPT_INT, .value = &(s).n_threads, .arg = "N", \
     .help = "threads [one per physical core that may be used]", .lo = 1, .hi = 1024}, \
    {.name = "chunk", .kind = OCT_OPT_INT, .value = &(s).chunk, .arg = "N", \
     .help = "prompt tokens evaluated together [512]; changes speed and\n" \
             "memory, never the result", .lo = 1, .hi = 16384}, \
    {.name = "kv", .kind = OCT_OPT_CHOICE, .value = &(s).kv, .arg = "f16|bf16|f32", \
     .help = "type of the KV cache [f16]"}, \
    {.name = "blas", .kind = OCT_OPT_FLAG, .value = &(s).blas, \
     .help = "f32 products through OpenBLAS: faster prompts, but results\n" \
             "are no longer the same bits for every chunk size"}, \
    {.name = "dry-run", .kind = OCT_OPT_FLAG, .value = &(s).dry_run, \
     .help = "print the memory that is needed and there, load nothing"}, \
    {.name = "force", .kind = OCT_OPT_FLAG, .value = &(s).force, \
     .help = "go on although the weights do not fit into memory: they are\n" \
             "then read from disk again and again"}

/* Session parameters from options. */
void oct_cli_session_params(const oct_cli_session *o, int64_t n_ctx, int64_t n_seqs,
                            oct_session_params *p);

/* Compares need and have, and warns of too many threads. extra: bytes that the command itself takes
 * (logits). Returns -1 to go on, or the exit code: after the table of --dry-run on stdout, or after
 * a refusal with both numbers. */
int oct_cli_fits(const oct_cli_session *o, const oct_model *m, const oct_session_params *p,
                 uint64_t extra);

/* Opens o->model, or reports what is wrong and returns an exit code; -1: *m is open. */
int oct_cli_open(const oct_cli_session *o, const char *command, bool tokenizer, oct_model **m);

#endif
