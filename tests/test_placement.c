/* test_placement.c: model files have their tensors in order, without gaps, and nothing behind them;
 * and the writer of headers when memory is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grok.h"

/* ---- memory that is refused: the linker leads every realloc here ---------------------------- */

static int64_t reallocs, refuse_at = -1; /* all from this one on; -1: none */

void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n)
{
    return refuse_at >= 0 && reallocs++ >= refuse_at ? NULL : __real_realloc(p, n);
}

/* ---- placement ------------------------------------------------------------------------------ */

static const uint64_t sizes[] = {5000, 8192, 7}; /* padded to 8192, 8192, 4096 */

static oct_gguf_writer *sample(void)
{
    oct_gguf_writer *w = oct_gguf_writer_new(4096);
    if (!w)
        return NULL;
    oct_gguf_put_str(w, "general.architecture", OCT_GROK_ARCH);
    for (int i = 0; i < 40; i++) {
        char key[32];
        snprintf(key, sizeof key, "key.%d", i);
        oct_gguf_put_str(w, key, "some text that makes the buffers grow now and then");
    }
    for (int i = 0; i < 3; i++)
        oct_gguf_put_tensor(w, (char[]){'t', (char)('0' + i), 0}, OCT_GGUF_T_I8, 1, &sizes[i]);
    return w;
}

/* A file with data_bytes behind the header and the offset of tensor 1 replaced: fine as GGUF. */
static oct_status judge(uint64_t offset1, uint64_t data_bytes, oct_error *err)
{
    static const uint64_t old = 8192;
    oct_gguf_writer *w = sample();
    void *header;
    size_t n;
    uint64_t at[3];
    *err = (oct_error){0};
    assert_non_null(w);
    assert_int_equal(oct_gguf_writer_header(w, 4096, &header, &n, at, err), OCT_OK);
    oct_gguf_writer_free(w);
    uint8_t *name = memmem(header, n, "t1", 2), *offset = memmem(name, 40, &old, 8);
    assert_non_null(offset);
    offset = memmem(offset + 8, 40, &old, 8); /* the first is its size */
    assert_non_null(offset);
    memcpy(offset, &offset1, 8);
    oct_gguf *g;
    if (oct_gguf_parse("some file", header, n, n + data_bytes, &g, err) != OCT_OK)
        fail_msg("%s", err->text);
    oct_status s = oct_grok_check_placement(g, err);
    oct_gguf_close(g);
    free(header);
    return s;
}

static void refused(uint64_t offset1, uint64_t data_bytes, const char *says)
{
    oct_error err;
    assert_int_equal(judge(offset1, data_bytes, &err), OCT_ERR_FORMAT);
    if (!strstr(err.text, says) || !strstr(err.text, "some file"))
        fail_msg("expected \"%s\" in: %s", says, err.text);
}

static void test_placement(void **state)
{
    (void)state;
    oct_error err;
    assert_int_equal(judge(8192, 20480, &err), OCT_OK);
    refused(8192, 20479, "truncated?");         /* cut inside the last padding */
    refused(8192, 16384 + 7, "truncated?");     /* no padding at all */
    refused(8192, 20481, "expected a file of"); /* bytes that no checksum covers */
    refused(8192, 24576, "end of data");
    refused(20480, 28672, "tensor 't1'"); /* out of order, and a gap */
}

/* ---- the writer ----------------------------------------------------------------------------- */

/* Whichever allocation is refused: an error, and no look at pairs that are not there. */
static void test_refused_memory(void **state)
{
    (void)state;
    int64_t failures = 0;
    for (refuse_at = 0; failures == refuse_at; refuse_at++) {
        reallocs = 0;
        oct_gguf_writer *w = sample();
        assert_non_null(w);
        (void)oct_gguf_writer_value_offset(w, "key.39");
        (void)oct_gguf_writer_value_offset(w, "absent");
        void *header = NULL;
        size_t n = 0;
        uint64_t at[3];
        oct_error err = {0};
        oct_status s = oct_gguf_writer_header(w, 4096, &header, &n, at, &err);
        assert_true(s == OCT_OK || s == OCT_ERR_MEMORY);
        assert_true((s == OCT_OK) == (header != NULL));
        failures += s != OCT_OK;
        free(header);
        oct_gguf_writer_free(w);
        if (s == OCT_OK)
            break;
    }
    refuse_at = -1;
    assert_true(failures > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_placement),
        cmocka_unit_test(test_refused_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
