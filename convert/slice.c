/* slice.c: parts of models for ranks, and checksums, see convert.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "convert_impl.h"
#include "model_impl.h"
#include "threads.h"

enum { PIECE = 8 << 20, PAGE = 4096 };

typedef struct slicer {
    const oct_slice_params *p;
    oct_output out;
    oct_part part;
    uint64_t total, before; /* bytes of all runs; of those that are done */
    oct_convert_phase phase;
} slicer;

static void tell(const slicer *s, uint64_t done)
{
    if (s->p->progress)
        s->p->progress(s->p->progress_ctx,
                       &(oct_convert_progress){s->phase, done,
                                               s->phase == OCT_CONVERT_SYNC ? 0 : s->total,
                                               s->out.temp});
}

static oct_status cancelled(const volatile int *cancel, oct_error *err)
{
    return oct_cancelled(cancel) ? oct_fail(err, OCT_ERR_CANCELLED, "interrupted") : OCT_OK;
}

/* Pages of a mapped file that are not needed again. */
static void drop(const uint8_t *from, uint64_t bytes)
{
    uintptr_t lo = (uintptr_t)from / PAGE * PAGE;
    (void)madvise((void *)lo, (uintptr_t)from + bytes - lo, MADV_DONTNEED);
}

/* ---- checksums ------------------------------------------------------------------------------ */

oct_status oct_verify(const char *path, void (*progress)(void *ctx, uint64_t done), void *ctx,
                      const volatile int *cancel, oct_error *err)
{
    oct_grok_config config;
    oct_gguf *g;
    OCT_TRY(oct_gguf_open(path, &g, err));
    oct_status s = oct_grok_config_get(g, &config, err); /* and that it is a model file at all */
    if (s == OCT_OK)
        s = oct_file_verify(g, progress, ctx, cancel, err);
    oct_gguf_close(g);
    return s;
}

/* ---- writing -------------------------------------------------------------------------------- */

static oct_status write_run(slicer *s, const uint8_t *from, oct_part_run *r, XXH3_state_t *state,
                            oct_error *err)
{
    XXH3_64bits_reset(state);
    for (uint64_t at = 0, n; at < r->bytes; at += n) {
        n = r->bytes - at < PIECE ? r->bytes - at : PIECE;
        XXH3_64bits_update(state, from + at, n);
        OCT_TRY(oct_output_write(&s->out, from + at, n, r->place + at, err));
        drop(from + at, n);
        tell(s, s->before + at + n);
        OCT_TRY(cancelled(s->p->cancel, err));
    }
    s->before += r->bytes;
    r->sum = XXH3_64bits_digest(state);
    return OCT_OK;
}

static oct_status write_all(slicer *s, const oct_model *m, oct_error *err)
{
    const uint8_t *bytes = oct_gguf_bytes(m->file);
    XXH3_state_t *state = XXH3_createState();
    oct_status status = state ? OCT_OK : oct_fail(err, OCT_ERR_MEMORY, "no memory for a checksum");
    s->phase = OCT_CONVERT_WRITE;
    tell(s, 0);
    for (int64_t i = 0; i < s->part.n_runs && status == OCT_OK; i++)
        status = write_run(s, bytes + s->part.run[i].at, &s->part.run[i], state, err);
    XXH3_freeState(state);
    OCT_TRY(status);
    size_t n;
    void *table = oct_part_table(&s->part, &n);
    if (!table)
        return oct_fail(err, OCT_ERR_MEMORY, "no memory for the table of %" PRId64 " runs",
                        s->part.n_runs);
    status = oct_output_write(&s->out, table, n, s->part.file_bytes - n, err);
    free(table);
    return status;
}

/* ---- reading back --------------------------------------------------------------------------- */

static void verified(void *ctx, uint64_t done)
{
    slicer *s = ctx;
    tell(s, done < s->total ? done : s->total); /* some tensors are read twice */
}

static oct_status read_back(slicer *s, const oct_model *m, oct_error *err)
{
    oct_model *part;
    s->phase = OCT_CONVERT_VERIFY;
    tell(s, 0);
    OCT_TRY(oct_model_open(s->out.temp, &part, err));
    const oct_part *have = oct_gguf_part(part->file);
    oct_status status = OCT_OK;
    /* The sums in the file are those of what was read from the model. */
    if (!have || have->n_runs != s->part.n_runs ||
        memcmp(have->run, s->part.run, (size_t)have->n_runs * sizeof *have->run) != 0 ||
        part->info.fingerprint != m->info.fingerprint)
        status = oct_fail(err, OCT_ERR_IO,
                          "%s: the table read back is not the one that was written", s->out.temp);
    if (status == OCT_OK)
        status = oct_file_verify(part->file, verified, s, s->p->cancel, err);
    oct_model_close(part);
    return status;
}

/* ---- the whole ------------------------------------------------------------------------------ */

static oct_status choose_runs(slicer *s, const oct_model *m, oct_error *err)
{
    const oct_slice_params *p = s->p;
    oct_shard shard;
    if (p->size < 2)
        return oct_fail(err, OCT_ERR_ARG, "part %d of %d: expected 2 ranks or more", p->rank,
                        p->size);
    const char *wrong =
        oct_shard_make(p->by, p->rank, p->size, m->config.n_slices, m->config.n_experts, &shard);
    if (wrong)
        return oct_fail(err, OCT_ERR_ARG,
                        "part %d of %d, of %" PRId64 " slices and %" PRId64 " experts: %s", p->rank,
                        p->size, m->config.n_slices, m->config.n_experts, wrong);
    OCT_TRY(oct_model_holds(m, &(oct_shard){.size = 1}, err));
    OCT_TRY(oct_model_part(m, &shard, &s->part, err));
    for (int64_t i = 0; i < s->part.n_runs; i++)
        s->total += s->part.run[i].bytes;
    return OCT_OK;
}

static oct_status slice_model(slicer *s, const oct_model *m, oct_slice_report *report,
                              oct_error *err)
{
    OCT_TRY(choose_runs(s, m, err));
    report->bytes = s->part.file_bytes;
    report->whole_bytes = s->part.whole_bytes;
    report->n_runs = s->part.n_runs;
    OCT_TRY(oct_output_check(s->p->out, &s->p->model, 1, err));
    OCT_TRY(oct_output_create(&s->out, s->p->out, s->part.file_bytes, &report->warnings, err));
    OCT_TRY(write_all(s, m, err));
    s->phase = OCT_CONVERT_SYNC;
    tell(s, 0);
    OCT_TRY(oct_output_sync(&s->out, err));
    OCT_TRY(read_back(s, m, err));
    OCT_TRY(cancelled(s->p->cancel, err));
    OCT_TRY(oct_output_publish(&s->out, err));
    s->phase = OCT_CONVERT_DONE;
    tell(s, s->total);
    return OCT_OK;
}

oct_status oct_slice(const oct_slice_params *p, oct_slice_report *report, oct_error *err)
{
    slicer s = {.p = p, .out = {.fd = -1, .from = p->model}};
    oct_model *m;
    *report = (oct_slice_report){0};
    OCT_TRY(oct_model_open(p->model, &m, err));
    oct_status status = slice_model(&s, m, report, err);
    oct_output_close(&s.out);
    free(s.part.run);
    oct_model_close(m);
    return status;
}
