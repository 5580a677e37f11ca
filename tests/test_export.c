/* test_export.c: the exported file holds the model's integers and scales, each at the place where
 * llama.cpp looks for it; what cannot be exported is refused and leaves nothing. */
#include "convert.h"
#include "f16.h"
#include "gguf.h"
#include "grok.h"
#include "mkckpt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <dirent.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TINY OCT_TEST_MODELS "/tiny-grok.gguf"

static char folder[] = "/tmp/octet-export-XXXXXX";
static char out[64], bent[64];

static int files_in_folder(void)
{
    DIR *d = opendir(folder);
    int n = 0;

    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static char warning[OCT_ERROR_TEXT]; /* the first one */

static oct_status export_with(const char *model, oct_export_params o, oct_export_report *r,
                              oct_error *err)
{
    memset(err, 0, sizeof *err);
    o.model = model;
    o.out = out;
    oct_status s = oct_export_q8_0(&o, r, err);
    snprintf(warning, sizeof warning, "%s", r->warnings.n ? r->warnings.line[0] : "");
    assert_true(r->warnings.n == 0 || o.lossy);
    oct_lines_free(&r->warnings);
    assert_int_equal(s, err->status);
    return s;
}

static oct_status export(const char *model, bool lossy, oct_export_report *r, oct_error *err)
{
    return export_with(model, (oct_export_params){.lossy = lossy}, r, err);
}

/* ---- content -------------------------------------------------------------------------------- */

typedef struct pair_of_files {
    oct_gguf *octet, *llama;
    oct_grok_config c;
    oct_grok_layouts l;
} pair_of_files;

static void open_pair(pair_of_files *f, const char *model)
{
    oct_error err = {0};

    assert_int_equal(oct_gguf_open(model, &f->octet, &err), OCT_OK);
    assert_int_equal(oct_grok_config_get(f->octet, &f->c, &err), OCT_OK);
    assert_int_equal(oct_grok_layouts_init(&f->c, NULL, &f->l, &err), OCT_OK);
    if (oct_gguf_open(out, &f->llama, &err) != OCT_OK)
        fail_msg("%s", err.text);
}

static void close_pair(pair_of_files *f)
{
    oct_gguf_close(f->octet);
    oct_gguf_close(f->llama);
}

static const oct_gguf_tensor *layer_part(const oct_gguf *g, int64_t layer, const char *name,
                                         const char *suffix)
{
    char full[64];

    snprintf(full, sizeof full, "blk.%d.%s.%s", (int)layer, name, suffix);
    const oct_gguf_tensor *t = oct_gguf_find(g, full);
    if (!t)
        fail_msg("no tensor %s", full);
    return t;
}

static const oct_gguf_tensor *layer_tensor(const oct_gguf *g, int64_t layer, const char *name)
{
    return layer_part(g, layer, name, "weight");
}

/* Every integer and scale of one packed matrix, by the functions that define the packing. */
static void compare_packed(const pair_of_files *f, int64_t layer, const char *name,
                           const oct_weight_layout *l, const char *const *part_name)
{
    const oct_gguf_tensor *t = layer_tensor(f->octet, layer, name), *part_t[OCT_WEIGHT_MAX_PARTS];
    const uint8_t *all_scales = layer_part(f->octet, layer, name, "scales")->data;
    int64_t seen = 0;

    for (int p = 0; p < l->n_parts; p++) {
        const uint64_t ne[4] = {(uint64_t)l->n_in, (uint64_t)l->part_out[p], (uint64_t)l->n_experts,
                                1};
        part_t[p] = layer_tensor(f->llama, layer, part_name[p]);
        assert_int_equal(part_t[p]->dtype, OCT_GGUF_T_Q8_0);
        assert_memory_equal(part_t[p]->ne, ne, sizeof ne);
    }
    for (int64_t e = 0; e < l->n_experts; e++)
        for (int64_t s = 0; s < l->n_slices; s++)
            for (int64_t panel = 0; panel < l->n_panels; panel++)
                for (int lane = 0; lane < OCT_PANEL; lane++) {
                    const uint8_t *unit =
                        (const uint8_t *)t->data + oct_weight_unit_offset(l, e, s);
                    const uint16_t *scales =
                        (const uint16_t *)(const void *)(all_scales +
                                                         oct_weight_scale_offset(l, e, s));
                    int part;
                    int64_t channel;
                    if (!oct_weight_lane(l, s, panel, lane, &part, &channel))
                        continue;
                    const int64_t n = l->unit_groups * l->group_in;
                    const int64_t first = l->split == OCT_SPLIT_IN ? s * n : 0;
                    const uint8_t *row = (const uint8_t *)part_t[part]->data +
                                         (e * l->part_out[part] + channel) * (l->n_in / 32 * 34);
                    for (int64_t i = 0; i < n; i++, seen++) {
                        const uint8_t *block = row + (first + i) / 32 * 34;
                        uint16_t f16,
                            bf16 = oct_weight_scale(l, scales, panel, lane, i / l->group_in);
                        memcpy(&f16, block, 2);
                        if (oct_f32_of_f16(f16) != oct_f32_of_bf16(bf16) ||
                            (int8_t)block[2 + (first + i) % 32] !=
                                oct_weight_at(l, unit, panel, lane, i))
                            fail_msg("layer %d %s: expert %d, channel %d, input %d", (int)layer,
                                     part_name[part], (int)e, (int)channel, (int)(first + i));
                    }
                }
    assert_int_equal(seen, l->n_experts * l->n_out * l->n_in);
}

static void compare_same(const oct_gguf_tensor *a, const oct_gguf_tensor *b)
{
    assert_int_equal(a->bytes, b->bytes);
    assert_int_equal(a->dtype, b->dtype);
    assert_memory_equal(a->data, b->data, a->bytes);
}

static void test_content(void **state)
{
    (void)state;
    pair_of_files f;
    oct_export_report r;
    oct_error err;

    if (export(TINY, false, &r, &err) != OCT_OK)
        fail_msg("%s", err.text);
    open_pair(&f, TINY);
    assert_int_equal(files_in_folder(), 1);
    assert_int_equal(r.bytes, oct_gguf_file_bytes(f.llama));
    assert_int_equal(r.n_inexact, 0);
    assert_int_equal(r.n_scales, 6 * (512 + 8 * 256 + 8 * (2 * 256 + 8 * 256)));
    assert_int_equal(oct_gguf_n_tensors(f.llama), 2 + 6 * 12);
    for (int64_t i = 0; i < f.c.n_layers; i++) {
        static const char *const same[] = {"attn_norm", "attn_output_norm", "ffn_norm",
                                           "layer_output_norm", "ffn_gate_inp"};
        compare_packed(&f, i, "attn_qkv", &f.l.of[OCT_WEIGHT_Q8][OCT_GROK_QKV],
                       (const char *const[]){"attn_q", "attn_k", "attn_v"});
        compare_packed(&f, i, "attn_output", &f.l.of[OCT_WEIGHT_Q8][OCT_GROK_ATTN_OUT],
                       (const char *const[]){"attn_output"});
        compare_packed(&f, i, "ffn_gate_up", &f.l.of[OCT_WEIGHT_Q8][OCT_GROK_GATE_UP],
                       (const char *const[]){"ffn_gate_exps", "ffn_up_exps"});
        compare_packed(&f, i, "ffn_down", &f.l.of[OCT_WEIGHT_Q8][OCT_GROK_DOWN],
                       (const char *const[]){"ffn_down_exps"});
        for (size_t k = 0; k < sizeof same / sizeof same[0]; k++)
            compare_same(layer_tensor(f.octet, i, same[k]), layer_tensor(f.llama, i, same[k]));
    }
    compare_same(oct_gguf_find(f.octet, "output_norm.weight"),
                 oct_gguf_find(f.llama, "output_norm.weight"));
    const oct_gguf_tensor *a = oct_gguf_find(f.octet, "token_embd.weight");
    const oct_gguf_tensor *b = oct_gguf_find(f.llama, "token_embd.weight");
    const uint64_t row = 2 * 256;
    assert_int_equal(b->dtype, OCT_GGUF_T_BF16);
    assert_int_equal(b->bytes, 4096 * row);
    for (uint64_t i = 0; i < 4096; i++) {
        const uint64_t in_file = i / 512 * (uint64_t)f.l.embedding.slice_rows_pad + i % 512;
        assert_memory_equal((const uint8_t *)a->data + in_file * row,
                            (const uint8_t *)b->data + i * row, row);
    }
    close_pair(&f);
    unlink(out);
}

/* ---- from the checkpoint, all the way ------------------------------------------------------- */

static const struct {
    mk_leaf leaf;
    const char *name;
} leaf_names[] = {
    {MK_GATE, "ffn_gate_exps"}, {MK_DOWN, "ffn_down_exps"},      {MK_UP, "ffn_up_exps"},
    {MK_KEY, "attn_k"},         {MK_ATTN_OUT, "attn_output"},    {MK_QUERY, "attn_q"},
    {MK_VALUE, "attn_v"},       {MK_NORM0, "attn_norm"},         {MK_NORM1, "attn_output_norm"},
    {MK_NORM2, "ffn_norm"},     {MK_NORM3, "layer_output_norm"}, {MK_ROUTER, "ffn_gate_inp"}};

/* A checkpoint's matrix is [experts][in][out], llama.cpp's [experts][out][in]. */
static void check_matrix(const mk_spec *s, int64_t layer, mk_leaf leaf, const oct_gguf_tensor *t)
{
    int64_t shape[3];
    const int rank = mk_shape(s, leaf, shape);
    const int64_t n_out = shape[rank - 1], n_in = shape[rank - 2], n_e = rank == 3 ? shape[0] : 1;
    const int64_t groups = mk_groups(s, leaf);

    assert_int_equal(t->bytes, n_e * n_out * n_in / 32 * 34);
    for (int64_t e = 0; e < n_e; e++)
        for (int64_t o = 0; o < n_out; o++)
            for (int64_t i = 0; i < n_in; i++) {
                const uint8_t *block =
                    (const uint8_t *)t->data + ((e * n_out + o) * n_in + i) / 32 * 34;
                const int64_t g = i / (n_in / groups);
                uint16_t f16;
                memcpy(&f16, block, 2);
                if ((int8_t)block[2 + i % 32] !=
                        mk_weight(s, layer, leaf, (e * n_in + i) * n_out + o) ||
                    oct_f32_of_f16(f16) !=
                        oct_f32_of_bf16(mk_scale(s, layer, leaf, (e * groups + g) * n_out + o)))
                    fail_msg("%s: expert %d, output %d, input %d", t->name, (int)e, (int)o, (int)i);
            }
}

static void check_plain(const mk_spec *s, int64_t layer, mk_leaf leaf, const oct_gguf_tensor *t)
{
    const float *v = t->data;

    assert_int_equal(t->dtype, OCT_GGUF_T_F32);
    for (int64_t i = 0; i < (int64_t)(t->ne[0] * t->ne[1]); i++) {
        int64_t from = i;
        if (leaf == MK_ROUTER) { /* [d][experts] there, [experts][d] here */
            if (s->experts == 1) {
                assert_true(v[i] == 0); /* a dense model's: made up */
                continue;
            }
            from = i % s->d * s->experts + i / s->d;
        }
        assert_true(v[i] == mk_number(s, layer, leaf, from));
    }
}

static int remove_one(const char *name, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(name);
}

static void check_from_checkpoint(const mk_spec *s)
{
    char dir[64], model[64];
    oct_export_report r;
    oct_error err = {0};
    oct_gguf *g;
    const char *text;

    snprintf(dir, sizeof dir, "%s/checkpoint", folder);
    snprintf(model, sizeof model, "%s/octet.gguf", folder);
    assert_true(mk_write(s, dir));
    oct_convert_report report = {0};
    const oct_convert_params params = {
        .checkpoint = dir, .out = model, .no_tokenizer = true, .n_threads = 1};
    if (oct_convert(&params, &report, &err) != OCT_OK || export(model, false, &r, &err) != OCT_OK)
        fail_msg("%s", err.text);
    oct_convert_report_free(&report);
    assert_int_equal(oct_gguf_open(out, &g, &err), OCT_OK);
    assert_int_equal(oct_gguf_get_str(g, "tokenizer.ggml.model", &text, &err), OCT_OK);
    assert_string_equal(text, "none");
    for (int64_t layer = 0; layer < s->layers; layer++)
        for (size_t k = 0; k < sizeof leaf_names / sizeof leaf_names[0]; k++) {
            const oct_gguf_tensor *t = layer_tensor(g, layer, leaf_names[k].name);
            if (leaf_names[k].leaf <= MK_VALUE)
                check_matrix(s, layer, leaf_names[k].leaf, t);
            else
                check_plain(s, layer, leaf_names[k].leaf, t);
        }
    check_plain(s, -1, MK_NORM_FINAL, oct_gguf_find(g, "output_norm.weight"));
    const oct_gguf_tensor *t = oct_gguf_find(g, "token_embd.weight");
    assert_int_equal(t->ne[1], s->vocab);
    for (int64_t i = 0; i < s->vocab * s->d; i++)
        assert_int_equal(((const uint16_t *)t->data)[i],
                         oct_bf16_of_f32(mk_number(s, -1, MK_EMBEDDING, i)));
    oct_gguf_close(g);
    nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    unlink(model);
    unlink(out);
}

/* Panels that parts share, slices of the vocabulary with padding, padded panels, one slice with
 * several groups. */
static void test_from_checkpoint(void **state)
{
    (void)state;
    mk_spec s = {.layers = 2,
                 .vocab = 259,
                 .d = 128,
                 .ffn = 192,
                 .q_heads = 8,
                 .kv_heads = 2,
                 .head = 16,
                 .experts = 3,
                 .used = 2,
                 .context = 64,
                 .groups = 2,
                 .seed = 7};

    check_from_checkpoint(&s);
    s.experts = s.used = 1;
    check_from_checkpoint(&s);
    s.kv_heads = 1;
    check_from_checkpoint(&s);
}

static void test_keys(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint64_t v;
    } ints[] = {{"general.file_type", 7},
                {"grok.block_count", 6},
                {"grok.vocab_size", 4096},
                {"grok.context_length", 1024},
                {"grok.embedding_length", 256},
                {"grok.feed_forward_length", 256},
                {"grok.attention.head_count", 16},
                {"grok.attention.head_count_kv", 8},
                {"grok.attention.key_length", 16},
                {"grok.expert_count", 8},
                {"grok.expert_used_count", 2},
                {"tokenizer.ggml.bos_token_id", 1},
                {"tokenizer.ggml.eos_token_id", 2},
                {"tokenizer.ggml.unknown_token_id", 3},
                {"tokenizer.ggml.padding_token_id", 0}};
    static const struct {
        const char *key;
        float v;
    } floats[] = {
        {"grok.attention.output_scale", 0.25f}, {"grok.attn_logit_softcapping", 30},
        {"grok.embedding_scale", 16},           {"grok.logit_scale", 0.5773502691896257f},
        {"grok.rope.freq_base", 10000},         {"grok.attention.layer_norm_rms_epsilon", 1e-5f}};
    oct_export_report r;
    oct_error err;
    oct_gguf *g;
    const char *s;
    const void *p;
    uint64_t n;

    assert_int_equal(export(TINY, false, &r, &err), OCT_OK);
    assert_int_equal(oct_gguf_open(out, &g, &err), OCT_OK);
    assert_int_equal(oct_gguf_get_str(g, "general.architecture", &s, &err), OCT_OK);
    assert_string_equal(s, "grok");
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) {
        assert_int_equal(oct_gguf_get_u64(g, ints[i].key, &n, &err), OCT_OK);
        assert_int_equal(n, ints[i].v);
    }
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++) {
        float v;
        assert_int_equal(oct_gguf_get_f32(g, floats[i].key, &v, &err), OCT_OK);
        assert_true(v == floats[i].v);
    }
    int32_t type[300];
    float score[2];
    assert_int_equal(oct_gguf_get_array(g, "tokenizer.ggml.token_type", OCT_GGUF_I32, &p, &n, &err),
                     OCT_OK);
    assert_int_equal(n, 4096);
    memcpy(type, p, sizeof type);
    assert_int_equal(type[0], 3);   /* [PAD]: control */
    assert_int_equal(type[3], 2);   /* [UNK]: unknown */
    assert_int_equal(type[4], 6);   /* <0x00>: byte */
    assert_int_equal(type[259], 6); /* <0xFF> */
    assert_int_equal(type[260], 1); /* normal */
    assert_int_equal(oct_gguf_get_array(g, "tokenizer.ggml.scores", OCT_GGUF_F32, &p, &n, &err),
                     OCT_OK);
    assert_int_equal(n, 4096);
    memcpy(score, (const uint8_t *)p + 4 * 260, sizeof score);
    assert_true(score[1] == score[0] - 1); /* merges in the order of ids */
    oct_gguf_close(g);
    unlink(out);
}

