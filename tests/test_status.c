/* test_status.c: error texts are one line of text, whatever they quote. */
#include "status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

static void test_errors(void **state)
{
    (void)state;
    oct_error err = {0};
    char longer[2000];

    assert_int_equal(oct_fail(NULL, OCT_ERR_IO, "x"), OCT_ERR_IO);
    assert_int_equal(oct_fail(&err, OCT_ERR_SHAPE, "%s", "a\nb\x1b[31m\x7f"), OCT_ERR_SHAPE);
    assert_int_equal(err.status, OCT_ERR_SHAPE);
    assert_string_equal(err.text, "a?b?[31m?");
    assert_int_equal(oct_fail(&err, OCT_ERR_IO, "second"), OCT_ERR_IO);
    assert_int_equal(err.status, OCT_ERR_SHAPE); /* the first stays */
    assert_string_equal(err.text, "a?b?[31m?");
    err.status = OCT_OK;
    (void)oct_fail(&err, OCT_ERR_IO, "%s",
                   "gr\xc3\xbc\xc3\x9f \xf0\x9f\xa6\x99 \xff \xc3( \xc2\x9b \xed\xa0\x80");
    assert_string_equal(err.text, "gr\xc3\xbc\xc3\x9f \xf0\x9f\xa6\x99 ? ?( ?? ???");
    /* Cut in the middle of a character. */
    memset(longer, 'x', sizeof longer);
    memcpy(longer + OCT_ERROR_TEXT - 3, "\xf0\x9f\xa6\x99", 4);
    longer[sizeof longer - 1] = '\0';
    err.status = OCT_OK;
    (void)oct_fail(&err, OCT_ERR_IO, "%s", longer);
    assert_int_equal(strlen(err.text), OCT_ERROR_TEXT - 1);
    assert_string_equal(err.text + OCT_ERROR_TEXT - 4, "x??");
    for (int i = 0; i <= OCT_ERR_FULL; i++)
        assert_string_not_equal(oct_status_name((oct_status)i), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
