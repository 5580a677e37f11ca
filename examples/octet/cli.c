/* cli.c: messages, signals, output and input of the `octet` program. */
#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include <octet/utf8.h>

#include "faults.h"

/* ---- messages ------------------------------------------------------------------------------- */

static void message(const char *prefix, const char *fmt, va_list ap) OCT_PRINTF(2, 0);

static void message(const char *prefix, const char *fmt, va_list ap)
{
    char line[2 * OCT_ERROR_TEXT];
    oct_error clean = {0};
    vsnprintf(line, sizeof line, fmt, ap);
    (void)oct_fail(&clean, OCT_ERR_ARG, "%s", line); /* for its treatment of odd characters */
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

/* ---- signals -------------------------------------------------------------------------------- */

enum { STACK_LEAST = 512 << 10 };

static volatile sig_atomic_t grace = 1; /* seconds */

static volatile int cancel_flag;
static volatile sig_atomic_t signal_seen, conversing, hurried;
static char temp_path[PATH_MAX];
static volatile sig_atomic_t temp_set;

static struct termios terminal; /* as it was found: libedit changes it */
static volatile sig_atomic_t terminal_set;

/* What must not stay behind. Safe in a handler. */
static void leave_nothing(void)
{
    if (temp_set)
        unlink(temp_path);
    if (terminal_set)
        tcsetattr(STDIN_FILENO, TCSANOW, &terminal);
}

/* The end of the process that no code waits for. Safe in a handler. */
static void end_now(int sig, const char *line)
{
    struct pollfd to = {.fd = STDERR_FILENO, .events = POLLOUT};
    leave_nothing();
    if (poll(&to, 1, 0) == 1)
        (void)!write(STDERR_FILENO, line, strlen(line));
    _exit(128 + sig);
}

/* Signals that end the process. What is in progress sees the flag and ends by itself; if it does
 * not, be it that it waits for a file that never opens, SIGALRM ends the process all the same. */
static void on_signal(int sig)
{
    if (sig == SIGXCPU)
        end_now(sig, "octet: the limit of processor time is reached (ulimit -t)\n");
    if (sig == SIGALRM || cancel_flag)
        end_now(sig == SIGALRM ? signal_seen : sig, "octet: interrupted\n");
    signal_seen = sig;
    __atomic_store_n(&cancel_flag, 1, __ATOMIC_SEQ_CST); /* other threads read it */
    if (sig != SIGINT || !conversing) {
        alarm((unsigned)grace);
        if (hurried && temp_set)
            unlink(temp_path);
    }
}

/* Ctrl-\ ends the process at once, with a core where the user wants one. */
static void on_quit(int sig)
{
    leave_nothing();
    raise(sig); /* by then what it does is the system's */
}

static void handle(int sig, void (*handler)(int), int flags)
{
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sigemptyset(&sa.sa_mask);
    sa.sa_handler = handler; /* without SA_RESTART: a blocked read returns and sees the flag */
    sa.sa_flags = flags;
    sigaction(sig, &sa, NULL);
}

/* A signal that the parent chose to ignore (nohup) stays ignored. */
static void take(int sig, void (*handler)(int), int flags)
{
    struct sigaction old;
    if (sigaction(sig, NULL, &old) == 0 && old.sa_handler != SIG_IGN)
        handle(sig, handler, flags);
}

static void take_signals(void)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGXCPU, SIGUSR1, SIGUSR2};
    sigset_t none;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        take(ends[i], on_signal, 0);
    take(SIGQUIT, on_quit, SA_RESETHAND);
    handle(SIGALRM, on_signal, 0);
    handle(SIGCHLD, SIG_DFL, 0); /* those who start processes wait for them */
    /* Writing fails instead, and the error is reported: a closed pipe, a file beyond its limit. */
    handle(SIGPIPE, SIG_IGN, 0);
    handle(SIGXFSZ, SIG_IGN, 0);
    /* What is blocked was so for the parent's sake. */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

