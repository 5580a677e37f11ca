/* export.c: Octet's packed matrices to rows of Q8_0, see convert.h.
 *
 * Work goes panel by panel (64 output channels): their rows are put together in memory, from all
 * slices if the inputs are split, and written where they belong; the tensors of several parts grow
 * side by side. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert_impl.h"
#include "f16.h"
#include "model_impl.h"
#include "threads.h"

enum {
    BLOCK = 32, /* of Q8_0: integers that share a scale */
    BLOCK_BYTES = 2 + 32,
    MAX_LAYERS = 512,   /* of llama.cpp */
    FILE_TYPE_Q8_0 = 7, /* general.file_type */
    QUANTISATION_VERSION = 2
};

/* The tensors of a layer in llama.cpp's names, and where each comes from. */
static const struct out_tensor {
    const char *name;
    oct_grok_kind kind;
    int part;
} layer_tensors[] = {
    {"attn_norm", OCT_GROK_NORM_ATTN_IN, 0},
    {"attn_q", OCT_GROK_QKV, 0},
    {"attn_k", OCT_GROK_QKV, 1},
    {"attn_v", OCT_GROK_QKV, 2},
    {"attn_output", OCT_GROK_ATTN_OUT, 0},
    {"attn_output_norm", OCT_GROK_NORM_ATTN_OUT, 0},
    {"ffn_norm", OCT_GROK_NORM_FFN_IN, 0},
    {"ffn_gate_inp", OCT_GROK_ROUTER, 0},
    {"ffn_gate_exps", OCT_GROK_GATE_UP, 0},
    {"ffn_up_exps", OCT_GROK_GATE_UP, 1},
    {"ffn_down_exps", OCT_GROK_DOWN, 0},
    {"layer_output_norm", OCT_GROK_NORM_FFN_OUT, 0},
};

enum { N_LAYER_TENSORS = sizeof layer_tensors / sizeof layer_tensors[0] };

typedef struct exporter {
    const oct_model *model;
    const oct_export_params *params;
    oct_export_report *report;
    oct_error *err;
    oct_output out;
    uint64_t *at; /* [1 + n_layers * N_LAYER_TENSORS + 1]: places of the tensors */
    uint64_t done;
    uint8_t *rows; /* one panel's rows */
    char first_inexact[192], first_zeroed[192], first_capped[192];
} exporter;

/* The source of a packed tensor; NULL: it is plain. */
static const oct_weight *packed_source(const oct_grok_layer *w, oct_grok_kind kind)
{
    switch (kind) {
    case OCT_GROK_GATE_UP: return &w->gate_up;
    case OCT_GROK_DOWN: return &w->down;
    case OCT_GROK_QKV: return &w->qkv;
    case OCT_GROK_ATTN_OUT: return &w->attn_out;
    default: return NULL;
    }
}

static const oct_plain *plain_source(const oct_grok_layer *w, oct_grok_kind kind)
{
    switch (kind) {
    case OCT_GROK_ROUTER: return &w->router;
    case OCT_GROK_NORM_ATTN_IN: return &w->norm_attn_in;
    case OCT_GROK_NORM_ATTN_OUT: return &w->norm_attn_out;
    case OCT_GROK_NORM_FFN_IN: return &w->norm_ffn_in;
    case OCT_GROK_NORM_FFN_OUT: return &w->norm_ffn_out;
    default: return NULL;
    }
}

/* ---- what can be exported ------------------------------------------------------------------- */

static oct_status check_model(const exporter *x)
{
    const oct_grok_config *c = &x->model->config;
    const struct {
        const char *what;
        int64_t group_in;
    } groups[] = {{"query, key, value", c->d_model / c->qkv_groups},
                  {"attention output", c->n_q_heads * c->head_dim / c->attn_out_groups},
                  {"FFN gate and up", c->d_model / c->gate_up_groups},
                  {"FFN down", c->d_ff / c->down_groups}};
    const char *path = oct_gguf_path(x->model->file);

    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++)
        if (groups[i].group_in % BLOCK)
            return oct_fail(
                x->err, OCT_ERR_UNSUPPORTED,
                "%s: %s: expected scale groups of a multiple of %d inputs (Q8_0 has one "
                "scale for %d), found groups of %" PRId64,
                path, groups[i].what, BLOCK, BLOCK, groups[i].group_in);
    if (c->n_q_heads * c->head_dim != c->d_model)
        return oct_fail(x->err, OCT_ERR_UNSUPPORTED,
                        "%s: expected query heads x head dimension = d_model = %" PRId64
                        " (llama.cpp's grok has no other), found %" PRId64 " x %" PRId64,
                        path, c->d_model, c->n_q_heads, c->head_dim);
    if (c->n_layers > MAX_LAYERS)
        return oct_fail(x->err, OCT_ERR_UNSUPPORTED,
                        "%s: expected at most %d layers (llama.cpp's limit), found %" PRId64, path,
                        MAX_LAYERS, c->n_layers);
    return OCT_OK;
}

