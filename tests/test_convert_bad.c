/* test_convert_bad.c: conversions that must not succeed, and what they leave behind: a message that
 * names the culprit, and no file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "checkpoint.h"
#include "ckpt_rig.h"
#include "hparams.h"

extern char **environ;

static mk_spec two_layers(void)
{
    mk_spec s = rig_small;
    s.layers = 2;
    return s;
}

/* Fails with all of the words in its message, and leaves nothing. Returns the report. */
static oct_convert_report fails(const rig_dir *d, const oct_convert_params *params,
                                oct_status status, const char *one, const char *two)
{
    oct_convert_report r;
    oct_error err;
    oct_convert_params p = {
        .checkpoint = d->ckpt, .out = d->out, .no_tokenizer = true, .n_threads = 2};
    oct_status s = rig_convert_with(params ? params : &p, &r, &err);
    if (s != status || !strstr(err.text, one) || !strstr(err.text, two))
        fail_msg("expected status %d with \"%s\" and \"%s\", found %d: %s", status, one, two, s,
                 err.text);
    assert_int_equal(rig_count_outputs(d), 0);
    return r;
}

static void fails_freed(const rig_dir *d, const oct_convert_params *params, oct_status status,
                        const char *one, const char *two)
{
    oct_convert_report r = fails(d, params, status, one, two);
    oct_convert_report_free(&r);
}

/* ---- files of the checkpoint ----------------------------------------------------------------- */

static bool listed(const oct_convert_report *r, const char *file, const char *what)
{
    for (size_t i = 0; i < r->problems.n; i++)
        if (strstr(r->problems.line[i], file) && strstr(r->problems.line[i], what))
            return true;
    return false;
}

static void truncate_file(const rig_dir *d, int i, long n)
{
    char path[160];
    assert_int_equal(truncate(rig_file(d, i, path), n), 0);
}

/* Many things wrong at once: all of them in one list. */
static void test_every_problem_is_listed(void **state)
{
    (void)state;
    rig_dir d = rig_new(&rig_small);
    char path[160], other[200];
    static const int missing[] = {7, 20, 21, 22, 145};
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++)
        assert_int_equal(unlink(rig_file(&d, missing[i], path)), 0);
    truncate_file(&d, 3, 500);
    truncate_file(&d, 16, 0);
    snprintf(other, sizeof other, "%s/ckpt-0/tensor00002_001", d.ckpt);
    rig_write_file(other, "x", 1);
    snprintf(other, sizeof other, "%s/ckpt-0/tensor00005_000 (1)", d.ckpt);
    rig_write_file(other, "x", 1);
    snprintf(other, sizeof other, "%s/ckpt-0/tensor000006_000", d.ckpt);
    rig_write_file(other, "x", 1);
    snprintf(other, sizeof other, "%s/ckpt-0/tensor00150_000", d.ckpt);
    rig_write_file(other, "x", 1);
    rig_write_file(rig_file(&d, 30, path), "<!DOCTYPE html>", 15);
    assert_int_equal(unlink(rig_file(&d, 40, path)), 0);
    assert_int_equal(mkdir(path, 0777), 0);
    /* A norm in the place of a router. */
    assert_int_equal(unlink(rig_file(&d, 13, path)), 0);
    assert_int_equal(link(rig_file(&d, 9, other), rig_file(&d, 13, path)), 0);

    oct_convert_report r = fails(&d, NULL, OCT_ERR_FORMAT, "problems", "tensor");
    assert_true(listed(&r, "tensor00007_000", "missing"));
    assert_true(listed(&r, "tensor00020_000 to tensor00022_000", "missing (3 files)"));
    assert_true(listed(&r, "tensor00145_000", "missing"));
    assert_true(listed(&r, "tensor00003_000", "short"));
    assert_true(listed(&r, "tensor00016_000", "empty"));
    assert_true(listed(&r, "tensor00002_001", "part 1"));
    assert_true(listed(&r, "tensor00005_000 (1)", "odd name"));
    assert_true(listed(&r, "tensor000006_000", "second spelling of tensor00006_000"));
    assert_true(listed(&r, "tensor00150_000", "surplus"));
    assert_true(listed(&r, "tensor00030_000", "HTML"));
    assert_true(listed(&r, "tensor00040_000", "not a regular file"));
    assert_true(listed(&r, "tensor00013_000 (transformer/decoder_layer_0/router)",
                       "expected f32[54,3], found f32[54]"));
    assert_int_equal(r.problems.n, 13); /* the surplus file is also no pickle */
    oct_convert_report_free(&r);
    rig_free(&d);
}

