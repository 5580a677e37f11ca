/* serve_rig.h: a server process, and clients of it over plain sockets. Errors of the rig end the
 * test program. */
#ifndef OCT_TEST_SERVE_RIG_H
#define OCT_TEST_SERVE_RIG_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- the rig's own errors ------------------------------------------------------------------- */

#define RIG_CHECK(what, ...)                                           \
    do {                                                               \
        if (!(what)) {                                                 \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #what); \
            fprintf(stderr, __VA_ARGS__);                              \
            fputc('\n', stderr);                                       \
            abort();                                                   \
        }                                                              \
    } while (0)

static inline double rig_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void rig_sleep(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

/* ---- a server ------------------------------------------------------------------------------- */

typedef struct rig_server {
    pid_t pid;
    int port;
    char log[64]; /* a file: what it has said */
} rig_server;

static inline char *rig_read_file(const char *path)
{
    FILE *f = fopen(path, "r");
    char *text = calloc(1, 1 << 20);
    RIG_CHECK(f && text, "%s", path);
    size_t n = fread(text, 1, (1 << 20) - 1, f);
    text[n] = 0;
    fclose(f);
    return text;
}

/* Waits until the log has a line with this; returns what follows it, malloc'd. NULL: the server has
 * ended before. */
static inline char *rig_await(const rig_server *s, const char *words, double seconds)
{
    for (double end = rig_now() + seconds; rig_now() < end; rig_sleep(0.005)) {
        char *log = rig_read_file(s->log), *at = strstr(log, words);
        char *found = at && strchr(at, '\n') ? strdup(at + strlen(words)) : NULL;
        free(log);
        if (found)
            return found;
        if (waitpid(s->pid, NULL, WNOHANG | WNOWAIT) != 0) {
            siginfo_t info = {0};
            if (waitid(P_PID, (id_t)s->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
                info.si_pid == s->pid)
                return NULL;
        }
    }
    return NULL;
}

/* argv: the command, NULL at its end; it is to say where it listens. port stays 0 if it does not. */
static inline rig_server rig_server_spawn(char *const *argv)
{
    rig_server s = {0};
    strcpy(s.log, "/tmp/octet-serve-XXXXXX");
    int fd = mkstemp(s.log);
    RIG_CHECK(fd >= 0, "mkstemp");
    s.pid = fork();
    RIG_CHECK(s.pid >= 0, "fork");
    if (s.pid == 0) {
        int null = open("/dev/null", O_RDONLY);
        dup2(null, 0);
        dup2(fd, 1);
        dup2(fd, 2);
        execvp(argv[0], argv);
        _exit(127);
    }
    close(fd);
    char *at = rig_await(&s, "listening at ", 250);
    char *colon = at && strncmp(at, "http", 4) == 0 ? strrchr(strtok(at, "\n"), ':') : NULL;
    s.port = colon ? atoi(colon + 1) : 0;
    free(at);
    return s;
}

enum { RIG_ARGS = 40 };

/* octet serve with the shipped model and the words of `more`. */
static inline rig_server rig_server_start_as(const char *octet, const char *model, const char *more)
{
    char words[1024], *argv[RIG_ARGS] = {(char *)(uintptr_t)octet,
                                         "serve",
                                         "-m",
                                         (char *)(uintptr_t)model,
                                         "--port",
                                         "0",
                                         "-t",
                                         "2",
                                         "--timeout",
                                         "300"};
    int n = 10;
    snprintf(words, sizeof words, "%s", more);
    for (char *w = strtok(words, " "); w && n < RIG_ARGS - 1; w = strtok(NULL, " "))
        argv[n++] = w;
    return rig_server_spawn(argv);
}

/* Sends a signal and waits; returns the exit code, 128 + the signal that ended it, or -1 if it is
 * still there after 30 seconds, and then killed. */
static inline int rig_server_end(rig_server *s, int sig)
{
    int status = 0;
    if (sig)
        kill(s->pid, sig);
    double end = rig_now() + 150;
    pid_t got;
    while ((got = waitpid(s->pid, &status, WNOHANG)) == 0 && rig_now() < end)
        rig_sleep(0.005);
    if (got == 0) {
        kill(s->pid, SIGKILL);
        waitpid(s->pid, &status, 0);
        status = -1;
    }
    unlink(s->log);
    s->pid = 0;
    return status < 0 ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- connections ---------------------------------------------------------------------------- */

static inline int rig_connect(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct timeval slow = {.tv_sec = 250};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    RIG_CHECK(fd >= 0, "socket");
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &slow, sizeof slow);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &slow, sizeof slow);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* False: the other side is gone. */
static inline bool rig_send(int fd, const char *text, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, text, n, MSG_NOSIGNAL);
        if (k <= 0)
            return false;
        text += k;
        n -= (size_t)k;
    }
    return true;
}

/* What comes, as far as it is there. */
typedef struct rig_stream {
    int fd;
    char *text; /* [n], NUL behind */
    size_t n, room, at;
    bool closed;
} rig_stream;

static inline bool rig_more(rig_stream *s)
{
    if (s->room - s->n < (1 << 16) + 1) {
        s->room = 2 * s->room + (1 << 18);
        s->text = realloc(s->text, s->room);
        RIG_CHECK(s->text, "memory");
    }
    ssize_t k = recv(s->fd, s->text + s->n, 1 << 16, 0);
    if (k <= 0) {
        s->closed = true;
        return false;
    }
    s->n += (size_t)k;
    s->text[s->n] = 0;
    return true;
}