/* ---- header --------------------------------------------------------------------------------- */

static void put_hyper_parameters(const oct_grok_config *c, oct_gguf_writer *w)
{
    const struct {
        const char *key;
        int64_t v;
    } ints[] = {{"grok.block_count", c->n_layers},
                {"grok.vocab_size", c->n_vocab},
                {"grok.context_length", c->n_ctx},
                {"grok.embedding_length", c->d_model},
                {"grok.feed_forward_length", c->d_ff},
                {"grok.attention.head_count", c->n_q_heads},
                {"grok.attention.head_count_kv", c->n_kv_heads},
                {"grok.attention.key_length", c->head_dim},
                {"grok.attention.value_length", c->head_dim},
                {"grok.rope.dimension_count", c->head_dim},
                {"grok.expert_count", c->n_experts},
                {"grok.expert_used_count", c->n_used}};
    const struct {
        const char *key;
        float v;
    } floats[] = {{"grok.attention.layer_norm_rms_epsilon", c->norm_eps},
                  {"grok.attention.output_scale", c->attn_scale},
                  {"grok.attn_logit_softcapping", c->attn_cap},
                  {"grok.embedding_scale", c->embedding_scale},
                  {"grok.logit_scale", c->output_scale},
                  {"grok.rope.freq_base", c->rope_base}};

    oct_gguf_put_str(w, "general.architecture", "grok");
    oct_gguf_put_u32(w, "general.file_type", FILE_TYPE_Q8_0);
    oct_gguf_put_u32(w, "general.quantization_version", QUANTISATION_VERSION);
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++)
        oct_gguf_put_u32(w, ints[i].key, (uint32_t)ints[i].v);
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++)
        oct_gguf_put_f32(w, floats[i].key, floats[i].v);
}

/* One piece. User-defined ones count as normal, since llama.cpp would match them before spaces
 * become U+2581, and SentencePiece after. Rows of the embedding without a piece are unused. */
static void describe_piece(const oct_spm *t, int32_t id, const char **text, size_t *len,
                           float *score, int32_t *type, char spare[24])
{
    enum oct_spm_type of;

    if (id >= oct_spm_size(t)) {
        *len = (size_t)snprintf(spare, 24, "[UNUSED%" PRId32 "]", id);
        *text = spare;
        *score = 0;
        *type = OCT_SPM_UNUSED;
        return;
    }
    *text = oct_spm_piece(t, id, len, score, &of);
    *type = of == OCT_SPM_USER ? OCT_SPM_NORMAL : of;
}

static oct_status put_pieces(const exporter *x, oct_gguf_writer *w)
{
    const oct_spm *t = x->model->tokenizer;
    const size_t n = (size_t)x->model->config.n_vocab;
    const char **text = calloc(n, sizeof *text);
    size_t *len = calloc(n, sizeof *len);
    float *score = calloc(n, sizeof *score);
    int32_t *type = calloc(n, sizeof *type);
    char(*spare)[24] = calloc(n, sizeof *spare);
    oct_status status = OCT_OK;

    if (text && len && score && type && spare) {
        for (size_t i = 0; i < n; i++)
            describe_piece(t, (int32_t)i, &text[i], &len[i], &score[i], &type[i], spare[i]);
        oct_gguf_put_strs(w, "tokenizer.ggml.tokens", text, len, n);
        oct_gguf_put_array(w, "tokenizer.ggml.scores", OCT_GGUF_F32, score, n);
        oct_gguf_put_array(w, "tokenizer.ggml.token_type", OCT_GGUF_I32, type, n);
    } else {
        status = oct_fail(x->err, OCT_ERR_MEMORY, "out of memory for %zu pieces", n);
    }
    free(text);
    free(len);
    free(score);
    free(type);
    free(spare);
    return status;
}

