/* part.c: which pages of the file belong to which slice, and so what a rank's file holds and what a
 * rank that maps the whole can give up. Units (see weight.h) and slices of the embedding are whole
 * pages. */
#include <stdlib.h>
#include <sys/mman.h>

#include "part.h"

static uint64_t file_offset(const oct_model *m, const void *p)
{
    return (uint64_t)((const unsigned char *)p - (const unsigned char *)oct_gguf_bytes(m->file));
}

static void add_matrix(const oct_model *m, const oct_weight *w, oct_span_list *out)
{
    const oct_weight_layout *l = &w->layout;
    for (int64_t e = 0; e < l->n_experts; e++)
        for (int64_t s = 0; s < l->n_slices; s++) {
            if (out->v) {
                out->v[out->n] =
                    (oct_span){file_offset(m, w->data) + oct_weight_unit_offset(l, e, s),
                               l->unit_stride, e, s, w->kind};
                out->v[out->n + 1] =
                    (oct_span){file_offset(m, w->scales) + oct_weight_scale_offset(l, e, s),
                               l->scale_stride, e, s, w->kind};
            }
            out->n += 2;
        }
}

/* All spans; counts only where out->v is NULL. */
static void list_spans(const oct_model *m, oct_span_list *out)
{
    out->n = 0;
    for (int64_t i = 0; i < m->config.n_layers; i++) {
        const oct_grok_layer *w = &m->layers[i];
        add_matrix(m, &w->qkv, out);
        add_matrix(m, &w->attn_out, out);
        add_matrix(m, &w->gate_up, out);
        add_matrix(m, &w->down, out);
    }
    uint64_t bytes = (uint64_t)(m->embedding.slice_rows_pad * m->embedding.cols) * sizeof(uint16_t);
    for (int64_t s = 0; s < m->config.n_slices; s++, out->n++)
        if (out->v)
            out->v[out->n] = (oct_span){file_offset(m, m->embedding.data) + (uint64_t)s * bytes,
                                        bytes, 0, s, OCT_SHARD_OF_VOCABULARY};
}

oct_status oct_model_spans(const oct_model *m, oct_span_list *out, oct_error *err)
{
    *out = (oct_span_list){0};
    list_spans(m, out);
    out->v = calloc((size_t)out->n, sizeof *out->v);
    if (!out->v)
        return oct_fail(err, OCT_ERR_MEMORY, "model: out of memory for %lld pieces",
                        (long long)out->n);
    list_spans(m, out);
    return OCT_OK;
}

/* ---- parts ----------------------------------------------------------------------------------- */

bool oct_span_is_of(const oct_span *s, const oct_shard *shard)
{
    const oct_shard_range slices = shard->slices[s->kind], experts = shard->experts;
    return s->slice >= slices.first && s->slice < slices.end &&
           (s->kind != OCT_SHARD_OF_EXPERTS ||
            (s->expert >= experts.first && s->expert < experts.end));
}

