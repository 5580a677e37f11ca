#include "serve_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/listener.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <octet/machine.h>

#include "cli.h"
#include "serve_answer.h"

/* BACKLOG: connections that the system keeps for us; EXTRA: beyond connections_max, so that /health
 * answers however many clients there are. */
enum { BACKLOG = 256, EXTRA = 32, HEADERS_MAX = 32 << 10, PIPELINED_MAX = 64 << 10 };
enum { SEND_BUFFER = 64 << 10 }; /* of the system, for a connection: it would take megabytes */
static const size_t IN_MAX = 64 << 20; /* bytes of requests, beside one of the longest */
static const double IDLE_SECONDS = 75, TICK = 0.1;

void oct_serve_log(const char *fmt, ...)
{
    char line[1024];
    struct pollfd to = {.fd = STDERR_FILENO, .events = POLLOUT};
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line - 1, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    n = n < (int)sizeof line - 1 ? n : (int)sizeof line - 2;
    for (int i = 0; i < n; i++)
        if ((unsigned char)line[i] < ' ' || line[i] == 127)
            line[i] = '?';
    line[n++] = '\n';
    if (poll(&to, 1, 0) == 1)
        (void)!write(STDERR_FILENO, line, (size_t)n);
}

/* ---- connections ---------------------------------------------------------------------------- */

/* The other side sees the end; evhttp does, too, in its next turn. */
static void shut(oct_serve_conn *c)
{
    const evutil_socket_t fd = bufferevent_getfd(c->bev);
    if (fd >= 0)
        shutdown(fd, SHUT_RDWR);
    if (!c->shut) {
        c->server->metrics.n_evicted++;
        c->server->n_shut++;
    }
    c->shut = true;
}

static void watch_input(struct evbuffer *in, const struct evbuffer_cb_info *info, void *conn)
{
    oct_serve_conn *c = conn;
    oct_serve_server *s = c->server;
    if (info->n_added == 0)
        return;
    c->n_in += info->n_added;
    s->n_in += info->n_added;
    if (c->phase == OCT_SERVE_IDLE) {
        c->phase = OCT_SERVE_READING;
        c->since = oct_seconds();
    }
    if (s->n_in > IN_MAX + (size_t)s->config->body_max ||
        (c->phase == OCT_SERVE_BUSY && evbuffer_get_length(in) > PIPELINED_MAX))
        shut(c);
}

/* Its request is complete: what has come of the next one is what it holds. */
static void count_anew(oct_serve_conn *c)
{
    const size_t n = evbuffer_get_length(bufferevent_get_input(c->bev));
    c->server->n_in -= c->n_in;
    c->server->n_in += n;
    c->n_in = n;
}

/* Something begins to wait for the reader, or it has taken something. */
static void watch_output(struct evbuffer *out, const struct evbuffer_cb_info *info, void *conn)
{
    oct_serve_conn *c = conn;
    (void)out;
    if (c->phase == OCT_SERVE_BUSY && (info->orig_size == 0 || info->n_deleted > 0))
        c->since = oct_seconds();
}

static void remove_conn(oct_serve_conn *c)
{
    oct_serve_server *s = c->server;
    oct_serve_conn **at = &s->conns;
    struct evbuffer *in = bufferevent_get_input(c->bev);
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    s->n_in -= c->n_in;
    evbuffer_remove_cb(in, watch_input, c);
    evbuffer_remove_cb(bufferevent_get_output(c->bev), watch_output, c);
    bufferevent_decref(c->bev);
    s->n_shut -= c->shut;
    free(c);
    if (s->n_conns-- == s->config->connections_max + EXTRA && s->listener && !s->stopping)
        evconnlistener_enable(s->listener);
}

static void on_close(struct evhttp_connection *evcon, void *conn)
{
    oct_serve_conn *c = conn;
    (void)evcon;
    if (c->answer)
        oct_serve_answer_gone(c->answer);
    remove_conn(c);
}

