/* test_safetensors.c: Grok-1 in Hugging Face's safetensors becomes the very file that xAI's format
 * gives; what is damaged, missing or another model is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <fcntl.h>

#include <unistd.h>

#include "checkpoint.h"
#include "ckpt_rig.h"
#include "f16.h"
#include "hparams.h"
#include "mksafetensors.h"
#include "safetensors.h"

/* Grok-1's ratios, small: groups of 96 and 64 rows. */
static const mk_spec narrow = {.layers = 2,
                               .vocab = 203,
                               .d = 192,
                               .ffn = 512,
                               .q_heads = 48,
                               .kv_heads = 8,
                               .head = 16,
                               .experts = 8,
                               .used = 2,
                               .context = 64,
                               .groups = 8,
                               .seed = 11};

static void convert(const char *from, const char *to, oct_convert_report *r)
{
    oct_error err;
    const oct_convert_params p = {
        .checkpoint = from, .out = to, .no_tokenizer = true, .n_threads = 3};
    if (rig_convert_with(&p, r, &err) != OCT_OK)
        fail_msg("%s: %s", from, err.text);
}

static void same_bytes(const char *a, const char *b)
{
    rig_map x = rig_map_file(a), y = rig_map_file(b);
    assert_int_equal(x.n, y.n);
    assert_memory_equal(x.data, y.data, x.n);
    rig_unmap(x);
    rig_unmap(y);
}

/* A file's bytes, which may be changed and written to it again; to be freed. */
static rig_map load(const char *path)
{
    rig_map m = rig_map_file(path), copy = {malloc(m.n), m.n};
    assert_non_null(copy.data);
    memcpy(copy.data, m.data, m.n);
    rig_unmap(m);
    return copy;
}

/* The folder of a model in safetensors below that of the test. */
static const char *hub_of(const rig_dir *d, char path[100])
{
    snprintf(path, 100, "%s/hub", d->path);
    return path;
}

static bool warned(const oct_convert_report *r, const char *one, const char *two)
{
    for (size_t i = 0; i < r->warnings.n; i++)
        if (strstr(r->warnings.line[i], one) && strstr(r->warnings.line[i], two))
            return true;
    return false;
}

/* ---- the same file -------------------------------------------------------------------------- */

/* Every spec's file against that of the checkpoint in xAI's format. */
static void check_same(const char *ckpt, const mks_spec *spec, int n)
{
    rig_dir d = rig_new(NULL);
    oct_convert_report r;
    char hub[100], other[100];
    snprintf(other, sizeof other, "%s/other.gguf", d.path);
    convert(ckpt, d.out, &r);
    assert_int_equal(r.recovered.n, 0);
    oct_convert_report_free(&r);
    for (int i = 0; i < n; i++) {
        assert_true(mks_write(ckpt, &spec[i], hub_of(&d, hub)));
        convert(hub, other, &r);
        assert_string_equal(r.format, "a Hugging Face model in safetensors");
        assert_true(r.recovered.n > 1000 && r.recovered.n_unique == r.recovered.n);
        assert_int_equal(r.warnings.n, !spec[i].f32);
        assert_true(spec[i].f32 || warned(&r, "norms and routers are bf16", hub));
        oct_convert_report_free(&r);
        same_bytes(d.out, other);
        rig_remove_all(hub);
    }
    rig_free(&d);
}

static void test_same_file(void **state)
{
    static const mks_spec specs[] = {{.scheme = 0, .shards = 0, .f32 = true},
                                     {.scheme = 1, .shards = 7, .f32 = true, .weights_named = true},
                                     {.scheme = 0, .shards = 3, .f32 = true, .head = true},
                                     {.scheme = 1, .shards = 0, .f32 = true, .head = true}};
    (void)state;
    rig_dir d = rig_new(&narrow);
    check_same(d.ckpt, specs, 4);
    check_same(OCT_TEST_TINY, specs, 2);
    rig_free(&d);
}

