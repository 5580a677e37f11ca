/* test_source.c: the interface between the converter and formats: a second source, which makes its
 * numbers in memory and keeps every matrix the other way round, gives the very file that xAI's
 * pickles with the same numbers give; memory has a bound for any shape; and what a path is that no
 * format knows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>

#include "ckpt_rig.h"
#include "convert_impl.h"
#include "f16.h"

/* ---- a source in memory --------------------------------------------------------------------- */

typedef struct memory_source {
    oct_source base;
    const mk_spec *spec;
    bool bent; /* one weight is not a number */
} memory_source;

/* The leaves of mkckpt have the names of roles. */
static mk_leaf leaf_of(oct_role role)
{
    static const mk_leaf leaves[OCT_ROLES] = {[OCT_ROLE_GATE] = MK_GATE,
                                              [OCT_ROLE_DOWN] = MK_DOWN,
                                              [OCT_ROLE_UP] = MK_UP,
                                              [OCT_ROLE_KEY] = MK_KEY,
                                              [OCT_ROLE_ATTN_OUT] = MK_ATTN_OUT,
                                              [OCT_ROLE_QUERY] = MK_QUERY,
                                              [OCT_ROLE_VALUE] = MK_VALUE,
                                              [OCT_ROLE_NORM_ATTN_IN] = MK_NORM0,
                                              [OCT_ROLE_NORM_ATTN_OUT] = MK_NORM1,
                                              [OCT_ROLE_NORM_FFN_IN] = MK_NORM2,
                                              [OCT_ROLE_NORM_FFN_OUT] = MK_NORM3,
                                              [OCT_ROLE_ROUTER] = MK_ROUTER,
                                              [OCT_ROLE_EMBEDDING] = MK_EMBEDDING,
                                              [OCT_ROLE_NORM_FINAL] = MK_NORM_FINAL};
    return leaves[role];
}

static const mk_spec *spec_of(const oct_source *s)
{
    return ((const memory_source *)(const void *)s)->spec;
}

static bool is_matrix(oct_role role)
{
    return role <= OCT_ROLE_VALUE;
}

static void describe(const oct_source *s, oct_role role, int64_t layer, oct_source_tensor *t)
{
    const mk_spec *spec = spec_of(s);
    int64_t shape[3] = {1, 1, 1};
    const int rank = mk_shape(spec, leaf_of(role), shape);
    const bool embedding =
        role == OCT_ROLE_EMBEDDING; /* [vocabulary][d]: as xAI has it, [out][in] */
    const int64_t rows = rank > 1 ? shape[rank - 2] : 1, columns = shape[rank - 1];
    *t = (oct_source_tensor){.role = role,
                             .layer = layer,
                             .dtype = spec->kind == MK_BF16                      ? OCT_SOURCE_BF16
                                      : spec->kind == MK_F32 || !is_matrix(role) ? OCT_SOURCE_F32
                                                                                 : OCT_SOURCE_I8,
                             .order = embedding ? OCT_IN_OUT : OCT_OUT_IN,
                             .n_experts = rank == 3 ? shape[0] : 1,
                             .n_in = embedding ? columns : rows,
                             .n_out = embedding ? rows : columns};
    if (t->dtype == OCT_SOURCE_I8)
        t->n_groups = mk_groups(spec, leaf_of(role));
}