/* One odd matrix does not make the others look wrong. */
static void test_odd_shape(void **state)
{
    (void)state;
    mk_spec s = two_layers(), odd = s;
    rig_dir d = rig_new(&s);
    char path[160], from[160];
    rig_dir e = {0};
    odd.ffn = 224;
    e = rig_new(&odd);
    assert_int_equal(rename(rig_file(&e, 2, from), rig_file(&d, 2, path)), 0);
    oct_convert_report r = fails(&d, NULL, OCT_ERR_FORMAT, "1 problem ", "tensor00002_000");
    assert_true(
        listed(&r, "decoder_layer_0/moe/linear)", "expected int8[3,54,216], found int8[3,54,224]"));
    assert_int_equal(r.problems.n, 1);
    oct_convert_report_free(&r);
    rig_free(&e);
    rig_free(&d);
}

static void test_wrong_folder(void **state)
{
    (void)state;
    mk_spec s = two_layers();
    rig_dir d = rig_new(&s);
    char path[160];
    oct_convert_params p = {.checkpoint = "nowhere", .out = d.out, .no_tokenizer = true};
    fails_freed(&d, &p, OCT_ERR_IO, "nowhere", "No such file");
    p.checkpoint = d.path;
    fails_freed(&d, &p, OCT_ERR_FORMAT, d.path, "/model below it is an xAI checkpoint");
    p.checkpoint = rig_file(&d, 2, path);
    fails_freed(&d, &p, OCT_ERR_ARG, path, "not a folder");
    rig_free(&d);
}

/* Nothing of a pickle is run. */
static void test_command_is_not_run(void **state)
{
    (void)state;
    mk_spec s = two_layers();
    rig_dir d = rig_new(&s);
    char path[160], flag[100], pickle[300];
    snprintf(flag, sizeof flag, "%s/ran", d.path);
    int n = snprintf(pickle, sizeof pickle,
                     "\x80\x04"
                     "cos\nsystem\n(S'touch %s'\ntR.",
                     flag);
    rig_write_file(rig_file(&d, 9, path), pickle, (size_t)n);
    fails_freed(&d, NULL, OCT_ERR_FORMAT, "tensor00009_000", "global os.system");
    assert_int_not_equal(access(flag, F_OK), 0);
    rig_free(&d);
}

/* ---- configuration --------------------------------------------------------------------------- */