/* Rounds what is f32 in an xAI checkpoint to bf16, in its files. */
static void round_floats(const char *ckpt)
{
    char path[200];
    for (int i = 0;; i++) {
        oct_pickle p;
        oct_error err = {0};
        snprintf(path, sizeof path, "%s/ckpt-0/tensor%05d_000", ckpt, i);
        if (access(path, F_OK) != 0)
            break;
        rig_map m = load(path);
        assert_int_equal(oct_pickle_read(path, m.data, m.n, &p, &err), OCT_OK);
        for (int64_t k = 0; p.weight.dtype == OCT_PICKLE_F32 && k < p.weight.n; k++) {
            uint8_t *at = m.data + p.weight.at + 4 * k;
            float v;
            memcpy(&v, at, sizeof v);
            v = oct_f32_of_bf16(oct_bf16_of_f32(v));
            memcpy(at, &v, sizeof v);
        }
        rig_write_file(path, m.data, m.n);
        free(m.data);
    }
}

/* Matrices that are f32 are quantised as those of xAI's format are. */
static void test_plain_f32(void **state)
{
    mk_spec plain = narrow;
    plain.kind = MK_F32;
    (void)state;
    rig_dir d = rig_new(&plain);
    oct_convert_report r;
    char hub[100], other[100];
    snprintf(other, sizeof other, "%s/other.gguf", d.path);
    assert_true(mks_write(d.ckpt, &(mks_spec){.f32 = true, .shards = 2}, hub_of(&d, hub)));
    convert(d.ckpt, other, &r);
    oct_convert_report_free(&r);
    convert(hub, d.out, &r);
    assert_int_equal(r.recovered.n, 0);
    assert_true(r.n_quantised > 0 && r.q8_error > 0);
    oct_convert_report_free(&r);
    same_bytes(d.out, other);
    rig_free(&d);
}

/* All of a file in bf16: norms and routers have lost what bf16 does not hold, the rest nothing. */
static void test_same_rounded_file(void **state)
{
    (void)state;
    rig_dir d = rig_new(&narrow);
    round_floats(d.ckpt);
    check_same(d.ckpt, (const mks_spec[]){{.scheme = 0, .shards = 2}, {.scheme = 1}}, 2);
    rig_free(&d);
}

/* ---- damage --------------------------------------------------------------------------------- */

typedef struct place {
    char path[200];
    uint64_t at; /* of the first element */
} place;

/* Where a tensor is; the files of dir are few. */
static place find_tensor(const char *dir, const char *name)
{
    place p = {.at = 0};
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; !p.at && (e = readdir(d));) {
        oct_safetensors s;
        if (!strstr(e->d_name, ".safetensors") || strstr(e->d_name, "json"))
            continue;
        snprintf(p.path, sizeof p.path, "%s/%.80s", dir, e->d_name);
        rig_map m = rig_map_file(p.path);
        int fd = open(p.path, O_RDONLY);
        oct_error err = {0};
        assert_int_equal(oct_safetensors_read(p.path, fd, m.n, &s, &err), OCT_OK);
        const oct_st_tensor *t = oct_safetensors_find(&s, name);
        p.at = t ? t->at : 0;
        oct_safetensors_free(&s);
        close(fd);
        rig_unmap(m);
    }
    closedir(d);
    assert_true(p.at > 0);
    return p;
}

static uint16_t peek(const place *p, int64_t i)
{
    uint16_t v;
    int fd = open(p->path, O_RDONLY);
    assert_int_equal(pread(fd, &v, 2, (off_t)(p->at + 2 * (uint64_t)i)), 2);
    close(fd);
    return v;
}

static void poke(const place *p, int64_t i, uint16_t v)
{
    int fd = open(p->path, O_WRONLY);
    assert_int_equal(pwrite(fd, &v, 2, (off_t)(p->at + 2 * (uint64_t)i)), 2);
    close(fd);
}