static oct_status read_block(const oct_source *s, const oct_source_tensor *t, oct_source_part part,
                             const oct_block *b, void *out, oct_error *err)
{
    const memory_source *m = (const memory_source *)(const void *)s;
    const mk_leaf leaf = leaf_of(t->role);
    const bool scales = part == OCT_SOURCE_SCALES;
    const int64_t n_in = scales ? t->n_groups : t->n_in, n_out = t->n_out;
    (void)err;
    assert_true(b->expert >= 0 && b->expert < t->n_experts);
    assert_true(b->row >= 0 && b->row + b->n_rows <= (t->order == OCT_IN_OUT ? n_in : n_out));
    assert_true(b->column >= 0 &&
                b->column + b->n_columns <= (t->order == OCT_IN_OUT ? n_out : n_in));
    for (int64_t i = 0, r = 0; r < b->n_rows; r++)
        for (int64_t c = 0; c < b->n_columns; c++, i++) {
            const int64_t row = b->row + r, column = b->column + c;
            const int64_t in = t->order == OCT_IN_OUT ? row : column;
            const int64_t o = t->order == OCT_IN_OUT ? column : row;
            /* mkckpt counts as xAI's arrays lie: [in][out], but [vocabulary][d]. */
            const int64_t at =
                t->role == OCT_ROLE_EMBEDDING ? o * n_in + in : (b->expert * n_in + in) * n_out + o;
            if (scales) {
                ((uint16_t *)out)[i] = mk_scale(m->spec, t->layer, leaf, at);
            } else if (t->dtype == OCT_SOURCE_I8) {
                ((int8_t *)out)[i] = mk_weight(m->spec, t->layer, leaf, at);
            } else {
                float v = mk_number(m->spec, t->layer, leaf, at);
                if (m->bent && t->role == OCT_ROLE_UP && in == 5 && o == 9 && b->expert == 1)
                    v = NAN;
                if (t->dtype == OCT_SOURCE_BF16)
                    ((uint16_t *)out)[i] = oct_bf16_of_f32(v);
                else
                    ((float *)out)[i] = v;
            }
        }
    return OCT_OK;
}

static void where(const oct_source *s, const oct_source_tensor *t, oct_source_part part,
                  int64_t expert, int64_t row, int64_t column, char text[OCT_SOURCE_WHERE])
{
    (void)s;
    snprintf(text, OCT_SOURCE_WHERE, "role %d of layer %d, %s of expert %d: row %d, column %d",
             t->role, (int)t->layer, part == OCT_SOURCE_SCALES ? "scale" : "weight", (int)expert,
             (int)row, (int)column);
}

static bool no_file(const oct_source *s, const struct stat *st)
{
    (void)s;
    (void)st;
    return false;
}

static const oct_source_kind memory_kind = {.name = "numbers in memory",
                                            .tensor = describe,
                                            .read = read_block,
                                            .where = where,
                                            .is_file = no_file};

/* The configuration is that of the same model as xAI's checkpoint. */
static memory_source memory_of(const mk_spec *spec, const char *ckpt)
{
    oct_lines problems = {0}, warnings = {0};
    oct_source_params p = {
        .path = ckpt, .no_tokenizer = true, .problems = &problems, .warnings = &warnings};
    oct_error err = {0};
    oct_source *xai;
    if (oct_source_open(&p, &xai, &err) != OCT_OK)
        fail_msg("%s", err.text);
    assert_ptr_equal(xai->kind, &oct_source_xai);
    static char name[] = "memory";
    memory_source m = {.base = {.kind = &memory_kind, .dir = name}, .spec = spec};
    m.base.config = xai->config;
    oct_source_close(xai);
    oct_lines_free(&warnings);
    return m;
}

static void same_files(const mk_spec *spec, int threads)
{
    rig_dir d = rig_new(spec);
    oct_convert_report r = {0};
    oct_error err = {0};
    char other[100];
    if (rig_convert(&d, &r, &err) != OCT_OK)
        fail_msg("%s", err.text);
    oct_convert_report_free(&r);
    memory_source m = memory_of(spec, d.ckpt);
    snprintf(other, sizeof other, "%s/other.gguf", d.path);
    const oct_convert_params p = {.out = other, .n_threads = threads};
    if (oct_convert_source(&m.base, &p, &r, &err) != OCT_OK)
        fail_msg("%s", err.text);
    assert_string_equal(r.format, "numbers in memory");
    oct_convert_report_free(&r);
    rig_map a = rig_map_file(d.out), b = rig_map_file(other);
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.data, b.data, a.n);
    rig_unmap(a);
    rig_unmap(b);
    rig_free(&d);
}

