/* octet.h: the public interface of liboctet, a runtime for Grok-1-class mixture-of-experts models.
 * Beside it: scheduler.h, many requests; machine.h, what there is to run on; job.h, ranks;
 * measure.h, speed; inspect.h, what a file holds; convert.h, where files come from; utf8.h, text.
 *
 *     oct_model    an open model file: immutable, mapped, shared by any number of sessions
 *     oct_session  KV caches, threads and buffers: one thread of the caller at a time
 *     oct_sampler  parameters and random state, owned by the caller
 *
 * Functions that can fail return an oct_status and fill an oct_error. Nothing is printed; nothing
 * ends the process. Strings are UTF-8. Token ids are int32. */
#ifndef OCT_OCTET_H
#define OCT_OCTET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu.h"
#include "status.h"
#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OCT_VERSION_TEXT_MAX 32
OCT_API const char *oct_version(void); /* "0.1.0" */

/* ---- model ---------------------------------------------------------------------------------- */

typedef struct oct_model oct_model;

typedef struct oct_model_info {
    int64_t n_layers, n_vocab, n_ctx, d_model, n_q_heads, n_kv_heads, head_dim, d_ff;
    int64_t n_experts, n_experts_used; /* 1, 1 for a dense model */
    int64_t n_slices;
    float embedding_scale, output_scale, attn_scale, attn_cap, rope_base, norm_eps;
    int32_t pad_id, eos_id; /* -1: none */
    bool has_tokenizer;
    uint64_t file_bytes, weight_bytes; /* of the file opened; of the whole model */
    uint64_t active_bytes;             /* weight bytes read for one decoded token */
    uint64_t fingerprint;     /* checksum of the header: the same for identical files and parts */
    int format;               /* of the file, see convert/FORMAT.md */
    int part_size, part_rank; /* of a file made by `octet slice`: it holds the part of one of so
                                 many ranks; 0: the whole model */
    oct_shard_layout part_by;
} oct_model_info;

/* Maps a file written by `octet convert`, or a part of one by `octet slice`, which only sessions of
 * its rank can use. Reads and checks its header only; weights are paged in when first used. */
OCT_API OCT_MUST_CHECK oct_status oct_model_open(const char *path, oct_model **out, oct_error *err);
OCT_API void oct_model_close(oct_model *m); /* no session may be left; NULL is fine */
OCT_API const oct_model_info *oct_model_get_info(const oct_model *m);

/* Where the weights lie for sessions: in the mapped file, unless there is one of these. Made of a
 * model, which stays as it is, for any number of sessions; freed after them and before it. */
typedef struct oct_placement oct_placement;

/* Copies the weights into memory of the process: huge pages, every slice on the NUMA node whose
 * threads read it (bound before it is first touched). One pass over the file. */
typedef struct oct_own_params {
    int n_threads;                     /* as in oct_session_params; sessions should use the same */
    const struct oct_machine *machine; /* as there */
    /* on the calling thread; may be NULL */
    void (*progress)(void *ctx, uint64_t done, uint64_t total);
    void *progress_ctx;
    const volatile int *cancel; /* as there */
} oct_own_params;
typedef struct oct_own_report {
    uint64_t bytes;
    int n_domains;                      /* nodes that have slices of their own */
    int64_t pages_sampled, pages_local; /* of a sample: where they should be; 0 on one node */
    int bind_errno;                     /* 0, or why the system refused to bind memory: a warning */
} oct_own_report;
OCT_API OCT_MUST_CHECK oct_status oct_placement_own(const oct_model *m, const oct_own_params *p,
                                                    oct_placement **out, oct_own_report *report,
                                                    oct_error *err);
OCT_API void oct_placement_free(oct_placement *p); /* no session may be left; NULL is fine */

/* Unmaps what other ranks than `rank` of `size` compute. This process maps and can touch its own
 * part only; what needs more is refused from now on. There may be sessions and placements of this
 * part already, of no other. OCT_ERR_ARG: such ranks cannot share the model, or there are such
 * sessions; OCT_ERR_UNSUPPORTED:
 * the model holds, or keeps, another part. One thread, with no other using the model. */
