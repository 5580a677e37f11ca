/* command_output.h: what a command of the shell prints. */
#ifndef OCT_TEST_COMMAND_OUTPUT_H
#define OCT_TEST_COMMAND_OUTPUT_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

/* Standard output, malloc'd, of at most 1 MiB; the exit code in *code, -1: ended by a signal. */
static inline char *command_output(const char *command, int *code)
{
    FILE *f = popen(command, "r");
    assert_non_null(f);
    size_t room = 1 << 20, n = 0, got;
    char *text = malloc(room);
    assert_non_null(text);
    while ((got = fread(text + n, 1, room - 1 - n, f)) > 0)
        n += got;
    text[n] = 0;
    int status = pclose(f);
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return text;
}

#endif