static void test_same_file(void **state)
{
    (void)state;
    for (int kind = MK_INT8; kind <= MK_BF16; kind++) {
        mk_spec s = rig_small;
        s.layers = 3;
        s.kind = (mk_kind)kind;
        same_files(&s, 1);
        same_files(&s, 5);
    }
}

/* Rows that are longer than what is turned at once, pieces that are parts of a unit. */
static void test_same_wide_file(void **state)
{
    (void)state;
    const mk_spec s = {.layers = 1,
                       .vocab = 300,
                       .d = 256,
                       .ffn = 9000,
                       .q_heads = 2,
                       .kv_heads = 1,
                       .head = 128,
                       .experts = 1,
                       .used = 1,
                       .context = 64,
                       .groups = 1,
                       .kind = MK_INT8,
                       .seed = 3};
    same_files(&s, 60);
    mk_spec plain = s;
    plain.kind = MK_F32;
    same_files(&plain, 2);
}

static void test_position(void **state)
{
    (void)state;
    mk_spec s = rig_small;
    s.layers = 1;
    s.kind = MK_F32;
    rig_dir d = rig_new(&s);
    oct_convert_report r = {0};
    oct_error err = {0};
    memory_source m = memory_of(&s, d.ckpt);
    m.bent = true;
    const oct_convert_params p = {.out = d.out, .n_threads = 2};
    assert_int_equal(oct_convert_source(&m.base, &p, &r, &err), OCT_ERR_NUMERIC);
    if (!strstr(err.text, "layer 0, weight of expert 1: row 9, column 5 is NaN"))
        fail_msg("%s", err.text);
    assert_int_equal(rig_count_outputs(&d), 0);
    oct_convert_report_free(&r);
    rig_free(&d);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* For any number of threads: all of their working memory together has a bound, or the model is
 * refused. */
static void check_memory(const oct_grok_config *config, mk_kind kind, size_t kept, bool refused)
{
    const mk_spec spec = {.layers = config->n_layers,
                          .vocab = config->n_vocab,
                          .d = config->d_model,
                          .ffn = config->d_ff,
                          .q_heads = config->n_q_heads,
                          .kv_heads = config->n_kv_heads,
                          .head = config->head_dim,
                          .experts = config->n_experts,
                          .used = config->n_used,
                          .groups = config->down_groups,
                          .kind = kind};
    memory_source m = {.base = {.kind = &memory_kind, .config = *config, .kept_bytes = kept},
                       .spec = &spec};
    oct_conversion c = {.params = &(oct_convert_params){0}, .source = &m.base};
    oct_error err = {0};
    if (oct_conversion_plan(&c, &err) != OCT_OK)
        fail_msg("%s", err.text);
    static const int counts[] = {1, 2, 3, 7, 16, 64, 70};
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        const int threads = counts[k];
        oct_cut cut;
        oct_status s = oct_conversion_cut(&c, threads, &cut, &err);
        assert_int_equal(s, refused ? OCT_ERR_UNSUPPORTED : OCT_OK);
        if (s != OCT_OK) {
            assert_non_null(strstr(err.text, "expected at most"));
            continue;
        }
        assert_true(cut.n_threads >= 1 && cut.n_threads <= threads);
        assert_true((size_t)cut.n_threads * cut.room + kept <= OCT_CONVERT_MEMORY);
        uint64_t next =
            c.tensors[0].at; /* pieces follow each other, padding between tensors apart */
        for (int64_t i = 0; i < cut.n; i++) {
            if (i && cut.pieces[i].tensor != cut.pieces[i - 1].tensor)
                next = c.tensors[cut.pieces[i].tensor].at;
            assert_true(cut.pieces[i].at == next && cut.pieces[i].bytes <= cut.room);
            next += cut.pieces[i].bytes;
        }
        free(cut.pieces);
    }
    free(c.tensors);
}