/* evhttp has freed it, without a request that would have set on_close. */
static bool let_go(const oct_serve_conn *c)
{
    bufferevent_data_cb in, out;
    bufferevent_event_cb event;
    void *arg;
    bufferevent_getcb(c->bev, &in, &out, &event, &arg);
    return !event;
}

/* Removes what is gone, and closes what has been slow for too long. */
static void sweep(oct_serve_server *s)
{
    const double now = oct_seconds();
    for (oct_serve_conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        const double limit = c->phase == OCT_SERVE_IDLE ? IDLE_SECONDS : s->config->timeout;
        if (let_go(c)) {
            remove_conn(c);
        } else if (c->phase != OCT_SERVE_BUSY && now - c->since > limit) {
            shut(c);
        }
    }
}

/* Whether it is waited for: for a request, or until its reader takes what there is. */
static bool awaited(const oct_serve_conn *c)
{
    return !c->shut &&
           (c->phase != OCT_SERVE_BUSY || evbuffer_get_length(bufferevent_get_output(c->bev)) > 0);
}

/* Closes the connection that has been waited for longest, an idle one before others. */
static void make_room(oct_serve_server *s)
{
    oct_serve_conn *worst = NULL;
    for (oct_serve_conn *c = s->conns; c; c = c->next)
        if (awaited(c) && (!worst || c->phase < worst->phase ||
                           (c->phase == worst->phase && c->since < worst->since)))
            worst = c;
    if (worst)
        shut(worst);
}

static struct bufferevent *new_connection(struct event_base *base, void *server)
{
    oct_serve_server *s = server;
    const struct timeval slow = {.tv_sec = (time_t)s->config->timeout};
    struct bufferevent *bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    oct_serve_conn *c = bev ? malloc(sizeof *c) : NULL;
    if (!c)
        return bev;
    if (s->n_conns - s->n_shut >= s->config->connections_max) {
        sweep(s);
        make_room(s);
    }
    *c = (oct_serve_conn){.next = s->conns,
                          .server = s,
                          .bev = bev,
                          .phase = OCT_SERVE_READING,
                          .since = oct_seconds(),
                          .extra = s->n_conns - s->n_shut >= s->config->connections_max};
    s->conns = c;
    bufferevent_incref(bev);
    bufferevent_set_timeouts(bev, NULL, &slow);
    evbuffer_add_cb(bufferevent_get_input(bev), watch_input, c);
    evbuffer_add_cb(bufferevent_get_output(bev), watch_output, c);
    if (++s->n_conns == s->config->connections_max + EXTRA && s->listener)
        evconnlistener_disable(s->listener);
    return bev;
}

oct_serve_conn *oct_serve_conn_of(oct_serve_server *s, struct evhttp_request *req)
{
    struct bufferevent *bev = evhttp_connection_get_bufferevent(evhttp_request_get_connection(req));
    oct_serve_conn *c = s->conns;
    while (c && c->bev != bev)
        c = c->next;
    return c;
}

static void on_complete(struct evhttp_request *req, void *conn)
{
    oct_serve_conn *c = conn;
    (void)req;
    c->answer = NULL;
    c->phase =
        evbuffer_get_length(bufferevent_get_input(c->bev)) > 0 ? OCT_SERVE_READING : OCT_SERVE_IDLE;
    c->since = oct_seconds();
}

/* A whole request is here. evhttp has stopped reading, and would not see that its client leaves; if
 * it read, its callback would end the process over bytes that come now. So it reads without one. */
static void on_request(struct evhttp_request *req, void *server)
{
    oct_serve_server *s = server;
    struct evhttp_connection *evcon = evhttp_request_get_connection(req);
    oct_serve_conn *c = oct_serve_conn_of(s, req);
    bufferevent_data_cb in, out;
    bufferevent_event_cb event;
    void *arg;
    if (!c) { /* there was no memory to know it */
        evhttp_send_error(req, 503, NULL);
        return;
    }
    c->phase = OCT_SERVE_BUSY;
    count_anew(c);
    evhttp_connection_set_closecb(evcon, on_close, c);
    evhttp_request_set_on_complete_cb(req, on_complete, c);
    bufferevent_getcb(c->bev, &in, &out, &event, &arg);
    bufferevent_setcb(c->bev, NULL, out, event, arg);
    bufferevent_enable(c->bev, EV_READ);
    if (c->extra || s->stopping)
        evhttp_add_header(evhttp_request_get_output_headers(req), "Connection", "close");
    oct_serve_route(req, s);
}

