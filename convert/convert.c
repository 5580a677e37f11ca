#include "convert.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "convert_impl.h"
#include "tokenizer.h"
#include "resume.h"
#include "threads.h"
#include "zeros.h"

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Whether the tokenizer is a model of the vocabulary's size and what its special ids are. */
static oct_status check_tokenizer(const oct_source *src, oct_lines *warnings, oct_error *err)
{
    const oct_grok_config *cfg = &src->config;
    const char *path = src->tokenizer_path ? src->tokenizer_path : src->dir;
    oct_spm *spm = NULL;
    oct_error e = {0};
    if (oct_spm_new(src->tokenizer, src->tokenizer_bytes, &spm, &e) != OCT_OK)
        return oct_fail(err, e.status, "%s: %s", path, e.text);
    int64_t n = oct_spm_size(spm);
    oct_status s = OCT_OK;
    if (n > cfg->n_vocab)
        s = oct_fail(err, OCT_ERR_SHAPE,
                     "%s has %" PRId64 " pieces, the embedding in %s has %" PRId64 " rows", path, n,
                     src->dir, cfg->n_vocab);
    else if (n < cfg->n_vocab)
        oct_lines_add(warnings,
                      "%s has %" PRId64 " pieces, the embedding %" PRId64 " rows: the last %" PRId64
                      " ids have no text",
                      path, n, cfg->n_vocab, cfg->n_vocab - n);
    if (oct_spm_pad(spm) >= 0 && oct_spm_pad(spm) != cfg->pad_id)
        oct_lines_add(warnings,
                      "%s says pad id %d, the configuration %" PRId64
                      ": the configuration's is used",
                      path, oct_spm_pad(spm), cfg->pad_id);
    if (oct_spm_eos(spm) >= 0 && oct_spm_eos(spm) != cfg->eos_id)
        oct_lines_add(warnings,
                      "%s says eos id %d, the configuration %" PRId64
                      ": the configuration's is used",
                      path, oct_spm_eos(spm), cfg->eos_id);
    oct_spm_free(spm);
    return s;
}

static bool is_input(const void *ctx, const struct stat *st)
{
    const oct_source *s = ctx;
    return s->kind->is_file(s, st) || same_file(&s->tokenizer_stat, st) ||
           same_file(&s->config_stat, st);
}

static oct_model_info numbers_of(const oct_grok_config *c, uint64_t file_bytes)
{
    return (oct_model_info){.n_layers = c->n_layers,
                            .n_vocab = c->n_vocab,
                            .n_ctx = c->n_ctx,
                            .d_model = c->d_model,
                            .n_q_heads = c->n_q_heads,
                            .n_kv_heads = c->n_kv_heads,
                            .head_dim = c->head_dim,
                            .d_ff = c->d_ff,
                            .n_experts = c->n_experts,
                            .n_experts_used = c->n_used,
                            .n_slices = c->n_slices,
                            .embedding_scale = c->embedding_scale,
                            .output_scale = c->output_scale,
                            .attn_scale = c->attn_scale,
                            .attn_cap = c->attn_cap,
                            .rope_base = c->rope_base,
                            .norm_eps = c->norm_eps,
                            .pad_id = (int32_t)c->pad_id,
                            .eos_id = (int32_t)c->eos_id,
                            .file_bytes = file_bytes};
}

static oct_status describe_source(const oct_source *s, oct_convert_report *r, oct_error *err)
{
    r->format = s->kind->name;
    r->checkpoint_dir = strdup(s->dir);
    r->config_path = s->config_path ? strdup(s->config_path) : NULL;
    r->tokenizer_path = s->tokenizer_path ? strdup(s->tokenizer_path) : NULL;
    r->is_grok1 = s->is_grok1;
    r->n_files = s->n_files;
    r->in_bytes = s->n_bytes;
    if (!r->checkpoint_dir || (s->config_path && !r->config_path) ||
        (s->tokenizer_path && !r->tokenizer_path))
        return oct_fail(err, OCT_ERR_MEMORY, "out of memory");
    return OCT_OK;
}

