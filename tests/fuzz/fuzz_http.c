/* fuzz_http.c: raw bytes to `octet serve`, whole: its loop, worker and engine run in this process,
 * and every input is a connection of theirs. The first byte says how its bytes arrive and how the
 * client leaves; 0xff in an input is a pause, after which the rest is sent. Whatever came, another
 * client is answered afterwards, and nothing of the first is left. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "cli.h"
#include "convert.h"
#include "fuzz.h"
#include "ranks.h"
#include "serve_server.h"

enum { CONTEXT = 64, PAUSE_MS = 2, QUIET_MS = 15, PATIENCE_MS = 20000, STEP_MS = 20, PAUSES = 8 };
enum { PIECEMEAL = 1, HALF_CLOSE = 2, LISTEN = 4, BYTE_BY_BYTE = 8 };

static oct_serve_config config = {.name = "tiny",
                                  .template = "plain",
                                  .n_ctx = CONTEXT,
                                  .n_parallel = 4,
                                  .n_queue = 8,
                                  .body_max = 16 << 10,
                                  .connections_max = 8,
                                  .timeout = 300, /* more than a debugger may stop this process */
                                  .keep_alive = 1,
                                  .fingerprint = "fuzz"};
static oct_serve_server server;
static volatile int signalled;

/* ---- what the program's other files would give ---------------------------------------------- */

uint64_t oct_cli_random(void)
{
    return 4;
}

bool oct_cli_json_lost(void)
{
    return false;
}

oct_job *oct_ranks_job(void)
{
    return NULL;
}

/* In place of the log, by the linker. */
void __wrap_oct_serve_log(const char *fmt, ...);
void __wrap_oct_serve_log(const char *fmt, ...)
{
    (void)fmt;
}

/* ---- the server ----------------------------------------------------------------------------- */

static void must(oct_status status, const oct_error *err)
{
    if (status == OCT_OK)
        return;
    fprintf(stderr, "%s\n", err->text);
    abort();
}

/* The shipped model, converted once. */
static oct_model *open_model(void)
{
    char path[] = "/tmp/fuzz-http-XXXXXX";
    oct_model *m = NULL;
    oct_convert_report report = {0};
    oct_error err = {0};
    const int fd = mkstemp(path);
    const oct_convert_params p = {.checkpoint = FUZZ_TINY, .out = path, .n_threads = 1};
    FUZZ_CHECK(fd >= 0);
    must(oct_convert(&p, &report, &err), &err);
    must(oct_model_open(path, &m, &err), &err);
    oct_convert_report_free(&report);
    close(fd);
    unlink(path);
    return m;
}

static void *run_engine(void *session)
{
    const oct_scheduler_params p = {.max_running = config.n_parallel,
                                    .max_waiting = config.n_queue};
    oct_serve_engine_run(&server.engine, session, &p);
    return NULL;
}

static void start(void)
{
    static char path[64];
    pthread_t loop, engine;
    oct_session *session = NULL;
    oct_error err = {0};
    config.model = open_model();
    config.n_ids_bytes_max = 16 * CONTEXT;
    snprintf(path, sizeof path, "/tmp/fuzz-http-%d", (int)getpid());
    config.unix_path = path;
    signal(SIGPIPE, SIG_IGN);
    must(oct_serve_server_open(&server, &config, &signalled, &err), &err);
    const oct_session_params p = {.n_ctx = CONTEXT,
                                  .n_seqs = config.n_parallel,
                                  .n_threads = 1,
                                  .cancel = &server.engine.cancel};
    must(oct_session_new(config.model, &p, &session, &err), &err);
    FUZZ_CHECK(pthread_create(&loop, NULL, oct_serve_server_run, &server) == 0);
    FUZZ_CHECK(pthread_create(&engine, NULL, run_engine, session) == 0);
    while (oct_serve_engine_state(&server.engine, NULL) != OCT_SERVE_READY)
        usleep(1000);
}

/* ---- clients -------------------------------------------------------------------------------- */

static int client(void)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(to.sun_path, sizeof to.sun_path, "%s", config.unix_path);
    FUZZ_CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    return fd;
}

/* Takes what comes until nothing did for so long. False: the other side has closed. */
static bool listen_to(int fd, int quiet_ms)
{
    static char into[1 << 16];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (poll(&p, 1, quiet_ms) == 1)
        if (recv(fd, into, sizeof into, 0) <= 0)
            return false;
    return true;
}

static bool give(int fd, const uint8_t *data, size_t n)
{
    while (n > 0) {
        const ssize_t k = send(fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k < 0 && errno == EAGAIN && listen_to(fd, PAUSE_MS))
            continue;
        if (k <= 0)
            return false;
        data += k;
        n -= (size_t)k;
    }
    return true;
}

/* Whether something comes within the patience, of which a time that this process was stopped takes
 * no more than a step. */
static bool comes(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    for (int ms = 0; ms < PATIENCE_MS; ms += STEP_MS)
        if (poll(&p, 1, STEP_MS) == 1)
            return true;
    return false;
}

/* The whole reply of a client that behaves, NUL behind. */
static void ask(const char *request, char *into, size_t room)
{
    const int fd = client();
    size_t n = 0;
    FUZZ_CHECK(give(fd, (const uint8_t *)request, strlen(request)));
    for (;;) {
        FUZZ_CHECK(comes(fd));
        const ssize_t k = recv(fd, into + n, room - 1 - n, 0);
        FUZZ_CHECK(k >= 0);
        if (k == 0)
            break;
        n += (size_t)k;
    }
    into[n] = 0;
    close(fd);
}

/* The first client is gone, and what it asked for ends within the time. */
static void nothing_left(void)
{
    static char text[1 << 17];
    for (int ms = 0; ms < PATIENCE_MS; ms++) {
        ask("GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n", text, sizeof text);
        FUZZ_CHECK(strncmp(text, "HTTP/1.1 200 ", 13) == 0);
        if (strstr(text, "octet_requests_active 0\n") && strstr(text, "octet_texts_running 0\n") &&
            strstr(text, "octet_requests_waiting 0\n") &&
            strstr(text, "octet_kv_pages{state=\"used\"} 0\n"))
            return;
        usleep(1000);
    }
    FUZZ_CHECK(!"something of a client that has left stays");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!config.model)
        start();
    if (n < 1)
        return 0;
    const int how = data[0];
    const uint8_t *end = data + n, *at = data + 1;
    const int fd = client();
    bool open = true;
    for (int i = 0; open && at < end; i++) {
        const uint8_t *stop = i < PAUSES ? memchr(at, 0xff, (size_t)(end - at)) : NULL;
        const uint8_t *to = stop ? stop : end;
        for (; open && (how & BYTE_BY_BYTE) && i == 0 && at < to && to - at > 1; at++)
            open = give(fd, at, 1);
        open = open && give(fd, at, (size_t)(to - at));
        at = stop ? stop + 1 : end;
        if (open && stop && (how & PIECEMEAL))
            open = listen_to(fd, PAUSE_MS);
    }
    if (open && (how & HALF_CLOSE))
        shutdown(fd, SHUT_WR);
    if (open && (how & (LISTEN | HALF_CLOSE)))
        (void)listen_to(fd, QUIET_MS);
    close(fd);
    nothing_left();
    return 0;
}
