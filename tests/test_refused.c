/* test_refused.c: every allocation of the library is refused once, whatever is done: open a model,
 * evaluate, schedule, tokenise, convert, cut, export, place. Each time an error with a line comes,
 * or the result; under AddressSanitizer it shows too that nothing is lost or used after. (Programs
 * as a whole: faults.sh.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "convert.h"
#include "machine.h"
#include "model_impl.h"
#include "octet.h"
#include "scheduler.h"

static _Atomic int64_t left; /* allocations until one is refused; <= 0: none will be */

static bool refuse(void)
{
    return left > 0 && atomic_fetch_sub(&left, 1) == 1;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
char *__real_strdup(const char *s);
char *__real_strndup(const char *s, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);

void *__wrap_malloc(size_t n)
{
    return refuse() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return refuse() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return refuse() ? NULL : __real_realloc(p, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    return refuse() ? NULL : __real_aligned_alloc(align, n);
}

char *__wrap_strdup(const char *s)
{
    return refuse() ? NULL : __real_strdup(s);
}

char *__wrap_strndup(const char *s, size_t n)
{
    return refuse() ? NULL : __real_strndup(s, n);
}

/* ---- what is done ---------------------------------------------------------------------------- */

/* In memory: syncing a disk for each would take most of the time. */
static char out[64], folder[] = "/dev/shm/octet-refused-XXXXXX";
static oct_model *odd, *tiny; /* open for those that need one */

static oct_status do_open(oct_error *err)
{
    oct_model *m;
    oct_status s = oct_model_open(OCT_TEST_MODELS "/odd.gguf", &m, err);
    if (s == OCT_OK)
        oct_model_close(m);
    return s;
}

static oct_status do_open_with_tokenizer(oct_error *err)
{
    oct_model *m;
    oct_status s = oct_model_open(OCT_TEST_MODELS "/tiny-grok.gguf", &m, err);
    if (s == OCT_OK)
        oct_model_close(m);
    return s;
}

static oct_status do_eval(oct_error *err)
{
    static float logits[4096];
    const oct_session_params p = {.n_ctx = 200, .n_threads = 2, .n_seqs = 2, .chunk = 4};
    const int32_t token[6] = {5, 6, 7, 8, 9, 10};
    const oct_batch b = {6, token, NULL, NULL};
    oct_session *s;
    oct_status status = oct_session_new(odd, &p, &s, err);
    if (status != OCT_OK)
        return status;
    status = oct_eval(s, &b, logits, err);
    if (status == OCT_OK)
        status = oct_session_fork(s, 0, 1, err);
    oct_session_free(s);
    return status;
}

static void on_event(void *ctx, const oct_event *e)
{
    oct_error *err = ctx;
    if (e->kind == OCT_EVENT_END && e->end == OCT_END_ERROR)
        *err = *e->error;
}

static oct_status do_schedule(oct_error *err)
{
    const oct_session_params p = {.n_ctx = 64, .n_threads = 1, .n_seqs = 3, .chunk = 8};
    oct_error ended = {0};
    const oct_scheduler_params how = {.event = on_event, .ctx = &ended};
    const oct_logit_bias bias[1] = {{5, 1}};
    const int32_t ids[4] = {5, 6, 7, 8};
    const oct_request r = {.ids = ids,
                           .n_ids = 4,
                           .n_max = 3,
                           .n = 2,
                           .n_top = 2,
                           .logprob = true,
                           .sampler = {.temperature = 1, .top_p = 1, .bias = bias, .n_bias = 1}};
    oct_session *s;
    oct_scheduler *q = NULL;
    uint64_t id;
    oct_status status = oct_session_new(odd, &p, &s, err);
    if (status != OCT_OK)
        return status;
    status = oct_scheduler_new(s, &how, &q, err);
    if (status == OCT_OK)
        status = oct_scheduler_submit(q, &r, &id, err);
    for (int i = 0; i < 50 && status == OCT_OK && oct_scheduler_pending(q) > 0; i++)
        status = oct_scheduler_step(q, err);
    oct_scheduler_free(q);
    oct_session_free(s);
    if (status == OCT_OK && ended.status != OCT_OK) {
        *err = ended;
        status = ended.status;
    }
    return status;
}

static oct_status do_text(oct_error *err)
{
    int32_t *ids = NULL;
    size_t n, bytes;
    char *text = NULL;
    oct_status s = oct_encode(tiny, "In the beginning", 16, &ids, &n, err);
    if (s == OCT_OK)
        s = oct_decode(tiny, ids, n, &text, &bytes, err);
    free(ids);
    free(text);
    return s;
}

static oct_status do_machine(oct_error *err)
{
    oct_machine *m;
    oct_status s = oct_machine_load("numa:2 core:2 pu:2", &m, err);
    oct_machine_free(m);
    return s;
}

static oct_status do_place(oct_error *err)
{
    oct_placement *p;
    oct_own_report r;
    const oct_own_params how = {.n_threads = 2};
    oct_status s = oct_placement_own(odd, &how, &p, &r, err);
    if (s == OCT_OK)
        oct_placement_free(p);
    return s;
}

static oct_status do_convert(oct_error *err)
{
    const oct_convert_params p = {.checkpoint = OCT_TEST_DATA "/models/odd",
                                  .out = out,
                                  .no_tokenizer = true,
                                  .n_threads = 2};
    oct_convert_report r = {0};
    oct_status s = oct_convert(&p, &r, err);
    oct_convert_report_free(&r);
    return s;
}

static oct_status do_slice(oct_error *err)
{
    const oct_slice_params p = {.model = OCT_TEST_MODELS "/odd.gguf",
                                .out = out,
                                .by = OCT_SHARD_SLICE,
                                .rank = 1,
                                .size = 2};
    oct_slice_report r;
    oct_status s = oct_slice(&p, &r, err);
    oct_lines_free(&r.warnings);
    return s;
}

static oct_status do_verify(oct_error *err)
{
    return oct_verify(OCT_TEST_MODELS "/odd.gguf", NULL, NULL, NULL, err);
}

static oct_status do_synthetic(oct_error *err)
{
    const oct_synthetic_params p = {.config = &odd->config, .out = out};
    return oct_synthetic_write(&p, err);
}

static oct_session *evaluated;

/* What a session has evaluated, saved and taken up by another. */
static oct_status do_save(oct_error *err)
{
    const oct_session_params p = {.n_ctx = 200, .n_threads = 1};
    oct_session *s;
    oct_kv_kept kept;
    oct_status status = oct_session_save(evaluated, folder, 9, &kept, err);
    if (status == OCT_OK)
        status = oct_session_new(odd, &p, &s, err);
    if (status != OCT_OK)
        return status;
    status = oct_session_restore(s, folder, &kept, err);
    if (status == OCT_OK && kept.why[0])
        status = oct_fail(err, OCT_ERR_MEMORY, "%s", kept.why);
    assert_true(kept.pages == (status == OCT_OK));
    oct_session_free(s);
    return status;
}

/* ---- one after the other --------------------------------------------------------------------- */

static void refuse_each(const char *what, oct_status (*work)(oct_error *err))
{
    oct_error err = {0};
    int64_t n = 1, n_failed = 0;
    left = 0;
    if (work(&err) != OCT_OK)
        fail_msg("%s: %s", what, err.text);
    for (;; n++) {
        unlink(out);
        err = (oct_error){0};
        left = n;
        oct_status s = work(&err);
        bool all = left > 0; /* there were not so many */
        left = 0;
        if (all)
            break;
        n_failed += s != OCT_OK;
        if (s != OCT_OK && (!err.text[0] || access(out, F_OK) == 0))
            fail_msg("%s, allocation %lld: status %s, line '%s'%s", what, (long long)n,
                     oct_status_name(s), err.text, access(out, F_OK) == 0 ? ", a file" : "");
        assert_true(n < 20000);
    }
    unlink(out);
    printf("%s: %lld allocations, %lld refusals were errors\n", what, (long long)n - 1,
           (long long)n_failed);
    assert_true(n > 1 && n_failed > 0);
}

static void refuse_saving(void)
{
    const oct_session_params p = {.n_ctx = 200, .n_threads = 1};
    char file[128];
    int32_t token[130];
    float *logits = malloc((size_t)oct_model_get_info(odd)->n_vocab * sizeof *logits);
    for (int i = 0; i < 130; i++)
        token[i] = 5 + i % 7;
    assert_int_equal(oct_session_new(odd, &p, &evaluated, NULL), OCT_OK);
    assert_int_equal(oct_eval(evaluated, &(oct_batch){.n = 130, .token = token}, logits, NULL),
                     OCT_OK);
    refuse_each("save", do_save);
    snprintf(file, sizeof file, "%s/octet-%016llx.kv", folder,
             (unsigned long long)oct_model_get_info(odd)->fingerprint);
    assert_int_equal(unlink(file), 0);
    oct_session_free(evaluated);
    free(logits);
}

static void test_refused(void **state)
{
    (void)state;
    oct_error err = {0};
    assert_int_equal(oct_model_open(OCT_TEST_MODELS "/odd.gguf", &odd, &err), OCT_OK);
    assert_int_equal(oct_model_open(OCT_TEST_MODELS "/tiny-grok.gguf", &tiny, &err), OCT_OK);
    if (!mkdtemp(folder)) {
        strcpy(folder, "refused-XXXXXX");
        assert_non_null(mkdtemp(folder));
    }
    snprintf(out, sizeof out, "%s/out", folder);
    refuse_each("open", do_open);
    refuse_each("open with a tokenizer", do_open_with_tokenizer);
    refuse_each("evaluate", do_eval);
    refuse_each("schedule", do_schedule);
    refuse_each("text", do_text);
    refuse_each("machine", do_machine);
    refuse_each("place", do_place);
    refuse_each("convert", do_convert);
    refuse_each("slice", do_slice);
    refuse_each("verify", do_verify);
    refuse_each("synthetic", do_synthetic);
    refuse_saving();
    oct_model_close(odd);
    oct_model_close(tiny);
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
