/* fuzz_numbers.c: values of options. The input is a command line, its words ended by 0. What is
 * accepted is within its range; all else gives a message and the code of wrong usage. */
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "cli.h"
#include "fuzz.h"

static int n_messages;

/* In place of those of cli.c, which print. */
void oct_cli_error(const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    n_messages += vsnprintf(text, sizeof text, fmt, ap) > 0;
    va_end(ap);
}

bool oct_cli_outf(const char *fmt, ...)
{
    (void)fmt;
    return true;
}

int oct_cli_out_end(void)
{
    return OCT_EXIT_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    enum { MAX_WORDS = 16, MAX_BYTES = 512 };
    static char name[] = "command", text[MAX_BYTES + 1];
    char *argv[MAX_WORDS + 2] = {name};
    int argc = 1, choice = -7, first = 0;
    int64_t i = 5;
    double x = 0.5;
    uint64_t u = 0;
    bool flag = false, given = false;
    const char *word = NULL;
    const oct_opt rows[] = {
        OCT_ROW_INT('i', "int", &i, -3, 1000, "N", "a whole number"),
        OCT_ROW_REAL('x', "real", &x, -1, 2, "X", "a number"),
        OCT_ROW_U64('u', "seed", &u, &given, "N", "any"),
        OCT_ROW_CHOICE('c', "choice", &choice, "one|two|three", "one of them"),
        OCT_ROW_TEXT('t', "text", &word, "TEXT", "a text"),
        OCT_ROW_FLAG('f', "flag", &flag, "a flag"),
    };
    const oct_cli cli = {.name = "command",
                         .synopsis = "[options]",
                         .about = "For tests.",
                         .opts = rows,
                         .n_opts = sizeof rows / sizeof *rows,
                         .max_args = 2};
    n = n < MAX_BYTES ? n : MAX_BYTES;
    memcpy(text, data, n);
    text[n] = 0;
    for (size_t k = 0; k < n && argc <= MAX_WORDS; k += strlen(text + k) + 1)
        argv[argc++] = text + k;
    n_messages = 0;
    const int code = oct_cli_parse(&cli, argc, argv, &first);
    FUZZ_CHECK(code == -1 || code == OCT_EXIT_OK || code == OCT_EXIT_USAGE);
    FUZZ_CHECK((n_messages == 1) == (code == OCT_EXIT_USAGE));
    if (code == -1) {
        FUZZ_CHECK(i >= -3 && i <= 1000 && x >= -1 && x <= 2 && !isnan(x));
        FUZZ_CHECK(choice == -7 || (choice >= 0 && choice <= 2));
        FUZZ_CHECK(first >= 1 && argc - first <= 2);
        FUZZ_CHECK(given || u == 0);
    }
    return 0;
}