/* ---- replies -------------------------------------------------------------------------------- */

void oct_serve_common_headers(oct_serve_server *s, struct evhttp_request *req)
{
    struct evkeyvalq *out = evhttp_request_get_output_headers(req);
    const char *origin = oct_serve_origin(s, req);
    evhttp_add_header(out, "X-Content-Type-Options", "nosniff");
    if (origin) {
        evhttp_add_header(out, "Access-Control-Allow-Origin", origin);
        evhttp_add_header(out, "Vary", "Origin");
    }
}

void oct_serve_reply(oct_serve_server *s, struct evhttp_request *req, int code, const char *type,
                     const char *text, size_t n)
{
    struct evbuffer *body = evbuffer_new();
    const bool head = evhttp_request_get_command(req) == EVHTTP_REQ_HEAD;
    oct_serve_common_headers(s, req);
    if (type)
        evhttp_add_header(evhttp_request_get_output_headers(req), "Content-Type", type);
    if (body && !head)
        evbuffer_add(body, text, n);
    oct_serve_metrics_reply(&s->metrics, code);
    (void)evbuffer_drain(evhttp_request_get_input_buffer(req),
                         SIZE_MAX); /* its reader may be slow */
    evhttp_send_reply(req, code, NULL, body);
    if (body)
        evbuffer_free(body);
}

char *oct_serve_json_text(json_t *json)
{
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (!oct_cli_json_lost())
        return text;
    free(text);
    return NULL;
}

void oct_serve_reply_json(oct_serve_server *s, struct evhttp_request *req, int code, json_t *json)
{
    static const char no_memory[] =
        "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null,"
        "\"code\":null}}";
    char *text = oct_serve_json_text(json);
    if (text)
        oct_serve_reply(s, req, code, "application/json", text, strlen(text));
    else
        oct_serve_reply(s, req, 500, "application/json", no_memory, sizeof no_memory - 1);
    free(text);
}

json_t *oct_serve_fault_json(const oct_serve_fault *f)
{
    /* what is said may quote bytes that a client made up */
    char clean[OCT_UTF8_ROOM(sizeof f->message)], param[OCT_UTF8_ROOM(sizeof f->param)];
    oct_utf8 u = {0}, v = {0};
    size_t n = oct_utf8_feed(&u, f->message, strlen(f->message), clean);
    n += oct_utf8_end(&u, clean + n);
    size_t k = oct_utf8_feed(&v, f->param, strlen(f->param), param);
    k += oct_utf8_end(&v, param + k);
    return json_pack("{s:{s:s%, s:s, s:o, s:s?}}", "error", "message", clean, n, "type", f->type,
                     "param", k > 0 ? json_stringn(param, k) : json_null(), "code", f->code);
}

void oct_serve_reply_fault(oct_serve_server *s, struct evhttp_request *req,
                           const oct_serve_fault *f)
{
    struct evkeyvalq *out = evhttp_request_get_output_headers(req);
    char seconds[24];
    if (f->retry_after > 0) {
        snprintf(seconds, sizeof seconds, "%d", f->retry_after);
        evhttp_add_header(out, "Retry-After", seconds);
    }
    if (f->retry_after < 0) /* clients would, after 500 */
        evhttp_add_header(out, "x-should-retry", "false");
    if (f->status == 401)
        evhttp_add_header(out, "WWW-Authenticate", "Bearer");
    oct_serve_reply_json(s, req, f->status, oct_serve_fault_json(f));
}

char *oct_serve_body(struct evhttp_request *req, size_t *n)
{
    struct evbuffer *in = evhttp_request_get_input_buffer(req);
    *n = evbuffer_get_length(in);
    char *text = malloc(*n + 1);
    if (!text)
        return NULL;
    evbuffer_remove(in, text, *n);
    text[*n] = 0;
    return text;
}

