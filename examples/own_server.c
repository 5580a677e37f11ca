/* own_server.c: a server of your own on liboctet and libevent, in one thread: a POST's body is the
 * prompt, the reply is its text as it comes; requests share steps; who leaves is forgotten.
 *
 *     cc -o own_server own_server.c \
 *         $(pkg-config --cflags --libs octet libevent_core libevent_extra)
 *     ./own_server model.gguf 8000 &
 *     curl -N http://127.0.0.1:8000/ -d "The king said"
 *
 * serving.md says what it lacks before strangers may reach it. */
#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <octet/octet.h>
#include <octet/scheduler.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AT_ONCE = 8, WAITING = 64, TOKENS = 40, BODY_MAX = 1 << 16 };

static oct_model *model;
static oct_scheduler *scheduler;
static int stopped;

/* From a request to its END, which frees it. */
typedef struct client {
    struct evhttp_request *req; /* NULL: it has left */
    uint64_t id;                /* of the scheduler's request */
} client;

static void on_gone(struct evhttp_connection *connection, void *arg)
{
    client *c = arg;
    (void)connection;
    if (!evhttp_request_get_connection(c->req)) /* cut off from it: ours to free */
        evhttp_request_free(c->req);
    c->req = NULL;
    oct_scheduler_cancel(scheduler, c->id); /* its END is still to come */
}

/* Of the scheduler, inside a step. */
static void on_event(void *ctx, const oct_event *e)
{
    client *c = e->user;
    if (c->req && e->kind == OCT_EVENT_TOKEN) {
        evbuffer_add(ctx, e->bytes, e->n_bytes);
        evhttp_send_reply_chunk(c->req, ctx);
    }
    if (c->req && e->kind == OCT_EVENT_END) {
        evhttp_connection_set_closecb(evhttp_request_get_connection(c->req), NULL, NULL);
        evhttp_send_reply_end(c->req);
    }
    if (e->kind == OCT_EVENT_END)
        free(c);
}

static void on_request(struct evhttp_request *req, void *arg)
{
    oct_error err = {0};
    struct evbuffer *body = evhttp_request_get_input_buffer(req);
    const char *text = (const char *)evbuffer_pullup(body, -1);
    client *c = calloc(1, sizeof *c);
    oct_request r = {
        .n_max = TOKENS, .sampler = {.temperature = 0.7f, .top_p = 0.95f, .rng = 42}, .user = c};
    int32_t *ids = NULL;
    size_t n_ids = 0;
    (void)arg;
    oct_status s =
        c ? oct_encode(model, text ? text : "", evbuffer_get_length(body), &ids, &n_ids, &err)
          : oct_fail(&err, OCT_ERR_MEMORY, "out of memory");
    r.ids = ids;
    r.n_ids = (int64_t)n_ids;
    if (s == OCT_OK)
        s = oct_scheduler_submit(scheduler, &r, &c->id, &err);
    free(ids);
    if (s != OCT_OK) { /* the prompt cannot be used, or too many wait */
        evhttp_send_error(req, s == OCT_ERR_ARG ? HTTP_BADREQUEST : HTTP_SERVUNAVAIL, err.text);
        free(c);
        return;
    }
    c->req = req;
    evhttp_connection_set_closecb(evhttp_request_get_connection(req), on_gone, c);
    evhttp_send_reply_start(req, HTTP_OK, NULL);
}

static void on_signal(evutil_socket_t number, short what, void *base)
{
    (void)number;
    (void)what;
    stopped = 1;
    event_base_loopbreak(base);
}

/* What has come, then a step; without requests it waits for one. */
static oct_status serve(struct event_base *base, oct_error *err)
{
    oct_status s = OCT_OK;
    while (!stopped && s == OCT_OK) {
        const int busy = oct_scheduler_pending(scheduler) > 0;
        event_base_loop(base, busy ? EVLOOP_NONBLOCK : EVLOOP_ONCE);
        s = busy ? oct_scheduler_step(scheduler, err) : OCT_OK;
    }
    return s;
}

int main(int argc, char **argv)
{
    oct_error err = {0};
    oct_session *session = NULL;
    struct event_base *base = event_base_new();
    struct evhttp *http = evhttp_new(base);
    const oct_session_params params = {.n_seqs = AT_ONCE};
    const oct_scheduler_params how = {
        .max_waiting = WAITING, .event = on_event, .ctx = evbuffer_new()};
    if (argc != 3 || evhttp_bind_socket(http, "127.0.0.1", (uint16_t)atoi(argv[2])) != 0) {
        fprintf(stderr, "usage: own_server MODEL PORT, of which the port must be free\n");
        return 2;
    }
    struct event *term = evsignal_new(base, SIGTERM, on_signal, base);
    event_add(term, NULL);
    evhttp_set_gencb(http, on_request, NULL);
    evhttp_set_allowed_methods(http, EVHTTP_REQ_POST);
    evhttp_set_max_body_size(http, BODY_MAX);
    const int ok = oct_model_open(argv[1], &model, &err) == OCT_OK &&
                   oct_session_new(model, &params, &session, &err) == OCT_OK &&
                   oct_scheduler_new(session, &how, &scheduler, &err) == OCT_OK &&
                   serve(base, &err) == OCT_OK;
    if (!ok)
        fprintf(stderr, "own_server: %s\n", err.text);
    evhttp_free(http); /* before the scheduler: who is there leaves */
    oct_scheduler_free(scheduler);
    oct_session_free(session);
    oct_model_close(model);
    event_free(term);
    event_base_free(base);
    evbuffer_free(how.ctx);
    return ok ? 0 : 1;
}