static oct_status put_tokenizer(const exporter *x, oct_gguf_writer *w)
{
    const oct_spm *t = x->model->tokenizer;

    if (!t) {
        oct_gguf_put_str(w, "tokenizer.ggml.model", "none");
        return OCT_OK;
    }
    const struct {
        const char *key;
        int32_t id;
    } special[] = {{"tokenizer.ggml.bos_token_id", oct_spm_bos(t)},
                   {"tokenizer.ggml.eos_token_id", oct_spm_eos(t)},
                   {"tokenizer.ggml.unknown_token_id", oct_spm_unk(t)},
                   {"tokenizer.ggml.padding_token_id", oct_spm_pad(t)}};
    oct_gguf_put_str(w, "tokenizer.ggml.model", "llama");
    oct_gguf_put_str(w, "tokenizer.ggml.pre", "default");
    OCT_TRY(put_pieces(x, w));
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++)
        if (special[i].id >= 0)
            oct_gguf_put_u32(w, special[i].key, (uint32_t)special[i].id);
    /* As the model was trained: no BOS, a space in front, all spaces kept. */
    oct_gguf_put_bool(w, "tokenizer.ggml.add_bos_token", false);
    oct_gguf_put_bool(w, "tokenizer.ggml.add_eos_token", false);
    oct_gguf_put_bool(w, "tokenizer.ggml.add_space_prefix", true);
    oct_gguf_put_bool(w, "tokenizer.ggml.remove_extra_whitespaces", false);
    return OCT_OK;
}

static void put_tensors(const oct_model *m, oct_gguf_writer *w)
{
    const oct_grok_config *c = &m->config;
    const uint64_t d = (uint64_t)c->d_model;
    char name[64];

    oct_gguf_put_tensor(w, "token_embd.weight", OCT_GGUF_T_BF16, 2,
                        (const uint64_t[]){d, (uint64_t)c->n_vocab});
    for (int64_t layer = 0; layer < c->n_layers; layer++)
        for (int k = 0; k < N_LAYER_TENSORS; k++) {
            const struct out_tensor *o = &layer_tensors[k];
            const oct_weight *s = packed_source(&m->layers[layer], o->kind);
            uint64_t ne[3] = {d, 1, (uint64_t)c->n_experts};
            snprintf(name, sizeof name, "blk.%" PRId64 ".%s.weight", layer, o->name);
            if (o->kind == OCT_GROK_ROUTER) {
                ne[1] = (uint64_t)c->n_experts;
                oct_gguf_put_tensor(w, name, OCT_GGUF_T_F32, 2, ne);
            } else if (s) {
                bool experts = o->kind == OCT_GROK_GATE_UP || o->kind == OCT_GROK_DOWN;
                ne[0] = (uint64_t)s->layout.n_in;
                ne[1] = (uint64_t)s->layout.part_out[o->part];
                oct_gguf_put_tensor(w, name, OCT_GGUF_T_Q8_0, experts ? 3 : 2, ne);
            } else {
                oct_gguf_put_tensor(w, name, OCT_GGUF_T_F32, 1, ne);
            }
        }
    oct_gguf_put_tensor(w, "output_norm.weight", OCT_GGUF_T_F32, 1, &d);
}

static oct_status make_header(exporter *x, void **header, size_t *n)
{
    const oct_grok_config *c = &x->model->config;
    const size_t n_tensors = 2 + (size_t)c->n_layers * N_LAYER_TENSORS;
    oct_gguf_writer *w = oct_gguf_writer_new(BLOCK);
    oct_status status;

    x->at = calloc(n_tensors, sizeof *x->at);
    if (!w || !x->at) {
        oct_gguf_writer_free(w);
        return oct_fail(x->err, OCT_ERR_MEMORY, "out of memory for a list of %zu tensors",
                        n_tensors);
    }
    put_hyper_parameters(c, w);
    status = put_tokenizer(x, w);
    put_tensors(x->model, w);
    if (status == OCT_OK)
        status = oct_gguf_writer_header(w, BLOCK, header, n, x->at, x->err);
    oct_gguf_writer_free(w);
    /* The last tensor, the final norm, ends the file, padded as all are. */
    if (status == OCT_OK)
        x->report->bytes =
            (x->at[n_tensors - 1] + (uint64_t)c->d_model * sizeof(float) + BLOCK - 1) / BLOCK *
            BLOCK;
    return status;
}

