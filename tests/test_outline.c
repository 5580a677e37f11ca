/* test_outline.c: planning by a config.json without weights: Grok-1's by the authors of its
 * conversions to Hugging Face's format, other models', and broken ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "convert.h"
#include "model_impl.h"

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

static void remove_all(const char *dir)
{
    static const char *const names[] = {"config.json", "model.safetensors.index.json"};
    char path[200];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(dir), 0);
}

/* The numbers of Grok-1 as the two authors of its conversions have them. */
#define HF_SIZES                                                                 \
    "\"hidden_size\":6144,\"intermediate_size\":32768,\"num_hidden_layers\":64," \
    "\"num_attention_heads\":48,\"num_key_value_heads\":8,\"vocab_size\":131072"
#define HF_REST                                                                      \
    "\"num_experts_per_tok\":2,\"max_position_embeddings\":8192,\"pad_token_id\":0," \
    "\"eos_token_id\":2,\"embedding_multiplier_scale\":78.38367176906169,"           \
    "\"output_multiplier_scale\":0.5773502691896257,\"rms_norm_eps\":1e-05,"         \
    "\"attn_output_multiplier\":0.08838834764831845"
#define HF_SMALL                                                             \
    "\"hidden_size\":256,\"intermediate_size\":512,\"num_hidden_layers\":2," \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":512"

static oct_status outline_of(const char *path, const char *json, oct_outline *o, oct_error *err)
{
    char file[200];
    snprintf(file, sizeof file, "%s/config.json", path);
    write_text(file, json);
    *err = (oct_error){0};
    return oct_outline_open(file, NULL, o, err);
}

static void test_configs(void **state)
{
    (void)state;
    static const char *const good[] = {
        "{\"architectures\":[\"GrokForCausalLM\"],\"model_type\":\"grok\",\"num_local_experts\":8,"
        "\"hidden_act\":\"gelu_new\",\"rope_theta\":10000.0,\"sliding_window\":null," HF_SIZES
        "," HF_REST "}",
        "{\"architectures\":[\"Grok1ModelForCausalLM\"],\"model_type\":\"grok-1\","
        "\"num_experts\":8,\"max_attn_value\":30.0," HF_SIZES "," HF_REST "}",
        /* Defaults of other models in what the shapes make Grok-1 nevertheless. */
        "{\"num_experts\":8,\"hidden_act\":\"silu\"," HF_SIZES
        ",\"max_position_embeddings\":4096}"};
    char dir[] = "/tmp/octet-outline-XXXXXX";
    oct_outline o, grok1;
    oct_error err = {0};
    assert_non_null(mkdtemp(dir));
    assert_int_equal(oct_outline_open("grok-1", NULL, &grok1, &err), OCT_OK);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (outline_of(dir, good[i], &o, &err) != OCT_OK)
            fail_msg("%zu: %s", i, err.text);
        assert_memory_equal(&o.model->config, &grok1.model->config, sizeof o.model->config);
        assert_int_equal(o.file_bytes, grok1.file_bytes);
        assert_int_equal(o.of, OCT_OUTLINE_CONFIG);
        assert_true(o.source_bytes > 630e9 && o.source_bytes < 633e9);
        oct_outline_close(&o);
        /* The folder, with an index of shards that have not come. */
        char index[200];
        snprintf(index, sizeof index, "%s/model.safetensors.index.json", dir);
        write_text(index, "{}");
        assert_int_equal(oct_outline_open(dir, NULL, &o, &err), OCT_OK);
        assert_int_equal(o.file_bytes, grok1.file_bytes);
        oct_outline_close(&o);
    }
    static const struct {
        const char *json, *says;
    } bad[] = {
        {"{\"model_type\":\"mixtral\",\"num_local_experts\":8," HF_SMALL "," HF_REST "}",
         "model_type \"mixtral\""},
        {"{\"architectures\":[\"Llama\"],\"num_local_experts\":8," HF_SMALL "," HF_REST "}",
         "architectures \"Llama\""},
        {"{\"model_type\":\"grok\",\"residual_moe\":true,\"num_experts\":8," HF_SMALL "," HF_REST
         "}",
         "dense branch"},
        {"{\"moe_intermediate_size\":256,\"num_experts\":8," HF_SMALL "," HF_REST "}",
         "dense branch"},
        {"{\"attn_temperature_len\":1024,\"num_experts\":8," HF_SMALL "," HF_REST "}",
         "attn_temperature_len"},
        {"{\"hidden_act\":\"silu\",\"num_experts\":8," HF_SMALL "," HF_REST "}", "silu"},
        {"{\"num_layers\":3,\"num_experts\":8," HF_SMALL "," HF_REST "}", "another key"},
        {"{\"num_experts\":8,\"num_local_experts\":4," HF_SMALL "," HF_REST "}", "another key"},
        {"{\"hidden_size\":256,\"vocab_size\":512}", "lacks \""},
        {"{\"emb_size\":256,\"vocab_size\":512}", "lacks \"key_size\""},
        {"{\"num_experts\":8," HF_SMALL "}", "max_position_embeddings"},
        {"{\"num_experts\":8,\"head_dim\":2147483647," HF_SMALL "," HF_REST "}", "head_dim"},
        {"[]", "expected a JSON object"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (outline_of(dir, bad[i].json, &o, &err) == OCT_OK)
            fail_msg("taken: %s", bad[i].json);
        if (!strstr(err.text, bad[i].says) || !strstr(err.text, "config.json"))
            fail_msg("%s: expected '%s', found '%s'", bad[i].json, bad[i].says, err.text);
    }
    /* A small one of no name in particular, whose heads are as wide as is left. */
    assert_int_equal(outline_of(dir, "{\"num_experts\":8," HF_SMALL "," HF_REST "}", &o, &err),
                     OCT_OK);
    assert_int_equal(o.model->config.head_dim, 64);
    oct_outline_close(&o);
    oct_outline_close(&grok1);
    remove_all(dir);
}

/* A checkpoint without a tokenizer can be planned with. */
static void test_without_tokenizer(void **state)
{
    (void)state;
    oct_outline o;
    oct_error err = {0};
    if (oct_outline_open(OCT_TEST_DATA "/models/odd", NULL, &o, &err) != OCT_OK)
        fail_msg("%s", err.text);
    assert_int_equal(o.of, OCT_OUTLINE_CHECKPOINT);
    assert_true(o.n_files > 2 && o.source_bytes > 0);
    oct_outline_close(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_configs),
                                       cmocka_unit_test(test_without_tokenizer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