/* ---- refusals ------------------------------------------------------------------------------- */

static void expect_refused(const char *model, bool lossy, oct_status status, const char *part)
{
    oct_export_report r;
    oct_error err;
    int before = files_in_folder();

    if (export(model, lossy, &r, &err) != status || !strstr(err.text, part))
        fail_msg("expected %s \"%s\", found: %s", oct_status_name(status), part, err.text);
    assert_int_equal(files_in_folder(), before);
}

static void test_models_that_do_not_fit(void **state)
{
    (void)state;
    expect_refused(OCT_TEST_MODELS "/odd.gguf", true, OCT_ERR_UNSUPPORTED,
                   "attention output: expected scale groups of a multiple of 32 inputs");
    expect_refused(OCT_TEST_MODELS "/dense.gguf", false, OCT_ERR_UNSUPPORTED, "found groups of 16");
    expect_refused(OCT_TEST_MODELS "/absent.gguf", false, OCT_ERR_IO, "absent.gguf");
    expect_refused(OCT_TEST_MODELS, false, OCT_ERR_IO, "directory");
}

static void test_bad_outputs(void **state)
{
    (void)state;
    char good[sizeof out];

    strcpy(good, out);
    strcpy(out, folder);
    expect_refused(TINY, false, OCT_ERR_ARG, folder);
    snprintf(out, sizeof out, "%s/none/x.gguf", folder);
    expect_refused(TINY, false, OCT_ERR_IO, "none");
    strcpy(out, good);
    /* The model itself, by another name. */
    assert_int_equal(symlink(TINY, out), 0);
    expect_refused(TINY, false, OCT_ERR_ARG, out);
    unlink(out);
}