/* Replaces the line of a key in config.json (value NULL: takes it out). */
static void set_config(const rig_dir *d, const char *key, const char *value)
{
    char path[160], quoted[64], text[4096], out[4096] = "";
    snprintf(path, sizeof path, "%s/config.json", d->ckpt);
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    bool found = false;
    size_t n = 0;
    for (char *save = NULL, *line = strtok_r(text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        bool here = strstr(line, quoted) != NULL;
        found |= here;
        if (here && !value)
            continue;
        if (here)
            n += (size_t)snprintf(out + n, sizeof out - n, " %s %s%s\n", quoted, value,
                                  strstr(line, ",") ? "," : "");
        else if (line[0] == '}' && n > 2 && out[n - 2] == ',') /* the last line was taken out */
            n += (size_t)snprintf(out + n - 2, sizeof out - n + 2, "\n}\n") - 2;
        else
            n += (size_t)snprintf(out + n, sizeof out - n, "%s\n", line);
    }
    assert_true(found);
    rig_write_file(path, out, n);
}

static void test_contradictions(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value;
        oct_status status;
        const char *one, *two;
    } cases[] = {
        {"vocab_size", "78", OCT_ERR_SHAPE, "vocab_size 78", "say 77"},
        {"emb_size", "64", OCT_ERR_SHAPE, "emb_size 64", "say 54"},
        {"num_experts", "8", OCT_ERR_SHAPE, "num_experts 8", "say 3"},
        {"num_q_heads", "16", OCT_ERR_SHAPE, "num_q_heads 16", "query of 48"},
        {"num_kv_heads", "4", OCT_ERR_SHAPE, "num_kv_heads 4", "key of 48"},
        {"key_size", "12", OCT_ERR_SHAPE, "key_size 12", "of 48"},
        {"key_size", "1000000", OCT_ERR_SHAPE, "key_size 1000000", "of 48"},
        {"num_layers", "3", OCT_ERR_FORMAT, "num_layers 3 (38 files)", "26 files: 2 layers"},
        {"num_layers", "1", OCT_ERR_FORMAT, "num_layers 1 (14 files)", "26 files"},
        {"num_selected_experts", "4", OCT_ERR_SHAPE, "num_selected_experts 4", "3 experts"},
        {"sequence_len", "0", OCT_ERR_FORMAT, "\"sequence_len\" is 0", "expected 1 to"},
        {"sequence_len", "1.5", OCT_ERR_FORMAT, "sequence_len", "whole number"},
        {"sequence_len", "\"x\"", OCT_ERR_FORMAT, "sequence_len", "whole number"},
        {"sequence_len", "null", OCT_ERR_FORMAT, "sequence_len", "whole number"},
        {"embedding_multiplier_scale", "-1", OCT_ERR_FORMAT, "embedding_multiplier_scale", "-1"},
        {"embedding_multiplier_scale", "1e99", OCT_ERR_FORMAT, "embedding_multiplier_scale", "1e"},
        {"output_multiplier_scale", "true", OCT_ERR_FORMAT, "output_multiplier_scale", "a number"},
        {"pad_token", "-2", OCT_ERR_FORMAT, "pad_token", "-2"},
        {"eos_token", "77", OCT_ERR_SHAPE, "eos_id", "77"},
        {"attn_output_multiplier", NULL, OCT_ERR_FORMAT, "lacks attn_output_multiplier",
         "vocab_size is 77"},
        {"key_size", NULL, OCT_ERR_FORMAT, "lacks key_size", "config.json"},
        {"pad_token", NULL, OCT_ERR_FORMAT, "lacks pad_token", "config.json"},
        {"key_size", "6, \"key_size\": 6", OCT_ERR_FORMAT, "not JSON", "key_size"},
        {"key_size", "6, \"widening_factor\": 8", OCT_ERR_SHAPE,
         "widening_factor 8 (an FFN of 288)", "FFN of 216"},
    };
    mk_spec s = two_layers();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig_dir d = rig_new(&s);
        set_config(&d, cases[i].key, cases[i].value);
        fails_freed(&d, NULL, cases[i].status, cases[i].one, cases[i].two);
        rig_free(&d);
    }
}