typedef struct rig_reply {
    int status; /* 0: none came */
    char *head; /* status line and headers */
    char *body; /* [n], without chunks, NUL behind */
    size_t n;
    bool complete;
    json_t *json; /* of the body; NULL: it is none */
} rig_reply;

static inline void rig_reply_free(rig_reply *r)
{
    free(r->head);
    free(r->body);
    json_decref(r->json);
    *r = (rig_reply){0};
}

/* The value of a header, malloc'd; NULL: it is not there. */
static inline char *rig_header(const rig_reply *r, const char *name)
{
    const size_t n = strlen(name);
    for (const char *line = r->head; line && *line; line = strchr(line, '\n') + 1) {
        if (strncasecmp(line, name, n) == 0 && line[n] == ':') {
            const char *value = line + n + 1 + strspn(line + n + 1, " ");
            return strndup(value, strcspn(value, "\r\n"));
        }
        if (!strchr(line, '\n'))
            break;
    }
    return NULL;
}

static inline bool need(rig_stream *s, size_t n)
{
    while (s->n - s->at < n)
        if (!rig_more(s))
            return false;
    return true;
}

/* The next line's length, with its end; 0: none comes. */
static inline size_t line_of(rig_stream *s)
{
    for (;;) {
        char *end = s->n > s->at ? memchr(s->text + s->at, '\n', s->n - s->at) : NULL;
        if (end)
            return (size_t)(end - (s->text + s->at)) + 1;
        if (!rig_more(s))
            return 0;
    }
}

static inline void add_body(rig_reply *r, const char *text, size_t n)
{
    r->body = realloc(r->body, r->n + n + 1);
    RIG_CHECK(r->body, "memory");
    memcpy(r->body + r->n, text, n);
    r->n += n;
    r->body[r->n] = 0;
}

static inline bool read_head(rig_stream *s, rig_reply *r)
{
    const size_t from = s->at;
    for (size_t n; (n = line_of(s)) > 0;) {
        const bool blank = n == 2 && s->text[s->at] == '\r';
        s->at += n;
        if (blank) {
            r->head = strndup(s->text + from, s->at - from);
            return sscanf(r->head, "HTTP/%*d.%*d %d", &r->status) == 1;
        }
    }
    return false;
}

/* One chunk; false: that was the last, or none came. */
static inline bool read_chunk(rig_stream *s, rig_reply *r)
{
    size_t n = line_of(s), size;
    if (n == 0)
        return false;
    size = strtoul(s->text + s->at, NULL, 16);
    s->at += n;
    if (!need(s, size + 2))
        return false;
    add_body(r, s->text + s->at, size);
    s->at += size + 2;
    r->complete = size == 0;
    return size > 0;
}

/* A whole reply. head: the method was HEAD. */
static inline rig_reply rig_read_reply(rig_stream *s, bool head)
{
    rig_reply r = {0};
    add_body(&r, "", 0);
    if (!read_head(s, &r)) {
        r.status = 0;
        return r;
    }
    char *length = rig_header(&r, "Content-Length"), *coding = rig_header(&r, "Transfer-Encoding");
    if (head || r.status == 204) {
        r.complete = true;
    } else if (coding) {
        while (read_chunk(s, &r))
            ;
    } else if (length) {
        const size_t n = strtoul(length, NULL, 10);
        r.complete = need(s, n);
        if (r.complete) {
            add_body(&r, s->text + s->at, n);
            s->at += n;
        }
    } else {
        while (rig_more(s))
            ;
        add_body(&r, s->text + s->at, s->n - s->at);
        s->at = s->n;
        r.complete = true;
    }
    free(length);
    free(coding);
    r.json = json_loadb(r.body, r.n, JSON_ALLOW_NUL, NULL);
    return r;
}

/* A request as bytes, malloc'd. headers: lines with their ends, or "". body NULL: none. */
static inline char *rig_request(const char *method, const char *path, const char *headers,
                                const char *body)
{
    char *text = NULL;
    const size_t n = body ? strlen(body) : 0;
    int k = asprintf(&text, "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n%s\r\n%s",
                     method, path, n, headers, body ? body : "");
    RIG_CHECK(k > 0, "memory");
    return text;
}

/* Connects, asks, and reads the reply. */
static inline rig_reply rig_ask(int port, const char *method, const char *path, const char *headers,
                                const char *body)
{
    rig_stream s = {.fd = rig_connect(port)};
    rig_reply r = {0};
    if (s.fd < 0)
        return r;
    char *text = rig_request(method, path, headers, body);
    rig_send(s.fd, text, strlen(text));
    r = rig_read_reply(&s, strcmp(method, "HEAD") == 0);
    free(text);
    close(s.fd);
    free(s.text);
    return r;
}

/* A number of /metrics; -1: it is not there. */
static inline double rig_metric(int port, const char *name)
{
    rig_reply r = rig_ask(port, "GET", "/metrics", "", NULL);
    char line[160];
    double value = -1;
    snprintf(line, sizeof line, "\noctet_%s ", name);
    const char *at = r.body ? strstr(r.body, line) : NULL;
    if (at)
        value = atof(at + strlen(line));
    rig_reply_free(&r);
    return value;
}

/* Until a metric has a value; false: not within the seconds. */
static inline bool rig_metric_becomes(int port, const char *name, double value, double seconds)
{
    for (double end = rig_now() + seconds; rig_now() < end; rig_sleep(0.01))
        if (rig_metric(port, name) == value)
            return true;
    fprintf(stderr, "%s: %g, expected %g\n", name, rig_metric(port, name), value);
    return false;
}

static inline bool rig_ready(int port)
{
    return rig_metric_becomes(port, "ready", 1, 250);
}

#endif