/* A copy of the model in which the scale of channel 70 of layer 1's attention output, group 3, has
 * other bits. */
static void bend_scale(uint16_t bits)
{
    oct_gguf *g;
    oct_grok_config c;
    oct_grok_layouts l;
    oct_error err = {0};

    assert_int_equal(oct_gguf_open(TINY, &g, &err), OCT_OK);
    assert_int_equal(oct_grok_config_get(g, &c, &err), OCT_OK);
    assert_int_equal(oct_grok_layouts_init(&c, NULL, &l, &err), OCT_OK);
    const oct_gguf_tensor *t = layer_part(g, 1, "attn_output", "scales");
    /* Slice 3 holds group 3; panel 1, lane 6. */
    const uint64_t at = t->offset +
                        oct_weight_scale_offset(&l.of[OCT_WEIGHT_Q8][OCT_GROK_ATTN_OUT], 0, 3) +
                        2 * (64 + 6);
    FILE *f = fopen(bent, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(oct_gguf_bytes(g), 1, oct_gguf_file_bytes(g), f),
                     oct_gguf_file_bytes(g));
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    assert_int_equal(fwrite(&bits, 2, 1, f), 1);
    assert_int_equal(fclose(f), 0);
    oct_gguf_close(g);
}

static float exported_scale(void)
{
    oct_gguf *g;
    oct_error err = {0};
    uint16_t f16;

    assert_int_equal(oct_gguf_open(out, &g, &err), OCT_OK);
    const oct_gguf_tensor *t = layer_tensor(g, 1, "attn_output");
    memcpy(&f16, (const uint8_t *)t->data + 70 * (256 / 32 * 34) + 3 * 34, 2);
    oct_gguf_close(g);
    unlink(out);
    return oct_f32_of_f16(f16);
}