/* A weight whose last bit, flipped, makes no other product: +-1, +-2 or +-3 times its scale. */
static int64_t small_weight(const place *p, int64_t row, int64_t n_in)
{
    uint16_t least = 0x7fff;
    int64_t at = 0;
    for (int64_t i = 0; i < n_in; i++) {
        const uint16_t a = peek(p, row * n_in + i) & 0x7fff;
        if (a && a < least) {
            least = a;
            at = i;
        }
    }
    return row * n_in + at;
}

static void test_flipped_bit(void **state)
{
    static const char *const names[] = {"model.layers.1.moe_block.experts.5.linear_1.weight",
                                        "model.layers.0.attn.o_proj.weight",
                                        "model.layers.0.attn.k_proj.weight"};
    static const int64_t inputs[] = {512, 768, 192};
    (void)state;
    rig_dir d = rig_new(&narrow);
    oct_convert_report r;
    char hub[100], element[40];
    assert_true(
        mks_write(d.ckpt, &(mks_spec){.scheme = 1, .shards = 2, .f32 = true}, hub_of(&d, hub)));
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        for (int bit = 0; bit < 14; bit += 6) {
            const place p = find_tensor(hub, names[k]);
            const int64_t i = small_weight(&p, 7, inputs[k]);
            const uint16_t before = peek(&p, i);
            poke(&p, i, before ^ (uint16_t)(1u << bit));
            convert(hub, d.out, &r);
            snprintf(element, sizeof element, "element [7,%d]", (int)(i - 7 * inputs[k]));
            if (r.recovered.n_odd != 1 || r.recovered.n_odd_weights != 1 ||
                r.recovered.n_unique != r.recovered.n - 1 || r.recovered.error <= 0 ||
                !warned(&r, names[k], element))
                fail_msg("%s, bit %d of %s: %d odd: %s", names[k], bit, element,
                         (int)r.recovered.n_odd, r.warnings.n ? r.warnings.line[0] : "no warning");
            oct_convert_report_free(&r);
            poke(&p, i, before);
        }
    rig_free(&d);
}

/* Rows that were never int8, zeros, and numbers that are none. */
static void test_other_numbers(void **state)
{
    (void)state;
    rig_dir d = rig_new(&narrow);
    oct_convert_report r;
    oct_error err;
    char hub[100];
    assert_true(mks_write(d.ckpt, &(mks_spec){.f32 = true}, hub_of(&d, hub)));
    place p = find_tensor(hub, "transformer.decoder_layer.0.moe.2.linear_v.weight");
    for (int64_t i = 0; i < 192; i++) {
        poke(&p, 3 * 192 + i, oct_bf16_of_f32(0.01f * (float)(i * i % 97) / (float)(1 + i)));
        poke(&p, 5 * 192 + i, 0);
    }
    convert(hub, d.out, &r);
    assert_int_equal(r.recovered.n_quantised, 1);
    assert_int_equal(r.recovered.n_zero, 1);
    assert_int_equal(r.recovered.n_unique, r.recovered.n - 2);
    assert_true(r.recovered.error > 1e-4 && r.recovered.error < 0.02);
    oct_convert_report_free(&r);
    poke(&p, 9 * 192 + 8, 0x7fc0);
    const oct_convert_params q = {.checkpoint = hub, .out = d.out, .no_tokenizer = true};
    assert_int_equal(rig_convert_with(&q, &r, &err), OCT_ERR_NUMERIC);
    if (!strstr(err.text, "moe.2.linear_v.weight): element [9,8] is NaN"))
        fail_msg("%s", err.text);
    oct_convert_report_free(&r);
    rig_free(&d);
}

/* An output head of its own is another model. */
static void test_untied(void **state)
{
    (void)state;
    rig_dir d = rig_new(&narrow);
    oct_convert_report r;
    oct_error err;
    char hub[100];
    assert_true(mks_write(d.ckpt, &(mks_spec){.head = true, .shards = 4}, hub_of(&d, hub)));
    const place p = find_tensor(hub, "lm_head.weight");
    poke(&p, 192 * 100 + 3, 0x3f80);
    const oct_convert_params q = {.checkpoint = hub, .out = d.out, .no_tokenizer = true};
    assert_int_equal(rig_convert_with(&q, &r, &err), OCT_ERR_UNSUPPORTED);
    if (!strstr(err.text, "(lm_head.weight): element [100,3]"))
        fail_msg("%s", err.text);
    assert_int_equal(rig_count_outputs(&d), 0);
    oct_convert_report_free(&r);
    rig_free(&d);
}