static void test_config_files(void **state)
{
    (void)state;
    mk_spec s = two_layers();
    rig_dir d = rig_new(&s);
    char config[160], elsewhere[160];
    oct_convert_report r;
    oct_error err;
    snprintf(config, sizeof config, "%s/config.json", d.ckpt);
    snprintf(elsewhere, sizeof elsewhere, "%s/other.json", d.path);
    assert_int_equal(rename(config, elsewhere), 0);
    fails_freed(&d, NULL, OCT_ERR_ARG, "config.json is needed", d.ckpt);
    oct_convert_params p = {
        .checkpoint = d.ckpt, .out = d.out, .no_tokenizer = true, .config = "absent.json"};
    fails_freed(&d, &p, OCT_ERR_IO, "absent.json", "No such file");
    p.config = d.ckpt;
    fails_freed(&d, &p, OCT_ERR_IO, d.ckpt, "directory");
    /* Named, above, and beside the tensors; numbers that follow from others may be missing. */
    p.config = elsewhere;
    assert_int_equal(rig_convert_with(&p, &r, &err), OCT_OK);
    assert_string_equal(r.config_path, elsewhere);
    oct_convert_report_free(&r);
    assert_int_equal(rename(elsewhere, config), 0);
    set_config(&d, "num_q_heads", NULL);
    set_config(&d, "num_kv_heads", NULL);
    set_config(&d, "vocab_size", NULL);
    set_config(&d, "num_layers", NULL);
    set_config(&d, "key_size", "6, \"data_axis\": 1");
    snprintf(elsewhere, sizeof elsewhere, "%s/ckpt-0", d.ckpt);
    p = (oct_convert_params){.checkpoint = elsewhere, .out = d.out, .no_tokenizer = true};
    assert_int_equal(rig_convert_with(&p, &r, &err), OCT_OK);
    assert_int_equal(r.model.n_q_heads, 8);
    assert_int_equal(r.warnings.n, 1);
    assert_non_null(strstr(r.warnings.line[0], "data_axis"));
    oct_convert_report_free(&r);
    rig_free(&d);
}

/* Grok-1's own numbers are used if, and only if, every shape is Grok-1's. */
static void test_grok1_needs_no_config(void **state)
{
    (void)state;
    oct_ckpt c = {.dir = (char[]){"d"},
                  .n_layers = 64,
                  .n_leaves = 770,
                  .dim = {[OCT_CKPT_VOCAB] = 131072,
                          [OCT_CKPT_MODEL] = 6144,
                          [OCT_CKPT_FFN] = 32768,
                          [OCT_CKPT_EXPERTS] = 8,
                          [OCT_CKPT_Q_WIDTH] = 6144,
                          [OCT_CKPT_KV_WIDTH] = 1024,
                          [OCT_CKPT_QKV_GROUPS] = 1,
                          [OCT_CKPT_ATTN_OUT_GROUPS] = 8,
                          [OCT_CKPT_GATE_UP_GROUPS] = 1,
                          [OCT_CKPT_DOWN_GROUPS] = 8}};
    oct_grok_config g;
    oct_error err = {0};
    assert_int_equal(oct_hparams_resolve(&c, NULL, NULL, "here", &g, &err), OCT_OK);
    assert_int_equal(g.n_q_heads, 48);
    assert_int_equal(g.n_kv_heads, 8);
    assert_int_equal(g.head_dim, 128);
    assert_int_equal(g.n_used, 2);
    assert_int_equal(g.n_ctx, 8192);
    assert_int_equal(g.pad_id, 0);
    assert_int_equal(g.eos_id, 2);
    assert_int_equal(g.n_slices, 8);
    assert_true(g.embedding_scale == 78.38367176906169f && g.output_scale == 0.5773502691896257f);
    assert_true(g.attn_scale == 0.08838834764831845f && g.attn_cap == 30.0f);
    assert_true(g.rope_base == 10000.0f && g.norm_eps == 1e-5f);
    for (int what = 0; what < 3; what++) {
        oct_ckpt other = c;
        other.n_layers -= what == 0;
        other.dim[OCT_CKPT_FFN] -= what == 1 ? 8 : 0;
        other.dim[OCT_CKPT_VOCAB] += what == 2;
        err = (oct_error){0};
        assert_int_equal(oct_hparams_resolve(&other, NULL, NULL, "here", &g, &err), OCT_ERR_ARG);
        assert_non_null(strstr(err.text, "config.json is needed"));
        assert_non_null(strstr(err.text, what == 0   ? "num_layers is 63"
                                         : what == 1 ? "32760"
                                                     : "131073"));
    }
}

