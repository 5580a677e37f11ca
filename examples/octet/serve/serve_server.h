/* serve_server.h: the loop: sockets and connections, what is refused before anything looks at it,
 * and replies. */
#ifndef OCT_SERVE_SERVER_H
#define OCT_SERVE_SERVER_H

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <jansson.h>

#include "serve.h"
#include "serve_engine.h"
#include "serve_metrics.h"
#include "serve_worker.h"

struct oct_serve_answer;

typedef enum oct_serve_phase {
    OCT_SERVE_IDLE,    /* nothing has come since the last reply */
    OCT_SERVE_READING, /* a request is on its way */
    OCT_SERVE_BUSY     /* it is here, and its reply is not complete */
} oct_serve_phase;

/* A connection. evhttp owns it and does not tell when one ends that never made a request, so a
 * reference keeps the bufferevent until it is seen that evhttp has let go of it. */
typedef struct oct_serve_conn {
    struct oct_serve_conn *next;
    struct oct_serve_server *server;
    struct bufferevent *bev;
    oct_serve_phase phase;
    double since;                    /* of the phase; or when the reader last took something */
    bool extra;                      /* beyond the limit: only what is quick, and only once */
    bool shut;                       /* evhttp will see its end */
    size_t n_in;                     /* bytes that have come since the last whole request */
    struct oct_serve_answer *answer; /* NULL: none that has to know if the client leaves */
} oct_serve_conn;

typedef struct oct_serve_server {
    const oct_serve_config *config;
    oct_serve_engine engine;
    oct_serve_worker worker;
    oct_serve_metrics metrics;
    oct_serve_events events; /* collected last */
    struct event_base *base;
    struct evhttp *http;
    struct evconnlistener *listener;
    struct event *notified, *tick;
    int notify; /* an eventfd */
    oct_serve_conn *conns;
    int64_t n_conns, n_shut; /* n_shut: of these, those that evhttp is about to close */
    size_t n_in; /* bytes that have come of requests, until they are read as JSON */
    struct oct_serve_answer *answers;
    int64_t n_answers;
    bool stopping; /* a signal came, or the engine failed */
    double stop_at, told_at;
    const volatile int *signalled;
} oct_serve_server;

/* Binds what config says; what is wrong is an error that names it. */
OCT_MUST_CHECK oct_status oct_serve_server_open(oct_serve_server *s, const oct_serve_config *c,
                                                const volatile int *signalled, oct_error *err);
int oct_serve_server_port(const oct_serve_server *s); /* 0: a UNIX socket */
/* The loop's thread: returns when a signal came or the engine failed, and all is said. */
void *oct_serve_server_run(void *server);
/* After both threads have ended. */
void oct_serve_server_close(oct_serve_server *s);

/* ---- for routes ----------------------------------------------------------------------------- */

oct_serve_conn *oct_serve_conn_of(oct_serve_server *s, struct evhttp_request *req);

/* Replies, each with the one call that ends a request. json is taken; NULL: no memory. */
void oct_serve_reply(oct_serve_server *s, struct evhttp_request *req, int code, const char *type,
                     const char *text, size_t n);
/* json, which is taken, as text; NULL: it is NULL, or there was no memory for all of it. */
char *oct_serve_json_text(json_t *json);
void oct_serve_reply_json(oct_serve_server *s, struct evhttp_request *req, int code, json_t *json);
void oct_serve_reply_fault(oct_serve_server *s, struct evhttp_request *req,
                           const oct_serve_fault *f);
json_t *oct_serve_fault_json(const oct_serve_fault *f);
/* Headers that every reply has. */
void oct_serve_common_headers(oct_serve_server *s, struct evhttp_request *req);
/* The body, NUL-terminated and malloc'd; NULL: no memory. */
char *oct_serve_body(struct evhttp_request *req, size_t *n);

/* A line on stderr, unless nobody reads there. */
void oct_serve_log(const char *fmt, ...) OCT_PRINTF(1, 2);

/* ---- serve_guard.c: what is refused before a route sees it ---------------------------------- */

/* Fills *f if the request is to be refused. */
bool oct_serve_guard(oct_serve_server *s, struct evhttp_request *req, bool needs_key,
                     oct_serve_fault *f);
/* The Origin header, if pages from there may read replies; else NULL. */
const char *oct_serve_origin(oct_serve_server *s, struct evhttp_request *req);

/* ---- serve_routes.c ------------------------------------------------------------------------- */

void oct_serve_route(struct evhttp_request *req, void *server);

#endif