/* ---- headers -------------------------------------------------------------------------------- */

#define T(dtype, shape, from, to) \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to "]}"

static void test_headers(void **state)
{
    static const struct {
        const char *json;
        uint64_t data;
        const char *says; /* NULL: it is fine */
    } cases[] = {
        {"{\"a\":" T("BF16", "[1,2]", 0, 4) "}", 4, NULL},
        {"{\"__metadata__\":{\"x\":\"y\"},\"b\":" T("F32", "[]", 0, 4) ",\"a\":" T("U8", "[0]", 4,
                                                                                   4) "}  ",
         4, NULL},
        {"{}", 0, NULL},
        {"{}", 1, "end at byte 0 of the data, the file has 1"},
        {"", 0, "not JSON"},
        {"[]", 0, "not a JSON object"},
        {"{\"a\":" T("BF16", "[1,2]", 0, 4), 4, "not JSON"},
        {"{\"a\":" T("BF16", "[1,2]", 0, 4) "}x", 4, "not JSON"},
        {"{\"a\":" T("BF16", "[1,2]", 0, 4) ",\"a\":" T("BF16", "[1,2]", 0, 4) "}", 4, "duplicate"},
        {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
         "duplicate"},
        {"{\"a\":" T("BF16", "[1,2]", 0, 4) "}", 3, "unfinished download"},
        {"{\"a\":" T("BF16", "[1,2]", 0, 4) "}", 6, "end at byte 4 of the data, the file has 6"},
        {"{\"a\":" T("BF16", "[1,2]", 2, 6) "}", 6, "expected at 0"},
        {"{\"a\":" T("BF16", "[1]", 0, 2) ",\"b\":" T("BF16", "[1]", 4, 6) "}", 6,
         "\"b\" begins at byte 4 of the data, the one before it ends at 2 (\"a\")"},
        {"{\"a\":" T("BF16", "[2]", 0, 4) ",\"b\":" T("BF16", "[2]", 2, 6) "}", 6, "no overlaps"},
        {"{\"a\":" T("BF16", "[3]", 0, 4) "}", 4, "tell 4 bytes, dtype and shape another number"},
        {"{\"a\":" T("BF16", "[4294967296,4294967296]", 0, 0) "}", 0, "more than there can be"},
        {"{\"a\":" T("BF16", "[9223372036854775807,9223372036854775807,0]", 0, 0) "}", 0,
         "more than there can be"},
        {"{\"a\":" T("BF16", "[9223372036854775808]", 0, 4) "}", 4, "too big"},
        {"{\"a\":" T("BF16", "[-1]", 0, 4) "}", 4, "expected a shape of at most 4 whole numbers"},
        {"{\"a\":" T("BF16", "[2.0]", 0, 4) "}", 4, "found [2.0]"},
        {"{\"a\":" T("BF16", "[1,1,1,1,2]", 0, 4) "}", 4, "at most 4"},
        {"{\"a\":" T("BF16", "2", 0, 4) "}", 4, "found 2"},
        {"{\"a\":" T("BF15", "[2]", 0, 4) "}", 4,
         "expected a dtype such as \"BF16\", found \"BF15\""},
        {"{\"a\":" T("BF16", "[2]", 4, 0) "}", 4, "data_offsets of two whole numbers in order"},
        {"{\"a\":" T("BF16", "[2]", 0, 18446744073709551615) "}", 4, "too big"},
        {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[2]}}", 4,
         "an object of dtype, shape and data_offsets"},
        {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4],\"x\":1}}", 4,
         "an object of dtype"},
        {"{\"a\":[]}", 0, "an object of dtype"},
        {"{\"a\":7}", 0, "found 7"},
        {"{\"a\":{\"dtype\":[[[[]]]]}}", 0, "nests deeper than 3"},
        {"{\"a\\u0000b\":" T("BF16", "[2]", 0, 4) "}", 4, "not JSON"},
        {"{\"\xff\":" T("BF16", "[2]", 0, 4) "}", 4, "not JSON"},
        {"{\"a\\nb\":" T("BF16", "[3]", 0, 4) "}", 4, "tensor \"a?b\""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        oct_safetensors s;
        oct_error err = {0};
        const size_t n = strlen(cases[i].json);
        const oct_status status =
            oct_safetensors_parse("F", cases[i].json, n, 8 + n + cases[i].data, &s, &err);
        if (cases[i].says ? status != OCT_ERR_FORMAT || !strstr(err.text, cases[i].says) ||
                                strncmp(err.text, "F: ", 3) != 0
                          : status != OCT_OK)
            fail_msg("case %zu: %s: status %d: %s; expected: %s", i, cases[i].json, status,
                     err.text, cases[i].says ? cases[i].says : "no error");
        oct_safetensors_free(&s);
    }
}