/* ---- numbers --------------------------------------------------------------------------------- */

static void poke(const rig_dir *d, int file, size_t at, const void *v, size_t n)
{
    char path[160];
    int fd = open(rig_file(d, file, path), O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, v, n, (off_t)at), (ssize_t)n);
    close(fd);
}

static oct_pickle describe(const rig_dir *d, int file)
{
    char path[160];
    rig_map m = rig_map_file(rig_file(d, file, path));
    oct_pickle p;
    oct_error err = {0};
    assert_int_equal(oct_pickle_read(path, m.data, m.n, &p, &err), OCT_OK);
    rig_unmap(m);
    return p;
}

static void test_not_finite(void **state)
{
    (void)state;
    static const float nan_value = NAN, inf_value = -INFINITY, huge = 3.4e38f;
    static const uint16_t bf16_inf = 0x7f80, bf16_nan = 0xffc0;
    static const struct {
        int file;
        bool scales;
        size_t element;
        const void *v;
        size_t n;
        const char *one, *two;
        mk_kind kind;
    } cases[] = {
        {0, false, 2 * 54 + 5, &nan_value, 4, "tensor00000_000", "[2,5] is NaN", MK_INT8},
        {0, false, 76 * 54 + 53, &inf_value, 4, "in_out_embed", "[76,53] is infinite", MK_INT8},
        {0, false, 0, &huge, 4, "in_out_embed", "beyond bfloat16", MK_INT8},
        {1, false, 7, &nan_value, 4, "language_model/rms_norm", "[7] is NaN", MK_INT8},
        {9, false, 53, &inf_value, 4, "decoder_layer_0/rms_norm", "[53] is infinite", MK_INT8},
        {13, false, 3 * 9 + 1, &nan_value, 4, "decoder_layer_0/router", "[9,1] is NaN", MK_INT8},
        {15, true, (2 * 8 + 7) * 54 + 53, &bf16_inf, 2, "decoder_layer_1/moe/linear_1",
         "scales[2,7,53] is infinite", MK_INT8},
        {7, true, 11, &bf16_nan, 2, "multi_head_attention/query", "scales[0,11] is NaN", MK_INT8},
        {4, false, (54 + 13) * 216 + 17, &nan_value, 4, "decoder_layer_0/moe/linear_v",
         "[1,13,17] is NaN", MK_F32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mk_spec s = two_layers();
        s.kind = cases[i].kind;
        rig_dir d = rig_new(&s);
        oct_pickle p = describe(&d, cases[i].file);
        const oct_pickle_array *a = cases[i].scales ? &p.scales : &p.weight;
        poke(&d, cases[i].file, a->at + cases[i].element * cases[i].n, cases[i].v, cases[i].n);
        fails_freed(&d, NULL, OCT_ERR_NUMERIC, cases[i].one, cases[i].two);
        rig_free(&d);
    }
}

/* ---- tokenizer ------------------------------------------------------------------------------- */

static void test_tokenizer(void **state)
{
    (void)state;
    static const char tiny[] = OCT_TEST_TINY "/tokenizer.model";
    mk_spec s = two_layers();
    rig_dir d = rig_new(&s);
    oct_convert_report r;
    oct_error err;
    oct_convert_params p = {.checkpoint = d.ckpt, .out = d.out};
    fails_freed(&d, &p, OCT_ERR_ARG, "tokenizer.model is needed", d.ckpt);
    p.tokenizer = tiny;
    fails_freed(&d, &p, OCT_ERR_SHAPE, "4096 pieces", "77 rows");
    p.tokenizer = "absent.model";
    fails_freed(&d, &p, OCT_ERR_IO, "absent.model", "No such file");
    p.tokenizer = d.ckpt;
    fails_freed(&d, &p, OCT_ERR_FORMAT, d.ckpt, "folder");
    char garbage[160];
    snprintf(garbage, sizeof garbage, "%s/tokenizer.model", d.ckpt);
    rig_write_file(garbage, "not a model", 11);
    p.tokenizer = NULL;
    fails_freed(&d, &p, OCT_ERR_FORMAT, garbage, "not a SentencePiece model");
    rig_write_file(garbage, "", 0);
    fails_freed(&d, &p, OCT_ERR_FORMAT, garbage, "empty");
    p.no_tokenizer = true;
    p.tokenizer = tiny;
    fails_freed(&d, &p, OCT_ERR_ARG, "tokenizer", "");
    rig_free(&d);

    s.vocab = 5000;
    d = rig_new(&s);
    p = (oct_convert_params){.checkpoint = d.ckpt, .out = d.out, .tokenizer = tiny};
    assert_int_equal(rig_convert_with(&p, &r, &err), OCT_OK);
    assert_int_equal(r.warnings.n, 1);
    assert_non_null(strstr(r.warnings.line[0], "904"));
    oct_convert_report_free(&r);
    rig_free(&d);
}

/* ---- output ---------------------------------------------------------------------------------- */

static void test_output(void **state)
{
    (void)state;
    mk_spec s = two_layers();
    rig_dir d = rig_new(&s);
    char path[160];
    oct_convert_params p = {.checkpoint = d.ckpt, .no_tokenizer = true};
    p.out = d.path;
    fails_freed(&d, &p, OCT_ERR_ARG, d.path, "folder");
    p.out = rig_file(&d, 3, path);
    fails_freed(&d, &p, OCT_ERR_ARG, path, "one of the inputs");
    snprintf(path, sizeof path, "%s/config.json", d.ckpt);
    fails_freed(&d, &(oct_convert_params){.checkpoint = d.ckpt, .out = path, .no_tokenizer = true},
                OCT_ERR_ARG, path, "one of the inputs");
    snprintf(path, sizeof path, "%s/fifo", d.ckpt);
    assert_int_equal(mkfifo(path, 0666), 0);
    p.out = path;
    fails_freed(&d, &p, OCT_ERR_ARG, path, "not a regular file");
    assert_int_equal(unlink(path), 0);
    p.out = "absent-folder/model.gguf";
    fails_freed(&d, &p, OCT_ERR_IO, "absent-folder", "No such file");
    p.out = "";
    fails_freed(&d, &p, OCT_ERR_ARG, "empty", "");
    /* A file size limit is the nearest thing to a full disk that a test can make. */
    struct rlimit was, low = {100000, 100000};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    low.rlim_max = was.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    oct_convert_report r = {0};
    oct_error err = {0};
    oct_status status = rig_convert(&d, &r, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_int_equal(status, OCT_ERR_IO);
    assert_non_null(strstr(err.text, d.out));
    assert_int_equal(rig_count_outputs(&d), 0);
    oct_convert_report_free(&r);
    /* An old file stays until the new one is complete, and is then replaced. */
    rig_write_file(d.out, "old", 3);
    assert_int_equal(rig_convert(&d, &r, &err), OCT_OK);
    oct_convert_report_free(&r);
    rig_map m = rig_map_file(d.out);
    assert_memory_equal(m.data, "GGUF", 4);
    rig_unmap(m);
    assert_int_equal(rig_count_outputs(&d), 1);
    rig_free(&d);
}

/* ---- interruptions --------------------------------------------------------------------------- */

typedef struct interrupt {
    oct_convert_phase phase;
    bool kill;
    volatile int cancel;
    bool saw_temp;
} interrupt;

static void halfway(void *ctx, const oct_convert_progress *p)
{
    interrupt *i = ctx;
    if (p->phase != i->phase || 2 * p->done < p->total)
        return;
    i->saw_temp |= p->temp && access(p->temp, F_OK) == 0;
    if (i->kill)
        raise(SIGKILL);
    i->cancel = 1;
}

static void test_cancel(void **state)
{
    (void)state;
    static const oct_convert_phase phases[] = {OCT_CONVERT_WRITE, OCT_CONVERT_SYNC,
                                               OCT_CONVERT_VERIFY};
    rig_dir d = rig_new(&rig_small);
    for (int k = 0; k < 3; k++) {
        interrupt i = {.phase = phases[k]};
        oct_convert_params p = {.checkpoint = d.ckpt,
                                .out = d.out,
                                .no_tokenizer = true,
                                .n_threads = 2,
                                .progress = halfway,
                                .progress_ctx = &i,
                                .cancel = &i.cancel};
        fails_freed(&d, &p, OCT_ERR_CANCELLED, "cancelled", "");
        assert_true(i.saw_temp);
    }
    rig_free(&d);
}

/* kill -9 in either pass: nothing under the final name; the next run goes on with what was left. */
static void test_kill(void **state)
{
    (void)state;
    rig_dir d = rig_new(&rig_small);
    for (int k = 0; k < 2; k++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            interrupt i = {.phase = k ? OCT_CONVERT_VERIFY : OCT_CONVERT_WRITE, .kill = true};
            oct_convert_params p = {.checkpoint = d.ckpt,
                                    .out = d.out,
                                    .no_tokenizer = true,
                                    .n_threads = 3,
                                    .progress = halfway,
                                    .progress_ctx = &i};
            oct_convert_report r = {0};
            oct_error err = {0};
            _exit(oct_convert(&p, &r, &err) == OCT_OK ? 0 : 1);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        assert_int_not_equal(access(d.out, F_OK), 0);
        assert_int_equal(rig_count_outputs(&d), 1); /* the second goes on with it */
    }
    oct_convert_report r;
    oct_error err;
    assert_int_equal(rig_convert(&d, &r, &err), OCT_OK);
    assert_int_equal(r.warnings.n, 1);
    assert_non_null(strstr(r.warnings.line[0], "going on"));
    oct_convert_report_free(&r);
    rig_free(&d);
}

/* The program, told to end while its temporary file grows. */
static void test_sigterm(void **state)
{
    (void)state;
    mk_spec s = {.layers = 2,
                 .vocab = 1000,
                 .d = 1024,
                 .ffn = 4096,
                 .q_heads = 16,
                 .kv_heads = 8,
                 .head = 64,
                 .experts = 8,
                 .used = 2,
                 .context = 64,
                 .groups = 8,
                 .seed = 5};
    rig_dir d = rig_new(&s);
    char *argv[] = {(char[]){"octet"},
                    (char[]){"convert"},
                    d.ckpt,
                    (char[]){"-o"},
                    d.out,
                    (char[]){"--no-tokenizer"},
                    (char[]){"-t"},
                    (char[]){"1"},
                    NULL};
    posix_spawn_file_actions_t io;
    posix_spawn_file_actions_init(&io);
    posix_spawn_file_actions_addopen(&io, 2, "/dev/null", O_WRONLY, 0);
    pid_t child;
    assert_int_equal(posix_spawn(&child, OCT_TEST_OCTET, &io, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&io);
    int status = 0;
    while (rig_count_outputs(&d) == 0 && waitpid(child, &status, WNOHANG) == 0)
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    assert_int_equal(kill(child, SIGTERM), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 128 + SIGTERM);
    assert_int_equal(rig_count_outputs(&d), 0);
    rig_free(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_problem_is_listed),
        cmocka_unit_test(test_odd_shape),
        cmocka_unit_test(test_wrong_folder),
        cmocka_unit_test(test_command_is_not_run),
        cmocka_unit_test(test_contradictions),
        cmocka_unit_test(test_config_files),
        cmocka_unit_test(test_grok1_needs_no_config),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_tokenizer),
        cmocka_unit_test(test_output),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_kill),
        cmocka_unit_test(test_sigterm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
