/* cli.c: messages, signals, output and input of the `octet` program. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- messages ------------------------------------------------------------------------------- */

static void message(const char *prefix, const char *fmt, va_list ap) OCT_PRINTF(2, 0);

static void message(const char *prefix, const char *fmt, va_list ap)
{
    char line[2 * OCT_ERROR_TEXT];
    oct_error clean = {0};
    vsnprintf(line, sizeof line, fmt, ap);
    (void)oct_fail(&clean, OCT_ERR_ARG, "%s", line); /* for its treatment of odd characters */
    fflush(stdout);
    fprintf(stderr, "octet: %s%s\n", prefix, clean.text);
}

void oct_cli_error(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    message("", fmt, ap);
    va_end(ap);
}

void oct_cli_warning(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    message("warning: ", fmt, ap);
    va_end(ap);
}

int oct_cli_fail(const oct_error *err)
{
    if (err->status == OCT_ERR_CANCELLED) {
        oct_cli_error("interrupted");
        return oct_cli_interrupt_code();
    }
    oct_cli_error("%s", err->text);
    return OCT_EXIT_ERROR;
}

/* ---- signals -------------------------------------------------------------------------------- */

static volatile int cancel_flag;
static volatile sig_atomic_t signal_seen;
static char temp_path[PATH_MAX];
static volatile sig_atomic_t temp_set;

static void on_signal(int sig)
{
    if (cancel_flag) {
        if (temp_set)
            unlink(temp_path);
        _exit(128 + sig);
    }
    signal_seen = sig;
    cancel_flag = 1;
}

void oct_cli_signals(void)
{
    static const int sigs[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sigemptyset(&sa.sa_mask);
    sa.sa_handler = on_signal; /* without SA_RESTART: a blocked read returns and sees the flag */
    for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++) {
        struct sigaction old;
        /* A signal that the parent chose to ignore (nohup) stays ignored. */
        if (sigaction(sigs[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(sigs[i], &sa, NULL);
    }
    sa.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &sa, NULL);
}

const volatile int *oct_cli_cancel_flag(void)
{
    return &cancel_flag;
}

void oct_cli_cancel_reset(void)
{
    cancel_flag = 0;
}

int oct_cli_interrupt_code(void)
{
    return 128 + (signal_seen ? signal_seen : SIGINT);
}

void oct_cli_temp_file(const char *path)
{
    temp_set = 0;
    if (path && strlen(path) < sizeof temp_path) {
        strcpy(temp_path, path);
        temp_set = 1;
    }
}

/* ---- output --------------------------------------------------------------------------------- */

static int out_errno;

bool oct_cli_out(const char *text, size_t n)
{
    if (out_errno)
        return false;
    errno = 0;
    if (fwrite(text, 1, n, stdout) != n || fflush(stdout) != 0)
        out_errno = errno ? errno : EIO;
    return out_errno == 0;
}

bool oct_cli_outf(const char *fmt, ...)
{
    if (out_errno)
        return false;
    va_list ap;
    errno = 0;
    va_start(ap, fmt);
    int n = vfprintf(stdout, fmt, ap);
    va_end(ap);
    if (n < 0 || fflush(stdout) != 0)
        out_errno = errno ? errno : EIO;
    return out_errno == 0;
}

int oct_cli_out_end(void)
{
    errno = 0;
    if (!out_errno && fflush(stdout) != 0)
        out_errno = errno ? errno : EIO;
    if (!out_errno || out_errno == EPIPE)
        return OCT_EXIT_OK;
    oct_cli_error("cannot write to standard output: %s", strerror(out_errno));
    return OCT_EXIT_ERROR;
}

/* ---- input, numbers ------------------------------------------------------------------------- */

static oct_status read_all(int fd, const char *name, size_t max_bytes, char **text, size_t *n_out,
                           oct_error *err)
{
    size_t room = 1 << 16, n = 0;
    char *buf = malloc(room);
    if (!buf)
        return oct_fail(err, OCT_ERR_MEMORY, "%s: no memory for %zu bytes", name, room);
    for (;;) {
        if (room - n < 2) {
            char *more = room > SIZE_MAX / 2 ? NULL : realloc(buf, room * 2);
            if (!more) {
                free(buf);
                return oct_fail(err, OCT_ERR_MEMORY, "%s: no memory for its text", name);
            }
            buf = more;
            room *= 2;
        }
        ssize_t k = cancel_flag ? -1 : read(fd, buf + n, room - n - 1);
        if (k < 0) {
            int e = errno;
            if (!cancel_flag && e == EINTR)
                continue;
            free(buf);
            if (cancel_flag)
                return oct_fail(err, OCT_ERR_CANCELLED, "%s: interrupted", name);
            return oct_fail(err, OCT_ERR_IO, "%s: cannot read: %s", name, strerror(e));
        }
        if (k == 0)
            break;
        n += (size_t)k;
        if (n > max_bytes) {
            free(buf);
            return oct_fail(err, OCT_ERR_ARG, "%s: longer than %zu bytes", name, max_bytes);
        }
    }
    buf[n] = 0;
    *text = buf;
    *n_out = n;
    return OCT_OK;
}

oct_status oct_cli_read(const char *path, size_t max_bytes, char **text, size_t *n, oct_error *err)
{
    *text = NULL;
    *n = 0;
    if (strcmp(path, "-") == 0)
        return read_all(STDIN_FILENO, "standard input", max_bytes, text, n, err);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return oct_fail(err, OCT_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    struct stat st;
    oct_status s = OCT_OK;
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
        s = oct_fail(err, OCT_ERR_IO, "%s: is a directory", path);
    if (s == OCT_OK)
        s = read_all(fd, path, max_bytes, text, n, err);
    close(fd);
    return s;
}

uint64_t oct_cli_random(void)
{
    uint64_t r = 0;
    if (getrandom(&r, sizeof r, 0) != (ssize_t)sizeof r)
        r = (uint64_t)time(NULL) ^ (uint64_t)getpid() << 32;
    return r;
}