/* JSON that is larger than any header needs to be. */
static void test_bombs(void **state)
{
    const size_t n = 15 << 20;
    char *json = malloc(n);
    oct_safetensors s;
    oct_error err = {0};
    (void)state;
    assert_non_null(json);
    memset(json, '[', n);
    json[0] = '{';
    assert_int_equal(oct_safetensors_parse("F", json, n, 1 << 30, &s, &err), OCT_ERR_FORMAT);
    assert_non_null(strstr(err.text, "nests deeper"));
    for (size_t i = 0; i < n; i++)
        json[i] = "{\"a\":[1,1,1,"[i < 6 ? i : 6 + i % 6];
    err = (oct_error){0};
    assert_int_equal(oct_safetensors_parse("F", json, n, 1 << 30, &s, &err), OCT_ERR_FORMAT);
    assert_non_null(strstr(err.text, "more than 32768 tensors"));
    err = (oct_error){0};
    assert_int_equal(oct_safetensors_parse("F", json, (size_t)1 << 40, 1 << 30, &s, &err),
                     OCT_ERR_FORMAT);
    assert_non_null(strstr(err.text, "expected at most"));
    free(json);
}

/* ---- folders -------------------------------------------------------------------------------- */

typedef struct folder {
    rig_dir d;
    char hub[100];
} folder;

static folder new_folder(const mks_spec *spec)
{
    folder f = {.d = rig_new(&narrow)};
    assert_true(mks_write(f.d.ckpt, spec, hub_of(&f.d, f.hub)));
    return f;
}

static void refused(const folder *f, const char *path, const char *one, const char *two)
{
    oct_convert_report r;
    oct_error err;
    const oct_convert_params p = {.checkpoint = path, .out = f->d.out, .no_tokenizer = true};
    const oct_status status = rig_convert_with(&p, &r, &err);
    bool said = strstr(err.text, one) && strstr(err.text, two);
    for (size_t i = 0; i < r.problems.n; i++)
        said = said || (strstr(r.problems.line[i], one) && strstr(r.problems.line[i], two));
    if (status == OCT_OK || !said)
        fail_msg("expected \"%s\" and \"%s\" in: %s", one, two, err.text);
    assert_int_equal(rig_count_outputs(&f->d), 0);
    oct_convert_report_free(&r);
}

static void put(const folder *f, const char *name, const char *text)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", f->hub, name);
    rig_write_file(path, text, strlen(text));
}

static void take_away(const folder *f, const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", f->hub, name);
    assert_int_equal(unlink(path), 0);
}