static int by_offset(const void *a, const void *b)
{
    const oct_span *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

oct_status oct_model_part(const oct_model *m, const oct_shard *shard, oct_part *part,
                          oct_error *err)
{
    oct_span_list spans;
    *part = (oct_part){.layout = shard->layout,
                       .rank = shard->rank,
                       .size = shard->size,
                       .whole_bytes = oct_gguf_file_bytes(m->file)};
    OCT_TRY(oct_model_spans(m, &spans, err));
    qsort(spans.v, (size_t)spans.n, sizeof *spans.v, by_offset);
    part->run = calloc((size_t)spans.n + 1, sizeof *part->run);
    uint64_t at = 0; /* what is before it is in a run, or of another rank */
    for (int64_t i = 0; i <= spans.n && part->run; i++) {
        uint64_t end = i < spans.n ? spans.v[i].at : part->whole_bytes;
        if (i < spans.n && oct_span_is_of(&spans.v[i], shard))
            continue;
        if (end > at)
            part->run[part->n_runs++] = (oct_part_run){.at = at, .bytes = end - at};
        at = i < spans.n ? end + spans.v[i].bytes : end;
    }
    free(spans.v);
    if (!part->run)
        return oct_fail(err, OCT_ERR_MEMORY, "model: out of memory for a part");
    oct_part_place(part);
    return OCT_OK;
}

/* What is left of the model where the process runs: all, if size is 0. */
static oct_shard held_shard(const oct_model *m)
{
    const oct_part *p = oct_gguf_part(m->file);
    oct_shard s = m->kept;
    if (p &&
        oct_shard_make(p->layout, p->rank, p->size, m->config.n_slices, m->config.n_experts, &s))
        s.size = p->size; /* not reached: checked when the file was opened */
    return s;
}

bool oct_model_has_span(const oct_model *m, const oct_span *s)
{
    const oct_shard held = held_shard(m);
    return held.size == 0 || oct_span_is_of(s, &held);
}

oct_status oct_model_holds(const oct_model *m, const oct_shard *shard, oct_error *err)
{
    const oct_shard held = held_shard(m);
    char have[OCT_PART_NAME_MAX], want[OCT_PART_NAME_MAX];
    if (held.size == 0 ||
        (held.rank == shard->rank && held.size == shard->size && held.layout == shard->layout))
        return OCT_OK;
    return oct_fail(err, OCT_ERR_UNSUPPORTED, "%s: holds the part of %s, asked for is %s",
                    oct_gguf_path(m->file), oct_part_name(held.layout, held.rank, held.size, have),
                    oct_part_name(shard->layout, shard->rank, shard->size, want));
}

/* ---- uses ------------------------------------------------------------------------------------ */

static bool same_shard(const oct_shard *a, const oct_shard *b)
{
    return a->size == b->size && (a->size == 1 || (a->rank == b->rank && a->layout == b->layout));
}

void oct_model_use(const oct_model *m, const oct_shard *shard)
{
    oct_uses *u = m->uses;
    pthread_mutex_lock(&u->lock);
    u->several = u->n > 0 && (u->several || !same_shard(&u->of, shard));
    u->of = *shard;
    u->n++;
    pthread_mutex_unlock(&u->lock);
}

void oct_model_unuse(const oct_model *m)
{
    pthread_mutex_lock(&m->uses->lock);
    m->uses->n--;
    pthread_mutex_unlock(&m->uses->lock);
}

/* Whether there are sessions that use more than a part. */
static bool used_beyond(const oct_model *m, const oct_shard *shard)
{
    oct_uses *u = m->uses;
    pthread_mutex_lock(&u->lock);
    bool beyond = u->n > 0 && (u->several || !same_shard(&u->of, shard));
    pthread_mutex_unlock(&u->lock);
    return beyond;
}

/* ---- keep ------------------------------------------------------------------------------------ */

oct_status oct_model_keep_part(oct_model *m, int rank, int size, oct_shard_layout by,
                               oct_error *err)
{
    oct_shard shard;
    oct_span_list spans;
    const char *wrong =
        oct_shard_make(by, rank, size, m->config.n_slices, m->config.n_experts, &shard);
    if (wrong)
        return oct_fail(err, OCT_ERR_ARG, "part %d of %d: %s", rank, size, wrong);
    OCT_TRY(oct_model_holds(m, &shard, err));
    if (size > 1 && used_beyond(m, &shard))
        return oct_fail(err, OCT_ERR_ARG,
                        "part %d of %d: there are sessions that use another part of the model",
                        rank, size);
    if (oct_gguf_part(m->file) || m->kept.size > 0 || size == 1)
        return OCT_OK; /* no more than that is mapped, or all of it is kept */
    OCT_TRY(oct_model_spans(m, &spans, err));
    for (int64_t i = 0; i < spans.n; i++) {
        const oct_span *s = &spans.v[i];
        /* Something unusable instead of nothing: the range stays the model's until it is closed. A
         * refusal leaves pages mapped that nobody touches. */
        if (!oct_span_is_of(s, &shard))
            (void)!mmap((void *)((uintptr_t)oct_gguf_bytes(m->file) + s->at), s->bytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    }
    free(spans.v);
    m->kept = shard;
    return OCT_OK;
}