/* ---- output --------------------------------------------------------------------------------- */

static oct_status check_cancel(const exporter *x)
{
    if (oct_cancelled(x->params->cancel))
        return oct_fail(x->err, OCT_ERR_CANCELLED, "export cancelled");
    return OCT_OK;
}

static void tell(const exporter *x, oct_convert_phase phase)
{
    const bool counted = phase != OCT_CONVERT_SYNC;
    if (x->params->progress)
        x->params->progress(x->params->progress_ctx,
                            &(oct_convert_progress){phase, counted ? x->done : 0,
                                                    counted ? x->report->bytes : 0, x->out.temp});
}

static oct_status write_at(exporter *x, const void *data, size_t n, uint64_t at)
{
    OCT_TRY(check_cancel(x));
    OCT_TRY(oct_output_write(&x->out, data, n, at, x->err));
    x->done += n;
    tell(x, OCT_CONVERT_WRITE);
    return OCT_OK;
}

/* ---- packed matrices ------------------------------------------------------------------------ */

/* f16 bits of a scale, the nearest finite ones. */
static uint16_t convert_scale(uint16_t bf16)
{
    const float s = oct_f32_of_bf16(bf16);

    if (fabsf(s) > 65504)
        return s < 0 ? 0xfbff : 0x7bff;
    return oct_f16_of_f32(s);
}

static const uint8_t *unit_of(const oct_weight *t, int64_t expert, int64_t slice)
{
    return (const uint8_t *)t->data + oct_weight_unit_offset(&t->layout, expert, slice);
}

static const uint16_t *scales_of(const oct_weight *t, int64_t expert, int64_t slice)
{
    return t->scales + oct_weight_scale_offset(&t->layout, expert, slice) / sizeof *t->scales;
}

/* Counts what f16 does to a scale that it does not hold. */
static void count_loss(exporter *x, float v, const char *where)
{
    oct_export_report *r = x->report;
    const float now = oct_f32_of_f16(convert_scale(oct_bf16_of_f32(v)));
    if (r->n_inexact++ == 0)
        snprintf(x->first_inexact, sizeof x->first_inexact, "%s", where);
    if (now == 0) {
        if (r->n_zeroed++ == 0)
            snprintf(x->first_zeroed, sizeof x->first_zeroed, "%s", where);
    } else if (fabsf(v) > 65504) {
        if (r->n_capped++ == 0)
            snprintf(x->first_capped, sizeof x->first_capped, "%s", where);
    } else {
        r->scale_error = fmax(r->scale_error, fabs((double)now / (double)v - 1));
    }
}

/* What --lossy has cost, beside rounding, which the report has in numbers. */
static void tell_losses(exporter *x)
{
    oct_export_report *r = x->report;
    if (r->n_zeroed)
        oct_lines_add(&r->warnings,
                      "%" PRId64 " scales are too small for f16: they and all weights that they "
                      "scale are zero now; the first: %s",
                      r->n_zeroed, x->first_zeroed);
    if (r->n_capped)
        oct_lines_add(&r->warnings,
                      "%" PRId64 " scales are too large for f16: they are 65504 now; the first: %s",
                      r->n_capped, x->first_capped);
}

/* Counts the scales of one panel (padding lanes apart) and those that f16 does not hold. */
static oct_status count_scales(exporter *x, const oct_weight *t, int64_t expert, int64_t slice,
                               int64_t panel)
{
    const oct_weight_layout *l = &t->layout;
    const uint16_t *s = scales_of(t, expert, slice);

    for (int64_t g = 0; g < l->unit_groups; g++)
        for (int lane = 0; lane < OCT_PANEL; lane++) {
            int part;
            int64_t channel;
            if (!oct_weight_lane(l, slice, panel, lane, &part, &channel))
                continue;
            const float v = oct_f32_of_bf16(oct_weight_scale(l, s, panel, lane, g));
            x->report->n_scales++;
            if (!isfinite(v))
                return oct_fail(x->err, OCT_ERR_NUMERIC,
                                "%s: expert %" PRId64 ", part %d, channel %" PRId64
                                ": expected a finite scale, found %g",
                                t->name, expert, part, channel, (double)v);
            if (oct_f32_of_f16(oct_f16_of_f32(v)) == v)
                continue;
            char where[192];
            snprintf(where, sizeof where,
                     "%s, expert %" PRId64 ", part %d, channel %" PRId64 ": %g", t->name, expert,
                     part, channel, (double)v);
            count_loss(x, v, where);
        }
    return OCT_OK;
}