/* Two of three files, in all the ways in which downloads end early. */
static void test_unfinished(void **state)
{
    static const char second[] = "model-00002-of-00003.safetensors";
    (void)state;
    folder f = new_folder(&(mks_spec){.shards = 3});
    char path[200], link[200];
    snprintf(path, sizeof path, "%s/%s", f.hub, second);
    snprintf(link, sizeof link, "%s/x.safetensors.aria2", f.hub);
    put(&f, "model-00002-of-00003.safetensors.aria2", "x");
    refused(&f, f.hub, second, "download of this file is not finished");
    take_away(&f, "model-00002-of-00003.safetensors.aria2");
    rig_map m = load(path);
    int fd = open(path, O_RDWR);
    assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8192, 4096), 0);
    close(fd);
    refused(&f, f.hub, second, "the first at 8192, are a hole");
    rig_write_file(path, m.data, m.n - 1);
    refused(&f, f.hub, second, "an unfinished download");
    rig_write_file(path, m.data, 100);
    refused(&f, f.hub, second, "a header of");
    memset(m.data, 0, m.n);
    rig_write_file(path, m.data, m.n);
    refused(&f, f.hub, second, "zeros, as a download leaves");
    free(m.data);
    put(&f, second, "");
    refused(&f, f.hub, second, "it is empty");
    put(&f, second, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n");
    refused(&f, f.hub, second, "a Git LFS pointer; the file itself was not downloaded");
    put(&f, second, "<!DOCTYPE html><html>");
    refused(&f, f.hub, second, "an HTML page");
    take_away(&f, second);
    refused(&f, f.hub, second, "missing");
    put(&f, "model-00002-of-00003.safetensors.incomplete", "x");
    refused(&f, f.hub, second, "missing: its download is not finished");
    assert_int_equal(symlink("../../blobs/0123", path), 0);
    refused(&f, f.hub, second, "a link to ../../blobs/0123, which is not there");
    take_away(&f, second);
    assert_int_equal(mkdir(path, 0777), 0);
    refused(&f, f.hub, second, "not a regular file");
    assert_int_equal(rmdir(path), 0);
    take_away(&f, "model.safetensors.index.json"); /* the names tell how many there are */
    refused(&f, f.hub, second, "missing");
    rig_free(&f.d);
}

static void test_index(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {{"{}", "expected an object \"weight_map\""},
                 {"{", "not JSON"},
                 {"[[[[[[", "nests deeper"},
                 {"{\"weight_map\":{\"a\":\"../x.safetensors\"}}", "\"../x.safetensors\""},
                 {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "\"/etc/passwd\""},
                 {"{\"weight_map\":{\"a\":7}}", "(no string)"},
                 {"{\"weight_map\":{\"a\":\"x.bin\"}}", "\"x.bin\""},
                 {"{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\"}}",
                  "tensor \"a\", which the index puts here, is not in it"},
                 {"{\"weight_map\":{\"lm_head.weight\":\"model-00001-of-00002.safetensors\","
                  "\"x\":\"model-00002-of-00002.safetensors\"}}",
                  "tensor \"lm_head.weight\", which the index puts here, is in model-00002"}};
    (void)state;
    folder f = new_folder(&(mks_spec){.shards = 2, .head = true});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put(&f, "model.safetensors.index.json", cases[i].text);
        refused(&f, f.hub, cases[i].says, "");
    }
    rig_free(&f.d);
}

/* Renames tensors in a header, so that its length stays. */
static void rename_tensors(const folder *f, const char *from, const char *to)
{
    char path[200];
    snprintf(path, sizeof path, "%s/model.safetensors", f->hub);
    rig_map m = load(path);
    const size_t n = strlen(from);
    assert_int_equal(n, strlen(to));
    for (size_t i = 0; i < 40000 && i + n < m.n; i++)
        if (memcmp(m.data + i, from, n) == 0)
            memcpy(m.data + i, to, n);
    rig_write_file(path, m.data, m.n);
    free(m.data);
}

