/* cli_session.h: what commands that run a model share: options, opening it, whether a session
 * fits. */
#ifndef OCT_CLI_SESSION_H
#define OCT_CLI_SESSION_H

#include <stdint.h>

#include <octet/machine.h>

#include "cli.h"
#include "cli_gpu.h"

/* Options that every command which runs a model understands. */
typedef struct oct_cli_session {
    const char *model;
    int64_t n_ctx, n_threads, chunk; /* 0: not given */
    int kv;                          /* oct_kv_type */
    int act;                         /* oct_act */
    bool blas, dry_run, force, check;
    int shard; /* OCT_CLI_SHARD_... */
    bool replicate_attention;
    int weights;     /* OCT_CLI_WEIGHTS_... */
    const char *gpu; /* see OCT_CLI_GPU_ROW */
    int gpu_stream;  /* 0: auto, 1: off */
} oct_cli_session;

enum { OCT_CLI_SHARD_AUTO, OCT_CLI_SHARD_SLICE, OCT_CLI_SHARD_EXPERT };
enum { OCT_CLI_WEIGHTS_AUTO, OCT_CLI_WEIGHTS_MAPPED, OCT_CLI_WEIGHTS_OWNED };

/* Rows for an oct_opt table; s is an oct_cli_session. */
#define OCT_CLI_MODEL_ROW(s) \
    OCT_ROW_TEXT('m', "model", &(s).model, "FILE", "model file, made by `octet convert` (required)")
#define OCT_CLI_CTX_ROW(s, help) OCT_ROW_INT('c', "ctx-size", &(s).n_ctx, 1, 2147483647, "N", help)
#define OCT_CLI_SESSION_ROWS(s)                                                         \
    OCT_ROW_INT('t', "threads", &(s).n_threads, 1, OCT_MAX_THREADS, "N",                \
                "threads [one per physical core that may be used]"),                    \
        OCT_ROW_INT(0, "chunk", &(s).chunk, 1, 16384, "N",                              \
                    "prompt tokens evaluated together [512; with AMX 2048];\n"          \
                    "changes speed and memory, never the result"),                      \
        OCT_ROW_CHOICE(0, "kv", &(s).kv, "f16|bf16|f32", "type of the KV cache [f16]"), \
        OCT_ROW_CHOICE(0, "act", &(s).act, "i16|i8",                                    \
                       "activations in 16 bits, or in 8: prompts up to twice as\n"      \
                       "fast, and less exact [i16]"),                                   \
        OCT_ROW_FLAG(0, "blas", &(s).blas,                                              \
                     "f32 products through OpenBLAS, cuBLAS: faster, but results\n"     \
                     "are no longer the same bits for every chunk size"),               \
        OCT_ROW_CHOICE(0, "weights", &(s).weights, "auto|mapped|owned",                 \
                       "mapped: used from the file's pages, nothing is loaded;\n"       \
                       "owned: a copy in huge pages, every slice on its NUMA node\n"    \
                       "[mapped on one node, owned on several]"),                       \
        OCT_CLI_GPU_ROW(&(s).gpu), OCT_CLI_GPU_STREAM_ROW(&(s).gpu_stream),             \
        OCT_ROW_CHOICE(0, "shard", &(s).shard, "auto|slice|expert",                     \
                       "under mpirun: what a rank holds, its slices of every matrix\n"  \
                       "or whole experts [auto: what is predicted to be faster]"),      \
        OCT_ROW_FLAG(0, "replicate-attention", &(s).replicate_attention,                \
                     "and all of attention: half the exchanges, for slow networks\n"    \
                     "[auto takes it where it is predicted to be faster]"),             \
        OCT_ROW_FLAG(0, "dry-run", &(s).dry_run,                                        \
                     "print the memory that is needed and there, load nothing"),        \
        OCT_ROW_FLAG(0, "force", &(s).force,                                            \
                     "go on although the weights do not fit into memory: they are\n"    \
                     "then read from disk again and again"),                            \
        OCT_ROW_FLAG(0, "check", &(s).check,                                            \
                     "read the whole file first and compare it with its checksums;\n"   \
                     "ranks read theirs")

oct_shard_layout oct_cli_shard(bool by_expert, bool replicate_attention);
/* The layouts that --shard and --replicate-attention allow: bit k for oct_shard_layout k. */
unsigned oct_cli_shards(const oct_cli_session *o);

/* Session parameters from options. */
void oct_cli_session_params(const oct_cli_session *o, int64_t n_ctx, int64_t n_seqs,
                            oct_session_params *p);

/* Compares need and have, and warns of too many threads. extra: bytes that the command itself
 * takes (logits). Returns -1 to go on, or the exit code: after the table of --dry-run on stdout,
 * or after a refusal with both numbers. */
int oct_cli_fits(const oct_cli_session *o, const oct_model *m, const oct_session_params *p,
                 uint64_t extra);

/* Whether a text of n bytes is so long that it cannot fit into the model's context, whatever its
 * tokens are: to be asked before it is tokenised, which takes some 200 bytes of memory for one of
 * text. */
bool oct_cli_too_long(const oct_model *m, size_t n);

/* oct_verify, with progress. */
OCT_MUST_CHECK oct_status oct_cli_verify(const char *path, oct_error *err);

/* Opens o->model, or reports what is wrong and returns an exit code; -1: *m is open. */
int oct_cli_open(const oct_cli_session *o, const char *command, bool tokenizer, oct_model **m);

#endif