/* All that can be checked before the work. */
static oct_status prepare(oct_conversion *c, oct_convert_report *r, oct_error *err)
{
    const oct_source *s = c->source;
    OCT_TRY(describe_source(s, r, err));
    if (s->tokenizer)
        OCT_TRY(check_tokenizer(s, &r->warnings, err));
    OCT_TRY(oct_output_check_by(c->params->out, is_input, s, err));
    OCT_TRY(oct_conversion_plan(c, err));
    oct_cut cut;
    OCT_TRY(oct_conversion_cut(c, c->params->n_threads, &cut, err)); /* that it fits into memory */
    free(cut.pieces);
    r->n_tensors = c->n_tensors;
    r->out_bytes = c->file_bytes;
    r->model = numbers_of(&s->config, c->file_bytes);
    r->model.has_tokenizer = s->tokenizer != NULL;
    for (int64_t i = 0; i < c->n_tensors; i++)
        r->n_quantised += c->tensors[i].scales && oct_new_tensor_is_plain(&c->tensors[i]);
    return OCT_OK;
}

static void tell(const oct_conversion *c, oct_convert_phase phase)
{
    if (c->params->progress)
        c->params->progress(c->params->progress_ctx,
                            &(oct_convert_progress){.phase = phase, .temp = c->output.temp});
}

static oct_status convert(oct_conversion *c, oct_convert_report *r, oct_error *err)
{
    const oct_convert_params *p = c->params;
    oct_q8_error e = {0};
    OCT_TRY(prepare(c, r, err));
    OCT_TRY(oct_conversion_write(c, &r->warnings, err));
    if (c->source->zeros)
        oct_zeros_tell(c->source->zeros, c->source, &r->warnings);
    tell(c, OCT_CONVERT_SYNC);
    OCT_TRY(oct_output_sync(&c->output, err));
    OCT_TRY(oct_conversion_verify(c, &e, err));
    r->q8_error = oct_q8_error_rel(&e);
    r->q8_error_largest = e.max_abs;
    if (c->source->kind->tell)
        c->source->kind->tell(c->source, r);
    if (oct_cancelled(p->cancel))
        return oct_fail(err, OCT_ERR_CANCELLED, "cancelled");
    OCT_TRY(oct_resume_end(&c->output, c->file_bytes, err));
    OCT_TRY(oct_output_publish(&c->output, err));
    tell(c, OCT_CONVERT_DONE);
    return OCT_OK;
}

oct_status oct_convert_source(const oct_source *source, const oct_convert_params *p,
                              oct_convert_report *r, oct_error *err)
{
    oct_conversion c = {.params = p, .source = source, .output.fd = -1};
    oct_status s = convert(&c, r, err);
    oct_output_close(&c.output);
    free(c.tensors);
    return s;
}

oct_status oct_convert(const oct_convert_params *p, oct_convert_report *r, oct_error *err)
{
    oct_source_params sp = {.path = p->checkpoint,
                            .config = p->config,
                            .tokenizer = p->tokenizer,
                            .no_tokenizer = p->no_tokenizer,
                            .problems = &r->problems,
                            .warnings = &r->warnings};
    oct_source *source;
    if (p->no_tokenizer && p->tokenizer)
        return oct_fail(err, OCT_ERR_ARG, "a tokenizer is given and refused at once");
    OCT_TRY(oct_source_open(&sp, &source, err));
    oct_status s = oct_convert_source(source, p, r, err);
    oct_source_close(source);
    return s;
}

void oct_convert_report_free(oct_convert_report *r)
{
    oct_lines_free(&r->problems);
    oct_lines_free(&r->warnings);
    free(r->checkpoint_dir);
    free(r->config_path);
    free(r->tokenizer_path);
    *r = (oct_convert_report){0};
}