OCT_API OCT_MUST_CHECK oct_status oct_model_keep_part(oct_model *m, int rank, int size,
                                                      oct_shard_layout by, oct_error *err);

/* ---- tokenizer ------------------------------------------------------------------------------ */

/* Text to ids as SentencePiece gives them (no BOS is added). n bytes of UTF-8; invalid bytes are an
 * error that names the offset. *ids is malloc'd; the caller frees it with free(). */
OCT_API OCT_MUST_CHECK oct_status oct_encode(const oct_model *m, const char *text, size_t n,
                                             int32_t **ids, size_t *n_ids, oct_error *err);
/* Ids to text as SentencePiece gives it (the dummy prefix is dropped). *text is malloc'd and
 * NUL-terminated; *n its length. */
OCT_API OCT_MUST_CHECK oct_status oct_decode(const oct_model *m, const int32_t *ids, size_t n_ids,
                                             char **text, size_t *n, oct_error *err);
/* The bytes one token adds inside a text (a space for U+2581, one byte for a byte piece, nothing
 * for a control piece). Returns a pointer owned by the model, *n its length; NULL for an id out of
 * range or a model without tokenizer. A character may be spread over several tokens. */
OCT_API const char *oct_token_bytes(const oct_model *m, int32_t id, size_t *n);

/* ---- session -------------------------------------------------------------------------------- */

typedef struct oct_session oct_session;

/* What activations are rounded to before integer weights multiply them, prompts and generated
 * tokens alike: 16 bits in blocks of 512, the default; or 8 bits in blocks of 256: prompts up to
 * twice as fast, at the loss that the README states. */
typedef enum oct_act { OCT_ACT_I16, OCT_ACT_I8 } oct_act;

typedef struct oct_session_params {
    int64_t n_ctx;  /* positions per sequence; 0: the model's */
    int64_t n_seqs; /* sequences; 0: 1 */
    int64_t chunk; /* tokens evaluated together at most, the same number on all ranks; 0: as many as
                       keep the machine's arithmetic busy, see oct_session_default_chunk; 512 on
                       ranks, whose machines may differ */
    oct_act act;
    int n_threads; /* 0: one per physical core that this process may use */
    oct_kv_type kv;
    uint64_t kv_bytes;      /* size of the pool of keys and values, see "pages" below; 0: enough for
                          n_seqs sequences of n_ctx positions. The same number on all ranks, of
                          each rank's own memory */
    struct oct_comm *comm;  /* NULL: one process; else of oct_comm_mpi_open, borrowed */
    oct_shard_layout shard; /* how ranks divide the model */
    bool no_bind; /* threads may move; else, while they work, as many as there are cores are bound
                     to one each, and fewer to their NUMA node's, unless there is a CPU quota */
    /* Of machine.h, read while a session is made or estimated: work is divided as there. NULL: this
     * machine, looked at then. */
    const struct oct_machine *machine;
    const char *isa; /* a kernel row, see `octet info`; NULL: $OCTET_ISA, else the best */
    /* GPUs compute as much as fits their budgets; it is decided before anything is loaded, and
     * changes no bit of any result. Read while a session is made or estimated. NULL: none. They are
     * not used with the kernels "ref", whose bits are others. */
    const oct_gpus *gpus;
    /* Experts of the host are not brought to GPUs. Otherwise they are, for chunks that are long
     * enough, as many of a layer as make host and GPU end together: what a GPU's link is known to
     * move (oct_gpu.link), and what the host's threads do, which is measured. */
    bool no_streaming;
    const oct_placement *placement; /* borrowed; NULL: the mapped file */
    bool blas; /* f32 products of many rows through OpenBLAS or cuBLAS: faster, other bits */
    /* When it turns non-zero, oct_eval returns OCT_ERR_CANCELLED soon. Read atomically; written by
     * a signal handler, or by another thread with an atomic store. NULL: never. */
    const volatile int *cancel;
} oct_session_params;

/* params.chunk where it is 0 and the machine decides, $OCTET_ISA included: 512, or 2048 with
 * AMX, which is so fast that with fewer tokens it waits for the weights. Thread-safe. */