const volatile int *oct_cli_cancel_flag(void)
{
    return &cancel_flag;
}

void oct_cli_cancel_reset(void)
{
    alarm(0);
    cancel_flag = 0;
}

bool oct_cli_converse(void)
{
    conversing = 1;
    return !cancel_flag;
}

void oct_cli_grace(int seconds)
{
    grace = seconds;
}

void oct_cli_hurry(void)
{
    hurried = 1;
}

void oct_cli_leave_nothing(void)
{
    leave_nothing();
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

int oct_cli_fail(const oct_error *err)
{
    /* After a signal a system call that was interrupted may be what failed. */
    if (err->status == OCT_ERR_CANCELLED || (cancel_flag && err->status == OCT_ERR_IO)) {
        oct_cli_error("interrupted");
        return oct_cli_interrupt_code();
    }
    oct_cli_error("%s", err->text);
    return OCT_EXIT_ERROR;
}

/* ---- standard streams ------------------------------------------------------------------------ */

/* Waits until the descriptor can be read or written, or either would fail at once; false: not yet,
 * but a signal came. One between the look at the flag and the wait is seen by the next look. */
static bool wait_for(int fd, short events)
{
    for (;;) {
        bool cancelled = cancel_flag != 0;
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, cancelled ? 0 : 100);
        if (n > 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
            return true;
        if (cancelled)
            return false;
    }
}

/* As read, but waits where the stream does not block: whoever else has it may have made it so. */
static ssize_t receive(int fd, char *buf, size_t n)
{
    for (;;) {
        if (!wait_for(fd, POLLIN)) {
            errno = EINTR;
            return -1;
        }
        ssize_t k = read(fd, buf, n);
        if (k >= 0 || (errno != EINTR && errno != EAGAIN))
            return k;
    }
}

/* Writes all, waiting likewise; false and errno: EINTR if a signal came and it cannot go on. */
static bool send_all(int fd, const char *text, size_t n)
{
    while (n > 0) {
        ssize_t k = write(fd, text, n);
        if (k >= 0) {
            text += k;
            n -= (size_t)k;
        } else if (errno == EAGAIN) {
            if (!wait_for(fd, POLLOUT)) {
                errno = EINTR;
                return false;
            }
        } else if (errno != EINTR || cancel_flag) {
            return false;
        }
    }
    return true;
}

static ssize_t stdin_read(void *cookie, char *buf, size_t n)
{
    (void)cookie;
    return receive(STDIN_FILENO, buf, n);
}

static ssize_t stderr_write(void *cookie, const char *text, size_t n)
{
    (void)cookie;
    return send_all(STDERR_FILENO, text, n) ? (ssize_t)n : 0;
}

/* A standard stream that is closed would be given to the next file that is opened, and what is said
 * would be written into that. Its number is taken by a descriptor that can be neither read nor
 * written, as before. In glibc stdin and stderr are variables. */
static void take_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)!open("/", O_PATH);
    static const cookie_io_functions_t in = {.read = stdin_read}, err = {.write = stderr_write};
    FILE *f =
        isatty(STDIN_FILENO) ? NULL : fopencookie(NULL, "r", in); /* libedit has its own way */
    if (f)
        stdin = f;
    f = fopencookie(NULL, "w", err);
    if (f) {
        setvbuf(f, NULL, _IONBF, 0);
        stderr = f;
    }
}

/* Leaves a second to say so before the system kills for processor time, and raises the limit of the
 * stack if it is too small. False: it cannot be, which has been said. */