static void test_scales(void **state)
{
    (void)state;
    static const struct {
        float v;
        bool exact;
        float rounded;
    } cases[] = {{0x1p-14f, true, 0x1p-14f},     {0x1.02p-17f, true, 0x1.02p-17f},
                 {0x1p-24f, true, 0x1p-24f},     {0, true, 0},
                 {-0x1p-3f, true, -0x1p-3f},     {0x1.fep15f, true, 0x1.fep15f},
                 {0x1.02p-18f, false, 0x1p-18f}, {0x1p-26f, false, 0},
                 {0x1p16f, false, 65504},        {-0x1p20f, false, -65504}};
    oct_export_report r;
    oct_error err;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bend_scale(oct_bf16_of_f32(cases[i].v));
        if (cases[i].exact) {
            assert_int_equal(export(bent, false, &r, &err), OCT_OK);
            assert_int_equal(r.n_inexact, 0);
            assert_true(exported_scale() == cases[i].v);
            continue;
        }
        expect_refused(bent, false, OCT_ERR_UNSUPPORTED, "found 1 of 138240");
        expect_refused(bent, false, OCT_ERR_UNSUPPORTED,
                       "blk.1.attn_output.weight, expert 0, part 0, channel 70");
        assert_int_equal(export(bent, true, &r, &err), OCT_OK);
        assert_int_equal(r.n_inexact, 1);
        assert_int_equal(r.n_scales, 138240);
        const bool zeroed = cases[i].rounded == 0, capped = fabsf(cases[i].v) > 65504;
        assert_int_equal(r.n_zeroed, zeroed);
        assert_int_equal(r.n_capped, capped);
        assert_true(zeroed || capped || fabs(r.scale_error - (1 - 1 / 1.0078125)) < 1e-9);
        const char *what = zeroed ? "are zero now" : capped ? "65504" : "";
        assert_true(*what ? strstr(warning, what) && strstr(warning, "channel 70") : !*warning);
        assert_true(exported_scale() == cases[i].rounded);
    }
    bend_scale(0x7fc0); /* NaN */
    expect_refused(bent, true, OCT_ERR_NUMERIC, "channel 70: expected a finite scale, found nan");
    bend_scale(0xff80); /* -Inf */
    expect_refused(bent, true, OCT_ERR_NUMERIC, "found -inf");
    unlink(bent);
}