/* ---- the loop ------------------------------------------------------------------------------- */

static void begin_stop(oct_serve_server *s, double seconds)
{
    if (s->stopping)
        return;
    s->stopping = true;
    s->stop_at = oct_seconds() + seconds;
    if (s->listener)
        evconnlistener_disable(s->listener);
}

/* Answers are given until the time is over; then their clients are told, and after a moment for
 * that to arrive the loop ends. */
static void stop(oct_serve_server *s, double now)
{
    oct_serve_fault f = {0};
    if (s->n_answers > 0 && now < s->stop_at)
        return;
    if (s->told_at == 0) {
        oct_serve_refuse(&f, 503, "shutting_down", "", "the server is shutting down");
        s->told_at = now;
        oct_serve_answers_fail(s, &f);
    }
    bool busy = false;
    for (oct_serve_conn *c = s->conns; c; c = c->next)
        busy |= c->phase == OCT_SERVE_BUSY;
    if (!busy || now - s->told_at > 0.5)
        event_base_loopbreak(s->base);
}

static void look_at_engine(oct_serve_server *s)
{
    oct_error err;
    oct_serve_fault f = {0};
    if (s->told_at > 0 || oct_serve_engine_state(&s->engine, &err) != OCT_SERVE_FAILED)
        return;
    oct_serve_refuse(&f, 500, "engine_failed", "", "%s", err.text);
    begin_stop(s, 0);
    s->told_at = oct_seconds();
    oct_serve_answers_fail(s, &f);
}

static void on_tick(evutil_socket_t fd, short what, void *server)
{
    oct_serve_server *s = server;
    const double now = oct_seconds();
    (void)fd;
    (void)what;
    sweep(s);
    look_at_engine(s);
    if (__atomic_load_n(s->signalled, __ATOMIC_SEQ_CST))
        begin_stop(s, s->config->drain);
    oct_serve_answers_tick(s, now);
    if (s->stopping)
        stop(s, now);
}

static void on_notified(evutil_socket_t fd, short what, void *server)
{
    oct_serve_server *s = server;
    uint64_t n;
    (void)what;
    (void)!read(fd, &n, sizeof n);
    oct_serve_worker_collect(&s->worker);
    oct_serve_engine_collect(&s->engine, &s->events);
    oct_serve_answers_hear(s, &s->events);
    oct_serve_events_clear(&s->events);
    look_at_engine(s);
}

void *oct_serve_server_run(void *server)
{
    oct_serve_server *s = server;
    event_base_dispatch(s->base);
    oct_serve_engine_stop(&s->engine);
    return NULL;
}

/* ---- opening and closing -------------------------------------------------------------------- */

static oct_status listen_at(oct_serve_server *s, const struct sockaddr *at, socklen_t n,
                            const char *what, oct_error *err)
{
    s->listener = evconnlistener_new_bind(
        s->base, NULL, NULL, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE,
        BACKLOG, at, (int)n);
    if (!s->listener)
        return oct_fail(err, OCT_ERR_IO, "cannot listen at %s: %s", what, strerror(errno));
    const int bytes = SEND_BUFFER; /* connections inherit it; without, slow readers cost more */
    (void)setsockopt(evconnlistener_get_fd(s->listener), SOL_SOCKET, SO_SNDBUF, &bytes,
                     sizeof bytes);
    if (!evhttp_bind_listener(s->http, s->listener)) {
        evconnlistener_free(s->listener);
        s->listener = NULL;
        return oct_fail(err, OCT_ERR_MEMORY, "%s: out of memory", what);
    }
    return OCT_OK;
}

