/* verify.c: a model file's bytes against the checksums in it. */
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "gguf_part.h"
#include "model_impl.h"
#include "threads.h"

/* The disk reads so many bytes ahead of the sum: page faults alone, of a few pages each, do not keep a
 * fast one busy. */
enum { PIECE = 8 << 20, AHEAD = 4 * PIECE, PAGE = 4096 };

static void advise(const uint8_t *from, uint64_t bytes, int advice)
{
    uintptr_t lo = (uintptr_t)from / PAGE * PAGE;
    (void)madvise((void *)lo, (uintptr_t)from + bytes - lo, advice);
}

static void ask(const uint8_t *from, uint64_t bytes)
{
    if (bytes)
        advise(from, bytes, MADV_WILLNEED);
}

typedef struct verifier {
    XXH3_state_t *state;
    void (*progress)(void *ctx, uint64_t done);
    void *ctx;
    const volatile int *cancel;
    uint64_t done;
} verifier;

static oct_status sum_of(verifier *v, const uint8_t *from, uint64_t bytes, uint64_t *sum,
                         oct_error *err)
{
    XXH3_64bits_reset(v->state);
    for (uint64_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < PIECE ? bytes - at : PIECE;
        ask(from + at + n, bytes - at - n < AHEAD ? bytes - at - n : AHEAD);
        XXH3_64bits_update(v->state, from + at, n);
        advise(from + at, n, MADV_DONTNEED);
        v->done += n;
        if (v->progress)
            v->progress(v->ctx, v->done);
        if (oct_cancelled(v->cancel))
            return oct_fail(err, OCT_ERR_CANCELLED, "interrupted");
    }
    *sum = XXH3_64bits_digest(v->state);
    return OCT_OK;
}

static oct_status verify_tensors(verifier *v, const oct_gguf *g, oct_error *err)
{
    const oct_part *part = oct_gguf_part(g);
    const void *sums = NULL;
    uint64_t n = 0, recorded, sum;
    OCT_TRY(oct_gguf_get_array(g, OCT_GROK_KEY_TENSOR_SUMS, OCT_GGUF_U64, &sums, &n, err));
    if ((int64_t)n != oct_gguf_n_tensors(g))
        return oct_fail(err, OCT_ERR_FORMAT,
                        "%s: has checksums for %" PRIu64 " tensors, but %" PRId64 " tensors",
                        oct_gguf_path(g), n, oct_gguf_n_tensors(g));
    for (uint64_t i = 0; i < n; i++) {
        const oct_gguf_tensor *t = oct_gguf_tensor_at(g, (int64_t)i);
        if (part && !oct_part_holds(part, t->offset, t->bytes))
            continue;
        memcpy(&recorded, (const char *)sums + 8 * i, sizeof recorded);
        OCT_TRY(sum_of(v, t->data, t->bytes, &sum, err));
        if (sum != recorded)
            return oct_fail(err, OCT_ERR_FORMAT,
                            "%s: tensor %s: its bytes have the checksum %016" PRIx64
                            ", expected %016" PRIx64 ": the file is damaged",
                            oct_gguf_path(g), t->name, sum, recorded);
    }
    return OCT_OK;
}

static oct_status verify_runs(verifier *v, const oct_gguf *g, oct_error *err)
{
    const oct_part *part = oct_gguf_part(g);
    const uint8_t *bytes = oct_gguf_bytes(g);
    uint64_t sum;
    for (int64_t i = 0; part && i < part->n_runs; i++) {
        const oct_part_run *r = &part->run[i];
        OCT_TRY(sum_of(v, bytes + r->at, r->bytes, &sum, err));
        if (sum != r->sum)
            return oct_fail(err, OCT_ERR_FORMAT,
                            "%s: %" PRIu64 " bytes at %" PRIu64 " have the checksum %016" PRIx64
                            ", expected %016" PRIx64 ": the file is damaged",
                            oct_gguf_path(g), r->bytes, r->place, sum, r->sum);
    }
    return OCT_OK;
}

oct_status oct_file_verify(const oct_gguf *g, void (*progress)(void *ctx, uint64_t done), void *ctx,
                           const volatile int *cancel, oct_error *err)
{
    verifier v = {XXH3_createState(), progress, ctx, cancel, 0};
    if (!v.state)
        return oct_fail(err, OCT_ERR_MEMORY, "no memory for a checksum");
    oct_status s = verify_runs(&v, g, err);
    if (s == OCT_OK)
        s = verify_tensors(&v, g, err);
    XXH3_freeState(v.state);
    return s;
}
