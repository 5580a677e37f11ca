/* test_guard.c: waiting that has no bound of its own gets one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "guard.h"

static void tell(void *ctx, const char *text)
{
    (void)!write(*(int *)ctx, text, strlen(text));
}

static void test_in_time(void **state)
{
    (void)state;
    int none = -1;
    for (int i = 0; i < 100; i++)
        oct_guard_end(oct_guard_begin("MPI_Test", 60, tell, &none));
    oct_guard_end(NULL);
}

static void test_too_late(void **state)
{
    (void)state;
    int pipes[2], status;
    char text[600] = "";
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        (void)oct_guard_begin("MPI_Test", 1, tell, &pipes[1]);
        sleep(30);
        _exit(9);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    assert_true(read(pipes[0], text, sizeof text - 1) > 0);
    assert_non_null(strstr(text, "MPI_Test"));
    close(pipes[0]);
    close(pipes[1]);
}

static void block(void *ctx, const char *text)
{
    (void)ctx;
    (void)text;
    sleep(60);
}

/* A stream that nobody reads does not keep the process. */
static void test_blocked(void **state)
{
    (void)state;
    int status;
    time_t start = time(NULL);
    pid_t child = fork();
    if (child == 0) {
        (void)oct_guard_begin("MPI_Test", 1, block, NULL);
        sleep(30);
        _exit(9);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && time(NULL) - start < 15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_in_time),
                                       cmocka_unit_test(test_too_late),
                                       cmocka_unit_test(test_blocked)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