OCT_API int64_t oct_session_default_chunk(void);

/* What a session takes, computed by the code that allocates it. Bytes. With a machine given, no
 * system call is made and no memory but the stack is used. */
typedef struct oct_session_need {
    uint64_t weights; /* of the mapped file; page cache, reclaimable */
    uint64_t kv;      /* the pool; touched as its pages are first used */
    uint64_t buffers; /* activations, scratch */
    int64_t chunk;    /* tokens evaluated together at most */
    int n_threads;
    int n_domains;           /* NUMA nodes that divide the slices among them, see the README */
    const char *isa;         /* the row that would be chosen */
    const char *threads_why; /* what decided n_threads: "cores", "affinity", "cgroup quota",
                                "asked", "small model" */
    int n_gpus;              /* that something is placed on; what is above is of the host alone */
    oct_gpu_share gpu[OCT_MAX_GPUS];
} oct_session_need;
OCT_API OCT_MUST_CHECK oct_status oct_session_estimate(const oct_model *m,
                                                       const oct_session_params *p,
                                                       oct_session_need *need, oct_error *err);

/* Takes memory and threads, which a process that forks off does not get: there the session can
 * only be freed. m, and what p borrows, outlive the session; p itself is read here. On ranks every
 * rank makes one, with the same parameters but for what is of its own machine; nothing is
 * exchanged yet. *out is NULL after an error: OCT_ERR_ARG for a number out of range,
 * OCT_ERR_UNSUPPORTED for ranks that cannot share the model or a part that this file lacks,
 * OCT_ERR_MEMORY. */
OCT_API OCT_MUST_CHECK oct_status oct_session_new(const oct_model *m, const oct_session_params *p,
                                                  oct_session **out, oct_error *err);
/* What was placed on GPUs: returns how many have something. *why (of the session; may be NULL): "",
 * or in one line why it is less than was planned: then a GPU had less memory than it said, or did
 * not work. */
OCT_API int oct_session_get_gpus(const oct_session *s, oct_gpu_share out[OCT_MAX_GPUS],
                                 const char **why);
/* Tokens of a chunk from which experts of the host are streamed to GPUs, by what was measured when
 * the session was made; INT64_MAX: never. */
OCT_API int64_t oct_session_stream_rows(const oct_session *s);
/* NULL is fine. On rank 0 it ends oct_session_serve of the others. */
OCT_API void oct_session_free(oct_session *s);
/* As oct_session_free, but the other ranks of params.comm are told nothing: for a job that has
 * failed. */
OCT_API void oct_session_abandon(oct_session *s);

/* A batch appends tokens to sequences: token[i] goes to sequence seq[i] at its next position. Any
 * number of tokens; they are evaluated in chunks. */
typedef struct oct_batch {
    int64_t n;
    const int32_t *token; /* [n] 0..n_vocab-1, not the pad id */
    const int32_t *seq;   /* [n] 0..n_seqs-1; NULL: all 0 */
    const uint8_t *want;  /* [n] non-zero: logits wanted after this token; NULL: the last only */
} oct_batch;

/* logits: f32[number wanted][n_vocab], in batch order, the caller's. Errors are found before
 * anything is computed, OCT_ERR_FULL (the pool lacks pages) among them, except OCT_ERR_CANCELLED,
 * OCT_ERR_NUMERIC (a NaN or Inf logit), OCT_ERR_COMM and OCT_ERR_DEVICE: then the sequences hold
 * what was appended by the chunks that finished. The bits of a row depend on the sequence's tokens
 * alone: not on threads, chunks, or other sequences in the batch. */
OCT_API OCT_MUST_CHECK oct_status oct_eval(oct_session *s, const oct_batch *b, float *logits,
                                           oct_error *err);

/* On ranks other than 0 (see params.comm; OCT_ERR_ARG on rank 0): does what rank 0's calls on its
 * session ask for, until that session is freed. An error breaks the communicator: this rank cannot
 * go on with the others. */
OCT_API OCT_MUST_CHECK oct_status oct_session_serve(oct_session *s, oct_error *err);