static void test_tensors(void **state)
{
    (void)state;
    folder f = new_folder(&(mks_spec){.scheme = 1, .f32 = true});
    static const struct {
        const char *from, *to, *one, *two;
    } cases[] = {
        {"model.layers.1.attn.q_proj", "model.layers.1.attn.Q_proj",
         "tensor model.layers.1.attn.q_proj.weight", "in none of the files"},
        {"experts.3.linear_1.", "experts.9.linear_1.", "experts.3.linear_1.weight", "in none of"},
        {"\"BF16\",\"shape\":[512,192]", "\"BF16\",\"shape\":[256,384]", "expected BF16 [256, 192]",
         "found BF16 [256, 384]"},
        {"\"BF16\",\"shape\":[203,192]", "\"U16\",\"shape\" :[203,192]", "expected BF16 [203, 192]",
         "found U16 [203, 192]"},
        {"moe_block.gate.weight", "moe_block.gate.WEIGHT", "a model with other names",
         "transformer.decoder_layer.0.router.weight"},
        {".moe_block.gate", ".block_sparse_m", "a model with other names", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rename_tensors(&f, cases[i].from, cases[i].to);
        refused(&f, f.hub, cases[i].one, cases[i].two);
        rename_tensors(&f, cases[i].to, cases[i].from);
    }
    /* What is no tensor of the model is passed over. */
    oct_convert_report r;
    rename_tensors(&f, "model.layers.1.", "model.lajers.1.");
    put(&f, "config.json",
        "{\"num_attention_heads\":48,\"num_key_value_heads\":8,\"max_position_embeddings\":64,"
        "\"num_experts_per_tok\":2,\"pad_token_id\":0,\"eos_token_id\":[2,3],\"x\":{\"y\":[]},"
        "\"embedding_multiplier_scale\":1,\"output_multiplier_scale\":1,"
        "\"attn_output_multiplier\":1,\"head_dim\":null}");
    convert(f.hub, f.d.out, &r);
    assert_int_equal(r.model.n_layers, 1);
    assert_int_equal(r.model.head_dim, 16);
    assert_int_equal(r.model.eos_id, 2);
    assert_true(warned(&r, "tensors are none of Grok-1's", f.hub));
    oct_convert_report_free(&r);
    rig_free(&f.d);
}

/* models--AUTHOR--NAME: refs/main names a snapshot, whose files are links to blobs. */
static void test_hub_cache(void **state)
{
    (void)state;
    folder f = new_folder(&(mks_spec){.shards = 2, .f32 = true});
    char cache[120], path[260], target[200], other[100];
    oct_convert_report r;
    snprintf(cache, sizeof cache, "%s/models--a--b", f.d.path);
    const char *const dirs[] = {"", "/blobs", "/refs", "/snapshots", "/snapshots/00ff"};
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        snprintf(path, sizeof path, "%s%s", cache, dirs[i]);
        assert_int_equal(mkdir(path, 0777), 0);
    }
    DIR *d = opendir(f.hub);
    int k = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char from[300], to[300];
        if (e->d_name[0] == '.')
            continue;
        snprintf(from, sizeof from, "%s/%.80s", f.hub, e->d_name);
        snprintf(to, sizeof to, "%s/blobs/%d", cache, k);
        assert_int_equal(rename(from, to), 0);
        snprintf(target, sizeof target, "../../blobs/%d", k++);
        snprintf(path, sizeof path, "%s/snapshots/00ff/%.80s", cache, e->d_name);
        assert_int_equal(symlink(target, path), 0);
    }
    closedir(d);
    snprintf(path, sizeof path, "%s/refs/main", cache);
    rig_write_file(path, "00ff", 4);
    snprintf(other, sizeof other, "%s/other.gguf", f.d.path);
    convert(f.d.ckpt, other, &r);
    oct_convert_report_free(&r);
    convert(cache, f.d.out, &r);
    assert_non_null(strstr(r.checkpoint_dir, "snapshots/00ff"));
    oct_convert_report_free(&r);
    same_bytes(f.d.out, other);
    unlink(f.d.out);
    snprintf(path, sizeof path, "%s/blobs/0", cache);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/blobs/1", cache);
    assert_int_equal(unlink(path), 0);
    refused(&f, cache, "", "");
    rig_free(&f.d);
}