/* Fills columns of the panel's 64 rows from one unit: its groups, starting at input first_in. */
static void fill_rows(exporter *x, const oct_weight *t, int64_t expert, int64_t slice,
                      int64_t panel, int64_t first_in, size_t row_bytes)
{
    const oct_weight_layout *l = &t->layout;
    const uint8_t *weights = unit_of(t, expert, slice);
    const uint16_t *scales = scales_of(t, expert, slice);

    for (int64_t g = 0; g < l->unit_groups; g++) {
        uint16_t f16[OCT_PANEL];
        for (int lane = 0; lane < OCT_PANEL; lane++)
            f16[lane] = convert_scale(oct_weight_scale(l, scales, panel, lane, g));
        for (int64_t i = g * l->group_in; i < (g + 1) * l->group_in; i += BLOCK) {
            const size_t block = (size_t)(first_in + i) / BLOCK;
            for (int lane = 0; lane < OCT_PANEL; lane++) {
                uint8_t *out = x->rows + (size_t)lane * row_bytes + block * BLOCK_BYTES;
                memcpy(out, &f16[lane], 2);
                oct_weight_unpack(l, weights, panel, lane, i, BLOCK, (int8_t *)out + 2);
            }
        }
    }
}

/* Writes the rows in x->rows: runs of lanes that are consecutive channels of one part. */
static oct_status write_rows(exporter *x, const oct_weight_layout *l, int64_t expert, int64_t slice,
                             int64_t panel, const uint64_t *part_at, size_t row_bytes)
{
    for (int lane = 0, n; lane < OCT_PANEL; lane += n) {
        int part, next_part;
        int64_t channel, next;
        n = 1;
        if (!oct_weight_lane(l, slice, panel, lane, &part, &channel))
            continue;
        while (lane + n < OCT_PANEL &&
               oct_weight_lane(l, slice, panel, lane + n, &next_part, &next) && next_part == part &&
               next == channel + n)
            n++;
        OCT_TRY(
            write_at(x, x->rows + (size_t)lane * row_bytes, (size_t)n * row_bytes,
                     part_at[part] + (uint64_t)(expert * l->part_out[part] + channel) * row_bytes));
    }
    return OCT_OK;
}

/* One panel of an expert: of one slice, or, if the inputs are split, of all. Once a scale has been
 * refused nothing more is written, but scales are still counted. */
static oct_status export_panel(exporter *x, const oct_weight *t, int64_t expert, int64_t slice,
                               int64_t panel, const uint64_t *part_at)
{
    const oct_weight_layout *l = &t->layout;
    const bool split_in = l->split == OCT_SPLIT_IN;
    const int64_t first = split_in ? 0 : slice, last = split_in ? l->n_slices - 1 : slice;
    const size_t row_bytes = (size_t)l->n_in / BLOCK * BLOCK_BYTES;

    for (int64_t s = first; s <= last; s++)
        OCT_TRY(count_scales(x, t, expert, s, panel));
    if (x->report->n_inexact && !x->params->lossy)
        return check_cancel(x);
    for (int64_t s = first; s <= last; s++)
        fill_rows(x, t, expert, s, panel, split_in ? s * l->unit_groups * l->group_in : 0,
                  row_bytes);
    return write_rows(x, l, expert, slice, panel, part_at, row_bytes);
}

static oct_status export_packed(exporter *x, const oct_weight *t, const uint64_t *part_at)
{
    const oct_weight_layout *l = &t->layout;
    const int64_t n_slices = l->split == OCT_SPLIT_IN ? 1 : l->n_slices;

    x->rows = malloc((size_t)OCT_PANEL * ((size_t)l->n_in / BLOCK * BLOCK_BYTES));
    if (!x->rows)
        return oct_fail(x->err, OCT_ERR_MEMORY, "%s: out of memory for %d rows", t->name,
                        OCT_PANEL);
    for (int64_t e = 0; e < l->n_experts; e++)
        for (int64_t s = 0; s < n_slices; s++)
            for (int64_t p = 0; p < l->n_panels; p++)
                OCT_TRY(export_panel(x, t, e, s, p, part_at));
    return OCT_OK;
}