static void test_memory(void **state)
{
    (void)state;
    const oct_grok_config grok1 = oct_grok1_config(64, 131072);
    oct_grok_config c = grok1;
    c.n_layers = 2;
    for (int kind = MK_INT8; kind <= MK_BF16; kind++)
        check_memory(&c, (mk_kind)kind, 0, false);
    check_memory(&grok1, MK_INT8, 0, false);
    check_memory(&grok1, MK_INT8, 125 << 20, false); /* scales that were found */
    c.n_vocab = 4 << 20;
    check_memory(&c, MK_INT8, 0, false);
    /* One unit is a whole matrix of gigabytes. */
    c.n_slices = c.n_kv_heads = c.attn_out_groups = c.down_groups = 1;
    c.n_experts = c.n_used = 1;
    c.d_ff = 256 << 10;
    check_memory(&c, MK_INT8, 0, false);
    check_memory(&c, MK_F32, 0, false);
    /* More inputs than can be held for 64 outputs. */
    c.d_ff = 4 << 20;
    check_memory(&c, MK_INT8, 0, true);
    check_memory(&c, MK_F32, 0, true);
}

/* ---- paths ---------------------------------------------------------------------------------- */

static void refused(const char *path, oct_status status, const char *one, const char *two)
{
    oct_lines problems = {0}, warnings = {0};
    oct_source_params p = {
        .path = path, .no_tokenizer = true, .problems = &problems, .warnings = &warnings};
    oct_error err = {0};
    oct_source *s = NULL;
    assert_int_equal(oct_source_open(&p, &s, &err), status);
    assert_null(s);
    if (!strstr(err.text, path) || !strstr(err.text, one) || !strstr(err.text, two))
        fail_msg("%s: expected \"%s\" and \"%s\" in: %s", path, one, two, err.text);
    oct_lines_free(&problems);
    oct_lines_free(&warnings);
}

static void put(const rig_dir *d, const char *name, const char *data, size_t n, char path[160])
{
    snprintf(path, 160, "%s/%s", d->path, name);
    rig_write_file(path, data, n);
}

static void test_unknown_paths(void **state)
{
    (void)state;
    static const char right[] = "tensor00000_000";
    static const struct {
        const char *file, *says;
    } folders[] = {
        {"pytorch_model.bin.index.json", "PyTorch"},
        {"consolidated.00.pth", "PyTorch"},
        {"grok-1-q4_k.gguf", "GGUF files (grok-1-q4_k.gguf)"},
        {"grok-1.torrent", "a torrent's description"},
        {"checkpoint.tar.gz", "unpacked first"},
        {"ckpt-0.aria2", "an unfinished download"},
        {"README.md", "no checkpoint in it"},
    };
    rig_dir d = rig_new(NULL);
    char path[160];
    refused(d.path, OCT_ERR_FORMAT, "the folder is empty", right);
    refused("nowhere", OCT_ERR_IO, "No such file", "");
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        put(&d, folders[i].file, "x", 1, path);
        refused(d.path, OCT_ERR_FORMAT, folders[i].says, right);
        assert_int_equal(unlink(path), 0);
    }
    /* Files. */
    put(&d, "x", "GGUF\3\0\0\0", 8, path);
    refused(path, OCT_ERR_UNSUPPORTED, "a GGUF file, made for another runtime", right);
    put(&d, "x", "\0\1\0\0\0\0\0\0{\"a\":", 13, path);
    refused(path, OCT_ERR_ARG, "not a folder, but a safetensors file", right);
    put(&d, "x", "d8:announce35:", 14, path);
    refused(path, OCT_ERR_ARG, "a torrent", right);
    put(&d, "x", "", 0, path);
    refused(path, OCT_ERR_ARG, "not a folder; expected", right);
    rig_free(&d);
}

