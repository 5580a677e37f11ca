/* test_estimate.c: what a session of Grok-1 takes is found out from numbers: without a system call,
 * within a millisecond. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <linux/seccomp.h>

#include "convert.h"
#include "machine.h"
#include "octet.h"

static oct_model *model;
static oct_machine *machine;

static int open_grok1(void **state)
{
    (void)state;
    oct_error err = {0};
    char path[64];
    const oct_synthetic_params p = {.hollow = true, .fd = memfd_create("grok-1", 0)};
    snprintf(path, sizeof path, "/proc/self/fd/%d", p.fd);
    return oct_synthetic_write(&p, &err) != OCT_OK ||
           oct_model_open(path, &model, &err) != OCT_OK ||
           oct_machine_load(NULL, &machine, &err) != OCT_OK;
}

static int close_grok1(void **state)
{
    (void)state;
    oct_machine_free(machine);
    oct_model_close(model);
    return 0;
}

static oct_session_params params(void)
{
    return (oct_session_params){.n_seqs = 4, .machine = machine};
}

/* Strict seccomp kills whoever asks for more than reading, writing and the end (of the thread: what
 * exit() calls is more). */
static int status_of(bool with_machine)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        oct_session_params p = params();
        oct_session_need need;
        oct_error err = {0};
        p.machine = with_machine ? machine : NULL;
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0)
            _exit(77);
        syscall(SYS_exit, oct_session_estimate(model, &p, &need, &err) == OCT_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void test_no_system_call(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__)
    printf("SKIPPED: the sanitizer calls the system\n");
    skip();
#endif
    int status = status_of(true);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        printf("SKIPPED: no seccomp here\n");
        skip();
    }
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    status = status_of(false); /* which looks at the machine: the filter works */
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void test_fast(void **state)
{
    (void)state;
    const oct_session_params p = params();
    oct_session_need need, first;
    oct_error err = {0};
    double fastest = 1;
    assert_int_equal(oct_session_estimate(model, &p, &first, &err), OCT_OK);
    for (int i = 0; i < 200; i++) {
        double start = oct_seconds();
        assert_int_equal(oct_session_estimate(model, &p, &need, &err), OCT_OK);
        double seconds = oct_seconds() - start;
        fastest = seconds < fastest ? seconds : fastest;
        assert_true(need.kv == first.kv && need.buffers == first.buffers);
    }
    printf("  a plan of 64 layers: %.0f us\n", 1e6 * fastest);
    assert_true(need.weights > (uint64_t)300e9);
#if !defined(__SANITIZE_ADDRESS__)
    assert_true(fastest < 1e-3);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_system_call),
                                       cmocka_unit_test(test_fast)};
    return cmocka_run_group_tests(tests, open_grok1, close_grok1);
}