static bool take_limits(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_CPU, &r) == 0 && r.rlim_cur == r.rlim_max && r.rlim_cur != RLIM_INFINITY &&
        r.rlim_cur > 1) {
        r.rlim_cur--;
        setrlimit(RLIMIT_CPU, &r);
    }
    if (getrlimit(RLIMIT_STACK, &r) != 0 || r.rlim_cur >= STACK_LEAST)
        return true;
    rlim_t stack = r.rlim_cur;
    r.rlim_cur = STACK_LEAST;
    if (r.rlim_max < STACK_LEAST)
        r.rlim_max = STACK_LEAST; /* root may */
    pthread_attr_t attr;
    if (setrlimit(RLIMIT_STACK, &r) != 0) {
        oct_cli_error("the stack may have %d KiB, but %d KiB are needed (ulimit -s)",
                      (int)(stack >> 10), STACK_LEAST >> 10);
        return false;
    }
    if (pthread_attr_init(&attr) == 0) { /* threads took theirs from the old limit */
        if (pthread_attr_setstacksize(&attr, STACK_LEAST) == 0)
            pthread_setattr_default_np(&attr);
        pthread_attr_destroy(&attr);
    }
    return true;
}

static int out_errno;

bool oct_cli_out(const char *text, size_t n)
{
    if (!out_errno && !send_all(STDOUT_FILENO, text, n))
        out_errno = errno;
    return out_errno == 0;
}

bool oct_cli_outf(const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0) {
        out_errno = out_errno ? out_errno : ENOMEM;
        return false;
    }
    bool ok = oct_cli_out(text, (size_t)n);
    free(text);
    return ok;
}

int oct_cli_out_end(void)
{
    if (!out_errno || out_errno == EPIPE)
        return OCT_EXIT_OK;
    oct_error err = {0};
    (void)oct_fail(&err, OCT_ERR_IO, "cannot write to standard output: %s", strerror(out_errno));
    return oct_cli_fail(&err);
}

/* A value that jansson has no memory for is left out of what it belongs to. */
static _Thread_local bool json_lost;

static void *json_memory(size_t n)
{
    void *p = malloc(n);
    json_lost = json_lost || !p;
    return p;
}

bool oct_cli_json_lost(void)
{
    const bool lost = json_lost;
    json_lost = false;
    return lost;
}

bool oct_cli_json_whole(const json_t *json)
{
    if (json && !json_lost)
        return true;
    oct_cli_error("no memory for the result");
    return false;
}

int oct_cli_out_json(const json_t *json, size_t flags)
{
    char *text = json ? json_dumps(json, flags) : NULL;
    if (!oct_cli_json_whole(text ? json : NULL)) {
        free(text);
        return OCT_EXIT_ERROR;
    }
    oct_cli_outf("%s\n", text);
    free(text);
    return oct_cli_out_end();
}

json_t *oct_cli_json_bytes(const char *bytes, size_t n)
{
    oct_utf8 u = {0};
    char *text = malloc(OCT_UTF8_ROOM(n) + OCT_UTF8_ROOM(0));
    if (!text)
        return NULL;
    size_t k = bytes ? oct_utf8_feed(&u, bytes, n, text) : 0;
    k += oct_utf8_end(&u, text + k);
    json_t *out = json_stringn(text, k);
    free(text);
    return out;
}

/* ---- start ----------------------------------------------------------------------------------- */

bool oct_cli_start(void)
{
    json_set_alloc_funcs(json_memory, free);
    take_streams();
    take_signals();
    terminal_set = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &terminal) == 0;
    oct_faults_take(leave_nothing);
    return take_limits();
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
        ssize_t k = cancel_flag ? -1 : receive(fd, buf + n, room - n - 1);
        if (k < 0) {
            int e = errno;
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
    size_t bom = oct_utf8_bom(buf, n);
    n -= bom;
    memmove(buf, buf + bom, n);
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
        return oct_fail(err, cancel_flag ? OCT_ERR_CANCELLED : OCT_ERR_IO, "%s: cannot open: %s",
                        path, strerror(errno));
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

bool oct_cli_bytes(const char *text, uint64_t *bytes)
{
    static const char units[] = "KMGT";
    char *end;
    double x = strtod(text, &end);
    const char *unit = end > text && *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (unit)
        x *= (double)(UINT64_C(1024) << 10 * (unit - units));
    if (end == text || end[unit != NULL] || !(x >= 1 && x < 0x1p62))
        return false;
    *bytes = (uint64_t)x;
    return true;
}