/* ---- progress, cancellation ----------------------------------------------------------------- */

typedef struct watch {
    uint64_t done, total, stop_at;
    int cancel, calls;
    oct_convert_phase phase;
} watch;

static void on_progress(void *ctx, const oct_convert_progress *p)
{
    watch *w = ctx;

    w->phase = p->phase;
    if (p->phase == OCT_CONVERT_DONE) {
        assert_null(p->temp);
        return;
    }
    assert_non_null(p->temp);
    assert_int_equal(access(p->temp, R_OK), 0);
    if (p->phase == OCT_CONVERT_SYNC)
        return;
    assert_true(p->done >= w->done && p->done <= p->total);
    w->done = p->done;
    w->total = p->total;
    w->calls++;
    if (w->done >= w->stop_at)
        w->cancel = 1;
}

static void test_progress_and_cancel(void **state)
{
    (void)state;
    watch w = {.stop_at = UINT64_MAX};
    oct_export_report r;
    oct_error err;
    FILE *f;
    char old[4] = "";

    assert_int_equal(
        export_with(
            TINY,
            (oct_export_params){.cancel = &w.cancel, .progress = on_progress, .progress_ctx = &w},
            &r, &err),
        OCT_OK);
    assert_true(w.calls > 100 && w.phase == OCT_CONVERT_DONE);
    assert_int_equal(w.total, r.bytes);
    assert_true(w.total - w.done < 32 * 80); /* padding between tensors is not written */
    unlink(out);

    /* Stopped half way, the file that was there stays as it was. */
    f = fopen(out, "wb");
    assert_non_null(f);
    fputs("old", f);
    assert_int_equal(fclose(f), 0);
    for (int tenth = 0; tenth <= 10; tenth++) {
        w = (watch){.stop_at = tenth < 10 ? r.bytes * (unsigned)tenth / 10 : w.done};
        assert_int_equal(export_with(TINY,
                                     (oct_export_params){.cancel = &w.cancel,
                                                         .progress = on_progress,
                                                         .progress_ctx = &w},
                                     &r, &err),
                         OCT_ERR_CANCELLED);
        assert_int_equal(files_in_folder(), 1);
    }
    f = fopen(out, "rb");
    assert_non_null(f);
    assert_int_equal(fread(old, 1, sizeof old, f), 3);
    assert_int_equal(fclose(f), 0);
    assert_memory_equal(old, "old", 3);
    /* And is replaced by a complete one. */
    assert_int_equal(export(TINY, false, &r, &err), OCT_OK);
    assert_int_equal(files_in_folder(), 1);
    unlink(out);
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(out, sizeof out, "%s/x.gguf", folder);
    snprintf(bent, sizeof bent, "%s/bent.gguf", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_content),
        cmocka_unit_test(test_from_checkpoint),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_models_that_do_not_fit),
        cmocka_unit_test(test_bad_outputs),
        cmocka_unit_test(test_scales),
        cmocka_unit_test(test_progress_and_cancel),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