/* Pages. Keys and values lie in pages of 128 positions, taken from one pool when a sequence reaches
 * them. Sequences share pages that hold the same tokens from the beginning on; where they part, the
 * unfinished last page is copied when the next of them appends to it. Full pages that no sequence
 * holds any more are kept for oct_session_reuse until the pool needs them, those unused for longest
 * first. None of this changes a bit of any result. */
OCT_API int64_t oct_session_pos(const oct_session *s, int32_t seq); /* tokens held */
/* Forgets all after the first n tokens and returns the pages behind them; 0 ends the sequence. Does
 * nothing if it holds no more than n, or seq or n is out of range. A rank that cannot be reached is
 * an error of the next oct_eval. */
OCT_API void oct_session_truncate(oct_session *s, int32_t seq, int64_t n);
/* The empty sequence `to` gets the tokens of `from`. Copies no keys and values, takes no pages.
 * OCT_ERR_ARG: `to` is not empty, or one of them is out of range. */
OCT_API OCT_MUST_CHECK oct_status oct_session_fork(oct_session *s, int32_t from, int32_t to,
                                                   oct_error *err);
/* The empty sequence seq gets the beginning of ids[n], n >= 1, as far as full pages hold it, but
 * never all of it: the last token is left for oct_eval, whose logits are wanted. *held: tokens that
 * seq has now, a multiple of 128, often 0. */
OCT_API OCT_MUST_CHECK oct_status oct_session_reuse(oct_session *s, int32_t seq, const int32_t *ids,
                                                    int64_t n, int64_t *held, oct_error *err);

typedef struct oct_kv_usage {
    int64_t pages;          /* of the pool */
    int64_t used, cached;   /* held by sequences; by none, but kept for reuse. The rest is free */
    int64_t page_positions; /* 128 */
    uint64_t page_bytes;    /* of one page on this rank, in all layers */
    uint64_t copied;        /* pages copied so far */
} oct_kv_usage;
OCT_API void oct_session_get_kv(const oct_session *s, oct_kv_usage *usage);

/* Full pages for a later process, in a file of `folder` that is named after the model's fingerprint
 * (and, of several, the rank, which writes to its own disk): no larger than the pool, readable by
 * its owner alone, since it tells what was asked. What its bits depend on stands in it, with
 * checksums: build of Octet, model, KV type, activations, heads of the rank. */
typedef struct oct_kv_kept {
    int64_t pages;            /* written, or taken up; on ranks what all of them have */
    uint64_t bytes;           /* of them, on this rank */
    char why[OCT_ERROR_TEXT]; /* restore: why what is there was not used, in one line, or "" */
} oct_kv_kept;
/* Writes the pages that oct_session_reuse could find, those used last first, for about so many
 * seconds; then it ends with what there is. The file replaces the last one when it is complete. No
 * page: what is there stays. The folder is made, too. Not to be cancelled. OCT_ERR_IO: a folder or
 * disk that cannot take it, on any rank. */
OCT_API OCT_MUST_CHECK oct_status oct_session_save(oct_session *s, const char *folder,
                                                   double seconds, oct_kv_kept *kept,
                                                   oct_error *err);
/* Before anything is evaluated: takes up what was saved, for oct_session_reuse. As many pages as
 * the pool has room for, those used last. A file that is damaged or of something else is not used
 * at all: see kept->why. That there is none is fine. OCT_ERR_IO: a folder that cannot be made or
 * written to; OCT_ERR_ARG: the session has evaluated already; OCT_ERR_CANCELLED. */
OCT_API OCT_MUST_CHECK oct_status oct_session_restore(oct_session *s, const char *folder,
                                                      oct_kv_kept *kept, oct_error *err);

typedef struct oct_session_stats {
    uint64_t tokens, bytes_read; /* weights, scales and KV read by all evals so far */
    uint64_t kv_read;            /* the part of bytes_read that is keys and values */
    uint64_t streamed;           /* the part of bytes_read that was brought to GPUs */
    uint64_t kv_saturated;       /* values that did not fit the KV type */
    double seconds;              /* inside oct_eval */
    double max_eval_seconds;
    const uint64_t *expert_rows; /* [n_experts] tokens sent to each expert, summed over layers; the
                                    session's */
} oct_session_stats;
OCT_API void oct_session_get_stats(const oct_session *s, oct_session_stats *st);
OCT_API const char *oct_session_isa(const oct_session *s); /* the kernel row that it uses */

