/* test_format.c: model files of format 1, which say nothing of weight types, and of format 2,
 * which do. tests/data/format1.gguf was written by version 0.1.0 from the checkpoint that is made
 * here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "ckpt_rig.h"
#include "model_impl.h"
#include "convert.h"

#define FORMAT1 OCT_TEST_DATA "/format1.gguf"

static const mk_spec spec = {.layers = 1,
                             .vocab = 50,
                             .d = 16,
                             .ffn = 16,
                             .q_heads = 2,
                             .kv_heads = 2,
                             .head = 8,
                             .experts = 2,
                             .used = 1,
                             .context = 64,
                             .groups = 2,
                             .seed = 3};
enum { VOCAB = 50, N = 20 };

static oct_model *open_model(const char *path)
{
    oct_error err = {0};
    oct_model *m;
    if (oct_model_open(path, &m, &err) != OCT_OK)
        fail_msg("%s", err.text);
    return m;
}

static void logits_of(const oct_model *m, float out[VOCAB])
{
    int32_t token[N];
    oct_error err = {0};
    oct_session *s;
    const oct_session_params p = {.n_threads = 1};
    for (int i = 0; i < N; i++)
        token[i] = (i * 7 + 3) % VOCAB;
    if (oct_session_new(m, &p, &s, &err) != OCT_OK)
        fail_msg("%s", err.text);
    assert_int_equal(oct_eval(s, &(oct_batch){N, token, NULL, NULL}, out, &err), OCT_OK);
    oct_session_free(s);
}

static uint64_t format_of(const oct_gguf *g)
{
    oct_error err = {0};
    uint64_t format = 0;
    assert_int_equal(oct_gguf_get_u64(g, "octet.format", &format, &err), OCT_OK);
    return format;
}

/* The numbers of the packing of a file, by name: 1 for the units of matrices, 0 for all else. */
static void packing_is_q8(const oct_gguf *g)
{
    static const char *const packed[] = {"ffn_gate_up.weight", "ffn_down.weight", "attn_qkv.weight",
                                         "attn_output.weight"};
    const void *data;
    uint64_t n;
    int n_packed = 0;
    oct_error err = {0};
    if (oct_gguf_get_array(g, "octet.tensor_packing", OCT_GGUF_U32, &data, &n, &err) != OCT_OK)
        fail_msg("%s", err.text);
    assert_int_equal(n, oct_gguf_n_tensors(g));
    for (uint64_t i = 0; i < n; i++) {
        uint32_t number, want = 0;
        memcpy(&number, (const uint8_t *)data + 4 * i, sizeof number);
        for (size_t k = 0; k < sizeof packed / sizeof *packed; k++)
            want |= strstr(oct_gguf_tensor_at(g, (int64_t)i)->name, packed[k]) != NULL;
        assert_int_equal(number, want);
        n_packed += number == 1;
    }
    assert_int_equal(n_packed, 4);
}

static void test_format1_runs(void **state)
{
    (void)state;
    rig_dir d = rig_new(&spec);
    oct_convert_report r;
    oct_error err = {0};
    float want[VOCAB], got[VOCAB];
    if (rig_convert(&d, &r, &err) != OCT_OK)
        fail_msg("%s", err.text);
    oct_convert_report_free(&r);
    oct_model *old = open_model(FORMAT1), *new = open_model(d.out);
    assert_int_equal(format_of(old->file), 1);
    assert_false(oct_gguf_has(old->file, "octet.tensor_packing"));
    assert_int_equal(format_of(new->file), 2);
    packing_is_q8(new->file);
    assert_int_equal(oct_gguf_n_tensors(old->file), oct_gguf_n_tensors(new->file));
    for (int64_t i = 0; i < oct_gguf_n_tensors(old->file); i++) {
        const oct_gguf_tensor *a = oct_gguf_tensor_at(old->file, i);
        const oct_gguf_tensor *b = oct_gguf_tensor_at(new->file, i);
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->bytes, b->bytes);
        assert_memory_equal(a->data, b->data, a->bytes);
    }
    logits_of(old, want);
    logits_of(new, got);
    assert_memory_equal(want, got, sizeof want);
    assert_true(want[0] != want[1]);
    oct_model_close(old);
    oct_model_close(new);
    rig_free(&d);
}

/* A part has the header of its whole, of whichever format that is. */
static void test_parts_of_format1(void **state)
{
    (void)state;
    rig_dir d = rig_new(NULL);
    for (int rank = 0; rank < 2; rank++) {
        oct_error err = {0};
        oct_slice_report report;
        const oct_slice_params p = {
            .model = FORMAT1, .out = d.out, .by = OCT_SHARD_SLICE, .rank = rank, .size = 2};
        if (oct_slice(&p, &report, &err) != OCT_OK)
            fail_msg("%s", err.text);
        oct_lines_free(&report.warnings);
        oct_model *m = open_model(d.out);
        assert_int_equal(oct_model_get_info(m)->part_size, 2);
        assert_int_equal(format_of(m->file), 1);
        oct_model_close(m);
    }
    rig_free(&d);
}

/* A copy of the new file whose packing number of one tensor is another is refused in a line that
 * names the tensor. */
static void refused(const rig_dir *d, const char *tensor, uint32_t number, const char *part)
{
    char path[96];
    oct_error err = {0};
    oct_gguf *g;
    oct_model *m;
    rig_map f = rig_map_file(d->out);
    assert_int_equal(oct_gguf_open(d->out, &g, &err), OCT_OK);
    int64_t i = 0;
    while (strcmp(oct_gguf_tensor_at(g, i)->name, tensor) != 0)
        i++;
    memcpy(f.data + oct_gguf_value_offset(g, OCT_GROK_KEY_TENSOR_PACKING) + 4 * i, &number, 4);
    const size_t sum_at = (size_t)oct_gguf_value_offset(g, OCT_GROK_KEY_HEADER_SUM);
    uint64_t sum = oct_grok_header_sum(f.data, (size_t)oct_gguf_data_offset(g), sum_at);
    memcpy(f.data + sum_at, &sum, 8);
    oct_gguf_close(g);
    snprintf(path, sizeof path, "%s/bent.gguf", d->path);
    rig_write_file(path, f.data, f.n);
    rig_unmap(f);
    assert_int_not_equal(oct_model_open(path, &m, &err), OCT_OK);
    if (!strstr(err.text, part) || !strstr(err.text, tensor) || !strstr(err.text, path) ||
        strchr(err.text, '\n'))
        fail_msg("expected \"%s\" in: %s", part, err.text);
}

static void test_bad_packing(void **state)
{
    (void)state;
    rig_dir d = rig_new(&spec);
    oct_convert_report r;
    oct_error err = {0};
    assert_int_equal(rig_convert(&d, &r, &err), OCT_OK);
    oct_convert_report_free(&r);
    refused(&d, "blk.0.ffn_down.weight", 4000000000u, ", found 4000000000");
    refused(&d, "blk.0.attn_qkv.weight", 0, ", found 0");
    refused(&d, "blk.0.attn_qkv.scales", 1, "expected packing 0 (plain), found 1");
    refused(&d, "output_norm.weight", 1, "expected packing 0 (plain), found 1");
    rig_free(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_format1_runs),
        cmocka_unit_test(test_parts_of_format1),
        cmocka_unit_test(test_bad_packing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
