/* test_ranks.c: models divided over ranks give the bits of one process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model_impl.h"
#include "npy.h"
#include "shard.h"
#include "thread_ranks.h"

static void check_model(const char *name, const char *isa)
{
    char path[512];
    oct_error err = {0};
    oct_model *m;
    oct_npy tokens;
    snprintf(path, sizeof path, "%s/%s.gguf", OCT_TEST_MODELS, name);
    assert_int_equal(oct_model_open(path, &m, &err), OCT_OK);
    snprintf(path, sizeof path, "%s/golden/%s/tokens.npy", OCT_TEST_DATA, name);
    assert_int_equal(oct_npy_load(path, &tokens), 0);
    int64_t V = oct_model_get_info(m)->n_vocab;
    job one = {.model = m,
               .params = {.isa = isa, .n_threads = 1, .chunk = 16},
               .tokens = tokens.data,
               .B = tokens.shape[0],
               .T = tokens.shape[1],
               .n_ranks = 1};
    size_t bytes = (size_t)(one.B * one.T * V) * sizeof(float);
    float *want = run_job(&one);
    for (int ranks = 2; ranks <= 8; ranks *= 2)
        for (int by = OCT_SHARD_BY_SLICE; by <= OCT_SHARD_BY_EXPERT; by++) {
            job many = one;
            many.n_ranks = ranks;
            many.params.shard = (oct_shard_by)by;
            float *got = run_job(&many);
            bool same = memcmp(want, got, bytes) == 0;
            printf("  %s, %s, %d ranks by %s: %s, %lld folds\n", name, isa, ranks,
                   by == OCT_SHARD_BY_EXPERT ? "expert" : "slice", same ? "same bits" : "DIFFER",
                   (long long)many.hub.folds);
            assert_true(same);
            assert_true(many.hub.folds > 0);
            free(got);
        }
    free(want);
    oct_npy_free(&tokens);
    oct_model_close(m);
}

static void test_models(void **state)
{
    (void)state;
    const char *isa = oct_kernel_rows[oct_isa_detect()].name;
    check_model("tiny-grok", isa);
    check_model("odd", isa);
    check_model("dense", isa);
    check_model("dense", "ref");
}

/* NUMA domains inside ranks. */
static void test_domains(void **state)
{
    (void)state;
    oct_error err = {0};
    oct_model *m;
    assert_int_equal(oct_model_open(OCT_TEST_MODELS "/dense.gguf", &m, &err), OCT_OK);
    static const int32_t tokens[12] = {5, 9, 200, 31, 4, 4, 77, 8, 90, 3, 6, 100};
    job one = {
        .model = m, .params = {.n_threads = 1}, .tokens = tokens, .B = 1, .T = 12, .n_ranks = 1};
    float *want = run_job(&one);
    job many = one;
    many.n_ranks = 2;
    many.params.topology = "numa:2 core:2 pu:1";
    many.params.n_threads = 4;
    float *got = run_job(&many);
    assert_memory_equal(want, got, (size_t)(12 * oct_model_get_info(m)->n_vocab) * sizeof(float));
    free(want);
    free(got);
    oct_model_close(m);
}

/* The last rank's model has another router in one layer: all ranks find it, none goes on. */
static void test_routers(void **state)
{
    (void)state;
    enum { RANKS = 4, LAYER = 3 };
    static const int32_t tokens[12] = {5, 9, 200, 31, 4, 4, 77, 8, 90, 3, 6, 100};
    oct_error err = {0};
    oct_model *m, *other;
    assert_int_equal(oct_model_open(OCT_TEST_MODELS "/tiny-grok.gguf", &m, &err), OCT_OK);
    assert_int_equal(oct_model_open(OCT_TEST_MODELS "/tiny-grok.gguf", &other, &err), OCT_OK);
    oct_tensor *router = &other->layers[LAYER].router;
    const float *right = router->data;
    float *wrong = malloc((size_t)(router->rows * router->cols) * sizeof *wrong);
    for (int64_t i = 0; i < router->rows * router->cols; i++)
        wrong[i] = -right[i];
    router->data = wrong;
    oct_model *models[RANKS] = {m, m, m, other};
    job j = {.model = m,
             .parts = models,
             .params = {.n_threads = 1},
             .tokens = tokens,
             .B = 1,
             .T = 12,
             .n_ranks = RANKS};
    run_ranks(&j);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(j.status[r], OCT_ERR_COMM);
        assert_string_equal(j.error[r].text, "layer 3: rank 3 chose other experts than rank 0");
    }
    free(j.logits);
    free(wrong);
    oct_model_close(other);
    oct_model_close(m);
}

/* The parts of all ranks are the whole, once. */
static void test_shards(void **state)
{
    (void)state;
    oct_shard s;
    for (int layout = OCT_SHARD_EXPERT; layout <= OCT_SHARD_SLICE; layout++)
        for (int size = 1; size <= 8; size *= 2) {
            int64_t slice = 0, expert = 0;
            for (int r = 0; r < size; r++) {
                assert_null(oct_shard_make((oct_shard_layout)layout, r, size, 8, 8, &s));
                assert_int_equal(s.first_slice, slice);
                slice = s.end_slice;
                if (layout == OCT_SHARD_EXPERT) {
                    assert_int_equal(s.first_expert, expert);
                    expert = s.end_expert;
                }
            }
            assert_int_equal(slice, 8);
            assert_int_equal(s.end_expert, 8);
        }
    static const int wrong[] = {0, 3, 5, 9, 16};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_non_null(oct_shard_make(OCT_SHARD_SLICE, 0, wrong[i], 8, 8, &s));
    assert_non_null(oct_shard_make(OCT_SHARD_EXPERT, 0, 4, 8, 6, &s)); /* 6 experts on 4 ranks */
    assert_non_null(oct_shard_make(OCT_SHARD_SLICE, 0, 2, 6, 8, &s));  /* 3 slices: no subtree */
    assert_non_null(oct_shard_make(OCT_SHARD_SLICE, 2, 2, 8, 8, &s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_domains),
        cmocka_unit_test(test_routers),
        cmocka_unit_test(test_models),
    };
    setvbuf(stdout, NULL, _IOLBF, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