/* A file alone, the tokenizer, an output that is an input. */
static void test_paths(void **state)
{
    (void)state;
    folder f = new_folder(&(mks_spec){.scheme = 1, .f32 = true});
    char path[200];
    oct_convert_report r;
    oct_error err;
    snprintf(path, sizeof path, "%s/model.safetensors", f.hub);
    convert(path, f.d.out, &r);
    assert_string_equal(r.checkpoint_dir, path);
    oct_convert_report_free(&r);
    unlink(f.d.out);
    oct_convert_params p = {.checkpoint = f.hub, .out = path, .no_tokenizer = true};
    assert_int_not_equal(rig_convert_with(&p, &r, &err), OCT_OK);
    oct_convert_report_free(&r);
    p = (oct_convert_params){.checkpoint = f.hub, .out = f.d.out};
    assert_int_equal(rig_convert_with(&p, &r, &err), OCT_ERR_ARG);
    assert_non_null(strstr(err.text, "tokenizer.model is needed"));
    oct_convert_report_free(&r);
    put(&f, "tokenizer.json", "{}");
    assert_int_equal(rig_convert_with(&p, &r, &err), OCT_ERR_ARG);
    assert_non_null(strstr(err.text, "a tokenizer of Hugging Face's library"));
    oct_convert_report_free(&r);
    rig_free(&f.d);
}

/* Grok-1's shapes: its own numbers, whatever defaults a conversion's config.json has. */
static void test_grok1_numbers(void **state)
{
    (void)state;
    static char dir[] = "here";
    oct_ckpt c = {.dir = dir, .n_layers = 64};
    const int64_t dims[] = {
        [OCT_CKPT_VOCAB] = 131072, [OCT_CKPT_MODEL] = 6144,   [OCT_CKPT_FFN] = 32768,
        [OCT_CKPT_EXPERTS] = 8,    [OCT_CKPT_Q_WIDTH] = 6144, [OCT_CKPT_KV_WIDTH] = 1024};
    memcpy(c.dim, dims, sizeof dims);
    rig_dir d = rig_new(NULL);
    char path[100];
    oct_hparams h;
    oct_lines warnings = {0};
    oct_error err = {0};
    oct_grok_config g;
    snprintf(path, sizeof path, "%s/config.json", d.path);
    static const char text[] = "{\"rope_theta\":100000.0,\"max_position_embeddings\":4096,"
                               "\"rms_norm_eps\":1e-05,\"num_local_experts\":8,"
                               "\"num_attention_heads\":48,\"hidden_act\":\"silu\"}";
    rig_write_file(path, text, sizeof text - 1);
    assert_int_equal(oct_hparams_read(path, OCT_HPARAM_HUGGING_FACE, &h, &warnings, &err), OCT_OK);
    assert_int_equal(warnings.n, 0);
    oct_hparams_prefer_grok1(&c, path, &h, &warnings);
    assert_int_equal(warnings.n, 2);
    assert_non_null(strstr(warnings.line[0], "max_position_embeddings 4096"));
    assert_non_null(strstr(warnings.line[1], "rope_theta 100000"));
    assert_int_equal(oct_hparams_resolve(&c, &h, path, "here", &g, &err), OCT_OK);
    const oct_grok_config grok1 = oct_grok1_config(64, 131072);
    assert_memory_equal(&g, &grok1, sizeof g);
    oct_lines_free(&warnings);
    rig_free(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_file),     cmocka_unit_test(test_same_rounded_file),
        cmocka_unit_test(test_plain_f32),     cmocka_unit_test(test_flipped_bit),
        cmocka_unit_test(test_other_numbers), cmocka_unit_test(test_untied),
        cmocka_unit_test(test_headers),       cmocka_unit_test(test_bombs),
        cmocka_unit_test(test_unfinished),    cmocka_unit_test(test_index),
        cmocka_unit_test(test_tensors),       cmocka_unit_test(test_hub_cache),
        cmocka_unit_test(test_paths),         cmocka_unit_test(test_grok1_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