/* ---- sampling ------------------------------------------------------------------------------- */

typedef struct oct_logit_bias {
    int32_t id;
    float value;
} oct_logit_bias;

/* How to draw. A field that is 0 is off, but for temperature and top_p. Arrays are the caller's and
 * only read; ids in them that are not of the vocabulary are ignored. */
typedef struct oct_sampler {
    float temperature; /* <= 0: greedy, the lowest id on ties, after bias and penalties */
    int32_t top_k;
    float top_p;              /* >= 1: off; <= 0: one token is kept */
    uint64_t rng;             /* state; start with any seed */
    float min_p;              /* >= 1: only what is as likely as the likeliest is kept */
    float repetition_penalty; /* 1 is off too */
    float frequency_penalty;  /* negative: repetition is invited */
    float presence_penalty;   /* the same */
    const int32_t *history; /* [n_history] tokens that the penalties look back on: the text so far,
                               or the end of it; to be set before every draw */
    int64_t n_history;
    const oct_logit_bias *bias; /* [n_bias] values finite, or -Inf to forbid a token; several for
                                   one id add up */
    int64_t n_bias;
} oct_sampler;

/* Draws an id from logits f32[n]. In this order, each step on what the one before has left:
 *
 *   bias          logit += value, for each of bias (OpenAI's logit_bias)
 *   penalties     for each id that is in history, count times:
 *                     logit = logit > 0 ? logit / repetition_penalty : logit * repetition_penalty
 *                     logit -= frequency_penalty * count + presence_penalty
 *                 the first is of Keskar et al. 2019 (CTRL), as in Transformers and llama.cpp; the
 *                 second of the OpenAI API
 *   temperature   logit / temperature
 *   top-k         keeps the k largest logits, and all that equal the k-th
 *   top-p         with those sorted ascending: keeps every logit >= the first whose cumulative
 *                 probability, the softmax over them, reaches 1 - top_p
 *   min-p         keeps what is at least min_p times as likely as the likeliest
 *   the draw      from the softmax of what is left
 *
 * Transformers has the same order of the last four; llama.cpp divides by the temperature after the
 * three cuts, unless told otherwise. The same logits, fields and rng give the same id on every
 * machine; rng moves on by one step, and stays when the draw is greedy or fails. scratch: f32[2 n]
 * of the caller. Returns -1 if a logit is NaN (also by adding Inf to -Inf) or all are -Inf, or, not
 * greedy, one is +Inf. Thread-safe for different samplers and scratches. */
OCT_API int32_t oct_sample(oct_sampler *s, const float *logits, int64_t n, float *scratch);

/* Log-probabilities are of the logits given: pass a model's own ones for what the OpenAI API calls
 * logprobs, whatever bias, temperature or cuts the token was drawn with. Sums are in double. */

/* ln sum exp(logits[i]), i < n, so that logits[id] - it is the log-probability of any id; NaN if a
 * logit is NaN or +Inf or all are -Inf. */
OCT_API double oct_log_sum_exp(const float *logits, int64_t n);
/* ln softmax(logits)[id]; NaN where oct_log_sum_exp is, and for an id out of range. */
OCT_API double oct_logprob(const float *logits, int64_t n, int32_t id);

typedef struct oct_token_logprob {
    int32_t id;
    double logprob;
} oct_token_logprob;
/* Writes the n_top likeliest tokens, the likeliest first and the lower id first on ties, to
 * top[n_top] of the caller. Returns how many there are: those with logit -Inf are left out, and it
 * is 0 if a logit is NaN. Meant for tens of tokens: the time grows with n_top squared. */
OCT_API int64_t oct_top_logprobs(const float *logits, int64_t n, int64_t n_top,
                                 oct_token_logprob *top);

#ifdef __cplusplus
}
#endif
#endif