/* ---- the whole ------------------------------------------------------------------------------ */

static oct_status export_embedding(exporter *x)
{
    const oct_table *t = &x->model->embedding;
    const size_t row = (size_t)t->cols * sizeof *t->data;
    uint64_t at = x->at[0];

    for (int64_t first = 0; first < t->n_rows; first += t->slice_rows) {
        const uint16_t *slice = t->data + first / t->slice_rows * t->slice_rows_pad * t->cols;
        int64_t n = t->n_rows - first < t->slice_rows ? t->n_rows - first : t->slice_rows;
        for (int64_t i = 0; i < n; i++, at += row)
            OCT_TRY(write_at(x, slice + i * t->cols, row, at));
    }
    return OCT_OK;
}

static oct_status export_layer(exporter *x, int64_t layer)
{
    const uint64_t *at = x->at + 1 + layer * N_LAYER_TENSORS;

    for (int k = 0; k < N_LAYER_TENSORS; k++) {
        const oct_weight *w = packed_source(&x->model->layers[layer], layer_tensors[k].kind);
        const oct_plain *t = plain_source(&x->model->layers[layer], layer_tensors[k].kind);
        oct_status status = OCT_OK;
        if (w && layer_tensors[k].part == 0) { /* the other parts follow it in the table */
            status = export_packed(x, w, at + k);
            free(x->rows);
            x->rows = NULL;
        } else if (t && t->data) { /* a dense model's router stays zero: one expert, gate 1 */
            status = write_at(x, t->data, (size_t)(t->rows * t->cols) * sizeof *t->data, at[k]);
        }
        OCT_TRY(status);
    }
    return OCT_OK;
}

static oct_status export_tensors(exporter *x)
{
    const oct_model *m = x->model;

    OCT_TRY(export_embedding(x));
    for (int64_t i = 0; i < m->config.n_layers; i++)
        OCT_TRY(export_layer(x, i));
    OCT_TRY(write_at(x, m->norm_final.data, (size_t)m->config.d_model * sizeof(float),
                     x->at[1 + m->config.n_layers * N_LAYER_TENSORS]));
    if (x->report->n_inexact && !x->params->lossy)
        return oct_fail(x->err, OCT_ERR_UNSUPPORTED,
                        "%s: expected scales that f16 holds exactly, found %" PRId64 " of %" PRId64
                        " that it does not (the first: %s); a lossy export rounds them",
                        oct_gguf_path(m->file), x->report->n_inexact, x->report->n_scales,
                        x->first_inexact);
    return OCT_OK;
}

static oct_status export_model(exporter *x)
{
    const char *out_path = x->params->out;
    void *header = NULL;
    size_t n = 0;
    oct_status status;

    OCT_TRY(oct_model_holds(x->model, &(oct_shard){.size = 1}, x->err));
    OCT_TRY(check_model(x));
    OCT_TRY(oct_output_check(out_path, &x->params->model, 1, x->err));
    OCT_TRY(make_header(x, &header, &n));
    status = oct_output_create(&x->out, out_path, x->report->bytes, &x->report->warnings, x->err);
    if (status == OCT_OK)
        status = write_at(x, header, n, 0);
    free(header);
    OCT_TRY(status);
    OCT_TRY(export_tensors(x));
    tell_losses(x);
    tell(x, OCT_CONVERT_SYNC);
    OCT_TRY(oct_output_sync(&x->out, x->err));
    OCT_TRY(check_cancel(x));
    OCT_TRY(oct_output_publish(&x->out, x->err));
    x->done = x->report->bytes;
    tell(x, OCT_CONVERT_DONE);
    return OCT_OK;
}

oct_status oct_export_q8_0(const oct_export_params *p, oct_export_report *report, oct_error *err)
{
    exporter x = {.params = p, .report = report, .err = err, .out = {.fd = -1, .from = p->model}};
    oct_model *model;

    *report = (oct_export_report){0};
    OCT_TRY(oct_model_open(p->model, &model, err));
    x.model = model;
    oct_status status = export_model(&x);
    oct_output_close(&x.out);
    free(x.at);
    oct_model_close(model);
    return status;
}