/* A path that a server left behind is taken over; one that is in use, or no socket, is not. */
static oct_status listen_unix(oct_serve_server *s, const char *path, oct_error *err)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct stat st;
    if (strlen(path) >= sizeof at.sun_path)
        return oct_fail(err, OCT_ERR_ARG, "--unix: a path of %zu bytes, expected less than %zu",
                        strlen(path), sizeof at.sun_path);
    strcpy(at.sun_path, path);
    if (lstat(path, &st) == 0 && S_ISSOCK(st.st_mode)) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const bool used = connect(fd, (struct sockaddr *)&at, sizeof at) == 0;
        close(fd);
        if (!used)
            unlink(path);
    }
    const mode_t mask = umask(0077); /* only this user may connect */
    oct_status status = listen_at(s, (struct sockaddr *)&at, sizeof at, path, err);
    umask(mask);
    return status;
}

static oct_status listen_tcp(oct_serve_server *s, const char *host, int port, oct_error *err)
{
    char service[16], what[300];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    snprintf(service, sizeof service, "%d", port);
    snprintf(what, sizeof what, "%s port %d", host, port);
    const int e = getaddrinfo(host, service, &hints, &found);
    if (e)
        return oct_fail(err, OCT_ERR_ARG, "--host %s: %s", host, gai_strerror(e));
    oct_status status = listen_at(s, found->ai_addr, found->ai_addrlen, what, err);
    freeaddrinfo(found);
    return status;
}

int oct_serve_server_port(const oct_serve_server *s)
{
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    if (getsockname(evconnlistener_get_fd(s->listener), (struct sockaddr *)&at, &n) != 0)
        return 0;
    return at.ss_family == AF_INET    ? ntohs(((struct sockaddr_in *)&at)->sin_port)
           : at.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&at)->sin6_port)
                                      : 0;
}

static oct_status make_loop(oct_serve_server *s, oct_error *err)
{
    const struct timeval tick = {.tv_usec = (suseconds_t)(TICK * 1e6)};
    s->notify = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    s->base = event_base_new();
    s->http = s->base ? evhttp_new(s->base) : NULL;
    s->notified =
        s->base ? event_new(s->base, s->notify, EV_READ | EV_PERSIST, on_notified, s) : NULL;
    s->tick = s->base ? event_new(s->base, -1, EV_PERSIST, on_tick, s) : NULL;
    if (s->notify < 0 || !s->http || !s->notified || !s->tick || event_add(s->notified, NULL) ||
        event_add(s->tick, &tick))
        return oct_fail(err, OCT_ERR_MEMORY, "no memory for the server");
    evhttp_set_bevcb(s->http, new_connection, s);
    evhttp_set_gencb(s->http, on_request, s);
    evhttp_set_max_headers_size(s->http, HEADERS_MAX);
    evhttp_set_max_body_size(s->http, (ev_ssize_t)s->config->body_max);
    evhttp_set_flags(s->http, EVHTTP_SERVER_LINGERING_CLOSE);
    evhttp_set_allowed_methods(s->http, 0xffff);
    evhttp_set_default_content_type(s->http, NULL);
    return OCT_OK;
}

oct_status oct_serve_server_open(oct_serve_server *s, const oct_serve_config *c,
                                 const volatile int *signalled, oct_error *err)
{
    *s = (oct_serve_server){.config = c, .signalled = signalled, .notify = -1};
    OCT_TRY(make_loop(s, err));
    oct_serve_engine_init(&s->engine, s->notify);
    if (!oct_serve_worker_start(&s->worker, s->notify))
        return oct_fail(err, OCT_ERR_MEMORY, "no thread for the server");
    return c->unix_path ? listen_unix(s, c->unix_path, err) : listen_tcp(s, c->host, c->port, err);
}

void oct_serve_server_close(oct_serve_server *s)
{
    oct_serve_worker_stop(&s->worker);
    if (s->http)
        evhttp_free(s->http);
    s->listener = NULL; /* was evhttp's */
    oct_serve_answers_free(s);
    sweep(s);
    if (s->tick)
        event_free(s->tick);
    if (s->notified)
        event_free(s->notified);
    if (s->base)
        event_base_free(s->base);
    if (s->notify >= 0)
        close(s->notify);
    if (s->config->unix_path)
        unlink(s->config->unix_path);
    free(s->events.event);
    free(s->events.top);
    oct_serve_engine_free(&s->engine);
}