/* A model file of our own, and one of llama.cpp. */
static void test_gguf_files(void **state)
{
    (void)state;
    mk_spec s = {.layers = 1,
                 .vocab = 64,
                 .d = 64,
                 .ffn = 64,
                 .q_heads = 2,
                 .kv_heads = 2,
                 .head = 32,
                 .experts = 2,
                 .used = 1,
                 .context = 64,
                 .groups = 2,
                 .seed = 1};
    rig_dir d = rig_new(&s);
    char llama[160];
    oct_convert_report r = {0};
    oct_export_report e;
    oct_error err = {0};
    if (rig_convert(&d, &r, &err) != OCT_OK)
        fail_msg("%s", err.text);
    oct_convert_report_free(&r);
    refused(d.out, OCT_ERR_FORMAT, "a model file already", "octet run");
    snprintf(llama, sizeof llama, "%s/llama.gguf", d.path);
    if (oct_export_q8_0(&(oct_export_params){.model = d.out, .out = llama, .lossy = true}, &e,
                        &err) != OCT_OK)
        fail_msg("%s", err.text);
    refused(llama, OCT_ERR_UNSUPPORTED, "a GGUF file of architecture 'grok'", "tensor00000_000");
    rig_free(&d);
}

/* A torrent's folder, a cache of snapshots: the checkpoint below is named. */
static void test_folders_above(void **state)
{
    (void)state;
    mk_spec s = rig_small;
    s.layers = 1;
    rig_dir d = rig_new(&s); /* PATH/model/ckpt-0 */
    char path[160], deep[200];
    snprintf(path, sizeof path, "%s/model below it is an xAI checkpoint", d.path);
    refused(d.path, OCT_ERR_FORMAT, path, "name that");
    snprintf(path, sizeof path, "%s/snapshots", d.path);
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(deep, sizeof deep, "%s/0123", path);
    assert_int_equal(rename(d.ckpt, deep), 0);
    refused(d.path, OCT_ERR_FORMAT, deep, "name that");
    /* A link that leads back is not followed. */
    snprintf(path, sizeof path, "%s/ring", d.path);
    assert_int_equal(symlink(".", path), 0);
    refused(d.path, OCT_ERR_FORMAT, deep, "name that");
    rig_free(&d);
}

/* What download tools and systems leave beside a file. */
static void test_side_files(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool fine;
    } cases[] = {
        {"._tensor00003_000", true},
        {".DS_Store", true},
        {"README.md", true},
        {"tensor00003_000:Zone.Identifier", true},
        {"tensor00003_000.sha256", true},
        {"tensor00003_000.MD5", true},
        {"tensor00003_000.torrent", true},
        {"tensor00003_000~", true},
        {"tensor00003_000.aria2", false},
        {"tensor00003_000.part", false},
        {"tensor00003_000.crdownload", false},
        {"tensor00003_000.!qB", false},
        {"tensor00003_000.incomplete", false},
        {"tensor00003_000 (1)", false},
        {"tensor00003_000.old", false},
        {"../ckpt-0.aria2", false},
    };
    mk_spec s = rig_small;
    s.layers = 1;
    rig_dir d = rig_new(&s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        oct_convert_report r;
        oct_error err;
        char path[200];
        snprintf(path, sizeof path, "%s/ckpt-0/%s", d.ckpt, cases[i].name);
        rig_write_file(path, "x", 1);
        oct_status status = rig_convert(&d, &r, &err);
        if ((status == OCT_OK) != cases[i].fine)
            fail_msg("%s: status %d: %s", cases[i].name, status, err.text);
        oct_convert_report_free(&r);
        unlink(path);
        unlink(d.out);
    }
    rig_free(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_file),     cmocka_unit_test(test_same_wide_file),
        cmocka_unit_test(test_position),      cmocka_unit_test(test_memory),
        cmocka_unit_test(test_unknown_paths), cmocka_unit_test(test_gguf_files),
        cmocka_unit_test(test_folders_above), cmocka_unit_test(test_side_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
